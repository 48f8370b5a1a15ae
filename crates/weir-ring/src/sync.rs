//! The one switch between the real primitives, the model checker's, and those that give way at random.
//! Everything of this crate that orders memory between threads comes from here.
//!
//! Rule: no other module names `std::sync::atomic` or `loom`, except for the next handle ([`crate::memory`]), which
//! orders nothing, and for the slots of a ring ([`crate::slots`]), which are switched there.
//! Ordering and ownership: none of its own.
//! Source: loom's README, "structuring the code for testing".
//! Limits: statics are not modelled, so nothing that is a static may order memory.

#[cfg(all(not(loom), not(feature = "preempt")))]
pub(crate) use std::sync::atomic;

#[cfg(all(not(loom), feature = "preempt"))]
pub(crate) use crate::preempt::atomic;

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(all(miri, not(loom)))]
pub(crate) use std::sync::{Condvar, Mutex};

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, atomic};

/// A value on two cache lines of its own, as the adjacent-line prefetcher fetches them together: a value that one thread writes often must
/// not sit beside one that another reads.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// A figure that is counted up and read. It orders nothing, so the model need not follow it.
#[derive(Default)]
pub(crate) struct Counter(std::sync::atomic::AtomicU64);

impl Counter {
    /// Counts up by `more`. One thread at a time: there is no read-modify-write.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// Counts up by one among many threads.
    #[cold]
    pub(crate) fn add_shared(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, figure: u64) {
        self.0.store(figure, std::sync::atomic::Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}
