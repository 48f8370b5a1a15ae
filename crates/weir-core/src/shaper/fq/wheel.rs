//! A timing wheel of two levels: flows in slots of `2^SLOT_SHIFT` nanoseconds, by the time at which they may send.
//!
//! ```text
//! slot(at_ns) = ceil(at_ns / 2^SLOT_SHIFT)       so at_ns <= taken < at_ns + 2^SLOT_SHIFT, if asked on time
//! ```
//!
//! The near level has a list for each slot of the next [`NEAR`] turns, a turn being 64 slots; the far level has one for each turn
//! after them, [`TURNS`] in all: that is the window, 537 ms. When the first turn has passed, the far list of the next one that
//! comes near is dealt out to its slots. Bits say which lists are not empty, so the first full slot is found by counting zeros.
//!
//! A list is made of chunks, each a cache line with 15 flows and the end of the chunk before it. So flows that are put into a
//! far turn are written one after the other, and read likewise; their own memory is touched neither then nor when they are dealt
//! out, and which flows come due next is known before their memory is needed ([`Wheel::peek`]).
//!
//! Owner: one [`super::Fq`]. Source: Varghese and Lauck, *Hashed and hierarchical timing wheels*, SOSP 1987; Saeed et al., *Eiffel*,
//! NSDI 2019 (find first set).
//!
//! Limits: flows of one slot leave in no order that is told. A time beyond the window goes into its last turn, a time past into
//! the first slot; the owner looks at each flow's own time again when it is taken. Flows are numbered with 26 bits.

use weir_simd::prefetch::prefetch;

/// Slots are kept apart to about a microsecond.
const SLOT_SHIFT: u32 = 10;

/// How many turns have a list for each of their slots.
const NEAR: u64 = 2;
const NEAR_LISTS: usize = NEAR as usize * 64;

/// How many turns of 64 slots the window has.
const TURNS: u64 = 128 * 64;
const LISTS: usize = NEAR_LISTS + TURNS as usize;

/// Flows are numbered below this, as an entry also tells the slot within its turn.
pub const FLOWS_MAX: usize = 1 << 26;
const FLOW_MASK: u32 = FLOWS_MAX as u32 - 1;

/// Places of a chunk; the first is the end of the chunk before it.
const CHUNK: usize = 16;

/// A list: the place after its last entry, 0 if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct List(u32);

/// A cache line of a list.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Chunk([u32; CHUNK]);

/// The flows of a slot that was taken.
#[derive(Debug, Default)]
pub struct Due {
    /// How many flows are left of the chunk that was taken off the list last.
    places: u32,
    chunk: Chunk,
    list: List,
}

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// The first turn with slots, as an absolute number: invariant: no flow is in an earlier one.
    base: u64,
    /// Which lists are not empty: first a word for each near turn, then one for each 64 far ones.
    full: [u64; LISTS / 64],
    /// Which words of the far level are not 0.
    full_words: u128,
    lists: Box<[List; LISTS]>,
    chunks: Box<[Chunk]>,
    /// The first chunk that is in no list; its first place leads to the next.
    free: u32,
    /// What is still to be fetched of the turn that is dealt out next.
    fetched: List,
}

impl Due {
    /// Whether it has no more flows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.places == 0 && self.list == List::default()
    }
}

impl Wheel {
    /// A wheel for `flows_max` flows at a time, whose window begins at `now_ns`.
    pub fn new(flows_max: usize, now_ns: u64) -> Wheel {
        // Of each list one chunk may not be full, and that of a slot which was taken.
        let chunks = flows_max.div_ceil(CHUNK - 1) + LISTS + 2;
        let chunk = |index: usize| {
            let mut chunk = Chunk::default();
            chunk.0[0] = index as u32 + 1;
            chunk
        };
        let Ok(lists) = vec![List::default(); LISTS].into_boxed_slice().try_into() else {
            unreachable!("it has this length");
        };
        Wheel {
            base: now_ns >> SLOT_SHIFT >> 6,
            full: [0; LISTS / 64],
            full_words: 0,
            lists,
            chunks: (0..chunks).map(chunk).collect(),
            free: 0,
            fetched: List::default(),
        }
    }

    /// Puts a flow in.
    #[inline]
    pub fn push(&mut self, at_ns: u64, flow: u32) {
        let first = self.base << 6;
        let slot = ((at_ns.saturating_sub(1) >> SLOT_SHIFT) + 1).max(first).min(first + (TURNS << 6) - 1);
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
                self.full[(self.base % NEAR) as usize] = word & (word - 1);
                due.list = std::mem::take(&mut self.lists[slot as usize % NEAR_LISTS]);
                return true;
            }
            if self.base >= now >> 6 {
                return false;
            }
            self.turn(now >> 6);
        }
    }

    /// Whether a flow is due, as far as is known without a turn: rather yes than no.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let now = now_ns >> SLOT_SHIFT;
        let word = self.full[(self.base % NEAR) as usize];
        self.base < now >> 6 || word << 63_u64.saturating_sub(now.saturating_sub(self.base << 6)) != 0
    }

    /// The next flow of a slot that was taken.
    #[inline]
    pub fn next_of(&mut self, due: &mut Due) -> Option<u32> {
        if due.places == 0 {
            due.places = self.take_chunk(&mut due.list, &mut due.chunk)?;
        }
        let flow = due.chunk.0[due.places as usize % CHUNK] & FLOW_MASK;
        due.places -= 1;
        Some(flow)
    }

    /// Takes the last chunk off a list; the last place of it that is in use.
    #[inline]
    fn take_chunk(&mut self, list: &mut List, into: &mut Chunk) -> Option<u32> {
        let last = list.0.wrapping_sub(1);
        let chunk = self.chunks.get_mut(last as usize / CHUNK)?;
        *into = *chunk;
        list.0 = std::mem::replace(&mut chunk.0[0], self.free);
        self.free = last / CHUNK as u32;
        Some(last % CHUNK as u32)
    }

    /// Takes any flows out, wherever they are, into a `due` that is empty; false if there are none.
    pub fn take_any(&mut self, due: &mut Due) -> bool {
        let Some(word) = self.full.iter().position(|word| *word != 0) else { return false };
        let list = word << 6 | self.full[word].trailing_zeros() as usize;
        self.full[word] &= self.full[word] - 1;
        if let Some(far) = word.checked_sub(NEAR as usize) {
            self.full_words &= !(u128::from(self.full[word] == 0) << far);
        }
        due.list = std::mem::take(&mut self.lists[list]);
        true
    }

    /// When the first flow is due, or a time before that at which more is known; `None` if there is none.
    pub fn next_ns(&self) -> Option<u64> {
        let slot = self.next_full(self.base << 6).or_else(|| {
            let turn = self.first_far()?;
            Some(turn << 6 | u64::from(self.first_of_far(turn)))
        })?;
        Some(slot << SLOT_SHIFT)
    }

    /// The first full slot of the near level at or after one.
    #[inline]
    pub fn next_full(&self, slot: u64) -> Option<u64> {
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

    /// The flows of a near slot that leave first, up to a chunk of them.
    #[inline]
    pub fn peek(&self, slot: u64) -> impl Iterator<Item = u32> {
        self.last_chunk(self.lists[slot as usize % NEAR_LISTS]).iter().map(|entry| entry & FLOW_MASK)
    }

    /// The entries of the last chunk of a list.
    #[inline]
    fn last_chunk(&self, list: List) -> &[u32] {
        let last = list.0.wrapping_sub(1) as usize;
        self.chunks.get(last / CHUNK).map_or(&[], |chunk| &chunk.0[1..=last % CHUNK])
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
            self.deal_out(turn);
        }
        self.fetched = self.lists[NEAR_LISTS + ((self.base + NEAR) % TURNS) as usize];
    }

    /// Fetches a chunk more of the turn that is dealt out next. Which chunk that is, the one before it tells.
    #[inline]
    pub fn fetch(&mut self) {
        if let Some(chunk) = self.chunks.get(self.fetched.0.wrapping_sub(1) as usize / CHUNK) {
            self.fetched = List(chunk.0[0]);
            if let Some(before) = self.chunks.get(chunk.0[0].wrapping_sub(1) as usize / CHUNK) {
                prefetch(before);
            }
        }
    }

    fn deal_out(&mut self, turn: u64) {
        let far = (turn % TURNS) as usize;
        let mut list = std::mem::take(&mut self.lists[NEAR_LISTS + far]);
        if list == List::default() {
            return;
        }
        let word = NEAR as usize + far / 64;
        self.full[word] &= !(1 << (far % 64));
        self.full_words &= !(u128::from(self.full[word] == 0) << (far / 64));
        let near = (turn % NEAR) as usize * 64;
        let mut chunk = Chunk::default();
        while let Some(last) = self.take_chunk(&mut list, &mut chunk) {
            for &entry in &chunk.0[1..=last as usize] {
                self.append(near + (entry >> 26) as usize, entry);
            }
        }
    }

    #[inline]
    fn append(&mut self, list: usize, entry: u32) {
        let end = self.lists[list].0;
        let at = if (end as usize).is_multiple_of(CHUNK) { self.begin_chunk(list, end) } else { end };
        self.chunks[at as usize / CHUNK].0[at as usize % CHUNK] = entry;
        self.lists[list].0 = at + 1;
    }

    /// A chunk more for a list, whose end so far is `end`; its first place.
    #[inline]
    fn begin_chunk(&mut self, list: usize, end: u32) -> u32 {
        let chunk = self.free;
        self.free = std::mem::replace(&mut self.chunks[chunk as usize].0[0], end);
        self.full[list / 64] |= 1 << (list % 64);
        if let Some(far) = list.checked_sub(NEAR_LISTS) {
            self.full_words |= 1 << (far / 64);
        }
        chunk * CHUNK as u32 + 1
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

    /// The first full slot of a far turn; 0, which is no later, if there are many flows to be looked at.
    fn first_of_far(&self, turn: u64) -> u32 {
        let list = self.lists[NEAR_LISTS + (turn % TURNS) as usize];
        let one_chunk = list.0 != 0 && self.chunks[(list.0 - 1) as usize / CHUNK].0[0] == 0;
        self.last_chunk(list).iter().filter(|_| one_chunk).map(|entry| entry >> 26).min().unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
