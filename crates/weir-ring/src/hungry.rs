//! The workers that wait for credit, which is not handed over. A word of bits for each kind of credit, one bit for each worker.
//!
//! ```text
//! worker that waits                             any other
//! its bit is set (H)                            there is credit again (C)
//! says PARKING; F2                              F3
//! looks for it once more; blocks                the bit is set? takes it, and hands that worker a word
//! ```
//!
//! Rule (invariant 3, for credit): with both fences one of the two comes first. If `F2`, the other sees the bit and hands over a word,
//! which wakes the parked worker as any element does ([`crate::doorbell`]). If `F3`, the look finds the credit. The look must find a word
//! as well: the bit of a worker that has not said `PARKING` yet may be gone already. And it must find the bits of all kinds that the worker
//! waits for by then ([`Hungry::is_set`]): it may wait for another kind than when it set them, or the credit for which a bit was taken may
//! be used up again. A bit whose worker waits no more costs one word too many.
//!
//! Ordering: `H` before `F2` before the look; `C` before `F3` before the bits are read. `F2` is the heavy fence of
//! [`crate::doorbell::Doorbell::park`], so the bits themselves need no order.
//! Source: Dekker's flags with fences, as the doorbell's. Model-checked: `tests/loom_hungry.rs`.
//! Limits: 64 workers. A worker that is told finds out itself how much credit there is.

use crate::sync::Line;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The bits of the workers that wait, for each of `KINDS` kinds of credit.
pub struct Hungry<const KINDS: usize>([Line<AtomicU64>; KINDS]);

impl<const KINDS: usize> Hungry<KINDS> {
    /// The bits when no worker waits.
    #[expect(clippy::new_without_default, reason = "a default would be one more name for it")]
    pub fn new() -> Hungry<KINDS> {
        Hungry(std::array::from_fn(|_| Line(AtomicU64::new(0))))
    }

    /// Says that this worker will park for want of this kind of credit; after that it must look for it once more, in the re-check.
    pub fn set(&self, worker: usize, kind: usize) {
        // H.
        self.0[kind].0.fetch_or(1 << worker, Ordering::Relaxed);
    }

    /// Returns whether nobody has taken the bit of a worker for this kind of credit: it will be told.
    pub fn is_set(&self, worker: usize, kind: usize) -> bool {
        self.0[kind].0.load(Ordering::Relaxed) & (1 << worker) != 0
    }

    /// Says of each kind whether there is credit again. Returns the other workers that wait for such a kind, each once, to be handed a
    /// word.
    pub fn take(&self, worker: usize, there_is: [bool; KINDS]) -> u64 {
        if there_is == [false; KINDS] {
            return 0;
        }
        // F3: the credit is visible before the bits are read (F2 of the worker that parks).
        fence(Ordering::SeqCst);
        let others = !(1u64 << worker);
        let taken = there_is.into_iter().zip(&self.0).map(|(there_is, Line(bits))| {
            if !there_is || bits.load(Ordering::Relaxed) & others == 0 {
                return 0;
            }
            bits.fetch_and(!others, Ordering::Relaxed) & others
        });
        taken.fold(0, |all, some| all | some)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_hungry_is_told_once_of_what_it_waits_for() {
        let hungry = Hungry::<2>::new();
        hungry.set(0, 0);
        hungry.set(2, 0);
        hungry.set(2, 1);
        assert_eq!(hungry.take(1, [false, false]), 0);
        assert_eq!(hungry.take(2, [true, true]), 0b001, "not to itself");
        assert_eq!(hungry.take(1, [true, false]), 0b100);
        assert_eq!(hungry.take(1, [true, false]), 0);
        assert!(hungry.is_set(2, 1) && !hungry.is_set(2, 0));
        assert_eq!(hungry.take(1, [false, true]), 0b100);
        assert!(!hungry.is_set(2, 1));
    }
}
