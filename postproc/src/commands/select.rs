//! Options that select what a command reads, besides those of [`crate::select`].

use crate::filter::Clause;
use crate::select::{OF_PLACE, OF_TIME, Where, Who};
use crate::streams::Selection;
use crate::trace::Trace;
use crate::units::Tid;
use clap::Args;
use rust_mm_trace::filter::Field;

/// Which references to read.
#[derive(Args)]
pub struct Which {
    /// Take only the references to the set with this number, of a trace with several sets;
    /// `postproc info` lists the sets
    #[arg(long, value_name = "NUMBER", conflicts_with = "process")]
    pub set: Option<u32>,
    #[command(flatten)]
    pub only: Where,
}

impl Which {
    /// The process, if it was given by its id.
    pub fn process(&self) -> Option<u32> {
        match self.only.options.process {
            Some(Who::Id(pid)) => Some(pid),
            _ => None,
        }
    }

    /// The references that were asked for; `None` if all were.
    pub fn selection(&self) -> Option<Selection> {
        let process = self.process().map(|pid| Selection::Process(Tid(pid)));
        process.or(self.set.map(Selection::Set))
    }

    /// Which of the references of [`Which::selection`] to read, if not all.
    pub fn clause(
        &self,
        trace: &Trace,
        io: bool,
        in_virtual_time: bool,
    ) -> anyhow::Result<Option<Clause>> {
        self.only.clause_with(trace, io, in_virtual_time, false)
    }
}

/// Why something cannot be selected by the place of a reference.
const NO_PLACE: &str =
    "what read() and write() reference (--io) has no address, no mapping and no set";
/// Why something cannot be selected by time.
const NO_TIME: &str = "`time` is the system's clock, and --time virtual reads another one; `seq` and \
                       `window` do not depend on the clock";

impl Where {
    /// The expression, if there is one. Refuses what has no meaning in this reading.
    pub fn clause(
        &self,
        trace: &Trace,
        io: bool,
        in_virtual_time: bool,
    ) -> anyhow::Result<Option<Clause>> {
        self.clause_with(trace, io, in_virtual_time, true)
    }

    fn clause_with(
        &self,
        trace: &Trace,
        io: bool,
        in_virtual_time: bool,
        ids: bool,
    ) -> anyhow::Result<Option<Clause>> {
        if io {
            self.refuse(&Field::OF_PLACE, &OF_PLACE, NO_PLACE)?;
        }
        if in_virtual_time {
            self.refuse(&[Field::Time], &OF_TIME, NO_TIME)?;
        }
        Ok(self.expression(trace, ids)?)
    }

    /// Refuses the options for another program's trace.
    pub fn none_in(&self, format: &str) -> anyhow::Result<()> {
        let first = self.clause.as_ref().map(|_| "--where");
        let option = first.or(self.options.first());
        match option {
            None => Ok(()),
            Some(option) => anyhow::bail!(
                "{option}: a trace of format {format} does not say whose references they are, or \
                 where they lie"
            ),
        }
    }

    /// Refuses what needs a filter.
    pub fn no_filter(&self, why: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.clause.is_none(), "--where: {why}");
        let options = ["--since", "--until", "--comm", "--mapping", "--address"];
        self.options.refuse(&options, why)?;
        match &self.options.process {
            Some(Who::Name(_)) => anyhow::bail!("--process: give the id of a process: {why}"),
            _ => Ok(()),
        }
    }
}

/// Selections of references and of threads, of a command that shows neither.
#[derive(Args)]
pub struct NoReferences {
    #[arg(long = "where", id = "where", value_name = "EXPR", hide = true)]
    clause: Option<String>,
    #[arg(long, hide = true)]
    comm: Vec<String>,
}

impl NoReferences {
    /// Refuses them.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        let given = [
            ("--where", self.clause.is_some()),
            ("--comm", !self.comm.is_empty()),
        ];
        refuse_given(&given, why)
    }
}

/// The beginning of a time, of a command that cannot have one.
#[derive(Args)]
pub struct NoBegin {
    #[arg(long, hide = true)]
    since: Option<String>,
}

impl NoBegin {
    /// Refuses it.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        refuse_given(&[("--since", self.since.is_some())], why)
    }
}

/// The name of a mapping, of a command that does not know such names.
#[derive(Args)]
pub struct NoMapping {
    #[arg(long, hide = true)]
    mapping: Vec<String>,
}

impl NoMapping {
    /// Refuses it.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        refuse_given(&[("--mapping", !self.mapping.is_empty())], why)
    }
}

fn refuse_given(given: &[(&str, bool)], why: &str) -> anyhow::Result<()> {
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => anyhow::bail!("{option}: {why}"),
    }
}

/// The end of a time, of a command that cannot have one.
#[derive(Args)]
pub struct NoEnd {
    #[arg(long, hide = true)]
    until: Option<String>,
}

impl NoEnd {
    /// Refuses it.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        refuse_given(&[("--until", self.until.is_some())], why)
    }
}

/// Selections of a command that cannot have any.
#[derive(Args)]
pub struct NoWhere {
    #[command(flatten)]
    references: NoReferences,
    #[command(flatten)]
    begin: NoBegin,
    #[command(flatten)]
    end: NoEnd,
    #[command(flatten)]
    mapping: NoMapping,
    #[arg(long, hide = true)]
    address: Vec<String>,
    #[arg(long, hide = true)]
    process: Option<String>,
}

impl NoWhere {
    /// Refuses all of them.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        self.references.refuse(why)?;
        self.begin.refuse(why)?;
        self.end.refuse(why)?;
        self.mapping.refuse(why)?;
        let given = [
            ("--address", !self.address.is_empty()),
            ("--process", self.process.is_some()),
        ];
        refuse_given(&given, why)
    }
}
