//! The owners of the ports and stages of a plan: a worker for each.
//!
//! ```text
//! a wire          with two workers each end has a worker, and packets cross between them (`departures.rs`)
//! anything else   falls into parts that no link joins; each part is one worker's as a whole, while there are enough
//! ```
//!
//! Rule: the parts are dealt the largest first, each to the worker with the fewest ports, so none has more than the others by more than one
//! part. Where there are more workers than parts, the parts with stages have several: each worker has as many of the part's ports, in the
//! order of the plan, and a stage is with the worker of most ports and stages that it is joined to. A part with an ESP stage that seals at
//! once has one worker. Where packets wait for sealing in a queue, and are all sealed by the worker of the stage, the last workers, up to
//! half of all or as many as the parts leave over, have nothing but such stages, in turn: the others receive meanwhile. An ESP stage with
//! sealers is dealt as others are, because a worker of its own would be one more for each packet to cross to and back.
//!
//! Pure: the same plan is dealt the same way each time. Owner: the caller.

use weir_core::dispatch::protocol::Mode;

use crate::plan::{Attachment, Plan, StageKind, StagePlan};

/// The owner of each port and stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The worker of each port of the plan.
    pub ports: Vec<usize>,
    /// The worker of each stage of the plan.
    pub stages: Vec<usize>,
}

/// One worker's portion of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Portion<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The owners of its ports and stages.
    pub owners: &'a Owners,
    /// The worker.
    pub worker: usize,
}

impl Owners {
    /// The owners where one worker owns everything.
    pub fn alone(plan: &Plan) -> Owners {
        Owners { ports: vec![0; plan.ports.len()], stages: vec![0; plan.stages.len()] }
    }

    /// The owners of a plan that is dealt to so many workers.
    pub fn deal(plan: &Plan, workers: usize) -> Owners {
        let mut owners = Owners::alone(plan);
        if plan.is_wire() {
            owners.ports = (0..2).map(|port| port % workers).collect();
            return owners;
        }
        let parts = parts(plan);
        let apart: Vec<_> = (0..plan.stages.len()).filter(|&stage| is_apart(&plan.stages[stage])).collect();
        let receiving_max: usize = parts.iter().map(Joined::workers_max).sum();
        let sealing = apart.len().min((workers / 2).max(workers.saturating_sub(receiving_max.max(1))));
        owners.deal_parts(plan, parts, workers - sealing);
        for (turn, &stage) in apart.iter().enumerate().filter(|_| sealing > 0) {
            owners.stages[stage] = workers - sealing + turn % sealing;
        }
        owners
    }

    /// Deals parts to the first `workers` workers.
    fn deal_parts(&mut self, plan: &Plan, mut parts: Vec<Joined>, workers: usize) {
        // Parts as large as others stay in the order of the plan.
        parts.sort_by_key(|part| std::cmp::Reverse(part.ports.len()));
        // A part without ports moves few packets, and is the first worker's where there are more workers than parts with ports.
        let with_ports = parts.partition_point(|part| !part.ports.is_empty());
        if with_ports < workers {
            return self.split(plan, &parts[..with_ports], workers);
        }
        let mut dealt = vec![0; workers];
        for part in parts {
            let owner = (0..workers).min_by_key(|&worker| dealt[worker]).unwrap_or(0);
            dealt[owner] += part.ports.len();
            part.ports.into_iter().for_each(|port| self.ports[port] = owner);
            part.stages.into_iter().for_each(|stage| self.stages[stage] = owner);
        }
    }

    /// Deals parts to more workers than there are parts.
    fn split(&mut self, plan: &Plan, parts: &[Joined], workers: usize) {
        let mut shares = vec![1; parts.len()];
        for _ in parts.len()..workers {
            // The part with the most ports for each of its workers gets one more.
            let most = (0..parts.len()).filter(|&part| parts[part].workers_max() > shares[part]);
            let most =
                most.max_by_key(|&part| (parts[part].ports.len() / shares[part], std::cmp::Reverse(part)));
            most.into_iter().for_each(|part| shares[part] += 1);
        }
        let mut first = 0;
        for (part, share) in parts.iter().zip(shares) {
            let count = part.ports.len().max(1);
            let owner = |at: usize| first + at * share / count;
            part.ports.iter().enumerate().for_each(|(at, &port)| self.ports[port] = owner(at));
            self.home(plan, part, first..first + share);
            first += share;
        }
    }

    /// Deals the stages of a part to its workers: each to the worker that has most of the ports and stages that it is joined to.
    fn home(&mut self, plan: &Plan, part: &Joined, workers: std::ops::Range<usize>) {
        let mut homeless = part.stages.clone();
        while !homeless.is_empty() {
            let votes = |stage: usize, homeless: &[usize]| -> Vec<usize> {
                let mut votes = vec![0; workers.len()];
                for port in 0..plan.stages[stage].kind.ports() {
                    match plan.far_end(Attachment::Stage(stage, port)) {
                        Some(Attachment::Stage(other, _)) if homeless.contains(&other) => {}
                        Some(at) => votes[self.of(at) - workers.start] += 1,
                        None => {}
                    }
                }
                votes
            };
            let most = |stage: &usize| {
                let votes = votes(*stage, &homeless);
                let most = (0..votes.len()).max_by_key(|&worker| (votes[worker], std::cmp::Reverse(worker)));
                most.filter(|&worker| votes[worker] > 0).map(|worker| (*stage, workers.start + worker))
            };
            // The stages that are joined to something with a home get one in this round, the others after them.
            let mut homes: Vec<_> = homeless.iter().filter_map(most).collect();
            if homes.is_empty() {
                homes.push((homeless[0], workers.start));
            }
            homes.iter().for_each(|&(stage, owner)| self.stages[stage] = owner);
            homeless.retain(|stage| homes.iter().all(|(homed, _)| homed != stage));
        }
    }

    /// The place of a stage among those of its owner.
    pub fn place_of_stage(&self, stage: usize) -> usize {
        self.stages[..stage].iter().filter(|&&owner| owner == self.stages[stage]).count()
    }

    /// The owner of the port or stage of an attachment.
    pub fn of(&self, at: Attachment) -> usize {
        match at {
            Attachment::Port(port) => self.ports[port],
            Attachment::Stage(stage, _) => self.stages[stage],
        }
    }
}

impl Plan {
    /// Returns whether the plan is two ports and the link between them.
    pub fn is_wire(&self) -> bool {
        self.ports.len() == 2 && self.stages.is_empty() && self.links.len() == 1
    }

    /// The most workers that may own a part of the plan: a wire has two; where stages join ports, each port may have a worker, and so may
    /// each ESP stage whose packets wait in a queue, or each of its sealers.
    pub fn workers_max(&self) -> usize {
        let apart = self.stages.iter().filter(|stage| is_apart(stage)).count();
        let sealers: usize = self.stages.iter().map(|stage| stage.kind.sealers()).sum();
        let receiving_max: usize = parts(self).iter().map(Joined::workers_max).sum();
        if self.is_wire() { 2 } else { receiving_max + apart + sealers }
    }
}

/// A part of a plan: ports and stages that links join.
#[derive(Default)]
struct Joined {
    ports: Vec<usize>,
    stages: Vec<usize>,
    /// True if one worker has the whole part: no packet may be polled that comes to a stage in which packets wait for a number.
    is_whole: bool,
}

impl Joined {
    /// The most workers that the part can have.
    fn workers_max(&self) -> usize {
        if self.stages.is_empty() || self.is_whole { 1 } else { self.ports.len() }
    }
}

/// The parts of a plan, between which there is no link, each with its ports and stages in the order of the plan.
fn parts(plan: &Plan) -> Vec<Joined> {
    // The list has ports and then stages; each entry points at one that comes no later, and the first of a part at itself.
    let count = plan.ports.len() + plan.stages.len();
    let mut before: Vec<usize> = (0..count).collect();
    let number = |at| match at {
        Attachment::Port(port) => port,
        Attachment::Stage(stage, _) => plan.ports.len() + stage,
    };
    for &[one, other] in &plan.links {
        let [one, other] = [one, other].map(|at| first(&before, number(at)));
        before[one.max(other)] = one.min(other);
    }
    let mut parts: Vec<Joined> = (0..count).map(|_| Joined::default()).collect();
    for number in 0..count {
        let part = &mut parts[first(&before, number)];
        match number.checked_sub(plan.ports.len()) {
            None => part.ports.push(number),
            Some(stage) => {
                part.stages.push(stage);
                let stage = &plan.stages[stage];
                part.is_whole |= matches!(stage.kind, StageKind::Esp(_)) && !defers(stage);
            }
        }
    }
    parts.retain(|part| !part.ports.is_empty() || !part.stages.is_empty());
    parts
}

/// Returns whether the stage is an ESP stage that has a worker of its own, if there are enough: it seals by itself what waits in its queue.
fn is_apart(stage: &StagePlan) -> bool {
    defers(stage) && stage.kind.sealers() == 0
}

/// Returns whether the stage is an ESP stage whose packets wait in a queue.
fn defers(stage: &StagePlan) -> bool {
    matches!(&stage.kind, StageKind::Esp(plan) if plan.dispatch.mode != Mode::Direct)
}

fn first(before: &[usize], mut number: usize) -> usize {
    while before[number] != number {
        number = before[number];
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::esp::plan::{EspDispatch, EspPlan};
    use crate::plan::PortPlan;

    fn plan(ports: usize, stages: usize, links: &[[Attachment; 2]]) -> Plan {
        let port = |number| PortPlan {
            interface: format!("p{number}"),
            limits: None,
            classes: None,
            is_optional: false,
        };
        let kind = StageKind::Bridge { ports: 4, stations_max: 16, ageing_ns: 1 };
        let stage = |number| StagePlan { name: format!("s{number}"), kind: kind.clone() };
        Plan {
            ports: (0..ports).map(port).collect(),
            stages: (0..stages).map(stage).collect(),
            links: links.to_vec(),
            dispatched: Vec::new(),
        }
    }

    fn wires(count: usize) -> Plan {
        let link = |wire: usize| [2 * wire, 2 * wire + 1].map(Attachment::Port);
        plan(2 * count, 0, &(0..count).map(link).collect::<Vec<_>>())
    }

    #[test]
    fn wires_are_dealt_whole_and_evenly() {
        let owners = Owners::deal(&wires(5), 2);
        assert_eq!(owners.ports, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]);
        assert_eq!(wires(5).workers_max(), 5);
    }

    #[test]
    fn the_one_wire_of_two_workers_has_each_end_with_one() {
        assert_eq!(Owners::deal(&wires(1), 2).ports, [0, 1]);
        assert_eq!(Owners::deal(&wires(1), 1).ports, [0, 0]);
        assert_eq!(wires(1).workers_max(), 2);
    }

    #[test]
    fn the_largest_part_is_dealt_first() {
        use Attachment::{Port, Stage};
        // Ports 0 and 1 are a wire; 2, 3 and 4 are behind two bridges; 5 and 6 are a wire.
        let links = [
            [Port(0), Port(1)],
            [Port(2), Stage(1, 0)],
            [Stage(0, 1), Stage(1, 1)],
            [Stage(0, 0), Port(3)],
            [Stage(0, 2), Port(4)],
            [Port(6), Port(5)],
        ];
        let plan = plan(7, 2, &links);
        let owners = Owners::deal(&plan, 2);
        assert_eq!((&owners.ports[..], &owners.stages[..]), (&[1, 1, 0, 0, 0, 1, 1][..], &[0, 0][..]));
        assert_eq!(plan.workers_max(), 5);
        let crosses = |[one, other]: &[Attachment; 2]| owners.of(*one) != owners.of(*other);
        assert!(!plan.links.iter().any(crosses));
        assert_eq!(Owners::deal(&plan, 1), Owners::alone(&plan));
        // With more workers than parts the largest has several.
        let owners = Owners::deal(&plan, 4);
        assert_eq!((&owners.ports[..], &owners.stages[..]), (&[2, 2, 0, 0, 1, 3, 3][..], &[0, 0][..]));
    }

    /// Two ports and so many gateways in a row between them.
    fn gateways(count: usize, mode: Mode, sealers: u16) -> Plan {
        let mut plan = plan(2, count, &[[Attachment::Port(0), Attachment::Stage(0, 0)]]);
        let esp = EspPlan {
            addresses: Vec::new(),
            mtu_bytes: 1500,
            associations: Vec::new(),
            policies: Vec::new(),
            dispatch: EspDispatch { mode, sealers, ..EspDispatch::default() },
        };
        for (number, stage) in plan.stages.iter_mut().enumerate() {
            stage.kind = StageKind::Esp(Box::new(esp.clone()));
            let next =
                if number + 1 == count { Attachment::Port(1) } else { Attachment::Stage(number + 1, 0) };
            plan.links.push([Attachment::Stage(number, 1), next]);
        }
        plan
    }

    #[test]
    fn stages_that_packets_wait_for_have_workers_of_their_own() {
        let deal = |count, mode, workers| {
            let Owners { ports, stages } = Owners::deal(&gateways(count, mode, 0), workers);
            (ports, stages)
        };
        let one = |workers| deal(1, Mode::Deferred, workers);
        assert_eq!(one(1), (vec![0, 0], vec![0]));
        assert_eq!(one(2), (vec![0, 0], vec![1]));
        assert_eq!(one(3), (vec![0, 1], vec![2]));
        assert_eq!(deal(3, Mode::Hybrid, 2), (vec![0, 0], vec![1, 1, 1]));
        assert_eq!(deal(3, Mode::Deferred, 5), (vec![0, 1], vec![2, 3, 4]));
        assert_eq!(deal(2, Mode::Direct, 2), (vec![0, 0], vec![0, 0]));
        let most =
            [Mode::Direct, Mode::Hybrid, Mode::Deferred].map(|mode| gateways(3, mode, 0).workers_max());
        assert_eq!(most, [1, 5, 5]);
    }

    /// Each packet crosses to another worker once on its way, and to a sealer and back at the most.
    #[test]
    fn a_stage_with_sealers_is_with_its_ports() {
        let deal = |count, workers| {
            let Owners { ports, stages } = Owners::deal(&gateways(count, Mode::Deferred, 2), workers);
            (ports, stages)
        };
        assert_eq!(deal(1, 1), (vec![0, 0], vec![0]));
        assert_eq!(deal(1, 2), (vec![0, 1], vec![0]));
        assert_eq!(deal(2, 2), (vec![0, 1], vec![0, 1]));
        assert_eq!(deal(1, 4), (vec![0, 1], vec![0]), "the others are for the sealers");
        let most = |mode| gateways(1, mode, 2).workers_max();
        assert_eq!([Mode::Direct, Mode::Hybrid, Mode::Deferred].map(most), [1, 4, 4]);
    }

    #[test]
    fn a_stage_is_with_most_of_what_it_joins() {
        use Attachment::{Port, Stage};
        let lan: Vec<_> = (0..4).map(|port| [Port(port), Stage(0, port as u16)]).collect();
        let owners = Owners::deal(&plan(4, 1, &lan), 2);
        assert_eq!((&owners.ports[..], &owners.stages[..]), (&[0, 0, 1, 1][..], &[0][..]));
        // Bridge, router, bridge: the one in the middle goes with the first.
        let bed = [
            [Port(0), Stage(0, 0)],
            [Stage(0, 1), Stage(1, 0)],
            [Stage(1, 1), Stage(2, 0)],
            [Stage(2, 1), Port(1)],
        ];
        let owners = Owners::deal(&plan(2, 3, &bed), 2);
        assert_eq!((&owners.ports[..], &owners.stages[..]), (&[0, 1][..], &[0, 0, 1][..]));
        assert_eq!(plan(2, 3, &bed).workers_max(), 2);
        // A bridge that nothing comes to takes no worker.
        let owners = Owners::deal(&plan(2, 4, &bed), 2);
        assert_eq!((&owners.ports[..], &owners.stages[..]), (&[0, 1][..], &[0, 0, 1, 0][..]));
    }
}
