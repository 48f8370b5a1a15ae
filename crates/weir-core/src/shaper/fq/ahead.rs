//! Fetches the memory of flows that come due next, so that a packet does not wait for its flow.
//!
//! The wheel tells which flows are next without touching them. Each time a chunk of them is taken others are asked for, so that
//! [`FLOWS_AHEAD`] at least are on their way; the chunk they stand in was dealt out not long before, and is in a cache.
//!
//! Owner: one [`super::Fq`]. Limits: what is put into a slot after it was asked for is not fetched; that was in a cache when it
//! was put there.

use weir_simd::prefetch::prefetch;

use super::{
    flow::Flow,
    wheel::{Due, End, Wheel},
};

/// How many flows are fetched ahead: some more than a processor has lines on their way from memory.
const FLOWS_AHEAD: usize = 24;

/// After so many it begins anew: flows that were put where it had looked already count as if they had been asked for, and by
/// each of them it is further ahead.
const FLOWS_COUNTED: usize = 256;

/// Up to where memory was asked for.
#[derive(Debug, Default)]
pub struct Ahead {
    /// What is left of the slot that is looked through, and the slot after it.
    list: End,
    slot: u64,
    /// How many flows were asked for and not taken yet.
    flows: usize,
    /// How many were taken since it began where the slot that was taken ends.
    taken: usize,
}

impl Ahead {
    /// Called for each chunk that was taken.
    #[inline]
    pub fn step<P>(&mut self, due: &Due, wheel: &Wheel, flows: &[Flow<P>]) {
        let taken = due.at_hand().len();
        self.taken += taken;
        if self.flows < taken || self.taken > FLOWS_COUNTED {
            *self = Ahead { slot: wheel.begin(), list: due.rest(), flows: 0, taken: 0 };
        } else {
            self.flows -= taken;
        }
        while self.flows < FLOWS_AHEAD {
            let Some((chunk, before)) = wheel.peek(self.list) else {
                let Some((slot, list)) = wheel.first_full(self.slot) else { return };
                (self.slot, self.list) = (slot + 1, list);
                continue;
            };
            self.flows += chunk.len();
            self.list = before;
            for &flow in chunk {
                if let Some(flow) = flows.get(flow as usize) {
                    prefetch(flow);
                }
            }
        }
    }
}
