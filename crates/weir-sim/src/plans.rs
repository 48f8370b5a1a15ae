//! Plans and packets for tests of many ports: bridges, the published bed, and stations behind them that number their packets.
//!
//! Pure. Limits: IPv4 and UDP only, and no checksum of the latter.

use std::net::Ipv4Addr;
use std::sync::Arc;

use weir_core::classify::{Classifier, Target};
use weir_core::net::bridge::AGEING_NS;
use weir_core::net::route::Interface;
use weir_core::net::router::{RouterSettings, StaticNeighbour};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::QueueRule;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_path::classes::{ClassConfig, Classes, LeafRules, TreeKind};
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};

/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// The length of a packet, in bytes.
pub const PACKET_BYTES: usize = 1000;
/// The address of all stations.
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// The offset of a number in a packet: behind the headers of Ethernet, IPv4 and UDP.
const NUMBER_AT: usize = 42;

/// A limit of `rate` Mbit/s, with 5 ms of queue.
pub fn mbit(rate: u64) -> TbfConfig {
    let rate = Rate::from_bits_per_s(rate * 1_000_000).unwrap();
    TbfConfig { rate, burst_bytes: 20_480, limit: Limit::TimeNs(5 * MS) }
}

/// The address of the station with this number behind a port.
pub fn mac(port: usize, station: usize) -> [u8; 6] {
    [2, 0, 0, 0, port as u8, station as u8]
}

/// An IPv4 packet with a number in it.
pub fn packet(source: [u8; 6], destination: [u8; 6], addresses: [Ipv4Addr; 2], number: u64) -> Vec<u8> {
    let mut bytes = vec![0; PACKET_BYTES];
    bytes[..6].copy_from_slice(&destination);
    bytes[6..12].copy_from_slice(&source);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let header = &mut bytes[14..34];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(PACKET_BYTES as u16 - 14).to_be_bytes());
    (header[8], header[9]) = (64, 17);
    header[12..16].copy_from_slice(&addresses[0].octets());
    header[16..20].copy_from_slice(&addresses[1].octets());
    let sum = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    bytes[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The number in a packet.
pub fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[NUMBER_AT..NUMBER_AT + 8].try_into().unwrap())
}

/// A packet from a station behind one port of a bridge to one behind another.
pub fn bridged(from: (usize, usize), to: (usize, usize), number: u64) -> Vec<u8> {
    packet(mac(from.0, from.1), mac(to.0, to.1), [Ipv4Addr::LOCALHOST; 2], number)
}

/// A port, and the limit on packets that leave by it.
pub fn port_plan(number: usize, limits: Option<TbfConfig>) -> PortPlan {
    PortPlan { interface: format!("port-{number}"), limits, classes: None, is_optional: false }
}

/// Classes that share a port, of which the first has all traffic; each of `mbit` Mbit/s.
pub fn tree(kind: TreeKind, names: &[&str], mbit: u64) -> Arc<Classes> {
    let rate = Rate::from_bits_per_s(mbit * 1_000_000).unwrap();
    let class = |name: &&str| ClassConfig {
        name: name.to_string(),
        parent: None,
        rate,
        ceil: rate,
        burst_bytes: 20_480,
        cburst_bytes: 20_480,
        bounded: false,
        quantum_bytes: 1514,
        leaf: Some(LeafRules { priority: 0, queue_ns: 5 * MS, rule: QueueRule::default() }),
    };
    Arc::new(Classes {
        kind,
        classes: names.iter().map(class).collect(),
        classifier: Classifier::new(Vec::new(), Target::Class(0)).unwrap(),
        default: Some(0),
        warnings: Vec::new(),
    })
}

/// A bridge.
pub fn bridge(name: &str, ports: u16) -> StagePlan {
    let kind = StageKind::Bridge { ports, stations_max: 1024, ageing_ns: AGEING_NS };
    StagePlan { name: name.into(), kind }
}

/// The published bed: bridge, epair, router, epair, bridge.
pub fn bed() -> Plan {
    let interface = |last: u8, cidr: &str| Interface {
        mac: smoltcp::wire::EthernetAddress([2, 0, 0, 1, 0, last]),
        mtu_bytes: 1500,
        addresses: vec![cidr.parse().unwrap()],
    };
    let neighbour = |interface: u16, address: &str, port: usize| StaticNeighbour {
        interface,
        address: address.parse().unwrap(),
        mac: smoltcp::wire::EthernetAddress(mac(port, 0)),
    };
    let router = RouterSettings {
        interfaces: vec![interface(0, "10.0.0.1/24"), interface(1, "10.0.1.1/24")],
        routes: Vec::new(),
        neighbours: vec![neighbour(0, "10.0.0.2", 0), neighbour(1, "10.0.1.2", 1)],
        neighbours_max: 64,
        incomplete_max: 64,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 256,
        waiting_max: 64,
        errors_per_second: 1000,
        errors_burst: 50,
        seed: 1,
        announces: false,
        host: None,
    };
    let router = StagePlan { name: "gw".into(), kind: StageKind::Router(Box::new(router)) };
    Plan {
        ports: vec![port_plan(0, None), port_plan(1, Some(mbit(100)))],
        stages: vec![bridge("a", 2), router, bridge("b", 2)],
        links: vec![
            [Attachment::Port(0), Attachment::Stage(0, 0)],
            [Attachment::Stage(0, 1), Attachment::Stage(1, 0)],
            [Attachment::Stage(1, 1), Attachment::Stage(2, 0)],
            [Attachment::Stage(2, 1), Attachment::Port(1)],
        ],
        dispatched: Vec::new(),
    }
}

/// A packet from the host behind the first port of the bed to an address.
pub fn routed(number: u64, destination: &str) -> Vec<u8> {
    let addresses = ["10.0.0.2".parse().unwrap(), destination.parse().unwrap()];
    packet(mac(0, 0), [2, 0, 0, 1, 0, 0], addresses, number)
}
