//! `weir run`: a program behind a limit, in a network of its own.
//!
//! Everything is made for the program and goes with it: a namespace and a pair whose ends are limited in place, or two namespaces, two
//! pairs and a wire between them ([`way`]); masquerading where the host has a way out ([`weir_port::enclosure`]). Faults of the command
//! line or the program are said before any of that.
//!
//! Signals: those that a process sends to Weir are passed on to the program. Ctrl-C and its like at a terminal reach the program
//! without us, because it is in our process group, as it would be if the shell had started it; passing them on would deliver
//! them twice. To one that has left our group, as GNU `timeout` does, they are passed on. So a program may also stop, be brought
//! back, and have the terminal to itself; in the background it waits for it ([`background`]).
//!
//! A program that Ctrl-Z or `suspend` stops has Weir stop their process group where it may ([`stopped`]): not by a wire, and not where it
//! guards a way out. Ctrl-Z is not passed on to a program that has left the group: it would stop that process without its children, and no
//! shell would continue it.

mod background;
mod beyond;
mod by_wire;
mod gate;
mod in_place;
mod rest;
mod stopped;
mod summary;
mod way;

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use weir_core::rate::Rate;
use weir_port::identity::Identity;
use weir_port::monitor::State;
use weir_port::process::{self, Process, Turn};
use weir_port::signals::{
    self, Received, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH,
};
use weir_run::clock::now_ns;
use weir_run::watcher::News;

use self::background::Background;
use self::beyond::Beyond;
use self::rest::Remainder;
use self::way::RunNetwork;
use super::wire::MachineArguments;
use crate::guarded::{self, Guarded, SessionEvent};
use crate::{Failure, Outcome, output, text};

/// Run a program behind a limit; when it sends faster than that, its sends wait, and nothing is lost.
///
/// CMD gets a network of its own, IPv4 and IPv6, with a route to this host and, where this host has a default route, masquerading
/// to the world beyond. The limit is the kernel's own queue, as `weir limit` sets it, and packets do not pass through weir; what only a wire can do
/// (--queue, --workers, --core, --memory, a classes file that the kernel's HTB cannot keep, a kernel without that queue) is done by one, and said. CMD runs as the user who runs weir, or who runs sudo to run weir, with the same terminal, environment and
/// directory; weir exits with its status (128 + N if signal N ended it, 127 if there is no such program, or no interpreter that it names, 126 if it cannot be executed), passes signals
/// on to it, and prints one line about it at the end.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir run --rate 10mbit -- curl -O https://example.org/file
  weir run --rate 200mbit --rate-back 50mbit -- bash
  weir run --rate 1mbit --queue 20ms -- ./server --port 8000      by a wire
  sudo weir run --rate 20mbit -- ./program             runs it as who you are
  sudo weir run --rate 20mbit --as-root -- tcpdump     runs it as root
  weir stat run-4711                    in another terminal: what it does
  weir set run-4711 --rate 100mbit      change its limit while it runs

Good to know:
  CMD runs as the user who runs weir. Under sudo that is the user who called
  sudo (SUDO_UID, SUDO_GID, with all groups), at home and without sudo's own
  variables; with --as-root it is root. It may use sudo and ping as outside.
  Inside, this host is the gateway of the default route, which `ip route`
  shows: 10.87.0.1 for the first run, and others beside it.
  127.0.0.1 inside is the program's own. Where /etc/resolv.conf names a
  resolver on 127.0.0.53, names cannot be looked up: point it at a resolver
  beyond this host (/run/systemd/resolve/resolv.conf lists some).
  /sys/class/net still shows the host's interfaces; /proc/net shows the
  program's.
  While CMD runs, this host forwards by the interfaces of its default routes
  for CMD: what CMD sends, and answers to it. What it did not forward before it
  does not forward now, for nobody: `nft list table inet weir0` shows the rules
  and counts what they drop. If it was a router before, it stays one. Who makes
  it one while CMD runs finds it shut until the last run has ended. A firewall
  of this host that drops forwarded packets, such as that of Docker, drops
  CMD's too. A limit on the way out that is below --rate, as of a container
  that this is, drops what is beyond it: there it has no sender to hold. The
  summary tells what the interfaces of the default routes dropped meanwhile;
  what is dropped behind them it cannot know.
  Ctrl-Z, or `suspend` in a shell, suspends a run as any other job, if no wire
  carries it, this host has no default route, and CMD makes no process group
  of its own without the terminal (as `timeout` does). Any other run goes on,
  and says why.
  When CMD has ended, weir waits until what it sent has left: packets that are
  held, and TCP connections it closed. Ctrl-C, TERM or HUP ends that wait; so
  does a child of CMD that goes on sending, after twice the time that what
  stood there needs, and 2 seconds, or two of the longest packets' time if that
  is more; and so do receivers of TCP that take nothing, or answer no more,
  after a minute in all. What is lost then is in the summary.
  Then its network ends, also for children of it that go on: what they send
  while it ends is lost and nowhere counted. When weir is killed, CMD is
  killed; children of CMD go on without a network.")]
pub struct RunArguments {
    /// Limit of what CMD sends and of what it receives, in tc's units, such as 200mbit
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate: Rate,
    /// Limit of what CMD receives, if it is another
    #[arg(long, value_name = "RATE", value_parser = text::rate, allow_hyphen_values = true)]
    rate_back: Option<Rate>,
    /// How much may pass at once after a pause [default: 2 ms at the rate, 20kb at least]
    #[arg(long, value_name = "SIZE", value_parser = text::size, allow_hyphen_values = true)]
    burst: Option<u64>,
    /// By a wire: how much may stand inside, as a time at the rate, without classes; the rest stays with the program [default: 5ms]
    #[arg(long, value_name = "TIME", value_parser = text::time, allow_hyphen_values = true)]
    queue: Option<u64>,
    /// Classes that share each direction (see `weir wire --help`); --rate then limits them all together
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Its name in `weir stat` and `weir set` [default: run- and weir's process id]
    #[arg(long)]
    name: Option<String>,
    /// Run CMD as root also where sudo says who called it
    #[arg(long)]
    as_root: bool,
    #[command(flatten)]
    machine: MachineArguments,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The signals, among those passed on, that a terminal sends to a program in our process group as well. (A hang-up may reach the leader of
/// the session alone.)
const FROM_TERMINAL: [i32; 3] = [SIGINT, SIGQUIT, SIGWINCH];

/// The signals, among those passed on, that ask the program to end.
const TO_END: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];

/// Runs the command.
pub fn run(arguments: &RunArguments) -> Outcome {
    // Before there is a child.
    signals::keep_statuses();
    let name = arguments.name.clone().unwrap_or_else(|| format!("run-{}", std::process::id()));
    text::check_path_name("run", &name)?;
    if let Some(burst_bytes) = arguments.burst {
        text::check_burst(burst_bytes)?;
    }
    let given = arguments.command.split_first().filter(|(program, _)| !program.is_empty());
    let (program, its_arguments) = given.ok_or_else(|| {
        Failure::usage("CMD is empty: write a program behind --, such as `weir run --rate 10mbit -- bash`")
    })?;
    process::find(program).map_err(|error| cannot_run(program, &error))?;
    let identity = match arguments.as_root {
        true => None,
        false => Identity::of_invoker(std::env::var_os).map_err(Failure::usage)?,
    };

    let beyond = Beyond::look();
    let way = way::open(arguments, &name)?;
    if let Some(signal) = asked_to_end(way.guarded()) {
        way.finish()?;
        output::say("weir: it was asked to end before CMD was started");
        return Ok(exit_code(Some(128 + signal)));
    }
    let start_ns = now_ns();
    let process = match Process::start(program, its_arguments, way.netns(), identity.as_ref()) {
        Ok(process) => process,
        Err(error) => {
            // The first failure says it all, and has its own status.
            if let Err(failure) = way.finish() {
                output::say(format_args!("weir: {}", failure.message));
            }
            return Err(cannot_start(program, &error));
        }
    };
    // Not before: the program is not to be confined.
    guarded::confine();
    let ended = end_of(&*way, process);
    let elapsed_ns = now_ns() - start_ns;
    let finished = way.finish();
    // The words of CMD may be before the summary in a pager, and nobody is held up any more. A signal ends it if nobody reads that.
    output::hurry(false);
    signals::unblock(&TO_END)?;
    let (status, rest) = ended?;
    let line = summary::line(arguments.rate, &finished?, &rest, elapsed_ns, &beyond.dropped());
    output::say(format_args!("weir: {line}"));
    Ok(exit_code(told(status)))
}

/// The signal that asked to end before there was a program to pass it on to, if one did. Other events stay.
fn asked_to_end(guarded: &Guarded) -> Option<i32> {
    let mut others = Vec::new();
    let mut asked = None;
    while let Some(event) = guarded.next_event_within(Duration::ZERO) {
        match event {
            SessionEvent::Signal(received) if TO_END.contains(&received.signal) => {
                asked = Some(received.signal)
            }
            SessionEvent::AskedToEnd => asked = Some(SIGTERM),
            other => others.push(other),
        }
    }
    let events = guarded.events();
    // The receiver is `guarded` itself.
    others.into_iter().for_each(|event| drop(events.send(event)));
    asked
}

/// Waits for the program's end, and then until what it sent has left. Returns its status, and what has not left.
fn end_of(way: &dyn RunNetwork, process: Process) -> Result<(ExitStatus, Remainder), Failure> {
    let supervised = supervise(way, &process);
    let status = process.status();
    let heard = supervised?;
    let status = status?;
    // Where a signal goes to the whole group, the program's end may be told first. By that signal nobody asks not to wait.
    let late = told(status).map(|code| code - 128).filter(|signal| !heard.contains(signal));
    Ok((status, rest::wait(way, late)))
}

/// Passes signals on until the program has ended, and returns those that asked to end. If it loses its network before that, it is killed.
fn supervise(way: &dyn RunNetwork, process: &Process) -> Result<Vec<i32>, Failure> {
    let guarded = way.guarded();
    let (waiter, events) = (process.waiter(), guarded.events());
    let waiting = std::thread::Builder::new().name("weir-program".into()).spawn(move || {
        loop {
            let event = match waiter.wait() {
                Turn::Stopped(signal) => SessionEvent::ProgramStopped(signal),
                Turn::Ended => SessionEvent::ProgramEnded,
            };
            let is_end = matches!(event, SessionEvent::ProgramEnded);
            // The run may be over, with nobody left to tell.
            if events.send(event).is_err() || is_end {
                return;
            }
        }
    });
    let mut background = Background::default();
    let mut heard = Vec::new();
    let lost = match waiting {
        Ok(_) => loop {
            let event = match background.stands() {
                true => guarded.next_event_within(background::LOOK_EVERY),
                false => Some(guarded.next_event()),
            };
            background.look(process);
            let Some(event) = event else { continue };
            match event {
                SessionEvent::ProgramEnded => return Ok(heard),
                SessionEvent::Signal(Received { signal: SIGTSTP, by_kernel }) => {
                    if by_kernel && !process.is_in_group() {
                        stopped::say_not_suspended("CMD in a process group of its own");
                    }
                }
                SessionEvent::ProgramStopped(signal @ (SIGTSTP | SIGSTOP)) => {
                    stopped::follow(process, signal, way.must_go_on());
                }
                SessionEvent::ProgramStopped(SIGTTIN | SIGTTOU) if !process.is_in_group() => {
                    background.stopped()
                }
                SessionEvent::ProgramStopped(_) => {}
                SessionEvent::Signal(Received { signal: SIGTTIN | SIGTTOU, .. }) => background.stopped(),
                SessionEvent::Signal(received) => {
                    let from_terminal = received.by_kernel && FROM_TERMINAL.contains(&received.signal);
                    if !(from_terminal && process.is_in_group()) {
                        process.signal(received.signal);
                    }
                    if TO_END.contains(&received.signal) {
                        heard.push(received.signal);
                        background.go_on();
                        stopped::let_end(process);
                    }
                }
                // A signal to end would be passed on so.
                SessionEvent::AskedToEnd => {
                    process.signal(SIGTERM);
                    heard.push(SIGTERM);
                    background.go_on();
                    stopped::let_end(process);
                }
                SessionEvent::Trouble(trouble) => break guarded.explain(trouble),
                SessionEvent::WorkerEnded => break "the worker ended by itself".to_string(),
                SessionEvent::News(News::Interface(port, State::Gone)) => {
                    break format!("the interface of the {port} vanished");
                }
                SessionEvent::News(News::Ended(why)) => break why,
                SessionEvent::News(News::Said(text)) => output::say(format_args!("weir: {text}")),
                SessionEvent::News(News::Interface(..)) => {}
            }
        },
        Err(error) => format!("no thread: {error}"),
    };
    process.signal(SIGKILL);
    Err(format!("{lost}; the program was killed, because it would have had no network").into())
}

/// A status as shells tell it.
fn told(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

fn exit_code(told: Option<i32>) -> ExitCode {
    ExitCode::from(told.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// The failure of a program that is not found, or is none.
fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let (why, code) = match error.kind() {
        ErrorKind::NotFound => ("there is no such program".to_string(), 127),
        ErrorKind::PermissionDenied => ("it is not a program that can be executed".to_string(), 126),
        _ => (error.to_string(), 126),
    };
    Failure { message: format!("cannot run {}: {why}", program.display()), code }
}

/// The failure of a program that was found and cannot be started.
fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let (why, code) = match error.kind() {
        // As shells tell it.
        ErrorKind::NotFound => ("the interpreter or loader that it names is not there".to_string(), 127),
        ErrorKind::PermissionDenied => {
            let why = "the user that it runs as may not execute it, or its file system is mounted noexec: give the right to it (chmod), or \
                       copy it to where programs may run, such as /usr/local/bin";
            (why.into(), 126)
        }
        _ => (error.to_string(), 126),
    };
    Failure { message: format!("cannot run {}: {why}", program.display()), code }
}
