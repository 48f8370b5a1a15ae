//! The times at which a generator's packets are due: at a rate, or as fast as there is credit.
//!
//! ```text
//! due at t = rate (t - start) - sent         at most BACKLOG_NS worth of it; packets due before are not made up for
//! ```
//!
//! A generator without credit waits: it is the sender that the path holds back. A generator behind a device's ring cannot be held, as the
//! sender on a wire cannot: packets that are due wait in the ring, and those that find it full are missed.
//!
//! Owner: the holder of the generator, such as a [`super::port`]. Times are the path's clock.

use super::flows::Traffic;

/// The end of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The generator is done when it is told.
    Stopped,
    /// The generator is done when it has sent so many packets.
    Packets(u64),
    /// The generator is done after so many nanoseconds.
    Elapsed(u64),
}

/// The task of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenSpec {
    /// The packets of the generator.
    pub traffic: Traffic,
    /// The packets a second; `None` for as many as will go.
    pub packets_per_s: Option<u64>,
    /// The end of the generator.
    pub until: Until,
}

/// The most time of lost sending that a generator makes up for, in nanoseconds.
const BACKLOG_NS: u64 = 100_000_000;

const NS_PER_S: u128 = 1_000_000_000;

/// A generator.
#[derive(Debug)]
pub struct Gen {
    packets_per_s: Option<u64>,
    until: Until,
    /// The time at which the generator was first asked, in nanoseconds.
    start_ns: Option<u64>,
    /// Packets since `start_ns`, skipped ones included, by which the generator is paced.
    paced: u64,
    sent: u64,
    done: bool,
    /// The packets that may wait when they are due, if their sender cannot be held.
    ring_packets: Option<u64>,
    missed: u64,
}

impl Gen {
    /// A generator that starts when it is first asked for due packets.
    pub fn new(packets_per_s: Option<u64>, until: Until) -> Gen {
        Gen {
            packets_per_s,
            until,
            start_ns: None,
            paced: 0,
            sent: 0,
            done: false,
            ring_packets: None,
            missed: 0,
        }
    }

    /// The generator behind a ring of so many packets.
    pub fn with_ring(self, packets: u64) -> Gen {
        Gen { ring_packets: Some(packets), ..self }
    }

    /// The number of packets that are due, at most `max`.
    pub fn due(&mut self, now_ns: u64, max: usize) -> usize {
        let elapsed_ns = now_ns.saturating_sub(*self.start_ns.get_or_insert(now_ns));
        let left = match self.until {
            Until::Stopped => u64::MAX,
            Until::Packets(packets) => packets - self.sent.min(packets),
            Until::Elapsed(ns) if elapsed_ns >= ns => 0,
            Until::Elapsed(_) => u64::MAX,
        };
        self.done |= left == 0;
        if self.done {
            return 0;
        }
        let due = match self.packets_per_s {
            None => u64::MAX,
            Some(rate) => {
                let by_now = packets_in(elapsed_ns, rate);
                let waiting_max = self.ring_packets.unwrap_or(packets_in(BACKLOG_NS, rate).max(1));
                let skipped = by_now.saturating_sub(waiting_max).saturating_sub(self.paced);
                self.paced += skipped;
                self.missed += self.ring_packets.map_or(0, |_| skipped);
                by_now - self.paced.min(by_now)
            }
        };
        due.min(left).min(max as u64) as usize
    }

    /// The time at which the next packet is due, or the generator ends; `None` when that is at once, or never.
    pub fn next_ns(&self) -> Option<u64> {
        let rate = self.packets_per_s.filter(|_| !self.done)?;
        let start_ns = self.start_ns?;
        let after_ns = (u128::from(self.paced) + 1) * NS_PER_S;
        let next_ns = start_ns + after_ns.div_ceil(u128::from(rate.max(1))) as u64;
        Some(match self.until {
            Until::Elapsed(ns) => next_ns.min(start_ns.saturating_add(ns)),
            _ => next_ns,
        })
    }

    /// Notes that the generator has sent packets.
    pub fn note_sent(&mut self, packets: usize) {
        self.sent += packets as u64;
        self.paced += packets as u64;
    }

    /// The number of packets that the generator has sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of packets that were due and found the ring full.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Makes the generator send no more.
    pub fn stop(&mut self) {
        self.done = true;
    }

    /// Returns whether the generator sends no more.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

fn packets_in(ns: u64, packets_per_s: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(packets_per_s) / NS_PER_S).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(packets_per_s: Option<u64>, until: Until) -> Gen {
        let mut generator = Gen::new(packets_per_s, until);
        assert_eq!(generator.next_ns(), None, "it has not started");
        generator.due(1000, 0);
        generator
    }

    #[test]
    fn a_rate_is_kept_to_the_packet() {
        let mut g = generator(Some(3), Until::Stopped);
        let mut now_ns = 1000;
        for sent in 1..=30u64 {
            assert_eq!(g.due(now_ns, 64), 0);
            now_ns = g.next_ns().unwrap();
            assert_eq!(now_ns, 1000 + (sent * 1_000_000_000).div_ceil(3));
            assert_eq!(g.due(now_ns, 64), 1);
            g.note_sent(1);
        }
    }

    #[test]
    fn what_was_missed_is_made_up_for_within_bounds() {
        let mut g = generator(Some(1000), Until::Stopped);
        assert_eq!(g.due(1000 + 50_000_000, 64), 50);
        let late_ns = 1000 + 10_000_000_000;
        assert_eq!(g.due(late_ns, usize::MAX), 100, "a tenth of a second of it");
        g.note_sent(100);
        assert_eq!(g.due(late_ns, usize::MAX), 0);
        assert_eq!(g.next_ns(), Some(late_ns + 1_000_000));
        assert_eq!(g.sent(), 100);
    }

    #[test]
    fn what_finds_the_ring_full_is_missed_and_counted() {
        let mut g = Gen::new(Some(1000), Until::Elapsed(1_000_000_000)).with_ring(8);
        assert_eq!(g.due(0, 64), 0);
        assert_eq!((g.due(5_000_000, 64), g.missed()), (5, 0));
        assert_eq!((g.due(20_000_000, 64), g.missed()), (8, 12), "the oldest were there first");
        g.note_sent(3);
        assert_eq!((g.due(22_000_000, 64), g.missed()), (7, 12), "there was room for two more");
        g.note_sent(7);
        assert_eq!((g.due(22_000_000, 64), g.next_ns()), (0, Some(23_000_000)));
        assert_eq!(g.sent() + g.missed(), 22, "each that was due");
    }

    #[test]
    fn it_ends_when_it_should() {
        let mut g = generator(None, Until::Packets(100));
        assert_eq!(g.due(1000, 64), 64);
        g.note_sent(64);
        assert_eq!(g.due(1000, 64), 36);
        g.note_sent(36);
        assert_eq!((g.due(1000, 64), g.is_done()), (0, true));
        let mut g = generator(Some(1), Until::Elapsed(1500));
        assert_eq!(g.next_ns(), Some(2500), "its end comes before its first packet");
        assert_eq!((g.due(2500, 64), g.is_done(), g.next_ns()), (0, true, None));
        let mut g = generator(None, Until::Stopped);
        g.stop();
        assert_eq!((g.due(u64::MAX, 64), g.is_done()), (0, true));
    }
}
