//! A weir or its guardian is killed, stopped, or left without processes, files or namespaces: the pair is let go.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_lab::bed::{End, Namespace, address, names, veth};
use weir_lab::clock::{now, wait_until};
use weir_lab::interrupt::wait_to_clean_up;
use weir_lab::iperf::{Flood, Load};
use weir_lab::ping::wait_for_answer;
use weir_lab::process::{Signal, run};
use weir_tests::harness;
use weir_tests::kernel::{Traces, require_same, traces};
use weir_tests::lacking::NO_IO_URING;
use weir_tests::pair::{LIMIT, Pair, json_of};
use weir_tests::rig::Rig;
use weir_tests::terminal::Terminal;
use weir_tests::{guardian, kill_with_guardian, require_answer};
use weir_tests::{privileged, require_timing, weir_binary};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_stopped_wire_is_let_go),
        privileged!(ctrl_z_does_not_stop_a_wire).together(),
        privileged!(a_stopped_guardian_holds_nothing_up).together(),
        privileged!(a_killed_guardian_ends_its_wire).together(),
        privileged!(a_killed_guardian_ends_its_sink).together(),
        privileged!(after_both_were_killed_the_next_wire_mends).together(),
        privileged!(after_both_were_killed_a_command_mends).together(),
        privileged!(a_mending_that_was_stopped_is_finished_by_the_next).flooding(),
        privileged!(after_both_were_killed_stat_says_so_until_it_is_mended).together(),
        privileged!(after_both_were_killed_every_interface_is_named).together(),
        privileged!(after_both_of_a_sink_were_killed_its_interface_is_named).together(),
        privileged!(a_hold_of_another_interface_is_not_put_back).together(),
        privileged!(without_a_process_to_be_had_everything_is_put_back).together(),
        privileged!(without_descriptors_to_be_had_a_wire_is_refused_at_once).together(),
        privileged!(without_io_uring_a_wire_lets_its_senders_go).together(),
        privileged!(without_io_uring_a_killed_wire_lets_its_senders_go).together(),
        privileged!(the_namespace_of_a_container_goes_under_a_wire).together(),
    ])
}

const A_SECOND: Duration = Duration::from_secs(1);
const A_MOMENT: Duration = Duration::from_secs(20);

struct Before([Traces; 3]);

impl Before {
    fn look(rig: &Rig) -> Result<Before> {
        Ok(Before([traces(&rig.left)?, traces(&rig.middle)?, traces(&rig.right)?]))
    }

    fn require_same(&self, rig: &Rig) -> Result<()> {
        let after = Before::look(rig)?;
        self.0.iter().zip(&after.0).try_for_each(|(before, after)| require_same(before, after))
    }

    fn wait_for_same(&self, rig: &Rig, limit: Duration) -> Result<()> {
        let waited = wait_until("everything is as it was", limit, || Ok(self.require_same(rig).is_ok()));
        waited.or_else(|error| self.require_same(rig).context(error))
    }
}

fn a_stopped_wire_is_let_go() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    address(1, rig.left_end(), rig.a())?;
    let before = Before::look(&rig)?;
    let mut wire = rig.wire(&["--rate", "10mbit"])?;
    let far = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &far, 2, 30.0))?;
    wire.signal(Signal::STOP)?;
    let stopped = now();
    wait_for_answer(&rig.left, &names(1, 2).v4)?;
    let elapsed_s = stopped.elapsed().as_secs_f64();
    println!("    it carried {elapsed_s:.2} s after the stop");
    require_timing!(elapsed_s <= 2.0, "it carried {elapsed_s:.2} s after the stop");
    drop(flood);
    wire.wait()?;
    before.wait_for_same(&rig, A_MOMENT)
}

fn ctrl_z_does_not_stop_a_wire() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let arguments = ["wire", "wa", "wb", "--rate", "100mbit", "--name", rig.middle.name()];
    let mut terminal = Terminal::start(&mut rig.weir(&arguments))?;
    terminal.wait_for("ready", LIMIT)?;
    terminal.keys("\u{1a}")?;
    terminal.wait_for("it cannot be stopped (Ctrl-Z)", A_MOMENT)?;
    require_answer(&rig.left, &rig.right_address().v4).context("the wire stands")?;
    terminal.keys("\u{3}")?;
    let (status, shown) = terminal.finish(LIMIT)?;
    ensure!(status.success(), "it ended with {status}: {shown}");
    before.require_same(&rig)
}

fn a_stopped_guardian_holds_nothing_up() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    rig.middle.sh(&format!("kill -STOP {}", guardian(wire.id())?))?;
    require_answer(&rig.left, &rig.right_address().v4).context("the wire stands with its guardian")?;
    wire.stop()?;
    before.require_same(&rig)
}

fn a_killed_guardian_ends_its_wire() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    rig.middle.sh(&format!("kill -KILL {}", guardian(wire.id())?))?;
    let done = wire.wait()?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    ensure!(done.stderr.contains("guardian"), "it does not say why: {}", done.stderr);
    before.require_same(&rig)
}

fn a_killed_guardian_ends_its_sink() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    let before = (traces(&pair.left)?, traces(&pair.right)?);
    let sink = pair.sink(&[])?;
    pair.right.sh(&format!("kill -KILL {}", guardian(sink.id())?))?;
    let done = sink.wait(LIMIT)?;
    ensure!(
        done.status.code() == Some(1) && done.stderr.contains("guardian"),
        "{}: {}",
        done.status,
        done.stderr
    );
    require_same(&before.0, &traces(&pair.left)?)?;
    require_same(&before.1, &traces(&pair.right)?)?;
    pair.generate(&[], 1000)?;
    pair.require_answer()
}

/// Kills a wire under load together with its guardian, so that nobody puts anything back.
fn kill_both(rig: &Rig) -> Result<()> {
    let wire = rig.wire(&["--rate", "10mbit"])?;
    let far = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &far, 2, 30.0))?;
    let both = kill_with_guardian(wire.id())?;
    wire.wait()?;
    drop(flood);
    wait_for_end(&both)
}

/// Waits for the end of processes: one that dies keeps its locks until its files are closed.
fn wait_for_end(ids: &[u32]) -> Result<()> {
    let has_ended = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
    };
    wait_until("what was killed is gone", LIMIT, || Ok(ids.iter().all(has_ended)))
}

/// The state before the first wire is there after the second.
fn after_both_were_killed_the_next_wire_mends() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    rig.left.tc("qdisc replace dev veth0 root handle 7: pfifo limit 77")?;
    let before = Before::look(&rig)?;
    kill_both(&rig)?;
    ensure!(before.require_same(&rig).is_err(), "nothing is left behind: this test sees nothing");
    let wire = rig.wire(&["--rate", "100mbit"])?;
    require_answer(&rig.left, &rig.right_address().v4).context("the second wire does not carry")?;
    wire.check()?;
    wire.stop()?;
    before.require_same(&rig)
}

fn after_both_were_killed_a_command_mends() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    address(1, rig.left_end(), rig.a())?;
    rig.left.tc("qdisc replace dev veth0 root handle 7: pfifo limit 77")?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let refused = run(&mut rig.weir(&["mend", "wa"]), LIMIT)?;
    ensure!(
        refused.status.code() == Some(1) && refused.stderr.contains("is held by process"),
        "it mended what is in use: {} {}",
        refused.stdout,
        refused.stderr
    );
    wire.stop()?;
    kill_both(&rig)?;
    let done = run(&mut rig.weir(&["mend", "wa", "wb"]), LIMIT)?.success()?;
    ensure!(done.stdout.contains("the queue removed"), "it says: {}", done.stdout);
    before.require_same(&rig)?;
    require_answer(&rig.left, &names(1, 2).v4).context("the pair does not carry")?;
    let again = run(&mut rig.weir(&["mend", "wa", "wb"]), LIMIT)?.success()?;
    ensure!(again.stdout == "nothing was left behind\n", "it says: {}", again.stdout);
    before.require_same(&rig)?;
    kill_both(&rig)?;
    rig.middle.ip("link set wa down")?;
    // Its senders stand until it is up.
    for time in 1..=2 {
        let down = run(&mut rig.weir(&["mend", "wa"]), LIMIT)?;
        let is_left = down.status.code() == Some(1) && down.stdout.contains("mend it again");
        ensure!(is_left, "time {time}: {} and {}", down.status, down.stdout);
    }
    rig.middle.ip("link set wa up")?;
    run(&mut rig.weir(&["mend", "wa", "wb"]), LIMIT)?.success()?;
    rig.middle.ip("link set wa down")?;
    let down = run(&mut rig.weir(&["mend", "wa"]), LIMIT)?.success()?;
    ensure!(down.stdout == "nothing was left behind\n", "it says: {}", down.stdout);
    Ok(())
}

/// The first mending was killed between two steps: the queue is removed, and the qdisc of before not put back.
fn a_mending_that_was_stopped_is_finished_by_the_next() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    rig.left.tc("qdisc replace dev veth0 root handle 7: pfifo limit 77")?;
    let before = Before::look(&rig)?;
    kill_both(&rig)?;
    rig.left.tc("qdisc del dev veth0 root")?;
    let done = run(&mut rig.weir(&["mend", "wa", "wb"]), LIMIT)?.success()?;
    ensure!(done.stdout.contains("the qdisc of before put back"), "it says: {}", done.stdout);
    before.require_same(&rig)
}

/// A part of them is mended; the rest stays in view of each command.
fn after_both_were_killed_every_interface_is_named() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    kill_both(&rig)?;
    let all = [rig.left.name(), rig.right.name(), "wa in this network namespace", "`weir mend wa wb`"];
    let done = run(&mut rig.weir(&["stat", "--check"]), LIMIT)?;
    ensure!(
        done.status.code() == Some(1) && all.iter().all(|part| done.stderr.contains(part)),
        "{}",
        done.stderr
    );
    let commands = [
        (&["mend", "wa"][..], 1),
        (&["stat"], 0),
        (&["stat", "--check"], 1),
        (&["stat", "--json"], 0),
        (&["doctor"], 0),
        (&["mend"], 1),
    ];
    for (command, status) in commands {
        let done = run(&mut rig.weir(command), LIMIT)?;
        let told = done.stdout + &done.stderr;
        ensure!(
            done.status.code() == Some(status),
            "weir {} ended with {}: {told}",
            command.join(" "),
            done.status
        );
        ensure!(
            told.contains("`weir mend wb`") && told.contains(rig.right.name()),
            "weir {}: {told}",
            command.join(" ")
        );
        ensure!(!told.contains("wa in this network namespace"), "weir {}: {told}", command.join(" "));
    }
    run(&mut rig.weir(&["mend", "wb"]), LIMIT)?.success()?;
    let done = run(&mut rig.weir(&["stat", "--check"]), LIMIT)?;
    ensure!(!done.stderr.contains("in this network namespace"), "{}", done.stderr);
    before.require_same(&rig)
}

fn after_both_of_a_sink_were_killed_its_interface_is_named() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    let sink = pair.sink(&[])?;
    let both = kill_with_guardian(sink.id())?;
    sink.wait(LIMIT)?;
    wait_for_end(&both)?;
    let weir = |arguments: &[&str]| {
        let mut command = pair.right.command(weir_binary()?);
        command.args(arguments);
        run(&mut command, LIMIT)
    };
    let done = weir(&["stat", "--check"])?;
    let mend = format!("`weir mend {}`", pair.right_end().name);
    ensure!(done.status.code() == Some(1) && done.stderr.contains(&mend), "{}", done.stderr);
    weir(&["mend", pair.right_end().name])?.success()?;
    let done = weir(&["stat", "--check"])?;
    ensure!(!done.stderr.contains("in this network namespace"), "{}", done.stderr);
    Ok(())
}

/// The kernel gives a namespace's number to the next one: what an earlier one had is not put back, and goes. A note of no interface stays, while
/// there is one of its number.
fn a_hold_of_another_interface_is_not_put_back() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    rig.left.sh("ethtool -K veth0 tx off")?;
    let before = Before::look(&rig)?;
    let inode = rig.left.sh("stat -L -c %i /proc/self/ns/net")?;
    let ifindex = rig.left.sh("cat /sys/class/net/veth0/ifindex")?;
    let owner = json!({"pid": 0, "started": 1, "guardian": 0, "command": "weir wire", "is_undone": false});
    let identity = json!({"namespace": 1, "interface": [[2, 0, 0, 0, 0, 1], "veth0"]});
    let earlier = json!({"owner": owner, "before": true});
    let other = json!({"owner": owner, "identity": identity, "before": true});
    let file = format!("/run/weir/holds/{}-{}-checksum", inode.trim(), ifindex.trim());
    let gone = "/run/weir/holds/1-2-checksum";
    let of_none = format!("/run/weir/holds/{}-999999-checksum", inode.trim());
    // One that is held and given up makes the directory.
    rig.wire(&["--rate", "100mbit"])?.stop()?;
    std::fs::write(&file, other.to_string())?;
    run(&mut rig.weir(&["mend", "wa"]), LIMIT)?.success()?;
    ensure!(!Path::new(&file).exists(), "{file} stays");
    before.require_same(&rig)?;
    std::fs::write(&file, earlier.to_string())?;
    let done = run(&mut rig.weir(&["mend", "wa"]), LIMIT)?;
    ensure!(done.status.code() == Some(1) && done.said().contains("cannot be read"), "{}", done.said());
    for file in [&file, gone] {
        std::fs::write(file, other.to_string())?;
    }
    std::fs::write(&of_none, earlier.to_string())?;
    let done = run(&mut rig.weir(&["stat", "--check"]), LIMIT)?;
    ensure!(!done.stderr.contains(rig.left.name()), "{}", done.stderr);
    run(&mut rig.weir(&["mend"]), LIMIT)?.success()?;
    for file in [&file, gone, &of_none] {
        ensure!(!Path::new(file).exists(), "{file} stays");
    }
    before.require_same(&rig)
}

/// Nobody listens at its socket any more: `stat` says so of it alone, until `mend` removes it.
fn after_both_were_killed_stat_says_so_until_it_is_mended() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let name = rig.middle.name();
    let socket = format!("/run/weir/{name}.sock");
    let other = Rig::new(1, 1)?;
    let living = other.wire(&["--rate", "100mbit"])?;
    kill_both(&rig)?;
    let sentence = format!("{name} was killed together with its guardian: `weir mend");
    for command in [&["stat"][..], &["stat", name], &["stat", "--check"], &["set", name, "--rate", "1mbit"]] {
        let done = run(&mut rig.weir(command), LIMIT)?;
        ensure!(Path::new(&socket).exists(), "weir {} removed {socket}", command.join(" "));
        ensure!(done.status.code() == Some(1), "weir {} ended with {}", command.join(" "), done.status);
        ensure!(done.stderr.contains(&sentence), "weir {} says: {}", command.join(" "), done.stderr);
        ensure!(!done.stderr.contains(living.name()), "of the other: {}", done.stderr);
    }
    for options in [&[][..], &["--check"], &["-Q"]] {
        let done = run(&mut rig.weir(&[&["stat", name, "--json"], options].concat()), LIMIT)?;
        let told: Value =
            serde_json::from_str(&done.stdout).with_context(|| format!("{options:?}: {}", done.stdout))?;
        ensure!(told["wires"] == json!([]) && done.status.code() == Some(1), "{options:?}: {told}");
        ensure!(done.stderr.contains(&sentence), "{options:?}: {}", done.stderr);
    }
    living.check()?;
    let done = run(&mut rig.weir(&["mend", "wa", "wb"]), LIMIT)?.success()?;
    ensure!(done.stdout.contains("control socket") && !Path::new(&socket).exists(), "{}", done.stdout);
    let done = run(&mut rig.weir(&["stat", name]), LIMIT)?;
    ensure!(
        done.stderr.contains(&format!("no wire, topology, stack or limit called {name}")),
        "{}",
        done.stderr
    );
    living.stop().map(drop)
}

fn without_a_process_to_be_had_everything_is_put_back() -> Result<()> {
    let rig = Rig::new(4, 4)?;
    let before = Before::look(&rig)?;
    let mut wire = rig.wire(&["--rate", "100mbit"])?;
    let group = Group::new()?;
    for id in [wire.id(), guardian(wire.id())?] {
        std::fs::write(group.0.join("cgroup.procs"), id.to_string())?;
    }
    std::fs::write(group.0.join("pids.max"), "1")?;
    wire.signal(Signal::TERM)?;
    let done = wire.wait()?;
    ensure!(done.status.success(), "it ended with {}: {}", done.status, done.stderr);
    before.require_same(&rig)?;
    let group = Group::new()?;
    std::fs::write(group.0.join("pids.max"), "1")?;
    let start = format!(
        "echo $$ > {}/cgroup.procs; exec ip netns exec {} {} wire wa wb",
        group.0.display(),
        rig.middle.name(),
        weir_binary()?.display()
    );
    let done = run(std::process::Command::new("sh").args(["-c", &start]), LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stderr);
    ensure!(done.stderr.lines().count() == 1, "not one sentence: {}", done.stderr);
    before.require_same(&rig)
}

/// The guardian's descriptors are the first to be used up, then the wire's. All of these are too few.
fn without_descriptors_to_be_had_a_wire_is_refused_at_once() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let socket = format!("/run/weir/{}.sock", rig.middle.name());
    for descriptors in [8, 16, 24, 28, 29, 30, 31, 36] {
        let start = format!(
            "ulimit -n {descriptors}; exec {} wire wa wb --name {}",
            weir_binary()?.display(),
            rig.middle.name()
        );
        // It waits 10 s for an answer of the guardian: less is at once.
        let done = run(rig.middle.command("sh").args(["-c", &start]), Duration::from_secs(9))
            .with_context(|| format!("{descriptors} descriptors"))?;
        let said = &done.stderr;
        ensure!(done.status.code() == Some(1) && !said.contains("guardian, the"), "{descriptors}: {said}");
        ensure!(!Path::new(&socket).exists(), "{descriptors}: {socket} stays: {said}");
        before.wait_for_same(&rig, A_MOMENT).with_context(|| format!("{descriptors} descriptors"))?;
    }
    Ok(())
}

/// A control group that bounds processes.
struct Group(std::path::PathBuf);

impl Group {
    fn new() -> Result<Group> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Version 1 has a hierarchy for it, version 2 has it switched on for groups below.
        let own = Path::new("/sys/fs/cgroup/pids");
        let root = if own.exists() { own } else { Path::new("/sys/fs/cgroup") };
        let control = root.join("cgroup.subtree_control");
        if control.exists() {
            // Fails where it is on already and may not be switched, which is seen below.
            let _ = std::fs::write(control, "+pids");
        }
        // Process ids are the same in all files of tests, and one that was killed leaves its group.
        let path = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!("weir-test-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path)?,
            }
        };
        let group = Group(path);
        ensure!(group.0.join("pids.max").exists(), "there is no pids controller");
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel refuses while a process is in it.
        wait_to_clean_up(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

fn ends_without_io_uring(signal: Signal) -> Result<()> {
    let rig = Rig::new(1, 1)?;
    address(1, rig.left_end(), rig.a())?;
    require_answer(&rig.left, &names(1, 2).v4).context("the pair does not carry by itself")?;
    let before = Before::look(&rig)?;
    let far = rig.right_address().v4;
    let mut command = rig.weir(&["wire", "wa", "wb", "--rate", "1mbit", "--name", rig.middle.name()]);
    let mut wire = weir_lab::process::Process::spawn(NO_IO_URING.apply(&mut command))?;
    wire.wait_for_output("ready", LIMIT)?;
    let sent = || -> Result<u64> {
        let links = json_of(&rig.left.ip("-j -s link show dev veth0")?)?;
        links[0]["stats64"]["tx"]["packets"].as_u64().context("a count")
    };
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &far, 2, 30.0))?;
    let at_start = sent()?;
    wait_until("the ring has been filled", A_MOMENT, || Ok(sent()? > at_start + 300))?;
    wire.signal(signal)?;
    let done = wire.wait(LIMIT)?;
    if signal == Signal::TERM {
        ensure!(done.status.success(), "it ended with {}: {}", done.status, done.stderr);
    }
    wait_for_answer(&rig.left, &names(1, 2).v4)?;
    drop(flood);
    before.wait_for_same(&rig, A_MOMENT)
}

fn without_io_uring_a_wire_lets_its_senders_go() -> Result<()> {
    ends_without_io_uring(Signal::TERM)
}

fn without_io_uring_a_killed_wire_lets_its_senders_go() -> Result<()> {
    ends_without_io_uring(Signal::KILL)
}

/// The pair of the namespace goes with it; the wire must not keep it.
fn the_namespace_of_a_container_goes_under_a_wire() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let container = Namespace::new("container")?;
    let near = End { namespace: &rig.middle, name: "wc" };
    veth(2, End { namespace: &container, name: "veth0" }, near, 1)?;
    let mut command = rig.weir(&["wire", "wc", "wb", "--rate", "100mbit", "--name", rig.middle.name()]);
    let mut wire = weir_lab::process::Process::spawn(&mut command)?;
    wire.wait_for_output("ready", LIMIT)?;
    drop(container);
    let deleted = now();
    wait_until("the pair is gone", LIMIT, || Ok(!rig.middle.ip("-br link")?.contains("wc@")))?;
    let took = deleted.elapsed();
    println!("    it was gone {took:.2?} after its namespace");
    require_timing!(took < 2 * A_SECOND, "it was gone {took:.1?} after its namespace");
    let done = wire.wait(LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    ensure!(
        done.stderr.contains("the network namespace of veth0 was deleted"),
        "it does not say why: {}",
        done.stderr
    );
    Ok(())
}
