//! The rest of a worker with nothing to do: it spins while that is cheaper than sleeping, otherwise it parks.
//!
//! ```text
//! spin  if the next packet is expected sooner than a wake-up costs, for at most as long as one costs;
//!       or if the next deadline is nearer than that
//! park  otherwise, until the deadline or a kick
//! ```
//!
//! Spinning for as long as a wake-up costs is at most twice as dear as knowing the future (competitive spinning: Karlin,
//! Manasse, McGeoch, Owicki 1994). The expectation is the moving average of the gaps between bursts of work. A worker whose
//! places are all full expects nothing, and does not spin for packets.
//!
//! Owner: one worker. Limits: the cost of a wake-up is measured once, at start ([`wake_cost_ns`]).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use weir_port::sys;

use crate::clock::now_ns;

/// The weight of a new gap in the average is one in this many.
const GAP_WEIGHT: u64 = 8;
/// The number of wake-ups that are measured.
const ROUNDS: usize = 31;
/// The most that a wake-up counts as, in nanoseconds: where one takes longer, the threads waited for processors that others had.
const WAKE_COST_NS_MAX: u64 = 200_000;

/// The next step of a worker that has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    Spin,
    /// Sleep until this time, for ever if `None`, or until kicked.
    Park(Option<u64>),
}

/// A worker's memory of when it had work.
#[derive(Debug)]
pub struct Idle {
    wake_cost_ns: u64,
    worked_ns: u64,
    gap_ns: u64,
}

impl Idle {
    /// The memory of a worker on a machine where a wake-up costs this much.
    pub fn new(wake_cost_ns: u64, now_ns: u64) -> Idle {
        Idle { wake_cost_ns, worked_ns: now_ns, gap_ns: 2 * wake_cost_ns }
    }

    /// Notes that there was work.
    pub fn worked(&mut self, now_ns: u64) {
        // A longer gap says no more than this one, and one preemption would otherwise be remembered for many bursts.
        let gap_ns = (now_ns - self.worked_ns).min(2 * self.wake_cost_ns);
        self.gap_ns = self.gap_ns - self.gap_ns / GAP_WEIGHT + gap_ns / GAP_WEIGHT;
        self.worked_ns = now_ns;
    }

    /// The next step, there being no work; `expecting` says whether a packet may come at any time.
    pub fn rest(&self, now_ns: u64, deadline_ns: Option<u64>, expecting: bool) -> Rest {
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns.saturating_sub(now_ns) < self.wake_cost_ns) {
            return Rest::Spin;
        }
        if expecting && self.gap_ns < self.wake_cost_ns && now_ns - self.worked_ns < self.wake_cost_ns {
            return Rest::Spin;
        }
        Rest::Park(deadline_ns)
    }
}

/// The cost of waking a sleeping thread, one way, in nanoseconds: the median of some rounds. The threads are on two cores, if this thread may
/// use two: left to the scheduler they would be on one in some runs and not in others, where a wake-up costs a fifth.
pub fn wake_cost_ns() -> io::Result<u64> {
    let cores = sys::allowed_cores();
    let sit = |core: Option<usize>| core.map_or(Ok(()), sys::pin_thread);
    let seats = if let [one, two, ..] = cores[..] { [Some(one), Some(two)] } else { [None; 2] };
    let (asks, answers) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || sit(seats[1]).and_then(|()| answer(answers)));
        let asker = scope.spawn(move || sit(seats[0]).and_then(|()| round_trips_ns(asks)));
        let mut round_trips_ns = asker.join().expect("it does not panic")?;
        round_trips_ns.sort_unstable();
        Ok((round_trips_ns[ROUNDS / 2] / 2).min(WAKE_COST_NS_MAX))
    })
}

/// The time of each question and its answer, in nanoseconds.
fn round_trips_ns(mut asks: UnixStream) -> io::Result<[u64; ROUNDS]> {
    let mut rounds_ns = [0; ROUNDS];
    for round_ns in &mut rounds_ns {
        let start_ns = now_ns();
        asks.write_all(&[0])?;
        asks.read_exact(&mut [0])?;
        *round_ns = now_ns() - start_ns;
    }
    Ok(rounds_ns)
}

/// Answers until nobody asks any more.
fn answer(mut answers: UnixStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        answers.read_exact(&mut byte)?;
        answers.write_all(&byte)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_only_while_it_pays() {
        let mut idle = Idle::new(30_000, 0);
        assert_eq!(idle.rest(0, None, true), Rest::Park(None), "nothing has come yet");
        for time in 1..200 {
            idle.worked(time * 5_000);
        }
        let now_ns = 199 * 5_000;
        assert_eq!(idle.rest(now_ns + 1_000, None, true), Rest::Spin);
        assert_eq!(idle.rest(now_ns + 1_000, None, false), Rest::Park(None), "blocked: nothing can come");
        assert_eq!(idle.rest(now_ns + 30_000, None, true), Rest::Park(None), "as long as a wake-up costs");
        assert_eq!(idle.rest(now_ns, Some(now_ns + 10_000), false), Rest::Spin, "a near deadline");
        assert_eq!(idle.rest(now_ns, Some(now_ns + 90_000), false), Rest::Park(Some(now_ns + 90_000)));
        for time in 1..100 {
            idle.worked(now_ns + time * 1_000_000);
        }
        assert_eq!(idle.rest(now_ns + 99_000_001, None, true), Rest::Park(None), "packets come too seldom");
    }

    #[test]
    fn a_wake_up_costs_something() {
        assert!((100..100_000_000).contains(&wake_cost_ns().unwrap()));
    }
}
