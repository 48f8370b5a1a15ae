//! A port of the path on a virtual clock: kernel queues that hold packets until they are polled, and a device that transmits at once.
//!
//! ```text
//! socket --charged--> kernel queue q (qdisc, then a ring of the pair) --poll--> PathPacket        PathPacket --put--> left
//! ```
//!
//! A packet stays charged to its socket until a poll takes it: that holds the sender. A sender announces its packet just before it enters
//! the queue, so a poll may come too early for it. The path moves a frame with a length; the packet of the simulation in it is remembered
//! beside it, by both ports of a wire together ([`Inside`]).
//!
//! Owner: one worker. Source: the mechanism verified on a live kernel (veth, owned NAPI instances).
//! Limits: the far side refuses nothing; a queue's ring and qdisc are one FIFO, bounded by `queue_packets`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use weir_core::drops::Count;
use weir_core::packet::Packet;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

use crate::packet::SimPacket;

/// The most packets on the transmit ring, as in the kernel's ports.
pub const TRANSMIT_PACKETS_MAX: u32 = 1024;

/// The longest packet that a port transmits, at an MTU of 1500.
pub const PACKET_BYTES_MAX: u32 = 1514;

/// The packets between the ports of a wire, and the outcome of a pass of the ports.
#[derive(Debug, Default)]
pub struct Inside {
    /// The time of the pass.
    pub now_ns: u64,
    /// The polls since this was taken.
    pub polls: u64,
    /// Buffers given back to their sockets: sender and truesize.
    pub freed: Vec<(u32, u32)>,
    /// The packets that left, in order.
    pub left: Vec<SimPacket>,
    /// The packet of each frame.
    packets: Vec<Option<SimPacket>>,
}

/// A fault of the kernel, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A poll brings four times as much as it may.
    PollOverruns,
    /// No packet is announced.
    AnnouncementLost,
    /// A worker that sleeps with packets inside is not woken by its timer.
    TimerLost,
}

/// A port of the simulation.
#[derive(Debug)]
pub struct SimPort {
    queues: Vec<KernelQueue>,
    queue_packets: usize,
    poll_packets: Option<u32>,
    poll_budget: u32,
    held: Count,
    in_flight: Vec<u32>,
    is_stuck: bool,
    fault: Option<Fault>,
    inside: Rc<RefCell<Inside>>,
}

/// One queue's qdisc and ring, and the word in which its packets are announced.
#[derive(Debug, Default)]
struct KernelQueue {
    /// The packets, each with the time from which a poll finds it.
    packets: VecDeque<(u64, SimPacket)>,
    is_announced: bool,
}

impl SimPort {
    /// A port of `queues` queues that each hold `queue_packets` at most; polls bring `poll_packets`, or as many as the path asks for.
    pub fn new(
        queues: usize,
        queue_packets: usize,
        poll_packets: Option<u32>,
        inside: Rc<RefCell<Inside>>,
    ) -> SimPort {
        SimPort {
            queues: (0..queues).map(|_| KernelQueue::default()).collect(),
            queue_packets,
            poll_packets,
            poll_budget: 1,
            held: Count::default(),
            in_flight: Vec::new(),
            is_stuck: false,
            fault: None,
            inside,
        }
    }

    /// Gives the kernel a fault from now on.
    pub fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Makes the device complete no packet, or go on.
    pub fn set_stuck(&mut self, is_stuck: bool) {
        self.is_stuck = is_stuck;
    }

    /// Has a process send into a queue: it announces its packet, and has put it in by `entered_ns`. Returns whether it was announced, as it
    /// is if no announcement stands; and the packet, if the queue is full.
    pub fn send(&mut self, queue: usize, packet: SimPacket, entered_ns: u64) -> (bool, Option<SimPacket>) {
        let queue = &mut self.queues[queue];
        let is_lost = self.fault == Some(Fault::AnnouncementLost);
        let is_first = !is_lost && !std::mem::replace(&mut queue.is_announced, true);
        if queue.packets.len() == self.queue_packets {
            return (is_first, Some(packet));
        }
        self.held.add(packet.len_bytes());
        queue.packets.push_back((entered_ns, packet));
        (is_first, None)
    }

    /// The packets in its queues, by their counters.
    pub fn held(&self) -> Count {
        self.held
    }

    /// The packets still charged to their sockets, one by one.
    pub fn queued(&self) -> impl Iterator<Item = &SimPacket> {
        self.queues.iter().flat_map(|queue| queue.packets.iter().map(|(_, packet)| packet))
    }

    /// The packets that a poll brings.
    pub fn poll_budget(&self) -> u32 {
        self.poll_budget
    }
}

impl ReceiveQueues for SimPort {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn is_announced(&self, queue: usize) -> bool {
        self.queues[queue].is_announced
    }

    fn expect(&mut self, queue: usize) {
        self.queues[queue].is_announced = false;
    }

    fn set_announced(&mut self, queue: usize) {
        self.queues[queue].is_announced = true;
    }

    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let inside = &mut *self.inside.borrow_mut();
        inside.polls += 1;
        let queue = &mut self.queues[queue].packets;
        let before = received.len();
        let overrun = if self.fault == Some(Fault::PollOverruns) { 4 } else { 1 };
        while received.len() - before < (self.poll_budget * overrun) as usize
            && queue.front().is_some_and(|(entered_ns, _)| *entered_ns <= inside.now_ns)
            && let Some(frame) = frames.pool.take()
            && let Some((_, packet)) = queue.pop_front()
        {
            self.held.sub(packet.len_bytes());
            inside.freed.push((packet.sender, packet.truesize_bytes));
            let index = frames.memory().index_of(&frame) as usize;
            received.push(PathPacket::new(frame, 0, packet.len_bytes() as u16));
            if inside.packets.len() <= index {
                inside.packets.resize(index + 1, None);
            }
            inside.packets[index] = Some(packet);
        }
        received.len() - before
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = self.poll_packets.unwrap_or(packets);
        self.poll_budget
    }
}

impl TransmitRing for SimPort {
    fn packet_bytes_max(&self) -> u32 {
        PACKET_BYTES_MAX
    }

    fn room(&self) -> u32 {
        TRANSMIT_PACKETS_MAX - self.in_flight.len() as u32
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        let inside = &mut *self.inside.borrow_mut();
        for packet in packets.drain(..) {
            let index = frames.memory().index_of(&packet.frame) as usize;
            inside.left.push(inside.packets[index].take().expect("what leaves has come in"));
            self.in_flight.push(packet.len_bytes.into());
            frames.pool.give(packet.frame);
        }
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(if self.is_stuck { Transmit::Busy } else { Transmit::Progress })
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        if !self.is_stuck {
            each(self.in_flight(), Completion::Delivered);
            self.in_flight.clear();
        }
    }

    fn in_flight(&self) -> Count {
        let mut all = Count::default();
        self.in_flight.iter().for_each(|&len_bytes| all.add(len_bytes));
        all
    }
}
