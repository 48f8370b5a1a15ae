//! The time-stamp counter of x86-64, shared by the benchmarks that count in its cycles.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::time::{Duration, Instant};

/// The counter now. The fences keep it from being read before the work is done, and the work from starting before.
pub fn now_cycles() -> u64 {
    // SAFETY: fences and a counter that every x86-64 processor has; they touch no memory of ours.
    unsafe {
        _mm_lfence();
        let cycles = _rdtsc();
        _mm_lfence();
        cycles
    }
}

/// The rate of the time stamp counter, in cycles a second.
#[allow(dead_code, reason = "not every benchmark says it")]
#[expect(clippy::disallowed_methods, reason = "a benchmark compares cycles with seconds")]
pub fn tsc_hz() -> f64 {
    let (since, start) = (Instant::now(), now_cycles());
    while since.elapsed() < Duration::from_millis(50) {}
    (now_cycles() - start) as f64 / since.elapsed().as_secs_f64()
}
