//! The statistics that `weir stat` shows: copies of the workers' counters, as one JSON object.
//!
//! The numbers are the same in the text, the JSON and, later, the metrics. Every part carries the packets that it accepted, delivered,
//! dropped by reason and holds, so that [`Snapshot::check`] can prove conservation (ARCHITECTURE.md, invariant 1) from the outside.
//!
//! Rule: a field that is missing is 0 or nothing and one that is not known is passed over, because the process that counted may be of an
//! older or a newer version than the one that reads. Names of events, reasons, pollers and states are text, so one that is not known is
//! shown as it is.

pub mod association;
mod class;
pub mod place;
mod port;
pub mod socket;
mod stage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::books::Books;
use crate::datapath::Kind;
use crate::watcher::ledger::EventStats;
use crate::workstreams::{self, WorkstreamStats};

pub use class::{ClassStats, DirectionStats};
pub use place::PlaceStats;
pub use port::{DeviceStats, PortStats, TransmitStats};
pub use stage::{DISPATCH, StageStats};

use self::socket::{ConnectionStats, ListenerStats, ProcessStats, SocketStats};

/// One wire, one topology, or one stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WireStats {
    /// Its name.
    pub name: String,
    /// Its interfaces.
    pub ports: Vec<String>,
    /// Its directions: of a wire those there and back, of a topology the packets that leave by each port.
    pub classes: Vec<DirectionStats>,
    /// Its bridges and routers; a wire has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageStats>,
    /// Frames of packet memory: all, free, on loan to the kernel, held.
    pub frames: FrameStats,
    /// The counters of its workers, added up.
    pub worker: WorkerStats,
    /// Events of its interfaces and their other ends, by the name of the event, and the packets lost then. A wire of a later version may
    /// have events that this one does not know.
    pub events: BTreeMap<String, EventStats>,
    /// The process of a stack; anything else has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessStats>,
    /// Its UDP sockets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketStats>,
    /// Its TCP listeners.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerStats>,
    /// Its TCP connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionStats>,
}

impl WireStats {
    /// The counters that do not add up, a sentence each.
    fn faults(&self) -> Vec<String> {
        let directions = self.classes.iter().map(|class| (class.place.name.clone(), &class.place.books));
        let classes = self.classes.iter().flat_map(|direction| {
            let of = |class: &str| format!("{} {class}", direction.place.name);
            direction.classes.iter().map(move |class| (of(&class.place.name), &class.place.books))
        });
        let stages = self
            .stages
            .iter()
            .map(|stage| (format!("{} {}", stage.kind, stage.place.name), &stage.place.books));
        let sockets = self.sockets.iter().map(|socket| (socket.place.name.clone(), &socket.place.books));
        let places = directions.chain(classes).chain(stages).chain(sockets);
        let unbalanced = places.filter(|(_, books)| !books.balance());
        let mut faults: Vec<_> = unbalanced
            .map(|(name, books)| {
                format!(
                    "{} {name}: accepted {} packets, but delivered, dropped and held are {}",
                    self.name,
                    books.accepted.packets,
                    books.explained(|amount| amount.packets)
                )
            })
            .collect();
        let FrameStats { total, free, lent, held, sockets } = self.frames;
        if [free, lent, held, sockets].map(u128::from).iter().sum::<u128>() != u128::from(total) {
            let of_sockets =
                if self.process.is_some() { format!(", {sockets} with sockets") } else { String::new() };
            faults.push(format!(
                "{}: of {total} frames, {free} are free, {lent} lent and {held} held{of_sockets}",
                self.name
            ));
        }
        faults
    }
}

/// The frames, by where they are.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameStats {
    /// All frames.
    pub total: u64,
    /// Free frames.
    pub free: u64,
    /// Frames with the kernel: on offer or in transmission.
    pub lent: u64,
    /// Frames in the classes.
    pub held: u64,
    /// Frames in the buffers of a stack's sockets and connections.
    pub sockets: u64,
}

/// The counters of the workers of a wire.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStats {
    /// Passes that moved packets.
    pub busy_passes: u64,
    /// Times it parked.
    pub parks: u64,
    /// Times a doorbell woke it.
    pub kicks: u64,
    /// The core that it is on, of a stack when it was asked; of several workers the last one's.
    pub cpu: usize,
    /// True if it stays there; of several workers the last one's.
    pub is_bound: bool,
    /// The cost of a wake-up here, in nanoseconds.
    pub wake_cost_ns: u64,
    /// The time that these counters are of, in nanoseconds of the machine's clock.
    pub now_ns: u64,
    /// The time when the wire came up, on the same clock.
    pub since_ns: u64,
}

impl WorkerStats {
    /// Adds the counters of another worker of the same wire.
    pub fn add(&mut self, other: &WorkerStats) {
        self.busy_passes += other.busy_passes;
        self.parks += other.parks;
        self.kicks += other.kicks;
        (self.cpu, self.is_bound) = (other.cpu, other.is_bound);
        self.wake_cost_ns = self.wake_cost_ns.max(other.wake_cost_ns);
        self.now_ns = self.now_ns.max(other.now_ns);
    }
}

/// The snapshot of all wires, topologies and stacks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The wires.
    pub wires: Vec<WireStats>,
    /// The topologies that are no wires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topologies: Vec<WireStats>,
    /// The ports of the wires, then those of the topologies, in the same order.
    pub ports: Vec<PortStats>,
    /// The workstreams of all.
    pub workstreams: Vec<WorkstreamStats>,
    /// All books added up.
    pub totals: Books,
    /// The version of the answer it is from; 0 if it is from none, or from many.
    #[serde(skip)]
    pub version: u64,
    /// The names of those that are not up yet, each with the interfaces that it waits for, of a limit in place as `eth0 of process 4711`
    /// too. One that waits for none is being started.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<String, Vec<String>>,
}

impl Snapshot {
    /// The snapshot of one datapath.
    pub fn of(
        kind: Kind,
        stats: WireStats,
        ports: Vec<PortStats>,
        workstreams: Vec<WorkstreamStats>,
        totals: Books,
    ) -> Snapshot {
        let (wires, topologies) = match kind {
            Kind::Wire => (vec![stats], Vec::new()),
            Kind::Topology => (Vec::new(), vec![stats]),
        };
        Snapshot { wires, topologies, ports, workstreams, totals, ..Snapshot::default() }
    }

    /// The snapshot in the answer of a wire or a topology. Each has as many ports as it names, and a wire two at least, also where it told
    /// of fewer, so that the ports of others stay theirs.
    ///
    /// # Errors
    /// If a counter is of a type that it never had.
    pub fn of_answer(answer: Value) -> Result<Snapshot, serde_json::Error> {
        let mut snapshot: Snapshot = serde_json::from_value(answer)?;
        for wire in snapshot.wires.iter_mut().filter(|wire| wire.ports.len() < 2) {
            wire.ports.resize_with(2, String::new);
        }
        let ports = ports_of(&snapshot.wires) + ports_of(&snapshot.topologies);
        snapshot.ports.resize_with(ports, PortStats::default);
        Ok(snapshot)
    }

    /// Returns whether nothing is up.
    pub fn is_empty(&self) -> bool {
        self.wires.is_empty() && self.topologies.is_empty()
    }

    /// The names of all, with commas between.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.each().map(|(_, stats, _)| stats.name.as_str()).collect();
        names.join(", ")
    }

    /// Each wire, then each topology, with its ports.
    pub fn each(&self) -> impl Iterator<Item = (Kind, &WireStats, &[PortStats])> {
        let wires = self.wires.iter().map(|wire| (Kind::Wire, wire));
        let topologies = self.topologies.iter().map(|topology| (Kind::Topology, topology));
        let mut rest = self.ports.as_slice();
        wires.chain(topologies).map(move |(kind, stats)| {
            let (own, others) = rest.split_at(stats.ports.len().min(rest.len()));
            rest = others;
            (kind, stats, own)
        })
    }

    /// Adds the snapshot of another process.
    pub fn merge(&mut self, other: Snapshot) {
        let mut ports = other.ports;
        let of_topologies = ports.split_off(ports_of(&other.wires).min(ports.len()));
        let place = ports_of(&self.wires).min(self.ports.len());
        self.ports.splice(place..place, ports);
        self.ports.extend(of_topologies);
        self.wires.extend(other.wires);
        self.topologies.extend(other.topologies);
        self.waiting.extend(other.waiting);
        workstreams::append(&mut self.workstreams, other.workstreams);
        self.totals.merge(&other.totals);
    }

    /// Proves conservation. Returns the counters that do not add up, a sentence each.
    pub fn check(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.each().flat_map(|(_, stats, _)| stats.faults()).collect();
        for port in self.ports.iter().filter(|port| port.kernel_dropped > 0) {
            faults.push(format!(
                "{}: the kernel lost {} packets before weir had them",
                port.name, port.kernel_dropped
            ));
        }
        for port in &self.ports {
            let what = match port.state.as_str() {
                "gone" if !port.optional => "gone, or was unfit and is down".to_string(),
                // An earlier version does not say why.
                "unfit" if port.unfit_because.is_empty() => "there and not fit".to_string(),
                "unfit" => format!("there and not fit: {}", port.unfit_because),
                _ => continue,
            };
            faults.push(format!("{}: the interface is {what}; what is bound for it is dropped", port.name));
        }
        for port in &self.ports {
            for (name, device) in port.devices() {
                faults.extend(device.faults(&name));
            }
        }
        let of_all = workstreams::check(&self.workstreams, &self.totals).into_iter();
        let of_all = of_all.chain((!self.totals.balance()).then(|| "the totals do not add up".into()));
        faults.extend(of_all.map(|fault| match self.names() {
            names if names.is_empty() => fault,
            names => format!("{names}: {fault}"),
        }));
        faults
    }
}

/// The number of ports that these have together.
fn ports_of(paths: &[WireStats]) -> usize {
    paths.iter().map(|stats| stats.ports.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::drops::Count;

    #[test]
    fn more_than_can_be_counted_is_a_fault_and_no_end() {
        let most = Count { packets: u64::MAX, bytes: u64::MAX };
        let books = Books { accepted: most, delivered: most, held: most, ..Books::default() };
        let frames = FrameStats { total: 1, free: u64::MAX, lent: u64::MAX, held: u64::MAX, sockets: 0 };
        let class = DirectionStats { place: PlaceStats::new("", books.clone()), ..DirectionStats::default() };
        let wire = WireStats { classes: vec![class], frames, ..WireStats::default() };
        let mut snapshot = Snapshot { wires: vec![wire], totals: books, ..Snapshot::default() };
        snapshot.merge(snapshot.clone());
        assert_eq!(snapshot.check().len(), 5);
    }

    /// A wire or a topology with these ports.
    fn named(kind: Kind, name: &str, ports: &[&str]) -> Snapshot {
        let stats = WireStats {
            name: name.into(),
            ports: ports.iter().map(|name| name.to_string()).collect(),
            ..WireStats::default()
        };
        let ports = stats.ports.iter().map(|name| PortStats { name: name.clone(), ..PortStats::default() });
        let ports = ports.collect();
        Snapshot::of(kind, stats, ports, Vec::new(), Books::default())
    }

    #[test]
    fn each_keeps_its_own_ports_whatever_comes_first() {
        let mut all = named(Kind::Topology, "office", &["a", "b", "c"]);
        all.merge(named(Kind::Wire, "wx", &["x", "y"]));
        all.merge(named(Kind::Topology, "home", &["d"]));
        all.merge(named(Kind::Wire, "wu", &["u", "v"]));
        for (_, stats, ports) in all.each() {
            assert_eq!(stats.ports, ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>());
        }
        let names: Vec<_> = all.each().map(|(kind, stats, _)| (kind, stats.name.as_str())).collect();
        let expected =
            [(Kind::Wire, "wx"), (Kind::Wire, "wu"), (Kind::Topology, "office"), (Kind::Topology, "home")];
        assert_eq!(names, expected);
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["topologies"][0]["ports"], serde_json::json!(["a", "b", "c"]));
        let again = Snapshot::of_answer(json).unwrap();
        assert_eq!((again.ports.len(), again.ports[4].name.as_str()), (8, "a"));
    }

    #[test]
    fn a_wire_alone_is_told_as_ever() {
        let json = serde_json::to_value(named(Kind::Wire, "wx", &["x", "y"])).unwrap();
        assert_eq!(json.get("topologies"), None);
        let old = serde_json::json!({ "wires": [{ "name": "old" }, { "ports": ["x", "y"] }], "ports": [{ "name": "x" }] });
        let snapshot = Snapshot::of_answer(old).unwrap();
        assert_eq!((snapshot.wires[0].ports.len(), snapshot.ports.len()), (2, 4), "it told of fewer");
    }

    #[test]
    fn what_does_not_add_up_in_a_topology_is_found() {
        let mut snapshot = named(Kind::Topology, "office", &["a", "b", "c"]);
        snapshot.topologies[0].frames.total = 1;
        assert_eq!(snapshot.check(), ["office: of 1 frames, 0 are free, 0 lent and 0 held"]);
    }

    #[test]
    fn a_port_that_is_gone_or_unfit_is_a_fault_and_an_optional_one_that_is_not_there_is_none() {
        let mut snapshot = named(Kind::Topology, "office", &["a", "b"]);
        snapshot.ports[0].state = "gone".into();
        let faults = snapshot.check();
        assert!(
            matches!(&faults[..], [fault] if fault.starts_with("a: the interface is gone")),
            "{faults:?}"
        );
        snapshot.ports[0].optional = true;
        assert_eq!(snapshot.check(), Vec::<String>::new());
        (snapshot.ports[0].state, snapshot.ports[0].unfit_because) = ("unfit".into(), "a is a bridge".into());
        let faults = snapshot.check();
        assert!(
            matches!(&faults[..], [fault] if fault.starts_with("a: the interface is there and not fit: a is a bridge;")),
            "{faults:?}"
        );
        snapshot.ports[0].state = "absent".into();
        assert_eq!(snapshot.check(), Vec::<String>::new());
    }

    #[test]
    fn totals_that_do_not_add_up_are_found() {
        let books = Books { accepted: Count { packets: 1, bytes: 100 }, ..Books::default() };
        let snapshot = Snapshot { totals: books, ..Snapshot::default() };
        assert_eq!(snapshot.check(), ["the totals do not add up"]);
    }
}
