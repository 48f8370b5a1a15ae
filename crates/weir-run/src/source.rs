//! The text of a file that a user wrote in TOML, and messages on its faults: the place, the line itself, and what to do.
//!
//! ```text
//! office.toml:7:8: the ceiling 100mbit is below the rate 150mbit; raise it to 150mbit or more
//!   7 | ceil = "100mbit"
//!     |        ^^^^^^^^^
//! ```
//!
//! Lines and columns count from 1, columns in characters.
//!
//! Rule: nothing that may be a key is in a message, for a key file may be given where a file of limits or ports is meant.

use std::fmt::Write;
use std::ops::Range;

use crate::nearest::did_you_mean;

/// The longest piece of a line that is shown, in characters.
const SHOWN_MAX: usize = 120;
/// The digits of the shortest secret key, of AES-128 with its salt, in hexadecimal.
const KEY_DIGITS_MIN: usize = 40;

/// The byte that each line of a text starts with, so that the line of a byte is found without reading all before it: a file may have a
/// place for each of its lines.
#[derive(Debug)]
pub struct LineStarts(Vec<usize>);

impl LineStarts {
    /// Those of a text.
    pub fn of(text: &str) -> LineStarts {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        LineStarts(std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect())
    }
}

/// A file's name and text.
#[derive(Clone, Copy, Debug)]
pub struct SourceText<'a> {
    /// The name of the file in messages.
    pub name: &'a str,
    /// The text of the file.
    pub text: &'a str,
    /// The lines of the text.
    pub lines: &'a LineStarts,
}

impl SourceText<'_> {
    /// The message on a fault at a place, in bytes of the text.
    pub fn tell(&self, at: Range<usize>, what: impl std::fmt::Display) -> String {
        let (line, start) = self.line_of(at.start);
        let text = self.text[start..].lines().next().unwrap_or("");
        let within = |byte: usize| self.text.get(start..byte.clamp(start, start + text.len()));
        let before = within(at.start).unwrap_or("").chars().count();
        let marked = within(at.end).unwrap_or("").chars().count().saturating_sub(before).max(1);
        let what = without_keys(&what.to_string());
        let mut told = format!("{}:{line}:{}: {what}", self.name, before + 1);
        if before + marked <= SHOWN_MAX {
            let shown: String = without_keys(text).chars().take(SHOWN_MAX).collect();
            let margin = " ".repeat(line.to_string().len());
            let marks = format!("{}{}", " ".repeat(before), "^".repeat(marked));
            // Writing to a string cannot fail.
            let _ = write!(told, "\n  {line} | {shown}\n  {margin} | {marks}");
        }
        told
    }

    /// The message of the TOML reader, at a place.
    pub fn explain(&self, error: &toml::de::Error, at: Range<usize>) -> String {
        self.tell(at, explained(error.message()))
    }

    /// The place of a byte of the text: `FILE:LINE:COLUMN`.
    pub fn place(&self, byte: usize) -> String {
        let (line, start) = self.line_of(byte);
        let before = self.text.get(start..byte).unwrap_or("").chars().count();
        format!("{}:{line}:{}", self.name, before + 1)
    }

    /// The number of the line that a byte is in, and where it starts.
    pub fn line_of(&self, byte: usize) -> (usize, usize) {
        let starts = &self.lines.0;
        let line = starts.partition_point(|start| *start <= byte);
        (line, starts[line - 1])
    }
}

/// Returns whether a text is a key in hexadecimal digits, with or without blanks between them.
pub fn is_key(text: &str) -> bool {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let count = digits.chars().filter(char::is_ascii_hexdigit).count();
    count >= KEY_DIGITS_MIN && digits.chars().all(|char| char.is_ascii_hexdigit() || char.is_whitespace())
}

/// A text with stars for what may be a key: hexadecimal digits, with or without blanks between them, as many as one has or more.
fn without_keys(text: &str) -> String {
    let is_digit = |char: &char| char.is_ascii_hexdigit();
    let chars: Vec<char> = text.chars().collect();
    let of_one_kind = |a: &char, b: &char| {
        let is_inside = |char: &char| is_digit(char) || char.is_whitespace();
        is_inside(a) == is_inside(b)
    };
    let shown = chars.chunk_by(of_one_kind).flat_map(|run| {
        let may_be_key = run.iter().filter(|char| is_digit(char)).count() >= KEY_DIGITS_MIN;
        run.iter().map(move |char| if may_be_key && is_digit(char) { '*' } else { *char })
    });
    shown.collect()
}

/// Serde's word on an unknown key ("unknown field `x`, expected one of `a`, `b`") with the one that was likely meant, and on a value
/// that is not in quotes.
fn explained(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let mut message = message.to_string();
    for (word, plain) in [
        ("unknown field", "unknown key"),
        ("missing field", "missing key"),
        ("expected i64", "expected a whole number, without quotes"),
        ("expected a boolean", "expected true or false, without quotes"),
        ("expected a sequence", "expected a list, in square brackets"),
        ("expected an array of length 2", "expected two, in square brackets"),
        ("expected u16", "expected a number from 0 to 65535"),
        ("expected u64", "expected a number, without a sign"),
    ] {
        message = message.replace(word, plain);
    }
    let is_number =
        message.starts_with("invalid type: integer") || message.starts_with("invalid type: float");
    match quoted.next() {
        // TOML's numbers have 64 bits.
        Some(number) if is_number && message.contains("` as ") => {
            format!("the number {number} is too large, or too far below zero: write another")
        }
        Some(word) if message.starts_with("unknown key") => message.clone() + &did_you_mean(word, quoted),
        _ if is_number && message.ends_with("expected a string") => {
            format!("{message}; write it in quotes, a rate, size or time with its unit")
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown() {
        let key = "0123456789abcdefABCDEF".repeat(2);
        let spaced = "0a ".repeat(40);
        for text in [key.clone(), spaced, format!("key = \"0x{key}\"")] {
            let source = SourceText { name: "key", text: &text, lines: &LineStarts::of(&text) };
            let told = source.tell(0..1, "no");
            assert!(told.contains("**") && !told.contains("abc") && !told.contains("0a"), "{told}");
        }
        let source = SourceText { name: "f", text: "", lines: &LineStarts::of("") };
        assert!(!source.tell(0..0, format!("\"{key}\" is no address")).contains("abc"));
        let names = "a4 = \"2001:0db8:0000:0000:0000:ff00:0042:8329\"";
        assert_eq!(without_keys(names), names);
        assert_eq!(without_keys(&format!("`{key}`")), format!("`{}`", "*".repeat(44)));
    }

    #[test]
    fn a_key_is_told_from_the_name_of_its_file() {
        let key = "0a1B".repeat(10);
        for text in [key.clone(), format!("0x{key}"), "0a 1b ".repeat(20)] {
            assert!(is_key(&text), "{text}");
        }
        let own = format!("{}.key", "0a1b".repeat(8));
        for text in [&key[1..], &format!("./{key}"), &format!("{key}.key"), &own] {
            assert!(!is_key(text), "{text}");
        }
    }

    #[test]
    fn a_place_is_told_with_its_line() {
        let text = "a = 1\n\u{e9}\u{e9} = \"x\" # c\n";
        let source = SourceText { name: "f.toml", text, lines: &LineStarts::of(text) };
        let at = source.text.find("\"x\"").unwrap();
        assert_eq!(
            source.tell(at..at + 3, "no"),
            "f.toml:2:6: no\n  2 | \u{e9}\u{e9} = \"x\" # c\n    |      ^^^"
        );
        assert_eq!(source.tell(0..100, "all"), "f.toml:1:1: all\n  1 | a = 1\n    | ^^^^^");
        assert_eq!(source.tell(999..1000, "end"), "f.toml:3:1: end\n  3 | \n    | ^");
        let empty = SourceText { name: "-", text: "", lines: &LineStarts::of("") };
        assert_eq!(empty.tell(0..0, "empty"), "-:1:1: empty\n  1 | \n    | ^");
    }

    #[test]
    fn the_line_of_each_byte_is_found() {
        for text in ["", "\n", "a", "a\n\nbc\r\nd", "\n\n\u{e9}\n"] {
            let source = SourceText { name: "-", text, lines: &LineStarts::of(text) };
            for byte in 0..text.len() + 2 {
                let before = &text.as_bytes()[..byte.min(text.len())];
                let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
                let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
                assert_eq!(source.line_of(byte), (line, start), "{text:?} {byte}");
            }
        }
    }
}
