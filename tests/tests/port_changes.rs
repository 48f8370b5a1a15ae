//! Interfaces of a topology that change under it: whether they are up, the number of their receive queues, and their names.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::bed::{End, Namespace, veth};
use weir_lab::clock::{let_pass, wait_until};
use weir_lab::iperf::Load;
use weir_lab::process::{Process, Signal, send_signal};
use weir_port::bpf::doorbell::Bell;
use weir_port::hold::{Hold, Owner, Thing};
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::undo::{Keeper, Undo};
use weir_run::clock::now_ns;
use weir_run::datapath::{Datapath, DatapathConfig};
use weir_run::topology;
use weir_run::watcher::Eye;
use weir_tests::lacking::NO_IO_URING;
use weir_tests::rig::require_lossless;
use weir_tests::topology::{Hosts, Up, answers, flood, wait_for_port};
use weir_tests::{guardian, harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(60);
const QUEUES: u32 = 3;
const QUEUES_LATER: u32 = 4;
/// The port whose queues change.
const LAST: usize = 2;

const BRIDGE: &str = r#"
[[port]]
interface = "p0"
[[port]]
interface = "p1"
[[port]]
interface = "p2"
[[bridge]]
name = "lan"
ports = ["p0", "p1", "p2"]
"#;

/// A port that is not there.
const SPARE: &str = "[[port]]\ninterface = \"spare\"\noptional = true\n";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_port_that_goes_while_it_is_taken_over_is_waited_for).together(),
        privileged!(a_port_that_bounces_as_it_begins_is_waited_for).together(),
        privileged!(a_port_that_comes_up_with_more_queues_leaves_the_others).together(),
        privileged!(a_missing_port_takes_no_other_one_that_gets_its_name).together(),
        privileged!(a_port_that_goes_under_another_name_is_awaited_by_its_first).together(),
        privileged!(a_port_that_comes_up_while_its_other_end_moves_is_owned_again).together(),
        privileged!(a_port_whose_other_end_moves_and_is_unfit_leaves_nothing_there).together(),
        privileged!(the_other_end_of_a_port_is_refused_and_the_port_goes_on).together(),
        privileged!(a_port_that_cannot_be_owned_again_leaves_the_others).flooding(),
        privileged!(a_port_that_another_lets_go_of_keeps_no_other_waiting).together(),
    ])
}

/// A keeper that deletes the pair of a port when the first change at its other end is recorded: the port has been looked at by then, and has no
/// socket yet.
struct Deleter<'a> {
    hosts: &'a Hosts,
    port: usize,
    /// The namespace of the other end, until it is deleted.
    netns: Option<u64>,
    /// The numbers of interfaces whose changes were put back.
    put_back: Vec<u32>,
}

impl Keeper for Deleter<'_> {
    fn record(&mut self, netns: &NetNs, _undo: Undo, _hold: Option<Hold>) -> weir_port::Result<()> {
        if self.netns.take_if(|inode| *inode == netns.inode()).is_some() {
            self.hosts.middle.ip(&format!("link del p{}", self.port)).expect("the pair was there");
        }
        Ok(())
    }

    fn put_back(&mut self, interfaces: &[(u64, u32)]) -> weir_port::Result<()> {
        self.put_back.extend(interfaces.iter().map(|(_, ifindex)| ifindex));
        Ok(())
    }

    fn forget(&mut self, _interfaces: &[(u64, u32)]) -> weir_port::Result<()> {
        Ok(())
    }

    fn owner(&self) -> Option<Owner> {
        None
    }

    fn deletes(&self, _netns: &NetNs, _ifindex: u32) -> bool {
        false
    }

    fn say(&mut self, _text: &str) {}
}

/// The kernel has many words for an interface that vanishes under its calls.
fn a_port_that_goes_while_it_is_taken_over_is_waited_for() -> Result<()> {
    let hosts = hosts(None)?;
    let netns = hosts.hosts[LAST].enter(NetNs::current)??.inode();
    let mut keeper = Deleter { hosts: &hosts, port: LAST, netns: Some(netns), put_back: Vec::new() };
    let read = topology::read("lan.toml", BRIDGE, "", |_| Err("no file".into()));
    let read = read.map_err(|told| anyhow!("{told:?}"))?;
    let config = DatapathConfig {
        name: read.name,
        plan: read.plan.context("no ports")?,
        port_names: Vec::new(),
        memory_bytes: 16 << 20,
        workers: 1,
    };
    let there = hosts.middle.enter(|| -> Result<Vec<bool>> {
        let bells = [Arc::new(Bell::new()?)];
        let (eye, _lens) = Eye::new()?;
        let datapath = Datapath::open(&config, &bells, &mut keeper, eye, now_ns())?;
        Ok(datapath.pairs.iter().map(Option::is_some).collect())
    })??;
    ensure!(keeper.netns.is_none(), "the pair was not deleted");
    ensure!(there == [true, true, false], "{there:?}");
    ensure!(keeper.put_back.len() == 2, "{:?}", keeper.put_back);
    Ok(())
}

/// So many hosts as ports, on pairs of so many queues.
fn hosts(queues: Option<u32>) -> Result<Hosts> {
    let hosts = Hosts::new(LAST + 1, queues)?;
    (0..=LAST).try_for_each(|host| hosts.address(host, &format!("10.99.1.{}/24", host + 1)))?;
    Ok(hosts)
}

/// The queues and offloads of the second host's pair.
fn look(hosts: &Hosts) -> Result<String> {
    look_at([(&hosts.middle, "p1"), (&hosts.hosts[1], "veth0")])
}

/// The queues and offloads of the ends of a pair.
fn look_at(ends: [(&Namespace, &str); 2]) -> Result<String> {
    let mut seen = String::new();
    for (namespace, device) in ends {
        seen += &namespace.tc(&format!("qdisc show dev {device}"))?;
        let features = namespace.sh(&format!("ethtool -k {device}"))?;
        let is_changed = |line: &&str| ["tx-checksum", "tx-vlan"].iter().any(|name| line.contains(name));
        seen.extend(features.lines().filter(is_changed).map(|line| format!("{line}\n")));
    }
    Ok(seen)
}

/// The other end goes down and up without a pause, so it is down at one of the steps of nearly every start.
fn a_port_that_bounces_as_it_begins_is_waited_for() -> Result<()> {
    let hosts = hosts(None)?;
    let path = std::env::temp_dir().join(format!("{}-bounces.toml", hosts.middle.name()));
    std::fs::write(&path, BRIDGE)?;
    let bounces =
        "while :; do for n in $(seq 500); do printf 'link set veth0 %s\\n' down up; done | ip -batch -; done";
    let bouncing = Process::spawn(hosts.hosts[LAST].command("sh").args(["-c", bounces]))?;
    for start in 0..8 {
        let mut command = hosts.middle.command(weir_binary()?);
        command.arg("up").arg(&path).args(["--wait", "30"]);
        let mut up = Process::spawn(&mut command)?;
        up.wait_for_output("ready", PATIENCE).with_context(|| format!("start {start}"))?;
        up.stop(PATIENCE)?.success()?;
    }
    // The batch that is under way goes on to its end, where the interface is up.
    drop(bouncing);
    let up = hosts.up_with(BRIDGE, &["--wait", "30"])?;
    answers(&hosts, "10.99.1.3")?;
    std::fs::remove_file(&path)?;
    up.down().map(drop)
}

fn a_missing_port_takes_no_other_one_that_gets_its_name() -> Result<()> {
    let hosts = hosts(None)?;
    let before = look(&hosts)?;
    let up = hosts.up(&(BRIDGE
        .replace("[[bridge]]", &format!("{SPARE}[[bridge]]"))
        .replace("\"p2\"]", "\"p2\", \"spare\"]")))?;
    answers(&hosts, "10.99.1.2")?;
    hosts.middle.ip("link set p1 name spare")?;
    wait_until("the name is followed", PATIENCE, || Ok(up.stderr().contains("p1 is called spare now")))?;
    // Missing ports are tried each second.
    let_pass(Duration::from_secs(3), |_| ())?;
    answers(&hosts, "10.99.1.2")?;
    let said = up.stderr();
    ensure!(!said.contains("not a port yet") && !said.contains("replaced"), "{said}");
    up.check()?;
    // The one that is there is meant, and told apart.
    let set = up.weir(&["set", &up.name, "--port", "spare", "--rate", "50mbit"])?.success()?.stdout;
    ensure!(set.contains("->spare no limit -> 50mbit"), "{set}");
    let stat = up.stat()?;
    let rows = stat["classes"].as_array().context("directions")?;
    let rates: Vec<_> =
        rows.iter().map(|row| (row["name"].as_str(), row["rate_bits_per_s"].as_u64())).collect();
    let expected =
        [("->p0", None), ("->spare", Some(50_000_000)), ("->p2", None), ("->spare (missing)", None)];
    ensure!(rates == expected.map(|(name, rate)| (Some(name), rate)), "{rates:?}");
    let ports = up.stat_rows("ports")?;
    let names: Vec<_> =
        ports.iter().map(|port| (port["name"].as_str(), port["device"]["name"].as_str())).collect();
    let expected = ["p0", "spare", "p2", "spare (missing)"].map(|name| (Some(name), Some(name)));
    ensure!(names == expected, "{names:?}");
    let set = up.weir(&["set", &up.name, "--port", "spare (missing)", "--rate", "20mbit"])?.success()?.stdout;
    ensure!(set.contains("->spare (missing) no limit -> 20mbit"), "{set}");
    // A file cannot say both ports by one name.
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    let path = std::env::temp_dir().join(format!("{}-shown.toml", up.name));
    std::fs::write(&path, &shown)?;
    let file = path.display().to_string();
    up.weir(&["check", &file])?.success().with_context(|| shown.clone())?;
    let applied = up.weir(&["apply", &file])?.success()?.stdout;
    ensure!(applied.starts_with("nothing to change"), "{applied}");
    std::fs::remove_file(&path)?;
    up.down()?;
    hosts.middle.ip("link set spare name p1")?;
    let after = look(&hosts)?;
    ensure!(after == before, "before {before} after {after}");
    Ok(())
}

fn a_port_that_goes_under_another_name_is_awaited_by_its_first() -> Result<()> {
    let hosts = hosts(Some(QUEUES))?;
    let up = hosts.up(BRIDGE)?;
    hosts.middle.ip("link set p2 name px")?;
    wait_until("the name is followed", PATIENCE, || Ok(up.stderr().contains("p2 is called px now")))?;
    let set = up.weir(&["set", &up.name, "--port", "p2", "--rate", "50mbit"])?;
    let told = set.stderr.contains("; the interface that was p2 is called px now\n");
    ensure!(set.status.code() == Some(2) && told, "{}", set.stderr);
    hosts.middle.ip("link del px")?;
    wait_for_port(&up, LAST, "gone")?;
    let said = up.stderr();
    ensure!(
        said.contains("px is gone") && said.contains("called p2, as it was at first, is a port again"),
        "{said}"
    );
    let row = up.stat_rows("ports")?.swap_remove(LAST);
    ensure!(row["name"] == "p2" && row["device"]["name"] == "p2", "{row}");
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    ensure!(shown.contains("interface = \"p2\"") && !shown.contains("px"), "{shown}");
    let [host, middle] = [&hosts.hosts[LAST], &hosts.middle];
    veth(
        LAST as u8 + 1,
        End { namespace: host, name: "veth0" },
        End { namespace: middle, name: "p2" },
        QUEUES,
    )?;
    hosts.address(LAST, "10.99.1.3/24")?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down().map(drop)
}

/// More queues than there were when the port went down. Fewer the kernel refuses while there are sockets at the queues.
fn a_port_that_comes_up_with_more_queues_leaves_the_others() -> Result<()> {
    let hosts = hosts(Some(QUEUES_LATER))?;
    let set_queues = |count: u32| hosts.middle.sh(&format!("ethtool -L p2 rx {count}"));
    hosts.hosts[LAST].sh(&format!("ethtool -L veth0 tx {QUEUES}"))?;
    set_queues(QUEUES)?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    hosts.middle.ip("link set p2 down")?;
    set_queues(QUEUES_LATER)?;
    hosts.middle.ip("link set p2 up")?;
    wait_for_port(&up, LAST, "unfit")?;
    let said = up.daemon.stderr();
    let why = format!("p2 receives on {QUEUES_LATER} queues now, and the topology was made for {QUEUES}");
    ensure!(said.contains(&why), "{said}");
    answers(&hosts, "10.99.1.2")?;
    set_queues(QUEUES)?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down().map(drop)
}

/// Makes changes of which a topology sees nothing until all are made.
fn at_once(up: &Up, change: impl FnOnce() -> Result<()>) -> Result<()> {
    // The guardian stands too, as it kills a main process that is stopped.
    let both = [guardian(up.daemon.id())?, up.daemon.id()];
    both.iter().try_for_each(|&id| send_signal(id, Signal::STOP))?;
    let changed = change();
    both.iter().rev().try_for_each(|&id| send_signal(id, Signal::CONT))?;
    changed
}

/// Its queues are to be owned again before anybody knows where its other end is.
fn a_port_that_comes_up_while_its_other_end_moves_is_owned_again() -> Result<()> {
    let hosts = hosts(None)?;
    let other = Namespace::new("other")?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    at_once(&up, || {
        hosts.middle.ip("link set p2 down")?;
        hosts.hosts[LAST].ip(&format!("link set veth0 netns {}", other.name()))?;
        hosts.middle.ip("link set p2 up").map(drop)
    })?;
    wait_until("it is followed", PATIENCE, || Ok(up.stderr().contains("in another network namespace now")))?;
    other.ip("addr add 10.99.1.3/24 dev veth0")?;
    other.ip("link set veth0 up")?;
    answers(&hosts, "10.99.1.3").with_context(|| up.stderr())?;
    answers(&hosts, "10.99.1.2")?;
    up.check()?;
    up.down().map(drop)
}

/// Both in one look: the end is arranged where it is now, and then given up.
fn a_port_whose_other_end_moves_and_is_unfit_leaves_nothing_there() -> Result<()> {
    let hosts = hosts(Some(QUEUES))?;
    let other = Namespace::new("other")?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    at_once(&up, || {
        hosts.hosts[LAST].ip(&format!("link set veth0 netns {}", other.name()))?;
        other.sh("ethtool -L veth0 tx 1").map(drop)
    })?;
    wait_until("it is given up", PATIENCE, || Ok(up.stderr().contains("veth0 sends on 1 queues now")))?;
    wait_until("it is as before", PATIENCE, || {
        let queue = other.tc("qdisc show dev veth0")?;
        let offloads = other.sh("ethtool -k veth0")?;
        let is_on = |feature| offloads.contains(&format!("{feature}: on"));
        Ok(!queue.contains("7765:") && is_on("tx-checksumming") && is_on("tx-vlan-offload"))
    })
    .with_context(|| up.stderr())?;
    answers(&hosts, "10.99.1.2")?;
    up.down().map(drop)
}

/// Another weir puts back for long what it changed at an optional port. Another port is renamed meanwhile.
fn a_port_that_another_lets_go_of_keeps_no_other_waiting() -> Result<()> {
    const SOON: Duration = Duration::from_secs(6);
    let hosts = hosts(None)?;
    hosts.middle.ip("link set p2 down")?;
    let up = hosts.up(&BRIDGE.replace("\"p2\"\n", "\"p2\"\noptional = true\n"))?;
    answers(&hosts, "10.99.1.2")?;
    let hold = hosts.middle.enter(|| -> Result<Hold> {
        let thing = Thing::receive(&NetNs::current()?, &Link::by_name("p2")?);
        Ok(Hold::alone(&thing, &Owner::this(Some(std::process::id())), &mut |_| ())?)
    })??;
    hold.note_undone();
    hosts.middle.ip("link set p2 up")?;
    wait_until("it is tried", PATIENCE, || {
        let said = up.stderr();
        Ok(said.contains("waiting for interface p2") || said.contains("p2 is not a port yet"))
    })?;
    hosts.middle.ip("link set p1 name px")?;
    let is_followed = || Ok(up.stderr().contains("p1 is called px now"));
    wait_until("another port is cared for", SOON, is_followed).with_context(|| up.stderr())?;
    ensure!(up.stderr().contains("which is about to let it go"), "{}", up.stderr());
    hold.finish();
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down().map(drop)
}

/// A pair whose ends are both to be ports: the first one is, and nothing of it is put back for the other one's sake.
fn the_other_end_of_a_port_is_refused_and_the_port_goes_on() -> Result<()> {
    let hosts = hosts(None)?;
    let pair_in = |namespace: &Namespace| -> Result<()> {
        namespace.ip("link add va type veth peer name vb")?;
        ["va", "vb"].iter().try_for_each(|end| namespace.ip(&format!("link set {end} up")).map(drop))
    };
    pair_in(&hosts.hosts[0])?;
    let untouched = look_at([(&hosts.hosts[0], "va"), (&hosts.hosts[0], "vb")])?;
    let spares = SPARE.replace("spare", "va") + &SPARE.replace("spare", "vb");
    let up = hosts.up(&BRIDGE
        .replace("[[bridge]]", &format!("{spares}[[bridge]]"))
        .replace("\"p2\"]", "\"p2\", \"va\", \"vb\"]"))?;
    pair_in(&hosts.middle)?;
    wait_until("one end is refused", PATIENCE, || Ok(up.stderr().contains("is the other end of")))?;
    // Missing ports are tried each second.
    let_pass(Duration::from_secs(3), |_| ())?;
    hosts.middle.ip("link set va mtu 1400")?;
    wait_until("the watcher looks on", PATIENCE, || Ok(up.stderr().contains("the MTU of va is 1400 now")))?;
    let said = up.stderr();
    let is_undone = ["replaced", "left to it", "does not answer"].iter().any(|word| said.contains(word));
    ensure!(!is_undone && said.matches("is the other end of").count() == 1, "{said}");
    up.down()?;
    let after = look_at([(&hosts.middle, "va"), (&hosts.middle, "vb")])?;
    ensure!(after == untouched, "untouched {untouched} after {after}");
    Ok(())
}

/// Priming packets are filtered, and io_uring is forbidden, as by `kernel.io_uring_disabled=2`: nothing polls the queues of a port anew.
fn a_port_that_cannot_be_owned_again_leaves_the_others() -> Result<()> {
    // Without io_uring there may be as many as cores.
    let hosts = hosts(Some(1))?;
    let before = look(&hosts)?;
    // No more than the receiving program takes.
    let file = BRIDGE.replace("interface = \"p1\"", "interface = \"p1\"\nrate = \"200mbit\"");
    let up = Up::start_so(&weir_binary()?, &hosts.middle, &file, |command| {
        NO_IO_URING.apply(command);
    })?;
    answers(&hosts, "10.99.1.3")?;
    for rule in [
        "add table inet filter",
        "add chain inet filter input { type filter hook input priority 0 ; }",
        "add rule inet filter input ip saddr 0.0.0.0 udp dport 1-65535 drop",
    ] {
        hosts.middle.sh(&format!("nft {rule}"))?;
    }
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, 5.0);
    let flood = flood(&load)?;
    hosts.middle.ip("link set p2 down")?;
    hosts.middle.ip("link set p2 up")?;
    wait_for_port(&up, LAST, "unfit")?;
    let said = up.daemon.stderr();
    let why = "first packets do not arrive, and io_uring is not allowed";
    ensure!(
        said.contains(why) && said.contains("p2 is dropped, and it is a port again when it is fit"),
        "{said}"
    );
    hosts.middle.sh("nft flush chain inet filter input")?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    up.check()?;
    up.down()?;
    ensure!(look(&hosts)? == before, "not all is as before");
    Ok(())
}
