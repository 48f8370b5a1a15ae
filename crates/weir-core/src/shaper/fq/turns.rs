//! Whose turn it is: the order in which flows of FQ are served, and where each goes when its turn ends.
//!
//! ```text
//! new flows; the round; the rest of the slot that was taken; the slots that were due when the first of the old flows was put back;
//! the old flows, as the next round; the other slots that are due
//! ```
//!
//! A flow that ends its turn with packets goes behind all who became ready before it, or into the wheel if its time has not come.
//!
//! Owner: [`Fq`], whose lists these are.

use super::{
    FLOWS_CACHED, Fq,
    flow::{FlowState, NONE, NOT_LISTED, Ticks},
};
use crate::packet::Packet;

/// A list through the flows.
#[derive(Clone, Copy, Debug)]
pub struct List {
    pub head: u32,
    tail: u32,
}

impl<P: Packet> Fq<P> {
    /// Brings flows whose time has come to hand: the rest of the slot that was taken, or the next one that is due. False if the
    /// old flows come first, which are the round then, or if there is nothing of either.
    #[inline]
    pub(super) fn next_due(&mut self, now: Ticks) -> bool {
        if self.take_chunk() {
            return true;
        }
        let old = self.old_flows.head;
        let until = if old == NONE { now } else { now.min(self.old_since) };
        if self.wheel.take_due(until, &mut self.due) {
            return self.take_chunk();
        }
        self.round = std::mem::replace(&mut self.old_flows.head, NONE);
        false
    }

    /// Brings the next chunk of the slot that was taken to hand, and asks for flows that come later.
    #[inline]
    fn take_chunk(&mut self) -> bool {
        let taken = self.wheel.take_chunk(&mut self.due);
        if taken && self.flows.len() >= FLOWS_CACHED {
            for &flow in self.wheel.later(&self.due) {
                self.expect(flow as usize);
            }
        }
        taken
    }

    /// Ends the turn of the flow that is the first of a list.
    pub(super) fn end_listed(&mut self, is_new: bool, now: Ticks) {
        let head = if is_new { &mut self.new_flows.head } else { &mut self.round };
        let index = *head;
        *head = self.flows[index as usize].next;
        self.end_turn(index, is_new, now);
    }

    /// Moves a flow on that has been taken off its list: nowhere if it is empty and was an old one already or nobody else waits,
    /// into the wheel if its time has not come, else to the back of the old flows, with a quantum if it has used its own.
    #[inline]
    pub(super) fn end_turn(&mut self, index: u32, is_new: bool, now: Ticks) {
        let flow = &mut self.flows[index as usize];
        let in_debt = flow.deficit <= 0;
        if in_debt {
            flow.deficit = flow.deficit.saturating_add(self.quantum_bytes);
        }
        let is_empty = flow.is_empty();
        if !is_empty && flow.ready > now {
            flow.next = NONE;
            self.wheel.push(flow.ready, index);
        } else if is_empty && !in_debt && (!is_new || self.nobody_waits(now)) {
            // A new flow that is empty passes through the old ones, or it could come back as a new one before any of them for ever.
            self.flows[index as usize].next = NOT_LISTED;
        } else {
            self.push_old(index, now);
        }
    }

    fn nobody_waits(&self, now: Ticks) -> bool {
        self.round == NONE && self.old_flows.head == NONE && self.due.is_empty() && !self.wheel.is_due(now)
    }

    /// Puts a flow to the back of the old ones, behind whoever came due before this.
    fn push_old(&mut self, index: u32, now: Ticks) {
        if self.old_flows.head == NONE {
            self.old_since = now;
        } else if self.old_since < now {
            self.list_due(now);
        }
        self.old_flows.push(&mut self.flows, index);
    }

    /// Puts those that are due into the list of the old flows, each where it belongs in it.
    fn list_due(&mut self, now: Ticks) {
        // What is left of the slot that was taken stays before them.
        let rest = std::mem::take(&mut self.due);
        let old = std::mem::replace(&mut self.old_flows, List::EMPTY);
        while self.wheel.take_due(self.old_since, &mut self.due) {
            self.list_slot();
        }
        self.old_flows.append(&mut self.flows, old);
        while self.wheel.take_due(now, &mut self.due) {
            self.list_slot();
        }
        self.due = rest;
        self.old_since = now;
    }

    /// Puts what is left of the slot that was taken to the back of the old flows.
    pub(super) fn list_slot(&mut self) {
        loop {
            while let Some(index) = self.due.next() {
                self.old_flows.push(&mut self.flows, index);
            }
            if !self.take_chunk() {
                return;
            }
        }
    }
}

impl List {
    /// An empty list.
    pub const EMPTY: List = List { head: NONE, tail: NONE };

    /// Puts a flow, which is on no list, to the end.
    #[inline]
    pub fn push<P>(&mut self, flows: &mut [FlowState<P>], index: u32) {
        flows[index as usize].next = NONE;
        if self.head == NONE {
            self.head = index;
        } else {
            flows[self.tail as usize].next = index;
        }
        self.tail = index;
    }

    /// Puts a list that is not empty to the end.
    fn append<P>(&mut self, flows: &mut [FlowState<P>], other: List) {
        if self.head == NONE {
            self.head = other.head;
        } else {
            flows[self.tail as usize].next = other.head;
        }
        self.tail = other.tail;
    }
}
