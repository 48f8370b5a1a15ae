//! Bounds that a flood must not pass, whatever it floods: packets that stages make, and copies for many ports.

use weir_core::drops::DropReason;
use weir_core::rate::Rate;
use weir_core::shaper::tbf::TbfConfig;
use weir_sim::frame_port::FramePort;

use super::*;

/// Has a port's queue full of such packets for `time_ns`; returns the most packets that were inside.
fn flood(worker: &mut Worker<FramePort>, port: usize, packet: &[u8], time_ns: u64) -> u64 {
    let (mut now_ns, mut most) = (0, 0);
    while now_ns < time_ns {
        while worker.ends()[port].port.queued_in(0) < 20 {
            worker.end_mut(port).0.port.send(0, packet.to_vec());
        }
        let due_ns = settle(worker, now_ns).unwrap_or(u64::MAX);
        most = most.max(worker.between().egress.held().packets);
        now_ns = due_ns.min(now_ns + MS).max(now_ns + 1_000);
    }
    most
}

#[test]
fn answers_of_a_router_to_a_flood_of_questions_are_bounded() {
    let mut plan = routed_at_port_1();
    plan.ports[1].limits = Some(mbit(1));
    let mut worker = worker(&plan, 4);
    let most = flood(&mut worker, 1, &question(), 500 * MS);
    assert!((100..200).contains(&most), "{most} packets inside");
    let account = worker.egress(1).unwrap().shaping.account();
    assert!(account.dropped.get(DropReason::ClassFull).packets > 1_000, "{account:?}");
}

#[test]
fn copies_for_many_ports_of_unequal_speed_are_bounded() {
    const PORTS: usize = 11;
    let kbit = |rate: u64| TbfConfig { rate: Rate::from_bits_per_s(rate * 1000).unwrap(), ..mbit(1) };
    // Those that come first in the order of the ports fill up with the others, and are the first to drain.
    let limits = |port| if port < 6 { kbit(2_400) } else { kbit(100) };
    let ports = (0..PORTS).map(|port| port_plan(port, Some(limits(port)))).collect();
    let links = (0..PORTS).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    let mut worker =
        worker(&Plan { ports, stages: vec![bridge("lan", PORTS as u16)], links, ..Plan::default() }, 1);
    let broadcast = packet(mac(0, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 0);
    flood(&mut worker, 0, &broadcast, 3_000 * MS);
    for queue in worker.between().egress.queues() {
        let (held, credit_bytes) = (queue.shaping.held(), queue.shaping.limit_bytes_min());
        // One poll past the credit.
        let most = credit_bytes + u64::from(POLL_PACKETS_MAX) * PACKET_BYTES as u64;
        assert!(held.bytes <= most, "port {}: {} of {most} bytes", queue.port, held.bytes);
    }
}

/// A receive queue whose last packet went to a port that then takes nothing, full of others' packets that pass by its queues.
#[test]
fn a_stuck_port_holds_nobody_who_has_no_packet_there() {
    let ports = (0..3).map(|port| port_plan(port, None)).collect();
    let links = (0..3).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    let mut worker = worker(&Plan { ports, stages: vec![bridge("lan", 3)], links, ..Plan::default() }, 2);
    for port in [0, 2, 1] {
        let broadcast = packet(mac(port, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 0);
        worker.end_mut(port).0.port.send(0, broadcast);
        settle(&mut worker, 0);
    }
    worker.end_mut(0).0.port.is_stuck = true;
    for number in 0..6_000 {
        worker.end_mut(2).0.port.send(0, bridged((2, 0), (0, 0), number));
    }
    settle(&mut worker, MS);
    assert!(worker.ends()[2].port.queued() > 1_000, "it holds who sends there");
    worker.end_mut(1).0.port.send(0, bridged((1, 0), (2, 0), 7));
    settle(&mut worker, 2 * MS);
    let last = worker.ends()[2].port.left.last().map(|bytes| number_of(bytes));
    assert_eq!((last, worker.ends()[1].port.queued()), (Some(7), 0));
}
