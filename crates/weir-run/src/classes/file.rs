//! The shape of a classes file: its tables and keys as they are written, every value with its place.
//!
//! A key that is not known here is refused, so that a slip of the pen is never a class without a limit.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use toml::Spanned;

use super::source::Source;
use crate::nearest::did_you_mean;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// `htb` or `cbq`.
    pub shaper: Option<Spanned<String>>,
    /// The class of what no filter matches.
    pub default: Option<Spanned<String>>,
    /// `[[class]]`.
    #[serde(default)]
    pub class: Vec<Class>,
    /// `[[filter]]`, in order.
    #[serde(default)]
    pub filter: Vec<Filter>,
}

/// `[[class]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    pub name: Spanned<String>,
    pub parent: Option<Spanned<String>>,
    pub rate: Spanned<String>,
    pub ceil: Option<Spanned<String>>,
    pub burst: Option<Spanned<String>>,
    pub cburst: Option<Spanned<String>>,
    pub bounded: Option<Spanned<bool>>,
    pub quantum: Option<Spanned<String>>,
    pub priority: Option<Spanned<i64>>,
    pub full: Option<Spanned<String>>,
    pub max_wait: Option<Spanned<String>>,
    pub queue: Option<Spanned<String>>,
}

/// `[[filter]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    pub interface: Option<Spanned<String>>,
    pub from: Option<Spanned<Words>>,
    pub to: Option<Spanned<Words>>,
    pub protocol: Option<Spanned<Words>>,
    pub from_ports: Option<Spanned<Words>>,
    pub to_ports: Option<Spanned<Words>>,
    pub dscp: Option<Spanned<Words>>,
    pub class: Spanned<String>,
}

/// A word, a number, or a list of them: `"10.0.0.0/8"`, `443`, `[80, "8000-8080"]`.
#[derive(Debug)]
pub struct Words(Vec<(Option<Range<usize>>, String)>);

impl Words {
    /// Each of them with its place; alone it has the place of the value.
    pub fn each(words: &Spanned<Words>) -> impl Iterator<Item = (Range<usize>, &str)> {
        let all = words.span();
        words.as_ref().0.iter().map(move |(at, word)| (at.clone().unwrap_or(all.clone()), word.as_str()))
    }
}

/// Reads the tables.
pub fn read(source: Source) -> Result<File, String> {
    toml::from_str(source.text).map_err(|error: toml::de::Error| {
        let at = error.span().unwrap_or(0..0);
        source.tell(at, explained(error.message()))
    })
}

/// Serde's word on an unknown key ("unknown field `x`, expected one of `a`, `b`") with the one that was likely meant.
fn explained(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let message = message.replace("unknown field", "unknown key").replace("missing field", "missing key");
    match quoted.next() {
        Some(word) if message.starts_with("unknown key") => message.clone() + &did_you_mean(word, quoted),
        _ => message,
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        deserializer.deserialize_any(WordsVisitor)
    }
}

struct WordsVisitor;

impl<'de> Visitor<'de> for WordsVisitor {
    type Value = Words;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a word, a number or a list of them")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Words, E> {
        Ok(Words(vec![(None, word.into())]))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Words, E> {
        Ok(Words(vec![(None, number.to_string())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = list.next_element::<Spanned<Word>>()? {
            words.push((Some(word.span()), word.into_inner().0));
        }
        if words.is_empty() {
            return Err(A::Error::custom(
                "an empty list matches nothing; leave the key out to match everything",
            ));
        }
        Ok(Words(words))
    }
}

struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct WordVisitor;
        impl Visitor<'_> for WordVisitor {
            type Value = Word;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a word or a number")
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Word, E> {
                Ok(Word(word.into()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(WordVisitor)
    }
}
