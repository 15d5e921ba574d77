//! The model file around a program: version, description of features, metadata.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

use super::mil;

#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    #[prost(message, optional, tag = "2")]
    pub description: Option<ModelDescription>,
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<mil::Program>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    #[prost(message, repeated, tag = "1")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "10")]
    pub output: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "13")]
    pub state: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<FunctionDescription>,
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<FeatureDescription>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub short_description: String,
    #[prost(string, tag = "2")]
    pub version_string: String,
    #[prost(string, tag = "3")]
    pub author: String,
    #[prost(string, tag = "4")]
    pub license: String,
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub short_description: String,
    #[prost(message, optional, tag = "3")]
    pub r#type: Option<FeatureType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    #[prost(oneof = "FeatureKind", tags = "5, 8")]
    pub r#type: Option<FeatureKind>,
    #[prost(bool, tag = "1000")]
    pub is_optional: bool,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum FeatureKind {
    #[prost(message, tag = "5")]
    MultiArray(ArrayFeatureType),
    #[prost(message, tag = "8")]
    State(StateFeatureType),
}

#[derive(Clone, PartialEq, Message)]
pub struct StateFeatureType {
    #[prost(message, optional, tag = "1")]
    pub array_type: Option<ArrayFeatureType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeatureType {
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    #[prost(enumeration = "ArrayDataType", tag = "2")]
    pub data_type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ArrayDataType {
    Invalid = 0,
    Float16 = 65552,
    Float32 = 65568,
    Double = 65600,
    Int8 = 131080,
    Int32 = 131104,
}
