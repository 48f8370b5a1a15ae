//! `weir lab qdisc` measures loss rightly: it sees the loss of a system that drops, and none where nothing drops. `weir lab epair` writes
//! its measurements; its figures are tested beside it. The tests' own judgement of loss sees it too.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::names;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load, overflowed_datagrams};
use weir_lab::process::run;
use weir_lab::progress::Silent;
use weir_lab::qdisc::{self, Options, System};
use weir_lab::report::{Report, Row};
use weir_tests::harness::{self, Short};
use weir_tests::pair::Pair;
use weir_tests::rig::require_lossless;
use weir_tests::xdp::Xdp;
use weir_tests::{plain, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_stock_kernel_loses_what_its_limit_cannot_hold),
        privileged!(a_system_that_cannot_run_fails_its_row_and_no_other).flooding(),
        privileged!(the_command_writes_json_and_html).flooding(),
        plain!(options_that_make_no_sense).together(),
        privileged!(what_overflowed_before_a_flood_excuses_none_of_its_losses).flooding(),
        privileged!(the_bed_command_writes_json_and_html).flooding(),
        plain!(the_epair_command_writes_json_and_html).together(),
        plain!(the_epair_command_refuses_what_is_not_its_own).together(),
        plain!(a_feeder_faster_than_the_work_is_held_or_loses).together(),
        plain!(packets_are_sealed_now_or_later_and_none_is_lost).together(),
        plain!(settings_of_netisr_that_cannot_be).together(),
        plain!(settings_of_qdisc_that_cannot_be).together(),
        plain!(two_inputs_and_one_device).together(),
    ])
}

fn options(systems: &[System], clients: &[usize]) -> Options {
    Options {
        clients: clients.to_vec(),
        seconds: 2.0,
        systems: systems.to_vec(),
        ..Options::new(PathBuf::from("/no/such/weir"))
    }
}

fn row<'a>(report: &'a Report, system: &str) -> Result<&'a Row> {
    let row =
        report.rows.iter().find(|row| row.system == system).with_context(|| format!("no row of {system}"))?;
    ensure!(row.error.is_none(), "{system} failed: {}", row.error.as_deref().unwrap_or_default());
    Ok(row)
}

fn figure(row: &Row, name: &str) -> Result<f64> {
    row.value(name).as_f64().with_context(|| format!("{} has no {name}", row.system))
}

fn a_stock_kernel_loses_what_its_limit_cannot_hold() -> Result<()> {
    let report = qdisc::run(&options(&[System::Tbf, System::TbfLarge], &[2]), &mut Silent)?;
    let (tbf, large) = (row(&report, "tbf")?, row(&report, "tbf-large")?);
    let lost = figure(tbf, "lost_pct")?;
    ensure!(lost > 30.0, "the published limit lost {lost} %: this bench does not see loss");
    ensure!(figure(tbf, "seed_lost_pct")? == 74.7, "the published figure is missing");
    let lost = figure(large, "lost_pct")?;
    require_timing!(lost < 1.0, "a limit that cannot fill lost {lost} %: this bench loses datagrams itself");
    for row in [tbf, large] {
        let share = figure(row, "rate_share")?;
        require_timing!((0.9..=1.02).contains(&share), "{} let {share} of the rate through", row.system);
        ensure!(figure(row, "ping_p50_ms")? > 0.5, "{} pings past a queue", row.system);
        ensure!(figure(row, "cpu_s_per_gbit")? > 0.05, "{} used no CPU", row.system);
        ensure!(row.value("empty_wakes").as_f64().is_none(), "{} cannot know of empty wakes", row.system);
    }
    Ok(())
}

fn a_system_that_cannot_run_fails_its_row_and_no_other() -> Result<()> {
    let report = qdisc::run(&options(&[System::Weir, System::TbfLarge], &[1]), &mut Silent)?;
    row(&report, "tbf-large")?;
    let failures: Vec<&Row> = report.failures().collect();
    ensure!(failures.len() == 1 && failures[0].system == "weir", "{} rows failed", failures.len());
    ensure!(report.to_json()["rows"][0]["error"].is_string(), "the failure is not in the JSON");
    Ok(())
}

/// The output of a lab, and its files.
struct Written {
    table: String,
    json: Value,
    html: String,
}

/// Runs the command with these arguments and reads its files.
fn lab(arguments: &[&str]) -> Result<Written> {
    let folder = std::env::temp_dir();
    let stem = format!("weir-test-lab-{}-{}", arguments[0], std::process::id());
    let (json, html) = (folder.join(format!("{stem}.json")), folder.join(format!("{stem}.html")));
    let mut command = Command::new(weir_binary()?);
    command.arg("lab").args(arguments).arg("--json").arg(&json).arg("--html").arg(&html);
    let done = run(&mut command, Duration::from_secs(120));
    let written = (std::fs::read_to_string(&json), std::fs::read_to_string(&html));
    for path in [&json, &html] {
        // The file may not be there, which is told below.
        let _ = std::fs::remove_file(path);
    }
    let done = done?;
    let json: Value = serde_json::from_str(&written.0.with_context(|| done.said().to_string())?)?;
    // A bound that a busy machine misses is no failure of the command.
    let mut bounds = json["bounds"].as_array().into_iter().flatten();
    let table =
        if bounds.any(|bound| bound["verdict"] == "MISSED") { done.stdout } else { done.success()?.stdout };
    ensure!(json["lab"] == arguments[0], "the JSON is not of this lab");
    Ok(Written { table, json, html: written.1.context("no HTML file")? })
}

fn the_command_writes_json_and_html() -> Result<()> {
    let written = lab(&["qdisc", "--seconds", "2", "--clients", "2", "--systems", "tbf-large,weir"])?;
    ensure!(written.table.contains("tbf-large"), "no table on standard output: {}", written.table);
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    let weir = rows.iter().find(|row| row["system"] == "weir").context("the JSON has no row of weir")?;
    ensure!(weir["case"] == "2", "the case is not the number of clients: {}", weir["case"]);
    ensure!(weir["lost_pct"] == 0.0 && weir["reordered"] == 0, "weir lost or reordered: {weir}");
    ensure!(written.html.contains("<svg"), "the page has no plot");
    Ok(())
}

fn the_epair_command_writes_json_and_html() -> Result<()> {
    let written = lab(&["epair", "--seconds", "0.1", "--systems", "two-ring,weir"])?;
    ensure!(written.table.contains("two-ring published"), "no published figures: {}", written.table);
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    ensure!(
        rows.len() == 2 * 7 - 1,
        "{} rows of two systems in seven cases, one of them Weir's alone",
        rows.len()
    );
    for row in rows.iter().filter(|row| row["system"] == "weir") {
        ensure!(row["lost"] == 0 && row["reordered"] == 0, "weir lost or reordered: {row}");
        ensure!(row["wait_hist"].is_array(), "no histogram: {row}");
    }
    ensure!(written.html.contains("class=\"published\""), "the page does not show the published histogram");
    Ok(())
}

/// The bed of Weir alone; `bed` has it beside the kernel.
fn the_bed_command_writes_json_and_html() -> Result<()> {
    let written = lab(&["bed", "--seconds", "1", "--rounds", "1", "--systems", "weir"])?;
    ensure!(written.table.contains("p99.9: "), "no bound on standard output: {}", written.table);
    ensure!(written.html.contains("<svg"), "the page has no plot");
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    ensure!(rows.len() == 5, "{} rows of one system in five cases", rows.len());
    for row in rows {
        ensure!(row.get("error").is_none(), "{row}");
        let figure = match row["case"].as_str() {
            Some("tcp") => "mbit_per_s",
            Some("packets") => "kpps",
            _ => "connections",
        };
        ensure!(row[figure].as_f64() > Some(0.0), "{row}");
    }
    ensure!(written.json["bounds"][0]["at_most"] == 10.0, "{}", written.json["bounds"]);
    Ok(())
}

fn the_epair_command_refuses_what_is_not_its_own() -> Result<()> {
    for (arguments, word) in [
        (["--systems", "tbf"], "two-ring"),
        (["--clients", "2"], "--clients"),
        (["--seconds", "0"], "0.01 to 3600 seconds"),
    ] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.args(["lab", "epair"]).args(arguments), Duration::from_secs(10))?;
        ensure!(!done.status.success(), "{arguments:?} was accepted");
        ensure!(done.stderr.contains(word), "{arguments:?}: {}", done.stderr);
    }
    Ok(())
}

/// The load is four times the packets that can be worked on, whatever else the machine does.
fn a_feeder_faster_than_the_work_is_held_or_loses() -> Result<()> {
    let written = lab(&["netisr", "--seconds", "0.1", "--cases", "150,400,400-long,400-one-core"])?;
    ensure!(written.table.contains("deferred-drop"), "no table on standard output: {}", written.table);
    ensure!(written.html.contains("<svg"), "the page has no plot");
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    ensure!(rows.len() == 4 * 6, "{} rows of six systems in four cases", rows.len());
    for row in rows {
        ensure!(row["reordered"] == 0 && row.get("error").is_none(), "lost or reordered: {row}");
        ensure!(row["kpps"].as_f64() > Some(0.0) && row["p99_us"].as_f64() > Some(0.0), "{row}");
        let drops = row["system"].as_str().is_some_and(|system| system.ends_with("-drop"));
        if !drops {
            ensure!(row["dropped"] == 0, "dropped, though its feeder can be held: {row}");
        }
        if row["case"] != "150" {
            let figure = if drops { "dropped" } else { "held_pct" };
            ensure!(row[figure].as_f64() > Some(0.0), "where is what cannot be worked on: {row}");
        }
    }
    Ok(())
}

/// The tables of IPsec of review D9721, at 2.71 times the packets that can be sealed, and its stack.
fn packets_are_sealed_now_or_later_and_none_is_lost() -> Result<()> {
    let (systems, cases) = ("esp-direct,esp-deferred,esp-deferred-drop", "null-64-271,nested-1,nested-16");
    let written = lab(&["netisr", "--seconds", "0.1", "--systems", systems, "--cases", cases])?;
    ensure!(written.table.contains("Stddev") && written.table.contains("QDrops"), "{}", written.table);
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    ensure!(rows.len() == 3 + 2 * 2, "{} rows", rows.len());
    for row in rows {
        ensure!(row["reordered"] == 0 && row.get("error").is_none(), "lost, reordered, or too deep: {row}");
        ensure!(row["stack_bytes"].as_u64() > Some(0) && row["kpps"].as_f64() > Some(0.0), "{row}");
        let drops = row["system"] == "esp-deferred-drop";
        ensure!((row["dropped"] != 0) == drops, "dropped, or not, against its rule: {row}");
        ensure!(row["diff_ci_pct"].is_number() == (row["system"] == "esp-deferred"), "compared: {row}");
    }
    let stack = |case: &str| {
        let of_case = rows.iter().filter(|row| row["case"] == case);
        of_case.map(|row| row["stack_bytes"].as_u64()).collect::<Vec<_>>()
    };
    ensure!(stack("nested-16") == stack("nested-1"), "{:?} {:?}", stack("nested-16"), stack("nested-1"));
    Ok(())
}

fn two_inputs_and_one_device() -> Result<()> {
    let written = lab(&["ifq", "--seconds", "0.2"])?;
    ensure!(written.table.contains("spin-dispatch"), "no table on standard output: {}", written.table);
    ensure!(written.html.contains("<svg"), "the page has no plot");
    let rows = written.json["rows"].as_array().context("the JSON has no rows")?;
    ensure!(rows.len() == 3 * 3, "{} rows of three systems in three cases", rows.len());
    for row in rows {
        ensure!(row["kpps"].as_f64() > Some(0.0) && row.get("error").is_none(), "{row}");
        if row["system"] == "weir" {
            ensure!(row["lost"] == 0 && row["reordered"] == 0, "weir lost or reordered: {row}");
            ensure!(row["tryfail"].is_number() && row["kicks_saved"].is_number(), "{row}");
        }
    }
    Ok(())
}

fn settings_of_qdisc_that_cannot_be() -> Result<()> {
    for arguments in [["--clients", "257"], ["--seconds", "0.5"]] {
        let done = run(
            Command::new(weir_binary()?).args(["lab", "qdisc", "--systems", "weir"]).args(arguments),
            Duration::from_secs(10),
        )?;
        ensure!(done.status.code() == Some(2), "{arguments:?} ended with {}: {}", done.status, done.stderr);
    }
    Ok(())
}

fn settings_of_netisr_that_cannot_be() -> Result<()> {
    let table: [(&[&str], &str); 6] = [
        (&["--set", "proto.ip.policy=fast"], "--set proto.ip.policy: unknown policy `fast`"),
        (&["--set", "dispatch=later"], "--set dispatch: unknown mode `later`"),
        (&["--set", "proto.gre.qlimit=9"], "--set proto.gre.qlimit: unknown protocol `gre`"),
        (&["--set", "defaultqlimit=20000"], "--set defaultqlimit: 20000 is above maxqlimit"),
        (&["--set", "rss.bits=1", "--set", "rss.bucket.1=2"], "--set rss.bucket.1: "),
        (&["--cases", "fast"], "load in percent"),
    ];
    for (arguments, words) in table {
        let done = run(
            Command::new(weir_binary()?).args(["lab", "netisr"]).args(arguments),
            Duration::from_secs(10),
        )?;
        ensure!(done.status.code() == Some(2), "{arguments:?} ended with {}", done.status);
        ensure!(done.stderr.contains(words), "{arguments:?}: {}", done.stderr);
    }
    let done = run(
        Command::new(weir_binary()?).args(["lab", "epair", "--set", "dispatch=direct"]),
        Duration::from_secs(10),
    )?;
    ensure!(!done.status.success() && done.stderr.contains("--set: only netisr"), "{}", done.stderr);
    Ok(())
}

/// One of a hundred datagrams of a flood is dropped on the way, where twenty thousand found a socket full before it.
fn what_overflowed_before_a_flood_excuses_none_of_its_losses() -> Result<()> {
    const BEFORE: u64 = 20_000;
    let pair = Pair::with_addresses(1)?;
    let to = names(0, 2).v4;
    let full = pair.right.enter(|| UdpSocket::bind(("0.0.0.0", 7001)))??;
    let sender = pair.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    for _ in 0..BEFORE {
        sender.send_to(&[0; 100], (to.as_str(), 7001))?;
    }
    wait_until("most have overflowed", PATIENCE, || Ok(overflowed_datagrams(&pair.right)? > BEFORE / 2))?;
    drop(full);
    // Slow enough for the server.
    pair.left.tc("qdisc add dev veth0 root tbf rate 50mbit burst 20kb limit 10mb")?;
    let load = Load::new(&pair.left, &pair.right, &to, 1, 1.0);
    let _dropping = Xdp::dropping(pair.right_end(), 100)?;
    let flows = Flood::start(&load)?.finish(PATIENCE)?;
    let judged = require_lossless(&flows, &load);
    let error = judged.err().with_context(|| format!("a loss is excused: {flows:?}"))?;
    ensure!(!error.is::<Short>(), "a loss is taken for a figure: {error:#}");
    ensure!(error.to_string().contains("datagrams lost"), "{error:#}");
    Ok(())
}

fn options_that_make_no_sense() -> Result<()> {
    for options in [
        Options { seconds: 0.0, ..options(&[System::Tbf], &[2]) },
        options(&[System::Tbf], &[0]),
        options(&[System::Tbf], &[100_000]),
    ] {
        ensure!(qdisc::run(&options, &mut Silent).is_err(), "{options:?} was accepted");
    }
    Ok(())
}
