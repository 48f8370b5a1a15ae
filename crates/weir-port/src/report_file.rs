//! A file that a user names for a report, written by a command that root runs, perhaps in a directory of another user.
//!
//! Rule: a link in the place of the file is followed only where nobody but root and us could have put it, such as /dev/stdout. Otherwise
//! the owner of the directory would choose which file of root's is overwritten.
//!
//! Source: `open(2)` for `O_NOFOLLOW`. Limits: another name of the same file (a hard link) is the kernel's business
//! (`fs.protected_hardlinks`, which is on).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::sys;

/// Opens a file to write, and makes it if it is not there. Its content stays for now.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    match options.clone().custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {}
        result => return result,
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let about = std::fs::metadata(directory)?;
    let is_ours = [0, sys::user()].contains(&about.uid()) && about.mode() & 0o022 == 0;
    if is_ours {
        return options.open(path);
    }
    Err(io::Error::other("it is a link in a directory where others may write: name the file it leads to"))
}

/// Writes a report to the file, in place of its content.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = open(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_is_followed_only_where_nobody_else_could_have_put_it() {
        let base = std::env::temp_dir().join(format!("weir-report-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let (file, link) = (base.join("file"), base.join("link"));
        open(&file).unwrap();
        write(&file, "precious, and more").unwrap();
        write(&file, "precious").unwrap();
        symlink(&file, &link).unwrap();
        fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
        open(&link).unwrap();
        for mode in [0o777, 0o1777, 0o775] {
            fs::set_permissions(&base, PermissionsExt::from_mode(mode)).unwrap();
            assert!(open(&link).unwrap_err().to_string().contains("it is a link"), "{mode:o}");
            open(&file).unwrap();
        }
        if sys::user() == 0 {
            fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(&base, Some(65534), None).unwrap();
            assert!(open(&link).is_err(), "its owner put it there");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        fs::remove_dir_all(&base).unwrap();
    }
}
