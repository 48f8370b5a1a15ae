//! `weir down`: whom it ends and which limits it removes, and which not; and `weir up` of a file that is up already.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_port::hold::ends::hold;
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row};
use weir_tests::topology::{Hosts, Up};
use weir_tests::{harness, nobody, privileged, stop_whole, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_file_that_is_gone_or_wrong_ends_nothing_and_a_name_does).together(),
        privileged!(a_file_whose_interfaces_have_other_names_since_is_still_its_own).together(),
        privileged!(a_file_that_is_up_is_refused_before_anything_is_set_or_waited_for).together(),
        privileged!(what_waits_for_its_interfaces_is_ended_too).together(),
        privileged!(whoever_takes_the_place_of_what_has_ended_is_left_alone).together(),
        privileged!(a_socket_that_is_removed_comes_back).together(),
        privileged!(what_was_killed_is_put_back_before_it_is_told).together(),
        privileged!(a_limit_that_may_be_anothers_is_left).together(),
        privileged!(a_limit_without_its_interface_is_not_denied).together(),
        privileged!(the_limits_of_a_file_go_together).together(),
    ])
}

const BRIDGE: &str = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[port]]\ninterface = \"p2\"\n\
                      [[bridge]]\nname = \"lan\"\nports = [\"p0\", \"p1\", \"p2\"]\n";

fn down(of: impl AsRef<Path>) -> Result<Finished> {
    run(Command::new(weir_binary()?).arg("down").arg(of.as_ref()), PATIENCE)
}

fn stat(arguments: &[&str]) -> Result<Finished> {
    run(Command::new(weir_binary()?).arg("stat").args(arguments), PATIENCE)
}

/// Commands find what is up again, which ends as any other, and leaves no socket.
fn a_socket_that_is_removed_comes_back() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let up = hosts.up(BRIDGE)?;
    let name = up.name.clone();
    let socket = PathBuf::from(format!("/run/weir/{name}.sock"));
    for _ in 0..2 {
        std::fs::remove_file(&socket)?;
        wait_until("the socket is there again", PATIENCE, || Ok(socket.exists()))?;
        stat(&[&name, "--check"])?.success()?;
    }
    ensure!(up.daemon.stderr().matches("it is there again").count() == 2, "{}", up.daemon.stderr());
    down(&name)?.success()?;
    ensure!(!socket.exists(), "{} stays", socket.display());
    Ok(())
}

/// The guardian of a process that was killed is waited for, by a name and by a file.
fn what_was_killed_is_put_back_before_it_is_told() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    for is_by_file in [false, true] {
        let mut up = hosts.up(BRIDGE)?;
        let (name, file) = (up.name.clone(), File::named(&up.name, BRIDGE)?);
        let socket = PathBuf::from(format!("/run/weir/{name}.sock"));
        up.daemon.signal(Signal::KILL)?;
        let done = if is_by_file { down(file.path())? } else { down(&name)? }.success()?;
        ensure!(!socket.exists(), "{} is there: {}", socket.display(), done.stdout);
        // It may have been put back before it was asked for.
        let said = ["was killed, and its guardian has put everything back", "is not up", "ended: "];
        ensure!(said.iter().any(|words| done.stdout.contains(words)), "{}", done.stdout);
    }
    Ok(())
}

/// A file that says nothing for sure touches nothing; the name is told, and ends it. One that was edited is still its file.
fn a_file_that_is_gone_or_wrong_ends_nothing_and_a_name_does() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let mut up = hosts.up(BRIDGE)?;
    let name = up.name.clone();
    let by_name = format!("nothing was touched: `weir down {name}` ends what is up under that name");
    let is_up = |up: &mut Up, done: Finished, words: &[&str]| -> Result<()> {
        ensure!(done.status.code() == Some(2) && done.stdout.is_empty(), "{}{}", done.stdout, done.stderr);
        ensure!(words.iter().all(|words| done.stderr.contains(words)), "{}", done.stderr);
        ensure!(up.daemon.is_running()?, "it has ended: {}", done.stderr);
        up.check()
    };
    let gone = std::env::temp_dir().join(format!("{name}.toml"));
    is_up(&mut up, down(&gone)?, &["there is no such file", &by_name])?;
    let wrong = File::named(&name, "[[port]]\ninterface = 7\n")?;
    is_up(&mut up, down(wrong.path())?, &[":2:13: invalid type", &by_name])?;
    let other = File::named(&format!("{name}-wrong"), &format!("name = \"{name}\"\n[[port]]\n"))?;
    is_up(&mut up, down(other.path())?, &[":2:1: ", &by_name])?;
    // A file of another name has the same ports.
    let renamed = File::named(&format!("{name}-other"), &format!("name = \"{name}-other\"\n{BRIDGE}"))?;
    let said = down(renamed.path())?.success()?.stdout;
    ensure!(said.contains(&format!("topology {name}-other is not up")), "{said}");
    ensure!(said.contains(&format!("`weir down {name}` would end it")), "{said}");
    up.check()?;
    let is_ended = |up: Up, done: Finished| -> Result<()> {
        let said = done.success()?.stdout;
        ensure!(said.starts_with(&format!("ended: topology {name}\n")), "{said}");
        up.ended()
    };
    is_ended(up, down(&name)?)?;
    let again = down(gone.with_extension("none.toml"))?;
    let nobody = "there is no such file, and there is no wire, topology, stack or limit called";
    ensure!(again.status.code() == Some(2) && again.stderr.contains(nobody), "{}", again.said());
    let up = hosts.up(BRIDGE)?;
    let edited = File::named(&name, "[[limit]]\ndevice = \"none\"\nrate = \"1mbit\"\n")?;
    is_ended(up, down(edited.path())?)
}

fn a_file_whose_interfaces_have_other_names_since_is_still_its_own() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let up = hosts.up(BRIDGE)?;
    (0..3).try_for_each(|number| hosts.middle.ip(&format!("link set p{number} name q{number}")).map(drop))?;
    let is_told = || Ok((0..3).all(|number| up.stderr().contains(&format!("is called q{number} now"))));
    wait_until("the names are followed", PATIENCE, is_told)?;
    let said = down(File::named(&up.name, BRIDGE)?.path())?.success()?.stdout;
    ensure!(said == format!("ended: topology {}\n", up.name), "{said}");
    up.ended()
}

/// The file was given a limit in place since, and an interface that is not there yet.
fn a_file_that_is_up_is_refused_before_anything_is_set_or_waited_for() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let up = hosts.up(BRIDGE)?;
    let name = &up.name;
    hosts.middle.ip("link add spare type veth peer name spare2")?;
    let weir = |arguments: &[&str]| {
        let mut command = hosts.middle.command(weir_binary()?);
        run(command.args(arguments), Duration::from_secs(15))
    };
    let limit = "[[limit]]\ndevice = \"spare\"\nrate = \"10mbit\"\n";
    for (text, options) in [(BRIDGE.to_string(), &[][..]), (BRIDGE.replace("p2", "late"), &["--wait", "60"])]
    {
        let edited = File::named(name, &(text + limit))?;
        let path = edited.path();
        let done = weir(&[&["up", path], options].concat())?;
        let shown = weir(&["show"])?.success()?.stdout;
        ensure!(!shown.contains("spare"), "a limit was set: {shown}");
        let words = [format!("`weir apply {path}` changes it"), format!("`weir down {name}` ends it")];
        ensure!(done.status.code() == Some(1) && done.stderr.lines().count() == 1, "{}", done.stderr);
        ensure!(words.iter().all(|words| done.stderr.contains(words)), "{}", done.stderr);
    }
    up.check()?;
    up.down().map(drop)
}

/// By its file, by its name and by a signal; and not by a file of other ports. Nothing comes up later.
fn what_waits_for_its_interfaces_is_ended_too() -> Result<()> {
    let hosts = Hosts::new(3, None)?;
    let name = hosts.middle.name();
    let file = File::named(name, BRIDGE)?;
    let socket = PathBuf::from(format!("/run/weir/{name}.waiting"));
    let up = |seconds| -> Result<Command> {
        let mut command = hosts.middle.command(weir_binary()?);
        command.arg("up").arg(file.path()).args(["--wait", seconds]);
        Ok(command)
    };
    let others = BRIDGE.replace("\"p", "\"q");
    let others = File::named(&format!("{name}-others"), &format!("name = \"{name}\"\n{others}"))?;
    let ended = format!("ended: {name}, which waited for its interfaces\n");
    for way in ["file", "name", "signal"] {
        hosts.middle.ip("link set p2 name late")?;
        let mut waits = Process::spawn(&mut up("600")?)?;
        wait_until("it says that it waits", PATIENCE, || Ok(waits.stderr().contains("for p2")))?;
        let again = run(&mut up("1")?, PATIENCE)?;
        ensure!(again.stderr.contains(&format!("`weir down {name}` ends it")), "{}", again.stderr);
        let not_up = format!("{name} is not up yet: it waits for p2");
        let all = stat(&[])?.success()?.stdout;
        ensure!(all.lines().any(|line| line == not_up), "{all}");
        let all: Value = serde_json::from_str(&stat(&["--json"])?.success()?.stdout)?;
        ensure!(all["waiting"][name] == json!(["p2"]), "{}", all["waiting"]);
        let asked = stat(&[name])?;
        let told = format!("weir: {not_up}; `weir down {name}` ends it\n");
        ensure!(!asked.status.success() && asked.stderr == told, "{}", asked.said());
        for options in [&["-Q"][..], &["--check"], &["-i", "0.1"]] {
            let said = stat(options)?.success()?.stdout;
            ensure!(said.lines().any(|line| line == not_up), "{options:?}: {said}");
        }
        let seen = nobody::weir(&["stat"], PATIENCE)?.success()?.stdout;
        ensure!(seen.lines().any(|line| line == not_up), "{seen}");
        let other = down(others.path())?.success()?.stdout;
        ensure!(other.starts_with(&format!("topology {name} is not up\n")), "{other}");
        ensure!(waits.is_running()?, "a file of other ports ended it");
        let said = match way {
            "file" => down(file.path())?.success()?.stdout,
            "name" => down(name)?.success()?.stdout,
            _ => waits.signal(Signal::TERM).map(|()| ended.clone())?,
        };
        ensure!(said.starts_with(&ended), "{said}");
        // The interface is there before it could look again.
        hosts.middle.ip("link set late name p2")?;
        let said = waits.wait(PATIENCE)?.success()?.stdout;
        ensure!(said == format!("ended: topology {name}, before its interfaces were there\n"), "{said}");
        ensure!(!socket.exists(), "{} stays", socket.display());
    }
    // One that was killed leaves its socket, which is in nobody's way; and with its interfaces there it comes up.
    hosts.middle.ip("link set p2 name late")?;
    let mut killed = Process::spawn(&mut up("600")?)?;
    wait_until("it says that it waits", PATIENCE, || Ok(killed.stderr().contains("for p2")))?;
    killed.signal(Signal::KILL)?;
    killed.wait(PATIENCE)?;
    let left = stat(&[])?.success()?;
    ensure!(!left.said().contains(name), "{}", left.said());
    let none = down(file.path())?.success()?.stdout;
    ensure!(none.starts_with(&format!("topology {name} is not up\n")), "{none}");
    let mut waits = Process::spawn(&mut up("600")?)?;
    wait_until("it says that it waits", PATIENCE, || Ok(waits.stderr().contains("for p2")))?;
    // One that does not answer is said.
    stop_whole(waits.id())?;
    for asked in [stat(&[])?, stat(&[name])?] {
        let told = format!("weir: {name} is not up yet: whoever listens at {}", socket.display());
        ensure!(!asked.status.success() && asked.stderr.contains(&told), "{}", asked.said());
    }
    waits.signal(Signal::CONT)?;
    hosts.middle.ip("link set late name p2")?;
    waits.wait_for_output("ready", PATIENCE)?;
    ensure!(!socket.exists(), "{} stays", socket.display());
    let said = down(file.path())?.success()?.stdout;
    ensure!(said.starts_with(&format!("ended: topology {name}\n")), "{said}");
    waits.wait(PATIENCE)?.success().map(drop)
}

/// A service manager starts a wire that has ended anew. This one does at once, so that somebody listens under the name all the while, and
/// ends it for nobody.
fn whoever_takes_the_place_of_what_has_ended_is_left_alone() -> Result<()> {
    let name = format!("weir-down-{}", std::process::id());
    let [place, next] = ["sock", "next"].map(|end| PathBuf::from(format!("/run/weir/{name}.{end}")));
    std::fs::create_dir_all("/run/weir")?;
    let first = UnixListener::bind(&place)?;
    let second = UnixListener::bind(&next)?;
    let restarts = std::thread::spawn({
        let (place, next) = (place.clone(), next.clone());
        move || -> Result<()> {
            loop {
                let (mut stream, _) = first.accept()?;
                let mut asked = String::new();
                BufReader::new(stream.try_clone()?).read_line(&mut asked)?;
                let is_stop = asked.contains("stop");
                if is_stop {
                    std::fs::rename(&next, &place)?;
                }
                // A wire of another version, of which the counters cannot be read. Whoever only looks has gone.
                let answered = writeln!(stream, "{{\"version\":3,\"ok\":null}}");
                if is_stop {
                    return answered.context("an answer");
                }
            }
        }
    });
    let done = down(&name);
    let _ = std::fs::remove_file(&place);
    drop(second);
    let done = done?.success()?;
    restarts.join().ok().context("it panicked")??;
    ensure!(done.stdout == format!("ended: topology {name}\n"), "{}{}", done.stdout, done.stderr);
    ensure!(done.stderr.contains(&format!("{name} is up again")), "{}", done.stderr);
    Ok(())
}

/// A row whose first pair's end in the middle is called so that no other test has a limit of that name.
fn row_with(device: &str) -> Result<Row> {
    let row = Row::new(Between::Bridge)?;
    rename(&row, "wa", device)?;
    Ok(row)
}

fn rename(row: &Row, from: &str, to: &str) -> Result<()> {
    row.middle.ip(&format!("link set {from} down"))?;
    row.middle.ip(&format!("link set {from} name {to}"))?;
    row.middle.ip(&format!("link set {to} up")).map(drop)
}

fn down_in(row: &Row, file: &File) -> Result<Finished> {
    row.weir(&format!("down {}", file.path()))
}

/// The interface of the file has another name since, and what has its name now has a limit of somebody else's, or none.
fn a_limit_that_may_be_anothers_is_left() -> Result<()> {
    let device = format!("da{}", std::process::id());
    let (old, precious) = (format!("o{device}"), format!("precious-{device}"));
    let row = row_with(&device)?;
    let file = File::named(&old, &format!("[[limit]]\ndevice = \"{device}\"\nrate = \"10mbit\"\n"))?;
    row.weir(&format!("apply {}", file.path()))?.success()?;
    row.weir(&format!("limit wb --rate 7mbit --name {precious}"))?.success()?;
    rename(&row, &device, &old)?;
    rename(&row, "wb", &device)?;
    let refused = |words: &str, limits: &[&String]| -> Result<()> {
        let done = down_in(&row, &file)?;
        ensure!(done.status.code() == Some(1) && done.stdout.is_empty(), "{} {}", done.status, done.said());
        ensure!(done.stderr.contains(words), "{}", done.stderr);
        limits.iter().try_for_each(|name| row.weir(&format!("stat {name}"))?.success().map(drop))
    };
    refused(&format!("{device} means two limits"), &[&old, &precious])?;
    let named = format!("[[limit]]\ndevice = \"{device}\"\nname = \"{precious}\"\nrate = \"7mbit\"\n");
    let said = down_in(&row, &File::named(&precious, &named)?)?.success()?.stdout;
    ensure!(said.lines().count() == 1 && said.starts_with("removed: "), "{said}");
    refused(&format!("{device} is an interface here, which has no limit, and also"), &[&old])
}

fn a_limit_without_its_interface_is_not_denied() -> Result<()> {
    let device = format!("db{}", std::process::id());
    let (moved, gamma) = (format!("o{device}"), format!("gamma-{device}"));
    let row = row_with(&device)?;
    let text = format!("[[limit]]\ndevice = \"{device}\"\nrate = \"10mbit\"\n");
    let file = File::named(&moved, &text)?;
    let apply = || row.weir(&format!("apply {}", file.path()))?.success();
    apply()?;
    row.middle.ip(&format!("link set {device} netns {}", row.right.name()))?;
    let denies_none = |limit: &str| -> Result<()> {
        let done = down_in(&row, &file)?;
        let told = format!(
            "there is no {device}, and a limit that was set for it may still be there, such as that at veth0 in network namespace {}",
            row.left.name()
        );
        ensure!(
            done.status.code() == Some(1) && done.stderr.contains(&told),
            "{} {}",
            done.status,
            done.said()
        );
        row.weir(&format!("stat {limit}"))?.success().map(drop)
    };
    // A limit that is called as its interface was set for no other.
    let other = format!("x{device}");
    rename(&row, "wb", &other)?;
    row.weir(&format!("limit {other} --rate 10mbit"))?.success()?;
    denies_none(&device)?;
    row.weir(&format!("limit {device} --off"))?.success()?;
    row.right.ip(&format!("link set {device} netns {}", row.middle.name()))?;
    row.middle.ip(&format!("link set {device} up"))?;
    apply()?;
    row.weir(&format!("limit {device} --name {gamma}"))?.success()?;
    rename(&row, &device, &moved)?;
    denies_none(&gamma)?;
    let optional = File::named(&gamma, &format!("{text}optional = true\n"))?;
    let said = down_in(&row, &optional)?.success()?.stdout;
    ensure!(said == format!("skipped: there is no {device}, which is optional\n"), "{said}");
    row.weir(&format!("limit {gamma} --off"))?.success()?;
    let said = down_in(&row, &file)?.success()?.stdout;
    ensure!(said == format!("there is no {device}, and so no limit\n"), "{said}");
    Ok(())
}

/// The command waits for the second limit's end, which the test holds. Another command would come before both are removed, or after.
fn the_limits_of_a_file_go_together() -> Result<()> {
    let device = format!("dc{}", std::process::id());
    let row = row_with(&device)?;
    let table = |device: &str| format!("[[limit]]\ndevice = \"{device}\"\nrate = \"10mbit\"\n");
    let file = File::named(&device, &(table(&device) + &table("wb")))?;
    row.weir(&format!("apply {}", file.path()))?.success()?;
    let netns = NetNs::open(Path::new(&format!("/run/netns/{}", row.right.name())))?;
    let link = netns.run(|| Link::by_name("veth0"))?;
    let held = hold(&[(&netns, &link)], &[], &mut |_| {})?;
    let mut command = row.middle.command(weir_binary()?);
    let mut going = Process::spawn(command.arg("down").arg(file.path()))?;
    wait_until("the command waits", PATIENCE, || {
        ensure!(going.is_running()?, "it has ended: {}", going.stderr());
        Ok(going.stderr().contains("waiting for "))
    })?;
    row.weir(&format!("stat {device}"))?.success().context("the first limit is gone before the second")?;
    drop(held);
    let said = going.wait(PATIENCE)?.success()?.stdout;
    ensure!(said.matches("removed: ").count() == 2, "{said}");
    Ok(())
}
