//! The packets that have gone from a leaf of a limit in place, told by its word in the program's memory and the kernel's counters.
//!
//! ```text
//! word       the point of the leaf's service at which its last packet will have gone: each packet raises it
//! gone       all packets up to a word: nothing waits, and none came while the kernel was asked;
//!            or the kernel has sent the bytes that it had taken when that word was read
//! ```
//!
//! Rule: a leaf is first in, first out, so the packets that were there have gone when as many bytes have. That also holds where other flows
//! keep the leaf full.
//!
//! Limits: the kernel is asked without a lock. A packet is not seen that is between the program and its queue, or between the queue and its
//! count, for as long as a question takes. The kernel's count of waiting bytes is wrong where it cuts packets, before "net/sched: tbf: correct
//! backlog statistic for GSO packets" (6.13, and stable releases since December 2024); a wrong count that looks right is believed.
//!
//! Source: kernel `net/sched/sch_htb.c` (`htb_dequeue_tree` counts what a leaf sends), `sch_tbf.c`.

use std::ops::Range;

/// The counters of a leaf's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafTraffic {
    sent_bytes: u64,
    waiting_bytes: u64,
}

/// The bytes of the shortest packet and more than those of the longest.
const PACKET_BYTES: Range<u64> = 32..1 << 19;

impl LeafTraffic {
    /// The counters as the kernel tells them. Where bytes cannot be of so many waiting packets, they are of as many of `quantum_bytes` instead,
    /// which is no less than the truth.
    pub fn new(sent_bytes: u64, waiting: u64, waiting_bytes: u64, quantum_bytes: u32) -> LeafTraffic {
        let possible = waiting * PACKET_BYTES.start..waiting * PACKET_BYTES.end;
        let most_bytes = waiting * u64::from(quantum_bytes);
        let waiting_bytes = if possible.contains(&waiting_bytes) { waiting_bytes } else { most_bytes };
        LeafTraffic { sent_bytes, waiting_bytes }
    }
}

/// The drain of one leaf: whether the packets that were there at [`LeafDrain::new`] have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafDrain {
    /// The word up to which packets are to go, or have gone.
    word: u64,
    /// The bytes that the leaf has sent then.
    until_bytes: u64,
    has_gone: bool,
}

impl LeafDrain {
    /// A leaf that no packet has ever come to.
    pub fn unused() -> LeafDrain {
        LeafDrain { word: 0, until_bytes: 0, has_gone: true }
    }

    /// A leaf whose word was `word` before the kernel was asked for `traffic`.
    pub fn new(word: u64, traffic: LeafTraffic) -> LeafDrain {
        let until_bytes = traffic.sent_bytes + traffic.waiting_bytes;
        LeafDrain { word, until_bytes, has_gone: false }
    }

    /// Looks again: the word was `before`, then the kernel was asked for `traffic`, then the word was `behind`. Returns the word up to
    /// which packets have gone, if that is news.
    pub fn look(&mut self, before: u64, traffic: LeafTraffic, behind: u64) -> Option<u64> {
        let is_empty = traffic.waiting_bytes == 0 && before == behind;
        if is_empty {
            let is_news = !self.has_gone || self.word != before;
            (self.word, self.has_gone) = (before, true);
            is_news.then_some(before)
        } else if !self.has_gone && traffic.sent_bytes >= self.until_bytes {
            self.has_gone = true;
            Some(self.word)
        } else {
            None
        }
    }

    /// Returns whether all packets that there were have gone.
    pub fn has_gone(&self) -> bool {
        self.has_gone
    }

    /// Returns whether no packet has come since those that have gone, where the leaf's word is `word`.
    pub fn is_settled(&self, word: u64) -> bool {
        self.has_gone && self.word == word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(sent_bytes: u64, waiting_bytes: u64) -> LeafTraffic {
        LeafTraffic { sent_bytes, waiting_bytes }
    }

    #[test]
    fn a_wrong_count_of_bytes_is_not_believed() {
        assert_eq!(LeafTraffic::new(9, 3, 4500, 1774), traffic(9, 4500));
        // The kernel counted no bytes of cut packets as they came, but as they left.
        for wrong_bytes in [0, 60, u64::from(u32::MAX) - 1500] {
            assert_eq!(LeafTraffic::new(9, 3, wrong_bytes, 1774), traffic(9, 5322));
            assert_eq!(LeafTraffic::new(9, 0, wrong_bytes, 1774), traffic(9, 0));
        }
    }

    #[test]
    fn an_empty_leaf_has_gone_unless_a_packet_comes_meanwhile() {
        let mut leaf = LeafDrain::new(70, traffic(1000, 0));
        assert_eq!(leaf.look(70, traffic(1000, 0), 70), Some(70));
        assert!(leaf.has_gone() && leaf.is_settled(70) && !leaf.is_settled(71));
        assert_eq!(leaf.look(70, traffic(1000, 0), 70), None, "it is known");
        assert_eq!(leaf.look(80, traffic(1000, 0), 90), None, "one came");
        assert_eq!(leaf.look(90, traffic(1500, 0), 90), Some(90), "and has gone");
    }

    #[test]
    fn a_leaf_that_is_always_full_has_gone_when_as_much_has_left() {
        let mut leaf = LeafDrain::new(70, traffic(1000, 500));
        for (sent, word) in [(1000, 80), (1400, 90), (1499, 95)] {
            assert_eq!(leaf.look(word, traffic(sent, 500), word), None);
        }
        assert!(!leaf.has_gone());
        assert_eq!(leaf.look(99, traffic(1500, 500), 99), Some(70), "no further than it was then");
        assert!(leaf.has_gone() && !leaf.is_settled(99));
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
        let (mut queue, mut word, mut sent) = (std::collections::VecDeque::new(), 0u64, 0u64);
        let (mut gone, mut counts) = (0, [0u64; 2]);
        let mut leaf = LeafDrain::new(word, traffic(0, 0));
        for step in 0..200_000 {
            match next(5) {
                0 | 1 if queue.len() < 6 => {
                    word += 1 + next(3);
                    assert!(word > gone, "step {step}");
                    queue.push_back((word, 60 + next(1440)));
                }
                0..4 => sent += queue.pop_front().map_or(0, |(_, bytes)| bytes),
                _ => {
                    // A packet may come, and be sent, while the kernel is asked.
                    let before = word - next(2).min(word);
                    let waiting = queue.iter().map(|(_, bytes)| bytes).sum();
                    if let Some(told) = leaf.look(before, traffic(sent, waiting), word) {
                        assert!(told >= gone, "step {step}");
                        gone = told;
                        assert!(queue.front().is_none_or(|(first, _)| *first > gone), "step {step}");
                        counts[usize::from(waiting > 0)] += 1;
                    }
                    if next(9) == 0 {
                        leaf = LeafDrain::new(word, traffic(sent, waiting));
                    }
                }
            }
        }
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    }
}
