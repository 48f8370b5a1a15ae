//! The directories of Weir's sockets and locks. A user who may make names in them decides whom a command talks to and what it waits for;
//! one who may open a file, or a directory, can lock it (`flock(2)` asks for no right to write).
//!
//! Rule: each is a directory, not a link to one, it belongs to the user of this process, and nobody else may write there; what is locked is
//! in one that nobody else may open. Its mode is set whatever the umask says. A directory that belongs to another user is refused, and so
//! is one in which others may have made names.
//!
//! Source: `open(2)` for `O_NOFOLLOW`; `fchmod(2)`, which the umask does not concern; user_namespaces(7) for unmapped users; kernel
//! `include/linux/proc_ns.h`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::sys;

/// The mode of the directory of sockets: every user may look up a socket there, and only its owner make one.
const MODE: u32 = 0o755;
/// The mode of a directory that only its owner may open, and so lock.
const MODE_PRIVATE: u32 = 0o700;
/// The inode of the machine's first user namespace (`PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: u64 = 0xefff_fffd;
/// The bits of a mode that let others make names.
const OTHERS_WRITE: u32 = 0o022;

/// Makes a directory in which every user may look up names, or checks that the one that is there is suitable.
///
/// # Errors
/// A directory that is not suitable, with what to do about it.
pub fn make(path: &Path) -> io::Result<File> {
    make_with(path, MODE)
}

/// Makes a directory that only its owner may open, or checks that the one that is there is suitable, as [`make`] does.
///
/// # Errors
/// As of [`make`].
pub fn make_private(path: &Path) -> io::Result<File> {
    make_with(path, MODE_PRIVATE)
}

fn make_with(path: &Path, mode: u32) -> io::Result<File> {
    let is_new = match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        made => made.is_ok(),
    };
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
        let why = "is no directory of its own: remove it, and weir makes it anew";
        match error.raw_os_error() {
            Some(libc::ELOOP | libc::ENOTDIR) => io::Error::other(format!("{} {why}", path.display())),
            _ => error,
        }
    })?;
    let about = directory.metadata()?;
    if about.uid() == 0 && sys::user() != 0 {
        return Err(io::Error::other(format!("{} is root's: run weir as root, with sudo", path.display())));
    }
    if about.uid() != sys::user() && is_unmapped(about.uid()) {
        return Err(io::Error::other(format!(
            "{} belongs to a user of the machine whom this user namespace does not know: run weir as root outside of it",
            path.display()
        )));
    }
    if about.uid() != sys::user() {
        return Err(io::Error::other(format!(
            "{} belongs to user {}, who could answer in weir's place: remove it, and weir makes it anew",
            path.display(),
            about.uid()
        )));
    }
    if !is_new && about.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other(format!(
            "others than its owner may write to {}, and may have: remove it, and weir makes it anew",
            path.display()
        )));
    }
    if about.mode() & 0o7777 != mode {
        directory.set_permissions(PermissionsExt::from_mode(mode))?;
    }
    Ok(directory)
}

/// Returns whether a user may be any that this process's user namespace does not know, perhaps the machine's root. It is not told apart
/// from one of that number whom the namespace knows.
fn is_unmapped(user: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let namespace = std::fs::metadata("/proc/thread-self/ns/user");
    overflow.is_ok_and(|overflow| overflow.trim() == user.to_string())
        && namespace.is_ok_and(|namespace| namespace.ino() != FIRST_USER_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_ours_alone_to_write_in_and_no_link() {
        let base = std::env::temp_dir().join(format!("weir-directory-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let path = base.join("weir");
        make(&path).unwrap();
        assert_eq!(mode(&path), MODE);
        for others in [0o777, 0o1777, 0o775] {
            fs::set_permissions(&path, PermissionsExt::from_mode(others)).unwrap();
            assert!(make(&path).unwrap_err().to_string().contains("remove it"), "{others:o}");
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        make(&path).unwrap();
        assert_eq!(mode(&path), MODE, "a umask may have made it narrower");
        make_private(&path).unwrap();
        assert_eq!(mode(&path), MODE_PRIVATE, "an earlier version may have made it wider");
        let link = base.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make(&link).unwrap_err().to_string().contains("no directory of its own"));
        let file = base.join("file");
        fs::write(&file, "").unwrap();
        assert!(make(&file).is_err());
        if sys::user() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(make(&path).unwrap_err().to_string().contains("user 65534"));
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
