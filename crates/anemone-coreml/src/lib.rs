//! Core ML as an [`Executor`]: packages compiled once to a path that stays, functions loaded on a thread of their own and tried before
//! they are trusted, and every call watched.
//!
//! [`Backend`] is all that Core ML itself does. Its one real implementation, on a Mac only, is a thin layer of Objective-C calls in `sys`;
//! [`simulated`] stands for it anywhere, with faults that were seen on Macs. Everything else (the store of compiled models, the thread, the
//! plan, canaries, deadlines, what an error means) is the same code over both, and is tested over the simulated one.
//!
//! # Threads and lifetimes, reviewed
//!
//! Nothing of this has run on a Mac; it is what the code was read for, against Apple's documentation and the bindings' signatures.
//!
//! *Which thread.* Objects of Core ML are not [`Send`] in the bindings (plans and states are), and a model must not be used by two calls
//! at once. So the backend is made on the worker's thread, by a closure that is all that crosses, and never leaves it; a loaded function
//! is a number there, and its handle sends closures with owned arrays. One thread runs all calls of an executor, so calls of a model
//! never meet. Two completion handlers come in on threads of the system: that of the compiler and that of the plan. Each captures a
//! sender and nothing else; a compiled model's path crosses as a string, and a plan is retained, which may be done on any thread.
//!
//! *Who waits for whom.* A handler's block is dropped here before its answer is waited for, so that only Core ML holds the sender: a
//! handler that Core ML lets go of without a call ends the wait with an error and does not hang. A call that does not come back leaves
//! the thread behind, for there is no way to stop one: the handle's deadline passes, it is marked stuck, and all that follows is refused.
//! A job that panics ends the thread; its reply channel closes, which its caller sees. The process may end with the thread still there.
//!
//! *Who owns what.* Objects are held by `Retained`, buffers by the arrays over them: a function's inputs and output buffers live as long
//! as the function, together with the provider and the options that name them, which Core ML retains again for its own time. Output
//! buffers are two in turn, since the Neural Engine may still read one when the next call begins; they are read before the second next
//! call writes them. What a model gives in an array of its own, in place of a buffer, is read and dropped. Pointers into arrays live
//! inside of the handlers that get them and are not kept; lengths and strides are checked against the declared type there. A pixel
//! buffer is owned by the array made over it. States are copied in and out of one state object a function.
//!
//! *When things go.* A handle that is dropped posts the drop of its function to the thread, in order after its last call; so do the
//! second function of a ratio and whatever fails on its way. The compiled model is held, by a shared lock on disk, from before it is
//! loaded until its handle goes, so that neither `cache gc` nor a reload removes it underneath. Every call runs in an autorelease pool,
//! since the thread has no run loop to drain one. `Energy` takes every object of `IOReport` by the create rule and releases it once.
//!
//! [`Executor`]: anemone_mil::Executor

mod backend;
mod canary;
mod error;
mod executor;
mod known_bad;
mod plan;
mod store;
#[cfg(target_vendor = "apple")]
mod sys;
mod worker;

pub mod simulated;

pub use backend::{Backend, Failure, FailureKind, LEAST_MACOS, check_macos};
pub use canary::{Distance, LEAST_COSINE, MOST_LENGTH};
pub use error::{Error, Result};
pub use executor::{CoreMl, Loading, Loadings, Options};
pub use known_bad::{Report, Traits, chip_of, known_bad};
pub use plan::{ComputePlan, ComputeUnits, Device, PlanSummary, PlannedOp, Require};
pub use store::{CompiledModel, CompiledModels, Held, Key};
#[cfg(target_vendor = "apple")]
pub use sys::{Energy, System};
