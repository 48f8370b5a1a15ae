//! In which order Weir's intake polls the kernel queues that have packets.
//!
//! ```text
//! round:    each queue may bring quantum_bytes in a round, plus what its last poll overshot less
//! order:    queues that became active with some of that left, then the others in turn
//! new round when every active queue has had its quantum
//! ```
//!
//! So a queue that is quiet is polled as soon as there is credit, and one that pauses after each packet to look new
//! gets nothing more than its quantum. (RFC 8290's rule, through the old list once, makes a quiet queue wait a whole
//! round: with 64 floods and polls of 8 full-size packets at 200 Mbit/s that is 31 ms.) Over any time in which two
//! queues are active, what they bring differs by less than two quanta and two polls.
//!
//! Owner: the worker. O(1) for each poll, amortised, if a quantum is as much as a poll may bring.
//! Limits: a poll cannot know lengths before it takes packets, so it may overshoot by one poll; that is carried over.

use std::collections::VecDeque;

/// The queues that have packets, in the order in which they are to be polled.
#[derive(Debug)]
pub struct Intake {
    queues: Vec<Turn>,
    quantum_bytes: i64,
    round: u64,
    /// Became active with a deficit left.
    fresh: VecDeque<usize>,
    /// Wait for their turn in this round.
    current: VecDeque<usize>,
    /// Have had this round's quantum.
    done: VecDeque<usize>,
}

#[derive(Clone, Debug, Default)]
struct Turn {
    active: bool,
    round: u64,
    deficit_bytes: i64,
}

impl Intake {
    /// An order for queues `0..queues`, none of them active.
    pub fn new(queues: usize, quantum_bytes: u32) -> Intake {
        Intake {
            queues: vec![Turn::default(); queues],
            quantum_bytes: i64::from(quantum_bytes),
            round: 1,
            fresh: VecDeque::new(),
            current: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    /// A packet came into `queue`; repeating it changes nothing.
    pub fn activate(&mut self, queue: usize) {
        if self.queues[queue].active {
            return;
        }
        self.queues[queue].active = true;
        if self.deficit_bytes(queue) > 0 {
            self.fresh.push_back(queue);
        } else {
            self.done.push_back(queue);
        }
    }

    /// The queue to poll next; the caller polls it and says what came by [`Self::polled`].
    pub fn next_queue(&mut self) -> Option<usize> {
        loop {
            if let Some(queue) = self.fresh.pop_front().or_else(|| self.current.pop_front()) {
                return Some(queue);
            }
            if self.done.is_empty() {
                return None;
            }
            self.round += 1;
            for _ in 0..self.done.len() {
                if let Some(queue) = self.done.pop_front() {
                    let pays = self.deficit_bytes(queue) > 0;
                    if pays { &mut self.current } else { &mut self.done }.push_back(queue);
                }
            }
        }
    }

    /// A poll of `queue` brought `bytes`; `more` if packets are left in it.
    pub fn polled(&mut self, queue: usize, bytes: u64, more: bool) {
        let turn = &mut self.queues[queue];
        turn.deficit_bytes -= bytes as i64;
        if !more {
            turn.active = false;
        } else if turn.deficit_bytes > 0 {
            self.current.push_front(queue);
        } else {
            self.done.push_back(queue);
        }
    }

    /// What `queue` may still bring in this round.
    fn deficit_bytes(&mut self, queue: usize) -> i64 {
        let turn = &mut self.queues[queue];
        let rounds = (self.round - turn.round) as i64;
        turn.deficit_bytes = turn
            .deficit_bytes
            .saturating_add(self.quantum_bytes.saturating_mul(rounds))
            .min(self.quantum_bytes);
        turn.round = self.round;
        turn.deficit_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls once: the queue, of which `bytes` came and `more` is left.
    fn poll(intake: &mut Intake, bytes: u64, more: bool) -> Option<usize> {
        let queue = intake.next_queue()?;
        intake.polled(queue, bytes, more);
        Some(queue)
    }

    #[test]
    fn a_quiet_queue_comes_first_as_long_as_it_has_not_had_its_quantum() {
        let mut intake = Intake::new(4, 1000);
        assert_eq!(intake.next_queue(), None);
        for flood in [0, 1, 2] {
            intake.activate(flood);
            intake.activate(flood);
        }
        for flood in [0, 1, 2, 0] {
            assert_eq!(poll(&mut intake, 1000, true), Some(flood));
        }
        for _ in 0..3 {
            intake.activate(3);
            assert_eq!(poll(&mut intake, 300, false), Some(3), "quiet, and ahead of those that wait");
        }
        intake.activate(3);
        assert_eq!(poll(&mut intake, 300, false), Some(3), "the last bytes of its quantum");
        intake.activate(3);
        let order: Vec<_> = (0..5).map_while(|_| poll(&mut intake, 1000, true)).collect();
        assert_eq!(order, [1, 2, 0, 3, 1], "then it waits its turn like the others");
    }

    #[test]
    fn what_a_poll_overshoots_is_paid_back() {
        let mut intake = Intake::new(2, 1000);
        intake.activate(0);
        intake.activate(1);
        let mut brought = [0u64; 2];
        for _ in 0..1000 {
            let queue = intake.next_queue().unwrap();
            let bytes = if queue == 0 { 3500 } else { 400 };
            brought[queue] += bytes;
            intake.polled(queue, bytes, true);
            assert!(brought[0].abs_diff(brought[1]) <= 1000 + 3500, "{brought:?}");
        }
    }
}
