//! The floor of every queue: the cost of moving the bytes, and that of the measurement itself.
//!
//! - `lines`: elements are written to and read from one shared array, a batch at a time, and an index is exchanged once in a
//!   quarter of it. No element is owned, nobody can be woken, and a batch must divide the quarter: it is no queue.
//! - `loops`: the producer makes its batches and forgets them, the consumer makes its own and checks them.
//!
//! Ordering: `R1 <-> A1` (tail) and `R2 <-> A2` (head), as in `weir_ring::spsc`.

use crate::queues::{Element, Rx, Tx};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[repr(align(128))]
struct Line<T>(T);

struct Lines<T> {
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
    slots: Line<Box<[UnsafeCell<T>]>>,
    quarter: usize,
}

// SAFETY: the elements are numbers, written and read by the half whose turn it is by `tail` and `head`.
unsafe impl<T: Element> Sync for Lines<T> {}

impl<T> Lines<T> {
    fn at(&self, index: usize) -> *mut T {
        self.slots.0[index % (4 * self.quarter)].get()
    }
}

/// One half: its own index, and the other's as last seen.
#[repr(align(128))]
struct Half<T, const FILLS: bool> {
    lines: Arc<Lines<T>>,
    own: usize,
    seen: usize,
}

/// The two halves of `lines`; see the head of the file.
pub fn lines<T: Element>(capacity: usize, batch: usize) -> (impl Tx<T>, impl Rx<T>) {
    let quarter = capacity / 4;
    assert!(
        capacity.is_power_of_two() && quarter.is_multiple_of(batch),
        "batches that divide a quarter of the ring"
    );
    let lines = Arc::new(Lines {
        tail: Line(AtomicUsize::new(0)),
        head: Line(AtomicUsize::new(0)),
        slots: Line((0..capacity).map(|_| UnsafeCell::new(T::of(0))).collect()),
        quarter,
    });
    let half = Arc::clone(&lines);
    (Half::<T, true> { lines, own: 0, seen: 0 }, Half::<T, false> { lines: half, own: 0, seen: 0 })
}

impl<T: Element> Tx<T> for Half<T, true> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<T>) {
        if self.own + batch.len() - self.seen > 4 * self.lines.quarter {
            // A2, from R2.
            self.seen = self.lines.head.0.load(Ordering::Acquire);
            if self.own + batch.len() - self.seen > 4 * self.lines.quarter {
                return;
            }
        }
        // SAFETY: a batch divides the array, so it does not wrap; the consumer has returned these slots and does not know of
        // them before R1.
        unsafe { self.lines.at(self.own).copy_from_nonoverlapping(batch.as_ptr(), batch.len()) };
        self.own += batch.len();
        batch.clear();
        if self.own.is_multiple_of(self.lines.quarter) {
            // R1, to A1.
            self.lines.tail.0.store(self.own, Ordering::Release);
        }
    }
}

impl<T: Element> Rx<T> for Half<T, false> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<T>, max: usize) {
        if self.own == self.seen {
            // A1, from R1.
            self.seen = self.lines.tail.0.load(Ordering::Acquire);
            if self.own == self.seen {
                return;
            }
        }
        // SAFETY: as in `send`: published by R1, in whole quarters, and not returned before R2.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(self.lines.at(self.own), max) });
        self.own += max;
        if self.own.is_multiple_of(self.lines.quarter) {
            // R2, to A2.
            self.lines.head.0.store(self.own, Ordering::Release);
        }
    }
}

/// The two halves of `loops`; see the head of the file.
pub fn loops<T: Element>() -> (impl Tx<T>, impl Rx<T>) {
    (Forget, Count(0))
}

struct Forget;

impl<T: Element> Tx<T> for Forget {
    #[inline]
    fn send(&mut self, batch: &mut Vec<T>) {
        std::hint::black_box(batch.as_slice());
        batch.clear();
    }
}

struct Count(u32);

impl<T: Element> Rx<T> for Count {
    #[inline]
    fn receive(&mut self, out: &mut Vec<T>, max: usize) {
        out.extend((self.0..self.0 + max as u32).map(T::of));
        std::hint::black_box(out.as_slice());
        self.0 += max as u32;
    }
}
