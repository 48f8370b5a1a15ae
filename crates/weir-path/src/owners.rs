//! Which worker owns which port and stage of a plan.
//!
//! ```text
//! a wire          with two workers each end has one, and packets cross between them (`crossing.rs`)
//! anything else   falls into parts that no link joins; each part is one worker's as a whole
//! ```
//!
//! Rule: the parts are dealt the largest first, each to the worker with the fewest ports, so none has more than the others by more than
//! one part. Where there are no more workers than parts, every worker has one.
//!
//! Pure: the same plan is dealt the same way each time. Owner: the caller.

use crate::plan::{Attachment, Plan};

/// The owner of each port and stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// For each port of the plan its worker.
    pub ports: Vec<usize>,
    /// For each stage of the plan its worker.
    pub stages: Vec<usize>,
}

/// What one of the workers has of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Portion<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Who owns what of it.
    pub owners: &'a Owners,
    /// The worker.
    pub worker: usize,
}

impl Owners {
    /// One worker owns everything.
    pub fn alone(plan: &Plan) -> Owners {
        Owners { ports: vec![0; plan.ports.len()], stages: vec![0; plan.stages.len()] }
    }

    /// A plan dealt to so many workers.
    pub fn deal(plan: &Plan, workers: usize) -> Owners {
        let mut owners = Owners::alone(plan);
        if plan.is_wire() {
            owners.ports = (0..2).map(|port| port % workers).collect();
            return owners;
        }
        let mut parts = parts(plan);
        // Those as large as others stay in the order of the plan.
        parts.sort_by_key(|part| std::cmp::Reverse(part.ports.len()));
        let mut dealt = vec![0; workers];
        for part in parts {
            let owner = (0..workers).min_by_key(|&worker| dealt[worker]).unwrap_or(0);
            dealt[owner] += part.ports.len();
            part.ports.into_iter().for_each(|port| owners.ports[port] = owner);
            part.stages.into_iter().for_each(|stage| owners.stages[stage] = owner);
        }
        owners
    }

    /// The owner of what an attachment is of.
    pub fn of(&self, at: Attachment) -> usize {
        match at {
            Attachment::Port(port) => self.ports[port],
            Attachment::Stage(stage, _) => self.stages[stage],
        }
    }
}

impl Plan {
    /// Whether it is two ports and the link between them.
    pub fn is_wire(&self) -> bool {
        self.ports.len() == 2 && self.stages.is_empty() && self.links.len() == 1
    }

    /// How many workers may have something of it: two have a wire, every other worker a part that no link joins to others.
    pub fn workers_max(&self) -> usize {
        if self.is_wire() { 2 } else { parts(self).iter().filter(|part| !part.ports.is_empty()).count() }
    }
}

/// What links join.
#[derive(Default)]
struct Joined {
    ports: Vec<usize>,
    stages: Vec<usize>,
}

/// The parts that no link joins, each with its ports and stages in the order of the plan.
fn parts(plan: &Plan) -> Vec<Joined> {
    // Ports and then stages; each points at one that comes no later, and the first of a part at itself.
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
            Some(stage) => part.stages.push(stage),
        }
    }
    parts.retain(|part| !part.ports.is_empty() || !part.stages.is_empty());
    parts
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
    use crate::plan::{PortPlan, StageKind, StagePlan};

    fn plan(ports: usize, stages: usize, links: &[[Attachment; 2]]) -> Plan {
        let port = |number| PortPlan { interface: format!("p{number}"), limits: None, classes: None };
        let kind = StageKind::Bridge { ports: 4, stations_max: 16, ageing_ns: 1 };
        let stage = |number| StagePlan { name: format!("s{number}"), kind: kind.clone() };
        Plan {
            ports: (0..ports).map(port).collect(),
            stages: (0..stages).map(stage).collect(),
            links: links.to_vec(),
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
        assert_eq!(plan.workers_max(), 3);
        let crosses = |[one, other]: &[Attachment; 2]| owners.of(*one) != owners.of(*other);
        assert!(!plan.links.iter().any(crosses));
        assert_eq!(Owners::deal(&plan, 1), Owners::alone(&plan));
    }
}
