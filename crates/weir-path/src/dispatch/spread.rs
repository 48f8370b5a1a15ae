//! A plan with dispatch in it: a stage for each worker, the links between these, and a port that leads back for each queue, those of ESP
//! too; and the sealers of ESP.
//!
//! ```text
//! port a --entry--> dispatch of worker 0 --> port b          each direction of a wire has such a row of stages
//!                      |  over rings  |
//!                   dispatch of worker 1
//! ```
//!
//! Rule: ports that lead back come after all others, so that these keep their places.
//!
//! Pure.

use std::sync::Arc;

use weir_core::dispatch::handlers::protocols;
use weir_core::dispatch::protocol::Registry;
use weir_core::dispatch::settings::Settings;

use super::plan::{DispatchPlan, waits};
use crate::esp::deferral;
use crate::owners::Owners;
use crate::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan, WireDispatch};

/// A plan with dispatch, and the owners of its ports and stages.
pub struct Dispatched {
    /// The plan.
    pub plan: Plan,
    /// The owners of its ports and stages.
    pub owners: Owners,
    /// The stage that each port leads back to, and the port there, in order; these are the last ports.
    pub loops: Vec<(usize, u16)>,
}

/// The ends of a row of stages: the ports by which its packets come in and go on.
struct RowEnds<'a> {
    /// The ports by which packets come in.
    entries: &'a [usize],
    /// The ports by which packets go on: by that of the worker that handles them, if it has one, otherwise by the first. Without any they
    /// end.
    exits: &'a [usize],
    steers: bool,
    flows: u32,
    /// The names of the row's stages and ports.
    name: &'a dyn Fn(&str, usize) -> String,
}

impl Dispatched {
    /// The packets that may wait in the queues of protocols, and of ESP, before the feeders of these are held.
    pub fn queued_max(&self) -> u64 {
        self.loops.iter().filter_map(|&(stage, port)| self.plan.stages[stage].kind.queue_packets(port)).sum()
    }

    /// Joins a port of a stage to one that leads back.
    fn add_loop(&mut self, stage: usize, port: u16, worker: usize, name: String) {
        let Dispatched { plan, owners, loops } = self;
        plan.links.push([Attachment::Port(plan.ports.len()), Attachment::Stage(stage, port)]);
        plan.ports.push(PortPlan { interface: name, limits: None, classes: None, is_optional: false });
        owners.ports.push(worker);
        loops.push((stage, port));
    }

    /// Adds the sealers of an ESP stage: with workers that have no port and no stage first, and then with the others in turn, its own last.
    fn add_sealers(&mut self, stage: usize, workers: usize) {
        let Dispatched { plan, owners, .. } = self;
        let StageKind::Esp(esp) = &plan.stages[stage].kind else { return };
        let (sealers, home) = (esp.dispatch.sealers(), owners.stages[stage]);
        let mut turn: Vec<_> = (1..=workers).map(|step| (home + step) % workers).collect();
        turn.sort_by_key(|worker| owners.ports.contains(worker) || owners.stages.contains(worker));
        for sealer in 0..sealers {
            let at = Attachment::Stage(stage, deferral::SEALERS + sealer);
            plan.links.push([at, Attachment::Stage(plan.stages.len(), 0)]);
            let name = format!("{}-sealer-{sealer}", plan.stages[stage].name);
            plan.stages.push(StagePlan { name, kind: StageKind::Sealer });
            owners.stages.push(turn[usize::from(sealer) % workers]);
        }
    }

    /// Adds a stage for each worker.
    fn add(&mut self, registry: &Arc<Registry>, ends: &RowEnds) {
        let workers = registry.rss().workers();
        let first = self.plan.stages.len();
        let of_ports = self.owners.ports.clone();
        let exit = |worker: usize| {
            let own = ends.exits.iter().find(|&&port| of_ports[port] == worker);
            own.or(ends.exits.first()).map(|&port| of_ports[port])
        };
        let kinds: Vec<DispatchPlan> = (0..workers)
            .map(|worker| DispatchPlan {
                worker: worker as u16,
                entries: ends.entries.iter().filter(|&&port| of_ports[port] == worker).count() as u16,
                steers: ends.steers,
                flows: ends.flows,
                exit: exit(worker),
                registry: Arc::clone(registry),
            })
            .collect();
        let mut taken = vec![0; workers];
        for &port in ends.entries {
            let worker = of_ports[port];
            let entry = kinds[worker].entry(taken[worker]);
            self.plan.links.push([Attachment::Port(port), Attachment::Stage(first + worker, entry)]);
            taken[worker] += 1;
        }
        for (worker, kind) in kinds.iter().enumerate() {
            for proto in registry.ids().filter(|&proto| waits(registry, proto)) {
                let name = (ends.name)(registry.get(proto).protocol.name, worker);
                self.add_loop(first + worker, kind.queue(proto), worker, name);
                for (other, kinds_other) in kinds.iter().enumerate().skip(worker + 1) {
                    self.plan.links.push([
                        Attachment::Stage(first + worker, kind.over(other, proto)),
                        Attachment::Stage(first + other, kinds_other.over(worker, proto)),
                    ]);
                }
            }
        }
        for (worker, kind) in kinds.iter().enumerate() {
            if let Some(exit) = kind.exit.filter(|exit| *exit != worker) {
                self.plan.links.push([
                    Attachment::Stage(first + worker, kind.over_exit(exit)),
                    Attachment::Stage(first + exit, kinds[exit].over_exit(worker)),
                ]);
            }
        }
        self.owners.stages.extend(0..workers);
        self.plan.stages.extend(kinds.into_iter().map(|kind| StagePlan {
            name: (ends.name)("dispatch", usize::from(kind.worker)),
            kind: StageKind::Dispatch(kind),
        }));
    }
}

/// A plan by which packets of `entries`, each with its worker, are dispatched and end. `steers` says that they are dealt to workers here;
/// `flows` is the number of generators' flows that are followed. If there are `exits`, each with its worker, packets that a worker has
/// handled leave by its own, or by the first.
pub fn dispatched(
    registry: &Arc<Registry>,
    entries: Vec<(PortPlan, usize)>,
    exits: Vec<(PortPlan, usize)>,
    steers: bool,
    flows: u32,
) -> Dispatched {
    let first_exit = entries.len();
    let (ports, of_ports): (Vec<_>, Vec<_>) = entries.into_iter().chain(exits).unzip();
    let ends: Vec<usize> = (0..ports.len()).collect();
    let (entries, exits) = ends.split_at(first_exit);
    let plan = Plan { ports, ..Plan::default() };
    let owners = Owners { ports: of_ports, stages: Vec::new() };
    let mut dispatched = Dispatched { plan, owners, loops: Vec::new() };
    let name = |what: &str, worker| format!("{what}-{worker}");
    dispatched.add(registry, &RowEnds { entries, exits, steers, flows, name: &name });
    for &port in exits {
        let worker = dispatched.owners.ports[port];
        let StageKind::Dispatch(kind) = &dispatched.plan.stages[worker].kind else { continue };
        let exit = Attachment::Stage(worker, kind.exit());
        dispatched.plan.links.push([exit, Attachment::Port(port)]);
    }
    dispatched
}

/// The plan that has the stages by which its wires are dispatched to so many workers, and the queues of its ESP stages.
///
/// # Errors
/// If the settings of a wire do not fit together, or do not fit so many workers: the sentence names the wire.
pub fn spread(plan: &Plan, owners: &Owners, workers: usize) -> Result<Dispatched, String> {
    let mut spread = Dispatched { plan: plan.clone(), owners: owners.clone(), loops: Vec::new() };
    for (number, stage) in plan.stages.iter().enumerate() {
        let StageKind::Esp(esp) = &stage.kind else { continue };
        let queues = (0..deferral::ports(&esp.dispatch)).filter(|port| deferral::QUEUES.contains(port));
        let worker = owners.stages[number];
        queues.for_each(|port| spread.add_loop(number, port, worker, stage.name.clone()));
        spread.add_sealers(number, workers);
    }
    let mut rows = Vec::new();
    for WireDispatch { ports, settings } in std::mem::take(&mut spread.plan.dispatched) {
        let called = |port: usize| plan.ports[port].interface.as_str();
        let registry = registry(&settings, workers)
            .map_err(|why| format!("the wire of {} and {}: {why}", called(ports[0]), called(ports[1])))?;
        let is_between = |[one, other]: &[Attachment; 2]| {
            let at = ports.map(Attachment::Port);
            [*one, *other] == at || [*other, *one] == at
        };
        spread.plan.links.retain(|link| !is_between(link));
        let [one, other] = ports;
        for [from, to] in [[one, other], [other, one]] {
            let name = |_: &str, _| format!("{}->{}", called(from), called(to));
            rows.push((spread.plan.stages.len(), from, to));
            let ends = RowEnds { entries: &[from], exits: &[to], steers: true, flows: 0, name: &name };
            spread.add(&registry, &ends);
        }
    }
    // The far end of a port is that of the first link with it, which is where it is an entry, so links that lead to a port come after that.
    for (first, _, to) in rows {
        let stage = first + spread.owners.ports[to];
        let StageKind::Dispatch(kind) = &spread.plan.stages[stage].kind else { continue };
        let exit = Attachment::Stage(stage, kind.exit());
        spread.plan.links.push([exit, Attachment::Port(to)]);
    }
    Ok(spread)
}

/// The protocols of these settings on so many workers.
///
/// # Errors
/// The fault of the settings, in a sentence.
pub fn registry(settings: &[(String, String)], workers: usize) -> Result<Arc<Registry>, String> {
    let mut read = Settings::new(protocols());
    for (key, text) in settings {
        read.set(key, text).map_err(|error| error.to_string())?;
    }
    read.set("maxthreads", &workers.to_string()).map_err(|error| error.to_string())?;
    Ok(read.finish(workers).map_err(|error| error.to_string())?.registry)
}
