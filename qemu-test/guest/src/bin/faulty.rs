//! `faulty SECONDS [self]`: two threads that map, move, protect, drop, fork over, read and
//! write memory, while system calls may fail at any moment, and check every value that they
//! find. One has anonymous memory, the other one that of a file. A call that fails is
//! counted by its name and its error, and is repeated where the rest depends on it. With
//! `self`, only these threads and their children are made to fail (/proc/PID/make-it-fail).
//! Prints the steps, the errors, the signals that ended children, and the wrong values.
use kvmtrace_guest::{PAGE, arg};
use std::io::Error;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PAGES: usize = 64;
const WORKERS: usize = 2;
/// Errors are below this.
const ERRORS: usize = 134;

/// A call that may fail.
#[derive(Clone, Copy, Debug)]
enum Call {
    Mmap,
    Madvise,
    Mprotect,
    Mremap,
    Fork,
    Write,
    Read,
    Populate,
    Mlock,
    Pageout,
    Wait,
    Msync,
    Open,
    Munmap,
}

const CALLS: [Call; 14] = [
    Call::Mmap,
    Call::Madvise,
    Call::Mprotect,
    Call::Mremap,
    Call::Fork,
    Call::Write,
    Call::Read,
    Call::Populate,
    Call::Mlock,
    Call::Pageout,
    Call::Wait,
    Call::Msync,
    Call::Open,
    Call::Munmap,
];

struct Worker {
    seed: u64,
    at: usize,
    /// A shared mapping of it; else anonymous memory.
    file: Option<i32>,
    pipe: [i32; 2],
    /// What each page's first word must be.
    words: [u64; PAGES],
    errors: [[u32; ERRORS]; CALLS.len()],
    /// Signals that ended children.
    signals: [u32; 65],
    steps: u64,
    wrong: u64,
}

fn errno() -> usize {
    let e = Error::last_os_error().raw_os_error().unwrap_or(0);
    usize::try_from(e).unwrap_or(0).min(ERRORS - 1)
}

/// Moves pages; the error is EFAULT if there are none.
fn go(from: usize, to: usize, pages: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, to) = (from as *mut libc::c_void, to as *mut libc::c_void);
    // SAFETY: The callers name memory of theirs.
    let p = unsafe { libc::mremap(from, pages * PAGE, pages * PAGE, flags, to) };
    p != libc::MAP_FAILED
}

impl Worker {
    fn pick(&mut self, n: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % n
    }

    fn word(&self, i: usize) -> *mut u64 {
        (self.at + i * PAGE) as *mut u64
    }

    /// Counts a call that failed.
    fn failed(&mut self, call: Call) {
        self.errors[call as usize][errno()] += 1;
    }

    /// Repeats a call until it succeeds.
    fn until(&mut self, call: Call, f: impl Fn() -> bool) {
        while !f() {
            self.failed(call);
        }
    }

    fn touch(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let i = self.pick(PAGES);
            // SAFETY: All pages are mapped and writable between steps.
            unsafe {
                let got = self.word(i).read_volatile();
                if got != self.words[i] {
                    self.wrong += 1;
                    self.words[i] = got;
                }
                if self.pick(2) == 0 {
                    self.words[i] = self.seed | 1;
                    self.word(i).write_volatile(self.words[i]);
                }
            }
        }
    }

    fn map(&mut self, first: usize, len: usize) {
        let (flags, fd, offset) = match self.file {
            Some(fd) => (libc::MAP_SHARED, fd, first * PAGE),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let at = self.word(first).cast();
        self.until(Call::Mmap, || {
            // SAFETY: Memory of this worker alone.
            let p = unsafe {
                libc::mmap(
                    at,
                    len * PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags | libc::MAP_FIXED,
                    fd,
                    offset as libc::off_t,
                )
            };
            p != libc::MAP_FAILED
        });
        if self.file.is_none() {
            self.words[first..first + len].fill(0);
        }
    }

    /// A child that checks what it shares, writes to it if it is its own, and dies.
    fn fork(&mut self) {
        // SAFETY: The child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return self.failed(Call::Fork);
        }
        if pid == 0 {
            let mut code = 0;
            for (i, word) in self.words.iter().enumerate() {
                // SAFETY: As in [`Worker::touch`].
                unsafe {
                    if self.word(i).read_volatile() != *word {
                        code = 1;
                    }
                    if self.file.is_none() {
                        self.word(i).write_volatile(!0);
                    }
                }
            }
            // SAFETY: The end of the child.
            unsafe { libc::_exit(code) };
        }
        if self.file.is_none() {
            self.touch(50);
        }
        let mut status = 0;
        // The status may get lost on its way; the child does not.
        let found = loop {
            // SAFETY: A child of ours.
            if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
                break true;
            }
            if errno() == libc::ECHILD as usize {
                break false;
            }
            self.failed(Call::Wait);
        };
        if found && libc::WIFSIGNALED(status) {
            self.signals[libc::WTERMSIG(status) as usize % 65] += 1;
        } else if found && status != 0 {
            self.wrong += 1;
        }
    }

    /// Through a pipe, from a page to the same page.
    fn copy(&mut self, i: usize) {
        let page = self.word(i);
        // SAFETY: A page of ours. The pipe has room for it.
        unsafe {
            let n = libc::write(self.pipe[1], page.cast(), PAGE);
            if n < 0 {
                return self.failed(Call::Write);
            }
            let mut left = n as usize;
            while left > 0 {
                let at = page.cast::<u8>().add(n as usize - left);
                match libc::read(self.pipe[0], at.cast(), left) {
                    n if n < 0 => self.failed(Call::Read),
                    n => left -= n as usize,
                }
            }
        }
    }

    fn step(&mut self) {
        let first = self.pick(PAGES);
        let room = PAGES - first;
        let len = 1 + self.pick(room.min(20));
        let at: *mut libc::c_void = self.word(first).cast();
        let bytes = len * PAGE;
        // SAFETY: Only this worker's mapping is changed, and is whole after each step.
        unsafe {
            match self.pick(12) {
                0 => self.map(first, len),
                1 => {
                    self.until(Call::Madvise, || {
                        libc::madvise(at, bytes, libc::MADV_DONTNEED) == 0
                    });
                    if self.file.is_none() {
                        self.words[first..first + len].fill(0);
                    }
                }
                2 => {
                    let both = libc::PROT_READ | libc::PROT_WRITE;
                    for prot in [libc::PROT_NONE, libc::PROT_READ, both] {
                        self.until(Call::Mprotect, || libc::mprotect(at, bytes, prot) == 0);
                    }
                }
                3 | 4 => {
                    let away = self.at + (1 << 32) + first * PAGE;
                    // A mapping that could not be split when its pages moved away may have
                    // stayed there without them.
                    let left = away as *mut libc::c_void;
                    self.until(Call::Munmap, || libc::munmap(left, bytes) == 0);
                    if go(at as usize, away, len) {
                        let got = (away as *const u64).read_volatile();
                        self.wrong += u64::from(got != self.words[first]);
                    } else {
                        self.failed(Call::Mremap);
                    }
                    // A move of several mappings may have failed in the middle, so each page
                    // goes back that is not there.
                    for page in (0..len).map(|i| i * PAGE) {
                        while !go(away + page, at as usize + page, 1) {
                            if errno() == libc::EFAULT as usize {
                                break;
                            }
                            self.failed(Call::Mremap);
                        }
                    }
                }
                5 => {
                    if libc::madvise(at, bytes, libc::MADV_PAGEOUT) != 0 {
                        self.failed(Call::Pageout);
                    }
                }
                6 | 7 => self.fork(),
                8 => (0..10).for_each(|_| self.copy(first)),
                9 => {
                    if libc::madvise(at, bytes, libc::MADV_POPULATE_WRITE) != 0 {
                        self.failed(Call::Populate);
                    }
                }
                10 => {
                    if libc::mlock(at, bytes) != 0 {
                        self.failed(Call::Mlock);
                    }
                    self.until(Call::Mlock, || libc::munlock(at, bytes) == 0);
                }
                _ => {
                    if self.file.is_some() {
                        if libc::msync(at, bytes, libc::MS_SYNC) != 0 {
                            self.failed(Call::Msync);
                        }
                    } else {
                        let fd = libc::open(c"/bin/faulty".as_ptr(), libc::O_RDONLY);
                        match fd {
                            0.. => _ = libc::close(fd),
                            _ => self.failed(Call::Open),
                        }
                    }
                }
            }
        }
        self.touch(40);
        self.steps += 1;
    }

    /// Whether this thread is made to fail, from here on.
    fn make_it_fail(&mut self, yes: &[u8; 1]) {
        let mut tries = 0;
        loop {
            tries += 1;
            // SAFETY: A path with its end, and a byte.
            let done = unsafe {
                let fd = libc::open(c"/proc/thread-self/make-it-fail".as_ptr(), libc::O_WRONLY);
                let n = libc::write(fd, yes.as_ptr().cast(), 1);
                if fd >= 0 {
                    libc::close(fd);
                }
                n == 1
            };
            if done || tries > 1000 {
                return;
            }
        }
    }
}

fn worker(n: usize, path: &str) -> std::io::Result<Worker> {
    use std::os::fd::IntoRawFd;
    let file = if n == 1 {
        Some(kvmtrace_guest::new_file(path, PAGES)?.into_raw_fd())
    } else {
        None
    };
    let mut pipe = [0; 2];
    // SAFETY: Room for two descriptors.
    kvmtrace_guest::check(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
    Ok(Worker {
        seed: (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        at: 0x1000_0000_0000 + n * (1 << 33) + n * 7 * PAGE,
        file,
        pipe,
        words: [0; PAGES],
        errors: [[0; ERRORS]; CALLS.len()],
        signals: [0; 65],
        steps: 0,
        wrong: 0,
    })
}

fn main() -> std::io::Result<()> {
    let time = Duration::from_secs(arg(1, 3) as u64);
    let own = std::env::args().nth(2).as_deref() == Some("self");
    let path = format!("/tmp/faulty-{}", std::process::id());
    let mut workers = (0..WORKERS)
        .map(|n| worker(n, &path).map(Box::new))
        .collect::<std::io::Result<Vec<_>>>()?;
    // What makes threads allocates memory, so all are there before anything fails.
    let ready = Barrier::new(WORKERS);
    std::thread::scope(|scope| {
        for w in &mut workers {
            scope.spawn(|| {
                w.map(0, PAGES);
                ready.wait();
                if own {
                    w.make_it_fail(b"1");
                }
                let end = Instant::now() + time;
                while Instant::now() < end {
                    w.step();
                }
                if own {
                    w.make_it_fail(b"0");
                }
            });
        }
    });
    let _ = std::fs::remove_file(&path);
    let mut wrong = 0;
    for w in &workers {
        for (call, errors) in CALLS.iter().zip(&w.errors) {
            for (errno, n) in errors.iter().enumerate().filter(|(_, n)| **n > 0) {
                println!("error {call:?} {errno} {n}");
            }
        }
        for (signal, n) in w.signals.iter().enumerate().filter(|(_, n)| **n > 0) {
            println!("signal {signal} {n}");
        }
        println!("steps {}", w.steps);
        wrong += w.wrong;
    }
    println!("wrong {wrong}");
    Ok(())
}
