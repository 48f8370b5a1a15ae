//! `weir check`: whether a topology file can be applied, as far as the file itself tells.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{Outcome, human, output, text};

/// Check a file of limits without touching anything; everything wrong is said with its line.
#[derive(clap::Args)]
#[command(after_help = concat!("Examples:
  weir check weir.toml && sudo weir apply weir.toml

", include_str!("file-help.txt"), "
Whether the interfaces are there, `weir apply --dry-run` says."))]
pub struct Arguments {
    /// The file
    file: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    match text::topology(&arguments.file)? {
        Ok(topology) => {
            let limits = human::plural(topology.limits.len() as u64, "limit");
            output::print_line(format_args!("{}: {limits}, nothing wrong", arguments.file.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(told) => {
            told.iter().for_each(|what| output::say(format_args!("weir: {what}")));
            Ok(ExitCode::FAILURE)
        }
    }
}
