//! `weir limit --off` that does not come to its end by itself: killed, interrupted, without its interface, and with another command behind it.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal};
use weir_tests::limits::{Between, Row};
use weir_tests::{harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(an_end_that_is_killed_leaves_an_open_limit).together(),
        privileged!(an_end_that_is_interrupted_limits_as_before).together(),
        privileged!(an_interface_that_vanishes_takes_its_limit_along).together(),
        privileged!(a_change_does_not_bring_a_removed_limit_back).together(),
    ])
}

fn line(done: &Finished, words: &[&str]) -> Result<()> {
    ensure!(done.status.code() == Some(1), "{}: {:?} {}", done.what, done.status, done.stderr);
    ensure!(done.stderr.lines().count() == 1, "{} says {}", done.what, done.stderr);
    for word in words {
        ensure!(done.stderr.contains(word), "{} says {}", done.what, done.stderr);
    }
    Ok(())
}

/// Packets of four programs, of which one goes on while another is late, that keep `--off` from finding a pause, until this is over.
fn sending<T>(row: &Row, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let to = row.right_address(Between::Bridge);
    let socket = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    socket.set_nonblocking(true)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // The datagram may be refused, and its interface may be gone.
                    let _ = socket.send_to(&[0; 100], (to.as_str(), 7003));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// `weir limit wa --off` in the middle, as soon as the limit is open. Where the machine stood still it may have found a pause.
fn opening(row: &Row) -> Result<Process> {
    let mut command = row.middle.command("env");
    command.arg("--default-signal").arg(weir_binary()?).args(["limit", "wa", "--off"]);
    let mut process = Process::spawn(&mut command)?;
    wait_until("the limit is open", PATIENCE, || {
        require_timing!(process.is_running()?, "it ended: {}{}", process.stdout(), process.stderr());
        Ok(row.limits("wa")?.first().is_some_and(|limit| limit["stage"] == "opening"))
    })?;
    Ok(process)
}

fn an_end_that_is_killed_leaves_an_open_limit() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    sending(&row, || {
        let mut process = opening(&row)?;
        process.signal(Signal::KILL)?;
        process.wait(PATIENCE).map(drop)
    })?;
    let limits = row.limits("wa")?;
    let limit = limits.first().context("no limit")?;
    ensure!(limit["stage"] == "opening" && limit["rate_bits_per_s"].is_null(), "{limit}");
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("is open, to be removed") && !shown.contains("10mbit"), "{shown}");
    let checked = row.weir("stat wa --check")?;
    ensure!(checked.status.code() == Some(1) && checked.stderr.contains("is open"), "{}", checked.stderr);
    row.weir("limit wa --off")?.success()?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("noqueue"), "{qdisc}");
    Ok(())
}

/// The limit is open when it is heard.
fn an_end_that_is_interrupted_limits_as_before() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit --burst 30kb")?.success()?;
    let done = sending(&row, || {
        let mut process = opening(&row)?;
        process.signal(Signal::INT)?;
        process.wait(PATIENCE)
    })?;
    // The look and the signal take a moment, in which it may have come to its end.
    require_timing!(done.stderr.contains("it was interrupted"), "it had ended: {}", done.stderr);
    line(&done, &["it was interrupted; veth0 in network namespace", "is limited as it was before"])?;
    row.weir("stat wa --check")?.success()?;
    let limit = row.lossless_limit("wa")?;
    ensure!(limit["rate_bits_per_s"] == 10_000_000 && limit["burst_bytes"] == 30_720, "{limit}");
    row.weir("limit wa --off")?.success().map(drop)
}

fn an_interface_that_vanishes_takes_its_limit_along() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let done = sending(&row, || {
        let process = opening(&row)?;
        row.middle.ip("link del wa")?;
        process.wait(PATIENCE)
    })?;
    line(&done, &["veth0 in network namespace", "vanished", "nothing is left to remove"])?;
    ensure!(!done.stderr.contains("No such device"), "{}", done.stderr);
    Ok(())
}

/// It is asked for while the limit is being removed, and waits for that.
fn a_change_does_not_bring_a_removed_limit_back() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let (off, set) = sending(&row, || {
        let off = opening(&row)?;
        let mut command = row.middle.command(weir_binary()?);
        let mut set = Process::spawn(command.args(["set", "wa", "--rate", "5mbit"]))?;
        wait_until("the change waits", PATIENCE, || {
            ensure!(set.is_running()?, "it ended: {}{}", set.stdout(), set.stderr());
            Ok(set.stderr().contains("waiting for"))
        })?;
        Ok((off, set))
    })?;
    off.wait(PATIENCE)?.success()?;
    let done = set.wait(PATIENCE)?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(!qdisc.contains("htb"), "the limit is back: {}{}", done.stdout, done.stderr);
    ensure!(done.status.code() == Some(1), "{:?} {}", done.status, done.stdout);
    ensure!(
        done.stderr.contains("limit wa at") && done.stderr.contains("is gone meanwhile"),
        "{}",
        done.stderr
    );
    Ok(())
}
