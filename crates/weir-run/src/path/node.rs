//! What stands at the ends of links: generators, sinks, bridges and routers, each given a burst at a time.
//!
//! A bridge and a router are the core's ([`weir_core::net`]); here packets are moved as they decide. Each packet of a burst goes
//! exactly one way: on by a link, into a router's keeping, or out of the path ([`super::store`]).
//!
//! | node | ports | a packet that comes in |
//! |---|---|---|
//! | generator | 1 | is delivered: what others flood is not for it |
//! | sink | 1 | is checked ([`super::sequence`]) and delivered |
//! | bridge | up to 64 | is forwarded or flooded; copies need frames, and are dropped as `no-frame` without |
//! | router | one for each interface | as [`weir_core::net::router`] says; what it makes itself waits until there is a frame |
//!
//! Owner: one worker for each node (invariant 7).

use std::collections::VecDeque;

use weir_core::drops::{Count, DropReason};
use weir_core::net::bridge::{Bridge, Egress};
use weir_core::net::router::{Router, Verdict};
use weir_core::packet::Meta;

use super::r#gen::Gen;
use super::links::{BURST, Links, Way};
use super::packet::PathPacket;
use super::sequence::Sequences;
use super::store::Store;

/// What a node is.
pub enum Kind<'m> {
    /// A generator.
    Gen(Gen),
    /// A sink.
    Sink(Sequences),
    /// A learning bridge.
    Bridge(Bridge),
    /// A router.
    Router(Box<Router<PathPacket<'m>>>),
}

/// A node, and where its ports lead.
pub struct Node<'m> {
    /// Its number in the path.
    pub number: usize,
    /// What it is.
    pub kind: Kind<'m>,
    /// For each port the other end of its link.
    pub ways: Box<[Way]>,
}

impl<'m> Node<'m> {
    /// Takes `count` packets from the front of `queue`, which came in by `port`.
    #[inline]
    pub fn serve(
        &mut self,
        port: u16,
        queue: &mut VecDeque<PathPacket<'m>>,
        mut count: usize,
        links: &mut Links<'m>,
        store: &mut Store<'m>,
        now_ns: u64,
    ) {
        while count > 0 {
            // At the end of the queue's memory the burst is in two pieces.
            let burst = count.min(queue.as_slices().0.len());
            match &mut self.kind {
                Kind::Gen(_) => queue.drain(..burst).for_each(|packet| store.deliver(packet)),
                Kind::Sink(sequences) => {
                    for packet in queue.drain(..burst) {
                        sequences.note(packet.as_ref());
                        store.deliver(packet);
                    }
                }
                Kind::Bridge(bridge) => {
                    forward(bridge, port, &self.ways, queue, burst, links, store, now_ns);
                }
                Kind::Router(router) => {
                    route(router, port, &self.ways, queue, burst, links, store, now_ns);
                }
            }
            count -= burst;
        }
        links.sent(&self.ways);
    }

    /// Sends what a generator has due, as far as there is credit for `room` packets; how many went. Whether there was not
    /// enough is `short`.
    pub fn feed(
        &mut self,
        room: usize,
        short: &mut bool,
        links: &mut Links<'m>,
        store: &mut Store<'m>,
        now_ns: u64,
    ) -> usize {
        let Kind::Gen(generator) = &mut self.kind else { return 0 };
        let due = generator.due(now_ns, BURST);
        *short |= due > room;
        let (len_bytes, way) = (generator.flows.size_bytes(), self.ways[0]);
        let meta = Meta { arrival_ns: now_ns, ..Meta::default() };
        let mut sent = 0;
        while sent < due.min(room) {
            let flows = &mut generator.flows;
            let write = |frame: &mut [u8], meta: &mut Meta| meta.flow_hash = flows.write_next(frame);
            let Some(packet) = store.make(len_bytes, meta, write) else {
                *short = true;
                break;
            };
            links.send(way, packet);
            sent += 1;
        }
        generator.note_sent(sent);
        if sent > 0 {
            links.sent(&self.ways);
        }
        sent
    }

    /// Does what a router or a generator has to do at some time; when to call again.
    pub fn poll(&mut self, links: &mut Links<'m>, store: &mut Store<'m>, now_ns: u64) -> Option<u64> {
        match &mut self.kind {
            Kind::Gen(generator) => generator.next_ns(),
            Kind::Sink(_) | Kind::Bridge(_) => None,
            Kind::Router(router) => {
                let next_ns = router.poll(now_ns);
                take_out(router, &self.ways, links, store, now_ns);
                links.sent(&self.ways);
                next_ns
            }
        }
    }

    /// What it keeps.
    pub fn held(&self) -> Count {
        match &self.kind {
            Kind::Router(router) => router.held(),
            _ => Count::default(),
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a worker, borrowed one by one")]
fn forward<'m>(
    bridge: &mut Bridge,
    port: u16,
    ways: &[Way],
    queue: &mut VecDeque<PathPacket<'m>>,
    burst: usize,
    links: &mut Links<'m>,
    store: &mut Store<'m>,
    now_ns: u64,
) {
    let mut egress = [Egress::Flood; BURST];
    bridge.forward(port, &queue.as_slices().0[..burst], now_ns, &mut egress);
    for (packet, egress) in queue.drain(..burst).zip(egress) {
        match egress {
            Egress::Port(out) => links.send(ways[usize::from(out)], packet),
            Egress::Drop(reason) => store.drop(packet, reason),
            Egress::Flood => {
                let mut out = bridge.flood_ports(port);
                // The packet itself goes to the first port, so that a flood to one port needs no frame.
                let first = out.next();
                for further in out {
                    if let Some(copy) = store.copy(&packet) {
                        links.send(ways[usize::from(further)], copy);
                    }
                }
                match first {
                    Some(first) => links.send(ways[usize::from(first)], packet),
                    None => store.drop(packet, DropReason::OwnSegment),
                }
            }
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a worker, borrowed one by one")]
fn route<'m>(
    router: &mut Router<PathPacket<'m>>,
    port: u16,
    ways: &[Way],
    queue: &mut VecDeque<PathPacket<'m>>,
    burst: usize,
    links: &mut Links<'m>,
    store: &mut Store<'m>,
    now_ns: u64,
) {
    let mut verdicts = [Verdict::Local; BURST];
    router.process(port, &mut queue.as_mut_slices().0[..burst], now_ns, &mut verdicts);
    for (packet, verdict) in queue.drain(..burst).zip(verdicts) {
        match verdict {
            Verdict::Forward(out) => links.send(ways[usize::from(out)], packet),
            Verdict::Hold(neighbour) => router.hold(neighbour, packet),
            Verdict::Local => store.deliver(packet),
            Verdict::Drop(reason) => store.drop(packet, reason),
        }
    }
    take_out(router, ways, links, store, now_ns);
}

/// Takes out what need not wait any longer, and what the router made itself.
fn take_out<'m>(
    router: &mut Router<PathPacket<'m>>,
    ways: &[Way],
    links: &mut Links<'m>,
    store: &mut Store<'m>,
    now_ns: u64,
) {
    while let Some((packet, verdict)) = router.release(now_ns) {
        match verdict {
            Verdict::Forward(out) => links.send(ways[usize::from(out)], packet),
            Verdict::Drop(reason) => store.drop(packet, reason),
            Verdict::Hold(_) | Verdict::Local => unreachable!("a router releases nothing to be kept"),
        }
    }
    // The frame comes first: what the router hands out is out of its keeping.
    while let Some((packet, out)) = store.make_if(|frame| {
        let (out, bytes) = router.made()?;
        frame[..bytes.len()].copy_from_slice(bytes);
        Some((bytes.len() as u16, out))
    }) {
        links.send(ways[usize::from(out)], packet);
    }
}
