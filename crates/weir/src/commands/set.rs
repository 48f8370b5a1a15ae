//! `weir set`: changes a wire, a port of a topology, or a limit in place, while it carries traffic.
//!
//! Rule: what is not asked for stays as it is, and one line says what was changed, from what to what. Limits of one name change all or none.
//!
//! Owner: the process that runs a wire or a topology, which is asked by its control socket; of a limit in place the kernel, under the holds
//! of its ends. Limits: the ways of a wire are changed one after the other.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use weir_core::rate::Rate;
use weir_core::units::size_text;
use weir_path::classes::Classes;
use weir_port::limit::Asked;
use weir_port::limit::find::{LimitInPlace, STRANGE};
use weir_port::limit::record::{Direction, LimitStage, Record};
use weir_run::classes::Interfaces;
use weir_run::control::{self, ChangedLimits, Command, Control, LimitValues, Running, SetClasses, ask};
use weir_run::datapath::Kind;
use weir_run::limits::{NO_LIMIT, SetLimits};
use weir_run::nearest::{and, called_now, did_you_mean, or};
use weir_run::stats::{DirectionStats, Snapshot};

use super::limit::{Change, hold_and_change};
use super::wire::RateArguments;
use crate::{Failure, Outcome, names, output, text};

/// Change the limits of a wire or a topology that is up, or of a limit in place; nothing is lost and nothing reordered.
///
/// Of a topology it changes one port, of which it limits what leaves by it. What waits stays, and goes on at the new rate. The file of a
/// topology is left as it is: `weir show NAME` prints what runs.
///
/// NAME is the whole of a wire or a limit, so --rate alone is for both its ways; `weir limit DEV --rate` is for one, what the programs send.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir set veth-a --rate 100mbit
  weir set veth-a --rate 100mbit --burst 40kb --queue 10ms
  weir set veth-a --rate-back 20mbit        from B to A alone
  weir set run-4711 --rate 5mbit            a program's, while it runs
  weir set veth-a --classes office.toml     those of the same name stay
  weir set veth-a --no-classes              none any more
  weir set router --port uplink --rate 50mbit    what leaves by a port

NAME is what something is called in `weir stat`, or an interface here that has a
limit. A limit that nobody gave a name to is called after its interface, in
another network namespace perhaps: if an interface here is called so, and has a
limit, that one is meant. What may still mean two is refused, with what to
write. It is so in every command that takes names of limits.

One line says what was changed, from what to what. A burst or queue that was
asked for stays until another is; one that was not follows the rate. --queue is
not for a limit in place. A topology needs --port, and its ports take neither
--rate-back nor classes: these are in its file.")]
pub struct SetArguments {
    /// The name of the wire, the topology, the limit or the run, as `weir stat` shows it; or the interface here that a limit is of
    #[arg(value_name = "NAME")]
    wire: String,
    /// The port of a topology, by its interface or its name in the file
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    #[command(flatten)]
    limit: RateArguments,
    /// Remove the classes: what waits in them is sent, and the limit stays
    #[arg(long, conflicts_with = "classes")]
    no_classes: bool,
    /// In place, with --classes or --no-classes: flows of which packets always wait change class at once; those may be overtaken, once
    #[arg(long)]
    now: bool,
    /// The new limit of the direction back; without it --rate is for both
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate_back: Option<Rate>,
}

/// Runs the command.
pub fn run(arguments: &SetArguments) -> Outcome {
    let SetArguments { wire, port, limit, no_classes, rate_back, now } = arguments;
    text::check_limit_name(wire)?;
    if let Some(burst_bytes) = limit.burst {
        text::check_burst(burst_bytes)?;
    }
    // As when a wire is made: a value of no direction in particular is for both.
    let both =
        limit.rate.is_some() || (rate_back.is_none() && (limit.burst.is_some() || limit.queue.is_some()));
    let change = |direction, rate: Option<Rate>| SetLimits {
        direction,
        rate_bits_per_s: rate.map(Rate::bits_per_s),
        burst_bytes: limit.burst,
        queue_ns: limit.queue,
    };
    let mut changes = Vec::new();
    changes.extend(both.then(|| change(0, limit.rate)));
    changes.extend((both || rate_back.is_some()).then(|| change(1, rate_back.or(limit.rate))));
    if changes.is_empty() && limit.classes.is_none() && !no_classes {
        return Err(Failure::usage(
            "nothing to change: give --rate, --rate-back, --burst, --queue, --classes or --no-classes",
        ));
    }
    if *now && limit.classes.is_none() && !no_classes {
        return Err(Failure::usage(
            "--now is for --classes and --no-classes, so that flows change class at once: leave it out",
        ));
    }
    // A wire listens; a limit has nobody who could.
    let path = Control::path_of(wire);
    let is_up = control::is_up(&path);
    if !is_up {
        let limits = names::limits_meant(wire)?;
        match (limits.is_empty(), port) {
            // A wire that was killed has left its socket, and is asked to no avail.
            (true, _) if path.exists() => {}
            (true, _) => return Err(names::unknown(wire).into()),
            (false, None) => return set_in_place(&limits, arguments),
            (false, Some(_)) => {
                let why = format!("--port is for topologies, and {wire} is a limit in place");
                return Err(Failure::usage(why));
            }
        }
    }
    if *now {
        return Err(Failure::usage(format!(
            "--now is for limits in place, and {wire} is none: leave it out"
        )));
    }
    // A wire of another version may count in another way, and yet be changed.
    let before = control::stat(wire);
    let is_topology = match &before {
        Ok(snapshot) => !snapshot.topologies.is_empty(),
        // It may tell its ports all the same; a wire has two.
        Err(_) => control::running(wire).is_ok_and(|running| running.ports.len() > 2),
    };
    // A port of a topology is nothing else.
    if is_up && !(is_topology && port.is_some()) {
        names::refuse_two_meanings(wire)?;
    }
    let is_stack = |snapshot: &Snapshot| snapshot.topologies.iter().any(|path| path.process.is_some());
    if before.as_ref().is_ok_and(is_stack) {
        // A stack has no ports and classes to look for, and refuses in its own words.
        ask(&Control::path_of(wire), &Command::Set(change(0, limit.rate)))?;
    }
    if is_topology || port.is_some() {
        let direction = direction(arguments, is_topology, before.as_ref().ok())?;
        changes = vec![change(direction, limit.rate)];
    }
    if let Ok(before) = &before {
        changes.iter().try_for_each(|change| require_rate(before, change))?;
    }
    if limit.queue.is_some() {
        let before = before.clone()?;
        let directions = changes.iter().filter_map(|change| directions(&before).nth(change.direction));
        let has_classes = directions.into_iter().any(|direction| !direction.classes.is_empty());
        text::check_queue(limit.queue, (has_classes && !no_classes) || limit.classes.is_some())?;
    }
    let set_classes = match &limit.classes {
        Some(file) => Some(Command::SetClasses(read_classes(wire, file)?)),
        None => None,
    };
    // A limit has a queue of its own only without classes.
    let remove_classes = no_classes.then_some(Command::RemoveClasses);
    let requests = remove_classes.into_iter().chain(changes.into_iter().map(Command::Set)).chain(set_classes);
    let mut changed = Vec::new();
    let mut had_classes = false;
    for (done, request) in requests.enumerate() {
        let answer = ask(&Control::path_of(wire), &request).map_err(|why| match done {
            0 => why,
            _ => format!("{why}; what was asked before it is done, as `weir stat {wire}` shows"),
        })?;
        match request {
            Command::Set(SetLimits { direction, .. }) => changed.push((direction, answer)),
            Command::RemoveClasses => had_classes = answer == true,
            _ => {}
        }
    }
    if let Ok(after) = control::stat(wire) {
        // The classes of a wire are those of both directions.
        let is_touched =
            |at| limit.classes.is_some() || changed.iter().any(|(direction, _)| *direction == at);
        let touched = directions(&after).enumerate().filter(|(at, _)| is_touched(*at));
        text::warn_of_oversold(touched.filter_map(|(_, direction)| shared(direction)));
    }
    let kind = if is_topology { Kind::Topology } else { Kind::Wire }.noun();
    let told = before.and_then(|before| ways_changed(&before, changed, limit.queue.is_some()));
    output::print_done(match told {
        Ok((before, after)) => {
            let mut parts = changed_parts(&before, &after);
            parts.extend(classes_part(limit.classes.as_deref(), had_classes));
            line(kind, wire, &parts)
        }
        Err(why) => format!("{wire} is as asked, and from what to what is not known: {why}"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The directions of a wire or a topology, in the order in which they are counted.
fn directions(snapshot: &Snapshot) -> impl Iterator<Item = &DirectionStats> {
    snapshot.wires.iter().chain(&snapshot.topologies).flat_map(|path| &path.classes)
}

/// The ways that were changed, each before and after: by the answers to the changes themselves, because others may change them too.
fn ways_changed(
    seen: &Snapshot,
    changed: Vec<(usize, Value)>,
    with_queue: bool,
) -> Result<(Vec<Way>, Vec<Way>), String> {
    let way = |(direction, answer)| {
        let name = &directions(seen).nth(direction).ok_or("there is no such direction any more")?.place.name;
        let ChangedLimits { before, after } = serde_json::from_value(answer)
            .map_err(|_| "it was started by another version of weir, which does not say so".to_string())?;
        Ok([before, after].map(|limits| Way::of_wire(name, limits.as_ref(), with_queue)).into())
    };
    changed.into_iter().map(way).collect()
}

/// Refuses a burst or queue of a direction without a limit before any direction changes: each is a request of its own.
fn require_rate(before: &Snapshot, change: &SetLimits) -> Result<(), Failure> {
    let unlimited = directions(before)
        .nth(change.direction)
        .filter(|direction| direction.rate_bits_per_s.or(change.rate_bits_per_s).is_none());
    unlimited.map_or(Ok(()), |direction| {
        let name = &direction.place.name;
        Err(format!("{name} {NO_LIMIT}").into())
    })
}

/// The limit of a direction, and the rates of the classes without a parent that share it.
fn shared(direction: &DirectionStats) -> Option<(Rate, Vec<u64>)> {
    let roots = direction.classes.iter().filter(|class| class.parent.is_none());
    Some((
        Rate::from_bits_per_s(direction.rate_bits_per_s?)?,
        roots.filter_map(|class| class.rate_bits_per_s).collect(),
    ))
}

/// The direction that leaves by the port that was named: by a name of its own in the file, by its interface, as it is called now, or by
/// the name that stands for it in the file.
fn direction(
    SetArguments { wire, port, limit, no_classes, rate_back, .. }: &SetArguments,
    is_topology: bool,
    seen: Option<&Snapshot>,
) -> Result<usize, Failure> {
    let Running { ports, .. } = control::running(wire)?;
    let now = seen.map_or(&[][..], |seen| &seen.ports);
    let interfaces: Vec<_> = match now.len() == ports.len() {
        true => now.iter().map(|port| port.name.as_str()).collect(),
        false => ports.iter().map(|port| port.interface.as_str()).collect(),
    };
    let Some(wanted) = port else {
        return Err(Failure::usage(format!(
            "{wire} is a topology, of which one port is set: give --port with {}, or change its file and `weir apply` it",
            or(&interfaces)
        )));
    };
    let used = [
        ("--rate-back", rate_back.is_some()),
        ("--classes", limit.classes.is_some()),
        ("--no-classes", *no_classes),
    ];
    if let Some((option, _)) = used.iter().find(|(_, is_used)| *is_used) {
        return Err(Failure::usage(format!(
            "{option} is not for one port: --rate limits what leaves by it, and its classes are in the file that `weir apply` takes"
        )));
    }
    let by_own_name =
        ports.iter().position(|port| port.name == *wanted && port.name != port.interface_before);
    let by_interface = || interfaces.iter().position(|interface| interface == wanted);
    let by_name = || ports.iter().position(|port| port.name == *wanted);
    let place = by_own_name.or_else(by_interface).or_else(by_name);
    let Some(place) = place else {
        let known = ports.iter().map(|port| port.name.as_str()).chain(interfaces.iter().copied());
        let before = ports.iter().zip(&interfaces).find(|(port, _)| port.interface_before == *wanted);
        let near = match before {
            Some((_, now)) => called_now(wanted, now),
            None => did_you_mean(wanted, known),
        };
        return Err(Failure::usage(format!(
            "{wire} has no port {wanted}: its ports are {}{near}",
            and(&interfaces)
        )));
    };
    // A wire counts its two directions by where they start.
    Ok(if is_topology { place } else { Kind::Wire.exit_of(place) })
}

/// Changes the limits of one name, each way that there is one.
fn set_in_place(limits: &[LimitInPlace], arguments: &SetArguments) -> Outcome {
    let SetArguments { wire, limit, no_classes, rate_back, now, .. } = arguments;
    if limit.queue.is_some() {
        return Err(Failure::usage(format!("--queue is for wires, and {wire} is a limit in place")));
    }
    text::check_rates_in_place([limit.rate, *rate_back])?;
    let classes = limit.classes.as_deref().map(text::classes_in_place).transpose()?;
    let classes = classes.or_else(|| no_classes.then(Classes::none));
    let records = limits.iter().map(|seen| Ok((seen, seen.record.as_ref().ok_or_else(|| unreadable(seen))?)));
    let records: Vec<_> = records.collect::<Result<_, Failure>>()?;
    if rate_back.is_some() && records.iter().all(|(_, record)| record.direction != Direction::Back) {
        return Err(Failure::usage(format!(
            "{wire} does not limit the way back: `weir limit DEV --rate-back RATE` sets a limit of it"
        )));
    }
    if limit.rate.is_some()
        && rate_back.is_some()
        && records.iter().all(|(_, record)| record.direction == Direction::Back)
    {
        return Err(Failure::usage(format!(
            "{wire} limits the way back alone: `weir limit DEV --rate RATE` sets a limit of the other way"
        )));
    }
    let mut tasks = Vec::new();
    for &(seen, record) in &records {
        let (rate, burst_bytes) = match record.direction {
            // A burst beside the rate of the way back alone is that way's.
            Direction::There if limit.rate.is_none() && rate_back.is_some() => (None, None),
            Direction::There => (limit.rate, limit.burst),
            Direction::Back => (rate_back.or(limit.rate), limit.burst),
        };
        if rate.is_some() || burst_bytes.is_some() || classes.is_some() {
            let (name, direction) = (record.name.clone(), record.direction);
            let asked =
                Asked { name, direction, rate, burst_bytes, classes: classes.clone(), moves_at_once: *now };
            tasks.push((seen, asked));
        }
    }
    let changed = hold_and_change(&tasks)?;
    let seen = || tasks.iter().map(|(seen, _)| *seen);
    let ways = |of: fn(&Change) -> &Record| -> Vec<Way> {
        seen().zip(&changed).map(|(seen, change)| Way::of_limit(seen, of(change))).collect()
    };
    let (before, after) = (ways(|change| &change.before), ways(|change| &change.after));
    let mut parts = changed_parts(&before, &after);
    let had_classes = changed.iter().any(|change| change.before.classes.iter().any(|class| !class.is_going));
    parts.extend(classes_part(limit.classes.as_deref(), *no_classes && had_classes));
    parts.extend(seen().zip(&changed).filter_map(|(seen, change)| set_again(seen, change)));
    output::print_done(line("limit", wire, &parts))?;
    Ok(ExitCode::SUCCESS)
}

/// The refusal of a limit without a record.
fn unreadable(seen: &LimitInPlace) -> Failure {
    let place = seen.place.describe();
    if seen.is_strange {
        return format!("{place} {STRANGE}").into();
    }
    format!(
        "{place} has a limit that is {}: `weir limit` sets it again, or changes the other way alone, and its --off removes it",
        seen.unreadable_because()
    )
    .into()
}

/// The part of the line on a limit that was not whole.
fn set_again(seen: &LimitInPlace, change: &Change) -> Option<String> {
    let place = seen.place.describe();
    // Of a limit that another command was changing, the classes were between two plans.
    let unlike = if seen.command.is_none() { seen.classes_unlike() } else { 0 };
    match change.before.stage {
        LimitStage::Making => Some(format!("{place} set again, which was half made")),
        _ if seen.is_gone => Some(format!("{place} set again, whose queue somebody had removed")),
        LimitStage::Opening => Some(format!("{place} set again, which was open and limited nothing")),
        LimitStage::Limiting => (unlike > 0)
            .then(|| format!("{place} set again: {unlike} of its classes, which somebody had changed")),
    }
}

/// The limits of one way, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    name: String,
    rate: String,
    burst: String,
    queue: String,
}

impl Way {
    fn of_wire(name: &str, limits: Option<&LimitValues>, with_queue: bool) -> Way {
        let size = |of: fn(&LimitValues) -> u64| limits.map(of).map_or("none".into(), size_text);
        Way {
            name: name.into(),
            rate: rate_text(limits.map(|limits| limits.rate_bits_per_s)),
            burst: size(|limits| limits.burst_bytes),
            // A queue that was not asked for follows the rate.
            queue: if with_queue { size(|limits| limits.limit_bytes) } else { String::new() },
        }
    }

    fn of_limit(seen: &LimitInPlace, record: &Record) -> Way {
        Way {
            name: seen.place.describe(),
            rate: rate_text(Some(record.rate_bits_per_s)),
            burst: size_text(record.burst_bytes),
            queue: String::new(),
        }
    }

    /// The values that are other than before.
    fn since(&self, before: &Way) -> Option<String> {
        let values = [
            ("", &before.rate, &self.rate),
            ("burst ", &before.burst, &self.burst),
            ("queue ", &before.queue, &self.queue),
        ];
        let changed = values.into_iter().filter(|(_, before, now)| before != now);
        let changed: Vec<_> = changed.map(|(what, before, now)| format!("{what}{before} -> {now}")).collect();
        (!changed.is_empty()).then(|| format!("{} {}", self.name, changed.join(", ")))
    }
}

fn rate_text(bits_per_s: Option<u64>) -> String {
    bits_per_s.and_then(Rate::from_bits_per_s).map_or("no limit".into(), |rate| rate.to_string())
}

/// The parts of the line on the changes of rates, bursts and queues.
fn changed_parts(before: &[Way], after: &[Way]) -> Vec<String> {
    before.iter().zip(after).filter_map(|(before, now)| now.since(before)).collect()
}

/// The part of the line on the classes: those of a file, or that they are removed.
fn classes_part(file: Option<&Path>, is_removed: bool) -> Option<String> {
    let of_file = file.map(|file| format!("the classes of {}", file.display()));
    of_file.or_else(|| is_removed.then(|| "no classes any more".into()))
}

/// The line on the changes.
fn line(kind: &str, name: &str, parts: &[String]) -> String {
    if parts.is_empty() {
        return format!("{kind} {name}: it was so already");
    }
    format!("{kind} {name} changed: {}", parts.join("; "))
}

/// The file, checked for the interfaces of the wire.
fn read_classes(wire: &str, file: &Path) -> Result<SetClasses, Failure> {
    let Running { ports, .. } = control::running(wire)?;
    let [first, second] = &ports[..] else { return Err("the wire that answered is none".into()) };
    let ends = Interfaces::of_wire(
        [&first.interface, &second.interface],
        [&first.interface_before, &second.interface_before],
    );
    let (text, _) = text::classes(file, ends)?;
    Ok(SetClasses { file: file.display().to_string(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(name: &str, rate: &str) -> Way {
        Way { name: name.into(), rate: rate.into(), burst: "20kb".into(), queue: String::new() }
    }

    #[test]
    fn what_changed_is_one_line() {
        let before = [way("wa->wb", "200mbit"), way("wb->wa", "no limit")];
        let mut after = [way("wa->wb", "50mbit"), way("wb->wa", "50mbit")];
        after[1].burst = "12kb".into();
        assert_eq!(
            line("wire", "office", &changed_parts(&before, &after)),
            "wire office changed: wa->wb 200mbit -> 50mbit; wb->wa no limit -> 50mbit, burst 20kb -> 12kb"
        );
        assert_eq!(
            line("wire", "office", &changed_parts(&before, &before)),
            "wire office: it was so already"
        );
        let parts = |file, is_removed| Vec::from_iter(classes_part(file, is_removed));
        assert_eq!(
            line("limit", "office", &parts(Some(Path::new("f.toml")), false)),
            "limit office changed: the classes of f.toml"
        );
        assert_eq!(line("limit", "office", &parts(None, true)), "limit office changed: no classes any more");
    }
}
