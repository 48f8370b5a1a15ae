//! A peer written in C over DPDK: compiled when a bench starts, run for each of its figures, and gone afterwards.
//!
//! Limits: a process for each figure, so nothing but the cores is shared with the programs that it is measured beside.

use std::path::{Path, PathBuf};
use std::process::Command;

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

    /// Runs the program; returns its output, or the reason why there is none.
    pub fn run(&self, arguments: &[String]) -> Result<String, String> {
        output(Command::new(&self.program).args(arguments))
    }
}

impl Drop for Peer {
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
