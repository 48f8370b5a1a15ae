//! The one switch between the real primitives and the model checker's.
//! Every atomic of this crate that orders memory between threads comes from here.
//!
//! Rule: no other module names `std::sync::atomic` or `loom`, except for counters that order nothing.
//! Ordering and ownership: none of its own.
//! Source: loom's README, "structuring the code for testing".
//! Limits: statics are not modelled, so nothing that is a static may order memory.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
