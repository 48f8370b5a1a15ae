//! The part of a host that does not change: its addresses and its routes.
//!
//! Rule: a socket of any address sends from the address in the network of its peer, as the kernel's do (RFC 1122 section 3.3.4.3). A peer
//! of link-local scope is on the host's only link.
//!
//! Owner: nobody changes it, and every thread reads it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::IpCidr;
use weir_core::net::route::{NextHop, RouteTable};

use crate::socket::os;

/// See the head of the file.
pub(crate) struct HostSide {
    /// Its addresses, with the link-local one that it has by itself.
    pub(crate) addresses: Vec<IpCidr>,
    pub(crate) table: RouteTable,
    pub(crate) mtu_bytes: u16,
    /// The port of the host's first socket.
    pub(crate) first_port: usize,
    /// The port of all TCP, if there is TCP.
    pub(crate) tcp_port: Option<usize>,
}

impl HostSide {
    /// The source address for packets to another address: the one in its network, or the first of its family.
    pub(crate) fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        let hop = self.table.lookup(to);
        match hop {
            NextHop::Local => return Ok(to),
            NextHop::OnLink(_) | NextHop::Gateway(..) => {}
            _ if matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) => {}
            NextHop::Broadcast => return Err(os(libc::EACCES)),
            _ if to == IpAddr::V4(Ipv4Addr::BROADCAST) => return Err(os(libc::EACCES)),
            NextHop::None | NextHop::Multicast | NextHop::Martian => return Err(os(libc::ENETUNREACH)),
        }
        // No router forwards what a link-local address sends.
        let reaches = |own: IpAddr| {
            let is_link_local = matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
            own.is_ipv4() == to.is_ipv4() && !(is_link_local && matches!(hop, NextHop::Gateway(..)))
        };
        let own = || self.addresses.iter().filter(|own| reaches(own.address().into()));
        let near = own().find(|own| own.contains_addr(&to.into())).or(own().next());
        near.map(|own| own.address().into()).ok_or_else(|| os(libc::ENETUNREACH))
    }

    /// Checks that a socket can be bound to an address.
    pub(crate) fn check_own(&self, address: IpAddr) -> io::Result<()> {
        let mut own = self.addresses.iter().map(|own| IpAddr::from(own.address()));
        if own.clone().all(|own| own.is_ipv4() != address.is_ipv4()) {
            return Err(os(libc::EAFNOSUPPORT));
        }
        match address.is_unspecified() || own.any(|own| own == address) {
            true => Ok(()),
            false => Err(os(libc::EADDRNOTAVAIL)),
        }
    }
}
