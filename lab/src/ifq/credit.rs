//! Credit between the worker that hands packets over and the owner of the device.
//!
//! ```text
//! full    when handed - sent >= limit
//! not     when handed - sent <= limit - limit / 4
//! ```
//!
//! Ordering: `sent` has one writer, the owner, and orders nothing: packets are ordered by their ring.
//! Source: ours; netisr has no way back to its feeder.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many packets the owner has sent, on lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct Sent(AtomicU64);

impl Sent {
    /// The owner: so many since the start.
    pub fn say(&self, sent: u64) {
        self.0.store(sent, Ordering::Relaxed);
    }
}

/// The side that hands packets over.
pub struct Credit {
    limit: u64,
    handed: u64,
    /// What was last seen of the owner's counter.
    sent: u64,
    is_full: bool,
}

impl Credit {
    /// For a queue of that limit.
    pub fn new(limit: usize) -> Credit {
        Credit { limit: limit as u64, handed: 0, sent: 0, is_full: false }
    }

    /// Notes a packet that was handed over.
    pub fn hand(&mut self) {
        self.handed += 1;
    }

    /// Whether the queue is full. The owner's counter is looked at only if that decides it: it costs a cache line.
    pub fn is_full(&mut self, sent: &Sent) -> bool {
        let most = if self.is_full { self.limit - self.limit / 4 } else { self.limit - 1 };
        if self.handed - self.sent > most {
            self.sent = sent.0.load(Ordering::Relaxed);
        }
        self.is_full = self.handed - self.sent > most;
        self.is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_stays_full_until_a_quarter_is_sent() {
        let (sent, mut credit) = (Sent::default(), Credit::new(8));
        for _ in 0..8 {
            assert!(!credit.is_full(&sent));
            credit.hand();
        }
        assert!(credit.is_full(&sent));
        sent.say(1);
        assert!(credit.is_full(&sent));
        sent.say(2);
        assert!(!credit.is_full(&sent));
        (0..2).for_each(|_| credit.hand());
        assert!(credit.is_full(&sent));
    }
}
