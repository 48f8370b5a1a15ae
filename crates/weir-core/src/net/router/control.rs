//! The messages that a router sends and receives itself: ARP, neighbour discovery, echo, errors. Off the fast path.
//!
//! An error goes back by the routes, or to a sender of link-local scope on the link it came by, from the address of the interface it
//! leaves by, or of another where that has none that the sender can answer. It never waits for a neighbour: if the way back is not
//! resolved, it is sent to the station the packet came from when that is on the same interface, and otherwise not at all, counted
//! `errors_untold`. Only an error that can be told takes from a limit ([`super::error_limits`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use super::host::destination_of;
use super::inspect::ETHERNET_LEN;
use super::reports::groups_of;
use super::{Port, Router, RouterSettings, Verdict, send, source_mac};
use crate::drops::DropReason;
use crate::net::fragment::fit;
use crate::net::icmp::{Fault, answer_echo_v4, answer_echo_v6, error_len, whom_to_tell, write_error};
use crate::net::neighbour::{Request, Resolved};
use crate::net::resolve::{self, Message, Speaker};
use crate::net::route::{Interface, NextHop};
use crate::net::station::Station;
use crate::packet::Packet;

/// The interface that an error leaves by, the link-layer address there that it is for, and the router's address that it comes from.
struct ErrorWay {
    interface: u16,
    to: [u8; 6],
    own: IpAddr,
}

impl<P: Packet> Router<P> {
    pub(super) fn arp(&mut self, ingress: u16, frame: &[u8], now_ns: u64) -> Verdict {
        match resolve::read_arp(&frame[ETHERNET_LEN..]) {
            Ok(message) => self.told(ingress, message, now_ns),
            Err(reason) => Verdict::Drop(reason),
        }
    }

    /// Tells a link the addresses of the router there.
    pub(super) fn announce(&mut self, interface: u16) {
        let port = &self.ports[usize::from(interface)];
        let mac = port.mac;
        for own in &port.addresses {
            match own.address() {
                IpAddress::Ipv4(address) => {
                    resolve::announce_arp(&mut self.outbox, Speaker { interface, mac, address });
                }
                IpAddress::Ipv6(address) => {
                    resolve::tell_nd(&mut self.outbox, Speaker { interface, mac, address }, None);
                }
            }
        }
    }

    /// Sends a question on a link.
    pub(super) fn ask(&mut self, request: Request) {
        let port = &self.ports[usize::from(request.interface)];
        let (interface, mac) = (request.interface, port.mac);
        match (request.target, port.source_for(request.target)) {
            (IpAddr::V4(target), Some(IpAddr::V4(address))) => {
                let own = Speaker { interface, mac, address };
                resolve::ask_arp(&mut self.outbox, own, target, request.mac);
            }
            (IpAddr::V6(target), Some(IpAddr::V6(address))) => {
                let own = Speaker { interface, mac, address };
                resolve::ask_nd(&mut self.outbox, own, target, request.mac);
            }
            // An interface without an address of that family has no address to ask from; the packets' time runs out.
            _ => {}
        }
    }

    /// An IPv4 packet for an address of ours.
    pub(super) fn local_v4(&mut self, ingress: u16, frame: &mut [u8], now_ns: u64) -> Verdict {
        if answer_echo_v4(&mut frame[ETHERNET_LEN..]) {
            self.counts.echoes += 1;
            let asker = Ipv4Packet::new_unchecked(&frame[ETHERNET_LEN..]).dst_addr();
            return self.send_own(frame, ingress, asker.into(), now_ns);
        }
        let packet = Ipv4Packet::new_unchecked(&frame[ETHERNET_LEN..]);
        let fault = match packet.next_header() {
            IpProtocol::Icmp => return Verdict::Drop(DropReason::NoHandler),
            // Fragments are not reassembled, so the whole packet is not known.
            _ if packet.more_frags() => return Verdict::Drop(DropReason::NoHandler),
            IpProtocol::Udp => Fault::NoPort,
            _ => Fault::NoProtocol,
        };
        self.refuse(frame, fault, DropReason::NoHandler, ingress, now_ns)
    }

    /// An IPv6 packet for an address of ours or a group we are in.
    pub(super) fn local_v6(&mut self, ingress: u16, frame: &mut [u8], now_ns: u64) -> Verdict {
        let from = source_mac(frame);
        let packet = Ipv6Packet::new_unchecked(&frame[ETHERNET_LEN..]);
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        match packet.next_header() {
            IpProtocol::Icmpv6 => {}
            // Fragments are not put together, so the whole packet is not known.
            IpProtocol::Ipv6NoNxt | IpProtocol::Ipv6Frag => return Verdict::Drop(DropReason::NoHandler),
            protocol => {
                let fault = if protocol == IpProtocol::Udp { Fault::NoPort } else { Fault::NoProtocol };
                return self.refuse(frame, fault, DropReason::NoHandler, ingress, now_ns);
            }
        }
        let Ok(icmp) = Icmpv6Packet::new_checked(packet.payload()) else {
            return Verdict::Drop(DropReason::Malformed);
        };
        if !icmp.verify_checksum(&source, &destination) {
            return Verdict::Drop(DropReason::BadChecksum);
        }
        match icmp.msg_type() {
            Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert => {
                match resolve::read_nd(&packet, from) {
                    Ok(message) => self.told(ingress, message, now_ns),
                    Err(reason) => Verdict::Drop(reason),
                }
            }
            Icmpv6Message::EchoRequest if !destination.is_multicast() && !source.is_unspecified() => {
                if !answer_echo_v6(&mut frame[ETHERNET_LEN..]) {
                    return Verdict::Drop(DropReason::Malformed);
                }
                self.counts.echoes += 1;
                self.send_own(frame, ingress, source.into(), now_ns)
            }
            _ => Verdict::Drop(DropReason::NoHandler),
        }
    }

    /// Returns whether this address is ours on this interface alone: link-local, or a group we are in.
    pub(super) fn is_ours_v6(&self, ingress: u16, address: Ipv6Addr) -> bool {
        let scoped = address.is_multicast() || address.is_unicast_link_local();
        let port = &self.ports[usize::from(ingress)];
        scoped
            && port.addresses.iter().any(|own| match own.address().into() {
                IpAddr::V6(own) => {
                    own == address
                        || resolve::solicited_node(own) == address
                        || matches!(address, resolve::ALL_NODES | resolve::ALL_ROUTERS)
                }
                IpAddr::V4(_) => false,
            })
    }

    /// Tells a packet's sender of its fault, if that may be told. `from` is where the packet came from.
    pub(super) fn complain(&mut self, frame: &[u8], fault: Fault, from: Option<(u16, [u8; 6])>, now_ns: u64) {
        let Some(ip) = frame.get(ETHERNET_LEN..) else {
            return;
        };
        let (Some(sender), Some(len)) = (whom_to_tell(ip), error_len(ip)) else {
            return;
        };
        let way = self.error_way(frame, fault, sender, from).filter(|_| !self.outbox.is_full());
        let Some(ErrorWay { interface, to, own }) = way else {
            self.counts.errors_untold += 1;
            return;
        };
        if !self.error_limits.admit(from.map(|(ingress, _)| ingress), fault, now_ns) {
            self.counts.errors_limited += 1;
            return;
        }
        if let Some(bytes) = self.outbox.push(interface, ETHERNET_LEN + len) {
            let ethertype = if own.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
            resolve::ethernet(bytes, to, self.ports[usize::from(interface)].mac, ethertype);
            write_error(&mut bytes[ETHERNET_LEN..], fault, own, sender, &frame[ETHERNET_LEN..]);
            self.counts.errors += 1;
        }
    }

    /// The way of an error to the sender of `frame`, if it is known.
    fn error_way(
        &self,
        frame: &[u8],
        fault: Fault,
        sender: IpAddr,
        from: Option<(u16, [u8; 6])>,
    ) -> Option<ErrorWay> {
        let (interface, station) = self.way_to(sender, from.map(|(ingress, _)| ingress))?;
        let port = &self.ports[usize::from(interface)];
        let own = match fault {
            // It was for an address of ours, which answers (RFC 4443 section 2.2).
            Fault::NoPort | Fault::NoProtocol => destination_of(frame)?,
            // No packet from a link-local address is forwarded: a station beyond the link is told from another interface's.
            _ => {
                let ports = std::iter::once(port).chain(&self.ports);
                let mut sources = ports.filter_map(|port| port.source_for(sender));
                let reaches = |&own: &IpAddr| is_link_local(sender) || !is_link_local(own);
                sources.clone().find(reaches).or_else(|| sources.next())?
            }
        };
        let to = match (self.neighbours.front(station), from) {
            (Some([a, b, c, d, e, f, ..]), _) => [a, b, c, d, e, f],
            (None, Some((ingress, mac))) if ingress == interface => mac,
            (None, _) => return None,
        };
        Some(ErrorWay { interface, to, own })
    }

    /// Sends a packet of ours, whose IP header is ready.
    fn send_own(&mut self, frame: &mut [u8], ingress: u16, to: IpAddr, now_ns: u64) -> Verdict {
        let Some((interface, station)) = self.way_to(to, Some(ingress)) else {
            return Verdict::Drop(DropReason::NoRoute);
        };
        let port = &self.ports[usize::from(interface)];
        let (own, mtu_bytes) = (port.mac, port.mtu_bytes);
        let cut = match fit(frame, mtu_bytes) {
            Ok(cut) => cut,
            Err(reason) => {
                self.counts.frag_fails += 1;
                return Verdict::Drop(reason);
            }
        };
        match self.neighbours.resolve(station, own, now_ns) {
            Resolved::Drop(reason) => Verdict::Drop(reason),
            resolved => send(frame, interface, resolved, cut),
        }
    }

    /// The next hop of a packet of ours. A link-local address is on the link `near`, if any, unless it is ours there.
    pub(super) fn hop_to(&self, to: IpAddr, near: Option<u16>) -> NextHop {
        match (to, near) {
            (IpAddr::V6(to), Some(near)) if to.is_unicast_link_local() => match self.is_ours_v6(near, to) {
                true => NextHop::Local,
                false => NextHop::OnLink(near),
            },
            _ => self.table.lookup(to),
        }
    }

    /// The interface and the station that a packet of ours goes to, by [`Router::hop_to`].
    fn way_to(&self, to: IpAddr, near: Option<u16>) -> Option<(u16, Station)> {
        match self.hop_to(to, near) {
            NextHop::OnLink(interface) => Some((interface, Station::new(interface, to))),
            NextHop::Gateway(interface, gateway) => Some((interface, Station::new(interface, gateway))),
            _ => None,
        }
    }

    /// Acts on a message of ARP or neighbour discovery.
    fn told(&mut self, ingress: u16, message: Message, now_ns: u64) -> Verdict {
        let port = &self.ports[usize::from(ingress)];
        let (mac, interface) = (port.mac, ingress);
        match message {
            Message::Question { target, asker, from, is_told } => {
                let is_for_us = port.addresses.iter().any(|own| own.address() == target.into());
                let heard = asker.filter(|&address| is_told && self.is_on_link(ingress, address));
                if let Some(station) = heard.map(|address| Station::new(ingress, address))
                    // A question for another tells of an asker that is known, as one for its own address does (RFC 826).
                    && (is_for_us || target.is_ipv4() && self.neighbours.state(station).is_some())
                {
                    self.neighbours.heard(station, from, mac, now_ns);
                }
                match (target, asker) {
                    _ if !is_for_us => {}
                    (IpAddr::V4(address), _) => {
                        let to = match heard {
                            Some(IpAddr::V4(to)) => to,
                            _ => Ipv4Addr::UNSPECIFIED,
                        };
                        resolve::tell_arp(&mut self.outbox, Speaker { interface, mac, address }, to, from);
                    }
                    (IpAddr::V6(address), asker) => {
                        let asker = match asker {
                            Some(IpAddr::V6(to)) => Some((to, from)),
                            _ => None,
                        };
                        resolve::tell_nd(&mut self.outbox, Speaker { interface, mac, address }, asker);
                    }
                }
            }
            Message::Tells { station, mac: theirs, asked } if self.is_on_link(ingress, station) => {
                let station = Station::new(ingress, station);
                if asked {
                    self.neighbours.answered(station, theirs, now_ns);
                } else if self.neighbours.state(station).is_some() {
                    self.neighbours.heard(station, theirs, mac, now_ns);
                }
            }
            Message::Tells { .. } | Message::Other => {}
        }
        Verdict::Local
    }

    /// Returns whether a station may have this address on the link of an interface: it lies in one of the networks there or its route is on
    /// that link, and it is not ours.
    fn is_on_link(&self, interface: u16, address: IpAddr) -> bool {
        self.ports[usize::from(interface)].is_in_network(address)
            || self.table.lookup(address) == NextHop::OnLink(interface)
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

impl Port {
    pub(super) fn new(settings: &RouterSettings, number: u16) -> Port {
        let Interface { mac, mtu_bytes, .. } = settings.interfaces[usize::from(number)];
        let addresses = settings.all_addresses(number);
        Port { mac: mac.0, mtu_bytes, groups: groups_of(&addresses), addresses }
    }

    /// The source address for a packet to `target`: the one in its network, or else the first of its family.
    fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let family = |own: &&smoltcp::wire::IpCidr| IpAddr::from(own.address()).is_ipv4() == target.is_ipv4();
        let own = self.addresses.iter().filter(family);
        let near = own.clone().find(|own| own.contains_addr(&target.into()));
        near.or(own.clone().next()).map(|own| own.address().into())
    }

    /// Returns whether an address lies in a network of this interface, and is not ours there.
    fn is_in_network(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.contains_addr(&address.into()))
            && self.addresses.iter().all(|own| own.address() != address.into())
    }
}
