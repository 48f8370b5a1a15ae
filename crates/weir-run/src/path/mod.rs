//! A path in memory: generators, sinks, bridges and routers, joined by links, run by workers.
//!
//! In reading order: [`spec`] is what a path is to be, and all that can be wrong with it; [`packet`] what moves; [`store`] where
//! packets begin and end, with their books; [`links`] how they get from node to node, on one worker or between two; [`node`]
//! what nodes do with a burst; [`worker`] one bounded pass over them; [`shared`] what workers tell each other; [`run`] the
//! threads; [`summary`] the proof at the end. [`testbed`] is the published bed of bridge, router and bridge.
//!
//! The hot path is a burst's, not a packet's. netisr's workstream ([`weir_core::dispatch::workstream`]) decides, counts and hands
//! over packet by packet, and so would take from bridges and routers the bursts that make them fast. Its rules are kept for
//! bursts instead: modes say when an end is served, order is the queue's, and a full queue holds generators (credit) and drops
//! nothing.
//!
//! Owner: a [`Path`] its caller, until [`run`] gives each worker to a thread of its own.

pub mod links;
pub mod node;
pub mod packet;
pub mod run;

pub mod shared;
pub mod spec;
pub mod store;
pub mod summary;
pub mod testbed;
pub mod worker;

use std::sync::Arc;

use weir_core::net::bridge::{AGEING_NS, Bridge, Egress};
use weir_core::net::router::Router;
use weir_ring::handoff;
use weir_ring::inject::Injector;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_ring::spsc::RETURN_SHARE;

use links::{Links, Message, Owner, Place, Way};
use node::{Kind, Node};
use shared::Shared;
use spec::{FRAME_BYTES, FRAMES_PER_WORKER, KindSpec, NodeSpec, PathError, PathSpec};
use store::Store;
use summary::Summary;
use weir_path::traffic::flows::Flows;
use weir_path::traffic::generator::Gen;
use weir_path::traffic::sequence::Sequences;
use worker::Worker;

/// Words from outside that may be under way to a worker.
const INJECT_ELEMENTS: usize = 16;

/// The packet memory of a path, which outlives it.
pub struct PathMemory {
    memory: Arc<FrameMemory>,
    pools: Vec<Pool>,
}

impl PathMemory {
    /// Memory for the path that `spec` describes.
    ///
    /// # Errors
    /// If there is no such path, or the kernel has no memory to give.
    pub fn new(spec: &PathSpec, cores: usize) -> Result<PathMemory, PathError> {
        spec.check(cores)?;
        let memory = FrameMemory::new(spec.frames, FRAME_BYTES).map_err(PathError::Memory)?;
        let pools = Pool::for_workers(memory, spec.workers);
        Ok(PathMemory { memory: Arc::clone(pools[0].memory()), pools })
    }

    /// The memory, and the pools of the workers.
    pub fn split(&mut self) -> (&FrameMemory, Vec<Pool>) {
        (&self.memory, std::mem::take(&mut self.pools))
    }
}

/// A path that nobody runs yet: its workers can be stepped, or given to threads.
pub struct Path<'m> {
    workers: Vec<Worker<'m>>,
    injectors: Vec<Injector<Message<'m>>>,
    shared: Arc<Shared>,
    links_total: usize,
    start_ns: u64,
}

impl<'m> Path<'m> {
    /// Makes a path that [`PathMemory::new`] has found to be right, in its memory.
    ///
    /// # Errors
    /// If the kernel does not give what it needs.
    pub fn new(
        spec: &PathSpec,
        memory: &'m FrameMemory,
        pools: Vec<Pool>,
        now_ns: u64,
    ) -> Result<Path<'m>, PathError> {
        let ring_elements = match spec.ring_slots {
            Some(slots) => slots - slots / RETURN_SHARE + 1,
            None => spec.ring_elements(),
        };
        let mesh = handoff::mesh(spec.workers, ring_elements, INJECT_ELEMENTS).map_err(PathError::Inbox)?;
        let shared = Arc::new(Shared::new(spec.workers, 2 * spec.links.len()));
        let mut injectors = Vec::new();
        let mut workers = Vec::new();
        let reserve = FRAMES_PER_WORKER / 2 * spec.workers as u32;
        for (number, ((inbox, outlets), pool)) in mesh.into_iter().zip(pools).enumerate() {
            injectors.push(inbox.injector());
            let ends = own_ends(spec, number);
            let links = Links::new(
                &ends,
                2 * spec.links.len(),
                spec.frames as usize,
                outlets,
                spec.dispatch,
                spec.qlimit,
            );
            let owned = spec.nodes.iter().enumerate().filter(|(_, node)| node.worker == number);
            let nodes = owned.map(|(place, node)| make_node(spec, place, node, now_ns));
            let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
            let store = Store::new(memory, pool, reserve);
            workers.push(Worker::new(number, inbox, links, store, nodes, Arc::clone(&shared)));
        }
        Ok(Path { workers, injectors, shared, links_total: spec.links.len(), start_ns: now_ns })
    }

    /// One pass of every worker in turn, on this thread. How many packets moved, and when there is something to do next.
    pub fn step(&mut self, now_ns: u64) -> (usize, Option<u64>) {
        self.workers.iter_mut().fold((0, None), |(moved, wake_ns), worker| {
            let pass = worker.pass(now_ns);
            (moved + pass.moved, [wake_ns, pass.wake_ns].into_iter().flatten().min())
        })
    }

    /// Makes all generators stop.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Whether all generators are done and nothing is inside.
    pub fn is_at_rest(&self) -> bool {
        self.shared.is_at_rest()
    }

    /// What became of it.
    pub fn summary(&mut self, now_ns: u64) -> Summary {
        summarise(&mut self.workers, self.links_total, self.start_ns, now_ns)
    }
}

fn summarise(workers: &mut [Worker<'_>], links_total: usize, start_ns: u64, now_ns: u64) -> Summary {
    let mut summary = Summary {
        workers: workers.iter().map(|worker| worker.summary(now_ns)).collect(),
        account: Default::default(),
        held: Default::default(),
        census: workers[0].parts().0.census(),
        sinks: workers.iter().flat_map(|worker| worker.sequences()).collect(),
        routers: workers.iter().flat_map(|worker| worker.routers()).collect(),
        links: vec![[0; 2]; links_total],
        elapsed_ns: 0,
    };
    for worker in workers {
        summary.account.merge(worker.parts().0.account());
        summary.held.merge(worker.held());
        for (end, served) in worker.parts().1.served() {
            summary.links[usize::from(end) / 2][usize::from(end) % 2] = served;
        }
    }
    let last_ns = summary.workers.iter().map(|worker| worker.last_ended_ns).max().unwrap_or(0);
    summary.elapsed_ns = last_ns.saturating_sub(start_ns);
    summary
}

/// The number of a link's end in the path.
fn end_number(link: usize, side: usize) -> u16 {
    (2 * link + side) as u16
}

/// The ends that come out at nodes of a worker.
fn own_ends(spec: &PathSpec, worker: usize) -> Vec<Place> {
    let mut ends = Vec::new();
    for (link, joined) in spec.links.iter().enumerate() {
        for (side, &(node, port)) in joined.ends.iter().enumerate() {
            if spec.nodes[node].worker == worker {
                let before = spec.nodes[..node].iter().filter(|other| other.worker == worker).count();
                let from_other = spec.nodes[joined.ends[1 - side].0].worker != worker;
                ends.push(Place { node: before as u16, port, end: end_number(link, side), from_other });
            }
        }
    }
    ends
}

/// Where the ports of a node lead.
fn ways_of(spec: &PathSpec, node: usize) -> Box<[Way]> {
    let worker = spec.nodes[node].worker;
    let mut ways: Vec<(u16, Way)> = Vec::new();
    for (link, joined) in spec.links.iter().enumerate() {
        for side in 0..2 {
            let (near, far) = (joined.ends[side], joined.ends[1 - side]);
            if near.0 != node {
                continue;
            }
            let end = end_number(link, 1 - side);
            let far_worker = spec.nodes[far.0].worker;
            let owner = if far_worker == worker {
                let place = own_ends(spec, worker).iter().position(|own| own.end == end);
                Owner::Own(place.expect("an end of its own node") as u16)
            } else {
                Owner::Other(far_worker as u16)
            };
            ways.push((near.1, Way { end, owner }));
        }
    }
    ways.sort_unstable_by_key(|(port, _)| *port);
    ways.into_iter().map(|(_, way)| way).collect()
}

/// The ends that packets of a node may come to: those its links lead to, and those that the nodes there lead to.
fn reach_of(spec: &PathSpec, node: usize) -> Box<[u16]> {
    let mut reach: Vec<u16> = Vec::new();
    let mut nodes = vec![node];
    let mut next = 0;
    while let Some(&near) = nodes.get(next) {
        next += 1;
        for (link, joined) in spec.links.iter().enumerate() {
            for side in 0..2 {
                let (from, to) = (joined.ends[side].0, joined.ends[1 - side].0);
                if from != near {
                    continue;
                }
                let end = end_number(link, 1 - side);
                if !reach.contains(&end) {
                    reach.push(end);
                }
                let passes_on = matches!(spec.nodes[to].kind, KindSpec::Bridge { .. } | KindSpec::Router(_));
                if passes_on && !nodes.contains(&to) {
                    nodes.push(to);
                }
            }
        }
    }
    reach.into()
}

fn make_node<'m>(
    spec: &PathSpec,
    number: usize,
    node: &NodeSpec,
    now_ns: u64,
) -> Result<Node<'m>, PathError> {
    let name = || node.name.clone();
    let ways = ways_of(spec, number);
    let kind = match &node.kind {
        KindSpec::Gen(spec) => {
            let flows = Flows::new(&spec.traffic);
            let flows = flows.map_err(|error| PathError::Traffic { node: name(), error })?;
            Kind::Gen(Gen::new(spec.packets_per_s, spec.until), flows)
        }
        KindSpec::Sink { flows } => Kind::Sink(Sequences::new(*flows)),
        KindSpec::Bridge { stations_max, stations } => {
            let mut bridge = Bridge::new(*stations_max, AGEING_NS, crate::seed::random_seed());
            (0..ways.len() as u16).for_each(|port| bridge.add_port(port));
            for (mac, port) in stations {
                // What hearing it does: a frame from it to nobody.
                let frame = [&[0xff; 6][..], &mac.0, &[0; 2]].concat();
                bridge.forward(*port, &[frame], now_ns, &mut [Egress::Flood]);
            }
            Kind::Bridge(bridge)
        }
        KindSpec::Router(settings) => {
            let router = Router::new(settings.clone(), now_ns);
            Kind::Router(Box::new(router.map_err(|error| PathError::Router { node: name(), error })?))
        }
    };
    let reach = if matches!(kind, Kind::Gen(..)) { reach_of(spec, number) } else { Box::default() };
    Ok(Node { number, kind, ways, reach, wants: None })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
