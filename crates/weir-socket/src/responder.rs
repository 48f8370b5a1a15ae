//! The answers of a stack at a control socket of its own ([`weir_run::control`]): `weir stat` shows the stack beside wires and limits.
//!
//! ```text
//! weir stat --> /run/weir/NAME.sock --> this thread --Request::Stat--> the workers, when they look next
//! ```
//!
//! Rule: the thread reports, and changes nothing: a stack is its application's, which alone knows the reasons for its state. The client waits for the
//! workers. A worker that is alone never waits: it copies its counters in one go. Several workers stand still together meanwhile ([`Standstill`]), so
//! that sums are exact. Everybody may ask, as with a wire.
//!
//! The end: an eventfd tells the thread to end, after the workers have ended; the guardian then removes the socket, as it does after `kill -9`.
//!
//! Owner: a thread of the stack's, which sleeps until somebody asks. It has no handle of the stack, which so ends with the application's handles.
//! Limits: a stack that its application drives ([`crate::Driver`]) answers at the application's next turn.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::steer::rss::Rss;
use weir_path::owners::Owners;
use weir_port::limit::find;
use weir_port::sys;
use weir_port::undo::Keeper;
use weir_run::clock::now_ns;
use weir_run::control::{Command, Control, Responder};
use weir_run::crew::GOING_DOWN;
use weir_run::datapath::Kind;
use weir_run::limits::{PATH_NAME_IS, is_path_name};
use weir_run::standstill::Standstill;
use weir_run::stats::socket::{ConnectionStats, ProcessStats, SocketStats, ThrottleStats};
use weir_run::stats::{PlaceStats, Snapshot};
use weir_run::sum::{Constants, Sight};
use weir_run::watcher::Devices;

use crate::builder::invalid;
use crate::datagram::bucket_of;
use crate::options::SocketCounts;
use crate::report::{AllReports, SocketReport, StackReport, TRANSPORTS};
use crate::stack::Stack;
use crate::tcp::report::{ConnectionReport, name};
use crate::worker::{Asking, Request};

/// The longest time that a worker may take to report: far more than a pass, and less than a client waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// The responder of a stack.
pub(crate) struct StackResponder {
    workers: Vec<Asking>,
    /// The number of interfaces that each worker has.
    interfaces: usize,
    constants: Constants,
    rss: Rss,
    wake_cost_ns: u64,
    process: ProcessStats,
    is_stopping: Arc<AtomicBool>,
}

impl StackResponder {
    /// The responder of a stack whose workers have these interfaces each, of the kernel's or in memory.
    pub(crate) fn new(stack: &Stack, name: String, interfaces: &[&str], sight: Sight) -> StackResponder {
        let workers = stack.asking();
        let count = workers.len();
        let called = |name: &str, worker| match count {
            1 => name.to_string(),
            _ => format!("{name}/{worker}"),
        };
        let named = |names: &[&str]| -> Vec<String> {
            (0..count).flat_map(|worker| names.iter().map(move |name| called(name, worker))).collect()
        };
        let ports = [named(interfaces), named(&TRANSPORTS)].concat();
        let constants = Constants {
            name,
            // The kind of a datapath that has stages.
            kind: Kind::Topology,
            port_names: ports.clone(),
            ports,
            owners: Owners::default(),
            plan: Arc::default(),
            frames_total: stack.memory().frames().into(),
            since_ns: now_ns(),
            sight,
        };
        StackResponder {
            workers,
            interfaces: interfaces.len(),
            constants,
            rss: stack.rss().clone(),
            wake_cost_ns: stack.wake_cost_ns(),
            process: process(),
            is_stopping: Arc::default(),
        }
    }

    /// The reports of all workers, of one moment.
    fn ask(&self) -> Result<Vec<StackReport>, String> {
        let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
        loop {
            let together = Arc::new(Standstill::new(self.workers.len()));
            let mut answers = Vec::new();
            for worker in &self.workers {
                let (reply, answer) = channel();
                if !worker.ask(Request::Stat { reply, together: Arc::clone(&together) }) {
                    return Err(self.ended());
                }
                answers.push(answer);
            }
            let mut told = Vec::new();
            for answer in answers {
                let answer = answer.recv_timeout(PATIENCE).map_err(|error| match error {
                    RecvTimeoutError::Disconnected => self.ended(),
                    RecvTimeoutError::Timeout => self.is_still(),
                })?;
                told.extend(answer);
            }
            if told.len() == self.workers.len() {
                return told.into_iter().map(|report| report.map_err(|error| error.to_string())).collect();
            }
            // A worker was with its application, or asleep, for longer than the others wait.
            if now_ns() > end_ns {
                return Err(self.is_still());
            }
        }
    }

    fn ended(&self) -> String {
        match self.is_stopping.load(Ordering::Relaxed) {
            true => GOING_DOWN.to_string(),
            false => format!(
                "{} has ended, as when its interface vanishes, and {} has not closed it",
                self.constants.name,
                self.whose()
            ),
        }
    }

    fn is_still(&self) -> String {
        format!(
            "{} of {} has not moved for a second: that drives it itself, or its interface is just being taken over",
            self.constants.name,
            self.whose()
        )
    }
}

/// The thread that answers, and the eventfd that ends it.
pub(crate) struct Answering {
    end: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    is_stopping: Arc<AtomicBool>,
}

impl Answering {
    /// Starts to answer.
    pub(crate) fn start(mut control: Control, responder: StackResponder) -> io::Result<Answering> {
        let end = Arc::new(sys::eventfd()?);
        let (until, is_stopping) = (Arc::clone(&end), Arc::clone(&responder.is_stopping));
        let thread = std::thread::Builder::new().name("weir-control".into());
        let thread = thread.spawn(move || control.serve(&responder, Some(until.as_fd()), None))?;
        Ok(Answering { end, thread, is_stopping })
    }

    /// Notes that the stack is about to end. This chooses the answer that clients get then, and orders nothing.
    pub(crate) fn announce_end(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub(crate) fn end(self) {
        sys::signal_eventfd(&self.end);
        // A thread that has panicked has ended.
        let _ = self.thread.join();
    }
}

/// Listens for a stack with this name, or with the name of its interface; `keeper` removes the socket.
///
/// # Errors
/// `InvalidInput` if a stack cannot have this name, `AddrInUse` if something has it.
pub(crate) fn listen(name: Option<&str>, interface: &str, keeper: &mut dyn Keeper) -> io::Result<Control> {
    let limits = find::names().map_err(io::Error::other)?;
    let limit = |name: &str| limits.iter().find(|(_, other)| other == name);
    let control = match name {
        Some(name) => {
            if !is_path_name(name) {
                return Err(invalid(format_args!(
                    "a stack cannot be called `{name}`: a name is {PATH_NAME_IS}"
                )));
            }
            if let Some((place, _)) = limit(name) {
                let why = format!(
                    "the limit at {} is called {name} already: give the stack another name",
                    place.describe()
                );
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            Control::listen(name).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => io::Error::new(
                    error.kind(),
                    format!("{error}; give the stack another by StackBuilder::name"),
                ),
                _ => error,
            })?
        }
        None => {
            // The kernel has interfaces whose names no file can have.
            let first = if is_path_name(interface) { interface } else { "stack" };
            Control::listen_from(first, |name| limit(name).is_some())?
        }
    };
    control.entrust(keeper).map_err(io::Error::other)?;
    Ok(control)
}

/// The number and the program of this process.
pub(crate) fn process() -> ProcessStats {
    let path = std::env::current_exe().unwrap_or_default();
    let program = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ProcessStats { pid: std::process::id(), program }
}

impl Responder for StackResponder {
    fn noun(&self) -> &'static str {
        "stack"
    }

    fn stat(&self) -> Result<Snapshot, String> {
        let devices = self.constants.look();
        Ok(self.snapshot(devices, AllReports::of(self.ask()?, self.interfaces)))
    }

    fn change(&self, command: &Command) -> Result<String, String> {
        let (name, whose) = (&self.constants.name, self.whose());
        Err(match command {
            Command::Stop => format!(
                "{name} is a stack of {whose}: end that by `kill {}`, and its interface is put back",
                self.process.pid
            ),
            Command::Show => format!(
                "{name} is a stack of {whose}, of which there is no file: `weir stat {name}` shows it"
            ),
            _ => format!(
                "{name} is a stack of {whose}, which alone sets its limit, where it opens it: start that with another"
            ),
        })
    }
}

impl StackResponder {
    /// The process that has the stack, in words.
    fn whose(&self) -> String {
        let ProcessStats { pid, program } = &self.process;
        format!("{program} (process {pid})")
    }

    /// The snapshot from the workers' reports.
    fn snapshot(&self, devices: Devices, told: AllReports) -> Snapshot {
        let AllReports { mut parts, frames_of_sockets, sockets, listeners, connections } = told;
        parts.iter_mut().for_each(|part| part.worker.wake_cost_ns = self.wake_cost_ns);
        let interfaces = self.interfaces * parts.len();
        let mut snapshot = self.constants.snapshot(devices, parts);
        // Sockets have directions, and no devices.
        snapshot.ports.truncate(interfaces);
        for stack in &mut snapshot.topologies {
            stack.ports.truncate(interfaces);
            stack.process = Some(self.process.clone());
            stack.frames.sockets = frames_of_sockets;
            let name = |direction: usize| stack.classes.get(direction).map(|class| class.place.name.clone());
            stack.sockets =
                sockets.iter().map(|socket| socket_stats(socket, socket.leaves_by.and_then(name))).collect();
            stack.connections =
                connections.iter().map(|connection| self.connection_stats(connection)).collect();
            stack.listeners.clone_from(&listeners);
        }
        snapshot
    }

    fn connection_stats(&self, told: &ConnectionReport) -> ConnectionStats {
        let (local, peer) = (told.flow.local, told.flow.peer);
        ConnectionStats {
            protocol: "tcp".into(),
            local: local.to_string(),
            peer: peer.to_string(),
            listener: told.listener.map(|listener| listener.to_string()),
            state: name(told.state).into(),
            bucket: bucket_of(&self.rss, peer, local),
            receive_queue_bytes: told.receive_queue_bytes,
            send_queue_bytes: told.send_queue_bytes,
            throttle: throttle_stats(told.counts),
        }
    }
}

fn socket_stats(told: &SocketReport, leaves_by: Option<String>) -> SocketStats {
    let local = SocketAddr::new(told.binding.address, told.binding.port);
    let bucket = told.binding.bucket;
    let place =
        bucket.map_or_else(|| format!("udp {local}"), |bucket| format!("udp {local} bucket {bucket}"));
    SocketStats {
        place: PlaceStats {
            blocked_ns: Some(told.blocked_ns),
            waits_for: leaves_by.filter(|_| told.counts.is_throttled),
            ..PlaceStats::new(place, told.books.clone())
        },
        protocol: "udp".into(),
        local: local.to_string(),
        peer: told.peer.map(|peer| peer.to_string()),
        bucket,
        sent: told.sent,
        from_others: told.counts.from_others,
        throttle: throttle_stats(told.counts),
    }
}

fn throttle_stats(counts: SocketCounts) -> ThrottleStats {
    let SocketCounts { is_throttled, throttled, throttled_ns, wakes, empty_wakes, from_others: _ } = counts;
    ThrottleStats { is_throttled, throttled, throttled_ns, wakes, empty_wakes }
}
