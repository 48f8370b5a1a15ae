//! A packet on its way: the place of its bytes, its origin and arrival time, and the state of its congestion mark.
//!
//! Rule: a packet is moved, never copied. It is 32 bytes, so that two share a cache line, and a queue's slot with a packet in it is as
//! large as one without.
//!
//! Owner: the holder of the value. Limits: a packet dropped as a value loses its frame, so a packet ends when its frame is given back.

use weir_core::packet::{Bytes, Meta, Packet};
use weir_core::shaper::ecn;
use weir_ring::memory::{Frame, FrameMemory};

/// A packet of the path.
#[derive(Debug)]
pub struct PathPacket {
    /// The port and receive queue that it came in by, its arrival time and the hash of its flow.
    pub meta: Meta,
    /// The frame that the packet lies in.
    pub frame: Frame,
    /// The number in the plan of the attachment that the packet comes to, while it is under way to another worker.
    pub to: u32,
    /// The place in the frame where the packet starts, in bytes.
    pub offset_bytes: u16,
    /// The length of the packet, in bytes.
    pub len_bytes: u16,
    /// The state of its congestion mark.
    pub ecn: Ecn,
    /// True if a packet that comes back from a sealer could not be proven (`esp/sealer.rs`).
    pub(crate) is_unproven: bool,
    /// True while a packet is in an ESP stage that put it together, or a fragment that waits for no others there, so that it may be cut again
    /// (`esp/fragments.rs`).
    pub(crate) is_gathered: bool,
}

const _: () = assert!(size_of::<Option<PathPacket>>() == 32, "two packets share a cache line");

/// The state of a packet's congestion mark. A class decides on a mark before the worker has the packet's bytes at hand, so the mark is only
/// noted here, and made on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The packet's sender would not understand a mark, or its class makes none.
    Incapable,
    /// The packet may be marked.
    Capable,
    /// The packet is to be marked.
    Marked,
}

impl Ecn {
    /// The state of a packet that comes to a class that marks, or does not.
    pub fn of(bytes: &[u8], class_marks: bool) -> Ecn {
        if class_marks && ecn::is_capable(bytes) { Ecn::Capable } else { Ecn::Incapable }
    }
}

impl PathPacket {
    /// A packet that lies in a frame, without an origin and without a mark. The caller has checked that it lies within the frame.
    pub fn new(frame: Frame, offset_bytes: u16, len_bytes: u16) -> PathPacket {
        PathPacket {
            meta: Meta::default(),
            frame,
            to: 0,
            offset_bytes,
            len_bytes,
            ecn: Ecn::Incapable,
            is_unproven: false,
            is_gathered: false,
        }
    }

    /// A packet of the same origin and time: the first `len_bytes` of another frame.
    pub fn in_frame(&self, frame: Frame, len_bytes: u16) -> PathPacket {
        PathPacket { meta: self.meta, ..PathPacket::new(frame, 0, len_bytes) }
    }

    /// The bytes of the packet.
    #[inline(always)]
    pub fn bytes<'a>(&'a self, memory: &'a FrameMemory) -> &'a [u8] {
        let start = usize::from(self.offset_bytes);
        &memory.bytes(&self.frame)[start..start + usize::from(self.len_bytes)]
    }

    /// The bytes of the packet, to write.
    #[inline]
    pub fn bytes_mut<'a>(&'a mut self, memory: &'a FrameMemory) -> &'a mut [u8] {
        let start = usize::from(self.offset_bytes);
        &mut memory.bytes_mut(&mut self.frame)[start..start + usize::from(self.len_bytes)]
    }

    /// Makes the mark that was noted.
    pub fn make_mark(&mut self, memory: &FrameMemory) {
        if self.ecn == Ecn::Marked {
            // The packet could be marked when it came in, and its bytes have not changed.
            ecn::mark_ce(self.bytes_mut(memory));
        }
    }
}

impl Packet for PathPacket {
    fn len_bytes(&self) -> u32 {
        self.len_bytes.into()
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn mark_ce(&mut self) -> bool {
        if self.ecn == Ecn::Capable {
            self.ecn = Ecn::Marked;
        }
        self.ecn == Ecn::Marked
    }
}

impl Bytes<PathPacket> for FrameMemory {
    fn of<'a>(&'a self, packet: &'a PathPacket) -> &'a [u8] {
        packet.bytes(self)
    }

    fn of_mut<'a>(&'a self, packet: &'a mut PathPacket) -> &'a mut [u8] {
        packet.bytes_mut(self)
    }
}
