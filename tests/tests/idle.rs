//! A wire with nothing to do costs nothing, and wakes at once.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::clock::{let_pass, now};
use weir_lab::machine::process_seconds;
use weir_lab::ping::Ping;
use weir_tests::harness;
use weir_tests::privileged;
use weir_tests::rig::Rig;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(idle_costs_under_a_hundredth_of_a_core),
        privileged!(the_first_packet_after_idle),
    ])
}

/// Its threads wake seldom, and little is done then. What a wake-up costs differs by machine: an echo over the loopback, in the same seconds,
/// says it here. Where it takes up to 0.33 ms, the bound is that of the promise; the number of wake-ups is bounded everywhere.
fn idle_costs_under_a_hundredth_of_a_core() -> Result<()> {
    const SECONDS: u64 = 4;
    const WAKEUPS_PER_SECOND_MAX: f64 = 20.0;
    /// 1.3 to 1.7 % for each millisecond of the echo were measured.
    const PERCENT_PER_ECHO_MS: f64 = 3.0;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    // The wire has carried something, so it has been awake.
    let trips = Ping::start_series(&rig.left, &rig.right_address().v4, 5, 0.05)?.finish()?;
    trips.require_all()?;
    let_pass(Duration::from_secs(1), |_| ())?;
    let (before_s, wakeups_before, started) = (process_seconds(wire.id())?, wakeups(wire.id())?, now());
    let echo_ms = median_echo_ms(SECONDS)?;
    let rest = Duration::from_secs(SECONDS).saturating_sub(started.elapsed());
    let_pass(rest, |_| ())?;
    let (used_s, wakeups) = (process_seconds(wire.id())? - before_s, wakeups(wire.id())? - wakeups_before);
    let seconds = started.elapsed().as_secs_f64();
    let percent = 100.0 * used_s / seconds;
    println!(
        "    {percent:.2} % of a core while idle, {wakeups} wake-ups, {echo_ms:.3} ms of an echo over the loopback"
    );
    ensure!(
        wakeups as f64 <= WAKEUPS_PER_SECOND_MAX * seconds,
        "{wakeups} wake-ups in {seconds:.1} s of idling"
    );
    weir_tests::require_timing!(
        percent < (PERCENT_PER_ECHO_MS * echo_ms).clamp(1.0, 5.0),
        "{percent:.2} % of a core while idle, {echo_ms:.3} ms of an echo over the loopback"
    );
    wire.stop()?;
    Ok(())
}

/// The times that the threads of a process have woken after a wait.
fn wakeups(process: u32) -> Result<u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))?;
    threads
        .map(|thread| {
            let status = std::fs::read_to_string(thread?.path().join("status"))?;
            let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            Ok(waits.context("no voluntary_ctxt_switches")?.trim().parse::<u64>()?)
        })
        .sum()
}

/// Its round trip wakes three threads. An echo over the loopback, in the same seconds, wakes two, and says what that costs here: where it
/// takes 0.05 ms at most, the bound is that of the promise.
fn the_first_packet_after_idle() -> Result<()> {
    const PINGS: u64 = 5;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let series = Ping::start_series(&rig.left, &rig.right_address().v4, PINGS, 1.0)?;
    let echo_ms = median_echo_ms(PINGS)?;
    let trips = series.finish()?;
    trips.require_all()?;
    let median_ms = trips.percentile_ms(0.5).context("no answer")?;
    println!("    median round trip {median_ms:.3} ms, of an echo over the loopback {echo_ms:.3} ms");
    weir_tests::require_timing!(
        median_ms < (4.0 * echo_ms).max(0.2),
        "the median round trip after a second of silence is {median_ms} ms, {echo_ms:.3} ms of an echo over the loopback"
    );
    wire.stop()?;
    Ok(())
}

/// The median round trip of so many datagrams to another thread and back, each after 0.9 seconds of silence.
fn median_echo_ms(count: u64) -> Result<f64> {
    let [echo, client] = [(); 2].map(|()| UdpSocket::bind(("127.0.0.1", 0)));
    let (echo, client) = (echo?, client?);
    client.connect(echo.local_addr()?)?;
    for socket in [&echo, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    }
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..count {
            let (_, from) = echo.recv_from(&mut [0; 64])?;
            echo.send_to(&[0; 64], from)?;
        }
        Ok(())
    });
    let mut trips_ms = Vec::new();
    for _ in 0..count {
        let_pass(Duration::from_millis(900), |_| ())?;
        let sent = now();
        client.send(&[0; 64])?;
        client.recv(&mut [0; 64])?;
        trips_ms.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    server.join().map_err(|_| anyhow!("the echo panicked"))??;
    trips_ms.sort_by(f64::total_cmp);
    Ok(trips_ms[trips_ms.len() / 2])
}
