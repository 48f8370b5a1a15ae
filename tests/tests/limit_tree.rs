//! `weir limit --classes` at its ends: the largest tree, one that somebody left half made, leaves after floods, a filter for all, and flows
//! that pass freely; and drops, which stay counted when classes go.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::{now, wait_until};
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Process, run};
use weir_tests::classes::File;
use weir_tests::crowd::Crowd;
use weir_tests::limits::{Between, Row};
use weir_tests::{at_length, harness, privileged, require_timing, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);
/// Flows of forwarded packets: more than a class has leaves for.
const FLOWS_PASSING: usize = 40;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(the_largest_tree_is_loaded_and_leads_to_its_last_class),
        privileged!(a_tree_left_half_made_is_said_and_finished_or_removed),
        privileged!(classes_left_half_set_are_in_force_after_any_change),
        privileged!(a_limit_without_a_record_that_a_failure_takes_is_said).together(),
        privileged!(after_floods_new_flows_have_leaves_of_their_own).flooding(),
        privileged!(a_filter_for_all_is_the_last_that_is_asked).together(),
        privileged!(counts_stay_when_classes_go).flooding(),
        privileged!(what_passed_freely_is_limited_by_another_file).flooding(),
        privileged!(filters_are_changed_while_a_flood_fills_a_class_that_stays).flooding(),
        privileged!(classes_come_to_a_limit_that_was_lowered).flooding(),
        privileged!(busy_flows_change_class_at_once_where_asked).flooding(),
    ])
}

/// A file of so many classes, of which the first few nest as deep as they may, and filters that lead to all but the last leaf, from a place
/// in their list on. The last filter is of UDP to port 7001 alone, and leads to the last class.
fn tree(classes: usize, filters: usize, turn: usize) -> String {
    const LEVELS: usize = 6;
    let mut text = format!("default = \"c{}\"\n", LEVELS - 1);
    for index in 0..classes {
        let _ = writeln!(text, "[[class]]\nname = \"c{index}\"\nrate = \"1mbit\"\nceil = \"100mbit\"");
        if (1..LEVELS).contains(&index) {
            let _ = writeln!(text, "parent = \"c{}\"", index - 1);
        }
    }
    for filter in 0..filters {
        let class = LEVELS - 1 + (filter + turn) % (classes - LEVELS);
        let (start, end) = (10_000 + filter, 30_000 + filter);
        let _ = writeln!(
            text,
            "[[filter]]\nprotocol = \"tcp\"\ndscp = {}\nfrom_ports = \"{start}-{end}\"\nto_ports = \"{start}-{end}\"\nclass = \"c{class}\"",
            filter % 64
        );
    }
    text + &format!("[[filter]]\nprotocol = \"udp\"\nto_ports = 7001\nclass = \"c{}\"\n", classes - 1)
}

/// The most classes are loaded by one file; half as many by two, whose filters are in the program together, as flows may wait by the first.
/// More is refused, and changes nothing.
fn the_largest_tree_is_loaded_and_leads_to_its_last_class() -> Result<()> {
    // The kernel takes four times as long for twice as many.
    let most = at_length(46, 61);
    const CLASSES_OF_TWO: usize = 31;
    const FILTERS: usize = 560;
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let receiver = row.right.enter(|| UdpSocket::bind(("0.0.0.0", 7001)))??;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let sender = row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    let mut took = Vec::new();
    let mut set = |classes: usize, turn: usize| -> Result<()> {
        let file = File::new(&tree(classes, FILTERS, turn))?;
        let begin = now();
        let done = row.weir(&format!("limit wa --rate 100mbit --classes {}", file.path()))?.success()?;
        took.push(begin.elapsed());
        let is_said = done.stderr.contains(&format!("the kernel makes the leaves of {classes} classes"));
        ensure!(
            is_said || begin.elapsed() < Duration::from_millis(1500),
            "not a word in {:?}",
            begin.elapsed()
        );
        println!("    {classes} classes in {:.1} s", begin.elapsed().as_secs_f64());
        let last = || -> Result<u64> {
            let limits = row.limits("wa")?;
            let all = limits[0]["classes"].as_array().context("no classes")?;
            let name = format!("c{}", classes - 1);
            let last = all.iter().find(|class| class["name"] == name.as_str()).context("no last class")?;
            last["delivered"].as_u64().context("no packets")
        };
        let before = last()?;
        for _ in 0..10 {
            sender.send_to(&[0; 100], (to.as_str(), 7001))?;
            receiver.recv(&mut [0; 100]).context("it does not arrive")?;
        }
        ensure!(last()? >= before + 10, "the last class has {} packets", last()?);
        row.weir("stat wa --check")?.success().map(drop)
    };
    set(most, 0)?;
    // The verifier looks at a million steps of the first program before it gives up.
    let refused = [(3 * FILTERS, "join subnets or ports"), (FILTERS, "so many classes and filters at once")];
    for (filters, sentence) in refused.into_iter().take(at_length(1, 2)) {
        let too_many = File::new(&tree(61, filters, 1))?;
        let done = row.weir(&format!("limit wa --rate 100mbit --classes {}", too_many.path()))?;
        ensure!(done.status.code() == Some(1) && done.stderr.contains(sentence), "{}", done.stderr);
        row.weir("stat wa --check")?.success()?;
    }
    row.weir("limit wa --off")?.success()?;
    set(CLASSES_OF_TWO, 0)?;
    set(CLASSES_OF_TWO, 1)?;
    row.weir("limit wa --off")?.success()?;
    // Each of 15,000 classes gets a queue.
    require_timing!(took.iter().all(|took| *took < Duration::from_secs(55)), "{took:?}");
    Ok(())
}

/// A half-made limit has no record, by which it could be put back, and one whose queue is gone is not to be set again. The file has more conditions than a program of the kernel's can ask, which is known
/// when the program is made.
fn a_limit_without_a_record_that_a_failure_takes_is_said() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let rule = |rule: u32| {
        let (from, to) = (10_000 + rule, 30_000 + rule);
        format!(
            "[[filter]]\nprotocol = \"tcp\"\ndscp = {}\nfrom_ports = \"{from}-{}\"\nto_ports = \"{to}-{}\"\nclass = \"a\"\n",
            rule % 64,
            from + 1,
            to + 1
        )
    };
    let rules: String = (0..1250).map(rule).collect();
    let file = File::new(&format!("default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"1mbit\"\n{rules}"))?;
    for (removed, sentence) in [
        ("filter del dev veth0 parent 7769:", " has lost the half-made limit that it had"),
        ("qdisc del dev veth0 root", " is as before the limit that it had, whose queue was gone"),
    ] {
        row.weir("limit wa --rate 20mbit")?.success()?;
        row.left.tc(removed)?;
        let done = row.weir(&format!("limit wa --rate 20mbit --classes {}", file.path()))?;
        ensure!(done.status.code() == Some(1), "{}", done.said());
        ensure!(
            done.stderr.contains("limits are as they were before, but veth0 in ")
                && done.stderr.contains(sentence),
            "{}",
            done.stderr
        );
        let qdisc = row.left.tc("qdisc show dev veth0")?;
        ensure!(qdisc.contains("noqueue"), "{qdisc}");
        row.weir("stat --check")?.success()?;
    }
    Ok(())
}

const HALF: &str = "default = \"b\"\n[[class]]\nname = \"a\"\nrate = \"10mbit\"\nceil = \"20mbit\"\n\
                    [[class]]\nname = \"b\"\nrate = \"5mbit\"\nceil = \"20mbit\"\n[[class]]\nname = \"c\"\nrate = \"5mbit\"\n";
/// The limit and its fallback, and each class with its leaves.
const HALF_CLASSES: usize = 2 + 3 * 273;

/// The tree is left by a command that is killed with so many classes made, by somebody who takes some away, and by one who takes the
/// filter. In CI each is either finished or removed, in turns.
fn a_tree_left_half_made_is_said_and_finished_or_removed() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let file = File::new(HALF)?;
    let command = format!("limit wa --rate 20mbit --classes {}", file.path());
    let count = || -> Result<usize> { Ok(row.left.tc("class show dev veth0 parent 7769:")?.lines().count()) };
    let whole = |what: &str| -> Result<()> {
        row.weir(&command)?.success()?;
        row.weir("stat wa --check")?.success().with_context(|| format!("finished after {what}"))?;
        ensure!(count()? == HALF_CLASSES, "{} classes after {what}", count()?);
        let queues = row.left.tc("qdisc show dev veth0")?;
        ensure!(queues.matches("qdisc tbf").count() == HALF_CLASSES - 4, "after {what}: {queues}");
        let classes = row.left.tc("class show dev veth0")?;
        ensure!(
            classes.contains("htb 7769:2 parent 7769:1"),
            "after {what} the fallback is a limit beside the limit"
        );
        row.left.sh(&format!("ping -q -c 3 -i 0.02 {to}"))?;
        Ok(())
    };
    let removed = |what: &str| -> Result<()> {
        row.weir("limit wa --off")?.success().with_context(|| format!("removed after {what}"))?;
        let qdisc = row.left.tc("qdisc show dev veth0")?;
        ensure!(qdisc.contains("noqueue"), "after {what}: {qdisc}");
        row.weir("stat --check")?.success().map(drop)
    };
    let said = |what: &str| -> Result<String> {
        let done = row.weir("stat wa --check")?;
        ensure!(done.status.code() == Some(1), "{what} is not said: {}{}", done.stdout, done.stderr);
        Ok(done.stderr)
    };
    let ends = |turn| [turn % 2 == 0, turn % 2 == 1].into_iter().take(at_length(1, 2));
    for (turn, least) in [1, HALF_CLASSES / 3, HALF_CLASSES * 2 / 3, HALF_CLASSES].into_iter().enumerate() {
        for finish in ends(turn) {
            let what = format!("a kill at {least} classes");
            row.kill_at_leaves(&command, least)?;
            // With all classes there, the kill may come after the last of its work.
            let told = row.weir("stat wa --check")?;
            let is_whole = told.success().is_ok_and(|done| done.stdout.contains("1 limit whole"));
            require_timing!(!is_whole || least == HALF_CLASSES, "whole after {what}, which came late");
            if !is_whole {
                let said = said(&what)?;
                ensure!(said.contains("half made") || said.contains("never finished"), "{what}: {said}");
            }
            if finish {
                whole(&what)?;
            }
            removed(&what)?;
        }
    }
    let takes = [
        ("the filter", "filter del dev veth0 parent 7769:", "its filter was removed"),
        ("a leaf", "class del dev veth0 classid 7769:910", "of its 821 classes"),
        ("a leaf of what passes", "class del dev veth0 classid 7769:e05", "of its 821 classes"),
    ];
    for (turn, (what, take, sentence)) in takes.into_iter().enumerate() {
        for finish in ends(turn) {
            row.weir(&command)?.success()?;
            row.left.tc(take)?;
            let said = said(what)?;
            ensure!(said.contains(sentence), "{what}: {said}");
            if finish {
                whole(what)?;
            }
            removed(what)?;
        }
    }
    Ok(())
}

/// The command that gives a limit its classes is killed while it makes their leaves; the next one names no file.
fn classes_left_half_set_are_in_force_after_any_change() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 20mbit")?.success()?;
    let file = File::new(HALF)?;
    row.kill_at_leaves(&format!("limit wa --rate 20mbit --classes {}", file.path()), HALF_CLASSES / 2)?;
    require_timing!(row.limits("wa")?[0]["stage"] == "making", "the kill came late");
    row.weir("set wa --rate 25mbit")?.success()?;
    row.left.sh(&format!("ping -q -c 3 -i 0.02 {}", row.right_address(Between::Bridge)))?;
    ensure!(delivered(&row, "b")? >= 3, "no packet is of the default class: {:?}", row.limits("wa")?);
    row.weir("stat wa --check")?.success().map(drop)
}

/// Floods are served faster than each leaf is promised. The packets that a leaf has room for take it 1.5 s at this rate, and only so long
/// may a flood have it taken for busy.
fn after_floods_new_flows_have_leaves_of_their_own() -> Result<()> {
    const FLOODS: usize = 4;
    const BYTES_EACH: usize = 150_000_000;
    /// As many as there are leaves.
    const FLOWS: usize = 256;
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 100gbit")?.success()?;
    let to = row.right_address(Between::Bridge);
    let listener = row.right.enter(|| TcpListener::bind(("0.0.0.0", 7002)))??;
    let streams = row.left.enter(|| -> std::io::Result<Vec<TcpStream>> {
        (0..FLOODS).map(|_| TcpStream::connect((to.as_str(), 7002))).collect()
    })??;
    let mut threads = Vec::new();
    for mut stream in streams {
        let (mut accepted, _) = listener.accept()?;
        threads.push(std::thread::spawn(move || -> std::io::Result<()> {
            let chunk = vec![0; 1 << 20];
            let mut left = BYTES_EACH;
            while left > 0 {
                left -= stream.write(&chunk[..left.min(chunk.len())])?;
            }
            Ok(())
        }));
        threads.push(std::thread::spawn(move || -> std::io::Result<()> {
            let mut buffer = vec![0; 1 << 20];
            while accepted.read(&mut buffer)? > 0 {}
            Ok(())
        }));
    }
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a flood panicked"))??;
    }
    let crowded = || row.limits("wa")?[0]["crowded"].as_u64().context("no count");
    let started = now();
    wait_until("each of as many flows as there are leaves has one", PATIENCE, || {
        let before = crowded()?;
        row.left.enter(|| -> std::io::Result<()> {
            for _ in 0..FLOWS {
                UdpSocket::bind(("0.0.0.0", 0))?.send_to(&[0; 100], (to.as_str(), 7003))?;
            }
            Ok(())
        })??;
        Ok(crowded()? == before)
    })?;
    require_timing!(started.elapsed() < Duration::from_secs(4), "they have after {:.1?}", started.elapsed());
    row.lossless_limit("wa").map(drop)
}

/// Forwarded packets have no sender here, and are dropped by their class's leaves, which go. No look sees less than one before.
fn counts_stay_when_classes_go() -> Result<()> {
    const CLASSES: usize = 8;
    let row = Row::new(Between::Routes)?;
    // The kernel takes the leaves of many classes away for so long that looks come between.
    let class =
        |class: usize| format!("[[class]]\nname = \"c{class}\"\nrate = \"100kbit\"\nceil = \"10mbit\"\n");
    let file = File::new(&format!("default = \"c0\"\n{}", (0..CLASSES).map(class).collect::<String>()))?;
    row.weir(&format!("limit wb --rate-back 10mbit --classes {}", file.path()))?.success()?;
    let counts = || -> Result<[u64; 6]> {
        let limit = row.limits("wb")?.swap_remove(0);
        let leaves = &limit["leaves"][1];
        let of = |count: &Value| count.as_u64().context("no count");
        Ok([
            of(&limit["dropped"]["priority"])?,
            of(&limit["dropped"]["passing-full"])?,
            of(&leaves["dropped"]["passing-full"])?,
            of(&leaves["delivered"])?,
            of(&leaves["delivered_bytes"])?,
            of(&limit["crowded"])?,
        ])
    };
    let to = row.right_address(Between::Routes);
    let load = Load::new(&row.left, &row.right, &to, FLOWS_PASSING, 1.5);
    Flood::start(&load)?.finish(PATIENCE)?;
    wait_until("nothing waits", PATIENCE, || Ok(row.limits("wb")?[0]["held"] == 0))?;
    let before = counts()?;
    let [priority, full, of_leaves, delivered, _, crowded] = before;
    ensure!(priority == 0 && full > 100 && of_leaves == full && delivered > 100, "{before:?}");
    ensure!(crowded > 0, "no leaf is shared: {before:?}");
    let mut weir = row.middle.command(weir_binary()?);
    let mut weir = Process::spawn(weir.args(["set", "wb", "--no-classes"]))?;
    let mut after = before;
    let mut is_over = false;
    while !is_over {
        is_over = !weir.is_running()?;
        let was = std::mem::replace(&mut after, counts()?);
        ensure!(after.iter().zip(&was).all(|(after, was)| after >= was), "{was:?}, then {after:?}");
    }
    weir.wait(PATIENCE)?.success()?;
    ensure!(after[..3] == before[..3], "{before:?}, then {after:?}");
    row.weir("limit wb --off")?.success().map(drop)
}

/// A filter without conditions is for all packets: those behind it are never asked.
fn a_filter_for_all_is_the_last_that_is_asked() -> Result<()> {
    let classes = |filters: &str| {
        let class =
            |name: &str| format!("[[class]]\nname = \"{name}\"\nrate = \"1mbit\"\nceil = \"10mbit\"\n");
        format!("default = \"free\"\n{}{}{filters}", class("all"), class("ping"))
    };
    let row = Row::new(Between::Bridge)?;
    let packets = |name: &str| delivered(&row, name);
    let (all, ping) =
        ("[[filter]]\nclass = \"all\"\n", "[[filter]]\nprotocol = \"icmp\"\nclass = \"ping\"\n");
    for (filters, expected) in
        [(all.to_string(), "all"), (format!("{all}{ping}"), "all"), (format!("{ping}{all}"), "ping")]
    {
        let file = File::new(&classes(&filters))?;
        row.weir(&format!("limit wa --rate 10mbit --classes {}", file.path()))?.success().context(filters)?;
        let before = packets(expected)?;
        let mut ping = row.left.command("ping");
        run(ping.args(["-n", "-q", "-c", "3", "-i", "0.1", &row.right_address(Between::Bridge)]), PATIENCE)?
            .success()?;
        ensure!(packets(expected)? >= before + 3, "{expected}");
    }
    row.weir("limit wa --off")?.success().map(drop)
}

/// The flows of the file before pass all limits, and go on meanwhile.
fn what_passed_freely_is_limited_by_another_file() -> Result<()> {
    const NAMED: &str = "[[class]]\nname = \"named\"\nrate = \"50mbit\"\nceil = \"100mbit\"\n";
    let row = Row::new(Between::Bridge)?;
    let packets = |name: &str| delivered(&row, name);
    let rule = "[[filter]]\nprotocol = \"udp\"\nto_ports = \"7003\"\nclass = \"named\"\n";
    let free = File::new(&format!("default = \"free\"\n{NAMED}{rule}"))?;
    row.weir(&format!("limit wa --rate 100mbit --classes {}", free.path()))?.success()?;
    let crowd = Crowd::start(&row.left, &row.right, &row.right_address(Between::Bridge), 4, 1000)?;
    wait_until("many have passed", PATIENCE, || Ok(packets("free")? > 10_000))?;
    let named = File::new(NAMED)?;
    let done = row.weir(&format!("limit wa --rate 100mbit --classes {}", named.path()))?.success()?;
    ensure!(!done.stderr.contains("packets still wait"), "{}", done.stderr);
    ensure!(packets("free").is_err(), "{:?}", row.limits("wa")?);
    let before = packets("named")?;
    wait_until("they pass by the limit", PATIENCE, || Ok(packets("named")? > before + 1000))?;
    require_order(&row, crowd)
}

/// The flood's packets always wait in its class, by each of the files.
fn filters_are_changed_while_a_flood_fills_a_class_that_stays() -> Result<()> {
    const FILES: u16 = 6;
    let row = Row::new(Between::Bridge)?;
    let to = row.right_address(Between::Bridge);
    let mut crowd = None;
    for port in 7010..7010 + FILES {
        let file = File::new(&two_classes(40, port))?;
        let done = row.weir(&format!("limit wa --rate 100mbit --classes {}", file.path()))?.success()?;
        ensure!(!done.stderr.contains("packets still wait"), "port {port}: {}", done.stderr);
        let before = delivered(&row, "busy")?;
        if crowd.is_none() {
            crowd = Some(Crowd::start(&row.left, &row.right, &to, 4, 1000)?);
        }
        wait_until("the class is busy", PATIENCE, || Ok(delivered(&row, "busy")? > before + 1000))?;
        let others = delivered(&row, "other")?;
        row.left.enter(|| UdpSocket::bind(("0.0.0.0", 0))?.send_to(&[0; 100], (to.as_str(), port)))??;
        wait_until("the file is in force", PATIENCE, || Ok(delivered(&row, "other")? == others + 1))?;
    }
    require_order(&row, crowd.context("senders")?)
}

/// Floods fill their leaves at a high rate, so far that the program takes these for full, and then wait at a low one while classes come.
fn classes_come_to_a_limit_that_was_lowered() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 200mbit")?.success()?;
    let crowd = Crowd::start(&row.left, &row.right, &row.right_address(Between::Bridge), 2, 1000)?;
    // More than the room of both leaves.
    let passed = || row.limits("wa")?[0]["delivered"].as_u64().context("no packets");
    wait_until("the floods have filled their leaves", PATIENCE, || Ok(passed()? > 45_000))?;
    row.weir("limit wa --rate 4mbit")?.success()?;
    let file = File::new(&two_classes(1, 7010))?;
    for _ in 0..3 {
        row.weir(&format!("limit wa --rate 4mbit --classes {}", file.path()))?.success()?;
    }
    require_order(&row, crowd)
}

/// Floods of which packets always wait stay where they were, unless the command says that they shall move: then they are all in their class,
/// by each command, and nothing is lost.
fn busy_flows_change_class_at_once_where_asked() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 20mbit")?.success()?;
    let crowd = Crowd::start(&row.left, &row.right, &row.right_address(Between::Bridge), 4, 1000)?;
    let passed = || -> Result<u64> { row.limits("wa")?[0]["delivered"].as_u64().context("no packets") };
    let waits = || -> Result<u64> { row.limits("wa")?[0]["held"].as_u64().context("no packets") };
    wait_until("packets wait", PATIENCE, || Ok(waits()? > 50))?;
    let file = File::new(&two_classes(4, 7010))?;
    let table = File::new(&format!(
        "[[limit]]\ndevice = \"wa\"\nrate = \"20mbit\"\nclasses_file = \"{}\"\n",
        file.path()
    ))?;
    for command in ["limit wa --classes", "set wa --classes", "apply"] {
        let file = if command == "apply" { table.path() } else { file.path() };
        let done = row.weir(&format!("{command} {file}"))?.success()?;
        require_timing!(
            done.stderr.contains("with --now moves them"),
            "the floods have left: {}",
            done.said()
        );
        let stat = row.weir("stat wa")?.success()?.stdout;
        ensure!(stat.contains("may stay in the class that they were in"), "{stat}");
        let done = row.weir(&format!("{command} {file} --now"))?.success()?;
        ensure!(!done.stderr.contains("with --now moves them"), "{}", done.said());
        // Those that waited pass by the class before.
        let (first, mut others) = (delivered(&row, "busy")?, 0);
        wait_until("all pass by the class", PATIENCE, || {
            let busy = delivered(&row, "busy")?;
            let others_before = std::mem::replace(&mut others, passed()? - busy);
            Ok(busy > first + 1000 && others <= others_before + 1)
        })?;
        row.weir("set wa --no-classes --now")?.success()?;
        wait_until("the classes are gone", PATIENCE, || {
            row.weir("set wa --no-classes")?.success()?;
            Ok(row.limits("wa")?[0]["classes"].as_array().is_some_and(Vec::is_empty))
        })?;
    }
    let arrived = row.all_arrived(crowd)?;
    println!("    {} arrived, {} out of order by six moves", arrived.count, arrived.reordered);
    row.lossless_limit("wa")?;
    for (command, why) in [
        ("limit wa --rate 9mbit --now", "--now is for --off, --classes and --no-classes"),
        ("set wa --rate 9mbit --now", "--now is for --classes and --no-classes"),
    ] {
        let done = row.weir(command)?;
        ensure!(done.status.code() == Some(2) && done.stderr.contains(why), "{}", done.said());
    }
    row.weir("limit wa --off")?.success().map(drop)
}

/// A file of the classes `other`, UDP to `port`, and `busy`, all else, with a rate each.
fn two_classes(mbit: u32, port: u16) -> String {
    let class = |name: &str| {
        format!("[[class]]\nname = \"{name}\"\nrate = \"{mbit}mbit\"\nceil = \"{}mbit\"\n", mbit * 2)
    };
    let (busy, other) = (class("busy"), class("other"));
    let filter = format!("[[filter]]\nprotocol = \"udp\"\nto_ports = \"{port}\"\nclass = \"other\"\n");
    format!("default = \"busy\"\n{busy}{other}{filter}")
}

/// Ends senders, all of whose packets arrive in order, and the limit.
fn require_order(row: &Row, crowd: Crowd) -> Result<()> {
    let arrived = row.all_arrived(crowd)?;
    ensure!(arrived.reordered == 0, "{} of {} out of order", arrived.reordered, arrived.count);
    row.lossless_limit("wa")?;
    row.weir("limit wa --off")?.success().map(drop)
}

/// The packets that left a class of the limit at `wa`.
fn delivered(row: &Row, name: &str) -> Result<u64> {
    let classes = row.limits("wa")?[0]["classes"].clone();
    let class = classes.as_array().context("classes")?.iter().find(|class| class["name"] == name);
    class.context("a class")?["delivered"].as_u64().context("no packets")
}
