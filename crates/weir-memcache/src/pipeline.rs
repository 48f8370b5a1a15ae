//! The commands of one datagram, whose replies go out in the order in which they were asked for, whichever worker answers first.
//!
//! Rule: the replies of a line have the bounds of one ([`crate::reply`]): behind [`REPLY_BYTES_MAX`] a long one is an error, and together
//! they count where they are more than [`UNCOUNTED_BYTES`], as lines wait for their slowest worker.
//!
//! Owner: one worker. A line's number is given again when the line is done.

use std::sync::Arc;

use crate::budget::{ByteBudget, HeldBytes};
use crate::reply::{REPLY_BYTES_MAX, Reply, UNCOUNTED_BYTES};

/// A reply that stands whatever its line has: the longest to a change of one key, and some.
const ANSWER_BYTES_MAX: usize = 64;

/// The place of a reply: its line, and its request there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyPlace {
    line: u32,
    index: u32,
}

/// Lines under way, each with the client of its replies.
#[derive(Debug)]
pub struct Pipelines<T> {
    lines: Vec<Option<Line<T>>>,
    free: Vec<u32>,
    budget: Arc<ByteBudget>,
}

#[derive(Debug)]
struct Line<T> {
    of: T,
    replies: Vec<Option<Reply>>,
    left: usize,
    is_read: bool,
    /// The bytes of all its replies, those of them that do not count by themselves, and what is held for these.
    bytes: usize,
    uncounted_bytes: usize,
    held: HeldBytes,
}

impl<T> Line<T> {
    /// A reply as the line has it.
    fn admit(&mut self, reply: Reply, budget: &Arc<ByteBudget>) -> Reply {
        let uncounted_bytes = self.uncounted_bytes + if reply.is_counted() { 0 } else { reply.len() };
        let has_room = self.bytes <= REPLY_BYTES_MAX
            && (uncounted_bytes <= UNCOUNTED_BYTES || self.held.raise_to(uncounted_bytes, budget));
        if !has_room && reply.len() > ANSWER_BYTES_MAX {
            return Reply::too_long();
        }
        self.uncounted_bytes = uncounted_bytes;
        reply
    }
}

impl<T> Pipelines<T> {
    /// No lines; long ones take their room of `budget`.
    pub fn new(budget: Arc<ByteBudget>) -> Pipelines<T> {
        Pipelines { lines: Vec::new(), free: Vec::new(), budget }
    }

    /// Begins a line.
    pub fn begin(&mut self, of: T) -> u32 {
        let line = Line {
            of,
            replies: Vec::new(),
            left: 0,
            is_read: false,
            bytes: 0,
            uncounted_bytes: 0,
            held: HeldBytes::default(),
        };
        match self.free.pop() {
            Some(number) => {
                self.lines[number as usize] = Some(line);
                number
            }
            None => {
                self.lines.push(Some(line));
                self.lines.len() as u32 - 1
            }
        }
    }

    /// The place of the line's next reply.
    pub fn ask(&mut self, line: u32) -> ReplyPlace {
        let it = self.line(line);
        it.replies.push(None);
        it.left += 1;
        ReplyPlace { line, index: it.replies.len() as u32 - 1 }
    }

    /// Says that no more is asked for; the line, if all has been answered.
    pub fn end(&mut self, line: u32) -> Option<(T, Reply)> {
        self.line(line).is_read = true;
        self.done(line)
    }

    /// Notes a reply; the line with all of them, if that was the last.
    pub fn answer(&mut self, place: ReplyPlace, reply: Reply) -> Option<(T, Reply)> {
        let it = self.lines[place.line as usize].as_mut().expect("a line stands until all is answered");
        let reply = it.admit(reply, &self.budget);
        it.bytes += reply.len();
        it.replies[place.index as usize] = Some(reply);
        it.left -= 1;
        self.done(place.line)
    }

    fn line(&mut self, line: u32) -> &mut Line<T> {
        self.lines[line as usize].as_mut().expect("a line stands until all is answered")
    }

    fn done(&mut self, number: u32) -> Option<(T, Reply)> {
        let line = self.lines[number as usize].take_if(|line| line.is_read && line.left == 0)?;
        self.free.push(number);
        let mut replies = line.replies.into_iter().flatten();
        let mut all = replies.next().unwrap_or_default();
        all.bytes.reserve_exact(line.bytes - all.len());
        // Each goes when it has been copied.
        replies.for_each(|reply| all.append(reply));
        all.hold(line.held);
        Some((line.of, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::TOO_LONG;

    #[test]
    fn replies_are_in_the_order_of_their_requests() {
        let mut lines = Pipelines::new(ByteBudget::new(0));
        let line = lines.begin("a");
        let (first, second) = (lines.ask(line), lines.ask(line));
        assert!(lines.answer(second, reply(b"2")).is_none());
        assert!(lines.end(line).is_none());
        let other = lines.begin("b");
        assert_ne!(other, line);
        let (of, all) = lines.end(other).unwrap();
        assert_eq!((of, &all[..]), ("b", b"".as_slice()));
        let (of, all) = lines.answer(first, reply(b"1")).unwrap();
        assert_eq!((of, &all[..]), ("a", b"12".as_slice()));
    }

    fn reply(text: &[u8]) -> Reply {
        text.to_vec().into()
    }

    #[test]
    fn short_replies_that_wait_for_a_slow_worker_count_together() {
        let budget = ByteBudget::new(100_000);
        let mut lines = Pipelines::new(Arc::clone(&budget));
        let line = lines.begin(());
        let slow = lines.ask(line);
        let answer = |lines: &mut Pipelines<()>, text: &[u8]| {
            let place = lines.ask(line);
            assert!(lines.answer(place, reply(text)).is_none());
        };
        (0..4).for_each(|_| answer(&mut lines, &[b'x'; 1000]));
        assert_eq!(budget.held_bytes(), 0);
        (0..200).for_each(|_| answer(&mut lines, &[b'x'; 1000]));
        assert!((30_000..=50_000).contains(&budget.held_bytes()), "half of it: {}", budget.held_bytes());
        answer(&mut lines, b"STORED\r\n");
        assert!(lines.end(line).is_none());
        let ((), all) = lines.answer(slow, reply(b"END\r\n")).unwrap();
        assert!(all.starts_with(b"END\r\nx") && all.ends_with(&[TOO_LONG, b"STORED\r\n"].concat()));
        assert!(all.len() <= 50_000 + UNCOUNTED_BYTES + 200 * TOO_LONG.len());
        drop(all);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_line_has_the_bound_of_one_reply() {
        let mut lines = Pipelines::new(ByteBudget::new(1 << 30));
        let line = lines.begin(());
        for _ in 0..50 {
            let place = lines.ask(line);
            assert!(lines.answer(place, vec![b'x'; 1 << 20].into()).is_none());
        }
        let ((), all) = lines.end(line).unwrap();
        assert_eq!(all.len(), REPLY_BYTES_MAX + (1 << 20) + 17 * TOO_LONG.len());
    }
}
