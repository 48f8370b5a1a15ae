//! `weir sink`: counts and checks what arrives on an interface.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use weir_core::drops::Count;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, Signals};
use weir_port::undo::Keeper;
use weir_run::path::flows::FLOWS_MAX;
use weir_run::path::interface::Interface;
use weir_run::path::sequence::{SequenceCounts, Sequences};

use crate::commands::r#gen::{mpps, order, speed};
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

In pkt-gen's words: -f rx; -n is --count")]
pub struct Arguments {
    /// The interface to receive on
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// Flows of generators that are followed, by number from 0; others are counted
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_MAX)))]
    flows: u32,
    /// End after so many packets of generators
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after so long
    #[arg(long, value_name = "TIME", value_parser = text::time)]
    time: Option<u64>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut ticker = Ticker::new(arguments.json)?;
    let mut sequences = Sequences::joining(arguments.flows);
    let (count, lost) = with_interface(|keeper| {
        let mut interface = Interface::open(&arguments.interface, keeper)?;
        eprintln!("ready: counting on {}", arguments.interface);
        let count = interface.receive(&mut sequences, &mut |elapsed_ns, count, seen| {
            let enough = arguments.count.is_some_and(|packets| seen.numbered >= packets);
            let over = arguments.time.is_some_and(|time_ns| elapsed_ns >= time_ns);
            ticker.tick(elapsed_ns, count) && !enough && !over
        })?;
        Ok((count, interface.lost()?))
    })?;
    let (seen, elapsed_ns) = (*sequences.counts(), ticker.elapsed_ns());
    if arguments.json {
        let mut object = sequences_json(&seen);
        object["received"] = json!(count.packets);
        object["bytes"] = json!(count.bytes);
        object["kernel_lost"] = json!(lost);
        object["elapsed_ns"] = json!(elapsed_ns);
        object["mpps"] = json!(mpps(count.packets, elapsed_ns));
        println!("{object}");
    } else {
        println!(
            "received {}, {} of them numbered; {}; lost by the kernel {}; {}",
            human::plural(count.packets, "packet"),
            human::count(seen.numbered),
            order(&seen),
            human::count(lost),
            speed(count, elapsed_ns)
        );
    }
    Ok(if faults(&seen) + lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
