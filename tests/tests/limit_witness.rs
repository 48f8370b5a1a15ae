//! `weir limit` under changes of others to its interface: things that stay, and messages on the rest.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, names};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, Load, overflowed_datagrams};
use weir_lab::process::run;
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row};
use weir_tests::mixed::{set_priority, widen};
use weir_tests::raw::{Random, RawSocket, frame};
use weir_tests::{harness, kernel, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);
const FRAMES: u32 = 50;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_queue_that_its_container_removes_is_said).together(),
        privileged!(a_queue_that_is_removed_by_hand_leaves_what_to_put_back),
        privileged!(steering_that_somebody_changes_is_said).together(),
        privileged!(a_processor_that_goes_leaves_steering_to_be_put_back).together(),
        privileged!(queues_that_are_added_are_said_and_steered).together(),
        privileged!(a_move_to_another_namespace_is_said).together(),
        privileged!(it_stays_through_queues_down_and_up_and_a_new_name).together(),
        privileged!(what_passes_the_queue_by_is_counted).together(),
        privileged!(a_look_that_is_removed_is_said_and_put_back).together(),
        privileged!(what_is_changed_by_hand_is_said_and_set_again).together(),
        privileged!(no_priority_passes_the_limit).together(),
        privileged!(who_is_held_and_for_how_long_is_told).flooding(),
        privileged!(filters_of_others_where_packets_arrive_stay).together(),
    ])
}

/// The fault that `weir stat NAME --check` says.
fn fault(row: &Row, name: &str) -> Result<String> {
    let done = row.weir(&format!("stat {name} --check"))?;
    ensure!(done.status.code() == Some(1), "nothing is wrong: {}{}", done.stdout, done.stderr);
    Ok(done.stderr)
}

/// The limit is set again, and forgotten: then nothing of it is left.
fn a_queue_that_its_container_removes_is_said() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let before = kernel::traces(&row.middle)?;
    let steering = || row.middle.sh("cat /sys/class/net/wa/queues/rx-0/rps_cpus");
    let steering_before = steering()?;
    row.weir("limit wa --rate 10mbit --name witness")?.success()?;
    row.weir("stat witness --check")?.success()?;
    row.left.tc("qdisc del dev veth0 root")?;
    row.left.sh(&format!("ping -q -c 3 -i 0.02 {}", row.right_address(Between::Routes)))?;
    let said = fault(&row, "witness")?;
    ensure!(said.contains("limit witness is gone from veth0") && said.contains("weir limit"), "{said}");
    let limits = row.limits("witness")?;
    ensure!(limits.len() == 1 && limits[0]["stage"] == "gone", "{limits:?}");
    ensure!(limits[0]["bypassed_packets"].as_u64() >= Some(3), "{limits:?}");
    let shown = row.weir("stat witness")?.success()?.stdout;
    ensure!(shown.contains("gone from veth0"), "{shown}");

    row.weir("limit wa --rate 20mbit --name witness")?.success()?;
    row.weir("stat witness --check")?.success()?;
    row.left.tc("qdisc del dev veth0 root")?;
    row.weir("limit wa --off")?.success()?;
    ensure!(row.limits("witness").is_err() || row.limits("witness")?.is_empty(), "it is not forgotten");
    ensure!(steering()? == steering_before, "steering is put back");
    kernel::require_same(&before, &kernel::traces(&row.middle)?)
}

/// Where nobody sees packets arrive, a note is left; without one it is said that nobody knows.
fn a_queue_that_is_removed_by_hand_leaves_what_to_put_back() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let qdiscs = |device: &str| row.middle.tc(&format!("qdisc show dev {device}"));
    let steering = || row.left.sh("cat /sys/class/net/veth0/queues/rx-0/rps_cpus");
    let has_steering = std::thread::available_parallelism()?.get() > 1;
    for (device, rate) in [("wa", "--rate-back 10mbit"), ("br0", "--rate 10mbit")] {
        let (steering_before, qdiscs_before) = (steering()?, qdiscs(device)?);
        let set = || row.weir(&format!("limit {device} {rate}"))?.success();
        for turn in 0..2 {
            let done = set()?;
            ensure!(done.stderr.is_empty(), "turn {turn}: {}", done.stderr);
            row.weir(&format!("stat {device} --check"))?.success()?;
            ensure!(!has_steering || steering()? != steering_before, "nothing to put back");
            row.middle.tc(&format!("qdisc del dev {device} root"))?;
            let said = fault(&row, device)?;
            ensure!(said.contains(&format!("limit {device} is gone")) && said.contains("by hand"), "{said}");
            ensure!(row.limits(device)?[0]["stage"] == "gone", "{:?}", row.limits(device)?);
        }
        for command in ["limit {} --off", "mend {}"] {
            row.weir(&command.replace("{}", device))?.success()?;
            ensure!(steering()? == steering_before, "{command}: steering is put back");
            ensure!(qdiscs(device)? == qdiscs_before, "{command}: {}", qdiscs(device)?);
            set()?;
            row.middle.tc(&format!("qdisc del dev {device} root"))?;
        }
        row.weir(&format!("limit {device} --off"))?.success()?;
        if has_steering {
            set()?;
            row.middle.tc(&format!("qdisc del dev {device} root"))?;
            row.middle.tc(&format!("qdisc del dev {device} clsact"))?;
            for command in [format!("limit {device} --off"), format!("limit {device} {rate}")] {
                let said = row.weir(&command)?.stderr;
                ensure!(said.contains("rps_cpus of veth0") && said.contains("no limit says"), "{said}");
            }
            row.weir(&format!("limit {device} --off"))?.success()?;
            for host in [&row.left, &row.right] {
                steer(host, "veth0", "0")?;
            }
        }
    }
    // Of two limits that share clsact, the one that goes last removes it.
    let before = qdiscs("wa")?;
    for ways in [["--rate", "--rate-back"], ["--rate-back", "--rate"]] {
        for way in ways {
            row.weir(&format!("limit wa {way} 10mbit"))?.success()?;
        }
        row.weir("limit wa --off")?.success()?;
        ensure!(qdiscs("wa")? == before, "{ways:?}: {}", qdiscs("wa")?);
    }
    Ok(())
}

/// Steers the first receive queue of an interface, as somebody does it by hand.
fn steer(host: &Namespace, interface: &str, mask: &str) -> Result<()> {
    let line = format!("echo {mask} > /sys/class/net/{interface}/queues/rx-0/rps_cpus");
    run(host.command("sh").args(["-c", &line]), PATIENCE)?.success().map(drop)
}

/// Switched off it is a fault, which the same command mends; set to something else it stays.
fn steering_that_somebody_changes_is_said() -> Result<()> {
    if std::thread::available_parallelism()?.get() == 1 {
        return Ok(());
    }
    let row = Row::new(Between::Bridge)?;
    let steering = || -> Result<String> {
        Ok(row.middle.sh("cat /sys/class/net/wa/queues/rx-0/rps_cpus")?.trim().into())
    };
    row.weir("limit wa --rate 10mbit")?.success()?;
    let ours = steering()?;
    steer(&row.middle, "wa", "0")?;
    let said = fault(&row, "wa")?;
    ensure!(said.contains("rps_cpus is off at its other end, wa"), "{said}");
    row.weir("limit wa --rate 10mbit")?.success()?;
    ensure!(steering()? == ours, "{} and not {ours}", steering()?);
    row.weir("stat wa --check")?.success()?;
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("changed until --off: rps_cpus"), "{shown}");
    let other = if ours == "1" { "2" } else { "1" };
    steer(&row.middle, "wa", other)?;
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("somebody set since") && !shown.contains("until --off"), "{shown}");
    ensure!(row.limits("wa")?[0]["changed"].is_null(), "{:?}", row.limits("wa")?);
    row.weir("limit wa --off")?.success()?;
    ensure!(steering()? == other, "somebody's own steering went");
    Ok(())
}

/// The masks are as they were written, not as they would be written now.
fn a_processor_that_goes_leaves_steering_to_be_put_back() -> Result<()> {
    let processors = std::thread::available_parallelism()?.get();
    if processors == 1 {
        return Ok(());
    }
    let row = Row::new(Between::Bridge)?;
    // The list of the processors online, as the command sees it, lacks the last.
    let when_one_is_gone = |arguments: &str| -> Result<String> {
        let script = format!(
            "mount -t tmpfs none /mnt && echo 0-{} > /mnt/list && mount --bind /mnt/list /sys/devices/system/cpu/online && exec {} {arguments}",
            processors - 2,
            weir_binary()?.display()
        );
        let mut command = row.middle.command("unshare");
        Ok(run(command.args(["--mount", "sh", "-c", &script]), PATIENCE)?.success()?.stdout)
    };
    let cases = [("wa", "2gbit", &row.middle, "wa"), ("br0", "10mbit", &row.left, "veth0")];
    for (device, rate, host, steered) in cases {
        let steering = || host.sh(&format!("cat /sys/class/net/{steered}/queues/rx-0/rps_cpus"));
        let before = steering()?;
        row.weir(&format!("limit {device} --rate {rate}"))?.success()?;
        let ours = steering()?;
        ensure!(ours != before, "nothing to put back");
        let shown = when_one_is_gone(&format!("stat {device}"))?;
        ensure!(shown.contains("changed until --off: rps_cpus"), "{device}: {shown}");
        let said = when_one_is_gone(&format!("limit {device} --rate {rate}"))?;
        ensure!(said.starts_with("so already: "), "{device}: {said}");
        ensure!(steering()? == ours, "{device}: steering was changed");
        when_one_is_gone(&format!("limit {device} --off"))?;
        ensure!(steering()? == before, "{device}: steering stays at {}", steering()?);
    }
    Ok(())
}

/// They are steered as the others by the same command, and all go back.
fn queues_that_are_added_are_said_and_steered() -> Result<()> {
    if std::thread::available_parallelism()?.get() == 1 {
        return Ok(());
    }
    let row = Row::with_pair(Between::Bridge, "numrxqueues 2")?;
    let steering = |queue: u32| -> Result<String> {
        Ok(row.middle.sh(&format!("cat /sys/class/net/wa/queues/rx-{queue}/rps_cpus"))?.trim().into())
    };
    let before = steering(0)?;
    for is_steered_again in [true, false] {
        row.middle.sh("ethtool -L wa rx 1")?;
        row.weir("limit wa --rate 10mbit")?.success()?;
        let ours = steering(0)?;
        row.middle.sh("ethtool -L wa rx 2")?;
        let said = fault(&row, "wa")?;
        ensure!(said.contains("or at queues that were added there"), "{said}");
        if is_steered_again {
            row.weir("limit wa --rate 10mbit")?.success()?;
            ensure!(steering(1)? == ours, "{} and not {ours}", steering(1)?);
            row.weir("stat wa --check")?.success()?;
        }
        row.weir("limit wa --off")?.success()?;
        ensure!(
            [steering(0)?, steering(1)?] == [before.clone(), before.clone()],
            "the masks are not as before"
        );
    }
    Ok(())
}

fn a_move_to_another_namespace_is_said() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let elsewhere = Namespace::new("elsewhere")?;
    row.left.ip(&format!("link set veth0 netns {}", elsewhere.name()))?;
    let said = fault(&row, "wa")?;
    ensure!(said.contains("limit wa is gone from veth0") && said.contains(elsewhere.name()), "{said}");
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

fn it_stays_through_queues_down_and_up_and_a_new_name() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let changes = [
        &["ethtool -L veth0 rx 2 tx 2"][..],
        &["ethtool -L veth0 rx 1 tx 1"],
        &["ip link set veth0 down", "ip link set veth0 up"],
        &["ip link set veth0 down", "ip link set veth0 name lan0", "ip link set lan0 up"],
    ];
    for change in changes {
        change.iter().try_for_each(|command| row.left.sh(command).map(drop))?;
        wait_until("packets pass again", PATIENCE, || {
            Ok(row.left.sh(&format!("ping -q -c 1 -W 1 {to}")).is_ok())
        })
        .with_context(|| change.join(", "))?;
        let before = row.lossless_limit("wa")?["delivered"].as_u64();
        row.left.sh(&format!("ping -q -c 5 -i 0.02 {to}"))?;
        let limit = row.lossless_limit("wa")?;
        ensure!(
            limit["stage"] == "limiting" && limit["delivered"].as_u64() >= before.map(|b| b + 5),
            "{limit}"
        );
        row.weir("stat wa --check")?.success().with_context(|| change.join(", "))?;
    }
    ensure!(row.lossless_limit("wa")?["interface"] == "lan0", "it has its new name");
    for command in ["link set wa down", "link set wa name wc", "link set wc up"] {
        row.middle.ip(command)?;
    }
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wc --off")?.success().map(drop)
}

fn what_passes_the_queue_by_is_counted() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let mut random = Random(7);
    let socket = RawSocket::open(End { namespace: &row.left, name: "veth0" })?;
    for number in 0..FRAMES {
        socket.send(&frame(number, 200, None, &mut random))?;
    }
    row.left.sh(&format!("ping -q -c 3 -i 0.02 {}", row.right_address(Between::Bridge)))?;
    let limit = row.lossless_limit("wa")?;
    ensure!(
        limit["delivered"].as_u64() >= Some(u64::from(FRAMES)) && limit["bypassed_packets"] == 0,
        "{limit}"
    );
    row.weir("stat wa --check")?.success()?;
    socket.bypass_queue()?;
    for number in 0..FRAMES {
        socket.send(&frame(number, 200, None, &mut random))?;
    }
    let is_counted = || Ok(row.limits("wa")?[0]["bypassed_packets"] == FRAMES);
    wait_until("they are counted", PATIENCE, is_counted)?;
    let said = fault(&row, "wa")?;
    ensure!(said.contains(&format!("passed by {FRAMES} packets")), "{said}");
    // A change that is killed and then finished is one of a limit that was whole.
    let class = |number| format!("[[class]]\nname = \"c{number}\"\nrate = \"100kbit\"\n");
    let file = File::new(&format!("default = \"c0\"\n{}", (0..20).map(class).collect::<String>()))?;
    row.kill_at_leaves(&format!("limit wa --classes {}", file.path()), 1000)?;
    require_timing!(row.limits("wa")?[0]["stage"] == "making", "the kill came late");
    row.weir("limit wa --rate 10mbit")?.success()?;
    wait_until("they still are", PATIENCE, is_counted)
}

/// The other end has no clsact any more: nobody can know what passes the queue, and nobody says that it is nothing.
fn a_look_that_is_removed_is_said_and_put_back() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    let before = kernel::traces(&row.middle)?;
    row.weir("limit wa --rate 10mbit --name witness")?.success()?;
    row.weir("stat witness --check")?.success()?;
    row.middle.tc("qdisc del dev wa clsact")?;
    let said = fault(&row, "witness")?;
    ensure!(said.contains("nobody looks at the other end") && said.contains("the same command"), "{said}");
    ensure!(row.limits("witness")?[0]["bypassed_packets"].is_null(), "{:?}", row.limits("witness")?);
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir("stat witness --check")?.success()?;
    ensure!(row.limits("witness")?[0]["bypassed_packets"] == 0, "{:?}", row.limits("witness")?);
    row.weir("limit witness --off")?.success()?;
    kernel::require_same(&before, &kernel::traces(&row.middle)?)
}

/// Rates of classes, and the room of a leaf, which root of the container may change.
fn what_is_changed_by_hand_is_said_and_set_again() -> Result<()> {
    let row = Row::new(Between::Routes)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let raise = || {
        row.left.tc("class change dev veth0 classid 7769:1 htb rate 1gbit ceil 1gbit burst 1mb cburst 1mb")
    };
    for again in ["limit wa --rate 10mbit", "set wa --rate 10mbit"] {
        row.weir("stat wa --check")?.success()?;
        raise()?;
        let said = fault(&row, "wa")?;
        ensure!(
            said.contains("somebody changed 1 of its 274 classes") && said.contains("the same command"),
            "{said}"
        );
        let done = row.weir(again)?.success()?;
        let is_said = done.stdout.contains("set again: 1 of its classes, which somebody had changed");
        ensure!(is_said == again.starts_with("set"), "{}", done.stdout);
    }
    row.weir("stat wa --check")?.success()?;
    let leaf = || row.left.tc("qdisc show dev veth0 parent 7769:100");
    let before = leaf()?;
    row.left.tc("qdisc change dev veth0 parent 7769:100 tbf rate 1gbit burst 2kb limit 2000")?;
    ensure!(leaf()? != before, "{before}");
    row.weir("limit wa --rate 10mbit")?.success()?;
    ensure!(leaf()? == before, "{} where there was {before}", leaf()?);

    // The class of packets without a leaf stands beside the root, as a command that was killed leaves it.
    row.left.tc("class del dev veth0 classid 7769:2")?;
    row.left.tc("class add dev veth0 parent 7769: classid 7769:2 htb rate 10mbit burst 20kb")?;
    let said = fault(&row, "wa")?;
    ensure!(said.contains("somebody changed 1 of its 274 classes"), "{said}");
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// No priority passes it, be it that of the queue, of a class or of a leaf, for a program that has CAP_NET_RAW and nothing else.
fn no_priority_passes_the_limit() -> Result<()> {
    const BITS_PER_S: f64 = 1e6;
    const PRIORITIES: [libc::c_int; 6] = [0x7769_0000, 0x7769_0001, 0x7769_0002, 0x7769_0100, 0x7769_020f, 6];
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 1mbit --burst 20kb")?.success()?;
    let to = row.right_address(Between::Bridge);
    row.left.sh(&format!("ping -q -c 1 -W 2 {to}"))?;
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", 7009)))??;
    receiver.set_nonblocking(true)?;
    // With room for far more than are allowed.
    widen(&receiver)?;
    let begin = now();
    let sent = row.left.enter(|| -> Result<usize> {
        keep_net_raw_alone()?;
        let mut sockets = Vec::new();
        for priority in PRIORITIES {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.set_nonblocking(true)?;
            set_priority(&socket, priority)?;
            sockets.push(socket);
        }
        let mut sent = 0;
        let begin_sending = now();
        while begin_sending.elapsed() < Duration::from_secs(1) {
            for socket in &sockets {
                sent += usize::from(socket.send_to(&[0; 1000], (to.as_str(), 7009)).is_ok());
            }
        }
        Ok(sent)
    })??;
    let mut buffer = [0; 2000];
    let arrived = std::iter::from_fn(|| receiver.recv(&mut buffer).ok()).count();
    let bits = arrived as f64 * 1042.0 * 8.0;
    // The burst, and a packet for each flow that became busy.
    let allowed = BITS_PER_S * begin.elapsed().as_secs_f64()
        + 20.0 * 1024.0 * 8.0
        + PRIORITIES.len() as f64 * 1042.0 * 8.0;
    ensure!(bits <= allowed * 1.02, "{bits} bits arrived, {allowed} were allowed");
    ensure!(overflowed_datagrams(&row.right)? == 0, "some that arrived were not counted");
    require_timing!(sent > 500, "only {sent} were sent, so nothing was tried");
    require_timing!(bits >= 0.5 * BITS_PER_S, "only {bits} bits arrived");
    Ok(())
}

/// Gives up, for this thread, every capability but `CAP_NET_RAW`.
fn keep_net_raw_alone() -> Result<()> {
    const NET_RAW: u32 = 1 << 13;
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let sets: [u32; 6] = [NET_RAW, NET_RAW, 0, 0, 0, 0];
    // SAFETY: version 3 reads a header of two words and two sets of three, which both arrays are.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    ensure!(done == 0, "capset: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The senders that are held and the time are told; nothing is told of packets that nobody can see.
fn who_is_held_and_for_how_long_is_told() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 20mbit --rate-back 20mbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    row.left.sh(&format!("ping -q -c 10 -i 0.02 {to}"))?;
    let quiet = row.limits("wa")?;
    let held_before = quiet[0]["held_ns"].as_u64().context("no held_ns")?;
    require_timing!(held_before < 100_000_000, "pings were held: {}", quiet[0]);
    ensure!(
        quiet[0]["waits_for"].is_null() && quiet[0]["senders"].as_array().is_some_and(Vec::is_empty),
        "{}",
        quiet[0]
    );
    ensure!(quiet[1]["held_ns"].is_null() && quiet[1]["bypassed_packets"].is_null(), "{}", quiet[1]);
    // Longer than any wait for it; it is cut short.
    let flood = Flood::start(&Load::new(&row.left, &row.right, &to, 2, 120.0))?;
    let mut during = quiet[0].clone();
    wait_until("somebody is held", PATIENCE, || {
        during = row.limits("wa")?[0].clone();
        let senders = during["senders"].as_array().context("no senders")?;
        let named = |sender: &serde_json::Value| {
            sender["command"] == "iperf"
                && sender["pid"].as_u64() > Some(0)
                && sender["bytes"].as_u64() > Some(0)
        };
        Ok(senders.iter().any(named) && !during["waits_for"].is_null())
    })?;
    ensure!(during["waits_for"] == "wa" && during["delay_ns"].as_u64() > Some(0), "{during}");
    let held_ns = || row.limits("wa")?[0]["held_ns"].as_u64().context("no held_ns");
    let begin = now();
    let held_first_ns = held_ns()?;
    let begin_shorter = now();
    let_pass(Duration::from_secs(1), |_| ())?;
    let time_ns = begin_shorter.elapsed().as_nanos() as u64;
    let held_for_ns = held_ns()? - held_first_ns;
    require_timing!(held_for_ns >= time_ns / 10 * 9, "held for {held_for_ns} ns of {time_ns}");
    ensure!(
        u128::from(held_for_ns) <= begin.elapsed().as_nanos(),
        "held for longer than there was time: {held_for_ns} ns"
    );
    drop(flood);
    let limit = &row.limits("wa")?[0];
    ensure!(limit["bypassed_packets"] == 0, "{limit}");
    // Packets to programs are seen on one side of the queue alone: the waiting bytes are told, also divided by the rate, but not how long
    // packets waited.
    let to_left = names(0, 1).v4;
    let back = Load::new(&row.right, &row.left, &to_left, 1, 120.0);
    let flood = Flood::start(&back)?;
    wait_until("something waits on the way back", PATIENCE, || {
        let limit = &row.limits("wa")?[1];
        ensure!(limit["delay_ns"].is_null() && limit["held_ns"].is_null(), "nobody can see that: {limit}");
        let bytes = limit["held_bytes"].as_u64().context("no bytes")?;
        ensure!(limit["held_over_rate_ns"] == bytes * 400, "20 Mbit/s: {limit}");
        Ok(bytes > 0 && limit["waits_for"] == "wa")
    })?;
    drop(flood);
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("held for "), "{shown}");
    Ok(())
}

/// Filters of others see every packet, whether they are asked before or after, and stay when the limit is gone.
fn filters_of_others_where_packets_arrive_stay() -> Result<()> {
    const PINGS: usize = 20;
    let row = Row::new(Between::Bridge)?;
    row.middle.tc("qdisc add dev wa clsact")?;
    // The first is for nobody, so the others are asked as well.
    for (priority, mask) in [(1, "0xffffffff"), (50_000, "0")] {
        row.middle.tc(&format!(
            "filter add dev wa ingress protocol ip prio {priority} u32 match u32 0 {mask} classid 1:1"
        ))?;
    }
    row.middle.sh("nft add table netdev watch")?;
    row.middle.sh("nft add chain netdev watch in { type filter hook ingress device wa priority 0 ; }")?;
    row.middle.sh("nft add rule netdev watch in icmp type echo-request counter")?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.left.sh(&format!("ping -q -c {PINGS} -i 0.02 {}", row.right_address(Between::Bridge)))?;
    let seen = row.middle.sh("nft list chain netdev watch in")?;
    ensure!(seen.contains(&format!("packets {PINGS} ")), "{seen}");
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success()?;
    let after = row.middle.tc("filter show dev wa ingress")?;
    ensure!(after.contains("pref 1 ") && after.contains("pref 50000 ") && !after.contains("weir"), "{after}");
    Ok(())
}
