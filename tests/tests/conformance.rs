//! The same limits and the same trees on the kernel's TBF and HTB and behind Weir, with the same real traffic: the rates of each class
//! agree within 2 %.
//!
//! Where the kernel's queues are shorter than what senders may have under way, as with the sixteen of `tenants`, it drops, and senders that
//! are never held take the processors from the others: then a class with a right to more may not even offer it. There the tree itself gives
//! the right rates, and ours are held to these: floors, and the rest in proportion to them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{self, End, Namespace};
use weir_lab::clock::Punctual;
use weir_lab::iperf::{Flood, Load};
use weir_lab::progress::Silent;
use weir_lab::qdisc::{self, Options, System, TOO_BUSY};
use weir_lab::report::{Report, Row};
use weir_tests::rig::{MANY_QUEUES, Rig, measure_rate};
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);
const WITHIN: f64 = 0.02;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_limit_is_what_it_is_with_the_kernels_tbf),
        privileged!(classes_get_what_they_get_of_the_kernels_htb),
    ])
}

fn require_near(what: &str, ours: f64, right: f64) -> Result<()> {
    weir_tests::require_timing!(
        (ours / right - 1.0).abs() <= WITHIN,
        "{what} is {ours:.4}, and not {right:.4}"
    );
    Ok(())
}

/// Fails unless the rates of each class under both systems agree, or ours are right where the kernel lost. Returns how many cases there
/// are.
fn require_agreement(
    report: &Report,
    [theirs, ours]: [System; 2],
    right: impl Fn(&str) -> Option<f64>,
) -> Result<usize> {
    let field = "floor_share";
    let rows = |system: System| report.rows.iter().filter(move |row| row.system == system.name());
    let value = |row: &Row, field: &str| -> Result<f64> {
        row.value(field).as_f64().with_context(|| format!("{} of {} has no {field}", row.system, row.case))
    };
    if let Some(row) = report.failures().next() {
        let why = row.error.as_deref().unwrap_or_default();
        weir_tests::require_timing!(!why.contains(TOO_BUSY), "{} of {}: {why}", row.system, row.case);
        anyhow::bail!("{} of {}: {why}", row.system, row.case);
    }
    for row in rows(ours) {
        for lost in ["lost_pct", "reordered"] {
            ensure!(value(row, lost)? == 0.0, "{lost} of {}: {row:?}", row.case);
        }
    }
    let mut count = 0;
    for (our, their) in rows(ours).zip(rows(theirs)) {
        ensure!(our.case == their.case, "{} stands beside {}", our.case, their.case);
        let (our_figure, their_figure) = (value(our, field)?, value(their, field)?);
        println!("    {}: {field} {our_figure:.4}, the kernel's {their_figure:.4}", our.case);
        let what = format!("{field} of {}", our.case);
        match right(&our.case) {
            Some(right) => require_near(&what, our_figure, right)?,
            None => require_near(&what, our_figure, their_figure)?,
        }
        count += 1;
    }
    Ok(count)
}

/// The burst covers the time by which a busy machine is late, or that time would be compared.
fn a_limit_is_what_it_is_with_the_kernels_tbf() -> Result<()> {
    const RATE: &str = "200mbit";
    const BURST: &str = "200kb";
    const SECONDS: f64 = 3.0;
    const PAIRS: usize = 4;
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let wire = rig.wire(&["--rate", RATE, "--burst", BURST])?;
    let address = rig.right_address().v4;
    let (left, right) = (Namespace::new("left")?, Namespace::new("right")?);
    let ends = [&left, &right].map(|namespace| End { namespace, name: "veth0" });
    bed::veth(0, ends[0], ends[1], 1)?;
    bed::address(0, ends[0], ends[1])?;
    left.tc(&format!("qdisc replace dev veth0 root tbf rate {RATE} burst {BURST} limit 256mb"))?;
    // Other programs here take from a rate and never add to it: the best of some turns is the rate of each.
    let (mut ours, mut theirs) = (0f64, 0f64);
    for _ in 0..PAIRS {
        ours = ours.max(rate(&Load::new(&rig.left, &rig.right, &address, 3, SECONDS))?);
        theirs = theirs.max(rate(&Load::new(&left, &right, &address, 3, SECONDS))?);
        if (ours / theirs - 1.0).abs() <= WITHIN / 2.0 {
            break;
        }
    }
    wire.stop()?;
    println!("    {:.2} Mbit/s, the kernel's {:.2}", ours / 1e6, theirs / 1e6);
    require_near("the rate", ours, theirs)
}

/// Bits of frames a second that arrive, none of them lost or out of order.
fn rate(load: &Load) -> Result<f64> {
    let _punctual = Punctual::new()?;
    let flood = Flood::start(load)?;
    let rate = measure_rate(&flood, load)?;
    let flows = flood.finish(PATIENCE)?;
    ensure!(flows.iter().all(|flow| flow.lost == 0), "lost: {flows:?}");
    Ok(rate)
}

fn classes_get_what_they_get_of_the_kernels_htb() -> Result<()> {
    let systems = [System::Htb, System::WeirHtb];
    let options = Options {
        clients: Vec::new(),
        seconds: 3.5,
        systems: systems.to_vec(),
        ..Options::new(weir_binary()?)
    };
    let report = qdisc::run(&options, &mut Silent)?;
    // 200 Mbit/s less 80, 60 and 20 of floors are 40; silver is at its ceiling, so gold has 32 and noisy 8 of them.
    let right = |case: &str| match case {
        "tenants" | "tenants/silver" => Some(1.0),
        "tenants/gold" | "tenants/noisy" => Some(1.4),
        _ => None,
    };
    // Two trees as a whole, three classes of the one and four of the other.
    let count = require_agreement(&report, systems, right)?;
    ensure!(count == 9, "{count} of 9 classes are compared");
    Ok(())
}
