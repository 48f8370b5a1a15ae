//! A security association's counters, as `ip -s xfrm state` has them, and never its key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_ipsec::lifetime::{Age, Limits};
use weir_path::esp::RunningAssociation;

/// One security association.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AssociationStats {
    /// Its name.
    pub name: String,
    /// `in` or `out`.
    pub direction: String,
    /// The address that its packets come from.
    pub source: String,
    /// The address that its packets go to.
    pub destination: String,
    /// The security parameter index.
    pub spi: u32,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// The algorithm.
    pub algorithm: String,
    /// True if sequence numbers have 64 bits.
    pub extended: bool,
    /// The replay window of an inbound one.
    pub window: Option<u32>,
    /// The ports of its UDP.
    pub udp_ports: Option<[u16; 2]>,
    /// `alive`, `soft` when a successor is due, `expired`, or `exhausted` when all sequence numbers are used.
    pub age: String,
    /// The time for which the association has run, in nanoseconds.
    pub since_ns: u64,
    /// The highest sequence number that was sent, or proven.
    pub sequence: u64,
    /// Packets that passed.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keepalives that it sent beside these.
    pub keepalives: u64,
    /// The MTU of its way that routers told in the last ten minutes, in bytes.
    pub path_mtu_bytes: Option<u16>,
    /// Packets that it dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// The limits after which a successor is due.
    pub soft: LimitsStats,
    /// The limits after which no packet passes any more.
    pub hard: LimitsStats,
}

/// An association that is not alive: a limit of its life is reached, or its numbers are used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgedAssociation {
    /// Its name.
    pub name: String,
    /// The security parameter index.
    pub spi: u32,
    /// `soft`, `expired` or `exhausted`, as in [`AssociationStats::age`].
    pub age: &'static str,
}

impl AgedAssociation {
    /// The association as it is now; none if it is alive.
    pub fn of(running: &RunningAssociation, now_ns: u64) -> Option<AgedAssociation> {
        let age = age_word(running, now_ns);
        let plan = running.plan();
        (age != ALIVE).then(|| AgedAssociation { name: plan.name.clone(), spi: plan.spi, age })
    }
}

/// The word for an association that no limit of its life concerns.
const ALIVE: &str = "alive";

fn age_word(running: &RunningAssociation, now_ns: u64) -> &'static str {
    match running.age(now_ns) {
        _ if running.is_exhausted() => "exhausted",
        Age::Alive => ALIVE,
        Age::Soft => "soft",
        Age::Expired => "expired",
    }
}

/// Limits of an association; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsStats {
    /// The time since it began, in nanoseconds.
    pub time_ns: Option<u64>,
    /// The bytes that passed.
    pub bytes: Option<u64>,
    /// The packets that passed.
    pub packets: Option<u64>,
}

impl AssociationStats {
    /// The counters of an association as it is now.
    pub fn of(running: &RunningAssociation, now_ns: u64) -> AssociationStats {
        let (plan, usage) = (running.plan(), running.usage());
        let limits = |limits: &Limits| LimitsStats {
            time_ns: limits.time_ns,
            bytes: limits.bytes,
            packets: limits.packets,
        };
        let dropped = running.dropped().occurred();
        let [source, destination] = running.ends();
        AssociationStats {
            name: plan.name.clone(),
            direction: if plan.is_inbound { "in" } else { "out" }.into(),
            source: source.to_string(),
            destination: destination.to_string(),
            spi: plan.spi,
            mode: if plan.is_tunnel { "tunnel" } else { "transport" }.into(),
            algorithm: plan.algorithm.name().into(),
            extended: plan.is_extended,
            window: plan.is_inbound.then_some(plan.window),
            udp_ports: running.udp_ports(),
            age: age_word(running, now_ns).into(),
            since_ns: usage.lived_ns(now_ns),
            sequence: running.highest(),
            packets: usage.packets,
            bytes: usage.bytes,
            keepalives: running.keepalives().packets,
            path_mtu_bytes: running.path_mtu_bytes(now_ns),
            dropped: dropped.map(|(reason, count)| (reason.name().to_string(), count.packets)).collect(),
            soft: limits(&plan.lifetime.soft),
            hard: limits(&plan.lifetime.hard),
        }
    }
}
