//! A port of the path in memory, whose packets are bytes: for stages that decide by these, bridges, routers and filters.
//!
//! ```text
//! send --> queue q, without a bound, as senders wait there --poll--> PathPacket        PathPacket --put--> left, at once
//! ```
//!
//! Owner: one worker. Limits: it has no clock and no wake-up; the caller makes a pass when something is to happen.

use std::collections::VecDeque;
use std::io;

use weir_core::drops::Count;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

use crate::port::{PACKET_BYTES_MAX, TRANSMIT_PACKETS_MAX};

/// The offset of packets in their frames, as in the kernel's ports.
const HEADROOM_BYTES: u16 = 256;

/// A port in memory.
#[derive(Debug, Default)]
pub struct FramePort {
    queues: Vec<VecDeque<Vec<u8>>>,
    announced: Vec<bool>,
    poll_budget: u32,
    /// The times that its poll budget was set.
    pub poll_budgets_set: usize,
    in_flight: Vec<u32>,
    /// The packets that left, in order.
    pub left: Vec<Vec<u8>>,
    /// True if packets that leave are not completed.
    pub is_stuck: bool,
    /// The packets that come in without a poll at once, as those that a kernel's ring had on offer.
    pub unpolled: usize,
}

impl FramePort {
    /// A port of `queues` receive queues.
    pub fn new(queues: usize) -> FramePort {
        FramePort {
            queues: vec![VecDeque::new(); queues],
            announced: vec![false; queues],
            poll_budget: 1,
            ..FramePort::default()
        }
    }

    /// Has a sender put a packet into a queue.
    pub fn send(&mut self, queue: usize, bytes: Vec<u8>) {
        self.announced[queue] = true;
        self.queues[queue].push_back(bytes);
    }

    /// The packets that wait in all queues, for which their senders are charged.
    pub fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// The packets that wait in a queue.
    pub fn queued_in(&self, queue: usize) -> usize {
        self.queues[queue].len()
    }
}

impl ReceiveQueues for FramePort {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn is_announced(&self, queue: usize) -> bool {
        self.announced[queue]
    }

    fn expect(&mut self, queue: usize) {
        self.announced[queue] = false;
    }

    fn set_announced(&mut self, queue: usize) {
        self.announced[queue] = true;
    }

    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let before = received.len();
        while received.len() - before < self.poll_budget as usize
            && !self.queues[queue].is_empty()
            && let Some(frame) = frames.pool.take()
            && let Some(bytes) = self.queues[queue].pop_front()
        {
            let mut packet = PathPacket::new(frame, HEADROOM_BYTES, bytes.len() as u16);
            packet.bytes_mut(frames.memory()).copy_from_slice(&bytes);
            received.push(packet);
        }
        received.len() - before
    }

    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let budget = std::mem::replace(&mut self.poll_budget, self.unpolled as u32);
        let count = self.poll(queue, frames, received);
        self.poll_budget = budget;
        count
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = packets;
        self.poll_budgets_set += 1;
        packets
    }
}

impl TransmitRing for FramePort {
    fn packet_bytes_max(&self) -> u32 {
        PACKET_BYTES_MAX
    }

    fn room(&self) -> u32 {
        TRANSMIT_PACKETS_MAX - self.in_flight.len() as u32
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        for packet in packets.drain(..) {
            self.left.push(packet.bytes(frames.memory()).to_vec());
            self.in_flight.push(packet.len_bytes.into());
            frames.pool.give(packet.frame);
        }
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        if self.is_stuck {
            return;
        }
        each(self.in_flight(), Completion::Delivered);
        self.in_flight.clear();
    }

    fn in_flight(&self) -> Count {
        let mut all = Count::default();
        self.in_flight.iter().for_each(|&len_bytes| all.add(len_bytes));
        all
    }
}
