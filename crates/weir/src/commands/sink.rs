//! `weir sink`: counts and checks packets that arrive on an interface.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use weir_core::dispatch::handlers;
use weir_core::dispatch::netstat::{NetstatTables, WorkstreamRow};
use weir_core::dispatch::protocol::Mode;
use weir_core::dispatch::settings::{Configuration, SettingError, Settings, pair};
use weir_core::steer::rss::WORKERS_MAX;
use weir_path::traffic::flows::FLOWS_MAX;
use weir_path::traffic::sequence::SequenceCounts;
use weir_port::sys::allowed_cores;
use weir_run::books::Books;
use weir_run::sink::{Sink, SinkSummary, Steering, WorkerSummary};
use weir_run::stats::PlaceStats;

use crate::commands::traffic::{
    Ticker, Times, dropped_text, faults, mpps, order, sequences_json, speed, vanished, with_interface,
};
use crate::{Failure, Outcome, human, output, text};

/// Receive and count packets on an interface, and check those of `weir gen` for loss, duplicates and order.
///
/// The interface is a veth; nothing that arrives on it reaches the kernel meanwhile. It ends when interrupted, or when it has
/// seen enough; then everything is put back as it was. While the interface is down it waits; when that vanishes it ends with
/// status 1, as it does when a packet is missing, came twice or out of order.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir sink veth1                           until Ctrl-C
  weir sink veth1 --count 1000000 --time 60s --json
  weir sink veth1 --workers 2 -Q            two workers, and netisr's tables
  weir sink veth1 --workers 2 --set dispatch=deferred --set proto.ip.full=drop

Workers: queue Q of the interface is polled by worker Q mod N, so flows are
dealt out by the NIC, or at a veth by the sending end. Where there are fewer
queues than workers, flows are dealt by Toeplitz (rss.*) and handed over. A
full queue holds the queues of the interface whose packets wait in it, at
whatever worker, and so their senders. It may exceed its limit by a poll of
each of them, 64 packets at most, by what is under way to its worker, and by
what waits in the queues before it.

Settings of netisr (--set), the default first, or in brackets:
  dispatch           direct, hybrid or deferred: at once, or from a queue
  maxthreads         workers, as --workers; -1 for as many as there are cores
  bindthreads        true or false: each worker on a core of its own
  defaultqlimit      packets in a queue before it is full: 256
  maxqlimit          the most that any qlimit may be: 10240
  rss.hash           4-tuple or 2-tuple: addresses with ports or without
  rss.key            microsoft, symmetric, or 80 hexadecimal digits
  rss.bits           2^bits buckets, 7 at most [two buckets for each worker]
  rss.bucket.N       the worker, from 0, that bucket N belongs to
  and of ether, arp, ip and ip6, such as proto.ip.policy=source:
  proto.NAME.policy    flow, source or cpu: the worker of the packet's flow,
                       the first, or the one with the queue's number
  proto.NAME.dispatch  as dispatch; ether is hybrid
  proto.NAME.qlimit    as defaultqlimit
  proto.NAME.full      block, ecn or drop: hold who sends, mark from half the
                       limit on as well, or drop and count

In pkt-gen's words: -f rx; -n is --count, -p --workers

`weir sink --help` explains the columns of -Q.", after_long_help = include_str!("sink-help.txt"))]
pub struct SinkArguments {
    /// The interface to receive on
    #[arg(value_name = "DEV")]
    interface: String,
    /// How many workers, 1 to as many as there are cores; maxthreads in --set [default: 1]
    #[arg(long, value_name = "N", value_parser = text::at_least(0_usize), allow_negative_numbers = true)]
    workers: Option<usize>,
    /// A setting of dispatch or steering; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Flows of generators that are followed, by number from 0; others are counted
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = text::whole(1, FLOWS_MAX), allow_negative_numbers = true)]
    flows: u32,
    /// End after so many packets of generators, those that a rule dropped included
    #[arg(long, value_name = "N", value_parser = text::at_least(1_u64), allow_negative_numbers = true)]
    count: Option<u64>,
    /// End after so long
    #[arg(long, value_name = "TIME", value_parser = text::time, allow_hyphen_values = true)]
    time: Option<u64>,
    /// The tables of `netstat -Q` at the end: configuration, protocols, workstreams; with --json they are in the object anyway
    #[arg(short = 'Q', long)]
    queues: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

const MAXTHREADS: &str = "maxthreads";

/// The configuration by `--workers` and `--set`, on a machine with so many cores.
fn configuration(arguments: &SinkArguments, cores: usize) -> Result<Configuration, Failure> {
    let mut settings = Settings::new(handlers::protocols());
    let mut is_set = false;
    for (key, text) in &arguments.set {
        settings.set(key, text).map_err(refused)?;
        is_set |= key == MAXTHREADS;
    }
    if is_set && arguments.workers.is_some() {
        return Err(Failure::usage("--workers and --set maxthreads are the same: give one of them"));
    }
    if !is_set {
        let workers = arguments.workers.unwrap_or(1);
        text::check_workers(workers, WORKERS_MAX)?;
        settings.set(MAXTHREADS, &workers.to_string()).map_err(refused)?;
    }
    settings.finish(cores).map_err(refused)
}

fn refused(error: SettingError) -> Failure {
    Failure::usage(format!("--set {error}"))
}

/// Runs the command.
pub fn run(arguments: &SinkArguments) -> Outcome {
    let SinkArguments { interface, .. } = arguments;
    let configuration = configuration(arguments, allowed_cores().len())?;
    let workers = configuration.workers;
    let mut ticker = Ticker::new(arguments.json)?;
    let stop = ticker.stop();
    let summary = with_interface(&stop, |keeper| {
        let sink = Sink::open(interface, configuration, keeper)?;
        if sink.steering() == Steering::Toeplitz {
            let queues = human::plural(sink.queues() as u64, "queue");
            output::warn(format_args!(
                "{interface} has {queues} for {workers} workers, so whoever polls hands packets over to the others: make the \
                 pair with numtxqueues {workers} numrxqueues {workers} at both ends to spare that"
            ));
        }
        output::say(format_args!("ready: counting on {interface}"));
        let observe = &mut |progress: &weir_run::sink::Progress| {
            let enough = arguments.count.is_some_and(|packets| progress.numbered >= packets);
            let over = arguments.time.is_some_and(|time_ns| progress.elapsed_ns >= time_ns);
            ticker.tick(progress.elapsed_ns, progress.delivered) && !enough && !over
        };
        let tell = &mut |state| output::say_state(interface, state);
        Ok(sink.receive(arguments.flows, observe, tell, keeper)?)
    })?;
    let times = ticker.finish()?;
    let seen = summary.sequences.settled();
    if arguments.json {
        output::print_line(place(interface, &summary).to_json(summary_json(&summary, &seen, times)))?;
    } else {
        let tables = if arguments.queues { format!("\n{}", summary.tables) } else { String::new() };
        output::print(format_args!("{}{tables}", summary_text(&summary, &seen, times)))?;
    }
    if summary.is_gone {
        return Err(vanished(interface, "nothing more can arrive; what came before is counted"));
    }
    let faults = faults(&seen) + summary.split_flows + summary.lost.owned;
    let whole = faults == 0 && summary.balances() && summary.held.packets == 0;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summary_text(summary: &SinkSummary, seen: &SequenceCounts, times: Times) -> String {
    let received = summary.account.accepted;
    let mut text = format!(
        "received {}, {} of them numbered; {}; lost by the kernel {}; {}\n",
        human::plural(received.packets, "packet"),
        human::count(seen.numbered + seen.dropped),
        order(seen),
        human::count(summary.lost.owned),
        speed(received, times.active_ns)
    );
    text.push_str(&dropped_text(&summary.account.dropped));
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{arguments}");
    };
    if summary.lost.while_down > 0 {
        let packets = human::plural(summary.lost.while_down, "packet");
        line(format_args!("{packets} lost by the kernel while the interface was down"));
    }
    if summary.lost.forwarded > 0 {
        let packets = human::plural(summary.lost.forwarded, "packet");
        line(format_args!(
            "{packets} without a socket (forwarded) dropped at the sender, as too much of such waited"
        ));
    }
    if summary.split_flows > 0 {
        line(format_args!("{} came to more than one worker", human::plural(summary.split_flows, "flow")));
    }
    match summary.steering {
        Steering::None => {}
        Steering::Queues => line(format_args!("flows dealt to workers by the queues of the device")),
        Steering::Toeplitz => {
            line(format_args!(
                "flows dealt to workers by Toeplitz and handed over: fewer queues than workers"
            ));
        }
    }
    for (number, worker) in summary.workers.iter().enumerate() {
        line(format_args!(
            "worker {number} on core {}: {} by {}, {} delivered in {}; {}",
            worker.core,
            human::plural(worker.received.packets, "packet"),
            human::plural(worker.queues as u64, "queue"),
            human::count(worker.delivered.packets),
            human::plural(worker.flows, "flow"),
            handled(worker)
        ));
    }
    if !summary.balances() || summary.held.packets > 0 {
        line(format_args!("THE BOOKS DO NOT BALANCE: {} held", human::count(summary.held.packets)));
    }
    text
}

/// The packets that a worker handled at each layer: `ether 7 at once, ip 5 at once and 2 from its queue`.
fn handled(worker: &WorkerSummary) -> String {
    let layer = |row: &WorkstreamRow| {
        let at_once = human::count(row.dispatched + row.hybrid_dispatched);
        match row.handled - (row.dispatched + row.hybrid_dispatched) {
            0 => format!("{} {at_once} at once", row.name),
            queued => format!("{} {at_once} at once and {} from its queue", row.name, human::count(queued)),
        }
    };
    // The layer that every packet goes through comes first.
    let (ether, others): (Vec<_>, Vec<_>) = worker.rows.iter().partition(|row| row.name == "ether");
    let layers: Vec<_> = ether.into_iter().chain(others).filter(|row| row.handled > 0).map(layer).collect();
    if layers.is_empty() { "nothing handled".into() } else { layers.join(", ") }
}

/// The sink as a place; as blocked as the protocol that was blocked longest.
fn place(interface: &str, summary: &SinkSummary) -> PlaceStats {
    let blocked_ns = summary.tables.workstreams.iter().map(|row| row.blocked_ns).max();
    let books = Books::new(&summary.account, summary.held);
    PlaceStats { blocked_ns, ..PlaceStats::new(interface, books) }
}

/// The other fields of a sink.
fn summary_json(summary: &SinkSummary, seen: &SequenceCounts, times: Times) -> Value {
    let mut object = sequences_json(seen);
    object["numbered"] = json!(seen.numbered + seen.dropped);
    let workers = summary.workers.iter().map(|worker| {
        // netisr's table has all of it, by protocol.
        json!({
            "core": worker.core,
            "queues": worker.queues,
            "received": worker.received.packets,
            "delivered": worker.delivered.packets,
            "flows": worker.flows,
        })
    });
    object["steering"] = json!(match summary.steering {
        Steering::None => "none",
        Steering::Queues => "queues",
        Steering::Toeplitz => "toeplitz",
    });
    object["split_flows"] = json!(summary.split_flows);
    object["received"] = json!(summary.account.accepted.packets);
    object["bytes"] = json!(summary.account.accepted.bytes);
    object["balances"] = json!(summary.balances());
    object["kernel_lost"] = json!(summary.lost.owned);
    object["kernel_lost_while_down"] = json!(summary.lost.while_down);
    object["forwarded_dropped"] = json!(summary.lost.forwarded);
    object["elapsed_ns"] = json!(times.elapsed_ns);
    object["active_ns"] = json!(times.active_ns);
    object["mpps"] = json!(mpps(summary.account.accepted.packets, times.active_ns));
    object["workers"] = workers.collect();
    object["netisr"] = tables_json(&summary.tables);
    object
}

/// netisr's three tables.
fn tables_json(tables: &NetstatTables) -> Value {
    let protocols = tables.protocols.iter().map(|row| {
        json!({
            "name": row.name,
            "number": row.number,
            "qlimit": row.qlimit,
            "policy": row.policy.name(),
            "dispatch": row.mode.map(Mode::name),
            "full": row.when_full.name(),
        })
    });
    let workstreams = tables.workstreams.iter().map(|row| {
        json!({
            "wsid": row.wsid,
            "cpu": row.cpu,
            "name": row.name,
            "len": row.len,
            "wmark": row.wmark,
            "dispatched": row.dispatched,
            "hybrid_dispatched": row.hybrid_dispatched,
            "queue_drops": row.queue_drops,
            "queued": row.queued,
            "handled": row.handled,
            "held": row.held,
            "blocked": row.blocked,
            "blocked_ns": row.blocked_ns,
        })
    });
    json!({
        "dispatch": tables.dispatch.name(),
        "threads": tables.threads.0,
        "bindthreads": tables.bound > 0,
        "defaultqlimit": tables.qlimit.0,
        "maxqlimit": tables.qlimit.1,
        "protocols": protocols.collect::<Value>(),
        "workstreams": workstreams.collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::SinkArguments;

    /// The paragraph of a text that begins with `word`.
    fn paragraph(text: &str, word: &str) -> String {
        text.split("\n\n").find(|part| part.starts_with(word)).expect(word).to_owned()
    }

    #[test]
    fn both_helps_say_the_same() {
        let command = SinkArguments::augment_args(clap::Command::new("sink"));
        let short = command.get_after_help().unwrap().to_string();
        let long = command.get_after_long_help().unwrap().to_string();
        for word in ["Workers:", "Settings of netisr"] {
            assert_eq!(paragraph(&short, word), paragraph(&long, word));
        }
    }
}
