//! However a wire ends, the interfaces are as they were before, and nothing is left behind.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, address, names};
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Signal, run, send_signal};
use weir_port::sys::setsockopt;
use weir_tests::kernel::{Belongings, Traces, belongings, require_same, traces};
use weir_tests::rig::{MANY_QUEUES, Rig, stat_of};
use weir_tests::{fill, harness, privileged};

/// The longest time that the kernel takes on a busy machine to free what nobody uses any more.
const RESTORED_WITHIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(sigterm),
        privileged!(a_wire_that_is_taken_down_is_called_a_wire),
        privileged!(a_wire_whose_words_nobody_reads_ends_all_the_same),
        privileged!(a_wire_whose_lines_nobody_reads_ends_all_the_same),
        privileged!(sigint_under_load),
        privileged!(what_was_sent_before_the_end_arrives),
        privileged!(what_is_not_delivered_in_time_is_told).flooding(),
        privileged!(what_stands_in_the_pair_at_the_end_is_told).flooding(),
        privileged!(kill_under_load),
        privileged!(kill_under_load_with_one_queue_each),
        privileged!(kill_under_load_on_plain_pairs),
        privileged!(a_qdisc_of_the_users_comes_back),
        privileged!(an_interface_vanishes),
        privileged!(a_second_wire_on_the_same_interfaces_is_refused),
    ])
}

fn a_wire_that_is_taken_down_is_called_a_wire() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let name = rig.middle.name();
    // In a directory with a file that is called so, and is no topology.
    let folder = std::env::temp_dir().join(format!("weir-down-{name}"));
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join(name), "no topology")?;
    let done = run(rig.weir(&["down", name]).current_dir(&folder), Duration::from_secs(20));
    std::fs::remove_dir_all(&folder)?;
    let done = done?.success()?;
    ensure!(done.stdout == format!("ended: wire {name}\n"), "{}{}", done.stdout, done.stderr);
    wire.wait()?;
    before.require_restored(&rig)
}

/// Standard error is a full pipe.
fn a_wire_whose_words_nobody_reads_ends_all_the_same() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(20);
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let name = rig.middle.name();
    let (_nobody_reads, words) = std::io::pipe()?;
    let mut command = rig.weir(&["wire", "wa", "wb", "--name", name]);
    let mut wire = command.stdout(Stdio::piped()).stderr(words.try_clone()?).spawn()?;
    let mut said = BufReader::new(wire.stdout.take().context("its output")?);
    said.read_line(&mut String::new())?;
    fill(&words)?;
    for state in ["down", "up"] {
        rig.middle.ip(&format!("link set wa {state}"))?;
        wait_until("it has seen that", LIMIT, || {
            let done = run(&mut rig.weir(&["stat", name, "--json"]), LIMIT)?.success()?;
            let stat: serde_json::Value = serde_json::from_str(&done.stdout)?;
            Ok(stat["ports"][0]["device"]["state"] == state)
        })?;
    }
    let down = run(&mut rig.weir(&["down", name]), LIMIT);
    let ended = wait_until("it ends", LIMIT, || Ok(wire.try_wait()?.is_some()));
    // The process goes in any case.
    let _ = wire.kill();
    let status = wire.wait()?;
    down?.success()?;
    ended?;
    ensure!(status.success(), "it ended with {status}");
    before.require_restored(&rig)
}

/// Standard output is a full pipe, from before the first line.
fn a_wire_whose_lines_nobody_reads_ends_all_the_same() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(20);
    let rig = Rig::new(1, 1)?;
    let before = Before::look(&rig)?;
    let name = rig.middle.name();
    for is_taken_down in [true, false] {
        let (_nobody_reads, lines) = std::io::pipe()?;
        fill(&lines)?;
        let mut wire =
            rig.weir(&["wire", "wa", "wb", "--name", name]).stdout(lines).stderr(Stdio::null()).spawn()?;
        let asked = wait_until("it is up", LIMIT, || {
            Ok(run(&mut rig.weir(&["stat", name]), LIMIT)?.status.success())
        })
        .and_then(|()| match is_taken_down {
            true => run(&mut rig.weir(&["down", name]), LIMIT)?.success().map(drop),
            false => send_signal(wire.id(), Signal::TERM),
        });
        let ended = wait_until("it ends", LIMIT, || Ok(wire.try_wait()?.is_some()));
        // The process goes in any case.
        let _ = wire.kill();
        let status = wire.wait()?;
        asked?;
        ended?;
        ensure!(status.success(), "it ended with {status}");
        before.require_restored(&rig)?;
    }
    Ok(())
}

/// Everything that a wire could change.
struct Before {
    middle: Traces,
    left: Traces,
    right: Traces,
    belongings: Belongings,
}

impl Before {
    fn look(rig: &Rig) -> Result<Before> {
        Ok(Before {
            middle: traces(&rig.middle)?,
            left: traces(&rig.left)?,
            right: traces(&rig.right)?,
            belongings: belongings()?,
        })
    }

    /// The kernel frees programs a little after their last user has gone.
    fn require_restored(&self, rig: &Rig) -> Result<()> {
        let mut why = String::new();
        let restored = wait_until("everything is as it was", RESTORED_WITHIN, || {
            let after = Before::look(rig)?;
            let sides =
                [(&self.middle, &after.middle), (&self.left, &after.left), (&self.right, &after.right)];
            let changed = sides.iter().find_map(|(before, after)| require_same(before, after).err());
            let left_behind = after.belongings.new_since(&self.belongings);
            why = match changed {
                Some(error) => error.to_string(),
                None => format!("left behind: {}", left_behind.join(", ")),
            };
            Ok(why == "left behind: ")
        });
        restored.with_context(|| why)
    }
}

fn sigterm() -> Result<()> {
    let rig = Rig::plain()?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    ensure!(traces(&rig.middle)? != before.middle, "a running wire leaves no trace: this test sees nothing");
    wire.stop()?;
    before.require_restored(&rig)
}

fn sigint_under_load() -> Result<()> {
    let rig = Rig::plain()?;
    let before = Before::look(&rig)?;
    let mut wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 20.0))?;
    wire.signal(Signal::INT)?;
    let done = wire.wait()?;
    ensure!(done.status.success(), "it ended with {}: {}", done.status, done.stderr);
    drop(flood);
    before.require_restored(&rig)
}

/// At its rate the wire has a quarter of a second of it left when it is told to end.
fn what_was_sent_before_the_end_arrives() -> Result<()> {
    const DATAGRAMS: u64 = 60;
    let rig = Rig::plain()?;
    let address = rig.right_address().v4;
    for workers in ["1", "2"] {
        let mut wire = rig.wire(&["--rate", "2mbit", "--workers", workers])?;
        let receiver = rig.right.enter(|| UdpSocket::bind((address.as_str(), 7004)))??;
        receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
        send(&rig, DATAGRAMS)?;
        wire.signal(Signal::INT)?;
        let done = wire.wait()?.success()?;
        ensure!(done.stdout.contains("dropped none"), "{}", done.stdout);
        let arrived = (0..DATAGRAMS).take_while(|_| receiver.recv(&mut [0; 2000]).is_ok()).count() as u64;
        ensure!(arrived == DATAGRAMS, "{arrived} of {DATAGRAMS} arrived, {workers} workers");
    }
    Ok(())
}

/// Sends so many datagrams of 1,000 bytes from left to right.
fn send(rig: &Rig, datagrams: u64) -> Result<()> {
    let address = rig.right_address().v4;
    rig.left.enter(|| -> std::io::Result<()> {
        let sender = UdpSocket::bind(("0.0.0.0", 0))?;
        (0..datagrams).try_for_each(|_| sender.send_to(&[0; 1000], (address.as_str(), 7004)).map(drop))
    })??;
    Ok(())
}

/// A long queue at a low rate: the time to deliver it is bounded, and what is left is told.
fn what_is_not_delivered_in_time_is_told() -> Result<()> {
    const DATAGRAMS: u64 = 200;
    let rig = Rig::plain()?;
    let address = rig.right_address().v4;
    let wire = rig.wire(&["--rate", "200kbit", "--queue", "20s"])?;
    let receiver = rig.right.enter(|| UdpSocket::bind((address.as_str(), 7004)))??;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    send(&rig, DATAGRAMS)?;
    let accepted = || Ok(stat_of(&wire)?["totals"]["accepted"].as_u64() >= Some(DATAGRAMS));
    wait_until("all are inside", Duration::from_secs(20), accepted)?;
    let done = wire.stop()?;
    let undelivered = told(&done.stdout, "undelivered");
    let arrived = (0..DATAGRAMS).take_while(|_| receiver.recv(&mut [0; 2000]).is_ok()).count() as u64;
    // And the kernels' own packets to neighbours.
    let told = DATAGRAMS..DATAGRAMS + 10;
    ensure!(
        undelivered > 10 && told.contains(&(arrived + undelivered)),
        "{arrived} arrived: {}",
        done.stdout
    );
    Ok(())
}

/// At this rate most of the packets are still in the ring of the sender's pair, and behind it, when the time is over. Whoever sent them has
/// ended before.
fn what_stands_in_the_pair_at_the_end_is_told() -> Result<()> {
    const DATAGRAMS: u64 = 600;
    const BUFFER_BYTES: libc::c_int = 16 << 20;
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let address = rig.right_address().v4;
    for (workers, asked) in [("1", false), ("2", true)] {
        let mut wire = rig.wire(&["--rate", "1mbit", "--workers", workers])?;
        let receiver = rig.right.enter(|| UdpSocket::bind((address.as_str(), 7004)))??;
        receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
        setsockopt(receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER_BYTES)?;
        rig.left.enter(|| -> Result<()> {
            let sender = UdpSocket::bind(("0.0.0.0", 0))?;
            sender.set_nonblocking(true)?;
            setsockopt(sender.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &BUFFER_BYTES)?;
            (0..DATAGRAMS).try_for_each(|_| {
                sender.send_to(&[0; 1400], (address.as_str(), 7004)).map(drop).context("a full buffer")
            })
        })??;
        if asked {
            run(&mut rig.weir(&["down", wire.name()]), Duration::from_secs(20))?.success()?;
        } else {
            wire.signal(Signal::INT)?;
        }
        let done = wire.wait()?.success()?;
        let told: u64 = ["undelivered", "unsent"].iter().map(|what| told(&done.stdout, what)).sum();
        let arrived = (0..DATAGRAMS).take_while(|_| receiver.recv(&mut [0; 2000]).is_ok()).count() as u64;
        // And the kernels' own packets to neighbours.
        ensure!(
            (DATAGRAMS..DATAGRAMS + 20).contains(&(arrived + told)) && (60..400).contains(&arrived),
            "{arrived} of {DATAGRAMS} arrived, {workers} workers: {}",
            done.stdout
        );
    }
    Ok(())
}

/// The packets that a last line tells for a reason.
fn told(line: &str, reason: &str) -> u64 {
    let number = line.split(&format!(" {reason}")).next().filter(|before| *before != line);
    number.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The wire's interfaces have addresses of their own, so they carry traffic with no wire at all.
fn kill_under_load() -> Result<()> {
    carries_after_a_kill(&Rig::new(MANY_QUEUES, 1)?, 8)
}

/// The queue that the floods leave stopped is then the only way there is.
fn kill_under_load_with_one_queue_each() -> Result<()> {
    carries_after_a_kill(&Rig::new(1, 1)?, 2)
}

fn kill_under_load_on_plain_pairs() -> Result<()> {
    carries_after_a_kill(&Rig::plain()?, 8)
}

fn carries_after_a_kill(rig: &Rig, clients: usize) -> Result<()> {
    address(1, rig.left_end(), rig.a())?;
    address(2, rig.right_end(), rig.b())?;
    wait_until("both interfaces answer before the wire", Duration::from_secs(10), || {
        Ok(require_both_answer(rig).is_ok())
    })?;
    let before = Before::look(rig)?;
    let mut wire = rig.wire(&["--rate", "200mbit"])?;
    ensure!(require_both_answer(rig).is_err(), "the wire lets the middle answer: this test sees nothing");
    let far = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &far, clients, 30.0))?;
    wire.signal(Signal::KILL)?;
    let killed = weir_lab::clock::now();
    wait_until("both interfaces carry traffic again", Duration::from_secs(10), || {
        Ok(require_both_answer(rig).is_ok())
    })?;
    let elapsed_s = killed.elapsed().as_secs_f64();
    println!("    both interfaces answered {elapsed_s:.2} s after the kill");
    weir_tests::require_timing!(elapsed_s <= 1.0, "both interfaces answered {elapsed_s:.2} s after the kill");
    drop(flood);
    before.require_restored(rig)
}

fn require_both_answer(rig: &Rig) -> Result<()> {
    for (host, net) in [(&rig.left, 1), (&rig.right, 2)] {
        answers(host, &names(net, 2).v4)?;
    }
    Ok(())
}

fn answers(from: &Namespace, address: &str) -> Result<()> {
    let mut command = from.command("ping");
    command.args(["-n", "-c", "1", "-W", "0.3", address]);
    run(&mut command, Duration::from_secs(5))?.success()?;
    Ok(())
}

/// The qdiscs are on the wire's own end and on the sender's.
fn a_qdisc_of_the_users_comes_back() -> Result<()> {
    let rig = Rig::new(4, 1)?;
    for End { namespace, name } in [rig.left_end(), rig.a()] {
        namespace.tc(&format!("qdisc replace dev {name} root handle 7: pfifo limit 77"))?;
    }
    let before = Before::look(&rig)?;
    rig.wire(&["--rate", "200mbit"])?.stop()?;
    before.require_restored(&rig)
}

fn an_interface_vanishes() -> Result<()> {
    let rig = Rig::plain()?;
    let before = Before::look(&rig)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let far = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &far, 3, 20.0))?;
    rig.middle.ip("link del wb")?;
    let done = wire.wait()?;
    drop(flood);
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    ensure!(done.stderr.contains("wb"), "it does not name the interface: {}", done.stderr);
    let kept = |traces: &Traces| -> Traces {
        traces
            .iter()
            .filter(|(key, _)| key.starts_with("wa "))
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect()
    };
    require_same(&kept(&before.middle), &kept(&traces(&rig.middle)?))?;
    require_same(&before.left, &traces(&rig.left)?)
}

/// The interfaces have an XDP program already: the first wire's.
fn a_second_wire_on_the_same_interfaces_is_refused() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let with_one = traces(&rig.middle)?;
    let arguments = ["wire", "wa", "wb", "--rate", "10mbit", "--name", "second"];
    let done = run(&mut rig.weir(&arguments), Duration::from_secs(10))?;
    ensure!(matches!(done.status.code(), Some(1 | 2)), "it ended with {}", done.status);
    ensure!(done.stderr.contains("wa"), "it does not name the interface: {}", done.stderr);
    require_same(&with_one, &traces(&rig.middle)?)?;
    wait_until("the first wire still carries", Duration::from_secs(10), || {
        Ok(answers(&rig.left, &rig.right_address().v4).is_ok())
    })?;
    wire.stop()?;
    Ok(())
}
