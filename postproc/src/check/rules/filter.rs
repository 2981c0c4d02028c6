//! `filter`: a filter of the kernel has kept what fits it.
//!
//! The events say which filter is in force at each number. The references that are in the trace are
//! judged by it a second time, by another judge: that of `--where`, which knows threads and mappings
//! from the events. A record that continues a stay is judged as the reference that began it.
//!
//! A reference that was left out is not in the trace, so nothing can be said about it. That is why
//! there are kernels that record it, too, and mark it (`vmtrace_break=keepleft`). In their traces, what
//! is marked must not fit, and what is not marked must.
//!
//! The two judges know the same, with one exception: an anonymous mapping without a name of its own is
//! called [heap], [stack] or [anon] by what the kernel sees in it, and by what the events say about it.
//!
//! Memory: 24 bytes for each stay that another record continues, until that record.

use rust_mm_trace::uapi;
use rustc_hash::FxHashMap;

use super::drawn::goes_on;
use crate::check::{Cited, Draft, Findings, Rule};
use crate::filter::{Clause, Filter};
use crate::pipeline::{Batch, Outcome, Place, World};
use crate::space::Issue;
use crate::trace::{Body, Damage, Event, NoNews, Ref, Trace, Why};
use crate::units::Mm;

/// A filter as an event has it.
struct Present {
    tests: u32,
    expr: Box<[u8]>,
    cited: Cited,
    /// `None` if the rule cannot judge by it.
    judge: Option<Judge>,
}

/// Who judges.
enum Judge {
    /// Everything fits.
    All,
    By(Box<Filter>),
}

/// What was found in good order.
#[derive(Default)]
struct Counts {
    kept: u64,
    left_out: u64,
    /// Records that continue stays of which the trace has no beginning.
    headless: u64,
    /// Records that only another name for an anonymous mapping explains.
    nameless: u64,
    /// Records of unknown threads, or outside all mappings, whose verdict depends on that.
    unknown: u64,
}

#[derive(Default)]
pub(super) struct FilterRule {
    is_filtered: bool,
    keeps_left_out: bool,
    /// Why no record can be judged, if none can.
    blind: Option<&'static str>,
    /// The first numbers of the windows that are still to come, the next one last.
    windows: Vec<u64>,
    /// An event has said what is recorded, in this window; or that it has not was reported.
    is_told: bool,
    present: Option<Present>,
    /// A checkpoint is being made that has not said it yet.
    lacks: bool,
    /// Whether the stays that other records will continue are marked.
    stays: FxHashMap<(Mm, u64), bool>,
    counts: Counts,
}

/// A filter's judge.
fn judge(tests: u32, expr: &[u8], world: &World) -> Result<Judge, String> {
    if tests == 0 && expr.is_empty() {
        return Ok(Judge::All);
    }
    if tests == 0 || expr.is_empty() || tests > uapi::VMTRACE_FILTER_TESTS {
        return Err(format!(
            "a filter of {tests} tests and {} bytes of text, which no filter has",
            expr.len()
        ));
    }
    let text = std::str::from_utf8(expr).map_err(|error| {
        let at = error.valid_up_to();
        format!("a filter's expression is no UTF-8 from its byte {at} on")
    })?;
    let clause = Clause::of_kernel(text)
        .map_err(|why| format!("a filter's expression is none of the kernel's: {why}"))?;
    Ok(Judge::By(Box::new(Filter::within(&clause, world))))
}

impl FilterRule {
    /// Comes to a record.
    fn arrive(&mut self, seq: u64) {
        while self.windows.last().is_some_and(|first| *first <= seq) {
            self.windows.pop();
            self.is_told = false;
        }
    }

    fn told(&mut self, e: &Event<'_>, (tests, expr): (u32, &[u8]), w: &World, out: &mut Findings) {
        self.is_told = true;
        if let Some(present) = &mut self.present {
            if (present.tests, &*present.expr) == (tests, expr) {
                present.cited = Cited::event(e);
                return;
            }
        }
        let judge = judge(tests, expr, w).map_err(|message| {
            out.error(|| Draft::new(message).record(Cited::event(e)));
        });
        self.present = Some(Present {
            tests,
            expr: expr.into(),
            cited: Cited::event(e),
            judge: judge.ok(),
        });
    }

    /// A checkpoint repeats which filter is in force.
    fn repeated(&mut self, e: &Event<'_>, filter: (u32, &[u8]), out: &mut Findings) {
        self.lacks = false;
        let Some(present) = &self.present else {
            return;
        };
        if (present.tests, &*present.expr) != filter {
            out.error(|| {
                Draft::new("the checkpoint has another filter than the one that is in force")
                    .record(Cited::event(e))
                    .related(Some(present.cited.clone()))
            });
        }
    }

    fn record(&mut self, r: &Ref, place: &Place, world: &World, out: &mut Findings) {
        self.arrive(r.seq);
        if !std::mem::replace(&mut self.is_told, true) {
            self.present = None;
            out.error(|| {
                Draft::new("no event before this reference says which references are recorded")
                    .record(Cited::reference(r, world))
            });
        }
        let (key, marked) = ((r.mm, r.address()), r.flags().is_left_out());
        let began = match goes_on(r) {
            true => Some(self.stays.remove(&key)),
            false => None,
        };
        if matches!(r.flags().why(), Why::Renewed | Why::Chance) {
            self.stays.insert(key, began.flatten().unwrap_or(marked));
        }
        match began {
            None => self.reference(r, place, world, out),
            Some(None) => self.counts.headless += 1,
            Some(Some(before)) if before == marked => self.count(marked),
            Some(Some(_)) => out.error(|| {
                let what = match marked {
                    true => "is marked as left out, although the reference that began it is not",
                    false => "is not marked as left out, although the reference that began it is",
                };
                Draft::new(format!("the continuation of a stay {what}"))
                    .record(Cited::reference(r, world))
            }),
        }
    }

    fn count(&mut self, marked: bool) {
        match marked {
            true => self.counts.left_out += 1,
            false => self.counts.kept += 1,
        }
    }

    fn reference(&mut self, r: &Ref, place: &Place, world: &World, out: &mut Findings) {
        let Some(present) = &mut self.present else {
            return;
        };
        let marked = r.flags().is_left_out();
        let fits = match &mut present.judge {
            None => return,
            Some(Judge::All) => true,
            Some(Judge::By(filter)) => filter.fits(r, place, world),
        };
        if fits != marked {
            self.count(marked);
            return;
        }
        if let Some(Judge::By(filter)) = &present.judge {
            let (of_task, of_mapping) = filter.is_about();
            // Other rules report these.
            let is_unknown = of_task && world.tasks.find(r.tid()).is_none()
                || of_mapping && !matches!(place, Place::Mapped { .. });
            if is_unknown {
                self.counts.unknown += 1;
                return;
            }
            if filter.depends_on_anon(r, place, world) {
                self.counts.nameless += 1;
                return;
            }
        }
        let expr = String::from_utf8_lossy(&present.expr);
        out.error(|| {
            let message = match marked {
                true => "is marked as left out, although it fits the filter",
                false => "does not fit the filter",
            };
            Draft::new(format!("{message}: {}", expr.escape_debug()))
                .record(Cited::reference(r, world))
                .related(Some(present.cited.clone()))
        });
    }
}

impl Rule for FilterRule {
    fn id(&self) -> &'static str {
        "filter"
    }

    fn about(&self) -> &'static str {
        "references fit the filter that was in force; events say which one that is before the first \
         reference of each window, and in each checkpoint"
    }

    fn begin(&mut self, trace: &Trace, out: &mut Findings) {
        let header = trace.header();
        self.is_filtered = header.is_filtered();
        self.keeps_left_out = header.keeps_left_out();
        if !self.is_filtered {
            return;
        }
        if header.windows.is_some() && trace.window().is_none() {
            self.windows = trace
                .windows()
                .into_iter()
                .map(|(first, _)| first)
                .collect();
            self.windows.sort_unstable_by(|a, b| b.cmp(a));
        }
        let index = trace.index();
        self.blind = if index.end.as_ref().is_some_and(|e| e.status.lost() > 0) {
            Some("the trace has losses")
        } else if !index.damage.is_empty() {
            Some("the trace is damaged")
        } else {
            None
        };
        if let Some(why) = self.blind {
            out.note(|| Draft::new(format!("not applied: {why}, so events may be missing")));
        }
    }

    fn event(&mut self, e: &Event<'_>, world: &World, _issues: &[Issue], out: &mut Findings) {
        if !self.is_filtered {
            if matches!(e.said(), Body::Filter { .. }) {
                out.error(|| {
                    Draft::new(
                        "a filter, although the header says that all references are recorded",
                    )
                    .record(Cited::event(e))
                });
            }
            return;
        }
        if self.blind.is_some() {
            return;
        }
        self.arrive(e.seq);
        match e.said() {
            Body::Filter { tests, expr } if e.aside == Some(NoNews::Repeats) => {
                self.repeated(e, (tests, expr), out);
            }
            Body::Filter { tests, expr } => self.told(e, (tests, expr), world, out),
            Body::Checkpoint { .. } => self.lacks = true,
            Body::CheckpointEnd if std::mem::take(&mut self.lacks) => out.error(|| {
                Draft::new("the checkpoint does not say which references are recorded")
                    .record(Cited::event(e))
            }),
            _ => {}
        }
    }

    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {
        self.blind = Some("the trace is damaged");
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn references(&mut self, batch: &Batch<'_>, out: &mut Findings) {
        if !self.is_filtered || self.blind.is_some() {
            return;
        }
        for (r, place) in batch.refs.iter().zip(batch.places) {
            self.record(r, place, batch.world, out);
        }
    }

    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome, out: &mut Findings) {
        if !self.is_filtered || self.blind.is_some() {
            return;
        }
        let c = &self.counts;
        out.note(|| {
            Draft::new(match self.keeps_left_out {
                true => format!(
                    "{} records fit the filter, and {} do not and are marked as left out",
                    c.kept, c.left_out
                ),
                false => format!("{} records fit the filter", c.kept),
            })
        });
        let mut apart = |count: u64, what: &str| {
            if count > 0 {
                out.note(|| Draft::new(format!("{count} records {what}")));
            }
        };
        apart(
            c.headless,
            "continue stays of which the trace has no beginning: not judged",
        );
        apart(
            c.nameless,
            "are judged by the name of an anonymous mapping, which is [heap], [stack] or [anon] by \
             what the kernel saw, and another one of these by the events",
        );
        apart(
            c.unknown,
            "are of threads, or lie where nothing is mapped, about which no event says what the \
             filter asks",
        );
    }
}

#[cfg(test)]
mod tests {
    use rust_mm_trace::uapi;

    use crate::check::{CheckReport, RuleReport};
    use crate::testing::{Asked, TraceBuilder, check_bytes, filter_bytes};
    use crate::trace::Why;
    use crate::units::{Access, Prot};

    /// The report of this rule, if no other one finds an error but those that are named.
    #[track_caller]
    fn rule(builder: TraceBuilder, others: &[&str]) -> RuleReport {
        let report = check_bytes(&builder.finish());
        for other in &report.rules {
            let may_fail = other.id == "filter" || others.contains(&other.id);
            assert!(may_fail || other.errors == 0, "{other:#?}");
        }
        of(&report)
    }

    fn of(report: &CheckReport) -> RuleReport {
        report.rule("filter").cloned().expect("the rule")
    }

    fn messages(rule: &RuleReport) -> String {
        let texts = rule.examples.iter().map(|finding| &*finding.message);
        texts.collect::<Vec<_>>().join("\n")
    }

    fn low(a: Asked) -> bool {
        a.address < 0x5000
    }

    fn touch_all(b: &mut TraceBuilder) {
        for i in 0..32 {
            b.touch(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000);
        }
    }

    /// A program on two CPUs with this filter, and what really happens.
    fn filtered(expr: &str, keeps: impl Fn(Asked) -> bool + 'static) -> TraceBuilder {
        let mut b = TraceBuilder::new(2, 4);
        b.filtered();
        b.program();
        b.filter(0, expr, keeps);
        touch_all(&mut b);
        b
    }

    #[test]
    fn what_fits_is_good() {
        let report = check_bytes(&TraceBuilder::sample_of_filtered().finish());
        assert!(report.good, "{report:#?}");
        let rule = of(&report);
        assert_eq!((rule.errors, rule.notes), (0, 1));
        assert_eq!(messages(&rule), "16 records fit the filter");
        assert_eq!(rule_errors(filtered("", |_| true)), 0);
    }

    #[track_caller]
    fn rule_errors(builder: TraceBuilder) -> u64 {
        rule(builder, &[]).errors
    }

    #[test]
    fn a_record_that_does_not_fit_is_found() {
        let rule = rule(filtered("addr < 0x5000", |_| true), &[]);
        assert_eq!(rule.errors, 16, "{rule:#?}");
        let first = &rule.examples[0];
        assert!(
            first.message.contains("does not fit the filter: addr"),
            "{rule:#?}"
        );
        assert!(first.record.is_some() && first.related.is_some());
    }

    #[test]
    fn all_fields_of_the_kernel_are_judged() {
        let (tests, nothing) = (
            [
                "pid == 10",
                "tid in (10)",
                "comm == \"sample\"",
                "addr >= 0x1000",
                "page in 1..=8",
                "kind == read",
                "mode == user",
                "cpu <= 1",
                "set == 0",
                "mapping == \"[anon]\"",
                "mapping ~ \"[[]a*\"",
                "mapping_kind == anon",
            ],
            "kind == write",
        );
        for expr in tests {
            assert_eq!(rule_errors(filtered(expr, |_| true)), 0, "{expr}");
            // Its negation: a verdict about [anon] may be another one.
            let not = format!("!({expr})");
            let expected = if expr.starts_with("mapping ") || expr.contains("mapping ~") {
                0
            } else {
                32
            };
            let found = rule_errors(filtered(&not, |_| true));
            assert_eq!(found, expected, "{not}");
        }
        assert_eq!(rule_errors(filtered(nothing, |_| false)), 0);
    }

    #[test]
    fn a_filter_that_the_kernel_cannot_have_is_found() {
        for (expr, place) in [
            ("tree == 10", "tree"),
            ("cgroup == \"/a\"", "cgroup"),
            ("window == 0", "window"),
            ("time < 5ms", "time"),
            ("pid == 10 && seq > 1", "seq"),
            ("kind == seen", "kind"),
            ("kind in (read, seen)", "kind"),
            ("mapping_kind != none", "mapping_kind"),
            ("mapping_kind == unknown", "mapping_kind"),
            ("pid ==", ""),
            ("event == map", "event"),
        ] {
            let rule = rule(filtered(expr, |_| true), &[]);
            assert_eq!(rule.errors, 1, "{expr}: {rule:#?}");
            let message = messages(&rule);
            // The text with a mark below the place.
            assert!(message.contains(expr), "{message}");
            let mark = " ".repeat(2 + expr.find(place).unwrap_or(0)) + "^";
            let is_marked = message.lines().any(|line| line.starts_with(&mark));
            assert!(is_marked || place.is_empty(), "{message}");
        }
    }

    #[test]
    fn an_event_that_says_nothing_sensible_is_found() {
        for (tests, expr) in [
            (0, &b"pid == 10"[..]),
            (1, b""),
            (uapi::VMTRACE_FILTER_TESTS + 1, b"pid == 10"),
            (1, b"pid == 10 || comm == \"\xff\""),
        ] {
            let mut b = TraceBuilder::new(2, 4);
            b.filtered();
            b.program();
            b.event(0, 1, 0, uapi::VMTRACE_EV_FILTER, &filter_bytes(tests, expr));
            touch_all(&mut b);
            assert_eq!(rule_errors(b), 1, "{tests} {expr:?}");
        }
    }

    #[test]
    fn a_filter_is_in_force_from_its_event_on() {
        let mut b = filtered("addr < 0x5000", low);
        b.filter(1, "addr >= 0x5000", |a| !low(a));
        touch_all(&mut b);
        assert_eq!(rule_errors(b), 0);
        let mut b = filtered("addr < 0x5000", low);
        b.filter_quietly(|a| !low(a));
        touch_all(&mut b);
        assert_eq!(rule_errors(b), 16);
    }

    #[test]
    fn the_filter_comes_before_the_first_reference() {
        let mut b = TraceBuilder::new(2, 4);
        b.filtered();
        b.program();
        touch_all(&mut b);
        assert_eq!(rule_errors(b), 1);
        let mut b = TraceBuilder::sample();
        b.filter(0, "", |_| true);
        assert_eq!(rule_errors(b), 1);
        // A trace without a reference needs none.
        let mut b = TraceBuilder::new(2, 4);
        b.filtered();
        b.program();
        assert_eq!(rule_errors(b), 0);
    }

    #[test]
    fn each_window_has_its_filter() {
        let windows = |tells: bool| {
            let mut b = TraceBuilder::new(2, 4);
            b.filtered();
            for mm in 1..4 {
                b.begin_window(8);
                b.task(0, 10, 10, mm, "sample");
                b.map_anon(0, 10, mm, 0x1000, 0x9000, Prot(3));
                if mm == 1 {
                    b.filter(0, "addr < 0x5000", low);
                }
                if !tells {
                    b.silence_filter();
                }
                for i in 0..16 {
                    b.touch(i as u32 & 1, 10, mm, 0x1000 + (i % 8) * 0x1000);
                }
                b.end_window(|_| {});
            }
            b
        };
        let good = check_bytes(&windows(true).finish());
        assert!(good.good, "{good:#?}");
        assert_eq!(messages(&of(&good)), "24 records fit the filter");
        assert_eq!(rule_errors(windows(false)), 2);
    }

    #[test]
    fn a_continuation_is_judged_by_its_beginning() {
        let with = |keeps: bool, chance: bool, change: &dyn Fn(&mut TraceBuilder)| {
            let mut b = TraceBuilder::new(2, 4);
            if keeps {
                b.keep_left_out();
            }
            b.filtered();
            b.program();
            b.filter(0, "addr < 0x7000", |a| a.address < 0x7000);
            touch_all(&mut b);
            change(&mut b);
            // The page at 0x5000 is due, and the others follow.
            for _ in 0..4 {
                b.renew(1, 10, chance);
            }
            touch_all(&mut b);
            b
        };
        for chance in [false, true] {
            // By the new filter, other pages would go on.
            let change =
                |b: &mut TraceBuilder| b.filter(0, "addr >= 0x7000", |a| a.address >= 0x7000);
            assert_eq!(rule_errors(with(false, chance, &change)), 0);
            assert_eq!(rule(with(true, chance, &change), &["health"]).errors, 0);
        }
    }

    #[test]
    fn a_continuation_without_a_beginning_is_not_judged() {
        let mut b = filtered("addr < 0x5000", low);
        b.filter_quietly(|_| true);
        b.close(1, 0x6000, Why::Other);
        b.admit_as_renewal(0, 10, 1, 0x6000, false);
        let rule = rule(b, &[]);
        assert_eq!(rule.errors, 0);
        assert!(
            messages(&rule).contains("1 records continue stays"),
            "{rule:#?}"
        );
    }

    #[test]
    fn what_is_marked_must_not_fit() {
        let marked = |keeps: fn(Asked) -> bool| {
            let mut b = TraceBuilder::new(2, 4);
            b.keep_left_out();
            b.program();
            b.filter(0, "addr < 0x5000", keeps);
            touch_all(&mut b);
            rule(b, &["health"])
        };
        let good = marked(low);
        assert_eq!(good.errors, 0, "{good:#?}");
        let both = "16 records fit the filter, and 16 do not and are marked as left out";
        assert_eq!(messages(&good), both);
        // Some that fit are marked, and some that do not fit are not.
        let less = marked(|a| a.address < 0x3000);
        assert_eq!(less.errors, 8, "{less:#?}");
        assert!(messages(&less).contains("is marked as left out, although it fits"));
        let more = marked(|a| a.address < 0x7000);
        assert_eq!(more.errors, 8, "{more:#?}");
        assert!(messages(&more).contains("does not fit"));
    }

    #[test]
    fn a_mark_changes_within_a_stay_only_by_mistake() {
        for chance in [false, true] {
            let mut b = TraceBuilder::new(1, 4);
            b.keep_left_out();
            b.program();
            b.filter(0, "addr < 0x5000", low);
            for i in 0..4 {
                b.touch(0, 10, 1, 0x1000 + i * 0x1000);
            }
            b.renew(0, 10, chance);
            b.mark_last();
            let found = rule(b, &["health"]);
            assert_eq!(found.errors, 1, "{found:#?}");
            assert!(messages(&found).contains("although the reference that began it is not"));
        }
    }

    #[test]
    fn a_mark_is_no_flag_of_other_traces() {
        let mut b = filtered("addr < 0x5000", low);
        b.touch(0, 10, 1, 0x1000);
        b.touch(0, 10, 1, 0x8000);
        b.touch(0, 10, 1, 0x2000);
        b.mark_last();
        let report = check_bytes(&b.finish());
        assert!(!report.good);
        assert!(
            format!("{report:?}").contains("flags that do not exist"),
            "{report:#?}"
        );
    }

    #[test]
    fn names_of_anonymous_mappings_are_counted_apart() {
        let judged = |expr: &str, name: &str| {
            let mut b = TraceBuilder::new(1, 4);
            b.filtered();
            b.task(0, 10, 10, 1, "sample");
            b.map(
                0,
                10,
                1,
                0x1000..0x9000,
                Prot(3),
                uapi::VMTRACE_MAP_ANON,
                0,
                Default::default(),
                1,
                name,
            );
            b.filter(0, expr, |_| true);
            for i in 0..8 {
                b.touch(0, 10, 1, 0x1000 + i * 0x1000);
            }
            let rule = rule(b, &[]);
            let is_apart = messages(&rule).contains("8 records are judged by the name");
            (rule.errors, is_apart)
        };
        assert_eq!(judged("mapping == \"[heap]\"", ""), (0, true));
        assert_eq!(judged("mapping !~ \"[[]a*\"", ""), (0, true));
        assert_eq!(judged("mapping == \"[anon]\"", ""), (0, false));
        // Whatever of the three it is called, it does not fit.
        assert_eq!(judged("mapping == \"/lib/x\"", ""), (8, false));
        assert_eq!(
            judged("mapping == \"[heap]\" && kind == write", ""),
            (8, false)
        );
        // It has a name.
        assert_eq!(judged("mapping == \"[heap]\"", "[anon:x]"), (8, false));
    }

    #[test]
    fn an_unknown_thread_is_judged_by_what_is_known() {
        let judged = |expr: &str| {
            let mut b = filtered(expr, |_| true);
            b.close(1, 0x1000, Why::Other);
            b.touch(0, 77, 1, 0x1000);
            rule(b, &[])
        };
        let by_name = judged("comm == \"sample\"");
        assert_eq!(by_name.errors, 0);
        assert!(
            messages(&by_name).contains("1 records are of threads"),
            "{by_name:#?}"
        );
        assert_eq!(judged("addr > 0x1000").errors, 5);
    }

    #[test]
    fn each_checkpoint_has_the_filter() {
        let pieces = |change: &dyn Fn(&mut TraceBuilder)| {
            let mut b = TraceBuilder::new(2, 4);
            b.filtered();
            b.in_pieces(false);
            b.program();
            b.filter(0, "addr < 0x5000", low);
            touch_all(&mut b);
            b.open_next(0);
            b.describe(0, 1);
            change(&mut b);
            b.cut();
            b.switch();
            touch_all(&mut b);
            b
        };
        assert_eq!(rule_errors(pieces(&|b| b.end_checkpoint(0))), 0);
        let without = |b: &mut TraceBuilder| {
            b.event(0, 1, 0, uapi::VMTRACE_EV_CHECKPOINT_END, &[]);
        };
        assert_eq!(rule_errors(pieces(&without)), 1);
        let other = |b: &mut TraceBuilder| {
            b.describes(|b| {
                let payload = filter_bytes(1, b"addr < 0x6000");
                b.event(0, 1, 0, uapi::VMTRACE_EV_FILTER, &payload);
            });
            b.event(0, 1, 0, uapi::VMTRACE_EV_CHECKPOINT_END, &[]);
        };
        assert_eq!(rule_errors(pieces(&other)), 1);
        // Each piece is good by itself.
        let (_, files) = pieces(&|b| b.end_checkpoint(0)).finish_pieces();
        assert_eq!(files.len(), 2);
        for file in files {
            let report = check_bytes(&file);
            assert!(report.good, "{report:#?}");
            assert_eq!(messages(&of(&report)), "16 records fit the filter");
        }
    }

    #[test]
    fn losses_may_be_of_the_event() {
        let mut b = filtered("addr < 0x5000", |_| true);
        b.lose_reference(0);
        let rule = rule(b, &["loss"]);
        assert_eq!((rule.errors, rule.notes), (0, 1));
    }

    /// Accesses are judged by their kind, too.
    #[test]
    fn stores_alone() {
        let mut b = TraceBuilder::new(2, 4);
        b.filtered();
        b.program();
        b.filter(0, "kind == write", |a| a.access == Access::Write);
        for i in 0..64u64 {
            let access = if i % 3 == 0 {
                Access::Write
            } else {
                Access::Read
            };
            b.touch_as(i as u32 & 1, 10, 1, 0x1000 + (i % 8) * 0x1000, access);
        }
        assert_eq!(rule_errors(b), 0);
    }
}
