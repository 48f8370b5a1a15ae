//! The mounts of a process, as `/proc/PID/mountinfo` lists them.
//!
//! ```text
//! 411 25 0:4 net:[4026532] /run/netns/a\040b rw shared:9 - nsfs nsfs rw
//!            root          place                           kind
//! ```
//!
//! Rule: a line that is no mount is passed over, and a path is read byte by byte: people choose it. Limits: the mounts of one mount
//! namespace, below the root of the process whose file it is.
//!
//! Source: proc(5); kernel `fs/proc_namespace.c:show_mountinfo`, `lib/string_helpers.c:string_escape_mem`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The path in the file system that is mounted; of a network namespace `net:[INODE]`.
    pub root: &'a [u8],
    /// The path at which it is mounted.
    pub place: PathBuf,
    /// The kind of the file system; that of namespaces is `nsfs`.
    pub kind: &'a [u8],
}

/// The mounts of a file, in its order.
pub fn mounts(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let root = words.nth(3)?;
        let place = OsString::from_vec(unescaped(words.next()?)).into();
        words.find(|word| *word == b"-")?;
        Some(Mount { root, place, kind: words.next()? })
    })
}

/// A path in plain bytes: a space, a tab, a newline and a backslash are a backslash and three octal digits.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| u32::from(byte - b'0'));
    let mut bytes = Vec::new();
    let mut rest = path;
    while let Some((&first, behind)) = rest.split_first() {
        let code = match (first, behind) {
            (b'\\', &[a, b, c, ..]) => {
                digit(a).zip(digit(b)).zip(digit(c)).map(|((a, b), c)| a << 6 | b << 3 | c)
            }
            _ => None,
        };
        let (byte, behind) = match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => (byte, &behind[3..]),
            None => (first, behind),
        };
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_mount_has_its_root_place_and_kind() {
        let text = b"411 25 0:4 net:[4026532] /run/netns/a\\040b\\134 rw shared:9 - nsfs nsfs rw\nnonsense\n\
            25 1 0:5 / /tmp rw - tmpfs tmpfs rw\n411 25 0:4 / /no/kind rw shared:9 -\n";
        let found: Vec<_> = mounts(text).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].root, found[0].kind), (&b"net:[4026532]"[..], &b"nsfs"[..]));
        assert_eq!(found[0].place, Path::new("/run/netns/a b\\"));
        assert_eq!((found[1].root, found[1].kind), (&b"/"[..], &b"tmpfs"[..]));
    }

    #[test]
    fn what_is_no_escape_stays_as_it_is() {
        for (path, plain) in [
            (&br"/run/my\040ns\134x"[..], &br"/run/my ns\x"[..]),
            (br"/a\9b\", br"/a\9b\"),
            (br"/x\04", br"/x\04"),
            (br"/\+12", br"/\+12"),
        ] {
            assert_eq!(unescaped(path), plain);
        }
    }
}
