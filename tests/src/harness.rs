//! A test harness that can say *skipped*: tests that need root are not run without it, and are counted.
//!
//! A shared machine may be slow for some seconds. A test that only found a figure of time or speed short
//! (`require_timing!`) is therefore tried `TRIES` times, and says so each time; anything else, above all a lost or
//! reordered packet, fails at once. A figure that is short the last time too is a failure, unless the host meanwhile took more
//! than `STOLEN_MAX` of the time in which this machine had something to do (`steal` of proc_stat(5)): then it says nothing about
//! the program, is not judged, and the output says that.
//!
//! Its output is libtest's, with skipped tests as `ignored`, so that one reader sums up both. Tests run one after
//! another, because each loads every core; a word on the command line picks those whose name contains it.

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow};
use weir_lab::{bed, clock, interrupt};

/// One test.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Whether it makes network namespaces.
    pub needs_root: bool,
    /// The test. It fails by an error or by a panic.
    pub run: fn() -> Result<()>,
}

/// How often a test is tried that finds a figure short.
const TRIES: usize = 3;

/// What the host may take, of busy time, for a figure to be judged.
const STOLEN_MAX: f64 = 0.03;

/// A figure of time or speed that was not reached.
#[derive(Debug)]
pub struct Short(pub String);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Short {}

/// Like `ensure!`, for a figure that a slow machine can spoil.
#[macro_export]
macro_rules! require_timing {
    ($condition:expr, $($text:tt)+) => {
        let reached: bool = $condition;
        if !reached {
            return Err($crate::harness::Short(format!($($text)+)).into());
        }
    };
}

/// A test that needs root, named after its function.
#[macro_export]
macro_rules! privileged {
    ($function:ident) => {
        $crate::harness::Case { name: stringify!($function), needs_root: true, run: $function }
    };
}

/// A test that anybody can run, named after its function.
#[macro_export]
macro_rules! plain {
    ($function:ident) => {
        $crate::harness::Case { name: stringify!($function), needs_root: false, run: $function }
    };
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    filtered: usize,
}

/// Runs the tests of one file; the whole `main` of it.
pub fn main(cases: &[Case]) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    interrupt::install();
    let started = clock::now();
    let root = bed::is_privileged();
    if root && let Err(error) = bed::sweep() {
        println!("leftovers of an earlier run could not be removed: {error:#}");
    }
    let picks: Vec<&str> = words.iter().filter(|word| !word.starts_with('-')).map(String::as_str).collect();
    println!("\nrunning {} tests", cases.len());
    let tally = run_all(cases, &picks, root);
    let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        tally.passed,
        tally.failed,
        tally.skipped,
        tally.filtered,
        started.elapsed().as_secs_f64()
    );
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(cases: &[Case], picks: &[&str], root: bool) -> Tally {
    let mut tally = Tally::default();
    for case in cases {
        if !picks.is_empty() && !picks.iter().any(|pick| case.name.contains(pick)) {
            tally.filtered += 1;
        } else if case.needs_root && !root {
            println!("test {} ... skipped, it needs root", case.name);
            tally.skipped += 1;
        } else if let Err(error) = run_tries(case) {
            println!("test {} ... FAILED\n    {}", case.name, format!("{error:#}").replace('\n', "\n    "));
            tally.failed += 1;
        } else {
            println!("test {} ... ok", case.name);
            tally.passed += 1;
        }
    }
    tally
}

/// Again if only a figure was short.
fn run_tries(case: &Case) -> Result<()> {
    for _ in 1..TRIES {
        match run_one(case) {
            Err(error) if error.is::<Short>() => println!("    {}: {error:#}; tried again", case.name),
            result => return result,
        }
    }
    let before = Processors::now()?;
    match run_one(case) {
        Err(error) if error.is::<Short>() => {
            let stolen = Processors::now()?.stolen_since(&before);
            if stolen <= STOLEN_MAX {
                return Err(error);
            }
            println!(
                "    {}: {error:#}; not judged, the host took {:.0} % of the time",
                case.name,
                100.0 * stolen
            );
            Ok(())
        }
        result => result,
    }
}

/// What the processors have done since the machine started, in ticks.
struct Processors {
    busy: u64,
    stolen: u64,
}

impl Processors {
    fn now() -> Result<Processors> {
        let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Processors::read(&text).context("/proc/stat begins with the processors' times")
    }

    /// user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5).
    fn read(text: &str) -> Option<Processors> {
        let ticks =
            text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(|word| word.parse().ok());
        let ticks: Vec<u64> = ticks.take(8).collect::<Option<_>>()?;
        let [user, nice, system, _, _, irq, softirq, stolen] = ticks.try_into().ok()?;
        Some(Processors { busy: user + nice + system + irq + softirq + stolen, stolen })
    }

    /// Which part of the busy time since then the host took.
    fn stolen_since(&self, before: &Processors) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.busy - before.busy).max(1) as f64
    }
}

/// On a thread of its own, so that a panic is that test's and its values are dropped.
fn run_one(case: &Case) -> Result<()> {
    interrupt::check()?;
    let thread = thread::Builder::new().name(case.name.to_string()).spawn(case.run).context("no thread")?;
    thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked, see above")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn passes() -> Result<()> {
        Ok(())
    }

    fn fails() -> Result<()> {
        anyhow::bail!("no")
    }

    fn is_short() -> Result<()> {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        require_timing!(RUNS.fetch_add(1, Ordering::Relaxed) + 1 == TRIES, "slow");
        Ok(())
    }

    #[test]
    fn only_a_short_figure_is_tried_again() {
        assert_eq!(run_all(&[plain!(is_short)], &[], true).passed, 1);
    }

    #[test]
    fn what_the_host_takes_is_a_part_of_the_busy_time() {
        let read = |text| Processors::read(text).unwrap();
        let before = read("cpu  10 0 20 500 9 0 5 5 0 0\ncpu0 1 2 3");
        let after = read("cpu  40 0 40 900 9 5 15 40 7 0\n");
        assert!((after.stolen_since(&before) - 0.35).abs() < 1e-9);
        assert_eq!(before.stolen_since(&before), 0.0);
        assert!(Processors::read("cpu 1 2 3").is_none());
        assert!(Processors::now().is_ok());
    }

    fn panics() -> Result<()> {
        panic!("this panic is part of a test")
    }

    const CASES: [Case; 4] = [plain!(passes), plain!(fails), plain!(panics), privileged!(fails)];

    #[test]
    fn errors_and_panics_are_failures_and_what_needs_root_is_skipped_without() {
        let tally = run_all(&CASES, &[], false);
        assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 1, filtered: 0 });
    }

    #[test]
    fn what_needs_root_runs_with_it() {
        assert_eq!(run_all(&CASES, &[], true), Tally { passed: 1, failed: 3, skipped: 0, filtered: 0 });
    }

    #[test]
    fn a_word_picks_tests() {
        assert_eq!(run_all(&CASES, &["pass"], true), Tally { passed: 1, failed: 0, skipped: 0, filtered: 3 });
    }
}
