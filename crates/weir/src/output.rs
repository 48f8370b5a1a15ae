//! What commands say: to standard output, coloured on a terminal only, and to standard error.
//!
//! Rule: nobody reading any more (EPIPE) is no failure; any other failure, such as a full disk, is one sentence and status 1.
//! The standard library's `println!` panics instead, so no command uses it.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use weir_port::monitor::State;

use crate::Failure;

/// Whether to colour: on a terminal, unless its user wants none (<https://no-color.org>).
pub fn colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to standard output, at once and as a whole.
pub fn print(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    written(write!(out, "{text}").and_then(|()| out.flush()))
}

/// The same with the end of a line.
pub fn print_line(text: impl Display) -> Result<(), Failure> {
    print(format_args!("{text}\n"))
}

/// What became of writing. A pipe that is closed has been read as far as its reader wanted.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("writing to standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Says something on standard error. Where that fails there is nobody to tell.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Warns of something.
pub fn warn(text: impl Display) {
    say(format_args!("weir: warning: {text}"));
}

/// Says how an interface fares; who has it waits while it is down.
pub fn say_state(interface: &str, state: State) {
    let fares = match state {
        State::Up => "is up again: going on",
        State::Down => "is down: waiting until it is up again",
        State::NoCarrier => "has no carrier, because its other end is down: waiting until that is up again",
        // That is the end, and said there.
        State::Gone => return,
    };
    say(format_args!("weir: {interface} {fares}"));
}
