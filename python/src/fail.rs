//! What can go wrong, and how Python learns of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postproc::error::Error;
use postproc::maps::NoMoment;
use postproc::pipeline::Observer;
use postproc::select::Unselectable;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    kvmtrace,
    TraceError,
    PyException,
    "A trace cannot be opened or read, or does not have what was asked for."
);
pyo3::create_exception!(
    kvmtrace,
    FilterError,
    TraceError,
    "An expression of `where` is wrong. The message shows the place."
);

/// Why something cannot be done.
pub enum Failure {
    /// Of the trace, or of what was asked of it.
    Trace(String),
    /// An expression of `where`.
    Filter(String),
    /// An argument that can never be right.
    Argument(String),
    /// An exception of Python code, or one that a signal has raised.
    Python(PyErr),
    /// The reader of a table has gone, so nobody is told.
    Gone,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// What was asked for is not in the trace.
    pub fn trace(text: impl Into<String>) -> Self {
        Failure::Trace(text.into())
    }

    /// An argument is wrong.
    pub fn argument(text: impl Into<String>) -> Self {
        Failure::Argument(text.into())
    }

    /// The message.
    pub fn text(&self) -> String {
        match self {
            Failure::Trace(text) | Failure::Filter(text) | Failure::Argument(text) => text.clone(),
            Failure::Python(error) => error.to_string(),
            Failure::Gone => "interrupted".into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Errors have their causes in them, as the command shows them.
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        match error {
            Error::Interrupted => Failure::Gone,
            _ => Failure::Trace(text),
        }
    }
}

impl From<NoMoment> for Failure {
    fn from(error: NoMoment) -> Self {
        match error {
            NoMoment::Trace(error) => error.into(),
            NoMoment::Share(error) => error.into(),
            NoMoment::Later | NoMoment::NothingLeftOut => Failure::trace(error.to_string()),
        }
    }
}

impl From<Unselectable> for Failure {
    fn from(error: Unselectable) -> Self {
        match error {
            Unselectable::Trace(text) => Failure::Trace(text),
            Unselectable::Expression(text) => Failure::Filter(text),
            Unselectable::Option(text) => Failure::Argument(text),
        }
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Trace(text) => TraceError::new_err(text),
            Failure::Filter(text) => FilterError::new_err(text),
            Failure::Argument(text) => PyValueError::new_err(text),
            Failure::Python(error) => error,
            Failure::Gone => PyKeyboardInterrupt::new_err(()),
        }
    }
}

/// What a panic says.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

/// The failure that a panic is: a defect of kvmtrace, which must end neither the interpreter nor, as
/// the exception that PyO3 makes of panics, handlers of ordinary exceptions.
pub fn defect(panic: &(dyn Any + Send)) -> Failure {
    let text = panic_text(panic);
    Failure::trace(format!(
        "a defect of kvmtrace: {text}. Please report it, with the trace if you can"
    ))
}

/// Does something that needs no Python, without the lock of the interpreter, and looks for signals
/// meanwhile.
pub fn work<T: Send>(
    py: Python<'_>,
    what: impl FnOnce(&mut Signals) -> Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| {
        let mut signals = Signals::default();
        let done = catch_unwind(AssertUnwindSafe(|| what(&mut signals)));
        let result = done.unwrap_or_else(|panic| Err(defect(&*panic)));
        match (result, signals.raised) {
            // Of these two, the exception is the cause.
            (Err(Failure::Gone), Some(raised)) => Err(raised),
            (result, _) => result.map_err(PyErr::from),
        }
    })
}

/// Does something in a thread of its own, and leaves it there if a signal comes. So Ctrl-C also ends
/// the wait for a pipe into which nobody writes. The thread ends when the pipe does.
pub fn work_apart<T: Send + 'static>(
    py: Python<'_>,
    what: impl FnOnce(&mut Unless) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = sync_channel(1);
    let mut unless = Unless(stop.clone());
    let thread = std::thread::Builder::new().name("kvmtrace".into());
    let started = thread.spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(|| what(&mut unless)));
        let result = done.unwrap_or_else(|panic| Err(defect(&*panic)));
        // It fails if nobody waits any more.
        let _ = sender.send(result);
    });
    started.map_err(|error| Failure::trace(format!("no thread can be made: {error}")))?;
    // The closure below must be one that another thread could call.
    let receiver = Mutex::new(receiver);
    loop {
        let waited = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv_timeout(OFTEN)
        });
        match waited {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Disconnected) => return Err(defect(&"no result").into()),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop.store(true, Ordering::Relaxed);
                    return Err(raised);
                }
            }
        }
    }
}

/// Ends a pass when it is of no use any more.
pub struct Unless(pub Arc<AtomicBool>);

impl Observer for Unless {
    fn progress(&mut self, _done: u64, _total: u64) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// How often signals are looked for.
const OFTEN: Duration = Duration::from_millis(50);

/// Ends a pass if a signal raises an exception, as Ctrl-C does. That is so in the main thread alone,
/// as everywhere in Python.
pub struct Signals {
    looked: Instant,
    raised: Option<PyErr>,
}

impl Default for Signals {
    fn default() -> Self {
        Signals {
            looked: Instant::now(),
            raised: None,
        }
    }
}

impl Signals {
    /// Whether to go on.
    pub fn go_on(&mut self) -> bool {
        match self.looked.elapsed() < OFTEN {
            true => self.raised.is_none(),
            false => self.look(),
        }
    }

    fn look(&mut self) -> bool {
        self.looked = Instant::now();
        if let Err(raised) = Python::attach(|py| py.check_signals()) {
            self.raised = Some(raised);
        }
        self.raised.is_none()
    }
}

impl Observer for Signals {
    fn progress(&mut self, done: u64, total: u64) -> bool {
        // At the end in any case, so that no signal waits for the next call.
        match done < total {
            true => self.go_on(),
            false => self.look(),
        }
    }
}
