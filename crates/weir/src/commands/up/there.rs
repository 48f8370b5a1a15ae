//! The interfaces that `weir up` needs from the start: waited for if that is asked for, and told of where they are missing.
//!
//! Rule: each that is missing, or cannot be a port, is told with its place in the file, and with the ways out, before anything is set.
//! Optional ones are neither waited for nor told of here. Limits: an interface that somebody takes after this look is told when it is taken
//! over.

use std::time::Duration;

use weir_port::error::PortError;
use weir_port::fit;
use weir_port::hold;
use weir_port::link::{Link, joints};
use weir_port::monitor::Monitor;
use weir_port::netns::NetNs;
use weir_port::sys;
use weir_run::clock::now_ns;
use weir_run::datapath::Kind;
use weir_run::nearest::{and, did_you_mean};
use weir_run::topology::{PortPlace, Topology};

use super::waiting::InterfaceWait;
use crate::commands::apply::target;
use crate::{Failure, output};

/// The longest time until it looks again, in nanoseconds: no message of this namespace's interfaces tells of one that comes in another, nor
/// of the end of the wait.
const LOOK_NS: u64 = 250_000_000;

/// Requires the interfaces of a file, which may take so long to come. Returns false if the wait was ended.
pub fn require(
    topology: &Topology,
    wait: Option<Duration>,
    waiting: &InterfaceWait,
) -> Result<bool, Failure> {
    if let Some(wait) = wait
        && !wait_for(topology, wait, waiting)?
    {
        return Ok(false);
    }
    let ports = missing_ports(topology);
    if ports.is_empty() {
        require_fit(topology)?;
        return Ok(true);
    }
    let late = wait.map_or(String::new(), |wait| format!(", also after {} s", wait.as_secs_f64()));
    // A wire of two ports needs both.
    let is_wire = topology.plan.as_ref().is_some_and(|plan| Kind::of(plan) == Kind::Wire);
    let without = if is_wire { "" } else { ", write optional = true below its [[port]] to start without it" };
    let longer = if wait.is_some() { "longer " } else { "" };
    // This is not the place to say why they cannot be listed.
    let there = joints().unwrap_or_default();
    let told = ports.into_iter().map(|(place, interface)| {
        let meant = did_you_mean(interface, there.iter().map(|joint| joint.name.as_str()));
        format!(
            "{}: there is no interface {interface} in this network namespace{late}: make it{without}, or wait {longer}for it with \
             --wait SECONDS{meant}",
            place.at
        )
    });
    Err(told.collect::<Vec<_>>().join("\nweir: ").into())
}

/// Requires that the interfaces of the ports, which are there, can be ports as they and their other ends are, and that nobody has them.
fn require_fit(topology: &Topology) -> Result<(), Failure> {
    let here = NetNs::current()?;
    let fault = |name: &str| match Link::by_name(name).and_then(|link| fit::check(&link).map(|()| link)) {
        Ok(link) => hold::ends::in_use(&here, &link),
        Err(error) => Some(error.to_string()),
    };
    let told = needed_ports(topology).filter_map(|(place, name)| {
        let fault = fault(name)?;
        Some(format!("{}: {fault}", place.at))
    });
    let told: Vec<_> = told.collect();
    if told.is_empty() { Ok(()) } else { Err(told.join("\nweir: ").into()) }
}

/// Waits until all are there, or for so long. Returns false if it was ended.
fn wait_for(topology: &Topology, wait: Duration, waiting: &InterfaceWait) -> Result<bool, Failure> {
    // Before the first look, so that nothing comes unheard between two.
    let monitor = Monitor::new()?;
    let until_ns = now_ns().saturating_add(wait.as_nanos() as u64);
    let mut is_said = false;
    loop {
        let missing = missing(topology);
        waiting.note(&missing);
        let now = now_ns();
        if waiting.is_ended()? {
            return Ok(false);
        }
        if missing.is_empty() || now >= until_ns {
            return Ok(true);
        }
        if !std::mem::replace(&mut is_said, true) {
            let names: Vec<_> = missing.iter().map(String::as_str).collect();
            output::say(format_args!("weir: waiting up to {} s for {}", wait.as_secs_f64(), and(&names)));
        }
        let mut fds = [sys::poll_in(monitor.fd())];
        if sys::poll(&mut fds, Some((until_ns - now).min(LOOK_NS))).is_ok_and(|count| count > 0) {
            // All is looked at again, whatever the event.
            let _ = monitor.wait();
        }
    }
}

/// The ports that must be there and up, at both ends, and the limits that must be there; those of them that are not.
fn missing(topology: &Topology) -> Vec<String> {
    let is_ready = |link: Result<Link, PortError>| match link {
        Ok(link) => link.up && link.has_carrier,
        Err(error) => !error.is_no_interface(),
    };
    let ports = needed_ports(topology).filter(|(_, name)| !is_ready(Link::by_name(name)));
    let limits = topology.limits.iter().filter(|limit| !limit.is_optional && target(limit).is_missing());
    ports.map(|(_, name)| name.to_string()).chain(limits.map(|limit| target(limit).label())).collect()
}

/// The ports that must be there and are not.
fn missing_ports(topology: &Topology) -> Vec<(&PortPlace, &str)> {
    let is_missing = |name: &str| Link::by_name(name).is_err_and(|error| error.is_no_interface());
    needed_ports(topology).filter(|(_, name)| is_missing(name)).collect()
}

/// The ports that are not optional, with the names of their interfaces.
fn needed_ports(topology: &Topology) -> impl Iterator<Item = (&PortPlace, &str)> {
    let plans = topology.plan.iter().flat_map(|plan| &plan.ports);
    let needed = topology.ports.iter().zip(plans).filter(|(_, port)| !port.is_optional);
    needed.map(|(place, port)| (place, port.interface.as_str()))
}
