//! `weir limit` at low rates, where a packet of segmentation offloads would take half a second: it is cut into its segments on the way into
//! the queue, so that other flows do not wait for it.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::ping::Ping;
use weir_lab::process::run;
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row};
use weir_tests::mixed::{Kind, Mixed, SEGMENT_BYTES, SEGMENTS, segment};
use weir_tests::{drops, harness, privileged, require_timing};

const PATIENCE: Duration = Duration::from_secs(60);
/// The silence after which nothing more comes: at the slowest rate a packet takes 12 ms.
const SILENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_ping_waits_for_a_packet_of_each_flow),
        privileged!(large_datagrams_of_several_programs_arrive_whole).flooding(),
        privileged!(a_raised_mtu_loses_nothing).flooding(),
        privileged!(segments_that_find_no_room_are_counted).flooding(),
        privileged!(forwarded_streams_have_their_rate),
    ])
}

/// Two floods of datagrams and two streams, whose packets have up to 64 kB: at 2 Mbit/s a packet of 1,514 bytes takes 6 ms.
fn a_ping_waits_for_a_packet_of_each_flow() -> Result<()> {
    const FLOWS: f64 = 4.0;
    const PACKET_MS: f64 = 6.1;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 2mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let mixed =
        Mixed::start(&row.left, &row.right, &to, &[Kind::Udp(1400), Kind::Segmented, Kind::Tcp, Kind::Tcp])?;
    wait_until("all are under way", PATIENCE, || {
        Ok(mixed.frame_bytes().iter().all(|bytes| *bytes > 60_000.0))
    })?;
    let trips = Ping::start_series(&row.left, &to, 100, 0.05)?.finish()?;
    drop(mixed);
    row.lossless_limit("wa")?;
    trips.require_all()?;
    let [p50, p99] = [0.5, 0.99].map(|share| trips.percentile_ms(share).unwrap_or(f64::MAX));
    println!("    ping beside four flows at 2 Mbit/s: p50 {p50:.1} ms, p99 {p99:.1} ms");
    require_timing!(p50 < FLOWS * PACKET_MS * 1.5, "p50 is {p50:.1} ms");
    // A flow sends two packets in a turn now and then.
    require_timing!(p99 < FLOWS * PACKET_MS * 4.0, "p99 is {p99:.1} ms");
    Ok(())
}

/// A Linux host takes a datagram for lost between whose fragments 64 others of the same sender came.
fn large_datagrams_of_several_programs_arrive_whole() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    // Fragments that wait until the address of the neighbour is known may find no place there.
    row.left.sh(&format!("ping -q -c 1 {to}"))?;
    let crowd = Crowd::start(&row.left, &row.right, &to, 8, 16_000)?;
    wait_until("each has sent some", PATIENCE, || Ok(crowd.received() > 150))?;
    let (sent, arrived) = crowd.finish_counted()?;
    let told = drops::told(&[&row.left, &row.middle, &row.right])?;
    ensure!(arrived.count == sent, "{} of {sent} arrived{told}", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {sent} out of order", arrived.reordered);
    row.lossless_limit("wa").map(drop)
}

/// Packets are longer then than those that the limit was made for, until it is set again, and `stat --check` says so.
fn a_raised_mtu_loses_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 50mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    row.set_mtu(40_000)?;
    let longer = || row.left.tc("-s class show dev veth0 classid 7769:2");
    for is_set_again in [false, true] {
        if is_set_again {
            let done = row.weir("stat wa --check")?;
            ensure!(done.status.code() == Some(1), "{:?}", done.status);
            ensure!(done.stderr.contains("when the MTU was lower than 40000"), "{}", done.stderr);
            row.weir("limit wa --rate 50mbit")?.success()?;
        }
        let before = longer()?;
        let crowd = Crowd::start(&row.left, &row.right, &to, 4, 30_000)?;
        let streams = Mixed::start(&row.left, &row.right, &to, &[Kind::Tcp; 2])?;
        wait_until("all are under way", PATIENCE, || {
            Ok(crowd.received() > 100 && streams.frame_bytes().iter().all(|bytes| *bytes > 500_000.0))
        })?;
        drop(streams);
        let (sent, arrived) = crowd.finish_counted()?;
        ensure!(arrived.count == sent, "{} of {sent} arrived", arrived.count);
        ensure!(arrived.reordered == 0, "{} of {sent} out of order", arrived.reordered);
        row.lossless_limit("wa")?;
        ensure!((longer()? == before) == is_set_again, "{} where there was {before}", longer()?);
    }
    row.weir("stat wa --check")?.success()?;

    // A frame would have room in a leaf here, but segments with all of their headers may not.
    row.weir("limit wa --off")?.success()?;
    row.left.ip("link set veth0 mtu 1500")?;
    row.weir("limit wa --rate 2mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;
    row.left.ip("link set veth0 mtu 1600")?;
    let done = row.weir("stat wa --check")?;
    ensure!(done.stderr.contains("when the MTU was lower than 1600"), "{}", done.stderr);
    row.weir("limit wa --rate 2mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;

    // The pair itself drops what is longer than its other end takes.
    row.middle.ip("link set wa mtu 1500")?;
    let set = row.weir("limit wa --rate 2mbit")?.success()?;
    let checked = row.weir("stat wa --check")?;
    ensure!(checked.status.code() == Some(1), "{:?}", checked.status);
    for said in [&set.stderr, &checked.stderr] {
        ensure!(
            said.contains("packets of up to 1600 bytes") && said.contains("above its MTU of 1500"),
            "{said}"
        );
    }
    row.left.ip("link set veth0 mtu 1500")?;
    row.weir("stat wa --check")?.success().map(drop)
}

/// A packet of which some segments find room is none that the root of the queue counts as dropped.
fn segments_that_find_no_room_are_counted() -> Result<()> {
    const PORT: u16 = 7300;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 1mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    row.left.sh(&format!("ping -q -c 1 {to}"))?;
    // Whatever leaf the sender has, somebody has made it short.
    let script = "for leaf in $(seq 256 511); do echo qdisc change dev veth0 parent 7769:$(printf %x $leaf) \
                  tbf rate 1gbit burst 2kb limit 20000; done | tc -batch -";
    run(row.left.command("sh").args(["-c", script]), PATIENCE)?.success()?;
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    receiver.set_read_timeout(Some(SILENCE))?;
    let sender = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    sender.connect((to.as_str(), PORT))?;
    segment(&sender)?;
    sender.send(&[0; SEGMENTS * SEGMENT_BYTES])?;
    let mut arrived = 0;
    while receiver.recv(&mut [0; SEGMENT_BYTES]).is_ok() {
        arrived += 1;
    }
    let dropped = row.limits("wa")?[0]["dropped"]["held-full"].as_u64().context("no drops")?;
    ensure!(arrived > 0 && dropped > 0, "{arrived} arrived, {dropped} dropped");
    ensure!(arrived + dropped == SEGMENTS as u64, "{arrived} arrived, {dropped} dropped");
    let done = row.weir("stat wa --check")?;
    ensure!(done.status.code() == Some(1), "{:?}", done.status);
    ensure!(done.stderr.contains(&format!("dropped {dropped} packets with a socket")), "{}", done.stderr);
    Ok(())
}

/// Packets of segmentation offloads that are forwarded are cut as well, and TCP goes by what is dropped and marked.
fn forwarded_streams_have_their_rate() -> Result<()> {
    const BITS_PER_S: f64 = 20e6;
    let row = Row::new(Between::Routes)?;
    row.weir("limit wb --rate-back 20mbit")?.success()?;
    let to = row.right_address(Between::Routes);
    let streams = Mixed::start(&row.left, &row.right, &to, &[Kind::Tcp; 4])?;
    let sum = || streams.frame_bytes().iter().sum::<f64>();
    wait_until("all are under way", PATIENCE, || {
        Ok(streams.frame_bytes().iter().all(|bytes| *bytes > 200_000.0))
    })?;
    let (before, started) = (sum(), now());
    let_pass(Duration::from_secs(3), |_| ())?;
    let share = (sum() - before) * 8.0 / started.elapsed().as_secs_f64() / BITS_PER_S;
    drop(streams);
    let limit = &row.limits("wb")?[0];
    println!("    {share:.3} of the rate, {} marked, {} dropped", limit["marked"], limit["dropped"]);
    ensure!(limit["dropped"]["held-full"] == 0 && limit["dropped"]["priority"] == 0, "{}", limit["dropped"]);
    ensure!(share < 1.05, "{share:.3} of the rate: the limit does not hold");
    require_timing!(share > 0.85, "{share:.3} of the rate");
    Ok(())
}
