//! A wire with nothing to do costs nothing, and wakes at once.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
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

fn the_first_packet_after_idle() -> Result<()> {
    const PINGS: u64 = 9;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let trips = Ping::start_series(&rig.left, &rig.right_address().v4, PINGS, 1.0)?.finish()?;
    ensure!(trips.sorted_ms.len() as u64 == PINGS, "{} of {PINGS} pings answered", trips.sorted_ms.len());
    let median_ms = trips.percentile_ms(0.5).context("no answer")?;
    weir_tests::require_timing!(
        median_ms < 0.2,
        "the median round trip after a second of silence is {median_ms} ms"
    );
    wire.stop()?;
    Ok(())
}
