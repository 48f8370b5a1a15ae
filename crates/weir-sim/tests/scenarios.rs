//! Every text in `scenarios/`, with two seeds side by side: the checkers hold at every step and the expectations at the end.

use std::{fs, path::Path, thread};

use weir_sim::{machine::run, scenario::Scenario};

#[test]
fn every_scenario_comes_out_as_its_text_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let read = |path: &Path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let scenario = Scenario::parse(&fs::read_to_string(path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.expects.is_empty(), "{name} expects nothing");
        (name, scenario)
    };
    let scenarios: Vec<_> = paths.iter().map(|path| read(path)).collect();
    let failures: Vec<String> = thread::scope(|scope| {
        let spawn = |seed| {
            let scenarios = &scenarios;
            let failures = move |(name, scenario): &(String, _)| failures(name, scenario, seed);
            scope.spawn(move || scenarios.iter().flat_map(failures).collect::<Vec<_>>())
        };
        [1, 2].map(spawn).into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The unmet expectations, a line each.
fn failures(name: &str, scenario: &Scenario, seed: u64) -> Vec<String> {
    let report = match run(scenario, seed) {
        Ok(report) => report,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    println!("{name} seed {seed}: {report:?}");
    let reordered = (report.reordered > 0)
        .then(|| format!("{name}, seed {seed}: {} packets out of order", report.reordered));
    let missed = scenario.expects.iter().filter_map(|expect| {
        let value = report
            .value(&expect.name)
            .unwrap_or_else(|| panic!("{name}: a report has no value {:?}", expect.name));
        let missed = !expect.bound.holds(value);
        missed.then(|| format!("{name}, seed {seed}: {} is {value}, not {}", expect.name, expect.bound))
    });
    reordered.into_iter().chain(missed).collect()
}
