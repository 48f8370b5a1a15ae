//! The groups in which a router is asked for, told to the bridges of its links, which nobody else tells them (MLDv2).
//!
//! A bridge that snoops on a link with a querier passes a solicitation on only to where its group was reported, so a router that reports
//! none is found by nobody there (RFC 4861 section 7.2.1).
//!
//! ```text
//! start            + 1 s                           + 10 s, again and again
//! addresses,       groups: the first report        groups: a bridge remembers a report for 260 s
//! groups           may be lost
//! ```
//!
//! Queries are not read, because reports are so frequent that none is needed: a bridge forgets the groups of a port that goes, and hears of
//! them soon after it came back.
//!
//! Owner: the router's worker. Source: RFC 3810 sections 5.2, 6.1 and 9.3, 9.4, 9.11 (the times); RFC 2711 (router alert).
//! Limits: a bridge that knows the first version of the protocol alone reads no report.

use std::net::Ipv6Addr;
use std::ops::Range;

use smoltcp::wire::{EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpCidr, IpProtocol, Ipv6Packet};

use super::inspect::ETHERNET_LEN;
use super::{Port, Router};
use crate::net::resolve::{ethernet, group_mac, link_local, solicited_node};
use crate::packet::Packet;

const SECOND_NS: u64 = 1_000_000_000;
/// The time to the second report (Unsolicited Report Interval), and between later ones (less than the Query Response Interval, in which
/// answers to a query come).
const AGAIN_NS: u64 = SECOND_NS;
const PERIOD_NS: u64 = 10 * SECOND_NS;

/// The group of all who read reports.
const READERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The hop-by-hop header: ICMPv6 follows, in 8 bytes; a router alert for MLD, and padding.
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
const IPV6_LEN: usize = 40;
const ICMP_LEN: usize = 8;
const RECORD_LEN: usize = 20;
/// A record that begins to listen to a group, whoever sends to it.
const CHANGE_TO_EXCLUDE: u8 = 4;
/// The most groups of a report that every link of IPv6 takes.
const GROUPS_MAX: usize = (1280 - IPV6_LEN - ROUTER_ALERT.len() - ICMP_LEN) / RECORD_LEN;

/// The rounds in which a router tells its links what nobody asked for.
#[derive(Debug)]
pub(super) struct Rounds {
    interfaces: u16,
    /// True if there are groups, so that the first round is not the last.
    repeats: bool,
    /// The interfaces whose turn of this round is to come.
    left: Range<u16>,
    /// The rounds that have begun.
    begun: u32,
    /// The time of the next round, if there is one.
    next_ns: Option<u64>,
}

impl Rounds {
    /// The rounds of interfaces from now on; none if the router does not announce itself.
    pub(super) fn new(announces: bool, ports: &[Port], now_ns: u64) -> Rounds {
        let repeats = ports.iter().any(|port| !port.groups.is_empty());
        let next_ns = announces.then_some(now_ns);
        Rounds { interfaces: ports.len() as u16, repeats, left: 0..0, begun: 0, next_ns }
    }

    /// The next interface whose turn it is, and whether this is its first one.
    pub(super) fn turn(&mut self, now_ns: u64) -> Option<(u16, bool)> {
        if self.left.is_empty() && self.next_ns.is_some_and(|next_ns| next_ns <= now_ns) {
            let pause_ns = if self.begun == 0 { AGAIN_NS } else { PERIOD_NS };
            self.next_ns = self.repeats.then_some(now_ns + pause_ns);
            self.begun = self.begun.saturating_add(1);
            self.left = 0..self.interfaces;
        }
        self.left.next().map(|interface| (interface, self.begun == 1))
    }

    /// The time of the next turn.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if self.left.is_empty() { self.next_ns } else { Some(now_ns) }
    }
}

impl<P: Packet> Router<P> {
    /// Tells a link, if it is the turn of one, in which groups this router is asked for there, and at first its addresses.
    pub(super) fn tell_unasked(&mut self, now_ns: u64) {
        if let Some((interface, is_first)) = self.rounds.turn(now_ns) {
            if is_first {
                self.announce(interface);
            }
            self.report(interface);
        }
    }

    fn report(&mut self, interface: u16) {
        let port = &self.ports[usize::from(interface)];
        for groups in port.groups.chunks(GROUPS_MAX) {
            if let Some(bytes) = self.outbox.push(interface, report_len(groups)) {
                write_report(bytes, port.mac, groups);
            }
        }
    }
}

/// The groups in which a station with these addresses is asked for.
pub(super) fn groups_of(addresses: &[IpCidr]) -> Box<[Ipv6Addr]> {
    let own = addresses.iter().filter_map(|own| match own {
        IpCidr::Ipv6(own) => Some(solicited_node(own.address())),
        IpCidr::Ipv4(_) => None,
    });
    let mut groups: Vec<Ipv6Addr> = own.collect();
    groups.sort_unstable();
    groups.dedup();
    groups.into()
}

fn report_len(groups: &[Ipv6Addr]) -> usize {
    ETHERNET_LEN + IPV6_LEN + ROUTER_ALERT.len() + ICMP_LEN + groups.len() * RECORD_LEN
}

/// Writes a report of groups into `bytes`, [`report_len`] zeros.
fn write_report(bytes: &mut [u8], mac: [u8; 6], groups: &[Ipv6Addr]) {
    let (own, payload_len) = (link_local(mac), bytes.len() - ETHERNET_LEN - IPV6_LEN);
    ethernet(bytes, group_mac(READERS), mac, EthernetProtocol::Ipv6);
    let mut ip = Ipv6Packet::new_unchecked(&mut bytes[ETHERNET_LEN..]);
    ip.set_version(6);
    ip.set_payload_len(payload_len as u16);
    ip.set_next_header(IpProtocol::HopByHop);
    ip.set_hop_limit(1);
    ip.set_src_addr(own);
    ip.set_dst_addr(READERS);
    let (alert, report) = ip.payload_mut().split_at_mut(ROUTER_ALERT.len());
    alert.copy_from_slice(&ROUTER_ALERT);
    report[6..ICMP_LEN].copy_from_slice(&(groups.len() as u16).to_be_bytes());
    for (record, group) in report[ICMP_LEN..].chunks_exact_mut(RECORD_LEN).zip(groups) {
        record[0] = CHANGE_TO_EXCLUDE;
        record[4..].copy_from_slice(&group.octets());
    }
    let mut icmp = Icmpv6Packet::new_unchecked(report);
    icmp.set_msg_type(Icmpv6Message::MldReport);
    icmp.fill_checksum(&own, &READERS);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written out by hand, but for the checksum, which must be right: what is summed up is all ones.
    #[test]
    fn golden_report() {
        let groups = groups_of(
            &["10.0.0.1/24", "fd00:1::1/64", "fd00:2::1/64", "fe80::11/64"].map(|text| text.parse().unwrap()),
        );
        let mut bytes = vec![0; report_len(&groups)];
        write_report(&mut bytes, [2, 0, 0, 0, 0, 0x11], &groups);
        let checksum = u16::from_be_bytes([bytes[64], bytes[65]]);
        bytes[64..66].fill(0);
        let golden = [
            &[0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 0x11, 0x86, 0xdd][..],
            &[0x60, 0, 0, 0, 0, 56, 0, 1],
            &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x11],
            &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16],
            &[58, 0, 5, 2, 0, 0, 1, 0],
            &[143, 0, 0, 0, 0, 0, 0, 2],
            &[4, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1],
            &[4, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0x11],
        ];
        assert_eq!(bytes, golden.concat());
        // The pseudo-header: the addresses, the length and the protocol.
        let words = bytes[22..54].chunks(2).chain(bytes[62..].chunks(2));
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = sum + 48 + 58 + u32::from(checksum);
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
