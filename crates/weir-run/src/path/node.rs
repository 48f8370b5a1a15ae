//! What stands at the ends of links: generators, sinks, bridges and routers, each given a burst at a time.
//!
//! A bridge and a router are the core's ([`weir_core::net`]); here packets are moved as they decide. Each packet of a burst goes
//! exactly one way: on by a link, into a router's keeping, or out of the path ([`super::store`]).
//!
//! | node | ports | a packet that comes in |
//! |---|---|---|
//! | generator | 1 | is delivered: what others flood is not for it |
//! | sink | 1 | is checked ([`weir_path::traffic::sequence`]) and delivered |
//! | bridge | up to 64 | is forwarded or flooded; copies need frames, and are dropped as `no-frame` without |
//! | router | one for each interface | as [`weir_core::net::router`] says; what it makes itself waits until there is a frame, and what it cuts is dropped as `no-frame` without |
//!
//! Owner: one worker for each node (invariant 7).

use std::collections::VecDeque;

use weir_core::drops::Count;
use weir_core::net::bridge::{Bridge, Egress, PortSet};
use weir_core::net::router::{Router, Verdict};
use weir_core::packet::{Carried, Meta};

use super::links::{BURST, Links, Owner, Way};
use super::packet::PathPacket;
use super::shared::{Shared, Want};
use super::store::Store;
use weir_path::traffic::flows::Flows;
use weir_path::traffic::generator::Gen;
use weir_path::traffic::sequence::Sequences;

/// What a node is.
pub enum Kind<'m> {
    /// A generator.
    Gen(Gen, Flows),
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
    /// Of a generator, the ends its packets may come to.
    pub reach: Box<[u16]>,
    /// Of a generator, what it waits for.
    pub wants: Option<Want>,
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
                Kind::Gen(..) => store.deliver(queue, burst),
                Kind::Sink(sequences) => {
                    sequences.note_all(queue.as_slices().0[..burst].iter().map(AsRef::as_ref));
                    store.deliver(queue, burst);
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

    /// Sends what a generator has due, as far as there is credit; how many packets went.
    pub fn feed(
        &mut self,
        links: &mut Links<'m>,
        store: &mut Store<'m>,
        shared: &Shared,
        now_ns: u64,
    ) -> usize {
        let Kind::Gen(generator, flows) = &mut self.kind else { return 0 };
        if shared.is_stopping() {
            generator.stop();
        }
        self.wants = None;
        let due = generator.due(now_ns, BURST);
        if due == 0 {
            return 0;
        }
        if !shared.is_open(&self.reach) {
            self.wants = Some(Want::Room);
            return 0;
        }
        let room = store.spare();
        if room < due {
            self.wants = Some(Want::Frames);
        }
        let (len_bytes, way) = (flows.size_bytes(), self.ways[0]);
        let meta = Meta { arrival_ns: now_ns, ..Meta::default() };
        let count = due.min(room);
        let write = |frame: &mut [u8]| flows.write_next(frame);
        let sent = match way.owner {
            Owner::Own(place) => {
                let queue = links.queue(place);
                store.make_burst(count, len_bytes, meta, write, |packet| queue.push_back(packet))
            }
            Owner::Other(worker) => {
                let meta = Meta { port: way.end, ..meta };
                store.make_burst(count, len_bytes, meta, write, |packet| links.stage(worker, packet))
            }
        };
        if sent < count {
            // Another worker took what there was to spare.
            self.wants = Some(Want::Frames);
        }
        generator.note_sent(sent);
        links.sent(&self.ways);
        sent
    }

    /// Whether there is now what a generator waited for.
    pub fn has_what_it_wants(&self, store: &Store<'m>, shared: &Shared) -> bool {
        match self.wants {
            None => false,
            Some(Want::Room) => shared.is_open(&self.reach),
            Some(Want::Frames) => store.spare() > 0,
        }
    }

    /// Does what a router or a generator has to do at some time; when to call again.
    pub fn poll(&mut self, links: &mut Links<'m>, store: &mut Store<'m>, now_ns: u64) -> Option<u64> {
        match &mut self.kind {
            // Without credit it waits for that and not for a time.
            Kind::Gen(generator, _) => generator.next_ns().filter(|_| self.wants.is_none()),
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
    for run in egress[..burst].chunk_by(|one, next| one == next) {
        match run[0] {
            Egress::Port(out) => links.send_run(ways[usize::from(out)], queue, run.len()),
            Egress::Drop(reason) => store.drop(queue, run.len(), reason),
            Egress::Flood => {
                let out = bridge.flood_ports(port);
                queue.drain(..run.len()).for_each(|packet| flood(packet, out, ways, links, store));
            }
        }
    }
}

/// Sends a packet to each of the ports `out`.
#[cold]
fn flood<'m>(
    packet: PathPacket<'m>,
    mut out: PortSet,
    ways: &[Way],
    links: &mut Links<'m>,
    store: &mut Store<'m>,
) {
    // The packet itself goes to the first port, so that a flood to one port needs no frame.
    let first = out.next().expect("a bridge floods only if there is another port");
    for further in out {
        if let Some(copy) = store.copy(&packet) {
            links.send(ways[usize::from(further)], copy);
        }
    }
    links.send(ways[usize::from(first)], packet);
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
    router.process(port, &mut queue.as_mut_slices().0[..burst], &Carried, now_ns, &mut verdicts);
    for run in verdicts[..burst].chunk_by(|one, next| one == next) {
        match run[0] {
            Verdict::Forward(out) => links.send_run(ways[usize::from(out)], queue, run.len()),
            Verdict::Fragment(out) => {
                queue.drain(..run.len()).for_each(|packet| cut(router, packet, out, ways, links, store));
            }
            Verdict::Hold(neighbour) => {
                queue.drain(..run.len()).for_each(|packet| router.hold(neighbour, packet));
            }
            Verdict::Local => store.deliver(queue, run.len()),
            Verdict::Drop(reason) => store.drop(queue, run.len(), reason),
        }
    }
    take_out(router, ways, links, store, now_ns);
}

/// Sends a packet's fragments out, in its place.
#[cold]
fn cut<'m>(
    router: &mut Router<PathPacket<'m>>,
    packet: PathPacket<'m>,
    out: u16,
    ways: &[Way],
    links: &mut Links<'m>,
    store: &mut Store<'m>,
) {
    let way = ways[usize::from(out)];
    let made = store.cut(packet, router.mtu_bytes(out), |fragment| links.send(way, fragment));
    router.note_fragments(made);
}

/// Takes out what need not wait any longer, and what the router made itself.
fn take_out<'m>(
    router: &mut Router<PathPacket<'m>>,
    ways: &[Way],
    links: &mut Links<'m>,
    store: &mut Store<'m>,
    now_ns: u64,
) {
    while let Some((packet, verdict)) = router.release(&Carried, now_ns) {
        match verdict {
            Verdict::Forward(out) => links.send(ways[usize::from(out)], packet),
            Verdict::Fragment(out) => cut(router, packet, out, ways, links, store),
            Verdict::Drop(reason) => store.drop_one(packet, reason),
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
