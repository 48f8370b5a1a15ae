//! Tests of the harness: its tries, its judgements, its counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const HERE: Place = Place { is_root: true, processors: 2 };

fn passes() -> Result<()> {
    Ok(())
}

fn fails() -> Result<()> {
    anyhow::bail!("no")
}

fn panics() -> Result<()> {
    panic!("this panic is part of a test")
}

fn is_short_but_the_last_time() -> Result<()> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    require_timing!(RUNS.fetch_add(1, Ordering::Relaxed) + 1 == TRIES, "slow");
    Ok(())
}

static RUNS_OF_SHORT: AtomicUsize = AtomicUsize::new(0);

fn is_short_each_time() -> Result<()> {
    RUNS_OF_SHORT.fetch_add(1, Ordering::Relaxed);
    require_timing!(false, "slow");
    Ok(())
}

/// The outcome of a test that is short each time, if the host takes such parts (percent of the busy time) of its tries.
fn short_each_time(stolen: [u64; TRIES]) -> (Outcome, usize) {
    let mut looks = Vec::new();
    let (mut busy, mut taken) = (0, 0);
    for percent in stolen {
        looks.push(Processors::of(busy, taken));
        (busy, taken) = (busy + 100, taken + percent);
        looks.push(Processors::of(busy, taken));
        // Time that is stolen between two tries is no test's.
        (busy, taken) = (busy + 100, taken + 50);
    }
    let (mut looks, mut runs) = (looks.into_iter(), 0);
    let run = || {
        runs += 1;
        Err(Short("slow".into()).into())
    };
    (judge("short", run, || looks.next().context("one look too many")), runs)
}

#[test]
fn only_a_short_figure_is_tried_again() {
    assert_eq!(run_all(&[plain!(is_short_but_the_last_time)], None, &[], HERE).passed, 1);
    let mut runs = 0;
    let outcome = judge(
        "fails",
        || {
            runs += 1;
            fails()
        },
        Processors::now,
    );
    assert!(matches!(outcome, Outcome::Failed(_)) && runs == 1, "{outcome:?} after {runs}");
}

#[test]
fn a_figure_that_a_clean_try_missed_is_a_failure_whichever_try_it_was() {
    for stolen in [[0, 0, 0], [3, 40, 40], [40, 3, 40], [40, 40, 3]] {
        let (outcome, runs) = short_each_time(stolen);
        assert!(
            matches!(outcome, Outcome::Failed(_)) && runs == TRIES,
            "{stolen:?}: {outcome:?} after {runs}"
        );
    }
}

#[test]
fn a_figure_without_a_clean_try_is_unjudged() {
    let (outcome, runs) = short_each_time([4, 40, 4]);
    assert!(matches!(outcome, Outcome::Unjudged(_)) && runs == TRIES, "{outcome:?} after {runs}");
}

#[test]
fn where_nobody_says_what_was_stolen_a_short_figure_is_a_failure() {
    let outcome = judge("short", || Err(Short("slow".into()).into()), || Err(anyhow!("no /proc")));
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

#[test]
fn a_short_row_does_not_end_the_others_and_a_wrong_one_does() {
    let mut seen = Vec::new();
    let wrong = judge_rows([1, 2, 3], |row| {
        seen.push(*row);
        if *row == 2 { Err(anyhow!("lost")) } else { Ok(()) }
    });
    assert_eq!((format!("{:#}", wrong.unwrap_err()), seen), ("2: lost".into(), vec![1, 2]));
    // A machine that says how much was stolen may leave it unjudged, any other makes it a failure; the third row has its turn.
    let mut last = 0;
    let short = judge_rows([1, 2, 3], |row| {
        last = *row;
        if *row == 2 { Err(Short("slow".into()).into()) } else { Ok(()) }
    });
    assert!(short.is_err() && last == 3);
    assert!(judge_rows([1, 2, 3], |_| Ok(())).is_ok());
}

#[test]
fn rows_that_stay_unjudged_make_a_test_unjudged_at_once() {
    let outcome = judge("rows", || Err(NotJudged("1 of 3".into()).into()), || Ok(Processors::of(100, 0)));
    assert!(matches!(outcome, Outcome::Unjudged(_)), "{outcome:?}");
}

#[test]
fn the_unjudged_are_counted_and_named_in_the_last_line_and_red_where_they_must_be_judged() {
    let tally = Tally { passed: 3, unjudged: vec!["one", "two"], ..Tally::default() };
    assert!(tally.is_ok(false) && !tally.is_ok(true));
    let line = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; 2 unjudged (one, two); \
                finished in 1.00s";
    assert_eq!(tally.line(true, 1.0), line);
    let clean = Tally { passed: 3, ..Tally::default() };
    assert!(clean.is_ok(true));
    assert!(clean.line(true, 1.0).contains("; 0 unjudged; "));
    assert!(!Tally { failed: 1, ..Tally::default() }.is_ok(false));
}

const CASES: [Case; 4] = [plain!(passes), plain!(fails), plain!(panics), privileged!(fails)];

#[test]
fn errors_and_panics_are_failures_and_what_needs_root_is_skipped_without() {
    let tally = run_all(&CASES, None, &[], Place { is_root: false, ..HERE });
    assert_eq!(tally, Tally { passed: 1, failed: 2, skipped: 1, ..Tally::default() });
}

#[test]
fn what_needs_root_runs_with_it() {
    assert_eq!(run_all(&CASES, None, &[], HERE), Tally { passed: 1, failed: 3, ..Tally::default() });
}

#[test]
fn what_needs_two_processors_is_skipped_on_one() {
    let cases = [plain!(fails).on_two_processors(), plain!(passes)];
    let tally = run_all(&cases, None, &[], Place { processors: 1, ..HERE });
    assert_eq!(tally, Tally { passed: 1, skipped: 1, ..Tally::default() });
    assert_eq!(run_all(&cases, None, &[], HERE).failed, 1);
}

#[test]
fn a_word_picks_tests() {
    assert_eq!(run_all(&CASES, None, &["pass"], HERE), Tally { passed: 1, filtered: 3, ..Tally::default() });
    let cases = [plain!(passes), Case { name: "passes_too", ..plain!(passes) }];
    assert_eq!(run_all(&cases, None, &["pass"], HERE).passed, 2);
    assert_eq!(run_all(&cases, None, &["passes"], HERE).passed, 1, "a whole name is that test's alone");
}

#[test]
fn a_long_test_runs_at_length_or_by_its_name() {
    let cases = [plain!(passes).long(), plain!(fails)];
    assert_eq!(is_picked(&cases[0], &cases, None, &[]), rounds().is_some());
    assert!(is_picked(&cases[0], &cases, None, &["passes"]));
    assert!(!is_picked(&cases[0], &cases, None, &["fails"]));
}

#[test]
fn each_part_has_the_tests_that_the_other_leaves_out_and_excuses_none_beside_others() {
    let cases = [plain!(passes).together(), plain!(is_short_each_time).together(), plain!(passes)];
    let together = run_all(&cases, Some(Part::Together), &[], HERE);
    assert_eq!(together, Tally { passed: 1, failed: 1, filtered: 1, ..Tally::default() });
    assert_eq!(RUNS_OF_SHORT.load(Ordering::Relaxed), TRIES);
    let alone = run_all(&cases, Some(Part::Alone), &[], HERE);
    assert_eq!(alone, Tally { passed: 1, filtered: 2, ..Tally::default() });
    let flooding = run_all(&[plain!(passes).flooding()], Some(Part::Flooding), &[], HERE);
    assert_eq!(flooding.passed, 1);
}

#[test]
fn tests_that_bear_others_are_isolated_however_they_are_picked() {
    let cases = [plain!(passes).together(), plain!(fails)];
    assert!(all_bear_others(&cases, None, &["passes"]));
    assert!(all_bear_others(&cases, Some(Part::Together), &[]));
    for (part, picks) in [(None, &[][..]), (None, &["fails"]), (None, &["neither"]), (Some(Part::Alone), &[])]
    {
        assert!(!all_bear_others(&cases, part, picks), "{part:?} {picks:?}");
    }
}
