//! Packets that wait for neighbours: kept, counted by the port that they came from, and let go.
//!
//! Rule: a socket of a host is held while as many of its packets wait as one poll may bring, and every socket while there is no room for that
//! many more. So none of a socket's packets is dropped for want of room, and one that sends to a neighbour that does not answer holds
//! no other. A packet that came in by an interface holds nobody: there is no room for it, and it is dropped as `neighbour-full`.
//!
//! The port of all TCP segments is not held either: a neighbour that does not answer would hold all connections. A host's settings have room
//! for all that they may have on their way.
//!
//! Owner: one worker.

use super::{Router, Verdict, leave};
use crate::drops::{Count, DropReason};
use crate::net::BURST_MAX;
use crate::net::fragment::fit;
use crate::net::icmp::Fault;
use crate::net::neighbour::{NeighbourId, Released};
use crate::packet::{Bytes, Packet};

impl<P: Packet> Router<P> {
    /// Keeps a packet until its neighbour is known.
    ///
    /// # Panics
    /// If no verdict was to hold it.
    pub fn hold(&mut self, neighbour: NeighbourId, packet: P) {
        if self.host.is_some() {
            let origin = usize::from(packet.meta().port);
            if self.waiting.len() <= origin {
                self.waiting.resize(origin + 1, 0);
            }
            self.waiting[origin] += 1;
        }
        self.neighbours.hold(neighbour, packet);
    }

    /// The next packet that need not wait any longer: to be forwarded, its frame ready, or dropped.
    pub fn release(&mut self, bytes: &impl Bytes<P>, now_ns: u64) -> Option<(P, Verdict)> {
        let released = self.neighbours.release()?;
        if self.host.is_some() {
            let (Released::Send(packet, ..) | Released::Unreachable(packet)) = &released;
            self.waiting[usize::from(packet.meta().port)] -= 1;
        }
        Some(match released {
            Released::Send(mut packet, interface, front) => {
                if let Some(head) = bytes.of_mut(&mut packet).first_chunk_mut() {
                    *head = front;
                }
                // The MTU may be another than when it came.
                let mtu_bytes = self.mtu_bytes(interface);
                let verdict = match fit(bytes.of(&packet), mtu_bytes) {
                    Ok(cut) => leave(interface, cut),
                    Err(reason) => {
                        self.counts.frag_fails += 1;
                        if reason == DropReason::TooLong {
                            self.complain(bytes.of(&packet), Fault::TooLong(mtu_bytes), None, now_ns);
                        }
                        Verdict::Drop(reason)
                    }
                };
                (packet, verdict)
            }
            Released::Unreachable(packet) => {
                self.complain(bytes.of(&packet), Fault::NoNeighbour, None, now_ns);
                (packet, Verdict::Drop(DropReason::NoNeighbour))
            }
        })
    }

    /// The packets that wait for neighbours.
    pub fn held(&self) -> Count {
        self.neighbours.held()
    }

    /// Returns whether no packet is to be taken from the socket at `port`, whose packets came in by the port `origin` of the path.
    pub fn holds(&self, port: u16, origin: u16) -> bool {
        let Some(host) = &self.host else { return false };
        let number = usize::from(port).checked_sub(self.ports.len());
        let is_socket = number.is_some_and(|number| !host.is_tcp(number));
        let waiting = self.waiting.get(usize::from(origin)).copied().unwrap_or(0);
        is_socket && (waiting as usize >= BURST_MAX || self.neighbours.room_packets() < BURST_MAX)
    }
}
