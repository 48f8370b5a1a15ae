//! Atomics that give the processor away at random before every step, for the stress example.
//! An interleaving that needs a thread to stop between two given instructions then happens many times a second.
//!
//! Rule: [`seed_thread`] fixes a thread's sequence of pauses; a step is the same step as without them. One step in 64
//! yields to the scheduler, one in 16 spins for up to 128 turns, the others go on at once.
//! Ordering and ownership: that of the atomics of the standard library, which do the work.
//! Source: splitmix64 (Steele, Lea, Flood 2014) for the sequence.
//! Limits: only with the feature `preempt`. The seed does not fix the scheduler's reaction to a pause, so a failure repeats with good odds,
//! not for certain.

use std::cell::Cell;

thread_local! {
    static SEQUENCE: Cell<u64> = const { Cell::new(0) };
}

/// Fixes the sequence of pauses of the calling thread.
pub fn seed_thread(seed: u64) {
    SEQUENCE.with(|sequence| sequence.set(seed));
}

/// A point where the thread may be stopped.
pub fn point() {
    let random = SEQUENCE.with(|sequence| {
        sequence.set(sequence.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mixed = (sequence.get() ^ (sequence.get() >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    });
    if random.is_multiple_of(64) {
        std::thread::yield_now();
    } else if random.is_multiple_of(16) {
        (0..(random >> 32) % 128).for_each(|_| std::hint::spin_loop());
    }
}

/// The part of `std::sync::atomic` that this crate uses, with a point before each step.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::point;
    use std::sync::atomic;

    pub(crate) fn fence(order: Ordering) {
        point();
        atomic::fence(order);
        point();
    }

    pub(crate) fn compiler_fence(order: Ordering) {
        point();
        atomic::compiler_fence(order);
        point();
    }

    macro_rules! preempted {
        ($name:ident, $number:ty) => {
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code, reason = "each width uses some of the steps")]
            impl $name {
                pub(crate) fn new(value: $number) -> $name {
                    $name(atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $number {
                    point();
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $number, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }

                pub(crate) fn swap(&self, value: $number, order: Ordering) -> $number {
                    point();
                    self.0.swap(value, order)
                }

                pub(crate) fn fetch_or(&self, value: $number, order: Ordering) -> $number {
                    point();
                    self.0.fetch_or(value, order)
                }

                pub(crate) fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                    point();
                    self.0.fetch_and(value, order)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    point();
                    self.0.compare_exchange_weak(current, new, success, failure)
                }
            }
        };
    }

    macro_rules! preempted_sum {
        ($name:ident, $number:ty) => {
            #[allow(dead_code, reason = "each width uses some of the steps")]
            impl $name {
                pub(crate) fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                    point();
                    self.0.fetch_add(value, order)
                }

                pub(crate) fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                    point();
                    self.0.fetch_sub(value, order)
                }
            }
        };
    }

    preempted!(AtomicBool, bool);
    preempted!(AtomicU32, u32);
    preempted!(AtomicU64, u64);
    preempted!(AtomicUsize, usize);
    preempted_sum!(AtomicU32, u32);
}
