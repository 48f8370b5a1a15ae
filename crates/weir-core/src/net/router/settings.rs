//! The settings of a router, and their faults.
//!
//! Rule: the least MTU is 68 bytes, where every header leaves room for a fragment, and 1280 for IPv6, which no router cuts. So a
//! sender is never told an MTU that it must not believe (RFC 8201 section 4).
//!
//! Owner: the caller that describes a router; it is read once, when the router is made. Source: RFC 791 section 3.2, RFC 8200 section 5.

use std::net::IpAddr;

use smoltcp::wire::{EthernetAddress, IpCidr};

use crate::net::fragment;
use crate::net::resolve::link_local;
use crate::net::route::{Interface, Route, RouteError};
use crate::net::sockets::HostSettings;
use crate::steer::key::BUCKET_BITS_MAX;

/// The least MTU of a link of IPv6 (RFC 8200 section 5).
const IPV6_MTU_BYTES_MIN: u16 = 1280;

/// A neighbour whose address is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticNeighbour {
    /// The interface whose link it is on.
    pub interface: u16,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address.
    pub mac: EthernetAddress,
}

/// The settings of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSettings {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its routes, besides those that its interfaces bring.
    pub routes: Vec<Route>,
    /// Its static neighbours.
    pub neighbours: Vec<StaticNeighbour>,
    /// The most known neighbours, static ones included.
    pub neighbours_max: usize,
    /// The most addresses that are being asked for, apart from those.
    pub incomplete_max: usize,
    /// The new addresses asked for a second. Each is asked for three times at most.
    pub solicits_per_second: u32,
    /// The new addresses asked for at once after a pause.
    pub solicits_burst: u32,
    /// The packets that may wait for neighbours, together. Of a host with TCP this has [`super::WAITING_SHARE`] for each socket and for each
    /// interface, and what is more is TCP's.
    pub held_max: usize,
    /// The packets that may wait for one neighbour.
    pub waiting_max: u32,
    /// The ICMP errors a second about packets that came in by one interface and are too long, and as many about all others that came in
    /// there.
    pub errors_per_second: u32,
    /// As many of them at once after a pause.
    pub errors_burst: u32,
    /// A random number, so that nobody can prepare addresses that collide.
    pub seed: u64,
    /// True if it tells each of its links its addresses there when it starts: stations that knew other link-layer addresses for them use
    /// these at once, and bridges learn where it is (RFC 5227 section 2.3, RFC 4861 section 7.2.6). From then on it reports the groups in which
    /// it is asked for (RFC 3810).
    pub announces: bool,
    /// Its sockets, if it is a host and forwards nothing.
    pub host: Option<HostSettings>,
}

/// The reason why a router cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterError {
    /// A route is wrong.
    Route(RouteError),
    /// A static neighbour is on an interface that does not exist.
    NoInterface(StaticNeighbour),
    /// There are more static neighbours than `neighbours_max`.
    TooManyNeighbours(StaticNeighbour),
    /// A host has more buckets than there may be.
    Buckets(u32),
    /// The MTU of an interface is less than the minimum of a family that goes by it.
    Mtu {
        /// The interface.
        interface: u16,
        /// The minimum.
        least_bytes: u16,
    },
}

impl RouterSettings {
    /// Checks that the MTU of every interface is at least the minimum of IPv4 and, if it goes by it, of IPv6.
    pub(super) fn check_mtus(&self) -> Result<(), RouterError> {
        for (number, interface) in (0..).zip(&self.interfaces) {
            let least_bytes = self.least_mtu_bytes(number);
            if interface.mtu_bytes < least_bytes {
                return Err(RouterError::Mtu { interface: number, least_bytes });
            }
        }
        Ok(())
    }

    /// The least MTU that an interface may have: that of IPv6 if this goes by it, and otherwise that of IPv4.
    pub fn least_mtu_bytes(&self, interface: u16) -> u16 {
        if self.has_v6(interface) { IPV6_MTU_BYTES_MIN } else { fragment::MTU_BYTES_MIN }
    }

    /// The addresses of an interface, with the link-local one that it has by itself if IPv6 goes by it.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn all_addresses(&self, interface: u16) -> Vec<IpCidr> {
        let Interface { mac, addresses, .. } = &self.interfaces[usize::from(interface)];
        let own = IpCidr::new(IpAddr::V6(link_local(mac.0)).into(), 64);
        addresses.iter().copied().chain(self.has_v6(interface).then_some(own)).collect()
    }

    /// Returns whether IPv6 goes by an interface: an address of it or a route is of IPv6.
    fn has_v6(&self, interface: u16) -> bool {
        let routes = self.routes.iter().filter(|route| route.interface == interface);
        let addresses = self.interfaces.get(usize::from(interface)).map(|interface| &interface.addresses);
        let mut cidrs = routes.map(|route| &route.destination).chain(addresses.into_iter().flatten());
        cidrs.any(|cidr| matches!(cidr, IpCidr::Ipv6(_)))
    }
}

impl std::fmt::Display for RouterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RouterError::Route(error) => error.fmt(f),
            RouterError::NoInterface(neighbour) => {
                write!(f, "neighbour {}: there is no interface {}", neighbour.address, neighbour.interface)
            }
            RouterError::TooManyNeighbours(neighbour) => {
                write!(f, "neighbour {}: no room for it; raise neighbours_max", neighbour.address)
            }
            RouterError::Buckets(bits) => {
                write!(f, "2^{bits} buckets: at most 2^{BUCKET_BITS_MAX} there may be")
            }
            RouterError::Mtu { interface, least_bytes } => {
                write!(f, "interface {interface}: its MTU is below {least_bytes}; give it that or more")
            }
        }
    }
}

impl std::error::Error for RouterError {}
