//! The progress of a path's workers as they tell it to an observer, and the two orders for them: to take nothing more in, and to
//! end.
//!
//! Rule: a worker counts a packet as received before it counts it as ended, and publishes the two the other way round, so that a path at
//! rest has nothing inside: every worker takes nothing in any more, and every packet received has ended.
//!
//! Ordering: `R0` (`is_closed`) `<-> A0`: the packets received, and handed to others. `R1` (`ended`) `<-> A1`: the packets received before
//! `ended`, read after it.
//! Owner: each worker its line; the two orders are the caller's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_core::drops::Count;

/// The progress of all workers.
#[derive(Default)]
pub struct ProgressBoard {
    lines: Box<[Line]>,
    is_stopping: AtomicBool,
    is_ending: AtomicBool,
}

/// The progress of one worker, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    received: AtomicU64,
    ended: AtomicU64,
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
    numbered: AtomicU64,
    is_closed: AtomicBool,
}

/// The progress of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerProgress {
    /// Packets received.
    pub received: u64,
    /// Packets delivered or dropped.
    pub ended: u64,
    /// Packets and bytes delivered.
    pub delivered: Count,
    /// Packets of generators seen, those dropped included.
    pub numbered: u64,
    /// True if it takes nothing in any more.
    pub is_closed: bool,
}

impl ProgressBoard {
    /// A board for so many workers, which have done nothing.
    pub fn new(workers: usize) -> ProgressBoard {
        ProgressBoard { lines: (0..workers).map(|_| Line::default()).collect(), ..ProgressBoard::default() }
    }

    /// Publishes the counters of a worker.
    pub fn tell(&self, worker: usize, told: &WorkerProgress) {
        let line = &self.lines[worker];
        line.received.store(told.received, Ordering::Relaxed);
        line.delivered.store(told.delivered.packets, Ordering::Relaxed);
        line.delivered_bytes.store(told.delivered.bytes, Ordering::Relaxed);
        line.numbered.store(told.numbered, Ordering::Relaxed);
        // R1, to A1.
        line.ended.store(told.ended, Ordering::Release);
        // R0, to A0.
        line.is_closed.store(told.is_closed, Ordering::Release);
    }

    /// The packets that all have delivered, and how many packets of generators they have seen.
    pub fn told(&self) -> (Count, u64) {
        let sum = |of: fn(&Line) -> &AtomicU64| {
            self.lines.iter().map(|line| of(line).load(Ordering::Relaxed)).sum::<u64>()
        };
        let delivered =
            Count { packets: sum(|line| &line.delivered), bytes: sum(|line| &line.delivered_bytes) };
        (delivered, sum(|line| &line.numbered))
    }

    /// Returns whether nothing more is taken in.
    pub fn is_closed(&self) -> bool {
        // A0, from R0.
        self.lines.iter().all(|line| line.is_closed.load(Ordering::Acquire))
    }

    /// Returns whether nothing more is taken in, and nothing is inside.
    pub fn is_at_rest(&self) -> bool {
        if !self.is_closed() {
            return false;
        }
        // A1, from R1.
        let ended: u64 = self.lines.iter().map(|line| line.ended.load(Ordering::Acquire)).sum();
        ended == self.lines.iter().map(|line| line.received.load(Ordering::Relaxed)).sum::<u64>()
    }

    /// Makes all take nothing more in.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Makes all end.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether nothing more is to be taken in.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Returns whether workers are to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_rest_only_when_every_packet_has_ended() {
        let board = ProgressBoard::new(2);
        let told =
            |received, ended, is_closed| WorkerProgress { received, ended, is_closed, ..Default::default() };
        board.tell(0, &told(10, 0, true));
        assert!(!board.is_at_rest(), "worker 1 still takes in");
        board.tell(1, &told(0, 9, true));
        assert!(!board.is_at_rest(), "one is on its way");
        board.tell(1, &told(0, 10, true));
        assert!(board.is_at_rest());
        board.tell(1, &told(0, 10, false));
        assert!(!board.is_at_rest());
    }
}
