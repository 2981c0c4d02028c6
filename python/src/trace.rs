//! A trace, as Python has it.

use std::path::PathBuf;
use std::sync::Arc;

use postproc::canon::PageMode;
use postproc::check::{CheckOptions, Checker};
use postproc::filter::LeftOut;
use postproc::maps::{Only, When};
use postproc::pipeline;
use postproc::stretch;
use postproc::summary::{Summary, Threads, Wanted, demand_times};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rust_mm_trace::filter::Subject;
use serde_json::json;

use crate::fail::{Failure, work, work_apart};
use crate::policy::Policies;
use crate::reading::{Options, Selected, checker};
use crate::simulate::{
    Asked, ByPolicy, Manner, by_policy, curves, entries, estimate_rows, estimates, pages_of, sizes,
};
use crate::table::{Batch, Table};
use crate::{events, mappings, processes, references, stretches, working_set};

/// A trace that was opened. The class `kvmtrace.Trace` is for users.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
pub struct Trace(Arc<postproc::trace::Trace>);

fn json_text(value: &impl serde::Serialize) -> PyResult<String> {
    let text = serde_json::to_string(value);
    text.map_err(|error| Failure::trace(error.to_string()).into())
}

#[pymethods]
impl Trace {
    /// Opens a file, or a directory of pieces.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let trace = work_apart(py, |unless| {
            Ok(postproc::trace::Trace::open_watched(path, unless)?)
        })?;
        Ok(Trace(Arc::new(trace)))
    }

    /// The path.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().into()
    }

    /// The header as JSON.
    fn header_json(&self) -> PyResult<String> {
        json_text(self.0.header())
    }

    /// Which piece or part of a trace it is, what the kernel counted, and damage, as JSON.
    fn about_json(&self) -> PyResult<String> {
        let index = self.0.index();
        json_text(&json!({
            "piece": self.0.piece(),
            "part": self.0.part(),
            "status": index.end.as_ref().map(|end| &end.status),
            "windows": index.windows.iter().map(|w| &w.account).collect::<Vec<_>>(),
            "damage": index.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "file_bytes": self.0.file_bytes(),
        }))
    }

    /// Whether the trace has the kernel's closing account.
    #[getter]
    fn complete(&self) -> bool {
        self.0.index().end.is_some()
    }

    /// Which window it is, if it is one.
    #[getter]
    fn window(&self) -> Option<u32> {
        self.0.window()
    }

    /// The numbers of its windows.
    #[getter]
    fn windows(&self) -> Vec<u32> {
        self.0.window_numbers()
    }

    /// One of its windows.
    fn only_window(&self, py: Python<'_>, number: u32) -> PyResult<Self> {
        let trace = self.0.clone();
        let window = work(py, move |_| Ok(trace.only_window(number)?))?;
        Ok(Trace(Arc::new(window)))
    }

    /// All processes.
    fn processes(&self, py: Python<'_>) -> PyResult<Batch> {
        let trace = &self.0;
        work(py, |signals| processes::table(trace, signals))
    }

    /// References.
    fn references(&self, columns: Option<Vec<String>>, options: Options) -> PyResult<Table> {
        let reading = options.reading(&self.0)?;
        Ok(references::table(&self.0, reading, columns)?)
    }

    /// Pages that are freed.
    fn freed(&self, options: Options) -> PyResult<Table> {
        let reading = options.reading(&self.0)?;
        Ok(references::freed_table(&self.0, reading))
    }

    /// Events.
    fn events(
        &self,
        types: Vec<String>,
        pid: Option<u32>,
        mm: Option<u32>,
        selected: Selected,
    ) -> PyResult<Table> {
        let only = selected.read(Subject::Events)?;
        let options = only.options.without_places();
        let clause = options
            .clause(only.clause.as_ref(), Subject::Events, &self.0, true)
            .map_err(Failure::from)?;
        let wanted = events::Wanted {
            types,
            pid,
            mm,
            clause,
            options: only.options,
        };
        Ok(events::table(&self.0, wanted)?)
    }

    /// What was mapped at a moment.
    fn mappings(
        &self,
        py: Python<'_>,
        seq: Option<u64>,
        at_open: Option<String>,
        selected: Selected,
    ) -> PyResult<Batch> {
        let options = selected.read(Subject::References)?.options;
        let given = [seq.is_some(), at_open.is_some(), options.until.is_some()];
        if given.iter().filter(|&&is_given| is_given).count() > 1 {
            return Err(Failure::argument("give one of seq, at_open and until").into());
        }
        let trace = &self.0;
        let only = Only::new(&options.mapping, &options.address, trace);
        let when = When {
            seq,
            until: options.until,
            at_open,
            without: None,
        };
        let process = options.process.as_ref();
        work(py, |signals| {
            mappings::table(trace, &when, process, &only, signals)
        })
    }

    /// The findings of all rules, as JSON.
    fn check_json(
        &self,
        py: Python<'_>,
        frames: bool,
        allow_loss: bool,
        examples: usize,
    ) -> PyResult<String> {
        let options = CheckOptions {
            allow_loss,
            examples,
        };
        let trace = &self.0;
        work(py, |signals| {
            let (mut checker, mode) = match frames {
                true => (Checker::with_pages(options), PageMode::Canonical),
                false => (Checker::new(options), PageMode::Unnamed),
            };
            let outcome = pipeline::run(trace, mode, signals, &mut [&mut checker])?;
            let report = checker.report();
            let text = serde_json::to_string(&json!({
                "references": outcome.world.references,
                "renewals": outcome.world.renewals,
                "reference_records": outcome.world.records,
                "events": outcome.world.events,
                "packets": outcome.packets,
                "filtered": LeftOut::of(trace, &outcome.world.filters),
                "good": report.good,
                "rules": report.rules,
            }));
            text.map_err(|error| Failure::trace(error.to_string()))
        })
    }

    /// The misses of all sizes of memory: what is known besides, as JSON, and the rows of each
    /// policy.
    fn curves(
        &self,
        py: Python<'_>,
        policies: Vec<String>,
        points: usize,
        options: Options,
        manner: Manner,
    ) -> PyResult<(String, ByPolicy)> {
        let asked = Asked {
            options,
            how: manner,
        };
        let trace = &self.0;
        work(py, |signals| {
            let entries = entries(&policies)?;
            let (given, rows) = curves(trace, signals, &asked, &entries, points)?;
            Ok((given.json()?, rows))
        })
    }

    /// Curves that are estimated from a share of the pages: as [`Trace::curves`].
    fn estimate_curves(
        &self,
        py: Python<'_>,
        policies: Vec<String>,
        points: usize,
        sample: f64,
        options: Options,
        manner: Manner,
    ) -> PyResult<(String, ByPolicy)> {
        let asked = Asked {
            options,
            how: manner,
        };
        let trace = &self.0;
        work(py, |signals| {
            let (entries, wanted) = (entries(&policies)?, (&[][..], points));
            let (given, all) = estimates(trace, signals, &asked, &entries, wanted, sample)?;
            Ok((given.json()?, by_policy(&all)?))
        })
    }

    /// Misses that are estimated from a share of the pages: as [`Trace::simulate`].
    fn estimate_sizes(
        &self,
        py: Python<'_>,
        policies: Vec<String>,
        of_sizes: Vec<u64>,
        sample: f64,
        options: Options,
        manner: Manner,
    ) -> PyResult<(String, Batch)> {
        let asked = Asked {
            options,
            how: manner,
        };
        let trace = &self.0;
        work(py, |signals| {
            let (entries, wanted) = (entries(&policies)?, (&of_sizes[..], 0));
            let (given, all) = estimates(trace, signals, &asked, &entries, wanted, sample)?;
            Ok((given.json()?, estimate_rows(&all)?))
        })
    }

    /// Sizes of memory in pages: `4000`, `16MiB`, or `0.1` or `10%` of the footprint.
    fn pages_of(
        &self,
        py: Python<'_>,
        of_sizes: Vec<String>,
        options: Options,
        manner: Manner,
    ) -> PyResult<Vec<u64>> {
        let asked = Asked {
            options,
            how: manner,
        };
        let trace = &self.0;
        work(py, |signals| pages_of(trace, signals, asked, &of_sizes))
    }

    /// The misses of memories of these sizes: what is known besides, as JSON, and the rows.
    fn simulate(
        &self,
        py: Python<'_>,
        policies: Vec<String>,
        of_sizes: Vec<u64>,
        options: Options,
        manner: Manner,
    ) -> PyResult<(String, Batch)> {
        let asked = Asked {
            options,
            how: manner,
        };
        let trace = &self.0;
        work(py, |signals| {
            let entries = entries(&policies)?;
            let (given, rows) = sizes(trace, signals, &asked, &entries, &of_sizes)?;
            Ok((given.json()?, rows))
        })
    }

    /// The same with policies in Python, each of them with the size of its memory if that is known.
    fn simulate_objects(
        &self,
        py: Python<'_>,
        objects: Vec<(Bound<'_, PyAny>, Option<u64>)>,
        options: Options,
        manner: Manner,
    ) -> PyResult<(String, Batch)> {
        let asked = Asked {
            options,
            how: manner,
        };
        let policies = Policies::new(&objects)?;
        let trace = &self.0;
        work(py, |signals| {
            let (given, rows) = policies.run(trace, signals, &asked)?;
            Ok((given.json()?, rows))
        })
    }

    /// The summary of the trace, as JSON. `threads` is whether curves have threads of their own.
    fn summary_json(
        &self,
        py: Python<'_>,
        host: Option<String>,
        trust: bool,
        allow_loss: bool,
        threads: bool,
        selected: Selected,
    ) -> PyResult<String> {
        let trace = &self.0;
        let only = selected.read(Subject::References)?;
        let threads = match threads {
            true => Threads::Several,
            false => Threads::One,
        };
        work(py, |signals| {
            demand_times(&only)?;
            trace.demand_references()?;
            let checker = checker(trust, allow_loss, 3);
            let chosen = only.chosen(trace)?;
            let wanted = Wanted {
                host: host.as_deref(),
                chosen: chosen.as_ref(),
                threads,
            };
            let (summary, _) = Summary::of(trace, &wanted, checker, signals)?;
            let text = serde_json::to_string(&summary);
            text.map_err(|error| Failure::trace(error.to_string()))
        })
    }

    /// At most so many ranges of sequence numbers, each with about as many records of references.
    fn cut(&self, py: Python<'_>, count: usize) -> PyResult<Vec<(u64, u64)>> {
        let trace = &self.0;
        work(py, |_| {
            let ranges = stretch::cut(trace, count)?.into_iter();
            Ok(ranges.map(|range| (range.start, range.end)).collect())
        })
    }

    /// What is known of the LRU curve before stretches of it are computed, as JSON.
    fn stretch_about_json(&self, options: Options, allow_loss: bool) -> PyResult<String> {
        json_text(&stretches::about(&self.0, &options, allow_loss)?)
    }

    /// What a range notes of the names of pages, for the stretches of this range and later ones.
    fn stretch_names<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        end: u64,
        options: Options,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let trace = &self.0;
        let bytes = work(py, |signals| {
            stretches::names(trace, first..end, &options, signals)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The stretch of a range, from what all ranges before it have noted.
    fn lru_stretch<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        end: u64,
        names: Vec<PyBackedBytes>,
        options: Options,
        allow_loss: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let trace = &self.0;
        let bytes = work(py, |signals| {
            let names: Vec<&[u8]> = names.iter().map(|bytes| &**bytes).collect();
            stretches::compute(trace, first..end, &names, (&options, allow_loss), signals)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The working set, as JSON.
    fn working_set_json(
        &self,
        py: Python<'_>,
        trust: bool,
        allow_loss: bool,
        options: Options,
    ) -> PyResult<String> {
        let reading = options.reading(&self.0)?;
        let trace = &self.0;
        work(py, |signals| {
            working_set::json(trace, signals, &reading, (trust, allow_loss))
        })
    }
}
