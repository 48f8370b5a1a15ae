//! What workers tell of their parts of a wire, and the snapshot of the wire that this adds up to.
//!
//! Rule: a direction's books are kept in three places, each by its owner, and the sum is made here:
//!
//! ```text
//! accepted  = of the classes, where it starts
//! delivered = of the departure, where it ends;   dropped = of both
//! held      = in the classes + crossing (handed - taken) + with the device
//! ```
//!
//! The sums are exact only if all parts stand still while they report: [`crate::crew`] sees to that.

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_path::crossing::Crossing;
use weir_path::end::End;
use weir_path::port::{ReceiveQueues, TransmitRing};
use weir_port::port::Port;

use crate::books::Books;
use crate::part::Part;
use crate::stats::{
    ClassStats, DeviceStats, FrameStats, PortStats, Snapshot, TreeClassStats, WireStats, WorkerStats,
};
use crate::watcher::{Devices, Eye};
use crate::workstreams::{Tally, WorkstreamStats};

/// One end's counters.
pub struct EndReport {
    index: usize,
    /// The direction that starts here, without its books.
    class: ClassStats,
    shaped: Account,
    held: Count,
    tally: Tally,
    /// What departs here.
    departed: Account,
    departing: Count,
    transmit_busy: u64,
    port: PortStats,
}

impl EndReport {
    /// Of an end as it is now.
    pub fn new(end: &mut End<Port>, now_ns: u64) -> weir_port::Result<EndReport> {
        let End { index, port, intake, shaping, exit } = end;
        let (limits, delay) = (shaping.limits(), shaping.delay());
        let class = ClassStats {
            name: String::new(),
            rate_bits_per_s: limits.map(|limits| limits.rate.bits_per_s()),
            burst_bytes: limits.map(|limits| limits.burst_bytes),
            limit_bytes: shaping.limit_bytes(),
            books: Books::default(),
            blocked_ns: shaping.blocked_ns(now_ns),
            delay_ns_p50: delay.quantile_ns(500),
            delay_ns_p99: delay.quantile_ns(990),
            delay_ns_max: delay.delay_ns_max(),
            empty_polls: intake.empty_polls(),
            empty_wakes: intake.empty_wakes(),
            transmit_busy: 0,
            classes: shaping.rows(now_ns).iter().map(TreeClassStats::of).collect(),
        };
        Ok(EndReport {
            index: *index,
            class,
            shaped: shaping.account(),
            held: shaping.held(),
            tally: Tally { intake: intake.counts(), released: shaping.released() },
            departed: exit.account().clone(),
            departing: port.in_flight(),
            transmit_busy: exit.busy(),
            port: port_stats(port)?,
        })
    }
}

/// One worker's counters.
pub struct PartReport {
    /// The ends it owns.
    pub ends: Vec<EndReport>,
    /// What it handed to the other worker.
    pub handed: Count,
    /// What it took from the other worker.
    pub taken: Count,
    /// Free frames, of all workers.
    pub frames_free: u64,
    /// Its frames with the kernel.
    pub frames_lent: u64,
    /// What it did.
    pub worker: WorkerStats,
}

impl PartReport {
    /// Of a part as it is now.
    pub fn new(part: &mut Part, worker: WorkerStats, now_ns: u64) -> weir_port::Result<PartReport> {
        part.path.complete();
        let indexes: Vec<_> = part.path.ends().iter().map(|end| end.index).collect();
        let ends = indexes.into_iter().map(|index| EndReport::new(part.path.end_mut(index).0, now_ns));
        let ends = ends.collect::<Result<_, _>>()?;
        let (handed, taken) = part.path.crossing().map(Crossing::counts).unwrap_or_default();
        let frames = part.path.frames();
        let census = frames.pool.census();
        Ok(PartReport {
            ends,
            handed,
            taken,
            frames_free: census.shared + census.cached,
            frames_lent: u64::from(frames.loans.count()),
            worker: WorkerStats { now_ns, ..worker },
        })
    }
}

/// What does not change while a wire is up.
#[derive(Clone, Debug)]
pub struct Constants {
    /// Its name.
    pub name: String,
    /// Its interfaces.
    pub ports: [String; 2],
    /// Frames of packet memory.
    pub frames_total: u64,
    /// When it came up.
    pub since_ns: u64,
    /// Sees the devices and queues, which are the kernel's.
    pub eye: Eye,
}

impl Constants {
    /// Adds the parts of a wire up, and what their interfaces are and lost.
    pub fn snapshot(&self, parts: Vec<PartReport>) -> Snapshot {
        let Devices { pairs, events } = self.eye.look();
        // An end alone hands over what starts at it, and takes what starts at the other.
        let crossing = |from: usize| {
            let of =
                |index: usize| parts.iter().find(|part| part.ends.len() == 1 && part.ends[0].index == index);
            match (of(from), of(1 - from)) {
                (Some(from), Some(to)) => difference(from.handed, to.taken),
                _ => Count::default(),
            }
        };
        let crossing = [crossing(0), crossing(1)];
        let mut worker = WorkerStats { since_ns: self.since_ns, ..WorkerStats::default() };
        let mut frames = FrameStats { total: self.frames_total, free: 0, lent: 0, held: 0 };
        let mut ends: Vec<EndReport> = Vec::new();
        // For each end the worker that owns it and its CPU.
        let mut owners = [(0, 0); 2];
        for (wsid, part) in parts.into_iter().enumerate() {
            part.ends.iter().for_each(|end| owners[end.index] = (wsid, part.worker.cpu));
            worker.add(&part.worker);
            frames.free = part.frames_free;
            frames.lent += part.frames_lent;
            ends.extend(part.ends);
        }
        ends.sort_by_key(|end| end.index);
        let mut totals = Books::default();
        let mut classes = Vec::new();
        let mut ports = Vec::new();
        let mut workstreams = Vec::new();
        for (index, from) in ends.iter().enumerate() {
            let to = &ends[1 - index];
            let account = Account {
                accepted: from.shaped.accepted,
                delivered: to.departed.delivered,
                dropped: {
                    let mut dropped = from.shaped.dropped.clone();
                    dropped.merge(&to.departed.dropped);
                    dropped
                },
            };
            let mut held = from.held;
            held.merge(crossing[index]);
            frames.held += held.packets;
            held.merge(to.departing);
            let books = Books::new(&account, held);
            totals.merge(&books);
            let name = format!("{}->{}", ends[index].port.name, ends[1 - index].port.name);
            workstreams.push(WorkstreamStats {
                wire: self.name.clone(),
                wsid: owners[index].0,
                cpu: owners[index].1,
                held: held.packets,
                blocked_ns: from.class.blocked_ns,
                ..WorkstreamStats::new(&name, from.tally, from.held)
            });
            classes.push(ClassStats { name, books, transmit_busy: to.transmit_busy, ..from.class.clone() });
            let [device, sender] = &pairs[index];
            let (mut device_stats, sender_stats) = (DeviceStats::of(device), DeviceStats::of(sender));
            // What is in the books has its reason there.
            let refused = from.departed.dropped.get(DropReason::DeviceRefused).packets;
            device_stats.explain(from.port.kernel_dropped + from.port.lost_while_down, refused);
            ports.push(PortStats {
                sender_queue_packets: sender.backlog,
                sender_queue_dropped: sender.counts.dropped.queue,
                device: device_stats,
                sender_device: sender_stats,
                ..from.port.clone()
            });
        }
        let names = [0, 1].map(|index: usize| ends[index].port.name.clone());
        let events = events.into_iter().map(|(event, stats)| (event.name().to_string(), stats)).collect();
        let wire = WireStats { name: self.name.clone(), ports: names, classes, frames, worker, events };
        Snapshot { wires: vec![wire], ports, workstreams, totals }
    }
}

fn difference(more: Count, less: Count) -> Count {
    Count { packets: more.packets - less.packets, bytes: more.bytes - less.bytes }
}

fn port_stats(port: &mut Port) -> weir_port::Result<PortStats> {
    let lost = port.lost()?;
    Ok(PortStats {
        name: port.link().name.clone(),
        sender: port.sender().name.clone(),
        queues: port.queues(),
        poller: port.poller_name().into(),
        sender_queue_packets: 0,
        sender_queue_dropped: 0,
        forwarded_bytes: port.announcements().forwarded_waiting_bytes(),
        forwarded_dropped: lost.forwarded,
        kernel_dropped: lost.owned,
        lost_while_down: lost.while_down,
        device: DeviceStats::default(),
        sender_device: DeviceStats::default(),
    })
}
