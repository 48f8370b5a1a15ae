//! Memory shared with the kernel: one `mmap(2)` of a descriptor, unmapped when dropped.
//!
//! Everything in such memory that both sides write is touched through atomics or by the rules of the ring it holds,
//! so a mapping itself only hands out addresses, bounds-checked, in release builds too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// A shared mapping of a descriptor.
pub struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it, and the accessors below hand out either
// atomics or raw addresses whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length_bytes` of `fd` from `offset`, readable and, if asked for, writable.
    pub fn new(fd: BorrowedFd<'_>, offset: i64, length_bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice; it aliases nothing of ours.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length_bytes, protection, flags, fd.as_raw_fd(), offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: NonNull::new(start.cast()).expect("mmap returned an address"), length_bytes })
    }

    /// The address of `count` values of type `T` at `offset_bytes`; panics if they do not lie inside, aligned.
    pub fn array<T>(&self, offset_bytes: usize, count: usize) -> NonNull<T> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset_bytes));
        assert!(end.is_some_and(|end| end <= self.length_bytes), "inside the mapping");
        assert_eq!(offset_bytes % align_of::<T>(), 0, "aligned");
        // SAFETY: `offset_bytes` was just checked to lie inside the mapping.
        unsafe { self.start.add(offset_bytes).cast() }
    }

    /// `count` 32-bit words at `offset_bytes`, as atomics.
    pub fn words(&self, offset_bytes: usize, count: usize) -> &[AtomicU32] {
        // SAFETY: `array` checked bounds and alignment; the memory is initialised by the kernel and lives as long as
        // `self`; the other side writes what is read here only by aligned 32-bit accesses.
        unsafe { std::slice::from_raw_parts(self.array(offset_bytes, count).as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`. A user of an address from `array` holds this value beside it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}
