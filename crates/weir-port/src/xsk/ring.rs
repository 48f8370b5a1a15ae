//! The rings that an AF_XDP socket shares with the kernel: single producer, single consumer, a power of two long.
//!
//! Rule: `consumer <= producer <= consumer + size`, both free-running 32-bit counters; entry `i` is at `i & mask`. The side that advances a
//! counter publishes with a release store, and the other side reads it with an acquire load: R0 (our producer) <-> the kernel's
//! `xskq_cons_get_entries`; the kernel's `xskq_prod_submit` <-> A0; R1 (our consumer) <-> the kernel's `xskq_prod_nb_free`; the kernel's
//! `__xskq_cons_release` <-> A1.
//!
//! Owner: the worker that owns the port. Source: kernel `net/xdp/xsk_queue.h`, `Documentation/networking/af_xdp.rst`.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mapping::Mapping;

/// A packet's place in the packet memory (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Offset in the packet memory, in bytes.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// `XDP_PKT_CONTD` where more descriptors belong to the packet; Weir asks for none.
    pub options: u32,
}

/// The offsets at which the kernel put a ring's counters and entries (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Offsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
}

/// An entry of fill and completion rings (`u64` offsets) or of receive and transmit rings ([`Descriptor`]s).
pub trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for Descriptor {}

struct Shared<T> {
    mapping: Mapping,
    offsets: Offsets,
    mask: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Shared<T> {
    fn map(fd: BorrowedFd<'_>, page_offset: i64, offsets: Offsets, size: u32) -> io::Result<Shared<T>> {
        let length_bytes = offsets.entries as usize + size as usize * size_of::<T>();
        let mapping = Mapping::new(fd, page_offset, length_bytes, true)?;
        Ok(Shared { mapping, offsets, mask: size - 1, entry: PhantomData })
    }

    fn size(&self) -> u32 {
        self.mask + 1
    }

    fn producer(&self) -> &AtomicU32 {
        &self.mapping.words(self.offsets.producer as usize, 1)[0]
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.mapping.words(self.offsets.consumer as usize, 1)[0]
    }

    fn entry(&self, index: u32) -> *mut T {
        let entries = self.mapping.array::<T>(self.offsets.entries as usize, self.size() as usize);
        // SAFETY: `index & mask` is below `size`, and `array` checked that `size` entries lie inside the mapping.
        unsafe { entries.as_ptr().add((index & self.mask) as usize) }
    }
}

/// The half of a ring that we fill: fill and transmit.
pub struct XskProducer<T> {
    shared: Shared<T>,
    next: u32,
    published: u32,
    /// The count up to which the kernel has shown that it has taken entries: `published` at the most, and `next - size` at the least.
    taken: u32,
}

impl<T: Entry> XskProducer<T> {
    /// Maps a ring of `size` entries.
    pub fn map(
        fd: BorrowedFd<'_>,
        page_offset: i64,
        offsets: Offsets,
        size: u32,
    ) -> io::Result<XskProducer<T>> {
        let shared = Shared::map(fd, page_offset, offsets, size)?;
        let next = shared.producer().load(Ordering::Relaxed);
        let taken = next.wrapping_sub(size);
        Ok(XskProducer { shared, next, published: next, taken })
    }

    /// The entries, published or not, that the kernel has not taken yet, as far as it has said.
    pub fn unconsumed(&self) -> u32 {
        // A1: the kernel has read what it has taken; that slot may be written again.
        let said = self.next.wrapping_sub(self.shared.consumer().load(Ordering::Acquire));
        said.min(self.next.wrapping_sub(self.taken))
    }

    /// Notes that the kernel has taken all entries but the last `unconsumed`, which it showed in another way.
    pub fn note_unconsumed(&mut self, unconsumed: u32) {
        if unconsumed < self.next.wrapping_sub(self.taken) {
            self.taken = self.next.wrapping_sub(unconsumed);
        }
    }

    /// The number of entries that still fit.
    pub fn room(&self) -> u32 {
        self.shared.size() - self.unconsumed()
    }

    /// Writes the next entry; panics if there is no room, which callers ensure.
    pub fn push(&mut self, entry: T) {
        assert!(self.room() > 0, "a ring is never overfilled");
        // SAFETY: the slot is inside the ring and, there being room, not the kernel's to read until published.
        unsafe { self.shared.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        // The kernel has taken the entry before in this slot, or there would have been no room.
        self.note_unconsumed(self.shared.size());
    }

    /// Makes everything pushed visible to the kernel.
    pub fn publish(&mut self) {
        if self.published != self.next {
            // R0: the entries written above are visible to a reader of this counter.
            self.shared.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }
}

/// The half of a ring that we empty: receive and completion.
pub struct XskConsumer<T> {
    shared: Shared<T>,
    next: u32,
    end: u32,
}

impl<T: Entry> XskConsumer<T> {
    /// Maps a ring of `size` entries.
    pub fn map(
        fd: BorrowedFd<'_>,
        page_offset: i64,
        offsets: Offsets,
        size: u32,
    ) -> io::Result<XskConsumer<T>> {
        let shared = Shared::map(fd, page_offset, offsets, size)?;
        let next = shared.consumer().load(Ordering::Relaxed);
        Ok(XskConsumer { shared, next, end: next })
    }

    /// Takes the next entry; the slot is given back by [`XskConsumer::release`].
    pub fn pop(&mut self) -> Option<T> {
        if self.next == self.end {
            // A0: the entries up to this counter are visible.
            self.end = self.shared.producer().load(Ordering::Acquire);
            if self.next == self.end {
                return None;
            }
        }
        // SAFETY: the slot is inside the ring and was published to us; the kernel leaves it alone until released. An entry is plain
        // integers, so any bytes in it are a valid value, which the caller checks.
        let entry = unsafe { self.shared.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// The entries that could be popped now, without taking them.
    pub fn waiting(&self) -> impl Iterator<Item = T> + '_ {
        // A0, as in `pop`.
        let end = self.shared.producer().load(Ordering::Acquire);
        (0..end.wrapping_sub(self.next).min(self.shared.size())).map(|ahead| {
            // SAFETY: as in `pop`: published to us, and not released yet.
            unsafe { self.shared.entry(self.next.wrapping_add(ahead)).read() }
        })
    }

    /// Gives the slots of everything popped back to the kernel.
    pub fn release(&mut self) {
        // R1: our reads of the entries are done before the kernel sees the counter.
        self.shared.consumer().store(self.next, Ordering::Release);
    }
}
