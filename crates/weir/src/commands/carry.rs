//! Carries packets in the foreground, for `weir wire` and `weir up`: until it is told to end, or cannot go on.
//!
//! Rule: however it ends, packets inside are delivered as far as they can be, everything is put back, and the outcome is said.
//!
//! It says when it is up: by a line on standard output, and to a service manager that asks for it, by its socket ([`crate::notify`]).
//!
//! Owner: the main thread.

use std::process::ExitCode;

use weir_port::monitor::State;
use weir_port::signals::{Received, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use weir_run::datapath::DatapathConfig;
use weir_run::guardian::Trouble;
use weir_run::stats::Snapshot;
use weir_run::watcher::News;

use crate::commands::drops;
use crate::guarded::{self, Namespaces, SessionEvent};
use crate::notify::Notify;
use crate::session::Session;
use crate::{Outcome, human, output};

/// Carries packets, having said `ready` when it does; `begun` is called when its control socket listens.
pub fn carry(config: &DatapathConfig, cores: &[usize], ready: &str, begun: impl FnOnce()) -> Outcome {
    let notify = Notify::from_environment();
    let guardian = guarded::guardian(Namespaces::Others)?;
    guarded::confine();
    let session = Session::start(config, guardian, cores, &[SIGINT, SIGTERM, SIGHUP, SIGTSTP])?;
    begun();
    if let Err(failure) = output::print_line(format_args!("ready: {ready}")) {
        session.finish()?;
        return Err(failure);
    }
    notify.ready();
    let ended = watch(session, &notify);
    notify.ended();
    ended
}

/// Waits until the session ends. Returns the outcome, having said it.
fn watch(session: Session, notify: &Notify) -> Outcome {
    loop {
        // A worker that does not answer is told of by silence.
        if notify.is_due() && session.stat().is_ok() {
            notify.alive();
        }
        let event = match notify.pause() {
            Some(time) => match session.guarded.next_event_within(time) {
                Some(event) => event,
                None => continue,
            },
            None => session.guarded.next_event(),
        };
        match event {
            SessionEvent::Signal(Received { signal: SIGTSTP, .. }) => guarded::say_unstoppable(),
            SessionEvent::Trouble(Trouble::Deserted(namespace)) if session.desert(namespace) => {}
            SessionEvent::Trouble(trouble) => {
                let why = session.guarded.explain(trouble);
                // A fault on the way out is only more of the same.
                let _ = session.finish();
                return Err(why.into());
            }
            SessionEvent::Signal(_) | SessionEvent::AskedToEnd | SessionEvent::ProgramEnded => {
                let last = session.finish()?;
                output::print_done(last_line(&last))?;
                return Ok(ExitCode::SUCCESS);
            }
            SessionEvent::WorkerEnded => {
                session.finish()?;
                return Err("the worker ended by itself".into());
            }
            SessionEvent::News(News::Interface(interface, State::Gone)) => {
                let noun = session.kind().noun();
                // Errors of the vanished interface's sockets on the way out are only more of the same.
                let _ = session.finish();
                return Err(format!(
                    "interface {interface} vanished while the {noun} was up; everything else is as before"
                )
                .into());
            }
            SessionEvent::News(News::Interface(interface, state)) => output::say_state(&interface, state),
            SessionEvent::News(News::Said(text)) => output::say(format_args!("weir: {text}")),
            // It has no program.
            SessionEvent::ProgramStopped(_) => {}
            SessionEvent::News(News::Ended(why)) => {
                // Any other fault on the way out is said there, or is only more of the same.
                if let Ok(last) = session.finish() {
                    output::print_done(last_line(&last))?;
                }
                return Err(why.into());
            }
        }
    }
}

/// The last line: the packets that were delivered and dropped, those that were left inside when the time to deliver them was over, and those
/// that still waited in the senders' queues.
fn last_line(last: &Snapshot) -> String {
    let Some((kind, stats, _)) = last.each().next() else { return "ended: nothing was counted".into() };
    let delivered = last.totals.delivered;
    let mut dropped = drops::of(last);
    dropped.insert("undelivered".into(), last.totals.held.packets);
    // They go with the queues, as nothing carries them any more.
    dropped.insert("unsent".into(), last.ports.iter().map(|port| port.sender_queue_packets).sum());
    format!(
        "ended: {} {} delivered {} ({}) in {}, dropped {}",
        kind.noun(),
        stats.name,
        human::plural(delivered.packets, "packet"),
        human::bytes(delivered.bytes),
        human::uptime(stats.worker.now_ns.saturating_sub(stats.worker.since_ns)),
        drops::text(&dropped)
    )
}
