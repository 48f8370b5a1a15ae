//! Two wires of one machine whose workers have one core between them: the busy one leaves the other its time.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::iperf::{Flood, Load};
use weir_lab::ping::Ping;
use weir_tests::rig::Rig;
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[privileged!(a_flood_through_one_wire_does_not_starve_another)])
}

/// Both workers are real-time threads of one priority. Small datagrams through a wire without a limit keep its worker busy.
fn a_flood_through_one_wire_does_not_starve_another() -> Result<()> {
    const PINGS: u64 = 30;
    let (busy, quiet) = (Rig::plain()?, Rig::plain()?);
    let (one, two) =
        on_the_first_core(|| -> Result<_> { Ok((busy.wire(&[])?, quiet.wire(&["--rate", "10mbit"])?)) })??;
    let address = busy.right_address().v4;
    let load = Load { payload_bytes: 200, ..Load::new(&busy.left, &busy.right, &address, 2, 9.0) };
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
