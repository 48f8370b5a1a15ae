//! A program that has a stack of `weir-socket` in its own process, in `weir stat`: its process, and that its socket is throttled, while
//! nothing is lost; nobody else changes it; and it is gone when the program has ended, also by `kill -9`.
//!
//! The program is this one, started again with [`PROGRAM`] in its environment.

use std::net::UdpSocket as KernelSocket;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_core::rate::Rate;
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_socket::{Stack, TcpListener, UdpSocket};
use weir_tests::pair::{Pair, json_of};
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(20);
/// The variable that is set where this is the program with the stack: the stack's name, or nothing, where it is named after its interface.
const PROGRAM: &str = "WEIR_TEST_STACK";
/// The variable with the number of its workers.
const WORKERS: &str = "WEIR_TEST_WORKERS";
const KERNEL: &str = "10.99.0.1:4000";
const STACK: &str = "10.99.0.2:7";
/// The second socket of the stack, which sends by the second worker, if there are two.
const SECOND: &str = "10.99.0.2:8";

fn main() -> ExitCode {
    if let Some(name) = std::env::var_os(PROGRAM) {
        return match program(&name.to_string_lossy()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    harness::main(&[
        privileged!(a_throttled_socket_is_seen_and_gone_with_its_program).together(),
        privileged!(two_stacks_have_two_names).together(),
        privileged!(a_limit_of_two_workers_is_told_and_gone_with_its_program).on_two_processors().together(),
    ])
}

/// Sends as fast as 1 Mbit/s lets it, by each worker, until somebody says that it is over.
fn program(name: &str) -> Result<()> {
    let rate = Rate::from_bits_per_s(1_000_000).context("not 0")?;
    let workers = std::env::var(WORKERS)?.parse()?;
    let builder = Stack::builder().address("10.99.0.2/24").rate(rate).workers(workers);
    let mut builder = builder.guardian(weir_binary()?);
    if !name.is_empty() {
        builder = builder.name(name);
    }
    let stack = builder.open("veth1")?;
    let socket = UdpSocket::bind(&stack, STACK)?;
    let _listener = TcpListener::bind(&stack, STACK)?;
    socket.connect(KERNEL)?;
    let second = (workers > 1).then(|| UdpSocket::bind(&stack, SECOND)).transpose()?;
    second.iter().try_for_each(|second| second.connect(KERNEL))?;
    println!("ready");
    thread::scope(|scope| {
        // The threads end with the stack.
        for socket in [Some(&socket), second.as_ref()].into_iter().flatten() {
            scope.spawn(|| while socket.send(&[0; 1000]).is_ok() {});
        }
        let come = socket.recv(&mut [0; 8]);
        stack.stop()?;
        come.map(drop).context("a word to end")
    })
}

/// That program at the right end of a pair, when it is ready.
fn start(pair: &Pair, name: &str) -> Result<Process> {
    start_with(pair, name, 1)
}

/// The program of [`start`], whose stack has so many workers.
fn start_with(pair: &Pair, name: &str, workers: usize) -> Result<Process> {
    let mut command = pair.right.command(std::env::current_exe()?);
    command.env(PROGRAM, name).env(WORKERS, workers.to_string()).env("WEIR_BIN", weir_binary()?);
    let mut process = Process::spawn(&mut command)?;
    process.wait_for_output("ready", PATIENCE).with_context(|| process.stderr())?;
    Ok(process)
}

/// A pair whose left end is the kernel's, and its socket there.
fn hosts() -> Result<(Pair, KernelSocket)> {
    let pair = Pair::new(1)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    let socket = pair.left.enter(|| KernelSocket::bind(KERNEL))??;
    socket.connect(STACK)?;
    Ok((pair, socket))
}

fn weir(arguments: &[&str]) -> Result<Finished> {
    run(Command::new(weir_binary()?).args(arguments), PATIENCE)
}

/// The counters of the stack that this process has, whatever other stacks are up.
fn stack_of(process: &Process) -> Result<Value> {
    let all = json_of(&weir(&["stat", "--json"])?.stdout)?;
    let stacks = all["topologies"].as_array().into_iter().flatten();
    let own = stacks.into_iter().find(|stack| stack["process"]["pid"] == process.id());
    own.cloned().with_context(|| format!("no stack of process {}: {all}", process.id()))
}

fn a_throttled_socket_is_seen_and_gone_with_its_program() -> Result<()> {
    let (pair, kernel) = hosts()?;
    let process = start(&pair, "")?;
    let name = stack_of(&process)?["name"].as_str().context("a name")?.to_string();
    ensure!(name == "veth1" || name.starts_with("veth1."), "{name}");
    let path = format!("/run/weir/{name}.sock");
    let socket = || -> Result<Value> { Ok(stack_of(&process)?["sockets"][0].clone()) };
    let throttled_ns = |socket: &Value| socket["throttled_ns"].as_u64().context("throttled_ns");
    let mut before = Value::Null;
    wait_until("it is throttled", PATIENCE, || {
        before = socket()?;
        Ok(before["is_throttled"] == true && before["sent"].as_u64() > Some(100))
    })?;
    let mut after = Value::Null;
    wait_until("it goes on sending, and is throttled for longer", PATIENCE, || {
        after = socket()?;
        let is_longer = throttled_ns(&after)? > throttled_ns(&before)? + 100_000_000;
        Ok(is_longer && after["sent"].as_u64() > before["sent"].as_u64())
    })?;
    for (field, value) in [
        ("protocol", "udp"),
        ("local", STACK),
        ("peer", KERNEL),
        ("waits_for", "->veth1"),
        ("name", "udp 10.99.0.2:7"),
    ] {
        // The holder that it waits for is told while it waits.
        ensure!(after[field] == value || field == "waits_for" && after[field].is_null(), "{field}: {after}");
    }
    ensure!(after["dropped"] == serde_json::json!({}) && after["empty_wakes"] == 0, "{after}");
    let stack = stack_of(&process)?;
    let out = &stack["classes"][0];
    ensure!(out["name"] == "->veth1" && out["rate_bits_per_s"] == 1_000_000, "{out}");
    ensure!(out["dropped"] == serde_json::json!({}) && out["delivered"].as_u64() > Some(0), "{out}");
    ensure!(stack["listeners"][0]["local"] == STACK, "{stack}");

    let proven = weir(&["stat", &name, "--check"])?.success()?;
    ensure!(proven.stdout.contains("conservation holds"), "{}", proven.stdout);
    let text = weir(&["stat", &name])?.success()?.stdout;
    let heading = format!("stack {name}: 1 socket, 1 listener of stack_stat");
    ensure!(text.starts_with(&heading) && text.contains(&format!("(process {})", process.id())), "{text}");
    ensure!(text.contains("udp 10.99.0.2:7  10.99.0.1:4000"), "{text}");
    let tables = weir(&["stat", &name, "-Q"])?.success()?.stdout;
    ensure!(tables.contains("ether/->udp") && tables.contains("host/host0"), "{tables}");
    let has =
        |setting: &[&str]| tables.lines().any(|line| line.split_whitespace().eq(setting.iter().copied()));
    ensure!(has(&["Workers", "bound", "to", "CPUs", "disabled", "n/a"]), "it may be anywhere: {tables}");
    for (refused, told) in [
        (weir(&["down", &name])?, "end that by `kill"),
        (weir(&["set", &name, "--rate", "5mbit"])?, "which alone sets its limit"),
        (weir(&["show", &name])?, "no file"),
    ] {
        let is_told = refused.stderr.contains(told) && refused.stderr.contains(&process.id().to_string());
        ensure!(refused.status.code() == Some(1) && is_told, "`{}`: {}", refused.what, refused.stderr);
    }

    kernel.send(b"over")?;
    process.wait(PATIENCE)?.success()?;
    ensure!(!Path::new(&path).exists(), "{path} is left");

    let process = start(&pair, "")?;
    let name = stack_of(&process)?["name"].as_str().context("a name")?.to_string();
    require_gone_when_killed(&pair, process, &name)
}

/// Kills the program, and requires that its stack of this name is gone and its interface the kernel's.
fn require_gone_when_killed(pair: &Pair, mut process: Process, name: &str) -> Result<()> {
    process.signal(Signal::KILL)?;
    process.wait(PATIENCE)?;
    let path = format!("/run/weir/{name}.sock");
    wait_until("the guardian has removed the socket", PATIENCE, || Ok(!Path::new(&path).exists()))?;
    pair.right.ip("address add 10.99.0.2/24 dev veth1")?;
    wait_until("the interface is the kernel's", PATIENCE, || pair.is_answered())
}

/// The stacks of two programs whose interfaces have one name have a name each; a name that is given is had once.
fn two_stacks_have_two_names() -> Result<()> {
    let beds = [hosts()?, hosts()?];
    let [one, two] = [start(&beds[0].0, "")?, start(&beds[1].0, "")?];
    let names = [stack_of(&one)?["name"].clone(), stack_of(&two)?["name"].clone()];
    ensure!(names[0] != names[1] && names.iter().all(Value::is_string), "{names:?}");
    let third = hosts()?;
    let mut command = third.0.right.command(std::env::current_exe()?);
    let taken = names[0].as_str().context("a name")?;
    let command = command.env(PROGRAM, taken).env(WORKERS, "1").env("WEIR_BIN", weir_binary()?);
    let refused = run(command, PATIENCE)?;
    let is_told = refused.stderr.contains("is up already") && refused.stderr.contains("StackBuilder::name");
    ensure!(refused.status.code() == Some(1) && is_told, "{}", refused.stderr);
    for (_, kernel) in &beds {
        kernel.send(b"over")?;
    }
    one.wait(PATIENCE)?.success()?;
    two.wait(PATIENCE)?.success().map(drop)
}

/// The sockets of both workers wait for the one direction that has the limit; the books are exact at every look, packets between the workers
/// included.
fn a_limit_of_two_workers_is_told_and_gone_with_its_program() -> Result<()> {
    let pair = Pair::new(2)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    // It hears both, and refuses neither.
    let _kernel = pair.left.enter(|| KernelSocket::bind(KERNEL))??;
    let process = start_with(&pair, "", 2)?;
    let name = stack_of(&process)?["name"].as_str().context("a name")?.to_string();
    let mut stack = Value::Null;
    wait_until("the sockets of both workers were held and have sent", PATIENCE, || {
        let proven = weir(&["stat", &name, "--check"])?.success()?;
        ensure!(proven.stdout.contains("conservation holds"), "{}", proven.stdout);
        stack = stack_of(&process)?;
        let sockets = stack["sockets"].as_array().context("sockets")?;
        let was_held =
            |socket: &Value| socket["throttled"].as_u64() > Some(0) && socket["sent"].as_u64() > Some(20);
        Ok(sockets.len() == 2 && sockets.iter().all(was_held))
    })?;
    let directions: Vec<_> = stack["classes"].as_array().into_iter().flatten().collect();
    let limited: Vec<_> =
        directions.iter().filter(|direction| !direction["rate_bits_per_s"].is_null()).collect();
    ensure!(limited.len() == 1 && limited[0]["name"] == "->veth1/0", "{stack}");
    let leaves = |direction: &&&Value| direction["name"].as_str().is_some_and(|name| name.contains("veth1"));
    ensure!(directions.iter().filter(leaves).count() == 1, "nothing leaves by the second worker: {stack}");
    for place in stack["sockets"].as_array().into_iter().flatten().chain(limited.into_iter().copied()) {
        let holder = &place["waits_for"];
        ensure!(holder.is_null() || holder == "->veth1/0", "{place}");
        ensure!(place["dropped"] == serde_json::json!({}), "{place}");
    }
    ensure!(stack["ports"] == serde_json::json!(["veth1/0", "veth1/1"]), "{stack}");
    let tables = weir(&["stat", &name, "-Q"])?.success()?.stdout;
    ensure!(tables.contains("handoff"), "{tables}");

    require_gone_when_killed(&pair, process, &name)
}
