//! A held port, modelled: the kernel goes on forwarding packets that wait in its queues, and only the time of each poll is decided here, by
//! the tree that also serves packets which are inside.
//!
//! ```text
//! inside: packet -> its leaf -> the turn comes -> it leaves, its length is charged
//! held:   queue with packets -> a turn without bytes in its leaf -> the turn comes -> poll, up to a budget -> the polled bytes are charged
//! ```
//!
//! Rule: the tree charges after, so it goes into debt by one poll: bytes out over any window <= burst + rate x time + one poll of one
//! queue. A queue keeps its order, and leaves share alike whether they hold packets or turns. Limits: queues of one leaf take turns by
//! polls, not by bytes.

use std::collections::VecDeque;

use weir_core::packet::{Meta, Packet};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::{Dequeue, QueueRule};
use weir_core::shaper::htb::{Htb, HtbConfig, HtbMeter};
use weir_core::shaper::tree::{LeafConfig, TreeSize};
use weir_path::classes::quantum_bytes_default;

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;
const FRAME_BYTES: u32 = 1514;
const BURST_BYTES: u64 = 20_000;
const POLL_PACKETS: usize = 16;
const POLL_BYTES: u64 = POLL_PACKETS as u64 * FRAME_BYTES as u64;
const QUEUES: usize = 3;

/// A packet that is inside; or, with no bytes, the turn of a queue with an unknown number of packets.
#[derive(Debug)]
struct Waiting {
    meta: Meta,
    len_bytes: u32,
    number: u64,
}

impl Packet for Waiting {
    fn len_bytes(&self) -> u32 {
        self.len_bytes
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// A sender's queue, in the kernel or inside: lengths and numbers of the packets that wait in the kernel, and whether it has asked for a
/// turn.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u32, u64)>,
    has_turn: bool,
    sent: u64,
    left: u64,
}

impl Queue {
    /// The next packet of a sender.
    fn send(&mut self, lens: &[u32]) -> (u32, u64) {
        let packet = (lens[self.sent as usize % lens.len()], self.sent);
        self.sent += 1;
        packet
    }

    /// Notes that a packet leaves, in order; returns its length.
    fn leave(&mut self, len_bytes: u32, number: u64) -> u32 {
        assert_eq!(number, self.left, "in order");
        self.left += 1;
        len_bytes
    }

    /// Polls the queue; returns the bytes that leave.
    fn poll(&mut self) -> u32 {
        self.has_turn = false;
        let packets = self.waiting.len().min(POLL_PACKETS);
        let went: Vec<_> = self.waiting.drain(..packets).collect();
        went.into_iter().map(|(len_bytes, number)| self.leave(len_bytes, number)).sum()
    }
}

/// The way of packets to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Held,
    Inside,
}

/// Leaves of `a`, 60 Mbit/s, and `b`, 40, which share 100, each with queues.
struct Port {
    tree: Htb<Waiting>,
    leaves: [usize; 2],
    ways: [Way; 2],
    queues: [[Queue; QUEUES]; 2],
    /// The packets out of each leaf, as times and bytes.
    out: [Vec<(u64, u64)>; 2],
    now_ns: u64,
}

fn config(rate_mbit: u64, ceil_mbit: u64) -> HtbConfig {
    let rate = |mbit| Rate::from_bits_per_s(mbit * MBIT).unwrap();
    HtbConfig {
        rate: rate(rate_mbit),
        ceil: rate(ceil_mbit),
        burst_bytes: BURST_BYTES,
        cburst_bytes: BURST_BYTES,
        mtu_bytes: u64::from(FRAME_BYTES),
    }
}

impl Port {
    fn new(ceil_mbit: u64, ways: [Way; 2]) -> Port {
        let size = TreeSize { classes_max: 3, packets_max: 4096, poll_budget_bytes: POLL_BYTES };
        let mut tree = Htb::new(size, 0);
        let mut add = |parent, config: HtbConfig, leaf| {
            let meter = HtbMeter::new(config, 0).unwrap();
            tree.add(parent, meter, quantum_bytes_default(config.rate), leaf, 0).unwrap()
        };
        let leaf = LeafConfig {
            priority: 0,
            flows: QUEUES,
            flow_quantum_bytes: FRAME_BYTES,
            limit_bytes: 3 * POLL_BYTES,
            rule: QueueRule::default(),
        };
        let root = add(None, config(100, 100), None);
        let leaves = [60, 40].map(|mbit| add(Some(root), config(mbit, ceil_mbit), Some(leaf)));
        // As for packets, two leaves that have not sent for a while may otherwise spend a burst each.
        tree.set_link(Some((config(100, 100).rate, BURST_BYTES)), u64::from(FRAME_BYTES), 0);
        Port { tree, leaves, ways, queues: Default::default(), out: Default::default(), now_ns: 0 }
    }

    /// Has held senders send as soon as there is room.
    fn fill(&mut self, leaf: usize, lens: &[u32]) {
        for (flow, queue) in self.queues[leaf].iter_mut().enumerate() {
            let mut enqueue = |len_bytes, number| {
                let meta = Meta { port: leaf as u16, ..Meta::default() };
                self.tree.enqueue(self.leaves[leaf], flow, Waiting { meta, len_bytes, number }).unwrap();
            };
            match self.ways[leaf] {
                Way::Held => {
                    while queue.waiting.len() < 50 {
                        let packet = queue.send(lens);
                        queue.waiting.push_back(packet);
                    }
                    if !std::mem::replace(&mut queue.has_turn, true) {
                        enqueue(0, 0);
                    }
                }
                Way::Inside => {
                    while queue.sent < queue.left + POLL_PACKETS as u64 {
                        let (len_bytes, number) = queue.send(lens);
                        enqueue(len_bytes, number);
                    }
                }
            }
        }
    }

    /// Keeps the queues of these leaves full for `time_ns`, with packets of these lengths.
    fn run(&mut self, full: &[usize], lens: &[u32], time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        while self.now_ns < end_ns {
            full.iter().for_each(|&leaf| self.fill(leaf, lens));
            let (queues, out, ways, now_ns) = (&mut self.queues, &mut self.out, self.ways, self.now_ns);
            let next = self.tree.dequeue_after(now_ns, |flow, packet| {
                let leaf = usize::from(packet.meta.port);
                let queue = &mut queues[leaf][flow];
                let bytes = match ways[leaf] {
                    Way::Held => queue.poll(),
                    Way::Inside => queue.leave(packet.len_bytes, packet.number),
                };
                out[leaf].push((now_ns, u64::from(bytes)));
                bytes
            });
            match next {
                Dequeue::Packet(..) => {}
                Dequeue::NotBefore(at_ns) => self.now_ns = at_ns,
                other => panic!("full queues, and {other:?}"),
            }
        }
    }

    fn mbit(&self, leaf: usize) -> f64 {
        let bytes: u64 = self.out[leaf].iter().map(|(_, bytes)| bytes).sum();
        bytes as f64 * 8_000.0 / self.now_ns as f64
    }
}

/// Requires that the bytes out in any window are at most the rate's, a burst, and one poll; in parts of a byte, 8 x 10^9 of one.
fn require_bound(out: &[(u64, u64)], mbit: u64) {
    let parts = |bytes: u64| i128::from(bytes) * 8_000_000_000;
    let earned = |at_ns: u64| i128::from(mbit * MBIT) * i128::from(at_ns);
    let poll_bytes = out.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    // The window that began best, and the one that exceeded its rate most.
    let (mut gone, mut least, mut most) = (0, i128::MAX, 0);
    for &(at_ns, bytes) in out {
        least = least.min(gone - earned(at_ns));
        gone += parts(bytes);
        most = most.max(gone - earned(at_ns) - least);
    }
    assert!(most <= parts(BURST_BYTES + poll_bytes), "{} bytes more than the rate gives", most / parts(1));
    // A poll below the longest packet is within what a burst keeps free for that.
    let is_shown = most > parts(BURST_BYTES) || poll_bytes < u64::from(FRAME_BYTES);
    assert!(is_shown, "no poll went into debt, so nothing was shown");
}

#[test]
fn a_tree_that_charges_after_goes_into_debt_by_one_poll() {
    for lens in [&[FRAME_BYTES][..], &[60], &[1514, 60, 700]] {
        let mut port = Port::new(60, [Way::Held; 2]);
        port.run(&[0], lens, 500 * MS);
        require_bound(&port.out[0], 60);
        for ways in [[Way::Held, Way::Held], [Way::Held, Way::Inside], [Way::Inside, Way::Held]] {
            let mut port = Port::new(100, ways);
            port.run(&[0, 1], lens, 500 * MS);
            let mut all = port.out.concat();
            all.sort_by_key(|(at_ns, _)| *at_ns);
            require_bound(&all, 100);
        }
    }
}

#[test]
fn leaves_share_alike_whether_packets_are_inside_or_held() {
    use Way::{Held, Inside};
    for ways in [[Inside, Inside], [Held, Held], [Held, Inside], [Inside, Held]] {
        let mut port = Port::new(100, ways);
        port.run(&[0, 1], &[1514, 60, 700], 2_000 * MS);
        let [a, b] = [port.mbit(0), port.mbit(1)];
        assert!((59.0..61.0).contains(&a) && (39.0..41.0).contains(&b), "{ways:?}: {a:.1} and {b:.1} Mbit/s");
        for queues in &port.queues {
            let left: Vec<_> = queues.iter().map(|queue| queue.left).collect();
            let (least, most) = (left.iter().min().unwrap(), left.iter().max().unwrap());
            assert!(most - least <= 2 * POLL_PACKETS as u64, "queues of a leaf take turns: {left:?}");
        }
    }
}

#[test]
fn what_a_leaf_leaves_the_other_has_whichever_is_held() {
    for ways in [[Way::Held, Way::Inside], [Way::Inside, Way::Held]] {
        for alone in [0, 1] {
            let mut port = Port::new(100, ways);
            port.run(&[alone], &[1514], 1_000 * MS);
            let mbit = port.mbit(alone);
            assert!((99.0..101.0).contains(&mbit), "{ways:?}, {alone} alone: {mbit:.1} Mbit/s");
        }
    }
}
