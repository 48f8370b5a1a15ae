//! `weir-lab`: the published experiments, run again beside Weir; `weir lab` starts it.
//!
//! It is a program of its own, so that a daemon run by root links none of the peers that it measures.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use weir_core::dispatch::settings::pair;
use weir_lab::report::Report;
use weir_lab::{epair, html, ifq, netisr, progress, published_bed, qdisc, rss, table};
use weir_port::report_file;

/// Run a published experiment: the historical designs, today's peers and Weir side by side, in one run.
///
/// Labs that need a network run in namespaces of the lab's own, which are gone afterwards.
#[derive(Parser)]
#[command(
    name = "weir lab",
    bin_name = "weir lab",
    version,
    max_term_width = 100,
    after_help = "Examples:
  weir lab qdisc                            every case, about ten minutes
  weir lab qdisc --clients 2,3 --seconds 5 --json qdisc.json
  weir lab qdisc --html qdisc.html          with plots
  weir lab epair                            every case, about a minute
  weir lab epair --systems mutex-drain,weir --seconds 0.5
  weir lab qdisc --sim                      the RFC's patches as well, simulated
  weir lab bed                              every case, about two minutes
  weir lab netisr                           every case, about three minutes
  weir lab rss                              every case, about half a minute
  weir lab netisr --cases 100,150,150-long --set defaultqlimit=512
  weir lab netisr --systems esp-direct,esp-deferred --cases null-64,gcm-1420

Experiments:
  qdisc    UDP senders behind a 200 Mbit/s limit: stock TBF as published, TBF
           with a queue so long that it never drops, and Weir; then trees of
           classes on the kernel's HTB and behind Weir's HTB and CBQ
  epair    packets handed from one thread to another: FreeBSD's epair as it
           was, as it was first repaired and as it is, crossbeam, rtrb, tokio
           and Weir; and the published bed of two bridges and a router
  bed      that bed between two hosts on real interfaces, beside the kernel's own
           bridges and router: short connections to a web server under load,
           a TCP stream, small packets
  netisr   work done at once or by another thread, at loads from 1 % to 271 %:
           direct, hybrid and deferred dispatch, with a feeder that is held
           and, as published, with one that is not; then the same of IPsec,
           compared as ministat does, and how deep its stack goes
  rss      a UDP echo server with a thread for each bucket of flows, on 1 core
           to all: the kernel's sockets, and those of weir-socket in memory; as
           root on a veth as well
  ifq      two inputs forwarded to one device: one lock around it, the
           published patch, and Weir

Settings of netisr (--set): dispatch, maxthreads, bindthreads, defaultqlimit,
maxqlimit, rss.bits, rss.key, rss.hash, rss.bucket.N, and policy, dispatch,
qlimit, full under proto.NAME"
)]
struct Arguments {
    /// Which experiment
    #[arg(value_enum, default_value = "qdisc")]
    name: Name,
    /// qdisc: how many clients send at once, one case each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = clients)]
    clients: Vec<usize>,
    /// The systems to run; of qdisc: tbf, tbf-large, fq, fq_codel, cake, tbf-fq, htb-fq, htb-leaves, weir, weir-limit, htb, weir-htb,
    /// weir-cbq; of epair: two-ring, mutex-drain, mutex-flush, crossbeam, rtrb, tokio, weir; of netisr: direct, hybrid, deferred, the same with esp-
    /// before them, and each with -drop; of ifq: locked, spin-dispatch, weir; of bed: weir, kernel, kernel-frames; of rss: kernel,
    /// kernel-flood, weir, weir-copies, kernel-veth, weir-veth
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    systems: Vec<String>,
    /// How long each system runs in each case; 10 for qdisc, 1.2 for epair, 0.5 for netisr, 1.4 for ifq,
    /// 3 for rss if not given; of bed each turn, 3
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// qdisc: add simulated rows: the RFC's kernel before and after its patches, and Weir, on the RFC's machine
    #[arg(long)]
    sim: bool,
    /// netisr: the loads to run, in percent, each alone or with -long, -rss or -one-core behind it; or 1-worker, 2-workers; of IPsec:
    /// null-64, gcm-64, gcm-1420, nested-1, nested-16, and null-64 with -long, -271, -one-core, -priority, -maxthreads-1 or -maxthreads-4
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    cases: Vec<netisr::NamedCase>,
    /// bed: how many turns each system has in each case, 2 if not given; netisr: how many runs each system of IPsec has, 5 if not given
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// netisr: what the work on a packet costs; 1000 if not given
    #[arg(long, value_name = "NANOSECONDS")]
    cost_ns: Option<u64>,
    /// netisr: a setting of dispatch or steering; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
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
    Bed,
    Netisr,
    Ifq,
    Rss,
}

fn seconds(text: &str) -> Result<f64, String> {
    let range = 0.01..=3600.0;
    text.parse().ok().filter(|seconds| range.contains(seconds)).ok_or("give 0.01 to 3600 seconds".into())
}

fn clients(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=qdisc::CLIENTS_MAX).contains(count))
        .ok_or(format!("give 1 to {} clients", qdisc::CLIENTS_MAX))
}

/// A failure: 1 for a failed run, 2 for something wrong with the command line.
struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    fn usage(message: impl ToString) -> Failure {
        Failure { message: message.to_string(), code: 2 }
    }
}

impl<E: ToString> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { message: error.to_string(), code: 1 }
    }
}

fn main() -> ExitCode {
    let result = match Arguments::try_parse() {
        Ok(arguments) => run(&arguments),
        Err(error) if error.use_stderr() => {
            // Nobody is left to tell if this fails.
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(help) => written(help.print()).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|failure| {
        say(&failure.message);
        ExitCode::from(failure.code)
    })
}

/// Says something on standard error. Nobody is left to tell if that fails.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "weir: {text}");
}

/// The result of writing to standard output. A pipe that is closed has been read as far as its reader wanted.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("writing to standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    for path in [&arguments.json, &arguments.html].into_iter().flatten() {
        check_writable(path)?;
    }
    refuse(
        &[("--rounds", arguments.rounds.is_some() && !matches!(arguments.name, Name::Bed | Name::Netisr))],
        "only bed and netisr have it; leave it out",
    )?;
    weir_lab::interrupt::install();
    let report = match arguments.name {
        Name::Qdisc => run_qdisc(arguments)?,
        Name::Epair => run_epair(arguments)?,
        Name::Bed => run_bed(arguments)?,
        Name::Netisr => run_netisr(arguments)?,
        Name::Ifq => run_ifq(arguments)?,
        Name::Rss => run_rss(arguments)?,
    };
    let more = match arguments.sim {
        true => {
            "none, rfc and weir-sim are simulated: the RFC's kernel before and after its patches, and Weir.\n"
        }
        false => "",
    };
    let text = table::render(&report, io::stdout().is_terminal());
    written(write!(io::stdout(), "{text}{more}"))?;
    for (path, text) in [
        (&arguments.json, serde_json::to_string_pretty(&report.to_json())?),
        (&arguments.html, html::render(&report)),
    ] {
        if let Some(path) = path {
            report_file::write(path, &text)
                .map_err(|error| format!("writing {}: {error}", path.display()))?;
        }
    }
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Finds out before the run, which takes minutes, whether its figures can be written.
fn check_writable(path: &Path) -> Result<(), Failure> {
    // A link is there also where what it names is not.
    let is_new = std::fs::symlink_metadata(path).is_err();
    report_file::open(path)
        .and_then(|_| if is_new { std::fs::remove_file(path) } else { Ok(()) })
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", path.display())))
}

fn run_qdisc(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_netisrs(arguments)?;
    let mut options = qdisc::Options::new(std::env::current_exe()?.with_file_name("weir"));
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    if options.seconds < qdisc::SECONDS_MIN {
        return Err(Failure::usage(format!("a case of qdisc takes {} second at least", qdisc::SECONDS_MIN)));
    }
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
            say("not root, so nothing is measured: simulated rows alone");
            options.systems.clear();
        }
    }
    Ok(qdisc::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_epair(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_qdiscs(arguments)?;
    refuse_netisrs(arguments)?;
    let mut options = epair::Options::default();
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    let all = epair::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    Ok(epair::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_bed(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_qdiscs(arguments)?;
    refuse_netisrs(arguments)?;
    let mut options = published_bed::Options::new(std::env::current_exe()?.with_file_name("weir"));
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    options.rounds = arguments.rounds.unwrap_or(options.rounds);
    let all = published_bed::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    Ok(published_bed::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_netisr(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_qdiscs(arguments)?;
    let mut options = netisr::Options { settings: arguments.set.clone(), ..netisr::Options::default() };
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    options.cost_ns = arguments.cost_ns.unwrap_or(options.cost_ns);
    options.rounds = arguments.rounds.unwrap_or(options.rounds);
    if !arguments.cases.is_empty() {
        options = options.with_cases(&arguments.cases);
    }
    let all = netisr::NamedSystem::all();
    let all: Vec<_> = all.iter().map(|(name, system)| (name.as_str(), *system)).collect();
    if let Some(systems) = systems(arguments, &all)? {
        options = options.with_systems(&systems);
    }
    netisr::check(&options.settings).map_err(|error| Failure::usage(format!("{error:#}")))?;
    Ok(netisr::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_ifq(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_qdiscs(arguments)?;
    refuse_netisrs(arguments)?;
    let mut options = ifq::Options::default();
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    let all = ifq::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    Ok(ifq::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

fn run_rss(arguments: &Arguments) -> Result<Report, Failure> {
    refuse_qdiscs(arguments)?;
    refuse_netisrs(arguments)?;
    let mut options = rss::Options::new(std::env::current_exe()?.with_file_name("weir"));
    options.seconds = arguments.seconds.unwrap_or(options.seconds);
    let all = rss::System::ALL.map(|system| (system.name(), system));
    if let Some(systems) = systems(arguments, &all)? {
        options.systems = systems;
    }
    Ok(rss::run(&options, progress::on_stderr().as_mut()).map_err(|error| format!("{error:#}"))?)
}

/// Refuses options that only qdisc has.
fn refuse_qdiscs(arguments: &Arguments) -> Result<(), Failure> {
    let given = [("--clients", !arguments.clients.is_empty()), ("--sim", arguments.sim)];
    refuse(&given, "only qdisc has it; leave it out")
}

/// Refuses options that only netisr has.
fn refuse_netisrs(arguments: &Arguments) -> Result<(), Failure> {
    let given = [
        ("--cases", !arguments.cases.is_empty()),
        ("--cost-ns", arguments.cost_ns.is_some()),
        ("--set", !arguments.set.is_empty()),
    ];
    refuse(&given, "only netisr has it; leave it out")
}

fn refuse(given: &[(&str, bool)], why: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::usage(format!("{option}: {why}"))),
        None => Ok(()),
    }
}

/// The systems that `--systems` names, out of all that the lab has; `None` if it is not given.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_to_a_report_that_is_not_there_yet_stays() {
        let folder = std::env::temp_dir().join(format!("weir-lab-link-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (link, new) = (folder.join("link"), folder.join("new"));
        symlink(folder.join("report"), &link).unwrap();
        let are_writable = [&link, &new].map(|path| check_writable(path).is_ok());
        let (is_link, is_left) = (link.is_symlink(), new.exists());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((are_writable, is_link, is_left), ([true, true], true, false));
    }
}
