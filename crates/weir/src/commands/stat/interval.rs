//! A line an interval, as `netstat -iw 1` prints: the packets that came in and went out of each wire, topology and limit since the line
//! before.
//!
//! ```text
//! in   packets, bytes  accepted, all directions together
//!      errs            lost by the kernel before Weir had them: 0, or it is a fault
//!      drops           dropped by the senders' qdisc: forwarded traffic, which no sender's buffer bounds
//! out  packets, bytes  delivered
//!      errs            dropped because of the packet or the device
//!      drops           dropped by a rule: every other reason
//! held, blk%           inside now; the part of the interval for which the senders of the slower direction were blocked
//! ```
//!
//! Nobody counts the packets that come in to a limit in place: `-`, or null. Those that go out are counted as the receiver gets them, and
//! it is blocked while a packet waits, where that is seen.
//!
//! Limits: a wire that has come up since the last line counts from its start, a limit from when it was made; one that has gone has no line,
//! and is said to have gone once.

use serde_json::{Value, json};
use weir_core::drops::DropReason;
use weir_port::limit::find::LimitInPlace;
use weir_port::limit::record::Direction;
use weir_run::stats::{PortStats, Snapshot, StageStats, WireStats};

use crate::human;

/// The reasons that are no rule's.
const ERRORS: [DropReason; 4] =
    [DropReason::DeviceRefused, DropReason::PortGone, DropReason::TooLong, DropReason::Malformed];

/// The counters of everything at one time.
pub struct Reading {
    snapshot: Snapshot,
    limits: Vec<LimitSeen>,
    now_ns: u64,
}

/// A limit in place at that time, with its counters so far.
#[derive(Clone, PartialEq, Eq)]
struct LimitSeen {
    /// The place of the limit, which no other has: the network namespace and the number of the interface there.
    place: (u64, u32),
    /// Its name, with `back` if it limits packets to the programs.
    name: String,
    output: Flow,
    held_packets: u64,
    blocked_ns: Option<u64>,
}

impl LimitSeen {
    fn of(seen: &LimitInPlace) -> Option<LimitSeen> {
        let record = seen.record.as_ref()?;
        let back = if record.direction == Direction::Back { " back" } else { "" };
        let drops = seen.dropped().iter().map(|(_, packets)| packets).sum();
        let (packets, bytes) = (seen.traffic.packets, seen.traffic.bytes);
        Some(LimitSeen {
            place: (seen.place.netns.inode(), seen.place.link.ifindex),
            name: format!("{}{back}", record.name),
            output: Flow { packets, errors: 0, drops, bytes },
            held_packets: seen.traffic.waiting,
            blocked_ns: seen.arrivals.map(|arrivals| arrivals.held_ns),
        })
    }
}

impl Reading {
    /// The reading of these, at this time.
    pub fn new(snapshot: Snapshot, limits: &[LimitInPlace], now_ns: u64) -> Reading {
        Reading { snapshot, limits: limits.iter().filter_map(LimitSeen::of).collect(), now_ns }
    }

    /// Returns whether there was nothing.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_empty() && self.limits.is_empty()
    }
}

/// The kind of thing that a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Wire,
    Limit,
}

/// The traffic of one of them in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    subject: Subject,
    name: String,
    interval_ns: u64,
    /// None where nobody counts it.
    input: Option<Flow>,
    output: Flow,
    held_packets: u64,
    /// None where nobody sees it.
    blocked_ns: Option<u64>,
}

/// The traffic one way, in an interval or in all so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    packets: u64,
    errors: u64,
    drops: u64,
    bytes: u64,
}

impl Flow {
    fn since(self, before: Flow) -> Flow {
        Flow {
            packets: self.packets.saturating_sub(before.packets),
            errors: self.errors.saturating_sub(before.errors),
            drops: self.drops.saturating_sub(before.drops),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    fn to_json(self) -> Value {
        json!({ "packets": self.packets, "errors": self.errors, "drops": self.drops, "bytes": self.bytes })
    }
}

/// The traffic between two readings, a line for each wire and then each limit of the later one.
pub fn between(before: &Reading, after: &Reading) -> Vec<Line> {
    let mut lines = of_wires(&before.snapshot, &after.snapshot);
    lines.extend(after.limits.iter().map(|seen| {
        // One that was removed and set again meanwhile counts from when it was made.
        let is_same = |old: &&LimitSeen| old.place == seen.place && old.output.bytes <= seen.output.bytes;
        let old = before.limits.iter().find(is_same);
        let old_blocked_ns = old.and_then(|old| old.blocked_ns).unwrap_or_default();
        let interval_ns = after.now_ns.saturating_sub(before.now_ns);
        Line {
            subject: Subject::Limit,
            name: seen.name.clone(),
            interval_ns,
            input: None,
            output: seen.output.since(old.map_or(Flow::default(), |old| old.output)),
            held_packets: seen.held_packets,
            // The counters are read a little before the clock.
            blocked_ns: seen.blocked_ns.map(|ns| ns.saturating_sub(old_blocked_ns).min(interval_ns)),
        }
    }));
    lines
}

/// The names of those that were there at the earlier reading alone. A limit that has another name by now is there.
pub fn gone(before: &Reading, after: &Reading) -> Vec<String> {
    let is_up = |name: &str| after.snapshot.each().any(|(_, wire, _)| wire.name == name);
    let stands =
        |old: &LimitSeen| after.limits.iter().any(|seen| seen.place == old.place || seen.name == old.name);
    let wires = before.snapshot.each().map(|(_, wire, _)| wire.name.clone()).filter(|name| !is_up(name));
    wires.chain(before.limits.iter().filter(|old| !stands(old)).map(|old| old.name.clone())).collect()
}

fn of_wires(before: &Snapshot, after: &Snapshot) -> Vec<Line> {
    let lines = after.each().map(|(_, wire, ports)| {
        // A wire of the same name that came up later is another wire.
        let same = |old: &WireStats| old.name == wire.name && old.worker.since_ns == wire.worker.since_ns;
        let old = before.each().map(|(_, old, ports)| (old, ports)).find(|(old, _)| same(old));
        let (old_input, old_output) = old.map_or(Default::default(), |(old, ports)| flows(old, ports));
        let (input, output) = flows(wire, ports);
        let start_ns = old.map_or(wire.worker.since_ns, |(old, _)| old.worker.now_ns);
        let blocked_ns = wire.classes.iter().enumerate().map(|(index, class)| {
            let before_ns = old
                .and_then(|(old, _)| old.classes.get(index))
                .map_or(0, |class| class.place.blocked_ns.unwrap_or_default());
            class.place.blocked_ns.unwrap_or_default().saturating_sub(before_ns)
        });
        Line {
            subject: Subject::Wire,
            name: wire.name.clone(),
            interval_ns: wire.worker.now_ns.saturating_sub(start_ns),
            input: Some(input.since(old_input)),
            output: output.since(old_output),
            held_packets: wire.classes.iter().map(|class| class.place.books.held.packets).sum::<u64>()
                + wire.stages.iter().map(|stage| stage.ended().held.packets).sum::<u64>(),
            blocked_ns: Some(blocked_ns.max().unwrap_or(0)),
        }
    });
    lines.collect()
}

fn flows(wire: &WireStats, ports: &[PortStats]) -> (Flow, Flow) {
    let mut input = Flow {
        errors: ports.iter().map(|port| port.kernel_dropped).sum(),
        drops: ports.iter().map(|port| port.sender_queue_dropped + port.forwarded_dropped).sum(),
        ..Flow::default()
    };
    let mut output = Flow::default();
    for class in &wire.classes {
        output.packets += class.place.books.delivered.packets;
        output.bytes += class.place.books.delivered.bytes;
    }
    // A packet that a stage ends comes to no direction.
    let ended: Vec<_> = wire.stages.iter().map(StageStats::ended).collect();
    for books in wire.classes.iter().map(|class| &class.place.books).chain(&ended) {
        input.packets += books.accepted.packets;
        input.bytes += books.accepted.bytes;
        for (reason, amount) in &books.dropped {
            let is_error = ERRORS.iter().any(|error| error.name() == reason);
            *if is_error { &mut output.errors } else { &mut output.drops } += amount.packets;
        }
    }
    (input, output)
}

/// The two lines above the columns, for names that are at most so long.
pub fn header(name_width: usize) -> String {
    const COLUMNS: &str = "  packets  errs drops        bytes";
    let groups = format!("{:name_width$} {:^34} {:^34}", "", "input", "output");
    let columns = format!("{:name_width$} {COLUMNS} {COLUMNS} {:>7} {:>5}", "name", "held", "blk%");
    format!("{}\n{columns}", groups.trim_end())
}

impl Line {
    /// The line under [`header`].
    pub fn to_text(&self, name_width: usize) -> String {
        let flow = |flow: Flow| {
            format!("{:>9} {:>5} {:>5} {:>12}", flow.packets, flow.errors, flow.drops, flow.bytes)
        };
        let blocked = self.blocked_ns.map_or("-".into(), |ns| human::percent(ns, self.interval_ns));
        let input = self.input.map_or_else(|| format!("{:>9} {:>5} {:>5} {:>12}", "-", "-", "-", "-"), flow);
        format!(
            "{:name_width$} {} {} {:>7} {:>5}",
            self.name,
            input,
            flow(self.output),
            self.held_packets,
            blocked.trim_end_matches(" %")
        )
    }

    /// The line as one JSON object.
    pub fn to_json(&self) -> Value {
        let subject = match self.subject {
            Subject::Wire => "wire",
            Subject::Limit => "limit",
        };
        json!({
            subject: self.name,
            "interval_ns": self.interval_ns,
            "in": self.input.map(Flow::to_json),
            "out": self.output.to_json(),
            "held": self.held_packets,
            "blocked_ns": self.blocked_ns,
        })
    }

    /// The length of its name, in characters.
    pub fn name_width(&self) -> usize {
        self.name.chars().count()
    }
}

#[cfg(test)]
mod tests {
    use weir_core::drops::Count;

    use super::*;
    use crate::commands::stat::sample::{idle, snapshot};

    /// The sample one second later, with this much more of everything.
    fn later() -> Reading {
        reading(later_snapshot())
    }

    fn reading(snapshot: Snapshot) -> Reading {
        Reading::new(snapshot, &[], 0)
    }

    fn later_snapshot() -> Snapshot {
        let mut after = snapshot();
        after.wires[0].worker.now_ns += 1_000_000_000;
        let class = &mut after.wires[0].classes[0];
        class.place.books.accepted.packets += 16_512;
        class.place.books.accepted.bytes += 25_000_000;
        class.place.books.delivered.packets += 16_500;
        class.place.books.delivered.bytes += 24_981_000;
        class.place.books.dropped.entry("codel".into()).or_default().packets += 4;
        class.place.books.dropped.entry("too-long".into()).or_default().packets += 8;
        class.place.books.held.packets = 300;
        *class.place.blocked_ns.as_mut().unwrap() += 876_500_000;
        after.ports[1].sender_queue_dropped += 5;
        after
    }

    #[test]
    fn a_line_of_differences_under_netstats_columns() {
        let lines = between(&reading(snapshot()), &later());
        let text = format!("{}\n{}", header(4), lines[0].to_text(4));
        let expected = [
            "                   input                              output",
            "name   packets  errs drops        bytes   packets  errs drops        bytes    held  blk%",
            "wa       16512     0     5     25000000     16500     8     4     24981000     300  87.7",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_line_has_the_packets_that_a_stage_has_ended() {
        let before = snapshot();
        let mut after = later_snapshot();
        let mut stage = StageStats { consumed: 10, consumed_bytes: 600, ..StageStats::default() };
        stage.place.books.delivered = Count { packets: 110, bytes: 66_000 };
        stage.place.books.held = Count { packets: 3, bytes: 300 };
        stage.place.books.dropped.insert("no-route".into(), Count { packets: 20, bytes: 2_000 });
        stage.place.books.dropped.insert("malformed".into(), Count { packets: 1, bytes: 40 });
        after.wires[0].stages.push(stage);
        let line = &between(&reading(before), &reading(after))[0];
        let input = line.input.map(|input| (input.packets, input.bytes));
        assert_eq!(input, Some((16_512 + 34, 25_000_000 + 600 + 300 + 2_040)));
        let Flow { packets, errors, drops, .. } = line.output;
        assert_eq!((packets, errors, drops, line.held_packets), (16_500, 8 + 1, 4 + 20, 303));
    }

    #[test]
    fn the_same_as_json() {
        let line = between(&reading(snapshot()), &later())[0].to_json();
        assert_eq!(
            line.to_string(),
            r#"{"blocked_ns":876500000,"held":300,"in":{"bytes":25000000,"drops":5,"errors":0,"packets":16512},"interval_ns":1000000000,"out":{"bytes":24981000,"drops":4,"errors":8,"packets":16500},"wire":"wa"}"#
        );
    }

    #[test]
    fn what_is_there_no_more_has_gone() {
        let mut more = snapshot();
        more.merge(idle());
        let names = gone(&reading(more), &reading(snapshot()));
        assert_eq!(names, [idle().wires[0].name.as_str()]);
        assert!(gone(&reading(snapshot()), &later()).is_empty());
    }

    #[test]
    fn a_wire_that_came_up_since_counts_from_its_start() {
        let mut after = snapshot();
        after.merge(idle());
        let came_in = |lines: &[Line], index: usize| lines[index].input.map(|input| input.packets);
        let lines = of_wires(&snapshot(), &after);
        assert_eq!(lines[0].input, Some(Flow::default()));
        assert_eq!((came_in(&lines, 1), lines[1].name.as_str()), (Some(20), "office"));
        after.wires[0].worker.since_ns += 1;
        let lines = of_wires(&snapshot(), &after);
        assert_eq!(came_in(&lines, 0), Some(1_234_567 + 12_345), "another of that name");
        assert!(of_wires(&after, &Snapshot::default()).is_empty(), "one that has gone has no line");
    }

    #[test]
    fn a_limit_has_a_line_without_what_nobody_counts() {
        let seen = |packets, blocked_ns| LimitSeen {
            place: (4_026_531_840, 2),
            name: "veth-a".into(),
            output: Flow { packets, bytes: packets * 1000, ..Flow::default() },
            held_packets: 7,
            blocked_ns,
        };
        let reading = |limits, now_ns| Reading { snapshot: Snapshot::default(), limits, now_ns };
        let before = reading(vec![seen(10, Some(0))], 0);
        let lines = between(&before, &reading(vec![seen(30, Some(500_000_000))], 1_000_000_000));
        let expected =
            "veth-a         -     -     -            -        20     0     0        20000       7  50.0";
        assert_eq!(lines[0].to_text(6), expected);
        assert_eq!(
            lines[0].to_json().to_string(),
            r#"{"blocked_ns":500000000,"held":7,"in":null,"interval_ns":1000000000,"limit":"veth-a","out":{"bytes":20000,"drops":0,"errors":0,"packets":20}}"#
        );
        let again = between(&before, &reading(vec![seen(3, Some(0))], 1_000_000_000));
        assert_eq!(again[0].output.packets, 3, "it was made anew");
        let renamed = LimitSeen { name: "veth".into(), ..seen(30, None) };
        assert!(gone(&before, &reading(vec![renamed], 1_000_000_000)).is_empty());
        assert_eq!(gone(&before, &reading(Vec::new(), 1_000_000_000)), ["veth-a"]);
        let unseen = between(&before, &reading(vec![seen(30, None)], 1_000_000_000));
        assert!(unseen[0].to_text(6).ends_with(" 7     -"), "{}", unseen[0].to_text(6));
    }
}
