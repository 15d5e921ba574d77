//! The messages of a Core ML model file that an ML program needs, by hand: field numbers are Core ML's, maps are ordered so that
//! encoding is deterministic.

#![allow(missing_docs, reason = "names and meaning are those of Core ML's own schema")]

pub mod mil;
pub mod model;
