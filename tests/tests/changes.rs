//! Rates and classes are changed a thousand times while floods wait behind them: nothing is lost, nothing is reordered.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::run;
use weir_tests::classes::{File, two_classes};
use weir_tests::rig::{MANY_QUEUES, Rig, require_lossless};
use weir_tests::{at_length, harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[privileged!(changes_of_rates_and_classes)])
}

/// Flows move between classes, classes come and go, the kind of tree changes, and the link's rate with all of it.
fn changes_of_rates_and_classes() -> Result<()> {
    const RATES: [&str; 5] = ["200mbit", "50mbit", "120mbit", "400mbit", "80mbit"];
    // The number of changes of classes; as many are made of the rate.
    let (changes, seconds) = (at_length(150, 500), at_length(5, 12) as f64);
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let first = two_classes("150mbit", "50mbit");
    let files = [
        File::new(&first)?,
        File::new(&first.replace("\"a\"", "\"other\""))?,
        File::new(&two_classes("20mbit", "80mbit").replace("5001", "\"5002-5003\""))?,
        File::new(&format!(
            "shaper = \"cbq\"\n{}",
            first.replace("cburst = \"200kb\"\n", "").replace("ceil = \"200mbit\"\n", "")
        ))?,
        File::new("[[class]]\nname = \"a\"\nrate = \"100mbit\"\n")?,
    ];
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let (binary, name, address) = (weir_binary()?, wire.name().to_string(), rig.right_address().v4);
    let load = Load::new(&rig.left, &rig.right, &address, 4, seconds);
    let flood = Flood::start(&load)?;
    let change = |number: usize, option: &str, value: &str| -> Result<()> {
        let mut command = Command::new(&binary);
        let done = run(command.args(["set", &name, option, value]), PATIENCE)?;
        done.success().with_context(|| format!("change {number}"))?;
        weir_tests::require_timing!(
            !flood.remaining().is_zero(),
            "only {number} of {changes} changes in {seconds} s"
        );
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let rates = scope.spawn(|| -> Result<()> {
            (0..changes).zip(RATES.into_iter().cycle()).try_for_each(|(n, rate)| change(n, "--rate", rate))
        });
        let files = files.iter().cycle();
        (0..changes).zip(files).try_for_each(|(n, file)| change(n, "--classes", file.path()))?;
        rates.join().map_err(|_| anyhow!("the changes of rates panicked"))?
    })?;
    wire.check().context("after the changes")?;
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}
