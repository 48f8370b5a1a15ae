//! One end of a wire: the port, what comes in by it, what that waits in, and what goes out by it.
//!
//! Ownership: all of it is one worker's, that of the [`crate::worker::Worker`] it is in.

use std::sync::Arc;

use weir_core::shaper::tbf::{TbfConfig, TbfError};

use crate::classes::Classes;
use crate::exit::Exit;
use crate::frames::Frames;
use crate::intake::Intake;
use crate::port::ReceiveQueues;
use crate::shaping::Shaping;

/// One end of a wire.
pub struct End<P> {
    /// 0 or 1; also the direction that starts here.
    pub index: usize,
    /// Where packets come from and go to.
    pub port: P,
    /// What comes in here.
    pub intake: Intake,
    /// What waits that came in here.
    pub shaping: Shaping,
    /// What goes out here.
    pub exit: Exit,
}

impl<P: ReceiveQueues> End<P> {
    /// An end at which nothing has come in. At most `held_packets_max` packets that come in here are inside at a time, and a poll brings
    /// at most `poll_budget_max`.
    ///
    /// # Errors
    /// If the limits cannot be kept.
    pub fn new(
        index: usize,
        mut port: P,
        held_packets_max: u64,
        poll_budget_max: u32,
        limits: Option<TbfConfig>,
        now_ns: u64,
    ) -> Result<End<P>, TbfError> {
        let mut intake = Intake::new(port.queues(), held_packets_max, poll_budget_max, now_ns);
        let shaping = Shaping::new(intake.shaping_size(index as u16), limits, now_ns)?;
        intake.tune(&mut port, &shaping);
        Ok(End { index, port, intake, shaping, exit: Exit::default() })
    }

    /// Changes the limits; nothing that waits is touched.
    ///
    /// # Errors
    /// If they cannot be kept; nothing has changed then.
    pub fn set_limits(&mut self, limits: Option<TbfConfig>, now_ns: u64) -> Result<(), TbfError> {
        self.shaping.set_limits(limits, now_ns)?;
        self.intake.tune(&mut self.port, &self.shaping);
        Ok(())
    }

    /// Shapes by these classes from now on; nothing that waits is lost, and no flow reordered.
    pub fn set_classes(&mut self, classes: Arc<Classes>, frames: &mut Frames, now_ns: u64) {
        self.intake.set_classes(&mut self.shaping, classes, frames, now_ns);
        self.intake.tune(&mut self.port, &self.shaping);
    }
}
