//! Core ML programs: an IR with checked operations, a readable printer, the weight file and the package on disk.
//!
//! A [`Program`] has functions over shared [`Weight`]s. Operations come from one table ([`ops`]) that declares inputs, dtype
//! domains, the version each came with and how result types follow; [`FunctionBuilder`] consults it while building and
//! [`read_package`] while reading, so a program in memory is always well typed. Where weights come from is the caller's:
//! [`WeightSource`] streams them at write time, and equal content is stored once.
//!
//! The crate knows no model, no checkpoint and no device.

mod blob;
mod builder;
mod error;
mod executor;
mod package;
mod print;
mod program;
mod recording;
mod types;
mod value;

pub mod ops;
pub mod proto;

pub use blob::{BlobReader, BlobWriter, pack_bits, unpack_bits};
pub use builder::{FunctionBuilder, identifier};
pub use error::{Error, remedy};
pub use executor::{Array, Executable, Executor, ExecutorError, Signature, States};
pub use package::{Report, check_model, read_package, read_package_with_offsets, write_package};
pub use print::print_program;
pub use program::{Arg, Function, Op, Program, Var, VarId};
pub use recording::{Call, Calls, Recorded, Recording};
pub use types::{DataType, TensorType, Type};
pub use value::{Immediate, Value, Weight, WeightId, WeightSource};
