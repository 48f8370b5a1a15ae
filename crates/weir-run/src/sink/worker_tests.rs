//! Two workers of a sink without a port, stepped on one thread: what is fed to the first as if it had been polled.

use proptest::prelude::*;
use weir_core::account::Account;
use weir_core::dispatch::handlers::{self, Handlers};
use weir_core::dispatch::protocol::Mode;
use weir_core::dispatch::settings::Settings;
use weir_core::drops::DropReason;
use weir_path::frames::Frames;
use weir_ring::handoff;
use weir_ring::loans::Loans;
use weir_ring::pool::Pool;

use super::super::ways::{Ways, Words};
use super::*;
use weir_path::traffic::flows::{Flows, Traffic};
use weir_path::traffic::sequence::Sequences;

const FRAMES: u32 = 1024;
const FLOWS: u32 = 50;

struct Bench {
    workers: Vec<Worker<'static>>,
    flows: Flows,
    now_ns: u64,
}

impl Bench {
    fn new(settings: &[(&str, &str)]) -> Bench {
        let mut read = Settings::new(handlers::protocols());
        settings.iter().for_each(|(key, text)| read.set(key, text, None).unwrap());
        let configuration = read.finish(2).unwrap();
        let registry = &configuration.registry;
        let pools = Pool::for_workers(FrameMemory::new(FRAMES, 2048).unwrap(), 2);
        let (words, shared) = (Arc::new(Words::new(2)), Arc::new(Shared::new(2, 0)));
        let mesh = handoff::mesh::<Message>(2, FRAMES as usize, 4).unwrap();
        let parts = mesh.into_iter().zip(pools).enumerate();
        let workers = parts.map(|(number, ((inbox, outlets), pool))| {
            let frames = Frames { loans: Loans::new(Arc::clone(pool.memory())), pool };
            let ways = Ways::new(number, outlets, registry, Arc::clone(&words));
            let handlers = Handlers::new(registry);
            let hands = Hands::new(handlers, frames, ways, Sequences::new(FLOWS));
            let protocols = (handlers.ether(), Arc::clone(registry));
            Worker::new(number, None, protocols, hands, inbox, Arc::clone(&shared))
        });
        let traffic = Traffic {
            size_bytes: 60,
            src: "198.18.0.1".parse().unwrap(),
            dst: "198.19.0.1-198.19.0.250".parse().unwrap(),
            src_mac: smoltcp::wire::EthernetAddress([2; 6]),
            dst_mac: smoltcp::wire::EthernetAddress([2; 6]),
            flows: FLOWS,
            first_flow: 0,
        };
        Bench { workers: workers.collect(), flows: Flows::new(&traffic).unwrap(), now_ns: 0 }
    }

    /// Feeds the first worker a frame; false if it cannot be polled.
    fn feed(&mut self, write: impl FnOnce(&mut Flows, &mut [u8]) -> usize) -> bool {
        if !self.workers[0].held.is_empty() {
            return false;
        }
        let pool = &mut self.workers[0].hands.frames.pool;
        let Some(mut frame) = pool.take() else { return false };
        let len_bytes = write(&mut self.flows, pool.memory().bytes_mut(&mut frame)) as u16;
        let worker = &mut self.workers[0];
        worker.received.push(PathPacket::new(frame, 0, len_bytes));
        worker.take_in(0, true, self.now_ns);
        worker.dispatch(self.now_ns);
        true
    }

    fn feed_next(&mut self) -> bool {
        self.feed(|flows, bytes| {
            flows.write_next(bytes);
            60
        })
    }

    fn step(&mut self, worker: usize) -> usize {
        self.now_ns += 1000;
        let now_ns = self.now_ns;
        self.workers[worker].pass(now_ns, || now_ns + 10)
    }

    fn settle(&mut self) {
        while self.step(0) + self.step(1) > 0 {}
    }

    /// All books together; every frame must be back, and nothing inside.
    fn account(&self) -> Account {
        let mut account = Account::default();
        for worker in &self.workers {
            assert!(worker.workstream.account().balances(Count::default()) && worker.held.is_empty());
            account.accepted.merge(worker.count);
            account.delivered.merge(worker.hands.delivered);
            account.dropped.merge(&worker.workstream.account().dropped);
        }
        assert!(account.balances(Count::default()), "{account:?}");
        let census = self.workers[0].hands.frames.pool.census();
        assert!(census.balances() && census.out == 0, "{census:?}");
        account
    }

    /// What both have seen of the generator, and how many flows came to both.
    fn seen(self) -> (Sequences, u64) {
        let mut sequences = self.workers.into_iter().map(|worker| worker.hands.sequences);
        let (mut first, second) = (sequences.next().unwrap(), sequences.next().unwrap());
        let split = first.merge(&second);
        (first, split)
    }
}

#[test]
fn flows_are_dealt_out_and_nothing_is_lost_in_any_mode_and_policy() {
    for mode in Mode::ALL {
        for policy in ["source", "flow", "cpu"] {
            for qlimit in ["1", "256"] {
                let mut bench = Bench::new(&[
                    ("dispatch", mode.name()),
                    ("proto.ip.policy", policy),
                    ("defaultqlimit", qlimit),
                ]);
                let mut fed = 0;
                for turn in 0..5000 {
                    fed += u64::from(bench.feed_next());
                    if turn % 7 == 0 {
                        bench.step(turn / 7 % 2);
                    }
                }
                bench.settle();
                let case = format!("{mode} {policy} {qlimit}");
                assert!(fed >= 100, "{case}: {fed}");
                assert_eq!(bench.account().delivered.packets, fed, "{case}");
                let flows: Vec<u64> =
                    bench.workers.iter().map(|worker| worker.hands.sequences.flows()).collect();
                // Under policy `cpu` and `source` ip's work is the first worker's again, unless it is done at once.
                let is_shared = *mode == Mode::Direct || policy == "flow";
                assert_eq!(flows.iter().all(|flows| *flows > 0), is_shared, "{case}: {flows:?}");
                let (sequences, split) = bench.seen();
                let counts = sequences.counts();
                let faults = (counts.missing, counts.duplicated, counts.reordered, split);
                assert_eq!(faults, (0, 0, 0, 0), "{case}");
            }
        }
    }
}

#[test]
fn a_full_worker_holds_the_one_that_polls_until_it_has_room() {
    let mut bench = Bench::new(&[("defaultqlimit", "8")]);
    let mut fed = 0;
    while bench.feed_next() {
        fed += 1;
        bench.step(0);
    }
    assert_eq!(bench.workers[0].held.len(), 1, "one packet waits, and none is taken in behind it");
    assert!(fed < 100, "{fed} packets past a queue of 8");
    assert_eq!(bench.step(0), 0, "the first worker alone gets no further");
    bench.workers[0].shared.set_hungry(0, Want::Room);
    assert!(!bench.workers[0].hands.ways.has_news());
    assert!(bench.step(1) >= 8);
    assert!(bench.workers[0].hands.ways.has_news());
    assert!(bench.step(0) > 0, "a word to look, and the packet that waited");
    bench.settle();
    assert_eq!(bench.account().delivered.packets, fed);
    let rows = bench.workers[1].workstream.rows(0, bench.now_ns);
    let ether = rows.iter().find(|row| row.name == "ether").unwrap();
    assert_eq!((ether.wmark, ether.queue_drops), (8, 0));
}

#[test]
fn what_a_rule_drops_is_counted() {
    let mut bench = Bench::new(&[("defaultqlimit", "1"), ("proto.ether.full", "drop")]);
    let fed = (0..300).filter(|_| bench.feed_next()).count() as u64;
    assert_eq!(fed, 300, "nothing holds");
    bench.settle();
    let account = bench.account();
    let dropped = account.dropped.get(DropReason::WorkstreamFull).packets;
    assert!(dropped > 100, "{account:?}");
    assert_eq!(account.delivered.packets + dropped, 300);
}

proptest! {
    #[test]
    fn any_frames_go_one_way_and_give_their_memory_back(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 14..200), 1..200),
        ethertype in prop::sample::select(vec![None, Some(0x0800u16), Some(0x86dd), Some(0x0806), Some(0x8100)]),
        mode in prop::sample::select(Mode::ALL),
    ) {
        let mut bench = Bench::new(&[("dispatch", mode.name()), ("defaultqlimit", "4")]);
        let mut fed = 0;
        for frame in &frames {
            while !bench.feed(|_, bytes| {
                bytes[..frame.len()].copy_from_slice(frame);
                if let Some(ethertype) = ethertype {
                    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                }
                frame.len()
            }) {
                bench.settle();
            }
            fed += 1;
        }
        bench.settle();
        prop_assert_eq!(bench.account().accepted.packets, fed);
    }
}
