//! Paths in memory: stepped through virtual time without a thread, the same run every time; and on threads, where they end, whole and in
//! order, however the machine schedules them.

use std::net::IpAddr;

use proptest::prelude::*;
use smoltcp::wire::EthernetAddress;
use weir_core::drops::DropReason;
use weir_core::due::sooner;
use weir_core::net::bridge::AGEING_NS;
use weir_core::net::route::Interface;
use weir_core::net::router::{RouterSettings, StaticNeighbour};
use weir_path::plan::{Attachment, StageKind, StagePlan};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::Until;

use super::*;
use crate::testbed::{port, testbed, two_links};

const STEP_NS: u64 = 10_000;

fn mac(last: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, last])
}

/// A generator of so many flows and packets, from station `from` to station `to`.
fn generator(from: u8, to: u8, first_flow: u32, flows: u32, packets: u64) -> MemoryEnd {
    let traffic = Traffic {
        size_bytes: 60,
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.1.2:1-10.0.1.2:9999".parse().unwrap(),
        src_mac: mac(from),
        dst_mac: mac(to),
        flows,
        first_flow,
    };
    MemoryEnd::Generator(GenSpec { traffic, packets_per_s: None, until: Until::Packets(packets) })
}

/// Ports around one stage, each at its port of the same number, on one worker.
fn around(kind: StageKind, ends: Vec<MemoryEnd>) -> MemoryPath {
    let plan = Plan {
        ports: (0..ends.len()).map(|index| port(&format!("p{index}"))).collect(),
        stages: vec![StagePlan { name: "stage".into(), kind }],
        links: (0..ends.len()).map(|at| [Attachment::Port(at), Attachment::Stage(0, at as u16)]).collect(),
        ..Plan::default()
    };
    MemoryPath { owners: Owners::alone(&plan), plan, ends, workers: 1, frames: 2048, held_packets_max: 256 }
}

fn bridge(ports: usize) -> StageKind {
    StageKind::Bridge { ports: ports as u16, stations_max: 64, ageing_ns: AGEING_NS }
}

/// A path whose workers take turns on this thread.
struct Stepped<'a> {
    path: &'a MemoryPath,
    workers: Vec<MemoryPathWorker>,
    now_ns: u64,
}

impl Stepped<'_> {
    fn new(path: &MemoryPath) -> Stepped<'_> {
        Stepped { path, workers: path.workers(0).unwrap(), now_ns: 0 }
    }

    /// Makes one pass of a worker; returns the number of packets that moved, and the time when the next is due.
    fn pass(&mut self, worker: usize) -> (usize, Option<u64>) {
        let worker = &mut self.workers[worker];
        let ports: Vec<_> = worker.ends().iter().map(|end| end.index).collect();
        for port in ports {
            worker.end_mut(port).0.port.kernel_mut().map(|port| port.look(self.now_ns));
        }
        let pass = worker.pass(self.now_ns).unwrap();
        (pass.moved, pass.wake_ns)
    }

    /// One pass of each.
    fn step(&mut self) -> (usize, Option<u64>) {
        (0..self.workers.len())
            .map(|worker| self.pass(worker))
            .fold((0, None), |(moved, wake_ns), pass| (moved + pass.0, sooner(wake_ns, pass.1)))
    }

    /// Its books, which must balance.
    fn summary(&self) -> MemorySummary {
        let told = WorkerTold { last_ended_ns: self.now_ns, ..WorkerTold::default() };
        let summary = summarise(self.path, self.workers.iter().map(|worker| (worker, told)), 0);
        assert!(summary.balances(), "{summary:?}");
        summary
    }

    fn is_at_rest(&self) -> bool {
        let ends = || self.workers.iter().flat_map(|worker| worker.ends());
        let summary = self.summary();
        ends().all(|end| end.port.kernel().is_none_or(MemoryPort::is_done)) && summary.held.packets == 0
    }

    /// Steps until it is at rest, checking the books on the way.
    fn into_rest(mut self) -> MemorySummary {
        for step in 0..200_000 {
            self.step();
            self.now_ns += STEP_NS;
            if step % 16 == 0 && self.is_at_rest() {
                return self.summary();
            }
        }
        panic!("it never came to rest: {:?}", self.summary());
    }
}

fn assert_clean(summary: &MemorySummary, packets: u64) {
    let seen = summary.sequences();
    assert_eq!((seen.numbered, summary.account.delivered.packets), (packets, packets));
    assert_eq!((seen.missing, seen.duplicated, seen.reordered, summary.lost()), (0, 0, 0, 0));
}

#[test]
fn the_test_bed_loses_and_reorders_nothing() {
    for workers in [1, 2] {
        let summary = Stepped::new(&testbed(workers, None, Until::Packets(20_000))).into_rest();
        assert_clean(&summary, 20_000);
        let of_stages: Vec<_> = summary.stages.iter().map(|account| account.accepted.packets).collect();
        assert_eq!(of_stages, [20_000; 3], "{workers} workers");
    }
}

#[test]
fn a_burst_goes_all_the_way_in_a_pass() {
    let path = testbed(1, None, Until::Packets(64));
    let mut stepped = Stepped::new(&path);
    stepped.step();
    stepped.workers[0].complete();
    assert_eq!(stepped.summary().account.delivered.packets, 64);
}

#[test]
fn a_busy_link_takes_no_more_of_its_worker_than_another() {
    let path = two_links(Until::Packets(100_000));
    let mut stepped = Stepped::new(&path);
    for _ in 0..500 {
        // The worker that saturates the first link is faster: four passes for one.
        for _ in 0..4 {
            stepped.pass(0);
        }
        stepped.pass(1);
    }
    let [first, second] = [2, 3].map(|sink: usize| stepped.summary().delivered[sink].packets);
    assert!(second * 100 >= (first + second) * 45, "{first} and {second}");
}

#[test]
fn a_flood_is_copied_to_every_other_port_and_balances() {
    let sinks = (0..3).map(|_| MemoryEnd::Sink { flows: 10 });
    let ends = [generator(1, 9, 0, 10, 1000)].into_iter().chain(sinks).collect();
    let summary = Stepped::new(&around(bridge(4), ends)).into_rest();
    assert_eq!((summary.account.accepted.packets, summary.account.delivered.packets), (3000, 3000));
    for (_, seen) in &summary.sinks {
        assert_eq!((seen.numbered, seen.missing, seen.reordered, seen.duplicated), (1000, 0, 0, 0));
    }
}

#[test]
fn copies_without_a_frame_are_dropped_by_that_name() {
    const SINKS: usize = 12;
    let sinks = (0..SINKS).map(|_| MemoryEnd::Sink { flows: 1 });
    let ends = [generator(1, 9, 0, 1, 500)].into_iter().chain(sinks).collect();
    let summary = Stepped::new(&MemoryPath { frames: 256, ..around(bridge(SINKS + 1), ends) }).into_rest();
    let dropped: Vec<_> = summary.account.dropped.occurred().map(|(reason, _)| reason).collect();
    assert_eq!(dropped, [DropReason::NoFrame]);
    assert_eq!(summary.account.accepted.packets, 500 * SINKS as u64, "each copy is in the books");
    assert_eq!(summary.delivered[1].packets, 500, "the packet itself needs no frame more");
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
        announces: false,
        host: None,
    }
}

fn routed(router: RouterSettings, generator: MemoryEnd) -> MemoryPath {
    around(StageKind::Router(Box::new(router)), vec![generator, MemoryEnd::Sink { flows: 4 }])
}

/// Long packets through that router, on so many workers and frames, to a station it knows.
fn long_packets(mtu_bytes: u16, packets: u64, workers: usize, frames: u32) -> MemorySummary {
    let mut router = two_networks(mtu_bytes);
    router.neighbours.push(StaticNeighbour {
        interface: 1,
        address: IpAddr::from([10, 0, 1, 2]),
        mac: mac(2),
    });
    let mut generator = generator(1, 10, 0, 4, packets);
    if let MemoryEnd::Generator(spec) = &mut generator {
        spec.traffic.size_bytes = 1514;
    }
    let owners = Owners { ports: vec![0, 0], stages: vec![workers - 1] };
    Stepped::new(&MemoryPath { owners, workers, frames, ..routed(router, generator) }).into_rest()
}

#[test]
fn long_packets_are_cut_in_order_and_the_books_balance() {
    for workers in [1, 2] {
        let summary = long_packets(576, 1000, workers, 4096);
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
    assert_eq!(summary.delivered[1].packets, router.frag_creates, "all fragments of a packet or none");
}

#[test]
fn packets_without_a_neighbour_are_kept_then_dropped_and_their_sender_told() {
    let mut router = two_networks(1500);
    (router.held_max, router.waiting_max) = (100, 40);
    let path = routed(router, generator(1, 10, 0, 1, 100));
    let mut stepped = Stepped::new(&path);
    for _ in 0..4 {
        stepped.step();
    }
    let summary = stepped.summary();
    assert_eq!(summary.held.packets, 40, "as many as may wait for one neighbour");
    assert_eq!(summary.account.dropped.get(DropReason::NeighbourFull).packets, 60);
    while !stepped.is_at_rest() {
        stepped.now_ns = stepped.step().1.unwrap_or(0).max(stepped.now_ns + 1);
        assert!(stepped.now_ns <= 10_000_000_000, "they wait for ever");
    }
    let summary = stepped.summary();
    assert_eq!(summary.account.dropped.get(DropReason::NoNeighbour).packets, 40);
    assert_eq!(summary.sequences().unnumbered, 3, "three requests came to the sink's link");
    assert!(summary.delivered[0].packets > 0, "the generator was told");
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
    if let MemoryEnd::Generator(spec) = &mut scan {
        spec.traffic.src = "10.0.2.1".parse().unwrap();
        spec.traffic.dst = "10.1.1.0-10.1.254.255".parse().unwrap();
    }
    let ends = vec![generator(1, 10, 0, 4, PACKETS), MemoryEnd::Sink { flows: 4 }, scan];
    let path = MemoryPath {
        owners: Owners { ports: vec![0, 1, 1], stages: vec![0] },
        workers: 2,
        ..around(StageKind::Router(Box::new(router)), ends)
    };
    let mut stepped = Stepped::new(&path);
    while !stepped.is_at_rest() {
        let (moved, wake_ns) = stepped.step();
        let next_ns = stepped.now_ns + STEP_NS;
        stepped.now_ns = if moved > 0 { next_ns } else { wake_ns.unwrap_or(0).max(next_ns) };
        assert!(stepped.now_ns <= 10_000_000_000, "they wait for ever");
    }
    let summary = stepped.summary();
    let (seen, dropped) = (summary.sequences(), &summary.account.dropped);
    assert_eq!((seen.numbered, seen.missing, seen.reordered, seen.duplicated), (PACKETS, 0, 0, 0));
    let scanned =
        [DropReason::NeighbourFull, DropReason::NoNeighbour].map(|reason| dropped.get(reason).packets);
    assert_eq!((scanned.iter().sum::<u64>(), dropped.total().packets), (PACKETS, PACKETS), "{scanned:?}");
    assert!(scanned[1] > 0 && summary.routers[0].1.solicits_limited > 0, "{summary:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Pairs of generator and sink, each joined by a link, and a bridge beside them, whichever workers own them.
    #[test]
    fn nothing_is_lost_or_reordered_whoever_owns_what(
        workers in 1usize..6,
        pairs in 1usize..5,
        owned in proptest::collection::vec(0usize..64, 9),
        held_packets_max in 1u64..300,
        packets in 1u64..2000,
    ) {
        let owner = |at: usize| owned[at % owned.len()] % workers;
        let mut path = around(bridge(2), vec![generator(1, 2, 0, 7, packets), MemoryEnd::Sink { flows: 64 }]);
        for pair in 1..pairs {
            let place = path.ends.len();
            path.ends.extend([generator(1, 2, 7 * pair as u32, 7, packets), MemoryEnd::Sink { flows: 64 }]);
            path.plan.ports.extend(["gen", "sink"].map(|name| port(&format!("{name}-{pair}"))));
            path.plan.links.push([Attachment::Port(place), Attachment::Port(place + 1)]);
        }
        path.owners = Owners { ports: (0..path.ends.len()).map(owner).collect(), stages: vec![owner(8)] };
        let path = MemoryPath { workers, held_packets_max, frames: 512 * workers as u32, ..path };
        assert_clean(&Stepped::new(&path).into_rest(), packets * pairs as u64);
    }
}

fn has_two_cores() -> bool {
    sys::allowed_cores().len() >= 2
}

/// Runs a path on threads, and stops it after a minute.
fn run(path: &MemoryPath) -> MemorySummary {
    let summary = path.run(&mut |elapsed_ns, _| elapsed_ns < 60_000_000_000).unwrap();
    assert!(summary.balances(), "{summary:?}");
    summary
}

#[test]
fn the_test_bed_on_threads() {
    for workers in if has_two_cores() { 1..=2 } else { 1..=1 } {
        let summary = run(&testbed(workers, None, Until::Packets(300_000)));
        assert_clean(&summary, 300_000);
    }
}

/// Hardly any frames and room for one packet: generators wait for credit all the time, and each wait must end.
#[test]
fn a_generator_that_waits_for_credit_is_always_woken() {
    if !has_two_cores() {
        return;
    }
    let path = testbed(2, None, Until::Packets(20_000));
    let summary = run(&MemoryPath { held_packets_max: 1, frames: 768, ..path });
    assert_eq!(summary.sequences().numbered, 20_000);
}

/// A generator behind one gateway and a sink behind another, each with packets that wait for it.
fn tunnel(dispatch: &str, workers: usize, packets: u64) -> MemoryPath {
    let mut text = String::from("name = \"tunnel\"\n[[epair]]\nname = \"e\"\n");
    for (name, inside, outside, own, direction) in
        [("near", "gen", "ea", 1, "out"), ("far", "sink", "eb", 2, "in")]
    {
        text += &format!(
            "[[port]]\ninterface = \"{inside}\"\n\
             [[esp]]\nname = \"{name}\"\ninside = \"{inside}\"\noutside = \"{outside}\"\n\
             address = [\"192.0.2.{own}\"]\n{dispatch}\n\
             [[sa]]\nname = \"{name}-{direction}\"\nesp = \"{name}\"\ndirection = \"{direction}\"\nspi = 0x1001\n\
             source = \"192.0.2.1\"\ndestination = \"192.0.2.2\"\nalgorithm = \"null\"\nwindow = 1024\n\
             [[policy]]\nesp = \"{name}\"\ndirection = \"{direction}\"\naction = \"protect\"\nsa = [\"{name}-{direction}\"]\n",
        );
    }
    // A window is of inbound associations.
    let text = text.replacen("window = 1024\n", "", 1);
    let topology = crate::topology::read("tunnel.toml", &text, "", |path| Err(path.into())).unwrap();
    let plan = topology.plan.unwrap();
    let ends = vec![generator(1, 2, 0, 7, packets), MemoryEnd::Sink { flows: 7 }];
    let owners = Owners::deal(&plan, workers);
    MemoryPath { owners, plan, ends, workers, frames: 4096, held_packets_max: 256 }
}

#[test]
fn packets_that_wait_for_a_gateway_come_whole_and_in_order() {
    for dispatch in ["deferred", "hybrid"] {
        for (workers, queue_packets) in [(1, 1), (2, 1), (2, 256), (4, 16)] {
            for sealers in ["", "sealers = 3"] {
                let dispatch =
                    format!("dispatch = \"{dispatch}\"\nqueue_packets = {queue_packets}\n{sealers}");
                let summary = Stepped::new(&tunnel(&dispatch, workers, 5_000)).into_rest();
                assert_clean(&summary, 5_000);
            }
        }
    }
    if has_two_cores() {
        assert_clean(&run(&tunnel("dispatch = \"deferred\"", 2, 300_000)), 300_000);
        assert_clean(&run(&tunnel("dispatch = \"deferred\"\nsealers = 2", 2, 300_000)), 300_000);
    }
}

#[test]
fn a_generator_with_a_rate_sleeps_between_packets_and_keeps_it() {
    let summary = run(&testbed(1, Some(1000), Until::Packets(50)));
    assert_eq!(summary.sequences().numbered, 50);
    assert!(summary.elapsed_ns >= 49_000_000, "{} ns", summary.elapsed_ns);
    assert!(summary.workers[0].told.parks > 0);
}

#[test]
fn a_run_that_delivered_nothing_has_a_rate_of_zero() {
    let summary = run(&testbed(1, None, Until::Packets(0)));
    assert_eq!((summary.elapsed_ns, summary.packets_per_s()), (0, 0.0));
    assert!(summary.seconds() > 0.0);
}

#[test]
fn generators_stop_when_they_are_told() {
    let path = testbed(1, None, Until::Stopped);
    let summary = path.run(&mut |_, delivered| delivered.packets < 1000).unwrap();
    assert!(summary.balances() && summary.account.delivered.packets >= 1000);
    assert_eq!(summary.held.packets, 0);
}

#[test]
fn a_worker_that_dies_is_named_and_takes_the_others_with_it() {
    let path = testbed(1, None, Until::Stopped);
    let board = Arc::new(ProgressBoard::new(1));
    let mut running = Running::new(0, path.workers(0).unwrap().remove(0), Arc::clone(&board));
    // A generator that is none.
    running.generators = vec![9];
    let (sender, ended) = channel();
    let seat = WorkerSeat { core: Some(sys::allowed_cores()[0]), is_realtime: false, is_shared: false };
    let start_line = StartLine::new(1);
    let died = thread::scope(|scope| {
        start(scope, (running, seat, 10_000), &start_line, sender.clone()).unwrap();
        watch(&board, &ended, 1, now_ns(), &mut |_, _| true)
    });
    let died = died.err().unwrap().to_string();
    assert!(died.starts_with("worker 0 died: "), "{died}");
}

#[test]
fn what_is_wrong_with_a_path_is_said() {
    let workers = sys::allowed_cores().len() + 1;
    let path = around(bridge(2), vec![generator(1, 2, 0, 1, 1), MemoryEnd::Sink { flows: 1 }]);
    let refused = |path: MemoryPath| path.run(&mut |_, _| true).unwrap_err().to_string();
    assert!(refused(MemoryPath { workers, ..path.clone() }).contains("each worker wants one of its own"));
    assert!(refused(MemoryPath { workers: 0, ..path.clone() }).contains("0 workers"));
    let unseated = path.run_seated(path.workers(0).unwrap(), &[], &mut |_, _| true);
    assert!(unseated.is_err_and(|error| error.to_string() == "1 workers and 0 seats for 1"));
    let mut wrong = path;
    if let MemoryEnd::Generator(spec) = &mut wrong.ends[0] {
        spec.traffic.size_bytes = 20;
    }
    assert_eq!(refused(wrong), "packets of 20 bytes: give 60 to 1514");
}
