//! An end of a link in memory between two hosts of one worker: packets that leave by one end come in by the other.
//!
//! ```text
//! egress queue of one host, with its limit --put, if there is room--> ring --poll--> the other host
//! ```
//!
//! Rule: a packet is with the end that it was put on until the other end is polled. Packets that are not polled stay on the ring, and a full ring
//! holds the sender, as the ring of a veth does.
//!
//! Owner: one worker has both ends; the lock is there because a worker moves to its thread, and nobody ever waits for it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_core::drops::Count;
use weir_core::packet::{move_all, move_first};
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};

/// The packets that a ring takes: as many as two polls bring.
const RING_PACKETS: u32 = 2 * POLL_PACKETS_MAX;

/// The way from one end to the other.
#[derive(Debug, Default)]
struct Way {
    ring: Vec<PathPacket>,
    /// True if something was put since the receiving end last said that it expects packets.
    is_announced: bool,
    /// Packets that were polled and are not reported as delivered.
    polled: Count,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct LinkPort {
    out: Arc<Mutex<Way>>,
    incoming: Arc<Mutex<Way>>,
    /// Packets that were put and are not reported as delivered.
    in_flight: Count,
    poll_budget: u32,
}

impl LinkPort {
    /// Both ends of a link.
    pub(crate) fn pair() -> [LinkPort; 2] {
        let [there, back]: [Arc<Mutex<Way>>; 2] = Default::default();
        let end = |out: &Arc<_>, incoming: &Arc<_>| LinkPort {
            out: Arc::clone(out),
            incoming: Arc::clone(incoming),
            in_flight: Count::default(),
            poll_budget: POLL_PACKETS_MAX,
        };
        [end(&there, &back), end(&back, &there)]
    }
}

fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReceiveQueues for LinkPort {
    fn queues(&self) -> usize {
        1
    }

    fn is_announced(&self, _: usize) -> bool {
        lock(&self.incoming).is_announced
    }

    fn expect(&mut self, _: usize) {
        lock(&self.incoming).is_announced = false;
    }

    fn set_announced(&mut self, _: usize) {
        lock(&self.incoming).is_announced = true;
    }

    // The end has one queue: no packet could go elsewhere.
    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, _: usize, _: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let mut way = lock(&self.incoming);
        let count = way.ring.len().min(self.poll_budget as usize);
        let bytes = way.ring[..count].iter().map(|packet| u64::from(packet.len_bytes)).sum();
        way.polled.merge(Count { packets: count as u64, bytes });
        move_first(&mut way.ring, count, received);
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

impl TransmitRing for LinkPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        RING_PACKETS.saturating_sub(lock(&self.out).ring.len() as u32)
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: &mut Frames) {
        packets.iter().for_each(|packet| self.in_flight.add(packet.len_bytes.into()));
        let mut way = lock(&self.out);
        way.is_announced |= !packets.is_empty();
        move_all(packets, &mut way.ring);
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let polled = std::mem::take(&mut lock(&self.out).polled);
        if polled.packets > 0 {
            self.in_flight.sub_all(polled);
            each(polled, Completion::Delivered);
        }
    }

    fn in_flight(&self) -> Count {
        self.in_flight
    }
}
