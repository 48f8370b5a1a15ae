//! The traits between the path and a port, which packets come from and go to: a kernel's device, or a model of one.
//!
//! ```text
//! receive queues --poll--> packets          packets --put, flush--> transmit ring --complete--> delivered, or refused
//! ```
//!
//! Rule: a packet that is not polled stays in its queue, and holds its sender. A packet that is put has room: the path asks for the room
//! first.
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
    /// The number of receive queues.
    fn queues(&self) -> usize;

    /// Returns whether the packets that the port brings were in the path before: they have frames, and keep their origin.
    fn is_inner(&self) -> bool {
        false
    }

    /// Returns whether a packet was announced on `queue` since [`ReceiveQueues::expect`].
    fn is_announced(&self, queue: usize) -> bool;

    /// Asks for the next packet of `queue` to be announced. The queue must be polled once more afterwards: a packet that came before
    /// is announced no more.
    fn expect(&mut self, queue: usize);

    /// Notes that `queue` is known to have packets, so that none need be announced.
    fn set_announced(&mut self, queue: usize);

    /// Tells the senders whether `queue` has a backlog, which new flows then avoid.
    fn set_backlog(&mut self, queue: usize, has_backlog: bool);

    /// Polls `queue` once and appends the packets that came; returns the number of packets, with those that were passed on elsewhere.
    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize;

    /// Appends the packets that have come on `queue` without a poll; returns their number.
    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize;

    /// Makes one poll of any queue bring at most `packets` packets; returns the most that a poll then brings.
    fn set_poll_budget(&mut self, packets: u32) -> u32;
}

/// The transmitting half of a port.
pub trait TransmitRing {
    /// The longest packet that may be transmitted, in bytes.
    fn packet_bytes_max(&self) -> u32;

    /// The number of packets that the ring takes now.
    fn room(&self) -> u32;

    /// Puts packets, which have this count, on the ring in their order, and leaves none; there must be room for all.
    fn put(&mut self, packets: &mut Vec<PathPacket>, count: Count, frames: &mut Frames);

    /// Makes the device transmit the packets on the ring, or as many as it takes now. After a packet that was refused for good it goes on
    /// only if there is a carrier.
    ///
    /// # Errors
    /// If the device fails for good.
    fn flush(&mut self, carrier: &mut Carrier, now_ns: u64) -> io::Result<Transmit>;

    /// Returns whether the device has a carrier; a request to the kernel.
    fn has_carrier(&self) -> bool;

    /// Takes back the frames whose transmission has ended, and tells `each` how many packets share an outcome.
    fn complete(&mut self, frames: &mut Frames, each: impl FnMut(Count, Completion));

    /// Packets on the ring or with the device.
    fn in_flight(&self) -> Count;
}

/// The outcome of a request to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The device took the packets that it could take in one call.
    Progress,
    /// The device is busy or memory is short: try again later.
    Busy,
    /// The device refused one packet for good, the last that was taken from the ring.
    Refused,
    /// The device is down or gone.
    Down,
}

/// The outcome of a packet's transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The device took the packet.
    Delivered,
    /// The device refused the packet for good.
    Refused,
    /// The port dropped the packet by a rule.
    Dropped(DropReason),
}
