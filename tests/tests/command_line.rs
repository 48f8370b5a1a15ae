//! A fault of a command line is said in one sentence, with the exit status that scripts rely on: 2 for the command line, 1 for a failure.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::process::{Finished, run};
use weir_tests::kernel::{require_same, traces};
use weir_tests::lacking::Lacking;
use weir_tests::rig::{MANY_QUEUES, Rig};
use weir_tests::tcx::Tcx;
use weir_tests::{harness, nobody, plain, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(&[
        plain!(wrong_command_lines).together(),
        plain!(more_workers_than_cores).together(),
        plain!(help_names_every_command).together(),
        plain!(help_is_read_where_the_width_of_the_terminal_is_0).together(),
        plain!(a_full_disk_is_one_sentence).together(),
        plain!(what_cannot_be_done_without_root).together(),
        privileged!(no_such_interface).together(),
        privileged!(the_two_ends_of_one_pair).together(),
        privileged!(what_a_user_may_not_expect).together(),
        privileged!(hooks_that_a_wire_passes_by).together(),
        privileged!(limits_that_make_no_sense).together(),
        privileged!(a_kernel_that_lacks_something).together(),
        privileged!(no_wire_to_ask).together(),
    ])
}

fn weir(arguments: &[&str]) -> Result<Finished> {
    run(Command::new(weir_binary()?).args(arguments), LIMIT)
}

/// Requires that the status is one of `codes` and the message is short, names `word` and is no panic.
fn require_refusal(done: &Finished, codes: &[i32], word: &str) -> Result<()> {
    let code = done.status.code();
    ensure!(code.is_some_and(|code| codes.contains(&code)), "`{}` ended with {}", done.what, done.status);
    ensure!(done.stdout.is_empty(), "`{}` printed to standard output: {}", done.what, done.stdout);
    let text = done.stderr.trim();
    ensure!(text.contains(word), "`{}` does not mention `{word}`: {text}", done.what);
    ensure!(
        !text.contains("panicked") && !text.contains("RUST_BACKTRACE"),
        "`{}` panicked: {text}",
        done.what
    );
    // A wrong command line may add how to call it; a failure is one sentence.
    let lines = if code == Some(2) { 8 } else { 1 };
    ensure!(text.lines().count() <= lines, "`{}` says too much: {text}", done.what);
    Ok(())
}

fn wrong_command_lines() -> Result<()> {
    let table: &[(&[&str], &str)] = &[
        (&["frobnicate"], "frobnicate"),
        (&["wire"], "required"),
        (&["limit"], "DEV), or a process whose container it is (--pid PID)"),
        (&["limit", "--rate", "1mbit"], "(--pid PID)"),
        (&["wire", "a"], "required"),
        (&["wire", "a", "b", "--rate"], "--rate"),
        (&["wire", "a", "b", "--rate", "0"], "0"),
        (&["wire", "a", "b", "--rate", "0mbit"], "0mbit"),
        (&["wire", "a", "b", "--rate", "-5mbit"], "-5"),
        (&["wire", "a", "b", "--rate", "fast"], "fast"),
        (&["wire", "a", "b", "--rate", "200mbits!"], "200mbits!"),
        (&["wire", "a", "b", "--rate", "99999999999999999999gbit"], "99999999999999999999gbit"),
        (&["wire", "a", "b", "--rate", "200mbit", "--burst", "big"], "big"),
        (&["wire", "a", "b", "--rate", "200mbit", "--queue", "5"], "5"),
        (&["wire", "a", "b", "--rate", "200mbit", "--queue", "soon"], "soon"),
        (&["wire", "a", "b", "--burst", "-3k", "--rate", "1mbit"], "-3k"),
        (&["wire", "a", "b", "--queue", "5ms"], "--rate"),
        (&["wire", "a", "b", "--rate", "9mbit", "--queue", "5ms", "--classes", "none.toml"], "--queue"),
        (&["run", "--rate", "9mbit", "--queue", "5ms", "--classes", "none.toml", "--", "true"], "--queue"),
        (&["wire", "a", "b", "--rate", "1mbit", "--name", ""], "--name"),
        (&["wire", "a", "b", "--rate", "200mbit", "--colour", "red"], "--colour"),
        (&["wire", "a", "b", "--workers", "0"], "--workers 0"),
        (&["wire", "a", "b", "--workers", "3"], "--workers 3"),
        (&["wire", "a", "b", "--core", "100000"], "--core 100000"),
        (&["wire", "a", "b", "--core", "0,1"], "--core 0,1: name 1, a different core for each worker"),
        (&["up", "office.toml", "--wait", "--workers", "2"], "'--wait <SECONDS>'"),
        (&["up", "office.toml", "--wait", "-5"], "-5"),
        (&["limit", "--pid", "--device", "eth0", "--rate", "1mbit"], "'--pid <PID>'"),
        (&["gen", "--through", "testbed", "--src", "198.19.0.1"], "--src is not for --through testbed"),
        (&["gen", "--through", "testbed", "--dst", "198.19.0.1"], "--dst is not for --through testbed"),
        (&["gen", "--through", "testbed", "--src-mac", "02:00:00:00:00:02"], "--src-mac is not for"),
        (&["gen", "--through", "testbed", "--dst-mac", "02:00:00:00:00:02"], "--dst-mac is not for"),
        (&["set", "w"], "--rate"),
        (&["set", "w", "--rate", "nothing"], "nothing"),
        (&["run", "--rate", "200mbit"], "required"),
        (&["run", "--", "true"], "--rate"),
        (&["run", "--rate", "9mbit", "--", ""], "CMD is empty: write a program behind --"),
        (&["stat", "--tea"], "--tea"),
        (&["lab", "no-such-lab"], "no-such-lab"),
    ];
    for (arguments, word) in table {
        require_refusal(&weir(arguments)?, &[2], word)?;
    }
    Ok(())
}

fn more_workers_than_cores() -> Result<()> {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(weir_binary()?).args(["wire", "a", "b", "--workers", "2"]);
    require_refusal(&run(&mut command, LIMIT)?, &[2], "--workers 2")
}

fn help_is_read_where_the_width_of_the_terminal_is_0() -> Result<()> {
    for arguments in [&["--help"][..], &["limit", "--help"]] {
        let help =
            run(Command::new(weir_binary()?).env("COLUMNS", "0").args(arguments), LIMIT)?.success()?.stdout;
        let is_line = |line: &str| (60..=80).contains(&line.chars().count());
        ensure!(help.lines().filter(|line| is_line(line)).count() > 5, "{arguments:?}: {help}");
    }
    Ok(())
}

fn help_names_every_command() -> Result<()> {
    let done = weir(&["--help"])?.success()?;
    for command in
        ["run", "wire", "limit", "set", "check", "up", "apply", "down", "show", "sa", "stat", "doctor", "lab"]
    {
        let listed = done.stdout.lines().any(|line| line.split_whitespace().next() == Some(command));
        ensure!(listed, "`weir --help` does not list {command}");
        weir(&[command, "--help"])?.success()?;
    }
    ensure!(
        weir(&["--version"])?.success()?.stdout.starts_with("weir "),
        "`weir --version` does not say weir"
    );
    Ok(())
}

/// A full disk is said for any output of a command; a pipe that nobody reads any more is no failure.
fn a_full_disk_is_one_sentence() -> Result<()> {
    let commands: [&[&str]; 4] =
        [&["--help"], &["gen", "--count", "100"], &["gen", "--count", "100", "--json"], &["doctor"]];
    for arguments in commands {
        let line = format!("{} {} > /dev/full", weir_binary()?.display(), arguments.join(" "));
        let done = run(Command::new("sh").args(["-c", &line]), LIMIT)?;
        require_refusal(&done, &[1], "writing to standard output: No space left")?;
    }
    let line = format!("{} gen --count 100 | true; exit ${{PIPESTATUS[0]}}", weir_binary()?.display());
    let done = run(Command::new("bash").args(["-c", &line]), LIMIT)?.success()?;
    ensure!(done.stderr.is_empty(), "a closed pipe is complained of: {}", done.stderr);
    Ok(())
}

fn what_cannot_be_done_without_root() -> Result<()> {
    require_refusal(&nobody::weir(&["wire", "lo", "other", "--rate", "200mbit"], LIMIT)?, &[1, 2], "root")
}

fn no_such_interface() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = traces(&rig.middle)?;
    for ends in [["wa", "nowhere"], ["nowhere", "wb"]] {
        let done = run(&mut rig.weir(&["wire", ends[0], ends[1], "--rate", "200mbit"]), LIMIT)?;
        require_refusal(&done, &[1, 2], "nowhere")?;
        require_same(&before, &traces(&rig.middle)?)?;
    }
    let done = run(&mut rig.weir(&["wire", "wa", "wa", "--rate", "200mbit"]), LIMIT)?;
    require_refusal(&done, &[1, 2], "wa")?;
    require_same(&before, &traces(&rig.middle)?)
}

/// Packets between the two ends of one pair would go round for ever.
fn the_two_ends_of_one_pair() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    rig.middle.ip("link add name one0 type veth peer name one1")?;
    for end in ["one0", "one1"] {
        rig.middle.ip(&format!("link set {end} up"))?;
    }
    let before = traces(&rig.middle)?;
    let done = run(&mut rig.weir(&["wire", "one0", "one1", "--rate", "200mbit"]), LIMIT)?;
    require_refusal(&done, &[1], "one pair")?;
    require_same(&before, &traces(&rig.middle)?)
}

/// One queue, and an address that nobody reaches any more: both are said, and neither stops the wire.
fn what_a_user_may_not_expect() -> Result<()> {
    let rig = Rig::new(1, MANY_QUEUES)?;
    rig.middle.ip("address add 10.97.0.1/24 dev wb")?;
    let said = rig.wire(&["--rate", "200mbit"])?.stop()?.stderr;
    for sentence in ["wa has one queue", "wb has the address 10.97.0.1"] {
        ensure!(said.contains(sentence), "nothing is said of \"{sentence}\": {said}");
    }
    ensure!(!said.contains("wb has one queue"), "wb has {MANY_QUEUES} queues: {said}");
    Ok(())
}

/// Each end with hooks is told in one sentence, and none where there is none.
fn hooks_that_a_wire_passes_by() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, MANY_QUEUES)?;
    let said = rig.wire(&[])?.stop()?.stderr;
    ensure!(!said.contains("unseen"), "it warns of hooks where there are none: {said}");
    rig.middle.sh("nft add table netdev guard")?;
    rig.middle
        .sh("nft add chain netdev guard incoming { type filter hook ingress device wa priority 0 ; }")?;
    let _tcx = Tcx::on_ingress(rig.a())?;
    let said = rig.wire(&[])?.stop()?.stderr;
    let told: Vec<&str> = said.lines().filter(|line| line.contains("unseen")).collect();
    ensure!(told.len() == 1, "{said}");
    for word in ["wa has tcx program ", " on ingress", "the nftables chain netdev guard incoming"] {
        ensure!(told[0].contains(word), "{word}: {}", told[0]);
    }
    Ok(())
}

fn limits_that_make_no_sense() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = traces(&rig.middle)?;
    // A burst that a full frame never fits into would hold it for ever.
    let done = run(&mut rig.weir(&["wire", "wa", "wb", "--rate", "200mbit", "--burst", "1000"]), LIMIT)?;
    require_refusal(&done, &[1, 2], "burst")?;
    require_same(&before, &traces(&rig.middle)?)
}

/// Each feature in turn is missing: BPF as a whole, links (XDP by link, tcx), AF_XDP.
fn a_kernel_that_lacks_something() -> Result<()> {
    /// `BPF_LINK_CREATE` of `include/uapi/linux/bpf.h`.
    const BPF_LINK_CREATE: u32 = 28;
    let rig = Rig::new(1, 1)?;
    let before = traces(&rig.middle)?;
    for (call, first, error, word) in [
        (libc::SYS_bpf, None, libc::ENOSYS, "BPF"),
        (libc::SYS_bpf, Some(BPF_LINK_CREATE), libc::EINVAL, "attaching"),
        (libc::SYS_socket, Some(libc::AF_XDP as u32), libc::EAFNOSUPPORT, "AF_XDP"),
    ] {
        let mut command = rig.weir(&["wire", "wa", "wb", "--rate", "200mbit"]);
        let done = run(Lacking { call, first, error }.apply(&mut command), LIMIT)?;
        require_refusal(&done, &[1], word)?;
        require_refusal(&done, &[1], "`weir doctor`")?;
        require_same(&before, &traces(&rig.middle)?)?;
    }
    Ok(())
}

/// In a namespace of its own nothing of another wire is seen under that name.
fn no_wire_to_ask() -> Result<()> {
    let empty = Namespace::new("empty")?;
    let mut command = empty.command(weir_binary()?);
    let done = run(command.args(["set", "no-such-wire", "--rate", "1mbit"]), LIMIT)?;
    require_refusal(&done, &[1, 2], "no-such-wire")?;
    // Longer than the path of a socket may be.
    let done = run(empty.command(weir_binary()?).arg("down").arg("z".repeat(100)), LIMIT)?;
    require_refusal(&done, &[1, 2], "there is no wire, topology, stack or limit called zzz")
}
