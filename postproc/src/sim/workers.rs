//! Many simulations in parallel, from one reading of a trace.
//!
//! Each thread has a fixed share of the simulations, and gets every block of
//! references, in order. Threads share the blocks. Only a few blocks exist at a
//! time, so memory does not grow with the trace. Blocks are small enough to stay
//! in a cache while one simulation after the other reads them. A thread that
//! falls behind makes the reader wait.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle, available_parallelism};

use super::{Access, CurveSimulation, Simulation, push_accesses, push_freed};
use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World};
use crate::trace::Trace;
use crate::units::CanonPage;

/// References in a block.
const BLOCK: usize = 1 << 15;
/// Blocks that may wait for a thread.
const WAITING: usize = 2;

/// A simulation of one size or of all sizes.
pub enum Job {
    /// A memory of one size.
    Size(Box<dyn Simulation>),
    /// All sizes at once.
    Curve(Box<dyn CurveSimulation>),
}

impl Job {
    pub(super) fn references(&mut self, block: &[Access]) {
        match self {
            Job::Size(simulation) => simulation.references(block),
            Job::Curve(curve) => curve.references(block),
        }
    }
}

/// Jobs with their places in the list that was given.
type Share = Vec<(usize, Job)>;

/// Threads that simulate, or the calling thread.
pub struct Workers<'scope> {
    /// Of the calling thread.
    own: Share,
    senders: Vec<SyncSender<Arc<[Access]>>>,
    threads: Vec<ScopedJoinHandle<'scope, Share>>,
    block: Vec<Access>,
}

impl<'scope> Workers<'scope> {
    /// Starts as many threads as there are processors, or as there are jobs if these are
    /// fewer. Then curves may use the other processors, too.
    pub fn start<'env>(scope: &'scope Scope<'scope, 'env>, mut jobs: Vec<Job>) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let count = processors.min(jobs.len());
        for job in &mut jobs {
            if let Job::Curve(curve) = job {
                curve.use_threads(1 + processors - count);
            }
        }
        let mut shares: Vec<Share> = (0..count).map(|_| Vec::new()).collect();
        // Neighbours cost about the same, so they go to different threads.
        for (place, job) in jobs.into_iter().enumerate() {
            shares[place % count].push((place, job));
        }
        let (senders, threads) = shares
            .into_iter()
            .map(|share| {
                let (sender, receiver) = sync_channel(WAITING);
                (sender, scope.spawn(|| work(receiver, share)))
            })
            .unzip();
        Workers {
            own: Share::new(),
            senders,
            threads,
            block: Vec::with_capacity(BLOCK),
        }
    }

    /// Simulates in the calling thread, block by block. That is for programs that read as many traces
    /// at the same time as there are processors.
    pub fn without_threads(jobs: Vec<Job>) -> Self {
        Workers {
            own: jobs.into_iter().enumerate().collect(),
            senders: Vec::new(),
            threads: Vec::new(),
            block: Vec::with_capacity(BLOCK),
        }
    }

    /// Takes references.
    pub fn accesses(&mut self, accesses: &[Access]) {
        self.block.extend_from_slice(accesses);
        if self.block.len() >= BLOCK {
            self.send();
        }
    }

    fn send(&mut self) {
        if self.block.is_empty() {
            return;
        }
        for (_, job) in &mut self.own {
            job.references(&self.block);
        }
        if !self.senders.is_empty() {
            let block: Arc<[Access]> = self.block.as_slice().into();
            for sender in &self.senders {
                // It fails if the thread has panicked, which `join` passes on.
                let _ = sender.send(block.clone());
            }
        }
        self.block.clear();
    }

    /// Returns the jobs in their original order, after they have read all references.
    ///
    /// # Panics
    ///
    /// If a thread panicked.
    pub fn join(mut self) -> Vec<Job> {
        self.send();
        self.senders.clear();
        let mut jobs = self.own;
        for thread in self.threads {
            match thread.join() {
                Ok(share) => jobs.extend(share),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        jobs.sort_by_key(|&(place, _)| place);
        jobs.into_iter().map(|(_, job)| job).collect()
    }
}

fn work(blocks: Receiver<Arc<[Access]>>, mut share: Share) -> Share {
    for block in blocks {
        for (_, job) in &mut share {
            job.references(&block);
        }
    }
    share
}

impl Consumer for Workers<'_> {
    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        push_accesses(batch, &mut self.block);
        if self.block.len() >= BLOCK {
            self.send();
        }
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Result<()> {
        push_freed(pages, &mut self.block);
        if self.block.len() >= BLOCK {
            self.send();
        }
        Ok(())
    }

    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome) -> Result<()> {
        self.send();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::sim::{Curve, LruChunks, LruCurve, OptCurve};

    /// Keeps how many threads it may use.
    struct Asked(Arc<AtomicUsize>);

    impl CurveSimulation for Asked {
        fn references(&mut self, _batch: &[Access]) {}

        fn use_threads(&mut self, threads: usize) {
            self.0.store(threads, Ordering::Relaxed);
        }

        fn curve(&self) -> Curve {
            Curve::default()
        }
    }

    /// A curve may use the processors that no other job has, and at least one.
    #[test]
    fn a_curve_has_the_processors_that_are_left() {
        let processors = available_parallelism().unwrap().get();
        for jobs in 1..=processors + 2 {
            let asked = Arc::new(AtomicUsize::new(0));
            let mut list = vec![Job::Curve(Box::new(Asked(asked.clone())))];
            list.extend((1..jobs).map(|_| Job::Curve(Box::<OptCurve>::default())));
            std::thread::scope(|scope| Workers::start(scope, list).join());
            let expected = (1 + processors).saturating_sub(jobs).max(1);
            assert_eq!(asked.load(Ordering::Relaxed), expected, "{jobs} jobs");
        }
        // Who reads many traces at the same time wants no more threads.
        let asked = Arc::new(AtomicUsize::new(0));
        Workers::without_threads(vec![Job::Curve(Box::new(Asked(asked.clone())))]).join();
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }

    /// A curve that has other processors to itself is the same, beside other jobs or alone.
    #[test]
    fn curves_use_the_other_processors() {
        let page = |i: u32| CanonPage(1 + (i.wrapping_mul(2_654_435_761) >> (12 + i % 16)));
        let accesses: Vec<Access> = (0..300_000)
            .map(|i| Access::reference(page(i), i % 3 == 0))
            .collect();
        let mut expected = LruCurve::default();
        expected.references(&accesses);
        let curves = |jobs: Vec<Job>| -> Vec<Curve> {
            std::thread::scope(|scope| {
                let mut workers = Workers::start(scope, jobs);
                accesses
                    .chunks(1000)
                    .for_each(|part| workers.accesses(part));
                let jobs = workers.join().into_iter();
                let curves = jobs.filter_map(|job| match job {
                    Job::Curve(curve) => Some(curve.curve()),
                    Job::Size(_) => None,
                });
                curves.collect()
            })
        };
        let lru = || Job::Curve(Box::<LruChunks>::default());
        let opt = || Job::Curve(Box::<OptCurve>::default());
        assert!(curves(vec![lru()]) == [expected.curve()]);
        assert!(curves(vec![opt(), lru()])[1] == expected.curve());
    }
}
