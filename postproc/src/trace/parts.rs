//! Divides a trace into parts, one for each process, and a frame: see [`super::part`].
//!
//! Three passes are made:
//!
//! 1. [`Survey`] finds the processes that have references, in the order of their first ones, and what
//!    belongs together.
//! 2. [`Writer`] writes all parts at the same time.
//! 3. [`frame`] reads the bytes of the trace in their order, and leaves out records of references that
//!    can be made from those in the parts.
//!
//! # What a part has
//!
//! A part is to give the same results as the references of its process in the whole trace. So the
//! pages must have the same identities, and be freed at the same moments. That does not depend on one
//! address space alone: after a fork, parent and child share pages, and a page is freed when the last
//! of all its holders lets go of it. Address spaces that are copies of each other are a *family*. A part
//! has
//!
//! - the records of references that threads of its process have made;
//! - all events about address spaces of the families in which the process has references or was;
//! - events that end pages of files which are mapped in these families;
//! - events about tasks: of the process, of all processes that were in these families, and of the
//!   ancestors of the process;
//! - events of files and of CPUs that the process has caused;
//! - events that are about no address space, such as a change of N;
//! - as context, the records of other processes in these families that gave private pages their
//!   identities.
//!
//! Memory: the state that a pass over the trace needs, the address spaces of each process, and
//! [`HELD`] bytes of records for all parts together. Files are open one at a time.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::uapi;
use rustc_hash::{FxHashMap, FxHashSet};

use super::codec::{Packer, Unpacker};
use super::merge::PacketSeen;
use super::part::{
    DividedTrace, FRAME_HEAD, FRAME_MAGIC, FRAME_NAME, FRAME_VERSION, Heading, LITERAL, MadePart,
    PACKED, PART_SIZE, PLAIN, Part, Table, VERBATIM, header_of_part,
};
use super::piece::put;
use super::source::Trace;
use super::split::{MOST_PIECES, Walk, more_of, stop};
use super::wire::{
    Body, EARLY_NS, Event, FileId, HEAD_SIZE, HEADER_SIZE, Header, PacketHead, Ref, StreamId,
    StreamKind, packet_crc,
};
use crate::canon::PageMode;
use crate::error::{Error, OutputContext, Result};
use crate::output::new_directory;
use crate::pipeline::{self, Batch, Consumer, Observer, Outcome, Place, World};
use crate::process::ProcessId;
use crate::space::Issue;
use crate::streams::Whose;
use crate::unfinished;
use crate::units::{Access, CanonPage, Mm, Tid};

/// The most parts that a trace is divided into.
const MOST_PARTS: usize = MOST_PIECES;
/// Bytes of records and events that all parts together hold in memory. Few in tests of this crate, so
/// that they are too many.
const HELD: usize = if cfg!(test) { 1 << 14 } else { 64 << 20 };
/// Bytes that are copied at a time.
const COPY: usize = 1 << 20;
/// The level of Zstandard with which the kernel compresses packets, which `postproc pack` takes too.
const LEVEL: i32 = 3;
/// Compressed packets that no level gives, until no other level is tried any more.
const TRIES: u32 = 3;

/// Divides a trace by processes, into files in a new directory.
///
/// # Errors
///
/// [`Error::IsPiece`], [`Error::IsPart`]; [`Error::NotDivided`] if the trace is damaged or its records
/// are not in order; [`Error::ManyParts`]; reading or writing failed; or [`Error::Interrupted`].
/// Nothing is left behind then.
pub fn divide(
    trace: &Trace,
    directory: &Path,
    observer: &mut dyn Observer,
) -> Result<DividedTrace> {
    let path = || trace.path().into();
    if trace.header().is_piece() {
        return Err(Error::IsPiece { path: path() });
    }
    if trace.is_partial() {
        return Err(Error::IsPart { path: path() });
    }
    let shown = directory.display().to_string();
    let (temporary, _registered) = new_directory(directory).writing(&shown)?;
    let stop = stop(trace);
    let mut survey = Survey::default();
    let outcome = {
        let mut watch = Third {
            observer: &mut *observer,
            number: 0,
        };
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut survey];
        pipeline::run(trace, PageMode::Unnamed, &mut watch, consumers)?
    };
    if let Some(damage) = outcome.damage.first() {
        return Err(Error::NotDivided {
            path: path(),
            why: format!("byte {}: {}", damage.start, damage.detail),
        });
    }
    let plan = Plan::of(trace, survey, &outcome.world)?;
    drop(outcome);
    let mut writer = Writer::new(trace, plan, temporary.path(), &shown)?;
    {
        let mut watch = Third {
            observer: &mut *observer,
            number: 1,
        };
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut writer];
        pipeline::run(trace, PageMode::Canonical, &mut watch, consumers)?;
    }
    let parts = writer.made()?;
    let mut watch = Third {
        observer: &mut *observer,
        number: 2,
    };
    let frame_bytes = frame(trace, &parts, temporary.path(), &shown, &mut watch)?;
    unfinished::settle(|| std::fs::rename(temporary.path(), directory)).writing(&shown)?;
    // The temporary directory no longer exists.
    let _ = temporary.keep();
    Ok(DividedTrace {
        trace_bytes: stop,
        bytes: frame_bytes + parts.iter().map(|part| part.bytes).sum::<u64>(),
        frame_bytes,
        parts,
    })
}

/// Shows each of three passes as a third of the work.
struct Third<'o> {
    observer: &'o mut dyn Observer,
    number: u64,
}

impl Observer for Third<'_> {
    fn progress(&mut self, done: u64, total: u64) -> bool {
        let before = total.saturating_mul(self.number);
        self.observer
            .progress(before.saturating_add(done), total.saturating_mul(3))
    }
}

/// A process that has references.
struct Owner {
    whose: Whose,
    pid: Tid,
    start_ns: u64,
    comm: String,
    /// The address spaces in which it has references.
    mms: FxHashSet<Mm>,
}

/// Address spaces that are copies of each other.
#[derive(Default)]
struct Copies(FxHashMap<Mm, Mm>);

impl Copies {
    /// The one that stands for all.
    fn first(&mut self, mut mm: Mm) -> Mm {
        while let Some(&next) = self.0.get(&mm) {
            let Some(&after) = self.0.get(&next) else {
                return next;
            };
            self.0.insert(mm, after);
            mm = after;
        }
        mm
    }

    fn unite(&mut self, one: Mm, other: Mm) {
        let (one, other) = (self.first(one), self.first(other));
        if one != other {
            self.0.insert(one, other);
        }
    }
}

/// What belongs together.
#[derive(Default)]
struct Survey {
    owners: Vec<Owner>,
    by_whose: FxHashMap<Whose, u32>,
    copies: Copies,
    /// The address spaces in which processes were.
    was_in: FxHashSet<(ProcessId, Mm)>,
    /// The address spaces in which files were mapped.
    mapped: FxHashMap<FileId, FxHashSet<Mm>>,
    last: Option<(Whose, Mm)>,
    last_seq: u64,
    disorder: Option<String>,
}

impl Survey {
    fn follows(&mut self, seq: u64) {
        if seq <= self.last_seq && self.disorder.is_none() {
            let last = self.last_seq;
            self.disorder = Some(format!("sequence number {seq} follows {last}"));
        }
        self.last_seq = seq;
    }
}

impl Consumer for Survey {
    fn wants_continuations(&self) -> bool {
        true
    }

    fn wants_raw_times(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        for r in batch.refs {
            self.follows(r.seq);
            let whose = Whose::of(r.tid(), batch.world);
            if self.last == Some((whose, r.mm)) {
                continue;
            }
            self.last = Some((whose, r.mm));
            let number = *self.by_whose.entry(whose).or_insert_with(|| {
                self.owners.push(Owner {
                    whose,
                    pid: whose.tgid(batch.world),
                    start_ns: 0,
                    comm: String::new(),
                    mms: FxHashSet::default(),
                });
                (self.owners.len() - 1) as u32
            });
            self.owners[number as usize].mms.insert(r.mm);
        }
        Ok(())
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.follows(e.seq);
        match e.said() {
            Body::MmDup { parent } => {
                self.copies.unite(e.mm, parent);
            }
            Body::Map(map) if map.file != FileId::default() => {
                self.mapped.entry(map.file).or_default().insert(e.mm);
            }
            _ => {}
        }
        for (id, mm) in concerned(e, world) {
            if mm.0 != 0 {
                self.was_in.insert((id, mm));
            }
        }
        Ok(())
    }
}

/// The processes that an event about tasks concerns, and the address space that it says of them; 0 if
/// none.
fn concerned(e: &Event<'_>, world: &World) -> impl Iterator<Item = (ProcessId, Mm)> + use<> {
    let tasks = &world.tasks;
    let of = match e.said() {
        Body::Fork {
            child_tid,
            child_mm,
            ..
        } => tasks.find(child_tid).map(|id| (id, child_mm)),
        Body::Task { tid, .. } => tasks.find(tid).map(|id| (id, e.mm)),
        Body::Exec { .. } => tasks.find(e.tid).map(|id| (id, e.mm)),
        Body::Exit { .. } => tasks.find(e.tid).map(|id| (id, Mm(0))),
        Body::Cgroup { tid, tgid, .. } => {
            let tid = if tgid.0 != 0 { tgid } else { tid };
            tasks.find(tid).map(|id| (id, Mm(0)))
        }
        _ => None,
    };
    of.into_iter()
}

/// Which events and records are of which parts. Parts have their numbers here.
struct Plan {
    owners: Vec<Owner>,
    by_whose: FxHashMap<Whose, u32>,
    /// The family of each address space that has one, by its number.
    families: FxHashMap<Mm, u32>,
    /// The parts of each family, in order.
    of_family: Vec<Vec<u32>>,
    /// The parts that have all events about the tasks of a process, besides those of its families;
    /// and these families.
    of_process: FxHashMap<ProcessId, (Vec<u32>, Vec<u32>)>,
    /// The families that have mapped a file.
    of_file: FxHashMap<FileId, Vec<u32>>,
}

impl Plan {
    fn of(trace: &Trace, survey: Survey, world: &World) -> Result<Self> {
        let path = || trace.path().into();
        if let Some(why) = survey.disorder {
            return Err(Error::NotDivided { path: path(), why });
        }
        if survey.owners.len() > MOST_PARTS {
            return Err(Error::ManyParts {
                path: path(),
                most: MOST_PARTS,
            });
        }
        let mut plan = Plan {
            owners: survey.owners,
            by_whose: survey.by_whose,
            families: FxHashMap::default(),
            of_family: Vec::new(),
            of_process: FxHashMap::default(),
            of_file: FxHashMap::default(),
        };
        let mut copies = survey.copies;
        let all: Vec<Mm> = copies.0.keys().copied().collect();
        let mut by_first: FxHashMap<Mm, u32> = FxHashMap::default();
        let mut family = |plan: &mut Plan, mm: Mm| {
            let first = copies.first(mm);
            let number = *by_first.entry(first).or_insert_with(|| {
                plan.of_family.push(Vec::new());
                (plan.of_family.len() - 1) as u32
            });
            plan.families.insert(mm, number);
            number
        };
        let mut of_owner: Vec<Vec<u32>> = Vec::with_capacity(plan.owners.len());
        for at in 0..plan.owners.len() {
            let mms: Vec<Mm> = plan.owners[at].mms.drain().collect();
            of_owner.push(mms.into_iter().map(|mm| family(&mut plan, mm)).collect());
        }
        for &(id, mm) in &survey.was_in {
            let number = family(&mut plan, mm);
            let of = &mut plan.of_process.entry(id).or_default().1;
            of.push(number);
            if let Some(&part) = plan.by_whose.get(&Whose::Process(id)) {
                of_owner[part as usize].push(number);
            }
        }
        for (file, mms) in survey.mapped {
            let mut all: Vec<u32> = mms.into_iter().map(|mm| family(&mut plan, mm)).collect();
            all.sort_unstable();
            all.dedup();
            plan.of_file.insert(file, all);
        }
        // Those that nobody was in, too: they hold pages.
        for mm in all {
            family(&mut plan, mm);
        }
        for (part, families) in of_owner.iter().enumerate() {
            for &number in families {
                plan.of_family[number as usize].push(part as u32);
            }
        }
        plan.of_family.iter_mut().for_each(|parts| parts.dedup());
        for (_, families) in plan.of_process.values_mut() {
            families.sort_unstable();
            families.dedup();
        }
        let tasks = &world.tasks;
        for part in 0..plan.owners.len() {
            let owner = &mut plan.owners[part];
            let Whose::Process(id) = owner.whose else {
                continue;
            };
            let process = tasks.process(id);
            owner.start_ns = process.start_ns;
            owner.comm.clone_from(&process.comm);
            let mut next = Some(id);
            let mut before = FxHashSet::default();
            while let Some(id) = next.filter(|&id| before.insert(id)) {
                plan.of_process.entry(id).or_default().0.push(part as u32);
                next = tasks.parent(id);
            }
        }
        Ok(plan)
    }

    /// The name of a part's file.
    fn file(&self, number: usize) -> String {
        let owner = &self.owners[number];
        let plain = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '+' | '.' => c,
            _ => '_',
        };
        let comm: String = owner.comm.chars().take(15).map(plain).collect();
        match comm.is_empty() {
            true => format!("{number:05}-{}.vmtrace", owner.pid.0),
            false => format!("{number:05}-{}-{comm}.vmtrace", owner.pid.0),
        }
    }
}

/// The parts that get something, each once.
#[derive(Default)]
struct Targets {
    round: u64,
    /// The round in which each part was added last.
    added: Vec<u64>,
    parts: Vec<u32>,
}

impl Targets {
    fn begin(&mut self, parts: usize) {
        self.round += 1;
        self.added.resize(parts, 0);
        self.parts.clear();
    }

    fn add(&mut self, parts: &[u32]) {
        for &part in parts {
            if std::mem::replace(&mut self.added[part as usize], self.round) != self.round {
                self.parts.push(part);
            }
        }
    }

    fn family(&mut self, plan: &Plan, mm: Mm) {
        if let Some(&number) = plan.families.get(&mm) {
            self.add(&plan.of_family[number as usize]);
        }
    }

    fn process(&mut self, plan: &Plan, id: ProcessId) {
        let Some((parts, families)) = plan.of_process.get(&id) else {
            return;
        };
        self.add(parts);
        for &number in families {
            self.add(&plan.of_family[number as usize]);
        }
    }

    /// The part of whatever process a thread is of.
    fn own(&mut self, plan: &Plan, tid: Tid, world: &World) {
        if let Some(&part) = plan.by_whose.get(&Whose::of(tid, world)) {
            self.add(&[part]);
        }
    }

    fn event(&mut self, plan: &Plan, e: &Event<'_>, world: &World) {
        self.begin(plan.owners.len());
        match e.said() {
            Body::Truncate { file, .. } | Body::Punch { file, .. } | Body::Delete { file, .. } => {
                for &number in plan.of_file.get(&file).map_or(&[][..], |all| all) {
                    self.add(&plan.of_family[number as usize]);
                }
                self.own(plan, e.tid, world);
            }
            Body::Read(_) | Body::Write(_) | Body::Open(_) | Body::Close(_) => {
                self.own(plan, e.tid, world);
            }
            Body::Switch { prev, next } => {
                for tid in [prev, next].into_iter().filter(|tid| tid.0 != 0) {
                    self.own(plan, tid, world);
                }
            }
            Body::Fork { child_mm, .. } => {
                self.family(plan, child_mm);
                self.own(plan, e.tid, world);
            }
            _ if e.mm.0 != 0 => self.family(plan, e.mm),
            Body::Task { .. } | Body::Exec { .. } | Body::Exit { .. } | Body::Cgroup { .. } => {}
            Body::ShmDestroy(_) => self.own(plan, e.tid, world),
            _ => self.parts.extend(0..plan.owners.len() as u32),
        }
        for (id, _) in concerned(e, world) {
            self.process(plan, id);
        }
    }
}

/// Records and events that become a packet.
struct Buffer {
    heading: Heading,
    /// The time of the first record.
    first_ns: u64,
    refs: Vec<Ref>,
    events: Vec<u8>,
}

impl Buffer {
    fn held(&self) -> usize {
        self.refs.len() * size_of::<Ref>() + self.events.len()
    }

    /// Whether a record of this number and time, and an event of so many bytes, can be added.
    fn has_room(&self, header: &Header, window: u32, seq: u64, time_ns: u64, event: usize) -> bool {
        let room = header.buffer_size as usize;
        let (first_seq, base, last) = (
            self.heading.seqs.0,
            self.heading.times_ns.0,
            self.heading.times_ns.1,
        );
        if self.heading.window != window {
            return false;
        }
        if self.heading.stream.kind == StreamKind::Event {
            return self.events.len() + event <= room && time_ns >= base;
        }
        let early = if header.nr_cpus > 1 { EARLY_NS } else { 0 };
        let base = base.min(time_ns);
        (self.refs.len() + 1) * header.ref_size() <= room
            && seq - first_seq <= u32::MAX.into()
            && self.first_ns - base <= early
            && last.max(time_ns) - base <= u32::MAX.into()
    }

    fn seen(&mut self, seq: u64, time_ns: u64) {
        let times = &mut self.heading.times_ns;
        *times = (times.0.min(time_ns), times.1.max(time_ns));
        self.heading.seqs.1 = seq;
        self.heading.records += 1;
    }

    /// The content, and how many bytes it has.
    fn content(&self, header: &Header) -> Vec<u8> {
        type R = uapi::vmtrace_ref;
        if self.heading.stream.kind == StreamKind::Event {
            return self.events.clone();
        }
        let mut content = Vec::with_capacity(self.refs.len() * header.ref_size());
        for r in &self.refs {
            let mut b = [0; size_of::<R>()];
            put!(b, R, page, r.page);
            put!(b, R, seq, ((r.seq - self.heading.seqs.0) as u32));
            put!(b, R, time, ((r.time_ns - self.heading.times_ns.0) as u32));
            put!(b, R, tid_cpu, r.tid_cpu);
            put!(b, R, mm, r.mm.0);
            put!(b, R, stay, r.stay);
            put!(b, R, pfn, r.pfn);
            content.extend_from_slice(&b);
            if header.has_vtime() {
                content.extend_from_slice(&r.vtime.to_le_bytes());
            }
            if header.has_offsets() {
                content.extend_from_slice(&r.within.to_le_bytes());
            }
        }
        content
    }
}

/// What a part, or a window of it, has.
#[derive(Clone, Copy, Default)]
struct Counts {
    refs: u64,
    events: u64,
    admissions: u64,
    renewed: u64,
    chances: u64,
}

impl Counts {
    fn reference(&mut self, r: &Ref) {
        self.refs += 1;
        match (r.flags().continues(), r.flags().access()) {
            (true, _) => self.renewed += 1,
            (false, Access::Seen) => self.chances += 1,
            _ => self.admissions += 1,
        }
    }
}

/// A part that is being written.
struct Making {
    path: PathBuf,
    buffers: BTreeMap<StreamId, Buffer>,
    /// The number of the next packet of each stream.
    numbers: BTreeMap<StreamId, u64>,
    counts: Counts,
    windows: BTreeMap<u32, Counts>,
    context: u64,
    /// Packets of references and events.
    packets: u64,
    /// Bytes of the file, and if no packet were packed.
    bytes: u64,
    unpacked: u64,
    /// CRC32C of what follows the packet that says which part it is.
    crc: u32,
}

/// Where a packet's records come from.
#[derive(Clone, Copy)]
struct From {
    stream: StreamId,
    window: u32,
}

/// Writes all parts.
struct Writer<'a> {
    trace: &'a Trace,
    header: &'a Header,
    plan: Plan,
    into: &'a Path,
    shown: &'a str,
    raw_header: Vec<u8>,
    packer: Option<Packer>,
    parts: Vec<Making>,
    targets: Targets,
    /// Packets that records may still come from, by where they begin; the last one of each stream;
    /// and others that are used up when the next records have come.
    from: BTreeMap<u64, From>,
    newest: FxHashMap<StreamId, u64>,
    old: Vec<u64>,
    used: bool,
    held: usize,
    /// Bytes of events and context, and how many there may be.
    more: u64,
    most: u64,
    /// The greatest number of a page so far.
    named: CanonPage,
    all: Counts,
}

impl<'a> Writer<'a> {
    fn new(trace: &'a Trace, plan: Plan, into: &'a Path, shown: &'a str) -> Result<Self> {
        let header = trace.header();
        let compressed = header.features & u64::from(uapi::VMTRACE_ZSTD) != 0;
        let packer = match header.features & u64::from(uapi::VMTRACE_PACK) {
            0 => None,
            _ => Some(Packer::new(compressed.then_some(LEVEL)).writing(shown)?),
        };
        let mut writer = Writer {
            trace,
            header,
            into,
            shown,
            raw_header: header_of_part(trace.raw_header()),
            packer,
            parts: Vec::with_capacity(plan.owners.len()),
            targets: Targets::default(),
            from: BTreeMap::new(),
            newest: FxHashMap::default(),
            old: Vec::new(),
            used: false,
            held: 0,
            more: 0,
            most: more_of(stop(trace)),
            named: CanonPage(0),
            all: Counts::default(),
            plan,
        };
        let begin = (HEADER_SIZE + HEAD_SIZE + PART_SIZE) as u64;
        for number in 0..writer.plan.owners.len() {
            let path = into.join(writer.plan.file(number));
            let file = File::create(&path).writing(shown)?;
            file.set_len(begin).writing(shown)?;
            writer.parts.push(Making {
                path,
                buffers: BTreeMap::new(),
                numbers: BTreeMap::new(),
                counts: Counts::default(),
                windows: BTreeMap::new(),
                context: 0,
                packets: 0,
                bytes: begin,
                unpacked: begin,
                crc: 0,
            });
        }
        Ok(writer)
    }

    /// The packet that a record comes from, by the place of the record.
    fn source(&self, offset: u64) -> Result<From> {
        let found = self.from.range(..=offset).next_back();
        found.map(|(_, from)| *from).ok_or(Error::Shortened {
            path: self.trace.path().into(),
            len: self.trace.file_bytes(),
        })
    }

    fn share(&mut self, bytes: usize) -> Result<()> {
        self.more = self.more.saturating_add(bytes as u64);
        match self.more > self.most {
            true => Err(Error::ManyParts {
                path: self.trace.path().into(),
                most: MOST_PARTS,
            }),
            false => Ok(()),
        }
    }

    /// The buffer of a stream of a part, in which there is room.
    fn buffer(
        &mut self,
        part: u32,
        from: From,
        (seq, time_ns): (u64, u64),
        event: usize,
    ) -> Result<&mut Buffer> {
        let header = self.header;
        let making = &self.parts[part as usize];
        let full = making.buffers.get(&from.stream);
        let full = full.is_some_and(|b| !b.has_room(header, from.window, seq, time_ns, event));
        if full {
            self.flush(part, from.stream)?;
        }
        let making = &mut self.parts[part as usize];
        let buffer = making.buffers.entry(from.stream).or_insert_with(|| {
            let number = making.numbers.entry(from.stream).or_default();
            *number += 1;
            Buffer {
                heading: Heading {
                    number: *number - 1,
                    seqs: (seq, seq),
                    times_ns: (time_ns, time_ns),
                    window: from.window,
                    ..Heading::new(from.stream)
                },
                first_ns: time_ns,
                refs: Vec::new(),
                events: Vec::new(),
            }
        });
        buffer.seen(seq, time_ns);
        Ok(buffer)
    }

    fn reference(&mut self, part: u32, from: From, r: &Ref) -> Result<()> {
        let buffer = self.buffer(part, from, (r.seq, r.time_ns), 0)?;
        buffer.refs.push(*r);
        self.held += size_of::<Ref>();
        Ok(())
    }

    /// Writes what a stream of a part holds as a packet.
    fn flush(&mut self, part: u32, stream: StreamId) -> Result<()> {
        let making = &mut self.parts[part as usize];
        let Some(buffer) = making.buffers.remove(&stream) else {
            return Ok(());
        };
        self.held -= buffer.held();
        let content = buffer.content(self.header);
        let packed = match &mut self.packer {
            Some(packer) => packer
                .pack(self.header, stream.kind, &content)
                .writing(self.shown)?,
            None => None,
        };
        let uuid = self.header.uuid;
        let packet = match packed {
            Some((codec, stored)) => {
                let codec = (codec, content.len() as u32);
                buffer.heading.packet(uuid, codec, stored)
            }
            None => buffer.heading.packet(uuid, (0, 0), &content),
        };
        making.packets += u64::from(stream.kind != StreamKind::Context);
        self.append(part, &packet, HEAD_SIZE + content.len())
    }

    /// Adds bytes to the file of a part, which would be so many without packing.
    fn append(&mut self, part: u32, bytes: &[u8], unpacked: usize) -> Result<()> {
        let making = &mut self.parts[part as usize];
        let open = OpenOptions::new().append(true).open(&making.path);
        open.and_then(|mut file| file.write_all(bytes))
            .writing(self.shown)?;
        making.crc = crc32c::crc32c_append(making.crc, bytes);
        making.bytes += bytes.len() as u64;
        making.unpacked += unpacked as u64;
        Ok(())
    }

    fn flush_all(&mut self) -> Result<()> {
        for part in 0..self.parts.len() {
            let streams: Vec<StreamId> = self.parts[part].buffers.keys().copied().collect();
            for stream in streams {
                self.flush(part as u32, stream)?;
            }
        }
        Ok(())
    }

    /// Gives a packet that the trace has, with the counts of a part.
    fn account(&self, at: u64, head: &PacketHead, change: impl Fn(&mut [u8])) -> Result<Vec<u8>> {
        let mut packet = vec![0; head.size() as usize];
        let read = self.trace.bytes().read(at, &mut packet);
        read.map_err(|source| self.trace.unreadable(source))?;
        let (head, content) = packet.split_at_mut(HEAD_SIZE);
        change(content);
        if let Some(head) = head.first_chunk_mut::<HEAD_SIZE>() {
            let crc = packet_crc(head, content);
            put!(head, uapi::vmtrace_packet, crc, crc);
        }
        Ok(packet)
    }

    /// Writes the ends of all parts.
    fn end(&mut self) -> Result<()> {
        type W = uapi::vmtrace_window;
        type S = uapi::vmtrace_status;
        self.flush_all()?;
        let trace = self.trace;
        let index = trace.index();
        for part in 0..self.parts.len() {
            for window in &index.windows {
                let windows = &self.parts[part].windows;
                let counts = windows.get(&window.account.number);
                let c = counts.copied().unwrap_or_default();
                let packet = self.account(window.offset, &window.head, |b| {
                    for (at, count) in [
                        (std::mem::offset_of!(W, admissions), c.admissions),
                        (std::mem::offset_of!(W, refs), c.refs),
                        (std::mem::offset_of!(W, events), c.events),
                        (std::mem::offset_of!(W, renewed), c.renewed),
                        (std::mem::offset_of!(W, chances), c.chances),
                    ] {
                        set(b, at, count);
                    }
                })?;
                self.append(part as u32, &packet, packet.len())?;
            }
            let making = &self.parts[part];
            let (c, bytes, unpacked) = (making.counts, making.bytes, making.unpacked);
            let packets = making.packets + index.windows.len() as u64;
            if let Some(end) = &index.end {
                let packet = self.account(end.offset, &end.head, |b| {
                    for (at, count) in [
                        (std::mem::offset_of!(S, admissions), c.admissions),
                        (std::mem::offset_of!(S, refs), c.refs),
                        (std::mem::offset_of!(S, events), c.events),
                        (std::mem::offset_of!(S, renewed), c.renewed),
                        (std::mem::offset_of!(S, chances), c.chances),
                        (std::mem::offset_of!(S, packets), packets),
                        (std::mem::offset_of!(S, bytes), unpacked),
                        // The packet at the beginning counts them.
                        (std::mem::offset_of!(S, left_out), 0),
                    ] {
                        set(b, at, count);
                    }
                    let stored = std::mem::offset_of!(S, stored);
                    if b.get(stored..).is_some_and(|rest| rest.len() >= 8)
                        && LE::read_u64(&b[stored..]) != 0
                    {
                        set(b, stored, bytes);
                    }
                })?;
                self.append(part as u32, &packet, packet.len())?;
            }
        }
        Ok(())
    }

    /// Records of references that a filter of the kernel has left out.
    fn filtered(&self) -> Result<u64> {
        let Some(end) = &self.trace.index().end else {
            return Ok(0);
        };
        let packet = self.account(end.offset, &end.head, |_| {})?;
        let at = HEAD_SIZE + std::mem::offset_of!(uapi::vmtrace_status, left_out);
        let field = packet.get(at..).and_then(|rest| rest.first_chunk());
        Ok(field.map_or(0, |field| u64::from_le_bytes(*field)))
    }

    /// Says of each file which part it is.
    fn made(mut self) -> Result<Vec<MadePart>> {
        self.end()?;
        let parts = self.parts.len() as u32;
        let all = self.all.refs + self.all.events;
        let filtered = self.filtered()?;
        let mut made = Vec::with_capacity(self.parts.len());
        for (number, making) in self.parts.iter().enumerate() {
            let owner = &self.plan.owners[number];
            let part = Part {
                number: number as u32,
                parts,
                pid: owner.pid,
                start_ns: owner.start_ns,
                comm: owner.comm.clone(),
                context_records: u32::try_from(making.context).unwrap_or(u32::MAX),
                left_out: (all - making.counts.refs - making.counts.events)
                    .saturating_add(filtered),
            };
            let begin = [&self.raw_header[..], &part.packet(self.header.uuid)].concat();
            let open = OpenOptions::new().write(true).open(&making.path);
            open.and_then(|file| file.write_all_at(&begin, 0))
                .writing(self.shown)?;
            let rest = making.bytes - begin.len() as u64;
            let crc = crc32c::crc32c_combine(crc32c::crc32c(&begin), making.crc, rest as usize);
            made.push(MadePart {
                file: self.plan.file(number),
                number: number as u32,
                pid: owner.pid.0,
                start_ns: owner.start_ns,
                comm: owner.comm.clone(),
                reference_records: making.counts.refs,
                events: making.counts.events,
                context_records: making.context,
                bytes: making.bytes,
                crc,
            });
        }
        debug_assert!(made.iter().all(|part| self.into.join(&part.file).exists()));
        Ok(made)
    }
}

/// Writes a field of an account, if the account has it.
fn set(b: &mut [u8], at: usize, value: u64) {
    if let Some(field) = b.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value.to_le_bytes();
    }
}

/// Whether a reference is to memory that others may share after a fork only.
fn is_private(r: &Ref, place: &Place, world: &World) -> bool {
    let space = world
        .space
        .get(r.mm)
        .filter(|_| matches!(place, Place::Mapped { .. }));
    let mapping = space.and_then(|space| space.find(r.address()));
    mapping.is_none_or(|mapping| !mapping.is_shared())
}

impl Consumer for Writer<'_> {
    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        if std::mem::take(&mut self.used) {
            for at in self.old.drain(..) {
                self.from.remove(&at);
            }
        }
        let (at, head) = (packet.offset, &packet.head);
        let from = From {
            stream: head.stream,
            window: head.window,
        };
        self.from.insert(at, from);
        self.old.extend(self.newest.insert(head.stream, at));
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn wants_raw_times(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.used = true;
        let mut last = None;
        for (i, r) in batch.refs.iter().enumerate() {
            let part = match last {
                Some((tid, part)) if tid == r.tid() => part,
                _ => self
                    .plan
                    .by_whose
                    .get(&Whose::of(r.tid(), batch.world))
                    .copied(),
            };
            last = Some((r.tid(), part));
            let from = self.source(r.offset)?;
            if let Some(part) = part {
                self.reference(part, from, r)?;
                let making = &mut self.parts[part as usize];
                making.counts.reference(r);
                making.windows.entry(from.window).or_default().reference(r);
            }
            self.all.reference(r);
            if batch.pages[i] <= self.named {
                continue;
            }
            self.named = batch.pages[i];
            let family = self.plan.families.get(&r.mm).copied();
            let others = family.map_or(0, |f| self.plan.of_family[f as usize].len());
            if others < 2 || !is_private(r, &batch.places[i], batch.world) {
                continue;
            }
            let context = From {
                stream: StreamId {
                    kind: StreamKind::Context,
                    cpu: 0,
                    set: 0,
                },
                window: from.window,
            };
            for at in 0..others {
                let other = self.plan.of_family[family.unwrap_or(0) as usize][at];
                if Some(other) != part {
                    self.share(self.header.ref_size())?;
                    self.reference(other, context, r)?;
                    self.parts[other as usize].context += 1;
                }
            }
        }
        match self.held > HELD {
            true => self.flush_all(),
            false => Ok(()),
        }
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue]) -> Result<()> {
        self.used = true;
        let from = self.source(e.offset)?;
        self.all.events += 1;
        let mut targets = std::mem::take(&mut self.targets);
        targets.event(&self.plan, e, world);
        for &part in &targets.parts {
            self.share(e.raw.len())?;
            let buffer = self.buffer(part, from, (e.seq, e.time_ns), e.raw.len())?;
            buffer.events.extend_from_slice(e.raw);
            self.held += e.raw.len();
            let making = &mut self.parts[part as usize];
            making.counts.events += 1;
            making.windows.entry(from.window).or_default().events += 1;
        }
        self.targets = targets;
        match self.held > HELD {
            true => self.flush_all(),
            false => Ok(()),
        }
    }

    fn finish(&mut self, _trace: &Trace, outcome: &Outcome) -> Result<()> {
        // It was good when it was surveyed.
        match outcome.damage.first() {
            Some(damage) => Err(Error::NotDivided {
                path: self.trace.path().into(),
                why: format!("byte {}: {}", damage.start, damage.detail),
            }),
            None => Ok(()),
        }
    }
}

/// Finds out how packets of references were packed.
struct Repeats {
    unpacker: Unpacker,
    packers: BTreeMap<i32, Packer>,
    /// The level that did last time.
    level: i32,
    /// Packets that no level gave.
    failed: u32,
    content: Vec<u8>,
}

impl Repeats {
    fn new() -> Self {
        Repeats {
            unpacker: Unpacker::default(),
            packers: BTreeMap::new(),
            level: LEVEL,
            failed: 0,
            content: Vec::new(),
        }
    }

    /// The N and the level that give the stored content again.
    fn find(
        &mut self,
        header: &Header,
        head: &PacketHead,
        stored: &[u8],
    ) -> std::io::Result<Option<(u32, u8)>> {
        let unpacked = self
            .unpacker
            .unpack(header, head, stored, &mut self.content);
        if unpacked.is_err() {
            return Ok(None);
        }
        let lag = self.unpacker.lag(head, stored);
        let is_compressed = head.codec & uapi::VMTRACE_CODEC_ZSTD as u16 != 0;
        let levels: Vec<i32> = match (is_compressed, self.failed) {
            (false, _) => vec![0],
            (true, TRIES..) => Vec::new(),
            (true, _) => std::iter::once(self.level).chain(1..=19).collect(),
        };
        for level in levels {
            let packer = match self.packers.entry(level) {
                std::collections::btree_map::Entry::Occupied(packer) => packer.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(Packer::new(Some(level).filter(|&level| level > 0))?)
                }
            };
            let packed = packer.pack_with(lag, header, StreamKind::Ref, &self.content)?;
            if packed == Some((head.codec, stored)) {
                (self.level, self.failed) = (if level > 0 { level } else { self.level }, 0);
                return Ok(Some((lag, level as u8)));
            }
        }
        self.failed += u32::from(is_compressed && self.failed < TRIES);
        Ok(None)
    }
}

/// Writes the frame; gives its length in bytes.
fn frame(
    trace: &Trace,
    parts: &[MadePart],
    into: &Path,
    shown: &str,
    observer: &mut dyn Observer,
) -> Result<u64> {
    let header = trace.header();
    let path = into.join(FRAME_NAME);
    let mut out = Items::new(File::create(&path).writing(shown)?, shown)?;
    let stop = stop(trace);
    let mut crc = crc32c::crc32c(trace.raw_header());
    let unreadable = |source| trace.unreadable(source);
    out.literal(trace.raw_header())?;
    let mut repeats = Repeats::new();
    let (mut walk, mut packet, mut at) = (Walk::new(trace), Vec::new(), HEADER_SIZE as u64);
    while at < stop {
        if !observer.progress(at, stop) {
            return Err(Error::Interrupted);
        }
        let next = walk.next()?.filter(|next| next.0 == at);
        let Some((_, head, raw)) = next else {
            // Only a trace that has changed has no packet there.
            return Err(Error::Shortened {
                path: trace.path().into(),
                len: trace.file_bytes(),
            });
        };
        packet.resize(head.size() as usize, 0);
        trace.bytes().read(at, &mut packet).map_err(unreadable)?;
        crc = crc32c::crc32c_append(crc, &packet);
        at += head.size();
        let stored = &packet[HEAD_SIZE..];
        if head.stream.kind != StreamKind::Ref {
            out.literal(&packet)?;
        } else if !head.is_packed() {
            out.item(PLAIN, &raw)?;
        } else if let Some((lag, level)) = repeats.find(header, &head, stored).writing(shown)? {
            let mut item = lag.to_le_bytes().to_vec();
            item.push(level);
            item.extend_from_slice(&raw);
            out.item(PACKED, &item)?;
        } else {
            out.item(VERBATIM, &packet)?;
        }
    }
    out.finish(header, stop, crc, parts)
}

/// The body of a frame that is being written.
struct Items<'a> {
    out: BufWriter<File>,
    shown: &'a str,
    /// Bytes that are no item yet.
    literal: Vec<u8>,
    crc: u32,
    len: u64,
}

impl<'a> Items<'a> {
    fn new(file: File, shown: &'a str) -> Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 18, file);
        out.write_all(&[0; FRAME_HEAD]).writing(shown)?;
        Ok(Items {
            out,
            shown,
            literal: Vec::new(),
            crc: 0,
            len: 0,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.len += bytes.len() as u64;
        self.out.write_all(bytes).writing(self.shown)
    }

    fn literal(&mut self, bytes: &[u8]) -> Result<()> {
        self.literal.extend_from_slice(bytes);
        match self.literal.len() >= COPY {
            true => self.settle(),
            false => Ok(()),
        }
    }

    fn settle(&mut self) -> Result<()> {
        let literal = std::mem::take(&mut self.literal);
        if literal.is_empty() {
            return Ok(());
        }
        self.put(&[LITERAL])?;
        self.put(&(literal.len() as u32).to_le_bytes())?;
        self.put(&literal)
    }

    fn item(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        self.settle()?;
        self.put(&[kind])?;
        self.put(bytes)
    }

    fn finish(
        mut self,
        header: &Header,
        trace_bytes: u64,
        trace_crc: u32,
        parts: &[MadePart],
    ) -> Result<u64> {
        self.settle()?;
        let body = self.len;
        let table = serde_json::to_vec(&Table {
            postproc: env!("CARGO_PKG_VERSION").into(),
            parts: parts.to_vec(),
        });
        let table = table.map_err(std::io::Error::from).writing(self.shown)?;
        self.put(&table)?;
        let mut head = [0; FRAME_HEAD];
        head[..8].copy_from_slice(&FRAME_MAGIC);
        LE::write_u32(&mut head[8..], FRAME_VERSION);
        LE::write_u32(&mut head[12..], trace_crc);
        head[16..32].copy_from_slice(&header.uuid.0);
        LE::write_u64(&mut head[32..], trace_bytes);
        LE::write_u64(&mut head[40..], body);
        let own = crc32c::crc32c(&head[..FRAME_HEAD - 4]);
        let crc = crc32c::crc32c_combine(own, self.crc, self.len as usize);
        LE::write_u32(&mut head[FRAME_HEAD - 4..], crc);
        self.out.flush().writing(self.shown)?;
        let file = self.out.get_ref();
        file.write_all_at(&head, 0).writing(self.shown)?;
        Ok(FRAME_HEAD as u64 + self.len)
    }
}
