//! A port of a worker: what comes in by it, and what goes out by it; and what is left of one that is gone.
//!
//! Ownership: all of it is one worker's, that of the [`crate::worker::Worker`] it is in.

use crate::exit::Exit;
use crate::intake::Intake;

/// A port, and the ways in and out.
pub struct End<P> {
    /// Its place in the plan.
    pub index: usize,
    /// Where packets come from and go to.
    pub port: P,
    /// What comes in here.
    pub intake: Intake,
    /// What goes out here.
    pub exit: Exit,
}

/// What there is of a port that is gone, or not there yet: its books, and its place.
pub struct Gone {
    /// Its place in the plan.
    pub index: usize,
    /// What came in here.
    pub intake: Intake,
    /// What went out here.
    pub exit: Exit,
}
