//! A cell of a column as a JSON value.

use anemone_decide::Value;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, RunEndIndexType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RunArray};
use arrow_cast::display::array_value_to_string;
use arrow_schema::extension::{EXTENSION_TYPE_NAME_KEY, ExtensionType, Json};
use arrow_schema::{DataType, Field};

/// Whether a column's texts are JSON.
pub(crate) fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION_TYPE_NAME_KEY).is_some_and(|name| name == Json::NAME)
}

/// A column of JSON texts.
pub(crate) fn json_field(name: &str) -> Field {
    let metadata = [(EXTENSION_TYPE_NAME_KEY.to_owned(), Json::NAME.to_owned())];
    Field::new(name, DataType::Utf8, true).with_metadata(metadata)
}

/// Whether cells of a type are states: all but bytes and unions, at any depth.
pub(crate) fn is_state(kind: &DataType) -> bool {
    match kind {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::Union(..) => false,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)
        | DataType::RunEndEncoded(_, item) => is_state(item.data_type()),
        DataType::Dictionary(_, value) => is_state(value),
        DataType::Struct(fields) => fields.iter().all(|field| is_state(field.data_type())),
        _ => true,
    }
}

/// The value of a cell: texts, numbers, booleans and null as they are, lists and structs as lists and objects, a JSON column's text
/// read; dates, times and decimals as texts, bytes in hexadecimal.
pub(crate) fn cell(array: &dyn Array, field: &Field, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 => Value::int(array.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => Value::int(array.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => Value::int(array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => Value::int(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => Value::int(array.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt16 => Value::int(array.as_primitive::<UInt16Type>().value(row)),
        DataType::UInt32 => Value::int(array.as_primitive::<UInt32Type>().value(row)),
        DataType::UInt64 => Value::int(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float16 => shortest(array.as_primitive::<Float16Type>().value(row).to_f32()),
        DataType::Float32 => shortest(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => Value::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => text(array.as_string::<i32>().value(row), field)?,
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row), field)?,
        DataType::Utf8View => text(array.as_string_view().value(row), field)?,
        DataType::Dictionary(..) => {
            let one = array.slice(row, 1);
            let dictionary = one.as_any_dictionary();
            cell(dictionary.values(), field, dictionary.normalized_keys()[0])?
        }
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => run::<Int16Type>(array, field, row)?,
            DataType::Int32 => run::<Int32Type>(array, field, row)?,
            _ => run::<Int64Type>(array, field, row)?,
        },
        DataType::List(item) => list(&array.as_list::<i32>().value(row), item)?,
        DataType::LargeList(item) => list(&array.as_list::<i64>().value(row), item)?,
        DataType::ListView(item) => list(&array.as_list_view::<i32>().value(row), item)?,
        DataType::LargeListView(item) => list(&array.as_list_view::<i64>().value(row), item)?,
        DataType::FixedSizeList(item, _) => list(&array.as_fixed_size_list().value(row), item)?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let entry = |(inner, column): (&std::sync::Arc<Field>, &ArrayRef)| {
                Ok((inner.name().clone(), cell(column, inner, row)?))
            };
            Value::Map(fields.iter().zip(columns).map(entry).collect::<Result<_, String>>()?)
        }
        DataType::Map(entries, _) => {
            let pairs = array.as_map().value(row);
            let [key, value] = [0, 1].map(|i| match entries.data_type() {
                DataType::Struct(fields) => fields[i].clone(),
                _ => entries.clone(),
            });
            let entry = |i: usize| {
                let name = cell(pairs.column(0), &key, i)?.rendered().into_owned();
                Ok((name, cell(pairs.column(1), &value, i)?))
            };
            Value::Map((0..pairs.len()).map(entry).collect::<Result<_, String>>()?)
        }
        _ => Value::Text(array_value_to_string(array, row).map_err(|e| e.to_string())?),
    })
}

/// A cell as a CSV file holds it; none for null.
pub(crate) fn written(array: &dyn Array, field: &Field, row: usize) -> Result<Option<String>, String> {
    // A text of JSON is a text here.
    let plain = Field::new(field.name(), array.data_type().clone(), true);
    Ok(match cell(array, &plain, row)? {
        Value::Null => None,
        Value::Text(text) => Some(text),
        other => Some(other.to_compact()),
    })
}

fn text(text: &str, field: &Field) -> Result<Value, String> {
    if !is_json(field) {
        return Ok(Value::text(text));
    }
    Value::parse(text).map_err(|error| format!("column `{}` holds no JSON here: {error}", field.name()))
}

fn list(items: &ArrayRef, field: &Field) -> Result<Value, String> {
    (0..items.len()).map(|i| cell(items, field, i)).collect::<Result<_, _>>().map(Value::List)
}

fn run<E: RunEndIndexType>(array: &dyn Array, field: &Field, row: usize) -> Result<Value, String> {
    match array.as_any().downcast_ref::<RunArray<E>>() {
        Some(runs) => cell(runs.values(), field, runs.get_physical_index(row)),
        None => Err(format!("column `{}` has runs of an unknown kind", field.name())),
    }
}

/// The f64 that is written as the f32 is.
fn shortest(v: f32) -> Value {
    Value::Float(v.to_string().parse().unwrap_or(f64::from(v)))
}
