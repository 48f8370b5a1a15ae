//! Packets that wait for neighbours: kept, counted by the port that they came from, and let go.
//!
//! Rule: the room of a host is shared out.
//!
//! | packets of | share | when it is taken |
//! |---|---|---|
//! | a socket | two bursts | the socket is held as soon as one burst waits, as a poll may bring another |
//! | an interface: answers to echo requests | two bursts | dropped as `neighbour-full` |
//! | all TCP | the rest | dropped as `neighbour-full`: if the port were held, a neighbour that does not answer would hold all connections |
//!
//! So none of a socket's packets is dropped for want of room, and neither another socket, nor strangers whom the host answers, hold it. A host with
//! less room than the shares of its sockets holds every socket while there is none for a burst.
//!
//! Owner: one worker.

use super::{Router, Verdict, leave};
use crate::drops::{Count, DropReason};
use crate::net::BURST_MAX;
use crate::net::fragment::fit;
use crate::net::icmp::Fault;
use crate::net::neighbour::{NeighbourId, Released};
use crate::packet::{Bytes, Packet};

/// The packets from one port of a host, but that of all TCP, that have room to wait for neighbours.
pub const WAITING_SHARE: usize = 2 * BURST_MAX;

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
        is_socket && (self.waiting(origin) >= BURST_MAX || self.neighbours.room_packets() < BURST_MAX)
    }

    /// Returns whether the packets of a burst, which came in by `port` and by the port `origin` of the path, may wait for neighbours.
    pub(super) fn may_wait(&self, port: u16, origin: u16, packets: usize) -> bool {
        let Some(host) = &self.host else { return true };
        let share = match usize::from(port).checked_sub(self.ports.len()) {
            // It is held in time.
            Some(number) if !host.is_tcp(number) => return true,
            // The ports before that of all TCP are those with a share each.
            Some(_) => self.neighbours.held_max().saturating_sub(usize::from(port) * WAITING_SHARE),
            None => WAITING_SHARE,
        };
        self.waiting(origin) + packets <= share
    }

    /// The packets from a port of the path that wait.
    fn waiting(&self, origin: u16) -> usize {
        self.waiting.get(usize::from(origin)).map_or(0, |&waiting| waiting as usize)
    }
}
