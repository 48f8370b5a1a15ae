//! Runs of two threads that take turns, so that a drift of the machine falls on all alike: A B C, C B A, A B C, and so on.

use anyhow::{Result, ensure};

use crate::machine::cores;

/// Refuses to run each system for `seconds`, cut into `repeats`, if that would say nothing or never end.
pub(crate) fn check(seconds: f64, repeats: usize) -> Result<()> {
    ensure!(
        (0.01..=60.0).contains(&seconds),
        "a system runs for 0.01 to 60 seconds in each case, not {seconds}"
    );
    ensure!((1..=100).contains(&repeats), "1 to 100 repeats, not {repeats}");
    Ok(())
}

/// Two cores that this thread may use.
pub(crate) fn two_cores() -> Result<[usize; 2]> {
    let cores = cores()?;
    ensure!(cores.len() >= 2, "this lab needs two cores, one for each thread; there is {}", cores.len());
    Ok([cores[0], cores[1]])
}

/// The run of `runs` that comes next, `repeats` times over.
pub(crate) fn order(repeats: usize, runs: usize) -> impl Iterator<Item = usize> {
    (0..repeats * runs).map(move |turn| {
        let (repeat, place) = (turn / runs, turn % runs);
        if repeat % 2 == 0 { place } else { runs - 1 - place }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_repeat_runs_backwards() {
        assert_eq!(order(3, 3).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        assert_eq!(order(2, 1).count(), 2);
        assert_eq!(order(7, 0).count(), 0);
    }

    #[test]
    fn a_run_that_says_nothing_or_never_ends_is_refused() {
        assert!(check(0.01, 1).is_ok() && check(60.0, 100).is_ok());
        assert!(check(0.0, 1).is_err() && check(f64::NAN, 1).is_err() && check(61.0, 1).is_err());
        assert!(check(1.0, 0).is_err() && check(1.0, 101).is_err());
    }
}
