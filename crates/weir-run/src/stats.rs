//! What `weir stat` shows: copies of the workers' counters, as one JSON object.
//!
//! The same numbers stand in the text, the JSON and, later, the metrics. Every part carries what it accepted, delivered,
//! dropped by reason and holds, so that [`Snapshot::check`] can prove conservation (ARCHITECTURE.md, invariant 1) from the outside.
//!
//! Rule: a field that is missing is 0 or nothing and one that is not known is passed over, because whoever counted may be of an
//! older or a newer version than whoever reads. Names of events, reasons, pollers and states are text, so one that is not known is shown
//! as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_core::rate::Rate;
use weir_path::shaping::Row;
use weir_port::monitor::State;

use crate::books::Books;
use crate::watcher::Device;
use crate::watcher::ledger::{Drops, EventStats};
use crate::workstreams::{self, WorkstreamStats};

/// One direction of a wire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStats {
    /// `A->B`, by the names of the interfaces.
    pub name: String,
    /// The limit in bits per second; none if it is not limited.
    pub rate_bits_per_s: Option<u64>,
    /// The burst in bytes.
    pub burst_bytes: Option<u64>,
    /// How many bytes may be held.
    pub limit_bytes: Option<u64>,
    /// The direction's books, from the port it comes from to the port it leaves by.
    #[serde(flatten)]
    pub books: Books,
    /// For how long its senders were blocked, in nanoseconds.
    pub blocked_ns: u64,
    /// How long packets stood in the class: the median, in nanoseconds.
    pub delay_ns_p50: u64,
    /// The 99th percentile, in nanoseconds.
    pub delay_ns_p99: u64,
    /// The longest, in nanoseconds.
    pub delay_ns_max: u64,
    /// Polls that brought nothing.
    pub empty_polls: u64,
    /// Times that a blocked sender was given room and had nothing to send.
    pub empty_wakes: u64,
    /// Times that the device took no more.
    pub transmit_busy: u64,
    /// The classes that share it, parents first, and what passes them free; none without a classes file.
    pub classes: Vec<TreeClassStats>,
}

/// One class of a classes file. An inner class sums up the leaves below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TreeClassStats {
    /// Its name, or `free`.
    pub name: String,
    /// Its parent's name.
    pub parent: Option<String>,
    /// Its guarantee or share in bits per second.
    pub rate_bits_per_s: Option<u64>,
    /// The most it may reach, in bits per second.
    pub ceil_bits_per_s: Option<u64>,
    /// How many bytes may wait in it; a leaf's alone.
    pub limit_bytes: Option<u64>,
    /// Its books, up to where packets leave it for the device.
    #[serde(flatten)]
    pub books: Books,
    /// Packets marked as having met congestion (ECN), instead of being dropped.
    pub marked: u64,
    /// For how long its senders were blocked, in nanoseconds.
    pub blocked_ns: u64,
    /// How long packets stood in it: the median, in nanoseconds.
    pub delay_ns_p50: u64,
    /// The 99th percentile, in nanoseconds.
    pub delay_ns_p99: u64,
    /// The longest, in nanoseconds.
    pub delay_ns_max: u64,
}

impl TreeClassStats {
    /// From the row that shaping keeps.
    pub fn of(row: &Row) -> TreeClassStats {
        TreeClassStats {
            name: row.name.clone(),
            parent: row.parent.clone(),
            rate_bits_per_s: row.rate.map(Rate::bits_per_s),
            ceil_bits_per_s: row.ceil.map(Rate::bits_per_s),
            limit_bytes: row.limit_bytes,
            books: Books::new(&row.account, row.held),
            marked: row.marked,
            blocked_ns: row.blocked_ns,
            delay_ns_p50: row.delay.quantile_ns(500),
            delay_ns_p99: row.delay.quantile_ns(990),
            delay_ns_max: row.delay.delay_ns_max(),
        }
    }
}

/// One port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PortStats {
    /// The interface.
    pub name: String,
    /// Its other end, where senders are.
    pub sender: String,
    /// Queues it receives on.
    pub queues: usize,
    /// How it polls them: `socket` or `io_uring`.
    pub poller: String,
    /// Packets that wait in the senders' qdisc.
    pub sender_queue_packets: u64,
    /// Packets that qdisc dropped since the wire came up.
    pub sender_queue_dropped: u64,
    /// What waits at the sender's end without a socket that could be held, forwarded or bridged, in bytes of the kernel's memory.
    pub forwarded_bytes: u64,
    /// Packets without a socket that were dropped there, because too much waited.
    pub forwarded_dropped: u64,
    /// Packets the kernel lost between the ring and the receive ring; 0, or it is a fault.
    pub kernel_dropped: u64,
    /// Packets the kernel lost because the interface was down, or up again and not yet Weir's.
    pub lost_while_down: u64,
    /// The interface as a device.
    pub device: DeviceStats,
    /// Its other end as a device.
    pub sender_device: DeviceStats,
}

/// A device: how it fares, and what the kernel dropped there since the wire came up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// `up`, `no-carrier`, `down` or `gone`.
    pub state: String,
    /// Packets the device dropped that came in.
    pub rx_dropped: u64,
    /// Packets the device dropped that were to go out.
    pub tx_dropped: u64,
    /// Packets its queue dropped.
    pub queue_dropped: u64,
    /// Those of each that neither an event nor another counter explains.
    pub unexplained: Drops,
}

impl DeviceStats {
    /// From what the watcher saw.
    pub fn of(device: &Device) -> DeviceStats {
        let Drops { rx, tx, queue } = device.counts.dropped;
        let state = match device.state {
            Some(State::Up) => "up",
            Some(State::NoCarrier) => "no-carrier",
            Some(State::Down) => "down",
            Some(State::Gone) | None => "gone",
        };
        DeviceStats {
            name: device.name.clone(),
            state: state.into(),
            rx_dropped: rx,
            tx_dropped: tx,
            queue_dropped: queue,
            unexplained: device.counts.unexplained,
        }
    }

    /// Takes off what other counters of the wire tell of the same packets.
    pub fn explain(&mut self, rx: u64, tx: u64) {
        self.unexplained.rx = self.unexplained.rx.saturating_sub(rx);
        self.unexplained.tx = self.unexplained.tx.saturating_sub(tx);
    }

    /// What it dropped without a reason, a sentence each. What a receiver's device counts as dropped on receiving may be a packet that it
    /// has got and its host has no use for, such as one of an unknown protocol; one that it has not got is counted by the device that
    /// sent it.
    fn faults(&self, is_receiver: bool) -> Vec<String> {
        let Drops { rx, tx, queue } = self.unexplained;
        let counters = [
            (if is_receiver { 0 } else { rx }, "the device", "that came in (rx_dropped)"),
            (tx, "the device", "that were to go out (tx_dropped)"),
            (queue, "its queue", "(queue_dropped)"),
        ];
        let told = counters.into_iter().filter(|(count, ..)| *count > 0);
        told.map(|(count, who, what)| {
            format!(
                "{}: {who} dropped {count} packets {what}, and nothing that happened explains it",
                self.name
            )
        })
        .collect()
    }
}

/// One wire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WireStats {
    /// Its name.
    pub name: String,
    /// Its two interfaces.
    pub ports: [String; 2],
    /// Its directions.
    pub classes: Vec<ClassStats>,
    /// Frames of packet memory: all, free, on loan to the kernel, held.
    pub frames: FrameStats,
    /// What its workers did, together.
    pub worker: WorkerStats,
    /// What happened to its interfaces and their other ends, by its name, and what was lost then. A wire of a later version may tell of
    /// what this one does not know.
    pub events: BTreeMap<String, EventStats>,
}

/// Where the frames are.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameStats {
    /// All there are.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// With the kernel: on offer or in transmission.
    pub lent: u64,
    /// In the classes.
    pub held: u64,
}

/// What the workers of a wire did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStats {
    /// Passes that moved packets.
    pub busy_passes: u64,
    /// Times it parked.
    pub parks: u64,
    /// Times a doorbell woke it.
    pub kicks: u64,
    /// The core it is pinned to; of several workers the last one's.
    pub cpu: usize,
    /// What a wake-up costs here, in nanoseconds.
    pub wake_cost_ns: u64,
    /// The time that these counters are of, in nanoseconds of the machine's clock.
    pub now_ns: u64,
    /// When the wire came up, on the same clock.
    pub since_ns: u64,
}

impl WorkerStats {
    /// Adds what another worker of the same wire did.
    pub fn add(&mut self, other: &WorkerStats) {
        self.busy_passes += other.busy_passes;
        self.parks += other.parks;
        self.kicks += other.kicks;
        self.cpu = other.cpu;
        self.wake_cost_ns = self.wake_cost_ns.max(other.wake_cost_ns);
        self.now_ns = self.now_ns.max(other.now_ns);
    }
}

/// Everything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The wires.
    pub wires: Vec<WireStats>,
    /// Their ports.
    pub ports: Vec<PortStats>,
    /// Their workstreams.
    pub workstreams: Vec<WorkstreamStats>,
    /// All books added up.
    pub totals: Books,
}

impl Snapshot {
    /// What a wire told. Each wire has two ports, also where it told of fewer, so that the ports of others stay theirs.
    ///
    /// # Errors
    /// If a counter is of another kind than it ever was.
    pub fn of_answer(answer: Value) -> Result<Snapshot, serde_json::Error> {
        let mut snapshot: Snapshot = serde_json::from_value(answer)?;
        snapshot.ports.resize_with(2 * snapshot.wires.len(), PortStats::default);
        Ok(snapshot)
    }

    /// Adds the snapshot of another process.
    pub fn merge(&mut self, other: Snapshot) {
        self.wires.extend(other.wires);
        self.ports.extend(other.ports);
        workstreams::append(&mut self.workstreams, other.workstreams);
        self.totals.merge(&other.totals);
    }

    /// Proves conservation; what does not add up otherwise, a sentence each.
    pub fn check(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for wire in &self.wires {
            let directions = wire.classes.iter().map(|class| (class.name.clone(), &class.books));
            let classes = wire.classes.iter().flat_map(|direction| {
                direction
                    .classes
                    .iter()
                    .map(|class| (format!("{} {}", direction.name, class.name), &class.books))
            });
            for (name, books) in directions.chain(classes).filter(|(_, books)| !books.balance()) {
                faults.push(format!(
                    "{} {name}: accepted {} packets, but delivered, dropped and held are {}",
                    wire.name,
                    books.accepted.packets,
                    books.explained(|amount| amount.packets)
                ));
            }
            let FrameStats { total, free, lent, held } = wire.frames;
            if [free, lent, held].map(u128::from).iter().sum::<u128>() != u128::from(total) {
                faults.push(format!(
                    "{}: of {total} frames, {free} are free, {lent} lent and {held} held",
                    wire.name
                ));
            }
        }
        for port in self.ports.iter().filter(|port| port.kernel_dropped > 0) {
            faults.push(format!(
                "{}: the kernel lost {} packets before weir had them",
                port.name, port.kernel_dropped
            ));
        }
        for port in &self.ports {
            faults.extend(port.device.faults(false));
            faults.extend(port.sender_device.faults(true));
        }
        faults.extend(workstreams::check(&self.workstreams, &self.totals));
        if !self.totals.balance() {
            faults.push("the totals do not add up".into());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Amount;

    #[test]
    fn more_than_can_be_counted_is_a_fault_and_no_end() {
        let most = Amount { packets: u64::MAX, bytes: u64::MAX };
        let books = Books { accepted: most, delivered: most, held: most, ..Books::default() };
        let frames = FrameStats { total: 1, free: u64::MAX, lent: u64::MAX, held: u64::MAX };
        let class = ClassStats { books: books.clone(), ..ClassStats::default() };
        let wire = WireStats { classes: vec![class], frames, ..WireStats::default() };
        let mut snapshot = Snapshot { wires: vec![wire], totals: books, ..Snapshot::default() };
        snapshot.merge(snapshot.clone());
        assert_eq!(snapshot.check().len(), 5);
    }

    #[test]
    fn drops_are_faults_until_something_explains_them() {
        let mut device = DeviceStats { name: "wa".into(), ..DeviceStats::default() };
        device.unexplained = Drops { rx: 2, tx: 3, queue: 0 };
        assert_eq!(device.faults(false).len(), 2);
        assert!(
            device.faults(true)[0].contains("wa: the device dropped 3 packets"),
            "{:?}",
            device.faults(true)
        );
        device.explain(2, 3);
        assert!(device.faults(false).is_empty());
        device.unexplained.queue = 1;
        assert!(device.faults(true)[0].contains("queue_dropped"));
    }

    #[test]
    fn totals_that_do_not_add_up_are_found() {
        let books = Books { accepted: Amount { packets: 1, bytes: 100 }, ..Books::default() };
        let snapshot = Snapshot { totals: books, ..Snapshot::default() };
        assert_eq!(snapshot.check(), ["the totals do not add up"]);
    }
}
