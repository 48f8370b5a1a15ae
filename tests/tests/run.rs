//! `weir run`: any program behind a limit, as if it had been started by itself. On a host of our own, never on the machine's.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::{self, wait_until};
use weir_lab::iperf::{
    Deliveries, HEADERS_V4_BYTES, PAYLOAD_BYTES, jain, parse_csv, received_datagrams, serve,
};
use weir_lab::process::{Finished, Process, Signal, run};
use weir_tests::classes::File;
use weir_tests::host::{Host, INTERNET_V4, INTERNET_V6, summary_number};
use weir_tests::terminal::Terminal;
use weir_tests::{guardian, harness, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(30);
/// After a kill the kernel closes some eighty sockets, one after the other, before anybody is told.
const CLEAN_LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(the_status_is_the_programs).together(),
        privileged!(a_program_that_dies_of_a_signal).together(),
        privileged!(a_program_that_cannot_be_run_changes_nothing).together(),
        privileged!(a_program_that_is_found_and_cannot_be_started).together(),
        privileged!(signals_are_passed_on).together(),
        privileged!(ctrl_c_reaches_the_program_once).together(),
        privileged!(a_shell_has_the_terminal_to_itself).together(),
        privileged!(in_the_background_it_waits_for_the_terminal).together(),
        privileged!(output_and_summary_do_not_mix).together(),
        privileged!(the_program_has_a_network).together(),
        privileged!(a_host_with_no_way_out_is_left_as_it_is).together(),
        privileged!(the_internet_is_reached_by_masquerading).together(),
        privileged!(two_at_once_share_the_way_out).together(),
        privileged!(a_flood_loses_nothing),
        privileged!(both_ways_are_limited),
        privileged!(nothing_is_left_behind).together(),
    ])
}

fn require_code(done: &Finished, code: i32) -> Result<()> {
    ensure!(done.status.code() == Some(code), "`{}` ended with {}: {}", done.what, done.status, done.stderr);
    Ok(())
}

/// Starts a script that says `started` and waits for that.
fn started(host: &Host, script: &str) -> Result<Process> {
    let mut process = Process::spawn(&mut host.weir_run(&[], &format!("echo started; {script}")))?;
    process.wait_for_output("started", LIMIT)?;
    Ok(process)
}

fn the_status_is_the_programs() -> Result<()> {
    let host = Host::alone()?;
    for code in [0, 1, 2, 7, 255] {
        require_code(&host.finished(&format!("exit {code}"))?, code)?;
    }
    // Whoever starts Weir may have left the kernel to throw the status of children away.
    let mut ignoring = host.namespace.command("env");
    ignoring.arg("--ignore-signal=CHLD").arg(weir_binary()?).args(["run", "--rate", "1mbit", "--"]);
    require_code(&run(ignoring.args(["sh", "-c", "exit 7"]), LIMIT)?, 7)
}

/// The status is as a shell tells it: 128 and the number of the signal.
fn a_program_that_dies_of_a_signal() -> Result<()> {
    let host = Host::alone()?;
    require_code(&host.finished("kill -TERM $$")?, 128 + 15)?;
    require_code(&host.finished("kill -KILL $$")?, 128 + 9)
}

/// The status is as a shell tells it, and comes before anything is made for the program.
fn a_program_that_cannot_be_run_changes_nothing() -> Result<()> {
    let host = Host::alone()?;
    let before = host.state()?;
    for (program, code) in
        [("/no/such/program", 127), ("no-such-program", 127), ("/etc/passwd", 126), ("/", 126)]
    {
        let done = run(&mut host.weir(&["run", "--rate", "200mbit", "--", program]), LIMIT)?;
        require_code(&done, code)?;
        ensure!(done.stderr.contains(program), "it does not name the program: {}", done.stderr);
        ensure!(done.stderr.lines().count() == 1, "it says too much: {}", done.stderr);
        require_state(&host, &before)?;
    }
    Ok(())
}

/// Its file is there, so the words are others; the status is a shell's again.
fn a_program_that_is_found_and_cannot_be_started() -> Result<()> {
    let host = Host::alone()?;
    let before = host.state()?;
    for (first_line, user, words, code) in [
        ("#!/no/such/interpreter", "0", "the interpreter or loader that it names is not there", 127),
        ("#!/bin/sh", "65534", "mounted noexec: give the right to it (chmod), or copy it to", 126),
    ] {
        let script = File::new(&format!("{first_line}\n"))?;
        std::fs::set_permissions(script.path(), std::fs::Permissions::from_mode(0o700))?;
        let mut command = host.weir(&["run", "--rate", "200mbit", "--", script.path()]);
        let done = run(command.env("SUDO_UID", user).env("SUDO_GID", user), LIMIT)?;
        require_code(&done, code)?;
        ensure!(done.stderr.contains(words), "it says {}", done.stderr);
        require_state(&host, &before)?;
    }
    Ok(())
}

fn signals_are_passed_on() -> Result<()> {
    let host = Host::alone()?;
    let signals = [
        (Signal::TERM, "TERM", 41),
        (Signal::INT, "INT", 42),
        (Signal::HUP, "HUP", 43),
        (Signal::QUIT, "QUIT", 44),
        (Signal::USR1, "USR1", 45),
        (Signal::USR2, "USR2", 46),
    ];
    for (signal, name, code) in signals {
        let script = format!("trap 'exit {code}' {name}; echo armed; while :; do sleep 0.05; done");
        let mut process = started(&host, &script)?;
        process.wait_for_output("armed", LIMIT)?;
        process.signal(signal)?;
        require_code(&process.wait(LIMIT)?, code)?;
    }
    Ok(())
}

/// The terminal sends Ctrl-C to the whole process group, so passing it on as well would be once too often.
fn ctrl_c_reaches_the_program_once() -> Result<()> {
    let host = Host::alone()?;
    let script = "trap 'n=$((n+1)); echo interrupted' INT; n=0; echo armed; \
                  read line; while [ \"$line\" != end ]; do read line; done; echo interrupts: $n; exit 9";
    let mut terminal = Terminal::start(&mut host.weir_run(&[], script))?;
    terminal.wait_for("armed", LIMIT)?;
    terminal.keys("\u{3}")?;
    terminal.wait_for("interrupted", LIMIT)?;
    // A second one would have been sent before this, and is delivered before this is read.
    terminal.keys("end\n")?;
    terminal.wait_for("interrupts: 1", LIMIT)?;
    let (status, shown) = terminal.finish(LIMIT)?;
    ensure!(status.code() == Some(9), "it ended with {status}: {shown}");
    ensure!(shown.contains("weir: 200mbit: "), "no summary: {shown:?}");
    Ok(())
}

/// Job control: a job of its own is stopped by Ctrl-Z, and the shell goes on.
fn a_shell_has_the_terminal_to_itself() -> Result<()> {
    let host = Host::alone()?;
    let mut command = host.weir(&["run", "--rate", "200mbit", "--", "bash", "--norc", "-i"]);
    let mut terminal = Terminal::start(command.env("PS1", "prompt> "))?;
    terminal.wait_for("prompt> ", LIMIT)?;
    // The words that are waited for are not those that are typed.
    terminal.keys("sh -c 'echo run''ning; exec sleep 1000'\n")?;
    terminal.wait_for("running", LIMIT)?;
    terminal.keys("\u{1a}")?;
    terminal.wait_for("Stopped", LIMIT)?;
    terminal.keys("kill -KILL %1; disown %1; echo still he''re; exit 5\n")?;
    terminal.wait_for("still here", LIMIT)?;
    let (status, shown) = terminal.finish(LIMIT)?;
    ensure!(status.code() == Some(5), "it ended with {status}: {shown}");
    Ok(())
}

/// It stands while its shell has the terminal, and goes on once it is brought to the foreground: by either signal.
fn in_the_background_it_waits_for_the_terminal() -> Result<()> {
    let host = Host::alone()?;
    let weir = weir_binary()?.display().to_string();
    let mut command = host.namespace.command("bash");
    let mut terminal = Terminal::start(command.args(["--norc", "-i"]).env("PS1", "prompt> "))?;
    terminal.wait_for("prompt> ", LIMIT)?;
    for (options, script, typed, shown) in [
        ("", r#"read line; echo lin""es: $line"#, "a word\n", "lines: a word"),
        ("--queue 5ms", r#"stty tostop; echo set""tled; read line"#, "\n", "settled"),
    ] {
        terminal.keys(&format!("{weir} run --rate 200mbit {options} -- sh -c '{script}' &\n"))?;
        terminal.wait_for("wants the terminal and stands", LIMIT)?;
        // The guardian kills a process that it finds stopped twice, at a quarter of a second each.
        clock::let_pass(Duration::from_secs(1), |_| ())?;
        terminal.keys("fg\n")?;
        terminal.wait_for("run --rate", LIMIT)?;
        terminal.keys(typed)?;
        terminal.wait_for(shown, LIMIT)?;
        terminal.wait_for("weir: 200mbit: ", LIMIT)?;
        terminal.wait_for("prompt> ", LIMIT)?;
    }
    Ok(())
}

fn output_and_summary_do_not_mix() -> Result<()> {
    let done = Host::alone()?.finished("echo to-output; echo to-error >&2")?.success()?;
    ensure!(done.stdout == "to-output\n", "standard output is {:?}", done.stdout);
    let mut lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(lines.contains(&"to-error"), "the program's standard error is not passed on: {}", done.stderr);
    lines.retain(|line| *line != "to-error");
    ensure!(lines.len() == 1, "the summary is not one line: {lines:?}");
    for word in ["200mbit", "packet", "blocked", "dropped none"] {
        ensure!(lines[0].contains(word), "the summary says nothing of {word}: {}", lines[0]);
    }
    Ok(())
}

fn the_program_has_a_network() -> Result<()> {
    let host = Host::alone()?;
    let script = "ip -o addr show dev eth0 scope global; \
                  ip -4 route show default; ip -6 route show default; ip neigh show dev eth0; \
                  for gateway in $(ip route show default; ip -6 route show default); do \
                      case $gateway in *.*|*:*) ping -n -c 3 -i 0.05 -W 2 $gateway;; esac; \
                  done; ping -n -c 1 127.0.0.1; ping -n -c 1 ::1";
    let done = host.finished(script)?.success()?;
    let words: Vec<&str> = done.stdout.split_whitespace().collect();
    ensure!(words.contains(&"inet"), "no IPv4 address: {}", done.stdout);
    ensure!(words.contains(&"inet6"), "no IPv6 address: {}", done.stdout);
    let routes = done.stdout.lines().filter(|line| line.starts_with("default via")).count();
    ensure!(routes == 2, "no default route for both: {}", done.stdout);
    ensure!(done.stdout.matches("PERMANENT").count() == 2, "neighbours could be forgotten: {}", done.stdout);
    ensure!(done.stdout.matches(" 0% packet loss").count() == 4, "a ping went unanswered: {}", done.stdout);
    Ok(())
}

fn a_host_with_no_way_out_is_left_as_it_is() -> Result<()> {
    let host = Host::alone()?;
    let before = host.state()?;
    let process = started(&host, "read line")?;
    let tables = host.namespace.sh("nft list ruleset")?;
    ensure!(tables.is_empty(), "masquerading without a way out: {tables}");
    process.stop(LIMIT)?;
    require_state(&host, &before)
}

/// The internet has no route back to the program, and the host forwards nothing before and after.
fn the_internet_is_reached_by_masquerading() -> Result<()> {
    let host = Host::with_internet()?;
    let before = host.state()?;
    let script = format!(
        "ping -n -c 2 -i 0.1 -W 2 {INTERNET_V4} && ping -n -c 2 -i 0.1 -W 2 {INTERNET_V6}; echo ended $?; read line"
    );
    // Standard input is empty, so `read` ends at once: look at the host from within the run instead.
    let done = host.finished(&script)?;
    ensure!(done.stdout.contains("ended 0"), "no answer: {}", done.stdout);
    require_state(&host, &before)
}

/// Each run has addresses of its own. The first to end leaves the way out to the other; the last closes it.
fn two_at_once_share_the_way_out() -> Result<()> {
    let host = Host::with_internet()?;
    let before = host.state()?;
    ensure!(!host.forwards()?, "the host forwards before anything has run: this test sees nothing");
    let script = format!(
        "ip -o -4 addr show dev eth0; trap 'ping -n -c 1 -W 2 {INTERNET_V4}; exit' TERM; echo armed; \
         while :; do sleep 0.05; done"
    );
    let mut first = started(&host, &script)?;
    let mut second = started(&host, &script)?;
    first.wait_for_output("armed", LIMIT)?;
    second.wait_for_output("armed", LIMIT)?;
    let addresses = [Host::address_in(&first.stdout(), "inet")?, Host::address_in(&second.stdout(), "inet")?];
    ensure!(addresses[0] != addresses[1], "both have {}", addresses[0]);
    first.stop(LIMIT)?.success().context("the first run reaches the internet")?;
    ensure!(host.forwards()?, "the first run closed the way out that the second uses");
    second.stop(LIMIT)?.success().context("the second run reaches the internet, the first having ended")?;
    require_state(&host, &before)
}

fn require_state(host: &Host, before: &str) -> Result<()> {
    let after = host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

/// Three clients that would send 1 Gbit/s each, from within one run, to servers on the host.
fn a_flood_loses_nothing() -> Result<()> {
    const CLIENTS: u16 = 3;
    const SECONDS: f64 = 3.0;
    let host = Host::alone()?;
    let start = |port| serve(&host.namespace, port, &["-u", "-P", "1", "-w", "4M"]);
    let servers = ports(CLIENTS).map(start).collect::<Result<Vec<_>>>()?;
    let clients: Vec<_> = ports(CLIENTS)
        .map(|port| format!("iperf -u -c $gateway -b 1G -t {SECONDS} -p {port} >/dev/null & "))
        .collect();
    let gateway = "gateway=$(ip route show default | cut -d ' ' -f 3)";
    let process = started(&host, &format!("{gateway}; {} wait", clients.concat()))?;
    wait_until("datagrams arrive", LIMIT, || Ok(received_datagrams(&host.namespace, false)? > 1000))?;
    let before = Deliveries::to(&host.namespace, false)?;
    clock::let_pass(Duration::from_secs_f64(SECONDS / 2.0), |_| ())?;
    let per_s = Deliveries::to(&host.namespace, false)?.per_s_since(&before);
    let share = per_s * (PAYLOAD_BYTES + HEADERS_V4_BYTES) as f64 * 8.0 / 200e6;
    let done = process.wait(LIMIT)?.success()?;
    let mut rates = Vec::new();
    let mut arrived_bytes = 0;
    for server in servers {
        let flow = parse_csv(&server.wait(LIMIT)?.stdout)?;
        ensure!(flow.lost == 0, "{} of {} datagrams lost", flow.lost, flow.total);
        ensure!(flow.out_of_order == 0, "{} of {} datagrams out of order", flow.out_of_order, flow.total);
        rates.push(flow.bits_per_s);
        arrived_bytes += flow.bytes;
    }
    weir_tests::require_timing!(share >= 0.97, "only {:.1} % of the rate arrived", share * 100.0);
    ensure!(share <= 1.01, "{:.1} % of the rate arrived: the limit does not hold", share * 100.0);
    weir_tests::require_timing!(jain(&rates) >= 0.98, "Jain index {:.4} over {rates:?}", jain(&rates));
    let datagrams_least = arrived_bytes / PAYLOAD_BYTES;
    let sent = summary_number(&done.stderr, "sent ")?;
    ensure!(
        sent >= datagrams_least,
        "the summary has {sent} of {datagrams_least} datagrams: {}",
        done.stderr
    );
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    Ok(())
}

fn ports(clients: u16) -> impl Iterator<Item = u16> {
    5001..5001 + clients
}

/// Packets to the program are limited too, by the same rate or another.
fn both_ways_are_limited() -> Result<()> {
    let host = Host::alone()?;
    for (options, limit) in [(&[][..], 20e6), (&["--rate-back", "8mbit"][..], 8e6)] {
        let mut command = host.weir(&["run", "--rate", "20mbit"]);
        command.args(options).args(["--", "sh", "-c"]);
        command.arg(
            "ip -o -4 addr show dev eth0; iperf -u -s -P 1 -y C -w 4M & \
             until grep -q :1389 /proc/net/udp; do sleep 0.01; done; echo started; wait $!; echo served; \
             while :; do sleep 0.05; done",
        );
        let mut server = Process::spawn(&mut command)?;
        server.wait_for_output("started", LIMIT)?;
        let address = Host::address_in(&server.stdout(), "inet")?;
        let name = format!("run-{}", server.id());
        // Datagrams that come before the server has its port (5001) open would be refused, and iperf's client goes on.
        let mut client = host.namespace.command("iperf");
        client.args(["-u", "-c", &address, "-b", "200M", "-t", "2"]);
        run(&mut client, LIMIT)?;
        server.wait_for_output("served", LIMIT)?;
        run(&mut host.weir(&["stat", &name, "--json", "--check"]), LIMIT)?.success()?;
        let done = server.stop(LIMIT)?;
        let flow = parse_csv(&done.stdout).with_context(|| done.stderr.clone())?;
        let rate = flow.bits_per_s * (PAYLOAD_BYTES + HEADERS_V4_BYTES) as f64 / PAYLOAD_BYTES as f64;
        ensure!(flow.lost == 0, "{} of {} datagrams lost", flow.lost, flow.total);
        ensure!(rate < 1.02 * limit, "{:.2} Mbit/s, more than {:.2}", rate / 1e6, limit / 1e6);
        weir_tests::require_timing!(rate > 0.9 * limit, "{:.2} Mbit/s, not {:.2}", rate / 1e6, limit / 1e6);
    }
    Ok(())
}

/// Neither after an ordinary end nor after the runner was killed, which ends the program too.
fn nothing_is_left_behind() -> Result<()> {
    let host = Host::with_internet()?;
    let state = host.state()?;
    host.finished("true")?.success()?;
    require_state(&host, &state)?;
    let mut process = started(&host, "echo id: $$; while :; do sleep 0.05; done")?;
    ensure!(host.state()? != state, "a run leaves no trace while it lasts: this test sees nothing");
    process.wait_for_output("id: ", LIMIT)?;
    let program = process.stdout().split_whitespace().last().context("no id")?.to_string();
    // Programs and namespaces of other tests come and go meanwhile: look for this run's own things.
    let own = [format!("/proc/{program}")];
    let guardian = format!("/proc/{}", guardian(process.id())?);
    ensure!(
        own.iter().chain([&guardian]).all(|path| Path::new(path).exists()),
        "{own:?} or {guardian} is not there"
    );
    process.signal(Signal::KILL)?;
    process.wait(LIMIT)?;
    let mut left = Vec::new();
    let clean = wait_until("nothing is left behind", CLEAN_LIMIT, || {
        left = own.iter().chain([&guardian]).filter(|path| Path::new(path).exists()).cloned().collect();
        if host.state()? != state {
            left.push("changes to the host".into());
        }
        Ok(left.is_empty())
    });
    clean.with_context(|| format!("left behind: {}", left.join(", ")))
}
