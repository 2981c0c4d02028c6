//! `crowd THREADS BUSY PAGES ROUNDS [spin]`: a thread on each of so many CPUs, of which some
//! are busy.
//!
//! Each thread touches some pages of its own. Then the first BUSY threads go over PAGES pages
//! each, ROUNDS times, with loads and stores that lie on two pages. The others sleep until
//! the busy ones are done. If `spin` is given, the others refer to two pages all the time instead:
//! that of the loop's instructions, and one with their counter and the word that ends the loop.
//! The program prints the sum of all that was stored. To stderr it prints how many pages the
//! slowest busy thread had gone over when the first one was done: those of all its rounds, and
//! only whole twenties of them.
use kvmtrace_guest::{PAGE, arg, map_at, stay_on};
use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

const BASE: usize = 0x1000_0000_0000;
/// Between what two threads have.
const APART: usize = 1 << 32;
/// Pages that each thread touches first: more than its first segment has.
const BEGIN: usize = 20;
/// After so many pages, a busy thread adds them to its count. To count each page would be one
/// more reference for each.
const COUNTED: usize = 20;

/// The word that ends the loop of a thread that is not busy.
fn end(thread: usize) -> &'static AtomicU64 {
    let at = (BASE + thread * APART + 256) as *const AtomicU64;
    // SAFETY: Each thread maps this page before the first barrier, and nobody unmaps it. Only
    // this function gives its 256th byte to anyone.
    unsafe { &*at }
}

/// Adds 1 to the word at `at`.
fn add(at: usize) {
    let p = at as *mut u64;
    // SAFETY: Within the thread's mapping, and only this thread uses it.
    unsafe { p.write_unaligned(p.read_unaligned() + 1) };
}

fn main() -> Result<()> {
    let (threads, busy) = (arg(1, 2), arg(2, 1));
    let (pages, rounds) = (arg(3, 200), arg(4, 10));
    let spin = std::env::args().nth(5).is_some_and(|a| a == "spin");
    // SAFETY: It has no memory to go wrong with.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize;
    let begun = Arc::new(Barrier::new(threads));
    let made: Arc<Vec<_>> = Arc::new((0..busy).map(|_| AtomicUsize::new(0)).collect());
    let running = Arc::new(AtomicUsize::new(busy));
    let fewest = Arc::new(AtomicUsize::new(usize::MAX));
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let (begun, made, running) = (begun.clone(), made.clone(), running.clone());
            let fewest = fewest.clone();
            std::thread::spawn(move || -> Result<u64> {
                stay_on(t % cpus)?;
                let base = map_at(BASE + t * APART, pages.max(BEGIN) + 1)? as usize;
                for page in 0..BEGIN {
                    add(base + page * PAGE + 64);
                }
                begun.wait();
                if t >= busy {
                    let end = end(t);
                    while end.load(SeqCst) == 0 {
                        if spin {
                            add(base + 128);
                        } else {
                            std::thread::sleep(std::time::Duration::from_millis(200));
                        }
                    }
                    return Ok(0);
                }
                for _ in 0..rounds {
                    for page in 0..pages {
                        // On this page and the next one.
                        add(base + (page + 1) * PAGE - 4);
                        if (page + 1) % COUNTED == 0 {
                            made[t].fetch_add(COUNTED, SeqCst);
                        }
                    }
                }
                let least = made.iter().map(|m| m.load(SeqCst)).min().unwrap_or(0);
                fewest.fetch_min(least, SeqCst);
                if running.fetch_sub(1, SeqCst) == 1 {
                    (busy..threads).for_each(|t| end(t).store(1, SeqCst));
                }
                let word = |page: usize| (base + (page + 1) * PAGE - 4) as *const u64;
                // SAFETY: As above.
                Ok((0..pages)
                    .map(|page| unsafe { word(page).read_unaligned() })
                    .sum())
            })
        })
        .collect();
    let mut sum = 0;
    for w in workers {
        sum += w.join().map_err(|_| Error::other("a thread failed"))??;
    }
    println!("{sum}");
    eprintln!("{}", fewest.load(SeqCst));
    Ok(())
}
