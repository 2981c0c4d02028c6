//! Several threads that compute chunks.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::counts::Counts;
use super::in_order::InOrder;
use super::stack::Stack;
use super::{Curve, Work};
use crate::sim::Access;

/// A chunk that waits for a thread, and its number.
type Waiting = (u64, Vec<Access>);

/// What the threads share with the one that has started them.
struct Shared {
    stack: InOrder<Stack>,
    counts: InOrder<Counts>,
}

/// The threads. There are as many chunks at one time as threads, and as many again wait.
pub struct Threads {
    shared: Arc<Shared>,
    /// `None` if the threads are to end.
    sender: Option<SyncSender<Waiting>>,
    /// Memory of chunks that were computed.
    used: Receiver<Vec<Access>>,
    threads: Vec<JoinHandle<()>>,
    /// Turns that chunks and curves have had, or will have.
    sent: u64,
}

impl Threads {
    /// Starts threads, which go on from a stack and its counts.
    pub fn start(threads: usize, stack: Stack, counts: Counts) -> Self {
        let (sender, waiting) = sync_channel(threads);
        let (done, used) = channel();
        // Only the threads have it, so that nobody waits to send when they have ended.
        let waiting = Arc::new(Mutex::new(waiting));
        let shared = Arc::new(Shared {
            stack: InOrder::new(stack),
            counts: InOrder::new(counts),
        });
        let start = |_| {
            let (shared, waiting, done) = (shared.clone(), waiting.clone(), done.clone());
            std::thread::spawn(move || work(&shared, &waiting, &done))
        };
        let threads = (0..threads).map(start).collect();
        Threads {
            threads,
            shared,
            sender: Some(sender),
            used,
            sent: 0,
        }
    }

    /// Sends a chunk; waits while too many wait. Leaves an empty table.
    ///
    /// # Panics
    ///
    /// If a thread panicked.
    pub fn send(&mut self, accesses: &mut Vec<Access>) {
        let mut next = self.used.try_recv().unwrap_or_default();
        next.clear();
        let chunk = std::mem::replace(accesses, next);
        let sender = self.sender.as_ref();
        let sent = sender.is_some_and(|sender| sender.send((self.sent, chunk)).is_ok());
        if !sent {
            self.fail();
        }
        self.sent += 1;
    }

    /// The curve, when all chunks are counted.
    ///
    /// # Panics
    ///
    /// If a thread panicked.
    pub fn curve(&mut self) -> Curve {
        let counted = self.shared.counts.at(self.sent, |counts| {
            self.shared.stack.at(self.sent, |stack| counts.curve(stack))
        });
        // Both have had a turn without a chunk.
        self.sent += 1;
        counted.flatten().unwrap_or_else(|| self.fail())
    }

    /// The threads have ended before their work was done: passes their panic on.
    fn fail(&mut self) -> ! {
        self.sender = None;
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        panic!("the threads of an LRU curve have ended")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.sender = None;
        for thread in self.threads.drain(..) {
            // What has panicked had its say.
            let _ = thread.join();
        }
    }
}

/// Wakes the others when this thread ends, by a panic too, so that none waits for its turns.
struct Guard<'a>(&'a Shared);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.stack.give_up();
        self.0.counts.give_up();
    }
}

fn work(shared: &Shared, waiting: &Mutex<Receiver<Waiting>>, done: &Sender<Vec<Access>>) {
    let _guard = Guard(shared);
    let mut work = Work::default();
    loop {
        let Ok(next) = waiting.lock().map(|waiting| waiting.recv()) else {
            return;
        };
        let Ok((turn, accesses)) = next else {
            return;
        };
        work.chunk.compute(&accesses);
        // It fails if the other side has ended.
        let _ = done.send(accesses);
        let merged = shared.stack.at(turn, |stack| work.merge(stack));
        let Some((blocks, places)) = merged else {
            return;
        };
        work.removed.complete(blocks, &mut work.found);
        let add = |counts: &mut Counts| counts.add(&work.chunk, &work.found, places);
        if shared.counts.at(turn, add).is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::chunk;
    use super::*;
    use crate::units::CanonPage;

    fn access(page: usize) -> Access {
        Access::reference(CanonPage(page as u32), false)
    }

    fn message(panic: Box<dyn Any + Send>) -> String {
        match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"").to_string(),
        }
    }

    /// If the threads end early, sending does not wait for them, and the curve is no wrong one.
    #[test]
    #[should_panic(expected = "have ended")]
    fn threads_that_ended_are_noticed() {
        let mut threads = Threads::start(2, Stack::default(), Counts::default());
        threads.shared.stack.give_up();
        for _ in 0..20 {
            threads.send(&mut vec![access(1)]);
        }
        threads.curve();
    }

    /// A panic of one thread ends the others, and is passed on: when the curve is asked for, and
    /// while chunks come.
    #[test]
    fn a_panic_is_passed_on() {
        for goes_on in [false, true] {
            let mut threads = Threads::start(3, Stack::default(), Counts::default());
            threads.send(&mut vec![access(1)]);
            // No chunk may be as large as this one.
            threads.send(&mut (1..=2 * chunk::MOST).map(access).collect());
            let rest = || {
                if goes_on {
                    (0..1 << 20).for_each(|_| threads.send(&mut vec![access(1)]));
                    panic!("nothing was noticed");
                }
                threads.curve();
            };
            let panic = catch_unwind(AssertUnwindSafe(rest)).unwrap_err();
            let text = message(panic);
            assert!(text.contains("out of bounds"), "{text}");
        }
    }
}
