//! `weir down`: ends what `weir up` runs of a topology file, and removes the limits that it names.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use weir_port::error::PortError;
use weir_port::hold;
use weir_run::clock::now_ns;
use weir_run::control::{self, Command, Control};
use weir_run::topology::LimitWanted;

use super::apply::{read, target};
use super::limit::remove_one;
use crate::{Failure, Outcome, output};

/// How long a topology may take to end.
const PATIENCE_NS: u64 = 10_000_000_000;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// End what a file runs, and remove its limits, each as `weir limit DEV --off` does; what it does not name stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir down weir.toml

What is inside the ports of a file that is up is delivered, then they are put back as they were. Each limit is raised until nothing waits, then taken off while nothing is sent, so that nothing is lost. One that is not there is
no failure; one that cannot go is said, and the others go.")]
pub struct DownArguments {
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &DownArguments) -> Outcome {
    let topology = read(&arguments.file)?;
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: "removing limits".into() }.into());
    }
    if topology.plan.is_some() {
        end(&topology.name)?;
    }
    let mut status = ExitCode::SUCCESS;
    for wanted in &topology.limits {
        match remove(wanted) {
            Ok(true) => {}
            Ok(false) => status = ExitCode::FAILURE,
            Err(failure) => {
                status = ExitCode::FAILURE;
                output::say(format_args!("weir: {}: {}", wanted.at, failure.message));
            }
        }
    }
    Ok(status)
}

/// Ends the topology of this name, if it is up.
fn end(name: &str) -> Result<(), Failure> {
    let path = Control::path_of(name);
    if !control::is_up(&path) {
        return output::print_line(format_args!("topology {name} is not up"));
    }
    control::ask(&path, &Command::Stop)?;
    let until_ns = now_ns() + PATIENCE_NS;
    while control::is_up(&path) {
        if now_ns() >= until_ns {
            return Err(format!(
                "topology {name} has not ended after 10 s: look what it does with `weir stat {name}`"
            )
            .into());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    output::print_line(format_args!("ended: topology {name}"))
}

/// Whether a limit is gone as it should be.
fn remove(wanted: &LimitWanted) -> Result<bool, Failure> {
    let target = target(wanted);
    if target.is_missing() {
        output::print_line(format_args!("there is no {}, and so no limit", target.label()))?;
        return Ok(true);
    }
    let ways = target.ways(wanted.rate_back.is_some())?;
    let held: Vec<_> = ways.ends().map(|place| (&place.netns, &place.link)).collect();
    let _ends = hold::ends(&held, &mut |text| output::say(format_args!("weir: {text}")))?;
    let there = wanted.rate.map(|_| Ok(&ways.there));
    let back = wanted.rate_back.map(|_| ways.back(target, "rate_back"));
    let mut is_done = true;
    for place in there.into_iter().chain(back) {
        let place = place?;
        match remove_one(place, false)? {
            Some(is_gone) => is_done &= is_gone,
            None => output::print_line(format_args!("there is no limit at {}", place.describe()))?,
        }
    }
    Ok(is_done)
}
