//! The parameters of the sending machine: its CPUs, and the time of each thing they do.
//!
//! Source: [`crate::seed`] says where the numbers of the published machine come from.

/// The CPUs of the sending machine and the costs of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineParameters {
    /// The number of CPUs; process `i` belongs to CPU `i mod cpus`.
    pub cpus: usize,
    /// The time for which a process runs while others wait for its CPU.
    pub slice_ns: u64,
    /// The time of one send, from one datagram to the next, refused or not.
    pub send_ns: u64,
    /// The time that a packet which leaves the limit costs the CPU that takes it out, up to the receiver's queue.
    pub deliver_ns: u64,
    /// The time that a timer's softirq costs besides.
    pub softirq_ns: u64,
    /// The time that waking a process costs the waker.
    pub waker_ns: u64,
    /// The time from being woken to the first send.
    pub wake_ns: u64,
    /// The spread of `send_ns` and `wake_ns`, even, to either side.
    pub spread_percent: u64,
    /// The least and the longest time from a timer's expiry to its softirq.
    pub interrupt_ns: (u64, u64),
    /// The time from a kick to the step of Weir's parked worker.
    pub worker_wake_ns: u64,
    /// The time of one poll of Weir's.
    pub worker_poll_ns: u64,
    /// The time that one packet costs Weir's worker, in and out, besides `deliver_ns`.
    pub worker_packet_ns: u64,
    /// The sends, of 1000, that are preempted after Weir's egress program has announced the packet and before it is in the queue.
    pub preempt_permille: u64,
    /// The longest time of such a preemption.
    pub preempt_ns: u64,
}
