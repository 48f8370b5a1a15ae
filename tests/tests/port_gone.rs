//! Interfaces of a topology that vanish, and come back, or come late, while all others carry packets.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, veth};
use weir_lab::clock::{now, wait_until};
use weir_lab::iperf::Load;
use weir_lab::process::{Process, run};
use weir_tests::rig::require_lossless;
use weir_tests::tcx::Tcx;
use weir_tests::topology::{Hosts, Up, answers, flood, wait_for_port};
use weir_tests::{at_length, harness, kernel, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(60);
/// The port that goes.
const LAST: usize = 2;
/// Queues enough that no flow waits behind another's.
const QUEUES: u32 = 8;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_pair_that_is_deleted_is_gone_and_comes_back).flooding(),
        privileged!(a_container_that_ends_takes_nothing_along).together(),
        privileged!(containers_that_restart_in_a_loop_disturb_nobody).flooding(),
        privileged!(a_port_that_moves_away_and_back).together(),
        privileged!(killed_while_a_port_is_gone).together(),
        privileged!(down_while_a_port_is_gone).together(),
        privileged!(a_router_that_is_started_anew_is_found_at_once).together(),
        privileged!(a_wire_ends_as_ever).together(),
        privileged!(an_optional_port_is_taken_in_when_it_comes).flooding(),
        privileged!(an_optional_port_that_is_unfit_at_the_start_is_taken_in_when_it_is_fit).together(),
        privileged!(a_port_whose_other_end_is_made_unfit_leaves_the_others).flooding(),
        privileged!(a_port_that_cannot_be_put_right_leaves_the_others).flooding(),
        privileged!(an_end_that_changes_without_end_fills_no_log).together(),
        privileged!(an_interface_that_is_not_there_is_told_or_waited_for).together(),
    ])
}

/// A bridge of three hosts, of which the last has a low limit.
const BRIDGE: &str = r#"
[[port]]
interface = "p0"
rate = "200mbit"
[[port]]
interface = "p1"
rate = "200mbit"
[[port]]
interface = "p2"
rate = "1mbit"
[[bridge]]
name = "lan"
ports = ["p0", "p1", "p2"]
"#;

fn hosts() -> Result<Hosts> {
    let hosts = Hosts::new(3, Some(QUEUES))?;
    for host in 0..3 {
        hosts.address(host, &format!("10.99.1.{}/24", host + 1))?;
    }
    Ok(hosts)
}

/// Makes the pair of the last port again.
fn plug_in(hosts: &Hosts, queues: u32) -> Result<()> {
    let (host, middle) = (&hosts.hosts[LAST], &hosts.middle);
    veth(
        LAST as u8 + 1,
        End { namespace: host, name: "veth0" },
        End { namespace: middle, name: "p2" },
        queues,
    )?;
    hosts.address(LAST, "10.99.1.3/24")
}

fn port(up: &Up, port: usize) -> Result<Value> {
    Ok(up.stat_rows("ports")?.swap_remove(port))
}

/// Packets for the last port, more than it takes, from the first host; nobody receives them.
fn flood_last(hosts: &Hosts) -> Result<Process> {
    let mut command = hosts.hosts[0].command("iperf");
    Process::spawn(command.args(["-u", "-c", "10.99.1.3", "-p", "9", "-b", "20m", "-t", "600"]))
}

fn a_pair_that_is_deleted_is_gone_and_comes_back() -> Result<()> {
    let hosts = hosts()?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    let bound_for_it = flood_last(&hosts)?;
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, 6.0);
    let flood = flood(&load)?;
    wait_until("packets wait for p2", PATIENCE, || {
        Ok(up.stat()?["classes"][LAST]["held_packets"].as_u64().is_none_or(|held| held > 0))
    })?;
    hosts.middle.ip("link del p2")?;
    wait_for_port(&up, LAST, "gone")?;
    let device = &port(&up, LAST)?["device"];
    ensure!(device["state"] == "gone", "{device}");
    let refused = up.weir(&["stat", &up.name, "--check"])?;
    let said = format!("{}{}", refused.stdout, refused.stderr);
    ensure!(refused.success().is_err() && said.contains("p2: the interface is gone"), "{said}");
    ensure!(said.lines().filter(|line| line.contains("p2")).count() == said.lines().count(), "{said}");
    plug_in(&hosts, QUEUES)?;
    wait_for_port(&up, LAST, "up")?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    drop(bound_for_it);
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    let stat = up.stat()?;
    let dropped = stat["classes"].to_string();
    ensure!(dropped.contains("port-gone"), "{dropped}");
    ensure!(stat["events"]["gone"]["times"] == 1, "{}", stat["events"]);
    // The port is limited as before.
    ensure!(stat["classes"][LAST]["rate_bits_per_s"] == 1_000_000, "{}", stat["classes"][LAST]);
    up.down()?;
    Ok(())
}

fn a_container_that_ends_takes_nothing_along() -> Result<()> {
    let mut hosts = hosts()?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    drop(hosts.hosts.pop());
    wait_for_port(&up, LAST, "gone")?;
    wait_until("the kernel has removed the pair", PATIENCE, || {
        Ok(!hosts.middle.ip("-o link show")?.contains("p2"))
    })
    .with_context(|| format!("weir said: {}", up.daemon.stderr()))?;
    answers(&hosts, "10.99.1.2")?;
    hosts.hosts.push(Namespace::new("again")?);
    plug_in(&hosts, 1)?;
    wait_for_port(&up, LAST, "up")?;
    wait_until("it warns", PATIENCE, || Ok(up.daemon.stderr().contains("warning: p2 has one queue")))?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down()?;
    Ok(())
}

fn containers_that_restart_in_a_loop_disturb_nobody() -> Result<()> {
    let times = at_length(5, 20);
    let hosts = hosts()?;
    let up = hosts.up(BRIDGE)?;
    let bound_for_it = flood_last(&hosts)?;
    let seconds = times as f64;
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, seconds);
    let flood = flood(&load)?;
    let descriptors = |what: &str| -> Result<usize> {
        std::fs::read_dir(format!("/proc/{}/fd", up.daemon.id()))
            .map(Iterator::count)
            .context(what.to_string())
    };
    let before = descriptors("before")?;
    for time in 0..times {
        hosts.middle.ip("link del p2")?;
        plug_in(&hosts, QUEUES)?;
        // Half of them vanish while they are taken over.
        if time % 2 == 0 {
            wait_for_port(&up, LAST, "up")?;
        }
    }
    wait_for_port(&up, LAST, "up")?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    drop(bound_for_it);
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    wait_until("it has as many descriptors as before", PATIENCE, || Ok(descriptors("after")? <= before))?;
    up.down()?;
    Ok(())
}

fn a_port_that_moves_away_and_back() -> Result<()> {
    let hosts = hosts()?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    let elsewhere = Namespace::new("elsewhere")?;
    hosts.middle.ip(&format!("link set p2 netns {}", elsewhere.name()))?;
    wait_for_port(&up, LAST, "gone")?;
    answers(&hosts, "10.99.1.2")?;
    // A program that sends into it there is held no longer.
    elsewhere.ip("link set p2 up")?;
    elsewhere.ip("addr add 10.99.1.9/24 dev p2")?;
    wait_until("it answers where it is", PATIENCE, || {
        let mut command = hosts.hosts[LAST].command("ping");
        Ok(run(command.args(["-c", "1", "-W", "1", "10.99.1.9"]), PATIENCE)?.success().is_ok())
    })?;
    elsewhere.ip(&format!("link set p2 netns {}", hosts.middle.name()))?;
    hosts.middle.ip("link set p2 up")?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down()?;
    Ok(())
}

/// The settings that are changed at the ports and their other ends, but for the last.
fn look(hosts: &Hosts) -> Result<String> {
    let mut seen = String::new();
    let far = hosts.hosts[..LAST].iter().map(|host| (host, "veth0".to_string()));
    for (namespace, device) in far.chain((0..LAST).map(|port| (&hosts.middle, format!("p{port}")))) {
        seen += &namespace.tc(&format!("qdisc show dev {device}"))?;
        seen += &namespace.tc(&format!("filter show dev {device} ingress"))?;
        let links: Value = serde_json::from_str(&namespace.ip(&format!("-d -j link show dev {device}"))?)?;
        seen += &format!("{} {} {}\n", links[0]["mtu"], links[0]["xdp"], links[0]["promiscuity"]);
    }
    Ok(seen)
}

/// The holds on these hosts' interfaces.
fn holds(hosts: &Hosts) -> Result<Vec<String>> {
    kernel::holds(&hosts.hosts.iter().chain([&hosts.middle]).collect::<Vec<_>>())
}

fn killed_while_a_port_is_gone() -> Result<()> {
    let hosts = hosts()?;
    let (before, held_before) = (look(&hosts)?, holds(&hosts)?);
    let up = hosts.up(BRIDGE)?;
    ensure!(look(&hosts)? != before, "nothing was changed");
    hosts.middle.ip("link del p2")?;
    wait_for_port(&up, LAST, "gone")?;
    up.kill()?;
    wait_until("everything is as before", PATIENCE, || Ok(look(&hosts)? == before))?;
    wait_until("no hold is left", PATIENCE, || Ok(holds(&hosts)? == held_before))
}

fn down_while_a_port_is_gone() -> Result<()> {
    let hosts = hosts()?;
    let (before, held_before) = (look(&hosts)?, holds(&hosts)?);
    let up = hosts.up(BRIDGE)?;
    hosts.middle.ip("link del p2")?;
    wait_for_port(&up, LAST, "gone")?;
    let said = up.down()?;
    ensure!(said.stdout.contains("ended: topology"), "{}", said.stdout);
    ensure!(look(&hosts)? == before, "not all is as before");
    ensure!(holds(&hosts)? == held_before, "{:?} are left", holds(&hosts)?);
    Ok(())
}

/// The hosts keep the router's link-layer address while one of another name, and so with another such address, takes its place.
fn a_router_that_is_started_anew_is_found_at_once() -> Result<()> {
    const ROUTER: &str = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[router]]\nname = \"gw\"\n\
         [[router.interface]]\nport = \"p0\"\naddress = [\"10.99.1.1/24\", \"2001:db8:1::1/64\"]\n\
         [[router.interface]]\nport = \"p1\"\naddress = [\"10.99.2.1/24\", \"2001:db8:2::1/64\"]\n";
    let hosts = Hosts::new(2, None)?;
    for (host, net) in [(0, 1), (1, 2)] {
        hosts.address(host, &format!("10.99.{net}.2/24"))?;
        hosts.hosts[host].ip(&format!("-6 address add 2001:db8:{net}::2/64 dev veth0 nodad"))?;
        hosts.hosts[host].ip(&format!("route add default via 10.99.{net}.1"))?;
        hosts.hosts[host].ip(&format!("-6 route add default via 2001:db8:{net}::1"))?;
    }
    let ping = |to: &str| run(hosts.hosts[0].command("ping").args(["-c", "1", "-W", "5", to]), PATIENCE);
    // Of both families.
    let known = || -> Result<Vec<String>> {
        let shown = hosts.hosts[0].ip("neighbour show dev veth0 nud all")?;
        let routers = shown.lines().filter(|line| line.contains(".1 ") || line.contains("::1 "));
        let addresses =
            routers.filter_map(|line| line.split_whitespace().skip_while(|word| *word != "lladdr").nth(1));
        Ok(addresses.map(String::from).collect())
    };
    let beyond = ["10.99.2.2", "2001:db8:2::2"];
    let up = hosts.up(ROUTER)?;
    for to in beyond {
        wait_until("a host beyond is found", PATIENCE, || Ok(ping(to)?.status.success()))?;
    }
    let before = known()?;
    ensure!(before.len() == 2, "{before:?}");
    up.down()?;
    let up = hosts.up(&ROUTER.replace("gw", "other"))?;
    // Nothing is sent meanwhile by which a host would find out.
    let started = now();
    wait_until("the hosts hear of it", PATIENCE, || {
        let known = known()?;
        Ok(known.len() == 2 && known.iter().all(|address| !before.contains(address)))
    })?;
    require_timing!(started.elapsed() < Duration::from_secs(5), "the hosts heard of it late");
    beyond.iter().try_for_each(|to| ping(to)?.success().map(drop))?;
    up.down().map(drop)
}

fn a_wire_ends_as_ever() -> Result<()> {
    let hosts = Hosts::new(2, None)?;
    let mut up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[wire]]\nports = [\"p0\", \"p1\"]\n",
    )?;
    // Its noun is that of `weir stat`.
    let ready = format!("ready: wire {}, 2 ports", up.name);
    ensure!(up.daemon.stdout().contains(&ready), "{}", up.daemon.stdout());
    hosts.middle.ip("link del p1")?;
    wait_until("it ends", PATIENCE, || Ok(!up.daemon.is_running()?))?;
    let said = up.daemon.stderr();
    ensure!(said.contains("interface p1 vanished while the wire was up"), "{said}");
    Ok(())
}

/// The last port is missing from the start, with one worker and with two; it comes, goes and comes again under a flood of the others.
fn an_optional_port_is_taken_in_when_it_comes() -> Result<()> {
    let file = BRIDGE.replacen("rate = \"1mbit\"", "rate = \"1mbit\"\noptional = true", 1);
    for workers in ["1", "2"] {
        let hosts = hosts()?;
        hosts.middle.ip("link del p2")?;
        let (before, held_before) = (look(&hosts)?, holds(&hosts)?);
        let up = hosts.up_with(&file, &["--workers", workers])?;
        wait_until("it is said", PATIENCE, || {
            Ok(up.daemon.stderr().contains("interface p2 is optional, and not there, down or unfit"))
        })?;
        wait_for_port(&up, LAST, "absent")?;
        answers(&hosts, "10.99.1.2")?;
        // Nobody is told of a fault, before it comes.
        let checked = up.weir(&["stat", &up.name, "--check"])?.success()?.stdout;
        ensure!(checked.contains("p2 is not up (absent): nothing passes there\n"), "{checked}");
        ensure!(!checked.contains("unknown"), "{checked}");
        let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, 6.0);
        let flood = flood(&load)?;
        for _ in 0..2 {
            plug_in(&hosts, QUEUES)?;
            wait_for_port(&up, LAST, "up")?;
            answers(&hosts, "10.99.1.3")?;
            hosts.middle.ip("link del p2")?;
            wait_for_port(&up, LAST, "gone")?;
            let checked = up.weir(&["stat", &up.name, "--check"])?.success()?.stdout;
            ensure!(checked.contains("p2 is not up (gone): nothing passes there\n"), "{checked}");
        }
        plug_in(&hosts, QUEUES)?;
        wait_for_port(&up, LAST, "up")?;
        require_lossless(&flood.finish(PATIENCE)?, &load)?;
        answers(&hosts, "10.99.1.3")?;
        up.check()?;
        let stat = up.stat()?;
        ensure!(stat["events"]["gone"]["times"] == 2, "{}", stat["events"]);
        ensure!(stat["classes"][LAST]["rate_bits_per_s"] == 1_000_000, "{}", stat["classes"][LAST]);
        let shown = up.weir(&["show", &up.name])?.success()?.stdout;
        ensure!(shown.contains("optional = true"), "{shown}");
        up.down()?;
        hosts.middle.ip("link del p2")?;
        ensure!(look(&hosts)? == before, "not all is as before");
        ensure!(holds(&hosts)? == held_before, "{:?} are left", holds(&hosts)?);
    }
    Ok(())
}

/// Who has the other end keeps nobody from starting.
fn an_optional_port_that_is_unfit_at_the_start_is_taken_in_when_it_is_fit() -> Result<()> {
    let file = BRIDGE.replacen("rate = \"1mbit\"", "rate = \"1mbit\"\noptional = true", 1);
    let hosts = hosts()?;
    let host = &hosts.hosts[LAST];
    host.sh("ethtool -L veth0 tx 1")?;
    let up = hosts.up(&file)?;
    wait_for_port(&up, LAST, "unfit")?;
    answers(&hosts, "10.99.1.2")?;
    host.sh(&format!("ethtool -L veth0 tx {QUEUES}"))?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down().map(drop)
}

/// Root of a container takes queues away from its end, and takes it down. Another start does not wait for it.
fn a_port_whose_other_end_is_made_unfit_leaves_the_others() -> Result<()> {
    let file = BRIDGE.replacen("rate = \"1mbit\"", "rate = \"1mbit\"\noptional = true", 1);
    let hosts = hosts()?;
    let host = &hosts.hosts[LAST];
    let (before, held_before) = (look(&hosts)?, holds(&hosts)?);
    let up = hosts.up(&file)?;
    answers(&hosts, "10.99.1.3")?;
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, 4.0);
    let flood = flood(&load)?;
    host.sh("ethtool -L veth0 tx 1")?;
    wait_for_port(&up, LAST, "unfit")?;
    let refused = up.weir(&["stat", &up.name, "--check"])?;
    // A second later it is the reason why it cannot be taken again.
    let says_why = |text: &str, start: &str| {
        text.lines().any(|line| line.starts_with(start) && line.contains("veth0 sends on 1"))
    };
    let fault = "weir: p2: the interface is there and not fit: ";
    ensure!(!refused.status.success() && says_why(&refused.stderr, fault), "{}", refused.said());
    let shown = up.weir(&["stat", &up.name])?.success()?.stdout;
    ensure!(says_why(&shown, "p2 is unfit: "), "{shown}");
    let (said, taken_away) =
        (up.daemon.stderr(), "veth0 sends on 1 queues now, and the topology was made for 8");
    ensure!(said.contains(&format!("{taken_away}: take the change back")), "{said}");
    // While it is down, that is the reason.
    host.ip("link set veth0 down")?;
    wait_for_port(&up, LAST, "gone")?;
    let shown = up.weir(&["stat", &up.name])?.success()?.stdout;
    ensure!(!shown.contains("p2 is unfit"), "{shown}");
    host.ip("link set veth0 up")?;
    wait_for_port(&up, LAST, "unfit")?;
    host.sh(&format!("ethtool -L veth0 tx {QUEUES}"))?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    host.ip("link set veth0 down")?;
    up.check()?;
    up.down()?;
    let up = hosts.up(&file)?;
    wait_for_port(&up, LAST, "absent")?;
    answers(&hosts, "10.99.1.2")?;
    host.ip("link set veth0 up")?;
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down()?;
    ensure!(look(&hosts)? == before, "not all is as before");
    ensure!(holds(&hosts)? == held_before, "{:?} are left", holds(&hosts)?);
    Ok(())
}

/// Root of a container fills the row of programs at its end, so that weir's cannot be put before them.
fn a_port_that_cannot_be_put_right_leaves_the_others() -> Result<()> {
    // `bpf_mprog_max` of `kernel/bpf/mprog.c`.
    const PROGRAMS_MAX: usize = 63;
    let hosts = hosts()?;
    let before = look(&hosts)?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, 5.0);
    let flood = flood(&load)?;
    let end = End { namespace: &hosts.hosts[LAST], name: "veth0" };
    let mut others: Vec<_> = (2..PROGRAMS_MAX).map(|_| Tcx::on_egress(end)).collect::<Result<_>>()?;
    others.push(Tcx::verdict_before_others_on_egress(end)?);
    wait_until("the port is closed", Duration::from_secs(10), || {
        Ok(up.daemon.stderr().contains("is a port again when it is fit"))
    })?;
    drop(others);
    wait_for_port(&up, LAST, "up")?;
    answers(&hosts, "10.99.1.3")?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    up.check()?;
    up.down()?;
    ensure!(look(&hosts)? == before, "not all is as before");
    Ok(())
}

/// Root of a container changes the MTU of its end as fast as it can.
fn an_end_that_changes_without_end_fills_no_log() -> Result<()> {
    let hosts = hosts()?;
    let up = hosts.up(BRIDGE)?;
    let changes = "for mtu in $(seq 1000 2500); do ip link set veth0 mtu $mtu; done";
    run(hosts.hosts[LAST].command("sh").args(["-c", changes]), PATIENCE)?.success()?;
    hosts.hosts[LAST].ip("link set veth0 mtu 1500")?;
    answers(&hosts, "10.99.1.3")?;
    let said = up.daemon.stderr();
    let lines = said.lines().count();
    ensure!(said.contains("the MTU of veth0 is") && lines < 200, "{lines} lines for 1,500 changes");
    up.check()?;
    up.down().map(drop)
}

fn an_interface_that_is_not_there_is_told_or_waited_for() -> Result<()> {
    let hosts = hosts()?;
    hosts.middle.ip("link del p2")?;
    let path = std::env::temp_dir().join(format!("{}-late.toml", hosts.middle.name()));
    std::fs::write(&path, BRIDGE)?;
    let up = |arguments: &[&str]| -> Result<_> {
        let mut command = hosts.middle.command(weir_binary()?);
        command.arg("up").arg(&path).args(arguments);
        Ok(command)
    };
    let told = format!("{}:9:13: there is no interface p2", path.display());
    let refused = run(&mut up(&[])?, PATIENCE)?;
    let said = &refused.stderr;
    ensure!(said.lines().count() == 1 && said.contains(&told), "{said}");
    ensure!(said.contains("optional = true") && said.contains("--wait SECONDS"), "{said}");
    let refused = run(&mut up(&["--wait", "1"])?, PATIENCE)?;
    let said: Vec<_> = refused.stderr.lines().collect();
    ensure!(said.len() == 2 && said[0] == "weir: waiting up to 1 s for p2", "{said:?}");
    ensure!(said[1].contains(&told) && said[1].contains("also after 1 s"), "{said:?}");
    let mut daemon = Process::spawn(&mut up(&["--wait", "600"])?)?;
    wait_until("it says that it waits", PATIENCE, || Ok(daemon.stderr().contains("for p2")))?;
    plug_in(&hosts, QUEUES)?;
    daemon.wait_for_output("ready", PATIENCE)?;
    answers(&hosts, "10.99.1.3")?;
    ensure!(daemon.stderr().lines().count() == 1, "{}", daemon.stderr());
    drop(daemon);
    // An interface is made before it is up, and its other end is up last.
    hosts.hosts[LAST].ip("link set veth0 down")?;
    let mut daemon = Process::spawn(&mut up(&["--wait", "600"])?)?;
    wait_until("it says that it waits", PATIENCE, || Ok(daemon.stderr().contains("for p2")))?;
    hosts.hosts[LAST].ip("link set veth0 up")?;
    daemon.wait_for_output("ready", PATIENCE)?;
    drop(daemon);
    std::fs::remove_file(&path)?;
    Ok(())
}
