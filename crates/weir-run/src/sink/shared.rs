//! What the workers of a path tell each other besides packets: counters, full queues, and who waits for credit.
//!
//! A generator has credit while there are frames to spare and no queue is full that its packets may come to.
//!
//! Rule (invariant 3, for credit): a worker that parks without it says so ([`weir_ring::hungry`]); whoever gives frames back or has
//! room in a queue again hands it a word.
//!
//! The workers of [`crate::sink`] use it too: there who polls queues is the generator, and what is full is told beside it.
//!
//! The counters have one writer each, which tells them at the end of a pass. A path is at rest when all generators are done and
//! every packet accepted has ended.
//!
//! Ordering: `R0` (`done`) `<-> A0`: what the generators have made. `R1` (`ended`) `<-> A1`:
//! what was made before it ended, read after it.
//! Limits: a copy of `full` may be old. That lets packets past the limit; it loses none. A copy that a bridge has made in
//! a pass still under way may end before it is told of; so a path can seem at rest with a packet inside, which is then counted
//! as held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_ring::hungry::Hungry;

/// The words of one worker, on lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Words {
    accepted: AtomicU64,
    ended: AtomicU64,
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
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
    /// For each end of a link whether its queue is full. Written seldom.
    full: Box<[AtomicBool]>,
    hungry: Hungry<2>,
    stop: Line<AtomicBool>,
    end: Line<AtomicBool>,
}

/// What a generator waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Frames to spare.
    Frames,
    /// Room in a queue.
    Room,
}

#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

impl Shared {
    /// For so many workers and ends of links.
    pub fn new(workers: usize, ends: usize) -> Shared {
        Shared {
            workers: (0..workers).map(|_| Words::default()).collect(),
            full: (0..ends).map(|_| AtomicBool::default()).collect(),
            hungry: Hungry::new(),
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

    /// Says whether the queue of an end is full; its owner's alone.
    pub fn set_full(&self, end: u16, full: bool) {
        self.full[usize::from(end)].store(full, Ordering::Relaxed);
    }

    /// Whether none of these ends is full.
    #[inline]
    pub fn is_open(&self, ends: &[u16]) -> bool {
        !ends.iter().any(|&end| self.full[usize::from(end)].load(Ordering::Relaxed))
    }

    /// Says that this worker will park for want of something; it looks for that once more after it has parked.
    pub fn set_hungry(&self, worker: usize, want: Want) {
        self.hungry.set(worker, want as usize);
    }

    /// Says that there are frames, or room, or both, again. The other workers that wait for it are returned, each once, to be told.
    pub fn take_hungry(&self, worker: usize, frames: bool, room: bool) -> u64 {
        self.hungry.take(worker, [frames, room])
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
        let shared = Shared::new(2, 0);
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
    fn a_full_queue_closes_only_what_leads_to_it() {
        let shared = Shared::new(1, 4);
        shared.set_full(2, true);
        assert!(shared.is_open(&[0, 1, 3]) && !shared.is_open(&[1, 2]));
        shared.set_full(2, false);
        assert!(shared.is_open(&[1, 2]));
    }
}
