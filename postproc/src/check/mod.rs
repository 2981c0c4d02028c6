//! Whether a trace can be trusted.
//!
//! Each rule is a file in `rules/` and a line of [`rules::all`]. A rule gets the
//! whole trace in order and reports findings; a finding does not end the pass.

pub mod rules;

use serde::Serialize;

use crate::error::Result;
use crate::pipeline::{Batch, Consumer, Outcome, World, without_continuations};
use crate::space::{Issue, Source};
use crate::trace::{Damage, Event, PacketSeen, Ref, Trace};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; the trace is no worse for it.
    Note,
    /// A problem that the user has waived.
    Warning,
    /// A problem that makes the trace bad.
    Error,
}

impl Severity {
    /// The name used in all output.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A record that a finding cites.
#[derive(Clone, Debug, Serialize)]
pub struct Cited {
    /// Its sequence number.
    pub seq: u64,
    /// Where it lies in the file, in bytes.
    pub offset: u64,
    /// The record's content, in words.
    pub text: String,
}

impl Cited {
    /// A reference.
    pub fn reference(r: &Ref, world: &World) -> Self {
        let flags = r.flags();
        let process = world.tasks.find(r.tid()).map_or_else(String::new, |p| {
            let process = world.tasks.process(p);
            format!(" ({} {})", process.comm, process.tgid.0)
        });
        Cited {
            seq: r.seq,
            offset: r.offset,
            text: format!(
                "{}{} of page {:#x} in address space {} by thread {}{process} on CPU {}, {}{}",
                if flags.kernel() { "kernel " } else { "" },
                flags.access().name(),
                r.address(),
                r.mm.0,
                r.tid().0,
                r.cpu(),
                if flags.dirtied() { "dirtied, " } else { "" },
                flags.why().name(),
            ),
        }
    }

    /// An event.
    pub fn event(e: &Event<'_>) -> Self {
        Cited {
            seq: e.seq,
            offset: e.offset,
            text: format!(
                "{} of address space {} by thread {} on CPU {}",
                e.name(),
                e.mm.0,
                e.tid.0,
                e.cpu
            ),
        }
    }

    /// The event that caused a mapping's state.
    pub fn source(s: &Source, text: impl Into<String>) -> Self {
        Cited {
            seq: s.seq,
            offset: s.offset,
            text: text.into(),
        }
    }
}

/// A violation of a rule, or a note.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule's id.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// The place in the file, in bytes, if the finding has one.
    pub offset: Option<u64>,
    /// The record that breaks the rule.
    pub record: Option<Cited>,
    /// The record that it contradicts.
    pub related: Option<Cited>,
}

/// The findings of one rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// The rule's id.
    pub id: &'static str,
    /// What the rule demands.
    pub about: &'static str,
    /// Findings that make the trace bad.
    pub errors: u64,
    /// Findings that the user has waived.
    pub warnings: u64,
    /// Findings that do no harm.
    pub notes: u64,
    /// The first findings.
    pub examples: Vec<Finding>,
}

/// The findings of all rules.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Whether no rule found an error.
    pub good: bool,
    /// The findings of each rule.
    pub rules: Vec<RuleReport>,
}

impl CheckReport {
    /// Findings that make the trace bad.
    pub fn errors(&self) -> u64 {
        self.rules.iter().map(|r| r.errors).sum()
    }

    /// The findings of one rule.
    pub fn rule(&self, id: &str) -> Option<&RuleReport> {
        self.rules.iter().find(|r| r.id == id)
    }
}

/// Collects the findings of one rule.
pub struct Findings {
    report: RuleReport,
    keep: usize,
    options: CheckOptions,
}

impl Findings {
    /// What the user asked for.
    pub fn options(&self) -> CheckOptions {
        self.options
    }

    /// Adds a finding; `make` runs only if it is kept as an example.
    pub fn add(&mut self, severity: Severity, make: impl FnOnce() -> Draft) {
        match severity {
            Severity::Error => self.report.errors += 1,
            Severity::Warning => self.report.warnings += 1,
            Severity::Note => self.report.notes += 1,
        }
        if self.report.examples.len() < self.keep {
            let draft = make();
            self.report.examples.push(Finding {
                rule: self.report.id,
                severity,
                message: draft.message,
                offset: draft.offset.or(draft.record.as_ref().map(|r| r.offset)),
                record: draft.record,
                related: draft.related,
            });
        }
    }

    /// Adds a finding that makes the trace bad.
    pub fn error(&mut self, make: impl FnOnce() -> Draft) {
        self.add(Severity::Error, make);
    }

    /// Adds a finding that does no harm.
    pub fn note(&mut self, make: impl FnOnce() -> Draft) {
        self.add(Severity::Note, make);
    }
}

/// A finding in the making.
#[derive(Default)]
pub struct Draft {
    message: String,
    offset: Option<u64>,
    record: Option<Cited>,
    related: Option<Cited>,
}

impl Draft {
    /// Begins with what is wrong.
    pub fn new(message: impl Into<String>) -> Self {
        Draft {
            message: message.into(),
            ..Draft::default()
        }
    }

    /// Names a place in the file.
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Cites the record that breaks the rule.
    pub fn record(mut self, record: Cited) -> Self {
        self.record = Some(record);
        self
    }

    /// Cites the record that it contradicts.
    pub fn related(mut self, record: Option<Cited>) -> Self {
        self.related = record;
        self
    }
}

/// A condition that a good trace meets.
pub trait Rule {
    /// The rule's stable name, in output, JSON and documents.
    fn id(&self) -> &'static str;
    /// The condition, in a line: continues "the rule demands that".
    fn about(&self) -> &'static str;
    /// The pass is about to begin.
    fn begin(&mut self, _trace: &Trace, _out: &mut Findings) {}
    /// A packet was opened.
    fn packet(&mut self, _packet: &PacketSeen, _out: &mut Findings) {}
    /// Whether it is about records, also those that are no references; see
    /// [`Consumer::wants_continuations`].
    fn wants_continuations(&self) -> bool {
        false
    }
    /// Whether it follows pages by name, for which no name may be given twice.
    fn follows_names(&self) -> bool {
        false
    }
    /// A run of references.
    fn references(&mut self, _batch: &Batch<'_>, _out: &mut Findings) {}
    /// An event, which `world` has followed already.
    fn event(&mut self, _e: &Event<'_>, _world: &World, _issues: &[Issue], _out: &mut Findings) {}
    /// A part of the trace was skipped.
    fn damage(&mut self, _damage: &Damage, _out: &mut Findings) {}
    /// The pass is over.
    fn finish(&mut self, _trace: &Trace, _outcome: &Outcome, _out: &mut Findings) {}
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Losses that are counted do not make a trace bad.
    pub allow_loss: bool,
    /// Number of findings to keep for each rule.
    pub examples: usize,
}

/// Applies rules to a trace in a pass over it.
pub struct Checker {
    rules: Vec<(Box<dyn Rule>, Findings)>,
}

impl Checker {
    /// Every rule.
    pub fn new(options: CheckOptions) -> Self {
        Self::with(rules::all(), options)
    }

    /// Every rule, including those that need a pass with canonical pages.
    pub fn with_pages(options: CheckOptions) -> Self {
        Self::with(rules::with_pages(), options)
    }

    /// The rules about the file as such, which cost almost nothing: every command applies at
    /// least these.
    pub fn integrity(options: CheckOptions) -> Self {
        Self::with(rules::integrity(), options)
    }

    /// Rules of the caller's choice.
    pub fn with(rules: Vec<Box<dyn Rule>>, options: CheckOptions) -> Self {
        let rules = rules
            .into_iter()
            .map(|rule| {
                let report = RuleReport {
                    id: rule.id(),
                    about: rule.about(),
                    errors: 0,
                    warnings: 0,
                    notes: 0,
                    examples: Vec::new(),
                };
                (
                    rule,
                    Findings {
                        report,
                        keep: options.examples,
                        options,
                    },
                )
            })
            .collect();
        Checker { rules }
    }

    /// The verdict, after the pass.
    pub fn report(self) -> CheckReport {
        let rules: Vec<RuleReport> = self.rules.into_iter().map(|(_, f)| f.report).collect();
        CheckReport {
            good: rules.iter().all(|r| r.errors == 0),
            rules,
        }
    }
}

impl Consumer for Checker {
    fn begin(&mut self, trace: &Trace) -> Result<()> {
        for (rule, out) in &mut self.rules {
            rule.begin(trace, out);
        }
        Ok(())
    }

    fn packet(&mut self, packet: &PacketSeen) -> Result<()> {
        for (rule, out) in &mut self.rules {
            rule.packet(packet, out);
        }
        Ok(())
    }

    fn wants_continuations(&self) -> bool {
        true
    }

    fn wants_raw_times(&self) -> bool {
        true
    }

    fn follows_freed(&self) -> bool {
        !self.rules.iter().any(|(rule, _)| rule.follows_names())
    }

    fn references(&mut self, batch: &Batch<'_>) -> Result<()> {
        let left = without_continuations(batch);
        for (rule, out) in &mut self.rules {
            match &left {
                Some((refs, places, pages)) if !rule.wants_continuations() => {
                    let part = Batch {
                        refs,
                        places,
                        pages,
                        ..*batch
                    };
                    rule.references(&part, out);
                }
                _ => rule.references(batch, out),
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, world: &World, issues: &[Issue]) -> Result<()> {
        for (rule, out) in &mut self.rules {
            rule.event(event, world, issues, out);
        }
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) -> Result<()> {
        for (rule, out) in &mut self.rules {
            rule.damage(damage, out);
        }
        Ok(())
    }

    fn finish(&mut self, trace: &Trace, outcome: &Outcome) -> Result<()> {
        for (rule, out) in &mut self.rules {
            rule.finish(trace, outcome, out);
        }
        Ok(())
    }
}
