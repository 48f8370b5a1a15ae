//! `weir run` as a job of a shell on a terminal: what Ctrl-Z, Ctrl-C and the background do to it. On a host of our own, never on the
//! machine's.
//!
//! Nothing stays when a test fails: the end of the shell hangs up the job in the foreground, and every job that stands.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal};
use weir_port::lock::Lock;
use weir_run::control::Control;
use weir_tests::classes::File;
use weir_tests::host::Host;
use weir_tests::terminal::Terminal;
use weir_tests::{harness, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(20);
const PROMPT: &str = "prompt> ";
/// The beginning of the summary of a run, which is printed at its end.
const SUMMARY: &str = "weir: 200mbit: ";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(ctrl_z_suspends_a_run).together(),
        privileged!(ctrl_z_stops_nothing_once_the_program_has_ended).together(),
        privileged!(the_shell_alone_continues_a_suspended_run),
        privileged!(ctrl_z_leaves_no_child_stopped_where_a_run_must_go_on).together(),
        privileged!(ctrl_z_leaves_a_program_in_a_group_of_its_own_alone).together(),
        privileged!(what_stands_for_the_terminal_can_be_ended).together(),
        privileged!(ctrl_c_reaches_a_program_in_a_group_of_its_own).together(),
        privileged!(ctrl_c_while_a_run_starts_keeps_its_program_from_starting).together(),
        privileged!(a_stopped_shell_gives_the_terminal_back).together(),
        privileged!(what_stands_ends_with_its_terminal).together(),
        privileged!(a_script_goes_on_when_its_program_does).together(),
        privileged!(a_stopped_shell_suspends_the_script_behind_it).together(),
        privileged!(a_shell_goes_on_where_a_run_must).together(),
        privileged!(ctrl_c_ends_a_program_that_somebody_stopped).together(),
        privileged!(a_program_that_stands_without_a_terminal_can_be_ended).together(),
    ])
}

/// A shell with job control, which has prompted.
fn shell(host: &Host) -> Result<Terminal> {
    let mut command = host.namespace.command("env");
    // Where the tests run in the background of a shell some signals are ignored, and no trap of a shell undoes that.
    command.args(["--default-signal", "bash", "--norc", "-i"]).env("PS1", PROMPT);
    let mut terminal = Terminal::start(&mut command)?;
    terminal.wait_for(PROMPT, LIMIT)?;
    // SIGQUIT is to leave no file. The kernel throws what is shown and typed away a moment after it has sent the signal of a key, when the
    // shell may have prompted again already.
    terminal.keys("ulimit -c 0; stty noflsh\n")?;
    terminal.wait_for(PROMPT, LIMIT)?;
    Ok(terminal)
}

/// Types `weir run OPTIONS -- COMMAND`. What a test waits for is not to be in it as it is typed, because the terminal shows that too.
fn type_run(terminal: &mut Terminal, options: &str, command: &str) -> Result<()> {
    let weir = weir_binary()?.display().to_string();
    terminal.keys(&format!("{weir} run --rate 200mbit {options} -- {command}\n"))
}

/// A program whose child answers each line: the shell has something to do behind that child.
const ANSWERS: &str = r#"sh -c 'echo rea""dy; sed -u s/^/:heard/; exit 9'"#;

/// A run limited in place is a job like any other: the shell has the terminal meanwhile, and the program's network stays.
fn ctrl_z_suspends_a_run() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    type_run(&mut terminal, "", ANSWERS)?;
    terminal.wait_for("ready", LIMIT)?;
    for word in ["first", "second", "third"] {
        terminal.keys(&format!("{word}\n"))?;
        terminal.wait_for(&format!(":heard{word}"), LIMIT)?;
        terminal.keys("\u{1a}")?;
        terminal.wait_for("Stopped", LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
        terminal.keys("ip -br link show weir''0; fg\n")?;
        terminal.wait_for("weir0", LIMIT)?;
        terminal.wait_for("run --rate", LIMIT)?;
    }
    terminal.keys("last\n")?;
    terminal.wait_for(":heardlast", LIMIT)?;
    terminal.keys("\u{3}")?;
    terminal.wait_for(SUMMARY, LIMIT)?;
    terminal.wait_for(PROMPT, LIMIT)
}

/// Another SIGCONT, of Weir's, would undo the next Ctrl-Z, if that comes first.
fn the_shell_alone_continues_a_suspended_run() -> Result<()> {
    const ROUNDS: usize = 20;
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    let counts =
        r#"bash -c 'trap "((n++))" CONT; echo rea""dy; while read -r word; do echo ":heard$word $n."; done'"#;
    type_run(&mut terminal, "", counts)?;
    terminal.wait_for("ready", LIMIT)?;
    for round in 0..ROUNDS {
        terminal.keys("\u{1a}")?;
        terminal.wait_for("Stopped", LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
        terminal.keys("fg\n")?;
        terminal.wait_for("run --rate", LIMIT)?;
        terminal.keys(&format!("{round}\n"))?;
        terminal.wait_for(&format!(":heard{round} "), LIMIT)?;
    }
    terminal.keys("last\n")?;
    terminal.wait_for(&format!(":heardlast {ROUNDS}."), LIMIT)?;
    terminal.keys("\u{3}")?;
    terminal.wait_for(SUMMARY, LIMIT)
}

/// Requires that a reader of words behind the terminal goes on after Ctrl-Z, and that this is said.
fn goes_on_after_ctrl_z(terminal: &mut Terminal) -> Result<()> {
    terminal.keys("first\n")?;
    terminal.wait_for(":heardfirst", LIMIT)?;
    terminal.keys("\u{1a}")?;
    terminal.wait_for("cannot be suspended", LIMIT)?;
    terminal.keys("second\n")?;
    terminal.wait_for(":heardsecond", LIMIT)
}

/// A run must go on by a wire, and where it has a way out. The terminal stops the whole group, so the whole group is continued, and Ctrl-C
/// ends it after that.
fn ctrl_z_leaves_no_child_stopped_where_a_run_must_go_on() -> Result<()> {
    for (host, options) in [(Host::alone()?, "--queue 5ms"), (Host::with_internet()?, "")] {
        let mut terminal = shell(&host)?;
        type_run(&mut terminal, options, ANSWERS)?;
        terminal.wait_for("ready", LIMIT)?;
        goes_on_after_ctrl_z(&mut terminal)?;
        terminal.keys("\u{3}")?;
        terminal.wait_for(SUMMARY, LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
    }
    Ok(())
}

/// Neither where a shell waits for the run, nor where the run leads the session and nobody would continue it.
fn ctrl_z_leaves_a_program_in_a_group_of_its_own_alone() -> Result<()> {
    let host = Host::alone()?;
    let mut by_shell = shell(&host)?;
    type_run(&mut by_shell, "", r#"timeout 1000 sh -c 'echo rea""dy; exec sleep 1000'"#)?;
    let script = "exec timeout 1000 sh -c 'echo ready; exec sleep 1000'";
    let leader = Terminal::start(&mut host.weir_run(&[], script))?;
    for mut terminal in [by_shell, leader] {
        terminal.wait_for("ready", LIMIT)?;
        terminal.keys("\u{1a}")?;
        terminal.wait_for("cannot be suspended", LIMIT)?;
        terminal.keys("\u{3}")?;
        terminal.wait_for(SUMMARY, LIMIT)?;
    }
    Ok(())
}

/// The wait for what the program sent last is short, and not suspended. Its children go on.
fn ctrl_z_stops_nothing_once_the_program_has_ended() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    let weir = weir_binary()?.display().to_string();
    // At this rate what is sent takes a minute. The child reads by a descriptor, as a shell takes the input of what is in its background away.
    let script = "exec 4<&0 3>/dev/udp/$(ip route show default | cut -d \" \" -f 3)/9; printf -v word %01000d 1; \
                  for ((i = 0; i < 60; i++)); do printf %s $word >&3; done; exec 3>&-; sed -u s/^/:heard/ <&4 & exit 0";
    terminal.keys(&format!("{weir} run --rate 8kbit -- bash -c '{script}'\n"))?;
    terminal.wait_for("CMD has ended; waiting for", LIMIT)?;
    goes_on_after_ctrl_z(&mut terminal)?;
    terminal.keys("\u{3}")?;
    terminal.wait_for("weir: 8kbit: ", LIMIT)?;
    terminal.wait_for(PROMPT, LIMIT)
}

/// A signal that is passed on waits at a program that stands, which is continued for it. So does the end that `weir down` asks for.
fn what_stands_for_the_terminal_can_be_ended() -> Result<()> {
    let host = Host::alone()?;
    let weir = weir_binary()?.display().to_string();
    let mut terminal = shell(&host)?;
    // By its number a signal reaches Weir alone; the shell would send it to the whole group of a job.
    for (options, end, status) in [
        ("", "kill -TERM $!", 128 + libc::SIGTERM),
        ("", "kill -HUP $!", 128 + libc::SIGHUP),
        ("", "kill -INT $!", 128 + libc::SIGINT),
        ("--queue 5ms", "kill -QUIT $!", 128 + libc::SIGQUIT),
        ("--queue 5ms --name stands", &format!("{weir} down stands"), 128 + libc::SIGTERM),
    ] {
        type_run(&mut terminal, options, "cat /dev/tty &")?;
        terminal.wait_for("wants the terminal and stands", LIMIT)?;
        terminal.keys(&format!("{end}; wait $!; echo stat''us: $?\n"))?;
        terminal.wait_for(SUMMARY, LIMIT)?;
        terminal.wait_for(&format!("status: {status}"), LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
    }
    Ok(())
}

/// The terminal's signal is for the group in the foreground, which is Weir's; GNU `timeout` makes another.
fn ctrl_c_reaches_a_program_in_a_group_of_its_own() -> Result<()> {
    let host = Host::alone()?;
    for (key, signal) in [("\u{3}", libc::SIGINT), ("\u{1c}", libc::SIGQUIT)] {
        let mut terminal = shell(&host)?;
        type_run(&mut terminal, "", r#"timeout 1000 sh -c 'echo rea""dy; exec sleep 1000'"#)?;
        terminal.wait_for("ready", LIMIT)?;
        terminal.keys(key)?;
        terminal.wait_for(SUMMARY, LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
        terminal.keys("echo stat''us: $?\n")?;
        terminal.wait_for(&format!("status: {}", 128 + signal), LIMIT)?;
    }
    Ok(())
}

/// Nobody else gets the signal then, and nobody passes it on later.
fn ctrl_c_while_a_run_starts_keeps_its_program_from_starting() -> Result<()> {
    let host = Host::alone()?;
    let before = host.state()?;
    let name = host.namespace.name();
    let options = ["run", "--rate", "200mbit", "--queue", "5ms", "--name", name, "--", "echo", "it runs"];
    let mut terminal = Terminal::start(&mut host.weir(&options))?;
    let socket = Control::path_of(name);
    wait_until("the wire has its control socket", LIMIT, || Ok(socket.exists()))?;
    // Without the lock it takes no interface over and chooses no core.
    let lock = Lock::take()?;
    terminal.keys("\u{3}")?;
    terminal.wait_for("^C", LIMIT)?;
    drop(lock);
    let (status, shown) = terminal.finish(LIMIT)?;
    ensure!(status.code() == Some(128 + libc::SIGINT), "it ended with {status}: {shown}");
    ensure!(!shown.contains("it runs"), "CMD ran: {shown}");
    let after = host.state()?;
    ensure!(after == before, "the host was\n{before}\nand is\n{after}");
    Ok(())
}

/// A shell behind the limit, which has prompted. It makes a process group of its own, and gives that the terminal.
fn run_a_shell(terminal: &mut Terminal) -> Result<()> {
    type_run(terminal, "", "env PS1=inner'> ' bash --norc -i")?;
    terminal.wait_for("inner> ", LIMIT)
}

/// SIGSTOP, which `suspend` sends, suspends a run as Ctrl-Z does; `fg` gives the terminal to the group that had it.
fn a_stopped_shell_gives_the_terminal_back() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    run_a_shell(&mut terminal)?;
    for round in 0..3 {
        terminal.keys("suspend\n")?;
        terminal.wait_for("Stopped", LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
        terminal.keys("fg\n")?;
        terminal.wait_for("run --rate", LIMIT)?;
        terminal.keys(&format!("echo rou''nd {round}\n"))?;
        terminal.wait_for(&format!("round {round}"), LIMIT)?;
    }
    terminal.keys("suspend\n")?;
    terminal.wait_for("Stopped", LIMIT)?;
    terminal.wait_for(PROMPT, LIMIT)?;
    // The run goes on in the background, where the shell behind it stands as soon as it uses the terminal.
    terminal.keys("bg; until fg; do :; done\n")?;
    terminal.wait_for("run --rate", LIMIT)?;
    terminal.wait_for("run --rate", LIMIT)?;
    terminal.keys("echo rou''nd last; exit\n")?;
    terminal.wait_for("round last", LIMIT)?;
    terminal.wait_for(SUMMARY, LIMIT)?;
    terminal.wait_for(PROMPT, LIMIT)
}

/// Types a script that runs `command` by `weir run`, and then says that it is done.
fn type_script(terminal: &mut Terminal, command: &str) -> Result<File> {
    let weir = weir_binary()?.display().to_string();
    let run = format!("{weir} run --rate 200mbit -- {command}");
    let script = File::new(&format!("export PS1='{PROMPT}'\n{run}\necho script done\n"))?;
    terminal.keys(&format!("bash {}\n", script.path()))?;
    Ok(script)
}

/// Who stops a program alone, as a debugger does, continues it alone: nobody would continue a run that stopped with it.
fn a_script_goes_on_when_its_program_does() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    let stops = "sh -c '(until grep -q stopped /proc/$$/status; do sleep .05; done; kill -CONT $$) & kill -STOP $$; echo goes on'";
    let _script = type_script(&mut terminal, stops)?;
    for words in ["goes on", SUMMARY, "script done", PROMPT] {
        terminal.wait_for(words, LIMIT)?;
    }
    Ok(())
}

/// The shell waits for the script, which has to stop too.
fn a_stopped_shell_suspends_the_script_behind_it() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    let _script = type_script(&mut terminal, "bash --norc -i")?;
    terminal.wait_for(PROMPT, LIMIT)?;
    for round in 0..3 {
        terminal.keys("suspend\n")?;
        terminal.wait_for("Stopped", LIMIT)?;
        terminal.wait_for(PROMPT, LIMIT)?;
        terminal.keys("fg\n")?;
        terminal.wait_for("bash /", LIMIT)?;
        terminal.keys(&format!("echo rou''nd {round}\n"))?;
        terminal.wait_for(&format!("round {round}"), LIMIT)?;
    }
    terminal.keys("exit\n")?;
    for words in [SUMMARY, "script done", PROMPT] {
        terminal.wait_for(words, LIMIT)?;
    }
    Ok(())
}

/// The kernel hangs up and continues what stands, and a program in a group of its own hears of that by its run.
fn what_stands_ends_with_its_terminal() -> Result<()> {
    let host = Host::alone()?;
    let mut terminal = shell(&host)?;
    run_a_shell(&mut terminal)?;
    terminal.keys("suspend\n")?;
    terminal.wait_for("Stopped", LIMIT)?;
    let job = std::env::temp_dir().join(host.namespace.name());
    terminal.keys(&format!("jobs -p > {}; echo wri''tten\n", job.display()))?;
    terminal.wait_for("written", LIMIT)?;
    let run = std::fs::read_to_string(&job)?.trim().to_string();
    std::fs::remove_file(&job)?;
    drop(terminal);
    let ended = || Ok(!std::fs::exists(format!("/proc/{run}"))?);
    wait_until("the run has ended", LIMIT, ended)
}

/// Where a run guards a way out, and where nobody would continue it.
fn a_shell_goes_on_where_a_run_must() -> Result<()> {
    let guards = Host::with_internet()?;
    let mut by_shell = shell(&guards)?;
    run_a_shell(&mut by_shell)?;
    by_shell.keys("suspend\n")?;
    by_shell.wait_for("cannot be suspended", LIMIT)?;
    let host = Host::alone()?;
    let mut command = host.weir(&["run", "--rate", "200mbit", "--", "bash", "--norc", "-i"]);
    let mut leader = Terminal::start(command.env("PS1", PROMPT))?;
    leader.wait_for(PROMPT, LIMIT)?;
    leader.keys("suspend\n")?;
    for mut terminal in [by_shell, leader] {
        terminal.keys("echo go''es on; exit\n")?;
        terminal.wait_for("goes on", LIMIT)?;
        terminal.wait_for(SUMMARY, LIMIT)?;
    }
    Ok(())
}

/// A script that is stopped, and a child that says so.
const STOPS: &str =
    r#"(until grep -q stopped /proc/$$/status; do :; done; echo stan""ds) & kill -STOP $$; exec sleep 1000"#;

/// The signal of Ctrl-C waits at a program that stands, which is continued for it; also where the run must go on.
fn ctrl_c_ends_a_program_that_somebody_stopped() -> Result<()> {
    let host = Host::with_internet()?;
    let mut terminal = shell(&host)?;
    type_run(&mut terminal, "", &format!("sh -c '{STOPS}'"))?;
    terminal.wait_for("stands", LIMIT)?;
    terminal.keys("\u{3}")?;
    terminal.wait_for(SUMMARY, LIMIT)?;
    terminal.wait_for(PROMPT, LIMIT)
}

fn a_program_that_stands_without_a_terminal_can_be_ended() -> Result<()> {
    let host = Host::alone()?;
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        let mut process = Process::spawn(&mut host.weir_run(&[], STOPS))?;
        process.wait_for_output("stands", LIMIT)?;
        process.signal(signal)?;
        let done = process.wait(LIMIT)?;
        ensure!(done.status.code() == Some(128 + number), "it ended with {}: {}", done.status, done.stderr);
    }
    Ok(())
}
