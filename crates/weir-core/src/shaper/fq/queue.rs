//! What waits in one flow of FQ: a single packet lies in the flow itself, more of them in the slab.
//!
//! Most paced flows hold one packet or none, and are then one cache line with all they have: the slab is not touched. A second
//! packet takes the first along into the slab, and all that follow go there until nothing is left; so the order is kept by
//! construction, at the price of moving one packet for each time that a flow starts to queue.
//!
//! Owner: the flow. Limits: a slab with a slot for every packet that may wait has room for the one that is moved, since what
//! lies in flows takes none; the caller keeps to that number.

use weir_simd::prefetch::prefetch;

use crate::shaper::slab::{Fifo, Slab};

/// The packets of a flow, in the order they came.
#[derive(Debug)]
pub enum Queue<P> {
    /// Nothing waits.
    Empty,
    /// This one waits.
    One(P),
    /// These wait, at least one.
    Many(Fifo),
}

impl<P> Queue<P> {
    /// Puts a packet at the end. Always inlined, because a packet whose address is passed on would be built in memory first and
    /// read back before its parts have arrived there, by way of the shorter path too that does not come here.
    #[inline(always)]
    pub fn push(&mut self, slab: &mut Slab<P>, packet: P) {
        let mut behind = |fifo: &mut Fifo, packet| {
            assert!(slab.push(fifo, packet).is_ok(), "a slot for every packet that may wait");
        };
        match std::mem::replace(self, Queue::Empty) {
            Queue::Empty => *self = Queue::One(packet),
            Queue::One(first) => {
                let mut fifo = Fifo::default();
                behind(&mut fifo, first);
                behind(&mut fifo, packet);
                *self = Queue::Many(fifo);
            }
            Queue::Many(mut fifo) => {
                behind(&mut fifo, packet);
                *self = Queue::Many(fifo);
            }
        }
    }

    /// Takes the first packet out.
    #[inline(always)]
    pub fn pop(&mut self, slab: &mut Slab<P>) -> Option<P> {
        match std::mem::replace(self, Queue::Empty) {
            Queue::Empty => None,
            Queue::One(packet) => Some(packet),
            Queue::Many(mut fifo) => {
                let packet = slab.pop(&mut fifo);
                if !fifo.is_empty() {
                    *self = Queue::Many(fifo);
                }
                packet
            }
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self, Queue::Empty)
    }

    /// Asks for the memory of the first packet, where that is not the flow's own.
    #[inline]
    pub fn prefetch(&self, slab: &Slab<P>) {
        if let Queue::Many(fifo) = self
            && let Some(packet) = slab.front(fifo)
        {
            prefetch(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::shaper::test_packet::TestPacket;

    proptest! {
        /// Against a `VecDeque` for each flow, with no slot more than packets.
        #[test]
        fn packets_leave_in_the_order_they_came_wherever_they_lie(
            operations in prop::collection::vec((0usize..3, any::<bool>()), 1..300),
            packets_max in 1usize..8,
        ) {
            let mut slab = Slab::new(packets_max);
            let mut queues: Vec<Queue<TestPacket>> = (0..3).map(|_| Queue::Empty).collect();
            let mut model = vec![VecDeque::new(); 3];
            for (number, &(flow, push)) in operations.iter().enumerate() {
                if push && model.iter().map(VecDeque::len).sum::<usize>() < packets_max {
                    let packet = TestPacket::new(100, number, 0);
                    queues[flow].push(&mut slab, packet.clone());
                    model[flow].push_back(packet);
                } else {
                    prop_assert_eq!(queues[flow].pop(&mut slab), model[flow].pop_front());
                }
                let in_slab: usize = model.iter().map(VecDeque::len).filter(|&len| len > 1).sum();
                prop_assert!(packets_max - slab.room_packets() >= in_slab);
                for (queue, model) in queues.iter().zip(&model) {
                    prop_assert_eq!(queue.is_empty(), model.is_empty());
                }
            }
        }
    }
}
