//! The holder of a thing: the process that has it, as a hold's file tells the next one.
//!
//! Rule: a process is known by its number and its start, because numbers are given again. Owner: none, this is a copy. Source: proc_pid_stat(5).
//! Limits: process numbers are those of one PID namespace.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The most characters noted of a command line, which may itself be longer than the file.
const COMMAND_CHARS_MAX: usize = 200;

/// The holder of a thing, as the next process reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The number of its process.
    pub pid: u32,
    /// The start of that process, which tells it from a later one of the same number.
    started: u64,
    /// The process that puts things back, if it has one.
    pub guardian: Option<u32>,
    /// The command line of its process; the beginning of a long one.
    pub command: String,
    /// True if the thing it held is being put back.
    pub(super) is_undone: bool,
}

impl Owner {
    /// This process as an owner, with the guardian that puts things back for it.
    pub fn this(guardian: Option<u32>) -> Owner {
        let pid = std::process::id();
        let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut command = words.join(" ");
        if let Some(program) = words.first() {
            let name = Path::new(program).file_name().map_or(program.clone(), |n| n.to_string_lossy().into());
            command = command.replacen(program.as_str(), &name, 1);
        }
        let started = started(pid).unwrap_or(0);
        Owner { pid, started, guardian, command: shortened(command), is_undone: false }
    }

    pub(super) fn lives(&self) -> bool {
        !self.is_undone && self.is_running()
    }

    /// Returns whether its process changes the thing now: as a command, or because the thing is being put back.
    pub(super) fn is_under_way(&self) -> bool {
        (self.guardian.is_none() || self.is_undone) && self.is_running()
    }

    pub(super) fn is_running(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Returns whether it has the thing until it is ended, and not only while a command is at work.
    pub(super) fn keeps(&self) -> bool {
        self.lives() && self.guardian.is_some()
    }

    /// Returns whether neither its process nor the guardian of that is there any more: whoever has the thing has it since.
    pub(super) fn has_ended(&self) -> bool {
        !self.is_running() && !self.guardian.is_some_and(is_guardian)
    }
}

/// Returns whether a process puts things back for another.
pub(super) fn is_guardian(pid: u32) -> bool {
    let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    words.is_ok_and(|words| words.split('\0').nth(1) == Some("guardian"))
}

/// The beginning of a command line.
fn shortened(mut command: String) -> String {
    if let Some((end, _)) = command.char_indices().nth(COMMAND_CHARS_MAX) {
        command.truncate(end);
        command.push('…');
    }
    command
}

/// The start of a process, in ticks since the machine's start; `None` if it has ended, reaped or not.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold any characters.
    let mut words = text.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?;
    // Field 22 of proc_pid_stat(5).
    (state != "Z" && state != "X").then(|| words.nth(18)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_of_another_start_does_not() {
        let own = Owner::this(Some(1));
        assert!(own.lives() && own.started > 0, "{own:?}");
        let earlier = Owner { started: own.started + 1, ..own.clone() };
        assert!(!earlier.lives() && earlier.has_ended(), "process 1 is no guardian");
        assert!(!Owner { is_undone: true, ..own.clone() }.lives());
        assert!(!Owner { is_undone: true, ..own }.has_ended(), "it is still there");
    }

    #[test]
    fn a_command_is_under_way_and_a_weir_while_it_is_undone() {
        let command = Owner::this(None);
        let weir = Owner::this(Some(1));
        assert!(command.is_under_way() && !weir.is_under_way());
        assert!(Owner { is_undone: true, ..weir }.is_under_way());
        assert!(!Owner { started: command.started + 1, ..command }.is_under_way());
    }

    #[test]
    fn of_a_long_command_the_beginning_is_noted() {
        let short = format!("weir run {}", "é".repeat(191));
        assert_eq!(shortened(short.clone()), short);
        assert_eq!(shortened(format!("{short}é")), format!("{short}…"));
    }
}
