//! Tests of `cbq`: its rule as properties, its edges as cases.

use proptest::prelude::*;

use super::*;
use crate::shaper::{
    backlog::{Dequeue, QueueRule},
    test_packet::TestPacket,
    tree::{LeafConfig, TreeSize},
};

const SECOND: u64 = NS_PER_S;
const MTU_BYTES: u64 = 1000;

fn config(kbit: u64) -> CbqConfig {
    CbqConfig {
        rate: Rate::from_bits_per_s(kbit * 1000).unwrap(),
        burst_bytes: 4 * MTU_BYTES,
        mtu_bytes: MTU_BYTES,
        ewma_log: EWMA_LOG,
        bounded: false,
        isolated: false,
    }
}

/// The published scenarios run on a link of 1.5 Mbit/s, with constant senders that offer more than it.
struct Link {
    cbq: Cbq<TestPacket>,
    now_ns: u64,
    number: usize,
    sent_bytes: Vec<u64>,
}

const LINK_KBIT: u64 = 1500;

impl Link {
    fn new() -> Link {
        let size = TreeSize { classes_max: 8, packets_max: 1000, poll_budget_bytes: 0 };
        Link { cbq: Cbq::new(size, 0), now_ns: 0, number: 0, sent_bytes: vec![0; 8] }
    }

    /// A class with a share of the link in percent, its weight in proportion.
    fn add(&mut self, parent: Option<usize>, percent: u64, priority: Option<u8>) -> usize {
        let kbit = LINK_KBIT * percent / 100;
        let config =
            CbqConfig { ewma_log: if priority.is_none() { EWMA_LOG_MAX } else { EWMA_LOG }, ..config(kbit) };
        self.add_config(parent, config, percent as u32 * 100, priority)
    }

    fn add_config(
        &mut self,
        parent: Option<usize>,
        config: CbqConfig,
        quantum_bytes: u32,
        priority: Option<u8>,
    ) -> usize {
        let leaf = priority.map(|priority| LeafConfig {
            priority,
            flows: 1,
            flow_quantum_bytes: MTU_BYTES as u32,
            limit_bytes: 20_000,
            rule: QueueRule::default(),
        });
        let meter = CbqMeter::new(config, self.now_ns).unwrap();
        let class = self.cbq.add(parent, meter, quantum_bytes, leaf, self.now_ns).unwrap();
        if config.isolated {
            self.cbq.set_config(class, config, quantum_bytes, self.now_ns).unwrap();
        }
        class
    }

    /// The share of the link, in percent, that each class had while these senders (class, packet length) were
    /// busy; the first half second, in which the averages settle, is not counted.
    fn percent(&mut self, senders: &[(usize, u32)], seconds: u64) -> Vec<f64> {
        let link = Rate::from_bits_per_s(LINK_KBIT * 1000).unwrap();
        let (settled_ns, end_ns) = (self.now_ns + SECOND / 2, self.now_ns + seconds * SECOND);
        self.sent_bytes.fill(0);
        while self.now_ns < end_ns {
            for &(class, len_bytes) in senders {
                while self.cbq.leaf(class).unwrap().held().packets < 3 {
                    self.cbq
                        .enqueue(
                            class,
                            0,
                            TestPacket::new(len_bytes, self.number, self.now_ns).in_class(class),
                        )
                        .unwrap();
                    self.number += 1;
                }
            }
            match self.cbq.dequeue(self.now_ns) {
                Dequeue::Packet(_, packet) => {
                    if self.now_ns >= settled_ns {
                        self.sent_bytes[packet.class] += u64::from(packet.len_bytes);
                    }
                    self.now_ns += link.ns_for(packet.len_bytes.into());
                }
                Dequeue::NotBefore(ready_ns) => self.now_ns = ready_ns,
                other => panic!("{other:?}"),
            }
        }
        let whole = link.bytes_in(self.now_ns - settled_ns) as f64;
        // The packets left of senders that stop are dropped.
        for class in 0..8 {
            while self.cbq.drop_next(class, crate::drops::DropReason::PortGone).is_some() {}
        }
        self.sent_bytes.iter().map(|&bytes| 100.0 * bytes as f64 / whole).collect()
    }

    fn assert_percent(&mut self, seconds: u64, senders: &[(usize, u32)], expected: &[(usize, f64)]) {
        let percent = self.percent(senders, seconds);
        for &(class, expected) in expected {
            let got = percent[class];
            assert!(
                (got - expected).abs() < 1.5 && got > expected / 2.0,
                "class {class}: {got:.1} % of the link, not {expected}; {percent:.1?}"
            );
        }
    }
}

/// Floyd and Jacobson, figure 10 (ns: `Test/PRR`, flat structure, formal link sharing): audio 3 % and video
/// 32 % at the higher priority, data 65 % at the lower, each of which pauses in turn.
#[test]
fn flat_link_sharing_of_figure_10() {
    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let audio = link.add(Some(top), 3, Some(1));
    let video = link.add(Some(top), 32, Some(1));
    let data = link.add(Some(top), 65, Some(2));
    let (a, v, d) = ((audio, 190), (video, 500), (data, 1000));
    link.assert_percent(4, &[a, v, d], &[(audio, 3.0), (video, 32.0), (data, 65.0)]);
    // Data's 65 % go by weight, 3 : 32.
    link.assert_percent(4, &[a, v], &[(audio, 3.0 + 65.0 * 3.0 / 35.0), (video, 32.0 + 65.0 * 32.0 / 35.0)]);
    link.assert_percent(4, &[a, v, d], &[(audio, 3.0), (video, 32.0), (data, 65.0)]);
    // Video's 32 % go to the higher priority alone.
    link.assert_percent(6, &[a, d], &[(audio, 35.0), (data, 65.0)]);
    link.assert_percent(2, &[a, v, d], &[(audio, 3.0), (video, 32.0), (data, 65.0)]);
    link.assert_percent(4, &[v, d], &[(video, 35.0), (data, 65.0)]);
}

/// Floyd and Jacobson, figure 11 (ns: `Test/FORMAL`, two agencies, formal link sharing): an agency's idle
/// share goes to its own other class, never to the other agency while that is busy.
#[test]
fn two_agencies_of_figure_11() {
    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let agency_a = link.add(Some(top), 70, None);
    let agency_b = link.add(Some(top), 30, None);
    let video_a = link.add(Some(agency_a), 30, Some(1));
    let data_a = link.add(Some(agency_a), 40, Some(2));
    let video_b = link.add(Some(agency_b), 10, Some(1));
    let data_b = link.add(Some(agency_b), 20, Some(2));
    let (va, da, vb, db) = ((video_a, 190), (data_a, 1000), (video_b, 500), (data_b, 1000));
    let all = [(video_a, 30.0), (data_a, 40.0), (video_b, 10.0), (data_b, 20.0)];
    link.assert_percent(4, &[va, da, vb, db], &all);
    link.assert_percent(4, &[va, da, db], &[(video_a, 30.0), (data_a, 40.0), (data_b, 30.0)]);
    link.assert_percent(4, &[va, da, vb, db], &all);
    link.assert_percent(4, &[da, vb, db], &[(data_a, 70.0), (video_b, 10.0), (data_b, 20.0)]);
    link.assert_percent(4, &[va, da, vb, db], &all);
    link.assert_percent(4, &[va, vb, db], &[(video_a, 70.0), (video_b, 10.0), (data_b, 20.0)]);
    link.assert_percent(4, &[va, da, vb, db], &all);
    link.assert_percent(4, &[va, da, vb], &[(video_a, 30.0), (data_a, 40.0), (video_b, 30.0)]);
    link.assert_percent(4, &[va, da, vb, db], &all);
    link.assert_percent(4, &[da, db], &[(data_a, 70.0), (data_b, 30.0)]);
}

/// ns: `Test/TwoF`: with formal link sharing the data class keeps its 99 % although audio has the higher
/// priority.
#[test]
fn priority_does_not_take_an_unsatisfied_classs_share() {
    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let audio = link.add(Some(top), 1, Some(1));
    let data = link.add(Some(top), 99, Some(2));
    link.assert_percent(8, &[(audio, 190), (data, 500)], &[(audio, 1.0), (data, 99.0)]);
}

#[test]
fn a_bounded_class_never_borrows_and_an_isolated_one_never_lends() {
    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let bounded = link.add_config(Some(top), CbqConfig { bounded: true, ..config(450) }, 3000, Some(1));
    let other = link.add(Some(top), 70, Some(1));
    link.assert_percent(4, &[(bounded, 1000)], &[(bounded, 30.0)]);
    link.assert_percent(4, &[(bounded, 1000), (other, 1000)], &[(bounded, 30.0), (other, 70.0)]);

    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let apart = CbqConfig { isolated: true, bounded: true, ..config(450) };
    let isolated = link.add_config(Some(top), apart, 3000, Some(1));
    let other = link.add(Some(top), 40, Some(1));
    link.assert_percent(4, &[(other, 1000)], &[(other, 70.0)]);
    link.assert_percent(4, &[(isolated, 1000)], &[(isolated, 30.0)]);
    link.assert_percent(4, &[(isolated, 1000), (other, 1000)], &[(isolated, 30.0), (other, 70.0)]);
    // Isolated but not bounded it borrows all the same: alone all of the other's 70 %; with the other its
    // part of them by weight, 3 : 4, since what a class that is not isolated sends counts as its own share
    // first.
    link.cbq.set_config(isolated, CbqConfig { bounded: false, ..apart }, 3000, link.now_ns).unwrap();
    link.assert_percent(4, &[(isolated, 1000)], &[(isolated, 100.0)]);
    link.assert_percent(4, &[(isolated, 1000), (other, 1000)], &[(isolated, 60.0), (other, 40.0)]);
    // An isolated class that is opened lends.
    link.cbq.set_config(isolated, config(450), 3000, link.now_ns).unwrap();
    link.assert_percent(4, &[(other, 1000)], &[(other, 100.0)]);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    for ewma_log in [0, EWMA_LOG_MAX + 1] {
        let error = CbqMeter::new(CbqConfig { ewma_log, ..config(1) }, 0).unwrap_err();
        assert!(error.to_string().ends_with("write 1 to 16"), "{error}");
    }
    let mut link = Link::new();
    let top = link.add(None, 100, None);
    let leaf = link.add(Some(top), 50, Some(0));
    let all = CbqConfig { isolated: true, ..config(1500) };
    let error = link.cbq.set_config(leaf, all, 1000, 0).unwrap_err();
    assert!(error.to_string().contains("take 1500kbit of 1500kbit"), "{error}");
    assert!(!link.cbq.meter(leaf).unwrap().config().isolated, "nothing has changed");
}

proptest! {
    /// The header's inequality for a bounded class, over every window, with a worker that may be late.
    #[test]
    fn every_window_of_a_bounded_class_conforms(
        kbit in 10u64..100_000,
        burst_bytes in 0u64..10_000,
        ewma_log in 1u8..=EWMA_LOG_MAX,
        packets in prop::collection::vec((60u32..=1000, prop::option::of(0u64..50_000_000)), 1..150),
    ) {
        let mut meter =
            CbqMeter::new(CbqConfig { burst_bytes, ewma_log, bounded: true, ..config(kbit) }, 0).unwrap();
        let (mut now_ns, mut out) = (0u64, Vec::new());
        for &(len_bytes, late_ns) in &packets {
            let (mode, until_ns) = meter.mode(now_ns);
            if mode != ClassMode::CanSend {
                prop_assert_eq!(mode, ClassMode::CantSend);
                now_ns = until_ns;
                prop_assert_eq!(meter.mode(now_ns).0, ClassMode::CanSend);
            }
            now_ns += late_ns.unwrap_or(0);
            meter.charge(len_bytes, true, now_ns);
            out.push((now_ns, len_bytes));
        }
        for (first, &(start_ns, _)) in out.iter().enumerate() {
            let mut bytes = 0u64;
            for &(end_ns, len_bytes) in &out[first..] {
                bytes += u64::from(len_bytes);
                let weight = 1.0 - 0.5f64.powi(ewma_log.into());
                let earned = kbit as f64 * (end_ns - start_ns) as f64 / 8e6;
                let allowed = (burst_bytes + 2 * MTU_BYTES) as f64 + earned;
                prop_assert!(bytes as f64 * weight <= allowed + 1.0, "{bytes} of {allowed} in [{start_ns}, {end_ns}]");
            }
        }
    }

    /// A class that is served on time, with packets of one length, keeps its rate exactly.
    #[test]
    fn equal_packets_on_time_keep_the_rate(kbit in 10u64..1_000_000, len_bytes in 60u32..=1000) {
        let config = CbqConfig { burst_bytes: 0, bounded: true, ..config(kbit) };
        let (mut meter, mut now_ns) = (CbqMeter::new(config, 0).unwrap(), 0);
        let mut times_ns = Vec::new();
        for _ in 0..100 {
            now_ns = meter.mode(now_ns).1;
            meter.charge(len_bytes, true, now_ns);
            times_ns.push(now_ns);
        }
        // The first packet came at once, so the second pays for it; from there on each follows the other by
        // its cost.
        let (took_ns, exact_ns) = (times_ns[99] - times_ns[1], config.rate.ns_for(98 * u64::from(len_bytes)));
        prop_assert!(took_ns.abs_diff(exact_ns) <= 98, "{took_ns} for {exact_ns}, rounded once a packet");
    }

    /// A rate that is changed to the same value, however often, changes nothing.
    #[test]
    fn changes_grant_nothing(steps in prop::collection::vec((0u64..3_000_000, any::<bool>()), 1..100)) {
        let (mut meter, mut other) = (CbqMeter::new(config(1000), 0).unwrap(), CbqMeter::new(config(1000), 0).unwrap());
        let mut now_ns = 0;
        for &(gap_ns, send) in &steps {
            now_ns += gap_ns;
            meter.set_config(config(1000), config(1000).rate, now_ns);
            if send && other.mode(now_ns).0 == ClassMode::CanSend {
                meter.charge(500, true, now_ns);
                other.charge(500, true, now_ns);
            }
            prop_assert_eq!(meter.mode(now_ns).0, other.mode(now_ns).0);
        }
    }
}
