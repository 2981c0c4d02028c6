//! `regions`: reports of regions are whole, and say what looks can find.
//!
//! A piece may begin in the middle of a report. So what a piece, other than the first one, has of an
//! address space may begin with any region.
//!
//! Memory: 48 bytes for each address space that has regions.

use std::ops::RangeInclusive;

use rust_mm_trace::uapi;
use rustc_hash::FxHashMap;

use crate::check::{Cited, Draft, Findings, Rule};
use crate::pipeline::{Batch, Outcome, World};
use crate::space::Issue;
use crate::trace::{Body, Damage, Event, RegionBody, SampledBy, Sampling, Trace};
use crate::units::Mm;

/// The present report of an address space.
#[derive(Clone, Copy)]
struct Present {
    /// The region that comes next, and how many there are. None is to come if these are equal.
    next: u32,
    regions: u32,
    /// The end of the last region.
    end: u64,
    /// The address space has ended: one more region of a report may come.
    ended: bool,
    /// That one has come.
    over: bool,
}

#[derive(Default)]
pub(super) struct Regions {
    has_regions: bool,
    /// The trace has windows of references, too. Whether the present window is one, if that is known.
    has_windows: bool,
    in_references: Option<bool>,
    sampling: Option<Sampling>,
    page_size: u64,
    /// Whether all regions of all reports should be there.
    is_whole: bool,
    /// Reports may have begun before the first record.
    begins_amid: bool,
    present: FxHashMap<Mm, Present>,
    /// Reports that have begun, and regions of all reports.
    reports: u64,
    regions: u64,
}

/// What is wrong with the header's figures, if anything is.
fn invalid(sampling: &Sampling) -> Option<String> {
    let most = uapi::VMTRACE_INTERVAL_MAX;
    let times: [(_, _, RangeInclusive<u64>); 3] = [
        (
            "sample",
            sampling.sample_ns,
            u64::from(uapi::VMTRACE_SAMPLE_MIN)..=most,
        ),
        (
            "aggregate",
            sampling.aggregate_ns,
            sampling.sample_ns..=most,
        ),
        ("update", sampling.update_ns, sampling.aggregate_ns..=most),
    ];
    let counts = uapi::VMTRACE_REGIONS_MIN..=uapi::VMTRACE_REGIONS_MAX;
    let (min, max) = (sampling.min_regions, sampling.max_regions);
    if let Some((name, value, range)) = times.iter().find(|(_, v, range)| !range.contains(v)) {
        let (from, to) = (range.start(), range.end());
        return Some(format!(
            "the header's {name} is {value} ns, not {from} to {to} ns"
        ));
    }
    if !counts.contains(&min) || !counts.contains(&max) || max / 2 < min {
        return Some(format!(
            "the header has {min} to {max} regions, which is not possible"
        ));
    }
    if sampling.change > uapi::VMTRACE_CHANGE_MAX {
        return Some(format!(
            "the header has a change of {} thousandths",
            sampling.change
        ));
    }
    (sampling.by == SampledBy::Unknown)
        .then(|| "the header does not say what shows an access".to_owned())
}

impl Regions {
    /// What is wrong with a region by itself.
    fn wrong(&self, r: &RegionBody) -> Option<String> {
        let sampling = self.sampling?;
        let mask = self.page_size.wrapping_sub(1);
        if (r.start | r.end) & mask != 0 || r.start >= r.end {
            return Some(format!(
                "a region from {:#x} to {:#x}, which has no whole pages",
                r.start, r.end
            ));
        }
        if r.writes > r.accesses || r.accesses > r.looks {
            return Some(format!(
                "{} looks found {} accesses and {} writes",
                r.looks, r.accesses, r.writes
            ));
        }
        if u64::from(r.looks) > sampling.most_looks() {
            return Some(format!(
                "{} looks, although there is time for {}",
                r.looks,
                sampling.most_looks()
            ));
        }
        if sampling.by == SampledBy::Accessed && (r.writes != 0 || r.cpus != 0) {
            return Some("writes or CPUs, which accessed bits do not show".into());
        }
        if r.regions > sampling.max_regions {
            return Some(format!(
                "one of {} regions, although there are at most {}",
                r.regions, sampling.max_regions
            ));
        }
        (r.index >= r.regions).then(|| {
            format!(
                "number {} of {} regions, which are numbered from 0 on",
                r.index, r.regions
            )
        })
    }

    /// What is wrong with a region in its place.
    fn misplaced(&mut self, mm: Mm, r: &RegionBody) -> Option<String> {
        let next = Present {
            next: r.index.saturating_add(1),
            regions: r.regions,
            end: r.end,
            ended: false,
            over: false,
        };
        let Some(before) = self.present.get(&mm).copied() else {
            self.present.insert(mm, next);
            self.reports += 1;
            let whole = self.is_whole && !self.begins_amid;
            return (whole && r.index != 0)
                .then(|| format!("the address space's first region is number {}", r.index));
        };
        let goes_on = r.index != 0;
        self.reports += u64::from(!goes_on);
        self.present.insert(
            mm,
            Present {
                ended: before.ended,
                over: before.ended,
                ..next
            },
        );
        if before.over {
            return Some("more than one region after the end of its address space".into());
        }
        if !self.is_whole {
            return None;
        }
        let is_open = before.next < before.regions;
        match (is_open, goes_on) {
            (true, true) if (r.index, r.regions) != (before.next, before.regions) => Some(format!(
                "number {} of {} regions, where number {} of {} should be",
                r.index, r.regions, before.next, before.regions
            )),
            (true, true) => (r.start < before.end).then(|| {
                format!(
                    "a region at {:#x}, although the one before ends at {:#x}",
                    r.start, before.end
                )
            }),
            (true, false) => Some(format!(
                "a report begins, although the one before has {} of {} regions",
                before.next, before.regions
            )),
            (false, true) => Some(format!("a report begins with region number {}", r.index)),
            (false, false) => None,
        }
    }

    fn region(&mut self, e: &Event<'_>, r: &RegionBody, out: &mut Findings) {
        self.regions += 1;
        let wrongs = [self.wrong(r), self.misplaced(e.mm, r)];
        for wrong in wrongs.into_iter().flatten() {
            out.error(|| Draft::new(wrong).record(Cited::event(e)));
        }
    }
}

impl Rule for Regions {
    fn id(&self) -> &'static str {
        "regions"
    }

    fn about(&self) -> &'static str {
        "reports of regions are whole, in the order of addresses, and have no more accesses than \
         looks; where regions are sampled, no references are recorded, and elsewhere no regions are"
    }

    fn begin(&mut self, trace: &Trace, out: &mut Findings) {
        let header = trace.header();
        self.has_regions = header.has_regions();
        self.has_windows = header.windows.is_some();
        self.sampling = header.sampling;
        self.page_size = header.page_size();
        self.begins_amid = trace.piece().is_some_and(|piece| piece.number > 0);
        // The beginning of the window may be in an earlier piece.
        self.in_references = (!self.begins_amid || !self.has_windows).then_some(false);
        let index = trace.index();
        let lost = index.end.as_ref().is_some_and(|e| e.status.lost() > 0);
        self.is_whole = !lost && index.damage.is_empty();
        match (self.has_regions, &self.sampling) {
            (true, Some(sampling)) => {
                if let Some(wrong) = invalid(sampling) {
                    out.error(|| Draft::new(wrong));
                }
                if !self.is_whole {
                    out.note(|| {
                        Draft::new(
                            "the trace has losses or damage, so regions of reports may be missing",
                        )
                    });
                }
            }
            (false, Some(_)) => out.error(|| {
                Draft::new("the header says how regions are sampled, and that they are not")
            }),
            _ => {}
        }
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if !self.has_regions || self.in_references != Some(false) {
            return;
        }
        for r in batch.refs {
            out.error(|| {
                Draft::new(match self.has_windows {
                    true => "a reference in a window of regions",
                    false => "a reference in a trace of regions",
                })
                .record(Cited::reference(r, batch.world))
            });
        }
    }

    fn event(&mut self, e: &Event<'_>, _world: &World, _issues: &[Issue], out: &mut Findings) {
        match e.body {
            Body::Region(_) if !self.has_regions => out.error(|| {
                Draft::new("a region, although the header says that references are recorded")
                    .record(Cited::event(e))
            }),
            Body::Region(_) if self.in_references == Some(true) => out
                .error(|| Draft::new("a region in a window of references").record(Cited::event(e))),
            Body::Region(region) => self.region(e, &region, out),
            // A window begins, and an event behind this one says whether it has references.
            Body::SnapBegin if !e.is_state() => self.in_references = Some(false),
            Body::RefsBegin if self.has_windows => self.in_references = Some(true),
            Body::MmEnd if self.has_regions => {
                let none = Present {
                    next: 0,
                    regions: 0,
                    end: 0,
                    ended: true,
                    over: false,
                };
                self.present.entry(e.mm).or_insert(none).ended = true;
            }
            _ => {}
        }
    }

    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {
        self.is_whole = false;
    }

    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        if !self.has_regions {
            return;
        }
        out.note(|| {
            Draft::new(format!(
                "{} reports with {} regions in all",
                self.reports, self.regions
            ))
        });
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use crate::check::RuleReport;
    use crate::testing::{TraceBuilder, check_bytes};
    use crate::trace::RegionBody;
    use crate::units::Prot;

    const ACCESSED: u32 = uapi::VMTRACE_BY_ACCESSED;
    const FAULT: u32 = uapi::VMTRACE_BY_FAULT;

    /// The report of this rule. No other one may find an error.
    #[track_caller]
    fn rule(builder: TraceBuilder) -> RuleReport {
        let report = check_bytes(&builder.finish());
        for other in &report.rules {
            assert!(other.id == "regions" || other.errors == 0, "{other:#?}");
        }
        report.rule("regions").cloned().expect("the rule")
    }

    /// The first finding of a trace that is good but for a change.
    #[track_caller]
    fn found(by: u32, change: impl FnOnce(&mut TraceBuilder)) -> String {
        let mut builder = TraceBuilder::sample_of_regions(by);
        change(&mut builder);
        let rule = rule(builder);
        assert!(rule.errors > 0, "{rule:#?}");
        rule.examples[0].message.clone()
    }

    fn region(index: u32, regions: u32) -> RegionBody {
        RegionBody {
            start: 0x1000 + u64::from(index) * 0x1000,
            end: 0x2000 + u64::from(index) * 0x1000,
            looks: 20,
            accesses: 3,
            writes: 0,
            age: 0,
            cpus: 0,
            index,
            regions,
        }
    }

    /// What is found in one more region, which would be good but for a change.
    #[track_caller]
    fn found_in(by: u32, change: impl FnOnce(&mut RegionBody)) -> String {
        found(by, |b| {
            let mut region = region(0, 1);
            change(&mut region);
            b.region(0, 1, &region);
        })
    }

    #[test]
    fn good_reports_are_good() {
        for by in [ACCESSED, FAULT] {
            let rule = rule(TraceBuilder::sample_of_regions(by));
            assert_eq!((rule.errors, rule.notes), (0, 1), "{rule:#?}");
            let note = "2 reports with 6 regions in all";
            assert_eq!(rule.examples[0].message, note);
        }
        // A change that changes nothing.
        let mut b = TraceBuilder::sample_of_regions(ACCESSED);
        b.region(0, 1, &region(0, 1));
        assert_eq!(rule(b).errors, 0);
    }

    /// A trace with a window of regions and one of references, each of which has a region and a reference
    /// if that is asked for.
    fn windows(has_region: [bool; 2], has_reference: [bool; 2]) -> TraceBuilder {
        let mut b = TraceBuilder::new(2, 64);
        b.sample_regions(ACCESSED);
        for window in 0..2u32 {
            let (mm, of) = (window + 1, window as usize);
            b.begin_window(8);
            if window == 1 {
                b.event(0, 1, 0, uapi::VMTRACE_EV_REFS_BEGIN, &[]);
            }
            b.task(0, 10, 10, mm, "sample");
            b.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
            if has_region[of] {
                b.region(0, mm, &region(0, 1));
            }
            if has_reference[of] {
                b.touch(0, 10, mm, 0x1000);
            }
            b.end_window(|w| {
                w.why = match window {
                    0 => uapi::VMTRACE_WINDOW_CHANGE,
                    _ => uapi::VMTRACE_WINDOW_TIME,
                }
            });
        }
        b
    }

    #[test]
    fn windows_are_of_regions_or_of_references() {
        let good = windows([true, false], [false, true]);
        assert_eq!(rule(good).errors, 0);
        for (has_region, has_reference, message) in [
            (
                [true, true],
                [false, true],
                "a region in a window of references",
            ),
            (
                [true, false],
                [true, true],
                "a reference in a window of regions",
            ),
        ] {
            let rule = rule(windows(has_region, has_reference));
            assert_eq!((rule.errors, &*rule.examples[0].message), (1, message));
        }
    }

    #[test]
    fn what_a_region_says_is_possible() {
        for (by, change, message) in [
            (
                ACCESSED,
                (|r| r.end = 0x1800) as fn(&mut RegionBody),
                "which has no whole pages",
            ),
            (ACCESSED, |r| r.start = 0x800, "which has no whole pages"),
            (ACCESSED, |r| r.end = r.start, "which has no whole pages"),
            (ACCESSED, |r| r.looks = 2, "2 looks found 3 accesses"),
            (FAULT, |r| r.writes = 4, "3 accesses and 4 writes"),
            (ACCESSED, |r| r.looks = 22, "there is time for 21"),
            (ACCESSED, |r| r.writes = 1, "accessed bits do not show"),
            (ACCESSED, |r| r.cpus = 1, "accessed bits do not show"),
            (ACCESSED, |r| r.regions = 1001, "there are at most 1000"),
            (ACCESSED, |r| r.regions = 0, "number 0 of 0 regions"),
        ] {
            let found = found_in(by, change);
            assert!(found.contains(message), "{found}");
        }
        // The limits themselves.
        let mut b = TraceBuilder::sample_of_regions(FAULT);
        let most = RegionBody {
            looks: 21,
            accesses: 21,
            writes: 21,
            cpus: u64::MAX,
            ..region(0, 1)
        };
        b.region(0, 1, &most);
        assert_eq!(rule(b).errors, 0);
    }

    #[test]
    fn reports_are_whole_and_in_order() {
        for (all, message) in [
            (&[(1, 2)][..], "a report begins with region number 1"),
            (&[(0, 3), (2, 3)], "where number 1 of 3 should be"),
            (&[(0, 3), (1, 2)], "where number 1 of 3 should be"),
            (&[(0, 2), (0, 1)], "the one before has 1 of 2 regions"),
        ] {
            let found = found(ACCESSED, |b| {
                for (index, regions) in all {
                    b.region(0, 1, &region(*index, *regions));
                }
            });
            assert!(found.contains(message), "{all:?}: {found}");
        }
        // Of another address space, whose first report has lost its beginning.
        let first = found(ACCESSED, |b| {
            b.task(0, 20, 20, 2, "other");
            b.region(0, 2, &region(1, 2));
        });
        assert!(first.contains("first region is number 1"), "{first}");
        // They overlap.
        let overlap = found(ACCESSED, |b| {
            let first = region(0, 2);
            b.region(
                0,
                1,
                &RegionBody {
                    end: 0x3000,
                    ..first
                },
            );
            b.region(0, 1, &region(1, 2));
        });
        assert!(
            overlap.contains("the one before ends at 0x3000"),
            "{overlap}"
        );
        // Reports of two address spaces at a time, each of which is whole.
        let mut b = TraceBuilder::sample_of_regions(ACCESSED);
        b.task(0, 20, 20, 2, "other");
        for index in 0..2 {
            b.region(0, 1, &region(index, 2));
            b.region(1, 2, &region(index, 2));
        }
        assert_eq!(rule(b).errors, 0);
    }

    #[test]
    fn the_end_of_a_trace_cuts_a_report_short() {
        let mut b = TraceBuilder::sample_of_regions(ACCESSED);
        b.region(0, 1, &region(0, 2));
        assert_eq!(rule(b).errors, 0);
    }

    #[test]
    fn the_end_of_an_address_space_cuts_a_report_short() {
        let ended = |after: &[(u32, u32)]| {
            let mut b = TraceBuilder::sample_of_regions(ACCESSED);
            b.region(0, 1, &region(0, 3));
            b.mm_end(0, 10, 1);
            for (index, regions) in after {
                b.region(0, 1, &region(*index, *regions));
            }
            rule(b)
        };
        assert_eq!(ended(&[]).errors, 0);
        assert_eq!(ended(&[(1, 3)]).errors, 0);
        let more = ended(&[(1, 3), (2, 3)]);
        assert_eq!(more.errors, 1, "{more:#?}");
        assert!(more.examples[0].message.contains("after the end"));
        assert_eq!(ended(&[(2, 3)]).errors, 1);
        assert_eq!(ended(&[(0, 3)]).errors, 1);
    }

    #[test]
    fn a_trace_has_references_or_regions() {
        let found = found(ACCESSED, |b| b.touch(0, 10, 1, 0x1000));
        assert_eq!(found, "a reference in a trace of regions");
        let mut b = TraceBuilder::sample();
        b.region(0, 1, &region(0, 1));
        let rule = rule(b);
        assert_eq!(rule.errors, 1, "{rule:#?}");
        assert!(rule.examples[0].message.contains("references are recorded"));
    }

    #[test]
    fn the_header_says_how_regions_are_sampled() {
        type Change = fn(&mut uapi::vmtrace_sampling);
        for (change, message) in [
            ((|s| s.sample = 99_999) as Change, "sample is 99999 ns"),
            (|s| s.aggregate = 4_999_999, "aggregate is 4999999 ns"),
            (|s| s.update = 99_999_999, "update is 99999999 ns"),
            (|s| s.update = 3_600_000_000_001, "update is"),
            (|s| s.min_regions = 2, "2 to 1000 regions"),
            (|s| s.max_regions = 65_537, "10 to 65537 regions"),
            (|s| s.max_regions = 19, "10 to 19 regions"),
            (|s| s.by = 2, "what shows an access"),
        ] {
            let found = found(ACCESSED, |b| change(&mut b.header_mut().sampling));
            assert!(found.contains(message), "{message}: {found}");
        }
        let mut b = TraceBuilder::sample();
        b.header_mut().sampling.by = 1;
        let rule = rule(b);
        assert_eq!(rule.errors, 1, "{rule:#?}");
        assert!(rule.examples[0].message.contains("that they are not"));
    }

    /// A piece may begin, and another one end, in the middle of a report.
    #[test]
    fn pieces_have_parts_of_reports() {
        let pieces = |last: u32| {
            let mut b = TraceBuilder::new(2, 64);
            b.sample_regions(ACCESSED);
            b.in_pieces(false);
            b.program();
            b.report(0, 1, &[region(0, 1)]);
            b.region(0, 1, &region(0, 3));
            b.rotate(0);
            b.region(0, 1, &region(1, 3));
            b.region(0, 1, &region(last, 3));
            b.report(0, 1, &[region(0, 1)]);
            b
        };
        assert_eq!(rule(pieces(2)).errors, 0);
        for (last, errors) in [(2, [0, 0]), (1, [0, 2])] {
            let (_, files) = pieces(last).finish_pieces();
            let found: Vec<u64> = files
                .iter()
                .map(|file| {
                    let report = check_bytes(file);
                    let rule = report.rule("regions").expect("the rule");
                    assert_eq!(report.good, rule.errors == 0, "{report:#?}");
                    rule.errors
                })
                .collect();
            assert_eq!(found, errors);
        }
    }

    #[test]
    fn losses_leave_reports_that_are_not_whole() {
        let mut b = TraceBuilder::sample_of_regions(ACCESSED);
        b.region(0, 1, &region(1, 3));
        b.on_status(|s| s.lost_full = 1);
        let report = check_bytes(&b.finish());
        let rule = report.rule("regions").expect("the rule");
        assert_eq!((rule.errors, rule.notes), (0, 2), "{rule:#?}");
    }
}
