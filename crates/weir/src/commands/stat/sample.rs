//! Hand-made snapshots for the tests of printed output.

use weir_core::drops::Count;
use weir_run::books::Books;
use weir_run::datapath::Kind;
use weir_run::stats::{
    DeviceStats, DirectionStats, FrameStats, PlaceStats, PortStats, Snapshot, WireStats, WorkerStats,
};
use weir_run::watcher::ledger::{EventStats, InterfaceEvent};
use weir_run::workstreams::WorkstreamStats;

const S: u64 = 1_000_000_000;

/// A wire that holds its senders back, and has lost something to two rules.
pub fn snapshot() -> Snapshot {
    let there = DirectionStats {
        rate_bits_per_s: Some(200_000_000),
        burst_bytes: Some(20 * 1024),
        limit_bytes: Some(125_000),
        ..class(
            "wa->wb",
            [7_368 * S, 4_194_303, 5_020_000, 7_980_000],
            Books {
                accepted: Count { packets: 1_234_567, bytes: 1_869_133_438 },
                delivered: Count { packets: 1_234_252, bytes: 1_868_656_528 },
                held: Count { packets: 312, bytes: 472_368 },
                dropped: [("too-long".to_string(), Count { packets: 3, bytes: 4_542 })].into(),
            },
        )
    };
    let back = class("wb->wa", [0, 2_047, 16_383, 310_000], passed(12_345, 812_001));
    let mut wb = port("wb", "veth0");
    wb.poller = "io_uring".into();
    wb.sender_queue_dropped = 7;
    wb.lost_while_down = 42;
    wb.device.state = "down".into();
    wb.sender_device =
        DeviceStats { state: "no-carrier".into(), tx_dropped: 17, queue_dropped: 7, ..wb.sender_device };
    let wa = PortStats { queues: 128, sender_queue_packets: 1_024, ..port("wa", "veth0") };
    let frames = FrameStats { total: 16_384, free: 7_744, lent: 8_328, held: 312, sockets: 0 };
    let mut wire = wire("wa", &["wa", "wb"], vec![there, back], frames);
    wire.events =
        [(InterfaceEvent::Down.name().into(), EventStats { times: 2, dropped: 17, waiting: 300 })].into();
    one(Kind::Wire, wire, vec![wa, wb])
}

/// A wire that has carried little and has nothing to do.
pub fn idle() -> Snapshot {
    let classes = ["c->d", "d->c"].map(|name| class(name, [0; 4], passed(10, 840))).into();
    let frames = FrameStats { total: 512, free: 384, lent: 128, held: 0, sockets: 0 };
    let office = wire("office", &["c", "d"], classes, frames);
    one(Kind::Wire, office, vec![port("c", "veth9"), port("d", "veth9")])
}

/// A topology of three ports, of which one has a limit.
pub fn topology() -> Snapshot {
    let limited = DirectionStats {
        rate_bits_per_s: Some(200_000_000),
        burst_bytes: Some(20 * 1024),
        limit_bytes: Some(125_000),
        ..class("->a", [0; 4], passed(30, 2_520))
    };
    let classes = vec![limited, class("->b", [0; 4], passed(10, 840)), class("->c", [0; 4], passed(0, 0))];
    let frames = FrameStats { total: 512, free: 384, lent: 128, held: 0, sockets: 0 };
    let lan = wire("lan", &["a", "b", "c"], classes, frames);
    one(Kind::Topology, lan, ["a", "b", "c"].map(|name| port(name, "veth7")).into())
}

fn one(kind: Kind, wire: WireStats, ports: Vec<PortStats>) -> Snapshot {
    let mut totals = Books::default();
    wire.classes.iter().for_each(|class| totals.merge(&class.place.books));
    let workstreams = wire.classes.iter().map(workstream).collect();
    Snapshot::of(kind, wire, ports, workstreams, totals)
}

/// A workstream all of whose packets waited, and whose held packets wait.
fn workstream(class: &DirectionStats) -> WorkstreamStats {
    let books = &class.place.books;
    let dropped = books.dropped.values().map(|amount| amount.packets).sum();
    WorkstreamStats {
        name: format!("ether/{}", class.place.name),
        len: books.held.packets,
        held: books.held.packets,
        queue_drops: dropped,
        queued: books.accepted.packets - dropped,
        handled: books.delivered.packets,
        ..WorkstreamStats::default()
    }
}

fn wire(name: &str, ports: &[&str], classes: Vec<DirectionStats>, frames: FrameStats) -> WireStats {
    WireStats {
        name: name.into(),
        ports: ports.iter().map(|name| name.to_string()).collect(),
        classes,
        frames,
        worker: WorkerStats { now_ns: 8_100 * S, since_ns: 100 * S, ..WorkerStats::default() },
        ..WireStats::default()
    }
}

fn passed(packets: u64, bytes: u64) -> Books {
    let amount = Count { packets, bytes };
    Books { accepted: amount, delivered: amount, ..Books::default() }
}

/// A direction without a limit; how long it blocked its senders, and how long packets stood in it: p50, p99, the longest.
fn class(name: &str, times_ns: [u64; 4], books: Books) -> DirectionStats {
    let [blocked_ns, delay_ns_p50, delay_ns_p99, delay_ns_max] = times_ns.map(Some);
    let place = PlaceStats::new(name, books);
    DirectionStats {
        place: PlaceStats { blocked_ns, delay_ns_p50, delay_ns_p99, delay_ns_max, ..place },
        rate_bits_per_s: None,
        burst_bytes: None,
        limit_bytes: None,
        empty_polls: 0,
        empty_wakes: 0,
        transmit_busy: 0,
        classes: Vec::new(),
    }
}

fn port(name: &str, sender: &str) -> PortStats {
    PortStats {
        name: name.into(),
        sender: sender.into(),
        queues: 1,
        poller: "socket".into(),
        state: "up".into(),
        device: device(name),
        sender_device: device(sender),
        ..PortStats::default()
    }
}

fn device(name: &str) -> DeviceStats {
    DeviceStats { name: name.into(), state: "up".into(), ..DeviceStats::default() }
}
