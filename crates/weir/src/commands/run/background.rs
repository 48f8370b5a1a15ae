//! A program that asks for the terminal from the background of a shell.
//!
//! The terminal then sends SIGTTIN or SIGTTOU to the whole process group. Weir itself goes on, because many runs must (`must_go_on`), and
//! does so in all of them. So the shell sees a job that runs on, and its `fg` does not continue the program.
//!
//! Rule: what Weir's process group stopped for is continued as soon as the group is in the foreground, and no earlier, unless it is to end:
//! a signal waits at a process that stands.
//!
//! Owner: the main thread. Source: credentials(7); proc_pid_stat(5), `pgrp` and `tpgid`.

use std::fs;
use std::time::Duration;

use weir_port::process;

use crate::output;

/// The interval between looks whether the group is in the foreground.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether the program stands for the terminal.
#[derive(Default)]
pub struct Background {
    stands: bool,
}

impl Background {
    /// Takes notice of a SIGTTIN or SIGTTOU.
    pub fn stopped(&mut self) {
        if !self.stands {
            output::say(
                "weir: CMD wants the terminal and stands until it is in the foreground: `fg` brings it there",
            );
        }
        self.stands = true;
    }

    /// Returns whether the program may stand, so that it is to be looked at.
    pub fn stands(&self) -> bool {
        self.stands
    }

    /// Continues the program and its children, if they stand and the terminal is theirs now.
    pub fn look(&mut self) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if is_foreground(&stat) {
            self.go_on();
        }
    }

    /// Continues the program and its children, if they stand. Who still asks for the terminal after that is stopped anew.
    pub fn go_on(&mut self) {
        if self.stands {
            process::continue_group();
            self.stands = false;
        }
    }
}

/// Returns whether this process has a terminal, and so perhaps a shell that waits for it to stop.
pub fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}

/// Returns whether the process of this `/proc/PID/stat` is in the foreground of its terminal.
fn is_foreground(stat: &str) -> bool {
    // The name, in parentheses, may have anything in it; behind it stand state, parent, group, session, terminal and its group.
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, after)| after).split_whitespace().take(6).collect();
    matches!(fields[..], [_, _, group, _, _, of_terminal] if group == of_terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_foreground_is_the_terminals_own_group() {
        assert!(is_foreground("71 (a) b) S 70 71 60 34816 71 4194304 1"));
        assert!(!is_foreground("71 (weir) S 70 71 60 34816 60 4194304 1"));
        assert!(!is_foreground("71 (weir) S 70 71 60 0 -1 4194304 1"), "it has no terminal");
        assert!(!is_foreground(""));
    }
}
