//! A wire withstands every event at its processes, its interfaces and its machine: traffic flows again at once, no packet is missing
//! without account, and nothing is left behind.
//!
//! | variable | means |
//! |---|---|
//! | `WEIR_SEED` | the plan to be replayed; a run prints its own |
//! | `WEIR_CHAOS_SECONDS` | goes on for so long, deck after deck, in place of one deck |
//! | `WEIR_CHAOS_EVENTS` | these kinds alone, such as `kill-daemon,rename` |

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock;
use weir_tests::chaos::plan::{Kind, draw, kinds};
use weir_tests::chaos::{conductor, site};
use weir_tests::{harness, privileged, require_timing, weir_binary};

/// The seed of a run that is one deck long, so that it is the same each time.
const SEED: u64 = 1;
/// A deck takes less, but on a machine that others keep busy.
const LIMIT: Duration = Duration::from_secs(140);
const DECKS: usize = 1;
/// No event takes less.
const SHORTEST_EVENT_S: u64 = 1;

fn main() -> ExitCode {
    // Before any thread is started, as a mount namespace is a thread's.
    if weir_lab::bed::is_privileged()
        && let Err(error) = site::own_run()
    {
        println!("{error:#}");
        return ExitCode::FAILURE;
    }
    harness::main(&[privileged!(everything_that_can_be_done_to_a_wire)])
}

fn everything_that_can_be_done_to_a_wire() -> Result<()> {
    let kinds = variable("WEIR_CHAOS_EVENTS").map_or(Ok(Kind::ALL.to_vec()), |list| kinds(&list))?;
    let seconds = variable("WEIR_CHAOS_SECONDS").map(|text| text.parse::<u64>()).transpose();
    let seconds = seconds.context("WEIR_CHAOS_SECONDS is a number of seconds")?;
    let seed = match variable("WEIR_SEED") {
        Some(text) => text.parse().context("WEIR_SEED is a number")?,
        None if seconds.is_some() => clock::epoch_seconds() as u64,
        None => SEED,
    };
    let deck = draw(seed, &kinds, 1).len();
    let decks = seconds.map_or(DECKS, |seconds| (seconds / SHORTEST_EVENT_S) as usize / deck + 1);
    println!("    seed {seed}: WEIR_SEED={seed} replays it");
    let plan = draw(seed, &kinds, decks);
    let limit = seconds.map_or(LIMIT, Duration::from_secs);
    let outcome = conductor::conduct(&weir_binary()?, &plan, limit)?;
    println!(
        "    {} events, {} datagrams in calm, {} missing in events and accounted for, {} wires ended by themselves",
        outcome.events, outcome.calm, outcome.missing, outcome.endings
    );
    ensure!(outcome.faults.is_empty(), "seed {seed}:\n{}", outcome.faults.join("\n"));
    require_timing!(
        outcome.events >= deck.min(plan.len()),
        "{} of {deck} events in {limit:?}",
        outcome.events
    );
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
