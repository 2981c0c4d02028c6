//! `frames`: canonical pages are what page frames say.
//!
//! A record tells the frame that its PTE led to, all of its stay. So at any moment, of
//! the pages that are enabled:
//!
//! - one canonical page lies in one frame, through whatever mappings it is seen;
//! - one frame holds one canonical page.
//!
//! The second has an exception. Anonymous memory that was only read maps the kernel's
//! zero page: such pages are different and share one frame. Which frame that is, the
//! trace does not say: the first one that is shared so within an address space. Pages
//! shared so by different address spaces can also be from before the trace, or not
//! referenced before a fork (see [`crate::canon`]); they are counted as notes. Memory
//! that KSM may merge is left out, and so are devices' and the kernel's own pages.
//!
//! This needs pages by their canonical names, which other rules don't, and is applied
//! if asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Place, World};
use crate::space::Issue;
use crate::trace::{Body, Event, MapKind, Ref, Trace};

/// The kernel writes it for a frame whose number has no room.
const NO_FRAME: u32 = u32::MAX;
const MADV_MERGEABLE: u64 = 12;

/// Whose stay goes on.
#[derive(Clone, Copy)]
struct Open {
    page: u32,
    /// Stays of the page in the frame.
    stays: u32,
    record: Ref,
    /// All of them are of anonymous memory and wrote nothing.
    clean: bool,
}

/// Memory: the stays that go on, at most as many as pages are enabled.
#[derive(Default)]
pub(super) struct Frames {
    shift: u32,
    /// By end: frame and page.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// What lies in a frame; more than one page only in the zero page.
    by_frame: FxHashMap<u32, Vec<Open>>,
    /// The frames of a page.
    by_page: FxHashMap<u32, Vec<(u32, u32)>>,
    zero: Option<u32>,
    mergeable: bool,
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

    fn begin(&mut self, r: &Ref, page: u32, clean: bool, world: &World, out: &mut Findings) {
        let cited = |r: &Ref| Cited::reference(r, world);
        if let Some(&(other, _)) = self
            .by_page
            .get(&page)
            .and_then(|all| all.iter().find(|f| f.0 != r.pfn))
        {
            let related = self.by_frame.get(&other);
            let related = related.and_then(|all| all.iter().find(|o| o.page == page));
            out.error(|| {
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
            if !(clean && open.clean) {
                out.error(message);
            } else if open.record.mm == r.mm {
                if *self.zero.get_or_insert(r.pfn) != r.pfn {
                    out.error(message);
                }
            } else if self.zero != Some(r.pfn) {
                out.note(message);
            }
        }
        match all.iter_mut().find(|o| o.page == page) {
            Some(open) => {
                open.stays += 1;
                open.clean &= clean;
            }
            None => all.push(Open {
                page,
                stays: 1,
                record: *r,
                clean,
            }),
        }
        let frames = self.by_page.entry(page).or_default();
        match frames.iter_mut().find(|f| f.0 == r.pfn) {
            Some(found) => found.1 += 1,
            None => frames.push((r.pfn, 1)),
        }
        // Of a stay whose length is not known only the beginning is.
        if let Some(end) = r.end_ns(self.shift) {
            self.ends.push(Reverse((end, r.pfn, page)));
        } else {
            self.end(r.pfn, page);
        }
    }
}

impl Rule for Frames {
    fn id(&self) -> &'static str {
        "frames"
    }

    fn about(&self) -> &'static str {
        "of pages enabled at one time, one canonical page lies in one frame, and one frame \
         holds one"
    }

    fn begin(&mut self, trace: &Trace, _out: &mut Findings) {
        self.shift = trace.header().stay_shift;
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        for ((r, place), page) in batch.refs.iter().zip(batch.places).zip(batch.pages) {
            let Place::Mapped { object, .. } = place else {
                continue;
            };
            let kind = batch.world.space.object(*object).kind;
            let apart = matches!(kind, MapKind::Special | MapKind::Device | MapKind::Unknown);
            if apart || r.pfn == NO_FRAME || page.0 == 0 {
                continue;
            }
            while let Some(&Reverse((end, frame, other))) = self.ends.peek() {
                if end > r.time_ns {
                    break;
                }
                self.ends.pop();
                self.end(frame, other);
            }
            let clean = kind == MapKind::Anon && !r.flags().writes();
            if !(clean && self.mergeable) {
                Frames::begin(self, r, page.0, clean, batch.world, out);
            }
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], _out: &mut Findings) {
        if let Body::Advise { advice, .. } = e.body {
            self.mergeable |= advice == MADV_MERGEABLE;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::canon::PageMode;
    use crate::check::{CheckOptions, Checker, RuleReport};
    use crate::pipeline::{Unwatched, run};
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;
    use crate::units::{Access, Prot};

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
}
