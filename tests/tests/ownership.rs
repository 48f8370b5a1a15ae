//! An end of a pair is one weir's until all that it changed is put back: the next one waits or is refused, and nothing is undone that
//! another needs.

use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::bed::{Namespace, names};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::process::{Process, Signal, run};
use weir_port::hold::{Hold, Owner, Thing, ends};
use weir_port::link::Link;
use weir_port::mend;
use weir_port::netns::NetNs;
use weir_tests::classes::File;
use weir_tests::harness;
use weir_tests::host::Host;
use weir_tests::kernel::{belongings, holds, require_same, traces};
use weir_tests::pair::{LIMIT, Pair};
use weir_tests::rig::Rig;
use weir_tests::{guardian, kill_with_guardian, privileged, require_answer};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_generator_into_a_wire_leaves_the_wires_queue).together(),
        privileged!(a_generator_at_a_sender_that_moved_leaves_the_wires_queue).together(),
        privileged!(two_generators_on_one_pair_share_its_queues).together(),
        privileged!(of_two_that_share_a_pair_the_one_that_goes_on_is_named).together(),
        privileged!(a_second_wire_is_told_whose_the_interface_is).together(),
        privileged!(commands_that_are_refused_leave_no_hold).together(),
        privileged!(a_name_is_given_by_one_command_at_a_time).together(),
        privileged!(a_wire_waits_for_the_guardian_of_a_killed_one).together(),
        privileged!(a_wire_that_is_killed_and_started_at_once_stays_whole).together(),
        privileged!(a_rule_that_somebody_wrote_is_not_obeyed).together(),
        privileged!(a_flushed_ruleset_does_not_leave_the_host_a_router).together(),
        privileged!(the_last_of_two_runs_puts_forwarding_back).together(),
        privileged!(after_a_run_was_killed_whole_a_command_puts_forwarding_back).together(),
        privileged!(a_run_with_a_long_command_line_keeps_no_other_away).together(),
        privileged!(a_note_that_cannot_be_read_is_said_and_stays).together(),
        privileged!(a_mend_that_waits_for_one_end_keeps_the_other_from_nobody).together(),
    ])
}

const A_MOMENT: Duration = Duration::from_secs(20);

/// The root qdisc of an interface, by name and handle.
fn root(namespace: &Namespace, interface: &str) -> Result<String> {
    let text = namespace.tc(&format!("qdisc show dev {interface} root"))?;
    Ok(text.lines().next().unwrap_or_default().to_string())
}

fn require_whole(rig: &Rig) -> Result<()> {
    for (namespace, interface) in
        [(&rig.left, "veth0"), (&rig.right, "veth0"), (&rig.middle, "wa"), (&rig.middle, "wb")]
    {
        let root = root(namespace, interface)?;
        ensure!(root.contains("7765:"), "{interface} of {} has `{root}`", namespace.name());
    }
    for host in [&rig.left, &rig.right] {
        let offloads = host.sh("ethtool -k veth0")?;
        ensure!(
            offloads.contains("tx-checksumming: off"),
            "checksums are left to the device in {}",
            host.name()
        );
    }
    Ok(())
}

fn a_generator_into_a_wire_leaves_the_wires_queue() -> Result<()> {
    let rig = Rig::new(4, 4)?;
    let wire = rig.wire(&["--rate", "300mbit"])?;
    let mut generator = rig.left.command(weir_tests::weir_binary()?);
    run(generator.args(["gen", "veth0", "--count", "1000"]), LIMIT)?.success()?;
    require_whole(&rig)?;
    require_answer(&rig.left, &names(0, 2).v4)?;
    wire.check()?;
    wire.stop().map(drop)
}

/// Where the end has gone to, it is the wire's as it was before.
fn a_generator_at_a_sender_that_moved_leaves_the_wires_queue() -> Result<()> {
    let rig = Rig::new(4, 4)?;
    let other = Namespace::new("other")?;
    let wire = rig.wire(&["--rate", "300mbit"])?;
    rig.left.ip(&format!("link set veth0 netns {}", other.name()))?;
    other.ip("link set veth0 up")?;
    wait_until("it is held there", A_MOMENT, || Ok(root(&other, "veth0")?.contains("7765:")))?;
    wait_until("the wire says so", A_MOMENT, || Ok(wire.said().contains("is in another network namespace")))?;
    let mut generator = other.command(weir_tests::weir_binary()?);
    run(generator.args(["gen", "veth0", "--count", "1000"]), LIMIT)?.success()?;
    let (queue, offloads) = (root(&other, "veth0")?, other.sh("ethtool -k veth0")?);
    ensure!(queue.contains("7765:"), "the generator took the wire's queue along: `{queue}`");
    for feature in ["tx-checksumming: off", "tx-vlan-offload: off"] {
        ensure!(offloads.contains(feature), "not `{feature}` after the generator: {offloads}");
    }
    ensure!(!wire.said().contains("put back"), "the wire had to mend it: {}", wire.said());
    wire.check()?;
    wire.stop()?;
    let (queue, offloads) = (root(&other, "veth0")?, other.sh("ethtool -k veth0")?);
    ensure!(!queue.contains("7765:"), "the wire left its queue: `{queue}`");
    for feature in ["tx-checksumming: on", "tx-vlan-offload: on"] {
        ensure!(offloads.contains(feature), "not `{feature}` after the wire: {offloads}");
    }
    Ok(())
}

fn two_generators_on_one_pair_share_its_queues() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    let before = (traces(&pair.left)?, traces(&pair.right)?);
    let mut first = pair.generator(&["--rate", "1kpps"])?;
    let mut second = pair.right.command(weir_tests::weir_binary()?);
    second.args(["gen", "veth1", "--rate", "1kpps", "--count", "100"]);
    run(&mut second, LIMIT)?.success()?;
    for (namespace, interface) in [(&pair.left, "veth0"), (&pair.right, "veth1")] {
        let root = root(namespace, interface)?;
        ensure!(root.contains("7765:"), "{interface} has `{root}` under a generator");
    }
    first.signal(Signal::INT)?;
    first.wait(LIMIT)?.success()?;
    require_same(&before.0, &traces(&pair.left)?)?;
    require_same(&before.1, &traces(&pair.right)?)
}

/// The first that shared the queues has noted itself, and has ended.
fn of_two_that_share_a_pair_the_one_that_goes_on_is_named() -> Result<()> {
    const AT_ONCE: Duration = Duration::from_secs(5);
    let pair = Namespace::new("pair")?;
    pair.ip("link add veth0 type veth peer name veth1")?;
    for interface in ["veth0", "veth1"] {
        pair.ip(&format!("link set {interface} up"))?;
    }
    let spawn = |words: &[&str]| Process::spawn(pair.command(weir_tests::weir_binary()?).args(words));
    let mut generator = spawn(&["gen", "veth0", "--rate", "1kpps"])?;
    wait_until("the generator has its queue", A_MOMENT, || Ok(root(&pair, "veth0")?.contains("7765:")))?;
    let mut sink = spawn(&["sink", "veth1", "--time", "50s"])?;
    wait_until("the sink is ready", A_MOMENT, || {
        ensure!(sink.is_running()?, "it ended: {}", sink.stderr());
        Ok(sink.stderr().contains("ready"))
    })?;
    generator.signal(Signal::INT)?;
    generator.wait(LIMIT)?.success()?;
    let expected = format!("process {} (`", sink.id());
    for interface in ["veth0", "veth1"] {
        let started = now();
        let mut limit = pair.command(weir_tests::weir_binary()?);
        let done = run(limit.args(["limit", interface, "--rate", "10mbit"]), LIMIT)?;
        ensure!(done.status.code() == Some(1), "{interface}: it ended with {}", done.status);
        let is_named = done.stderr.contains(&expected) && done.stderr.contains("sink veth1");
        ensure!(is_named, "{interface}: `{expected}` is not in: {}", done.stderr);
        ensure!(started.elapsed() < AT_ONCE, "{interface}: refused after {:?}", started.elapsed());
    }
    sink.signal(Signal::INT)?;
    sink.wait(LIMIT)?.success().map(drop)
}

fn a_second_wire_is_told_whose_the_interface_is() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let arguments = ["wire", "wa", "wb", "--rate", "10mbit", "--name", "second"];
    let done = run(&mut rig.weir(&arguments), A_MOMENT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    let expected = format!("interface wa is held by process {}", wire.id());
    ensure!(
        done.stderr.contains(&expected) && done.stderr.contains("wire wa wb"),
        "`{expected}` is not in: {}",
        done.stderr
    );
    require_whole(&rig)?;
    wire.stop().map(drop)
}

/// A command that is about to have a name keeps it from others, long before anybody can see that it has it.
fn a_name_is_given_by_one_command_at_a_time() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let name = format!("{}-once", rig.middle.name());
    let said = |words: &str| -> Result<String> {
        let mut command = rig.middle.command(weir_tests::weir_binary()?);
        let done = run(command.args(words.split(' ')), 3 * A_MOMENT)?;
        ensure!(done.status.code() == Some(1), "`weir {words}` ended with {}: {}", done.status, done.stderr);
        Ok(done.stderr)
    };
    let by_this_process = || -> Result<()> {
        let name = format!("{name}-more");
        let _held = ends::hold(&[], &[&name], &mut |_| {})?;
        let wire = said(&format!("wire none none2 --name {name}"))?;
        let is_held = format!("the name {name} is held by process {}", std::process::id());
        ensure!(wire.contains(&is_held), "{wire}");
        Ok(())
    };
    // Who is refused has waited for the name, which takes it 15 s.
    std::thread::scope(|scope| {
        let waits = scope.spawn(by_this_process);
        let result = by_one_that_waits(&rig, &name, said);
        waits.join().map_err(|_| anyhow!("a thread panicked"))?.and(result)
    })
}

/// A topology that waits for its interfaces has its name, and gives it back.
fn by_one_that_waits(rig: &Rig, name: &str, said: impl Fn(&str) -> Result<String>) -> Result<()> {
    let file = File::new(&format!(
        "name = \"{name}\"\n[[port]]\ninterface = \"none\"\n[[port]]\ninterface = \"none2\"\n[[wire]]\nports = [\"none\", \"none2\"]\n"
    ))?;
    let mut command = rig.middle.command(weir_tests::weir_binary()?);
    let mut up = Process::spawn(command.args(["up", file.path(), "--wait", "600"]))?;
    wait_until("it says that it waits", A_MOMENT, || Ok(up.stderr().contains("waiting up to")))?;
    let limit = said(&format!("limit wa --rate 10mbit --name {name}"))?;
    ensure!(limit.contains(&format!("the name {name} is held by process {}", up.id())), "{limit}");
    up.signal(Signal::TERM)?;
    up.wait(A_MOMENT)?.success()?;
    // Nobody keeps it any more.
    let wire = said(&format!("wire none none2 --name {name}"))?;
    ensure!(wire.contains("there is no interface \"none\""), "{wire}");
    Ok(())
}

/// The commands want both ends of a pair, and get some of that before they come to the end that the wire has.
fn commands_that_are_refused_leave_no_hold() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let namespaces = [&rig.left, &rig.middle, &rig.right];
    let none = holds(&namespaces)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let of_the_wire = holds(&namespaces)?;
    ensure!(of_the_wire.len() > none.len(), "a wire holds nothing");
    let wanted =
        [(&rig.left, "mend veth0"), (&rig.middle, "limit wa --rate 10mbit"), (&rig.middle, "wire wb wa")];
    for (namespace, words) in wanted {
        let mut command = namespace.command(weir_tests::weir_binary()?);
        let done = run(command.args(words.split(' ')), 3 * A_MOMENT)?;
        ensure!(done.status.code() == Some(1), "`weir {words}` ended with {}: {}", done.status, done.stderr);
        let expected = format!("is held by process {}", wire.id());
        ensure!(done.stderr.contains(&expected), "`{expected}` is not in: {}", done.stderr);
        require_equal(words, &holds(&namespaces)?, &of_the_wire)?;
    }
    require_whole(&rig)?;
    wire.check()?;
    wire.stop()?;
    require_equal("the wire", &holds(&namespaces)?, &none)
}

fn require_equal(after: &str, are: &[String], were: &[String]) -> Result<()> {
    ensure!(are == were, "holds after {after}: {are:?}, before: {were:?}");
    Ok(())
}

fn a_wire_waits_for_the_guardian_of_a_killed_one() -> Result<()> {
    let rig = Rig::new(4, 4)?;
    let before = (traces(&rig.left)?, traces(&rig.middle)?, belongings()?);
    let mut wire = rig.wire(&["--rate", "100mbit"])?;
    let slow = guardian(wire.id())?;
    rig.middle.sh(&format!("kill -STOP {slow}"))?;
    wire.signal(Signal::KILL)?;
    wire.wait()?;
    // The next wire lets the stopped guardian go on.
    let wire = rig.wire(&["--rate", "100mbit"])?;
    require_whole(&rig)?;
    // Undoing by the first guardian would come within this time.
    let_pass(Duration::from_secs(2), |_| ())?;
    require_whole(&rig)?;
    require_answer(&rig.left, &names(0, 2).v4)?;
    wire.check()?;
    wire.stop()?;
    require_same(&before.0, &traces(&rig.left)?)?;
    require_same(&before.1, &traces(&rig.middle)?)?;
    let left_behind = belongings()?.new_since(&before.2);
    ensure!(left_behind.iter().all(|thing| thing.starts_with("BPF")), "left behind: {left_behind:?}");
    Ok(())
}

fn a_wire_that_is_killed_and_started_at_once_stays_whole() -> Result<()> {
    const ROUNDS: u32 = 5;
    let rig = Rig::new(1, 1)?;
    let mut wire = rig.wire(&["--rate", "100mbit"])?;
    for _ in 0..ROUNDS {
        wire.signal(Signal::KILL)?;
        wire = rig.wire(&["--rate", "100mbit"])?;
    }
    let_pass(Duration::from_secs(3), |_| ())?;
    require_whole(&rig)?;
    require_answer(&rig.left, &names(0, 2).v4)?;
    wire.check()?;
    wire.stop().map(drop)
}

/// A run whose program has started: its way out is open, whatever other runs have opened.
fn a_run(host: &Host) -> Result<Process> {
    let mut run = Process::spawn(&mut host.weir_run(&[], "echo up; exec sleep 60"))?;
    run.wait_for_output("up", LIMIT)?;
    ensure!(host.forwards()?, "the run has no way out");
    Ok(run)
}

fn end(mut run: Process) -> Result<()> {
    run.signal(Signal::TERM)?;
    run.wait(LIMIT).map(drop)
}

/// A user who may edit the ruleset must not have root write files.
fn a_rule_that_somebody_wrote_is_not_obeyed() -> Result<()> {
    let host = Host::with_internet()?;
    let victim = std::env::temp_dir().join(format!("weir-victim-{}", std::process::id()));
    std::fs::write(&victim, "original")?;
    let run = a_run(&host)?;
    let tables = host.namespace.sh("nft list tables")?;
    let name =
        tables.split_whitespace().find(|word| word.starts_with("weir")).context("a table")?.to_string();
    host.namespace.sh(&format!("nft delete table inet {name}"))?;
    let file = std::env::temp_dir().join(format!("weir-rules-{}", std::process::id()));
    std::fs::write(
        &file,
        format!("table inet {name} {{\n comment \"weir: {}=pwned\"\n}}\n", victim.display()),
    )?;
    host.namespace.sh(&format!("nft -f {}", file.display()))?;
    end(run)?;
    let text = std::fs::read_to_string(&victim)?;
    std::fs::remove_file(&victim)?;
    std::fs::remove_file(&file)?;
    ensure!(text == "original", "root wrote `{text}`");
    ensure!(!host.forwards()?, "the host still forwards");
    Ok(())
}

fn a_flushed_ruleset_does_not_leave_the_host_a_router() -> Result<()> {
    let host = Host::with_internet()?;
    let run = a_run(&host)?;
    host.namespace.sh("nft flush ruleset")?;
    end(run)?;
    ensure!(!host.forwards()?, "the host still forwards");
    Ok(())
}

fn the_last_of_two_runs_puts_forwarding_back() -> Result<()> {
    let host = Host::with_internet()?;
    let before = host.state()?;
    let first = a_run(&host)?;
    let second = a_run(&host)?;
    end(first)?;
    ensure!(host.forwards()?, "the second run has no way out any more");
    end(second)?;
    let after = host.state()?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

fn after_a_run_was_killed_whole_a_command_puts_forwarding_back() -> Result<()> {
    let host = Host::with_internet()?;
    let nothing = run(&mut host.weir(&["mend"]), LIMIT)?.success()?;
    ensure!(!nothing.stdout.contains("forwarding"), "{}", nothing.stdout);
    let whole = a_run(&host)?;
    let living = run(&mut host.weir(&["mend"]), LIMIT)?.success()?;
    ensure!(host.forwards()?, "it mended what a living run needs: {}", living.stdout);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", whole.id()))?;
    // Its program ends with it.
    kill_with_guardian(whole.id())?;
    whole.wait(LIMIT)?;
    // A process that dies keeps its locks until its files are closed.
    for child in children.split_whitespace() {
        wait_until("what was killed is gone", LIMIT, || Ok(!is_running(child)))?;
    }
    ensure!(host.forwards()?, "nothing is left behind: this test sees nothing");
    let done = run(&mut host.weir(&["mend"]), LIMIT)?.success()?;
    ensure!(!host.forwards()?, "the host still forwards: {}", done.stdout);
    ensure!(done.stdout.contains("forwarding: 0 again"), "it says: {}", done.stdout);
    let again = run(&mut host.weir(&["mend"]), LIMIT)?.success()?;
    ensure!(!again.stdout.contains("forwarding"), "{}", again.stdout);
    Ok(())
}

/// The command line is longer than the file of a hold is read.
fn a_run_with_a_long_command_line_keeps_no_other_away() -> Result<()> {
    let host = Host::with_internet()?;
    let mut command = host.weir_run(&[], "echo up; exec sleep 60");
    let mut long = Process::spawn(command.args((0..15_000).map(|number| number.to_string())))?;
    long.wait_for_output("up", LIMIT)?;
    host.finished("true")?.success()?;
    end(long)?;
    ensure!(!host.forwards()?, "the host still forwards");
    Ok(())
}

fn a_note_that_cannot_be_read_is_said_and_stays() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let inode = std::fs::metadata(format!("/run/netns/{}", rig.middle.name()))?.ino();
    let number = rig.middle.enter(|| Link::by_name("wa").map(|link| link.ifindex))??;
    std::fs::create_dir_all("/run/weir/holds")?;
    for (thing, command) in
        [("ipv6-forwarding".into(), &["mend"][..]), (format!("{number}-queue"), &["mend", "wa"])]
    {
        let path = format!("/run/weir/holds/{inode}-{thing}");
        std::fs::write(&path, "{\"owner\": 7}")?;
        let done = run(&mut rig.weir(command), LIMIT)?;
        let is_there = std::fs::remove_file(&path).is_ok();
        ensure!(done.status.code() == Some(1), "{command:?}: {} {}", done.stdout, done.stderr);
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains(&path) && said.contains("cannot be read"), "{command:?} says {said}");
        ensure!(is_there, "{command:?} removed {path}");
    }
    Ok(())
}

/// Both ends of a pair are in one namespace. Whichever of them is named, the end that comes first is taken first.
fn a_mend_that_waits_for_one_end_keeps_the_other_from_nobody() -> Result<()> {
    let namespace = Namespace::new("pair")?;
    namespace.ip("link add va type veth peer name vb")?;
    let work = || -> Result<()> {
        let (netns, owner) = (NetNs::current()?, Owner::this(None));
        let mut links = [Link::by_name("va")?, Link::by_name("vb")?];
        links.sort_by_key(|link| link.ifindex);
        let things = links.map(|link| Thing::receive(&netns, &link));
        let take = |thing: &Thing| Hold::alone(thing, &owner, &mut |_| ());
        for name in ["va", "vb"] {
            let mut held = Some(take(&things[0])?);
            // Of the two the mend waits for the one that is held, and the other can be had.
            let mut other = None;
            mend::pair(name, &mut |_| {
                other = Some(take(&things[1]).map(drop));
                held = None;
            })?;
            other.with_context(|| format!("mending {name} did not wait"))??;
        }
        Ok(())
    };
    namespace.enter(work)?
}

/// Returns whether a process is there and has not ended.
fn is_running(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}
