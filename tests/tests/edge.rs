//! Programs of others at the kernel's edge of a wire, and things of theirs that must survive it: tags, programs, qdiscs, sockets, signals,
//! cores.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::ping::Ping;
use weir_lab::process::{Process, Signal, run};
use weir_tests::kernel::{require_same, traces};
use weir_tests::raw::{Random, RawSocket, frame};
use weir_tests::rig::Rig;
use weir_tests::tcx::Tcx;
use weir_tests::{harness, privileged, require_timing, weir_binary};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_tag_beside_the_frame_arrives).together(),
        privileged!(a_program_that_was_there_does_not_silence_the_doorbell).together(),
        privileged!(a_qdisc_beside_clsact_comes_back).together(),
        privileged!(a_qdisc_with_another_below_it_is_refused).together(),
        privileged!(pollers_take_no_packets_of_others).together(),
        privileged!(a_hang_up_that_nohup_ignores_ends_nothing).together(),
        privileged!(wires_share_no_core_while_there_are_others).together(),
    ])
}

/// A VLAN interface leaves its tag beside the frame; so does this program.
fn a_tag_beside_the_frame_arrives() -> Result<()> {
    const TAG: u16 = 5;
    let rig = Rig::plain()?;
    let before = [traces(&rig.left)?, traces(&rig.middle)?];
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let program = Tcx::tag_on_egress(rig.left_end(), TAG)?;
    let (sender, receiver) = (RawSocket::open(rig.left_end())?, RawSocket::open(rig.right_end())?);
    let mut random = Random(0x7a6);
    for number in 0..100 {
        let length = random.between(60, 1500);
        let mut expected = frame(number, length, None, &mut random);
        sender.send(&expected)?;
        let arrived = receiver.receive(Duration::from_secs(5))?;
        let arrived = arrived.with_context(|| format!("frame {number} never came"))?;
        expected.splice(12..12, [0x81, 0x00, 0, TAG as u8]);
        ensure!(arrived == expected, "frame {number} arrived as {:02x?}...", &arrived[..20]);
    }
    drop(program);
    wire.stop()?;
    require_same(&before[0], &traces(&rig.left)?)?;
    require_same(&before[1], &traces(&rig.middle)?)
}

/// Behind a program that gives a verdict the doorbell would never run, and each first packet would wait for the next look, up to 1 s.
fn a_program_that_was_there_does_not_silence_the_doorbell() -> Result<()> {
    const LATE_MS: f64 = 150.0;
    let rig = Rig::plain()?;
    let _left = Tcx::verdict_on_egress(rig.left_end())?;
    let _right = Tcx::verdict_on_egress(rig.right_end())?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let times = Ping::start_series(&rig.left, &rig.right_address().v4, 5, 0.7)?.finish()?;
    times.require_all()?;
    let median_ms = times.percentile_ms(0.5).context("no answers")?;
    require_timing!(median_ms < LATE_MS, "half of the answers took {median_ms} ms: nobody rang");
    wire.stop()?;
    Ok(())
}

/// `clsact` holds no packets: it is no tree, and stays where it is.
fn a_qdisc_beside_clsact_comes_back() -> Result<()> {
    let rig = Rig::new(4, 1)?;
    rig.left.tc("qdisc replace dev veth0 root handle 7: pfifo limit 77")?;
    rig.left.tc("qdisc add dev veth0 clsact")?;
    let before = traces(&rig.left)?;
    rig.wire(&["--rate", "100mbit"])?.stop()?;
    require_same(&before, &traces(&rig.left)?)
}

fn a_qdisc_with_another_below_it_is_refused() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    rig.left.tc("qdisc replace dev veth0 root handle 1: tbf rate 1mbit burst 10kb limit 100kb")?;
    rig.left.tc("qdisc add dev veth0 parent 1:1 handle 10: pfifo limit 9")?;
    let before = traces(&rig.left)?;
    let done = run(&mut rig.weir(&["wire", "wa", "wb", "--rate", "1mbit"]), Duration::from_secs(10))?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    for word in ["veth0", "tbf", "pfifo", "tc qdisc del dev veth0 root"] {
        ensure!(done.stderr.contains(word), "it does not say {word}: {}", done.stderr);
    }
    require_same(&before, &traces(&rig.left)?)
}

/// Anybody may send to the sockets that poll, by broadcast. Packets that come there would keep them from polling.
fn pollers_take_no_packets_of_others() -> Result<()> {
    const SPRAYED: u64 = 100;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let pollers = || -> Result<Vec<UdpLine>> { rig.middle.enter(udp_sockets)? };
    let before = pollers()?;
    ensure!(before.len() == 2, "{} sockets in the namespace of a wire of two queues", before.len());
    rig.middle.enter(|| -> Result<()> {
        for name in ["wa", "wb"] {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_broadcast(true)?;
            // SAFETY: the name and its length are passed; the kernel copies it.
            let bound = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_BINDTODEVICE,
                    name.as_ptr().cast(),
                    name.len() as u32,
                )
            };
            ensure!(bound == 0, "binding to {name}: {}", std::io::Error::last_os_error());
            for poller in &before {
                for _ in 0..SPRAYED {
                    socket.send_to(b"spray", ("255.255.255.255", poller.port))?;
                }
            }
        }
        Ok(())
    })??;
    let is_there = |now: &&UdpLine| before.iter().any(|then| then.port == now.port);
    let refused = || Ok(pollers()?.iter().filter(is_there).all(|poller| poller.refused >= SPRAYED));
    wait_until("all were refused", Duration::from_secs(10), refused)?;
    for poller in pollers()?.iter().filter(is_there) {
        ensure!(poller.waiting == 0, "port {}: {} bytes wait there", poller.port, poller.waiting);
    }
    wire.stop()?;
    Ok(())
}

/// A line of `/proc/net/udp`.
struct UdpLine {
    port: u16,
    waiting: u64,
    refused: u64,
}

fn udp_sockets() -> Result<Vec<UdpLine>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/udp")?;
    let line = |line: &str| -> Option<UdpLine> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(words.get(1)?.strip_prefix("00000000:")?, 16).ok()?;
        let (_, waiting) = words.get(4)?.split_once(':')?;
        let waiting = u64::from_str_radix(waiting, 16).ok()?;
        Some(UdpLine { port, waiting, refused: words.last()?.parse().ok()? })
    };
    Ok(text.lines().skip(1).filter_map(line).collect())
}

fn a_hang_up_that_nohup_ignores_ends_nothing() -> Result<()> {
    let rig = Rig::plain()?;
    let name = rig.middle.name();
    let mut command = rig.middle.command("env");
    command.args(["--default-signal", "--ignore-signal=HUP"]).arg(weir_binary()?);
    let mut wire = Process::spawn(command.args(["wire", "wa", "wb", "--rate", "100mbit", "--name", name]))?;
    wire.wait_for_output("ready", Duration::from_secs(20))?;
    wire.signal(Signal::HUP)?;
    // Ignored, and not blocked where signals are first blocked, in the main thread: the kernel has thrown it away by now.
    let status = std::fs::read_to_string(format!("/proc/{}/status", wire.id()))?;
    let has_hang_up = |field: &str| -> Result<bool> {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
        Ok(u64::from_str_radix(line.trim_start_matches(':').trim(), 16)? & 1 != 0)
    };
    ensure!(has_hang_up("SigIgn")? && !has_hang_up("SigBlk")?, "it could hear it:\n{status}");
    run(&mut rig.weir(&["stat", name, "--check"]), Duration::from_secs(10))?.success()?;
    wire.signal(Signal::INT)?;
    wire.wait(Duration::from_secs(10))?.success()?;
    Ok(())
}

fn wires_share_no_core_while_there_are_others() -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let rigs = [Rig::plain()?, Rig::plain()?];
    let first = rigs[0].wire(&["--rate", "10mbit"])?;
    let first_core = core_of(first.id())?;
    let second = rigs[1].wire(&["--rate", "10mbit"])?;
    let second_core = core_of(second.id())?;
    ensure!(cores == 1 || first_core != second_core, "both have core {first_core}");
    Ok(())
}

/// The one core of the worker of a process.
fn core_of(process: u32) -> Result<usize> {
    let mut found = None;
    wait_until("its worker is on a core", Duration::from_secs(10), || {
        for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let task = task?.path();
            // A thread may end while this looks.
            let text = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            if text("comm").trim_end() == "weir-worker" {
                let status = text("status");
                let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                found = list.and_then(|list| list.trim().parse().ok());
            }
        }
        Ok(found.is_some())
    })?;
    found.context("no worker")
}
