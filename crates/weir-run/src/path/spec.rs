//! What a path is to be: nodes, the links between their ports, and the workers that run them. Plain data, to be read from a file
//! or written in place.
//!
//! Owner: whoever describes a path. [`PathSpec::check`] finds everything that is wrong with one, before anything is made.

use std::fmt;

use smoltcp::wire::EthernetAddress;
use weir_core::dispatch::protocol::Mode;
use weir_core::net::bridge::PORTS_MAX;
use weir_core::net::outbox::MADE_BYTES_MAX;
use weir_core::net::router::{RouterError, RouterSettings};
use weir_ring::handoff::{InboxError, SOURCES_MAX};
use weir_ring::memory::MemoryError;
use weir_ring::spsc::{self, CapacityError};

use super::links::BURST;
use weir_path::traffic::flows::{SIZE_BYTES_MAX, TrafficError};
use weir_path::traffic::generator::GenSpec;

/// Frames that each worker needs: what its pool may keep for itself, a burst on its way, and a burst of copies.
pub const FRAMES_PER_WORKER: u32 = 4 * BURST as u32;

/// A frame: a longest packet, and a line more than 2 KiB so that the headers of a burst do not share a few sets of the cache.
pub const FRAME_BYTES: u32 = 2048 + 64;

const _: () = assert!(MADE_BYTES_MAX <= FRAME_BYTES as usize && SIZE_BYTES_MAX as u32 + 64 <= FRAME_BYTES);

/// A path.
#[derive(Clone, Debug)]
pub struct PathSpec {
    /// Its nodes.
    pub nodes: Vec<NodeSpec>,
    /// Its links.
    pub links: Vec<LinkSpec>,
    /// How many workers run it.
    pub workers: usize,
    /// Whether each worker stays on a core of its own.
    pub bindthreads: bool,
    /// When what comes to a node is handled.
    pub dispatch: Mode,
    /// Packets that wait at one end of a link before generators are held.
    pub qlimit: usize,
    /// Frames of packet memory.
    pub frames: u32,
    /// Slots of each ring between two workers; `None` for as many as the frames need.
    pub ring_slots: Option<usize>,
}

impl Default for PathSpec {
    /// An empty path on one worker, with netisr's defaults and frames for two workers.
    fn default() -> PathSpec {
        PathSpec {
            nodes: Vec::new(),
            links: Vec::new(),
            workers: 1,
            bindthreads: true,
            dispatch: Mode::Direct,
            qlimit: 256,
            frames: 2048,
            ring_slots: None,
        }
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// What it is called.
    pub name: String,
    /// The worker that owns it.
    pub worker: usize,
    /// What it is.
    pub kind: KindSpec,
}

/// What a node is to be.
#[derive(Clone, Debug)]
pub enum KindSpec {
    /// A generator, with one port.
    Gen(GenSpec),
    /// A sink for flows numbered below `flows`, with one port.
    Sink {
        /// How many.
        flows: u32,
    },
    /// A learning bridge with as many ports as it has links.
    Bridge {
        /// Stations it can know.
        stations_max: usize,
        /// Stations that are heard, each on a port, before anything else.
        stations: Vec<(EthernetAddress, u16)>,
    },
    /// A router with a port for each of its interfaces.
    Router(RouterSettings),
}

/// A link between two nodes: the node and its port at either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Nodes by their place in the path's list, and their ports.
    pub ends: [(usize, u16); 2],
}

/// Why a path cannot be made or run.
#[derive(Debug)]
pub enum PathError {
    /// No worker.
    NoWorkers,
    /// More workers than cores this process may use.
    Workers {
        /// How many workers.
        workers: usize,
        /// How many cores it may use.
        cores: usize,
    },
    /// More workers than can hand to one.
    TooManyWorkers(usize),
    /// A node is owned by a worker that is not there.
    NoWorker {
        /// The node.
        node: String,
        /// The worker.
        worker: usize,
        /// How many workers.
        workers: usize,
    },
    /// Two nodes of one name.
    NameTwice(String),
    /// A link at a node that is not there.
    NoNode {
        /// The link, by its place.
        link: usize,
        /// The node.
        node: usize,
    },
    /// A link from a node to itself.
    Loop {
        /// The link, by its place.
        link: usize,
        /// The node.
        node: String,
    },
    /// Two links at one port.
    PortTwice {
        /// The node.
        node: String,
        /// The port.
        port: u16,
    },
    /// A port without a link, or a link at a port the node does not have.
    Ports {
        /// The node.
        node: String,
        /// How many ports it has.
        has: usize,
        /// How many are linked.
        linked: usize,
    },
    /// Too few frames.
    Frames {
        /// How many there are.
        frames: u32,
        /// The least that will do.
        least: u64,
    },
    /// A ring that cannot be, or is too short.
    Ring {
        /// Its slots.
        slots: usize,
        /// The least that will do.
        least: usize,
    },
    /// A limit of 0.
    Qlimit,
    /// A generator.
    Traffic {
        /// The node.
        node: String,
        /// What is wrong with it.
        error: TrafficError,
    },
    /// A router.
    Router {
        /// The node.
        node: String,
        /// What is wrong with it.
        error: RouterError,
    },
    /// The kernel has no memory to give.
    Memory(MemoryError),
    /// A hand-off could not be made.
    Inbox(InboxError),
    /// A worker could not be started.
    Start {
        /// The worker.
        worker: usize,
        /// Why.
        why: String,
    },
    /// A worker died; the others were told to end.
    Died {
        /// The worker.
        worker: usize,
        /// Why.
        why: String,
    },
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathError::NoWorkers => f.write_str("0 workers: a path needs at least 1"),
            PathError::Workers { workers, cores } => write!(
                f,
                "{workers} workers, but this process may use {cores} cores, and each worker wants one of its own: give at \
                 most {cores}"
            ),
            PathError::TooManyWorkers(workers) => {
                write!(f, "{workers} workers: give at most {}", SOURCES_MAX + 1)
            }
            PathError::NoWorker { node, worker, workers } => {
                write!(f, "node {node} is given to worker {worker}; there are workers 0 to {}", workers - 1)
            }
            PathError::NameTwice(name) => write!(f, "two nodes are called {name}: rename one"),
            PathError::NoNode { link, node } => write!(f, "link {link}: there is no node {node}"),
            PathError::Loop { link, node } => {
                write!(f, "link {link} joins {node} to itself: a link joins two nodes")
            }
            PathError::PortTwice { node, port } => {
                write!(f, "two links at port {port} of {node}: give each its own")
            }
            PathError::Ports { node, has, linked } => {
                write!(
                    f,
                    "{node} has {has} ports, and links at {linked} of them: link each of 0 to {} once",
                    has - 1
                )
            }
            PathError::Frames { frames, least } => {
                write!(f, "{frames} frames are too few for this path: give at least {least}")
            }
            PathError::Ring { slots, least } if slots.is_power_of_two() => {
                write!(
                    f,
                    "a ring of {slots} slots is too short for these frames: give {least}, or fewer frames"
                )
            }
            PathError::Ring { slots, .. } => CapacityError(*slots).fmt(f),
            PathError::Qlimit => {
                f.write_str("a queue limit of 0 would hold generators for ever: give at least 1")
            }
            PathError::Traffic { node, error } => write!(f, "{node}: {error}"),
            PathError::Router { node, error } => write!(f, "{node}: {error}"),
            PathError::Memory(error) => error.fmt(f),
            PathError::Inbox(error) => error.fmt(f),
            PathError::Start { worker, why } => write!(f, "worker {worker} cannot start: {why}"),
            PathError::Died { worker, why } => write!(f, "worker {worker} died: {why}"),
        }
    }
}

impl std::error::Error for PathError {}

impl PathSpec {
    /// Finds what is wrong with it, on a machine where so many cores may be used.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, cores: usize) -> Result<(), PathError> {
        if self.workers == 0 {
            return Err(PathError::NoWorkers);
        }
        if self.workers > cores {
            return Err(PathError::Workers { workers: self.workers, cores });
        }
        if self.workers > SOURCES_MAX + 1 {
            return Err(PathError::TooManyWorkers(self.workers));
        }
        if self.qlimit == 0 {
            return Err(PathError::Qlimit);
        }
        let mut ports: Vec<Vec<u16>> = vec![Vec::new(); self.nodes.len()];
        for (link, spec) in self.links.iter().enumerate() {
            for (node, port) in spec.ends {
                let linked = ports.get_mut(node).ok_or(PathError::NoNode { link, node })?;
                if linked.contains(&port) {
                    return Err(PathError::PortTwice { node: self.nodes[node].name.clone(), port });
                }
                linked.push(port);
            }
            if spec.ends[0].0 == spec.ends[1].0 {
                return Err(PathError::Loop { link, node: self.nodes[spec.ends[0].0].name.clone() });
            }
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.check_node(node, &ports[place])?;
            if self.nodes[..place].iter().any(|other| other.name == node.name) {
                return Err(PathError::NameTwice(node.name.clone()));
            }
        }
        if u64::from(self.frames) < self.frames_min() {
            return Err(PathError::Frames { frames: self.frames, least: self.frames_min() });
        }
        let least = spsc::capacity_for(self.ring_elements());
        match self.ring_slots {
            Some(slots) if !slots.is_power_of_two() || slots < least => Err(PathError::Ring { slots, least }),
            _ => Ok(()),
        }
    }

    fn check_node(&self, node: &NodeSpec, linked: &[u16]) -> Result<(), PathError> {
        let name = || node.name.clone();
        if node.worker >= self.workers {
            return Err(PathError::NoWorker { node: name(), worker: node.worker, workers: self.workers });
        }
        let has = match &node.kind {
            KindSpec::Gen(spec) => {
                spec.traffic.check().map_err(|error| PathError::Traffic { node: name(), error })?;
                1
            }
            KindSpec::Sink { .. } => 1,
            KindSpec::Bridge { .. } => linked.len().clamp(1, PORTS_MAX),
            KindSpec::Router(settings) => settings.interfaces.len().max(1),
        };
        let right = linked.len() == has && linked.iter().all(|&port| usize::from(port) < has);
        if right { Ok(()) } else { Err(PathError::Ports { node: name(), has, linked: linked.len() }) }
    }

    /// The least frames with which it runs: so many for each worker, and what routers may keep.
    pub fn frames_min(&self) -> u64 {
        let kept = self.nodes.iter().map(|node| match &node.kind {
            KindSpec::Router(settings) => settings.held_max as u64,
            _ => 0,
        });
        u64::from(FRAMES_PER_WORKER) * self.workers as u64 + kept.sum::<u64>()
    }

    /// What a ring between two workers must have room for: every frame, and a word of credit for each pass.
    pub fn ring_elements(&self) -> usize {
        self.frames as usize + BURST
    }
}
