//! Attackers of a wire, each with what they can reach: the cells of `docs/attackers.md` that no other file of tests holds.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::clock;
use weir_lab::ping::Ping;
use weir_lab::process::{Finished, Process, run};
use weir_lab::wire::Wire;
use weir_port::features;
use weir_port::link::Link;
use weir_tests::classes::{File, two_classes};
use weir_tests::host::Host;
use weir_tests::kernel::{require_same, traces};
use weir_tests::limits::{Between, Row};
use weir_tests::raw::{Random, RawSocket, frame};
use weir_tests::rig::Rig;
use weir_tests::{harness, nobody, plain, privileged, require_timing, weir_binary};

const LIMIT: Duration = Duration::from_secs(30);
/// A user who owns nothing.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(any_user_reads_counters_and_only_root_changes_a_wire).together(),
        privileged!(silent_clients_hold_nobody_up).together(),
        privileged!(a_user_locks_nothing_that_a_weir_waits_for).together(),
        privileged!(modes_are_what_they_should_be_whatever_the_umask).together(),
        privileged!(a_directory_of_another_user_is_refused).together(),
        privileged!(a_link_in_the_place_of_a_socket_is_not_followed).together(),
        privileged!(a_full_run_at_the_start_is_one_sentence).together(),
        plain!(a_classes_file_that_is_none_is_refused_at_once).together(),
        plain!(a_name_leads_nowhere).together(),
        plain!(a_link_in_the_place_of_a_report_is_not_followed).together(),
        privileged!(a_far_end_may_be_called_anything).together(),
        privileged!(a_name_that_is_no_text_hides_no_limit).together(),
        privileged!(a_queue_that_any_user_can_make_is_no_limit).together(),
        privileged!(an_end_whose_name_is_no_text_is_put_back).together(),
        privileged!(programs_of_the_working_directory_are_not_run).together(),
        privileged!(malformed_frames_harm_nobody).flooding(),
        privileged!(root_of_a_container_harms_its_own_wire_alone).together(),
    ])
}

fn socket_of(wire: &Wire) -> String {
    format!("/run/weir/{}.sock", wire.name())
}

fn any_user_reads_counters_and_only_root_changes_a_wire() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let shown = nobody::weir(&["stat", wire.name(), "--check"], LIMIT)?.success()?;
    ensure!(shown.stdout.contains("conservation holds"), "{}", shown.stdout);
    let done = nobody::weir(&["set", wire.name(), "--rate", "1mbit"], LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    ensure!(done.stderr.contains("only root may change a wire: run it with sudo"), "{}", done.stderr);
    let done = nobody::weir(&["show", wire.name()], LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    let why = "only root may see the file of a wire, or change it: run it with sudo";
    ensure!(done.stderr == format!("weir: {why}\n"), "{}", done.stderr);
    let rate = || Ok::<_, anyhow::Error>(wire.stat()?["wires"][0]["classes"][0]["rate_bits_per_s"].as_u64());
    ensure!(rate()? == Some(200_000_000), "{:?}", rate()?);
    let done = wire.weir(&["set", wire.name(), "--rate", "1mbit"])?.success()?;
    ensure!(rate()? == Some(1_000_000), "{:?}", rate()?);
    let line = format!("wire {} changed: wa->wb 200mbit -> 1mbit", wire.name());
    ensure!(done.stdout.starts_with(&line) && done.stdout.lines().count() == 1, "{}", done.stdout);
    let shown = nobody::weir(&["stat"], LIMIT)?;
    let said =
        shown.stderr.lines().filter(|line| line.contains("shown to root with CAP_SYS_ADMIN alone")).count();
    ensure!(said == 1, "{}", shown.stderr);
    let near = &wire.name()[1..];
    let shown = nobody::weir(&["stat", near], LIMIT)?;
    let nearest = format!("did you mean \"{}\"?", wire.name());
    ensure!(shown.stderr.contains(&nearest) && shown.stderr.contains("try sudo"), "{}", shown.stderr);
    wire.stop()?;
    Ok(())
}

/// Some clients send nothing, some half a request, and some ask and do not read.
fn silent_clients_hold_nobody_up() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let mut silent = Vec::new();
    for number in 0..40 {
        let mut client = UnixStream::connect(socket_of(&wire))?;
        client.write_all([&b""[..], b"\"st", b"\"stat\"\n"][number % 3])?;
        silent.push(client);
    }
    let begin = clock::now();
    wire.weir(&["stat", wire.name(), "--check"])?.success()?;
    wire.weir(&["set", wire.name(), "--rate", "100mbit"])?.success()?;
    // One after the other, a second each, the clients would have taken 26 s.
    require_timing!(begin.elapsed() < Duration::from_secs(5), "an answer took {:?}", begin.elapsed());
    for mut client in silent {
        client.set_read_timeout(Some(LIMIT))?;
        client.read_to_end(&mut Vec::new()).context("a silent client is not let go")?;
    }
    wire.stop()?;
    Ok(())
}

/// A user who may open a directory may lock it for as long as they like.
fn a_user_locks_nothing_that_a_weir_waits_for() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    // A weir that was there before made the directories.
    rig.wire(&[])?.stop()?;
    let mut lockers = Vec::new();
    for directory in ["/run/weir", "/run/weir/holds"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        // Its input ends with this test, and with that the lock.
        command.args(["flock", "--exclusive", directory, "sh", "-c", "echo locked; read end"]);
        let locker = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        lockers.push(locker);
    }
    let mut said = [String::new(), String::new()];
    for (locker, said) in lockers.iter_mut().zip(&mut said) {
        let mut byte = [0];
        let mut out = locker.stdout.take().context("its output")?;
        while out.read(&mut byte)? > 0 && byte != *b"\n" {
            said.push(byte[0].into());
        }
    }
    let begin = clock::now();
    let done = rig.wire(&["--rate", "200mbit"]).and_then(Wire::stop);
    let took = begin.elapsed();
    for mut locker in lockers {
        drop(locker.stdin.take());
        locker.wait()?;
    }
    done?;
    // A wire that waits for such a lock waits for ever.
    require_timing!(took < Duration::from_secs(10), "a wire took {took:?} to come and go");
    ensure!(said == ["locked", ""], "{said:?}");
    Ok(())
}

fn modes_are_what_they_should_be_whatever_the_umask() -> Result<()> {
    for umask in ["000", "077"] {
        let rig = Rig::new(1, 1)?;
        let script = format!("umask {umask}; exec \"$@\"");
        let weir = weir_binary()?.display().to_string();
        let mut command = rig.middle.command("sh");
        command.args(["-c", &script, "sh", &weir, "wire", "wa", "wb", "--name", rig.middle.name()]);
        let mut process = Process::spawn(&mut command)?;
        process.wait_for_output("ready", LIMIT)?;
        let directory = std::fs::metadata("/run/weir")?;
        ensure!((directory.mode() & 0o7777, directory.uid()) == (0o755, 0), "{:o}", directory.mode());
        let socket = std::fs::metadata(format!("/run/weir/{}.sock", rig.middle.name()))?;
        ensure!((socket.mode() & 0o7777, socket.uid()) == (0o666, 0), "{:o}", socket.mode());
        process.stop(LIMIT)?.success()?;
    }
    Ok(())
}

/// `weir wire` with a `/run` of its own that `prepare` has made, to its end.
fn wire_where(rig: &Rig, prepare: &str, after: &str) -> Result<Finished> {
    let weir = weir_binary()?.display().to_string();
    let script = format!(
        "names=$(mktemp -d) && mount --rbind /run/netns $names && mount -t tmpfs none /run && mkdir /run/netns && \
         mount --rbind $names /run/netns && umount -l $names && rmdir $names && {prepare} && {{ {weir} wire wa wb --name own & }} && \
         for i in $(seq 200); do {weir} stat own >/dev/null 2>&1 && break; kill -0 $! 2>/dev/null || break; sleep 0.05; done; \
         {after}; kill -INT $! 2>/dev/null; wait $!"
    );
    run(rig.middle.command("unshare").args(["--mount", "sh", "-c", &script]), LIMIT)
}

/// The owner of the directory could answer `weir stat` in the wire's place, or take its name.
fn a_directory_of_another_user_is_refused() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    for prepare in [
        format!("mkdir /run/weir && chown {NOBODY} /run/weir"),
        "mkdir /run/other && ln -s other /run/weir".into(),
    ] {
        let done = wire_where(&rig, &prepare, "true")?;
        ensure!(done.status.code() == Some(1), "it ended with {}: {}", done.status, done.stderr);
        let is_said = done.stderr.contains("/run/weir") && done.stderr.contains("remove it");
        ensure!(is_said && done.stderr.lines().count() == 1, "{}", done.stderr);
    }
    Ok(())
}

fn a_link_in_the_place_of_a_socket_is_not_followed() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let prepare = "mkdir /run/weir && echo precious >/run/precious && ln -s ../precious /run/weir/own.sock";
    let after = "stat -c 'kind %F' /run/weir/own.sock; stat -c 'mode %a' /run/precious; cat /run/precious";
    let done = wire_where(&rig, &format!("umask 022 && {prepare}"), after)?.success()?;
    for line in ["kind socket", "mode 644", "precious"] {
        ensure!(done.stdout.lines().any(|shown| shown == line), "no {line}: {}{}", done.stdout, done.stderr);
    }
    Ok(())
}

/// The file system has room for fewer files than a wire makes, down to none.
fn a_full_run_at_the_start_is_one_sentence() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let before = [traces(&rig.left)?, traces(&rig.middle)?, traces(&rig.right)?];
    for files in [0, 1, 3, 5] {
        // The directory itself takes one more.
        let prepare = format!(
            "mkdir /run/weir && mount -t tmpfs -o size=64k,mode=755,nr_inodes={} none /run/weir",
            files + 1
        );
        let done = wire_where(&rig, &prepare, "true")?;
        let said = format!("with room for {files} files it ended with {}: {}", done.status, done.stderr);
        ensure!(done.status.code() == Some(1), "{said}");
        ensure!(done.stderr.lines().count() == 1 && done.stderr.contains("/run/weir"), "{said}");
        for (before, namespace) in before.iter().zip([&rig.left, &rig.middle, &rig.right]) {
            require_same(before, &traces(namespace)?)?;
        }
    }
    Ok(())
}

/// A directory of a test's own, removed with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Result<Directory> {
        let path = std::env::temp_dir().join(format!("weir-attackers-{}-{name}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Directory(path))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn require_refused(done: &Finished, why: &str) -> Result<()> {
    ensure!(done.status.code() == Some(2), "`{}` ended with {}: {}", done.what, done.status, done.stderr);
    ensure!(done.stderr.contains(why) && done.stderr.lines().count() == 1, "no {why:?}: {}", done.stderr);
    Ok(())
}

/// A file without an end, one that nobody writes to, one that is too long.
fn a_classes_file_that_is_none_is_refused_at_once() -> Result<()> {
    let directory = Directory::new("classes")?;
    let (fifo, huge) = (directory.file("fifo"), directory.file("huge"));
    run(Command::new("mkfifo").arg(&fifo), LIMIT)?.success()?;
    std::fs::File::create(&huge)?.set_len(5 << 20)?;
    let limit = Duration::from_secs(10);
    for (file, why) in [
        (fifo.as_str(), "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("/dev/null", "not a regular file"),
        (&huge, "longer than"),
        ("/", "directory"),
    ] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.args(["wire", "wa", "wb", "--classes", file]), limit)?;
        require_refused(&done, why)?;
    }
    Ok(())
}

fn a_name_leads_nowhere() -> Result<()> {
    let long = "x".repeat(65);
    let names = ["../../tmp/x", "a/b", "..", ".hidden", "", "a b", "a\u{1b}[2J", "a\nb", &long];
    for name in names {
        for arguments in
            [&["wire", "wa", "wb", "--name", name][..], &["stat", name], &["set", name, "--rate", "1mbit"]]
        {
            let done = run(Command::new(weir_binary()?).args(arguments), LIMIT)?;
            ensure!(
                done.status.code() == Some(2),
                "`{}` ended with {}: {}",
                done.what,
                done.status,
                done.stderr
            );
            ensure!(!done.stderr.contains('\u{1b}'), "{:?}", done.stderr);
        }
    }
    Ok(())
}

/// The owner of the directory would choose which file of root's is written to.
fn a_link_in_the_place_of_a_report_is_not_followed() -> Result<()> {
    let directory = Directory::new("report")?;
    let (precious, link) = (directory.file("precious"), directory.file("report"));
    std::fs::write(&precious, "precious")?;
    std::os::unix::fs::symlink(&precious, &link)?;
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o777))?;
    for option in ["--json", "--html"] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.args(["lab", "ifq", option, &link]), LIMIT)?;
        require_refused(&done, "it is a link in a directory where others may write")?;
    }
    ensure!(std::fs::read_to_string(&precious)? == "precious", "it was written to");
    Ok(())
}

/// The container's root names its end; the host's root reads the name.
fn a_far_end_may_be_called_anything() -> Result<()> {
    for name in ["\u{1b}[2Jx", "-rf", "a'b\"$(id)", "..x", "\u{e9}"] {
        let rig = Rig::new(1, 1)?;
        let rename = |from: &str, to: &str| -> Result<()> {
            rig.left.ip(&format!("link set dev {from} down"))?;
            rig.left.ip(&format!("link set dev {from} name {to}"))?;
            rig.left.ip(&format!("link set dev {to} up")).map(drop)
        };
        rename("veth0", name)?;
        let before = rig.left.tc(&format!("qdisc show dev {name}"))?;
        let wire = rig.wire(&["--rate", "200mbit"])?;
        rig.left.sh(&format!("ping -q -c 1 -W 5 {}", rig.right_address().v4))?;
        let text = wire.weir(&["stat", wire.name()])?.success()?.stdout;
        ensure!(!text.contains('\u{1b}'), "a name reaches the terminal: {text:?}");
        ensure!(wire.stat()?["ports"][0]["sender"] == name, "{}", wire.stat()?["ports"]);
        wire.check()?;
        let done = wire.stop()?;
        ensure!(done.status.success() && !done.stderr.contains('\u{1b}'), "{:?}", done.stderr);
        let after = rig.left.tc(&format!("qdisc show dev {name}"))?;
        ensure!(before == after, "{name}: {before:?} became {after:?}");
    }
    Ok(())
}

/// Gives `veth0` of a host a name that is no text, as any user may in a namespace of their own.
fn rename_to_no_text(host: &Namespace) -> Result<()> {
    host.ip("link set dev veth0 down")?;
    let mut rename = host.command("ip");
    rename.args(["link", "set", "dev", "veth0", "name"]).arg(OsStr::from_bytes(b"a\xfe"));
    run(&mut rename, LIMIT)?.success().map(drop)
}

/// A queue under the handle of limits, at such an interface, is a limit to `weir`; the others of the machine are seen and changed.
fn a_name_that_is_no_text_hides_no_limit() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let name = row.middle.name();
    row.weir(&format!("limit wa --rate 10mbit --name {name}"))?.success()?;
    // The limit's own interface, and a queue that no limit made.
    let stranger = Namespace::new("stranger")?;
    stranger.ip("link add veth0 type veth peer name veth1")?;
    stranger.tc("qdisc add dev veth0 root handle 7769: htb default 2 direct_qlen 0")?;
    for host in [&row.left, &stranger] {
        rename_to_no_text(host)?;
    }
    let all: Value = serde_json::from_str(&row.weir("stat --json")?.success()?.stdout)?;
    let is_seen = |limit: &Value| limit["name"] == name && limit["interface"] == "a\u{fffd}";
    ensure!(all["limits"].as_array().is_some_and(|limits| limits.iter().any(is_seen)), "{}", all["limits"]);
    row.weir(&format!("set {name} --rate 20mbit"))?.success()?;
    row.weir(&format!("limit {name} --off"))?.success()?;
    let left = row.left.tc("qdisc show")?;
    ensure!(!left.contains("htb"), "{left}");
    Ok(())
}

/// Any user is root of the namespaces in a user namespace of their own, and the handle of limits is no secret.
fn a_queue_that_any_user_can_make_is_no_limit() -> Result<()> {
    const SCRIPT: &str = "ip link add veth0 type veth peer name veth1 && \
         tc qdisc add dev veth0 root handle 7769: htb default 2 direct_qlen 0 && echo made && exec cat";
    let row = Row::new(Between::Bridge)?;
    row.weir("limit wa --rate 10mbit")?.success()?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command.args(["unshare", "--user", "--map-root-user", "--net", "sh", "-c", SCRIPT]);
    let mut nobodys = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut said = [0; 5];
    nobodys.stdout.take().context("no output")?.read_exact(&mut said).context("no queue was made")?;
    let checked = row.weir("stat --check");
    // `cat` ends with its input.
    drop(nobodys.stdin.take());
    nobodys.wait()?;
    let checked = checked?.success()?;
    ensure!(checked.stdout.contains("1 limit whole"), "{}", checked.stdout);
    row.weir("limit wa --off")?.success().map(drop)
}

fn an_end_whose_name_is_no_text_is_put_back() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let number = rig.left.enter(|| Link::by_name("veth0").map(|link| link.ifindex))??;
    let leaves_checksums = || -> Result<bool> {
        Ok(rig.left.enter(|| {
            Link::by_index(number)
                .and_then(|link| features::offloads(&link).map(|on| !on.checksums.is_empty()))
        })??)
    };
    ensure!(leaves_checksums()?, "a new pair fills checksums in");
    let wire = rig.wire(&[])?;
    ensure!(!leaves_checksums()?, "a wire leaves checksums open");
    rename_to_no_text(&rig.left)?;
    wire.stop()?.success()?;
    ensure!(leaves_checksums()?, "checksum offload is not as before");
    Ok(())
}

/// No program or file that a wire or a run needs is looked for by `PATH`, or in the directory it was started in.
fn programs_of_the_working_directory_are_not_run() -> Result<()> {
    let directory = Directory::new("path")?;
    let ran = directory.file("ran");
    for name in ["ip", "nft", "tc", "ethtool", "sysctl", "modprobe", "weir", "sh", "env"] {
        let file = directory.file(name);
        std::fs::write(&file, format!("#!/bin/bash\n/bin/echo {name} >>{ran}\n"))?;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755))?;
    }
    let host = Host::alone()?;
    let weir = weir_binary()?.display().to_string();
    let path = format!("PATH={}:.:", directory.0.display());
    // The namespace's own command is found first, then everything is as its owner likes.
    let mut command = host.namespace.command("/usr/bin/env");
    command
        .arg(&path)
        .arg(&weir)
        .args(["run", "--rate", "1mbit", "--", "/bin/true"])
        .current_dir(&directory.0);
    run(&mut command, LIMIT)?.success()?;
    let rig = Rig::new(1, 1)?;
    let mut command = rig.middle.command("/usr/bin/env");
    command.arg(&path).arg(&weir).args(["wire", "wa", "wb", "--name", rig.middle.name()]);
    let mut process = Process::spawn(command.current_dir(&directory.0))?;
    process.wait_for_output("ready", LIMIT)?;
    process.stop(LIMIT)?.success()?;
    ensure!(!std::path::Path::new(&ran).exists(), "it ran {}", std::fs::read_to_string(&ran)?);
    Ok(())
}

/// Headers with false fields, in frames of every length, through classes that look into them.
fn malformed_frames_harm_nobody() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let file = File::new(&two_classes("100mbit", "100mbit"))?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let seed = 0xbad;
    let mut random = Random(seed);
    let socket = RawSocket::open(rig.left_end())?;
    for number in 0..4000 {
        let length = random.between(14, 300);
        let mut frame = frame(number, length.max(18), None, &mut random);
        frame.truncate(length);
        let kind = [0x0800u16, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x8864][random.between(0, 5)];
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        if let Some(first) = frame.get_mut(14) {
            // Versions and header lengths that parsers look at, true or not.
            *first = [0x45, 0x46, 0x4f, 0x40, 0x60, 0x6f, 0x55, 0][random.between(0, 7)];
        }
        socket.send(&frame).with_context(|| format!("frame {number} of seed {seed:#x}"))?;
    }
    rig.left.sh(&format!("ping -q -c 3 -i 0.05 -W 5 {}", rig.right_address().v4))?;
    clock::wait_until("all has left", LIMIT, || Ok(wire.stat()?["totals"]["held"] == 0))?;
    ensure!(wire.stat()?["totals"]["accepted"].as_u64() >= Some(4000), "{}", wire.stat()?["totals"]);
    wire.check()?;
    wire.stop()?.success()?;
    Ok(())
}

/// The root of a container may do anything with its own end.
fn root_of_a_container_harms_its_own_wire_alone() -> Result<()> {
    let [rude, other] = [Rig::new(1, 1)?, Rig::new(1, 1)?];
    let (rude_wire, wire) = (rude.wire(&["--rate", "200mbit"])?, other.wire(&["--rate", "200mbit"])?);
    let address = other.right_address().v4;
    let (ping, begin) = (Ping::start_series(&other.left, &address, 100, 0.05)?, clock::now());
    for rudeness in [
        "ip link set veth0 down",
        "ip link set veth0 up",
        "tc qdisc replace dev veth0 root pfifo limit 1",
        "ethtool -K veth0 tx on",
        "ip link set veth0 mtu 600",
        "ip link set veth0 address 02:00:00:00:00:99",
        "ip link set veth0 txqueuelen 1",
        "ip link del veth0",
    ] {
        // A command that is refused harms nobody either.
        let _ = rude.left.sh(rudeness);
        clock::let_pass(Duration::from_millis(100), |_| ())?;
    }
    require_timing!(begin.elapsed() < Duration::from_secs(5), "the other wire's ping may have ended before");
    ping.finish()?.require_all()?;
    wire.check()?;
    wire.stop()?.success()?;
    // The wire's interface is gone, and so is the wire, in one sentence.
    let done = rude_wire.wait()?;
    ensure!(done.status.code() == Some(1) && done.stderr.contains("vanished"), "{}", done.stderr);
    Ok(())
}
