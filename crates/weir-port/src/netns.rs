//! Network namespaces: being in another one for the length of a call, and finding the one a veth's peer lives in.
//!
//! A thread belongs to one network namespace. [`NetNs::run`] takes the caller's into another one and back, which needs neither a further
//! thread nor a process; descriptors made inside (sockets, BPF links) keep working outside.
//!
//! Source: namespaces(7), `setns(2)`; kernel `net/core/net_namespace.c:rtnl_net_getid` for [`NetNs::id_here`].

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, PortError, Result, unless_short};
use crate::netlink_bytes::{Fields, attributes, messages};
use crate::{monitor, mountinfo, sys};

/// Of `include/uapi/asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Of `include/uapi/linux/nsfs.h`, ioctl_ns(2).
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// A network namespace, kept alive by this descriptor.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    inode: u64,
}

impl NetNs {
    /// The namespace this thread is in.
    pub fn current() -> Result<NetNs> {
        NetNs::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// A new namespace, with nothing in it but a loopback interface that is down. It has no name and lives as long as
    /// descriptors of it and processes in it.
    pub fn new() -> Result<NetNs> {
        let _here = Here::new()?;
        NetNs::unshare()
    }

    /// Moves this thread, and with it those that it starts, into a new namespace for good.
    pub fn unshare() -> Result<NetNs> {
        // SAFETY: takes no pointers.
        sys::check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
            .doing(|| "making a network namespace".into())?;
        NetNs::current()
    }

    /// The namespace at a path such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: &Path) -> Result<NetNs> {
        let open = || -> io::Result<NetNs> {
            let file = File::open(path)?;
            let inode = file.metadata()?.ino();
            Ok(NetNs { file, inode })
        };
        open().doing(|| format!("opening the network namespace {}", path.display()))
    }

    /// The namespace of a descriptor.
    pub fn from_fd(descriptor: OwnedFd) -> Result<NetNs> {
        let file = File::from(descriptor);
        let about = file.metadata().doing(|| "looking at a namespace's descriptor".into())?;
        Ok(NetNs { file, inode: about.ino() })
    }

    /// The number of the namespace on this machine.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns whether two descriptors are of the same namespace.
    pub fn is(&self, other: &NetNs) -> bool {
        self.inode == other.inode
    }

    /// The number that no other namespace ever has until the machine starts anew, which tells it from a later one of the same
    /// [`NetNs::inode`]; `None` if the kernel gives none.
    pub fn cookie(&self) -> Option<u64> {
        let ask = || {
            let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
            sys::getsockopt::<u64>(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE)
        };
        self.run(|| ask().doing(|| "asking for a namespace's cookie".into())).ok().map(|(cookie, _)| cookie)
    }

    /// Returns whether it was made in another user namespace than this process's, where any user may be root. One that cannot be told is not.
    pub fn is_of_another_user_namespace(&self) -> bool {
        // SAFETY: the request takes no argument, and its result is a new descriptor or an error.
        let owner = sys::check(unsafe { libc::ioctl(self.file.as_raw_fd(), NS_GET_USERNS) });
        // SAFETY: the kernel has just made this descriptor for us.
        let owner = owner.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        let owner = owner.and_then(|owner| owner.metadata());
        let own = std::fs::metadata("/proc/thread-self/ns/user");
        matches!((owner, own), (Ok(owner), Ok(own)) if owner.ino() != own.ino())
    }

    /// Another descriptor of the same namespace.
    pub fn try_clone(&self) -> Result<NetNs> {
        let file = self.file.try_clone().doing(|| "duplicating a namespace's descriptor".into())?;
        Ok(NetNs { file, inode: self.inode })
    }

    /// Moves this thread into the namespace for good.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: takes no pointers; the descriptor is open.
        let result = sys::check(unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) });
        result.map(drop).doing(|| "entering a network namespace".into())
    }

    /// Runs `work` inside the namespace, on this thread, which is back in its own afterwards.
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _here = Here::new()?;
        self.enter()?;
        work()
    }

    /// Every namespace of the machine that can be found, once, with a path that leads to it; this thread's is the first.
    ///
    /// # Errors
    /// If there are more than this process may have descriptors for.
    pub fn all() -> Result<Vec<(PathBuf, NetNs)>> {
        let own = PathBuf::from("/proc/thread-self/ns/net");
        let mut found = vec![(own, NetNs::current()?)];
        let mut seen: HashSet<u64> = found.iter().map(|(_, netns)| netns.inode).collect();
        for path in candidates() {
            let path = path?;
            let opened = NetNs::open(&path).or_else(|error| match error.is_shortage() {
                // A machine may have more of them than a process may usually have descriptors.
                true => sys::raise_descriptors().map_or(Err(error), |()| NetNs::open(&path)),
                false => Err(error),
            });
            // The process or the mount has gone meanwhile.
            let Some(netns) = unless_short(opened.map(Some))? else { continue };
            if seen.insert(netns.inode) {
                found.push((path, netns));
            }
        }
        Ok(found)
    }

    /// The name of the namespace for people: its name if `ip netns` knows one, a process that is in it, or its number.
    pub fn label(&self) -> String {
        if NetNs::current().is_ok_and(|own| own.is(self)) {
            return "this network namespace".into();
        }
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let named = names.filter(|entry| NetNs::open(&entry.path()).is_ok_and(|netns| netns.is(self)));
        if let Some(name) = named.filter_map(|entry| entry.file_name().into_string().ok()).next() {
            return format!("network namespace {name}");
        }
        match self.process() {
            Some(pid) => format!("the network namespace of process {pid}"),
            None => format!("network namespace {}", self.inode),
        }
    }

    /// A process that is in the namespace, if there is one besides this, which is about to end or only looks in.
    pub fn process(&self) -> Option<u32> {
        let text = format!("net:[{}]", self.inode);
        let own = std::process::id();
        let mut others = sys::processes().filter(|pid| *pid != own);
        others.find(|pid| {
            let link = std::fs::read_link(format!("/proc/{pid}/ns/net"));
            link.is_ok_and(|link| link.to_str() == Some(text.as_str()))
        })
    }

    /// The number by which this thread's namespace knows the other one, which is how the kernel names the place of a
    /// veth's peer (`IFLA_LINK_NETNSID`); `None` if it has none.
    pub fn id_here(&self) -> io::Result<Option<i32>> {
        const RTM_GETNSID: u16 = 90;
        const NETNSA_FD: u16 = 3;
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        // `struct rtgenmsg` padded, then one attribute.
        let attribute = [8, NETNSA_FD].map(u16::to_ne_bytes).concat();
        let body = [&[0; 4], &attribute[..], &self.file.as_raw_fd().to_ne_bytes()].concat();
        monitor::send(&socket, RTM_GETNSID, 0, &body)?;
        let mut reply = [0u8; 256];
        let length = monitor::receive(&socket, &mut reply, 0)?;
        Ok(id_of_reply(&reply[..length]))
    }

    /// The namespace that this thread's namespace knows by the number `id`.
    ///
    /// # Errors
    /// If no process is in it and it is mounted nowhere that this process can see.
    pub fn by_id_here(id: i32) -> Result<NetNs> {
        let mut seen = Vec::new();
        for path in candidates() {
            let Some(candidate) = unless_short(NetNs::open(&path?).map(Some))? else { continue };
            if seen.contains(&candidate.inode) {
                continue;
            }
            seen.push(candidate.inode);
            if candidate.id_here().doing(|| "asking for a namespace's number".into())? == Some(id) {
                return Ok(candidate);
            }
        }
        Err(PortError::Kernel {
            doing: format!("looking for the network namespace that is number {id} here (`ip netns list-id`)"),
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "no process is in it and it is mounted nowhere visible; run weir in the host's PID namespace",
            ),
        })
    }
}

/// Brings this thread back into the namespace it is in now when dropped, also by a panic.
struct Here(NetNs);

impl Here {
    fn new() -> Result<Here> {
        NetNs::current().map(Here)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // A thread that may not enter another namespace, for want of root, is still here.
        let is_here = || NetNs::current().is_ok_and(|now| now.is(&self.0));
        if let Err(error) = self.0.enter()
            && !is_here()
        {
            // Anything that this thread did next would be done to other interfaces than it means.
            eprintln!("weir: {error}; it cannot go on in another namespace than its own");
            std::process::abort();
        }
    }
}

/// The number that the kernel's answer to RTM_GETNSID gives a namespace; `None` if it gives none, or is another message.
pub fn id_of_reply(reply: &[u8]) -> Option<i32> {
    const RTM_NEWNSID: u16 = 88;
    const NETNSA_NSID: u16 = 1;
    // `struct rtgenmsg` padded to 4 bytes, then attributes, of which the first is the number.
    let (kind, _, body) = messages(reply).next()?;
    let (first, value) = attributes(body.get(4..)?).next()?;
    let id = value.i32(0).filter(|id| *id >= 0)?;
    (kind == RTM_NEWNSID && first == NETNSA_NSID).then_some(id)
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The paths of namespaces that can be found: mounted (as `ip netns` and container engines do), some process's own, or open in this
/// process alone. Each kind is looked for when the one before is used up: a process with many ports has thousands of descriptors.
fn candidates() -> impl Iterator<Item = Result<PathBuf>> {
    let mounts = iter::once_with(|| {
        let text =
            unless_short(std::fs::read("/proc/self/mountinfo").doing(|| "reading what is mounted".into()));
        let namespaces = |text: &[u8]| -> Vec<PathBuf> {
            // Other kinds of namespaces are mounted too.
            let mounts = mountinfo::mounts(text)
                .filter(|mount| mount.kind == b"nsfs" && mount.root.starts_with(b"net:["));
            mounts.map(|mount| mount.place).collect()
        };
        text.map(|text| namespaces(&text))
    });
    let processes = iter::once_with(|| {
        let is_process =
            |name: &OsStr| name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let found = entries("/proc")?.into_iter().filter(|path| path.file_name().is_some_and(is_process));
        Ok(found.map(|path| path.join("ns/net")).collect())
    });
    let open = iter::once_with(|| {
        // Many descriptors are of few namespaces.
        let mut seen = HashSet::new();
        let is_new = |path: &PathBuf| {
            let target = std::fs::read_link(path).unwrap_or_default();
            target.to_str().is_some_and(|target| target.starts_with("net:[")) && seen.insert(target)
        };
        Ok(entries("/proc/self/fd")?.into_iter().filter(is_new).collect())
    });
    mounts.chain(processes).chain(open).flat_map(|found: Result<Vec<PathBuf>>| match found {
        Ok(paths) => paths.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    })
}

/// The paths in a directory of `/proc`; none if it cannot be read.
fn entries(directory: &str) -> Result<Vec<PathBuf>> {
    let read =
        std::fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    unless_short(read.doing(|| format!("reading {directory}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_number_is_read_from_a_whole_answer_alone() {
        let answer = |kind: u16, id: i32| {
            let mut bytes = 28u32.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 14]);
            bytes.extend([8u16, 1].map(u16::to_ne_bytes).concat());
            bytes.extend(id.to_ne_bytes());
            bytes
        };
        assert_eq!(id_of_reply(&answer(88, 7)), Some(7));
        assert_eq!(id_of_reply(&answer(88, -1)), None, "it has none");
        assert_eq!(id_of_reply(&answer(2, 7)), None, "an error");
        for cut in 0..28 {
            assert_eq!(id_of_reply(&answer(88, 7)[..cut]), None);
        }
    }
}
