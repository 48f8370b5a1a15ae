//! Hybrid dispatch with sealers: the way that takes less time is found, and another when costs change; whatever way is taken, and wherever
//! it changes, packets leave in the order of their numbers.

use weir_core::dispatch::protocol::Mode;
use weir_path::esp::SealingShares;
use weir_path::esp::plan::EspDispatch;
use weir_sim::gateways::keys;

use super::esp::{Disk, change, dealt, dropped, require_order, stage_of, through};
use super::sealers::{alone, sequence_of, shares, there_and_back, worked_on};
use super::*;

/// The packets that all stages of a plan, and all its sealers, have worked on, each with its worker.
fn work(bench: &Bench, plan: &Plan) -> Vec<(usize, u64)> {
    let stages = 0..bench.owners.stages.len();
    let done = |stage: usize| match stage < plan.stages.len() {
        true => shares(bench, stage).at_home,
        false => stage_of(bench, stage).account().delivered.packets,
    };
    stages.map(|stage| (bench.owners.stages[stage], done(stage))).collect()
}

/// Makes some passes so often, which take as long as their work: so many nanoseconds for a packet of the home, and for one of a sealer.
fn pass(bench: &mut Bench, plan: &Plan, passes: usize, [home_ns, sealer_ns]: [u64; 2]) {
    for _ in 0..passes {
        let before = work(bench, plan);
        bench.go_on(1, MS / 200);
        for (stage, ((worker, after), (_, before))) in work(bench, plan).into_iter().zip(before).enumerate() {
            let packet_ns = if stage < plan.stages.len() { home_ns } else { sealer_ns };
            let from_ns = bench.busy_until_ns[worker].max(bench.now_ns);
            if after > before {
                bench.busy_until_ns[worker] = from_ns + (after - before) * packet_ns;
            }
        }
    }
}

fn hybrid(sealers: u16) -> EspDispatch {
    EspDispatch { mode: Mode::Hybrid, sealers, ..EspDispatch::default() }
}

/// Each sealer has a worker of its own, and the home is with the port inside, whose packets cost nothing here. First the sealers are the
/// faster, then the home, then the sealers again.
#[test]
fn hybrid_finds_the_cheaper_way_and_changes_over_with_the_costs() {
    let plan = alone(0, hybrid(2), 100_000);
    let (mut bench, _) = dealt(&plan, 1, 4, SEED);
    let home = bench.owners.stages[0];
    assert_eq!(bench.owners.ports[..2], [home, home + 1]);
    assert!(!bench.owners.stages[1..].contains(&home));
    let (mut sent, mut next) = (0, 1);
    for (costs, is_home) in [([5_000, 2_000], false), ([5_000, 20_000], true), ([5_000, 2_000], false)] {
        let until_ns = bench.now_ns + 1_000 * MS;
        let mut half = None;
        while bench.now_ns < until_ns {
            while bench.port(0).queued() < 1024 {
                bench.port(0).send(0, through(0, 0, sent));
                sent += 1;
            }
            pass(&mut bench, &plan, 20, costs);
            // The last third of the time is looked at.
            if bench.now_ns > until_ns - 300 * MS {
                half.get_or_insert_with(|| shares(&bench, 0));
            }
            for bytes in std::mem::take(&mut bench.port(1).left) {
                assert_eq!(sequence_of(&bytes), next, "{costs:?}: numbers in their order");
                next += 1;
            }
        }
        let (half, whole) = (half.unwrap(), shares(&bench, 0));
        let [home, given] = [whole.at_home - half.at_home, whole.given - half.given];
        let [better, other] = if is_home { [home, given] } else { [given, home] };
        assert!(better > 9 * other && other > 0, "{costs:?}: {home} at home and {given} given");
    }
    assert!(bench.run_dry(20_000 * MS));
    assert_eq!((next as u64 - 1 + bench.port(1).left.len() as u64, dropped(&bench)), (sent, 0));
}

/// Costs change all the time.
#[test]
fn hybrid_loses_and_reorders_nothing_while_its_way_changes() {
    for (sealers, workers) in [(1, 2), (2, 1), (2, 2), (3, 3), (2, 5), (3, 8)] {
        let plan = there_and_back(hybrid(sealers), 100_000);
        let (mut bench, _) = dealt(&plan, 4, workers, SEED + u64::from(sealers));
        let mut sent = [[0u64; 4]; 2];
        for _ in 0..40 {
            let costs = [0; 2].map(|_: u64| 200 + bench.random.below(6_000));
            let (until_ns, most) = (bench.now_ns + bench.random.below(20 * MS), bench.random.below(300));
            while bench.now_ns < until_ns {
                for _ in 0..bench.random.below(200) {
                    let [from, queue] = [2, 4].map(|below| bench.random.below(below) as usize);
                    if bench.port(from).queued_in(queue) as u64 <= most {
                        bench.port(from).send(queue, through(from, queue, sent[from][queue]));
                        sent[from][queue] += 1;
                    }
                }
                pass(&mut bench, &plan, 20, costs);
            }
        }
        let case = format!("{sealers} sealers on {workers} workers");
        assert!(bench.run_dry(20_000 * MS), "{case}: {} left", bench.left_to_do());
        require_order(&mut bench, &sent, &case);
        for stage in 0..2 {
            let SealingShares { given, merged, at_home } = shares(&bench, stage);
            assert!(
                given > 1_000 && given == merged && at_home > 1_000,
                "{case}: {given} {merged} {at_home}"
            );
        }
        assert!(worked_on(&bench, &plan).iter().all(|&packets| packets > 0), "{case}");
    }
}

/// Packets wait for numbers in the stage, and the way changes meanwhile.
#[test]
fn hybrid_keeps_the_order_of_packets_that_wait_for_a_number() {
    let plan = alone(0, hybrid(2), 100_000);
    let (mut bench, _) = dealt(&plan, 1, 4, SEED);
    let disk = Disk::default();
    change(&mut bench, 0, keys(&plan.stages[0], Some(Box::new(disk.clone()))));
    let (mut sent, mut sealed) = (0, Vec::new());
    let (mut costs, mut waited_max) = ([0; 2], 0);
    while bench.now_ns < 2_000 * MS {
        if bench.random.below(200) == 0 {
            costs = costs.map(|_| 200 + bench.random.below(6_000));
        }
        while bench.port(0).queued() < 512 {
            bench.port(0).send(0, through(0, 0, sent));
            sent += 1;
        }
        pass(&mut bench, &plan, 10, costs);
        waited_max = waited_max.max(stage_of(&bench, 0).held().packets);
        if bench.random.below(4) == 0 {
            disk.sync();
        }
        sealed.extend(bench.port(1).left.drain(..).map(|bytes| sequence_of(&bytes)));
    }
    while bench.left_to_do() > 0 {
        disk.sync();
        bench.go_on(100, MS / 4);
        sealed.extend(bench.port(1).left.drain(..).map(|bytes| sequence_of(&bytes)));
    }
    assert!(sealed.into_iter().eq(1..=sent as u32), "numbers in their order");
    let SealingShares { given, merged, at_home } = shares(&bench, 0);
    assert!(given > 1_000 && given == merged && at_home > 1_000 && waited_max > 0, "{given} {at_home}");
    assert_eq!(dropped(&bench), 0);
}

/// Where the home is never behind, it does all at once.
#[test]
fn hybrid_gives_nothing_to_sealers_without_load() {
    let plan = alone(0, hybrid(2), 100_000);
    let (mut bench, _) = dealt(&plan, 1, 4, SEED);
    for number in 0..3_000 {
        bench.port(0).send(0, through(0, 0, number));
        assert!(bench.run_dry(20 * MS));
    }
    let SealingShares { given, at_home, .. } = shares(&bench, 0);
    assert_eq!((given, at_home), (0, 3_000));
}
