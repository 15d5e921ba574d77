//! What compression needs to know of a running model.
//!
//! [`Calibration`] runs it over text and keeps the second moments of the inputs of its linear maps, a part of them at a time.
//! [`measure()`] says what a candidate lost against its source, [`Overlay`] makes candidates of a few changed tensors, and
//! [`allocate`] gives each weight the bits it is worth.

#![forbid(unsafe_code)]

mod allocate;
mod calibration;
mod error;
mod measure;
mod moments;
mod overlay;

pub use allocate::{Choice, Target, allocate};
pub use calibration::{Calibration, Run};
pub use error::Error;
pub use measure::{Measures, measure};
pub use moments::Moments;
pub use overlay::Overlay;
