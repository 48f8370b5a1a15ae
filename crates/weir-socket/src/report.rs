//! The report of a worker of a stack: the books of its interfaces, of its hosts and of its sockets.
//!
//! ```text
//! ->veth-a    what leaves by an interface: its egress queue and its exit
//! ->udp       what came for UDP sockets, those that have been closed included        ->tcp    for connections and listeners
//! host0       what the host made, kept, dropped, and took for itself
//! socket:     accepted = delivered (read) + dropped + held, of its egress queue and its port since it was bound
//! ```
//!
//! Rule: the places of sockets are used again, and their counters go on. So the report of a socket has the counts since it was bound. Packets of the
//! socket before that were held then are not in it. Reports cost a worker two additions while nobody asks: one in a pass that moves packets, and one
//! in a poll of a socket, of the number of datagrams that it has sent.
//!
//! Owner: the worker; reports are copies. Frames of packet memory are counted at the places that have them, so that their sum can fail.

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
use crate::worker::{InterfacePort, StackPort, tcp_port};

/// The names of directions that many sockets share: all sockets of UDP, and all TCP.
pub(crate) const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

/// The report of a worker.
pub(crate) struct StackReport {
    /// The part as of any datapath. Two ports follow after its interfaces, one for each of [`TRANSPORTS`].
    pub(crate) part: PartReport,
    /// Frames of packet memory that sockets and connections have.
    pub(crate) frames_of_sockets: u64,
    pub(crate) sockets: Vec<SocketReport>,
    pub(crate) listeners: Vec<ListenerStats>,
    pub(crate) connections: Vec<ConnectionReport>,
}

/// The report of a socket.
#[derive(Debug)]
pub(crate) struct SocketReport {
    pub(crate) binding: Binding,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) books: Books,
    pub(crate) blocked_ns: u64,
    pub(crate) sent: u64,
    pub(crate) counts: SocketCounts,
    /// The number of its host.
    pub(crate) host: usize,
    /// The number, among all directions, of the one by which its packets leave. None in the report of one worker, and where two hosts are joined.
    pub(crate) leaves_by: Option<usize>,
    /// True if the socket sends by this worker.
    pub(crate) is_home: bool,
}

/// The reports of all workers of a stack, added up.
pub(crate) struct AllReports {
    /// The part of each worker. Its ports are numbered: first the interfaces of all workers, then the [`TRANSPORTS`] of each.
    pub(crate) parts: Vec<PartReport>,
    /// Frames of packet memory that sockets and connections have.
    pub(crate) frames_of_sockets: u64,
    pub(crate) sockets: Vec<SocketReport>,
    pub(crate) listeners: Vec<ListenerStats>,
    pub(crate) connections: Vec<ConnectionReport>,
}

impl AllReports {
    /// Adds up the reports of workers with so many interfaces each. A socket or listener is at every worker: it is reported once, with the counts of
    /// all workers.
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
            // Where nothing leaves by this worker's part of an interface all leaves by the first's.
            let exits: Vec<usize> = (0..interfaces)
                .map(|interface| match part.directions.iter().any(|direction| direction.exit == interface) {
                    true => among_all(interface),
                    false => interface,
                })
                .collect();
            part.directions.iter_mut().for_each(|direction| direction.exit = among_all(direction.exit));
            for port in &mut part.ports {
                port.index = among_all(port.index);
                if workers > 1 {
                    // Each port of a worker has a name of its own.
                    port.port.name.clear();
                }
            }
            if workers > 1 {
                part.stages.iter_mut().for_each(|host| host.place.name += &format!("/{worker}"));
            }
            all.parts.push(part);
            all.frames_of_sockets += frames_of_sockets;
            for socket in sockets {
                let socket = SocketReport { leaves_by: exits.get(socket.host).copied(), ..socket };
                let is_it = |other: &&mut SocketReport| other.binding == socket.binding;
                match all.sockets.iter_mut().find(is_it).filter(|_| workers > 1) {
                    Some(known) => known.merge(socket),
                    None => all.sockets.push(socket),
                }
            }
            for listener in listeners {
                let is_it = |other: &&mut ListenerStats| other.local == listener.local;
                match all.listeners.iter_mut().find(is_it).filter(|_| workers > 1) {
                    // The half-open connections are counted by each worker; all other counts are shared.
                    Some(known) => known.half_open += listener.half_open,
                    None => all.listeners.push(listener),
                }
            }
            all.connections.extend(connections);
        }
        // An exit's direction has the number of the exits before it that there are.
        let directions = all.parts.iter().flat_map(|part| &part.directions);
        let ends: Vec<usize> = directions.map(|direction| direction.exit).collect();
        for leaves_by in all.sockets.iter_mut().filter_map(|socket| socket.leaves_by.as_mut()) {
            *leaves_by = ends.iter().filter(|&end| end < leaves_by).count();
        }
        all
    }
}

impl SocketReport {
    /// Adds another worker's report of the same socket; both have the counts of the application.
    fn merge(&mut self, other: SocketReport) {
        self.books.merge(&other.books);
        self.blocked_ns = self.blocked_ns.max(other.blocked_ns);
        self.sent += other.sent;
        if other.is_home {
            self.leaves_by = other.leaves_by;
        }
        self.is_home |= other.is_home;
    }
}

/// The sockets that are bound, each at its port, and since when.
#[derive(Debug, Default)]
pub(crate) struct BoundSockets(BTreeMap<usize, Since>);

/// The counts of a port before its socket was bound, and the socket's binding.
#[derive(Debug)]
struct Since {
    binding: Binding,
    host: usize,
    /// The packets that had ended.
    ended: Account,
    blocked_ns: u64,
}

impl BoundSockets {
    /// Notes that a socket of a host is bound, at this port.
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

    /// Notes that the socket at a port is closed.
    pub(crate) fn remove(&mut self, port: usize) {
        self.0.remove(&port);
    }
}

impl Since {
    /// The report of the socket, without the state that its application has.
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
            host: self.host,
            leaves_by: None,
            is_home: false,
        }
    }

    /// The books since the socket was bound.
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

/// The books of the packets for a port: of the queue before it, and of its exit.
fn account(queue: &EgressQueue, end: &End<StackPort>) -> Account {
    let Account { accepted, mut dropped, .. } = queue.shaping.account();
    dropped.merge(&end.exit.account().dropped);
    Account { accepted, delivered: end.exit.account().delivered, dropped }
}

/// The sums of packets that leave to many ports.
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
            // The queue was never used, like those of most sockets that there may be.
            return;
        }
        let Together { shaped, held, tally: Tally { intake, released }, delay, departed, departing } = self;
        shaped.merge(&queue.shaping.account());
        held.merge(queue.shaping.held());
        delay.merge(&queue.shaping.delay());
        intake.entered += counts.entered;
        intake.refused += counts.refused;
        intake.blocked += counts.blocked;
        // The highest mark is each queue's by itself, so the largest counts.
        intake.held_max = intake.held_max.max(counts.held_max);
        let counts = queue.shaping.released();
        released.dispatched += counts.dispatched;
        released.delayed += counts.delayed;
        released.dropped += counts.dropped;
        departed.merge(end.exit.account());
        departing.merge(end.port.in_flight());
    }

    /// The sums as a direction that ends at a port of this number and name.
    fn report(self, index: usize, name: &str) -> (DirectionReport, PortReport) {
        let Together { shaped, held, tally, delay, departed, departing } = self;
        // Nobody counts for how long one of the queues was blocked: each socket reports its own.
        let place = PlaceStats::default().with_delay(&delay);
        let class = DirectionStats { place, ..DirectionStats::default() };
        let port = PortStats { name: name.into(), ..PortStats::default() };
        (
            DirectionReport { exit: index, class, shaped, held, tally, holders: vec![None] },
            PortReport { index, departed, departing, port },
        )
    }
}

/// The report of this moment, after completed packets were noted, of a worker whose ports begin with this one. It moves no frame: the free frames of
/// all workers are counted meanwhile.
///
/// # Errors
/// If the kernel does not say what it lost.
pub(crate) fn report(
    path: &mut Worker<StackPort>,
    first_port: usize,
    bound: &BoundSockets,
    worker: WorkerStats,
    now_ns: u64,
) -> weir_port::Result<StackReport> {
    let queues: BTreeMap<_, _> =
        path.between().egress.queues().iter().map(|queue| (queue.port, queue)).collect();
    let (mut directions, mut sockets, mut tcp_ports) = (Vec::new(), Vec::new(), Vec::new());
    let mut all = TRANSPORTS.map(|_| Together::default());
    let mut frames_lent = path.frames().loans.count().into();
    let (mut frames_of_sockets, mut interfaces) = (0, 0);
    for end in path.ends() {
        let queue = queues.get(&end.index);
        match (&end.port, queue) {
            (EitherPort::Kernel(interface), queue) => {
                // Where another worker keeps the limit nothing leaves by this one's part of the interface.
                directions.extend(
                    queue.map(|queue| DirectionReport { exit: interfaces, ..of_egress(queue, now_ns) }),
                );
                interfaces += 1;
                frames_lent += interface_frames(interface);
            }
            (EitherPort::Memory(_), None) => {}
            (EitherPort::Memory(port), Some(queue)) => match port.kernel() {
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
    let ports = (0..interfaces).map(|index| {
        let report = interface_report(path, first_port + index)?;
        Ok(PortReport { index, ..report })
    });
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
    let stages = stages.collect();
    let (passed, landed) = (path.handed().to_vec(), path.landed());
    let waiting = path.waiting_to_land().packets;
    let census = path.frames().pool.census();
    let part = PartReport {
        directions,
        ports,
        stages,
        dispatched: Vec::new(),
        in_vain: Vec::new(),
        passed,
        landed,
        waiting,
        left_behind: path.left_behind(),
        frames_free: census.shared + census.cached,
        frames_lent,
        worker: WorkerStats { now_ns, ..worker },
    };
    Ok(StackReport { part, frames_of_sockets, sockets, listeners, connections })
}

/// The frames that an interface in memory has. Those at the kernel's interface are lent to it and counted there.
fn interface_frames(interface: &InterfacePort) -> u64 {
    match interface {
        EitherPort::Kernel(_) => 0,
        EitherPort::Memory(port) => match &**port {
            EitherPort::Kernel(port) => port.in_flight().packets,
            EitherPort::Memory(link) => link.frames(),
        },
    }
}

/// The report of an interface.
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
