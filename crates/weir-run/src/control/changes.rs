//! The answers of a running wire or topology at its control socket: changes on request, and its file.
//!
//! Rule: everything is checked before anything changes, here as far as values tell and then by all workers ([`Crew::reshape`]). One thread
//! makes all changes, so a change that is computed from the present values holds until it is made.
//!
//! Owner: the thread that serves the control socket.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_core::shaper::tbf::TbfConfig;
use weir_path::plan::PortPlan;
use weir_path::shape::PortShape;

use super::{ApplyFile, Command, Responder, SetClasses};
use crate::classes::{self, Classes, Interfaces};
use crate::crew::Crew;
use crate::datapath::Kind;
use crate::limits::SetLimits;
use crate::nearest::called_now;
use crate::stats::Snapshot;
use crate::topology::diff::LimitChange;
use crate::topology::diff::plan::{Named, compare_plans};
use crate::topology::{self, write};

/// The workers of a datapath as they answer, and the call that ends it.
pub struct DatapathResponder<F> {
    /// The workers.
    pub crew: Crew,
    /// Called when it is to end.
    pub stop: F,
}

impl<F: Fn()> Responder for DatapathResponder<F> {
    fn noun(&self) -> &'static str {
        self.crew.kind().noun()
    }

    fn stat(&self) -> Result<Snapshot, String> {
        self.crew.stat()
    }

    fn change(&self, command: &Command) -> Result<String, String> {
        let crew = &self.crew;
        match command {
            Command::Stat => Err("counters change nothing".into()),
            Command::Stop => {
                (self.stop)();
                Ok("null".into())
            }
            Command::Show => running(crew),
            Command::Set(limits) => set(crew, limits),
            Command::SetClasses(SetClasses { file, text }) => {
                change_classes(crew, |ends| classes::read(file, text, ends).map(Some))
            }
            Command::RemoveClasses => change_classes(crew, |_| Ok(None)),
            Command::Apply(file) => apply(crew, file),
        }
    }
}

/// A running datapath, as a file and in names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    /// The file of the datapath as it is now.
    pub file: String,
    /// Its ports, in their order.
    pub ports: Vec<RunningPort>,
}

/// A port of a running datapath.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningPort {
    /// Its name in the file's other tables.
    pub name: String,
    /// Its interface.
    pub interface: String,
    /// Its interface's name when the datapath came up; empty where an earlier version tells.
    #[serde(default)]
    pub interface_before: String,
}

/// A port of a file that is applied, or an ESP of it that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPort {
    /// The kind of the place: `port` or `esp`.
    #[serde(default = "port_word")]
    pub what: String,
    /// Its interface, or its name.
    pub interface: String,
    /// The change; none where the port or ESP is so already.
    pub change: Option<LimitChange>,
}

fn port_word() -> String {
    "port".into()
}

/// The running datapath, as JSON of [`Running`].
fn running(crew: &Crew) -> Result<String, String> {
    let plan = crew.plan()?;
    let names = crew.port_names();
    let called: Vec<_> = names.iter().map(String::as_str).collect();
    let file = write::plan::write(crew.name(), &called, &plan);
    let port = |((name, port), before): ((&String, &PortPlan), &String)| RunningPort {
        name: name.clone(),
        interface: port.interface.clone(),
        interface_before: before.clone(),
    };
    let ports = names.iter().zip(&plan.ports).zip(crew.ports()).map(port).collect();
    let running = Running { file, ports };
    serde_json::to_string(&running).map_err(|error| error.to_string())
}

/// The limits of a direction before a change and after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedLimits {
    /// Those before; none if nothing was limited.
    pub before: Option<LimitValues>,
    /// Those after.
    pub after: Option<LimitValues>,
}

/// The values of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitValues {
    /// The rate.
    pub rate_bits_per_s: u64,
    /// The burst.
    pub burst_bytes: u64,
    /// The number of bytes that may be held.
    pub limit_bytes: u64,
}

impl LimitValues {
    fn of(limits: TbfConfig) -> LimitValues {
        LimitValues {
            rate_bits_per_s: limits.rate.bits_per_s(),
            burst_bytes: limits.burst_bytes,
            limit_bytes: limits.limit_bytes(),
        }
    }
}

/// Changes the limits of a direction, one of as many as there are ports. Returns JSON of [`ChangedLimits`].
fn set(crew: &Crew, set: &SetLimits) -> Result<String, String> {
    check_direction(set.direction, crew.kind(), crew.ports().len())?;
    let port = crew.kind().exit_of(set.direction);
    let PortPlan { limits, classes, .. } = crew.plan()?.ports.swap_remove(port);
    let after = set.apply(limits)?;
    crew.reshape(&[PortShape { port, limits: after, classes }], false)?;
    let [before, after] = [limits, after].map(|limits| limits.map(LimitValues::of));
    Ok(json!(ChangedLimits { before, after }).to_string())
}

/// Shapes both directions of a wire between two ends by these classes, or by none. Returns as JSON whether there were classes before.
fn change_classes(
    crew: &Crew,
    wanted: impl FnOnce(Interfaces) -> Result<Option<Classes>, String>,
) -> Result<String, String> {
    let (Kind::Wire, [first, second], [first_before, second_before]) =
        (crew.kind(), &crew.interfaces()[..], crew.ports())
    else {
        return Err(
            "a topology has classes for each port, in its own file: change them there, and `weir apply` it"
                .into(),
        );
    };
    // Read on this thread: the workers have packets to move.
    let ends = Interfaces::of_wire([first, second], [first_before, second_before]);
    let classes = wanted(ends)?.map(Arc::new);
    let ports = crew.plan()?.ports;
    let shape =
        |(port, of): (usize, &PortPlan)| PortShape { port, limits: of.limits, classes: classes.clone() };
    crew.reshape(&ports.iter().enumerate().map(shape).collect::<Vec<_>>(), false)?;
    Ok(json!(ports.iter().any(|port| port.classes.is_some())).to_string())
}

/// Changes the running datapath as a file says, all of it or nothing. Returns the change of each port.
fn apply(crew: &Crew, ApplyFile { text, is_trial }: &ApplyFile) -> Result<String, String> {
    let wanted = topology::read(crew.name(), text, "", |path| Err(format!("{path} is not handed over")))
        .map_err(|told| told.join("\n"))?;
    let (Some(plan), true) = (&wanted.plan, wanted.name == crew.name()) else {
        return Err(format!("that file is of no {} {}", crew.kind().noun(), crew.name()));
    };
    let running = crew.plan()?;
    let names: Vec<_> = wanted.ports.iter().map(|port| port.name.clone()).collect();
    let now = crew.port_names();
    let live = compare_plans(Named { names: &now, plan: &running }, Named { names: &names, plan })
        .map_err(|why| why + &renamed(crew))?;
    let esps: Vec<_> = live.esps.iter().map(|(stage, _, plan)| (*stage, plan.clone())).collect();
    crew.change(&live.shapes, &esps, *is_trial)?;
    let ports = running.ports.into_iter().zip(live.changes);
    let ports =
        ports.map(|(port, change)| AppliedPort { what: port_word(), interface: port.interface, change });
    let esps = live.esps.into_iter().map(|(stage, change, _)| AppliedPort {
        what: "esp".into(),
        interface: running.stages[stage].name.clone(),
        change: Some(change),
    });
    Ok(json!(ports.chain(esps).collect::<Vec<_>>()).to_string())
}

/// A clause for each interface that has another name than when the datapath came up, which its file may not have.
fn renamed(crew: &Crew) -> String {
    let interfaces = crew.interfaces();
    let names = crew.ports().iter().zip(&interfaces).filter(|(before, now)| before != now);
    names.map(|(before, now)| called_now(before, now)).collect()
}

/// Checks that there is such a direction; there is one for each port.
fn check_direction(direction: usize, kind: Kind, ports: usize) -> Result<(), String> {
    if direction < ports {
        return Ok(());
    }
    Err(match kind {
        Kind::Wire => format!("there is no direction {direction}: 0 is there, 1 is back"),
        Kind::Topology => {
            format!("there is no direction {direction}: the {ports} ports have one each, from 0 on")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_direction_for_each_port() {
        let check = |direction, kind, ports| {
            check_direction(direction, kind, ports).unwrap_or_else(|why| panic!("{why}"))
        };
        (0..2).for_each(|direction| check(direction, Kind::Wire, 2));
        (0..3).for_each(|direction| check(direction, Kind::Topology, 3));
        let why = |kind, ports| check_direction(3, kind, ports).unwrap_err();
        assert_eq!(why(Kind::Wire, 2), "there is no direction 3: 0 is there, 1 is back");
        assert_eq!(why(Kind::Topology, 3), "there is no direction 3: the 3 ports have one each, from 0 on");
    }
}
