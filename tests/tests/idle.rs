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

fn idle_costs_under_a_hundredth_of_a_core() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    // The wire has carried something, so it has been awake.
    let trips = Ping::start_series(&rig.left, &rig.right_address().v4, 5, 0.05)?.finish()?;
    ensure!(trips.sorted_ms.len() == 5, "{} of 5 pings answered", trips.sorted_ms.len());
    let_pass(Duration::from_secs(1), |_| ())?;
    let (before_s, started) = (process_seconds(wire.id())?, now());
    let_pass(Duration::from_secs(6), |_| ())?;
    let used_s = process_seconds(wire.id())? - before_s;
    let share = used_s / started.elapsed().as_secs_f64();
    weir_tests::require_timing!(share < 0.01, "{:.2} % of a core while idle", share * 100.0);
    wire.stop()?;
    Ok(())
}

/// Its round trip wakes three threads. An echo over the loopback, in the same seconds, wakes two, and says what that costs here: where it is
/// quick, the bound is that of the promise.
fn the_first_packet_after_idle() -> Result<()> {
    const PINGS: u64 = 9;
    const QUICK_ECHO_MS: f64 = 0.1;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let series = Ping::start_series(&rig.left, &rig.right_address().v4, PINGS, 1.0)?;
    let echo_ms = median_echo_ms(PINGS)?;
    let trips = series.finish()?;
    ensure!(trips.sorted_ms.len() as u64 == PINGS, "{} of {PINGS} pings answered", trips.sorted_ms.len());
    let median_ms = trips.percentile_ms(0.5).context("no answer")?;
    println!("    median round trip {median_ms:.3} ms, of an echo over the loopback {echo_ms:.3} ms");
    weir_tests::require_timing!(
        median_ms < if echo_ms <= QUICK_ECHO_MS { 0.2 } else { 4.0 * echo_ms },
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
