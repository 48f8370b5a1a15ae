//! A router that is a host: packets for it go to sockets, packets from these leave, and nothing is forwarded.
//!
//! A datagram of ours has its IP header from the socket that sends it; here it gets its link-layer addresses, or waits for them as any
//! packet does. A datagram to an own address goes to the socket that is bound there, without leaving.
//!
//! A burst passes the stages of a router's: IPv4 destinations are looked up together. Nearly every IPv4 packet of ours leaves by one
//! condition ([`Router::way_v4`]), with no hash of its neighbour; any other leaves by the rules one after the other, which say the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::inspect::{ETHERNET_LEN, Kind, V4_HEAD, V6_HEAD, addresses_v6, inspect};
use super::waiting::Rooms;
use super::{BURST_MAX, Router, Verdict, send};
use crate::drops::DropReason;
use crate::net::fragment::fit;
use crate::net::neighbour::Resolved;
use crate::net::route::NextHop;
use crate::net::sockets::{BindError, Binding, ToHost};
use crate::net::station::Station;
use crate::packet::{Bytes, Packet};

/// The interface on whose link peers of link-local scope are: a host has one, and no datagram names it.
const LINK: u16 = 0;

impl<P: Packet> Router<P> {
    /// Binds a socket from the next burst on, if this is a host.
    ///
    /// # Errors
    /// If another socket has the binding, or there is no such bucket; nothing has changed then.
    pub fn bind(&mut self, binding: Binding, socket: u16) -> Result<(), BindError> {
        self.host.as_mut().map_or(Ok(()), |host| host.bindings.bind(binding, socket))
    }

    /// Unbinds a socket.
    pub fn unbind(&mut self, socket: u16) {
        self.host.iter_mut().for_each(|host| host.bindings.unbind(socket));
    }

    /// [`Router::process`] of a host, whose packets mostly go to several sockets.
    pub(super) fn process_host(
        &mut self,
        ingress: u16,
        packets: &mut [P],
        bytes: &impl Bytes<P>,
        now_ns: u64,
        verdicts: &mut [Verdict],
    ) -> Option<u16> {
        let is_own = usize::from(ingress) >= self.ports.len();
        let origin = packets.first().map_or(0, |packet| packet.meta().port);
        let rooms = self.rooms(ingress, origin, packets.len());
        self.neighbours.set_room(rooms.answers);
        let mac = self.ports.get(usize::from(ingress)).map_or([0; 6], |port| port.mac);
        let mut kinds = [Kind::Arp; BURST_MAX];
        let mut destinations = [[0; 4]; BURST_MAX];
        for (packet, (kind, destination)) in packets.iter().zip(kinds.iter_mut().zip(&mut destinations)) {
            let frame = bytes.of(packet);
            match is_own {
                true => *destination = destination_v4(frame),
                false => *kind = inspect(frame, mac, &self.sources, destination),
            }
        }
        let mut values = [0; BURST_MAX];
        self.table.lookup_burst_v4(&destinations[..packets.len()], &mut values);
        let looked_up = kinds.iter().zip(destinations.iter().zip(&values));
        for ((packet, verdict), (&kind, (&to, &value))) in packets.iter_mut().zip(verdicts).zip(looked_up) {
            let frame = bytes.of_mut(packet);
            let hash = match is_own {
                true => self.leave_host(frame, to, value, &rooms, now_ns, verdict),
                false => self.enter_host(ingress, frame, kind, value, now_ns, verdict),
            };
            if hash != 0 {
                packet.meta_mut().flow_hash = hash;
            }
        }
        if self.neighbours.next_due_ns().is_some() {
            self.poll(now_ns);
        }
        None
    }

    /// Decides on a packet that came in by an interface. Returns the hash of its flow, 0 if none was asked for. `value` is the routes' answer
    /// for its destination, if it is an IPv4 packet.
    ///
    /// The verdict is written where it stays: a processor waits for a value that it has just written in parts and is to copy as a whole.
    #[inline]
    fn enter_host(
        &mut self,
        ingress: u16,
        frame: &mut [u8],
        kind: Kind,
        value: u32,
        now_ns: u64,
        verdict: &mut Verdict,
    ) -> u32 {
        let is_ours = match kind {
            Kind::V4 => matches!(self.table.hop(value), NextHop::Local),
            Kind::V6 { to_us: true } => frame.first_chunk::<V6_HEAD>().is_some_and(|head| {
                let (_, destination) = addresses_v6(head);
                self.table.lookup_v6(destination) == NextHop::Local
                    || self.is_ours_v6(ingress, destination) && !destination.is_multicast()
            }),
            // Packets to the groups of neighbour discovery, and ARP.
            Kind::V6 { to_us: false } | Kind::Arp => {
                *verdict = self.decide(ingress, frame, kind, [0; 4], 0, now_ns);
                return 0;
            }
            Kind::V4Group => {
                *verdict = Verdict::Drop(DropReason::NoHandler);
                return 0;
            }
            Kind::Drop(reason) => {
                *verdict = Verdict::Drop(reason);
                return 0;
            }
        };
        if !is_ours {
            *verdict = Verdict::Drop(DropReason::NotForUs);
            return 0;
        }
        match self.to_host(frame) {
            ToHost::Socket(socket, hash) => {
                *verdict = self.to_socket(socket);
                return hash;
            }
            ToHost::Drop(reason) => *verdict = Verdict::Drop(reason),
            // Echo requests are answered, and senders are told that no socket listens.
            ToHost::NoPort | ToHost::Other => {
                *verdict = match kind {
                    Kind::V4 => self.local_v4(ingress, frame, now_ns),
                    _ => self.local_v6(ingress, frame, now_ns),
                }
            }
        }
        0
    }

    fn to_host(&self, frame: &[u8]) -> ToHost {
        self.host.as_ref().map_or(ToHost::Other, |host| host.receive(frame))
    }

    /// The verdict that a packet leaves by the port of a socket.
    fn to_socket(&self, socket: u16) -> Verdict {
        Verdict::Forward(self.ports.len() as u16 + socket)
    }

    /// Decides on a packet that a socket sends. Returns the hash of its flow if it stays here, 0 otherwise. `value` is the routes' answer for
    /// its destination, if it is an IPv4 packet.
    #[inline]
    fn leave_host(
        &mut self,
        frame: &mut [u8],
        to: [u8; 4],
        value: u32,
        rooms: &Rooms,
        now_ns: u64,
        verdict: &mut Verdict,
    ) -> u32 {
        if let Some(head) = frame.first_chunk_mut::<V4_HEAD>().filter(|head| head[ETHERNET_LEN] >> 4 == 4)
            && let Some((interface, front)) = self.way_v4(head, to, value, now_ns)
        {
            head[..12].copy_from_slice(front);
            *verdict = Verdict::Forward(interface);
            return 0;
        }
        let (decided, hash) = self.leave_host_otherwise(frame, rooms, now_ns);
        *verdict = decided;
        hash
    }

    /// The verdict on a packet of IPv6 or one that something stands in the way of, and the hash of its flow if it stays here.
    #[inline(never)]
    fn leave_host_otherwise(&mut self, frame: &mut [u8], rooms: &Rooms, now_ns: u64) -> (Verdict, u32) {
        let Some(destination) = destination_of(frame) else {
            return (Verdict::Drop(DropReason::Malformed), 0);
        };
        let (interface, station) = match self.hop_to(destination, Some(LINK)) {
            NextHop::OnLink(interface) => (interface, Station::new(interface, destination)),
            NextHop::Gateway(interface, gateway) => (interface, Station::new(interface, gateway)),
            NextHop::Local => {
                return match self.to_host(frame) {
                    ToHost::Socket(socket, hash) => (self.to_socket(socket), hash),
                    ToHost::Drop(reason) => (Verdict::Drop(reason), 0),
                    ToHost::NoPort | ToHost::Other => (Verdict::Drop(DropReason::NoHandler), 0),
                };
            }
            NextHop::None => return (Verdict::Drop(DropReason::NoRoute), 0),
            NextHop::Broadcast | NextHop::Multicast | NextHop::Martian => {
                return (Verdict::Drop(DropReason::Martian), 0);
            }
        };
        let port = &self.ports[usize::from(interface)];
        let (mtu_bytes, own) = (port.mtu_bytes, port.mac);
        // A socket sends no packet that would have to be cut.
        if fit(frame, mtu_bytes) != Ok(false) {
            return (Verdict::Drop(DropReason::TooLong), 0);
        }
        self.neighbours.set_room(rooms.of(frame));
        match self.neighbours.resolve(station, own, now_ns) {
            Resolved::Drop(reason) => (Verdict::Drop(reason), 0),
            resolved => (send(frame, interface, resolved, false), 0),
        }
    }
}

/// The destination of an IPv4 packet of ours, no address of any other.
#[inline]
fn destination_v4(frame: &[u8]) -> [u8; 4] {
    match frame.first_chunk::<V4_HEAD>() {
        Some(head) if head[ETHERNET_LEN] >> 4 == 4 => [head[30], head[31], head[32], head[33]],
        _ => [0; 4],
    }
}

/// The destination of a packet of ours.
pub(super) fn destination_of(frame: &[u8]) -> Option<IpAddr> {
    match frame.get(ETHERNET_LEN)? >> 4 {
        4 => {
            let head = frame.first_chunk::<V4_HEAD>()?;
            Some(Ipv4Addr::from(*head.last_chunk::<4>()?).into())
        }
        6 => {
            let head = frame.first_chunk::<V6_HEAD>()?;
            Some(Ipv6Addr::from(*head.last_chunk::<16>()?).into())
        }
        _ => None,
    }
}
