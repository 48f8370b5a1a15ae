//! Signals as messages: blocked in every thread, so that none ends the process, and taken one by one by the thread that waits.
//!
//! Rule: no handler is installed. So a signal that was ignored when this process started stays ignored in the programs it starts (`nohup`,
//! background jobs of a shell), and any other has its default there; SIGPIPE has its default in any case, which the standard library sees to,
//! and SIGCHLD where [`keep_statuses`] did. Here too: a hang-up that was ignored ends nothing, whoever sends it,
//! and of the other ignored signals only those that a process sends on purpose are heard, not those of a terminal. A signal that is blocked
//! arrives even if it is ignored, so this file filters it.
//!
//! Limits: blocking is inherited by threads, so it must come before the first of them. One signal of a kind waits at a time.
//!
//! Source: signal(7), `sigtimedwait(2)`; `si_code` in sigaction(2).

use std::ffi::c_int;
use std::io;

pub use libc::{
    SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::sys;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: c_int,
    /// True if the kernel sent it, as it does for Ctrl-C at a terminal, and not a process.
    pub by_kernel: bool,
}

/// Has the kernel keep the status of each child until it is asked for: where SIGCHLD is ignored, as whoever started this process may have
/// left it, it keeps none.
pub fn keep_statuses() {
    // SAFETY: the default is no handler, and the call fails for a number alone that is no signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Unblocks all signals in this thread, for a program that is about to take its place. Async-signal-safe.
pub fn unblock_all() -> io::Result<()> {
    set_mask(libc::SIG_SETMASK, &empty_set())
}

/// Unblocks signals in this thread, so that they end the process again.
///
/// # Errors
/// If one is no signal.
pub fn unblock(signals: &[c_int]) -> io::Result<()> {
    let mut set = empty_set();
    for &signal in signals {
        // SAFETY: the set is initialised and alive for the call; a bad number is refused.
        sys::check(unsafe { libc::sigaddset(&mut set, signal) })?;
    }
    set_mask(libc::SIG_UNBLOCK, &set)
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: all-zero is valid plain data, which `sigemptyset` fills in.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is alive for the call.
    unsafe { libc::sigemptyset(&mut set) };
    set
}

fn set_mask(how: c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is alive for the call; no old one is asked for.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Stops all processes of this one's group, in a thread that has SIGTSTP blocked, as Ctrl-Z does, until this one is continued. They go on at
/// once where that is ignored, and where nobody is there to continue them: so the kernel stops no process of an orphaned group.
pub fn stop_group() {
    let mut set = empty_set();
    // SAFETY: the set is initialised and alive for the call.
    unsafe { libc::sigaddset(&mut set, SIGTSTP) };
    // Sent while it is blocked: one of the terminal's that waits comes with it, and not first, to stop the process a second time. The one to
    // this thread is there also if another thread, which waits for signals, takes that to the process ([`Signals`] passes it over).
    // SAFETY: neither takes a pointer. The group has this process, so there is one.
    unsafe {
        libc::kill(0, SIGTSTP);
        libc::raise(SIGTSTP);
    }
    // It comes before the first call returns. A change of the mask fails only by an operation that there is not.
    let _ = set_mask(libc::SIG_UNBLOCK, &set);
    let _ = set_mask(libc::SIG_BLOCK, &set);
}

/// Returns whether this process was started with a signal ignored.
fn is_ignored(signal: c_int) -> io::Result<bool> {
    // SAFETY: all-zero is a valid `sigaction`, plain data that the kernel fills in.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and the old action is written to a live value; a bad number is refused.
    sys::check(unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) })?;
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Signals that are waited for.
pub struct Signals {
    set: libc::sigset_t,
    /// The signals among them that were ignored.
    ignored: Vec<c_int>,
}

impl Signals {
    /// Blocks `signals` in this thread and in those it starts from now on; a hang-up only if it was not ignored.
    pub fn block(signals: &[c_int]) -> io::Result<Signals> {
        let mut set = empty_set();
        let mut ignored = Vec::new();
        for &signal in signals {
            if is_ignored(signal)? {
                ignored.push(signal);
                if signal == SIGHUP {
                    continue;
                }
            }
            // SAFETY: the set is initialised and alive for the call; a bad number is refused.
            sys::check(unsafe { libc::sigaddset(&mut set, signal) })?;
        }
        set_mask(libc::SIG_BLOCK, &set)?;
        Ok(Signals { set, ignored })
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<Received> {
        self.take(None)
    }

    /// A signal that has arrived already, if there is one.
    pub fn arrived(&self) -> io::Result<Option<Received>> {
        match self.take(Some(libc::timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    fn take(&self, timeout: Option<libc::timespec>) -> io::Result<Received> {
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let own_pid = std::process::id() as libc::pid_t;
        loop {
            // SAFETY: all-zero is a valid `siginfo_t`, plain data that the kernel fills in.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: the pointers are of live values for the length of the call, or none to wait without an end.
            match sys::check(unsafe { libc::sigtimedwait(&self.set, &mut info, timeout) }) {
                Ok(signal) => {
                    // Codes above 0 are the kernel's (`SI_FROMKERNEL`).
                    let by_kernel = info.si_code > 0;
                    // SAFETY: a signal that is not the kernel's has its sender's process in it.
                    let is_own_stop = !by_kernel && signal == SIGTSTP && unsafe { info.si_pid() } == own_pid;
                    if !(is_own_stop || by_kernel && self.ignored.contains(&signal)) {
                        return Ok(Received { signal, by_kernel });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_nobody_could_continue_does_not_stop() {
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let mut command = Command::new("true");
            let mut of_tstp = empty_set();
            // SAFETY: the set is initialised and alive for the call.
            unsafe { libc::sigaddset(&mut of_tstp, SIGTSTP) };
            let prepare = move || {
                // SAFETY: neither takes a pointer.
                sys::check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
                // SAFETY: as above.
                sys::check(unsafe { libc::setsid() })?;
                set_mask(libc::SIG_BLOCK, &of_tstp)?;
                stop_group();
                unblock_all()
            };
            // SAFETY: between fork and exec `prepare` makes bare system calls alone, which neither allocate nor lock.
            unsafe { command.pre_exec(prepare) };
            ended.send(command.status()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_secs(20)).unwrap().unwrap().success());
    }
}
