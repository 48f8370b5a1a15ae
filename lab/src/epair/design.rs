//! The interface of a hand-off design in this lab: a transmitter for one thread, and a worker for another.
//!
//! A worker owns one link or a chain of them: a packet that leaves a link goes into the next one of the same worker, and is
//! delivered by the last. The chain is the published test bed without its bridges and router: "the taskqueue thread is just
//! taking packets out of one epair queue and putting them in another, then signalling itself".
//!
//! Ownership: each half belongs to the thread that drives it. Order between the halves is each design's own.
//! Limits: one transmitter. A packet is its number and the time it was handed over; no body is moved.

use std::time::Duration;

use anyhow::Result;

/// The number of packets that a link holds. Designs that swap a queue out hold up to twice that, as the published ones do.
pub const LINK_PACKETS: usize = 1024;

/// The most packets that are offered together, and that a design without a rule of its own takes in one pass.
pub const BURST: usize = 32;

/// A packet that goes through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The number counts up from 0, so that the worker sees which packets are missing and which were overtaken.
    pub number: u32,
    /// True if it is the last packet.
    pub last: bool,
    /// The time when the packet was offered, in nanoseconds since the start of the run.
    pub sent_ns: u64,
}

/// The transmitting half.
pub trait Transmit: Send {
    /// Hands over the packets of `burst` that fit, from the front, and wakes the worker as the design does. Returns whether all have gone.
    fn transmit(&mut self, burst: &mut Vec<Packet>) -> bool;
}

/// The receiving half, with all the links of its thread.
pub trait Work: Send {
    /// The worker's thread has started: this is it.
    fn begin(&mut self) {}

    /// One pass by the design's own rule, calling `left` for each packet that leaves a link, with the link's place in the
    /// chain. Returns how many packets moved: 0 only if the worker finds nothing to do.
    fn pass(&mut self, left: &mut impl FnMut(usize, Packet)) -> usize;

    /// Having found nothing, waits as the design does until there may be something, or until `limit` has passed.
    fn rest(&mut self, limit: Duration);

    /// The counts of the design.
    fn counts(&self) -> Counts;
}

/// The counts of a worker; `None` where the design cannot tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Packets that found the next link of the chain full and were dropped.
    pub dropped: u64,
    /// Times a transmitter asked for the worker to be woken.
    pub kicks: Option<u64>,
    /// Of those, times the worker was awake or had found the packets by itself.
    pub kicks_redundant: Option<u64>,
}

/// A way of handing packets from one thread to another.
pub trait Design {
    /// Its transmitting half.
    type Transmit: Transmit;
    /// Its receiving half.
    type Work: Work;

    /// A chain of `links` links under one worker, on a machine where waking a thread takes `wake_cost_ns`.
    fn chain(links: usize, wake_cost_ns: u64) -> Result<(Self::Transmit, Self::Work)>;
}
