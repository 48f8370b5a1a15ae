//! `weir wire`: joins two interfaces.

use std::path::PathBuf;
use std::sync::Arc;

use weir_core::rate::Rate;
use weir_run::datapath::{DatapathConfig, wire_plan};

use crate::commands::carry::carry;
use crate::session::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_PER_PORT};
use crate::{Failure, Outcome, names, text};

/// Join two interfaces, limiting each direction; senders behind them are held back and lose nothing.
///
/// A and B are veth interfaces of this network namespace whose other ends are where programs send and receive, for
/// instance in containers. The wire stays up until Ctrl-C; then everything is put back as it was.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir wire veth-a veth-b --rate 200mbit
  weir wire veth-a veth-b --rate 50mbit --rate-back 10mbit --queue 10ms
  weir wire veth-a veth-b                   not limited, but still without loss
  weir wire veth-a veth-b --rate 200mbit --classes office.toml
  weir stat -i 1                            in another terminal: what it does
  weir set veth-a --rate 100mbit            change the limit under traffic

`weir wire --help` explains classes files.", after_long_help = include_str!("wire-help.txt"))]
pub struct WireArguments {
    /// The interface that packets enter by in the first direction
    #[arg(value_name = "A")]
    first: String,
    /// The interface that packets leave by in the first direction
    #[arg(value_name = "B")]
    second: String,
    #[command(flatten)]
    limit: RateArguments,
    /// Limit from B to A, if it is another than from A to B
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate_back: Option<Rate>,
    /// The name of the wire in `weir stat` and `weir set` [default: the name of A]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    machine: MachineArguments,
}

/// The options of a limit, which several commands take.
#[derive(clap::Args)]
pub struct RateArguments {
    /// Limit of each direction in tc's units, such as 200mbit
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    pub rate: Option<Rate>,
    /// How much may pass at once after a pause [default: 2 ms at the rate, 20kb at least]
    #[arg(long, value_name = "SIZE", value_parser = text::size, allow_hyphen_values = true)]
    pub burst: Option<u64>,
    /// How much may stand inside, as a time at the rate, without classes; the rest stays with the senders [default: 5ms]
    #[arg(long, value_name = "TIME", value_parser = text::time, allow_hyphen_values = true)]
    pub queue: Option<u64>,
    /// Classes that share each direction, and filters that lead to them; --rate then limits them all together
    #[arg(long, value_name = "FILE")]
    pub classes: Option<PathBuf>,
}

/// The memory, threads and cores that a wire may use.
#[derive(clap::Args)]
pub struct MachineArguments {
    /// Packet memory [default: 64mb, or 1mb for each port if that is more]
    #[arg(long, value_name = "SIZE", value_parser = text::size, allow_hyphen_values = true)]
    memory: Option<u64>,
    /// Threads that move packets, each on a core of its own: of a wire 1 or 2, one for each end; of a topology up to one for each port,
    /// each `[[esp]]` with dispatch, or each of its sealers [default: 1]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The core of each worker, such as 3 or 2,3 [default: those with the fewest workers of weir, the last ones first]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = text::at_least(0usize))]
    core: Vec<usize>,
}

impl MachineArguments {
    /// The first option that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--memory", self.memory.is_some()),
            ("--workers", self.workers.is_some()),
            ("--core", !self.core.is_empty()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// The cores that were named, one for each worker; none if they are chosen when the workers start.
    pub fn cores(&self) -> &[usize] {
        &self.core
    }

    /// Checks the options, for so many ports and at most so many workers. Returns the packet memory in bytes and the number of workers.
    pub fn check(&self, ports: usize, workers_max: usize) -> Result<(u64, usize), Failure> {
        let default = MEMORY_BYTES_DEFAULT.max(ports as u64 * MEMORY_BYTES_PER_PORT);
        const MEMORY_BYTES_MAX: u64 = 16 << 30;
        let (memory_bytes, workers) = (self.memory.unwrap_or(default), self.workers.unwrap_or(1));
        if memory_bytes > MEMORY_BYTES_MAX {
            return Err(Failure::usage("--memory is above 16gb, which no wire can use"));
        }
        if memory_bytes < MEMORY_BYTES_DEFAULT / 32 {
            return Err(Failure::usage("--memory is below 2mb, which is too little for one queue each way"));
        }
        if !(1..=workers_max).contains(&workers) {
            let range = match workers_max {
                1 => "1".into(),
                2 => "1 or 2".into(),
                _ => format!("1 to {workers_max}"),
            };
            return Err(Failure::usage(format!(
                "--workers {workers}: give {range}, for which there is work, as --help says of --workers"
            )));
        }
        let allowed = weir_port::sys::allowed_cores();
        if workers > allowed.len() {
            return Err(Failure::usage(format!(
                "--workers {workers} needs a core for each, and this process may use {} (taskset -p $$)",
                allowed.len()
            )));
        }
        if self.core.is_empty() {
            return Ok((memory_bytes, workers));
        }
        if let Some(core) = self.core.iter().find(|core| !allowed.contains(core)) {
            return Err(Failure::usage(format!(
                "--core {core} is not one this process may use, which are {}",
                list(&allowed)
            )));
        }
        let are_different = self.core.iter().enumerate().all(|(at, core)| !self.core[..at].contains(core));
        if self.core.len() != workers || !are_different {
            return Err(Failure::usage(format!(
                "--core {}: name {}, a different core for each worker",
                self.core.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
                workers
            )));
        }
        Ok((memory_bytes, workers))
    }
}

/// Numbers as people write them.
fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs the command.
pub fn run(arguments: &WireArguments) -> Outcome {
    let WireArguments { first, second, limit, rate_back, name, machine } = arguments;
    if first == second {
        return Err(Failure::usage(format!("a wire joins two interfaces, and both are {first}")));
    }
    let name = name.clone().unwrap_or_else(|| first.clone());
    text::check_path_name("wire", &name)?;
    names::refuse_limited([first, second].into_iter().map(String::as_str))?;
    let held = names::hold_new(&name)?;
    let (memory_bytes, workers) = machine.check(2, 2)?;
    text::check_queue(limit.queue, limit.classes.is_some())?;
    let classes = match &limit.classes {
        Some(file) => Some(Arc::new(text::classes(file, [first.as_str(), second])?.1)),
        None => None,
    };
    let limits = [
        text::limits(limit.rate, limit.burst, limit.queue)?,
        text::limits(rate_back.or(limit.rate), limit.burst, limit.queue)?,
    ];
    let plan = wire_plan([first.clone(), second.clone()], limits, classes);
    let config = DatapathConfig { name: name.clone(), plan, port_names: Vec::new(), memory_bytes, workers };
    text::warn_of_oversold_ports(&config);
    carry(&config, machine.cores(), &format!("wire {name} joins {first} and {second}"), || drop(held))
}
