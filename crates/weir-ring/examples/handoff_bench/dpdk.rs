//! DPDK's `rte_ring` as a peer: a small C program which runs the same loops on the same two cores and prints their cost. Without DPDK's
//! headers there is no such row, and the bench says so.

use crate::peer::Peer;
use crate::{ELEMENTS, Sample};

/// The compiled peer.
pub struct RteRing(Peer);

impl RteRing {
    /// Compiles the peer; the error says why it cannot.
    pub fn build() -> Result<RteRing, String> {
        Peer::build("rte_ring", &["-lrte_ring", "-lrte_eal", "-lpthread"]).map(RteRing)
    }

    /// Measures one stream, as `stream` does for the other queues.
    pub fn stream(&self, element_bytes: usize, capacity: usize, batch: usize, cpus: [usize; 2]) -> Sample {
        let numbers = [element_bytes, capacity, batch, ELEMENTS as usize, cpus[0], cpus[1]];
        let text = self.0.run(&numbers.map(|number| number.to_string())).expect("the peer runs");
        let text = text.expect("it asks nothing of the processor");
        let (cycles, interruptions) = text.trim().split_once(' ').expect("two numbers");
        Sample { cycles: cycles.parse().expect("a number"), interrupted: interruptions != "0" }
    }
}
