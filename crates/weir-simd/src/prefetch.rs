//! Prefetch: asks for memory before it is read, so that the work done meanwhile hides the wait.
//!
//! A read for the same purpose would hold the processor up as soon as its window of instructions is full; a prefetch does not, and changes
//! only the contents of the caches.
//!
//! Limits: only x86-64 has a kernel; elsewhere a prefetch does nothing.

/// Asks for the cache line in which a value begins.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 processor, never faults and writes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for the cache line in which a value begins, to write it: where another core has the line, the write then need not fetch it from
/// there a second time.
#[inline(always)]
pub fn prefetch_write<T: ?Sized>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: PREFETCHW never faults and changes no value; a processor without it has a no-operation at its encoding. The compiler's
    // own form of it is the one for reading, unless it may take PREFETCHW for granted.
    unsafe {
        let place = std::ptr::from_ref(value).cast::<u8>();
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
