//! Asking for memory before it is read, so that what is done meanwhile hides the wait.
//!
//! A read for the same purpose would hold the processor up as soon as its window of instructions is full; this does not, and
//! changes nothing but what the caches hold.
//!
//! Limits: nothing but x86-64 has a kernel; elsewhere it does nothing.

/// Asks for the cache line in which a value begins.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 processor, never faults and writes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
