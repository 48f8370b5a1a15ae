//! A wire of two workers: packets from one end to the other come straight to the egress queue there.

use weir_path::intake::QUANTUM_BYTES;
use weir_sim::port::TRANSMIT_PACKETS_MAX;

use super::*;

const QUEUES: usize = 16;

fn wire(rate: Option<u64>) -> Plan {
    Plan::wire([port_plan(0, None), port_plan(1, rate.map(mbit))])
}

/// A packet of one of the receive queues of the first port.
fn of_queue(queue: usize, number: u64) -> Vec<u8> {
    bridged((0, queue), (1, 0), number)
}

impl Bench {
    /// The packets that wait for the second port, and that are on their way there.
    fn bound_for_the_second(&self) -> u64 {
        let wire = &self.workers[self.owners.ports[1]];
        wire.egress(1).unwrap().shaping.held().packets + self.under_way()
    }

    /// The times that the queue of a port's packets held senders, and for how long in all, in nanoseconds.
    fn blocked_by(&self, port: usize) -> [u64; 2] {
        let queue = self.workers[self.owners.ports[port]].egress(port).unwrap();
        [queue.counts().blocked, queue.shaping.blocked_ns(self.now_ns)]
    }

    /// Requires that each queue's packets have left in their order.
    fn require_order(&mut self) {
        let mut next = [0u64; QUEUES];
        for bytes in &self.port(1).left {
            let queue = usize::from(bytes[11]);
            assert_eq!(number_of(bytes), next[queue], "in order and none missing, of queue {queue}");
            next[queue] += 1;
        }
    }
}

/// The least credit of packets that leave by the second port, and the packets that one poll brings, in packets of the bench.
fn credit(bench: &Bench) -> (u64, u64) {
    let limit_bytes = bench.workers[bench.owners.ports[1]].egress(1).unwrap().shaping.limit_bytes_min();
    let poll = (limit_bytes / (8 * u64::from(QUANTUM_BYTES))).max(4);
    (limit_bytes.div_ceil(PACKET_BYTES as u64), poll)
}

/// With one worker or two, a place and the packets under way to it hold its credit and one poll; the doors of quiet queues as much again.
#[test]
fn a_wire_holds_its_credit_with_one_worker_and_with_two() {
    for workers in [1, 2] {
        for seed in SEED..SEED + 8 {
            let mut bench = Bench::new(&wire(Some(100)), QUEUES, workers, seed);
            let (credit, poll) = credit(&bench);
            let mut sent = [0u64; QUEUES];
            let begin_ns = bench.now_ns;
            let mut held_max = [0; 2];
            for round in 0..400 {
                // One queue floods; from the middle on all do.
                let flooding = if round < 200 { 1 } else { QUEUES };
                for (queue, number) in sent.iter_mut().enumerate().take(flooding) {
                    while bench.port(0).queued_in(queue) < 20 {
                        bench.port(0).send(queue, of_queue(queue, *number));
                        *number += 1;
                    }
                }
                for _ in 0..1 + bench.random.below(20) {
                    bench.step();
                    let held_max = &mut held_max[usize::from(round >= 200)];
                    *held_max = (*held_max).max(bench.bound_for_the_second());
                }
                bench.go_on(200, 200_000);
            }
            let elapsed_s = (bench.now_ns - begin_ns) as f64 / 1e9;
            let bits_per_s = bench.port(1).left.len() as f64 * PACKET_BYTES as f64 * 8.0 / elapsed_s;
            assert!(bits_per_s >= 0.99 * 100e6, "{workers} workers: {} Mbit/s", bits_per_s / 1e6);
            println!("{workers} workers: {held_max:?} held, {credit} are the credit, {poll} a poll");
            assert!((credit..=credit + poll).contains(&held_max[0]), "{} held of one queue", held_max[0]);
            assert!(held_max[1] <= 2 * credit + poll, "{} held of all queues", held_max[1]);
            assert!(bench.run_dry(1_000 * MS));
            bench.require_order();
        }
    }
}

/// Another worker brings in four polls ahead of a port that takes no packet, and one more.
#[test]
fn a_far_end_that_takes_nothing_holds_the_senders_of_another_worker() {
    let mut bench = Bench::new(&wire(None), QUEUES, 2, SEED);
    bench.port(1).is_stuck = true;
    let mut sent = [0; QUEUES];
    for number in 0..1_000 {
        for (queue, sent) in sent.iter_mut().enumerate() {
            bench.port(0).send(queue, of_queue(queue, number));
            *sent += 1;
        }
    }
    for _ in 0..200 {
        bench.go_on(10_000, MS);
        let waiting = bench.bound_for_the_second();
        assert!(waiting <= 5 * u64::from(POLL_PACKETS_MAX), "{waiting} waiting");
    }
    assert_eq!(bench.port(1).in_flight().packets, u64::from(TRANSMIT_PACKETS_MAX));
    assert!(bench.bound_for_the_second() > u64::from(POLL_PACKETS_MAX));
    assert!(bench.asleep.iter().all(Option::is_some), "nobody spins");
    bench.port(1).is_stuck = false;
    assert!(bench.run_dry(100 * MS), "{} left", bench.left_to_do());
    bench.require_order();
    assert_eq!(bench.port(1).left.len(), 1_000 * QUEUES);
}

/// A queue waits at the gate that its packets came to last, also when that is a class of its own, and follows a change of it.
#[test]
fn limits_of_a_wire_of_two_workers_change_under_load() {
    for seed in SEED..SEED + 8 {
        let mut bench = Bench::new(&wire(Some(100)), 2, 2, seed);
        let mut sent = [0u64; 2];
        for _ in 0..100 {
            for (queue, number) in sent.iter_mut().enumerate() {
                for _ in 0..bench.random.below(40) {
                    bench.port(0).send(queue, of_queue(queue, *number));
                    *number += 1;
                }
            }
            let limits = Some(bench.random.below(100)).filter(|rate| *rate > 0).map(mbit);
            let now_ns = bench.now_ns;
            bench.workers[1].set_limits(1, limits, now_ns).unwrap();
            bench.workers.iter_mut().for_each(Worker::tune);
            bench.go_on(30, MS);
        }
        let now_ns = bench.now_ns;
        bench.workers[1].set_limits(1, None, now_ns).unwrap();
        bench.asleep[1] = None;
        assert!(bench.run_dry(5 * MS), "seed {seed}: {} left", bench.left_to_do());
        bench.require_order();
    }
}

/// With one worker or two, on a wire and over a bridge.
#[test]
fn a_full_place_is_told_to_hold_senders_while_they_have_packets() {
    const QUEUES: usize = 40;
    for (plan, to) in [(wire(Some(100)), 1), (lan(&[100, 100, 100, 10]), 3)] {
        for workers in [1, 2] {
            let mut bench = Bench::new(&plan, QUEUES, workers, SEED);
            bench.greet(plan.ports.len(), QUEUES);
            // Each queue brings all that it has at once: more than the credit together, and less than its double.
            let before = bench.blocked_by(to);
            for queue in 0..QUEUES {
                (0..3).for_each(|number| bench.port(0).send(queue, bridged((0, queue), (to, 0), number)));
            }
            let mut was_full = false;
            while bench.left_to_do() > 0 {
                bench.go_on(10_000, MS);
                let egress = &bench.workers[bench.owners.ports[to]].between().egress;
                was_full |= !egress.has_room(egress.default_place(egress.of_port(to).unwrap()));
                assert!(bench.port(0).queued() == 0 || !was_full, "all came in");
            }
            assert!(was_full);
            assert_eq!(bench.blocked_by(to), before, "{workers} workers: nobody waited");
            // One queue floods.
            let (begin_ns, mut number) = (bench.now_ns, 3);
            while bench.now_ns < begin_ns + 200 * MS {
                while bench.port(0).queued_in(0) < 20 {
                    bench.port(0).send(0, bridged((0, 0), (to, 0), number));
                    number += 1;
                }
                bench.go_on(200, 200_000);
            }
            let [_, blocked_ns] = bench.blocked_by(to);
            let share = (blocked_ns - before[1]) as f64 / (bench.now_ns - begin_ns) as f64;
            println!("{workers} workers: held for {share} of the time");
            assert!(share > 0.5, "{workers} workers: held for {share} of the time");
        }
    }
}

/// A lost call is seen: one end does not end while the other may have more.
#[test]
fn a_call_that_is_lost_between_the_ends_of_a_wire_is_seen() {
    let run = |is_deaf: bool| {
        let mut bench = Bench::new(&wire(Some(100)), 1, 2, SEED);
        (0..500).for_each(|number| bench.port(0).send(0, of_queue(0, number)));
        while bench.step() {}
        bench.is_deaf = is_deaf;
        bench.run_dry(200 * MS)
    };
    assert!(run(false), "40 ms are enough");
    assert!(!run(true), "nobody hears, and it goes on all the same");
    let mut bench = Bench::new(&wire(Some(100)), 1, 2, SEED);
    (0..100).for_each(|number| bench.port(0).send(0, of_queue(0, number)));
    bench.step();
    bench.workers[1].drain(bench.now_ns).unwrap();
    assert!(!bench.workers[1].is_drained(), "the first may have more");
    let queued = bench.port(0).queued();
    for _ in 0..10_000 {
        bench.now_ns += MS / 10;
        for worker in &mut bench.workers {
            worker.drain(bench.now_ns).unwrap();
        }
        bench.require_conserved();
    }
    assert!(bench.workers.iter().all(Worker::is_drained));
    assert_eq!((bench.port(0).queued(), bench.held() + bench.under_way()), (queued, 0));
}
