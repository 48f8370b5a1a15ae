//! A program that a signal has stopped: Ctrl-Z, or SIGSTOP, which the `suspend` of a shell sends to its own group.
//!
//! Rule: where Ctrl-Z stopped the program, or where a group of its own has the terminal, Weir stops our whole process group, which is what a
//! shell waits for: a script, too, that Weir was started by. The shell then continues our group and gives that the terminal; Weir does so for
//! a program in a group of its own. Where Weir must not stand it continues at once what nobody at the terminal could continue or end.
//! Anything else stands until who stopped it continues it, such as a debugger, or until it is asked to end ([`let_end`]), as by Ctrl-C.
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
        // SIGSTOP: Ctrl-C and Ctrl-Z reach us both meanwhile.
        _ if is_in_group && signal != SIGTSTP => {}
        None if is_in_group => signals::stop_group(),
        Some(run) if is_in_group => {
            say_not_suspended(run);
            // Children of the program stand too.
            process::continue_group();
        }
        _ if !job.is_in_foreground() => {}
        Some(run) => {
            say_not_suspended(run);
            job.go_on();
        }
        None => {
            signals::stop_group();
            if background::is_in_foreground() {
                job.bring_to_foreground();
            }
            job.go_on();
        }
    }
}

/// Continues a program that was asked to end and stands: the signal waits at it.
pub fn let_end(process: &Process) {
    match process.job().filter(|job| job.is_stopped) {
        Some(_) if process.is_in_group() => process::continue_group(),
        Some(job) => job.go_on(),
        None => {}
    }
}

/// Says why Ctrl-Z does nothing.
pub fn say_not_suspended(what: &str) {
    output::say(format_args!("weir: {what} cannot be suspended (Ctrl-Z): Ctrl-C ends it"));
}
