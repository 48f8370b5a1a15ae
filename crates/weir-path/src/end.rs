//! A port of a worker with its intake and its exit; and the books of a port that is gone.
//!
//! Ownership: an end is one worker's, that of the [`crate::worker::Worker`] that has it.

use crate::exit::Exit;
use crate::intake::Intake;

/// A port, and the ways in and out.
pub struct End<P> {
    /// The port's place in the plan.
    pub index: usize,
    /// The port, which packets come from and go to.
    pub port: P,
    /// The way in of the packets that come by this port.
    pub intake: Intake,
    /// The way out of the packets that leave by this port.
    pub exit: Exit,
}

/// The books and the place of a port that is gone, or not there yet.
pub struct Gone {
    /// The port's place in the plan.
    pub index: usize,
    /// The way in, with the counts of the packets that came by this port.
    pub intake: Intake,
    /// The way out, with the books of the packets that left by this port.
    pub exit: Exit,
}
