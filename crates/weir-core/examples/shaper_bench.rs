//! The shapers' cost in cycles of the time-stamp counter, beside a binary heap doing the same job.
//!
//! `cargo run --release -p weir-core --example shaper_bench`. The two sides take turns (ABBA) for [`REPEATS`] repeats,
//! and must have kept the same rate before a figure counts. A repeat's figure is the median of many stretches of
//! some tens of microseconds, so that being interrupted does not show; shown are the median and the quartiles of
//! the repeats. Caches shared with busy neighbours do show, most with the largest numbers of flows.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("skipped: cycles are read from the x86-64 time-stamp counter");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    bench::run();
}

#[cfg(target_arch = "x86_64")]
#[path = "../../../benches/cycles.rs"]
mod cycles;

#[cfg(target_arch = "x86_64")]
mod bench {
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
    use weir_core::shaper::buckets::{Buckets, NONE};
    use weir_core::shaper::delay::DelayHistogram;
    use weir_core::shaper::fq::{Fq, FqConfig, Rest};

    use super::cycles::{now_cycles, tsc_hz};

    const REPEATS: usize = 5;
    const BURST: usize = 64;
    const PACKETS: usize = 1 << 20;
    /// Packets of one stretch that is timed: some tens of microseconds.
    const CHUNK: usize = 1024;
    /// Flows that are taken out at a time, fewer than there are.
    const TAKEN: usize = 256;
    const LEN_BYTES: u32 = 1000;
    const SLACK_NS: u64 = 10_000;

    pub fn run() {
        println!("{}", calibration());
        println!("cycles, median [quartiles] of {REPEATS}");
        for flows in [1_000, 100_000, 1_000_000] {
            fq(flows);
        }
        if std::env::var_os("FQ_ONLY").is_some() {
            return;
        }
        for flows in [1_000, 100_000, 1_000_000] {
            order(flows);
        }
    }

    /// As large as the handle of a wire's or a path's packet: the number of a frame, which is never 0, where in it the packet
    /// is, and its metadata.
    #[derive(Clone, Copy, Debug)]
    struct Handle {
        #[expect(dead_code, reason = "only moved along")]
        frame: NonZeroU32,
        #[expect(dead_code, reason = "only moved along")]
        place: [u32; 3],
        meta: Meta,
    }

    const _: () = assert!(size_of::<Handle>() == 40, "as those are");

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
    trait PacedFlows {
        /// A packet into each of these flows.
        fn enqueue(&mut self, flows: &[usize], now_ns: u64);
        /// Packets that may leave, until `flows` is a burst; when it must be asked again for more.
        fn dequeue(&mut self, now_ns: u64, flows: &mut Vec<usize>) -> u64;
    }

    /// In no order that memory could guess.
    fn shuffled(flows: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..flows).collect();
        let mut random = 1;
        for index in (1..flows).rev() {
            order.swap(index, next_random(&mut random) as usize % (index + 1));
        }
        order
    }

    fn next_random(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 33
    }

    fn pace(flow: usize, flows: usize) -> Rate {
        let weight = 1 + flow as u64 % 4;
        Rate::from_bits_per_s(16_000_000_000 * weight / flows as u64).expect("not 0")
    }

    /// Cycles for each packet enqueued and dequeued, and the virtual time they took.
    fn paced(system: &mut impl PacedFlows, flows: usize) -> (f64, u64) {
        let mut order = shuffled(flows);
        let (mut now_ns, mut sent) = (0, 0);
        let mut burst = Vec::with_capacity(BURST);
        // Each flow begins at a time of its own, or those of one pace would come due all at once for ever.
        for flow in &order {
            system.enqueue(&[*flow], now_ns);
            system.dequeue(now_ns, &mut burst);
            assert_eq!(burst.pop(), Some(*flow), "its first packet leaves at once");
            now_ns += u64::from(LEN_BYTES) * 8 / 40;
        }
        // Half of the flows are idle, in bursts: the one that is idle for longest goes in, and what leaves is idle instead.
        let idle = order.split_off(flows - flows / 2 / BURST * BURST);
        order.chunks(BURST).for_each(|burst| system.enqueue(burst, now_ns));
        let mut idle: Vec<Vec<usize>> = idle.chunks(BURST).map(<[usize]>::to_vec).collect();
        let mut longest = 0;
        // Two turns of all flows settle the departure times.
        let warm = 2 * flows.max(10_000);
        let mut chunks = Vec::with_capacity(PACKETS / CHUNK + 1);
        while sent < warm + PACKETS {
            let start = now_cycles();
            for _ in 0..CHUNK / BURST {
                let burst = &mut idle[longest];
                system.enqueue(burst, now_ns);
                burst.clear();
                while burst.len() < BURST {
                    now_ns = system.dequeue(now_ns, burst);
                }
                longest = if longest + 1 == idle.len() { 0 } else { longest + 1 };
            }
            if sent >= warm {
                chunks.push((now_cycles() - start) as f64 / CHUNK as f64);
            }
            sent += CHUNK;
        }
        (median(&mut chunks), now_ns)
    }

    /// Of many short stretches, so that being interrupted in some of them does not show.
    fn median(chunks: &mut [f64]) -> f64 {
        chunks.sort_by(f64::total_cmp);
        chunks[chunks.len() / 2]
    }

    fn fq(flows: usize) {
        let (mut ours, mut theirs, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for repeat in 0..REPEATS {
            let weir = || paced(&mut Weir::new(flows), flows);
            let heap = || paced(&mut Heap::new(flows), flows);
            let (weir, heap) = if repeat % 2 == 0 {
                let weir = weir();
                (weir, heap())
            } else {
                let heap = heap();
                (weir(), heap)
            };
            assert!(
                weir.1.abs_diff(heap.1) < heap.1 / 20,
                "about the same rate: {} and {} ns",
                weir.1,
                heap.1
            );
            ours.push(weir.0);
            theirs.push(heap.0);
            own.push(paced(&mut Through(Vec::with_capacity(flows + BURST)), flows).0);
        }
        let name = format!("FQ enqueue + dequeue, {flows} flows");
        versus(&name, ours, theirs);
        print(&name, "bench alone", own);
    }

    /// In the place of a queue, for what the benchmark itself costs: packets leave as they came in.
    struct Through(Vec<(usize, Handle)>);

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

    struct Weir(Fq<Handle>);

    impl Weir {
        fn new(flows: usize) -> Weir {
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
                Rest::Due => now_ns,
                Rest::NotBefore(ready_ns) => ready_ns,
                Rest::Empty => now_ns + 1,
            }
        }
    }

    /// The same job with what the standard library has: a queue of packets for each flow, flows with packets in a heap by the
    /// time at which the next may leave, and the same books.
    struct Heap {
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
        fn new(flows: usize) -> Heap {
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

    /// The order alone, what FQ has a bucket queue for: take the flows with the earliest times out, [`TAKEN`] at a time, and put
    /// them back later. Both ways are timed, and shown apart and together.
    fn order(flows: usize) {
        const ROUNDS: usize = 1 << 12;
        // By how much later each is put back, drawn beforehand: to draw would cost as much as what is measured.
        let mut random = 1;
        let drawn: Vec<u64> = (0..4096).map(|_| next_random(&mut random) % 100_000_000).collect();
        let bucket_queue = || {
            let mut buckets = Buckets::new(10, 0);
            let mut next = vec![NONE; flows];
            for (item, next) in next.iter_mut().enumerate() {
                *next = buckets.push(drawn[item % 4096], item as u32);
            }
            let (mut now_ns, mut out) = (0, Vec::with_capacity(TAKEN));
            let mut round = || {
                let start = now_cycles();
                while out.len() < TAKEN {
                    now_ns = buckets.next_ns().unwrap_or(now_ns);
                    let mut item = buckets.take_due(now_ns).unwrap_or(NONE);
                    while item != NONE && out.len() < TAKEN {
                        out.push((now_ns, item));
                        item = next[item as usize];
                    }
                    // What is left of a bucket goes back before the next is taken.
                    while item != NONE {
                        let following = next[item as usize];
                        next[item as usize] = buckets.push(now_ns, item);
                        item = following;
                    }
                }
                let taken = now_cycles();
                for ((at_ns, item), ahead_ns) in out.drain(..).zip(drawn.iter().cycle()) {
                    next[item as usize] = buckets.push(at_ns + ahead_ns, item);
                }
                [taken - start, now_cycles() - taken]
            };
            medians((0..ROUNDS).map(|_| round()))
        };
        let heap = || {
            let items = (0..flows).map(|item| Reverse((drawn[item % 4096], item as u32)));
            let mut heap: BinaryHeap<Reverse<(u64, u32)>> = items.collect();
            let mut out = Vec::with_capacity(TAKEN);
            let mut round = || {
                let start = now_cycles();
                while out.len() < TAKEN {
                    let Some(Reverse(first)) = heap.pop() else { break };
                    out.push(first);
                }
                let taken = now_cycles();
                for ((at_ns, item), ahead_ns) in out.drain(..).zip(drawn.iter().cycle()) {
                    heap.push(Reverse((at_ns + ahead_ns, item)));
                }
                [taken - start, now_cycles() - taken]
            };
            medians((0..ROUNDS).map(|_| round()))
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for repeat in 0..REPEATS {
            if repeat % 2 == 0 {
                ours.push(bucket_queue());
                theirs.push(heap());
            } else {
                theirs.push(heap());
                ours.push(bucket_queue());
            }
        }
        for (part, what) in ["earliest out", "back in later", "out and in"].into_iter().enumerate() {
            let part = |all: &[[f64; 3]]| all.iter().map(|parts| parts[part]).collect();
            versus(&format!("{what}, {flows} flows"), part(&ours), part(&theirs));
        }
    }

    /// Of each part the median for one item, and their sum.
    fn medians(rounds: impl Iterator<Item = [u64; 2]>) -> [f64; 3] {
        let rounds: Vec<[u64; 2]> = rounds.collect();
        let [out, back] = [0, 1].map(|part| {
            let mut cycles: Vec<f64> = rounds.iter().map(|round| round[part] as f64 / TAKEN as f64).collect();
            median(&mut cycles)
        });
        [out, back, out + back]
    }

    /// Prints both, and how many times the heap's cycles are ours.
    fn versus(name: &str, ours: Vec<f64>, theirs: Vec<f64>) {
        let ours = print(name, "weir", ours);
        let theirs = print(name, "BinaryHeap", theirs);
        println!("{:52} {:14} {:8.1} times", "", "", theirs / ours);
    }

    fn print(name: &str, system: &str, mut cycles: Vec<f64>) -> f64 {
        cycles.sort_by(f64::total_cmp);
        let at = |quarter: usize| cycles[quarter * (cycles.len() - 1) / 4];
        println!("{name:52} {system:14} {:8.1} [{:.1} {:.1}]", at(2), at(1), at(3));
        at(2)
    }

    /// What the figures are to be read against: the counter's pace, and what a load costs that no cache holds.
    fn calibration() -> String {
        const LINES: usize = 1 << 20;
        let order = shuffled(LINES);
        // A ring through all lines in that order, 16 words a line.
        let mut ring = vec![0u32; LINES * 16];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            ring[from * 16] = *to as u32;
        }
        let (start, mut at) = (now_cycles(), 0u32);
        for _ in 0..LINES / 16 {
            at = ring[at as usize * 16];
        }
        black_box(at);
        let load = (now_cycles() - start) as f64 / (LINES / 16) as f64;
        format!("calibration: {:.0} MHz, {load:.0} cycles for a load from 64 MiB", tsc_hz() / 1e6)
    }
}
