//! Dispatch to the workers that packets are at home with, in every mode and policy.

use std::sync::Arc;

use weir_core::dispatch::handlers;
use weir_core::dispatch::protocol::{Mode, Registry};
use weir_core::dispatch::settings::Settings;
use weir_path::dispatch::{Dispatch, dispatched};

use super::*;

const QUEUES: usize = 4;
/// Flows of a receive queue.
const FLOWS: usize = 8;
const HELD_MAX: u64 = 64;

fn registry(workers: usize, mode: Mode, policy: &str) -> Arc<Registry> {
    let mut settings = Settings::new(handlers::protocols());
    settings.set("proto.ether.dispatch", mode.name(), None).unwrap();
    settings.set("proto.ether.policy", policy, None).unwrap();
    settings.finish(workers).unwrap().registry
}

/// Workers of which the first `entries` receive; the homes are the ports behind these.
fn bench((workers, entries): (usize, usize), mode: Mode, policy: &str, seed: u64) -> Bench {
    let registry = registry(workers, mode, policy);
    let ether = registry.id("ether").unwrap();
    let received = (0..entries).map(|entry| (port_plan(entry, None), entry)).collect();
    let homes = (0..workers).map(|worker| port_plan(entries + worker, None)).collect();
    let (plan, owners) = dispatched(&registry, ether, received, homes);
    Bench::dealt(&plan, owners, QUEUES, HELD_MAX, seed)
}

fn send(bench: &mut Bench, (entry, queue, flow): (usize, usize, usize), number: u64) {
    let source = [10, entry as u8, queue as u8, flow as u8].into();
    let addresses = [source, "10.9.9.9".parse().unwrap()];
    bench.port(entry).send(queue, packet(mac(entry, queue), mac(9, 9), addresses, number));
}

/// What came to a home: each packet's flow, and its number there.
fn came(bench: &mut Bench, port: usize) -> Vec<([u8; 4], u64)> {
    let left = std::mem::take(&mut bench.port(port).left);
    left.iter().map(|bytes| (bytes[26..30].try_into().unwrap(), number_of(bytes))).collect()
}

fn dispatch(bench: &Bench, worker: usize) -> &Dispatch {
    bench.workers[worker].between().stages().next().unwrap().dispatch().unwrap()
}

#[test]
fn flows_keep_their_order_and_nothing_is_lost_in_any_mode_and_policy() {
    for (case, &mode) in Mode::ALL.iter().enumerate() {
        for policy in ["source", "flow", "cpu"] {
            for (workers, entries) in [(2, 2), (2, 1), (3, 2), (1, 1)] {
                let mut bench = bench((workers, entries), mode, policy, SEED + case as u64);
                let mut sent = [[[0u64; FLOWS]; QUEUES]; 2];
                for _ in 0..60 {
                    for _ in 0..bench.random.below(200) {
                        let mut below = |count: usize| bench.random.below(count as u64) as usize;
                        let (entry, queue, flow) = (below(entries), below(QUEUES), below(FLOWS));
                        let number = &mut sent[entry][queue][flow];
                        send(&mut bench, (entry, queue, flow), *number);
                        *number += 1;
                    }
                    // A home is slow for a while.
                    let slow = bench.random.below(2 * workers as u64) as usize;
                    for worker in 0..workers {
                        bench.port(entries + worker).is_stuck = worker == slow;
                    }
                    let passes = bench.random.below(40) as usize;
                    bench.go_on(passes, MS / 10);
                }
                (0..workers).for_each(|worker| bench.port(entries + worker).is_stuck = false);
                let case = format!("{mode} {policy} {workers} workers, {entries} entries");
                assert!(bench.run_dry(10_000 * MS), "{case}: {} left", bench.left_to_do());

                let mut next = [[[0u64; FLOWS]; QUEUES]; 2];
                let mut homes = [[[None; FLOWS]; QUEUES]; 2];
                for worker in 0..workers {
                    for ([_, entry, queue, flow], number) in came(&mut bench, entries + worker) {
                        let [entry, queue, flow] = [entry, queue, flow].map(usize::from);
                        let home = homes[entry][queue][flow].get_or_insert(worker);
                        assert_eq!(*home, worker, "{case}: a flow has one home");
                        let next = &mut next[entry][queue][flow];
                        assert_eq!(number, *next, "{case}: in order and none missing");
                        *next += 1;
                    }
                }
                assert_eq!(next, sent, "{case}");
                let handed: u64 = (0..workers).map(|worker| dispatch(&bench, worker).handed()).sum();
                let taken: u64 = (0..workers).map(|worker| dispatch(&bench, worker).taken()).sum();
                assert_eq!(handed, taken, "{case}");
                // By source a packet is at home with the worker whose port it came in by.
                let crosses = mode != Mode::Direct && policy != "source" && workers > 1;
                assert_eq!(handed > 0, crosses, "{case}: {handed} handed over");
            }
        }
    }
}

/// By `cpu` queues 0 and 2 are at home with the first worker, 1 and 3 with the second.
#[test]
fn a_full_home_holds_the_queues_that_feed_it_and_no_others() {
    for mode in [Mode::Hybrid, Mode::Deferred] {
        let mut bench = bench((2, 1), mode, "cpu", SEED);
        bench.port(2).is_stuck = true;
        for number in 0..3_000 {
            (0..QUEUES).for_each(|queue| send(&mut bench, (0, queue, 0), number));
        }
        let mut held_max = 0;
        for _ in 0..400 {
            bench.go_on(50, MS / 10);
            held_max = held_max.max(bench.held() + bench.under_way());
        }
        let queued: Vec<_> = (0..QUEUES).map(|queue| bench.port(0).queued_in(queue)).collect();
        assert_eq!((queued[0], queued[2]), (0, 0), "{mode}: what is at home with the first went on");
        assert!(queued[1].min(queued[3]) > 2_000, "{mode}: the senders are held: {queued:?}");
        assert!(held_max <= UNDER_WAY_MAX + HELD_MAX + 4 * u64::from(POLL_PACKETS_MAX), "{held_max} inside");
        bench.port(2).is_stuck = false;
        assert!(bench.run_dry(10_000 * MS));
        assert_eq!([1, 2].map(|home| came(&mut bench, home).len()), [6_000; 2]);
    }
}

#[test]
fn the_end_comes_when_all_that_was_handed_over_has_left() {
    let mut bench = bench((2, 2), Mode::Hybrid, "flow", SEED);
    for number in 0..100 {
        for (entry, flow) in [0, 1].into_iter().flat_map(|entry| (0..FLOWS).map(move |flow| (entry, flow))) {
            send(&mut bench, (entry, 0, flow), number);
        }
    }
    for _ in 0..4 {
        bench.step();
    }
    assert!(dispatch(&bench, 0).handed() + dispatch(&bench, 1).handed() > 0);
    for _ in 0..2_000 {
        bench.now_ns += MS / 10;
        for worker in &mut bench.workers {
            worker.drain(bench.now_ns).unwrap();
        }
        bench.require_conserved();
    }
    assert!(bench.workers.iter().all(Worker::is_drained));
    assert_eq!(bench.held() + bench.under_way(), 0);
}
