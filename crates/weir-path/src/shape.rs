//! How what leaves by a port is shaped: as it is, or as it is to become while packets move.
//!
//! Rule: a change is of several ports, and of all or none: [`crate::worker::Worker::reshape`] checks each before it touches the first.
//! Where there are several workers, each of them checks, while all stand still, before any of them changes.
//!
//! Owner: the caller. Limits: which ports there are, and what joins them, does not change while a path runs.

use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;

use crate::classes::Classes;

/// All that shapes what leaves by a port.
#[derive(Clone, Debug)]
pub struct PortShape {
    /// The port, by its place in the plan.
    pub port: usize,
    /// The limit.
    pub limits: Option<TbfConfig>,
    /// The classes that share it. Those that a port has already, handed back, are left alone.
    pub classes: Option<Arc<Classes>>,
}
