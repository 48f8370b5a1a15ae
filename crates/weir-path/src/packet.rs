//! A packet on its way: where its bytes are, where it came from and when, and what is known of its congestion mark.
//!
//! Rule: a packet is moved, never copied. It is 32 bytes, so that two share a cache line, and a queue's slot with a packet in it is as
//! large as one without.
//!
//! Owner: whoever holds it. Limits: one dropped as a value loses its frame, so it ends by giving that back.

use weir_core::packet::{Bytes, Meta, Packet};
use weir_core::shaper::ecn;
use weir_ring::memory::{Frame, FrameMemory};

/// A packet of the path.
#[derive(Debug)]
pub struct PathPacket {
    /// Where it came from and when.
    pub meta: Meta,
    /// The frame that it lies in.
    pub frame: Frame,
    /// While it is under way to another worker the attachment that it comes to, by its number in the plan. Out of the path, whoever has it may
    /// keep a number of its own here.
    pub to: u32,
    /// Where in the frame it starts, in bytes.
    pub offset_bytes: u16,
    /// How long it is, in bytes.
    pub len_bytes: u16,
    /// What is known of its congestion mark.
    pub ecn: Ecn,
    /// Of one that comes back from a sealer whether it could not be proven (`esp/sealer.rs`).
    pub(crate) is_unproven: bool,
}

const _: () = assert!(size_of::<Option<PathPacket>>() == 32, "two packets share a cache line");

/// A packet's congestion mark. Its class decides on one before the worker has its bytes at hand, so the mark is only noted, and
/// made on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Its sender would not understand a mark, or its class makes none.
    Incapable,
    /// It may be marked.
    Capable,
    /// It is to be marked.
    Marked,
}

impl Ecn {
    /// What may become of a packet in a class that marks, or does not.
    pub fn of(bytes: &[u8], class_marks: bool) -> Ecn {
        if class_marks && ecn::is_capable(bytes) { Ecn::Capable } else { Ecn::Incapable }
    }
}

impl PathPacket {
    /// A packet that lies in a frame, of which nothing else is known yet. Whoever makes it has checked that it lies within.
    pub fn new(frame: Frame, offset_bytes: u16, len_bytes: u16) -> PathPacket {
        PathPacket {
            meta: Meta::default(),
            frame,
            to: 0,
            offset_bytes,
            len_bytes,
            ecn: Ecn::Incapable,
            is_unproven: false,
        }
    }

    /// A packet of the same origin and time in another frame, whose first `len_bytes` it is.
    pub fn in_frame(&self, frame: Frame, len_bytes: u16) -> PathPacket {
        PathPacket { meta: self.meta, ..PathPacket::new(frame, 0, len_bytes) }
    }

    /// Its bytes.
    #[inline]
    pub fn bytes<'a>(&'a self, memory: &'a FrameMemory) -> &'a [u8] {
        let start = usize::from(self.offset_bytes);
        &memory.bytes(&self.frame)[start..start + usize::from(self.len_bytes)]
    }

    /// Its bytes, to write.
    #[inline]
    pub fn bytes_mut<'a>(&'a mut self, memory: &'a FrameMemory) -> &'a mut [u8] {
        let start = usize::from(self.offset_bytes);
        &mut memory.bytes_mut(&mut self.frame)[start..start + usize::from(self.len_bytes)]
    }

    /// Makes the mark that was noted.
    pub fn make_mark(&mut self, memory: &FrameMemory) {
        if self.ecn == Ecn::Marked {
            // It could be marked when it came in, and its bytes have not changed.
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
