//! The ports of Weir's row: an input with its senders, or the device, each with a station that says hello first.
//!
//! ```text
//! Sender --polled, at the cost of forwarding--> packet          packet --put--> MemoryDevice --complete--> frame back
//! ```
//!
//! The cost of forwarding is spent where a packet is polled, as the other designs spend it where they take one out of their input's ring; a
//! plan's own work comes on top. A hello makes the bridge know the port, so that it floods nothing that is numbered.
//!
//! Owner: one worker. Limits: a packet is an Ethernet header, its input and its number.

use std::io;

use weir_core::drops::Count;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

use super::design::{Costs, IfqPacket, MemoryDevice};
use super::sender::Sender;
use crate::cost::Cost;

/// The length of a packet.
const PACKET_BYTES: u16 = 60;
/// The place of the input in a packet, with the number behind it.
const INPUT_AT: usize = 14;
const BROADCAST: [u8; 6] = [0xff; 6];
/// The EtherType of local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The port of the device, in the plan.
pub const DEVICE: usize = 2;

/// A port of Weir's row.
pub struct IfqPort {
    /// Its place in the plan.
    index: usize,
    /// The senders, and the cost of forwarding a packet.
    input: Option<(Sender, Cost)>,
    number: u64,
    has_greeted: bool,
    poll_budget: u32,
    device: MemoryDevice,
    /// True if the device is to be told of the packets on its ring.
    is_untold: bool,
    on_ring: Vec<PathPacket>,
}

impl IfqPort {
    /// A port of the plan, with nobody behind it yet.
    pub fn new(index: usize, costs: Costs) -> IfqPort {
        IfqPort {
            index,
            input: None,
            number: 0,
            has_greeted: false,
            poll_budget: 1,
            device: MemoryDevice::new(costs),
            is_untold: false,
            on_ring: Vec::new(),
        }
    }

    /// Lets senders begin.
    pub fn begin(&mut self, senders: Sender, forward: Cost) {
        self.input = Some((senders, forward));
    }

    /// The senders, which have begun.
    pub fn senders_mut(&mut self) -> &mut Sender {
        &mut self.input.as_mut().expect("an input").0
    }

    /// The device, with the packets that were transmitted.
    pub fn sent(&self) -> &MemoryDevice {
        &self.device
    }

    /// The packet that is due next, if one is.
    fn next(&mut self) -> Option<([u8; 6], u64)> {
        if !std::mem::replace(&mut self.has_greeted, true) {
            return Some((BROADCAST, 0));
        }
        let (senders, forward) = self.input.as_mut()?;
        senders.take()?;
        forward.spend();
        self.number += 1;
        Some((station(DEVICE), self.number - 1))
    }
}

/// The station behind a port.
fn station(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

impl ReceiveQueues for IfqPort {
    fn queues(&self) -> usize {
        1
    }

    fn is_announced(&self, _: usize) -> bool {
        !self.has_greeted || self.input.as_ref().is_some_and(|(senders, _)| senders.waiting() > 0)
    }

    // A packet that is due is announced as long as it is.
    fn expect(&mut self, _: usize) {}

    fn set_announced(&mut self, _: usize) {}

    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, _: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let before = received.len();
        while received.len() - before < self.poll_budget as usize
            && let Some(mut frame) = frames.pool.take()
        {
            let Some((destination, number)) = self.next() else {
                frames.pool.give(frame);
                break;
            };
            let bytes = frames.memory().bytes_mut(&mut frame);
            bytes[..6].copy_from_slice(&destination);
            bytes[6..12].copy_from_slice(&station(self.index));
            bytes[12..14].copy_from_slice(&ETHERTYPE);
            bytes[INPUT_AT] = self.index as u8;
            bytes[INPUT_AT + 1..INPUT_AT + 9].copy_from_slice(&number.to_be_bytes());
            received.push(PathPacket::new(frame, 0, PACKET_BYTES));
        }
        received.len() - before
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = packets;
        packets
    }
}

impl TransmitRing for IfqPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        self.device.room() as u32
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        self.is_untold |= !packets.is_empty();
        for packet in packets.iter() {
            let bytes = packet.bytes(frames.memory());
            // A frame that the bridge flooded is a hello.
            if bytes[..6] != BROADCAST {
                let number = bytes[INPUT_AT + 1..].first_chunk().expect("a packet has its number");
                let packet = IfqPacket { input: bytes[INPUT_AT].into(), number: u64::from_be_bytes(*number) };
                self.device.put(packet).expect("there is room");
            }
        }
        self.on_ring.append(packets);
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        if std::mem::take(&mut self.is_untold) {
            self.device.flush();
        }
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, frames: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        self.device.reclaim();
        each(self.in_flight(), Completion::Delivered);
        frames.pool.give_all(self.on_ring.drain(..).map(|packet| packet.frame));
    }

    fn in_flight(&self) -> Count {
        let packets = self.on_ring.len() as u64;
        Count { packets, bytes: packets * u64::from(PACKET_BYTES) }
    }
}
