//! The clock: the one place of the path that reads time (`CLOCK_MONOTONIC`, in nanoseconds), the time asleep, the processor time of a
//! thread, and the date.
//!
//! Rule: waits and timers stand still while the machine sleeps, as the kernel's own of TCP do; a wait that was over at the wake-up would drop
//! what it waits for. The lifetime of a security association goes on.

/// Nanoseconds since the machine started, without those for which it slept.
#[inline]
pub fn now_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds for which the machine has slept since it started (`CLOCK_BOOTTIME` less `CLOCK_MONOTONIC`), or a little less.
pub fn asleep_ns() -> u64 {
    // In this order a pause between both makes it less.
    let with_sleep_ns = read_ns(libc::CLOCK_BOOTTIME);
    with_sleep_ns.saturating_sub(now_ns())
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A time namespace's machine has slept for longer, as far as its clocks tell.
    #[test]
    fn time_asleep_is_told_apart() {
        const BEFORE: &str = "WEIR_TEST_ASLEEP_NS";
        if let Ok(before) = std::env::var(BEFORE) {
            let slept_ns = asleep_ns() - before.parse::<u64>().unwrap();
            assert_eq!((slept_ns + 500_000_000) / 1_000_000_000, 100_000, "{slept_ns} ns");
            return;
        }
        if !weir_port::sys::is_root() {
            return;
        }
        let mut inside = Command::new("unshare");
        inside.args(["--time", "--boottime", "100000"]).arg(std::env::current_exe().unwrap());
        inside.args(["--exact", "clock::tests::time_asleep_is_told_apart"]);
        let done = inside.env(BEFORE, asleep_ns().to_string()).output().unwrap();
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && told.contains("1 passed"), "{told}");
    }
}
