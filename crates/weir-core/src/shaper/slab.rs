//! Memory for waiting packets: one slab of slots, and any number of first-in first-out lists threaded through
//! it.
//!
//! The address space of all slots is taken at start, so that no packet allocates, and they are shared, so that a thousand queues need no
//! more slots than there are packets. Each slot is in exactly one list, the free list or one [`Fifo`], or was never used. The slot that
//! became free last is taken first, and one that was never used last, so that the memory touched is no more than the packets that ever
//! waited: an egress queue has a slot for every frame, and most of many never hold more than a few.
//!
//! A `Fifo` is the number of its first slot and nothing else, so that a queue which is most often empty takes 4 bytes; the first
//! slot remembers the last one. A packet put behind others touches both.
//!
//! Owner: one worker. Limits: a `Fifo` belongs to the slab that filled it; the caller keeps to that.

/// No slot: the end of a list.
const NONE: u32 = u32::MAX;

/// Slots for a fixed number of packets.
#[derive(Debug)]
pub struct Slab<P> {
    /// The slots that were ever used.
    slots: Vec<Slot<P>>,
    packets_max: usize,
    free: u32,
    taken: u32,
}

/// The alignment: with a handle of up to 48 bytes a slot is one cache line, which never lies across two.
#[derive(Debug)]
#[repr(align(64))]
enum Slot<P> {
    /// The slot is in the free list.
    Free { next: u32 },
    /// The slot is in a queue. `tail` is the queue's last slot, if this is its first; else it means nothing.
    Taken { next: u32, tail: u32, packet: P },
}

/// A queue in a slab: packets leave in the order they came.
#[derive(Debug)]
pub struct Fifo {
    /// The first slot; `NONE` when no packet waits.
    head: u32,
}

impl<P> Slab<P> {
    /// A slab with room for `packets_max` packets.
    ///
    /// # Panics
    ///
    /// If `packets_max` is 2^32 - 1 or more.
    pub fn new(packets_max: usize) -> Slab<P> {
        assert!(packets_max < NONE as usize, "slots are numbered with 32 bits");
        Slab { slots: Vec::with_capacity(packets_max), packets_max, free: NONE, taken: 0 }
    }

    /// The number of packets that there is room for, taken or not.
    pub fn packets_max(&self) -> usize {
        self.packets_max
    }

    /// Puts a packet at the end of a queue; gives it back when every slot is taken.
    #[inline(always)]
    pub fn push(&mut self, fifo: &mut Fifo, packet: P) -> Result<(), P> {
        let index = match self.slots.get_mut(self.free as usize) {
            Some(slot @ &mut Slot::Free { next }) => {
                let index = std::mem::replace(&mut self.free, next);
                *slot = Slot::Taken { next: NONE, tail: index, packet };
                index
            }
            _ => self.push_unused(packet)?,
        };
        if fifo.is_empty() {
            fifo.head = index;
        } else if let Some(Slot::Taken { tail, .. }) = self.slots.get_mut(fifo.head as usize) {
            let last = std::mem::replace(tail, index);
            if let Some(Slot::Taken { next, .. }) = self.slots.get_mut(last as usize) {
                *next = index;
            }
        }
        self.taken += 1;
        Ok(())
    }

    /// Puts a packet into a slot that was never used; returns its number.
    #[cold]
    fn push_unused(&mut self, packet: P) -> Result<u32, P> {
        if self.slots.len() == self.packets_max {
            return Err(packet);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot::Taken { next: NONE, tail: index, packet });
        Ok(index)
    }

    /// The first packet of a queue.
    #[inline]
    pub fn front(&self, fifo: &Fifo) -> Option<&P> {
        match self.slots.get(fifo.head as usize)? {
            Slot::Taken { packet, .. } => Some(packet),
            Slot::Free { .. } => None,
        }
    }

    /// The first packet of a queue, to be changed; its length must stay as it is.
    #[inline]
    pub fn front_mut(&mut self, fifo: &Fifo) -> Option<&mut P> {
        match self.slots.get_mut(fifo.head as usize)? {
            Slot::Taken { packet, .. } => Some(packet),
            Slot::Free { .. } => None,
        }
    }

    /// Takes the first packet of a queue out.
    #[inline(always)]
    pub fn pop(&mut self, fifo: &mut Fifo) -> Option<P> {
        let slot = self.slots.get_mut(fifo.head as usize)?;
        match std::mem::replace(slot, Slot::Free { next: self.free }) {
            Slot::Taken { next, tail: last, packet } => {
                self.free = std::mem::replace(&mut fifo.head, next);
                self.taken -= 1;
                if let Some(Slot::Taken { tail, .. }) = self.slots.get_mut(next as usize) {
                    *tail = last;
                }
                Some(packet)
            }
            // The queue is another slab's: a mistake of its owner, and nothing is changed here.
            free @ Slot::Free { .. } => {
                *slot = free;
                None
            }
        }
    }

    /// The number of packets that still fit.
    pub fn room_packets(&self) -> usize {
        self.packets_max - self.taken as usize
    }
}

impl Fifo {
    /// Returns whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo { head: NONE }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::shaper::test_packet::TestPacket;

    proptest! {
        /// The queues against a `VecDeque` each.
        #[test]
        fn queues_share_slots_and_nothing_else(
            operations in prop::collection::vec((0usize..4, any::<bool>(), 1u32..2000), 1..300),
            packets_max in 0usize..20,
        ) {
            let mut slab = Slab::new(packets_max);
            let mut fifos: Vec<Fifo> = (0..4).map(|_| Fifo::default()).collect();
            let mut model = vec![VecDeque::new(); 4];
            for (number, &(queue, push, len_bytes)) in operations.iter().enumerate() {
                let packet = TestPacket::new(len_bytes, number, 0);
                if push {
                    let fits = model.iter().map(VecDeque::len).sum::<usize>() < packets_max;
                    let pushed = slab.push(&mut fifos[queue], packet.clone());
                    prop_assert_eq!(&pushed, &if fits { Ok(()) } else { Err(packet.clone()) });
                    if fits {
                        model[queue].push_back(packet);
                    }
                } else {
                    prop_assert_eq!(slab.pop(&mut fifos[queue]), model[queue].pop_front());
                }
                for (fifo, queue) in fifos.iter().zip(&mut model) {
                    prop_assert_eq!(slab.front(fifo), queue.front());
                    prop_assert_eq!(slab.front_mut(fifo), queue.front_mut());
                    prop_assert_eq!(fifo.is_empty(), queue.is_empty());
                }
                prop_assert_eq!(slab.room_packets(), packets_max - model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
