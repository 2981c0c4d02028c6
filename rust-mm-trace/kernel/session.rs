// SPDX-License-Identifier: GPL-2.0

//! A trace from start to stop: what /dev/vmtrace's ioctls do.

use crate::{
    drain::{
        self, kick, nr_cpus, Output, BYTES, ERROR, EVENT_RECORDS, LOST_IO, OUTPUT, PACKETS, REFS,
    },
    evms::{Evms, Shape, Slot},
    hot::{clock, congest, Events, Hot, EARLY, EVENTS, HOT, MMS, SEQ, WAITS},
    record,
    ring::Ring,
    window::{self, Windows},
    Store,
};
use core::{ffi::c_int, mem::size_of};
use kernel::{
    bindings,
    capability::{capable, Capability},
    error::to_result,
    kthread::KThread,
    macros::export,
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::ordering::Relaxed,
    transmute::{AsBytes, FromBytes},
};

const DEFAULT_BUFFERS: u32 = 32;
const DEFAULT_SIZE: u32 = 64 << 10;
const MOST_BUFFERS: u32 = 1 << 16;
const LEAST_SIZE: u32 = 4096;
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
    assert!(size_of::<u64>() == record::VTIME_SIZE);
    assert!(core::mem::offset_of!(bindings::vmtrace_event, cpu) == 36);
    assert!(size_of::<bindings::vmtrace_packet>() == crate::ring::HEAD);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, crc) == record::PACKET_CRC_AT);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, lost_io) == 88);
    assert!(bindings::VMTRACE_REF_KIND as u64 == crate::evms::KIND);
    assert!(bindings::VMTRACE_REF_SEEN as u64 == crate::evms::SEEN);
    assert!(bindings::VMTRACE_REF_KERNEL as u64 == crate::evms::BY_KERNEL);
    assert!(bindings::VMTRACE_REF_DIRTIED as u64 == crate::evms::DIRTIED);
    assert!(bindings::VMTRACE_REF_AGAIN as u64 == crate::evms::AGAIN);
    assert!(bindings::VMTRACE_REF_CONT as u64 == crate::evms::CONT);
    assert!(bindings::VMTRACE_WHY_RENEWED == crate::evms::WHY_RENEWED);
    assert!(bindings::VMTRACE_WHY_CHANCE == crate::evms::WHY_CHANCE);
    assert!(bindings::VMTRACE_REF_WHY_SHIFT == crate::evms::WHY_SHIFT);
    assert!(bindings::VMTRACE_STAY_SHIFT == crate::evms::STAY_SHIFT);
};

/// What a trace is to be like: a configuration that was found good.
#[derive(Clone, Copy)]
struct Plan {
    shape: Shape,
    max: u32,
    flags: u32,
    classes: u32,
    scope: u32,
    pid: i32,
    /// Sub-buffers of each stream, and bytes of one.
    ref_buffers: u32,
    event_buffers: u32,
    size: u32,
    /// References from the start on, not only events.
    refs: bool,
    /// Ticks that virtual time leaves out for each fault.
    vtime_skip: u32,
    windows: Option<Windows>,
}

/// How far a trace is.
enum Mode {
    Off,
    /// It began at boot and has no output yet.
    Early(Plan),
    /// kvmtraced writes it; its windows, if it has such, have a thread of their own.
    On {
        _kvmtraced: KThread,
        windows: Option<KThread>,
    },
}

/// The configuration that START got, and the figures that STATUS reports.
struct Control {
    mode: Mode,
    status: bindings::vmtrace_status,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static CONTROL: Mutex<Option<KBox<Control>>> = None;
}

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
        drain::init()?;
        window::init();
    }
    let control = KBox::new(
        Control {
            mode: Mode::Off,
            status: pin_init::zeroed(),
        },
        GFP_KERNEL,
    )?;
    *CONTROL.lock() = Some(control);
    Ok(())
}

fn evms_min() -> u32 {
    (nr_cpus() as u32).saturating_mul(bindings::VMTRACE_EVMS_MIN_PER_CPU)
}

/// A set as configured, that can grow to `max`.
fn evms(shape: &Shape, max: usize) -> Result<Evms> {
    let slots = Store::from_elem(Slot::EMPTY, Evms::slots_for(max, BACKLOG), GFP_KERNEL)?;
    let buckets = Store::from_elem(0u32, Evms::buckets_for(max), GFP_KERNEL)?;
    let firsts = Store::from_elem(0u64, Evms::firsts_for(shape), GFP_KERNEL)?;
    let counts = Store::from_elem(0u32, shape.cpus, GFP_KERNEL)?;
    let mut evms = Evms::new(shape, slots, buckets, firsts, counts).ok_or(EINVAL)?;
    // SAFETY: Set while booting, never changed after.
    let breaks = unsafe { bindings::vmtrace_break };
    if breaks & bindings::VMTRACE_BREAK_NOORDER as usize != 0 {
        evms.disorder();
    }
    Ok(evms)
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

impl Plan {
    /// What `c` asks for.
    fn new(c: &bindings::vmtrace_config) -> Result<Plan> {
        if c.size as usize != size_of::<bindings::vmtrace_config>()
            || c.flags & !(bindings::VMTRACE_AGAIN | bindings::VMTRACE_VTIME) != 0
            || c.policy > bindings::VMTRACE_POLICY_CLOCK
            || c.classes & !bindings::VMTRACE_CLASSES != 0
        {
            return Err(EINVAL);
        }
        let first = match c.first_segment {
            0 => bindings::VMTRACE_EVMS_MIN_PER_CPU,
            f => f,
        };
        let max = match c.evms_max {
            0 => c
                .evms_size
                .saturating_mul(4)
                .min(bindings::VMTRACE_EVMS_MAX),
            m => m,
        };
        if first < bindings::VMTRACE_EVMS_MIN_PER_CPU
            || u64::from(c.evms_size) < u64::from(first).saturating_mul(nr_cpus() as u64)
            || c.evms_size > max
            || max > bindings::VMTRACE_EVMS_MAX
        {
            return Err(EINVAL);
        }
        match c.scope {
            bindings::VMTRACE_SCOPE_ALL if c.pid == 0 => {}
            bindings::VMTRACE_SCOPE_TREE if c.pid > 0 => {}
            _ => return Err(EINVAL),
        }
        let buffers = match c.nr_buffers {
            0 => DEFAULT_BUFFERS,
            n => n,
        };
        let size = match c.buffer_size {
            0 => DEFAULT_SIZE,
            n => n,
        };
        if !(4..=MOST_BUFFERS).contains(&buffers)
            || !size.is_power_of_two()
            || !(LEAST_SIZE..=1 << 20).contains(&size)
        {
            return Err(EINVAL);
        }
        let clock = c.policy == bindings::VMTRACE_POLICY_CLOCK;
        Ok(Plan {
            shape: Shape {
                n: c.evms_size as usize,
                first: first as usize,
                cpus: nr_cpus(),
                clock,
                again: c.flags & bindings::VMTRACE_AGAIN != 0,
            },
            max,
            flags: if clock {
                c.flags | bindings::VMTRACE_AGAIN
            } else {
                c.flags
            },
            classes: c.classes,
            scope: c.scope,
            pid: c.pid,
            ref_buffers: buffers,
            event_buffers: buffers,
            size,
            refs: true,
            vtime_skip: c.vtime_skip,
            windows: Windows::new(c)?,
        })
    }

    /// That of a trace from boot: all buffers together are as large as `e` says.
    fn early(e: &bindings::vmtrace_early) -> Result<Plan> {
        let mut c: bindings::vmtrace_config = pin_init::zeroed();
        c.size = size_of::<bindings::vmtrace_config>() as u32;
        c.scope = bindings::VMTRACE_SCOPE_ALL;
        c.evms_size = e.evms_size;
        c.classes = e.classes;
        let mut plan = Plan::new(&c)?;
        plan.flags |= bindings::VMTRACE_EARLY;
        plan.refs = e.refs;
        let streams = (nr_cpus() as u64).saturating_mul(if e.refs { 2 } else { 1 });
        let room = e.size.checked_div(streams).unwrap_or(0);
        while room >> plan.size.trailing_zeros() < 4 && plan.size > LEAST_SIZE {
            plan.size >>= 1;
        }
        let buffers = (room >> plan.size.trailing_zeros()).min(u64::from(MOST_BUFFERS)) as u32;
        if buffers < 4 {
            return Err(EINVAL);
        }
        plan.event_buffers = buffers;
        if e.refs {
            plan.ref_buffers = buffers;
        }
        Ok(plan)
    }

    /// Records carry virtual time.
    fn vtime(&self) -> bool {
        self.flags & bindings::VMTRACE_VTIME != 0
    }

    fn policy(&self) -> u32 {
        if self.shape.clock {
            bindings::VMTRACE_POLICY_CLOCK
        } else {
            bindings::VMTRACE_POLICY_FIFO
        }
    }

    /// An empty set, and the streams of its references.
    fn hot(&self) -> Result<KBox<Hot>> {
        Ok(KBox::new(
            Hot::new(
                evms(&self.shape, self.max as usize)?,
                rings(self.ref_buffers as usize, self.size as usize)?,
                self.vtime(),
            ),
            GFP_KERNEL,
        )?)
    }

    fn events(&self) -> Result<KBox<Events>> {
        Ok(KBox::new(
            Events {
                rings: rings(self.event_buffers as usize, self.size as usize)?,
                vtime: self.vtime(),
                open: true,
            },
            GFP_KERNEL,
        )?)
    }

    /// The header of a trace that begins now.
    fn header(&self) -> Result<KBox<Header>> {
        let mut header = KBox::new(Header(pin_init::zeroed()), GFP_KERNEL)?;
        let h = &mut header.0;
        // SAFETY: `h` is valid.
        unsafe { bindings::vmtrace_describe(h) };
        h.magic = bindings::VMTRACE_MAGIC;
        h.version = bindings::VMTRACE_VERSION;
        h.header_size = bindings::VMTRACE_HEADER_SIZE;
        h.features = u64::from(self.flags);
        h.evms_size = self.shape.n as u32;
        h.first_segment = self.shape.first as u32;
        h.classes = self.classes;
        h.policy = self.policy();
        h.scope = self.scope;
        h.scope_pid = self.pid;
        h.page_shift = PAGE_SHIFT as u32;
        h.clock = bindings::VMTRACE_CLOCK_MONOTONIC;
        h.forced_off = bindings::VMTRACE_OFF_PMD_THP
            | bindings::VMTRACE_OFF_PMD_MOVE
            | bindings::VMTRACE_OFF_NUMA;
        h.buffer_size = self.size;
        h.nr_buffers = self.event_buffers;
        if self.vtime() {
            // SAFETY: `h` is valid.
            to_result(unsafe { bindings::vmtrace_clock_describe(h, self.vtime_skip) })?;
        }
        h.stay_shift = bindings::VMTRACE_STAY_SHIFT;
        if let Some(w) = &self.windows {
            h.windows = w.count;
            h.window_time = w.time;
            h.window_refs = w.refs;
            h.warmup = w.warmup;
            h.skip = w.skip;
        }
        Ok(header)
    }

    /// What STATUS reports about a trace with this header.
    fn status(&self, h: &Header) -> bindings::vmtrace_status {
        let mut s: bindings::vmtrace_status = pin_init::zeroed();
        s.size = size_of::<bindings::vmtrace_status>() as u32;
        s.scope = self.scope;
        s.pid = self.pid;
        s.evms_size = self.shape.n as u32;
        s.flags = self.flags;
        s.first_segment = self.shape.first as u32;
        s.policy = self.policy();
        s.classes = self.classes;
        s.evms_max = self.max;
        s.evms_peak = s.evms_size;
        s.windows = self.windows.map_or(0, |w| w.count);
        s.uuid = h.0.uuid;
        s.start_time = h.0.start_time;
        s
    }
}

impl Header {
    /// Makes it complete.
    fn seal(&mut self) {
        let len = self.as_bytes().len().wrapping_sub(4);
        let sum = self.as_bytes().get(..len).map_or(0, drain::crc);
        self.0.crc = sum;
    }
}

fn reset() {
    for counter in [&SEQ, &WAITS, &MMS] {
        counter.store(0, Relaxed);
    }
    drain::reset();
    window::reset();
}

/// Begins to trace what `plan` says, or has a thread do that when it is time; the set
/// and the rings are in place.
fn attach(plan: &Plan) -> Result<Option<KThread>> {
    // SAFETY: This context may sleep.
    to_result(unsafe { bindings::vmtrace_set_tree(plan.scope, plan.pid) })?;
    // SAFETY: No hook is on yet that reads it.
    unsafe { bindings::vmtrace_classes = plan.classes };
    if plan.vtime() {
        // SAFETY: It is off; this context may sleep.
        unsafe { bindings::vmtrace_clock_on(plan.vtime_skip) };
    }
    if let Some(windows) = plan.windows {
        seal();
        return window::start(windows).map(Some);
    }
    // SAFETY: The set and the rings are in place; no lock of the hooks is held.
    unsafe { bindings::vmtrace_attach(plan.refs) };
    Ok(None)
}

/// Nothing is recorded before the first window.
fn seal() {
    if let Some(hot) = HOT.lock().as_mut() {
        hot.sealed = true;
    }
    if let Some(events) = EVENTS.lock().as_mut() {
        events.open = false;
    }
}

/// Takes over what STATUS is to call the output.
fn name_output(s: &mut bindings::vmtrace_status, c: &bindings::vmtrace_config) {
    s.output = c.output;
    if let Some(last) = s.output.last_mut() {
        *last = 0;
    }
}

/// Starts a trace, or gives that from boot its output.
///
/// # Safety
///
/// No call of `fdget_pos()` is active on this thread, as in an ioctl.
pub(crate) unsafe fn start(config: &Config) -> Result {
    let c = &config.0;
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    if !capable(Capability::SYS_ADMIN) {
        return Err(EPERM);
    }
    if c.flags & bindings::VMTRACE_EARLY != 0 {
        // SAFETY: By the caller's promise.
        return unsafe { take_over(control, c) };
    }
    let plan = Plan::new(c)?;
    if !matches!(control.mode, Mode::Off) {
        return Err(EBUSY);
    }
    let hot = plan.hot()?;
    let events = plan.events()?;
    let mut header = plan.header()?;
    header.seal();
    reset();

    // SAFETY: By the caller's promise.
    let mut out = unsafe { Output::open(c.out_fd, header.0.uuid) }?;
    out.write(header.as_bytes())?;

    *OUTPUT.lock() = Some(out);
    *HOT.lock() = Some(hot);
    *EVENTS.lock() = Some(events);

    control.status = plan.status(&header);
    name_output(&mut control.status, c);
    drop(header);

    let kvmtraced = match drain::start() {
        Ok(thread) => thread,
        Err(e) => {
            release();
            return Err(e);
        }
    };
    let windows = match attach(&plan) {
        Ok(windows) => windows,
        Err(e) => {
            drop(kvmtraced);
            release();
            return Err(e);
        }
    };
    control.mode = Mode::On {
        _kvmtraced: kvmtraced,
        windows,
    };
    Ok(())
}

/// Starts a trace from boot, as the kernel command line says.
fn early(e: &bindings::vmtrace_early) -> Result {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    if !matches!(control.mode, Mode::Off) {
        return Err(EBUSY);
    }
    let plan = Plan::early(e)?;
    let hot = if plan.refs { Some(plan.hot()?) } else { None };
    let events = plan.events()?;
    control.status = plan.status(&*plan.header()?);
    reset();
    EARLY.store(true, Relaxed);
    *HOT.lock() = hot;
    *EVENTS.lock() = Some(events);
    if let Err(e) = attach(&plan) {
        release();
        return Err(e);
    }
    control.mode = Mode::Early(plan);
    Ok(())
}

/// Starts a trace from boot; gives an errno.
///
/// # Safety
///
/// `e` is valid.
#[export]
pub unsafe extern "C" fn vmtrace_rs_early(e: *const bindings::vmtrace_early) -> c_int {
    // SAFETY: By the caller's promise.
    match early(unsafe { &*e }) {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// Gives the trace from boot its output. The records that were kept are written
/// there, and from here on the trace is like any other. If that fails, nothing has
/// changed.
///
/// # Safety
///
/// No call of `fdget_pos()` is active on this thread, as in an ioctl.
unsafe fn take_over(control: &mut Control, c: &bindings::vmtrace_config) -> Result {
    // The kernel command line has set these.
    let set = c.evms_size
        | c.nr_buffers
        | c.buffer_size
        | c.first_segment
        | c.policy
        | c.evms_max
        | c.classes
        | c.windows;
    let windows = c.window_time | c.window_refs | c.warmup | c.skip;
    if c.size as usize != size_of::<bindings::vmtrace_config>()
        || c.flags != bindings::VMTRACE_EARLY
        || c.scope != bindings::VMTRACE_SCOPE_ALL
        || c.pid != 0
        || set != 0
        || windows != 0
    {
        return Err(EINVAL);
    }
    let Mode::Early(plan) = control.mode else {
        return Err(ENODATA);
    };
    let hot = if plan.refs { None } else { Some(plan.hot()?) };
    let mut header = plan.header()?;
    header.0.uuid = control.status.uuid;
    header.0.start_time = control.status.start_time;
    header.seal();

    // SAFETY: By the caller's promise.
    let mut out = unsafe { Output::open(c.out_fd, header.0.uuid) }?;
    out.write(header.as_bytes())?;
    drop(header);
    *OUTPUT.lock() = Some(out);
    let kvmtraced = match drain::start() {
        Ok(thread) => thread,
        Err(e) => {
            let out = OUTPUT.lock().take();
            drop(out);
            drain::reset();
            return Err(e);
        }
    };
    control.mode = Mode::On {
        _kvmtraced: kvmtraced,
        windows: None,
    };
    name_output(&mut control.status, c);

    // From here on, a task that finds no room waits until kvmtraced has made room.
    congest();
    EARLY.store(false, Relaxed);
    kick();
    if let Some(hot) = hot {
        *HOT.lock() = Some(hot);
        // SAFETY: The set is in place; no lock of the hooks is held.
        unsafe { bindings::vmtrace_begin_refs() };
    }
    Ok(())
}

/// Frees what a trace had, and lets its output go.
fn release() {
    // SAFETY: This context may sleep.
    unsafe { bindings::vmtrace_clock_off() };
    // Freed after the locks are dropped, for freeing may sleep.
    let hot = HOT.lock().take();
    let events = EVENTS.lock().take();
    drop(hot);
    drop(events);
    EARLY.store(false, Relaxed);
    drain::uncongest();
    let out = OUTPUT.lock().take();
    drop(out);
}

/// Counts as lost what was kept for an output that never came.
fn abandon() {
    let mut lost = 0u64;
    if let Some(hot) = HOT.lock().as_mut() {
        hot.retire(true);
        lost = hot
            .rings
            .iter()
            .map(Ring::records)
            .fold(lost, u64::wrapping_add);
    }
    if let Some(events) = EVENTS.lock().as_ref() {
        lost = events
            .rings
            .iter()
            .map(Ring::records)
            .fold(lost, u64::wrapping_add);
    }
    LOST_IO.add(lost, Relaxed);
}

/// Stops the trace and returns its last figures.
pub(crate) fn stop() -> Result<Status> {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    if !capable(Capability::SYS_ADMIN) {
        return Err(EPERM);
    }
    let early = match &mut control.mode {
        Mode::Off => return Err(ENODATA),
        Mode::Early(_) => {
            window::halt(true);
            abandon();
            true
        }
        Mode::On { windows, .. } => {
            match windows.take() {
                Some(thread) => {
                    // It has ended when this is done, so no window opens after.
                    drop(thread);
                    window::close(bindings::VMTRACE_WINDOW_STOP);
                    // SAFETY: No lock of the hooks is held.
                    unsafe { bindings::vmtrace_unhook() };
                }
                None => {
                    window::halt(true);
                    window::flush();
                }
            }
            false
        }
    };
    control.mode = Mode::Off;

    fill(&mut control.status);
    control.status.stop_time = clock();
    control.status.state = bindings::VMTRACE_STATE_OFF;
    if !early {
        end(&control.status);
    }
    let error = ERROR.load(Relaxed);
    if error != 0 {
        control.status.state = bindings::VMTRACE_STATE_FAILED;
        control.status.error = -error;
    }
    release();
    if error != 0 {
        return Err(EIO);
    }
    Ok(Status(control.status))
}

/// Audits the trace that is on; it does not end meanwhile. ENODATA if there is none
/// or it has ended by itself.
///
/// # Safety
///
/// `a` is valid, and its list has as much room as it says. No lock of the hooks is
/// held.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit(a: *mut bindings::vmtrace_audit) -> c_int {
    let guard = CONTROL.lock();
    match guard.as_ref() {
        Some(control) if !matches!(control.mode, Mode::Off) && ERROR.load(Relaxed) == 0 => {
            // SAFETY: By the caller's promise.
            window::steadily(|| unsafe { bindings::vmtrace_audit(a) });
            0
        }
        _ => ENODATA.to_errno(),
    }
}

/// Changes the size of the set of the trace that is on.
pub(crate) fn resize(n: u32) -> Result {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    if !capable(Capability::SYS_ADMIN) {
        return Err(EPERM);
    }
    // Nor is there a set yet in a trace from boot without references.
    if matches!(control.mode, Mode::Off) || HOT.lock().is_none() {
        return Err(ENODATA);
    }
    let s = &control.status;
    if u64::from(n) < u64::from(s.first_segment).saturating_mul(nr_cpus() as u64) {
        return Err(EINVAL);
    }
    if n > s.evms_max {
        return Err(ENOSPC);
    }
    let size = || {
        let guard = HOT.lock();
        guard.as_ref().map_or(0, |hot| hot.evms.size() as u32)
    };
    let from = size();
    control.status.evms_peak = control.status.evms_peak.max(from).max(n);
    if n == from {
        return Ok(());
    }
    // Logged before the change, so that a reader knows why stays end early from here on.
    // SAFETY: The context may sleep.
    unsafe { bindings::vmtrace_log_resize(from, n) };
    if n > from {
        if let Some(hot) = HOT.lock().as_mut() {
            hot.evms.grow(u64::from(n));
        }
        return Ok(());
    }
    // SAFETY: No lock of the hooks is held, and the context may sleep.
    let result = to_result(window::steadily(|| unsafe { bindings::vmtrace_resize(n) }));
    if result.is_err() {
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_log_resize(n, size()) };
    }
    result
}

/// Writes the packet that says the trace is whole.
fn end(status: &bindings::vmtrace_status) {
    let s = Status(*status);
    drain::put_packet(s.as_bytes(), status.last_seq, status.stop_time, drain::end);
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
    s.windows_begun = window::BEGUN.load(Relaxed);
    s.windows_ended = window::ENDED.load(Relaxed);
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
        s.admissions = hot.admissions();
        s.aborted = hot.aborted;
        s.members = hot.evms.live();
        s.members_max = hot.evms.live_max();
        s.evms_size = hot.evms.size() as u32;
        s.evms_peak = s.evms_peak.max(s.evms_size);
        s.renewed = hot.evms.renewed();
        s.chances = hot.evms.chances();
        s.funny = hot.funny;
        s.stuck = hot.stuck;
        s.audits = hot.audits;
        s.dangling = hot.dangling;
        s.miscounted = hot.miscounted;
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
    if !matches!(control.mode, Mode::Off) {
        fill(&mut control.status);
        control.status.stop_time = clock();
        let error = ERROR.load(Relaxed);
        control.status.error = -error;
        control.status.state = match control.mode {
            _ if error != 0 => bindings::VMTRACE_STATE_FAILED,
            Mode::Early(_) => bindings::VMTRACE_STATE_EARLY,
            _ => bindings::VMTRACE_STATE_ON,
        };
    }
    Ok(Status(control.status))
}
