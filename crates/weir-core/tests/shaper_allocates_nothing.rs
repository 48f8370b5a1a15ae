//! No shaper allocates on the packet's way: all memory is taken when it is made.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use weir_core::{
    packet::{Meta, Packet},
    rate::Rate,
    shaper::{
        Shaper,
        backlog::{Dequeue, FullPolicy, QueueRule},
        cbq::{Cbq, CbqConfig, CbqMeter, EWMA_LOG},
        class::{Class, ClassSize},
        codel::CodelConfig,
        htb::{Htb, HtbConfig, HtbMeter},
        tbf::{Limit, TbfConfig},
        tree::{LeafConfig, TreeSize},
    },
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches a
// thread-local of const initialisation and without a destructor, so it neither allocates nor can be gone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got the pointer from `alloc`, that is from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Plain(Meta);

impl Packet for Plain {
    fn len_bytes(&self) -> u32 {
        1000
    }
    fn meta(&self) -> &Meta {
        &self.0
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.0
    }
}

fn rate(mbit: u64) -> Rate {
    Rate::from_bits_per_s(mbit * 1_000_000).expect("not 0")
}

/// Each shaper with its leaves: one class, or four under a root.
fn shapers() -> Vec<(Shaper<Plain>, &'static [usize])> {
    let (quantum_bytes, limit_bytes, mtu_bytes) = (1514, 20_000, 1514);
    let codel = CodelConfig { target_ns: 100_000, interval_ns: 1_000_000, mtu_bytes };
    let rule = QueueRule { when_full: FullPolicy::Drop(codel), max_wait_ns: Some(30_000_000) };
    let size = ClassSize { flows: 8, packets_max: 500, quantum_bytes, poll_budget_bytes: 0 };
    let limits = TbfConfig { rate: rate(10), burst_bytes: 3000, limit: Limit::Bytes(limit_bytes) };
    let mut class = Class::new(size, Some(limits), 0).expect("kept");
    class.set_rule(rule);
    let tree = TreeSize { classes_max: 5, packets_max: 500, poll_budget_bytes: 0 };
    let leaf = LeafConfig { priority: 1, flows: 8, flow_quantum_bytes: quantum_bytes, limit_bytes, rule };
    let (mut htb, mut cbq) = (Htb::new(tree, 0), Cbq::new(tree, 0));
    let (ewma_log, bounded, isolated) = (EWMA_LOG, false, false);
    for (parent, mbit, leaf) in [(None, 10, None)].into_iter().chain([(Some(0), 2, Some(leaf)); 4]) {
        let config =
            HtbConfig { rate: rate(mbit), ceil: rate(10), burst_bytes: 3000, cburst_bytes: 3000, mtu_bytes };
        htb.add(parent, HtbMeter::new(config, 0).expect("kept"), quantum_bytes, leaf, 0).expect("room");
        let config =
            CbqConfig { rate: rate(mbit), burst_bytes: 3000, mtu_bytes, ewma_log, bounded, isolated };
        cbq.add(parent, CbqMeter::new(config, 0).expect("kept"), quantum_bytes, leaf, 0).expect("room");
    }
    vec![
        (Shaper::Class(Box::new(class)), &[0]),
        (Shaper::Htb(Box::new(htb)), &[1, 2, 3, 4]),
        (Shaper::Cbq(Box::new(cbq)), &[1, 2, 3, 4]),
    ]
}

#[test]
fn packets_pass_wait_and_drop_without_allocating() {
    for (which, (mut shaper, leaves)) in shapers().into_iter().enumerate() {
        let (mut now_ns, mut sent, mut dropped) = (0, 0, 0);
        let before = ALLOCATIONS.get();
        for number in 0..20_000usize {
            let meta = Meta { arrival_ns: now_ns, ..Meta::default() };
            let class = leaves[number % leaves.len()];
            if shaper.room_bytes(class) > 0 && shaper.enqueue(class, number % 8, Plain(meta)).is_err() {
                dropped += 1;
            }
            match shaper.dequeue(now_ns) {
                Dequeue::Packet(..) => sent += 1,
                Dequeue::Dropped(..) => dropped += 1,
                Dequeue::NotBefore(ready_ns) => now_ns += (ready_ns - now_ns).min(200_000),
                Dequeue::Empty => now_ns += 200_000,
            }
        }
        let allocations = ALLOCATIONS.get() - before;
        assert!(sent > 1000, "shaper {which} sent {sent} and dropped {dropped}");
        assert_eq!(allocations, 0, "shaper {which}");
    }
    // The counter works; a test that could not fail would be worth nothing.
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
