//! A process as a job of a shell: whether it stands, and which process group has its terminal.
//!
//! Limits: it tells a moment. The process may be continued, and the terminal given to another group, right after it.
//!
//! Source: proc_pid_stat(5), `state`, `pgrp` and `tpgid`; credentials(7); tcsetpgrp(3).

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use libc::pid_t;

/// A process as a job, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// True if a signal has stopped the process.
    pub is_stopped: bool,
    group: pid_t,
    /// The group that has the terminal; -1 without a terminal.
    in_foreground: pid_t,
}

impl Job {
    /// The job that a process is; `None` if there is no such process.
    pub fn of(process: u32) -> Option<Job> {
        Job::parse(&fs::read(format!("/proc/{process}/stat")).ok()?)
    }

    /// The job of this `/proc/PID/stat`.
    pub fn parse(stat: &[u8]) -> Option<Job> {
        // The name, in parentheses, may have anything in it; behind it stand state, parent, group, session, terminal and its group.
        let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let mut fields = str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
        let is_stopped = fields.next()? == "T";
        let group = fields.nth(1)?.parse().ok()?;
        let in_foreground = fields.nth(2)?.parse().ok()?;
        Some(Job { is_stopped, group, in_foreground })
    }

    /// Returns whether the terminal is its group's.
    pub fn is_in_foreground(&self) -> bool {
        self.group == self.in_foreground
    }

    /// Continues all processes of its group.
    pub fn go_on(&self) {
        // The first process of a PID namespace may lead group 1, for which there is no such call; others are told as 0 from there.
        if self.group > 1 {
            // SAFETY: takes no pointers.
            unsafe { libc::kill(-self.group, libc::SIGCONT) };
        }
    }

    /// Gives the terminal to its group. In a thread that has SIGTTOU blocked.
    pub fn bring_to_foreground(&self) {
        if let Ok(terminal) = File::open("/dev/tty") {
            // SAFETY: takes no pointers, and the descriptor is open for the call. It fails only where the group or the terminal has gone.
            unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), self.group) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_foreground_is_the_terminals_own_group() {
        let job = |stat: &str| Job::parse(stat.as_bytes());
        let is_in_foreground = |stat: &str| job(stat).map(|job| job.is_in_foreground());
        assert_eq!(is_in_foreground("71 (a) b) S 70 71 60 34816 71 4194304 1"), Some(true));
        assert_eq!(is_in_foreground("71 (weir) S 70 71 60 34816 60 4194304 1"), Some(false));
        assert_eq!(
            is_in_foreground("71 (weir) S 70 71 60 0 -1 4194304 1"),
            Some(false),
            "it has no terminal"
        );
        assert_eq!(job(""), None);
        assert!(job("71 (S) T 70 71 60 34816 71 4194304 1").is_some_and(|job| job.is_stopped));
        assert!(Job::parse(b"71 (\xff) t 70 71 60 34816 71").is_some_and(|job| !job.is_stopped), "traced");
        assert!(Job::of(std::process::id()).is_some_and(|job| !job.is_stopped));
    }
}
