//! `weir limit` by figures: the packets that come out of the queue at every moment, the traffic beside them, the shares, the far end.
//!
//! A corner of the matrix in each test; with `WEIR_ROUNDS` every number of clients, so often (`make verify`).

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, Load, PAYLOAD_BYTES, jain, overflowed_datagrams};
use weir_lab::ping::{Ping, RoundTrips};
use weir_lab::process::{Process, run};
use weir_tests::arrivals::{Watch, seconds, worst_window};
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row};
use weir_tests::mixed::{Kind, Mixed, widen};
use weir_tests::ready::{NOT_OVER, Sent, receive, send_until};
use weir_tests::rig::{Demand, measure_rate, require_lossless, require_rate};
use weir_tests::xdp::Xdp;
use weir_tests::{harness, privileged, require_timing, rounds};

const PATIENCE: Duration = Duration::from_secs(40);
const RATE_BITS_PER_S: f64 = 200e6;
/// 2 ms of the rate, the default.
const BURST_BYTES: f64 = 50_000.0;
/// One queue, so that a pair's end has XDP or NAPI and its queue keeps order all the same.
const ONE_QUEUE: &str = "numtxqueues 1 numrxqueues 1";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(floods_in_a_bridge),
        privileged!(floods_routed),
        privileged!(floods_in_a_bridge_past_xdp),
        privileged!(floods_routed_past_xdp).long(),
        privileged!(floods_in_a_bridge_past_gro).long(),
        privileged!(floods_routed_past_gro),
        privileged!(floods_in_a_bridge_steered),
        privileged!(floods_routed_steered).long(),
        privileged!(floods_over_ipv6),
        privileged!(a_far_end_that_cannot_keep_order_is_refused).together(),
        privileged!(a_ping_is_quick_beside_sixteen_floods),
        privileged!(sixty_four_streams_and_a_ping),
        privileged!(kinds_share_by_bytes),
        privileged!(kinds_share_a_low_rate_by_bytes),
        privileged!(small_packets_share_with_large_ones),
        privileged!(sixty_four_senders_that_never_block),
        privileged!(more_flows_than_leaves_lose_nothing).flooding(),
        privileged!(leaves_empty_themselves_whatever_is_dropped_behind).flooding(),
    ])
}

/// The far end of the sender's pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Far {
    Plain,
    /// An XDP program that passes all, so a ring that may be full.
    Xdp,
    /// GRO, and no segmentation at the sender: the same ring.
    Gro,
    /// Steered to one processor by somebody.
    Steered,
}

impl Far {
    fn pair_options(self) -> &'static str {
        match self {
            Far::Plain | Far::Steered => "",
            Far::Xdp | Far::Gro => ONE_QUEUE,
        }
    }

    /// Sets it up. Returns the program that has to stay.
    fn set_up(self, row: &Row) -> Result<Option<Xdp>> {
        match self {
            Far::Plain => {}
            Far::Xdp => return Xdp::counting(row.far_end(), 1).map(Some),
            Far::Gro => {
                row.left.sh("ethtool -K veth0 tso off")?;
                row.middle.sh("ethtool -K wa gro on")?;
            }
            Far::Steered => {
                let mut command = row.middle.command("sh");
                let line = "for mask in /sys/class/net/wa/queues/rx-*/rps_cpus; do echo 1 > $mask; done";
                drop(run(command.args(["-c", line]), PATIENCE)?.success()?);
            }
        }
        Ok(None)
    }
}

fn floods_in_a_bridge() -> Result<()> {
    corner(2, Between::Bridge, Far::Plain)
}

fn floods_routed() -> Result<()> {
    corner(16, Between::Routes, Far::Plain)
}

fn floods_in_a_bridge_past_xdp() -> Result<()> {
    corner(64, Between::Bridge, Far::Xdp)
}

fn floods_routed_past_xdp() -> Result<()> {
    corner(2, Between::Routes, Far::Xdp)
}

fn floods_in_a_bridge_past_gro() -> Result<()> {
    corner(3, Between::Bridge, Far::Gro)
}

fn floods_routed_past_gro() -> Result<()> {
    corner(8, Between::Routes, Far::Gro)
}

fn floods_in_a_bridge_steered() -> Result<()> {
    corner(8, Between::Bridge, Far::Steered)
}

fn floods_routed_steered() -> Result<()> {
    corner(3, Between::Routes, Far::Steered)
}

fn floods_over_ipv6() -> Result<()> {
    rows(8, Between::Bridge, Far::Plain, true)
}

/// Runs a row once with so many clients, or with all numbers of them as often as is asked for.
fn corner(clients: usize, between: Between, far: Far) -> Result<()> {
    rows(clients, between, far, false)
}

fn rows(clients: usize, between: Between, far: Far, ipv6: bool) -> Result<()> {
    let Some(rounds) = rounds() else { return floods(clients, between, far, ipv6) };
    let rows = (1..=rounds).flat_map(|round| [2, 3, 8, 16, 64].map(|clients| Round { clients, round }));
    harness::judge_rows(rows, |row| floods(row.clients, between, far, ipv6))
}

/// One row of the matrix.
struct Round {
    clients: usize,
    round: usize,
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} clients, round {}", self.clients, self.round)
    }
}

/// Requires that no packet is lost or out of order; that the rate is there in every second, and that no window has more than it may.
fn floods(clients: usize, between: Between, far: Far, ipv6: bool) -> Result<()> {
    let row = Row::with_pair(between, far.pair_options())?;
    let _far = far.set_up(&row)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let addresses = Row::right_addresses(between);
    let to = if ipv6 { addresses.v6 } else { addresses.v4 };
    // The length that iperf would choose by itself, so that a frame is an Ethernet frame's.
    let payload_bytes = if ipv6 { 1450 } else { PAYLOAD_BYTES };
    let load = Load { payload_bytes, ..Load::new(&row.left, &row.right, &to, clients, 2.8) };
    let losses_before = row.losses()?;
    let flood = Flood::start(&load)?;
    let watch = Watch::start(row.far_end())?;
    let rate = measure_rate(&flood, &load)?;
    let watched = watch.finish()?;
    let limit = row.lossless_limit("wa")?;
    require_timing!(limit["held"].as_u64() > Some(0), "nobody is held: {limit}");
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    row.weir("stat wa --check")?.success()?;
    let losses = row.losses()?;
    // Packets that have left the queue wait for the far processor, a thousand at the most, under any limit. Where the host keeps that
    // processor for longer, they are lost.
    require_timing!(
        losses == losses_before || losses["softnet"] == losses_before["softnet"],
        "a processor's list of arrivals was full: {losses:?}, before: {losses_before:?}"
    );
    ensure!(losses == losses_before, "dropped: {losses:?}, before: {losses_before:?}");
    require_lossless(&flows, &load)?;
    require_rate(&flows, rate, Demand::of_rate(RATE_BITS_PER_S))?;
    let worst = worst_window(&watched, RATE_BITS_PER_S);
    let seconds = seconds(&watched, RATE_BITS_PER_S);
    println!("    {worst:?}, {seconds:.4?}");
    ensure!(!seconds.is_empty(), "the watch saw {} packets", watched.arrivals.len());
    let most = BURST_BYTES + (clients + 1) as f64 * load.frame_bytes() as f64;
    // Where the other end has NAPI, the stamps are of its polls, each of the packets that came since the one before.
    let is_stamped = matches!(far, Far::Plain | Far::Steered);
    require_timing!(
        !is_stamped || worst.excess_bytes <= most,
        "{worst:?}: {most:.0} bytes more than the rate may be"
    );
    let is_even = seconds.iter().all(|second| second.is_within(0.01));
    require_timing!(
        is_even,
        "a second is not within 1 % of the rate, nor what misses the host's: {seconds:.4?}"
    );
    Ok(())
}

/// A pair with several possible queues, whose ring may refuse.
fn a_far_end_that_cannot_keep_order_is_refused() -> Result<()> {
    for far in [Far::Xdp, Far::Gro] {
        let row = Row::new(Between::Bridge)?;
        let _far = far.set_up(&row)?;
        let done = row.weir("limit wa --rate 200mbit")?;
        ensure!(done.status.code() == Some(1), "{far:?}: {:?}", done.status);
        ensure!(done.stderr.contains("cannot keep packets in order"), "{far:?}: {}", done.stderr);
        let qdisc = row.left.tc("qdisc show dev veth0")?;
        ensure!(qdisc.contains("noqueue"), "{far:?}: {qdisc}");
    }
    Ok(())
}

fn a_ping_is_quick_beside_sixteen_floods() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 16, 4.5);
    let free = Row::new(Between::Bridge)?;
    let flood = Flood::start(&load)?;
    let trips = ping_beside(&row, &free)?;
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the pings");
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    require_quick(&trips)
}

/// The round trips through the limit of `row`, and in the same seconds those over `free`, which has no limit and no other traffic: these
/// are the machine's own delays of a ping.
fn ping_beside(row: &Row, free: &Row) -> Result<[RoundTrips; 2]> {
    let through = Ping::start_series(&row.left, &row.right_address(Between::Bridge), 150, 0.02)?;
    let beside = Ping::start_series(&free.left, &free.right_address(Between::Bridge), 150, 0.02)?;
    Ok([through.finish()?, beside.finish()?])
}

/// Requires that all pings come back, and that the limit adds less than 0.5 ms to the 99th of 100.
fn require_quick(trips: &[RoundTrips; 2]) -> Result<()> {
    let mut p99_ms = [0.0; 2];
    for ((trips, p99_ms), way) in
        trips.iter().zip(&mut p99_ms).zip(["through the limit", "over the pair without"])
    {
        trips.require_all().context(way)?;
        *p99_ms = trips.percentile_ms(0.99).context("no ping came back")?;
        println!(
            "    ping {way}: p50 {:.3} ms, p99 {p99_ms:.3} ms",
            trips.percentile_ms(0.5).unwrap_or_default()
        );
    }
    let [through, beside] = p99_ms;
    require_timing!(through - beside < 0.5, "p99 is {through:.2} ms, and {beside:.2} ms without a limit");
    Ok(())
}

fn sixty_four_streams_and_a_ping() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let free = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let mut command = row.right.command("iperf3");
    let mut server = Process::spawn(command.args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("Server listening", PATIENCE)?;
    let mut command = row.left.command("iperf3");
    let mut client = Process::spawn(command.args(["-c", &to, "-P", "64", "-t", "4", "-O", "1", "-J"]))?;
    let sent = || Ok(row.limits("wa")?[0]["delivered_bytes"].as_u64() > Some(5_000_000));
    wait_until("the streams are under way", PATIENCE, sent)?;
    let trips = ping_beside(&row, &free)?;
    require_timing!(client.is_running()?, "the streams ended before the pings");
    let done = client.wait(PATIENCE)?.success()?;
    let report: serde_json::Value = serde_json::from_str(&done.stdout).context("iperf3 printed no JSON")?;
    let data = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports no rate")?;
    row.lossless_limit("wa")?;
    let share = data * 1514.0 / 1448.0 / RATE_BITS_PER_S;
    println!("    {share:.4} of the rate, {} retransmitted", report["end"]["sum_sent"]["retransmits"]);
    require_timing!(share >= 0.95, "{:.1} % of the rate", share * 100.0);
    ensure!(share <= 1.01, "{:.1} % of the rate: the limit does not hold", share * 100.0);
    require_quick(&trips)
}

fn kinds_share_by_bytes() -> Result<()> {
    let kinds = [Kind::Tcp, Kind::Udp(1400), Kind::Segmented].map(|kind| [kind; 4]).concat();
    shares(&Row::new(Between::Bridge)?, 200, &kinds)
}

/// At a rate at which packets of segmentation offloads are cut on the way into their leaf.
fn kinds_share_a_low_rate_by_bytes() -> Result<()> {
    let kinds = [Kind::Tcp, Kind::Udp(1400), Kind::Segmented].map(|kind| [kind; 4]).concat();
    shares(&Row::new(Between::Bridge)?, 20, &kinds)
}

/// A packet of 65,535 bytes is 43 of 1,500.
fn small_packets_share_with_large_ones() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.set_mtu(65_535)?;
    let kinds = [Kind::Udp(1472), Kind::Udp(65_500)].map(|kind| [kind; 4]).concat();
    shares(&row, 200, &kinds)
}

/// Requires that all get the same in bytes of frames of a limit of so many Mbit/s, and that nothing is dropped.
fn shares(row: &Row, rate_mbit: u32, kinds: &[Kind]) -> Result<()> {
    row.weir(&format!("limit wa --rate {rate_mbit}mbit"))?.success()?;
    let to = row.right_address(Between::Bridge);
    let mixed = Mixed::start(&row.left, &row.right, &to, kinds)?;
    wait_until("all are under way", PATIENCE, || {
        Ok(mixed.frame_bytes().iter().all(|bytes| *bytes > 200_000.0))
    })?;
    let sent_bytes = || row.lossless_limit("wa")?["delivered_bytes"].as_u64().context("bytes");
    // The bytes that left the limit are those of no more than this time.
    let (begin, first) = (now(), sent_bytes()?);
    let (before, started) = (mixed.frame_bytes(), now());
    let_pass(Duration::from_secs(4), |_| ())?;
    let (after, elapsed_s) = (mixed.frame_bytes(), started.elapsed().as_secs_f64());
    let left_bits = (sent_bytes()? - first) as f64 * 8.0;
    let left_share = left_bits / begin.elapsed().as_secs_f64() / (f64::from(rate_mbit) * 1e6);
    let rates: Vec<f64> =
        after.iter().zip(&before).map(|(after, before)| (after - before) * 8.0 / elapsed_s).collect();
    let reordered = mixed.reordered();
    drop(mixed);
    row.lossless_limit("wa")?;
    ensure!(reordered == 0, "{reordered} datagrams out of order");
    let (index, share) = (jain(&rates), rates.iter().sum::<f64>() / (f64::from(rate_mbit) * 1e6));
    println!("    Jain index {index:.5}, {share:.4} of the rate");
    let overflowed = overflowed_datagrams(&row.right)?;
    require_timing!(overflowed == 0, "{overflowed} datagrams overflowed receivers' buffers");
    ensure!(left_share <= 1.01, "{:.1} % of the rate: the limit does not hold", left_share * 100.0);
    require_timing!(share >= 0.97, "{:.1} % of the rate", share * 100.0);
    require_timing!(index >= 0.98, "Jain index {index:.4} over {kinds:?}: {rates:.0?} bit/s");
    Ok(())
}

/// EAGAIN holds them, EPOLLOUT lets them go on.
fn sixty_four_senders_that_never_block() -> Result<()> {
    const SENDERS: usize = 64;
    let (wakes, in_vain) = senders_that_never_block(SENDERS, "50mbit")?;
    ensure!(wakes > SENDERS as u64, "{wakes} wakes: the senders were not held");
    ensure!(in_vain == 0, "{in_vain} of {wakes} wakes in vain");
    Ok(())
}

/// Flows that find no leaf empty share leaves, each as many as the others.
fn more_flows_than_leaves_lose_nothing() -> Result<()> {
    senders_that_never_block(600, "100mbit").map(drop)
}

/// Sends by so many sockets for three seconds, and requires that all arrives in order; returns the wakes of the senders, and those in vain.
fn senders_that_never_block(senders: usize, rate: &str) -> Result<(u64, u64)> {
    const PORT: u16 = 7002;
    let row = Row::new(Between::Bridge)?;
    row.weir(&format!("limit wa --rate {rate} --name leaves"))?.success()?;
    let to = row.right_address(Between::Bridge);
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    widen(&receiver)?;
    let sockets = sockets(&row.left, &to, PORT, senders)?;
    let total = AtomicU64::new(NOT_OVER);
    let (sent, received) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, senders, Duration::from_secs(3), &total));
        let sent = send_until(&sockets, 1470, now() + Duration::from_secs(3));
        total.store(sent.as_ref().map_or(0, Sent::total), Ordering::Relaxed);
        (sent, receiving.join().map_err(|_| anyhow!("the receiver panicked")))
    });
    let (sent, (arrived, reordered)) = (sent?, received??);
    let overflowed = overflowed_datagrams(&row.right)?;
    println!("    {} datagrams, {} wakes, {} in vain", sent.total(), sent.wakes, sent.in_vain);
    row.lossless_limit("leaves")?;
    // Those that overflowed there had come all the way.
    let lost = (sent.total() - arrived.iter().sum::<u64>()).saturating_sub(overflowed);
    let is_once = arrived.iter().zip(&sent.counts).all(|(arrived, sent)| arrived <= sent);
    ensure!(
        lost == 0 && is_once && reordered == 0,
        "{} sent, {} arrived, {reordered} out of order; {overflowed} overflowed the receiver's socket",
        sent.total(),
        arrived.iter().sum::<u64>()
    );
    Ok((sent.wakes, sent.in_vain))
}

fn sockets(from: &Namespace, to: &str, port: u16, count: usize) -> Result<Vec<UdpSocket>> {
    from.enter(|| -> Result<Vec<UdpSocket>> {
        let open = |_| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.connect((to, port))?;
            Ok(socket)
        };
        (0..count).map(open).collect()
    })?
}

/// Somebody's XDP program at the far end drops one of a hundred, of which the queue knows nothing.
fn leaves_empty_themselves_whatever_is_dropped_behind() -> Result<()> {
    const NEW_FLOWS: usize = 200;
    let row = Row::with_pair(Between::Bridge, ONE_QUEUE)?;
    let _dropping = Xdp::dropping(row.far_end(), 100)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let crowd = Crowd::start(&row.left, &row.right, &to, 16, 1400)?;
    let_pass(Duration::from_secs(2), |_| ())?;
    let sent = crowd.sent();
    let arrived = crowd.finish()?;
    ensure!(
        arrived.count < sent - sent / 300,
        "{} of {sent} arrived: nothing was dropped behind",
        arrived.count
    );
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    wait_until("the queue is empty", PATIENCE, || Ok(row.lossless_limit("wa")?["held"] == 0))?;
    // A leaf is empty by the clock a little later than by the kernel; each new flow then finds one of its own.
    let crowded = || -> Result<u64> { row.lossless_limit("wa")?["crowded"].as_u64().context("crowded") };
    let is_free = || -> Result<bool> {
        let before = crowded()?;
        for socket in sockets(&row.left, &to, 7010, NEW_FLOWS)? {
            socket.send(&[0; 100])?;
        }
        Ok(crowded()? == before)
    };
    wait_until("each of 200 new flows has an empty leaf", PATIENCE, is_free)
}
