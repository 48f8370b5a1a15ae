//! Whose rights a program of `weir run` has.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::process::run;
use weir_tests::host::Host;
use weir_tests::{harness, privileged};

const LIMIT: Duration = Duration::from_secs(30);
/// A user who owns nothing.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_program_run_under_sudo_is_the_user_who_called_it),
        privileged!(a_program_is_root_where_that_is_asked_for),
    ])
}

/// A field of a `status` in /proc.
fn field<'s>(status: &'s str, name: &str) -> Result<&'s str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in {status}"))?.trim())
}

/// `weir run OPTIONS -- sh -c SCRIPT` as sudo of the user nobody would start it.
fn under_sudo(host: &Host, options: &[&str], script: &str) -> Command {
    let mut command = host.weir(&["run", "--rate", "200mbit"]);
    command.args(options).args(["--", "sh", "-c", script]);
    command.envs([("SUDO_UID", NOBODY), ("SUDO_GID", NOBODY), ("SUDO_USER", "nobody"), ("HOME", "/root")]);
    command
}

/// With no less and no more than that user has: a set-user-ID program works, and the wire's rights are not there.
fn a_program_run_under_sudo_is_the_user_who_called_it() -> Result<()> {
    let host = Host::alone()?;
    let directory = std::env::temp_dir().join(format!("weir-attackers-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let tool = directory.join("id");
    std::fs::copy("/usr/bin/id", &tool)?;
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o4755))?;
    let script = format!(
        "echo real $(id -ru):$(id -rg):$(id -G); echo effective $(id -u); echo raised $({} -u); \
         echo at $HOME as $USER $LOGNAME, sudo $SUDO_UID $SUDO_USER; cat /proc/self/status; \
         ip link set eth0 down 2>&1",
        tool.display()
    );
    let done = run(&mut under_sudo(&host, &[], &script), LIMIT);
    std::fs::remove_dir_all(&directory)?;
    let shown = done?.stdout;
    let home = run(Command::new("sh").args(["-c", "getent passwd 65534 | cut -d : -f 6"]), LIMIT)?.stdout;
    for line in [
        format!("real {NOBODY}:{NOBODY}:{NOBODY}"),
        format!("effective {NOBODY}"),
        "raised 0".into(),
        format!("at {} as nobody nobody, sudo", home.trim()),
    ] {
        ensure!(shown.lines().any(|found| found.trim() == line), "no {line:?}: {shown}");
    }
    let own = std::fs::read_to_string("/proc/self/status")?;
    ensure!(field(&shown, "NoNewPrivs")? == "0" && field(&shown, "Seccomp")? == "0", "{shown}");
    ensure!(field(&shown, "CapBnd")? == field(&own, "CapBnd")?, "{shown}");
    ensure!(u64::from_str_radix(field(&shown, "CapEff")?, 16)? == 0, "{shown}");
    ensure!(shown.contains("not permitted"), "it may change its interface: {shown}");
    Ok(())
}

fn a_program_is_root_where_that_is_asked_for() -> Result<()> {
    let host = Host::alone()?;
    let own = std::fs::read_to_string("/proc/self/status")?;
    let script = "echo is $(id -u); cat /proc/self/status; ip link set eth0 mtu 1400 && echo may";
    let without_sudo = host.weir_run(&[], script);
    for mut command in [under_sudo(&host, &["--as-root"], script), without_sudo] {
        let shown = run(&mut command, LIMIT)?.success()?.stdout;
        ensure!(shown.contains("is 0") && shown.contains("may"), "{shown}");
        for name in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
            ensure!(field(&shown, name)? == field(&own, name)?, "{name}: {shown}");
        }
    }
    Ok(())
}
