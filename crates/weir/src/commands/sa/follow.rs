//! `weir sa follow`: an ESP that is up follows the kernel's IPsec, for as long as this runs.
//!
//! ```text
//! listen, then read all, then events --`weir_run::ipsec::follow`--> what the esp is to become --apply--> `weir up`
//! ```
//!
//! Rule: no change falls between the reading and the events, because it listens first; when events were lost it reads all again. A change
//! is made as by `weir apply`, with all else as it runs then. Each second it looks whether the esp is as it was made, so that one that was
//! started anew gets all again. When this ends, everything that runs stays as it is, and key files that it made for nothing go.
//!
//! Owner: this process, which alone may change the esp meanwhile. Limits: of the network namespace that it is started in. A change of limits
//! that is made between asking for what runs and applying, milliseconds later, is undone. Packets that come by an inbound association between
//! IKE's making it and the change here, some ten milliseconds later, are dropped as `esp-no-association`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use weir_path::esp::plan::EspPlan;
use weir_path::plan::{Plan, StageKind};
use weir_port::confinement::leave_no_core_dump;
use weir_port::error::PortError;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, Signals};
use weir_port::sys;
use weir_port::xfrm::{self, XfrmEvents, XfrmReceived};
use weir_run::control::{self, ApplyFile, Control, Refusal};
use weir_run::ipsec::follow::{Follower, KeyFiles, WantedPlan, without};
use weir_run::limits::is_path_name;
use weir_run::nearest::{did_you_mean, or};
use weir_run::topology;
use weir_run::topology::diff::plan::{Named, compare_plans};
use weir_run::topology::write::plan::write;

use super::keys_directory;
use crate::{Failure, Outcome, output};

/// The pause between two looks whether the running esp is the one that was made, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The longest time until a signal is heard, in nanoseconds.
const SIGNAL_NS: u64 = 100_000_000;
/// The pause between two tries to take a key that was given up: its mark is written by another thread.
const AGAIN: Duration = Duration::from_millis(100);
const TRIES: usize = 10;
/// After how many looks refused associations are tried again: a minute, or sooner where much happens.
const LOOKS_REFUSED: u32 = 60;
/// A dump that changes all the time is taken as it is; later changes are heard.
const DUMPS: usize = 10;

/// Give an esp that is up the associations and policies that the kernel has, as IKE adds and removes them.
#[derive(Args)]
#[command(after_help = "Examples:
  sudo weir up gateway.toml &     # an [[esp]] without [[sa]] and [[policy]]
  sudo mkdir -m 700 /run/weir-keys
  sudo weir sa follow gateway --keys /run/weir-keys
  sudo weir sa follow gateway --keys /run/weir-keys --dry-run

All associations and policies of the esp are the kernel's: its address in the
file says which of them are this gateway's own. Each change is a line:
  + - ~    what the kernel has more, no more, or otherwise
  ~ esp    what has changed of the esp

Left out, each with a sentence: AH, compression, other algorithms and modes,
marks, interface numbers (if_id), security labels, and policies of direction
fwd that no policy in equals: add those with dir in for what comes in outside,
and with dir out for what leaves. A policy of in or out that cannot be
said (several templates, level use, a type of ICMP) discards what it names. A
key with which the kernel has sent is refused, so its packets must come by Weir
alone.

What no policy names is dropped here, while the kernel lets it pass: add
policies with action allow for what is to pass in the clear. The kernel asks
IKE for nothing (ACQUIRE), so IKE is to begin by itself (strongSwan:
start_action = start).

It hears the kernel of the network namespace that it is started in. `weir apply`
of the file, which has no [[sa]], takes all of this away until the next look, a
second later. When this ends, everything stays as it is.")]
pub struct FollowArguments {
    /// The topology that is up
    topology: String,
    /// Where the key files go, which only root may enter
    #[arg(long, value_name = "DIRECTORY")]
    keys: PathBuf,
    /// Which esp of it, where there are several
    #[arg(long, value_name = "NAME")]
    esp: Option<String>,
    /// Make it so once, and end
    #[arg(long, conflicts_with = "dry_run")]
    once: bool,
    /// Say what would be done once, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub fn run(arguments: &FollowArguments) -> Outcome {
    if !sys::is_root() {
        return Err(PortError::NotRoot { doing: "listening to the kernel's IPsec".into() }.into());
    }
    leave_no_core_dump()?;
    let mut following = Following::begin(arguments)?;
    if arguments.dry_run {
        following.show()?;
        return Ok(ExitCode::SUCCESS);
    }
    let followed = following.follow();
    following.remove_unused_keys();
    followed.map(|()| ExitCode::SUCCESS)
}

/// The esp that follows.
struct Following<'a> {
    arguments: &'a FollowArguments,
    events: XfrmEvents,
    follower: Follower,
    /// The key files that are to go when no association of the esp has them.
    files: KeyFiles,
    /// The obstacle, as it was said last.
    trouble: Option<String>,
    /// The number of looks since refused associations were tried.
    looks: u32,
}

impl Following<'_> {
    /// Listens, and reads the associations and policies that there are.
    fn begin(arguments: &FollowArguments) -> Result<Following<'_>, Failure> {
        let directory = keys_directory(&arguments.keys)?;
        if !is_path_name(&arguments.topology) {
            return Err(Failure::usage(format!("{:?} is no name of a topology", arguments.topology)));
        }
        let running = Running::ask(arguments)?;
        let is_foreign =
            |file: Option<&String>| file.is_some_and(|file| Path::new(file).parent() != Some(&directory));
        let foreign = running.esp().associations.iter().find(|sa| is_foreign(sa.key_file.as_ref()));
        if let Some(foreign) = foreign {
            return Err(Failure::usage(format!(
                "its [[sa]] \"{}\" is of a file and not of the kernel, and all of an esp that follows is the kernel's: take its [[sa]] and \
                 [[policy]] out, or name the directory that it followed with, by --keys",
                foreign.name
            )));
        }
        let (events, follower) = (XfrmEvents::listen()?, Follower::new(&directory));
        let files = KeyFiles::new(&directory);
        let mut following = Following { arguments, events, follower, files, trouble: None, looks: 0 };
        following.dump()?;
        Ok(following)
    }

    /// Makes the esp as it is wanted, once or until a signal comes.
    fn follow(&mut self) -> Result<(), Failure> {
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP])?;
        output::hurry(true);
        self.bring_about()?;
        while !self.arguments.once && !self.wait(&signals)? {
            self.catch_up()?;
        }
        Ok(())
    }

    /// Removes the key files that nothing uses; where nobody says what runs they stay.
    fn remove_unused_keys(&mut self) {
        if let Ok(running) = Running::ask(self.arguments) {
            self.files.remove_at_end(running.esp()).unwrap_or_else(output::warn);
        }
    }

    /// Reads all associations and policies of the kernel.
    fn dump(&mut self) -> Result<(), Failure> {
        for _ in 0..DUMPS {
            let messages = xfrm::dump()?;
            let is_torn = self.follower.dumped(&messages).map_err(|code| {
                format!("the kernel shows no IPsec: {}", std::io::Error::from_raw_os_error(code))
            })?;
            if !is_torn {
                break;
            }
        }
        Ok(())
    }

    /// Waits until there is something to hear or it is time to look; whether it is to end.
    fn wait(&self, signals: &Signals) -> Result<bool, Failure> {
        let mut waited_ns = 0;
        while waited_ns < LOOK_NS {
            if signals.arrived()?.is_some() {
                return Ok(true);
            }
            if sys::poll(&mut [sys::poll_in(self.events.fd())], Some(SIGNAL_NS))? > 0 {
                break;
            }
            waited_ns += SIGNAL_NS;
        }
        Ok(false)
    }

    /// Reads the events that there are, and changes the esp by them.
    fn catch_up(&mut self) -> Result<(), Failure> {
        let mut is_to_dump = false;
        loop {
            match self.events.receive()? {
                XfrmReceived::Nothing => break,
                XfrmReceived::Overrun => {
                    output::print_line("events were lost, so all is read anew")?;
                    is_to_dump = true;
                }
                XfrmReceived::Messages(bytes) => {
                    let news = self.follower.heard(bytes);
                    news.lines.iter().try_for_each(output::print_line)?;
                    is_to_dump |= news.is_to_dump;
                }
            }
        }
        if is_to_dump {
            self.dump()?;
        }
        self.looks += 1;
        if self.looks >= LOOKS_REFUSED {
            self.looks = 0;
            self.follower.forget_refusals();
        }
        match self.bring_about() {
            Ok(()) => self.trouble = None,
            // The topology may not be up now, and will be again.
            Err(failure) => {
                if self.trouble.as_ref() != Some(&failure.message) {
                    output::warn(&failure.message);
                }
                self.trouble = Some(failure.message);
            }
        }
        Ok(())
    }

    /// Prints the changes that it would make.
    fn show(&mut self) -> Result<(), Failure> {
        let running = Running::ask(self.arguments)?;
        let wanted = self.wanted(&running);
        let plan = running.with(&wanted.plan);
        let named = |plan| Named { names: &running.names, plan };
        for (_, change, _) in compare_plans(named(&running.plan), named(&plan))?.esps {
            change.lines("esp", running.name()).iter().try_for_each(output::print_line)?;
        }
        Ok(())
    }

    fn wanted(&mut self, running: &Running) -> WantedPlan {
        let wanted = self.follower.wanted(running.esp(), &running.others());
        wanted.notes.iter().for_each(output::warn);
        wanted
    }

    /// Makes the esp as it is wanted, but for associations that are refused, which is said of each.
    fn bring_about(&mut self) -> Result<(), Failure> {
        let running = Running::ask(self.arguments)?;
        self.files.note_running(running.esp());
        loop {
            let wanted = self.wanted(&running);
            let is_new = !wanted.is_as(running.esp());
            let mut refused = if is_new { wanted.write_keys(&mut self.files) } else { Vec::new() };
            if refused.is_empty() {
                let applied = if is_new { self.apply(&running, &wanted) } else { Ok(()) };
                let Err(refusal) = applied else {
                    // Not earlier: a key that stays while its association changes is in no plan in between.
                    self.files.remove_unused(&wanted.plan).unwrap_or_else(output::warn);
                    return Ok(());
                };
                let of_esp = |why| Failure::from(format!("esp {}: {why}", running.name()));
                refused = match refusal {
                    Refusal::Said(_) => running.refused(&wanted).map_err(of_esp)?,
                    // What runs by now, the next look asks.
                    Refusal::Unclear(_) => Vec::new(),
                };
                if refused.is_empty() {
                    return Err(of_esp(refusal.into()));
                }
            }
            for (name, why) in refused {
                self.follower.refuse(&name, why);
            }
        }
    }

    fn apply(&self, running: &Running, wanted: &WantedPlan) -> Result<(), Refusal> {
        let steps = wanted.steps(running.esp());
        for (number, step) in steps.iter().enumerate() {
            let mut changes = running.apply(step, false);
            for _ in 0..TRIES {
                if number == 0 || !matches!(changes, Err(Refusal::Said(_))) {
                    break;
                }
                sleep(AGAIN);
                changes = running.apply(step, false);
            }
            changes?.iter().for_each(|line| {
                // Nobody reading is no reason to leave the rest.
                let _ = output::print_line(line);
            });
        }
        Ok(())
    }
}

/// A topology that is up, with one of its esps.
struct Running<'a> {
    arguments: &'a FollowArguments,
    names: Vec<String>,
    plan: Plan,
    stage: usize,
}

impl Running<'_> {
    fn ask(arguments: &FollowArguments) -> Result<Running<'_>, Failure> {
        let FollowArguments { topology, esp, .. } = arguments;
        if !control::is_up(&Control::path_of(topology)) {
            return Err(format!("topology {topology} is not up: `weir up FILE` runs it").into());
        }
        let running = control::running(topology)?;
        let read = topology::read(topology, &running.file, "", |path| Err(format!("{path} is not told")))
            .map_err(|told| told.join("\nweir: "))?;
        let plan = read.plan.ok_or_else(|| format!("{topology} has no ports"))?;
        let esps: Vec<_> = (0..)
            .zip(&plan.stages)
            .filter(|(_, stage)| matches!(stage.kind, StageKind::Esp(_)))
            .map(|(place, stage): (usize, _)| (place, stage.name.as_str()))
            .collect();
        let names: Vec<_> = esps.iter().map(|(_, name)| *name).collect();
        let stage = match (esp, &esps[..]) {
            (None, [(place, _)]) => *place,
            (Some(esp), _) => match esps.iter().find(|(_, name)| name == esp) {
                Some((place, _)) => *place,
                None => {
                    let near = did_you_mean(esp, names.iter().copied());
                    return Err(Failure::usage(format!("{topology} has no esp \"{esp}\"{near}")));
                }
            },
            (None, []) => {
                return Err(Failure::usage(format!("{topology} has no [[esp]], so nothing to follow with")));
            }
            (None, _) => {
                return Err(Failure::usage(format!(
                    "{topology} has several: say --esp, one of {}",
                    or(&names)
                )));
            }
        };
        let names = running.ports.into_iter().map(|port| port.name).collect();
        Ok(Running { arguments, names, plan, stage })
    }

    fn name(&self) -> &str {
        &self.plan.stages[self.stage].name
    }

    fn esp(&self) -> &EspPlan {
        match &self.plan.stages[self.stage].kind {
            StageKind::Esp(plan) => plan,
            _ => unreachable!("it was found as an esp"),
        }
    }

    /// The names of the associations of its other esps.
    fn others(&self) -> BTreeSet<String> {
        let others = self.plan.stages.iter().enumerate().filter(|(place, _)| *place != self.stage);
        let esps = others.filter_map(|(_, stage)| match &stage.kind {
            StageKind::Esp(plan) => Some(plan),
            _ => None,
        });
        esps.flat_map(|plan| plan.associations.iter().map(|association| association.name.clone())).collect()
    }

    /// The plan with the esp as it is to become.
    fn with(&self, esp: &EspPlan) -> Plan {
        let mut plan = self.plan.clone();
        plan.stages[self.stage].kind = StageKind::Esp(Box::new(esp.clone()));
        plan
    }

    /// Changes the esp, or only tries whether it could be changed. Returns the changes, a line each. All else is as it runs now, because
    /// others may have changed limits since it was asked for.
    fn apply(&self, esp: &EspPlan, is_trial: bool) -> Result<Vec<String>, Refusal> {
        let now = Running::ask(self.arguments).map_err(|failure| Refusal::Unclear(failure.message))?;
        let names: Vec<_> = now.names.iter().map(String::as_str).collect();
        let topology = &self.arguments.topology;
        let (associations, policies) = (esp.associations.clone(), esp.policies.clone());
        let esp = EspPlan { associations, policies, ..now.esp().clone() };
        let text = write(topology, &names, &now.with(&esp));
        let applied = control::apply(topology, ApplyFile { text, is_trial })?;
        let lines = |of: &control::AppliedPort| {
            of.change.iter().flat_map(|change| change.lines(&of.what, &of.interface)).collect::<Vec<_>>()
        };
        Ok(applied.iter().flat_map(lines).collect())
    }

    /// The new associations that cannot be, each tried with those that run; and why.
    fn refused(&self, wanted: &WantedPlan) -> Result<Vec<(String, String)>, String> {
        let new = wanted.new_names(self.esp());
        // The first of two steps may have been taken, and the key runs no more then.
        let now = Running::ask(self.arguments).map_err(|failure| failure.message)?;
        let renewed = wanted.renewed_names(now.esp());
        blamed(&new, &renewed, |names| self.apply(&without(&wanted.plan, names), true).map(drop))
    }
}

/// The associations of `new` that are refused, and why, where `try_without` tries the plan without those of these names. One whose key still
/// runs cannot be tried.
///
/// # Errors
/// If a trial has no answer: that is none's fault.
fn blamed(
    new: &BTreeSet<String>,
    renewed: &BTreeSet<String>,
    try_without: impl Fn(&BTreeSet<String>) -> Result<(), Refusal>,
) -> Result<Vec<(String, String)>, String> {
    let refusal = |names: &BTreeSet<String>| match try_without(names) {
        Ok(()) => Ok(None),
        Err(Refusal::Said(why)) => Ok(Some(why)),
        Err(Refusal::Unclear(why)) => Err(why),
    };
    let mut blamed = Vec::new();
    for name in new.difference(renewed) {
        let others: BTreeSet<_> = new.iter().filter(|other| *other != name).cloned().collect();
        blamed.extend(refusal(&others)?.map(|why| (name.clone(), why)));
    }
    // If nothing new could be, none of them is to blame.
    Ok(if refusal(new)?.is_none() { blamed } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is tried of "old", "one" and "two", whose keys run, do not and do not; "two" is refused.
    fn tried(answer: impl Fn(&[&str]) -> Result<(), Refusal>) -> Result<Vec<(String, String)>, String> {
        let all = ["old", "one", "two"];
        let new = all.map(String::from).into();
        let renewed = BTreeSet::from(["old".to_string()]);
        blamed(&new, &renewed, |without| {
            answer(&all.into_iter().filter(|name| !without.contains(*name)).collect::<Vec<_>>())
        })
    }

    fn said<T>() -> Result<T, Refusal> {
        Err(Refusal::Said("no such key".into()))
    }

    #[test]
    fn an_association_that_is_refused_is_named() {
        let two = vec![("two".to_string(), "no such key".to_string())];
        assert_eq!(tried(|with| if with.contains(&"two") { said() } else { Ok(()) }), Ok(two));
        assert_eq!(tried(|_| said()), Ok(vec![]), "it is not theirs");
    }

    #[test]
    fn no_association_is_to_blame_for_an_answer_that_does_not_come() {
        let lost = || Err(Refusal::Unclear("it does not answer".into()));
        let why = Err("it does not answer".to_string());
        assert_eq!(tried(|_| lost()), why);
        for silent in [&["one"][..], &["two"], &[]] {
            assert_eq!(tried(|with| if with == silent { lost() } else { said() }), why, "{silent:?}");
        }
    }
}
