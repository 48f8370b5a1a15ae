//! Tests of `fq`: its rule as properties, its edges as cases.

use proptest::prelude::*;

use super::{wheel::SLOT_NS, *};
use crate::shaper::test_packet::TestPacket;

const MBIT: u64 = 1_000_000;

fn rate(bits_per_s: u64) -> Option<Rate> {
    Rate::from_bits_per_s(bits_per_s)
}

fn config(pace: Option<Rate>) -> FqConfig {
    FqConfig { flows: 8, packets_max: 4000, quantum_bytes: 1514, pace, slack_ns: 0, limit_bytes: 1 << 20 }
}

/// Runs the clock from answer to answer until `end_ns`; what left: (time, flow, packet).
fn run(fq: &mut Fq<TestPacket>, mut now_ns: u64, end_ns: u64) -> Vec<(u64, usize, TestPacket)> {
    let mut out = Vec::new();
    loop {
        match fq.dequeue(now_ns) {
            Dequeue::Packet(flow, packet) => out.push((now_ns, flow, packet)),
            Dequeue::NotBefore(ready_ns) if ready_ns <= end_ns => {
                assert!(ready_ns > now_ns, "an answer that is no later than the question");
                now_ns = ready_ns;
            }
            Dequeue::NotBefore(_) | Dequeue::Empty => return out,
            Dequeue::Dropped(..) => panic!("FQ drops nothing"),
        }
        assert!(fq.account().balances(fq.held()));
    }
}

#[test]
fn flows_keep_their_own_pace_and_a_flow_without_one_fills_the_gaps() {
    let mut fq = Fq::new(config(rate(12 * MBIT)), 0);
    fq.set_pace(1, rate(24 * MBIT));
    fq.set_pace(2, None);
    for number in 0..100 {
        for flow in 0..3 {
            fq.enqueue(flow, TestPacket::new(1500, number, 0)).unwrap();
        }
    }
    let out = run(&mut fq, 0, 20_000_000);
    let times =
        |wanted| out.iter().filter(|(_, flow, _)| *flow == wanted).map(|(ns, ..)| *ns).collect::<Vec<_>>();
    // 1500 bytes take 1 ms at 12 Mbit/s; a slot rounds up to SLOT_NS, and without slack that is lost.
    for (number, &ns) in times(0).iter().enumerate() {
        let exact_ns = number as u64 * 1_000_000;
        assert!(
            (exact_ns..exact_ns + SLOT_NS * (number as u64 + 1)).contains(&ns),
            "packet {number} at {ns}"
        );
    }
    assert_eq!(times(1).len(), 40);
    assert_eq!(times(2), vec![0; 100]);
}

#[test]
fn with_slack_for_the_slot_nothing_of_the_pace_is_lost() {
    let mut fq = Fq::new(FqConfig { slack_ns: 2 * SLOT_NS, ..config(rate(7_777_777)) }, 0);
    for number in 0..3000 {
        fq.enqueue(3, TestPacket::new(1001, number, 0)).unwrap();
    }
    let out = run(&mut fq, 0, u64::MAX);
    let (last_ns, ..) = out[2999];
    let exact_ns = (u128::from(2999u64 * 1001 * 8) * 1_000_000_000).div_ceil(7_777_777) as u64;
    assert!(
        (exact_ns..exact_ns + SLOT_NS).contains(&last_ns),
        "{last_ns} for {exact_ns}, after 2999 packets"
    );
}

#[test]
fn flows_without_a_pace_share_by_bytes_and_a_quiet_one_goes_first() {
    let mut fq = Fq::new(config(None), 0);
    for number in 0..300 {
        fq.enqueue(0, TestPacket::new(1514, number, 0)).unwrap();
        for part in 0..5 {
            fq.enqueue(1, TestPacket::new(300, 5 * number + part, 0)).unwrap();
        }
    }
    let mut sent = [0u32; 3];
    let mut send = |fq: &mut Fq<TestPacket>| match fq.dequeue(0) {
        Dequeue::Packet(flow, packet) => {
            sent[flow] += packet.len_bytes;
            assert!(sent[0].abs_diff(sent[1]) < 2 * 1514, "a quantum and a packet: {sent:?}");
            flow
        }
        other => panic!("{other:?}"),
    };
    for _ in 0..400 {
        send(&mut fq);
    }
    fq.enqueue(2, TestPacket::new(100, 0, 0)).unwrap();
    assert_eq!(send(&mut fq), 2);
}

/// A handle of the size of a wire's or a path's, and with a number that is never 0 as they have.
#[derive(Debug)]
#[expect(dead_code, reason = "only its size is asked for")]
struct Handle {
    frame: std::num::NonZeroU32,
    place: [u32; 3],
    meta: crate::packet::Meta,
}

#[test]
fn a_flow_and_a_packet_alone_in_it_are_within_a_cache_line() {
    assert_eq!(size_of::<Handle>(), 32);
    assert!(size_of::<FlowState<Handle>>() <= 64);
}

#[test]
fn a_pace_is_never_exceeded_and_missed_by_less_than_a_tick_a_packet() {
    for bits_per_s in
        [200, 999, 1000, 7_777_777, 40_000_000, 999_999_999, 10_000_000_000, 99_999_999_999, 1 << 40]
    {
        let mut flow: FlowState<()> = FlowState::new(rate(bits_per_s));
        let packets = 1_000_000u128;
        (0..packets).for_each(|_| flow.depart(1000, 0));
        let exact = ((packets * 8_000_000_000_000) << TICK_SHIFT).div_ceil(u128::from(bits_per_s));
        let ticks = u128::from(flow.ready);
        // Besides, each byte is rounded up by less than 2^-32 of a tick.
        assert!((exact..=exact + packets + 1).contains(&ticks), "{bits_per_s}: {ticks} for {exact}");
    }
}

/// Four flows without a pace are always old and backlogged; two with one come due again and again, each in a slot that may have
/// to wait for the old flows. All get what is theirs: the paced ones their pace, the others equal parts of the rest.
#[test]
fn neither_backlogged_flows_nor_those_that_come_due_starve() {
    const LINK_NS_PER_BYTE: u64 = 8;
    // More than a slot and a round of everybody else's turns take, which is how late a flow can be served.
    let mut fq = Fq::new(FqConfig { slack_ns: 150_000, ..config(None) }, 0);
    // A tenth of the link, each.
    (4..6).for_each(|flow| fq.set_pace(flow, rate(100 * MBIT)));
    let (mut now_ns, mut sent) = (0, [0u64; 6]);
    let mut waiting = [0; 6];
    for number in 0..20_000 {
        for (flow, waiting) in waiting.iter_mut().enumerate() {
            while *waiting < 3 {
                fq.enqueue(flow, TestPacket::new([1514, 700, 300, 1514, 1000, 64][flow], number, now_ns))
                    .unwrap();
                *waiting += 1;
            }
        }
        let Dequeue::Packet(flow, packet) = fq.dequeue(now_ns) else { panic!("the link is never idle") };
        waiting[flow] -= 1;
        sent[flow] += u64::from(packet.len_bytes);
        now_ns += u64::from(packet.len_bytes) * LINK_NS_PER_BYTE;
        let (least, most) = (sent[..4].iter().min().unwrap(), sent[..4].iter().max().unwrap());
        assert!(most - least <= 2 * 1514, "a quantum and a packet: {sent:?}");
        // A round is some 1,000 bytes at this pace; besides, a packet that has begun and one that has not.
        for &bytes in &sent[4..] {
            let exact = now_ns / 80;
            assert!(bytes + 4000 > exact && bytes < exact + 4000, "{bytes} of {exact} after {now_ns} ns");
        }
    }
}

/// Whoever became ready first has the next turn, also where the caller is late and several slots are due while old flows wait.
#[test]
fn turns_are_taken_in_the_order_in_which_flows_became_ready() {
    let mut fq = Fq::new(config(None), 0);
    // Flow 0 is always ready; the others have sent, and are ready again after so many slots.
    let ready_ns = |flow: usize| flow as u64 * 4 * SLOT_NS;
    for flow in 1..7 {
        fq.set_pace(flow, rate(8 * 1514 * 1_000_000_000 / ready_ns(flow)));
        fq.enqueue(flow, TestPacket::new(1514, 0, 0)).unwrap();
        assert!(matches!(fq.dequeue(0), Dequeue::Packet(sent, _) if sent == flow));
    }
    assert_eq!(fq.dequeue(0), Dequeue::Empty, "none is new when it comes back");
    for number in 0..20 {
        (0..7).filter(|flow| *flow == 0 || number == 0).for_each(|flow| {
            fq.enqueue(flow, TestPacket::new(1514, number, 0)).unwrap();
        });
    }
    // Each packet uses up a turn. What is due when a flow has used its own goes before its next.
    let mut sent = Vec::new();
    for (late, packets) in [(0, 1), (1, 1), (2, 1), (3, 1), (5, 4), (6, 5)] {
        fq.dequeue_burst(ready_ns(late) + 2 * SLOT_NS, packets, |flow, _| sent.push(flow));
    }
    assert_eq!(sent, [0, 0, 1, 0, 2, 3, 0, 4, 5, 0, 6, 0, 0]);
}

/// It is new each time it comes back, and new flows go first; so it passes through the old ones while any of them waits.
#[test]
fn a_flow_that_is_empty_after_each_packet_starves_nobody() {
    let mut fq = Fq::new(config(None), 0);
    fq.set_pace(2, rate(12 * MBIT));
    for number in 0..10 {
        fq.enqueue(1, TestPacket::new(1514, number, 0)).unwrap();
    }
    for number in 0..3 {
        fq.enqueue(2, TestPacket::new(1500, number, 0)).unwrap();
    }
    let (mut sent, mut waits) = ([0; 3], false);
    for number in 0..40 {
        if !waits {
            fq.enqueue(0, TestPacket::new(100, number, 0)).unwrap();
        }
        let Dequeue::Packet(flow, _) = fq.dequeue(number as u64 * 100_000) else {
            panic!("the first always sends")
        };
        sent[flow] += 1;
        waits = flow != 0;
    }
    assert_eq!(sent, [27, 10, 3]);
}

/// So many flows are fetched ahead; each packet leaves at its time all the same.
#[test]
fn flows_that_no_cache_holds_keep_their_own_pace() {
    let flows = 2 * FLOWS_CACHED;
    let mut fq =
        Fq::new(FqConfig { flows, packets_max: 2 * flows, slack_ns: 2 * SLOT_NS, ..config(None) }, 0);
    // A packet each ms to 64 ms.
    let pace_ns = |flow: usize| 1_000_000 * (1 + flow as u64 % 64);
    for flow in 0..flows {
        fq.set_pace(flow, rate(8 * 1000 * 1_000_000_000 / pace_ns(flow)));
    }
    for number in 0..2 {
        for flow in 0..flows {
            fq.enqueue(flow, TestPacket::new(1000, number, 0)).unwrap();
        }
    }
    let out = run(&mut fq, 0, u64::MAX);
    assert_eq!(out.len(), 2 * flows);
    for (ns, flow, packet) in out {
        let exact_ns = packet.number as u64 * pace_ns(flow);
        // A slot, and what is cut off a pace in whole bits.
        assert!(
            (exact_ns..exact_ns + 2 * SLOT_NS).contains(&ns),
            "packet {} of flow {flow} at {ns}",
            packet.number
        );
    }
}

#[test]
fn a_shaper_without_a_way_out_empties_into_its_books() {
    let mut fq = Fq::new(config(rate(1)), 0);
    for number in 0..20 {
        fq.enqueue(number % 8, TestPacket::new(100, number, 0)).unwrap();
    }
    run(&mut fq, 0, 1);
    while fq.drop_next(DropReason::PortGone).is_some() {}
    assert_eq!(fq.account().dropped.total().packets + fq.account().delivered.packets, 20);
    assert!(fq.account().balances(Count::default()));
    assert_eq!(fq.dequeue(u64::MAX - 1), Dequeue::Empty, "flows left in the wheel hold nothing up");
    fq.enqueue(0, TestPacket::new(100, 20, 0)).unwrap();
    assert!(matches!(fq.dequeue(u64::MAX - 1), Dequeue::Packet(0, _)));
}

/// A pace for each flow, in bits per second; 0 is none.
fn paces() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1 => Just(0), 3 => 1_001..100 * MBIT], 8)
}

proptest! {
    /// The header's inequality for each flow over every window, order in a flow, and nothing lost; a flow without a
    /// pace waits for no time; while flows come and go, paces change before use, and the caller is late.
    #[test]
    fn every_window_of_every_flow_conforms(
        packets in prop::collection::vec((0usize..8, 60u32..1514, 0u64..3_000_000), 1..300),
        paces in paces(),
        slack_ns in 0u64..5_000_000,
        late_ns in 0u64..2_000_000,
    ) {
        let mut fq = Fq::new(FqConfig { slack_ns, ..config(None) }, 0);
        for (flow, &pace) in paces.iter().enumerate() {
            fq.set_pace(flow, rate(pace));
        }
        let (mut now_ns, mut out) = (0, Vec::new());
        for (number, &(flow, len_bytes, gap_ns)) in packets.iter().enumerate() {
            fq.enqueue(flow, TestPacket::new(len_bytes, number, now_ns)).unwrap();
            if number % 3 == 0 {
                let left = run(&mut fq, now_ns, now_ns + gap_ns);
                for (ns, flow, _) in &left {
                    prop_assert!(paces[*flow] > 0 || *ns == now_ns, "flow {flow} without a pace at {ns}, not {now_ns}");
                }
                out.extend(left);
                now_ns += gap_ns + late_ns;
            }
        }
        out.extend(run(&mut fq, now_ns, u64::MAX));
        prop_assert!(out.len() == packets.len(), "{} of {} left", out.len(), packets.len());
        for (flow, &pace) in paces.iter().enumerate() {
            let sent: Vec<_> = out.iter().filter(|(_, f, _)| *f == flow).collect();
            prop_assert!(sent.windows(2).all(|w| w[0].2.number < w[1].2.number), "order in flow {flow}");
            for (first, (start_ns, ..)) in sent.iter().enumerate().filter(|_| pace > 0) {
                let mut bytes = 0;
                for (end_ns, _, packet) in &sent[first..] {
                    let earned = u128::from(pace) * u128::from(end_ns - start_ns + slack_ns);
                    prop_assert!(bytes * 8_000_000_000 <= earned, "all but the last packet of the window");
                    bytes += u128::from(packet.len_bytes);
                }
            }
        }
    }
}

proptest! {
    /// However many packets are asked for at once, the same leave in the same order at the same times, with the same books,
    /// whether a flow holds one packet or many, and the answer tells what is left.
    #[test]
    fn bursts_are_what_single_packets_are(
        arrivals in prop::collection::vec((0usize..8, 60u32..1514), 1..200),
        paces in paces(),
        steps in prop::collection::vec((1usize..20, 0u64..400_000), 1..100),
    ) {
        let packets_max = 60;
        let config = FqConfig { packets_max, slack_ns: 5000, ..config(None) };
        let (mut single, mut burst) = (Fq::new(config, 0), Fq::new(config, 0));
        for (flow, &pace) in paces.iter().enumerate() {
            single.set_pace(flow, rate(pace));
            burst.set_pace(flow, rate(pace));
        }
        let mut arrivals = arrivals.iter().enumerate().map(|(number, &(flow, len))| (flow, len, number));
        let mut now_ns = 0;
        for &(size, gap_ns) in &steps {
            let arrived: Vec<_> = arrivals.by_ref().take(size).map(|(flow, len, number)| (flow, TestPacket::new(len, number, now_ns))).collect();
            let mut refused = Vec::new();
            for (flow, packet) in arrived.clone() {
                if let Err(Refused::NoSlot(packet)) = single.enqueue(flow, packet) {
                    refused.push(packet);
                }
            }
            let (flows, packets): (Vec<_>, Vec<_>) = arrived.into_iter().unzip();
            let mut packets = packets.into_iter();
            let mut refused_of_burst = Vec::new();
            while let Err(Refused::NoSlot(packet)) = burst.enqueue_burst(&flows[flows.len() - packets.len()..], &mut packets) {
                refused_of_burst.push(packet);
            }
            prop_assert_eq!(refused, refused_of_burst);
            let (mut of_single, mut of_burst) = (Vec::new(), Vec::new());
            let rest = burst.dequeue_burst(now_ns, size, |flow, packet| of_burst.push((flow, packet)));
            while of_single.len() < size && let Dequeue::Packet(flow, packet) = single.dequeue(now_ns) {
                of_single.push((flow, packet));
            }
            prop_assert_eq!(&of_single, &of_burst);
            prop_assert!(of_burst.len() <= size);
            prop_assert!(of_burst.len() == size || rest != AfterBurst::Due);
            if let AfterBurst::NotBefore(next_ns) = rest {
                prop_assert!(next_ns > now_ns);
            }
            prop_assert_eq!(rest == AfterBurst::Empty, burst.held().packets == 0 && rest != AfterBurst::Due);
            prop_assert_eq!((single.account(), single.held(), single.delay()), (burst.account(), burst.held(), burst.delay()));
            prop_assert!(burst.account().balances(burst.held()));
            now_ns += gap_ns;
        }
    }
}
