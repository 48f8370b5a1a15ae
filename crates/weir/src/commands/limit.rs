//! `weir limit`: limits an interface where it stands, by the kernel's own queue.

use std::path::PathBuf;
use std::process::ExitCode;

use weir_core::limit::{is_long_burst, is_short_burst};
use weir_core::rate::Rate;
use weir_core::units::{size_text, time_text};
use weir_port::hold;
use weir_port::limit::behind;
use weir_port::limit::find;
use weir_port::limit::off::{self, Off};
use weir_port::limit::record::{Direction, Record};
use weir_port::limit::reshape::{ClassAsked, ClassesAsked};
use weir_port::limit::{Asked, Done, Place};
use weir_port::netns::NetNs;
use weir_run::classes::Classes;
use weir_run::clock::now_ns;
use weir_run::limits::burst_bytes_default;

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
  weir limit veth-a --rate 200mbit                 what the container behind veth-a sends
  weir limit veth-a --rate-back 500mbit            what is sent to it
  weir limit --pid 4711 --rate 50mbit              what the container of process 4711 sends
  weir limit tun0 --rate 20mbit
  weir limit veth-a --rate 50mbit --classes office.toml
  weir limit veth-a --off                          remove it, without loss
  weir set veth-a --rate 100mbit                   change it by its name
  weir stat                                        what it does

`weir wire --help` explains classes files. In place HTB shares what classes leave by flows, one turn each, and does without
cbq, full, max_wait, queue, quantum and interface: a file that has them is refused.")]
pub struct Arguments {
    /// The interface: the host's end of a pair, or the one that sends
    #[arg(value_name = "DEV", required_unless_present = "pid", conflicts_with_all = ["pid", "device"])]
    interface: Option<String>,
    /// The process whose network namespace the interface is in
    #[arg(long, value_name = "PID", value_parser = text::at_least(1_u32), allow_hyphen_values = true)]
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
    /// How much may pass at once after a pause [default: 2 ms at the rate, 20kb at least]
    #[arg(long, value_name = "SIZE", value_parser = text::size, allow_hyphen_values = true)]
    burst: Option<u64>,
    /// Classes that share the limit, each way, and filters that lead to them; another file takes the place of the one there is
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// What the limit is called in `weir stat` [default: as it is, or the host's end of the pair, or the device and PID]
    #[arg(long)]
    name: Option<String>,
    /// Remove the limit, both ways: raise it until nothing waits, then take the queue off while nothing is sent
    #[arg(long, conflicts_with_all = ["rate", "rate_back", "burst", "classes", "name"])]
    off: bool,
    /// Take the queue off at once; what waits is lost, and counted
    #[arg(long, requires = "off")]
    now: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { rate, rate_back, burst, classes, .. } = arguments;
    if let Some(burst_bytes) = burst {
        text::check_burst(*burst_bytes)?;
    }
    let label = arguments.interface.as_deref().unwrap_or(&arguments.device);
    arguments.name.as_deref().map_or(Ok(()), text::check_limit_name)?;
    if !arguments.off && rate.is_none() && rate_back.is_none() && burst.is_none() && classes.is_none() {
        return Err(Failure::usage(
            "nothing to do: give --rate, --rate-back, --burst or --classes, or --off",
        ));
    }
    let classes = classes.as_deref().map(text::classes_in_place).transpose()?.map(|classes| asked(&classes));
    let ways = Ways::of(arguments)?;
    let held: Vec<_> = ways.ends().map(|place| (&place.netns, &place.link)).collect();
    let _ends = hold::ends(&held, &mut |text| output::say(format_args!("weir: {text}")))?;
    if arguments.off {
        return remove(&ways, arguments.now);
    }
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => ways.default_name(arguments),
    };
    let wanted = |direction, rate| Asked {
        name: name.clone(),
        direction,
        rate,
        burst_bytes: *burst,
        classes: classes.clone(),
    };
    let there = rate.is_some() || rate_back.is_none();
    if there {
        set(&ways.there, &wanted(Direction::There, *rate))?;
    }
    if rate_back.is_some() {
        let back = ways.back.as_ref().ok_or_else(|| {
            Failure::usage(format!(
                "--rate-back is for a pair: what is sent to {label} passes no queue of it that could hold"
            ))
        })?;
        set(back, &wanted(Direction::Back, *rate_back))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The interfaces that send, each way.
struct Ways {
    there: Place,
    back: Option<Place>,
}

impl Ways {
    fn ends(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.there).chain(&self.back)
    }

    /// As the limit is called, if there is one; else by the interface, so that no other limit of the machine is called the same.
    fn default_name(&self, arguments: &Arguments) -> String {
        let named = find::names();
        let is_of_ours = |place: &Place| self.ends().any(|end| end.is(place));
        if let Some((_, name)) = named.iter().find(|(place, _)| is_of_ours(place)) {
            return name.clone();
        }
        let device = &self.there.link.name;
        let host_end =
            self.back.as_ref().filter(|back| NetNs::current().is_ok_and(|here| here.is(&back.netns)));
        let first = match (arguments.pid, host_end) {
            (_, Some(end)) => end.link.name.clone(),
            (Some(pid), None) => format!("{device}@{pid}"),
            (None, None) => arguments.interface.clone().unwrap_or_else(|| device.clone()),
        };
        unused_name(&first, |name| named.iter().any(|(_, other)| other == name))
    }

    fn of(arguments: &Arguments) -> Result<Ways, Failure> {
        if let Some(pid) = arguments.pid {
            let there = Place::of_process(pid, &arguments.device)?;
            // Needed for the way back alone; the kernel may not tell where it is.
            let back =
                if arguments.rate_back.is_some() { there.far_end()? } else { there.far_end().ok().flatten() };
            return Ok(Ways { there, back });
        }
        let name = arguments.interface.as_deref().unwrap_or_default();
        let place = Place::here(name)?;
        let far_end = place.far_end().map_err(|error| match place.link.peer_netns_id {
            Some(_) => Failure::from(format!(
                "{name} is one end of a pair whose other end cannot be seen from here, as inside a container ({error}): limit it from \
                 the host, by the name of the end there or with `weir limit --pid PID`"
            )),
            None => error.into(),
        })?;
        Ok(match far_end {
            Some(there) if place.is_inside_of(&there) => {
                return Err(Failure::usage(format!(
                    "{name} is a container's end of a pair, and DEV the host's: what is sent here is limited by `weir limit --pid $$ \
                     --device {name}`, or on the host by `weir limit {}`",
                    there.link.name
                )));
            }
            Some(there) => Ways { there, back: Some(place) },
            None => Ways { there: place, back: None },
        })
    }
}

/// `first`, or with a number behind it, so that it is not used.
fn unused_name(first: &str, is_used: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|number: u32| format!("{first}.{number}"));
    std::iter::once(first.to_string()).chain(numbered).find(|name| !is_used(name)).unwrap_or_default()
}

/// Changes the limit of one interface, which nobody else changes meanwhile; what it is then.
pub fn hold_and_change(place: &Place, asked: &Asked) -> Result<Record, Failure> {
    let say = &mut |text: &str| output::say(format_args!("weir: {text}"));
    let _ends = hold::ends(&[(&place.netns, &place.link)], say)?;
    let (_, record) = weir_port::limit::set(place, asked, burst_bytes_default)?;
    warn_of_burst(&record);
    say_what_stays(place, &record);
    Ok(record)
}

fn set(place: &Place, asked: &Asked) -> Result<(), Failure> {
    let (done, record) = weir_port::limit::set(place, asked, burst_bytes_default)?;
    let verb = match done {
        Done::Made => "limited",
        Done::Changed => "changed",
    };
    let rate =
        Rate::from_bits_per_s(record.rate_bits_per_s).map_or_else(String::new, |rate| rate.to_string());
    output::print_line(format_args!(
        "{verb}: {} sends at most {rate}, {} at once; {} for each of {} flows with a socket, {} of what passes without",
        place.describe(),
        size_text(record.burst_bytes),
        size_text(u64::from(weir_core::limit::HELD_BYTES_EACH)),
        weir_core::limit::HELD.count,
        time_text(weir_core::limit::PASSING_NS),
    ))?;
    if done == Done::Made && record.lost_when_set > 0 {
        output::print_line(format_args!(
            "  {} lost, which came while the kernel swapped the queue",
            human::plural(record.lost_when_set, "packet")
        ))?;
    }
    if record.direction == Direction::Back {
        output::print_line(format_args!(
            "  held is who sends from {} itself; what is sent from elsewhere has no sender here: {} of it may wait, then it is \
             marked, and dropped",
            place.netns.label(),
            time_text(weir_core::limit::PASSING_NS),
        ))?;
    }
    let classes = record.classes.iter().filter(|class| !class.is_going);
    let classes: Vec<_> = classes.map(|class| class.name.as_str()).collect();
    if !record.classes.is_empty() {
        output::print_line(format_args!(
            "  shared by the classes {}, each with as many leaves",
            classes.join(", ")
        ))?;
    }
    warn_of_burst(&record);
    warn_of_unseen(place);
    say_what_stays(place, &record);
    Ok(())
}

/// Which flows still go by the classes that were there before.
fn say_what_stays(place: &Place, record: &Record) {
    if record.filters.len() > 1 {
        let going = record.classes.iter().filter(|class| class.is_going);
        let going: Vec<_> = going.map(|class| class.name.as_str()).collect();
        let stays =
            if going.is_empty() { String::new() } else { format!(", and so {} stay", going.join(", ")) };
        output::say(format_args!(
            "weir: flows at {} that never pause stay in the class they were in{stays}: the same command later looks again",
            place.describe()
        ));
    }
}

/// The classes of a file, as the queue takes them.
pub fn asked(classes: &Classes) -> ClassesAsked {
    let of = |class: &weir_run::classes::ClassConfig| ClassAsked {
        name: class.name.clone(),
        parent: class.parent,
        rate: class.rate,
        ceil: class.ceil,
        burst_bytes: class.burst_bytes,
        cburst_bytes: class.cburst_bytes,
        priority: class.leaf.map_or(0, |leaf| leaf.priority),
        is_leaf: class.leaf.is_some(),
    };
    ClassesAsked { classes: classes.classes.iter().map(of).collect(), classifier: classes.classifier.clone() }
}

/// Of a burst that was asked for: the default is long enough.
fn warn_of_burst(record: &Record) {
    let Some(rate) = Rate::from_bits_per_s(record.rate_bits_per_s) else { return };
    if is_long_burst(rate, record.burst_bytes) && record.burst_bytes > burst_bytes_default(rate) {
        output::warn(format_args!(
            "a burst of {} is {} of {rate}: for so long nothing is held after a pause; --burst {} is usual",
            size_text(record.burst_bytes),
            time_text(rate.ns_for(record.burst_bytes) / 1_000_000 * 1_000_000),
            size_text(burst_bytes_default(rate).next_multiple_of(1024)),
        ));
    }
    if is_short_burst(rate, record.burst_bytes) {
        output::warn(format_args!(
            "a burst of {} is {} of {rate}: whenever the kernel's timer is later than that, as on a busy virtual machine, rate is lost; \
             --burst {} makes up for it",
            size_text(record.burst_bytes),
            time_text(rate.ns_for(record.burst_bytes) / 1000 * 1000),
            size_text(burst_bytes_default(rate).next_multiple_of(1024)),
        ));
    }
}

/// Of pairs behind a bridge or another device, whose steering could not be set.
fn warn_of_unseen(place: &Place) {
    let unseen = behind::find(place).map(|behind| behind.unseen).unwrap_or_default();
    if !unseen.is_empty() {
        output::warn(format_args!(
            "the other ends of {} are in network namespaces that cannot be seen from here, and packets of a flow may overtake each other \
             there: run weir in the host's PID namespace",
            unseen.join(", ")
        ));
    }
}

fn remove(ways: &Ways, now: bool) -> Outcome {
    let mut is_none = true;
    let mut status = ExitCode::SUCCESS;
    for place in ways.ends() {
        match off::off(place, now, now_ns)? {
            Off::None => continue,
            Off::Removed { lost: 0 } => {
                output::print_line(format_args!("removed: {} sends as before", place.describe()))?
            }
            Off::Removed { lost } => output::print_line(format_args!(
                "removed: {} sends as before; {} lost, which waited or came meanwhile",
                place.describe(),
                human::plural(lost, "packet")
            ))?,
            Off::Gone => {
                status = ExitCode::FAILURE;
                output::say(format_args!(
                    "weir: {} vanished while its limit was being removed, and took along the limit and what waited there: nothing is \
                     left to remove",
                    place.describe()
                ));
            }
            Off::Open => {
                status = ExitCode::FAILURE;
                output::say(format_args!(
                    "weir: {} limits nothing any more, but never stops sending, and its queue could not be removed without loss: \
                     --off again later removes it, `--off --now` at once",
                    place.describe()
                ));
            }
        }
        is_none = false;
    }
    if is_none {
        return Err(format!(
            "there is no limit at {}: `weir stat` lists those there are",
            ways.there.describe()
        )
        .into());
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_used_gets_a_number() {
        let used = ["eth0", "eth0.2"];
        let unused = |name| unused_name(name, |name| used.contains(&name));
        assert_eq!([unused("eth0"), unused("eth1")], ["eth0.3", "eth1"]);
    }
}
