//! A program that a signal has stopped: Ctrl-Z, or SIGSTOP, which the `suspend` of a shell sends to its own group.
//!
//! Rule: where the program is in our process group, or its group has the terminal, Weir stops itself, which is what its shell waits for. The
//! shell then continues our group and gives that the terminal; Weir does so for a program in a group of its own. Where Weir must not stand
//! it continues at once what nobody at the terminal could continue or end. Anything else stands until who stopped it continues it, or until it is
//! asked to end ([`let_end`]).
//!
//! Owner: the main thread. Source: credentials(7).

use weir_port::process::{self, Process};
use weir_port::signals::{self, SIGTSTP};

use super::background;
use crate::output;

/// Follows the stop of a program by SIGTSTP or SIGSTOP. `must_go_on` names the run if Weir must not stand.
pub fn follow(process: &Process, signal: i32, must_go_on: Option<&str>) {
    let Some(job) = process.job().filter(|_| background::has_terminal()) else { return };
    let is_in_group = process.is_in_group();
    match must_go_on {
        None if is_in_group => signals::stop_self(),
        Some(run) if is_in_group && signal == SIGTSTP => {
            say_not_suspended(run);
            // Children of the program stand too.
            process::continue_group();
        }
        // Ctrl-C reaches us.
        Some(_) if is_in_group => {}
        _ if !job.is_in_foreground() => {}
        Some(run) => {
            say_not_suspended(run);
            job.go_on();
        }
        None => {
            signals::stop_self();
            if background::is_in_foreground() {
                job.bring_to_foreground();
            }
            job.go_on();
        }
    }
}

/// Continues a program that was asked to end and stands: the signal waits at it.
pub fn let_end(process: &Process) {
    if let Some(job) = process.job().filter(|job| job.is_stopped) {
        job.go_on();
    }
}

/// Says why Ctrl-Z does nothing.
pub fn say_not_suspended(what: &str) {
    output::say(format_args!("weir: {what} cannot be suspended (Ctrl-Z): Ctrl-C ends it"));
}
