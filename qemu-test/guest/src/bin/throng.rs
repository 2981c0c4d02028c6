//! `throng ROUNDS`: a process with many threads. In the order in which they are made, one of two ends
//! after a moment, and the other one stays until the round is over. So whoever goes through the threads
//! finds that others end before the place at which it is. Prints how many there were.
use kvmtrace_guest::{arg, map_at, write};
use std::io::Result;
use std::time::{Duration, Instant};

const PAIRS: usize = 60;
/// How long a thread stays that stays, and how long one does at most that does not, µs.
const STAYS: u64 = 3_000_000;
const MOMENT: u64 = 2_000_000;

fn begin(work: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().stack_size(64 << 10).spawn(work)
}

fn main() -> Result<()> {
    let rounds = arg(1, 4);
    let base = map_at(0x1000_0000_0000, 2 * PAIRS)? as usize;
    let mut all = 0;
    for round in 0..rounds {
        let end = Instant::now() + Duration::from_micros(STAYS);
        let mut threads = Vec::new();
        for i in 0..PAIRS {
            let moment = Duration::from_micros((i * 7919 + round * 104_729) as u64 % MOMENT);
            threads.push(begin(move || {
                write(base as *mut u8, 2 * i, 1);
                std::thread::sleep(moment);
            })?);
            threads.push(begin(move || {
                write(base as *mut u8, 2 * i + 1, 1);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            })?);
        }
        all += threads.len();
        for thread in threads {
            let _ = thread.join();
        }
    }
    println!("{all} threads");
    Ok(())
}
