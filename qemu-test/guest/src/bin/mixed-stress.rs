//! mixed-stress ADMISSIONS: everything that ends stays and moves pages, at once, until
//! so many admissions were made: threads that map, move, protect and advise, forks that
//! end while they are victims, execs, swapping, a set that changes its size, signals.
//! Every value read is checked. Prints how far it is on standard error and on the
//! console. Is run under `activator run`; without a tracer it stops after some seconds.
use kvmtrace_guest::{PAGE, activator, arg, check, fork_child, map_at, swap_on, wait_child};
use std::io::{Error, Result, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGES: usize = 200;
const WORKERS: usize = 4;
const SIZES: [&str; 4] = ["64", "1024", "32", "256"];

static STOP: AtomicBool = AtomicBool::new(false);
static STEPS: AtomicU64 = AtomicU64::new(0);

struct Worker {
    seed: u64,
    at: usize,
    /// What each page's first word must be; 0 where it is not known to be mapped.
    words: Vec<u64>,
    forks: bool,
}

impl Worker {
    fn pick(&mut self, n: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % n
    }

    fn page(&self, i: usize) -> *mut u8 {
        (self.at + i * PAGE) as *mut u8
    }

    fn word(&self, i: usize) -> *mut u64 {
        self.page(i).cast()
    }

    fn wrong(&self, i: usize, got: u64) -> Error {
        Error::other(format!(
            "page {i} at {:#x} holds {got:#x} instead of {:#x}",
            self.at, self.words[i]
        ))
    }

    fn touch(&mut self) -> Result<()> {
        for _ in 0..300 {
            let i = self.pick(PAGES);
            // SAFETY: All pages are mapped between steps.
            unsafe {
                let got = self.word(i).read_volatile();
                if got != self.words[i] {
                    return Err(self.wrong(i, got));
                }
                if self.pick(2) == 0 {
                    self.words[i] = self.seed | 1;
                    self.word(i).write_volatile(self.words[i]);
                }
            }
        }
        Ok(())
    }

    fn range(&mut self) -> (usize, usize) {
        let first = self.pick(PAGES);
        (first, 1 + self.pick((PAGES - first).min(40)))
    }

    fn step(&mut self) -> Result<()> {
        let (first, len) = self.range();
        let at: *mut libc::c_void = self.page(first).cast();
        let bytes = len * PAGE;
        // SAFETY: Only this worker's mapping is changed, and stays whole.
        unsafe {
            match self.pick(if self.forks { 14 } else { 12 }) {
                0 => {
                    check(libc::munmap(at, bytes))?;
                    map_at(at as usize, len)?;
                    self.words[first..first + len].fill(0);
                }
                1 => {
                    check(libc::madvise(at, bytes, libc::MADV_DONTNEED))?;
                    self.words[first..first + len].fill(0);
                }
                2 => {
                    check(libc::mprotect(at, bytes, libc::PROT_NONE))?;
                    check(libc::mprotect(at, bytes, libc::PROT_READ))?;
                    for i in first..first + len {
                        let got = self.word(i).read_volatile();
                        if got != self.words[i] {
                            return Err(self.wrong(i, got));
                        }
                    }
                    check(libc::mprotect(
                        at,
                        bytes,
                        libc::PROT_READ | libc::PROT_WRITE,
                    ))?;
                }
                3 | 4 => {
                    // There and back again.
                    let away = (self.at + (1 << 32) + first * PAGE) as *mut libc::c_void;
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    if libc::mremap(at, bytes, bytes, flags, away) != libc::MAP_FAILED {
                        away.cast::<u64>().read_volatile();
                        if libc::mremap(away, bytes, bytes, flags, at) == libc::MAP_FAILED {
                            return Err(Error::last_os_error());
                        }
                    }
                }
                5 => {
                    libc::madvise(at, bytes, libc::MADV_PAGEOUT);
                }
                6 => {
                    libc::madvise(at, bytes, libc::MADV_COLD);
                }
                7 => {
                    let signal = libc::SIGUSR1;
                    let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
                    check(libc::syscall(libc::SYS_tgkill, pid, tid, signal) as i32)?;
                }
                12 | 13 => {
                    // A child that writes what the parent shares, and dies, in the
                    // middle of it or by exec.
                    let how = self.pick(3);
                    let words = &self.words;
                    let pid = fork_child(|| {
                        for (i, word) in words.iter().enumerate().skip(first).take(len) {
                            let w = self.word(i);
                            if w.read_volatile() != *word {
                                return 1;
                            }
                            w.write_volatile(!0);
                        }
                        match how {
                            0 => {
                                let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
                                libc::dup2(null, 1);
                                libc::execv(
                                    c"/bin/touch-loop".as_ptr(),
                                    [
                                        c"touch-loop".as_ptr(),
                                        c"60".as_ptr(),
                                        c"1".as_ptr(),
                                        std::ptr::null(),
                                    ]
                                    .as_ptr(),
                                );
                                2
                            }
                            1 => {
                                libc::raise(libc::SIGKILL);
                                3
                            }
                            _ => 0,
                        }
                    })?;
                    self.touch()?;
                    let status = wait_child(pid)?;
                    if status != if how == 1 { libc::SIGKILL } else { 0 } {
                        return Err(Error::other(format!("a child ended with {status:#x}")));
                    }
                }
                _ => {}
            }
        }
        self.touch()?;
        STEPS.fetch_add(1, Relaxed);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        map_at(self.at, PAGES)?;
        while !STOP.load(Relaxed) {
            self.step()?;
        }
        Ok(())
    }
}

extern "C" fn on_signal(_: i32) {}

fn worker(n: usize, forks: bool) -> Result<()> {
    Worker {
        seed: (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        at: 0x1000_0000_0000 + n * (1 << 33) + (n % 3) * 7 * PAGE,
        words: vec![0; PAGES],
        forks,
    }
    .run()
}

/// A process of one thread that forks, until its parent ends it.
fn forker(n: usize) -> i32 {
    match worker(n, true) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("forker {n}: {e}");
            1
        }
    }
}

fn admissions() -> Option<(u64, String)> {
    let text = activator("status --json").ok()?;
    let number = |name: &str| {
        let rest = text.split_once(&format!("\"{name}\":"))?.1;
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        rest[..end].parse::<u64>().ok()
    };
    text.contains("\"state\":1").then_some(())?;
    let n = number("admissions")?;
    let line = [
        "members",
        "members_max",
        "evms_size",
        "evms_peak",
        "funny",
        "stuck",
        "lost_full",
        "lost_atomic",
    ]
    .map(|k| format!("{k} {}", number(k).unwrap_or(0)))
    .join(", ");
    Some((n, line))
}

fn main() -> Result<()> {
    let want = arg(1, 100_000) as u64;
    swap_on("/dev/swap")?;
    // SAFETY: A handler of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        check(libc::sigaction(
            libc::SIGUSR1,
            &action,
            std::ptr::null_mut(),
        ))?;
    }
    let forkers: Vec<_> = (0..2)
        .map(|n| fork_child(|| forker(WORKERS + n)))
        .collect::<Result<_>>()?;
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| std::thread::spawn(move || worker(n, false)))
        .collect();
    let start = Instant::now();
    let mut console = std::fs::File::options()
        .write(true)
        .open("/dev/console")
        .ok();
    let mut told = 0;
    let mut resized = 0;
    let mut failed = String::new();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        if workers.iter().any(std::thread::JoinHandle::is_finished) {
            failed = "a worker ended early".into();
            break;
        }
        let Some((n, line)) = admissions() else {
            if start.elapsed() > Duration::from_secs(3) {
                break;
            }
            continue;
        };
        if n >= want {
            break;
        }
        if n / (want / 20).max(1) > told {
            told = n / (want / 20).max(1);
            let text = format!("{n} of {want} admissions; {line}\n");
            eprint!("{text}");
            if let Some(c) = console.as_mut() {
                let _ = c.write_all(text.as_bytes());
            }
        }
        if activator(&format!("resize {}", SIZES[resized % SIZES.len()])).is_ok() {
            resized += 1;
        }
    }
    STOP.store(true, Relaxed);
    for w in workers {
        if let Err(e) = w.join().map_err(|_| Error::other("a worker failed"))? {
            failed = e.to_string();
        }
    }
    for pid in forkers {
        // SAFETY: A child of ours that has not been waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let status = wait_child(pid)?;
        if status != libc::SIGKILL {
            failed = format!("a forker ended with {status:#x}");
        }
    }
    if !failed.is_empty() {
        return Err(Error::other(failed));
    }
    eprintln!("{} steps, resized {resized} times", STEPS.load(Relaxed));
    println!("all values right");
    Ok(())
}
