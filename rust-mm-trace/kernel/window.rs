// SPDX-License-Identifier: GPL-2.0

//! What is traced between two moments: all of a trace, or a window of it.
//!
//! Each trace has a thread that ends it, and that opens and closes its windows, if it has
//! such. Between windows nothing is traced: the hooks find no traced address space. All
//! records of a window are in the output before the next window begins.
//!
//! A trace that samples regions may have windows of two kinds, which take turns: in windows of
//! references, the set records these; in windows of regions, regions are sampled. Then there is
//! always a window, but for the moments in between.
//!
//! Nobody waits for this thread without a way out, so it may wait for the output.

use crate::{
    audit, changes,
    drain::{self, ERROR, EVENT_RECORDS, LOST_IO, REFS, WINDOW},
    events, filter,
    hot::{self, clock, last_seq, Refs, NUMBERS},
    members,
    recall::{self, ending, pause},
    request,
    ring::Ring,
    rotate, sampling, scopes, session,
};
use core::mem::size_of;
use kernel::{
    bindings,
    error::to_result,
    kthread::KThread,
    macros::export,
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic,
    },
    transmute::AsBytes,
};

/// The longest time that can be asked for, ns: what a timer takes.
const MOST_TIME: u64 = i64::MAX as u64 / 2;

/// Windows as configured.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    /// How many; 0: until STOP.
    pub(crate) count: u32,
    /// ns; 0: no limit.
    pub(crate) time: u64,
    /// References; 0: no limit.
    pub(crate) refs: u64,
    /// Before the first, ns.
    pub(crate) warmup: u64,
    /// Between two, ns.
    pub(crate) skip: u64,
    /// They begin and end on request: see request.rs.
    pub(crate) on_request: bool,
    /// Between windows of references, there are windows of regions.
    pub(crate) regions: bool,
    /// N, as in the header.
    pub(crate) n: u32,
}

impl Windows {
    /// What `c` asks for; `None` if that is a trace without windows.
    pub(crate) fn new(c: &bindings::vmtrace_config) -> Result<Option<Windows>> {
        let on_request = c.flags & bindings::VMTRACE_PAUSABLE != 0;
        let regions = c.flags & bindings::VMTRACE_REGIONS != 0;
        if on_request && (c.warmup != 0 || c.skip != 0 && !regions) {
            return Err(EINVAL);
        }
        if c.window_time == 0 && c.window_refs == 0 && !on_request {
            return match (c.windows, c.warmup, c.skip) {
                (0, 0, 0) => Ok(None),
                _ => Err(EINVAL),
            };
        }
        if [c.window_time, c.warmup, c.skip]
            .iter()
            .any(|t| *t > MOST_TIME)
        {
            return Err(EINVAL);
        }
        Ok(Some(Windows {
            count: c.windows,
            time: c.window_time,
            refs: c.window_refs,
            warmup: c.warmup,
            skip: c.skip,
            on_request,
            regions,
            n: c.evms_size,
        }))
    }

    /// The longest that a window may be, ns.
    fn longest(&self) -> u64 {
        match self.time {
            0 => u64::MAX,
            t => t,
        }
    }
}

/// Windows of the present trace, and those of them that have ended.
pub(crate) static BEGUN: Atomic<u32> = Atomic::new(0);
pub(crate) static ENDED: Atomic<u32> = Atomic::new(0);
/// Nothing is traced: at most the output is waited for.
pub(crate) static HALTED: Atomic<bool> = Atomic::new(false);
/// The records of a window that has ended are being written.
pub(crate) static WRITING: Atomic<bool> = Atomic::new(false);
/// Address spaces that an audit could not look at.
pub(crate) static UNAUDITED: Atomic<u32> = Atomic::new(0);

pub(crate) fn reset() {
    BEGUN.store(0, Relaxed);
    ENDED.store(0, Relaxed);
    HALTED.store(false, Relaxed);
    UNAUDITED.store(0, Relaxed);
    WRITING.store(false, Relaxed);
    JOB.store(0, Relaxed);
    request::reset();
}

#[repr(transparent)]
struct Account(bindings::vmtrace_window);

// SAFETY: Integers without padding.
unsafe impl AsBytes for Account {}

/// What a window is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    References,
    Regions,
}

/// A window that is open.
pub(crate) struct Window {
    kind: Kind,
    /// What the figures were before it.
    before: Account,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static OPEN: Mutex<Option<Window>> = None;
}

/// Makes the lock usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() {
    // SAFETY: By the caller's promise.
    unsafe { OPEN.init() };
}

/// Does `f` while neither a window opens or closes nor the trace ends. It may sleep.
pub(crate) fn steadily<R>(f: impl FnOnce() -> R) -> R {
    let _open = OPEN.lock();
    f()
}

/// Does `f` like [`steadily`], if something is traced.
pub(crate) fn if_open(f: impl FnOnce()) {
    let _open = OPEN.lock();
    if !HALTED.load(Relaxed) {
        f();
    }
}

/// Does `f` like [`steadily`], unless the trace is to end.
pub(crate) fn unless_ending<R>(f: impl FnOnce() -> R) -> Option<R> {
    let _open = OPEN.lock();
    (!ending()).then(f)
}

impl Account {
    /// The figures of the trace until now.
    fn now() -> Account {
        let mut w: bindings::vmtrace_window = pin_init::zeroed();
        w.start_time = clock();
        w.first_seq = last_seq().wrapping_add(1);
        w.refs = REFS.load(Relaxed);
        w.events = EVENT_RECORDS.load(Relaxed);
        w.lost_io = LOST_IO.load(Relaxed);
        let mut count = |r: &Ring| {
            w.lost_full = w.lost_full.wrapping_add(r.had.lost_full);
            w.lost_atomic = w.lost_atomic.wrapping_add(r.had.lost_atomic);
        };
        events::for_each(|ring| count(ring));
        hot::with((), |refs| {
            refs.for_each(|ring| count(ring));
            let done = refs.done();
            w.admissions = done.admissions;
            w.aborted = done.aborted.wrapping_add(NUMBERS.skipped());
            w.renewed = done.renewed;
            w.chances = done.chances;
            w.funny = refs.funny.load(Relaxed);
        });
        Account(w)
    }

    /// What came since, and ended as `why` says.
    fn since(&self, why: u32) -> Account {
        let (b, now) = (&self.0, Account::now().0);
        Account(bindings::vmtrace_window {
            number: WINDOW.load(Relaxed),
            why,
            start_time: b.start_time,
            stop_time: now.start_time,
            first_seq: b.first_seq,
            last_seq: now.first_seq.wrapping_sub(1),
            admissions: now.admissions.wrapping_sub(b.admissions),
            refs: now.refs.wrapping_sub(b.refs),
            events: now.events.wrapping_sub(b.events),
            aborted: now.aborted.wrapping_sub(b.aborted),
            renewed: now.renewed.wrapping_sub(b.renewed),
            chances: now.chances.wrapping_sub(b.chances),
            lost_full: now.lost_full.wrapping_sub(b.lost_full),
            lost_atomic: now.lost_atomic.wrapping_sub(b.lost_atomic),
            lost_io: now.lost_io.wrapping_sub(b.lost_io),
            funny: now.funny.wrapping_sub(b.funny),
        })
    }
}

/// Detaches everything that is traced; nothing is logged any more when this is done.
/// After the `last` time the hooks are off. Nothing here waits for the output, and for
/// somebody who may wait for it only for a moment.
fn halt(last: bool) {
    if ERROR.load(Relaxed) == 0 {
        let mut audit = pin_init::zeroed();
        audit::run(&mut audit);
    }
    hot::with((), Refs::seal);
    // SAFETY: No lock of the hooks is held; no admission begins any more.
    unsafe { bindings::vmtrace_quiesce() };
    members::evict_all();
    // No page is enabled: what happens to pages from here on means nothing to a reader.
    // So nothing is lost when those who wait for room go on without it, and they may hold
    // what is needed to detach.
    events::set_open(false);
    drain::let_go();
    // SAFETY: As above.
    unsafe { bindings::vmtrace_detach(last) };
    HALTED.store(true, Relaxed);
    changes::changed();
}

/// Begins a window. Its set is empty, for the last one's end has emptied it. Gives the time at which all is
/// traced. The thread is urgent from then on, until the window is closed.
fn open(plan: &Windows, kind: Kind) -> u64 {
    let has_refs = kind == Kind::References;
    let mut open = OPEN.lock();
    HALTED.store(false, Relaxed);
    WINDOW.store(BEGUN.fetch_add(1u32, Relaxed), Relaxed);
    let window = Window {
        kind,
        before: Account::now(),
    };
    recall::set_full(false);
    let limit = match plan.refs {
        0 => u64::MAX,
        _ if !has_refs => u64::MAX,
        n => n,
    };
    hot::with((), |refs| {
        refs.begin(limit, false);
        // The output fails by itself: it sets the error and seals then.
        if ERROR.load(Acquire) != 0 {
            refs.seal();
        }
    });
    events::set_open(true);
    drain::hold_back();
    let n = hot::with(0, |refs| refs.common.set.size() as u32);
    // SAFETY: The set and the rings are in place; no lock of the hooks is held, and the
    // context may sleep.
    unsafe {
        if n != plan.n {
            bindings::vmtrace_log_resize(plan.n, n, 0);
        }
        filter::log(0);
        // If STOP calls this thread back from that, the window ends at once.
        bindings::vmtrace_attach(has_refs, plan.regions);
    }
    recall::set_urgent(true);
    let whole = clock();
    *open = Some(window);
    drop(open);
    if !has_refs {
        sampling::resume();
    }
    // A piece that was asked for a moment ago begins when this window ends.
    changes::changed();
    whole
}

/// Ends the window that is open, if one is: writes what is left of it and its account. `halted` is
/// called when nothing is traced any more.
fn close(why: u32, halted: impl FnOnce()) {
    // Not under the lock, which is taken while regions are looked at.
    sampling::pause();
    let (window, stop_time) = {
        let mut open = OPEN.lock();
        let Some(window) = open.take() else {
            return;
        };
        halt(false);
        (window, clock())
    };
    // No program faults for this window any more, and what follows may take long.
    recall::set_urgent(false);
    WRITING.store(true, Relaxed);
    halted();
    drain::flushed(None);
    let why = match (window.kind, why) {
        (Kind::Regions, bindings::VMTRACE_WINDOW_STOP) => bindings::VMTRACE_WINDOW_OVER,
        _ => why,
    };
    let mut account = window.before.since(why);
    // The figures are those of now, when all is written.
    account.0.stop_time = stop_time;
    let w = &account.0;
    drain::flushed(drain::packet(account.as_bytes(), w.last_seq, w.stop_time));
    scopes::retire_all();
    ENDED.add(1u32, Relaxed);
    WRITING.store(false, Relaxed);
    changes::changed();
}

/// What else the thread of a trace is asked to do. It may wait for locks of address spaces,
/// and STOP calls it back from that.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    /// Trace what exists, with references.
    Attach = 1,
    /// Record references, too, of what a trace from boot has.
    Refs = 2,
    /// Trace what exists, without references.
    Quiet = 3,
}

/// The job; 0 if there is none. What became of the last one.
static JOB: Atomic<u32> = Atomic::new(0);
static DONE: Atomic<i32> = Atomic::new(0);

/// Has the thread of the trace do `job`. EINTR if the trace is to end, or this task.
pub(crate) fn ask(job: Job) -> Result {
    JOB.store(job as u32, Release);
    changes::changed();
    loop {
        let seen = changes::seen();
        if JOB.load(Acquire) == 0 {
            return to_result(DONE.load(Relaxed));
        }
        changes::wait(seen, 0)?;
    }
}

/// Does what is asked for until the trace is to end.
fn serve() {
    loop {
        let seen = changes::seen();
        let job = JOB.load(Acquire);
        // SAFETY: The set and the rings are in place; no lock of the hooks is held, and the
        // context may sleep.
        let done = unless_ending(|| unsafe {
            match job {
                0 => 0,
                j if j == Job::Attach as u32 => {
                    filter::log(0);
                    bindings::vmtrace_attach(true, false)
                }
                j if j == Job::Quiet as u32 => bindings::vmtrace_attach(false, false),
                _ => {
                    let begun = bindings::vmtrace_begin_refs();
                    rotate::hold(false);
                    begun
                }
            }
        });
        if job != 0 {
            DONE.store(done.unwrap_or(EINTR.to_errno()), Relaxed);
            JOB.store(0, Release);
            changes::changed();
        }
        if done.is_none() {
            return;
        }
        // If STOP calls this thread back from that, the next turn ends it.
        attach_joined();
        if job == 0 && !rotate::serve() {
            // A kernel thread is neither killed nor, for ever, timed out.
            let _ = changes::wait(seen, 0);
        }
    }
}

/// Opens and closes windows until the trace is to end. A window that is open then stays
/// open.
fn run(plan: &Windows) {
    if plan.on_request {
        return run_on_request(plan);
    }
    if is_over_before(plan, plan.warmup) {
        return;
    }
    let mut done = 0u32;
    loop {
        let whole = open(plan, Kind::References);
        if is_over_within(whole, plan.longest(), recall::is_full) {
            return;
        }
        let full = hot::with(false, Refs::is_full);
        let why = match full {
            true => bindings::VMTRACE_WINDOW_REFS,
            false => bindings::VMTRACE_WINDOW_TIME,
        };
        close(why, || ());
        done = done.wrapping_add(1);
        if done == plan.count || is_over_before(plan, plan.skip) {
            return;
        }
    }
}

/// The same, on request. A window also ends when it is as long as planned.
fn run_on_request(plan: &Windows) {
    let mut done = 0u32;
    loop {
        let is_over = match plan.regions {
            true => is_over_with_regions(plan, plan.skip),
            false => is_over_between(u64::MAX, request::is_due),
        };
        if is_over {
            return;
        }
        let whole = open(plan, Kind::References);
        // Or the step that would have begun it, if a change did.
        request::done();
        let ends = || recall::is_full() || request::is_due();
        if is_over_within(whole, plan.longest(), ends) {
            return;
        }
        let full = hot::with(false, Refs::is_full);
        let why = match (full, request::is_due()) {
            (true, _) => bindings::VMTRACE_WINDOW_REFS,
            (false, true) => bindings::VMTRACE_WINDOW_PAUSE,
            (false, false) => bindings::VMTRACE_WINDOW_TIME,
        };
        close(why, request::done);
        done = done.wrapping_add(1);
        if done == plan.count {
            return request::over();
        }
    }
}

/// Samples regions until a window of references is to begin: when `ns` have passed, or in a trace with
/// windows on request when one is asked for, or when `ns` have passed and the use of memory has changed.
/// Whether the trace is to end.
fn is_over_with_regions(plan: &Windows, ns: u64) -> bool {
    let earliest = clock().saturating_add(ns);
    let is_asked = || (plan.on_request && request::is_due()) || rotate::is_due();
    loop {
        rotate::serve_between();
        let whole = open(plan, Kind::Regions);
        let begins = || is_asked() || sampling::has_changed();
        if plan.on_request && is_over_within(whole, u64::MAX, begins) {
            return true;
        }
        let left = earliest.saturating_sub(whole);
        if !is_asked() && is_over_within(whole, left, is_asked) {
            return true;
        }
        let why = match (plan.on_request, rotate::is_due()) {
            (true, _) if request::is_due() => bindings::VMTRACE_WINDOW_RESUME,
            (_, true) => bindings::VMTRACE_WINDOW_PIECE,
            (true, false) => bindings::VMTRACE_WINDOW_CHANGE,
            (false, false) => bindings::VMTRACE_WINDOW_NEXT,
        };
        close(why, || ());
        if why != bindings::VMTRACE_WINDOW_PIECE {
            return ending() || ERROR.load(Relaxed) != 0;
        }
    }
}

/// Lets `ns` pass before the next window of a plan. Whether the trace is to end.
fn is_over_before(plan: &Windows, ns: u64) -> bool {
    match plan.regions && ns > 0 {
        true => is_over_with_regions(plan, ns),
        false => is_over_between(ns, || false),
    }
}

/// Lets `ns` pass between windows, or less if `holds` comes to give true, and begins pieces meanwhile.
/// Whether the trace is to end.
fn is_over_between(ns: u64, holds: impl Fn() -> bool) -> bool {
    let until = clock().saturating_add(ns);
    loop {
        rotate::serve_between();
        let left = match ns {
            u64::MAX => u64::MAX,
            _ => until.saturating_sub(clock()),
        };
        if is_over_after(left, || holds() || rotate::is_due()) {
            return true;
        }
        if !rotate::is_due() || holds() {
            return false;
        }
    }
}

/// Lets `ns` pass within a window from `whole` on, or less if `holds` comes to give true, and attaches what
/// joins the scope meanwhile. Whether the trace is to end.
fn is_over_within(whole: u64, ns: u64, holds: impl Fn() -> bool) -> bool {
    let until = whole.saturating_add(ns);
    loop {
        let left = match ns {
            u64::MAX => u64::MAX,
            _ => until.saturating_sub(clock()),
        };
        if is_over_after(left, || holds() || has_joined()) {
            return true;
        }
        // However many join.
        if !has_joined() || holds() || clock() >= until {
            return false;
        }
        recall::set_urgent(false);
        attach_joined();
        recall::set_urgent(true);
    }
}

/// Whether processes have joined the scope that nobody has attached.
fn has_joined() -> bool {
    // SAFETY: It only reads two words.
    unsafe { bindings::vmtrace_has_joined() }
}

/// Attaches them. More may have joined meanwhile.
fn attach_joined() {
    if has_joined() && ERROR.load(Relaxed) == 0 {
        // SAFETY: No lock of the hooks is held, and the context may sleep.
        unless_ending(|| unsafe { bindings::vmtrace_attach_joined() });
    }
}

/// Processes have joined the scope: the thread is to attach them.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_joined() {
    changes::changed();
    recall::wake();
}

/// Lets `ns` pass, or less if `holds` comes to give true. Whether the trace is to end.
fn is_over_after(ns: u64, holds: impl Fn() -> bool) -> bool {
    pause(ns, holds);
    ending() || ERROR.load(Relaxed) != 0
}

/// The thread of a trace: its windows, if it has such, and its end.
fn thread(plan: Option<Windows>, session: u64) {
    if !session::made(session) {
        return;
    }
    recall::recallable(|| match &plan {
        Some(plan) => {
            // Until the first window begins.
            HALTED.store(true, Relaxed);
            recall::set_urgent(false);
            run(plan);
        }
        None => serve(),
    });
    // All windows have ended, or the last one ends with the trace.
    let between = plan.is_some() && OPEN.lock().is_none();
    while !ending() {
        if between {
            rotate::serve_between();
        }
        pause(u64::MAX, || between && rotate::is_due());
    }
    if plan.is_some() {
        close(bindings::VMTRACE_WINDOW_STOP, || ());
        let _open = OPEN.lock();
        // SAFETY: No lock of the hooks is held.
        unsafe { bindings::vmtrace_unhook() };
        HALTED.store(true, Relaxed);
    } else {
        let _open = OPEN.lock();
        halt(true);
    }
    session::halted();
}

/// Starts the thread of a trace, which ends by itself when the trace is to end.
pub(crate) fn start(plan: Option<Windows>, session: u64) -> Result<KThread> {
    KThread::spawn(c"vmtrace_session", move |_| {
        thread(plan, session);
        Ok(())
    })
}

const _: () = assert!(size_of::<bindings::vmtrace_window>() == 120);
