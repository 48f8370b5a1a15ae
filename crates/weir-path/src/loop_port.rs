//! A port that leads back into the path: a packet that leaves by it comes in by it again.
//!
//! ```text
//! egress queue, where packets wait --put, if there is room--> ring --poll--> the stage that it is joined to
//! ```
//!
//! Rule: a packet is with the port from its `put` to its poll, so that it is in one place at every instant. A full place does not hold a
//! packet that is polled here: it holds the packet's receive queue, so that all flows share the places evenly (`worker.rs`), and no queue
//! here waits for another. A packet has its frame, and stays a packet of the receive queue by which it first came in, so that the packets
//! of a flow wait in one queue wherever they go, those that came by here and those that did not.
//!
//! Order: first in, first out; one receive queue.
//!
//! Owner: one worker.

use std::io;

use weir_core::drops::Count;
use weir_core::packet::{count_of, move_all, move_first};

use crate::carrier::Carrier;
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};

/// The packets that the ring takes: as many as two polls bring.
const RING_PACKETS: u32 = 2 * POLL_PACKETS_MAX;

/// A port that leads back.
#[derive(Debug)]
pub struct LoopPort {
    ring: Vec<PathPacket>,
    poll_budget: u32,
    /// Packets that were put and are not yet told as delivered.
    inside: Count,
    /// Packets that were polled and are not yet told as delivered.
    polled: Count,
}

impl Default for LoopPort {
    fn default() -> LoopPort {
        LoopPort {
            ring: Vec::with_capacity(RING_PACKETS as usize),
            poll_budget: POLL_PACKETS_MAX,
            inside: Count::default(),
            polled: Count::default(),
        }
    }
}

impl ReceiveQueues for LoopPort {
    fn queues(&self) -> usize {
        1
    }

    fn is_inner(&self) -> bool {
        true
    }

    fn is_announced(&self, _: usize) -> bool {
        !self.ring.is_empty()
    }

    // A packet on the ring is announced until it is polled.
    fn expect(&mut self, _: usize) {}

    fn set_announced(&mut self, _: usize) {}

    // The egress queue of the port holds the senders.
    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, _: usize, _: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let count = self.ring.len().min(self.poll_budget as usize);
        if count == self.ring.len() {
            self.polled = self.inside;
        } else {
            self.polled.merge(count_of(&self.ring[..count]));
        }
        move_first(&mut self.ring, count, received);
        count
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = packets;
        packets
    }
}

impl TransmitRing for LoopPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        RING_PACKETS.saturating_sub(self.inside.packets as u32)
    }

    #[inline]
    fn put(&mut self, packets: &mut Vec<PathPacket>, count: Count, _: &mut Frames) {
        self.inside.merge(count);
        move_all(packets, &mut self.ring);
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let polled = std::mem::take(&mut self.polled);
        self.inside.sub_all(polled);
        each(polled, Completion::Delivered);
    }

    fn in_flight(&self) -> Count {
        self.inside
    }
}
