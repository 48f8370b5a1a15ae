//! What the sending machine is like: its CPUs, and the time each thing takes that they do.
//!
//! Source: [`crate::seed`] says where the numbers of the published machine come from.

/// What the sending machine's work costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineParameters {
    /// How many CPUs; process `i` belongs to CPU `i mod cpus`.
    pub cpus: usize,
    /// How long a process runs while others wait for its CPU.
    pub slice_ns: u64,
    /// One send, from one datagram to the next, refused or not.
    pub send_ns: u64,
    /// What a packet that leaves the limit costs the CPU that takes it out, up to the receiver's queue.
    pub deliver_ns: u64,
    /// What a timer's softirq costs besides.
    pub softirq_ns: u64,
    /// What waking a process costs the waker.
    pub waker_ns: u64,
    /// From being woken to the first send.
    pub wake_ns: u64,
    /// How far `send_ns` and `wake_ns` spread, evenly, to either side.
    pub spread_percent: u64,
    /// From a timer's expiry to its softirq: least and most.
    pub interrupt_ns: (u64, u64),
    /// From a kick to the step of Weir's parked worker.
    pub worker_wake_ns: u64,
    /// What one poll of Weir's costs.
    pub worker_poll_ns: u64,
    /// What one packet costs Weir's worker, in and out, besides `deliver_ns`.
    pub worker_packet_ns: u64,
    /// How many of 1000 sends are preempted after Weir's egress program has announced the packet and before it is in
    /// the queue.
    pub preempt_permille: u64,
    /// For how long at the most.
    pub preempt_ns: u64,
}
