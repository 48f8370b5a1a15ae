//! `weir mend`: puts back the changes of a weir that was killed together with its guardian.

use std::process::ExitCode;

use weir_port::hold::left::{self, Left};
use weir_port::limit::{NetnsInterface, off};
use weir_port::link::Link;
use weir_port::{PortError, hold, mend};
use weir_run::control;

use super::backlog;
use crate::output::Lines;
use crate::{Failure, Outcome, output};

/// Put back what a killed weir left behind: the queue, checksum offload, senders that stand, the network of a run, forwarding, control sockets;
/// and what a limit in place changed whose queue was removed by hand, or that went with its container.
///
/// Normally nothing is left behind, because a second process, the guardian, puts everything back also after a crash. If both were
/// killed, the next weir on the same interfaces puts things right, or this command where there is none. It may be given
/// either end of a pair, in that end's network namespace, and any number of times. What a living weir has it leaves alone. Where
/// something is still left it names that, with the command that puts it back, and ends with status 1. Children of a run's program that go on
/// lose their network with the rest of the run, as they do where only its weir is killed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir mend veth-a veth-b
  ip netns exec NAME weir mend eth0     from the other end
  weir mend                             what `weir run` left on this host: its
                                        interface, table and forwarding;
                                        control sockets, and room for
                                        packets of limits that are gone; it
                                        names the interfaces that are left,
                                        and what runs left elsewhere")]
pub struct MendArguments {
    /// Interfaces of this network namespace, whose pairs are mended
    #[arg(value_name = "DEV")]
    interfaces: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &MendArguments) -> Outcome {
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: "mending what weir changed".into() }.into());
    }
    let (mut done, mut faults): (Vec<String>, Vec<Failure>) = Default::default();
    for interface in &arguments.interfaces {
        let say = &mut |text: &str| output::say(format_args!("weir: {text}"));
        match one(interface, say) {
            Ok(mended) => done.extend(mended),
            Err(error) => faults.push(error.into()),
        }
    }
    // Later, as an interface that is named may be a run's, which goes.
    match mend::runs() {
        Ok(mended) => done.extend(mended),
        Err(error) => faults.push(error.into()),
    }
    done.extend(control::remove_left().iter().map(|name| format!("the control socket of {name} removed")));
    if backlog::put_back() {
        done.push("net.core.netdev_max_backlog is as before the limits that are gone".into());
    }
    if let Err(error) = left::sweep() {
        faults.push(
            format!("what is noted of it stays, as it cannot be told whether it is gone: {error}").into(),
        );
    }
    let left: Vec<_> = left::all().iter().map(Left::sentence).chain(left::unreadable()).collect();
    let status = if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    done.extend(left);
    if done.is_empty() && faults.is_empty() {
        done.push(match arguments.interfaces.is_empty() {
            true => "nothing was left behind, as far as /run/weir tells; interfaces that are named are looked at themselves".into(),
            false => "nothing was left behind".into(),
        });
    }
    let mut lines = Lines::default();
    done.iter().for_each(|line| lines.print(line));
    faults.extend(lines.end().err());
    let last = faults.pop();
    faults.iter().for_each(|fault| output::say(format_args!("weir: {}", fault.message)));
    last.map_or(Ok(status), Err)
}

fn one(interface: &str, say: &mut dyn FnMut(&str)) -> weir_port::Result<Vec<String>> {
    let mut done = limits(interface, say)?;
    // An interface that is no pair can have had nothing but a limit.
    if Link::by_name(interface)?.kind == "veth" {
        done.extend(mend::pair(interface, say)?);
    }
    Ok(done)
}

/// Puts back the changes of limits in place at both ends of a pair, or at an interface that is none, whose queues somebody took away.
fn limits(interface: &str, say: &mut dyn FnMut(&str)) -> weir_port::Result<Vec<String>> {
    let here = NetnsInterface::here(interface)?;
    let far_end = here.far_end().ok().flatten();
    let ends: Vec<_> = std::iter::once(here).chain(far_end).collect();
    let held: Vec<_> = ends.iter().map(|place| (&place.netns, &place.link)).collect();
    held.iter().try_for_each(|(netns, link)| left::check_readable(netns, link))?;
    let _ends = hold::ends::hold(&held, &[], say)?;
    let mut done = Vec::new();
    for place in &ends {
        if off::mend(place)? {
            done.push(format!("what the limit of {} changed is as before it", place.describe()));
        }
    }
    Ok(done)
}
