//! What a wire dropped from its start to its end, in words.

use std::collections::BTreeMap;

use weir_run::stats::Snapshot;

use crate::human::count;

/// Nothing was.
pub const NONE: &str = "none";

/// [`NONE`], or how many packets and why: by the rules of the wire, by the kernel before the wire had them, `forwarded`
/// ones of which too much waited, or `unsent` ones.
pub fn text(last: &Snapshot, unsent: u64) -> String {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, amount) in &last.totals.dropped {
        *reasons.entry(reason).or_default() += amount.packets;
    }
    for port in &last.ports {
        *reasons.entry("sender-queue").or_default() += port.sender_queue_dropped;
        *reasons.entry("forwarded").or_default() += port.forwarded_dropped;
        *reasons.entry("kernel").or_default() += port.kernel_dropped;
    }
    *reasons.entry("unsent").or_default() += unsent;
    reasons.retain(|_, packets| *packets > 0);
    if reasons.is_empty() {
        return NONE.into();
    }
    let parts: Vec<_> =
        reasons.iter().map(|(reason, packets)| format!("{} {reason}", count(*packets))).collect();
    format!("{}: {}", count(reasons.values().sum()), parts.join(", "))
}
