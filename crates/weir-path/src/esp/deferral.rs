//! The deferral of packets that come to an ESP stage: each is sealed or opened at once, or waits for that in a queue, as in netisr.
//!
//! ```text
//! inside  --> ESP --> queue of inside, a port that leads back --> ESP: sealed --> outside
//! outside --> ESP --> queue of outside, a port that leads back --> ESP: opened --> inside
//! ```
//!
//! | mode | a packet is sealed or opened |
//! |---|---|
//! | `direct` | at once, by the worker that has the stage |
//! | `hybrid` | at once if it came from a port or stage of the same worker and none waits there; otherwise from the queue |
//! | `deferred` | from the queue |
//!
//! | mode | with sealers, a packet is sealed or opened |
//! |---|---|
//! | `hybrid` | by the home if it is not loaded; under load by the home or by sealers, whichever takes less time (`hybrid.rs`) |
//! | `deferred` | by sealers |
//!
//! The queues are egress queues with the worker that has the stage ([`crate::loop_port`]), one for each side, so that packets that come in
//! do not wait for those that go out. A full queue closes the gates of the receive queues whose packets wait there, at whatever worker, and
//! so does a full place that they come to after that. While no number is reserved, no packet is taken from the queue inside.
//!
//! Order: a queue is first in, first out for a receive queue, and no packet passes those that wait.
//!
//! Owner: the stage. Source: FreeBSD `sys/net/netisr.c` (`netisr_dispatch_src`). Limits: without sealers hybrid goes by that rule alone, not by
//! the cost of a packet; a queue is exceeded by one poll of each receive queue, and by the packets under way to its worker.

use weir_core::dispatch::protocol::Mode;

use super::plan::EspDispatch;
use super::{INSIDE, OUTSIDE};
use crate::dispatch::DispatchCounts;

/// The ports to the queues of packets that come in inside, and outside, and back from these.
pub const QUEUES: [u16; 2] = [2, 3];

/// The port to the first sealer and back; the ports to others follow.
pub(crate) const SEALERS: u16 = QUEUES[1] + 1;

/// The number of ports of the stage.
pub(crate) fn ports(dispatch: &EspDispatch) -> u16 {
    if dispatch.mode == Mode::Direct { QUEUES[0] } else { SEALERS + dispatch.sealers() }
}

/// The ports by which packets that come in by `entry` may leave.
pub(crate) fn exits(dispatch: &EspDispatch, entry: u16) -> Vec<u16> {
    // The sender of a packet that is too long is told by the port that it came in by.
    let mut exits = vec![INSIDE, OUTSIDE];
    if entry < SEALERS {
        exits.extend((0..dispatch.sealers()).map(|sealer| SEALERS + sealer));
    }
    if let Some(queue) = queue_of(entry) {
        match dispatch.mode {
            Mode::Direct => {}
            Mode::Hybrid => exits.push(queue),
            Mode::Deferred => exits = vec![queue],
        }
    }
    exits
}

/// The queue of a side.
fn queue_of(side: u16) -> Option<u16> {
    QUEUES.get(usize::from(side)).copied()
}

/// The side by which packets that come by a port came in: the port itself, or the side of its queue.
pub(super) fn side_of(port: u16) -> u16 {
    QUEUES.iter().position(|&queue| queue == port).map_or(port, |side| side as u16)
}

/// The dispatch of a stage's packets, and the counts of each side.
#[derive(Debug)]
pub(super) struct Deferral {
    dispatch: EspDispatch,
    /// For each side whether the stage or port that is joined there is with the worker of this stage.
    is_beside: [bool; 2],
    counts: [DispatchCounts; 2],
}

impl Deferral {
    pub(super) fn new(dispatch: EspDispatch) -> Deferral {
        Deferral { dispatch, is_beside: [false; 2], counts: [DispatchCounts::default(); 2] }
    }

    pub(super) fn dispatch(&self) -> &EspDispatch {
        &self.dispatch
    }

    pub(super) fn counts(&self, side: u16) -> &DispatchCounts {
        &self.counts[usize::from(side)]
    }

    pub(super) fn set_beside(&mut self, is_beside: [bool; 2]) {
        self.is_beside = is_beside;
    }

    /// Notes that the egress queue behind a port has refused so many packets: if it is one of the queues, they do not come back.
    /// They count as handled, so that queued, handled and waiting still add up; the drop itself is counted by the egress queue.
    pub(super) fn note_refused(&mut self, port: u16, packets: u64) {
        if QUEUES.contains(&port) {
            let counts = &mut self.counts[usize::from(side_of(port))];
            counts.len -= packets;
            counts.handled += packets;
        }
    }

    /// Notes that so many packets come by a port. `is_waiting` says that none may be sealed or opened now, for want of a number or of
    /// sealers. Returns the queue that they go to, if they wait first, and how many of the first it takes; the others are dropped.
    pub(super) fn arrive(&mut self, port: u16, packets: usize, is_waiting: bool) -> Option<(u16, usize)> {
        let EspDispatch { mode, queue_packets, drops_when_full, .. } = self.dispatch;
        if port >= SEALERS {
            return None;
        }
        let side = usize::from(side_of(port));
        let counts = &mut self.counts[side];
        let count = packets as u64;
        if QUEUES.contains(&port) {
            counts.len -= count;
            counts.handled += count;
            return None;
        }
        let handled = match mode {
            Mode::Direct => Some(&mut counts.dispatched),
            Mode::Hybrid if self.is_beside[side] && counts.len == 0 && !is_waiting => {
                Some(&mut counts.hybrid_dispatched)
            }
            Mode::Hybrid | Mode::Deferred => None,
        };
        if let Some(dispatched) = handled {
            *dispatched += count;
            counts.handled += count;
            return None;
        }
        let room = if drops_when_full { u64::from(queue_packets).saturating_sub(counts.len) } else { count };
        let queued = count.min(room);
        counts.queued += queued;
        counts.queue_drops += count - queued;
        counts.len += queued;
        counts.wmark = counts.wmark.max(counts.len);
        Some((QUEUES[side], queued as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_the_queue_refuses_do_not_wait_in_it() {
        let mut deferral = Deferral::new(EspDispatch { mode: Mode::Hybrid, ..EspDispatch::default() });
        deferral.set_beside([true; 2]);
        // Nothing can be sealed now.
        assert_eq!(deferral.arrive(INSIDE, 3, true), Some((QUEUES[0], 3)));
        deferral.note_refused(QUEUES[0], 1);
        deferral.note_refused(OUTSIDE, 5);
        assert_eq!(deferral.arrive(INSIDE, 1, false), Some((QUEUES[0], 1)), "two wait");
        assert_eq!(deferral.arrive(QUEUES[0], 3, false), None);
        assert_eq!(deferral.arrive(INSIDE, 1, false), None, "at once: none waits");
        let counts = deferral.counts(INSIDE);
        assert_eq!((counts.len, counts.queued, counts.handled, counts.hybrid_dispatched), (0, 4, 5, 1));
    }
}
