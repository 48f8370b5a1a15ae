//! The shape of a classes file: its tables and keys as they are written, every value with its place.
//!
//! A key that is not known here is refused, so that a slip of the pen is never a class without a limit.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::source::SourceText;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The span of these tables, in a file that has other things too.
    #[serde(skip)]
    pub at: Range<usize>,
    /// `htb` or `cbq`.
    pub shaper: Option<Spanned<String>>,
    /// The class of packets that no filter matches.
    pub default: Option<Spanned<String>>,
    /// `[[class]]`.
    #[serde(default)]
    pub class: Vec<ClassTable>,
    /// `[[filter]]`, in order.
    #[serde(default)]
    pub filter: Vec<Filter>,
}

/// `[[class]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassTable {
    /// Its name.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The class that it borrows from; the port or limit itself where there is none.
    #[schemars(with = "Option<String>")]
    pub parent: Option<Spanned<String>>,
    /// The rate that it has in any case, such as `200mbit`.
    #[schemars(with = "String", extend("examples" = ["200mbit"]))]
    pub rate: Spanned<String>,
    /// The rate that it has at the most, with what it borrows.
    #[schemars(with = "Option<String>", extend("examples" = ["100mbit"]))]
    pub ceil: Option<Spanned<String>>,
    /// How much may pass at once at its rate, such as `50kb`.
    #[schemars(with = "Option<String>", extend("examples" = ["50kb"]))]
    pub burst: Option<Spanned<String>>,
    /// How much may pass at once at its ceiling.
    #[schemars(with = "Option<String>", extend("examples" = ["50kb"]))]
    pub cburst: Option<Spanned<String>>,
    /// Whether it may not borrow (CBQ).
    #[schemars(with = "Option<bool>")]
    pub bounded: Option<Spanned<bool>>,
    /// How much it sends in one turn.
    #[schemars(with = "Option<String>")]
    pub quantum: Option<Spanned<String>>,
    /// Which of those that borrow goes first: 0 to 7, 0 first.
    #[schemars(with = "Option<i64>")]
    pub priority: Option<Spanned<i64>>,
    /// The fate of the next packet where the queue is full.
    #[schemars(with = "Option<String>", extend("enum" = ["block", "ecn", "drop"]))]
    pub full: Option<Spanned<String>>,
    /// The longest that a packet waits before it is dropped, such as `10ms`.
    #[schemars(with = "Option<String>", extend("examples" = ["10ms"]))]
    pub max_wait: Option<Spanned<String>>,
    /// How long what waits may take at its ceiling, such as `5ms`.
    #[schemars(with = "Option<String>", extend("examples" = ["5ms"]))]
    pub queue: Option<Spanned<String>>,
}

/// `[[filter]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The interface that the packet came in by.
    #[schemars(with = "Option<String>")]
    pub interface: Option<Spanned<String>>,
    /// Networks that it may come from.
    #[schemars(with = "Option<Words>")]
    pub from: Option<Spanned<Words>>,
    /// Networks that it may go to.
    #[schemars(with = "Option<Words>")]
    pub to: Option<Spanned<Words>>,
    /// Protocols, by name or number.
    #[schemars(with = "Option<Words>")]
    pub protocol: Option<Spanned<Words>>,
    /// Ports or ranges of ports that it may come from.
    #[schemars(with = "Option<Words>")]
    pub from_ports: Option<Spanned<Words>>,
    /// Ports or ranges of ports that it may go to.
    #[schemars(with = "Option<Words>")]
    pub to_ports: Option<Spanned<Words>>,
    /// Differentiated services code points, by name or number.
    #[schemars(with = "Option<Words>")]
    pub dscp: Option<Spanned<Words>>,
    /// The class of what fits all of this.
    #[schemars(with = "String")]
    pub class: Spanned<String>,
}

/// A word, a number, or a list of them: `"10.0.0.0/8"`, `443`, `[80, "8000-8080"]`.
#[derive(Clone, Debug)]
pub struct Words(Vec<(Option<Range<usize>>, String)>);

impl Words {
    /// One word.
    pub fn one(word: impl ToString) -> Words {
        Words(vec![(None, word.to_string())])
    }

    /// Each word with its place; one alone has the place of the value.
    pub fn each(words: &Spanned<Words>) -> impl Iterator<Item = (Range<usize>, &str)> {
        let all = words.span();
        words.as_ref().0.iter().map(move |(at, word)| (at.clone().unwrap_or(all.clone()), word.as_str()))
    }
}

/// Reads the tables.
pub fn read(source: SourceText) -> Result<File, String> {
    toml::from_str(source.text)
        .map_err(|error: toml::de::Error| source.explain(&error, error.span().unwrap_or(0..0)))
}

impl JsonSchema for Words {
    fn schema_name() -> Cow<'static, str> {
        "Words".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A word, a number, or a list of them.",
            "type": ["string", "integer", "array"],
            "items": { "type": ["string", "integer"] }
        })
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        deserializer.deserialize_any(WordsVisitor)
    }
}

impl Serialize for Words {
    /// Numbers as numbers, so that a port is written as people write it; one alone without a list.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [(_, word)] => Word(word.clone()).serialize(serializer),
            words => serializer.collect_seq(words.iter().map(|(_, word)| Word(word.clone()))),
        }
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

/// One word, or one number.
#[derive(Clone, Debug)]
pub struct Word(pub String);

impl AsRef<str> for Word {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl JsonSchema for Word {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A word or a number.", "type": ["string", "integer"] })
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.parse::<i64>() {
            Ok(number) if number.to_string() == self.0 => serializer.serialize_i64(number),
            _ => serializer.serialize_str(&self.0),
        }
    }
}

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
