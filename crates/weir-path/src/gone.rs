//! A port that goes while others carry on, and comes back.
//!
//! ```text
//! there --take_port--> gone       packets that it had received are taken in; packets bound for it are dropped as `port-gone`
//!   ^                    |        stations that were heard behind it are forgotten
//!   +-----give_port------+        its queue, limits and classes are as before, and empty
//! ```
//!
//! Rule: no packet that is not bound for the port is lost, held or reordered. Conservation (invariant 1) holds at every instant: packets on
//! their way out count as dropped, because their completion is not told any more.
//!
//! Owner: one worker. Limits: it comes back with as many receive queues as the plan had room for, or fewer. Frames that are with its device
//! stay on loan until the code that closes the device takes them back.

use crate::end::{End, Gone};
use crate::port::{ReceiveQueues, TransmitRing};
use crate::worker::Worker;

impl<P: ReceiveQueues + TransmitRing> Worker<P> {
    /// Takes a port out that is gone; returns none if it is not here.
    pub fn take_port(&mut self, index: usize, now_ns: u64) -> Option<P> {
        let at = self.ends.binary_search_by_key(&index, |end| end.index).ok()?;
        self.complete();
        self.collect(index, now_ns);
        let End { port, intake, mut exit, .. } = self.ends.remove(at);
        exit.abandon(&port);
        intake.leave(&self.between);
        self.between.forget(intake.way());
        let after = self.gone.partition_point(|gone| gone.index < index);
        self.gone.insert(after, Gone { index, intake, exit });
        self.close(index, now_ns);
        Some(port)
    }

    /// Drops the packets that are bound for a port that is not here.
    pub(crate) fn close(&mut self, index: usize, now_ns: u64) {
        if let Some(queue) = self.between.egress.of_port(index) {
            self.between.egress.close(queue, &mut self.between.frames, now_ns);
        }
    }

    /// Takes a port in that was gone, or not there yet. The longest packet that comes in by it is to be said anew.
    ///
    /// # Errors
    /// The port, if it is not gone, or has more receive queues than there is room for.
    pub fn give_port(&mut self, index: usize, port: P, now_ns: u64) -> Result<(), P> {
        let Ok(at) = self.gone.binary_search_by_key(&index, |gone| gone.index) else { return Err(port) };
        if port.queues() > self.between.egress.receive_queues_max(index) {
            return Err(port);
        }
        let Gone { mut intake, exit, .. } = self.gone.remove(at);
        intake.begin_anew(port.queues(), &self.between.egress, now_ns);
        let after = self.ends.partition_point(|end| end.index < index);
        self.ends.insert(after, End { index, port, intake, exit });
        if let Some(queue) = self.between.egress.of_port(index) {
            self.between.egress.open(queue);
        }
        self.tune();
        Ok(())
    }

    /// The ports that are gone, or not there yet.
    pub fn gone(&self) -> &[Gone] {
        &self.gone
    }
}
