//! A test harness with two more answers than passed and failed: *skipped*, where a test cannot be run here (no root, too few
//! processors), and *unjudged*, where it ran and says nothing about the program.
//!
//! A shared machine may be slow for some seconds. A test that only found a figure of time or speed short (`require_timing!`) is
//! therefore tried up to `TRIES` times; anything else, above all a lost or reordered packet, fails at once. A figure that is short each
//! time is a failure if the host was quiet in one of the tries: it took at most `STOLEN_MAX` of the busy time, so a clean run was there
//! and missed the figure. If it was quiet in none, the test is unjudged, which is counted and named, and never a pass. With
//! `CI=true` a file whose run as a whole was quiet may leave nothing unjudged.
//!
//! Its output is libtest's with the time of each test, skipped tests as `ignored`, and the unjudged in the last line. A word on the command
//! line picks the test of that name, or else those whose name contains it.
//!
//! Tests of one file run one after another. A test needs the machine alone, because it judges a figure, or looks at what all programs of
//! the machine share, unless its case says that it belongs to another [`Part`]: then tests of other files may run at the same time, each
//! file in namespaces of its own ([`isolation`]), as when a word picks such tests alone. `WEIR_TESTS` picks a part, or none, and `scripts/test.sh` runs one part after the other.
//! Beside others a figure says nothing, so none is excused there; one that is short, such as the packets that a server was too late for, is
//! tried again all the same.

pub mod isolation;

use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use weir_lab::stolen::{Processors, STOLEN_MAX};
use weir_lab::{bed, clock, interrupt};

use crate::{rounds, weir_binary};

/// One test.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// True if it makes network namespaces.
    pub needs_root: bool,
    /// The number of processors that it needs.
    pub processors_min: usize,
    /// The tests that may run at the same time.
    pub part: Part,
    /// True if it is left out where others of its kind are enough.
    pub is_long: bool,
    /// The test. It fails by an error or by a panic.
    pub run: fn() -> Result<()>,
}

impl Case {
    /// This test, which is skipped where there are fewer than two processors.
    pub const fn on_two_processors(self) -> Case {
        Case { processors_min: 2, ..self }
    }

    /// This test, one of several of a kind: `make verify`, which sets `WEIR_ROUNDS`, runs them all, and so does who picks it by a word; `make
    /// test` leaves this one out.
    pub const fn long(self) -> Case {
        Case { is_long: true, ..self }
    }

    /// This test, which bears any number of its like: it judges no figure of speed or time, floods nothing, and neither changes nor looks
    /// at what others on the machine share with it in spite of [`isolation`], such as BPF programs.
    pub const fn together(self) -> Case {
        Case { part: Part::Together, ..self }
    }

    /// This test, which floods, and bears one more that does: what it judges is loss, order and words, and no figure of speed or time.
    pub const fn flooding(self) -> Case {
        Case { part: Part::Flooding, ..self }
    }
}

/// A part of all tests: those that may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Quiet tests, several at a time.
    Together,
    /// Floods that judge no figure, two at a time.
    Flooding,
    /// One at a time.
    Alone,
}

impl Part {
    /// The part that `WEIR_TESTS` asks for; `None` for all of them.
    fn asked_for() -> Result<Option<Part>> {
        match std::env::var("WEIR_TESTS").unwrap_or_default().as_str() {
            "" => Ok(None),
            "together" => Ok(Some(Part::Together)),
            "flooding" => Ok(Some(Part::Flooding)),
            "alone" => Ok(Some(Part::Alone)),
            other => bail!("WEIR_TESTS is `{other}`: write together, flooding, alone, none, or nothing"),
        }
    }
}

/// The number of tries of a test that finds a figure short.
const TRIES: usize = 3;

/// A figure of time or speed that was not reached.
#[derive(Debug)]
pub struct Short(pub String);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Short {}

/// The error that some rows of a test were not judged; the others passed.
#[derive(Debug)]
pub struct NotJudged(String);

impl std::fmt::Display for NotJudged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotJudged {}

/// Runs the rows of a long test, each judged as a test is. A figure that is short does not end the others; anything else does.
pub fn judge_rows<R: std::fmt::Display>(
    rows: impl IntoIterator<Item = R>,
    mut run: impl FnMut(&R) -> Result<()>,
) -> Result<()> {
    let (mut passed, mut not_judged, mut short) = (0, Vec::new(), Vec::new());
    for row in rows {
        interrupt::check()?;
        match judge(&row.to_string(), || run(&row), Processors::now) {
            Outcome::Passed => passed += 1,
            Outcome::Unjudged(_) => not_judged.push(row.to_string()),
            Outcome::Failed(error) if error.is::<Short>() => short.push(format!("{row}: {error:#}")),
            Outcome::Failed(error) => return Err(error.context(row.to_string())),
        }
    }
    println!("    {passed} rows passed, {} unjudged, {} short", not_judged.len(), short.len());
    ensure!(short.is_empty(), "short while the host was quiet: {}", short.join("; "));
    if not_judged.is_empty() {
        return Ok(());
    }
    Err(NotJudged(format!("{passed} rows passed; unjudged: {}", not_judged.join("; "))).into())
}

/// Like `ensure!`, for a figure of time or speed that a slow machine can spoil. A count of faults is no such figure.
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
        $crate::harness::Case {
            name: stringify!($function),
            needs_root: true,
            processors_min: 1,
            part: $crate::harness::Part::Alone,
            is_long: false,
            run: $function,
        }
    };
}

/// A test that anybody can run, named after its function.
#[macro_export]
macro_rules! plain {
    ($function:ident) => {
        $crate::harness::Case {
            name: stringify!($function),
            needs_root: false,
            processors_min: 1,
            part: $crate::harness::Part::Alone,
            is_long: false,
            run: $function,
        }
    };
}

/// The rights and the processors that tests have here.
#[derive(Clone, Copy, Debug)]
struct Place {
    is_root: bool,
    processors: usize,
}

impl Place {
    fn here() -> Place {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Place { is_root: bed::is_privileged(), processors }
    }

    /// The thing that a test lacks here.
    fn lacks(self, case: &Case) -> Option<String> {
        if case.needs_root && !self.is_root {
            return Some("it needs root".into());
        }
        let few = self.processors < case.processors_min;
        few.then(|| format!("it needs {} processors", case.processors_min))
    }
}

/// The outcome of a test.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed(anyhow::Error),
    /// The test was short each time, and the host never quiet; with the last figure.
    Unjudged(anyhow::Error),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    filtered: usize,
    unjudged: Vec<&'static str>,
}

impl Tally {
    /// Returns whether nothing failed, and nothing is unjudged that had to be judged.
    fn is_ok(&self, must_judge: bool) -> bool {
        self.failed == 0 && (self.unjudged.is_empty() || !must_judge)
    }

    /// The last line.
    fn line(&self, is_ok: bool, seconds: f64) -> String {
        let mut unjudged = format!("{} unjudged", self.unjudged.len());
        if !self.unjudged.is_empty() {
            unjudged += &format!(" ({})", self.unjudged.join(", "));
        }
        format!(
            "test result: {}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; {unjudged}; finished in \
             {seconds:.2}s",
            if is_ok { "ok" } else { "FAILED" },
            self.passed,
            self.failed,
            self.skipped,
            self.filtered,
        )
    }
}

/// Runs the tests of one file; the whole `main` of it.
pub fn main(cases: &[Case]) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    if std::env::var("WEIR_TESTS").is_ok_and(|part| part == "none") {
        return ExitCode::SUCCESS;
    }
    let part = match Part::asked_for() {
        Ok(part) => part,
        Err(error) => {
            println!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    if !cases.iter().any(|case| is_asked_for(case, part)) {
        return ExitCode::SUCCESS;
    }
    let place = Place::here();
    let picks: Vec<&str> = words.iter().filter(|word| !word.starts_with('-')).map(String::as_str).collect();
    if place.is_root
        && all_bear_others(cases, part, &picks)
        && let Err(error) = isolation::enter()
    {
        println!("tests beside others need namespaces of their own: {error:#}");
        return ExitCode::FAILURE;
    }
    interrupt::install();
    let started = clock::now();
    if place.is_root
        && let Err(error) = bed::sweep()
    {
        println!("leftovers of an earlier run could not be removed: {error:#}");
    }
    println!("\nrunning {} tests", cases.len());
    let before = Processors::now();
    let tally = run_all(cases, part, &picks, place);
    if place.is_root
        && part.is_none_or(|part| part == Part::Alone)
        && let Err(error) = mend()
    {
        println!("the machine's settings may not be as before: {error:#}");
    }
    let is_quiet = match (before, Processors::now()) {
        (Ok(before), Ok(after)) => after.stolen_since(&before) <= STOLEN_MAX,
        // Where nobody says how much was stolen, nothing excuses a figure.
        _ => true,
    };
    let in_ci = std::env::var("CI").is_ok_and(|text| text == "true");
    let is_ok = tally.is_ok(in_ci && is_quiet);
    if tally.failed == 0 && !is_ok {
        println!("\nthe machine was quiet on the whole, so nothing may stay unjudged here: run it again");
    }
    println!("\n{}\n", tally.line(is_ok, started.elapsed().as_secs_f64()));
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Has the machine's settings put back as they were before limits that went with their hosts.
fn mend() -> Result<()> {
    // Straight `output`: after Ctrl-C every wait of the bench is refused.
    let done = Command::new(weir_binary()?).arg("mend").output()?;
    let told = |bytes| String::from_utf8_lossy(bytes).into_owned();
    ensure!(done.status.success(), "{}{}", told(&done.stdout), told(&done.stderr));
    Ok(())
}

fn is_asked_for(case: &Case, part: Option<Part>) -> bool {
    part.is_none_or(|part| case.part == part)
}

/// Returns whether a case is of the part that is asked for, and picked by a word if there are any; without, long ones run at length alone.
fn is_picked(case: &Case, cases: &[Case], part: Option<Part>, picks: &[&str]) -> bool {
    let names = |pick: &&str| match cases.iter().any(|case| case.name == *pick) {
        true => case.name == *pick,
        false => case.name.contains(pick),
    };
    is_asked_for(case, part)
        && match picks {
            [] => !case.is_long || rounds().is_some(),
            picks => picks.iter().any(names),
        }
}

/// Returns whether no test that is to run needs the machine alone: others may run beside it, and it beside them, whoever starts it.
fn all_bear_others(cases: &[Case], part: Option<Part>, picks: &[&str]) -> bool {
    let mut picked = cases.iter().filter(|case| is_picked(case, cases, part, picks)).peekable();
    picked.peek().is_some() && picked.all(|case| case.part != Part::Alone)
}

fn run_all(cases: &[Case], part: Option<Part>, picks: &[&str], place: Place) -> Tally {
    let mut tally = Tally::default();
    for case in cases {
        if !is_picked(case, cases, part, picks) {
            tally.filtered += 1;
            continue;
        }
        if let Some(lacking) = place.lacks(case) {
            println!("test {} ... skipped, {lacking}", case.name);
            tally.skipped += 1;
            continue;
        }
        let started = clock::now();
        let outcome = match judge(case.name, || run_one(case), Processors::now) {
            Outcome::Unjudged(error) if !matches!(part, None | Some(Part::Alone)) => Outcome::Failed(error),
            outcome => outcome,
        };
        let seconds = started.elapsed().as_secs_f64();
        let indented = |error: &anyhow::Error| format!("{error:#}").replace('\n', "\n    ");
        match outcome {
            Outcome::Passed => {
                println!("test {} ... ok ({seconds:.1} s)", case.name);
                tally.passed += 1;
            }
            Outcome::Unjudged(error) => {
                println!("test {} ... unjudged ({seconds:.1} s)\n    {}", case.name, indented(&error));
                tally.unjudged.push(case.name);
            }
            Outcome::Failed(error) => {
                println!("test {} ... FAILED ({seconds:.1} s)\n    {}", case.name, indented(&error));
                tally.failed += 1;
            }
        }
    }
    tally
}

/// Tries a test until its result is no short figure, `TRIES` times at most.
fn judge(
    name: &str,
    mut run: impl FnMut() -> Result<()>,
    mut look: impl FnMut() -> Result<Processors>,
) -> Outcome {
    let mut was_quiet = false;
    for attempt in 1.. {
        let before = look();
        let error = match run() {
            Ok(()) => return Outcome::Passed,
            Err(error) if error.is::<NotJudged>() => return Outcome::Unjudged(error),
            Err(error) if !error.is::<Short>() => return Outcome::Failed(error),
            Err(error) => error,
        };
        // Where nobody says how much was stolen, nothing excuses a figure.
        let stolen = before.and_then(|before| Ok(look()?.stolen_since(&before))).unwrap_or(0.0);
        was_quiet |= stolen <= STOLEN_MAX;
        println!("    {name}: {error:#}; the host took {:.1} % of the busy time", 100.0 * stolen);
        if attempt == TRIES {
            return if was_quiet { Outcome::Failed(error) } else { Outcome::Unjudged(error) };
        }
    }
    unreachable!("the last try decides");
}

/// Runs a test on a thread of its own, so that a panic is that test's and its values are dropped.
fn run_one(case: &Case) -> Result<()> {
    interrupt::check()?;
    let thread = thread::Builder::new().name(case.name.to_string()).spawn(case.run).context("no thread")?;
    thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked, see above")))
}

#[cfg(test)]
mod tests;
