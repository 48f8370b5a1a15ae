//! Two wires of one machine: started at once they have a core each, and on one core the busy one leaves the other its time.

use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::iperf::{Flood, Load};
use weir_lab::ping::Ping;
use weir_tests::rig::{self, Rig};
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_flood_through_one_wire_does_not_starve_another),
        privileged!(two_that_start_at_once_have_a_core_each),
    ])
}

/// Both workers are real-time threads of one priority. Small datagrams through a wire without a limit keep its worker busy.
fn a_flood_through_one_wire_does_not_starve_another() -> Result<()> {
    const PINGS: u64 = 20;
    let (busy, quiet) = (Rig::plain()?, Rig::plain()?);
    let (one, two) =
        on_the_first_core(|| -> Result<_> { Ok((busy.wire(&[])?, quiet.wire(&["--rate", "10mbit"])?)) })??;
    let address = busy.right_address().v4;
    let load = Load { payload_bytes: 200, ..Load::new(&busy.left, &busy.right, &address, 2, 6.0) };
    let flood = Flood::start(&load)?;
    let trips = Ping::start_series(&quiet.left, &quiet.right_address().v4, PINGS, 0.2)?.finish()?;
    let was_busy = !flood.remaining().is_zero();
    flood.finish(PATIENCE)?;
    trips.require_all()?;
    let (half_ms, most_ms) = (
        trips.percentile_ms(0.5).context("no ping came back")?,
        trips.percentile_ms(1.0).context("no ping came back")?,
    );
    println!("    median {half_ms:.1} ms, at most {most_ms:.1} ms beside the flood");
    weir_tests::require_timing!(was_busy, "the flood ended before the pings");
    weir_tests::require_timing!(
        most_ms < 100.0,
        "a ping took {most_ms:.0} ms beside a flood through another wire"
    );
    one.check()?;
    two.check()?;
    one.stop()?;
    two.stop()?;
    Ok(())
}

/// Each looks for the cores that workers of others have. The second must see the first's, although neither has one when both begin. Nobody
/// else may start workers meanwhile, so the case is alone.
fn two_that_start_at_once_have_a_core_each() -> Result<()> {
    const TRIES: usize = 10;
    let rigs = [Rig::plain()?, Rig::plain()?];
    let core_of = |rig: &Rig, all_are_up: &Barrier| {
        let wire = rig.wire(&[]);
        all_are_up.wait();
        let stat = wire.as_ref().map(rig::stat_of);
        all_are_up.wait();
        let stat = stat.map_err(|error| anyhow!("{error:#}"))??;
        wire?.stop()?;
        stat["wires"][0]["worker"]["cpu"].as_u64().with_context(|| format!("no core in {stat}"))
    };
    for at in 0..TRIES {
        let all_are_up = Barrier::new(rigs.len());
        let cores = std::thread::scope(|scope| {
            // A wire ends with the thread that started it.
            let starts = rigs.each_ref().map(|rig| scope.spawn(|| core_of(rig, &all_are_up)));
            let cores = starts.map(|start| start.join().map_err(|_| anyhow!("a start panicked"))?);
            cores.into_iter().collect::<Result<Vec<_>>>()
        })?;
        ensure!(cores[0] != cores[1], "start {at}: both workers are on core {}", cores[0]);
    }
    Ok(())
}

/// The threads and processes that `work` starts have the first core of this thread and no other.
fn on_the_first_core<T>(work: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: an all-zero set is a valid one, and each call gets a live set with its size, for the calling thread.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        ensure!(libc::sched_getaffinity(0, size, &raw mut all) == 0, "{}", std::io::Error::last_os_error());
        let first =
            (0..libc::CPU_SETSIZE as usize).find(|&core| libc::CPU_ISSET(core, &all)).context("no core")?;
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        ensure!(libc::sched_setaffinity(0, size, &raw const one) == 0, "{}", std::io::Error::last_os_error());
        let result = work();
        ensure!(libc::sched_setaffinity(0, size, &raw const all) == 0, "{}", std::io::Error::last_os_error());
        Ok(result)
    }
}
