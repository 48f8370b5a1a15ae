//! Routes: the next hop of a destination, and the look-up that finds it.
//!
//! One look-up answers everything that depends on the destination alone. Besides the configured routes, a table has, for each address of an
//! interface, its network (on link), its host address (local) and its directed broadcast; and the addresses that must not be forwarded to.
//! The longest prefix decides, so a host address beats its network, and a default route never applies to destinations that are not to be
//! forwarded.
//!
//! | destination | next hop | source |
//! |---|---|---|
//! | 0/8, 127/8, 169.254/16, 240/4; ::/8, fe80::/10 | martian | RFC 1812 5.3.7, RFC 3927 7, RFC 4291 2.5.6 |
//! | 224/4, ff00::/8 | multicast | RFC 1812 5.3.7: no multicast routing here |
//! | an interface's network's last address, except in /31 and /32 | broadcast | RFC 2644: not forwarded; RFC 3021 |
//!
//! Owner: immutable once compiled.
//!
//! Limits: one next hop for each prefix; no metrics, no policy routing. `::/8` takes with it all addresses that embed
//! IPv4 in its first bytes (RFC 4291 2.5.5); NAT64's 64:ff9b::/96 must be given as a route.

pub mod trie;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{EthernetAddress, IpCidr};

use trie::{Trie, TrieEntry};

/// An interface of a router; its place in the list is its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its link-layer address.
    pub mac: EthernetAddress,
    /// The longest IP packet its link takes.
    pub mtu_bytes: u16,
    /// Its addresses, each with the length of its network's prefix.
    pub addresses: Vec<IpCidr>,
}

/// A configured route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub destination: IpCidr,
    /// The interface to leave by.
    pub interface: u16,
    /// The router to hand packets to; without one, destinations are on the link.
    pub gateway: Option<IpAddr>,
}

/// The result of a route's look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The destination has no route.
    None,
    /// The destination is an address of this router.
    Local,
    /// The destination is all stations of a network of this router.
    Broadcast,
    /// The destination is a group.
    Multicast,
    /// The destination is never forwarded to.
    Martian,
    /// The destination is a station on this interface's link.
    OnLink(u16),
    /// The next hop is a router on this interface's link.
    Gateway(u16, IpAddr),
}

/// All routes of a router.
#[derive(Debug)]
pub struct RouteTable {
    v4: Trie<4>,
    v6: Trie<16>,
    hops: Vec<NextHop>,
}

/// The reason why routes cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The interface does not exist.
    NoInterface(Route),
    /// The gateway is of the other address family.
    Family(Route),
    /// The gateway is not on the interface's link: it is in no network there, no route on that link leads to it, and it is not link-local.
    GatewayNotOnLink(Route),
    /// The destination is never forwarded to.
    Martian(Route),
    /// There are two routes to the same destination.
    Twice(Route),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (RouteError::NoInterface(route)
        | RouteError::Family(route)
        | RouteError::GatewayNotOnLink(route)
        | RouteError::Martian(route)
        | RouteError::Twice(route)) = self;
        write!(f, "route to {}: ", route.destination)?;
        match self {
            RouteError::NoInterface(route) => write!(f, "there is no interface {}", route.interface),
            RouteError::Family(_) => {
                write!(f, "its gateway is of another address family; give one of the same")
            }
            RouteError::GatewayNotOnLink(route) => {
                write!(
                    f,
                    "its gateway is on no network of interface {}; give that one an address there, or a route on the link",
                    route.interface
                )
            }
            RouteError::Martian(_) => write!(f, "addresses there are never forwarded to"),
            RouteError::Twice(_) => write!(f, "there is another; keep one of them"),
        }
    }
}

impl std::error::Error for RouteError {}

impl RouteTable {
    /// Compiles `routes` and the routes that `interfaces` bring with them.
    pub fn compile(interfaces: &[Interface], routes: &[Route]) -> Result<RouteTable, RouteError> {
        let mut compiler = Compiler { hops: vec![NextHop::None], v4: Vec::new(), v6: Vec::new() };
        let never = MARTIANS.map(|(text, len)| (text, len, NextHop::Martian));
        let groups = MULTICAST.map(|(text, len)| (text, len, NextHop::Multicast));
        for (address, len, hop) in never.into_iter().chain(groups) {
            compiler.add(IpCidr::new(address.into(), len), hop);
        }
        for (number, interface) in (0..).zip(interfaces) {
            for address in &interface.addresses {
                compiler.add(network(address), NextHop::OnLink(number));
            }
        }
        let mut seen: Vec<IpCidr> = routes.iter().map(|route| network(&route.destination)).collect();
        seen.sort_unstable();
        for &route in routes {
            route.check(interfaces, routes)?;
            let destination = network(&route.destination);
            if seen.partition_point(|other| *other <= destination)
                - seen.partition_point(|other| *other < destination)
                > 1
            {
                return Err(RouteError::Twice(route));
            }
            let hop = match route.gateway {
                Some(gateway) => NextHop::Gateway(route.interface, gateway),
                None => NextHop::OnLink(route.interface),
            };
            compiler.add(destination, hop);
        }
        for interface in interfaces {
            for address in &interface.addresses {
                if let IpCidr::Ipv4(cidr) = address
                    && let Some(broadcast) = cidr.broadcast()
                {
                    compiler.add(IpCidr::new(IpAddr::V4(broadcast).into(), 32), NextHop::Broadcast);
                }
            }
        }
        // Own addresses come last, because the later of two equal prefixes counts: an own address stays one.
        for interface in interfaces {
            for address in &interface.addresses {
                compiler.add(host(address.address().into()), NextHop::Local);
            }
        }
        Ok(RouteTable { v4: Trie::compile(compiler.v4), v6: Trie::compile(compiler.v6), hops: compiler.hops })
    }

    /// The next hop of a destination.
    pub fn lookup(&self, destination: IpAddr) -> NextHop {
        match destination {
            IpAddr::V4(destination) => self.lookup_v4(destination),
            IpAddr::V6(destination) => self.lookup_v6(destination),
        }
    }

    /// The next hop of an IPv4 destination.
    pub fn lookup_v4(&self, destination: Ipv4Addr) -> NextHop {
        self.hop(self.v4.lookup(&destination.octets()))
    }

    /// The next hop of an IPv6 destination.
    pub fn lookup_v6(&self, destination: Ipv6Addr) -> NextHop {
        self.hop(self.v6.lookup(&destination.octets()))
    }

    /// Looks up a burst of IPv4 destinations; [`RouteTable::hop`] turns `values` into next hops.
    #[inline]
    pub fn lookup_burst_v4(&self, destinations: &[[u8; 4]], values: &mut [u32]) {
        self.v4.lookup_burst(destinations, values);
    }

    /// The next hop for the value of a look-up.
    #[inline]
    pub fn hop(&self, value: u32) -> NextHop {
        self.hops[value as usize]
    }

    /// The memory of the table, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.v4.size_bytes() + self.v6.size_bytes() + size_of_val(&*self.hops)
    }
}

const MARTIANS: [(IpAddr, u8); 6] = [
    (IpAddr::V4(Ipv4Addr::new(0, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(240, 0, 0, 0)), 4),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];
const MULTICAST: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

struct Compiler {
    hops: Vec<NextHop>,
    v4: Vec<TrieEntry<4>>,
    v6: Vec<TrieEntry<16>>,
}

impl Compiler {
    fn add(&mut self, destination: IpCidr, hop: NextHop) {
        // Neighbours in the list mostly share their next hop; a second look would cost more than a second entry.
        if self.hops.last() != Some(&hop) {
            self.hops.push(hop);
        }
        let value = self.hops.len() as u32 - 1;
        match destination {
            IpCidr::Ipv4(cidr) => {
                self.v4.push(TrieEntry { bits: cidr.address().octets(), len: cidr.prefix_len(), value })
            }
            IpCidr::Ipv6(cidr) => {
                self.v6.push(TrieEntry { bits: cidr.address().octets(), len: cidr.prefix_len(), value })
            }
        }
    }
}

impl Route {
    /// Checks that the route can leave by its interface, one of `interfaces`. Its gateway may be where one of `routes` says, as for Linux.
    ///
    /// # Errors
    /// The destination is never forwarded to, or the gateway is not reached there.
    pub fn check(self, interfaces: &[Interface], routes: &[Route]) -> Result<(), RouteError> {
        let interface = interfaces.get(usize::from(self.interface)).ok_or(RouteError::NoInterface(self))?;
        if is_never_forwarded(&self.destination) {
            return Err(RouteError::Martian(self));
        }
        let Some(gateway) = self.gateway else {
            return Ok(());
        };
        if gateway.is_ipv4() != matches!(self.destination, IpCidr::Ipv4(_)) {
            return Err(RouteError::Family(self));
        }
        let in_network = interface.addresses.iter().any(|network| network.contains_addr(&gateway.into()));
        let link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
        match in_network || link_local || link_of(interfaces, routes, gateway) == Some(self.interface) {
            true => Ok(()),
            false => Err(RouteError::GatewayNotOnLink(self)),
        }
    }
}

/// The interface on whose link an address is, by the longest prefix among networks and routes; `None` if a gateway comes first.
fn link_of(interfaces: &[Interface], routes: &[Route], address: IpAddr) -> Option<u16> {
    let networks = (0..).zip(interfaces).flat_map(|(number, interface)| {
        interface.addresses.iter().map(move |network| (network, Some(number)))
    });
    let routed =
        routes.iter().map(|route| (&route.destination, route.gateway.is_none().then_some(route.interface)));
    let around = networks.chain(routed).filter(|(network, _)| network.contains_addr(&address.into()));
    around.max_by_key(|(network, _)| network.prefix_len()).and_then(|(_, link)| link)
}

/// Returns whether no address of a network is ever forwarded to or an interface's: martians and groups.
pub fn is_never_forwarded(network: &IpCidr) -> bool {
    let lies_in = |&(address, len): &(IpAddr, u8)| IpCidr::new(address.into(), len).contains_subnet(network);
    MARTIANS.iter().chain(&MULTICAST).any(lies_in) && !is_nat64(network)
}

/// Returns whether the destination is the one prefix below ::/8 that is routed (RFC 6052 section 2.1).
fn is_nat64(destination: &IpCidr) -> bool {
    let well_known = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
    IpCidr::new(IpAddr::V6(well_known).into(), 96).contains_subnet(destination)
}

/// The network of an address, its host bits zero.
pub fn network(cidr: &IpCidr) -> IpCidr {
    match cidr {
        IpCidr::Ipv4(cidr) => IpCidr::Ipv4(cidr.network()),
        IpCidr::Ipv6(cidr) => {
            let bits = u128::from(cidr.address())
                & u128::MAX.checked_shl(128 - u32::from(cidr.prefix_len())).unwrap_or(0);
            IpCidr::new(IpAddr::V6(bits.into()).into(), cidr.prefix_len())
        }
    }
}

fn host(address: IpAddr) -> IpCidr {
    IpCidr::new(address.into(), if address.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<Interface> {
        let interface = |last, addresses: &[&str]| Interface {
            mac: EthernetAddress([2, 0, 0, 0, 0, last]),
            mtu_bytes: 1500,
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        };
        vec![
            interface(0, &["192.168.0.1/24", "2001:db8::1/64"]),
            interface(1, &["192.168.1.1/24", "10.0.0.0/31", "2001:db8:1::1/64"]),
        ]
    }

    fn route(destination: &str, interface: u16, gateway: Option<&str>) -> Route {
        Route {
            destination: destination.parse().expect("a prefix"),
            interface,
            gateway: gateway.map(|text| text.parse().expect("an address")),
        }
    }

    #[test]
    fn one_look_up_answers_all_that_depends_on_the_destination() {
        let routes = [
            route("0.0.0.0/0", 0, Some("192.168.0.254")),
            route("::/0", 1, Some("fe80::1")),
            route("192.168.1.128/25", 0, None),
            route("64:ff9b::/96", 0, Some("2001:db8::64")),
        ];
        let table = RouteTable::compile(&interfaces(), &routes).expect("routes");
        let v4 = |text: &str| table.lookup_v4(text.parse().expect("an address"));
        let v6 = |text: &str| table.lookup_v6(text.parse().expect("an address"));
        let gateway = |interface, text: &str| NextHop::Gateway(interface, text.parse().expect("an address"));
        assert_eq!(v4("192.168.1.1"), NextHop::Local);
        assert_eq!(v4("192.168.1.2"), NextHop::OnLink(1));
        assert_eq!(v4("192.168.1.200"), NextHop::OnLink(0));
        assert_eq!(v4("192.168.1.255"), NextHop::Broadcast);
        assert_eq!(v4("192.168.0.255"), NextHop::Broadcast);
        assert_eq!((v4("10.0.0.0"), v4("10.0.0.1")), (NextHop::Local, NextHop::OnLink(1)), "a /31");
        assert_eq!(v4("8.8.8.8"), gateway(0, "192.168.0.254"));
        for martian in ["0.0.0.0", "127.0.0.1", "169.254.1.1", "240.0.0.1", "255.255.255.255"] {
            assert_eq!(v4(martian), NextHop::Martian, "{martian}");
        }
        assert_eq!(v4("224.0.0.1"), NextHop::Multicast);
        assert_eq!(v6("2001:db8::1"), NextHop::Local);
        assert_eq!(v6("2001:db8::2"), NextHop::OnLink(0));
        assert_eq!(v6("2001:db8:2::2"), gateway(1, "fe80::1"));
        assert_eq!(v6("64:ff9b::808:808"), gateway(0, "2001:db8::64"));
        for martian in ["::", "::1", "::ffff:1.2.3.4", "fe80::1"] {
            assert_eq!(v6(martian), NextHop::Martian, "{martian}");
        }
        assert_eq!(v6("ff02::1"), NextHop::Multicast);
    }

    /// As `ip route add 203.0.113.1 dev eth0`, and `default via 203.0.113.1`, which is refused without the first.
    #[test]
    fn a_gateway_may_be_on_a_route_on_the_link() {
        for (destination, gateway, link, far) in [
            ("0.0.0.0/0", "203.0.113.1", "203.0.113.0/24", "8.8.8.8"),
            ("::/0", "2001:db8:9::1", "2001:db8:9::/64", "2001:db8:7::7"),
        ] {
            let (by_gateway, on_link) = (route(destination, 1, Some(gateway)), route(link, 1, None));
            let whole = format!("{gateway}/{}", if gateway.contains(':') { 128 } else { 32 });
            let (gateway, far): (IpAddr, IpAddr) = (gateway.parse().unwrap(), far.parse().unwrap());
            for routes in [[by_gateway, on_link], [on_link, by_gateway]] {
                let table = RouteTable::compile(&interfaces(), &routes).expect("routes");
                assert_eq!(table.lookup(far), NextHop::Gateway(1, gateway));
                assert_eq!(table.lookup(gateway), NextHop::OnLink(1));
            }
            let (elsewhere, by_itself) =
                (route(&whole, 0, None), route(&whole, 1, Some(&gateway.to_string())));
            for other in [elsewhere, by_itself] {
                let refused = RouteTable::compile(&interfaces(), &[by_gateway, on_link, other]);
                assert_eq!(refused.unwrap_err(), RouteError::GatewayNotOnLink(by_gateway));
            }
        }
    }

    #[test]
    fn without_a_route_there_is_none() {
        let table = RouteTable::compile(&interfaces(), &[]).expect("routes");
        assert_eq!(table.lookup_v4(Ipv4Addr::new(8, 8, 8, 8)), NextHop::None);
    }

    #[test]
    fn bad_routes_are_named() {
        let refused = |route: Route, more: &[Route]| {
            let mut routes = vec![route];
            routes.extend(more);
            RouteTable::compile(&interfaces(), &routes).expect_err("a bad route")
        };
        let bad = route("8.0.0.0/8", 2, None);
        assert_eq!(refused(bad, &[]), RouteError::NoInterface(bad));
        assert_eq!(RouteError::NoInterface(bad).to_string(), "route to 8.0.0.0/8: there is no interface 2");
        let bad = route("8.0.0.0/8", 0, Some("192.168.1.7"));
        assert_eq!(refused(bad, &[]), RouteError::GatewayNotOnLink(bad));
        let bad = route("8.0.0.0/8", 0, Some("2001:db8::7"));
        assert_eq!(refused(bad, &[]), RouteError::Family(bad));
        let bad = route("127.1.0.0/16", 0, None);
        assert_eq!(refused(bad, &[]), RouteError::Martian(bad));
        let bad = route("8.1.2.3/8", 0, None);
        assert_eq!(refused(bad, &[route("8.0.0.0/8", 1, None)]), RouteError::Twice(bad));
    }
}
