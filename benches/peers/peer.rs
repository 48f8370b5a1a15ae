//! A peer written in C over DPDK: compiled when a bench starts, run for each of its figures, and gone afterwards.
//!
//! Limits: a process for each figure, so nothing but the cores is shared with the programs that it is measured beside.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The status of a peer in a case that this processor cannot run.
const LACKING: i32 = 3;

/// The compiled program.
pub struct Peer {
    program: PathBuf,
}

impl Peer {
    /// Compiles `benches/peers/NAME.c` for this processor, or says why not.
    pub fn build(name: &str, libraries: &[&str]) -> Result<Peer, String> {
        let flags = output(Command::new("pkg-config").args(["--cflags", "libdpdk"])).map_err(|error| {
            format!("{error}; apt-get install --no-install-recommends libdpdk-dev pkg-config gcc")
        })?;
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers").join(name).with_extension("c");
        let program = std::env::temp_dir().join(format!("weir-bench-{name}-{}", std::process::id()));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O3", "-DALLOW_EXPERIMENTAL_API", "-include", "rte_config.h", "-o"]);
        gcc.arg(&program).arg(source).args(flags.split_whitespace());
        // Last: DPDK's own flags name an older processor.
        output(gcc.arg("-march=native").args(libraries))?;
        Ok(Peer { program })
    }

    /// Runs the program; returns its output, `None` in a case that this processor cannot run, or the reason why there is none.
    pub fn run(&self, arguments: &[String]) -> Result<Option<String>, String> {
        let mut command = Command::new(&self.program);
        let answer = answer(command.args(arguments))?;
        if answer.status.code() == Some(LACKING) {
            return Ok(None);
        }
        text(&command, &answer).map(Some)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Left behind, it is one small file.
        let _ = std::fs::remove_file(&self.program);
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let answer = answer(command)?;
    text(command, &answer)
}

fn answer(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))
}

fn text(command: &Command, answer: &Output) -> Result<String, String> {
    if !answer.status.success() {
        let name = command.get_program().display();
        return Err(format!("{name}: {}: {}", answer.status, String::from_utf8_lossy(&answer.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
