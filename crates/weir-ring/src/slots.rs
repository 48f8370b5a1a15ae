//! The slots of a ring: a power of two of them, starting on a cache line, filled and emptied in runs.
//! The only place where an element of a ring is memory that two threads can reach.
//!
//! Rule: element `i` lives in slot `i & mask`, so a run of elements is at most two contiguous pieces.
//! Ordering and ownership: none of its own. The caller's indices say which slots are whose, and its release and acquire of them carry the
//! contents.
//! Source: the ring of Snabb's interlink and DPDK's `rte_ring` (masked, free-running indices).
//! Limits: does not know which slots hold an element: dropping `Slots` drops no element.

#[cfg(not(loom))]
pub(crate) use real::Slots;

#[cfg(loom)]
pub(crate) use modelled::Slots;

#[cfg(not(loom))]
mod real {
    use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
    use std::mem::MaybeUninit;
    use std::ptr::NonNull;

    /// The memory of a ring's slots; see the head of the file.
    pub(crate) struct Slots<T> {
        first: NonNull<T>,
        mask: usize,
    }

    // SAFETY: `Slots` only moves `T`s; the callers of its methods promise which thread touches which slot.
    unsafe impl<T: Send> Send for Slots<T> {}
    // SAFETY: as above.
    unsafe impl<T: Send> Sync for Slots<T> {}

    impl<T> Slots<T> {
        const LINE_BYTES: usize = 128;

        /// `count` empty slots; `count` is a power of two.
        pub(crate) fn new(count: usize) -> Slots<T> {
            debug_assert!(count.is_power_of_two() && size_of::<T>() > 0);
            let layout = Self::layout(count);
            // SAFETY: the size is not 0: there is a slot, and `T` is not zero-sized (`ring` refuses it).
            let first = NonNull::new(unsafe { alloc(layout) }.cast::<T>());
            Slots { first: first.unwrap_or_else(|| handle_alloc_error(layout)), mask: count - 1 }
        }

        fn layout(count: usize) -> Layout {
            let layout = Layout::array::<T>(count).and_then(|layout| layout.align_to(Self::LINE_BYTES));
            layout.expect("a ring below the size of the address space")
        }

        /// Moves `count` elements from `source` into the slots of elements `index ..`.
        ///
        /// # Safety
        /// The caller owns those slots, they are empty, and there are at least `count` slots in all. `source` holds
        /// `count` elements, which become the ring's.
        #[inline]
        pub(crate) unsafe fn fill(&self, index: usize, source: *const T, count: usize) {
            let start = index & self.mask;
            let first = count.min(self.mask + 1 - start);
            // SAFETY: `start + first` does not pass the last slot; the rest starts at slot 0 and, as `count` is at
            // most the number of slots, ends before `start`. The slots are the caller's alone.
            unsafe {
                move_run(source, self.first.as_ptr().add(start), first);
                if first < count {
                    move_run(source.add(first), self.first.as_ptr(), count - first);
                }
            }
        }

        /// Moves `item` into the slot of element `index`.
        ///
        /// # Safety
        /// The caller owns the slot and it is empty.
        #[inline]
        pub(crate) unsafe fn put(&self, index: usize, item: T) {
            // SAFETY: a masked index is that of a slot; by the caller's promise it is the caller's and empty.
            unsafe { self.first.as_ptr().add(index & self.mask).write(item) };
        }

        /// Moves element `index` out of its slot.
        ///
        /// # Safety
        /// The caller owns the slot and it holds an element, which becomes the caller's.
        #[inline]
        pub(crate) unsafe fn take(&self, index: usize) -> T {
            // SAFETY: a masked index is that of a slot; by the caller's promise it holds an element.
            unsafe { self.first.as_ptr().add(index & self.mask).read() }
        }

        /// Shows `look` element `index` in its slot.
        ///
        /// # Safety
        /// The caller owns the slot, it holds an element, and no thread moves it out meanwhile.
        pub(crate) unsafe fn look_at(&self, index: usize, look: impl FnOnce(&T)) {
            // SAFETY: a masked index is that of a slot; by the caller's promise it holds an element that stays there.
            look(unsafe { &*self.first.as_ptr().add(index & self.mask) });
        }

        /// Moves the elements `index .. index + count` out of their slots to `target`.
        ///
        /// # Safety
        /// The caller owns those slots and each holds an element, which becomes the caller's. `target` has room for
        /// `count` elements.
        #[inline]
        pub(crate) unsafe fn empty(&self, index: usize, target: *mut T, count: usize) {
            let start = index & self.mask;
            let first = count.min(self.mask + 1 - start);
            // SAFETY: as in `fill`.
            unsafe {
                move_run(self.first.as_ptr().add(start), target, first);
                if first < count {
                    move_run(self.first.as_ptr(), target.add(first), count - first);
                }
            }
        }
    }

    /// Moves `count` elements. A batch is short, so a call of the library's `memcpy` would cost more than the move.
    ///
    /// # Safety
    /// `source` holds and `target` has room for `count` elements, apart from each other.
    #[inline(always)]
    unsafe fn move_run<T>(source: *const T, target: *mut T, count: usize) {
        const BLOCK: usize = 8;
        let mut done = 0;
        // SAFETY: every index is below `count`.
        unsafe {
            while done + BLOCK <= count {
                let block = source.add(done).cast::<MaybeUninit<[T; BLOCK]>>().read();
                target.add(done).cast::<MaybeUninit<[T; BLOCK]>>().write(block);
                done += BLOCK;
            }
            while done < count {
                target.add(done).write(source.add(done).read());
                done += 1;
            }
        }
    }

    impl<T> Drop for Slots<T> {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout; the elements are the ring's to drop.
            unsafe { dealloc(self.first.as_ptr().cast(), Self::layout(self.mask + 1)) };
        }
    }
}

#[cfg(loom)]
mod modelled {
    use loom::cell::UnsafeCell;
    use std::mem::MaybeUninit;

    /// One checked cell for each slot, so that the model sees every overlap of two threads.
    pub(crate) struct Slots<T>(Box<[UnsafeCell<MaybeUninit<T>>]>);

    // SAFETY: as for the real slots.
    unsafe impl<T: Send> Send for Slots<T> {}
    // SAFETY: as for the real slots.
    unsafe impl<T: Send> Sync for Slots<T> {}

    impl<T> Slots<T> {
        pub(crate) fn new(count: usize) -> Slots<T> {
            Slots((0..count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect())
        }

        /// # Safety
        /// Those of the real slots.
        pub(crate) unsafe fn fill(&self, index: usize, source: *const T, count: usize) {
            for offset in 0..count {
                // SAFETY: by the caller's promise the slot is empty and ours, and `source` has the element.
                self.slot(index + offset)
                    .with_mut(|slot| unsafe { (*slot).write(source.add(offset).read()) as *mut T });
            }
        }

        /// # Safety
        /// Those of the real slots.
        pub(crate) unsafe fn empty(&self, index: usize, target: *mut T, count: usize) {
            for offset in 0..count {
                // SAFETY: by the caller's promise the slot is ours and holds an element, and `target` has room.
                self.slot(index + offset)
                    .with_mut(|slot| unsafe { target.add(offset).write((*slot).assume_init_read()) });
            }
        }

        /// # Safety
        /// Those of the real slots.
        pub(crate) unsafe fn put(&self, index: usize, item: T) {
            // SAFETY: by the caller's promise the slot is empty and ours.
            self.slot(index).with_mut(|slot| unsafe { (*slot).write(item) as *mut T });
        }

        /// # Safety
        /// Those of the real slots.
        pub(crate) unsafe fn take(&self, index: usize) -> T {
            // SAFETY: by the caller's promise the slot is ours and holds an element.
            self.slot(index).with_mut(|slot| unsafe { (*slot).assume_init_read() })
        }

        /// # Safety
        /// Those of the real slots.
        pub(crate) unsafe fn look_at(&self, index: usize, look: impl FnOnce(&T)) {
            // SAFETY: by the caller's promise the slot is ours and holds an element.
            self.slot(index).with(|slot| look(unsafe { (*slot).assume_init_ref() }));
        }

        fn slot(&self, index: usize) -> &UnsafeCell<MaybeUninit<T>> {
            &self.0[index & (self.0.len() - 1)]
        }
    }
}
