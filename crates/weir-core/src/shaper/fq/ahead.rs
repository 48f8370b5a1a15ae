//! Fetches the memory of flows that come due next, so that a packet does not wait for its flow.
//!
//! The flows of a bucket are a list through the flows themselves: which one is next is known only when the one before has
//! arrived. So the lists of [`BUCKETS_AHEAD`] buckets are followed side by side, each one flow further for every bucket that is
//! taken meanwhile; by then what was asked for last has come, and following it waits for nothing.
//!
//! Owner: one [`super::Fq`]. Limits: what is put into a bucket after its list was begun is not fetched; that was in a cache
//! when it was put there. A flow that went elsewhere meanwhile leads astray until the next buckets are begun, which costs
//! needless fetches and nothing else.

use weir_simd::prefetch::prefetch;

use super::{BUCKET_SHIFT, FLOWS_CACHED, flow::Flow};
use crate::shaper::{
    buckets::{Buckets, NONE},
    slab::Slab,
};

/// How many buckets are followed at a time. Some hundred flows, as many lines as half a core's first cache.
const BUCKETS_AHEAD: usize = 32;

/// The flows that are due next, whose memory is being fetched.
#[derive(Debug)]
pub struct Ahead {
    /// One in each of some buckets; those whose list has ended are left out.
    flows: [u32; BUCKETS_AHEAD],
    count: usize,
    /// The buckets are those from here.
    from_ns: u64,
    to_ns: u64,
}

impl Ahead {
    /// Nothing fetched yet.
    pub fn new(now_ns: u64) -> Ahead {
        Ahead { flows: [NONE; BUCKETS_AHEAD], count: 0, from_ns: now_ns, to_ns: now_ns }
    }

    /// Fetches one flow more of each bucket, and once the first of them is due begins with the buckets after them. Called
    /// for each bucket that is taken, so that a flow has arrived when the one after it is asked for.
    #[inline]
    pub fn step<P>(&mut self, now_ns: u64, parked: &Buckets, flows: &[Flow], slab: &Slab<P>) {
        if flows.len() >= FLOWS_CACHED {
            self.fetch(now_ns, parked, flows, slab);
        }
    }

    #[inline(never)]
    fn fetch<P>(&mut self, now_ns: u64, parked: &Buckets, flows: &[Flow], slab: &Slab<P>) {
        let mut count = 0;
        for at in 0..self.count {
            let Some(flow) = flows.get(self.flows[at] as usize) else { continue };
            slab.prefetch(&flow.queue);
            if let Some(following) = flows.get(flow.next as usize) {
                prefetch(following);
                self.flows[count] = flow.next;
                count += 1;
            }
        }
        self.count = count;
        if now_ns < self.from_ns {
            return;
        }
        self.from_ns = self.to_ns.max(now_ns);
        let mut at_ns = self.from_ns;
        while self.count < BUCKETS_AHEAD {
            let Some((due_ns, first)) = parked.first_from(at_ns) else { break };
            if let Some(flow) = flows.get(first as usize) {
                prefetch(flow);
            }
            self.flows[self.count] = first;
            self.count += 1;
            at_ns = due_ns + (1 << BUCKET_SHIFT);
        }
        self.to_ns = at_ns.max(self.from_ns + (1 << BUCKET_SHIFT));
    }
}
