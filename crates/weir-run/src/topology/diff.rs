//! The changes that a file would make: of one limit as it is, and of a running plan ([`plan`]).
//!
//! Rule: two limits that behave alike are alike, whatever the order in which a file names their classes. Nothing here looks at the machine,
//! so the changes that are shown are those that are made.

mod esp;
mod filters;
pub mod plan;
mod router;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_core::units::size_text;
use weir_port::limit::Asked;
use weir_port::limit::record::Record;

use self::filters::FilterRule;

/// The present state of a limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitNow<'a> {
    /// The limit's own record.
    pub record: &'a Record,
    /// True if nothing of it is missing.
    pub is_whole: bool,
}

/// The change of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChange {
    /// The kind of change.
    pub action: Action,
    /// The values that change, with the old and the new.
    pub values: Vec<ValueChange>,
}

/// The ways in which a limit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// There is no limit yet.
    Set,
    /// There is a limit with other values.
    Change,
    /// The limit has the right values, but something of it is missing, changed or open.
    Finish,
    /// The limit has the right values, but flows may still wait by the classes before.
    Settle,
}

/// One value that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueChange {
    /// The name of the value.
    pub what: String,
    /// The value as it is.
    pub before: Option<String>,
    /// The value as it is to be.
    pub after: Option<String>,
}

/// The change of a limit that is to be as `asked`; `None` if it is so already.
pub fn compare(now: Option<LimitNow>, asked: &Asked) -> Option<LimitChange> {
    let before = now.map(|now| values(&Asked::of(now.record))).unwrap_or_default();
    let values = changed(&before, &values(asked));
    let action = match now {
        None => Action::Set,
        Some(_) if !values.is_empty() => Action::Change,
        Some(now) if !now.is_whole => Action::Finish,
        Some(now) if now.record.filters.len() > 1 => Action::Settle,
        Some(_) => return None,
    };
    Some(LimitChange { action, values })
}

/// The values that differ, each with the old and the new.
fn changed(before: &BTreeMap<Key, Value>, after: &BTreeMap<Key, Value>) -> Vec<ValueChange> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changes = keys.into_iter().filter(|key| before.get(key) != after.get(key)).map(|key| {
        let [before, after] = match [before.get(key), after.get(key)] {
            [Some(Value::Filters(before)), Some(Value::Filters(after))] => {
                filters::texts(before, after).map(Some)
            }
            values => values.map(|value| value.map(Value::to_string)),
        };
        ValueChange { what: key.text.clone(), before, after }
    });
    changes.collect()
}

impl LimitChange {
    /// `+` for a limit that comes, `~` for one that changes.
    pub fn sign(&self) -> char {
        if self.action == Action::Set { '+' } else { '~' }
    }

    /// As it is shown, of a `port`, `esp` or what it is, and of this name. Of an ESP many policies may change at once: each has a line.
    pub fn lines(&self, what: &str, name: &str) -> Vec<String> {
        let line = |change: &dyn fmt::Display| format!("{} {what} {name}: {change}", self.sign());
        match what {
            "esp" if !self.values.is_empty() => self.values.iter().map(|value| line(value)).collect(),
            _ => vec![line(self)],
        }
    }
}

impl fmt::Display for LimitChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Set | Action::Change => {
                let values: Vec<_> = self.values.iter().map(ValueChange::to_string).collect();
                write!(f, "{}", values.join(", "))
            }
            Action::Finish => write!(f, "something of it is missing or changed: it is set again, as it is"),
            Action::Settle => {
                write!(f, "flows may still wait by the classes before: they are looked at again")
            }
        }
    }
}

impl fmt::Display for ValueChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValueChange { what, before, after } = self;
        match (before, after) {
            (Some(before), Some(after)) => write!(f, "{what} {before} -> {after}"),
            (None, Some(after)) => write!(f, "{what} {after}"),
            (Some(before), None) => write!(f, "no {what} any more, which was {before}"),
            (None, None) => Ok(()),
        }
    }
}

/// The name of a value, with its rank: values of the limit first, then class by class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rank: u8,
    text: String,
}

/// A value, as it is compared and as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    /// Filters in order.
    Filters(Vec<FilterRule>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Filters(rules) => f.write_str(&filters::count_text(rules)),
        }
    }
}

fn values(asked: &Asked) -> BTreeMap<Key, Value> {
    let mut values = BTreeMap::new();
    let mut add = |rank, text: &str, value: Value| values.insert(Key { rank, text: text.into() }, value);
    add(0, "name", Value::Text(asked.name.clone()));
    if let Some(rate) = asked.rate {
        add(1, "rate", Value::Text(rate.to_string()));
    }
    if let Some(bytes) = asked.burst_bytes {
        add(2, "burst", Value::Text(size_text(bytes)));
    }
    let Some(classes) = asked.classes.as_ref().filter(|classes| !classes.classes.is_empty()) else {
        return values;
    };
    // The filters of a limit in place name no interfaces.
    values.extend(plan::class_values(classes, &[]));
    values
}

/// The most differences of a kind that are told.
const TOLD_MAX: usize = 3;

/// Some of these, and the number of the rest.
fn listed(mut told: Vec<String>, between: &str) -> String {
    let more = told.len().saturating_sub(TOLD_MAX);
    told.truncate(TOLD_MAX);
    told.extend((more > 0).then(|| format!("and {more} more")));
    told.join(between)
}
