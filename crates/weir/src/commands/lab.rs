//! `weir lab`: the published experiments, run again beside Weir.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use weir_lab::report::Report;
use weir_lab::{epair, progress, qdisc};

use crate::{Failure, Outcome};

/// Run a published experiment: the historical designs, today's peers and Weir side by side, in one run.
///
/// What needs a network happens in namespaces of the lab's own, which are gone afterwards.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir lab qdisc                            every case, about five minutes
  weir lab qdisc --clients 2,3 --seconds 5 --json qdisc.json
  weir lab qdisc --html qdisc.html          with plots
  weir lab epair                            every case, about a minute
  weir lab epair --systems mutex-drain,weir --seconds 0.5
  weir lab qdisc --sim                      the RFC's patches and its machine as well, simulated; these alone if not root

Experiments:
  qdisc    UDP senders behind a 200 Mbit/s limit: stock TBF as published, TBF with a queue so long that it never drops,
           and Weir; the kernel's HTB, and Weir's HTB and CBQ, with the same trees of classes
  epair    packets handed from one thread to another: FreeBSD's epair as it was, as it was first repaired and as it is,
           crossbeam, rtrb, tokio, and Weir; with the published bed of two bridges, two epairs and a router")]
pub struct Arguments {
    /// Which experiment
    #[arg(value_enum, default_value = "qdisc")]
    name: Name,
    /// qdisc: how many clients send at once, one case each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    clients: Vec<usize>,
    /// The systems to run; of qdisc: tbf, tbf-large, weir, htb, weir-htb, weir-cbq; of epair: two-ring, mutex-drain, mutex-flush, crossbeam, rtrb,
    /// tokio, weir
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    systems: Vec<String>,
    /// How long each system runs in each case; 10 for qdisc, 1.2 for epair if not given
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// qdisc: add simulated rows: the RFC's kernel before and after its patches, and Weir, on the RFC's machine
    #[arg(long)]
    sim: bool,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    Qdisc,
    Epair,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    weir_lab::interrupt::install();
    let report = match arguments.name {
        Name::Qdisc => run_qdisc(arguments)?,
        Name::Epair => run_epair(arguments)?,
    };
    print!("{}", report.to_table(std::io::stdout().is_terminal()));
    if arguments.sim {
        println!(
            "none, rfc and weir-sim are simulated: the RFC's kernel before and after its patches, and Weir."
        );
    }
    for (path, text) in [
        (&arguments.json, serde_json::to_string_pretty(&report.to_json())?),
        (&arguments.html, report.to_html()),
    ] {
        if let Some(path) = path {
            std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))?;
        }
    }
    Ok(if report.failures().next().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run_qdisc(arguments: &Arguments) -> Result<Report, Failure> {
    let mut options = qdisc::Options::new(std::env::current_exe()?);
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    if !arguments.clients.is_empty() {
        options.clients.clone_from(&arguments.clients);
    }
    let all = qdisc::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    if arguments.sim {
        options.extra_rows = weir_lab::simulated::qdisc_rows()?;
        if !weir_lab::bed::is_privileged() {
            eprintln!("weir: not root, so nothing is measured: simulated rows alone");
            options.systems.clear();
        }
    }
    Ok(qdisc::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_epair(arguments: &Arguments) -> Result<Report, Failure> {
    if !arguments.clients.is_empty() {
        return Err(Failure::usage("--clients: epair has none; leave it out".to_string()));
    }
    if arguments.sim {
        return Err(Failure::usage("--sim: only qdisc has simulated rows; leave it out"));
    }
    let mut options = epair::Options::default();
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    let all = epair::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    Ok(epair::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

/// What `--systems` names, out of all that the lab has; `None` if it is not given.
fn systems<S: Copy>(arguments: &Arguments, all: &[(&str, S)]) -> Result<Option<Vec<S>>, Failure> {
    let find = |name: &String| {
        all.iter().find(|(other, _)| other == name).map(|(_, system)| *system).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            Failure::usage(format!("--systems {name}: there is no such system here, only {names}"))
        })
    };
    let systems: Vec<S> = arguments.systems.iter().map(find).collect::<Result<_, _>>()?;
    Ok((!systems.is_empty()).then_some(systems))
}
