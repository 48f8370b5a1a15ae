//! A `weir wire` under test, driven by its command line as a user would: started, asked for its counters, told a
//! new rate, stopped.
//!
//! The daemon prints a line with the word `ready` once it carries traffic, and exits 0 on SIGTERM after it has put
//! everything back; both are checked. Dropping a [`Wire`] stops the daemon all the same.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bed::Namespace;
use crate::process::{Finished, Process, Signal, run};

const READY_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// The `weir` of the build that this benchmark is of, wherever that is: benchmarks are in a folder beside it.
pub fn built_weir() -> Result<PathBuf> {
    let weir = weir_of(&std::env::current_exe()?).context("a benchmark is in a folder of a build")?;
    ensure!(weir.is_file(), "there is no {}: `make build` first", weir.display());
    Ok(weir)
}

fn weir_of(bench: &Path) -> Option<PathBuf> {
    Some(bench.parent()?.parent()?.join("weir"))
}

/// A running `weir wire`.
#[derive(Debug)]
pub struct Wire {
    daemon: Process,
    binary: PathBuf,
    namespace: String,
    name: String,
}

impl Wire {
    /// Starts `weir wire A B OPTIONS --name NAME` in `namespace` and waits until it carries traffic.
    pub fn start(binary: &Path, namespace: &Namespace, ends: [&str; 2], options: &[&str]) -> Result<Wire> {
        // The name is unique on the machine: it is the namespace's.
        let name = namespace.name().to_string();
        let mut command = namespace.command(binary);
        command.arg("wire").args(ends).args(options).args(["--name", &name]);
        let mut daemon = Process::spawn(&mut command)?;
        daemon.wait_for_output("ready", READY_LIMIT)?;
        Ok(Wire { daemon, binary: binary.to_path_buf(), namespace: name.clone(), name })
    }

    /// The wire's name, for `weir set`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The daemon's process id.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// Runs `weir ARGUMENTS` where the daemon runs.
    pub fn weir(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(&self.binary).args(arguments);
        run(&mut command, COMMAND_LIMIT)
    }

    /// `weir stat --check`: fails unless every packet is accounted for.
    pub fn check(&self) -> Result<()> {
        self.weir(&["stat", &self.name, "--check"])?.success().context("conservation")?;
        Ok(())
    }

    /// `weir stat --json`.
    pub fn stat(&self) -> Result<Value> {
        let done = self.weir(&["stat", &self.name, "--json"])?.success()?;
        serde_json::from_str(&done.stdout).with_context(|| format!("`{}` printed no JSON", done.what))
    }

    /// This wire's object in `weir stat --json`.
    pub fn counters(&self) -> Result<Value> {
        let stat = self.stat()?;
        let wires = stat["wires"].as_array().context("`weir stat --json` has no wires")?;
        let ours = wires.iter().find(|wire| wire["name"] == self.name.as_str());
        Ok(ours.with_context(|| format!("`weir stat --json` has no wire named {}", self.name))?.clone())
    }

    /// `weir set NAME --rate RATE`.
    pub fn set_rate(&self, rate: &str) -> Result<()> {
        self.weir(&["set", &self.name, "--rate", rate])?.success()?;
        Ok(())
    }

    /// Sends the daemon a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.daemon.signal(signal)
    }

    /// Returns whether the daemon has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        self.daemon.is_running()
    }

    /// The daemon's standard error so far.
    pub fn said(&self) -> String {
        self.daemon.stderr()
    }

    /// Waits for the daemon to end by itself, or through a signal sent before.
    pub fn wait(self) -> Result<Finished> {
        self.daemon.wait(STOP_LIMIT)
    }

    /// Stops the daemon with SIGTERM; fails unless it exits 0.
    pub fn stop(self) -> Result<Finished> {
        self.daemon.stop(STOP_LIMIT)?.success()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_measures_the_weir_of_its_own_build() {
        let weir = weir_of(Path::new("/another/target/release/deps/forward-0123"));
        assert_eq!(weir, Some(PathBuf::from("/another/target/release/weir")));
    }
}
