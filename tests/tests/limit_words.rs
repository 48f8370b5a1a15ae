//! The messages of `weir limit` where it cannot do what is asked, or not as one might think; and that it then changes nothing.

use std::os::unix::net::UnixListener;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_run::control::Control;
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row, idle_process};
use weir_tests::rig::Rig;
use weir_tests::{harness, nobody, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(an_end_inside_a_container_is_refused).together(),
        privileged!(an_end_that_nothing_tells_the_side_of_is_said),
        privileged!(a_name_that_means_two_limits_is_refused_by_every_command).together(),
        privileged!(a_socket_that_was_left_hides_no_limit).together(),
        privileged!(each_way_keeps_the_name_that_it_has).together(),
        privileged!(a_name_reaches_past_no_interface_that_is_here).together(),
        privileged!(an_interface_is_shown_where_it_is_meant).together(),
        privileged!(without_root_it_is_said_first_what_is_missing).together(),
        privileged!(whom_the_way_back_holds_is_said).together(),
        privileged!(how_long_what_passes_may_wait_is_said).together(),
        privileged!(a_queue_of_another_tool_is_left_alone),
        privileged!(a_name_is_given_once),
        privileged!(a_wire_is_no_limit_in_place).together(),
        privileged!(both_ways_are_set_or_neither),
        privileged!(both_ways_are_changed_or_neither).together(),
        privileged!(a_limit_is_found_and_renamed_by_its_name),
        privileged!(what_could_not_be_looked_at_is_no_proof).together(),
        privileged!(what_is_set_again_is_as_it_was_and_said).together(),
        privileged!(a_wire_elsewhere_that_is_called_as_an_interface_here_is_not_changed).together(),
    ])
}

fn line(done: &Finished, status: i32, words: &[&str]) -> Result<()> {
    ensure!(done.status.code() == Some(status), "{}: {:?} {}", done.what, done.status, done.stderr);
    ensure!(done.stderr.lines().count() == 1, "{} says {}", done.what, done.stderr);
    for word in words {
        ensure!(done.stderr.contains(word), "{} says {}", done.what, done.stderr);
    }
    Ok(())
}

/// A script in `host` whose own process is the first of all that it sees.
fn alone(host: &Namespace, script: &str) -> Result<Finished> {
    let mut command: Command = host.command("unshare");
    run(command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script]), PATIENCE)
}

/// The container's end is not the one that was meant; by its process the container is limited.
fn an_end_inside_a_container_is_refused() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let weir = weir_binary()?.display().to_string();
    let enter =
        format!("nsenter --net=/run/netns/{} -- {weir} limit veth0 --rate 10mbit; exit $?", row.left.name());
    let done = alone(&row.middle, &enter)?;
    line(&done, 2, &["container's end", "weir limit --pid $$ --device veth0", "weir limit wa"])?;
    // The host's processes and names are out of sight.
    let done = alone(&row.left, &format!("mount -t tmpfs none /run; exec {weir} limit veth0 --rate 10mbit"))?;
    line(&done, 1, &["cannot be seen from here", "from the host"])?;
    for host in [&row.left, &row.middle] {
        let qdiscs = host.tc("qdisc show")?;
        ensure!(!qdiscs.contains("htb"), "{qdiscs}");
    }
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// A container with processes of its own alone, that finds its host's network namespace by a name.
fn an_end_that_nothing_tells_the_side_of_is_said() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let weir = weir_binary()?.display().to_string();
    let done = alone(&row.left, &format!("exec {weir} limit veth0 --rate 10mbit"))?;
    line(
        &done,
        0,
        &["nothing tells which end", "wa in network namespace", "`weir limit --pid $$ --device veth0`"],
    )?;
    ensure!(done.stdout.contains("limited: wa in network namespace"), "{}", done.stdout);
    row.weir("limit wa --off")?.success()?;
    // From outside, where the processes are, nothing is in doubt.
    let done = row.weir("limit wa --rate 10mbit")?.success()?;
    ensure!(done.stderr.is_empty(), "{}", done.stderr);
    row.weir("limit wa --off")?.success().map(drop)
}

/// Whatever the command, a name is a limit's before it is an interface's, and none that is one limit's name and another's interface.
fn a_name_that_means_two_limits_is_refused_by_every_command() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let name = format!("{}-one", row.middle.name());
    row.middle.ip("link set wb down")?;
    // Interfaces and limits of one name: nobody else in these namespaces has these.
    let [other, both] = ["wa", "wb"].map(|device| format!("{device}{}", std::process::id()));
    row.weir(&format!("limit wa --rate 10mbit --name {both}"))?.success()?;
    row.middle.ip(&format!("link set wb name {both}"))?;
    row.weir(&format!("limit {both} --rate 20mbit --name {name}"))?.success()?;
    let commands =
        [format!("stat {both}"), format!("set {both} --rate 5mbit"), format!("limit {both} --off")];
    for command in &commands {
        let said = row.weir(command)?;
        line(&said, 2, &[&format!("{both} means two limits"), &format!("called {name}"), "--name NAME"])?;
    }
    let rate_of = |name: &str| -> Result<Option<u64>> {
        Ok(row.limits(name)?.first().and_then(|limit| limit["rate_bits_per_s"].as_u64()))
    };
    ensure!(rate_of(&name)? == Some(20_000_000), "it was changed");
    // As it says.
    row.weir(&format!("limit wa --name {other}"))?.success()?;
    row.weir(&format!("set {both} --rate 5mbit"))?.success()?;
    ensure!(rate_of(&name)? == Some(5_000_000), "that of the interface is meant");
    ensure!(rate_of(&both)? == Some(5_000_000) && rate_of(&other)? == Some(10_000_000), "and shown");
    row.weir(&format!("limit {both} --off"))?.success()?;
    ensure!(rate_of(&other)? == Some(10_000_000), "another limit is gone");
    row.weir(&format!("limit {other} --off"))?.success().map(drop)
}

fn without_root_it_is_said_first_what_is_missing() -> Result<()> {
    for arguments in [&["limit", "lo", "--rate", "1mbit"][..], &["limit", "lo", "--off"]] {
        let done = nobody::weir(arguments, PATIENCE)?;
        line(&done, 1, &["weir: limiting an interface needs root", "run it with sudo"])?;
    }
    Ok(())
}

fn whom_the_way_back_holds_is_said() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let done = row.weir("limit wa --rate 10mbit")?.success()?;
    ensure!(!done.stdout.contains("held is who"), "{}", done.stdout);
    let done = row.weir("limit wa --rate-back 10mbit")?.success()?;
    let said = done
        .stdout
        .lines()
        .filter(|line| line.contains("held is who sends from this network namespace itself"));
    ensure!(said.count() == 1, "{}", done.stdout);
    row.weir("limit wa --off")?.success().map(drop)
}

/// 25 ms of the rate, but two of the longest packets have room: 2 x 73,728 bytes of a veth.
fn how_long_what_passes_may_wait_is_said() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let all = "default = \"all\"\n[[class]]\nname = \"all\"\nrate = \"1mbit\"\nceil = \"2mbit\"\n";
    let classes = File::new(all)?;
    let with_classes = format!("--rate 200mbit --rate-back 200mbit --classes {}", classes.path());
    let asked = [
        ("--rate 200mbit --rate-back 200mbit", "25.0 ms"),
        ("--rate 10mbit --rate-back 10mbit", "118 ms"),
        (with_classes.as_str(), "590 ms"),
    ];
    for (rates, time) in asked {
        let done = row.weir(&format!("limit wa {rates}"))?.success()?;
        for words in [format!("up to {time} of what passes without"), format!("up to {time} of it may wait")]
        {
            ensure!(done.stdout.contains(&words), "{rates}: {words}: {}", done.stdout);
        }
    }
    row.weir("limit wa --off")?.success().map(drop)
}

/// The queue has the handle of limits, and neither their shape nor their program.
fn a_queue_of_another_tool_is_left_alone() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.left.tc("qdisc add dev veth0 root handle 7769: htb default 1")?;
    row.left.tc("class add dev veth0 parent 7769: classid 7769:1 htb rate 100mbit")?;
    let before = row.left.tc("class show dev veth0")?;
    line(
        &row.weir("limit wa --rate 10mbit")?,
        1,
        &["htb qdisc 7769:", "somebody set", "tc qdisc del dev veth0 root"],
    )?;
    line(&row.weir("limit wa --off")?, 1, &["there is no limit at veth0"])?;
    let done = row.weir("stat veth0")?;
    ensure!(done.stderr.contains("no wire, topology, stack or limit called veth0"), "{}", done.stderr);
    ensure!(row.left.tc("class show dev veth0")? == before, "it was changed");
    Ok(())
}

/// The sentence says that the name is of a wire, and which command changes that.
fn a_wire_is_no_limit_in_place() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let name = format!("{}-no", row.middle.name());
    let mut command = row.middle.command("env");
    command.arg(weir_binary()?).args(["wire", "wa", "wb", "--rate", "10mbit", "--name", &name]);
    let wire = Process::spawn(&mut command)?;
    wait_until("the wire is up", PATIENCE, || Ok(row.weir(&format!("stat {name}"))?.status.success()))?;
    for asked in ["--off", "--rate 20mbit"] {
        line(
            &row.weir(&format!("limit {name} {asked}"))?,
            1,
            &[&format!("{name} is no limit in place but a wire"), &format!("`weir set {name}`")],
        )?;
    }
    wire.stop(PATIENCE)?;
    Ok(())
}

/// Any other owner of the name is told: another limit, or a wire that is up. A limit may be given its own name again.
fn a_name_is_given_once() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let name = format!("{}-one", row.middle.name());
    let limit =
        |device: &str| row.weir(&format!("limit {device} --rate 10mbit --rate-back 10mbit --name {name}"));
    limit("wa")?.success()?;
    limit("wa")?.success()?;
    line(
        &limit("wb")?,
        2,
        &["the limit at ", &format!("is called {name} already: give this one another name")],
    )?;
    ensure!(!row.right.tc("qdisc show")?.contains("htb"), "a limit was set");
    // Names of wires and runs that are to be up: none of these interfaces is there.
    for command in ["wire none none2", "run --rate 1mbit", "run --rate 1mbit --queue 5ms"] {
        let program = if command.starts_with("run") { " -- true" } else { "" };
        let said = row.weir(&format!("{command} --name {name}{program}"))?;
        line(&said, 2, &["the limit at ", &format!("is called {name} already")])?;
    }
    let ports = File::new(&format!(
        "name = \"{name}\"\n[[port]]\ninterface = \"none\"\n[[port]]\ninterface = \"none2\"\n[[wire]]\nports = [\"none\", \"none2\"]\n"
    ))?;
    line(&row.weir(&format!("up {}", ports.path()))?, 2, &["the limit at ", "already"])?;
    let table = |device: &str, name: &str| {
        format!("[[limit]]\ndevice = \"{device}\"\nrate = \"10mbit\"\nname = \"{name}\"\n")
    };
    let apply = |text: &str| -> Result<Finished> {
        let file = File::new(text)?;
        row.weir(&format!("apply {}", file.path()))
    };
    let refused = apply(&table("wb", &name))?;
    line(&refused, 1, &[":2:10: the limit at ", "already"])?;
    let wire = row.weir("wire wa wb")?;
    line(
        &wire,
        2,
        &[&format!(
            "the pair of wa is limited in place by the limit {name}: remove that first by `weir limit {name} --off`"
        )],
    )?;
    let down = row.weir(&format!("down {name}"))?;
    ensure!(
        down.stderr == format!("weir: {name} is a limit in place: remove it by `weir limit {name} --off`\n"),
        "{}",
        down.stderr
    );
    // One file may give each the other's name, but not that of the way back, of which it says nothing.
    let swapped = table("wa", &format!("{name}.2")) + &table("wb", &name);
    line(&apply(&swapped)?, 1, &[":6:10: the limit at ", &format!("is called {name} already")])?;
    let both_ways = "rate = \"10mbit\"\nrate_back = \"10mbit\"";
    let of_both_ways = |text: &str| text.replace("rate = \"10mbit\"", both_ways);
    apply(&of_both_ways(&swapped))?.success()?;
    apply(&of_both_ways(&(table("wa", &name) + &table("wb", &format!("{name}.2")))))?.success()?;
    for device in ["wa", "wb"] {
        row.weir(&format!("limit {device} --off"))?.success()?;
    }
    // A wire would send past a limit of the way back.
    row.weir("limit wa --rate-back 10mbit")?.success()?;
    line(&row.weir("wire wa wb")?, 2, &["the pair of wa is limited in place by the limit "])?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// The second way is refused: by another tool's queue, or as there is no way back.
fn both_ways_are_set_or_neither() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let both = || row.weir("limit wa --rate 5mbit --rate-back 6mbit");
    row.middle.tc("qdisc add dev wa root handle 5: tbf rate 1mbit burst 10k latency 10ms")?;
    line(&both()?, 1, &["wa", "tbf qdisc 5:", "somebody set"])?;
    ensure!(!row.left.tc("qdisc show dev veth0")?.contains("htb"), "one way was set");
    row.weir("limit wa --rate 10mbit")?.success()?;
    line(&both()?, 1, &["tbf qdisc 5:"])?;
    ensure!(row.limits("wa")?[0]["rate_bits_per_s"] == 10_000_000, "{:?}", row.limits("wa")?);
    row.middle.tc("qdisc del dev wa root")?;
    both()?.success()?;
    ensure!(row.limits("wa")?.len() == 2, "{:?}", row.limits("wa")?);
    row.weir("limit wa --off")?.success()?;
    line(&row.weir("limit br0 --rate 5mbit --rate-back 6mbit")?, 2, &["--rate-back is for a pair"])?;
    ensure!(!row.middle.tc("qdisc show dev br0")?.contains("htb"), "one way was set");
    line(&row.weir("limit wa --rate 5mbit --now")?, 2, &["--now is for --off"])
}

/// The classes of the way back are promised more than it would have.
fn both_ways_are_changed_or_neither() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let file = File::new("default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"7mbit\"\nceil = \"50mbit\"\n")?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir(&format!("limit wa --rate-back 50mbit --classes {}", file.path()))?.success()?;
    let rates = || -> Result<Vec<_>> {
        Ok(row.limits("wa")?.iter().map(|limit| limit["rate_bits_per_s"].as_u64()).collect())
    };
    let done = row.weir("set wa --rate 5mbit")?;
    ensure!(done.status.code() == Some(1), "{:?} {}{}", done.status, done.stdout, done.stderr);
    ensure!(rates()? == [Some(10_000_000), Some(50_000_000)], "{:?} after {}", rates()?, done.stderr);
    row.weir("set wa --rate 8mbit")?.success()?;
    ensure!(rates()? == [Some(8_000_000), Some(8_000_000)], "{:?}", rates()?);
    Ok(())
}

/// A wire that was killed may have left its socket, and a limit is called the same.
fn a_socket_that_was_left_hides_no_limit() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let name = format!("left{}", std::process::id());
    row.weir(&format!("limit wa --rate 10mbit --name {name}"))?.success()?;
    let path = Control::path_of(&name);
    for command in ["stat", "show"] {
        drop(UnixListener::bind(&path)?);
        let done = row.weir(&format!("{command} {name}"));
        let _ = std::fs::remove_file(&path);
        let told = done?.success()?.stdout;
        ensure!(told.contains(&name) && told.contains("10mbit"), "{command}: {told}");
    }
    Ok(())
}

/// A file names the way there alone.
fn each_way_keeps_the_name_that_it_has() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    row.weir("limit wa --rate 10mbit --rate-back 10mbit")?.success()?;
    let file = File::new("[[limit]]\ndevice = \"wa\"\nrate = \"20mbit\"\nname = \"office-words\"\n")?;
    row.weir(&format!("apply {}", file.path()))?.success()?;
    row.weir("limit office-words --rate 30mbit")?.success()?;
    let limits = row.limits("office-words")?;
    ensure!(limits.len() == 1 && limits[0]["rate_bits_per_s"] == 30_000_000, "{limits:?}");
    row.weir("limit office-words --rate 30mbit --rate-back 30mbit")?.success()?;
    let limits = row.limits("office-words")?;
    ensure!(limits.len() == 1, "the way back is called office-words: {limits:?}");
    Ok(())
}

/// Another host of this machine has a limit that is called as an interface here.
fn a_name_reaches_past_no_interface_that_is_here() -> Result<()> {
    let (there, here) = (Row::new(Between::Bridge)?, Row::new(Between::Bridge)?);
    let name = format!("o{}", there.middle.name().rsplit('-').nth(1).context("no number")?);
    there.weir(&format!("limit wa --rate 10mbit --name {name}"))?.success()?;
    here.middle.ip(&format!("link set wa down name {name}"))?;
    here.middle.ip(&format!("link set {name} up"))?;
    for command in [format!("set {name} --rate 1mbit"), format!("limit {name} --off"), format!("stat {name}")]
    {
        line(&here.weir(&command)?, 2, &["is an interface here", there.left.name(), "another name"])?;
    }
    let limits = there.limits(&name)?;
    ensure!(limits[0]["rate_bits_per_s"] == 10_000_000, "{limits:?}");
    // From anywhere else the name is enough.
    here.left.sh(&format!("{} set {name} --rate 2mbit", weir_binary()?.display()))?;
    there.weir(&format!("limit {name} --off"))?.success().map(drop)
}

/// A container has a bridge that is called as one here.
fn an_interface_is_shown_where_it_is_meant() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let process = idle_process(&row.right)?;
    row.right.ip("link add br0 type bridge")?;
    let inside = format!("{}-inside", row.middle.name());
    row.weir(&format!("limit --pid {} --device br0 --rate 7mbit --name {inside}", process.id()))?
        .success()?;
    let shown = |word: &str| Ok::<_, anyhow::Error>(row.weir(&format!("show {word}"))?.success()?.stdout);
    let of_inside = shown(&inside)?;
    ensure!(of_inside.contains("pid = ") && of_inside.contains("device = \"br0\""), "{of_inside}");
    let none = row.weir("show br0")?;
    ensure!(!none.status.success() && none.stdout.is_empty(), "{}", none.said());
    row.weir("limit br0 --rate 9mbit")?.success()?;
    let of_br0 = shown("br0")?;
    ensure!(of_br0.contains("9mbit") && of_br0.matches("[[limit]]").count() == 1, "{of_br0}");
    row.weir("limit br0 --off")?.success()?;
    row.weir(&format!("limit {inside} --off"))?.success().map(drop)
}

/// The name finds it when the interface has another name, or the process is gone by which it was named.
fn a_limit_is_found_and_renamed_by_its_name() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let name = format!("{}-one", row.middle.name());
    line(&row.weir(&format!("limit wa --name {name}"))?, 1, &["no limit at veth0", "give its rate"])?;
    row.weir("limit wa --rate 10mbit --rate-back 20mbit")?.success()?;
    let done = row.weir(&format!("limit wa --name {name}"))?.success()?;
    ensure!(done.stdout.matches(&format!("called {name}")).count() == 2, "{}", done.stdout);
    let rates: Vec<_> = row.limits(&name)?.iter().map(|limit| limit["rate_bits_per_s"].as_u64()).collect();
    ensure!(rates == [Some(10_000_000), Some(20_000_000)], "{rates:?}");
    for command in ["link set wa down", "link set wa name wz"] {
        row.middle.ip(command)?;
    }
    row.weir(&format!("limit {name} --rate 30mbit"))?.success()?;
    ensure!(row.limits(&name)?[0]["rate_bits_per_s"] == 30_000_000, "{:?}", row.limits(&name)?);
    let done = row.weir(&format!("limit {name} --off"))?.success()?;
    ensure!(done.stdout.matches("removed").count() == 2, "{}", done.stdout);
    line(&row.weir(&format!("limit {name} --off"))?, 1, &["no interface", "no limit is called so"])?;

    let mut sleeper = idle_process(&row.right)?;
    let pid = sleeper.id();
    row.weir(&format!("limit --pid {pid} --device veth0 --rate 10mbit --name {name}"))?.success()?;
    sleeper.signal(Signal::KILL)?;
    sleeper.wait(PATIENCE)?;
    let said = row.weir(&format!("limit --pid {pid} --device veth0 --off"))?;
    line(&said, 1, &[&pid.to_string(), "weir stat", "weir limit NAME --off"])?;
    row.weir(&format!("limit {name} --off"))?.success().map(drop)
}

/// Others than root see no limits.
fn what_could_not_be_looked_at_is_no_proof() -> Result<()> {
    let checked = nobody::weir(&["stat", "--check"], PATIENCE)?;
    ensure!(checked.status.code() == Some(1), "{}", checked.stdout);
    ensure!(checked.stderr.contains("nobody has looked whether they are whole"), "{}", checked.stderr);
    let shown = nobody::weir(&["stat", "--json"], PATIENCE)?.success()?.stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    ensure!(shown["limits"].is_null(), "{}", shown["limits"]);
    Ok(())
}

/// A limit with classes and a burst, of which root of the container takes away the queue, and then the filter.
fn what_is_set_again_is_as_it_was_and_said() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let file = File::new("[[class]]\nname = \"one\"\nrate = \"5mbit\"\nceil = \"10mbit\"\n")?;
    row.weir(&format!("limit wa --rate 10mbit --burst 64kb --classes {} --name office-words", file.path()))?
        .success()?;
    row.left.tc("qdisc del dev veth0 root")?;
    let done = row.weir("set office-words --rate 20mbit")?.success()?;
    let is_told = done.stdout.contains("10mbit -> 20mbit; veth0 in ")
        && done.stdout.contains("whose queue somebody had removed");
    ensure!(is_told, "{}", done.stdout);
    row.weir("stat office-words --check")?.success()?;
    let is_as_it_was = || -> Result<()> {
        let limit = row.limits("office-words")?.swap_remove(0);
        ensure!(limit["burst_bytes"] == 64 << 10 && limit["classes"][0]["name"] == "one", "{limit}");
        Ok(())
    };
    is_as_it_was()?;
    row.left.tc("qdisc del dev veth0 root")?;
    row.weir("limit wa --rate 20mbit")?.success()?;
    is_as_it_was()?;
    ensure!(
        row.weir("set office-words --rate 20mbit")?.success()?.stdout.contains("it was so already"),
        "it is whole"
    );

    row.weir("limit wa --rate-back 10mbit")?.success()?;
    row.left.tc("filter del dev veth0 parent 7769:")?;
    let classes = format!("set wa --classes {}", file.path());
    for change in ["set wa --rate 30mbit", "set office-words --rate 30mbit", &classes] {
        let done = row.weir(change)?;
        let is_refused = done.status.code() == Some(1) && done.stderr.contains("its filter was removed");
        ensure!(is_refused, "{change}: {}{}", done.stdout, done.stderr);
    }
    row.weir("limit wa --rate 30mbit")?.success()?;
    row.weir("stat office-words --check")?.success()?;
    is_as_it_was()?;

    let clsact = || row.middle.tc("qdisc show dev wa").map(|shown| shown.contains("clsact"));
    row.middle.tc("filter del dev wa ingress")?;
    row.weir("set office-words --rate 30mbit")?.success()?;
    row.weir("stat office-words --check")?.success()?;
    ensure!(clsact()?, "what looks at the other end is there again");
    row.weir("limit office-words --off")?.success()?;
    ensure!(!clsact()?, "the clsact that was made for it stays");
    Ok(())
}

/// A wire of another namespace has the name of an interface here that has a limit.
fn a_wire_elsewhere_that_is_called_as_an_interface_here_is_not_changed() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let elsewhere = Rig::new(1, 1)?;
    let mut wire = Process::spawn(&mut elsewhere.weir(&["wire", "wa", "wb", "--rate", "100mbit"]))?;
    wire.wait_for_output("ready", PATIENCE)?;
    row.weir("limit wa --rate 50mbit")?.success()?;
    let done = row.weir("set wa --rate 7mbit")?;
    let is_told = done.stderr.contains("wa means two") && done.stderr.contains("limit is called wa.2");
    ensure!(done.status.code() == Some(2) && is_told, "{}{}", done.stdout, done.stderr);
    ensure!(row.weir("set wa.2 --rate 8mbit")?.success()?.stdout.contains("50mbit -> 8mbit"), "by its name");
    row.weir("limit wa.2 --off")?.success()?;
    ensure!(
        row.weir("set wa --rate 9mbit")?.success()?.stdout.contains("100mbit -> 9mbit"),
        "one meaning is left"
    );
    wire.signal(Signal::TERM)?;
    wire.wait(PATIENCE)?.success().map(drop)
}
