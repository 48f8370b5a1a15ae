//! The filters of classes, compared: those that go and those that come, in words.
//!
//! Rule: the first filter that matches decides, so one that stays at another place is other too. A file may have thousands of rules, so
//! some of them are told, and the number of the rest.
//!
//! Pure.

use weir_core::classify::Conditions;

use super::super::write::ports;
use super::listed;

/// A rule of a classifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterRule {
    /// The conditions.
    pub conditions: Conditions,
    /// The name of the interface, if the conditions have one.
    pub interface: Option<String>,
    /// The class.
    pub class: String,
}

/// The number of these rules.
pub(super) fn count_text(rules: &[FilterRule]) -> String {
    if rules.len() == 1 { "1 rule".into() } else { format!("{} rules", rules.len()) }
}

/// Both lists in words: their lengths, and the rules that the other does not have; or that it has at another place, if all are in both.
pub(super) fn texts(before: &[FilterRule], after: &[FilterRule]) -> [String; 2] {
    let are_own = [lacking(before, after), lacking(after, before)];
    if are_own.iter().all(Vec::is_empty) {
        let moved = |rules: &[FilterRule], others: &[FilterRule]| {
            (0..rules.len()).filter(|&place| rules.get(place) != others.get(place)).collect()
        };
        return [text(before, moved(before, after)), text(after, moved(after, before))];
    }
    let [of_before, of_after] = are_own;
    [text(before, of_before), text(after, of_after)]
}

/// The places of the rules that are not among the others.
fn lacking(rules: &[FilterRule], others: &[FilterRule]) -> Vec<usize> {
    (0..rules.len()).filter(|&place| !others.contains(&rules[place])).collect()
}

/// The length of a list, and in words its rules at these places.
fn text(rules: &[FilterRule], places: Vec<usize>) -> String {
    let count = count_text(rules);
    let rule = |place: usize| format!("{}: {}", place + 1, rule_text(&rules[place]));
    let told: Vec<_> = places.into_iter().map(rule).collect();
    if told.is_empty() { count } else { format!("{count} ({})", listed(told, "; ")) }
}

/// A rule in words, as the keys of a filter: `from 10.1.0.0/16 to_ports 80 class voice`.
fn rule_text(rule: &FilterRule) -> String {
    let Conditions { interface: _, from, to, protocol, from_ports, to_ports, dscp, flows } = &rule.conditions;
    let words = [
        ("interface", rule.interface.clone()),
        ("from", from.map(|subnet| subnet.to_string())),
        ("to", to.map(|subnet| subnet.to_string())),
        ("protocol", protocol.map(|number| number.to_string())),
        ("from_ports", ports(from_ports)),
        ("to_ports", ports(to_ports)),
        ("dscp", dscp.map(|number| number.to_string())),
        ("flows", flows.map(|share| format!("{} of {}", share.index, share.of))),
        ("class", Some(rule.class.clone())),
    ];
    let words = words.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ports: &[u16]) -> Vec<FilterRule> {
        let rule = |&port: &u16| FilterRule {
            conditions: Conditions { to_ports: Some(port..=port), ..Conditions::default() },
            interface: None,
            class: "x".into(),
        };
        ports.iter().map(rule).collect()
    }

    #[test]
    fn rules_that_go_come_or_move_are_told_with_their_places() {
        let told = |before: &[u16], after: &[u16]| texts(&rules(before), &rules(after)).join(" -> ");
        assert_eq!(
            told(&[80, 443], &[80, 444]),
            "2 rules (2: to_ports 443 class x) -> 2 rules (2: to_ports 444 class x)"
        );
        assert_eq!(told(&[80, 443], &[443]), "2 rules (1: to_ports 80 class x) -> 1 rule");
        assert_eq!(
            told(&[1, 80, 443], &[1, 443, 80]),
            "3 rules (2: to_ports 80 class x; 3: to_ports 443 class x) -> 3 rules (2: to_ports 443 class x; 3: to_ports 80 class x)"
        );
        assert_eq!(
            told(&[1], &[1, 2, 3, 4, 5, 6]),
            "1 rule -> 6 rules (2: to_ports 2 class x; 3: to_ports 3 class x; 4: to_ports 4 class x; and 2 more)"
        );
    }
}
