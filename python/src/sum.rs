//! The sum of summaries.

use std::sync::{Mutex, PoisonError};

use postproc::summary::Summary;
use pyo3::prelude::*;

use crate::fail::{Failure, work};

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
