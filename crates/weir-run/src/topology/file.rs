//! The shape of a topology file: its tables and keys as they are written, every value with its place.
//!
//! Rule: one wrong table hides no other: each is read by itself, so that what is wrong with several is told at once. A key or table that
//! is not known is refused with the one that is near; one that is a command's, with the command.
//!
//! The same types write a file. Limits: of one table the first thing that is not of the right shape is told.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::classes::file::{Class, Filter};
use crate::nearest::did_you_mean;
use crate::source::Source;

/// What is done by a command, and not by a file.
const COMMANDS: [&str; 4] = ["wire", "run", "gen", "sink"];
const LIMIT: &str = "limit";
/// What belongs to a limit, and is easily written beside it.
const OF_A_LIMIT: [(&[&str], &str); 2] = [
    (&["class", "filter"], "[[limit.class]] and [[limit.filter]] below its [[limit]]"),
    (
        &["device", "pid", "name", "rate", "rate_back", "burst", "optional", "classes_file", "default"],
        "its line below [[limit]]",
    ),
];

/// The file.
#[derive(Debug, Default, Serialize)]
pub struct TopologyFile {
    /// `[[limit]]`, in order.
    #[serde(rename = "limit")]
    pub limits: Vec<LimitTable>,
}

/// `[[limit]]`.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    /// Where it is.
    #[serde(skip)]
    pub at: Range<usize>,
    /// The interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Spanned<String>>,
    /// The process whose namespace it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<Spanned<i64>>,
    /// What it is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Spanned<String>>,
    /// What programs behind it may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Spanned<String>>,
    /// What may be sent to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_back: Option<Spanned<String>>,
    /// How much may pass at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Spanned<String>>,
    /// Whether it may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Where its classes are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes_file: Option<Spanned<String>>,
    /// The class of what no filter matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Spanned<String>>,
    /// `[[limit.class]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<Class>,
    /// `[[limit.filter]]`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Filter>,
}

/// Something wrong with a file, and where that is, in bytes of it.
#[derive(Debug)]
pub struct Told {
    /// Where.
    pub at: usize,
    /// With its place.
    pub what: String,
}

impl Told {
    /// What is wrong at a place of a file.
    pub(super) fn new(source: Source, at: Range<usize>, what: impl std::fmt::Display) -> Told {
        Told { at: at.start, what: source.tell(at, what) }
    }
}

/// Reads the tables, those that can be, and tells what is wrong with the others.
pub(super) fn tables(source: Source) -> (TopologyFile, Vec<Told>) {
    let mut file = TopologyFile::default();
    let root = match DeTable::parse(source.text) {
        Ok(root) => root.into_inner(),
        Err(error) => return (file, vec![explained(source, 0..0, &error)]),
    };
    let mut told = Vec::new();
    for (key, value) in root {
        match key.as_ref().as_ref() {
            LIMIT => limits(source, value, &mut file, &mut told),
            other => told.push(Told::new(source, key.span(), unknown(other))),
        }
    }
    (file, told)
}

fn limits(source: Source, value: Spanned<DeValue<'_>>, file: &mut TopologyFile, told: &mut Vec<Told>) {
    let at = value.span();
    let DeValue::Array(tables) = value.into_inner() else {
        told.push(Told::new(source, at, "a file may have several limits: write [[limit]], in two brackets"));
        return;
    };
    for table in tables {
        let at = table.span();
        if !matches!(table.as_ref(), DeValue::Table(_)) {
            told.push(Told::new(
                source,
                at,
                "a limit is a table: write [[limit]], and below it its device and rate",
            ));
            continue;
        }
        match LimitTable::deserialize(toml::de::ValueDeserializer::from(table)) {
            Ok(limit) => file.limits.push(LimitTable { at, ..limit }),
            Err(error) => told.push(explained(source, at, &error)),
        }
    }
}

/// What the reader of TOML has to say, at `otherwise` where it does not say where.
fn explained(source: Source, otherwise: Range<usize>, error: &toml::de::Error) -> Told {
    let at = error.span().unwrap_or(otherwise);
    Told { at: at.start, what: source.explain(error, at) }
}

fn unknown(key: &str) -> String {
    // People write the plural of what may be there several times.
    let singular = key.strip_suffix('s').unwrap_or(key);
    let command = COMMANDS.iter().find(|command| [key, singular].contains(*command));
    let place = OF_A_LIMIT.iter().find(|(keys, _)| keys.contains(&key));
    match (command, place) {
        (Some(command), _) => format!("[[{command}]] is not yet in a file; use `weir {command}`"),
        (None, Some((_, place))) => format!("`{key}` is a limit's: write {place}"),
        (None, None) => {
            let near = did_you_mean(key, [LIMIT]);
            format!("unknown table or key `{key}`: a file has [[{LIMIT}]] tables{near}")
        }
    }
}
