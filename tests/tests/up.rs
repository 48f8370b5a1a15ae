//! `weir up`: bridges, routers and wires of a file between real hosts, under floods and rough hands.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, plain_veth, veth};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Load, PAYLOAD_BYTES};
use weir_lab::machine::process_seconds;
use weir_lab::ping::Ping;
use weir_lab::process::run;
use weir_tests::rig::{Demand, measure_rate, require_lossless, require_rate};
use weir_tests::topology::{Hosts, Up, answers, flood};
use weir_tests::{at_length, harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);
const SECONDS: f64 = 3.0;

/// The numbers of workers: one, and two that a link joins.
const WORKERS: [&str; 2] = ["1", "2"];

/// The numbers of workers of a test of floods: two in CI.
fn workers_of_floods() -> &'static [&'static str] {
    &WORKERS[at_length(1, 0)..]
}

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_slow_port_of_a_bridge_holds_nothing_for_the_others),
        privileged!(the_published_bed_carries_floods_without_loss),
        privileged!(a_router_cuts_and_tells).together(),
        privileged!(a_router_follows_the_mtu_of_its_ports).together(),
        privileged!(a_router_reaches_a_station_that_a_route_says_is_on_the_link).together(),
        privileged!(wires_of_one_file_share_nothing),
        privileged!(two_on_one_pair_see_what_the_other_sends),
        privileged!(a_hundred_wires_in_one_process),
        privileged!(ten_wires_on_two_workers).flooding(),
        privileged!(a_port_that_goes_down_comes_back).together(),
        privileged!(killed_everything_is_as_before).together(),
        privileged!(two_of_one_name_and_two_of_one_port).together(),
    ])
}

const BRIDGE_OF_FOUR: &str = r#"
[[port]]
interface = "p0"
rate = "200mbit"
[[port]]
interface = "p1"
rate = "200mbit"
[[port]]
interface = "p2"
rate = "200mbit"
[[port]]
interface = "p3"
rate = "2mbit"
[[bridge]]
name = "lan"
ports = ["p0", "p1", "p2", "p3"]
"#;

/// The pairs have 16 queues: each flow has one of its own while there are enough.
fn a_slow_port_of_a_bridge_holds_nothing_for_the_others() -> Result<()> {
    workers_of_floods().iter().try_for_each(|workers| {
        slow_port_beside_quick_ones(workers).with_context(|| format!("{workers} workers"))
    })
}

fn slow_port_beside_quick_ones(workers: &str) -> Result<()> {
    // The bed is made anew each time: hosts that know each other ask for nobody, and a bridge that has heard nobody floods.
    let hosts = Hosts::new(4, Some(16))?;
    for host in 0..4 {
        hosts.address(host, &format!("10.99.1.{}/24", host + 1))?;
    }
    let up = hosts.up_with(BRIDGE_OF_FOUR, &["--workers", workers])?;
    let quick = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 4, SECONDS);
    let slow =
        Load { first_port: 6001, ..Load::new(&hosts.hosts[2], &hosts.hosts[3], "10.99.1.4", 4, SECONDS) };
    let also_slow =
        Load { first_port: 7001, ..Load::new(&hosts.hosts[0], &hosts.hosts[3], "10.99.1.4", 2, SECONDS) };
    let slow_floods = [flood(&slow)?, flood(&also_slow)?];
    let flood = flood(&quick)?;
    let ping = Ping::start(&hosts.hosts[2], "10.99.1.1", Duration::from_secs_f64(SECONDS))?;
    let rate = measure_rate(&flood, &quick)?;
    up.check().context("under load")?;
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &quick)?;
    for (flood, load) in slow_floods.into_iter().zip([&slow, &also_slow]) {
        require_lossless(&flood.finish(PATIENCE)?, load).context("to the slow port")?;
    }
    let times = ping.finish()?;
    times.require_all()?;
    up.check()?;
    require_rate(&flows, rate, Demand { share_min: 0.99, ..Demand::of_rate(200e6) })?;
    let p99 = times.percentile_ms(0.99).context("no answers")?;
    require_timing!(p99 < 2.0, "a ping between quiet ports took {p99:.2} ms (p99)");
    let stages = up.stat()?["stages"].clone();
    ensure!(stages[0]["name"] == "lan" && stages[0]["counts"]["learned"] == 4, "{stages}");
    up.down()?;
    Ok(())
}

const BED: &str = r#"
[[port]]
interface = "p0"
[[port]]
interface = "p1"
rate = "100mbit"
[[epair]]
name = "e0"
[[epair]]
name = "e1"
[[bridge]]
name = "left"
ports = ["p0", "e0a"]
[[bridge]]
name = "right"
ports = ["p1", "e1a"]
[[router]]
name = "jail"
[[router.interface]]
port = "e0b"
address = ["10.99.1.1/24", "fd99:1::1/64"]
[[router.interface]]
port = "e1b"
address = ["10.99.2.1/24", "fd99:2::1/64"]
"#;

/// Two hosts in two networks, on pairs as container runtimes make them, and so many workers between them.
fn bed(workers: &str) -> Result<(Hosts, Up)> {
    let hosts = Hosts::new(2, None)?;
    for (host, net) in [(0, 1), (1, 2)] {
        hosts.address(host, &format!("10.99.{net}.2/24"))?;
        hosts.address(host, &format!("fd99:{net}::2/64"))?;
        hosts.hosts[host].ip(&format!("route add default via 10.99.{net}.1"))?;
        hosts.hosts[host].ip(&format!("-6 route add default via fd99:{net}::1"))?;
    }
    let up = hosts.up_with(BED, &["--workers", workers])?;
    Ok((hosts, up))
}

fn the_published_bed_carries_floods_without_loss() -> Result<()> {
    workers_of_floods()
        .iter()
        .try_for_each(|workers| bed_under_floods(workers).with_context(|| format!("{workers} workers")))
}

fn bed_under_floods(workers: &str) -> Result<()> {
    let (hosts, up) = bed(workers)?;
    for (address, clients) in [("10.99.2.2", 3), ("fd99:2::2", 2)] {
        // Whole datagrams, so that a frame is one: iperf's own length is cut in two by IPv6.
        let payload_bytes = if address.contains(':') { 1450 } else { PAYLOAD_BYTES };
        let load =
            Load { payload_bytes, ..Load::new(&hosts.hosts[0], &hosts.hosts[1], address, clients, SECONDS) };
        let flood = flood(&load)?;
        let rate = measure_rate(&flood, &load)?;
        up.check().context("under load")?;
        let flows = flood.finish(PATIENCE)?;
        require_lossless(&flows, &load).context(address)?;
        require_rate(&flows, rate, Demand { jain_min: 0.0, ..Demand::of_rate(100e6) })?;
    }
    up.check()?;
    let stat = up.stat()?;
    let router = stat["stages"].as_array().context("stages")?.iter().find(|stage| stage["kind"] == "router");
    let router = router.context("a router")?;
    ensure!(router["counts"]["neighbours"].as_u64().context("neighbours")? >= 2, "{router}");
    let handled = up.handled()?;
    ensure!(handled.len().to_string() == workers && !handled.contains(&0), "{handled:?}");
    let said = up.down()?;
    ensure!(said.stdout.contains("ended: topology") && said.stdout.contains("dropped"), "{}", said.stdout);
    Ok(())
}

/// A host whose way has a smaller MTU: a packet that may be cut is cut, and the sender of any other is told.
fn a_router_cuts_and_tells() -> Result<()> {
    let hosts = Hosts::new(2, None)?;
    for (host, net) in [(0, 1), (1, 2)] {
        hosts.address(host, &format!("10.99.{net}.2/24"))?;
        hosts.hosts[host].ip(&format!("route add default via 10.99.{net}.1"))?;
    }
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\n\
         address = [\"10.99.1.1/24\"]\n[[router.interface]]\nport = \"p1\"\naddress = [\"10.99.2.1/24\"]\nmtu = 600\n",
    )?;
    let ping = |more: &[&str]| {
        let mut command = hosts.hosts[0].command("ping");
        run(command.args(["-c", "1", "-W", "10", "-s", "1400"]).args(more).arg("10.99.2.2"), PATIENCE)
    };
    for _ in 0..3 {
        ping(&["-M", "dont"])?.success()?;
    }
    let told = ping(&["-M", "do"])?;
    let said = format!("{}{}", told.stdout, told.stderr);
    ensure!(said.contains("mtu = 600") || said.contains("mtu=600") || said.contains("mtu: 600"), "{said}");
    let stat = up.stat()?;
    let counts = &stat["stages"][0]["counts"];
    ensure!(counts["frag_oks"] == 3 && counts["frag_creates"] == 9, "{counts}");
    up.check()?;
    up.down()?;
    Ok(())
}

/// Nothing is written of an MTU. Both ends of the pair behind the router have a shorter one, and another later.
fn a_router_follows_the_mtu_of_its_ports() -> Result<()> {
    let hosts = Hosts::new(2, None)?;
    for (host, net) in [(0, 1), (1, 2)] {
        hosts.address(host, &format!("10.99.{net}.2/24"))?;
        hosts.hosts[host].ip(&format!("route add default via 10.99.{net}.1"))?;
    }
    let set_mtu = |mtu: u16| -> Result<()> {
        hosts.middle.ip(&format!("link set p1 mtu {mtu}"))?;
        hosts.hosts[1].ip(&format!("link set veth0 mtu {mtu}")).map(drop)
    };
    set_mtu(1300)?;
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\n\
         address = [\"10.99.1.1/24\"]\n[[router.interface]]\nport = \"p1\"\naddress = [\"10.99.2.1/24\"]\n",
    )?;
    let ping = |more: &[&str]| {
        let mut command = hosts.hosts[0].command("ping");
        let command = command.args(["-c", "1", "-W", "5", "-s", "1400"]);
        run(command.args(more).arg("10.99.2.2"), PATIENCE)
    };
    for mtu in [1300, 1200] {
        set_mtu(mtu)?;
        wait_until("a packet is cut", PATIENCE, || Ok(ping(&["-M", "dont"])?.stdout.contains("1 received")))?;
        hosts.hosts[0].ip("route flush cache")?;
        wait_until("the sender is told", PATIENCE, || {
            let told = ping(&["-M", "do"])?;
            Ok(format!("{}{}", told.stdout, told.stderr).contains(&mtu.to_string()))
        })?;
    }
    up.check()?;
    let done = up.down()?;
    ensure!(done.stderr.contains("write mtu = 1300"), "{}", done.stderr);
    Ok(())
}

/// The station has no address in a network of the router's, and is told that the router is on its link.
fn a_router_reaches_a_station_that_a_route_says_is_on_the_link() -> Result<()> {
    let hosts = Hosts::new(2, None)?;
    for (own, gateway) in [("10.99.1.2/24", "10.99.1.1"), ("fd00:1::2/64", "fd00:1::1")] {
        hosts.address(0, own)?;
        hosts.hosts[0].ip(&format!("route add default via {gateway}"))?;
    }
    for (own, gateway) in [("10.9.1.2/32", "10.99.2.1"), ("fd00:9::2/128", "fd00:2::1")] {
        hosts.address(1, own)?;
        hosts.hosts[1].ip(&format!("route add default via {gateway} dev veth0 onlink"))?;
    }
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\n\
         address = [\"10.99.1.1/24\", \"fd00:1::1/64\"]\n[[router.interface]]\nport = \"p1\"\n\
         address = [\"10.99.2.1/24\", \"fd00:2::1/64\"]\n[[router.route]]\nto = \"10.9.0.0/16\"\nport = \"p1\"\n\
         [[router.route]]\nto = \"fd00:9::/48\"\nport = \"p1\"\n",
    )?;
    answers(&hosts, "10.9.1.2")?;
    answers(&hosts, "fd00:9::2")?;
    up.check()?;
    up.down()?;
    Ok(())
}

fn wires_of_one_file_share_nothing() -> Result<()> {
    let hosts = Hosts::new(4, None)?;
    for (host, address) in ["10.99.1.1/24", "10.99.1.2/24", "10.99.1.3/24", "10.99.1.4/24"].iter().enumerate()
    {
        hosts.address(host, address)?;
    }
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\nrate = \"2mbit\"\n[[port]]\ninterface = \"p2\"\n[[port]]\n\
         interface = \"p3\"\nrate = \"100mbit\"\n[[wire]]\nports = [\"p0\", \"p1\"]\n[[wire]]\nports = [\"p2\", \"p3\"]\n",
    )?;
    let slow = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, SECONDS);
    let quick =
        Load { first_port: 6001, ..Load::new(&hosts.hosts[2], &hosts.hosts[3], "10.99.1.4", 2, SECONDS) };
    let slow_flood = flood(&slow)?;
    let flood = flood(&quick)?;
    let rate = measure_rate(&flood, &quick)?;
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &quick)?;
    require_lossless(&slow_flood.finish(PATIENCE)?, &slow)?;
    up.check()?;
    require_rate(&flows, rate, Demand { jain_min: 0.0, ..Demand::of_rate(100e6) })?;
    up.down()?;
    Ok(())
}

/// Packets that leave by a pair whose other end is another's port ring no bell there. Both know that after a few packets, and look.
fn two_on_one_pair_see_what_the_other_sends() -> Result<()> {
    let [left, right] = [Hosts::new(1, None)?, Hosts::new(1, None)?];
    plain_veth(9, End { namespace: &left.middle, name: "x" }, End { namespace: &right.middle, name: "x" })?;
    left.address(0, "10.99.1.1/24")?;
    right.address(0, "10.99.1.2/24")?;
    let file = |rate: &str| {
        format!(
            "[[port]]\ninterface = \"p0\"\n{rate}[[port]]\ninterface = \"x\"\n[[wire]]\nports = [\"p0\", \"x\"]\n"
        )
    };
    let ups = [left.up(&file(""))?, right.up(&file("rate = \"100mbit\"\n"))?];
    // Slow ones, so that each finds both asleep; the first few teach them.
    let pings = |count| Ping::start_series(&left.hosts[0], "10.99.1.2", count, 0.3)?.finish();
    pings(8)?;
    let times = pings(10)?;
    times.require_all()?;
    let median_ms = times.percentile_ms(0.5).context("no answers")?;
    require_timing!(median_ms < 50.0, "a ping through two took {median_ms:.2} ms: {:?}", times.sorted_ms);
    let load = Load::new(&left.hosts[0], &right.hosts[0], "10.99.1.2", 2, SECONDS);
    let flood = flood(&load)?;
    let rate = measure_rate(&flood, &load)?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    require_timing!(rate >= 97e6, "{:.1} Mbit/s of 100 arrived", rate / 1e6);
    for up in ups {
        up.check()?;
        up.down()?;
    }
    Ok(())
}

/// A tenth of them in CI. A flood through one delays no ping through another, and all together cost nothing while nothing comes.
fn a_hundred_wires_in_one_process() -> Result<()> {
    let wires = at_length(10, 100);
    let middle = Namespace::new("middle")?;
    let far = Namespace::new("far")?;
    let mut file = String::new();
    for port in 0..2 * wires {
        let ends = [(&middle, format!("p{port}")), (&far, format!("e{port}"))];
        let [a, b] = ends.each_ref().map(|(namespace, name)| End { namespace, name });
        veth(port as u8, a, b, 1)?;
        // No receiver reads as fast as an unlimited flood comes.
        file += &format!("[[port]]\ninterface = \"p{port}\"\nrate = \"200mbit\"\n");
    }
    for wire in 0..wires {
        file += &format!("[[wire]]\nports = [\"p{}\", \"p{}\"]\n", 2 * wire, 2 * wire + 1);
    }
    // The far ends of two wires are hosts of their own.
    let hosts = ["a", "b", "c", "d"].map(Namespace::new);
    let hosts = hosts.into_iter().collect::<Result<Vec<_>>>()?;
    for (end, host) in hosts.iter().enumerate() {
        far.ip(&format!("link set e{end} netns {}", host.name()))?;
        host.ip(&format!("link set e{end} up"))?;
        host.ip(&format!("addr add 10.99.{}.{}/24 dev e{end}", end / 2 + 1, end % 2 + 1))?;
    }
    let hosts = Hosts { middle, hosts };
    let up = hosts.up(&file)?;
    let (before_s, from) = (process_seconds(up.daemon.id())?, now());
    // Two rounds of the watcher: with more pairs it looks less often, and longer.
    let_pass(Duration::from_secs(at_length(3, 26) as u64), |_| ())?;
    let share = (process_seconds(up.daemon.id())? - before_s) / from.elapsed().as_secs_f64();
    let load = Load::new(&hosts.hosts[0], &hosts.hosts[1], "10.99.1.2", 2, SECONDS);
    let flood = flood(&load)?;
    let times = Ping::start(&hosts.hosts[2], "10.99.2.2", Duration::from_secs_f64(SECONDS))?.finish()?;
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    up.check()?;
    times.require_all()?;
    require_timing!(share < 0.02, "idle it used {:.1} % of a core", share * 100.0);
    let p99 = times.percentile_ms(0.99).context("no answers")?;
    require_timing!(p99 < 2.0, "a ping through another wire took {p99:.2} ms (p99)");
    up.down()?;
    Ok(())
}

/// Each worker has five wires, all flooded at once.
fn ten_wires_on_two_workers() -> Result<()> {
    const WIRES: usize = 10;
    let hosts = Hosts::new(2 * WIRES, None)?;
    let mut file = String::new();
    for host in 0..2 * WIRES {
        hosts.address(host, &format!("10.99.{}.{}/24", host / 2 + 1, host % 2 + 1))?;
        file += &format!("[[port]]\ninterface = \"p{host}\"\nrate = \"20mbit\"\n");
    }
    for wire in 0..WIRES {
        file += &format!("[[wire]]\nports = [\"p{}\", \"p{}\"]\n", 2 * wire, 2 * wire + 1);
    }
    let up = hosts.up_with(&file, &["--workers", "2"])?;
    let addresses: Vec<_> = (0..WIRES).map(|wire| format!("10.99.{}.2", wire + 1)).collect();
    let load = |wire: usize| {
        let [from, to] = [2 * wire, 2 * wire + 1].map(|host| &hosts.hosts[host]);
        Load::new(from, to, &addresses[wire], 1, SECONDS)
    };
    let floods = (0..WIRES).map(|wire| flood(&load(wire))).collect::<Result<Vec<_>>>()?;
    up.check().context("under load")?;
    for (wire, flood) in floods.into_iter().enumerate() {
        require_lossless(&flood.finish(PATIENCE)?, &load(wire)).with_context(|| format!("wire {wire}"))?;
    }
    up.check()?;
    let handled = up.handled()?;
    ensure!(handled.len() == 2 && handled.iter().all(|&packets| packets > 1_000), "{handled:?}");
    let shown = up.weir(&["stat", &up.name])?.success()?;
    ensure!(shown.stdout.lines().any(|line| line.contains("polled by  worker")), "{}", shown.stdout);
    up.down()?;
    Ok(())
}

fn a_port_that_goes_down_comes_back() -> Result<()> {
    WORKERS
        .iter()
        .try_for_each(|workers| port_down_and_up(workers).with_context(|| format!("{workers} workers")))
}

fn port_down_and_up(workers: &str) -> Result<()> {
    let (hosts, up) = bed(workers)?;
    let answered = |what: &str| -> Result<()> {
        wait_until(what, PATIENCE, || {
            let mut command = hosts.hosts[0].command("ping");
            Ok(run(command.args(["-c", "1", "-W", "1", "10.99.2.2"]), PATIENCE)?.success().is_ok())
        })
    };
    answered("the far host answers")?;
    hosts.middle.ip("link set p1 down")?;
    let mut command = hosts.hosts[0].command("ping");
    ensure!(
        run(command.args(["-c", "2", "-W", "1", "10.99.2.2"]), PATIENCE)?.success().is_err(),
        "down, and answered"
    );
    // Hosts behind other ports are served meanwhile.
    let mut command = hosts.hosts[0].command("ping");
    run(command.args(["-c", "2", "-i", "0.2", "-W", "5", "10.99.1.1"]), PATIENCE)?
        .success()
        .context("the router itself")?;
    hosts.middle.ip("link set p1 up")?;
    answered("the far host answers again")?;
    up.check()?;
    up.down()?;
    Ok(())
}

fn killed_everything_is_as_before() -> Result<()> {
    let hosts = Hosts::new(4, None)?;
    let look = || -> Result<String> {
        let mut seen = String::new();
        for (namespace, device) in hosts
            .hosts
            .iter()
            .map(|host| (host, "veth0".into()))
            .chain((0..4).map(|port| (&hosts.middle, format!("p{port}"))))
        {
            seen += &namespace.tc(&format!("qdisc show dev {device}"))?;
            seen += &namespace.tc(&format!("filter show dev {device} ingress"))?;
            let links: serde_json::Value =
                serde_json::from_str(&namespace.ip(&format!("-d -j link show dev {device}"))?)?;
            seen += &format!("{} {} {}\n", links[0]["mtu"], links[0]["xdp"], links[0]["promiscuity"]);
        }
        Ok(seen)
    };
    let before = look()?;
    for workers in WORKERS {
        let up = hosts.up_with(BRIDGE_OF_FOUR, &["--workers", workers])?;
        ensure!(look()? != before, "nothing was changed");
        up.kill()?;
        wait_until("everything is as before", PATIENCE, || Ok(look()? == before))?;
    }
    Ok(())
}

fn two_of_one_name_and_two_of_one_port() -> Result<()> {
    let hosts = Hosts::new(4, None)?;
    let up = hosts.up(BRIDGE_OF_FOUR)?;
    let again = hosts.up(BRIDGE_OF_FOUR).err().context("a second of the same name came up")?;
    ensure!(format!("{again:#}").contains("is up already"), "{again:#}");
    // Another name, the same interfaces.
    let path = std::env::temp_dir().join(format!("{}-other.toml", hosts.middle.name()));
    std::fs::write(&path, BRIDGE_OF_FOUR)?;
    let mut command = hosts.middle.command(weir_binary()?);
    let refused = run(command.arg("up").arg(&path), PATIENCE)?;
    std::fs::remove_file(&path)?;
    // One sentence for each port that is in use, with its place in the file.
    let told: Vec<_> = refused.stderr.lines().collect();
    let is_held = |line: &&str| line.contains("-other.toml:") && line.contains(" is held by process ");
    ensure!(told.len() == 4 && told.iter().all(is_held) && told[0].contains("p0"), "{}", refused.stderr);
    // A name with a number behind it is another's.
    let mut command = hosts.middle.command(weir_binary()?);
    let other = run(command.arg("down").arg(format!("{}.2", up.name)), PATIENCE)?;
    ensure!(!other.status.success() && other.stdout.is_empty(), "{}{}", other.stdout, other.stderr);
    up.check()?;
    // The topology that is up says no word of it.
    up.down()?;
    Ok(())
}
