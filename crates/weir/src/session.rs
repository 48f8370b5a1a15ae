//! A wire from its opening to the moment when everything is back as it was; `weir wire` and `weir run` are two of them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::monitor::{LinkEvent, Monitor};
use weir_port::netns::NetNs;
use weir_port::signals::{Received, Signals};
use weir_port::undo::{Keeper, Undo};
use weir_port::{Doing, PortError};
use weir_run::clock::now_ns;
use weir_run::control::Control;
use weir_run::guardian::Guardian;
use weir_run::stats::Snapshot;
use weir_run::wire::{Wire, WireConfig};
use weir_run::worker::{self, Ended, Mailbox, Request};

use crate::Failure;

/// What can end a session or concerns it.
pub enum Event {
    /// A signal arrived.
    Signal(Received),
    /// The worker ended by itself.
    WorkerEnded,
    /// An interface of the wire is gone.
    InterfaceGone(String),
    /// The program of `weir run` ended.
    ProgramEnded,
}

/// Packet memory for a wire, in bytes, unless another amount is asked for.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;

/// Starts the process that puts everything back.
pub fn guardian() -> Result<Guardian, Failure> {
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: "taking interfaces over".into() }.into());
    }
    Ok(Guardian::start(&std::env::current_exe()?)?)
}

/// Puts everything back after a failure on the way up, and hands that on.
pub fn give_up(guardian: Guardian, failure: Failure) -> Failure {
    for fault in guardian.finish() {
        eprintln!("weir: while putting things back: {fault}");
    }
    failure
}

/// A wire that is up.
pub struct Session {
    guardian: Guardian,
    worker: JoinHandle<io::Result<Ended>>,
    mailbox: Mailbox,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

impl Session {
    /// Opens the wire, starts its worker and its control socket, and makes events of `signals`.
    pub fn start(
        config: &WireConfig,
        mut guardian: Guardian,
        core: Option<usize>,
        signals: &[i32],
    ) -> Result<Session, Failure> {
        match Session::try_start(config, &mut guardian, core, signals) {
            Ok((worker, mailbox, sender, events)) => {
                Ok(Session { guardian, worker, mailbox, events, sender })
            }
            Err(failure) => Err(give_up(guardian, failure)),
        }
    }

    #[allow(clippy::type_complexity, reason = "the parts of a Session, for the one caller that builds it")]
    fn try_start(
        config: &WireConfig,
        guardian: &mut Guardian,
        core: Option<usize>,
        signals: &[i32],
    ) -> Result<(JoinHandle<io::Result<Ended>>, Mailbox, Sender<Event>, Receiver<Event>), Failure> {
        let (sender, events) = channel();
        // From here on a signal is an event and no longer the end of the process. First, because every thread must block them.
        watch_signals(signals, sender.clone())?;
        let control = Control::listen(&config.name)
            .doing(|| format!("making the control socket {}", Control::path_of(&config.name).display()))?;
        guardian.record(&NetNs::current()?, Undo::File { path: control.path().into() })?;
        let (mailbox, inbox) = Mailbox::new()?;
        watch_interfaces(config, sender.clone(), mailbox.clone())?;
        let bell = Arc::new(
            Bell::new().doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?,
        );
        let wire = Wire::open(config, &bell, guardian, now_ns())?;
        let queues = wire.sender_queues();
        let core = core.or_else(weir_port::sys::last_allowed_core);
        let ended = sender.clone();
        let worker = std::thread::Builder::new().name("weir-worker".into()).spawn(move || {
            let result = worker::run(wire, &bell, &inbox, core);
            // The main thread may have stopped listening; then it is waiting for this thread anyway.
            let _ = ended.send(Event::WorkerEnded);
            result
        })?;
        let (answering, ports) = (mailbox.clone(), config.ports.clone());
        std::thread::Builder::new()
            .name("weir-control".into())
            .spawn(move || control.serve(&answering, &ports, &queues))?;
        Ok((worker, mailbox, sender, events))
    }

    /// Where events can be sent to.
    pub fn events(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Waits for the next event.
    pub fn next_event(&self) -> Event {
        self.events.recv().expect("a session holds a sender of its own events")
    }

    /// Delivers what is inside, takes the wire down and puts everything back; the last counters.
    pub fn finish(self) -> Result<Snapshot, Failure> {
        self.mailbox.send(Request::Stop);
        let ended = self.worker.join();
        let faults = self.guardian.finish();
        let ended = ended.map_err(|_| "the worker panicked; everything has been put back")??;
        for fault in &faults {
            eprintln!("weir: while putting things back: {fault}");
        }
        match ended.fault {
            Some(fault) => Err(fault.into()),
            None if !faults.is_empty() => Err("not everything could be put back".into()),
            None => Ok(ended.snapshot),
        }
    }
}

fn watch_signals(signals: &[i32], events: Sender<Event>) -> io::Result<()> {
    let signals = Signals::block(signals)?;
    std::thread::Builder::new().name("weir-signals".into()).spawn(move || {
        while let Ok(received) = signals.wait() {
            if events.send(Event::Signal(received)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Tells when an interface vanishes, and the worker when one has come up again.
fn watch_interfaces(config: &WireConfig, events: Sender<Event>, worker: Mailbox) -> Result<(), Failure> {
    let monitor = Monitor::new()?;
    let watched = config.ports.clone().map(|name| Link::by_name(&name).map(|link| (link.ifindex, name)));
    let [first, second] = watched;
    let watched = [first?, second?];
    std::thread::Builder::new().name("weir-links".into()).spawn(move || {
        let mut was_down = [false; 2];
        while let Ok(seen) = monitor.wait() {
            for (port, (ifindex, name)) in watched.iter().enumerate() {
                let of_port = match &seen {
                    Some(seen) => seen.iter().copied().filter(|event| event.ifindex() == *ifindex).collect(),
                    // Anything may have happened, so also that it went down and up.
                    None => {
                        was_down[port] = true;
                        vec![look(*ifindex)]
                    }
                };
                for event in of_port {
                    match event {
                        LinkEvent::Gone { .. } => {
                            if events.send(Event::InterfaceGone(name.clone())).is_err() {
                                return;
                            }
                        }
                        LinkEvent::Changed { up, .. } if up == was_down[port] => {
                            was_down[port] = !up;
                            let request = if up { Request::Retake(port) } else { Request::NoteDown(port) };
                            if !worker.send(request) {
                                return;
                            }
                        }
                        LinkEvent::Changed { .. } => {}
                    }
                }
            }
        }
    })?;
    Ok(())
}

fn look(ifindex: u32) -> LinkEvent {
    match Link::by_index(ifindex) {
        Ok(link) => LinkEvent::Changed { ifindex, up: link.up },
        Err(_) => LinkEvent::Gone { ifindex },
    }
}
