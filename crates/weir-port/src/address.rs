//! Addresses, routes and neighbours of this thread's namespace.
//!
//! Source: rtnetlink(7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_neigh::{self, Ndmsg};
use netlink_bindings::rt_route::{self, Rtmsg};
use netlink_socket2::NetlinkSocket;

use crate::error::Result;
use crate::netlink::{acknowledged, dump};

const IFA_F_NODAD: u8 = 2;
const NUD_PERMANENT: u16 = 0x80;
/// `struct rtnexthop`, to which attributes are added.
const NEXT_HOP_BYTES: usize = 8;

/// The first `length` bits of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// The number of its bits that count.
    pub length: u8,
}

/// A route of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The prefix of its destinations.
    pub to: Prefix,
    /// The numbers of the interfaces it leaves by; none for a route that leads nowhere, such as `unreachable`.
    pub interfaces: Vec<u32>,
}

/// The unspecified address, 0.0.0.0 or `::`.
pub fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Every route of this namespace, in all tables.
pub fn routes() -> Result<Vec<KernelRoute>> {
    let doing = || "reading the routes".to_string();
    let mut routes = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let header = Rtmsg { rtm_family: family as u8, ..Default::default() };
        let request = rt_route::Request::new().op_getroute_dump(&header);
        dump(&request, doing, |(header, attributes)| {
            let unspecified = unspecified(family == libc::AF_INET6);
            let to =
                Prefix { address: attributes.get_dst().unwrap_or(unspecified), length: header.rtm_dst_len };
            let interfaces = match header.rtm_type {
                libc::RTN_UNICAST => attributes
                    .get_oif()
                    .into_iter()
                    .chain(attributes.get_multipath().into_iter().flat_map(next_hops))
                    .collect(),
                _ => Vec::new(),
            };
            routes.push(KernelRoute { to, interfaces });
        })?;
    }
    Ok(routes)
}

/// The interfaces of a `RTA_MULTIPATH` attribute.
pub fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut interfaces = Vec::new();
    while bytes.len() >= NEXT_HOP_BYTES {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        if length < NEXT_HOP_BYTES || length > bytes.len() {
            break;
        }
        interfaces.push(u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    interfaces
}

/// The addresses of an interface of this thread's namespace, without link-local ones, which every interface has of itself.
pub fn addresses_of(ifindex: u32) -> Result<Vec<IpAddr>> {
    let link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut addresses = Vec::new();
    each_address(|of, prefix| {
        if of == ifindex && !link_local(&prefix.address) {
            addresses.push(prefix.address);
        }
    })?;
    Ok(addresses)
}

/// Every address of this namespace, with the length of its network's prefix.
pub fn addresses() -> Result<Vec<Prefix>> {
    let mut addresses = Vec::new();
    each_address(|_, prefix| addresses.push(prefix))?;
    Ok(addresses)
}

fn each_address(mut each: impl FnMut(u32, Prefix)) -> Result<()> {
    let request = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::default());
    let doing = || "reading the addresses".to_string();
    dump(&request, doing, |(header, attributes)| {
        if let Ok(address) = attributes.get_local().or_else(|_| attributes.get_address()) {
            each(header.ifa_index, Prefix { address, length: header.ifa_prefixlen });
        }
    })
}

/// Gives an interface an address, which is usable at once.
pub fn add_address(ifindex: u32, prefix: Prefix) -> Result<()> {
    let header = Ifaddrmsg {
        ifa_family: family(prefix.address),
        ifa_prefixlen: prefix.length,
        ifa_flags: if prefix.address.is_ipv6() { IFA_F_NODAD } else { 0 },
        ifa_index: ifindex,
        ..Default::default()
    };
    let mut request = rt_addr::Request::new().set_create().set_excl().op_newaddr_do(&header);
    request.encode().push_local(prefix.address).push_address(prefix.address);
    acknowledged(&mut NetlinkSocket::new(), &request, || {
        format!("giving interface number {ifindex} the address {}", prefix.address)
    })
}

/// Makes `gateway` the default route.
pub fn add_default_route(ifindex: u32, gateway: IpAddr) -> Result<()> {
    let header = Rtmsg {
        rtm_family: family(gateway),
        rtm_table: libc::RT_TABLE_MAIN,
        rtm_protocol: libc::RTPROT_STATIC,
        rtm_scope: libc::RT_SCOPE_UNIVERSE,
        rtm_type: libc::RTN_UNICAST,
        ..Default::default()
    };
    let mut request = rt_route::Request::new().set_create().set_excl().op_newroute_do(&header);
    request.encode().push_gateway(gateway).push_oif(ifindex);
    acknowledged(&mut NetlinkSocket::new(), &request, || format!("adding the default route by {gateway}"))
}

/// Sets the Ethernet address of a neighbour for good: while an address is being asked for, the kernel keeps few packets and drops the
/// others.
pub fn add_neighbour(ifindex: u32, neighbour: IpAddr, ethernet: [u8; 6]) -> Result<()> {
    let header = Ndmsg {
        ndm_family: family(neighbour),
        ndm_ifindex: ifindex as i32,
        ndm_state: NUD_PERMANENT,
        ..Default::default()
    };
    let mut request = rt_neigh::Request::new().set_create().set_replace().op_newneigh_do(&header);
    request.encode().push_dst(neighbour).push_lladdr(&ethernet);
    acknowledged(&mut NetlinkSocket::new(), &request, || format!("adding the neighbour {neighbour}"))
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_next_hop_is_found_and_nonsense_ends_the_search() {
        let hop = |length: u16, ifindex: u32| {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([0, 0]);
            bytes.extend(ifindex.to_ne_bytes());
            bytes.resize(usize::from(length).next_multiple_of(4).max(8), 0);
            bytes
        };
        assert_eq!(next_hops(&[hop(16, 7), hop(8, 9)].concat()), [7, 9]);
        assert_eq!(next_hops(&[hop(8, 7), hop(4, 9)].concat()), [7]);
        assert_eq!(
            next_hops(&[hop(8, 7), hop(16, 9)[..12].to_vec()].concat()),
            [7],
            "longer than what is there"
        );
        let bytes = [hop(16, 7), hop(15, 9)].concat();
        for cut in 0..bytes.len() {
            next_hops(&bytes[..cut]);
        }
    }
}
