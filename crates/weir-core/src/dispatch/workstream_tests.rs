//! One workstream at a time: each condition of the rule of order, each rule for a full queue, the bounds, the
//! counters.

use super::super::protocol::{Policy, Protocol};
use super::*;
use crate::packet::Meta;
use crate::steer::key::Key;
use crate::steer::parse::HashKind;
use crate::steer::rss::Rss;

#[derive(Clone, Debug, PartialEq)]
struct Pkt {
    meta: Meta,
    id: u32,
    can_mark: bool,
    marked: bool,
}

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        100
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

fn pkt(id: u32) -> Pkt {
    Pkt { meta: Meta { flow_hash: 0x10, ..Meta::default() }, id, can_mark: true, marked: false }
}

/// A handler that passes each packet on along `chain`, then delivers it.
#[derive(Default)]
struct Along {
    chain: Vec<(ProtoId, Option<ProtoId>)>,
    copies_at: Option<ProtoId>,
    delivered: Vec<u32>,
    marked: Vec<u32>,
    dropped: Vec<u32>,
    handed_off: Vec<(usize, u32)>,
    trace: Vec<(usize, u32)>,
    /// With how many had been handled before.
    announced: Vec<(u32, usize)>,
}

impl Handler<Pkt> for Along {
    fn handle(&mut self, proto: ProtoId, packet: Pkt, next: &mut Next<'_, Pkt>) {
        self.trace.push((proto.index(), packet.id));
        match self.chain.iter().find(|(from, _)| *from == proto).and_then(|(_, to)| *to) {
            Some(to) => {
                if self.copies_at == Some(proto) {
                    for copy in 1..3 {
                        next.added(packet.len_bytes());
                        next.dispatch(to, Pkt { id: packet.id * 10 + copy, ..packet.clone() });
                    }
                    next.dropped(DropReason::NoHandler, packet.len_bytes());
                } else {
                    next.dispatch(to, packet);
                }
            }
            None => {
                next.delivered(packet.len_bytes());
                self.delivered.push(packet.id);
            }
        }
    }
    fn mark(&mut self, packet: &mut Pkt) -> bool {
        packet.marked = packet.can_mark;
        if packet.can_mark {
            self.marked.push(packet.id);
        }
        packet.can_mark
    }
    fn hand_off(&mut self, worker: usize, _: ProtoId, packet: Pkt) {
        self.handed_off.push((worker, packet.id));
    }
    fn dropped(&mut self, packet: Pkt, reason: DropReason) {
        assert_eq!(reason, DropReason::WorkstreamFull);
        self.dropped.push(packet.id);
    }
    fn soon(&mut self, packet: &Pkt) {
        self.announced.push((packet.id, self.trace.len()));
    }
}

struct Bench {
    stream: Workstream<Pkt>,
    handler: Along,
    registry: Arc<Registry>,
}

impl Bench {
    /// Protocols a -> b -> c, and c -> a if `around`; `change` adapts them.
    fn new(workers: usize, mode: Mode, around: bool, change: impl Fn(&mut [Protocol])) -> Bench {
        let protocol = |name, feeds| Protocol {
            name,
            number: 0,
            policy: Policy::Flow,
            mode: None,
            qlimit: Some(4),
            when_full: WhenFull::Block,
            to_worker: None,
            feeds,
        };
        let last: &[&str] = if around { &["a"] } else { &[] };
        let mut protocols = vec![protocol("a", &["b"]), protocol("b", &["c"]), protocol("c", last)];
        change(&mut protocols);
        let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 3, workers).unwrap();
        let registry = Arc::new(Registry::new(protocols, mode, 4, rss).unwrap());
        let id = |name| registry.id(name).unwrap();
        let back = around.then(|| id("a"));
        let chain = vec![(id("a"), Some(id("b"))), (id("b"), Some(id("c"))), (id("c"), back)];
        let handler = Along { chain, ..Along::default() };
        Bench { stream: Workstream::new(0, registry.clone(), 64), handler, registry }
    }

    fn id(&self, name: &str) -> ProtoId {
        self.registry.id(name).unwrap()
    }

    fn dispatch(&mut self, name: &str, packet: Pkt, now_ns: u64) -> Result<(), Pkt> {
        let result = self.stream.dispatch(self.id(name), packet, now_ns, &mut self.handler);
        assert!(self.stream.account().balances(self.stream.held()), "{:?}", self.stream.account());
        result
    }

    fn drain(&mut self, now_ns: u64) -> usize {
        let handled = self.stream.drain(now_ns, &mut self.handler);
        assert!(self.stream.account().balances(self.stream.held()), "{:?}", self.stream.account());
        handled
    }

    fn row(&self, name: &str) -> WorkstreamRow {
        self.stream.rows(0, 1_000_000)[self.id(name).index()].clone()
    }
}

#[test]
fn direct_and_hybrid_run_the_whole_chain_at_once() {
    for mode in [Mode::Direct, Mode::Hybrid] {
        let mut bench = Bench::new(1, mode, false, |_| ());
        bench.dispatch("a", pkt(1), 0).unwrap();
        assert_eq!(bench.handler.delivered, [1]);
        let row = bench.row("b");
        let expected = if mode == Mode::Direct { (1, 0) } else { (0, 1) };
        assert_eq!(
            (row.dispatched, row.hybrid_dispatched, row.queued, row.handled),
            (expected.0, expected.1, 0, 1)
        );
    }
}

#[test]
fn condition_1_deferred_always_waits() {
    let mut bench = Bench::new(1, Mode::Deferred, false, |_| ());
    bench.dispatch("a", pkt(1), 0).unwrap();
    assert!(bench.handler.trace.is_empty());
    // Each pass takes it one protocol on: what a pass queues is left to the next.
    assert_eq!([bench.drain(0), bench.drain(0), bench.drain(0), bench.drain(0)], [1, 1, 1, 0]);
    assert_eq!(bench.handler.delivered, [1]);
    assert_eq!((bench.row("a").queued, bench.row("a").wmark, bench.row("a").handled), (1, 1, 1));
}

#[test]
fn condition_2_hybrid_leaves_the_work_to_the_chosen_worker_and_direct_does_not() {
    // Hash 1 is bucket 1 is worker 1 of 2.
    let elsewhere = |id| Pkt { meta: Meta { flow_hash: 1, ..Meta::default() }, ..pkt(id) };
    let mut bench = Bench::new(2, Mode::Hybrid, false, |_| ());
    bench.dispatch("a", elsewhere(1), 0).unwrap();
    assert_eq!((bench.handler.handed_off.as_slice(), bench.handler.trace.len()), ([(1, 1)].as_slice(), 0));
    let mut bench = Bench::new(2, Mode::Direct, false, |_| ());
    bench.dispatch("a", elsewhere(1), 0).unwrap();
    assert_eq!((bench.handler.handed_off.len(), bench.handler.delivered.as_slice()), (0, [1].as_slice()));
}

#[test]
fn condition_3_nothing_is_handled_ahead_of_what_waits() {
    let mut bench = Bench::new(1, Mode::Direct, false, |_| ());
    let (b, first) = (bench.id("b"), pkt(1));
    bench.stream.receive(b, first, &mut bench.handler);
    bench.dispatch("a", pkt(2), 0).unwrap();
    assert_eq!(bench.handler.trace, [(0, 2)], "through a, then behind 1 at b");
    assert_eq!(bench.drain(0), 2);
    assert_eq!(bench.handler.delivered, [1, 2]);
    bench.stream.overtakes = true;
    bench.stream.receive(b, pkt(3), &mut bench.handler);
    bench.dispatch("a", pkt(4), 0).unwrap();
    bench.drain(0);
    assert_eq!(bench.handler.delivered, [1, 2, 4, 3], "without the condition");
}

#[test]
fn condition_4_a_loop_of_tunnels_has_its_share_of_a_pass_and_no_more() {
    let mut bench = Bench::new(1, Mode::Direct, true, |_| ());
    bench.dispatch("a", pkt(1), 0).unwrap();
    assert_eq!(bench.handler.trace.len(), RUNS_MAX);
    assert_eq!(bench.stream.held().packets, 1, "it waits, it is not lost");
    assert_eq!((bench.drain(0), bench.handler.trace.len()), (1, 2 * RUNS_MAX));
}

#[test]
fn copies_go_on_in_the_order_of_recursion() {
    let mut bench = Bench::new(1, Mode::Direct, false, |_| ());
    bench.handler.copies_at = Some(bench.id("a"));
    bench.dispatch("a", pkt(1), 0).unwrap();
    assert_eq!(bench.handler.trace, [(0, 1), (1, 11), (2, 11), (1, 12), (2, 12)]);
    assert_eq!(bench.stream.account().accepted.packets, 3);
    assert_eq!(bench.stream.account().delivered.packets, 2);
}

#[test]
fn a_full_queue_holds_its_feeder_until_there_is_room() {
    let mut bench = Bench::new(1, Mode::Deferred, false, |_| ());
    for id in 0..4 {
        bench.dispatch("a", pkt(id), 10).unwrap();
    }
    assert_eq!(bench.dispatch("a", pkt(4), 100), Err(pkt(4)));
    assert_eq!(bench.dispatch("a", pkt(4), 200), Err(pkt(4)), "still");
    assert!(bench.dispatch("b", pkt(9), 200).is_ok(), "b's own feeders come nowhere near a");
    assert_eq!((bench.row("a").blocked, bench.row("a").blocked_ns), (1, 1_000_000 - 100), "once, and still");
    assert_eq!(bench.drain(1_100), 5);
    assert_eq!((bench.row("a").blocked, bench.row("a").blocked_ns), (1, 1_000));
    // What was in a is in b now, at its limit, and a leads to b.
    assert_eq!(bench.row("b").len, 4);
    assert_eq!(bench.dispatch("a", pkt(4), 1_200), Err(pkt(4)));
    assert_eq!((bench.row("a").blocked, bench.row("b").blocked), (1, 1));
    bench.drain(1_300);
    assert!(bench.dispatch("a", pkt(4), 1_400).is_err(), "c is full now");
    bench.drain(1_500);
    assert!(bench.dispatch("a", pkt(4), 1_600).is_ok());
    assert_eq!(bench.stream.account().dropped.total().packets, 0);
}

#[test]
fn a_full_queue_on_the_worker_it_is_bound_for_holds_the_feeder_too() {
    let mut bench = Bench::new(2, Mode::Hybrid, false, |_| ());
    let bound_for = |worker| Pkt { meta: Meta { flow_hash: worker, ..Meta::default() }, ..pkt(worker) };
    bench.stream.set_peer_full(1, 1 << bench.id("c").index(), 50);
    assert!(bench.dispatch("a", bound_for(1), 100).is_err(), "a leads to c");
    assert!(bench.dispatch("a", bound_for(2), 100).is_ok(), "another worker's flow");
    bench.stream.set_peer_full(1, 0, 400);
    assert!(bench.dispatch("a", bound_for(1), 500).is_ok());
    assert_eq!((bench.row("c").blocked, bench.row("c").blocked_ns), (1, 300));
}

#[test]
fn drop_is_netisrs_rule_and_counted() {
    let mut bench =
        Bench::new(1, Mode::Deferred, false, |all| all.iter_mut().for_each(|p| p.when_full = WhenFull::Drop));
    for id in 0..7 {
        bench.dispatch("a", pkt(id), 0).unwrap();
    }
    assert_eq!(bench.handler.dropped, [4, 5, 6]);
    assert_eq!((bench.row("a").queue_drops, bench.row("a").wmark, bench.row("a").blocked), (3, 4, 0));
    assert_eq!(bench.stream.account().dropped.get(DropReason::WorkstreamFull).packets, 3);
}

#[test]
fn ecn_marks_from_half_the_limit_on_and_then_holds() {
    let mut bench =
        Bench::new(1, Mode::Deferred, false, |all| all.iter_mut().for_each(|p| p.when_full = WhenFull::Ecn));
    for id in 0..4 {
        bench.dispatch("a", Pkt { can_mark: id != 2, ..pkt(id) }, 0).unwrap();
    }
    assert_eq!(bench.handler.marked, [3], "0 and 1 came before the half, 2 cannot carry the mark");
    assert_eq!(bench.stream.marked(bench.id("a")), 1);
    assert!(bench.dispatch("a", pkt(4), 0).is_err());
    assert_eq!(bench.stream.account().dropped.total().packets, 0);
}

/// A producer that always has more cannot starve the consumer on its core, nor one protocol another.
#[test]
fn a_pass_takes_what_was_there_and_every_protocol_has_its_turn() {
    let mut bench =
        Bench::new(1, Mode::Deferred, false, |all| all.iter_mut().for_each(|p| p.qlimit = Some(32)));
    for pass in 0..100 {
        while bench.dispatch("a", pkt(pass), 0).is_ok() {}
        let waiting: usize = ["a", "b", "c"].iter().map(|name| bench.row(name).len).sum();
        assert_eq!(bench.drain(0), waiting, "pass {pass}");
    }
    let handled = ["a", "b", "c"].map(|name| bench.row(name).handled);
    assert!(handled.iter().all(|n| *n >= handled[0] - 64), "{handled:?}");
}

#[test]
fn what_is_queued_is_announced_once_and_in_time() {
    let mut bench = Bench::new(1, Mode::Deferred, false, |_| ());
    let (mut came, last) = (0, bench.id("c"));
    for burst in [1, AHEAD, 20, 3, 40, AHEAD + 1] {
        for _ in 0..burst {
            bench.stream.receive(last, pkt(came), &mut bench.handler);
            came += 1;
        }
        let at_once = came as usize - burst + burst.min(AHEAD);
        assert_eq!(bench.handler.announced.len(), at_once, "the first of {burst}, when they came");
        bench.drain(0);
    }
    let announced = &bench.handler.announced;
    assert_eq!(announced.iter().map(|(id, _)| *id).collect::<Vec<_>>(), Vec::from_iter(0..came));
    let in_time = |(id, handled): &(u32, usize)| (*handled..=handled + AHEAD).contains(&(*id as usize));
    assert!(announced.iter().all(in_time), "{announced:?}");
}

#[test]
fn the_memory_taken_at_start_is_all_there_is() {
    let mut bench = Bench::new(1, Mode::Deferred, false, |_| ());
    let before: Vec<usize> = bench.stream.queues.iter().map(|queue| queue.packets.capacity()).collect();
    let work = bench.stream.work.capacity();
    let a = bench.id("a");
    for id in 0..64 {
        bench.stream.receive(a, pkt(id), &mut bench.handler);
    }
    while !bench.stream.is_empty() {
        bench.drain(0);
    }
    assert_eq!(bench.handler.delivered, (0..64).collect::<Vec<_>>());
    assert_eq!(before, bench.stream.queues.iter().map(|queue| queue.packets.capacity()).collect::<Vec<_>>());
    assert_eq!(work, bench.stream.work.capacity());
}

#[test]
#[should_panic(expected = "a handler dispatches only to what its protocol feeds")]
fn an_undeclared_dispatch_is_a_mistake_of_the_handler() {
    let mut bench = Bench::new(1, Mode::Direct, false, |_| ());
    bench.handler.chain = vec![(bench.id("c"), Some(bench.id("a")))];
    let _ = bench.dispatch("c", pkt(1), 0);
}
