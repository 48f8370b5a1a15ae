//! The lock on things that several Weir processes of a machine must not do at once, such as choosing a free network.
//!
//! The lock, by `flock(2)`, is on the directory itself that Weir's holds are in, so that locking makes no file and leaves none. No other
//! user can open that directory: whoever can open one can lock it, and would hold up every weir of the machine. The kernel releases the
//! lock when its holder dies.
//!
//! Limits: weirs of different mount namespaces, with a `/run` each, do not see each other; nor does one of a version that locks `/run/weir`
//! itself.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Doing, Result};
use crate::{directory, sys};

/// The directory of Weir's sockets, and of the directory of its holds.
pub const DIRECTORY: &str = "/run/weir";
/// The name of the directory of holds.
const HOLDS: &str = "holds";

/// The right to arrange what several weirs share, until dropped.
pub struct Lock {
    _directory: File,
}

impl Lock {
    /// Takes the lock, and waits for it, because a holder needs it for milliseconds.
    ///
    /// # Errors
    /// If another process has it for 15 s.
    pub fn take() -> Result<Lock> {
        Lock::take_within(Duration::from_secs(15))
    }

    /// Takes the lock as [`Lock::take`] does, and waits no longer than `patience`.
    pub(crate) fn take_within(patience: Duration) -> Result<Lock> {
        Lock::take_in(Path::new(DIRECTORY), patience).doing(|| format!("locking {DIRECTORY}/{HOLDS}"))
    }

    /// Takes the lock if no process has it; not where no weir has ever been.
    pub fn try_take() -> Option<Lock> {
        let directory = File::open(holds()).ok()?;
        try_flock(&directory, libc::LOCK_EX)
            .is_ok_and(|taken| taken)
            .then_some(Lock { _directory: directory })
    }

    fn take_in(path: &Path, patience: Duration) -> io::Result<Lock> {
        const BETWEEN: Duration = Duration::from_millis(1);
        directory::make(path)?;
        let directory = directory::make_private(&path.join(HOLDS))?;
        for _ in 0..patience.as_millis() / BETWEEN.as_millis() {
            if try_flock(&directory, libc::LOCK_EX)? {
                return Ok(Lock { _directory: directory });
            }
            sys::poll(&mut [], Some(BETWEEN.as_nanos() as u64))?;
        }
        let told =
            format!("another weir has had it for {} s: `fuser` tells which, end that", patience.as_secs());
        Err(io::Error::other(told))
    }
}

/// The directory of holds.
pub(crate) fn holds() -> PathBuf {
    Path::new(DIRECTORY).join(HOLDS)
}

/// Locks an open file in one of the modes of `flock(2)`; false if another has it in a mode that excludes this one.
pub(crate) fn try_flock(file: &File, mode: libc::c_int) -> io::Result<bool> {
    // SAFETY: takes no pointers; the descriptor is open.
    match sys::check(unsafe { libc::flock(file.as_raw_fd(), mode | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("weir-lock-{name}-{}", std::process::id()))
    }

    #[test]
    fn only_one_at_a_time_has_it_and_nothing_is_left() {
        let path = scratch("one");
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = Lock::take_in(&path, Duration::from_secs(15)).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(lock);
                    }
                });
            }
        });
        // Only an empty directory can be removed.
        std::fs::remove_dir(path.join(HOLDS)).unwrap();
        std::fs::remove_dir(&path).unwrap();
    }

    /// `flock(2)` asks for no right but that to open a file.
    #[test]
    fn nobody_else_can_open_what_is_locked() {
        use std::os::unix::fs::MetadataExt;
        let path = scratch("others");
        let lock = Lock::take_in(&path, Duration::from_secs(15)).unwrap();
        let others = lock._directory.metadata().unwrap().mode() & 0o077;
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(others, 0, "{others:o}");
    }
}
