//! Network namespaces: being in another one for the length of a call, and finding the one a veth's peer lives in.
//!
//! A thread belongs to one network namespace. [`NetNs::run`] takes the caller's into another one and back, which needs neither a thread nor
//! a process to be had; descriptors made inside (sockets, BPF links) keep working outside.
//!
//! Source: namespaces(7), `setns(2)`; kernel `net/core/net_namespace.c:rtnl_net_getid` for [`NetNs::id_here`].

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, PortError, Result};
use crate::sys;

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

    /// Its number on this machine.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether two descriptors are of the same namespace.
    pub fn is(&self, other: &NetNs) -> bool {
        self.inode == other.inode
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

    /// Runs `work` inside the namespace, on this thread, which is back where it was afterwards.
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _here = Here::new()?;
        self.enter()?;
        work()
    }

    /// Every namespace of the machine that can be found, once, with a path that leads to it; this thread's is the first.
    pub fn all() -> Result<Vec<(PathBuf, NetNs)>> {
        let own = PathBuf::from("/proc/thread-self/ns/net");
        let mut found = vec![(own, NetNs::current()?)];
        let mut seen: HashSet<u64> = found.iter().map(|(_, netns)| netns.inode).collect();
        for path in candidates() {
            // A process or a mount that has gone meanwhile.
            let Ok(netns) = NetNs::open(&path) else { continue };
            if seen.insert(netns.inode) {
                found.push((path, netns));
            }
        }
        Ok(found)
    }

    /// What people call the namespace: its name if `ip netns` knows one, a process that is in it, or its number.
    pub fn label(&self) -> String {
        if NetNs::current().is_ok_and(|own| own.is(self)) {
            return "this network namespace".into();
        }
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let named = names.filter(|entry| NetNs::open(&entry.path()).is_ok_and(|netns| netns.is(self)));
        if let Some(name) = named.filter_map(|entry| entry.file_name().into_string().ok()).next() {
            return format!("network namespace {name}");
        }
        let text = format!("net:[{}]", self.inode);
        let mut processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let process = processes.find(|entry| {
            std::fs::read_link(entry.path().join("ns/net"))
                .is_ok_and(|link| link.to_str() == Some(text.as_str()))
        });
        match process.and_then(|entry| entry.file_name().into_string().ok()) {
            Some(pid) => format!("the network namespace of process {pid}"),
            None => format!("network namespace {}", self.inode),
        }
    }

    /// The number by which this thread's namespace knows the other one, which is how the kernel names the place of a
    /// veth's peer (`IFLA_LINK_NETNSID`); `None` if it has none.
    pub fn id_here(&self) -> io::Result<Option<i32>> {
        /// `struct rtgenmsg` padded, then one `NETNSA_FD` attribute.
        #[repr(C)]
        struct Request {
            header: libc::nlmsghdr,
            family: [u8; 4],
            attribute: libc::nlattr,
            fd: u32,
        }
        const RTM_NEWNSID: u16 = 88;
        const RTM_GETNSID: u16 = 90;
        const NETNSA_NSID: u16 = 1;
        const NETNSA_FD: u16 = 3;
        let request = Request {
            header: libc::nlmsghdr {
                nlmsg_len: size_of::<Request>() as u32,
                nlmsg_type: RTM_GETNSID,
                nlmsg_flags: libc::NLM_F_REQUEST as u16,
                nlmsg_seq: 1,
                nlmsg_pid: 0,
            },
            family: [0; 4],
            attribute: libc::nlattr { nla_len: 8, nla_type: NETNSA_FD },
            fd: self.file.as_raw_fd() as u32,
        };
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        let pointer = std::ptr::from_ref(&request).cast();
        // SAFETY: `pointer` and the size describe `request`, which outlives the call.
        let sent = unsafe { libc::send(socket.as_raw_fd(), pointer, size_of::<Request>(), 0) };
        sys::check(sent as i32)?;
        let mut reply = [0u8; 256];
        // SAFETY: the kernel writes at most the length of `reply`.
        let received = unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
        let reply = &reply[..sys::check(received as i32)? as usize];
        // Header (16 bytes), `struct rtgenmsg` padded to 4, then attributes, of which the first is the number.
        let half =
            |at: usize| reply.get(at..at + 2).map(|two| u16::from_ne_bytes(two.try_into().expect("two")));
        let id = reply.get(24..28).map(|four| i32::from_ne_bytes(four.try_into().expect("four")));
        match (half(4), half(22), id) {
            (Some(RTM_NEWNSID), Some(NETNSA_NSID), Some(id)) => Ok((id >= 0).then_some(id)),
            _ => Ok(None),
        }
    }

    /// The namespace that this thread's namespace knows by the number `id`.
    ///
    /// # Errors
    /// If no process is in it and it is mounted nowhere that this process can see.
    pub fn by_id_here(id: i32) -> Result<NetNs> {
        let mut seen = Vec::new();
        for path in candidates() {
            let Ok(candidate) = NetNs::open(&path) else { continue };
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
        if let Err(error) = self.0.enter() {
            // Whatever this thread did next would be done to other interfaces than it means.
            eprintln!("weir: {error}; it cannot go on in another namespace than its own");
            std::process::abort();
        }
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where namespaces can be found: open in this process, mounted (as `ip netns` and container engines do), or some process's
/// own.
fn candidates() -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        std::fs::read_link(&path).ok()?.to_str()?.starts_with("net:[").then_some(path)
    });
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if !after.starts_with("nsfs ") {
            return None;
        }
        before.split(' ').nth(4).map(PathBuf::from)
    });
    let processes = std::fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let is_process = entry.file_name().to_str()?.bytes().all(|byte| byte.is_ascii_digit());
        is_process.then(|| entry.path().join("ns/net"))
    });
    open.chain(mounted).chain(processes).collect()
}
