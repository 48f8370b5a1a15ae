//! The errors between Weir and the kernel, as sentences: what was wrong, where, and what to do about it.
//!
//! A failed system call is reported with what was being done and on what; the kernel's own message (netlink's extended acknowledgement, the
//! BPF verifier's last line) is kept in `source`.

use std::io;

use crate::sys;

/// An error of the kernel side.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The process lacks a capability.
    #[error("{doing} needs root (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN): run it with sudo")]
    NotRoot {
        /// The action that failed, as `reading the routes`.
        doing: String,
    },
    /// There is no such interface in this namespace.
    #[error("there is no interface \"{name}\" in this network namespace: `ip link` lists those there are")]
    NoInterface {
        /// The name asked for.
        name: String,
    },
    /// The interface cannot be a port.
    #[error("interface {name} {why}")]
    Unsuitable {
        /// The name of the interface.
        name: String,
        /// The reason, and what to do.
        why: String,
    },
    /// The interface, or its other end, is down.
    #[error("interface {name} {why}")]
    Down {
        /// The name of the interface.
        name: String,
        /// The end that is down, and what to do.
        why: String,
    },
    /// Another weir has this thing of the kernel.
    #[error("{name} is held by {why}")]
    Busy {
        /// The name of the thing.
        name: String,
        /// The holder, and what to do.
        why: String,
    },
    /// The kernel cannot do something that is needed.
    #[error("this kernel lacks {what}: {fix}")]
    Unsupported {
        /// The feature that the kernel lacks.
        what: String,
        /// The remedy.
        fix: String,
    },
    /// A call to the kernel failed.
    #[error("{doing}: {source}{}", hint(source))]
    Kernel {
        /// The action that failed, and on what.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PortError {
    /// Returns whether the error says that an interface is gone, or never was.
    pub fn is_no_interface(&self) -> bool {
        matches!(self, PortError::NoInterface { .. })
    }

    /// Returns whether the error says that an interface is not there, or down, as it may be at any time.
    pub fn is_absence(&self) -> bool {
        matches!(self, PortError::NoInterface { .. } | PortError::Down { .. })
    }

    /// Returns whether the kernel had no descriptor or no memory for what was asked, so that nothing is known of it.
    pub fn is_shortage(&self) -> bool {
        matches!(self, PortError::Kernel { source, .. } if sys::is_shortage(source))
    }

    /// The error of a call that failed.
    pub(crate) fn of_kernel(doing: String, source: io::Error) -> PortError {
        if source.raw_os_error() != Some(libc::EPERM) {
            return PortError::Kernel { doing, source };
        }
        // The netlink library says the same of a socket that cannot be made, whatever the reason.
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
        match socket {
            Err(source) if sys::is_shortage(&source) => PortError::Kernel { doing, source },
            _ => PortError::NotRoot { doing },
        }
    }
}

/// The default for what could not be found out, but for want of descriptors or memory: then nobody knows whether there is anything.
pub(crate) fn unless_short<T: Default>(found: Result<T>) -> Result<T> {
    found.or_else(|error| if error.is_shortage() { Err(error) } else { Ok(T::default()) })
}

/// The hint for the errors with which a kernel answers a call that it does not know.
fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(
            libc::ENOSYS
            | libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::EAFNOSUPPORT
            | libc::EPROTONOSUPPORT
            | libc::ENOPROTOOPT,
        ) => ": `weir doctor` tells whether this kernel lacks something",
        _ => "",
    }
}

/// The result of talking to the kernel.
pub type Result<T> = std::result::Result<T, PortError>;

/// Turns a failed call into an error that says what was being done.
pub trait Doing<T> {
    /// Names what was being done; evaluated only on failure.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| PortError::of_kernel(what(), error.into()))
    }
}
