//! Tests of `htb`: its rule as properties, its edges as cases.

use proptest::prelude::*;

use super::*;
use crate::{
    rate::NS_PER_S,
    shaper::{
        backlog::{Dequeue, QueueRule},
        test_packet::TestPacket,
        tree::{LeafConfig, TreeSize},
    },
};

const MBIT: u64 = 1_000_000;
const MTU_BYTES: u64 = 1514;

fn rate(mbit: u64) -> Rate {
    Rate::from_bits_per_s(mbit * MBIT).unwrap()
}

fn config(rate_mbit: u64, ceil_mbit: u64) -> HtbConfig {
    HtbConfig {
        rate: rate(rate_mbit),
        ceil: rate(ceil_mbit),
        burst_bytes: 10_000,
        cburst_bytes: 10_000,
        mtu_bytes: MTU_BYTES,
    }
}

/// A tree, the packets that its leaves get, and those that came out of each class, inner ones included.
struct Bed {
    tree: Htb<TestPacket>,
    now_ns: u64,
    number: usize,
    /// The time and the length of every packet out of each class.
    out: Vec<Vec<(u64, u32)>>,
}

/// A millisecond of the rate, a packet at least.
fn quantum_bytes(config: HtbConfig) -> u32 {
    config.rate.bytes_in(1_000_000).max(MTU_BYTES) as u32
}

impl Bed {
    fn new() -> Bed {
        let size = TreeSize { classes_max: 50, packets_max: 10_000, poll_budget_bytes: 64 * MTU_BYTES };
        Bed { tree: Htb::new(size, 0), now_ns: 0, number: 0, out: vec![Vec::new(); 50] }
    }

    /// Adds a class; a leaf if it has a priority. The quantum is in proportion to the rate.
    fn add(&mut self, parent: Option<usize>, config: HtbConfig, priority: Option<u8>) -> usize {
        let meter = HtbMeter::new(config, self.now_ns).unwrap();
        let leaf = priority.map(|priority| LeafConfig {
            priority,
            flows: 2,
            flow_quantum_bytes: MTU_BYTES as u32,
            limit_bytes: 20_000,
            rule: QueueRule::default(),
        });
        self.tree.add(parent, meter, quantum_bytes(config), leaf, self.now_ns).unwrap()
    }

    /// Keeps the given leaves full for a while; `lens` are the packets' lengths in turn. Order in a flow is
    /// checked.
    fn run(&mut self, full: &[usize], lens: &[u32], time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        let mut last = [[None; 2]; 50];
        loop {
            for &leaf in full {
                while self.tree.leaf(leaf).unwrap().held().packets < 4 {
                    let packet = TestPacket::new(lens[self.number % lens.len()], self.number, self.now_ns)
                        .in_class(leaf);
                    self.tree.enqueue(leaf, self.number % 2, packet).unwrap();
                    self.number += 1;
                }
            }
            match self.tree.dequeue(self.now_ns) {
                Dequeue::Packet(flow, packet) => {
                    let leaf = packet.class;
                    assert!(last[leaf][flow] < Some(packet.number), "order");
                    last[leaf][flow] = Some(packet.number);
                    let mut class = Some(leaf);
                    while let Some(index) = class {
                        self.out[index].push((self.now_ns, packet.len_bytes));
                        class = self.tree.parent(index);
                    }
                }
                Dequeue::NotBefore(ready_ns) => {
                    assert!(ready_ns > self.now_ns);
                    self.now_ns = ready_ns;
                }
                Dequeue::Empty => self.now_ns = end_ns,
                Dequeue::Dropped(..) => panic!("no rule drops"),
            }
            if self.now_ns >= end_ns {
                self.now_ns = end_ns;
                return;
            }
        }
    }

    /// Mbit/s out of a class since a time, counted after it.
    fn mbit(&self, class: usize, since_ns: u64) -> f64 {
        let bytes: u64 =
            self.out[class].iter().filter(|(ns, _)| *ns > since_ns).map(|&(_, len)| u64::from(len)).sum();
        bytes as f64 * 8000.0 / (self.now_ns - since_ns) as f64
    }

    fn assert_mbit(&self, class: usize, since_ns: u64, expected: f64) {
        let mbit = self.mbit(class, since_ns);
        assert!((mbit / expected - 1.0).abs() < 0.01, "class {class}: {mbit} Mbit/s, not {expected}");
    }
}

/// Bytes in every window that begins and ends with a departure against `extra + limit * t`.
fn assert_conforms(out: &[(u64, u32)], limit: Rate, extra_bytes: u64) {
    for (first, &(start_ns, _)) in out.iter().enumerate() {
        let mut bits = 0;
        for &(end_ns, len_bytes) in &out[first..] {
            bits += u128::from(len_bytes) * 8 * u128::from(NS_PER_S);
            let allowed = u128::from(extra_bytes) * 8 * u128::from(NS_PER_S)
                + u128::from(limit.bits_per_s()) * u128::from(end_ns - start_ns);
            assert!(bits <= allowed, "[{start_ns}, {end_ns}] at {limit}");
        }
    }
}

const SECOND: u64 = NS_PER_S;
const FULL_FRAMES: &[u32] = &[1514];

#[test]
fn floors_are_met_and_the_rest_is_borrowed_by_quantum() {
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let leaves = [10, 20, 30].map(|mbit| bed.add(Some(root), config(mbit, 100), Some(0)));
    bed.run(&leaves, FULL_FRAMES, SECOND);
    // 40 Mbit/s are over, shared 1 : 2 : 3 as the quanta, which follow the rates.
    let quanta = [10, 20, 30].map(|mbit| f64::from(quantum_bytes(config(mbit, 100))));
    let sum: f64 = quanta.iter().sum();
    for ((leaf, floor), quantum) in leaves.into_iter().zip([10.0, 20.0, 30.0]).zip(quanta) {
        bed.assert_mbit(leaf, 0, floor + 40.0 * quantum / sum);
    }
    bed.assert_mbit(root, 0, 100.0);
}

#[test]
fn a_noisy_tenant_leaves_the_quiet_ones_floor_at_once() {
    // root 100 -+- a 60 -+- a1 20, a2 40
    //           +- b 40 --- b1 40
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let a = bed.add(Some(root), config(60, 100), None);
    let b = bed.add(Some(root), config(40, 100), None);
    let (a1, a2) = (bed.add(Some(a), config(20, 100), Some(0)), bed.add(Some(a), config(40, 100), Some(0)));
    let b1 = bed.add(Some(b), config(40, 100), Some(0));
    bed.run(&[a1, a2], FULL_FRAMES, SECOND);
    bed.assert_mbit(a1, 0, 20.0 + 40.0 / 3.0);
    bed.assert_mbit(a2, 0, 40.0 + 80.0 / 3.0);
    let since_ns = bed.now_ns;
    bed.run(&[a1, a2, b1], FULL_FRAMES, SECOND);
    bed.assert_mbit(b1, since_ns, 40.0);
    bed.assert_mbit(a1, since_ns, 20.0);
    bed.assert_mbit(a2, since_ns, 40.0);
    let first_ns = bed.out[b1][0].0 - since_ns;
    assert!(first_ns < 400_000, "the quiet tenant waited {first_ns} ns for its first packet");
    let since_ns = bed.now_ns;
    bed.run(&[a1, b1], FULL_FRAMES, SECOND);
    // a2's 40 go to a1 first: its parent can lend while a has any left.
    bed.assert_mbit(a1, since_ns, 60.0);
    bed.assert_mbit(b1, since_ns, 40.0);
}

#[test]
fn a_ceiling_holds_and_leaves_the_rest_to_others() {
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let low = bed.add(Some(root), config(10, 25), Some(0));
    let high = bed.add(Some(root), config(10, 100), Some(0));
    bed.run(&[low, high], FULL_FRAMES, SECOND);
    bed.assert_mbit(low, 0, 25.0);
    bed.assert_mbit(high, 0, 75.0);
    let since_ns = bed.now_ns;
    bed.run(&[low], FULL_FRAMES, SECOND);
    bed.assert_mbit(low, since_ns, 25.0);
    // Nearly all is borrowed: its own next packet is 12 ms away when the ceiling admits one already.
    bed.tree.set_config(low, config(1, 50), 1514, bed.now_ns).unwrap();
    let since_ns = bed.now_ns;
    bed.run(&[low], FULL_FRAMES, SECOND);
    bed.assert_mbit(low, since_ns, 50.0);
}

#[test]
fn priority_decides_what_is_left_over_but_takes_nobodys_floor() {
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let first = bed.add(Some(root), config(10, 70), Some(0));
    let second = bed.add(Some(root), config(20, 100), Some(1));
    let third = bed.add(Some(root), config(5, 100), Some(2));
    bed.run(&[first, second, third], FULL_FRAMES, SECOND);
    bed.assert_mbit(first, 0, 70.0);
    bed.assert_mbit(second, 0, 25.0);
    bed.assert_mbit(third, 0, 5.0);
}

#[test]
fn a_thousand_changes_under_load_lose_and_reorder_nothing() {
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let steady = bed.add(Some(root), config(30, 100), Some(0));
    let mut spent = crate::drops::Count::default();
    for change in 0..1000u64 {
        let mbit = 10 + change % 40;
        bed.tree.set_config(steady, config(mbit, 60 + change % 40), 3000, bed.now_ns).unwrap();
        let passing = bed.add(Some(root), config(5, 100), Some((change % 8) as u8));
        bed.run(&[steady, passing], &[60, 1514, 700], 1_000_000);
        crate::shaper::tree::tests::check(&bed.tree);
        // No packet may be dropped to remove the class: it drains first, and keeps its order.
        let drained: Vec<_> = std::iter::from_fn(|| {
            loop {
                match bed.tree.leaf(passing)?.held().packets {
                    0 => return None,
                    _ => match bed.tree.dequeue(bed.now_ns) {
                        Dequeue::Packet(_, packet) if packet.class == passing => {
                            return Some(packet);
                        }
                        Dequeue::Packet(..) => {}
                        Dequeue::NotBefore(ready_ns) => bed.now_ns = ready_ns,
                        other => panic!("{other:?}"),
                    },
                }
            }
        })
        .collect();
        assert!(drained.len() <= 4);
        let removed = bed.tree.remove(passing).unwrap().expect("a leaf");
        let books = removed.account();
        assert!(books.balances(crate::drops::Count::default()));
        spent.merge(books.delivered);
        bed.out[passing].clear();
    }
    let leaf = bed.tree.leaf(steady).unwrap();
    assert!(leaf.account().balances(leaf.held()));
    assert_eq!(leaf.account().dropped.total().packets, 0);
    assert!(spent.packets > 1000, "the passing classes did send");
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let error = HtbMeter::new(config(10, 5), 0).unwrap_err();
    assert_eq!(error.to_string(), "the ceiling 5mbit is below the rate 10mbit; raise it to 10mbit or more");
    let error = HtbMeter::new(HtbConfig { cburst_bytes: 2 << 30, ..config(1, 1) }, 0).unwrap_err();
    assert!(error.to_string().contains("2gb is more than a bucket holds"));
    let mut bed = Bed::new();
    let root = bed.add(None, config(100, 100), None);
    let leaf = bed.add(Some(root), config(60, 100), Some(0));
    let unchanged = *bed.tree.meter(leaf).unwrap().config();
    assert!(bed.tree.set_config(leaf, config(10, 5), 1514, 0).is_err());
    assert_eq!(*bed.tree.meter(leaf).unwrap().config(), unchanged);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The header's inequalities, for every class and every window, over random trees, loads and lengths.
    #[test]
    fn every_window_of_every_class_conforms(
        rates in prop::collection::vec((1u64..20, 0u64..60, 0u8..3), 6),
        bursts in prop::collection::vec((0u64..6000, 0u64..6000), 9),
        loads in prop::collection::vec((0u8..64, 1_000_000u64..15_000_000), 1..6),
        lens in prop::collection::vec(60u32..=1514, 20),
    ) {
        let mut bed = Bed::new();
        let with_burst = |config: HtbConfig, class: usize| HtbConfig {
            burst_bytes: bursts[class].0,
            cburst_bytes: bursts[class].1,
            ..config
        };
        // Two inner classes under a root; six leaves. Guarantees sum up to the guarantee of each parent.
        let root = bed.add(None, with_burst(config(rates.iter().map(|r| r.0).sum(), 150), 0), None);
        let inner: Vec<_> = (0..2)
            .map(|half| {
                let guaranteed = rates[3 * half..][..3].iter().map(|r| r.0).sum();
                bed.add(Some(root), with_burst(config(guaranteed, guaranteed + 40), 1 + half), None)
            })
            .collect();
        let leaves: Vec<_> = rates
            .iter()
            .enumerate()
            .map(|(index, &(mbit, more, priority))| {
                bed.add(Some(inner[index / 3]), with_burst(config(mbit, mbit + more), 3 + index), Some(priority))
            })
            .collect();
        for &(mask, time_ns) in &loads {
            let full: Vec<_> = leaves.iter().copied().filter(|leaf| mask >> (leaf - 3) & 1 != 0).collect();
            bed.run(&full, &lens, time_ns);
        }
        let own = |class: usize| bursts[class].1.max(MTU_BYTES);
        let guaranteed = |class: usize| bursts[class].0.max(MTU_BYTES);
        for class in 0..9 {
            let config = *bed.tree.meter(class).unwrap().config();
            let below: u64 = match class {
                0 => (1..9).map(guaranteed).sum(),
                1 => (3..6).map(guaranteed).sum(),
                2 => (6..9).map(guaranteed).sum(),
                _ => 0,
            };
            assert_conforms(&bed.out[class], config.ceil, own(class) + below);
        }
    }

    /// A busy leaf gets its guarantee, whatever other leaves and lengths there are.
    #[test]
    fn every_busy_leaf_gets_its_floor(
        rates in prop::collection::vec((1u64..20, 0u8..3), 5),
        lens in prop::collection::vec(60u32..=1514, 20),
    ) {
        let mut bed = Bed::new();
        let sum: u64 = rates.iter().map(|r| r.0).sum();
        let root = bed.add(None, config(sum, sum), None);
        let leaves: Vec<_> =
            rates.iter().map(|&(mbit, priority)| bed.add(Some(root), config(mbit, sum), Some(priority))).collect();
        bed.run(&leaves, &lens, SECOND / 2);
        for (&leaf, &(mbit, _)) in leaves.iter().zip(&rates) {
            let got: u64 = bed.out[leaf].iter().map(|&(_, len_bytes)| u64::from(len_bytes)).sum();
            let floor = rate(mbit).bytes_in(SECOND / 2);
            prop_assert!(got + 2 * MTU_BYTES >= floor, "{got} of {floor} bytes");
        }
    }
}
