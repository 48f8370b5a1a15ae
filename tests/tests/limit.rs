//! `weir limit`: what real clients send is held, whole, in order and evenly shared; the limit is found again, changed and removed.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row};
use weir_tests::rig::{Demand, measure_rate, require_lossless, require_rate};
use weir_tests::{harness, kernel, privileged};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(two_floods_in_a_bridge),
        privileged!(sixteen_floods_routed),
        privileged!(small_and_large_datagrams_stay_in_order),
        privileged!(short_flows_beside_floods_reorder_nothing),
        privileged!(changes_under_load_lose_nothing),
        privileged!(forwarded_packets_are_dropped_by_rule_and_counted),
        privileged!(everything_comes_back),
        privileged!(others_stay_and_see_every_packet),
        privileged!(tun_and_bridge_devices_are_limited_themselves),
        privileged!(what_is_taken_away_is_said_and_set_again),
        privileged!(a_priority_passes_nothing_by),
        privileged!(what_cannot_be_limited_is_said),
    ])
}

fn seconds() -> f64 {
    std::env::var("WEIR_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0)
}

fn two_floods_in_a_bridge() -> Result<()> {
    rounds(Between::Bridge, 2)
}

fn sixteen_floods_routed() -> Result<()> {
    rounds(Between::Routes, 16)
}

/// Once with so many clients; with `WEIR_ROUNDS` so often with each number.
fn rounds(between: Between, clients: usize) -> Result<()> {
    let rounds: Option<usize> = std::env::var("WEIR_ROUNDS").ok().and_then(|text| text.parse().ok());
    let Some(rounds) = rounds else { return floods(between, clients) };
    for _ in 0..rounds {
        for clients in [2, 3, 8, 16, 64] {
            floods(between, clients).with_context(|| format!("{clients} clients"))?;
        }
    }
    Ok(())
}

/// Nothing dropped by the queue, nothing out of order, the rate is there and even.
fn floods(between: Between, clients: usize) -> Result<()> {
    let row = Row::new(between)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(between);
    let load = Load::new(&row.left, &row.right, &to, clients, seconds());
    let flood = Flood::start(&load)?;
    let rate = measure_rate(&flood, &load)?;
    let limit = row.lossless_limit("wa")?;
    ensure!(limit["held"]["packets"].as_u64() > Some(0), "nobody is held: {limit}");
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    row.weir("stat wa --check")?.success()?;
    require_lossless(&flows, &load)?;
    require_rate(&flows, rate, Demand::of_rate(200e6))
}

/// Datagrams that are fragmented beside others that are not, of the same sockets.
fn small_and_large_datagrams_stay_in_order() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 100mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let crowd = Crowd::start_mixed(&row.left, &row.right, &to, 16, vec![100, 8000, 100, 1400])?;
    weir_lab::clock::let_pass(Duration::from_secs(2), |_| ())?;
    let arrived = crowd.finish()?;
    ensure!(arrived.count > 1000, "only {} arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa").map(drop)
}

/// Far more flows than the limit remembers, so that they meet in its memory and take leaves from each other.
fn short_flows_beside_floods_reorder_nothing() -> Result<()> {
    const FLOWS: usize = 40_000;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let crowd = Crowd::start(&row.left, &row.right, &to, 16, 1400)?;
    let sent = row.left.enter(|| -> std::io::Result<usize> {
        let mut sent = 0;
        for _ in 0..FLOWS {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.set_nonblocking(true)?;
            sent += usize::from(socket.send_to(&[0; 100], (to.as_str(), 7010)).is_ok());
        }
        Ok(sent)
    })??;
    let arrived = crowd.finish()?;
    ensure!(sent == FLOWS, "{sent} of {FLOWS} flows could send");
    ensure!(arrived.count > 1000, "only {} arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa").map(drop)
}

fn changes_under_load_lose_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 4, seconds().max(4.0));
    let flood = Flood::start(&load)?;
    for rate in ["50mbit", "400mbit", "20mbit", "100mbit"].iter().cycle().take(20) {
        row.weir(&format!("limit wa --rate {rate}"))?.success()?;
        let limit = row.lossless_limit("wa")?;
        ensure!(limit["stage"] == "limiting", "{limit}");
    }
    row.weir("limit wa --rate 200mbit")?.success()?;
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    require_lossless(&flows, &load)
}

/// What was forwarded has no sender here to hold: it waits, then it is dropped, by the rule's name.
fn forwarded_packets_are_dropped_by_rule_and_counted() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    row.weir("limit wb --rate-back 50mbit")?.success()?;
    let to = row.right_address(Between::Routes);
    let load = Load::new(&row.left, &row.right, &to, 2, seconds());
    let flood = Flood::start(&load)?;
    let rate = measure_rate(&flood, &load)?;
    let limits = row.limits("wb")?;
    let dropped = &limits[0]["dropped"];
    ensure!(dropped["passing-full"].as_u64() > Some(0), "{dropped}");
    ensure!(dropped["held-full"] == 0 && dropped["priority"] == 0, "{dropped}");
    let waits_ns = limits[0]["held_over_rate_ns"].as_u64().unwrap_or(u64::MAX);
    ensure!(waits_ns <= 60_000_000, "{waits_ns} ns wait");
    flood.finish(PATIENCE)?;
    let share = rate / 50e6;
    ensure!((0.9..=1.02).contains(&share), "{:.1} % of the rate", share * 100.0);
    Ok(())
}

/// As if there had never been a limit, and no process in between. A bridge would show its timers as well.
fn everything_comes_back() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let traces = || -> Result<_> {
        let mut all = Vec::new();
        for host in [&row.left, &row.middle] {
            all.push(kernel::traces(host)?);
        }
        let steering = ["rx-0", "rx-1"].map(|queue| {
            row.middle.sh(&format!("cat /sys/class/net/wa/queues/{queue}/rps_cpus")).unwrap_or_default()
        });
        Ok((all, steering))
    };
    let before = traces()?;
    let done = row.weir("limit wa --rate 100mbit --rate-back 50mbit --name office")?.success()?;
    ensure!(done.stdout.contains("veth0 in network namespace"), "{}", done.stdout);
    ensure!(row.limits("office")?.len() == 2, "two queues");
    ensure!(traces()? != before, "a limit shows");
    row.weir("stat office --check")?.success()?;
    let done = row.weir("limit wa --off")?.success()?;
    ensure!(done.stdout.matches("removed").count() == 2, "{}", done.stdout);
    let after = traces()?;
    ensure!(after == before, "left behind: {after:?} before: {before:?}");
    let again = row.weir("limit wa --off")?;
    ensure!(again.status.code() == Some(1) && again.stderr.contains("there is no limit"), "{}", again.stderr);
    Ok(())
}

/// A filter at the same device counts what it sees: all of it, and it is still there when the limit is gone.
fn others_stay_and_see_every_packet() -> Result<()> {
    const PINGS: usize = 20;
    let row = Row::new(Between::Bridge)?;
    row.left.tc("qdisc add dev veth0 clsact")?;
    row.left.sh("nft add table netdev watch")?;
    row.left.sh("nft add chain netdev watch out { type filter hook egress device veth0 priority 0 ; }")?;
    row.left.sh("nft add rule netdev watch out icmp type echo-request counter")?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    row.left.sh(&format!("ping -q -c {PINGS} -i 0.02 {to}"))?;
    let seen = row.left.sh("nft list chain netdev watch out")?;
    ensure!(seen.contains(&format!("packets {PINGS} ")), "{seen}");
    row.weir("limit wa --off")?.success()?;
    let qdiscs = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdiscs.contains("clsact") && qdiscs.contains("noqueue") && !qdiscs.contains("htb"), "{qdiscs}");
    row.left.sh("nft list chain netdev watch out").map(drop)
}

/// Where there is no pair the device that is named sends itself.
fn tun_and_bridge_devices_are_limited_themselves() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.middle.ip("tuntap add tun7 mode tun")?;
    row.middle.ip("tuntap add tap7 mode tap")?;
    for name in ["tun7", "tap7", "br0"] {
        row.middle.ip(&format!("link set {name} up"))?;
        let before = row.middle.tc(&format!("qdisc show dev {name}"))?;
        let done = row.weir(&format!("limit {name} --rate 10mbit"))?.success()?;
        ensure!(
            done.stdout.contains(&format!("limited: {name} in this network namespace")),
            "{}",
            done.stdout
        );
        ensure!(row.lossless_limit(name)?["interface"] == name, "its queue is its own");
        row.weir(&format!("limit {name} --off"))?.success()?;
        let after = row.middle.tc(&format!("qdisc show dev {name}"))?;
        ensure!(after == before, "{name} had {before}, has {after}");
    }
    Ok(())
}

/// A container that is root of its namespace can take the filter away.
fn what_is_taken_away_is_said_and_set_again() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.left.tc("filter del dev veth0 parent 7769:")?;
    let done = row.weir("stat --check")?;
    ensure!(
        done.status.code() == Some(1) && done.stderr.contains("its filter was removed"),
        "{}",
        done.stderr
    );
    row.weir("limit wa --rate 20mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// `7769:0` means "directly" to HTB, and who may set a priority may set that.
fn a_priority_passes_nothing_by() -> Result<()> {
    const DIRECT: libc::c_int = 0x7769_0000;
    const DATAGRAMS: usize = 50;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 1mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", 7009)))??;
    receiver.set_nonblocking(true)?;
    let sender = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    // SAFETY: the value and its size are passed; the socket is open.
    let set = unsafe {
        libc::setsockopt(
            sender.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PRIORITY,
            std::ptr::from_ref(&DIRECT).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(set == 0, "the priority can be set");
    for _ in 0..DATAGRAMS {
        // The queue may say that it dropped one.
        let _ = sender.send_to(&[0; 1000], (to.as_str(), 7009));
    }
    wait_until("the kernel has counted them", PATIENCE, || {
        Ok(row.limits("wa")?[0]["dropped"]["priority"] == DATAGRAMS)
    })?;
    let mut buffer = [0; 2000];
    ensure!(receiver.recv(&mut buffer).is_err(), "one passed by");
    Ok(())
}

fn what_cannot_be_limited_is_said() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.left.tc("qdisc add dev veth0 root tbf rate 10mbit burst 20kb limit 100kb")?;
    row.middle.ip("link add dummy7 type dummy").ok();
    let cases = [
        ("limit wa --rate 10mbit", 1, "has a tbf qdisc"),
        ("limit nowhere --rate 10mbit", 1, "there is no interface \"nowhere\""),
        ("limit wb --rate 1kbit", 1, "below 8kbit"),
        ("limit wb --rate 0mbit", 2, "more than zero"),
        ("limit wb", 2, "nothing to do"),
        ("limit br0 --rate-back 10mbit", 2, "--rate-back is for a pair"),
        ("limit --pid 4194305 --rate 10mbit", 1, "there is none"),
        ("limit wb --burst 20kb", 1, "give its rate"),
    ];
    for (arguments, status, sentence) in cases {
        let done = row.weir(arguments)?;
        ensure!(done.status.code() == Some(status), "`{arguments}`: {:?} {}", done.status, done.stderr);
        ensure!(done.stderr.contains(sentence), "`{arguments}` says {}", done.stderr);
    }
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("tbf"), "somebody's root is untouched: {qdisc}");
    let qdisc = row.middle.tc("qdisc show")?;
    ensure!(!qdisc.contains("htb"), "nothing is left behind: {qdisc}");
    Ok(())
}
