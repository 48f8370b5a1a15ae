//! A topology file taken apart into its tables, with a message on each that is not of the right shape.
//!
//! Rule: one wrong table hides no other: each is read by itself, so that the faults of several are told at once. A key or table that is not
//! known is refused with the one that is near; one that is a command's, with the command.
//!
//! Limits: of one table 16 things that are not of the right shape are told.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::tables::{BridgeTable, EspTable, LimitTable, PortTable, RouterTable, TopologyFile};
use crate::nearest::did_you_mean;
use crate::source::SourceText;

/// The name that a file gives itself, whatever else is wrong with it.
pub fn name_of(text: &str) -> Option<String> {
    let first = text.lines().take_while(|line| !line.trim_start().starts_with('['));
    let table: toml::Table = first.collect::<Vec<_>>().join("\n").parse().ok()?;
    Some(table.get(NAME)?.as_str()?.into())
}

/// The tasks of commands, which no file has.
const COMMANDS: [&str; 3] = ["run", "gen", "sink"];
/// The tables that there may be, each several times, and the contents of one in words.
pub(crate) const TABLES: [(&str, &str); 9] = [
    ("limit", "its device and rate"),
    ("port", "its interface"),
    ("wire", "the two ports it joins"),
    ("epair", "its name"),
    ("bridge", "its name and ports"),
    ("router", "its name, and its interfaces in [[router.interface]]"),
    ("esp", "its name, and its ports inside and outside"),
    ("sa", "its name and direction"),
    ("policy", "its direction and action"),
];
const NAME: &str = "name";
/// Tables of a kind, but for limits in place; more could hardly be meant, and are not looked at.
pub(super) const TABLES_MAX: usize = 4096;
/// The faults of one table that are told.
const FAULTS_MAX: usize = 16;
/// Keys that belong into a table, and are easily written beside it.
const PLACES: [(&[&str], &str); 12] = [
    (
        &["class", "filter"],
        "is a limit's or a port's: write it as [[limit.KEY]] below its [[limit]], or [[port.KEY]] below its [[port]]",
    ),
    (&["interface", "route", "neighbour"], "is a router's: write it as [[router.KEY]] below its [[router]]"),
    (
        &["rate", "burst", "classes_file", "default"],
        "is a limit's or a port's: write its line below [[limit]] or [[port]]",
    ),
    (&["device", "pid", "rate_back"], "is a limit's: write its line below [[limit]]"),
    (&["optional"], "is a limit's or a port's: write its line below [[limit]] or [[port]]"),
    (&["queue", "shaper"], "is a port's: write its line below [[port]]"),
    (&["stations_max", "ageing"], "is a bridge's: write its line below [[bridge]]"),
    (
        &["spi", "algorithm", "key_file", "window", "udp_ports", "follow_peer"],
        "is a security association's: write its line below [[sa]]",
    ),
    (&["mac"], "is a router's: write its line below [[router.interface]]"),
    (&["address", "mtu"], "is a router's or an esp's: write its line below [[router.interface]] or [[esp]]"),
    (&["inside", "outside", "queue_packets", "sealers"], "is an esp's: write its line below [[esp]]"),
    (&["workers", "core", "memory"], "is the machine's, and not the file's: give it to `weir up` as --KEY"),
];

/// A fault of a file, or a warning, and its place in bytes of the file.
#[derive(Debug)]
pub struct Told {
    /// The place.
    pub at: usize,
    /// The message, with the place.
    pub what: String,
}

impl Told {
    /// A fault at a place of a file.
    pub(super) fn new(source: SourceText, at: Range<usize>, what: impl std::fmt::Display) -> Told {
        Told { at: at.start, what: source.tell(at, what) }
    }
}

/// Reads the tables that can be read, and tells the faults of the others.
pub(super) fn tables(source: SourceText) -> (TopologyFile, Vec<Told>) {
    let mut file = TopologyFile::default();
    let mut taker = Taker { source, told: Vec::new(), is_partial: false };
    let root = match DeTable::parse(source.text) {
        Ok(root) => root.into_inner(),
        Err(error) => return (file, vec![explained(source, 0..0, &error)]),
    };
    for (key, value) in root {
        match key.as_ref().as_ref() {
            NAME => file.name = taker.table(value).map(|(_, name)| name),
            "limit" => {
                file.has_no_limit = value.get_ref().as_array().is_some_and(|tables| tables.is_empty());
                file.limits = taker.each(0, value, |at, table| LimitTable { at, ..table });
            }
            "port" => file.ports = taker.each(1, value, |at, table| PortTable { at, ..table }),
            "wire" => file.wires = taker.each(2, value, |_, table| table),
            "epair" => file.epairs = taker.each(3, value, |_, table| table),
            "bridge" => file.bridges = taker.each(4, value, |at, table| BridgeTable { at, ..table }),
            "router" => file.routers = taker.each(5, value, |at, table| RouterTable { at, ..table }),
            "esp" => file.esps = taker.each(6, value, |at, table| EspTable { at, ..table }),
            "sa" => file.associations = taker.each(7, value, |_, table| table),
            "policy" => file.policies = taker.each(8, value, |_, table| table),
            other => {
                taker.told.push(Told::new(source, key.span(), unknown(other)));
                taker.is_partial = true;
            }
        }
    }
    file.is_partial = taker.is_partial;
    (file, taker.told)
}

/// The state of taking apart: the faults told so far.
struct Taker<'a> {
    source: SourceText<'a>,
    told: Vec<Told>,
    is_partial: bool,
}

impl Taker<'_> {
    /// All tables of one of [`TABLES`], each told where it is.
    fn each<T: DeserializeOwned>(
        &mut self,
        place: usize,
        value: Spanned<DeValue<'_>>,
        of: impl Fn(Range<usize>, T) -> T,
    ) -> Vec<T> {
        let (key, content) = TABLES[place];
        let at = value.span();
        let DeValue::Array(tables) = value.into_inner() else {
            let why = format!("a file may have several {key}s: write [[{key}]], in two brackets");
            self.told.push(Told::new(self.source, at, why));
            self.is_partial = true;
            return Vec::new();
        };
        let mut read = Vec::new();
        for (number, table) in tables.into_iter().enumerate() {
            if number == TABLES_MAX && key != "limit" {
                let why = format!("a file has {TABLES_MAX} {key}s at most: put the rest into another");
                self.told.push(Told::new(self.source, table.span(), why));
                self.is_partial = true;
                break;
            }
            let table = if matches!(table.as_ref(), DeValue::Table(_)) {
                self.table(table)
            } else {
                let article = if key.starts_with(['e', 's']) { "an" } else { "a" };
                let why = format!("{article} {key} is a table: write [[{key}]], and below it {content}");
                self.told.push(Told::new(self.source, table.span(), why));
                None
            };
            // No table refers to a limit by its name.
            self.is_partial |= table.is_none() && key != "limit";
            read.extend(table.map(|(at, table)| of(at, table)));
        }
        read
    }

    /// One value and its place; its faults are told if it has any. A key that is missing beside wrong ones may be meant by one of them.
    fn table<T: DeserializeOwned>(&mut self, mut value: Spanned<DeValue<'_>>) -> Option<(Range<usize>, T)> {
        let at = value.span();
        // The places of tables out of which something wrong was taken.
        let mut wrong = Vec::new();
        for told in 0..FAULTS_MAX {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(table) => return (told == 0).then_some((at, table)),
                Err(error) => error,
            };
            let span = error.span().unwrap_or(at.clone());
            if !error.message().starts_with("missing field") || !wrong.contains(&span) {
                self.told.push(explained(self.source, at.clone(), &error));
            }
            if span == at {
                break;
            }
            let Some(of) = remove(&mut value, &span) else { break };
            wrong.push(of);
        }
        None
    }
}

/// Removes what is at this place of the file, or has it in it, the innermost: one of several tables, or a key with its value. Returns the
/// place of the value that it was removed from, if there is one.
fn remove(value: &mut Spanned<DeValue<'_>>, at: &Range<usize>) -> Option<Range<usize>> {
    let of = value.span();
    match value.get_mut() {
        DeValue::Table(table) => {
            if let Some(of) = table.iter_mut().find_map(|(_, value)| remove(value, at)) {
                return Some(of);
            }
            let is_in = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
            let entry = table.iter().find(|(key, value)| is_in(key.span()) || is_in(value.span()));
            let key = entry.map(|(key, _)| key.clone());
            key.and_then(|key| table.remove(&key)).map(|_| of)
        }
        DeValue::Array(values) => {
            if let Some(of) = values.iter_mut().find_map(|value| remove(value, at)) {
                return Some(of);
            }
            let is_it = |value: &Spanned<DeValue<'_>>| value.get_ref().is_table() && value.span() == *at;
            let count = values.len();
            *values = values.iter().filter(|value| !is_it(value)).cloned().collect();
            (values.len() < count).then_some(of)
        }
        _ => None,
    }
}

/// The message of the TOML reader, at `otherwise` where it does not say where.
fn explained(source: SourceText, otherwise: Range<usize>, error: &toml::de::Error) -> Told {
    let at = error.span().unwrap_or(otherwise);
    Told { at: at.start, what: source.explain(error, at) }
}

fn unknown(key: &str) -> String {
    // People write the plural of a table that may be there several times.
    let singular = key.strip_suffix('s').unwrap_or(key);
    let command = COMMANDS.iter().find(|command| [key, singular].contains(*command));
    let place = PLACES.iter().find_map(|(keys, place)| {
        let known = [key, singular].into_iter().find(|word| keys.contains(word))?;
        Some((known, place))
    });
    match (command, place) {
        (Some(command), _) => format!("[[{command}]] is not yet in a file; use `weir {command}`"),
        (None, Some((known, place))) => format!("`{key}` {}", place.replace("KEY", known)),
        (None, None) => {
            let near = did_you_mean(key, TABLES.map(|(table, _)| table).into_iter().chain([NAME]));
            let tables = TABLES.map(|(table, _)| format!("[[{table}]]")).join(", ");
            format!("unknown table or key `{key}`: a file has a name, and the tables {tables}{near}")
        }
    }
}
