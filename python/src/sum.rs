//! The sum of summaries, and tables of them.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use postproc::summary::{Stored, Summary, read_table};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::fail::{Failure, work};

/// A row of a table: its summary, or why it has none, if that is known.
type Row = (Option<String>, Option<String>);

/// The rows of a table of Parquet that `postproc summary` or Spark has written: of each one the summary, an
/// object of JSON, or why there is none.
#[pyfunction]
pub fn table_of_summaries(py: Python<'_>, table: PyBackedBytes) -> PyResult<Vec<Row>> {
    work(py, |signals| {
        let (mut rows, mut is_ended) = (Vec::new(), false);
        let read = read_table(Bytes::from_owner(table), |stored| {
            is_ended = !signals.go_on();
            if is_ended {
                return Err("interrupted".into());
            }
            rows.push(match stored {
                Stored::NoSummary(why) => (None, why),
                Stored::Summary(summary, _) => {
                    let text = serde_json::to_string(&*summary);
                    (Some(text.map_err(|error| error.to_string())?), None)
                }
            });
            Ok(())
        });
        match read {
            Ok(()) => Ok(rows),
            Err(_) if is_ended => Err(Failure::Gone),
            Err(why) => Err(Failure::argument(why)),
        }
    })
}

/// Adds up summaries of traces.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
#[derive(Default)]
pub struct Sum(Mutex<postproc::summary::Sum>);

#[pymethods]
impl Sum {
    /// Nothing yet.
    #[new]
    fn new() -> Self {
        Sum::default()
    }

    /// Adds a summary, an object of JSON. After an error, the sum is what it was.
    fn add(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        work(py, |_| {
            let summary: Summary = serde_json::from_str(text)
                .map_err(|error| Failure::argument(format!("no summary of traces: {error}")))?;
            let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            sum.add(&summary).map_err(Failure::argument)
        })
    }

    /// The sum, as JSON.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        work(py, |_| {
            let sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if sum.summary().traces == 0 {
                return Err(Failure::argument("there is no summary to add up"));
            }
            let text = serde_json::to_string(sum.summary());
            text.map_err(|error| Failure::trace(error.to_string()))
        })
    }
}
