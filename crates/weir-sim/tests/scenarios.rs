//! Every text in `scenarios/`, with two seeds: the checkers hold at every step and the expectations at the end.

use std::{fs, path::Path};

use weir_sim::{machine::run, scenario::Scenario};

#[test]
fn every_scenario_comes_out_as_its_text_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut failures = Vec::new();
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy();
        let text = fs::read_to_string(path).unwrap();
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.expects.is_empty(), "{name} expects nothing");
        for seed in [1, 2] {
            let report = match run(&scenario, seed) {
                Ok(report) => report,
                Err(error) => {
                    failures.push(format!("{name}: {error}"));
                    continue;
                }
            };
            println!("{name} seed {seed}: {report:?}");
            if report.reordered > 0 {
                failures.push(format!("{name}, seed {seed}: {} packets out of order", report.reordered));
            }
            for expect in &scenario.expects {
                let value = report
                    .value(&expect.name)
                    .unwrap_or_else(|| panic!("{name}: a report has no value {:?}", expect.name));
                if !expect.bound.holds(value) {
                    failures.push(format!(
                        "{name}, seed {seed}: {} is {value}, not {}",
                        expect.name, expect.bound
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
