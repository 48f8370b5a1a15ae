//! A topology on several workers, those that ship, in virtual time: any of them that is awake makes the next pass, as a seed says. After
//! each pass every packet is in one place. A worker without work parks, and sleeps until its time comes, a packet does, or another worker
//! calls.

use weir_core::drops::Count;
use weir_path::assembly::Shares;
use weir_path::deal;
use weir_path::departures::{Departures, UNDER_WAY_MAX};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::landings::Landings;
use weir_path::loop_port::LoopPort;
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan};
use weir_path::port::{POLL_PACKETS_MAX, TransmitRing};
use weir_path::worker::Worker;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_sim::frame_port::FramePort;
use weir_sim::plans::{
    BROADCAST, MS, PACKET_BYTES, bed, bridge, bridged, mac, mbit, number_of, packet, port_plan, routed,
};
use weir_sim::prng::Prng;

#[path = "workers/change.rs"]
mod change;
#[path = "workers/dispatch.rs"]
mod dispatch;
#[path = "workers/esp.rs"]
mod esp;
#[path = "workers/hybrid.rs"]
mod hybrid;
#[path = "workers/sealers.rs"]
mod sealers;
#[path = "workers/transmit.rs"]
mod transmit;
#[path = "workers/wire.rs"]
mod wire;

const FRAMES: u32 = 16_384;
const FRAME_BYTES: u32 = 2048;
const SEED: u64 = 20_261_123;

/// A port with senders, or one that leads back.
type BenchPort = EitherPort<FramePort, LoopPort>;

/// The workers of a topology.
struct Bench {
    workers: Vec<Worker<BenchPort>>,
    owners: Owners,
    /// The workers that are asleep, and the time until which each is.
    asleep: Vec<Option<Option<u64>>>,
    /// The time that a pass of each worker takes, and the time until which its present one takes.
    pass_ns: Vec<u64>,
    busy_until_ns: Vec<u64>,
    /// True if calls of other workers are lost.
    is_deaf: bool,
    random: Prng,
    now_ns: u64,
}

impl Bench {
    fn new(plan: &Plan, queues: usize, workers: usize, seed: u64) -> Bench {
        let held_packets_max = u64::from(FRAMES) / (2 * plan.ports.len() as u64);
        let queues = vec![queues; plan.ports.len()];
        Bench::dealt(plan, Owners::deal(plan, workers), &queues, 0, held_packets_max, seed)
    }

    /// The workers of a plan whose ports have so many queues each, of which the last `loops` lead back.
    fn dealt(
        plan: &Plan,
        owners: Owners,
        queues: &[usize],
        loops: usize,
        held_packets_max: u64,
        seed: u64,
    ) -> Bench {
        println!("seed {seed}");
        let workers = owners.ports.iter().chain(&owners.stages).max().unwrap() + 1;
        let pools = Pool::for_workers(FrameMemory::new(FRAMES, FRAME_BYTES).unwrap(), workers);
        let queues_gone = queues[0];
        let shares = Shares { held_packets_max, poll_budget_max: POLL_PACKETS_MAX, queues_gone, seed: 7 };
        let port = |port: usize| match port < plan.ports.len() - loops {
            true => EitherPort::Kernel(Box::new(FramePort::new(queues[port]))),
            false => EitherPort::Memory(Box::<LoopPort>::default()),
        };
        let ports = (0..plan.ports.len()).map(port).map(Some).collect();
        let frames = pools.into_iter().map(Frames::new).collect();
        let made = deal::workers((plan, &owners), ports, frames, shares, 0).unwrap();
        Bench {
            workers: made,
            owners,
            asleep: vec![None; workers],
            pass_ns: vec![0; workers],
            busy_until_ns: vec![0; workers],
            is_deaf: false,
            random: Prng::new(seed),
            now_ns: 0,
        }
    }

    fn port(&mut self, port: usize) -> &mut FramePort {
        let owner = self.owners.ports[port];
        self.workers[owner].end_mut(port).0.port.kernel_mut().unwrap()
    }

    /// Packets on their way from one worker to another.
    fn under_way(&self) -> u64 {
        let mut handed = Count::default();
        let over = self.workers.iter().filter_map(|worker| worker.between().over.as_ref());
        over.flat_map(Departures::handed).for_each(|&count| handed.merge(count));
        let taken = self.workers.iter().filter_map(Worker::landings).map(Landings::taken);
        handed.packets - taken.map(|count| count.packets).sum::<u64>()
    }

    fn held(&self) -> u64 {
        let inside = |worker: &Worker<BenchPort>| {
            let loops = worker.ends().iter().filter(|end| end.port.kernel().is_none());
            let looped: u64 = loops.map(|end| end.port.in_flight().packets).sum();
            worker.between().egress.held().packets + worker.between().kept().packets + looped
        };
        self.workers.iter().map(inside).sum()
    }

    /// Packets that wait with senders or are inside.
    fn left_to_do(&self) -> u64 {
        let ports = self.workers.iter().flat_map(Worker::ends).filter_map(|end| end.port.kernel());
        let queued = ports.map(|port| port.queued() as u64);
        queued.sum::<u64>() + self.held() + self.under_way()
    }

    fn require_conserved(&self) {
        for worker in &self.workers {
            let between = worker.between();
            for queue in between.egress.queues() {
                assert!(
                    queue.shaping.account().balances(queue.shaping.held()),
                    "egress queue {}",
                    queue.port
                );
            }
            assert!(between.stages().all(|stage| stage.account().balances(stage.held())), "a stage's books");
        }
        let census = self.workers[0].frames().pool.census();
        let lent: u64 = self.workers.iter().map(|worker| u64::from(worker.frames().loans.count())).sum();
        assert_eq!(lent + self.held() + self.under_way(), census.out, "frames of what is held");
    }

    fn is_awake(&self, worker: usize) -> bool {
        if self.busy_until_ns[worker] > self.now_ns {
            return false;
        }
        let Some(until_ns) = self.asleep[worker] else { return true };
        let path = &self.workers[worker];
        let is_called = !self.is_deaf && path.landings().is_some_and(Landings::is_called);
        let is_due = until_ns.is_some_and(|until_ns| until_ns <= self.now_ns);
        is_due || is_called || path.ends().iter().any(|end| end.intake.is_announced(&end.port))
    }

    /// Makes one pass of a worker that is awake, if one is.
    fn step(&mut self) -> bool {
        let awake: Vec<_> = (0..self.workers.len()).filter(|&worker| self.is_awake(worker)).collect();
        let Some(&number) = awake.get(self.random.below(awake.len().max(1) as u64) as usize) else {
            return false;
        };
        self.asleep[number] = None;
        let worker = &mut self.workers[number];
        let pass = worker.pass(self.now_ns).unwrap();
        self.busy_until_ns[number] = self.now_ns + self.pass_ns[number];
        if pass.moved == 0 && worker.park(|_| Ok(())).unwrap() {
            self.asleep[number] = Some(pass.wake_ns);
        }
        self.require_conserved();
        true
    }

    /// Lets workers pass until all sleep, or for `passes` passes, and moves the time on to the next due one, by `step_ns_max` at the most.
    fn go_on(&mut self, passes: usize, step_ns_max: u64) {
        for _ in 0..passes {
            if !self.step() {
                break;
            }
        }
        let busy = self.busy_until_ns.iter().copied().filter(|&until_ns| until_ns > self.now_ns);
        let due = self.asleep.iter().filter_map(|asleep| (*asleep)?).chain(busy).min();
        let latest_ns = self.now_ns + step_ns_max;
        self.now_ns = due.map_or(latest_ns, |due_ns| due_ns.clamp(self.now_ns + 1_000, latest_ns));
    }

    /// Goes on until all packets have left; returns whether they did within `within_ns`.
    fn run_dry(&mut self, within_ns: u64) -> bool {
        let until_ns = self.now_ns + within_ns;
        while self.left_to_do() > 0 && self.now_ns < until_ns {
            self.go_on(10_000, MS);
        }
        self.left_to_do() == 0
    }

    /// Has every station behind the ports be heard once.
    fn greet(&mut self, ports: usize, stations: usize) {
        for port in 0..ports {
            for station in 0..stations {
                let hello = packet(mac(port, station), BROADCAST, [std::net::Ipv4Addr::LOCALHOST; 2], 0);
                self.port(port).send(station, hello);
            }
        }
        assert!(self.run_dry(20_000 * MS));
        (0..ports).for_each(|port| self.port(port).left.clear());
    }
}

fn lan(rates: &[u64]) -> Plan {
    let count = rates.len();
    let ports = rates.iter().enumerate().map(|(port, &rate)| port_plan(port, Some(mbit(rate)))).collect();
    let links = (0..count).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    Plan { ports, stages: vec![bridge("lan", count as u16)], links, ..Plan::default() }
}

/// Four ports of 16 queues on a bridge, two with each worker, one slow and flooded by the three others.
#[test]
fn one_slow_port_of_another_worker_holds_nothing_that_goes_elsewhere() {
    const QUEUES: usize = 16;
    const SLOW: usize = 3;
    for seed in [SEED, SEED + 1, SEED + 2] {
        let mut bench = Bench::new(&lan(&[200, 200, 200, 1]), QUEUES, 2, seed);
        assert_eq!((&bench.owners.ports[..], &bench.owners.stages[..]), (&[0, 0, 1, 1][..], &[0][..]));
        bench.greet(4, QUEUES);
        let begin_ns = bench.now_ns;
        let mut sent = [[0u64; QUEUES]; 4];
        let (mut held_max, mut under_way_max) = (0, 0);
        while bench.now_ns < begin_ns + 200 * MS {
            for (from, sent) in sent.iter_mut().enumerate().take(3) {
                for (queue, number) in sent.iter_mut().enumerate() {
                    // Half of the queues flood the slow port, the others the next of the quick ones.
                    let to = if queue % 2 == 0 { SLOW } else { (from + 1) % 3 };
                    while bench.port(from).queued_in(queue) < 20 {
                        bench.port(from).send(queue, bridged((from, queue), (to, queue), *number));
                        *number += 1;
                    }
                }
            }
            bench.go_on(200, 200_000);
            held_max = held_max.max(bench.workers[1].egress(SLOW).unwrap().shaping.held().packets);
            under_way_max = under_way_max.max(bench.under_way());
        }
        let elapsed_s = (bench.now_ns - begin_ns) as f64 / 1e9;
        for port in 0..3 {
            let left = &bench.port(port).left;
            let bits_per_s = left.len() as f64 * PACKET_BYTES as f64 * 8.0 / elapsed_s;
            assert!(bits_per_s >= 0.99 * 200e6, "port {port}: {} Mbit/s", bits_per_s / 1e6);
        }
        // Each of 24 queues brings a poll, while no packet of it is there; packets that one worker hands the other are bounded.
        assert!(held_max <= 24 * u64::from(POLL_PACKETS_MAX), "{held_max} held for the slow port");
        assert!(
            under_way_max <= UNDER_WAY_MAX + 48 * u64::from(POLL_PACKETS_MAX),
            "{under_way_max} under way"
        );
        for port in 0..4 {
            let mut next = [[0u64; QUEUES]; 4];
            for bytes in &bench.port(port).left {
                let (from, queue) = (usize::from(bytes[10]), usize::from(bytes[11]));
                assert_eq!(number_of(bytes), next[from][queue], "in order and none missing");
                next[from][queue] += 1;
            }
        }
        let stage = bench.workers[0].between().stages().next().unwrap();
        assert_eq!(stage.account().dropped.total().packets, 0);
    }
}

/// The first bridge and the router with one worker, the other bridge with the other.
#[test]
fn a_bed_over_two_workers_holds_its_senders_and_loses_nothing() {
    let mut bench = Bench::new(&bed(), 4, 2, SEED);
    assert_eq!((&bench.owners.ports[..], &bench.owners.stages[..]), (&[0, 1][..], &[0, 0, 1][..]));
    for number in 0..2_000 {
        bench.port(0).send(0, routed(number, "10.0.1.2"));
    }
    while bench.step() {}
    assert!(bench.port(0).queued() > 1_500, "the sender is held");
    assert!(bench.run_dry(1_000 * MS));
    let took_ms = bench.now_ns as f64 / 1e6;
    assert!((155.0..167.0).contains(&took_ms), "2,000 packets of 80 us in {took_ms} ms");
    let left = std::mem::take(&mut bench.port(1).left);
    assert_eq!(left.len(), 2_000);
    for (number, bytes) in left.iter().enumerate() {
        assert_eq!((number_of(bytes), bytes[22]), (number as u64, 63), "in order, a hop counted");
    }
    // A worker that stops takes no packet in, and ends when none can come any more.
    (0..100).for_each(|number| bench.port(0).send(0, routed(number, "10.0.1.2")));
    bench.step();
    bench.workers[1].drain(bench.now_ns).unwrap();
    assert!(!bench.workers[1].is_drained(), "the other may have more");
    for _ in 0..10_000 {
        bench.now_ns += MS / 10;
        for worker in &mut bench.workers {
            worker.drain(bench.now_ns).unwrap();
        }
        bench.require_conserved();
    }
    assert!(bench.workers.iter().all(Worker::is_drained));
    assert_eq!(bench.held() + bench.under_way(), 0);
}

/// Floods of both workers, while limits that others poll by change.
#[test]
fn floods_from_both_workers_to_both_end() {
    for seed in 0..8 {
        let mut bench = Bench::new(&lan(&[50, 1, 50, 20]), 2, 2, SEED + seed);
        bench.greet(4, 2);
        let mut sent = [0u64; 4];
        for round in 0..40u64 {
            for (from, sent) in sent.iter_mut().enumerate() {
                for _ in 0..bench.random.below(40) {
                    let to = (from + 1 + (round as usize % 3)) % 4;
                    bench.port(from).send(0, bridged((from, 0), (to, 0), *sent));
                    *sent += 1;
                }
            }
            let rate = 1 + bench.random.below(50);
            let now_ns = bench.now_ns;
            bench.workers[0].set_limits(1, Some(mbit(rate)), now_ns).unwrap();
            bench.workers.iter_mut().for_each(Worker::tune);
            bench.go_on(30, MS);
        }
        assert!(bench.run_dry(20_000 * MS), "seed {seed}: {} left", bench.left_to_do());
        let left: usize = (0..4).map(|port| bench.port(port).left.len()).sum();
        assert_eq!(left as u64, sent.iter().sum::<u64>());
    }
}

/// The second worker does not come, as on a machine where another process goes first.
#[test]
fn a_worker_that_does_not_come_is_handed_a_bounded_number_and_calls_when_it_does() {
    let mut bench = Bench::new(&bed(), 1, 2, SEED);
    (0..5_000).for_each(|number| bench.port(0).send(0, routed(number, "10.0.1.2")));
    bench.asleep[1] = Some(None);
    bench.is_deaf = true;
    while bench.step() {}
    let most = UNDER_WAY_MAX + u64::from(POLL_PACKETS_MAX);
    assert!((UNDER_WAY_MAX..most).contains(&bench.under_way()), "{} under way", bench.under_way());
    assert!(bench.asleep[0].is_some(), "and whoever hands over sleeps");
    bench.is_deaf = false;
    assert!(bench.run_dry(1_000 * MS));
    assert_eq!(bench.port(1).left.len(), 5_000);
}

/// The bridge is with the first worker, the port that goes with the second.
#[test]
fn a_port_that_goes_is_forgotten_by_the_bridge_of_another_worker() {
    let mut bench = Bench::new(&lan(&[50, 50, 50, 50]), 2, 2, SEED);
    bench.greet(4, 2);
    let stations = |bench: &Bench| {
        let stage = bench.workers[0].between().stages().next().unwrap();
        stage.bridge().unwrap().stations()
    };
    assert_eq!(stations(&bench), 8);
    let now_ns = bench.now_ns;
    let port = bench.workers[1].take_port(3, now_ns).unwrap();
    bench.asleep[1] = None;
    while bench.step() {}
    assert_eq!(stations(&bench), 6);
    // Packets for the port that is gone are flooded, and end where they would have left; the others go on.
    (0..50).for_each(|number| bench.port(0).send(0, bridged((0, 0), (3, 0), number)));
    (0..50).for_each(|number| bench.port(0).send(1, bridged((0, 1), (2, 0), number)));
    assert!(bench.run_dry(1_000 * MS));
    assert_eq!(bench.port(2).left.len(), 100);
    let now_ns = bench.now_ns;
    assert!(bench.workers[1].give_port(3, port, now_ns).is_ok());
    (0..50).for_each(|number| bench.port(0).send(0, bridged((0, 0), (3, 0), number)));
    assert!(bench.run_dry(1_000 * MS));
    assert_eq!(bench.port(3).left.len(), 50);
}

/// A call that is lost is found: the queue behind the gate is looked at no more until its second of patience is over.
#[test]
fn a_lost_call_is_seen() {
    let run = |is_deaf: bool| {
        let mut bench = Bench::new(&bed(), 1, 2, SEED);
        (0..500).for_each(|number| bench.port(0).send(0, routed(number, "10.0.1.2")));
        while bench.step() {}
        bench.is_deaf = is_deaf;
        bench.run_dry(200 * MS)
    };
    assert!(run(false), "40 ms are enough");
    assert!(!run(true), "nobody hears, and it goes on all the same");
}
