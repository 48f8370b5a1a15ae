//! The routes and static neighbours of a `[[router]]`.
//!
//! Rule: the interface that a route leaves by is the one whose network has its gateway; where that cannot say it (no gateway, a link-local
//! one), the route says it itself. A gateway and a static neighbour are on the link that their address leads to, by a network there or by a
//! route without a gateway, wherever that is in the file. The choice among routes is the router's own rule (`weir_core::net::route`), which
//! is asked here.
//!
//! Source: ip-route(8) (`default`, `via`; host bits are refused), RFC 1812 section 5.2.4.3.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use smoltcp::wire::IpCidr;
use toml::Spanned;
use weir_core::net::route::{Interface, Route, RouteError, network};
use weir_core::net::router::{RouterSettings, StaticNeighbour};

use super::check::TopologyReader;
use super::mac;
use super::routers::{at_port, check_forwarded};
use super::tables::{NeighbourTable, RouterTable, StaticRouteTable};
use crate::nearest::{and, did_you_mean};
use crate::own_address::{check_host_in, check_station, parse_prefix_len};

const DEFAULT: &str = "default";

impl TopologyReader<'_> {
    /// Reads the routes of a router, whose interfaces are there.
    pub(super) fn routes(&mut self, table: &RouterTable, router: &mut RouterSettings) {
        let mut seen: HashMap<IpCidr, Range<usize>> = HashMap::new();
        // Those on the link first: gateways may be there.
        let mut read: Vec<Option<Route>> = vec![None; table.route.len()];
        for by_gateway in [false, true] {
            let so_far: Vec<Route> = read.iter().flatten().copied().collect();
            let each = read.iter_mut().zip(&table.route);
            for (read, route) in each.filter(|(_, route)| route.via.is_some() == by_gateway) {
                *read = self.route(table, route, &router.interfaces, &so_far);
            }
        }
        let all: Vec<Route> = read.iter().flatten().copied().collect();
        for (route, read) in table.route.iter().zip(read) {
            let Some(read) = read.filter(|read| self.fits((table, route), *read, &router.interfaces, &all))
            else {
                continue;
            };
            if let Some(first) = seen.insert(read.destination, route.to.span()) {
                let why = format!(
                    "line {} has a route to {} already: keep one of them",
                    self.line(&first),
                    read.destination
                );
                self.tell(route.to.span(), why);
            }
            let own = table.interface.iter().zip(&router.interfaces);
            let mut own =
                own.filter(|(_, own)| own.addresses.iter().any(|own| network(own) == read.destination));
            if let Some((own, _)) = own.next() {
                let why = format!(
                    "{} is the network of interface {}, which leads there without a route: take it out",
                    read.destination,
                    own.port.as_ref()
                );
                self.tell(route.to.span(), why);
            }
            router.routes.push(read);
        }
    }

    /// A route, whose gateway may be on one of those `on_link`; `None` if it has a fault, which is told.
    fn route(
        &mut self,
        table: &RouterTable,
        route: &StaticRouteTable,
        interfaces: &[Interface],
        on_link: &[Route],
    ) -> Option<Route> {
        let gateway = match &route.via {
            Some(via) => {
                Some(self.station(table, via, route.port.as_ref(), interfaces, on_link, "10.0.0.254")?)
            }
            None => None,
        };
        let destination = self.value(&Some(route.to.clone()), |text| destination(text, gateway));
        let interface = match (&route.port, gateway) {
            (Some(port), _) => self.interface(table, port),
            (None, Some(gateway)) => nearest(interfaces, on_link, gateway),
            (None, None) => {
                let why = "a route says by what way: write via, the router to hand packets to, or port, where its stations are on the link";
                self.tell(route.to.span(), why);
                None
            }
        };
        let (destination, interface) = destination.zip(interface)?;
        Some(Route { destination, interface, gateway })
    }

    /// Returns whether a route fits the interfaces and all routes of its router; if not, it is told.
    fn fits(
        &mut self,
        (router, table): (&RouterTable, &StaticRouteTable),
        route: Route,
        interfaces: &[Interface],
        all: &[Route],
    ) -> bool {
        let at = table.via.as_ref().or(table.port.as_ref()).unwrap_or(&table.to);
        let is_found = || {
            let stations = route.gateway.map_or(route.destination, host_prefix);
            let finds = |own| finds_stations(own, stations, router, table);
            interfaces.get(usize::from(route.interface)).is_none_or(finds)
        };
        let (at, why) = match (route.check(interfaces, all), &table.port) {
            (Ok(()), _) if is_found() => return true,
            (Ok(()), _) => (
                at,
                format!(
                    "interface {} has no IPv4 address to ask for the stations of {} from: give it one",
                    at.as_ref(),
                    route.destination
                ),
            ),
            (Err(why @ RouteError::Martian(_)), _) => (&table.to, format!("{why}; take it out")),
            (Err(RouteError::GatewayNotOnLink(_)), Some(_)) => (
                at,
                format!("{} is on no network of this port: leave port out, or write another", at.as_ref()),
            ),
            (Err(RouteError::GatewayNotOnLink(_)), None) => (
                at,
                format!(
                    "another route leads to {} by a router: take that out, or write one on a link",
                    at.as_ref()
                ),
            ),
            (Err(why), _) => (at, why.to_string()),
        };
        self.tell(at.span(), why);
        false
    }

    /// Reads the static neighbours of a router, whose interfaces are there.
    pub(super) fn neighbours(&mut self, table: &RouterTable, router: &mut RouterSettings) {
        let mut seen: HashMap<(u16, IpAddr), Range<usize>> = HashMap::new();
        for neighbour in &table.neighbour {
            let mac =
                mac::read(neighbour.mac.as_ref()).map_err(|why| self.tell(neighbour.mac.span(), why)).ok();
            let read = self.neighbour(table, neighbour, &router.interfaces, &router.routes);
            let Some((interface, address)) = read else { continue };
            let at = neighbour.address.span();
            if let Some(first) = seen.insert((interface, address), at.clone()) {
                let why = format!("line {} has this neighbour already: keep one of them", self.line(&first));
                self.tell(at, why);
            }
            router.neighbours.extend(mac.map(|mac| StaticNeighbour { interface, address, mac }));
        }
    }

    fn neighbour(
        &mut self,
        table: &RouterTable,
        neighbour: &NeighbourTable,
        interfaces: &[Interface],
        routes: &[Route],
    ) -> Option<(u16, IpAddr)> {
        let at = &neighbour.address;
        let address = self.station(table, at, neighbour.port.as_ref(), interfaces, routes, "10.0.0.9")?;
        let Some(port) = &neighbour.port else {
            return Some((nearest(interfaces, routes, address)?, address));
        };
        let interface = self.interface(table, port)?;
        let mut links = links_of(interfaces, routes, address);
        if !is_link_local(address) && links.all(|(_, number)| number != interface) {
            let why = format!("{address} is on no network of this port: leave port out, or write another");
            self.tell(port.span(), why);
            return None;
        }
        Some((interface, address))
    }

    /// The address of a station on a link of a router, which is not the router itself; a route of `routes` may say that it is there.
    fn station(
        &mut self,
        table: &RouterTable,
        text: &Spanned<String>,
        port: Option<&Spanned<String>>,
        interfaces: &[Interface],
        routes: &[Route],
        example: &str,
    ) -> Option<IpAddr> {
        let read = || -> Result<IpAddr, String> {
            let address: IpAddr = text
                .as_ref()
                .parse()
                .map_err(|_| format!("\"{}\" is no address; write for example {example}", text.as_ref()))?;
            if is_link_local(address) {
                return match port {
                    Some(_) => Ok(address),
                    None => {
                        Err(format!("{address} is link-local, and each link may have it: write the port too"))
                    }
                };
            }
            check_station(address)?;
            check_forwarded(address)?;
            let mut own = interfaces.iter().flat_map(|interface| &interface.addresses);
            if own.any(|own| IpAddr::from(own.address()) == address) {
                return Err(format!("{address} is this router's own address: write that of another"));
            }
            let Some(interface) = nearest(interfaces, routes, address) else {
                let all = interfaces.iter().flat_map(|interface| &interface.addresses);
                let networks: Vec<String> = all.map(|own| network(own).to_string()).collect();
                let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
                return Err(match networks.is_empty() {
                    // Faults of the networks are told already.
                    true => String::new(),
                    false => format!(
                        "{address} is on no network of router {}, which are {}: give an interface an address there, or write a route to it with port, without via",
                        table.name.as_ref(),
                        and(&networks)
                    ),
                });
            };
            let own = interfaces[usize::from(interface)]
                .addresses
                .iter()
                .filter(|own| own.contains_addr(&address.into()));
            for own in own {
                check_host_in(own, address)?;
            }
            Ok(address)
        };
        match read() {
            Ok(address) => Some(address),
            Err(why) if why.is_empty() => None,
            Err(why) => {
                self.tell(text.span(), why);
                None
            }
        }
    }

    /// The interface that a route or a neighbour names by its port.
    fn interface(&mut self, table: &RouterTable, port: &Spanned<String>) -> Option<u16> {
        let place = at_port(table, port);
        if place.is_none() {
            let ports: Vec<&str> =
                table.interface.iter().map(|interface| interface.port.as_ref().as_str()).collect();
            let near = did_you_mean(port.as_ref(), ports.iter().copied());
            let why = format!("router {} has interfaces at {}{near}", table.name.as_ref(), and(&ports));
            self.tell(port.span(), why);
        }
        place
    }
}

/// The network that a route leads to.
fn destination(text: &str, gateway: Option<IpAddr>) -> Result<IpCidr, String> {
    const EXAMPLE: &str = "write for example 10.1.0.0/16, fd01::/48 or default";
    if text == DEFAULT {
        return match gateway {
            Some(IpAddr::V4(_)) => Ok(IpCidr::new(IpAddr::from([0; 4]).into(), 0)),
            Some(IpAddr::V6(_)) => Ok(IpCidr::new(IpAddr::from([0; 16]).into(), 0)),
            None => Err("of which family without via? write 0.0.0.0/0 or ::/0".into()),
        };
    }
    network_or_address(text, || format!("{EXAMPLE}{}", did_you_mean(text, [DEFAULT])))
}

/// Reads a network, or one address; `advice` says what to write where the text is neither.
pub(super) fn network_or_address(text: &str, advice: impl Fn() -> String) -> Result<IpCidr, String> {
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let address: IpAddr = address.parse().map_err(|_| format!("\"{text}\" is no network; {}", advice()))?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Ok(whole), |len| parse_prefix_len(address, len, 0))?;
    let cidr = IpCidr::new(address.into(), len);
    if network(&cidr) != cidr {
        return Err(format!(
            "{address} has bits behind its prefix of {len}: write {}, or {address}/{whole}",
            network(&cidr)
        ));
    }
    Ok(cidr)
}

/// The interface with the longest prefix that an address has, among its networks and those routes that lead to its link.
pub(super) fn nearest(interfaces: &[Interface], routes: &[Route], address: IpAddr) -> Option<u16> {
    links_of(interfaces, routes, address).max_by_key(|(len, _)| *len).map(|(_, number)| number)
}

/// The interfaces on whose links an address may be, each with the length of the prefix that says so.
fn links_of<'a>(
    interfaces: &'a [Interface],
    routes: &'a [Route],
    address: IpAddr,
) -> impl Iterator<Item = (u8, u16)> + 'a {
    let networks = (0..)
        .zip(interfaces)
        .flat_map(|(number, interface)| interface.addresses.iter().map(move |network| (network, number)));
    let on_link = routes.iter().filter(|route| route.gateway.is_none());
    let all = networks.chain(on_link.map(|route| (&route.destination, route.interface)));
    let around = all.filter(move |(network, _)| network.contains_addr(&address.into()));
    around.map(|(network, number)| (network.prefix_len(), number))
}

/// Returns whether an interface can send to stations of a network that is on its link, as a route says: it has an address to ask for them
/// from, as always for IPv6, or one of them is a static neighbour there.
fn finds_stations(
    interface: &Interface,
    on_link: IpCidr,
    router: &RouterTable,
    route: &StaticRouteTable,
) -> bool {
    let named = |port: &Option<Spanned<String>>| port.as_ref().map(|port| port.as_ref().to_string());
    let is_there = |neighbour: &NeighbourTable| {
        let is_elsewhere =
            neighbour.port.is_some() && route.port.is_some() && named(&neighbour.port) != named(&route.port);
        let address = neighbour.address.as_ref().parse::<IpAddr>();
        !is_elsewhere && address.is_ok_and(|address| on_link.contains_addr(&address.into()))
    };
    matches!(on_link, IpCidr::Ipv6(_))
        || interface.addresses.iter().any(|own| matches!(own, IpCidr::Ipv4(_)))
        || router.neighbour.iter().any(is_there)
}

/// The network that has this address alone.
fn host_prefix(address: IpAddr) -> IpCidr {
    IpCidr::new(address.into(), if address.is_ipv4() { 32 } else { 128 })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
