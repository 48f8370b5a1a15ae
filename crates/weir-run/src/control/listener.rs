//! The process that listens at a control socket at one time. A service manager starts a wire that has ended anew at once, and another
//! process listens under the same name then.
//!
//! Rule: a wire has its socket's file for itself; who listens at another file, or at none, is another.

use std::path::{Path, PathBuf};

use weir_port::undo::FileIdentity;

use super::is_up;

/// The one that listens at a path now, and none that listens there later.
pub struct Listener {
    path: PathBuf,
    /// The socket's file; `None` where there is none.
    file: Option<FileIdentity>,
}

impl Listener {
    /// The one that listens at this path now.
    pub fn at(path: &Path) -> Listener {
        Listener { path: path.into(), file: FileIdentity::of(path) }
    }

    /// Returns whether that one still listens.
    pub fn is_up(&self) -> bool {
        self.file.is_some() && FileIdentity::of(&self.path) == self.file && is_up(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn another_who_takes_the_place_is_another() {
        let path = |what: &str| {
            std::env::temp_dir().join(format!("weir-listener-{what}-{}.sock", std::process::id()))
        };
        let (place, next) = (path("place"), path("next"));
        assert!(!Listener::at(&place).is_up(), "nobody is there");
        let _first = UnixListener::bind(&place).unwrap();
        let first = Listener::at(&place);
        assert!(first.is_up());
        let second = UnixListener::bind(&next).unwrap();
        std::fs::rename(&next, &place).unwrap();
        assert!(!first.is_up() && Listener::at(&place).is_up(), "somebody listens at the path all the while");
        drop(second);
        assert!(!Listener::at(&place).is_up(), "nobody listens");
        std::fs::remove_file(&place).unwrap();
    }
}
