//! The clock: the one place of the path that reads time (`CLOCK_MONOTONIC`, in nanoseconds), the processor time of a thread, and the date.

/// Nanoseconds since the machine started.
#[inline]
pub fn now_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds for which a core has worked for this thread, however many threads share the machine.
pub fn thread_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The date in seconds since 1970, until 2106.
pub fn unix_seconds() -> u32 {
    (read_ns(libc::CLOCK_REALTIME) / 1_000_000_000).try_into().unwrap_or(u32::MAX)
}

#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec for the call to fill; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
