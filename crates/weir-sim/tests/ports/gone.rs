//! Ports that vanish while others flood them, and come back.

use weir_core::drops::DropReason;
use weir_core::net::neighbour::NeighbourState;
use weir_ipsec::algorithm::Algorithm;
use weir_path::classes::TreeKind;
use weir_path::esp::plan::EspDispatch;
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_sim::gateways::gateway;
use weir_sim::plans::tree;

use super::change::three_ports;
use super::*;

/// A bridge of four ports; all limits are 100 Mbit/s, but for the last port's of 1.
fn lan() -> Plan {
    let rates = [100, 100, 100, 1];
    let ports = (0..4).map(|port| port_plan(port, Some(mbit(rates[port])))).collect();
    let links = (0..4).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    Plan { ports, stages: vec![bridge("lan", 4)], links, ..Plan::default() }
}

/// Floods of a bridge of four from three of its ports: half of the queues to port 3, the others to the next of the three.
struct Floods {
    now_ns: u64,
    /// The next number, by port and queue.
    sent: [[u64; Floods::QUEUES]; 4],
    /// The packets that have left by each port.
    left: [Vec<Vec<u8>>; 4],
}

impl Floods {
    const QUEUES: usize = 4;
    const LAST: usize = 3;

    /// Has every station of a port be heard.
    fn hello(worker: &mut Worker<FramePort>, port: usize) {
        for station in 0..Floods::QUEUES {
            let hello = packet(mac(port, station), BROADCAST, [Ipv4Addr::LOCALHOST; 2], u64::MAX);
            worker.end_mut(port).0.port.send(station, hello);
        }
    }

    /// Floods for `time_ns`.
    fn run(&mut self, worker: &mut Worker<FramePort>, time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        while self.now_ns < end_ns {
            for (from, sent) in self.sent.iter_mut().enumerate().take(3) {
                for (queue, number) in sent.iter_mut().enumerate() {
                    let to = if queue % 2 == 0 { Floods::LAST } else { (from + 1) % 3 };
                    while worker.ends()[from].port.queued_in(queue) < 20 {
                        let packet = bridged((from, queue), (to, queue), *number);
                        worker.end_mut(from).0.port.send(queue, packet);
                        *number += 1;
                    }
                }
            }
            let due_ns = settle(worker, self.now_ns).unwrap_or(u64::MAX);
            self.now_ns = due_ns.min(self.now_ns + 200_000).max(self.now_ns + 1_000);
        }
        for index in 0..4 {
            if worker.ends().iter().any(|end| end.index == index) {
                self.left[index].append(&mut worker.end_mut(index).0.port.left);
            }
        }
    }

    /// Requires that the packets of the three ports to each other have come in order and none is missing; returns their number.
    fn require_order(&self) -> usize {
        let mut count = 0;
        for left in &self.left[..3] {
            let mut next = [[0u64; Floods::QUEUES]; 4];
            // An odd station is not one of those that flood port 3.
            for bytes in left.iter().filter(|bytes| bytes[11] % 2 == 1 && number_of(bytes) != u64::MAX) {
                let (from, queue) = (usize::from(bytes[10]), usize::from(bytes[11]));
                assert_eq!(number_of(bytes), next[from][queue], "from port {from}, in order");
                next[from][queue] += 1;
                count += 1;
            }
        }
        count
    }
}

/// A port vanishes with its queue full and packets on their way out, while three others flood it and each other; it comes back, again and
/// again.
#[test]
fn a_port_that_vanishes_holds_nobody_and_comes_back() {
    const LAST: usize = Floods::LAST;
    let mut worker = worker(&lan(), Floods::QUEUES);
    let mut floods = Floods { now_ns: 0, sent: Default::default(), left: Default::default() };
    (0..4).for_each(|port| Floods::hello(&mut worker, port));
    settle(&mut worker, 0);
    for round in 1..=20 {
        floods.run(&mut worker, 20 * MS);
        let before = worker.egress(LAST).unwrap().shaping.account();
        let waiting = worker.egress(LAST).unwrap().shaping.held().packets;
        assert!(waiting > 0, "its queue is full");
        let sent: u64 = floods.sent.iter().flatten().sum();
        worker.end_mut(LAST).0.port.is_stuck = true;
        floods.run(&mut worker, 20 * MS);
        let in_flight = worker.ends()[LAST].port.in_flight().packets;
        let port = worker.take_port(LAST, floods.now_ns).expect("it is here");
        assert_eq!(port.in_flight().packets, in_flight);
        require_balance(&worker);
        let egress = worker.egress(LAST).unwrap();
        assert_eq!(egress.shaping.held().packets, 0);
        let dropped = egress.shaping.account().dropped.get(DropReason::PortGone).packets;
        assert!(dropped >= before.dropped.get(DropReason::PortGone).packets + waiting / 2);
        let exit = worker.gone()[0].exit.account();
        assert!(in_flight > 0 && exit.dropped.get(DropReason::PortGone).packets >= in_flight);
        assert!(worker.take_port(LAST, floods.now_ns).is_none(), "it is gone already");
        // Senders that flooded the port are held no longer: their packets are now flooded to the others, whose limits hold it.
        floods.run(&mut worker, 20 * MS);
        assert!(floods.sent.iter().flatten().sum::<u64>() > sent + 100, "round {round}");
        assert_eq!(worker.egress(LAST).unwrap().shaping.held().packets, 0);
        let queues = 1 + round % Floods::QUEUES;
        assert!(worker.give_port(LAST, FramePort::new(Floods::QUEUES + 1), floods.now_ns).is_err());
        worker.give_port(LAST, FramePort::new(Floods::QUEUES), floods.now_ns).expect("it is gone");
        assert!(worker.give_port(LAST, FramePort::new(queues), floods.now_ns).is_err(), "it is here already");
        Floods::hello(&mut worker, LAST);
        let left = floods.left[LAST].len();
        floods.run(&mut worker, 50 * MS);
        let back = floods.left[LAST].len() - left;
        // The rate of 1 Mbit/s is 125 packets a second, and the burst is 20 packets.
        assert!((5..60).contains(&back), "limited as before: {back} packets in 50 ms");
    }
    let moved = floods.require_order();
    assert!(moved > 5_000, "{moved} packets between the others");
}

#[test]
fn a_port_that_was_never_there_is_taken_when_it_comes() {
    let mut worker = worker_of(&lan(), Floods::QUEUES, 0..3);
    assert_eq!(worker.gone().iter().map(|gone| gone.index).collect::<Vec<_>>(), [3]);
    for number in 0..100 {
        worker.end_mut(0).0.port.send(0, packet(mac(0, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], number));
    }
    let mut now_ns = 0;
    while worker.ends()[1].port.left.len() < 100 {
        now_ns = settle(&mut worker, now_ns).expect("what is inside has a time").max(now_ns + 1);
    }
    let account = worker.egress(3).unwrap().shaping.account();
    assert_eq!(account.dropped.get(DropReason::PortGone).packets, 100, "copies of a flood");
    worker.give_port(3, FramePort::new(1), now_ns).expect("fewer queues than there is room for");
    worker.end_mut(0).0.port.send(0, packet(mac(0, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 100));
    worker.end_mut(3).0.port.send(0, packet(mac(3, 0), mac(0, 0), [Ipv4Addr::LOCALHOST; 2], 7));
    while settle(&mut worker, now_ns).is_some_and(|due_ns| due_ns < now_ns + 50 * MS) && now_ns < 1_000 * MS {
        now_ns += MS;
    }
    assert_eq!(worker.ends()[3].port.left.iter().map(|bytes| number_of(bytes)).collect::<Vec<_>>(), [100]);
    assert_eq!(number_of(worker.ends()[0].port.left.last().unwrap()), 7);
}

/// The state in which the router knows the station at its interface 1.
fn known(worker: &Worker<FramePort>) -> Option<NeighbourState> {
    let address = "10.0.1.9".parse().unwrap();
    worker.between().stages().find_map(|stage| stage.router()?.neighbour(1, address))
}

#[test]
fn a_router_asks_anew_for_who_is_behind_a_port_that_came_back() {
    let mut worker = worker(&routed_at_port_1(), 4);
    worker.end_mut(1).0.port.send(0, question());
    settle(&mut worker, 0);
    assert_eq!(known(&worker), Some(NeighbourState::Stale));
    worker.take_port(1, 2 * MS).expect("it is here");
    assert_eq!(known(&worker), None);
    worker.end_mut(0).0.port.send(0, routed(1, "10.0.1.9"));
    settle(&mut worker, 3 * MS);
    let account = worker.egress(1).unwrap().shaping.account();
    assert_eq!(account.dropped.get(DropReason::PortGone).packets, 1, "the question");
    worker.give_port(1, FramePort::new(4), 4 * MS).expect("it is gone");
    settle(&mut worker, 1_100 * MS);
    let asked = &worker.ends()[1].port.left;
    assert_eq!(asked.iter().map(|bytes| &bytes[12..14]).collect::<Vec<_>>(), [[8, 6]], "asked again");
}

/// Stations are heard through an ESP as if it were a part of the link.
#[test]
fn a_router_behind_an_esp_forgets_who_was_behind_a_port_that_vanished() {
    let mut plan = routed_at_port_1();
    plan.links.pop();
    plan.stages.push(gateway(0, Algorithm::Null, EspDispatch::default()));
    plan.links.push([Attachment::Stage(1, 1), Attachment::Stage(2, INSIDE)]);
    plan.links.push([Attachment::Stage(2, OUTSIDE), Attachment::Port(1)]);
    let mut worker = worker(&plan, 4);
    worker.end_mut(1).0.port.send(0, question());
    settle(&mut worker, 0);
    assert_eq!(known(&worker), Some(NeighbourState::Stale));
    worker.take_port(1, 2 * MS).expect("it is here");
    assert_eq!(known(&worker), None);
}

#[test]
fn classes_change_while_packets_wait_of_receive_queues_that_did_not_come_back() {
    const QUEUES: usize = 4;
    let mut worker = three_ports(QUEUES);
    for queue in 0..QUEUES {
        (0..100).for_each(|number| {
            worker.end_mut(0).0.port.send(queue, bridged((0, 0), (1, 0), number));
        });
    }
    settle(&mut worker, MS);
    worker.take_port(0, MS).expect("it is here");
    worker.give_port(0, FramePort::new(1), MS).expect("fewer queues than there is room for");
    let waiting = worker.egress(1).unwrap().shaping.held().packets;
    assert!(waiting > 0);
    worker.set_classes(1, Some(&tree(TreeKind::Htb, &["a"], 100)), MS);
    assert_eq!(worker.egress(1).unwrap().shaping.held().packets, waiting);
    worker.end_mut(0).0.port.send(0, bridged((0, 0), (1, 0), u64::MAX));
    let mut now_ns = MS;
    while worker.ends()[1].port.left.iter().all(|bytes| number_of(bytes) != u64::MAX) {
        now_ns = settle(&mut worker, now_ns).expect("what is inside has a time").max(now_ns + 1);
    }
}
