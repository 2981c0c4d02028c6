//! `sharers SHAPE WORKERS PAGES ROUNDS [WAY N]`: workers that each read pages of their own, over
//! and over, on a CPU of their own. It is what a tracer's costs on several CPUs are measured with.
//!
//! SHAPE is `processes`, `threads` or `mappers`. Mappers are processes. They map and unmap a page
//! instead of reading one. The first worker is the program's first thread, which starts
//! the other ones. Worker i runs on CPU i, modulo the number of CPUs. It writes each of its PAGES
//! pages, reads them once, and waits for the other workers. Then it reads a word of each page,
//! page by page, ROUNDS times. In a set of fewer than PAGES pages, each of these reads is a
//! reference. The first worker executes [`mark_begin`] right before its first one of these reads,
//! and [`mark_end`] right after its last one. A plugin of QEMU counts between the marks.
//!
//! With WAY, the program traces itself, with a set of N pages for each process:
//!
//! - `segv`: mprotect() and a handler of SIGSEGV. The order of the reads is kind to this way: it
//!   leaves few mappings. A program that reads in no order has a mapping for nearly each page.
//! - `rwp-signal`: userfaultfd's read-write protection and a handler of SIGBUS.
//! - `rwp-thread`: the same protection, and a thread that handles the faults on the last CPU.
//!
//! The program prints a line of JSON: `references`, the reads by all workers; `ticks`, of the
//! time-stamp counter between the marks; `ns`, from the moment at which all workers
//! begin these reads to the moment at which the last one has ended; `records`, those of the program's own
//! tracer in the same rounds; `shootdowns`, interrupts for flushes of the TLB on all CPUs, while the whole
//! program ran. It fails if these records are not those of the reads.
use kvmtrace_guest::tracers::{
    Reference, Tracer, Way, mark_begin, mark_end, region, report_failure, spin_until,
};
use kvmtrace_guest::{
    PAGE, arg, check, fork_child, map_at, map_with, stay_on, ticks, wait_child, write,
};
use std::io::{Error, Result};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

const USAGE: &str =
    "usage: sharers processes|threads|mappers WORKERS PAGES ROUNDS [segv|rwp-signal|rwp-thread N]";

/// What all workers have in common, in memory that processes share.
struct Stage {
    /// Workers that came to a barrier, in all.
    arrived: AtomicUsize,
    /// Records of the tracers of all processes.
    records: AtomicU64,
    /// A worker failed, so that no other one has to wait for it.
    failed: AtomicBool,
}

impl Stage {
    fn new() -> Result<&'static Self> {
        let page = map_with(0, 1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: A page of zeros that nobody unmaps and nobody else uses; a stage is smaller,
        // needs no larger alignment, and may be all zeros.
        Ok(unsafe { &*page.cast::<Stage>() })
    }

    /// Waits at barrier `n`, counted from 1, for all workers.
    fn meet(&self, n: usize, workers: usize) -> Result<()> {
        self.arrived.fetch_add(1, SeqCst);
        spin_until(|| self.arrived.load(SeqCst) >= n * workers || self.failed.load(Relaxed));
        match self.failed.load(Relaxed) {
            true => Err(Error::other("another worker failed")),
            false => Ok(()),
        }
    }

    /// Notes for the others if a worker failed.
    fn note<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.failed.store(true, Relaxed);
        }
        done
    }
}

/// How long the measured rounds took, in ticks of the CPU that this worker stays on.
struct Took {
    /// Of this worker.
    ticks: u64,
    /// Of all workers together.
    all: u64,
}

/// So many ticks of this CPU in ns. The clock is compared with the counter after the measured rounds:
/// to read it references pages.
fn in_ns(all: u64) -> u64 {
    let (clock, begin) = (Instant::now(), ticks());
    spin_until(|| clock.elapsed() > Duration::from_millis(5));
    let (ns, took) = (clock.elapsed().as_nanos(), u128::from(ticks() - begin));
    (u128::from(all) * ns / took.max(1)) as u64
}

#[derive(Clone, Copy)]
struct Run {
    threads: bool,
    maps: bool,
    workers: usize,
    pages: usize,
    rounds: usize,
    /// How the program traces itself, and pages of the set.
    way: Option<(Way, usize)>,
    cpus: usize,
    stage: &'static Stage,
}

impl Run {
    fn new() -> Result<Self> {
        let words: Vec<_> = std::env::args().skip(1).collect();
        let (threads, maps) = match words.first().map(String::as_str) {
            Some("threads") => (true, false),
            Some("processes") => (false, false),
            Some("mappers") => (false, true),
            _ => return Err(Error::other(USAGE)),
        };
        let way = match words.get(4) {
            Some(name) => Some((Way::named(name)?, arg(6, 0))),
            None => None,
        };
        let (workers, pages, rounds) = (arg(2, 0), arg(3, 0), arg(4, 0));
        let wrong = workers == 0 || pages == 0 || rounds == 0 || way.is_some_and(|(_, n)| n == 0);
        if wrong || !matches!(words.len(), 4 | 6) || maps && way.is_some() {
            return Err(Error::other(USAGE));
        }
        Ok(Run {
            threads,
            maps,
            workers,
            pages,
            rounds,
            way,
            // SAFETY: It has no memory to go wrong with.
            cpus: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize,
            stage: Stage::new()?,
        })
    }

    /// The tracer of this process.
    fn tracer(&self) -> Result<Option<&'static Tracer>> {
        report_failure(&self.stage.failed);
        self.way
            .map(|(way, n)| Tracer::start(way, n, self.workers, self.pages, self.cpus - 1))
            .transpose()
    }

    /// What worker `me` does. Gives the time of the measured rounds.
    fn work(&self, me: usize, tracer: Option<&Tracer>) -> Result<Took> {
        stay_on(me % self.cpus)?;
        let base = map_at(region(me), self.pages)?;
        // SAFETY: The mapping just made. Without huge pages, each page is referenced by itself.
        check(unsafe { libc::madvise(base.cast(), self.pages * PAGE, libc::MADV_NOHUGEPAGE) })?;
        for i in 0..self.pages {
            write(base, i, 1);
        }
        if let Some(tracer) = tracer {
            tracer.arm(me)?;
        }
        read_all(base, self.pages);
        self.stage.meet(1, self.workers)?;
        // Nobody reads pages now.
        let before = tracer.map_or(0, Tracer::count);
        self.stage.meet(2, self.workers)?;

        if me == 0 {
            mark_begin();
        }
        let begin = ticks();
        for _ in 0..self.rounds {
            match self.maps {
                true => map_all(me, self.pages)?,
                false => read_all(base, self.pages),
            }
        }
        let end = ticks();
        if me == 0 {
            mark_end();
        }

        self.stage.meet(3, self.workers)?;
        let all = ticks() - begin;
        if let Some(tracer) = tracer.filter(|_| me == 0 || !self.threads) {
            let records = tracer.count() - before;
            self.judge(records)?;
            self.judge_order(tracer, before)?;
            self.stage.records.fetch_add(records, SeqCst);
        }
        let ticks = end - begin;
        Ok(Took { ticks, all })
    }

    /// Fails unless a process's tracer logged as many references as its set makes of the reads.
    fn judge(&self, records: u64) -> Result<()> {
        let Some((_, n)) = self.way else {
            return Ok(());
        };
        let tracees = if self.threads { self.workers } else { 1 };
        let reads = (tracees * self.pages * self.rounds) as u64;
        // While a thread's admission waits for its read, N admissions by other threads take the
        // page away again.
        let again = match tracees {
            1 => 0,
            _ => tracees as u64 * (records / n as u64),
        };
        let right = if n < self.pages {
            reads..=reads + again
        } else if n < tracees * self.pages {
            0..=reads + again
        } else {
            0..=0
        };
        match right.contains(&records) {
            true => Ok(()),
            false => Err(Error::other(format!(
                "{records} records of {reads} reads, and a set of {n} pages: not in {right:?}"
            ))),
        }
    }

    /// Fails unless the records that are still there are of reads, page by page, each worker's
    /// by one thread, and none of a longer stay than the set allows.
    fn judge_order(&self, tracer: &Tracer, since: u64) -> Result<()> {
        let Some((_, n)) = self.way else {
            return Ok(());
        };
        let all = tracer.references(since);
        for (i, one) in all.iter().enumerate() {
            let left = match all.get(i + n) {
                Some(next) => one.until == next.time,
                None => one.until == 0,
            };
            if one.store || !left {
                return Err(Error::other(format!("a wrong record: {one:?}")));
            }
        }
        for worker in 0..self.workers {
            let mut last = None;
            for one in all.iter().filter(|r| r.region == worker) {
                let follows = last.is_none_or(|last: &Reference| {
                    let again = self.threads && self.workers > 1 && one.page == last.page;
                    let next = n >= self.pages || one.page == (last.page + 1) % self.pages;
                    (next || again) && one.thread == last.thread && one.time >= last.time
                });
                if !follows {
                    return Err(Error::other(format!("{one:?} follows {last:?}")));
                }
                last = Some(one);
            }
        }
        Ok(())
    }

    fn threads(&self) -> Result<Took> {
        let tracer = self.tracer()?;
        let run = *self;
        let others: Vec<_> = (1..self.workers)
            .map(|me| std::thread::spawn(move || run.stage.note(run.work(me, tracer))))
            .collect();
        let took = self.stage.note(self.work(0, tracer))?;
        for other in others {
            other
                .join()
                .map_err(|_| Error::other("a thread failed"))??;
        }
        Ok(took)
    }

    fn processes(&self) -> Result<Took> {
        let begin = |me| {
            self.stage
                .note(self.tracer().and_then(|t| self.work(me, t)))
        };
        let mut others = vec![];
        for me in 1..self.workers {
            let other = self.stage.note(fork_child(|| match begin(me) {
                Ok(_) => 0,
                Err(e) => {
                    eprintln!("worker {me}: {e}");
                    1
                }
            }))?;
            others.push(other);
        }
        let took = begin(0)?;
        for other in others {
            if wait_child(other)? != 0 {
                return Err(Error::other("a process failed"));
            }
        }
        Ok(took)
    }
}

/// Reads a word of each page.
fn read_all(base: *mut u8, pages: usize) {
    for i in 0..pages {
        // SAFETY: A page of the worker's own region, which is aligned.
        unsafe { base.add(i * PAGE).cast::<u64>().read_volatile() };
    }
}

/// Maps a page apart from those of the worker, and unmaps it, as often as there are pages.
fn map_all(me: usize, pages: usize) -> Result<()> {
    for _ in 0..pages {
        let base = map_at(region(me) + 2 * pages * PAGE, 1)?;
        // SAFETY: The mapping just made.
        check(unsafe { libc::munmap(base.cast(), PAGE) })?;
    }
    Ok(())
}

/// Interrupts for flushes of the TLB so far, on all CPUs; 0 if the kernel does not count them.
fn shootdowns() -> Result<u64> {
    let all = std::fs::read_to_string("/proc/interrupts")?;
    let row = all
        .lines()
        .find_map(|l| l.trim_start().strip_prefix("TLB:"));
    let words = row.unwrap_or_default().split_whitespace();
    Ok(words.map_while(|w| w.parse::<u64>().ok()).sum())
}

fn main() -> Result<()> {
    let run = Run::new()?;
    let before = shootdowns()?;
    let took = match run.threads {
        true => run.threads()?,
        false => run.processes()?,
    };
    println!(
        "{{\"references\": {}, \"ticks\": {}, \"ns\": {}, \"records\": {}, \"shootdowns\": {}}}",
        run.workers * run.pages * run.rounds,
        took.ticks,
        in_ns(took.all),
        run.stage.records.load(SeqCst),
        shootdowns()? - before
    );
    Ok(())
}
