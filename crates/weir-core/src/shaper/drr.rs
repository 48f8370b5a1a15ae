//! Deficit round robin: flows take turns, and each turn passes a quantum of bytes, whatever the packets' lengths.
//!
//! A flow whose turn it is may send while its `deficit` is above 0, each packet taking its length off; at 0 or below
//! it earns `quantum_bytes` and goes to the back. So a deficit stays in `(-L, quantum]`, `L` the longest packet, and
//! turns of waiting flows differ by at most one. Hence, for any two flows with packets waiting throughout:
//!
//! ```text
//! |sent_i - sent_j| < quantum + L          counted from the moment at which both began to wait together
//! |sent_i - sent_j| < quantum + 2 L        over any interval
//! ```
//!
//! A flow that had nothing waiting is served ahead of the others for one quantum (*new flows first*), so that a quiet
//! flow is not held up by a flood; that one quantum comes on top of the second line. When it empties it must pass
//! through the list of old flows before it counts as new again; a flow cannot starve the others by pausing after each
//! packet.
//!
//! Memory is taken once: a slab of `packets_max` slots, in which each flow's packets are a linked list, and 48 bytes a
//! flow. Order within a flow is the order of arrival. Owner: one worker.
//!
//! Source: Shreedhar and Varghese, *Efficient Fair Queuing using Deficit Round Robin*, SIGCOMM 1995 (fairness bound);
//! RFC 8290 sections 4.1 and 4.2 (new and old flows, and the deficit that may be overdrawn by one packet).
//!
//! Limits: work for each packet is O(1), amortised, when `quantum_bytes >= L`; below that a flow takes `L / quantum`
//! turns for one packet. All flows weigh the same. A flow is a number given by the caller: two streams hashed to one
//! number share its turn.

use crate::{drops::Count, packet::Packet};

/// No slot, no flow: the end of a list.
const NONE: u32 = u32::MAX;

/// FIFO queues of packets, one for each flow, served fairly.
#[derive(Debug)]
pub struct Drr<P> {
    slots: Vec<Slot<P>>,
    /// First free slot.
    free: u32,
    flows: Vec<Flow>,
    new_flows: List,
    old_flows: List,
    quantum_bytes: i64,
    held: Count,
    /// Which busy period this is: it ends when the last packet leaves. A flow listed in an earlier one is not listed.
    busy_period: u64,
}

/// Where a packet waits: invariant: `packet` is `None` exactly in the slots of the free list.
#[derive(Debug)]
struct Slot<P> {
    packet: Option<P>,
    next: u32,
}

/// A flow's queue and its place in the round.
#[derive(Debug)]
struct Flow {
    head: u32,
    tail: u32,
    /// Next flow of the list this one is in.
    next: u32,
    packets: u32,
    bytes: u64,
    deficit: i64,
    /// The busy period in which it was last put on a list or taken off (`NOT_LISTED`).
    listed_in: u64,
}

/// A busy period that never is.
const NOT_LISTED: u64 = u64::MAX;

const _: () = assert!(size_of::<Flow>() <= 48, "the memory of an idle flow, as the header says");

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE };

impl<P: Packet> Drr<P> {
    /// Queues for flows `0..flows` that hold at most `packets_max` packets together. `quantum_bytes` should be the
    /// longest packet or more.
    ///
    /// # Panics
    ///
    /// When `quantum_bytes` is 0, or there are 2^32 - 1 flows or packets or more.
    pub fn new(flows: usize, packets_max: usize, quantum_bytes: u32) -> Drr<P> {
        assert!(quantum_bytes > 0, "a turn must pass something");
        assert!(flows < NONE as usize && packets_max < NONE as usize, "indices have 32 bits");
        let flow = || Flow {
            head: NONE,
            tail: NONE,
            next: NONE,
            packets: 0,
            bytes: 0,
            deficit: 0,
            listed_in: NOT_LISTED,
        };
        let next_free = |index: usize| if index + 1 < packets_max { index as u32 + 1 } else { NONE };
        Drr {
            slots: (0..packets_max).map(|index| Slot { packet: None, next: next_free(index) }).collect(),
            free: if packets_max > 0 { 0 } else { NONE },
            flows: (0..flows).map(|_| flow()).collect(),
            new_flows: EMPTY,
            old_flows: EMPTY,
            quantum_bytes: i64::from(quantum_bytes),
            held: Count::default(),
            busy_period: 0,
        }
    }

    /// Puts a packet at the end of its flow's queue; gives it back when all slots are taken.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    pub fn enqueue(&mut self, flow: usize, packet: P) -> Result<(), P> {
        let Some(slot) = self.slots.get_mut(self.free as usize) else {
            return Err(packet);
        };
        let len_bytes = packet.len_bytes();
        let index = std::mem::replace(&mut self.free, slot.next);
        *slot = Slot { packet: Some(packet), next: NONE };
        let queue = &mut self.flows[flow];
        if queue.packets == 0 {
            queue.head = index;
        } else {
            self.slots[queue.tail as usize].next = index;
        }
        queue.tail = index;
        queue.packets += 1;
        queue.bytes += u64::from(len_bytes);
        self.held.add(len_bytes);
        if queue.listed_in != self.busy_period {
            queue.listed_in = self.busy_period;
            queue.deficit = self.quantum_bytes;
            self.new_flows.push(&mut self.flows, flow as u32);
        }
        Ok(())
    }

    /// The packet [`Self::dequeue`] would give now, with its flow.
    pub fn peek(&mut self) -> Option<(usize, &P)> {
        let flow = self.select()?;
        let head = self.flows[flow].head as usize;
        self.slots[head].packet.as_ref().map(|packet| (flow, packet))
    }

    /// Takes the next packet in fair order, with its flow.
    pub fn dequeue(&mut self) -> Option<(usize, P)> {
        let flow = self.select()?;
        let queue = &mut self.flows[flow];
        let slot = &mut self.slots[queue.head as usize];
        let packet = slot.packet.take()?;
        let len_bytes = packet.len_bytes();
        let next = std::mem::replace(&mut slot.next, self.free);
        self.free = std::mem::replace(&mut queue.head, next);
        queue.packets -= 1;
        queue.bytes -= u64::from(len_bytes);
        queue.deficit -= i64::from(len_bytes);
        self.held.sub(len_bytes);
        if self.held.packets == 0 {
            self.busy_period += 1;
            (self.new_flows, self.old_flows) = (EMPTY, EMPTY);
        } else if queue.deficit <= 0 || queue.packets == 0 {
            // At once, not when it is next looked at: a flow that becomes new meanwhile would get in between, and so
            // get two turns before this one.
            self.end_turn();
        }
        Some((flow, packet))
    }

    /// What waits here.
    pub fn held(&self) -> Count {
        self.held
    }

    /// What waits in one flow's queue.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    pub fn held_of(&self, flow: usize) -> Count {
        let queue = &self.flows[flow];
        Count { packets: u64::from(queue.packets), bytes: queue.bytes }
    }

    /// How many more packets fit.
    pub fn room_packets(&self) -> usize {
        self.slots.len() - self.held.packets as usize
    }

    /// How many flows there are.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The flow whose turn it is; it has a packet and a deficit above 0.
    fn select(&mut self) -> Option<usize> {
        if self.held.packets == 0 {
            return None;
        }
        loop {
            let head = if self.new_flows.head == NONE { self.old_flows.head } else { self.new_flows.head };
            let flow = self.flows.get(head as usize)?;
            if flow.packets > 0 && flow.deficit > 0 {
                return Some(head as usize);
            }
            self.end_turn();
        }
    }

    /// Moves the flow at the head on, by the rules of RFC 8290 section 4.2: one that has used its quantum earns the
    /// next and goes to the back of the old flows; one that has emptied goes there too if it was new, and else leaves.
    fn end_turn(&mut self) {
        let is_new = self.new_flows.head != NONE;
        let list = if is_new { &mut self.new_flows } else { &mut self.old_flows };
        let index = list.head;
        let flow = &mut self.flows[index as usize];
        list.head = flow.next;
        if flow.deficit <= 0 {
            flow.deficit += self.quantum_bytes;
        } else if !is_new {
            flow.listed_in = NOT_LISTED;
            return;
        }
        self.old_flows.push(&mut self.flows, index);
    }
}

impl List {
    fn push(&mut self, flows: &mut [Flow], index: u32) {
        flows[index as usize].next = NONE;
        if self.head == NONE {
            self.head = index;
        } else {
            flows[self.tail as usize].next = index;
        }
        self.tail = index;
    }
}

#[cfg(test)]
mod tests;
