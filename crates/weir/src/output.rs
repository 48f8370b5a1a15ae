//! Standard output: coloured on a terminal only, and nobody reading any more is no failure.

use std::io::{self, IsTerminal};

use crate::Failure;

/// Whether to colour: on a terminal, unless its user wants none (<https://no-color.org>).
pub fn colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
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
