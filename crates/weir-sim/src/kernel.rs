//! The kernel's way out: a TBF with its watchdog, run by the senders, with or without the RFC's back-pressure.
//!
//! ```text
//! send:      enqueue, or drop (RFC: OVERLIMIT); then run the qdisc, in either case
//! run:       dequeue while tokens last; then (RFC: THROTTLE the list and) set the watchdog
//! watchdog:  interrupt on the CPU that set it; its softirq (RFC: UNTHROTTLEs the list and) runs the qdisc
//! ```
//!
//! The watchdog belongs to the CPU that set it, and setting it again to the same time leaves it there. So the CPU that
//! delivered the last packet is the one that delivers the next, unless a sender elsewhere finds the tokens first;
//! its process is slowed by the delivery, and the other process gets the free place. An interrupt that has fired is
//! not taken back when a sender runs the qdisc before the softirq does.
//!
//! Owner: the root lock, so one caller at a time.
//! Source: `__dev_xmit_skb`, `net_tx_action` in net/core/dev.c; `qdisc_watchdog_schedule_range_ns`, pinned, in
//! sch_api.c; patches 1/4 and 2/4 of the RFC.
//! Limits: the device never refuses; the lock's own contention is part of the senders' cost; no `qdisc_run` quota.

use weir_core::drops::{Count, DropReason};

use crate::{
    backpressure::List,
    effects::Effects,
    packet::SimPacket,
    socket::Socket,
    tbf::{Dequeue, Tbf, TbfParameters},
};

/// A TBF on a device.
#[derive(Debug)]
pub struct KernelQdisc {
    tbf: Tbf,
    backpressure: Option<List>,
    watchdog: Watchdog,
}

#[derive(Debug, Default)]
struct Watchdog {
    expires_ns: Option<u64>,
    cpu: usize,
    generation: u64,
}

impl KernelQdisc {
    /// An idle qdisc; with the RFC if `backpressure`.
    pub fn new(parameters: TbfParameters, backpressure: bool) -> KernelQdisc {
        KernelQdisc {
            tbf: Tbf::new(parameters),
            backpressure: backpressure.then(List::default),
            watchdog: Watchdog::default(),
        }
    }

    /// Has a process on `cpu` send.
    pub fn send(
        &mut self,
        packet: SimPacket,
        cpu: usize,
        now_ns: u64,
        sockets: &mut [Socket],
        effects: &mut Effects,
    ) {
        if let Err(packet) = self.tbf.enqueue(packet) {
            if let Some(list) = &mut self.backpressure {
                list.overlimit(packet.sender as usize, sockets);
            }
            effects.drop(DropReason::ClassFull, packet);
        }
        self.run(cpu, now_ns, sockets, effects);
    }

    /// Notes that the timer of this `generation` fired: returns the CPU whose softirq is to follow, unless the timer was set anew.
    pub fn expire(&mut self, generation: u64) -> Option<usize> {
        if generation != self.watchdog.generation {
            return None;
        }
        self.watchdog.expires_ns.take()?;
        Some(self.watchdog.cpu)
    }

    /// Runs the softirq that the timer raised on `cpu`.
    pub fn softirq(&mut self, cpu: usize, now_ns: u64, sockets: &mut [Socket], effects: &mut Effects) {
        if let Some(list) = &mut self.backpressure {
            effects.write_space.append(&mut list.unthrottle(sockets));
        }
        self.run(cpu, now_ns, sockets, effects);
    }

    /// The packets inside, by its counters.
    pub fn held(&self) -> Count {
        self.tbf.held()
    }

    /// The packets inside, one by one; every one of them is charged to its socket.
    pub fn queued(&self) -> impl Iterator<Item = &SimPacket> {
        self.tbf.queued()
    }

    fn run(&mut self, cpu: usize, now_ns: u64, sockets: &mut [Socket], effects: &mut Effects) {
        loop {
            match self.tbf.dequeue(now_ns) {
                Dequeue::Packet(packet) => {
                    effects.freed.push((packet.sender, packet.truesize_bytes));
                    effects.left.push(packet);
                }
                Dequeue::OutOfTokens { until_ns } => {
                    if let Some(list) = &mut self.backpressure {
                        list.throttle(sockets);
                    }
                    effects.timer = self.watchdog.set(until_ns, cpu);
                    return;
                }
                Dequeue::Empty => return,
            }
        }
    }
}

impl Watchdog {
    /// Sets the timer; returns the event to schedule, or `None` if it already stands at that time.
    fn set(&mut self, expires_ns: u64, cpu: usize) -> Option<(u64, u64)> {
        if self.expires_ns == Some(expires_ns) {
            return None;
        }
        self.generation += 1;
        (self.expires_ns, self.cpu) = (Some(expires_ns), cpu);
        Some((expires_ns, self.generation))
    }
}

#[cfg(test)]
mod tests {
    use weir_core::rate::Rate;

    use super::*;
    use crate::socket::{Backpressure, SNDBUF_BYTES_DEFAULT};

    fn qdisc(limit_packets: u64) -> KernelQdisc {
        let parameters = TbfParameters {
            rate: Rate::from_bits_per_s(200_000_000).unwrap(),
            burst_bytes: 1512,
            limit_bytes: limit_packets * 1512,
        };
        KernelQdisc::new(parameters, true)
    }

    fn datagram(sender: u32) -> SimPacket {
        SimPacket::datagram(sender, 0, 1470, 0)
    }

    #[test]
    fn a_failed_send_throttles_its_own_socket_and_the_timer_wakes_the_whole_list() {
        let mut sockets = vec![Socket::new(SNDBUF_BYTES_DEFAULT); 3];
        let mut qdisc = qdisc(1);
        let mut effects = Effects::default();
        qdisc.send(datagram(0), 0, 0, &mut sockets, &mut effects);
        assert_eq!(effects.left.len(), 1, "the bucket was full");
        qdisc.send(datagram(0), 0, 0, &mut sockets, &mut effects);
        assert_eq!(effects.timer, Some((60_480, 1)));
        effects.clear();
        for sender in [2, 1] {
            qdisc.send(datagram(sender), sender as usize, 1_000, &mut sockets, &mut effects);
        }
        assert_eq!(effects.dropped.len(), 2);
        assert_eq!(effects.timer, None, "the watchdog already stands at that time, on CPU 0");
        assert_eq!(sockets[0].backpressure, Backpressure::Unthrottled);
        assert_eq!(sockets[1].backpressure, Backpressure::Throttled);
        assert_eq!(sockets[2].backpressure, Backpressure::Throttled);

        assert_eq!(qdisc.expire(0), None, "an older timer");
        assert_eq!(qdisc.expire(1), Some(0));
        assert_eq!(qdisc.expire(1), None, "it fires once");
        effects.clear();
        qdisc.softirq(0, 61_000, &mut sockets, &mut effects);
        assert_eq!(effects.write_space, [2, 1]);
        assert_eq!(effects.left.len(), 1);
        assert!(sockets.iter().all(|socket| socket.backpressure == Backpressure::Unthrottled));
        assert_eq!(qdisc.held(), Count::default());
    }
}
