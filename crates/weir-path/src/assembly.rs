//! The assembly of a worker from a plan: the ports that it owns, and the way that each of them, and each port of a stage, leads.
//!
//! Rule: an egress queue is with the owner of its port, and the end of a link at another worker is reached over a ring.
//!
//! Owner: the caller, until it has the worker.

use std::fmt;

use weir_core::net::router::RouterError;
use weir_core::shaper::tbf::TbfError;

use crate::between::{Between, Way};
use crate::departures::{Crosses, Departures, number_of};
use crate::egress::EgressQueues;
use crate::end::{End, Gone};
use crate::esp::{INSIDE, OUTSIDE};
use crate::exit::Exit;
use crate::frames::Frames;
use crate::intake::{Intake, QUANTUM_BYTES};
use crate::landings::Landings;
use crate::owners::Portion;
use crate::plan::{Attachment, Plan};
use crate::port::{ReceiveQueues, TransmitRing};
use crate::stage::Stage;
use crate::worker::{Feeding, Worker};

/// The shares of memory and of a pass that a worker may use.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// The most packets inside that are bound for one port.
    pub held_packets_max: u64,
    /// The most packets that a poll brings.
    pub poll_budget_max: u32,
    /// The receive queues that a port that is not there yet may have.
    pub queues_gone: usize,
    /// A random number, so that no sender can prepare addresses that collide.
    pub seed: u64,
}

/// The reason why a worker cannot be made of a plan.
#[derive(Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The limits of the packets that leave by a port cannot be kept.
    Limits(String, TbfError),
    /// A router cannot have its settings.
    Router(String, RouterError),
    /// A port is joined to nothing.
    Unattached(String),
    /// A link joins ports or stages of two workers that cannot reach each other.
    Apart,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Limits(port, error) => write!(f, "the limit of what leaves by {port}: {error}"),
            PlanError::Router(router, error) => write!(f, "router {router}: {error}"),
            PlanError::Unattached(what) => write!(f, "{what} is joined to nothing"),
            PlanError::Apart => f.write_str("a link joins what two workers own who cannot reach each other"),
        }
    }
}

impl std::error::Error for PlanError {}

impl<P: ReceiveQueues + TransmitRing> Worker<P> {
    /// A worker that owns its portion of a plan: these ports, each with its place there, in order, and the stages; and its ways to the
    /// others, if links lead to any. Ports of its portion that are missing are not there yet.
    ///
    /// # Errors
    /// If the plan cannot be carried out with these.
    pub fn new(
        portion: Portion,
        ports: Vec<(usize, P)>,
        frames: Frames,
        others: Option<(Departures, Landings)>,
        shares: Shares,
        now_ns: u64,
    ) -> Result<Worker<P>, PlanError> {
        let Shares { held_packets_max, poll_budget_max, queues_gone, seed } = shares;
        let Portion { plan, owners, worker } = portion;
        let is_apart = |&[one, other]: &[Attachment; 2]| owners.of(one) != owners.of(other);
        if plan.links.iter().any(is_apart) && others.is_none() {
            return Err(PlanError::Apart);
        }
        let (over, mut landings) = others.unzip();
        let is_here = |index: usize| ports.iter().any(|(here, _)| *here == index);
        let own: Vec<_> = (0..plan.ports.len()).filter(|&port| owners.ports[port] == worker).collect();
        let absent: Vec<_> = own.iter().copied().filter(|&port| !is_here(port)).collect();
        let mut receive_queues = vec![0; plan.ports.len()];
        ports.iter().for_each(|(index, port)| receive_queues[*index] = port.queues());
        absent.iter().for_each(|&index| receive_queues[index] = queues_gone);
        let fed = match &landings {
            None => fed_by(plan, own.into_iter()),
            Some(landings) => {
                receive_queues = landings.receive_queues().to_vec();
                let mut fed = fed_by(plan, 0..plan.ports.len());
                fed.retain(|(out, _)| owners.ports[*out] == worker);
                fed
            }
        };
        let mut egress = EgressQueues::new(&receive_queues, !plan.stages.is_empty());
        for &(out, _) in &fed {
            // More may come than the bound says: of the last poll, of a port that is taken over again, each time what all its queues had on
            // offer, made by stages, and of workers that polled before they saw that there is no room. Slots that are not used take no memory.
            let packets_max = frames.memory().frames() as usize;
            let planned = &plan.ports[out];
            let of_stage = match plan.far_end(Attachment::Port(out)) {
                Some(Attachment::Stage(stage, port)) => plan.stages[stage].kind.held_packets_max(port),
                _ => None,
            };
            let held_packets_max = of_stage.unwrap_or(held_packets_max);
            egress
                .add(out, planned.limits, held_packets_max, packets_max, QUANTUM_BYTES, now_ns)
                .map_err(|error| PlanError::Limits(planned.interface.clone(), error))?;
        }
        let owned = |&number: &usize| owners.stages[number] == worker;
        let owned: Vec<_> = (0..plan.stages.len()).filter(owned).collect();
        let here = |at: Attachment| match at {
            Attachment::Stage(stage, port) => Some(Way::Stage(owned.binary_search(&stage).ok()?, port)),
            Attachment::Port(port) => egress.of_port(port).map(Way::Egress),
        };
        let way = |from: Attachment| {
            let to = plan.far_end(from).and_then(|to| match owners.of(to) {
                owner if owner == worker => here(to),
                owner => number_of(&plan.links, to).map(|number| Way::Over(owner, number)),
            });
            to.ok_or_else(|| unattached(plan, from))
        };
        if let Some(landings) = &mut landings {
            let ends = plan.links.iter().flatten();
            landings.set_ways(ends.map(|&at| here(at).filter(|_| owners.of(at) == worker)).collect());
            let straight = plan.links.iter().flat_map(|&[one, other]| [[one, other], [other, one]]);
            let straight = straight.filter_map(|[from, to]| match (from, to) {
                (Attachment::Port(port), Attachment::Port(out)) if owners.of(from) != worker => {
                    let (first, queue) = (egress.flow_of(port as u16, 0), egress.of_port(out)?);
                    Some((first..first + receive_queues[port]).map(move |flow| (flow, queue)))
                }
                _ => None,
            });
            landings.set_straight(straight.flatten().collect(), &egress);
        }
        let mut stages = Vec::new();
        for &number in &owned {
            let planned = &plan.stages[number];
            let stage = Stage::new(&planned.kind, seed ^ number as u64, now_ns);
            let mut stage = stage.map_err(|error| PlanError::Router(planned.name.clone(), error))?;
            stage.set_beside([INSIDE, OUTSIDE].map(|port| {
                plan.far_end(Attachment::Stage(number, port)).is_some_and(|from| owners.of(from) == worker)
            }));
            let ways = (0..planned.kind.ports()).map(|port| match planned.kind.is_exit(port) {
                true => way(Attachment::Stage(number, port)).map(Some),
                false => Ok(None),
            });
            stages.push((stage, ways.collect::<Result<_, _>>()?));
        }
        let intake = |index: usize, queues: usize| {
            let reach = fed.iter().enumerate().filter(|(_, (_, feeders))| feeders.contains(&index));
            let reach = reach.map(|(queue, _)| queue).collect();
            let crosses = match &over {
                Some(_) => Crosses::of(portion, index, egress.flow_of(index as u16, 0)),
                None => Crosses::default(),
            };
            let way = way(Attachment::Port(index))?;
            let ways = (reach, crosses);
            Ok(Intake::new(index as u16, queues, way, ways, poll_budget_max, &egress, now_ns))
        };
        let mut ends = Vec::new();
        for (index, port) in ports {
            let intake = intake(index, port.queues())?;
            ends.push(End { index, port, intake, exit: Exit::default() });
        }
        let mut gone = Vec::new();
        for index in absent {
            gone.push(Gone { index, intake: intake(index, 0)?, exit: Exit::default() });
        }
        let feeders = fed.into_iter().map(|(_, feeders)| feeders).collect();
        let feeding = Feeding { feeders, packet_bytes_max: vec![0; plan.ports.len()] };
        let between = Between::new(frames, egress, stages, over);
        let mut worker = Worker::of((ends, gone), between, feeding, landings);
        for (index, planned) in plan.ports.iter().enumerate() {
            if let Some(classes) = &planned.classes {
                worker.share(index, Some(classes), now_ns);
            }
        }
        worker.tune();
        Ok(worker)
    }
}

/// The ports by which packets of these ports may leave, each with the ports that feed it.
fn fed_by(plan: &Plan, ports: impl Iterator<Item = usize>) -> Vec<(usize, Vec<usize>)> {
    let mut fed: Vec<(usize, Vec<usize>)> = (0..plan.ports.len()).map(|port| (port, Vec::new())).collect();
    for port in ports {
        for out in plan.reached_from(port) {
            fed[out].1.push(port);
        }
    }
    fed.retain(|(_, feeders)| !feeders.is_empty());
    fed
}

/// The error that an attachment is joined to nothing.
fn unattached(plan: &Plan, from: Attachment) -> PlanError {
    PlanError::Unattached(match from {
        Attachment::Port(port) => plan.ports[port].interface.clone(),
        Attachment::Stage(stage, port) => format!("port {port} of {}", plan.stages[stage].name),
    })
}
