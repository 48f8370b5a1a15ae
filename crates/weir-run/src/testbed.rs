//! The bed of the report on if_epair: generator - bridge - epair - router - epair - bridge - sink.
//!
//! ```text
//! worker 0                                  the last worker
//! gen --- bridge-a --- epair-0 --- jail --- epair-1 --- bridge-b --- sink
//! ```
//!
//! 100-byte packets of 2,000 flows from 192.168.0.2 to 192.168.1.2 and up, by way of a router with two interfaces, whose
//! neighbours are static. With two workers the first epair leads from one to the other, as the published one led from the network
//! card's thread to the epair's.
//!
//! Source: review D38843, the set-up of its measurements.

use std::net::IpAddr;

use smoltcp::wire::EthernetAddress;
use weir_core::net::route::Interface;
use weir_core::net::router::{RouterSettings, StaticNeighbour};

use weir_core::net::bridge::AGEING_NS;
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};

use crate::memory::{MemoryEnd, MemoryPath};

/// Flows of the bed.
pub const FLOWS: u32 = 2000;
/// Length of its packets.
pub const SIZE_BYTES: u16 = 100;
/// Frames of its memory, and packets that wait for the sink before the generator is held.
const FRAMES: u32 = 8192;
const HELD_PACKETS_MAX: u64 = FRAMES as u64 / 2;

/// The places of its stages in the plan, in the order of the way.
pub const STAGES: [usize; 3] = [0, 1, 2];

/// The generator's station.
pub const GENERATOR: EthernetAddress = EthernetAddress([0x00, 0x07, 0x43, 0x57, 0xa0, 0x21]);
/// The sink's station.
pub const SINK: EthernetAddress = EthernetAddress([0x00, 0x07, 0x43, 0x57, 0xa0, 0x29]);
/// The router's interface on the generator's side.
pub const JAIL_0: EthernetAddress = EthernetAddress([0x02, 0x95, 0xfd, 0x1a, 0x50, 0x0b]);
/// The router's interface on the sink's side.
pub const JAIL_1: EthernetAddress = EthernetAddress([0x02, 0x95, 0xfd, 0x1a, 0x51, 0x0a]);

/// The traffic of the generator.
pub fn traffic() -> Traffic {
    Traffic {
        size_bytes: SIZE_BYTES,
        src: "192.168.0.2".parse().expect("an address"),
        dst: "192.168.1.2:50000-192.168.1.250:60000".parse().expect("a range"),
        src_mac: GENERATOR,
        dst_mac: JAIL_0,
        flows: FLOWS,
        first_flow: 0,
    }
}

/// The bed on one worker or two.
pub fn testbed(workers: usize, packets_per_s: Option<u64>, until: Until) -> MemoryPath {
    use Attachment::{Port, Stage};
    let last = workers.saturating_sub(1).min(1);
    let stage = |name: &str, kind| StagePlan { name: name.into(), kind };
    let bridge = || StageKind::Bridge { ports: 2, stations_max: 1024, ageing_ns: AGEING_NS };
    let [bridge_a, jail_stage, bridge_b] = STAGES;
    MemoryPath {
        plan: Plan {
            ports: ["gen", "sink"].map(port).into(),
            stages: vec![
                stage("bridge-a", bridge()),
                stage("jail", StageKind::Router(Box::new(jail()))),
                stage("bridge-b", bridge()),
            ],
            links: vec![
                [Port(0), Stage(bridge_a, 0)],
                [Stage(bridge_a, 1), Stage(jail_stage, 0)],
                [Stage(jail_stage, 1), Stage(bridge_b, 0)],
                [Stage(bridge_b, 1), Port(1)],
            ],
            dispatched: Vec::new(),
        },
        ends: vec![
            MemoryEnd::Generator(GenSpec { traffic: traffic(), packets_per_s, until }),
            MemoryEnd::Sink { flows: FLOWS },
        ],
        owners: Owners { ports: vec![0, last], stages: vec![0, last, last] },
        workers,
        frames: FRAMES,
        held_packets_max: HELD_PACKETS_MAX,
    }
}

/// Two links that come out on one worker: the first saturated from the other worker, the second fed as fast as it goes by a
/// generator on the worker itself. Their sinks are ports 2 and 3.
pub fn two_links(until: Until) -> MemoryPath {
    let half = |first_flow| {
        let traffic = Traffic { flows: FLOWS / 2, first_flow, ..traffic() };
        MemoryEnd::Generator(GenSpec { traffic, packets_per_s: None, until })
    };
    let sink = || MemoryEnd::Sink { flows: FLOWS };
    MemoryPath {
        plan: Plan {
            ports: ["gen-0", "gen-1", "sink-0", "sink-1"].map(port).into(),
            links: [0, 1].map(|link| [Attachment::Port(link), Attachment::Port(link + 2)]).into(),
            ..Plan::default()
        },
        ends: vec![half(0), half(FLOWS / 2), sink(), sink()],
        owners: Owners { ports: vec![0, 1, 1, 1], stages: Vec::new() },
        workers: 2,
        frames: FRAMES,
        held_packets_max: HELD_PACKETS_MAX,
    }
}

/// A port in memory.
pub fn port(name: &str) -> PortPlan {
    PortPlan { interface: name.into(), limits: None, classes: None, is_optional: false }
}

/// The router.
pub fn jail() -> RouterSettings {
    let interface = |mac, cidr: &str| Interface {
        mac,
        mtu_bytes: 1500,
        addresses: vec![cidr.parse().expect("an address")],
    };
    let station =
        |last| StaticNeighbour { interface: 1, address: IpAddr::from([192, 168, 1, last]), mac: SINK };
    RouterSettings {
        interfaces: vec![interface(JAIL_0, "192.168.0.1/24"), interface(JAIL_1, "192.168.1.1/24")],
        routes: Vec::new(),
        neighbours: (2..=250).map(station).collect(),
        neighbours_max: 1024,
        incomplete_max: 64,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 256,
        waiting_max: 64,
        errors_per_second: 1000,
        errors_burst: 50,
        seed: crate::seed::random_seed(),
        announces: false,
        host: None,
    }
}
