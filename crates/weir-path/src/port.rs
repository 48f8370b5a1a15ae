//! The seam between the path and what packets come from and go to: a kernel's device, or a model of one.
//!
//! ```text
//! receive queues --poll--> packets          packets --put, flush--> transmit ring --complete--> delivered, or refused
//! ```
//!
//! Rule: what is not polled stays where it is, and holds whoever sends it. What is put has room: the path asks for it first.
//!
//! Owner: a port is one worker's. A port of the kernel is `weir_port::port::Port`; `weir-sim` models one on a virtual clock.

use std::io;

use weir_core::drops::{Count, DropReason};

use crate::carrier::Carrier;
use crate::frames::Frames;
use crate::packet::PathPacket;

/// The most packets that one poll brings.
pub const POLL_PACKETS_MAX: u32 = 64;

/// The receiving half of a port: queues that bring packets only when they are polled.
pub trait ReceiveQueues {
    /// How many there are.
    fn queues(&self) -> usize;

    /// Whether what it brings was in the path before: it has frames, and its origin stays what it is.
    fn is_inner(&self) -> bool {
        false
    }

    /// Whether a packet was announced on `queue` since [`ReceiveQueues::expect`].
    fn is_announced(&self, queue: usize) -> bool;

    /// Asks for the next packet of `queue` to be announced. The queue must be polled once more afterwards: a packet that came before
    /// is announced no more.
    fn expect(&mut self, queue: usize);

    /// Notes that `queue` is known to have packets, so that none need be announced.
    fn set_announced(&mut self, queue: usize);

    /// Tells the senders whether `queue` has a backlog, which new flows then avoid.
    fn set_backlog(&mut self, queue: usize, has_backlog: bool);

    /// Polls `queue` once and appends what came; how many packets that were, with those that the device gave to somebody else.
    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize;

    /// Appends what has come on `queue` without a poll; how many packets that were.
    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize;

    /// Makes one poll of any queue bring at most so many packets, and says how many it then does.
    fn set_poll_budget(&mut self, packets: u32) -> u32;
}

/// The transmitting half of a port.
pub trait TransmitRing {
    /// The longest packet that may be transmitted, in bytes.
    fn packet_bytes_max(&self) -> u32;

    /// How many more packets it takes now.
    fn room(&self) -> u32;

    /// Puts packets on the ring in their order, and leaves none; there must be room for all.
    fn put(&mut self, packets: &mut Vec<PathPacket>, frames: &mut Frames);

    /// Makes the device transmit what is on the ring, or as much as it takes now. After a packet that was refused for good it goes on
    /// only if there is a carrier.
    ///
    /// # Errors
    /// If the device fails for good.
    fn flush(&mut self, carrier: &mut Carrier, now_ns: u64) -> io::Result<Transmit>;

    /// Whether the device has a carrier; a request to the kernel.
    fn has_carrier(&self) -> bool;

    /// Takes back the frames whose transmission has ended, telling `each` how many share a fate.
    fn complete(&mut self, frames: &mut Frames, each: impl FnMut(Count, Completion));

    /// What is on the ring or with the device.
    fn in_flight(&self) -> Count;
}

/// What became of a request to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The device took what it could in one call.
    Progress,
    /// The device is busy or memory is short: try again later.
    Busy,
    /// The device refused one packet for good, the last that was taken from the ring.
    Refused,
    /// The device is down or gone.
    Down,
}

/// What became of a transmitted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The device took it.
    Delivered,
    /// The device refused it for good.
    Refused,
    /// The port dropped it by a rule.
    Dropped(DropReason),
}
