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
mod bench {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    use std::cmp::Reverse;
    use std::collections::{BinaryHeap, VecDeque};
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    use weir_core::packet::{Meta, Packet};
    use weir_core::rate::Rate;
    use weir_core::shaper::backlog::{Dequeue, Rule};
    use weir_core::shaper::buckets::{Buckets, NONE};
    use weir_core::shaper::fq::{Fq, FqConfig};
    use weir_core::shaper::htb::{Htb, HtbConfig, HtbMeter};
    use weir_core::shaper::slab::{Fifo, Slab};
    use weir_core::shaper::tree::{LeafConfig, TreeSize};

    const REPEATS: usize = 9;
    const BURST: usize = 64;
    const PACKETS: usize = 1 << 20;
    /// Packets of one stretch that is timed: some tens of microseconds.
    const CHUNK: usize = 1024;
    const LEN_BYTES: u32 = 1000;
    const SLACK_NS: u64 = 10_000;

    pub fn run() {
        println!("cycles, median [quartiles] of {REPEATS}");
        for flows in [1_000, 100_000, 1_000_000] {
            fq(flows);
        }
        for flows in [1_000, 100_000, 1_000_000] {
            order(flows);
        }
        for (leaf_mbit, name) in [(10, "guarantees"), (2, "mostly borrowed")] {
            tree(leaf_mbit, name);
        }
    }

    /// As large as a frame's handle with its metadata.
    #[derive(Clone, Copy, Debug)]
    struct Handle {
        meta: Meta,
    }

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

    fn packet() -> Handle {
        Handle { meta: Meta::default() }
    }

    /// What both sides of the FQ benchmark do: flows of four paces that sum up to 40 Gbit/s, in bursts, each
    /// flow sending its next packet some time after the last one left, so that half of them are idle at any
    /// time.
    trait PacedFlows {
        fn enqueue(&mut self, flow: usize, now_ns: u64);
        fn dequeue(&mut self, now_ns: u64) -> Result<usize, u64>;
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
        let mut thinking = VecDeque::from(shuffled(flows));
        let think = flows / 2;
        let (mut now_ns, mut sent) = (0, 0);
        // Two turns of all flows settle the departure times.
        let warm = 2 * flows.max(10_000);
        let mut chunks = Vec::with_capacity(PACKETS / CHUNK + 1);
        while sent < warm + PACKETS {
            let (start, before) = (cycle(), sent);
            while sent < before + CHUNK {
                let enqueue = thinking.len().saturating_sub(think).min(BURST);
                for flow in thinking.drain(..enqueue) {
                    system.enqueue(flow, now_ns);
                }
                for _ in 0..BURST {
                    match system.dequeue(now_ns) {
                        Ok(flow) => {
                            sent += 1;
                            thinking.push_back(flow);
                        }
                        Err(ready_ns) => now_ns = ready_ns,
                    }
                }
            }
            if before >= warm {
                chunks.push((cycle() - start) as f64 / (sent - before) as f64);
            }
        }
        (median(&mut chunks), now_ns)
    }

    /// Of many short stretches, so that being interrupted in some of them does not show.
    fn median(chunks: &mut [f64]) -> f64 {
        chunks.sort_by(f64::total_cmp);
        chunks[chunks.len() / 2]
    }

    fn fq(flows: usize) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
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
        }
        let name = format!("FQ enqueue + dequeue, {flows} flows");
        print(&name, "weir", ours);
        print(&name, "BinaryHeap", theirs);
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
        fn enqueue(&mut self, flow: usize, _now_ns: u64) {
            self.0.enqueue(flow, packet()).expect("a slot");
        }
        #[inline]
        fn dequeue(&mut self, now_ns: u64) -> Result<usize, u64> {
            match self.0.dequeue(now_ns) {
                Dequeue::Packet(flow, packet) => {
                    black_box(packet);
                    Ok(flow)
                }
                Dequeue::NotBefore(ready_ns) => Err(ready_ns),
                _ => Err(now_ns + 1),
            }
        }
    }

    /// The same job with the standard heap: packets wait in the same slab, flows whose time has not come in
    /// the heap.
    struct Heap {
        slab: Slab<Handle>,
        flows: Vec<HeapFlow>,
        heap: BinaryHeap<Reverse<(u64, u32)>>,
    }

    struct HeapFlow {
        fifo: Fifo,
        departure_ns: u64,
        bits_per_s: u64,
    }

    impl Heap {
        fn new(flows: usize) -> Heap {
            Heap {
                slab: Slab::new(flows + BURST),
                flows: (0..flows)
                    .map(|flow| HeapFlow {
                        fifo: Fifo::default(),
                        departure_ns: 0,
                        bits_per_s: pace(flow, flows).bits_per_s(),
                    })
                    .collect(),
                heap: BinaryHeap::with_capacity(flows + BURST),
            }
        }
    }

    impl PacedFlows for Heap {
        #[inline]
        fn enqueue(&mut self, flow: usize, now_ns: u64) {
            let queue = &mut self.flows[flow];
            if queue.fifo.is_empty() {
                self.heap.push(Reverse((queue.departure_ns.max(now_ns), flow as u32)));
            }
            self.slab.push(&mut queue.fifo, packet()).expect("a slot");
        }
        #[inline]
        fn dequeue(&mut self, now_ns: u64) -> Result<usize, u64> {
            match self.heap.peek() {
                None => Err(now_ns + 1),
                Some(Reverse((ready_ns, _))) if *ready_ns > now_ns => Err(*ready_ns),
                Some(Reverse((_, flow))) => {
                    let flow = *flow as usize;
                    self.heap.pop();
                    let queue = &mut self.flows[flow];
                    black_box(self.slab.pop(&mut queue.fifo));
                    let cost_ns = u64::from(LEN_BYTES) * 8_000_000_000 / queue.bits_per_s;
                    queue.departure_ns = queue.departure_ns.max(now_ns.saturating_sub(SLACK_NS)) + cost_ns;
                    if !queue.fifo.is_empty() {
                        self.heap.push(Reverse((queue.departure_ns, flow as u32)));
                    }
                    Ok(flow)
                }
            }
        }
    }

    /// The order alone, what FQ has a bucket queue for: take the flow with the earliest time out and put it
    /// back later.
    fn order(flows: usize) {
        const ROUNDS: usize = 1 << 20;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let ahead = |random: &mut u64| next_random(random) % 100_000_000;
        let mut bucket_queue = || {
            let (mut random, mut now_ns) = (1, 0);
            let mut buckets = Buckets::new(10, 0);
            let mut next = vec![NONE; flows];
            for (item, next) in next.iter_mut().enumerate() {
                *next = buckets.push(ahead(&mut random), item as u32);
            }
            let mut chunks = Vec::new();
            for _ in 0..ROUNDS / CHUNK {
                let (mut rounds, start) = (0, cycle());
                while rounds < CHUNK {
                    now_ns = black_box(buckets.next_ns().unwrap_or(now_ns));
                    let mut item = buckets.take_due(now_ns).unwrap_or(NONE);
                    while item != NONE {
                        let following = next[item as usize];
                        next[item as usize] = buckets.push(now_ns + ahead(&mut random), item);
                        item = following;
                        rounds += 1;
                    }
                }
                chunks.push((cycle() - start) as f64 / rounds as f64);
            }
            ours.push(median(&mut chunks));
        };
        let mut heap = || {
            let mut random = 1;
            let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
                (0..flows as u32).map(|item| Reverse((ahead(&mut random), item))).collect();
            let mut chunks = Vec::new();
            for _ in 0..ROUNDS / CHUNK {
                let start = cycle();
                for _ in 0..CHUNK {
                    if let Some(Reverse((now_ns, item))) = black_box(heap.pop()) {
                        heap.push(Reverse((now_ns + ahead(&mut random), item)));
                    }
                }
                chunks.push((cycle() - start) as f64 / CHUNK as f64);
            }
            theirs.push(median(&mut chunks));
        };
        for repeat in 0..REPEATS {
            if repeat % 2 == 0 {
                bucket_queue();
                heap();
            } else {
                heap();
                bucket_queue();
            }
        }
        let name = format!("earliest out, back in later, {flows} flows");
        print(&name, "weir", ours);
        print(&name, "BinaryHeap", theirs);
    }

    /// A root, ten classes of a gigabit and 990 leaves, all of them busy, as fast as the tree lets them.
    fn tree(leaf_mbit: u64, name: &str) {
        let ours: Vec<f64> = (0..REPEATS).map(|_| tree_cycles(leaf_mbit)).collect();
        let figure = print(&format!("HTB, 1001 classes in 3 levels, {name}"), "weir", ours);
        println!("{:52} {:14} {:8.1} million packets/s", "", "", tsc_hz() / figure / 1e6);
    }

    fn tree_cycles(leaf_mbit: u64) -> f64 {
        let mbit = |mbit: u64| Rate::from_bits_per_s(mbit * 1_000_000).expect("not 0");
        let config = |rate_mbit, ceil_mbit| HtbConfig {
            rate: mbit(rate_mbit),
            ceil: mbit(ceil_mbit),
            burst_bytes: 20_000,
            cburst_bytes: 20_000,
            mtu_bytes: LEN_BYTES.into(),
        };
        let size = TreeSize { classes_max: 1001, packets_max: 10_000, poll_budget_bytes: 0 };
        let mut htb = Htb::new(size, 0);
        let leaf = LeafConfig {
            priority: 0,
            flows: 1,
            flow_quantum_bytes: 1514,
            limit_bytes: 100_000,
            rule: Rule::default(),
        };
        let mut add = |parent, config, leaf| {
            htb.add(parent, HtbMeter::new(config, 0).expect("kept"), 1514, leaf, 0).expect("room")
        };
        let root = add(None, config(10_000, 10_000), None);
        let inner: Vec<usize> = (0..10).map(|_| add(Some(root), config(1_000, 1_000), None)).collect();
        let leaves: Vec<usize> = (0..990)
            .map(|index| add(Some(inner[index % 10]), config(leaf_mbit, 1_000), Some(leaf)))
            .collect();
        for class in leaves {
            for _ in 0..4 {
                htb.enqueue(class, 0, packet()).expect("a slot");
            }
        }
        let (mut now_ns, mut chunks) = (0, Vec::new());
        for chunk in 0..PACKETS / CHUNK / 4 {
            let (mut sent, start) = (0, cycle());
            while sent < CHUNK {
                match htb.dequeue(now_ns) {
                    Dequeue::Packet(_, packet) => {
                        sent += 1;
                        htb.enqueue(packet.meta.class.into(), 0, packet).expect("a slot");
                    }
                    Dequeue::NotBefore(ready_ns) => now_ns = ready_ns,
                    other => panic!("{other:?}"),
                }
            }
            // The first of them spend the bursts.
            if chunk >= 32 {
                chunks.push((cycle() - start) as f64 / sent as f64);
            }
        }
        median(&mut chunks)
    }

    fn print(name: &str, system: &str, mut cycles: Vec<f64>) -> f64 {
        cycles.sort_by(f64::total_cmp);
        let at = |quarter: usize| cycles[quarter * (cycles.len() - 1) / 4];
        println!("{name:52} {system:14} {:8.1} [{:.1} {:.1}]", at(2), at(1), at(3));
        at(2)
    }

    /// How fast the time-stamp counter runs.
    #[allow(clippy::disallowed_methods, reason = "a benchmark compares cycles with seconds")]
    fn tsc_hz() -> f64 {
        let (start, since) = (cycle(), Instant::now());
        while since.elapsed() < Duration::from_millis(20) {}
        (cycle() - start) as f64 / since.elapsed().as_secs_f64()
    }

    fn cycle() -> u64 {
        // SAFETY: both instructions exist on every x86-64 processor and touch no memory.
        unsafe {
            _mm_lfence();
            let cycles = _rdtsc();
            _mm_lfence();
            cycles
        }
    }
}
