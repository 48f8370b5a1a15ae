//! Netisr's dispatch in every mode and policy: flows of a generator come in by queues of one interface, which are dealt to workers.

use weir_core::dispatch::handlers;
use weir_core::dispatch::protocol::{Mode, WhenFull};
use weir_core::dispatch::settings::{Configuration, Settings};
use weir_core::drops::DropReason;
use weir_path::dispatch::{Dispatch, DispatchCounts, dispatched, registry, spread};
use weir_path::plan::WireDispatch;
use weir_path::traffic::flows::{Flows, Traffic};
use weir_path::traffic::sequence::Sequences;

use super::*;

const QUEUES: usize = 4;
const FLOWS: u32 = 64;
const SIZE_BYTES: u16 = 60;

fn traffic() -> Traffic {
    Traffic {
        size_bytes: SIZE_BYTES,
        src: "198.18.0.1".parse().unwrap(),
        dst: "198.19.0.1-198.19.0.250".parse().unwrap(),
        src_mac: smoltcp::wire::EthernetAddress([2; 6]),
        dst_mac: smoltcp::wire::EthernetAddress([2; 6]),
        flows: FLOWS,
        first_flow: 0,
    }
}

/// Workers of which the first `entries` receive.
struct DispatchBench {
    bench: Bench,
    configuration: Configuration,
    entries: usize,
    /// The flows that come by each receive queue of each entry.
    flows: Vec<Flows>,
    sent: u64,
}

impl DispatchBench {
    fn new((workers, entries): (usize, usize), settings: &[(&str, &str)], seed: u64) -> DispatchBench {
        let mut read = Settings::new(handlers::protocols());
        settings.iter().for_each(|(key, text)| read.set(key, text).unwrap());
        read.set("maxthreads", &workers.to_string()).unwrap();
        let configuration = read.finish(workers).unwrap();
        let received = (0..entries).map(|entry| (port_plan(entry, None), entry)).collect();
        let steers = entries < workers;
        let made = dispatched(&configuration.registry, received, Vec::new(), steers, FLOWS);
        let queues = [vec![QUEUES; entries], vec![1; made.loops.len()]].concat();
        let bench = Bench::dealt(&made.plan, made.owners, &queues, made.loops.len(), u64::from(FRAMES), seed);
        let flows = Flows::new(&traffic()).unwrap().deal(entries * QUEUES);
        DispatchBench { bench, configuration, entries, flows, sent: 0 }
    }

    /// Sends the next packet of the flows of a queue.
    fn send(&mut self, entry: usize, queue: usize) {
        let flows = &mut self.flows[entry * QUEUES + queue];
        if !flows.is_empty() {
            let bytes = next_packet(flows);
            self.bench.port(entry).send(queue, bytes);
            self.sent += 1;
        }
    }

    fn dispatch(&self, worker: usize) -> &Dispatch {
        self.bench.workers[worker].between().stages().next().unwrap().dispatch().unwrap()
    }

    fn counts(&self, worker: usize, name: &str) -> DispatchCounts {
        *self.dispatch(worker).counts(self.configuration.registry.id(name).unwrap())
    }

    fn delivered(&self) -> u64 {
        let stages = self.bench.workers.iter().flat_map(|worker| worker.between().stages());
        stages.map(|stage| stage.own()[1].packets).sum()
    }

    fn dropped(&self) -> u64 {
        let stages = self.bench.workers.iter().flat_map(|worker| worker.between().stages());
        stages.map(|stage| stage.account().dropped.get(DropReason::WorkstreamFull).packets).sum()
    }

    /// The packets that all workers have seen, and how many flows came to more than one.
    fn seen(&self) -> (Sequences, u64) {
        let mut all = Sequences::joining(FLOWS);
        let workers = 0..self.bench.workers.len();
        let split = workers.map(|worker| all.merge(self.dispatch(worker).sequences())).sum();
        (all, split)
    }

    /// Requires that every packet queued or handled at once was handled, and none waits: the sums of `-Q`.
    fn require_counted(&self, case: &str) {
        for worker in 0..self.bench.workers.len() {
            for name in ["ether", "arp", "ip", "ip6"] {
                let counts = self.counts(worker, name);
                let done = counts.dispatched + counts.hybrid_dispatched + counts.queued;
                assert_eq!((counts.handled, counts.len), (done, 0), "{case}: {name} of {worker}: {counts:?}");
            }
        }
    }
}

#[test]
fn flows_keep_their_order_and_nothing_is_lost_in_any_mode_and_policy() {
    let mut case = 0;
    for mode in Mode::ALL {
        for policy in ["source", "flow", "cpu"] {
            for qlimit in ["1", "256"] {
                for (workers, entries) in [(2, 2), (2, 1), (3, 2), (1, 1)] {
                    let settings =
                        [("dispatch", mode.name()), ("proto.ip.policy", policy), ("defaultqlimit", qlimit)];
                    let mut on = DispatchBench::new((workers, entries), &settings, SEED + case);
                    case += 1;
                    for _ in 0..40 {
                        for _ in 0..on.bench.random.below(200) {
                            let mut below = |count: usize| on.bench.random.below(count as u64) as usize;
                            let (entry, queue) = (below(on.entries), below(QUEUES));
                            on.send(entry, queue);
                        }
                        let passes = on.bench.random.below(20) as usize;
                        on.bench.go_on(passes, MS / 10);
                    }
                    let case = format!("{mode} {policy} {qlimit} {workers} workers, {entries} entries");
                    assert!(on.bench.run_dry(20_000 * MS), "{case}: {} left", on.bench.left_to_do());
                    assert_eq!(on.delivered(), on.sent, "{case}");
                    let (seen, split) = on.seen();
                    let counts = seen.counts();
                    let faults = (counts.missing, counts.duplicated, counts.reordered, split);
                    assert_eq!((counts.numbered, faults), (on.sent, (0, 0, 0, 0)), "{case}");
                    on.require_counted(&case);
                    // Under `source` ip's work is the first worker's, unless it is done at once.
                    let is_first = *mode != Mode::Direct && policy == "source";
                    let others = (1..workers).map(|worker| on.counts(worker, "ip").handled);
                    assert!(others.into_iter().all(|handled| (handled == 0) == is_first), "{case}");
                }
            }
        }
    }
}

/// All work is the second worker's, which does not come for a while.
#[test]
fn a_worker_that_does_not_come_holds_who_receives_for_it() {
    for mode in [Mode::Hybrid, Mode::Deferred] {
        let settings =
            [("dispatch", mode.name()), ("rss.bits", "0"), ("rss.bucket.0", "1"), ("defaultqlimit", "32")];
        let mut on = DispatchBench::new((2, 1), &settings, SEED);
        on.bench.asleep[1] = Some(None);
        on.bench.is_deaf = true;
        for _ in 0..1_000 {
            (0..QUEUES).for_each(|queue| on.send(0, queue));
        }
        while on.bench.step() {}
        let most = UNDER_WAY_MAX + QUEUES as u64 * u64::from(POLL_PACKETS_MAX);
        assert!((UNDER_WAY_MAX..most).contains(&on.bench.under_way()), "{} under way", on.bench.under_way());
        assert!(on.bench.port(0).queued() > 3_000, "{mode}: the senders are held");
        on.bench.is_deaf = false;
        assert!(on.bench.run_dry(10_000 * MS));
        assert_eq!(on.delivered(), on.sent);
        on.require_counted(mode.name());
        let ip = on.counts(1, "ip");
        assert_eq!((ip.handled, ip.wmark > 0), (on.sent, mode == Mode::Deferred), "{ip:?}");
    }
}

#[test]
fn what_the_rule_of_a_full_queue_drops_is_counted() {
    for full in WhenFull::ALL {
        let settings = [("dispatch", "deferred"), ("defaultqlimit", "1"), ("proto.ip.full", full.name())];
        let mut on = DispatchBench::new((2, 1), &settings, SEED);
        for _ in 0..500 {
            (0..QUEUES).for_each(|queue| on.send(0, queue));
        }
        assert!(on.bench.run_dry(10_000 * MS));
        let dropped = on.dropped();
        assert_eq!(dropped > 0, *full == WhenFull::Drop, "{full}: {dropped}");
        assert_eq!(on.delivered() + dropped, on.sent);
        let (seen, split) = on.seen();
        let counts = seen.settled();
        assert_eq!((counts.dropped, counts.missing, counts.reordered, split), (dropped, 0, 0, 0));
        on.require_counted(full.name());
    }
}

/// Each worker has a port behind the handlers.
#[test]
fn what_is_handled_leaves_by_the_worker_that_handled_it() {
    for mode in Mode::ALL {
        let registry = registry(&[("dispatch".into(), mode.name().into())], 2).unwrap();
        let exits = (0..2).map(|worker| (port_plan(1 + worker, None), worker)).collect();
        let made = dispatched(&registry, vec![(port_plan(0, None), 0)], exits, true, FLOWS);
        let queues = [vec![QUEUES, 0, 0], vec![1; made.loops.len()]].concat();
        let mut bench = Bench::dealt(&made.plan, made.owners, &queues, made.loops.len(), 1024, SEED);
        let mut flows = Flows::new(&traffic()).unwrap().deal(QUEUES);
        let mut sent = 0;
        for _ in 0..500 {
            for (queue, flows) in flows.iter_mut().enumerate() {
                bench.port(0).send(queue, next_packet(flows));
                sent += 1;
            }
        }
        assert!(bench.run_dry(10_000 * MS), "{mode}: {} left", bench.left_to_do());
        let seen = [1, 2].map(|port| {
            let mut seen = Sequences::new(FLOWS);
            bench.port(port).left.iter().for_each(|bytes| seen.note(bytes));
            let counts = *seen.counts();
            assert_eq!((counts.missing, counts.duplicated, counts.reordered), (0, 0, 0), "{mode}");
            assert!(counts.numbered > 0, "{mode}: ether deals flows to both");
            seen
        });
        let [mut first, second] = seen;
        assert_eq!(first.merge(&second), 0, "{mode}: flows of two workers");
        assert_eq!(first.counts().numbered, sent, "{mode}");
    }
}

/// Any frames, not packets of a generator alone: each goes one way and gives its memory back.
#[test]
fn any_frames_go_one_way() {
    for mode in Mode::ALL {
        let mut on = DispatchBench::new((2, 1), &[("dispatch", mode.name()), ("defaultqlimit", "4")], SEED);
        let mut sent = 0;
        for ethertype in [None, Some(0x0800u16), Some(0x86dd), Some(0x0806), Some(0x8100)] {
            for _ in 0..200 {
                let len_bytes = 14 + on.bench.random.below(186) as usize;
                let mut bytes: Vec<u8> = (0..len_bytes).map(|_| on.bench.random.below(256) as u8).collect();
                if let Some(ethertype) = ethertype {
                    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                }
                on.bench.port(0).send(sent % QUEUES, bytes);
                sent += 1;
            }
        }
        assert!(on.bench.run_dry(10_000 * MS));
        on.require_counted(mode.name());
        assert_eq!(on.bench.workers[0].frames().pool.census().out, 0, "every frame is back");
    }
}

#[test]
fn the_end_comes_when_all_that_was_handed_over_has_ended() {
    let mut on = DispatchBench::new((2, 2), &[("dispatch", "deferred"), ("rss.bucket.0", "1")], SEED);
    for _ in 0..100 {
        (0..2).for_each(|entry| (0..QUEUES).for_each(|queue| on.send(entry, queue)));
    }
    for _ in 0..4 {
        on.bench.step();
    }
    assert!(on.bench.left_to_do() > 0);
    while on.bench.left_to_do() > 0 {
        on.bench.go_on(100, MS / 10);
    }
    assert_eq!(on.delivered(), on.sent);
}

/// A wire with a slow end whose packets are dispatched to so many workers.
fn dispatched_wire(workers: usize, settings: &[(&str, &str)], seed: u64) -> Bench {
    let mut plan = Plan::wire([port_plan(0, None), port_plan(1, Some(mbit(20)))]);
    let settings = settings.iter().map(|(key, text)| (key.to_string(), text.to_string()));
    plan.dispatched.push(WireDispatch { ports: [0, 1], settings: settings.collect() });
    let made = spread(&plan, &Owners::deal(&plan, workers.min(2)), workers).unwrap();
    let queues = [vec![QUEUES; 2], vec![1; made.loops.len()]].concat();
    Bench::dealt(&made.plan, made.owners, &queues, made.loops.len(), 1024, seed)
}

/// The packets that came in by a port and that each worker handled for ip.
fn handled(bench: &Bench, port: usize) -> Vec<u64> {
    let of = |worker: &Worker<BenchPort>| {
        let dispatch = worker.between().stages().nth(port).unwrap().dispatch().unwrap();
        dispatch.counts(dispatch.plan().registry.id("ip").unwrap()).handled
    };
    bench.workers.iter().map(of).collect()
}

#[test]
fn a_dispatched_wire_keeps_flows_in_order_with_any_number_of_workers() {
    for (case, mode) in (0..).zip(Mode::ALL) {
        for (workers, qlimit) in [(1, "256"), (2, "1"), (2, "256"), (3, "16")] {
            let settings = [("dispatch", mode.name()), ("defaultqlimit", qlimit)];
            let mut bench = dispatched_wire(workers, &settings, SEED + case);
            let mut flows: Vec<Vec<Flows>> =
                (0..2).map(|_| Flows::new(&traffic()).unwrap().deal(QUEUES)).collect();
            let mut sent = [0u64; 2];
            for _ in 0..60 {
                for _ in 0..bench.random.below(300) {
                    let (port, queue) =
                        (bench.random.below(2) as usize, bench.random.below(QUEUES as u64) as usize);
                    let bytes = next_packet(&mut flows[port][queue]);
                    bench.port(port).send(queue, bytes);
                    sent[port] += 1;
                }
                let passes = bench.random.below(20) as usize;
                bench.go_on(passes, MS / 10);
            }
            let case = format!("{mode} {qlimit} {workers} workers");
            assert!(bench.run_dry(20_000 * MS), "{case}: {} left", bench.left_to_do());
            for (from, sent) in sent.into_iter().enumerate() {
                let mut seen = Sequences::new(FLOWS);
                bench.port(1 - from).left.iter().for_each(|bytes| seen.note(bytes));
                let counts = *seen.counts();
                let faults = (counts.missing, counts.duplicated, counts.reordered);
                assert_eq!((counts.numbered, faults), (sent, (0, 0, 0)), "{case} from {from}");
                let handled = handled(&bench, from);
                assert_eq!(handled.iter().sum::<u64>(), sent, "{case} from {from}");
                assert!(handled.iter().all(|&handled| handled > 0), "{case}: {handled:?}");
            }
        }
    }
}

/// One flow of a generator.
fn one_flow(first_flow: u32) -> Flows {
    Flows::new(&Traffic { flows: 1, first_flow, ..traffic() }).unwrap()
}

fn next_packet(flows: &mut Flows) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_BYTES as usize];
    flows.write_next(&mut bytes);
    bytes.truncate(SIZE_BYTES.into());
    bytes
}

/// The worker that handles all packets of each flow from the first port.
fn workers_of_flows(bench: &mut Bench) -> Vec<usize> {
    let mut before = handled(bench, 0);
    let of = |first_flow| {
        let mut flow = one_flow(first_flow);
        (0..20).for_each(|_| bench.port(0).send(0, next_packet(&mut flow)));
        assert!(bench.run_dry(1_000 * MS));
        let now = handled(bench, 0);
        let more: Vec<_> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        before = now;
        assert!(more == [20, 0] || more == [0, 20], "{more:?}");
        usize::from(more[0] == 0)
    };
    (0..FLOWS).map(of).collect()
}

#[test]
fn each_flow_of_a_dispatched_wire_is_one_workers() {
    for mode in Mode::ALL {
        let mut bench = dispatched_wire(2, &[("dispatch", mode.name())], SEED);
        let workers = workers_of_flows(&mut bench);
        let second = workers.iter().sum::<usize>();
        assert!((16..=48).contains(&second), "{mode}: {workers:?}");
    }
}

/// Flows that waited for another worker, and flows that did not.
#[test]
fn flows_of_a_dispatched_wire_share_a_limit_evenly_whoever_handles_them() {
    for mode in Mode::ALL {
        let mut bench = dispatched_wire(2, &[("dispatch", mode.name())], SEED);
        let workers = workers_of_flows(&mut bench);
        // One flow of the first worker, and three of the second.
        let first = workers.iter().position(|&worker| worker == 0).unwrap();
        let others = (0..workers.len()).filter(|&flow| workers[flow] == 1).take(QUEUES - 1);
        let mut flows: Vec<_> = [first].into_iter().chain(others).map(|flow| one_flow(flow as u32)).collect();
        bench.port(1).left.clear();
        let (begin_ns, mut held_max) = (bench.now_ns, 0);
        while bench.now_ns < begin_ns + 400 * MS {
            for (queue, flow) in flows.iter_mut().enumerate() {
                while bench.port(0).queued_in(queue) < 100 {
                    let bytes = next_packet(flow);
                    bench.port(0).send(queue, bytes);
                }
            }
            bench.go_on(200, MS / 10);
            held_max = held_max.max(bench.held() + bench.under_way());
        }
        let mut left = std::collections::BTreeMap::<Vec<u8>, u64>::new();
        // The packets are counted by their addresses.
        bench.port(1).left.iter().for_each(|bytes| *left.entry(bytes[26..34].to_vec()).or_default() += 1);
        let shares: Vec<u64> = left.into_values().collect();
        let [least, most] = [shares.iter().min().unwrap(), shares.iter().max().unwrap()];
        assert!(shares.len() == QUEUES && least * 10 >= most * 9, "{mode}: {shares:?}");
        // Each queue brings a poll while none of its packets waits in a full place, and queues of protocols hold their limits.
        assert!(
            held_max <= 4 * 256 + 2 * QUEUES as u64 * u64::from(POLL_PACKETS_MAX),
            "{mode}: {held_max} inside"
        );
    }
}

/// Packets of no protocol here go on as they came, and a worker that stops delivers packets that wait inside.
#[test]
fn a_dispatched_wire_drops_nothing_and_ends_dry() {
    let mut bench = dispatched_wire(2, &[("dispatch", "deferred")], SEED);
    let mut sent = Vec::new();
    for (number, ethertype) in
        [0x0800u16, 0x86dd, 0x0806, 0x8100, 0x88cc].into_iter().cycle().take(500).enumerate()
    {
        let mut bytes: Vec<u8> = (0..60).map(|_| bench.random.below(256) as u8).collect();
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        sent.push(bytes.clone());
        bench.port(0).send(number % QUEUES, bytes);
    }
    while bench.port(0).queued() > 0 {
        bench.go_on(3, MS / 10);
    }
    for _ in 0..20_000 {
        bench.now_ns += MS / 100;
        for worker in &mut bench.workers {
            worker.drain(bench.now_ns).unwrap();
        }
    }
    bench.require_conserved();
    assert!(bench.workers.iter().all(Worker::is_drained));
    let mut left = std::mem::take(&mut bench.port(1).left);
    left.sort();
    sent.sort();
    assert_eq!(left, sent);
}
