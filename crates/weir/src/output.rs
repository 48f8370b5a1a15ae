//! The output of commands: to standard output, coloured on a terminal only, and to standard error.
//!
//! Rule: nobody reading any more (EPIPE) is no failure; any other failure, such as a full disk, is one sentence and status 1. Where the output
//! tells of work that is done, the sentence says so ([`Lines`]).
//! The standard library's `println!` panics instead, so no command uses it.
//!
//! Rule: while signals do not end a command by themselves, neither of the two holds it up: a pipe that nobody reads, or a terminal that
//! was stopped, would keep it from ending. What has no room then is left out. Limits: another process may take the room between the look
//! and the writing; of a text longer than a piece the rest may be left out, and the next one follows in its line. The summary of `weir run` is
//! waited for, as it comes behind the program's own output.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use weir_port::monitor::State;
use weir_port::sys;

use crate::Failure;
use crate::table::Style;

/// The longest wait for room while the command may not be held up, in nanoseconds.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The interval between looks whether a writing goes on, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// A pipe that can be written to has room for as much: `PIPE_BUF` of pipe(7).
const PIECE_BYTES: usize = 4096;
/// True while no writing may hold the command up.
static HURRIES: AtomicBool = AtomicBool::new(false);
/// True if the last look at standard output found no room.
static OUTPUT_IS_FULL: AtomicBool = AtomicBool::new(false);
/// True if the last look at standard error found no room.
static ERROR_IS_FULL: AtomicBool = AtomicBool::new(false);

/// Work that takes longer is told of.
const LONG: Duration = Duration::from_secs(1);

/// Returns whether to colour: on a terminal, unless its user wants none (<https://no-color.org>).
pub fn colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to standard output, at once.
pub fn print(text: impl Display) -> Result<(), Failure> {
    written(write(io::stdout().lock(), &OUTPUT_IS_FULL, &harmless(&text.to_string())))
}

/// Writes a line to standard output, at once.
pub fn print_line(text: impl Display) -> Result<(), Failure> {
    print(format_args!("{text}\n"))
}

/// Lines that tell of work. They are written when it is done, or has failed, so that nobody who does not read them holds it up.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line.
    pub fn print(&mut self, text: impl Display) {
        self.0.push_str(&format!("{text}\n"));
    }

    /// Writes the lines to standard output, where they tell of work that is not done.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(mut self) -> Result<(), Failure> {
        print(std::mem::take(&mut self.0))
    }

    /// Writes the lines to standard output.
    ///
    /// # Errors
    /// If they cannot be written, with the sentence that the work is done.
    pub fn end(self) -> Result<(), Failure> {
        self.write().map_err(|failure| Failure {
            message: format!("{}; the work that it tells of is done all the same", failure.message),
            ..failure
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // The failure that keeps them from being written otherwise is told.
        let _ = print(std::mem::take(&mut self.0));
    }
}

/// Writes a line to standard output that tells of work which is done.
pub fn print_done(text: impl Display) -> Result<(), Failure> {
    let mut lines = Lines::default();
    lines.print(text);
    lines.end()
}

/// A text without characters that a terminal would take for a command, colours apart: names of interfaces are in it, and a container
/// chooses the name of its own end of a pair.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_harmful) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        let colour_bytes = colour_bytes(from);
        if colour_bytes == 0 {
            shown.push('?');
        }
        let next = from.chars().next().map_or(0, char::len_utf8);
        let (colour, after) = from.split_at(colour_bytes.max(next));
        shown.push_str(if colour_bytes > 0 { colour } else { "" });
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// A name that anybody may choose, such as that of a process, without characters that would steer a terminal or end its line.
pub fn harmless_name(name: &str) -> String {
    name.replace(|c| is_harmful(c) || matches!(c, '\n' | '\t'), "?")
}

/// Returns whether a terminal would take a character for a command, or show what follows in another order (Unicode UAX 9, explicit
/// formatting).
fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && c != '\n' && c != '\t'
}

/// The length of the sequence in front that sets a style of ours, in bytes; 0 if there is none. A name could hide with others what
/// stands behind it.
fn colour_bytes(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let length = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    let is_ours =
        parameters.as_bytes().get(length) == Some(&b'm') && Style::CODES.contains(&&parameters[..length]);
    if is_ours { 2 + length + 1 } else { 0 }
}

/// The outcome of writing. A pipe that is closed has been read as far as its reader wanted.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("writing to standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Says something on standard error. Nobody is left to tell if that fails.
pub fn say(text: impl Display) {
    let _ = write(io::stderr().lock(), &ERROR_IS_FULL, &(harmless(&text.to_string()) + "\n"));
}

/// Writes to standard output, at once, and waits for room for as long as it `goes_on`. Returns whether all was written.
pub fn write_while(text: &str, goes_on: impl Fn() -> bool) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    for piece in text.as_bytes().chunks(PIECE_BYTES) {
        while !can_be_written(&out, LOOK_NS) {
            if !goes_on() {
                return Ok(false);
            }
        }
        out.write_all(piece)?;
        out.flush()?;
    }
    Ok(true)
}

/// Writes a text in pieces; in a hurry, what has no room is left out, and that is no failure.
fn write(mut out: impl Write + AsRawFd, is_full: &AtomicBool, text: &str) -> io::Result<()> {
    for piece in text.as_bytes().chunks(PIECE_BYTES) {
        if HURRIES.load(Relaxed) && !has_room(&out, is_full) {
            break;
        }
        out.write_all(piece)?;
        out.flush()?;
    }
    Ok(())
}

/// From now on what has no room soon is left out, or is waited for again for as long as it takes.
pub fn hurry(hurries: bool) {
    HURRIES.store(hurries, Relaxed);
}

/// Returns whether one piece can be written at once. It waits for room, but not again after it waited in vain: many sentences may come.
fn has_room(out: &impl AsRawFd, is_full: &AtomicBool) -> bool {
    let patience_ns = if is_full.load(Relaxed) { 0 } else { PATIENCE_NS };
    let has_room = can_be_written(out, patience_ns);
    is_full.store(!has_room, Relaxed);
    has_room
}

/// Returns whether one piece can be written within this time; true where nobody can tell.
fn can_be_written(out: &impl AsRawFd, patience_ns: u64) -> bool {
    let mut fds = [sys::poll_out(out.as_raw_fd())];
    sys::poll(&mut fds, Some(patience_ns)).map_or(true, |count| count > 0)
}

/// Does work that may take long; `what` is said once if it does.
pub fn patiently<T>(what: impl Display + Send, work: impl FnOnce() -> T) -> T {
    let (working, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                say(what);
            }
        });
        let done = work();
        drop(working);
        done
    })
}

/// Warns of something.
pub fn warn(text: impl Display) {
    say(format_args!("weir: warning: {text}"));
}

/// Says the state of an interface; the command waits while it is down.
pub fn say_state(interface: &str, state: State) {
    let fares = match state {
        State::Up => "is up again: going on",
        State::Down => "is down: waiting until it is up again",
        State::NoCarrier => "has no carrier, because its other end is down: waiting until that is up again",
        // A vanished interface is the end, and said there.
        State::Gone => return,
    };
    say(format_args!("weir: {interface} {fares}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_steers_a_terminal_by_a_name() {
        for (text, shown) in [
            ("veth0 \u{1b}[1;31mup\u{1b}[0m\n\tä", "veth0 \u{1b}[1;31mup\u{1b}[0m\n\tä"),
            ("a\u{1b}]0;title\u{7}b", "a?]0;title?b"),
            ("\u{1b}[2J\u{1b}[", "?[2J?["),
            ("v\u{1b}[8m\u{1b}[7m\u{1b}[m", "v?[8m?[7m?[m"),
            ("\r\u{8}\u{9b}31m\u{0}", "???31m?"),
            ("", ""),
        ] {
            assert_eq!(harmless(text), shown);
        }
        assert_eq!(harmless_name("\u{1b}[1;31mä b\n\tc"), "?[1;31mä b??c");
    }
}
