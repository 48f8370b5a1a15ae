//! Which inputs of a worker may have something: one bit for each, all in one word, under one doorbell.
//! It lets a worker with many inputs look at one line instead of at every ring.
//!
//! Rule: a bit may be set for an empty input (one look too many) but is never clear while something published in it
//! goes unseen. So the worker leaves a bit set while its input is busy, and a producer that finds it set writes
//! nothing; the worker clears it only when it has found the input empty for a while or wants to park, and then looks
//! again:
//! - producer: publish; fence `F1`; if the bit is clear, set it and fence again; look at the worker's state, kick;
//! - worker: look, empty; clear the bit; fence `F3`; look again, and set the bit if there is something after all.
//!
//! If `F1` comes before `F3`, the worker's second look sees what was published; else the producer sees the bit clear
//! and sets it. A bit set before the state is looked at is seen by the re-check of the park (`F2` of
//! [`crate::doorbell`]), so the worker never blocks on it. Whether to kick is decided by the state alone.
//!
//! Ordering and ownership: everyone sets, the worker clears. The input's own release and acquire order its elements.
//! Source: the pending bitmap of VPP's hand-off, with the wake-up decided after publishing.
//! Limits: 64 inputs.

use crate::doorbell::Ringer;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Line};

/// The worker's view of its inputs.
pub(crate) struct Pending {
    word: Arc<Line<AtomicU64>>,
}

/// One input's way to say that it has something.
#[derive(Clone)]
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

    /// The bits of the inputs that may have something.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        self.word.0.load(Ordering::Acquire)
    }

    /// Clears the bit of an input that was found empty, unless `look` finds something after all.
    /// Returns whether it was still empty.
    #[inline]
    pub(crate) fn settle(&self, bit: u64, look: impl FnOnce() -> bool) -> bool {
        self.word.0.fetch_and(!bit, Ordering::Relaxed);
        // F3: the bit is clear before the second look reads what was published (F1 in `Notice::raise`).
        fence(Ordering::SeqCst);
        let found = look();
        if found {
            self.word.0.fetch_or(bit, Ordering::Relaxed);
        }
        !found
    }
}

impl Notice {
    /// To be called after publishing: makes the worker look. Returns whether that took a kick.
    #[inline]
    pub(crate) fn raise(&self) -> bool {
        // F1: what was published is visible before the bit and the state are read.
        fence(Ordering::SeqCst);
        if self.word.0.load(Ordering::Relaxed) & self.bit != 0 {
            return self.ringer.look();
        }
        self.word.0.fetch_or(self.bit, Ordering::Relaxed);
        // With a fence of its own: the bit too is visible before the state is read.
        self.ringer.published()
    }

    pub(crate) fn ringer(&self) -> &Ringer {
        &self.ringer
    }
}
