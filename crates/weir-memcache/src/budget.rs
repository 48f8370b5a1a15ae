//! Bytes that all clients of the server may have together: of long replies ([`crate::reply`]), and of long values that come
//! ([`crate::connection`]).
//!
//! Rule: one who takes bytes takes no more than are left behind, so that those who hold much leave room for those who want less. They are given
//! back when their holder is dropped.
//!
//! Ordering: none is needed: bytes guard nothing, and their number alone is counted.
//!
//! Owner: the server; what is held is its holder's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may be taken and are taken, by all workers.
#[derive(Debug)]
pub struct ByteBudget {
    max_bytes: usize,
    held_bytes: AtomicUsize,
}

impl ByteBudget {
    /// A budget of so many bytes, of which none are taken.
    pub fn new(max_bytes: usize) -> Arc<ByteBudget> {
        Arc::new(ByteBudget { max_bytes, held_bytes: AtomicUsize::new(0) })
    }

    /// Takes `more` bytes for one who has `all` with them, if as many are left then.
    fn take(&self, more: usize, all: usize) -> bool {
        let taken = |held: usize| (held + more + all <= self.max_bytes).then_some(held + more);
        self.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// The bytes that are taken.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes that are taken from a budget until this is dropped.
#[derive(Debug, Default)]
pub struct HeldBytes {
    bytes: usize,
    of: Option<Arc<ByteBudget>>,
}

impl HeldBytes {
    /// Takes what is lacking to so many bytes, and somewhat more if it grows often. Returns whether the budget had it.
    pub fn raise_to(&mut self, bytes: usize, budget: &Arc<ByteBudget>) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let all = bytes.max(self.bytes + self.bytes / 4);
        let is_there = budget.take(all - self.bytes, all);
        if is_there {
            self.bytes = all;
            self.of.get_or_insert_with(|| Arc::clone(budget));
        }
        is_there
    }

    /// The bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds what another held.
    pub fn join(&mut self, mut other: HeldBytes) {
        match self.of {
            Some(_) => self.bytes += std::mem::take(&mut other.bytes),
            None => *self = other,
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        if let Some(budget) = &self.of {
            budget.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
