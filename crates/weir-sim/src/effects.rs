//! The effects of a step of an egress, for the machine to carry out: one list for each kind, reused from step to step.
//!
//! The egress never touches processes or the clock; the machine never looks into queues. `write_space` is carried out
//! before `freed`, the order of `net_tx_action`: unthrottle, then run the qdisc.

use weir_core::drops::DropReason;

use crate::packet::SimPacket;

/// The outcome of one step.
#[derive(Debug, Default)]
pub struct Effects {
    /// Sockets for which `sk_write_space` is called though no buffer of theirs was freed.
    pub write_space: Vec<usize>,
    /// Buffers given back to their sockets: sender and truesize.
    pub freed: Vec<(u32, u32)>,
    /// Packets that left by the limit, in order.
    pub left: Vec<SimPacket>,
    /// Packets that were dropped, and the reason of each. Their buffers are given back as well.
    pub dropped: Vec<(DropReason, SimPacket)>,
    /// The kernel's timer to set: its time, and the generation to hand back when it fires.
    pub timer: Option<(u64, u64)>,
    /// The time at which Weir's worker, which is running, makes its next step.
    pub step_at_ns: Option<u64>,
    /// The time at which Weir's worker, which is parked, is to be woken by its timer.
    pub wake_at_ns: Option<u64>,
    /// True if Weir's worker was kicked out of its park.
    pub kicked: bool,
    /// The time for which the step kept its CPU.
    pub work_ns: u64,
}

impl Effects {
    /// Forgets the step before; memory is kept.
    pub fn clear(&mut self) {
        self.write_space.clear();
        self.freed.clear();
        self.left.clear();
        self.dropped.clear();
        self.timer = None;
        self.step_at_ns = None;
        self.wake_at_ns = None;
        self.kicked = false;
        self.work_ns = 0;
    }

    /// Notes that a packet was dropped and its buffer given back.
    pub fn drop(&mut self, reason: DropReason, packet: SimPacket) {
        self.freed.push((packet.sender, packet.truesize_bytes));
        self.dropped.push((reason, packet));
    }
}
