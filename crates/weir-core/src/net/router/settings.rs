//! What a router is made of, and what is wrong with it.
//!
//! Rule: the least MTU is 68 bytes, where every header leaves room for a fragment, and 1280 for IPv6, which no router cuts. So a
//! sender is never told an MTU that it must not believe (RFC 8201 section 4).
//!
//! Owner: whoever describes a router; it is read once, when the router is made. Source: RFC 791 section 3.2, RFC 8200 section 5.

use std::net::IpAddr;

use smoltcp::wire::{EthernetAddress, IpCidr};

use crate::net::fragment;
use crate::net::route::{Interface, Route, RouteError};
use crate::net::sockets::HostSettings;
use crate::steer::key::BUCKET_BITS_MAX;

/// RFC 8200 section 5.
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

/// What a router is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSettings {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its routes, besides those its interfaces bring.
    pub routes: Vec<Route>,
    /// Its static neighbours.
    pub neighbours: Vec<StaticNeighbour>,
    /// Known neighbours at most, static ones included.
    pub neighbours_max: usize,
    /// Addresses that are being asked for at most, apart from those.
    pub incomplete_max: usize,
    /// New addresses asked for a second. Each is asked for three times at most.
    pub solicits_per_second: u32,
    /// New addresses asked for at once after a pause.
    pub solicits_burst: u32,
    /// Packets that may wait for neighbours, together.
    pub held_max: usize,
    /// Packets that may wait for one neighbour.
    pub waiting_max: u16,
    /// ICMP errors a second.
    pub errors_per_second: u32,
    /// ICMP errors at once after a pause.
    pub errors_burst: u32,
    /// A random number, so that nobody can prepare addresses that collide.
    pub seed: u64,
    /// Its sockets, if it is a host and forwards nothing.
    pub host: Option<HostSettings>,
}

/// Why a router cannot be made.
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
    /// An interface takes less than every link of a family that goes by it must take.
    Mtu {
        /// The interface.
        interface: u16,
        /// The least.
        least_bytes: u16,
    },
}

impl RouterSettings {
    /// Whether every interface takes what each link of IPv4 and, if it goes by it, of IPv6 must take.
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
        let routes = self.routes.iter().filter(|route| route.interface == interface);
        let addresses = self.interfaces.get(usize::from(interface)).map(|interface| &interface.addresses);
        let mut cidrs = routes.map(|route| &route.destination).chain(addresses.into_iter().flatten());
        let is_v6 = cidrs.any(|cidr| matches!(cidr, IpCidr::Ipv6(_)));
        if is_v6 { IPV6_MTU_BYTES_MIN } else { fragment::MTU_BYTES_MIN }
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
