//! The plan of a path: its ports, the stages between them, and the links that join these.
//!
//! ```text
//! port 0 ---+                          ports    packets come from them and go to them; each may have a limit
//!           bridge --- router --- port 2        stages   each decides where a packet goes on
//! port 1 ---+                          links    each joins two attachments, both ways
//! ```
//!
//! Rule: every port, and every port of a stage, is attached. A packet that leaves one goes by the first link with it, so a link that only leads to
//! an attachment comes after the one that leads on from there. A wire is the plan of two ports and one link.
//!
//! Pure: the reader of a file or a command line makes a plan; [`crate::assembly`] refuses an impossible one, and builds a [`crate::worker`]
//! from a possible one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_core::net::router::RouterSettings;
use weir_core::shaper::tbf::TbfConfig;

use crate::classes::Classes;
use crate::dispatch::DispatchPlan;
use crate::esp::deferral;
use crate::esp::plan::EspPlan;

/// The plan of a path.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Its ports.
    pub ports: Vec<PortPlan>,
    /// Its stages.
    pub stages: Vec<StagePlan>,
    /// The links, each between two attachments.
    pub links: Vec<[Attachment; 2]>,
    /// Wires whose packets are dispatched to workers ([`crate::dispatch::spread`] puts the stages for that into the plan, and the queues of
    /// ESP).
    pub dispatched: Vec<WireDispatch>,
}

/// A wire whose packets are dispatched to workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireDispatch {
    /// Its ports.
    pub ports: [usize; 2],
    /// Settings of dispatch, by their keys ([`weir_core::dispatch::settings`]).
    pub settings: Vec<(String, String)>,
}

/// The plan of a port.
#[derive(Clone, Debug)]
pub struct PortPlan {
    /// The interface.
    pub interface: String,
    /// The limit of the packets that leave by the port.
    pub limits: Option<TbfConfig>,
    /// The classes that share the limit.
    pub classes: Option<Arc<Classes>>,
    /// True if the interface may be missing at first: the port is closed until it is there.
    pub is_optional: bool,
}

/// The plan of a stage.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Its name.
    pub name: String,
    /// The kind of the stage.
    pub kind: StageKind,
}

/// The kinds of stages.
#[derive(Clone, Debug)]
pub enum StageKind {
    /// A learning bridge.
    Bridge {
        /// The number of ports.
        ports: u16,
        /// The most stations that the bridge remembers.
        stations_max: usize,
        /// The time for which it remembers a station, in nanoseconds.
        ageing_ns: u64,
    },
    /// A router, with a port for each of its interfaces; a host has one for each socket too, and one for TCP.
    Router(Box<RouterSettings>),
    /// One worker's part of dispatch, which takes packets to the workers of their flows.
    Dispatch(DispatchPlan),
    /// An ESP, which seals packets that come in inside, its first port, and opens those that come in outside, its second. Where packets
    /// wait first, two more ports lead to the queues ([`crate::esp::QUEUES`]), and one to each sealer.
    Esp(Box<EspPlan>),
    /// A sealer, which seals and opens for an ESP stage, by its only port ([`crate::dispatch::spread`] puts it into the plan).
    Sealer,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// A port, by its place in the plan.
    Port(usize),
    /// A stage by its place in the plan, and the number of its port.
    Stage(usize, u16),
}

impl Plan {
    /// A wire: two ports, each of which leads to the other.
    pub fn wire(ports: [PortPlan; 2]) -> Plan {
        Plan {
            ports: ports.into(),
            stages: Vec::new(),
            links: vec![[Attachment::Port(0), Attachment::Port(1)]],
            dispatched: Vec::new(),
        }
    }

    /// The attachment at the other end of the first link of `near`.
    pub fn far_end(&self, near: Attachment) -> Option<Attachment> {
        self.links.iter().find_map(|&[one, other]| match (one == near, other == near) {
            (true, _) => Some(other),
            (_, true) => Some(one),
            _ => None,
        })
    }

    /// The ports by which packets that came in by `port` may leave: by this one too, if a router can send them back. The ports that lead
    /// back into the path are among them, and the ports that are reached from these.
    pub fn reached_from(&self, port: usize) -> Vec<usize> {
        let reached = self.hops_from(port).into_iter().filter_map(|[_, to]| match to {
            Attachment::Port(out) => Some(out),
            Attachment::Stage(..) => None,
        });
        let mut reached: Vec<_> = reached.collect();
        reached.sort_unstable();
        reached
    }

    /// The links that packets that came in by `port` may take, each once: the attachment that they leave, and the one that they come to.
    pub fn hops_from(&self, port: usize) -> Vec<[Attachment; 2]> {
        // A plan of many ports is looked at from each of them, so nothing is searched for in a list here.
        let mut far_ends = HashMap::new();
        for &[one, other] in &self.links {
            far_ends.entry(one).or_insert(other);
            far_ends.entry(other).or_insert(one);
        }
        let (mut hops, mut left) = (Vec::new(), HashSet::new());
        let mut next = vec![Attachment::Port(port)];
        while let Some(from) = next.pop() {
            let Some(&to) = far_ends.get(&from).filter(|_| left.insert(from)) else { continue };
            hops.push([from, to]);
            match to {
                Attachment::Stage(stage, entry) => {
                    let kind = &self.stages[stage].kind;
                    next.extend(kind.exits(entry).into_iter().map(|out| Attachment::Stage(stage, out)));
                }
                Attachment::Port(_) if self.is_queue(from) => next.push(to),
                Attachment::Port(_) => {}
            }
        }
        hops
    }

    /// Returns whether packets that leave by this port of a stage wait in a queue and come back.
    fn is_queue(&self, at: Attachment) -> bool {
        match at {
            Attachment::Stage(stage, port) => self.stages[stage].kind.queue_packets(port).is_some(),
            Attachment::Port(_) => false,
        }
    }
}

impl StageKind {
    /// The number of ports of the stage.
    pub fn ports(&self) -> u16 {
        match self {
            StageKind::Bridge { ports, .. } => *ports,
            StageKind::Router(settings) => {
                settings.interfaces.len() as u16 + settings.host.map_or(0, |host| host.ports())
            }
            StageKind::Dispatch(plan) => plan.ports(),
            StageKind::Esp(plan) => deferral::ports(&plan.dispatch),
            StageKind::Sealer => 1,
        }
    }

    /// The packets that fit into the queue that a port leads to and back from; none if the port leads to no queue.
    pub(crate) fn queue_packets(&self, port: u16) -> Option<u64> {
        match self {
            StageKind::Bridge { .. } | StageKind::Router(_) | StageKind::Sealer => None,
            StageKind::Dispatch(plan) => plan.queue_packets(port),
            StageKind::Esp(plan) => {
                deferral::QUEUES.contains(&port).then_some(u64::from(plan.dispatch.queue_packets))
            }
        }
    }

    /// The number of sealers of the stage.
    pub fn sealers(&self) -> usize {
        match self {
            StageKind::Esp(plan) => plan.dispatch.sealers().into(),
            _ => 0,
        }
    }

    /// Returns whether packets may leave by a port.
    pub(crate) fn is_exit(&self, port: u16) -> bool {
        match self {
            StageKind::Bridge { .. } | StageKind::Router(_) | StageKind::Esp(_) | StageKind::Sealer => true,
            StageKind::Dispatch(plan) => (0..plan.ports()).any(|entry| plan.exits(entry).contains(&port)),
        }
    }

    /// The most packets that may wait to leave by the port of the path that is joined to this port of the stage, if the stage limits them.
    pub(crate) fn held_packets_max(&self, port: u16) -> Option<u64> {
        match self {
            StageKind::Bridge { .. } | StageKind::Sealer => None,
            StageKind::Router(settings) => {
                let is_socket = usize::from(port) >= settings.interfaces.len();
                settings.host.filter(|_| is_socket).map(|host| host.held_packets_max)
            }
            StageKind::Dispatch(plan) => plan.held_packets_max(port),
            StageKind::Esp(plan) if plan.dispatch.drops_when_full => Some(u64::MAX),
            StageKind::Esp(_) => self.queue_packets(port),
        }
    }

    /// The ports by which packets that come in by `entry` may leave: by this one too, if a router can send them back.
    pub fn exits(&self, entry: u16) -> Vec<u16> {
        match self {
            StageKind::Bridge { ports, .. } => (0..*ports).filter(|&exit| exit != entry).collect(),
            StageKind::Router(_) => (0..self.ports()).collect(),
            StageKind::Dispatch(plan) => plan.exits(entry),
            StageKind::Esp(plan) => deferral::exits(&plan.dispatch, entry),
            StageKind::Sealer => vec![entry],
        }
    }
}
