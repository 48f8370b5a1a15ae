//! `weir limit`: packets of real clients are held, whole, in order and evenly shared; the limit is found again, changed and removed.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row, idle_process};
use weir_tests::mixed::set_priority;
use weir_tests::rig::{measure_rate, require_lossless};
use weir_tests::{at_length, drops, harness, kernel, privileged, require_timing};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(small_and_large_datagrams_stay_in_order).flooding(),
        privileged!(short_flows_beside_floods_reorder_nothing).flooding(),
        privileged!(changes_under_load_lose_nothing),
        privileged!(a_raise_past_one_processor_keeps_order).flooding(),
        privileged!(setting_costs_what_the_kernels_own_swap_costs),
        privileged!(setting_the_way_back_says_all_that_it_costs),
        privileged!(forwarded_packets_are_dropped_by_rule_and_counted),
        privileged!(a_forwarded_flow_below_its_share_loses_nothing),
        privileged!(forwarded_fragments_stay_in_order).flooding(),
        privileged!(everything_comes_back),
        privileged!(what_is_taken_away_is_said_and_set_again).together(),
        privileged!(what_a_command_changes_is_no_fault).together(),
        privileged!(a_priority_passes_nothing_by).together(),
        privileged!(what_cannot_be_limited_is_said).together(),
        privileged!(a_burst_that_the_timer_outlasts_is_said),
        privileged!(limits_by_process_have_names_of_their_own).together(),
        privileged!(setting_a_limit_under_floods_keeps_order).flooding(),
        privileged!(what_a_limit_without_its_filter_loses_is_counted).flooding(),
    ])
}

fn seconds() -> f64 {
    std::env::var("WEIR_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2.0)
}

/// Datagrams that are fragmented beside others that are not, of the same sockets.
fn small_and_large_datagrams_stay_in_order() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 100mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    // Linux takes fragments of IPv4 for lost between which 64 others of the same sender came.
    row.right.sh("sysctl -qw net.ipv4.ipfrag_max_dist=0")?;
    // Fragments that wait until the address of the neighbour is known may find no place there.
    row.left.sh(&format!("ping -q -c 1 {to}"))?;
    let crowd = Crowd::start_mixed(&row.left, &row.right, &to, 16, vec![100, 8000, 100, 1400])?;
    weir_lab::clock::let_pass(Duration::from_secs(2), |_| ())?;
    let arrived = row.all_arrived(crowd)?;
    ensure!(arrived.count > 1000, "only {} arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa").map(drop)
}

/// Far more flows than the limit remembers, so that they meet in its memory and take leaves from each other.
fn short_flows_beside_floods_reorder_nothing() -> Result<()> {
    let flows = at_length(40_000, 100_000);
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let crowd = Crowd::start(&row.left, &row.right, &to, 16, 1400)?;
    let sent = row.left.enter(|| -> std::io::Result<usize> {
        let mut sent = 0;
        for _ in 0..flows {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.set_nonblocking(true)?;
            sent += usize::from(socket.send_to(&[0; 100], (to.as_str(), 7010)).is_ok());
        }
        Ok(sent)
    })??;
    let arrived = row.all_arrived(crowd)?;
    ensure!(sent == flows, "{sent} of {flows} flows could send");
    ensure!(arrived.count > 1000, "only {} arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa").map(drop)
}

fn changes_under_load_lose_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let changes = at_length(20, 500);
    let load = Load::new(&row.left, &row.right, &to, 4, 2.0 + changes as f64 * 0.15);
    let flood = Flood::start(&load)?;
    for rate in ["50mbit", "400mbit", "20mbit", "100mbit"].iter().cycle().take(changes) {
        row.weir(&format!("limit wa --rate {rate}"))?.success()?;
        let limit = row.lossless_limit("wa")?;
        ensure!(limit["stage"] == "limiting", "{limit}");
    }
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the changes");
    row.weir("limit wa --rate 200mbit")?.success()?;
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    require_lossless(&flows, &load)
}

/// One processor takes in the packets of a limit of up to a gigabit, all take in those of a higher one, and no flow notices the change.
fn a_raise_past_one_processor_keeps_order() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let steered_to = || -> Result<u32> {
        let mask = row.middle.sh("cat /sys/class/net/wa/queues/rx-0/rps_cpus")?;
        let groups = mask.trim().split(',').map(|group| Ok(u32::from_str_radix(group, 16)?.count_ones()));
        groups.sum()
    };
    let online = std::thread::available_parallelism()?.get() as u32;
    row.weir("limit wa --rate 300mbit")?.success()?;
    if online > 1 {
        ensure!(steered_to()? == 1, "{} processors for 300 Mbit/s", steered_to()?);
    }
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 4, 4.0);
    let flood = Flood::start(&load)?;
    wait_until("the floods fill the limit", PATIENCE, || {
        require_timing!(!flood.remaining().is_zero(), "the floods ended before they were seen");
        let limits = row.limits("wa")?;
        Ok(limits[0]["held_bytes"].as_u64() > Some(200_000))
    })?;
    row.weir("limit wa --rate 1001mbit")?.success()?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the changes");
    if online > 1 {
        ensure!(steered_to()? > 1, "one processor for 1,001 Mbit/s");
    }
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    require_lossless(&flows, &load)?;
    row.weir("limit wa --off")?.success()?;
    ensure!(online == 1 || steered_to()? == 0, "steering is not put back");
    Ok(())
}

/// The packets that a device has dropped of those that it was to send.
fn dropped_by(row: &Row, namespace: &Namespace, device: &str) -> Result<u64> {
    row.losses()?.get(&format!("{} {device} tx", namespace.name())).copied().context("no drops of the device")
}

/// The packets that a new queue has dropped itself, as it had no leaf yet.
fn refused_by(namespace: &Namespace, device: &str) -> Result<u64> {
    let shown = namespace.tc(&format!("-s qdisc show dev {device} root"))?;
    let (_, rest) = shown.split_once("(dropped ").context("no drops of the queue")?;
    Ok(rest.split(',').next().unwrap_or_default().parse()?)
}

/// Setting a limit loses no more packets than any change of an interface's queue does, by one that takes its place and by one that comes before the
/// new queue has a class; and it says how many.
fn setting_costs_what_the_kernels_own_swap_costs() -> Result<()> {
    const TURNS: usize = 9;
    /// The factor between two medians of the same thing: how long a swap lasts depends on the other work of the processors.
    const BY_CHANCE: u64 = 2;
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 1, 6.0);
    let dropped = || dropped_by(&row, &row.left, "veth0");
    let flood = Flood::start(&load)?;
    let full = drops::of_processors()?;
    let (mut by_weir, mut by_kernel, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let before = dropped()?;
        row.left.tc("qdisc replace dev veth0 root tbf rate 20gbit burst 5mb limit 50mb")?;
        by_kernel.push(dropped()? - before);
        row.left.tc("qdisc del dev veth0 root")?;
        let before = dropped()?;
        row.weir("limit wa --rate 20gbit")?.success()?;
        by_weir.push(dropped()? - before + refused_by(&row.left, "veth0")?);
        let limits = row.limits("wa")?;
        let drops = &limits.first().context("no limit")?["dropped"];
        said.push(drops["swap"].as_u64().context("no count")?);
        ensure!(drops["priority"] == 0, "nobody asked to pass by: {drops}");
        row.left.tc("qdisc del dev veth0 root")?;
    }
    require_timing!(!flood.remaining().is_zero(), "the flood ended before the changes");
    drop(flood);
    row.weir("limit wa --off")?;
    println!("    lost by each swap: {by_weir:?} by weir, {by_kernel:?} by the kernel's own");
    require_timing!(
        drops::of_processors()? == full,
        "a list of arrivals was full, whose drops are no swap's"
    );
    ensure!(said == by_weir, "{by_weir:?} lost, {said:?} counted");
    let [by_weir, by_kernel] = [by_weir, by_kernel].map(|mut each| {
        each.sort_unstable();
        each[TURNS / 2]
    });
    // As many as are sent while a swap lasts.
    require_timing!(by_weir <= by_kernel + BY_CHANCE, "medians of {by_weir} and {by_kernel} packets");
    Ok(())
}

/// At the host's end a program beside the queue comes first, for which the kernel swaps the queue as well.
fn setting_the_way_back_says_all_that_it_costs() -> Result<()> {
    const TURNS: usize = 5;
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let load = Load::new(&row.left, &row.right, &to, 1, 4.0);
    let dropped = || dropped_by(&row, &row.middle, "wb");
    let flood = Flood::start(&load)?;
    let full = drops::of_processors()?;
    let (mut lost, mut said) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let before = dropped()?;
        row.weir("limit wb --rate-back 20gbit")?.success()?;
        lost.push(dropped()? - before + refused_by(&row.middle, "wb")?);
        let limits = row.limits("wb")?;
        said.push(limits.first().context("no limit")?["dropped"]["swap"].as_u64().context("no count")?);
        row.weir("limit wb --off --now")?.success()?;
    }
    require_timing!(!flood.remaining().is_zero(), "the flood ended before the changes");
    println!("    lost by each swap: {lost:?}");
    require_timing!(
        drops::of_processors()? == full,
        "a list of arrivals was full, whose drops are no swap's"
    );
    ensure!(said == lost, "{lost:?} lost, {said:?} counted");
    Ok(())
}

/// Forwarded packets have no sender here to hold: they wait, then they are dropped, by the rule's name.
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
    ensure!(share <= 1.02, "{:.1} % of the rate: the limit does not hold", share * 100.0);
    require_timing!(share >= 0.9, "{:.1} % of the rate", share * 100.0);
    Ok(())
}

/// Pings of more than the size that passes in any case, 1 Mbit/s of them, beside floods that fill the time of their leaves.
fn a_forwarded_flow_below_its_share_loses_nothing() -> Result<()> {
    const PINGS: usize = 150;
    let row = Row::new(Between::Routes)?;
    row.weir("limit wb --rate-back 50mbit")?.success()?;
    let to = row.right_address(Between::Routes);
    let load = Load::new(&row.left, &row.right, &to, 3, 5.0);
    let flood = Flood::start(&load)?;
    let done = row.left.sh(&format!("ping -q -c {PINGS} -i 0.01 -s 1200 {to}"))?;
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the pings");
    let dropped = row.limits("wb")?[0]["dropped"]["passing-full"].as_u64();
    ensure!(dropped > Some(1000), "the floods are not too much: {dropped:?} dropped");
    flood.finish(PATIENCE)?;
    ensure!(done.contains(" 0% packet loss"), "{done}");
    Ok(())
}

/// Each datagram comes in three fragments, of which the later show no ports, and more come than may pass.
fn forwarded_fragments_stay_in_order() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    row.weir("limit wb --rate-back 50mbit")?.success()?;
    // Not so many more that no datagram is whole.
    row.weir("limit wa --rate 55mbit")?.success()?;
    let to = row.right_address(Between::Routes);
    let crowd = Crowd::start(&row.left, &row.right, &to, 4, 3000)?;
    wait_until("fragments are dropped, and many datagrams are whole", PATIENCE, || {
        let dropped = row.limits("wb")?[0]["dropped"]["passing-full"].as_u64();
        Ok(dropped > Some(100) && crowd.received() > 1000)
    })?;
    let arrived = crowd.finish()?;
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    Ok(())
}

/// The host is as if there had never been a limit, with no process in between. A bridge would show its timers as well.
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
    let done = row.weir("limit wa --rate 100mbit --rate-back 50mbit --name office-limit")?.success()?;
    ensure!(done.stdout.contains("veth0 in network namespace"), "{}", done.stdout);
    ensure!(done.stderr.is_empty(), "nothing to warn of: {}", done.stderr);
    ensure!(row.limits("office-limit")?.len() == 2, "two queues");
    ensure!(traces()? != before, "a limit shows");
    row.weir("stat office-limit --check")?.success()?;
    let done = row.weir("limit wa --off")?.success()?;
    ensure!(done.stdout.matches("removed").count() == 2, "{}", done.stdout);
    let after = traces()?;
    ensure!(after == before, "left behind: {after:?} before: {before:?}");
    let again = row.weir("limit wa --off")?;
    ensure!(again.status.code() == Some(1) && again.stderr.contains("there is no limit"), "{}", again.stderr);
    Ok(())
}

/// The limit is set all the same.
fn a_burst_that_the_timer_outlasts_is_said() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let done = row.weir("limit wa --rate 200mbit --burst 20kb")?.success()?;
    ensure!(done.stderr.contains("20kb is 819us of 200mbit"), "{}", done.stderr);
    ensure!(row.limits("wa")?[0]["burst_bytes"] == 20480, "it is what was asked for");
    let done = row.weir("limit wa --rate 100mbit --burst 20kb")?.success()?;
    ensure!(done.stderr.is_empty(), "1.6 ms are enough: {}", done.stderr);
    let done = row.weir("limit wa --rate 1mbit --burst 1mb")?.success()?;
    ensure!(done.stderr.contains("for so long nothing is held"), "{}", done.stderr);
    let done = row.weir("limit wa --rate 11tbit")?;
    ensure!(done.status.code() == Some(2) && done.stderr.contains("above 10tbit"), "{}", done.stderr);
    Ok(())
}

/// The name is that of the host's end where there is one; a name that was given stays, and one that is used gets a number.
/// Packets of a flow wait in the lists of several processors, unless one takes them in before the first of the queue is sent.
fn setting_a_limit_under_floods_keeps_order() -> Result<()> {
    const TURNS: usize = 8;
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let mut reordered = Vec::new();
    for _ in 0..TURNS {
        let crowd = Crowd::start(&row.left, &row.right, &to, 2, 1400)?;
        wait_until("datagrams arrive", PATIENCE, || Ok(crowd.received() > 20_000))?;
        row.weir("limit wa --rate 15mbit")?.success()?;
        let before = crowd.received();
        wait_until("and go on to", PATIENCE, || Ok(crowd.received() > before + 500))?;
        reordered.push(crowd.finish()?.reordered);
        row.weir("limit wa --off")?.success()?;
    }
    ensure!(reordered == [0; TURNS], "{reordered:?} datagrams out of order");
    Ok(())
}

/// Packets wait while the filter is gone; the limit that is made in place of this one counts them.
fn what_a_limit_without_its_filter_loses_is_counted() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 2mbit")?.success()?;
    let mut crowd = Crowd::start(&row.left, &row.right, &row.right_address(Between::Bridge), 4, 1400)?;
    wait_until("the senders are held", PATIENCE, || Ok(row.limits("wa")?[0]["held"].as_u64() > Some(8)))?;
    row.left.tc("filter del dev veth0 parent 7769:")?;
    crowd.end_senders();
    let sent = crowd.sent();
    row.weir("limit wa --rate 20mbit")?.success()?;
    let lost = row.limits("wa")?[0]["dropped"]["swap"].as_u64().context("no count")?;
    let arrived = crowd.finish()?.count;
    require_timing!(lost > 0, "nothing waited any more");
    // At 2 Mbit/s a packet leaves every 6 ms, and one may between the count and the removal.
    ensure!((arrived + lost).abs_diff(sent) <= 2, "{sent} sent, {arrived} arrived, {lost} counted as lost");
    row.weir("limit wa --off")?.success().map(drop)
}

fn limits_by_process_have_names_of_their_own() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let pids = [idle_process(&row.left)?, idle_process(&row.right)?];
    for pid in &pids {
        row.weir(&format!("limit --pid {} --device veth0 --rate 10mbit", pid.id()))?.success()?;
    }
    ensure!(row.limits("wa")?.len() == 1 && row.limits("wb")?.len() == 1, "each is called as its host's end");
    row.weir("limit wa --rate 20mbit --name of+fice")?.success()?;
    row.weir(&format!("limit --pid {} --device veth0 --rate 30mbit", pids[0].id()))?.success()?;
    ensure!(row.limits("of+fice")?[0]["rate_bits_per_s"] == 30_000_000, "a name that was given stays");
    row.weir("set of+fice --rate 40mbit")?.success()?;
    row.weir("limit wb --rate 10mbit --name br7")?.success()?;
    row.middle.ip("link set br0 down name br7")?;
    row.middle.ip("link add br7.2 type bridge")?;
    row.weir("limit br7 --rate 10mbit")?.success()?;
    ensure!(row.limits("br7.3")?[0]["interface"] == "br7", "a name that is used gets a number");
    let done = row.weir("limit wa --rate 10mbit --name a/b")?;
    ensure!(
        done.status.code() == Some(2) && done.stderr.contains("a limit cannot be called"),
        "{}",
        done.stderr
    );
    for limit in ["wa", "wb", "br7.3"] {
        row.weir(&format!("limit {limit} --off"))?.success()?;
    }
    Ok(())
}

/// A container that is root of its namespace can take the filter away.
fn what_is_taken_away_is_said_and_set_again() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.left.tc("filter del dev veth0 parent 7769:")?;
    let done = row.weir("stat wa --check")?;
    ensure!(
        done.status.code() == Some(1) && done.stderr.contains("its filter was removed"),
        "{}",
        done.stderr
    );
    row.weir("limit wa --rate 20mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// Looks at a limit while commands make, change and remove it.
fn what_a_command_changes_is_no_fault() -> Result<()> {
    const LOOKS: usize = 100;
    let row = Row::new(Between::Bridge)?;
    let is_done = AtomicBool::new(false);
    let change = || -> Result<()> {
        while !is_done.load(Relaxed) {
            row.weir("limit wa --rate 10mbit")?.success()?;
            row.weir("limit wa --rate 20mbit --burst 64kb")?.success()?;
            row.weir("limit wa --off")?.success()?;
        }
        Ok(())
    };
    let look =
        || -> Result<()> { (0..LOOKS).try_for_each(|_| row.weir("stat --check")?.success().map(drop)) };
    std::thread::scope(|scope| {
        let changing = scope.spawn(change);
        let looked = look();
        is_done.store(true, Relaxed);
        let changed = changing.join().map_err(|_| anyhow!("the commands panicked"))?;
        looked.and(changed)
    })
}

/// `7769:0` means "directly" to HTB, and a program that may set a priority may set that.
fn a_priority_passes_nothing_by() -> Result<()> {
    const DIRECT: libc::c_int = 0x7769_0000;
    const DATAGRAMS: usize = 50;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 1mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", 7009)))??;
    receiver.set_nonblocking(true)?;
    let sender = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    set_priority(&sender, DIRECT)?;
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
        ("limit wb --rate 1kbit", 2, "below 8kbit"),
        ("limit wb --rate 1mbit --rate-back 1bit", 2, "below 8kbit"),
        ("limit wb --rate 0mbit", 2, "more than zero"),
        ("limit wb", 2, "nothing to do"),
        ("limit br0 --rate-back 10mbit", 2, "--rate-back is for a pair"),
        ("limit --pid 4194305 --rate 10mbit", 1, "there is none"),
        ("limit wb --burst 20kb", 1, "give its rate"),
        ("limit wb --rate 1mbit --queue 5ms", 2, "--queue is for wires"),
        ("limit wb --rate 1mbit --workers 2", 2, "--workers is for wires"),
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
