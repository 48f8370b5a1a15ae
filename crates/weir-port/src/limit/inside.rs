//! The ends of a pair: the container's and the host's, as seen from one of them.
//!
//! | far end is in | seen | so the own end is |
//! |---|---|---|
//! | the machine's first network namespace (a fixed number since Linux 6.18) | | a container's |
//! | the namespace of the first process | | a container's |
//! | another, and all processes of the machine are seen | | the host's |
//! | another, where a process is that a container's first process has below it | | the host's of a container in a container |
//! | another, by a name that was lent to this container for instance | no process there | nobody knows |
//!
//! Source: pid_namespaces(7), `include/uapi/linux/nsfs.h`. Limits: before Linux 6.18 a host's namespace that a container sees by a name
//! alone is not told from a namespace that it has made.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::netns::NetNs;

/// The numbers of the machine's first namespaces: of PIDs always; of networks since Linux 6.18, and none had it before.
const FIRST_PIDS: u64 = 0xefff_fffc;
const FIRST_NETWORK: u64 = 0xefff_fff9;

/// The evidence of which end of a pair is the host's, as numbers of network namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    own: u64,
    far: u64,
    /// The namespace of the first process that is seen: the machine's, or a container's.
    first: Option<u64>,
    /// True if all processes of the machine are seen.
    sees_all: bool,
    /// True if a process that is seen is where the far end is.
    has_process: bool,
}

/// Returns whether all processes of the machine are seen, and so all network namespaces with one.
pub fn sees_all_processes() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|about| about.ino() == FIRST_PIDS)
}

impl Sight {
    /// The evidence for two ends in these namespaces.
    pub(super) fn of(own: &NetNs, far: &NetNs) -> Sight {
        // A user that may not look at the first process may look at the kernel's first thread, which is in the same namespace.
        let first = [1, 2].iter().find_map(|pid| NetNs::open(Path::new(&format!("/proc/{pid}/ns/net"))).ok());
        Sight {
            own: own.inode(),
            far: far.inode(),
            first: first.map(|first| first.inode()),
            sees_all: sees_all_processes(),
            has_process: far.process().is_some(),
        }
    }

    /// Returns whether the far end is the host's, and the own a container's; `None` if nothing tells.
    pub(super) fn is_inside(self) -> Option<bool> {
        let Sight { own, far, first, sees_all, has_process } = self;
        match first {
            _ if own == far || own == FIRST_NETWORK => Some(false),
            _ if far == FIRST_NETWORK => Some(true),
            Some(first) if first == far => Some(true),
            Some(_) if sees_all || has_process => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_end_is_known_by_where_the_first_process_is_or_by_its_number() {
        const HOST: u64 = 7;
        const CONTAINER: u64 = 8;
        let on_host =
            Sight { own: HOST, far: CONTAINER, first: Some(HOST), sees_all: true, has_process: true };
        let inside = Sight { own: CONTAINER, far: HOST, ..on_host };
        assert_eq!(on_host.is_inside(), Some(false));
        assert_eq!(inside.is_inside(), Some(true), "all processes of the host are seen");
        // A container with processes of its own alone, to which the host's namespace was lent by name.
        let lent = Sight { first: Some(CONTAINER), sees_all: false, has_process: false, ..inside };
        assert_eq!(lent.is_inside(), None);
        assert_eq!(Sight { far: FIRST_NETWORK, ..lent }.is_inside(), Some(true));
        assert_eq!(Sight { own: FIRST_NETWORK, far: CONTAINER, ..lent }.is_inside(), Some(false));
        // The container has another container in it.
        let nested = Sight { far: 9, has_process: true, ..lent };
        assert_eq!(nested.is_inside(), Some(false));
        // Nobody may look at the first process, nor at the kernel's first thread.
        let unseen = Sight { first: None, ..inside };
        assert_eq!(unseen.is_inside(), None);
        assert_eq!(Sight { far: CONTAINER, ..unseen }.is_inside(), Some(false), "both ends are in one");
    }
}
