//! How much waits in front of a queue without a socket that could be held for it: what is forwarded, or bridged.
//!
//! The program at the sending end counts what it lets into the queue, in order: all, and of that what is forwarded. The queue takes from the
//! front and cannot tell one from the other. But the two counts, noted together now and then, are a curve:
//!
//! ```text
//! forwarded  |            . now
//!            |        x     noted: when `all` stood here, so much of it was forwarded
//!            |  x
//!            +----------------- all
//!                  ^ taken: so what is forwarded up to the last note before it has gone
//! ```
//!
//! Rule: waiting = forwarded so far - forwarded at the last note that has been taken; never less than what waits, and too much by one
//! [`STEP_BYTES`] at most. What is lost in between, behind the program and before the queue, was let in and never comes: a queue
//! that is found empty [`EMPTY_LOOKS`] times has taken all that was let in before the first of them.
//!
//! Units: the bytes of a frame and [`OVERHEAD_BYTES`] for the kernel's own, so about what it keeps in memory. All counts go round at 2^32.
//!
//! Owner: the queue's worker. Limits: what is lost with a queue that somebody replaces is taken for waiting until the queue is empty
//! once. Processors that look at the same moment may each let one packet in beyond the bound. A packet that is cut into other segments than its sender said is put right the same way.

use std::collections::VecDeque;

/// What the kernel needs for a packet besides its bytes: `struct sk_buff` and `struct skb_shared_info`.
pub const OVERHEAD_BYTES: u32 = 768;
/// What may wait at a sending end of few queues without a socket, in bytes.
const END_BYTES_MAX: u32 = 16 << 20;
/// What may wait in one of its queues at least, in bytes.
const QUEUE_BYTES_MAX_MIN: u32 = 1 << 20;
/// A frame up to this length, in bytes, may wait where longer ones no longer may: address resolution, acknowledgements, pings.
pub const SHORT_BYTES: u32 = 256;
/// How far notes are apart, in bytes.
const STEP_BYTES: u32 = 64 << 10;
/// As many as cover far more than may wait.
const NOTES_MAX: usize = 512;
/// How often a queue is found empty until what was let in before has come or is lost.
const EMPTY_LOOKS: u32 = 8;

/// What may wait in each of `queues` queues without a socket, in bytes.
pub const fn bytes_max(queues: usize) -> u32 {
    let share = END_BYTES_MAX / queues as u32;
    if share > QUEUE_BYTES_MAX_MIN { share } else { QUEUE_BYTES_MAX_MIN }
}

/// And on top of that if a packet is short, in bytes.
pub const fn reserve_bytes(queues: usize) -> u32 {
    bytes_max(queues) / 8
}

/// How many packets wait then at most, the shortest there are.
pub const fn packets_max(queues: usize) -> u32 {
    (bytes_max(queues) + reserve_bytes(queues)) / OVERHEAD_BYTES
}

/// What was let in: counts that go round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetIn {
    /// All, in bytes.
    pub all: u32,
    /// Of that what is forwarded, in bytes.
    pub forwarded: u32,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Waiting {
    /// How far the queue has come, as a count of all.
    taken: u32,
    /// What is forwarded and no longer waits.
    gone: u32,
    notes: VecDeque<LetIn>,
    /// What was let in when the queue was found empty, and how often it has been since.
    empty: Option<(LetIn, u32)>,
}

impl Waiting {
    /// For a queue that has nothing in it.
    pub fn new(now: LetIn) -> Waiting {
        Waiting { taken: now.all, gone: now.forwarded, ..Waiting::default() }
    }

    /// Notes that `packets` of `bytes` in all have been taken; what is forwarded and no longer waits, as a count.
    pub fn took(&mut self, packets: u32, bytes: u32, now: LetIn) -> u32 {
        let taken = bytes.wrapping_add(packets.wrapping_mul(OVERHEAD_BYTES));
        self.taken = self.taken.wrapping_add(taken);
        // What no program let in was taken, too.
        if is_before(now.all, self.taken) {
            self.taken = now.all;
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
        // Where nothing more is forwarded there is nothing to note.
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

/// Whether one count is before another, both going round.
fn is_before(one: u32, other: u32) -> bool {
    one != other && other.wrapping_sub(one) < 1 << 31
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque as Queue;

    use super::*;

    const FRAME: u32 = 1514;
    const COST: u32 = FRAME + OVERHEAD_BYTES;

    /// A queue, of packets that are forwarded or not.
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
        // Counts that go round, and mixtures that change as the queue is gone through.
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
                // A step, and what comes and goes between two looks.
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
