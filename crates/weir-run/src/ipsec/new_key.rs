//! Key files that are made here, of keys that were agreed on for the kernel.
//!
//! ```text
//! DIRECTORY/FINGERPRINT.key            the digits, which only their owner may read
//! DIRECTORY/FINGERPRINT.key.sequence   of one that seals, its mark (`ipsec/mark_file.rs`)
//! DIRECTORY/FINGERPRINT.key.received   of one that opens, its mark, once anything was received with it
//! ```
//!
//! Rule: a file is called by its key, so the same key finds its mark again, for any association and however often it comes, and no number
//! is used twice. A mark of what was sent is never touched once it is there. One of what was received is raised to what the kernel has
//! received. Both stay when the key is removed.
//!
//! Limits: marks of keys that are gone stay, 90 bytes each; in `/run` until the machine starts anew. Another directory knows no marks.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weir_ipsec::algorithm::Algorithm;
use zeroize::Zeroizing;

use super::key_file;
use super::mark_file::{MarkFile, MarkKind};

/// The mark of a key that was never used.
const UNUSED: &str = "1\n";

/// A key that may not be in its file yet.
pub(super) struct NewKey {
    path: PathBuf,
    digits: Zeroizing<String>,
    fingerprint: [u8; 16],
    /// The highest number that was received with it, 0 if none was; `None` if it seals.
    received: Option<u64>,
}

impl NewKey {
    /// The file of a key in `directory`, with which numbers up to `received` were received, if it opens.
    ///
    /// # Errors
    /// If the digits are no key of this algorithm.
    pub(super) fn new(
        directory: &Path,
        algorithm: Algorithm,
        digits: &str,
        received: Option<u64>,
    ) -> Result<NewKey, String> {
        // A kernel in lockdown (`LOCKDOWN_XFRM_SECRET`) tells every key as zeros.
        if digits.bytes().all(|digit| digit == b'0') {
            return Err("its key is nothing but zeros, as where the kernel hides keys (lockdown)".into());
        }
        let fingerprint = key_file::of_digits(digits.as_bytes(), algorithm)?.fingerprint();
        let path = directory.join(format!("{:032x}.key", u128::from_be_bytes(fingerprint)));
        Ok(NewKey { path, digits: Zeroizing::new(digits.into()), fingerprint, received })
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file, and its mark. A file that is there already is left as it is, if it is of this key. Returns whether the file of the key
    /// is made.
    ///
    /// # Errors
    /// If a file cannot be written, or is another key's.
    pub(super) fn write(&self) -> Result<bool, String> {
        self.write_both().map_err(|why| format!("{}: {why}", self.path.display()))
    }

    fn write_both(&self) -> Result<bool, String> {
        let told = |error: io::Error| error.to_string();
        let is_there = match std::fs::read_to_string(&self.path).map(Zeroizing::new) {
            Ok(there) if there.trim() == self.digits.as_str() => true,
            Ok(_) => return Err("this is another key: name another directory with --keys".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(told(error)),
        };
        if let Some(received) = self.received.filter(|received| *received > 0) {
            MarkFile::raise_received(&MarkKind::Received.path(&self.path), self.fingerprint, received)?;
        }
        if is_there {
            return Ok(false);
        }
        if self.received.is_none() {
            // First: a key without a mark is refused by the datapath that runs it; a mark of no number, left by one who was cut off, is as
            // good.
            let mark = MarkKind::Sent.path(&self.path);
            match mark.try_exists() {
                Ok(false) => create(&mark, UNUSED)
                    .map(drop)
                    .map_err(|error| format!("beside it {}: {error}", mark.display()))?,
                // A mark that is there is not ours to replace.
                _ => MarkKind::Sent
                    .check(&mark, Some(self.fingerprint))
                    .map(drop)
                    .map_err(|why| format!("beside it {why}"))?,
            }
        }
        create(&self.path, &self.digits).map(|_| true).map_err(told)
    }
}

/// A file is there when its directory says so.
///
/// # Errors
/// Of the disk.
pub(super) fn sync_directories<'a>(keys: impl Iterator<Item = &'a NewKey>) -> Result<(), String> {
    for directory in keys.filter_map(|key| key.path.parent()).collect::<BTreeSet<_>>() {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|why| format!("{}: {why}", directory.display()))?;
    }
    Ok(())
}

/// Makes a file that only its owner can read. It is there as a whole or not at all.
pub(super) fn create(path: &Path, text: &str) -> io::Result<File> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // A file that is there was left by a process that was cut off.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| {
        // The error before is the one to tell.
        let _ = std::fs::remove_file(&new);
    })?;
    Ok(file)
}
