//! The packet of this module's tests: a length, a number to check order with, and its metadata.

use crate::packet::{Meta, Packet};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestPacket {
    pub(crate) len_bytes: u32,
    pub(crate) number: usize,
    /// The class that a test put it in.
    pub(crate) class: usize,
    pub(crate) meta: Meta,
}

impl TestPacket {
    pub(crate) fn new(len_bytes: u32, number: usize, arrival_ns: u64) -> TestPacket {
        TestPacket { len_bytes, number, class: 0, meta: Meta { arrival_ns, ..Meta::default() } }
    }

    pub(crate) fn in_class(self, class: usize) -> TestPacket {
        TestPacket { class, ..self }
    }
}

impl Packet for TestPacket {
    fn len_bytes(&self) -> u32 {
        self.len_bytes
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}
