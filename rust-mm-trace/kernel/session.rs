// SPDX-License-Identifier: GPL-2.0

//! A trace from start to stop: what /dev/vmtrace's ioctls do.
//!
//! Two threads do what may take long: kvmtraced writes (drain.rs), the thread of the trace
//! ends it (window.rs). An ioctl asks them, and waits for as long as they get on and its
//! task is not killed. No lock that an ioctl takes is held while anybody waits for the
//! output.
//!
//! Lock order: [`RESIZING`] → window.rs's lock → [`CONTROL`] → scopes.rs's lock → the lock of a
//! ring; and [`CONTROL`], members.rs's lock → rotate.rs's lock.
//! [`CONTROL`] is only held for moments.

use crate::{
    audit, changes,
    counts::{self, Counts},
    drain::{
        self, kick, nr_cpus, Output, BYTES, ERROR, EVENT_RECORDS, HELD, LOST_IO, PACKETS, PATIENCE,
        REFS, STORED,
    },
    events::{self, Events},
    filter::{self, Program},
    hot::{self, clock, last_seq, Refs, DISCARDS, EARLY, MMS, NUMBERS, WAITS},
    interval,
    machine::{self, afford, is_online},
    members,
    packer::Packer,
    permission,
    policy::{self, Operations},
    progress, recall,
    record::{self, Extras},
    request,
    ring::{self, Packet, Ring},
    rings,
    roots::Roots,
    rotate, sampling,
    scopes::{self, Make},
    sink::Sink,
    stay::{self, Shape},
    throttle,
    window::{self, Job, Windows},
    zstd::Zstd,
    Store,
};
use core::mem::size_of;
use kernel::{
    bindings,
    error::to_result,
    ffi::{c_char, c_int},
    kthread::KThread,
    macros::export,
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::ordering::Relaxed,
    task::Task,
    time::{delay::fsleep, Delta},
    transmute::{AsBytes, FromBytes},
};

const DEFAULT_BUFFERS: u32 = 32;
const DEFAULT_SIZE: u32 = 64 << 10;
const LEAST_BUFFERS: u32 = 4;
const MOST_BUFFERS: u32 = 1 << 16;
pub(crate) const LEAST_SIZE: u32 = 4096;

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

/// `struct vmtrace_rotate` as user space gives it.
#[repr(transparent)]
pub(crate) struct Rotate(bindings::vmtrace_rotate);

// SAFETY: Integers and bytes without padding: any bits are a value.
unsafe impl FromBytes for Rotate {}

/// `struct vmtrace_filter` as user space gives it.
#[repr(transparent)]
pub(crate) struct Filter(pub(crate) bindings::vmtrace_filter);

// SAFETY: Integers without padding: any bits are a value.
unsafe impl FromBytes for Filter {}

/// `struct vmtrace_counts` as user space gives and gets it.
#[repr(transparent)]
pub(crate) struct Asked(bindings::vmtrace_counts);

// SAFETY: Integers without padding: any bits are a value.
unsafe impl FromBytes for Asked {}
// SAFETY: Integers without padding.
unsafe impl AsBytes for Asked {}

/// `struct vmtrace_rings` as user space gives and gets it.
#[repr(transparent)]
pub(crate) struct AskedRings(bindings::vmtrace_rings);

// SAFETY: Integers and bytes without padding: any bits are a value.
unsafe impl FromBytes for AskedRings {}
// SAFETY: Integers and bytes without padding.
unsafe impl AsBytes for AskedRings {}

#[repr(transparent)]
struct Header(bindings::vmtrace_header);

// SAFETY: Integers and bytes without padding.
unsafe impl AsBytes for Header {}

// The layouts that this code writes by hand, against the header.
const _: () = {
    assert!(size_of::<bindings::vmtrace_header>() == bindings::VMTRACE_HEADER_SIZE as usize);
    assert!(size_of::<bindings::vmtrace_status>() >= bindings::VMTRACE_STATUS_SIZE_VER0 as usize);
    assert!(size_of::<bindings::vmtrace_ref>() == record::REF_SIZE);
    assert!(core::mem::offset_of!(bindings::vmtrace_ref, tid_cpu) == 16);
    assert!(core::mem::offset_of!(bindings::vmtrace_ref, pfn) == 28);
    assert!(size_of::<bindings::vmtrace_event>() == record::EVENT_SIZE);
    assert!(size_of::<u64>() == record::VTIME_SIZE);
    assert!(bindings::VMTRACE_OFFSET_NONE as u64 == crate::stay::NO_OFFSET);
    assert!(core::mem::offset_of!(bindings::vmtrace_event, cpu) == 36);
    assert!(size_of::<bindings::vmtrace_packet>() == crate::ring::HEAD);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, crc) == record::PACKET_CRC_AT);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, codec) == 26);
    assert!(core::mem::offset_of!(bindings::vmtrace_packet, raw_size) == 92);
    assert!(size_of::<bindings::vmtrace_packed>() == crate::pack::PACKED_HEAD);
    assert!(bindings::VMTRACE_REF_KIND as u64 == crate::stay::KIND);
    assert!(bindings::VMTRACE_REF_SEEN as u64 == crate::stay::SEEN);
    assert!(bindings::VMTRACE_REF_KERNEL as u64 == crate::stay::BY_KERNEL);
    assert!(bindings::VMTRACE_REF_DIRTIED as u64 == crate::stay::DIRTIED);
    assert!(bindings::VMTRACE_REF_AGAIN as u64 == crate::stay::AGAIN);
    assert!(bindings::VMTRACE_REF_CONT as u64 == crate::stay::CONT);
    assert!(bindings::VMTRACE_WHY_RENEWED == crate::stay::WHY_RENEWED);
    assert!(bindings::VMTRACE_WHY_CHANCE == crate::stay::WHY_CHANCE);
    assert!(bindings::VMTRACE_REF_WHY_SHIFT == crate::stay::WHY_SHIFT);
    assert!(bindings::VMTRACE_STAY_SHIFT == crate::stay::STAY_SHIFT);
};

/// What a trace is to be like: a configuration that was found good.
#[derive(Clone, Copy)]
struct Plan {
    make: Make,
    flags: u32,
    classes: u32,
    roots: Roots,
    /// Sub-buffers of each stream, and bytes of one.
    ref_buffers: u32,
    event_buffers: u32,
    size: u32,
    /// References from the start on, not only events.
    refs: bool,
    /// VMTRACE_MODE_*
    mode: u16,
    /// How long a record stays in the rings at most, ms, if kvmtraced is not behind; 0: until its
    /// sub-buffer is full.
    flush_ms: u32,
    /// Ticks that virtual time leaves out for each fault.
    vtime_skip: u32,
    /// How pages are observed.
    policy: &'static Operations,
    /// All stays end each so many ns; 0: they do not.
    interval: u64,
    sampling: bindings::vmtrace_sampling,
    windows: Option<Windows>,
}

/// What the references of a trace need.
type Hot = (KBox<Refs>, KBox<scopes::List>);

/// How far a trace is.
enum Mode {
    Off,
    /// START makes it, and waits for its header to be written.
    Starting,
    /// It began at boot and has no output yet.
    Early(Plan),
    On,
    /// STOP was called; its thread and kvmtraced do what is left to do.
    Ending,
}

/// How far kvmtraced is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// There is none, or it has nothing left to do.
    None,
    /// It writes the header, and START waits for that.
    Header,
    /// The same, and START waits no longer.
    Abandoned,
    /// It could not write the header.
    Failed(Error),
    On,
    /// What the trace had is freed, and the status is the last one.
    Closing,
}

/// The state, and the figures that STATUS reports.
struct Control {
    mode: Mode,
    writer: Writer,
    /// Counts traces.
    session: u64,
    status: bindings::vmtrace_status,
    /// The threads of the trace. They end by themselves, and the next START joins them.
    threads: [Option<KThread>; 3],
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    unsafe(uninit) static CONTROL: Mutex<Option<KBox<Control>>> = None;
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    /// One resize at a time.
    unsafe(uninit) static RESIZING: Mutex<()> = ();
}

/// Does `f` with the state, under its lock. ENODEV on a machine that cannot be traced.
fn with_control<R>(f: impl FnOnce(&mut Control) -> R) -> Result<R> {
    let mut guard = CONTROL.lock();
    let control = guard.as_mut().ok_or(ENODEV)?;
    Ok(f(control))
}

/// Makes the locks usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: By the caller's promise.
    unsafe {
        CONTROL.init();
        RESIZING.init();
        changes::init()?;
        throttle::init()?;
        recall::init()?;
        drain::init()?;
        members::init();
        scopes::init();
        window::init();
        rotate::init();
        sampling::init();
    }
    // SAFETY: Only looks at what the CPU is.
    if !unsafe { bindings::vmtrace_owns_tables() } {
        pr_info!("a paravirtualized guest of Xen cannot be traced\n");
        return Ok(());
    }
    let control = KBox::new(
        Control {
            mode: Mode::Off,
            writer: Writer::None,
            session: 0,
            status: pin_init::zeroed(),
            threads: [None, None, None],
        },
        GFP_KERNEL,
    )?;
    *CONTROL.lock() = Some(control);
    Ok(())
}

fn evms_min() -> u32 {
    stay::least(bindings::VMTRACE_FIRST_MIN as usize, nr_cpus()) as u32
}

/// A sub-buffer. If memory is short, this fails: other programs are not to end for it.
fn buffer(size: usize) -> Result<Store<u8>> {
    machine::zeroed(size)
}

/// As many sub-buffers.
pub(crate) fn buffers(many: usize, size: usize) -> Result<Store<Option<Store<u8>>>> {
    afford((many as u64).saturating_mul(size as u64))?;
    let mut buffers = places(many)?;
    for place in buffers.iter_mut() {
        *place = Some(buffer(size)?);
    }
    Ok(buffers)
}

/// As many places with nothing in them.
pub(crate) fn places<T>(many: usize) -> Result<Store<Option<T>>> {
    let mut places = Store::with_capacity(many, GFP_KERNEL | __GFP_NOWARN)?;
    for _ in 0..many {
        places.push(None, GFP_KERNEL)?;
    }
    Ok(places)
}

fn new_ring(many: usize, size: usize) -> Result<Ring> {
    Ok(Ring::new(buffers(many, size)?, places(many)?))
}

/// CPUs that have rings if a trace starts now, of each kind.
fn nr_streams() -> u64 {
    (0..nr_cpus()).filter(|cpu| is_online(*cpu)).count().max(1) as u64
}

/// Rings for the CPUs that are online. A CPU that comes later uses the ring of another one.
fn rings(buffers: usize, size: usize) -> Result<Store<Ring>> {
    let mut rings = Store::with_capacity(nr_cpus(), GFP_KERNEL)?;
    for cpu in 0..nr_cpus() {
        let buffers = if is_online(cpu) { buffers } else { 0 };
        rings.push(new_ring(buffers, size)?, GFP_KERNEL)?;
    }
    Ok(rings)
}

/// Sub-buffers of each stream, unless it is configured: together not more than an eighth of
/// the memory.
fn default_buffers(size: u32) -> u32 {
    let most = machine::memory() / 8;
    let of_all = nr_streams()
        .saturating_mul(2)
        .saturating_mul(u64::from(size));
    let each = most.checked_div(of_all).unwrap_or(0);
    each.clamp(4, u64::from(DEFAULT_BUFFERS)) as u32
}

/// Whether a stall limit is one, or 0 for the default.
fn good_limit(stall_ms: u32) -> bool {
    stall_ms == 0 || (bindings::VMTRACE_STALL_MIN..=bindings::VMTRACE_STALL_MAX).contains(&stall_ms)
}

/// Flags that say how packets are packed.
const PACKING: u32 = bindings::VMTRACE_PACK | bindings::VMTRACE_ZSTD;

/// Only what is packed can be compressed.
fn good_packing(flags: u32) -> bool {
    flags & PACKING != bindings::VMTRACE_ZSTD
}

/// Whether whoever hands over an output for the trace from boot may ask for this: how the trace is
/// written is all that the kernel command line has not set.
pub(crate) fn can_take(flags: u32) -> bool {
    const WRITING: u32 = PACKING | bindings::VMTRACE_PIECE;
    flags & !WRITING == bindings::VMTRACE_EARLY && good_packing(flags)
}

/// Whether a trace with these flags can be written to an output that is a regular file, or is not.
pub(crate) fn good_output(flags: u32, is_regular: bool) -> bool {
    flags & bindings::VMTRACE_PIECE == 0 || is_regular
}

/// How long a record stays in the rings at most, as configured; see [`Plan::flush_ms`].
fn flush(flush_ms: u16) -> Result<u32> {
    match u32::from(flush_ms) {
        0 => Ok(bindings::VMTRACE_FLUSH_DEFAULT),
        bindings::VMTRACE_FLUSH_NEVER => Ok(0),
        ms if (bindings::VMTRACE_FLUSH_MIN..=bindings::VMTRACE_FLUSH_MAX).contains(&ms) => Ok(ms),
        _ => Err(EINVAL),
    }
}

/// Pages that one admission evicts at most, in a set of `n`: as asked, or the default.
fn batch(asked: u32, n: usize, first: usize, clock: bool) -> Result<u32> {
    let most = match clock {
        true => 1,
        false => stay::batch_max(n, first, nr_cpus()).min(bindings::VMTRACE_BATCH_MAX as usize),
    };
    match asked {
        0 => {
            let share = (n / 16).min(bindings::VMTRACE_BATCH_DEFAULT as usize);
            Ok(share.min(most).max(1) as u32)
        }
        k if k as usize <= most => Ok(k),
        _ => Err(EINVAL),
    }
}

/// What a trace may have, if it is not from boot.
const FLAGS: u32 = bindings::VMTRACE_AGAIN
    | bindings::VMTRACE_VTIME
    | PACKING
    | bindings::VMTRACE_OFFSETS
    | bindings::VMTRACE_PAUSABLE
    | bindings::VMTRACE_FILTERED
    | bindings::VMTRACE_COUNTED
    | bindings::VMTRACE_UNWRITTEN
    | bindings::VMTRACE_REGIONS
    | bindings::VMTRACE_PIECE;

/// Flags that make no difference to a reader of the trace.
const NO_FEATURES: u32 = bindings::VMTRACE_COUNTED | bindings::VMTRACE_UNWRITTEN;

impl Plan {
    /// What `c` asks for.
    fn new(c: &bindings::vmtrace_config) -> Result<Plan> {
        if c.flags & !FLAGS != 0
            || !good_packing(c.flags)
            || c.policy > bindings::VMTRACE_POLICY_CLOCK
            || c.classes & !bindings::VMTRACE_CLASSES != 0
            || !good_limit(c.stall_ms)
            || c.sets > bindings::VMTRACE_SETS_CGROUP
            || (c.filter != 0 && c.flags & bindings::VMTRACE_FILTERED == 0)
            || u32::from(c.mode) > bindings::VMTRACE_MODE_DISCARD
        {
            return Err(EINVAL);
        }
        let first = match c.first_segment {
            0 => bindings::VMTRACE_FIRST_MIN,
            f => f,
        };
        let max = match c.evms_max {
            0 if c.sets != bindings::VMTRACE_SETS_ONE => c.evms_size,
            0 => c
                .evms_size
                .saturating_mul(4)
                .min(bindings::VMTRACE_EVMS_MAX),
            m => m,
        };
        if first < bindings::VMTRACE_FIRST_MIN
            || (c.evms_size as usize) < stay::least(first as usize, nr_cpus())
            || c.evms_size > max
            || max > bindings::VMTRACE_EVMS_MAX
        {
            return Err(EINVAL);
        }
        let roots = Roots::new(c)?;
        let size = match c.buffer_size {
            0 => DEFAULT_SIZE,
            n => n,
        };
        let buffers = match c.nr_buffers {
            0 => default_buffers(size),
            n => n,
        };
        if !(LEAST_BUFFERS..=MOST_BUFFERS).contains(&buffers)
            || !size.is_power_of_two()
            || !(LEAST_SIZE..=1 << 20).contains(&size)
        {
            return Err(EINVAL);
        }
        let windows = Windows::new(c)?;
        let unwritten = c.flags & bindings::VMTRACE_UNWRITTEN != 0;
        if c.flags & (bindings::VMTRACE_PIECE | PACKING) != 0 && unwritten {
            return Err(EINVAL);
        }
        let policy = policy::new(c)?;
        // What records none may have windows in which the set does.
        let refs = policy.refs || windows.is_some();
        let clock = c.policy == bindings::VMTRACE_POLICY_CLOCK;
        let batch = batch(c.batch, c.evms_size as usize, first as usize, clock)?;
        Ok(Plan {
            make: Make {
                shape: Shape {
                    n: c.evms_size as usize,
                    first: first as usize,
                    cpus: nr_cpus(),
                    clock,
                    again: c.flags & bindings::VMTRACE_AGAIN != 0,
                    batch: batch as usize,
                },
                max,
                sets: c.sets,
            },
            flags: if clock {
                c.flags | bindings::VMTRACE_AGAIN
            } else {
                c.flags
            },
            classes: c.classes,
            roots,
            ref_buffers: match refs {
                true => buffers,
                false => LEAST_BUFFERS,
            },
            event_buffers: buffers,
            size,
            refs,
            mode: c.mode,
            flush_ms: flush(c.flush_ms)?,
            vtime_skip: c.vtime_skip,
            policy,
            interval: interval::new(c)?,
            sampling: c.sampling,
            windows,
        })
    }

    /// That of a trace from boot: all buffers together are as large as `e` says.
    fn early(e: &bindings::vmtrace_early) -> Result<Plan> {
        let mut c: bindings::vmtrace_config = pin_init::zeroed();
        c.scope = bindings::VMTRACE_SCOPE_ALL;
        c.evms_size = e.evms_size;
        c.classes = e.classes;
        let mut plan = Plan::new(&c)?;
        plan.flags |= bindings::VMTRACE_EARLY;
        plan.refs = e.refs;
        let streams = nr_streams().saturating_mul(if e.refs { 2 } else { 1 });
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

    /// References are judged, or counted.
    fn is_looked_at(&self) -> bool {
        self.filters() || self.flags & bindings::VMTRACE_COUNTED != 0
    }

    /// References may be left out.
    fn filters(&self) -> bool {
        self.flags & bindings::VMTRACE_FILTERED != 0
    }

    /// What references carry besides.
    fn extras(&self) -> Extras {
        Extras::new(self.vtime(), self.flags & bindings::VMTRACE_OFFSETS != 0)
    }

    /// What packs the packets, if they are to be packed.
    fn packer(&self) -> Result<Option<Packer>> {
        if self.flags & bindings::VMTRACE_PACK == 0 {
            return Ok(None);
        }
        let size = self.size as usize;
        let zstd = match self.flags & bindings::VMTRACE_ZSTD {
            0 => None,
            _ => Some(Zstd::new(size)?),
        };
        afford(Packer::bytes(size, self.extras()))?;
        Packer::new(size, self.make.shape.n, self.extras(), zstd).map(Some)
    }

    /// That of the second segment.
    fn replacement(&self) -> u32 {
        if self.make.shape.clock {
            bindings::VMTRACE_POLICY_CLOCK
        } else {
            bindings::VMTRACE_POLICY_FIFO
        }
    }

    /// Bytes of as many sub-buffers of each CPU.
    fn bytes(&self, buffers: u32) -> u64 {
        u64::from(buffers)
            .saturating_mul(u64::from(self.size))
            .saturating_mul(nr_cpus() as u64)
    }

    /// An empty set, and the streams of references.
    fn hot(&self) -> Result<Hot> {
        afford(
            self.make
                .bytes()
                .saturating_add(self.bytes(self.ref_buffers.saturating_add(self.kept())))
                .saturating_add(self.bytes(self.event_buffers)),
        )?;
        let buffers = self.ref_buffers.saturating_add(self.kept());
        let own = rings(buffers as usize, self.size as usize)?;
        let common = scopes::common(&self.make)?;
        let list = scopes::list(&self.make, common.clone())?;
        let refs = Refs::new(
            common,
            own,
            self.kept() as usize,
            self.extras(),
            self.filters(),
        )?;
        Ok((refs, list))
    }

    /// Sub-buffers of a ring of references that are kept for those who must not wait.
    fn kept(&self) -> u32 {
        ring::RESERVE.div_ceil(self.size.max(1) as usize) as u32
    }

    fn events(&self) -> Result<KBox<Events>> {
        let own = rings(self.event_buffers as usize, self.size as usize)?;
        Events::new(own, self.vtime())
    }

    /// The header of a trace that begins now.
    fn header(&self) -> Result<KBox<Header>> {
        let mut header = KBox::new(Header(pin_init::zeroed()), GFP_KERNEL)?;
        let h = &mut header.0;
        machine::describe(h);
        h.magic = bindings::VMTRACE_MAGIC;
        h.version = bindings::VMTRACE_VERSION;
        h.header_size = bindings::VMTRACE_HEADER_SIZE;
        h.features = u64::from(self.flags & !NO_FEATURES);
        h.evms_size = self.make.shape.n as u32;
        h.sets = self.make.sets;
        h.first_segment = self.make.shape.first as u32;
        h.classes = self.classes;
        h.policy = self.replacement();
        h.batch = self.make.shape.batch as u32;
        h.interval = self.interval;
        h.sampling = self.sampling;
        h.scope = self.roots.kind;
        h.scope_pid = self.roots.pid;
        // SAFETY: The name has this room.
        unsafe { bindings::vmtrace_name_scope(h.scope_name.as_mut_ptr(), h.scope_name.len()) };
        h.page_shift = PAGE_SHIFT as u32;
        h.clock = bindings::VMTRACE_CLOCK_MONOTONIC;
        h.loss_mode = u32::from(self.mode);
        h.forced_off = bindings::VMTRACE_OFF_NUMA;
        if self.refs {
            h.forced_off |= bindings::VMTRACE_OFF_PMD_THP | bindings::VMTRACE_OFF_PMD_MOVE;
        }
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
        s.scope = self.roots.kind;
        s.pid = self.roots.pid;
        s.scope_name = h.0.scope_name;
        s.interval = self.interval;
        s.evms_size = self.make.shape.n as u32;
        s.sets = self.make.sets;
        s.flags = self.flags;
        s.mode = u32::from(self.mode);
        s.first_segment = self.make.shape.first as u32;
        s.policy = self.replacement() as u16;
        s.batch = self.make.shape.batch as u16;
        s.classes = self.classes;
        s.evms_max = self.make.max;
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
    NUMBERS.restart(1);
    for counter in [&WAITS, &MMS] {
        counter.store(0, Relaxed);
    }
    drain::reset();
    window::reset();
}

/// Nothing is recorded before the first window.
fn seal() {
    hot::with((), Refs::seal);
    events::set_open(false);
}

/// Takes over what STATUS is to call the output.
fn name_output(s: &mut bindings::vmtrace_status, c: &bindings::vmtrace_config) {
    set_output(s, &c.output);
}

fn set_output(s: &mut bindings::vmtrace_status, output: &[c_char; 256]) {
    s.output = *output;
    if let Some(last) = s.output.last_mut() {
        *last = 0;
    }
}

/// Begins a trace that `plan` describes, of which nothing is in place yet.
fn prepare(plan: &Plan, stall_ms: u32) -> Result {
    reset();
    rotate::reset(plan.make.shape.n as u32, plan.windows.is_some());
    progress::set_limit(stall_ms);
    recall::set_ending(false);
    plan.roots.set()
}

/// Whether the thread of trace `session` may begin; `None` if that is not known yet.
fn may_begin(session: u64) -> Option<bool> {
    with_control(|control| match control.mode {
        _ if control.session != session => Some(false),
        Mode::Off => Some(false),
        Mode::Starting => None,
        _ => Some(true),
    })
    .unwrap_or(Some(false))
}

/// For the thread of trace `session`: waits until START has made it. False if START has
/// failed.
pub(crate) fn made(session: u64) -> bool {
    loop {
        let seen = changes::seen();
        if let Some(may) = may_begin(session) {
            return may;
        }
        // A kernel thread is neither killed nor, for ever, timed out.
        let _ = changes::wait(seen, 0);
    }
}

/// Puts the set and the rings in place, and lets whoever finds no room wait.
fn install(hot: Option<Hot>, events: KBox<Events>) {
    if let Some((refs, list)) = hot {
        hot::install(refs, list);
    }
    events::install(events);
    drain::hold_back();
}

/// Readies the hooks for what `plan` says, with this filter and these counts. They find no traced address space.
fn ready(plan: &Plan, program: Option<KBox<Program>>, counts: Option<KBox<Counts>>) {
    // SAFETY: Words that hooks read without a lock, and only for an address space that is traced or
    // is about to be.
    unsafe {
        bindings::vmtrace_classes = plan.classes;
        bindings::vmtrace_sets = plan.make.sets;
    }
    // SAFETY: The context may sleep.
    unsafe { bindings::vmtrace_ran_begin() };
    if plan.filters() {
        filter::begin(program, plan.flags & bindings::VMTRACE_OFFSETS != 0);
    }
    if let Some(counts) = counts {
        counts::begin(counts);
    }
    if plan.is_looked_at() {
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_look_switch(true) };
    }
    if plan.vtime() {
        // SAFETY: It is off; this context may sleep.
        unsafe { bindings::vmtrace_clock_on(plan.vtime_skip) };
    }
}

/// Has kvmtraced write `header` to `out`, and go on from there. Waits for the header for
/// as long as the stall limit. If this fails, kvmtraced does nothing more than to close
/// the output.
fn write_header(out: Output, header: KBox<Header>) -> Result {
    with_control(|control| match control.writer {
        Writer::None => {
            control.writer = Writer::Header;
            Ok(())
        }
        _ => Err(EBUSY),
    })??;
    let thread = drain::start(out, header);
    with_control(|control| match thread {
        Ok(thread) => {
            control.threads[1] = Some(thread);
            Ok(())
        }
        Err(e) => {
            control.writer = Writer::None;
            Err(e)
        }
    })??;
    loop {
        let seen = changes::seen();
        let done = with_control(|control| match control.writer {
            Writer::Header => None,
            Writer::Failed(e) => {
                control.writer = Writer::None;
                Some(Err(e))
            }
            Writer::On | Writer::Closing => Some(Ok(())),
            // STOP came first.
            Writer::None | Writer::Abandoned => Some(Err(ENODATA)),
        })?;
        if let Some(done) = done {
            return done;
        }
        if let Err(e) = changes::wait(seen, u32::MAX) {
            let too_late = with_control(|control| {
                let waits = control.writer == Writer::Header;
                if waits {
                    control.writer = Writer::Abandoned;
                }
                waits
            })?;
            if too_late {
                return Err(e);
            }
        }
    }
}

/// For kvmtraced, which has tried to write the header: whether it is to go on.
pub(crate) fn begun(header: Result) -> bool {
    let go = with_control(|control| {
        control.writer = match (control.writer, header) {
            (Writer::Header, Ok(())) => Writer::On,
            (Writer::Header, Err(e)) => Writer::Failed(e),
            _ => Writer::None,
        };
        let go = control.writer == Writer::On;
        // Under the lock: as long as this is not known, no other output is tried.
        if !go {
            drain::forget_output();
        }
        go
    });
    changes::changed();
    go == Ok(true)
}

/// Starts a trace, or gives that from boot its output.
///
/// # Safety
///
/// No call of `fdget_pos()` is active on this thread, as in an ioctl.
pub(crate) unsafe fn start(config: &Config) -> Result {
    let c = &config.0;
    permission::need()?;
    if c.flags & bindings::VMTRACE_EARLY != 0 {
        // SAFETY: By the caller's promise.
        return unsafe { take_over(c) };
    }
    let plan = Plan::new(c)?;
    let (session, ended) = with_control(|control| {
        if !matches!(control.mode, Mode::Off) || control.writer != Writer::None {
            return Err(EBUSY);
        }
        control.mode = Mode::Starting;
        control.session = control.session.wrapping_add(1);
        Ok((control.session, core::mem::take(&mut control.threads)))
    })??;
    drop(ended);
    // SAFETY: By the caller's promise.
    let made = unsafe { make(&plan, c, session) };
    if let Err(e) = made {
        Roots::clear();
        with_control(|control| {
            control.mode = Mode::Off;
            if control.writer == Writer::Abandoned {
                control.status.state = bindings::VMTRACE_STATE_FAILED;
                control.status.error = -e.to_errno();
                name_output(&mut control.status, c);
            }
        })?;
        changes::changed();
        return Err(e);
    }
    if plan.windows.is_some() {
        return Ok(());
    }
    // SAFETY: Only stores a pointer, which is that of this task for as long as it is here.
    unsafe { bindings::vmtrace_spare(true) };
    let attached = window::ask(match plan.refs {
        true => Job::Attach,
        false => Job::Quiet,
    });
    // SAFETY: As above.
    unsafe { bindings::vmtrace_spare(false) };
    if attached.is_err() {
        // Killed, or ended by STOP: what began ends as any trace does.
        let _ = end();
    }
    attached.map_err(stopped)
}

/// What START gives if STOP came before all was traced. EINTR would ask for another START;
/// a task that is killed does not see it.
fn stopped(e: Error) -> Error {
    match e {
        EINTR => ENODATA,
        e => e,
    }
}

/// Makes what a trace needs and has its header written; then the trace is on.
///
/// # Safety
///
/// No call of `fdget_pos()` is active on this thread.
unsafe fn make(plan: &Plan, c: &bindings::vmtrace_config, session: u64) -> Result {
    let program = Program::at(c.filter)?;
    let counts = match plan.flags & bindings::VMTRACE_COUNTED {
        0 => None,
        _ => Some(Counts::new()?),
    };
    let hot = plan.hot()?;
    let events = plan.events()?;
    prepare(plan, c.stall_ms)?;
    // It has the name of the scope.
    let mut header = plan.header()?;
    header.seal();
    let mut status = plan.status(&header);
    name_output(&mut status, c);
    DISCARDS.store(plan.mode == bindings::VMTRACE_MODE_DISCARD as u16, Relaxed);
    let sink = match plan.flags & bindings::VMTRACE_UNWRITTEN {
        // SAFETY: By the caller's promise.
        0 => unsafe { Sink::open(c.out_fd) }?,
        _ if c.out_fd == -1 => Sink::nowhere(),
        _ => return Err(EINVAL),
    };
    let out = Output::new(sink, header.0.uuid, plan.packer()?, plan.flush_ms);
    if !good_output(plan.flags, out.sink.is_regular()) {
        return Err(EINVAL);
    }
    let thread = window::start(plan.windows, session)?;
    with_control(|control| control.threads[0] = Some(thread))?;
    if let Some(thread) = policy::start(plan.policy, c, session)? {
        with_control(|control| control.threads[2] = Some(thread))?;
    }
    write_header(out, header)?;

    install(Some(hot), events);
    ready(plan, program, counts);
    if plan.windows.is_some() {
        seal();
    }
    with_control(|control| {
        control.status = status;
        control.mode = Mode::On;
    })?;
    changes::changed();
    Ok(())
}

/// Starts a trace from boot, as the kernel command line says.
fn early(e: &bindings::vmtrace_early) -> Result {
    let plan = Plan::early(e)?;
    let hot = if plan.refs { Some(plan.hot()?) } else { None };
    let events = plan.events()?;
    let status = plan.status(&*plan.header()?);
    prepare(&plan, 0)?;
    DISCARDS.store(false, Relaxed);
    policy::reset();
    let session = with_control(|control| {
        if !matches!(control.mode, Mode::Off) {
            return Err(EBUSY);
        }
        control.mode = Mode::Starting;
        control.session = control.session.wrapping_add(1);
        Ok(control.session)
    })??;
    let thread = window::start(None, session);
    if thread.is_ok() {
        EARLY.store(true, Relaxed);
        install(hot, events);
        ready(&plan, None, None);
    }
    let started = with_control(|control| match thread {
        Ok(thread) => {
            control.threads[0] = Some(thread);
            control.status = status;
            control.mode = Mode::Early(plan);
            Ok(())
        }
        Err(e) => {
            control.mode = Mode::Off;
            Err(e)
        }
    })?;
    changes::changed();
    started?;
    // SAFETY: The set and the rings are in place; no lock of the hooks is held.
    let attached = window::unless_ending(|| unsafe { bindings::vmtrace_attach(plan.refs, false) });
    to_result(attached.unwrap_or(0))
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
unsafe fn take_over(c: &bindings::vmtrace_config) -> Result {
    // The kernel command line has set these.
    let set = c.evms_size
        | c.nr_buffers
        | c.buffer_size
        | c.first_segment
        | c.policy
        | c.evms_max
        | c.classes
        | c.windows
        | c.batch
        | c.sets
        | u32::from(c.mode);
    let windows = c.window_time | c.window_refs | c.warmup | c.skip;
    if !can_take(c.flags)
        || !Roots::new(c)?.is_all()
        || set != 0
        || windows != 0
        || c.filter != 0
        || !policy::is_set(c)
        || !good_limit(c.stall_ms)
    {
        return Err(EINVAL);
    }
    let (mut plan, status) = with_control(|control| match control.mode {
        Mode::Early(plan) => Ok((plan, control.status)),
        _ => Err(ENODATA),
    })??;
    plan.flags |= c.flags;
    plan.flush_ms = flush(c.flush_ms)?;
    let hot = if plan.refs { None } else { Some(plan.hot()?) };
    let mut header = plan.header()?;
    header.0.uuid = status.uuid;
    header.0.start_time = status.start_time;
    header.seal();

    // SAFETY: By the caller's promise.
    let sink = unsafe { Sink::open(c.out_fd) }?;
    let out = Output::new(sink, header.0.uuid, plan.packer()?, plan.flush_ms);
    if !good_output(plan.flags, out.sink.is_regular()) {
        return Err(EINVAL);
    }
    // Nobody waits in a trace without an output.
    progress::set_limit(c.stall_ms);
    write_header(out, header)?;

    // From here on, a task that finds no room waits until kvmtraced has made room.
    EARLY.store(false, Relaxed);
    // Before anybody can ask for a piece.
    rotate::hold(hot.is_some());
    let taken = with_control(|control| {
        let early = matches!(control.mode, Mode::Early(_));
        if early {
            control.mode = Mode::On;
            control.status.flags = plan.flags;
            name_output(&mut control.status, c);
        }
        early
    })?;
    if !taken {
        return Err(ENODATA);
    }
    throttle::congest_all();
    kick();
    if let Some((refs, list)) = hot {
        window::unless_ending(|| hot::install(refs, list));
        let began = window::ask(Job::Refs);
        if began.is_err() {
            let _ = end();
        }
        return began.map_err(stopped);
    }
    Ok(())
}

/// Asks for the end of the trace that is on; its number. ENODATA if none is on, EBUSY if
/// one is about to be.
fn end() -> Result<u64> {
    let session = with_control(|control| {
        match control.mode {
            Mode::Off => return Err(ENODATA),
            Mode::Starting => return Err(EBUSY),
            Mode::Early(_) | Mode::On | Mode::Ending => control.mode = Mode::Ending,
        }
        Ok(control.session)
    })??;
    recall::set_ending(true);
    changes::changed();
    Ok(session)
}

/// For the thread of the trace: nothing is recorded any more. kvmtraced does the rest, if
/// there is one.
pub(crate) fn halted() {
    // SAFETY: This context may sleep.
    unsafe { bindings::vmtrace_clock_off() };
    // SAFETY: The context may sleep.
    unsafe { bindings::vmtrace_look_switch(false) };
    filter::end();
    // SAFETY: The context may sleep.
    unsafe { bindings::vmtrace_ran_end() };
    Roots::clear();
    window::steadily(counts::end);
    let written = with_control(|control| {
        if control.writer == Writer::Header {
            control.writer = Writer::Abandoned;
        }
        control.writer == Writer::On
    });
    if written == Ok(true) {
        drain::last();
        return;
    }
    abandon();
    free(figures());
    changes::changed();
}

/// The last figures of the trace that ends.
fn figures() -> bindings::vmtrace_status {
    let mut status = with_control(|control| control.status).unwrap_or(pin_init::zeroed());
    fill(&mut status);
    status.stop_time = clock();
    status.state = bindings::VMTRACE_STATE_OFF;
    status
}

/// Frees what the trace had; these are its last figures.
fn free(mut status: bindings::vmtrace_status) {
    let error = ERROR.load(Relaxed);
    if error != 0 {
        status.state = bindings::VMTRACE_STATE_FAILED;
        status.error = -error;
    }
    // Taken together with that, for a trace may begin when there is none. Freed after the
    // locks are dropped, for freeing may sleep.
    let had = with_control(|control| {
        control.status = status;
        match control.writer {
            Writer::On => control.writer = Writer::Closing,
            _ => control.mode = Mode::Off,
        }
        EARLY.store(false, Relaxed);
        (hot::remove(), events::remove())
    });
    drop(had);
}

/// For kvmtraced, which has written all records: has `write` write the packet that says so,
/// and then frees what the trace had.
pub(crate) fn ended(write: impl FnOnce(&mut Packet)) {
    let s = Status(figures());
    if let Some(mut packet) = drain::packet(s.as_bytes(), s.0.last_seq, s.0.stop_time) {
        write(&mut packet);
    }
    free(s.0);
}

/// For kvmtraced, which has closed the output: the trace has ended.
pub(crate) fn gone() {
    let _ = with_control(|control| {
        control.writer = Writer::None;
        control.mode = Mode::Off;
    });
    changes::changed();
}

/// Counts as lost what was kept for an output that never came.
fn abandon() {
    let mut lost = scopes::discard();
    hot::with((), |refs| {
        refs.for_each(|ring| lost = lost.wrapping_add(ring.records()));
    });
    events::for_each(|ring| lost = lost.wrapping_add(ring.records()));
    LOST_IO.add(lost, Relaxed);
}

/// Stops the trace and returns its last figures. The threads of the trace do the work, and
/// do it to the end whatever becomes of the caller, who waits as long as they get on.
pub(crate) fn stop() -> Result<Status> {
    permission::need()?;
    let session = loop {
        let seen = changes::seen();
        match end() {
            Err(EBUSY) => changes::wait(seen, PATIENCE).map_err(in_progress)?,
            other => break other?,
        }
    };
    loop {
        let seen = changes::seen();
        let (ended, status) = with_control(|control| {
            if control.session != session {
                return Err(ENODATA);
            }
            Ok((matches!(control.mode, Mode::Off), control.status))
        })??;
        if ended {
            return match status.state {
                bindings::VMTRACE_STATE_FAILED => Err(EIO),
                _ => Ok(Status(status)),
            };
        }
        // What is done before nothing is traced any more has its own limits.
        let patience = match window::HALTED.load(Relaxed) {
            true => PATIENCE,
            false => 0,
        };
        changes::wait(seen, patience).map_err(in_progress)?;
    }
}

/// What STOP gives if kvmtraced does not get on.
fn in_progress(e: Error) -> Error {
    match e {
        ETIMEDOUT if ERROR.load(Relaxed) != 0 => EIO,
        ETIMEDOUT => EINPROGRESS,
        e => e,
    }
}

/// Audits the trace that is on; it does not end meanwhile. ENODATA if there is none
/// or it has ended by itself, ENODEV if there can be none.
///
/// # Safety
///
/// `a` is valid, and its list has as much room as it says. No lock of the hooks is
/// held.
#[export]
pub unsafe extern "C" fn vmtrace_rs_audit(a: *mut bindings::vmtrace_audit) -> c_int {
    if let Err(e) = with_control(|_| ()) {
        return e.to_errno();
    }
    window::steadily(|| {
        if is_on() && ERROR.load(Relaxed) == 0 {
            // SAFETY: By the caller's promise.
            audit::run(unsafe { &mut *a });
            return 0;
        }
        ENODATA.to_errno()
    })
}

/// Whether a trace is on and STOP has not been called.
fn is_on() -> bool {
    with_control(|control| matches!(control.mode, Mode::Early(_) | Mode::On)) == Ok(true)
}

impl Control {
    /// The number of the trace that is on, if it was made with this flag.
    fn session_with(&self, flag: u32) -> Result<u64> {
        if !matches!(self.mode, Mode::On) || ERROR.load(Relaxed) != 0 {
            return Err(ENODATA);
        }
        match self.status.flags & flag {
            0 => Err(EOPNOTSUPP),
            _ => Ok(self.session),
        }
    }
}

/// The number of the trace that is on, if its windows begin and end on request.
pub(crate) fn pausable() -> Result<u64> {
    with_control(|control| control.session_with(bindings::VMTRACE_PAUSABLE))?
}

/// For the thread of the trace: does `f` while nobody changes the size of the set, which `f` gets.
/// `None` if the trace is to end: whoever changes the size may wait for the output.
pub(crate) fn while_sized<R>(f: impl FnOnce(u32) -> R) -> Option<R> {
    let _resizing = loop {
        match RESIZING.try_lock() {
            Some(guard) => break guard,
            None if recall::ending() => return None,
            None => fsleep(Delta::from_millis(1)),
        }
    };
    Some(f(hot::with(0, |refs| refs.common.set.size() as u32)))
}

/// Begins the next piece of the trace in another file.
///
/// # Safety
///
/// No call of `fdget_pos()` is active on this thread, as in an ioctl.
pub(crate) unsafe fn rotate(asked: &Rotate) -> Result {
    let r = &asked.0;
    permission::need()?;
    if !r.output.contains(&0) {
        return Err(EINVAL);
    }
    // SAFETY: By the caller's promise.
    let sink = unsafe { Sink::open(r.out_fd) }?;
    // Asked for in the trace that was looked at.
    let turn = with_control(|control| {
        control.session_with(bindings::VMTRACE_PIECE)?;
        rotate::ask(sink, r.output)
    })??;
    kick();
    rotate::wait(turn)
}

/// What STATUS is to call the output from here on.
pub(crate) fn rename(output: &[c_char; 256]) {
    let _ = with_control(|control| set_output(&mut control.status, output));
}

/// Whether this task is of a tree that is traced.
fn in_tree(control: &mut Control) -> bool {
    matches!(control.mode, Mode::On)
        // Any task can give itself a name.
        && matches!(
            control.status.scope,
            bindings::VMTRACE_SCOPE_TREE | bindings::VMTRACE_SCOPE_CGROUP
        )
        // SAFETY: The present task is there.
        && unsafe { bindings::vmtrace_task_in_scope(Task::current_raw()) }
}

/// Asks for a window to begin or to end, if this task may do so. Gives the number of the trace, and
/// the step to wait for. All of that is about one trace, for it cannot end meanwhile.
pub(crate) fn ask_window(begin: bool) -> Result<(u64, u64)> {
    // A task of the tree needs no right, so it is not asked for one.
    let may = !with_control(in_tree)? && permission::may_trace();
    with_control(|control| {
        if !may && !in_tree(control) {
            return Err(EPERM);
        }
        Ok((
            control.session_with(bindings::VMTRACE_PAUSABLE)?,
            request::ask(begin),
        ))
    })?
}

/// Changes the size of the set of the trace that is on.
pub(crate) fn resize(n: u32) -> Result {
    permission::need()?;
    with_control(|_| ())?;
    let _resizing = RESIZING.lock();
    // Nor is there a set yet in a trace from boot without references.
    let size = || hot::with(None, |refs| Some(refs.common.set.size() as u32));
    let from = size().filter(|_| is_on()).ok_or(ENODATA)?;
    with_control(|control| {
        let s = &mut control.status;
        if (n as usize) < stay::least(s.first_segment as usize, nr_cpus()) {
            return Err(EINVAL);
        }
        if n > s.evms_max {
            return Err(ENOSPC);
        }
        s.evms_peak = s.evms_peak.max(from).max(n);
        Ok(())
    })??;
    if n == from {
        return Ok(());
    }
    loop {
        let window = window::BEGUN.load(Relaxed);
        // Logged before the change, so that a reader knows why stays end early from here on.
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_log_resize(from, n, 0) };
        let result = window::steadily(|| {
            if !is_on() {
                return Some(Err(ENODATA));
            }
            // One that has begun meanwhile need not have that event.
            let same = window == window::BEGUN.load(Relaxed);
            same.then(|| members::resize(from, n))
        });
        if result == Some(Ok(())) {
            return Ok(());
        }
        // SAFETY: The context may sleep.
        unsafe { bindings::vmtrace_log_resize(n, size().unwrap_or(from), 0) };
        if let Some(result) = result {
            return result;
        }
    }
}

/// Changes which references are recorded.
pub(crate) fn filter(asked: &Filter) -> Result {
    permission::need()?;
    let program = Program::new(asked)?;
    // No checkpoint describes the filter meanwhile.
    let _resizing = RESIZING.lock();
    window::steadily(|| {
        with_control(|control| control.session_with(bindings::VMTRACE_FILTERED))??;
        filter::change(program)
    })
}

/// Gives the counts of the trace that is on.
pub(crate) fn counts(mut asked: Asked) -> Result<Asked> {
    permission::need()?;
    let session = || with_control(|control| control.session_with(bindings::VMTRACE_COUNTED))?;
    let before = session()?;
    counts::read(&mut asked.0)?;
    // The counts of a trace that has ended meanwhile are not complete.
    match session()? {
        now if now == before => Ok(asked),
        _ => Err(ENODATA),
    }
}

/// Gives the figures of the rings of the trace that is on, whether or not its output has failed.
pub(crate) fn ring_figures(mut asked: AskedRings) -> Result<AskedRings> {
    permission::need()?;
    let trace = || {
        with_control(|control| match control.mode {
            Mode::Off | Mode::Starting => Err(ENODATA),
            // The rings are freed.
            _ if control.writer == Writer::Closing => Err(ENODATA),
            _ => Ok((control.session, control.status.uuid)),
        })?
    };
    let (session, uuid) = trace()?;
    asked.0.uuid = uuid;
    // The figures of a trace that has ended meanwhile are not complete.
    match (rings::read(&mut asked.0)?, trace()?) {
        (true, (now, _)) if now == session => Ok(asked),
        _ => Err(ENODATA),
    }
}

/// Brings the figures up to date.
fn fill(s: &mut bindings::vmtrace_status) {
    s.size = size_of::<bindings::vmtrace_status>() as u32;
    s.evms_min = evms_min();
    s.nr_cpus = nr_cpus() as u32;
    s.last_seq = last_seq();
    s.refs = REFS.load(Relaxed);
    s.events = EVENT_RECORDS.load(Relaxed);
    s.packets = PACKETS.load(Relaxed);
    s.bytes = BYTES.load(Relaxed);
    s.stored = STORED.load(Relaxed);
    s.piece = rotate::PIECE.load(Relaxed);
    s.piece_bytes = rotate::PIECE_BYTES.load(Relaxed);
    s.lost_io = LOST_IO.load(Relaxed);
    s.unaudited = window::UNAUDITED.load(Relaxed);
    s.waits = WAITS.load(Relaxed);
    s.mms = MMS.load(Relaxed);
    // SAFETY: It reads words of each CPU.
    s.ran = unsafe { bindings::vmtrace_ran_sum() };
    s.windows_begun = window::BEGUN.load(Relaxed);
    s.windows_ended = window::ENDED.load(Relaxed);
    s.lost_full = 0;
    s.lost_atomic = 0;
    // Once the trace has failed, what was not written will not be.
    let failed = ERROR.load(Relaxed) != 0;
    if failed {
        s.lost_io = s.lost_io.wrapping_add(HELD.load(Relaxed));
    }
    let mut count = |r: &Ring| {
        s.lost_full = s.lost_full.wrapping_add(r.had.lost_full);
        s.lost_atomic = s.lost_atomic.wrapping_add(r.had.lost_atomic);
        if failed {
            s.lost_io = s.lost_io.wrapping_add(r.records());
        }
    };
    events::for_each(|ring| count(ring));
    hot::with((), |refs| {
        refs.for_each(|ring| count(ring));
        let done = refs.done();
        s.admissions = done.admissions;
        s.aborted = done.aborted.wrapping_add(NUMBERS.skipped());
        s.renewed = done.renewed;
        s.chances = done.chances;
        s.left_out = done.left_out;
        s.members = refs.members();
        s.members_max = refs.peak.load(Relaxed);
        s.funny = refs.funny.load(Relaxed);
        s.stuck = refs.stuck.load(Relaxed).wrapping_add(NUMBERS.missed());
        s.audits = refs.audits.load(Relaxed);
        s.dangling = refs.dangling.load(Relaxed);
        s.miscounted = refs.miscounted.load(Relaxed);
        s.uncovered = refs.uncovered.load(Relaxed);
    });
    scopes::fill(s);
    s.evms_peak = s.evms_peak.max(s.evms_size);
}

/// The figures of the trace that is on, or of the last one. It waits for nobody. Who may not trace does
/// not learn which process is traced, or what its user calls the output.
pub(crate) fn status() -> Result<Status> {
    let mut status = present()?;
    if !permission::may_know() {
        status.0.pid = 0;
        status.0.scope_name = [0; 256];
        status.0.output = [0; 256];
    }
    Ok(status)
}

fn present() -> Result<Status> {
    with_control(|control| {
        let s = &mut control.status;
        s.size = size_of::<bindings::vmtrace_status>() as u32;
        s.evms_min = evms_min();
        s.nr_cpus = nr_cpus() as u32;
        let state = match control.mode {
            Mode::Off | Mode::Starting => return Status(*s),
            Mode::Ending => bindings::VMTRACE_STATE_ENDING,
            _ if ERROR.load(Relaxed) != 0 => bindings::VMTRACE_STATE_FAILED,
            Mode::Early(_) => bindings::VMTRACE_STATE_EARLY,
            Mode::On => bindings::VMTRACE_STATE_ON,
        };
        if control.writer != Writer::Closing {
            fill(s);
            s.stop_time = clock();
            s.error = -ERROR.load(Relaxed);
        }
        let mut status = *s;
        status.state = state;
        Status(status)
    })
}
