//! A worker's share of a port that only receives: some of its queues, as a port of the path.
//!
//! Rule: no packet leaves by it. The bell of their owner rings for its queues; a queue that has rested for long is looked at all the same,
//! because packets of an AF_XDP socket at the other end are not announced ([`PortShare::look`]).
//!
//! Owner: one worker. The port is lent out by [`crate::port::Port::split`].

use std::io;
use std::sync::Arc;

use weir_core::drops::Count;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

use crate::bpf::doorbell::Announcements;
use crate::napi::{self, Poller};
use crate::queue::Queue;

/// Some queues of a port.
pub struct PortShare<'a> {
    queues: Vec<&'a mut Queue>,
    announcements: Arc<Announcements>,
    /// True for each queue that is to be looked at, announced or not.
    is_due: Vec<bool>,
    is_open: bool,
    received: Count,
}

impl<'a> PortShare<'a> {
    /// The share of these queues, of a port whose senders announce by `announcements`.
    pub fn new(queues: Vec<&'a mut Queue>, announcements: Arc<Announcements>) -> PortShare<'a> {
        let is_due = vec![true; queues.len()];
        PortShare { queues, announcements, is_due, is_open: true, received: Count::default() }
    }

    /// Has all queues looked at in the next pass.
    pub fn look(&mut self) {
        self.is_due.fill(self.is_open);
    }

    /// Takes no more packets in.
    pub fn close(&mut self) {
        self.is_open = false;
    }

    /// The packets and bytes that came.
    pub fn received(&self) -> Count {
        self.received
    }

    /// Polls these queues of the port, by number, by these pollers from now on. The caller sets the poll budget anew.
    pub fn set_pollers(&mut self, pollers: Vec<(usize, Poller)>) {
        for (number, poller) in pollers {
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.number() == number) {
                queue.set_poller(poller);
            }
        }
        self.look();
    }
}

impl ReceiveQueues for PortShare<'_> {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn is_announced(&self, queue: usize) -> bool {
        self.is_open && (self.is_due[queue] || self.announcements.is_pending(self.queues[queue].number()))
    }

    fn expect(&mut self, queue: usize) {
        self.is_due[queue] = false;
        self.announcements.expect_none(self.queues[queue].number());
    }

    fn set_announced(&mut self, queue: usize) {
        self.announcements.set_pending(self.queues[queue].number());
    }

    fn set_backlog(&mut self, queue: usize, has_backlog: bool) {
        self.announcements.set_backlog(self.queues[queue].number(), has_backlog);
    }

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        if !self.is_open {
            return 0;
        }
        let before = received.len();
        let queue = &mut self.queues[queue];
        queue.offer(frames);
        let count = queue.poll(frames, received);
        received[before..].iter().for_each(|packet| self.received.add(packet.len_bytes.into()));
        count
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        let wanted = packets.min(napi::BUDGET);
        self.queues.iter_mut().map(|queue| queue.set_poll_budget(wanted)).max().unwrap_or(wanted)
    }
}

/// No packet leaves by a share.
impl TransmitRing for PortShare<'_> {
    fn packet_bytes_max(&self) -> u32 {
        0
    }

    fn room(&self) -> u32 {
        1
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        frames.pool.give_all(packets.drain(..).map(|packet| packet.frame));
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, _: impl FnMut(Count, Completion)) {}

    fn in_flight(&self) -> Count {
        Count::default()
    }
}
