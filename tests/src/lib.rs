//! The parts that the whole-program tests share: a harness that can skip, the program under test, the bench that it is tried on.
//!
//! Every test in `tests/` drives the `weir` command as a user would, in network namespaces of its own.

pub mod arrivals;
pub mod bpf;
pub mod chaos;
pub mod classes;
pub mod crowd;
pub mod drops;
pub mod exchange;
pub mod gateways;
pub mod harness;
pub mod host;
pub mod kernel;
pub mod lacking;
pub mod limits;
pub mod mixed;
pub mod nobody;
pub mod pair;
pub mod raw;
pub mod ready;
pub mod rig;
pub mod state;
pub mod tcx;
pub mod terminal;
pub mod topology;
pub mod tun;
pub mod xdp;

use std::fs::OpenOptions;
use std::io::{PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::ping::wait_for_answer;
use weir_lab::process::{Signal, send_signal};

/// The longest time until a process stands that was stopped.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// The number of times that a test repeats its work, if `WEIR_ROUNDS` gives it, as `make verify` does; once in CI.
pub fn rounds() -> Option<usize> {
    std::env::var("WEIR_ROUNDS").ok().and_then(|text| text.parse().ok())
}

/// The amount of work that a test does: `here`, or `verify` where `WEIR_ROUNDS` is set, as `make verify` does.
pub fn at_length(here: usize, verify: usize) -> usize {
    if rounds().is_some() { verify } else { here }
}

/// Requires that a ping is answered; a second is a figure of time, and 20 the end.
pub fn require_answer(from: &Namespace, to: &str) -> Result<()> {
    let took = wait_for_answer(from, to)?;
    require_timing!(took < Duration::from_secs(1), "a ping was answered after {took:.1?}");
    Ok(())
}

/// Kills a process and its guardian, so that nobody puts anything back. Both are stopped first, so that neither notices that the other is
/// gone, and the guardian before, so that it does not notice the stop. Returns their ids, the guardian's first; the process is to be waited for.
pub fn kill_with_guardian(process: u32) -> Result<[u32; 2]> {
    let both = [guardian(process)?, process];
    for signal in [Signal::STOP, Signal::KILL] {
        for id in both {
            send_signal(id, signal)?;
        }
    }
    Ok(both)
}

/// Stops a process, and returns when each of its threads stands: the kernel tells one of them, and until that runs the others go on.
pub fn stop_whole(process: u32) -> Result<()> {
    send_signal(process, Signal::STOP)?;
    wait_until("all its threads stand", STOPS_WITHIN, || {
        for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
            // The name, in parentheses, may hold any characters.
            if !stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// The process that puts things back when this one is killed.
pub fn guardian(process: u32) -> Result<u32> {
    let children = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(&children).with_context(|| children.clone())?;
    let is_guardian = |child: &&str| {
        std::fs::read_to_string(format!("/proc/{child}/cmdline"))
            .is_ok_and(|line| line.contains("\0guardian"))
    };
    let found = text.split_whitespace().find(is_guardian);
    found.with_context(|| format!("{children}: no guardian among `{text}`"))?.parse().context("a number")
}

/// Fills a pipe, as one is whose pager shows its first page.
pub fn fill(pipe: &PipeWriter) -> Result<()> {
    // Another open file of the pipe, for which alone a full one is an error.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut filling = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    while filling.write(b".").is_ok() {}
    Ok(())
}

/// The `weir` program under test: `$WEIR_BIN`, or the one built beside these tests.
pub fn weir_binary() -> Result<PathBuf> {
    let path = match std::env::var_os("WEIR_BIN") {
        Some(path) => PathBuf::from(path),
        // A test is target/PROFILE/deps/NAME-HASH.
        None => {
            let own = std::env::current_exe()?;
            own.ancestors().nth(2).context("this test lies in no target folder")?.join("weir")
        }
    };
    ensure!(path.is_file(), "there is no {}: run `make build`, or set WEIR_BIN", path.display());
    Ok(path)
}
