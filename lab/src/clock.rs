//! The bench's clock, and waiting for a condition until a deadline.
//!
//! A wait names what it waits for, so that a deadline that passes names it. Nothing here sleeps in the hope that something has happened
//! meanwhile.
//!
//! Limits: a condition is looked at every two milliseconds, so this measures nothing finer.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::interrupt;

/// The pause between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The time, for measuring the machine from outside.
#[expect(clippy::disallowed_methods, reason = "a bench measures programs from outside, on the wall clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, in the form that programs take on their command line.
#[expect(clippy::disallowed_methods, reason = "other programs are told when to start by the date")]
pub fn epoch_seconds() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("the date is after 1970")
        .as_secs_f64()
}

/// Returns as soon as `condition` holds; fails when `limit` passes first or the run is interrupted. The last look begins after the limit, so
/// that one during which the machine stood still is not the last.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = now();
    loop {
        let is_late = started.elapsed() >= limit;
        if condition()? {
            return Ok(());
        }
        interrupt::check()?;
        if is_late {
            bail!("{what}: not so after {:.1} s", limit.as_secs_f64());
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Lets `duration` of the experiment pass, calling `each` with the part of it that is over (0 to 1).
pub fn let_pass(duration: Duration, mut each: impl FnMut(f64)) -> Result<()> {
    let started = now();
    loop {
        let elapsed = started.elapsed();
        each((elapsed.as_secs_f64() / duration.as_secs_f64()).min(1.0));
        if elapsed >= duration {
            return Ok(());
        }
        interrupt::check()?;
        thread::sleep((duration - elapsed).min(Duration::from_millis(50)));
    }
}

/// While this lives, its thread runs before all ordinary programs as soon as it wakes, so that a value that it reads and the time at which
/// it reads it belong together, however busy the floods keep the processors. Programs that it starts are ordinary.
#[derive(Debug)]
pub struct Punctual {
    /// The policy is this thread's alone.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Punctual {
    /// Makes this thread one that does not wait. Needs root.
    pub fn new() -> Result<Punctual> {
        set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
            .map_err(|error| anyhow!("real-time scheduling: {error}"))?;
        Ok(Punctual { _not_send: std::marker::PhantomData })
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        // The thread has just been allowed the opposite.
        let _ = set_policy(libc::SCHED_OTHER, 0);
    }
}

/// Sets how the kernel schedules this thread.
pub(crate) fn set_policy(policy: i32, priority: i32) -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is to a live value of the type that is read; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_is_named() {
        let error = wait_until("the moon is full", Duration::from_millis(5), || Ok(false)).unwrap_err();
        assert!(error.to_string().starts_with("the moon is full: not so after"), "{error}");
    }

    #[test]
    fn a_condition_that_holds_ends_the_wait() {
        let mut looks = 0;
        wait_until("three looks", Duration::from_secs(10), || {
            looks += 1;
            Ok(looks == 3)
        })
        .unwrap();
        assert_eq!(looks, 3);
    }
}
