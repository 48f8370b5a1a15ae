//! Credit between the receiver and worker 1, and how a receiver waits for it.
//!
//! Rule: worker 1's queue is full for the receiver while `limit` packets or more are handed off and not done. Full stays full
//! until no more than three quarters of that are left, so that a receiver that sleeps meanwhile wakes once for many packets, and
//! may do so late.
//!
//! ```text
//! full    when handed - done >= limit
//! not     when handed - done <= limit - limit / 4
//! ready   = now + (what is still to be done for that) x the time that worker 1 took for each lately
//! kick    when handed - done <= limit / 4
//! ```
//!
//! The receiver sleeps until `ready` by its own clock. A kick costs worker 1 a system call and an interrupt of another core, so
//! it kicks only a receiver that has slept too long.
//!
//! Ordering: `done` has one writer, worker 1, `wanted` one, the receiver. `F1`: worker 1 stores `done`, passes a full fence,
//! loads `wanted`. `F2`: the receiver stores `wanted`, says PARKED with a full fence (`Doorbell::park`), loads `done`. One of
//! the two sees the other, so no wake-up is lost (invariant 3). Packets themselves are ordered by their ring.
//! Source: ours; netisr has no way back to its feeder.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use weir_ring::doorbell::Ringer;

/// What worker 1 tells the receiver.
pub struct Progress {
    done: Line,
    wanted: Line,
    ringer: Ringer,
}

/// A counter on lines of its own.
#[repr(align(128))]
struct Line(AtomicU64);

impl Progress {
    /// Nothing done, nothing wanted; `ringer` wakes the receiver.
    pub fn new(ringer: Ringer) -> Progress {
        Progress { done: Line(AtomicU64::new(0)), wanted: Line(AtomicU64::new(u64::MAX)), ringer }
    }

    /// Worker 1: so many packets are done since the start, worked on or dropped.
    pub fn say(&self, done: u64) {
        self.done.0.store(done, Ordering::Relaxed);
        // F1.
        fence(Ordering::SeqCst);
        if done >= self.wanted.0.load(Ordering::Relaxed) {
            self.ringer.published();
        }
    }

    /// Receiver: whether what it wants to be woken for has come about.
    pub fn is_reached(&self) -> bool {
        self.done.0.load(Ordering::Relaxed) >= self.wanted.0.load(Ordering::Relaxed)
    }
}

/// The receiver's side.
pub struct Credit {
    limit: u64,
    handed: u64,
    /// What was last seen of worker 1's progress.
    done: u64,
    is_full: bool,
    /// When it became full, and what was done by then.
    full_since: (u64, u64),
    /// How long worker 1 took for each packet, the last time that it was full.
    each_ns: u64,
}

impl Credit {
    /// For a queue of that limit; 0 never is full.
    pub fn new(limit: usize) -> Credit {
        Credit { limit: limit as u64, handed: 0, done: 0, is_full: false, full_since: (0, 0), each_ns: 0 }
    }

    /// Notes a packet that was handed off.
    pub fn hand(&mut self) {
        self.handed += 1;
    }

    /// Whether the queue is full. Worker 1's counter is looked at only if that decides it: it costs a cache line.
    pub fn is_full(&mut self, progress: &Progress, now_ns: u64) -> bool {
        if self.limit == 0 {
            return false;
        }
        let most = if self.is_full { self.low() } else { self.limit - 1 };
        if self.handed - self.done > most {
            self.done = progress.done.0.load(Ordering::Relaxed);
        }
        let is_full = self.handed - self.done > most;
        if is_full != self.is_full {
            self.is_full = is_full;
            let wanted = if is_full { self.handed - self.limit / 4 } else { u64::MAX };
            progress.wanted.0.store(wanted, Ordering::Relaxed);
            match is_full {
                true => self.full_since = (now_ns, self.done),
                false => self.learn(now_ns),
            }
        }
        is_full
    }

    /// When the queue will no longer be full, by what worker 1 did before.
    pub fn ready_ns(&self, now_ns: u64) -> u64 {
        let left = (self.handed - self.done).saturating_sub(self.low());
        now_ns + left * self.each_ns
    }

    /// How many may be left for it to be full no more.
    fn low(&self) -> u64 {
        self.limit - self.limit / 4
    }

    fn learn(&mut self, now_ns: u64) {
        let (since_ns, done) = self.full_since;
        if let Some(each_ns) = now_ns.saturating_sub(since_ns).checked_div(self.done - done) {
            self.each_ns = each_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_ring::doorbell::Doorbell;

    #[test]
    fn full_at_the_limit_and_until_a_quarter_of_it_is_done() {
        let mut doorbell = Doorbell::new().unwrap();
        let progress = Progress::new(doorbell.ringer());
        let mut credit = Credit::new(10);
        for _ in 0..10 {
            assert!(!credit.is_full(&progress, 0));
            credit.hand();
        }
        assert!(credit.is_full(&progress, 0));
        progress.say(1);
        assert!(credit.is_full(&progress, 0) && !progress.is_reached());
        let parked = doorbell.park(|| progress.is_reached()).expect("nothing has come about");
        drop(parked);
        assert_eq!(doorbell.counts().kicks_sent, 0);
        progress.say(2);
        assert!(!progress.is_reached(), "a receiver that looks finds room without a kick");
        assert!(!credit.is_full(&progress, 0));
        progress.say(10);
        assert!(!progress.is_reached(), "nothing more is wanted");
    }

    #[test]
    fn the_time_of_the_next_credit_is_learned() {
        let doorbell = Doorbell::new().unwrap();
        let progress = Progress::new(doorbell.ringer());
        let mut credit = Credit::new(100);
        (0..100).for_each(|_| credit.hand());
        assert!(credit.is_full(&progress, 1000));
        assert_eq!(credit.ready_ns(1000), 1000, "nothing is known yet: look at once");
        progress.say(60);
        assert!(!credit.is_full(&progress, 61_000));
        (0..60).for_each(|_| credit.hand());
        assert!(credit.is_full(&progress, 70_000));
        assert_eq!(credit.ready_ns(70_000), 95_000, "25 packets of 1000 ns each");
    }

    #[test]
    fn a_receiver_that_waits_is_kicked_once() {
        let mut doorbell = Doorbell::new().unwrap();
        let progress = Progress::new(doorbell.ringer());
        let mut credit = Credit::new(4);
        (0..4).for_each(|_| credit.hand());
        assert!(credit.is_full(&progress, 0));
        {
            let parked = doorbell.park(|| progress.is_reached()).expect("nothing has come about");
            (1..=4).for_each(|done| progress.say(done));
            parked.block();
        }
        assert_eq!(doorbell.counts().kicks_sent, 1);
        assert!(!credit.is_full(&progress, 0));
    }

    #[test]
    fn without_a_limit_nothing_is_ever_full() {
        let doorbell = Doorbell::new().unwrap();
        let progress = Progress::new(doorbell.ringer());
        let mut credit = Credit::new(0);
        (0..1000).for_each(|_| credit.hand());
        assert!(!credit.is_full(&progress, 0));
    }
}
