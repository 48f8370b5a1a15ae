//! The packet memory: one anonymous mapping cut into frames of one size, and the owned handle of a frame.
//! AF_XDP registers this same memory as its UMEM, so a packet never moves between port and path.
//!
//! Rule: there is at most one [`Frame`] for each frame of each memory, so its holder alone may read and write the frame's bytes. Handles
//! are numbers of one process-wide space; a memory owns the range `first_handle .. first_handle + frames`, never given out again, so the
//! check that keeps an access inside the memory also refuses the handle of another memory.
//!
//! Ordering and ownership: a `FrameMemory` is shared and unchanging; the bytes belong to the handle's holder.
//! Handing a `Frame` to another thread through a ring or a pool orders the bytes with it.
//! Source: Linux `Documentation/networking/af_xdp.rst` (UMEM: one area, chunks of equal size).
//! Limits: at most [`FRAMES_MAX`] frames a memory and 2^31 handles in the life of a process; the memory
//! knows neither which frames are free ([`crate::pool`]) nor which the kernel has ([`crate::loans`]).

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The alignment of frames, so that two frames never share a cache line.
pub const LINE_BYTES: usize = 64;

/// The most frames one memory may have (32 GiB of 2 KiB frames).
pub const FRAMES_MAX: u32 = 1 << 24;

/// The right to one frame of one [`FrameMemory`]. Not `Copy`: moving it moves the right.
///
/// Dropping a `Frame` loses the frame for good (the pool's census then shows it as out), so it must go
/// back to a [`crate::pool::Pool`] or into [`crate::loans::Loans`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped frame never returns to its pool"]
#[repr(transparent)]
pub struct Frame(NonZeroU32);

impl Frame {
    /// The handle as a number, for keeping in a table of the pool.
    #[inline]
    pub(crate) fn into_handle(self) -> u32 {
        self.0.get()
    }

    /// Makes a frame of a handle put away with [`Frame::into_handle`].
    ///
    /// # Safety
    /// `handle` came from `into_handle` or [`FrameMemory::handle_at`] and is taken up once only: two `Frame`s of
    /// one number would let two holders reach the same bytes.
    #[inline]
    pub(crate) unsafe fn from_handle(handle: u32) -> Frame {
        Frame(NonZeroU32::new(handle).expect("handles start at 1"))
    }
}

/// The reason why a packet memory could not be made.
#[derive(Debug)]
pub enum MemoryError {
    /// The number of frames is 0 or above [`FRAMES_MAX`].
    Frames(u32),
    /// The frame size is 0 or not a multiple of [`LINE_BYTES`].
    FrameSize(u32),
    /// The process has used up its 2^31 handles.
    HandlesUsedUp,
    /// The kernel refused the mapping of so many bytes.
    Map(usize, std::io::Error),
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemoryError::Frames(frames) => {
                write!(f, "packet memory of {frames} frames: give a number from 1 to {FRAMES_MAX}")
            }
            MemoryError::FrameSize(bytes) => {
                write!(f, "frame size of {bytes} bytes: give a multiple of {LINE_BYTES}, such as 2048")
            }
            MemoryError::HandlesUsedUp => {
                write!(f, "this process has made 2^31 frames in its life: restart it, or reuse its memories")
            }
            MemoryError::Map(bytes, error) => {
                write!(f, "cannot map {bytes} bytes of packet memory: {error}; ask for less, as by --memory")
            }
        }
    }
}

impl std::error::Error for MemoryError {}

/// A page-aligned, zeroed mapping of `frames` frames, present in memory from the start.
///
/// It lies on cache lines of its own: every access to a packet reads it, and the count of an `Arc` around it would share its line.
#[derive(Debug)]
#[repr(align(128))]
pub struct FrameMemory {
    base: NonNull<u8>,
    frames: u32,
    frame_size_bytes: u32,
    first_handle: u32,
}

// SAFETY: the mapping is private to this value and lives as long as it does; its fields never change. Bytes
// are reached only through a `Frame`, of which there is one for each frame (kept by pool and loans).
unsafe impl Send for FrameMemory {}
// SAFETY: as above; `&FrameMemory` alone reaches no bytes except by the raw `base_ptr`.
unsafe impl Sync for FrameMemory {}

impl FrameMemory {
    /// Maps memory for `frames` frames of `frame_size_bytes` each, and brings it in so that no packet waits for
    /// a page fault.
    ///
    /// # Errors
    /// If a number is out of range, or the kernel does not give the memory.
    pub fn new(frames: u32, frame_size_bytes: u32) -> Result<FrameMemory, MemoryError> {
        if frames == 0 || frames > FRAMES_MAX {
            return Err(MemoryError::Frames(frames));
        }
        if frame_size_bytes == 0 || !(frame_size_bytes as usize).is_multiple_of(LINE_BYTES) {
            return Err(MemoryError::FrameSize(frame_size_bytes));
        }
        let len_bytes = usize::try_from(u64::from(frames) * u64::from(frame_size_bytes))
            .map_err(|_| MemoryError::FrameSize(frame_size_bytes))?;
        let first_handle = reserve_handles(frames).ok_or(MemoryError::HandlesUsedUp)?;
        let base = mapping::map(len_bytes).map_err(|error| MemoryError::Map(len_bytes, error))?;
        Ok(FrameMemory { base, frames, frame_size_bytes, first_handle })
    }

    /// The number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The size of one frame.
    #[inline]
    pub fn frame_size_bytes(&self) -> u32 {
        self.frame_size_bytes
    }

    /// The start of the mapping, page aligned, for registering it with the kernel.
    pub fn base_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The length of the mapping.
    pub fn len_bytes(&self) -> usize {
        self.frames as usize * self.frame_size_bytes as usize
    }

    /// The place of `frame` in this memory, from 0: its bytes start at `index_of * frame_size_bytes`.
    ///
    /// # Panics
    /// If the frame is another memory's.
    #[inline]
    pub fn index_of(&self, frame: &Frame) -> u32 {
        let index = frame.0.get().wrapping_sub(self.first_handle);
        assert!(index < self.frames, "a frame was used with a memory that is not its own");
        index
    }

    /// The bytes of `frame`.
    ///
    /// # Panics
    /// If the frame is another memory's.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.start_of(frame);
        // SAFETY: `index_of` put the frame inside the mapping, whose bytes are initialised (zeroed by the kernel). The only handle of this
        // frame is borrowed shared for 'a, so none can write meanwhile: other threads and the kernel (`loans`) would need the handle.
        unsafe { std::slice::from_raw_parts(start, self.frame_size_bytes as usize) }
    }

    /// The bytes of `frame`, to write.
    ///
    /// # Panics
    /// If the frame is another memory's.
    #[inline(always)]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.start_of(frame);
        // SAFETY: as in `bytes`; the only handle is borrowed exclusively for 'a, so this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(start, self.frame_size_bytes as usize) }
    }

    /// The handle of the frame at `index`, which is below `frames`.
    pub(crate) fn handle_at(&self, index: u32) -> u32 {
        debug_assert!(index < self.frames);
        self.first_handle + index
    }

    #[inline]
    fn start_of(&self, frame: &Frame) -> *mut u8 {
        let offset = self.index_of(frame) as usize * self.frame_size_bytes as usize;
        // SAFETY: `index_of` is below `frames`, so the offset stays inside the mapping of `len_bytes`.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        // SAFETY: `base` is the address that `map` returned for this length, and no borrow of the bytes outlives `self`.
        unsafe { mapping::unmap(self.base, self.len_bytes()) };
    }
}

/// Takes `frames` numbers that no memory of this process had before.
fn reserve_handles(frames: u32) -> Option<u32> {
    /// The next handle that was never given; 0 is left out so that `Option<Frame>` is four bytes.
    static NEXT: AtomicU32 = AtomicU32::new(1);
    const END: u32 = 1 << 31;
    // Relaxed: the number alone matters, it orders no other memory.
    NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
        next.checked_add(frames).filter(|&end| end <= END)
    })
    .ok()
}

#[cfg(not(miri))]
mod mapping {
    use std::io::{Error, Result};
    use std::ptr::NonNull;

    /// A private anonymous mapping, zeroed and present.
    pub(super) fn map(len_bytes: usize) -> Result<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        // Packets concern their senders and receivers, not a reader of a core dump. Without the promise no packet memory is given.
        // SAFETY: the range is the mapping just made.
        if unsafe { libc::madvise(base, len_bytes, libc::MADV_DONTDUMP) } != 0 {
            let error = Error::last_os_error();
            // SAFETY: the mapping just made, which no other code knows.
            unsafe { libc::munmap(base, len_bytes) };
            return Err(error);
        }
        // Huge pages are a wish: a kernel without them answers EINVAL and we go on with small ones.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(base, len_bytes, libc::MADV_HUGEPAGE) };
        // SAFETY: as above.
        if unsafe { libc::madvise(base, len_bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            let error = Error::last_os_error();
            // EINVAL: a kernel before 5.14 does not know the request; its pages come at first touch.
            if error.raw_os_error() != Some(libc::EINVAL) {
                // SAFETY: the mapping just made, which no other code knows.
                unsafe { libc::munmap(base, len_bytes) };
                return Err(error);
            }
        }
        Ok(NonNull::new(base.cast()).expect("mmap does not return null for an address of its choice"))
    }

    /// Undoes [`map`].
    ///
    /// # Safety
    /// `base` and `len_bytes` are of one `map`, and no code uses the bytes afterwards.
    pub(super) unsafe fn unmap(base: NonNull<u8>, len_bytes: usize) {
        // SAFETY: by the caller's promise this is a whole mapping that no code uses any more.
        unsafe { libc::munmap(base.as_ptr().cast(), len_bytes) };
    }
}

/// The interpreter has no `madvise`; the allocator gives it the same zeroed, aligned bytes.
#[cfg(miri)]
mod mapping {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io::Result;
    use std::ptr::NonNull;

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes, 4096).expect("a page-aligned layout")
    }

    pub(super) fn map(len_bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the length is not 0, `FrameMemory::new` checked it.
        let base = unsafe { alloc_zeroed(layout(len_bytes)) };
        NonNull::new(base).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// Those of the mapped form.
    pub(super) unsafe fn unmap(base: NonNull<u8>, len_bytes: usize) {
        // SAFETY: by the caller's promise `base` came from `map` with this length.
        unsafe { dealloc(base.as_ptr(), layout(len_bytes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_page_aligned_zeroed_and_apart() {
        let memory = FrameMemory::new(4, 2048).unwrap();
        assert_eq!(memory.base_ptr() as usize % 4096, 0);
        assert_eq!(memory.len_bytes(), 4 * 2048);
        // SAFETY: each index is taken once.
        let (mut first, second) =
            unsafe { (Frame::from_handle(memory.handle_at(0)), Frame::from_handle(memory.handle_at(1))) };
        memory.bytes_mut(&mut first).fill(0xaa);
        assert!(memory.bytes(&second).iter().all(|&byte| byte == 0));
        assert_eq!(memory.bytes(&first).len(), 2048);
        assert_eq!(memory.bytes(&second).as_ptr() as usize - memory.base_ptr() as usize, 2048);
    }

    #[test]
    #[should_panic(expected = "not its own")]
    fn a_frame_of_another_memory_is_refused() {
        let ours = FrameMemory::new(4, 64).unwrap();
        let other = FrameMemory::new(4, 64).unwrap();
        // SAFETY: the index is taken once.
        let foreign = unsafe { Frame::from_handle(other.handle_at(2)) };
        ours.bytes(&foreign);
    }

    #[test]
    fn a_bad_size_is_refused_with_what_to_do() {
        assert!(FrameMemory::new(0, 2048).unwrap_err().to_string().contains("from 1 to"));
        assert!(FrameMemory::new(FRAMES_MAX + 1, 64).is_err());
        assert!(FrameMemory::new(1, 100).unwrap_err().to_string().contains("multiple of 64"));
        assert!(FrameMemory::new(1, 0).is_err());
    }

    #[test]
    fn a_handle_takes_four_bytes_with_and_without_absence() {
        assert_eq!(size_of::<Frame>(), 4);
        assert_eq!(size_of::<Option<Frame>>(), 4);
    }
}
