//! A worker of many ports with bridges and routers between them, the one that ships, in virtual time and with real bytes.

use std::net::Ipv4Addr;

use weir_core::drops::Count;
use weir_path::assembly::{PlanError, Shares};
use weir_path::frames::Frames;
use weir_path::owners::{Owners, Portion};
use weir_path::plan::{Attachment, Plan};
use weir_path::port::{POLL_PACKETS_MAX, TransmitRing};
use weir_path::worker::Worker;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_sim::frame_port::FramePort;
use weir_sim::plans::{
    BROADCAST, MS, PACKET_BYTES, bed, bridge, bridged, mac, mbit, number_of, packet, port_plan, routed,
};

#[path = "ports/bounds.rs"]
mod bounds;
#[path = "ports/change.rs"]
mod change;
#[path = "ports/gone.rs"]
mod gone;

const FRAMES: u32 = 8192;
const FRAME_BYTES: u32 = 2048;

fn worker(plan: &Plan, queues: usize) -> Worker<FramePort> {
    worker_of(plan, queues, 0..plan.ports.len())
}

/// A worker that has these ports of the plan at first.
fn worker_of(plan: &Plan, queues: usize, ports: std::ops::Range<usize>) -> Worker<FramePort> {
    let frames = Frames::new(Pool::new(FrameMemory::new(FRAMES, FRAME_BYTES).unwrap()));
    let ports: Vec<_> = ports.map(|port| (port, FramePort::new(queues))).collect();
    let shares = Shares {
        held_packets_max: u64::from(FRAMES) / plan.ports.len() as u64,
        poll_budget_max: POLL_PACKETS_MAX,
        queues_gone: queues,
        seed: 7,
    };
    Worker::new(Portion { plan, owners: &Owners::alone(plan), worker: 0 }, ports, frames, None, shares, 0)
        .unwrap()
}

/// The bed without the bridge behind its router, which is attached to port 1.
fn routed_at_port_1() -> Plan {
    let mut plan = bed();
    plan.stages.pop();
    plan.links.truncate(2);
    plan.links.push([Attachment::Stage(1, 1), Attachment::Port(1)]);
    plan
}

/// A question for the router's address on port 1, by which it learns the asker's, 10.0.1.9.
fn question() -> Vec<u8> {
    let mut bytes = packet(mac(1, 9), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 0);
    bytes[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes[22..28].copy_from_slice(&mac(1, 9));
    bytes[28..32].copy_from_slice(&[10, 0, 1, 9]);
    bytes[38..42].copy_from_slice(&[10, 0, 1, 1]);
    bytes
}

/// Makes one pass; every place's books balance after it.
fn pass(worker: &mut Worker<FramePort>, now_ns: u64) -> (usize, Option<u64>) {
    let pass = worker.pass(now_ns).unwrap();
    require_balance(worker);
    (pass.moved, pass.wake_ns)
}

fn require_balance(worker: &Worker<FramePort>) {
    let between = worker.between();
    for end in worker.ends() {
        assert!(end.exit.account().balances(end.port.in_flight()), "the exit of port {}", end.index);
    }
    for gone in worker.gone() {
        assert!(gone.exit.account().balances(Count::default()), "the exit of port {}", gone.index);
    }
    for queue in between.egress.queues() {
        assert!(queue.shaping.account().balances(queue.shaping.held()), "egress queue {}", queue.port);
    }
    for stage in between.stages() {
        assert!(stage.account().balances(stage.held()), "a stage's books");
        let (intake, released) = stage.counts();
        let left = released.dispatched + released.delayed + released.dropped;
        assert_eq!(intake.entered, left + stage.held().packets, "what entered a stage and what left it");
    }
    let held = between.egress.held().packets + between.kept().packets;
    let census = worker.frames().pool.census();
    assert_eq!(u64::from(worker.frames().loans.count()) + held, census.out, "frames of what is held");
}

/// Makes passes until no packet moves; returns the time at which the next is due.
fn settle(worker: &mut Worker<FramePort>, now_ns: u64) -> Option<u64> {
    loop {
        let (moved, wake_ns) = pass(worker, now_ns);
        if moved == 0 {
            return wake_ns;
        }
    }
}

/// Four ports of 16 queues on a bridge, one of them slow and flooded by the three others, from queues of their own.
#[test]
fn one_slow_port_holds_nothing_that_goes_elsewhere() {
    const QUEUES: usize = 16;
    const SLOW: usize = 3;
    let mut links: Vec<_> =
        (0..4).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    links.reverse();
    let rates = [200, 200, 200, 1];
    let ports = (0..4).map(|port| port_plan(port, Some(mbit(rates[port])))).collect();
    let plan = Plan { ports, stages: vec![bridge("lan", 4)], links, ..Plan::default() };
    let mut worker = worker(&plan, QUEUES);
    // A frame of every station is heard once.
    for port in 0..4 {
        for station in 0..QUEUES {
            let hello = packet(mac(port, station), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 0);
            worker.end_mut(port).0.port.send(station, hello);
        }
    }
    let mut now_ns = 0;
    while worker.ends().iter().map(|end| end.port.queued()).sum::<usize>()
        + worker.between().egress.held().packets as usize
        > 0
    {
        now_ns = settle(&mut worker, now_ns).unwrap_or(now_ns).max(now_ns + 100_000);
    }
    (0..4).for_each(|port| worker.end_mut(port).0.port.left.clear());

    let begin_ns = now_ns;
    let mut sent = [[0u64; QUEUES]; 4];
    while now_ns < begin_ns + 300 * MS {
        for (from, sent) in sent.iter_mut().enumerate().take(3) {
            for (queue, number) in sent.iter_mut().enumerate() {
                // Half of the queues flood the slow port, the others the next of the quick ones.
                let to = if queue % 2 == 0 { SLOW } else { (from + 1) % 3 };
                while worker.ends()[from].port.queued_in(queue) < 20 {
                    worker.end_mut(from).0.port.send(queue, bridged((from, queue), (to, queue), *number));
                    *number += 1;
                }
            }
        }
        now_ns = settle(&mut worker, now_ns).unwrap_or(u64::MAX).min(now_ns + 200_000).max(now_ns + 1_000);
    }
    let elapsed_s = (now_ns - begin_ns) as f64 / 1e9;
    for port in 0..3 {
        let left = &worker.ends()[port].port.left;
        let bits_per_s = left.len() as f64 * PACKET_BYTES as f64 * 8.0 / elapsed_s;
        assert!(bits_per_s >= 0.99 * 200e6, "port {port}: {} Mbit/s", bits_per_s / 1e6);
    }
    let slow = worker.ends()[SLOW].port.left.len() as f64 * PACKET_BYTES as f64 * 8.0 / elapsed_s;
    assert!((0.9e6..1.6e6).contains(&slow), "the slow port: {slow} bit/s");
    for end in worker.ends() {
        let mut next = [[0u64; QUEUES]; 4];
        for bytes in &end.port.left {
            let (from, queue) = (usize::from(bytes[10]), usize::from(bytes[11]));
            assert_eq!(number_of(bytes), next[from][queue], "in order and none missing");
            next[from][queue] += 1;
        }
    }
    let stage = worker.between().stages().next().unwrap();
    assert_eq!(stage.account().dropped.total().packets, 0);
}

#[test]
fn a_bed_of_two_bridges_and_a_router_holds_its_senders_and_loses_nothing() {
    let mut worker = worker(&bed(), 4);
    for number in 0..2_000 {
        worker.end_mut(0).0.port.send(0, routed(number, "10.0.1.2"));
    }
    settle(&mut worker, 0);
    let inside = worker.between().egress.held().bytes;
    // The bound is 5 ms at 100 Mbit/s, and a poll.
    assert!(inside <= 62_500 + u64::from(POLL_PACKETS_MAX) * 1000, "{inside} bytes inside");
    assert!(worker.ends()[0].port.queued() > 1_800, "the sender is held");
    let mut now_ns = 0;
    while worker.ends()[1].port.left.len() < 2_000 {
        now_ns = settle(&mut worker, now_ns).expect("what is inside has a time").max(now_ns + 1);
    }
    let took_ms = now_ns as f64 / 1e6;
    assert!((155.0..165.0).contains(&took_ms), "2,000 packets of 80 us in {took_ms} ms");
    for (number, bytes) in worker.ends()[1].port.left.iter().enumerate() {
        assert_eq!((number_of(bytes), bytes[22]), (number as u64, 63), "in order, a hop counted");
        assert_eq!(bytes[..6], mac(1, 0));
    }
}

#[test]
fn what_a_router_keeps_is_released_by_an_answer_and_what_it_says_leaves() {
    let mut worker = worker(&bed(), 4);
    // 10.0.1.9 is unknown: its packets are kept and it is asked for; 192.0.2.1 has no route, and the sender is told.
    (0..3).for_each(|number| worker.end_mut(0).0.port.send(0, routed(number, "10.0.1.9")));
    worker.end_mut(0).0.port.send(1, routed(0, "192.0.2.1"));
    let wake_ns = settle(&mut worker, 0).expect("a question is repeated");
    assert!(wake_ns <= 1_000 * MS);
    assert_eq!(worker.between().kept().packets, 3);
    let asked = worker.ends()[1].port.left.iter().find(|bytes| bytes[..6] == BROADCAST);
    let asked = asked.expect("a question").clone();
    assert_eq!(asked[12..14], [8, 6], "ARP");
    let told = worker.end_mut(0).0.port.left.pop().expect("an error");
    assert_eq!((told[23], told[34], told[35]), (1, 3, 0), "ICMP: network unreachable");
    // The answer says that 10.0.1.9 has this address.
    let mut answer = asked.clone();
    answer[..6].copy_from_slice(&[2, 0, 0, 1, 0, 1]);
    answer[6..12].copy_from_slice(&mac(1, 9));
    answer[21] = 2;
    answer[22..28].copy_from_slice(&mac(1, 9));
    answer[28..32].copy_from_slice(&asked[38..42]);
    answer[32..38].copy_from_slice(&[2, 0, 0, 1, 0, 1]);
    answer[38..42].copy_from_slice(&asked[28..32]);
    worker.end_mut(1).0.port.send(0, answer);
    worker.end_mut(1).0.port.left.clear();
    settle(&mut worker, MS);
    let numbers: Vec<_> = worker.ends()[1].port.left.iter().map(|bytes| number_of(bytes)).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(worker.between().kept().packets, 0);
}

/// A port that takes no packet has its share of the frames, and the others go on.
#[test]
fn floods_to_every_port_wait_for_the_slowest_of_them() {
    let ports = (0..3).map(|port| port_plan(port, Some(mbit(if port == 2 { 1 } else { 100 })))).collect();
    let links = (0..3).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    let plan = Plan { ports, stages: vec![bridge("lan", 3)], links, ..Plan::default() };
    let mut worker = worker(&plan, 2);
    for number in 0..200 {
        worker.end_mut(0).0.port.send(0, packet(mac(0, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], number));
    }
    settle(&mut worker, 0);
    let slow = worker.egress(2).unwrap();
    let credit_bytes = slow.shaping.limit_bytes_min();
    assert!(
        slow.shaping.held().bytes <= credit_bytes + 20_480 + 8 * 1000,
        "{} held",
        slow.shaping.held().bytes
    );
    assert!(worker.ends()[0].port.queued() > 150);
    let mut now_ns = 0;
    while worker.ends()[2].port.left.len() < 200 {
        now_ns = settle(&mut worker, now_ns).expect("what is inside has a time").max(now_ns + 1);
    }
    for port in [1, 2] {
        let numbers: Vec<_> = worker.ends()[port].port.left.iter().map(|bytes| number_of(bytes)).collect();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "port {port}");
    }
    assert_eq!(worker.frames().pool.census().out, 0);
}

#[test]
fn a_hundred_wires_in_one_worker_do_not_meet() {
    const WIRES: usize = 100;
    let ports = (0..2 * WIRES).map(|port| port_plan(port, (port % 2 == 1).then(|| mbit(10)))).collect();
    let links = (0..WIRES).map(|wire| [Attachment::Port(2 * wire), Attachment::Port(2 * wire + 1)]).collect();
    let plan = Plan { ports, links, ..Plan::default() };
    let mut worker = worker(&plan, 1);
    let send = |worker: &mut Worker<FramePort>, wire: usize, count: u64| {
        for number in 0..count {
            worker.end_mut(2 * wire).0.port.send(0, bridged((0, 0), (1, 0), number));
        }
    };
    send(&mut worker, 7, 1_000);
    settle(&mut worker, 0);
    let held = worker.egress(15).unwrap().shaping.held();
    assert!(held.packets > 0);
    // Beside the flood every other wire's packet leaves at once.
    (0..WIRES).filter(|&wire| wire != 7).for_each(|wire| send(&mut worker, wire, 1));
    settle(&mut worker, 0);
    for wire in (0..WIRES).filter(|&wire| wire != 7) {
        assert_eq!(worker.ends()[2 * wire + 1].port.left.len(), 1, "wire {wire}");
    }
    assert_eq!(worker.between().egress.queues().len(), 2 * WIRES);
}

/// An interface that goes down and up brings what its queues had on offer each time, room or not, and the exit takes nothing.
#[test]
fn what_comes_without_a_poll_again_and_again_has_a_place() {
    let plan = Plan {
        ports: [0, 1].map(|number| port_plan(number, None)).into(),
        links: vec![[Attachment::Port(0), Attachment::Port(1)]],
        ..Plan::default()
    };
    let mut worker = worker_of(&plan, 1, 0..2);
    worker.end_mut(1).0.port.is_stuck = true;
    for number in 0..2 * FRAMES {
        worker
            .end_mut(0)
            .0
            .port
            .send(0, packet(mac(0, 9), mac(1, 9), [Ipv4Addr::LOCALHOST; 2], number.into()));
    }
    for round in 0..FRAMES / 64 {
        let now_ns = u64::from(round) * 1_000_000;
        pass(&mut worker, now_ns);
        worker.end_mut(0).0.port.unpolled = 64;
        worker.collect(0, now_ns);
        worker.end_mut(0).0.port.unpolled = 0;
        require_balance(&worker);
    }
    let held = worker.between().egress.held().packets;
    assert!(held > u64::from(FRAMES) * 3 / 4, "{held} of {FRAMES}");
}

#[test]
fn a_plan_with_a_loose_end_is_refused() {
    let mut plan = bed();
    plan.links.pop();
    let frames = Frames::new(Pool::new(FrameMemory::new(1024, FRAME_BYTES).unwrap()));
    let ports = (0..2).map(|port| (port, FramePort::new(1))).collect();
    let shares = Shares { held_packets_max: 256, poll_budget_max: 16, queues_gone: 0, seed: 0 };
    let refused = Worker::new(
        Portion { plan: &plan, owners: &Owners::alone(&plan), worker: 0 },
        ports,
        frames,
        None,
        shares,
        0,
    )
    .err();
    assert_eq!(refused, Some(PlanError::Unattached("port 1 of b".into())));
}
