//! Marks of sequence numbers on disk, beside each key file: `KEY_FILE.sequence` of an outbound association, and `KEY_FILE.received` of an
//! inbound one.
//!
//! ```text
//! weir sequence                     or, of a key that is new, as its user writes it:  1
//! next 00000000000008388609         the first number that nobody can have used with this key
//! key 0123456789abcdef0123456789abcdef      the fingerprint of the key
//!
//! weir received
//! next 00000000000008388609         the first number above all that were received with this key, as far as was written
//! key 0123456789abcdef0123456789abcdef
//! ```
//!
//! A key file may be a link: its mark is beside the file that is meant, all links on the way there resolved, so that one key has one mark
//! under however many links. A mark beside a link is an earlier version's, or somebody's mistake. It says numbers that may have been used, so
//! it is never passed over: its association is refused, with what to do.
//!
//! | a mark that | of what is sent | of what was received |
//! |---|---|---|
//! | is not there | is refused: nobody knows which numbers were used | is made: the key has received nothing |
//! | is of another key, which the file had before | is refused | is made anew |
//! | is damaged, locked by another process, or another user's to write | is refused | is refused |
//! | is written | is safe when it is on disk ([`File::sync_all`]) | may be 30 s late when the machine fails, not when the process does |
//!
//! Rule: a mark is another key's only if its key line is whole and says so: of a damaged one nobody knows the numbers, and no mark may be
//! made anew for its key.
//!
//! Owner: the process that has the key, by a lock. Limits: a file that is copied with its key to another machine tells both the same; a key
//! that comes back into its file after another has received nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::key_file;

const BYTES_MAX: usize = 256;

/// The numbers that a mark is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// Those that an outbound association sent, or may have.
    Sent,
    /// Those that an inbound association received.
    Received,
}

impl MarkKind {
    /// The path of the mark of a key.
    pub fn path(self, key: &Path) -> PathBuf {
        let mut path = key.as_os_str().to_owned();
        path.push(match self {
            MarkKind::Sent => ".sequence",
            MarkKind::Received => ".received",
        });
        path.into()
    }

    /// The path of the mark of a key, which a file has or a link to one.
    ///
    /// # Errors
    /// If there is no such file, or a mark beside the link.
    pub fn of_key(self, key: &Path) -> Result<PathBuf, String> {
        let meant = std::fs::canonicalize(key).map_err(|error| format!("{}: {error}", key.display()))?;
        let (mark, beside) = (self.path(&meant), self.path(key));
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        match identity(&beside) {
            // As where its directory is a link.
            there if there.is_none() || there == identity(&mark) => Ok(mark),
            _ => Err(format!(
                "{0}: a mark beside a link counts for nobody, and the key's own is {1}: `mv {0} {1}` if that is missing or has the lower \
                 number, otherwise `rm {0}`",
                beside.display(),
                mark.display()
            )),
        }
    }

    /// Reads the mark of this key, without locking it.
    ///
    /// # Errors
    /// If there is no mark of this key that could be used, with the reason.
    pub fn check(self, path: &Path, fingerprint: Option<[u8; 16]>) -> Result<u64, String> {
        let file = match File::open(path) {
            Err(error) if self == MarkKind::Received && error.kind() == io::ErrorKind::NotFound => {
                return Ok(1);
            }
            opened => opened.map_err(|error| self.missing(path, &error))?,
        };
        self.read(&file, path, &fingerprint.unwrap_or_default())
    }

    fn first_line(self) -> &'static str {
        match self {
            MarkKind::Sent => "weir sequence\n",
            MarkKind::Received => "weir received\n",
        }
    }

    fn missing(self, path: &Path, error: &io::Error) -> String {
        let shown = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => format!(
                "{shown} is missing, so nobody knows which sequence numbers this key was used with, and none may be used twice: give it a new \
                 key, and for a key that was never used write: echo 1 > {shown}"
            ),
            _ => {
                format!("{}; whoever uses the key reads and writes this file", key_file::closed(path, error))
            }
        }
    }

    fn read(self, file: &File, path: &Path, fingerprint: &[u8; 16]) -> Result<u64, String> {
        let shown = path.display();
        let about = file.metadata().map_err(|error| format!("{shown}: {error}"))?;
        key_file::check_owner(path, &about)?;
        if key_file::is_writable_by_others(&about) {
            let harm = match self {
                MarkKind::Sent => "have numbers used twice",
                MarkKind::Received => "have packets taken twice",
            };
            return Err(format!(
                "{shown}: others may write this mark, and so {harm}: if you know that nobody did, `chmod go-w {shown}`; otherwise give the \
                 association a new key"
            ));
        }
        let mut bytes = [0; BYTES_MAX];
        let len = file.read_at(&mut bytes, 0).map_err(|error| format!("{shown}: {error}"))?;
        let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
        let damaged = || match self {
            MarkKind::Sent => format!(
                "{shown}: this mark is damaged and says no sequence number, so nobody can know which numbers its key was used with, and the \
                 key cannot be used any more: give the association a new key"
            ),
            MarkKind::Received => format!(
                "{shown}: this mark is damaged and says no sequence number, so nobody knows what was received with its key: give the \
                 association a new key, or `rm {shown}` if what somebody recorded may be taken once more"
            ),
        };
        let Some(lines) = text.strip_prefix(self.first_line()) else {
            return match self {
                // As it is made.
                MarkKind::Received if len == 0 => Ok(1),
                MarkKind::Received => Err(damaged()),
                MarkKind::Sent => text.trim().parse().ok().filter(|next| *next >= 1).ok_or_else(damaged),
            };
        };
        let mut lines = lines.lines();
        let mut word = |what: &str| lines.next().and_then(|line| line.strip_prefix(what));
        let (next, key) = (word("next "), word("key "));
        let is_whole = |key: &&str| key.len() == 32 && key.bytes().all(|digit| digit.is_ascii_hexdigit());
        let key = key.filter(is_whole).ok_or_else(damaged)?;
        let next = next.and_then(|next| next.parse().ok()).filter(|next| *next >= 1).ok_or_else(damaged)?;
        if key == format!("{:032x}", u128::from_be_bytes(*fingerprint)) {
            return Ok(next);
        }
        match self {
            MarkKind::Received => Ok(1),
            MarkKind::Sent => Err(format!(
                "{shown}: this is of another key: for one that was never used write: echo 1 > {shown}"
            )),
        }
    }
}

/// The mark of a key, which no other process can use while this one does.
#[derive(Debug)]
pub struct MarkFile {
    kind: MarkKind,
    file: File,
    path: PathBuf,
    fingerprint: [u8; 16],
}

impl MarkFile {
    /// Opens and locks a mark. Returns the number that it says.
    ///
    /// # Errors
    /// If that number is not known, with the reason.
    pub fn open(kind: MarkKind, path: &Path, fingerprint: [u8; 16]) -> Result<(MarkFile, u64), String> {
        let told = |error: io::Error| format!("{}: {error}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(kind == MarkKind::Received).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|error| kind.missing(path, &error))?;
        if file.try_lock().is_err() {
            return Err(format!("{}: another process uses this key", path.display()));
        }
        let next = kind.read(&file, path, &fingerprint)?;
        // Its user may have made it just now.
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(told)?;
        }
        Ok((MarkFile { kind, file, path: path.into(), fingerprint }, next))
    }

    /// Writes a number. That of what is sent is safe then.
    ///
    /// # Errors
    /// Of the disk; the number before is there still, or this one.
    pub fn write(&self, next: u64) -> io::Result<()> {
        let fingerprint = u128::from_be_bytes(self.fingerprint);
        let text = format!("{}next {next:020}\nkey {fingerprint:032x}\n", self.kind.first_line());
        self.file.write_all_at(text.as_bytes(), 0)?;
        match self.kind {
            MarkKind::Sent => self.file.sync_all(),
            MarkKind::Received => Ok(()),
        }
    }

    /// Writes a number before packets are moved.
    ///
    /// # Errors
    /// Those of [`MarkFile::write`], with the file's name.
    pub fn write_first(&self, next: u64) -> Result<(), String> {
        self.write(next).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
