//! `weir limit`: limits an interface where it stands, by the kernel's own queue.
//!
//! Rule: both ways are set or neither (`limit/transaction.rs`), and what can be known is refused before anything is changed. No process
//! stays: what the limit is, and what to put back, is with the queue.
//!
//! Owner: the kernel, under the holds of both ends. Source: [`weir_port::limit`]. Removal is in `limit/removal.rs`.

pub mod removal;
pub mod transaction;

use std::path::PathBuf;
use std::process::ExitCode;

use weir_core::rate::Rate;
use weir_core::units::size_text;
use weir_path::classes::Classes;
use weir_port::error::PortError;
use weir_port::hold;
use weir_port::limit::behind;
use weir_port::limit::faults;
use weir_port::limit::find::{self, LimitInPlace};
use weir_port::limit::order;
use weir_port::limit::record::{Direction, Record};
use weir_port::limit::{Asked, Done, NetnsInterface};
use weir_port::sys;
use weir_run::limits::{burst_bytes_default, burst_warnings};

use self::transaction::Transaction;
use super::ways::{LimitNames, LimitTarget, Ways};
use crate::output::Lines;
use crate::{Failure, Outcome, human, output, text};

/// Limit an interface where it stands; programs that send are held back and lose nothing.
///
/// The kernel's own queue does it, with a place of its own for each flow; no process stays. The same command again changes the limit,
/// `--off` removes it. --rate limits one way, what the programs send; --rate-back the other.
///
/// DEV is the host's end of a pair (veth): then --rate is set at its other end, where the programs are, and --rate-back at
/// DEV. With --pid it is the device inside that process's network namespace. Any other interface (tun, tap, a bridge, a network
/// card) is limited itself, in what this host sends by it. Give the command again when a container has joined a limited bridge.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir limit veth-a --rate 200mbit        what the container behind veth-a sends
  weir limit veth-a --rate-back 500mbit   what is sent to it
  weir limit --pid 4711 --rate 50mbit     what that process's container sends
  weir limit tun0 --rate 20mbit
  weir limit veth-a --rate 50mbit --classes office.toml
  weir limit veth-a --no-classes          none any more; the limit stays
  weir limit veth-a --off                 remove it, without loss
  weir limit office --off                 the same by the limit's name
  weir limit veth-a --rate 100mbit        change it, one way
  weir set veth-a --rate 100mbit          change it by its name, both ways
  weir stat                               what it does

`weir wire --help` explains classes files. In place HTB shares what classes
leave by flows, one turn each, and does without cbq, full, max_wait, queue,
quantum and interface: a file that has them is refused. A class without a parent
borrows from the limit here; in a wire it never gets above its own rate.")]
pub struct LimitArguments {
    /// The interface: the host's end of a pair, or the one that sends; or what a limit that is there is called. --off takes it as
    /// `weir set` does, whose help says what a name means
    #[arg(value_name = "DEV", conflicts_with_all = ["pid", "device"])]
    interface: Option<String>,
    /// The process whose network namespace the interface is in
    #[arg(long, value_name = "PID", value_parser = text::at_least(1_u32), allow_negative_numbers = true)]
    pid: Option<u32>,
    /// The interface there
    #[arg(long, value_name = "DEV", default_value = "eth0")]
    device: String,
    /// Limit of what the programs behind the interface send, in tc's units, such as 200mbit
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,
    /// Limit of what is sent to them
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate_back: Option<Rate>,
    /// How much may pass at once after a pause, of the same ways as --classes [default: as it is, or 2 ms at the rate, 20kb at least]
    #[arg(long, value_name = "SIZE", value_parser = text::size, allow_hyphen_values = true)]
    burst: Option<u64>,
    /// Classes that share the limit, each way whose rate is given, or of what the programs send if none is, and filters that lead to them;
    /// another file takes the place of the one there is
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Remove the classes of the same ways, without loss; the limit stays
    #[arg(long, conflicts_with = "classes")]
    no_classes: bool,
    /// The name of the limit in `weir stat` [default: as it is, or the host's end of the pair, or the device and PID]
    #[arg(long)]
    name: Option<String>,
    /// Remove the limit, both ways: raise it until nothing waits, then take the queue off while nothing is sent
    #[arg(long, conflicts_with_all = ["rate", "rate_back", "burst", "classes", "no_classes", "name"])]
    off: bool,
    /// With --off: take the queue off at once; what waits is lost, and counted. With --classes or --no-classes: flows of which packets
    /// always wait change class at once; those packets may be overtaken, once
    #[arg(long)]
    now: bool,
    /// Of wires, and looked for here
    #[arg(long, hide = true, num_args = 0..=1)]
    queue: Option<Option<String>>,
    /// The same
    #[arg(long, hide = true, num_args = 0..=1)]
    workers: Option<Option<String>>,
}

/// Runs the command.
pub fn run(arguments: &LimitArguments) -> Outcome {
    let LimitArguments { rate, rate_back, burst, classes, no_classes, queue, workers, .. } = arguments;
    if queue.is_some() {
        return Err(Failure::usage(
            "--queue is for wires: what waits at a limit in place stays with its senders, as much as their sockets hold: leave it out",
        ));
    }
    if workers.is_some() {
        return Err(Failure::usage(
            "--workers is for wires: a limit in place is the kernel's own queue, which every core serves: leave it out",
        ));
    }
    if let Some(burst_bytes) = burst {
        text::check_burst(*burst_bytes)?;
    }
    text::check_rates_in_place([*rate, *rate_back])?;
    if arguments.interface.is_none() && arguments.pid.is_none() {
        return Err(Failure::usage(
            "nothing to limit: give an interface or a limit's name (DEV), or a process whose container it is (--pid PID)",
        ));
    }
    let target = LimitTarget {
        pid: arguments.pid,
        device: arguments.interface.as_deref().unwrap_or(&arguments.device),
    };
    arguments.name.as_deref().map_or(Ok(()), text::check_limit_name)?;
    let classes = classes.as_deref().map(text::classes_in_place).transpose()?;
    let classes = classes.or_else(|| no_classes.then(Classes::none));
    if arguments.now && !arguments.off && classes.is_none() {
        return Err(Failure::usage(
            "--now is for --off, --classes and --no-classes, to do it without regard for what waits: leave it out",
        ));
    }
    let is_change = rate.is_some() || rate_back.is_some() || burst.is_some() || classes.is_some();
    if !arguments.off && !is_change && arguments.name.is_none() {
        return Err(Failure::usage(
            "nothing to do: give --rate, --rate-back, --burst, --classes, --no-classes or --name, or --off",
        ));
    }
    if !sys::sees_limits() {
        return Err(PortError::NotRoot { doing: "limiting an interface".into() }.into());
    }
    let meant = if arguments.off && target.pid.is_none() { target.ways_meant()? } else { None };
    let ways = meant.map_or_else(|| target.ways_of_limit(rate_back.is_some()), Ok)?;
    ways.say_doubt(target);
    let held: Vec<_> = ways.ends().map(|place| (&place.netns, &place.link)).collect();
    let names: Vec<_> = arguments.name.as_deref().into_iter().collect();
    let _ends = hold::ends::hold(&held, &names, &mut |text| output::say(format_args!("weir: {text}")))?;
    ways.check_still_there(target)?;
    if arguments.off {
        return removal::remove(&ways, arguments.now);
    }
    let mut names = LimitNames::look(true)?;
    let mut tasks = self::tasks(arguments, target, &ways, classes.as_ref(), &mut names)?;
    while names.given_meanwhile()?.is_some() {
        tasks = self::tasks(arguments, target, &ways, classes.as_ref(), &mut names)?;
    }
    // The name is told where a reader of the line would not expect it.
    let is_name_told = tasks.iter().any(|(_, asked)| arguments.name.is_some() || asked.name != target.device);
    set_both(&tasks, is_name_told)?;
    Ok(ExitCode::SUCCESS)
}

/// The tasks of a command: each interface with the limit that is asked for.
fn tasks<'a>(
    arguments: &LimitArguments,
    target: LimitTarget,
    ways: &'a Ways,
    classes: Option<&Classes>,
    names: &mut LimitNames,
) -> Result<Vec<(&'a NetnsInterface, Asked)>, Failure> {
    let LimitArguments { rate, rate_back, burst, .. } = arguments;
    if let Some(name) = &arguments.name {
        ways.check_name(name, names.named.iter())?;
    }
    let mut task = |place, direction, rate| -> Result<_, Failure> {
        ways.check_not_turned(place)?;
        let name = match &arguments.name {
            Some(name) => name.clone(),
            None => ways.default_name(place, target, names, |_| false)?,
        };
        let classes = classes.cloned();
        let moves_at_once = arguments.now;
        Ok((place, Asked { name, direction, rate, burst_bytes: *burst, classes, moves_at_once }))
    };
    let mut tasks = Vec::new();
    if rate.is_some() || (rate_back.is_none() && (burst.is_some() || classes.is_some())) {
        tasks.push(task(ways.there(target)?, Direction::There, *rate)?);
    }
    if rate_back.is_some() {
        tasks.push(task(ways.back(target, "--rate-back")?, Direction::Back, *rate_back)?);
    }
    let Some(name) = &arguments.name else { return Ok(tasks) };
    // A name is that of both ways.
    for place in ways.ends() {
        let is_set = tasks.iter().any(|(other, _)| other.is(place));
        let is_ours = !is_set && ways.turned_at(place).is_none();
        let there = if is_ours { find::record_at(place)? } else { None };
        if let Some(record) = there.filter(|record| record.name != *name || tasks.is_empty()) {
            let asked = Asked {
                name: name.clone(),
                direction: record.direction,
                rate: None,
                burst_bytes: None,
                classes: None,
                moves_at_once: false,
            };
            tasks.push((place, asked));
        }
    }
    if tasks.is_empty() {
        return Err(format!(
            "there is no limit at {} yet that could be called {name}: give its rate",
            ways.there.describe()
        )
        .into());
    }
    Ok(tasks)
}

/// Sets the limits that were asked for, all or nothing, and tells of each.
fn set_both(tasks: &[(&NetnsInterface, Asked)], is_name_told: bool) -> Result<(), Failure> {
    let set = set_all(tasks)?;
    let mut lines = Lines::default();
    for ((place, _), set) in tasks.iter().zip(&set) {
        tell(place, set, is_name_told, &mut lines);
    }
    lines.end()
}

/// A limit that was set.
struct SetLimit {
    done: Done,
    record: Record,
    /// True if it was so already.
    is_same: bool,
    /// True if flows changed class at once.
    moved_at_once: bool,
}

/// Sets the limits that were asked for, all or nothing: a refusal is known before anything is changed. Returns them in order.
fn set_all(tasks: &[(&NetnsInterface, Asked)]) -> Result<Vec<SetLimit>, Failure> {
    let check = |(place, asked): &(&NetnsInterface, Asked)| {
        weir_port::limit::check(place, asked, burst_bytes_default)
    };
    let before = tasks.iter().map(check).collect::<weir_port::Result<Vec<_>>>()?;
    let mut transaction = Transaction::begin()?;
    let mut set = Vec::new();
    for (&(place, ref asked), before) in tasks.iter().zip(&before) {
        if transaction.is_interrupted() {
            return Err(transaction.undo("it was interrupted").into());
        }
        match transaction.set(place, before.as_ref().map(|(record, _)| record), asked) {
            Ok((done, record)) => {
                let is_same = before
                    .as_ref()
                    .is_some_and(|(before, is_whole)| *is_whole && before.is_same_limit(&record));
                set.push(SetLimit { done, record, is_same, moved_at_once: asked.moves_at_once });
            }
            Err(error) => {
                let failure = Failure::from(error);
                return Err(Failure { message: transaction.undo(&failure.message), ..failure });
            }
        }
    }
    Ok(set)
}

/// A limit that was changed: its record before, when nobody else changed it any more, and after that.
pub struct Change {
    /// The record before; of one whose queue was gone, as it was seen.
    pub before: Record,
    /// The record now.
    pub after: Record,
}

/// Changes limits that were seen, all or none, while nobody else changes them. Returns the changes, in order.
///
/// # Errors
/// If one of them was removed since it was seen: a change does not bring it back.
pub fn hold_and_change(tasks: &[(&LimitInPlace, Asked)]) -> Result<Vec<Change>, Failure> {
    let say = &mut |text: &str| output::say(format_args!("weir: {text}"));
    let held: Vec<_> = tasks.iter().map(|(seen, _)| (&seen.place.netns, &seen.place.link)).collect();
    let _ends = hold::ends::hold(&held, &[], say)?;
    let before = tasks.iter().map(|(seen, _)| still_there(seen)).collect::<Result<Vec<_>, _>>()?;
    let tasks: Vec<_> = tasks.iter().map(|(seen, asked)| (&seen.place, asked.clone())).collect();
    let set = set_all(&tasks)?.into_iter().zip(before);
    let changes: Vec<_> = set.map(|(set, before)| Change { before, after: set.record }).collect();
    let mut warned = Vec::new();
    for ((place, asked), Change { after, .. }) in tasks.iter().zip(&changes) {
        // A burst is mostly that of both ways, and warned of once.
        let burst = (after.rate_bits_per_s, after.burst_bytes);
        if !warned.contains(&burst) {
            warn_of_burst(after);
            warned.push(burst);
        }
        say_what_stays(place, after, asked.moves_at_once);
    }
    Ok(changes)
}

/// The record of a limit now. One that was seen as gone, its queue removed by hand, is made again.
///
/// # Errors
/// If it is gone since it was seen, or set again.
fn still_there(seen: &LimitInPlace) -> Result<Record, Failure> {
    let place = seen.place.describe();
    let record = seen.record.as_ref().ok_or_else(|| format!("the limit at {place} cannot be read"))?;
    let found = find::at(&seen.place)?;
    if seen.is_gone && found.is_some() {
        let why = format!("limit {} at {place} was set again meanwhile: nothing was changed", record.name);
        return Err(why.into());
    }
    let now = if seen.is_gone { find::record_at(&seen.place)? } else { found.and_then(|found| found.record) };
    now.filter(|now| now.name == record.name).ok_or_else(|| {
        format!("limit {} at {place} is gone meanwhile: nothing was changed", record.name).into()
    })
}

/// Tells of a limit that is set.
fn tell(place: &NetnsInterface, set: &SetLimit, is_name_told: bool, lines: &mut Lines) {
    let SetLimit { done, record, is_same, moved_at_once } = set;
    let moved_at_once = *moved_at_once;
    let done = *done;
    let verb = match done {
        Done::Made => "limited",
        Done::Changed if *is_same => "so already",
        Done::Changed => "changed",
    };
    let rate =
        Rate::from_bits_per_s(record.rate_bits_per_s).map_or_else(String::new, |rate| rate.to_string());
    lines.print(format_args!(
        "{verb}: {} sends at most {rate}, {} at once; {} for each of {} flows with a socket, up to {} of what passes without",
        place.describe(),
        size_text(record.burst_bytes),
        size_text(u64::from(weir_core::limit::HELD_BYTES_EACH)),
        weir_core::limit::HELD.count,
        passing_text(record),
    ));
    if done == Done::Made && record.lost_when_set > 0 {
        lines.print(format_args!(
            "  {} lost, which waited or came while the kernel swapped the queue",
            human::plural(record.lost_when_set, "packet")
        ));
    }
    if record.direction == Direction::Back {
        lines.print(format_args!("  {}", whom_it_holds(place, record)));
    }
    if is_name_told {
        lines.print(format_args!("  called {}", record.name));
    }
    let classes = record.classes.iter().filter(|class| !class.is_going);
    let classes: Vec<_> = classes.map(|class| class.name.as_str()).collect();
    if !classes.is_empty() {
        lines.print(format_args!("  shared by the classes {}, each with as many leaves", classes.join(", ")));
    }
    warn_of_burst(record);
    warn_of_unseen(place);
    faults::refused_by_mtu(place).iter().for_each(output::warn);
    if done == Done::Made {
        warn_of_doubtful(place, Some(record));
    }
    say_what_stays(place, record, moved_at_once);
}

/// How long packets without a socket may wait at the rate, or at the lowest ceiling of its classes.
fn passing_text(record: &Record) -> String {
    record.plan().map_or_else(|_| String::new(), |plan| human::duration(plan.passing_ns_max()))
}

/// The sentence on the way back: it holds programs that send from this side.
fn whom_it_holds(place: &NetnsInterface, record: &Record) -> String {
    format!(
        "held is who sends from {} itself; what is sent from elsewhere has no sender here: up to {} of it may wait, then it is marked, and \
         dropped",
        place.netns.label(),
        passing_text(record),
    )
}

/// Says facts about a limit that is set which its user may not expect.
pub fn say_what_is_not_expected(place: &NetnsInterface, done: Done, record: &Record, moved_at_once: bool) {
    if done == Done::Made && record.direction == Direction::Back {
        output::say(format_args!("weir: {}: {}", place.describe(), whom_it_holds(place, record)));
    }
    if done == Done::Made && record.lost_when_set > 0 {
        output::warn(format_args!(
            "{}: {} lost, which waited or came while the kernel swapped the queue",
            place.describe(),
            human::plural(record.lost_when_set, "packet")
        ));
    }
    warn_of_unseen(place);
    faults::refused_by_mtu(place).iter().for_each(output::warn);
    if done == Done::Made {
        warn_of_doubtful(place, Some(record));
    }
    say_what_stays(place, record, moved_at_once);
}

/// Says which flows still go by the classes that were there before, or of those that were moved at once, that packets of theirs do.
fn say_what_stays(place: &NetnsInterface, record: &Record, moved_at_once: bool) {
    if record.filters.len() <= 1 {
        return;
    }
    let going = record.classes.iter().filter(|class| class.is_going);
    let going: Vec<_> = going.map(|class| class.name.as_str()).collect();
    let stays = if going.is_empty() { String::new() } else { format!(", and so {} stay", going.join(", ")) };
    let place = place.describe();
    output::say(match moved_at_once {
        true => format!(
            "weir: packets at {place} that waited are still sent by the class they were in{stays}: the same command later looks again"
        ),
        false => format!(
            "weir: flows at {place} of which packets still wait stay in the class they were in{stays}: the same command later looks again, \
             and with --now moves them at once, past what waits of them"
        ),
    });
}

/// Warns of a burst that was asked for.
fn warn_of_burst(record: &Record) {
    let Some(rate) = Rate::from_bits_per_s(record.rate_bits_per_s) else { return };
    burst_warnings(rate, record.burst_bytes, |usual| format!("--burst {usual}"))
        .iter()
        .for_each(output::warn);
}

/// Warns of pairs behind a bridge or another device, whose steering could not be set.
fn warn_of_unseen(place: &NetnsInterface) {
    let unseen = behind::find(place, &[]).map(|behind| behind.unseen).unwrap_or_default();
    if !unseen.is_empty() {
        output::warn(format_args!(
            "the other ends of {} are in network namespaces that cannot be seen from here, and packets of a flow may overtake each other \
             there: run weir in the host's PID namespace",
            unseen.iter().map(|pair| pair.name.as_str()).collect::<Vec<_>>().join(", ")
        ));
    }
}

/// Warns of steering that a limit may have set of which nothing else is left.
fn warn_of_doubtful(place: &NetnsInterface, record: Option<&Record>) {
    // A fault of this look is said where it matters.
    order::doubtful(place, record).unwrap_or_default().iter().for_each(output::warn);
}
