//! Floors: the figures that a benchmark must reach at the least, so that a run of it can fail.
//!
//! A floor is of a ratio to a peer of the same run where there is one, and low enough to hold on a busy machine: it catches what has become
//! slow, and is no claim. `scripts/bench.sh` counts the lines.

use std::process::ExitCode;

/// The floors of one benchmark.
#[derive(Debug, Default)]
pub struct Floors {
    missed: usize,
}

#[allow(dead_code, reason = "a benchmark uses one of the two")]
impl Floors {
    /// `figure` must be `least` or more.
    pub fn at_least(&mut self, what: &str, figure: f64, least: f64) {
        self.note(what, figure, "at least", least, figure >= least);
    }

    /// `figure` must be `most` or less.
    pub fn at_most(&mut self, what: &str, figure: f64, most: f64) {
        self.note(what, figure, "at most", most, figure <= most);
    }

    fn note(&mut self, what: &str, figure: f64, side: &str, bound: f64, is_held: bool) {
        let verdict = if is_held { "held" } else { "MISSED" };
        println!("floor: {what}: {figure:.2}, {side} {bound:.2}: {verdict}");
        self.missed += usize::from(!is_held);
    }

    /// Failure if one was missed.
    pub fn finish(self) -> ExitCode {
        if self.missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
