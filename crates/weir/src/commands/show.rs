//! `weir show`: the limits in place that there are, or a topology that is up, as a file.
//!
//! Rule: the printed file is read again as the limits or the topology that there are, so that applying it changes nothing.

use std::process::ExitCode;

use weir_port::error::PortError;
use weir_port::limit::find::LimitInPlace;
use weir_port::limit::record::{Direction, LimitStage};
use weir_port::netns::NetNs;
use weir_run::control::{self, Control};
use weir_run::limits::is_path_name;
use weir_run::topology::write::{LimitPlace, write};

use super::ways::LimitTarget;
use crate::{Failure, Outcome, names, output};

/// Show the limits in place that there are, or a topology that is up, as a file, which `weir apply` takes and by which it changes nothing.
///
/// Of a topology, or a wire, it is what runs now, also after `weir set` and `weir apply`. Classes stand in it, and the MACs that routers
/// have.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir show > weir.toml
  weir show veth-a office      those of these interfaces or names
  weir show gateway > now.toml what `weir up` runs under this name

What a file cannot say (a limit that is open to be removed, half made, of a `weir run`, or out of sight from here) is a comment in it.")]
pub struct ShowArguments {
    /// Interfaces or names of limits, as `weir set --help` says; or the name of one topology that is up
    #[arg(value_name = "DEV")]
    devices: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &ShowArguments) -> Outcome {
    if let [name] = &arguments.devices[..]
        && is_path_name(name)
        && control::is_up(&Control::path_of(name))
    {
        names::refuse_two_meanings(name)?;
        output::print(format_args!("{}", control::running(name)?.file))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !weir_port::sys::sees_limits() {
        return Err(PortError::NotRoot { doing: "looking at limits".into() }.into());
    }
    let seen = super::stat::limits()?;
    let mut meant = Vec::new();
    for word in &arguments.devices {
        let of_word = names::limits_of(&seen, LimitTarget { pid: None, device: word }, Some(word))?;
        let unsaid = of_word.iter().map(|limit| place(limit).err()).collect::<Option<Vec<_>>>();
        match unsaid.as_deref() {
            // One of them can be said.
            None => meant.extend(of_word),
            Some([why, ..]) => return Err(format!("no file can say {why}").into()),
            Some([]) if is_path_name(word) && control::is_up(&Control::path_of(word)) => {
                return Err(Failure::usage(format!(
                    "{word} is up, which is a file of its own: `weir show {word}`"
                )));
            }
            Some([]) => {
                // A wire that was killed has left its socket, and is asked to no avail.
                if is_path_name(word) && Control::path_of(word).exists() {
                    control::running(word)?;
                }
                return Err(names::unknown(word).into());
            }
        }
    }
    let is_asked_for = |limit: &&LimitInPlace| {
        arguments.devices.is_empty() || meant.iter().any(|meant| meant.place.is(&limit.place))
    };
    let mut places: Vec<LimitPlace> = Vec::new();
    let mut left_out = Vec::new();
    for limit in seen.iter().filter(is_asked_for) {
        match place(limit) {
            Ok(place) => places.push(place),
            Err(why) => left_out.push(why),
        }
    }
    // No limit was asked for in particular: these may be any.
    let mut comments: Vec<_> = match arguments.devices.is_empty() {
        true => left_out.iter().map(|why| format!("# left out: {why}\n")).collect(),
        false => Vec::new(),
    };
    places.sort_by(|one, other| (one.pid, &one.device).cmp(&(other.pid, &other.device)));
    if places.is_empty() {
        let of_these = if comments.is_empty() { "" } else { " that a file could say from here" };
        comments.push(format!("# there is no limit in place{of_these}\n"));
    }
    output::print(format_args!("{}{}", comments.concat(), write(&places)))?;
    Ok(ExitCode::SUCCESS)
}

/// The place of a limit as a file names it, or in words why a file cannot.
fn place(seen: &LimitInPlace) -> Result<LimitPlace<'_>, String> {
    let at = seen.place.describe();
    let Some(record) = &seen.record else {
        return Err(format!("the limit at {at}, which is {}", seen.unreadable_because()));
    };
    let name = &record.name;
    if seen.is_gone {
        return Err(format!("limit {name}, which is gone from {at}"));
    }
    if record.stage == LimitStage::Opening {
        return Err(format!("limit {name} at {at}, which is open, to be removed"));
    }
    let here = NetNs::current().map_err(|error| error.to_string())?;
    let far_end = match seen.place.far_end() {
        // A file names a pair by the host's end, or the end inside by a process.
        Err(_) if record.direction == Direction::Back || here.is(&seen.place.netns) => {
            let why = "an end of a pair whose other end cannot be seen from here";
            return Err(format!("limit {name} at {at}, {why}"));
        }
        far_end => far_end.ok().flatten(),
    };
    if names::is_run(std::iter::once(&seen.place).chain(&far_end)) {
        return Err(format!("limit {name}, which is of a `weir run` and goes with it"));
    }
    let near = match record.direction {
        Direction::There => far_end.as_ref().unwrap_or(&seen.place),
        Direction::Back => &seen.place,
    };
    let inside = match record.direction {
        Direction::There => Some(&seen.place),
        Direction::Back => far_end.as_ref(),
    };
    let is_inside = far_end.is_some() && inside.is_some_and(|inside| near.is_inside_of(inside) == Some(true));
    if here.is(&near.netns) && !is_inside {
        return Ok(LimitPlace { device: near.link.name.clone(), pid: None, record });
    }
    let inside = inside.and_then(|place| Some((place, place.netns.process()?)));
    let (inside, pid) = inside.ok_or_else(|| {
        format!("limit {name}, which was set for {}: `weir show` there says it", near.describe())
    })?;
    Ok(LimitPlace { device: inside.link.name.clone(), pid: Some(pid), record })
}
