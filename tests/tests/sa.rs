//! `weir sa`: associations that IKE agreed on for the kernel, taken over by a gateway of Weir's, once or live.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, Signal, run};
use weir_tests::classes::File;
use weir_tests::topology::Hosts;
use weir_tests::{harness, plain, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(20);
const KEY: &str = "0102030405060708090a0b0c0d0e0f10a1b2c3d4";
/// The name of the key file, after the key's fingerprint.
const KEY_FILE: &str = "7c809baabf955608b02c142516a2e393.key";
/// The tables around those of an ESP.
const AROUND: &str = "[[port]]\ninterface = \"lan\"\n[[port]]\ninterface = \"wan\"\n[[epair]]\nname = \"e0\"\n\
                      [[wire]]\nports = [\"lan\", \"e0a\"]\n";

fn main() -> ExitCode {
    harness::main(&[
        plain!(what_is_printed_makes_a_file_that_is_right).together(),
        plain!(a_second_time_nothing_is_written).together(),
        plain!(what_cannot_be_taken_over_is_one_sentence).together(),
        privileged!(policies_follow_the_kernels).together(),
        privileged!(the_kernel_keeps_the_place_of_an_updated_policy).together(),
    ])
}

/// The folder of the keys; removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("weir-sa-{name}-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The output of iproute2 for a tunnel that has just been agreed on.
fn printed() -> String {
    format!(
        "src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x00001001 reqid 1 mode tunnel\n\treplay-window 0 flag af-unspec\n\
         \taead rfc4106(gcm(aes)) 0x{KEY} 128\n\tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000\n\
         \tsel src 0.0.0.0/0 dst 0.0.0.0/0 \n\
         src 10.1.0.0/24 dst 10.2.0.0/24 \n\tdir out priority 100 ptype main \n\ttmpl src 192.0.2.1 dst 192.0.2.2\n\
         \t\tproto esp reqid 1 mode tunnel\n"
    )
}

fn import(text: &str, folder: &Folder, more: &[&str]) -> Result<Finished> {
    let file = File::new(text)?;
    let keys = folder.0.display().to_string();
    let mut command = Command::new(weir_binary()?);
    run(command.args(["sa", "import", file.path(), "--keys", &keys]).args(more), LIMIT)
}

fn what_is_printed_makes_a_file_that_is_right() -> Result<()> {
    let folder = Folder::new("file")?;
    let done = import(&printed(), &folder, &["--inside", "e0b", "--outside", "wan"])?.success()?;
    ensure!(
        !format!("{}{}", done.stdout, done.stderr).contains(&KEY[..8]),
        "a key is shown: {}",
        done.stdout
    );
    let file = File::new(&format!("{AROUND}{}", done.stdout))?;
    run(Command::new(weir_binary()?).args(["check", file.path()]), LIMIT)?.success()?;
    let key = folder.0.join(KEY_FILE);
    ensure!(done.stdout.contains("\nspi = 0x1001\n"), "{}", done.stdout);
    ensure!(fs::read_to_string(&key)? == KEY);
    ensure!(fs::metadata(&key)?.permissions().mode() & 0o777 == 0o600, "others may read the key");
    ensure!(fs::read_to_string(folder.0.join(format!("{KEY_FILE}.sequence")))? == "1\n");
    // Associations alone, for a file that has its [[esp]].
    let alone = import(&printed(), &folder, &[])?.success()?;
    ensure!(alone.stdout.contains("[[sa]]") && !alone.stdout.contains("[[esp]]"), "{}", alone.stdout);
    Ok(())
}

fn a_second_time_nothing_is_written() -> Result<()> {
    let folder = Folder::new("twice")?;
    let first = import(&printed(), &folder, &[])?.success()?;
    let mark = folder.0.join(format!("{KEY_FILE}.sequence"));
    // `weir up` writes the mark so.
    fs::write(&mark, "8193 of this key\n")?;
    ensure!(import(&printed(), &folder, &[])?.success()?.stdout == first.stdout);
    ensure!(fs::read_to_string(&mark)? == "8193 of this key\n", "the numbers begin again");
    // Another key has another file.
    import(&printed().replace("a1b2c3d4", "00000000"), &folder, &[])?.success()?;
    ensure!(fs::read_dir(&folder.0)?.count() == 4 && fs::read_to_string(folder.0.join(KEY_FILE))? == KEY);
    Ok(())
}

fn what_cannot_be_taken_over_is_one_sentence() -> Result<()> {
    let folder = Folder::new("refused")?;
    for (text, expected) in [
        (
            printed().replace("oseq 0x0", "oseq 0x7"),
            "the kernel has sent 7 packets with the key of SPI 0x1001",
        ),
        (printed().replace("proto esp spi", "proto ah spi"), "line 2: proto ah is not built"),
        (printed().replace(&format!("0x{KEY}"), "<<Keys hidden>>"), "line 4: this shows no key"),
        (
            printed().split("\tanti-replay").next().unwrap_or_default().into(),
            "line 1: the counters of this association (oseq) are missing",
        ),
        (String::new(), "there is no association"),
        ("nonsense\n".into(), "line 1: this is not what"),
    ] {
        let done = import(&text, &folder, &[])?;
        ensure!(done.status.code() == Some(2) && done.stdout.is_empty(), "{}: {}", done.status, done.stdout);
        ensure!(done.stderr.contains(expected) && done.stderr.lines().count() == 1, "{}", done.stderr);
    }
    let of = |file: &str, keys: &str| -> Result<String> {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.args(["sa", "import", file, "--keys", keys]), LIMIT)?;
        ensure!(done.status.code() == Some(2) && done.stdout.is_empty(), "{}: {}", done.status, done.stdout);
        ensure!(done.stderr.lines().count() == 1, "{}", done.stderr);
        Ok(done.stderr)
    };
    let keys = folder.0.display().to_string();
    let told = of("/nowhere/at-all", &keys)?;
    ensure!(told.contains("/nowhere/at-all"), "{told}");
    // Keys go where nobody else may enter.
    let file = File::new(&printed())?;
    let told = of(file.path(), "/nowhere/keys")?;
    ensure!(
        told.contains("/nowhere/keys: No such file") && told.contains("mkdir -m 700 /nowhere/keys"),
        "{told}"
    );
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755))?;
    let told = of(file.path(), &keys)?;
    ensure!(told.contains("may enter: make one by mkdir -m 700"), "{told}");
    ensure!(fs::read_dir(&folder.0)?.next().is_none(), "something was written");
    Ok(())
}

/// Two hosts on one network, and a gateway between them that nothing passes without a policy.
const GATEWAY: &str = r#"
[[port]]
interface = "p0"
name = "lan"
[[port]]
interface = "p1"
name = "wan"
[[esp]]
name = "tunnel"
inside = "lan"
outside = "wan"
address = ["10.99.1.9"]
"#;

/// The gateway follows the events of this machine's kernel, which need not have ESP: packets that a policy allows pass, and those that none
/// names do not.
fn policies_follow_the_kernels() -> Result<()> {
    let hosts = Hosts::new(2, None)?;
    for host in 0..2 {
        hosts.address(host, &format!("10.99.1.{}/24", host + 1))?;
    }
    let up = hosts.up(GATEWAY)?;
    let folder = Folder::new("follow")?;
    let keys = folder.0.display().to_string();
    let follow = |more: &[&str]| -> Result<Command> {
        let mut command = hosts.middle.command(weir_binary()?);
        command.args(["sa", "follow", &up.name, "--keys", &keys]).args(more);
        Ok(command)
    };
    let pinged = || -> Result<bool> {
        let mut ping = hosts.hosts[0].command("ping");
        Ok(run(ping.args(["-n", "-q", "-c", "1", "-W", "1", "10.99.1.2"]), LIMIT)?.status.success())
    };
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755))?;
    let others = run(&mut follow(&[])?, LIMIT)?;
    ensure!(
        others.status.code() == Some(2) && others.stderr.contains("only root may enter"),
        "{}",
        others.stderr
    );
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700))?;
    let none = run(&mut follow(&["--esp", "tunel"])?, LIMIT)?;
    ensure!(
        none.status.code() == Some(2) && none.stderr.contains("did you mean \"tunnel\""),
        "{}",
        none.stderr
    );

    // One policy is there before, the other comes while it listens.
    let policy = "src 10.99.1.0/24 dst 10.99.1.0/24 dir";
    hosts.middle.ip(&format!("xfrm policy add {policy} out"))?;
    let dry = run(&mut follow(&["--dry-run"])?, LIMIT)?.success()?;
    ensure!(dry.stdout.contains("~ esp tunnel: policy 1 out 10.99.1.0/24"), "{}", dry.stdout);
    ensure!(!pinged()?, "what no policy names passes");
    let mut following = Process::spawn(&mut follow(&[])?)?;
    following.wait_for_output("out 10.99.1.0/24 to 10.99.1.0/24 bypass", LIMIT)?;
    hosts.middle.ip(&format!("xfrm policy add {policy} in"))?;
    following.wait_for_output("+ policy in from 10.99.1.0/24 to 10.99.1.0/24", LIMIT)?;
    following.wait_for_output(" in 10.99.1.0/24 to 10.99.1.0/24 bypass\n", LIMIT)?;
    wait_until("what both policies let passes", LIMIT, &pinged).with_context(|| following.stdout())?;

    // More events than the socket has room for: it reads all again.
    following.signal(Signal::STOP)?;
    let updates = format!("xfrm policy update {policy} in priority 7\n").repeat(20_000);
    let batch = File::new(&format!("{updates}xfrm policy update {policy} in action block priority 9\n"))?;
    run(hosts.middle.command("ip").args(["-batch", batch.path()]), LIMIT)?.success()?;
    following.signal(Signal::CONT)?;
    following.wait_for_output("events were lost", LIMIT)?;
    following.wait_for_output("in 10.99.1.0/24 to 10.99.1.0/24 discard", LIMIT)?;
    ensure!(!pinged()?, "what is blocked passes");

    // A change of others is put right, and when it ends all stays.
    hosts.middle.ip("xfrm policy flush")?;
    following.wait_for_output("- all policies", LIMIT)?;
    following.stop(LIMIT)?.success()?;
    let shown = up.weir(&["show", &up.name])?.success()?.stdout;
    ensure!(!shown.contains("[[policy]]"), "{shown}");
    run(&mut follow(&["--once"])?, LIMIT)?.success()?;
    up.check()?;
    up.down().map(drop)
}

/// Of two policies of one priority and one list the older is asked first, also once it is updated, unless it had another priority in between:
/// `weir sa follow` relies on that.
fn the_kernel_keeps_the_place_of_an_updated_policy() -> Result<()> {
    let hosts = Hosts::new(1, None)?;
    hosts.address(0, "10.99.1.1/24")?;
    let host = &hosts.hosts[0];
    let is_blocked = || -> Result<bool> {
        // Its socket is refused before a packet is sent.
        let ping = run(host.command("ping").args(["-n", "-q", "-c", "1", "-W", "1", "10.99.1.2"]), LIMIT)?;
        Ok(ping.stderr.contains("not permitted"))
    };
    let [net, wide, any] = ["10.99.1.0/24", "10.98.0.0/15", "0.0.0.0/0"];
    for (of_old, of_new) in [
        ([net; 2], [net; 2]),
        ([net; 2], ["10.99.0.0/16"; 2]),
        (["10.99.1.1", net], [net; 2]),
        (["10.99.1.1", "10.99.1.2"], ["10.99.1.1", "10.99.1.2"]),
        ([wide, net], [any, net]),
        ([net, wide], [net, any]),
        ([wide; 2], [any; 2]),
    ] {
        let of = |verb: &str, [source, destination]: [&str; 2], more: &str| {
            host.ip(&format!("xfrm policy {verb} src {source} dst {destination} {more}"))
        };
        let block =
            |verb, priority| of(verb, of_old, &format!("proto udp dir out action block priority {priority}"));
        host.ip("xfrm policy flush")?;
        block("add", 100)?;
        of("add", of_new, "dir out priority 100")?;
        ensure!(is_blocked()?, "{of_old:?}, {of_new:?}: the older is not asked first");
        block("update", 100)?;
        ensure!(is_blocked()?, "{of_old:?}, {of_new:?}: the update goes behind");
        block("update", 101)?;
        block("update", 100)?;
        ensure!(!is_blocked()?, "{of_old:?}, {of_new:?}: the priority is another and back, and it is first");
    }
    Ok(())
}
