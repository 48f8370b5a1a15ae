//! The counters of a port and its devices, as `weir stat` shows them.
//!
//! Rule: as in [`crate::stats`], a field that is missing is 0 or nothing. Owner: none, these are copies.

use serde::{Deserialize, Serialize};
use weir_path::exit::TransmitCounts;
use weir_port::monitor::State;

use crate::watcher::Device;
use crate::watcher::ledger::Drops;

/// One port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PortStats {
    /// The interface; `NAME (missing)` if it is closed and another port's interface has its name now.
    pub name: String,
    /// Its other end, where senders are.
    pub sender: String,
    /// Queues it receives on.
    pub queues: usize,
    /// The way in which the port polls its queues: `socket` or `io_uring`.
    pub poller: String,
    /// The worker that owns it.
    pub worker: usize,
    /// The state of its device. While it is closed: `gone` if the interface vanished, or was unfit and is down, `unfit` if it is there and
    /// cannot be a port as it is, `absent` if it is optional and has not been a port yet.
    pub state: String,
    /// The reason why its interface cannot be a port as it is; empty unless its state is `unfit`.
    pub unfit_because: String,
    /// True if it is optional.
    pub optional: bool,
    /// True if it is closed.
    #[serde(skip)]
    pub is_closed: bool,
    /// Packets that wait in the senders' qdisc.
    pub sender_queue_packets: u64,
    /// Packets that qdisc dropped since the wire came up.
    pub sender_queue_dropped: u64,
    /// Packets that wait at the sender's end without a socket that could be held, forwarded or bridged, in bytes of the kernel's memory.
    pub forwarded_bytes: u64,
    /// Packets without a socket that were dropped there, because too much waited.
    pub forwarded_dropped: u64,
    /// Packets the kernel lost between the ring and the receive ring; 0, or it is a fault.
    pub kernel_dropped: u64,
    /// Packets the kernel lost because the interface was down, or up again and not yet Weir's.
    pub lost_while_down: u64,
    /// The transmissions of its owner there.
    pub transmit: TransmitStats,
    /// The interface as a device.
    pub device: DeviceStats,
    /// Its other end as a device.
    pub sender_device: DeviceStats,
}

impl PortStats {
    /// The devices that are known: the interface, and its other end. Each has its name among the devices of all ports, as the other ends
    /// of containers are all called alike.
    pub fn devices(&self) -> impl Iterator<Item = (String, &DeviceStats)> {
        let of_sender = format!("{} of {}", self.sender_device.name, self.name);
        let both = [(self.device.name.clone(), &self.device), (of_sender, &self.sender_device)];
        both.into_iter().filter(|(_, device)| !device.name.is_empty())
    }

    /// The counters together with those from before the interface was gone.
    pub fn after(mut self, before: &PortStats) -> PortStats {
        self.forwarded_dropped += before.forwarded_dropped;
        self.kernel_dropped += before.kernel_dropped;
        self.lost_while_down += before.lost_while_down;
        if self.name.is_empty() {
            (self.name, self.sender) = (before.name.clone(), before.sender.clone());
        }
        self
    }
}

/// The transmissions of a port's owner, by the names that DragonFly's serializers had ([`weir_path::exit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransmitStats {
    /// Passes in which it had something to transmit.
    pub enter: u64,
    /// Batches that were offered to the device.
    #[serde(rename = "try")]
    pub tried: u64,
    /// Of those, batches of which the device took fewer packets than were offered.
    pub tryfail: u64,
    /// Times that it went to sleep with packets still to send.
    pub sleep: u64,
    /// Batches from other workers for which it had been woken.
    pub kicks_sent: u64,
    /// Batches from other workers that found it awake.
    pub kicks_saved: u64,
}

impl From<TransmitCounts> for TransmitStats {
    fn from(counts: TransmitCounts) -> TransmitStats {
        let TransmitCounts { enter, tried, tryfail, sleep, kicks_sent, kicks_saved } = counts;
        TransmitStats { enter, tried, tryfail, sleep, kicks_sent, kicks_saved }
    }
}

/// A device: its state, and the packets that the kernel dropped there since the wire came up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// `up`, `no-carrier`, `down`, `gone`, `unfit`, `absent`, or `unknown` until it is looked at.
    pub state: String,
    /// Packets the device dropped that came in.
    pub rx_dropped: u64,
    /// Packets the device dropped that were to go out.
    pub tx_dropped: u64,
    /// Packets its queue dropped.
    pub queue_dropped: u64,
    /// The drops of each that neither an event nor another counter explains.
    pub unexplained: Drops,
}

impl DeviceStats {
    /// The counters that the watcher saw.
    pub fn of(device: &Device) -> DeviceStats {
        let Drops { rx, tx, queue } = device.counts.dropped;
        let state = match device.state {
            Some(State::Up) => "up",
            Some(State::NoCarrier) => "no-carrier",
            Some(State::Down) => "down",
            Some(State::Gone) => "gone",
            None => "unknown",
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

    /// Takes packets off that other counters of the wire explain.
    pub fn explain(&mut self, rx: u64, tx: u64) {
        self.unexplained.rx = self.unexplained.rx.saturating_sub(rx);
        self.unexplained.tx = self.unexplained.tx.saturating_sub(tx);
    }

    /// The counters of the other end of a pair, which its host receives at. A packet that is dropped there on receiving is one that the host
    /// has got and has no use for, such as one of an unknown protocol; a packet that it has not got is counted by the device that sent it.
    pub fn of_sender(device: &Device) -> DeviceStats {
        let mut stats = DeviceStats::of(device);
        stats.unexplained.rx = 0;
        stats
    }

    /// The packets that it, called `name`, dropped without a reason, a sentence each.
    pub(super) fn faults(&self, name: &str) -> Vec<String> {
        let Drops { rx, tx, queue } = self.unexplained;
        let counters = [
            (rx, "the device", "that came in (rx_dropped)"),
            (tx, "the device", "that were to go out (tx_dropped)"),
            (queue, "its queue", "(queue_dropped)"),
        ];
        let told = counters.into_iter().filter(|(count, ..)| *count > 0);
        told.map(|(count, who, what)| {
            format!("{name}: {who} dropped {count} packets {what}, and nothing that happened explains it")
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_faults_until_something_explains_them() {
        let unexplained = Drops { rx: 2, tx: 3, queue: 0 };
        let mut device = DeviceStats { unexplained, ..DeviceStats::default() };
        let told = device.faults("wa");
        assert_eq!(told.len(), 2);
        assert!(told[1].contains("wa: the device dropped 3 packets"), "{told:?}");
        device.explain(2, 3);
        assert!(device.faults("wa").is_empty());
        device.unexplained.queue = 1;
        assert!(device.faults("wa")[0].contains("queue_dropped"));
    }

    #[test]
    fn what_a_senders_host_has_no_use_for_is_explained() {
        let drops = Drops { rx: 2, tx: 1, queue: 0 };
        let mut device = Device::default();
        (device.counts.dropped, device.counts.unexplained) = (drops, drops);
        let sender = DeviceStats::of_sender(&device);
        assert_eq!((sender.rx_dropped, sender.unexplained), (2, Drops { rx: 0, ..drops }));
    }

    #[test]
    fn devices_have_names_of_their_own_and_one_that_is_not_known_has_none() {
        let of = |name: &str| DeviceStats { name: name.into(), ..DeviceStats::default() };
        let names = |port: &PortStats| port.devices().map(|(name, _)| name).collect::<Vec<_>>();
        let mut port = PortStats {
            name: "a".into(),
            device: of("a"),
            sender_device: of("eth0"),
            ..PortStats::default()
        };
        assert_eq!(names(&port), ["a", "eth0 of a"]);
        port.sender_device = of("");
        assert_eq!(names(&port), ["a"]);
    }
}
