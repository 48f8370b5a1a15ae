//! DPDK's `rte_ring` as a peer: a small C program, compiled when the bench starts, which runs the same loops on the same two
//! cores and prints what they cost. Without DPDK's headers there is no such row, and the bench says so.
//!
//! Limits: a process for each sample, so nothing but the cores is shared with the other queues.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{ELEMENTS, Sample};

/// The compiled peer.
pub struct RteRing {
    program: PathBuf,
}

impl RteRing {
    /// Compiles it, or says why not.
    pub fn build() -> Result<RteRing, String> {
        let flags = output(Command::new("pkg-config").args(["--cflags", "libdpdk"])).map_err(|error| {
            format!("{error}; apt-get install --no-install-recommends libdpdk-dev pkg-config gcc")
        })?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/rte_ring.c");
        let program = std::env::temp_dir().join(format!("weir-bench-rte_ring-{}", std::process::id()));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O3", "-DALLOW_EXPERIMENTAL_API", "-include", "rte_config.h", "-o"]);
        gcc.arg(&program).arg(source).args(flags.split_whitespace());
        // Last: DPDK's own flags name an older processor.
        output(gcc.args(["-march=native", "-lrte_ring", "-lrte_eal", "-lpthread"]))?;
        Ok(RteRing { program })
    }

    /// One stream, as `stream` of the other queues.
    pub fn stream(&self, element_bytes: usize, capacity: usize, batch: usize, cpus: [usize; 2]) -> Sample {
        let numbers = [element_bytes, capacity, batch, ELEMENTS as usize, cpus[0], cpus[1]];
        let mut run = Command::new(&self.program);
        let text = output(run.args(numbers.map(|number| number.to_string()))).expect("the peer runs");
        let (cycles, interruptions) = text.trim().split_once(' ').expect("two numbers");
        Sample { cycles: cycles.parse().expect("a number"), interrupted: interruptions != "0" }
    }
}

impl Drop for RteRing {
    fn drop(&mut self) {
        // Left behind, it is one small file.
        let _ = std::fs::remove_file(&self.program);
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let answer = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !answer.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&answer.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
