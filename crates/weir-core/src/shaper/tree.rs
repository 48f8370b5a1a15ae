//! Link sharing: a tree of classes in which leaves send on their own account, or borrow rate that their ancestors have over.
//!
//! Each class has a [`Meter`], which tells its [`ClassMode`]. A leaf may send if it, or an ancestor reached from
//! it through classes that may borrow, can send; that class is the *lender*. Lenders lowest in the tree go
//! first, so
//!
//! ```text
//! a leaf that can send (its own guarantee) goes before any that borrows, and
//! nobody borrows from a class while a class below it could lend or send
//! ```
//!
//! which is the formal link-sharing guideline. Among lenders of one level, lower priority numbers go first; among equals, and from a lender
//! down to the leaf, classes take turns by deficit: borrowed rate is shared in proportion to `quantum_bytes`, at every level of the tree.
//!
//! The search takes constant time: for each priority, a class with packets in or below it is in its parent's *feed*, a ring; one that can
//! send, and has packets to send or a borrower, is in its level's *row*, a ring too. Rings change only when a leaf gets its first packet,
//! loses its last, or a class changes its mode. A mode changes for the worse when a packet is charged, and for the better as time passes:
//! for that each class waits in a queue of times.
//!
//! ```text
//! row of level 63      [root]                          root can send, so it lends
//! feed of root            (A)                          A may borrow
//! feed of A                 (leaf 1, leaf 2)           both may borrow; row of level 0 is empty: no
//!                                                      guarantee is left to send on
//! ```
//!
//! Owner: one worker. Packets of all leaves are in one slab. Source: Devera, *HTB Linux queuing discipline
//! theory*, 2002, and Linux `net/sched/sch_htb.c` (rows, feeds, activation, modes); Floyd and Jacobson,
//! *Link-sharing and resource management models for packet networks*, IEEE/ACM ToN 3(4), 1995, section 3 (the
//! guideline).
//!
//! Limits: the kernel's HTB turns only the ring of the leaf's parent, so that one inner class may keep the rest from borrowing; this turns
//! every ring on the way. A class that can send does so even if its ancestors cannot: the rates of children should not exceed their
//! parent's, or the sum is kept by [`Tree::set_link`] alone. Work for each packet is proportional to the depth. Modes improve up to
//! `2^EVENT_SHIFT` ns late. A packet's `max_wait` is looked at when its leaf's turn comes.

use events::Event;
use rings::Ring;

use super::{
    backlog::{Backlog, Dequeue, QueueRule, Refused},
    blocked::Blocked,
    buckets::{Buckets, NONE},
    slab::Slab,
    token_bucket::TokenBucket,
};
use crate::{
    drops::{Count, DropReason},
    packet::Packet,
    rate::Rate,
};

mod error;
mod events;
mod rings;
mod waits;

pub use error::TreeError;
pub use waits::WaitsFor;

/// The number of priorities, `0..PRIORITIES`; 0 goes first.
pub const PRIORITIES: usize = 8;
/// The greatest depth of a leaf: a root has depth 0.
pub const DEPTH_MAX: usize = 62;
/// The most classes: filters and borrowers number them with 16 bits.
pub const CLASSES_MAX: usize = u16::MAX as usize;

/// The precision of events: modes are looked at again to about a microsecond.
const EVENT_SHIFT: u32 = 10;
/// The number of levels: leaves are level 0, a root is the highest.
const LEVELS: usize = DEPTH_MAX + 2;

/// The present mode of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassMode {
    /// The class may send, and lend to descendants.
    CanSend,
    /// The class may not send on its own account, but may borrow from its parent.
    MayBorrow,
    /// The class may neither send nor borrow.
    CantSend,
}

/// The meter of a class: its limits and its use of them.
pub trait Meter {
    /// The mode, and unless that is `CanSend` the time at which it must be looked at again.
    fn mode(&self, now_ns: u64) -> (ClassMode, u64);
    /// Charges a packet that left through the class. `own` tells that the lender is the class or below it: the packet is part of the
    /// class's own share. Returns whether ancestors are charged too.
    fn charge(&mut self, len_bytes: u32, own: bool, now_ns: u64) -> bool;
}

/// The memory a tree takes at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSize {
    /// The number of classes that there is room for; at most [`CLASSES_MAX`].
    pub classes_max: usize,
    /// The most packets it can hold: all frames that can reach it.
    pub packets_max: usize,
    /// The most bytes one poll of an intake may bring.
    pub poll_budget_bytes: u64,
}

/// The configuration of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafConfig {
    /// The priority, below [`PRIORITIES`]; 0 goes first.
    pub priority: u8,
    /// Flows are numbered `0..flows`.
    pub flows: usize,
    /// Bytes of one flow's turn in the leaf; the longest packet or more.
    pub flow_quantum_bytes: u32,
    /// The bytes that may wait.
    pub limit_bytes: u64,
    /// The rule when they do.
    pub rule: QueueRule,
}

/// A tree, or several: any class without a parent is a root.
#[derive(Debug)]
pub struct Tree<P, M> {
    slab: Slab<P>,
    nodes: Vec<Option<Node<M>>>,
    leaves: Vec<Option<Backlog>>,
    /// The ring of classes that can send, for each level and priority: the one whose turn it is.
    rows: Box<[[u32; PRIORITIES]; LEVELS]>,
    /// The priorities whose ring is not empty, a bit each, for each level.
    row_priorities: [u8; LEVELS],
    /// The levels with such a ring, a bit each.
    row_levels: u64,
    events: Buckets,
    /// The time at which events were last looked at.
    looked_ns: u64,
    link: Option<TokenBucket>,
    poll_budget_bytes: u64,
    held: Count,
}

#[derive(Debug)]
struct Node<M> {
    meter: M,
    mode: ClassMode,
    parent: u32,
    level: u8,
    /// The priorities in the two masks; see the rings module.
    waiting: u8,
    active: u8,
    /// The priority of a leaf.
    priority: u8,
    children: u32,
    quantum_bytes: i64,
    /// The rest of its turn in the feed and in the row.
    deficits: [i64; 2],
    event: Option<Event>,
    /// Its place in its parent's feed and in its row, for each priority at which it is there.
    links: [[Link; PRIORITIES]; 2],
    /// The class whose turn it is in each of its own feeds.
    feeds: [u32; PRIORITIES],
    /// The number of children that borrow from it.
    borrowers: [u16; PRIORITIES],
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
}

impl<P: Packet, M: Meter> Tree<P, M> {
    /// A tree without classes.
    ///
    /// # Panics
    /// When `classes_max` is above [`CLASSES_MAX`].
    pub fn new(size: TreeSize, now_ns: u64) -> Tree<P, M> {
        assert!(size.classes_max <= CLASSES_MAX, "{} classes", size.classes_max);
        Tree {
            slab: Slab::new(size.packets_max),
            nodes: (0..size.classes_max).map(|_| None).collect(),
            leaves: (0..size.classes_max).map(|_| None).collect(),
            rows: Box::new([[NONE; PRIORITIES]; LEVELS]),
            row_priorities: [0; LEVELS],
            row_levels: 0,
            events: Buckets::new(EVENT_SHIFT, now_ns),
            looked_ns: now_ns,
            link: None,
            poll_budget_bytes: size.poll_budget_bytes,
            held: Count::default(),
        }
    }

    /// Adds a class under `parent`: a leaf, or an inner class. Returns its index, the lowest free one.
    pub fn add(
        &mut self,
        parent: Option<usize>,
        meter: M,
        quantum_bytes: u32,
        leaf: Option<LeafConfig>,
        now_ns: u64,
    ) -> Result<usize, TreeError> {
        let index = self.nodes.iter().position(Option::is_none).ok_or(TreeError::TooManyClasses)?;
        if leaf.is_some_and(|leaf| usize::from(leaf.priority) >= PRIORITIES) {
            return Err(TreeError::Priority);
        }
        if quantum_bytes == 0 || leaf.is_some_and(|leaf| leaf.flow_quantum_bytes == 0) {
            return Err(TreeError::Quantum);
        }
        let mut inner_level = LEVELS as u8 - 1;
        if let Some(parent) = parent {
            let above = self.nodes.get_mut(parent).and_then(Option::as_mut).ok_or(TreeError::NoSuchClass)?;
            if above.level == 0 {
                return Err(TreeError::ParentIsLeaf);
            }
            inner_level = above.level - 1;
            if inner_level == 0 && leaf.is_none() {
                return Err(TreeError::TooDeep);
            }
            above.children += 1;
        }
        self.nodes[index] = Some(Node {
            meter,
            mode: ClassMode::CanSend,
            parent: parent.map_or(NONE, |parent| parent as u32),
            level: if leaf.is_some() { 0 } else { inner_level },
            waiting: 0,
            active: 0,
            priority: leaf.map_or(0, |leaf| leaf.priority),
            children: 0,
            quantum_bytes: quantum_bytes.into(),
            deficits: [quantum_bytes.into(); 2],
            event: None,
            links: [[Link { next: NONE, previous: NONE }; PRIORITIES]; 2],
            feeds: [NONE; PRIORITIES],
            borrowers: [0; PRIORITIES],
        });
        self.leaves[index] = leaf.map(|leaf| {
            let LeafConfig { flows, flow_quantum_bytes, limit_bytes, rule, .. } = leaf;
            Backlog::new(flows, flow_quantum_bytes, self.poll_budget_bytes, limit_bytes, rule)
        });
        self.update_mode(index as u32, now_ns);
        Ok(index)
    }

    /// Removes a class without children and without packets; returns the queues of a leaf, with its books and delays.
    pub fn remove(&mut self, class: usize) -> Result<Option<Backlog>, TreeError> {
        let node = self.nodes.get(class).and_then(Option::as_ref).ok_or(TreeError::NoSuchClass)?;
        if node.children > 0 {
            return Err(TreeError::HasChildren);
        }
        if self.leaves[class].as_ref().is_some_and(|leaf| leaf.held().packets > 0) {
            return Err(TreeError::NotEmpty);
        }
        let parent = node.parent;
        self.cancel_event(class as u32);
        if parent != NONE {
            self.node_mut(parent).children -= 1;
        }
        self.nodes[class] = None;
        Ok(self.leaves[class].take())
    }

    /// Changes a class's meter and quantum from now on. Packets, rings and turns stay as they are.
    pub fn change(
        &mut self,
        class: usize,
        quantum_bytes: u32,
        now_ns: u64,
        change: impl FnOnce(&mut M),
    ) -> Result<(), TreeError> {
        let node = self.nodes.get_mut(class).and_then(Option::as_mut).ok_or(TreeError::NoSuchClass)?;
        if quantum_bytes == 0 {
            return Err(TreeError::Quantum);
        }
        node.quantum_bytes = quantum_bytes.into();
        node.deficits = node.deficits.map(|deficit| deficit.min(i64::from(quantum_bytes)));
        change(&mut node.meter);
        self.update_mode(class as u32, now_ns);
        Ok(())
    }

    /// Changes a leaf's priority, limit and rule from now on; its flows and their quantum stay as they were
    /// made.
    pub fn change_leaf(&mut self, class: usize, config: LeafConfig) -> Result<(), TreeError> {
        let leaf = self.leaves.get_mut(class).and_then(Option::as_mut).ok_or(TreeError::NoSuchClass)?;
        if usize::from(config.priority) >= PRIORITIES {
            return Err(TreeError::Priority);
        }
        leaf.set_limit(config.limit_bytes);
        leaf.set_rule(config.rule);
        let active = self.node(class as u32).active != 0;
        if active {
            self.deactivate_leaf(class as u32);
        }
        self.node_mut(class as u32).priority = config.priority;
        if active {
            self.activate_leaf(class as u32);
        }
        Ok(())
    }

    /// Limits the packets that leave the tree as a whole, whatever its classes are allowed: `max(burst, mtu) + rate * t` over every window.
    /// `None` leaves it to the way out.
    pub fn set_link(&mut self, limit: Option<(Rate, u64)>, mtu_bytes: u64, now_ns: u64) {
        self.link = limit.map(|(rate, burst_bytes)| {
            // The bucket admits while not in debt, so the depth is a packet less than the burst.
            let depth_bytes = burst_bytes.saturating_sub(mtu_bytes);
            match self.link.take() {
                Some(mut link) => {
                    link.set_rate(rate, depth_bytes, now_ns);
                    link
                }
                None => TokenBucket::new(rate, depth_bytes, now_ns),
            }
        });
    }

    /// Takes a packet in, to a flow of a leaf.
    ///
    /// # Panics
    /// When there is no such leaf or flow.
    #[inline]
    pub fn enqueue(&mut self, class: usize, flow: usize, packet: P) -> Result<(), Refused<P>> {
        let leaf = self.leaves[class].as_mut().expect("the class is a leaf");
        let len_bytes = packet.len_bytes();
        leaf.enqueue(&mut self.slab, flow, packet)?;
        self.held.add(len_bytes);
        if self.node(class as u32).active == 0 {
            self.activate_leaf(class as u32);
        }
        Ok(())
    }

    /// The packet whose turn it is, if any class may send.
    #[inline]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<P> {
        self.dequeue_after(now_ns, |_, packet| packet.len_bytes())
    }

    /// The packet whose turn it is, where it stands for a queue of unknown content. The bytes that `poll` of a flow brings are charged, so
    /// classes and link go into debt by one poll at most, beyond the debt of a packet.
    #[inline]
    pub fn dequeue_after(&mut self, now_ns: u64, poll: impl FnOnce(usize, &P) -> u32) -> Dequeue<P> {
        // An event is set past the present, so none is due until that moves; unless a class was changed with an older clock, and then the
        // event must not be missed for good.
        if now_ns != self.looked_ns || self.row_levels == 0 {
            self.look_at_due(now_ns);
            self.looked_ns = now_ns;
        }
        let link_ns = self.link.as_ref().map_or(now_ns, |link| link.ready_at(0, now_ns));
        if link_ns > now_ns && self.held.packets > 0 {
            return Dequeue::NotBefore(link_ns);
        }
        if self.row_levels == 0 {
            let next_ns = self.events.next_ns().filter(|_| self.held.packets > 0);
            return next_ns.map_or(Dequeue::Empty, Dequeue::NotBefore);
        }
        let level = self.row_levels.trailing_zeros() as usize;
        let priority = self.row_priorities[level].trailing_zeros() as usize;
        let mut class = self.turn(Ring::Row, self.rows[level][priority], priority);
        self.rows[level][priority] = class;
        while self.node(class).level > 0 {
            let child = self.turn(Ring::Feed, self.node(class).feeds[priority], priority);
            self.node_mut(class).feeds[priority] = child;
            class = child;
        }
        let leaf = self.leaves[class as usize].as_mut().expect("a ring leads to a leaf");
        let outcome = leaf.dequeue(&mut self.slab, now_ns);
        let is_empty = leaf.held().packets == 0;
        match &outcome {
            Dequeue::Packet(flow, packet) => {
                self.held.sub(packet.len_bytes());
                let len_bytes = poll(*flow, packet);
                if let Some(link) = &mut self.link {
                    link.take(len_bytes, now_ns);
                }
                self.take_turns(class, level, priority, len_bytes);
                if is_empty {
                    self.deactivate_leaf(class);
                }
                self.charge(class, level, len_bytes, now_ns);
            }
            Dequeue::Dropped(_, packet) => {
                self.held.sub(packet.len_bytes());
                if is_empty {
                    self.deactivate_leaf(class);
                }
            }
            Dequeue::NotBefore(_) | Dequeue::Empty => {}
        }
        outcome
    }

    /// Takes a packet of a leaf out past its meters, booked as dropped. Repeated until `None` this empties the leaf.
    pub fn drop_next(&mut self, class: usize, reason: DropReason) -> Option<P> {
        let leaf = self.leaves.get_mut(class)?.as_mut()?;
        let packet = leaf.drop_next(&mut self.slab, reason)?;
        let is_empty = leaf.held().packets == 0;
        self.held.sub(packet.len_bytes());
        if is_empty {
            self.deactivate_leaf(class as u32);
        }
        Some(packet)
    }

    /// Takes a packet of a leaf out to put it into another class, off the books here; packets of a flow keep their order.
    pub fn move_next(&mut self, class: usize) -> Option<(usize, P)> {
        let leaf = self.leaves.get_mut(class)?.as_mut()?;
        let (flow, packet) = leaf.move_next(&mut self.slab)?;
        let is_empty = leaf.held().packets == 0;
        self.held.sub(packet.len_bytes());
        if is_empty {
            self.deactivate_leaf(class as u32);
        }
        Some((flow, packet))
    }

    /// Makes room for `classes` more, which takes memory.
    ///
    /// # Panics
    /// When there would then be room for more than [`CLASSES_MAX`].
    pub fn make_room(&mut self, classes: usize) {
        let classes_max = self.classes().count() + classes;
        assert!(classes_max <= CLASSES_MAX, "{classes_max} classes");
        if classes_max > self.nodes.len() {
            self.nodes.resize_with(classes_max, || None);
            self.leaves.resize_with(classes_max, || None);
        }
    }

    /// The bytes that an intake may still bring into a leaf; 0 means its feeders must wait.
    pub fn room_bytes(&self, class: usize) -> u64 {
        let room_bytes = self.leaf(class).map_or(0, Backlog::room_bytes);
        if self.slab.room_packets() == 0 { 0 } else { room_bytes }
    }

    /// A leaf's queues, books and delays.
    pub fn leaf(&self, class: usize) -> Option<&Backlog> {
        self.leaves.get(class)?.as_ref()
    }

    /// The times at which a leaf's feeders were not polled because it was full, to be reported.
    pub fn blocked_mut(&mut self, class: usize) -> Option<&mut Blocked> {
        Some(self.leaves.get_mut(class)?.as_mut()?.blocked_mut())
    }

    /// A class's meter.
    pub fn meter(&self, class: usize) -> Option<&M> {
        Some(&self.nodes.get(class)?.as_ref()?.meter)
    }

    /// A class's quantum.
    pub fn quantum_bytes(&self, class: usize) -> u32 {
        let node = self.nodes.get(class).and_then(Option::as_ref);
        node.map_or(0, |node| u32::try_from(node.quantum_bytes).unwrap_or(u32::MAX))
    }

    /// A class's parent.
    pub fn parent(&self, class: usize) -> Option<usize> {
        let parent = self.nodes.get(class)?.as_ref()?.parent;
        (parent != NONE).then_some(parent as usize)
    }

    /// The indices of all classes.
    pub fn classes(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_some()).map(|(index, _)| index)
    }

    /// The packets that wait in all leaves.
    pub fn held(&self) -> Count {
        self.held
    }

    #[inline]
    fn node(&self, class: u32) -> &Node<M> {
        self.nodes[class as usize].as_ref().expect("rings and parents name classes that are there")
    }

    #[inline]
    fn node_mut(&mut self, class: u32) -> &mut Node<M> {
        self.nodes[class as usize].as_mut().expect("rings and parents name classes that are there")
    }

    /// Charges a packet to its leaf and its ancestors.
    #[inline]
    fn charge(&mut self, leaf: u32, lender_level: usize, len_bytes: u32, now_ns: u64) {
        let mut class = leaf;
        while class != NONE {
            let node = self.node_mut(class);
            let own = usize::from(node.level) >= lender_level;
            let goes_up = node.meter.charge(len_bytes, own, now_ns);
            let parent = node.parent;
            self.update_mode(class, now_ns);
            class = if goes_up { parent } else { NONE };
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
