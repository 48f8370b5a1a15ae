//! Ports of one worker that change while packets wait at them: all or none, and no packet is lost or overtakes.

use std::sync::Arc;

use weir_core::rate::Rate;
use weir_core::shaper::tbf::TbfConfig;
use weir_core::shaper::token_bucket::BURST_BYTES_MAX;
use weir_path::classes::{Classes, TreeKind};
use weir_path::shape::PortShape;
use weir_sim::plans::tree;
use weir_sim::prng::Prng;

use super::*;

/// A bridge of three ports at 100 Mbit/s each, and stations that it has heard.
pub(super) fn three_ports(queues: usize) -> Worker<FramePort> {
    let ports = (0..3).map(|port| port_plan(port, Some(mbit(100)))).collect();
    let links = (0..3).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    let mut worker =
        worker(&Plan { ports, stages: vec![bridge("lan", 3)], links, ..Plan::default() }, queues);
    for port in 0..3 {
        let hello = packet(mac(port, 0), BROADCAST, [Ipv4Addr::LOCALHOST; 2], 0);
        worker.end_mut(port).0.port.send(0, hello);
    }
    settle(&mut worker, 0);
    (0..3).for_each(|port| worker.end_mut(port).0.port.left.clear());
    worker
}

/// The text of each shape, to be compared.
fn said(shapes: &[PortShape]) -> Vec<String> {
    shapes.iter().map(|shape| format!("{shape:?}")).collect()
}

#[test]
fn ports_change_together_or_not_at_all() {
    let mut worker = three_ports(1);
    (0..200).for_each(|number| worker.end_mut(0).0.port.send(0, bridged((0, 0), (1, 0), number)));
    settle(&mut worker, MS);
    let (before, held) = (said(&worker.shapes()), worker.between().egress.held());
    assert!(held.packets > 0);
    let shape = |port, limits| PortShape { port, limits: Some(limits), classes: None };
    let wrong_class = || {
        let mut classes = Classes::clone(&tree(TreeKind::Htb, &["a"], 10));
        classes.classes[0].ceil = Rate::from_bits_per_s(1_000).unwrap();
        Some(Arc::new(classes))
    };
    // One of the three refuses, any of them and for any reason.
    for refusing in 0..3 {
        let mut shapes: Vec<_> = (0..3).map(|port| shape(port, mbit(7 + port as u64))).collect();
        let limits = TbfConfig { burst_bytes: BURST_BYTES_MAX + 1, ..mbit(9) };
        for wrong in
            [shape(refusing, limits), PortShape { classes: wrong_class(), ..shape(refusing, mbit(9)) }]
        {
            shapes[refusing] = wrong;
            let (port, why) = worker.reshape(&shapes, MS).unwrap_err();
            assert_eq!((port, said(&worker.shapes())), (refusing, before.clone()), "{why}");
            assert_eq!(worker.between().egress.held(), held);
        }
    }
    // All change at once, of which one gets classes and one loses its limit.
    let classes = Some(tree(TreeKind::Htb, &["a"], 5));
    let shapes = [
        shape(0, mbit(7)),
        PortShape { port: 1, limits: Some(mbit(8)), classes: classes.clone() },
        PortShape { port: 2, limits: None, classes: None },
    ];
    worker.reshape(&shapes, MS).unwrap();
    assert_eq!(said(&worker.shapes()), said(&shapes));
    // Shapes that are handed back are not made anew.
    worker.reshape(&worker.shapes(), MS).unwrap();
    assert!(worker.shapes()[1].classes.iter().zip(&classes).all(|(one, other)| Arc::ptr_eq(one, other)));
    assert_eq!(worker.between().egress.held(), held);
}

/// Each poll budget that is set costs a system call for each receive queue of the port.
#[test]
fn a_change_of_many_ports_sets_the_poll_budget_of_each_once() {
    const PORTS: usize = 8;
    let ports = (0..PORTS).map(|port| port_plan(port, Some(mbit(100)))).collect();
    let links = (0..PORTS).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
    let mut worker =
        worker(&Plan { ports, stages: vec![bridge("lan", PORTS as u16)], links, ..Plan::default() }, 1);
    let shape = |port| {
        let classes = Some(tree(TreeKind::Htb, &["a"], 5));
        PortShape { port, limits: Some(mbit(50)), classes }
    };
    let set = |worker: &Worker<FramePort>| -> Vec<_> {
        worker.ends().iter().map(|end| end.port.poll_budgets_set).collect()
    };
    let before = set(&worker);
    worker.reshape(&(0..PORTS).map(shape).collect::<Vec<_>>(), MS).unwrap();
    let more: Vec<_> = before.iter().zip(set(&worker)).map(|(before, after)| after - before).collect();
    assert_eq!(more, [1; PORTS]);
}

/// Limits, classes and both, of all ports at once, come and go while two flows of each port wait: no flow loses or overtakes.
#[test]
fn ports_that_change_all_the_time_lose_and_reorder_nothing() {
    const CHANGES: usize = 300;
    for seed in 0..8 {
        let mut draws = Prng::new(seed);
        let mut worker = three_ports(2);
        let kinds = [TreeKind::Htb, TreeKind::Cbq];
        let (mut now_ns, mut sent) = (MS, [[0u64; 2]; 3]);
        for _ in 0..CHANGES {
            for (from, sent) in sent.iter_mut().enumerate() {
                for (queue, number) in sent.iter_mut().enumerate() {
                    while worker.ends()[from].port.queued_in(queue) < 8 {
                        let to = (from + 1 + queue) % 3;
                        let bytes = bridged((from, 0), (to, 0), *number);
                        worker.end_mut(from).0.port.send(queue, bytes);
                        *number += 1;
                    }
                }
            }
            settle(&mut worker, now_ns);
            let shapes: Vec<_> = (0..3)
                .filter_map(|port| {
                    let limits = draws.chance(800).then(|| mbit(draws.between(5, 200)));
                    let names: &[&str] = [&["a"][..], &["b", "a"], &["c"]][draws.below(3) as usize];
                    let kind = kinds[draws.below(2) as usize];
                    let classes = draws.chance(600).then(|| tree(kind, names, draws.between(5, 100)));
                    draws.chance(700).then_some(PortShape { port, limits, classes })
                })
                .collect();
            worker.reshape(&shapes, now_ns).unwrap();
            now_ns += draws.between(1_000, MS);
        }
        while worker.ends().iter().map(|end| end.port.queued()).sum::<usize>() > 0
            || worker.between().egress.held().packets > 0
        {
            now_ns = settle(&mut worker, now_ns).unwrap_or(now_ns).max(now_ns + 1_000);
        }
        for (to, end) in worker.ends().iter().enumerate() {
            for from in (0..3).filter(|&from| from != to) {
                let from_there = |bytes: &&Vec<u8>| usize::from(bytes[10]) == from;
                let numbers: Vec<_> =
                    end.port.left.iter().filter(from_there).map(|bytes| number_of(bytes)).collect();
                let queue = (to + 3 - from - 1) % 3;
                assert_eq!(
                    numbers,
                    (0..sent[from][queue]).collect::<Vec<_>>(),
                    "seed {seed}: {from} to {to}"
                );
            }
        }
        assert_eq!(worker.frames().pool.census().out, 0);
    }
}
