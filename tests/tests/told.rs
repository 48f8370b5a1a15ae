//! The lines by which `weir set` and `weir apply` tell of changes of a topology.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::run;
use weir_tests::classes::File;
use weir_tests::topology::{Hosts, Up};
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(each_change_is_told_from_what_the_one_before_left).together(),
        privileged!(what_is_not_touched_is_not_warned_of).together(),
        privileged!(work_that_cannot_be_told_of_is_done).together(),
        privileged!(work_that_nobody_reads_of_is_done).together(),
    ])
}

/// A bridge of two ports, of which the first has these keys.
fn bridge(keys: &str) -> String {
    format!(
        "[[port]]\ninterface = \"p0\"\n{keys}\n[[port]]\ninterface = \"p1\"\n\
         [[bridge]]\nname = \"lan\"\nports = [\"p0\", \"p1\"]\n"
    )
}

/// A file for `weir apply` by which the port has this rate.
fn file(up: &Up, mbit: u32) -> Result<File> {
    File::new(&format!("name = \"{}\"\n{}", up.name, bridge(&format!("rate = \"{mbit}mbit\""))))
}

/// Runs `weir ARGUMENTS` where the ports are. Returns the rates between which its line says that a port changed.
fn told(hosts: &Hosts, arguments: &[&str]) -> Result<(u32, u32)> {
    let mut command = hosts.middle.command(weir_binary()?);
    let said = run(command.args(arguments), PATIENCE)?.success()?.stdout;
    let (before, after) = said.split_once("mbit -> ").with_context(|| said.clone())?;
    let number = |text: &str| text.parse().with_context(|| said.clone());
    let before = before.rsplit(' ').next().unwrap_or(before);
    Ok((number(before)?, number(after.split("mbit").next().unwrap_or(after))?))
}

/// Several commands change one port at the same time, each to a rate of its own: by what they tell there is one row of changes.
fn each_change_is_told_from_what_the_one_before_left() -> Result<()> {
    const CHANGES: u32 = 20;
    let hosts = Hosts::new(2, None)?;
    let up = hosts.up(&bridge("rate = \"1mbit\""))?;
    let change = |first: u32, by_file: bool| -> Result<Vec<(u32, u32)>> {
        let one = |number| match by_file {
            true => told(&hosts, &["apply", file(&up, number)?.path()]),
            false => told(&hosts, &["set", &up.name, "--port", "p0", "--rate", &format!("{number}mbit")]),
        };
        let asked = |number| {
            let (before, after) = one(number)?;
            ensure!(after == number, "{number} was asked for, and told is {before} -> {after}");
            Ok((before, after))
        };
        (first..first + CHANGES).map(asked).collect()
    };
    let change = &change;
    let changes = std::thread::scope(|scope| -> Result<Vec<_>> {
        let kinds = [(100, false), (200, false), (300, true), (400, true)];
        let several: Vec<_> =
            kinds.into_iter().map(|(first, by_file)| scope.spawn(move || change(first, by_file))).collect();
        let mut all = Vec::new();
        for one in several {
            all.extend(one.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        Ok(all)
    })?;
    let next: BTreeMap<_, _> = changes.iter().copied().collect();
    let row = std::iter::successors(Some(1), |before| next.get(before).copied());
    let length = row.take(changes.len() + 2).count();
    ensure!(length == changes.len() + 1, "no row of {} changes: {changes:?}", changes.len());
    up.down()?;
    Ok(())
}

/// The classes of a port have more than its limit together, which concerns its own changes alone.
fn what_is_not_touched_is_not_warned_of() -> Result<()> {
    const OVERSOLD: &str = "rate = \"20mbit\"\ndefault = \"x\"\n[[port.class]]\nname = \"x\"\nrate = \"20mbit\"\n\
                            [[port.class]]\nname = \"y\"\nrate = \"10mbit\"\n\
                            [[port.filter]]\nclass = \"y\"\nto_ports = 80";
    let hosts = Hosts::new(2, None)?;
    let up = hosts.up(&bridge(OVERSOLD))?;
    for (port, warnings) in [("p1", 0), ("p0", 1)] {
        let set = up.weir(&["set", &up.name, "--port", port, "--rate", "25mbit"])?.success()?;
        let warned = set.stderr.matches("more than the limit of").count();
        ensure!(warned == warnings && set.stderr.lines().count() == warnings, "{port}: {}", set.stderr);
    }
    up.down()?;
    Ok(())
}

/// A full disk keeps no work from being done, and the one sentence says that it is.
fn work_that_cannot_be_told_of_is_done() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let up = hosts.up(&bridge("rate = \"1mbit\""))?;
    let unread = |arguments: &[&str], is_done: bool| -> Result<()> {
        let mut command = hosts.middle.command("sh");
        command.args(["-c", "exec \"$0\" \"$@\" > /dev/full"]).arg(weir_binary()?).args(arguments);
        let done = run(&mut command, PATIENCE)?;
        let expected = "writing to standard output: No space left on device (os error 28)";
        let work = if is_done { "; the work that it tells of is done all the same" } else { "" };
        ensure!(done.status.code() == Some(1), "{arguments:?}: {} {}", done.status, done.stderr);
        // A word on which end of a pair is the host's may come before it.
        let said = format!("weir: {expected}{work}");
        ensure!(done.stderr.lines().next_back() == Some(&said), "{arguments:?}: {}", done.stderr);
        Ok(())
    };
    let limit = || Ok::<_, anyhow::Error>(hosts.hosts[2].sh("tc qdisc show dev veth0")?.contains("htb"));
    let rate = || Ok::<_, anyhow::Error>(up.stat()?["classes"][0]["rate_bits_per_s"].as_u64());
    unread(&["limit", "p2", "--rate", "10mbit"], true)?;
    ensure!(limit()?, "no limit");
    unread(&["set", "p2", "--rate", "20mbit"], true)?;
    unread(&["limit", "p2", "--off"], true)?;
    ensure!(!limit()?, "the limit stays");
    unread(&["set", &up.name, "--port", "p0", "--rate", "2mbit"], true)?;
    ensure!(rate()? == Some(2_000_000), "{:?}", rate()?);
    let file = file(&up, 3)?;
    unread(&["apply", file.path(), "--dry-run"], false)?;
    ensure!(rate()? == Some(2_000_000), "{:?}", rate()?);
    unread(&["apply", file.path()], true)?;
    ensure!(rate()? == Some(3_000_000), "{:?}", rate()?);
    unread(&["limit", "p2", "--rate", "10mbit"], true)?;
    // It tells of what is up with the same ports before it removes the limit.
    let other = File::new(&format!(
        "name = \"{}-other\"\n{}[[limit]]\ndevice = \"p2\"\nrate = \"10mbit\"\n",
        up.name,
        bridge("rate = \"1mbit\"")
    ))?;
    unread(&["down", other.path()], true)?;
    ensure!(!limit()?, "the limit stays");
    unread(&["down", &up.name], true)?;
    unread(&["mend"], true)
}

/// The output is a pipe without room, which nobody reads.
fn work_that_nobody_reads_of_is_done() -> Result<()> {
    const PIPE_BYTES: usize = 1 << 16;
    let hosts = Hosts::new(2, None)?;
    let up = hosts.up(&bridge("rate = \"1mbit\""))?;
    let file = file(&up, 3)?;
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(&[b'x'; PIPE_BYTES])?;
    let mut command = hosts.middle.command(weir_binary()?);
    let mut apply = command.args(["apply", file.path()]).stdout(writer).spawn()?;
    // The command has the writer's end too.
    drop(command);
    let is_done = || Ok(up.stat()?["classes"][0]["rate_bits_per_s"].as_u64() == Some(3_000_000));
    let done = wait_until("the file is applied", PATIENCE, is_done);
    drop(reader);
    ensure!(apply.wait()?.success(), "a reader that leaves is no failure");
    done?;
    up.down()?;
    Ok(())
}
