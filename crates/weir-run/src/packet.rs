//! A packet on its way through a wire: a received frame and the core's metadata.

use weir_core::packet::{Meta, Packet};
use weir_core::shaper::ecn;
use weir_port::frames::Received;
use weir_ring::memory::FrameMemory;

/// What the queues of a wire hold.
#[derive(Debug)]
pub struct WirePacket {
    /// Where its bytes are.
    pub received: Received,
    /// Where it came from and when.
    pub meta: Meta,
    /// What is known of its congestion mark.
    pub ecn: Ecn,
}

const _: () =
    assert!(size_of::<Option<WirePacket>>() <= 40, "a flow of FQ and a packet in it are one cache line");

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

/// The bytes of a packet; the port has checked that they lie within its frame.
pub fn bytes_of<'a>(received: &'a Received, memory: &'a FrameMemory) -> &'a [u8] {
    let start = received.offset_bytes as usize;
    &memory.bytes(&received.frame)[start..start + received.len_bytes as usize]
}

/// Makes the mark that was noted on a packet.
pub fn make_mark(packet: &mut WirePacket, memory: &FrameMemory) {
    if packet.ecn == Ecn::Marked {
        let start = packet.received.offset_bytes as usize;
        let end = start + packet.received.len_bytes as usize;
        // It could be marked when it came in, and its bytes have not changed.
        ecn::mark_ce(&mut memory.bytes_mut(&mut packet.received.frame)[start..end]);
    }
}

impl Packet for WirePacket {
    fn len_bytes(&self) -> u32 {
        self.received.len_bytes
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
