//! One flow of FQ: its queue, its departure time and its deficit, in half a cache line.
//!
//! Its rule is the recurrence of the departure time in the parent's head. That time is kept as the whole nanosecond at or after
//! it, which is all that is compared, and the fraction by which it is later than the nanosecond before.
//!
//! Owner: one [`super::Fq`], which links flows by [`Flow::next`].

use crate::{
    rate::{NS_PER_S, Rate},
    shaper::{buckets::NONE, slab::Fifo},
};

/// In the place of a link: the flow is on no list and in no bucket, and nothing waits in it.
pub const NOT_LISTED: u32 = NONE - 1;

/// A flow. What reads it waits for one line, and nothing else of it lies in another.
#[derive(Debug)]
#[repr(align(32))]
pub struct Flow {
    /// The next one of the list or bucket it is in.
    pub next: u32,
    pub queue: Fifo,
    /// The first whole nanosecond at which it may send: the departure time, rounded up.
    pub ready_ns: u64,
    /// What the departure time is later than `ready_ns - 1`, less one, in 2^-32 ns.
    ready_fraction: u32,
    pub deficit: i32,
    /// In 2^-32 ns; 0 is no pace.
    ns_per_byte: u64,
}

const _: () = assert!(size_of::<Flow>() == 32, "a flow is half a cache line, and never lies across two");

impl Flow {
    /// A flow with nothing in it, which may send at once.
    pub fn new(pace: Option<Rate>) -> Flow {
        Flow {
            next: NOT_LISTED,
            queue: Fifo::default(),
            ready_ns: 0,
            ready_fraction: u32::MAX,
            deficit: 0,
            ns_per_byte: ns_per_byte(pace),
        }
    }

    /// Gives it another pace, from its next packet on.
    pub fn set_pace(&mut self, pace: Option<Rate>) {
        self.ready_fraction = u32::MAX;
        self.ns_per_byte = ns_per_byte(pace);
    }

    /// Whether it has both the time and the deficit for a packet.
    #[inline]
    pub fn may_send(&self, now_ns: u64) -> bool {
        self.ready_ns <= now_ns && self.deficit > 0
    }

    /// Charges a packet to both.
    #[inline]
    pub fn depart(&mut self, len_bytes: u32, now_ns: u64, slack_ns: u64) {
        self.deficit = self.deficit.saturating_sub_unsigned(len_bytes);
        // Rounded up it is no later than a whole nanosecond if it is not itself.
        let earliest_ns = now_ns.saturating_sub(slack_ns);
        if self.ready_ns <= earliest_ns {
            (self.ready_ns, self.ready_fraction) = (earliest_ns, u32::MAX);
        }
        let cost = u128::from(len_bytes) * u128::from(self.ns_per_byte) + u128::from(self.ready_fraction);
        self.ready_fraction = cost as u32;
        // At most 2^64 of a byte's 2^32 ns, times 2^32 bytes, over 2^32.
        self.ready_ns = self.ready_ns.saturating_add((cost >> 32) as u64);
    }
}

fn ns_per_byte(pace: Option<Rate>) -> u64 {
    pace.map_or(0, |pace| {
        let ns_per_byte = (u128::from(8 * NS_PER_S) << 32).div_ceil(u128::from(pace.bits_per_s()));
        u64::try_from(ns_per_byte).unwrap_or(u64::MAX)
    })
}
