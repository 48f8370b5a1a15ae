//! `weir down`: ends the topology that `weir up` runs of a file, and removes the limits that the file names.
//!
//! Rule: a running topology is found by its name, as the file says it or is called itself; so it ends also when the file was edited. A file
//! that has gone or is wrong says nothing for sure: nothing is touched, and the name is told by which what is up ends. Limits: nobody
//! knows which limits such a file had; they stay.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use weir_port::error::PortError;
use weir_port::hold;
use weir_port::limit::NetnsInterface;
use weir_port::limit::find::LimitInPlace;
use weir_port::netns::NetNs;
use weir_port::sys;
use weir_run::clock::now_ns;
use weir_run::control::{self, Command, Control, Listener, Running};
use weir_run::datapath::Kind;
use weir_run::topology::{LimitWanted, Topology, name_of};

use super::apply::target;
use super::limit::removal::remove_each;
use super::limit::transaction::Interruption;
use super::stat;
use super::ways::Ways;
use crate::output::Lines;
use crate::{Failure, Outcome, names, output, text};

/// The longest time that a topology may take to end, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// End what a file runs, and remove its limits, each as `weir limit DEV --off` does; what it does not name stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir down weir.toml
  weir down office                   what is up under this name, where the file
                                     is gone; limits that the file set stay

What is inside the ports of a file that is up, and what stands in the pairs of
those who have sent, is delivered, for 1.5 seconds at most, and what is left
then is told as undelivered where it was started; then they are put back as they
were. Each limit is raised until nothing waits, then taken off while nothing is
sent, so that nothing is lost. One whose interface has another name since is
found by its own. One that cannot go, or is not for sure the file's, is said,
and the others go.
What a file names and is not up or there is no failure (status 0). A name under
which nothing is up is one (status 2), as is a file that is not there.
A `weir run` by a wire is up under its name, and ends with its program. One
whose limit is in place is not: a signal to it or its program ends it.
A topology that a service manager runs may come up again, also later when its
interfaces come: `systemctl stop weir@office` ends that for good.")]
pub struct DownArguments {
    /// The file, or - for standard input, or the name of what is up
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &DownArguments) -> Outcome {
    let file = &arguments.file;
    let failure = match text::topology(file) {
        Ok(Ok(topology)) => return down(&topology),
        Ok(Err(told)) => Failure::usage(told.join("\nweir: ")),
        Err(failure) => failure,
    };
    if text::is_standard_input(file) {
        return Err(failure);
    }
    let named = name_alone(file);
    let name = named.map_or_else(|| called(file), str::to_owned);
    let mut lines = Lines::default();
    if is_there(&name) {
        if named.is_none() {
            let message = format!(
                "{}\nweir: nothing was touched: `weir down {name}` ends what is up under that name",
                failure.message
            );
            return Err(Failure { message, ..failure });
        }
        // A file that happens to be called so is not what was meant.
        require(sys::is_root())?;
        let waited = end_waiting(&name, &mut lines)?;
        if !waited || control::is_up(&Control::path_of(&name)) {
            end(&name, Kind::Topology.noun(), &mut lines)?;
        }
        return lines.end().map(|()| ExitCode::SUCCESS);
    }
    if let (false, Some(outcome)) = (file.exists(), of_killed(&name, &mut lines)) {
        return outcome.and_then(|()| lines.end()).map(|()| ExitCode::SUCCESS);
    }
    Err(match file.exists() {
        true => failure,
        false => {
            if let Some(message) = names::not_for_down(&name) {
                return Err(Failure { message, ..failure });
            }
            Failure { message: format!("{}, and {}", failure.message, names::unknown(&name)), ..failure }
        }
    })
}

/// The name that an argument is, if it is no path of a file by its looks. The second of a name has a number behind it, as in `office.2`.
fn name_alone(file: &Path) -> Option<&str> {
    file.to_str().filter(|text| !text.contains('/') && !text.ends_with(".toml"))
}

fn require(is_allowed: bool) -> Result<(), Failure> {
    match is_allowed {
        true => Ok(()),
        false => Err(PortError::NotRoot { doing: "ending a topology and removing limits".into() }.into()),
    }
}

/// The name that a file which cannot be read, or is wrong, still says; or its own.
fn called(file: &Path) -> String {
    let own = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    text::read_file(file).ok().and_then(|text| name_of(&text)).unwrap_or_else(own)
}

/// Ends the topology of a file, and removes its limits.
fn down(topology: &Topology) -> Outcome {
    require(if topology.limits.is_empty() { sys::is_root() } else { sys::sees_limits() })?;
    let name = &topology.name;
    // Written last: an output that takes no more keeps nothing here from being done.
    let mut lines = Lines::default();
    let waited = is_waiting(topology) && end_waiting(name, &mut lines)?;
    let is_up = control::is_up(&Control::path_of(name));
    let mut status = ExitCode::SUCCESS;
    let noun = topology.plan.as_ref().map_or(Kind::Topology, Kind::of).noun();
    if is_up && !is_of(topology) {
        lines.print(format_args!(
            "{name}, which is up, has no port of this file, and stays: `weir down {name}` ends it"
        ));
    } else if (topology.plan.is_some() && !waited || is_up)
        && let Err(failure) = end(name, noun, &mut lines)
    {
        // The limits go all the same.
        status = ExitCode::FAILURE;
        output::say(format_args!("weir: {}", failure.message));
    }
    let others = if is_up { Vec::new() } else { others(topology) };
    for other in others {
        lines.print(format_args!(
            "{other} is up with ports that are or were called so, here or in another network namespace; `weir down {other}` would end it"
        ));
    }
    if !topology.limits.is_empty() && !remove_limits(topology, &mut lines)? {
        status = ExitCode::FAILURE;
    }
    lines.end().map(|()| status)
}

/// Returns whether what is up under the name of a topology is that, as far as it tells: another wire or topology may be called so. A file may
/// have lost its ports since it was brought up, but a single wire needs none.
fn is_of(topology: &Topology) -> bool {
    let name = &topology.name;
    match &topology.plan {
        Some(_) => control::running(name).map_or(true, |running| has_ports_of(topology, &running)),
        None => noun_of(name) != Kind::Wire.noun(),
    }
}

/// Returns whether a process waits for the ports of this topology.
fn is_waiting(topology: &Topology) -> bool {
    let path = Control::waiting_path_of(&topology.name);
    // One that does not answer is asked to end, which says so.
    control::is_up(&path)
        && control::running_at(&path).map_or(true, |running| has_ports_of(topology, &running))
}

/// Returns whether a port of a running topology is this one's, by its interface's name now or when it came up, which the file still has.
fn has_ports_of(topology: &Topology, running: &Running) -> bool {
    let is_of_this = |interface: &str| {
        topology.plan.iter().flat_map(|plan| &plan.ports).any(|port| port.interface == interface)
    };
    running.ports.iter().any(|port| is_of_this(&port.interface) || is_of_this(&port.interface_before))
}

/// The topologies that are up and have ports of this one, by their names.
fn others(topology: &Topology) -> Vec<String> {
    // A topology that does not answer has none.
    let is_of_this =
        |name: &String| control::running(name).is_ok_and(|running| has_ports_of(topology, &running));
    control::names().into_iter().filter(is_of_this).collect()
}

/// The word for the wire or topology of a name: a topology, if it does not tell its counters.
fn noun_of(name: &str) -> &'static str {
    let told = control::stat(name).ok();
    told.and_then(|told| told.each().next().map(|(kind, ..)| kind.noun())).unwrap_or("topology")
}

/// The sentence on a name whose socket nobody listens at any more.
fn killed(name: &str) -> String {
    format!(
        "{name} was killed together with its guardian, as `weir stat {name}` says: `weir mend` puts right what it left"
    )
}

/// Returns whether something is up under this name, or waits to be.
fn is_there(name: &str) -> bool {
    [Control::path_of(name), Control::waiting_path_of(name)].iter().any(|path| control::is_up(path))
}

/// Ends a process that waits until it can run a topology of this name. Returns whether there was one. It may be up by now, and then it
/// listens already.
fn end_waiting(name: &str, lines: &mut Lines) -> Result<bool, Failure> {
    let path = Control::waiting_path_of(name);
    if !control::is_up(&path) {
        return Ok(false);
    }
    end_at(&path, name)?;
    if !control::is_up(&Control::path_of(name)) {
        lines.print(format_args!("ended: {name}, which waited for its interfaces"));
    }
    Ok(true)
}

/// Asks whoever listens at `path` to end, and waits until it has; `what` is its name in words.
fn end_at(path: &Path, what: &str) -> Result<(), Failure> {
    let asked = Listener::at(path);
    match control::ask(path, &Command::Stop) {
        // Another command has ended it meanwhile.
        Err(_) if !asked.is_up() => {}
        answer => answer.map(drop)?,
    }
    let until_ns = now_ns() + PATIENCE_NS;
    while asked.is_up() {
        if now_ns() >= until_ns {
            return Err(format!("{what} has not ended after 10 s: look what it does with `weir stat`").into());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Ends what is called so, if it is up; `noun` is the word for it if it is not.
fn end(name: &str, noun: &str, lines: &mut Lines) -> Result<(), Failure> {
    let path = Control::path_of(name);
    if !control::is_up(&path) {
        return of_killed(name, lines).unwrap_or_else(|| {
            lines.print(format_args!("{noun} {name} is not up"));
            Ok(())
        });
    }
    let noun = noun_of(name);
    end_at(&path, &format!("{noun} {name}"))?;
    // One that was killed meanwhile is put back by its guardian.
    if control::is_left_for_good(name) {
        return Err(killed(name).into());
    }
    lines.print(format_args!("ended: {noun} {name}"));
    if control::is_up(&path) {
        output::say(format_args!(
            "weir: {name} is up again: whoever runs it started it anew, such as a service manager (`systemctl stop weir@{name}`)"
        ));
    }
    Ok(())
}

/// The outcome for what was killed: its guardian has put everything back, or it was killed too; `None` for what was not.
fn of_killed(name: &str, lines: &mut Lines) -> Option<Result<(), Failure>> {
    let path = Control::path_of(name);
    if !control::is_socket(&path) || control::is_up(&path) {
        return None;
    }
    Some(match control::is_left_for_good(name) {
        true => Err(killed(name).into()),
        false => {
            lines.print(format_args!("{name} was killed, and its guardian has put everything back"));
            Ok(())
        }
    })
}

/// Removes the limits of a file, while no other command changes any of them. Returns whether all are gone as they should be.
fn remove_limits(topology: &Topology, lines: &mut Lines) -> Result<bool, Failure> {
    let mut is_done = true;
    let mut fail = |wanted: &LimitWanted, message: &str| {
        is_done = false;
        output::say(format_args!("weir: {}: {message}", wanted.at));
    };
    let all = stat::limits()?;
    let current = NetNs::current()?;
    let here: Vec<_> =
        all.iter().filter(|seen| ends_of(seen).iter().any(|end| end.netns.is(&current))).collect();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for wanted in &topology.limits {
        // Another namespace's interface may be called so too, and its limit after that.
        let among = if wanted.pid.is_none() { here.clone() } else { all.iter().collect() };
        match find(wanted, topology, among) {
            Ok(Some(ways)) => found.push((wanted, ways)),
            Ok(None) => missing.push(wanted),
            Err(failure) => fail(wanted, &failure.message),
        }
    }
    // One that cannot go does not hinder the others.
    found.retain(|(wanted, ways)| {
        let why = ways.ends().find_map(|end| hold::ends::in_use(&end.netns, &end.link));
        why.inspect(|why| fail(wanted, why)).is_none()
    });
    let _ends = loop {
        let ends = found.iter().flat_map(|(_, ways)| ways.ends());
        let ends: Vec<_> = ends.map(|end| (&end.netns, &end.link)).collect();
        let held = hold::ends::hold(&ends, &[], &mut |text| output::say(format_args!("weir: {text}")));
        let Err(error) = held else { break held };
        // Another command has had one of them for long.
        let before = found.len();
        found.retain(|(wanted, ways)| {
            let is_free = ways.ends().all(|end| hold::ends::command_at(&end.netns, &end.link).is_none());
            if !is_free {
                fail(wanted, &error.to_string());
            }
            is_free
        });
        if found.len() == before {
            return Err(error.into());
        }
    };
    found.retain(|(wanted, ways)| {
        let another = ways.check_still_there(target(wanted)).err().filter(|_| ways.has_limit());
        another.inspect(|failure| fail(wanted, &failure.message)).is_none()
    });
    let places: Vec<_> = found.iter().flat_map(|(_, ways)| ways.ends()).collect();
    let interruption = Interruption::begin()?;
    let mut are_gone = true;
    for (wanted, ways) in &found {
        match remove(wanted, ways, &interruption, lines) {
            Ok(is_gone) => are_gone &= is_gone,
            Err(failure) => fail(wanted, &failure.message),
        }
    }
    for wanted in missing {
        let label = target(wanted).label();
        let may_be = |seen: &&LimitInPlace| may_be(wanted, seen, &places, &here);
        match (wanted.pid, all.iter().find(may_be)) {
            _ if wanted.is_optional => {
                lines.print(format_args!("skipped: there is no {label}, which is optional"));
            }
            (Some(pid), _) => lines.print(format_args!(
                "there is no {label}: if the interface outlived process {pid}, so did its limit, which `weir stat` lists then"
            )),
            (None, None) => lines.print(format_args!("there is no {label}, and so no limit")),
            (None, Some(seen)) => fail(
                wanted,
                &format!(
                    "there is no {label}, and a limit that was set for it may still be there, such as that at {}: `weir stat` lists them, and \
                     `weir limit NAME --off` removes one",
                    seen.place.describe()
                ),
            ),
        }
    }
    Ok(is_done && are_gone)
}

/// The interface of a limit, and the other end of its pair if that can be seen.
fn ends_of(seen: &LimitInPlace) -> Vec<NetnsInterface> {
    seen.place.try_clone().into_iter().chain(seen.place.far_end().ok().flatten()).collect()
}

/// The ends of the limit that a table means `among` these, as `weir limit DEV --off` finds them; `None` if there is neither its interface nor
/// a limit of its name.
fn find(
    wanted: &LimitWanted,
    topology: &Topology,
    among: Vec<&LimitInPlace>,
) -> Result<Option<Ways>, Failure> {
    let target = target(wanted);
    let is_anothers = |other: &LimitWanted| other.name.as_ref() == Some(&wanted.device);
    let is_after_device = wanted.pid.is_none() && !topology.limits.iter().any(is_anothers);
    let name = wanted.name.as_deref().or(is_after_device.then_some(&wanted.device));
    match Ways::of_first(names::limits_of(among, target, name)?, name) {
        None if !target.is_missing() => target.ways(wanted.rate_back.is_some()).map(Some),
        ways => Ok(ways),
    }
}

/// Returns whether a limit may be that of a table, whose interface is missing: it is called so, but has no end here any more, or it has one
/// `here` and may have got another name. One that is called as its interface was set for that; those at `places` are other tables'.
fn may_be(
    wanted: &LimitWanted,
    seen: &LimitInPlace,
    places: &[&NetnsInterface],
    here: &[&LimitInPlace],
) -> bool {
    let ends = ends_of(seen);
    if ends.iter().any(|end| places.iter().any(|place| place.is(end))) {
        return false;
    }
    let name = seen.record_or_left().map(|record| record.name);
    let is_of_end = |end: &NetnsInterface| Some(&end.link.name) == name.as_ref();
    let is_here = here.iter().any(|other| other.place.is(&seen.place));
    let is_called = name.as_ref() == Some(wanted.name.as_ref().unwrap_or(&wanted.device));
    is_called || is_here && !names::is_run(ends.iter()) && !ends.iter().any(is_of_end)
}

/// Removes the limits of a table, whose ends are held. Returns whether they are gone as they should be.
fn remove(
    wanted: &LimitWanted,
    ways: &Ways,
    interruption: &Interruption,
    lines: &mut Lines,
) -> Result<bool, Failure> {
    let target = target(wanted);
    let there = wanted.rate.map(|_| ways.there(target)).transpose();
    let back = wanted.rate_back.map(|_| ways.back(target, "rate_back")).transpose();
    let places: Vec<_> =
        [&there, &back].into_iter().filter_map(|way| way.as_ref().ok().copied().flatten()).collect();
    let removed = remove_each(places.iter().copied(), false, interruption, lines);
    for (place, outcome) in places.iter().zip(removed.iter().flatten()) {
        if outcome.is_none() {
            lines.print(format_args!("there is no limit at {}", place.describe()));
        }
    }
    let (removed, mut failures) = match removed {
        Ok(outcomes) => (outcomes.into_iter().flatten().all(|is_gone| is_gone), Vec::new()),
        Err(failure) => (false, vec![failure]),
    };
    failures.extend(there.err().into_iter().chain(back.err()));
    let message = failures.iter().map(|failure| failure.message.as_str()).collect::<Vec<_>>().join("; ");
    match failures.into_iter().next() {
        None => Ok(removed),
        Some(first) => Err(Failure { message, ..first }),
    }
}
