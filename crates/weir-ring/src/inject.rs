//! The way into a worker for threads that are not workers: many producers, one consumer.
//! Producers never wait for each other, so a producer that is preempted holds up only the consumer.
//!
//! Rule: a producer reserves slots with one compare-exchange of `tail`, fills them, and stamps each with its index plus
//! one. The consumer takes slots in order of index while their stamps say that they are filled. Elements of one producer
//! keep their order; a batch is reserved whole, so it stays together.
//!
//! Ordering and ownership: `tail` is shared by the producers, `head` is the consumer's. A slot between `head` and `tail`
//! is its reserver's until stamped and the consumer's after that.
//! - `R4` (stamp) `<-> A4`: the element in the slot is visible to the consumer.
//! - `R5` (head returned) `<-> A5`: the elements before it have left their slots.
//! - `R6` (closed) `<-> A6`: the consumer has gone.
//!
//! Source: Vyukov's bounded queue for the stamps; DPDK's ring library guide ("lock-waiter preemption") for the reason why no producer waits
//! for another's tail.
//! Limits: the consumer stops at the first slot not yet stamped, though later ones may be. Elements in the ring when the consumer goes are
//! dropped with it.

use crate::pending::Notice;
use crate::slots::Slots;
use crate::spsc::CapacityError;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Arc, Line};

/// The reason why an element was not taken; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// There is no room now.
    Full(T),
    /// The worker has gone, and there never will be room.
    Abandoned(T),
}

struct Shared<T> {
    /// The next index to reserve.
    tail: Line<AtomicUsize>,
    /// The oldest index not yet emptied.
    head: Line<AtomicUsize>,
    closed: Line<AtomicBool>,
    /// The index of each slot's element plus one, once the element is in it.
    stamps: Box<[AtomicUsize]>,
    slots: Slots<T>,
}

/// A way into a worker. Clone it for every thread that needs one.
pub struct Injector<T: Send> {
    shared: Arc<Shared<T>>,
    notice: Notice,
}

/// The worker's end.
pub(crate) struct Injected<T: Send> {
    shared: Arc<Shared<T>>,
    head: usize,
}

/// Makes a ring of `capacity` slots, a power of two.
pub(crate) fn ring<T: Send>(
    capacity: usize,
    notice: Notice,
) -> Result<(Injector<T>, Injected<T>), CapacityError> {
    const { assert!(size_of::<T>() > 0, "a ring of nothing") };
    if !capacity.is_power_of_two() || capacity > 1 << 31 {
        return Err(CapacityError(capacity));
    }
    let shared = Arc::new(Shared {
        tail: Line(AtomicUsize::new(0)),
        head: Line(AtomicUsize::new(0)),
        closed: Line(AtomicBool::new(false)),
        stamps: (0..capacity).map(|_| AtomicUsize::new(0)).collect(),
        slots: Slots::new(capacity),
    });
    Ok((Injector { shared: Arc::clone(&shared), notice }, Injected { shared, head: 0 }))
}

impl<T: Send> Injector<T> {
    /// Hands `item` to the worker and wakes it if it is parked.
    ///
    /// # Errors
    /// The item, if there is no room or no worker.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        if self.is_abandoned() {
            return Err(PushError::Abandoned(item));
        }
        let Some((index, _)) = self.reserve(1) else { return Err(PushError::Full(item)) };
        let item = std::mem::ManuallyDrop::new(item);
        // SAFETY: the slot is reserved for us, and empty by A5; `item` is not dropped here.
        unsafe { self.shared.slots.fill(index, &*item, 1) };
        self.publish(index, 1);
        Ok(())
    }

    /// Hands over as many of `items` as there is room for, from the front and together; the others stay.
    ///
    /// Returns how many went: 0 if there was no room or no worker.
    pub fn push_all(&self, items: &mut Vec<T>) -> usize {
        let total = items.len();
        if total == 0 || self.is_abandoned() {
            return 0;
        }
        let Some((index, count)) = self.reserve(total) else { return 0 };
        // SAFETY: the slots are reserved for us, and empty by A5. The length is 0 while the vector holds moved-out
        // elements, and at the end covers exactly those that stayed.
        unsafe {
            items.set_len(0);
            self.shared.slots.fill(index, items.as_ptr(), count);
            let start = items.as_mut_ptr();
            start.copy_from(start.add(count), total - count);
            items.set_len(total - count);
        }
        self.publish(index, count);
        count
    }

    /// Returns whether the worker has gone.
    pub fn is_abandoned(&self) -> bool {
        // A6, from R6.
        self.shared.closed.0.load(Ordering::Acquire)
    }

    /// Reserves up to `wanted` slots; returns the first index and their number, or `None` if there is no room.
    fn reserve(&self, wanted: usize) -> Option<(usize, usize)> {
        let capacity = self.shared.stamps.len();
        let mut tail = self.shared.tail.0.load(Ordering::Relaxed);
        loop {
            // A5, from R5.
            let head = self.shared.head.0.load(Ordering::Acquire);
            let used = tail.wrapping_sub(head);
            if used <= capacity {
                let count = wanted.min(capacity - used);
                if count == 0 {
                    return None;
                }
                // Relaxed: reserving shows nothing to any thread; the stamps do.
                let end = tail.wrapping_add(count);
                let reserved =
                    self.shared.tail.0.compare_exchange_weak(tail, end, Ordering::Relaxed, Ordering::Relaxed);
                if reserved.is_ok() {
                    return Some((tail, count));
                }
            }
            // Another producer was faster (and the consumer may have emptied what that one filled): look again.
            tail = self.shared.tail.0.load(Ordering::Relaxed);
        }
    }

    fn publish(&self, index: usize, count: usize) {
        for index in (0..count).map(|offset| index.wrapping_add(offset)) {
            // R4, to A4.
            self.shared.stamp(index).store(index.wrapping_add(1), Ordering::Release);
        }
        self.notice.raise();
    }
}

impl<T: Send> Clone for Injector<T> {
    fn clone(&self) -> Injector<T> {
        Injector { shared: Arc::clone(&self.shared), notice: self.notice.clone() }
    }
}

impl<T: Send> std::fmt::Debug for Injector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector").field("capacity", &self.shared.stamps.len()).finish()
    }
}

impl<T: Send> Injected<T> {
    /// The number of slots reserved now: at least as many as there are elements to take.
    pub(crate) fn reserved(&self) -> usize {
        self.shared.tail.0.load(Ordering::Relaxed).wrapping_sub(self.head)
    }

    /// Returns whether the oldest element is there to take.
    pub(crate) fn is_ready(&self) -> bool {
        self.stamped(self.head)
    }

    /// Moves the oldest elements to the end of `out`: at most `max`, and no more than fit without allocating.
    pub(crate) fn pop_into(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        let room = (out.capacity() - out.len()).min(max);
        let count = (0..room).take_while(|&offset| self.stamped(self.head.wrapping_add(offset))).count();
        if count == 0 {
            return 0;
        }
        // SAFETY: the stamps say that these slots are filled and left to us; `out` has room for the elements, and its
        // length covers them once they have moved.
        unsafe {
            self.shared.slots.empty(self.head, out.as_mut_ptr().add(out.len()), count);
            out.set_len(out.len() + count);
        }
        self.head = self.head.wrapping_add(count);
        // R5, to A5.
        self.shared.head.0.store(self.head, Ordering::Release);
        count
    }

    fn stamped(&self, index: usize) -> bool {
        // A4, from R4.
        self.shared.stamp(index).load(Ordering::Acquire) == index.wrapping_add(1)
    }
}

impl<T: Send> Drop for Injected<T> {
    fn drop(&mut self) {
        // R6, to A6.
        self.shared.closed.0.store(true, Ordering::Release);
    }
}

impl<T> Shared<T> {
    fn stamp(&self, index: usize) -> &AtomicUsize {
        &self.stamps[index & (self.stamps.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    /// Drops the elements left in the ring, once all halves have gone.
    fn drop(&mut self) {
        // Relaxed: the thread that drops the last reference has seen everything the others did (`Arc`), so every reserved slot is filled.
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            let mut item = std::mem::MaybeUninit::<T>::uninit();
            // SAFETY: `head .. tail` holds elements and no other thread has the ring any more.
            unsafe {
                self.slots.empty(head, item.as_mut_ptr(), 1);
                item.assume_init_drop();
            }
            head = head.wrapping_add(1);
        }
    }
}
