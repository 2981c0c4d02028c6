// SPDX-License-Identifier: GPL-2.0

//! A trace from start to stop: what /dev/vmtrace's ioctls do, and kvmtraced.

use crate::{
    evms::{Evms, Slot},
    hot::{clock, Events, Hot, EVENTS, HOT, MMS, SEQ, WAITS},
    record::{self, PacketHead},
    ring::{Meta, Packet, Ring, HEAD},
    Store,
};
use core::mem::size_of;
use kernel::{
    bindings,
    error::to_result,
    macros::export,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    time::{delay::fsleep, Delta},
    transmute::{AsBytes, FromBytes},
};

const DEFAULT_BUFFERS: u32 = 32;
const DEFAULT_SIZE: u32 = 64 << 10;
/// Slots that hold records while a ring is full. An admission that finds none
/// is not made, so this is no limit to what can be traced.
const BACKLOG: usize = 1024;

/// `struct vmtrace_config` as user space gives it.
#[repr(transparent)]
pub(crate) struct Config(bindings::vmtrace_config);

// SAFETY: Integers and bytes without padding: any bits are a value.
unsafe impl FromBytes for Config {}

/// `struct vmtrace_status` as user space gets it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Status(bindings::vmtrace_status);

// SAFETY: Integers and bytes without padding.
unsafe impl AsBytes for Status {}

#[repr(transparent)]
struct Header(bindings::vmtrace_header);

// SAFETY: Integers and bytes without padding.
unsafe impl AsBytes for Header {}

// The layouts that this code writes by hand, against the header.
const _: () = {
    assert!(size_of::<bindings::vmtrace_header>() == bindings::VMTRACE_HEADER_SIZE as usize);
    assert!(size_of::<bindings::vmtrace_ref>() == record::REF_SIZE);
    assert!(core::mem::offset_of!(bindings::vmtrace_ref, tid_cpu) == 16);
    assert!(core::mem::offset_of!(bindings::vmtrace_ref, pfn) == 28);
    assert!(size_of::<bindings::vmtrace_event>() == record::EVENT_SIZE);
    assert!(core::mem::offset_of!(bindings::vmtrace_event, cpu) == 36);
    assert!(size_of::<bindings::vmtrace_packet>() == HEAD);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, crc) == record::PACKET_CRC_AT);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, lost_io) == 88);
    assert!(bindings::VMTRACE_REF_DIRTIED as u64 == crate::evms::DIRTIED);
    assert!(bindings::VMTRACE_REF_WHY_SHIFT == crate::evms::WHY_SHIFT);
    assert!(bindings::VMTRACE_STAY_SHIFT == crate::evms::STAY_SHIFT);
};

/// The file that kvmtraced writes to.
struct Output {
    file: *mut bindings::file,
    pos: i64,
    uuid: [u8; 16],
    /// Packets and lost records of each stream: references, then events.
    streams: KVVec<Stream>,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    packets: u64,
    lost_io: u64,
}

// SAFETY: The file is counted and used by one thread at a time.
unsafe impl Send for Output {}

/// What START was given and STATUS tells.
struct Control {
    on: bool,
    status: bindings::vmtrace_status,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static CONTROL: Mutex<Option<KBox<Control>>> = None;
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static OUTPUT: Mutex<Option<Output>> = None;
}

static REFS: Atomic<u64> = Atomic::new(0);
static EVENT_RECORDS: Atomic<u64> = Atomic::new(0);
static PACKETS: Atomic<u64> = Atomic::new(0);
static BYTES: Atomic<u64> = Atomic::new(0);
static LOST_IO: Atomic<u64> = Atomic::new(0);
static ERROR: Atomic<i32> = Atomic::new(0);

/// Makes the locks usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: By the caller's promise.
    unsafe {
        HOT.init();
        EVENTS.init();
        CONTROL.init();
        OUTPUT.init();
    }
    let control = KBox::new(
        Control {
            on: false,
            status: pin_init::zeroed(),
        },
        GFP_KERNEL,
    )?;
    *CONTROL.lock() = Some(control);
    Ok(())
}

fn nr_cpus() -> usize {
    // SAFETY: A constant after boot.
    unsafe { bindings::vmtrace_nr_cpus() as usize }
}

fn evms_min() -> u32 {
    (nr_cpus() as u32).saturating_mul(bindings::VMTRACE_EVMS_MIN_PER_CPU)
}

fn ring(buffers: usize, size: usize) -> Result<Ring> {
    let mut free = Store::with_capacity(buffers, GFP_KERNEL)?;
    let mut full = Store::with_capacity(buffers, GFP_KERNEL)?;
    for _ in 0..buffers {
        free.push(Some(Store::from_elem(0u8, size, GFP_KERNEL)?), GFP_KERNEL)?;
        full.push(None, GFP_KERNEL)?;
    }
    Ok(Ring::new(free, full))
}

fn rings(buffers: usize, size: usize) -> Result<Store<Ring>> {
    let mut rings = Store::with_capacity(nr_cpus(), GFP_KERNEL)?;
    for _ in 0..nr_cpus() {
        rings.push(ring(buffers, size)?, GFP_KERNEL)?;
    }
    Ok(rings)
}

fn crc(seed: u32, data: &[u8]) -> u32 {
    // SAFETY: The slice is valid.
    unsafe { bindings::vmtrace_crc(seed, data.as_ptr().cast(), data.len()) }
}

impl Output {
    fn write(&mut self, data: &[u8]) -> Result {
        // SAFETY: The file is ours and open for writing, the slice is valid.
        let ret = unsafe {
            bindings::vmtrace_write(
                self.file,
                data.as_ptr().cast(),
                data.len(),
                &raw mut self.pos,
            )
        };
        to_result(ret as i32)?;
        BYTES.add(data.len() as u64, Relaxed);
        Ok(())
    }

    /// Writes a packet; a failure ends the trace and is counted.
    fn packet(&mut self, kind: u32, cpu: usize, packet: &mut Packet) {
        let index = match kind {
            bindings::VMTRACE_STREAM_REF => cpu,
            bindings::VMTRACE_STREAM_EVENT => cpu.wrapping_add(nr_cpus()),
            _ => nr_cpus().wrapping_mul(2),
        };
        let stream = self.streams.get(index).copied().unwrap_or_default();
        let records = u64::from(packet.meta.records);
        record::put_packet(
            &mut packet.buf,
            &PacketHead {
                magic: bindings::VMTRACE_PACKET_MAGIC,
                uuid: &self.uuid,
                kind,
                cpu: cpu as u32,
                seq: stream.packets,
                lost_io: stream.lost_io,
            },
            &packet.meta,
        );
        let mut ok = false;
        if ERROR.load(Relaxed) == 0 {
            if let Some(data) = packet.buf.get(..packet.meta.used) {
                let sum = !crc(!0, data);
                record::put(&mut packet.buf, record::PACKET_CRC_AT, &sum.to_le_bytes());
            }
            if let Some(data) = packet.buf.get(..packet.meta.used) {
                match self.write(data) {
                    Ok(()) => ok = true,
                    Err(e) => fail(e),
                }
            }
        }
        if let Some(s) = self.streams.get_mut(index) {
            if ok {
                s.packets = s.packets.wrapping_add(1);
            } else {
                s.lost_io = s.lost_io.wrapping_add(records);
            }
        }
        if !ok {
            LOST_IO.add(records, Relaxed);
            return;
        }
        match kind {
            bindings::VMTRACE_STREAM_REF => REFS.add(records, Relaxed),
            bindings::VMTRACE_STREAM_EVENT => EVENT_RECORDS.add(records, Relaxed),
            // The end is not among what it counts.
            _ => return,
        }
        PACKETS.add(1u64, Relaxed);
    }
}

/// The output failed: stop logging, so that nobody waits for it.
fn fail(e: Error) {
    ERROR.store(e.to_errno(), Relaxed);
    if let Some(hot) = HOT.lock().as_mut() {
        hot.sealed = true;
    }
    pr_err!(
        "vmtrace: writing the trace failed: {}; tracing stopped\n",
        e.to_errno()
    );
}

/// Writes what is full. Returns whether there was anything.
fn drain() -> bool {
    let mut any = false;
    let mut guard = OUTPUT.lock();
    let Some(out) = guard.as_mut() else {
        return false;
    };
    for cpu in 0..nr_cpus() {
        loop {
            let packet = HOT
                .lock()
                .as_mut()
                .and_then(|h| h.rings.get_mut(cpu).and_then(Ring::take));
            let Some(mut packet) = packet else { break };
            any = true;
            out.packet(bindings::VMTRACE_STREAM_REF, cpu, &mut packet);
            if let Some(r) = HOT.lock().as_mut().and_then(|h| h.rings.get_mut(cpu)) {
                r.give(packet.buf);
            }
            relieve();
        }
        loop {
            let packet = EVENTS
                .lock()
                .as_mut()
                .and_then(|e| e.rings.get_mut(cpu).and_then(Ring::take));
            let Some(mut packet) = packet else { break };
            any = true;
            out.packet(bindings::VMTRACE_STREAM_EVENT, cpu, &mut packet);
            if let Some(r) = EVENTS.lock().as_mut().and_then(|e| e.rings.get_mut(cpu)) {
                r.give(packet.buf);
            }
            relieve();
        }
    }
    any
}

/// Lets waiting tasks go on if there is room for them.
fn relieve() {
    let refs = HOT
        .lock()
        .as_ref()
        .is_none_or(|h| h.sealed || h.rings.iter().all(|r| r.free() > 0));
    let events = EVENTS
        .lock()
        .as_ref()
        .is_none_or(|e| e.rings.iter().all(|r| r.free() > r.total() / 4));
    if refs && events {
        // SAFETY: No spinlock is held.
        unsafe { bindings::vmtrace_set_congested(false) };
    }
}

/// kvmtraced: writes full sub-buffers until it is told to end.
///
/// # Safety
///
/// Called by kvmtraced's thread only.
#[export]
pub unsafe extern "C" fn vmtrace_rs_drain() {
    // SAFETY: This is kvmtraced, which holds no lock.
    while unsafe { bindings::vmtrace_drain_wait() } {
        drain();
        relieve();
    }
    drain();
}

/// Starts a trace.
pub(crate) fn start(config: &Config) -> Result {
    let c = &config.0;
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    // SAFETY: Asks about the present task.
    if !unsafe { bindings::vmtrace_capable() } {
        return Err(EPERM);
    }
    if c.size as usize != size_of::<bindings::vmtrace_config>() || c.flags != 0 {
        return Err(EINVAL);
    }
    if control.on {
        return Err(EBUSY);
    }
    if c.evms_size < evms_min() || c.evms_size > bindings::VMTRACE_EVMS_MAX {
        return Err(EINVAL);
    }
    match c.scope {
        bindings::VMTRACE_SCOPE_ALL if c.pid == 0 => {}
        bindings::VMTRACE_SCOPE_TREE if c.pid > 0 => {}
        _ => return Err(EINVAL),
    }
    let buffers = if c.nr_buffers == 0 {
        DEFAULT_BUFFERS
    } else {
        c.nr_buffers
    };
    let size = if c.buffer_size == 0 {
        DEFAULT_SIZE
    } else {
        c.buffer_size
    };
    if !(4..=1 << 16).contains(&buffers)
        || !size.is_power_of_two()
        || !(4096..=1 << 20).contains(&size)
    {
        return Err(EINVAL);
    }

    let n = c.evms_size as usize;
    let slots = Store::from_elem(Slot::EMPTY, Evms::slots_for(n, BACKLOG), GFP_KERNEL)?;
    let buckets = Store::from_elem(0u32, Evms::buckets_for(n), GFP_KERNEL)?;
    let hot = KBox::new(
        Hot {
            evms: Evms::new(slots, buckets, n).ok_or(EINVAL)?,
            rings: rings(buffers as usize, size as usize)?,
            sealed: false,
            admissions: 0,
            aborted: 0,
            funny: 0,
            stuck: 0,
            uncovered: 0,
        },
        GFP_KERNEL,
    )?;
    let events = KBox::new(
        Events {
            rings: rings(buffers as usize, size as usize)?,
        },
        GFP_KERNEL,
    )?;
    let streams = KVVec::from_elem(
        Stream::default(),
        nr_cpus().wrapping_mul(2).wrapping_add(1),
        GFP_KERNEL,
    )?;

    let mut header = KBox::new(Header(pin_init::zeroed()), GFP_KERNEL)?;
    let h = &mut header.0;
    // SAFETY: `h` is valid.
    unsafe { bindings::vmtrace_describe(h) };
    h.magic = bindings::VMTRACE_MAGIC;
    h.version = bindings::VMTRACE_VERSION;
    h.header_size = bindings::VMTRACE_HEADER_SIZE;
    h.evms_size = c.evms_size;
    h.scope = c.scope;
    h.scope_pid = c.pid;
    h.page_shift = bindings::PAGE_SHIFT as u32;
    h.clock = bindings::VMTRACE_CLOCK_MONOTONIC;
    h.forced_off = bindings::VMTRACE_OFF_PMD_THP | bindings::VMTRACE_OFF_PMD_MOVE;
    h.buffer_size = size;
    h.nr_buffers = buffers;
    h.stay_shift = bindings::VMTRACE_STAY_SHIFT;
    let uuid = h.uuid;
    let start_time = h.start_time;
    let len = header.as_bytes().len().wrapping_sub(4);
    let sum = header.as_bytes().get(..len).map_or(0, |b| !crc(!0, b));
    header.0.crc = sum;

    for counter in [
        &SEQ,
        &WAITS,
        &MMS,
        &REFS,
        &EVENT_RECORDS,
        &PACKETS,
        &BYTES,
        &LOST_IO,
    ] {
        counter.store(0, Relaxed);
    }
    ERROR.store(0, Relaxed);

    let mut error = 0;
    // SAFETY: `error` is valid; ioctls hold no `fdget_pos`.
    let file = unsafe { bindings::vmtrace_get_output(c.out_fd, &raw mut error) };
    if file.is_null() {
        return Err(Error::from_errno(error));
    }
    let mut out = Output {
        file,
        pos: 0,
        uuid,
        streams,
    };
    if let Err(e) = out.write(header.as_bytes()) {
        // SAFETY: The reference that was got above.
        unsafe { bindings::vmtrace_put_output(file) };
        return Err(e);
    }
    drop(header);

    *OUTPUT.lock() = Some(out);
    *HOT.lock() = Some(hot);
    *EVENTS.lock() = Some(events);

    control.status = pin_init::zeroed();
    let s = &mut control.status;
    s.size = size_of::<bindings::vmtrace_status>() as u32;
    s.scope = c.scope;
    s.pid = c.pid;
    s.evms_size = c.evms_size;
    s.uuid = uuid;
    s.start_time = start_time;
    s.output = c.output;
    if let Some(last) = s.output.last_mut() {
        *last = 0;
    }

    // SAFETY: There is one thread, and none now.
    if let Err(e) = to_result(unsafe { bindings::vmtrace_drain_start() }) {
        release();
        return Err(e);
    }
    // SAFETY: The set and the rings are in place.
    if let Err(e) = to_result(unsafe { bindings::vmtrace_attach(c.scope, c.pid) }) {
        // SAFETY: Started above.
        unsafe { bindings::vmtrace_drain_stop() };
        release();
        return Err(e);
    }
    control.on = true;
    Ok(())
}

/// Frees what a trace had, and lets its output go.
fn release() {
    // Freed after the locks are dropped, for freeing may sleep.
    let hot = HOT.lock().take();
    let events = EVENTS.lock().take();
    drop(hot);
    drop(events);
    // SAFETY: No lock is held.
    unsafe { bindings::vmtrace_set_congested(false) };
    if let Some(out) = OUTPUT.lock().take() {
        // SAFETY: Got by `start`.
        unsafe { bindings::vmtrace_put_output(out.file) };
    }
}

/// Moves all that is left into the rings and gives it to kvmtraced.
fn flush() {
    loop {
        let refs = HOT.lock().as_mut().is_none_or(|hot| {
            hot.retire(true);
            for r in hot.rings.iter_mut() {
                r.flush();
            }
            hot.evms.retired() == hot.evms.head() && hot.rings.iter().all(|r| !r.has_full())
        });
        let events = EVENTS.lock().as_mut().is_none_or(|events| {
            for r in events.rings.iter_mut() {
                r.flush();
            }
            events.rings.iter().all(|r| !r.has_full())
        });
        if refs && events {
            return;
        }
        // SAFETY: No lock is held.
        unsafe { bindings::vmtrace_kick() };
        fsleep(Delta::from_millis(1));
    }
}

/// Stops the trace and returns its last figures.
pub(crate) fn stop() -> Result<Status> {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    // SAFETY: Asks about the present task.
    if !unsafe { bindings::vmtrace_capable() } {
        return Err(EPERM);
    }
    if !control.on {
        return Err(ENODATA);
    }
    if ERROR.load(Relaxed) == 0 {
        // SAFETY: No lock of the hooks is held.
        unsafe { bindings::vmtrace_audit() };
    }
    if let Some(hot) = HOT.lock().as_mut() {
        hot.sealed = true;
    }
    // SAFETY: No lock of the hooks is held; no admission begins any more.
    unsafe {
        bindings::vmtrace_quiesce();
        bindings::vmtrace_evict_all();
        bindings::vmtrace_detach();
    }
    flush();
    // SAFETY: `start` started it.
    unsafe { bindings::vmtrace_drain_stop() };

    fill(&mut control.status);
    control.status.stop_time = clock();
    control.status.state = bindings::VMTRACE_STATE_OFF;
    end(&control.status);
    let error = ERROR.load(Relaxed);
    if error != 0 {
        control.status.state = bindings::VMTRACE_STATE_FAILED;
        control.status.error = -error;
    }
    control.on = false;
    release();
    if error != 0 {
        return Err(EIO);
    }
    Ok(Status(control.status))
}

/// Writes the packet that says the trace is whole.
fn end(status: &bindings::vmtrace_status) {
    let status = Status(*status);
    let content = status.as_bytes();
    let used = HEAD.saturating_add(content.len());
    let Ok(mut buf) = Store::from_elem(0u8, used, GFP_KERNEL) else {
        fail(ENOMEM);
        return;
    };
    record::put(&mut buf, HEAD, content);
    let mut packet = Packet {
        buf,
        meta: Meta {
            first_seq: status.0.last_seq,
            last_seq: status.0.last_seq,
            first_time: status.0.stop_time,
            last_time: status.0.stop_time,
            records: 1,
            used,
            ..Meta::default()
        },
    };
    if let Some(out) = OUTPUT.lock().as_mut() {
        if ERROR.load(Relaxed) != 0 {
            return;
        }
        out.packet(bindings::VMTRACE_STREAM_END, 0, &mut packet);
        // SAFETY: The file is open.
        if let Err(e) = to_result(unsafe { bindings::vmtrace_sync(out.file) }) {
            fail(e);
        }
    }
}

/// Brings the figures up to date.
fn fill(s: &mut bindings::vmtrace_status) {
    s.size = size_of::<bindings::vmtrace_status>() as u32;
    s.evms_min = evms_min();
    s.nr_cpus = nr_cpus() as u32;
    s.last_seq = SEQ.load(Relaxed);
    s.refs = REFS.load(Relaxed);
    s.events = EVENT_RECORDS.load(Relaxed);
    s.packets = PACKETS.load(Relaxed);
    s.bytes = BYTES.load(Relaxed);
    s.lost_io = LOST_IO.load(Relaxed);
    s.waits = WAITS.load(Relaxed);
    s.mms = MMS.load(Relaxed);
    s.lost_full = 0;
    s.lost_atomic = 0;
    let mut rings = |rings: &Store<Ring>| {
        for r in rings.iter() {
            s.lost_full = s.lost_full.wrapping_add(r.lost_full);
            s.lost_atomic = s.lost_atomic.wrapping_add(r.lost_atomic);
        }
    };
    if let Some(events) = EVENTS.lock().as_ref() {
        rings(&events.rings);
    }
    if let Some(hot) = HOT.lock().as_ref() {
        rings(&hot.rings);
        s.admissions = hot.admissions;
        s.aborted = hot.aborted;
        s.members = hot.evms.live();
        s.members_max = hot.evms.live_max();
        s.funny = hot.funny;
        s.stuck = hot.stuck;
        s.uncovered = hot.uncovered;
    }
}

/// The figures of the trace that is on, or of the last one.
pub(crate) fn status() -> Result<Status> {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    control.status.size = size_of::<bindings::vmtrace_status>() as u32;
    control.status.evms_min = evms_min();
    control.status.nr_cpus = nr_cpus() as u32;
    if control.on {
        fill(&mut control.status);
        control.status.stop_time = clock();
        let error = ERROR.load(Relaxed);
        control.status.error = -error;
        control.status.state = if error == 0 {
            bindings::VMTRACE_STATE_ON
        } else {
            bindings::VMTRACE_STATE_FAILED
        };
    }
    Ok(Status(control.status))
}
