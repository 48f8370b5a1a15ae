//! Security associations as text, in the words of `ip -s xfrm state`, without keys.

use std::fmt::Write;

use weir_core::units::time_text;
use weir_run::stats::StageStats;
use weir_run::stats::association::{AssociationStats, LimitsStats};

use crate::human;

/// A block for each association of each ESP.
pub fn parts(stages: &[StageStats]) -> impl Iterator<Item = String> {
    let associations = stages.iter().flat_map(|stage| stage.associations.iter().map(move |one| (stage, one)));
    associations.map(|(stage, association)| text(&stage.place.name, association))
}

fn text(stage: &str, association: &AssociationStats) -> String {
    let AssociationStats { name, direction, source, destination, spi, mode, algorithm, age, .. } =
        association;
    let mut text = format!("src {source} dst {destination}  ({stage}, sa {name}, {direction}, {age})\n");
    let mut line = |line: String| writeln!(text, "        {line}").expect("a text takes what is written");
    line(format!(
        "proto esp spi {spi:#010x} mode {mode} {algorithm}{}",
        if association.extended { " esn" } else { "" }
    ));
    if let Some([from, to]) = association.udp_ports {
        line(format!("encap type espinudp sport {from} dport {to}"));
    }
    if let Some(window) = association.window {
        line(format!("replay-window {window}"));
    }
    let which = if association.window.is_some() { "seq" } else { "oseq" };
    line(format!("{which} {:#x} ({})", association.sequence, human::count(association.sequence)));
    for (what, limits) in [("soft", association.soft), ("hard", association.hard)] {
        if limits != LimitsStats::default() {
            line(format!("limit {what}: {}", limits_text(limits)));
        }
    }
    line(format!(
        "lifetime current: {}, {} in {}",
        human::bytes(association.bytes),
        human::plural(association.packets, "packet"),
        human::uptime(association.since_ns)
    ));
    if association.keepalives > 0 {
        line(human::plural(association.keepalives, "keepalive"));
    }
    if let Some(path_mtu_bytes) = association.path_mtu_bytes {
        line(format!("path-mtu {path_mtu_bytes}"));
    }
    for (reason, count) in &association.dropped {
        line(format!("dropped {reason}: {}", human::plural(*count, "packet")));
    }
    text
}

fn limits_text(limits: LimitsStats) -> String {
    let LimitsStats { time_ns, bytes, packets } = limits;
    let parts = [
        time_ns.map(time_text),
        bytes.map(human::bytes),
        packets.map(|packets| human::plural(packets, "packet")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
