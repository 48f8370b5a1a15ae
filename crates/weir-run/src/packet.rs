//! A packet on its way through a wire: a received frame and the core's metadata.

use weir_core::packet::{Meta, Packet};
use weir_port::port::Received;

/// What the queues of a wire hold.
#[derive(Debug)]
pub struct WirePacket {
    /// Where its bytes are.
    pub received: Received,
    /// Where it came from and when.
    pub meta: Meta,
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
}
