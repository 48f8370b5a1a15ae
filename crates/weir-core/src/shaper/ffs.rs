//! A set of places in a ring, with a look-up of the first one at or after any place.
//!
//! ```text
//! low: a bit for each of 64^3 places; mid: a bit for each word of low that is not 0; top: likewise for mid
//! ```
//!
//! So the next place costs three counts of trailing zeros, however many there are, where a heap pays for their logarithm.
//!
//! Owner: one [`super::buckets::Buckets`]. Source: Saeed et al., *Eiffel*, NSDI 2019 (circular
//! hierarchical find-first-set).

/// The number of places.
pub const PLACES: u64 = 64 * 64 * 64;

/// A set of places.
#[derive(Debug)]
pub struct FindFirstSet {
    top: u64,
    mid: [u64; 64],
    low: Box<[u64; 64 * 64]>,
}

impl FindFirstSet {
    /// An empty set.
    pub fn new() -> FindFirstSet {
        FindFirstSet { top: 0, mid: [0; 64], low: boxed(0) }
    }

    /// Puts a place in, which may be in it already.
    #[inline]
    pub fn insert(&mut self, place: usize) {
        let others = self.low[place >> 6];
        self.low[place >> 6] = others | 1 << (place & 63);
        if others == 0 {
            self.mid[place >> 12] |= 1 << (place >> 6 & 63);
            self.top |= 1 << (place >> 12);
        }
    }

    /// Takes a place out.
    #[inline]
    pub fn remove(&mut self, place: usize) {
        self.low[place >> 6] &= !(1 << (place & 63));
        if self.low[place >> 6] == 0 {
            self.mid[place >> 12] &= !(1 << (place >> 6 & 63));
            if self.mid[place >> 12] == 0 {
                self.top &= !(1 << (place >> 12));
            }
        }
    }

    /// The first place of the set in the one turn of the ring that begins at `from`, both as absolute numbers.
    #[inline]
    pub fn first_from(&self, from: u64) -> Option<u64> {
        if self.top == 0 {
            return None;
        }
        let place = (from % PLACES) as usize;
        let found = self.at_or_after(place).or_else(|| self.at_or_after(0))?;
        Some(from + (found.wrapping_sub(place) as u64 % PLACES))
    }

    /// The first place at or after `from` in the ring's memory.
    #[inline]
    fn at_or_after(&self, from: usize) -> Option<usize> {
        let word = at_or_after(self.low[from >> 6], from & 63);
        if word != 0 {
            return Some(from & !63 | word.trailing_zeros() as usize);
        }
        let words = after(self.mid[from >> 12], from >> 6 & 63);
        let mid = if words != 0 {
            from >> 12 << 6 | words.trailing_zeros() as usize
        } else {
            let groups = after(self.top, from >> 12);
            if groups == 0 {
                return None;
            }
            let group = groups.trailing_zeros() as usize;
            group << 6 | self.mid[group].trailing_zeros() as usize
        };
        Some(mid << 6 | self.low[mid].trailing_zeros() as usize)
    }
}

/// An array that is made where it stays: it would not fit the stack.
pub fn boxed<T: Copy, const LEN: usize>(value: T) -> Box<[T; LEN]> {
    let Ok(array) = vec![value; LEN].into_boxed_slice().try_into() else {
        unreachable!("it has this length");
    };
    array
}

/// The bits of `word` from position `bit` up.
#[inline]
fn at_or_after(word: u64, bit: usize) -> u64 {
    word & (u64::MAX << bit)
}

/// The bits of `word` above position `bit`.
#[inline]
fn after(word: u64, bit: usize) -> u64 {
    word & (u64::MAX << bit << 1)
}
