//! The sum of the parts of a datapath: the snapshot that is told of it.
//!
//! Rule: a direction's books are kept in two places, and the sum is made here:
//!
//! ```text
//! accepted  = of the classes;   delivered = of the exit;   dropped = of both
//! held      = in the classes + with the device
//! ```
//!
//! Between workers a packet is in the books of no direction and no stage: a packet under way is held by the worker that it is handed to.
//!
//! The sums are exact only if all parts stood still while they reported ([`crate::report`]): [`crate::crew`] sees to that.

use std::sync::Arc;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_path::owners::Owners;
use weir_path::plan::Plan;
use weir_path::shaping::Holder;

use crate::books::Books;
use crate::datapath::Kind;
use crate::report::{DirectionReport, PartReport, PortReport};
use crate::stats::{
    DISPATCH, DeviceStats, DirectionStats, FrameStats, PlaceStats, PortStats, Snapshot, StageStats,
    WireStats, WorkerStats,
};
use crate::watcher::{Absence, Device, Devices, Eye, Glance};
use crate::workstreams::WorkstreamStats;

/// The source of the states of a datapath's devices.
#[derive(Clone, Debug)]
pub enum Sight {
    /// A watcher, which is asked.
    Watched(Eye),
    /// A glance when somebody asks, as at a stack's devices.
    Unwatched(Arc<Glance>),
    /// There are no devices: its ports are in memory.
    Nothing,
}

impl Sight {
    fn look(&self) -> Devices {
        match self {
            Sight::Watched(eye) => eye.look(),
            Sight::Unwatched(glance) => glance.devices(),
            Sight::Nothing => Devices::default(),
        }
    }
}

/// The properties of a datapath that do not change while it is up.
#[derive(Clone, Debug)]
pub struct Constants {
    /// Its name.
    pub name: String,
    /// A wire or a topology.
    pub kind: Kind,
    /// Its interfaces, by their names when it came up.
    pub ports: Vec<String>,
    /// The worker that owns each of its ports and stages.
    pub owners: Owners,
    /// The plan that it came up with.
    pub plan: Arc<Plan>,
    /// The names of its ports in the tables of its file.
    pub port_names: Vec<String>,
    /// Frames of packet memory.
    pub frames_total: u64,
    /// The time when the datapath came up, in nanoseconds.
    pub since_ns: u64,
    /// The source of the states of devices and queues, which are the kernel's.
    pub sight: Sight,
}

impl Constants {
    /// The states and the losses of its interfaces. They are looked at before the parts report: the parts explain what a device has dropped
    /// by then.
    pub fn look(&self) -> Devices {
        self.sight.look()
    }

    /// Adds the parts of a datapath up, with the states and the losses of its interfaces as they were before.
    pub fn snapshot(&self, Devices { pairs, events }: Devices, mut parts: Vec<PartReport>) -> Snapshot {
        let mut worker = WorkerStats { since_ns: self.since_ns, ..WorkerStats::default() };
        let mut frames = FrameStats { total: self.frames_total, ..FrameStats::default() };
        let (mut directions, mut reports) = (Vec::new(), Vec::new());
        for (wsid, part) in parts.iter_mut().enumerate() {
            worker.add(&part.worker);
            frames.free = part.frames_free;
            frames.lent += part.frames_lent;
            directions.extend(part.directions.drain(..).map(|direction| (wsid, direction)));
            reports.extend(part.ports.drain(..).map(|port| (wsid, port)));
        }
        reports.sort_by_key(|(_, report)| report.index);
        // In the order in which they are counted, which is not that of the ports where they end.
        directions.sort_by_key(|(_, direction)| self.kind.exit_of(direction.exit));
        // An interface that is gone is waited for by its first name, which another port may have got meanwhile.
        let is_missing = |report: &PortReport| report.port.name.is_empty() || report.port.is_closed;
        let there = reports.iter().filter(|(_, report)| !is_missing(report));
        let there: Vec<_> = there.map(|(_, report)| report.port.name.clone()).collect();
        for (_, report) in reports.iter_mut().filter(|(_, report)| is_missing(report)) {
            let first = &self.ports[report.index];
            let is_taken = there.contains(first);
            report.port.name = if is_taken { format!("{first} (missing)") } else { first.clone() };
        }
        let names: Vec<_> = reports.iter().map(|(_, report)| report.port.name.clone()).collect();
        let mut totals = Books::default();
        let (mut classes, mut workstreams, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        for (wsid, direction) in directions {
            let DirectionReport { exit, mut class, shaped, held: waiting, tally, holders } = direction;
            let (_, to) = &reports[exit];
            let mut held = waiting;
            frames.held += held.packets;
            held.merge(to.departing);
            let mut dropped = shaped.dropped;
            dropped.merge(&to.departed.dropped);
            let account = Account { accepted: shaped.accepted, delivered: to.departed.delivered, dropped };
            let books = Books::new(&account, held);
            totals.merge(&books);
            let name = self.name_of(exit, &names);
            workstreams.push(WorkstreamStats {
                wire: self.name.clone(),
                wsid,
                held: held.packets,
                blocked_ns: class.place.blocked_ns.unwrap_or_default(),
                ..WorkstreamStats::new(format!("ether/{name}"), tally, waiting)
            });
            class.place = PlaceStats { name, books, ..class.place };
            let in_vain = parts.iter().flat_map(|part| &part.in_vain).filter(|(out, _)| *out == exit);
            for (_, [polls, wakes]) in in_vain {
                class.empty_polls += polls;
                class.empty_wakes += wakes;
            }
            note_holders(&mut class, holders);
            classes.push(DirectionStats { transmit_busy: to.port.transmit.tryfail, ..class });
        }
        for (wsid, part) in parts.iter_mut().enumerate() {
            for stage in part.stages.drain(..) {
                frames.held += stage.place.books.held.packets;
                totals.merge(&stage.ended());
                // Dispatched packets have a row for each protocol.
                if part.dispatched.is_empty() || stage.kind != DISPATCH {
                    workstreams.push(stage.workstream(&self.name, wsid));
                }
                stages.push(StageStats { worker: wsid, ..stage });
            }
            // They are nobody's any more, and were never another's: what is left at the end was held to the end.
            let left = part.left_behind;
            totals.merge(&Books { accepted: left, held: left, ..Books::default() });
            for (held, row) in part.dispatched.drain(..) {
                frames.held += held.packets;
                totals.merge(&Books { accepted: held, held, ..Books::default() });
                workstreams.push(WorkstreamStats { wire: self.name.clone(), wsid, ..row });
            }
        }
        for (wsid, (under_way, row)) in self.handoffs(&parts).into_iter().enumerate() {
            frames.held += under_way.packets;
            totals.merge(&Books { accepted: under_way, held: under_way, ..Books::default() });
            workstreams.push(WorkstreamStats { wsid, ..row });
        }
        for row in &mut workstreams {
            let WorkerStats { cpu, is_bound, .. } = parts[row.wsid].worker;
            (row.cpu, row.is_bound) = (cpu, is_bound);
        }
        // Before it has looked for the first time the watcher tells of none.
        let mut pairs = pairs.into_iter();
        let mut pair: [Device; 2] = Default::default();
        let ports = reports.into_iter().map(|(worker, report)| {
            // Several workers of a stack have parts of one interface: its losses are told once.
            pair = pairs.next().unwrap_or_else(|| std::mem::take(&mut pair).map(Device::uncounted));
            with_devices(worker, report, &pair)
        });
        let ports = ports.collect();
        let events = events.into_iter().map(|(event, stats)| (event.name().to_string(), stats)).collect();
        let name = self.name.clone();
        let stats =
            WireStats { name, ports: names, classes, stages, frames, worker, events, ..WireStats::default() };
        Snapshot::of(self.kind, stats, ports, workstreams, totals)
    }

    /// The packets under way to each worker from the others, and they as a workstream; none if no links lead there.
    fn handoffs(&self, parts: &[PartReport]) -> Vec<(Count, WorkstreamStats)> {
        let linked = parts.iter().filter(|part| !part.passed.is_empty()).enumerate();
        let rows = linked.map(|(worker, part)| {
            let mut handed = Count::default();
            parts.iter().for_each(|other| handed.merge(other.passed[worker]));
            let mut under_way = handed;
            under_way.sub_all(part.landed);
            let row = WorkstreamStats {
                wire: self.name.clone(),
                name: "handoff".into(),
                len: part.waiting,
                held: under_way.packets,
                queued: handed.packets,
                handled: part.landed.packets,
                elsewhere: part.landed.packets,
                ..WorkstreamStats::default()
            };
            (under_way, row)
        });
        rows.collect()
    }

    /// The name of the direction that ends at a port.
    fn name_of(&self, exit: usize, ports: &[String]) -> String {
        match self.kind {
            Kind::Wire => format!("{}->{}", ports[self.kind.exit_of(exit)], ports[exit]),
            Kind::Topology => format!("->{}", ports[exit]),
        }
    }
}

/// Notes the holder of the packets that wait in a direction and in each class of it; the direction's limit has the direction's name.
fn note_holders(direction: &mut DirectionStats, holders: Vec<Option<Holder>>) {
    let name = direction.place.name.clone();
    let places = std::iter::once(&mut direction.place);
    let places = places.chain(direction.classes.iter_mut().map(|class| &mut class.place));
    for (place, holder) in places.zip(holders) {
        place.waits_for = holder.map(|holder| match holder {
            Holder::Limit => name.clone(),
            Holder::Class(class) => class,
        });
    }
}

/// A port with the states of its device and the other end.
fn with_devices(worker: usize, report: PortReport, [seen, sender]: &[Device; 2]) -> PortStats {
    let PortReport { departed, port, .. } = report;
    let mut device = DeviceStats::of(seen);
    let mut unfit_because = String::new();
    if port.is_closed {
        let absence = seen.absence.as_ref().unwrap_or(&Absence::Gone);
        device.state = absence.word().into();
        if !device.name.is_empty() {
            device.name.clone_from(&port.name);
        }
        if let Absence::Unfit(why) = absence {
            unfit_because.clone_from(why);
        }
    }
    // Packets in the books have their reason there.
    let refused = departed.dropped.get(DropReason::DeviceRefused).packets;
    device.explain(port.kernel_dropped + port.lost_while_down, refused);
    PortStats {
        sender_queue_packets: sender.backlog,
        sender_queue_dropped: sender.counts.dropped.queue,
        worker,
        state: device.state.clone(),
        unfit_because,
        optional: seen.is_optional,
        device,
        sender_device: DeviceStats::of_sender(sender),
        ..port
    }
}

#[cfg(test)]
mod tests {
    use weir_path::egress::EgressCounts;
    use weir_path::shaping::ReleaseCounts;

    use super::*;
    use crate::stats::TransmitStats;
    use crate::workstreams::Tally;

    fn account(accepted: u64, delivered: u64, dropped: u64) -> Account {
        let mut account = Account::default();
        (0..accepted).for_each(|_| account.accept(100));
        (0..delivered).for_each(|_| account.deliver(100));
        (0..dropped).for_each(|_| account.drop(DropReason::TooLong, 100));
        account
    }

    fn packets(packets: u64) -> Count {
        Count { packets, bytes: packets * 100 }
    }

    /// The packets that end at a port: 10 came, 1 waits, 2 are with the device, 1 was dropped there, and so many are on the way.
    fn direction(exit: usize) -> DirectionReport {
        let intake = EgressCounts { entered: 10, ..EgressCounts::default() };
        let released = ReleaseCounts { delayed: 9, ..ReleaseCounts::default() };
        let class = DirectionStats { rate_bits_per_s: Some(exit as u64), ..DirectionStats::default() };
        let tally = Tally { intake, released };
        let holders = vec![Some(Holder::Limit)];
        DirectionReport { exit, class, shaped: account(10, 0, 0), held: packets(1), tally, holders }
    }

    fn port(index: usize, name: &str, on_the_way: u64) -> PortReport {
        let transmit = TransmitStats { enter: 3, tried: 2, tryfail: 1, ..TransmitStats::default() };
        let port = PortStats { name: name.into(), transmit, ..PortStats::default() };
        let departed = account(9 - on_the_way, 6 - on_the_way, 1);
        PortReport { index, departed, departing: packets(2), port }
    }

    fn part(directions: Vec<DirectionReport>, ports: Vec<PortReport>) -> PartReport {
        let worker = WorkerStats::default();
        PartReport {
            directions,
            ports,
            stages: Vec::new(),
            dispatched: Vec::new(),
            in_vain: Vec::new(),
            passed: Vec::new(),
            landed: Count::default(),
            waiting: 0,
            left_behind: Count::default(),
            frames_free: 90,
            frames_lent: 3,
            worker,
        }
    }

    fn snapshot(kind: Kind, names: &[&str], frames_total: u64, parts: Vec<PartReport>) -> Snapshot {
        let ports: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let (plan, port_names) = (Arc::default(), ports.clone());
        let constants = Constants {
            name: "office".into(),
            kind,
            ports,
            owners: Owners::default(),
            plan,
            port_names,
            frames_total,
            since_ns: 0,
            sight: Sight::Nothing,
        };
        let snapshot = constants.snapshot(constants.look(), parts);
        assert_eq!(snapshot.check(), Vec::<String>::new());
        snapshot
    }

    fn told(stats: &WireStats) -> Vec<(&str, Option<u64>, u64)> {
        let classes = stats.classes.iter();
        classes
            .map(|class| (class.place.name.as_str(), class.rate_bits_per_s, class.place.books.held.packets))
            .collect()
    }

    #[test]
    fn three_ports_have_a_direction_each() {
        let directions = [2, 0, 1].map(direction).into();
        let ports = vec![port(1, "b", 0), port(2, "c", 0), port(0, "a", 0)];
        let all = snapshot(Kind::Topology, &["a", "b", "c"], 96, vec![part(directions, ports)]);
        let topology = &all.topologies[0];
        assert_eq!(topology.ports, ["a", "b", "c"]);
        assert_eq!(told(topology), [("->a", Some(0), 3), ("->b", Some(1), 3), ("->c", Some(2), 3)]);
        assert_eq!(all.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((all.totals.accepted.packets, topology.frames.held), (30, 3));
        assert!(all.wires.is_empty());
    }

    #[test]
    fn a_wire_is_told_from_its_first_port_on() {
        let ports = vec![port(0, "a", 0), port(1, "b", 0)];
        let all = snapshot(Kind::Wire, &["a", "b"], 95, vec![part([0, 1].map(direction).into(), ports)]);
        assert_eq!(told(&all.wires[0]), [("a->b", Some(1), 3), ("b->a", Some(0), 3)]);
        assert_eq!(all.wires[0].classes[1].place.waits_for.as_deref(), Some("b->a"), "its own limit");
        assert!(all.topologies.is_empty());
        let json = serde_json::to_value(&all).unwrap();
        let told = serde_json::json!({"enter": 3, "try": 2, "tryfail": 1, "sleep": 0, "kicks_sent": 0, "kicks_saved": 0});
        assert_eq!(json["ports"][0]["transmit"], told);
        assert_eq!(json["wires"][0]["classes"][0]["transmit_busy"], 1);
    }

    #[test]
    fn what_crosses_to_another_worker_is_held_by_the_one_it_is_handed_to() {
        let part_of = |index: usize, name| PartReport {
            in_vain: vec![(1 - index, [index as u64 + 1, 0])],
            passed: [0, 1].map(|to| packets(if to == index { 0 } else { 9 })).into(),
            landed: packets(5),
            waiting: 4,
            ..part(vec![direction(index)], vec![port(index, name, 0)])
        };
        let all = snapshot(Kind::Wire, &["a", "b"], 106, vec![part_of(0, "a"), part_of(1, "b")]);
        assert_eq!(told(&all.wires[0]), [("a->b", Some(1), 3), ("b->a", Some(0), 3)]);
        assert_eq!(all.wires[0].classes.iter().map(|class| class.empty_polls).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((all.totals.accepted.packets, all.totals.held.packets), (28, 14));
        let streams = all.workstreams.iter().map(|stats| (stats.wsid, stats.name.as_str(), stats.len));
        let rows = [(1, "ether/a->b", 1), (0, "ether/b->a", 1), (0, "handoff", 4), (1, "handoff", 4)];
        assert_eq!(streams.collect::<Vec<_>>(), rows);
    }
}
