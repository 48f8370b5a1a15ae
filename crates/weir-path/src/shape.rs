//! The shape of a port, which is the limit and the classes of the packets that leave by it: as it is, or as it is to become while packets
//! move.
//!
//! Rule: a change is of several ports, and of all or none: [`crate::worker::Worker::reshape`] checks each before it touches the first.
//! Where there are several workers, each of them checks, while all stand still, before any of them changes.
//!
//! Owner: the caller. Limits: the ports, and the links that join them, do not change while a path runs.

use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;

use crate::classes::Classes;

/// The limit and the classes of the packets that leave by a port.
#[derive(Clone, Debug)]
pub struct PortShape {
    /// The port, by its place in the plan.
    pub port: usize,
    /// The limit.
    pub limits: Option<TbfConfig>,
    /// The classes that share the limit. Classes that the port has already are left alone if the same `Arc` is handed back.
    pub classes: Option<Arc<Classes>>,
}
