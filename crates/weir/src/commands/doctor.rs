//! `weir doctor`: the abilities of this kernel and machine, and what to change.
//!
//! Every check is a trial or a measurement; none compares versions. Each trial is made in a namespace of its own, and is gone when this
//! process is ([`weir_port::probe`]).

mod kernel;
mod machine;

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::output::{colour, written};
use crate::table::{Style, TextTable};
use crate::{Outcome, human};

/// Find out what this kernel and machine can do, by doing it, and what to change; exit 1 if wires cannot run here.
///
/// Takes a second or two. What it makes is in a network namespace of its own and gone afterwards.
#[derive(clap::Args)]
pub struct DoctorArguments {
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// All is as it should be.
    Ok,
    /// Weir runs, but something could be better or is not its own doing.
    Warn,
    /// Weir cannot run.
    Fail,
    /// The check could not be made.
    Skip,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
            Status::Skip => "skip",
        }
    }

    fn style(self) -> Style {
        match self {
            Status::Ok => Style::Good,
            Status::Warn => Style::Notice,
            Status::Fail => Style::Fault,
            Status::Skip => Style::Plain,
        }
    }
}

/// One check, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    name: &'static str,
    status: Status,
    what: String,
    /// The remedy, unless all is well.
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, what: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, what: what.into(), fix: None }
    }

    fn warn(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name, status: Status::Warn, what: what.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name, status: Status::Fail, what: what.into(), fix: Some(fix.into()) }
    }

    fn skip(name: &'static str, what: impl Into<String>) -> Check {
        Check { name, status: Status::Skip, what: what.into(), fix: None }
    }

    fn to_json(&self) -> Value {
        json!({ "name": self.name, "status": self.status.name(), "what": self.what, "fix": self.fix })
    }
}

/// Runs the command.
pub fn run(arguments: &DoctorArguments) -> Outcome {
    let mut checks = kernel::checks();
    checks.extend(machine::checks());
    let can_run = can_run(&checks);
    written(print(arguments, &checks, can_run))?;
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(arguments: &DoctorArguments, checks: &[Check], can_run: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if arguments.json {
        let can_limit = can_limit(checks);
        let checks: Vec<Value> = checks.iter().map(Check::to_json).collect();
        return writeln!(
            out,
            "{:#}",
            json!({ "can_run": can_run, "can_limit": can_limit, "checks": checks })
        );
    }
    write!(out, "{}", render(checks, colour()))?;
    writeln!(out, "{}", verdict(checks))
}

/// Returns whether wires can run: not if a necessary thing failed or could not be tried.
fn can_run(checks: &[Check]) -> bool {
    checks.iter().all(|check| !matches!(check.status, Status::Fail | Status::Skip))
}

/// Limits in place take less of a kernel than wires.
fn can_limit(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.name == kernel::LIMIT && check.status == Status::Ok)
}

fn render(checks: &[Check], colour: bool) -> String {
    let mut table = TextTable::new(3, &["", "", ""]);
    for check in checks {
        let what = match &check.fix {
            Some(fix) => format!("{}; {fix}", check.what),
            None => check.what.clone(),
        };
        table.row(vec![
            (check.status.name().into(), check.status.style()),
            (check.name.into(), Style::Plain),
            (what, Style::Plain),
        ]);
    }
    table.render(colour)
}

fn verdict(checks: &[Check]) -> String {
    let count = |status| checks.iter().filter(|check| check.status == status).count() as u64;
    if checks.iter().any(|check| check.name == kernel::ROOT && check.status != Status::Ok) {
        return "weir cannot run as this user, and most could not be tried: run `sudo weir doctor`".into();
    }
    match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "weir can run here".into(),
        (0, warnings) => format!("weir can run here, with {}", human::plural(warnings, "warning")),
        (failures, _) if can_limit(checks) => {
            format!("`weir limit` can run here, wires cannot: {}", human::plural(failures, "failure"))
        }
        (failures, _) => format!("weir cannot run here: {}", human::plural(failures, "failure")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Check> {
        vec![
            Check::ok("veth", "a namespace with a veth pair"),
            Check::warn("cores", "1, which the worker shares with senders", "give it another"),
        ]
    }

    #[test]
    fn a_line_a_check_with_what_to_do() {
        let expected = "\
ok    veth   a namespace with a veth pair
warn  cores  1, which the worker shares with senders; give it another
";
        assert_eq!(render(&sample(), false), expected);
        assert_eq!(verdict(&sample()), "weir can run here, with 1 warning");
    }

    #[test]
    fn what_failed_or_was_not_tried_says_no() {
        assert!(can_run(&sample()));
        for check in [Check::fail("tcx", "no", "do"), Check::skip("tcx", "not tried")] {
            let checks = [sample(), vec![check]].concat();
            assert!(!can_run(&checks), "{checks:?}");
        }
        let checks = [sample(), vec![Check::fail("tcx", "no", "do")]].concat();
        assert_eq!(verdict(&checks), "weir cannot run here: 1 failure");
        let checks = [checks, vec![Check::ok(kernel::LIMIT, "a queue")]].concat();
        assert_eq!(verdict(&checks), "`weir limit` can run here, wires cannot: 1 failure");
        let checks = vec![Check::fail(kernel::ROOT, "no", "do")];
        assert!(verdict(&checks).contains("sudo"));
    }
}
