//! The same limits and the same trees on the kernel's TBF and HTB and behind Weir, with the same real traffic: what each
//! class gets agrees within 2 %.
//!
//! The kernel loses datagrams where its queues are shorter than what senders may have under way; the rates agree all the
//! same.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use weir_lab::progress::Silent;
use weir_lab::qdisc::{self, Options, System};
use weir_lab::report::{Report, Row};
use weir_tests::{harness, privileged, weir_binary};

const WITHIN: f64 = 0.02;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_limit_is_what_it_is_with_the_kernels_tbf),
        privileged!(classes_get_what_they_get_of_the_kernels_htb),
    ])
}

fn lab(systems: [System; 2], seconds: f64) -> Result<Report> {
    let options =
        Options { clients: vec![3], seconds, systems: systems.to_vec(), ..Options::new(weir_binary()?) };
    qdisc::run(&options, &mut Silent)
}

/// Fails unless the figure of both systems, of every case in which ours has it, agrees; how many do.
fn require_agreement(report: &Report, [theirs, ours]: [System; 2], field: &str) -> Result<usize> {
    let rows = |system: System| report.rows.iter().filter(move |row| row.system == system.name());
    let value = |row: &Row| row.value(field).as_f64();
    if let Some(row) = report.failures().next() {
        anyhow::bail!("{} of {}: {}", row.system, row.case, row.error.as_deref().unwrap_or_default());
    }
    let mut count = 0;
    for our_row in rows(ours) {
        for lost in ["lost_pct", "reordered"] {
            ensure!(our_row.value(lost).as_f64() == Some(0.0), "{lost} of {}: {our_row:?}", our_row.case);
        }
        let Some(our) = value(our_row) else { continue };
        let case = &our_row.case;
        let their = rows(theirs).find(|row| row.case == *case).and_then(value);
        let their = their.with_context(|| format!("{} has no {field} of {case}", theirs.name()))?;
        println!("    {case}: {field} {our:.4}, the kernel's {their:.4}");
        weir_tests::require_timing!(
            (our / their - 1.0).abs() <= WITHIN,
            "{field} of {case} is {our:.4} with {}, {their:.4} with {}",
            ours.name(),
            theirs.name()
        );
        count += 1;
    }
    Ok(count)
}

fn a_limit_is_what_it_is_with_the_kernels_tbf() -> Result<()> {
    let systems = [System::TbfLarge, System::Weir];
    let report = lab(systems, 4.0)?;
    ensure!(require_agreement(&report, systems, "rate_share")? == 1, "one case is compared");
    Ok(())
}

fn classes_get_what_they_get_of_the_kernels_htb() -> Result<()> {
    let systems = [System::Htb, System::WeirHtb];
    let report = lab(systems, 4.0)?;
    // Two trees as a whole, three classes of the one and four of the other.
    ensure!(require_agreement(&report, systems, "floor_share")? == 9, "every class is compared");
    Ok(())
}
