//! Limits of pairs whose other end the command cannot see, as in a container for management: what was changed there cannot be put back.
//! And limits elsewhere that are called as an interface here.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_lab::process::{Finished, run};
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row, is_steered};
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(an_end_out_of_sight_is_told_before_anything_is_removed).together(),
        privileged!(the_rest_of_a_limit_stays_while_the_other_end_is_out_of_sight).together(),
        privileged!(an_end_out_of_sight_stays_the_limits).together(),
        privileged!(a_limit_out_of_sight_is_not_denied).together(),
        privileged!(root_without_capabilities_is_not_told_that_there_is_none).together(),
        privileged!(an_interface_here_comes_before_a_name_that_nobody_gave).together(),
    ])
}

/// A command of weir that sees no process and no namespace but its own, as in a container for management with the host's network.
fn out_of_sight(row: &Row, words: &str) -> Result<Finished> {
    let script = format!("mount -t tmpfs none /run/netns && exec {} {words}", weir_binary()?.display());
    let mut command = row.middle.command("unshare");
    run(command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &script]), PATIENCE)
}

fn an_end_out_of_sight_is_told_before_anything_is_removed() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate-back 20mbit --name back")?.success()?;
    for name in ["back", "wa"] {
        let done = out_of_sight(&row, &format!("limit {name} --off"))?;
        ensure!(done.status.code() == Some(1), "{}: {}", done.what, done.stderr);
        let says = |word| done.stderr.contains(word);
        ensure!(
            says("out of sight") && says("nothing was removed") && says("`weir limit DEV --off --now`"),
            "{}",
            done.stderr
        );
        row.weir("stat back --check")?.success()?;
    }
    let done = out_of_sight(&row, "limit wa --rate 2mbit")?;
    ensure!(done.status.code() == Some(2) && done.stderr.contains("way back alone"), "{}", done.stderr);
    out_of_sight(&row, "limit wa --rate-back 19mbit")?.success()?;
    ensure!(row.lossless_limit("back")?["direction"] == "back", "it is another way now");
    let shown = out_of_sight(&row, "show")?.success()?.stdout;
    ensure!(shown.contains("# left out") && shown.contains("cannot be seen from here"), "{shown}");
    let done = out_of_sight(&row, "limit wa --off --now")?.success()?;
    ensure!(done.stderr.contains("keeps the receive steering"), "{}", done.stderr);
    let qdiscs = row.middle.tc("qdisc show dev wa")?;
    ensure!(!qdiscs.contains("htb") && !qdiscs.contains("clsact") && is_steered(&row.left)?, "{qdiscs}");
    let again = out_of_sight(&row, "limit wa --off")?;
    ensure!(again.status.code() == Some(1) && again.stderr.contains("cannot be seen"), "{}", again.stderr);
    Ok(())
}

/// The rest of a limit whose queue or filter somebody removed tells of steering at the other end.
fn the_rest_of_a_limit_stays_while_the_other_end_is_out_of_sight() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    for removed in ["qdisc del dev wa root", "filter del dev wa parent 7769:"] {
        row.weir("limit wa --rate-back 20mbit --name back")?.success()?;
        row.middle.tc(removed)?;
        let queues = row.middle.tc("qdisc show dev wa")?;
        let done = out_of_sight(&row, "limit wa --off")?;
        let says = ["out of sight", "cannot be seen from here"].iter().any(|word| done.stderr.contains(word));
        ensure!(done.status.code() == Some(1) && says, "{}", done.stderr);
        ensure!(is_steered(&row.left)? && row.middle.tc("qdisc show dev wa")? == queues, "{removed}");
        row.weir("limit wa --off")?.success()?;
        ensure!(!is_steered(&row.left)?, "{removed}: it is not put back");
    }
    Ok(())
}

fn an_end_out_of_sight_stays_the_limits() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit br0 --rate 50mbit")?.success()?;
    ensure!(is_steered(&row.left)?);
    out_of_sight(&row, "limit br0 --rate 60mbit")?.success()?;
    let limit = row.lossless_limit("br0")?;
    ensure!(limit["changed"]["rps_cpus_behind"] == json!(["wa", "wb"]), "{limit}");
    row.weir("limit br0 --off")?.success()?;
    ensure!(!is_steered(&row.left)? && !is_steered(&row.right)?, "it is not put back");
    Ok(())
}

fn a_limit_out_of_sight_is_not_denied() -> Result<()> {
    const WHERE: &str = "run weir in the host's PID namespace to see all";
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 20mbit")?.success()?;
    let shown = out_of_sight(&row, "stat")?.success()?.stdout;
    ensure!(shown.contains("no limit is set that is seen from here") && shown.contains(WHERE), "{shown}");
    let done = out_of_sight(&row, "stat wa")?;
    let told = format!("called wa: there is none that you may see; {WHERE}");
    ensure!(done.status.code() == Some(1) && done.stderr.contains(&told), "{}", done.stderr);
    Ok(())
}

/// As in a service with few capabilities, or a container.
fn root_without_capabilities_is_not_told_that_there_is_none() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 20mbit")?.success()?;
    for (words, status, told) in [
        ("show", 1, "looking at limits needs root (CAP_"),
        ("stat", 0, "are shown to root with CAP_SYS_ADMIN alone"),
        ("stat --check", 1, "nobody has looked whether they are whole"),
        (
            "set wa --rate 3mbit",
            1,
            "there is none that you may see; limits in place are shown to root with CAP_SYS_ADMIN",
        ),
        ("limit wa --off", 1, "limiting an interface needs root (CAP_"),
    ] {
        let mut command = row.middle.command("setpriv");
        command.arg("--bounding-set=-sys_admin,-net_admin,-bpf,-perfmon").arg(weir_binary()?);
        let done = run(command.args(words.split(' ')), PATIENCE)?;
        ensure!(done.status.code() == Some(status), "{words}: {} {}", done.status, done.said());
        ensure!(done.said().contains(told), "{words}: {}", done.said());
    }
    row.weir("limit wa --off")?.success().map(drop)
}

/// Another host of this machine has an interface that is called so, too, and its limit was first to be called after that.
fn an_interface_here_comes_before_a_name_that_nobody_gave() -> Result<()> {
    let (there, here) = (Row::new(Between::Bridge)?, Row::new(Between::Bridge)?);
    let device = format!("v{}", std::process::id());
    for row in [&there, &here] {
        row.middle.ip(&format!("link set wa down name {device}"))?;
        row.middle.ip(&format!("link set {device} up"))?;
        row.weir(&format!("limit {device} --rate 10mbit"))?.success()?;
    }
    let rate = |row: &Row| -> Result<u64> {
        let limits = row.limits(&device)?;
        let is_own = |limit: &serde_json::Value| {
            limit["netns"].as_str().is_some_and(|netns| netns.ends_with(row.left.name()))
        };
        ensure!(limits.len() == 1 && is_own(&limits[0]), "{limits:?}");
        limits[0]["rate_bits_per_s"].as_u64().context("no rate")
    };
    here.weir(&format!("set {device} --rate 12mbit"))?.success()?;
    ensure!(rate(&here)? == 12_000_000, "it was not changed");
    // Nothing leads to the other end of that pair.
    let weir = weir_binary()?.display().to_string();
    let hidden = format!("umount /run/netns/{}; exec {weir} set {device} --rate 11mbit", there.middle.name());
    run(here.middle.command("sh").args(["-c", &hidden]), PATIENCE)?.success()?;
    ensure!(rate(&here)? == 11_000_000, "it was not changed");
    here.weir(&format!("limit {device} --rate 13mbit"))?.success()?;
    here.weir(&format!("stat {device} --check"))?.success()?;
    let shown = here.weir(&format!("show {device}"))?.success()?.stdout;
    ensure!(shown.matches("[[limit]]").count() == 1 && shown.contains("13mbit"), "{shown}");
    let file = File::new(&format!("[[limit]]\ndevice = \"{device}\"\nrate = \"13mbit\"\n"))?;
    for command in [format!("limit {device} --off"), format!("down {}", file.path())] {
        here.weir(&format!("apply {}", file.path()))?.success()?;
        let done = here.weir(&command)?.success()?;
        let removed = format!("removed: veth0 in network namespace {}", here.left.name());
        ensure!(done.stdout.starts_with(&removed), "{command}: {}", done.said());
    }
    // A name that somebody gave means no other.
    let given = format!("{device}-g");
    there.weir(&format!("limit {device} --name {given}"))?.success()?;
    here.middle.ip(&format!("link set {device} down name {given}"))?;
    here.weir(&format!("limit {given} --rate 10mbit"))?.success()?;
    // Nor if the end inside is called so, after which no limit of the way there is.
    for is_inside_called_so in [false, true] {
        if is_inside_called_so {
            there.left.ip(&format!("link set veth0 down name {given}"))?;
        }
        for command in [format!("stat {given}"), format!("show {given}"), format!("set {given} --rate 9mbit")]
        {
            let done = here.weir(&command)?;
            let is_said = done.stderr.contains(&format!("{given} means two limits"));
            ensure!(done.status.code() == Some(2) && is_said, "{command}: {}", done.said());
        }
    }
    ensure!(rate(&there)? == 10_000_000, "another's limit was changed");
    Ok(())
}
