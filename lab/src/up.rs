//! A `weir up` under test, driven by its command line as a user would: started on a file, asked for its counters, ended.
//!
//! The daemon prints a line with the word `ready` once it carries traffic. The file goes when the [`Up`] does, which ends the daemon all
//! the same.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bed::Namespace;
use crate::process::{Finished, Process, Signal, run};

/// A hundred wires take 15 s on an idle machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// A topology that is up.
#[derive(Debug)]
pub struct Up {
    /// The process.
    pub daemon: Process,
    /// The name of the topology.
    pub name: String,
    binary: PathBuf,
    file: Written,
}

/// A file that goes with its value.
#[derive(Debug)]
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        // A file that is left in the folder for temporary ones harms nobody.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Up {
    /// Runs a file in a namespace, whose name the topology gets, and waits until it carries packets.
    pub fn start(binary: &Path, namespace: &Namespace, file: &str) -> Result<Up> {
        Up::start_with(binary, namespace, file, &[])
    }

    /// Runs a file as [`Up::start`] does, with these arguments.
    pub fn start_with(binary: &Path, namespace: &Namespace, file: &str, arguments: &[&str]) -> Result<Up> {
        Up::start_so(binary, namespace, file, |command| {
            command.args(arguments);
        })
    }

    /// Runs a file as [`Up::start`] does, by a command that was changed so.
    pub fn start_so(
        binary: &Path,
        namespace: &Namespace,
        file: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Up> {
        let name = namespace.name().to_string();
        // Two of one name have a file each, which goes with its own.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let path =
            std::env::temp_dir().join(format!("{name}-{}.toml", STARTED.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&path, format!("name = \"{name}\"\n{file}"))?;
        let file = Written(path);
        let mut command = namespace.command(binary);
        change(command.arg("up").arg(&file.0));
        let mut daemon = Process::spawn(&mut command)?;
        daemon.wait_for_output("ready", READY_LIMIT)?;
        Ok(Up { daemon, name, binary: binary.to_path_buf(), file })
    }

    /// Runs `weir ARGUMENTS`.
    pub fn weir(&self, arguments: &[&str]) -> Result<Finished> {
        run(Command::new(&self.binary).args(arguments), COMMAND_LIMIT)
    }

    /// Fails unless every packet is accounted for.
    pub fn check(&self) -> Result<()> {
        self.weir(&["stat", &self.name, "--check"])?.success().map(drop)
    }

    /// The text that it has said so far, beside its output.
    pub fn stderr(&self) -> String {
        self.daemon.stderr()
    }

    /// Its counters.
    pub fn stat(&self) -> Result<Value> {
        Ok(self.stat_rows("topologies")?.swap_remove(0))
    }

    /// Its rows of this list of `weir stat`, such as `ports`.
    pub fn stat_rows(&self, list: &str) -> Result<Vec<Value>> {
        let done = self.weir(&["stat", &self.name, "--json"])?.success()?;
        let all: Value = serde_json::from_str(&done.stdout)?;
        let rows = all[list].as_array().filter(|rows| !rows.is_empty());
        rows.cloned().with_context(|| format!("no {list} in {all}"))
    }

    /// The number of packets that each of its workers has moved on, by the counters of `weir stat -Q`.
    pub fn handled(&self) -> Result<Vec<u64>> {
        let mut handled = Vec::new();
        for row in self.stat_rows("workstreams")? {
            let worker = row["wsid"].as_u64().context("wsid")? as usize;
            handled.resize(handled.len().max(worker + 1), 0);
            handled[worker] += row["handled"].as_u64().context("handled")?;
        }
        Ok(handled)
    }

    /// Ends it with `weir down`.
    pub fn down(self) -> Result<Finished> {
        let path = self.file.0.to_str().context("a path in UTF-8")?;
        self.weir(&["down", path])?.success()?;
        self.daemon.wait(COMMAND_LIMIT)?.success()
    }

    /// Waits until it has ended, which somebody told it to.
    pub fn ended(self) -> Result<()> {
        self.daemon.wait(COMMAND_LIMIT)?.success().map(drop)
    }

    /// Ends it at once.
    pub fn kill(mut self) -> Result<()> {
        self.daemon.signal(Signal::KILL)?;
        self.daemon.wait(COMMAND_LIMIT).map(drop)
    }
}
