//! Changes that others make to the interfaces of a wire while it is up and flooded: traffic flows again within a second, TCP too, or the
//! wire ends with status 1 and a sentence; and all settings that were changed for the wire are as before afterwards.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{Namespace, names};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::ping::Ping;
use weir_lab::process::run;
use weir_lab::wire::Wire;
use weir_tests::classes::File;
use weir_tests::crowd::Crowd;
use weir_tests::harness;
use weir_tests::kernel::{require_same, traces};
use weir_tests::rig::{Rig, stat_of};
use weir_tests::tcx::Tcx;
use weir_tests::{privileged, require_timing};

const LIMIT: Duration = Duration::from_secs(10);
/// The time within which traffic must flow again.
const SOON: Duration = Duration::from_secs(1);
const SENDERS: usize = 4;
const SIZE_BYTES: usize = 1400;
const OPTIONS: [&str; 4] = ["--rate", "100mbit", "--burst", "20kb"];

fn main() -> ExitCode {
    harness::main(&[
        privileged!(checksum_offload_is_switched_off_again),
        privileged!(vlan_tags_left_to_the_device_are_written_into_the_frame_again),
        privileged!(a_program_put_before_weirs_comes_behind_it),
        privileged!(a_queue_that_is_replaced_by_pfifo_fast_comes_back),
        privileged!(a_queue_that_is_replaced_by_another_pfifo_comes_back),
        privileged!(a_queue_that_is_removed_comes_back),
        privileged!(a_queue_comes_back_though_another_has_its_handle),
        privileged!(a_part_of_the_queue_that_is_replaced_comes_back),
        privileged!(the_queue_of_the_wires_own_end_comes_back),
        privileged!(a_larger_mtu_is_followed),
        privileged!(a_smaller_mtu_is_followed),
        privileged!(a_new_name_is_followed),
        privileged!(a_new_name_after_down_is_followed),
        privileged!(a_sender_that_moves_is_followed),
        privileged!(a_sender_that_moves_and_comes_back_is_followed),
        privileged!(a_place_that_a_sender_has_left_may_go).flooding(),
        privileged!(a_sender_that_moves_again_and_again_keeps_nothing_open).flooding(),
        privileged!(fewer_queues_end_the_wire).flooding(),
        privileged!(an_end_of_the_wires_own_that_moves_ends_it).flooding(),
        privileged!(a_drop_that_nothing_explains_fails_the_check).flooding(),
        privileged!(an_interface_that_is_down_is_said).flooding(),
    ])
}

/// A wire under a crowd of senders.
struct Bed {
    wire: Wire,
    crowd: Crowd,
    rig: Rig,
}

impl Bed {
    fn new(queues: u32) -> Result<Bed> {
        let rig = Rig::new(queues, queues)?;
        let wire = rig.wire(&OPTIONS)?;
        let crowd = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, SENDERS, SIZE_BYTES)?;
        wait_until("traffic flows", LIMIT, || Ok(delivered(&wire)? > 1000))?;
        Ok(Bed { wire, crowd, rig })
    }

    /// Requires that traffic flows again soon after the last change, TCP too, and that every drop is explained.
    fn require_flow(&self, from: &Namespace) -> Result<()> {
        let started = now();
        let before = delivered(&self.wire)?;
        tcp_passes(from, &self.rig.right, &self.rig.right_address().v4)?;
        wait_until("traffic flows again", LIMIT, || Ok(delivered(&self.wire)? > before + 100))?;
        let took = started.elapsed();
        self.wire.check()?;
        weir_tests::require_timing!(took <= SOON, "it took {:.2} s", took.as_secs_f64());
        Ok(())
    }

    /// Waits until the wire has said something.
    fn require_said(&self, text: &str) -> Result<()> {
        wait_until(&format!("it says {text:?}"), LIMIT, || Ok(self.wire.said().contains(text)))
    }

    fn events(&self, kind: &str) -> Result<Value> {
        Ok(stat_of(&self.wire)?["wires"][0]["events"][kind].clone())
    }
}

fn delivered(wire: &Wire) -> Result<u64> {
    stat_of(wire)?["wires"][0]["classes"][0]["delivered"].as_u64().context("no delivered")
}

/// Requires that a connection is made and carries 100 kB.
fn tcp_passes(from: &Namespace, to: &Namespace, address: &str) -> Result<()> {
    const BYTES: usize = 100_000;
    const TRY: Duration = Duration::from_millis(300);
    let listener = to.enter(|| TcpListener::bind((address, 0)))??;
    let there = listener.local_addr()?;
    let receiver = std::thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_to_end(&mut Vec::new())
    });
    let mut stream = None;
    wait_until("a TCP connection", LIMIT, || {
        stream = from.enter(|| TcpStream::connect_timeout(&there, TRY))?.ok();
        Ok(stream.is_some())
    })?;
    let mut stream = stream.context("a connection")?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(&vec![7; BYTES])?;
    drop(stream);
    let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
    ensure!(received == BYTES, "{received} of {BYTES} bytes arrived by TCP");
    Ok(())
}

/// A change at the sender's end that is put right or followed; `said` of it, counted as `event`, and then all is as before.
fn change(queues: u32, commands: &[&str], said: &str, event: &str) -> Result<()> {
    let all = |left: &Namespace| commands.iter().try_for_each(|command| left.sh(command).map(drop));
    change_by(queues, all, said, event)
}

/// Such a change, which `by` makes in the sender's namespace.
fn change_by(queues: u32, by: impl FnOnce(&Namespace) -> Result<()>, said: &str, event: &str) -> Result<()> {
    let rig = Rig::new(queues, queues)?;
    let before = [traces(&rig.middle)?, traces(&rig.left)?, traces(&rig.right)?];
    let wire = rig.wire(&OPTIONS)?;
    let crowd = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, SENDERS, SIZE_BYTES)?;
    wait_until("traffic flows", LIMIT, || Ok(delivered(&wire)? > 1000))?;
    let with_wire = queue_and_checksums(&rig)?;
    let bed = Bed { wire, crowd, rig };
    by(&bed.rig.left)?;
    bed.require_said(said)?;
    bed.require_flow(&bed.rig.left)?;
    ensure!(bed.events(event)?["times"].as_u64() >= Some(1), "{event}: {}", bed.events(event)?);
    let after = queue_and_checksums(&bed.rig)?;
    ensure!(after == with_wire, "with the wire it was\n{with_wire}\nand is\n{after}");
    let Bed { wire, crowd, rig } = bed;
    crowd.finish()?;
    wire.check()?;
    wire.stop()?;
    for (before, namespace) in before.iter().zip([&rig.middle, &rig.left, &rig.right]) {
        require_same(before, &traces(namespace)?)?;
    }
    Ok(())
}

/// The settings that a wire needs at the sender's end.
fn queue_and_checksums(rig: &Rig) -> Result<String> {
    let queue = rig.left.tc("qdisc show dev veth0")?;
    // Handles of parts and reference counts are other ones each time.
    let mut parts: Vec<&str> =
        queue.lines().filter_map(|line| line.split_once(" parent ")).map(|two| two.1).collect();
    parts.sort_unstable();
    let root =
        queue.lines().find(|line| line.contains(" root ")).and_then(|line| line.split(" refcnt").next());
    let offloads = rig.left.sh("ethtool -k veth0")?;
    let is_needed = |line: &&str| line.starts_with("tx-checksumming") || line.starts_with("tx-vlan");
    Ok(root.into_iter().chain(parts).chain(offloads.lines().filter(is_needed)).collect::<Vec<_>>().join("\n"))
}

fn checksum_offload_is_switched_off_again() -> Result<()> {
    change(1, &["ethtool -K veth0 tx on"], "checksums of veth0", "checksum-offload")
}

fn vlan_tags_left_to_the_device_are_written_into_the_frame_again() -> Result<()> {
    change(
        1,
        &["ethtool -K veth0 txvlan on tx-vlan-stag-hw-insert on"],
        "VLAN tags of veth0",
        "tag-insertion",
    )
}

/// Each time another one is put before, so that both of weir's copies have their turn. While nothing is announced, a packet waits for the
/// next look at all queues, up to 1 s.
fn a_program_put_before_weirs_comes_behind_it() -> Result<()> {
    const LATE_MS: f64 = 150.0;
    const TIMES: u64 = 3;
    let rig = Rig::plain()?;
    let before = traces(&rig.left)?;
    let wire = rig.wire(&OPTIONS)?;
    let mut others = Vec::new();
    for time in 1..=TIMES {
        others.push(Tcx::verdict_before_others_on_egress(rig.left_end())?);
        wait_until("it is noticed", LIMIT, || {
            Ok(stat_of(&wire)?["wires"][0]["events"]["program-before"]["times"].as_u64() >= Some(time))
        })?;
    }
    // It is counted before it is said.
    let times_said = || wire.said().matches("was attached to veth0 before weir's").count() as u64;
    wait_until("it is said each time", LIMIT, || Ok(times_said() >= TIMES))?;
    ensure!(times_said() == TIMES, "{}", wire.said());
    let times = Ping::start_series(&rig.left, &rig.right_address().v4, 5, 0.7)?.finish()?;
    times.require_all()?;
    let median_ms = times.percentile_ms(0.5).context("no answers")?;
    require_timing!(median_ms < LATE_MS, "half of the answers took {median_ms} ms: nobody rang");
    wire.check()?;
    wire.stop()?;
    drop(others);
    require_same(&before, &traces(&rig.left)?)
}

fn a_queue_that_is_replaced_by_pfifo_fast_comes_back() -> Result<()> {
    change(1, &["tc qdisc replace dev veth0 root pfifo_fast"], "the queue of veth0", "queue-replaced")
}

fn a_queue_that_is_replaced_by_another_pfifo_comes_back() -> Result<()> {
    let command = "tc qdisc replace dev veth0 root handle 5: pfifo limit 3";
    change(4, &[command], "the queue of veth0", "queue-replaced")
}

fn a_queue_that_is_removed_comes_back() -> Result<()> {
    change(4, &["tc qdisc replace dev veth0 root noqueue"], "the queue of veth0", "queue-replaced")
}

/// Two commands in one batch: the queue may come back between them, and then they are given again.
fn a_queue_comes_back_though_another_has_its_handle() -> Result<()> {
    let commands = "qdisc replace dev veth0 root handle 1: tbf rate 1gbit burst 1mb latency 1s\\nqdisc add dev veth0 parent 1:1 handle 7765: bfifo\\n";
    let batch = format!("for _ in $(seq 100); do printf '{commands}' | tc -batch - && exit; done; exit 1");
    let by = |left: &Namespace| {
        run(left.command("sh").args(["-c", &batch]), LIMIT)?.success()?;
        Ok(())
    };
    change_by(4, by, "the queue of veth0", "queue-replaced")
}

fn a_part_of_the_queue_that_is_replaced_comes_back() -> Result<()> {
    let command = "tc qdisc replace dev veth0 parent 7765:2 pfifo_fast";
    change(4, &[command], "the queue of veth0", "queue-replaced")
}

fn the_queue_of_the_wires_own_end_comes_back() -> Result<()> {
    let bed = Bed::new(1)?;
    bed.rig.middle.tc("qdisc replace dev wa root pfifo_fast")?;
    bed.require_said("the queue of wa")?;
    bed.require_flow(&bed.rig.left)?;
    let queue = bed.rig.middle.tc("qdisc show dev wa")?;
    ensure!(queue.contains("7765:"), "{queue}");
    Ok(())
}

/// Sets the MTU at all four ends, as one does it.
fn set_mtus(rig: &Rig, mtu: u32) -> Result<()> {
    for end in [rig.a(), rig.b(), rig.left_end(), rig.right_end()] {
        end.namespace.ip(&format!("link set {} mtu {mtu}", end.name))?;
    }
    Ok(())
}

/// Returns whether a packet of so many bytes passes unfragmented.
fn ping(rig: &Rig, bytes: u32) -> Result<bool> {
    let mut ping = rig.left.command("ping");
    let size = (bytes - 28).to_string();
    let address = rig.right_address().v4;
    ping.args(["-n", "-c", "1", "-W", "0.5", "-M", "do", "-s", &size, &address]);
    Ok(run(&mut ping, LIMIT)?.status.success())
}

fn a_larger_mtu_is_followed() -> Result<()> {
    let bed = Bed::new(1)?;
    set_mtus(&bed.rig, 3000)?;
    let started = now();
    wait_until("a long packet passes", LIMIT, || ping(&bed.rig, 3000))?;
    let took = started.elapsed();
    bed.require_said("the MTU of wa is 3000 now")?;
    bed.require_flow(&bed.rig.left)?;
    weir_tests::require_timing!(took <= SOON, "it took {:.2} s", took.as_secs_f64());
    Ok(())
}

/// A packet that is too long then is dropped by the wire, under its name, and not by a device.
fn a_smaller_mtu_is_followed() -> Result<()> {
    let bed = Bed::new(1)?;
    bed.rig.right.ip("link set veth0 mtu 1000")?;
    bed.require_said("the MTU of veth0 is 1000 now")?;
    let dropped =
        || -> Result<Value> { Ok(stat_of(&bed.wire)?["wires"][0]["classes"][0]["dropped"].clone()) };
    wait_until("long packets are dropped as such", LIMIT, || {
        Ok(dropped()?["too-long"].as_u64().is_some_and(|count| count > 1000))
    })?;
    bed.wire.check()?;
    bed.rig.right.ip("link set veth0 mtu 1500")?;
    bed.require_said("the MTU of veth0 is 1500 now")?;
    bed.require_flow(&bed.rig.left)?;
    // The device itself drops what is longer than the wire's own end takes, also long after the change.
    bed.rig.middle.ip("link set wa mtu 1000")?;
    bed.require_said("the MTU of wa is 1000 now")?;
    let by_mtu = || Ok::<_, anyhow::Error>(bed.events("mtu")?["dropped"].as_u64().unwrap_or(0));
    let require_explained = || {
        let before = by_mtu()?;
        wait_until("long packets are dropped", LIMIT, || Ok(by_mtu()? > before))?;
        bed.wire.check()
    };
    require_explained()?;
    let_pass(Duration::from_secs(1), |_| ())?;
    require_explained()?;
    bed.rig.middle.ip("link set wa mtu 1500")?;
    bed.require_said("the MTU of wa is 1500 now")?;
    bed.require_flow(&bed.rig.left)
}

fn a_new_name_is_followed() -> Result<()> {
    renamed(&[])
}

fn a_new_name_after_down_is_followed() -> Result<()> {
    renamed(&["down", "up"])
}

/// Renames one of the wire's own ends and a sender's.
fn renamed(around: &[&str]) -> Result<()> {
    let bed = Bed::new(1)?;
    let rename = |namespace: &Namespace, name: &str, new: &str| -> Result<()> {
        around.first().map_or(Ok(()), |state| namespace.ip(&format!("link set {name} {state}")).map(drop))?;
        namespace.ip(&format!("link set {name} name {new}"))?;
        around.last().map_or(Ok(()), |state| namespace.ip(&format!("link set {new} {state}")).map(drop))
    };
    rename(&bed.rig.middle, "wa", "wan")?;
    bed.require_said("wa is called wan now")?;
    bed.require_flow(&bed.rig.left)?;
    rename(&bed.rig.right, "veth0", "lan")?;
    bed.require_said("veth0 is called lan now")?;
    // The neighbour went with the interface.
    bed.require_flow(&bed.rig.left)?;
    let stat = stat_of(&bed.wire)?;
    let seen = [&stat["wires"][0]["ports"][0], &stat["ports"][0]["name"], &stat["ports"][1]["sender"]];
    ensure!(seen == ["wan", "wan", "lan"], "{seen:?}");
    let class = "default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"50mbit\"\n";
    let file = File::new(&format!("{class}[[filter]]\ninterface = \"wa\"\nclass = \"a\"\n"))?;
    let set = bed.wire.weir(&["set", bed.wire.name(), "--classes", file.path()])?;
    let told = "wan and wb; the interface that was wa is called wan now\n";
    ensure!(!set.status.success() && set.stderr.contains(told), "{}", set.stderr);
    Ok(())
}

/// Gives the left host's interface, which has just come there, its addresses again.
fn settle(namespace: &Namespace) -> Result<()> {
    namespace.ip(&format!("addr add {}/24 dev veth0", names(0, 1).v4))?;
    namespace.ip("link set veth0 up")?;
    Ok(())
}

fn a_sender_that_moves_is_followed() -> Result<()> {
    let other = Namespace::new("other")?;
    let bed = Bed::new(4)?;
    bed.rig.left.ip(&format!("link set veth0 netns {}", other.name()))?;
    bed.require_said("is in another network namespace now")?;
    settle(&other)?;
    bed.require_flow_of_tcp(&other)?;
    let queue = other.tc("qdisc show dev veth0")?;
    ensure!(queue.contains("7765:"), "it is not held there: {queue}");
    bed.wire.check()?;
    let Bed { wire, crowd, rig: _rig } = bed;
    drop(crowd);
    wire.stop()?;
    require_untouched(&other)
}

fn a_sender_that_moves_and_comes_back_is_followed() -> Result<()> {
    let other = Namespace::new("other")?;
    let bed = Bed::new(4)?;
    bed.rig.left.ip(&format!("link set veth0 netns {}", other.name()))?;
    other.ip(&format!("link set veth0 netns {}", bed.rig.left.name()))?;
    settle(&bed.rig.left)?;
    bed.require_flow_of_tcp(&bed.rig.left)?;
    wait_until("it is held again", LIMIT, || Ok(bed.rig.left.tc("qdisc show dev veth0")?.contains("7765:")))?;
    bed.wire.check()?;
    let Bed { wire, crowd, rig } = bed;
    drop(crowd);
    wire.stop()?;
    require_untouched(&rig.left)
}

fn a_place_that_a_sender_has_left_may_go() -> Result<()> {
    let other = Namespace::new("other")?;
    let bed = Bed::new(4)?;
    // It goes when the left host does, whoever keeps that until then.
    other.ip(&format!("link add told type veth peer name tells netns {}", bed.rig.left.name()))?;
    bed.rig.left.ip(&format!("link set veth0 netns {}", other.name()))?;
    bed.require_said("is in another network namespace now")?;
    let Bed { mut wire, crowd, rig: Rig { left, right, middle: _middle, .. } } = bed;
    drop(crowd);
    drop(left);
    wait_until("the left host is gone", LIMIT, || Ok(other.ip("link show told").is_err()))?;
    ensure!(wire.is_running()?, "{}", wire.said());
    settle(&other)?;
    tcp_passes(&other, &right, &names(0, 2).v4)?;
    wire.check()?;
    wire.stop()?;
    require_untouched(&other)
}

fn a_sender_that_moves_again_and_again_keeps_nothing_open() -> Result<()> {
    const TIMES: usize = 10;
    let other = Namespace::new("other")?;
    let rig = Rig::new(4, 4)?;
    let wire = rig.wire(&OPTIONS)?;
    let open = || -> Result<[usize; 2]> {
        let count = |id: u32| Ok::<_, anyhow::Error>(std::fs::read_dir(format!("/proc/{id}/fd"))?.count());
        Ok([count(wire.id())?, count(weir_tests::guardian(wire.id())?)?])
    };
    let moved = || wire.said().matches("is in another network namespace now").count();
    let before = open()?;
    for time in 0..TIMES {
        for (count, from, to) in [(1, &rig.left, &other), (2, &other, &rig.left)] {
            from.ip(&format!("link set veth0 netns {}", to.name()))?;
            wait_until("the move is followed", LIMIT, || Ok(moved() == 2 * time + count))?;
        }
    }
    wait_until("as many descriptors are open as before", LIMIT, || Ok(open()? == before))
        .with_context(|| format!("{before:?} before, {:?} after", open()))?;
    settle(&rig.left)?;
    tcp_passes(&rig.left, &rig.right, &rig.right_address().v4)?;
    wire.check()?;
    wire.stop()?;
    require_untouched(&rig.left)
}

impl Bed {
    /// Requires that TCP flows, where no crowd sends any more.
    fn require_flow_of_tcp(&self, from: &Namespace) -> Result<()> {
        let started = now();
        tcp_passes(from, &self.rig.right, &self.rig.right_address().v4)?;
        let took = started.elapsed();
        weir_tests::require_timing!(took <= SOON, "it took {:.2} s", took.as_secs_f64());
        Ok(())
    }
}

/// Requires no queue of Weir's, and checksums left to the device.
fn require_untouched(namespace: &Namespace) -> Result<()> {
    let queue = namespace.tc("qdisc show dev veth0")?;
    ensure!(!queue.contains("7765:"), "it left its queue: {queue}");
    let offloads = namespace.sh("ethtool -k veth0")?;
    ensure!(offloads.contains("tx-checksumming: on"), "it left checksums off: {offloads}");
    ensure!(offloads.contains("tcp-segmentation-offload: on"), "it left segmentation off: {offloads}");
    ensure!(offloads.contains("tx-vlan-offload: on"), "it left VLAN tags in the frame: {offloads}");
    Ok(())
}

fn fewer_queues_end_the_wire() -> Result<()> {
    let Bed { wire, crowd, rig } = Bed::new(4)?;
    rig.left.sh("ethtool -L veth0 tx 2")?;
    let done = wire.wait()?;
    drop(crowd);
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stderr);
    ensure!(done.stderr.contains("veth0 sends on 2 queues now"), "{}", done.stderr);
    require_untouched(&rig.left)
}

fn an_end_of_the_wires_own_that_moves_ends_it() -> Result<()> {
    let other = Namespace::new("other")?;
    let Bed { wire, crowd, rig } = Bed::new(1)?;
    rig.middle.ip(&format!("link set wa netns {}", other.name()))?;
    let done = wire.wait()?;
    drop(crowd);
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stderr);
    ensure!(done.stderr.contains("wa was moved to another network namespace"), "{}", done.stderr);
    require_untouched(&rig.left)
}

/// The queue is Weir's and has been made too short for the packets that must be held.
fn a_drop_that_nothing_explains_fails_the_check() -> Result<()> {
    let bed = Bed::new(1)?;
    bed.wire.check()?;
    bed.rig.left.tc("qdisc change dev veth0 root handle 7765: pfifo limit 1")?;
    let check = || bed.wire.weir(&["stat", bed.wire.name(), "--check"]);
    wait_until("the check fails", LIMIT, || Ok(check()?.status.code() == Some(1)))?;
    let said = check()?.stderr;
    ensure!(said.contains("veth0") && said.contains("queue_dropped"), "{said}");
    Ok(())
}

fn an_interface_that_is_down_is_said() -> Result<()> {
    let bed = Bed::new(1)?;
    bed.rig.middle.ip("link set wb down")?;
    wait_until("stat says so", LIMIT, || Ok(stat_of(&bed.wire)?["ports"][1]["device"]["state"] == "down"))?;
    ensure!(
        stat_of(&bed.wire)?["ports"][1]["sender_device"]["state"] == "no-carrier",
        "{}",
        stat_of(&bed.wire)?
    );
    let text = bed.wire.weir(&["stat", bed.wire.name()])?.success()?.stdout;
    ensure!(text.lines().any(|line| line.starts_with("wb ") && line.contains("down")), "{text}");
    bed.wire.check()
}
