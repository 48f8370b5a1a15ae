//! `weir lab`: the published experiments, run again beside Weir.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use weir_lab::progress;
use weir_lab::qdisc::{self, Options, System};

use crate::{Failure, Outcome};

/// Run a published experiment: the historical designs, today's peers and Weir side by side, in one run.
///
/// Everything happens in network namespaces of the lab's own, which are gone afterwards.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir lab qdisc                            every case, about three minutes
  weir lab qdisc --clients 2,3 --seconds 5 --json qdisc.json
  weir lab qdisc --html qdisc.html          with plots
  weir lab qdisc --sim                      the RFC's patches and its machine as well, simulated; these alone if not root

Experiments:
  qdisc    UDP senders behind a 200 Mbit/s limit: stock TBF as published, TBF with a queue so long that it never drops,
           and Weir")]
pub struct Arguments {
    /// Which experiment
    #[arg(value_enum, default_value = "qdisc")]
    name: Name,
    /// How many clients send at once, one case each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    clients: Vec<usize>,
    /// The systems to run, of tbf, tbf-large and weir
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    systems: Vec<String>,
    /// How long each case sends
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Add simulated rows: the RFC's kernel before and after its patches, and Weir, on the RFC's machine
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
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    weir_lab::interrupt::install();
    let Name::Qdisc = arguments.name;
    let mut options = Options::new(std::env::current_exe()?);
    options.seconds = arguments.seconds;
    if !arguments.clients.is_empty() {
        options.clients.clone_from(&arguments.clients);
    }
    if !arguments.systems.is_empty() {
        options.systems = arguments.systems.iter().map(|name| system(name)).collect::<Result<_, _>>()?;
    }
    if arguments.sim {
        options.extra_rows = weir_lab::simulated::qdisc_rows()?;
        if !weir_lab::bed::is_privileged() {
            eprintln!("weir: not root, so nothing is measured: simulated rows alone");
            options.systems.clear();
        }
    }
    let report =
        qdisc::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?;
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

fn system(name: &str) -> Result<System, Failure> {
    System::from_name(name).ok_or_else(|| {
        let names = System::ALL.map(System::name);
        Failure::usage(format!("--systems {name}: there is no such system here, only {}", names.join(", ")))
    })
}
