//! attach-loop ROUNDS OUTPUT: has itself traced and let go while its threads run and
//! its children fork and exec. With 0 rounds it does the same work untraced. Every
//! process that lives after an attach must be traced: none may slip through.
use kvmtrace_guest::{PAGE, activator, arg, check, fork_child, map_at, sum, wait_child, write};
use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const PAGES: usize = 120;
const BASE: usize = 0x1000_0000_0000;

/// Processes that each make the next one, and some run a program, until the first
/// page says that it is enough. The last one's code is the chain's.
fn chain(stop: *mut u8, made: &AtomicU64) -> i32 {
    loop {
        // SAFETY: Shared memory of this program's.
        if unsafe { stop.read_volatile() } != 0 {
            return 0;
        }
        let next = fork_child(|| {
            let Ok(base) = map_at(BASE + (1 << 30), 20) else {
                return 1;
            };
            for i in 0..20 {
                write(base, i, 1);
            }
            if sum(base, 20) != 20 {
                return 2;
            }
            // SAFETY: Strings with their ends.
            unsafe {
                libc::execv(
                    c"/bin/touch-loop".as_ptr(),
                    [
                        c"touch-loop".as_ptr(),
                        c"20".as_ptr(),
                        c"1".as_ptr(),
                        std::ptr::null(),
                    ]
                    .as_ptr(),
                );
            }
            3
        });
        match next.and_then(wait_child) {
            Ok(0) => made.fetch_add(1, Relaxed),
            _ => return 1,
        };
    }
}

/// Address spaces that the kernel has traced in the last trace.
fn traced() -> Result<u64> {
    let text = activator("status --json")?;
    let rest = text.split_once("\"mms\":").map_or("", |(_, rest)| rest);
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits
        .parse()
        .map_err(|e| Error::other(format!("{e}: {text}")))
}

fn main() -> Result<()> {
    let rounds = arg(1, 10);
    let output = std::env::args()
        .nth(2)
        .unwrap_or_else(|| "/dev/trace".into());
    let shared = kvmtrace_guest::map_with(
        BASE + (2 << 30),
        1,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
    )?;
    // SAFETY: The mapping stays, and is aligned.
    let made = unsafe { &*shared.add(64).cast::<AtomicU64>() };
    // The children's programs say nothing here.
    // SAFETY: Descriptors of ours.
    let said = unsafe {
        let said = check(libc::dup(1))?;
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY))?;
        check(libc::dup2(null, 1))?;
        said
    };
    let chains: Vec<_> = (0..2)
        .map(|_| fork_child(|| chain(shared, made)))
        .collect::<Result<_>>()?;
    let base = map_at(BASE, PAGES)? as usize;
    let stop = Arc::new(AtomicBool::new(false));
    let wrong = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3usize)
        .map(|t| {
            let (stop, wrong) = (stop.clone(), wrong.clone());
            std::thread::spawn(move || {
                let mut want = [0u64; PAGES];
                let mut at = t;
                while !stop.load(Relaxed) {
                    for _ in 0..50 {
                        at = (at * 5 + 1 + t) % PAGES;
                        let p = (base + at * PAGE + t * 64) as *mut u64;
                        // SAFETY: Inside the mapping; each thread has its own line.
                        unsafe {
                            if p.read_volatile() != want[at] {
                                wrong.fetch_add(1, Relaxed);
                            }
                            p.write_volatile(want[at] + 1);
                        }
                        want[at] += 1;
                    }
                }
            })
        })
        .collect();
    let pid = std::process::id();
    let mut done = 0;
    let mut failed = None;
    for round in 0..rounds {
        let scope = if round % 3 == 2 {
            "--all".into()
        } else {
            format!("--pid {pid}")
        };
        let n = [64, 512][round % 2];
        let on = activator(&format!("on -n {n} {scope} --force -o {output}"));
        let before = made.load(Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(150));
        let children = made.load(Relaxed) - before;
        match on.and_then(|_| activator("off")).and_then(|_| traced()) {
            // Each child has two: its parent's copy, and its program's. One may have
            // been half done when the count began.
            Ok(mms) if mms + 2 * 2 < 2 * children => {
                failed = Some(Error::other(format!(
                    "{children} children, but {mms} address spaces traced"
                )));
            }
            Ok(mms) => {
                eprintln!("{children} children, {mms} address spaces traced");
                done += 1;
            }
            Err(e) => failed = Some(e),
        }
    }
    if rounds == 0 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    stop.store(true, Relaxed);
    write(shared, 0, 1);
    for t in threads {
        t.join().map_err(|_| Error::other("a thread failed"))?;
    }
    let mut codes = 0;
    for c in chains {
        codes += wait_child(c)?;
    }
    // SAFETY: Descriptors of ours.
    check(unsafe { libc::dup2(said, 1) })?;
    if let Some(e) = failed {
        return Err(e);
    }
    assert_eq!(done, rounds);
    println!(
        "{} wrong values, chains ended with {codes}",
        wrong.load(Relaxed)
    );
    Ok(())
}
