//! The changes of ESP stages: their addresses and MTU, their associations and their policies.
//!
//! Rule: each key of an association shows in its words, so a change of any of them is told. Associations are found by their names, and
//! their order is no difference; that of policies is, because the first that matches decides.
//!
//! Pure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use weir_core::units::time_text;
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_ipsec::policy::Selector;
use weir_path::esp::plan::{AssociationPlan, EspPlan, PolicyPlan, PolicyVerb};
use weir_path::plan::{Plan, StageKind};

use super::super::associations::{DONT_FRAGMENT, KEEPALIVE_OFF, WINDOW_DEFAULT};
use super::{Action, Key, LimitChange, Value, ValueChange, changed};

/// The ESP stages that are other, matched by their names.
pub(super) fn changed_esps(now: &Plan, wanted: &Plan) -> Vec<(usize, LimitChange, EspPlan)> {
    let mut changed_esps = Vec::new();
    for (place, stage) in now.stages.iter().enumerate() {
        let wanted = wanted.stages.iter().find(|other| other.name == stage.name);
        let (StageKind::Esp(before), Some(StageKind::Esp(after))) =
            (&stage.kind, wanted.map(|stage| &stage.kind))
        else {
            continue;
        };
        let mut values = changed(&esp_values(before), &esp_values(after));
        values.extend(changed_policies(before, after));
        if !values.is_empty() {
            let change = LimitChange { action: Action::Change, values };
            changed_esps.push((place, change, EspPlan::clone(after)));
        }
    }
    changed_esps
}

fn esp_values(esp: &EspPlan) -> BTreeMap<Key, Value> {
    let mut values = BTreeMap::new();
    let mut add = |rank, text: String, value: String| values.insert(Key { rank, text }, Value::Text(value));
    let addresses: Vec<_> = esp.addresses.iter().map(ToString::to_string).collect();
    add(0, "address".into(), addresses.join(", "));
    add(1, "mtu".into(), esp.mtu_bytes.to_string());
    for association in &esp.associations {
        add(2, format!("sa {}", association.name), association_text(association));
    }
    values
}

/// An association in words, without its defaults.
fn association_text(association: &AssociationPlan) -> String {
    // All fields, so that none is forgotten here that comes to be.
    let AssociationPlan {
        name: _,
        is_inbound,
        spi,
        source,
        destination,
        is_tunnel,
        algorithm,
        key_file,
        is_extended,
        window,
        udp_ports,
        keepalive_ns,
        follows_peer,
        dont_fragment,
        lifetime,
    } = association;
    let direction = if *is_inbound { "in" } else { "out" };
    let mut text = format!("{direction} {source} to {destination} spi {spi:#010x} {}", algorithm.name());
    if !is_tunnel {
        text += " transport";
    }
    if let Some(file) = key_file {
        text += &format!(" key_file {file}");
    }
    if *is_extended {
        text += " extended";
    }
    if *window != WINDOW_DEFAULT {
        text += &format!(" window {window}");
    }
    if let Some([from, to]) = udp_ports {
        text += &format!(" udp_ports {from} to {to}");
    }
    // Without UDP there are no keepalives, and none are sent by what comes in.
    if udp_ports.is_some() && !is_inbound && *keepalive_ns != Some(EVERY_NS_DEFAULT) {
        let every = keepalive_ns.map_or_else(|| KEEPALIVE_OFF.into(), time_text);
        text += &format!(" keepalive {every}");
    }
    if *follows_peer {
        text += " follow_peer";
    }
    if let Some((word, _)) = DONT_FRAGMENT.iter().skip(1).find(|(_, value)| value == dont_fragment) {
        text += &format!(" dont_fragment {word}");
    }
    for (what, limits) in [("soft", &lifetime.soft), ("hard", &lifetime.hard)] {
        let time = limits.time_ns.map(|time_ns| format!(" {what} time {}", time_text(time_ns)));
        let bytes = limits.bytes.map(|bytes| format!(" {what} bytes {bytes}"));
        let packets = limits.packets.map(|packets| format!(" {what} packets {packets}"));
        text.extend([time, bytes, packets].into_iter().flatten());
    }
    text
}

/// The policies that go and come, and those that stay at another place among those that stay: the first that matches decides.
fn changed_policies(before: &EspPlan, after: &EspPlan) -> Vec<ValueChange> {
    let places = [policy_texts(before), policy_texts(after)];
    let [mut gone, mut new] = places.clone();
    let (stay_before, stay_after) = (take_common(&mut gone, &places[1]), take_common(&mut new, &places[0]));
    let of = |what: String, [before, after]: [Option<String>; 2]| ValueChange { what, before, after };
    let called = |texts: &[PolicyText], text: &PolicyText| {
        format!("policy {}", 1 + texts.iter().position(|other| other == text).unwrap_or_default())
    };
    let gone = gone.into_iter().map(|text| of(called(&places[0], &text), [Some(text.0), None]));
    let new = new.into_iter().map(|text| of(called(&places[1], &text), [None, Some(text.0)]));
    let moved = stay_before.iter().zip(1..).filter_map(|(text, place)| {
        let now = 1 + stay_after.iter().position(|other| other == text)?;
        (now != place)
            .then(|| of(format!("place of policy {}", text.0), [place, now].map(|at| Some(at.to_string()))))
    });
    gone.chain(new).chain(moved).collect()
}

/// A policy in words, and the number of those before it that are the same.
type PolicyText = (String, usize);

fn policy_texts(esp: &EspPlan) -> Vec<PolicyText> {
    let mut seen = BTreeMap::<String, usize>::new();
    let texts = esp.policies.iter().map(policy_text).map(|text| {
        let count = seen.entry(text.clone()).or_default();
        *count += 1;
        (text, *count - 1)
    });
    texts.collect()
}

/// Takes what is in `other` too out of `texts`.
fn take_common(texts: &mut Vec<PolicyText>, other: &[PolicyText]) -> Vec<PolicyText> {
    let (common, own) = std::mem::take(texts).into_iter().partition(|text| other.contains(text));
    *texts = own;
    common
}

fn policy_text(policy: &PolicyPlan) -> String {
    let direction = if policy.is_inbound { "in" } else { "out" };
    let [from, to] = [policy.selector.source, policy.selector.destination].map(|prefix| {
        let (address, len) = prefix.parts();
        format!("{address}/{len}")
    });
    let (verb, _) =
        PolicyVerb::ALL.into_iter().find(|(_, verb)| *verb == policy.verb).expect("all have words");
    let by = if policy.associations.is_empty() { "" } else { " by " };
    let ports = |what: &str, ports: &Option<RangeInclusive<u16>>| {
        let ports = ports.as_ref().map(|ports| (*ports.start(), *ports.end()));
        ports.map_or_else(String::new, |(first, last)| format!(" {what} {first} to {last}"))
    };
    let Selector { protocol, source_ports, destination_ports, .. } = &policy.selector;
    let protocol = protocol.map_or_else(String::new, |protocol| format!(" protocol {protocol}"));
    let [from_ports, to_ports] = [ports("from port", source_ports), ports("to port", destination_ports)];
    let by_names = policy.associations.join(" or ");
    format!("{direction} {from} to {to}{protocol}{from_ports}{to_ports} {verb}{by}{by_names}")
}
