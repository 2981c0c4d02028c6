//! `residency`: stays in the EVMS are what a FIFO of N gives.
//!
//! Admissions are numbered; aborted ones take a number too and leave a gap in
//! the sequence numbers. A page keeps its place when its stay ends early, so
//! admission number `o` has to go for number `o + N`, at that one's time, and
//! for no other: it is evicted, or renewed with a number of its own, as what a CPU
//! may still need and what has a second chance is.
//!
//! If admissions evict in batches of up to K pages, a page may be evicted for any number from
//! `o + N - K + 1` to `o + N`, together with the page that has to go for that number. Renewals have no batches.
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
    /// K, the pages that one admission evicts at most.
    batch: u64,
    shift: u32,
    page_shift: u32,
    one_cpu: bool,
    /// Why admissions cannot be numbered, if they cannot.
    blind: Option<&'static str>,
    slots: Vec<Slot>,
    buckets: Vec<u32>,
    /// Number of records that have left; the oldest of the others is in the slot of this number.
    head: usize,
    len: usize,
    /// Number of the first record at which the oldest page may be evicted.
    early: usize,
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

    /// The slot of a record, by the number of records before it.
    fn at(&self, record: usize) -> usize {
        record & (self.slots.len() - 1)
    }

    /// The number of later admissions that a page is sure to stay for.
    fn least(&self) -> u64 {
        (self.n + 1).saturating_sub(self.batch)
    }

    /// The time of the first admission that could evict a page with this number, or of the last
    /// record before it, if that admission has no record.
    fn early_ns(&mut self, ordinal: u64) -> u64 {
        let first = ordinal.wrapping_add(self.least());
        let end = self.head + self.len;
        self.early = self.early.max(self.head);
        // Numbers grow, and so does the place of this one.
        while self.early + 1 < end {
            let next = &self.slots[self.at(self.early + 1)];
            if next.ordinal > first {
                break;
            }
            self.early += 1;
        }
        match self.slots.get(self.at(self.early)) {
            Some(slot) if self.early < end && slot.ordinal <= first => slot.record.time_ns,
            _ => 0,
        }
    }

    fn push(&mut self, ordinal: u64, r: &Ref) {
        let at = self.at(self.head + self.len);
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
        let at = self.at(self.head) as u32;
        let slot = self.slots[at as usize];
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
        self.head += 1;
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
            let r = &self.slots[self.at(self.head + at)].record;
            if r.mm == mm && (first..last).contains(&(r.page >> self.page_shift)) {
                self.ended(e, r, WHAT, world, out);
            }
        }
    }

    /// Whether the stay ended because its place was taken.
    fn gave_way(r: &Ref) -> bool {
        matches!(r.flags().why(), Why::Evicted | Why::Renewed | Why::Chance)
    }

    /// Whether a stay may have ended in a batch, before its place was taken.
    fn is_batched(&self, slot: &Slot) -> bool {
        self.batch > 1 && slot.record.flags().why() == Why::Evicted
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
                    let number = match r.flags().why() {
                        Why::Evicted => self.least(),
                        _ => self.n,
                    };
                    Draft::new(format!(
                        "{} {} ns before the {number}th later admission",
                        r.flags().why().name(),
                        (low - stay) << self.shift,
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
        "stays are those of a FIFO of N: a page leaves or is renewed at the Nth later admission \
         (with batches of K, it may leave at one of the K - 1 admissions before), no page is in \
         the FIFO twice, and no stay goes on when its page gets another frame or is dropped"
    }

    fn begin(&mut self, trace: &Trace, out: &mut Findings) {
        let header = trace.header();
        self.n = u64::from(header.evms_size);
        self.batch = u64::from(header.batch);
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
                let oldest = self.slots[self.at(self.head)].ordinal;
                // A sequence out of order is another rule's finding.
                if ordinal.wrapping_sub(oldest) < self.n && self.len < self.slots.len() {
                    break;
                }
                let slot = self.pop();
                let low = if self.is_batched(&slot) {
                    self.early_ns(slot.ordinal)
                } else if slot.ordinal.wrapping_add(self.n) == ordinal {
                    r.time_ns
                } else {
                    self.before_ns
                };
                self.judge(&slot, low, r.time_ns, batch.world, out);
            }
            if let Some(&Slot {
                ordinal: before,
                record: former,
                ..
            }) = self.find(r.mm, r.page)
            {
                if former.end_ns(self.shift).is_some_and(|end| end > r.time_ns) {
                    out.error(|| {
                        Draft::new("admitted while its former stay had not ended")
                            .record(Cited::reference(r, batch.world))
                            .related(Some(Cited::reference(&former, batch.world)))
                    });
                } else if former.flags().why() == Why::Evicted
                    && ordinal.wrapping_sub(before) <= self.least()
                {
                    out.error(|| {
                        Draft::new(format!(
                            "evicted and admitted again within {} admissions",
                            self.least()
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
            let batched = self.is_batched(&slot);
            let least = if batched { self.least() } else { self.n };
            if last.wrapping_sub(slot.ordinal) < least {
                out.error(|| {
                    Draft::new(format!(
                        "evicted although fewer than {least} admissions followed"
                    ))
                    .record(Cited::reference(&slot.record, &outcome.world))
                });
            } else if batched {
                let low = self.early_ns(slot.ordinal);
                self.judge(&slot, low, u64::MAX, &outcome.world, out);
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

    /// A FIFO of eight that evicts in batches of `batch`, whose header says `header`; and what
    /// the rule says after a change in the middle. With `cycle`, pages come again.
    fn batched(
        batch: u32,
        header: u32,
        cycle: u64,
        change: impl FnOnce(&mut TraceBuilder),
    ) -> Vec<String> {
        let mut builder = TraceBuilder::new(1, 8);
        builder.header_mut().batch = batch;
        builder.program();
        for i in 0..42 {
            builder.touch(0, 10, 1, 0x1000 + i % cycle * 0x1000);
        }
        change(&mut builder);
        for i in 42..90 {
            builder.touch(0, 10, 1, 0x1000 + i % cycle * 0x1000);
        }
        builder.header_mut().batch = header;
        let report = check_bytes(&builder.finish());
        let rule = report.rule("residency").unwrap();
        assert_eq!(rule.errors == 0, rule.examples.is_empty());
        rule.examples.iter().map(|e| e.message.clone()).collect()
    }

    #[test]
    fn with_batches_a_stay_may_be_shorter_and_not_too_short() {
        for cycle in [9, 11, 90] {
            for (batch, header, good) in [
                (1, 1, true),
                (3, 3, true),
                (8, 8, true),
                // Longer stays than the shortest ones are as good.
                (1, 3, true),
                (3, 4, true),
                (3, 1, false),
                (3, 0, false),
                (3, 2, false),
                (8, 7, false),
            ] {
                let found = batched(batch, header, cycle, |_| {});
                assert_eq!(
                    found.is_empty(),
                    good,
                    "{batch} {header} {cycle}: {found:?}"
                );
                if !good && cycle == 90 {
                    let least = 9 - header.max(1);
                    let text = format!("before the {least}th later admission");
                    assert!(found.iter().all(|f| f.contains(&text)), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn with_batches_both_bounds_are_the_nearest_ones() {
        // The page 0x29000 was admitted when page 0x2a000 is the last one: one admission before.
        for (later, good) in [(0, false), (4, false), (5, true), (7, true)] {
            let found = batched(1, 3, 90, |b| {
                for i in 100..100 + later {
                    b.touch(0, 10, 1, i << 12);
                }
                b.close(1, 0x29000, Why::Evicted);
            });
            assert_eq!(found.is_empty(), good, "{later}: {found:?}");
        }
        // The oldest page is due at the next admission, which comes 100 ns later.
        for (ns, good) in [(0, true), (100, true), (200, false)] {
            let found = batched(1, 3, 90, |b| b.stretch_last_stay(ns));
            assert_eq!(found.is_empty(), good, "{ns}: {found:?}");
        }
    }

    #[test]
    fn with_batches_other_ends_are_as_before() {
        for batch in [1, 3] {
            let close = |why| batched(batch, batch, 90, move |b| b.close(1, 0x29000, why));
            assert_eq!(close(Why::Unmapped), [""; 0]);
            // A renewal has no batch, so it is at its turn or wrong.
            let renewed = close(Why::Renewed);
            assert!(
                renewed[0].contains("the 8th later admission"),
                "{renewed:?}"
            );
            assert_eq!(
                batched(batch, batch, 90, |b| b.renew(0, 10, false)),
                [""; 0]
            );
            assert_eq!(batched(batch, batch, 11, |b| b.abort()), [""; 0]);
        }
    }

    #[test]
    fn with_batches_the_last_evictions_need_their_admissions_too() {
        // Admissions after the first page until the trace ends.
        let found = |batch, later: u64| {
            let mut b = TraceBuilder::new(1, 8);
            b.header_mut().batch = batch;
            b.program();
            for i in 1..=1 + later {
                b.touch(0, 10, 1, i << 12);
            }
            b.close(1, 0x1000, Why::Evicted);
            check_bytes(&b.finish()).rule("residency").unwrap().errors
        };
        assert_eq!([found(1, 7), found(3, 5)], [1, 1]);
        assert_eq!([found(3, 6), found(3, 7)], [0, 0]);
        // There were enough, and the eviction was before them.
        let mut b = TraceBuilder::new(1, 8);
        b.header_mut().batch = 3;
        b.program();
        b.touch(0, 10, 1, 0x1000);
        b.close(1, 0x1000, Why::Evicted);
        for i in 2..9 {
            b.touch(0, 10, 1, i << 12);
        }
        assert_eq!(
            check_bytes(&b.finish()).rule("residency").unwrap().errors,
            1
        );
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
