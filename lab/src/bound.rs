//! A bound that a lab's figure must keep to, and the judgement on it: held, missed, or unjudged.
//!
//! Rule: a figure within its bound is held, on any machine. One beyond it is missed only if nothing excuses it, such as a host that took
//! the processors meanwhile ([`stolen`]); otherwise nobody can tell whether the fault is the program's.

use serde_json::{Value, json};

use crate::stolen::STOLEN_MAX;

/// A figure and the most that it may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The name of the figure.
    pub what: String,
    /// The figure that was measured.
    pub figure: f64,
    /// The most that the figure may be.
    pub at_most: f64,
    /// The unit of both; empty for a ratio.
    pub unit: &'static str,
    /// The reason why a figure beyond the bound says nothing.
    pub excuse: Option<String>,
}

impl Bound {
    /// Returns whether it is missed, and nothing excuses it.
    pub fn is_missed(&self) -> bool {
        !self.is_held() && self.excuse.is_none()
    }

    fn is_held(&self) -> bool {
        self.figure <= self.at_most
    }

    fn verdict(&self) -> String {
        match &self.excuse {
            _ if self.is_held() => "held".to_string(),
            None => "MISSED".to_string(),
            Some(excuse) => format!("unjudged: {excuse}"),
        }
    }

    /// One line for people.
    pub fn to_line(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{}: {:.2}{unit}, at most {}{unit}: {}", self.what, self.figure, self.at_most, self.verdict())
    }

    /// An object of a report.
    pub fn to_json(&self) -> Value {
        json!({
            "what": self.what,
            "figure": self.figure,
            "at_most": self.at_most,
            "unit": self.unit,
            "verdict": self.verdict(),
        })
    }
}

/// The excuse of a host that took such a part of the busy time.
pub fn stolen(share: f64) -> Option<String> {
    (share > STOLEN_MAX).then(|| format!("the host took {:.1} % of the busy time", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_quiet_machine_misses_a_bound() {
        let bound = |figure, stolen| Bound {
            what: "p99".to_string(),
            figure,
            at_most: 10.0,
            unit: "ms",
            excuse: super::stolen(stolen),
        };
        assert_eq!(bound(3.125, 0.5).to_line(), "p99: 3.12 ms, at most 10 ms: held");
        assert_eq!(bound(12.0, 0.01).to_line(), "p99: 12.00 ms, at most 10 ms: MISSED");
        let stolen = bound(12.0, 0.25);
        assert_eq!(stolen.to_json()["verdict"], "unjudged: the host took 25.0 % of the busy time");
        assert!(!stolen.is_missed() && bound(12.0, 0.0).is_missed() && !bound(9.0, 0.0).is_missed());
    }
}
