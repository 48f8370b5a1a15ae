//! A lab's result: rows of named fields with units, and the headings and plots that printing them takes.
//!
//! Every lab fills one of these; [`crate::table`] and [`crate::html`] know nothing of any lab. The names in
//! [`Field::name`] are those of the JSON file, which scripts rely on: units last, `null` where a system cannot tell.

use serde_json::{Map, Value as Json, json};

use crate::bound::Bound;
use crate::machine::Machine;

/// A column: its name in JSON, and its form for people.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in the JSON file.
    pub name: &'static str,
    /// Heading in the table.
    pub heading: &'static str,
    /// Unit below the heading; empty for a plain number.
    pub unit: &'static str,
    /// Digits after the point in the table.
    pub decimals: usize,
}

/// One figure of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The system cannot tell, or nobody has published it.
    Missing,
    /// A count.
    Count(u64),
    /// A measured quantity.
    Number(f64),
    /// The number of times that a quantity was in each bucket: the bucket's lower end and the count. It has a plot, but no column.
    Buckets(Vec<[u64; 2]>),
}

impl Value {
    /// The figure as a number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Missing | Value::Buckets(_) => None,
            Value::Count(count) => Some(*count as f64),
            Value::Number(number) => Some(*number),
        }
    }

    fn to_json(&self) -> Json {
        match self {
            Value::Missing => Json::Null,
            Value::Count(count) => json!(count),
            // Six decimals: nothing here is measured more finely, and 0.1 + 0.2 looks like 0.3.
            Value::Number(number) => json!((number * 1e6).round() / 1e6),
            Value::Buckets(buckets) => json!(buckets),
        }
    }

    /// The figure as text with `decimals` digits; a dash when it is not one number.
    pub fn to_text(&self, decimals: usize) -> String {
        match self {
            Value::Missing | Value::Buckets(_) => "-".to_string(),
            Value::Count(count) => count.to_string(),
            Value::Number(number) => format!("{number:.decimals$}"),
        }
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        if number.is_finite() { Value::Number(number) } else { Value::Missing }
    }
}

impl From<Vec<[u64; 2]>> for Value {
    fn from(buckets: Vec<[u64; 2]>) -> Value {
        Value::Buckets(buckets)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Missing, Into::into)
    }
}

/// One system in one case.
#[derive(Debug, Clone)]
pub struct Row {
    /// The system that was measured.
    pub system: String,
    /// The load, as text.
    pub case: String,
    /// Figures by field name; a field that is not here is missing.
    pub values: Vec<(&'static str, Value)>,
    /// Why this row has no figures, or must not be believed.
    pub error: Option<String>,
    /// True if this kernel does not have the system, which is no failure.
    pub is_absent: bool,
}

impl Row {
    /// A row with figures.
    pub fn new(system: &str, case: &str, values: Vec<(&'static str, Value)>) -> Row {
        Row { system: system.to_string(), case: case.to_string(), values, error: None, is_absent: false }
    }

    /// A row that failed, with the figures that stand all the same.
    pub fn failed(system: &str, case: &str, values: Vec<(&'static str, Value)>, error: String) -> Row {
        Row { error: Some(error), ..Row::new(system, case, values) }
    }

    /// A row of a system that this kernel does not have.
    pub fn absent(system: &str, case: &str) -> Row {
        Row { is_absent: true, ..Row::new(system, case, Vec::new()) }
    }

    /// The figure of one field.
    pub fn value(&self, name: &str) -> Value {
        self.values
            .iter()
            .find(|(field, _)| *field == name)
            .map_or(Value::Missing, |(_, value)| value.clone())
    }
}

/// The scale of a plot's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// By powers of ten.
    Log,
}

/// A plot of one field: bars for each system, grouped by case; of a field of buckets, a histogram for each case.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// The field that is drawn.
    pub field: &'static str,
    /// Heading, with the unit.
    pub title: &'static str,
    /// The axis.
    pub scale: Scale,
    /// A field with a published figure, marked across the group.
    pub reference: Option<&'static str>,
}

/// The result of a lab.
#[derive(Debug, Clone)]
pub struct Report {
    /// The lab's name on the command line.
    pub lab: &'static str,
    /// The subject of the lab, in one line.
    pub title: &'static str,
    /// Heading of the column of cases.
    pub case_heading: &'static str,
    /// Notes on how to read the figures.
    pub notes: &'static [&'static str],
    /// The columns.
    pub fields: &'static [Field],
    /// The plots.
    pub plots: &'static [Plot],
    /// The machine that the figures are of.
    pub machine: Machine,
    /// The figures.
    pub rows: Vec<Row>,
    /// The bounds that some of them must keep to.
    pub bounds: Vec<Bound>,
    /// The text that is printed below the table, for people alone.
    pub appendix: String,
}

impl Report {
    /// The JSON file's content.
    pub fn to_json(&self) -> Json {
        let rows: Vec<Json> = self.rows.iter().map(|row| self.row_to_json(row)).collect();
        let mut report = json!({ "lab": self.lab, "machine": self.machine.to_json(), "rows": rows });
        if !self.bounds.is_empty() {
            report["bounds"] = self.bounds.iter().map(Bound::to_json).collect();
        }
        report
    }

    /// The fields that have a column: those that are one number.
    pub fn columns(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !self.has_buckets(field.name))
    }

    /// Returns whether a field holds buckets.
    pub fn has_buckets(&self, field: &str) -> bool {
        self.rows.iter().any(|row| matches!(row.value(field), Value::Buckets(_)))
    }

    /// The rows that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.error.is_some())
    }

    /// Returns whether a row failed or a bound was missed.
    pub fn has_failed(&self) -> bool {
        self.failures().next().is_some() || self.bounds.iter().any(Bound::is_missed)
    }

    /// The systems that this kernel does not have, as a sentence.
    pub fn absence(&self) -> Option<String> {
        let absent = in_order(self.rows.iter().filter(|row| row.is_absent).map(|row| row.system.as_str()));
        (!absent.is_empty()).then(|| format!("Not in this kernel: {}.", absent.join(", ")))
    }

    /// The cases, in the order they appear.
    pub fn cases(&self) -> Vec<&str> {
        in_order(self.rows.iter().map(|row| row.case.as_str()))
    }

    /// The systems, in the order they appear.
    pub fn systems(&self) -> Vec<&str> {
        in_order(self.rows.iter().map(|row| row.system.as_str()))
    }

    fn row_to_json(&self, row: &Row) -> Json {
        let mut object = Map::new();
        object.insert("system".to_string(), json!(row.system));
        object.insert("case".to_string(), json!(row.case));
        for field in self.fields {
            object.insert(field.name.to_string(), row.value(field.name).to_json());
        }
        if let Some(error) = &row.error {
            object.insert("error".to_string(), json!(error));
        }
        if row.is_absent {
            object.insert("absent".to_string(), json!("not in this kernel"));
        }
        Json::Object(object)
    }
}

/// Returns whether a system is ours: a reader looks for it first.
pub fn is_ours(system: &str) -> bool {
    system.starts_with("weir")
}

fn in_order<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for word in words {
        if !seen.contains(&word) {
            seen.push(word);
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small report with everything in it: a published figure, a zero, a missing value, a failure.
    pub(crate) fn sample() -> Report {
        const FIELDS: &[Field] = &[
            Field { name: "lost_pct", heading: "lost", unit: "%", decimals: 2 },
            Field { name: "seed_lost_pct", heading: "published", unit: "%", decimals: 1 },
            Field { name: "wait_ms", heading: "wait", unit: "ms", decimals: 3 },
        ];
        const PLOTS: &[Plot] = &[
            Plot {
                field: "lost_pct",
                title: "Lost, %",
                scale: Scale::Linear,
                reference: Some("seed_lost_pct"),
            },
            Plot { field: "wait_ms", title: "Wait, ms", scale: Scale::Log, reference: None },
        ];
        let machine = Machine {
            kernel: "6.18".to_string(),
            cores: 2,
            cpu: "A <fast> CPU".to_string(),
            cache_line_rtt_ns: Some(280.4),
            eventfd_wake_us: None,
        };
        let values = |lost: f64, seed: Option<f64>, wait: f64| {
            vec![("lost_pct", lost.into()), ("seed_lost_pct", seed.into()), ("wait_ms", wait.into())]
        };
        let rows = vec![
            Row::new("tbf", "2", values(91.234, Some(74.7), 8.2)),
            Row::new("weir", "2", values(0.0, Some(74.7), 0.4)),
            Row::new("tbf", "64", values(97.0, None, 82.0)),
            Row::failed("weir", "64", vec![("lost_pct", Value::Missing)], "no & never".to_string()),
        ];
        Report {
            lab: "sample",
            title: "A sample",
            case_heading: "clients",
            notes: &["a < b"],
            fields: FIELDS,
            plots: PLOTS,
            machine,
            rows,
            bounds: Vec::new(),
            appendix: String::new(),
        }
    }

    #[test]
    fn json_has_every_field_of_every_row_and_null_for_what_is_missing() {
        let report = sample().to_json();
        assert_eq!(report["lab"], "sample");
        assert_eq!(report["machine"]["cache_line_rtt_ns"], 280.0);
        assert_eq!(report["machine"]["eventfd_wake_us"], Json::Null);
        let expected = json!({
            "system": "tbf", "case": "64", "lost_pct": 97.0, "seed_lost_pct": null, "wait_ms": 82.0
        });
        assert_eq!(report["rows"][2], expected);
        assert_eq!(report["rows"][3]["error"], "no & never");
        assert_eq!(report["rows"][3]["lost_pct"], Json::Null);
        assert!(report["rows"][0].get("error").is_none());
    }

    #[test]
    fn what_the_kernel_lacks_is_said_once_and_is_no_failure() {
        let mut report = sample();
        assert_eq!(report.absence(), None);
        report.rows.extend([Row::absent("fq", "2"), Row::absent("cake", "2"), Row::absent("fq", "64")]);
        assert_eq!(report.absence().as_deref(), Some("Not in this kernel: fq, cake."));
        assert_eq!(report.failures().count(), 1);
        assert_eq!(report.to_json()["rows"][4]["absent"], "not in this kernel");
    }

    #[test]
    fn what_is_not_a_number_is_missing() {
        assert_eq!(Value::from(f64::NAN), Value::Missing);
        assert_eq!(Value::from(None::<u64>), Value::Missing);
        assert_eq!(Value::from(Some(0.0)), Value::Number(0.0));
    }

    #[test]
    fn cases_and_systems_keep_their_order() {
        assert_eq!(sample().cases(), ["2", "64"]);
        assert_eq!(sample().systems(), ["tbf", "weir"]);
    }
}
