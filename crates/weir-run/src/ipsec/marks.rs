//! Marks of sequence numbers on disk: beside each key file of an outbound association `KEY_FILE.sequence`, which says the first number that
//! nobody can have used with this key.
//!
//! ```text
//! weir sequence                     or, of a key that is new, as its user writes it:  1
//! next 00000000000008388609
//! key 0123456789abcdef0123456789abcdef      the fingerprint of the key
//! ```
//!
//! A key file may be a link: its mark is beside the file that is meant, all links on the way there resolved, so that one key has one mark
//! under however many links. A mark beside a link is an earlier version's, or somebody's mistake. It says numbers that may have been used, so
//! it is never passed over: its association is refused, with what to do.
//!
//! Rule: a mark is told as safe when it is on disk ([`File::sync_all`]). Where there is no mark, nobody knows which numbers were used, and
//! the association is refused; so is one whose mark is damaged, another key's, locked by another process, or another user's to write. A mark is
//! another key's only if its key line is whole and says so: of a damaged one nobody knows the numbers, and no mark may be made anew for its
//! key.
//!
//! A clean end gives back the numbers that were reserved and not used: the mark is then the first of them. A kill leaves them out.
//!
//! One thread writes all marks, so that no worker waits for a disk. A mark that cannot be written is tried again; numbers end meanwhile,
//! and packets wait.
//!
//! Owner: the writer's thread; the safe mark is an atomic. Limits: a file that is copied with its key to another machine tells both the
//! same.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use weir_path::esp::marks::SequenceMark;

use super::key_file;

/// The number of numbers that are reserved at once: at a million a second two seconds before the disk is waited for.
pub const AHEAD: u64 = weir_ipsec::sequence::AHEAD_DEFAULT;
/// The number for an association whose numbers have 32 bits: a process that is killed leaves them out, and 8,192 kills use a key up.
pub const AHEAD_SHORT: u64 = AHEAD / 8;

const FIRST_LINE: &str = "weir sequence\n";
const BYTES_MAX: usize = 256;
const AGAIN: Duration = Duration::from_millis(100);

/// The path of the mark of a key.
pub fn path(key: &Path) -> PathBuf {
    let mut path = key.as_os_str().to_owned();
    path.push(".sequence");
    path.into()
}

/// The path of the mark of a key, which a file has or a link to one.
///
/// # Errors
/// If there is no such file, or a mark beside the link.
pub fn of_key(key: &Path) -> Result<PathBuf, String> {
    let meant = std::fs::canonicalize(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let (mark, beside) = (path(&meant), path(key));
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    match identity(&beside) {
        // As where its directory is a link.
        there if there.is_none() || there == identity(&mark) => Ok(mark),
        _ => Err(format!(
            "{0}: a mark beside a link counts for nobody, and the key's own is {1}: `mv {0} {1}` if that is missing or has the lower number, \
             otherwise `rm {0}`",
            beside.display(),
            mark.display()
        )),
    }
}

/// Reads the mark of this key, without locking it.
///
/// # Errors
/// If there is no mark of this key that could be used, with the reason.
pub fn check(path: &Path, fingerprint: Option<[u8; 16]>) -> Result<u64, String> {
    let file = File::open(path).map_err(|error| missing(path, &error))?;
    read(&file, path, &fingerprint.unwrap_or_default())
}

/// The mark of a key, which no other process can use while this one does.
#[derive(Debug)]
pub struct MarkFile {
    file: File,
    path: PathBuf,
    fingerprint: [u8; 16],
    safe: AtomicU64,
}

impl MarkFile {
    /// Opens and locks a mark. Returns the first number that nobody can have used.
    ///
    /// # Errors
    /// If that number is not known, with the reason.
    pub fn open(path: &Path, fingerprint: [u8; 16]) -> Result<(MarkFile, u64), String> {
        let told = |error: io::Error| format!("{}: {error}", path.display());
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| missing(path, &error))?;
        if file.try_lock().is_err() {
            return Err(format!("{}: another process uses this key", path.display()));
        }
        let next = read(&file, path, &fingerprint)?;
        // Its user may have made it just now.
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(told)?;
        }
        let mark = MarkFile { file, path: path.into(), fingerprint, safe: AtomicU64::new(next) };
        Ok((mark, next))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a mark safe.
    ///
    /// # Errors
    /// Of the disk; the mark before is safe still, or this one.
    pub fn write(&self, mark: u64) -> io::Result<()> {
        let fingerprint = u128::from_be_bytes(self.fingerprint);
        let text = format!("{FIRST_LINE}next {mark:020}\nkey {fingerprint:032x}\n");
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.sync_all()?;
        self.safe.store(mark, Ordering::Release);
        Ok(())
    }
}

fn missing(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{shown} is missing, so nobody knows which sequence numbers this key was used with, and none may be used twice: give it a new key, \
             and for a key that was never used write: echo 1 > {shown}"
        ),
        _ => format!(
            "{}; whoever sends with the key reads and writes this file",
            key_file::closed(path, error)
        ),
    }
}

fn read(file: &File, path: &Path, fingerprint: &[u8; 16]) -> Result<u64, String> {
    let about = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?;
    key_file::check_owner(path, &about)?;
    if key_file::is_writable_by_others(&about) {
        return Err(format!(
            "{0}: others may write this mark, and so have numbers used twice: if you know that nobody did, `chmod go-w {0}`; otherwise give \
             the association a new key",
            path.display()
        ));
    }
    let mut bytes = [0; BYTES_MAX];
    let len = file.read_at(&mut bytes, 0).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
    let damaged = || {
        format!(
            "{}: this mark is damaged and says no sequence number, so nobody can know which numbers its key was used with, and the key cannot \
             be used any more: give the association a new key",
            path.display()
        )
    };
    let Some(lines) = text.strip_prefix(FIRST_LINE) else {
        return text.trim().parse().ok().filter(|next| *next >= 1).ok_or_else(damaged);
    };
    let mut lines = lines.lines();
    let mut word = |what: &str| lines.next().and_then(|line| line.strip_prefix(what));
    let (next, key) = (word("next "), word("key "));
    let is_whole = |key: &&str| key.len() == 32 && key.bytes().all(|digit| digit.is_ascii_hexdigit());
    let key = key.filter(is_whole).ok_or_else(damaged)?;
    let next = next.and_then(|next| next.parse().ok()).filter(|next| *next >= 1).ok_or_else(damaged)?;
    if key != format!("{:032x}", u128::from_be_bytes(*fingerprint)) {
        return Err(format!(
            "{0}: this is of another key: for one that was never used write: echo 1 > {0}",
            path.display()
        ));
    }
    Ok(next)
}

/// The longest time that the end of a process waits for its last marks; a disk that takes longer leaves numbers out.
const END: Duration = Duration::from_secs(1);

/// The thread that writes marks, started with the first.
#[derive(Debug, Default)]
pub struct MarkWriter {
    thread: Option<WriterThread>,
}

#[derive(Debug)]
struct WriterThread {
    wanted: Sender<(Arc<MarkFile>, u64)>,
    /// Nothing ever comes here; it is cut off when the thread has ended.
    ended: Receiver<()>,
}

impl MarkWriter {
    /// The mark of this file, for the worker that asks for it to be written.
    pub fn mark(&mut self, file: MarkFile) -> WrittenMark {
        let thread = self.thread.get_or_insert_with(|| {
            let (wanted, inbox) = channel();
            let (ends, ended) = channel();
            std::thread::spawn(move || {
                write_all(&inbox);
                drop::<Sender<()>>(ends);
            });
            WriterThread { wanted, ended }
        });
        WrittenMark { file: Arc::new(file), wanted: thread.wanted.clone() }
    }
}

impl Drop for MarkWriter {
    /// Waits for the last marks, which associations asked for when they ended.
    fn drop(&mut self) {
        if let Some(WriterThread { wanted, ended }) = self.thread.take() {
            drop(wanted);
            // The channel is cut off, or the time is over.
            let _ = ended.recv_timeout(END);
        }
    }
}

/// The mark of one association, as its worker asks for it.
#[derive(Debug)]
pub struct WrittenMark {
    file: Arc<MarkFile>,
    wanted: Sender<(Arc<MarkFile>, u64)>,
}

impl SequenceMark for WrittenMark {
    fn want(&mut self, mark: u64) {
        // The thread ends after all that ask.
        let _ = self.wanted.send((Arc::clone(&self.file), mark));
    }

    fn safe(&self) -> u64 {
        self.file.safe.load(Ordering::Acquire)
    }

    fn end(&mut self, next: u64) {
        // The last mark is behind all that were asked for before.
        self.want(next);
    }
}

/// Writes marks until nobody can ask any more.
fn write_all(inbox: &Receiver<(Arc<MarkFile>, u64)>) {
    let mut failed: Vec<(Arc<MarkFile>, u64)> = Vec::new();
    loop {
        let next = match failed.is_empty() {
            true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => inbox.recv_timeout(AGAIN),
        };
        match next {
            Ok(wanted) => failed.push(wanted),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        failed.retain(|(file, mark)| file.write(*mark).is_err());
    }
}
