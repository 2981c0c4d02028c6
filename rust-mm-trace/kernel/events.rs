// SPDX-License-Identifier: GPL-2.0

//! Events: each CPU has a ring, and each ring has a lock of its own. What the CPUs share is
//! [`NUMBERS`](crate::hot::NUMBERS), which numbers all records, and the wake-up of kvmtraced.
//!
//! An event gets its number under the ring's lock, so each stream is in order. kvmtraced needs the
//! order across streams. It takes each lock once: a ring whose lock is free has all events that
//! got their numbers under it.
//!
//! Lock order: page table lock → the lock of a ring. No two locks of rings are held together, not
//! that of a ring of references (hot.rs) either. Under the lock of a ring of events, nobody waits
//! for another lock. kvmtraced is woken after the lock is dropped.

use crate::{
    drain::kick,
    hot::{clock, is_of_this_era, next_seq, this_cpu, EARLY, NO_SEQ},
    record::{self, EventHead},
    ring::{self, Base, Only, Packet, Ring},
    session,
    throttle::{can_owe, congest, owe, wait_to_log},
    Store,
};
use core::{ffi::c_int, ptr};
use kernel::{
    bindings,
    macros::export,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        rcu, SpinLock,
    },
};

/// The rings of a trace's events.
pub(crate) struct Events {
    /// By CPU.
    lanes: KVVec<Pin<KBox<Lane>>>,
    /// For each CPU, the place of the lane that its events go into.
    of: Store<u16>,
    /// Records carry virtual time.
    vtime: bool,
    /// Whether there is a trace, or a window of it, that events belong to.
    open: Atomic<bool>,
    /// Whether the trace or its window has begun: what is logged before SNAP_BEGIN is of no
    /// use to a reader, who knows nothing yet.
    begun: Atomic<bool>,
}

/// A CPU's ring, in memory of its own.
#[pin_data]
struct Lane {
    #[pin]
    ring: SpinLock<Ring>,
}

/// The rings of the present trace, or null. They are freed after a grace period of RCU.
static PRESENT: Atomic<*mut Events> = Atomic::new(ptr::null_mut());

/// The rings of a trace that has ended. To drop them waits for a grace period, so it sleeps.
pub(crate) struct Removed(#[expect(dead_code)] KBox<Events>);

/// One part in so many of a ring is kept for events that can't wait. While more than that is free,
/// an event that may sleep does not wait, although room is scarce: its task may hold the lock of an
/// address space, which others want. The task waits before it returns to user mode. A task that
/// does not return there waits as soon as room is scarce.
const KEPT: usize = 8;

/// No event has more bytes.
const LONGEST: usize = 512;

impl Events {
    /// Events of a trace that is open. `rings` are by CPU; a CPU whose ring has no sub-buffer uses
    /// another one.
    pub(crate) fn new(rings: Store<Ring>, vtime: bool) -> Result<KBox<Events>> {
        let mut of = Store::from_elem(0u16, rings.len(), GFP_KERNEL)?;
        if !ring::share_out(&mut of, |cpu| rings.get(cpu).is_some_and(|r| r.total() > 0)) {
            return Err(EAGAIN);
        }
        let mut lanes = KVVec::with_capacity(rings.len(), GFP_KERNEL)?;
        for ring in rings {
            let lane = pin_init!(Lane { ring <- new_spinlock!(ring, "vmtrace::events::ring") });
            lanes.push(KBox::pin_init(lane, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let events = Events {
            lanes,
            of,
            vtime,
            open: Atomic::new(true),
            begun: Atomic::new(false),
        };
        Ok(KBox::new(events, GFP_KERNEL)?)
    }

    /// The ring that a CPU's events go into.
    fn lane_of(&self, cpu: usize) -> Option<&Lane> {
        let at = usize::from(*self.of.get(cpu)?);
        Some(self.lanes.get(at)?)
    }

    /// Waits for events that are being logged now. Those that are logged later see what this CPU
    /// stored before the call.
    fn settle(&self) {
        for lane in self.lanes.iter() {
            drop(lane.ring.lock());
        }
    }

    /// Whether an event belongs to the trace or to its window. The ring's lock is held.
    fn wants(&self, e: &bindings::vmtrace_event_in) -> bool {
        let begun = match u32::from(e.type_) {
            bindings::VMTRACE_EV_SNAP_BEGIN => true,
            // N is of the whole window.
            bindings::VMTRACE_EV_RESIZE => true,
            // So is the filter.
            bindings::VMTRACE_EV_FILTER => true,
            _ => self.begun.load(Acquire),
        };
        // A hook may have read the number in an earlier trace or window. Such numbers are made
        // invalid before SNAP_BEGIN.
        self.open.load(Relaxed) && begun && (e.mm == 0 || is_of_this_era(e.mm))
    }

    /// Logs an event. If it `may_wait`, it leaves the room that is kept for events that can't.
    fn log(&self, e: &Event<'_>, may_wait: bool) -> Outcome {
        let cpu = this_cpu();
        let early = EARLY.load(Relaxed);
        let Some(lane) = self.lane_of(cpu) else {
            return Outcome::Unwanted;
        };
        let mut ring = lane.ring.lock();
        if !self.wants(e.head) {
            return Outcome::Unwanted;
        }
        if may_wait && !early && ring.is_scarce() && !(ring.has_spare(KEPT) && can_owe()) {
            congest(cpu);
            return Outcome::Wait;
        }
        let Some(size) = record::event_size(self.vtime, e.payload.len(), e.name.len()) else {
            return Outcome::Unwanted;
        };
        let before = ring.has_full();
        let seq = next_seq();
        let time = clock();
        let head = EventHead {
            kind: e.head.type_,
            size,
            flags: e.head.flags,
            seq,
            time,
            tid: e.head.tid,
            tgid: e.head.tgid,
            mm: e.head.mm,
            cpu: cpu as u32,
            vtime: self.vtime.then_some(e.head.vtime),
        };
        let write = |out: &mut [u8], _: &Base| record::put_event(out, &head, e.payload, e.name);
        let stored = ring.push(usize::from(size), seq, time, &Only, write);
        if !stored && (e.head.may_sleep || early) {
            ring.had.lost_full = ring.had.lost_full.wrapping_add(1);
        } else if !stored {
            ring.had.lost_atomic = ring.had.lost_atomic.wrapping_add(1);
        }
        if u32::from(e.head.type_) == bindings::VMTRACE_EV_SNAP_BEGIN {
            // After SNAP_BEGIN has its number, so that later events have greater ones.
            self.begun.store(true, Release);
        }
        let scarce = !early && ring.is_scarce();
        if scarce {
            congest(cpu);
        }
        Outcome::Logged {
            seq: if stored { seq } else { NO_SEQ },
            full: scarce || (!early && ring.has_full() && !before),
            scarce,
        }
    }
}

/// An event, and its payload and name.
struct Event<'a> {
    head: &'a bindings::vmtrace_event_in,
    payload: &'a [u8],
    name: &'a [u8],
}

/// What became of an event.
enum Outcome {
    /// It belongs to no trace or window.
    Unwanted,
    /// Its task is to wait for room.
    Wait,
    Logged {
        /// Its number, or [`NO_SEQ`] if it was lost.
        seq: u64,
        /// kvmtraced has something to do.
        full: bool,
        /// There is hardly any room left.
        scarce: bool,
    },
}

/// Does `f` with the events of the present trace, if there is one. `f` must not sleep, nor free
/// memory.
fn with<R>(f: impl FnOnce(&Events) -> R) -> Option<R> {
    let _guard = rcu::read_lock();
    let events = PRESENT.load(Acquire);
    if events.is_null() {
        return None;
    }
    // SAFETY: Freed after a grace period only.
    Some(f(unsafe { &*events }))
}

/// Puts the events of a trace that begins in place. Those of the trace before it were removed.
pub(crate) fn install(events: KBox<Events>) {
    PRESENT.store(KBox::into_raw(events), Release);
}

/// Takes away the events of a trace that has ended, if there are any.
pub(crate) fn remove() -> Option<Removed> {
    let events = PRESENT.xchg(ptr::null_mut(), Relaxed);
    if events.is_null() {
        return None;
    }
    // SAFETY: `install` has made it of a `KBox`, and nobody else has taken it from there.
    Some(Removed(unsafe { KBox::from_raw(events) }))
}

impl Drop for Removed {
    fn drop(&mut self) {
        rcu::synchronize_rcu();
    }
}

/// Whether events belong to the trace, or a window of it, from here on.
pub(crate) fn set_open(open: bool) {
    with(|events| {
        events.open.store(open, Relaxed);
        if !open {
            events.settle();
        }
    });
}

/// Does `f` with each ring that has sub-buffers, under its lock.
pub(crate) fn for_each(mut f: impl FnMut(&mut Ring)) {
    with(|events| {
        for lane in events.lanes.iter() {
            let mut ring = lane.ring.lock();
            if ring.total() > 0 {
                f(&mut ring);
            }
        }
    });
}

/// Does `f` with a CPU's ring, under its lock.
pub(crate) fn with_ring<R>(cpu: usize, f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    with(|events| Some(f(&mut events.lanes.get(cpu)?.ring.lock())))?
}

/// Whether the ring that a CPU uses has room that is not scarce.
pub(crate) fn has_room(cpu: usize) -> bool {
    let room = |events: &Events| {
        let ring = events.lane_of(cpu)?.ring.lock();
        Some(!ring.is_scarce())
    };
    with(room).flatten().unwrap_or(true)
}

/// No event belongs to a trace or a window from here on, until the next one begins.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_ended() {
    with(|events| {
        events.begun.store(false, Relaxed);
        events.settle();
    });
}

/// What a ring is to have more.
struct Missing {
    /// The ring's place.
    lane: usize,
    /// Sub-buffers, and bytes of one.
    buffers: usize,
    size: usize,
    /// Places of the ring with them.
    places: usize,
}

/// What the ring that this CPU uses is to have more, so that `bytes` of events have room. `None` if
/// nothing is missing or nothing is logged.
fn missing_room(bytes: u64) -> Option<Missing> {
    if EARLY.load(Relaxed) {
        return None;
    }
    let cpu = this_cpu();
    let missing = |events: &Events| {
        let lane = usize::from(*events.of.get(cpu)?);
        let ring = events.lanes.get(lane)?.ring.lock();
        match ring.missing(bytes, LONGEST) {
            0 => None,
            _ if !events.open.load(Relaxed) => None,
            buffers => Some(Missing {
                lane,
                buffers,
                size: ring.size(),
                places: ring.places(buffers),
            }),
        }
    };
    with(missing)?
}

/// Whether `bytes` of events have room now in the ring that this CPU uses.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_has_room(bytes: u64) -> bool {
    missing_room(bytes).is_none()
}

/// Makes the ring that this CPU uses larger for a time, so that `bytes` of events have room. Gives
/// an errno.
///
/// # Safety
///
/// The context may sleep.
#[export]
pub unsafe extern "C" fn vmtrace_rs_make_room(bytes: u64) -> c_int {
    let Some(m) = missing_room(bytes) else {
        return 0;
    };
    let made = || {
        Ok::<_, Error>((
            session::buffers(m.buffers, m.size)?,
            session::places(m.places)?,
            session::places(m.places)?,
        ))
    };
    let (mut more, mut free, mut full) = match made() {
        Ok(made) => made,
        Err(e) => return e.to_errno(),
    };
    with_ring(m.lane, |ring| {
        if ring.size() == m.size {
            ring.grow(&mut more, &mut free, &mut full);
        }
    });
    0
}

/// # Safety
///
/// `p` points to `len` bytes that nobody changes for as long as the result is
/// used, or `len` is 0.
unsafe fn bytes<'a>(p: *const core::ffi::c_void, len: u16) -> &'a [u8] {
    if len == 0 || p.is_null() {
        return &[];
    }
    // SAFETY: By the caller's promise.
    unsafe { core::slice::from_raw_parts(p.cast::<u8>(), len as usize) }
}

/// Logs an event, or gives `None` if it may wait and its task is to wait for room. Gives its number,
/// or [`NO_SEQ`].
///
/// # Safety
///
/// `e` and what it points to are valid.
unsafe fn try_log(e: &bindings::vmtrace_event_in, may_wait: bool) -> Option<u64> {
    // SAFETY: By the caller's promise.
    let (payload, name) = unsafe { (bytes(e.payload, e.payload_len), bytes(e.name, e.name_len)) };
    let event = Event {
        head: e,
        payload,
        name,
    };
    match with(|events| events.log(&event, may_wait)) {
        None | Some(Outcome::Unwanted) => Some(NO_SEQ),
        Some(Outcome::Wait) => None,
        Some(Outcome::Logged { seq, full, scarce }) => {
            if full {
                kick();
            }
            if scarce && e.may_sleep {
                owe();
            }
            Some(seq)
        }
    }
}

/// Logs an event. Gives its number, or [`NO_SEQ`].
///
/// # Safety
///
/// `e` and what it points to are valid. If `may_sleep`, the context may.
#[export]
pub unsafe extern "C" fn vmtrace_rs_event(e: *const bindings::vmtrace_event_in) -> u64 {
    // SAFETY: By the caller's promise.
    let e = unsafe { &*e };
    let mut may_wait = e.may_sleep;
    loop {
        // SAFETY: By the caller's promise.
        if let Some(seq) = unsafe { try_log(e, may_wait) } {
            return seq;
        }
        // The task may wake up on another CPU, or after others have taken the room. Then it waits
        // again, as long as there is something to wait for.
        may_wait = wait_to_log();
    }
}

/// Logs an event unless its task would have to wait for room. Whether it was logged or lost, or is not
/// wanted.
///
/// # Safety
///
/// As of [`vmtrace_rs_event`].
#[export]
pub unsafe extern "C" fn vmtrace_rs_try_event(
    e: *const bindings::vmtrace_event_in,
    seq: *mut u64,
) -> bool {
    // SAFETY: By the caller's promise.
    let logged = unsafe { try_log(&*e, true) };
    // SAFETY: A variable of the function that calls this.
    unsafe { seq.write(logged.unwrap_or(NO_SEQ)) };
    logged.is_some()
}

/// Moves all events into sub-buffers that can be taken. True if none is left to be taken.
pub(crate) fn collect() -> bool {
    let mut none = true;
    for_each(|ring| {
        ring.flush();
        none &= !ring.has_full();
    });
    none
}

/// Some time has passed: what a ring has had since the last call can be taken.
pub(crate) fn tick() {
    for_each(Ring::tick);
}

/// How many sub-buffers of a CPU are full; with `before`, how many have events of smaller numbers
/// than that. Such events are moved into a full sub-buffer first.
pub(crate) fn full(cpu: usize, before: Option<u64>) -> usize {
    let full = |ring: &mut Ring| match before {
        Some(seq) => {
            ring.flush_before(seq);
            ring.full_before(seq)
        }
        None => ring.full(),
    };
    with_ring(cpu, full).unwrap_or(0)
}

/// Takes the oldest of them.
pub(crate) fn take(cpu: usize) -> Option<Packet> {
    with_ring(cpu, Ring::take)?
}

/// Gives back the sub-buffer of a packet. The caller frees what this returns, for that may sleep.
pub(crate) fn give(cpu: usize, buf: Store<u8>) -> Option<Store<u8>> {
    with_ring(cpu, |ring| ring.give(buf))?
}
