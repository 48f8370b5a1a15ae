//! Namespaces for a file of tests: what it starts has its own process ids, `/proc`, `/run/weir`, `/run/netns` and temporary files,
//! which files of tests beside it neither see nor reach.
//!
//! Rule: the tests run in a process of the new namespaces. A first process stands above them, which waits for whatever is left to it. When
//! the tests end, the kernel ends all other processes there, and with them the network namespaces.
//!
//! Source: `pid_namespaces(7)`, `mount_namespaces(7)`. Limits: the first network namespace, `/sys` and the control groups are shared,
//! so names there must not be made of process ids alone; who is interrupted is killed, and cleans up nothing there.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, exit};

use anyhow::{Context, Result};

/// The folder of temporary files there: process ids, after which files are named, are the same in all such namespaces.
const TEMPORARY: &str = "/tmp/weir-tests";

/// Returns in a process of new namespaces. This process waits for it, and ends with its status.
///
/// Call it before any thread is started.
///
/// # Errors
/// If the kernel refuses, as it does without root.
pub fn enter() -> Result<()> {
    unshare(libc::CLONE_NEWPID)?;
    if let Some(first) = fork()? {
        end_as(first);
    }
    // SAFETY: prctl(2) with PR_SET_PDEATHSIG takes a number. Whoever ends the parent ends all processes of these namespaces.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    own_mounts()?;
    // SAFETY: no other thread reads the environment, as there is none.
    unsafe { std::env::set_var("TMPDIR", TEMPORARY) };
    match fork()? {
        Some(tests) => end_as(tests),
        None => Ok(()),
    }
}

/// Gives this process and those it starts mounts of their own, which others do not see.
///
/// Call it before any thread is started, as a mount namespace is a thread's.
///
/// # Errors
/// If the kernel refuses, as it does without root.
pub fn own_mount_namespace() -> Result<()> {
    unshare(libc::CLONE_NEWNS)?;
    mount("none", "/", libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Covers a folder by an empty one in memory, with mount options such as `size=1048576`.
///
/// # Errors
/// If the kernel refuses.
pub fn cover(folder: &str, options: &str) -> Result<()> {
    fs::create_dir_all(folder).context(folder.to_string())?;
    mount("tmpfs", folder, 0, options)
}

/// Namespaces that others pinned are let go of, so that they can end.
fn own_mounts() -> Result<()> {
    own_mount_namespace()?;
    for entry in fs::read_dir("/run/netns").into_iter().flatten() {
        let path = CString::new(entry?.path().into_os_string().into_encoded_bytes())?;
        // SAFETY: umount2(2) takes a string that ends in NUL and a number. What is not mounted is passed over.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
    cover("/run/weir", "mode=755")?;
    cover("/run/netns", "mode=755")?;
    cover(TEMPORARY, "mode=1777")?;
    mount("proc", "/proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, "")
}

/// Waits for all children of this process until the one of this id has ended, and ends with its status.
fn end_as(child: libc::pid_t) -> ! {
    let mut status = 0;
    loop {
        // SAFETY: wait(2) writes to the number that it is given.
        match unsafe { libc::wait(&raw mut status) } {
            ended if ended == child => break,
            -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => exit(1),
            _ => {}
        }
    }
    let status = ExitStatus::from_raw(status);
    exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// The id of a new child in this process; none in the child.
fn fork() -> Result<Option<libc::pid_t>> {
    // SAFETY: this process has one thread, so its child has all that it has.
    let child = check(unsafe { libc::fork() }).context("fork")?;
    Ok((child != 0).then_some(child))
}

fn unshare(flags: libc::c_int) -> Result<()> {
    // SAFETY: unshare(2) takes a number.
    check(unsafe { libc::unshare(flags) }).map(drop).context("unshare")
}

fn mount(kind: &str, target: &str, flags: libc::c_ulong, options: &str) -> Result<()> {
    let [kind, path, options] =
        [kind, target, options].map(|text| CString::new(text).expect("it holds no NUL"));
    // SAFETY: mount(2) takes a number and strings that end in NUL and live through the call.
    let result =
        unsafe { libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    check(result).map(drop).with_context(|| format!("mounting {target}"))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
