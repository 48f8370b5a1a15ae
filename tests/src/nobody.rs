//! Running the program under test as nobody, also from a place that nobody else can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::process::{Finished, run};

use crate::weir_binary;

/// Runs `weir ARGUMENTS` without root.
pub fn weir(arguments: &[&str], limit: Duration) -> Result<Finished> {
    weir_by(&[], arguments, limit)
}

/// Runs `weir ARGUMENTS` without root, as root of a user namespace and a network namespace of its own.
pub fn weir_in_user_namespace(arguments: &[&str], limit: Duration) -> Result<Finished> {
    weir_by(&["unshare", "--user", "--map-root-user", "--net", "--"], arguments, limit)
}

fn weir_by(launcher: &[&str], arguments: &[&str], limit: Duration) -> Result<Finished> {
    let binary = weir_binary()?;
    if !weir_lab::bed::is_privileged() {
        return run(Command::new(&binary).args(arguments), limit);
    }
    let copy = PublicCopy::of(&binary)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    run(command.args(launcher).arg(&copy.binary).args(arguments), limit)
}

/// A copy of the program that any user can run; removed with this value.
struct PublicCopy {
    folder: PathBuf,
    binary: PathBuf,
}

impl PublicCopy {
    fn of(binary: &Path) -> Result<PublicCopy> {
        let folder = std::env::temp_dir().join(format!("weir-test-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let copy = PublicCopy { binary: folder.join("weir"), folder };
        fs::copy(binary, &copy.binary)?;
        for path in [&copy.folder, &copy.binary] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(copy)
    }
}

impl Drop for PublicCopy {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
