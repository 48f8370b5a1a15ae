//! The workstreams of a wire that is dispatched: a row for each of its protocols with each worker, `ip@A->B`.
//!
//! ```text
//! Disp'd, HDisp'd, Queued, QDrops, Handled   counted by dispatch (`weir_path::dispatch`), each where it happens
//! Len, Held                                  counted in the queue itself: in its egress queue, and on the way back from there
//! ```
//!
//! What is handled goes on in another row: of the next protocol, of a hand-off, or of the direction.
//!
//! Owner: none, these are copies.

use weir_core::drops::Count;
use weir_path::port::TransmitRing;

use crate::part::Part;
use crate::workstreams::WorkstreamStats;

/// The rows of a part, each with what waits in its queue.
pub fn of(part: &Part, now_ns: u64) -> Vec<(Count, WorkstreamStats)> {
    let mut rows = Vec::new();
    for (place, (name, stage)) in part.stages.names.iter().zip(part.path.between().stages()).enumerate() {
        let Some(dispatch) = stage.dispatch() else { continue };
        let registry = &dispatch.plan().registry;
        for proto in registry.ids() {
            let (registered, counts) = (registry.get(proto), dispatch.counts(proto));
            let of_loop = part.stages.loops.iter().find(|(_, stage, of)| (*stage, *of) == (place, proto));
            let queue = of_loop.and_then(|(port, ..)| part.path.egress(*port));
            let mut waiting = queue.map_or(Count::default(), |queue| queue.shaping.held());
            let end =
                part.path.ends().iter().find(|end| of_loop.is_some_and(|(port, ..)| *port == end.index));
            end.into_iter().for_each(|end| waiting.merge(end.port.in_flight()));
            let row = WorkstreamStats {
                name: format!("{}@{name}", registered.protocol.name),
                qlimit: registered.qlimit as u64,
                policy: registered.protocol.policy.name().into(),
                mode: registered.mode.name().into(),
                full: registered.protocol.when_full.name().into(),
                len: waiting.packets,
                wmark: counts.wmark,
                dispatched: counts.dispatched,
                hybrid_dispatched: counts.hybrid_dispatched,
                queue_drops: counts.queue_drops,
                queued: counts.queued,
                handled: counts.handled,
                elsewhere: counts.handled,
                held: waiting.packets,
                blocked: queue.map_or(0, |queue| queue.counts().blocked),
                blocked_ns: queue.map_or(0, |queue| queue.shaping.blocked_ns(now_ns)),
                ..WorkstreamStats::default()
            };
            rows.push((waiting, row));
        }
    }
    rows
}
