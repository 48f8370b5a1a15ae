//! `weir lab`: starts `weir-lab`, the program of the published experiments, in place of this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Outcome;

/// Its name, beside this program.
const PROGRAM: &str = "weir-lab";

/// Run a published experiment: the historical designs, today's peers and Weir side by side, in one run
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct LabArguments {
    /// Which experiment, and its options: `weir lab --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the command; returns where it cannot be started.
pub fn run(arguments: &LabArguments) -> Outcome {
    let own = std::env::current_exe()?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&arguments.arguments).exec();
    Err(format!(
        "starting {}, the program of the experiments: {error}: it belongs beside {}, and `make build` makes both",
        program.display(),
        own.display()
    )
    .into())
}
