//! A program started in another network namespace, as a given user, which cannot outlive this process.
//!
//! Rule: the program is found before anything is changed for it ([`find`]); between fork and exec only system calls are made; and it is
//! reaped by [`Process::status`] alone, so its number is its own for as long as a thread may still signal it.
//!
//! Owner: the thread that starts it, which must live as long as the program may: the kernel kills the program when that
//! thread ends (`PR_SET_PDEATHSIG`).
//!
//! Limits: the kernel forgets that promise when the program changes its user or runs a set-user-ID file, and its children never had it. The
//! right to signal the program is checked anew for each signal: to end that of another user takes `CAP_KILL`.
//!
//! Source: execvp(3) for the search; `PR_SET_PDEATHSIG(2const)`, `waitid(2)`.

use std::ffi::{OsStr, OsString, c_int};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use crate::identity::{self, Identity};
use crate::job::Job;
use crate::netns::NetNs;
use crate::{signals, sys};

/// The directories in which programs are looked for if `PATH` is not set, as execvp(3) does.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Looks for a program as executing it would.
///
/// # Errors
/// `NotFound`, or `PermissionDenied` if there is one that cannot be executed.
pub fn find(program: &OsStr) -> io::Result<()> {
    if program.as_encoded_bytes().contains(&b'/') {
        return check_executable(Path::new(program));
    }
    let mut fault = ErrorKind::NotFound;
    let folders = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    for folder in std::env::split_paths(&folders).filter(|_| !program.is_empty()) {
        match check_executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => fault = ErrorKind::PermissionDenied,
            Err(_) => {}
        }
    }
    Err(fault.into())
}

fn check_executable(path: &Path) -> io::Result<()> {
    let about = std::fs::metadata(path)?;
    if about.is_file() && about.permissions().mode() & 0o111 != 0 {
        Ok(())
    } else {
        Err(ErrorKind::PermissionDenied.into())
    }
}

/// A program that was started.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program in `netns`, with this process's input, output, environment and working directory, and no signal blocked; as another
    /// user if `identity` is one.
    pub fn start(
        program: &OsStr,
        arguments: &[OsString],
        netns: &NetNs,
        identity: Option<&Identity>,
    ) -> io::Result<Process> {
        let namespace = netns.as_fd().as_raw_fd();
        let parent = std::process::id();
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(identity) = identity {
            for name in identity::OF_SUDO {
                command.env_remove(name);
            }
            command.envs(identity.environment().iter().map(|(name, value)| (name, value)));
        }
        let identity = identity.cloned();
        let prepare = move || {
            signals::unblock_all()?;
            // SAFETY: takes no pointers; the caller's `netns` keeps the descriptor open until after the exec.
            sys::check(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) })?;
            // The user changes before the promise, which the kernel forgets at such a change.
            identity.as_ref().map_or(Ok(()), Identity::assume)?;
            // SAFETY: takes no pointers.
            sys::check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
            // SAFETY: takes nothing and cannot fail.
            if unsafe { libc::getppid() } as u32 != parent {
                // The parent died before this program could be bound not to outlive it.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: `prepare` runs between fork and exec, where only async-signal-safe calls are allowed: it makes a few bare
        // system calls, and its errors are numbers, so it neither allocates nor takes a lock.
        unsafe { command.pre_exec(prepare) };
        Ok(Process { child: command.spawn()? })
    }

    /// The waiter by which another thread waits for the program to stop or end.
    pub fn waiter(&self) -> Waiter {
        Waiter { id: self.child.id() }
    }

    /// Sends the program a signal; one that has ended takes no notice.
    pub fn signal(&self, signal: c_int) {
        // SAFETY: takes no pointers. The program has not been reaped, so the number is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Returns whether the program is in this process's group, as it is unless it has left it.
    pub fn is_in_group(&self) -> bool {
        // SAFETY: neither takes a pointer. The program has not been reaped, so the number is still its own.
        unsafe { libc::getpgid(self.child.id() as libc::pid_t) == libc::getpgrp() }
    }

    /// The program as a job.
    pub fn job(&self) -> Option<Job> {
        Job::of(self.child.id())
    }

    /// Waits for the program's end; returns its status.
    pub fn status(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// Continues all processes of this one's group.
pub fn continue_group() {
    // SAFETY: takes no pointers. The group has this process, so there is one.
    unsafe { libc::kill(0, libc::SIGCONT) };
}

/// A change of a program's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A signal, which this is, has stopped it.
    Stopped(c_int),
    /// It has ended.
    Ended,
}

/// Waits for a program's turns without reaping it.
pub struct Waiter {
    id: u32,
}

impl Waiter {
    /// Returns when the program has been stopped or has ended.
    pub fn wait(&self) -> Turn {
        loop {
            match self.next(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It is told once. The program may have been continued meanwhile, and then there is nothing to tell.
                Ok((libc::CLD_STOPPED, _)) => {
                    if let Ok((libc::CLD_STOPPED, signal)) = self.next(libc::WSTOPPED | libc::WNOHANG) {
                        return Turn::Stopped(signal);
                    }
                }
                // The call fails when there is no such child any more.
                _ => return Turn::Ended,
            }
        }
    }

    /// The code of the program's next change among `changes`, and its signal or status; zeros if there is none now.
    fn next(&self, changes: c_int) -> io::Result<(c_int, c_int)> {
        // SAFETY: all-zero is a valid `siginfo_t`, plain data that the kernel fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is alive for the call.
        sys::check(unsafe { libc::waitid(libc::P_PID, self.id, &mut info, changes) })?;
        // SAFETY: the kernel writes the fields of a child's change, or none, and they are the zeros from above.
        Ok((info.si_code, unsafe { info.si_status() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        for (program, kind) in [
            ("", ErrorKind::NotFound),
            ("no-such-program-anywhere", ErrorKind::NotFound),
            ("/no/such/program", ErrorKind::NotFound),
            ("/etc/passwd", ErrorKind::PermissionDenied),
            ("/", ErrorKind::PermissionDenied),
        ] {
            assert_eq!(find(OsStr::new(program)).unwrap_err().kind(), kind, "{program:?}");
        }
    }
}
