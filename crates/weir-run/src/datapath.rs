//! A datapath: ports of the kernel, and the links and stages that join them by a plan ([`weir_path::plan`]). A wire is the one of two
//! ports.
//!
//! It is opened here; its parts ([`crate::part`]), one for each worker, move packets over one packet memory.
//!
//! The bound on frames. The packets for a port hold, in its classes and on the way out, at most its share of the frames that are left when
//! every queue has its offer: half of them in a wire, a third with three ports. With several workers the share is less by what one poll may
//! bring beyond it, and by what may lie free with another worker ([`weir_ring::pool`]). So a frame is there for each packet that a poll may
//! bring.
//!
//! Where stages are joined to ports or stages of other workers, frames for the packets under way between these are kept free as well.
//! Packets that come straight to a port, in a wire, are within that port's share ([`weir_path::departures`]).

use std::io;
use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;
use weir_path::assembly::Shares;
use weir_path::deal;
use weir_path::departures::UNDER_WAY_MAX;
use weir_path::dispatch::{Dispatched, spread};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, PortPlan};
use weir_path::port::POLL_PACKETS_MAX;
use weir_port::bpf::doorbell::Bell;
use weir_port::fit::is_unfit;
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::port::Port;
use weir_port::prepared::PreparedPort;
use weir_port::probe;
use weir_port::undo::Keeper;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, PortError};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::{CACHE_FRAMES, Pool};

use crate::classes::Classes;
use crate::look_over;
use crate::part::{Part, PartStages, packet_bytes_max};
use crate::seed::random_seed;
use crate::stage_mtu::{self, StageInterface, StageMtus};
use crate::sum::{Constants, Sight};
use crate::watcher::Eye;

const FRAME_BYTES: u32 = 4096;
/// Frames that a second worker costs a port: one poll and its next offer, and those that lie free with the other worker.
const FRAMES_SPARE: u64 = 2 * POLL_PACKETS_MAX as u64 + CACHE_FRAMES as u64;

/// The configuration of a datapath.
#[derive(Clone, Debug)]
pub struct DatapathConfig {
    /// Its name for `weir stat` and `weir set`.
    pub name: String,
    /// Its ports, with the stages and links that join them.
    pub plan: Plan,
    /// The names of its ports in its file, where these are not their interfaces.
    pub port_names: Vec<String>,
    /// Packet memory, in bytes.
    pub memory_bytes: u64,
    /// Workers: 1 up to [`Plan::workers_max`].
    pub workers: usize,
}

impl DatapathConfig {
    /// Checks the configuration, as far as its values tell.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let most = self.plan.workers_max();
        if self.workers > most {
            return Err(format!("there is no work for {} workers: give 1 to {most}", self.workers));
        }
        spread(&self.plan, &Owners::deal(&self.plan, self.workers), self.workers).map(drop)
    }
}

/// The plan of a wire between two interfaces: the limits from the first to the second, and back, and the classes that share each
/// direction, if there are any.
pub fn wire_plan(
    interfaces: [String; 2],
    [there, back]: [Option<TbfConfig>; 2],
    classes: Option<Arc<Classes>>,
) -> Plan {
    let port =
        |(interface, limits)| PortPlan { interface, limits, classes: classes.clone(), is_optional: false };
    // Packets that go `there` leave by the second.
    let ports = interfaces.into_iter().zip([back, there]).map(port).collect();
    Plan { ports, links: vec![[Attachment::Port(0), Attachment::Port(1)]], ..Plan::default() }
}

/// The kinds of datapaths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two ports and one link.
    Wire,
    /// Any other.
    Topology,
}

impl Kind {
    /// The kind of this plan.
    pub fn of(plan: &Plan) -> Kind {
        let is_whole = |[one, other]: &[Attachment; 2]| matches!((one, other), (Attachment::Port(one), Attachment::Port(other)) if one + other == 1);
        match (plan.ports.len(), plan.stages.len(), &plan.links[..]) {
            (2, 0, [link]) if is_whole(link) => Kind::Wire,
            _ => Kind::Topology,
        }
    }

    /// The noun for it in a sentence.
    pub fn noun(self) -> &'static str {
        match self {
            Kind::Wire => "wire",
            Kind::Topology => "topology",
        }
    }

    /// The port by which a direction leaves. A wire counts its directions by the port where they start, everything else by where they
    /// end.
    pub fn exit_of(self, direction: usize) -> usize {
        match self {
            Kind::Wire => usize::from(direction == 0),
            Kind::Topology => direction,
        }
    }
}

/// A datapath that is up and not yet moving.
pub struct Datapath {
    /// A part for each worker.
    pub parts: Vec<Part>,
    /// The properties that do not change.
    pub constants: Constants,
    /// Its interfaces with their other ends, in the order of the plan, to be watched; none of an optional one that is not there.
    pub pairs: Vec<Option<Pair>>,
    /// The opener of ports that come, or come back.
    pub opener: Opener,
    /// Facts that its user may not expect, a sentence each.
    pub warnings: Vec<String>,
}

/// Takes ports over while a datapath is up: those whose interfaces were not there at first, or vanished and are there again.
pub struct Opener {
    /// The plan's interfaces, each with whether it is optional.
    interfaces: Vec<(String, bool)>,
    /// The number of queues that each may have.
    queues_max: Vec<u32>,
    /// The bell of each.
    bells: Vec<Arc<Bell>>,
    poll_budget_max: u32,
    umem: Arc<Umem>,
}

impl Opener {
    /// The interface of a port.
    pub fn interface(&self, port: usize) -> &str {
        &self.interfaces[port].0
    }

    /// Returns whether a port is optional.
    pub fn is_optional(&self, port: usize) -> bool {
        self.interfaces[port].1
    }

    /// Prepares a port as it was at first. Changes that are to be put back are recorded with the keeper.
    ///
    /// # Errors
    /// If its interface is not fit for it.
    pub fn prepare(&self, port: usize, keeper: &mut dyn Keeper) -> weir_port::Result<PreparedPort> {
        let name = self.interface(port);
        let (queues, queues_max) = (Link::by_name(name)?.rx_queues, self.queues_max[port]);
        if queues > queues_max {
            return Err(PortError::Unsuitable {
                name: name.into(),
                why: format!(
                    "has {queues} queues, and there is memory for {queues_max}: make it with fewer, or start the topology again"
                ),
            });
        }
        PreparedPort::new(
            name,
            self.poll_budget_max,
            &self.umem,
            port as u16,
            &[&self.bells[port]],
            None,
            keeper,
        )
    }
}

impl Datapath {
    /// Takes the interfaces over, which `eye` will watch, but for optional ones that are not there. A trial first shows that the kernel
    /// holds senders. Each port is rung for by the bell of its worker; there is a bell for each worker.
    ///
    /// # Errors
    /// If the kernel, an interface or the memory is not fit for it, in a sentence.
    pub fn open(
        config: &DatapathConfig,
        bells: &[Arc<Bell>],
        keeper: &mut dyn Keeper,
        eye: Eye,
        now_ns: u64,
    ) -> weir_port::Result<Datapath> {
        // Every other fault of the trial's pair occurs below too, and is told of the interface that matters.
        if let Err(error @ PortError::Unsupported { .. }) = probe::holds_senders() {
            return Err(error);
        }
        config.check().map_err(io::Error::other).doing(|| format!("joining the ports of {}", config.name))?;
        let DatapathConfig { plan, workers, .. } = config;
        let kind = Kind::of(plan);
        let count = config.memory_bytes / u64::from(FRAME_BYTES);
        let memory = FrameMemory::new(u32::try_from(count).unwrap_or(u32::MAX), FRAME_BYTES)
            .map_err(io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let frames_total = u64::from(memory.frames());
        let mut frames: Vec<Frames> =
            Pool::for_workers(memory, *workers).into_iter().map(Frames::new).collect();
        let there =
            plan.ports.iter().map(|port| link_of(port, kind)).collect::<weir_port::Result<Vec<_>>>()?;
        let has_classes = plan.ports.iter().any(|port| port.classes.is_some());
        let links: Vec<_> = there.iter().flatten().collect();
        let mut warnings = look_over::interfaces(&links, kind, has_classes)?;
        warnings.extend(look_over::sealers(plan, *workers));
        let queues_gone = queues_gone(&links);
        let umem = Arc::new(Umem::new(Arc::clone(frames[0].pool.memory())));
        let queues = there.iter().map(|link| link.as_ref().map_or(queues_gone, |link| link.rx_queues));
        let queues = queues.fold(0, u32::saturating_add);
        let owners = Owners::deal(plan, *workers);
        // The plan was checked above.
        let spread = spread(plan, &owners, *workers).map_err(io::Error::other).doing(String::new)?;
        let has_stages = !spread.plan.stages.is_empty();
        let poll_budget_max = poll_budget_max(frames_total, queues, has_stages)
            .ok_or_else(|| too_little_memory(queues, 0, config))?;
        let mut opener = Opener {
            interfaces: plan.ports.iter().map(|port| (port.interface.clone(), port.is_optional)).collect(),
            queues_max: there
                .iter()
                .map(|link| if link.is_some() { u32::MAX } else { queues_gone })
                .collect(),
            bells: owners.ports.iter().map(|&owner| Arc::clone(&bells[owner])).collect(),
            poll_budget_max,
            umem: Arc::clone(&umem),
        };
        let mut ports = Vec::new();
        for (index, &owner) in owners.ports.iter().enumerate() {
            let Some(link) = &there[index] else {
                ports.push(None);
                continue;
            };
            // Nobody can say where its other end was once it is gone.
            let ends = both_ends(link)?;
            // The kernel has many words for an interface that goes, or goes down, in the middle of a call. It may be back by now.
            let has_gone = || {
                let now = link_of(&plan.ports[index], kind);
                let id = |link: &Link| (link.ifindex, link.carrier_changes);
                now.is_ok_and(|now| now.is_none_or(|now| id(&now) != id(link)))
            };
            let prepared = match opener.prepare(index, keeper) {
                // It has gone since that look.
                Err(error) if kind == Kind::Topology && (error.is_absence() || has_gone()) => {
                    keeper.put_back(&ends)?;
                    opener.queues_max[index] = link.rx_queues;
                    ports.push(None);
                    continue;
                }
                prepared => prepared?,
            };
            let port = prepared.finish(std::slice::from_mut(&mut frames[owner]))?;
            opener.queues_max[index] = port.link().rx_queues;
            ports.push(Some(port));
        }
        let ends: Vec<_> =
            ports.iter().map(|port| port.as_ref().map(|port| (port.link(), port.sender()))).collect();
        warnings.extend(look_over::mtus(&ends, &look_over::joined(plan)));
        warnings.extend(look_over::sealed(plan, &ends));
        warnings.extend(look_over::routed(plan, &ends));
        let pairs = ports.iter().map(|port| port.as_ref().map(|port| port.pair().clone())).collect();
        let census = frames[0].pool.census();
        // The ports that are not there yet will offer frames too, which the others may not hold until then.
        let gone = ports.iter().filter(|port| port.is_none()).count() as u64;
        let reserved = gone * u64::from(queues_gone) * u64::from(poll_budget_max);
        let free = (census.shared + census.cached).saturating_sub(reserved);
        let free = free / if has_stages { 2 } else { 1 };
        let inner = under_way_max(&spread.plan, &spread.owners, *workers) + spread.queued_max();
        let free = free.saturating_sub(inner);
        let held_packets_max = held_packets_max(free, ports.len(), *workers)
            .ok_or_else(|| too_little_memory(queues, spread.queued_max(), config))?;
        let directions = (0..ports.len()).map(|direction| &plan.ports[kind.exit_of(direction)]);
        warnings.extend(look_over::limits(directions, held_packets_max));
        let queues_gone = queues_gone as usize;
        let shares = Shares { held_packets_max, poll_budget_max, queues_gone, seed: random_seed() };
        let parts = parts(&spread, ports, shares, frames, umem, now_ns)?;
        let names: Vec<_> = plan.ports.iter().map(|port| port.interface.clone()).collect();
        let constants = Constants {
            name: config.name.clone(),
            kind,
            port_names: if config.port_names.is_empty() {
                Vec::clone(&names)
            } else {
                config.port_names.clone()
            },
            ports: names,
            plan: Arc::new(plan.clone()),
            owners,
            frames_total,
            since_ns: now_ns,
            sight: Sight::Watched(eye),
        };
        Ok(Datapath { parts, constants, pairs, opener, warnings })
    }
}

/// The parts of the workers: the ports dealt out to them, with the stages and links between.
fn parts(
    Dispatched { plan, owners, loops }: &Dispatched,
    ports: Vec<Option<Port>>,
    shares: Shares,
    frames: Vec<Frames>,
    umem: Arc<Umem>,
    now_ns: u64,
) -> weir_port::Result<Vec<Part>> {
    let bytes: Vec<_> =
        ports.iter().map(|port| port.as_ref().map(|port| packet_bytes_max(port.sender()))).collect();
    let taken: Vec<_> = ports
        .iter()
        .map(|port| port.as_ref().map(|port| stage_mtu::taken_bytes(port.link(), port.sender())))
        .collect();
    let interfaces = StageInterface::all(plan);
    let first_loop = ports.len();
    let ports = ports.into_iter().map(|port| port.map(|port| EitherPort::Kernel(Box::new(port))));
    let looped = loops.iter().map(|_| Some(EitherPort::Memory(Box::default())));
    let workers = deal::workers((plan, owners), ports.chain(looped).collect(), frames, shares, now_ns)
        .map_err(io::Error::other)
        .doing(|| "joining the ports".into())?;
    let mut parts = Vec::new();
    for (worker, mut path) in workers.into_iter().enumerate() {
        let of_ports = bytes.iter().enumerate().filter_map(|(index, bytes)| Some((index, (*bytes)?)));
        of_ports.for_each(|(index, bytes)| path.set_packet_bytes_max(index, bytes, now_ns));
        let own: Vec<_> = (0..plan.stages.len()).filter(|&stage| owners.stages[stage] == worker).collect();
        let names = own.iter().map(|&stage| plan.stages[stage].name.clone()).collect();
        let own_loops = (first_loop..)
            .zip(loops)
            .filter_map(|(port, &(stage, at))| Some((port, own.binary_search(&stage).ok()?, at)));
        let looped_bytes_max = bytes.iter().flatten().copied().max().unwrap_or(0);
        let place = |stage: usize| own.binary_search(&stage).ok();
        let of_own = interfaces.iter().filter_map(|interface| Some(interface.at(place(interface.stage)?)));
        let stage_mtus = StageMtus { interfaces: of_own.collect(), taken_bytes: taken.clone() };
        let stages = PartStages { names, loops: own_loops.collect(), looped_bytes_max, stage_mtus };
        parts.push(Part::new(path, stages, Arc::clone(&umem), now_ns));
    }
    Ok(parts)
}

/// The number of packets that may be under way between workers beyond those that ports may hold: those that come straight to a port have
/// room there.
fn under_way_max(plan: &Plan, owners: &Owners, workers: usize) -> u64 {
    let may_exceed = |&[one, other]: &[Attachment; 2]| {
        owners.of(one) != owners.of(other)
            && !matches!((one, other), (Attachment::Port(_), Attachment::Port(_)))
    };
    if plan.links.iter().any(may_exceed) { (workers * (workers - 1)) as u64 * UNDER_WAY_MAX } else { 0 }
}

/// The interface of a port; none if it may be missing, and is not there or down, or if it is optional and not fit. Whoever has the other end
/// can take it down, or give it other queues. Every port of a topology may go at any time, also since its file was looked at.
fn link_of(port: &PortPlan, kind: Kind) -> weir_port::Result<Option<Link>> {
    let may_be_missing = port.is_optional || kind == Kind::Topology;
    match Link::by_name(&port.interface) {
        Err(error) if may_be_missing && error.is_no_interface() => Ok(None),
        Ok(link) if may_be_missing && !(link.up && link.has_carrier) => Ok(None),
        Ok(link) if port.is_optional && is_unfit(&link) => Ok(None),
        link => link.map(Some),
    }
}

/// The namespaces and numbers of an interface and its other end, as far as it is there.
fn both_ends(link: &Link) -> weir_port::Result<Vec<(u64, u32)>> {
    let far = link.peer().map(|(netns, sender)| (netns.inode(), sender.ifindex)).ok();
    Ok(far.into_iter().chain([(NetNs::current()?.inode(), link.ifindex)]).collect())
}

/// The number of queues that a port may have that is not there yet: as many as that which has most of those that are, and one for each
/// core.
fn queues_gone(there: &[&Link]) -> u32 {
    let cores = weir_port::sys::allowed_cores().len() as u32;
    there.iter().map(|link| link.rx_queues).fold(cores.max(1), u32::max)
}

/// As many packets as a poll may bring, so that half of the frames can be on offer on all queues; with stages a quarter, because one poll
/// of each queue may be held beyond the bound. None if they are too few.
fn poll_budget_max(frames: u64, queues: u32, has_stages: bool) -> Option<u32> {
    let frames = frames / if has_stages { 4 } else { 2 };
    let budget = u32::try_from(frames / u64::from(queues.max(1))).unwrap_or(u32::MAX);
    (budget >= 4).then_some((budget & !1).min(POLL_PACKETS_MAX))
}

/// The number of packets that may be held for one of so many ports, of the frames that are free; none if it is less than a poll brings.
fn held_packets_max(free: u64, ports: usize, workers: usize) -> Option<u64> {
    let spare = if workers > 1 { FRAMES_SPARE } else { 0 };
    let share = (free / ports.max(1) as u64).saturating_sub(spare);
    (share >= u64::from(POLL_PACKETS_MAX)).then_some(share)
}

fn too_little_memory(queues: u32, queued_max: u64, config: &DatapathConfig) -> PortError {
    let names: Vec<_> = config.plan.ports.iter().map(|port| port.interface.as_str()).collect();
    let (last, others) = match names[..] {
        [first, second] => (second, first.to_string()),
        _ => (names.last().copied().unwrap_or_default(), format!("{} others", names.len().saturating_sub(1))),
    };
    let dispatched = match queued_max {
        0 => String::new(),
        _ => format!(", and {queued_max} packets may wait for dispatch"),
    };
    PortError::Unsuitable {
        name: last.to_string(),
        why: format!(
            "and {others} have {queues} queues{dispatched}, too many for {} bytes of packet memory: give weir more with --memory",
            config.memory_bytes
        ),
    }
}

#[cfg(test)]
mod tests {
    use weir_path::plan::{StageKind, StagePlan};

    use super::*;

    fn limit(rate: &str) -> TbfConfig {
        let limit = weir_core::shaper::tbf::Limit::TimeNs(5_000_000);
        TbfConfig { rate: rate.parse().unwrap(), burst_bytes: 20_480, limit }
    }

    #[test]
    fn a_wire_limits_what_leaves_by_the_far_port() {
        let limits = ["1mbit", "2mbit"].map(|rate| Some(limit(rate)));
        let plan = wire_plan(["a", "b"].map(String::from), limits, None);
        let kind = Kind::of(&plan);
        assert_eq!((kind, kind.exit_of(0), kind.exit_of(1)), (Kind::Wire, 1, 0));
        let of_direction = |direction| plan.ports[kind.exit_of(direction)].limits;
        assert_eq!([of_direction(0), of_direction(1)], limits);
    }

    #[test]
    fn what_is_not_two_ports_and_a_link_is_no_wire() {
        let wire = wire_plan(["a", "b"].map(String::from), [None; 2], None);
        let mut apart = wire.clone();
        apart.links.clear();
        let mut bridged = wire.clone();
        let kind = StageKind::Bridge { ports: 2, stations_max: 16, ageing_ns: 1 };
        bridged.stages.push(StagePlan { name: "middle".into(), kind });
        bridged.links =
            (0..2).map(|port| [Attachment::Port(port), Attachment::Stage(0, port as u16)]).collect();
        let mut more = wire.clone();
        more.ports.push(wire.ports[0].clone());
        let mut back = wire;
        back.links[0].reverse();
        let kinds = [&apart, &bridged, &more, &back].map(Kind::of);
        assert_eq!(kinds, [Kind::Topology, Kind::Topology, Kind::Topology, Kind::Wire]);
        assert_eq!((0..3).map(|direction| Kind::Topology.exit_of(direction)).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn ports_share_the_frames_that_are_left() {
        assert_eq!(
            [1, 2].map(|workers| held_packets_max(8_000, 2, workers)),
            [Some(4_000), Some(4_000 - FRAMES_SPARE)]
        );
        assert_eq!([3, 4].map(|ports| held_packets_max(8_000, ports, 1)), [Some(2_666), Some(2_000)]);
        assert_eq!([127, 128].map(|free| held_packets_max(free, 2, 1)), [None, Some(64)]);
        assert_eq!([16, 24].map(|queues| poll_budget_max(128, queues, false)), [Some(4), None]);
        assert_eq!(poll_budget_max(16_384, 2, false), Some(POLL_PACKETS_MAX));
    }
}
