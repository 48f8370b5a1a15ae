//! The depth of its thread's stack that a piece of work uses: the work runs on a stack that was painted before, and the words that are not
//! of that colour any more were used.
//!
//! Rule: the paint is of words that no code has a reason to write, and the depth is counted from where the work was called, so the words
//! that a thread needs to begin are not in it.
//!
//! Owner: the caller owns the stack, before the thread and after it. Limits: words that are reserved on the stack and never written are not
//! seen.

use std::ffi::c_void;
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use anyhow::{Result, bail};

/// More than any work here uses; the first page of it is out of bounds.
const STACK_BYTES: usize = 1 << 20;
const GUARD_BYTES: usize = 4096;
const PAINT: u64 = 0x5eed_ca11_5eed_ca11;

/// The memory of a stack.
struct PaintedStack {
    base: *mut c_void,
}

impl PaintedStack {
    fn new() -> io::Result<PaintedStack> {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses a place that nothing has.
        let base = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, read_write, private, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = PaintedStack { base };
        for word in stack.words() {
            // SAFETY: the word is one of the mapping, which is writable and nobody else's yet.
            unsafe { word.write(PAINT) };
        }
        // SAFETY: the page is the first of the mapping, and no word is in it.
        match unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its words, from the deepest.
    fn words(&self) -> impl Iterator<Item = *mut u64> + use<> {
        let first = self.base.cast::<u64>();
        (GUARD_BYTES / 8..STACK_BYTES / 8).map(move |word| first.wrapping_add(word))
    }

    /// The deepest word that was written.
    fn deepest(&self) -> usize {
        // SAFETY: the words are of the mapping and readable, and the thread that wrote them has been joined.
        let is_used = |word: &*mut u64| unsafe { word.read() } != PAINT;
        let deepest = self.words().find(is_used);
        deepest.map_or(self.base as usize + STACK_BYTES, |word| word as usize)
    }
}

impl Drop for PaintedStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no thread runs on it any more.
        unsafe { libc::munmap(self.base, STACK_BYTES) };
    }
}

/// The work of a thread, and its outcome.
struct Task<W> {
    work: Option<W>,
    /// The address of the stack where the work was called.
    called_at: usize,
    has_panicked: bool,
}

/// Does some work on a thread of its own. Returns how many bytes of stack it used.
///
/// # Errors
/// If there can be no such thread, or it panics.
pub fn stack_bytes(work: impl FnOnce() + Send) -> Result<usize> {
    let stack = PaintedStack::new()?;
    let mut task = Task { work: Some(work), called_at: 0, has_panicked: false };
    run(&stack, &mut task)?;
    if task.has_panicked {
        bail!("what ran on a painted stack panicked");
    }
    Ok(task.called_at - stack.deepest())
}

/// Runs a task to its end on a stack.
fn run<W: FnOnce() + Send>(stack: &PaintedStack, task: &mut Task<W>) -> io::Result<()> {
    let check = |code: i32| if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) };
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the call initialises what the pointer is of.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: initialised above; the stack is a mapping of that size, which lives until the thread has been joined.
    let set = check(unsafe { libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.base, STACK_BYTES) });
    let mut thread = MaybeUninit::uninit();
    let task = ptr::from_mut(task).cast::<c_void>();
    let begun = set.and_then(|()| {
        // SAFETY: `begin` is given the task that it is for. That is this function's alone until the thread has been joined, and may be
        // sent to it, because the work may.
        check(unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin::<W>, task) })
    });
    // SAFETY: initialised above, and used no more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    begun?;
    // SAFETY: the thread was begun, and nobody else joins it.
    check(unsafe { libc::pthread_join(thread.assume_init(), ptr::null_mut()) })
}

extern "C" fn begin<W: FnOnce() + Send>(task: *mut c_void) -> *mut c_void {
    // SAFETY: `run` gives the task of this type, and touches it only when this has ended.
    let task = unsafe { &mut *task.cast::<Task<W>>() };
    let here = 0u64;
    task.called_at = black_box(&raw const here) as usize;
    let work = task.work.take();
    // Nothing unwinds out of a thread that is not std's.
    task.has_panicked = catch_unwind(AssertUnwindSafe(|| work.map(|work| work()))).is_err();
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deep(levels: usize) -> u64 {
        let frame = black_box([levels as u64; 128]);
        if levels == 0 { frame[0] } else { deep(levels - 1).wrapping_add(frame[127]) }
    }

    #[test]
    fn deeper_work_uses_more_by_what_its_frames_hold() {
        let of = |levels| stack_bytes(|| _ = black_box(deep(black_box(levels)))).unwrap();
        let [one, again, seventeen] = [of(1), of(1), of(17)];
        assert_eq!(one, again);
        assert!(one < 8192, "{one} bytes of two frames of a kilobyte");
        assert!((16 * 1024..16 * 4096).contains(&(seventeen - one)), "{one} and {seventeen}");
    }

    #[test]
    fn a_panic_is_told() {
        assert!(stack_bytes(|| panic!("on purpose")).unwrap_err().to_string().contains("panicked"));
    }
}
