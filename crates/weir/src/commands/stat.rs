//! `weir stat`: the counters of wires, topologies, stacks and limits in place.
//!
//! Rule: each is asked by itself, so that one that does not answer, or does not add up, is said and hides no other. `--check` proves of each
//! that what came in is what left, was dropped by a reason, or is inside.
//!
//! Owner: the processes that answer; of limits in place the kernel. Limits: counters of different processes are of different moments.

mod associations;
mod classes;
mod interval;
mod limits;
#[cfg(test)]
mod sample;
mod sockets;
mod stages;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;
use weir_port::hold::left::{self, Left};
use weir_port::limit::find::{LimitInPlace, LimitsFound};
use weir_port::limit::sees_all_processes;
use weir_port::signals::{SIGINT, SIGTERM, Signals};
use weir_run::books::Books;
use weir_run::clock::now_ns;
use weir_run::control::{self, Answers, Control};
use weir_run::stats::{PortStats, Snapshot};
use weir_run::workstreams;

pub use self::limits::read as limits;
use super::backlog;
use crate::output::{colour, written};
use crate::{Failure, Outcome, human, names, output};

/// The sentence to users other than root.
const LIMITS_HIDDEN: &str =
    "limits in place, as those of `weir run`, are shown to root with CAP_SYS_ADMIN alone";
/// The pause before a limit that is not whole is looked at again, and how often that is done: making one takes long on a busy machine.
const MOMENT: Duration = Duration::from_millis(300);
const MOMENTS: u32 = 5;
/// The lines of `-i` after which the next interval has a header again.
const HEADER_EVERY: usize = 20;

/// Show counters; with --check prove that none of them hides a lost packet.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir stat                   every wire, topology, stack and limit in place
  weir stat veth-a --json     one of them, for programs
  weir stat -i 1              a line a second, as `netstat -iw 1`
  weir stat --check           prove accepted = delivered + dropped + held, and
                              that no device dropped what nothing explains
  weir stat -Q                the tables of `netstat -Q`

`weir stat --help` explains the columns.", after_long_help = include_str!("stat-help.txt"))]
pub struct StatArguments {
    /// One wire, topology, stack, limit or run only; of a limit what it is called or the interface that it limits, as `weir set --help` says
    #[arg(value_name = "NAME")]
    wire: Option<String>,
    /// As one JSON object; with -i one object a line
    #[arg(long)]
    json: bool,
    /// The tables of `netstat -Q`: configuration, protocols, workstreams; with --json they are in the object anyway
    #[arg(short = 'Q', long, conflicts_with_all = ["check", "interval"])]
    queues: bool,
    /// Prove accepted = delivered + dropped + held everywhere, and that no device or queue dropped what no event explains; exit 1 if it
    /// fails
    #[arg(long)]
    check: bool,
    /// Print what happened since the last line, a line for each of them, every so many seconds, such as 2 or 500ms
    #[arg(short, long, value_name = "SECONDS", value_parser = crate::text::seconds(0.01, 86_400.0), conflicts_with = "check", allow_negative_numbers = true)]
    interval: Option<Duration>,
    /// End after so many intervals
    #[arg(long, value_name = "N", requires = "interval", value_parser = crate::text::at_least(1_u64), allow_negative_numbers = true)]
    count: Option<u64>,
}

/// Runs the command.
pub fn run(arguments: &StatArguments) -> Outcome {
    arguments.wire.as_deref().map_or(Ok(()), crate::text::check_limit_name)?;
    let result = match arguments.interval {
        Some(interval) => watch(arguments, interval),
        None => show(arguments),
    };
    result.or_else(|error| match error {
        Fault::Output(error) => written(Err(error)).map(|()| ExitCode::SUCCESS),
        Fault::Other(failure) => Err(failure),
    })
}

/// A failure; an output that nobody reads any more is none.
enum Fault {
    Output(io::Error),
    Other(Failure),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Output(error)
    }
}

/// The counters and limits that were asked for.
struct Seen {
    answers: Answers,
    limits: Vec<LimitInPlace>,
}

impl Seen {
    /// Returns whether nothing that was asked for could be read.
    fn is_empty(&self) -> bool {
        self.answers.all.is_empty() && self.limits.is_empty()
    }

    /// Says of each that could not be read why.
    fn say_unread(&self) {
        self.answers.unread.iter().for_each(|error| output::say(format_args!("weir: {error}")));
    }

    /// Refuses a name that nothing has.
    fn require_known(&self, arguments: &StatArguments) -> Result<(), Fault> {
        match &arguments.wire {
            Some(name) if self.is_empty() && self.answers.unread.is_empty() => {
                Err(Fault::Other(names::unknown(name).into()))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the counters and limits that were asked for: none for a name that nothing has. A wire that cannot be read hides neither the others
/// nor a limit.
fn read(arguments: &StatArguments) -> Result<Seen, Fault> {
    let LimitsFound { seen: limits, unread } = limits_of(arguments)?;
    let mut answers = Answers::default();
    match &arguments.wire {
        None => {
            answers = control::stat_all();
            answers.unread.extend(unread);
        }
        Some(_) if !limits.is_empty() => {}
        Some(name) => match control::stat(name) {
            // The name is nothing's.
            Err(_) if !Control::path_of(name).exists() => {}
            told => answers.add(told),
        },
    }
    Ok(Seen { answers, limits })
}

/// The limits that were asked for.
fn limits_of(arguments: &StatArguments) -> Result<LimitsFound, Fault> {
    let limits = match arguments.wire.as_deref() {
        None => limits::read_all().map_err(Failure::from),
        Some(name) if control::is_up(&Control::path_of(name)) => {
            names::refuse_two_meanings(name).map(|()| LimitsFound::default())
        }
        Some(name) => names::limits_meant(name).map(|seen| LimitsFound { seen, unread: Vec::new() }),
    };
    limits.map_err(Fault::Other)
}

/// The limits, as they are some moments later where they are not whole, without those that are gone then: a `weir run` that starts or ends
/// makes or removes its own.
fn lasting(
    mut limits: Vec<LimitInPlace>,
    look_again: impl Fn() -> Result<LimitsFound, Fault>,
) -> Result<Vec<LimitInPlace>, Fault> {
    for _ in 0..MOMENTS {
        if limits.iter().all(LimitInPlace::is_whole) {
            break;
        }
        std::thread::sleep(MOMENT);
        let LimitsFound { seen: mut again, unread } = look_again()?;
        let place_of = |limit: &LimitInPlace| (limit.place.describe(), limit.place.link.ifindex);
        let now = |limit: LimitInPlace| {
            let at = again.iter().position(|other| place_of(other) == place_of(&limit));
            match at.filter(|_| !limit.is_whole()) {
                Some(at) => Some(again.swap_remove(at)),
                None => Some(limit).filter(|limit| limit.is_whole() || !unread.is_empty()),
            }
        };
        limits = limits.into_iter().filter_map(now).collect();
    }
    Ok(limits)
}

fn show(arguments: &StatArguments) -> Result<ExitCode, Fault> {
    let waiting = arguments.wire.is_none().then(control::stat_all_waiting);
    let mut seen = read(arguments)?;
    seen.require_known(arguments)?;
    seen.answers.add_waiting(waiting.unwrap_or_default());
    seen.say_unread();
    if arguments.check {
        seen.limits = lasting(seen.limits, || limits_of(arguments))?;
    }
    let Seen { answers: Answers { all: snapshot, unread, mut faults, proven }, limits } = seen;
    let mut out = io::stdout().lock();
    if arguments.json {
        let text = serde_json::to_value(&snapshot).and_then(|mut value| {
            // Limits that nobody can see are null.
            let are_seen = arguments.wire.is_some() || weir_port::sys::sees_limits();
            value["limits"] =
                if are_seen { limits.iter().map(limits::to_json).collect() } else { Value::Null };
            serde_json::to_string_pretty(&value)
        });
        writeln!(out, "{}", text.map_err(|error| Fault::Other(error.into()))?)?;
    } else if snapshot.is_empty() && limits.is_empty() {
        let checked = if arguments.check { "; nothing was checked" } else { "" };
        // One that was killed is said above.
        if unread.is_empty() && (snapshot.waiting.is_empty() || arguments.check) {
            writeln!(out, "{}{checked}", none_up())?;
        }
    } else if arguments.queues {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let tables = workstreams::tables(&snapshot.workstreams, cpus);
        write!(out, "{}", output::harmless(&tables.to_string()))?;
    } else if !arguments.check {
        if !snapshot.is_empty() {
            write!(out, "{}", output::harmless(&text::render(&snapshot, colour())))?;
        }
        for seen in &limits {
            write!(out, "{}", output::harmless(&limits::render(seen)))?;
        }
    }
    if !arguments.json && (!arguments.queues || snapshot.is_empty()) {
        print_waiting(&snapshot, &mut out)?;
    }
    // A limit that is asked for by name is there, and seen.
    let is_hidden = arguments.wire.is_none() && !weir_port::sys::sees_limits();
    let unchecked = is_hidden && arguments.check;
    if unchecked {
        output::say(format_args!(
            "weir: {LIMITS_HIDDEN}, so nobody has looked whether they are whole: try sudo"
        ));
    } else if is_hidden && !snapshot.is_empty() {
        output::say(format_args!("weir: {LIMITS_HIDDEN}: try sudo"));
    }
    let status = if unread.is_empty() && !unchecked { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let is_all = arguments.wire.is_none();
    let mut left = if is_all || !limits.is_empty() { left::all() } else { Vec::new() };
    // Of a run that was asked for by name, its interface.
    let is_asked_for = |left: &Left| limits.iter().any(|seen| left.things.contains(&seen.place.describe()));
    left.retain(|left| is_all || is_asked_for(left));
    let left = left.iter().map(Left::sentence);
    // It harms nobody, and so is no fault.
    if is_all && limits.is_empty() && weir_port::sys::sees_limits() {
        backlog::left_for(MOMENT).inspect(|sentence| output::say(format_args!("weir: {sentence}")));
    }
    if !arguments.check {
        left.for_each(|sentence| output::say(format_args!("weir: {sentence}")));
        return Ok(status);
    }
    let (sound, unsound): (Vec<_>, Vec<_>) =
        limits.iter().partition(|seen| seen.command.is_none() && seen.faults().is_empty());
    faults.extend(unsound.iter().flat_map(|seen| seen.faults()));
    for sentence in unsound.iter().filter_map(|seen| seen.what_changes_it()) {
        output::say(format_args!("weir: {sentence}"));
    }
    faults.extend(left);
    for fault in &faults {
        output::say(format_args!("weir: {fault}"));
    }
    // The proof of a wire that has carried nothing yet is printed too, unless it is one of those with faults.
    if !arguments.json && !snapshot.is_empty() && (faults.is_empty() || proven != Books::default()) {
        writeln!(out, "{}", proof(&proven))?;
    }
    if !arguments.json && faults.is_empty() {
        for (name, device) in snapshot.ports.iter().flat_map(PortStats::devices) {
            if device.state != "up" {
                writeln!(out, "{name} is not up ({}): nothing passes there", device.state)?;
            }
        }
    }
    let whole = limits::number_of_whole(&sound, &unsound);
    if !arguments.json && whole > 0 {
        writeln!(out, "{} whole, none dropped a packet with a socket", human::plural(whole, "limit"))?;
    }
    Ok(if faults.is_empty() { status } else { ExitCode::FAILURE })
}

/// Prints a line for each that is not up yet.
fn print_waiting(snapshot: &Snapshot, out: &mut impl Write) -> io::Result<()> {
    snapshot.waiting.iter().try_for_each(|(name, interfaces)| {
        writeln!(out, "{}", output::harmless(&names::not_up_yet(name, interfaces)))
    })
}

/// Why there is nothing to show.
fn none_up() -> String {
    const WIRE: &str =
        "no wire is up: `weir wire A B --rate 200mbit` joins two veth interfaces, `weir up FILE` any number";
    const LIMIT: &str = "`weir limit DEV --rate 200mbit` limits one where it stands";
    match weir_port::sys::sees_limits() {
        true if sees_all_processes() => format!("{WIRE}; no limit is set: {LIMIT}"),
        true => format!("{WIRE}; no limit is set that is seen from here: {LIMIT}; {}", names::SEE_ALL),
        false => format!("{WIRE}; {LIMITS_HIDDEN}"),
    }
}

fn proof(totals: &Books) -> String {
    let dropped = totals.dropped.values().map(|amount| amount.packets).sum();
    let [accepted, delivered, dropped, held] =
        [totals.accepted.packets, totals.delivered.packets, dropped, totals.held.packets].map(human::count);
    format!(
        "conservation holds: accepted {accepted} = delivered {delivered} + dropped {dropped} + held {held}"
    )
}

/// A line an interval for each until a signal, the end of the last, or so many lines as were asked for.
fn watch(arguments: &StatArguments, interval: Duration) -> Result<ExitCode, Fault> {
    let signals = signals()?;
    let reading = |seen: Seen| interval::Reading::new(seen.answers.all, &seen.limits, now_ns());
    let first = read(arguments)?;
    first.require_known(arguments)?;
    match &first.answers.unread[..] {
        [unread, ..] if first.is_empty() => return Err(Fault::Other(unread.as_str().into())),
        _ => first.say_unread(),
    }
    let mut before = reading(first);
    let mut next_ns = now_ns();
    let mut below_header = None;
    for _ in 0..arguments.count.unwrap_or(u64::MAX) {
        if let (true, Some(name)) = (before.is_empty(), &arguments.wire) {
            output::say(format_args!("weir: {name} is gone"));
            break;
        }
        if before.is_empty() {
            let waiting = control::stat_all_waiting();
            waiting.unread.iter().for_each(|error| output::say(format_args!("weir: {error}")));
            let mut text = Vec::new();
            match waiting.all.waiting.is_empty() {
                _ if arguments.json => {}
                true => writeln!(text, "{}", none_up())?,
                false => print_waiting(&waiting.all, &mut text)?,
            }
            output::write_while(&String::from_utf8_lossy(&text), || signals.try_recv().is_err())?;
            break;
        }
        // From the start, so that the time that a line takes to print does not add up; intervals in which it was stopped are over.
        next_ns = (next_ns + interval.as_nanos() as u64).max(now_ns());
        let wait = Duration::from_nanos(next_ns.saturating_sub(now_ns()));
        if signals.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let seen = read(arguments)?;
        if let (true, [unread, ..]) = (seen.is_empty(), &seen.answers.unread[..]) {
            match &arguments.wire {
                // It is about to end, or answers again.
                Some(name) if control::is_up(&Control::path_of(name)) => {
                    seen.say_unread();
                    continue;
                }
                // It has just ended.
                Some(name) if !control::is_socket(&Control::path_of(name)) => {}
                _ => return Err(Fault::Other(unread.as_str().into())),
            }
        } else {
            seen.say_unread();
        }
        // One that was not read may be there.
        let is_whole = seen.answers.unread.is_empty();
        let after = reading(seen);
        let lines = interval::between(&before, &after);
        let name_width = lines.iter().map(interval::Line::name_width).max().unwrap_or(0).max(8);
        let mut text = String::new();
        if !arguments.json && !lines.is_empty() && below_header.is_none_or(|below| below >= HEADER_EVERY) {
            text += &format!("{}\n", interval::header(name_width));
            below_header = Some(0);
        }
        for line in &lines {
            if arguments.json {
                text += &format!("{}\n", line.to_json());
                continue;
            }
            text += &format!("{}\n", output::harmless(&line.to_text(name_width)));
        }
        below_header = below_header.map(|below| below + lines.len());
        // The last that goes is said above, with what ends.
        if is_whole && !after.is_empty() {
            let gone = interval::gone(&before, &after);
            gone.iter().for_each(|name| output::say(format_args!("weir: {name} is gone")));
        }
        if !output::write_while(&text, || signals.try_recv().is_err())? {
            break;
        }
        before = after;
    }
    Ok(ExitCode::SUCCESS)
}

/// The signals that interrupt a wait, in place of ending the process in the middle of a line.
fn signals() -> Result<Receiver<i32>, Fault> {
    let (sender, receiver) = channel();
    let signals = Signals::block(&[SIGINT, SIGTERM])
        .map_err(|error| Fault::Other(format!("waiting for signals: {error}").into()))?;
    output::hurry(true);
    std::thread::spawn(move || {
        while let Ok(received) = signals.wait() {
            if sender.send(received.signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_one_line() {
        assert_eq!(
            proof(&sample::snapshot().totals),
            "conservation holds: accepted 1,246,912 = delivered 1,246,597 + dropped 3 + held 312"
        );
        assert!(sample::snapshot().check().is_empty(), "the sample adds up");
    }
}
