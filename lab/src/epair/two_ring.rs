//! FreeBSD's epair before D38843: two lock-free rings that change places, and two flags.
//!
//! A transmitter announces itself in `MBUF_QUEUED`, loads `ridx`, adds to that ring, and schedules the task unless
//! `QUEUE_TASK` says that it is scheduled. The task swaps `ridx`, empties the ring that was current, clears `QUEUE_TASK`,
//! and schedules itself again if `MBUF_QUEUED` was set meanwhile.
//! The fault: `ridx` may change between a transmitter's load and its adding, and then the task that it schedules looks into
//! the other ring; the packet lies there until someone else transmits. The model checker finds it (`loom_epair` of
//! weir-ring); here it needs the transmitter to be stopped between two instructions, and shows as packets that waited,
//! were overtaken, or never came out.
//!
//! Ordering: flags and `ridx` sequentially consistent, as the kernel's atomics are on x86. `R0` (`filled`) `<-> A0`: the packets in the
//! slots before it. `R1` (`emptied`) `<-> A1`: these slots may be filled again.
//! Source: review D38843; FreeBSD 3dd5760aa5f8 and 66acf7685bcd, buf_ring(9).
//! Limits: packets are stored in the ring itself, not by pointer.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::design::{LINK_PACKETS, Packet};
use super::task_queue::{Link, TaskQueue};

const QUEUE_TASK: usize = 1;
const MBUF_QUEUED: usize = 2;

/// One direction of an epair before D38843.
pub struct TwoRing {
    rings: [BufRing; 2],
    ridx: AtomicUsize,
    state: AtomicUsize,
    task: usize,
    tasks: Arc<TaskQueue>,
}

impl Link for TwoRing {
    fn new(task: usize, tasks: Arc<TaskQueue>) -> TwoRing {
        let rings = [BufRing::new(), BufRing::new()];
        TwoRing { rings, ridx: AtomicUsize::new(0), state: AtomicUsize::new(0), task, tasks }
    }

    fn transmit(&self, packet: Packet) -> Result<(), Packet> {
        self.state.fetch_or(MBUF_QUEUED, SeqCst);
        let ridx = self.ridx.load(SeqCst);
        self.rings[ridx].enqueue(packet)?;
        if self.state.fetch_or(QUEUE_TASK, SeqCst) & QUEUE_TASK == 0 {
            self.tasks.enqueue(self.task);
        }
        Ok(())
    }

    fn run(&self, _batch: &mut Vec<Packet>, deliver: &mut impl FnMut(Packet)) {
        let ridx = self.ridx.fetch_xor(1, SeqCst);
        while let Some(packet) = self.rings[ridx].dequeue() {
            deliver(packet);
        }
        self.state.fetch_and(!QUEUE_TASK, SeqCst);
        if self.state.fetch_and(!MBUF_QUEUED, SeqCst) & MBUF_QUEUED != 0 {
            self.tasks.enqueue(self.task);
        }
    }
}

/// Indices that different threads write, on lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Index(AtomicUsize);

/// Many transmitters reserve slots one after another and make them visible in the same order; one task empties them.
struct BufRing {
    reserved: Index,
    filled: Index,
    emptied: Index,
    /// Number and last mark in the first word, time in the second.
    slots: Box<[[AtomicU64; 2]]>,
}

impl BufRing {
    fn new() -> BufRing {
        let slots = (0..LINK_PACKETS).map(|_| Default::default()).collect();
        BufRing { reserved: Index::default(), filled: Index::default(), emptied: Index::default(), slots }
    }

    fn enqueue(&self, packet: Packet) -> Result<(), Packet> {
        let mut index = self.reserved.0.load(Relaxed);
        loop {
            // A1, from R1.
            if index.wrapping_sub(self.emptied.0.load(Acquire)) >= LINK_PACKETS {
                return Err(packet);
            }
            match self.reserved.0.compare_exchange_weak(index, index.wrapping_add(1), Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => index = now,
            }
        }
        let [word, sent_ns] = self.slot(index);
        word.store(u64::from(packet.number) << 1 | u64::from(packet.last), Relaxed);
        sent_ns.store(packet.sent_ns, Relaxed);
        while self.filled.0.load(Relaxed) != index {
            std::hint::spin_loop();
        }
        // R0, to A0.
        self.filled.0.store(index.wrapping_add(1), Release);
        Ok(())
    }

    fn dequeue(&self) -> Option<Packet> {
        let index = self.emptied.0.load(Relaxed);
        // A0, from R0.
        if index == self.filled.0.load(Acquire) {
            return None;
        }
        let [word, sent_ns] = self.slot(index);
        let word = word.load(Relaxed);
        let packet =
            Packet { number: (word >> 1) as u32, last: word & 1 != 0, sent_ns: sent_ns.load(Relaxed) };
        // R1, to A1.
        self.emptied.0.store(index.wrapping_add(1), Release);
        Some(packet)
    }

    fn slot(&self, index: usize) -> &[AtomicU64; 2] {
        &self.slots[index % LINK_PACKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u32) -> Packet {
        Packet { number, last: number % 2 == 1, sent_ns: u64::from(number) * 3 }
    }

    #[test]
    fn a_ring_gives_back_what_it_was_given_and_says_when_it_is_full() {
        let ring = BufRing::new();
        for round in 0..3 {
            for number in 0..LINK_PACKETS as u32 {
                ring.enqueue(packet(number + round)).unwrap();
            }
            assert_eq!(ring.enqueue(packet(7)), Err(packet(7)));
            for number in 0..LINK_PACKETS as u32 {
                assert_eq!(ring.dequeue(), Some(packet(number + round)));
            }
            assert_eq!(ring.dequeue(), None);
        }
    }

    #[test]
    fn a_transmitter_that_stops_after_loading_the_index_is_not_served() {
        let tasks = Arc::new(TaskQueue::default());
        let link = TwoRing::new(0, Arc::clone(&tasks));
        let mut out = Vec::new();
        // The transmitter's steps, with one run of the task between its load of the index and its adding.
        link.state.fetch_or(MBUF_QUEUED, SeqCst);
        let ridx = link.ridx.load(SeqCst);
        link.state.fetch_and(!MBUF_QUEUED, SeqCst);
        link.run(&mut Vec::new(), &mut |packet| out.push(packet));
        link.rings[ridx].enqueue(packet(1)).unwrap();
        assert_eq!(link.state.fetch_or(QUEUE_TASK, SeqCst) & QUEUE_TASK, 0);
        link.run(&mut Vec::new(), &mut |packet| out.push(packet));
        assert!(out.is_empty() && link.state.load(SeqCst) == 0, "asleep, with a packet in the ring");
        // Only the next transmitter gets it out, behind or before its own.
        link.transmit(packet(2)).unwrap();
        link.run(&mut Vec::new(), &mut |packet| out.push(packet));
        assert_eq!(out, [packet(1), packet(2)]);
    }
}
