//! `weir set`: changes a wire, or a limit in place, while it carries traffic.

use std::path::Path;
use std::process::ExitCode;

use weir_core::rate::Rate;
use weir_port::limit::find::Seen;
use weir_port::limit::record::Direction;
use weir_run::control::{self, Command, Control, SetClasses, ask};
use weir_run::limits::SetLimits;
use weir_run::stats::ClassStats;

use super::wire::LimitArguments;
use crate::{Failure, Outcome, text};

/// Change the limits of a wire that is up, or of a limit in place; nothing is lost and nothing reordered.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir set veth-a --rate 100mbit
  weir set veth-a --rate 100mbit --burst 40kb --queue 10ms
  weir set veth-a --rate-back 20mbit        from B to A alone
  weir set run-4711 --rate 5mbit            a program's, while it runs
  weir set veth-a --classes office.toml     those of the same name stay")]
pub struct Arguments {
    /// The name of the wire, the limit or the run, as `weir stat` shows it
    wire: String,
    #[command(flatten)]
    limit: LimitArguments,
    /// The new limit of the direction back; without it --rate is for both
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate_back: Option<Rate>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { wire, limit, rate_back } = arguments;
    text::check_limit_name(wire)?;
    if let Some(burst_bytes) = limit.burst {
        text::check_burst(burst_bytes)?;
    }
    // As when a wire is made: what is said of no direction in particular is for both.
    let both =
        limit.rate.is_some() || (rate_back.is_none() && (limit.burst.is_some() || limit.queue.is_some()));
    let changes: Vec<_> = [(0, limit.rate, both), (1, rate_back.or(limit.rate), both || rate_back.is_some())]
        .into_iter()
        .filter(|(_, _, wanted)| *wanted)
        .map(|(direction, rate, _)| SetLimits {
            direction,
            rate_bits_per_s: rate.map(Rate::bits_per_s),
            burst_bytes: limit.burst,
            queue_ns: limit.queue,
        })
        .collect();
    if changes.is_empty() && limit.classes.is_none() {
        return Err(Failure::usage(
            "nothing to change: give --rate, --rate-back, --burst, --queue or --classes",
        ));
    }
    // A wire listens; a limit has nobody who could.
    if !Control::path_of(wire).exists() {
        let limits = super::stat::limits(Some(wire))?;
        if !limits.is_empty() {
            return set_in_place(&limits, arguments);
        }
    }
    if limit.queue.is_some() {
        let shares = |class: &ClassStats| !class.classes.is_empty();
        let has_classes = limit.classes.is_some()
            || control::stat(wire)?.wires.iter().any(|wire| wire.classes.iter().any(shares));
        text::check_queue(limit.queue, has_classes)?;
    }
    let classes = limit.classes.as_deref().map(|file| read_classes(wire, file)).transpose()?;
    for change in changes {
        ask(&Control::path_of(wire), &Command::Set(change))?;
    }
    if let Some(classes) = classes {
        ask(&Control::path_of(wire), &Command::SetClasses(classes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the limits of one name, each way that there is one.
fn set_in_place(limits: &[Seen], Arguments { wire, limit, rate_back }: &Arguments) -> Outcome {
    if let Some(option) = limit.queue.map(|_| "--queue").or(limit.classes.as_ref().map(|_| "--classes")) {
        return Err(Failure::usage(format!("{option} is for wires, and {wire} is a limit in place")));
    }
    let direction = |seen: &Seen| seen.record.as_ref().map(|record| record.direction);
    if rate_back.is_some() && limits.iter().all(|seen| direction(seen) != Some(Direction::Back)) {
        return Err(Failure::usage(format!(
            "{wire} does not limit the way back: `weir limit DEV --rate-back RATE` sets a limit of it"
        )));
    }
    for seen in limits {
        let Some(direction) = direction(seen) else { continue };
        let rate = match direction {
            Direction::There => limit.rate,
            Direction::Back => rate_back.or(limit.rate),
        };
        if rate.is_some() || limit.burst.is_some() {
            super::limit::hold_and_set(&seen.place, wire, direction, rate, limit.burst)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The file, checked for the interfaces of the wire.
fn read_classes(wire: &str, file: &Path) -> Result<SetClasses, Failure> {
    let snapshot = control::stat(wire)?;
    let ports = &snapshot.wires.first().ok_or("the wire that answered is none")?.ports;
    let (text, _) = text::classes(file, ports.each_ref().map(String::as_str))?;
    Ok(SetClasses { file: file.display().to_string(), text })
}
