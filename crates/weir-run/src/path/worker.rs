//! One worker of a path: its nodes and its ends of links, moved on in bounded passes. It knows no thread and no clock.
//!
//! A pass, in order:
//! 1. of what each other worker sent, a burst is put into the queues of its ends; the rest waits in the ring, where a long queue
//!    costs no cache;
//! 2. every end where something waits ([`super::links`]) hands its node a burst;
//! 3. every generator sends what is due, at most a burst, if there is credit: frames to spare, and no full queue on its way;
//! 4. every end that has a turn by what was sent in this pass hands its node a burst;
//! 5. routers do what is due;
//! 6. what is bound for other workers is published, with at most one kick each.
//!
//! Generators come after what waits, so that their packets mostly find an empty queue, at the front of its memory.
//!
//! Owner: whoever calls [`Worker::pass`]: a thread ([`super::run`]), or a test that steps it through virtual time.

use std::sync::Arc;

use weir_core::drops::Count;
use weir_core::net::router::RouterCounts;
use weir_core::shaper::blocked::Blocked;
use weir_ring::doorbell::Parked;
use weir_ring::handoff::Inbox;

use super::links::{BURST, Links, Message};
use super::node::{Kind, Node};
use super::shared::{Shared, Told};
use super::store::Store;
use super::summary::WorkerSummary;
use weir_path::traffic::sequence::SequenceCounts;

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Packets that moved.
    pub moved: usize,
    /// When there is something to do, if nothing comes before.
    pub wake_ns: Option<u64>,
    /// Whether a generator waits for credit.
    pub short: bool,
}

/// One worker.
pub struct Worker<'m> {
    number: usize,
    inbox: Inbox<Message<'m>>,
    links: Links<'m>,
    store: Store<'m>,
    nodes: Box<[Node<'m>]>,
    shared: Arc<Shared>,
    blocked: Blocked,
    blocked_times: u64,
    is_short: bool,
    last_ended_ns: u64,
    passes: u64,
    /// Set by the thread when it ends.
    pub(super) cpu_ns: u64,
}

impl<'m> Worker<'m> {
    /// A worker of these parts.
    pub fn new(
        number: usize,
        inbox: Inbox<Message<'m>>,
        links: Links<'m>,
        store: Store<'m>,
        nodes: Vec<Node<'m>>,
        shared: Arc<Shared>,
    ) -> Worker<'m> {
        let mut worker = Worker {
            number,
            inbox,
            links,
            store,
            nodes: nodes.into(),
            shared,
            blocked: Blocked::default(),
            blocked_times: 0,
            is_short: false,
            last_ended_ns: 0,
            passes: 0,
            cpu_ns: 0,
        };
        worker.tell();
        worker
    }

    /// Moves what can be moved now.
    pub fn pass(&mut self, now_ns: u64) -> Pass {
        let Worker { inbox, links, store, nodes, shared, .. } = self;
        self.passes += 1;
        let ended = store.ended();
        inbox.drain_some(BURST, |_, message| match message {
            Message::Packet(packet) => links.arrive(packet),
            Message::Look => {}
        });
        links.begin_pass();
        let mut pass = Pass::default();
        let mut turn = 0;
        pass.moved += serve(&mut turn, nodes, links, store, now_ns);
        for node in nodes.iter_mut() {
            pass.moved += node.feed(links, store, shared, now_ns);
            pass.short |= node.wants.is_some();
        }
        pass.moved += serve(&mut turn, nodes, links, store, now_ns);
        for node in nodes.iter_mut() {
            let node_ns = node.poll(links, store, now_ns);
            pass.wake_ns = [pass.wake_ns, node_ns].into_iter().flatten().min();
        }
        if store.ended() != ended {
            self.last_ended_ns = now_ns;
        }
        self.settle(ended, &pass, now_ns);
        pass
    }

    /// Ends a pass: the books are told, then what is staged is published.
    fn settle(&mut self, ended_before: u64, pass: &Pass, now_ns: u64) {
        if pass.short != self.is_short {
            self.is_short = pass.short;
            self.blocked_times += u64::from(pass.short);
            if pass.short { self.blocked.begin(now_ns) } else { self.blocked.end(now_ns) }
        }
        self.tell();
        let room_again = self.links.tell_full(&self.shared, self.inbox.left());
        let frames_again = self.store.ended() != ended_before;
        let hungry = self.shared.take_hungry(self.number, frames_again, room_again);
        self.links.flush(hungry);
    }

    fn tell(&mut self) {
        let account = self.store.account();
        let generates = |node: &Node| matches!(&node.kind, Kind::Gen(generator, _) if !generator.is_done());
        self.shared.tell(
            self.number,
            &Told {
                accepted: account.accepted.packets,
                ended: self.store.ended(),
                delivered: account.delivered.packets,
                delivered_bytes: account.delivered.bytes,
                done: !self.nodes.iter().any(generates),
            },
        );
    }

    /// A worker that this one was to hand something to, and that has gone: this one cannot go on.
    pub fn gone(&self) -> Option<u16> {
        self.links.gone()
    }

    /// Whether it was told to end.
    pub fn is_stopped(&self) -> bool {
        self.shared.is_ending()
    }

    /// Says that it has work, for those that hand to it.
    pub fn running(&mut self) {
        self.inbox.running();
    }

    /// Says that it has none and keeps looking.
    pub fn spinning(&mut self) {
        self.inbox.spinning();
    }

    /// Says that it will block, unless there is something to do after all.
    pub fn park(&mut self) -> Option<Parked<'_>> {
        let Worker { number, inbox, links, store, nodes, shared, .. } = self;
        nodes.iter().filter_map(|node| node.wants).for_each(|want| shared.set_hungry(*number, want));
        // In deferred mode the last pass may have left something for the next.
        inbox.park(|| !links.is_empty() || nodes.iter().any(|node| node.has_what_it_wants(store, shared)))
    }

    /// What sinks have seen.
    pub fn sequences(&self) -> impl Iterator<Item = (usize, SequenceCounts)> + '_ {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Sink(sequences) => Some((node.number, *sequences.counts())),
            _ => None,
        })
    }

    /// What routers did besides forwarding.
    pub fn routers(&self) -> impl Iterator<Item = (usize, RouterCounts)> + '_ {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Router(router) => Some((node.number, router.counts())),
            _ => None,
        })
    }

    /// What is inside, counted in the queues themselves; what lies in the rings to it is taken out first.
    pub fn held(&mut self) -> Count {
        let links = &mut self.links;
        self.inbox.drain(|_, message| {
            if let Message::Packet(packet) = message {
                links.arrive(packet);
            }
        });
        let mut held = self.links.held();
        self.nodes.iter().for_each(|node| held.merge(node.held()));
        held
    }

    /// Its counters.
    pub fn summary(&self, now_ns: u64) -> WorkerSummary {
        WorkerSummary {
            account: self.store.account().clone(),
            doorbell: self.inbox.counts(),
            outlets: self.links.outlet_counts(),
            passes: self.passes,
            blocked: self.blocked_times,
            blocked_ns: self.blocked.total_ns(now_ns),
            cpu_ns: self.cpu_ns,
            last_ended_ns: self.last_ended_ns,
        }
    }

    /// What the store and the links of the worker say, for a summary.
    pub(super) fn parts(&self) -> (&Store<'m>, &Links<'m>) {
        (&self.store, &self.links)
    }
}

/// Serves the ends that have a turn, from turn `turn` on; how many packets moved.
#[inline]
fn serve<'m>(
    turn: &mut usize,
    nodes: &mut [Node<'m>],
    links: &mut Links<'m>,
    store: &mut Store<'m>,
    now_ns: u64,
) -> usize {
    let mut moved = 0;
    while let Some((node, port, mut queue, count)) = links.turn(*turn) {
        nodes[usize::from(node)].serve(port, &mut queue, count, links, store, now_ns);
        links.put_back(*turn, queue);
        moved += count;
        *turn += 1;
    }
    moved
}
