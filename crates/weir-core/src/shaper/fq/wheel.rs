//! A timing wheel: flows in slots of `2^SLOT_SHIFT` ticks, by the time at which they may send.
//!
//! ```text
//! slot(at) = ceil(at / 2^SLOT_SHIFT)       so at <= taken < at + 2^SLOT_SHIFT, if asked on time
//! ```
//!
//! A slot is a list of chunks, each a cache line with 15 flows and the end of the chunk before it. So the memory of a flow is not
//! touched when it is put in, nor to find the one behind it, and which flows come due next is known before their memory is
//! needed ([`Wheel::later`]). Which slots are full is kept in a set that finds the first (`ffs.rs`).
//!
//! Owner: one [`super::Fq`]. Source: Varghese and Lauck, *Hashed and hierarchical timing wheels*, SOSP 1987; Saeed et al., *Eiffel*,
//! NSDI 2019 (find first set).
//!
//! Limits: flows of one slot leave in no order that is told. A time beyond the window of 2.1 s goes into its last slot, a time
//! past into its first; the owner looks at each flow's own time again when it is taken. It takes 1.1 MB, and a chunk more whenever
//! more are full or begun than ever before.

use weir_simd::prefetch::prefetch;

use super::flow::{TICK_SHIFT, Ticks};
use crate::shaper::ffs::{FindFirstSet, PLACES, boxed};

/// Slots are kept apart to 8 us: with less a slot has few flows, and each slot costs as much as several of them.
const SLOT_SHIFT: u32 = 13 + TICK_SHIFT;

/// How long a slot is.
#[cfg(test)]
pub const SLOT_NS: u64 = 1 << (SLOT_SHIFT - TICK_SHIFT);

/// How many slots the window has.
const SLOTS: u64 = PLACES;

/// Places of a chunk; the first is the end of the chunk before it.
const CHUNK: usize = 16;

/// The place after the last flow of a list; 0 if it is empty.
pub type End = u32;

/// A cache line of a list.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Chunk([u32; CHUNK]);

/// The flows of a slot that was taken.
#[derive(Debug, Default)]
pub struct Due {
    /// How many flows are left of the chunk that was taken off the list last.
    flows: u32,
    list: End,
    chunk: Chunk,
}

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// The first slot of the window, as an absolute number: invariant: no flow is in an earlier one.
    base: u64,
    full: FindFirstSet,
    lists: Box<[End; SLOTS as usize]>,
    /// Those that were needed yet; there is room for all that ever are.
    chunks: Vec<Chunk>,
    /// The end of the chunks that are in no list; 0 if there are none.
    free: End,
}

impl Due {
    /// Whether it has no more flows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.flows == 0 && self.list == 0
    }

    /// Those that can be had before another chunk is taken, the next one last.
    #[inline]
    pub fn at_hand(&self) -> &[u32] {
        &self.chunk.0[1..=self.flows as usize % CHUNK]
    }

    /// The next of those at hand.
    #[inline]
    pub fn next(&mut self) -> Option<u32> {
        let flow = self.at_hand().last().copied();
        self.flows = self.flows.saturating_sub(1);
        flow
    }

    /// Passes over so many of those at hand.
    #[inline]
    pub fn skip(&mut self, flows: usize) {
        self.flows = self.flows.saturating_sub(flows as u32);
    }
}

impl Wheel {
    /// A wheel for `flows_max` flows at a time, whose window begins now.
    pub fn new(flows_max: usize) -> Wheel {
        // Of each list one chunk may not be full, and so may that of a slot which was taken.
        let chunks = flows_max.div_ceil(CHUNK - 1) + flows_max.min(SLOTS as usize) + 2;
        let mut chunks = Vec::with_capacity(chunks);
        // An end of 0 leads to nothing.
        chunks.push(Chunk::default());
        Wheel { base: 0, full: FindFirstSet::new(), lists: boxed(0), chunks, free: 0 }
    }

    /// Puts a flow in.
    #[inline(always)]
    pub fn push(&mut self, at: Ticks, flow: u32) {
        let mut slot = (at.saturating_sub(1) >> SLOT_SHIFT) + 1;
        if slot.wrapping_sub(self.base) >= SLOTS {
            slot = slot.clamp(self.base, self.base + (SLOTS - 1));
        }
        let list = slot as usize % SLOTS as usize;
        let end = self.lists[list];
        if (end as usize).is_multiple_of(CHUNK) {
            return self.begin_chunk(list, flow);
        }
        self.lists[list] = end + 1;
        self.chunks[end as usize / CHUNK].0[end as usize % CHUNK] = flow;
    }

    /// A chunk more for a list, with its first flow.
    #[inline(never)]
    fn begin_chunk(&mut self, list: usize, flow: u32) {
        let at = match self.free as usize / CHUNK {
            0 => {
                debug_assert!(self.chunks.len() < self.chunks.capacity(), "more flows than it is for");
                self.chunks.push(Chunk::default());
                self.chunks.len() - 1
            }
            at => at,
        };
        let chunk = &mut self.chunks[at].0;
        self.free = chunk[0];
        chunk[0] = std::mem::replace(&mut self.lists[list], (at * CHUNK) as u32 + 2);
        chunk[1] = flow;
        if chunk[0] == 0 {
            self.full.insert(list);
        }
    }

    /// Takes the first slot out that is due, into a `due` that is empty; false if there is none.
    #[inline]
    pub fn take_due(&mut self, now: Ticks, due: &mut Due) -> bool {
        let now = now >> SLOT_SHIFT;
        match self.full.first_from(self.base) {
            Some(first) if first <= now => {
                self.base = first;
                self.take_list(first, due);
                true
            }
            _ => {
                // Every slot up to now is empty, so the window may move on.
                self.base = self.base.max(now);
                false
            }
        }
    }

    /// Takes any flows out, wherever they are, into a `due` that is empty; false if there are none.
    pub fn take_any(&mut self, due: &mut Due) -> bool {
        let Some(first) = self.full.first_from(self.base) else { return false };
        self.take_list(first, due);
        true
    }

    #[inline]
    fn take_list(&mut self, slot: u64, due: &mut Due) {
        let list = slot as usize % SLOTS as usize;
        due.list = std::mem::take(&mut self.lists[list]);
        self.full.remove(list);
    }

    /// Brings the next chunk of a slot that was taken to hand; false if there is none.
    #[inline]
    pub fn take_chunk(&mut self, due: &mut Due) -> bool {
        if due.list == 0 {
            return false;
        }
        let last = due.list - 1;
        let chunk = &mut self.chunks[last as usize / CHUNK];
        due.chunk = *chunk;
        due.flows = last % CHUNK as u32;
        due.list = std::mem::replace(&mut chunk.0[0], self.free);
        self.free = last;
        true
    }

    /// Whether a flow is due.
    #[inline]
    pub fn is_due(&self, now: Ticks) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// When the first flow is due; `None` if there is none.
    #[inline]
    pub fn next(&self) -> Option<Ticks> {
        Some(self.full.first_from(self.base)? << SLOT_SHIFT)
    }

    /// The flows of the chunk that is taken after the one at hand, as far as is known now. The chunk after it is asked for.
    #[inline]
    pub fn later(&self, due: &Due) -> &[u32] {
        let mut list = due.list;
        if list == 0 {
            let Some(next) = self.full.first_from(self.base) else { return &[] };
            list = self.lists[next as usize % SLOTS as usize];
        }
        let last = list as usize - 1;
        let chunk = &self.chunks[last / CHUNK].0;
        prefetch(&self.chunks[chunk[0].saturating_sub(1) as usize / CHUNK]);
        &chunk[1..=last % CHUNK]
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
