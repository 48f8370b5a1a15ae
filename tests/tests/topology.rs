//! `weir apply`, `down` and `show`: a file of limits is set whole; again it changes nothing; limits that it no longer has go without loss,
//! and a failure half-way is put back.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Finished, Process, Signal, run};
use weir_port::link::Link;
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row, idle_process};
use weir_tests::raw::Random;
use weir_tests::rig::require_lossless;
use weir_tests::state::{require_same, state};
use weir_tests::{at_length, harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_file_is_applied_once_shown_and_taken_down).together(),
        privileged!(what_is_not_in_the_file_stays).together(),
        privileged!(what_is_not_called_so_any_more_is_taken_down_by_its_limits_name).together(),
        privileged!(changes_under_a_flood_lose_nothing),
        privileged!(a_failure_half_way_puts_everything_back),
        privileged!(what_is_killed_half_way_is_finished).together(),
        privileged!(a_limit_killed_at_any_moment_leaves_nothing).flooding(),
        privileged!(two_at_once_come_one_after_the_other).together(),
        privileged!(an_optional_interface_that_goes_meanwhile_undoes_nothing).together(),
        privileged!(many_limits).together(),
    ])
}

fn apply(row: &Row, file: &File) -> Result<Finished> {
    row.weir(&format!("apply {}", file.path()))
}

/// `weir stat --json` in short: each interface that is limited, with its rate, name and classes.
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
name = "office-2"
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

/// Requires that the limits of [`OFFICE`] are whole: others of this machine may be half made.
fn require_whole(row: &Row) -> Result<()> {
    ["wa", "wb"]
        .into_iter()
        .try_for_each(|device| row.weir(&format!("stat {device} --check"))?.success().map(drop))
}

/// A file is applied dry, for good, again, as shown, as shown where there is nothing, and taken down: the kernel's state is as before.
fn a_file_is_applied_once_shown_and_taken_down() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    let file = File::new(OFFICE)?;
    row.weir(&format!("check {}", file.path()))?.success()?;
    let dry = row.weir(&format!("apply --dry-run {}", file.path()))?.success()?;
    ensure!(
        dry.stdout.matches("\n+ ").count() + 1 == 3 && dry.stdout.contains("nothing done: 2 to set"),
        "{}",
        dry.stdout
    );
    require_same(&before, &row, "--dry-run")?;

    let done = apply(&row, &file)?.success()?;
    ensure!(done.stdout.contains("applied: 2 set, 0 changed, 0 as before"), "{}", done.stdout);
    // The message is of both ways back.
    ensure!(done.stderr.matches("held is who sends from").count() == 2, "{}", done.stderr);
    require_whole(&row)?;
    let checked = row.weir("stat office-2 --check")?.success()?.stdout;
    ensure!(checked.contains("1 limit whole"), "{checked}");
    let set = limits(&row)?;
    ensure!(
        set.len() == 3 && set.values().filter(|text| text.contains("\"voice\" 10000000")).count() == 2,
        "{set:?}"
    );
    let applied = state(&row)?;
    let again = apply(&row, &file)?.success()?;
    ensure!(
        again.stdout == format!("nothing to change: 2 limits as {} says\n", file.path()),
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
    ensure!(same.stdout.starts_with("nothing to change: 2 limits"), "{}", same.stdout);
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

fn what_is_not_in_the_file_stays() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit --rate-back 30mbit --name mine-2")?.success()?;
    let file = File::new(
        "[[limit]]\ndevice = \"wa\"\nrate = \"20mbit\"\n[[limit]]\ndevice = \"wb\"\nrate = \"5mbit\"\n",
    )?;
    let done = apply(&row, &file)?.success()?;
    // The limit keeps its name, where the file does not give one.
    ensure!(
        done.stdout.contains(": rate 10mbit -> 20mbit\n") && done.stdout.contains("1 set, 1 changed"),
        "{}",
        done.stdout
    );
    let done = row.weir("stat mine-2 --json")?.success()?;
    ensure!(done.stdout.contains("30000000") && done.stdout.contains("20000000"), "{}", done.stdout);
    // Another file takes it over, and says so.
    let other = File::new("[[limit]]\ndevice = \"wa\"\nname = \"yours-2\"\nrate = \"20mbit\"\n")?;
    let done = apply(&row, &other)?.success()?;
    ensure!(done.stdout.contains(": name mine-2 -> yours-2\n"), "{}", done.stdout);
    row.weir(&format!("down {}", file.path()))?.success()?;
    let left = limits(&row)?;
    ensure!(left.len() == 1 && left.values().all(|text| text.starts_with("\"mine-2\" \"back\"")), "{left:?}");
    row.weir("limit wa --off")?.success().map(drop)
}

/// An interface that has another name since, and the process of a container that has ended while the container goes on.
fn what_is_not_called_so_any_more_is_taken_down_by_its_limits_name() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let by_name = File::new("[[limit]]\ndevice = \"wa\"\nrate = \"20mbit\"\nrate_back = \"30mbit\"\n")?;
    apply(&row, &by_name)?.success()?;
    row.middle.ip("link set wa down")?;
    row.middle.ip("link set wa name moved")?;
    row.middle.ip("link set moved up")?;
    // Another interface has the name now, and it is not sure which is meant.
    row.middle.ip("link add wa type veth peer name wc")?;
    let done = row.weir(&format!("down {}", by_name.path()))?;
    ensure!(done.stderr.contains("wa is an interface here, which has no limit"), "{}", done.said());
    row.middle.ip("link del wa")?;
    row.weir(&format!("down {}", by_name.path()))?.success()?;
    ensure!(limits(&row)?.is_empty(), "{:?}", limits(&row)?);
    let process = idle_process(&row.right)?;
    let name = row.right.name();
    let table = |more: &str| {
        File::new(&format!("[[limit]]\npid = {}\ndevice = \"veth0\"\nrate = \"1mbit\"\n{more}", process.id()))
    };
    let [named, nameless] = [table(&format!("name = \"{name}\"\n"))?, table("")?];
    apply(&row, &named)?.success()?;
    process.stop(PATIENCE)?;
    let done = row.weir(&format!("down {}", nameless.path()))?.success()?;
    ensure!(done.stdout.contains("so did its limit, which `weir stat` lists then"), "{}", done.stdout);
    ensure!(limits(&row)?.len() == 1, "it says so as it cannot know");
    // A limit that a file gives the name of another namespace's is none of this one.
    let others = File::new(&format!("[[limit]]\ndevice = \"lo\"\nname = \"{name}\"\nrate = \"1mbit\"\n"))?;
    run(row.left.command(weir_binary()?).args(["down", others.path()]), PATIENCE)?.success()?;
    ensure!(limits(&row)?.len() == 1, "another namespace's limit went");
    let done = row.weir(&format!("down {}", named.path()))?.success()?;
    ensure!(done.stdout.starts_with("removed: ") && limits(&row)?.is_empty(), "{}", done.stdout);
    Ok(())
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
    let rounds = at_length(1, 20);
    let load = Load::new(&row.left, &row.right, &to, 4, 2.0 + 8.0 * rounds as f64);
    let flood = Flood::start(&load)?;
    for file in files.iter().cycle().take(rounds * files.len()) {
        apply(&row, file)?.success()?;
        let limit = row.lossless_limit("wa")?;
        ensure!(limit["stage"] == "limiting", "{limit}");
    }
    require_timing!(!flood.remaining().is_zero(), "the floods ended before the changes");
    // No more than the servers take beside others: what overflows their sockets is lost there.
    apply(&row, &table("300mbit", "")?)?.success()?;
    let flows = flood.finish(PATIENCE)?;
    row.lossless_limit("wa")?;
    require_lossless(&flows, &load)?;
    // All classes have gone, now that nobody keeps them.
    apply(&row, &files[0])?.success()?;
    let classes = row.left.tc("class show dev veth0 parent 7769:")?.lines().count();
    ensure!(classes == 274, "{classes} classes");
    let limit = row.lossless_limit("wa")?;
    ensure!(limit["classes"].as_array().is_some_and(Vec::is_empty), "{limit}");
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// A file of more conditions than a program of the kernel's can ask, which is known when the program is made.
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
    row.weir("limit wa --rate-back 30mbit --burst 40kb --name mine-2")?.success()?;
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
    row.weir("stat wa --check")?.success()?;
    // A limit that is there, too, by a command that changes that alone.
    let classes = File::new(
        &too_many().replace("[[limit]]\ndevice = \"wb\"\nrate_back = \"1gbit\"\n", "").replace("limit.", ""),
    )?;
    for command in ["limit wa --rate-back 90mbit", "set mine-2 --rate 90mbit"] {
        let done = row.weir(&format!("{command} --classes {}", classes.path()))?;
        ensure!(done.status.code() == Some(1), "{}", done.said());
        ensure!(words[1..].iter().all(|word| done.stderr.contains(word)), "{}", done.stderr);
        ensure!(limits(&row)? == limits_before, "{limits_before:?} became {:?}", limits(&row)?);
        require_same(&before, &row, command)?;
        row.weir("stat wa --check")?.success()?;
    }
    row.weir("limit wa --off")?.success().map(drop)
}

/// Killed, the same command finishes its work; asked to end, it puts back.
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
        let left = row.left.tc("class show dev veth0 parent 7769:")?.lines().count();
        Ok(left
            + row.middle.tc("class show dev wa parent 7769:")?.lines().count()
            + row.middle.tc("class show dev wb parent 7769:")?.lines().count())
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
        require_whole(&row).with_context(|| format!("at {least} classes: {}", again.stdout))?;
        let same = apply(&row, &file)?.success()?;
        ensure!(same.stdout.starts_with("nothing to change"), "{}", same.stdout);
        row.weir(&format!("down {}", file.path()))?.success()?;
        require_same(&before, &row, &format!("what was ended at {least} classes"))?;
    }
    Ok(())
}

/// A limit that is set or removed and killed meanwhile, at moments by seed, is whole by the next command, and nothing is left of it then.
fn a_limit_killed_at_any_moment_leaves_nothing() -> Result<()> {
    const SEED: u64 = 1;
    const KILLS: usize = 40;
    const LATEST_US: u64 = 60_000;
    println!("    seed {SEED}");
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    let mut random = Random(SEED);
    let mut kill = |arguments: &[&str]| -> Result<Duration> {
        let mut command = row.middle.command("env");
        command.arg("--default-signal").arg(weir_binary()?).args(arguments);
        let mut process = Process::spawn(&mut command)?;
        // The moment is what is tried, and whatever it meets must do.
        let moment = Duration::from_micros(random.next() % LATEST_US);
        thread::sleep(moment);
        process.signal(Signal::KILL)?;
        process.wait(PATIENCE)?;
        Ok(moment)
    };
    for number in 0..KILLS {
        let mut moments = vec![kill(&["limit", "wa", "--rate", "100mbit"])?];
        if number % 2 == 1 {
            moments.push(kill(&["limit", "wa", "--off"])?);
        }
        row.weir("limit wa --rate 100mbit")?.success()?;
        row.weir("limit wa --off")?.success()?;
        require_same(&before, &row, &format!("kill {number}, after {moments:?}"))?;
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
        require_whole(&row)?;
        // The limits are whole, of the one file or the other.
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

/// The command waits for the end of the one pair, which the test holds, when the other pair goes.
fn an_optional_interface_that_goes_meanwhile_undoes_nothing() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    // That there is a folder of holds.
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.weir("limit wa --off")?.success()?;
    let hold = |host: &Namespace, thing: &str| -> Result<String> {
        let inode = std::fs::metadata(format!("/run/netns/{}", host.name()))?.ino();
        let ifindex = host.enter(|| Link::by_name("veth0").map(|link| link.ifindex))??;
        Ok(format!("/run/weir/holds/{inode}-{ifindex}-{thing}"))
    };
    // Holds are taken in the order of their files.
    let mut pairs = [("wa", &row.left), ("wb", &row.right)];
    if hold(&row.left, "")? > hold(&row.right, "")? {
        pairs.reverse();
    }
    let [(goes, of_it), (stays, held)] = pairs;
    let text = format!(
        "[[limit]]\ndevice = \"{goes}\"\nrate = \"10mbit\"\noptional = true\n\
         [[limit]]\ndevice = \"{stays}\"\nrate = \"20mbit\"\n"
    );
    let file = File::new(&text)?;
    let path = hold(held, "checksum")?;
    let lock = std::fs::File::create(&path)?;
    lock.lock()?;
    let mut command = row.middle.command(weir_binary()?);
    let mut applying = Process::spawn(command.args(["apply", file.path()]))?;
    let last = hold(of_it, "receive")?;
    wait_until("the command has one end", PATIENCE, || {
        ensure!(applying.is_running()?, "it ended: {}", applying.stderr());
        Ok(Path::new(&last).exists())
    })?;
    row.middle.ip(&format!("link del {goes}"))?;
    drop(lock);
    let done = applying.wait(PATIENCE)?.success()?;
    ensure!(done.stderr.contains("vanished meanwhile, which is optional"), "{}", done.said());
    ensure!(row.limits(stays)?[0]["rate_bits_per_s"] == 20_000_000, "{:?}", row.limits(stays)?);
    row.weir(&format!("limit {stays} --off"))?.success().map(drop)
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
