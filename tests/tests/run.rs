//! `weir run`: any program behind a limit, as if it had been started by itself.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_tests::kernel::belongings;
use weir_tests::{harness, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(the_status_is_the_programs),
        privileged!(a_program_that_dies_of_a_signal),
        privileged!(a_program_that_is_not_there),
        privileged!(signals_are_passed_on),
        privileged!(output_and_summary_do_not_mix),
        privileged!(the_program_has_a_network),
        privileged!(nothing_is_left_behind),
    ])
}

fn weir_run(script: &str) -> Result<Command> {
    let mut command = Command::new(weir_binary()?);
    command.args(["run", "--rate", "200mbit", "--", "sh", "-c", script]);
    Ok(command)
}

fn finished(script: &str) -> Result<Finished> {
    run(&mut weir_run(script)?, LIMIT)
}

fn require_code(done: &Finished, code: i32) -> Result<()> {
    ensure!(done.status.code() == Some(code), "`{}` ended with {}: {}", done.what, done.status, done.stderr);
    Ok(())
}

fn the_status_is_the_programs() -> Result<()> {
    for code in [0, 1, 2, 7, 255] {
        require_code(&finished(&format!("exit {code}"))?, code)?;
    }
    Ok(())
}

/// As a shell tells it: 128 and the number of the signal.
fn a_program_that_dies_of_a_signal() -> Result<()> {
    require_code(&finished("kill -TERM $$")?, 128 + 15)?;
    require_code(&finished("kill -KILL $$")?, 128 + 9)
}

/// As a shell tells it.
fn a_program_that_is_not_there() -> Result<()> {
    let mut command = Command::new(weir_binary()?);
    let done = run(command.args(["run", "--rate", "200mbit", "--", "/no/such/program"]), LIMIT)?;
    require_code(&done, 127)?;
    ensure!(done.stderr.contains("/no/such/program"), "it does not name the program: {}", done.stderr);
    Ok(())
}

fn signals_are_passed_on() -> Result<()> {
    for (signal, name, code) in
        [(Signal::TERM, "TERM", 41), (Signal::INT, "INT", 42), (Signal::HUP, "HUP", 43)]
    {
        let script = format!("trap 'exit {code}' {name}; echo armed; while :; do sleep 0.05; done");
        let mut process = Process::spawn(&mut weir_run(&script)?)?;
        process.wait_for_output("armed", LIMIT)?;
        process.signal(signal)?;
        require_code(&process.wait(LIMIT)?, code)?;
    }
    Ok(())
}

fn output_and_summary_do_not_mix() -> Result<()> {
    let done = finished("echo to-output; echo to-error >&2")?.success()?;
    ensure!(done.stdout == "to-output\n", "standard output is {:?}", done.stdout);
    let mut lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(lines.contains(&"to-error"), "the program's standard error is not passed on: {}", done.stderr);
    lines.retain(|line| *line != "to-error");
    ensure!(lines.len() == 1, "the summary is not one line: {lines:?}");
    for word in ["packets", "blocked"] {
        ensure!(lines[0].contains(word), "the summary says nothing of {word}: {}", lines[0]);
    }
    Ok(())
}

fn the_program_has_a_network() -> Result<()> {
    let done =
        finished("ip -o addr show scope global; ip -o -4 route show default; ip -o -6 route show default")?
            .success()?;
    let words: Vec<&str> = done.stdout.split_whitespace().collect();
    ensure!(words.contains(&"inet"), "no IPv4 address: {}", done.stdout);
    ensure!(words.contains(&"inet6"), "no IPv6 address: {}", done.stdout);
    let routes = done.stdout.lines().filter(|line| line.starts_with("default")).count();
    ensure!(routes >= 2, "no default route for both: {}", done.stdout);
    let gateway = words.windows(2).find(|pair| pair[0] == "via").context("no gateway")?[1];
    let pinged = finished(&format!("ping -n -c 3 -i 0.05 -W 2 {gateway}"))?;
    ensure!(pinged.status.success(), "the gateway does not answer: {}", pinged.stdout);
    Ok(())
}

/// Neither after an ordinary end nor after the runner was killed.
fn nothing_is_left_behind() -> Result<()> {
    let (before, links_before) = (belongings()?, links()?);
    finished("true")?.success()?;
    let mut process = Process::spawn(&mut weir_run("echo started; while :; do sleep 0.05; done")?)?;
    process.wait_for_output("started", LIMIT)?;
    process.signal(Signal::KILL)?;
    process.wait(LIMIT)?;
    let mut left = Vec::new();
    let clean = wait_until("nothing is left behind", Duration::from_secs(3), || {
        left = belongings()?.new_since(&before);
        left.extend(links()?.into_iter().filter(|link| !links_before.contains(link)));
        Ok(left.is_empty())
    });
    clean.with_context(|| format!("left behind: {}", left.join(", ")))
}

/// Names of the interfaces outside.
fn links() -> Result<Vec<String>> {
    let done = run(Command::new("ip").args(["-o", "link", "show"]), LIMIT)?.success()?;
    Ok(done.stdout.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_string).collect())
}
