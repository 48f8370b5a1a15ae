//! What every queue of the path holds: something with a length and one cache line of metadata.
//!
//! The core never sees the bytes' storage. A frame of the shared packet memory, a buffer of the simulator and a
//! test's plain struct are all packets, so the same queues and shapers run on threads and on a virtual clock.
//!
//! Ownership: a packet is moved, never copied or shared: it is always in exactly one place (ARCHITECTURE.md, the law).

/// Anything that can travel the path.
pub trait Packet {
    /// Length on the wire in bytes, Ethernet header included, frame check sequence excluded.
    fn len_bytes(&self) -> u32;
    /// Where it came from and where it belongs.
    fn meta(&self) -> &Meta;
    /// The same, to be filled in by the stages it passes.
    fn meta_mut(&mut self) -> &mut Meta;
    /// Marks it as having met congestion ([`crate::shaper::ecn`]); false if it cannot be marked, or its sender would
    /// not understand. Its length stays as it is. A packet without bytes never can.
    fn mark_ce(&mut self) -> bool {
        false
    }
}

/// A packet's metadata: half of what a packet is, so that two packets share a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// When the intake took it, in nanoseconds of the path's clock.
    pub arrival_ns: u64,
    /// Hash of its flow's addresses and ports; 0 where nobody has computed one.
    pub flow_hash: u32,
    /// Index of the port it entered by.
    pub port: u16,
    /// Index of that port's queue.
    pub queue: u16,
}

impl Meta {
    /// Whether two packets came by the same queue at the same time.
    #[inline]
    pub fn came_with(&self, other: &Meta) -> bool {
        self.arrival_ns == other.arrival_ns && self.port == other.port && self.queue == other.queue
    }
}

const _: () = assert!(size_of::<Meta>() == 16, "a packet is twice as large, and two share a cache line");

/// Moves the first `count` packets behind others. Where it is all of them and there are no others, the lists are exchanged and no packet moves;
/// otherwise they are moved as memory where it is all of them: one that is moved by itself is written in parts and read again as a whole, for
/// which a processor waits.
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

/// The same of all packets.
#[inline]
pub fn move_all<P>(from: &mut Vec<P>, to: &mut Vec<P>) {
    move_first(from, from.len(), to);
}

/// Where the bytes of packets are, which do not carry them: whoever decides by them is given this beside the packets.
pub trait Bytes<P> {
    /// The bytes of a packet.
    fn of<'a>(&'a self, packet: &'a P) -> &'a [u8];
    /// The same, to write.
    fn of_mut<'a>(&'a self, packet: &'a mut P) -> &'a mut [u8];
}

/// Of packets that carry their bytes.
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
