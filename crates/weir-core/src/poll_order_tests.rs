//! The turns of queues, and the packets that they bring, by example and by property.

use super::*;

const BUDGET: usize = 4;
const LEN_BYTES: u64 = 100;

/// One pass over queues with these packets in them; returns the polled queues.
fn pass(order: &mut PollOrder, waiting: &mut [usize], now_ns: u64) -> Vec<usize> {
    order.begin_pass(now_ns);
    let mut polled = Vec::new();
    while let Some(queue) = order.next_quiet(|_| true).or_else(|| order.next_active(|_| true)) {
        polled.push(queue);
        let packets = waiting[queue].min(BUDGET);
        waiting[queue] -= packets;
        order.polled(queue, packets, packets as u64 * LEN_BYTES, packets == BUDGET, now_ns);
    }
    polled
}

/// An order that has looked at all queues once, at time 0.
fn settled(queues: usize) -> PollOrder {
    let mut order = PollOrder::new(queues, BUDGET as u32 * LEN_BYTES as u32, 0);
    let polled = pass(&mut order, &mut vec![0; queues], 0);
    assert_eq!(polled, (0..queues).collect::<Vec<_>>(), "what came before is found at the start");
    assert_eq!(order.wake_ns(), SWEEP_NS);
    order
}

#[test]
fn quiet_queues_go_before_active_ones_and_each_gets_one_turn() {
    let mut order = settled(4);
    let mut waiting = [0, 9, 9, 0];
    for queue in [2, 1] {
        order.announce(queue);
    }
    assert_eq!(pass(&mut order, &mut waiting, 10), [2, 1]);
    order.announce(3);
    order.announce(1);
    assert_eq!(pass(&mut order, &mut waiting, 20), [3, 2, 1], "an active queue is not fresh again");
    assert!(order.has_work() && order.is_quiet(0) && !order.is_quiet(1));
    assert_eq!(pass(&mut order, &mut waiting, 30), [3, 2, 1], "2 and 1 bring fewer now, 3 in vain again");
    assert!(order.is_quiet(1) && order.is_quiet(2), "so their next packets are announced");
}

/// Any other queue that runs dry says so itself, by a poll that is not full.
#[test]
fn a_look_in_vain_is_of_a_queue_that_a_full_poll_left_empty() {
    for (packets, in_vain) in [(2 * BUDGET - 1, 0), (2 * BUDGET, 1), (2 * BUDGET + 1, 0)] {
        let mut order = settled(2);
        let mut waiting = [packets, 0];
        order.announce(0);
        (1..5).for_each(|time| drop(pass(&mut order, &mut waiting, 10 * time)));
        assert_eq!((waiting[0], order.empty_wakes()), (0, in_vain), "{packets} packets");
    }
}

#[test]
fn a_turn_that_is_not_taken_is_kept() {
    let mut order = settled(3);
    (0..3).for_each(|queue| order.announce(queue));
    pass(&mut order, &mut [9, 9, 9], 10);
    order.begin_pass(20);
    assert_eq!(order.next_active(|_| true), Some(0));
    order.polled(0, BUDGET, 400, true, 20);
    // There is no room here. In the next pass it is the turn of queues that had none.
    assert_eq!(pass(&mut order, &mut [9, 9, 9], 30), [1, 2, 0]);
}

#[test]
fn an_active_queue_that_may_not_be_polled_holds_up_no_other_and_keeps_its_turn() {
    let mut order = settled(3);
    (0..3).for_each(|queue| order.announce(queue));
    pass(&mut order, &mut [9, 9, 9], 10);
    for now_ns in [20, 30] {
        order.begin_pass(now_ns);
        for queue in [1, 2] {
            assert_eq!(order.next_active(|queue| queue != 0), Some(queue), "at {now_ns}");
            order.polled(queue, BUDGET, 400, true, now_ns);
        }
        assert_eq!(order.next_active(|queue| queue != 0), None, "once a pass");
    }
    assert_eq!(pass(&mut order, &mut [9, 9, 9], 40), [0, 1, 2]);
}

#[test]
fn a_quiet_queue_that_may_not_be_polled_holds_up_no_other() {
    let mut order = settled(3);
    (0..3).for_each(|queue| order.announce(queue));
    order.begin_pass(10);
    assert_eq!(order.next_quiet(|queue| queue == 1), Some(1));
    order.polled(1, 1, 100, false, 10);
    assert_eq!(order.next_quiet(|queue| queue == 1), None, "once a pass");
    assert_eq!(order.next_quiet(|_| true), Some(0));
}

#[test]
fn a_suspected_queue_that_is_announced_is_fresh_at_once() {
    let mut order = settled(2);
    order.announce(0);
    pass(&mut order, &mut [1, 0], 0);
    order.begin_pass(RECHECK_NS_MIN);
    assert_eq!(order.next_quiet(|_| false), None, "suspected, but there is no room");
    order.announce(0);
    assert_eq!(pass(&mut order, &mut [1, 0], RECHECK_NS_MIN + 1), [0], "and it has one turn, not two");
}

#[test]
fn a_packet_behind_its_announcement_is_found_in_time() {
    let mut order = settled(2);
    order.announce(0);
    for _ in 0..TRIES {
        assert_eq!(pass(&mut order, &mut [0, 0], 1_000), [0]);
        assert_eq!(order.wake_ns(), 1_000 + RECHECK_NS_MIN, "a worker that sleeps now tries again");
    }
    assert!(pass(&mut order, &mut [1, 0], 2_000).is_empty(), "given up for now");
    assert_eq!(order.wake_ns(), 1_000 + RECHECK_NS_MIN);
    // The packet may also have gone to another queue, so all are looked at.
    assert_eq!(pass(&mut order, &mut [1, 1], 1_000 + RECHECK_NS_MIN), [0, 1]);
}

#[test]
fn looks_are_put_off_by_queues_that_turn_idle_but_not_for_ever() {
    let mut order = settled(3);
    for queue in [0, 1] {
        order.announce(queue);
    }
    pass(&mut order, &mut [1, 1, 0], 0);
    let (mut now_ns, mut looks_ns) = (0, Vec::new());
    while now_ns < SWEEP_NS / 2 {
        now_ns += RECHECK_NS_MIN / 2;
        order.announce(1);
        let polled = pass(&mut order, &mut [0, 1, 0], now_ns);
        assert!(!polled.contains(&2), "it was never announced");
        looks_ns.extend(polled.contains(&0).then_some(now_ns));
    }
    for (nth, &look_ns) in looks_ns.iter().enumerate() {
        let before_ns = if nth == 0 { 0 } else { looks_ns[nth - 1] };
        let due_ns = before_ns + (RECHECK_NS_MIN << (2 * nth));
        assert!((due_ns..=due_ns + RECHECK_NS_MIN + PUT_OFF_NS_MAX).contains(&look_ns), "{looks_ns:?}");
    }
    assert_eq!(looks_ns.len(), usize::from(RECHECKS) - 1, "the last one is due later");
}

#[test]
fn a_lone_quiet_queue_that_has_used_its_share_up_is_polled_all_the_same() {
    let mut order = settled(2);
    for packet in 0..4 * BUDGET as u64 {
        order.announce(1);
        assert_eq!(pass(&mut order, &mut [0, 1], packet), [1], "packet {packet}");
    }
}

#[test]
fn a_quiet_queue_with_many_small_packets_brings_its_share_early() {
    let mut order = settled(3);
    (0..3).for_each(|queue| order.announce(queue));
    order.begin_pass(10);
    let mut brought_bytes = [0; 3];
    for _ in 0..6 {
        let Some(queue) = order.next_quiet(|_| true) else { break };
        let bytes = if queue == 1 { 200 } else { 400 };
        brought_bytes[queue] += bytes;
        order.polled(queue, BUDGET, bytes, true, 10);
        order.begin_pass(10);
    }
    assert_eq!(brought_bytes, [400; 3], "the same share, in one poll or in two");
    assert_eq!(order.next_quiet(|_| true), None, "then they wait for the next round");
}

#[test]
fn idle_queues_are_looked_at_ever_less_but_for_ever() {
    let mut order = settled(2);
    order.announce(1);
    pass(&mut order, &mut [0, 1], 0);
    let (mut now_ns, mut looks) = (0, Vec::new());
    while now_ns < 5 * SWEEP_NS {
        let at_ns = order.wake_ns();
        looks.push((at_ns - now_ns, pass(&mut order, &mut [0, 0], at_ns)));
        now_ns = at_ns;
    }
    let (rechecks, sweeps) = looks.split_at(usize::from(RECHECKS));
    for (nth, look) in rechecks.iter().enumerate() {
        assert_eq!(*look, (RECHECK_NS_MIN * 4u64.pow(nth as u32), vec![1]), "only the one that had packets");
    }
    assert!(sweeps.iter().all(|(after_ns, polled)| *after_ns <= SWEEP_NS && polled == &[0, 1]));
    assert!(sweeps.len() >= 4);
}

/// One packet every 0.3 s, found by looks alone: the first few as late as those come, then within milliseconds, until packets are
/// announced.
#[test]
fn senders_that_announce_nothing_are_looked_at_often() {
    let mut order = settled(4);
    let mut now_ns = 0;
    let mut find = |order: &mut PollOrder, is_announced: bool| {
        let (mut waiting, came_ns) = ([0, 0, 1, 0], now_ns + 300_000_000);
        while order.wake_ns() < came_ns {
            let at_ns = order.wake_ns();
            pass(order, &mut [0; 4], at_ns);
        }
        now_ns = came_ns;
        if is_announced {
            order.announce(2);
        }
        while waiting[2] > 0 {
            pass(order, &mut waiting, now_ns);
            if waiting[2] > 0 {
                now_ns = order.wake_ns();
            }
        }
        now_ns - came_ns
    };
    let late_ns: Vec<_> = (0..20).map(|_| find(&mut order, false)).collect();
    let (first, others) = late_ns.split_at(SILENT_FINDS.into());
    assert!(first.iter().any(|late_ns| *late_ns > SILENT_SWEEP_NS_MAX), "{first:?}");
    assert!(others.iter().all(|late_ns| *late_ns <= SILENT_SWEEP_NS_MAX), "{others:?}");
    (0..SILENT_FINDS + 1).for_each(|_| assert_eq!(find(&mut order, true), 0));
    let mut looks = 0;
    while order.wake_ns() < now_ns + 10 * SWEEP_NS {
        let at_ns = order.wake_ns();
        pass(&mut order, &mut [0; 4], at_ns);
        looks += 1;
    }
    assert!(looks < 30, "who announces is left in peace: {looks}");
}

/// The most packets that a queue brings at a poll, and their length.
#[derive(Clone, Copy)]
struct Sender {
    packets: usize,
    len_bytes: u64,
}

/// Senders that always have more, polled one pass after the other while there is room for a few polls; returns the bytes of each.
fn shares(senders: &[Sender], passes: usize) -> Vec<u64> {
    let mut order = PollOrder::new(senders.len(), BUDGET as u32 * 1500, 0);
    let mut brought = vec![0; senders.len()];
    for pass in 0..passes {
        (0..senders.len()).for_each(|queue| order.announce(queue));
        order.begin_pass(pass as u64);
        for _ in 0..3 {
            let Some(queue) = order.next_quiet(|_| true).or_else(|| order.next_active(|_| true)) else {
                break;
            };
            let Sender { packets, len_bytes } = senders[queue];
            brought[queue] += packets as u64 * len_bytes;
            order.polled(queue, packets, packets as u64 * len_bytes, packets == BUDGET, pass as u64);
        }
    }
    brought
}

#[test]
fn a_group_with_more_room_leaves_the_shares_of_another_as_they_are() {
    const SENDERS: [Sender; 4] = [
        Sender { packets: BUDGET, len_bytes: 1490 },
        Sender { packets: BUDGET, len_bytes: 1490 },
        Sender { packets: BUDGET, len_bytes: 100 },
        Sender { packets: BUDGET - 1, len_bytes: 1490 },
    ];
    let mut order = PollOrder::new(SENDERS.len() + 1, BUDGET as u32 * 1500, 0);
    order.make_room(1);
    order.set_group(SENDERS.len(), 1);
    let mut brought = [0; SENDERS.len()];
    let mut room = 0;
    for pass in 0..200_000 {
        (0..=SENDERS.len()).for_each(|queue| order.announce(queue));
        order.begin_pass(pass);
        // The first group has room for one poll now and then, the second always.
        room += u64::from(pass % 10 == 0);
        for _ in 0..3 {
            let may = |queue: usize| queue == SENDERS.len() || room > 0;
            let Some(queue) = order.next_quiet(may).or_else(|| order.next_active(may)) else { break };
            let mut sender = Sender { packets: BUDGET, len_bytes: 1500 };
            if let Some(one) = SENDERS.get(queue) {
                sender = *one;
                brought[queue] += sender.packets as u64 * sender.len_bytes;
                room -= 1;
            }
            let bytes = sender.packets as u64 * sender.len_bytes;
            order.polled(queue, sender.packets, bytes, sender.packets == BUDGET, pass);
        }
    }
    let mean = brought.iter().sum::<u64>() / brought.len() as u64;
    for (queue, bytes) in brought.iter().enumerate() {
        assert!(bytes.abs_diff(mean) * 20 < mean, "queue {queue} brought {bytes} of {brought:?}");
    }
}

#[test]
fn shares_are_equal_in_bytes_whatever_a_poll_brings() {
    let full = Sender { packets: BUDGET, len_bytes: 1500 };
    let small_buffer = Sender { packets: BUDGET - 1, len_bytes: 1500 };
    let small_packets = Sender { packets: BUDGET, len_bytes: 100 };
    let mut senders = vec![full; 16];
    senders.extend([small_buffer, small_buffer, small_packets]);
    let brought = shares(&senders, 40_000);
    let mean = brought.iter().sum::<u64>() / brought.len() as u64;
    for (queue, bytes) in brought.iter().enumerate() {
        assert!(bytes.abs_diff(mean) * 20 < mean, "queue {queue} brought {bytes} of {brought:?}");
    }
}

/// The groups with work against a count of all queues, after each of many steps.
#[test]
fn groups_with_work_are_those_of_queues_that_are_not_quiet() {
    let mut order = settled(6);
    order.make_room(3);
    for step in 0..2_000_usize {
        let queue = step * 7 % 6;
        match step % 5 {
            0 | 1 => order.announce(queue),
            2 => order.set_group(queue, step / 5 % 4),
            _ => {
                order.begin_pass(step as u64 * 1_000);
                if let Some(queue) = order.next_quiet(|_| true).or_else(|| order.next_active(|_| true)) {
                    let is_full = step % 3 == 0;
                    order.polled(
                        queue,
                        if is_full { BUDGET } else { step % 2 },
                        400,
                        is_full,
                        step as u64 * 1_000,
                    );
                }
            }
        }
        let mut expected: Vec<_> =
            (0..6).filter(|&queue| !order.is_quiet(queue)).map(|queue| order.queues[queue].group).collect();
        expected.sort_unstable();
        expected.dedup();
        let mut groups: Vec<_> = order.groups_with_work().collect();
        groups.sort_unstable();
        assert_eq!(groups, expected, "step {step}");
    }
}
