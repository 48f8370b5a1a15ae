//! The bytes that wait in front of a queue without a socket that could be held for them: forwarded or bridged packets.
//!
//! The program at the sending end counts the bytes that it lets into the queue, in order: all of them, and those that are forwarded. The
//! queue takes from the front and cannot tell one from the other. But the two counts, noted together now and then, are a curve:
//!
//! ```text
//! forwarded  |            . now
//!            |        x     noted: when `all` stood here, so much of it was forwarded
//!            |  x
//!            +----------------- all
//!                  ^ taken: so the bytes forwarded up to the last note before it have gone
//! ```
//!
//! Rule: waiting = forwarded so far - forwarded at the last note that has been taken; never less than the bytes that wait, and too much by
//! one [`STEP_BYTES`] at most. A packet that is lost in between, behind the program and before the queue, was let in and never comes: a
//! queue that is found empty [`EMPTY_LOOKS`] times has taken all that was let in before the first of them.
//!
//! Units: the bytes of a frame and [`OVERHEAD_BYTES`] for the kernel's own, so about what it keeps in memory. All counts wrap at 2^32.
//!
//! Owner: the queue's worker. Limits: packets lost with a queue that somebody replaces are taken for waiting until the queue is empty once.
//! Processors that look at the same moment may each let one packet in beyond the bound. A packet that is cut into other segments than its
//! sender said is put right the same way.

use std::collections::VecDeque;

/// The bytes that the kernel needs for a packet besides its own: `struct sk_buff` and `struct skb_shared_info`.
pub const OVERHEAD_BYTES: u32 = 768;
/// The most bytes that may wait without a socket at a sending end of few queues.
const END_BYTES_MAX: u32 = 16 << 20;
/// The bytes that may wait in one of its queues at least.
const QUEUE_BYTES_MAX_MIN: u32 = 1 << 20;
/// A frame up to this length, in bytes, may wait where longer ones no longer may: address resolution, acknowledgements, pings.
pub const SHORT_BYTES: u32 = 256;
/// The distance between notes, in bytes.
const STEP_BYTES: u32 = 64 << 10;
/// The most notes: they cover far more bytes than may wait.
const NOTES_MAX: usize = 512;
/// The looks that find a queue empty until what was let in before has come or is lost.
const EMPTY_LOOKS: u32 = 8;

/// The bytes that may wait in each of `queues` queues without a socket.
pub const fn bytes_max(queues: usize) -> u32 {
    let share = END_BYTES_MAX / queues as u32;
    if share > QUEUE_BYTES_MAX_MIN { share } else { QUEUE_BYTES_MAX_MIN }
}

/// The bytes that may wait on top of that if a packet is short.
pub const fn reserve_bytes(queues: usize) -> u32 {
    bytes_max(queues) / 8
}

/// The most packets that wait then, the shortest there are.
pub const fn packets_max(queues: usize) -> u32 {
    (bytes_max(queues) + reserve_bytes(queues)) / OVERHEAD_BYTES
}

/// The bytes that the program let in: counts that wrap at 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetIn {
    /// The bytes of all packets.
    pub all: u32,
    /// The bytes of forwarded packets.
    pub forwarded: u32,
}

/// The forwarded bytes that wait in front of a queue; see the head of the file.
#[derive(Debug, Default)]
pub struct Waiting {
    /// The bytes that the queue has taken, as a count of all.
    taken: u32,
    /// The forwarded bytes that no longer wait.
    gone: u32,
    notes: VecDeque<LetIn>,
    /// The counts when the queue was found empty, and how many looks have found it so since.
    empty: Option<(LetIn, u32)>,
}

impl Waiting {
    /// The state of a queue that has nothing in it.
    pub fn new(now: LetIn) -> Waiting {
        Waiting { taken: now.all, gone: now.forwarded, ..Waiting::default() }
    }

    /// Notes that `packets` of `bytes` in all have been taken; returns the count of forwarded bytes that no longer wait.
    pub fn took(&mut self, packets: u32, bytes: u32, now: LetIn) -> u32 {
        let taken = bytes.wrapping_add(packets.wrapping_mul(OVERHEAD_BYTES));
        self.taken = self.taken.wrapping_add(taken);
        // Packets that no program let in were taken, too.
        if is_before(now.all, self.taken) {
            self.taken = now.all;
        }
        // What the queue had been given by then has been taken; kept, that count would be a later one once the counts have wrapped.
        if self.empty.is_some_and(|(then, _)| !is_before(self.taken, then.all)) {
            self.empty = None;
        }
        if packets == 0 {
            self.found_empty(now);
        }
        self.note(now);
        while let Some(&note) = self.notes.front()
            && !is_before(self.taken, note.all)
        {
            self.notes.pop_front();
            self.let_go(note.forwarded);
        }
        if self.taken == now.all {
            self.let_go(now.forwarded);
        }
        self.gone
    }

    fn note(&mut self, now: LetIn) {
        let last = self.notes.back().map_or(self.gone, |note| note.forwarded);
        let is_far = self.notes.back().is_none_or(|note| now.all.wrapping_sub(note.all) >= STEP_BYTES);
        // There is nothing to note if no more is forwarded.
        if now.forwarded != last && is_far && self.notes.len() < NOTES_MAX {
            self.notes.push_back(now);
        }
    }

    fn let_go(&mut self, forwarded: u32) {
        if is_before(self.gone, forwarded) {
            self.gone = forwarded;
        }
    }

    fn found_empty(&mut self, now: LetIn) {
        match &mut self.empty {
            Some((_, looks)) if *looks + 1 < EMPTY_LOOKS => *looks += 1,
            empty => {
                if let Some((then, _)) = empty.replace((now, 0))
                    && is_before(self.taken, then.all)
                {
                    self.taken = then.all;
                    self.let_go(then.forwarded);
                }
            }
        }
    }
}

/// Returns whether one count is before another, both wrapping.
fn is_before(one: u32, other: u32) -> bool {
    one != other && other.wrapping_sub(one) < 1 << 31
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque as Queue;

    use super::*;

    const FRAME: u32 = 1514;
    const COST: u32 = FRAME + OVERHEAD_BYTES;

    /// A queue of packets, forwarded or not, for tests.
    struct Bed {
        queue: Queue<bool>,
        now: LetIn,
        waiting: Waiting,
        gone: u32,
    }

    impl Bed {
        fn new(start: u32) -> Bed {
            let now = LetIn { all: start, forwarded: start };
            Bed { queue: Queue::new(), now, waiting: Waiting::new(now), gone: start }
        }

        fn send(&mut self, forwarded: bool) {
            self.now.all = self.now.all.wrapping_add(COST);
            if forwarded {
                self.now.forwarded = self.now.forwarded.wrapping_add(COST);
            }
            self.queue.push_back(forwarded);
        }

        fn take(&mut self, packets: usize) {
            let packets = packets.min(self.queue.len());
            self.queue.drain(..packets);
            self.gone = self.waiting.took(packets as u32, packets as u32 * FRAME, self.now);
        }

        fn told(&self) -> u32 {
            self.now.forwarded.wrapping_sub(self.gone)
        }

        fn waits(&self) -> u32 {
            self.queue.iter().filter(|forwarded| **forwarded).count() as u32 * COST
        }
    }

    #[test]
    fn what_waits_is_never_told_as_less_and_at_most_a_step_as_more() {
        // The counts wrap, and the mixture changes as the queue is gone through.
        for start in [0, u32::MAX - 100 * COST] {
            let mut bed = Bed::new(start);
            let mut seed = 0x1234_5678u32;
            for round in 0..4000u32 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let share = if round / 500 % 2 == 0 { 10 } else { 200 };
                for packet in 0..seed >> 26 {
                    bed.send(seed.rotate_left(packet) & 0xff < share);
                }
                bed.take((seed >> 20 & 0x3f) as usize);
                assert!(bed.told() >= bed.waits(), "{} told, {} wait", bed.told(), bed.waits());
                // The error is a step, and the packets that come and go between two looks.
                let most = bed.waits() + STEP_BYTES + 2 * 64 * COST;
                assert!(bed.told() <= most, "{} told, {} wait", bed.told(), bed.waits());
            }
            bed.take(usize::MAX);
            assert_eq!(bed.told(), 0);
        }
    }

    #[test]
    fn what_was_lost_on_the_way_is_not_waited_for_for_ever() {
        let mut bed = Bed::new(0);
        (0..50).for_each(|_| bed.send(true));
        bed.queue.clear();
        for _ in 0..2 * EMPTY_LOOKS {
            bed.take(64);
        }
        assert_eq!(bed.told(), 0);
        (0..10).for_each(|_| bed.send(true));
        bed.take(4);
        assert!((bed.waits()..=10 * COST).contains(&bed.told()), "{}", bed.told());
    }

    #[test]
    fn a_backlog_longer_than_the_counts_leaves_nothing_behind() {
        let mut bed = Bed::new(0);
        bed.take(1);
        // More than half of what the counts can tell apart, and the queue is never empty.
        bed.send(true);
        for _ in 0..(5 << 29) / (64 * COST) {
            (0..64).for_each(|_| bed.send(true));
            bed.take(64);
            assert!(bed.told() >= COST && bed.told() <= 2 * STEP_BYTES + 128 * COST, "{}", bed.told());
        }
        for _ in 0..2 * EMPTY_LOOKS {
            bed.take(1);
            assert_eq!(bed.told(), 0);
        }
    }

    #[test]
    fn packets_that_no_program_let_in_make_no_room() {
        let mut bed = Bed::new(0);
        bed.waiting.took(1000, 1000 * FRAME, bed.now);
        (0..10).for_each(|_| bed.send(true));
        bed.take(4);
        assert!(bed.told() >= bed.waits(), "{} told, {} wait", bed.told(), bed.waits());
    }

    #[test]
    fn a_queue_alone_has_all_and_many_have_some_each() {
        assert_eq!(bytes_max(1), 16 << 20);
        assert_eq!(bytes_max(16), 1 << 20);
        assert_eq!(bytes_max(64), 1 << 20);
    }
}
