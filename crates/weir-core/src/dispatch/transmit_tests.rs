//! Lanes, bounds and kicks; and random schedules of two workers and an owner that parks.

use super::*;
use crate::packet::Meta;

#[derive(Clone, Debug, PartialEq)]
struct Pkt {
    meta: Meta,
    worker: usize,
    seq: u32,
}

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        60
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

fn pkt(worker: usize, seq: u32) -> Pkt {
    Pkt { meta: Meta::default(), worker, seq }
}

/// A device with room for `room` packets.
#[derive(Default)]
struct Ring {
    room: usize,
    sent: Vec<Pkt>,
    flushes: usize,
}

impl TransmitDevice<Pkt> for Ring {
    fn put(&mut self, packet: Pkt) -> Result<(), Pkt> {
        if self.room == 0 {
            return Err(packet);
        }
        self.room -= 1;
        self.sent.push(packet);
        Ok(())
    }
    fn flush(&mut self) {
        self.flushes += 1;
    }
}

fn checked(queue: &TransmitQueue<Pkt>) {
    assert!(queue.account().balances(queue.held()), "{:?}", queue.account());
}

#[test]
fn lanes_take_turns_and_keep_their_order() {
    let mut queue = TransmitQueue::new(2, 1000, 1000);
    for seq in 0..100 {
        queue.enqueue(0, pkt(0, seq));
        queue.enqueue(1, pkt(1, seq));
    }
    let mut ring = Ring { room: 1000, ..Ring::default() };
    assert_eq!(queue.pass(&mut ring), 200);
    checked(&queue);
    let runs: Vec<usize> = ring.sent.chunk_by(|a, b| a.worker == b.worker).map(<[Pkt]>::len).collect();
    assert_eq!(runs, [64, 64, 36, 36]);
    for worker in 0..2 {
        let seqs = ring.sent.iter().filter(|packet| packet.worker == worker).map(|packet| packet.seq);
        assert!(seqs.eq(0..100));
    }
    assert_eq!(ring.flushes, 1);
    assert_eq!(queue.contention(), Contention { enter: 1, tried: 4, tryfail: 0, sleep: 0 });
    assert_eq!(queue.pass(&mut ring), 0);
    assert_eq!(queue.contention().enter, 1, "nothing to send, nothing entered");
}

#[test]
fn what_the_device_does_not_take_stays_in_order_and_no_lane_starves() {
    let mut queue = TransmitQueue::new(2, 1000, 1000);
    let mut ring = Ring::default();
    let mut next = [0, 0];
    for _ in 0..50 {
        for (worker, next) in next.iter_mut().enumerate() {
            while queue.lanes[worker].len() < 64 {
                queue.enqueue(worker, pkt(worker, *next));
                *next += 1;
            }
        }
        // Never room for a whole burst.
        ring.room = 32;
        assert_eq!(queue.pass(&mut ring), 32);
        checked(&queue);
    }
    for worker in 0..2 {
        let seqs: Vec<u32> =
            ring.sent.iter().filter(|packet| packet.worker == worker).map(|packet| packet.seq).collect();
        assert!(seqs.iter().copied().eq(0..seqs.len() as u32), "in order");
        assert_eq!(seqs.len(), 50 * 32 / 2, "half each");
    }
    assert_eq!(queue.contention(), Contention { enter: 50, tried: 50, tryfail: 50, sleep: 0 });
    queue.parks();
    assert_eq!(queue.contention().sleep, 1, "asleep with packets still to send");
}

#[test]
fn full_at_the_limit_and_still_taking_what_is_inside() {
    let mut queue = TransmitQueue::new(1, 2, 10);
    queue.enqueue(0, pkt(0, 0));
    assert!(!queue.is_full());
    queue.enqueue(0, pkt(0, 1));
    assert!(queue.is_full());
    queue.enqueue(0, pkt(0, 2));
    assert_eq!(queue.len(), 3);
    checked(&queue);
}

#[test]
fn a_batch_costs_one_kick_for_each_parked_owner() {
    let mut kicks = Kicks::default();
    for _ in 0..64 {
        kicks.owe(1);
    }
    kicks.owe(5);
    assert!(kicks.are_owed());
    let mut kicked = Vec::new();
    kicks.flush(|owner| {
        kicked.push(owner);
        owner == 1
    });
    assert_eq!(kicked, [1, 5]);
    assert_eq!(kicks.counts(), KickCounts { sent: 1, saved: 64 }, "63 in the batch, 1 to a running owner");
    kicks.flush(|_| panic!("nothing is owed"));
}

#[test]
fn counters_print_as_the_seed_prints_them() {
    let contention = Contention { enter: 7_084_821, tried: 5_077_636, tryfail: 2_402_027, sleep: 635_969 };
    let text = Lines("em1", contention, KickCounts { sent: 3, saved: 4 }).to_string();
    let expected = "em1.transmit_sleep: 635969\nem1.transmit_tryfail: 2402027\nem1.transmit_enter: 7084821\n\
                    em1.transmit_try: 5077636\nem1.transmit_kicks_sent: 3\nem1.transmit_kicks_saved: 4\n";
    assert_eq!(text, expected);
}

/// The owner's side of the doorbell, step by step, so that schedules can cut between the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Running,
    /// It has said that it parks, and has not looked at its lanes again.
    Parking,
    Asleep,
}

/// Runs a random schedule; returns whether packets were ever stranded (queued, owner asleep, nobody about to
/// kick). `looks_again`: whether the owner looks at its lanes between saying that it parks and sleeping.
fn stranded(seed: u64, looks_again: bool) -> (bool, KickCounts, Vec<Pkt>) {
    let mut state = seed;
    let mut random = |below: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    };
    let mut queue = TransmitQueue::new(2, 1000, 1000);
    let mut kicks = [Kicks::default(), Kicks::default()];
    let mut next = [0, 0];
    let mut owner = Owner::Running;
    let mut ring = Ring { room: usize::MAX, ..Ring::default() };
    for _ in 0..500 {
        match random(5) {
            0 | 1 => {
                let worker = random(2) as usize;
                for _ in 0..random(8) {
                    queue.enqueue(worker, pkt(worker, next[worker]));
                    next[worker] += 1;
                    kicks[worker].owe(0);
                }
            }
            2 => {
                let worker = random(2) as usize;
                kicks[worker].flush(|_| {
                    let parked = owner == Owner::Asleep;
                    if parked {
                        owner = Owner::Running;
                    }
                    parked
                });
            }
            _ => {
                owner = match owner {
                    Owner::Running if queue.pass(&mut ring) > 0 => Owner::Running,
                    Owner::Running => Owner::Parking,
                    Owner::Parking if looks_again && !queue.is_empty() => Owner::Running,
                    Owner::Parking => Owner::Asleep,
                    Owner::Asleep => Owner::Asleep,
                }
            }
        }
        checked(&queue);
        let kick_is_due = kicks.iter().any(Kicks::are_owed);
        if owner == Owner::Asleep && !queue.is_empty() && !kick_is_due {
            return (true, kicks[0].counts(), ring.sent);
        }
    }
    (false, kicks[0].counts(), ring.sent)
}

#[test]
fn no_schedule_strands_a_packet() {
    let mut sent = 0;
    for seed in 0..2000 {
        let (is_stranded, counts, order) = stranded(seed, true);
        assert!(!is_stranded, "seed {seed}");
        for worker in 0..2 {
            let seqs = order.iter().filter(|packet| packet.worker == worker).map(|packet| packet.seq);
            assert!(seqs.enumerate().all(|(i, seq)| i as u32 == seq), "seed {seed}");
        }
        sent += counts.sent;
    }
    assert!(sent > 1000, "the schedules did park: {sent}");
}

#[test]
fn an_owner_that_does_not_look_again_is_caught() {
    let caught = (0..2000).filter(|seed| stranded(*seed, false).0).count();
    assert!(caught > 100, "{caught}");
}
