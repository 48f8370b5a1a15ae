//! Two slots for one text in memory that processes share: the text that holds, and room for the next one.
//!
//! ```text
//! generation  0    nothing was written
//!             n    slot (n - 1) % 2 holds; a writer fills the other one, and counts on
//! ```
//!
//! Rule: a reader gets a text that was written as a whole, however fast writers follow each other: the second of two that write meanwhile
//! fills the slot that is being read, and the first has counted on then, so the reader begins again.
//!
//! Owner: the memory, which its mapping keeps. Limits: one writer at a time, which its callers see to. A reader that is overtaken
//! [`READINGS`] times reads nothing.
//!
//! Source: the sequence counters of kernel `include/linux/seqlock.h`; Boehm, "Can seqlocks get along with programming language memory
//! models?", 2012, on the fences.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// The most times that a text is read for one that nobody wrote over.
const READINGS: usize = 16;

/// The two slots, of one length, and their counter.
pub struct RecordSlots<'a> {
    /// The number of texts that were written.
    pub generation: &'a AtomicU64,
    /// The slots; a text ends before the first 0, or with the slot.
    pub slots: [&'a [AtomicU8]; 2],
}

impl RecordSlots<'_> {
    /// The text that holds; `None` if none was written.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut generation = self.generation.load(Ordering::Acquire);
        for _ in 0..READINGS {
            let slot = self.slots[self.slot_of(generation.checked_sub(1)?)];
            let bytes = slot.iter().map(|byte| byte.load(Ordering::Relaxed));
            let text = bytes.take_while(|byte| *byte != 0).collect();
            // A writer that has come to this slot meanwhile has counted on before.
            fence(Ordering::Acquire);
            let now = self.generation.load(Ordering::Acquire);
            if now == generation {
                return Some(text);
            }
            generation = now;
        }
        None
    }

    /// Writes a text, shorter than a slot and without a 0 in it.
    pub fn write(&self, text: &[u8]) {
        let generation = self.generation.load(Ordering::Acquire);
        // A reader that sees a byte written below sees the count that is read here, or a later one.
        fence(Ordering::Release);
        let slot = self.slots[self.slot_of(generation)];
        for (at, byte) in slot.iter().zip(text.iter().copied().chain(std::iter::once(0))) {
            at.store(byte, Ordering::Relaxed);
        }
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }

    /// The slot of the text number `number`, the first one being 0.
    fn slot_of(&self, number: u64) -> usize {
        (number % 2) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn room(bytes: usize) -> Vec<AtomicU8> {
        (0..bytes).map(|_| AtomicU8::new(0)).collect()
    }

    #[test]
    fn the_last_text_holds() {
        let (generation, first, second) = (AtomicU64::new(0), room(8), room(8));
        let slots = RecordSlots { generation: &generation, slots: [&first, &second] };
        assert_eq!(slots.read(), None);
        for text in ["longer", "short", "", "seven77", "x"] {
            slots.write(text.as_bytes());
            assert_eq!(slots.read().as_deref(), Some(text.as_bytes()), "{text}");
        }
    }

    /// A reader beside a writer that never pauses gets texts of one letter, or none, and goes on to later ones.
    #[test]
    fn a_text_is_never_made_of_two() {
        const TEXTS: u32 = if cfg!(miri) { 40 } else { 20_000 };
        let (generation, first, second) = (AtomicU64::new(0), room(400), room(400));
        let slots = RecordSlots { generation: &generation, slots: [&first, &second] };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..TEXTS {
                    slots.write(&vec![b'a' + (number % 26) as u8; 1 + (number * 37 % 399) as usize]);
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                if let Some(text) = slots.read() {
                    assert!(text.iter().all(|byte| *byte == text[0]), "{text:?}");
                }
            }
        });
        assert_eq!(slots.read().map(|text| text[0]), Some(b'a' + ((TEXTS - 1) % 26) as u8));
    }
}
