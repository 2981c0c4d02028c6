//! Columns of Arrow tables in the making.

use std::sync::Arc;

use arrow_array::types::{ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, PrimitiveArray, StringArray,
    UInt32Array, UInt64Array,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};

use crate::fail::{Failure, Result};

/// A field of a table.
pub fn field(name: &str, kind: DataType, nullable: bool) -> Field {
    Field::new(name, kind, nullable)
}

/// The type of words that are few.
pub fn words<K: ArrowDictionaryKeyType>() -> DataType {
    DataType::Dictionary(Box::new(K::DATA_TYPE), Box::new(DataType::Utf8))
}

/// Words of a fixed list.
pub fn small_words() -> DataType {
    words::<Int8Type>()
}

/// Names of events.
pub fn event_words() -> DataType {
    words::<Int16Type>()
}

/// Names that a trace has.
pub fn trace_words() -> DataType {
    words::<Int32Type>()
}

/// A column of numbers. The array is the vector: nothing is copied.
pub fn u32s(values: Vec<u32>) -> ArrayRef {
    Arc::new(UInt32Array::from(values))
}

/// The same of 64 bits, which are signed: differences may be negative, and times, addresses of
/// programs and counts fit.
pub fn i64s(values: Vec<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

/// Numbers of 64 bits of which all bits may be set.
pub fn u64s(values: Vec<u64>) -> ArrayRef {
    Arc::new(UInt64Array::from(values))
}

/// Truth values.
pub fn bools(values: &[bool]) -> ArrayRef {
    Arc::new(BooleanArray::new(BooleanBuffer::from(values), None))
}

/// Numbers, some of which are missing.
pub fn some_i64s(values: Vec<i64>, known: Vec<bool>) -> ArrayRef {
    Arc::new(Int64Array::new(ScalarBuffer::from(values), nulls(&known)))
}

/// Numbers, some of which are missing.
pub fn some_f64s(values: Vec<Option<f64>>) -> ArrayRef {
    Arc::new(Float64Array::from(values))
}

/// Which rows have a value; `None` if all have.
pub fn nulls(known: &[bool]) -> Option<NullBuffer> {
    let all = known.iter().all(|known| *known);
    (!all).then(|| NullBuffer::from(known))
}

/// Text.
pub fn texts<'t>(values: impl Iterator<Item = &'t str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Words by their places in a list.
///
/// # Errors
///
/// A place is not in the list.
pub fn coded<K: ArrowDictionaryKeyType>(
    keys: Vec<K::Native>,
    known: &[bool],
    list: &ArrayRef,
) -> Result<ArrayRef>
where
    K::Native: ArrowNativeType,
{
    let keys = PrimitiveArray::<K>::new(ScalarBuffer::from(keys), nulls(known));
    let array = DictionaryArray::try_new(keys, list.clone());
    let array = array.map_err(|error| Failure::trace(error.to_string()))?;
    Ok(Arc::new(array))
}
