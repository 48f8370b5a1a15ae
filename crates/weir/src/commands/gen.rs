//! `weir gen`: generates traffic, in memory or on an interface.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;
use smoltcp::wire::EthernetAddress;
use weir_core::drops::DropReason;
use weir_core::steer::rss::WORKERS_MAX;
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan};
use weir_path::traffic::flows::{Endpoints, FLOWS_MAX, SIZE_BYTES_MAX, SIZE_BYTES_MIN, Traffic};
use weir_path::traffic::generator::{GenSpec, Until};
use weir_run::books::Books;
use weir_run::generate::{Event, Generation, Sent};
use weir_run::memory::summary::MemorySummary;
use weir_run::memory::{MemoryEnd, MemoryPath, RunError};
use weir_run::stats::PlaceStats;
use weir_run::testbed;

use crate::commands::traffic::{
    Ticker, dropped_json, dropped_text, faults, mpps, order, sequences_json, speed, vanished, with_interface,
};
use crate::{Failure, Outcome, human, output, text};

/// Flows at most unless more are asked for.
const FLOWS_DEFAULT_MAX: u64 = 2000;
/// In memory: frames for each worker, and packets that wait for a sink before its generator is held.
const FRAMES_PER_WORKER: u32 = 2048;
const HELD_PACKETS_MAX: u64 = 256;
/// The ends of the flows unless others are asked for: RFC 2544's addresses for tests.
const SRC: Endpoints = Endpoints {
    addresses: (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 1)),
    ports: (2000, 2000),
};
const DST: Endpoints = Endpoints {
    addresses: (Ipv4Addr::new(198, 19, 0, 1), Ipv4Addr::new(198, 19, 0, 250)),
    ports: (2000, 2099),
};
const SRC_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

/// Generate numbered UDP packets, as netmap's pkt-gen does: on an interface, or in memory, to sinks that check them.
///
/// Without an interface, generators and sinks are in this process, joined by links: each worker has one of both, and packets go
/// to the next worker's sink. On an interface, `weir sink` or any program may be at the other end. A generator never
/// overruns: what is not taken is held.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir gen --flows 2000 --dst 198.19.0.1:2000-198.19.0.250:2099 --time 5s
  weir gen --workers 2 --time 5s            from worker to worker
  weir gen --through testbed --time 5s      by a bridge, a router and a bridge
  weir gen veth0 --rate 100kpps --count 1000000 --dst-mac 02:00:00:00:00:02

In pkt-gen's words: -l is --size, -s --src, -d --dst, -S --src-mac, -D
--dst-mac, -R --rate, -n --count, -p --workers")]
pub struct GenArguments {
    /// The interface to send on; without one, in memory
    #[arg(value_name = "DEV")]
    interface: Option<String>,
    /// How many flows [default: all that the addresses and ports make, 2000 at most]
    #[arg(long, value_name = "N", value_parser = text::at_least(1_u32), allow_negative_numbers = true)]
    flows: Option<u32>,
    /// Length of a packet in bytes, Ethernet header included, check sequence not
    #[arg(long, value_name = "BYTES", default_value_t = SIZE_BYTES_MIN, value_parser = text::whole(SIZE_BYTES_MIN, SIZE_BYTES_MAX), allow_negative_numbers = true)]
    size: u16,
    /// Where packets come from, ADDRESS:PORT-ADDRESS:PORT; ports and the end of the range may be left out [default: 198.18.0.1:2000]
    #[arg(long, value_name = "RANGE")]
    src: Option<Endpoints>,
    /// Where they go, written the same way [default: 198.19.0.1:2000-198.19.0.250:2099]
    #[arg(long, value_name = "RANGE")]
    dst: Option<Endpoints>,
    /// Ethernet source [default: 02:00:00:00:00:01]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    src_mac: Option<EthernetAddress>,
    /// Ethernet destination [default: ff:ff:ff:ff:ff:ff]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    dst_mac: Option<EthernetAddress>,
    /// Packets a second of each generator, such as 100kpps or 1mpps [default: as many as will go]
    #[arg(long, value_name = "PPS", value_parser = packet_rate, allow_hyphen_values = true)]
    rate: Option<u64>,
    /// End after so many packets of each generator
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = text::at_least(1_u64), allow_negative_numbers = true)]
    count: Option<u64>,
    /// End after so long [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = text::time, allow_hyphen_values = true)]
    time: Option<u64>,
    /// In memory: how many workers, 1 to as many as there are cores [default: 1]
    #[arg(long, value_name = "N", value_parser = text::at_least(0_usize), allow_negative_numbers = true)]
    workers: Option<usize>,
    /// In memory: what packets go through [default: link]; the testbed has addresses of its own, and takes neither --src, --dst, --src-mac
    /// nor --dst-mac
    #[arg(long, value_enum)]
    through: Option<Through>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Through {
    /// A link to the sink
    Link,
    /// A bridge, a link, a router, a link and a bridge: the bed of the report on if_epair
    Testbed,
}

fn mac(text: &str) -> Result<EthernetAddress, String> {
    text.parse().map_err(|()| "write six bytes, such as 02:00:00:00:00:01".into())
}

/// Reads `1mpps`, `100kpps`, `500pps` or a plain number.
fn packet_rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("pps").unwrap_or(&lower);
    let (number, thousands) = match number.as_bytes().last() {
        Some(b'k') => (&number[..number.len() - 1], 1_000),
        Some(b'm') => (&number[..number.len() - 1], 1_000_000),
        _ => (number, 1),
    };
    let rate = number.parse::<u64>().ok().and_then(|number| number.checked_mul(thousands));
    rate.filter(|&rate| rate > 0)
        .ok_or_else(|| "write packets a second, such as 500pps, 100kpps or 1mpps".into())
}

impl GenArguments {
    fn traffic(&self) -> Traffic {
        let mut traffic = Traffic {
            size_bytes: self.size,
            src: self.src.unwrap_or(SRC),
            dst: self.dst.unwrap_or(DST),
            src_mac: self.src_mac.unwrap_or(SRC_MAC),
            dst_mac: self.dst_mac.unwrap_or(EthernetAddress::BROADCAST),
            flows: 1,
            first_flow: 0,
        };
        traffic.flows = self.flows.unwrap_or(traffic.combinations().min(FLOWS_DEFAULT_MAX) as u32);
        traffic
    }

    fn until(&self) -> Until {
        match (self.count, self.time) {
            (Some(packets), _) => Until::Packets(packets),
            (None, Some(ns)) => Until::Elapsed(ns),
            (None, None) => Until::Stopped,
        }
    }
}

/// Runs the command.
pub fn run(arguments: &GenArguments) -> Outcome {
    let Some(interface) = &arguments.interface else { return in_memory(arguments) };
    let in_memory = [("--workers", arguments.workers.is_some()), ("--through", arguments.through.is_some())];
    if let Some((option, _)) = in_memory.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format!(
            "{option} is for traffic in memory; on an interface, here {interface}, one thread sends: leave one of them out"
        )));
    }
    on_interface(arguments, interface)
}

fn in_memory(arguments: &GenArguments) -> Outcome {
    let workers = arguments.workers.unwrap_or(1);
    text::check_workers(workers, WORKERS_MAX)?;
    let traffic = arguments.traffic();
    let through = arguments.through.unwrap_or(Through::Link);
    if through == Through::Link {
        // The bed has addresses of its own.
        traffic.check().map_err(Failure::usage)?;
    }
    if through == Through::Link && (traffic.flows as usize) < workers {
        return Err(Failure::usage(format!(
            "{} for {workers} workers: each makes flows of its own, so give at least {workers} by --flows, or fewer workers",
            human::plural(traffic.flows.into(), "flow")
        )));
    }
    let mut ticker = Ticker::new(arguments.json)?;
    let spec = match through {
        Through::Link => links(arguments, workers),
        Through::Testbed => bed(arguments, workers)?,
    };
    let summary = spec.run(&mut |elapsed_ns, delivered| ticker.tick(elapsed_ns, delivered));
    let summary = summary.map_err(|error| match error {
        RunError::Refused(why) => Failure::usage(why),
        RunError::Failed(why) => Failure::from(why),
    })?;
    ticker.finish()?;
    output::print(summary_text(&summary, arguments.json))?;
    let seen = summary.sequences();
    let whole = summary.balances() && summary.lost() == 0 && faults(&seen) == 0;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A path with a generator at each worker, and a sink for the worker before it.
fn links(arguments: &GenArguments, workers: usize) -> MemoryPath {
    let traffic = arguments.traffic();
    let mut spec = MemoryPath {
        plan: Plan::default(),
        ends: Vec::new(),
        owners: Owners::default(),
        workers,
        frames: FRAMES_PER_WORKER * workers as u32,
        held_packets_max: HELD_PACKETS_MAX,
    };
    let share = (traffic.flows / workers as u32).max(1);
    for worker in 0..workers {
        let first_flow = share * worker as u32;
        let flows = if worker + 1 == workers { traffic.flows.saturating_sub(first_flow) } else { share };
        let traffic = Traffic { flows, first_flow, ..traffic.clone() };
        let flows_end = first_flow.saturating_add(flows);
        let until = arguments.until();
        let place = spec.ends.len();
        spec.ends.push(MemoryEnd::Generator(GenSpec { traffic, packets_per_s: arguments.rate, until }));
        spec.ends.push(MemoryEnd::Sink { flows: flows_end });
        spec.owners.ports.extend([worker, (worker + 1) % workers]);
        spec.plan.ports.extend(["gen", "sink"].map(|name| testbed::port(&format!("{name}-{worker}"))));
        spec.plan.links.push([Attachment::Port(place), Attachment::Port(place + 1)]);
    }
    spec
}

fn bed(arguments: &GenArguments, workers: usize) -> Result<MemoryPath, Failure> {
    if workers > 2 {
        return Err(Failure::usage(format!(
            "--workers {workers}: the bed has one epair to cross between workers, so give 1 or 2"
        )));
    }
    let GenArguments { src, dst, src_mac, dst_mac, .. } = arguments;
    let given = [
        ("--src", src.is_some()),
        ("--dst", dst.is_some()),
        ("--src-mac", src_mac.is_some()),
        ("--dst-mac", dst_mac.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format!(
            "{option} is not for --through testbed, whose bridges and router know the bed's own addresses: leave one of them out"
        )));
    }
    let mut spec = testbed::testbed(workers, arguments.rate, arguments.until());
    let asked = arguments.flows.unwrap_or(testbed::FLOWS);
    for end in &mut spec.ends {
        match end {
            MemoryEnd::Generator(generator) | MemoryEnd::Ring(generator, _) => {
                generator.traffic.size_bytes = arguments.size;
                generator.traffic.flows = asked;
            }
            MemoryEnd::Sink { flows } => *flows = asked.min(FLOWS_MAX),
            MemoryEnd::Loop => {}
        }
    }
    Ok(spec)
}

fn on_interface(arguments: &GenArguments, name: &str) -> Outcome {
    let traffic = arguments.traffic();
    let spec = GenSpec { traffic, packets_per_s: arguments.rate, until: arguments.until() };
    spec.traffic.check().map_err(Failure::usage)?;
    let mut ticker = Ticker::new(arguments.json)?;
    let stop = ticker.stop();
    let sent = with_interface(&stop, |keeper| {
        let mut generation = Generation::open(name, &spec, keeper)?;
        let observe = &mut |elapsed_ns, count| ticker.tick(elapsed_ns, count);
        let tell = &mut |event| match event {
            Event::Interface(state) => output::say_state(name, state),
            Event::Released(other) => output::say(format_args!(
                "weir: whoever received at {other} had gone and left the queues of {name} stopped: started them"
            )),
        };
        Ok(generation.run(observe, tell, keeper)?)
    })?;
    let Sent { account, held, is_gone } = sent;
    let balances = account.balances(held);
    let elapsed_ns = ticker.finish()?.elapsed_ns;
    let text = if arguments.json {
        let place = PlaceStats::new(name, Books::new(&account, held));
        let object = place.to_json(json!({
            "sent": account.accepted.packets,
            "elapsed_ns": elapsed_ns,
            "mpps": mpps(account.delivered.packets, elapsed_ns),
            "balances": balances,
        }));
        format!("{object}\n")
    } else {
        let mut text = format!(
            "sent {}, of which {} were taken by {name}, {} dropped and {} not taken; {}\n",
            human::plural(account.accepted.packets, "packet"),
            human::count(account.delivered.packets),
            human::count(account.dropped.total().packets),
            human::count(held.packets),
            speed(account.delivered, elapsed_ns)
        );
        text.push_str(&dropped_text(&account.dropped));
        text
    };
    output::print(text)?;
    if is_gone {
        return Err(vanished(name, "what was in flight is counted as dropped, port-gone"));
    }
    let refused = [DropReason::DeviceRefused, DropReason::TooLong];
    let refused: u64 = refused.iter().map(|&reason| account.dropped.get(reason).packets).sum();
    if refused > 0 && account.delivered.packets == 0 {
        return Err(format!(
            "{name} refused {} for good, all there were: is --size beyond the MTU of its other end?",
            human::plural(refused, "packet")
        )
        .into());
    }
    Ok(if balances && held.packets == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summary_text(summary: &MemorySummary, as_json: bool) -> String {
    let seen = summary.sequences();
    let delivered = summary.account.delivered;
    if as_json {
        let workers = summary.workers.iter().map(|worker| {
            json!({
                "cpu_ns": worker.told.cpu_ns,
                "passes": worker.told.passes,
                "blocked": worker.blocked,
                "blocked_ns": worker.blocked_ns,
                "parks": worker.told.parks,
                "kicks_sent": worker.kicks_sent,
            })
        });
        let mut object = json!({
            "sent": summary.account.accepted.packets,
            "delivered": delivered.packets,
            "lost": summary.lost(),
            "dropped": dropped_json(&summary.account.dropped),
            "held": summary.held.packets,
            "elapsed_ns": summary.elapsed_ns,
            "mpps": mpps(delivered.packets, summary.elapsed_ns),
            "cpu_mpps": summary.packets_per_cpu_s() / 1e6,
            "balances": summary.balances(),
            "workers": workers.collect::<Vec<_>>(),
        });
        merge(&mut object, sequences_json(&seen));
        return format!("{object}\n");
    }
    let mut text = format!(
        "sent {}, delivered {}, dropped {}, lost {}; {}; {} of processor time\n",
        human::plural(summary.account.accepted.packets, "packet"),
        human::count(delivered.packets),
        human::count(summary.account.dropped.total().packets),
        human::count(summary.lost()),
        speed(delivered, summary.elapsed_ns),
        human::packet_rate(summary.packets_per_cpu_s() as u64, 1_000_000_000)
    );
    let books = if summary.balances() { "the books balance" } else { "THE BOOKS DO NOT BALANCE" };
    text.push_str(&format!("{}; {books}\n", order(&seen)));
    text.push_str(&dropped_text(&summary.account.dropped));
    text
}

fn merge(object: &mut serde_json::Value, other: serde_json::Value) {
    if let (Some(object), serde_json::Value::Object(other)) = (object.as_object_mut(), other) {
        object.extend(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_rates() {
        for (text, rate) in
            [("1mpps", 1_000_000), ("100kpps", 100_000), ("500pps", 500), ("7", 7), ("2M", 2_000_000)]
        {
            assert_eq!(packet_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "pps", "0", "1gpps", "-1", "99999999999999999999mpps"] {
            assert!(packet_rate(text).is_err(), "{text}");
        }
    }
}
