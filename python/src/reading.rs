//! How a trace is read: which references, which pages, what freed pages do.
//!
//! This is what the commands of `postproc` do with the options of the same names.

use std::str::FromStr;

use postproc::canon::PageMode;
use postproc::check::{CheckOptions, CheckReport, Checker};
use postproc::filter::{Clause, Filter, Filtered, LeftOut};
use postproc::pipeline::{self, Consumer, Freeing, Observer, Outcome};
use postproc::report::grouped;
use postproc::select::{self, OF_PLACE, OF_TIME, Where, Who};
use postproc::streams::{self, Selection};
use postproc::trace::Trace;
use postproc::units::Tid;
use postproc::virtual_time::InVirtualTime;
use pyo3::prelude::*;
use rust_mm_trace::filter::{Field, Subject};

use crate::fail::{Failure, Result};

/// What is selected, as texts that the options of the commands take. These are keyword arguments of many
/// methods.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Selected {
    #[pyo3(item("where"))]
    clause: Option<String>,
    since: Option<String>,
    until: Option<String>,
    process: Option<String>,
    comm: Vec<String>,
    mapping: Vec<String>,
    address: Vec<String>,
}

/// Reads the value of an option as the commands read it.
fn value<T: FromStr<Err = String>>(option: &str, text: &str) -> Result<T> {
    let read = text.parse();
    read.map_err(|why| Failure::argument(format!("{option} is {text:?}: {why}")))
}

fn some<T: FromStr<Err = String>>(option: &str, text: Option<&str>) -> Result<Option<T>> {
    text.map(|text| value(option, text)).transpose()
}

impl Selected {
    /// The same, understood.
    ///
    /// # Errors
    ///
    /// A value is wrong.
    pub fn read(&self, subject: Subject) -> Result<Where> {
        let addresses = self.address.iter().map(|text| value("address", text));
        let clause = self.clause.as_deref();
        let clause = clause.map(|text| Clause::parse(text, subject).map_err(Failure::Filter));
        Ok(Where {
            clause: clause.transpose()?,
            options: select::Options {
                since: some("since", self.since.as_deref())?,
                until: some("until", self.until.as_deref())?,
                process: some("process", self.process.as_deref())?,
                comm: self.comm.clone(),
                mapping: self.mapping.clone(),
                address: addresses.collect::<Result<_>>()?,
            },
        })
    }
}

/// Which references are read, and how. These are keyword arguments of many methods.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    selected: Selected,
    set: Option<u32>,
    pages: String,
    keep_freed: bool,
    time: String,
}

/// The same, understood.
#[derive(Clone)]
pub struct Reading {
    pub mode: PageMode,
    pub freeing: Freeing,
    pub selection: Option<Selection>,
    /// What is selected, with the process of `selection`.
    pub only: Where,
    pub clause: Option<Clause>,
    pub in_virtual_time: bool,
}

/// What a reading has given.
pub struct Passed {
    pub outcome: Outcome,
    /// References that the consumer got.
    pub references: u64,
    /// What the filter has kept, if there is one.
    pub filtered: Option<Filtered>,
    /// What the kernel's filter has left out, if the trace may have one.
    pub left_out: Option<LeftOut>,
}

impl Options {
    /// What counts as one page, in words.
    pub fn pages(&self) -> &str {
        &self.pages
    }

    /// What they ask of a trace.
    ///
    /// # Errors
    ///
    /// They contradict each other or are wrong, or the trace has no such thing.
    pub fn reading(&self, trace: &Trace) -> Result<Reading> {
        let in_virtual_time = match self.time.as_str() {
            "real" => false,
            "virtual" if trace.header().has_vtime() => true,
            "virtual" => {
                return Err(Failure::trace(format!(
                    "{}: the trace has no virtual time; `activator run --virtual-time` makes a \
                     trace that has it",
                    trace.path().display()
                )));
            }
            other => {
                let text = format!("time is {other:?}; it must be 'real' or 'virtual'");
                return Err(Failure::argument(text));
            }
        };
        let mode = match self.pages.as_str() {
            "canonical" => PageMode::Canonical,
            "virtual" => PageMode::Virtual,
            other => {
                let text = format!("pages is {other:?}; it must be 'canonical' or 'virtual'");
                return Err(Failure::argument(text));
            }
        };
        let only = self.selected.read(Subject::References)?;
        let selection = match (&only.options.process, self.set) {
            (Some(_), Some(_)) => {
                return Err(Failure::argument("give process or set, not both"));
            }
            (Some(Who::Id(pid)), None) => Some(Selection::Process(Tid(*pid))),
            (_, set) => set.map(Selection::Set),
        };
        if in_virtual_time {
            let why = "`time` is the system's clock, and time='virtual' reads another one; `seq` \
                       and `window` do not depend on the clock";
            only.refuse(&[Field::Time], &OF_TIME, why)?;
        }
        let clause = only.expression(trace, false)?;
        Ok(Reading {
            mode,
            freeing: match self.keep_freed {
                true => Freeing::Kept,
                false => Freeing::Freed,
            },
            selection,
            only,
            clause,
            in_virtual_time,
        })
    }
}

impl Reading {
    /// Refuses to select by what references of read() and write() do not have.
    ///
    /// # Errors
    ///
    /// [`Failure::Filter`] or [`Failure::Argument`].
    pub fn refuse_places(&self) -> Result<()> {
        let why = "what read() and write() reference (io) has no address, no mapping and no set";
        Ok(self.only.refuse(&Field::OF_PLACE, &OF_PLACE, why)?)
    }

    /// Reads the trace once for `consumer`, and for the consumers `beside` it, which always get the
    /// whole trace. It is no error if no reference is kept: a table is empty then.
    pub fn run(
        &self,
        trace: &Trace,
        observer: &mut dyn Observer,
        beside: &mut [&mut dyn Consumer],
        consumer: &mut dyn Consumer,
    ) -> Result<Passed> {
        if self.selection.is_none() && self.clause.is_none() {
            let outcome = self.pass(trace, observer, beside, consumer)?;
            return Ok(Passed {
                references: outcome.world.references,
                left_out: LeftOut::of(trace, &outcome.world.filters),
                outcome,
                filtered: None,
            });
        }
        let filter = self.clause.as_ref().map(Filter::new);
        let mut selected = streams::Selected::filtered(self.selection, filter, consumer);
        let outcome = self.pass(trace, observer, beside, &mut selected)?;
        Ok(Passed {
            left_out: LeftOut::of(trace, &outcome.world.filters),
            outcome,
            references: selected.references(),
            filtered: selected.kept(),
        })
    }

    /// The same. It is an error if no reference is kept, for results of none mean nothing.
    pub fn run_some(
        &self,
        trace: &Trace,
        observer: &mut dyn Observer,
        beside: &mut [&mut dyn Consumer],
        consumer: &mut dyn Consumer,
    ) -> Result<Passed> {
        let passed = self.run(trace, observer, beside, consumer)?;
        if passed.references > 0 {
            return Ok(passed);
        }
        if let Some(filtered) = passed.filtered.as_ref().filter(|f| f.left_out > 0) {
            return Err(Failure::trace(filtered.keeps_none(&filtered.by, grouped)));
        }
        match self.selection {
            Some(Selection::Process(pid)) => Err(Failure::trace(format!(
                "process {} has no reference in the trace; Trace.processes() lists the processes",
                pid.0
            ))),
            Some(Selection::Set(set)) => Err(Failure::trace(format!(
                "set {set} has no reference in the trace; `postproc info` lists the sets"
            ))),
            None => Ok(passed),
        }
    }

    fn pass(
        &self,
        trace: &Trace,
        observer: &mut dyn Observer,
        beside: &mut [&mut dyn Consumer],
        consumer: &mut dyn Consumer,
    ) -> Result<Outcome> {
        let mut virtually;
        let consumer: &mut dyn Consumer = if self.in_virtual_time {
            virtually = InVirtualTime::new(consumer);
            &mut virtually
        } else {
            consumer
        };
        let mut consumers: Vec<&mut dyn Consumer> = Vec::with_capacity(beside.len() + 1);
        for other in beside {
            consumers.push(&mut **other);
        }
        consumers.push(consumer);
        let outcome = pipeline::run_with(trace, self.mode, self.freeing, observer, &mut consumers)?;
        Ok(outcome)
    }
}

/// Whether the rules of `check` are applied in the pass that uses a trace.
pub fn checker(trust: bool, allow_loss: bool, examples: usize) -> Checker {
    let options = CheckOptions {
        allow_loss,
        examples,
    };
    match trust {
        true => Checker::integrity(options),
        false => Checker::new(options),
    }
}

/// The findings of a pass that used a trace, in words: nothing for a good trace without notes.
pub fn findings(report: &CheckReport) -> Vec<String> {
    let examples = report.rules.iter().flat_map(|rule| &rule.examples);
    examples
        .map(|f| format!("{}: {}: {}", f.severity.name(), f.rule, f.message))
        .collect()
}
