//! Confinement: the rights of a process of Weir once it is set up, however it is led astray.
//!
//! Rule, in this order: [`leave_no_core_dump`] keeps packets and keys out of core dumps, also where the rest fails; [`shed`] keeps [`KEPT`]
//! of root's capabilities, in each thread by itself, because they are a thread's own; [`seal`] then forbids all threads to gain rights
//! (`PR_SET_NO_NEW_PRIVS`) and to make calls that Weir never makes ([`calls`]). The last two cannot be undone. A program that must not be
//! confined is started before.
//!
//! A call that is not on the list fails with `EPERM`, which is an error like any other: the wire reports it and ends well. A call that
//! would help an intruder (another program, another process's memory, a module, a mount) ends the process at once; the guardian then puts
//! everything back.
//!
//! Limits: `CAP_SYS_ADMIN` stays, because entering a namespace and loading programs need it; the filter keeps its other uses away. No
//! filter sees the operations of io_uring, but io_uring starts no program and mounts nothing. On a kernel without filters Weir says so and
//! goes on.
//!
//! Source: capabilities(7), `seccomp(2)`, `PR_SET_NO_NEW_PRIVS(2const)`, `PR_SET_DUMPABLE(2const)`.

pub mod calls;

use std::io;

use seccompiler::{BpfProgram, apply_filter_all_threads};

use crate::error::{Doing, Result};
use crate::sys;

/// A capability: its number and its name.
pub type Capability = (u32, &'static str);

/// `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;

/// The capabilities that are kept, each with the reason why it is needed for as long as a wire is up.
pub const KEPT: [Capability; 8] = [
    // Signals are passed on to a program of `weir run`, which may be another user's; so is its end with ours.
    (5, "kill"),
    // Messages on the other end of a pair from its own namespace: NETLINK_LISTEN_ALL_NSID, netlink(7).
    (11, "net_broadcast"),
    // Interfaces, qdiscs, offloads, NAPI settings, XDP and tcx programs: taken over again whenever an interface comes back.
    (12, "net_admin"),
    // AF_XDP and the packets that prime a queue.
    (13, "net_raw"),
    // Packet memory is locked for AF_XDP, beyond what RLIMIT_MEMLOCK allows.
    (14, "ipc_lock"),
    // The namespaces of other processes are found and opened by /proc/PID/ns, which asks for the rights of a debugger.
    (19, "sys_ptrace"),
    // Entering a namespace, and bpf(2).
    (SYS_ADMIN, "sys_admin"),
    // A worker is real-time.
    (23, "sys_nice"),
];

/// The capabilities that a guardian keeps besides. It reads no packets.
pub const KEPT_BY_GUARDIAN: [Capability; 1] = [
    // A namespace may be kept by a descriptor of another user's process, and /proc/PID/fd is that user's alone.
    (2, "dac_read_search"),
];

/// Gives up all capabilities but [`KEPT`] of this thread, and of the threads it starts from now on.
pub fn shed() -> Result<()> {
    keep(KEPT.iter())
}

/// Gives up all capabilities but [`KEPT`] and [`KEPT_BY_GUARDIAN`] of this thread, and of the threads it starts from now on.
pub fn shed_as_guardian() -> Result<()> {
    keep(KEPT.iter().chain(&KEPT_BY_GUARDIAN))
}

fn keep<'a>(kept: impl Iterator<Item = &'a Capability>) -> Result<()> {
    let kept = kept.fold(0u64, |set, (number, _)| set | 1 << number);
    let give_up = || -> io::Result<()> {
        let mut own = capabilities()?;
        for (half, sets) in own.iter_mut().enumerate() {
            let kept = (kept >> (32 * half)) as u32;
            // Inheritable capabilities would come through execve(2), which a sealed process has not got.
            *sets =
                Sets { effective: sets.effective & kept, permitted: sets.permitted & kept, inheritable: 0 };
        }
        set_capabilities(&own)
    };
    give_up().doing(|| "giving up capabilities".into())
}

/// Forbids all threads of this process the calls that Weir never makes.
pub fn seal() -> Result<()> {
    let filters = calls::filters();
    // The filter that was set last is asked first: the kernel takes the strictest answer, and of equal ones the last filter's.
    for filter in &filters {
        seal_with(filter)?;
    }
    Ok(())
}

/// Keeps the memory of this process, with its packets and keys, out of core dumps and from debuggers of its user.
pub fn leave_no_core_dump() -> Result<()> {
    // SAFETY: takes no pointers.
    sys::check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
        .map(drop)
        .doing(|| "keeping packets and keys out of core dumps".into())
}

fn seal_with(filter: &BpfProgram) -> Result<()> {
    apply_filter_all_threads(filter)
        .map_err(io::Error::other)
        .doing(|| "filtering system calls (seccomp, CONFIG_SECCOMP_FILTER)".into())
}

/// `struct __user_cap_data_struct`, of which there are two: for capabilities 0 to 31, and the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `struct __user_cap_header_struct`, of this thread.
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// Returns whether this thread has `CAP_SYS_ADMIN`.
pub fn is_admin() -> bool {
    capabilities().is_ok_and(|own| own[0].effective & 1 << SYS_ADMIN != 0)
}

fn capabilities() -> io::Result<[Sets; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    let (header, data) = (std::ptr::from_mut(&mut header), sets.as_mut_ptr());
    // SAFETY: version 3 writes two `Sets`, which `sets` has room for; both pointers are of live values.
    sys::check(unsafe { libc::syscall(libc::SYS_capget, header, data) } as libc::c_int)?;
    Ok(sets)
}

fn set_capabilities(sets: &[Sets; 2]) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let (header, data) = (std::ptr::from_mut(&mut header), sets.as_ptr());
    // SAFETY: version 3 reads two `Sets`; both pointers are of live values.
    sys::check(unsafe { libc::syscall(libc::SYS_capset, header, data) } as libc::c_int).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_that_sheds_keeps_what_it_had_of_what_is_kept_and_others_all() {
        let before = capabilities().unwrap();
        let after = std::thread::spawn(|| {
            shed().unwrap();
            capabilities().unwrap()
        });
        let after = after.join().unwrap();
        for (half, (before, after)) in before.iter().zip(after).enumerate() {
            let kept = KEPT.iter().filter(|(number, _)| *number as usize / 32 == half);
            let kept = kept.fold(0, |set, (number, _)| set | 1u32 << (number % 32));
            assert_eq!(after.effective, before.effective & kept);
            assert_eq!((after.permitted, after.inheritable), (before.permitted & kept, 0));
        }
        assert_eq!(capabilities().unwrap(), before, "it is this thread's own");
    }

    #[test]
    fn a_guardian_alone_sees_what_another_users_process_has_open() {
        if capabilities().unwrap()[0].effective & 1 << KEPT_BY_GUARDIAN[0].0 == 0 {
            return;
        }
        const NOBODY: u32 = 65534;
        let mut other = Command::new("sleep").arg("60").uid(NOBODY).gid(NOBODY).spawn().unwrap();
        let open = format!("/proc/{}/fd", other.id());
        let [worker, guardian] = [shed, shed_as_guardian].map(|shed| {
            let open = open.clone();
            let looked = std::thread::spawn(move || {
                shed().unwrap();
                std::fs::read_dir(open).map(Iterator::count)
            });
            looked.join().unwrap()
        });
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(worker.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(guardian.unwrap() > 0);
    }
}
