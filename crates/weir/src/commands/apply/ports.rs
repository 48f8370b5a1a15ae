//! The ports of a file that is applied: `weir up` changes those that it runs to the file's, in one step between two passes of its workers.
//!
//! Rule: the process that runs them compares and checks, once before anything is touched and once more when it changes; it is only asked
//! here, and its last answer is shown: another command may have changed them between the two.

use std::path::Path;

use serde_json::{Value, json};
use weir_path::plan::{StageKind, StagePlan};
use weir_run::control::{self, AppliedPort, ApplyFile, Control, Refusal};
use weir_run::datapath::Kind;
use weir_run::topology::Topology;
use weir_run::topology::write::plan::write;

use crate::output::Lines;
use crate::{Failure, names};

/// The changes of the ports that run; none where the file has no ports.
#[derive(Default)]
pub struct Ports {
    name: String,
    /// The file with everything in it that it names.
    text: String,
    /// By port, in the order in which they run; then each ESP that changes.
    each: Vec<AppliedPort>,
    /// The number of ESPs.
    esps: usize,
}

impl Ports {
    /// Asks the process that runs the file's ports for the changes, and whether they can be made.
    pub fn check(topology: &Topology, file: &Path) -> Result<Ports, Failure> {
        let Some(plan) = &topology.plan else { return Ok(Ports::default()) };
        let name = topology.name.clone();
        if !control::is_up(&Control::path_of(&name)) {
            if control::is_up(&Control::waiting_path_of(&name)) {
                return Err(names::unknown(&name).into());
            }
            return Err(format!(
                "{} {name} is not up, so its ports cannot change: `weir up {}` runs it",
                Kind::of(plan).noun(),
                file.display()
            )
            .into());
        }
        // The file has its classes in it, and the MACs that this machine's routers have.
        let names: Vec<_> = topology.ports.iter().map(|port| port.name.as_str()).collect();
        let text = write(&name, &names, plan);
        let each =
            control::apply(&name, ApplyFile { text: text.clone(), is_trial: true }).map_err(|refusal| {
                let why = String::from(refusal);
                match topology.placed(&why) {
                    Some(placed) => placed.join("\nweir: "),
                    None => format!("{}: {why}", file.display()),
                }
            })?;
        let is_esp = |stage: &&StagePlan| matches!(stage.kind, StageKind::Esp(_));
        Ok(Ports { name, text, each, esps: plan.stages.iter().filter(is_esp).count() })
    }

    /// The number of ports, and that of ESPs.
    pub fn things(&self) -> [(usize, &'static str); 2] {
        [(self.each.iter().filter(|port| port.what == "port").count(), "port"), (self.esps, "esp")]
    }

    /// The number of ports and ESPs that change.
    pub fn changing(&self) -> usize {
        self.each.iter().filter(|port| port.change.is_some()).count()
    }

    /// The number of those that do not.
    pub fn same(&self) -> usize {
        self.things().iter().map(|(number, _)| number).sum::<usize>().saturating_sub(self.changing())
    }

    /// Prints the changes, a line for each port.
    pub fn show(&self, lines: &mut Lines) {
        let of = |AppliedPort { what, interface, change }: &AppliedPort| {
            change.iter().flat_map(|change| change.lines(what, interface)).collect::<Vec<_>>()
        };
        self.each.iter().flat_map(of).for_each(|line| lines.print(line));
    }

    /// Makes all changes, or none.
    ///
    /// # Errors
    /// Why none was made; or why it is not known whether they were.
    pub fn apply(&mut self) -> Result<(), Failure> {
        // Where nothing was to change another command may have changed something since.
        if self.each.is_empty() {
            return Ok(());
        }
        let done =
            change(|is_trial| control::apply(&self.name, ApplyFile { text: self.text.clone(), is_trial }))?;
        if let Some(done) = done {
            self.each = done;
        }
        Ok(())
    }

    /// The changes as JSON, by port.
    pub fn to_json(&self) -> Value {
        json!(self.each)
    }
}

/// Has all changes made by whoever is asked, who may also be asked for a trial. An answer may be lost, or come too late, when all has been
/// done; then there is none. Who refuses has changed nothing, or ends.
fn change(
    ask: impl Fn(bool) -> Result<Vec<AppliedPort>, Refusal>,
) -> Result<Option<Vec<AppliedPort>>, String> {
    let why = match ask(false) {
        Ok(done) => return Ok(Some(done)),
        Err(Refusal::Said(why)) => return Err(why),
        Err(Refusal::Unclear(why)) => why,
    };
    match ask(true) {
        Ok(left) if left.iter().all(|port| port.change.is_none()) => Ok(None),
        Ok(_) => Err(why),
        Err(_) => Err(format!(
            "{why}: whether its ports changed is not known, and `weir apply --dry-run` with the same file tells once it answers"
        )),
    }
}

#[cfg(test)]
mod tests {
    use weir_run::topology::diff::{Action, LimitChange};

    use super::*;

    fn of(what: &str, change: Option<LimitChange>) -> AppliedPort {
        AppliedPort { what: what.into(), interface: "x".into(), change }
    }

    fn changed() -> Option<LimitChange> {
        Some(LimitChange { action: Action::Change, values: Vec::new() })
    }

    #[test]
    fn an_esp_that_changes_is_no_port() {
        let with = |each, esps| Ports { each, esps, ..Ports::default() };
        let ports = with(vec![of("port", None), of("port", None), of("esp", changed())], 1);
        assert_eq!((ports.things(), ports.changing(), ports.same()), ([(2, "port"), (1, "esp")], 1, 2));
        let ports = with(vec![of("port", changed()), of("port", None)], 1);
        assert_eq!((ports.changing(), ports.same()), (1, 2), "an esp that does not change is not told of");
    }

    #[test]
    fn a_change_whose_answer_was_lost_is_looked_for() {
        let lost = || Err::<Vec<AppliedPort>, _>(Refusal::Unclear("it does not answer".into()));
        let told = |change| Ok(vec![of("port", change)]);
        assert_eq!(change(|is_trial| if is_trial { told(None) } else { lost() }), Ok(None), "it was made");
        assert_eq!(
            change(|is_trial| if is_trial { told(changed()) } else { lost() }),
            Err("it does not answer".into()),
            "it was not made"
        );
        let why = change(|_| lost()).unwrap_err();
        assert!(why.starts_with("it does not answer: whether its ports changed is not known"), "{why}");
    }

    #[test]
    fn a_change_that_was_refused_was_not_made() {
        assert_eq!(
            change(|_| Err(Refusal::Said("it has no such port".into()))),
            Err("it has no such port".into())
        );
    }
}
