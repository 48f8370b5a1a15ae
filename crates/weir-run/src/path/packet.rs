//! A packet on its way through a path: a frame of the packet memory, which part of it is packet, and the core's metadata.
//!
//! Ownership: moved from queue to queue, never copied or shared. The borrow of the memory is what keeps a packet from outliving
//! its bytes. A packet that is dropped as a value would lose its frame for good, so every place that ends one gives the frame
//! back ([`super::store`]).
//! Limits: a frame has at most 65,535 bytes.

use weir_core::packet::{Meta, Packet};
use weir_core::shaper::ecn;
use weir_ring::memory::{Frame, FrameMemory};

/// A packet of a path.
#[derive(Debug)]
#[must_use = "a dropped packet loses its frame"]
pub struct PathPacket<'m> {
    memory: &'m FrameMemory,
    meta: Meta,
    frame: Frame,
    offset_bytes: u16,
    len_bytes: u16,
}

// Moved twice for each link, so it must stay below a cache line.
// Also in a flow of FQ, where `None` takes no room of its own.
const _: () = assert!(size_of::<Option<PathPacket<'_>>>() <= 40);

impl<'m> PathPacket<'m> {
    /// The first `len_bytes` of a frame of `memory`.
    /// If the frame is shorter, or another memory's, whoever asks for the bytes panics.
    #[inline(always)]
    pub fn new(memory: &'m FrameMemory, frame: Frame, len_bytes: u16, meta: Meta) -> PathPacket<'m> {
        debug_assert!(u32::from(len_bytes) <= memory.frame_size_bytes(), "a packet is longer than its frame");
        debug_assert!(memory.index_of(&frame) < memory.frames());
        PathPacket { memory, meta, frame, offset_bytes: 0, len_bytes }
    }

    /// Its frame, to be given back.
    pub fn into_frame(self) -> Frame {
        self.frame
    }
}

impl Packet for PathPacket<'_> {
    #[inline]
    fn len_bytes(&self) -> u32 {
        self.len_bytes.into()
    }

    #[inline]
    fn meta(&self) -> &Meta {
        &self.meta
    }

    #[inline]
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn mark_ce(&mut self) -> bool {
        ecn::mark_ce(self.as_mut())
    }
}

impl AsRef<[u8]> for PathPacket<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        let start = usize::from(self.offset_bytes);
        &self.memory.bytes(&self.frame)[start..start + usize::from(self.len_bytes)]
    }
}

impl AsMut<[u8]> for PathPacket<'_> {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        let start = usize::from(self.offset_bytes);
        let end = start + usize::from(self.len_bytes);
        &mut self.memory.bytes_mut(&mut self.frame)[start..end]
    }
}
