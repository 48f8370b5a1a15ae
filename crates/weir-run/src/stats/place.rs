//! The statistics of every place where packets wait or end, in one form: a direction and its classes, a bridge, a router, a sink, a limit
//! in place and its classes.
//!
//! ```text
//! accepted = delivered + dropped (by reason) + held      in packets, and beside them in bytes
//! blocked_ns    for how long it held its senders         waits_for    the holder of most packets that wait in it now
//! delay_ns_*    how long packets stood in it
//! ```
//!
//! Rule: all of them are in the JSON of every place, under these names, written here alone; a value that nobody can see is null, never 0.
//! The other fields of a place stand beside them. As in [`crate::stats`], a field that is missing where this is read is nothing.
//!
//! Owner: none, these are copies.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_core::shaper::delay::DelayHistogram;

use crate::books::Books;

/// A place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlaceStats {
    /// Its name.
    pub name: String,
    /// Its books.
    #[serde(flatten)]
    pub books: Books,
    /// The time for which the senders of the place were blocked, in nanoseconds.
    pub blocked_ns: Option<u64>,
    /// The name of the holder of most packets that wait in it; none where nothing waits, or all of it is being sent.
    pub waits_for: Option<String>,
    /// The time that packets stood in the place: the median, in nanoseconds.
    pub delay_ns_p50: Option<u64>,
    /// The 99th percentile, in nanoseconds.
    pub delay_ns_p99: Option<u64>,
    /// The longest, in nanoseconds.
    pub delay_ns_max: Option<u64>,
}

impl PlaceStats {
    /// A place with these books, and nothing known of times.
    pub fn new(name: impl Into<String>, books: Books) -> PlaceStats {
        PlaceStats { name: name.into(), books, ..PlaceStats::default() }
    }

    /// This place, with the times that packets stood in it.
    pub fn with_delay(self, delay: &DelayHistogram) -> PlaceStats {
        PlaceStats {
            delay_ns_p50: Some(delay.quantile_ns(500)),
            delay_ns_p99: Some(delay.quantile_ns(990)),
            delay_ns_max: Some(delay.delay_ns_max()),
            ..self
        }
    }

    /// The JSON of the place, behind these other fields of it.
    ///
    /// # Panics
    /// If `more` is no object.
    pub fn to_json(&self, more: Value) -> Value {
        let Value::Object(more) = more else { panic!("fields of a place, not {more}") };
        // Only maps with keys that are no text cannot be written, and there are none.
        let Ok(Value::Object(mut place)) = serde_json::to_value(self) else { return Map::default().into() };
        place.extend(more);
        place.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use weir_core::drops::Count;

    #[test]
    fn what_is_not_known_is_null_and_read_as_such() {
        let books = Books { accepted: Count { packets: 1, bytes: 60 }, ..Books::default() };
        let place = PlaceStats::new("here", books);
        let json = place.to_json(json!({"kind": "bridge"}));
        assert_eq!(
            (&json["accepted"], &json["accepted_bytes"], &json["dropped"]),
            (&1.into(), &60.into(), &json!({}))
        );
        for unknown in ["blocked_ns", "waits_for", "delay_ns_p50", "delay_ns_p99", "delay_ns_max"] {
            assert_eq!(json.get(unknown), Some(&Value::Null), "{unknown}");
        }
        assert_eq!(json["kind"], "bridge");
        assert_eq!(serde_json::from_value::<PlaceStats>(json).unwrap(), place);
        assert_eq!(serde_json::from_value::<PlaceStats>(json!({})).unwrap(), PlaceStats::default());
    }
}
