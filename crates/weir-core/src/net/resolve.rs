//! The messages that ask for and tell link-layer addresses: ARP for IPv4, neighbour discovery for IPv6.
//!
//! The meaning of each accepted message (any other is malformed, and dropped):
//!
//! | message | meaning |
//! |---|---|
//! | ARP request; neighbour solicitation | a question; the sender's address is heard if it is told, and the sender has one |
//! | ARP reply; advertisement with S | an answer to a question |
//! | advertisement without S | an address heard |
//!
//! Neighbour discovery must have hop limit 255, which no router lets through, code 0 and a right checksum.
//!
//! Source: RFC 826, RFC 5227 (probes: sender address zero; announcements: questions for the sender's own); RFC 4861 sections 4.3, 4.4, 7.1, 7.2.
//!
//! Limits: router advertisements, solicitations and redirects are not spoken; the O flag is not looked at, so the last
//! advertisement counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Message,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::outbox::Outbox;
use crate::drops::DropReason;

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A question for the station that has `target`, asked by `asker`, if it has an address yet, from the link-layer address `from`; that
    /// is heard if it is told.
    Question { target: IpAddr, asker: Option<IpAddr>, from: [u8; 6], is_told: bool },
    /// `station` has this address; `asked` if the message is an answer.
    Tells { station: IpAddr, mac: [u8; 6], asked: bool },
    /// The message is well formed, and none of these.
    Other,
}

/// The interface and the addresses by which a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Speaker<A> {
    pub(super) interface: u16,
    pub(super) mac: [u8; 6],
    pub(super) address: A,
}

const ETHERNET_LEN: usize = 14;
const ARP_LEN: usize = 28;
const IPV6_LEN: usize = 40;
/// The bytes of the header, the target and one option with a link-layer address.
const ND_LEN: usize = 32;
const BROADCAST: [u8; 6] = [0xff; 6];

/// Reads an ARP message, the payload of a frame.
pub(super) fn read_arp(payload: &[u8]) -> Result<Message, DropReason> {
    let packet = ArpPacket::new_checked(payload).map_err(|_| DropReason::Malformed)?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).map_err(|_| DropReason::Malformed)?
    else {
        return Ok(Message::Other);
    };
    let mac = source_hardware_addr.0;
    if !source_hardware_addr.is_unicast() || source_protocol_addr.is_multicast() {
        return Err(DropReason::Malformed);
    }
    let sender = IpAddr::V4(source_protocol_addr);
    Ok(match operation {
        ArpOperation::Request => Message::Question {
            target: target_protocol_addr.into(),
            asker: (!source_protocol_addr.is_unspecified()).then_some(sender),
            from: mac,
            is_told: true,
        },
        // The reply is to the address that asked; a gratuitous one names its own.
        ArpOperation::Reply => {
            Message::Tells { station: sender, mac, asked: source_protocol_addr != target_protocol_addr }
        }
        _ => Message::Other,
    })
}

/// Reads an ICMPv6 message of neighbour discovery. Its checksum has been verified.
pub(super) fn read_nd(ip: &Ipv6Packet<&[u8]>, from: [u8; 6]) -> Result<Message, DropReason> {
    let packet = Icmpv6Packet::new_checked(ip.payload()).map_err(|_| DropReason::Malformed)?;
    if !matches!(packet.msg_type(), Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert) {
        return Ok(Message::Other);
    }
    // Without an option the frame's own source is learnt, which must not be a group (RFC 1812 3.3.2 says so of ARP).
    if ip.hop_limit() != 255 || packet.msg_code() != 0 || !EthernetAddress(from).is_unicast() {
        return Err(DropReason::Malformed);
    }
    match NdiscRepr::parse(&packet).map_err(|_| DropReason::Malformed)? {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } if !target_addr.is_multicast() => {
            let mac = lladdr.map_or(Some(from), unicast).ok_or(DropReason::Malformed)?;
            let source = ip.src_addr();
            let asker = (!source.is_unspecified()).then_some(source.into());
            Ok(Message::Question { target: target_addr.into(), asker, from: mac, is_told: lladdr.is_some() })
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } if !target_addr.is_multicast() => {
            let asked = flags.contains(NdiscNeighborFlags::SOLICITED);
            if asked && ip.dst_addr().is_multicast() {
                return Err(DropReason::Malformed);
            }
            let mac = lladdr.map_or(Some(from), unicast).ok_or(DropReason::Malformed)?;
            Ok(Message::Tells { station: target_addr.into(), mac, asked })
        }
        _ => Err(DropReason::Malformed),
    }
}

/// Asks for `target`: all stations, or one that had it.
pub(super) fn ask_arp(outbox: &mut Outbox, own: Speaker<Ipv4Addr>, target: Ipv4Addr, mac: Option<[u8; 6]>) {
    write_arp(outbox, own, ArpOperation::Request, mac.unwrap_or(BROADCAST), [0; 6], target);
}

/// Tells all stations that we have our address: a question for it by itself.
pub(super) fn announce_arp(outbox: &mut Outbox, own: Speaker<Ipv4Addr>) {
    ask_arp(outbox, own, own.address, None);
}

/// Tells `to` that we have our address.
pub(super) fn tell_arp(outbox: &mut Outbox, own: Speaker<Ipv4Addr>, to: Ipv4Addr, mac: [u8; 6]) {
    write_arp(outbox, own, ArpOperation::Reply, mac, mac, to);
}

/// Asks for `target`: its solicited-node group, or the station that had it.
pub(super) fn ask_nd(outbox: &mut Outbox, own: Speaker<Ipv6Addr>, target: Ipv6Addr, mac: Option<[u8; 6]>) {
    let message = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(raw(own.mac)) };
    let (to, mac) = match mac {
        Some(mac) => (target, mac),
        None => (solicited_node(target), group_mac(solicited_node(target))),
    };
    write_nd(outbox, own, own.address, to, mac, message);
}

/// Tells the asker that we have `target`; all stations if the asker has no address yet.
pub(super) fn tell_nd(outbox: &mut Outbox, own: Speaker<Ipv6Addr>, asker: Option<(Ipv6Addr, [u8; 6])>) {
    let flags = NdiscNeighborFlags::ROUTER | NdiscNeighborFlags::OVERRIDE;
    let solicited = if asker.is_some() { NdiscNeighborFlags::SOLICITED } else { NdiscNeighborFlags::empty() };
    let message = NdiscRepr::NeighborAdvert {
        flags: flags | solicited,
        target_addr: own.address,
        lladdr: Some(raw(own.mac)),
    };
    let (to, mac) = asker.unwrap_or((ALL_NODES, group_mac(ALL_NODES)));
    write_nd(outbox, own, own.address, to, mac, message);
}

/// Every node of a link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Every router of a link.
pub(super) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The group in which a station is asked for (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let prefix = u128::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0));
    (prefix | u128::from(address) & 0xff_ffff).into()
}

/// The address that an interface derives from its link-layer address (RFC 4291 appendix A).
pub(super) fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let word = u16::from_be_bytes;
    Ipv6Addr::new(0xfe80, 0, 0, 0, word([a ^ 2, b]), word([c, 0xff]), word([0xfe, d]), word([e, f]))
}

/// The link-layer address of a group (RFC 2464 section 7).
pub(super) fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn unicast(address: RawHardwareAddress) -> Option<[u8; 6]> {
    let mac: [u8; 6] = address.as_bytes().try_into().ok()?;
    EthernetAddress(mac).is_unicast().then_some(mac)
}

fn raw(mac: [u8; 6]) -> RawHardwareAddress {
    RawHardwareAddress::from_bytes(&mac)
}

fn write_arp(
    outbox: &mut Outbox,
    own: Speaker<Ipv4Addr>,
    operation: ArpOperation,
    to: [u8; 6],
    target_mac: [u8; 6],
    target: Ipv4Addr,
) {
    let Some(bytes) = outbox.push(own.interface, ETHERNET_LEN + ARP_LEN) else {
        return;
    };
    ethernet(bytes, to, own.mac, EthernetProtocol::Arp);
    let message = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(own.mac),
        source_protocol_addr: own.address,
        target_hardware_addr: EthernetAddress(target_mac),
        target_protocol_addr: target,
    };
    message.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET_LEN..]));
}

fn write_nd(
    outbox: &mut Outbox,
    own: Speaker<Ipv6Addr>,
    source: Ipv6Addr,
    to: Ipv6Addr,
    mac: [u8; 6],
    message: NdiscRepr<'_>,
) {
    let Some(bytes) = outbox.push(own.interface, ETHERNET_LEN + IPV6_LEN + ND_LEN) else {
        return;
    };
    ethernet(bytes, mac, own.mac, EthernetProtocol::Ipv6);
    let mut ip = Ipv6Packet::new_unchecked(&mut bytes[ETHERNET_LEN..]);
    ip.set_version(6);
    ip.set_payload_len(ND_LEN as u16);
    ip.set_next_header(IpProtocol::Icmpv6);
    ip.set_hop_limit(255);
    ip.set_src_addr(source);
    ip.set_dst_addr(to);
    let mut icmp = Icmpv6Packet::new_unchecked(ip.payload_mut());
    Icmpv6Repr::Ndisc(message).emit(&source, &to, &mut icmp, &ChecksumCapabilities::default());
}

/// Writes an Ethernet header.
pub(super) fn ethernet(bytes: &mut [u8], to: [u8; 6], from: [u8; 6], ethertype: EthernetProtocol) {
    let mut frame = EthernetFrame::new_unchecked(bytes);
    frame.set_dst_addr(EthernetAddress(to));
    frame.set_src_addr(EthernetAddress(from));
    frame.set_ethertype(ethertype);
}
