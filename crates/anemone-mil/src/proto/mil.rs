//! MIL: programs, functions, blocks, operations, values.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Program {
    #[prost(int64, tag = "1")]
    pub version: i64,
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Function>,
    #[prost(string, tag = "3")]
    pub doc_string: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Function {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, tag = "2")]
    pub opset: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Block>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Operation>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    #[prost(message, repeated, tag = "4")]
    pub blocks: Vec<Block>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    #[prost(oneof = "BindingKind", tags = "1, 2")]
    pub binding: Option<BindingKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum BindingKind {
    #[prost(string, tag = "1")]
    Name(String),
    #[prost(message, tag = "2")]
    Value(Value),
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(oneof = "TypeKind", tags = "1, 2, 3, 4, 5")]
    pub r#type: Option<TypeKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum TypeKind {
    #[prost(message, tag = "1")]
    Tensor(TensorType),
    #[prost(message, tag = "2")]
    List(Box<ListType>),
    #[prost(message, tag = "3")]
    Tuple(TupleType),
    #[prost(message, tag = "4")]
    Dictionary(Box<DictionaryType>),
    #[prost(message, tag = "5")]
    State(Box<StateType>),
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(enumeration = "DataType", tag = "1")]
    pub data_type: i32,
    #[prost(int64, tag = "2")]
    pub rank: i64,
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListType {
    #[prost(message, optional, boxed, tag = "1")]
    pub r#type: Option<Box<ValueType>>,
    #[prost(message, optional, tag = "2")]
    pub length: Option<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TupleType {
    #[prost(message, repeated, tag = "1")]
    pub types: Vec<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DictionaryType {
    #[prost(message, optional, boxed, tag = "1")]
    pub key_type: Option<Box<ValueType>>,
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<ValueType>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    #[prost(message, optional, boxed, tag = "1")]
    pub wrapped_type: Option<Box<ValueType>>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "DimensionKind", tags = "1, 2")]
    pub dimension: Option<DimensionKind>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub enum DimensionKind {
    #[prost(message, tag = "1")]
    Constant(ConstantDimension),
    #[prost(message, tag = "2")]
    Unknown(UnknownDimension),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ConstantDimension {
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct UnknownDimension {
    #[prost(bool, tag = "1")]
    pub variadic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub doc_string: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
    #[prost(oneof = "ValueKind", tags = "3, 5")]
    pub value: Option<ValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ValueKind {
    #[prost(message, tag = "3")]
    Immediate(ImmediateValue),
    #[prost(message, tag = "5")]
    BlobFile(BlobFileValue),
}

#[derive(Clone, PartialEq, Message)]
pub struct BlobFileValue {
    #[prost(string, tag = "1")]
    pub file_name: String,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImmediateValue {
    #[prost(oneof = "ImmediateKind", tags = "1, 2, 3, 4")]
    pub value: Option<ImmediateKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ImmediateKind {
    #[prost(message, tag = "1")]
    Tensor(TensorValue),
    #[prost(message, tag = "2")]
    Tuple(TupleValue),
    #[prost(message, tag = "3")]
    List(ListValue),
    #[prost(message, tag = "4")]
    Dictionary(DictionaryValue),
}

#[derive(Clone, PartialEq, Message)]
pub struct TupleValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DictionaryValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<KeyValuePair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValuePair {
    #[prost(message, optional, tag = "1")]
    pub key: Option<Value>,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    #[prost(oneof = "TensorKind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<TensorKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum TensorKind {
    #[prost(message, tag = "1")]
    Floats(RepeatedFloats),
    #[prost(message, tag = "2")]
    Ints(RepeatedInts),
    #[prost(message, tag = "3")]
    Bools(RepeatedBools),
    #[prost(message, tag = "4")]
    Strings(RepeatedStrings),
    #[prost(message, tag = "5")]
    Longs(RepeatedLongs),
    #[prost(message, tag = "6")]
    Doubles(RepeatedDoubles),
    #[prost(message, tag = "7")]
    Bytes(RepeatedBytes),
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedFloats {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedDoubles {
    #[prost(double, repeated, tag = "1")]
    pub values: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedInts {
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedLongs {
    #[prost(int64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedBools {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedStrings {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RepeatedBytes {
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum DataType {
    Unused = 0,
    Bool = 1,
    String = 2,
    Float16 = 10,
    Float32 = 11,
    Float64 = 12,
    Bfloat16 = 13,
    Int8 = 21,
    Int16 = 22,
    Int32 = 23,
    Int64 = 24,
    Int4 = 25,
    Uint8 = 31,
    Uint16 = 32,
    Uint32 = 33,
    Uint64 = 34,
    Uint4 = 35,
    Uint2 = 36,
    Uint1 = 37,
    Uint6 = 38,
    Uint3 = 39,
    Float8E4m3 = 40,
    Float8E5m2 = 41,
}
