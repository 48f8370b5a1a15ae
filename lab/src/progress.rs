//! The progress of a lab while it runs: a bar on a terminal, one line per step elsewhere, both on standard error.
//!
//! A lab is a number of steps of about equal length. Time left = time spent x (1 - done) / done.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::clock::now;

/// The display of a lab's progress.
pub trait Progress {
    /// `step` is under way; `done` (0 to 1) of the whole lab is over.
    fn show(&mut self, step: &str, done: f64);
    /// The lab is over; a bar clears itself away.
    fn finish(&mut self);
}

/// The bar or the lines, whichever suits standard error.
pub fn on_stderr() -> Box<dyn Progress> {
    let started = now();
    if std::io::stderr().is_terminal() {
        Box::new(Bar { started, drawn: None })
    } else {
        Box::new(Lines { started, last: String::new() })
    }
}

/// A progress that says nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn show(&mut self, _step: &str, _done: f64) {}
    fn finish(&mut self) {}
}

/// Turns "step 3, half over" into the share of a whole lab.
pub struct Steps<'a> {
    progress: &'a mut dyn Progress,
    total: usize,
    index: usize,
    name: String,
}

impl<'a> Steps<'a> {
    /// A lab of `total` steps.
    pub fn new(total: usize, progress: &'a mut dyn Progress) -> Steps<'a> {
        Steps { progress, total: total.max(1), index: 0, name: String::new() }
    }

    /// Step number `index` (from 0) begins.
    pub fn begin(&mut self, index: usize, name: &str) {
        self.index = index;
        self.name = name.to_string();
        self.within(0.0);
    }

    /// `part` (0 to 1) of the current step is over.
    pub fn within(&mut self, part: f64) {
        self.progress.show(&self.name, (self.index as f64 + part.clamp(0.0, 1.0)) / self.total as f64);
    }

    /// All steps are over.
    pub fn finish(&mut self) {
        self.progress.finish();
    }
}

struct Bar {
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress for Bar {
    fn show(&mut self, step: &str, done: f64) {
        if self.drawn.is_some_and(|at| at.elapsed() < Duration::from_millis(100)) {
            return;
        }
        self.drawn = Some(now());
        let line = bar_line(step, done, self.started.elapsed());
        // Losing a progress line is not worth ending a measurement for.
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}").and_then(|()| std::io::stderr().flush());
    }

    fn finish(&mut self) {
        let _ = write!(std::io::stderr(), "\r\x1b[2K").and_then(|()| std::io::stderr().flush());
    }
}

struct Lines {
    started: Instant,
    last: String,
}

impl Progress for Lines {
    fn show(&mut self, step: &str, done: f64) {
        if self.last != step {
            self.last = step.to_string();
            let left = left_text(done, self.started.elapsed());
            let _ = writeln!(std::io::stderr(), "{:3.0} %  {step}{left}", done * 100.0);
        }
    }

    fn finish(&mut self) {}
}

fn bar_line(step: &str, done: f64, spent: Duration) -> String {
    const CELLS: usize = 30;
    let full = (done.clamp(0.0, 1.0) * CELLS as f64).round() as usize;
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(CELLS - full));
    format!("{bar} {:3.0} %  {step}{}", done * 100.0, left_text(done, spent))
}

fn left_text(done: f64, spent: Duration) -> String {
    // Before that, the guess would be off by any factor.
    if done < 0.02 {
        return String::new();
    }
    let left_s = (spent.as_secs_f64() * (1.0 - done) / done).round() as u64;
    format!("  ({}:{:02} left)", left_s / 60, left_s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder(Vec<(String, f64)>);

    impl Progress for Recorder {
        fn show(&mut self, step: &str, done: f64) {
            self.0.push((step.to_string(), done));
        }
        fn finish(&mut self) {
            self.0.push(("end".to_string(), 1.0));
        }
    }

    #[test]
    fn steps_add_up_to_the_whole() {
        let mut recorder = Recorder::default();
        let mut steps = Steps::new(4, &mut recorder);
        steps.begin(1, "second");
        steps.within(0.5);
        steps.within(7.0);
        steps.finish();
        let shown: Vec<f64> = recorder.0.iter().map(|(_, done)| *done).collect();
        assert_eq!(shown, [0.25, 0.375, 0.5, 1.0]);
    }

    #[test]
    fn a_bar_tells_what_runs_and_how_long() {
        let line = bar_line("tbf, 2 clients", 0.25, Duration::from_secs(30));
        assert!(line.contains("25 %  tbf, 2 clients  (1:30 left)"), "{line}");
        assert_eq!(line.matches('█').count(), 8);
    }

    #[test]
    fn no_guess_is_made_at_the_start() {
        assert_eq!(left_text(0.0, Duration::from_secs(1)), "");
    }
}
