//! Arrow tables: rows that are made while somebody reads them.
//!
//! Arrays are handed on by the Arrow PyCapsule interface
//! (arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), which pyarrow, polars,
//! pandas, DuckDB and others read. Their memory is ours: nothing is copied.
//!
//! A thread makes the batches of a table ([`Batches`]). It is a few batches ahead of the reader, and
//! ends when the reader goes.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, Float64Array, RecordBatch, RecordBatchOptions,
    RecordBatchReader, StructArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use postproc::error::Error;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyAttributeError, PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyIterator, PyTuple};

use crate::fail::{Failure, Result, Unless, defect};

/// Rows of a batch.
pub const ROWS: usize = 1 << 16;

/// Batches that wait for the reader.
const AHEAD: usize = 4;

/// How often a reader that waits looks for signals.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where the rows of a table go, in the thread that makes them.
pub struct Output {
    sender: SyncSender<Result<RecordBatch>>,
    stop: Arc<AtomicBool>,
}

impl Output {
    /// Hands a batch on.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if nobody reads any more.
    pub fn send(&self, batch: RecordBatch) -> postproc::error::Result<()> {
        self.sender.send(Ok(batch)).map_err(|_| Error::Interrupted)
    }
}

impl Output {
    /// Ends a pass when nobody reads its rows any more.
    pub fn observer(&self) -> Unless {
        Unless(self.stop.clone())
    }
}

/// What makes the rows of a table.
pub type Make = Arc<dyn Fn(&Output) -> Result<()> + Send + Sync>;

/// Batches that come from another thread.
struct Pump {
    schema: SchemaRef,
    /// `None` once the last one has come.
    receiver: Option<Receiver<Result<RecordBatch>>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

/// What a wait has given.
enum Waited {
    Batch(RecordBatch),
    Over,
    NotYet,
}

impl Pump {
    fn start(schema: SchemaRef, make: Make) -> Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD);
        let stop = Arc::new(AtomicBool::new(false));
        let output = Output {
            sender,
            stop: stop.clone(),
        };
        let body = move || {
            if let Err(failure) = make(&output) {
                // It fails if nobody reads.
                let _ = output.sender.send(Err(failure));
            }
        };
        let thread = std::thread::Builder::new().name("kvmtrace rows".into());
        let thread = thread.spawn(body).map_err(|error| {
            Failure::trace(format!("no thread can be made for the table: {error}"))
        })?;
        Ok(Pump {
            schema,
            receiver: Some(receiver),
            thread: Some(thread),
            stop,
        })
    }

    fn wait(&mut self, patience: Duration) -> Result<Waited> {
        let Some(receiver) = &self.receiver else {
            return Ok(Waited::Over);
        };
        match receiver.recv_timeout(patience) {
            Ok(Ok(batch)) => Ok(Waited::Batch(batch)),
            Ok(Err(failure)) => {
                self.receiver = None;
                Err(failure)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Waited::NotYet),
            Err(RecvTimeoutError::Disconnected) => {
                self.receiver = None;
                match self.thread.take().map(JoinHandle::join) {
                    Some(Err(panic)) => Err(defect(&*panic)),
                    _ => Ok(Waited::Over),
                }
            }
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.receiver = None;
        // It needs nothing of Python, and ends at the next batch or the next look at the flag.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Iterator for Pump {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.wait(Duration::from_secs(3600)) {
                Ok(Waited::Batch(batch)) => return Some(Ok(batch)),
                Ok(Waited::Over) => return None,
                Ok(Waited::NotYet) => {}
                Err(failure) => {
                    return Some(Err(ArrowError::ExternalError(failure.text().into())));
                }
            }
        }
    }
}

impl RecordBatchReader for Pump {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

fn arrow(error: ArrowError) -> PyErr {
    Failure::trace(error.to_string()).into()
}

fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(arrow)?;
    PyCapsule::new_with_value(py, schema, SCHEMA)
}

fn array_capsules<'py>(
    py: Python<'py>,
    array: &dyn Array,
    field: &Field,
) -> PyResult<Bound<'py, PyTuple>> {
    let (array, _): (FFI_ArrowArray, _) = to_ffi(&array.to_data()).map_err(arrow)?;
    let schema = FFI_ArrowSchema::try_from(field).map_err(arrow)?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    PyTuple::new(py, [schema, array])
}

fn names(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

/// A table whose rows are made while they are read. Each reading makes them anew, so a table takes
/// no memory.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
pub struct Table {
    schema: SchemaRef,
    make: Make,
}

impl Table {
    /// Rows of this schema, which `make` sends.
    pub fn new(schema: SchemaRef, make: Make) -> Self {
        Table { schema, make }
    }

    fn pump(&self) -> PyResult<Pump> {
        Ok(Pump::start(self.schema.clone(), self.make.clone())?)
    }
}

#[pymethods]
impl Table {
    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        names(&self.schema)
    }

    /// The names of the columns and their Arrow types.
    #[getter]
    fn column_types(&self) -> Vec<(String, String)> {
        let fields = self.schema.fields().iter();
        fields
            .map(|f| (f.name().clone(), f.data_type().to_string()))
            .collect()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // No other schema can be made.
        drop(requested_schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(self.pump()?));
        PyCapsule::new_with_value(py, stream, STREAM)
    }

    fn __iter__(&self) -> PyResult<Batches> {
        Ok(Batches(Mutex::new(self.pump()?)))
    }
}

/// The batches of a table, one after the other.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
pub struct Batches(Mutex<Pump>);

#[pymethods]
impl Batches {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        loop {
            let waited = py.detach(|| {
                let mut pump = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                pump.wait(PATIENCE)
            })?;
            py.check_signals()?;
            match waited {
                Waited::Batch(batch) => return Ok(Some(Batch(batch))),
                Waited::Over => return Ok(None),
                Waited::NotYet => {}
            }
        }
    }
}

/// Some rows of a table.
#[pyclass(frozen, module = "kvmtrace._kvmtrace")]
pub struct Batch(pub RecordBatch);

/// A batch of these columns.
///
/// # Errors
///
/// They have not the same lengths, or are not what the schema says.
pub fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(schema.clone(), columns, &options);
    batch.map_err(|error| Failure::trace(error.to_string()))
}

#[pymethods]
impl Batch {
    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        names(&self.0.schema())
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __getitem__(&self, name: &str) -> PyResult<Column> {
        let schema = self.0.schema();
        let found = schema.column_with_name(name);
        let (at, field) = found.ok_or_else(|| PyKeyError::new_err(name.to_string()))?;
        Ok(Column {
            field: field.clone(),
            array: self.0.column(at).clone(),
        })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.0.schema())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        let array = StructArray::from(self.0.clone());
        let field = Field::new_struct("", self.0.schema().fields().clone(), false);
        array_capsules(py, &array, &field)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let reader = arrow_array::RecordBatchIterator::new([Ok(self.0.clone())], self.0.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, STREAM)
    }
}

/// A column of a batch.
#[pyclass(frozen, sequence, module = "kvmtrace._kvmtrace")]
pub struct Column {
    field: Field,
    array: ArrayRef,
}

impl Column {
    fn value<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyAny>> {
        if self.array.is_null(at) {
            return Ok(py.None().into_bound(py));
        }
        let array = &self.array;
        Ok(match array.data_type() {
            DataType::Int64 => int(py, array.as_primitive::<Int64Type>().value(at))?,
            DataType::UInt64 => int(py, array.as_primitive::<UInt64Type>().value(at))?,
            DataType::UInt32 => int(py, array.as_primitive::<UInt32Type>().value(at))?,
            DataType::Int32 => int(py, array.as_primitive::<Int32Type>().value(at))?,
            DataType::Float64 => {
                let value = array.as_primitive::<Float64Type>().value(at);
                value.into_pyobject(py)?.into_any()
            }
            DataType::Boolean => {
                let value = array.as_boolean().value(at);
                value.into_pyobject(py)?.to_owned().into_any()
            }
            DataType::Utf8 => {
                let value = array.as_string::<i32>().value(at);
                value.into_pyobject(py)?.into_any()
            }
            DataType::Dictionary(..) => {
                let words = array.as_any_dictionary();
                let place = words.normalized_keys()[at];
                let values = words.values().as_string::<i32>();
                values.value(place).into_pyobject(py)?.into_any()
            }
            other => {
                let text = format!("a column of {other} has no values for Python");
                return Err(PyTypeError::new_err(text));
            }
        })
    }

    /// The address and the type of the numbers; `None` if some are missing, or if they are no numbers.
    fn numbers(&self) -> Option<(usize, &'static str)> {
        fn of<T: ArrowPrimitiveType>(
            array: &ArrayRef,
            text: &'static str,
        ) -> (usize, &'static str) {
            (array.as_primitive::<T>().values().as_ptr() as usize, text)
        }
        if self.array.null_count() > 0 {
            return None;
        }
        Some(match self.array.data_type() {
            DataType::Int64 => of::<Int64Type>(&self.array, "<i8"),
            DataType::UInt64 => of::<UInt64Type>(&self.array, "<u8"),
            DataType::UInt32 => of::<UInt32Type>(&self.array, "<u4"),
            DataType::Int32 => of::<Int32Type>(&self.array, "<i4"),
            DataType::Float64 => of::<Float64Type>(&self.array, "<f8"),
            _ => return None,
        })
    }
}

impl Column {
    /// The numbers as floats, NaN where one is missing; `None` if they are no numbers.
    fn floats(&self) -> Option<Vec<f64>> {
        fn of<T: ArrowPrimitiveType>(array: &ArrayRef, to: impl Fn(T::Native) -> f64) -> Vec<f64> {
            let numbers = array.as_primitive::<T>().iter();
            numbers.map(|n| n.map_or(f64::NAN, &to)).collect()
        }
        Some(match self.array.data_type() {
            DataType::Int64 => of::<Int64Type>(&self.array, |n| n as f64),
            DataType::UInt64 => of::<UInt64Type>(&self.array, |n| n as f64),
            DataType::UInt32 => of::<UInt32Type>(&self.array, f64::from),
            DataType::Int32 => of::<Int32Type>(&self.array, f64::from),
            DataType::Float64 => of::<Float64Type>(&self.array, |n| n),
            _ => return None,
        })
    }
}

fn int<'py>(py: Python<'py>, value: impl IntoPyObjectExt<'py>) -> PyResult<Bound<'py, PyAny>> {
    value.into_bound_py_any(py)
}

#[pymethods]
impl Column {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        self.field.name()
    }

    /// The Arrow type.
    #[getter]
    fn r#type(&self) -> String {
        self.field.data_type().to_string()
    }

    /// Rows without a value.
    #[getter]
    fn null_count(&self) -> usize {
        self.array.null_count()
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyAny>> {
        let len = self.array.len();
        let place = match at {
            0.. => at as usize,
            _ => len.wrapping_add_signed(at),
        };
        if place >= len {
            let text = format!("row {at} of a column of {len}");
            return Err(PyIndexError::new_err(text));
        }
        self.value(py, place)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.to_pylist(py)?.into_bound_py_any(py)?.try_iter()
    }

    /// All values; None where one is missing.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        (0..self.array.len()).map(|at| self.value(py, at)).collect()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&self.field).map_err(arrow)?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        array_capsules(py, &self.array, &self.field)
    }

    /// How numpy sees the numbers, without a copy. The array that it makes keeps the column alive.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some((address, text)) = self.numbers() else {
            return Err(PyAttributeError::new_err("__array_interface__"));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.array.len(),))?;
        interface.set_item("typestr", text)?;
        // It must not be written to.
        interface.set_item("data", (address, true))?;
        Ok(interface)
    }

    /// The column as an array of numpy, which asks for it only if the numbers cannot be used as they
    /// are: if some are missing, they are NaN, and all are floats. Text is objects.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let numpy = py.import("numpy")?;
        let this = slf.get();
        if copy == Some(false) && this.numbers().is_none() {
            return Err(PyValueError::new_err(
                "a column with missing values, or of words, is no array without a copy",
            ));
        }
        let array = match (this.numbers(), this.floats()) {
            (Some(_), _) => numpy.call_method1("asarray", (slf,))?,
            (None, Some(floats)) => {
                let column = Column {
                    field: Field::new(this.field.name(), DataType::Float64, false),
                    array: Arc::new(Float64Array::from(floats)),
                };
                numpy.call_method1("asarray", (column,))?
            }
            (None, None) => {
                let values = this.to_pylist(py)?;
                let kind = match this.array.data_type() {
                    DataType::Boolean => "bool",
                    _ => "object",
                };
                numpy.call_method1("array", (values, kind))?
            }
        };
        match (dtype, copy) {
            (Some(dtype), _) => array.call_method1("astype", (dtype,)),
            (None, Some(true)) => array.call_method0("copy"),
            _ => Ok(array),
        }
    }
}
