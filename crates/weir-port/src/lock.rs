//! One at a time: what several Weir processes of a machine must not do at once, such as choosing a free network.
//!
//! The lock is a file that only root may open, locked by `flock(2)` and gone when nobody holds it. The kernel lets go of it when
//! its holder dies.
//!
//! Rule: who has locked the file must find it still at its path, for the holder before may have deleted it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Doing, Result};

/// Where Weir's sockets and locks are.
pub const DIRECTORY: &str = "/run/weir";
const PATH: &str = "/run/weir/network.lock";

/// The right to arrange networks of this machine, until dropped.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for it.
    pub fn take() -> Result<Lock> {
        let take = || -> io::Result<Lock> {
            std::fs::create_dir_all(DIRECTORY)?;
            loop {
                let file =
                    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(PATH)?;
                file.lock()?;
                let still_there = std::fs::metadata(PATH).is_ok_and(|there| {
                    file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
                });
                if still_there {
                    return Ok(Lock { _file: file });
                }
            }
        };
        take().doing(|| format!("locking {PATH}"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked. Left behind, it is found and locked by the next.
        let _ = std::fs::remove_file(Path::new(PATH));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// As root only: the file is where only root may write.
    #[test]
    fn only_one_at_a_time_has_it() {
        if !crate::sys::is_root() {
            return;
        }
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = Lock::take().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(lock);
                    }
                });
            }
        });
    }
}
