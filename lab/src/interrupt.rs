//! Ctrl-C that still cleans up: a signal sets a flag, every wait looks at it, and the run returns an error, so
//! that namespaces and processes are removed by the values that own them.
//!
//! A second Ctrl-C ends the program at once; the next run removes the namespaces that it leaves behind (`bed::sweep`). A second SIGTERM
//! does not: a program that sends one may send it twice, as timeout(1) does to a group and to the program in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::now;

/// The time that cleaning up may take. A daemon that is asked to end restores its interfaces in it.
const GRACE: Duration = Duration::from_secs(5);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM end the run in good order.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero sigaction is a valid value of it (no flags, empty mask); the handler only stores to
        // an atomic, which is async-signal-safe; the old action is not asked for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            let once = if signal == libc::SIGINT { libc::SA_RESETHAND } else { 0 };
            action.sa_flags = libc::SA_RESTART | once;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Fails once a signal has asked the run to end.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Waits for a condition, for values that clean up: also after a signal, when every other wait is refused. Returns whether it came to hold.
pub fn wait_to_clean_up(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = now() + GRACE;
    while !condition() {
        if now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}
