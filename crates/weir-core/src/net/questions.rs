//! The neighbours that are to be asked, and the times at which they are to be asked again.
//!
//! ```text
//! push --> first --pop--> asked --again--> later --pop at its time--> asked --> ...
//! ```
//!
//! A record of `later` is void once its neighbour has been asked since, or has answered: the neighbour's own time tells. Void records go
//! when their time comes, or when there is no room; so `later` holds at most twice as many as can be asked.
//!
//! Owner: the neighbours, with one for known ones and one for unknown ones.

use std::collections::VecDeque;

/// The neighbours to ask; see the head of the file.
#[derive(Debug)]
pub(super) struct Questions {
    first: Vec<u32>,
    /// The neighbours to ask again, in the order of time, as each is asked again after the same time.
    later: VecDeque<(u64, u32)>,
    len_max: usize,
}

impl Questions {
    /// The questions to at most `neighbours_max` neighbours at once.
    pub(super) fn new(neighbours_max: usize) -> Questions {
        let len_max = 2 * neighbours_max;
        Questions { first: Vec::with_capacity(len_max), later: VecDeque::with_capacity(len_max), len_max }
    }

    /// Returns whether one more neighbour may be asked; `is_valid` tells of a record, by its time and its neighbour, whether it still
    /// counts.
    pub(super) fn has_room(&mut self, is_valid: impl Fn(u64, u32) -> bool) -> bool {
        if self.first.len() + self.later.len() >= self.len_max {
            self.later.retain(|&(due_ns, at)| is_valid(due_ns, at));
        }
        self.first.len() + self.later.len() < self.len_max
    }

    /// Notes a neighbour that is to be asked for the first time. There must be room.
    pub(super) fn push(&mut self, at: u32) {
        self.first.push(at);
    }

    /// Notes that a neighbour was asked, and when it is to be asked again. There is room if [`Questions::pop`] gave it.
    pub(super) fn again(&mut self, due_ns: u64, at: u32) {
        self.later.push_back((due_ns, at));
    }

    /// The next neighbour to be asked now, and the time at which it was due if it was asked before.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<(Option<u64>, u32)> {
        if let Some(at) = self.first.pop() {
            return Some((None, at));
        }
        let &(due_ns, at) = self.later.front().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.later.pop_front();
        Some((Some(due_ns), at))
    }

    /// The time at which [`Questions::pop`] is to be called again.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.first.is_empty() { self.later.front().map(|&(due_ns, _)| due_ns) } else { Some(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_questions_come_first_and_void_ones_make_room() {
        let mut questions = Questions::new(2);
        assert_eq!(questions.next_due_ns(), None);
        for at in [1, 2] {
            assert!(questions.has_room(|_, _| true));
            questions.push(at);
        }
        assert_eq!(questions.next_due_ns(), Some(0));
        assert_eq!(questions.pop(0), Some((None, 2)));
        questions.again(10, 2);
        assert_eq!(questions.pop(0), Some((None, 1)));
        questions.again(11, 1);
        assert_eq!((questions.pop(9), questions.next_due_ns()), (None, Some(10)));
        questions.push(3);
        questions.push(4);
        assert!(!questions.has_room(|_, _| true), "four of them");
        assert!(questions.has_room(|due_ns, at| (due_ns, at) != (10, 2)));
        assert_eq!(
            [0, 0, 20, 20].map(|now_ns| questions.pop(now_ns)),
            [Some((None, 4)), Some((None, 3)), Some((Some(11), 1)), None]
        );
    }
}
