//! Which of a port's queues to poll next, and when to look at one that says it is empty.
//!
//! ```text
//!           announced                 polled, packets came
//!   IDLE ---------------> FRESH ------------------------------> ACTIVE
//!    ^                      | nothing came, TRIES times            | nothing came
//!    +----------------------+--------------------------------------+
//!    |                                                             ^
//!    +---- looked at again, later and later: SUSPECTED ------------+ packets came
//! ```
//!
//! - Fresh queues go first, so that a packet of a quiet flow does not stand behind the turns of those that always have
//!   some. A packet is announced just before it arrives, so a fresh queue is tried [`TRIES`] times; if it still has none,
//!   another queue may have got it, and all are looked at again.
//! - Active queues take turns. A turn that is not taken, for want of room, is kept.
//! - Bounded work per pass (design.md, invariant 6): a pass takes each queue at most once.
//! - No lost wake-up (invariant 3): an idle queue is looked at again after [`RECHECK_NS_MIN`], then four times later each
//!   time, up to [`RECHECK_NS_MAX`] for ever, because a sender may be preempted between announcement and packet.
//!
//! Owner: the worker that owns the port. Limits: it knows nothing of room; the caller stops asking when there is none.

use std::collections::VecDeque;

/// The first look at a queue that has just turned out to be empty, after this many nanoseconds.
pub const RECHECK_NS_MIN: u64 = 100_000;
/// The longest a queue is not looked at, in nanoseconds.
pub const RECHECK_NS_MAX: u64 = 1_000_000_000;

/// How often a fresh queue is polled in vain before its announcement is taken to be another's.
pub const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Announced, and polled so many times in vain.
    Fresh(u8),
    Active,
    /// Idle, but to be looked at.
    Suspected,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    state: State,
    /// It had packets since the last time that all were looked at: one to look at early.
    suspect: bool,
}

/// The turns of one port's queues.
#[derive(Debug)]
pub struct Intake {
    queues: Box<[Queue]>,
    fresh: VecDeque<usize>,
    active: VecDeque<usize>,
    /// How many turns of the present pass are left.
    fresh_left: usize,
    active_left: usize,
    recheck_ns: u64,
    recheck_interval_ns: u64,
    empty_polls: u64,
}

impl Intake {
    /// For a port of `queues` queues, all idle and to be looked at first at `now_ns`.
    pub fn new(queues: usize, now_ns: u64) -> Intake {
        Intake {
            queues: vec![Queue { state: State::Idle, suspect: true }; queues].into_boxed_slice(),
            fresh: VecDeque::with_capacity(queues),
            active: VecDeque::with_capacity(queues),
            fresh_left: 0,
            active_left: 0,
            recheck_ns: now_ns,
            recheck_interval_ns: RECHECK_NS_MIN,
            empty_polls: 0,
        }
    }

    /// Whether nobody knows of a packet in `queue`: its announcements are worth looking at.
    pub fn is_idle(&self, queue: usize) -> bool {
        self.queues[queue].state == State::Idle
    }

    /// Whether any queue is known to have packets.
    pub fn has_work(&self) -> bool {
        !self.fresh.is_empty() || !self.active.is_empty()
    }

    /// Notes that a packet was announced in an idle `queue`.
    pub fn announce(&mut self, queue: usize) {
        if self.queues[queue].state == State::Idle {
            self.queues[queue].state = State::Fresh(0);
            self.fresh.push_back(queue);
        }
    }

    /// Starts a pass: every queue that is known to have packets now gets one turn.
    pub fn begin_pass(&mut self) {
        self.fresh_left = self.fresh.len();
        self.active_left = self.active.len();
    }

    /// The queue that [`Intake::next_fresh`] would give, which keeps its turn.
    pub fn peek_fresh(&self) -> Option<usize> {
        self.fresh.front().copied().filter(|_| self.fresh_left > 0)
    }

    /// The fresh queue whose turn it is in this pass; [`Intake::polled`] must follow.
    pub fn next_fresh(&mut self) -> Option<usize> {
        self.fresh_left = self.fresh_left.checked_sub(1)?;
        self.fresh.pop_front()
    }

    /// The active queue whose turn it is in this pass; [`Intake::polled`] must follow.
    pub fn next_active(&mut self) -> Option<usize> {
        self.active_left = self.active_left.checked_sub(1)?;
        self.active.pop_front()
    }

    /// Notes what a poll of `queue` brought.
    pub fn polled(&mut self, queue: usize, packets: usize, now_ns: u64) {
        if packets > 0 {
            self.queues[queue] = Queue { state: State::Active, suspect: true };
            self.active.push_back(queue);
            return;
        }
        self.empty_polls += 1;
        let state = self.queues[queue].state;
        self.queues[queue].state = State::Idle;
        match state {
            State::Fresh(tries) if tries + 1 < TRIES => {
                self.queues[queue].state = State::Fresh(tries + 1);
                self.fresh.push_back(queue);
                return;
            }
            State::Fresh(_) => self.queues.iter_mut().for_each(|queue| queue.suspect = true),
            // Finding nothing is what was expected.
            State::Suspected => return,
            State::Active | State::Idle => {}
        }
        self.recheck_interval_ns = RECHECK_NS_MIN;
        self.recheck_ns = now_ns + RECHECK_NS_MIN;
    }

    /// When idle queues are to be looked at again, by [`Intake::recheck`].
    pub fn recheck_ns(&self) -> u64 {
        self.recheck_ns
    }

    /// Gives the idle queues that may hide a packet a turn, if it is time; at the longest interval, all of them.
    pub fn recheck(&mut self, now_ns: u64) {
        if now_ns < self.recheck_ns {
            return;
        }
        let all = self.recheck_interval_ns >= RECHECK_NS_MAX;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.state == State::Idle && (queue.suspect || all) {
                queue.state = State::Suspected;
                self.active.push_back(index);
            }
            queue.suspect &= !all;
        }
        self.recheck_interval_ns = (self.recheck_interval_ns * 4).min(RECHECK_NS_MAX);
        self.recheck_ns = now_ns + self.recheck_interval_ns;
    }

    /// How many polls brought nothing.
    pub fn empty_polls(&self) -> u64 {
        self.empty_polls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pass over queues with these packets in them, a poll taking all; which queues were polled.
    fn pass(intake: &mut Intake, waiting: &mut [usize], now_ns: u64) -> Vec<usize> {
        intake.recheck(now_ns);
        intake.begin_pass();
        let mut polled = Vec::new();
        while let Some(queue) =
            intake.peek_fresh().and_then(|_| intake.next_fresh()).or_else(|| intake.next_active())
        {
            polled.push(queue);
            intake.polled(queue, std::mem::take(&mut waiting[queue]), now_ns);
        }
        polled
    }

    /// An intake that has looked at everything once.
    fn settled(queues: usize) -> Intake {
        let mut intake = Intake::new(queues, 0);
        let polled = pass(&mut intake, &mut vec![0; queues], 0);
        assert_eq!(polled, (0..queues).collect::<Vec<_>>(), "what came before is found at the start");
        while intake.recheck_interval_ns < RECHECK_NS_MAX {
            let at_ns = intake.recheck_ns();
            pass(&mut intake, &mut vec![0; queues], at_ns);
        }
        let at_ns = intake.recheck_ns();
        pass(&mut intake, &mut vec![0; queues], at_ns);
        intake
    }

    #[test]
    fn fresh_queues_go_before_active_ones_and_each_gets_one_turn() {
        let mut intake = settled(4);
        for queue in [2, 1] {
            intake.announce(queue);
        }
        assert_eq!(pass(&mut intake, &mut [0, 9, 9, 0], 10), [2, 1]);
        intake.announce(3);
        intake.announce(1);
        assert_eq!(pass(&mut intake, &mut [0, 9, 9, 9], 20), [3, 2, 1], "an active queue is not fresh again");
        assert!(intake.has_work() && intake.is_idle(0) && !intake.is_idle(1));
    }

    #[test]
    fn a_turn_that_is_not_taken_is_kept() {
        let mut intake = settled(3);
        (0..3).for_each(|queue| intake.announce(queue));
        pass(&mut intake, &mut [1, 1, 1], 10);
        intake.begin_pass();
        assert_eq!(intake.next_active(), Some(0));
        intake.polled(0, 1, 20);
        // No room here. In the next pass it is the turn of those that had none.
        assert_eq!(pass(&mut intake, &mut [1, 1, 1], 30), [1, 2, 0]);
    }

    #[test]
    fn a_packet_behind_its_announcement_is_found_in_time() {
        let mut intake = settled(2);
        intake.announce(0);
        for _ in 0..TRIES {
            assert_eq!(pass(&mut intake, &mut [0, 0], 1_000), [0]);
        }
        assert!(pass(&mut intake, &mut [1, 0], 2_000).is_empty(), "given up for now");
        assert_eq!(intake.recheck_ns(), 1_000 + RECHECK_NS_MIN);
        // It may also have gone to another queue, so all are looked at.
        let at_ns = intake.recheck_ns();
        assert_eq!(pass(&mut intake, &mut [1, 1], at_ns), [0, 1]);
    }

    #[test]
    fn empty_queues_are_looked_at_ever_less_but_for_ever() {
        let mut intake = settled(2);
        intake.announce(1);
        pass(&mut intake, &mut [0, 1], 0);
        pass(&mut intake, &mut [0, 0], 0);
        let (mut now_ns, mut looks) = (0, Vec::new());
        for _ in 0..10 {
            let at_ns = intake.recheck_ns();
            looks.push((at_ns - now_ns, pass(&mut intake, &mut [0, 0], at_ns).len()));
            now_ns = at_ns;
        }
        assert_eq!(looks[0], (RECHECK_NS_MIN, 1), "at first only the one that had packets");
        assert!(looks.windows(2).all(|two| two[1].0 == (two[0].0 * 4).min(RECHECK_NS_MAX)));
        assert_eq!(looks[9], (RECHECK_NS_MAX, 2), "at last all of them");
    }
}
