//! What the worker of a stack tells when somebody asks: the books of its interfaces, of its hosts and of its sockets.
//!
//! ```text
//! ->veth-a    what leaves by an interface: its egress queue and its exit
//! ->udp       what came for UDP sockets, those that have been closed included        ->tcp    for connections and listeners
//! host0       what the host made, kept, dropped, and took for itself
//! socket:     accepted = delivered (read) + dropped + held, of its egress queue and its port since it was bound
//! ```
//!
//! Rule: the places of sockets are used again, and their counters go on; so what a socket did is what was counted since it was bound. What it
//! held then, of the one before, is its own. A worker that nobody asks does what it did, but for two additions: one in a pass that moves packets, and
//! one in a poll of a socket, of how many it has sent.
//!
//! Owner: the worker; what is told are copies. Frames of packet memory are counted where they are, so that their sum can fail.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_core::account::Account;
use weir_core::drops::{Count, DropCounts};
use weir_core::net::sockets::Binding;
use weir_core::shaper::delay::DelayHistogram;
use weir_path::egress::EgressQueue;
use weir_path::either_port::EitherPort;
use weir_path::end::End;
use weir_path::port::{ReceiveQueues, TransmitRing};
use weir_path::worker::Worker;
use weir_run::books::Books;
use weir_run::report::{DirectionReport, PartReport, PortReport, of_egress, port_stats};
use weir_run::stats::socket::ListenerStats;
use weir_run::stats::{DirectionStats, PlaceStats, PortStats, StageStats, WorkerStats};
use weir_run::workstreams::Tally;

use crate::options::SocketCounts;
use crate::tcp::report::ConnectionReport;
use crate::worker::{StackPort, tcp_port};

/// What sockets are called together, as a direction: those of UDP, and all TCP.
pub(crate) const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

/// What a stack tells.
pub(crate) struct StackReport {
    /// As of any datapath. After its interfaces there are two ports more, of all [`TRANSPORTS`].
    pub(crate) part: PartReport,
    /// Frames of packet memory that sockets and connections have.
    pub(crate) frames_of_sockets: u64,
    pub(crate) sockets: Vec<SocketReport>,
    pub(crate) listeners: Vec<ListenerStats>,
    pub(crate) connections: Vec<ConnectionReport>,
}

/// What a socket tells.
#[derive(Debug)]
pub(crate) struct SocketReport {
    pub(crate) binding: Binding,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) books: Books,
    pub(crate) blocked_ns: u64,
    pub(crate) sent: u64,
    pub(crate) counts: SocketCounts,
    /// The number of the interface that it sends by.
    pub(crate) interface: usize,
    /// Whether it sends by this worker.
    pub(crate) is_home: bool,
}

/// The reports of all workers of a stack, added up.
pub(crate) struct AllReports {
    /// The part of each: first the interfaces of all, then of each [`TRANSPORTS`].
    pub(crate) parts: Vec<PartReport>,
    /// Frames of packet memory that sockets and connections have.
    pub(crate) frames_of_sockets: u64,
    pub(crate) sockets: Vec<SocketReport>,
    pub(crate) listeners: Vec<ListenerStats>,
    pub(crate) connections: Vec<ConnectionReport>,
}

impl AllReports {
    /// Of workers with so many interfaces each. A socket and a listener is at every worker: it is told once, with what all of them counted.
    pub(crate) fn of(reports: Vec<StackReport>, interfaces: usize) -> AllReports {
        let (workers, transports) = (reports.len(), TRANSPORTS.len());
        let mut all = AllReports {
            parts: Vec::new(),
            frames_of_sockets: 0,
            sockets: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
        };
        for (worker, report) in reports.into_iter().enumerate() {
            let StackReport { mut part, frames_of_sockets, sockets, listeners, connections } = report;
            let among_all = |index: usize| match index.checked_sub(interfaces) {
                None => worker * interfaces + index,
                Some(transport) => workers * interfaces + worker * transports + transport,
            };
            part.directions.iter_mut().for_each(|direction| direction.exit = among_all(direction.exit));
            for port in &mut part.ports {
                port.index = among_all(port.index);
                if workers > 1 {
                    // Each has a name of its own.
                    port.port.name.clear();
                }
            }
            if workers > 1 {
                part.stages.iter_mut().for_each(|host| host.place.name += &format!("/{worker}"));
            }
            all.parts.push(part);
            all.frames_of_sockets += frames_of_sockets;
            for socket in sockets {
                let socket = SocketReport { interface: among_all(socket.interface), ..socket };
                let is_it = |other: &&mut SocketReport| other.binding == socket.binding;
                match all.sockets.iter_mut().find(is_it).filter(|_| workers > 1) {
                    Some(known) => known.merge(socket),
                    None => all.sockets.push(socket),
                }
            }
            for listener in listeners {
                let is_it = |other: &&mut ListenerStats| other.local == listener.local;
                match all.listeners.iter_mut().find(is_it).filter(|_| workers > 1) {
                    // All but this they count together.
                    Some(known) => known.half_open += listener.half_open,
                    None => all.listeners.push(listener),
                }
            }
            all.connections.extend(connections);
        }
        all
    }
}

impl SocketReport {
    /// Adds what another worker tells of the same socket; what its application counts both tell.
    fn merge(&mut self, other: SocketReport) {
        self.books.merge(&other.books);
        self.blocked_ns = self.blocked_ns.max(other.blocked_ns);
        self.sent += other.sent;
        if other.is_home {
            self.interface = other.interface;
        }
        self.is_home |= other.is_home;
    }
}

/// The sockets that are bound, each at its port, and since when.
#[derive(Debug, Default)]
pub(crate) struct BoundSockets(BTreeMap<usize, Since>);

/// What was counted at a port before its socket was bound, and what that is.
#[derive(Debug)]
struct Since {
    binding: Binding,
    host: usize,
    /// What has ended.
    ended: Account,
    blocked_ns: u64,
}

impl BoundSockets {
    /// A socket of a host is bound, at this port.
    pub(crate) fn add(
        &mut self,
        path: &mut Worker<StackPort>,
        port: usize,
        host: usize,
        binding: Binding,
        now_ns: u64,
    ) {
        path.complete();
        let ends = path.ends().iter().find(|end| end.index == port).zip(path.egress(port));
        let Some((end, queue)) = ends else { return };
        let (ended, blocked_ns) = (account(queue, end), queue.shaping.blocked_ns(now_ns));
        self.0.insert(port, Since { binding, host, ended, blocked_ns });
    }

    /// The socket at a port is closed.
    pub(crate) fn remove(&mut self, port: usize) {
        self.0.remove(&port);
    }
}

impl Since {
    /// What is told of the socket, but for what its application knows.
    fn report(&self, queue: &EgressQueue, end: &End<StackPort>, now_ns: u64) -> SocketReport {
        let mut held = queue.shaping.held();
        held.merge(end.port.in_flight());
        SocketReport {
            binding: self.binding,
            peer: None,
            books: self.books(&account(queue, end), held),
            blocked_ns: queue.shaping.blocked_ns(now_ns).saturating_sub(self.blocked_ns),
            sent: 0,
            counts: SocketCounts::default(),
            interface: self.host,
            is_home: false,
        }
    }

    /// The books since then.
    fn books(&self, now: &Account, held: Count) -> Books {
        let less = |now: Count, before: Count| Count {
            packets: now.packets - before.packets,
            bytes: now.bytes - before.bytes,
        };
        let mut dropped = DropCounts::default();
        for (reason, count) in now.dropped.occurred() {
            dropped.add_all(reason, less(count, self.ended.dropped.get(reason)));
        }
        let mut ended = self.ended.delivered;
        ended.merge(self.ended.dropped.total());
        let delivered = less(now.delivered, self.ended.delivered);
        Books::new(&Account { accepted: less(now.accepted, ended), delivered, dropped }, held)
    }
}

/// The books of what comes to a port: of the queue before it, and of its exit.
fn account(queue: &EgressQueue, end: &End<StackPort>) -> Account {
    let Account { accepted, mut dropped, .. } = queue.shaping.account();
    dropped.merge(&end.exit.account().dropped);
    Account { accepted, delivered: end.exit.account().delivered, dropped }
}

/// What leaves to many ports together.
#[derive(Default)]
struct Together {
    shaped: Account,
    held: Count,
    tally: Tally,
    delay: DelayHistogram,
    departed: Account,
    departing: Count,
}

impl Together {
    fn add(&mut self, queue: &EgressQueue, end: &End<StackPort>) {
        let counts = queue.counts();
        self.tally.intake.qlimit = self.tally.intake.qlimit.max(counts.qlimit);
        if counts.entered + counts.refused == 0 {
            // As that of most sockets that there may be.
            return;
        }
        let Together { shaped, held, tally: Tally { intake, released }, delay, departed, departing } = self;
        shaped.merge(&queue.shaping.account());
        held.merge(queue.shaping.held());
        delay.merge(&queue.shaping.delay());
        intake.entered += counts.entered;
        intake.refused += counts.refused;
        intake.blocked += counts.blocked;
        // Of each by itself.
        intake.held_max = intake.held_max.max(counts.held_max);
        let counts = queue.shaping.released();
        released.dispatched += counts.dispatched;
        released.delayed += counts.delayed;
        released.dropped += counts.dropped;
        departed.merge(end.exit.account());
        departing.merge(end.port.in_flight());
    }

    /// The same as a direction that ends at a port of this number and name.
    fn report(self, index: usize, name: &str) -> (DirectionReport, PortReport) {
        let Together { shaped, held, tally, delay, departed, departing } = self;
        // For how long one of them was blocked nobody counts: each socket tells it.
        let place = PlaceStats::default().with_delay(&delay);
        let class = DirectionStats { place, ..DirectionStats::default() };
        let port = PortStats { name: name.into(), ..PortStats::default() };
        (
            DirectionReport { exit: index, class, shaped, held, tally, holders: vec![None] },
            PortReport { index, departed, departing, port },
        )
    }
}

/// The report of this moment, after what is complete was noted. It moves no frame: the free ones of all workers are counted meanwhile.
///
/// # Errors
/// If the kernel does not say what it lost.
pub(crate) fn report(
    path: &mut Worker<StackPort>,
    bound: &BoundSockets,
    worker: WorkerStats,
    now_ns: u64,
) -> weir_port::Result<StackReport> {
    let queues: BTreeMap<_, _> =
        path.between().egress.queues().iter().map(|queue| (queue.port, queue)).collect();
    let (mut directions, mut sockets, mut tcp_ports) = (Vec::new(), Vec::new(), Vec::new());
    let mut all = TRANSPORTS.map(|_| Together::default());
    let mut frames_lent = path.frames().loans.count().into();
    let mut frames_of_sockets = 0;
    for end in path.ends() {
        let Some(queue) = queues.get(&end.index) else { continue };
        match &end.port {
            EitherPort::Kernel(interface) => {
                directions.push(of_egress(queue, now_ns));
                // Those of the kernel's are lent to it; one in memory has them itself.
                frames_lent += if interface.kernel().is_some() { 0 } else { end.port.in_flight().packets };
            }
            EitherPort::Memory(port) => match port.kernel() {
                Some(port) => {
                    frames_of_sockets += port.frames();
                    all[0].add(queue, end);
                    let since = bound.0.get(&end.index).zip(port.shared());
                    sockets.extend(since.map(|(since, shared)| SocketReport {
                        sent: port.sent(),
                        peer: shared.peer(),
                        counts: shared.counts(),
                        is_home: port.is_home(),
                        ..since.report(queue, end, now_ns)
                    }));
                }
                None => {
                    all[1].add(queue, end);
                    tcp_ports.push(end.index);
                }
            },
        }
    }
    let interfaces = directions.len();
    let ports = (0..interfaces).map(|index| interface_report(path, index));
    let mut ports = ports.collect::<weir_port::Result<Vec<_>>>()?;
    for ((together, name), index) in all.into_iter().zip(TRANSPORTS).zip(interfaces..) {
        let (direction, port) = together.report(index, name);
        directions.push(direction);
        ports.push(port);
    }
    let (mut listeners, mut connections) = (Vec::new(), Vec::new());
    for index in tcp_ports {
        let Some((port, _)) = tcp_port(path, index) else { continue };
        let (listening, connected, frames) = port.report();
        listeners.extend(listening);
        connections.extend(connected);
        frames_of_sockets += frames;
    }
    let stages = path.between().stages().enumerate().map(|(number, stage)| StageStats {
        kind: "host".into(),
        ..StageStats::of(&format!("host{number}"), stage, now_ns)
    });
    let census = path.frames().pool.census();
    let part = PartReport {
        directions,
        ports,
        stages: stages.collect(),
        dispatched: Vec::new(),
        in_vain: Vec::new(),
        passed: Vec::new(),
        landed: Count::default(),
        waiting: 0,
        frames_free: census.shared + census.cached,
        frames_lent,
        worker: WorkerStats { now_ns, ..worker },
    };
    Ok(StackReport { part, frames_of_sockets, sockets, listeners, connections })
}

/// What is told of an interface.
fn interface_report(path: &mut Worker<StackPort>, index: usize) -> weir_port::Result<PortReport> {
    let End { port, exit, .. } = path.end_mut(index).0;
    let (departed, departing) = (exit.account().clone(), port.in_flight());
    let transmit = exit.counts().into();
    let stats = match port {
        EitherPort::Kernel(interface) => match interface.kernel_mut() {
            Some(EitherPort::Kernel(port)) => Some(port_stats(port)?),
            Some(EitherPort::Memory(port)) => Some(PortStats {
                sender: port.sender().into(),
                queues: port.queues(),
                poller: port.poller_name().into(),
                ..PortStats::default()
            }),
            None => None,
        },
        EitherPort::Memory(_) => None,
    };
    let port = PortStats { transmit, ..stats.unwrap_or_default() };
    Ok(PortReport { index, departed, departing, port })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
