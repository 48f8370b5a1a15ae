//! `weir stat`: what the wires that are up did, hold and dropped.

use std::process::ExitCode;

use weir_run::control;

use crate::Outcome;

/// Show counters; with --check prove that none of them hides a lost packet.
#[derive(clap::Args)]
pub struct Arguments {
    /// One wire only
    wire: Option<String>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// Prove accepted = delivered + dropped + held everywhere; exit 1 if it fails
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let snapshot = control::stat(arguments.wire.as_deref())?;
    println!("{}", serde_json::to_string_pretty(&snapshot)?);
    if arguments.check {
        let faults = snapshot.check();
        for fault in &faults {
            eprintln!("weir: {fault}");
        }
        if !faults.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
