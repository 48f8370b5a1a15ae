//! The terms of an event, and the check that missing datagrams are accounted for.
//!
//! ```text
//! missing <= shown + bound
//! ```
//!
//! `shown` is the growth of the counters that `weir stat` shows. `bound` is 0, or the packets that a ring holds, or for a hole the packets
//! that were under way when it began and those that were sent until traffic flowed again: no others can have been in a process that was
//! killed, or an interface that went down or was swapped.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::chaos::plan::{At, Event, Kind};

/// The loss that an event may cause, beyond the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    None,
    /// Packets that a ring of the kernel's holds when it is taken apart.
    Ring,
    /// Packets under way when it began, and packets sent until traffic flowed again.
    Hole,
}

/// Slots of a veth's ring.
const RING_PACKETS: u64 = 256;

/// The terms of an event.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// True if the wire may end by itself, in one sentence.
    pub may_end: bool,
    /// The loss that it may cause.
    pub loss: Loss,
    /// The time within which the wire must have put the change right, if that is its business.
    pub mended_within: Duration,
    /// The time within which traffic must flow again.
    pub flows_within: Duration,
}

impl Terms {
    /// The terms of an event.
    pub fn of(event: &Event) -> Terms {
        use Kind::*;
        let second = Duration::from_secs(1);
        let at_host = event.at.is_some_and(At::is_of_host);
        let (may_end, loss, mended_within) = match event.kind {
            KillDaemon | KillBoth | NoProcessIds => (false, Loss::Hole, Duration::ZERO),
            StopDaemon => (true, Loss::Hole, Duration::ZERO),
            KillGuardian => (true, Loss::None, Duration::ZERO),
            Move | DownUp => (event.kind == Move, Loss::Hole, Duration::ZERO),
            Checksums | Qdisc => (false, Loss::Hole, second),
            Queues => (true, Loss::Ring, Duration::ZERO),
            Gro => (false, if at_host { Loss::Ring } else { Loss::None }, Duration::ZERO),
            Mtu | Rename | Ruleset | StopGuardian | FullRun => (false, Loss::None, Duration::ZERO),
        };
        let flows_within = if event.kind == KillBoth { 2 * second } else { second };
        Terms { may_end, loss, mended_within, flows_within }
    }
}

/// Datagrams of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Datagrams that did not arrive.
    pub missing: u64,
    /// The growth of the wire's counters of lost packets.
    pub shown: u64,
    /// Datagrams under way when it began.
    pub under_way: u64,
    /// Datagrams sent from then until traffic flowed again.
    pub sent: u64,
}

impl Account {
    /// The bound of a loss.
    pub fn bound(&self, loss: Loss) -> u64 {
        match loss {
            Loss::None => 0,
            Loss::Ring => RING_PACKETS,
            Loss::Hole => self.under_way + self.sent,
        }
    }

    /// The number of missing datagrams for which there is no account.
    pub fn unexplained(&self, loss: Loss) -> u64 {
        self.missing.saturating_sub(self.shown + self.bound(loss))
    }

    /// The account as it is printed.
    pub fn describe(&self, loss: Loss) -> impl fmt::Display {
        let Account { missing, shown, under_way, sent } = *self;
        match loss {
            Loss::None => format!("{missing} missing, {shown} in counters"),
            Loss::Ring => format!("{missing} missing, {shown} in counters, {RING_PACKETS} at most in a ring"),
            Loss::Hole => {
                format!(
                    "{missing} missing, {shown} in counters, at most {under_way} under way and {sent} sent meanwhile"
                )
            }
        }
    }
}

/// Packets that a wire says it or the kernel around it lost, by counter.
pub type Losses = BTreeMap<String, u64>;

/// The losses in `weir stat --json`.
pub fn losses(stat: &Value) -> Losses {
    let dropped = stat["totals"]["dropped"].as_object().into_iter().flatten();
    let dropped = dropped.map(|(reason, amount)| (reason.clone(), amount.as_u64()));
    let ports = stat["ports"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let of_ports = ports.flat_map(|port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let losses =
            port.iter().filter(|(counter, _)| counter.contains("dropped") || counter.contains("lost"));
        losses.map(move |(counter, count)| (format!("{name} {counter}"), count.as_u64()))
    });
    dropped.chain(of_ports).filter_map(|(counter, count)| Some((counter, count?))).collect()
}

/// The growth of each counter; one that has begun anew has not grown.
pub fn grown(before: &Losses, after: &Losses) -> Losses {
    let grown = |(counter, &count): (&String, &u64)| {
        let more = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
        (more > 0).then(|| (counter.clone(), more))
    };
    after.iter().filter_map(grown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_counter_and_no_bound_covers_is_unexplained() {
        let account = Account { missing: 300, shown: 40, under_way: 100, sent: 150 };
        assert_eq!(account.unexplained(Loss::None), 260);
        assert_eq!(account.unexplained(Loss::Ring), 4);
        assert_eq!(account.unexplained(Loss::Hole), 10);
        assert_eq!(Account { missing: 290, ..account }.unexplained(Loss::Hole), 0);
    }

    #[test]
    fn all_losses_of_a_wire_are_found_and_what_they_grew_by() {
        let stat = |dropped: u64, lost: u64| {
            serde_json::json!({
                "totals": {"accepted": 9, "dropped": {"too-long": dropped}, "dropped_bytes": {"too-long": 9000}},
                "ports": [{"name": "wa", "sender_queue_dropped": 5, "lost_while_down": lost, "sender_queue_packets": 100}],
            })
        };
        let (before, after) = (losses(&stat(3, 8)), losses(&stat(4, 7)));
        assert_eq!(before.values().sum::<u64>(), 16);
        assert_eq!(grown(&before, &after), Losses::from([("too-long".to_string(), 1)]));
        assert!(losses(&Value::Null).is_empty());
    }
}
