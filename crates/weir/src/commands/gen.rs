//! `weir gen`: generates traffic, in memory or on an interface.

use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;
use smoltcp::wire::EthernetAddress;
use weir_core::dispatch::protocol::Mode;
use weir_core::drops::{Count, DropCounts};
use weir_run::path::flows::{Endpoints, SIZE_BYTES_MIN, Traffic};
use weir_run::path::r#gen::{Gen, GenSpec, Until};
use weir_run::path::interface::Interface;
use weir_run::path::run::run as run_path;
use weir_run::path::sequence::SequenceCounts;
use weir_run::path::spec::{KindSpec, LinkSpec, NodeSpec, PathError, PathSpec};
use weir_run::path::summary::Summary;
use weir_run::path::testbed;

use crate::commands::sink::{Ticker, faults, sequences_json, with_interface};
use crate::{Failure, Outcome, human, text};

/// Flows at most unless more are asked for.
const FLOWS_DEFAULT_MAX: u64 = 2000;

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
pub struct Arguments {
    /// The interface to send on; without one, in memory
    #[arg(value_name = "INTERFACE")]
    interface: Option<String>,
    /// How many flows [default: all that the addresses and ports make, 2000 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    flows: Option<u32>,
    /// Length of a packet in bytes, Ethernet header included, check sequence not
    #[arg(long, value_name = "BYTES", default_value_t = SIZE_BYTES_MIN)]
    size: u16,
    /// Where packets come from, ADDRESS:PORT-ADDRESS:PORT; ports and the end of the range may be left out
    #[arg(long, value_name = "RANGE", default_value = "198.18.0.1:2000")]
    src: Endpoints,
    /// Where they go, written the same way
    #[arg(long, value_name = "RANGE", default_value = "198.19.0.1:2000-198.19.0.250:2099")]
    dst: Endpoints,
    /// Ethernet source
    #[arg(long, value_name = "MAC", value_parser = mac, default_value = "02:00:00:00:00:01")]
    src_mac: EthernetAddress,
    /// Ethernet destination
    #[arg(long, value_name = "MAC", value_parser = mac, default_value = "ff:ff:ff:ff:ff:ff")]
    dst_mac: EthernetAddress,
    /// Packets a second of each generator, such as 100kpps or 1mpps [default: as many as will go]
    #[arg(long, value_name = "RATE", value_parser = packet_rate)]
    rate: Option<u64>,
    /// End after so many packets of each generator
    #[arg(long, value_name = "N", conflicts_with = "time")]
    count: Option<u64>,
    /// End after so long [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = text::time)]
    time: Option<u64>,
    /// In memory: how many workers, each on a core of its own
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "interface")]
    workers: usize,
    /// In memory: what packets go through
    #[arg(long, value_enum, default_value = "link", conflicts_with = "interface")]
    through: Through,
    /// In memory: when what comes to a node is handled: direct, hybrid or deferred
    #[arg(long, value_name = "MODE", value_parser = mode, default_value = "direct", conflicts_with = "interface")]
    dispatch: Mode,
    /// In memory: slots of each ring between two workers, a power of two [default: as many as the frames need]
    #[arg(long, value_name = "SLOTS", conflicts_with = "interface")]
    ring: Option<usize>,
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

fn mode(text: &str) -> Result<Mode, String> {
    Mode::from_name(text).ok_or_else(|| "there are direct, hybrid and deferred".into())
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

impl Arguments {
    fn traffic(&self) -> Traffic {
        let mut traffic = Traffic {
            size_bytes: self.size,
            src: self.src,
            dst: self.dst,
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
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
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.interface {
        Some(interface) => on_interface(arguments, interface),
        None => in_memory(arguments),
    }
}

fn in_memory(arguments: &Arguments) -> Outcome {
    let mut ticker = Ticker::new(arguments.json)?;
    let spec = match arguments.through {
        Through::Link => links(arguments),
        Through::Testbed => bed(arguments)?,
    };
    let summary = run_path(&spec, &mut |progress| {
        let told = &progress.told;
        ticker.tick(progress.elapsed_ns, Count { packets: told.delivered, bytes: told.delivered_bytes })
    });
    let summary = summary.map_err(|error| match error {
        PathError::Died { .. } | PathError::Start { .. } | PathError::Memory(_) | PathError::Inbox(_) => {
            Failure::from(error)
        }
        wrong => Failure::usage(wrong),
    })?;
    print_summary(&summary, arguments.json);
    let seen = summary.sequences();
    let whole = summary.balances() && summary.lost() == 0 && faults(&seen) == 0;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of each worker a generator, and a sink for the worker before it.
fn links(arguments: &Arguments) -> PathSpec {
    let workers = arguments.workers;
    let traffic = arguments.traffic();
    let mut spec = PathSpec {
        workers,
        dispatch: arguments.dispatch,
        frames: 2048 * workers.clamp(1, 64) as u32,
        ring_slots: arguments.ring,
        ..PathSpec::default()
    };
    let share = (traffic.flows / workers.max(1) as u32).max(1);
    for worker in 0..workers {
        let first_flow = share * worker as u32;
        let flows = if worker + 1 == workers { traffic.flows.saturating_sub(first_flow) } else { share };
        let traffic = Traffic { flows, first_flow, ..traffic.clone() };
        let flows_end = first_flow.saturating_add(flows);
        let until = arguments.until();
        let generator = KindSpec::Gen(GenSpec { traffic, packets_per_s: arguments.rate, until });
        let place = spec.nodes.len();
        spec.nodes.push(NodeSpec { name: format!("gen-{worker}"), worker, kind: generator });
        spec.nodes.push(NodeSpec {
            name: format!("sink-{worker}"),
            worker: (worker + 1) % workers,
            kind: KindSpec::Sink { flows: flows_end },
        });
        spec.links.push(LinkSpec { ends: [(place, 0), (place + 1, 0)] });
    }
    spec
}

fn bed(arguments: &Arguments) -> Result<PathSpec, Failure> {
    if arguments.workers > 2 {
        return Err(Failure::usage(format!(
            "--workers {}: the bed has one epair to cross between workers, so give 1 or 2",
            arguments.workers
        )));
    }
    let mut spec = testbed::testbed(arguments.workers, arguments.dispatch, arguments.rate, arguments.until());
    spec.ring_slots = arguments.ring;
    for node in &mut spec.nodes {
        if let KindSpec::Gen(generator) = &mut node.kind {
            // The router knows the bed's addresses and no others.
            generator.traffic.size_bytes = arguments.size;
            generator.traffic.flows = arguments.flows.unwrap_or(testbed::FLOWS);
        }
    }
    let flows = arguments.flows.unwrap_or(testbed::FLOWS);
    for node in &mut spec.nodes {
        if let KindSpec::Sink { flows: known } = &mut node.kind {
            *known = flows.min(weir_run::path::flows::FLOWS_MAX);
        }
    }
    Ok(spec)
}

fn on_interface(arguments: &Arguments, name: &str) -> Outcome {
    let traffic = arguments.traffic();
    let spec = GenSpec { traffic, packets_per_s: arguments.rate, until: arguments.until() };
    let mut generator = Gen::new(&spec).map_err(Failure::usage)?;
    let mut ticker = Ticker::new(arguments.json)?;
    let (account, in_flight) = with_interface(|keeper| {
        let mut interface = Interface::open(name, keeper)?;
        let observe = &mut |elapsed_ns, count| ticker.tick(elapsed_ns, count);
        Ok(interface.generate(&mut generator, observe)?)
    })?;
    let balances = account.balances(in_flight);
    let elapsed_ns = ticker.elapsed_ns();
    if arguments.json {
        let object = json!({
            "sent": account.accepted.packets,
            "delivered": account.delivered.packets,
            "dropped": dropped_json(&account.dropped),
            "held": in_flight.packets,
            "elapsed_ns": elapsed_ns,
            "mpps": mpps(account.delivered.packets, elapsed_ns),
            "balances": balances,
        });
        println!("{object}");
    } else {
        println!(
            "sent {}, of which {} were taken by {name}, {} dropped and {} not taken; {}",
            human::plural(account.accepted.packets, "packet"),
            human::count(account.delivered.packets),
            human::count(account.dropped.total().packets),
            human::count(in_flight.packets),
            speed(account.delivered, elapsed_ns)
        );
    }
    Ok(if balances && in_flight.packets == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_summary(summary: &Summary, as_json: bool) {
    let seen = summary.sequences();
    let delivered = summary.account.delivered;
    if as_json {
        let workers = summary.workers.iter().map(|worker| {
            json!({
                "cpu_ns": worker.cpu_ns,
                "passes": worker.passes,
                "blocked": worker.blocked,
                "blocked_ns": worker.blocked_ns,
                "parks": worker.doorbell.blocks,
                "kicks_sent": worker.outlets.kicks,
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
        println!("{object}");
        return;
    }
    println!(
        "sent {}, delivered {}, dropped {}, lost {}; {}; {:.2} Mpps of processor time",
        human::plural(summary.account.accepted.packets, "packet"),
        human::count(delivered.packets),
        human::count(summary.account.dropped.total().packets),
        human::count(summary.lost()),
        speed(delivered, summary.elapsed_ns),
        summary.packets_per_cpu_s() / 1e6
    );
    println!(
        "{}; {}",
        order(&seen),
        if summary.balances() { "the books balance" } else { "THE BOOKS DO NOT BALANCE" }
    );
    for (reason, count) in summary.account.dropped.occurred() {
        println!("dropped {}: {}", reason.name(), human::count(count.packets));
    }
}

/// `12.34 Mpps, 9.87 Gbit/s`.
pub fn speed(count: Count, elapsed_ns: u64) -> String {
    let bits_per_ns = count.bytes as f64 * 8.0 / elapsed_ns.max(1) as f64;
    format!("{:.3} Mpps, {bits_per_ns:.2} Gbit/s", mpps(count.packets, elapsed_ns))
}

/// What a sink saw, in words.
pub fn order(seen: &SequenceCounts) -> String {
    format!(
        "missing {}, duplicated {}, reordered {}",
        human::count(seen.missing),
        human::count(seen.duplicated),
        human::count(seen.reordered)
    )
}

/// Millions of packets a second.
pub fn mpps(packets: u64, elapsed_ns: u64) -> f64 {
    packets as f64 * 1e3 / elapsed_ns.max(1) as f64
}

/// Packets dropped, by reason.
pub fn dropped_json(dropped: &DropCounts) -> serde_json::Value {
    dropped.occurred().map(|(reason, count)| (reason.name().to_string(), json!(count.packets))).collect()
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

    #[test]
    fn speeds_and_faults_in_words() {
        let count = Count { packets: 3_000_000, bytes: 300_000_000 };
        assert_eq!(speed(count, 2_000_000_000), "1.500 Mpps, 1.20 Gbit/s");
        let seen = SequenceCounts { missing: 1234, reordered: 2, ..SequenceCounts::default() };
        assert_eq!(order(&seen), "missing 1,234, duplicated 0, reordered 2");
    }
}
