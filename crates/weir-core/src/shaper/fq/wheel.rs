//! A timing wheel of two levels: flows in slots of `2^SLOT_SHIFT` nanoseconds, by the time at which they may send.
//!
//! ```text
//! slot(at_ns) = ceil(at_ns / 2^SLOT_SHIFT)       so at_ns <= taken < at_ns + 2^SLOT_SHIFT, if asked on time
//! ```
//!
//! The near level has a list for each slot of the next [`NEAR`] turns, a turn being 64 slots; the far level has one for each turn
//! after them, [`TURNS`] in all: that is the window, 537 ms. The list of a turn that comes near is dealt out to its slots, a chunk
//! each time one is taken out, and what is then left of it before the turn begins. Bits say which lists are not empty, so the first
//! full slot is found by counting zeros.
//!
//! A list is made of chunks, each a cache line with 15 flows and the end of the chunk before it. So flows that are put into a
//! far turn are written one after the other, and read likewise; their own memory is touched neither then nor when they are dealt
//! out, and which flows come due next is known before their memory is needed ([`Wheel::peek`]). Few lists are far, so that the
//! chunks that are written to stay in a cache.
//!
//! Owner: one [`super::Fq`]. Source: Varghese and Lauck, *Hashed and hierarchical timing wheels*, SOSP 1987; Saeed et al., *Eiffel*,
//! NSDI 2019 (find first set).
//!
//! Limits: flows of one slot leave in no order that is told. A time beyond the window goes into its last turn, a time past into
//! the first slot; the owner looks at each flow's own time again when it is taken. Flows are numbered with 26 bits.

use weir_simd::prefetch::prefetch;

/// Slots are kept apart to 2 us: with less a slot has few flows, and each slot costs as much as several of them.
const SLOT_SHIFT: u32 = 11;

/// How long a slot is.
#[cfg(test)]
pub const SLOT_NS: u64 = 1 << SLOT_SHIFT;

/// How many turns have a list for each of their slots.
const NEAR: u64 = 2;
const NEAR_LISTS: usize = NEAR as usize * 64;

/// How many turns of 64 slots the window of 2^29 ns has.
const TURNS: u64 = 1 << (29 - 6 - SLOT_SHIFT);
const LISTS: usize = NEAR_LISTS + TURNS as usize;

/// Flows are numbered below this, as an entry also tells the slot within its turn.
pub const FLOWS_MAX: usize = 1 << 26;
const FLOW_MASK: u32 = FLOWS_MAX as u32 - 1;

/// Places of a chunk; the first is the end of the chunk before it.
const CHUNK: usize = 16;

/// The place after the last entry of a list; 0 if it is empty.
pub type End = u32;

/// A cache line of a list.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Chunk([u32; CHUNK]);

/// The flows of a slot that was taken.
#[derive(Debug, Default)]
pub struct Due {
    /// How many flows are left of the chunk that was taken off the list last.
    places: u32,
    list: End,
    chunk: Chunk,
}

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// The first turn with slots, as an absolute number: invariant: no flow is in an earlier one.
    base: u64,
    /// What is not dealt out yet of the last near turn: nothing if no slot of the first is full.
    undealt: End,
    /// The first chunk that is in no list; its first place leads to the next.
    free: u32,
    /// Which lists are not empty: first a word for each near turn, then one for each 64 far ones.
    full: [u64; LISTS / 64],
    /// Which words of the far level are not 0.
    full_words: u128,
    lists: Box<[End; LISTS]>,
    chunks: Box<[Chunk]>,
}

impl Due {
    /// Whether it has no more flows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.places == 0 && self.list == 0
    }

    /// How many flows can be had before another chunk is taken.
    #[inline]
    pub fn at_hand(&self) -> usize {
        self.places as usize
    }

    /// What is left when those at hand are gone.
    #[inline]
    pub fn rest(&self) -> End {
        self.list
    }

    /// The next of those at hand.
    #[inline]
    pub fn next(&mut self) -> Option<u32> {
        let entry = self.chunk.0[self.places as usize % CHUNK];
        self.places = self.places.checked_sub(1)?;
        Some(entry & FLOW_MASK)
    }
}

impl Wheel {
    /// A wheel for `flows_max` flows at a time, whose window begins at `now_ns`.
    pub fn new(flows_max: usize, now_ns: u64) -> Wheel {
        // Of each list one chunk may not be full, and that of a turn which is being dealt out.
        let chunks = flows_max.div_ceil(CHUNK - 1) + LISTS + 2;
        let chunk = |index: usize| {
            let mut chunk = Chunk::default();
            chunk.0[0] = index as u32 + 1;
            chunk
        };
        let Ok(lists) = vec![0; LISTS].into_boxed_slice().try_into() else {
            unreachable!("it has this length");
        };
        Wheel {
            base: now_ns >> SLOT_SHIFT >> 6,
            undealt: 0,
            free: 0,
            full: [0; LISTS / 64],
            full_words: 0,
            lists,
            chunks: (0..chunks).map(chunk).collect(),
        }
    }

    /// Puts a flow in.
    #[inline(always)]
    pub fn push(&mut self, at_ns: u64, flow: u32) {
        let first = self.base << 6;
        let mut slot = (at_ns.saturating_sub(1) >> SLOT_SHIFT) + 1;
        if slot.wrapping_sub(first) >= TURNS << 6 {
            slot = slot.clamp(first, first + (TURNS << 6) - 1);
        }
        let list = if slot - first < NEAR << 6 {
            slot as usize % NEAR_LISTS
        } else {
            NEAR_LISTS + (slot >> 6) as usize % TURNS as usize
        };
        self.append(list, flow | (slot as u32 & 63) << 26);
    }

    /// Takes the first slot out that is due, into a `due` that is empty; false if there is none.
    #[inline]
    pub fn take_due(&mut self, now_ns: u64, due: &mut Due) -> bool {
        let now = now_ns >> SLOT_SHIFT;
        loop {
            let word = self.full[(self.base % NEAR) as usize];
            if word != 0 {
                let slot = self.base << 6 | u64::from(word.trailing_zeros());
                if slot > now {
                    return false;
                }
                self.take_list(slot as usize % NEAR_LISTS, due);
                return true;
            }
            if self.base >= now >> 6 {
                return false;
            }
            self.turn(now >> 6);
        }
    }

    /// Takes any flows out, wherever they are, into a `due` that is empty; false if there are none.
    pub fn take_any(&mut self, due: &mut Due) -> bool {
        let Some(word) = self.full.iter().position(|word| *word != 0) else { return false };
        self.take_list(word << 6 | self.full[word].trailing_zeros() as usize, due);
        true
    }

    #[inline]
    fn take_list(&mut self, list: usize, due: &mut Due) {
        due.list = std::mem::take(&mut self.lists[list]);
        self.mark_empty(list);
        self.keep_dealt();
    }

    #[inline]
    fn mark_empty(&mut self, list: usize) {
        let word = list / 64;
        self.full[word] &= !(1 << (list % 64));
        if let Some(far) = word.checked_sub(NEAR as usize) {
            self.full_words &= !(u128::from(self.full[word] == 0) << far);
        }
    }

    /// Brings the next chunk of a slot that was taken to hand; false if there is none.
    #[inline]
    pub fn take_chunk(&mut self, due: &mut Due) -> bool {
        due.places = self.pop_chunk(&mut due.list, &mut due.chunk);
        if due.places == 0 {
            return false;
        }
        if self.undealt != 0 {
            self.deal_chunk(self.base + NEAR - 1);
        }
        true
    }

    /// Takes the last chunk off a list; how many entries it has.
    #[inline]
    fn pop_chunk(&mut self, list: &mut End, into: &mut Chunk) -> u32 {
        let last = list.wrapping_sub(1);
        let Some(chunk) = self.chunks.get_mut(last as usize / CHUNK) else { return 0 };
        *into = *chunk;
        *list = std::mem::replace(&mut chunk.0[0], self.free);
        self.free = last / CHUNK as u32;
        last % CHUNK as u32
    }

    /// Whether a flow is due, as far as is known without a turn: rather yes than no.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let now = now_ns >> SLOT_SHIFT;
        let word = self.full[(self.base % NEAR) as usize];
        self.base < now >> 6 || word << 63_u64.saturating_sub(now.saturating_sub(self.base << 6)) != 0
    }

    /// When the first flow is due, or a time before that at which more is known; `None` if there is none.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        let slot = self.first_full(0).or_else(|| self.first_far_slot())?;
        Some(slot << SLOT_SHIFT)
    }

    /// The first slot of the near level at or after one that is full, as far as it is dealt out.
    #[inline]
    pub fn first_full(&self, slot: u64) -> Option<u64> {
        let slot = slot.max(self.base << 6);
        let mut turn = slot >> 6;
        let mut word = u64::MAX << (slot & 63);
        while turn < self.base + NEAR {
            word &= self.full[(turn % NEAR) as usize];
            if word != 0 {
                return Some(turn << 6 | u64::from(word.trailing_zeros()));
            }
            word = u64::MAX;
            turn += 1;
        }
        None
    }

    /// The first slot that may still be full, as an absolute number.
    #[inline]
    pub fn begin(&self) -> u64 {
        self.base << 6
    }

    /// The list of a near slot, to be looked through.
    #[inline]
    pub fn list(&self, slot: u64) -> End {
        self.lists[slot as usize % NEAR_LISTS]
    }

    /// The flows of the last chunk of a list, and the list without it; `None` if it is empty.
    #[inline]
    pub fn peek(&self, list: End) -> Option<(impl ExactSizeIterator<Item = u32>, End)> {
        let last = list.wrapping_sub(1) as usize;
        let chunk = &self.chunks.get(last / CHUNK)?.0;
        Some((chunk[1..=last % CHUNK].iter().map(|entry| entry & FLOW_MASK), chunk[0]))
    }

    /// The first turn moves on, but not past a flow nor past `now`; whichever turns are near then are dealt out.
    fn turn(&mut self, now: u64) {
        let was_near = self.base + NEAR;
        self.base = if self.full[..NEAR as usize].iter().any(|word| *word != 0) {
            self.base + 1
        } else {
            self.first_far().unwrap_or(now).min(now)
        };
        for turn in was_near.max(self.base)..self.base + NEAR {
            while self.undealt != 0 {
                self.deal_chunk(turn - 1);
            }
            let list = NEAR_LISTS + (turn % TURNS) as usize;
            self.undealt = std::mem::take(&mut self.lists[list]);
            self.mark_empty(list);
        }
        self.keep_dealt();
    }

    /// If no slot of the first turn is full, those of the next one are to be known.
    #[inline]
    fn keep_dealt(&mut self) {
        while self.undealt != 0 && self.full[(self.base % NEAR) as usize] == 0 {
            self.deal_chunk(self.base + NEAR - 1);
        }
    }

    /// Deals a chunk out of what is not dealt yet of a turn. Which chunk is before it is known only then, and that is asked for.
    fn deal_chunk(&mut self, turn: u64) {
        let (mut list, mut chunk) = (self.undealt, Chunk::default());
        let last = self.pop_chunk(&mut list, &mut chunk);
        self.undealt = list;
        if let Some(before) = self.chunks.get(list.wrapping_sub(1) as usize / CHUNK) {
            prefetch(before);
        }
        let near = (turn % NEAR) as usize * 64;
        for &entry in &chunk.0[1..=last as usize % CHUNK] {
            self.append(near + (entry >> 26) as usize, entry);
        }
    }

    #[inline(always)]
    fn append(&mut self, list: usize, entry: u32) {
        let end = self.lists[list];
        if (end as usize).is_multiple_of(CHUNK) {
            return self.begin_chunk(list, entry);
        }
        self.lists[list] = end + 1;
        self.chunks[end as usize / CHUNK].0[end as usize % CHUNK] = entry;
    }

    /// A chunk more for a list, with its first entry.
    #[inline(never)]
    fn begin_chunk(&mut self, list: usize, entry: u32) {
        let at = self.free;
        let chunk = &mut self.chunks[at as usize].0;
        self.free = std::mem::replace(&mut chunk[0], self.lists[list]);
        chunk[1] = entry;
        self.lists[list] = at * CHUNK as u32 + 2;
        self.full[list / 64] |= 1 << (list % 64);
        if let Some(far) = list.checked_sub(NEAR_LISTS) {
            self.full_words |= 1 << (far / 64);
        }
    }

    /// The first full turn after the near ones.
    fn first_far(&self) -> Option<u64> {
        let from = (self.base + NEAR) % TURNS;
        let far = |word: u64| self.full[NEAR as usize + word as usize];
        let of = |word: u64, bits: u64| word << 6 | u64::from(bits.trailing_zeros());
        let here = far(from >> 6) & u64::MAX << (from & 63);
        let after = self.full_words & u128::MAX << (from >> 6) << 1;
        let place = if here != 0 {
            of(from >> 6, here)
        } else {
            let words = if after != 0 { after } else { self.full_words };
            if words == 0 {
                return None;
            }
            let word = u64::from(words.trailing_zeros());
            of(word, far(word))
        };
        Some(self.base + NEAR + place.wrapping_sub(from) % TURNS)
    }

    /// The first full slot of the first full far turn; the first of that turn, which is no later, if there are many flows to be
    /// looked at.
    fn first_far_slot(&self) -> Option<u64> {
        let turn = self.first_far()?;
        let list = self.lists[NEAR_LISTS + (turn % TURNS) as usize];
        let last = list.wrapping_sub(1) as usize;
        let chunk = &self.chunks.get(last / CHUNK)?.0;
        let one_chunk = &chunk[1..=if chunk[0] == 0 { last % CHUNK } else { 0 }];
        Some(turn << 6 | u64::from(one_chunk.iter().map(|entry| entry >> 26).min().unwrap_or(0)))
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
