//! The packets that were dropped from a start to an end, in words.

use std::collections::BTreeMap;

use weir_run::stats::Snapshot;

use crate::human::count;

/// The word for no drops.
pub const NONE: &str = "none";

/// The number of packets that were dropped, by reason.
pub type DropsByReason = BTreeMap<String, u64>;

/// The drops of a wire: by its rules, by the kernel before it had the packets, or `forwarded` ones of which too much waited.
pub fn of(last: &Snapshot) -> DropsByReason {
    let mut reasons = DropsByReason::new();
    for (reason, amount) in &last.totals.dropped {
        *reasons.entry(reason.clone()).or_default() += amount.packets;
    }
    for port in &last.ports {
        *reasons.entry("sender-queue".into()).or_default() += port.sender_queue_dropped;
        *reasons.entry("forwarded".into()).or_default() += port.forwarded_dropped;
        *reasons.entry("kernel".into()).or_default() += port.kernel_dropped;
    }
    reasons
}

/// [`NONE`], or how many packets and why.
pub fn text(drops: &DropsByReason) -> String {
    let parts: Vec<_> = drops
        .iter()
        .filter(|(_, packets)| **packets > 0)
        .map(|(reason, packets)| format!("{} {reason}", count(*packets)))
        .collect();
    if parts.is_empty() {
        return NONE.into();
    }
    format!("{}: {}", count(drops.values().sum()), parts.join(", "))
}
