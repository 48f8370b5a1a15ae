//! The lab in a few seconds, and the rows of given runs.

use super::dispatch::Results;
use super::drive::Outcome;
use super::*;
use crate::machine::cores;
use crate::progress::Silent;
use crate::report::Row;

/// The fields that scripts rely on.
const PROMISED: [&str; 5] = ["kpps", "dropped", "reordered", "p50_us", "p99_us"];

fn cases(names: &[&str]) -> Vec<Case> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn every_system_in_every_kind_of_case() {
    if cores().unwrap().len() < 2 {
        return;
    }
    let names = ["25", "400", "400-long", "400-rss", "400-one-core", "1-worker", "2-workers"];
    let options =
        Options { seconds: 0.05, cases: cases(&names), esp_cases: Vec::new(), ..Options::default() };
    let report = run(&options, &mut Silent).unwrap();
    let json = report.to_json();
    assert_eq!(json["lab"], "netisr");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), names.len() * System::ALL.len());
    for row in rows {
        PROMISED.iter().for_each(|field| assert!(row.get(field).is_some(), "no {field} in {row}"));
        assert!(row["kpps"].as_f64().unwrap() > 0.0, "{row}");
        // Lost or reordered packets fail the row under either rule, dropped ones without `-drop`.
        assert!(row.get("error").is_none(), "{row}");
        assert_eq!(row["reordered"], 0, "{row}");
        let drops = row["system"].as_str().unwrap().ends_with("-drop");
        if !drops {
            assert_eq!(row["dropped"], 0, "{row}");
        }
        if row["case"] == "400" {
            let figure = row[if drops { "dropped" } else { "held_pct" }].as_f64().unwrap();
            assert!(figure > 0.0, "four times as much as can be worked on goes somewhere: {row}");
        }
        assert_eq!(row["per_worker_pct"].is_number(), row["case"] == "2-workers", "{row}");
        assert_eq!(row["of_best_pct"].is_number(), row["system"] == "hybrid", "{row}");
    }
}

#[test]
fn every_system_of_ipsec_in_every_kind_of_case() {
    if cores().unwrap().len() < 2 {
        return;
    }
    let names = [
        "null-64",
        "null-64-long",
        "null-64-271",
        "null-64-priority",
        "null-64-maxthreads-4",
        "gcm-1420",
        "nested-1",
        "nested-16",
    ];
    let esp_cases = names.map(|name| EspCase::from_name(name).unwrap()).to_vec();
    let options = Options { seconds: 0.05, cases: Vec::new(), esp_cases, ..Options::default() };
    let report = run(&options, &mut Silent).unwrap();
    let json = report.to_json();
    let rows = json["rows"].as_array().unwrap();
    // Nested cases are there for the stack, of systems that hold alone.
    assert_eq!(rows.len(), names.len() * EspSystem::ALL.len() - 2 * 3);
    for row in rows {
        PROMISED.iter().for_each(|field| assert!(row.get(field).is_some(), "no {field} in {row}"));
        assert!(row["kpps"].as_f64().unwrap() > 0.0 && row["stack_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row.get("error").is_none(), "{row}");
        assert_eq!(row["reordered"], 0, "{row}");
        let is_compared = row["system"] != "esp-direct" && row["system"] != "esp-direct-drop";
        assert_eq!(row["diff_pct"].is_number(), is_compared || row["case"] == "null-64-long", "{row}");
        assert_eq!(row["diff_pct"].is_number(), row["diff_ci_pct"].is_number(), "{row}");
        let drops = row["system"].as_str().unwrap().ends_with("-drop");
        if !drops {
            assert_eq!(row["dropped"], 0, "{row}");
        } else if row["case"] == "null-64-271" {
            assert!(row["dropped"].as_u64().unwrap() > 0, "more than can be sealed goes somewhere: {row}");
        }
    }
    assert!(report.appendix.contains("Workstreams:") && report.appendix.contains("Stddev"));
}

#[test]
fn one_worker_alone_defers_to_itself() {
    if cores().unwrap().len() < 2 {
        return;
    }
    let options = Options {
        seconds: 0.02,
        cases: cases(&["50", "150"]),
        settings: vec![("maxthreads".into(), "1".into())],
        esp_cases: Vec::new(),
        ..Options::default()
    };
    let report = run(&options, &mut Silent).unwrap();
    assert_eq!(report.failures().count(), 0, "{:?}", report.rows);
}

fn outcome(handled: u64) -> Outcome {
    Outcome { offered: handled, handled, seconds: 1.0, ..Outcome::default() }
}

fn results(options: &Options, runs: Vec<Vec<Outcome>>) -> Vec<Row> {
    let results = Results { options, outcomes: runs };
    (0..results.outcomes.len()).map(|index| results.row(index)).collect()
}

#[test]
fn ratios_are_of_the_same_repeat_and_the_same_cores() {
    let systems = ["direct", "hybrid", "deferred"].map(|name| System::from_name(name).unwrap());
    let cases = cases(&["100", "150", "150-long", "150-rss"]);
    let options = Options { systems: systems.to_vec(), cases, ..Options::default() };
    // The machine is half as fast in the second of three repeats, and something disturbs the third.
    let runs = |kpps: u64, last: u64| [kpps, kpps / 2, last].map(outcome).to_vec();
    let rows = results(
        &options,
        vec![
            runs(1000, 10),
            runs(1900, 1900),
            runs(2000, 4000),
            runs(1000, 1000),
            runs(1000, 10),
            runs(500, 500),
            runs(1000, 10),
            runs(960, 10),
            runs(500, 500),
            runs(2000, 2000),
            runs(3000, 3000),
            runs(3000, 3000),
        ],
    );
    let figure = |index: usize, name| rows[index].value(name).as_f64();
    assert_eq!(figure(0, "of_best_pct"), None);
    assert_eq!(figure(1, "of_best_pct"), Some(95.0), "of deferred");
    assert_eq!(figure(4, "of_best_pct"), Some(100.0), "of direct");
    assert_eq!(figure(2, "of_peak_pct"), Some(100.0));
    assert_eq!(figure(5, "of_peak_pct"), Some(25.0));
    assert_eq!(figure(7, "of_short_pct"), Some(96.0));
    assert_eq!(figure(4, "of_short_pct"), None);
    assert_eq!(figure(11, "of_peak_pct"), Some(100.0), "other steering has a peak of its own");
}

#[test]
fn a_row_that_breaks_its_promise_fails() {
    let broken = |system: &str, run: Outcome| {
        let systems = vec![System::from_name(system).unwrap()];
        let options = Options { systems, cases: cases(&["150"]), ..Options::default() };
        results(&options, vec![vec![run]]).remove(0).error.is_some()
    };
    let dropped = || Outcome { dropped: 1, ..outcome(10) };
    assert!(!broken("deferred", outcome(10)));
    assert!(broken("deferred", dropped()) && !broken("deferred-drop", dropped()));
    assert!(broken("deferred-drop", Outcome { reordered: 1, ..outcome(10) }));
    assert!(broken("direct", Outcome { lost: 1, ..outcome(10) }));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let complaint = |options: Options| run(&options, &mut Silent).unwrap_err().to_string();
    assert!(complaint(Options { seconds: 0.0, ..Options::default() }).contains("0.01 to 60 seconds"));
    assert!(complaint(Options { cost_ns: 1, ..Options::default() }).contains("the work costs"));
    let settings = vec![("defaultqlimit".to_string(), "10240".to_string())];
    assert!(complaint(Options { settings, ..Options::default() }).contains("a queue limit of 10240"));
}
