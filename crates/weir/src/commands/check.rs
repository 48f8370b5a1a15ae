//! `weir check`: whether a topology file can be brought about, as far as the file itself tells.

use std::path::PathBuf;
use std::process::ExitCode;

use weir_run::topology::Topology;

use crate::{Outcome, human, output, text};

/// Check a file of limits, or of ports and what joins them, without touching anything; everything wrong is said with its line.
#[derive(clap::Args)]
#[command(after_help = concat!("Examples:
  weir check weir.toml && sudo weir apply weir.toml

", include_str!("file-help.txt"), "
", include_str!("path-help.txt"), "
Whether the interfaces are there, `weir apply --dry-run` says of limits,
and `weir up` of ports."))]
pub struct Arguments {
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    match text::topology(&arguments.file)? {
        Ok(topology) => {
            output::print_line(format_args!(
                "{}: {}; nothing wrong",
                arguments.file.display(),
                sum(&topology)
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(told) => {
            told.iter().for_each(|what| output::say(format_args!("weir: {what}")));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What a file has, in a line: `4 ports, 1 bridge, 1 router, 2 limits`.
fn sum(topology: &Topology) -> String {
    let there = topology.counts().into_iter().filter(|(number, _)| *number > 0);
    there.map(|(number, thing)| human::plural(number as u64, thing)).collect::<Vec<_>>().join(", ")
}
