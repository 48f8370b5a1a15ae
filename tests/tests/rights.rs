//! The rights that the processes of Weir keep, and those of a program of `weir run`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock;
use weir_lab::process::{Process, Signal, run};
use weir_tests::host::Host;
use weir_tests::lacking::Lacking;
use weir_tests::pair::Pair;
use weir_tests::rig::Rig;
use weir_tests::{harness, nobody, privileged};

const LIMIT: Duration = Duration::from_secs(30);
/// A user who owns nothing.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_wire_and_its_guardian_keep_few_rights).together(),
        privileged!(a_wire_leaves_no_core_dump_where_there_are_no_seccomp_filters).together(),
        privileged!(generators_and_sinks_keep_few_rights).together(),
        privileged!(a_program_run_under_sudo_is_the_user_who_called_it).together(),
        privileged!(a_program_is_root_where_that_is_asked_for).together(),
        privileged!(signals_reach_a_program_of_another_user).together(),
        privileged!(a_user_namespace_has_nothing_of_the_machine_removed).together(),
    ])
}

/// The directory is that of the machine's root, whom the namespace does not know.
fn a_user_namespace_has_nothing_of_the_machine_removed() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    run(&mut rig.weir(&["limit", "wa", "--rate", "10mbit"]), LIMIT)?.success()?;
    let done = nobody::weir_in_user_namespace(&["limit", "lo", "--rate", "1mbit"], LIMIT)?;
    ensure!(done.status.code() == Some(1), "{}", done.said());
    ensure!(!done.stderr.contains("remove it"), "{}", done.stderr);
    ensure!(done.stderr.contains("run weir as root outside of it"), "{}", done.stderr);
    Ok(())
}

/// `net_broadcast`, `net_admin`, `net_raw`, `ipc_lock`, `kill`, `sys_ptrace`, `sys_admin`, `sys_nice`: capabilities(7).
const KEPT: u64 = 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 5 | 1 << 19 | 1 << 21 | 1 << 23;

/// `dac_read_search`, which a guardian has besides.
const KEPT_BY_GUARDIAN: u64 = 1 << 2;

/// A field of a `status` in /proc.
fn field<'s>(status: &'s str, name: &str) -> Result<&'s str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in {status}"))?.trim())
}

/// Requires that every thread of a process is confined, and has none but these capabilities.
fn require_confined(id: u32, may_keep: u64) -> Result<()> {
    let mut threads = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let name = field(&status, "Name")?;
        for set in ["CapPrm", "CapEff"] {
            let kept = u64::from_str_radix(field(&status, set)?, 16)?;
            ensure!(kept & !may_keep == 0, "{name} has {set} {kept:x}");
        }
        ensure!(field(&status, "NoNewPrivs")? == "1", "{name} may gain rights");
        ensure!(field(&status, "Seccomp")? == "2", "{name} may call anything");
        threads += 1;
    }
    ensure!(threads > 0, "{id} has ended");
    Ok(())
}

/// The processes that this one has started.
fn children(id: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("children"))?;
        children.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(children)
}

/// The guardian among the children of a process.
fn guardian_of(id: u32) -> Result<u32> {
    let is_guardian = |child: &u32| {
        std::fs::read_to_string(format!("/proc/{child}/cmdline"))
            .is_ok_and(|line| line.contains("\0guardian"))
    };
    children(id)?.into_iter().find(is_guardian).context("no guardian")
}

/// The process and its guardian may be on their way still, and threads of theirs end while they are looked at.
fn wait_until_confined(id: u32) -> Result<()> {
    let require = || {
        require_confined(id, KEPT)?;
        require_confined(guardian_of(id)?, KEPT | KEPT_BY_GUARDIAN)
    };
    clock::wait_until("both are confined", LIMIT, || Ok(require().is_ok()))
        .or_else(|error| require().context(error))
}

/// The packets of the wire do not get into a core dump either, and the wire works.
fn a_wire_and_its_guardian_keep_few_rights() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "200mbit", "--workers", "1"])?;
    rig.left.sh(&format!("ping -q -c 3 -i 0.01 {}", rig.right_address().v4))?;
    wait_until_confined(wire.id())?;
    // 64 MB of packet memory; `dd`: do not dump, proc_pid_smaps(5).
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", wire.id()))?;
    let size_kb = |line: &str| line.strip_prefix("Size:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let packets = maps.lines().skip_while(|line| size_kb(line).is_none_or(|size_kb| size_kb < 64 << 10));
    let flags =
        packets.into_iter().find_map(|line| line.strip_prefix("VmFlags:")).context("no packet memory")?;
    ensure!(flags.split_whitespace().any(|flag| flag == "dd"), "packet memory is dumped: {flags}");
    ensure!(std::fs::metadata(format!("/proc/{}/mem", wire.id()))?.uid() == 0, "its memory is a user's");
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Returns whether a process that aborts leaves a core dump, as one of a program without secrets does where such dumps are made at all.
fn leaves_core_dump(mut process: Process) -> Result<bool> {
    let of = format!("--pid={}", process.id());
    run(Command::new("prlimit").args([&of, "--core=unlimited"]), LIMIT)?.success()?;
    process.signal(Signal::ABORT)?;
    let done = process.wait(LIMIT)?;
    ensure!(done.status.signal() == Some(Signal::ABORT.as_raw()), "{}: {}", done.status, done.said());
    Ok(done.status.core_dumped())
}

/// The other rights cannot be given up there, and the wire goes on.
fn a_wire_leaves_no_core_dump_where_there_are_no_seccomp_filters() -> Result<()> {
    let rig = Rig::new(1, 1)?;
    let folder = std::env::temp_dir().join(format!("weir-core-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let crash = || -> Result<[bool; 2]> {
        let mut command = rig.weir(&["wire", "wa", "wb", "--rate", "200mbit", "--workers", "1"]);
        let lacking = Lacking { call: libc::SYS_seccomp, first: None, error: libc::ENOSYS };
        let wire = Process::spawn(lacking.apply(command.current_dir(&folder)))?;
        let is_unconfined = || Ok(wire.stderr().contains("going on with more rights than are needed"));
        clock::wait_until("it says that it has more rights", LIMIT, is_unconfined)
            .with_context(|| wire.stderr())?;
        let other = Process::spawn(Command::new("sleep").arg("100").current_dir(&folder))?;
        Ok([leaves_core_dump(wire)?, leaves_core_dump(other)?])
    };
    let crashed = crash();
    std::fs::remove_dir_all(&folder)?;
    let [of_wire, of_other] = crashed?;
    ensure!(!of_wire, "packets and keys are in a core dump");
    ensure!(of_other, "no program leaves a core dump here (core_pattern), so this says nothing");
    Ok(())
}

fn generators_and_sinks_keep_few_rights() -> Result<()> {
    let pair = Pair::new(1)?;
    let mut sink = pair.sink(&[])?;
    let mut generator = pair.generator(&["--rate", "1kpps", "--time", "30s"])?;
    for process in [&sink, &generator] {
        wait_until_confined(process.id())?;
    }
    clock::wait_until("packets are sent", LIMIT, || Ok(pair.sent()? > 50))?;
    for process in [&mut generator, &mut sink] {
        process.signal(Signal::INT)?;
    }
    generator.wait(LIMIT)?.success()?;
    sink.wait(LIMIT)?.success()?;
    Ok(())
}

/// `weir run OPTIONS -- sh -c SCRIPT` as sudo of the user nobody would start it.
fn under_sudo(host: &Host, options: &[&str], script: &str) -> Command {
    let mut command = host.weir(&["run", "--rate", "200mbit"]);
    command.args(options).args(["--", "sh", "-c", script]);
    command.envs([("SUDO_UID", NOBODY), ("SUDO_GID", NOBODY), ("SUDO_USER", "nobody"), ("HOME", "/root")]);
    command
}

/// The program has no less and no more than that user has: a set-user-ID program works, and the wire's rights are not there.
fn a_program_run_under_sudo_is_the_user_who_called_it() -> Result<()> {
    let host = Host::alone()?;
    let directory = std::env::temp_dir().join(format!("weir-attackers-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let tool = directory.join("id");
    std::fs::copy("/usr/bin/id", &tool)?;
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o4755))?;
    let script = format!(
        "echo real $(id -ru):$(id -rg):$(id -G); echo effective $(id -u); echo raised $({} -u); \
         echo at $HOME as $USER $LOGNAME, sudo $SUDO_UID $SUDO_USER; cat /proc/self/status; \
         ip link set eth0 down 2>&1",
        tool.display()
    );
    let done = run(&mut under_sudo(&host, &[], &script), LIMIT);
    std::fs::remove_dir_all(&directory)?;
    let shown = done?.stdout;
    let home = run(Command::new("sh").args(["-c", "getent passwd 65534 | cut -d : -f 6"]), LIMIT)?.stdout;
    for line in [
        format!("real {NOBODY}:{NOBODY}:{NOBODY}"),
        format!("effective {NOBODY}"),
        "raised 0".into(),
        format!("at {} as nobody nobody, sudo", home.trim()),
    ] {
        ensure!(shown.lines().any(|found| found.trim() == line), "no {line:?}: {shown}");
    }
    let own = std::fs::read_to_string("/proc/self/status")?;
    ensure!(field(&shown, "NoNewPrivs")? == "0" && field(&shown, "Seccomp")? == "0", "{shown}");
    ensure!(field(&shown, "CapBnd")? == field(&own, "CapBnd")?, "{shown}");
    ensure!(u64::from_str_radix(field(&shown, "CapEff")?, 16)? == 0, "{shown}");
    ensure!(shown.contains("not permitted"), "it may change its interface: {shown}");
    Ok(())
}

fn a_program_is_root_where_that_is_asked_for() -> Result<()> {
    let host = Host::alone()?;
    let own = std::fs::read_to_string("/proc/self/status")?;
    let script = "echo is $(id -u); cat /proc/self/status; ip link set eth0 mtu 1400 && echo may";
    let without_sudo = host.weir_run(&[], script);
    for mut command in [under_sudo(&host, &["--as-root"], script), without_sudo] {
        let shown = run(&mut command, LIMIT)?.success()?.stdout;
        ensure!(shown.contains("is 0") && shown.contains("may"), "{shown}");
        for name in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
            ensure!(field(&shown, name)? == field(&own, name)?, "{name}: {shown}");
        }
    }
    Ok(())
}

fn signals_reach_a_program_of_another_user() -> Result<()> {
    let host = Host::alone()?;
    let script = "trap 'exit 41' TERM; echo started $$; while :; do sleep 0.05; done";
    let start = || -> Result<Process> {
        let mut process = Process::spawn(&mut under_sudo(&host, &[], script))?;
        process.wait_for_output("started", LIMIT)?;
        clock::wait_until("it is confined", LIMIT, || Ok(require_confined(process.id(), KEPT).is_ok()))?;
        Ok(process)
    };
    let mut process = start()?;
    require_confined(guardian_of(process.id())?, KEPT | KEPT_BY_GUARDIAN)?;
    process.signal(Signal::TERM)?;
    let done = process.wait(LIMIT)?;
    ensure!(done.status.code() == Some(41), "it ended with {}: {}", done.status, done.stderr);
    let mut process = start()?;
    let shown = process.stdout();
    let program = shown.split_whitespace().last().context("no number")?.to_string();
    process.signal(Signal::KILL)?;
    process.wait(LIMIT)?;
    clock::wait_until("the program has ended", LIMIT, || {
        Ok(!std::path::Path::new(&format!("/proc/{program}")).exists())
    })
}
