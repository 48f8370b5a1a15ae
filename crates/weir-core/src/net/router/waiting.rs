//! Packets that wait for neighbours: kept, counted by the port that they came from, and let go.
//!
//! Rule: the room of a host is shared out.
//!
//! | packets of | wait | addresses asked for | when that is taken |
//! |---|---|---|---|
//! | a socket | two bursts | all | the socket is held as soon as one burst waits, as a poll may bring another |
//! | an interface: answers to echo requests | two bursts | a quarter | dropped as `neighbour-full` |
//! | all TCP: what the program sends | the rest | all | dropped as `neighbour-full`: if the port were held, a neighbour that does not answer would hold all connections |
//! | all TCP: answers to strangers, SYN with ACK and RST | half of that | half | the same |
//!
//! So none of a socket's packets is dropped for want of room, and neither another socket, nor strangers whom the host answers, hold it. A host with
//! less room than the shares of its sockets holds every socket while there is none for a burst. However many addresses strangers forge, half of
//! the places are left for those that the program asks for. What a program sends because strangers asked it counts as its own.
//!
//! Owner: one worker.

use super::inspect::{ETHERNET_LEN, V4_HEAD, V6_HEAD};
use super::{Router, Verdict, leave};
use crate::drops::{Count, DropReason};
use crate::net::BURST_MAX;
use crate::net::fragment::fit;
use crate::net::icmp::Fault;
use crate::net::neighbour::{NeighbourId, Released, Room};
use crate::packet::{Bytes, Packet};

/// The packets from one port of a host, but that of all TCP, that have room to wait for neighbours.
pub const WAITING_SHARE: usize = 2 * BURST_MAX;

/// The rooms for the packets of a burst whose neighbours are not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rooms {
    /// That of what the program sends.
    pub(super) program: Room,
    /// That of answers to strangers.
    pub(super) answers: Room,
}

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

    /// The rooms for the packets of a burst, which came in by `port` and by the port `origin` of the path.
    pub(super) fn rooms(&self, port: u16, origin: u16, packets: usize) -> Rooms {
        let (waiting, asked_max) = (self.waiting(origin) + packets, self.neighbours.incomplete_max());
        let room = |share: usize, asked_max: usize| Room { may_wait: waiting <= share, asked_max };
        match usize::from(port).checked_sub(self.ports.len()) {
            Some(number) if !self.host.as_ref().is_some_and(|host| host.is_tcp(number)) => {
                // It is held in time.
                let room = room(usize::MAX, asked_max);
                Rooms { program: room, answers: room }
            }
            Some(_) => {
                // The ports before that of all TCP are those with a share each.
                let share = self.neighbours.held_max().saturating_sub(usize::from(port) * WAITING_SHARE);
                Rooms { program: room(share, asked_max), answers: room(share / 2, asked_max.div_ceil(2)) }
            }
            // What comes in by an interface is answered, or is no packet of ours.
            None => {
                let room = room(WAITING_SHARE, asked_max.div_ceil(4));
                Rooms { program: room, answers: room }
            }
        }
    }

    /// The packets from a port of the path that wait.
    fn waiting(&self, origin: u16) -> usize {
        self.waiting.get(usize::from(origin)).map_or(0, |&waiting| waiting as usize)
    }
}

impl Rooms {
    /// The room for a packet of ours.
    pub(super) fn of(&self, frame: &[u8]) -> Room {
        if answers_a_stranger(frame) { self.answers } else { self.program }
    }
}

/// Returns whether a packet of ours is a TCP segment that answers whoever sent one: SYN with ACK, or RST.
fn answers_a_stranger(frame: &[u8]) -> bool {
    const TCP: u8 = 6;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    let is_v4 = frame.get(ETHERNET_LEN).is_some_and(|first| first >> 4 == 4);
    let (protocol_at, segment_at) =
        if is_v4 { (ETHERNET_LEN + 9, V4_HEAD) } else { (ETHERNET_LEN + 6, V6_HEAD) };
    frame.get(protocol_at) == Some(&TCP)
        && frame
            .get(segment_at + 13)
            .is_some_and(|flags| flags & RST != 0 || flags & (SYN | ACK) == SYN | ACK)
}
