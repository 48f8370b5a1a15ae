//! A worker's queues of a port that several workers have: packets enter and leave by them, and it gets copies of packets for all workers.
//!
//! ```text
//! Port (the first worker's queues, the programs, the ownership) --deal--> WorkerPort of each other worker
//! ```
//!
//! Rule: the tasks of the port as a whole stay with the first worker: owning the queues again after the interface was down, the count of
//! packets that the kernel lost, and detaching the programs at the end. A queue's new poller comes to the worker that has the queue.
//!
//! Owner: one worker, with its frames and its bell. Limits: packets leave by way of its first queue; the longest packet was found when it
//! was made.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use weir_core::drops::Count;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

use crate::bpf::doorbell::Announcements;
use crate::error::Doing;
use crate::link::Link;
use crate::napi::{self, Poller};
use crate::port::has_carrier;
use crate::queue::Queue;
use crate::tap::PacketTap;
use crate::transmission::Transmission;

/// The queues of a port that are one worker's; see the head of the file.
pub struct WorkerPort {
    pub(crate) queues: Vec<Queue>,
    pub(crate) tap: PacketTap,
    pub(crate) transmission: Transmission,
    pub(crate) announcements: Arc<Announcements>,
    pub(crate) link: Link,
    pub(crate) sender: String,
    pub(crate) packet_bytes_max: u32,
    /// The pollers of queues that were owned again, with their numbers.
    pub(crate) pollers: Receiver<(usize, Poller)>,
}

impl WorkerPort {
    /// The queue of copies, which the worker looks at now and then and waits for.
    pub fn tap_mut(&mut self) -> &mut PacketTap {
        &mut self.tap
    }

    /// The name of the other end of the interface, as it was when this was made.
    pub fn sender(&self) -> &str {
        &self.sender
    }

    /// The name of the way its queues are polled.
    pub fn poller_name(&self) -> &'static str {
        self.queues[0].poller_name()
    }

    /// Takes the pollers of queues that were owned again.
    pub fn look(&mut self) {
        for (number, poller) in self.pollers.try_iter() {
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.number() == number) {
                queue.set_poller(poller);
                self.announcements.set_pending(number);
            }
        }
    }

    fn is_tap(&self, queue: usize) -> bool {
        queue == self.queues.len()
    }
}

impl ReceiveQueues for WorkerPort {
    fn queues(&self) -> usize {
        self.queues.len() + 1
    }

    fn is_announced(&self, queue: usize) -> bool {
        match self.is_tap(queue) {
            true => self.tap.is_readable(),
            false => self.announcements.is_pending(self.queues[queue].number()),
        }
    }

    fn expect(&mut self, queue: usize) {
        match self.is_tap(queue) {
            true => self.tap.set_readable(false),
            false => self.announcements.expect_none(self.queues[queue].number()),
        }
    }

    fn set_announced(&mut self, queue: usize) {
        match self.is_tap(queue) {
            true => self.tap.set_readable(true),
            false => self.announcements.set_pending(self.queues[queue].number()),
        }
    }

    fn set_backlog(&mut self, queue: usize, has_backlog: bool) {
        // No flow is given the queue of copies.
        if !self.is_tap(queue) {
            self.announcements.set_backlog(self.queues[queue].number(), has_backlog);
        }
    }

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        if self.is_tap(queue) {
            return self.tap.take(frames, received);
        }
        self.queues[queue].offer(frames);
        self.queues[queue].poll(frames, received)
    }

    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        // Copies are not lost by waiting.
        if self.is_tap(queue) { 0 } else { self.queues[queue].collect(frames, received) }
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        let wanted = packets.min(napi::BUDGET);
        self.queues.iter_mut().map(|queue| queue.set_poll_budget(wanted)).max().unwrap_or(wanted)
    }
}

impl TransmitRing for WorkerPort {
    fn packet_bytes_max(&self) -> u32 {
        self.packet_bytes_max
    }

    fn room(&self) -> u32 {
        self.transmission.room()
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        let WorkerPort { queues, transmission, .. } = self;
        packets.drain(..).for_each(|packet| transmission.put(packet, queues[0].socket_mut(), frames));
    }

    fn flush(&mut self, carrier: &mut Carrier, now_ns: u64) -> io::Result<Transmit> {
        let WorkerPort { queues, transmission, link, .. } = self;
        transmission
            .flush(queues[0].socket_mut(), || carrier.is_found(now_ns, || has_carrier(link)))
            .doing(|| format!("transmitting on {}", link.name))
            .map_err(io::Error::other)
    }

    fn has_carrier(&self) -> bool {
        has_carrier(&self.link)
    }

    fn complete(&mut self, frames: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let WorkerPort { queues, transmission, .. } = self;
        transmission.complete(queues[0].socket_mut(), frames, |len_bytes, fate| {
            each(Count { packets: 1, bytes: len_bytes.into() }, fate);
        });
    }

    fn in_flight(&self) -> Count {
        let (packets, bytes) = self.transmission.in_flight();
        Count { packets: packets.into(), bytes }
    }
}
