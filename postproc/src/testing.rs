//! Artificial traces, for tests and experiments.
//!
//! [`TraceBuilder`] behaves like the kernel. It keeps an EVMS of N pages in first-in,
//! first-out order. It writes a record when its stay and all earlier stays have ended. Its
//! traces have streams for each CPU, packets, and an account at the end. Some methods
//! damage a trace on purpose; their documentation begins with "Spoils".
//!
//! With [`TraceBuilder::several_sets`], address spaces can have an EVMS of their own. Methods that
//! name no address space are about the set of the last admission.
//!
//! With [`TraceBuilder::filter`], records are left out.
//!
//! [`TraceBuilder::in_pieces`] writes the trace in pieces, as a kernel does that rotates its output.

mod pieces;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Write};
use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;

use crate::canon::PageMode;
use crate::check::{CheckOptions, CheckReport, Checker};
use crate::pipeline::{self, Unwatched};
pub use crate::trace::mend_checksums;
use crate::trace::wire::{
    EARLY_NS, EVENT_SIZE, HEAD_SIZE, HEADER_SIZE, KEEPLEFT, NO_OFFSET, NO_VTIME, REF_SIZE,
};
use crate::trace::{FileId, RegionBody, Trace, Why};
use crate::units::{Access, Prot};

use pieces::Pieces;

macro_rules! put {
    ($b:expr, $t:ty, $f:ident, u64, $v:expr) => {
        LE::write_u64(&mut $b[offset_of!($t, $f)..], $v)
    };
    ($b:expr, $t:ty, $f:ident, i64, $v:expr) => {
        LE::write_i64(&mut $b[offset_of!($t, $f)..], $v)
    };
    ($b:expr, $t:ty, $f:ident, u32, $v:expr) => {
        LE::write_u32(&mut $b[offset_of!($t, $f)..], $v)
    };
    ($b:expr, $t:ty, $f:ident, i32, $v:expr) => {
        LE::write_i32(&mut $b[offset_of!($t, $f)..], $v)
    };
    ($b:expr, $t:ty, $f:ident, u16, $v:expr) => {
        LE::write_u16(&mut $b[offset_of!($t, $f)..], $v)
    };
}

/// The packet of a stream that is being filled.
#[derive(Clone, Default)]
struct Ring {
    kind: u32,
    cpu: u32,
    set: u32,
    /// The most that a record may be earlier than the first one of its packet.
    early: u64,
    packets: u64,
    content: Vec<u8>,
    records: u32,
    first_seq: u64,
    last_seq: u64,
    first_time: u64,
    last_time: u64,
    lost_full: u64,
    window: u32,
    codec: u16,
    raw_size: u32,
}

struct Slot {
    ordinal: u64,
    seq: u64,
    time: u64,
    vtime: u64,
    page: u64,
    mm: u32,
    tid_cpu: u32,
    stay: u32,
    frame: Option<u32>,
    closed: bool,
    aborted: bool,
    /// Given up before it evicted anything.
    slow: bool,
    /// The filter leaves it out.
    left_out: bool,
}

/// What a filter of a [`TraceBuilder`] judges.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// The address space.
    pub mm: u32,
    /// The address.
    pub address: u64,
    /// The kind of access.
    pub access: Access,
}

/// The filter that is in force.
struct Filtering {
    payload: Vec<u8>,
    keeps: Box<dyn Fn(Asked) -> bool>,
}

/// One EVMS.
struct Evms {
    slots: VecDeque<Slot>,
    members: HashMap<(u32, u64), u64>,
    next_ordinal: u64,
    /// Address spaces that use it.
    users: u32,
}

impl Default for Evms {
    fn default() -> Self {
        Evms {
            slots: VecDeque::new(),
            members: HashMap::new(),
            next_ordinal: 1,
            users: 0,
        }
    }
}

impl Evms {
    fn slot(&mut self, ordinal: u64) -> Option<&mut Slot> {
        let first = self.slots.front()?.ordinal;
        self.slots.get_mut(ordinal.checked_sub(first)? as usize)
    }
}

type ChangeStatus = Box<dyn FnOnce(&mut uapi::vmtrace_status)>;

/// Writes a trace record by record.
///
/// Every record takes a tenth of a microsecond.
pub struct TraceBuilder<W: Write = Vec<u8>> {
    out: W,
    failed: io::Result<()>,
    header: uapi::vmtrace_header,
    header_written: bool,
    /// Those of set 0 and of events, and behind these those of other sets as they are needed.
    rings: Vec<Ring>,
    set_rings: HashMap<(u32, u32), usize>,
    seq: u64,
    time: u64,
    /// See [`TraceBuilder::read_early`] and [`TraceBuilder::end_astray`].
    early: u64,
    astray: i64,
    sets: BTreeMap<u32, Evms>,
    /// By address space that is not in set 0.
    set_of: HashMap<u32, u32>,
    /// The set of the last admission.
    set: u32,
    filter: Option<Filtering>,
    members: u64,
    frame: Option<u32>,
    flags: u32,
    /// By thread that is not the first of its process: that.
    tgids: HashMap<u32, u32>,
    /// By thread: its virtual time.
    vtimes: HashMap<u32, u64>,
    status: uapi::vmtrace_status,
    /// The window's number, the time when it began, and the figures and the sequence number at
    /// that time.
    window: u32,
    before: (u64, uapi::vmtrace_status, u64),
    window_packets: u64,
    on_status: Option<ChangeStatus>,
    pieces: Option<Box<Pieces>>,
}

/// Time from one record to the next.
const STEP_NS: u64 = 100;
/// The same in a task's virtual time.
const STEP_TICKS: u64 = 10;

const UUID: [u8; 16] = *b"a synthetic trac";

impl TraceBuilder {
    /// A trace in memory, with `cpus` CPUs and an EVMS of `n` pages.
    pub fn new(cpus: u32, n: u32) -> Self {
        Self::to(Vec::new(), cpus, n)
    }

    /// A small program on two CPUs, which has referenced eight pages twice.
    pub fn sample() -> Self {
        let mut builder = Self::new(2, 4);
        builder.program();
        for i in 0..16 {
            builder.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
        }
        builder
    }

    /// The same, in which half of the pages are recorded at first, and then the other half.
    pub fn sample_of_filtered() -> Self {
        let mut builder = Self::new(2, 4);
        builder.filtered();
        builder.program();
        for half in 0..2 {
            let expr = ["addr < 0x5000", "addr >= 0x5000"][half];
            builder.filter(0, expr, move |a| (a.address < 0x5000) == (half == 0));
            for i in 0..16 {
                builder.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
            }
        }
        builder
    }

    /// The program of [`TraceBuilder::sample`] in packets of a few records.
    pub fn sample_of_many_packets() -> Self {
        let mut builder = Self::new(2, 4);
        builder.header_mut().buffer_size = 320;
        builder.program();
        for i in 0..160 {
            builder.touch((i / 3) as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
            if i % 10 == 0 {
                builder.protect(0, 10, 1, 0x8000, 0x9000, Prot(3));
            }
        }
        builder
    }

    /// The program of [`TraceBuilder::sample`] in a trace of regions: two reports, 100 ms apart, of 20
    /// looks. What shows accesses is `by`, `VMTRACE_BY_*`.
    pub fn sample_of_regions(by: u32) -> Self {
        let mut builder = Self::new(2, 64);
        builder.sample_regions(by);
        builder.program();
        let (writes, cpus) = match by {
            uapi::VMTRACE_BY_FAULT => (4, 1),
            _ => (0, 0),
        };
        for (half, age) in [(0x5000, 0), (0x4000, 1)] {
            builder.leap(100_000_000);
            let region = |start, end, accesses: u32| RegionBody {
                start,
                end,
                looks: 20,
                accesses,
                writes: accesses.min(writes),
                age,
                cpus: if accesses > 0 { cpus } else { 0 },
                index: 0,
                regions: 0,
            };
            let regions = [
                region(0x1000, 0x2000, 20),
                region(0x2000, half, 10),
                region(half, 0x9000, 0),
            ];
            builder.report(1, 1, &regions);
        }
        builder
    }

    /// Ends the trace and gives its bytes.
    pub fn finish(self) -> Vec<u8> {
        self.finish_to().unwrap_or_default()
    }
}

impl<W: Write> TraceBuilder<W> {
    /// A trace that is written to `out` as it grows.
    pub fn to(out: W, cpus: u32, n: u32) -> Self {
        let mut header = uapi::vmtrace_header {
            magic: uapi::VMTRACE_MAGIC,
            version: uapi::VMTRACE_VERSION,
            header_size: uapi::VMTRACE_HEADER_SIZE,
            uuid: UUID,
            start_time: 1_000,
            realtime_offset: 1_700_000_000_000_000_000,
            evms_size: n,
            scope: uapi::VMTRACE_SCOPE_TREE,
            scope_pid: 10,
            page_shift: 12,
            nr_cpus: cpus,
            clock: uapi::VMTRACE_CLOCK_MONOTONIC,
            buffer_size: 1 << 16,
            nr_buffers: 8,
            stay_shift: uapi::VMTRACE_STAY_SHIFT,
            classes: uapi::VMTRACE_CLASSES,
            ..Default::default()
        };
        for (to, from) in header.release.iter_mut().zip(b"7.3.0-synthetic") {
            *to = *from as _;
        }
        for (to, from) in header.arch.iter_mut().zip(b"x86_64") {
            *to = *from as _;
        }
        let rings = (0..cpus * 2)
            .map(|i| Ring {
                kind: i / cpus + 1,
                cpu: i % cpus,
                early: if i < cpus && cpus > 1 { EARLY_NS } else { 0 },
                ..Ring::default()
            })
            .collect();
        TraceBuilder {
            out,
            failed: Ok(()),
            header,
            header_written: false,
            rings,
            set_rings: HashMap::new(),
            seq: 0,
            time: 1_000,
            early: 0,
            astray: 0,
            sets: BTreeMap::new(),
            set_of: HashMap::new(),
            set: 0,
            filter: None,
            members: 0,
            frame: None,
            flags: 0,
            tgids: HashMap::new(),
            vtimes: HashMap::new(),
            status: uapi::vmtrace_status::default(),
            window: 0,
            before: Default::default(),
            window_packets: 0,
            on_status: None,
            pieces: None,
        }
    }

    /// The header, to be changed before the first packet is full.
    pub fn header_mut(&mut self) -> &mut uapi::vmtrace_header {
        &mut self.header
    }

    /// Each address space may have an EVMS of its own: see [`TraceBuilder::set`].
    pub fn several_sets(&mut self) {
        self.header.sets = uapi::VMTRACE_SETS_PROCESS;
    }

    /// An address space is in this set from here on, as the kernel says right after it has given
    /// the address space its number.
    pub fn set(&mut self, cpu: u32, tid: u32, mm: u32, set: u32) {
        self.set_with(cpu, tid, mm, set, 0);
    }

    /// The same of a control group's set.
    pub fn set_with(&mut self, cpu: u32, tid: u32, mm: u32, set: u32, cgroup: u64) {
        self.set_quietly(mm, set);
        self.set_event(cpu, tid, mm, set, cgroup);
    }

    /// Spoils: the same without an event.
    pub fn set_quietly(&mut self, mm: u32, set: u32) {
        self.set_of.insert(mm, set);
        let is_new = !self.sets.contains_key(&set);
        let evms = self.sets.entry(set).or_default();
        evms.users += 1;
        if set != 0 {
            self.status.sets_made += u64::from(is_new);
            let used = self
                .sets
                .iter()
                .filter(|(set, evms)| **set != 0 && evms.users > 0);
            let used = used.count() as u64;
            self.status.sets_max = self.status.sets_max.max(used);
        }
    }

    /// Spoils: the same without a set.
    pub fn set_event(&mut self, cpu: u32, tid: u32, mm: u32, set: u32, cgroup: u64) {
        type S = uapi::vmtrace_ev_set;
        let mut p = [0; size_of::<S>()];
        put!(p, S, set, u32, set);
        put!(p, S, cgroup, u64, cgroup);
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_SET, &p);
    }

    /// An address space for which there is no memory for a set of its own.
    pub fn share_set(&mut self) {
        self.status.sets_shared += 1;
    }

    fn set_of(&self, mm: u32) -> u32 {
        self.set_of.get(&mm).copied().unwrap_or_default()
    }

    fn evms(&mut self) -> &mut Evms {
        self.sets.entry(self.set).or_default()
    }

    /// The number of the ring that has a CPU's references to the present set.
    fn ring(&mut self, cpu: u32) -> usize {
        let set = self.set;
        if set == 0 {
            return cpu as usize;
        }
        let next = self.rings.len();
        let ring = *self.set_rings.entry((set, cpu)).or_insert(next);
        if ring == next {
            self.rings.push(Ring {
                kind: uapi::VMTRACE_STREAM_REF,
                cpu,
                set,
                early: self.rings[0].early,
                ..Ring::default()
            });
        }
        ring
    }

    /// From here on records contain virtual time, with this number of ticks in a millisecond.
    /// At each record, its task has spent ten ticks more than at its previous record.
    pub fn virtual_time(&mut self, khz: u32) {
        self.header.features |= u64::from(uapi::VMTRACE_VTIME);
        self.header.vtime_clock = uapi::VMTRACE_VTIME_TSC;
        self.header.vtime_khz = khz;
    }

    /// Sets a task's virtual time. Setting it back damages the trace.
    pub fn set_vtime(&mut self, tid: u32, ticks: u64) {
        self.vtimes.insert(tid, ticks);
    }

    /// References carry offsets from now on: eight times their sequence number.
    pub fn with_offsets(&mut self) {
        self.header.features |= u64::from(uapi::VMTRACE_OFFSETS);
    }

    fn has_offsets(&self) -> bool {
        self.header.features & u64::from(uapi::VMTRACE_OFFSETS) != 0
    }

    fn has_vtime(&self) -> bool {
        self.header.features & u64::from(uapi::VMTRACE_VTIME) != 0
    }

    fn spend(&mut self, tid: u32) -> u64 {
        let vtime = self.vtimes.entry(tid).or_default();
        *vtime += STEP_TICKS;
        *vtime
    }

    /// Changes the account at the end.
    pub fn on_status(&mut self, change: impl FnOnce(&mut uapi::vmtrace_status) + 'static) {
        self.on_status = Some(Box::new(change));
    }

    /// The last sequence number.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// The time of the last record.
    pub fn now(&self) -> u64 {
        self.time
    }

    /// Pages admitted so far.
    pub fn admissions(&self) -> u64 {
        self.status.admissions
    }

    fn step(&mut self) -> (u64, u64) {
        self.seq += 1;
        self.time += STEP_NS;
        (self.seq, self.time)
    }

    /// The same for an admission.
    fn draw(&mut self) -> (u64, u64) {
        let (seq, time) = self.step();
        (seq, time.saturating_sub(std::mem::take(&mut self.early)))
    }

    /// The CPU of the next admission was interrupted for so long, between its look at the time and
    /// its number.
    pub fn read_early(&mut self, ns: u64) {
        self.early = ns;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_ok() {
            self.failed = self.out.write_all(bytes);
        }
        if let Some(pieces) = &mut self.pieces {
            pieces.write(bytes);
        }
        self.status.bytes += bytes.len() as u64;
    }

    fn write_header(&mut self) {
        if std::mem::replace(&mut self.header_written, true) {
            return;
        }
        let b = self.header_bytes();
        self.write(&b);
    }

    fn header_bytes(&self) -> Vec<u8> {
        type H = uapi::vmtrace_header;
        let h = self.header;
        let mut b = vec![0; HEADER_SIZE];
        put!(b, H, magic, u64, h.magic);
        put!(b, H, version, u32, h.version);
        put!(b, H, header_size, u32, h.header_size);
        b[offset_of!(H, uuid)..][..16].copy_from_slice(&h.uuid);
        put!(b, H, start_time, u64, h.start_time);
        put!(b, H, realtime_offset, i64, h.realtime_offset);
        put!(b, H, features, u64, h.features);
        put!(b, H, evms_size, u32, h.evms_size);
        put!(b, H, first_segment, u32, h.first_segment);
        put!(b, H, policy, u32, h.policy);
        put!(b, H, scope, u32, h.scope);
        put!(b, H, scope_pid, i32, h.scope_pid);
        put!(b, H, page_shift, u32, h.page_shift);
        put!(b, H, nr_cpus, u32, h.nr_cpus);
        put!(b, H, clock, u32, h.clock);
        put!(b, H, forced_off, u32, h.forced_off);
        put!(b, H, loss_mode, u32, h.loss_mode);
        put!(b, H, buffer_size, u32, h.buffer_size);
        put!(b, H, nr_buffers, u32, h.nr_buffers);
        put!(b, H, stay_shift, u32, h.stay_shift);
        put!(b, H, debug_break, u32, h.debug_break);
        put!(b, H, vtime_clock, u32, h.vtime_clock);
        put!(b, H, vtime_khz, u32, h.vtime_khz);
        put!(b, H, vtime_skip, u32, h.vtime_skip);
        put!(b, H, classes, u32, h.classes);
        put!(b, H, batch, u32, h.batch);
        put!(b, H, sets, u32, h.sets);
        put!(b, H, windows, u32, h.windows);
        put!(b, H, window_time, u64, h.window_time);
        put!(b, H, window_refs, u64, h.window_refs);
        put!(b, H, warmup, u64, h.warmup);
        put!(b, H, skip, u64, h.skip);
        type S = uapi::vmtrace_sampling;
        let sampling = &mut b[offset_of!(H, sampling)..];
        put!(sampling, S, sample, u64, h.sampling.sample);
        put!(sampling, S, aggregate, u64, h.sampling.aggregate);
        put!(sampling, S, update, u64, h.sampling.update);
        put!(sampling, S, min_regions, u32, h.sampling.min_regions);
        put!(sampling, S, max_regions, u32, h.sampling.max_regions);
        put!(sampling, S, by, u32, h.sampling.by);
        for (i, &c) in h.release.iter().enumerate() {
            b[offset_of!(H, release) + i] = c as u8;
        }
        for (i, &c) in h.arch.iter().enumerate() {
            b[offset_of!(H, arch) + i] = c as u8;
        }
        let crc = crc32c::crc32c(&b[..offset_of!(H, crc)]);
        put!(b, H, crc, u32, crc);
        b
    }

    fn flush(&mut self, ring: usize) {
        self.write_header();
        if self.rings[ring].kind == uapi::VMTRACE_STREAM_REF {
            // A file has no references of the next piece.
            self.switch();
        }
        let r = &mut self.rings[ring];
        if r.records == 0 {
            return;
        }
        r.window = self.window;
        let content = std::mem::take(&mut r.content);
        match r.kind {
            uapi::VMTRACE_STREAM_REF => self.status.refs += u64::from(r.records),
            _ => self.status.events += u64::from(r.records),
        }
        let packed = match &mut self.pieces {
            Some(pieces) => pieces.pack(r.kind, &content),
            None => None,
        };
        (r.codec, r.raw_size) = packed.as_ref().map_or((0, 0), |packed| packed.0);
        let stored = packed.as_ref().map_or(&content, |packed| &packed.1);
        let head = packet_head(&self.header.uuid, r, stored);
        r.packets += 1;
        r.records = 0;
        self.status.packets += 1;
        self.status.bytes += (content.len() - stored.len()) as u64;
        if let Some(pieces) = &mut self.pieces {
            let is_event = r.kind == uapi::VMTRACE_STREAM_EVENT;
            pieces.packet(is_event, r.first_seq..r.last_seq + 1, &head, stored);
        }
        self.write(&head);
        self.write(stored);
        // Keep the allocation.
        self.rings[ring].content = content;
        self.rings[ring].content.clear();
    }

    fn push(&mut self, ring: usize, size: usize, seq: u64, time: u64) -> &mut Ring {
        let room = self.header.buffer_size as usize - HEAD_SIZE;
        let r = &self.rings[ring];
        let far = |now: u64, first: u64| now.wrapping_sub(first) > u64::from(u32::MAX);
        let out_of_reach = r.kind == uapi::VMTRACE_STREAM_REF
            && r.records > 0
            && (far(seq, r.first_seq) || far(time, r.first_time));
        if r.content.len() + size > room || out_of_reach {
            self.flush(ring);
        }
        let r = &mut self.rings[ring];
        if r.records == 0 {
            (r.first_seq, r.first_time) = (seq, time.saturating_sub(r.early));
            r.last_time = 0;
        }
        (r.last_seq, r.last_time) = (seq, r.last_time.max(time));
        r.records += 1;
        r
    }

    fn retire(&mut self, cpu: u32) {
        let ring = self.ring(cpu);
        while self.evms().slots.front().is_some_and(|s| s.closed) {
            let Some(slot) = self.evms().slots.pop_front() else {
                return;
            };
            if slot.aborted {
                continue;
            }
            let keeps = self.header.debug_break & KEEPLEFT != 0;
            if slot.left_out && !keeps {
                self.status.left_out += 1;
                continue;
            }
            let mark = match slot.left_out {
                true => u64::from(uapi::VMTRACE_REF_LEFT),
                false => 0,
            };
            let page = slot.page | mark;
            let vtime = self.has_vtime().then_some(slot.vtime.to_le_bytes());
            let seen =
                slot.page & u64::from(uapi::VMTRACE_REF_KIND) == u64::from(uapi::VMTRACE_REF_SEEN);
            let within = match seen {
                true => NO_OFFSET,
                false => slot.seq * 8 % 4096,
            };
            let within = self.has_offsets().then_some(within.to_le_bytes());
            let size = REF_SIZE + 8 * [vtime, within].iter().flatten().count();
            let r = self.push(ring, size, slot.seq, slot.time);
            type R = uapi::vmtrace_ref;
            let mut b = [0; REF_SIZE];
            put!(b, R, page, u64, page);
            put!(b, R, seq, u32, (slot.seq.wrapping_sub(r.first_seq)) as u32);
            put!(
                b,
                R,
                time,
                u32,
                (slot.time.wrapping_sub(r.first_time)) as u32
            );
            put!(b, R, tid_cpu, u32, slot.tid_cpu);
            put!(b, R, mm, u32, slot.mm);
            put!(b, R, stay, u32, slot.stay);
            let pfn = slot.frame.unwrap_or((slot.page >> 12) as u32);
            put!(b, R, pfn, u32, pfn);
            r.content.extend_from_slice(&b);
            r.content.extend(vtime.iter().chain(&within).flatten());
            if let Some(pieces) = &mut self.pieces {
                pieces.reference(slot.page);
            }
        }
    }

    fn close_ordinal(&mut self, ordinal: u64, why: Why, now: u64) {
        let evms = self.sets.entry(self.set).or_default();
        let Some(slot) = evms.slot(ordinal).filter(|s| !s.closed) else {
            return;
        };
        slot.closed = true;
        slot.stay = u32::try_from(now.saturating_sub(slot.time) >> uapi::VMTRACE_STAY_SHIFT)
            .unwrap_or(u32::MAX);
        slot.page |= (why as u64) << uapi::VMTRACE_REF_WHY_SHIFT;
        let key = (slot.mm, slot.page >> 12);
        if evms.members.get(&key) == Some(&ordinal) {
            evms.members.remove(&key);
            self.members -= 1;
        }
    }

    /// Takes an admission's number and evicts the member in its place, with the rest of the
    /// batch: the members next to it that lie in the same address space, in four page tables at most.
    fn reserve(&mut self) -> (u64, u64, u64) {
        let (ordinal, seq, time) = self.number();
        let n = u64::from(self.header.evms_size);
        if let Some(mut victim) = ordinal.checked_sub(n) {
            let place = |slot: &mut Slot| (!slot.closed).then_some((slot.mm, slot.page >> 21));
            let mut tables: Vec<_> = self
                .evms()
                .slot(victim)
                .and_then(place)
                .into_iter()
                .collect();
            let end = time.saturating_add_signed(std::mem::take(&mut self.astray));
            self.close_ordinal(victim, Why::Evicted, end);
            // What a slow CPU has left.
            while self.evms().slot(victim).is_some_and(|s| s.slow) && victim > n {
                victim -= n;
                self.close_ordinal(victim, Why::Evicted, end);
            }
            for next in (victim + 1..ordinal).take(self.header.batch.saturating_sub(1) as usize) {
                let (Some(table), Some(&(mm, _))) =
                    (self.evms().slot(next).and_then(place), tables.first())
                else {
                    continue;
                };
                if !tables.contains(&table) && table.0 == mm && tables.len() < 4 {
                    tables.push(table);
                }
                if tables.contains(&table) {
                    self.close_ordinal(next, Why::Evicted, end);
                }
            }
        }
        (ordinal, seq, time)
    }

    fn number(&mut self) -> (u64, u64, u64) {
        let (seq, time) = self.draw();
        let evms = self.evms();
        let ordinal = evms.next_ordinal;
        evms.next_ordinal += 1;
        (ordinal, seq, time)
    }

    /// Spoils: what the next admission evicts has an end that is so much later.
    pub fn end_astray(&mut self, ns: i64) {
        self.astray = ns;
    }

    /// A read of an address by a thread. A page that is in the EVMS makes no
    /// record.
    pub fn touch(&mut self, cpu: u32, tid: u32, mm: u32, address: u64) {
        self.touch_as(cpu, tid, mm, address, Access::Read);
    }

    /// Sets the page frame of all pages that are admitted from now on. Without it, each page has
    /// the frame with the number of the virtual page.
    pub fn frame(&mut self, frame: u32) {
        self.frame = Some(frame);
    }

    /// An access of an address by a thread.
    pub fn touch_as(&mut self, cpu: u32, tid: u32, mm: u32, address: u64, access: Access) {
        let key = (mm, address >> 12);
        self.set = self.set_of(mm);
        let evms = self.evms();
        if let Some(&ordinal) = evms.members.get(&key) {
            if access == Access::Write {
                if let Some(slot) = evms.slot(ordinal) {
                    slot.page |= u64::from(uapi::VMTRACE_REF_DIRTIED);
                }
            }
            return;
        }
        self.admit(cpu, tid, mm, address, access);
    }

    fn admit(&mut self, cpu: u32, tid: u32, mm: u32, address: u64, access: Access) {
        self.set = self.set_of(mm);
        let (ordinal, seq, time) = self.reserve();
        let flags = match access {
            Access::Read => uapi::VMTRACE_REF_READ,
            Access::Write => uapi::VMTRACE_REF_WRITE | uapi::VMTRACE_REF_DIRTIED,
            Access::Exec => uapi::VMTRACE_REF_EXEC,
            Access::Seen => uapi::VMTRACE_REF_SEEN,
        };
        let vtime = self.spend(tid);
        let frame = self.frame;
        let asked = Asked {
            tid,
            cpu,
            mm,
            address,
            access,
        };
        let filter = self.filter.as_ref();
        let left_out = filter.is_some_and(|filter| !(filter.keeps)(asked));
        self.evms().slots.push_back(Slot {
            ordinal,
            seq,
            time,
            vtime,
            page: (address & !0xfff) | u64::from(flags),
            mm,
            tid_cpu: tid | cpu << uapi::VMTRACE_TID_BITS,
            stay: 0,
            frame,
            closed: false,
            aborted: false,
            slow: false,
            left_out,
        });
        self.add_member((mm, address >> 12), ordinal);
        self.status.admissions += 1;
        self.status.members_max = self.status.members_max.max(self.members);
        self.retire(cpu);
    }

    fn add_member(&mut self, page: (u32, u64), ordinal: u64) {
        let before = self.evms().members.insert(page, ordinal);
        self.members += u64::from(before.is_none());
    }

    /// Continues the stay of the member that is due for eviction: by a renewal, as the kernel does
    /// for a page in a CPU's first segment, or by a second chance.
    pub fn renew(&mut self, cpu: u32, tid: u32, chance: bool) {
        let by = tid | cpu << uapi::VMTRACE_TID_BITS;
        self.go_on(cpu, Some(by), chance);
    }

    /// The same. The record has the thread and the CPU of the reference that began the stay, as those
    /// of the kernel have.
    pub fn renew_own(&mut self, cpu: u32, chance: bool) {
        self.go_on(cpu, None, chance);
    }

    fn go_on(&mut self, cpu: u32, by: Option<u32>, chance: bool) {
        let n = u64::from(self.header.evms_size);
        let evms = self.evms();
        let tail = evms.next_ordinal.saturating_sub(n);
        let Some(slot) = evms.slot(tail).filter(|s| !s.closed) else {
            return;
        };
        let (mm, page, frame, vtime) = (slot.mm, slot.page, slot.frame, slot.vtime);
        let (left_out, tid_cpu) = (slot.left_out, by.unwrap_or(slot.tid_cpu));
        let why = if chance { Why::Chance } else { Why::Renewed };
        let (ordinal, seq, time) = self.number();
        let end = time.saturating_add_signed(std::mem::take(&mut self.astray));
        self.close_ordinal(tail, why, end);
        let flags = match chance {
            true => uapi::VMTRACE_REF_SEEN,
            false => uapi::VMTRACE_REF_CONT,
        };
        self.evms().slots.push_back(Slot {
            ordinal,
            seq,
            time,
            vtime,
            page: (page & !0xfff) | u64::from(flags),
            mm,
            tid_cpu,
            stay: 0,
            frame,
            closed: false,
            aborted: false,
            slow: false,
            left_out,
        });
        self.add_member((mm, page >> 12), ordinal);
        if chance {
            self.status.chances += 1;
        } else {
            self.status.renewed += 1;
        }
        self.retire(cpu);
    }

    /// An admission that is given up.
    pub fn abort(&mut self) {
        let number = self.reserve();
        self.give_up(number, false);
    }

    /// The same of a CPU that is slow. The one with the number N later evicts what this one should
    /// have evicted.
    pub fn abort_slow(&mut self) {
        let number = self.number();
        self.give_up(number, true);
    }

    fn give_up(&mut self, (ordinal, seq, time): (u64, u64, u64), slow: bool) {
        let frame = self.frame;
        self.evms().slots.push_back(Slot {
            ordinal,
            seq,
            time,
            vtime: 0,
            page: 0,
            mm: 0,
            tid_cpu: 0,
            stay: 0,
            frame,
            closed: true,
            aborted: true,
            slow,
            left_out: false,
        });
        self.status.aborted += 1;
    }

    /// Ends the stay of a page.
    pub fn close(&mut self, mm: u32, address: u64, why: Why) {
        self.close_after(mm, address, why, 0);
    }

    /// The same, so much later.
    pub fn close_after(&mut self, mm: u32, address: u64, why: Why, ns: u64) {
        self.set = self.set_of(mm);
        if let Some(&ordinal) = self.evms().members.get(&(mm, address >> 12)) {
            let end = self.time.saturating_add(ns);
            self.close_ordinal(ordinal, why, end);
        }
    }

    fn close_range(&mut self, mm: u32, start: u64, end: u64, why: Why) {
        let inside = |&(m, vpn): &(u32, u64)| m == mm && vpn >= start >> 12 && vpn < end >> 12;
        self.set = self.set_of(mm);
        let mut gone: Vec<u64> = self
            .evms()
            .members
            .iter()
            .filter(|(key, _)| inside(key))
            .map(|(_, &ordinal)| ordinal)
            .collect();
        gone.sort_unstable();
        let now = self.time;
        for ordinal in gone {
            self.close_ordinal(ordinal, why, now);
        }
    }

    /// Sets whether the events that follow describe what existed before the trace.
    pub fn snapshot(&mut self, snapshot: bool) {
        self.flags = if snapshot {
            uapi::VMTRACE_EVF_SNAPSHOT
        } else {
            0
        };
    }

    /// Sets the flags of the events that follow.
    pub fn set_flags(&mut self, flags: u32) {
        self.flags = flags;
    }

    /// An event of any type; `payload` includes the name and its padding.
    pub fn event(&mut self, cpu: u32, tid: u32, mm: u32, number: u32, payload: &[u8]) {
        let (seq, time) = self.step();
        let vtime = match number {
            // The event is about a task that exists already; another task causes it.
            uapi::VMTRACE_EV_TASK => NO_VTIME,
            _ if self.has_vtime() => self.spend(tid),
            _ => 0,
        };
        let head = EVENT_SIZE + if self.has_vtime() { 8 } else { 0 };
        let size = (head + payload.len()).next_multiple_of(8);
        let ring = self.header.nr_cpus as usize + cpu as usize;
        type E = uapi::vmtrace_event;
        let mut b = vec![0; size];
        put!(b, E, type_, u16, number as u16);
        put!(b, E, size, u16, size as u16);
        put!(b, E, flags, u32, self.flags);
        put!(b, E, seq, u64, seq);
        put!(b, E, time, u64, time);
        put!(b, E, tid, u32, tid);
        put!(
            b,
            E,
            tgid,
            u32,
            self.tgids.get(&tid).copied().unwrap_or(tid)
        );
        put!(b, E, mm, u32, mm);
        put!(b, E, cpu, u32, cpu);
        b[EVENT_SIZE..head].copy_from_slice(&vtime.to_le_bytes()[..head - EVENT_SIZE]);
        b[head..head + payload.len()].copy_from_slice(payload);
        if let Some(pieces) = &mut self.pieces {
            pieces.event(&b);
        }
        self.push(ring, size, seq, time)
            .content
            .extend_from_slice(&b);
    }

    /// References may be left out: see [`TraceBuilder::filter`].
    pub fn filtered(&mut self) {
        self.header.features |= u64::from(uapi::VMTRACE_FILTERED);
    }

    /// What is left out is recorded, too, and marked.
    pub fn keep_left_out(&mut self) {
        self.filtered();
        self.header.debug_break |= KEEPLEFT;
    }

    /// The filter of a trace in which references may be left out, from here on. An event has the
    /// expression; `keeps` says which references fit it, as the kernel says it. The event is repeated
    /// in each window that begins, and in each checkpoint.
    pub fn filter(&mut self, cpu: u32, expr: &str, keeps: impl Fn(Asked) -> bool + 'static) {
        let tests = u32::from(!expr.is_empty());
        let payload = filter_bytes(tests, expr.as_bytes());
        self.filter = Some(Filtering {
            payload,
            keeps: Box::new(keeps),
        });
        self.tell_filter(cpu);
    }

    /// Changes what the next references are judged by, without an event.
    pub fn filter_quietly(&mut self, keeps: impl Fn(Asked) -> bool + 'static) {
        let payload = self.filter.take().map_or_else(Vec::new, |f| f.payload);
        self.filter = Some(Filtering {
            payload,
            keeps: Box::new(keeps),
        });
    }

    /// Spoils: the windows and checkpoints that follow do not repeat the event of the filter.
    pub fn silence_filter(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.payload.clear();
        }
    }

    /// Spoils: the newest member's record is marked as left out.
    pub fn mark_last(&mut self) {
        if let Some(slot) = self.evms().slots.back_mut() {
            slot.page |= u64::from(uapi::VMTRACE_REF_LEFT);
        }
    }

    /// The event of the filter that is in force, if there is one.
    fn tell_filter(&mut self, cpu: u32) {
        let payload = self.filter.as_ref().map(|f| f.payload.clone());
        if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
            self.event(cpu, 1, 0, uapi::VMTRACE_EV_FILTER, &payload);
        }
    }

    /// Regions are sampled, and no reference is recorded: each 5 ms a look, each 100 ms a report, and
    /// from 10 to 1000 regions. What shows accesses is `by`, `VMTRACE_BY_*`.
    pub fn sample_regions(&mut self, by: u32) {
        self.header.features |= u64::from(uapi::VMTRACE_REGIONS);
        self.header.sampling = uapi::vmtrace_sampling {
            sample: 5_000_000,
            aggregate: 100_000_000,
            update: 1_000_000_000,
            min_regions: 10,
            max_regions: 1000,
            by,
            change: 0,
        };
    }

    /// A report of an address space. It says itself which regions these are of how many.
    pub fn report(&mut self, cpu: u32, mm: u32, regions: &[RegionBody]) {
        for (index, region) in regions.iter().enumerate() {
            let region = RegionBody {
                index: index as u32,
                regions: regions.len() as u32,
                ..*region
            };
            self.region(cpu, mm, &region);
        }
    }

    /// A region of a report.
    pub fn region(&mut self, cpu: u32, mm: u32, region: &RegionBody) {
        type R = uapi::vmtrace_ev_region;
        let mut p = [0; size_of::<R>()];
        put!(p, R, start, u64, region.start);
        put!(p, R, end, u64, region.end);
        put!(p, R, looks, u32, region.looks);
        put!(p, R, accesses, u32, region.accesses);
        put!(p, R, writes, u32, region.writes);
        put!(p, R, age, u32, region.age);
        put!(p, R, cpus, u64, region.cpus);
        put!(p, R, index, u32, region.index);
        put!(p, R, regions, u32, region.regions);
        self.event(cpu, 0, mm, uapi::VMTRACE_EV_REGION, &p);
    }

    /// A task that existed before the trace, or that gets another name.
    pub fn task(&mut self, cpu: u32, tid: u32, tgid: u32, mm: u32, comm: &str) {
        self.task_of(cpu, (tid, tgid), mm, comm, 0);
    }

    /// The same of a task whose parent is this process.
    pub fn task_of(&mut self, cpu: u32, (tid, tgid): (u32, u32), mm: u32, comm: &str, parent: u32) {
        type T = uapi::vmtrace_ev_task;
        let mut p = [0; size_of::<T>()];
        put!(p, T, tid, u32, tid);
        put!(p, T, tgid, u32, tgid);
        put!(p, T, parent, u32, parent);
        copy_name(&mut p[offset_of!(T, comm)..], comm);
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_TASK, &p);
    }

    /// A thread is in a control group; with the process's id, all threads of the process are.
    pub fn cgroup(&mut self, cpu: u32, ids: (u32, u32), path: &str) {
        self.cgroup_of(cpu, ids, 0, path);
    }

    /// The same of a thread in this address space.
    fn cgroup_of(&mut self, cpu: u32, (tid, tgid): (u32, u32), mm: u32, path: &str) {
        type C = uapi::vmtrace_ev_cgroup;
        let mut p = vec![0; (size_of::<C>() + path.len()).next_multiple_of(8)];
        put!(p, C, tid, u32, tid);
        put!(p, C, tgid, u32, tgid);
        put!(p, C, name_len, u32, path.len() as u32);
        p[size_of::<C>()..][..path.len()].copy_from_slice(path.as_bytes());
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_CGROUP, &p);
    }

    /// Task 10 with address space 1: writable pages at 0x1000 to 0x9000.
    pub fn program(&mut self) {
        self.task(0, 10, 10, 1, "sample");
        self.map_anon(0, 10, 1, 0x1000, 0x9000, Prot(3));
    }

    /// A mapping of any kind.
    #[allow(clippy::too_many_arguments, reason = "a record has so many fields")]
    pub fn map(
        &mut self,
        cpu: u32,
        tid: u32,
        mm: u32,
        range: std::ops::Range<u64>,
        prot: Prot,
        kind: u32,
        flags: u32,
        file: FileId,
        offset: u64,
        name: &str,
    ) {
        type M = uapi::vmtrace_ev_map;
        let mut p = vec![0; (size_of::<M>() + name.len()).next_multiple_of(8)];
        put!(p, M, start, u64, range.start);
        put!(p, M, end, u64, range.end);
        put!(p, M, offset, u64, offset);
        put!(p, M, dev, u64, file.dev);
        put!(p, M, ino, u64, file.ino);
        put!(p, M, generation, u32, file.generation);
        put!(p, M, prot, u32, u32::from(prot.0));
        put!(p, M, flags, u32, flags);
        put!(p, M, kind, u16, kind as u16);
        put!(p, M, name_len, u32, name.len() as u32);
        p[size_of::<M>()..][..name.len()].copy_from_slice(name.as_bytes());
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_MAP, &p);
    }

    /// A private anonymous mapping.
    pub fn map_anon(&mut self, cpu: u32, tid: u32, mm: u32, start: u64, end: u64, prot: Prot) {
        let kind = uapi::VMTRACE_MAP_ANON;
        self.map(
            cpu,
            tid,
            mm,
            start..end,
            prot,
            kind,
            0,
            FileId::default(),
            start,
            "",
        );
    }

    /// A mapping of the file with inode number `ino`, named after it.
    #[allow(clippy::too_many_arguments, reason = "a record has so many fields")]
    pub fn map_file(
        &mut self,
        cpu: u32,
        tid: u32,
        mm: u32,
        start: u64,
        end: u64,
        prot: Prot,
        shared: bool,
        ino: u64,
        offset: u64,
    ) {
        let flags = if shared { uapi::VMTRACE_MAP_SHARED } else { 0 };
        let file = FileId {
            dev: 8 << 20 | 1,
            ino,
            generation: 0,
        };
        let (kind, name) = (uapi::VMTRACE_MAP_FILE, format!("/lib/file-{ino}.so"));
        self.map(
            cpu,
            tid,
            mm,
            start..end,
            prot,
            kind,
            flags,
            file,
            offset,
            &name,
        );
    }

    fn range_event(&mut self, at: (u32, u32, u32), number: u32, start: u64, end: u64, arg: u64) {
        type R = uapi::vmtrace_ev_range;
        let mut p = [0; size_of::<R>()];
        put!(p, R, start, u64, start);
        put!(p, R, end, u64, end);
        put!(p, R, arg, u64, arg);
        self.event(at.0, at.1, at.2, number, &p);
    }

    /// munmap.
    pub fn unmap(&mut self, cpu: u32, tid: u32, mm: u32, start: u64, end: u64) {
        self.close_range(mm, start, end, Why::Unmapped);
        self.range_event((cpu, tid, mm), uapi::VMTRACE_EV_UNMAP, start, end, 0);
    }

    /// mprotect.
    pub fn protect(&mut self, cpu: u32, tid: u32, mm: u32, start: u64, end: u64, prot: Prot) {
        self.close_range(mm, start, end, Why::Protected);
        let arg = u64::from(prot.0);
        self.range_event((cpu, tid, mm), uapi::VMTRACE_EV_PROTECT, start, end, arg);
    }

    /// madvise.
    pub fn advise(&mut self, cpu: u32, tid: u32, mm: u32, start: u64, end: u64, advice: u64) {
        self.close_range(mm, start, end, Why::Advised);
        self.range_event((cpu, tid, mm), uapi::VMTRACE_EV_ADVISE, start, end, advice);
    }

    /// mremap.
    #[allow(clippy::too_many_arguments, reason = "a record has so many fields")]
    pub fn relocate(
        &mut self,
        cpu: u32,
        tid: u32,
        mm: u32,
        old: std::ops::Range<u64>,
        new: std::ops::Range<u64>,
        dontunmap: bool,
    ) {
        self.close_range(mm, old.start, old.end, Why::Moved);
        type M = uapi::vmtrace_ev_move;
        let mut p = [0; size_of::<M>()];
        put!(p, M, old_start, u64, old.start);
        put!(p, M, old_len, u64, old.end - old.start);
        put!(p, M, new_start, u64, new.start);
        put!(p, M, new_len, u64, new.end - new.start);
        put!(p, M, flags, u64, u64::from(dontunmap));
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_MOVE, &p);
    }

    /// A copy on write.
    pub fn cow(&mut self, cpu: u32, tid: u32, mm: u32, page: u64) {
        self.close(mm, page, Why::Cow);
        type P = uapi::vmtrace_ev_page;
        let mut p = [0; size_of::<P>()];
        put!(p, P, page, u64, page);
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_COW, &p);
    }

    /// A page is handed out by get_user_pages().
    pub fn gup(&mut self, cpu: u32, tid: u32, mm: u32, page: u64, write: bool) {
        type P = uapi::vmtrace_ev_page;
        let mut p = [0; size_of::<P>()];
        put!(p, P, page, u64, page);
        put!(p, P, arg, u64, u64::from(write));
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_GUP, &p);
    }

    /// A process makes another with a copy of its address space.
    pub fn fork(&mut self, cpu: u32, tid: u32, mm: u32, child: u32, child_mm: u32) {
        self.fork_pinned(cpu, tid, mm, child, child_mm, &[]);
    }

    /// The same. These pages are pinned, so that fork copies them at once.
    pub fn fork_pinned(
        &mut self,
        cpu: u32,
        tid: u32,
        mm: u32,
        child: u32,
        child_mm: u32,
        pinned: &[u64],
    ) {
        for &page in pinned {
            self.cow(cpu, tid, child_mm, page);
        }
        type D = uapi::vmtrace_ev_mm_dup;
        let mut p = [0; size_of::<D>()];
        put!(p, D, parent, u32, mm);
        self.event(cpu, tid, child_mm, uapi::VMTRACE_EV_MM_DUP, &p);
        self.fork_event(cpu, tid, mm, (child, child), child_mm);
    }

    fn fork_event(&mut self, cpu: u32, tid: u32, mm: u32, child: (u32, u32), child_mm: u32) {
        type F = uapi::vmtrace_ev_fork;
        let mut p = [0; size_of::<F>()];
        put!(p, F, child_tid, u32, child.0);
        put!(p, F, child_tgid, u32, child.1);
        put!(p, F, child_mm, u32, child_mm);
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_FORK, &p);
    }

    /// A thread makes another one in its process, whose id is `tgid`.
    pub fn thread(&mut self, cpu: u32, tid: u32, tgid: u32, mm: u32, child: u32) {
        self.fork_event(cpu, tid, mm, (child, tgid), mm);
        self.tgids.insert(child, tgid);
    }

    /// A process executes a program in a new address space.
    pub fn exec(&mut self, cpu: u32, tid: u32, mm: u32, new_mm: u32, comm: &str) {
        type X = uapi::vmtrace_ev_exec;
        let mut p = [0; size_of::<X>()];
        put!(p, X, old_mm, u32, mm);
        copy_name(&mut p[offset_of!(X, comm)..], comm);
        self.event(cpu, tid, new_mm, uapi::VMTRACE_EV_EXEC, &p);
    }

    /// An address space ends, and its set with it, if that has no other.
    pub fn mm_end(&mut self, cpu: u32, tid: u32, mm: u32) {
        self.close_range(mm, 0, u64::MAX, Why::Exit);
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_MM_END, &[]);
        if self.set_of.remove(&mm).is_some_and(|set| set != 0) {
            let evms = self.evms();
            evms.users = evms.users.saturating_sub(1);
            if evms.users == 0 {
                self.retire(cpu);
                let set = self.set;
                for ring in 0..self.rings.len() {
                    if self.rings[ring].set == set {
                        self.flush(ring);
                    }
                }
            }
        }
    }

    /// A task ends.
    pub fn exit(&mut self, cpu: u32, tid: u32, mm: u32) {
        type X = uapi::vmtrace_ev_exit;
        let p = [0; size_of::<X>()];
        self.event(cpu, tid, mm, uapi::VMTRACE_EV_EXIT, &p);
    }

    /// A file is opened (`VMTRACE_EV_OPEN`) or closed (`VMTRACE_EV_CLOSE`).
    pub fn file(&mut self, at: (u32, u32, u32), number: u32, ino: u64, kind: u32, name: &str) {
        type F = uapi::vmtrace_ev_file;
        let mut p = vec![0; (size_of::<F>() + name.len()).next_multiple_of(8)];
        put!(p, F, dev, u64, 8 << 20 | 1);
        put!(p, F, ino, u64, ino);
        put!(p, F, length, u64, 100 * ino);
        put!(p, F, kind, u32, kind);
        put!(p, F, name_len, u32, name.len() as u32);
        p[size_of::<F>()..][..name.len()].copy_from_slice(name.as_bytes());
        self.event(at.0, at.1, at.2, number, &p);
    }

    /// Bytes are read (`VMTRACE_EV_READ`) or written (`VMTRACE_EV_WRITE`).
    pub fn io(&mut self, at: (u32, u32, u32), number: u32, ino: u64, offset: u64, bytes: u64) {
        type I = uapi::vmtrace_ev_io;
        let mut p = [0; size_of::<I>()];
        put!(p, I, dev, u64, 8 << 20 | 1);
        put!(p, I, ino, u64, ino);
        put!(p, I, offset, u64, offset);
        put!(p, I, bytes, u64, bytes);
        self.event(at.0, at.1, at.2, number, &p);
    }

    /// The length of a file is set.
    pub fn truncate(&mut self, cpu: u32, tid: u32, ino: u64, length: u64) {
        type I = uapi::vmtrace_ev_io;
        let mut p = [0; size_of::<I>()];
        put!(p, I, dev, u64, 8 << 20 | 1);
        put!(p, I, ino, u64, ino);
        put!(p, I, offset, u64, length);
        self.event(cpu, tid, 0, uapi::VMTRACE_EV_TRUNCATE, &p);
    }

    /// Spoils: a reference for which a CPU has no room.
    pub fn lose_reference(&mut self, cpu: u32) {
        self.step();
        self.status.admissions += 1;
        self.status.lost_full += 1;
        self.rings[cpu as usize].lost_full += 1;
        if let Some(pieces) = &mut self.pieces {
            pieces.lose();
        }
    }

    /// Spoils: the next record gets the same number as the last one.
    pub fn repeat_sequence_number(&mut self) {
        self.seq -= 1;
    }

    /// Spoils: a number that nothing accounts for.
    pub fn skip_sequence_number(&mut self) {
        self.seq += 1;
    }

    /// Nothing happens for this time.
    pub fn leap(&mut self, ns: u64) {
        self.time = self.time.saturating_add(ns);
    }

    /// Spoils: the clock goes back.
    pub fn turn_back_time(&mut self, ns: u64) {
        self.time = self.time.saturating_sub(ns);
    }

    /// Spoils: the oldest member stays for longer than N admissions.
    pub fn stretch_last_stay(&mut self, ns: u64) {
        let now = self.time;
        let mut slots = self.evms().slots.iter();
        if let Some(ordinal) = slots.find(|s| !s.closed).map(|s| s.ordinal) {
            self.close_ordinal(ordinal, Why::Evicted, now + ns);
        }
    }

    /// A record that continues a stay, of a page that is no member, as [`TraceBuilder::renew`] makes
    /// them.
    pub fn admit_as_renewal(&mut self, cpu: u32, tid: u32, mm: u32, address: u64, chance: bool) {
        let admissions = self.status.admissions;
        self.admit(cpu, tid, mm, address, Access::Read);
        let flags = match chance {
            true => uapi::VMTRACE_REF_SEEN,
            false => uapi::VMTRACE_REF_CONT,
        };
        if let Some(slot) = self.evms().slots.back_mut() {
            slot.page |= u64::from(flags);
        }
        self.status.admissions = admissions;
        match chance {
            true => self.status.chances += 1,
            false => self.status.renewed += 1,
        }
    }

    /// Spoils: the newest member is admitted once more.
    pub fn admit_member_again(&mut self) {
        if let Some((mm, page)) = self.evms().slots.back().map(|s| (s.mm, s.page)) {
            self.admit(0, 10, mm, page, Access::Read);
        }
    }

    /// Begins a window of `references` references, in a trace with windows by references. The next
    /// events describe what exists.
    pub fn begin_window(&mut self, references: u64) {
        self.header.window_refs = references;
        self.time += 1_000_000;
        self.before = (self.time, self.status, self.seq);
        self.event(0, 1, 0, uapi::VMTRACE_EV_SNAP_BEGIN, &[]);
        self.tell_filter(0);
    }

    /// Ends the window; `change` may spoil its account.
    pub fn end_window(&mut self, change: impl FnOnce(&mut uapi::vmtrace_window)) {
        let now = self.drain();
        let (start, b, seq) = self.before;
        let s = &self.status;
        let mut w = uapi::vmtrace_window {
            number: self.window,
            why: uapi::VMTRACE_WINDOW_REFS,
            start_time: start,
            stop_time: now,
            first_seq: seq + 1,
            last_seq: self.seq,
            admissions: s.admissions - b.admissions,
            refs: s.refs - b.refs,
            events: s.events - b.events,
            aborted: s.aborted - b.aborted,
            renewed: s.renewed - b.renewed,
            chances: s.chances - b.chances,
            lost_full: s.lost_full - b.lost_full,
            ..Default::default()
        };
        change(&mut w);
        let content = window_bytes(&w);
        let packet = Ring {
            kind: uapi::VMTRACE_STREAM_WINDOW,
            packets: self.window_packets,
            window: self.window,
            records: 1,
            first_seq: self.seq,
            last_seq: self.seq,
            first_time: now,
            last_time: now,
            ..Ring::default()
        };
        let head = packet_head(&self.header.uuid, &packet, &content);
        self.write(&head);
        self.write(&content);
        self.window_packets += 1;
        self.status.packets += 1;
        self.window += 1;
    }

    /// Ends the stays of all sets.
    fn end_all(&mut self, why: Why, now: u64) {
        let sets: Vec<u32> = self.sets.keys().copied().collect();
        for set in sets {
            self.set = set;
            let open = self.evms().slots.iter().filter(|s| !s.closed);
            let open: Vec<u64> = open.map(|s| s.ordinal).collect();
            for ordinal in open {
                self.close_ordinal(ordinal, why, now);
            }
            self.retire(0);
        }
    }

    /// Ends all stays and writes all full and partial packets; returns the time.
    fn drain(&mut self) -> u64 {
        let now = self.time;
        self.status.members = 0;
        self.end_all(Why::Drained, now);
        for ring in 0..self.rings.len() {
            self.flush(ring);
        }
        self.write_header();
        now
    }

    /// Writes all full and partial packets, then the account.
    ///
    /// # Errors
    ///
    /// The first error of the output.
    pub fn finish_to(mut self) -> io::Result<W> {
        self.end_trace();
        self.failed?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn end_trace(&mut self) {
        self.switch();
        self.abandon();
        let now = self.drain();
        let mut s = self.status;
        s.size = size_of::<uapi::vmtrace_status>() as u32;
        s.scope = self.header.scope;
        s.pid = self.header.scope_pid;
        s.evms_size = self.header.evms_size;
        s.nr_cpus = self.header.nr_cpus;
        s.evms_min = s.nr_cpus.min(uapi::VMTRACE_EVMS_MIN_CPUS) * uapi::VMTRACE_FIRST_MIN;
        s.evms_peak = s.evms_size;
        s.evms_max = s.evms_peak.saturating_mul(4).min(uapi::VMTRACE_EVMS_MAX);
        s.flags = self.header.features as u32;
        s.first_segment = self.header.first_segment;
        s.policy = self.header.policy as u16;
        s.batch = self.header.batch as u16;
        s.classes = self.header.classes;
        s.windows = self.header.windows;
        s.sets = self.header.sets;
        if let Some(pieces) = &self.pieces {
            s.flags |= uapi::VMTRACE_PIECE;
            s.piece = pieces.number();
        }
        (s.windows_begun, s.windows_ended) = (self.window, self.window);
        s.uuid = self.header.uuid;
        s.start_time = self.header.start_time;
        s.stop_time = now;
        s.last_seq = self.seq;
        if let Some(change) = self.on_status.take() {
            change(&mut s);
        }
        let content = status_bytes(&s);
        let end = Ring {
            kind: uapi::VMTRACE_STREAM_END,
            records: 1,
            first_seq: s.last_seq,
            last_seq: s.last_seq,
            first_time: now,
            last_time: now,
            ..Ring::default()
        };
        let head = packet_head(&self.header.uuid, &end, &content);
        self.write(&head);
        self.write(&content);
    }
}

/// The payload of the event of a filter.
pub fn filter_bytes(tests: u32, expr: &[u8]) -> Vec<u8> {
    type F = uapi::vmtrace_ev_filter;
    let mut p = vec![0; size_of::<F>()];
    put!(p, F, nr_tests, u32, tests);
    put!(p, F, expr_len, u32, expr.len() as u32);
    p.extend_from_slice(expr);
    p.resize(p.len().next_multiple_of(8), 0);
    p
}

fn copy_name(to: &mut [u8], name: &str) {
    let len = name.len().min(15);
    to[..len].copy_from_slice(&name.as_bytes()[..len]);
}

fn packet_head(uuid: &[u8; 16], r: &Ring, content: &[u8]) -> [u8; HEAD_SIZE] {
    type P = uapi::vmtrace_packet;
    let mut b = [0; HEAD_SIZE];
    put!(b, P, magic, u64, uapi::VMTRACE_PACKET_MAGIC);
    b[offset_of!(P, uuid)..][..16].copy_from_slice(uuid);
    put!(b, P, kind, u16, r.kind as u16);
    put!(b, P, cpu, u32, r.cpu);
    put!(b, P, seq, u64, r.packets);
    put!(b, P, first_seq, u64, r.first_seq);
    put!(b, P, last_seq, u64, r.last_seq);
    put!(b, P, first_time, u64, r.first_time);
    put!(b, P, last_time, u64, r.last_time);
    put!(b, P, lost_full, u64, r.lost_full);
    put!(b, P, records, u32, r.records);
    put!(b, P, content_size, u32, content.len() as u32);
    put!(b, P, codec, u16, r.codec);
    put!(b, P, raw_size, u32, r.raw_size);
    put!(b, P, window, u32, r.window);
    put!(b, P, __bindgen_anon_1, u64, u64::from(r.set));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&b), content);
    put!(b, P, crc, u32, crc);
    b
}

fn window_bytes(w: &uapi::vmtrace_window) -> Vec<u8> {
    type W = uapi::vmtrace_window;
    let mut b = vec![0; size_of::<W>()];
    put!(b, W, number, u32, w.number);
    put!(b, W, why, u32, w.why);
    put!(b, W, start_time, u64, w.start_time);
    put!(b, W, stop_time, u64, w.stop_time);
    put!(b, W, first_seq, u64, w.first_seq);
    put!(b, W, last_seq, u64, w.last_seq);
    put!(b, W, admissions, u64, w.admissions);
    put!(b, W, refs, u64, w.refs);
    put!(b, W, events, u64, w.events);
    put!(b, W, aborted, u64, w.aborted);
    put!(b, W, renewed, u64, w.renewed);
    put!(b, W, chances, u64, w.chances);
    put!(b, W, lost_full, u64, w.lost_full);
    put!(b, W, lost_atomic, u64, w.lost_atomic);
    put!(b, W, lost_io, u64, w.lost_io);
    put!(b, W, funny, u64, w.funny);
    b
}

fn status_bytes(s: &uapi::vmtrace_status) -> Vec<u8> {
    type S = uapi::vmtrace_status;
    let mut b = vec![0; size_of::<S>()];
    put!(b, S, size, u32, s.size);
    put!(b, S, state, u32, s.state);
    put!(b, S, error, i32, s.error);
    put!(b, S, scope, u32, s.scope);
    put!(b, S, pid, i32, s.pid);
    put!(b, S, evms_size, u32, s.evms_size);
    put!(b, S, evms_min, u32, s.evms_min);
    put!(b, S, nr_cpus, u32, s.nr_cpus);
    b[offset_of!(S, uuid)..][..16].copy_from_slice(&s.uuid);
    put!(b, S, start_time, u64, s.start_time);
    put!(b, S, stop_time, u64, s.stop_time);
    put!(b, S, last_seq, u64, s.last_seq);
    put!(b, S, admissions, u64, s.admissions);
    put!(b, S, refs, u64, s.refs);
    put!(b, S, events, u64, s.events);
    put!(b, S, aborted, u64, s.aborted);
    put!(b, S, members, u64, s.members);
    put!(b, S, members_max, u64, s.members_max);
    put!(b, S, funny, u64, s.funny);
    put!(b, S, stuck, u64, s.stuck);
    put!(b, S, audits, u64, s.audits);
    put!(b, S, dangling, u64, s.dangling);
    put!(b, S, miscounted, u64, s.miscounted);
    put!(b, S, uncovered, u64, s.uncovered);
    put!(b, S, lost_full, u64, s.lost_full);
    put!(b, S, lost_atomic, u64, s.lost_atomic);
    put!(b, S, lost_io, u64, s.lost_io);
    put!(b, S, waits, u64, s.waits);
    put!(b, S, packets, u64, s.packets);
    put!(b, S, bytes, u64, s.bytes);
    put!(b, S, mms, u64, s.mms);
    put!(b, S, renewed, u64, s.renewed);
    put!(b, S, chances, u64, s.chances);
    put!(b, S, flags, u32, s.flags);
    put!(b, S, first_segment, u32, s.first_segment);
    put!(b, S, policy, u16, s.policy);
    put!(b, S, batch, u16, s.batch);
    put!(b, S, evms_max, u32, s.evms_max);
    put!(b, S, evms_peak, u32, s.evms_peak);
    put!(b, S, classes, u32, s.classes);
    put!(b, S, windows, u32, s.windows);
    put!(b, S, windows_begun, u32, s.windows_begun);
    put!(b, S, windows_ended, u32, s.windows_ended);
    put!(b, S, unaudited, u32, s.unaudited);
    put!(b, S, sets, u32, s.sets);
    put!(b, S, sets_made, u64, s.sets_made);
    put!(b, S, sets_max, u64, s.sets_max);
    put!(b, S, sets_shared, u64, s.sets_shared);
    put!(b, S, stored, u64, s.stored);
    put!(b, S, piece, u32, s.piece);
    put!(b, S, piece_bytes, u64, s.piece_bytes);
    put!(b, S, left_out, u64, s.left_out);
    put!(b, S, ran, u64, s.ran);
    b
}

/// Applies every rule to a trace in memory.
///
/// # Panics
///
/// If the header cannot be read.
#[track_caller]
pub fn check_bytes(bytes: &[u8]) -> CheckReport {
    check_bytes_with(
        bytes,
        CheckOptions {
            allow_loss: false,
            examples: 10,
        },
    )
}

/// The same with options.
///
/// # Panics
///
/// If the header cannot be read.
#[track_caller]
pub fn check_bytes_with(bytes: &[u8], options: CheckOptions) -> CheckReport {
    let run = || {
        let trace = Trace::from_bytes("memory", bytes.to_vec())?;
        let mut checker = Checker::new(options);
        pipeline::run(
            &trace,
            PageMode::Canonical,
            &mut Unwatched,
            &mut [&mut checker],
        )?;
        Ok(checker.report())
    };
    match run() {
        Ok(report) => report,
        Err(error) => {
            let error: crate::error::Error = error;
            panic!("cannot check the trace: {error}")
        }
    }
}

/// The beginning and the end of each packet of a good trace, without the END packet.
pub fn packets_of(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut packets = Vec::new();
    let mut at = HEADER_SIZE;
    while at + HEAD_SIZE <= bytes.len() {
        type P = uapi::vmtrace_packet;
        let head = &bytes[at..];
        if u32::from(LE::read_u16(&head[offset_of!(P, kind)..])) == uapi::VMTRACE_STREAM_END {
            break;
        }
        let end = at + HEAD_SIZE + LE::read_u32(&head[offset_of!(P, content_size)..]) as usize;
        packets.push((at, end));
        at = end;
    }
    packets
}
