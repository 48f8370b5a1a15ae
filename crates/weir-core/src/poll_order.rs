//! The order in which a port's queues are polled, and the times of looks at queues that say they are empty.
//!
//! ```text
//!          announced          polled: its share is used up, and there is more
//!   IDLE -------------> FRESH ---------------------------------> ACTIVE
//!    ^ |                 | ^                                       |
//!    | | time for a look | | announced     polled: fewer           |
//!    | +----> SUSPECTED -|-+                                       |
//!    +------------+------+-----------------------------------------+
//! ```
//!
//! - Fair in bytes: in a round each queue brings `quantum_bytes`, exceeded by one poll at the most and then owed. A round ends
//!   when the active queue whose turn it is has used its share up, so all active ones have had theirs. Queues are in groups,
//!   one for each class that they wait for, and each group has rounds of its own: the fast rounds of a class with room would
//!   otherwise forgive the queues of a slow one what they owe each other.
//! - Quiet queues, fresh and then suspected ones, take their share early, so that a packet of a quiet flow does not wait behind the turns
//!   of queues that always have some. A queue that has used its share up waits for the next round among the active.
//! - A turn lasts until the share is used up; a turn that is not taken, for want of room, is kept.
//! - A packet is announced just before it arrives, so a fresh queue is tried [`TRIES`] times; if it still has none, another
//!   queue may have got it, and all are looked at.
//! - Bounded work per pass (ARCHITECTURE.md, invariant 6): a pass takes as many turns as queues were known or suspected to have
//!   packets when it began.
//! - No lost wake-up (invariant 3): a sender may be preempted between announcement and packet. So a queue that turned idle
//!   is looked at again after [`RECHECK_NS_MIN`] and then, four times later each time, [`RECHECKS`] times in all; a fresh
//!   one that had nothing is tried again as soon; and every queue is looked at every [`SWEEP_NS`], for ever. Looks wait for
//!   a time in which no queue turns idle, so that they cost little beside traffic, but [`PUT_OFF_NS_MAX`] at the most.
//! - Some senders announce nothing: an AF_XDP socket at the other end of a pair bypasses its hooks. Where looks have found packets more
//!   often than queues were announced, by [`SILENT_FINDS`], every queue is looked at [`SILENT_SWEEP_NS_MIN`] after a find, and then twice
//!   as late each time, up to [`SILENT_SWEEP_NS_MAX`], until they are announced again.
//!
//! Owner: the worker that owns the port. Limits: the order does not know of room; the caller stops asking when there is none.

use std::collections::VecDeque;

/// The time until the first look at a queue that has just turned idle, in nanoseconds.
pub const RECHECK_NS_MIN: u64 = 100_000;
/// The looks that a queue gets after it turned idle; the last one comes 0.4 s after the one before.
pub const RECHECKS: u8 = 7;
/// The longest time for which queues that turn idle put off looks that are due, in nanoseconds.
pub const PUT_OFF_NS_MAX: u64 = 2_000_000;
/// The longest time for which a queue is not looked at, in nanoseconds.
pub const SWEEP_NS: u64 = 1_000_000_000;
/// The finds by looks, beyond announcements, from which on senders are taken to announce nothing.
pub const SILENT_FINDS: u8 = 1;
/// The shortest time until a look at a queue whose senders announce nothing, in nanoseconds.
pub const SILENT_SWEEP_NS_MIN: u64 = 1_000_000;
/// The longest such time, in nanoseconds.
pub const SILENT_SWEEP_NS_MAX: u64 = 8_000_000;
/// The polls of a fresh queue that find nothing before its announcement is taken to be another's.
pub const TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The queue was announced, and has been polled so many times in vain.
    Fresh(u8),
    Active,
    /// The queue is idle, but to be looked at.
    Suspected,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    state: State,
    /// The looks it still gets after having turned idle.
    looks_left: u8,
    /// The time at which the next look is due; `u64::MAX` for never.
    look_ns: u64,
    group: usize,
    /// The bytes that it has brought in `round` of its group; below 0 in a later one.
    used_bytes: i64,
    round: u64,
}

impl Queue {
    /// Gives the queue all its looks, the first one by `look_ns`.
    fn look_by(&mut self, look_ns: u64) {
        self.looks_left = RECHECKS;
        self.look_ns = self.look_ns.min(look_ns);
    }

    /// Notes a look now; the next one comes four times later than this one came.
    fn looked(&mut self, now_ns: u64) {
        self.looks_left -= 1;
        let looks = u32::from(RECHECKS - self.looks_left);
        self.look_ns = if self.looks_left > 0 { now_ns + (RECHECK_NS_MIN << (2 * looks)) } else { u64::MAX };
    }
}

/// The turns of one port's queues.
#[derive(Debug)]
pub struct PollOrder {
    queues: Box<[Queue]>,
    fresh: VecDeque<usize>,
    suspected: VecDeque<usize>,
    active: VecDeque<usize>,
    /// The turns of the present pass that are left.
    fresh_left: usize,
    active_left: usize,
    quantum_bytes: i64,
    /// Each group's round.
    rounds: Vec<u64>,
    /// The number of queues of each group that are known to have packets, and the groups with such queues, in no order.
    working: Vec<u32>,
    groups_working: Vec<usize>,
    /// The time at which due looks are taken; `u64::MAX` for never.
    recheck_ns: u64,
    /// The time to which that is put off at the most.
    recheck_ns_max: u64,
    sweep_ns: u64,
    /// The finds by looks beyond the announcements, at most twice [`SILENT_FINDS`].
    silent_finds: u8,
    /// The time after which queues of silent senders are looked at next, in nanoseconds.
    silent_pause_ns: u64,
    empty_polls: u64,
    empty_wakes: u64,
}

impl PollOrder {
    /// The order for a port of `queues` queues that each bring `quantum_bytes` a round, in one group, all idle and to be looked at first at
    /// `now_ns`.
    pub fn new(queues: usize, quantum_bytes: u32, now_ns: u64) -> PollOrder {
        let queue =
            Queue { state: State::Idle, looks_left: 0, look_ns: u64::MAX, group: 0, used_bytes: 0, round: 0 };
        PollOrder {
            queues: vec![queue; queues].into_boxed_slice(),
            fresh: VecDeque::with_capacity(queues),
            suspected: VecDeque::with_capacity(queues),
            active: VecDeque::with_capacity(queues),
            fresh_left: 0,
            active_left: 0,
            quantum_bytes: i64::from(quantum_bytes),
            rounds: vec![0],
            working: vec![0],
            groups_working: Vec::with_capacity(1),
            recheck_ns: u64::MAX,
            recheck_ns_max: u64::MAX,
            sweep_ns: now_ns,
            silent_finds: 0,
            silent_pause_ns: SILENT_SWEEP_NS_MIN,
            empty_polls: 0,
            empty_wakes: 0,
        }
    }

    /// Returns whether an announcement of `queue` would change its state.
    pub fn is_quiet(&self, queue: usize) -> bool {
        matches!(self.queues[queue].state, State::Idle | State::Suspected)
    }

    /// Returns whether `queue` has packets, as far as is known, and has not had its turn since they came.
    pub fn is_fresh(&self, queue: usize) -> bool {
        matches!(self.queues[queue].state, State::Fresh(_))
    }

    /// Returns whether any queue is known to have packets.
    pub fn has_work(&self) -> bool {
        !self.groups_working.is_empty()
    }

    /// The groups of queues that are known to have packets.
    pub fn groups_with_work(&self) -> impl Iterator<Item = usize> + '_ {
        self.groups_working.iter().copied()
    }

    /// Notes that a packet was announced in `queue`.
    pub fn announce(&mut self, queue: usize) {
        if self.is_quiet(queue) {
            self.set_state(queue, State::Fresh(0));
            self.fresh.push_back(queue);
            self.silent_finds = self.silent_finds.saturating_sub(1);
        }
    }

    /// Starts a pass at `now_ns`: every queue with packets, known or suspected, gets one turn.
    pub fn begin_pass(&mut self, now_ns: u64) {
        self.suspect(now_ns);
        self.fresh_left = self.fresh.len();
        self.active_left = self.active.len();
    }

    /// Changes the share of a round, from now on.
    pub fn set_quantum_bytes(&mut self, quantum_bytes: u32) {
        self.quantum_bytes = i64::from(quantum_bytes);
    }

    /// Makes room for groups up to `group`, which takes memory.
    pub fn make_room(&mut self, group: usize) {
        let groups = self.rounds.len().max(group + 1);
        self.rounds.resize(groups, 0);
        self.working.resize(groups, 0);
        self.groups_working.reserve(groups - self.groups_working.len());
    }

    /// Puts `queue` into a group that there is room for. The used part of its share goes with it.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    #[inline]
    pub fn set_group(&mut self, queue: usize, group: usize) {
        let is_working = !self.is_quiet(queue);
        let queue = &mut self.queues[queue];
        if queue.group != group {
            let before = std::mem::replace(&mut queue.group, group);
            queue.round = self.rounds[group];
            if is_working {
                self.end_work(before);
                self.begin_work(group);
            }
        }
    }

    /// Sets the state of a queue, and keeps its group's count of working queues.
    fn set_state(&mut self, queue: usize, state: State) {
        let is_working = |state| matches!(state, State::Fresh(_) | State::Active);
        let Queue { state: before, group, .. } = self.queues[queue];
        self.queues[queue].state = state;
        match (is_working(before), is_working(state)) {
            (true, false) => self.end_work(group),
            (false, true) => self.begin_work(group),
            _ => {}
        }
    }

    /// Counts one more queue of a group that is known to have packets.
    fn begin_work(&mut self, group: usize) {
        self.working[group] += 1;
        if self.working[group] == 1 {
            self.groups_working.push(group);
        }
    }

    /// Counts one queue fewer of a group that is known to have packets.
    fn end_work(&mut self, group: usize) {
        self.working[group] -= 1;
        if self.working[group] == 0 {
            self.groups_working.retain(|&other| other != group);
        }
    }

    /// The first quiet queue whose turn it is in this pass and that `may` be polled; [`PollOrder::polled`] must follow.
    pub fn next_quiet(&mut self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let mut at = 0;
        while at < self.fresh_left {
            let queue = self.fresh[at];
            if self.share_left(queue) <= 0 {
                self.fresh.remove(at);
                self.fresh_left -= 1;
                self.queues[queue].state = State::Active;
                self.active.push_back(queue);
                // It may be the only queue: its turn is then in this pass, for nothing would wake the worker to the next.
                self.active_left += 1;
            } else if may(queue) {
                self.fresh_left -= 1;
                return self.fresh.remove(at);
            } else {
                at += 1;
            }
        }
        // A suspected queue that was announced meanwhile has its place among the fresh.
        while let Some(&queue) = self.suspected.front() {
            if self.queues[queue].state == State::Suspected && !may(queue) {
                return None;
            }
            self.suspected.pop_front();
            if self.queues[queue].state == State::Suspected {
                return Some(queue);
            }
        }
        None
    }

    /// The active queue whose turn it is in this pass, of those that `may` be polled; the others keep their places.
    /// [`PollOrder::polled`] must follow.
    pub fn next_active(&mut self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let at = self.active.iter().take(self.active_left).position(|&queue| may(queue))?;
        let queue = self.active.remove(at)?;
        self.active_left -= 1;
        if self.share_left(queue) <= 0 {
            self.rounds[self.queues[queue].group] += 1;
        }
        Some(queue)
    }

    /// The bytes that `queue` may still bring in this round. A queue that owes from an earlier round pays first.
    fn share_left(&mut self, queue: usize) -> i64 {
        let queue = &mut self.queues[queue];
        let round = self.rounds[queue.group];
        if queue.round != round {
            queue.used_bytes = (queue.used_bytes - self.quantum_bytes).clamp(0, self.quantum_bytes - 1);
            queue.round = round;
        }
        self.quantum_bytes - queue.used_bytes
    }

    /// Notes how many packets and bytes a poll of `queue` brought, and whether there may be more.
    pub fn polled(&mut self, queue: usize, packets: usize, bytes: u64, full: bool, now_ns: u64) {
        // Brings the share up to this round.
        self.share_left(queue);
        self.queues[queue].used_bytes += bytes as i64;
        let before = self.queues[queue].state;
        if packets > 0 && before == State::Suspected {
            self.found_by_look(now_ns);
        }
        if full {
            return self.polled_full(queue, packets, bytes);
        }
        if packets == 0 {
            self.empty_polls += 1;
            match before {
                State::Fresh(tries) if tries + 1 < TRIES => {
                    self.set_state(queue, State::Fresh(tries + 1));
                    self.fresh.push_back(queue);
                    return self.recheck_soon(now_ns);
                }
                State::Fresh(_) => {
                    self.queues.iter_mut().for_each(|queue| queue.look_by(now_ns + RECHECK_NS_MIN));
                }
                // A suspected queue was expected to be empty.
                State::Suspected => return self.set_state(queue, State::Idle),
                State::Active => self.empty_wakes += 1,
                State::Idle => {}
            }
        }
        self.set_state(queue, State::Idle);
        // The poll has seen all that an earlier look would have seen.
        self.queues[queue].look_ns = u64::MAX;
        self.queues[queue].look_by(now_ns + RECHECK_NS_MIN);
        self.recheck_soon(now_ns);
    }

    /// Notes that a look has found packets that were not announced.
    fn found_by_look(&mut self, now_ns: u64) {
        self.silent_finds = (self.silent_finds + 1).min(2 * SILENT_FINDS);
        self.silent_pause_ns = SILENT_SWEEP_NS_MIN;
        self.sweep_ns = self.sweep_ns.min(now_ns + self.sweep_pause_ns());
    }

    fn sweep_pause_ns(&self) -> u64 {
        if self.silent_finds >= SILENT_FINDS { self.silent_pause_ns } else { SWEEP_NS }
    }

    /// Gives `queue` its place after a poll that brought as much as it may.
    fn polled_full(&mut self, queue: usize, packets: usize, bytes: u64) {
        let share_left = self.share_left(queue);
        let was_active = self.queues[queue].state == State::Active;
        // A quiet queue brings no more than its share early: another packet like these must fit in the rest of it.
        if !was_active && share_left * packets as i64 >= bytes as i64 {
            self.set_state(queue, State::Fresh(0));
            return self.fresh.push_front(queue);
        }
        self.set_state(queue, State::Active);
        if was_active && share_left > 0 {
            self.active.push_front(queue);
        } else {
            self.active.push_back(queue);
        }
    }

    /// The time at which the next pass is due even if no packet is announced.
    pub fn wake_ns(&self) -> u64 {
        self.recheck_ns.min(self.sweep_ns)
    }

    /// Puts the due looks off to [`RECHECK_NS_MIN`] from now, if they may be.
    fn recheck_soon(&mut self, now_ns: u64) {
        let soon_ns = now_ns + RECHECK_NS_MIN;
        self.recheck_ns_max = self.recheck_ns_max.min(soon_ns + PUT_OFF_NS_MAX);
        self.recheck_ns = soon_ns.min(self.recheck_ns_max);
    }

    /// Suspects the idle queues that are due for a look.
    fn suspect(&mut self, now_ns: u64) {
        if now_ns < self.wake_ns() {
            return;
        }
        let sweep = now_ns >= self.sweep_ns;
        if sweep {
            self.sweep_ns = now_ns + self.sweep_pause_ns();
            self.silent_pause_ns = (2 * self.silent_pause_ns).min(SILENT_SWEEP_NS_MAX);
        }
        self.recheck_ns = u64::MAX;
        self.suspected.clear();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let due = queue.look_ns <= now_ns;
            if queue.state == State::Idle && (sweep || due) {
                queue.state = State::Suspected;
            }
            if queue.state == State::Suspected {
                self.suspected.push_back(index);
            }
            if due {
                queue.looked(now_ns);
            }
            self.recheck_ns = self.recheck_ns.min(queue.look_ns);
        }
        self.recheck_ns_max = self.recheck_ns.saturating_add(PUT_OFF_NS_MAX);
    }

    /// The polls that brought nothing.
    pub fn empty_polls(&self) -> u64 {
        self.empty_polls
    }

    /// The polls among them of a queue that had waited for its turn (invariant 5): its last poll was full and took its last packet, and
    /// none of its senders, which that poll released, has run since. Such a queue cannot be told from one with more.
    pub fn empty_wakes(&self) -> u64 {
        self.empty_wakes
    }
}

#[cfg(test)]
#[path = "poll_order_tests.rs"]
mod tests;
