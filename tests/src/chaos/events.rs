//! The events that happen to the wire, each as its user, its runtime or its machine would cause it.
//!
//! Rule: when an event returns, interfaces, processes and files are as the wire may expect them again, and a wire that was killed has been
//! started anew; one that ended by itself has not. A promise that is broken meanwhile is a fault, a sentence each.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace};
use weir_lab::clock;
use weir_lab::process::{Finished, Signal};

use crate::chaos::floods::Floods;
use crate::chaos::patience::{Patience, Since};
use crate::chaos::plan::{At, Event, Kind};
use crate::chaos::site::{Full, OUR_QDISC, Site};
use crate::chaos::subject::Subject;
use crate::kernel::{Traces, require_same};

/// The time in which the kernel, its user or a wire has to be done with something.
const SECOND: Duration = Duration::from_secs(1);
/// The number of datagrams that a flow can hand on while nothing takes them: its socket's buffer, and a ring that it has to itself; and
/// more than that.
const MORE_THAN_HELD: u64 = 400;

/// The stage of an event.
pub struct Stage<'a> {
    /// The interfaces.
    pub site: &'a Site,
    /// The wire.
    pub subject: &'a mut Subject,
    /// The traffic that the wire carries.
    pub floods: &'a Floods,
    /// The patience with the machine.
    pub patience: &'a Patience,
    /// The state of everything before the first wire.
    pub before: &'a [Traces; 3],
    /// The faults that were found.
    pub faults: Vec<String>,
}

impl Stage<'_> {
    /// Makes an event happen, and undoes it. Returns since when traffic must flow again.
    pub fn perform(&mut self, event: &Event) -> Result<Since> {
        let hold = Duration::from_millis(event.hold_ms);
        match (event.kind, event.at) {
            (Kind::KillDaemon, _) => {
                self.subject.signal_daemon(Signal::KILL)?;
                return self.start_anew();
            }
            (Kind::KillBoth, _) => {
                self.subject.signal_daemon(Signal::KILL)?;
                self.subject.signal_guardian(libc::SIGKILL)?;
                return self.start_anew();
            }
            (Kind::KillGuardian, _) => self.kill_guardian()?,
            (Kind::StopDaemon, _) => self.stop_daemon(hold)?,
            (Kind::StopGuardian, _) => {
                self.subject.signal_guardian(libc::SIGSTOP)?;
                clock::let_pass(hold + SECOND, |_| ())?;
                self.subject.signal_guardian(libc::SIGCONT)?;
            }
            (Kind::Ruleset, _) => {
                for namespace in [&self.site.middle, &self.site.left, &self.site.right] {
                    namespace.sh("nft flush ruleset")?;
                }
            }
            (Kind::FullRun, _) => self.full_run(hold)?,
            (Kind::NoProcessIds, _) => return self.no_process_ids(),
            (_, Some(at)) => self.at_an_end(event.kind, at, event.hold_ms)?,
            (_, None) => anyhow::bail!("{event} needs an end"),
        }
        Ok(self.patience.now())
    }

    /// Starts a wire in place of one that was killed.
    fn start_anew(&mut self) -> Result<Since> {
        self.subject.reap()?;
        let since = self.patience.now();
        self.subject.start().context("starting a wire anew")?;
        Ok(since)
    }

    /// Kills the guardian: the wire ends, or has a new guardian.
    fn kill_guardian(&mut self) -> Result<()> {
        self.subject.signal_guardian(libc::SIGKILL)?;
        let subject = &mut *self.subject;
        let followed =
            self.patience.wait(SECOND, || Ok(!subject.is_running()? || subject.has_new_guardian()?))?;
        if !followed {
            self.faults.push("its guardian was killed, and it goes on without one".into());
        }
        Ok(())
    }

    /// Stops the daemon: senders are let go.
    fn stop_daemon(&mut self, hold: Duration) -> Result<()> {
        let before: Vec<u64> = self.floods.sent().iter().map(|sent| sent + MORE_THAN_HELD).collect();
        self.subject.signal_daemon(Signal::STOP)?;
        let are_let_go = || Ok(self.floods.sent().iter().zip(&before).all(|(sent, mark)| sent > mark));
        if !self.patience.wait(SECOND + SECOND / 4, are_let_go)? {
            self.faults.push("the daemon was stopped, and after a second its senders are still held".into());
        }
        clock::let_pass(hold, |_| ())?;
        self.subject.signal_daemon(Signal::CONT)?;
        // A daemon that was let go of has to end or to take over again; the traffic shows which.
        let subject = &mut *self.subject;
        self.patience.wait(SECOND / 2, || Ok(!subject.is_running()?))?;
        Ok(())
    }

    fn full_run(&mut self, hold: Duration) -> Result<()> {
        let full = Full::fill()?;
        clock::let_pass(hold, |_| ())?;
        self.require_refusal("beside-a-full-run", "no file could be made")?;
        drop(full);
        Ok(())
    }

    fn no_process_ids(&mut self) -> Result<Since> {
        self.subject.group().limit(Some(0))?;
        self.require_refusal("without-a-process-id", "no process could be started")?;
        self.subject.signal_daemon(Signal::KILL)?;
        self.subject.reap()?;
        let is_undone = self.subject.wait_until_alone().and_then(|()| {
            let after = self.site.traces()?;
            self.before.iter().zip(&after).try_for_each(|(before, after)| require_same(before, after))
        });
        if let Err(error) = is_undone {
            self.faults.push(format!("killed without a process id to be had: {error:#}"));
        }
        self.subject.group().limit(None)?;
        let since = self.patience.now();
        self.subject.start().context("starting a wire anew")?;
        Ok(since)
    }

    /// Requires a wire that cannot start to say why in one sentence.
    fn require_refusal(&mut self, name: &str, why: &str) -> Result<()> {
        let Finished { status, stderr, stdout, .. } = self.subject.refused(name)?;
        if status.code() != Some(1)
            || stderr.lines().count() != 1
            || !stderr.starts_with("weir: ")
            || !stdout.is_empty()
        {
            self.faults.push(format!("a wire was started while {why}: {status}, {stdout}{stderr}"));
        }
        Ok(())
    }

    fn at_an_end(&mut self, kind: Kind, at: At, hold_ms: u64) -> Result<()> {
        let End { namespace, name } = self.site.end(at);
        let hold = || clock::let_pass(Duration::from_millis(hold_ms), |_| ());
        match kind {
            Kind::DownUp => {
                namespace.ip(&format!("link set {name} down"))?;
                hold()?;
                namespace.ip(&format!("link set {name} up"))?;
                self.join_again(at)
            }
            Kind::Rename => {
                namespace.ip(&format!("link set {name} name other0"))?;
                hold()?;
                namespace.ip(&format!("link set other0 name {name}")).map(drop)
            }
            Kind::Move => {
                let elsewhere = &self.site.elsewhere;
                self.move_end(namespace, elsewhere, name)?;
                self.require_end(at)?;
                hold()?;
                self.move_end(elsewhere, namespace, name)?;
                namespace.ip(&format!("link set {name} up"))?;
                self.join_again(at)
            }
            Kind::Checksums => namespace.sh(&format!("ethtool -K {name} tx on")).map(drop),
            Kind::Gro => {
                namespace.sh(&format!("ethtool -K {name} gro on"))?;
                hold()?;
                namespace.sh(&format!("ethtool -K {name} gro off")).map(drop)
            }
            Kind::Queues => {
                for number in [2, 1] {
                    // Where a program of the wire's is attached the kernel may refuse it, which is as good.
                    for queues in ["tx", "rx"] {
                        let _ = namespace.sh(&format!("ethtool -L {name} {queues} {number}"));
                    }
                    hold()?;
                }
                Ok(())
            }
            Kind::Qdisc => {
                let (kind, handle) = OUR_QDISC.split_once(' ').context("a kind and a handle")?;
                namespace
                    .tc(&format!("qdisc replace dev {name} root handle {handle} {kind} limit 20"))
                    .map(drop)
            }
            Kind::Mtu => {
                let mtu = [1280, 1400, 2000, 3000][(hold_ms % 4) as usize];
                namespace.ip(&format!("link set {name} mtu {mtu}"))?;
                hold()?;
                namespace.ip(&format!("link set {name} mtu 1500")).map(drop)
            }
            _ => anyhow::bail!("{} is at no end", kind.name()),
        }
    }

    fn move_end(&self, from: &Namespace, to: &Namespace, name: &str) -> Result<()> {
        // A process of the wire's may hold the name for a moment longer.
        from.ip(&format!("link set {name} netns {}", to.name())).map(drop)
    }

    /// Requires a wire whose own interface has gone to end; the other end of its pair may go where it likes.
    fn require_end(&mut self, at: At) -> Result<()> {
        let (subject, since) = (&mut *self.subject, self.patience.now());
        if !at.is_of_host() && !self.patience.wait(SECOND, || Ok(!subject.is_running()?))? {
            let ended = self.patience.wait(3 * SECOND, || Ok(!subject.is_running()?))?;
            let elapsed = since.elapsed();
            self.faults.push(format!(
                "{at:?} was moved to another namespace; after {elapsed:.2?} it ended: {ended}"
            ));
        }
        Ok(())
    }

    /// Gives a host's interface its neighbour again, which it has forgotten.
    fn join_again(&self, at: At) -> Result<()> {
        if at.is_of_host() { self.site.join(at) } else { Ok(()) }
    }
}

/// Fails unless a ping gets through and back.
pub fn answers(site: &Site) -> Result<()> {
    let mut command = site.left.command("ping");
    command.args(["-n", "-c", "1", "-W", "0.3", &site.address(At::Right)]);
    let done = weir_lab::process::run(&mut command, Duration::from_secs(5))?;
    ensure!(done.status.success(), "no answer: {}", done.said());
    Ok(())
}
