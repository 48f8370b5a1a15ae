//! Settings below `/proc/sys/net`, of the namespace of the thread that looks.
//!
//! Source: kernel `Documentation/networking/ip-sysctl.rst`; `net/sysctl_net.c`, which picks the namespace by thread.

use std::path::{Path, PathBuf};

use crate::error::{PortError, Result};

const FOLDER: &str = "/proc/sys/net";

/// The value of a setting such as `ipv4/conf/eth0/forwarding`; `None` if this kernel or namespace has no such setting.
pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(file(path)).ok().map(|text| text.trim().to_string())
}

/// Changes a setting.
pub fn write(path: &str, value: &str) -> Result<()> {
    let file = file(path);
    std::fs::write(&file, value).map_err(|source| PortError::Kernel {
        doing: format!("writing {value} to {}", file.display()),
        source,
    })
}

/// Changes a setting if there is such a setting.
pub fn write_if_there(path: &str, value: &str) -> Result<()> {
    if read(path).is_none() { Ok(()) } else { write(path, value) }
}

fn file(path: &str) -> PathBuf {
    Path::new(FOLDER).join(path)
}
