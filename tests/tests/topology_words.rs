//! The messages on a file of limits that cannot be applied, with line and column; and that nothing is touched then.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, Process, run};
use weir_tests::classes::File;
use weir_tests::limits::{Between, Row, idle_process};
use weir_tests::state::{require_same, state};
use weir_tests::xdp::Xdp;
use weir_tests::{harness, nobody, plain, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(&[
        plain!(invalid_files_are_refused_with_their_place).together(),
        plain!(what_is_no_file_is_one_sentence).together(),
        privileged!(a_file_comes_from_standard_input).together(),
        privileged!(a_file_whose_ports_cannot_be_up_sets_no_limit).together(),
        plain!(what_a_command_does_not_do_is_told_with_what_does).together(),
        plain!(a_file_of_ports_is_applied_to_what_is_up).together(),
        plain!(keys_that_are_missing_are_told_by_check).together(),
        plain!(warnings_are_counted_by_check).together(),
        plain!(a_classes_file_is_checked_as_one).together(),
        plain!(nothing_is_applied_without_root).together(),
        privileged!(invalid_files_touch_nothing).together(),
        privileged!(what_cannot_be_is_said_before_anything_is_touched),
    ])
}

fn apply(row: &Row, file: &File) -> Result<Finished> {
    row.weir(&format!("apply {}", file.path()))
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
    ensure!(names.len() >= 200, "only {} files", names.len());
    Ok(names)
}

/// Each message has the words that stand beside the file: place, fault, cure.
fn invalid_files_are_refused_with_their_place() -> Result<()> {
    let mut wrong = Vec::new();
    for name in invalid_names()? {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.current_dir(invalid()).args(["check", &format!("{name}.toml")]), PATIENCE)?;
        let expected = std::fs::read_to_string(invalid().join(format!("{name}.told"))).unwrap_or_default();
        if done.status.code() != Some(2) || done.stderr != expected || !done.stdout.is_empty() {
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

/// `-` is standard input, and the messages call it so. A topology has its name in the file then.
fn a_file_comes_from_standard_input() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let weir = |command: &str, text: &str| -> Result<Finished> {
        let file = File::new(text)?;
        let script = format!("{} {command} - < {}", weir_binary()?.display(), file.path());
        run(row.middle.command("sh").args(["-c", &script]), PATIENCE)
    };
    let limit = "[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\nrate_back = \"10mbit\"\n";
    for (command, said) in [
        ("check", "standard input: 1 limit; nothing wrong"),
        ("apply", "applied: 1 set"),
        ("apply", "nothing to change: 1 limit as standard input says"),
        ("down", "removed: "),
    ] {
        let done = weir(command, limit)?.success()?;
        ensure!(done.stdout.contains(said), "{command}: {}", done.stdout);
    }
    let port = "[[port]]\ninterface = \"wa\"\n[[port]]\ninterface = \"wb\"\n";
    for (text, place, said) in [
        ("[[limit]]\ndevice = \"wa\"\n", "standard input:1:1: ", "rate"),
        (port, "standard input:1:1: ", "write name = "),
    ] {
        for command in ["check", "apply", "down", "up"] {
            let done = weir(command, text)?;
            let is_told = done.stderr.contains(place) && done.stderr.contains(said);
            ensure!(done.status.code() == Some(2) && is_told, "{command}: {}", done.said());
        }
    }
    Ok(())
}

/// Faults of ports that can be seen are told before anything is set; a limit that was set all the same is told.
fn a_file_whose_ports_cannot_be_up_sets_no_limit() -> Result<()> {
    let row = Row::new(Between::Bridge)?;
    let before = state(&row)?;
    row.middle.ip("link add pa type veth peer name pb")?;
    row.middle.ip("link set pb up")?;
    row.middle.ip("link set wa nomaster")?;
    let name = row.middle.name();
    let ports =
        "[[port]]\ninterface = \"wa\"\n[[port]]\ninterface = \"pa\"\n[[wire]]\nports = [\"wa\", \"pa\"]\n";
    let file =
        File::new(&format!("name = \"{name}\"\n[[limit]]\ndevice = \"wb\"\nrate = \"9mbit\"\n{ports}"))?;
    let up = || row.weir(&format!("up {}", file.path()));
    let done = up()?;
    ensure!(done.status.code() == Some(1) && done.stdout.is_empty(), "{}", done.said());
    ensure!(done.stderr.contains(".toml:8:13: interface pa is down"), "{}", done.stderr);
    ensure!(row.limits("wb").is_err(), "{:?}", row.limits("wb")?);
    row.middle.ip("link set pa up")?;
    let mut command = row.middle.command(weir_binary()?);
    let mut sink = Process::spawn(command.args(["sink", "wa"]))?;
    wait_until("the sink has its interface", PATIENCE, || {
        ensure!(sink.is_running()?, "{}", sink.stderr());
        Ok(row.middle.ip("-d link show wa")?.contains("xdp"))
    })?;
    let done = up()?;
    ensure!(done.stderr.contains(".toml:6:13: interface wa is held by process"), "{}", done.said());
    ensure!(row.limits("wb").is_err(), "{:?}", row.limits("wb")?);
    sink.stop(PATIENCE)?;
    // Somebody else's program is known when the port is taken over.
    let xdp = Xdp::counting(row.far_end(), 60)?;
    let done = up()?;
    ensure!(
        done.stderr.contains("the limits of") && done.stderr.contains("are set, and stay"),
        "{}",
        done.said()
    );
    ensure!(row.limits("wb")?.len() == 1, "{:?}", row.limits("wb")?);
    drop(xdp);
    row.weir(&format!("down {}", file.path()))?.success()?;
    row.middle.ip("link del pa")?;
    row.middle.ip("link set wa master br0")?;
    require_same(&before, &row, "what could not be up")
}

/// A task of another command is told with that command.
fn what_a_command_does_not_do_is_told_with_what_does() -> Result<()> {
    let cases: [(&[&str], &[&str]); 3] = [
        (&["up", "weir.toml", "--dry-run"], &["`weir check weir.toml`", "`weir apply weir.toml --dry-run`"]),
        (
            &["wire", "a", "b", "--queue", "5ms"],
            &["--queue says for how long packets may stand at a rate", "give --rate too"],
        ),
        (
            &["wire", "a", "b", "--burst", "50kb"],
            &["--burst is how much may pass at once of a rate", "give --rate too"],
        ),
    ];
    for (arguments, words) in cases {
        let done = run(Command::new(weir_binary()?).args(arguments), PATIENCE)?;
        let is_told = words.iter().all(|word| done.stderr.contains(word));
        ensure!(
            done.status.code() == Some(2) && done.stderr.lines().count() == 1 && is_told,
            "{arguments:?}: {}",
            done.said()
        );
    }
    for command in ["wire", "up"] {
        let help = run(Command::new(weir_binary()?).args([command, "--help"]), PATIENCE)?.success()?.stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(
            help.contains("of a wire 1 or 2, one for each end; of a topology up to one for each port"),
            "{help}"
        );
    }
    Ok(())
}

/// The examples are right; ports change only where they are up.
fn a_file_of_ports_is_applied_to_what_is_up() -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for (name, has) in [("bridge.toml", "2 ports, 1 bridge"), ("router.toml", "5 ports, 2 bridges, 1 router")]
    {
        let weir = |command: &str| {
            run(Command::new(weir_binary()?).current_dir(&examples).args([command, name]), PATIENCE)
        };
        let done = weir("check")?.success()?;
        ensure!(
            done.stderr.is_empty() && done.stdout == format!("{name}: {has}; nothing wrong\n"),
            "{}",
            done.stdout
        );
        let done = weir("apply")?;
        ensure!(done.status.code() == Some(1) && done.stderr.lines().count() == 1, "{}", done.stderr);
        ensure!(
            done.stderr.contains(&format!("is not up, so its ports cannot change: `weir up {name}` runs it")),
            "{}",
            done.stderr
        );
    }
    Ok(())
}

/// The example has no keys with it.
fn keys_that_are_missing_are_told_by_check() -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut check = Command::new(weir_binary()?);
    let done = run(check.current_dir(&examples).args(["check", "gateway.toml"]), PATIENCE)?.success()?;
    let told: Vec<_> = done.stderr.lines().collect();
    let [one, two] = told[..] else { anyhow::bail!("{}", done.stderr) };
    for (line, name, advice) in
        [(one, "one-to-two", "/dev/urandom"), (two, "two-to-one", "the key that the peer sends with")]
    {
        ensure!(line.starts_with("weir: warning: gateway.toml:"), "{line}");
        ensure!(line.contains(&format!(":12: sa \"{name}\": ")) && line.contains(advice), "{line}");
        ensure!(line.contains("umask 077"), "{line}");
    }
    ensure!(done.stdout.ends_with("nothing wrong but for 2 warnings\n"), "{}", done.stdout);
    let key = "00112233445566778899aabbccddeeff".repeat(2);
    let done = run(Command::new(weir_binary()?).args(["check", File::new(&key)?.path()]), PATIENCE)?;
    ensure!(done.status.code() == Some(2) && done.stderr.contains("***"), "{}", done.stderr);
    ensure!(!done.stderr.contains("001122"), "{}", done.stderr);
    Ok(())
}

/// The first port has classes that are guaranteed more than its rate.
fn warnings_are_counted_by_check() -> Result<()> {
    let file = File::named(
        &format!("counted-{}", std::process::id()),
        "[[port]]\ninterface = \"a\"\nrate = \"20mbit\"\n[[port.class]]\nname = \"x\"\nrate = \"30mbit\"\n\
         [[port]]\ninterface = \"b\"\n[[wire]]\nports = [\"a\", \"b\"]\n",
    )?;
    let done = run(Command::new(weir_binary()?).args(["check", file.path()]), PATIENCE)?.success()?;
    ensure!(done.stderr.matches("weir: warning: ").count() == 1, "{}", done.stderr);
    ensure!(done.stdout.ends_with("nothing wrong but for 1 warning\n"), "{}", done.stdout);
    Ok(())
}

/// A file for `--classes`, and what only a wire or a port can do of it.
fn a_classes_file_is_checked_as_one() -> Result<()> {
    let check = |text: &str| -> Result<Finished> {
        let file = File::new(text)?;
        let mut done = run(Command::new(weir_binary()?).args(["check", file.path()]), PATIENCE)?;
        done.stdout = done.stdout.replace(file.path(), "FILE");
        done.stderr = done.stderr.replace(file.path(), "FILE");
        Ok(done)
    };
    let class = "default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"1mbit\"\n";
    let filter = "[[filter]]\nto_ports = 80\nclass = \"a\"\n";
    let done = check(&format!("{class}{filter}"))?.success()?;
    ensure!(done.stdout == "FILE: 1 class and 1 filter for --classes; nothing wrong\n", "{}", done.said());
    let done = check(&format!("{class}[[class]]\nname = \"b\"\nrate = \"1mbit\"\nmax_wait = \"5ms\"\n"))?
        .success()?;
    let expected = "FILE: 2 classes and 0 filters for --classes, of a wire or a port alone (FILE:8: a limit in place holds senders and \
                    drops nothing of theirs by time); nothing wrong but for 1 warning\n";
    ensure!(done.stdout == expected, "{}", done.said());
    ensure!(
        done.stderr.starts_with("weir: warning: FILE:6:8: nothing leads to the class \"b\""),
        "{}",
        done.said()
    );
    for command in ["apply", "up", "down"] {
        let file = File::new(class)?;
        let done = run(Command::new(weir_binary()?).args([command, file.path()]), PATIENCE)?;
        let expected = format!("weir: {}: it is a file of classes", file.path());
        ensure!(done.status.code() == Some(2) && done.stderr.starts_with(&expected), "{}", done.said());
    }
    let done = check(&format!("{class}ceil = \"fast\"\n{filter}"))?;
    let expected = "weir: FILE:5:8: \"fast\" is not a rate";
    ensure!(done.status.code() == Some(2) && done.stderr.starts_with(expected), "{}", done.said());
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
        let is_trial = arguments.contains(&"--dry-run");
        ensure!(said.contains("looking at the limits that") == is_trial, "{arguments:?}: {said}");
    }
    Ok(())
}

/// The files are refused, and the kernel's state is as it was, with a limit that is there as without.
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

/// Every fault is told at once, each with its line; an interface that may be missing is skipped.
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
    ensure!(done.stderr.contains("did you mean \"wa\"?"), "{}", done.stderr);
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
    // Two names of one interface.
    let process = idle_process(&row.left)?;
    let file = File::new(&format!(
        "[[limit]]\ndevice = \"wa\"\nrate = \"10mbit\"\n[[limit]]\npid = {}\ndevice = \"veth0\"\nrate = \"5mbit\"\n",
        process.id()
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
