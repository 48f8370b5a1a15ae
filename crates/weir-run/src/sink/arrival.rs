//! A packet that a sink has received, as dispatch sees it.

use weir_core::packet::{Meta, Packet};
use weir_port::frames::Received;

/// A packet that has arrived and is under way to its end. Dropped as a value it would lose its frame.
#[derive(Debug)]
pub struct Arrival {
    /// Where its bytes are.
    pub received: Received,
    /// Where it came from, and its flow's hash.
    pub meta: Meta,
}

impl Packet for Arrival {
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
