//! `weir check`, `apply`, `down` and `show`: a file of limits is refused whole, or set whole; again it changes nothing; what it no longer says goes
//! without loss, and what fails half-way is put back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Finished, Process, Signal, run};
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row};
use weir_tests::rig::require_lossless;
use weir_tests::{harness, nobody, plain, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(&[
        plain!(invalid_files_are_refused_with_their_place),
        plain!(what_is_no_file_is_one_sentence),
        plain!(nothing_is_applied_without_root),
        privileged!(invalid_files_touch_nothing),
        privileged!(a_file_is_applied_once_shown_and_taken_down),
        privileged!(what_cannot_be_is_said_before_anything_is_touched),
        privileged!(what_is_not_in_the_file_stays),
        privileged!(changes_under_a_flood_lose_nothing),
        privileged!(a_failure_half_way_puts_everything_back),
        privileged!(what_is_killed_half_way_is_finished),
        privileged!(two_at_once_come_one_after_the_other),
        privileged!(many_limits),
    ])
}

fn invalid() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("files/invalid")
}

/// The names of all invalid files.
fn invalid_names() -> Result<Vec<String>> {
    let entries = std::fs::read_dir(invalid())?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().into_string().ok().context("a name that is no text")?;
        names.extend(name.strip_suffix(".toml").map(str::to_string));
    }
    names.sort();
    ensure!(names.len() >= 60, "only {} files", names.len());
    Ok(names)
}

/// Each with the words that stand beside it: place, what is wrong, what to do.
fn invalid_files_are_refused_with_their_place() -> Result<()> {
    let mut wrong = Vec::new();
    for name in invalid_names()? {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.current_dir(invalid()).args(["check", &format!("{name}.toml")]), PATIENCE)?;
        let expected = std::fs::read_to_string(invalid().join(format!("{name}.told"))).unwrap_or_default();
        if done.status.code() != Some(1) || done.stderr != expected || !done.stdout.is_empty() {
            wrong.push(format!("{name}: {}\n{}expected\n{expected}", done.status, done.stderr));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn what_is_no_file_is_one_sentence() -> Result<()> {
    let fifo = std::env::temp_dir().join(format!("weir-fifo-{}", std::process::id()));
    run(Command::new("mkfifo").arg(&fifo), PATIENCE)?.success()?;
    let fifo = fifo.display().to_string();
    let cases = [
        ("/no/such/file", "there is no such file"),
        ("/proc", "it is a directory"),
        (fifo.as_str(), "not a regular file"),
        ("/dev/zero", "not a regular file"),
    ];
    let mut wrong = Vec::new();
    for (path, words) in cases {
        for command in ["check", "apply", "down"] {
            let done = run(Command::new(weir_binary()?).args([command, path]), PATIENCE)?;
            if done.status.code() != Some(2)
                || done.stderr.lines().count() != 1
                || !done.stderr.contains(words)
            {
                wrong.push(format!("{command} {path}: {} {}", done.status, done.stderr));
            }
        }
    }
    std::fs::remove_file(&fifo)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let binary = File::new("")?;
    std::fs::write(binary.path(), [0xff, 0xfe, 0])?;
    let done = run(Command::new(weir_binary()?).args(["check", binary.path()]), PATIENCE)?;
    ensure!(done.status.code() == Some(2) && done.stderr.contains("UTF-8"), "{}", done.stderr);
    Ok(())
}

fn nothing_is_applied_without_root() -> Result<()> {
    let file = File::new("[[limit]]\ndevice = \"lo\"\nrate = \"1gbit\"\n")?;
    nobody::weir(&["check", file.path()], PATIENCE)?.success()?;
    for arguments in
        [&["apply", file.path()][..], &["apply", "--dry-run", file.path()], &["down", file.path()], &["show"]]
    {
        let done = nobody::weir(arguments, PATIENCE)?;
        let said = done.stderr.trim();
        ensure!(
            done.status.code() == Some(1) && said.lines().count() == 1,
            "{arguments:?}: {} {said}",
            done.status
        );
        ensure!(said.contains("needs root") && said.contains("sudo"), "{arguments:?}: {said}");
    }
    Ok(())
}

/// What the kernel has of both pairs.
fn state(row: &Row) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for host in [&row.left, &row.middle, &row.right] {
        all.push(host.tc("qdisc show")?);
        all.push(host.tc("class show dev veth0").unwrap_or_default());
        all.push(host.sh("grep -r . /sys/class/net --include=rps_cpus").unwrap_or_default());
    }
    for (host, device) in
        [(&row.left, "veth0"), (&row.middle, "wa"), (&row.middle, "wb"), (&row.right, "veth0")]
    {
        all.push(host.tc(&format!("class show dev {device}"))?);
        all.push(host.tc(&format!("filter show dev {device}"))?);
        all.push(host.tc(&format!("filter show dev {device} ingress"))?);
    }
    Ok(all.iter().map(|text| without_numbers(text)).collect())
}

/// A listing of tc without the numbers that the kernel gives to queues and programs in the order in which they are made.
fn without_numbers(listing: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in listing.lines() {
        let mut words: Vec<_> = line.split_whitespace().collect();
        if words.starts_with(&["qdisc", "bfifo"]) {
            words.remove(2);
        }
        // Of a queue, and of a program.
        for word in ["leaf", "id"] {
            if let Some(at) = words.iter().position(|other| *other == word) {
                words.remove(at + 1);
            }
        }
        lines.push(words.join(" "));
    }
    lines.sort();
    lines.join("\n")
}

fn require_same(before: &[String], row: &Row, what: &str) -> Result<()> {
    for (before, after) in before.iter().zip(state(row)?) {
        let lost: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
        let come: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
        ensure!(*before == after, "{what}: gone {lost:#?}, come {come:#?}");
    }
    Ok(())
}

fn apply(row: &Row, file: &File) -> Result<Finished> {
    row.weir(&format!("apply {}", file.path()))
}

/// `weir stat --json` in short: what is limited to how much, by which name and classes.
fn limits(row: &Row) -> Result<BTreeMap<String, String>> {
    let done = row.weir("stat --json")?.success()?;
    let value: Value = serde_json::from_str(&done.stdout)?;
    let limits = value["limits"].as_array().context("no limits")?;
    let ours = limits.iter().filter(|limit| {
        let is_own = |host: &weir_lab::bed::Namespace| {
            limit["netns"].as_str().is_some_and(|netns| netns.ends_with(host.name()))
        };
        [&row.left, &row.right].into_iter().any(is_own) || limit["netns"] == "this network namespace"
    });
    let key = |limit: &Value| format!("{} {}", limit["interface"], limit["netns"]);
    let text = |limit: &Value| {
        let classes = limit["classes"].as_array().cloned().unwrap_or_default();
        let classes: Vec<_> =
            classes.iter().map(|class| format!("{} {}", class["name"], class["rate_bits_per_s"])).collect();
        format!(
            "{} {} {} {} {} {}",
            limit["name"],
            limit["direction"],
            limit["stage"],
            limit["rate_bits_per_s"],
            limit["burst_bytes"],
            classes.join(", ")
        )
    };
    Ok(ours.map(|limit| (key(limit), text(limit))).collect())
}

const OFFICE: &str = r#"
[[limit]]
device = "wa"
rate = "100mbit"
rate_back = "200mbit"
name = "office"
burst = "300kb"
default = "rest"

[[limit.class]]
name = "voice"
rate = "10mbit"
priority = 1

[[limit.class]]
name = "rest"
rate = "20mbit"
ceil = "100mbit"

[[limit.filter]]
protocol = "udp"
to_ports = ["5001-5004", 7003]
class = "voice"

[[limit]]
device = "wb"
rate_back = "50mbit"
"#;

/// Refused, and the kernel's state is what it was, with a limit that is there as without.
fn invalid_files_touch_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 100mbit --name here")?.success()?;
    let before = state(&row)?;
    for name in invalid_names()? {
        let mut command = row.middle.command(weir_binary()?);
        let done = run(command.current_dir(invalid()).args(["apply", &format!("{name}.toml")]), PATIENCE)?;
        let expected = std::fs::read_to_string(invalid().join(format!("{name}.told")))?;
        ensure!(
            done.status.code() == Some(2) && done.stderr == expected,
            "{name}: {} {}",
            done.status,
            done.stderr
        );
        let done = run(command_in(&row, &name)?.current_dir(invalid()), PATIENCE)?;
        ensure!(done.status.code() == Some(2), "down {name}: {} {}", done.status, done.stderr);
    }
    require_same(&before, &row, "an invalid file")
}

fn command_in(row: &Row, name: &str) -> Result<Command> {
    let mut command = row.middle.command(weir_binary()?);
    command.args(["down", &format!("{name}.toml")]);
    Ok(command)
}

/// Dry, for good, again, as shown, as shown where there is nothing, and down: the kernel's state is as before.
fn a_file_is_applied_once_shown_and_taken_down() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    let file = File::new(OFFICE)?;
    row.weir(&format!("check {}", file.path()))?.success()?;
    let dry = row.weir(&format!("apply --dry-run {}", file.path()))?.success()?;
    ensure!(
        dry.stdout.matches("\n+ ").count() + 1 == 3 && dry.stdout.contains("nothing done: 3 to set"),
        "{}",
        dry.stdout
    );
    require_same(&before, &row, "--dry-run")?;

    let done = apply(&row, &file)?.success()?;
    ensure!(done.stdout.contains("applied: 3 set, 0 changed, 0 as before"), "{}", done.stdout);
    row.weir("stat --check")?.success()?;
    let set = limits(&row)?;
    ensure!(
        set.len() == 3 && set.values().filter(|text| text.contains("\"voice\" 10000000")).count() == 2,
        "{set:?}"
    );
    let applied = state(&row)?;
    let again = apply(&row, &file)?.success()?;
    ensure!(
        again.stdout == format!("nothing to change: 3 limits as {} says\n", file.path()),
        "{}",
        again.stdout
    );
    require_same(&applied, &row, "the second apply")?;
    let json = row.weir(&format!("apply --json {}", file.path()))?.success()?;
    let json: Value = serde_json::from_str(&json.stdout)?;
    ensure!(
        json["limits"].as_array().is_some_and(|limits| limits.iter().all(|limit| limit["change"].is_null())),
        "{json}"
    );

    let shown = File::new(&row.weir("show wa wb")?.success()?.stdout)?;
    let same = apply(&row, &shown)?.success()?;
    ensure!(same.stdout.starts_with("nothing to change: 3 limits"), "{}", same.stdout);
    require_same(&applied, &row, "what is shown")?;

    let down = row.weir(&format!("down {}", file.path()))?.success()?;
    ensure!(down.stdout.matches("removed: ").count() == 3, "{}", down.stdout);
    require_same(&before, &row, "apply and down")?;
    let down = row.weir(&format!("down {}", file.path()))?.success()?;
    ensure!(down.stdout.matches("there is no limit at ").count() == 3, "{}", down.stdout);

    apply(&row, &shown)?.success()?;
    ensure!(limits(&row)? == set, "{set:?} became {:?}", limits(&row)?);
    row.weir(&format!("down {}", shown.path()))?.success()?;
    require_same(&before, &row, "what was shown")
}

/// Everything at once, each with its line; an interface that may be missing is skipped.
fn what_cannot_be_is_said_before_anything_is_touched() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.right.tc("qdisc add dev veth0 root tbf rate 10mbit burst 20kb limit 50kb")?;
    let before = state(&row)?;
    let file = File::new(
        "[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\n[[limit]]\ndevice = \"wb\"\nrate = \"10mbit\"\n[[limit]]\ndevice = \"br0\"\n\
         rate_back = \"10mbit\"\n",
    )?;
    let done = apply(&row, &file)?;
    let said: Vec<_> = done.stderr.lines().collect();
    ensure!(done.status.code() == Some(1) && said.len() == 2, "{}", done.stderr);
    ensure!(said[0].contains(".toml:5:10: ") && said[0].contains("tbf qdisc"), "{}", said[0]);
    ensure!(said[1].contains(".toml:8:10: rate_back is for a pair"), "{}", said[1]);
    require_same(&before, &row, "what is refused")?;

    let missing =
        "[[limit]]\ndevice = \"wc\"\nrate = \"10mbit\"\n[[limit]]\npid = 2147483647\nrate = \"10mbit\"\n";
    let file = File::new(&format!("{missing}[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\n"))?;
    let done = apply(&row, &file)?;
    ensure!(done.status.code() == Some(1) && done.stderr.lines().count() == 2, "{}", done.stderr);
    ensure!(done.stderr.contains(".toml:2:10: there is no interface \"wc\""), "{}", done.stderr);
    require_same(&before, &row, "what is missing")?;
    let optional = missing.replace("rate =", "optional = true\nrate =");
    let file = File::new(&format!("{optional}[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\n"))?;
    let done = apply(&row, &file)?.success()?;
    ensure!(
        done.stdout.contains("skipped: there is no wc") && done.stdout.contains("applied: 1 set"),
        "{}",
        done.stdout
    );
    let done = row.weir(&format!("down {}", file.path()))?.success()?;
    ensure!(done.stdout.contains("there is no wc") && done.stdout.contains("removed: "), "{}", done.stdout);
    // The same interface by two names of it.
    let pid = row.left.command("sleep").arg("1000").stdin(std::process::Stdio::null()).spawn()?;
    let pid = Sleeper(pid);
    wait_until("it is in its namespace", PATIENCE, || {
        let own = std::fs::read_link("/proc/self/ns/net")?;
        Ok(std::fs::read_link(format!("/proc/{}/ns/net", pid.0.id()))? != own)
    })?;
    let file = File::new(&format!(
        "[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\n[[limit]]\npid = {}\ndevice = \"veth0\"\nrate = \"5mbit\"\n",
        pid.0.id()
    ))?;
    let done = apply(&row, &file)?;
    ensure!(
        done.status.code() == Some(1) && done.stderr.contains(".toml:6:10: veth0 in "),
        "{}",
        done.stderr
    );
    ensure!(done.stderr.contains("has a limit by ") && done.stderr.contains(".toml:2:10"), "{}", done.stderr);
    require_same(&before, &row, "one interface twice")
}

/// Ended with this value.
struct Sleeper(std::process::Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn what_is_not_in_the_file_stays() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit --rate-back 30mbit --name mine")?.success()?;
    let file = File::new(
        "[[limit]]\ndevice = \"wa\"\nrate = \"20mbit\"\n[[limit]]\ndevice = \"wb\"\nrate = \"5mbit\"\n",
    )?;
    let done = apply(&row, &file)?.success()?;
    // As it is called, where the file does not say.
    ensure!(
        done.stdout.contains(": rate 10mbit -> 20mbit\n") && done.stdout.contains("1 set, 1 changed"),
        "{}",
        done.stdout
    );
    let done = row.weir("stat mine --json")?.success()?;
    ensure!(done.stdout.contains("30000000") && done.stdout.contains("20000000"), "{}", done.stdout);
    // Another file takes it over, and says so.
    let other = File::new("[[limit]]\ndevice = \"wa\"\nname = \"yours\"\nrate = \"20mbit\"\n")?;
    let done = apply(&row, &other)?.success()?;
    ensure!(done.stdout.contains(": name mine -> yours\n"), "{}", done.stdout);
    row.weir(&format!("down {}", file.path()))?.success()?;
    let left = limits(&row)?;
    ensure!(left.len() == 1 && left.values().all(|text| text.starts_with("\"mine\" \"back\"")), "{left:?}");
    row.weir("limit wa --off")?.success().map(drop)
}

/// Rates, classes that come, change and all go, under floods.
fn changes_under_a_flood_lose_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let table = |rate: &str, classes: &str| {
        File::new(&format!("[[limit]]\ndevice = \"wa\"\nname = \"wa\"\nrate = \"{rate}\"\n{classes}"))
    };
    let class = |name: &str, rate: &str| {
        format!("[[limit.class]]\nname = \"{name}\"\nrate = \"{rate}\"\nceil = \"100mbit\"\n")
    };
    let filter = "[[limit.filter]]\nto_ports = \"5001-5002\"\nclass = \"a\"\n";
    let two = format!("default = \"b\"\n{}{}{filter}", class("a", "20mbit"), class("b", "20mbit"));
    let files = [
        table("100mbit", "")?,
        table("200mbit", &two)?,
        table("150mbit", &two.replace("20mbit", "50mbit"))?,
        table("150mbit", &format!("default = \"c\"\n{}", class("c", "50mbit")))?,
        table("80mbit", "")?,
    ];
    apply(&row, &files[0])?.success()?;
    let to = row.right_address(Between::Bridge);
    let rounds = if std::env::var_os("WEIR_ROUNDS").is_some() { 20 } else { 2 };
    let load = Load::new(&row.left, &row.right, &to, 4, 2.0 + 8.0 * rounds as f64);
    let flood = Flood::start(&load)?;
    for file in files.iter().cycle().take(rounds * files.len()) {
        apply(&row, file)?.success()?;
        let limit = row.lossless_limit("wa")?;
        ensure!(limit["stage"] == "limiting", "{limit}");
    }
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the changes");
    apply(&row, &table("1gbit", "")?)?.success()?;
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    require_lossless(&flows, &load)?;
    // All classes have gone, now that nobody keeps them.
    apply(&row, &files[0])?.success()?;
    let classes = row.left.tc("class show dev veth0")?.lines().count();
    ensure!(classes == 273, "{classes} classes");
    let limit = row.lossless_limit("wa")?;
    ensure!(limit["classes"].as_array().is_some_and(Vec::is_empty), "{limit}");
    row.weir("stat --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// More conditions than a program of the kernel's can ask, which is known when the program is made.
fn too_many() -> String {
    let mut text = String::from(
        "[[limit]]\ndevice = \"wb\"\nrate_back = \"1gbit\"\ndefault = \"a\"\n[[limit.class]]\nname = \"a\"\nrate = \"1mbit\"\n",
    );
    for rule in 0..1250 {
        let (from, to) = (10_000 + rule, 30_000 + rule);
        text += &format!(
            "[[limit.filter]]\nprotocol = \"tcp\"\ndscp = {}\nfrom_ports = \"{from}-{}\"\nto_ports = \"{to}-{}\"\nclass = \"a\"\n",
            rule % 64,
            from + 1,
            to + 1
        );
    }
    text
}

fn a_failure_half_way_puts_everything_back() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate-back 30mbit --burst 40kb --name mine")?.success()?;
    let (before, limits_before) = (state(&row)?, limits(&row)?);
    let first = "[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\nrate_back = \"20mbit\"\ndefault = \"a\"\n[[limit.class]]\nname = \"a\"\nrate = \"5mbit\"\n";
    let file = File::new(&format!("{first}{}", too_many()))?;
    row.weir(&format!("check {}", file.path()))?.success()?;
    let done = apply(&row, &file)?;
    ensure!(
        done.status.code() == Some(1) && done.stderr.lines().count() == 1,
        "{} {}",
        done.status,
        done.stderr
    );
    let words = [
        ".toml:10:10: ",
        "more than a program of the kernel's can ask",
        "all limits are as they were before",
    ];
    ensure!(words.iter().all(|word| done.stderr.contains(word)), "{}", done.stderr);
    ensure!(limits(&row)? == limits_before, "{limits_before:?} became {:?}", limits(&row)?);
    require_same(&before, &row, "what failed half-way")?;
    row.weir("stat --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// Killed, the same command finishes; asked to end, it puts back.
fn what_is_killed_half_way_is_finished() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    let file = File::new(OFFICE)?;
    let started = || -> Result<Process> {
        let mut command = row.middle.command("env");
        command.arg("--default-signal").arg(weir_binary()?).args(["apply", file.path()]);
        Process::spawn(&mut command)
    };
    let classes = || -> Result<usize> {
        let left = row.left.tc("class show dev veth0")?.lines().count();
        Ok(left
            + row.middle.tc("class show dev wa")?.lines().count()
            + row.middle.tc("class show dev wb")?.lines().count())
    };
    for (least, signal) in
        [(1, Signal::KILL), (300, Signal::KILL), (900, Signal::KILL), (1, Signal::INT), (300, Signal::TERM)]
    {
        let mut process = started()?;
        wait_until("so many classes are made", PATIENCE, || {
            Ok(classes()? >= least || !process.is_running()?)
        })?;
        process.signal(signal)?;
        let done = process.wait(PATIENCE)?;
        if signal != Signal::KILL && !done.status.success() {
            ensure!(
                done.stderr.contains("it was interrupted; all limits are as they were before"),
                "{}",
                done.stderr
            );
            require_same(&before, &row, "what was interrupted")?;
            continue;
        }
        let again = apply(&row, &file)?.success()?;
        row.weir("stat --check")?
            .success()
            .with_context(|| format!("at {least} classes: {}", again.stdout))?;
        let same = apply(&row, &file)?.success()?;
        ensure!(same.stdout.starts_with("nothing to change"), "{}", same.stdout);
        row.weir(&format!("down {}", file.path()))?.success()?;
        require_same(&before, &row, &format!("what was ended at {least} classes"))?;
    }
    Ok(())
}

fn two_at_once_come_one_after_the_other() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    let files =
        [File::new(OFFICE)?, File::new(&OFFICE.replace("100mbit", "70mbit").replace("20mbit", "30mbit"))?];
    for _ in 0..3 {
        let mut processes = Vec::new();
        for file in &files {
            let mut command = row.middle.command(weir_binary()?);
            processes.push(Process::spawn(command.args(["apply", file.path()]))?);
        }
        for process in processes {
            process.wait(PATIENCE)?.success()?;
        }
        row.weir("stat --check")?.success()?;
        // Whole, of the one or the other.
        let nothing: Vec<bool> = files
            .iter()
            .map(|file| {
                Ok(row
                    .weir(&format!("apply --dry-run {}", file.path()))?
                    .success()?
                    .stdout
                    .starts_with("nothing to change"))
            })
            .collect::<Result<_>>()?;
        ensure!(nothing.iter().filter(|is_so| **is_so).count() == 1, "{nothing:?}");
    }
    row.weir(&format!("down {}", files[0].path()))?.success()?;
    require_same(&before, &row, "two at once")
}

/// All pairs within one namespace, where the kernel lists all queues to tell one.
fn many_limits() -> Result<()> {
    const COUNT: usize = 24;
    let row = Row::new(Between::Bridge)?;
    let mut text = String::new();
    for pair in 0..COUNT {
        row.middle.ip(&format!("link add p{pair} type veth peer name q{pair} netns {}", row.left.name()))?;
        text += &format!("[[limit]]\ndevice = \"p{pair}\"\nrate = \"{}mbit\"\n", pair + 1);
    }
    let file = File::new(&text)?;
    let started = weir_lab::clock::now();
    let done = apply(&row, &file)?.success()?;
    ensure!(done.stdout.contains(&format!("applied: {COUNT} set")), "{}", done.stdout);
    let set_s = started.elapsed().as_secs_f64();
    let started = weir_lab::clock::now();
    let done = apply(&row, &file)?.success()?;
    ensure!(done.stdout.starts_with(&format!("nothing to change: {COUNT} limits")), "{}", done.stdout);
    println!("    {COUNT} limits set in {set_s:.1} s, looked at in {:.1} s", started.elapsed().as_secs_f64());
    // By name, as others may have limits too.
    let devices: Vec<_> = (0..COUNT).map(|pair| format!("p{pair}")).collect();
    let shown = File::new(&row.weir(&format!("show {}", devices.join(" ")))?.success()?.stdout)?;
    let done = apply(&row, &shown)?.success()?;
    ensure!(done.stdout.starts_with("nothing to change"), "{}", done.stdout);
    Ok(())
}
