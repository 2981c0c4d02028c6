//! Several threads that take chunks through the stages.
//!
//! Each stage of a chunk is a job. There is one table of pages, one table of marks and one of counts, so the
//! jobs that need one of these are done in the order of the chunks. The others can be done at any
//! time. A thread that is free takes a job whatever the chunk: first of the last stages, so that chunks
//! leave as soon as they can. So no thread waits while there is a job that can be done.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::counts::Counts;
use super::pages::Pages;
use super::stack::{Marks, Stack, compact};
use super::{Work, all};
use crate::sim::Access;

/// A stage of a chunk that can be done, with all that it needs.
enum Job {
    /// Compute the chunk by itself.
    Compute(Vec<Access>, Work),
    /// Move its pages. With the marks, make room before.
    Move(Work, Pages, Option<Marks>),
    /// Move its marks.
    Merge(Work, Marks),
    /// Complete the distances.
    Complete(Work),
    /// Add them to the counts.
    Count(Work, Counts),
}

impl Job {
    fn run(&mut self) {
        match self {
            Job::Compute(accesses, work) => work.chunk.compute(accesses),
            Job::Move(work, pages, marks) => {
                let places = work.chunk.places();
                if let Some(marks) = marks {
                    compact(pages, marks, places);
                }
                pages.move_up(work.chunk.steps(), &mut work.states);
                pages.pass(places);
            }
            Job::Merge(work, marks) => work.merge_marks(marks),
            Job::Complete(work) => work.complete(),
            Job::Count(work, counts) => work.count(counts),
        }
    }
}

/// What can be done, and what is being done. A table that is missing is in use by a job.
struct State {
    pages: Option<Pages>,
    marks: Option<Marks>,
    counts: Option<Counts>,
    /// Chunks that wait for the first stage, and for the others, by their numbers.
    waiting: BTreeMap<u64, Vec<Access>>,
    computed: BTreeMap<u64, Work>,
    moved: BTreeMap<u64, Work>,
    merged: BTreeMap<u64, Work>,
    completed: BTreeMap<u64, Work>,
    /// The next chunk whose pages are moved, whose marks are moved, and which is counted.
    next_move: u64,
    next_merge: u64,
    next_count: u64,
    /// Memory for chunks, of which no more are made.
    spare: Vec<Work>,
    used: Vec<Vec<Access>>,
    /// No chunk follows.
    is_over: bool,
    /// A thread has panicked, so nothing follows.
    is_broken: bool,
}

impl State {
    /// A job that can be done.
    fn job(&mut self) -> Option<Job> {
        let later = self.count().or_else(|| self.merge());
        let later = later.or_else(|| self.complete());
        later.or_else(|| self.move_up()).or_else(|| self.compute())
    }

    fn count(&mut self) -> Option<Job> {
        self.counts.as_ref()?;
        let work = self.completed.remove(&self.next_count)?;
        Some(Job::Count(work, self.counts.take()?))
    }

    fn merge(&mut self) -> Option<Job> {
        self.marks.as_ref()?;
        let work = self.moved.remove(&self.next_merge)?;
        Some(Job::Merge(work, self.marks.take()?))
    }

    fn complete(&mut self) -> Option<Job> {
        let (_, work) = self.merged.pop_first()?;
        Some(Job::Complete(work))
    }

    fn move_up(&mut self) -> Option<Job> {
        let pages = self.pages.as_ref()?;
        let places = self.computed.get(&self.next_move)?.chunk.places();
        let mut marks = None;
        if !pages.have_room(places) {
            // Marks are moved together with pages, when all chunks before were merged.
            if self.next_merge != self.next_move {
                return None;
            }
            marks = Some(self.marks.take()?);
        }
        let work = self.computed.remove(&self.next_move)?;
        Some(Job::Move(work, self.pages.take()?, marks))
    }

    fn compute(&mut self) -> Option<Job> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut work = self.spare.pop()?;
        let (turn, accesses) = self.waiting.pop_first()?;
        work.turn = turn;
        Some(Job::Compute(accesses, work))
    }

    /// A job was done.
    fn done(&mut self, job: Job) {
        match job {
            Job::Compute(accesses, work) => {
                self.used.push(accesses);
                self.computed.insert(work.turn, work);
            }
            Job::Move(work, pages, marks) => {
                self.pages = Some(pages);
                self.marks = marks.or(self.marks.take());
                self.next_move += 1;
                self.moved.insert(work.turn, work);
            }
            Job::Merge(work, marks) => {
                self.marks = Some(marks);
                self.next_merge += 1;
                self.merged.insert(work.turn, work);
            }
            Job::Complete(work) => {
                self.completed.insert(work.turn, work);
            }
            Job::Count(work, counts) => {
                self.counts = Some(counts);
                self.next_count += 1;
                self.spare.push(work);
            }
        }
    }
}

struct Shared {
    state: Mutex<State>,
    /// Something has changed. The threads wait for it, and so does the caller of `send` or `all`.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs are run without the lock, so nothing is half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads. With t threads, up to t chunks wait for the first stage, and up to t + 2 are in the five
/// stages.
pub struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Chunks.
    sent: u64,
}

impl Threads {
    /// Starts threads, which go on from a stack and its counts.
    pub fn start(threads: usize, stack: Stack, counts: Counts) -> Self {
        let spare = (0..threads + 2).map(|_| Work::default()).collect();
        let state = State {
            pages: Some(stack.pages),
            marks: Some(stack.marks),
            counts: Some(counts),
            waiting: BTreeMap::new(),
            computed: BTreeMap::new(),
            moved: BTreeMap::new(),
            merged: BTreeMap::new(),
            completed: BTreeMap::new(),
            next_move: 0,
            next_merge: 0,
            next_count: 0,
            spare,
            used: Vec::new(),
            is_over: false,
            is_broken: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let start = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || work(&shared))
        };
        Threads {
            threads: (0..threads).map(start).collect(),
            shared,
            sent: 0,
        }
    }

    /// Sends a chunk; waits while too many wait. Leaves an empty table.
    ///
    /// # Panics
    ///
    /// If a thread panicked.
    pub fn send(&mut self, accesses: &mut Vec<Access>) {
        let mut state = self.shared.lock();
        while state.waiting.len() >= self.threads.len() && !state.is_broken {
            state = self.shared.wait(state);
        }
        if state.is_broken {
            drop(state);
            self.fail();
        }
        let mut next = state.used.pop().unwrap_or_default();
        next.clear();
        let chunk = std::mem::replace(accesses, next);
        state.waiting.insert(self.sent, chunk);
        drop(state);
        self.shared.changed.notify_all();
        self.sent += 1;
    }

    /// The stack and the counts, when all chunks are counted: themselves, or copies of them.
    ///
    /// # Panics
    ///
    /// If a thread panicked.
    pub fn all(&mut self, take: bool) -> (Stack, Counts) {
        let mut state = self.shared.lock();
        while state.next_count < self.sent && !state.is_broken {
            state = self.shared.wait(state);
        }
        let tables = (state.pages.take(), state.marks.take(), state.counts.take());
        if let (false, (Some(pages), Some(marks), Some(mut counts))) = (state.is_broken, tables) {
            let mut stack = Stack { pages, marks };
            let given = all(&mut stack, &mut counts, take);
            state.pages = Some(stack.pages);
            state.marks = Some(stack.marks);
            state.counts = Some(counts);
            return given;
        }
        drop(state);
        self.fail()
    }

    /// The threads have ended before their work was done: passes their panic on.
    fn fail(&mut self) -> ! {
        self.shared.lock().is_broken = true;
        self.shared.changed.notify_all();
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
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was passed on by `fail`.
            let _ = thread.join();
        }
    }
}

/// Ends the other threads when this one ends, by a panic too, so that none waits for what it does not do
/// any more.
struct Guard<'a>(&'a Shared);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.lock().is_broken = true;
        self.0.changed.notify_all();
    }
}

fn work(shared: &Shared) {
    let _guard = Guard(shared);
    let mut state = shared.lock();
    while !state.is_over && !state.is_broken {
        let Some(mut job) = state.job() else {
            state = shared.wait(state);
            continue;
        };
        drop(state);
        if matches!(job, Job::Compute(..)) {
            // There is room for another chunk.
            shared.changed.notify_all();
        }
        job.run();
        state = shared.lock();
        state.done(job);
        shared.changed.notify_all();
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
        drop(Guard(&threads.shared));
        for _ in 0..20 {
            threads.send(&mut vec![access(1)]);
        }
        threads.all(true);
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
                threads.all(true);
            };
            let panic = catch_unwind(AssertUnwindSafe(rest)).unwrap_err();
            let text = message(panic);
            assert!(text.contains("out of bounds"), "{text}");
        }
    }

    fn job(state: &mut State) -> Job {
        state.job().expect("something can be done")
    }

    /// Jobs that need a table are done in the order of the chunks, whatever the order in which chunks
    /// are computed.
    #[test]
    fn jobs_have_an_order() {
        let threads = Threads::start(0, Stack::default(), Counts::default());
        let mut state = threads.shared.lock();
        state
            .waiting
            .extend((0..2).map(|turn| (turn, vec![access(1)])));
        let (mut first, mut second) = (job(&mut state), job(&mut state));
        // Both are being computed, and nothing else can be done.
        assert!(state.job().is_none());
        second.run();
        state.done(second);
        assert!(state.job().is_none());
        first.run();
        state.done(first);
        let mut moving = job(&mut state);
        assert!(matches!(&moving, Job::Move(work, _, None) if work.turn == 0));
        // The table of pages is in use.
        assert!(state.job().is_none());
        moving.run();
        state.done(moving);
        // Now one can move the marks of the first chunk, and the other the pages of the second.
        let (mut merging, mut moving) = (job(&mut state), job(&mut state));
        assert!(matches!(&merging, Job::Merge(work, _) if work.turn == 0));
        assert!(matches!(&moving, Job::Move(work, _, None) if work.turn == 1));
        moving.run();
        state.done(moving);
        assert!(state.job().is_none());
        merging.run();
        state.done(merging);
        assert!(matches!(job(&mut state), Job::Merge(work, _) if work.turn == 1));
        assert!(matches!(job(&mut state), Job::Complete(work) if work.turn == 0));
    }

    /// If the window has no room for a chunk, pages and marks are made room for together, when the marks
    /// of all chunks before were moved.
    #[test]
    fn room_is_made_for_pages_and_marks_together() {
        let threads = Threads::start(0, Stack::default(), Counts::default());
        let mut state = threads.shared.lock();
        // The first chunk has as many places as the first window, and the second as many as the next.
        for (turn, pages) in [(0, 1 << 14), (1, chunk::MOST)] {
            state
                .waiting
                .insert(turn, (1..=pages).map(access).collect());
        }
        for mut computing in [job(&mut state), job(&mut state)] {
            computing.run();
            state.done(computing);
        }
        for turn in 0..2 {
            let mut moving = job(&mut state);
            assert!(matches!(&moving, Job::Move(work, _, Some(_)) if work.turn == turn));
            moving.run();
            state.done(moving);
            let mut merging = job(&mut state);
            assert!(matches!(&merging, Job::Merge(work, _) if work.turn == turn));
            // The marks are in use, so the next chunk cannot be moved.
            assert!(state.job().is_none());
            merging.run();
            state.done(merging);
            let mut completing = job(&mut state);
            if turn == 0 {
                assert!(matches!(completing, Job::Complete(_)));
            }
            completing.run();
            state.done(completing);
            if turn == 0 {
                let mut counting = job(&mut state);
                assert!(matches!(counting, Job::Count(..)));
                counting.run();
                state.done(counting);
            }
        }
    }
}
