//! The worker of a wire in virtual time, on modelled ports: its intake, its credit, its exit, its changes and its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::drops::DropReason;
use weir_core::rate::Rate;
use weir_core::shaper::backlog::QueueRule;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_path::assembly::Shares;
use weir_path::classes::{Classes, LeafRules, TreeKind};
use weir_path::frames::Frames;
use weir_path::owners::{Owners, Portion};
use weir_path::plan::{Plan, PortPlan};
use weir_path::port::{POLL_PACKETS_MAX, TransmitRing};
use weir_path::worker::{Pass, Worker};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_sim::packet::SimPacket;
use weir_sim::plans::tree;
use weir_sim::port::{Inside, SimPort};

const FRAMES: u32 = 4096;
const FRAME_BYTES: u32 = 1536;
const QUEUES: usize = 4;
const HELD_MAX: u64 = 1024;
/// The payload of a packet of 1000 bytes, which take 0.8 ms at 10 Mbit/s.
const PAYLOAD_BYTES: u32 = 1000 - 42;
const MS: u64 = 1_000_000;

fn limits(limit_bytes: u64) -> TbfConfig {
    let rate = Rate::from_bits_per_s(10_000_000).unwrap();
    TbfConfig { rate, burst_bytes: 2_000, limit: Limit::Bytes(limit_bytes) }
}

/// A wire of one worker; packets are sent at its first end.
struct Bench {
    worker: Worker<SimPort>,
    inside: Rc<RefCell<Inside>>,
    sent: [u64; QUEUES],
    left: Vec<SimPacket>,
    now_ns: u64,
}

fn port(inside: &Rc<RefCell<Inside>>) -> SimPort {
    SimPort::new(QUEUES, 10_000, None, Rc::clone(inside))
}

/// The plan of a wire whose traffic from the first port to the second has these limits.
fn plan(limits: Option<TbfConfig>) -> Plan {
    let port =
        |name: &str, limits| PortPlan { interface: name.into(), limits, classes: None, is_optional: false };
    Plan::wire([port("first", None), port("second", limits)])
}

fn shares(held_packets_max: u64) -> Shares {
    Shares { held_packets_max, poll_budget_max: POLL_PACKETS_MAX, queues_gone: 0, seed: 0 }
}

impl Bench {
    fn new(limits: Option<TbfConfig>, held_max: u64) -> Bench {
        let inside = Rc::<RefCell<Inside>>::default();
        let frames = Frames::new(Pool::new(FrameMemory::new(FRAMES, FRAME_BYTES).unwrap()));
        let ports = vec![(0, port(&inside)), (1, port(&inside))];
        let worker = Worker::new(
            Portion { plan: &plan(limits), owners: &Owners::alone(&plan(limits)), worker: 0 },
            ports,
            frames,
            None,
            shares(held_max),
            0,
        )
        .unwrap();
        Bench { worker, inside, sent: [0; QUEUES], left: Vec::new(), now_ns: 0 }
    }

    fn send(&mut self, queue: usize, packets: usize) {
        for _ in 0..packets {
            let packet = SimPacket::datagram(queue as u32, self.sent[queue], PAYLOAD_BYTES, self.now_ns);
            self.sent[queue] += 1;
            let (_, refused) = self.worker.end_mut(0).0.port.send(queue, packet, self.now_ns);
            assert!(refused.is_none());
        }
    }

    fn pass(&mut self) -> Pass {
        self.inside.borrow_mut().now_ns = self.now_ns;
        let pass = self.worker.pass(self.now_ns).unwrap();
        self.left.append(&mut self.inside.borrow_mut().left);
        for end in self.worker.ends() {
            assert!(end.exit.account().balances(end.port.in_flight()), "the exit's books");
        }
        for queue in self.worker.between().egress.queues() {
            let (shaping, held) = (&queue.shaping, queue.shaping.held());
            assert!(shaping.account().balances(held), "the classes' books");
            let released = shaping.released();
            let gone = released.dispatched + released.delayed + released.dropped;
            assert_eq!(
                queue.counts().entered,
                gone + held.packets,
                "what is counted at both sides of the classes"
            );
        }
        pass
    }

    /// Makes passes until no packet moves; returns the time at which the next is due.
    fn settle(&mut self) -> Option<u64> {
        loop {
            let pass = self.pass();
            if pass.moved == 0 {
                return pass.wake_ns;
            }
        }
    }

    /// Makes passes until no packet is inside, each at the time that the one before said.
    fn run_dry(&mut self) {
        for _ in 0..100_000 {
            let wake_ns = self.settle();
            if self.queued() + self.held() == 0 {
                return;
            }
            self.now_ns = wake_ns.expect("what is inside has a time").max(self.now_ns);
        }
        panic!("{} queued and {} held for ever", self.queued(), self.held());
    }

    fn queued(&self) -> u64 {
        self.worker.ends()[0].port.held().packets
    }

    fn held(&self) -> u64 {
        self.worker.egress(1).unwrap().shaping.held().packets
    }

    /// Requires that every packet has left, each queue's in order.
    fn require_all(&self) {
        for queue in 0..QUEUES {
            let of_queue = self.left.iter().filter(|packet| packet.sender as usize == queue);
            let numbers: Vec<_> = of_queue.map(|packet| packet.sequence).collect();
            assert_eq!(numbers, (0..self.sent[queue]).collect::<Vec<_>>(), "queue {queue}");
        }
    }
}

#[test]
fn what_finds_no_room_stays_with_its_sender_and_leaves_in_time() {
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    bench.send(0, 500);
    bench.settle();
    // The credit of 20 packets, the packets that one poll brings beyond it, and the burst of 2 that has left.
    assert!((18..=24).contains(&bench.held()), "{} held", bench.held());
    assert_eq!(bench.queued() + bench.held() + bench.left.len() as u64, 500);
    let begin_ns = bench.now_ns;
    bench.run_dry();
    bench.require_all();
    let least_ns = 498 * 800_000;
    let took_ns = bench.now_ns - begin_ns;
    assert!((least_ns..least_ns + MS).contains(&took_ns), "500 packets in {took_ns} ns");
}

#[test]
fn a_quiet_queue_passes_a_full_class_by_its_door() {
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    (0..3).for_each(|queue| bench.send(queue, 200));
    bench.settle();
    bench.send(3, 1);
    bench.settle();
    assert_eq!(bench.worker.ends()[0].port.queued().filter(|packet| packet.sender == 3).count(), 0);
    // Its turn comes before those of packets that were there first.
    for _ in 0..8 {
        bench.now_ns += MS;
        bench.settle();
    }
    assert!(bench.left.iter().any(|packet| packet.sender == 3));
    bench.run_dry();
    bench.require_all();
}

#[test]
fn a_far_end_that_takes_nothing_holds_the_senders_and_lets_them_go_on() {
    let mut bench = Bench::new(None, 300);
    bench.worker.end_mut(1).0.port.set_stuck(true);
    bench.send(0, 5_000);
    for _ in 0..50 {
        let wake_ns = bench.settle().expect("a look is due");
        assert!(wake_ns <= bench.now_ns + MS, "frames come back without a word");
        bench.now_ns = wake_ns;
    }
    let departing = bench.worker.ends()[1].port.in_flight().packets;
    let inside = bench.held() + departing;
    assert!((300..=300 + u64::from(POLL_PACKETS_MAX)).contains(&inside), "{inside} inside");
    assert!(bench.queued() > 4_500);
    bench.worker.end_mut(1).0.port.set_stuck(false);
    // The worker has looked ever more rarely; frames that have come back are used at once.
    assert!(bench.pass().moved > 0);
    bench.run_dry();
    bench.require_all();
}

#[test]
fn a_packet_that_is_too_long_is_dropped_and_counted() {
    let mut bench = Bench::new(None, HELD_MAX);
    let long = SimPacket::datagram(0, 0, 1514 - 42 + 1, 0);
    bench.worker.end_mut(0).0.port.send(0, long, 0);
    bench.settle();
    let exit = bench.worker.ends()[1].exit.account();
    assert_eq!((exit.dropped.get(DropReason::TooLong).packets, exit.accepted.packets), (1, 1));
    let census = bench.worker.frames().pool.census();
    assert_eq!(census.out, 0, "its frame is free again");
}

#[test]
fn classes_change_under_load_and_nothing_is_lost_or_overtakes() {
    let [one, two] = [&["a"][..], &["b", "a"]];
    let trees = [tree(TreeKind::Htb, one, 5), tree(TreeKind::Htb, two, 5), tree(TreeKind::Cbq, one, 5)];
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    for change in 0..60 {
        (0..QUEUES).for_each(|queue| bench.send(queue, 5));
        bench.settle();
        let now_ns = bench.now_ns;
        if change % 4 == 3 {
            let changed = bench.worker.set_limits(1, Some(limits(10_000 + change * 500)), now_ns);
            changed.unwrap();
        } else {
            bench.worker.set_classes(1, Some(&trees[change as usize % 3]), now_ns);
        }
        bench.now_ns += MS;
    }
    bench.run_dry();
    bench.require_all();
}

/// A packet takes 80 ms, and none waits for longer than 50: when one has left, the others are dropped and make room, with nothing else to
/// wake the worker.
#[test]
fn queues_have_their_turn_when_all_that_waited_is_dropped() {
    let mut classes = Classes::clone(&tree(TreeKind::Htb, &["a"], 5));
    let class = &mut classes.classes[0];
    (class.rate, class.burst_bytes) = (Rate::from_bits_per_s(100_000).unwrap(), 1_100);
    (class.ceil, class.cburst_bytes) = (class.rate, class.burst_bytes);
    let rule = QueueRule { max_wait_ns: Some(50 * MS), ..QueueRule::default() };
    class.leaf = Some(LeafRules { priority: 0, queue_ns: 50 * MS, rule });
    let mut bench = Bench::new(None, HELD_MAX);
    bench.worker.set_classes(1, Some(&Arc::new(classes)), 0);
    (0..QUEUES).for_each(|queue| bench.send(queue, 40));
    let mut empty = 0;
    while bench.queued() > 0 {
        let wake_ns = bench.settle();
        if bench.held() == 0 && bench.queued() > 0 {
            empty += 1;
            assert_eq!(wake_ns, Some(bench.now_ns), "senders are held by an empty class");
        }
        bench.now_ns = wake_ns.unwrap().max(bench.now_ns + 1);
    }
    assert!(empty > 3, "the class was empty {empty} times");
}

#[test]
fn who_stops_takes_nothing_in_and_ends_when_all_has_left() {
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    bench.send(0, 100);
    bench.settle();
    let (queued, inside) = (bench.queued(), bench.held());
    assert!(!bench.worker.is_drained());
    bench.send(1, 10);
    while !bench.worker.is_drained() {
        let pass = bench.worker.drain(bench.now_ns).unwrap();
        bench.now_ns = pass.wake_ns.unwrap_or(bench.now_ns).max(bench.now_ns + 1);
    }
    assert_eq!(bench.queued(), queued + 10, "what is still with its sender stays there");
    assert_eq!(bench.inside.borrow().left.len() as u64, inside);
}

#[test]
fn what_still_stands_with_senders_at_the_end_is_taken_off_and_counted() {
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    bench.send(0, 500);
    bench.send(1, 3);
    bench.settle();
    while !bench.worker.is_drained() {
        let pass = bench.worker.drain(bench.now_ns).unwrap();
        bench.now_ns = pass.wake_ns.unwrap_or(bench.now_ns).max(bench.now_ns + 1);
    }
    let (queued, left) = (bench.queued(), bench.inside.borrow().left.len() as u64 + bench.left.len() as u64);
    assert!(queued > 400, "{queued} queued");
    bench.worker.leave_behind(500);
    assert_eq!((bench.queued(), bench.worker.left_behind().packets), (0, queued));
    assert_eq!(queued + left, 503);
    assert_eq!(bench.worker.left_behind().bytes, queued * 1000);
    assert_eq!(bench.worker.frames().pool.census().out, 0, "their frames are free again");
}

/// Whoever goes on sending would keep the worker for good.
#[test]
fn of_a_queue_that_has_ever_more_packets_a_bounded_number_is_taken_off() {
    let mut bench = Bench::new(Some(limits(20_000)), HELD_MAX);
    bench.send(0, 1000);
    bench.send(3, 1);
    bench.worker.leave_behind(100);
    let left = bench.worker.left_behind().packets;
    assert!((101..101 + u64::from(POLL_PACKETS_MAX)).contains(&left), "{left} of one queue and the other");
    assert_eq!(bench.queued(), 1001 - left);
    assert_eq!(bench.worker.ends()[0].port.queued().filter(|packet| packet.sender == 3).count(), 0);
}
