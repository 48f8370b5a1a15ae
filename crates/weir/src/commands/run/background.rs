//! A program that asks for the terminal from the background of a shell.
//!
//! The terminal then sends SIGTTIN or SIGTTOU to the whole process group. Weir itself goes on, because many runs must (`must_go_on`), and
//! does so in all of them. So the shell sees a job that runs on, and its `fg` does not continue the program. Nor does it give the terminal to
//! a program in a group of its own.
//!
//! Rule: what stopped for the terminal is continued as soon as Weir's group is in the foreground, and no earlier, unless it is to end: a
//! signal waits at a process that stands.
//!
//! Owner: the main thread. Source: credentials(7).

use std::fs::File;
use std::time::Duration;

use weir_port::job::Job;
use weir_port::process::{self, Process};

use crate::output;

/// The interval between looks whether the group is in the foreground.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether the program stands for the terminal.
#[derive(Default)]
pub struct Background {
    stands: bool,
}

impl Background {
    /// Takes notice of a SIGTTIN or SIGTTOU to our group, or the program's.
    pub fn stopped(&mut self) {
        if !self.stands && !is_in_foreground() {
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
    pub fn look(&mut self, process: &Process) {
        if !self.stands || !is_in_foreground() {
            return;
        }
        if let Some(job) = process.job().filter(|job| job.is_stopped && !process.is_in_group()) {
            job.bring_to_foreground();
            job.go_on();
        }
        self.go_on();
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
    File::open("/dev/tty").is_ok()
}

/// Returns whether the terminal is our process group's.
pub fn is_in_foreground() -> bool {
    Job::of(std::process::id()).is_some_and(|own| own.is_in_foreground())
}
