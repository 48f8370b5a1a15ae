//! A run lets packets out for its own program alone: a neighbour that could not use the host as a router before cannot while it runs.
//!
//! ```text
//!  internet veth0 ------ veth0  host  veth1 ------ veth0  office
//!  10.99.0.2         10.99.0.1        10.99.1.1       10.99.1.2
//! ```
//!
//! The internet's end is the neighbour on the uplink's LAN. That a packet of its gets to the office is seen at the office, which
//! need not be able to answer.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, address, names, veth};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal, run, send_signal};
use weir_tests::host::{Host, INTERNET_V4, INTERNET_V6};
use weir_tests::{guardian, harness, kill_with_guardian, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(30);
const A_MOMENT: Duration = Duration::from_secs(20);
/// The number of echoes that are asked for, of each version of the Internet Protocol.
const ECHOES: u64 = 3;
/// The table of all runs of these tests, whose interface has the same name, as no other host's has.
const TABLE: &str = "table inet weir0";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_neighbour_does_not_pass_by_way_of_a_run).together(),
        privileged!(a_second_run_outlives_the_first).together(),
        privileged!(a_run_whose_interface_is_renamed_keeps_its_way_out).together(),
        privileged!(a_flushed_ruleset_comes_back).together(),
        privileged!(a_host_that_was_a_router_stays_one).together(),
        privileged!(a_host_made_a_router_meanwhile_stays_one).together(),
        privileged!(what_a_bridge_carries_is_not_cut_off).together(),
        privileged!(what_two_killed_processes_left_is_mended).together(),
        privileged!(what_a_killed_run_left_is_mended_under_its_children).together(),
        privileged!(a_table_whose_run_was_killed_is_named_without_its_interface).together(),
        privileged!(a_run_beside_one_whose_interface_is_renamed).together(),
        privileged!(a_guardian_that_tries_again_keeps_no_reader_waiting).together(),
        privileged!(an_uplink_joins_what_it_receives_again_after_a_run).together(),
    ])
}

/// A host with an uplink and an office behind it.
struct Site {
    host: Host,
    office: Namespace,
}

impl Site {
    fn new() -> Result<Site> {
        let (host, office) = (Host::with_internet()?, Namespace::new("office")?);
        let near = End { namespace: &host.namespace, name: "veth1" };
        let far = End { namespace: &office, name: "veth0" };
        veth(1, near, far, 1)?;
        address(1, near, far)?;
        let (host_there, host_here) = (names(0, 1), names(1, 1));
        let internet = host.internet.as_ref().context("an internet")?;
        internet.ip(&format!("route add 10.99.1.0/24 via {}", host_there.v4))?;
        internet.ip(&format!("route add fd99:1::/64 via {}", host_there.v6))?;
        internet.ip(&format!("route add 10.87.0.0/16 via {}", host_there.v4))?;
        office.ip(&format!("route add default via {}", host_here.v4))?;
        office.ip(&format!("route add default via {}", host_here.v6))?;
        for setting in ["net.ipv4.conf.veth1.forwarding", "net.ipv4.conf.all.rp_filter"] {
            host.namespace.sh(&format!("sysctl -q -w {setting}=0"))?;
        }
        Ok(Site { host, office })
    }

    fn internet(&self) -> Result<&Namespace> {
        self.host.internet.as_ref().context("an internet")
    }

    /// The number of the neighbour's packets that got to the office, by IPv4 and IPv6.
    fn intruders(&self) -> Result<[u64; 2]> {
        let office = names(1, 2);
        let before = echoes_at(&self.office)?;
        for address in [&office.v4, &office.v6] {
            ping(self.internet()?, address)?;
        }
        let after = echoes_at(&self.office)?;
        Ok([after[0] - before[0], after[1] - before[1]])
    }
}

/// Asks for some echoes. Returns whether any was answered.
fn ping(from: &Namespace, address: &str) -> Result<bool> {
    let count = ECHOES.to_string();
    let done =
        run(from.command("ping").args(["-n", "-q", "-c", &count, "-i", "0.05", "-W", "1", address]), LIMIT)?;
    Ok(done.status.success())
}

/// Echoes that were asked for here, by IPv4 and IPv6.
fn echoes_at(namespace: &Namespace) -> Result<[u64; 2]> {
    let read = |name: &str| {
        let path = format!("/proc/thread-self/net/{name}");
        namespace.enter(|| std::fs::read_to_string(path))?.context("the kernel's counters")
    };
    let (v4, v6) = (read("snmp")?, read("snmp6")?);
    // A line of names, and below it one of numbers.
    let mut lines = v4.lines().filter(|line| line.starts_with("Icmp:")).map(str::split_whitespace);
    let (names, numbers) = (lines.next().context("names")?, lines.next().context("numbers")?);
    let v4 = names.zip(numbers).find(|(name, _)| *name == "InEchos").context("InEchos")?.1.parse()?;
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Icmp6InEchos")).context("Icmp6InEchos")?;
    Ok([v4, v6.trim().parse()?])
}

/// Runs a script of the shell's.
fn shell(namespace: &Namespace, script: &str) -> Result<()> {
    run(namespace.command("sh").args(["-ec", script]), LIMIT)?.success().map(drop)
}

/// A run that has reached the internet, and tries again when it is to end: its status tells the result.
fn started(host: &Host) -> Result<Process> {
    let tries = format!(
        "ping -n -q -c 2 -i 0.05 -W 2 {INTERNET_V4} >/dev/null && ping -n -q -c 2 -i 0.05 -W 2 {INTERNET_V6} >/dev/null"
    );
    let script = format!(
        "trap '{tries}; exit' TERM; trap '{tries} && echo again' USR1; {tries} && echo reached; while :; do sleep 0.05; done"
    );
    let mut run = Process::spawn(&mut host.weir_run(&[], &script))?;
    run.wait_for_output("reached", LIMIT)?;
    Ok(run)
}

/// The sum of the packets that the gates of a host dropped.
fn dropped(host: &Host) -> Result<u64> {
    let rules = host.namespace.sh("nft list ruleset")?;
    let counters = rules.lines().filter_map(|line| line.split_once("counter packets "));
    counters.map(|(_, rest)| Ok(rest.split(' ').next().unwrap_or_default().parse::<u64>()?)).sum()
}

fn end(run: Process) -> Result<String> {
    Ok(run.stop(LIMIT)?.success().context("the run reaches the internet at its end")?.stderr)
}

fn a_neighbour_does_not_pass_by_way_of_a_run() -> Result<()> {
    let site = Site::new()?;
    let before = site.host.state()?;
    ensure!(site.intruders()? == [0, 0], "the host forwards before anything has run");
    let run = started(&site.host)?;
    ensure!(site.host.forwards()?, "the run has no way out: this test sees nothing");
    let intruders = site.intruders()?;
    ensure!(intruders == [0, 0], "{intruders:?} packets of a neighbour passed by way of the run");
    ensure!(dropped(&site.host)? >= 2 * ECHOES, "dropped and not counted: {}", dropped(&site.host)?);
    ensure!(!ping(site.internet()?, "10.87.0.2")?, "a neighbour reaches the program, which it has not asked");
    end(run)?;
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

/// The second run finds forwarding on, which the first switched on: for it, too, it was off.
fn a_second_run_outlives_the_first() -> Result<()> {
    let site = Site::new()?;
    let before = site.host.state()?;
    let first = started(&site.host)?;
    let second = started(&site.host)?;
    ensure!(site.intruders()? == [0, 0], "a neighbour passes by two runs");
    end(first)?;
    let intruders = site.intruders()?;
    ensure!(intruders == [0, 0], "{intruders:?} packets of a neighbour passed when the first run had ended");
    end(second)?;
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

fn a_run_whose_interface_is_renamed_keeps_its_way_out() -> Result<()> {
    let site = Site::new()?;
    let before = site.host.state()?;
    let mut run = started(&site.host)?;
    site.host.namespace.ip("link set weir0 name renamed")?;
    run.signal(Signal::USR1)?;
    run.wait_for_output("again", LIMIT)?;
    ensure!(site.intruders()? == [0, 0], "a neighbour passes by way of the run");
    ensure!(!ping(site.internet()?, "10.87.0.2")?, "a neighbour reaches the program, which it has not asked");
    end(run)?;
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

fn a_flushed_ruleset_comes_back() -> Result<()> {
    let site = Site::new()?;
    let before = site.host.state()?;
    let mut run = started(&site.host)?;
    for change in ["nft flush ruleset", &format!("nft flush chain {} forward", &TABLE[6..])] {
        let ruleset = site.host.namespace.sh("nft -s list ruleset")?;
        site.host.namespace.sh(change)?;
        wait_until("the rules are back", A_MOMENT, || {
            Ok(site.host.namespace.sh("nft -s list ruleset")? == ruleset)
        })
        .with_context(|| format!("after `{change}`"))?;
        let intruders = site.intruders()?;
        ensure!(intruders == [0, 0], "{intruders:?} packets of a neighbour passed after `{change}`");
    }
    run.signal(Signal::USR1)?;
    run.wait_for_output("again", LIMIT)?;
    let said = end(run)?;
    ensure!(said.contains("changed the nftables table weir0"), "nothing is said of it: {said}");
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

fn a_host_that_was_a_router_stays_one() -> Result<()> {
    let site = Site::new()?;
    site.host.namespace.sh("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    let before = site.host.state()?;
    ensure!(site.intruders()? == [ECHOES; 2], "the host is no router: this test sees nothing");
    let run = started(&site.host)?;
    let passed = site.intruders()?;
    ensure!(passed == [ECHOES; 2], "of {ECHOES} packets each {passed:?} passed a router");
    let office = names(0, 2).v4;
    ensure!(ping(&site.office, &office)?, "a router's other interface is cut off");
    end(run)?;
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

/// By whoever puts the settings back: the guardian, or `weir mend` where that was killed too.
fn a_host_made_a_router_meanwhile_stays_one() -> Result<()> {
    for is_mended in [false, true] {
        let site = Site::new()?;
        let run = started(&site.host)?;
        site.host.namespace.sh("sysctl -q -w net.ipv4.ip_forward=1")?;
        ensure!(site.intruders()? == [0, 0], "the gate is open before the run has ended");
        if is_mended {
            killed_with_guardian(&site.host, run)?;
            weir_lab::process::run(&mut site.host.weir(&["mend"]), LIMIT)?.success()?;
        } else {
            end(run)?;
        }
        ensure!(site.host.forwards()?, "what somebody switched on is off, mended: {is_mended}");
        let passed = site.intruders()?;
        ensure!(passed == [ECHOES, 0], "of {ECHOES} packets {passed:?} passed a router, mended: {is_mended}");
    }
    Ok(())
}

/// The uplink is a bridge, and the host's firewall sees the packets that it carries (`br_netfilter`, where the kernel has it).
fn what_a_bridge_carries_is_not_cut_off() -> Result<()> {
    let site = Site::new()?;
    let host = &site.host.namespace;
    let guest = Namespace::new("guest")?;
    let [near, far] = [(host, "veth2"), (&guest, "veth0")].map(|(namespace, name)| End { namespace, name });
    veth(2, near, far, 1)?;
    let (gateway, own) = (names(0, 2), names(0, 1));
    let script = format!(
        "ip link add br0 address 02:57:00:00:00:01 type bridge && ip addr flush dev veth0 scope global && \
         ip link set veth0 master br0 && ip link set veth2 master br0 && ip link set br0 up && \
         ip addr add {}/24 dev br0 && ip addr add {}/64 dev br0 nodad && \
         ip route replace default via {} && ip -6 route replace default via {} && \
         sysctl -q -w net.ipv4.conf.br0.forwarding=0",
        own.v4, own.v6, gateway.v4, gateway.v6
    );
    shell(host, &script)?;
    // Where there is such a setting, it is on in every new namespace, and asked for to be sure.
    let _ =
        host.sh("sysctl -q -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1");
    guest.ip("addr add 10.99.0.3/24 dev veth0")?;
    guest.ip("addr add fd99:0::3/64 dev veth0 nodad")?;
    guest.ip(&format!("route add 10.99.1.0/24 via {}", own.v4))?;
    let run = started(&site.host)?;
    for address in [&gateway.v4, &gateway.v6] {
        ensure!(ping(&guest, address)?, "a guest on the bridge does not reach {address}");
    }
    ensure!(ping(site.internet()?, "10.99.0.3")?, "a guest on the bridge is not reached");
    ensure!(site.intruders()? == [0, 0], "a neighbour on the bridge passes by way of the run");
    // Back to the LAN it came from, by way of the host.
    guest.ip(&format!("route add {INTERNET_V4} via {}", own.v4))?;
    ensure!(!ping(&guest, INTERNET_V4)?, "a guest on the bridge uses the host as a router");
    end(run)?;
    Ok(())
}

/// Kills a run and its guardian.
fn killed_with_guardian(host: &Host, run: Process) -> Result<()> {
    let guardian = guardian(run.id())?;
    // Both are killed at once, so that neither sees the other go.
    shell(&host.namespace, &format!("kill -s STOP {guardian}; kill -s KILL {} {guardian}", run.id()))?;
    wait_until("the run's interface is gone", LIMIT, || Ok(!host.namespace.ip("-br link")?.contains("weir0")))
}

/// A gate that is left behind keeps the host shut, and must go with the forwarding.
fn what_two_killed_processes_left_is_mended() -> Result<()> {
    let site = Site::new()?;
    killed_with_guardian(&site.host, started(&site.host)?)?;
    ensure!(site.intruders()? == [0, 0], "a neighbour passes by what was left behind");
    let name = site.host.namespace.name();
    let elsewhere = run(site.office.command(weir_binary()?).arg("mend"), LIMIT)?;
    let told = format!(
        "forwarding in network namespace {name}, the nftables table weir0 in network namespace {name} are as a weir that was killed left \
         them: put back by `ip netns exec {name} weir mend`"
    );
    let is_told = elsewhere.status.code() == Some(1) && elsewhere.stdout.contains(&told);
    ensure!(is_told, "from another namespace: {} and {}", elsewhere.status, elsewhere.stdout);
    let stat = run(&mut site.host.weir(&["stat"]), LIMIT)?.success()?;
    let told = "forwarding in this network namespace, the nftables table weir0 in this network namespace are as a weir that was killed left \
                them: put back by `weir mend`";
    ensure!(stat.stderr.contains(told), "weir stat says: {}", stat.stderr);
    weir_lab::process::run(&mut site.host.weir(&["mend"]), LIMIT)?.success()?;
    let rules = site.host.namespace.sh("nft list ruleset")?;
    ensure!(rules.is_empty() && !site.host.forwards()?, "left behind: {rules}");
    Ok(())
}

/// A run of this name that was killed with its guardian, and a child of its program that goes on: its number.
fn killed_above_a_child(host: &Host, run: &str) -> Result<u32> {
    let script = "sleep 1000 >/dev/null 2>&1 & echo child: $!; exec sleep 1000";
    let mut process = Process::spawn(&mut host.weir_run(&["--name", run], script))?;
    process.wait_for_output("child: ", LIMIT)?;
    let child = process.stdout().split_whitespace().last().context("no child")?.parse()?;
    let guardian = format!("/proc/{}/stat", kill_with_guardian(process.id())?[0]);
    process.wait(LIMIT)?;
    // A process that dies keeps its locks until its files are closed.
    wait_until("the guardian is gone", LIMIT, || {
        Ok(std::fs::read_to_string(&guardian).map_or(true, |stat| stat.contains(") Z ")))
    })?;
    Ok(child)
}

/// The network of a run in place stays while a process is in it; everybody is told of it, and who mends takes it down.
fn what_a_killed_run_left_is_mended_under_its_children() -> Result<()> {
    const RUN: &str = "way-killed";
    let site = Site::new()?;
    let host = &site.host;
    let before = host.state()?;
    let child = killed_above_a_child(host, RUN)?;
    let weir = |arguments: &[&str]| weir_lab::process::run(&mut host.weir(arguments), LIMIT);
    let told = "forwarding in this network namespace, weir0 in this network namespace, the nftables table weir0 in this network namespace \
                are as a weir that was killed left them: put back by `weir mend`";
    for (arguments, code) in
        [(&["stat"][..], 0), (&["stat", "--check"], 1), (&["stat", RUN], 0), (&["stat", RUN, "--check"], 1)]
    {
        let done = weir(arguments)?;
        let is_told = done.stderr.contains(told) && done.status.code() == Some(code);
        ensure!(is_told, "weir {} ended with {}: {}", arguments.join(" "), done.status, done.stderr);
    }
    let name = host.namespace.name();
    let elsewhere = run(site.office.command(weir_binary()?).arg("mend"), LIMIT)?;
    let is_told = [format!("weir0 in network namespace {name}"), format!("`ip netns exec {name} weir mend`")];
    let is_told = is_told.iter().all(|told| elsewhere.stdout.contains(told));
    ensure!(is_told && elsewhere.status.code() == Some(1), "{}: {}", elsewhere.status, elsewhere.stdout);
    let done = weir(&["mend"])?.success()?;
    ensure!(done.stdout.contains("the interface weir0 of a run removed"), "it says: {}", done.stdout);
    let after = host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    let done = weir(&["stat", "--check"])?;
    ensure!(!(done.stdout + &done.stderr).contains("this network namespace"), "it is told still");
    send_signal(child, Signal::KILL)
}

/// The interface went with the last process behind it, and the table goes on dropping what the host forwards.
fn a_table_whose_run_was_killed_is_named_without_its_interface() -> Result<()> {
    let site = Site::new()?;
    let host = &site.host.namespace;
    // A router gets no gate, and so no setting to put back.
    host.sh("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    let before = site.host.state()?;
    let child = killed_above_a_child(&site.host, "way-table")?;
    send_signal(child, Signal::KILL)?;
    wait_until("the run's interface is gone", LIMIT, || Ok(!host.ip("-br link")?.contains("weir0")))?;
    let name = host.name();
    let told = format!(
        "the nftables table weir0 in network namespace {name} is as a weir that was killed left it: put back by `ip netns exec {name} \
         weir mend`"
    );
    for (command, code) in [("stat", 0), ("mend", 1)] {
        let done = run(site.office.command(weir_binary()?).arg(command), LIMIT)?;
        let is_told = (done.stdout.clone() + &done.stderr).contains(&told);
        ensure!(is_told && done.status.code() == Some(code), "{}: {} {}", command, done.status, done.stderr);
    }
    weir_lab::process::run(&mut site.host.weir(&["mend"]), LIMIT)?.success()?;
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");

    // One that somebody removed is told no more, and its note goes.
    let child = killed_above_a_child(&site.host, "way-no-table")?;
    send_signal(child, Signal::KILL)?;
    wait_until("the run's interface is gone", LIMIT, || Ok(!host.ip("-br link")?.contains("weir0")))?;
    host.sh("nft delete table inet weir0")?;
    let inode = host.sh("stat -L -c %i /proc/self/ns/net")?;
    let note = format!("/run/weir/holds/{}-table-weir0", inode.trim());
    ensure!(Path::new(&note).exists(), "{note} is not there");
    for command in [&["stat", "--check"][..], &["mend"]] {
        let done = run(site.office.command(weir_binary()?).args(command), LIMIT)?;
        ensure!(
            !(done.stdout.clone() + &done.stderr).contains(name),
            "{command:?}: {}{}",
            done.stdout,
            done.stderr
        );
    }
    ensure!(!Path::new(&note).exists(), "{note} stays");
    Ok(())
}

/// On a router, where a run has its table for masquerading alone, both get the name `weir0` for their interfaces.
fn a_run_beside_one_whose_interface_is_renamed() -> Result<()> {
    let site = Site::new()?;
    site.host.namespace.sh("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    let before = site.host.state()?;
    let mut first = started(&site.host)?;
    site.host.namespace.ip("link set weir0 name renamed")?;
    let second = started(&site.host)?;
    let tables = site.host.namespace.sh("nft list tables")?;
    ensure!(tables.lines().count() == 2, "two runs have {tables}");
    first.signal(Signal::USR1)?;
    first.wait_for_output("again", LIMIT)?;
    let said = end(first)?;
    ensure!(!said.contains("changed the nftables table"), "the second run took the first one's: {said}");
    let said = end(second)?;
    ensure!(!said.contains("changed the nftables table"), "the first run took the second one's: {said}");
    let after = site.host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

/// What cannot be put back is tried again for long, and a pipe ends when all have closed it.
fn a_guardian_that_tries_again_keeps_no_reader_waiting() -> Result<()> {
    let host = Host::with_internet()?;
    let before = host.state()?;
    let run = started(&host)?;
    let guardian = guardian(run.id())?;
    // Its mounts are the run's own.
    let with_its_mounts = |script: &str| {
        shell(&host.namespace, &format!("nsenter --mount=/proc/{guardian}/ns/mnt sh -ec '{script}'"))
    };
    with_its_mounts("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys")?;
    let done = run.stop(LIMIT)?;
    let standard_error = std::fs::read_link(format!("/proc/{guardian}/fd/2"));
    with_its_mounts("umount /proc/sys")?;
    wait_until("everything is put back", LIMIT, || Ok(host.state()? == before))?;
    ensure!(done.stderr.contains("it is tried again"), "nothing failed: {}", done.stderr);
    let standard_error = standard_error?;
    ensure!(standard_error == Path::new("/dev/null"), "it keeps {} open", standard_error.display());
    Ok(())
}

/// A macvlan may be asked for what the device below it cannot do, and the kernel forgets that it was as soon as the macvlan forwards.
fn an_uplink_joins_what_it_receives_again_after_a_run() -> Result<()> {
    let host = Host::with_internet()?;
    let uplink = "ip link add up0 link veth0 type macvlan; ip addr add 10.99.0.7/24 dev up0; ip link set up0 up; \
                  ip route replace default via 10.99.0.2 dev up0; sysctl -q -w net.ipv4.conf.up0.forwarding=0; \
                  ethtool -K up0 lro on || true";
    shell(&host.namespace, uplink)?;
    let asked = || {
        Ok::<_, anyhow::Error>(
            host.namespace.sh("ethtool -k up0")?.contains("large-receive-offload: off [requested on]"),
        )
    };
    ensure!(asked()?, "the macvlan cannot be asked: this test sees nothing");
    for is_mended in [false, true] {
        let mut run = Process::spawn(&mut host.weir_run(&[], "echo runs; exec sleep 1000"))?;
        run.wait_for_output("runs", LIMIT)?;
        ensure!(!asked()?, "the kernel leaves it as it is: this test sees nothing");
        if is_mended {
            killed_with_guardian(&host, run)?;
            weir_lab::process::run(&mut host.weir(&["mend"]), LIMIT)?.success()?;
        } else {
            run.stop(LIMIT)?;
        }
        ensure!(asked()?, "the uplink does not join what it receives any more, mended: {is_mended}");
    }
    Ok(())
}
