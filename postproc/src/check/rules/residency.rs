//! `residency`: stays in the EVMS are what a FIFO of N gives.
//!
//! Admissions are numbered; aborted ones take a number too and leave a gap in
//! the sequence numbers. A page keeps its place when its stay ends early, so
//! admission number `o` has to go for number `o + N`, at that one's time, and
//! for no other: it is evicted, or renewed with a number of its own, as what a CPU
//! may still need and what has a second chance is.
//!
//! A page that gets another frame, by a copy on write, swapping, KSM or migration, has its
//! PTE cleared before the event is recorded. So no stay goes on at such an event. A stay
//! that does has a number before the event, and the frame of after it: another CPU changed
//! the page while it was being admitted, and nobody noticed. The same holds for pages that
//! `MADV_DONTNEED`, truncation and holes drop.

use crate::canon::drops_private;
use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Damage, Event, Ref, Trace, Why};
use crate::units::Mm;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    ordinal: u64,
    record: Ref,
    next: u32,
}

/// The last N admissions, and a hash of their pages.
///
/// Memory: 88 bytes for each page of the EVMS, and up to twice that: sizes are powers of
/// two, and most buckets are empty, so that a page that is not there costs one look.
#[derive(Default)]
pub(super) struct Residency {
    n: u64,
    shift: u32,
    page_shift: u32,
    one_cpu: bool,
    /// Why admissions cannot be numbered, if they cannot.
    blind: Option<&'static str>,
    slots: Vec<Slot>,
    buckets: Vec<u32>,
    head: usize,
    len: usize,
    /// Time of the admission before the present one.
    before_ns: u64,
}

impl Residency {
    fn bucket(&self, mm: u32, page: u64) -> usize {
        let key = (page >> self.page_shift) ^ (u64::from(mm) << 36);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn same(&self, at: u32, mm: Mm, page: u64) -> bool {
        let other = &self.slots[at as usize].record;
        other.mm == mm && (other.page ^ page) >> self.page_shift == 0
    }

    /// The latest admission of a page among the last N.
    fn find(&self, mm: Mm, page: u64) -> Option<&Slot> {
        let mut at = self.buckets[self.bucket(mm.0, page)];
        while at != NIL {
            if self.same(at, mm, page) {
                return Some(&self.slots[at as usize]);
            }
            at = self.slots[at as usize].next;
        }
        None
    }

    fn push(&mut self, ordinal: u64, r: &Ref) {
        let at = (self.head + self.len) & (self.slots.len() - 1);
        let bucket = self.bucket(r.mm.0, r.page);
        self.slots[at] = Slot {
            ordinal,
            record: *r,
            next: self.buckets[bucket],
        };
        self.buckets[bucket] = at as u32;
        self.len += 1;
    }

    fn pop(&mut self) -> Slot {
        let at = self.head as u32;
        let slot = self.slots[self.head];
        let bucket = self.bucket(slot.record.mm.0, slot.record.page);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = slot.next;
        } else {
            let mut walk = self.buckets[bucket];
            while walk != NIL {
                let next = self.slots[walk as usize].next;
                if next == at {
                    self.slots[walk as usize].next = slot.next;
                    break;
                }
                walk = next;
            }
        }
        self.head = (self.head + 1) & (self.slots.len() - 1);
        self.len -= 1;
        slot
    }

    /// Requires that a stay of a page has ended when an event is recorded.
    fn ended(&self, e: &Event<'_>, r: &Ref, what: &str, world: &World, out: &mut Findings) {
        if r.end_ns(self.shift).is_some_and(|end| end > e.time_ns) {
            out.error(|| {
                Draft::new(format!("goes on although a later {} {what}", e.name()))
                    .record(Cited::reference(r, world))
                    .related(Some(Cited::event(e)))
            });
        }
    }

    /// The same of all pages of a range that an event drops.
    fn dropped(
        &self,
        e: &Event<'_>,
        mm: Mm,
        start: u64,
        end: u64,
        world: &World,
        out: &mut Findings,
    ) {
        const WHAT: &str = "dropped the page";
        let (first, last) = (start >> self.page_shift, end >> self.page_shift);
        if last.saturating_sub(first) < self.len as u64 {
            for page in first..last {
                if let Some(slot) = self.find(mm, page << self.page_shift) {
                    self.ended(e, &slot.record, WHAT, world, out);
                }
            }
            return;
        }
        for at in 0..self.len {
            let r = &self.slots[(self.head + at) & (self.slots.len() - 1)].record;
            if r.mm == mm && (first..last).contains(&(r.page >> self.page_shift)) {
                self.ended(e, r, WHAT, world, out);
            }
        }
    }

    /// Whether the stay ended because its place was taken.
    fn gave_way(r: &Ref) -> bool {
        matches!(r.flags().why(), Why::Evicted | Why::Renewed | Why::Chance)
    }

    /// Whether a stay ended when its place was taken, between two times.
    fn judge(&self, slot: &Slot, low_ns: u64, high_ns: u64, world: &World, out: &mut Findings) {
        let r = &slot.record;
        if r.stay == u32::MAX {
            return;
        }
        let units = |ns: u64| ns.saturating_sub(r.time_ns) >> self.shift;
        let (stay, low, high) = (u64::from(r.stay), units(low_ns), units(high_ns));
        if Self::gave_way(r) {
            if stay < low {
                out.error(|| {
                    Draft::new(format!(
                        "{} {} ns before the {}th later admission",
                        r.flags().why().name(),
                        (low - stay) << self.shift,
                        self.n
                    ))
                    .record(Cited::reference(r, world))
                });
            } else if stay > high {
                out.error(|| {
                    Draft::new(format!(
                        "stayed {} ns longer than until the {}th later admission took its place",
                        (stay - high) << self.shift,
                        self.n
                    ))
                    .record(Cited::reference(r, world))
                });
            }
        } else if stay > high {
            // Another CPU may take the place of a page while it is unmapped;
            // alone, a CPU cannot.
            let draft = || {
                Draft::new(format!(
                    "{} {} ns after the {}th later admission took its place",
                    r.flags().why().name(),
                    (stay - high) << self.shift,
                    self.n
                ))
                .record(Cited::reference(r, world))
            };
            if self.one_cpu {
                out.error(draft)
            } else {
                out.note(draft)
            }
        }
    }
}

impl Rule for Residency {
    fn id(&self) -> &'static str {
        "residency"
    }

    fn about(&self) -> &'static str {
        "stays are those of a FIFO of N: a page leaves or is renewed at the Nth later admission, \
         no page is in the FIFO twice, and no stay goes on when its page gets another frame or \
         is dropped"
    }

    fn begin(&mut self, trace: &Trace, out: &mut Findings) {
        let header = trace.header();
        self.n = u64::from(header.evms_size);
        self.shift = header.stay_shift;
        self.page_shift = header.page_shift;
        self.one_cpu = header.nr_cpus == 1;
        self.blind = if trace
            .index()
            .end
            .as_ref()
            .is_none_or(|e| e.status.lost() > 0)
        {
            Some("the trace has losses or no end")
        } else if !trace.index().damage.is_empty() {
            Some("the trace is damaged")
        } else {
            None
        };
        if let Some(why) = self.blind {
            out.note(|| {
                Draft::new(format!(
                    "not applied: {why}, so admissions cannot be numbered"
                ))
            });
            return;
        }
        // N slots at most are taken: the slots that the header asks for, but no
        // more than there are references.
        let refs = trace.index().records(crate::trace::StreamKind::Ref);
        let slots = (self.n.min(refs) + 1).next_power_of_two() as usize;
        let empty = Ref {
            seq: 0,
            time_ns: 0,
            offset: 0,
            page: 0,
            tid_cpu: 0,
            mm: Mm(0),
            stay: 0,
            pfn: 0,
            vtime: 0,
        };
        self.slots = vec![
            Slot {
                ordinal: 0,
                record: empty,
                next: NIL
            };
            slots
        ];
        self.buckets = vec![NIL; slots * 4];
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue], out: &mut Findings) {
        if self.blind.is_some() {
            return;
        }
        let up = |bytes: u64| bytes.div_ceil(1 << self.page_shift) << self.page_shift;
        let down = |bytes: u64| bytes >> self.page_shift << self.page_shift;
        let page = match &e.body {
            Body::Advise { start, end, advice } if drops_private(*advice) => {
                self.dropped(e, e.mm, *start, *end, world, out);
                return;
            }
            Body::Truncate { file, length } => {
                for (mm, start, end, _) in world.space.parts_of(*file, up(*length), u64::MAX) {
                    self.dropped(e, mm, start, end, world, out);
                }
                return;
            }
            Body::Punch {
                file,
                offset,
                bytes,
            } => {
                let to = down(offset.saturating_add(*bytes));
                for (mm, start, end, shared) in world.space.parts_of(*file, up(*offset), to) {
                    // Private copies remain.
                    if shared {
                        self.dropped(e, mm, start, end, world, out);
                    }
                }
                return;
            }
            Body::Resize { from, to } => {
                self.blind = Some("N was changed");
                out.note(|| {
                    Draft::new(format!(
                        "not applied from here on: N was changed from {from} to {to}"
                    ))
                });
                return;
            }
            Body::Cow(f) | Body::Ksm(f) | Body::Migrate(f) => f.page,
            Body::SwapIn(s) | Body::SwapOut(s) => s.page,
            _ => return,
        };
        if let Some(slot) = self.find(e.mm, page) {
            self.ended(e, &slot.record, "gave the page another frame", world, out);
        }
    }

    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {
        self.blind = Some("the trace is damaged");
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if self.blind.is_some() {
            return;
        }
        for r in batch.refs {
            let ordinal = r.seq.wrapping_sub(batch.world.events);
            while self.len > 0 {
                let oldest = self.slots[self.head].ordinal;
                // A sequence out of order is another rule's finding.
                if ordinal.wrapping_sub(oldest) < self.n && self.len < self.slots.len() {
                    break;
                }
                let slot = self.pop();
                let low = if slot.ordinal.wrapping_add(self.n) == ordinal {
                    r.time_ns
                } else {
                    self.before_ns
                };
                self.judge(&slot, low, r.time_ns, batch.world, out);
            }
            if let Some(former) = self.find(r.mm, r.page) {
                let former = former.record;
                if former.end_ns(self.shift).is_some_and(|end| end > r.time_ns) {
                    out.error(|| {
                        Draft::new("admitted while its former stay had not ended")
                            .record(Cited::reference(r, batch.world))
                            .related(Some(Cited::reference(&former, batch.world)))
                    });
                } else if former.flags().why() == Why::Evicted {
                    out.error(|| {
                        Draft::new(format!(
                            "evicted and admitted again within {} admissions",
                            self.n
                        ))
                        .record(Cited::reference(r, batch.world))
                        .related(Some(Cited::reference(&former, batch.world)))
                    });
                }
            }
            self.push(ordinal, r);
            self.before_ns = r.time_ns;
        }
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome, out: &mut Findings) {
        let Some(end) = trace.index().end.as_ref().filter(|_| self.blind.is_none()) else {
            return;
        };
        // What was aborted behind the last reference may still have evicted.
        let last = end.status.last_seq.wrapping_sub(outcome.world.events);
        while self.len > 0 {
            let slot = self.pop();
            if !Self::gave_way(&slot.record) {
                continue;
            }
            if last.wrapping_sub(slot.ordinal) < self.n {
                out.error(|| {
                    Draft::new(format!(
                        "evicted although fewer than {} admissions followed",
                        self.n
                    ))
                    .record(Cited::reference(&slot.record, &outcome.world))
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::Why;
    use crate::units::Prot;
    use rust_mm_trace::uapi;

    /// A FIFO of four over six pages, and what the rule says after a change.
    fn errors(change: impl FnOnce(&mut TraceBuilder)) -> u64 {
        let mut builder = TraceBuilder::new(1, 4);
        builder.program();
        for i in 0..30 {
            builder.touch(0, 10, 1, 0x1000 + (i % 6) * 0x1000);
        }
        change(&mut builder);
        for i in 0..30 {
            builder.touch(0, 10, 1, 0x1000 + (i % 6) * 0x1000);
        }
        check_bytes(&builder.finish())
            .rule("residency")
            .unwrap()
            .errors
    }

    #[test]
    fn renewals_take_a_number() {
        for chance in [false, true] {
            assert_eq!(errors(|b| b.renew(0, 10, chance)), 0);
        }
        // Renewed before its turn.
        assert!(errors(|b| b.close(1, 0x6000, Why::Renewed)) > 0);
    }

    #[test]
    fn a_fifo_is_a_fifo() {
        assert_eq!(errors(|_| {}), 0);
        assert_eq!(errors(|b| b.abort()), 0);
        assert_eq!(errors(|b| b.close(1, 0x6000, Why::Unmapped)), 0);
    }

    #[test]
    fn eviction_too_early_is_found() {
        assert!(errors(|b| b.close(1, 0x6000, Why::Evicted)) >= 1);
    }

    #[test]
    fn eviction_too_late_is_found() {
        assert!(errors(|b| b.stretch_last_stay(1 << 20)) >= 1);
    }

    #[test]
    fn a_stay_that_a_copy_does_not_end_is_found() {
        assert_eq!(errors(|b| b.cow(0, 10, 1, 0x6000)), 0);
        // The event of a copy, without the end of the stay.
        let event = |b: &mut TraceBuilder, page: u64| {
            let mut payload = [0; size_of::<uapi::vmtrace_ev_page>()];
            payload[..8].copy_from_slice(&page.to_le_bytes());
            b.event(0, 10, 1, uapi::VMTRACE_EV_COW, &payload);
        };
        assert_eq!(errors(|b| event(b, 0x6000)), 1);
        // A page whose stay has ended.
        assert_eq!(errors(|b| event(b, 0x2000)), 0);
    }

    #[test]
    fn a_stay_of_a_dropped_page_is_found() {
        const MADV_DONTNEED: u64 = 4;
        const MADV_FREE: u64 = 8;
        // The event, without the end of the stay.
        let advise = |pages: u64, advice: u64| {
            errors(|b| {
                let words = [0x6000, 0x6000 + pages * 0x1000, advice];
                let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                b.event(0, 10, 1, uapi::VMTRACE_EV_ADVISE, &payload);
            })
        };
        let found = [advise(1, MADV_DONTNEED), advise(9, MADV_DONTNEED)];
        let free = advise(1, MADV_FREE);
        assert!(
            found.iter().all(|&n| n > 0) && free == 0,
            "{found:?} {free}"
        );
        let after = errors(|b| b.advise(0, 10, 1, 0x6000, 0x7000, MADV_DONTNEED));
        assert_eq!(after, 0);
        let truncate = |close: bool| {
            let mut b = TraceBuilder::new(1, 4);
            b.program();
            b.map_file(0, 10, 1, 0x40_0000, 0x40_4000, Prot(3), true, 7, 0x2000);
            b.touch(0, 10, 1, 0x40_1000);
            if close {
                b.close(1, 0x40_1000, Why::Truncated);
            }
            b.truncate(0, 10, 7, 0x2001);
            b.touch(0, 10, 1, 0x40_0000);
            check_bytes(&b.finish()).rule("residency").unwrap().errors
        };
        assert_eq!((truncate(true), truncate(false)), (0, 1));
    }

    #[test]
    fn a_page_twice_in_the_set_is_found() {
        assert!(errors(|b| b.admit_member_again()) >= 1);
    }
}
