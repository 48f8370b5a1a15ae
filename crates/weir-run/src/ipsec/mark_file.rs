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
//! | is removed, replaced or overwritten while its key is used | is put back with the number that is safe | is put back |
//! | has another name then, alone or with its key | says there that all numbers are used | the same |
//!
//! Rule: a mark is another key's only if its key line is whole and says so: of a damaged one nobody knows the numbers, and no mark may be
//! made anew for its key. A mark is made whole, under another name, so that an empty one is a damaged one.
//!
//! Owner: the process that has the key, by a lock. Limits: a file that is copied with its key, to another machine or beside it, tells both
//! the same; a key that comes back into its file after another has received nothing; a mark that is replaced or overwritten in the second
//! before a kill stays.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use weir_port::holder;

use super::key_file;
use super::new_key::create;

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
        self.check_by(path, fingerprint, |_| Ok(()))
    }

    /// Reads the mark of this key, which nobody uses now.
    ///
    /// # Errors
    /// As of [`MarkKind::check`], and if somebody has locked it.
    pub fn check_unused(self, path: &Path, fingerprint: Option<[u8; 16]>) -> Result<u64, String> {
        // The lock is let go with the file.
        self.check_by(path, fingerprint, |file| lock(file, path))
    }

    fn check_by(
        self,
        path: &Path,
        fingerprint: Option<[u8; 16]>,
        check: impl FnOnce(&File) -> Result<(), String>,
    ) -> Result<u64, String> {
        if self.may_begin(path) {
            return Ok(1);
        }
        check_regular(path)?;
        let file = File::open(path).map_err(|error| self.missing(path, &error))?;
        check(&file)?;
        self.read(&file, path, &fingerprint.unwrap_or_default())
    }

    /// Returns whether a mark may be made: there is none, and none is needed.
    fn may_begin(self, path: &Path) -> bool {
        self == MarkKind::Received
            && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn text(self, next: u64, fingerprint: [u8; 16]) -> String {
        format!("{}next {next:020}\nkey {:032x}\n", self.first_line(), u128::from_be_bytes(fingerprint))
    }

    fn first_line(self) -> &'static str {
        match self {
            MarkKind::Sent => "weir sequence\n",
            MarkKind::Received => "weir received\n",
        }
    }

    /// The sentence on the mark that is missing beside this key, or is beside a link to it; `None` if it is there, or none is needed.
    pub fn missing_beside(self, key: &Path) -> Option<String> {
        let path = match self.of_key(key) {
            Ok(path) => path,
            // A key that this user may not look at says nothing of its mark.
            Err(why) => return std::fs::canonicalize(key).is_ok().then_some(why),
        };
        let missing = path.metadata().err().filter(|error| error.kind() == io::ErrorKind::NotFound)?;
        (self == MarkKind::Sent).then(|| self.missing(&path, &missing))
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

/// Checks that a mark that is there is a file: a pipe may have no end, or nobody who writes to it.
fn check_regular(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => {
            Err(format!("{}: it is not a regular file, and no mark", path.display()))
        }
        _ => Ok(()),
    }
}

/// Locks a mark, if nobody has.
fn lock(file: &File, path: &Path) -> Result<(), String> {
    file.try_lock().map_err(|_| format!("{}: {} uses this key", path.display(), user_of(file)))
}

/// The process that has a mark locked.
fn user_of(mark: &File) -> String {
    match holder::of_lock(mark) {
        Ok(Some(process)) => process.to_string(),
        _ => "another process".into(),
    }
}

/// The mark of a key, which no other process can use while this one does.
#[derive(Debug)]
pub struct MarkFile {
    kind: MarkKind,
    path: PathBuf,
    fingerprint: [u8; 16],
    there: Mutex<There>,
}

/// The file that is locked, and the number that was written into it; none before the first.
#[derive(Debug)]
struct There {
    file: File,
    written: Option<u64>,
}

impl MarkFile {
    /// Opens and locks a mark. Returns the number that it says.
    ///
    /// # Errors
    /// If that number is not known, with the reason.
    pub fn open(kind: MarkKind, path: &Path, fingerprint: [u8; 16]) -> Result<(MarkFile, u64), String> {
        let told = |error: io::Error| format!("{}: {error}", path.display());
        let with = |file: File| {
            let there = There { file, written: None }.into();
            MarkFile { kind, path: path.into(), fingerprint, there }
        };
        if kind.may_begin(path) {
            let made = make(path, &kind.text(1, fingerprint)).map_err(|error| kind.missing(path, &error))?;
            return Ok((with(made), 1));
        }
        check_regular(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| kind.missing(path, &error))?;
        lock(&file, path)?;
        let next = kind.read(&file, path, &fingerprint)?;
        // Its user may have made it just now.
        sync_directory(path).map_err(told)?;
        Ok((with(file), next))
    }

    /// Makes the mark of what was received with a key say that `highest` was, as the kernel did, unless it says more. One that is in use stays:
    /// its user knows what was received.
    ///
    /// # Errors
    /// If it says no number, or cannot be written.
    pub fn raise_received(path: &Path, fingerprint: [u8; 16], highest: u64) -> Result<(), String> {
        let kind = MarkKind::Received;
        let is_known = kind.check(path, Some(fingerprint))? > highest;
        if is_known || File::open(path).is_ok_and(|mark| mark.try_lock().is_err()) {
            return Ok(());
        }
        let (mark, next) = MarkFile::open(kind, path, fingerprint)?;
        let raised = mark.write(next.max(highest.saturating_add(1)));
        raised.map(drop).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes a number, unless it is the last that was written. That of what is sent is safe then. A mark that was removed, has another
    /// file in its place, or says another number than was written, is put back; returns whether it was.
    ///
    /// # Errors
    /// Of the disk, and if another process has the file that is there; the number before is there still, or this one.
    pub fn write(&self, next: u64) -> io::Result<bool> {
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        let is_away = !self.is_in_place(&there.file)?;
        let text = self.kind.text(next, self.fingerprint);
        let is_overwritten =
            !is_away && there.written.is_some_and(|written| !self.says(&there.file, written));
        if is_away {
            if let Ok(other) = File::open(&self.path) {
                other.try_lock().map_err(io::Error::other)?;
            }
            let made = make(&self.path, &text)?;
            // Under another name nobody may begin with the number that it says: later ones are written elsewhere.
            if there.file.metadata()?.nlink() > 0 {
                overwrite(&there.file, &self.kind.text(u64::MAX, self.fingerprint))?;
                there.file.sync_all()?;
            }
            there.file = made;
        } else if is_overwritten || there.written != Some(next) {
            // If it fails half-way nobody knows what the file says.
            there.written = None;
            overwrite(&there.file, &text)?;
            if self.kind == MarkKind::Sent {
                there.file.sync_all()?;
            }
        }
        there.written = Some(next);
        Ok(is_away || is_overwritten)
    }

    /// The clause on what comes of a mark that cannot be written.
    pub fn price(&self) -> &'static str {
        match self.kind {
            MarkKind::Sent => "; packets that need its numbers wait meanwhile",
            MarkKind::Received => "; what comes in meanwhile could be sent to it once more after a start",
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a file has the text of a number and nothing else; one that cannot be read has not.
    fn says(&self, file: &File, next: u64) -> bool {
        let text = self.kind.text(next, self.fingerprint);
        let mut bytes = [0; BYTES_MAX];
        file.read_at(&mut bytes, 0).is_ok_and(|len| bytes[..len] == *text.as_bytes())
    }

    fn is_in_place(&self, file: &File) -> io::Result<bool> {
        let identity = |about: &Metadata| (about.dev(), about.ino());
        let own = identity(&file.metadata()?);
        Ok(std::fs::metadata(&self.path).is_ok_and(|there| identity(&there) == own))
    }
}

/// Makes a text all that a file has.
fn overwrite(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Makes a mark, and locks it.
fn make(path: &Path, text: &str) -> io::Result<File> {
    let file = create(path, text)?;
    file.try_lock().map_err(io::Error::other)?;
    sync_directory(path)?;
    Ok(file)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
