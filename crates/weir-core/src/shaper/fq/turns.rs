//! Whose turn it is: the order in which flows of FQ are served, and where each goes when its turn ends.
//!
//! ```text
//! new flows; the round; the rest of the slot that was taken; the old flows, as the next round; the next slot that is due
//! ```
//!
//! A flow that ends its turn with packets goes behind all who became ready before it, or into the wheel if its time has not come.
//!
//! Owner: [`Fq`], whose lists these are.

use super::{
    FLOWS_CACHED, Fq,
    flow::{Flow, NONE, NOT_LISTED},
    wheel::Due,
};
use crate::packet::Packet;

/// A list through the flows.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub head: u32,
    tail: u32,
}

impl<P: Packet> Fq<P> {
    /// The next flow of the slot that was taken, or of one that is due. `None` if the old flows come first, which are the round
    /// then, or if there is nothing of either.
    #[inline]
    pub(super) fn next_due(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(index) = self.wheel.next_of(&mut self.due) {
            return Some(index);
        }
        self.round = std::mem::replace(&mut self.old_flows.head, NONE);
        if self.round != NONE {
            return None;
        }
        if !self.wheel.take_due(now_ns, &mut self.due) {
            return None;
        }
        self.look_ahead();
        self.wheel.next_of(&mut self.due)
    }

    #[inline]
    fn look_ahead(&mut self) {
        if self.flows.len() >= FLOWS_CACHED {
            self.ahead.step(&mut self.wheel, &self.flows);
        }
    }

    /// Puts flows whose time has come to the back of the old ones.
    fn list_due(&mut self, now_ns: u64) {
        let mut due = Due::default();
        while self.wheel.take_due(now_ns, &mut due) {
            self.look_ahead();
            self.list(&mut due);
        }
    }

    /// Puts flows of a slot to the back of the old ones.
    pub(super) fn list(&mut self, due: &mut Due) {
        while let Some(index) = self.wheel.next_of(due) {
            self.old_flows.push(&mut self.flows, index);
        }
    }

    /// Moves the flow at the head on: out of the lists if it is empty and was an old one already or nobody else waits, into the
    /// wheel if its time has not come, else to the back of the old flows, with a quantum if it has used its own.
    pub(super) fn end_turn(&mut self, now_ns: u64) {
        let is_new = self.new_flows.head != NONE;
        let head = if is_new { &mut self.new_flows.head } else { &mut self.round };
        let index = *head;
        let flow = &mut self.flows[index as usize];
        *head = flow.next;
        let in_debt = flow.deficit <= 0;
        if in_debt {
            flow.deficit = flow.deficit.saturating_add(self.quantum_bytes);
        }
        let is_empty = flow.is_empty();
        // A new flow that is empty passes through the old ones, or it could come back as a new one before any of them for ever.
        let nobody_waits = self.round == NONE
            && self.old_flows.head == NONE
            && self.due.is_empty()
            && !self.wheel.is_due(now_ns);
        if is_empty && !in_debt && (!is_new || nobody_waits) {
            flow.next = NOT_LISTED;
        } else if !is_empty && flow.ready_ns > now_ns {
            flow.next = NONE;
            self.wheel.push(flow.ready_ns, index);
        } else {
            // Whoever came due before this goes before it.
            self.list_due(now_ns);
            self.old_flows.push(&mut self.flows, index);
        }
    }
}

impl List {
    /// An empty list.
    pub const EMPTY: List = List { head: NONE, tail: NONE };

    /// Puts a flow, which is on no list, to the end.
    #[inline]
    pub fn push<P>(&mut self, flows: &mut [Flow<P>], index: u32) {
        flows[index as usize].next = NONE;
        if self.head == NONE {
            self.head = index;
        } else {
            flows[self.tail as usize].next = index;
        }
        self.tail = index;
    }
}
