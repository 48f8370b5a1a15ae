//! Anti-replay: the sequence numbers of an association that have been received, in a window that ends at the highest.
//!
//! ```text
//! words:   a ring of 32; number n is bit n mod 64 of word (n / 64) mod 32
//! refused: n = 0;  n + size <= highest (too old);  bit of n set (replayed)
//! moving:  the words between the highest's and the new highest's are cleared, 32 at most
//! ```
//!
//! So a window moves by clearing whole words, and never shifts (RFC 6479). A number is checked before the packet is proven, and
//! noted after; a packet that is not proven changes nothing.
//!
//! Extended numbers: the packet has the lower half, and the upper half is the one that brings the number nearest to the window
//! (RFC 4303 appendix A2.1).
//!
//! Owner: the association. Limits: a window of [`SIZE_MAX`] at most; after 2^32 packets lost in a row an extended number is taken
//! for an earlier one, and is not proven.

/// The largest window.
pub const SIZE_MAX: u32 = 1024;

const WORDS: usize = 32;
const WORD_BITS: u64 = u64::BITS as u64;
// The word that is being filled and the one that is being left are not whole.
const _: () = assert!(SIZE_MAX as u64 <= (WORDS as u64 - 1) * WORD_BITS);

/// The reason why a number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFresh {
    /// The number was received before, or is zero, which no sender uses.
    Replayed,
    /// The number is older than the window remembers.
    TooOld,
}

/// The window of the numbers received.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    size: u32,
    highest: u64,
    words: [u64; WORDS],
}

impl ReplayWindow {
    /// A window of `size` numbers, of which none was received.
    ///
    /// # Panics
    /// If `size` is not between 1 and [`SIZE_MAX`].
    pub fn new(size: u32) -> ReplayWindow {
        assert!((1..=SIZE_MAX).contains(&size), "a replay window of {size}");
        ReplayWindow { size, highest: 0, words: [0; WORDS] }
    }

    /// A window behind which and in which everything up to `highest` was received, as far as anybody knows: that of an association of which
    /// only the highest number is known, of an earlier start.
    ///
    /// # Panics
    /// Those of [`ReplayWindow::new`].
    pub fn after(size: u32, highest: u64) -> ReplayWindow {
        let mut window = ReplayWindow { highest, words: [u64::MAX; WORDS], ..ReplayWindow::new(size) };
        // The numbers above the highest in its own word are not received; the words after it are cleared before they are used.
        let (word, bit) = place(highest);
        window.words[word] = bit | (bit - 1);
        window
    }

    /// Remembers so many numbers from here on. The ring has the numbers of the largest window, so also a window that grows refuses what was
    /// received, and takes what was not.
    ///
    /// # Panics
    /// Those of [`ReplayWindow::new`].
    pub fn set_size(&mut self, size: u32) {
        *self = ReplayWindow { highest: self.highest, words: self.words, ..ReplayWindow::new(size) };
    }

    /// The highest number received.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The whole number of a packet that carries its lower half; `None` if it can have none.
    #[inline(always)]
    pub fn extend(&self, low: u32) -> Option<u64> {
        let (top, upper) = (self.highest as u32, self.highest >> 32);
        let bottom = top.wrapping_sub(self.size - 1);
        let upper = match (top >= self.size - 1, low >= bottom) {
            (true, true) | (false, false) => Some(upper),
            (true, false) => Some(upper + 1).filter(|&upper| upper <= u32::MAX.into()),
            (false, true) => upper.checked_sub(1),
        };
        upper.map(|upper| upper << 32 | u64::from(low))
    }

    /// Checks that the packet with this number may be proven.
    #[inline(always)]
    pub fn check(&self, sequence: u64) -> Result<(), NotFresh> {
        if sequence == 0 {
            return Err(NotFresh::Replayed);
        }
        if sequence > self.highest {
            return Ok(());
        }
        if self.highest - sequence >= self.size.into() {
            return Err(NotFresh::TooOld);
        }
        let (word, bit) = place(sequence);
        if self.words[word] & bit == 0 { Ok(()) } else { Err(NotFresh::Replayed) }
    }

    /// Notes that the packet with this number was proven. The check is made again, so that two packets of one number that were both checked
    /// before either was noted are not both accepted.
    #[inline(always)]
    pub fn note(&mut self, sequence: u64) -> Result<(), NotFresh> {
        self.check(sequence)?;
        if sequence > self.highest {
            let (before, now) = (self.highest / WORD_BITS, sequence / WORD_BITS);
            if now != before {
                self.clear_words(before, now);
            }
            self.highest = sequence;
        }
        let (word, bit) = place(sequence);
        self.words[word] |= bit;
        Ok(())
    }

    /// Clears the words behind that of one number, up to that of another.
    #[inline(never)]
    fn clear_words(&mut self, before: u64, now: u64) {
        for word in 1..=(now - before).min(WORDS as u64) {
            self.words[((before + word) % WORDS as u64) as usize] = 0;
        }
    }
}

fn place(sequence: u64) -> (usize, u64) {
    ((sequence / WORD_BITS) as usize % WORDS, 1 << (sequence % WORD_BITS))
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
