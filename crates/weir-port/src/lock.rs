//! One at a time: what several Weir processes of a machine must not do at once, such as choosing a free network.
//!
//! The lock is a file that only root may open, locked by `flock(2)` and gone when nobody holds it. The kernel lets go of it when
//! its holder dies.
//!
//! Rule: who has locked the file must find it still at its path, for the holder before may have deleted it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Doing, Result};

/// Where Weir's sockets and locks are.
pub const DIRECTORY: &str = "/run/weir";
const NAME: &str = "network.lock";

/// The right to arrange networks of this machine, until dropped.
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for it.
    pub fn take() -> Result<Lock> {
        Lock::take_in(Path::new(DIRECTORY)).doing(|| format!("locking {DIRECTORY}/{NAME}"))
    }

    fn take_in(directory: &Path) -> io::Result<Lock> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(NAME);
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.lock()?;
            let own = file.metadata()?;
            let is_same = std::fs::metadata(&path)
                .is_ok_and(|there| (own.dev(), own.ino()) == (there.dev(), there.ino()));
            if is_same {
                return Ok(Lock { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked. Left behind, it is found and locked by the next.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn only_one_at_a_time_has_it_and_nothing_is_left() {
        let directory = std::env::temp_dir().join(format!("weir-lock-{}", std::process::id()));
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = Lock::take_in(&directory).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(lock);
                    }
                });
            }
        });
        // Only an empty directory can be removed.
        std::fs::remove_dir(&directory).unwrap();
    }
}
