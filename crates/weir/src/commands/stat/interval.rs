//! A line an interval, as `netstat -iw 1` prints: what came in and went out of each wire since the line before.
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
//! Limits: a wire that has come up since the last line counts from its start, one that has gone has no line.

use serde_json::{Value, json};
use weir_core::drops::DropReason;
use weir_run::stats::{PortStats, Snapshot, WireStats};

use crate::human;

/// The reasons that are no rule's.
const ERRORS: [DropReason; 4] =
    [DropReason::DeviceRefused, DropReason::PortGone, DropReason::TooLong, DropReason::Malformed];

/// What one wire did in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    wire: String,
    interval_ns: u64,
    input: Flow,
    output: Flow,
    held_packets: u64,
    blocked_ns: u64,
}

/// One way through, or all of it so far.
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

/// What happened between two snapshots, a line for each wire of the later one.
pub fn between(before: &Snapshot, after: &Snapshot) -> Vec<Line> {
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
            wire: wire.name.clone(),
            interval_ns: wire.worker.now_ns.saturating_sub(start_ns),
            input: input.since(old_input),
            output: output.since(old_output),
            held_packets: wire.classes.iter().map(|class| class.place.books.held.packets).sum(),
            blocked_ns: blocked_ns.max().unwrap_or(0),
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
        input.packets += class.place.books.accepted.packets;
        input.bytes += class.place.books.accepted.bytes;
        output.packets += class.place.books.delivered.packets;
        output.bytes += class.place.books.delivered.bytes;
        for (reason, amount) in &class.place.books.dropped {
            let is_error = ERRORS.iter().any(|error| error.name() == reason);
            *if is_error { &mut output.errors } else { &mut output.drops } += amount.packets;
        }
    }
    (input, output)
}

/// The two lines above the columns, for wires whose names are at most so long.
pub fn header(name_width: usize) -> String {
    const COLUMNS: &str = "  packets  errs drops        bytes";
    let groups = format!("{:name_width$} {:^34} {:^34}", "", "input", "output");
    let columns = format!("{:name_width$} {COLUMNS} {COLUMNS} {:>7} {:>5}", "wire", "held", "blk%");
    format!("{}\n{columns}", groups.trim_end())
}

impl Line {
    /// The line under [`header`].
    pub fn to_text(&self, name_width: usize) -> String {
        let flow = |flow: Flow| {
            format!("{:>9} {:>5} {:>5} {:>12}", flow.packets, flow.errors, flow.drops, flow.bytes)
        };
        let blocked = human::percent(self.blocked_ns, self.interval_ns);
        format!(
            "{:name_width$} {} {} {:>7} {:>5}",
            self.wire,
            flow(self.input),
            flow(self.output),
            self.held_packets,
            blocked.trim_end_matches(" %")
        )
    }

    /// The same as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "wire": self.wire,
            "interval_ns": self.interval_ns,
            "in": self.input.to_json(),
            "out": self.output.to_json(),
            "held": self.held_packets,
            "blocked_ns": self.blocked_ns,
        })
    }

    /// How long the wire's name is.
    pub fn name_width(&self) -> usize {
        self.wire.chars().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::sample::{idle, snapshot};

    /// The sample one second later, with this much more of everything.
    fn later() -> Snapshot {
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
        let lines = between(&snapshot(), &later());
        let text = format!("{}\n{}", header(4), lines[0].to_text(4));
        let expected = [
            "                   input                              output",
            "wire   packets  errs drops        bytes   packets  errs drops        bytes    held  blk%",
            "wa       16512     0     5     25000000     16500     8     4     24981000     300  87.7",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_same_as_json() {
        let line = between(&snapshot(), &later())[0].to_json();
        assert_eq!(
            line.to_string(),
            r#"{"blocked_ns":876500000,"held":300,"in":{"bytes":25000000,"drops":5,"errors":0,"packets":16512},"interval_ns":1000000000,"out":{"bytes":24981000,"drops":4,"errors":8,"packets":16500},"wire":"wa"}"#
        );
    }

    #[test]
    fn a_wire_that_came_up_since_counts_from_its_start() {
        let mut after = snapshot();
        after.merge(idle());
        let lines = between(&snapshot(), &after);
        assert_eq!(lines[0].input, Flow::default());
        assert_eq!((lines[1].input.packets, lines[1].wire.as_str()), (20, "office"));
        after.wires[0].worker.since_ns += 1;
        assert_eq!(between(&snapshot(), &after)[0].input.packets, 1_234_567 + 12_345, "another of that name");
        assert!(between(&after, &Snapshot::default()).is_empty(), "one that has gone has no line");
    }
}
