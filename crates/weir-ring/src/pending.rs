//! The inputs of a worker that may have elements: one bit for each, all in one word, under one doorbell. It lets a worker with many inputs
//! look at one line instead of at every ring.
//!
//! Rule: a bit may be set for an empty input (one look too many) but is never clear while an element published in it goes unseen. So the
//! worker leaves a bit set while it is awake, and a producer that finds it set writes nothing; the worker clears bits only on its way to
//! sleep, and then looks at those inputs again:
//! - producer: publish; light fence `F1`; if the bit is clear, set it and fence again (`F1b`); look at the state, notify;
//! - worker: clear the bits; say that it parks; heavy fence `F2`; look at the inputs whose bits it cleared and set those bits again where
//!   it found elements; look at the bits.
//!
//! If `F1` comes before `F2`, the second look sees the published elements, if the input's bit was among those cleared. If it was not, or
//! `F2` comes first, the producer sees the bit clear and sets it; then either `F1b` comes before `F2` and the worker sees the bit, or the
//! producer sees that the worker parks. The state alone decides whether to notify.
//!
//! Ordering and ownership: any producer sets bits, the worker clears them. The input's own release and acquire order its elements.
//! Source: the pending bitmap of VPP's hand-off, with the wake-up decided after publishing.
//! Limits: 64 inputs.

use crate::doorbell::Ringer;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Line};

/// The worker's view of its inputs.
pub(crate) struct Pending {
    word: Arc<Line<AtomicU64>>,
}

/// One input's way to say that it has elements.
pub(crate) struct Notice {
    word: Arc<Line<AtomicU64>>,
    bit: u64,
    ringer: Ringer,
}

impl Pending {
    pub(crate) fn new() -> Pending {
        Pending { word: Arc::new(Line(AtomicU64::new(0))) }
    }

    /// The notice of the input of `bit`, which has one bit set.
    pub(crate) fn notice(&self, bit: u64, ringer: Ringer) -> Notice {
        Notice { word: Arc::clone(&self.word), bit, ringer }
    }

    /// The bits of the inputs that may have elements.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        self.word.0.load(Ordering::Acquire)
    }

    /// Clears all bits and returns those that were set. To be followed by `F2` and a look at their inputs.
    #[inline]
    pub(crate) fn clear(&self) -> u64 {
        // Relaxed: only this worker clears, so a bit seen clear here is set by a producer that looks at the state after.
        let bits = self.word.0.load(Ordering::Relaxed);
        if bits != 0 {
            self.word.0.fetch_and(!bits, Ordering::Relaxed);
        }
        bits
    }

    /// Clears the bit of an input that has gone.
    #[inline]
    pub(crate) fn clear_bit(&self, bit: u64) {
        self.word.0.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Sets bits again.
    #[inline]
    pub(crate) fn set(&self, bits: u64) {
        self.word.0.fetch_or(bits, Ordering::Relaxed);
    }
}

impl Notice {
    /// To be called after publishing, and to be followed by [`Notice::raise`] soon: a worker that is awake mostly looks at once, and one
    /// that sleeps does not.
    #[inline]
    pub(crate) fn mark(&self) {
        if self.word.0.load(Ordering::Relaxed) & self.bit == 0 {
            self.word.0.fetch_or(self.bit, Ordering::Relaxed);
        }
    }

    /// To be called after publishing: makes the worker look. Returns whether that took a kick.
    #[inline]
    pub(crate) fn raise(&self) -> bool {
        // F1: the published elements are visible before the bit and the state are read.
        self.ringer.fences().light();
        if self.word.0.load(Ordering::Relaxed) & self.bit == 0 {
            self.word.0.fetch_or(self.bit, Ordering::Relaxed);
            // F1b: the bit too is visible before the state is read.
            self.ringer.fences().light();
        }
        self.ringer.look()
    }
}
