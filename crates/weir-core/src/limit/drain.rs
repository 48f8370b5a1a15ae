//! What has left a leaf of a limit in place, told by its word in the program's memory and the kernel's counters.
//!
//! ```text
//! word       the point of the leaf's service at which its last packet will have gone: each packet changes it
//! gone       all packets up to a word: nothing waits, and none came while the kernel was asked;
//!            all before a word: the kernel has sent the bytes that it had taken when that word was read
//! ```
//!
//! Rule: a leaf is first in, first out, so the packets that were there have gone when as many bytes have. That also holds where other flows
//! keep the leaf full.
//!
//! Limits: the kernel is asked without a lock. A packet between the program and its queue for as long as that takes is not seen.
//!
//! Source: kernel `net/sched/sch_htb.c` (`htb_dequeue_tree` counts what a leaf sends), `sch_fifo.c`.

/// The counters of a leaf's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafTraffic {
    /// The bytes sent.
    pub sent_bytes: u64,
    /// The bytes waiting.
    pub waiting_bytes: u64,
}

/// The packets that have gone from a leaf, by the words that they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departed {
    /// Those of words up to this one.
    UpTo(u64),
    /// Those of words before this one: a packet that has come since may have a word that is hardly more.
    Before(u64),
}

/// What has left one leaf since [`LeafDrain::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafDrain {
    /// The word up to which packets are to go, or have gone.
    word: u64,
    /// The bytes that the leaf has sent then.
    until_bytes: u64,
    is_through: bool,
}

impl LeafDrain {
    /// A leaf that no packet has ever come to.
    pub fn unused() -> LeafDrain {
        LeafDrain { word: 0, until_bytes: 0, is_through: true }
    }

    /// A leaf whose word was `word` before the kernel was asked for `traffic`.
    pub fn new(word: u64, traffic: LeafTraffic) -> LeafDrain {
        let until_bytes = traffic.sent_bytes + traffic.waiting_bytes;
        LeafDrain { word, until_bytes, is_through: false }
    }

    /// Looks again: the word was `before`, then the kernel was asked for `traffic`, then the word was `behind`. Returns what has gone, if
    /// that is news.
    pub fn look(&mut self, before: u64, traffic: LeafTraffic, behind: u64) -> Option<Departed> {
        let is_empty = traffic.waiting_bytes == 0 && before == behind;
        if is_empty {
            let is_news = !self.is_through || self.word != before;
            (self.word, self.is_through) = (before, true);
            is_news.then_some(Departed::UpTo(before))
        } else if !self.is_through && traffic.sent_bytes >= self.until_bytes {
            self.is_through = true;
            Some(Departed::Before(self.word))
        } else {
            None
        }
    }

    /// Returns whether all packets that there were have gone.
    pub fn is_through(&self) -> bool {
        self.is_through
    }

    /// The word up to which its packets have gone once it [`LeafDrain::is_through`], but for those that came since with hardly more.
    pub fn word(&self) -> u64 {
        self.word
    }

    /// Returns whether no packet has come since those that have gone, where the leaf's word is `word`.
    pub fn is_settled(&self, word: u64) -> bool {
        self.is_through && self.word == word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(sent_bytes: u64, waiting_bytes: u64) -> LeafTraffic {
        LeafTraffic { sent_bytes, waiting_bytes }
    }

    #[test]
    fn an_empty_leaf_is_through_unless_a_packet_comes_meanwhile() {
        let mut leaf = LeafDrain::new(70, traffic(1000, 0));
        assert_eq!(leaf.look(70, traffic(1000, 0), 70), Some(Departed::UpTo(70)));
        assert!(leaf.is_through() && leaf.is_settled(70) && !leaf.is_settled(71));
        assert_eq!(leaf.look(70, traffic(1000, 0), 70), None, "it is known");
        assert_eq!(leaf.look(80, traffic(1000, 0), 90), None, "one came");
        assert_eq!(leaf.look(90, traffic(1500, 0), 90), Some(Departed::UpTo(90)), "and has gone");
    }

    #[test]
    fn a_leaf_that_is_always_full_is_through_when_as_much_has_left() {
        let mut leaf = LeafDrain::new(70, traffic(1000, 500));
        for (sent, word) in [(1000, 80), (1400, 90), (1499, 95)] {
            assert_eq!(leaf.look(word, traffic(sent, 500), word), None);
        }
        assert!(!leaf.is_through());
        assert_eq!(
            leaf.look(99, traffic(1500, 500), 99),
            Some(Departed::Before(70)),
            "no further than it was then"
        );
        assert!(leaf.is_through() && !leaf.is_settled(99));
        assert_eq!(leaf.look(110, traffic(9000, 500), 110), None, "later packets may wait");
    }

    /// A queue as the kernel has it, looked at between any two of its steps: what is told to have gone has gone.
    #[test]
    fn nothing_is_told_to_have_gone_that_waits() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut queue, mut word, mut sent, mut told) =
            (std::collections::VecDeque::new(), 0u64, 0u64, [0u64; 2]);
        let mut leaf = LeafDrain::new(word, traffic(0, 0));
        for step in 0..200_000 {
            match next(5) {
                0 | 1 if queue.len() < 6 => {
                    // A full leaf's word hardly changes.
                    word += next(3);
                    queue.push_back((word, 60 + next(1440)));
                }
                0..4 => sent += queue.pop_front().map_or(0, |(_, bytes)| bytes),
                _ => {
                    let waiting = queue.iter().map(|(_, bytes)| bytes).sum();
                    let gone = leaf.look(word, traffic(sent, waiting), word);
                    let first = queue.front().map_or(u64::MAX, |(first, _)| *first);
                    match gone {
                        Some(Departed::UpTo(word)) => assert!(first > word, "step {step}"),
                        Some(Departed::Before(word)) => assert!(first >= word, "step {step}"),
                        None => {}
                    }
                    told[usize::from(waiting > 0)] += u64::from(gone.is_some());
                    if next(9) == 0 {
                        leaf = LeafDrain::new(word, traffic(sent, waiting));
                    }
                }
            }
        }
        assert!(told.iter().all(|count| *count > 100), "{told:?}");
    }
}
