//! ESP whose packets wait in a queue, on one worker and on several: its feeders are held, and no others; and no packet is lost, reordered
//! or received twice, in whatever order workers pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::DropReason;
use weir_ipsec::algorithm::Algorithm;
use weir_path::dispatch::{DispatchCounts, spread};
use weir_path::esp::marks::SequenceMark;
use weir_path::esp::plan::{EspChange, EspDispatch, EspPlan};
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::plan::StageKind;
use weir_path::shaping::ReleaseCounts;
use weir_sim::gateways::{AHEAD_ASKED, STATIONS, gateway, keys};

use super::*;

const POLL: u64 = POLL_PACKETS_MAX as u64;
/// The offset of the sequence number of a sealed packet: behind the headers of Ethernet and IPv4 and the SPI.
pub(super) const SEQUENCE_AT: usize = 38;
/// The distance by which a packet is moved back in a tunnel: a header of IPv4, and one of ESP.
const TUNNEL_BYTES: usize = 28;

fn waiting(mode: Mode, queue_packets: u32) -> EspDispatch {
    EspDispatch { mode, queue_packets, ..EspDispatch::default() }
}

/// The workers of a plan whose ports have so many queues each, with the keys of its gateways.
pub(super) fn dealt(plan: &Plan, queues: usize, workers: usize, seed: u64) -> (Bench, Vec<(usize, u16)>) {
    owned(plan, Owners::deal(plan, workers), queues, workers, seed)
}

/// As [`dealt`], of workers that own these ports and stages.
fn owned(
    plan: &Plan,
    owners: Owners,
    queues: usize,
    workers: usize,
    seed: u64,
) -> (Bench, Vec<(usize, u16)>) {
    let made = spread(plan, &owners, workers).unwrap();
    let queues = [vec![queues; plan.ports.len()], vec![1; made.loops.len()]].concat();
    let mut bench = Bench::dealt(&made.plan, made.owners, &queues, made.loops.len(), 1024, seed);
    for (number, stage) in plan.stages.iter().enumerate() {
        if matches!(stage.kind, StageKind::Esp(_)) {
            change(&mut bench, number, keys(stage, None));
        }
    }
    (bench, made.loops)
}

pub(super) fn change(bench: &mut Bench, stage: usize, change: EspChange) {
    let (owner, place) = (bench.owners.stages[stage], bench.owners.place_of_stage(stage));
    let now_ns = bench.now_ns;
    bench.workers[owner].change_esp(place, change, now_ns);
}

pub(super) fn stage_of(bench: &Bench, stage: usize) -> &weir_path::stage::Stage {
    let place = bench.owners.place_of_stage(stage);
    bench.workers[bench.owners.stages[stage]].between().stages().nth(place).unwrap()
}

pub(super) fn counts(bench: &Bench, stage: usize, side: u16) -> DispatchCounts {
    *stage_of(bench, stage).esp().unwrap().counts(side)
}

pub(super) fn dropped(bench: &Bench) -> u64 {
    let stages = bench.workers.iter().flat_map(|worker| worker.between().stages());
    stages.map(|stage| stage.account().dropped.total().packets).sum()
}

/// The packets that wait to leave by a port, or are on the way back.
fn queued(bench: &Bench, port: usize) -> u64 {
    let worker = &bench.workers[bench.owners.ports[port]];
    let end = worker.ends().iter().find(|end| end.index == port).unwrap();
    worker.egress(port).unwrap().shaping.held().packets + end.port.in_flight().packets
}

/// A packet from station `from` behind a port to that behind another, which behind the gateway is in the other network.
fn sent(from: (usize, usize), to: (usize, usize), number: u64) -> Vec<u8> {
    packet(mac(from.0, from.1), mac(to.0, to.1), STATIONS.map(Into::into), number)
}

/// A frame that passes gateways as it is, so that bridges hear of a station.
fn arp(from: (usize, usize)) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[..6].copy_from_slice(&BROADCAST);
    bytes[6..12].copy_from_slice(&mac(from.0, from.1));
    bytes[12..14].copy_from_slice(&[8, 6]);
    bytes
}

/// A network with stations, a gateway to another, and a port beside it.
const LAN: usize = 0;
const WAN: usize = 1;
const BESIDE: usize = 2;
const GATEWAY: usize = 1;

fn beside(dispatch: EspDispatch, wan: Option<u64>) -> Plan {
    use Attachment::{Port, Stage};
    Plan {
        ports: vec![
            port_plan(LAN, Some(mbit(200))),
            port_plan(WAN, wan.map(mbit)),
            port_plan(BESIDE, Some(mbit(200))),
        ],
        stages: vec![bridge("lan", 3), gateway(0, Algorithm::Null, dispatch)],
        links: vec![
            [Port(LAN), Stage(0, 0)],
            [Stage(0, 1), Stage(GATEWAY, INSIDE)],
            [Stage(GATEWAY, OUTSIDE), Port(WAN)],
            [Stage(0, 2), Port(BESIDE)],
        ],
        dispatched: Vec::new(),
    }
}

/// Floods the tunnel from half of the queues of one port, and a port beside it from the others, for 200 ms of virtual time.
fn flood_a_tunnel(workers: usize, wan: Option<u64>, seal_ns: u64, mode: Mode, seed: u64) {
    const QUEUES: usize = 16;
    const QUEUE_PACKETS: u32 = 32;
    let (mut bench, loops) = dealt(&beside(waiting(mode, QUEUE_PACKETS), wan), QUEUES, workers, seed);
    assert_eq!(loops, [(GATEWAY, 2), (GATEWAY, 3)]);
    let home = bench.owners.stages[GATEWAY];
    assert_eq!((home, &bench.owners.ports[..3]), (workers - 1, &[0; 3][..]));
    for port in [WAN, BESIDE] {
        (0..QUEUES).for_each(|station| bench.port(port).send(station, arp((port, station))));
    }
    assert!(bench.run_dry(1_000 * MS));
    (0..3).for_each(|port| bench.port(port).left.clear());
    let greeted = counts(&bench, GATEWAY, INSIDE).handled;
    bench.pass_ns[home] = seal_ns;
    let begin_ns = bench.now_ns;
    let mut numbers = [0u64; QUEUES];
    let (mut queued_max, mut held_max) = (0, 0);
    while bench.now_ns < begin_ns + 200 * MS {
        for (queue, number) in numbers.iter_mut().enumerate() {
            let to = if queue % 2 == 0 { WAN } else { BESIDE };
            while bench.port(LAN).queued_in(queue) < POLL as usize {
                bench.port(LAN).send(queue, sent((LAN, queue), (to, queue), *number));
                *number += 1;
            }
        }
        bench.go_on(200, 200_000);
        queued_max = queued_max.max(queued(&bench, 3));
        held_max = held_max.max(bench.held() + bench.under_way());
    }
    let case = format!("{mode} on {workers} workers, {seal_ns} ns a pass");
    let elapsed_s = (bench.now_ns - begin_ns) as f64 / 1e9;
    let left = bench.port(BESIDE).left.len();
    let bits_per_s = left as f64 * PACKET_BYTES as f64 * 8.0 / elapsed_s;
    assert!(bits_per_s >= 0.99 * 200e6, "{case}: {} Mbit/s beside it", bits_per_s / 1e6);
    let under_way_max = if workers > 1 { UNDER_WAY_MAX } else { 0 };
    let queues = QUEUES as u64;
    // A receive queue may bring a poll while none of its packets waits there.
    assert!(queued_max <= u64::from(QUEUE_PACKETS) + queues * POLL + under_way_max, "{case}: {queued_max}");
    assert!(held_max <= 4 * queues * POLL + under_way_max, "{case}: {held_max} inside");
    assert!(numbers.iter().all(|&number| number > 0), "{case}: {numbers:?}");
    bench.pass_ns[home] = 0;
    assert!(bench.run_dry(100_000 * MS), "{case}: {} left", bench.left_to_do());
    let mut next = [0u64; QUEUES];
    let sealed = std::mem::take(&mut bench.port(WAN).left);
    for (bytes, sequence) in sealed.iter().zip(1u32..) {
        let told = u32::from_be_bytes(bytes[SEQUENCE_AT..SEQUENCE_AT + 4].try_into().unwrap());
        assert_eq!(told, sequence, "{case}: numbers in their order");
        let queue = usize::from(bytes[11]);
        assert_eq!(number_of(&bytes[TUNNEL_BYTES..]), next[queue], "{case}: in order and none missing");
        next[queue] += 1;
    }
    for bytes in &std::mem::take(&mut bench.port(BESIDE).left) {
        let queue = usize::from(bytes[11]);
        assert_eq!(number_of(bytes), next[queue], "{case}: in order and none missing");
        next[queue] += 1;
    }
    assert_eq!((next, dropped(&bench)), (numbers, 0), "{case}");
    let counted = counts(&bench, GATEWAY, INSIDE);
    let [sealed, wan_numbers] = [sealed.len() as u64, numbers.iter().step_by(2).sum()];
    let handled = sealed + greeted;
    assert_eq!((sealed, counted.handled, counted.len), (wan_numbers, handled, 0), "{case}: {counted:?}");
    assert_eq!(counted.queued + counted.hybrid_dispatched, handled, "{case}: {counted:?}");
}

#[test]
fn a_slow_tunnel_holds_who_feeds_it_and_nobody_beside() {
    for seed in [SEED, SEED + 1] {
        for mode in [Mode::Deferred, Mode::Hybrid] {
            flood_a_tunnel(1, Some(1), 0, mode, seed);
            flood_a_tunnel(2, Some(1), 0, mode, seed);
        }
    }
}

/// Sealing is slow: 128 packets in half a millisecond, of 512 that come.
#[test]
fn a_full_worker_of_a_gateway_holds_who_feeds_it_and_nobody_beside() {
    for seed in [SEED, SEED + 1] {
        flood_a_tunnel(2, None, MS / 2, Mode::Deferred, seed);
        flood_a_tunnel(2, None, MS / 2, Mode::Hybrid, seed);
    }
}

/// Two gateways with a tunnel between them, each behind a port.
fn there_and_back(dispatch: EspDispatch, rate: u64) -> Plan {
    use Attachment::{Port, Stage};
    let of = |own| gateway(own, Algorithm::Aes128Gcm, dispatch);
    Plan {
        ports: (0..2).map(|port| port_plan(port, Some(mbit(rate)))).collect(),
        stages: vec![of(0), of(1)],
        links: vec![
            [Port(0), Stage(0, INSIDE)],
            [Stage(0, OUTSIDE), Stage(1, OUTSIDE)],
            [Stage(1, INSIDE), Port(1)],
        ],
        dispatched: Vec::new(),
    }
}

/// A packet from the station behind one gateway to that behind the other.
pub(super) fn through(from: usize, queue: usize, number: u64) -> Vec<u8> {
    let addresses = [from, 1 - from].map(|at| STATIONS[at].into());
    packet(mac(from, queue), mac(1 - from, queue), addresses, number)
}

pub(super) fn require_order(bench: &mut Bench, sent: &[[u64; 4]; 2], case: &str) {
    for (from, sent) in sent.iter().enumerate() {
        let mut next = [0u64; 4];
        for bytes in &std::mem::take(&mut bench.port(1 - from).left) {
            let queue = usize::from(bytes[11]);
            assert_eq!(number_of(bytes), next[queue], "{case}: in order and none missing");
            next[queue] += 1;
        }
        assert_eq!(next, *sent, "{case}");
    }
    assert_eq!(dropped(bench), 0, "{case}");
    assert_eq!(bench.workers[0].frames().pool.census().out, 0, "{case}: every frame is back");
}

/// The gateways on one worker to four; theirs are up to half of the workers.
#[test]
fn two_gateways_lose_and_reorder_nothing_whoever_s_turn_it_is() {
    for (case, mode) in (0..).zip([Mode::Deferred, Mode::Hybrid, Mode::Deferred]) {
        for (workers, queue_packets) in [(1, 1), (1, 256), (2, 1), (2, 64), (3, 16), (4, 256)] {
            let plan = there_and_back(waiting(mode, queue_packets), 50);
            let (mut bench, _) = dealt(&plan, 4, workers, SEED + case);
            let mut sent = [[0u64; 4]; 2];
            for _ in 0..60 {
                for _ in 0..bench.random.below(200) {
                    let [from, queue] = [2, 4].map(|below| bench.random.below(below) as usize);
                    let number = sent[from][queue];
                    bench.port(from).send(queue, through(from, queue, number));
                    sent[from][queue] += 1;
                }
                let passes = bench.random.below(20) as usize;
                bench.go_on(passes, MS / 10);
            }
            let case = format!("{mode}, {queue_packets} packets, {workers} workers");
            assert!(bench.run_dry(20_000 * MS), "{case}: {} left", bench.left_to_do());
            require_order(&mut bench, &sent, &case);
        }
    }
}

/// The sealing stage has a worker of its own. A worker that ends does no work any more, so no packet may come to it from then on: packets
/// that wait with another to be sealed come back to the worker that sends them.
#[test]
fn what_stops_delivers_what_waits_to_be_sealed() {
    for (case, mode) in (0..20).zip([Mode::Deferred, Mode::Hybrid].into_iter().cycle()) {
        let (mut bench, _) = dealt(&there_and_back(waiting(mode, 256), 100_000), 4, 2, SEED + case);
        (0..200).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
        while bench.port(0).queued() > 0 {
            bench.go_on(3, MS / 10);
        }
        let mut has_ended = [false; 2];
        for _ in 0..40_000 {
            bench.now_ns += MS / 200;
            let turn = bench.random.below(2) as usize;
            let worker = &mut bench.workers[turn];
            if !has_ended[turn] {
                worker.drain(bench.now_ns).unwrap();
                has_ended[turn] = worker.is_drained();
            }
        }
        assert_eq!(has_ended, [true; 2], "{mode}");
        require_order(&mut bench, &[[200, 0, 0, 0], [0; 4]], "drained");
    }
}

/// Packets that were taken from the queue wait in the stage for a number when the workers are told to stop.
/// Sends packets that find no number, and has all workers end while the mark becomes safe late: each waits for those that may come to it.
fn require_waited_for((mut bench, _): (Bench, Vec<(usize, u16)>), plan: &Plan, packets: u64, case: &str) {
    let disk = Disk::default();
    change(&mut bench, 0, keys(&plan.stages[0], Some(Box::new(disk.clone()))));
    (0..packets).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
    bench.go_on(10_000, MS);
    assert!(stage_of(&bench, 0).held().packets > 0, "{case}: packets wait for numbers");
    let mut has_ended = vec![false; bench.workers.len()];
    for turn in 0..20_000 {
        bench.now_ns += MS / 100;
        if turn > 1_000 {
            disk.sync();
        }
        for (worker, has_ended) in bench.workers.iter_mut().zip(&mut has_ended) {
            if !*has_ended {
                worker.drain(bench.now_ns).unwrap();
                *has_ended = worker.is_drained();
            }
        }
        let is_early = turn <= 1_000 && has_ended.contains(&true);
        assert!(!is_early, "{case}, turn {turn}: {has_ended:?}, and packets may go by any");
    }
    assert!(has_ended.iter().all(|has| *has), "{case}");
    require_order(&mut bench, &[[packets, 0, 0, 0], [0; 4]], case);
}

#[test]
fn what_stops_waits_for_numbers() {
    for (workers, mode) in
        [1, 2].into_iter().flat_map(|workers| [(workers, Mode::Deferred), (workers, Mode::Hybrid)])
    {
        let plan = there_and_back(waiting(mode, 256), 100_000);
        require_waited_for(dealt(&plan, 4, workers, SEED), &plan, 40, &format!("{workers} workers, {mode}"));
    }
}

/// Packets pass by an empty queue where the port that they come by is with the same worker; those that find no number wait all the same.
#[test]
fn what_came_past_the_queue_is_waited_for() {
    let plan = there_and_back(waiting(Mode::Hybrid, 256), 100_000);
    // The other port's worker may be sent what waits.
    let owners = Owners { ports: vec![0, 1], stages: vec![0, 0] };
    require_waited_for(owned(&plan, owners, 4, 2, SEED), &plan, 8, "past the queue");
}

/// A disk of a test, which says when a mark is safe.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    wanted: Arc<AtomicU64>,
    safe: Arc<AtomicU64>,
}

impl Disk {
    /// Makes the mark safe that was asked for last.
    pub(super) fn sync(&self) {
        self.safe.store(self.wanted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl SequenceMark for Disk {
    fn begin(&mut self) {}

    fn want(&mut self, mark: u64) {
        self.wanted.store(mark, Ordering::Relaxed);
    }

    fn safe(&self) -> u64 {
        self.safe.load(Ordering::Relaxed)
    }

    fn end(&mut self, _: u64) {}
}

/// A packet without a number waits, mostly in the queue; the port beside the tunnel is not affected, and the sealing worker sleeps.
#[test]
fn a_gateway_without_numbers_holds_who_feeds_it_and_nobody_beside() {
    const QUEUE_PACKETS: u32 = 32;
    for workers in [1, 2] {
        let plan = beside(waiting(Mode::Deferred, QUEUE_PACKETS), None);
        let (mut bench, _) = dealt(&plan, 2, workers, SEED);
        let disk = Disk::default();
        change(&mut bench, GATEWAY, keys(&plan.stages[GATEWAY], Some(Box::new(disk.clone()))));
        for port in [WAN, BESIDE] {
            (0..2).for_each(|station| bench.port(port).send(station, arp((port, station))));
        }
        assert!(bench.run_dry(1_000 * MS));
        (0..3).for_each(|port| bench.port(port).left.clear());
        for number in 0..2_000 {
            bench.port(LAN).send(0, sent((LAN, 0), (WAN, 0), number));
            bench.port(LAN).send(1, sent((LAN, 1), (BESIDE, 1), number));
        }
        let begin_ns = bench.now_ns;
        while bench.now_ns < begin_ns + 200 * MS {
            // All workers are asleep before so many passes.
            bench.go_on(10_000, MS);
        }
        assert_eq!((bench.port(WAN).left.len(), bench.port(BESIDE).left.len()), (0, 2_000));
        let held = bench.held() + bench.under_way();
        let most = u64::from(QUEUE_PACKETS) + 4 * POLL + if workers > 1 { UNDER_WAY_MAX } else { 0 };
        assert!((u64::from(QUEUE_PACKETS)..=most).contains(&held), "{held} inside on {workers} workers");
        // Marks become safe one at a time, each a while after it was asked for.
        let until_ns = bench.now_ns + 10_000 * MS;
        while bench.left_to_do() > 0 && bench.now_ns < until_ns {
            disk.sync();
            for _ in 0..4 {
                bench.go_on(10_000, MS / 4);
            }
        }
        let sealed = std::mem::take(&mut bench.port(WAN).left);
        let numbers: Vec<_> = sealed.iter().map(|bytes| number_of(&bytes[TUNNEL_BYTES..])).collect();
        assert_eq!(numbers, (0..2_000).collect::<Vec<_>>(), "in order and none missing");
        assert_eq!(dropped(&bench), 0);
        assert!(disk.safe.load(Ordering::Relaxed) >= 2_000 && AHEAD_ASKED < 2_000);
    }
}

/// A packet waits for a number, and the way out takes less when it has one.
#[test]
fn what_waits_and_is_too_long_then_counts_as_dropped() {
    let plan = there_and_back(EspDispatch::default(), 50);
    let (mut bench, _) = dealt(&plan, 1, 1, SEED);
    let disk = Disk::default();
    change(&mut bench, 0, keys(&plan.stages[0], Some(Box::new(disk.clone()))));
    let mut packet = through(0, 0, 0);
    packet[20] = 0x40;
    // The header's sum, with DF in it.
    packet[24] = packet[24].checked_sub(0x40).expect("no carry");
    bench.port(0).send(0, packet);
    bench.go_on(100, MS);
    assert_eq!(stage_of(&bench, 0).held().packets, 1);
    let StageKind::Esp(esp) = &plan.stages[0].kind else { unreachable!("it is a gateway") };
    let narrow = EspPlan { mtu_bytes: 576, ..(**esp).clone() };
    let keys = narrow.associations.iter().map(|_| None).collect();
    change(&mut bench, 0, EspChange { plan: narrow, keys });
    disk.sync();
    assert!(bench.run_dry(1_000 * MS));
    assert_eq!(bench.port(0).left.len(), 1, "its sender is told");
    let stage = stage_of(&bench, 0);
    assert_eq!(stage.account().dropped.get(DropReason::TooLong).packets, 1);
    let (intake, released) = stage.counts();
    assert_eq!(
        released,
        ReleaseCounts { dispatched: 1, delayed: 0, dropped: 1 },
        "the message, and the packet"
    );
    assert_eq!((intake.entered, intake.refused), (2, 0));
}

/// The rule of netisr, for comparison.
#[test]
fn what_the_rule_of_a_full_queue_drops_is_counted() {
    let dispatch = EspDispatch { drops_when_full: true, ..waiting(Mode::Deferred, 8) };
    let (mut bench, _) = dealt(&there_and_back(dispatch, 50), 4, 2, SEED);
    (0..2_000).for_each(|number| bench.port(0).send(0, through(0, 0, number)));
    assert!(bench.run_dry(20_000 * MS));
    let lost: u64 = (0..2).map(|stage| counts(&bench, stage, [INSIDE, OUTSIDE][stage]).queue_drops).sum();
    assert!(lost > 0 && lost == dropped(&bench), "{lost} and {}", dropped(&bench));
    let numbers: Vec<_> = bench.port(1).left.iter().map(|bytes| number_of(bytes)).collect();
    assert_eq!(numbers.len() as u64, 2_000 - lost);
    assert!(numbers.is_sorted());
}
