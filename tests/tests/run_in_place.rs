//! `weir run` limited in place: no packet passes through its process; and by a wire where only that can do it, which is said.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::{let_pass, wait_until};
use weir_lab::process::{Process, Signal, run};
use weir_port::hold::ends;
use weir_tests::classes::File;
use weir_tests::host::Host;
use weir_tests::lacking::Lacking;
use weir_tests::{harness, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(30);
/// A program that sends to the host, to port 5600, as fast as it may.
const FLOOD: &str = "exec bash -c 'host=$(ip route show default | cut -d \" \" -f 3); printf -v word %01000d 1; \
                     exec 3>/dev/udp/$host/5600; while printf %s $word >&3; do :; done'";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(no_packet_passes_through_its_process).together(),
        privileged!(it_is_found_and_changed_by_its_name).together(),
        privileged!(a_name_is_given_to_one_run).together(),
        privileged!(runs_that_start_and_end_are_no_fault).together(),
        privileged!(what_only_a_wire_can_do_it_does_by_one).together(),
        privileged!(classes_of_a_file_share_it_in_place).together(),
        privileged!(a_file_that_only_a_wire_keeps_goes_by_one).together(),
        privileged!(a_kernel_without_the_queue_takes_a_wire).together(),
        privileged!(a_limit_that_its_program_takes_away_is_said).together(),
        privileged!(a_limit_that_is_removed_meanwhile_is_said).flooding(),
        privileged!(an_interface_that_vanishes_ends_it).together(),
        privileged!(a_child_outlives_a_killed_run_without_a_network).together(),
        privileged!(a_child_outlives_a_run_of_a_renamed_interface_without_a_network).together(),
        privileged!(a_name_that_is_no_text_is_shown).flooding(),
        privileged!(what_is_stopped_goes_on_when_it_is_continued).together(),
        privileged!(a_summary_that_nobody_reads_is_given_up).together(),
    ])
}

fn started(host: &Host, options: &[&str], script: &str) -> Result<Process> {
    spawned(&mut host.weir_run(options, &format!("echo started; {script}")))
}

/// As [`started`], at a rate that a program exceeds also where others have most of the processors.
fn started_slow(host: &Host, name: &str, script: &str) -> Result<Process> {
    let script = format!("echo started; {script}");
    spawned(&mut host.weir(&["run", "--rate", "20mbit", "--name", name, "--", "sh", "-c", &script]))
}

fn spawned(command: &mut std::process::Command) -> Result<Process> {
    let mut process = Process::spawn(command)?;
    process.wait_for_output("started", LIMIT)?;
    Ok(process)
}

/// Each makes its limit and removes it, within milliseconds.
fn runs_that_start_and_end_are_no_fault() -> Result<()> {
    let host = Host::alone()?;
    let mut command = host.namespace.command("sh");
    let script =
        "for run in $(seq 20); do \"$0\" run --rate 20mbit -- true || exit; done; echo all have ended";
    command.args(["-c", script]).arg(weir_binary()?);
    let mut runs = Process::spawn(&mut command)?;
    let mut checks = 0;
    while runs.is_running()? {
        run(&mut host.weir(&["stat", "--check"]), LIMIT)?.success()?;
        checks += 1;
    }
    runs.wait_for_output("all have ended", LIMIT)?;
    println!("    {checks} checks");
    ensure!(checks > 3, "{checks} checks");
    Ok(())
}

/// Two that wait for a name together: one gets it, and the other is told whose it is. It is kept by nobody, neither the guardian nor the
/// program, and free again after the run.
fn a_name_is_given_to_one_run() -> Result<()> {
    let host = Host::alone()?;
    for (round, options) in [["", ""], ["", "--queue=5ms"], ["--queue=5ms", ""]].into_iter().enumerate() {
        let name = format!("{}-{round}", host.namespace.name());
        let held = ends::hold(&[], &[&name], &mut |_| {})?;
        let spawn = |option: &str| {
            let options: Vec<_> =
                ["--name", &name, option].into_iter().filter(|word| !word.is_empty()).collect();
            Process::spawn(&mut host.weir_run(&options, "echo started; exec sleep 1000"))
        };
        let mut runs = [spawn(options[0])?, spawn(options[1])?];
        let waiting = format!("weir: waiting for the name {name}: ");
        wait_until("both wait for the name", LIMIT, || {
            Ok(runs.iter().all(|run| run.stderr().contains(&waiting)))
        })?;
        drop(held);
        wait_until("one of two is refused", LIMIT, || Ok(!runs[0].is_running()? || !runs[1].is_running()?))?;
        let [mut kept, refused] = if runs[0].is_running()? {
            runs
        } else {
            runs.swap(0, 1);
            runs
        };
        let refused = refused.wait(LIMIT)?;
        let taken =
            [format!("is called {name} already: give "), format!("a wire called {name} is up already")];
        ensure!(
            !refused.status.success() && taken.iter().any(|taken| refused.stderr.contains(taken)),
            "{}",
            refused.stderr
        );
        kept.wait_for_output("started", LIMIT)?;
        let hold = format!("/run/weir/holds/name-{name}");
        ensure!(!fs::exists(&hold)?, "{hold} is there");
        kept.stop(LIMIT)?;
        run(&mut host.weir(&["run", "--rate", "1mbit", "--name", &name, "--", "true"]), LIMIT)?.success()?;
    }
    Ok(())
}

/// The process has neither worker nor real-time thread nor packet memory.
fn no_packet_passes_through_its_process() -> Result<()> {
    let host = Host::alone()?;
    let process = started(&host, &[], "read line; while :; do sleep 0.05; done")?;
    let id = process.id();
    for task in fs::read_dir(format!("/proc/{id}/task"))? {
        let task = task?.path();
        let name = fs::read_to_string(task.join("comm"))?;
        ensure!(!name.starts_with("weir-worker"), "it has a worker");
        let stat = fs::read_to_string(task.join("stat"))?;
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        // Field 40 of proc_pid_stat(5) is the real-time priority; these begin with the third.
        ensure!(fields.split_whitespace().nth(37) == Some("0"), "{name} is real-time: {stat}");
    }
    let maps = fs::read_to_string(format!("/proc/{id}/maps"))?;
    ensure!(!maps.contains("XDP") && !maps.contains("xsk"), "it has rings: {maps}");
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).context("no VmRSS")?;
    let kilobytes: u64 = resident.split_whitespace().nth(1).context("no number")?.parse()?;
    ensure!(kilobytes < 20_000, "{resident}");
    process.stop(LIMIT)?;
    Ok(())
}

/// Nobody waits for the process, so its guardian does not kill it, and its program goes on meanwhile.
fn what_is_stopped_goes_on_when_it_is_continued() -> Result<()> {
    let host = Host::alone()?;
    let socket = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", 5600)))??;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut process = started(&host, &["--rate-back", "50mbit"], FLOOD)?;
    process.signal(Signal::STOP)?;
    let arrives = || socket.recv(&mut [0; 2000]).context("the program does not go on");
    // Four times as long as a guardian looks at one that has queues.
    let_pass(Duration::from_secs(2), |_| drop(arrives()))?;
    arrives()?;
    ensure!(process.is_running()?, "it was killed: {}", process.stderr());
    process.signal(Signal::CONT)?;
    let done = process.stop(LIMIT)?;
    ensure!(done.stderr.starts_with("weir: 200mbit: sent "), "no summary: {}", done.stderr);
    Ok(())
}

fn limits(host: &Host, name: &str) -> Result<Vec<Value>> {
    let done = run(&mut host.weir(&["stat", name, "--json", "--check"]), LIMIT)?.success()?;
    let stat: Value = serde_json::from_str(&done.stdout)?;
    Ok(stat["limits"].as_array().context("no limits")?.clone())
}

fn it_is_found_and_changed_by_its_name() -> Result<()> {
    let host = Host::alone()?;
    let receiver = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", 5600)))??;
    let process = started(&host, &["--name", "inp-by-name", "--rate-back", "50mbit"], FLOOD)?;
    let rates = |limits: &[Value]| -> Vec<Option<u64>> {
        limits.iter().map(|limit| limit["rate_bits_per_s"].as_u64()).collect()
    };
    let before = limits(&host, "inp-by-name")?;
    ensure!(rates(&before) == [Some(200_000_000), Some(50_000_000)], "{before:?}");
    let taken =
        run(&mut host.weir(&["run", "--rate", "1mbit", "--name", "inp-by-name", "--", "true"]), LIMIT)?;
    ensure!(taken.status.code() == Some(2) && taken.stderr.contains("another name"), "{}", taken.stderr);
    let done = run(&mut host.weir(&["set", "inp-by-name", "--rate", "5mbit"]), LIMIT)?.success()?;
    let line = &done.stdout;
    ensure!(line.lines().count() == 1 && line.starts_with("limit inp-by-name changed: eth0 in "), "{line}");
    ensure!(line.contains(" 200mbit -> 5mbit") && line.contains(" 50mbit -> 5mbit"), "{line}");
    ensure!(rates(&limits(&host, "inp-by-name")?) == [Some(5_000_000), Some(5_000_000)], "both ways");
    run(&mut host.weir(&["set", "inp-by-name", "--rate-back", "7mbit"]), LIMIT)?.success()?;
    ensure!(rates(&limits(&host, "inp-by-name")?) == [Some(5_000_000), Some(7_000_000)], "one way");
    let refused = run(&mut host.weir(&["set", "inp-by-name", "--queue", "5ms"]), LIMIT)?;
    ensure!(
        refused.status.code() == Some(2) && refused.stderr.contains("limit in place"),
        "{}",
        refused.stderr
    );
    let down = run(&mut host.weir(&["down", "inp-by-name"]), LIMIT)?;
    ensure!(
        !down.status.success() && down.stderr.contains("inp-by-name is a run: it ends with"),
        "{}",
        down.stderr
    );
    wait_until("somebody is held", LIMIT, || {
        let limits = limits(&host, "inp-by-name")?;
        ensure!(limits[0]["dropped"]["held-full"] == 0, "{limits:?}");
        Ok(limits[0]["senders"].as_array().is_some_and(|senders| !senders.is_empty()))
    })?;
    let done = process.stop(LIMIT)?;
    ensure!(done.stderr.contains("5mbit: sent"), "the last limit is that of the summary: {}", done.stderr);
    drop(receiver);
    Ok(())
}

fn what_only_a_wire_can_do_it_does_by_one() -> Result<()> {
    let host = Host::alone()?;
    for options in [&["--queue", "5ms"][..], &["--workers", "1"], &["--memory", "64mb"], &["--core", "0"]] {
        let done = run(&mut host.weir_run(options, "exit 3"), LIMIT)?;
        ensure!(done.status.code() == Some(3), "{options:?}: {}", done.stderr);
        let said = done.stderr.lines().filter(|line| line.contains("by a wire")).count();
        ensure!(said == 1 && done.stderr.contains(options[0]), "{options:?}: {}", done.stderr);
    }
    let done = run(&mut host.weir(&["run", "--rate", "4kbit", "--", "true"]), LIMIT)?.success()?;
    let told = "below 8kbit the kernel's own queue cannot keep a limit: this run goes by a wire, which carries each packet through \
                this process\n";
    ensure!(done.stderr.contains(told) && !done.stderr.contains("cannot be limited"), "{}", done.stderr);
    Ok(())
}

/// Each way has the classes, packets go to the class that the filter names, and another file takes over while the program runs.
fn classes_of_a_file_share_it_in_place() -> Result<()> {
    const NAME: &str = "inp-classes";
    let host = Host::alone()?;
    let receiver = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", 5600)))??;
    let text = "default = \"rest\"\n[[class]]\nname = \"marked\"\nrate = \"2mbit\"\n[[class]]\nname = \"rest\"\nrate = \"5mbit\"\n\
                ceil = \"20mbit\"\n[[filter]]\nprotocol = \"udp\"\nto_ports = 5600\nclass = \"marked\"\n";
    let (file, other) = (File::new(text)?, File::new(&text.replace("2mbit", "3mbit"))?);
    let process = started(&host, &["--name", NAME, "--classes", file.path()], FLOOD)?;
    let class = |limit: &Value, name: &str| -> Result<Value> {
        let classes = limit["classes"].as_array().context("no classes")?;
        classes.iter().find(|class| class["name"] == name).cloned().with_context(|| format!("{limit}"))
    };
    wait_until("its packets are in their class", LIMIT, || {
        let limits = limits(&host, NAME)?;
        ensure!(limits.len() == 2 && class(&limits[1], "marked")?["delivered"] == 0, "{limits:?}");
        Ok(class(&limits[0], "marked")?["delivered"].as_u64() > Some(20))
    })?;
    let done = run(&mut host.weir(&["set", NAME, "--classes", other.path()]), LIMIT)?.success()?;
    ensure!(
        done.stdout.contains("changed: the classes of ") && done.stdout.lines().count() == 1,
        "{}",
        done.stdout
    );
    for limit in limits(&host, NAME)? {
        ensure!(class(&limit, "marked")?["rate_bits_per_s"] == 3_000_000, "{limit}");
    }
    let done = process.stop(LIMIT)?;
    ensure!(!done.stderr.contains("by a wire"), "{}", done.stderr);
    ensure!(done.stderr.contains("200mbit: sent") && done.stderr.contains("dropped none"), "{}", done.stderr);
    drop(receiver);
    Ok(())
}

fn a_file_that_only_a_wire_keeps_goes_by_one() -> Result<()> {
    let host = Host::alone()?;
    let one = "[[class]]\nname = \"x\"\nrate = \"10mbit\"\n";
    let cases = [
        (
            format!("shaper = \"cbq\"\n{one}"),
            ":1: a limit in place is the kernel's HTB, not CBQ: this run goes by a wire",
        ),
        (format!("{one}max_wait = \"5ms\"\n"), ":4: a limit in place holds senders"),
        (one.replace("10mbit", "300mbit"), "promised 300mbit together"),
    ];
    for (text, why) in cases {
        let file = File::new(&text)?;
        let done = run(&mut host.weir_run(&["--classes", file.path()], "exit 3"), LIMIT)?;
        ensure!(done.status.code() == Some(3), "{text}: {}", done.stderr);
        let said: Vec<_> = done.stderr.lines().filter(|line| line.contains("by a wire")).collect();
        ensure!(said.len() == 1 && said[0].contains(why), "{text}: {}", done.stderr);
    }
    let file = File::new("[[class]\n")?;
    let done = run(&mut host.weir_run(&["--classes", file.path()], "exit 3"), LIMIT)?;
    ensure!(done.status.code() == Some(2) && !done.stderr.contains("by a wire"), "{}", done.stderr);
    Ok(())
}

/// Nothing is left of a limit that cannot be set up whole, and a wire does its work.
fn a_kernel_without_the_queue_takes_a_wire() -> Result<()> {
    let host = Host::alone()?;
    let before = host.state()?;
    let lacking = Lacking { call: libc::SYS_fsopen, first: None, error: libc::ENOSYS };
    let mut command = host.weir_run(&[], "exit 4");
    let done = run(lacking.apply(&mut command), LIMIT)?;
    ensure!(done.status.code() == Some(4), "{}", done.stderr);
    ensure!(done.stderr.contains("by a wire"), "{}", done.stderr);
    let after = host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

fn a_limit_that_its_program_takes_away_is_said() -> Result<()> {
    let host = Host::alone()?;
    let script = "tc qdisc del dev eth0 root; echo taken; read line; while :; do sleep 0.05; done";
    let mut process = started(&host, &[], script)?;
    process.wait_for_output("taken", LIMIT)?;
    let name = format!("run-{}", process.id());
    let done = run(&mut host.weir(&["stat", &name, "--check"]), LIMIT)?;
    ensure!(done.status.code() == Some(1) && done.stderr.contains("is gone"), "{}", done.stderr);
    let done = process.stop(LIMIT)?;
    ensure!(done.stderr.contains("the limit was taken away while CMD ran"), "{}", done.stderr);
    Ok(())
}

/// It is said by who removes it and by the run, and what is not known is not told as 0.
fn a_limit_that_is_removed_meanwhile_is_said() -> Result<()> {
    const NAME: &str = "inp-off";
    let host = Host::alone()?;
    let receiver = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", 5600)))??;
    let quiet = "read line; while :; do sleep 0.05; done";
    // Four programs: a pause of one is no pause of all.
    let flood_of_four = "exec bash -c 'host=$(ip route show default | cut -d \" \" -f 3); printf -v word %01000d 1; \
                 exec 3>/dev/udp/$host/5600; for n in 1 2 3 4; do while printf %s $word >&3; do :; done & done; wait'";
    for (script, code, said) in [
        (quiet, 0, &["what passed without it was not counted", "what it sent in all was not counted"][..]),
        (flood_of_four, 1, &["its queue stayed, and let everything pass since", ": sent "]),
    ] {
        let process = started_slow(&host, NAME, script)?;
        // A file could not apply it any more when the run has ended.
        let shown = run(&mut host.weir(&["show"]), LIMIT)?.success()?.stdout;
        let left_out = format!("# left out: limit {NAME}, which is of a `weir run` and goes with it\n");
        ensure!(shown.contains(&left_out) && !shown.contains("[[limit]]"), "{shown}");
        if code != 0 {
            wait_until("its program is held", LIMIT, || {
                let done = run(&mut host.weir(&["stat", NAME, "--json"]), LIMIT)?.success()?;
                let stat: Value = serde_json::from_str(&done.stdout)?;
                Ok(stat["limits"][0]["held"].as_u64() > Some(0))
            })?;
        }
        let off = run(&mut host.weir(&["limit", NAME, "--off"]), LIMIT)?;
        ensure!(off.status.code() == Some(code), "{}: {}", off.status, off.stderr);
        ensure!(off.stderr.contains("it was the limit of a `weir run`"), "{}", off.stderr);
        let done = process.stop(LIMIT)?;
        ensure!(done.stderr.contains("the limit was taken away while CMD ran"), "{}", done.stderr);
        ensure!(said.iter().all(|said| done.stderr.contains(said)), "{}", done.stderr);
    }
    drop(receiver);
    Ok(())
}

/// A program may choose any bytes for its name.
fn a_name_that_is_no_text_is_shown() -> Result<()> {
    const NAME: &str = "inp-no-text";
    let host = Host::alone()?;
    let _receiver = host.namespace.enter(|| UdpSocket::bind("0.0.0.0:5600"))??;
    let flood = FLOOD.replace("host=", "printf \"\\377ill\" >/proc/$$/comm; host=");
    let process = started_slow(&host, NAME, &flood)?;
    let mut said = String::new();
    let shown = wait_until("who is held is shown", LIMIT, || {
        said = run(&mut host.weir(&["stat", NAME]), LIMIT)?.success()?.stdout;
        Ok(said.contains("held now: \u{fffd}ill ("))
    });
    shown.with_context(|| said)?;
    process.stop(LIMIT).map(drop)
}

/// The program is killed with it. A child of that, which may be of another session and control group, is not.
fn a_child_outlives_a_killed_run_without_a_network() -> Result<()> {
    a_child_outlives_a_killed_run(|_| Ok(()))
}

fn a_child_outlives_a_run_of_a_renamed_interface_without_a_network() -> Result<()> {
    a_child_outlives_a_killed_run(|host| host.namespace.ip("link set weir0 name renamed").map(drop))
}

/// Requires that the child has no network any more, with this done at the host before the run is killed.
fn a_child_outlives_a_killed_run(change: impl FnOnce(&Host) -> Result<()>) -> Result<()> {
    let host = Host::alone()?;
    let path = std::env::temp_dir().join(host.namespace.name());
    // It ends by itself.
    let child = format!(
        "for i in $(seq 600); do ip link show eth0 >/dev/null 2>&1 || break; sleep 0.05; done; ip -br link >{0}.new; mv {0}.new {0}",
        path.display()
    );
    let mut process = started(&host, &[], &format!("({child}) & echo id: $$; exec sleep 1000"))?;
    process.wait_for_output("id: ", LIMIT)?;
    let program = process.stdout().split_whitespace().last().context("no id")?.to_string();
    change(&host)?;
    process.signal(Signal::KILL)?;
    wait_until("the child has no network", LIMIT, || Ok(path.exists()))?;
    let links = fs::read_to_string(&path)?;
    fs::remove_file(&path)?;
    ensure!(links.lines().count() == 1 && links.starts_with("lo "), "{links}");
    process.wait(LIMIT)?;
    wait_until("the program is gone", LIMIT, || Ok(!fs::exists(format!("/proc/{program}"))?))
}

/// Without a network the program would go on for nothing.
fn an_interface_that_vanishes_ends_it() -> Result<()> {
    let host = Host::alone()?;
    let mut process = started(&host, &[], "read line; while :; do sleep 0.05; done")?;
    host.namespace.ip("link del weir0")?;
    wait_until("it has ended", LIMIT, || Ok(!process.is_running()?))?;
    let done = process.wait(LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stderr);
    ensure!(done.stderr.contains("vanished") && done.stderr.contains("killed"), "{}", done.stderr);
    ensure!(!done.stderr.contains("taken away"), "nobody took the limit away: {}", done.stderr);
    Ok(())
}

/// Standard error is a pipe without room. The program has ended, everything is put back, and the summary waits for a reader.
fn a_summary_that_nobody_reads_is_given_up() -> Result<()> {
    const PIPE_BYTES: usize = 1 << 16;
    let host = Host::alone()?;
    let (_reader, mut writer) = std::io::pipe()?;
    writer.write_all(&[b'x'; PIPE_BYTES])?;
    let mut command = host.weir(&["run", "--rate", "1mbit", "--", "true"]);
    let mut run = command.stderr(writer).spawn()?;
    let pid = run.id();
    let mut status = None;
    let waits = wait_until("the summary waits", LIMIT, || {
        Ok(fs::read_to_string(format!("/proc/{pid}/wchan"))?.contains("pipe_write"))
    });
    let ended = waits.and_then(|()| {
        // SAFETY: takes no pointers; the child has not been waited for, so its number is its own.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
        wait_until("a signal ends it", LIMIT, || {
            status = run.try_wait()?;
            Ok(status.is_some())
        })
    });
    if ended.is_err() {
        run.kill()?;
        run.wait()?;
    }
    ended?;
    let signal = status.and_then(|status| status.signal());
    ensure!(signal == Some(libc::SIGTERM), "{status:?}");
    Ok(())
}
