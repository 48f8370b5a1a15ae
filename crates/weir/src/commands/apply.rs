//! `weir apply`: carries a topology file out, all of it or nothing: its limits in place, and the changes of its ports that `weir up` runs.
//!
//! ```text
//! read      the file, all of it                                                   a fault of the file: nothing is touched
//! ask       the process that runs its ports for the changes (`apply/ports.rs`)    a change that cannot be live: nothing is touched
//! find      the interfaces, and hold both ends of each                            one that is missing: nothing is touched
//! compare   each limit with the one there, as setting it would do first           one that is refused: nothing is touched
//! set       one after the other                                                   one that fails: those before are put back
//! change    all ports that run, in one step                                       a failure: the limits are put back
//! ```
//!
//! Rule: an interface that no table of the file names is not touched. Killed half-way, it leaves limits that are set and perhaps one that
//! is half made, which `weir stat --check` says; the same command again finishes. A signal that asks it to end is heard between two limits,
//! and puts back.
//!
//! Owner: the kernel, under the holds of all ends, so that two commands come one after the other. Limits: a file is as wide as a network
//! namespace and the ends that can be reached from it by a pair or a process.

mod ports;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use weir_port::error::PortError;
use weir_port::hold;
use weir_port::limit::record::{Direction, Record};
use weir_port::limit::{Asked, NetnsInterface};
use weir_run::limits::burst_bytes_default;
use weir_run::nearest::and;
use weir_run::topology::diff::{LimitChange, LimitNow, compare};
use weir_run::topology::{LimitWanted, Topology};

use self::ports::Ports;
use super::limit::say_what_is_not_expected;
use super::limit::transaction::Transaction;
use super::ways::{LimitNames, LimitTarget, Ways};
use crate::output::Lines;
use crate::{Failure, Outcome, human, output, text};

/// The looks for an interface that may be about to go.
const GONE_LOOKS: usize = 25;
const GONE_LOOK_EVERY: Duration = Duration::from_millis(20);

/// Make limits, and ports that are up, what a file says, under load and without loss: all of it or nothing.
///
/// It says what it sets (+) and changes (~), and does no more than that: what the file does not name stays, and a second time nothing is
/// left to do. What can be known first is: interfaces that are missing, queues of others, classes that do not fit. If one limit fails all
/// the same, those before it are put back as they were.
///
/// Ports must be up: `weir up` of the file before. What leaves by them changes live: rates, bursts, queues, classes and filters, of all ports
/// at once. What waits stays, and no flow is reordered. Associations, policies, `address` and `mtu` of an `[[esp]]` change live too. For other
/// ports, bridges, routers, links or dispatch run `weir down` and `weir up`.
#[derive(clap::Args)]
#[command(after_help = concat!("Examples:
  weir apply weir.toml --dry-run     what it would do
  weir apply weir.toml
  weir apply gateway.toml            after `weir up gateway.toml`, and an edit
  weir down weir.toml                remove its limits
  weir show > weir.toml              the limits that there are, as a file
  make-limits | weir apply -         a file from a program

", include_str!("file-help.txt")))]
pub struct ApplyArguments {
    /// The file, or - for standard input
    file: PathBuf,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Flows of which packets always wait change class at once; those packets may be overtaken, once
    #[arg(long, conflicts_with = "dry_run")]
    now: bool,
    /// Tell what is done as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &ApplyArguments) -> Outcome {
    let topology = read(&arguments.file)?;
    let mut ports = Ports::check(&topology, &arguments.file)?;
    if !weir_port::sys::is_root() {
        let file = text::input_name(&arguments.file);
        let doing = match arguments.dry_run {
            true => format!("looking at the limits that {file} would change"),
            false => format!("applying {file}"),
        };
        return Err(PortError::NotRoot { doing }.into());
    }
    let manner = Manner { dry_run: arguments.dry_run, now: arguments.now, is_shown: !arguments.json };
    bring_about(&topology, &mut ports, manner, |lines, ports, tasks, skipped| match arguments.json {
        true => lines.print(to_json(arguments, ports, tasks, skipped)),
        false => lines.print(sum(arguments, ports, tasks)),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Sets the limits in place of a file, and says which those are.
pub fn set(topology: &Topology) -> Result<(), Failure> {
    let manner = Manner { dry_run: false, now: false, is_shown: true };
    bring_about(topology, &mut Ports::default(), manner, |_, _, _, _| ())
}

/// The manner in which a file is carried out.
struct Manner {
    /// True if nothing is changed.
    dry_run: bool,
    /// True if flows change class at once.
    now: bool,
    /// True if each change is printed.
    is_shown: bool,
}

/// Finds, holds, compares and, unless it is a dry run, sets and changes; `tell` is called at the end with the tasks and the skipped limits.
fn bring_about(
    topology: &Topology,
    ports: &mut Ports,
    Manner { dry_run, now, is_shown }: Manner,
    tell: impl FnOnce(&mut Lines, &Ports, &[Task], &[&LimitWanted]),
) -> Result<(), Failure> {
    let (found, mut skipped) = find_all(topology)?;
    let held: Vec<_> = found.iter().flat_map(|(_, ways)| ways.ends()).collect();
    let held: Vec<_> = held.iter().map(|place| (&place.netns, &place.link)).collect();
    let names: Vec<_> = topology.limits.iter().filter_map(|wanted| wanted.name.as_deref()).collect();
    let mut say = |text: &str| output::say(format_args!("weir: {text}"));
    let _ends = (!dry_run).then(|| hold::ends::hold(&held, &names, &mut say)).transpose()?;
    let mut names = LimitNames::look(!dry_run)?;
    let (mut tasks, vanished) = tasks(topology, &found, now, &mut names)?;
    if let Some(name) = names.given_meanwhile()? {
        return Err(format!(
            "another limit was called {name} meanwhile: nothing was changed, so apply the file again"
        )
        .into());
    }
    skipped.extend(vanished);
    let mut lines = Lines::default();
    if is_shown {
        show(&mut lines, &tasks, &skipped);
    }
    if !dry_run {
        for vanished in carry_out(&tasks, ports)? {
            tasks.retain(|task| task.wanted.at != vanished.at);
            skipped.push(vanished);
        }
    }
    if is_shown {
        ports.show(&mut lines);
    }
    tell(&mut lines, ports, &tasks, &skipped);
    if dry_run { lines.write() } else { lines.end() }
}

/// The topology of a file, or all faults of the file.
pub fn read(file: &std::path::Path) -> Result<Topology, Failure> {
    text::topology(file)?.map_err(|told| Failure::usage(told.join("\nweir: ")))
}

/// The interface that a table names.
pub fn target(wanted: &LimitWanted) -> LimitTarget<'_> {
    LimitTarget { pid: wanted.pid, device: &wanted.device }
}

/// Returns whether an interface is gone, or about to go: of a container that ends the namespace goes first, and its pair a moment later, so
/// that its other end is `out_of_sight`.
fn goes(is_gone: impl Fn() -> bool, out_of_sight: impl Fn() -> bool) -> bool {
    is_gone()
        || out_of_sight()
            && (0..GONE_LOOKS).any(|_| {
                std::thread::sleep(GONE_LOOK_EVERY);
                is_gone()
            })
}

/// Returns whether one of these interfaces is gone, or about to go.
fn vanishes<'a>(places: impl Iterator<Item = &'a NetnsInterface> + Clone) -> bool {
    let is_gone = || places.clone().any(NetnsInterface::is_gone);
    goes(is_gone, || places.clone().any(|place| place.far_end().is_err()))
}

/// One limit that is to be as the file says.
struct Task<'a> {
    wanted: &'a LimitWanted,
    place: &'a NetnsInterface,
    asked: Asked,
    before: Option<Record>,
    /// The change; none where the limit is so already.
    change: Option<LimitChange>,
}

/// The interfaces of all limits, without those that may be missing and are; or a sentence for each that is not there.
#[expect(clippy::type_complexity, reason = "two lists, used once")]
fn find_all(topology: &Topology) -> Result<(Vec<(&LimitWanted, Ways)>, Vec<&LimitWanted>), Failure> {
    let (mut found, mut skipped, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for wanted in &topology.limits {
        let target = target(wanted);
        if wanted.is_optional && target.is_missing() {
            skipped.push(wanted);
            continue;
        }
        match target.ways(wanted.rate_back.is_some()) {
            Err(_)
                if wanted.is_optional && goes(|| target.is_missing(), || target.half_of_pair().is_some()) =>
            {
                skipped.push(wanted)
            }
            Ok(ways) => {
                ways.say_doubt(target);
                found.push((wanted, ways));
            }
            Err(failure) => told.push(format!("{}: {}{}", wanted.at, failure.message, target.nearest())),
        }
    }
    if told.is_empty() { Ok((found, skipped)) } else { Err(told.join("\nweir: ").into()) }
}

/// The tasks, and the optional limits whose interfaces have vanished; or a sentence for each limit that cannot be set.
fn tasks<'a>(
    topology: &Topology,
    found: &'a [(&'a LimitWanted, Ways)],
    moves_at_once: bool,
    names: &mut LimitNames,
) -> Result<(Vec<Task<'a>>, Vec<&'a LimitWanted>), Failure> {
    let is_named_here = |place: &NetnsInterface| {
        let mut here = found.iter().filter(|(wanted, _)| wanted.name.is_some());
        here.any(|(wanted, ways)| {
            // A way that the file does not limit keeps its limit, and that its name.
            let there = wanted.rate.map(|_| &ways.there);
            let back = wanted.rate_back.and_then(|_| ways.back(target(wanted), "rate_back").ok());
            there.into_iter().chain(back).any(|end| end.is(place))
        })
    };
    let is_wanted = |name: &str| {
        let is_path = topology.plan.is_some() && topology.name == name;
        is_path || topology.limits.iter().any(|limit| limit.name.as_deref() == Some(name))
    };
    let (mut tasks, mut vanished, mut told) = (Vec::<Task>::new(), Vec::new(), Vec::new());
    for (wanted, ways) in found {
        for (direction, rate) in [(Direction::There, wanted.rate), (Direction::Back, wanted.rate_back)] {
            let Some(rate) = rate else { continue };
            let target = target(wanted);
            let mut look = || -> Result<Task<'a>, Failure> {
                let place = match direction {
                    Direction::There => &ways.there,
                    Direction::Back => ways.back(target, "rate_back")?,
                };
                if let Some(Task { wanted: other, .. }) = tasks.iter().find(|task| task.place.is(place)) {
                    return Err(format!("{} has a limit by {} already", place.describe(), other.at).into());
                }
                if let Some(name) = &wanted.name {
                    // A limit that the file names loses the name that it has.
                    ways.check_name(name, names.named.iter().filter(|(place, _)| !is_named_here(place)))?;
                }
                let is_given = |name: &str| {
                    let is_of_other = |task: &Task| !ways.ends().any(|end| end.is(task.place));
                    is_wanted(name) || tasks.iter().any(|task| task.asked.name == name && is_of_other(task))
                };
                let asked = Asked {
                    name: match &wanted.name {
                        Some(name) => name.clone(),
                        None => ways.default_name(place, target, names, is_given)?,
                    },
                    direction,
                    rate: Some(rate),
                    burst_bytes: Some(wanted.burst_bytes.unwrap_or_else(|| burst_bytes_default(rate))),
                    classes: Some(wanted.classes.clone()),
                    moves_at_once,
                };
                let now = weir_port::limit::check(place, &asked, burst_bytes_default)?;
                let of = now.as_ref().map(|(record, is_whole)| LimitNow { record, is_whole: *is_whole });
                let change = compare(of, &asked);
                Ok(Task { wanted, place, asked, before: now.map(|(record, _)| record), change })
            };
            match look() {
                Ok(task) => tasks.push(task),
                Err(_) if wanted.is_optional && vanishes(ways.ends()) => {
                    say_vanished(wanted, &ways.there);
                    vanished.push(*wanted);
                    break;
                }
                Err(failure) => told.push(format!("{}: {}", wanted.at, failure.message)),
            }
        }
    }
    tasks.retain(|task| vanished.iter().all(|wanted| wanted.at != task.wanted.at));
    if told.is_empty() { Ok((tasks, vanished)) } else { Err(told.join("\nweir: ").into()) }
}

/// Sets all limits that change, then changes the ports; or puts back the limits that were set. Returns the optional limits whose interfaces
/// have vanished meanwhile.
fn carry_out<'a>(tasks: &[Task<'a>], ports: &mut Ports) -> Result<Vec<&'a LimitWanted>, Failure> {
    let changing: Vec<_> = tasks.iter().filter(|task| task.change.is_some()).collect();
    let mut vanished = Vec::<&LimitWanted>::new();
    let mut transaction = Transaction::begin()?;
    for task in &changing {
        if vanished.iter().any(|wanted| wanted.at == task.wanted.at) {
            continue;
        }
        if transaction.is_interrupted() {
            return Err(transaction.undo("it was interrupted").into());
        }
        match transaction.set(task.place, task.before.as_ref(), &task.asked) {
            Ok((done, record)) => {
                say_what_is_not_expected(task.place, done, &record, task.asked.moves_at_once);
            }
            // As if it had not been there at the look before.
            Err(_) if task.wanted.is_optional && vanishes(std::iter::once(task.place)) => {
                say_vanished(task.wanted, task.place);
                vanished.push(task.wanted);
            }
            Err(_) if task.place.is_gone() => {
                let why = format!("{}: {} vanished meanwhile", task.wanted.at, task.place.describe());
                return Err(transaction.undo(&why).into());
            }
            Err(error) => return Err(transaction.undo(&format!("{}: {error}", task.wanted.at)).into()),
        }
    }
    ports.apply().map_err(|failure| match changing.is_empty() {
        true => failure,
        false => transaction.undo(&failure.message).into(),
    })?;
    Ok(vanished)
}

fn say_vanished(wanted: &LimitWanted, place: &NetnsInterface) {
    let place = place.describe();
    output::say(format_args!("weir: {}: {place} vanished meanwhile, which is optional", wanted.at));
}

fn show(lines: &mut Lines, tasks: &[Task], skipped: &[&LimitWanted]) {
    for task in tasks {
        if let Some(change) = &task.change {
            lines.print(format_args!("{} {}: {change}", change.sign(), task.place.describe()));
        }
    }
    for wanted in skipped {
        lines.print(format_args!("skipped: there is no {}, which is optional", target(wanted).label()));
    }
}

/// The outcome, in a line.
fn sum(arguments: &ApplyArguments, ports: &Ports, tasks: &[Task]) -> String {
    let file = text::input_name(&arguments.file);
    // Both ways of a limit have one name.
    let mut limits = BTreeMap::<_, Vec<_>>::new();
    tasks.iter().for_each(|task| limits.entry(&task.asked.name).or_default().push(task));
    let limits: Vec<_> = limits.into_values().collect();
    let is_new = |ways: &[&Task]| ways.iter().all(|task| task.before.is_none());
    let changing = limits.iter().filter(|ways| ways.iter().any(|task| task.change.is_some()));
    let (set, changed): (Vec<_>, Vec<_>) = changing.partition(|ways| is_new(ways));
    let (set, changed) = (set.len(), changed.len());
    let same = ports.same() + limits.len() - set - changed;
    let changed = changed + ports.changing();
    match (set + changed, arguments.dry_run) {
        (0, _) => {
            let of_ports = ports.things().into_iter().filter(|(number, _)| *number > 0);
            let mut there: Vec<_> =
                of_ports.map(|(number, what)| human::plural(number as u64, what)).collect();
            if !limits.is_empty() || there.is_empty() {
                there.push(human::plural(limits.len() as u64, "limit"));
            }
            let there: Vec<_> = there.iter().map(String::as_str).collect();
            format!("nothing to change: {} as {file} says", and(&there))
        }
        (_, true) => format!("nothing done: {set} to set, {changed} to change, {same} as {file} says"),
        (_, false) => format!("applied: {set} set, {changed} changed, {same} as before"),
    }
}

fn to_json(arguments: &ApplyArguments, ports: &Ports, tasks: &[Task], skipped: &[&LimitWanted]) -> Value {
    let limit = |task: &Task| {
        json!({
            "at": task.wanted.at,
            "name": task.asked.name,
            "interface": task.place.link.name,
            "netns": task.place.netns.label(),
            "direction": task.asked.direction,
            "change": task.change,
        })
    };
    json!({
        "file": arguments.file.display().to_string(),
        "dry_run": arguments.dry_run,
        "ports": ports.to_json(),
        "limits": tasks.iter().map(limit).collect::<Vec<_>>(),
        "skipped": skipped.iter().map(|wanted| target(wanted).label()).collect::<Vec<_>>(),
    })
}
