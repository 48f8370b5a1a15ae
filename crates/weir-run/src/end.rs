//! One end of a wire: the interface, what comes in by it and what goes out by it.
//!
//! Ownership: all of it is one worker's, that of the [`crate::part::Part`] it is in.

use weir_port::port::Port;

use crate::departure::Departure;
use crate::direction::Direction;

/// One end of a wire.
pub struct End {
    /// 0 or 1; also the direction that starts here.
    pub index: usize,
    /// The interface.
    pub port: Port,
    /// What comes in here.
    pub direction: Direction,
    /// What goes out here.
    pub departure: Departure,
}
