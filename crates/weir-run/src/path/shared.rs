//! What the workers of a path tell each other besides packets: counters, full queues, and who waits for credit.
//!
//! ```text
//! generator's worker                        any other worker
//! hungry |= me              (H)             gives frames back / is full no longer
//! says PARKED; F2                           F3
//! looks for credit; blocks                  hungry & others, and none full? takes the bits, hands each a word of credit
//! ```
//!
//! Rule (invariant 3, for credit): with both fences one of the two comes first. If F2, the other sees the bit and hands over a
//! word, which wakes the parked worker as any packet does. If F3, the look finds the credit. A word too many costs one look.
//!
//! The counters have one writer each, which tells them at the end of a pass. A path is at rest when all generators are done and
//! every packet accepted has ended.
//!
//! Ordering: F2 is in `weir_ring::doorbell`. `R0` (`done`) `<-> A0`: what the generators have made. `R1` (`ended`) `<-> A1`:
//! what was made before it ended, read after it.
//! Limits: a copy of `full` may be old. That lets packets past the limit; it loses none. A copy that a bridge has made in
//! a pass still under way may end before it is told of; so a path can seem at rest with a packet inside, which is then counted
//! as held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The words of one worker, on lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Words {
    accepted: AtomicU64,
    ended: AtomicU64,
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
    full: AtomicBool,
    done: AtomicBool,
}

/// What a worker tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Packets made.
    pub accepted: u64,
    /// Packets delivered or dropped.
    pub ended: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Whether its generators send no more.
    pub done: bool,
}

/// See the head of the file.
pub struct Shared {
    workers: Box<[Words]>,
    hungry: Line<AtomicU64>,
    stop: Line<AtomicBool>,
    end: Line<AtomicBool>,
}

#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

impl Shared {
    /// For so many workers.
    pub fn new(workers: usize) -> Shared {
        Shared {
            workers: (0..workers).map(|_| Words::default()).collect(),
            hungry: Line::default(),
            stop: Line::default(),
            end: Line::default(),
        }
    }

    /// Publishes the counters of a worker.
    pub fn tell(&self, worker: usize, told: &Told) {
        let words = &self.workers[worker];
        words.accepted.store(told.accepted, Ordering::Relaxed);
        words.delivered.store(told.delivered, Ordering::Relaxed);
        words.delivered_bytes.store(told.delivered_bytes, Ordering::Relaxed);
        // R1, to A1.
        words.ended.store(told.ended, Ordering::Release);
        // R0, to A0.
        words.done.store(told.done, Ordering::Release);
    }

    /// What all have told, together; `done` if all are.
    pub fn told(&self) -> Told {
        self.workers.iter().fold(Told { done: true, ..Told::default() }, |sum, words| Told {
            ended: sum.ended + words.ended.load(Ordering::Relaxed),
            delivered: sum.delivered + words.delivered.load(Ordering::Relaxed),
            delivered_bytes: sum.delivered_bytes + words.delivered_bytes.load(Ordering::Relaxed),
            done: sum.done && words.done.load(Ordering::Relaxed),
            accepted: sum.accepted + words.accepted.load(Ordering::Relaxed),
        })
    }

    /// Whether all generators are done and nothing is inside.
    pub fn is_at_rest(&self) -> bool {
        // A0, from R0.
        if !self.workers.iter().all(|words| words.done.load(Ordering::Acquire)) {
            return false;
        }
        // A1, from R1.
        let ended: u64 = self.workers.iter().map(|words| words.ended.load(Ordering::Acquire)).sum();
        let accepted: u64 = self.workers.iter().map(|words| words.accepted.load(Ordering::Relaxed)).sum();
        ended == accepted
    }

    /// Says whether a queue of this worker is full; true if one was and none is any more.
    pub fn set_full(&self, worker: usize, full: bool) -> bool {
        let was = self.is_full(worker);
        if was != full {
            self.workers[worker].full.store(full, Ordering::Relaxed);
        }
        was && !full
    }

    /// What this worker said last.
    pub fn is_full(&self, worker: usize) -> bool {
        self.workers[worker].full.load(Ordering::Relaxed)
    }

    /// Whether a queue of any worker is full.
    pub fn any_full(&self) -> bool {
        self.workers.iter().any(|words| words.full.load(Ordering::Relaxed))
    }

    /// Says that this worker will park for want of credit; it looks for credit once more after it has parked.
    pub fn set_hungry(&self, worker: usize) {
        // H.
        self.hungry.0.fetch_or(1 << worker, Ordering::SeqCst);
    }

    /// The other workers that wait for credit, if there is some, to be told so; each is returned once. While a queue of any worker
    /// is full there is none, and that worker tells them when it is full no longer.
    pub fn take_hungry(&self, worker: usize) -> u64 {
        // F3: what was given back is visible before the words of others are read (F2 of the worker that parks, F3 of one
        // that is full no longer).
        fence(Ordering::SeqCst);
        let others = !(1u64 << worker);
        if self.hungry.0.load(Ordering::Relaxed) & others == 0 || self.any_full() {
            return 0;
        }
        self.hungry.0.fetch_and(!others, Ordering::Relaxed) & others
    }

    /// Makes all generators stop.
    pub fn stop(&self) {
        self.stop.0.store(true, Ordering::Relaxed);
    }

    /// Makes all workers end. Whoever is parked must be woken.
    pub fn end(&self) {
        self.end.0.store(true, Ordering::SeqCst);
    }

    /// Whether workers are to end.
    pub fn is_ending(&self) -> bool {
        self.end.0.load(Ordering::Relaxed)
    }

    /// Whether generators are to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_rest_only_when_every_packet_is_accounted_for() {
        let shared = Shared::new(2);
        let told = |accepted, ended, done| Told { accepted, ended, done, ..Told::default() };
        shared.tell(0, &told(10, 0, true));
        assert!(!shared.is_at_rest(), "worker 1 has not said that it is done");
        shared.tell(1, &told(0, 9, true));
        assert!(!shared.is_at_rest(), "one is on its way");
        shared.tell(1, &told(0, 10, true));
        assert!(shared.is_at_rest());
        assert_eq!(shared.told(), told(10, 10, true));
        shared.tell(1, &told(0, 10, false));
        assert!(!shared.is_at_rest());
    }

    #[test]
    fn who_is_hungry_is_told_once() {
        let shared = Shared::new(3);
        shared.set_hungry(0);
        shared.set_hungry(2);
        assert_eq!(shared.take_hungry(2), 0b001, "not to itself");
        assert_eq!(shared.take_hungry(1), 0b100);
        assert_eq!(shared.take_hungry(1), 0);
        assert!(!shared.set_full(1, true) && shared.any_full());
        shared.set_hungry(0);
        assert_eq!(shared.take_hungry(2), 0, "worker 1 is full");
        assert!(shared.set_full(1, false) && !shared.any_full());
        assert_eq!(shared.take_hungry(1), 0b001);
    }
}
