//! The output of `weir stat` about a wire that is carrying traffic, and about none.

use std::net::UdpSocket;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Finished, Process, Signal, run, send_signal};
use weir_lab::wire::Wire;
use weir_tests::host::Host;
use weir_tests::limits::{Between, Row};
use weir_tests::rig::{Rig, stat_of};
use weir_tests::{fill, harness, nobody, plain, privileged, stop_whole, weir_binary};

const LIMIT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        plain!(options_that_do_not_go_together).together(),
        privileged!(no_wire_is_up).together(),
        privileged!(a_wire_that_may_not_be_asked_is_no_proof).together(),
        privileged!(what_is_no_socket_is_no_killed_wire).together(),
        privileged!(one_that_does_not_answer_does_not_hide_the_others).together(),
        privileged!(tables_and_proof_under_load).flooding(),
        privileged!(a_line_an_interval).flooding(),
        privileged!(workstreams_under_load).flooding(),
        privileged!(a_reader_that_leaves_and_a_signal).together(),
        privileged!(lines_of_what_goes_end_with_it).together(),
        privileged!(askers_cost_a_run_of_two_workers_nothing),
    ])
}

fn options_that_do_not_go_together() -> Result<()> {
    let table: [&[&str]; 6] = [
        &["-i", "0"],
        &["-i", "soon"],
        &["--count", "3"],
        &["-i", "1", "--check"],
        &["-Q", "--check"],
        &["-Q", "-i", "1"],
    ];
    for options in table {
        let done = run(Command::new(weir_binary()?).arg("stat").args(options), LIMIT)?;
        ensure!(done.status.code() == Some(2), "`{}` ended with {}", done.what, done.status);
    }
    Ok(())
}

/// The command has a `/run` of its own, so that wires of others are not seen.
fn no_wire_is_up() -> Result<()> {
    let stat = |arguments: &str| -> Result<Finished> {
        let script =
            format!("mount -t tmpfs none /run && exec {} stat {arguments}", weir_binary()?.display());
        run(Command::new("unshare").args(["--mount", "sh", "-c", &script]), LIMIT)
    };
    for arguments in ["", "--check", "-i 1"] {
        let done = stat(arguments)?.success()?;
        ensure!(done.stdout.starts_with("no wire is up: `weir wire"), "`{}`: {}", done.what, done.stdout);
    }
    let object: Value = serde_json::from_str(&stat("--json")?.success()?.stdout)?;
    ensure!(object["wires"].as_array().is_some_and(Vec::is_empty), "{object}");
    for arguments in ["nowhere", "nowhere --json", "nowhere --check", "nowhere -i 1"] {
        let done = stat(arguments)?;
        ensure!(done.status.code() == Some(1) && done.stdout.is_empty(), "`{}`: {}", done.what, done.stdout);
        ensure!(done.stderr.lines().count() == 1 && done.stderr.contains("nowhere"), "{}", done.stderr);
    }
    Ok(())
}

fn a_wire_that_may_not_be_asked_is_no_proof() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    // The socket has the mode of those of version 1 of the protocol.
    let socket = format!("/run/weir/{}.sock", wire.name());
    std::fs::set_permissions(socket, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let done = nobody::weir(&["stat", "--check"], LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stdout);
    ensure!(done.stderr.contains("only root may ask"), "{}", done.stderr);
    wire.stop()?;
    Ok(())
}

fn one_that_does_not_answer_does_not_hide_the_others() -> Result<()> {
    let rigs = [Rig::new(1, 1)?, Rig::new(1, 1)?];
    let (mut silent, wire) = (rigs[0].wire(&["--rate", "200mbit"])?, rigs[1].wire(&["--rate", "200mbit"])?);
    // Before the wire, because a guardian kills a process that is stopped.
    for process in [weir_tests::guardian(silent.id())?, silent.id()] {
        stop_whole(process)?;
    }
    for arguments in [&["stat"][..], &["stat", "--check"]] {
        let done = wire.weir(arguments)?;
        ensure!(done.status.code() == Some(1), "`{}` ended with {}", done.what, done.status);
        ensure!(
            done.stderr.contains(silent.name()) && done.stderr.contains("does not answer"),
            "{}",
            done.stderr
        );
        ensure!(
            done.stdout.contains(if arguments.len() == 1 { wire.name() } else { "holds" }),
            "{}",
            done.stdout
        );
    }
    silent.signal(Signal::CONT)?;
    silent.stop()?;
    wire.stop()?;
    Ok(())
}

fn tables_and_proof_under_load() -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 3.0))?;
    let blocked = || Ok(stat_of(&wire)?["wires"][0]["classes"][0]["blocked_ns"].as_u64() > Some(0));
    wait_until("senders are blocked", LIMIT, blocked)?;
    let text = wire.weir(&["stat", wire.name()])?.success()?.stdout;
    let row = |first: &str, heading: &str| -> Result<Vec<&str>> {
        let mut lines = text.lines().skip_while(|line| !line.contains(heading));
        let line = lines.find(|line| line.split_whitespace().next() == Some(first));
        Ok(line.with_context(|| format!("no {first} below {heading}:\n{text}"))?.split_whitespace().collect())
    };
    ensure!(text.starts_with(&format!("wire {}: wa <-> wb, up for ", wire.name())), "{text}");
    ensure!(!text.contains('\u{1b}'), "colours, but no terminal: {text}");
    ensure!(row("wa->wb", "rate")?[1] == "200mbit" && row("wb->wa", "rate")?[1] == "200mbit", "{text}");
    ensure!(row("wa->wb", "senders blocked")?[1] != "0", "nobody is blocked: {text}");
    ensure!(row("wb", "polled by")?[1..4] == ["veth0", "socket", "1"], "{text}");
    ensure!(text.lines().any(|line| line.starts_with("frames: ")), "{text}");
    require_proof(&wire)?;
    drop(flood);
    require_proof(&wire)?;
    wire.stop()?;
    Ok(())
}

/// Reads the four figures of the proof and adds them up again.
fn require_proof(wire: &Wire) -> Result<()> {
    let text = wire.weir(&["stat", wire.name(), "--check"])?.success()?.stdout;
    let figures: Vec<u64> =
        text.split_whitespace().filter_map(|word| word.replace(',', "").parse().ok()).collect();
    let [accepted, delivered, dropped, held] = figures[..] else {
        anyhow::bail!("not four figures: {text}");
    };
    ensure!(text.starts_with("conservation holds: accepted ") && text.lines().count() == 1, "{text}");
    ensure!(accepted > 0 && accepted == delivered + dropped + held, "{text}");
    Ok(())
}

/// netisr's three tables, and sums that agree with the books.
fn workstreams_under_load() -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 3.0))?;
    let row_in = |stat: &Value| -> Result<Value> {
        let rows = stat["workstreams"].as_array().context("no workstreams")?;
        rows.iter().find(|row| row["name"] == "ether/wa->wb").cloned().context("no ether/wa->wb")
    };
    wait_until("senders are held", LIMIT, || Ok(row_in(&stat_of(&wire)?)?["blocked"].as_u64() > Some(0)))?;
    let text = wire.weir(&["stat", wire.name(), "-Q"])?.success()?.stdout;
    for table in ["Configuration:", "Protocols:", "Workstreams:"] {
        ensure!(text.lines().any(|line| line == table), "no {table}\n{text}");
    }
    let columns = "WSID CPU Name Len WMark Disp'd HDisp'd QDrops Queued Handled Held Blocked BlkTime";
    let mut lines = text.lines().skip_while(|line| !line.split_whitespace().eq(columns.split(' '))).skip(1);
    let line = lines.find(|line| line.contains("ether/wa->wb")).with_context(|| text.clone())?;
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!(words.len() == 13 && words[2] == "ether/wa->wb", "{line}");
    let counter = |at: usize| words[at].parse::<u64>().with_context(|| format!("{} in {line}", words[at]));
    let [len, wmark, dispatched, hybrid, queued] =
        [counter(3)?, counter(4)?, counter(5)?, counter(6)?, counter(8)?];
    let (handled, held) = (counter(9)?, counter(10)?);
    ensure!(wmark > 0 && len <= wmark && held >= len, "{line}");
    ensure!(queued > 0 && dispatched + hybrid + queued == handled + len, "{line}");
    ensure!(counter(7)? == 0 && counter(11)? > 0 && words[12] != "0us", "{line}");
    require_proof(&wire)?;
    flood.finish(PATIENCE)?;
    // Both counts are of one answer: the namespaces still ask for their neighbours now and then.
    let stat = stat_of(&wire)?;
    let row = row_in(&stat)?;
    let figure = |name: &str| row[name].as_u64().with_context(|| format!("no {name} in {row}"));
    let accepted =
        figure("dispatched")? + figure("hybrid_dispatched")? + figure("queued")? + figure("queue_drops")?;
    ensure!(
        stat["wires"][0]["classes"][0]["accepted"] == accepted,
        "{row}\n{}",
        stat["wires"][0]["classes"][0]
    );
    let transmit = &stat["ports"][1]["transmit"];
    let [enter, tried, tryfail, sleep] =
        ["enter", "try", "tryfail", "sleep"].map(|name| transmit[name].as_u64());
    ensure!(tried > Some(0) && tryfail <= tried && tried <= enter, "{transmit}");
    ensure!(sleep > Some(0), "it waited for tokens with packets to send: {transmit}");
    ensure!(transmit["kicks_sent"] == 0 && transmit["kicks_saved"] == 0, "there is one worker: {transmit}");
    require_proof(&wire)?;
    wire.stop()?;
    Ok(())
}

fn a_line_an_interval() -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 3, 6.0);
    let flood = Flood::start(&load)?;
    let done = wire.weir(&["stat", wire.name(), "-i", "0.3", "--count", "3"])?.success()?;
    let lines: Vec<&str> = done.stdout.lines().collect();
    ensure!(lines.len() == 5, "not a header and three lines: {}", done.stdout);
    ensure!(lines[0].split_whitespace().eq(["input", "output"]), "{}", done.stdout);
    let columns = "name packets errs drops bytes packets errs drops bytes held blk%";
    ensure!(lines[1].split_whitespace().eq(columns.split(' ')), "{}", done.stdout);
    for line in &lines[2..] {
        let words: Vec<&str> = line.split_whitespace().collect();
        ensure!(words.len() == 11 && words[0] == wire.name(), "{line}");
        ensure!(words[2] == "0" && words[3] == "0" && words[6] == "0" && words[7] == "0", "{line}");
    }
    let accepted = || -> Result<u64> {
        stat_of(&wire)?["totals"]["accepted_bytes"].as_u64().context("no totals.accepted_bytes")
    };
    let before = accepted()?;
    let done = wire.weir(&["stat", wire.name(), "-i", "0.3", "--count", "3", "--json"])?.success()?;
    let between = accepted()? - before;
    let (mut bytes, mut interval_ns) = (0, 0);
    for line in done.stdout.lines() {
        let object: Value = serde_json::from_str(line).with_context(|| line.to_string())?;
        ensure!(object["wire"] == wire.name(), "{line}");
        bytes += object["in"]["bytes"].as_u64().context("no bytes")?;
        interval_ns += object["interval_ns"].as_u64().context("no interval")?;
    }
    ensure!(done.stdout.lines().count() == 3 && interval_ns > 800_000_000, "{}", done.stdout);
    ensure!(
        bytes > 0 && bytes <= between,
        "{bytes} bytes by these lines, {between} by the counters around them"
    );
    drop(flood);
    wire.stop()?;
    Ok(())
}

fn a_reader_that_leaves_and_a_signal() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&[])?;
    let binary = weir_binary()?;
    let script = format!("{} stat {} -i 0.02 | head -n 3", binary.display(), wire.name());
    let done = run(Command::new("bash").args(["-o", "pipefail", "-c", &script]), LIMIT)?.success()?;
    ensure!(done.stdout.lines().count() == 3 && done.stderr.is_empty(), "{}{}", done.stdout, done.stderr);

    let mut process = Process::spawn(Command::new(&binary).args(["stat", wire.name(), "-i", "0.05"]))?;
    process.wait_for_output(&format!("\n{} ", wire.name()), LIMIT)?;
    process.signal(Signal::INT)?;
    let done = process.wait(LIMIT)?.success()?;
    ensure!(done.stdout.ends_with('\n') && done.stderr.is_empty(), "{}{}", done.stdout, done.stderr);

    // A pager at its first page: nobody reads, and it ends all the same.
    for signal in [Signal::INT, Signal::TERM] {
        let (reader, lines) = std::io::pipe()?;
        fill(&lines)?;
        let mut process = Command::new(&binary);
        let mut process = process.args(["stat", wire.name(), "-i", "0.01"]).stdout(lines).spawn()?;
        let mask = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()))?;
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).context("no SigBlk")?;
            Ok::<_, anyhow::Error>(u64::from_str_radix(mask, 16)?)
        };
        wait_until("it hears signals", LIMIT, || Ok(mask()? & 1 << (signal.as_raw() - 1) != 0))?;
        // Many intervals, so that it wants to write.
        let_pass(Duration::from_millis(300), |_| ())?;
        send_signal(process.id(), signal)?;
        let ended = wait_until("it has ended", LIMIT, || Ok(process.try_wait()?.is_some()));
        drop(reader);
        ended.inspect_err(|_| drop(process.wait()))?;
    }
    wire.stop()?;
    Ok(())
}

/// With a name, when that goes: a wire that ends, and a limit that is removed.
fn lines_of_what_goes_end_with_it() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&[])?;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit --name leaves")?.success()?;
    let binary = weir_binary()?;
    let watch = |name: &str| -> Result<Process> {
        let mut process = Process::spawn(row.middle.command(&binary).args(["stat", name, "-i", "0.05"]))?;
        process.wait_for_output(&format!("\n{name} "), LIMIT)?;
        Ok(process)
    };
    let [of_wire, of_limit] = [watch(wire.name())?, watch("leaves")?];
    let name = wire.name().to_string();
    wire.stop()?;
    row.weir("limit leaves --off")?.success()?;
    for (process, name) in [(of_wire, name.as_str()), (of_limit, "leaves")] {
        let done = process.wait(LIMIT)?.success()?;
        ensure!(done.stderr.ends_with(&format!("weir: {name} is gone\n")), "{}", done.stderr);
    }
    Ok(())
}

/// Two commands that ask in a loop, and the run itself at its end: none of them makes the workers wait for each other, none is told that
/// the wire is going down, and the run waits until all has left.
fn askers_cost_a_run_of_two_workers_nothing() -> Result<()> {
    // The receiver's socket has room for all of them.
    const DATAGRAMS: usize = 80;
    let host = Host::alone()?;
    let socket = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", 5600)))??;
    let script = format!(
        "host=$(ip route show default | cut -d ' ' -f 3); printf -v word %01000d 1; exec 3>/dev/udp/$host/5600; \
         echo started; for ((i = 0; i < {DATAGRAMS}; i++)); do printf %s $word >&3; done"
    );
    let options = ["run", "--rate", "400kbit", "--workers", "2", "--", "bash", "-c", &script];
    let mut process = Process::spawn(&mut host.weir(&options))?;
    process.wait_for_output("started", LIMIT)?;
    let name = format!("run-{}", process.id());
    let is_over = AtomicBool::new(false);
    let ask = || -> Result<(u32, Duration)> {
        let (mut asked, mut longest) = (0, Duration::ZERO);
        while !is_over.load(Ordering::Relaxed) {
            let begin = now();
            let done = run(&mut host.weir(&["stat", &name, "--check"]), LIMIT)?;
            if !done.status.success() {
                // At the very end of the run there is no wire any more, which is said in one of three ways.
                let ends = ["no wire, topology, stack or limit", "going down", "does not answer"];
                ensure!(ends.iter().any(|why| done.stderr.contains(why)), "{}", done.stderr);
                break;
            }
            longest = longest.max(begin.elapsed());
            asked += 1;
        }
        Ok((asked, longest))
    };
    let (done, asked) = std::thread::scope(|scope| {
        let askers = [scope.spawn(ask), scope.spawn(ask)];
        let done = process.wait(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        (done, askers.map(|asker| asker.join().expect("an asker panicked")))
    });
    let done = done?.success()?;
    socket.set_nonblocking(true)?;
    let arrived = std::iter::from_fn(|| socket.recv(&mut [0; 2048]).ok()).count();
    ensure!(arrived == DATAGRAMS, "{arrived} of {DATAGRAMS} arrived: {}", done.stderr);
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    for asker in asked {
        let (asked, longest) = asker?;
        ensure!(asked > 0, "not one answer");
        weir_tests::require_timing!(longest < Duration::from_millis(500), "an answer took {longest:?}");
    }
    Ok(())
}

/// A file and a directory in the place of sockets, in a `/run` of their own.
fn what_is_no_socket_is_no_killed_wire() -> Result<()> {
    let weir = |arguments: &str| -> Result<Finished> {
        let script = format!(
            "mount -t tmpfs -o mode=755 none /run && mkdir -p /run/weir/folder.sock && echo x >/run/weir/file.sock && exec {} {arguments}",
            weir_binary()?.display()
        );
        run(Command::new("unshare").args(["--mount", "sh", "-c", &script]), LIMIT)
    };
    let all = weir("stat")?.success()?;
    ensure!(all.stderr.is_empty(), "{}", all.stderr);
    for name in ["file", "folder"] {
        for command in ["stat", "down", "set --rate 1mbit"] {
            let done = weir(&format!("{command} {name}"))?;
            let said = &done.stderr;
            ensure!(!done.status.success() && !said.contains("killed"), "{command} {name}: {said}");
        }
        let one = weir(&format!("stat {name}"))?.stderr;
        ensure!(one.contains(&format!("/run/weir/{name}.sock is no socket")), "{one}");
    }
    Ok(())
}
