//! `frames`: canonical pages agree with page frames.
//!
//! A record contains the frame to which its PTE led during the whole stay. So of the pages
//! that are enabled at one moment:
//!
//! - each canonical page lies in one frame, whatever mappings lead to it;
//! - each frame holds one canonical page.
//!
//! The second condition has exceptions. Anonymous memory that was only read maps the
//! kernel's zero page: such pages are different and share one frame. The trace does not say
//! which frame that is, so the rule takes the first frame that is shared in this way within
//! one address space. Different address spaces may also share such a frame for pages from
//! before the trace, or for pages that were not referenced before a fork (see
//! [`crate::canon`]): these are notes. Also notes are a page at one address of two address
//! spaces that both have it from before the trace, and pages of a private mapping of a file
//! from before the trace, which may be copies that no event reported. Memory that KSM may
//! merge is left out, and so are the pages of devices and of the kernel.
//!
//! If a filter may have left references out, the first reference to a page before a fork may be missing.
//! Then the page gets a name in each process, so two names for anonymous memory of different address
//! spaces in one frame are but a note.
//!
//! On several CPUs, times may go back in the order of numbers: see [`super::drawn`]. There, a page
//! that is admitted meets an enabled one only if that stay ended after the moment by which the
//! admission's number is sure to have been drawn.
//!
//! This rule needs canonical pages, which the other rules do not need. It is applied on
//! request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rust_mm_trace::uapi;
use rustc_hash::{FxHashMap, FxHashSet};

use super::drawn::{Drawn, Waiting};
use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Outcome, Place, World};
use crate::radix::{Keyed, Radix};
use crate::space::{Issue, ObjectId};
use crate::trace::{Body, Event, MapKind, Ref, Trace, Why};
use crate::units::Mm;

/// The kernel's value for a frame whose number does not fit into a record.
const NO_FRAME: u32 = u32::MAX;
const MADV_MERGEABLE: u64 = 12;

/// A page whose stay goes on.
#[derive(Clone, Copy)]
struct Open {
    page: u32,
    /// Stays of the page in the frame.
    stays: u32,
    record: Ref,
    /// When the last of them ends; and whether one ends with its window.
    end_ns: u64,
    drained: bool,
    /// All stays are of anonymous memory, and none wrote.
    clean: bool,
    /// Some stays may be of a copy from before the trace.
    before: bool,
    /// The page is anonymous memory from before the trace, or was when it was forked.
    inherited: bool,
    /// The page is anonymous memory.
    anon: bool,
}

/// Memory use: proportional to the stays that go on, which are at most N.
#[derive(Default)]
pub(super) struct Frames {
    shift: u32,
    /// By end: frame and page.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// The pages in a frame: more than one only in the zero page.
    by_frame: FxHashMap<u32, Vec<Open>>,
    /// The frames of a page.
    by_page: FxHashMap<u32, Vec<(u32, u32)>>,
    zero: Option<u32>,
    mergeable: bool,
    /// Files that are not memory: several may lead to one frame.
    devices: FxHashSet<ObjectId>,
    /// Files that were mapped privately before the trace.
    before: Mapped,
    /// Anonymous memory that was mapped before the trace.
    inherited: Mapped,
    one_cpu: bool,
    /// References may be missing.
    may_lack: bool,
    /// The latest time of the references so far.
    latest_ns: u64,
    drawn: Drawn,
    /// Errors that are none if the stay that they are about ended by this time, or before the
    /// number that they wait for was drawn.
    waiting: Waiting<(u64, Draft)>,
}

/// What address spaces have mapped at some time; a child shares what its parent has.
#[derive(Default)]
struct Mapped(FxHashMap<Mm, Radix<ObjectId>>);

impl Mapped {
    fn contains(&self, mm: Mm, object: ObjectId) -> bool {
        let objects = self.0.get(&mm);
        objects.is_some_and(|all| all.get(object.key()).is_some())
    }

    fn insert(&mut self, mm: Mm, object: ObjectId) {
        if !self.contains(mm, object) {
            self.0.entry(mm).or_default().insert(object);
        }
    }

    fn fork(&mut self, parent: Mm, child: Mm) {
        if let Some(objects) = self.0.get(&parent).cloned() {
            self.0.insert(child, objects);
        }
    }

    fn end(&mut self, mm: Mm) {
        self.0.remove(&mm);
    }
}

/// What is known about a reference besides its record.
#[derive(Clone, Copy)]
struct Known {
    page: u32,
    clean: bool,
    before: bool,
    inherited: bool,
    anon: bool,
}

impl Frames {
    fn end(&mut self, frame: u32, page: u32) {
        if let Some(all) = self.by_frame.get_mut(&frame) {
            if let Some(open) = all.iter_mut().find(|o| o.page == page) {
                open.stays -= 1;
            }
            all.retain(|o| o.stays > 0);
            if all.is_empty() {
                self.by_frame.remove(&frame);
            }
        }
        if let Some(all) = self.by_page.get_mut(&page) {
            if let Some(found) = all.iter_mut().find(|f| f.0 == frame) {
                found.1 -= 1;
            }
            all.retain(|f| f.1 > 0);
            if all.is_empty() {
                self.by_page.remove(&page);
            }
        }
    }

    fn begin(&mut self, r: &Ref, known: Known, world: &World, out: &mut Findings) {
        let Known {
            page,
            clean,
            before,
            inherited,
            anon,
        } = known;
        let cited = |r: &Ref| Cited::reference(r, world);
        let (one_cpu, may_lack) = (self.one_cpu, self.may_lack);
        let waiting = &mut self.waiting;
        let mut add = |note: bool, met: Option<&Open>, message: &dyn Fn() -> Draft| {
            // The drain of a window comes after all of its admissions.
            let sure = |met: &Open| one_cpu || met.drained && met.end_ns > r.time_ns;
            match met {
                _ if note => out.note(message),
                Some(met) if !sure(met) => waiting.add(r.seq, (met.end_ns, message())),
                _ => out.error(message),
            }
        };
        if let Some(&(other, _)) = self
            .by_page
            .get(&page)
            .and_then(|all| all.iter().find(|f| f.0 != r.pfn))
        {
            let related = self.by_frame.get(&other);
            let related = related.and_then(|all| all.iter().find(|o| o.page == page));
            let old = before || related.is_some_and(|o| o.before);
            add(old, related, &|| {
                Draft::new(format!(
                    "page {page} is in frame {:#x}, and in frame {other:#x} at the same time",
                    r.pfn
                ))
                .record(cited(r))
                .related(related.map(|o| cited(&o.record)))
            });
        }
        let all = self.by_frame.entry(r.pfn).or_default();
        if let Some(open) = all.iter().find(|o| o.page != page) {
            let message = || {
                Draft::new(format!(
                    "frame {:#x} holds page {page}, and page {} at the same time",
                    r.pfn, open.page
                ))
                .record(cited(r))
                .related(Some(cited(&open.record)))
            };
            // A page from before the trace that was not referenced before the fork.
            let of_fork = inherited
                && open.inherited
                && open.record.mm != r.mm
                && open.record.address() == r.address();
            let of_left_out = may_lack && anon && open.anon && open.record.mm != r.mm;
            if !(clean && open.clean) {
                let note = before || open.before || of_fork || of_left_out;
                add(note, Some(open), &message);
            } else if open.record.mm == r.mm {
                if *self.zero.get_or_insert(r.pfn) != r.pfn {
                    add(false, Some(open), &message);
                }
            } else if self.zero != Some(r.pfn) {
                add(true, Some(open), &message);
            }
        }
        let end_ns = r.end_ns(self.shift);
        let drained = r.flags().why() == Why::Drained;
        match all.iter_mut().find(|o| o.page == page) {
            Some(open) => {
                open.stays += 1;
                open.end_ns = open.end_ns.max(end_ns.unwrap_or(0));
                open.drained |= drained;
                open.clean &= clean;
                open.before |= before;
            }
            None => all.push(Open {
                page,
                stays: 1,
                record: *r,
                end_ns: end_ns.unwrap_or(0),
                drained,
                clean,
                before,
                inherited,
                anon,
            }),
        }
        let frames = self.by_page.entry(page).or_default();
        match frames.iter_mut().find(|f| f.0 == r.pfn) {
            Some(found) => found.1 += 1,
            None => frames.push((r.pfn, 1)),
        }
        // If the length of a stay is not known, only its beginning counts.
        if let Some(end) = end_ns {
            self.ends.push(Reverse((end, r.pfn, page)));
        } else {
            self.end(r.pfn, page);
        }
    }

    /// Judges what waits for a number, or a smaller one: these were drawn by this time.
    fn settle(&mut self, number: u64, by_ns: u64, out: &mut Findings) {
        while let Some((end_ns, draft)) = self.waiting.take(number) {
            if end_ns > by_ns {
                out.error(|| draft);
            }
        }
    }
}

impl Rule for Frames {
    fn id(&self) -> &'static str {
        "frames"
    }

    fn about(&self) -> &'static str {
        "among the pages that are enabled at one time, each canonical page lies in one frame, and \
         each frame holds one canonical page"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        let header = trace.header();
        self.shift = header.stay_shift;
        self.one_cpu = header.nr_cpus == 1;
        self.may_lack = trace.may_lack_references();
        self.drawn = Drawn::new(header);
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn follows_names(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            self.latest_ns = self.latest_ns.max(r.time_ns);
            if let Some(number) = self.drawn.record(r.seq, r) {
                self.settle(number, r.time_ns, out);
            }
            let Place::Mapped { object, .. } = place else {
                continue;
            };
            let kind = batch.world.space.object(*object).kind;
            let apart = matches!(kind, MapKind::Special | MapKind::Device | MapKind::Unknown);
            let apart = apart || self.devices.contains(object);
            if apart || r.pfn == NO_FRAME || page.0 == 0 {
                continue;
            }
            while let Some(&Reverse((end, frame, other))) = self.ends.peek() {
                if end > self.latest_ns {
                    break;
                }
                self.ends.pop();
                self.end(frame, other);
            }
            let clean = kind == MapKind::Anon && !r.flags().writes();
            if !(clean && self.mergeable) {
                let known = Known {
                    page: page.0,
                    clean,
                    before: self.before.contains(r.mm, *object),
                    inherited: self.inherited.contains(r.mm, *object),
                    anon: kind == MapKind::Anon,
                };
                Frames::begin(self, r, known, batch.world, out);
            }
        }
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue], out: &mut Findings) {
        self.settle(u64::MAX, e.time_ns, out);
        match e.body {
            Body::Advise { advice, .. } => self.mergeable |= advice == MADV_MERGEABLE,
            Body::Map(map) => {
                self.mergeable |= map.flags & uapi::VMTRACE_MAP_MERGEABLE != 0;
                let mapping = world.space.get(e.mm).and_then(|s| s.find(map.start));
                let Some(object) = mapping.map(|mapping| mapping.object) else {
                    return;
                };
                if map.flags & uapi::VMTRACE_MAP_PFN != 0 {
                    self.devices.insert(object);
                }
                let private = map.flags & uapi::VMTRACE_MAP_SHARED == 0;
                let file = matches!(map.kind, MapKind::File | MapKind::Shmem);
                if e.is_snapshot() && private && file {
                    self.before.insert(e.mm, object);
                }
                if e.is_snapshot() && private && map.kind == MapKind::Anon {
                    self.inherited.insert(e.mm, object);
                }
            }
            Body::MmDup { parent } => {
                self.before.fork(parent, e.mm);
                self.inherited.fork(parent, e.mm);
            }
            Body::MmEnd => {
                self.before.end(e.mm);
                self.inherited.end(e.mm);
            }
            _ => {}
        }
    }

    fn finish(&mut self, trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        let end = trace.index().end.as_ref();
        let stop_ns = end.map_or(u64::MAX, |end| end.status.stop_time_ns);
        self.settle(u64::MAX, stop_ns, out);
    }
}

#[cfg(test)]
mod tests {
    use crate::canon::PageMode;
    use crate::check::{CheckOptions, Checker, RuleReport};
    use crate::pipeline::{Unwatched, run};
    use crate::testing::TraceBuilder;
    use crate::trace::{FileId, Trace, Why};
    use crate::units::{Access, Prot};
    use rust_mm_trace::uapi;

    fn found(builder: TraceBuilder, names: PageMode) -> RuleReport {
        let trace = Trace::from_bytes("memory", builder.finish()).unwrap();
        let options = CheckOptions {
            allow_loss: false,
            examples: 3,
        };
        let mut checker = Checker::with_pages(options);
        let consumers: &mut [&mut dyn crate::pipeline::Consumer] = &mut [&mut checker];
        run(&trace, names, &mut Unwatched, consumers).unwrap();
        let mut report = checker.report();
        let frames = report.rules.pop().unwrap();
        assert!(report.rules.iter().all(|r| r.errors == 0), "{report:#?}");
        frames
    }

    /// Two processes, which share pages 0x10 to 0x1f of a file, and have memory of
    /// their own.
    fn two() -> TraceBuilder {
        let mut b = TraceBuilder::new(1, 8);
        for (tid, mm) in [(10, 1), (20, 2)] {
            b.task(0, tid, tid, mm, "program");
            b.map_anon(0, tid, mm, 0x10_0000, 0x11_0000, Prot(3));
            b.map_file(0, tid, mm, 0x40_0000, 0x41_0000, Prot(3), true, 7, 0x10_000);
        }
        b
    }

    fn errors_and_notes(touches: &[(u32, u64, u32, Access)]) -> (u64, u64) {
        errors_and_notes_by(touches, PageMode::Canonical)
    }

    fn errors_and_notes_by(touches: &[(u32, u64, u32, Access)], names: PageMode) -> (u64, u64) {
        let mut b = two();
        for &(mm, address, frame, access) in touches {
            b.frame(frame);
            b.touch_as(0, mm * 10, mm, address, access);
            // Stays are told in units of some hundred nanoseconds.
            for _ in 0..20 {
                b.advise(0, mm * 10, mm, 0x10_f000, 0x11_0000, 0);
            }
        }
        let report = found(b, names);
        (report.errors, report.notes)
    }

    #[test]
    fn a_shared_page_has_one_frame() {
        use Access::{Read, Write};
        let shared = |frame| [(1, 0x40_0000, 5, Read), (2, 0x40_0000, frame, Write)];
        assert_eq!(errors_and_notes(&shared(5)), (0, 0));
        assert_eq!(errors_and_notes(&shared(6)), (1, 0));
        // Names that do not know what is shared are wrong.
        assert_eq!(errors_and_notes_by(&shared(5), PageMode::Virtual), (1, 0));
    }

    /// What was there before the trace, and not referenced before a fork, is one page that
    /// has two names.
    #[test]
    fn a_page_from_before_may_be_shared_by_a_fork() {
        let of = |snapshot: bool, other: u64| {
            let mut b = TraceBuilder::new(1, 8);
            b.task(0, 10, 10, 1, "program");
            b.snapshot(snapshot);
            b.map_anon(0, 10, 1, 0x10_0000, 0x11_0000, Prot(3));
            b.snapshot(false);
            b.fork(0, 10, 1, 20, 2);
            for (mm, address) in [(1, 0x10_0000), (2, other)] {
                b.frame(5);
                b.touch_as(0, mm * 10, mm, address, Access::Write);
                b.advise(0, mm * 10, mm, 0x10_f000, 0x11_0000, 0);
            }
            let report = found(b, PageMode::Canonical);
            (report.errors, report.notes)
        };
        assert_eq!(of(true, 0x10_0000), (0, 1));
        assert_eq!(of(true, 0x10_1000), (1, 0));
        assert_eq!(of(false, 0x10_0000), (1, 0));
    }

    /// The reference that would have given the page its name before a fork may have been left out.
    #[test]
    fn a_page_of_which_a_reference_was_left_out_may_be_shared_by_a_fork() {
        let of = |filters: bool| {
            let mut b = TraceBuilder::new(1, 8);
            if filters {
                b.filtered();
            }
            b.task(0, 10, 10, 1, "program");
            b.map_anon(0, 10, 1, 0x10_0000, 0x11_0000, Prot(3));
            if filters {
                b.filter(0, "kind == write", |a| a.access == Access::Write);
                b.touch(0, 10, 1, 0x10_5000);
            }
            b.fork(0, 10, 1, 20, 2);
            for mm in [1u32, 2] {
                b.frame(5);
                let address = 0x10_0000 + u64::from(mm << 12);
                b.touch_as(0, mm * 10, mm, address, Access::Write);
                b.advise(0, mm * 10, mm, 0x10_f000, 0x11_0000, 0);
            }
            let report = found(b, PageMode::Canonical);
            (report.errors, report.notes)
        };
        assert_eq!(of(false), (1, 0));
        // It may have been moved since.
        assert_eq!(of(true), (0, 1));
    }

    /// fork copies a pinned page at once, so each process has a frame of its own.
    #[test]
    fn a_pinned_page_is_two_after_a_fork() {
        let of = |pinned: &[u64]| {
            let mut b = TraceBuilder::new(1, 8);
            b.task(0, 10, 10, 1, "program");
            b.map_anon(0, 10, 1, 0x10_0000, 0x11_0000, Prot(3));
            b.frame(5);
            b.touch_as(0, 10, 1, 0x10_0000, Access::Write);
            b.fork_pinned(0, 10, 1, 20, 2, pinned);
            b.frame(6);
            b.touch_as(0, 20, 2, 0x10_0000, Access::Write);
            b.advise(0, 10, 1, 0x10_f000, 0x11_0000, 0);
            let report = found(b, PageMode::Canonical);
            (report.errors, report.notes)
        };
        assert_eq!(of(&[0x10_0000]), (0, 0));
        assert_eq!(of(&[]), (1, 0));
    }

    /// A window begins with memory that KSM merged before it.
    #[test]
    fn memory_that_may_be_merged_is_left_out() {
        let of = |flags: u32| {
            let mut b = TraceBuilder::new(1, 8);
            b.task(0, 10, 10, 1, "program");
            b.snapshot(true);
            let (kind, file) = (uapi::VMTRACE_MAP_ANON, FileId::default());
            let range = 0x10_0000..0x11_0000;
            b.map(0, 10, 1, range, Prot(3), kind, flags, file, 0, "");
            b.snapshot(false);
            // The zero page, and a frame of KSM.
            for (i, frame) in (0..).zip([5, 5, 6, 6]) {
                b.frame(frame);
                b.touch_as(0, 10, 1, 0x10_0000 + i * 4096, Access::Read);
            }
            b.advise(0, 10, 1, 0x10_f000, 0x11_0000, 0);
            let report = found(b, PageMode::Canonical);
            (report.errors, report.notes)
        };
        assert_eq!(of(uapi::VMTRACE_MAP_MERGEABLE), (0, 0));
        assert_eq!(of(0), (1, 0));
    }

    #[test]
    fn a_frame_holds_one_page() {
        use Access::{Read, Write};
        let own = |access| [(1, 0x10_0000, 5, access), (2, 0x10_0000, 5, access)];
        assert_eq!(errors_and_notes(&own(Write)), (1, 0));
        assert_eq!(errors_and_notes(&own(Read)), (0, 1));
        // A file's page and anonymous memory.
        let mixed = [(1, 0x40_0000, 5, Read), (2, 0x10_0000, 5, Read)];
        assert_eq!(errors_and_notes(&mixed), (1, 0));
        // The zero page is one frame, not two.
        let zero = |frame| {
            [
                (1, 0x10_0000, 5, Read),
                (1, 0x10_1000, 5, Read),
                (1, 0x10_2000, frame, Read),
                (1, 0x10_3000, frame, Read),
            ]
        };
        assert_eq!(errors_and_notes(&zero(5)), (0, 0));
        assert_eq!(errors_and_notes(&zero(6)), (1, 0));
    }

    /// Two processes that map files 7 and 8, both of which lead to frame 5, or a page of
    /// file 7, which lies in frames 5 and 6.
    fn mapped(flags: u32, snapshot: bool, forked: bool, inodes: [u64; 2]) -> (u64, u64) {
        let file = mapped_as(uapi::VMTRACE_MAP_FILE, flags, snapshot, forked, inodes);
        // A file of tmpfs, which programs may come from.
        let shmem = mapped_as(uapi::VMTRACE_MAP_SHMEM, flags, snapshot, forked, inodes);
        assert_eq!(file, shmem);
        file
    }

    fn mapped_as(
        kind: u32,
        flags: u32,
        snapshot: bool,
        forked: bool,
        inodes: [u64; 2],
    ) -> (u64, u64) {
        let mut b = TraceBuilder::new(1, 8);
        b.task(0, 10, 10, 1, "one");
        if !forked {
            b.task(0, 20, 20, 2, "other");
        }
        b.snapshot(snapshot);
        for (i, ino) in inodes.into_iter().enumerate() {
            let (tid, mm) = if forked {
                (10, 1)
            } else {
                (10 + 10 * i as u32, 1 + i as u32)
            };
            let file = FileId {
                dev: 1,
                ino,
                generation: 0,
            };
            let start = 0x40_0000 + 0x1_0000 * i as u64;
            let range = start..start + 0x1_0000;
            b.map(0, tid, mm, range, Prot(3), kind, flags, file, 0, "file");
        }
        b.snapshot(false);
        if forked {
            b.fork(0, 10, 1, 20, 2);
        }
        let other = if inodes[0] == inodes[1] { 6 } else { 5 };
        for (tid, address, frame) in [(10, 0x40_0000, 5), (20, 0x41_0000, other)] {
            b.frame(frame);
            b.touch_as(0, tid, tid / 10, address, Access::Read);
            // Stays are told in units of some hundred nanoseconds.
            for _ in 0..20 {
                b.advise(0, 10, 1, 0x40_f000, 0x41_0000, 0);
            }
        }
        let report = found(b, PageMode::Canonical);
        (report.errors, report.notes)
    }

    #[test]
    fn files_that_are_no_memory_share_frames() {
        let shared = uapi::VMTRACE_MAP_SHARED;
        assert_eq!(mapped(shared, false, false, [7, 8]), (1, 0));
        let flags = shared | uapi::VMTRACE_MAP_PFN;
        assert_eq!(mapped(flags, false, false, [7, 8]), (0, 0));
    }

    #[test]
    fn copies_from_before_the_trace_are_not_told() {
        for forked in [false, true] {
            assert_eq!(mapped(0, false, forked, [7, 7]), (1, 0));
            assert_eq!(mapped(0, true, forked, [7, 7]), (0, 1));
            let shared = uapi::VMTRACE_MAP_SHARED;
            assert_eq!(mapped(shared, true, forked, [7, 7]), (1, 0));
        }
    }

    /// The kernel drops private copies of what a file loses. So two processes that refer to
    /// the file's new page both have that one.
    #[test]
    fn truncation_ends_private_copies() {
        let of = |length: u64| {
            let mut b = TraceBuilder::new(1, 8);
            for (tid, mm) in [(10, 1), (20, 2)] {
                b.task(0, tid, tid, mm, "program");
                // From the file's third page on.
                b.map_file(0, tid, mm, 0x40_0000, 0x40_4000, Prot(3), false, 7, 0x2000);
            }
            b.frame(5);
            b.touch_as(0, 10, 1, 0x40_1000, Access::Read);
            b.cow(0, 10, 1, 0x40_1000);
            b.frame(6);
            b.touch_as(0, 10, 1, 0x40_1000, Access::Write);
            b.close(1, 0x40_1000, Why::Truncated);
            b.truncate(0, 10, 7, length);
            b.frame(7);
            b.touch_as(0, 10, 1, 0x40_1000, Access::Read);
            b.touch_as(0, 20, 2, 0x40_1000, Access::Read);
            for _ in 0..20 {
                b.advise(0, 10, 1, 0x40_3000, 0x40_4000, 0);
            }
            let report = found(b, PageMode::Canonical);
            (report.errors, report.notes)
        };
        assert_eq!(of(0), (0, 0));
        assert_eq!(of(0x2001), (0, 0));
        // The copied page is the fourth of the file, which has it still.
        assert_eq!(of(0x3001), (1, 0));
        assert_eq!(of(0x3000), (0, 0));
    }

    /// Eight later admissions end a stay; then the frame may hold another page.
    #[test]
    fn a_frame_may_be_used_again() {
        use Access::Write;
        let mut touches = vec![(1, 0x10_0000, 100, Write)];
        for i in 1..9 {
            touches.push((1, 0x10_0000 + i * 0x1000, 100 + i as u32, Write));
        }
        touches.push((2, 0x10_0000, 100, Write));
        touches.push((2, 0x40_0000, 101, Write));
        assert_eq!(errors_and_notes(&touches), (0, 0));
        // Frame 103 is still in use.
        touches.push((2, 0x40_1000, 108, Write));
        assert_eq!(errors_and_notes(&touches), (1, 0));
    }

    /// CPUs' times go back: a page that comes with another frame meets its former stay only if that
    /// ended later than the new number was drawn.
    #[test]
    fn a_stay_may_end_after_the_time_of_what_comes_after_it() {
        let errors = |cpus: u32, ends: u64, again: &dyn Fn(&mut TraceBuilder)| {
            let mut b = TraceBuilder::new(cpus, 8);
            b.program();
            b.map_anon(0, 10, 1, 0x10_0000, 0x20_0000, Prot(3));
            let other = |i: u64| 0x10_0000 + (i << 12);
            b.frame(0x100);
            b.touch_as(0, 10, 1, other(0), Access::Write);
            b.close_after(1, other(0), Why::Other, ends);
            again(&mut b);
            for i in 2..20 {
                b.frame(0x100 + i as u32);
                b.touch_as(i as u32 % cpus, 10, 1, other(i), Access::Write);
            }
            let trace = Trace::from_bytes("memory", b.finish()).unwrap();
            let mut checker = Checker::with_pages(CheckOptions::default());
            let consumers: &mut [&mut dyn crate::pipeline::Consumer] = &mut [&mut checker];
            run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
            checker.report().rule("frames").unwrap().errors
        };
        // The same page in another frame, and another page in the same frame, 100 ns later.
        let frame = |b: &mut TraceBuilder| {
            b.frame(0x200);
            b.touch_as(0, 10, 1, 0x10_0000, Access::Write);
        };
        let page = |b: &mut TraceBuilder| b.touch_as(0, 10, 1, 0x10_1000, Access::Write);
        for again in [&frame as &dyn Fn(&mut TraceBuilder), &page] {
            // Stays are counted in units of 64 ns.
            assert_eq!(errors(1, 127, again), 0);
            assert_eq!(errors(1, 128, again), 1);
            // CPU 0 comes once more 100 ns later.
            assert_eq!(errors(2, 255, again), 0);
            assert_eq!(errors(2, 256, again), 1);
            // An event shows that the number was drawn.
            let event = |b: &mut TraceBuilder| {
                b.leap(100);
                again(b);
                b.protect(1, 10, 1, 0x1_f000, 0x2_0000, Prot(1));
            };
            assert_eq!(errors(2, 319, &event), 0);
            assert_eq!(errors(2, 320, &event), 1);
        }
        // A stay goes on until its window ends: no later admission is needed.
        let mut b = TraceBuilder::new(2, 8);
        b.program();
        b.frame(0x100);
        b.touch_as(0, 10, 1, 0x1000, Access::Write);
        b.touch_as(1, 10, 1, 0x2000, Access::Write);
        b.leap(1_000);
        assert_eq!(found(b, PageMode::Canonical).errors, 1);
    }
}
