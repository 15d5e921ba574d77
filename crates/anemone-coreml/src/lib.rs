//! Core ML as an [`Executor`]: packages compiled once to a path that stays, functions loaded on a thread of their own and tried before
//! they are trusted, and every call watched.
//!
//! [`Backend`] is all that Core ML itself does. Its one real implementation, on a Mac only, is a thin layer of Objective-C calls in `sys`;
//! [`simulated`] stands for it anywhere, with faults that were seen on Macs. Everything else (the store of compiled models, the thread, the
//! plan, canaries, deadlines, what an error means) is the same code over both, and is tested over the simulated one.
//!
//! # Threads and lifetimes
//!
//! Objects of Core ML are not [`Send`] in the bindings, and a model must not be used by two calls at once. So the backend is made on the
//! worker's thread and never leaves it; a loaded function is a number there, and its handle sends closures with owned arrays, which is
//! all that crosses. A handle that is dropped posts the drop of its function to the thread. Objects are retained by the values that hold
//! them (`Retained`), buffers by the arrays over them, which a model owns together with the provider that names them; nothing borrowed
//! from an array outlives the call of its handler. Every call runs in an autorelease pool, since the thread has no run loop to drain one.
//! A prediction that does not come back leaves its thread behind: there is no way to stop one, and the handle refuses all that follows.
//!
//! [`Executor`]: anemone_mil::Executor

mod backend;
mod canary;
mod error;
mod executor;
mod plan;
mod store;
#[cfg(target_vendor = "apple")]
mod sys;
mod worker;

pub mod simulated;

pub use backend::{Backend, Failure, FailureKind};
pub use canary::{Distance, LEAST_COSINE, MOST_LENGTH};
pub use error::{Error, Result};
pub use executor::{CoreMl, Loading, Loadings, Options};
pub use plan::{ComputePlan, ComputeUnits, Device, PlanSummary, PlannedOp, Require};
pub use store::{CompiledModel, CompiledModels, Key};
#[cfg(target_vendor = "apple")]
pub use sys::System;
