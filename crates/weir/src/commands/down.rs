//! `weir down`: removes the limits that a topology file names.

use std::path::PathBuf;
use std::process::ExitCode;

use weir_port::error::PortError;
use weir_port::hold;
use weir_run::topology::LimitWanted;

use super::apply::{read, target};
use super::limit::remove_one;
use crate::{Failure, Outcome, output};

/// Remove the limits of a file, each as `weir limit DEV --off` does; what it does not name stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir down weir.toml

Each limit is raised until nothing waits, then taken off while nothing is sent, so that nothing is lost. One that is not there is
no failure; one that cannot go is said, and the others go.")]
pub struct Arguments {
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let topology = read(&arguments.file)?;
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: "removing limits".into() }.into());
    }
    if topology.limits.is_empty() {
        output::print_line(format_args!(
            "{} has no limit in place, so nothing is removed",
            arguments.file.display()
        ))?;
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
