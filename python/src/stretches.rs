//! Stretches of one trace, which several processes or machines compute.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use postproc::pipeline::{Batch as Run, Consumer, World};
use postproc::report::grouped;
use postproc::sim::{self, Access, LruStretch, push_accesses, push_freed};
use postproc::stretch::{self, Names};
use postproc::trace::Trace;
use postproc::units::CanonPage;
use pyo3::prelude::*;

use crate::fail::{Failure, Result, Signals, work};
use crate::reading::{Options, Reading};
use crate::simulate::{About, curve_rows};
use crate::table::Batch;

const NOT_CHECKED: &str = "the rules of Trace.check() were not applied to the trace";
const NO_BOUNDS: &str = "a curve that is computed in stretches has no proven bounds";

/// What is known of the trace before its references are read.
///
/// # Errors
///
/// The trace is damaged or lacks records, or cannot be read like this.
pub fn about(trace: &Trace, options: &Options, allow_loss: bool) -> Result<About> {
    let reading = reading(trace, options)?;
    let index = trace.index();
    if !allow_loss {
        intact(trace, &index.damage)?;
        let lost = index.end.as_ref().map(|end| end.status.lost());
        match lost {
            Some(0) => {}
            Some(lost) => {
                return Err(Failure::trace(format!(
                    "{}: {} records were lost; allow_loss=True computes the curve of the others",
                    trace.path().display(),
                    grouped(lost)
                )));
            }
            None => {
                return Err(Failure::trace(format!(
                    "{}: the end of the trace is missing; allow_loss=True computes the curve of what \
                     is there",
                    trace.path().display()
                )));
            }
        }
    }
    let header = trace.header();
    Ok(About {
        path: trace.path().display().to_string(),
        window: trace.window(),
        references: 0,
        evms_size: header.evms_size,
        page_size: header.page_size(),
        huge_page_sizes: None,
        set: None,
        exact: false,
        why_not_exact: Some(NO_BOUNDS),
        filter: None,
        filtered: None,
        good: false,
        findings: vec![NOT_CHECKED.to_owned()],
        warnings: vec![NOT_CHECKED.to_owned()],
        fill: false,
        freeing: reading.freeing,
        io: None,
        sample: None,
    })
}

/// How the trace is read: always as a whole.
fn reading(trace: &Trace, options: &Options) -> Result<Reading> {
    let reading = options.reading(trace)?;
    if reading.selection.is_some() || reading.clause.is_some() || reading.in_virtual_time {
        return Err(Failure::argument(
            "stretches have all references: select nothing, and give no set or time",
        ));
    }
    Ok(reading)
}

fn intact(trace: &Trace, damage: &[postproc::trace::Damage]) -> Result<()> {
    match damage.first() {
        None => Ok(()),
        Some(damage) => Err(Failure::trace(format!(
            "{}: byte {}: {}; allow_loss=True computes the curve of what can be read",
            trace.path().display(),
            damage.start,
            damage.detail
        ))),
    }
}

/// What a range of the trace notes of the names of pages, as bytes.
pub fn names(
    trace: &Trace,
    range: Range<u64>,
    options: &Options,
    signals: &mut Signals,
) -> Result<Vec<u8>> {
    let reading = reading(trace, options)?;
    Ok(stretch::names(trace, reading.mode, range, signals)?.to_bytes())
}

/// Computes a stretch of the LRU curve.
struct Computing {
    stretch: sim::Stretches,
    accesses: Vec<Access>,
}

impl Computing {
    fn feed(&mut self) {
        self.stretch.references(&self.accesses);
        self.accesses.clear();
    }
}

type Done = postproc::error::Result<()>;

impl Consumer for Computing {
    fn references(&mut self, batch: &Run<'_>) -> Done {
        push_accesses(batch, &mut self.accesses);
        self.feed();
        Ok(())
    }

    fn follows_freed(&self) -> bool {
        true
    }

    fn freed(&mut self, pages: &[CanonPage], _world: &World) -> Done {
        push_freed(pages, &mut self.accesses);
        self.feed();
        Ok(())
    }
}

/// The stretch of a range of the trace, as bytes. `before` is what the ranges before it have noted.
pub fn compute(
    trace: &Trace,
    range: Range<u64>,
    before: &[&[u8]],
    (options, allow_loss): (&Options, bool),
    signals: &mut Signals,
) -> Result<Vec<u8>> {
    let reading = reading(trace, options)?;
    let before = before.iter().map(|bytes| Names::from_bytes(bytes));
    let before: Vec<Names> = before.collect::<std::result::Result<_, _>>()?;
    let mut computing = Computing {
        stretch: sim::Stretches::default(),
        accesses: Vec::new(),
    };
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut computing];
    let outcome = stretch::run(
        trace,
        reading.mode,
        reading.freeing,
        range,
        &before,
        signals,
        consumers,
    )?;
    if !allow_loss {
        intact(trace, &outcome.damage)?;
    }
    Ok(computing.stretch.finish().to_bytes())
}

/// Puts stretches of the LRU curve of one trace together, in their order.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
#[derive(Default)]
pub struct Stretches(Mutex<Box<sim::Stretches>>);

// Python's allocator aligns objects to 16 bytes. Tables of vectors want more.
const _: () = assert!(align_of::<Stretches>() <= 16);

#[pymethods]
impl Stretches {
    /// None yet.
    #[new]
    fn new() -> Self {
        Stretches::default()
    }

    /// Adds the next stretch, as `Trace.lru_stretch` gives it. After an error, the sum is what it was.
    fn add(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        work(py, |_| {
            let stretch = LruStretch::from_bytes(bytes).map_err(|_| no_stretch())?;
            self.lock().stretch(&stretch).map_err(|_| too_large())
        })
    }

    /// References of all of them.
    #[getter]
    fn references(&self) -> u64 {
        self.lock().references_so_far()
    }

    /// The curve of all of them: at most so many sizes in equal ratios, or all of them with 0. Begins again
    /// with no stretch.
    fn curve(&self, py: Python<'_>, points: usize) -> PyResult<Batch> {
        work(py, |_| {
            let all = std::mem::take(&mut **self.lock());
            curve_rows("lru", &all.finish().into_curve(), points)
        })
    }
}

impl Stretches {
    fn lock(&self) -> MutexGuard<'_, Box<sim::Stretches>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_large() -> Failure {
    Failure::argument("the stretches have more pages or references than one trace can have")
}

fn no_stretch() -> Failure {
    Failure::argument("no stretch of an LRU curve")
}
