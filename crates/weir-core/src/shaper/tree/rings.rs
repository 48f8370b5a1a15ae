//! The rings of a link-sharing tree: the classes in each, and the class whose turn it is.
//!
//! Each class keeps two masks of priorities:
//!
//! | mask | leaf | inner class |
//! |---|---|---|
//! | `waiting` | a packet waits | its feed is not empty |
//! | `active` | a packet waits | a child borrows from it: is `active` and `MayBorrow` |
//!
//! and is in two kinds of ring:
//!
//! | ring | members | ordered by |
//! |---|---|---|
//! | the feed of its parent | `waiting`, and not `CantSend` | turns; `CanSend` or `MayBorrow` does not matter |
//! | the row of its level | `active`, and `CanSend` | turns |
//!
//! The feed also holds children that can send, because between two loans a child earns its own tokens, sends, and borrows again. Were it
//! taken out and put back at the end each time, the busiest child would hardly ever get its turn to borrow.
//!
//! A lender's feed leads to a leaf that may borrow, whichever members have the turn. A lender is in the lowest row that is not empty, so
//! nothing below any lender can send and is active. A member of the feed leads to a waiting leaf through members; that leaf cannot be one
//! that can send, so it borrows, so its parent is active; that one, unless it is the lender, cannot be one that can send either; and so on
//! up.

use super::{ClassMode, Link, Meter, Node, PRIORITIES, Tree};
use crate::{packet::Packet, shaper::buckets::NONE};

/// The kind of ring, of a class's two sets of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    Feed,
    Row,
}

impl<P: Packet, M: Meter> Tree<P, M> {
    /// Notes that a leaf has got its first packet.
    #[inline]
    pub(super) fn activate_leaf(&mut self, class: u32) {
        let priorities = 1 << self.node(class).priority;
        self.wait(class, priorities);
        self.act(class, priorities);
    }

    /// Notes that a leaf has lost its last packet.
    #[inline]
    pub(super) fn deactivate_leaf(&mut self, class: u32) {
        let priorities = 1 << self.node(class).priority;
        self.stop_acting(class, priorities);
        self.stop_waiting(class, priorities);
    }

    /// Gives a class another mode and so another place.
    #[inline]
    pub(super) fn set_mode(&mut self, class: u32, mode: ClassMode) {
        let &Node { mode: before, waiting, active, .. } = self.node(class);
        self.leave(class, active);
        if mode == ClassMode::CantSend {
            self.leave_feed(class, waiting);
        }
        self.node_mut(class).mode = mode;
        if before == ClassMode::CantSend {
            self.join_feed(class, waiting);
        }
        self.join(class, active);
    }

    /// Notes that packets wait in or below a class for which that is not noted yet, and puts it into its parent's feed.
    fn wait(&mut self, class: u32, priorities: u8) {
        self.node_mut(class).waiting |= priorities;
        if self.node(class).mode != ClassMode::CantSend {
            self.join_feed(class, priorities);
        }
    }

    fn stop_waiting(&mut self, class: u32, priorities: u8) {
        self.node_mut(class).waiting &= !priorities;
        if self.node(class).mode != ClassMode::CantSend {
            self.leave_feed(class, priorities);
        }
    }

    #[inline]
    fn join_feed(&mut self, class: u32, priorities: u8) {
        let parent = self.node(class).parent;
        if parent == NONE {
            return;
        }
        let mut first = 0;
        for priority in bits(priorities) {
            let turn = self.node(parent).feeds[priority];
            first |= u8::from(turn == NONE) << priority;
            let turn = self.ring_insert(Ring::Feed, turn, class, priority);
            self.node_mut(parent).feeds[priority] = turn;
        }
        if first != 0 {
            self.wait(parent, first);
        }
    }

    #[inline]
    fn leave_feed(&mut self, class: u32, priorities: u8) {
        let parent = self.node(class).parent;
        if parent == NONE {
            return;
        }
        let mut last = 0;
        for priority in bits(priorities) {
            let turn = self.ring_remove(Ring::Feed, self.node(parent).feeds[priority], class, priority);
            self.node_mut(parent).feeds[priority] = turn;
            last |= u8::from(turn == NONE) << priority;
        }
        if last != 0 {
            self.stop_waiting(parent, last);
        }
    }

    /// Notes that a class has packets to send, or a child that borrows from it, and passes that on by its mode.
    fn act(&mut self, class: u32, priorities: u8) {
        self.node_mut(class).active |= priorities;
        self.join(class, priorities);
    }

    fn stop_acting(&mut self, class: u32, priorities: u8) {
        self.leave(class, priorities);
        self.node_mut(class).active &= !priorities;
    }

    /// Counts a class that is active at `priorities` among its parent's borrowers, or puts it into its row.
    #[inline]
    fn join(&mut self, class: u32, priorities: u8) {
        let &Node { mode, parent, level, .. } = self.node(class);
        let level = usize::from(level);
        match mode {
            ClassMode::MayBorrow if parent != NONE => {
                let mut first = 0;
                let borrowers = &mut self.node_mut(parent).borrowers;
                for priority in bits(priorities) {
                    borrowers[priority] += 1;
                    first |= u8::from(borrowers[priority] == 1) << priority;
                }
                if first != 0 {
                    self.act(parent, first);
                }
            }
            ClassMode::CanSend if priorities != 0 => {
                for priority in bits(priorities) {
                    self.rows[level][priority] =
                        self.ring_insert(Ring::Row, self.rows[level][priority], class, priority);
                }
                self.row_priorities[level] |= priorities;
                self.row_levels |= 1 << level;
            }
            _ => {}
        }
    }

    #[inline]
    fn leave(&mut self, class: u32, priorities: u8) {
        let &Node { mode, parent, level, .. } = self.node(class);
        let level = usize::from(level);
        match mode {
            ClassMode::MayBorrow if parent != NONE => {
                let mut last = 0;
                let borrowers = &mut self.node_mut(parent).borrowers;
                for priority in bits(priorities) {
                    borrowers[priority] -= 1;
                    last |= u8::from(borrowers[priority] == 0) << priority;
                }
                if last != 0 {
                    self.stop_acting(parent, last);
                }
            }
            ClassMode::CanSend if priorities != 0 => {
                for priority in bits(priorities) {
                    let turn = self.ring_remove(Ring::Row, self.rows[level][priority], class, priority);
                    self.rows[level][priority] = turn;
                    self.row_priorities[level] &= !(u8::from(turn == NONE) << priority);
                }
                self.row_levels &= !(u64::from(self.row_priorities[level] == 0) << level);
            }
            _ => {}
        }
    }

    /// The first class with a deficit above 0, from `class` on around its ring; the classes passed by earn their quantum.
    #[inline]
    pub(super) fn turn(&mut self, ring: Ring, mut class: u32, priority: usize) -> u32 {
        loop {
            let node = self.node_mut(class);
            if node.deficits[ring as usize] > 0 {
                return class;
            }
            node.deficits[ring as usize] += node.quantum_bytes;
            class = node.links[ring as usize][priority].next;
        }
    }

    /// Takes a packet off the deficits of its leaf and of every class up to the lender, and ends the turns of classes that have used
    /// theirs. Bytes sent as a lender do not count against bytes borrowed.
    #[inline]
    pub(super) fn take_turns(&mut self, leaf: u32, lender_level: usize, priority: usize, len_bytes: u32) {
        let mut class = leaf;
        loop {
            let node = self.node_mut(class);
            let (level, parent) = (usize::from(node.level), node.parent);
            let ring = if level == lender_level { Ring::Row } else { Ring::Feed };
            let deficit = &mut node.deficits[ring as usize];
            *deficit -= i64::from(len_bytes);
            if *deficit <= 0 {
                *deficit += node.quantum_bytes;
                let next = node.links[ring as usize][priority].next;
                match ring {
                    Ring::Row => self.rows[level][priority] = next,
                    Ring::Feed => self.node_mut(parent).feeds[priority] = next,
                }
            }
            if ring == Ring::Row {
                return;
            }
            class = parent;
        }
    }

    /// Puts a class at the end of a ring, which is just before the one whose turn it is; returns the latter.
    #[inline]
    fn ring_insert(&mut self, ring: Ring, turn: u32, class: u32, priority: usize) -> u32 {
        if turn == NONE {
            *self.link_mut(ring, class, priority) = Link { next: class, previous: class };
            return class;
        }
        let previous = std::mem::replace(&mut self.link_mut(ring, turn, priority).previous, class);
        self.link_mut(ring, previous, priority).next = class;
        *self.link_mut(ring, class, priority) = Link { next: turn, previous };
        turn
    }

    /// Takes a class out of a ring; returns the class whose turn it is then.
    #[inline]
    fn ring_remove(&mut self, ring: Ring, turn: u32, class: u32, priority: usize) -> u32 {
        let Link { next, previous } = *self.link_mut(ring, class, priority);
        if next == class {
            return NONE;
        }
        self.link_mut(ring, previous, priority).next = next;
        self.link_mut(ring, next, priority).previous = previous;
        if turn == class { next } else { turn }
    }

    #[inline]
    fn link_mut(&mut self, ring: Ring, class: u32, priority: usize) -> &mut Link {
        &mut self.node_mut(class).links[ring as usize][priority]
    }
}

/// The positions of the bits that are set.
#[inline]
fn bits(mut word: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (position < PRIORITIES).then_some(position)
    })
}
