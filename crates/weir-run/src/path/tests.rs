//! Paths stepped through virtual time, without a thread: the same run every time.

use std::net::IpAddr;

use proptest::prelude::*;
use smoltcp::wire::EthernetAddress;
use weir_core::dispatch::protocol::Mode;
use weir_core::drops::DropReason;
use weir_core::net::route::Interface;
use weir_core::net::router::{RouterSettings, StaticNeighbour};

use super::spec::{KindSpec, LinkSpec, NodeSpec, PathError, PathSpec};
use super::summary::Summary;
use super::testbed::{testbed, two_links};
use super::{Path, PathMemory};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};

/// Cores enough for every test.
const CORES: usize = 64;
const STEP_NS: u64 = 10_000;

pub(super) fn mac(last: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, last])
}

pub(super) fn node(name: &str, worker: usize, kind: KindSpec) -> NodeSpec {
    NodeSpec { name: name.into(), worker, kind }
}

pub(super) fn link(from: (usize, u16), to: (usize, u16)) -> LinkSpec {
    LinkSpec { ends: [from, to] }
}

/// A generator of so many flows and packets, from station `from` to station `to`.
pub(super) fn generator(from: u8, to: u8, first_flow: u32, flows: u32, packets: u64) -> KindSpec {
    let traffic = Traffic {
        size_bytes: 60,
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.1.2:1-10.0.1.2:9999".parse().unwrap(),
        src_mac: mac(from),
        dst_mac: mac(to),
        flows,
        first_flow,
    };
    KindSpec::Gen(GenSpec { traffic, packets_per_s: None, until: Until::Packets(packets) })
}

/// Steps a path until it is at rest, checking the books on the way.
fn step_to_rest(spec: &PathSpec) -> Summary {
    let mut memory = PathMemory::new(spec, CORES).unwrap();
    let (memory, pools) = memory.split();
    let mut path = Path::new(spec, memory, pools, 0).unwrap();
    let mut now_ns = 0;
    for step in 0..200_000 {
        path.step(now_ns);
        now_ns += STEP_NS;
        if step % 64 == 0 {
            let summary = path.summary(now_ns);
            assert!(summary.balances(), "at step {step}: {summary:?}");
        }
        if path.is_at_rest() {
            let summary = path.summary(now_ns);
            assert!(summary.balances() && summary.held.packets == 0, "{summary:?}");
            return summary;
        }
    }
    panic!("it never came to rest: {:?}", path.summary(now_ns));
}

fn assert_clean(summary: &Summary, packets: u64) {
    let seen = summary.sequences();
    assert_eq!((seen.numbered, summary.account.delivered.packets), (packets, packets));
    assert_eq!((seen.missing, seen.duplicated, seen.reordered, summary.lost()), (0, 0, 0, 0));
}

#[test]
fn the_test_bed_loses_and_reorders_nothing_in_any_mode() {
    for workers in [1, 2] {
        for &mode in Mode::ALL {
            let summary = step_to_rest(&testbed(workers, mode, None, Until::Packets(20_000)));
            assert_clean(&summary, 20_000);
            assert_eq!(summary.links, [[0, 20_000]; 4], "{workers} workers, {mode}");
        }
    }
}

#[test]
fn a_mode_decides_how_far_a_burst_gets_in_a_pass() {
    let passes = |mode| {
        let spec = testbed(1, mode, None, Until::Packets(64));
        let mut memory = PathMemory::new(&spec, CORES).unwrap();
        let (memory, pools) = memory.split();
        let mut path = Path::new(&spec, memory, pools, 0).unwrap();
        (1..).find(|_| {
            path.step(0);
            path.summary(0).account.delivered.packets == 64
        })
    };
    assert_eq!(
        (passes(Mode::Direct), passes(Mode::Hybrid), passes(Mode::Deferred)),
        (Some(1), Some(1), Some(5))
    );
}

#[test]
fn a_busy_link_takes_no_more_of_its_worker_than_another() {
    let mut spec = two_links(Until::Packets(100_000));
    spec.qlimit = 2000;
    let mut memory = PathMemory::new(&spec, CORES).unwrap();
    let (memory, pools) = memory.split();
    let mut path = Path::new(&spec, memory, pools, 0).unwrap();
    for _ in 0..500 {
        // The worker that saturates the first link is faster: four passes for one.
        for _ in 0..4 {
            path.workers[0].pass(0);
        }
        path.workers[1].pass(0);
    }
    let summary = path.summary(0);
    let [first, second] = [summary.links[0][1], summary.links[1][1]];
    assert!(
        summary.balances() && summary.workers[0].blocked > 0,
        "the first link was saturated: {summary:?}"
    );
    assert!(second * 100 >= (first + second) * 45, "{first} and {second}");
}

#[test]
fn a_flood_is_copied_to_every_other_port_and_balances() {
    let sinks = (0..3).map(|n| node(&format!("sink-{n}"), 0, KindSpec::Sink { flows: 10 }));
    let bridge = KindSpec::Bridge { stations_max: 16, stations: Vec::new() };
    let mut nodes = vec![node("gen", 0, generator(1, 9, 0, 10, 1000)), node("bridge", 0, bridge)];
    nodes.extend(sinks);
    let mut links = vec![link((0, 0), (1, 0))];
    links.extend((0..3).map(|n| link((1, n as u16 + 1), (n + 2, 0))));
    let summary = step_to_rest(&PathSpec { nodes, links, frames: 512, ..PathSpec::default() });
    assert_eq!((summary.account.accepted.packets, summary.account.delivered.packets), (3000, 3000));
    for (_, seen) in &summary.sinks {
        assert_eq!((seen.numbered, seen.missing, seen.reordered, seen.duplicated), (1000, 0, 0, 0));
    }
}

#[test]
fn copies_without_a_frame_are_dropped_by_that_name() {
    const SINKS: usize = 12;
    let bridge = KindSpec::Bridge { stations_max: 16, stations: Vec::new() };
    let mut nodes = vec![node("gen", 0, generator(1, 9, 0, 1, 500)), node("bridge", 0, bridge)];
    let mut links = vec![link((0, 0), (1, 0))];
    for n in 0..SINKS {
        nodes.push(node(&format!("sink-{n}"), 0, KindSpec::Sink { flows: 1 }));
        links.push(link((1, n as u16 + 1), (n + 2, 0)));
    }
    let spec = PathSpec { nodes, links, frames: 256, ..PathSpec::default() };
    let summary = step_to_rest(&spec);
    let dropped: Vec<_> = summary.account.dropped.occurred().map(|(reason, _)| reason).collect();
    assert_eq!(dropped, [DropReason::NoFrame]);
    assert_eq!(summary.account.accepted.packets, 500 * SINKS as u64, "each copy is in the books");
    assert_eq!(summary.links[1][1], 500, "the packet itself needs no frame more");
    assert_eq!(summary.sequences().reordered + summary.sequences().duplicated, 0);
}

/// A router between the generator's network and another, whose link takes `mtu_bytes`.
fn two_networks(mtu_bytes: u16) -> RouterSettings {
    let interface = |last, mtu_bytes, cidr: &str| Interface {
        mac: mac(last),
        mtu_bytes,
        addresses: vec![cidr.parse().unwrap()],
    };
    let station = |interface, address: [u8; 4], last| StaticNeighbour {
        interface,
        address: IpAddr::from(address),
        mac: mac(last),
    };
    RouterSettings {
        interfaces: vec![interface(10, 1500, "10.0.0.254/24"), interface(11, mtu_bytes, "10.0.1.254/24")],
        routes: Vec::new(),
        neighbours: vec![station(0, [10, 0, 0, 1], 1)],
        neighbours_max: 16,
        incomplete_max: 16,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 256,
        waiting_max: 64,
        errors_per_second: 1000,
        errors_burst: 50,
        seed: 1,
    }
}

/// Long packets through that router, on so many workers and frames, to a station it knows.
fn long_packets(mtu_bytes: u16, packets: u64, workers: usize, frames: u32) -> Summary {
    let mut router = two_networks(mtu_bytes);
    router.neighbours.push(StaticNeighbour {
        interface: 1,
        address: IpAddr::from([10, 0, 1, 2]),
        mac: mac(2),
    });
    let mut generator = generator(1, 10, 0, 4, packets);
    if let KindSpec::Gen(spec) = &mut generator {
        spec.traffic.size_bytes = 1514;
    }
    let spec = PathSpec {
        nodes: vec![
            node("gen", 0, generator),
            node("router", workers - 1, KindSpec::Router(router)),
            node("sink", 0, KindSpec::Sink { flows: 4 }),
        ],
        links: vec![link((0, 0), (1, 0)), link((1, 1), (2, 0))],
        workers,
        frames,
        ..PathSpec::default()
    };
    step_to_rest(&spec)
}

#[test]
fn long_packets_are_cut_in_order_and_the_books_balance() {
    for workers in [1, 2] {
        let summary = long_packets(576, 1000, workers, 2048);
        let (account, seen, router) = (&summary.account, summary.sequences(), summary.routers[0].1);
        // 552, 552 and 376 of 1480 bytes. Each packet ends at the router, and its fragments are packets of their own.
        assert_eq!((account.accepted.packets, account.delivered.packets), (1000 + 3000, 1000 + 3000));
        assert_eq!(account.accepted.bytes, 1000 * (1514 + (1480 + 3 * 34)));
        assert_eq!((seen.numbered, seen.unnumbered, seen.reordered + seen.missing), (1000, 2000, 0));
        assert_eq!((router.frag_oks, router.frag_creates, router.frag_fails), (1000, 3000, 0));
    }
}

#[test]
fn a_packet_without_frames_for_all_its_fragments_is_dropped_by_that_name() {
    let summary = long_packets(68, 2000, 1, 512);
    let router = summary.routers[0].1;
    assert!(router.frag_oks > 0 && router.frag_fails > 0, "{router:?}");
    assert_eq!((router.frag_oks + router.frag_fails, router.frag_creates), (2000, 31 * router.frag_oks));
    let dropped: Vec<_> = summary.account.dropped.occurred().collect();
    assert_eq!(dropped.len(), 1);
    assert_eq!((dropped[0].0, dropped[0].1.packets), (DropReason::NoFrame, router.frag_fails));
    assert_eq!(summary.links[1][1], router.frag_creates, "all fragments of a packet or none");
}

#[test]
fn packets_without_a_neighbour_are_kept_then_dropped_and_their_sender_told() {
    let mut router = two_networks(1500);
    (router.held_max, router.waiting_max) = (100, 40);
    let spec = PathSpec {
        nodes: vec![
            node("gen", 0, generator(1, 10, 0, 1, 100)),
            node("router", 0, KindSpec::Router(router)),
            node("sink", 0, KindSpec::Sink { flows: 1 }),
        ],
        links: vec![link((0, 0), (1, 0)), link((1, 1), (2, 0))],
        ..PathSpec::default()
    };
    let mut memory = PathMemory::new(&spec, CORES).unwrap();
    let (memory, pools) = memory.split();
    let mut path = Path::new(&spec, memory, pools, 0).unwrap();
    let (_, wake_ns) = path.step(0);
    path.step(1);
    let summary = path.summary(1);
    assert!(summary.balances());
    assert_eq!(summary.held.packets, 40, "as many as may wait for one neighbour");
    assert_eq!(summary.account.dropped.get(DropReason::NeighbourFull).packets, 60);
    assert_eq!(wake_ns, Some(1_000_000_000), "the next request");
    let mut now_ns = 0;
    while !path.is_at_rest() {
        now_ns = path.step(now_ns).1.unwrap_or(now_ns + 1);
        assert!(now_ns <= 10_000_000_000, "they wait for ever");
    }
    let summary = path.summary(now_ns);
    assert!(summary.balances());
    assert_eq!(summary.account.dropped.get(DropReason::NoNeighbour).packets, 40);
    assert_eq!(summary.sequences().unnumbered, 3, "three requests came to the sink's link");
    assert!(summary.links[0][0] > 0, "the generator was told");
}

#[test]
fn a_flow_loses_nothing_beside_a_generator_that_scans() {
    const PACKETS: u64 = 20_000;
    let mut router = two_networks(1500);
    router.neighbours.push(StaticNeighbour { address: IpAddr::from([10, 0, 1, 2]), ..router.neighbours[0] });
    (router.neighbours[1].interface, router.neighbours[1].mac) = (1, mac(2));
    router.interfaces[1].addresses.push("10.1.0.1/16".parse().unwrap());
    router.interfaces.push(Interface { mac: mac(12), ..router.interfaces[0].clone() });
    router.interfaces[2].addresses = vec!["10.0.2.254/24".parse().unwrap()];
    let mut scan = generator(3, 12, 4, PACKETS as u32, PACKETS);
    if let KindSpec::Gen(spec) = &mut scan {
        spec.traffic.src = "10.0.2.1".parse().unwrap();
        spec.traffic.dst = "10.1.1.0-10.1.254.255".parse().unwrap();
    }
    let spec = PathSpec {
        nodes: vec![
            node("flow", 0, generator(1, 10, 0, 4, PACKETS)),
            node("scan", 1, scan),
            node("router", 0, KindSpec::Router(router)),
            node("sink", 1, KindSpec::Sink { flows: 4 }),
        ],
        links: vec![link((0, 0), (2, 0)), link((2, 1), (3, 0)), link((1, 0), (2, 2))],
        workers: 2,
        ..PathSpec::default()
    };
    let mut memory = PathMemory::new(&spec, CORES).unwrap();
    let (memory, pools) = memory.split();
    let mut path = Path::new(&spec, memory, pools, 0).unwrap();
    let mut now_ns = 0;
    while !path.is_at_rest() {
        let (moved, wake_ns) = path.step(now_ns);
        now_ns = if moved > 0 { now_ns + STEP_NS } else { wake_ns.unwrap_or(0).max(now_ns + STEP_NS) };
        assert!(path.summary(now_ns).balances());
        assert!(now_ns <= 10_000_000_000, "they wait for ever");
    }
    let summary = path.summary(now_ns);
    let (seen, dropped) = (summary.sequences(), &summary.account.dropped);
    assert_eq!((seen.numbered, seen.missing, seen.reordered, seen.duplicated), (PACKETS, 0, 0, 0));
    let scanned =
        [DropReason::NeighbourFull, DropReason::NoNeighbour].map(|reason| dropped.get(reason).packets);
    assert_eq!((scanned.iter().sum::<u64>(), dropped.total().packets), (PACKETS, PACKETS), "{scanned:?}");
    assert!(scanned[1] > 0 && summary.routers[0].1.solicits_limited > 0, "{summary:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Pairs of generator and sink across one bridge, wherever their nodes are.
    #[test]
    fn nothing_is_lost_or_reordered_whoever_owns_what(
        workers in 1usize..6,
        pairs in 1usize..5,
        owners in proptest::collection::vec(0usize..64, 9),
        mode in 0usize..3,
        qlimit in 1usize..300,
        packets in 1u64..2000,
    ) {
        let owner = |node: usize| owners[node % owners.len()] % workers;
        let stations = (0..2 * pairs).map(|port| (mac(port as u8 + 1), port as u16)).collect();
        let mut nodes = vec![node("bridge", owner(0), KindSpec::Bridge { stations_max: 64, stations })];
        let mut links = Vec::new();
        for pair in 0..pairs {
            let (from, to) = (2 * pair as u8 + 1, 2 * pair as u8 + 2);
            let flows = 7 * pair as u32;
            let place = nodes.len();
            nodes.push(node(&format!("gen-{pair}"), owner(place), generator(from, to, flows, 7, packets)));
            nodes.push(node(&format!("sink-{pair}"), owner(place + 1), KindSpec::Sink { flows: 64 }));
            links.push(link((place, 0), (0, 2 * pair as u16)));
            links.push(link((place + 1, 0), (0, 2 * pair as u16 + 1)));
        }
        let dispatch = Mode::ALL[mode];
        let spec = PathSpec { nodes, links, workers, dispatch, qlimit, frames: 256 * workers as u32, ..PathSpec::default() };
        assert_clean(&step_to_rest(&spec), packets * pairs as u64);
    }
}

#[test]
fn what_is_wrong_with_a_path_is_said() {
    let good = || testbed(2, Mode::Direct, None, Until::Stopped);
    good().check(2).unwrap();
    let said = |change: &dyn Fn(&mut PathSpec)| {
        let mut spec = good();
        change(&mut spec);
        spec.check(2).unwrap_err().to_string()
    };
    assert_eq!(said(&|spec| spec.workers = 0), "0 workers: a path needs at least 1");
    assert!(said(&|spec| spec.workers = 3).contains("3 workers, but this process may use 2 cores"));
    assert!(
        said(&|spec| spec.workers = 1).contains("node jail is given to worker 1; there are workers 0 to 0")
    );
    assert_eq!(
        said(&|spec| spec.ring_slots = Some(10_000)),
        "a ring of 10000 slots: give a power of two from 1 to 2^31"
    );
    assert!(said(&|spec| spec.ring_slots = Some(64)).contains("too short for these frames"));
    assert!(said(&|spec| spec.frames = 100).contains("give at least 768"));
    assert!(said(&|spec| spec.qlimit = 0).contains("queue limit of 0"));
    assert!(said(&|spec| spec.nodes[1].name = "gen".into()).contains("two nodes are called gen"));
    assert!(said(&|spec| spec.links[0].ends[1] = (9, 0)).contains("link 0: there is no node 9"));
    assert!(said(&|spec| spec.links[1].ends[0] = (1, 0)).contains("two links at port 0 of bridge-a"));
    assert!(said(&|spec| spec.links[0].ends = [(1, 0), (1, 2)]).contains("joins bridge-a to itself"));
    assert!(said(&|spec| spec.links.truncate(3)).contains("has 1 ports, and links at 0"));
    let error = said(&|spec| match &mut spec.nodes[0].kind {
        KindSpec::Gen(spec) => spec.traffic.size_bytes = 20,
        _ => unreachable!("the first is the generator"),
    });
    assert_eq!(error, "gen: packets of 20 bytes: give 60 to 1514");
    let mut spec = good();
    spec.workers = 65;
    assert!(matches!(spec.check(100), Err(PathError::TooManyWorkers(65))));
}
