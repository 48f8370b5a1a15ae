//! `weir limit --off` that does not come to its end by itself: killed, interrupted, without its interface, and with another command before
//! or behind it; and the queue of before, which it puts back.

use std::net::UdpSocket;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_port::hold::ends::hold;
use weir_port::limit::record::Direction;
use weir_port::limit::{self, Asked, NetnsInterface};
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_run::limits::burst_bytes_default;
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row, idle_process};
use weir_tests::tun::{Layer, Tun};
use weir_tests::{harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(an_end_that_is_killed_leaves_an_open_limit).together(),
        privileged!(an_end_that_is_interrupted_limits_as_before).together(),
        privileged!(an_interface_that_vanishes_takes_its_limit_along).together(),
        privileged!(a_change_does_not_bring_a_removed_limit_back).together(),
        privileged!(a_limit_that_takes_the_place_of_another_stays).together(),
        privileged!(a_noqueue_that_somebody_chose_comes_back).together(),
        privileged!(an_interface_that_is_no_pair_has_nothing_left).together(),
        privileged!(a_class_outside_the_limit_is_put_below_it).together(),
        privileged!(a_removal_of_a_half_made_limit_makes_no_class_outside).together(),
        privileged!(steering_that_the_second_of_two_limits_switches_on_is_switched_off).together(),
        privileged!(a_limit_of_the_way_back_takes_over_from_one_of_the_way_there).together(),
        privileged!(two_limits_of_one_pair_go_each_by_its_name).together(),
        privileged!(each_end_of_a_pair_has_a_limit_of_its_own).together(),
    ])
}

/// It is one that `weir limit` takes, so it may be mended too.
fn an_interface_that_is_no_pair_has_nothing_left() -> Result<()> {
    let done = Row::new(Between::Bridge)?.weir("mend lo")?.success()?;
    ensure!(done.stdout.starts_with("nothing was left behind"), "{}", done.said());
    Ok(())
}

fn line(done: &Finished, words: &[&str]) -> Result<()> {
    ensure!(done.status.code() == Some(1), "{}: {:?} {}", done.what, done.status, done.stderr);
    ensure!(done.stderr.lines().count() == 1, "{} says {}", done.what, done.stderr);
    for word in words {
        ensure!(done.stderr.contains(word), "{} says {}", done.what, done.stderr);
    }
    Ok(())
}

/// Packets of four programs, of which one goes on while another is late, that keep `--off` from finding a pause, until this is over.
fn sending<T>(row: &Row, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let to = row.right_address(Between::Bridge);
    let socket = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    socket.set_nonblocking(true)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // The datagram may be refused, and its interface may be gone.
                    let _ = socket.send_to(&[0; 100], (to.as_str(), 7003));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// `weir limit wa --off` in the middle, as soon as the limit is open. Where the machine stood still it may have found a pause.
fn opening(row: &Row) -> Result<Process> {
    let mut command = row.middle.command("env");
    command.arg("--default-signal").arg(weir_binary()?).args(["limit", "wa", "--off"]);
    let mut process = Process::spawn(&mut command)?;
    wait_until("the limit is open", PATIENCE, || {
        require_timing!(process.is_running()?, "it ended: {}{}", process.stdout(), process.stderr());
        Ok(row.limits("wa")?.first().is_some_and(|limit| limit["stage"] == "opening"))
    })?;
    Ok(process)
}

fn an_end_that_is_killed_leaves_an_open_limit() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    sending(&row, || {
        let mut process = opening(&row)?;
        process.signal(Signal::KILL)?;
        process.wait(PATIENCE).map(drop)
    })?;
    let limits = row.limits("wa")?;
    let limit = limits.first().context("no limit")?;
    ensure!(limit["stage"] == "opening" && limit["rate_bits_per_s"].is_null(), "{limit}");
    let shown = row.weir("stat wa")?.success()?.stdout;
    ensure!(shown.contains("is open, to be removed") && !shown.contains("10mbit"), "{shown}");
    let checked = row.weir("stat wa --check")?;
    ensure!(checked.status.code() == Some(1) && checked.stderr.contains("is open"), "{}", checked.stderr);
    row.weir("limit wa --off")?.success()?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(qdisc.contains("noqueue"), "{qdisc}");
    Ok(())
}

/// The limit is open when it is heard.
fn an_end_that_is_interrupted_limits_as_before() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit --burst 30kb")?.success()?;
    let done = sending(&row, || {
        let mut process = opening(&row)?;
        process.signal(Signal::INT)?;
        process.wait(PATIENCE)
    })?;
    // The look and the signal take a moment, in which it may have come to its end.
    require_timing!(done.stderr.contains("it was interrupted"), "it had ended: {}", done.stderr);
    line(&done, &["it was interrupted; veth0 in network namespace", "is limited as it was before"])?;
    row.weir("stat wa --check")?.success()?;
    let limit = row.lossless_limit("wa")?;
    ensure!(limit["rate_bits_per_s"] == 10_000_000 && limit["burst_bytes"] == 30_720, "{limit}");
    row.weir("limit wa --off")?.success().map(drop)
}

fn an_interface_that_vanishes_takes_its_limit_along() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let done = sending(&row, || {
        let process = opening(&row)?;
        row.middle.ip("link del wa")?;
        process.wait(PATIENCE)
    })?;
    line(&done, &["veth0 in network namespace", "vanished", "nothing is left to remove"])?;
    ensure!(!done.stderr.contains("No such device"), "{}", done.stderr);
    Ok(())
}

/// It is asked for while the limit is being removed, and waits for that.
fn a_change_does_not_bring_a_removed_limit_back() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let (off, set) = sending(&row, || {
        let off = opening(&row)?;
        let mut command = row.middle.command(weir_binary()?);
        let mut set = Process::spawn(command.args(["set", "wa", "--rate", "5mbit"]))?;
        wait_until("the change waits", PATIENCE, || {
            ensure!(set.is_running()?, "it ended: {}{}", set.stdout(), set.stderr());
            Ok(set.stderr().contains("waiting for"))
        })?;
        Ok((off, set))
    })?;
    off.wait(PATIENCE)?.success()?;
    let done = set.wait(PATIENCE)?;
    let qdisc = row.left.tc("qdisc show dev veth0")?;
    ensure!(!qdisc.contains("htb"), "the limit is back: {}{}", done.stdout, done.stderr);
    ensure!(done.status.code() == Some(1), "{:?} {}", done.status, done.stdout);
    ensure!(
        done.stderr.contains("limit wa at") && done.stderr.contains("is gone meanwhile"),
        "{}",
        done.stderr
    );
    Ok(())
}

/// The command waits for an end that the test holds. Meanwhile the limit that it was to remove is another's.
fn a_limit_that_takes_the_place_of_another_stays() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let [first, other] = ["first", "other"].map(|name| format!("{name}-{}", row.left.name()));
    row.weir(&format!("limit wa --rate 10mbit --name {first}"))?.success()?;
    let netns = NetNs::open(&Path::new("/run/netns").join(row.left.name()))?;
    let link = netns.run(|| Link::by_name("veth0"))?;
    let place = NetnsInterface { netns, link };
    let file = std::env::temp_dir().join(format!("{first}.toml"));
    // The interface is not there, so the limit is found by its name alone.
    std::fs::write(&file, format!("[[limit]]\ndevice = \"gone7\"\nname = \"{first}\"\nrate = \"10mbit\"\n"))?;
    let by_file = format!("down {}", file.display());
    for arguments in [format!("limit {first} --off"), by_file] {
        let held = hold(&[(&place.netns, &place.link)], &[], &mut |_| {})?;
        let mut command = row.middle.command(weir_binary()?);
        let mut going = Process::spawn(command.args(arguments.split(' ')))?;
        wait_until("the command waits", PATIENCE, || {
            ensure!(going.is_running()?, "{arguments} has ended: {}", going.stderr());
            Ok(going.stderr().contains("waiting for "))
        })?;
        rename(&place, &other)?;
        drop(held);
        let done = going.wait(PATIENCE)?;
        let is_said = done.stderr.contains(&format!("limit {first} at veth0"))
            && done.stderr.contains("is gone meanwhile: nothing was changed");
        ensure!(done.status.code() == Some(1) && is_said, "{arguments}: {} {}", done.status, done.said());
        ensure!(row.limits(&other)?.len() == 1, "{arguments} has removed the limit of another");
        rename(&place, &first)?;
    }
    std::fs::remove_file(&file)?;
    row.weir(&format!("limit {first} --off"))?.success().map(drop)
}

/// Gives a limit another name, as a command that removes it and one that sets another do together.
fn rename(place: &NetnsInterface, name: &str) -> Result<()> {
    let asked = Asked {
        name: name.into(),
        direction: Direction::There,
        rate: None,
        burst_bytes: None,
        classes: None,
        moves_at_once: false,
    };
    limit::set(place, &asked, burst_bytes_default)?;
    Ok(())
}

/// Also behind a change of the limit.
fn a_noqueue_that_somebody_chose_comes_back() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let _tun = Tun::new(&row.middle, "tun7", Layer::Ip, "10.98.7")?;
    row.middle.tc("qdisc add dev tun7 root handle 5: noqueue")?;
    let shown = || row.middle.tc("qdisc show dev tun7");
    let before = shown()?;
    ensure!(before.contains("noqueue 5:"), "{before}");
    for words in
        [&["limit tun7 --rate 20mbit"][..], &["limit tun7 --rate 20mbit", "limit tun7 --rate 30mbit"]]
    {
        for words in words {
            row.weir(words)?.success()?;
        }
        let limited = shown()?;
        ensure!(limited.contains("htb 7769:"), "{limited}");
        row.weir("limit tun7 --off")?.success()?;
        let after = shown()?;
        ensure!(after == before, "tun7 had {before}, has {after}");
    }
    Ok(())
}

/// So many classes below a limit, each with 272 leaves.
fn classes(count: usize) -> Result<File> {
    let class = |index: usize| format!("[[class]]\nname = \"c{index}\"\nrate = \"1mbit\"\n");
    File::new(&format!("default = \"c0\"\n{}", (0..count).map(class).collect::<String>()))
}

/// The classes of the sender's queue that are beside the limit: the kernel puts one there whose parent is missing.
fn outside(row: &Row) -> Result<Vec<String>> {
    let shown = row.left.tc("class show dev veth0")?;
    let at_root = shown.lines().filter(|line| line.contains(" root ") && !line.contains("htb 7769:1 "));
    Ok(at_root.map(str::to_owned).collect())
}

/// A command sets a limit whole, with all of its classes below it.
fn require_whole(row: &Row, command: &str) -> Result<()> {
    row.weir(command)?.success()?;
    ensure!(outside(row)?.is_empty(), "{:?}", outside(row)?.first());
    row.weir("stat wa --check")?.success()?;
    row.weir("limit wa --off --now")?.success().map(drop)
}

/// Alone, or with all that is below it.
fn a_class_outside_the_limit_is_put_below_it() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let file = classes(2)?;
    let command = format!("limit wa --rate 10mbit --classes {}", file.path());
    row.weir(&command)?.success()?;
    row.left.tc("class del dev veth0 classid 7769:910")?;
    row.left.tc("class add dev veth0 parent 7769: classid 7769:910 htb rate 1mbit ceil 100mbit")?;
    ensure!(outside(&row)?.len() == 1, "{:?}", outside(&row)?);
    require_whole(&row, &command)
}

fn a_removal_of_a_half_made_limit_makes_no_class_outside() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    const COUNT: usize = 10;
    let file = classes(COUNT)?;
    let command = format!("limit wa --rate 10mbit --classes {}", file.path());
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.kill_at_leaves(&command, 300)?;
    let there = row.left.tc("class show dev veth0")?.lines().filter(|line| line.contains("htb")).count();
    require_timing!(there < COUNT * 273, "the kill came late");
    sending(&row, || {
        let mut process = opening(&row)?;
        process.signal(Signal::KILL)?;
        process.wait(PATIENCE).map(drop)
    })?;
    ensure!(outside(&row)?.is_empty(), "{:?}", outside(&row)?.first());
    require_whole(&row, &command)
}

/// Somebody had steered when the first was set, and has switched that off since its queue is gone.
fn steering_that_the_second_of_two_limits_switches_on_is_switched_off() -> Result<()> {
    const MASKS: &str = "/sys/class/net/wa/queues/rx-0/rps_cpus";
    let row = Row::new(Between::Bridge)?;
    let is_on = || -> Result<bool> {
        Ok(row.middle.sh(&format!("cat {MASKS}"))?.trim().chars().any(|digit| !"0,".contains(digit)))
    };
    let steer = |mask: &str| -> Result<()> {
        let line = format!("echo {mask} > {MASKS}");
        run(row.middle.command("sh").args(["-c", &line]), PATIENCE)?.success().map(drop)
    };
    steer("1")?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    row.left.tc("qdisc del dev veth0 root")?;
    steer("0")?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    ensure!(is_on()? || std::thread::available_parallelism()?.get() == 1, "nothing is steered");
    row.weir("limit wa --off")?.success()?;
    ensure!(!is_on()?, "it is still steered");
    Ok(())
}

/// A pair with both ends here, at one of which the limit of either way may be. The queue of the first is gone.
fn a_limit_of_the_way_back_takes_over_from_one_of_the_way_there() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let [first, second] = pair_with_both_ends(&row, "r")?;
    let shown = || -> Result<String> {
        // An interface without that hook has no filters, and tc says so by failing.
        let filters = row.middle.tc(&format!("filter show dev {first} ingress")).unwrap_or_default();
        let of = |end| row.middle.tc(&format!("qdisc show dev {end}"));
        Ok(of(&first)? + &of(&second)? + &filters)
    };
    let before = shown()?;
    row.weir(&format!("limit {first} --rate 10mbit"))?.success()?;
    row.middle.tc(&format!("qdisc del dev {second} root"))?;
    ensure!(shown()?.contains("weir-arrivals"), "{}", shown()?);
    row.weir(&format!("limit {second} --rate-back 10mbit"))?.success()?;
    ensure!(!shown()?.contains("weir-arrivals"), "the program of the first is left");
    row.weir(&format!("limit {second} --off"))?.success()?;
    ensure!(shown()? == before, "{}", shown()?);
    Ok(())
}

/// A pair with both ends here has a limit for each end, as a file may say. A name that means something else here is refused.
fn two_limits_of_one_pair_go_each_by_its_name() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let [s1, s2] = pair_with_both_ends(&row, "s")?;
    let [first, second] = ["first", "second"].map(|name| format!("{name}-{}", row.left.name()));
    let table = |device: &str, name: &str, mbit| {
        format!("[[limit]]\ndevice = \"{device}\"\nname = \"{name}\"\nrate = \"{mbit}mbit\"\n")
    };
    let file = File::new(&(table(&s1, &first, 10) + &table(&s2, &second, 20)))?;
    row.weir(&format!("apply {}", file.path()))?.success()?;
    let done = row.weir(&format!("limit {first} --off"))?.success()?;
    let removed = format!("removed: {s2} in");
    ensure!(done.stdout.lines().count() == 1 && done.stdout.starts_with(&removed), "{}", done.stdout);
    ensure!(row.limits(&second)?.len() == 1, "the other limit is gone, too");
    row.weir(&format!("limit {second} --rate 30mbit"))?.success()?;
    let limits = row.limits(&second)?;
    ensure!(limits.len() == 1 && limits[0]["interface"] == s1.as_str(), "{limits:?}");
    row.weir(&format!("limit {second} --off"))?.success()?;

    let swapped = File::new(&table(&s1, &s2, 10))?;
    for command in [
        format!("limit {s1} --rate 10mbit --name {s2}"),
        format!("limit {s1} --rate 10mbit --name br0"),
        format!("apply {}", swapped.path()),
    ] {
        let done = row.weir(&command)?;
        let is_said = done.stderr.contains("an interface here that is not the limit's is called");
        ensure!(!done.status.success() && is_said, "{command}: {}", done.said());
    }
    row.weir(&format!("limit {s1} --rate 10mbit --name {s1}"))?.success()?;

    // An interface that comes later is not taken for the limit, nor the limit for it.
    let later = format!("late{}", std::process::id());
    row.weir(&format!("limit {s1} --name {later}"))?.success()?;
    row.middle.ip(&format!("link add {later} type bridge"))?;
    for command in [format!("limit {later} --off"), format!("set {later} --rate 1mbit")] {
        let done = row.weir(&command)?;
        let is_said = done.stderr.contains("is an interface here, which has no limit, and also what");
        ensure!(done.status.code() == Some(2) && is_said, "{command}: {}", done.said());
    }
    // It keeps the name that it has.
    row.weir(&format!("limit {s1} --rate 10mbit --name {later}"))?.success()?;
    let same = File::new(&table(&s1, &later, 10))?;
    row.weir(&format!("apply {}", same.path()))?.success()?;
    row.weir(&format!("limit {later} --rate 5mbit"))?.success()?;
    let limits = row.limits(&s1)?;
    ensure!(limits.len() == 1 && limits[0]["rate_bits_per_s"] == 10_000_000, "{limits:?}");
    Ok(())
}

/// A pair with both ends here: what one end sends is the way back of the other.
fn each_end_of_a_pair_has_a_limit_of_its_own() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let [s1, s2] = pair_with_both_ends(&row, "e")?;
    let rates = |name: &str| -> Result<Vec<(String, u64)>> {
        let told = |limit: &serde_json::Value| {
            let at = limit["interface"].as_str()?.to_string();
            Some((at, limit["rate_bits_per_s"].as_u64()? / 1_000_000))
        };
        Ok(row.limits(name)?.iter().filter_map(told).collect())
    };
    row.weir(&format!("limit {s1} --rate 10mbit"))?.success()?;
    // The name would mean both.
    let file = File::new(&format!("[[limit]]\ndevice = \"{s2}\"\nname = \"{s1}\"\nrate = \"20mbit\"\n"))?;
    for (command, status) in
        [(format!("limit {s2} --rate 20mbit --name {s1}"), 2), (format!("apply {}", file.path()), 1)]
    {
        let done = row.weir(&command)?;
        let is_said = done.stderr.contains(&format!("is called {s1} already"));
        ensure!(done.status.code() == Some(status) && is_said, "{command}: {}", done.said());
    }
    ensure!(rates(&s1)? == [(s2.clone(), 10)], "{:?}", rates(&s1)?);
    row.weir(&format!("limit {s2} --rate 20mbit"))?.success()?;
    row.weir(&format!("set {s2} --rate 30mbit"))?.success()?;
    ensure!(rates(&s1)? == [(s2.clone(), 10)] && rates(&s2)? == [(s1.clone(), 30)], "{:?}", rates(&s1)?);
    // A new name is of one of them.
    row.weir(&format!("limit {s2} --rate 20mbit --name {s2}-other"))?.success()?;
    ensure!(rates(&s1)? == [(s2.clone(), 10)], "{:?}", rates(&s1)?);
    row.weir(&format!("limit {s2}-other --off"))?.success()?;

    let name = format!("{s1}-both");
    row.weir(&format!("limit {s1} --rate 10mbit --rate-back 15mbit --name {name}"))?.success()?;
    let before = rates(&name)?;
    ensure!(before.len() == 2, "{before:?}");
    for (asked, option) in [
        ("--rate 5mbit", "--rate-back"),
        ("--rate-back 5mbit", "--rate"),
        ("--rate 5mbit --name x", "--rate-back"),
    ] {
        let done = row.weir(&format!("limit {s2} {asked}"))?;
        let says = format!("set from the other end of the pair: write `weir limit {name} {option} RATE`");
        ensure!(done.status.code() == Some(2) && done.stderr.contains(&says), "{asked}: {}", done.said());
    }
    // What is said can be done where the interface is not.
    let process = idle_process(&row.middle)?;
    let asked = format!("limit --pid {} --device {s1} --rate 5mbit", process.id());
    let done = weir_in(&row.left, &asked)?;
    let says = format!("write `weir limit {name} --rate-back RATE`");
    ensure!(done.status.code() == Some(2) && done.stderr.contains(&says), "{asked}: {}", done.said());
    ensure!(rates(&name)? == before, "{:?}", rates(&name)?);
    weir_in(&row.left, &format!("limit {name} --rate-back 5mbit"))?.success()?;
    let mut after = rates(&name)?;
    after.sort();
    ensure!(after == [(s1.clone(), 5), (s2.clone(), 10)], "{after:?}");
    row.weir(&format!("limit {s1} --off"))?.success().map(drop)
}

fn weir_in(host: &Namespace, arguments: &str) -> Result<Finished> {
    run(host.command(weir_binary()?).args(arguments.split(' ')), PATIENCE)
}

/// A pair in the middle, whose ends nobody else calls so.
fn pair_with_both_ends(row: &Row, name: &str) -> Result<[String; 2]> {
    let ends = [1, 2].map(|end| format!("{name}{end}-{}", std::process::id()));
    row.middle.ip(&format!("link add {} up type veth peer name {}", ends[0], ends[1]))?;
    row.middle.ip(&format!("link set {} up", ends[1]))?;
    Ok(ends)
}
