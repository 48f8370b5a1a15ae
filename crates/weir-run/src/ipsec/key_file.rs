//! Key files: hexadecimal digits, the salt behind the key, in a regular file that nobody but its owner may read.
//!
//! Rule: a key that is read lies in memory that is wiped, and nothing of it is in an error. The file that is checked is the one that is
//! read. It and its directory belong to root or to the user of this process, as its mark does: anybody else could put back a mark, and have
//! numbers used twice.
//!
//! Limits: a file on a disk stays there when it is removed; in `/run` it does not.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_ipsec::algorithm::{Algorithm, KeyMaterial};
use weir_port::sys;
use zeroize::Zeroizing;

use super::mark_file::MarkKind;

/// The permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
/// The bits of writing alone.
const OTHERS_WRITE: u32 = 0o022;
/// The longest text of a key file, in bytes: far more than the longest key has digits.
const TEXT_BYTES_MAX: usize = 512;
const KEY_BYTES_MAX: usize = TEXT_BYTES_MAX / 2;

/// The key of an algorithm that has none.
pub(super) fn none(algorithm: Algorithm) -> Result<KeyMaterial, String> {
    KeyMaterial::new(algorithm, &[]).map_err(|why| why.to_string())
}

/// The sentence on a key that has no file, with the way to one; `None` if there is a file. A key is made where it seals.
pub(super) fn missing(path: &Path, algorithm: Algorithm, is_inbound: bool) -> Option<String> {
    let is_missing =
        |path: &Path| std::fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    if !is_missing(path) {
        return None;
    }
    let path = &led_to(path);
    let shown = path.display();
    if is_inbound {
        return Some(format!(
            "{shown} is missing: it is the key that the peer sends with (\"out\" there), made there and taken here, under `umask 077` so that \
             nobody else can read it"
        ));
    }
    let mark = MarkKind::Sent.path(path);
    let first = match is_missing(&mark) {
        true => format!(", and `echo 1 > {}` its first number", mark.display()),
        false => String::new(),
    };
    Some(format!(
        "{shown} is missing: `umask 077; od -An -v -tx1 -N{} /dev/urandom | tr -d ' \\n' > {shown}` makes it{first}; the peer needs the same \
         key (\"in\" there)",
        algorithm.key_len()
    ))
}

/// The file that a link, or a link to another, leads to, where a mark is too; any other path as it is.
fn led_to(path: &Path) -> PathBuf {
    const LINKS_MAX: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(to) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or_else(|| to.clone(), |from| from.join(&to));
    }
    path
}

/// Reads a key.
///
/// # Errors
/// If it cannot be read, or must not be, with the reason.
pub(super) fn read(path: &Path, algorithm: Algorithm, is_inbound: bool) -> Result<KeyMaterial, String> {
    let shown = path.display();
    // A pipe may have no end, or nobody who writes to it.
    let about = std::fs::metadata(path)
        .map_err(|error| missing(path, algorithm, is_inbound).unwrap_or_else(|| closed(path, &error)))?;
    if !about.is_file() {
        return Err(format!("{shown}: it is not a regular file"));
    }
    // If the path is a link, the link's directory is checked, and that of the file that is meant, where its mark is.
    check_directory(path)?;
    check_directory(&std::fs::canonicalize(path).map_err(|error| format!("{shown}: {error}"))?)?;
    let mut file = File::open(path).map_err(|error| closed(path, &error))?;
    let about = file.metadata().map_err(|error| format!("{shown}: {error}"))?;
    check_owner(path, &about)?;
    if !about.is_file() || about.mode() & OTHERS != 0 {
        return Err(format!(
            "{shown}: others may read or write this key, so it is none any more: make a new one, with chmod 600"
        ));
    }
    let mut text = Zeroizing::new([0; TEXT_BYTES_MAX]);
    let mut len = 0;
    loop {
        match file.read(&mut text[len..]).map_err(|error| format!("{shown}: {error}"))? {
            0 => break,
            more => len += more,
        }
    }
    if len == TEXT_BYTES_MAX {
        return Err(format!("{shown}: it is far too long for a key"));
    }
    of_digits(&text[..len], algorithm).map_err(|why| format!("{shown}: {why}"))
}

/// The key of these hexadecimal digits.
///
/// # Errors
/// If they are no key of this algorithm.
pub(super) fn of_digits(digits: &[u8], algorithm: Algorithm) -> Result<KeyMaterial, String> {
    let mut key = Zeroizing::new([0; KEY_BYTES_MAX]);
    let bytes = in_bytes(digits, &mut key)
        .ok_or("a key is pairs of hexadecimal digits, and this is something else")?;
    KeyMaterial::new(algorithm, &key[..bytes]).map_err(|why| why.to_string())
}

/// Checks that a key, its directory or its mark belongs to root or to the user of this process.
///
/// # Errors
/// If it is somebody else's, with the command that gives it to root.
pub(super) fn check_owner(path: &Path, about: &Metadata) -> Result<(), String> {
    match about.uid() {
        0 => Ok(()),
        owner if owner == sys::user() => Ok(()),
        owner => Err(format!(
            "{0}: it belongs to user {owner}, who may have changed it at any time, so no key is taken from there: if you know that nobody did, \
             `chown root {0}`; otherwise give a new key",
            path.display()
        )),
    }
}

/// The reason why a key or its mark cannot be opened: its owner, if that is somebody else.
pub(super) fn closed(path: &Path, error: &io::Error) -> String {
    let about = std::fs::metadata(path).ok();
    let owner = about.and_then(|about| check_owner(path, &about).err());
    let rights = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; what runs associations has given up root's right to pass what a mode forbids: the key's directory and file must be open to \
             their owner, chmod 700 and 600"
        }
        _ => "",
    };
    owner.unwrap_or_else(|| format!("{}: {error}{rights}", path.display()))
}

/// Returns whether users other than the owner may write.
pub(super) fn is_writable_by_others(about: &Metadata) -> bool {
    about.mode() & OTHERS_WRITE != 0
}

/// Checks the directory of a key: a user who may write there may put another file in the place of the key, or of its mark.
fn check_directory(path: &Path) -> Result<(), String> {
    const STICKY: u32 = 0o1000;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let shown = directory.display();
    let about = std::fs::metadata(directory).map_err(|error| format!("{shown}: {error}"))?;
    check_owner(directory, &about)?;
    if is_writable_by_others(&about) && about.mode() & STICKY == 0 {
        return Err(format!(
            "{shown}: others may write in this directory, and so exchange {} or the mark beside it: chmod go-w {shown}",
            path.display()
        ));
    }
    Ok(())
}

/// Writes the bytes that digits stand for; returns their number.
fn in_bytes(text: &[u8], bytes: &mut [u8; KEY_BYTES_MAX]) -> Option<usize> {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || pairs.is_empty() || pairs.len() > KEY_BYTES_MAX {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(high)? << 4 | digit(low)?) as u8;
    }
    Some(pairs.len())
}
