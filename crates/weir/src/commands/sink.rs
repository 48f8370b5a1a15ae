//! `weir sink`: counts and checks what arrives on an interface.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use weir_core::dispatch::handlers;
use weir_core::dispatch::netstat::Snapshot;
use weir_core::dispatch::protocol::Mode;
use weir_core::dispatch::settings::{Configuration, SettingError, Settings};
use weir_core::drops::Count;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, Signals};
use weir_port::sys::allowed_cores;
use weir_port::undo::Keeper;
use weir_run::path::flows::FLOWS_MAX;
use weir_run::path::sequence::SequenceCounts;
use weir_run::sink::{Sink, Summary, WorkerSummary};

use crate::commands::r#gen::{dropped_json, mpps, order, speed};
use crate::session::{give_up, guardian};
use crate::{Failure, Outcome, human, text};

/// Receive and count packets on an interface, and check those of `weir gen` for loss, duplicates and order.
///
/// The interface is a veth; nothing that arrives on it reaches the kernel meanwhile. It ends when interrupted, or when it has
/// seen enough; then everything is put back as it was.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir sink veth1                           until Ctrl-C
  weir sink veth1 --count 1000000 --time 60s --json
  weir sink veth1 --workers 2 -Q            two workers, and netisr's tables
  weir sink veth1 --workers 2 --set dispatch=deferred --set proto.ip.full=drop

Workers: queue Q of the interface is polled by worker Q mod N, so flows are
dealt out by the NIC, or at a veth by the sending end. Where there are fewer
queues than workers, flows are dealt by Toeplitz (rss.*) and handed over. A
worker that is full holds the one that polls, and so the senders.

Settings of netisr (--set): dispatch, maxthreads, bindthreads, defaultqlimit,
maxqlimit, rss.bits, rss.key, rss.hash, rss.bucket.N, and policy, dispatch,
qlimit and full of proto.ether, proto.arp, proto.ip and proto.ip6

In pkt-gen's words: -f rx; -n is --count, -p --workers")]
pub struct Arguments {
    /// The interface to receive on
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// How many workers, each on a core of its own; maxthreads in --set [default: 1]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// A setting of dispatch or steering; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = text::setting)]
    set: Vec<(String, String)>,
    /// Flows of generators that are followed, by number from 0; others are counted
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_MAX)))]
    flows: u32,
    /// End after so many packets of generators
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after so long
    #[arg(long, value_name = "TIME", value_parser = text::time)]
    time: Option<u64>,
    /// The tables of `netstat -Q` at the end: configuration, protocols, workstreams; with --json they are in the object anyway
    #[arg(short = 'Q', long)]
    queues: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

const MAXTHREADS: &str = "maxthreads";

/// What `--workers` and `--set` come to on a machine with so many cores.
fn configuration(arguments: &Arguments, cores: usize) -> Result<Configuration, Failure> {
    let mut settings = Settings::new(handlers::protocols());
    let mut is_set = false;
    for (key, text) in &arguments.set {
        settings.set(key, text, None).map_err(|error| Failure::usage(format!("--set {error}")))?;
        is_set |= key == MAXTHREADS;
    }
    if is_set && arguments.workers.is_some() {
        return Err(Failure::usage("--workers and --set maxthreads are the same: give one of them"));
    }
    let named = |error: SettingError| match arguments.workers {
        Some(workers) if error.key == MAXTHREADS => {
            Failure::usage(format!("--workers {workers}: {}", error.problem))
        }
        _ => Failure::usage(format!("--set {error}")),
    };
    if !is_set {
        let workers = arguments.workers.unwrap_or(1).to_string();
        settings.set(MAXTHREADS, &workers, None).map_err(named)?;
    }
    settings.finish(cores).map_err(named)
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let configuration = configuration(arguments, allowed_cores().len())?;
    let mut ticker = Ticker::new(arguments.json)?;
    let summary = with_interface(|keeper| {
        let sink = Sink::open(&arguments.interface, configuration, keeper)?;
        eprintln!("ready: counting on {}", arguments.interface);
        Ok(sink.receive(arguments.flows, &mut |progress| {
            let enough = arguments.count.is_some_and(|packets| progress.numbered >= packets);
            let over = arguments.time.is_some_and(|time_ns| progress.elapsed_ns >= time_ns);
            ticker.tick(progress.elapsed_ns, progress.delivered) && !enough && !over
        })?)
    })?;
    let elapsed_ns = ticker.elapsed_ns();
    if arguments.json {
        println!("{}", summary_json(&summary, elapsed_ns));
    } else {
        print_summary(&summary, elapsed_ns);
        if arguments.queues {
            print!("\n{}", summary.tables);
        }
    }
    let faults = faults(summary.sequences.counts()) + summary.split_flows + summary.lost;
    let whole = faults == 0 && summary.balances() && summary.held.packets == 0;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_summary(summary: &Summary, elapsed_ns: u64) {
    let (seen, received) = (summary.sequences.counts(), summary.account.accepted);
    println!(
        "received {}, {} of them numbered; {}; lost by the kernel {}; {}",
        human::plural(received.packets, "packet"),
        human::count(seen.numbered),
        order(seen),
        human::count(summary.lost),
        speed(received, elapsed_ns)
    );
    if summary.split_flows > 0 {
        println!("{} came to more than one worker", human::plural(summary.split_flows, "flow"));
    }
    for (reason, count) in summary.account.dropped.occurred() {
        println!("dropped {}: {}", reason.name(), human::count(count.packets));
    }
    for (number, worker) in summary.workers.iter().enumerate() {
        let [dispatched, hybrid, queued] = work_of(worker).map(human::count);
        println!(
            "worker {number} on core {}: {} by {}, {} delivered in {}; dispatched {dispatched}, hybrid {hybrid}, queued \
             {queued}",
            worker.core,
            human::plural(worker.received.packets, "packet"),
            human::plural(worker.queues as u64, "queue"),
            human::count(worker.delivered.packets),
            human::plural(worker.flows, "flow"),
        );
    }
    if !summary.balances() || summary.held.packets > 0 {
        println!("THE BOOKS DO NOT BALANCE: {} held", human::count(summary.held.packets));
    }
}

/// Packets dispatched, hybrid dispatched and queued by a worker, over all protocols.
fn work_of(worker: &WorkerSummary) -> [u64; 3] {
    worker.rows.iter().fold([0; 3], |[dispatched, hybrid, queued], row| {
        [dispatched + row.dispatched, hybrid + row.hybrid_dispatched, queued + row.queued]
    })
}

fn summary_json(summary: &Summary, elapsed_ns: u64) -> Value {
    let mut object = sequences_json(summary.sequences.counts());
    let workers = summary.workers.iter().map(|worker| {
        let [dispatched, hybrid_dispatched, queued] = work_of(worker);
        json!({
            "core": worker.core,
            "queues": worker.queues,
            "received": worker.received.packets,
            "delivered": worker.delivered.packets,
            "flows": worker.flows,
            "dispatched": dispatched,
            "hybrid_dispatched": hybrid_dispatched,
            "queued": queued,
        })
    });
    object["split_flows"] = json!(summary.split_flows);
    object["received"] = json!(summary.account.accepted.packets);
    object["bytes"] = json!(summary.account.accepted.bytes);
    object["delivered"] = json!(summary.account.delivered.packets);
    object["dropped"] = dropped_json(&summary.account.dropped);
    object["held"] = json!(summary.held.packets);
    object["balances"] = json!(summary.balances());
    object["kernel_lost"] = json!(summary.lost);
    object["elapsed_ns"] = json!(elapsed_ns);
    object["mpps"] = json!(mpps(summary.account.accepted.packets, elapsed_ns));
    object["workers"] = workers.collect();
    object["netisr"] = tables_json(&summary.tables);
    object
}

/// netisr's three tables.
fn tables_json(tables: &Snapshot) -> Value {
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
        "bindthreads": tables.bound,
        "defaultqlimit": tables.qlimit.0,
        "maxqlimit": tables.qlimit.1,
        "protocols": protocols.collect::<Value>(),
        "workstreams": workstreams.collect::<Value>(),
    })
}

/// What must not happen to numbered packets.
pub fn faults(seen: &SequenceCounts) -> u64 {
    seen.missing + seen.duplicated + seen.reordered
}

/// What a sink saw, for programs.
pub fn sequences_json(seen: &SequenceCounts) -> Value {
    json!({
        "numbered": seen.numbered,
        "unnumbered": seen.unnumbered,
        "missing": seen.missing,
        "duplicated": seen.duplicated,
        "reordered": seen.reordered,
    })
}

/// Does something with interfaces; whatever comes of it, they are put back.
pub fn with_interface<T>(work: impl FnOnce(&mut dyn Keeper) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut guardian = guardian()?;
    match work(&mut guardian) {
        Ok(done) => match guardian.finish().first() {
            None => Ok(done),
            Some(fault) => Err(format!("while putting things back: {fault}").into()),
        },
        Err(failure) => Err(give_up(guardian, failure)),
    }
}

/// A line a second on a terminal, as pkt-gen prints it, until a signal comes.
pub struct Ticker {
    stop: Arc<AtomicBool>,
    prints: bool,
    elapsed_ns: u64,
    printed_ns: u64,
    printed: Count,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Ticker {
    /// Catches signals from now on.
    pub fn new(as_json: bool) -> Result<Ticker, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        // First of all: every thread must block them.
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP])?;
        let told = Arc::clone(&stop);
        std::thread::Builder::new().name("weir-signals".into()).spawn(move || {
            while signals.wait().is_ok() {
                told.store(true, Ordering::Relaxed);
            }
        })?;
        let prints = !as_json && std::io::stdout().is_terminal();
        Ok(Ticker { stop, prints, elapsed_ns: 0, printed_ns: 0, printed: Count::default() })
    }

    /// Notes how far it has come; false if it is to end.
    pub fn tick(&mut self, elapsed_ns: u64, count: Count) -> bool {
        self.elapsed_ns = elapsed_ns;
        if self.prints && elapsed_ns - self.printed_ns >= SECOND_NS {
            let new = Count {
                packets: count.packets - self.printed.packets,
                bytes: count.bytes - self.printed.bytes,
            };
            println!("{:>5} s  {}", elapsed_ns / SECOND_NS, speed(new, elapsed_ns - self.printed_ns));
            (self.printed_ns, self.printed) = (elapsed_ns, count);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// How long it has been.
    pub fn elapsed_ns(&self) -> u64 {
        self.elapsed_ns
    }
}
