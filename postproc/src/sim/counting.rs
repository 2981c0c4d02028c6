//! Counts what bounds need, on a thread of its own.
//!
//! The bounds need the distance of each reference at once, so [`LruChunks`](super::LruChunks)
//! cannot compute them. Counting takes longer than reading and checking a trace. With a thread of its own,
//! it takes its time meanwhile. Only a few blocks exist at a time; if the thread falls behind,
//! the reader waits.

use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, available_parallelism};

use super::band::{Begin, Part, Witness};
use super::{Curve, CurveSimulation, LruCurve};
use crate::units::CanonPage;

/// Steps of a block.
const BLOCK: usize = 1 << 12;
/// Blocks that may wait for the thread.
const WAITING: usize = 2;

/// What bounds depend on, in the order of the trace.
enum Step {
    /// A record, and whether it has a write.
    Part(Part, bool),
    /// A page is freed.
    Free(CanonPage),
}

/// The curve and what the bounds are computed from.
pub(super) struct Counted {
    lru: LruCurve,
    pub witness: Witness,
}

impl Counted {
    fn take(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Part(part, write) => {
                    let distance = match (part.begin, part.page) {
                        (Begin::Stay | Begin::Chance, Some(page)) => {
                            let again = self.lru.reference(page, write);
                            again.map(|again| again.distance)
                        }
                        _ => None,
                    };
                    self.witness.record(part, distance);
                }
                Step::Free(page) => {
                    self.lru.free(page);
                    self.witness.freed(page);
                }
            }
        }
    }

    /// The exact LRU curve of the references.
    pub fn curve(&self) -> Curve {
        self.lru.curve()
    }
}

/// Where steps are counted.
enum Where {
    /// On the thread that reads the trace.
    Here(Box<Counted>),
    Thread(SyncSender<Vec<Step>>, JoinHandle<Counted>),
    /// The thread has panicked, and the panic was passed on.
    Nowhere,
}

/// Counts steps.
pub(super) struct Counting {
    place: Where,
    block: Vec<Step>,
    /// [`Counting::finish`] was called after the last block.
    is_complete: bool,
}

impl Counting {
    /// Counts for a witness: on a thread of its own if there are several processors.
    pub fn of(witness: Witness) -> Self {
        let several = available_parallelism().is_ok_and(|count| count > NonZero::<usize>::MIN);
        Counting::at(several, witness)
    }

    /// On a thread of its own, or on the thread that reads the trace.
    fn at(on_thread: bool, witness: Witness) -> Self {
        let counted = Counted {
            lru: LruCurve::default(),
            witness,
        };
        let place = if on_thread {
            let (sender, blocks) = sync_channel(WAITING);
            let thread = std::thread::spawn(|| count(counted, blocks));
            Where::Thread(sender, thread)
        } else {
            Where::Here(Box::new(counted))
        };
        Counting {
            place,
            block: Vec::with_capacity(BLOCK),
            is_complete: false,
        }
    }

    /// A record, and whether it has a write.
    #[inline]
    pub fn part(&mut self, part: Part, write: bool) {
        self.push(Step::Part(part, write));
    }

    /// A page is freed.
    pub fn free(&mut self, page: CanonPage) {
        self.push(Step::Free(page));
    }

    #[inline]
    fn push(&mut self, step: Step) {
        self.block.push(step);
        if self.block.len() == BLOCK {
            self.send();
        }
    }

    fn send(&mut self) {
        self.is_complete = false;
        match &mut self.place {
            Where::Here(counted) => {
                counted.take(&self.block);
                self.block.clear();
            }
            Where::Thread(sender, _) => {
                let next = Vec::with_capacity(BLOCK);
                let block = std::mem::replace(&mut self.block, next);
                // It fails if the thread has panicked.
                if sender.send(block).is_err() {
                    self.join();
                }
            }
            Where::Nowhere => self.block.clear(),
        }
    }

    /// All steps have come: waits until they are counted.
    ///
    /// # Panics
    ///
    /// If the thread panicked.
    pub fn finish(&mut self) {
        self.send();
        self.join();
        self.is_complete = true;
    }

    /// Waits for the thread, if there is one, and passes its panic on.
    fn join(&mut self) {
        match std::mem::replace(&mut self.place, Where::Nowhere) {
            Where::Thread(sender, thread) => {
                drop(sender);
                match thread.join() {
                    Ok(counted) => self.place = Where::Here(Box::new(counted)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            place => self.place = place,
        }
    }

    /// What was counted; `None` if a step came after [`Counting::finish`], or if that was not
    /// called.
    pub fn counted(&self) -> Option<&Counted> {
        match &self.place {
            Where::Here(counted) if self.is_complete && self.block.is_empty() => Some(counted),
            Where::Here(_) | Where::Thread(..) | Where::Nowhere => None,
        }
    }
}

fn count(mut counted: Counted, blocks: Receiver<Vec<Step>>) -> Counted {
    for block in blocks {
        counted.take(&block);
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(page: u32) -> Part {
        Part {
            begin: Begin::Stay,
            page: Some(CanonPage(page)),
            cpu: 0,
            again: true,
        }
    }

    /// The bounds and the curve do not depend on where steps are counted.
    #[test]
    fn a_thread_counts_the_same() {
        let n = 16;
        let count = |on_thread: bool, steps: u32| {
            let mut counting = Counting::at(on_thread, Witness::new(n, None));
            for i in 0..steps {
                let page = 1 + (i.wrapping_mul(2_654_435_761) >> (20 + i % 8));
                match i % 50 {
                    49 => counting.free(CanonPage(page)),
                    _ => counting.part(stay(page), i % 3 == 0),
                }
            }
            assert!(counting.counted().is_none());
            counting.finish();
            counting
        };
        // Less than a block, whole blocks, and a part of one behind them.
        for steps in [1_000, 4 * BLOCK as u32, 30_000] {
            let (here, there) = (count(false, steps), count(true, steps));
            let (here, there) = (here.counted().unwrap(), there.counted().unwrap());
            assert_eq!(here.curve(), there.curve());
            assert!(here.curve().references > 0);
            let (ours, theirs) = (here.witness.bands(), there.witness.bands());
            assert_eq!(ours.least(), theirs.least());
            for size in 1..5_000 {
                assert_eq!(ours.at(size), theirs.at(size), "{size}");
                assert_eq!(ours.low(size), theirs.low(size), "{size}");
            }
            assert!(ours.at(ours.least()).is_some());
        }
    }

    /// What comes after the end makes the count incomplete again.
    #[test]
    fn a_step_after_the_end_is_no_part_of_the_count() {
        for on_thread in [false, true] {
            let mut counting = Counting::at(on_thread, Witness::new(16, None));
            counting.part(stay(1), false);
            counting.finish();
            assert!(counting.counted().is_some());
            counting.part(stay(2), false);
            assert!(counting.counted().is_none());
            counting.finish();
            assert_eq!(counting.counted().map(|c| c.curve().references), Some(2));
        }
    }

    /// On a thread that panics.
    fn broken() -> Counting {
        let (sender, blocks) = sync_channel::<Vec<Step>>(WAITING);
        let thread = std::thread::spawn(move || {
            drop(blocks);
            panic!("a bug in counting")
        });
        Counting {
            place: Where::Thread(sender, thread),
            block: Vec::with_capacity(BLOCK),
            is_complete: false,
        }
    }

    #[test]
    #[should_panic(expected = "a bug in counting")]
    fn a_panic_is_passed_on_at_the_end() {
        broken().finish();
    }

    /// A trace is not read to its end for nothing.
    #[test]
    fn a_panic_is_passed_on_at_once() {
        let mut counting = broken();
        let push = || (0..1 << 26).for_each(|page| counting.part(stay(1 + page % 9), false));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(push));
        let panic = panic.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a bug in counting"));
        assert!(counting.counted().is_none());
    }
}
