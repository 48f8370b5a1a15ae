//! `weir limit` where it may stand: on a tun, a tap, a bridge device and the pairs behind it, a macvlan, the loopback, a container of a real
//! runtime; beside others' programs and filters; and its end under a sender that never pauses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_lab::bed::Namespace;
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, Load, overflowed_datagrams};
use weir_lab::process::run;
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row, is_steered};
use weir_tests::mixed::{Kind, Mixed};
use weir_tests::rig::{Demand, measure_rate, require_lossless, require_rate};
use weir_tests::tcx::Tcx;
use weir_tests::tun::{Layer, Tun};
use weir_tests::xdp::Xdp;
use weir_tests::{at_length, harness, kernel, privileged, require_timing, rounds};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(what_a_host_sends_by_a_tun_is_limited),
        privileged!(what_a_host_sends_by_a_tap_is_limited),
        privileged!(what_a_host_sends_by_a_bridge_is_limited),
        privileged!(a_bridge_keeps_flows_in_order).flooding(),
        privileged!(a_macvlan_keeps_flows_in_order).flooding(),
        privileged!(the_loopback_keeps_flows_in_order).flooding(),
        privileged!(pairs_that_join_a_bridge_are_said_and_steered).together(),
        privileged!(a_pair_that_left_while_there_was_no_queue_is_put_back).together(),
        privileged!(a_name_is_given_to_one_limit).together(),
        privileged!(limits_that_are_given_no_name_have_one_each).together(),
        privileged!(limits_that_share_an_end_leave_it_to_the_last).together(),
        privileged!(floods_in_a_container),
        privileged!(others_stay_and_see_every_packet).together(),
        privileged!(an_end_under_a_sender_that_never_pauses),
    ])
}

fn what_a_host_sends_by_a_tun_is_limited() -> Result<()> {
    by_a_program("tun7", Layer::Ip)
}

fn what_a_host_sends_by_a_tap_is_limited() -> Result<()> {
    by_a_program("tap7", Layer::Ethernet)
}

/// Four senders of the host, and a program that reads their packets.
fn by_a_program(name: &str, layer: Layer) -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let tun = Arc::new(Tun::new(&row.middle, name, layer, "10.98.7")?);
    let reader = Arc::clone(&tun);
    let reordered = limited_by_itself(&row, name, || {
        Crowd::start_towards(&row.middle, "10.98.7.2", 4, vec![1400], move |head| reader.receive(head))
    })?;
    ensure!(reordered == 0, "{reordered} out of order");
    Ok(())
}

fn what_a_host_sends_by_a_bridge_is_limited() -> Result<()> {
    let row = bridge_of_a_host()?;
    let reordered =
        limited_by_itself(&row, "br0", || Crowd::start(&row.middle, &row.left, "10.99.0.1", 4, 1400))?;
    ensure!(reordered == 0, "{reordered} out of order");
    Ok(())
}

/// A bridge by which the middle host sends by itself.
fn bridge_of_a_host() -> Result<Row> {
    let row = Row::new(Between::Bridge)?;
    row.middle.ip("addr add 10.99.0.9/24 dev br0")?;
    find_neighbour(&row, "10.99.0.1")?;
    Ok(row)
}

/// The kernel lets packets that waited for a neighbour's address be overtaken by those that come when that is found.
fn find_neighbour(row: &Row, address: &str) -> Result<()> {
    row.middle.sh(&format!("ping -q -c 2 -i 0.2 -w 10 {address}")).map(drop)
}

fn a_bridge_keeps_flows_in_order() -> Result<()> {
    let row = bridge_of_a_host()?;
    keeps_flows_in_order(&row, "br0", "200mbit", &row.left, "10.99.0.1")
}

/// The loopback hands its packets over as a pair does, to itself.
fn the_loopback_keeps_flows_in_order() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    keeps_flows_in_order(&row, "lo", "2gbit", &row.middle, "127.0.0.1")?;
    let mask = row.middle.sh("cat /sys/class/net/lo/queues/rx-0/rps_cpus")?;
    ensure!(!mask.trim().contains(|digit| !"0,".contains(digit)), "its steering is {mask} now");
    Ok(())
}

fn a_macvlan_keeps_flows_in_order() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    row.middle.ip("link add mac0 link wa type macvlan mode bridge")?;
    row.middle.ip("addr add 10.98.8.9/24 dev mac0")?;
    row.middle.ip("link set mac0 up")?;
    row.left.ip("addr add 10.98.8.1/24 dev veth0")?;
    find_neighbour(&row, "10.98.8.1")?;
    keeps_flows_in_order(&row, "mac0", "200mbit", &row.left, "10.98.8.1")
}

/// Requires that flows keep their order at a rate at which every processor runs the queue: from the middle host to another, floods and
/// streams.
fn keeps_flows_in_order(row: &Row, name: &str, rate: &str, host: &Namespace, to: &str) -> Result<()> {
    let long = Duration::from_secs(at_length(1, 2) as u64);
    row.weir(&format!("limit {name} --rate {rate}"))?.success()?;
    for round in 1..=rounds().unwrap_or(1) {
        for senders in [1, 3, 16] {
            let crowd = Crowd::start(&row.middle, host, to, senders, 1400)?;
            let_pass(long, |_| ())?;
            let arrived = crowd.finish()?;
            println!(
                "    round {round}, floods {senders}: {} arrived, {} out of order",
                arrived.count, arrived.reordered
            );
            ensure!(arrived.count > 100 && arrived.reordered == 0, "{senders} floods: {arrived:?}");
        }
        let before = kernel::counter(host, "TcpExt", "TCPOFOQueue")?;
        let streams = Mixed::start(&row.middle, host, to, &[Kind::Tcp; 4])?;
        let_pass(long, |_| ())?;
        let bytes: f64 = streams.frame_bytes().iter().sum();
        drop(streams);
        let reordered = kernel::counter(host, "TcpExt", "TCPOFOQueue")? - before;
        println!("    round {round}, 4 streams: {:.0} MB arrived, {reordered} out of order", bytes / 1e6);
        ensure!(bytes > 1e6 && reordered == 0, "4 streams: {bytes} bytes, {reordered} out of order");
    }
    row.lossless_limit(name)?;
    row.weir(&format!("limit {name} --off"))?.success()?;
    Ok(())
}

/// Steering that somebody has set stays, that of a port that has left is put back, a container that is gone is no error.
fn pairs_that_join_a_bridge_are_said_and_steered() -> Result<()> {
    const LIMIT: &str = "limit br0 --rate 50mbit";
    let row = bridge_of_a_host()?;
    let set_by_somebody = "echo 2 > /sys/class/net/veth0/queues/rx-0/rps_cpus";
    run(row.right.command("sh").args(["-c", set_by_somebody]), PATIENCE)?.success()?;
    row.weir(LIMIT)?.success()?;
    ensure!(is_steered(&row.left)?, "the other end of a port is not steered");
    row.weir("stat br0 --check")?.success()?;
    let limit = row.lossless_limit("br0")?;
    ensure!(limit["changed"]["rps_cpus_behind"] == json!(["wa"]), "{limit}");

    let third = Namespace::new("third")?;
    row.middle.ip(&format!("link add wc type veth peer name veth0 netns {}", third.name()))?;
    row.middle.ip("link set wc up master br0")?;
    let said = row.weir("stat br0 --check")?;
    ensure!(said.status.code() == Some(1), "nobody says that wc joined: {}", said.stdout);
    ensure!(said.stderr.contains("in order behind wc, which joined since"), "{}", said.stderr);
    ensure!(!is_steered(&third)?, "nobody asked for it");
    row.weir(LIMIT)?.success()?;
    ensure!(is_steered(&third)?, "the same command does not steer what joined");
    row.weir("stat br0 --check")?.success()?;

    row.middle.ip("link set wa nomaster")?;
    row.weir(LIMIT)?.success()?;
    ensure!(!is_steered(&row.left)?, "what has left is not put back");
    row.middle.ip("link set wa master br0")?;
    row.weir(LIMIT)?.success()?;

    drop(third);
    wait_until("its pair is gone", PATIENCE, || Ok(!row.middle.ip("-o link show")?.contains(" wc@")))?;
    row.weir("stat br0 --check")?.success()?;
    row.weir("limit br0 --off")?.success()?;
    ensure!(!is_steered(&row.left)?, "it is not put back");
    let mask = row.right.sh("cat /sys/class/net/veth0/queues/rx-0/rps_cpus")?;
    ensure!(mask.trim().trim_start_matches(['0', ',']) == "2", "somebody's steering is {mask} now");
    Ok(())
}

fn a_pair_that_left_while_there_was_no_queue_is_put_back() -> Result<()> {
    const LIMIT: &str = "limit br0 --rate 50mbit";
    let row = bridge_of_a_host()?;
    row.weir(LIMIT)?.success()?;
    ensure!(is_steered(&row.left)?, "the other end of a port is not steered");
    row.middle.tc("qdisc del dev br0 root")?;
    row.middle.ip("link set wa nomaster")?;
    row.weir(LIMIT)?.success()?;
    ensure!(!is_steered(&row.left)?, "what has left is not put back");
    ensure!(is_steered(&row.right)?, "what has not left is not steered any more");
    row.weir("limit br0 --off")?.success()?;
    ensure!(!is_steered(&row.left)? && !is_steered(&row.right)?, "it is not put back");
    Ok(())
}

/// Two commands at once give two limits one name: one of them is refused.
fn a_name_is_given_to_one_limit() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    for round in 0..5 {
        let name = format!("{}-{round}", row.middle.name());
        let set = |device| row.weir(&format!("limit {device} --rate 20mbit --name {name}"));
        let done = std::thread::scope(|scope| {
            let both = ["wa", "wb"].map(|device| scope.spawn(move || set(device)));
            both.map(|command| command.join().expect("it waits for a command"))
        });
        let [first, second] = done;
        let codes = [first?, second?].map(|done| done.status.code());
        ensure!(codes == [Some(0), Some(2)] || codes == [Some(2), Some(0)], "{codes:?}");
        row.weir(&format!("limit {name} --off"))?.success()?;
    }
    Ok(())
}

/// Two commands at once, on two hosts whose interfaces are called the same, each choose a name.
fn limits_that_are_given_no_name_have_one_each() -> Result<()> {
    let rows = [Row::new(Between::Bridge)?, Row::new(Between::Bridge)?];
    for _ in 0..10 {
        let done = std::thread::scope(|scope| {
            let both = rows.each_ref().map(|row| scope.spawn(|| row.weir("limit wa --rate 20mbit")));
            both.map(|command| command.join().expect("it waits for a command"))
        });
        for done in done {
            done?.success()?;
        }
        let limits = rows[0].limits("")?;
        let name_at = |row: &Row| -> Result<String> {
            let is_there = |limit: &&Value| {
                limit["netns"].as_str().is_some_and(|netns| netns.ends_with(row.left.name()))
            };
            let name = limits.iter().find(is_there).and_then(|limit| limit["name"].as_str());
            name.map(str::to_owned).context("no limit with a name")
        };
        let names = [name_at(&rows[0])?, name_at(&rows[1])?];
        ensure!(names[0] != names[1], "two limits are called {}", names[0]);
        for (row, name) in rows.iter().zip(&names) {
            row.weir(&format!("limit {name} --off"))?.success()?;
        }
    }
    Ok(())
}

fn limits_that_share_an_end_leave_it_to_the_last() -> Result<()> {
    let row = bridge_of_a_host()?;
    let limits = ["limit br0 --rate 50mbit", "limit wa --rate-back 20mbit --name back"];
    for made in [limits, [limits[1], limits[0]]] {
        for ended in [["br0", "wa"], ["wa", "br0"]] {
            for limit in made {
                row.weir(limit)?.success()?;
            }
            for (name, is_left) in ended.into_iter().zip([true, false]) {
                ensure!(is_steered(&row.left)?, "{made:?}, before the end of {name}");
                row.weir(&format!("limit {name} --off"))?.success()?;
                ensure!(is_steered(&row.left)? == is_left, "{made:?}, behind the end of {name}");
            }
        }
    }
    Ok(())
}

/// Limits a device that is no pair's, which sends itself: it is held, at the rate; then it sends as before. Returns how many packets
/// arrived out of order.
fn limited_by_itself(row: &Row, name: &str, start: impl FnOnce() -> Result<Crowd>) -> Result<u64> {
    const RATE_BITS_PER_S: f64 = 20e6;
    let before = row.middle.tc(&format!("qdisc show dev {name}"))?;
    let done = row.weir(&format!("limit {name} --rate 20mbit"))?.success()?;
    let said = format!("limited: {name} in this network namespace");
    ensure!(done.stdout.contains(&said), "{}", done.stdout);
    let crowd = start()?;
    wait_until("the first arrive", PATIENCE, || Ok(crowd.received() > 100))?;
    // Both looks take time, more on a busy machine: the bytes are those of no more than `longest` and no less than `shortest`.
    let before_first = now();
    let first = sent_bytes(row, name)?;
    let behind_first = now();
    let_pass(Duration::from_secs(2), |_| ())?;
    let shortest = behind_first.elapsed();
    let last = sent_bytes(row, name)?;
    let longest = before_first.elapsed();
    let held = row.lossless_limit(name)?["held"].as_u64();
    ensure!(held > Some(4), "nobody is held: {held:?}");
    let (sent, arrived) = crowd.finish_counted()?;
    ensure!(arrived.count == sent, "{sent} sent, {} arrived", arrived.count);
    row.lossless_limit(name)?;
    let [least, most] = [longest, shortest]
        .map(|elapsed| (last - first) as f64 * 8.0 / elapsed.as_secs_f64() / RATE_BITS_PER_S);
    println!("    {least:.4} to {most:.4} of the rate, {sent} datagrams");
    ensure!(least <= 1.02, "{:.1} % of the rate: the limit does not hold", least * 100.0);
    require_timing!(most >= 0.97, "{:.1} % of the rate", most * 100.0);
    row.weir(&format!("limit {name} --off"))?.success()?;
    let after = row.middle.tc(&format!("qdisc show dev {name}"))?;
    ensure!(after == before, "{name} had {before}, has {after}");
    Ok(arrived.reordered)
}

fn sent_bytes(row: &Row, name: &str) -> Result<u64> {
    row.lossless_limit(name)?["delivered_bytes"].as_u64().context("bytes")
}

/// A container that `runc` made and that has no capability of the network's.
struct Container {
    name: String,
    bundle: PathBuf,
}

impl Container {
    /// Starts one in a namespace, as an engine does that has the network set up first.
    fn start(namespace: &Namespace) -> Result<Container> {
        let name = format!("weir-{}", std::process::id());
        let bundle = std::env::temp_dir().join(&name);
        fs::create_dir_all(bundle.join("rootfs"))?;
        let container = Container { name, bundle };
        let mounts = ["/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc"]
            .iter()
            .filter(|path| Path::new(path).exists());
        let mut mounts: Vec<Value> = mounts
            .map(|path| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}))
            .collect();
        mounts.push(json!({"destination": "/proc", "type": "proc", "source": "proc"}));
        let network = format!("/run/netns/{}", namespace.name());
        let capabilities =
            json!({"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]});
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": ["sleep", "1000"], "cwd": "/", "env": ["PATH=/usr/bin:/bin"],
                "capabilities": capabilities, "noNewPrivileges": true
            },
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "network", "path": network}]
            }
        });
        fs::write(container.bundle.join("config.json"), config.to_string())?;
        container.runc(&[
            "run",
            "-d",
            "--bundle",
            &container.bundle.display().to_string(),
            &container.name,
        ])?;
        Ok(container)
    }

    fn pid(&self) -> Result<u64> {
        let state: Value = serde_json::from_str(&self.runc(&["state", &self.name])?)?;
        state["pid"].as_u64().context("runc says no pid")
    }

    fn runc(&self, arguments: &[&str]) -> Result<String> {
        Ok(run(Command::new("runc").args(arguments), PATIENCE)?.success()?.stdout)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Straight `output`: after Ctrl-C every wait of the bench is refused. Nothing can be done about a failure here.
        let _ = Command::new("runc").args(["delete", "--force", &self.name]).output();
        let _ = fs::remove_dir_all(&self.bundle);
    }
}

/// The container is named by its process, as an engine names it.
fn floods_in_a_container() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let container = Container::start(&row.left)?;
    let pid = container.pid()?;
    row.weir(&format!("limit --pid {pid} --device veth0 --rate 200mbit --name office-places"))?.success()?;
    let to = row.right_address(Between::Bridge);
    let by = ["runc", "exec", &container.name];
    let load = Load { by: &by, ..Load::new(&row.left, &row.right, &to, 3, 4.0) };
    let flood = Flood::start(&load)?;
    let rate = measure_rate(&flood, &load)?;
    let held = row.lossless_limit("office-places")?["held"].as_u64();
    ensure!(held > Some(3), "nobody is held: {held:?}");
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("office-places")?;
    require_lossless(&flows, &load)?;
    require_rate(&flows, rate, Demand::of_rate(200e6))?;
    row.weir(&format!("limit --pid {pid} --device veth0 --off"))?.success()?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("noqueue"), "{qdisc}");
    Ok(())
}

/// XDP, tcx, a tc filter's hook and nftables count the packets that they see under the limit and when it is gone: all of them.
fn others_stay_and_see_every_packet() -> Result<()> {
    const PINGS: u64 = 20;
    /// The length by which the programs know a request of ours: 14 + 20 + 8 + 1234.
    const FRAME_BYTES: u16 = 1276;
    let row = Row::with_pair(Between::Bridge, "numtxqueues 1 numrxqueues 1")?;
    let to = row.right_address(Between::Bridge);
    row.left.tc("qdisc add dev veth0 clsact")?;
    row.left.tc("filter add dev veth0 egress protocol ip prio 9 u32 match ip protocol 1 0xff classid 1:1")?;
    row.left.sh("nft add table netdev watch")?;
    row.left.sh("nft add chain netdev watch out { type filter hook egress device veth0 priority 0 ; }")?;
    row.left.sh("nft add rule netdev watch out icmp type echo-request counter")?;
    let xdp = Xdp::counting(row.far_end(), FRAME_BYTES)?;
    let egress = Tcx::counting_if_known(row.sender(), false, FRAME_BYTES)?;
    let ingress = Tcx::counting_if_known(row.far_end(), true, FRAME_BYTES)?;
    let filters = || row.left.tc("filter show dev veth0 egress");
    let filters_before = filters()?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    for (round, when) in (1..).zip(["under the limit", "when it is gone"]) {
        row.left.sh(&format!("ping -q -c {PINGS} -i 0.02 -s 1234 {to}"))?;
        let mut seen = vec![xdp.count()?];
        for program in [&egress, &ingress].into_iter().flatten() {
            seen.push(program.count()?);
        }
        ensure!(
            seen.iter().all(|count| *count == round * PINGS),
            "{when}: XDP, tcx at egress and ingress saw {seen:?}"
        );
        let seen = row.left.sh("nft list chain netdev watch out")?;
        ensure!(seen.contains(&format!("packets {} ", round * PINGS)), "{when}: {seen}");
        ensure!(filters()? == filters_before, "{when}: {}", filters()?);
        if round == 1 {
            row.weir("limit wa --off")?.success()?;
        }
    }
    let qdiscs = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdiscs.contains("clsact") && qdiscs.contains("noqueue") && !qdiscs.contains("htb"), "{qdiscs}");
    Ok(())
}

/// The root of an interface is swapped while nothing is sent, or not at all: it stays open, is said, and goes later.
fn an_end_under_a_sender_that_never_pauses() -> Result<()> {
    const PORT: u16 = 7003;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 50mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let receiver = row.right.enter(|| std::net::UdpSocket::bind(("0.0.0.0", PORT)))??;
    receiver.set_read_timeout(Some(Duration::from_millis(300)))?;
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let send = || -> Result<()> {
        let socket = row.left.enter(|| std::net::UdpSocket::bind(("0.0.0.0", 0)))??;
        while !is_over.load(Ordering::Relaxed) {
            socket.send_to(&[0; 100], (to.as_str(), PORT))?;
            sent.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    };
    let count = || {
        let mut count = 0u64;
        loop {
            match receiver.recv(&mut [0; 100]) {
                Ok(_) => count += 1,
                Err(_) if is_over.load(Ordering::Relaxed) => return count,
                Err(_) => {}
            }
        }
    };
    let (ended, arrived) = std::thread::scope(|scope| -> Result<_> {
        let receiving = scope.spawn(count);
        let sending: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
        let ended = row.weir("limit wa --off");
        is_over.store(true, Ordering::Relaxed);
        for sender in sending {
            sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??;
        }
        Ok((ended?, receiving.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?))
    })?;
    require_timing!(ended.status.code() == Some(1), "it found a pause: {}{}", ended.stdout, ended.stderr);
    ensure!(ended.stderr.contains("limits nothing any more"), "{}", ended.stderr);
    let sent = sent.load(Ordering::Relaxed);
    // A receiver that gets no processor for long has no room for them.
    let overflowed = overflowed_datagrams(&row.right)?;
    ensure!(
        arrived + overflowed == sent,
        "{sent} sent, {arrived} arrived, {overflowed} overflowed the receiver"
    );
    ensure!(row.lossless_limit("wa")?["stage"] == "opening", "it is still there, open");
    row.weir("limit wa --off")?.success()?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("noqueue"), "{qdisc}");
    Ok(())
}
