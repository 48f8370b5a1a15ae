//! However a sink or a generator ends, or its interface does, the pair carries traffic afterwards and no packet is in nobody's books.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal, run};
use weir_tests::guardian;
use weir_tests::harness;
use weir_tests::kernel::{require_same, traces};
use weir_tests::pair::{LIMIT, Pair, json_of};
use weir_tests::{privileged, weir_binary};

fn main() -> ExitCode {
    harness::main(&[
        privileged!(an_interrupted_sink_lets_its_sender_go_on).flooding(),
        privileged!(a_killed_sink_lets_its_sender_go_on).flooding(),
        privileged!(a_killed_sink_under_gro_lets_its_sender_go_on).flooding(),
        privileged!(a_killed_generator_leaves_the_way_back_open).flooding(),
        privileged!(the_next_sink_starts_a_queue_that_was_left_stopped).flooding(),
        privileged!(a_generator_starts_a_queue_that_was_left_stopped).flooding(),
        privileged!(a_pair_that_vanishes_ends_both_with_their_books_in_order).flooding(),
        privileged!(a_sink_waits_while_its_interface_is_down).flooding(),
        privileged!(a_generator_waits_while_its_interface_is_down).flooding(),
        privileged!(a_generator_says_what_the_other_end_refuses).together(),
    ])
}

const A_MOMENT: Duration = Duration::from_secs(20);

/// Stops the sink in its tracks and waits until the ring is full, so that the sender's queue is stopped when the sink ends.
fn fill_the_ring(pair: &Pair, sink: &mut Process) -> Result<()> {
    /// Looks that find nothing new.
    const STILL: u32 = 10;
    // Before the sink, because a guardian kills a process that is stopped.
    pair.right.sh(&format!("kill -STOP {}", guardian(sink.id())?))?;
    sink.signal(Signal::STOP)?;
    let (mut last, mut still) = (pair.sent()?, 0);
    wait_until("the ring is full", A_MOMENT, || {
        let now = pair.sent()?;
        still = if now == last { still + 1 } else { 0 };
        last = now;
        Ok(still == STILL)
    })
}

fn require_progress(pair: &Pair) -> Result<()> {
    let before = pair.sent()?;
    wait_until("the sender goes on", A_MOMENT, || Ok(pair.sent()? > before + 1000))
}

/// A sink ends by `signal` with its ring full; its sender, and everybody after it, get through.
fn ends_with_a_full_ring(pair: &Pair, signal: Signal) -> Result<()> {
    pair.require_answer().context("before the sink")?;
    let before = (traces(&pair.left)?, traces(&pair.right)?);
    let mut sink = pair.sink(&[])?;
    let mut generator = pair.generator(&["--flows", "200"])?;
    fill_the_ring(pair, &mut sink)?;
    let restoring = guardian(sink.id())?;
    sink.signal(signal)?;
    sink.signal(Signal::CONT)?;
    pair.right.sh(&format!("kill -CONT {restoring}"))?;
    let ended = sink.wait(LIMIT)?;
    if signal == Signal::INT {
        let received = json_of(&ended.success()?.stdout)?;
        ensure!(received["missing"] == 0 && received["balances"] == true, "{received}");
    }
    require_progress(pair)?;
    generator.signal(Signal::INT)?;
    let sent = json_of(&generator.wait(LIMIT)?.success()?.stdout)?;
    ensure!(sent["held"] == 0 && sent["balances"] == true, "{sent}");
    pair.require_answer().context("after the sink")?;
    require_same(&before.0, &traces(&pair.left)?)?;
    require_same(&before.1, &traces(&pair.right)?)
}

fn an_interrupted_sink_lets_its_sender_go_on() -> Result<()> {
    ends_with_a_full_ring(&Pair::with_addresses(1)?, Signal::INT)
}

fn a_killed_sink_lets_its_sender_go_on() -> Result<()> {
    ends_with_a_full_ring(&Pair::with_addresses(1)?, Signal::KILL)
}

/// With GRO on, the NAPI instances outlive the program, and so do the settings that the sink made.
fn a_killed_sink_under_gro_lets_its_sender_go_on() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    pair.right.sh("ethtool -K veth1 gro on")?;
    ends_with_a_full_ring(&pair, Signal::KILL)
}

/// A generator owns the queues of its end too.
fn a_killed_generator_leaves_the_way_back_open() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    let before = (traces(&pair.left)?, traces(&pair.right)?);
    let mut generator = pair.generator(&[])?;
    generator.signal(Signal::KILL)?;
    generator.wait(LIMIT)?;
    wait_until("the pair carries", A_MOMENT, || pair.is_answered())?;
    wait_until("everything is as it was", A_MOMENT, || {
        Ok(require_same(&before.0, &traces(&pair.left)?).is_ok())
    })?;
    require_same(&before.1, &traces(&pair.right)?)
}

/// Leaves the queue of a sender stopped: the sink is killed, and before it the one that would put things back. A sender
/// that the host kept from sending looks like one whose ring is full; then the queue is not stopped, and it is done again.
fn leave_stopped(pair: &Pair) -> Result<()> {
    const TRIES: u32 = 5;
    for _ in 0..TRIES {
        let mut sink = pair.sink(&[])?;
        let mut generator = pair.generator(&[])?;
        fill_the_ring(pair, &mut sink)?;
        let restoring = guardian(generator.id())?;
        pair.right.sh(&format!("kill -KILL {}", guardian(sink.id())?))?;
        sink.signal(Signal::KILL)?;
        sink.wait(LIMIT)?;
        generator.signal(Signal::KILL)?;
        generator.wait(LIMIT)?;
        // Nothing to read, or nothing there: the process ended, reaped or not.
        let cmdline = format!("/proc/{restoring}/cmdline");
        wait_until("the generator's guardian is done", A_MOMENT, || {
            Ok(std::fs::read(&cmdline).map_or(true, |text| text.is_empty()))
        })?;
        // One answer may be late.
        if !pair.is_answered()? && !pair.is_answered()? && !pair.is_answered()? {
            return Ok(());
        }
    }
    bail!("the queue is not stopped: this test sees nothing")
}

fn the_next_sink_starts_a_queue_that_was_left_stopped() -> Result<()> {
    const PACKETS: u64 = 10_000;
    let pair = Pair::with_addresses(1)?;
    leave_stopped(&pair)?;
    let sink = pair.sink(&["--count", &PACKETS.to_string()])?;
    pair.generate(&[], PACKETS)?;
    let received = json_of(&sink.wait(LIMIT)?.success()?.stdout)?;
    ensure!(received["numbered"] == PACKETS && received["missing"] == 0, "{received}");
    pair.require_answer()
}

fn a_generator_starts_a_queue_that_was_left_stopped() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    leave_stopped(&pair)?;
    let mut generator = pair.generator(&[])?;
    generator.signal(Signal::INT)?;
    let done = generator.wait(LIMIT)?.success()?;
    ensure!(done.stderr.contains("veth1"), "it does not say what it did: {}", done.stderr);
    pair.require_answer()
}

/// accepted = delivered + dropped for a reason, and nothing is left.
fn require_sent_books(sent: &Value) -> Result<()> {
    let dropped = sent["dropped"].as_object().context("reasons")?;
    let dropped: u64 = dropped.values().filter_map(Value::as_u64).sum();
    let delivered = sent["delivered"].as_u64().context("a count")?;
    ensure!(sent["sent"] == delivered + dropped && sent["held"] == 0 && sent["balances"] == true, "{sent}");
    Ok(())
}

fn a_pair_that_vanishes_ends_both_with_their_books_in_order() -> Result<()> {
    let pair = Pair::new(1)?;
    let mut sink = pair.sink(&[])?;
    let generator = pair.generator(&[])?;
    // The sink's ring is full, and so is the transmit ring of the generator: packets there are lost with the interface.
    fill_the_ring(&pair, &mut sink)?;
    pair.left.ip("link del veth0")?;
    // A sink lets its guardian go on at the end.
    sink.signal(Signal::CONT)?;
    let (sink, generator) = (sink.wait(LIMIT)?, generator.wait(LIMIT)?);
    for (done, name) in [(&sink, "veth1"), (&generator, "veth0")] {
        ensure!(done.status.code() == Some(1), "`{}` ended with {}", done.what, done.status);
        ensure!(
            done.stderr.contains(&format!("interface {name} vanished")),
            "{}: {}",
            done.what,
            done.stderr
        );
    }
    let received = json_of(&sink.stdout)?;
    ensure!(received["balances"] == true && received["missing"] == 0, "{received}");
    let sent = json_of(&generator.stdout)?;
    ensure!(sent["dropped"]["port-gone"].as_u64().is_some_and(|packets| packets > 0), "{sent}");
    require_sent_books(&sent)
}

/// Packets in the ring are lost with it; all that come afterwards come to the sink again. In the last round the senders' end goes down too,
/// and comes up last.
fn a_sink_waits_while_its_interface_is_down() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let pair = Pair::with_addresses(2)?;
    let mut sink = pair.sink(&["--workers", "1"])?;
    for round in 1..=3 {
        let is_last = round == 3;
        if is_last {
            pair.left.ip("link set veth0 down")?;
        }
        pair.right.ip("link set veth1 down")?;
        wait_until("the sink says so", A_MOMENT, || {
            Ok(sink.stderr().matches("veth1 is down").count() == round)
        })?;
        pair.right.ip("link set veth1 up")?;
        if is_last {
            let said = || Ok(sink.stderr().ends_with("waiting until that is up again\n"));
            wait_until("the sink says that its interface is up alone", A_MOMENT, said)?;
            pair.left.ip("link set veth0 up")?;
        }
        wait_until("the sink goes on", A_MOMENT, || {
            Ok(sink.stderr().matches("veth1 is up").count() == round)
        })?;
        // Said before it owns the queues again, so the first packets may go to the kernel.
        pair.generate(&["--rate", "20kpps"], PACKETS)?;
    }
    sink.signal(Signal::INT)?;
    let received = json_of(&sink.wait(LIMIT)?.stdout)?;
    let numbered = received["numbered"].as_u64().context("a count")?;
    ensure!(numbered > PACKETS && received["balances"] == true && received["kernel_lost"] == 0, "{received}");
    pair.require_answer()
}

/// A generator is held, and goes on; its own end goes down, and then the other one.
fn a_generator_waits_while_its_interface_is_down() -> Result<()> {
    let pair = Pair::with_addresses(1)?;
    let mut sink = pair.sink(&[])?;
    let mut generator = pair.generator(&[])?;
    for (end, said) in [(pair.left_end(), "veth0 is down"), (pair.right_end(), "veth0 has no carrier")] {
        end.namespace.ip(&format!("link set {} down", end.name))?;
        wait_until("the generator says so", A_MOMENT, || Ok(generator.stderr().contains(said)))?;
        let before = pair.sent()?;
        end.namespace.ip(&format!("link set {} up", end.name))?;
        wait_until("the generator goes on", A_MOMENT, || Ok(pair.sent()? > before + 1000))?;
    }
    generator.signal(Signal::INT)?;
    require_sent_books(&json_of(&generator.wait(LIMIT)?.success()?.stdout)?)?;
    sink.signal(Signal::INT)?;
    let received = json_of(&sink.wait(LIMIT)?.stdout)?;
    ensure!(received["balances"] == true && received["kernel_lost"] == 0, "{received}");
    pair.require_answer()
}

/// The other end's MTU is below the packets' length.
fn a_generator_says_what_the_other_end_refuses() -> Result<()> {
    let pair = Pair::new(1)?;
    pair.right.ip("link set veth1 mtu 1000")?;
    let mut generator = pair.left.command(weir_binary()?);
    let done = run(generator.args(["gen", "veth0", "--size", "1514", "--count", "100"]), LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stdout);
    ensure!(done.stderr.contains("refused 100 packets for good"), "{}", done.stderr);
    Ok(())
}
