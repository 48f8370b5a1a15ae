//! `weir up`: carries the packets of the ports of a topology file.

mod there;
mod waiting;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use weir_port::error::PortError;
use weir_run::control::{self, Control};
use weir_run::datapath::{DatapathConfig, Kind};

use self::waiting::InterfaceWait;
use crate::commands::apply;
use crate::commands::carry::carry;
use crate::commands::wire::MachineArguments;
use crate::{Failure, Outcome, human, names, output, text};

/// Run a file of ports and what joins them, in the foreground: wires, bridges, routers and IPsec gateways that lose no packet.
///
/// Every queue is bounded, and a full one holds whoever feeds it, back to the program that called send. A slow port holds what is
/// bound for it and nothing else, as long as a sender's pair has a queue for each flow (numtxqueues 16 numrxqueues 16); flows that share one
/// wait for each other. What a router or a bridge must not send on is dropped and counted by reason. Limits in place that the file has are set first, and stay until `weir down`. It stays up until
/// Ctrl-C or `weir down`; then the interfaces are put back as they were.
#[derive(clap::Args)]
#[command(after_help = concat!("Examples:
  weir check office.toml && sudo weir up office.toml
  weir up office.toml --wait 30      where others make its interfaces meanwhile
  weir stat office                   in another terminal: what it does
  weir apply office.toml             change it, after an edit
  weir down office.toml              end it
  systemctl start weir@office        as a service: examples/weir@.service

", include_str!("path-help.txt"), "
Ports are veths of this network namespace; their other ends are where
programs are. MTUs go up to 3506 bytes. A bridge floods what it does not
know, passes VLAN tags through and runs no spanning tree. A router answers
ping, sends ICMP errors, and keeps a packet for 3 s while it asks for its
neighbour. An interface that goes down is waited for. One that is not there at
the start, or down at either end, is an error, unless its port has
optional = true. One that vanishes, or whose other end is given other queues,
is a port again when it is there and fit; what is bound for it meanwhile is
dropped, and a single wire ends. `weir apply FILE` changes what leaves by the
ports of a file that is up, and associations, policies, `address` and `mtu` of
an [[esp]]; anything else needs weir down, then weir up.
Under systemd it says when it is up (Type=notify) and feeds the watchdog while
its workers answer.
A part of the file is the ports that links join, such as one wire. With
--workers each part has one worker while there are enough parts. With more
workers than parts several share the ports of a bridge or router; a part with
an [[esp]] without dispatch always has one. An [[esp]] with dispatch and without
sealers is with a worker that has no ports.
`weir stat` shows which worker has a port."))]
pub struct UpArguments {
    /// The file, or - for standard input, which has a `name` in it then
    file: PathBuf,
    /// Wait so long for interfaces that are not there yet, or not up at both ends; not for optional ones
    #[arg(long, value_name = "SECONDS", value_parser = text::seconds(1.0, 86_400.0), allow_negative_numbers = true)]
    wait: Option<Duration>,
    /// Of other commands, and looked for here
    #[arg(long, hide = true)]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArguments,
}

/// Runs the command.
pub fn run(arguments: &UpArguments) -> Outcome {
    let file = text::input_name(&arguments.file);
    if arguments.dry_run {
        return Err(Failure::usage(format!(
            "up has no --dry-run: `weir check {file}` tells what is wrong with the file, and `weir apply {file} --dry-run` what would change \
             of limits, and of ports that are up"
        )));
    }
    let topology = apply::read(&arguments.file)?;
    let Some(plan) = topology.plan.clone() else {
        return Err(Failure::usage(format!(
            "{file} has no [[port]], so there is nothing to carry: `weir apply {file}` sets its limits"
        )));
    };
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: format!("running {file}") }.into());
    }
    let (memory_bytes, workers) = arguments.machine.check(plan.ports.len(), plan.workers_max())?;
    names::refuse_limited(plan.ports.iter().map(|port| port.interface.as_str()))?;
    let port_names = topology.ports.iter().map(|port| port.name.clone()).collect();
    let config = DatapathConfig { name: topology.name.clone(), plan, port_names, memory_bytes, workers };
    config.check().map_err(Failure::usage)?;
    // In this order: another one that waits listens at its control socket before it waits no more.
    let waiting = InterfaceWait::begin(&config)?;
    refuse_running(&topology.name, &arguments.file)?;
    let held = names::hold_new(&topology.name)?;
    let noun = Kind::of(&config.plan).noun();
    if !there::require(&topology, arguments.wait, &waiting)? {
        output::print_done(format_args!(
            "ended: {noun} {}, before its interfaces were there",
            topology.name
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    apply::set(&topology)?;
    let counts = topology.counts().into_iter().filter(|(number, _)| *number > 0);
    let parts: Vec<_> = counts.map(|(number, thing)| human::plural(number as u64, thing)).collect();
    let is_up = Cell::new(false);
    let begun = || {
        is_up.set(true);
        // In this order: who finds that nobody waits any more finds the name free or in use.
        drop(held);
        drop(waiting);
    };
    let cores = arguments.machine.cores();
    let carried = carry(&config, cores, &format!("{noun} {}, {}", topology.name, parts.join(", ")), begun);
    carried.map_err(|failure| {
        let Failure { mut message, code } = failure;
        if let Some(placed) = topology.placed(&message) {
            message = placed.join("\nweir: ");
        }
        if !(is_up.get() || topology.limits.is_empty()) {
            message +=
                &format!("\nweir: the limits of {file} are set, and stay: `weir down` of it removes them");
        }
        Failure { message, code }
    })
}

/// Refuses a file whose name is up already, before anything of it is waited for or set.
fn refuse_running(name: &str, file: &Path) -> Result<(), Failure> {
    if !control::is_served(&Control::path_of(name)) {
        return Ok(());
    }
    let file = text::input_name(file);
    Err(format!(
        "{name} is up already, as `weir stat {name}` shows: `weir apply {file}` changes it, and `weir down {name}` ends it; another \
         file gets another name by name = \"...\" in it"
    )
    .into())
}
