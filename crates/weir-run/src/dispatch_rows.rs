//! The workstreams of dispatched packets: of a wire a row for each of its protocols with each worker, `ip@A->B`; of an ESP one for each
//! side, `inside@NAME`.
//!
//! ```text
//! Disp'd, HDisp'd, Queued, QDrops, Handled   counted by the stage (`weir_path::dispatch`, `weir_path::esp`), each where it happens
//! Len, Held                                  counted in the queue itself: in its egress queue, and on the way back from there
//! ```
//!
//! Handled packets go on in another row: of the next protocol, of a hand-off, of the ESP, or of the direction.
//!
//! Owner: none, these are copies.

use weir_core::dispatch::protocol::{Mode, Policy, WhenFull};
use weir_core::drops::Count;
use weir_path::dispatch::{Dispatch, DispatchCounts};
use weir_path::esp::{Esp, INSIDE, OUTSIDE, QUEUES};
use weir_path::port::TransmitRing;

use crate::part::Part;
use crate::workstreams::WorkstreamStats;

/// The properties of a workstream, and its counters, which are kept where packets are handled.
struct Row {
    name: String,
    qlimit: u64,
    policy: Policy,
    mode: Mode,
    when_full: WhenFull,
    counts: DispatchCounts,
    /// The port of the stage that leads to its queue, if it has one.
    queue: Option<u16>,
}

/// The rows of a part, each with the packets that wait in its queue.
pub fn of(part: &Part, now_ns: u64) -> Vec<(Count, WorkstreamStats)> {
    let mut rows = Vec::new();
    for (place, (name, stage)) in part.stages.names.iter().zip(part.path.between().stages()).enumerate() {
        let of_wire = stage.dispatch().map(|dispatch| of_dispatch(name, dispatch));
        let of_esp = stage.esp().map(|esp| of_esp(name, esp));
        let of_stage = of_wire.into_iter().flatten().chain(of_esp.into_iter().flatten());
        rows.extend(of_stage.map(|row| with_queue(part, place, row, now_ns)));
    }
    rows
}

fn of_dispatch(name: &str, dispatch: &Dispatch) -> Vec<Row> {
    let registry = &dispatch.plan().registry;
    let row = |proto| {
        let registered = registry.get(proto);
        Row {
            name: format!("{}@{name}", registered.protocol.name),
            qlimit: registered.qlimit as u64,
            policy: registered.protocol.policy,
            mode: registered.mode,
            when_full: registered.protocol.when_full,
            counts: *dispatch.counts(proto),
            queue: Some(dispatch.plan().queue(proto)),
        }
    };
    registry.ids().map(row).collect()
}

/// The rows of an ESP. An ESP that seals and opens at once has no row but the stage's.
fn of_esp(name: &str, esp: &Esp) -> Vec<Row> {
    let dispatch = esp.dispatch();
    if dispatch.mode == Mode::Direct {
        return Vec::new();
    }
    let row = |(side, called)| Row {
        name: format!("{called}@{name}"),
        qlimit: dispatch.queue_packets.into(),
        // The stage names the worker.
        policy: Policy::Cpu,
        mode: dispatch.mode,
        when_full: if dispatch.drops_when_full { WhenFull::Drop } else { WhenFull::Block },
        counts: *esp.counts(side),
        queue: QUEUES.get(usize::from(side)).copied(),
    };
    [(INSIDE, "inside"), (OUTSIDE, "outside")].map(row).into()
}

/// A row of a stage, by its place, with the packets that wait in its queue.
fn with_queue(part: &Part, place: usize, row: Row, now_ns: u64) -> (Count, WorkstreamStats) {
    let Row { name, qlimit, policy, mode, when_full, counts, queue } = row;
    let of_loop = part.stages.loops.iter().find(|(_, stage, port)| *stage == place && Some(*port) == queue);
    let queue = of_loop.and_then(|(port, ..)| part.path.egress(*port));
    let mut waiting = queue.map_or(Count::default(), |queue| queue.shaping.held());
    let end = part.path.ends().iter().find(|end| of_loop.is_some_and(|(port, ..)| *port == end.index));
    end.into_iter().for_each(|end| waiting.merge(end.port.in_flight()));
    let row = WorkstreamStats {
        name,
        qlimit,
        policy: policy.name().into(),
        mode: mode.name().into(),
        full: when_full.name().into(),
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
    (waiting, row)
}
