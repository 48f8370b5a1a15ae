//! The requests of a client, as they are read from its bytes.
//!
//! ```text
//! <verb> <words>\r\n
//! <verb> <key> <flags> <exptime> <bytes> [cas] [noreply]\r\n<bytes of value>\r\n
//! ```
//!
//! Rule: for any bytes the result is a request, that more must come, or how many bytes of nonsense to skip and the answer to them; nothing
//! is copied and nothing panics. Nonsense is answered with memcached's own words.
//!
//! Source: memcached `doc/protocol.txt`, the text protocol. Limits: a line of [`LINE_BYTES_MAX`]; the meta commands and the binary protocol
//! are not spoken: both get `ERROR`.

use crate::store::{Condition, KEY_BYTES_MAX};

/// The longest line: some hundred keys to get. A client that sends a longer one is told so and closed.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Seconds up to which an expiry is counted from now; a larger one is a date.
const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;

/// One request; the key and value that it names lie in the bytes that it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemcacheCommand<'b> {
    /// `get`, `gets`, `gat`, `gats`: items, with their marks of change if asked, and a new expiry if there is one.
    Get {
        /// The keys, one or more, with blanks between.
        keys: Keys<'b>,
        /// True if each item's mark of change is told.
        with_cas: bool,
        /// The new expiry of the items, as it was sent.
        touch: Option<i64>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Put {
        /// The condition on which it is stored.
        condition: Condition,
        /// The key.
        key: &'b [u8],
        /// The client's own mark.
        flags: u32,
        /// The expiry as it was sent: see [`expiry_s`].
        exptime: i64,
        /// The value.
        value: &'b [u8],
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'b [u8],
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Count {
        /// The key.
        key: &'b [u8],
        /// The number to add or take off.
        delta: u64,
        /// True if it is added.
        is_up: bool,
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'b [u8],
        /// The expiry as it was sent.
        exptime: i64,
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// The time: after so many seconds, or a date.
        exptime: i64,
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `stats`, without a further word.
    Stats,
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing here.
    Verbosity {
        /// True if nothing is answered.
        noreply: bool,
    },
    /// `quit`.
    Quit,
}

impl<'b> MemcacheCommand<'b> {
    /// Its key, if it has just one.
    pub fn key(&self) -> Option<&'b [u8]> {
        match *self {
            MemcacheCommand::Put { key, .. }
            | MemcacheCommand::Delete { key, .. }
            | MemcacheCommand::Count { key, .. }
            | MemcacheCommand::Touch { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// The keys of a `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'b>(&'b [u8]);

impl<'b> Keys<'b> {
    /// Each key, in order.
    pub fn iter(self) -> impl Iterator<Item = &'b [u8]> + Clone {
        words(self.0)
    }
}

/// The front of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front<'b> {
    /// A request of so many bytes.
    Whole(MemcacheCommand<'b>, usize),
    /// The beginning of a line.
    Part,
    /// The beginning of a value, which has so many bytes with its line. One that is not waited for is to be answered with this line, and of a
    /// `set` the item of this key goes, as that of [`Front::TooLarge`] does.
    PartOfValue(Option<&'b [u8]>, &'static str, usize),
    /// No request, of so many bytes, some of which may not have come; to be answered with this line.
    Nonsense(&'static str, usize),
    /// A value that is longer than values may be, in so many bytes, some of which may not have come; to be answered with this line. Of a
    /// `set` the key, whose item goes, lest the value that was to be replaced be got.
    TooLarge(Option<&'b [u8]>, &'static str, usize),
    /// A line without end: to be answered with this, and then closed.
    Endless(&'static str),
}

/// The answer to nonsense that asks for none: nothing.
const NO_ANSWER: &str = "";
const ERROR: &str = "ERROR";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";

/// The bytes that a client reads of such an answer.
pub fn answer_line(answer: &str) -> Vec<u8> {
    if answer == NO_ANSWER { Vec::new() } else { format!("{answer}\r\n").into() }
}

/// The command that removes an item and says nothing of it.
pub fn quiet_delete(key: &[u8]) -> (MemcacheCommand<'_>, Vec<u8>) {
    (MemcacheCommand::Delete { key, noreply: true }, [b"delete ", key, b" noreply\n"].concat())
}

/// Reads the front of the bytes that have come. Values of more than `value_bytes_max` are skipped.
pub fn read(bytes: &[u8], value_bytes_max: usize) -> Front<'_> {
    let Some(end) = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
        let is_endless = bytes.len() >= LINE_BYTES_MAX;
        return if is_endless { Front::Endless(LINE_TOO_LONG) } else { Front::Part };
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let behind = end + 1;
    let mut rest = words(line);
    let verb = rest.next().unwrap_or_default();
    let condition = match verb {
        b"set" => Some(Condition::Set),
        b"add" => Some(Condition::Add),
        b"replace" => Some(Condition::Replace),
        b"append" => Some(Condition::Append),
        b"prepend" => Some(Condition::Prepend),
        // The mark of `cas` is read with its other words.
        b"cas" => Some(Condition::Cas(0)),
        _ => None,
    };
    if let Some(condition) = condition {
        return put(condition, rest, bytes, behind, value_bytes_max);
    }
    match line_request(verb, line, rest) {
        Ok(request) => Front::Whole(request, behind),
        Err(answer) => Front::Nonsense(answer, behind),
    }
}

/// The time in seconds when an item ends that is to end at `exptime` as a client says it; 0 if never.
pub fn expiry_s(exptime: i64, now_s: u32) -> u32 {
    match exptime {
        0 => 0,
        // The item ends at once.
        ..0 => 1,
        1..=RELATIVE_S_MAX => now_s.saturating_add(exptime as u32),
        date => date.min(i64::from(u32::MAX)) as u32,
    }
}

/// A request that is a line and nothing more.
fn line_request<'b>(
    verb: &[u8],
    line: &'b [u8],
    mut rest: impl Iterator<Item = &'b [u8]> + Clone,
) -> Result<MemcacheCommand<'b>, &'static str> {
    let is_noreply = |word: Option<&[u8]>| word == Some(b"noreply");
    match verb {
        b"get" | b"gets" => {
            let keys = keys_of(line, verb)?;
            Ok(MemcacheCommand::Get { keys, with_cas: verb == b"gets", touch: None })
        }
        b"gat" | b"gats" => {
            let exptime = rest.next().ok_or(ERROR)?;
            let touch = Some(number(exptime).ok_or(BAD_EXPTIME)?);
            let keys = keys_of(line, exptime)?;
            Ok(MemcacheCommand::Get { keys, with_cas: verb == b"gats", touch })
        }
        b"delete" => {
            let key = key_of(rest.next())?;
            // An old form has a time, of which only 0 was ever kept.
            let noreply = match (rest.next(), rest.next(), rest.next()) {
                (None, None, None) | (Some(b"0"), None, None) => false,
                (Some(b"noreply"), None, None) | (Some(b"0"), Some(b"noreply"), None) => true,
                _ => return Err("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
            };
            Ok(MemcacheCommand::Delete { key, noreply })
        }
        b"incr" | b"decr" => {
            let key = key_of(rest.next())?;
            let delta = number(rest.next().ok_or(ERROR)?).ok_or(BAD_DELTA)?;
            Ok(MemcacheCommand::Count {
                key,
                delta,
                is_up: verb == b"incr",
                noreply: is_noreply(rest.next()),
            })
        }
        b"touch" => {
            let key = key_of(rest.next())?;
            let exptime = number(rest.next().ok_or(ERROR)?).ok_or(BAD_EXPTIME)?;
            Ok(MemcacheCommand::Touch { key, exptime, noreply: is_noreply(rest.next()) })
        }
        b"flush_all" => {
            let (word, last) = (rest.next(), rest.next());
            let exptime = match word {
                None | Some(b"noreply") => 0,
                Some(word) => number(word).ok_or(BAD_EXPTIME)?,
            };
            Ok(MemcacheCommand::FlushAll { exptime, noreply: is_noreply(word) || is_noreply(last) })
        }
        b"stats" => match rest.next() {
            None => Ok(MemcacheCommand::Stats),
            Some(_) => Err(ERROR),
        },
        b"version" => Ok(MemcacheCommand::Version),
        b"verbosity" => {
            let (level, last) = (rest.next().ok_or(ERROR)?, rest.next());
            if rest.next().is_some() {
                return Err(ERROR);
            }
            Ok(MemcacheCommand::Verbosity { noreply: is_noreply(Some(level)) || is_noreply(last) })
        }
        b"quit" => Ok(MemcacheCommand::Quit),
        _ => Err(ERROR),
    }
}

/// A value that is to be stored; its line ends before `behind`.
fn put<'b>(
    condition: Condition,
    mut rest: impl Iterator<Item = &'b [u8]>,
    bytes: &'b [u8],
    behind: usize,
    value_bytes_max: usize,
) -> Front<'b> {
    let mut next = || rest.next();
    let (Some(key), Some(flags), Some(exptime), Some(length)) = (next(), next(), next(), next()) else {
        return Front::Nonsense(ERROR, behind);
    };
    let Some(length) = number::<i64>(length) else { return Front::Nonsense(BAD_LINE, behind) };
    let Ok(length) = usize::try_from(length) else { return Front::Nonsense(BAD_CHUNK, behind) };
    let condition = match condition {
        Condition::Cas(_) => match next() {
            None => return Front::Nonsense(ERROR, behind),
            Some(word) => number(word).map(Condition::Cas),
        },
        other => Some(other),
    };
    let noreply = next() == Some(b"noreply");
    let answer = |words: &'static str| if noreply { NO_ANSWER } else { words };
    // The value of a line that is not understood is no request: it is skipped.
    let whole = behind.saturating_add(length).saturating_add(2);
    let (Some(flags), Some(exptime), Some(condition), true) =
        (number(flags), number(exptime), condition, is_key(key))
    else {
        return Front::Nonsense(answer(BAD_LINE), whole);
    };
    let replaced = (condition == Condition::Set).then_some(key);
    if length > value_bytes_max {
        return Front::TooLarge(replaced, answer(TOO_LARGE), whole);
    }
    match bytes.get(behind..whole) {
        None => Front::PartOfValue(replaced, answer(NO_ROOM), whole),
        Some(value) => match value.strip_suffix(b"\r\n") {
            Some(value) => {
                Front::Whole(MemcacheCommand::Put { condition, key, flags, exptime, value, noreply }, whole)
            }
            // The value has not as many bytes as were told.
            None => Front::Nonsense(answer(BAD_CHUNK), whole),
        },
    }
}

/// The keys in a line behind one of its words.
fn keys_of<'b>(line: &'b [u8], word: &[u8]) -> Result<Keys<'b>, &'static str> {
    let from = word.as_ptr() as usize - line.as_ptr() as usize + word.len();
    let keys = Keys(&line[from..]);
    match keys.iter().next() {
        None => Err(ERROR),
        Some(_) if !keys.iter().all(is_key) => Err(BAD_LINE),
        Some(_) => Ok(keys),
    }
}

fn key_of(word: Option<&[u8]>) -> Result<&[u8], &'static str> {
    let key = word.ok_or(ERROR)?;
    if is_key(key) { Ok(key) } else { Err(BAD_LINE) }
}

/// Control characters are in no key, so a key that is written into another line is that key there too: a carriage return at its end would be taken for
/// the line's.
fn is_key(word: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&word.len()) && !word.iter().any(u8::is_ascii_control)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?.parse().ok()
}

#[cfg(test)]
mod tests;
