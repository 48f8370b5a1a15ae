//! A bounded ring from one worker to another, in two owned halves that fill and empty it in batches.
//! Wait-free on both sides; memory is allocated when it is made and never again.
//!
//! Rule: `head <= tail <= staged <= head + capacity` (free-running, wrapping). Elements `head .. tail` are the consumer's, the other slots
//! the producer's, which fills them up to `staged` and publishes them later; going, it publishes them, so that no element lies where
//! neither half would drop it. Each half keeps its own index and a cached view of the other's, which lags behind and so errs to the safe
//! side: a ring seen as full or empty may not be, a ring seen otherwise is so.
//! The cost between two cores is a cache line that changes hands, so
//! - a batch is written whole, where it stays until it is taken, and published with one store of `tail`;
//! - the other's index is read only when the cached view does not do;
//! - `head` is returned once in `capacity / RETURN_SHARE` elements, or when the ring is seen empty, so a producer
//!   that waits for room finds a good piece of it. A ring that must never be full for `n` elements therefore has
//!   [`capacity_for`]`(n)` slots.
//!
//! Ordering and ownership: `tail` is written by the producer alone, `head` by the consumer alone (by the producer after
//! the consumer has gone), each on lines of its own.
//! - `R1` (tail published) `<-> A1`: the elements before it are visible to the consumer.
//! - `R2` (head returned) `<-> A2`: the elements before it have left their slots, which may be filled again.
//! - `R3` (a half is dropped) `<-> A3`: the last index of that half is visible to the other.
//!
//! Source: Lamport 1983 for the ring; Lee, Bu, Chandranmenon, "MCRingBuffer", IPDPS 2010, for the cached and batched
//! indices; the element types and the two halves after the `rtrb` crate.
//! Limits: no waiting and no waking: that is [`crate::doorbell`]. Order is kept in one ring only.

use crate::slots::Slots;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Arc, Line};

/// The consumer keeps back less than one in this many of the slots it has emptied.
pub const RETURN_SHARE: usize = 8;

/// The number of slots a ring needs so that pushing succeeds whenever fewer than `elements` are inside.
pub fn capacity_for(elements: usize) -> usize {
    let mut capacity = elements.next_power_of_two();
    while capacity - kept_back_max(capacity) < elements {
        capacity *= 2;
    }
    capacity
}

/// The most emptied slots that the producer may still see as taken.
pub(crate) fn kept_back_max(capacity: usize) -> usize {
    (capacity / RETURN_SHARE).max(1) - 1
}

/// The error of a ring that cannot have this many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityError(pub usize);

impl std::fmt::Display for CapacityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CapacityError(capacity) = self;
        write!(f, "a ring of {capacity} slots: give a power of two from 1 to 2^31")
    }
}

impl std::error::Error for CapacityError {}

/// Makes a ring of `capacity` slots.
///
/// # Errors
/// If `capacity` is not a power of two from 1 to 2^31.
pub fn ring<T: Send>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), CapacityError> {
    const { assert!(size_of::<T>() > 0, "a ring of nothing") };
    if !capacity.is_power_of_two() || capacity > 1 << 31 {
        return Err(CapacityError(capacity));
    }
    let shared = Arc::new(Shared {
        tail: Line(AtomicUsize::new(0)),
        head: Line(AtomicUsize::new(0)),
        gone: Line(Gone { producer: AtomicBool::new(false), consumer: AtomicBool::new(false) }),
        slots: Slots::new(capacity),
        capacity,
    });
    let producer = Producer { shared: Arc::clone(&shared), staged: 0, tail: 0, seen_head: 0 };
    let consumer =
        Consumer { shared, head: 0, returned: 0, seen_tail: 0, return_at: kept_back_max(capacity) + 1 };
    Ok((producer, consumer))
}

struct Shared<T> {
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
    gone: Line<Gone>,
    slots: Slots<T>,
    capacity: usize,
}

/// The flags that a half has gone, written once each, so both halves may look at every burst.
struct Gone {
    producer: AtomicBool,
    consumer: AtomicBool,
}

/// The half that fills the ring. Aligned, so that the two halves share no line wherever their owners keep them.
#[repr(align(128))]
pub struct Producer<T: Send> {
    shared: Arc<Shared<T>>,
    /// The index of the next element.
    staged: usize,
    /// The published index: the consumer does not know of elements from here to `staged`.
    tail: usize,
    /// `head` as last seen: at most the real one.
    seen_head: usize,
}

/// The half that empties the ring. Aligned as the other.
#[repr(align(128))]
pub struct Consumer<T: Send> {
    shared: Arc<Shared<T>>,
    /// The index of the oldest element.
    head: usize,
    /// `head` as the producer may see it: at most `return_at` behind.
    returned: usize,
    /// `tail` as last seen: at most the real one.
    seen_tail: usize,
    return_at: usize,
}

impl<T: Send> Producer<T> {
    /// Appends `item` and publishes it, or gives it back if the ring is full.
    ///
    /// # Errors
    /// The item, if there is no room.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        self.stage(item)?;
        self.publish();
        Ok(())
    }

    /// Puts `item` into its slot, where the consumer sees it after the next [`Producer::publish`], or gives it back if the ring is
    /// full.
    ///
    /// # Errors
    /// The item, if there is no room.
    #[inline]
    pub fn stage(&mut self, item: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(item);
        }
        // SAFETY: there is room for one, so slot `staged` is the producer's and empty.
        unsafe { self.shared.slots.put(self.staged, item) };
        self.staged = self.staged.wrapping_add(1);
        Ok(())
    }

    /// The number of elements that are staged and not published.
    #[inline]
    pub fn staged(&self) -> usize {
        self.staged.wrapping_sub(self.tail)
    }

    /// Publishes the staged elements, at once. Returns how many.
    #[inline]
    pub fn publish(&mut self) -> usize {
        let count = self.staged();
        if count > 0 {
            self.tail = self.staged;
            // R1, to A1.
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
        count
    }

    /// Moves as many of `items` as there is room for, from the front, publishing them at once; the others stay.
    ///
    /// Returns how many were moved.
    #[inline]
    pub fn push_all(&mut self, items: &mut Vec<T>) -> usize {
        let total = items.len();
        let count = self.room(total).min(total);
        if count == 0 {
            return 0;
        }
        // SAFETY: the first `count` elements move into slots that are the producer's and empty. The length is 0 while
        // the vector holds moved-out elements, and at the end covers exactly those that stayed.
        unsafe {
            items.set_len(0);
            self.shared.slots.fill(self.staged, items.as_ptr(), count);
            if count < total {
                let start = items.as_mut_ptr();
                start.copy_from(start.add(count), total - count);
                items.set_len(total - count);
            }
        }
        self.staged = self.staged.wrapping_add(count);
        self.publish();
        count
    }

    /// The number of elements that were published since the ring was made, wrapping.
    #[inline]
    pub fn published(&self) -> usize {
        self.tail
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Returns whether the consumer has gone: no element will be taken any more, and [`Producer::take_back`] returns the rest.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        // A3, from R3 of the consumer.
        self.shared.gone.0.consumer.load(Ordering::Acquire)
    }

    /// Takes back the oldest element that a consumer left behind when it went, so that none is lost with it.
    ///
    /// `None` while the consumer is there.
    pub fn take_back(&mut self) -> Option<T> {
        if !self.is_abandoned() {
            return None;
        }
        // Staged elements come back too; they are published, so that `head` never passes `tail`.
        self.publish();
        // The last store of the consumer, visible by A3; since then only we write it.
        let head = self.shared.head.0.load(Ordering::Relaxed);
        if head == self.tail {
            return None;
        }
        // SAFETY: the consumer has gone, so `head .. tail` is ours too; slot `head` holds an element, which moves out,
        // and `head` moves on.
        let item = unsafe { self.shared.slots.take(head) };
        self.seen_head = head.wrapping_add(1);
        self.shared.head.0.store(self.seen_head, Ordering::Relaxed);
        Some(item)
    }

    /// Says that no element will be pushed any more, as dropping does, for an owner that has to say so first.
    pub(crate) fn leave(&mut self) {
        // R3, to A3 of the consumer.
        self.shared.gone.0.producer.store(true, Ordering::Release);
    }

    /// The number of elements that may be filled, looking at the consumer's index only if fewer than `wanted` are sure.
    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        let room = self.shared.capacity - self.staged.wrapping_sub(self.seen_head);
        if room >= wanted {
            return room;
        }
        // A2, from R2.
        self.seen_head = self.shared.head.0.load(Ordering::Acquire);
        self.shared.capacity - self.staged.wrapping_sub(self.seen_head)
    }
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.seen() == 0 {
            return None;
        }
        // SAFETY: slot `head` is the consumer's and holds an element, which moves out.
        let item = unsafe { self.shared.slots.take(self.head) };
        self.advance(1);
        Some(item)
    }

    /// Moves the oldest elements to the end of `out`: at most `max`, and no more than fit without allocating.
    ///
    /// Returns how many were moved: 0 only if the ring was empty, or `max` or the room in `out` is 0.
    #[inline]
    pub fn pop_into(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        let room = out.capacity() - out.len();
        let count = self.seen().min(max).min(room);
        if count == 0 {
            return 0;
        }
        // SAFETY: `count` elements from `head` are the consumer's; `out` has room for them, and its length covers
        // them once they have moved.
        unsafe {
            self.shared.slots.empty(self.head, out.as_mut_ptr().add(out.len()), count);
            out.set_len(out.len() + count);
        }
        self.advance(count);
        count
    }

    /// Hands the oldest elements to `each`, at most `max`, straight from their slots. Their slots are returned together at the end.
    ///
    /// Returns how many: 0 only if the ring was empty or `max` is 0. If `each` panics, the element it was handed is its to drop, and those
    /// after it stay in the ring.
    #[inline]
    pub fn pop_each(&mut self, max: usize, mut each: impl FnMut(T)) -> usize {
        let count = self.seen().min(max);
        let mut taken = Taken { consumer: self, count: 0 };
        while taken.count < count {
            let index = taken.consumer.head.wrapping_add(taken.count);
            // SAFETY: one of the `count` elements from `head` that are the consumer's. It moves out once: it is counted before anything can
            // panic, and however this call ends, it moves `head` past the counted elements.
            let item = unsafe { taken.consumer.shared.slots.take(index) };
            taken.count += 1;
            each(item);
        }
        count
    }

    /// Shows `look` every element that is there now, the oldest first; they stay there.
    pub fn look_at(&mut self, mut look: impl FnMut(&T)) {
        for place in 0..self.len() {
            // SAFETY: one of the elements from `head` that are the consumer's, which does not move while it is looked at.
            unsafe { self.shared.slots.look_at(self.head.wrapping_add(place), &mut look) };
        }
    }

    /// The elements that were there when the producer's index was last looked at, and are there still: at most as many as are there.
    #[inline]
    pub fn left(&self) -> usize {
        self.seen_tail.wrapping_sub(self.head)
    }

    /// The number of elements that had been published since the ring was made, wrapping, when the producer's index was last looked at.
    #[inline]
    pub fn seen_published(&self) -> usize {
        self.seen_tail
    }

    /// The number of elements there now; more may come, none will go.
    #[inline]
    pub fn len(&mut self) -> usize {
        // A1, from R1.
        self.seen_tail = self.shared.tail.0.load(Ordering::Acquire);
        self.seen_tail.wrapping_sub(self.head)
    }

    /// Returns whether no element is there now.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.len() == 0
    }

    /// Returns whether the producer has gone. The elements it left can still be taken: when this is true and a *later* look finds the ring
    /// empty, it will stay empty.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        // A3, from R3 of the producer.
        self.shared.gone.0.producer.load(Ordering::Acquire)
    }

    /// The number of elements that are sure to be there, looking at the producer's index only if none are.
    #[inline]
    fn seen(&mut self) -> usize {
        let seen = self.seen_tail.wrapping_sub(self.head);
        if seen > 0 {
            return seen;
        }
        let len = self.len();
        if len == 0 && self.returned != self.head {
            self.return_slots();
        }
        len
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        if self.head.wrapping_sub(self.returned) >= self.return_at {
            self.return_slots();
        }
    }

    #[inline]
    fn return_slots(&mut self) {
        self.returned = self.head;
        // R2, to A2.
        self.shared.head.0.store(self.head, Ordering::Release);
    }
}

/// The elements that a call has moved out so far; they leave the ring when it ends, however it does.
struct Taken<'c, T: Send> {
    consumer: &'c mut Consumer<T>,
    count: usize,
}

impl<T: Send> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.advance(self.count);
    }
}

impl<T: Send> Drop for Producer<T> {
    /// Publishes the staged elements: the consumer takes them, or they are dropped with the ring.
    fn drop(&mut self) {
        self.publish();
        self.leave();
    }
}

impl<T: Send> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.return_slots();
        // R3, to A3 of the producer.
        self.shared.gone.0.consumer.store(true, Ordering::Release);
    }
}

impl<T> Drop for Shared<T> {
    /// Drops the elements left in the ring, once both halves have gone.
    fn drop(&mut self) {
        // Relaxed: the thread that drops the last reference has seen everything the other half did (`Arc`).
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: `head .. tail` holds elements and neither half is left.
            drop(unsafe { self.slots.take(head) });
            head = head.wrapping_add(1);
        }
    }
}

impl<T: Send> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("staged", &self.staged)
            .field("tail", &self.tail)
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl<T: Send> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("head", &self.head).field("capacity", &self.shared.capacity).finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "spsc_tests.rs"]
mod tests;
