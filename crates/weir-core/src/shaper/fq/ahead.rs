//! Fetches the memory of flows that come due next, so that a packet does not wait for its flow.
//!
//! The wheel tells which flows are next without touching them. Each time a slot is taken those of one more slot are asked for, so
//! that [`SLOTS_AHEAD`] full slots are on their way; by the time they are due their flows have come.
//!
//! Owner: one [`super::Fq`]. Limits: what is put into a slot after it was asked for is not fetched; that was in a cache when it
//! was put there. Of a slot with many flows, only the first chunk is fetched ahead.

use weir_simd::prefetch::prefetch;

use super::{flow::Flow, wheel::Wheel};

/// How many full slots are fetched ahead.
const SLOTS_AHEAD: usize = 4;

/// Up to where memory was asked for.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The next slot to be asked for.
    slot: u64,
    /// How many full slots were asked for and not taken yet.
    slots: usize,
}

impl Ahead {
    /// Called for each slot that was taken.
    #[inline]
    pub fn step<P>(&mut self, wheel: &mut Wheel, flows: &[Flow<P>]) {
        wheel.fetch();
        self.slots = self.slots.saturating_sub(1);
        while self.slots < SLOTS_AHEAD {
            let Some(slot) = wheel.next_full(self.slot) else { break };
            for flow in wheel.peek(slot) {
                if let Some(flow) = flows.get(flow as usize) {
                    prefetch(flow);
                }
            }
            self.slot = slot + 1;
            self.slots += 1;
        }
    }
}
