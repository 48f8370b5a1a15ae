//! Limits in place in `weir stat`: the counters of their queues, and the changes beside them.
//!
//! Rule: a value that nobody can see is `null`, never 0. The waits of packets are seen at the other end of a pair; elsewhere only the
//! waiting bytes divided by the rate are known.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value, json};
use weir_core::drops::Count;
use weir_core::limit::shared::{FREE_BASE, HtbClassKind, kind_of};
use weir_core::rate::Rate;
use weir_core::units::size_text;
use weir_port::limit::find::{self, HeldBy, LimitInPlace, LimitsFound};
use weir_port::limit::htb::QueueTraffic;
use weir_port::limit::record::{ClassRecord, Direction, LimitStage, Record};
use weir_port::limit::steering::ChangedSteering;
use weir_port::senders::{self, Sender};
use weir_run::books::Books;
use weir_run::stats::PlaceStats;

use crate::{human, output};

/// The longest wait that the stamp of a packet tells, with a margin: longer ones look shorter (`weir-core/limit/stamp.rs`).
const STAMPED_NS_MAX: u64 = 8_000_000_000;

/// The limits of the machine; those that cannot be read are said.
pub fn read() -> Result<Vec<LimitInPlace>, String> {
    let LimitsFound { seen, unread } = read_all()?;
    unread.iter().for_each(|why| output::say(format_args!("weir: {why}")));
    Ok(seen)
}

/// The limits of the machine, and why others cannot be read.
pub fn read_all() -> Result<LimitsFound, String> {
    // Others may not ask what program a queue has.
    if !weir_port::sys::sees_limits() {
        return Ok(LimitsFound::default());
    }
    let mut all = find::all().map_err(|error| error.to_string())?;
    all.seen.sort_by(|a, b| key(a).cmp(&key(b)));
    Ok(all)
}

/// The number of limits of which each way is among these, and none among those that are `unsound`: both ways of one have one name.
pub fn number_of_whole(sound: &[&LimitInPlace], unsound: &[&LimitInPlace]) -> u64 {
    let names = |limits: &[&LimitInPlace]| -> BTreeSet<_> {
        limits.iter().filter_map(|seen| Some(seen.record.as_ref()?.name.clone())).collect()
    };
    names(sound).difference(&names(unsound)).count() as u64
}

fn key(seen: &LimitInPlace) -> (&str, bool, &str) {
    let record = seen.record.as_ref();
    let is_back = record.is_some_and(|record| record.direction == Direction::Back);
    (record.map_or("", |record| &record.name), is_back, &seen.place.link.name)
}

/// The limit as JSON.
pub fn to_json(seen: &LimitInPlace) -> Value {
    let record = seen.record.as_ref();
    let arrivals = seen.arrivals;
    let rate = record.and_then(rate_of);
    let dropped = seen.dropped();
    let place = PlaceStats {
        waits_for: seen.gate(None).map(gate_name).map(String::from),
        delay_ns_max: arrivals.map(|arrivals| arrivals.delay_ns_max),
        ..place(record.map_or("", |record| &record.name), &seen.traffic, &dropped)
    };
    to_place(
        &place,
        json!({
            "name": record.map(|record| &record.name),
            "interface": seen.place.link.name,
            "netns": seen.place.netns.label(),
            "direction": record.map(|record| record.direction),
            "stage": match record.map(|record| record.stage) {
                Some(stage) if !seen.is_gone || stage == LimitStage::Making => json!(stage),
                _ if seen.is_gone => json!("gone"),
                _ => Value::Null,
            },
            "rate_bits_per_s": rate.map(Rate::bits_per_s),
            "burst_bytes": record.filter(|_| rate.is_some()).map(|record| record.burst_bytes),
            "units": {"delivered": "segments", "held": "packets as they wait", "dropped": "packets as they wait"},
            "held_over_rate_ns": rate.map(|rate| rate.ns_for(seen.traffic.waiting_bytes)),
            "held_ns": arrivals.map(|arrivals| arrivals.held_ns),
            "delay_ns": arrivals.map(|arrivals| if seen.traffic.waiting > 0 { arrivals.delay_ns } else { 0 }),
            "bypassed_packets": arrivals.map(|arrivals| arrivals.bypassed),
            "bypassed_bytes": arrivals.map(|arrivals| arrivals.bypassed_bytes),
            "senders": senders(seen).map(|senders| senders.iter().map(sender).collect::<Vec<_>>()),
            "marked": seen.counts.marked,
            "crowded": seen.counts.crowded,
            "leaves": [leaves(seen, HtbClassKind::Held), leaves(seen, HtbClassKind::Passing)],
            "classes": seen.record.iter().flat_map(|record| &record.classes).map(|of| class(seen, of)).collect::<Vec<_>>(),
            "files_before": record.map(|record| record.filters.len().saturating_sub(1)),
            "changed": changed(seen),
            "faults": seen.faults(),
        }),
    )
}

/// A queue of the kernel's as a place. The kernel does not count packets that come in, so their number is the sum of those that left, wait
/// and were dropped.
fn place(name: &str, traffic: &QueueTraffic, dropped: &[(&str, u64)]) -> PlaceStats {
    let sum: u64 = dropped.iter().map(|(_, packets)| packets).sum();
    let amount =
        |(reason, packets): &(&str, u64)| (reason.to_string(), Count { packets: *packets, bytes: 0 });
    let books = Books {
        accepted: Count { packets: traffic.packets + traffic.waiting + sum, bytes: 0 },
        delivered: Count { packets: traffic.packets, bytes: traffic.bytes },
        held: Count { packets: traffic.waiting, bytes: traffic.waiting_bytes },
        dropped: dropped.iter().map(amount).collect(),
    };
    PlaceStats::new(name, books)
}

/// The place as JSON, with its other fields; the kernel counts no bytes of the packets that it drops.
fn to_place(place: &PlaceStats, more: Value) -> Value {
    let mut json = place.to_json(more);
    (json["accepted_bytes"], json["dropped_bytes"]) = (Value::Null, Value::Null);
    json
}

/// The steering that was changed beside the queue, as JSON.
fn changed(seen: &LimitInPlace) -> Option<Value> {
    let behind = seen.steered_behind();
    match seen.changed_steering().filter(|changed| changed.is_ours) {
        Some(changed) => Some(json!({"rps_cpus": {"before": changed.before, "now": changed.now}})),
        None => (!behind.is_empty()).then(|| json!({"rps_cpus_behind": behind})),
    }
}

/// The rate that holds: of a limit that is open, none does.
fn rate_of(record: &Record) -> Option<Rate> {
    Rate::from_bits_per_s(record.rate_bits_per_s).filter(|_| record.stage != LimitStage::Opening)
}

/// The senders that are held at this moment; `None` where that cannot be told.
fn senders(seen: &LimitInPlace) -> Option<Vec<Sender>> {
    if seen.traffic.waiting == 0 {
        return Some(Vec::new());
    }
    senders::of(&seen.place.netns).ok()
}

fn sender(sender: &Sender) -> Value {
    json!({
        "pid": sender.pid,
        "command": sender.command,
        "sockets": sender.sockets,
        "bytes": sender.bytes,
    })
}

fn leaves(seen: &LimitInPlace, kind: HtbClassKind) -> Value {
    let (sum, waiting) = seen.leaves(None, kind);
    let (name, reason, dropped) = match kind {
        // The program drops those of which too many wait, before their leaf has them.
        HtbClassKind::Passing => ("passing", find::PASSING_FULL, sum.dropped + seen.counts.passing_full),
        _ => ("held", find::HELD_FULL, sum.dropped),
    };
    let place = place(name, &sum, &[(reason, dropped)]);
    to_place(&place, json!({"leaves": count(seen, kind), "leaves_waiting": waiting}))
}

/// The number of leaves of a kind.
fn count(seen: &LimitInPlace, kind: HtbClassKind) -> usize {
    seen.classes.iter().filter(|class| kind_of(class.number).is_some_and(|(_, of)| of == kind)).count()
}

fn class(seen: &LimitInPlace, class: &ClassRecord) -> Value {
    let (traffic, dropped) = seen.class(class);
    let classes = seen.record.as_ref().map_or(&[][..], |record| &record.classes);
    let parent = classes.iter().find(|parent| Some(parent.base) == class.parent);
    let waits_for = seen.gate(Some(class)).map(gate_name).map(String::from);
    let place = PlaceStats { waits_for, ..place(&class.name, &traffic, &dropped) };
    to_place(
        &place,
        json!({
            "parent": parent.map(|parent| &parent.name),
            "rate_bits_per_s": limited(class).then_some(class.rate_bits_per_s),
            "ceil_bits_per_s": limited(class).then_some(class.ceil_bits_per_s),
            "priority": class.priority,
            "is_going": class.is_going,
        }),
    )
}

fn gate_name(gate: HeldBy<'_>) -> &str {
    match gate {
        HeldBy::Limit(name) | HeldBy::Class(name) => name,
    }
}

/// The limit or the ceiling that packets wait for, in words.
fn waits_for(gate: Option<HeldBy<'_>>) -> String {
    match gate {
        Some(HeldBy::Limit(name)) => format!(", waits for limit {name}"),
        Some(HeldBy::Class(name)) => format!(", waits for class {name}'s ceiling"),
        None => String::new(),
    }
}

/// Returns whether a class is not the one that passes all limits.
fn limited(class: &ClassRecord) -> bool {
    class.base != FREE_BASE
}

/// A class as a line: its limits, its traffic and the packets that it holds.
fn line(seen: &LimitInPlace, class: &ClassRecord) -> String {
    let rate =
        |bits_per_s| Rate::from_bits_per_s(bits_per_s).map_or_else(String::new, |rate| rate.to_string());
    let (traffic, _) = seen.class(class);
    let is_open = seen.record.as_ref().is_some_and(|record| record.stage == LimitStage::Opening);
    let limits = match limited(class) {
        _ if is_open => "open".into(),
        true => format!("{} to {}", rate(class.rate_bits_per_s), rate(class.ceil_bits_per_s)),
        false => "past all limits".into(),
    };
    let going = if class.is_going { ", goes when it is empty" } else { "" };
    format!(
        "  class {}: {limits}{going}; sent {} ({}), holds {} ({}){}, dropped {}",
        class.name,
        human::plural(traffic.packets, "segment"),
        human::bytes(traffic.bytes),
        human::plural(traffic.waiting, "packet"),
        human::bytes(traffic.waiting_bytes),
        waits_for(seen.gate(Some(class))),
        human::count(traffic.dropped),
    )
}

/// The limit as text.
pub fn render(seen: &LimitInPlace) -> String {
    let mut text = String::new();
    let place = seen.place.describe();
    let Some(record) = &seen.record else {
        return format!("limit at {place}: {}\n", seen.unreadable_because());
    };
    let bypassed = seen.arrivals.map(|arrivals| {
        format!("{} ({})", human::plural(arrivals.bypassed, "packet"), human::bytes(arrivals.bypassed_bytes))
    });
    if seen.is_gone {
        let since = seen.seen_from.as_ref().zip(bypassed).filter(|_| record.stage != LimitStage::Making);
        let since =
            since.map(|(end, bypassed)| format!("; {bypassed} passed {end} since")).unwrap_or_default();
        let what = match record.stage {
            LimitStage::Making => format!("half made at {place}, without a queue"),
            _ => format!("gone from {place}"),
        };
        return format!("limit {}: {what}{since}\n{}", record.name, changed_lines(seen));
    }
    let rate = Rate::from_bits_per_s(record.rate_bits_per_s)
        .map_or_else(|| "nothing".into(), |rate| rate.to_string());
    let burst = size_text(record.burst_bytes);
    let does = match record.stage {
        LimitStage::Limiting => format!("{place} sends at most {rate}, burst {burst}"),
        LimitStage::Making => format!("{place} sends at most {rate}, burst {burst}, half made"),
        LimitStage::Opening => {
            format!("{place} is open, to be removed: nothing is limited, and --off again removes the queue")
        }
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "limit {}: {does}", record.name);
    let held = match rate_of(record) {
        Some(rate) if seen.traffic.waiting > 0 => {
            format!(", {} at the rate", human::duration(rate.ns_for(seen.traffic.waiting_bytes)))
        }
        _ => String::new(),
    };
    let [held_full, passing_full, priority, swap] = seen.dropped().map(|(_, packets)| human::count(packets));
    let _ = writeln!(
        text,
        "  sent {} ({}), holds {} ({}{held}){}",
        human::plural(seen.traffic.packets, "segment"),
        human::bytes(seen.traffic.bytes),
        human::plural(seen.traffic.waiting, "packet"),
        human::bytes(seen.traffic.waiting_bytes),
        waits_for(seen.gate(None)),
    );
    for class in &record.classes {
        let _ = writeln!(text, "{}", line(seen, class));
    }
    if record.filters.len() > 1 {
        let _ = writeln!(
            text,
            "  flows that had packets waiting when classes changed may stay in the class that they were in: the same command looks again, and \
             with --now moves them"
        );
    }
    for (name, kind) in
        [("with a socket, held", HtbClassKind::Held), ("without one, passing", HtbClassKind::Passing)]
    {
        let (sum, busy) = seen.leaves(None, kind);
        let _ = writeln!(
            text,
            "  {name}: {} sent, {} waiting in {busy} of {} leaves",
            human::plural(sum.packets, "segment"),
            human::plural(sum.waiting, "packet"),
            count(seen, kind)
        );
    }
    let _ = writeln!(
        text,
        "  dropped: {held_full} as a leaf was full, {passing_full} that passed and waited too long, {priority} that asked to pass by, \
         {swap} when it was set; {} marked",
        human::count(seen.counts.marked),
    );
    if let (Some(arrivals), Some(bypassed)) = (seen.arrivals, bypassed) {
        // A packet's stamp tells waits up to this.
        let or_more = if arrivals.delay_ns_max >= STAMPED_NS_MAX { " or more" } else { "" };
        let _ = writeln!(
            text,
            "  held for {}, the last packet for {}, the longest for {}{or_more}; {bypassed} left past the queue",
            human::duration(arrivals.held_ns),
            human::duration(arrivals.delay_ns),
            human::duration(arrivals.delay_ns_max),
        );
    }
    text.push_str(&held_now(&senders(seen).unwrap_or_default()));
    text.push_str(&changed_lines(seen));
    text
}

/// The lines on changes beside the queue, which are put back.
fn changed_lines(seen: &LimitInPlace) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if let Some(ChangedSteering { before, now, is_ours }) = seen.changed_steering() {
        let (before, now) = (before.join(" "), now.join(" "));
        let _ = match is_ours {
            true => {
                writeln!(text, "  changed until --off: rps_cpus at the other end, {before} before, {now} now")
            }
            false => {
                writeln!(text, "  rps_cpus at the other end is {now}, which somebody set since, and stays")
            }
        };
    }
    let behind = seen.steered_behind();
    if !behind.is_empty() {
        let _ = writeln!(
            text,
            "  changed until --off: rps_cpus at the other ends of {}, off before",
            behind.join(", ")
        );
    }
    text
}

/// The senders that are held at this moment, the first few by name.
fn held_now(senders: &[Sender]) -> String {
    const NAMED: usize = 5;
    if senders.is_empty() {
        return String::new();
    }
    let named = senders.iter().take(NAMED).map(|sender| {
        let bytes = human::bytes(sender.bytes);
        match sender.pid {
            Some(pid) => format!("{} ({pid}) {bytes}", output::harmless_name(&sender.command)),
            None => format!("closed sockets {bytes}"),
        }
    });
    let more = senders.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("  held now: {}{more}\n", named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_held_are_named() {
        let sender = |pid, bytes| Sender { pid, command: "iperf".into(), sockets: 1, bytes };
        assert_eq!(held_now(&[]), "");
        assert_eq!(
            held_now(&[sender(Some(7), 213_000), sender(None, 1)]),
            "  held now: iperf (7) 213 kB, closed sockets 1 B\n"
        );
        let many: Vec<_> = (0..7).map(|pid| sender(Some(pid), 1)).collect();
        assert!(held_now(&many).ends_with(", and 2 more\n"));
        let forger = Sender { command: "\u{1b}[1mEVIL\nlimit".into(), ..sender(Some(8), 1) };
        assert_eq!(held_now(&[forger]), "  held now: ?[1mEVIL?limit (8) 1 B\n");
    }
}
