//! One association over several workers: in whatever order they pass, packets leave in the order of their numbers, the window is exact, and
//! a sealer that does not come holds packets and loses none.

use std::collections::BTreeMap;

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::DropReason;
use weir_ipsec::algorithm::Algorithm;
use weir_path::esp::plan::{EspDispatch, EspPlan};
use weir_path::esp::{INSIDE, OUTSIDE, SealingShares};
use weir_path::plan::{StageKind, StagePlan};
use weir_sim::gateways::{gateway, keys};

use super::esp::{SEQUENCE_AT, change, counts, dealt, dropped, require_order, stage_of, through};
use super::*;

/// The most packets that each sealer is given; a poll of each of two queues comes beyond that.
const GIVEN_MAX: u64 = 128;

fn shared(sealers: u16, queue_packets: u32) -> EspDispatch {
    EspDispatch { mode: Mode::Deferred, queue_packets, sealers, ..EspDispatch::default() }
}

fn of_plan(stages: Vec<StagePlan>, links: Vec<[Attachment; 2]>, rate: u64) -> Plan {
    let ports = (0..2).map(|port| port_plan(port, Some(mbit(rate)))).collect();
    Plan { ports, stages, links, dispatched: Vec::new() }
}

/// One gateway between two ports: by the first packets are in the clear.
pub(super) fn alone(own: usize, dispatch: EspDispatch, rate: u64) -> Plan {
    use Attachment::{Port, Stage};
    let links = vec![[Port(0), Stage(0, INSIDE)], [Stage(0, OUTSIDE), Port(1)]];
    of_plan(vec![gateway(own, Algorithm::Aes128Gcm, dispatch)], links, rate)
}

pub(super) fn there_and_back(dispatch: EspDispatch, rate: u64) -> Plan {
    use Attachment::{Port, Stage};
    let stages = (0..2).map(|own| gateway(own, Algorithm::Aes128Gcm, dispatch)).collect();
    let links = vec![
        [Port(0), Stage(0, INSIDE)],
        [Stage(0, OUTSIDE), Stage(1, OUTSIDE)],
        [Stage(1, INSIDE), Port(1)],
    ];
    of_plan(stages, links, rate)
}

/// The packets that each sealer of a stage has worked on; sealers come behind the stages of the plan.
pub(super) fn worked_on(bench: &Bench, plan: &Plan) -> Vec<u64> {
    let sealers = plan.stages.len()..bench.owners.stages.len();
    sealers.map(|sealer| stage_of(bench, sealer).account().delivered.packets).collect()
}

pub(super) fn shares(bench: &Bench, stage: usize) -> SealingShares {
    stage_of(bench, stage).esp().unwrap().shares().unwrap()
}

/// Requires that all packets given to sealers are back, and that the home did a part itself under hybrid dispatch, and nothing else.
fn require_merged(bench: &Bench, plan: &Plan, case: &str) {
    for stage in 0..plan.stages.len() {
        let SealingShares { given, merged, at_home } = shares(bench, stage);
        assert!(given > 0 && given == merged, "{case}: {given} given and {merged} merged");
        let is_hybrid = stage_of(bench, stage).esp().unwrap().dispatch().mode == Mode::Hybrid;
        assert_eq!(at_home > 0, is_hybrid, "{case}: {at_home} at home");
    }
    let worked = worked_on(bench, plan);
    assert!(worked.iter().all(|&packets| packets > 0), "{case}: {worked:?}");
}

/// Sends packets through both gateways of a plan, both ways, whoever's turn it is; requires that none is lost or late.
fn send_both_ways(plan: &Plan, workers: usize, seed: u64, case: &str) -> Bench {
    let (mut bench, _) = dealt(plan, 4, workers, seed);
    let mut sent = [[0u64; 4]; 2];
    for _ in 0..60 {
        for _ in 0..bench.random.below(200) {
            let [from, queue] = [2, 4].map(|below| bench.random.below(below) as usize);
            bench.port(from).send(queue, through(from, queue, sent[from][queue]));
            sent[from][queue] += 1;
        }
        // Each pass takes a random time.
        for pass_ns in 0..bench.workers.len() {
            bench.pass_ns[pass_ns] = bench.random.below(50_000);
        }
        let passes = bench.random.below(20) as usize;
        bench.go_on(passes, MS / 10);
    }
    assert!(bench.run_dry(20_000 * MS), "{case}: {} left", bench.left_to_do());
    require_order(&mut bench, &sent, case);
    bench
}

#[test]
fn sealers_lose_and_reorder_nothing_whoever_s_turn_it_is() {
    for sealers in [2, 3] {
        for (workers, queue_packets) in [(1, 16), (2, 256), (3, 64), (5, 256), (8, 16)] {
            let plan = there_and_back(shared(sealers, queue_packets), 50);
            let case = format!("{sealers} sealers, {queue_packets} packets, {workers} workers");
            let bench = send_both_ways(&plan, workers, SEED + u64::from(sealers), &case);
            require_merged(&bench, &plan, &case);
        }
    }
}

/// A policy for ports would not let fragments of a packet through, so what is too long is cut when it is sealed, and put together again.
#[test]
fn what_is_cut_after_it_is_sealed_is_whole_and_in_order_behind_the_tunnel() {
    for (workers, dispatch) in
        [(1, EspDispatch::default()), (2, shared(0, 64)), (1, shared(2, 64)), (3, shared(2, 64))]
    {
        let mut plan = there_and_back(dispatch, 50);
        for stage in &mut plan.stages {
            let esp = esp_mut(stage);
            esp.mtu_bytes = 300;
            esp.policies.iter_mut().for_each(|policy| policy.selector.destination_ports = Some(0..=u16::MAX));
        }
        let case = format!("{dispatch:?}, {workers} workers");
        let bench = send_both_ways(&plan, workers, SEED, &case);
        for stage in 0..2 {
            let [made, consumed] = stage_of(&bench, stage).own();
            assert!(made.packets > 1000 && consumed.packets > 1000, "{case}: {made:?} {consumed:?}");
        }
    }
}

/// The sequence number of a sealed packet.
pub(super) fn sequence_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[SEQUENCE_AT..SEQUENCE_AT + 4].try_into().unwrap())
}

/// `count` packets, sealed by gateway 0 on so many workers.
fn sealed(count: u64, sealers: u16, workers: usize) -> Vec<Vec<u8>> {
    let plan = alone(0, shared(sealers, 64), 500);
    let (mut bench, _) = dealt(&plan, 1, workers, SEED);
    (0..count).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
    assert!(bench.run_dry(20_000 * MS));
    assert_eq!(dropped(&bench), 0);
    let sealed = std::mem::take(&mut bench.port(1).left);
    assert!(sealed.iter().map(|bytes| sequence_of(bytes)).eq(1..=count as u32), "numbers in their order");
    sealed
}

/// Packets sealed without sealers are the same, byte for byte; so each side knows the other's.
#[test]
fn sealers_seal_what_one_worker_would() {
    assert_eq!(sealed(500, 3, 3), sealed(500, 0, 1));
}

/// Copies come right behind, so that both are given before either is back, and later; some are changed on the way.
#[test]
fn a_window_over_several_workers_is_exact() {
    const COUNT: u64 = 2_000;
    let packets = sealed(COUNT, 0, 1);
    let cases = [(2, 1), (2, 2), (3, 4)].map(|(sealers, workers)| (sealers, workers, Mode::Deferred));
    for (sealers, workers, mode) in cases.into_iter().chain([(2, 2, Mode::Hybrid), (3, 4, Mode::Hybrid)]) {
        let plan = alone(1, EspDispatch { mode, ..shared(sealers, 64) }, 500);
        let (mut bench, _) = dealt(&plan, 1, workers, SEED + u64::from(sealers));
        let (mut copies, mut changed) = (0, 0);
        for (at, bytes) in packets.iter().enumerate() {
            bench.port(1).send(0, bytes.clone());
            for behind in [0, 1, 40, 300] {
                if bench.random.below(4) == 0 && at >= behind {
                    bench.port(1).send(0, packets[at - behind].clone());
                    copies += 1;
                }
            }
            if bench.random.below(8) == 0 {
                let mut bytes = bytes.clone();
                *bytes.last_mut().unwrap() ^= 1;
                // The changed packet bears the number of one that has not come yet, and must not take it.
                let ahead = (at as u32 + 20).min(COUNT as u32);
                bytes[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&ahead.to_be_bytes());
                bench.port(1).send(0, bytes);
                changed += 1;
            }
            if bench.random.below(30) == 0 {
                let passes = bench.random.below(10) as usize;
                bench.go_on(passes, MS / 10);
            }
        }
        let case = format!("{mode}, {sealers} sealers on {workers} workers");
        assert!(bench.run_dry(20_000 * MS), "{case}: {} left", bench.left_to_do());
        let opened: Vec<_> = bench.port(0).left.iter().map(|bytes| number_of(bytes)).collect();
        assert_eq!(opened, (0..COUNT).collect::<Vec<_>>(), "{case}: each once, in order");
        let drops = &stage_of(&bench, 0).account().dropped;
        let counted = [DropReason::EspReplayed, DropReason::EspBadIcv].map(|why| drops.get(why).packets);
        assert_eq!((counted, drops.total().packets), ([copies, changed], copies + changed), "{case}");
        require_merged(&bench, &plan, &case);
    }
}

/// One of two sealers does nothing for a long while.
#[test]
fn a_sealer_that_stops_holds_and_loses_nothing() {
    const COUNT: u64 = 3_000;
    const QUEUE_PACKETS: u64 = 32;
    for (seed, mode) in [(SEED, Mode::Deferred), (SEED + 1, Mode::Deferred), (SEED, Mode::Hybrid)] {
        let plan = alone(0, EspDispatch { mode, ..shared(2, QUEUE_PACKETS as u32) }, 500);
        let (mut bench, _) = dealt(&plan, 1, 4, seed);
        let stopped = bench.owners.stages[1];
        assert!(!bench.owners.ports.contains(&stopped) && bench.owners.stages[0] != stopped);
        bench.busy_until_ns[stopped] = 300 * MS;
        (0..COUNT).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
        let mut inside_max = 0;
        while bench.now_ns < 299 * MS {
            bench.go_on(1_000, MS);
            inside_max = inside_max.max(bench.held() + bench.under_way());
        }
        let left = bench.port(1).left.len() as u64;
        let most = shares(&bench, 0).at_home + GIVEN_MAX;
        assert!(left <= most && bench.port(0).queued() > 0, "{mode}: {left} left, though one stands still");
        let polls = 2 * u64::from(POLL_PACKETS_MAX);
        assert!(
            inside_max <= 2 * GIVEN_MAX + QUEUE_PACKETS + UNDER_WAY_MAX + 2 * polls,
            "{inside_max} inside"
        );
        assert!(bench.run_dry(20_000 * MS), "{} left", bench.left_to_do());
        require_merged(&bench, &plan, "stopped");
        let sealed = std::mem::take(&mut bench.port(1).left);
        assert!(sealed.iter().map(|bytes| sequence_of(bytes)).eq(1..=COUNT as u32));
        assert_eq!((dropped(&bench), counts(&bench, 0, INSIDE).len), (0, 0));
    }
}

fn esp_mut(stage: &mut StagePlan) -> &mut EspPlan {
    match &mut stage.kind {
        StageKind::Esp(plan) => plan,
        _ => panic!("{} is no ESP", stage.name),
    }
}

/// The association of packets with the sealers is gone when they come back.
#[test]
fn a_key_that_changes_while_packets_are_given_loses_nothing() {
    change_keys(Mode::Deferred, 1_000, 0);
    change_keys(Mode::Hybrid, 4_000, MS / 50);
}

/// Seals so many packets while the key changes every so often.
fn change_keys(mode: Mode, count: u64, every_ns: u64) {
    let plan = alone(0, EspDispatch { mode, ..shared(3, 256) }, 100_000);
    let (mut bench, _) = dealt(&plan, 1, 4, SEED);
    (0..count).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
    for generation in 1..=20u32 {
        let mut next = plan.stages[0].clone();
        esp_mut(&mut next).associations[0].spi += 0x10 * generation;
        bench.go_on(12, MS / 10);
        bench.now_ns += every_ns;
        change(&mut bench, 0, keys(&next, None));
    }
    assert!(bench.run_dry(20_000 * MS));
    let sealed = std::mem::take(&mut bench.port(1).left);
    let mut numbers: BTreeMap<[u8; 4], u32> = BTreeMap::new();
    let mut spis = Vec::new();
    for bytes in &sealed {
        let spi: [u8; 4] = bytes[SEQUENCE_AT - 4..SEQUENCE_AT].try_into().unwrap();
        let last = numbers.entry(spi).or_default();
        *last += 1;
        assert_eq!(sequence_of(bytes), *last, "the numbers of a key in their order");
        if spis.last() != Some(&spi) {
            spis.push(spi);
        }
    }
    assert_eq!((sealed.len() as u64, dropped(&bench)), (count, 0));
    assert!(
        spis.is_sorted() && spis.len() > 3 && spis.len() == numbers.len(),
        "one key after the other: {spis:?}"
    );
    require_merged(&bench, &plan, "keys");
}

/// More packets are given than may pass, before the first is back.
#[test]
fn a_limit_of_packets_is_exact_over_several_workers() {
    let packets = sealed(500, 0, 1);
    let mut plan = alone(1, shared(2, 256), 500);
    esp_mut(&mut plan.stages[0]).associations[0].lifetime.hard.packets = Some(100);
    let (mut bench, _) = dealt(&plan, 1, 4, SEED);
    packets.into_iter().for_each(|bytes| bench.port(1).send(0, bytes));
    assert!(bench.run_dry(20_000 * MS));
    let expired = stage_of(&bench, 0).account().dropped.get(DropReason::EspExpired).packets;
    assert_eq!((bench.port(0).left.len(), expired, dropped(&bench)), (100, 400, 400));
}

/// Packets with sealers come back when the workers stop, and then the workers have ended.
#[test]
fn what_stops_delivers_what_sealers_have() {
    let plan = there_and_back(shared(2, 256), 50);
    let (mut bench, _) = dealt(&plan, 4, 3, SEED);
    (0..400).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
    while bench.port(0).queued() > 0 {
        bench.go_on(3, MS / 10);
    }
    for _ in 0..20_000 {
        bench.now_ns += MS / 100;
        for worker in &mut bench.workers {
            worker.drain(bench.now_ns).unwrap();
        }
    }
    assert!(bench.workers.iter().all(Worker::is_drained));
    require_order(&mut bench, &[[400, 0, 0, 0], [0; 4]], "drained");
}
