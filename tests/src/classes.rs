//! Files in TOML for tests, and the rows that `weir stat --json` has of their classes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::Value;
use weir_lab::wire::Wire;

use crate::rig::stat_of;

/// Classes `a`, UDP to ports 5001 to 5004, `b`, all else, and `voice`, by its DSCP.
pub const OFFICE: &str = r#"
default = "b"

[[class]]
name = "a"
rate = "100mbit"
ceil = "150mbit"
burst = "100kb"
cburst = "100kb"

[[class]]
name = "b"
rate = "40mbit"
ceil = "60mbit"
burst = "100kb"
cburst = "100kb"

[[class]]
name = "voice"
rate = "10mbit"
ceil = "200mbit"

[[filter]]
dscp = "ef"
class = "voice"

[[filter]]
protocol = "udp"
to_ports = "5001-5004"
class = "a"
"#;

/// A file in TOML, removed with this value.
pub struct File(PathBuf);

impl File {
    /// Writes it, under any name.
    pub fn new(text: &str) -> Result<File> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        File::named(&format!("weir-file-{}-{number}", std::process::id()), text)
    }

    /// Writes it under the name that what it describes has, unless it says another.
    pub fn named(name: &str, text: &str) -> Result<File> {
        let path = std::env::temp_dir().join(format!("{name}.toml"));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(File(path))
    }

    /// The path of the file.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("the folder for temporary files and the name are text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A link of 200 Mbit/s shared by `a`, UDP to port 5001, and `b`, all else. The bursts cover a worker that a busy machine
/// wakes 8 ms late; over the seconds that are measured they are less than a hundredth.
pub fn two_classes(rate_a: &str, rate_b: &str) -> String {
    format!(
        r#"
default = "b"

[[class]]
name = "link"
rate = "200mbit"
burst = "200kb"
cburst = "200kb"

[[class]]
name = "a"
parent = "link"
rate = "{rate_a}"
ceil = "200mbit"
burst = "200kb"
cburst = "200kb"

[[class]]
name = "b"
parent = "link"
rate = "{rate_b}"
ceil = "200mbit"
burst = "200kb"
cburst = "200kb"

[[filter]]
protocol = "udp"
to_ports = 5001
class = "a"
"#
    )
}

/// The row of a class in the first direction, and the time it was taken, in seconds.
pub fn row(wire: &Wire, name: &str) -> Result<(Value, f64)> {
    row_of(&stat_of(wire)?, name)
}

/// The row of a class out of the JSON of one wire, and the time.
pub fn row_of(stat: &Value, name: &str) -> Result<(Value, f64)> {
    let counters = &stat["wires"][0];
    let seconds = counters["worker"]["now_ns"].as_f64().context("no worker.now_ns")? / 1e9;
    let rows = counters["classes"][0]["classes"].as_array().context("no rows of classes")?;
    let row =
        rows.iter().find(|row| row["name"] == name).with_context(|| format!("no row of class {name}"))?;
    Ok((row.clone(), seconds))
}
