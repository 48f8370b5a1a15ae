//! Limits in place and the lists in which packets that have left them wait for a processor, which all limits of a machine share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Process, run};
use weir_port::hold::ends;
use weir_port::limit::backlog;
use weir_port::lock::Lock;
use weir_tests::classes::{File, OFFICE};
use weir_tests::limits::{Between, Row};
use weir_tests::{drops, harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(packets_that_have_left_limits_have_room),
        privileged!(what_is_no_limit_keeps_no_room),
        privileged!(the_room_is_given_back_by_one_of_two),
        privileged!(several_limits_fill_no_list_of_a_processor),
    ])
}

/// The machine's setting while a test changes it.
struct BacklogSetting(String);

impl BacklogSetting {
    const PATH: &str = "/proc/sys/net/core/netdev_max_backlog";

    fn set(value: u64) -> Result<BacklogSetting> {
        let before = BacklogSetting(fs::read_to_string(Self::PATH).context(Self::PATH)?);
        fs::write(Self::PATH, value.to_string())?;
        Ok(before)
    }

    /// 1,000, once nothing is left to put back: limits of tests before went with their hosts.
    fn of_a_machine_without_limits(row: &Row) -> Result<BacklogSetting> {
        wait_until("the setting is the machine's own", PATIENCE, || {
            row.weir("limit wa --rate 100mbit")?.success()?;
            row.weir("limit wa --off")?.success()?;
            Ok(!Path::new("/run/weir/netdev_max_backlog").exists())
        })?;
        BacklogSetting::set(1000)
    }

    fn now() -> Result<u64> {
        fs::read_to_string(Self::PATH)?.trim().parse().context(Self::PATH)
    }
}

impl Drop for BacklogSetting {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, &self.0);
    }
}

/// The kernel's own list of packets that have left a limit is longer while there are limits, and then as it was.
fn packets_that_have_left_limits_have_room() -> Result<()> {
    const ENOUGH: u64 = 10_000;
    let (one, other) = (Row::new(Between::Bridge)?, Row::new(Between::Bridge)?);
    let setting = BacklogSetting::of_a_machine_without_limits(&one)?;
    let require = |value: u64, when: &str| -> Result<()> {
        let now = BacklogSetting::now()?;
        ensure!(now == value, "{now} {when} in place of {value}");
        Ok(())
    };
    for row in [&one, &other] {
        row.weir("limit wa --rate 100mbit")?.success()?;
        require(ENOUGH, "with a limit")?;
    }
    one.weir("limit wa --off")?.success()?;
    require(ENOUGH, "with one of two limits")?;
    fs::write(BacklogSetting::PATH, "500")?;
    other.weir("limit wa --rate 100mbit")?.success()?;
    require(ENOUGH, "with a limit that was set again")?;
    other.weir("limit wa --off")?.success()?;
    require(500, "as somebody had set it before the last limit")?;

    one.weir("limit wa --rate 100mbit")?.success()?;
    fs::write(BacklogSetting::PATH, "20000")?;
    one.weir("limit wa --off")?.success()?;
    require(20_000, "as somebody has set it meanwhile")?;
    one.weir("limit wa --rate 100mbit")?.success()?;
    require(20_000, "which is enough")?;

    // A limit that goes with its container puts nothing back: who looks is told, and the next does.
    fs::write(BacklogSetting::PATH, "1000")?;
    one.weir("limit wa --rate 100mbit")?.success()?;
    let told = "weir: net.core.netdev_max_backlog is 10,000 for limits, of which there is none any more, and was 1,000 before them: put back by \
                `weir mend`\n";
    ensure!(!other.weir("stat")?.success()?.stderr.contains("netdev_max_backlog"), "told beside a limit");
    drop(one);
    wait_until("who looks is told of the room", PATIENCE, || {
        Ok(other.weir("stat --check")?.success()?.stderr.contains(told))
    })?;
    let command = ends::hold(&[], &["being-made"], &mut |_| {})?;
    let said = other.weir("stat")?.success()?.stderr;
    ensure!(!said.contains("netdev_max_backlog"), "told while a command makes a limit: {said}");
    drop(command);
    wait_until("the other limit is the last", PATIENCE, || {
        other.weir("limit wa --rate 100mbit")?.success()?;
        other.weir("limit wa --off")?.success()?;
        Ok(BacklogSetting::now()? == 1000)
    })?;

    let mut command = other.middle.command(weir_binary()?);
    let mut run = Process::spawn(command.args([
        "run",
        "--rate",
        "10mbit",
        "--",
        "sh",
        "-c",
        "echo started; exec sleep 60",
    ]))?;
    run.wait_for_output("started", PATIENCE)?;
    require(ENOUGH, "with a run in place")?;
    run.stop(PATIENCE)?;
    require(1000, "after the run")?;
    drop(setting);
    Ok(())
}

/// A namespace of host names at a file, as network namespaces have names; removed with this value.
struct Mounted(PathBuf);

impl Mounted {
    fn new(name: &str) -> Result<Mounted> {
        let mounted = Mounted(std::env::temp_dir().join(name));
        fs::write(&mounted.0, "")?;
        let mut mount = Command::new("mount");
        run(mount.args(["--bind", "/proc/self/ns/uts"]).arg(&mounted.0), PATIENCE)?.success()?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Straight `output`: after Ctrl-C every wait of the bench is refused. Nothing can be done about a failure here.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
        let _ = fs::remove_file(&self.0);
    }
}

/// A mount that looks like one of a network namespace, and a queue that any user can make.
fn what_is_no_limit_keeps_no_room() -> Result<()> {
    const QUEUE: &str =
        "tc qdisc add dev lo root handle 7769: htb default 2 direct_qlen 0 && echo made && exec sleep 60";
    let row = Row::new(Between::Bridge)?;
    let _setting = BacklogSetting::of_a_machine_without_limits(&row)?;
    let require_room_back = |beside: &str| -> Result<()> {
        row.weir("limit wa --rate 100mbit")?.success()?;
        row.weir("limit wa --off")?.success()?;
        let now = BacklogSetting::now()?;
        ensure!(now == 1000, "{now} beside {beside}");
        Ok(())
    };
    let mounted = Mounted::new(row.middle.name())?;
    let done = require_room_back("another kind of namespace");
    drop(mounted);

    let mut command = Command::new("unshare");
    let mut user = Process::spawn(command.args(["--user", "--map-root-user", "--net", "sh", "-c", QUEUE]))?;
    user.wait_for_output("made", PATIENCE)?;
    let beside_a_queue = require_room_back("a queue that any user can make");
    user.stop(PATIENCE)?;
    match (done, beside_a_queue) {
        (Err(one), Err(other)) => Err(one.context(other)),
        (one, other) => one.and(other),
    }
}

/// Two commands that remove the last limits at once both find that there is something to put back, and one comes first.
fn the_room_is_given_back_by_one_of_two() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let _setting = BacklogSetting::of_a_machine_without_limits(&row)?;
    row.weir("limit wa --rate 100mbit")?.success()?;
    row.left.tc("qdisc del dev veth0 root")?;
    let (lock, before) = (Lock::take()?, directories_of_locks()?);
    let told = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(backlog::put_back_if_unused));
        let wait =
            wait_until("both wait for the lock", PATIENCE, || Ok(directories_of_locks()? == before + 2));
        drop(lock);
        let told = both.map(|one| one.join().expect("it puts back or fails"));
        wait.map(|()| told)
    })?;
    let [one, other] = told;
    ensure!(one? != other?, "one of them puts it back");
    let now = BacklogSetting::now()?;
    ensure!(now == 1000, "{now} behind the last limit");
    row.weir("limit wa --off")?.success().map(drop)
}

/// The number of times that this process has the directory open that the lock is on.
fn directories_of_locks() -> Result<usize> {
    let open = fs::read_dir("/proc/self/fd")?.flatten();
    let is_of_lock = |path: &Path| fs::read_link(path).is_ok_and(|to| to == Path::new("/run/weir/holds"));
    Ok(open.filter(|entry| is_of_lock(&entry.path())).count())
}

/// Limits that share the machine's processors may all at once send what they were late with, here many short packets: the burst of class `b` has
/// a thousand.
fn several_limits_fill_no_list_of_a_processor() -> Result<()> {
    let _setting = BacklogSetting::set(1000)?;
    let file = File::new(OFFICE)?;
    let rows = (0..3).map(|_| Row::new(Between::Bridge)).collect::<Result<Vec<_>>>()?;
    let to = rows[0].right_address(Between::Bridge);
    let mut loads = Vec::new();
    for (row, number) in rows.iter().zip(1..) {
        row.weir(&format!("limit wa --rate 200mbit --name limit{number} --classes {}", file.path()))?
            .success()?;
        let load = Load::new(&row.left, &row.right, &to, 4, 6.0);
        loads.push(Load { payload_bytes: 60, first_port: 5101, ..load.clone() });
        loads.push(load);
    }
    let before = drops::of_processors()?;
    let floods = loads.iter().map(Flood::start).collect::<Result<Vec<_>>>()?;
    floods.into_iter().try_for_each(|flood| flood.finish(PATIENCE).map(drop))?;
    let dropped = drops::of_processors()? - before;
    ensure!(dropped == 0, "{dropped} packets found a list full");
    for (row, number) in rows.iter().zip(1..) {
        row.lossless_limit(&format!("limit{number}"))?;
        row.weir("limit wa --off")?.success()?;
    }
    Ok(())
}
