//! The one line that is printed when the program of `weir run` has ended.

use weir_core::rate::Rate;
use weir_port::unsent::Unsent;
use weir_run::stats::Snapshot;

use super::rest::Rest;
use crate::commands::drops;
use crate::human::{bytes, count, duration, plural};

/// Sums a run up, by the last limit, which may not be the first: what the program sent, at which rate over all its time, and whether anything was lost.
pub fn line(limit: Rate, last: &Snapshot, rest: &Rest, elapsed_ns: u64) -> String {
    let Some([there, back]) = last.wires.first().map(|wire| wire.classes.as_slice()) else {
        return format!("{limit}: nothing was counted");
    };
    let limit = there.rate_bits_per_s.and_then(Rate::from_bits_per_s).unwrap_or(limit);
    let sent = there.books.delivered;
    format!(
        "{limit}: sent {} ({}) at {} for {}, received {}, senders blocked {}, dropped {}",
        plural(sent.packets, "packet"),
        bytes(sent.bytes),
        rate(sent.bytes, elapsed_ns),
        duration(elapsed_ns),
        count(back.books.delivered.packets),
        duration(there.blocked_ns),
        dropped(last, rest.lost(last))
    )
}

/// `none`, or how many and why: by the rules of the wire, by the kernel before the wire had them, or with the network, which ended
/// before they had left. What closed TCP connections had to send is no packets yet.
fn dropped(last: &Snapshot, (unsent, tcp): (u64, Unsent)) -> String {
    let packets = drops::text(last, unsent);
    if tcp.sockets == 0 {
        return packets;
    }
    let tcp =
        format!("{} of {} not acknowledged", bytes(tcp.bytes), plural(tcp.sockets, "closed TCP connection"));
    if packets == drops::NONE { tcp } else { format!("{packets}; {tcp}") }
}

/// A rate in tc's units, to a tenth.
fn rate(total_bytes: u64, elapsed_ns: u64) -> String {
    let tenths = u128::from(total_bytes) * 80_000_000_000 / u128::from(elapsed_ns.max(1));
    let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
    let (worth, unit) = units.into_iter().find(|(worth, _)| tenths >= worth * 10).unwrap_or((1, "bit"));
    let tenths = (tenths + worth / 2) / worth;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(drops: bool) -> Snapshot {
        let class = |packets: u64| {
            json!({
                "name": "a->b", "accepted": packets, "delivered": packets, "held": 0, "dropped": {},
                "accepted_bytes": packets * 1500, "delivered_bytes": packets * 1500, "held_bytes": 0,
                "dropped_bytes": {}, "empty_wakes": 0, "blocked_ns": 4_900_000_000u64, "delay_ns_p50": 0, "delay_ns_p99": 0,
                "delay_ns_max": 0, "empty_polls": 0, "transmit_busy": 0
            })
        };
        let port = |dropped: u64| {
            json!({
                "name": "a", "sender": "b", "queues": 64, "poller": "socket", "sender_queue_packets": 0,
                "sender_queue_dropped": dropped, "kernel_dropped": 0
            })
        };
        let dropped = if drops { json!({ "too-long": 2 }) } else { json!({}) };
        let value = json!({
            "wires": [{
                "name": "run-1", "ports": ["a", "b"], "classes": [class(81_380), class(1_100)],
                "frames": { "total": 0, "free": 0, "lent": 0, "held": 0 },
                "worker": { "busy_passes": 0, "parks": 0, "kicks": 0, "wake_cost_ns": 0, "now_ns": 0, "since_ns": 0 }
            }],
            "ports": [port(0), port(if drops { 1_000 } else { 0 })],
            "workstreams": [],
            "totals": {
                "accepted": 0, "delivered": 0, "held": 0, "dropped": dropped,
                "accepted_bytes": 0, "delivered_bytes": 0, "held_bytes": 0, "dropped_bytes": {}
            }
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_run_in_one_line() {
        let limit: Rate = "200mbit".parse().unwrap();
        let none = Rest::default();
        assert_eq!(
            line(limit, &snapshot(false), &none, 5_000_000_000),
            "200mbit: sent 81,380 packets (122 MB) at 195.3mbit for 5.00 s, received 1,100, senders blocked 4.90 s, \
             dropped none"
        );
        assert!(
            line(limit, &snapshot(true), &none, 1).ends_with("dropped 1,002: 1,000 sender-queue, 2 too-long")
        );
        assert_eq!(line(limit, &Snapshot::default(), &none, 1), "200mbit: nothing was counted");
    }

    #[test]
    fn what_was_lost_with_the_network_is_said() {
        let tcp = Unsent { sockets: 1, bytes: 325_000 };
        assert_eq!(dropped(&snapshot(false), (75, Unsent::default())), "75: 75 unsent");
        assert_eq!(dropped(&snapshot(false), (0, tcp)), "325 kB of 1 closed TCP connection not acknowledged");
        assert!(
            dropped(&snapshot(true), (1, tcp))
                .ends_with("1 unsent; 325 kB of 1 closed TCP connection not acknowledged")
        );
    }

    #[test]
    fn rates_have_the_unit_that_fits() {
        for (bytes, text) in
            [(0, "0.0bit"), (100, "800.0bit"), (1_000, "8.0kbit"), (124_999_999, "1000.0mbit")]
        {
            assert_eq!(rate(bytes, 1_000_000_000), text);
        }
        assert_eq!(rate(1, 0), "8.0gbit");
    }
}
