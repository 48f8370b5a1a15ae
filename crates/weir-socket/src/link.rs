//! An end of a link in memory between two hosts: packets that leave by one end come in by the other.
//!
//! ```text
//! egress queue of one host, with its limit --put, if there is room--> ring --poll--> the other host
//!                                                      several workers: a ring to each, by the bucket of the packet's flow
//! ```
//!
//! Rule: a packet is with the end that it was put on until the other end is polled. Packets that are not polled stay on the ring, and a full ring
//! holds the sender, as the rings of a veth do.
//!
//! Order: a flow's packets that one worker sends take one ring, first in, first out. A worker that sends to another rings after the announcement, and
//! that one looks at the announcement after it has said that it parks (invariant 3); the lock orders both.
//!
//! Owner: each worker has both ends of its own. A ring between two workers is theirs in turn, for the moving of a poll.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_core::drops::Count;
use weir_core::packet::{move_all, move_first};
use weir_core::steer::rss::{BURST_MAX, Burst, Rss};
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};
use weir_ring::doorbell::Ringer;

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

type SharedWay = Arc<Mutex<Way>>;

/// See the head of the file.
pub(crate) struct LinkPort {
    /// The ways to each worker, with its ringer unless it is this one.
    out: Vec<(SharedWay, Option<Ringer>)>,
    /// The ways from each worker: a receive queue each.
    incoming: Vec<SharedWay>,
    rss: Rss,
    burst: Burst,
    /// Packets that were put and are not reported as delivered.
    in_flight: Count,
    poll_budget: u32,
}

impl LinkPort {
    /// Both ends of a link for each of the workers that these ring, to whom flows fall by `rss`.
    pub(crate) fn pairs(rss: &Rss, ringers: &[Ringer]) -> Vec<[LinkPort; 2]> {
        let workers = ringers.len();
        let square = || -> Vec<Vec<SharedWay>> {
            (0..workers).map(|_| (0..workers).map(|_| SharedWay::default()).collect()).collect()
        };
        let [there, back] = [square(), square()];
        let end = |worker: usize, out: &[Vec<SharedWay>], incoming: &[Vec<SharedWay>]| {
            let to = out[worker].iter().zip(ringers).enumerate();
            let to =
                to.map(|(other, (way, ringer))| (Arc::clone(way), (other != worker).then(|| ringer.clone())));
            LinkPort {
                out: to.collect(),
                incoming: incoming.iter().map(|from| Arc::clone(&from[worker])).collect(),
                rss: rss.clone(),
                burst: Burst::default(),
                in_flight: Count::default(),
                poll_budget: POLL_PACKETS_MAX,
            }
        };
        (0..workers).map(|worker| [end(worker, &there, &back), end(worker, &back, &there)]).collect()
    }

    /// Frames on the ways out.
    pub(crate) fn frames(&self) -> u64 {
        self.out.iter().map(|(way, _)| lock(way).ring.len() as u64).sum()
    }

    /// Puts the first `count` packets on the way to a worker.
    fn put_for(&self, worker: usize, packets: &mut Vec<PathPacket>, count: usize) {
        let (way, ringer) = &self.out[worker];
        let mut way = lock(way);
        way.is_announced = true;
        match count == packets.len() {
            true => move_all(packets, &mut way.ring),
            false => move_first(packets, count, &mut way.ring),
        }
        drop(way);
        ringer.iter().for_each(|ringer| {
            ringer.published();
        });
    }
}

impl std::fmt::Debug for LinkPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LinkPort({:?})", self.in_flight)
    }
}

fn lock(way: &Mutex<Way>) -> MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReceiveQueues for LinkPort {
    fn queues(&self) -> usize {
        self.incoming.len()
    }

    fn is_announced(&self, queue: usize) -> bool {
        lock(&self.incoming[queue]).is_announced
    }

    fn expect(&mut self, queue: usize) {
        lock(&self.incoming[queue]).is_announced = false;
    }

    fn set_announced(&mut self, queue: usize) {
        lock(&self.incoming[queue]).is_announced = true;
    }

    // No packet could go by another queue.
    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, queue: usize, _: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let mut way = lock(&self.incoming[queue]);
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

    /// The room of the fullest ring: nobody knows before which ring a packet takes.
    fn room(&self) -> u32 {
        let most = self.out.iter().map(|(way, _)| lock(way).ring.len()).max().unwrap_or(0);
        RING_PACKETS.saturating_sub(most as u32)
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, count: Count, frames: &mut Frames) {
        self.in_flight.merge(count);
        while !packets.is_empty() {
            if self.out.len() == 1 {
                let count = packets.len();
                self.put_for(0, packets, count);
                break;
            }
            let count = packets.len().min(BURST_MAX);
            let mut bytes: [&[u8]; BURST_MAX] = [&[]; BURST_MAX];
            let memory = frames.memory();
            bytes.iter_mut().zip(&*packets).for_each(|(slot, packet)| *slot = packet.bytes(memory));
            self.rss.hash_burst(&bytes[..count], &mut self.burst);
            let mut to = [0; BURST_MAX];
            to.iter_mut().zip(self.burst.hashes()).for_each(|(to, hash)| *to = self.rss.worker(*hash));
            to[..count]
                .chunk_by(|one, next| one == next)
                .for_each(|run| self.put_for(run[0], packets, run.len()));
        }
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let mut polled = Count::default();
        self.out.iter().for_each(|(way, _)| polled.merge(std::mem::take(&mut lock(way).polled)));
        if polled.packets > 0 {
            self.in_flight.sub_all(polled);
            each(polled, Completion::Delivered);
        }
    }

    fn in_flight(&self) -> Count {
        self.in_flight
    }
}
