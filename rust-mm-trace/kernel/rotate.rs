// SPDX-License-Identifier: GPL-2.0

//! How the next piece of a trace begins, in another file.
//!
//! Three take part. An ioctl hands over the file, and waits. kvmtraced opens it, and writes all events
//! to both files from then on. Then the thread of the trace makes a checkpoint, ends all stays, and
//! says which number comes next. kvmtraced writes what has smaller numbers, and goes on in the new
//! file. None of them waits for another one with a lock, and whoever fails says so to the others:
//! the trace goes on in the file in which it is.
//!
//! In a trace with windows, the next piece begins between two of them. There is nothing to describe and
//! no stay to end then, so the thread of the trace makes no checkpoint. It waits until kvmtraced has
//! gone on in the new file, so that no record of a window is in between.

use crate::{
    changes,
    drain::{kick, PATIENCE},
    hot::clock,
    members,
    pieces::Cut,
    recall, session,
    sink::Sink,
    window,
};
use kernel::{
    bindings,
    error::to_result,
    ffi::c_char,
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic,
    },
};

/// The piece that is written, and bytes of its own part.
pub(crate) static PIECE: Atomic<u32> = Atomic::new(0);
pub(crate) static PIECE_BYTES: Atomic<u64> = Atomic::new(0);

/// The number with which the next piece begins, or 0 if that is not known. Stored while no admission
/// can begin. So whoever takes a record with such a number out of a ring finds it.
static NEXT_SEQ: Atomic<u64> = Atomic::new(0);

/// The thread of the trace has something to do between windows.
static DUE: Atomic<bool> = Atomic::new(false);

/// How far it is.
enum Step {
    Idle,
    /// The ioctl has handed over the file.
    Asked(Sink),
    /// kvmtraced opens it.
    Opening,
    /// kvmtraced writes events to it, too, and the thread of the trace is at work.
    Open,
    /// kvmtraced could not write to it, and the thread does not know yet.
    Dropped(Error),
    /// The thread has failed, and kvmtraced does not know yet.
    GivenUp(Error),
    /// The boundary is known.
    Cut(Cut),
}

/// Calls whose results are kept for those who wait for them.
const RESULTS: usize = 16;

struct Rotation {
    step: Step,
    /// What to call the file.
    name: [c_char; 256],
    /// Calls that have ended, and how the last ones did.
    ended: u64,
    results: [Result; RESULTS],
    /// No call can succeed any more.
    over: bool,
    /// N of the header.
    n: u32,
    /// The trace has windows.
    windows: bool,
    /// References are yet to begin.
    held: bool,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    /// Under it, only the locks of rings are taken.
    unsafe(uninit) static ROTATION: Mutex<Rotation> = Rotation {
        step: Step::Idle,
        name: [0; 256],
        ended: 0,
        results: [Ok(()); RESULTS],
        over: true,
        n: 0,
        windows: false,
        held: false,
    };
}

/// Makes the lock usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the caller's promise.
    unsafe { ROTATION.init() };
}

impl Rotation {
    fn end(&mut self, result: Result) {
        self.step = Step::Idle;
        let at = (self.ended % RESULTS as u64) as usize;
        if let Some(place) = self.results.get_mut(at) {
            *place = result;
        }
        self.ended = self.ended.wrapping_add(1);
        NEXT_SEQ.store(0, Relaxed);
    }

    /// How a call ended. EINPROGRESS if many have ended since.
    fn result_of(&self, turn: u64) -> Result {
        if self.ended.wrapping_sub(turn) > RESULTS as u64 {
            return Err(EINPROGRESS);
        }
        let at = (turn % RESULTS as u64) as usize;
        self.results.get(at).copied().unwrap_or(Ok(()))
    }
}

/// A trace begins, with sets of `n` pages, and maybe with windows.
pub(crate) fn reset(n: u32, windows: bool) {
    let mut r = ROTATION.lock();
    r.over = false;
    r.n = n;
    r.windows = windows;
    r.held = false;
    DUE.store(false, Relaxed);
    PIECE.store(0, Relaxed);
    PIECE_BYTES.store(0, Relaxed);
}

/// No piece begins as long as references are yet to begin, in a trace from boot that gets its output: there may
/// be no set yet, and the event with which references begin is to be in the first piece.
pub(crate) fn hold(held: bool) {
    ROTATION.lock().held = held;
}

/// For kvmtraced, which writes nothing any more.
pub(crate) fn over() {
    let mut r = ROTATION.lock();
    r.over = true;
    let step = core::mem::replace(&mut r.step, Step::Idle);
    if !matches!(step, Step::Idle) {
        r.end(Err(ENODATA));
    }
    drop(r);
    if let Step::Asked(sink) = step {
        sink.close();
    }
    changes::changed();
}

/// Hands over the file of the next piece. Gives what [`wait`] needs.
pub(crate) fn ask(sink: Sink, name: [c_char; 256]) -> Result<u64> {
    let mut r = ROTATION.lock();
    if r.over {
        return Err(ENODATA);
    }
    if !matches!(r.step, Step::Idle) {
        return Err(EBUSY);
    }
    r.step = Step::Asked(sink);
    r.name = name;
    Ok(r.ended)
}

/// Waits until the call has ended, for as long as kvmtraced gets on. EINPROGRESS if it does not, or if
/// the next piece begins when a window ends.
pub(crate) fn wait(turn: u64) -> Result {
    loop {
        let seen = changes::seen();
        let patience;
        {
            let r = ROTATION.lock();
            if r.ended != turn {
                return r.result_of(turn);
            }
            // The thread of the trace is at work, which has its own limits.
            patience = match r.step {
                Step::Open if !r.windows => 0,
                Step::Open if !window::HALTED.load(Relaxed) => return Err(EINPROGRESS),
                _ => PATIENCE,
            };
        }
        changes::wait(seen, patience).map_err(|e| match e {
            ETIMEDOUT => EINPROGRESS,
            e => e,
        })?;
    }
}

/// What kvmtraced is to do.
pub(crate) enum Due {
    /// Open the file.
    Open(Sink),
    /// Give it up.
    GiveUp(Error),
}

/// For kvmtraced: what it is to do, if anything.
pub(crate) fn due() -> Option<Due> {
    let mut r = ROTATION.lock();
    match r.step {
        Step::GivenUp(e) => Some(Due::GiveUp(e)),
        Step::Asked(_) => match core::mem::replace(&mut r.step, Step::Opening) {
            Step::Asked(sink) => Some(Due::Open(sink)),
            _ => None,
        },
        _ => None,
    }
}

/// For kvmtraced, which has tried to open the file.
pub(crate) fn opened(result: Result) {
    let mut r = ROTATION.lock();
    match result {
        Ok(()) => r.step = Step::Open,
        Err(e) => r.end(Err(e)),
    }
    drop(r);
    changed();
}

/// Tells who waits, and the thread of the trace, if it lets time pass between windows.
fn changed() {
    DUE.store(true, Relaxed);
    recall::wake();
    changes::changed();
}

/// For kvmtraced, which has given up the file: the trace goes on in the present one.
pub(crate) fn dropped(e: Error) {
    let mut r = ROTATION.lock();
    match r.step {
        Step::Open => r.step = Step::Dropped(e),
        Step::Idle | Step::Asked(_) | Step::Dropped(_) => {}
        Step::Opening | Step::GivenUp(_) | Step::Cut(_) => r.end(Err(e)),
    }
    drop(r);
    changed();
}

/// See [`NEXT_SEQ`].
pub(crate) fn next_seq() -> u64 {
    NEXT_SEQ.load(Acquire)
}

/// For kvmtraced: the boundary, if it is known.
pub(crate) fn cut() -> Option<Cut> {
    match ROTATION.lock().step {
        Step::Cut(cut) => Some(cut),
        _ => None,
    }
}

/// For kvmtraced: the next piece has begun.
pub(crate) fn turned() {
    // Nobody else changes it in this step.
    let name = ROTATION.lock().name;
    session::rename(&name);
    ROTATION.lock().end(Ok(()));
    changes::changed();
}

/// For the thread of the trace: does what is due. False if nothing is.
pub(crate) fn serve() -> bool {
    {
        let mut r = ROTATION.lock();
        match r.step {
            Step::Open if r.held => return false,
            Step::Open => {}
            Step::Dropped(e) => {
                r.end(Err(e));
                drop(r);
                changes::changed();
                return true;
            }
            _ => return false,
        }
    }
    let made = session::while_sized(|n| window::unless_ending(|| checkpoint(n)));
    // STOP calls the thread back by a signal.
    let made = made.flatten().unwrap_or(Err(ENODATA)).map_err(|e| match e {
        EINTR => ENODATA,
        e => e,
    });
    let mut r = ROTATION.lock();
    match (&r.step, made) {
        (Step::Open, Err(e)) => r.step = Step::GivenUp(e),
        (Step::Dropped(e), _) => {
            let e = *e;
            r.end(Err(e));
        }
        _ => {}
    }
    drop(r);
    changes::changed();
    kick();
    true
}

/// Whether [`serve_between`] may have something to do.
pub(crate) fn is_due() -> bool {
    DUE.load(Relaxed)
}

/// For the thread of the trace, while no window is open and all records of the last one are written:
/// begins the next piece, if that is due. It waits for the output, and whoever waits for the thread
/// sees by [`window::WRITING`] that it does.
pub(crate) fn serve_between() {
    DUE.store(false, Relaxed);
    loop {
        let seen = changes::seen();
        let mut r = ROTATION.lock();
        match r.step {
            Step::Open => {
                // No record is made meanwhile.
                let cut = Cut::new((0, clock()));
                NEXT_SEQ.store(cut.seq, Release);
                r.step = Step::Cut(cut);
                window::WRITING.store(true, Relaxed);
                drop(r);
                changes::changed();
                kick();
            }
            Step::Dropped(e) => {
                r.end(Err(e));
                drop(r);
                changes::changed();
            }
            Step::Cut(_) => {
                drop(r);
                // kvmtraced ends this step, for it turns or gives up. A kernel thread is not killed.
                let _ = changes::wait(seen, 0);
            }
            _ => break,
        }
    }
    window::WRITING.store(false, Relaxed);
}

/// Describes all that is traced, and then ends all stays. `n` is the present size of the set.
fn checkpoint(n: u32) -> Result {
    let header_n = ROTATION.lock().n;
    let time = clock();
    let mut state = 0u64;
    // SAFETY: The context may sleep, and no lock of the hooks is held.
    to_result(unsafe { bindings::vmtrace_checkpoint(header_n, n, &mut state) })?;
    if !matches!(ROTATION.lock().step, Step::Open) {
        return Err(EIO);
    }
    members::cut(|| {
        // Events go on. While this is locked, kvmtraced seals none of their packets, so what it has
        // sealed before has smaller numbers.
        let mut r = ROTATION.lock();
        if matches!(r.step, Step::Open) {
            let cut = Cut::new((state, time));
            NEXT_SEQ.store(cut.seq, Release);
            r.step = Step::Cut(cut);
        }
    })
}

/// For kvmtraced, which seals a packet of events: [`next_seq`]. If that is 0, all records of the packet
/// are of the present piece.
pub(crate) fn next_seq_of_events() -> u64 {
    let _r = ROTATION.lock();
    next_seq()
}
