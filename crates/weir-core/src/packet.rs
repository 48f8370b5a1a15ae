//! The packet in every queue of the path: a thing with a length and one cache line of metadata.
//!
//! The core never sees the bytes' storage. A frame of the shared packet memory, a buffer of the simulator and a
//! test's plain struct are all packets, so the same queues and shapers run on threads and on a virtual clock.
//!
//! Ownership: a packet is moved, never copied or shared: it is always in exactly one place (ARCHITECTURE.md, the law).

use crate::drops::Count;

/// Anything that can travel the path.
pub trait Packet {
    /// Length on the wire in bytes, Ethernet header included, frame check sequence excluded.
    fn len_bytes(&self) -> u32;
    /// The metadata: the port it came from and the flow it belongs to.
    fn meta(&self) -> &Meta;
    /// The metadata, to be filled in by the stages it passes.
    fn meta_mut(&mut self) -> &mut Meta;
    /// Marks the packet as having met congestion ([`crate::shaper::ecn`]); false if it cannot be marked, or its sender would not
    /// understand. Its length stays as it is. A packet without bytes never can.
    fn mark_ce(&mut self) -> bool {
        false
    }
}

/// A packet's metadata: half of the packet's own size, so that two packets share a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The time at which the intake took it, in nanoseconds of the path's clock.
    pub arrival_ns: u64,
    /// The hash of its flow's addresses and ports; 0 where none has been computed.
    pub flow_hash: u32,
    /// Index of the port it entered by.
    pub port: u16,
    /// Index of that port's queue.
    pub queue: u16,
}

impl Meta {
    /// Returns whether two packets came by the same queue at the same time.
    #[inline]
    pub fn came_with(&self, other: &Meta) -> bool {
        // Both numbers are compared as one.
        self.arrival_ns == other.arrival_ns && [self.port, self.queue] == [other.port, other.queue]
    }
}

const _: () = assert!(size_of::<Meta>() == 16, "a packet is twice as large, and two share a cache line");

/// The count of packets.
#[inline]
pub fn count_of<P: Packet>(packets: &[P]) -> Count {
    let bytes = packets.iter().map(|packet| u64::from(packet.len_bytes())).sum();
    Count { packets: packets.len() as u64, bytes }
}

/// Moves the first `count` packets behind others. If these are all and there are no others, the lists are exchanged and no packet moves.
/// Otherwise all packets are moved as memory: a packet moved by itself is written in parts and read again as a whole, for which a processor
/// waits.
#[inline]
pub fn move_first<P>(from: &mut Vec<P>, count: usize, to: &mut Vec<P>) {
    if count != from.len() {
        to.extend(from.drain(..count));
    } else if to.is_empty() {
        std::mem::swap(from, to);
    } else {
        to.append(from);
    }
}

/// Moves all packets behind others.
#[inline]
pub fn move_all<P>(from: &mut Vec<P>, to: &mut Vec<P>) {
    move_first(from, from.len(), to);
}

/// The bytes of packets that do not carry them; given beside the packets to a stage that decides by bytes.
pub trait Bytes<P> {
    /// The bytes of a packet.
    fn of<'a>(&'a self, packet: &'a P) -> &'a [u8];
    /// The bytes of a packet, to write.
    fn of_mut<'a>(&'a self, packet: &'a mut P) -> &'a mut [u8];
}

/// The bytes of packets that carry them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried;

impl<P: AsRef<[u8]> + AsMut<[u8]>> Bytes<P> for Carried {
    fn of<'a>(&'a self, packet: &'a P) -> &'a [u8] {
        packet.as_ref()
    }

    fn of_mut<'a>(&'a self, packet: &'a mut P) -> &'a mut [u8] {
        packet.as_mut()
    }
}
