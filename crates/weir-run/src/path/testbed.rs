//! The bed of the report on if_epair: generator - bridge - epair - router - epair - bridge - sink.
//!
//! ```text
//! worker 0                                  the last worker
//! gen --- bridge-a --- epair-0 --- jail --- epair-1 --- bridge-b --- sink
//! ```
//!
//! 100-byte packets of 2,000 flows from 192.168.0.2 to 192.168.1.2 and up, by way of a router with two interfaces, whose
//! neighbours are static; bridges have heard the stations on both their sides. With two workers the first epair leads from one
//! to the other, as the published one led from the network card's thread to the epair's.
//!
//! Source: seed `epair-transmit-path`, the set-up of the review's measurements.

use std::net::IpAddr;

use smoltcp::wire::EthernetAddress;
use weir_core::dispatch::protocol::Mode;
use weir_core::net::route::Interface;
use weir_core::net::router::{RouterSettings, StaticNeighbour};

use super::spec::{KindSpec, LinkSpec, NodeSpec, PathSpec};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};

/// Flows of the bed.
pub const FLOWS: u32 = 2000;
/// Length of its packets.
pub const SIZE_BYTES: u16 = 100;
/// Frames of its memory, and packets that wait at an end before the generator is held. Between two workers the generator is woken
/// once for what fits between a full queue and one that has room again ([`super::links`]): fewer than 500 times in a million
/// packets.
const FRAMES: u32 = 8192;
const QLIMIT: usize = FRAMES as usize / 2;

/// The generator's station.
pub const GENERATOR: EthernetAddress = EthernetAddress([0x00, 0x07, 0x43, 0x57, 0xa0, 0x21]);
/// The sink's station.
pub const SINK: EthernetAddress = EthernetAddress([0x00, 0x07, 0x43, 0x57, 0xa0, 0x29]);
/// The router's interface on the generator's side.
pub const JAIL_0: EthernetAddress = EthernetAddress([0x02, 0x95, 0xfd, 0x1a, 0x50, 0x0b]);
/// The router's interface on the sink's side.
pub const JAIL_1: EthernetAddress = EthernetAddress([0x02, 0x95, 0xfd, 0x1a, 0x51, 0x0a]);

/// What the generator sends.
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
pub fn testbed(workers: usize, dispatch: Mode, packets_per_s: Option<u64>, until: Until) -> PathSpec {
    let last = workers.saturating_sub(1).min(1);
    let node = |name: &str, worker, kind| NodeSpec { name: name.into(), worker, kind };
    let bridge = |stations: [EthernetAddress; 2]| KindSpec::Bridge {
        stations_max: 1024,
        stations: vec![(stations[0], 0), (stations[1], 1)],
    };
    let link = |from, to| LinkSpec { ends: [from, to] };
    PathSpec {
        nodes: vec![
            node("gen", 0, KindSpec::Gen(GenSpec { traffic: traffic(), packets_per_s, until })),
            node("bridge-a", 0, bridge([GENERATOR, JAIL_0])),
            node("jail", last, KindSpec::Router(jail())),
            node("bridge-b", last, bridge([JAIL_1, SINK])),
            node("sink", last, KindSpec::Sink { flows: FLOWS }),
        ],
        links: vec![link((0, 0), (1, 0)), link((1, 1), (2, 0)), link((2, 1), (3, 0)), link((3, 1), (4, 0))],
        workers,
        dispatch,
        frames: FRAMES,
        qlimit: QLIMIT,
        ..PathSpec::default()
    }
}

/// Two links that come out on one worker: the first saturated from the other worker, the second fed as fast as it goes by a
/// generator on the worker itself. Where they end, and how many packets came out of each, is in links 0 and 1.
pub fn two_links(until: Until) -> PathSpec {
    let node = |name: &str, worker, kind| NodeSpec { name: name.into(), worker, kind };
    let half = |first_flow| {
        let traffic = Traffic { flows: FLOWS / 2, first_flow, ..traffic() };
        KindSpec::Gen(GenSpec { traffic, packets_per_s: None, until })
    };
    PathSpec {
        nodes: vec![
            node("gen-0", 0, half(0)),
            node("gen-1", 1, half(FLOWS / 2)),
            node("sink-0", 1, KindSpec::Sink { flows: FLOWS }),
            node("sink-1", 1, KindSpec::Sink { flows: FLOWS }),
        ],
        links: [0, 1].map(|link| LinkSpec { ends: [(link, 0), (link + 2, 0)] }).into(),
        workers: 2,
        frames: FRAMES,
        qlimit: QLIMIT,
        ..PathSpec::default()
    }
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
    }
}
