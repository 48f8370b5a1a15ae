//! The limits that there are, as a topology file that says the same; and so a plan ([`plan`]).
//!
//! Rule: a file that is written is read again as the limits that there are, so that applying it changes nothing. A value that is the
//! default is left out. Both ways of a pair are one table where one can say both.

pub mod plan;

use std::ops::RangeInclusive;

use toml::Spanned;
use weir_core::classify::{Classifier, Conditions, Target};
use weir_core::rate::Rate;
use weir_core::units::size_text;
use weir_path::classes::Classes;
use weir_port::limit::record::{Direction, Record};
use weir_port::limit::reshape::classes_of;

use self::plan::{class_table, name_of};
use super::tables::{LimitTable, TopologyFile};
use crate::classes::file::{Filter, Words};
use crate::limits::{burst_bytes_default, is_name};

/// A limit, and how a file names its interface.
#[derive(Clone, Debug)]
pub struct LimitPlace<'a> {
    /// The interface.
    pub device: String,
    /// The process whose namespace it is in, if it is not this one's.
    pub pid: Option<u32>,
    /// The record of the limit.
    pub record: &'a Record,
}

/// The text of a file with these limits.
pub fn write(limits: &[LimitPlace]) -> String {
    let mut tables: Vec<LimitTable> = Vec::new();
    let mut names: Vec<(&str, (&str, Option<u32>))> = Vec::new();
    let mut rest: Vec<&LimitPlace> = limits.iter().collect();
    while !rest.is_empty() {
        let limit = rest.remove(0);
        let other = rest.iter().position(|other| limit.says_the_other_way(other));
        let other = other.map(|place| rest.remove(place));
        let of = (limit.device.as_str(), limit.pid);
        // A name that others have cannot be in one file with theirs.
        let is_free = names.iter().all(|(name, whose)| *name != limit.record.name || *whose == of);
        let mut table = limit.table(other);
        if is_free && is_name(&limit.record.name) {
            names.push((&limit.record.name, of));
            table.name = Some(spanned(limit.record.name.clone()));
        }
        tables.push(table);
    }
    if tables.is_empty() {
        return "limit = []\n".into();
    }
    text(&TopologyFile { limits: tables, ..TopologyFile::default() })
}

fn text(file: &TopologyFile) -> String {
    const SPI: &str = "spi = ";
    let text = toml::to_string(file).expect("tables of texts, numbers and tables of them");
    // The path of a key may go over the end of a line, and have such a line in it.
    if ["\"\"\"", "'''"].iter().any(|quotes| text.contains(quotes)) {
        return text;
    }
    // An SPI is hexadecimal, as everybody writes it.
    let line = |line: &str| match line.trim_end().strip_prefix(SPI).map(str::parse::<u32>) {
        Some(Ok(spi)) => format!("{SPI}{spi:#x}\n"),
        _ => line.into(),
    };
    text.split_inclusive('\n').map(line).collect()
}

impl LimitPlace<'_> {
    /// Returns whether one table can say this limit and `other`, the same pair's of the other way.
    fn says_the_other_way(&self, other: &LimitPlace) -> bool {
        let (one, two) = (self.record, other.record);
        let same_place = (&self.device, self.pid) == (&other.device, other.pid);
        let is_default = |record| burst_said(record).is_none();
        same_place
            && one.direction != two.direction
            && one.name == two.name
            && (one.burst_bytes == two.burst_bytes || (is_default(one) && is_default(two)))
            && tables_of(&classes_of(one)) == tables_of(&classes_of(two))
    }

    fn table(&self, other: Option<&LimitPlace>) -> LimitTable {
        let mut table = LimitTable {
            device: Some(spanned(self.device.clone())),
            pid: self.pid.map(|pid| spanned(pid.into())),
            ..LimitTable::default()
        };
        let records: Vec<_> = std::iter::once(self.record).chain(other.map(|other| other.record)).collect();
        for record in &records {
            let rate = Rate::from_bits_per_s(record.rate_bits_per_s).map(|rate| spanned(rate.to_string()));
            match record.direction {
                Direction::There => table.rate = rate,
                Direction::Back => table.rate_back = rate,
            }
        }
        table.burst =
            records.iter().find_map(|record| burst_said(record)).map(|bytes| spanned(size_text(bytes)));
        let classes = classes_of(self.record);
        if !classes.classes.is_empty() {
            table.default = Some(spanned(name_of(&classes, classes.classifier.otherwise())));
            table.class = classes.classes.iter().map(|class| class_table(&classes, class)).collect();
            table.filter = filter_tables_in_place(&classes);
        }
        table
    }
}

/// The burst, if it is not the rate's default.
fn burst_said(record: &Record) -> Option<u64> {
    let rate = Rate::from_bits_per_s(record.rate_bits_per_s)?;
    Some(record.burst_bytes).filter(|bytes| *bytes != burst_bytes_default(rate))
}

/// Classes as text, to compare them.
fn tables_of(classes: &Classes) -> String {
    let tables = LimitTable {
        default: Some(spanned(name_of(classes, classes.classifier.otherwise()))),
        class: classes.classes.iter().map(|class| class_table(classes, class)).collect(),
        filter: filter_tables_in_place(classes),
        ..LimitTable::default()
    };
    toml::to_string(&tables).unwrap_or_default()
}

fn filter_tables_in_place(classes: &Classes) -> Vec<Filter> {
    filter_tables(&classes.classifier, |target| name_of(classes, target), |_| None)
}

/// The rules of a classifier as filters, with the names of classes and interfaces.
fn filter_tables(
    classifier: &Classifier,
    class: impl Fn(Target) -> String,
    interface: impl Fn(u16) -> Option<String>,
) -> Vec<Filter> {
    let words = |word: Option<String>| word.map(|word| spanned(Words::one(word)));
    let rules = classifier.rules().iter().map(|rule| {
        let Conditions { from, to, protocol, from_ports, to_ports, dscp, .. } = &rule.conditions;
        Filter {
            interface: rule.conditions.interface.and_then(&interface).map(spanned),
            from: words(from.map(|subnet| subnet.to_string())),
            to: words(to.map(|subnet| subnet.to_string())),
            protocol: words(protocol.map(|number| number.to_string())),
            from_ports: words(ports(from_ports)),
            to_ports: words(ports(to_ports)),
            dscp: words(dscp.map(|number| number.to_string())),
            class: spanned(class(rule.target)),
        }
    });
    rules.collect()
}

/// A port, or a range of them.
pub(super) fn ports(range: &Option<RangeInclusive<u16>>) -> Option<String> {
    range.as_ref().map(|range| match (range.start(), range.end()) {
        (start, end) if start == end => start.to_string(),
        (start, end) => format!("{start}-{end}"),
    })
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}
