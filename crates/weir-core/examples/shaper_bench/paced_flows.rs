//! What FQ is timed beside, and what all of them do: packets into flows of their own pace, and out again.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;
use std::iter;
use std::num::NonZeroU32;

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_core::packet::{Meta, Packet};
use weir_core::rate::Rate;
use weir_core::shaper::delay::DelayHistogram;
use weir_core::shaper::fq::{AfterBurst, Fq, FqConfig};
use weir_simd::prefetch::prefetch;

pub const BURST: usize = 64;
pub const LEN_BYTES: u32 = 1000;
const SLACK_NS: u64 = 10_000;

/// As large as the handle of a wire's or a path's packet: the number of a frame, which is never 0, where in it the packet
/// is, and its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    #[expect(dead_code, reason = "only moved along")]
    frame: NonZeroU32,
    #[expect(dead_code, reason = "only moved along")]
    place: [u32; 3],
    meta: Meta,
}

const _: () = assert!(size_of::<Handle>() == 32, "as those are");

impl Packet for Handle {
    fn len_bytes(&self) -> u32 {
        LEN_BYTES
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

fn packet(now_ns: u64) -> Handle {
    Handle {
        frame: NonZeroU32::MIN,
        place: [0, LEN_BYTES, 0],
        meta: Meta { arrival_ns: now_ns, ..Meta::default() },
    }
}

/// What both sides of the FQ benchmark do: flows of four paces that sum up to 40 Gbit/s, a burst in and a burst out, each
/// flow sending its next packet some time after the last one left, so that half of them are idle at any time. Books are
/// made up once for each burst.
pub trait PacedFlows {
    /// A packet into each of these flows.
    fn enqueue(&mut self, flows: &[usize], now_ns: u64);
    /// Packets that may leave, until `flows` is a burst; when it must be asked again for more.
    fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64;
}

fn pace(flow: usize, flows: usize) -> Rate {
    let weight = 1 + flow as u64 % 4;
    Rate::from_bits_per_s(16_000_000_000 * weight / flows as u64).expect("not 0")
}

/// In the place of a queue, for what the benchmark itself costs: packets leave as they came in.
pub struct Through(Vec<(usize, Handle)>);

impl Through {
    pub fn new(flows: usize) -> Through {
        Through(Vec::with_capacity(flows + BURST))
    }
}

impl PacedFlows for Through {
    #[inline]
    fn enqueue(&mut self, flows: &[usize], now_ns: u64) {
        self.0.extend(flows.iter().map(|&flow| (flow, packet(now_ns))));
    }
    #[inline]
    fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64 {
        let last = self.0.len() - (BURST - flows.len()).min(self.0.len());
        for (flow, packet) in self.0.drain(last..) {
            black_box(&packet);
            flows.push(flow);
        }
        now_ns + 1
    }
}

/// The same, and what no queue with a line for each flow can do without: the packet is written to that line and read from it,
/// half of all flows later.
pub struct Lines {
    lines: Vec<Line>,
    waiting: VecDeque<usize>,
}

#[repr(align(64))]
struct Line(Option<Handle>);

/// How many lines are asked for before one is needed.
const LINES_AHEAD: usize = 24;

impl Lines {
    pub fn new(flows: usize) -> Lines {
        let lines = (0..flows).map(|_| Line(None)).collect();
        Lines { lines, waiting: VecDeque::with_capacity(flows + BURST) }
    }
}

impl PacedFlows for Lines {
    #[inline]
    fn enqueue(&mut self, flows: &[usize], now_ns: u64) {
        flows.iter().take(LINES_AHEAD).for_each(|&flow| prefetch(&self.lines[flow]));
        let later = flows.iter().skip(LINES_AHEAD).map(Some).chain(iter::repeat(None));
        for (&flow, later) in flows.iter().zip(later) {
            if let Some(&later) = later {
                prefetch(&self.lines[later]);
            }
            self.lines[flow].0 = Some(packet(now_ns));
            self.waiting.push_back(flow);
        }
    }
    #[inline]
    fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64 {
        while flows.len() < BURST
            && let Some(flow) = self.waiting.pop_front()
        {
            if let Some(&later) = self.waiting.get(LINES_AHEAD) {
                prefetch(&self.lines[later]);
            }
            black_box(&self.lines[flow].0.take());
            flows.push(flow);
        }
        now_ns + 1
    }
}

pub struct Weir(Fq<Handle>);

impl Weir {
    pub fn new(flows: usize) -> Weir {
        let config = FqConfig {
            flows,
            packets_max: flows + BURST,
            quantum_bytes: 1514,
            pace: None,
            slack_ns: SLACK_NS,
            limit_bytes: u64::MAX,
        };
        let mut fq = Fq::new(config, 0);
        for flow in 0..flows {
            fq.set_pace(flow, Some(pace(flow, flows)));
        }
        Weir(fq)
    }
}

impl PacedFlows for Weir {
    #[inline]
    fn enqueue(&mut self, flows: &[usize], now_ns: u64) {
        self.0.enqueue_burst(flows, &mut iter::repeat_with(|| packet(now_ns))).expect("a slot");
    }
    #[inline]
    fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64 {
        let rest = self.0.dequeue_burst(now_ns, BURST - flows.len(), |flow, packet| {
            black_box(&packet);
            flows.push(flow);
        });
        match rest {
            AfterBurst::Due => now_ns,
            AfterBurst::NotBefore(ready_ns) => ready_ns,
            AfterBurst::Empty => now_ns + 1,
        }
    }
}

/// The same job with what the standard library has: a queue of packets for each flow, flows with packets in a heap by the
/// time at which the next may leave, and the same books.
pub struct Heap {
    flows: Vec<HeapFlow>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    held: Count,
    account: Account,
    delay: DelayHistogram,
}

struct HeapFlow {
    packets: VecDeque<Handle>,
    departure_ns: u64,
    bits_per_s: u64,
}

impl Heap {
    pub fn new(flows: usize) -> Heap {
        Heap {
            flows: (0..flows)
                .map(|flow| HeapFlow {
                    packets: VecDeque::new(),
                    departure_ns: 0,
                    bits_per_s: pace(flow, flows).bits_per_s(),
                })
                .collect(),
            heap: BinaryHeap::with_capacity(flows + BURST),
            held: Count::default(),
            account: Account::default(),
            delay: DelayHistogram::default(),
        }
    }
}

impl PacedFlows for Heap {
    #[inline]
    fn enqueue(&mut self, flows: &[usize], now_ns: u64) {
        let mut entered = Count::default();
        for &flow in flows {
            let queue = &mut self.flows[flow];
            if queue.packets.is_empty() {
                self.heap.push(Reverse((queue.departure_ns.max(now_ns), flow as u32)));
            }
            let packet = packet(now_ns);
            entered.add(packet.len_bytes());
            queue.packets.push_back(packet);
        }
        self.held.merge(entered);
        self.account.accepted.merge(entered);
    }
    #[inline]
    fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64 {
        let (mut left, mut next_ns) = (Count::default(), now_ns);
        while flows.len() < BURST {
            let Some(mut first) = self.heap.peek_mut() else {
                next_ns = now_ns + 1;
                break;
            };
            let Reverse((ready_ns, flow)) = *first;
            if ready_ns > now_ns {
                next_ns = ready_ns;
                break;
            }
            let queue = &mut self.flows[flow as usize];
            let packet = queue.packets.pop_front().expect("a flow in the heap has packets");
            let len_bytes = packet.len_bytes();
            let cost_ns = u64::from(len_bytes) * 8_000_000_000 / queue.bits_per_s;
            queue.departure_ns = queue.departure_ns.max(now_ns.saturating_sub(SLACK_NS)) + cost_ns;
            if queue.packets.is_empty() {
                PeekMut::pop(first);
            } else {
                *first = Reverse((queue.departure_ns, flow));
            }
            left.add(len_bytes);
            self.delay.record(now_ns.saturating_sub(packet.meta().arrival_ns));
            black_box(&packet);
            flows.push(flow as usize);
        }
        self.held.packets -= left.packets;
        self.held.bytes -= left.bytes;
        self.account.delivered.merge(left);
        next_ns
    }
}
