//! The interfaces that `weir up` needs from the start: waited for if that is asked for, and told of where they are missing.
//!
//! Rule: each that is missing, or cannot be a port, is told with its place in the file, and with the ways out, before anything is set.
//! One look decides whether there is something to wait for and what is told, so one that goes between two looks is waited for too.
//! Optional ones are neither waited for nor told of here. Limits: an interface that goes, or that somebody takes, after the last look is
//! told when it is taken over.

use std::time::Duration;

use weir_port::fit;
use weir_port::hold;
use weir_port::link::{Link, joints};
use weir_port::monitor::Monitor;
use weir_port::netns::NetNs;
use weir_port::sys;
use weir_run::clock::now_ns;
use weir_run::datapath::Kind;
use weir_run::nearest::{and, did_you_mean};
use weir_run::topology::{TablePlace, Topology};

use super::waiting::InterfaceWait;
use crate::commands::apply::target;
use crate::{Failure, output};

/// The longest time until it looks again, in nanoseconds: no message of this namespace's interfaces tells of one that comes in another, nor
/// of the end of the wait.
const LOOK_NS: u64 = 250_000_000;

/// The interfaces of a file at one look.
struct Look<'a> {
    /// The ports and limits that are not there, or not up at both ends.
    missing: Vec<String>,
    /// The ports of which there is no interface.
    absent: Vec<(&'a TablePlace, &'a str)>,
    /// A sentence on each port that is there and cannot be one.
    unfit: Vec<String>,
}

/// Requires the interfaces of a file, which may take so long to come. Returns false if the wait was ended.
pub fn require(
    topology: &Topology,
    wait: Option<Duration>,
    waiting: &InterfaceWait,
) -> Result<bool, Failure> {
    // Before the first look, so that nothing comes unheard between two.
    let monitor = wait.map(|_| Monitor::new()).transpose()?;
    let until_ns = wait.map_or(0, |wait| now_ns().saturating_add(wait.as_nanos() as u64));
    let mut is_said = false;
    loop {
        let look = look(topology)?;
        waiting.note(&look.missing);
        let now = now_ns();
        if waiting.is_ended()? {
            return Ok(false);
        }
        let (Some(wait), Some(monitor)) = (wait, &monitor) else {
            return look.outcome(topology, wait);
        };
        if look.missing.is_empty() || now >= until_ns {
            return look.outcome(topology, Some(wait));
        }
        if !std::mem::replace(&mut is_said, true) {
            let names: Vec<_> = look.missing.iter().map(String::as_str).collect();
            output::say(format_args!("weir: waiting up to {} s for {}", wait.as_secs_f64(), and(&names)));
        }
        let mut fds = [sys::poll_in(monitor.fd())];
        if sys::poll(&mut fds, Some((until_ns - now).min(LOOK_NS))).is_ok_and(|count| count > 0) {
            // All is looked at again, whatever the event.
            let _ = monitor.wait();
        }
    }
}

impl Look<'_> {
    /// True if all ports are there and can be ports; or a sentence for each that is not, or cannot.
    fn outcome(self, topology: &Topology, wait: Option<Duration>) -> Result<bool, Failure> {
        let told = if self.absent.is_empty() { self.unfit } else { told(&self.absent, topology, wait) };
        if told.is_empty() { Ok(true) } else { Err(told.join("\nweir: ").into()) }
    }
}

/// A sentence for each of these ports, of which there is no interface.
fn told(absent: &[(&TablePlace, &str)], topology: &Topology, wait: Option<Duration>) -> Vec<String> {
    let late = wait.map_or(String::new(), |wait| format!(", also after {} s", wait.as_secs_f64()));
    // A wire of two ports needs both.
    let is_wire = topology.plan.as_ref().is_some_and(|plan| Kind::of(plan) == Kind::Wire);
    let without = if is_wire { "" } else { ", write optional = true below its [[port]] to start without it" };
    let longer = if wait.is_some() { "longer " } else { "" };
    // This is not the place to say why they cannot be listed.
    let there = joints().unwrap_or_default();
    let sentence = |(place, interface): &(&TablePlace, &str)| {
        let meant = did_you_mean(interface, there.iter().map(|joint| joint.name.as_str()));
        format!(
            "{}: there is no interface {interface} in this network namespace{late}: make it{without}, or wait {longer}for it with \
             --wait SECONDS{meant}",
            place.at
        )
    };
    absent.iter().map(sentence).collect()
}

/// Looks once at each port that must be there, and at each limit.
fn look(topology: &Topology) -> Result<Look<'_>, Failure> {
    let here = NetNs::current()?;
    let mut look = Look { missing: Vec::new(), absent: Vec::new(), unfit: Vec::new() };
    let plans = topology.plan.iter().flat_map(|plan| &plan.ports);
    for (place, port) in topology.ports.iter().zip(plans).filter(|(_, port)| !port.is_optional) {
        let name = port.interface.as_str();
        let (is_ready, unfit) = match Link::by_name(name) {
            Err(error) if error.is_no_interface() => {
                look.absent.push((place, name));
                (false, None)
            }
            Err(error) => (true, Some(error.to_string())),
            Ok(link) => {
                let sender = link.peer().map(|(_, sender)| sender);
                // Both ends go together, so one whose other end is not there is about to go.
                let is_sender_up =
                    sender.as_ref().map_or_else(|error| !error.is_no_interface(), |sender| sender.up);
                let unfit = sender.and_then(|sender| fit::check_fit(&link, &sender)).err();
                let unfit = unfit.map(|error| error.to_string());
                (
                    link.up && link.has_carrier && is_sender_up,
                    unfit.or_else(|| hold::ends::in_use(&here, &link)),
                )
            }
        };
        if !is_ready {
            look.missing.push(name.to_string());
        }
        look.unfit.extend(unfit.map(|why| format!("{}: {why}", place.at)));
    }
    let limits = topology.limits.iter().filter(|limit| !limit.is_optional && target(limit).is_missing());
    look.missing.extend(limits.map(|limit| target(limit).label()));
    Ok(look)
}
