//! One report: a wire, a topology, a generator, a sink and a limit in place tell of each of their places in one form.
//!
//! Rule: wherever a place stands in the output of `--json`, it has the same fields, and accepted = delivered + dropped + held, in packets
//! and where they are counted in bytes. Asked under load, when there is something everywhere.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_tests::classes::{File, two_classes};
use weir_tests::limits::{Between, Row};
use weir_tests::pair::{LIMIT, Pair, json_of};
use weir_tests::rig::{Rig, stat_of};
use weir_tests::topology::Hosts;
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any wait for a state under it; a flood is cut short.
const SECONDS: f64 = 120.0;
/// The fields of every place.
const FIELDS: [&str; 13] = [
    "name",
    "accepted",
    "delivered",
    "held",
    "dropped",
    "accepted_bytes",
    "delivered_bytes",
    "held_bytes",
    "dropped_bytes",
    "blocked_ns",
    "waits_for",
    "delay_ns_p50",
    "delay_ns_p99",
];
/// The lists in which each is a place.
const LISTS: [&str; 4] = ["classes", "stages", "limits", "leaves"];

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_wire_with_classes).flooding(),
        privileged!(a_topology_with_a_bridge_and_a_router).flooding(),
        privileged!(a_limit_in_place_with_classes).flooding(),
        privileged!(a_generator_and_a_sink).flooding(),
    ])
}

/// The sums of a place in packets, or in bytes where these are counted: accepted, and delivered + dropped + held; `None` if they are not.
fn sums(place: &Value, suffix: &str) -> Result<Option<[u64; 2]>> {
    let field = |name: &str| &place[format!("{name}{suffix}").as_str()];
    if field("accepted").is_null() {
        ensure!(field("dropped").is_null(), "some of it is counted: {place}");
        return Ok(None);
    }
    let count = |value: &Value| value.as_u64().with_context(|| format!("{value} is no count: {place}"));
    let mut explained = count(field("delivered"))? + count(field("held"))?;
    for dropped in field("dropped").as_object().with_context(|| format!("no reasons: {place}"))?.values() {
        explained += count(dropped)?;
    }
    Ok(Some([count(field("accepted"))?, explained]))
}

/// Requires that a value is a place whose sums balance.
fn require_place(place: &Value) -> Result<()> {
    for field in FIELDS.iter().chain(&["delay_ns_max"]) {
        ensure!(place.get(field).is_some(), "no {field}: {place}");
    }
    let [accepted, explained] = sums(place, "")?.context("packets are counted everywhere")?;
    ensure!(accepted == explained, "{accepted} accepted, {explained} explained: {place}");
    if let Some([accepted, explained]) = sums(place, "_bytes")? {
        ensure!(accepted == explained, "{accepted} bytes accepted, {explained} explained: {place}");
    }
    Ok(())
}

/// Looks at every place below, and counts them in `found`, and those that have taken something in.
fn look_at_places(value: &Value, found: &mut [usize; 2]) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| look_at_places(item, found)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            look_at_places(field, found)?;
            let places = field.as_array().filter(|_| LISTS.contains(&name.as_str()));
            for place in places.into_iter().flatten() {
                require_place(place).with_context(|| name.clone())?;
                *found = [found[0] + 1, found[1] + usize::from(place["accepted"] != 0)];
            }
            Ok(())
        }),
        _ => Ok(()),
    }
}

fn require_places(value: &Value) -> Result<[usize; 2]> {
    let mut found = [0, 0];
    look_at_places(value, &mut found)?;
    Ok(found)
}

fn require_found(report: &Value, places: usize, busy: usize) -> Result<()> {
    let found = require_places(report)?;
    println!("    {} places, {} of them have taken something in", found[0], found[1]);
    ensure!(found[0] == places && found[1] >= busy, "{found:?}, not {places} places, {busy} busy: {report}");
    Ok(())
}

/// Two directions; in each the three classes of the file and `free`.
fn a_wire_with_classes() -> Result<()> {
    let rig = Rig::new(4, 4)?;
    let file = File::new(&two_classes("150mbit", "50mbit"))?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 4, SECONDS))?;
    wait_until("it is said what is waited for", PATIENCE, || {
        let report = stat_of(&wire)?;
        let there = &report["wires"][0]["classes"][0];
        require_places(&report)?;
        let is_known = there["waits_for"] == "link" && there["classes"][0]["waits_for"] == "link";
        Ok(is_known && there["held"].as_u64() > Some(0) && there["blocked_ns"].as_u64() > Some(0))
    })?;
    require_found(&stat_of(&wire)?, 10, 4)?;
    drop(flood);
    wire.check()?;
    wire.stop().map(drop)
}

const TOPOLOGY: &str = r#"
[[port]]
interface = "p0"
rate = "100mbit"
[[port]]
interface = "p1"
rate = "50mbit"
[[epair]]
name = "e0"
[[bridge]]
name = "lan"
ports = ["p0", "e0a"]
[[router]]
name = "gw"
[[router.interface]]
port = "e0b"
address = ["10.99.1.1/24"]
[[router.interface]]
port = "p1"
address = ["10.99.2.1/24"]
"#;

fn a_topology_with_a_bridge_and_a_router() -> Result<()> {
    let hosts = Hosts::new(2, Some(4))?;
    hosts.address(0, "10.99.1.2/24")?;
    hosts.address(1, "10.99.2.2/24")?;
    hosts.hosts[0].ip("route add default via 10.99.1.1")?;
    hosts.hosts[1].ip("route add default via 10.99.2.1")?;
    let up = hosts.up(TOPOLOGY)?;
    let flood = Flood::start(&Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.2.2", 4, SECONDS))?;
    wait_until("it is said what is waited for", PATIENCE, || {
        let report = up.stat()?;
        require_places(&report)?;
        Ok(report["classes"][1]["waits_for"] == "->p1")
    })?;
    require_found(&up.stat()?, 4, 3)?;
    drop(flood);
    up.check()?;
    up.down().map(drop)
}

/// Both ways: the limit, its leaves with a socket and without, the classes of the file and `free`.
fn a_limit_in_place_with_classes() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let file = File::new(&two_classes("150mbit", "50mbit"))?;
    row.weir(&format!("limit wa --rate 250mbit --classes {}", file.path()))?.success()?;
    let to = row.right_address(Between::Bridge);
    let flood = Flood::start(&Load::new(&row.left, &row.right, &to, 4, SECONDS))?;
    let report = || json_of(&row.weir("stat wa --json")?.success()?.stdout);
    wait_until("it is said what is waited for", PATIENCE, || {
        let report = report()?;
        require_places(&report)?;
        let there = &report["limits"][0];
        Ok(there["held"].as_u64() > Some(0) && !there["waits_for"].is_null())
    })?;
    let report = report()?;
    let limits = report["limits"].as_array().context("no limits")?;
    let classes: usize = limits.iter().filter_map(|limit| Some(limit["classes"].as_array()?.len())).sum();
    ensure!(classes >= 3, "no classes: {report}");
    require_found(&report, 3 * limits.len() + classes, 4)?;
    let line = json_of(&row.weir("stat wa -i 0.2 --count 1 --json")?.success()?.stdout)?;
    let has_sent = line["out"]["packets"].as_u64() > Some(0);
    ensure!(line["limit"] == "wa" && line["in"].is_null() && has_sent, "a line an interval: {line}");
    drop(flood);
    row.weir("limit wa --off")?.success().map(drop)
}

/// Both are asked at their ends, where all packets that came have been delivered.
fn a_generator_and_a_sink() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let pair = Pair::new(1)?;
    let sink = pair.sink(&["--count", &PACKETS.to_string()])?;
    let sent = pair.generate(&[], PACKETS)?;
    require_place(&sent)?;
    ensure!(sent["accepted"] == PACKETS && sent["name"] == "veth0", "{sent}");
    let received = json_of(&sink.wait(LIMIT)?.success()?.stdout)?;
    require_place(&received)?;
    // The kernel may say something of its own at a fresh interface.
    let packets = PACKETS + received["unnumbered"].as_u64().context("a count")?;
    ensure!(received["numbered"] == PACKETS, "{received}");
    ensure!(received["delivered"] == packets && received["accepted"] == packets, "{received}");
    ensure!(received["name"].is_string() && received["held"] == 0, "{received}");
    Ok(())
}
