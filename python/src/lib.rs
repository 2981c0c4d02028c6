//! The native module of the Python package `kvmtrace`.
//!
//! The package's own modules, in `python/kvmtrace`, are what users see: they document the API, and add
//! what is easier in Python. Here is what needs postproc: reading, counting, and Arrow tables.
//!
//! A call that reads a trace releases the lock of the interpreter, and looks for signals in between
//! ([`fail::Signals`]). No panic reaches Python as one: see [`fail::work`].

mod columns;
mod events;
mod fail;
mod mappings;
mod policy;
mod processes;
mod reading;
mod references;
mod simulate;
mod stretches;
mod sum;
mod table;
mod trace;
mod working_set;

use postproc::sim;
use postproc::summary::demand_times;
use pyo3::prelude::*;
use rust_mm_trace::filter::Subject;

/// All policies of postproc: the name of each, what it is in a line, and whether
/// `Trace.curve` can compute all sizes of memory in one pass.
#[pyfunction]
fn policies() -> Vec<(&'static str, &'static str, bool)> {
    let registry = sim::registry().iter();
    registry
        .map(|p| (p.id, p.about, p.curve.is_some()))
        .collect()
}

/// The options that select, in the words that a summary has as its field `selection`; `None` if nothing is
/// selected. Raises an error for what no summary can be of.
#[pyfunction]
fn selection(selected: reading::Selected) -> PyResult<Option<String>> {
    let only = selected.read(Subject::References)?;
    demand_times(&only).map_err(fail::Failure::from)?;
    Ok(only.is_given().then(|| only.words()))
}

/// The native part of kvmtrace. Use the package.
#[pymodule]
fn _kvmtrace(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("TraceError", py.get_type::<fail::TraceError>())?;
    module.add("FilterError", py.get_type::<fail::FilterError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(policies, module)?)?;
    module.add_function(wrap_pyfunction!(selection, module)?)?;
    module.add_function(wrap_pyfunction!(sum::table_of_summaries, module)?)?;
    module.add_class::<trace::Trace>()?;
    module.add_class::<stretches::Stretches>()?;
    module.add_class::<sum::Sum>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Batches>()?;
    module.add_class::<table::Batch>()?;
    module.add_class::<table::Column>()?;
    Ok(())
}
