//! The `[[router]]` tables: interfaces with their addresses, link-layer addresses and MTUs.
//!
//! Rule: an address can be a station's in its network, and no two interfaces of a router have one network, as nothing would say which of
//! the two leads there. A network within another's is kept, and warned of: the longer prefix decides (`weir_core::net::route`).
//!
//! Source: RFC 1812 section 4.2.2.11 and RFC 3021 (host parts), RFC 4291 section 2.6.1 (a host part of 0).

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use smoltcp::wire::IpCidr;
use toml::Spanned;
use weir_core::net::fragment::MTU_BYTES_MIN;
use weir_core::net::route::{Interface, is_never_forwarded, network};
use weir_core::net::router::RouterSettings;

use super::check::TopologyReader;
use super::file::TABLES_MAX;
use super::mac::{self, Identity};
use super::tables::{InterfaceTable, RouterTable};
use crate::own_address::parse_address;

/// The MTU of an interface where none is given.
pub const MTU_DEFAULT: u16 = 1500;
/// A frame's length is told in 16 bits, 14 bytes of it before the packet.
const MTU_MAX: u16 = u16::MAX - 14;
/// Neighbours that a router knows, besides the static ones.
const NEIGHBOURS_MAX: usize = 1024;

/// A router without interfaces, with the settings that no file has. Its seed, which is random, comes from the process that runs it.
pub fn settings() -> RouterSettings {
    RouterSettings {
        interfaces: Vec::new(),
        routes: Vec::new(),
        neighbours: Vec::new(),
        neighbours_max: NEIGHBOURS_MAX,
        incomplete_max: 64,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 256,
        waiting_max: 64,
        errors_per_second: 1000,
        errors_burst: 50,
        seed: 0,
        announces: true,
        host: None,
    }
}

impl TopologyReader<'_> {
    /// The settings of a router.
    pub(super) fn router(&mut self, table: &RouterTable, identity: &Identity) -> RouterSettings {
        if table.interface.is_empty() {
            let why =
                "a router has interfaces: write [[router.interface]] below it, with a port and an address";
            self.tell(table.name.span(), why);
        }
        if let Some(interface) = table.interface.get(TABLES_MAX) {
            self.tell(interface.port.span(), format!("a router has {TABLES_MAX} interfaces at most"));
        }
        let tables = &table.interface[..table.interface.len().min(TABLES_MAX)];
        let interfaces = tables.iter().map(|interface| {
            let addresses = self.addresses(interface);
            let port = interface.port.as_ref();
            let mac = self.value(&interface.mac, mac::read);
            let mac = mac.unwrap_or_else(|| mac::derived(identity, table.name.as_ref(), port));
            Interface { mac, mtu_bytes: self.mtu(interface), addresses }
        });
        let mut router = RouterSettings { interfaces: interfaces.collect(), ..settings() };
        self.overlaps(tables);
        self.routes(table, &mut router);
        self.neighbours(table, &mut router);
        router.neighbours_max += router.neighbours.len();
        for (number, interface) in tables.iter().enumerate() {
            self.check_mtu(interface, &router, number as u16);
        }
        router
    }

    fn addresses(&mut self, table: &InterfaceTable) -> Vec<IpCidr> {
        if table.address.as_ref().is_empty() {
            let why = "an interface has an address: write one with the length of its network's prefix, such as [\"10.0.0.1/24\"]";
            self.tell(table.address.span(), why);
        }
        let addresses = table
            .address
            .as_ref()
            .iter()
            .map(|text| own_address(text.as_ref()).map_err(|why| self.tell(text.span(), why)).ok());
        addresses.flatten().collect()
    }

    fn mtu(&mut self, table: &InterfaceTable) -> u16 {
        let Some(mtu) = &table.mtu else { return MTU_DEFAULT };
        let bytes = u16::try_from(*mtu.as_ref()).ok().filter(|bytes| *bytes <= MTU_MAX);
        if bytes.is_none() {
            self.tell(mtu.span(), format!("an MTU is the longest IP packet in bytes, {MTU_MAX} at most"));
        }
        bytes.unwrap_or(MTU_DEFAULT)
    }

    fn check_mtu(&mut self, table: &InterfaceTable, router: &RouterSettings, number: u16) {
        let least_bytes = router.least_mtu_bytes(number);
        let Some(mtu) = table.mtu.as_ref().filter(|mtu| (0..i64::from(least_bytes)).contains(mtu.as_ref()))
        else {
            return;
        };
        let family = match least_bytes {
            MTU_BYTES_MIN => "IPv4",
            _ => "IPv6, which goes by this interface,",
        };
        let why =
            format!("every link of {family} takes {least_bytes} bytes: write mtu = {least_bytes} or more");
        self.tell(mtu.span(), why);
    }

    /// Tells addresses that two interfaces have, and networks of two interfaces.
    fn overlaps(&mut self, tables: &[InterfaceTable]) {
        let mut all: Vec<(usize, Range<usize>, IpCidr)> = Vec::new();
        for (number, table) in tables.iter().enumerate() {
            for text in table.address.as_ref() {
                all.extend(own_address(text.as_ref()).map(|address| (number, text.span(), address)));
            }
        }
        let port = |number: usize| tables[number].port.as_ref();
        let mut addresses: HashMap<IpAddr, Range<usize>> = HashMap::new();
        let mut networks: HashMap<IpCidr, (usize, Range<usize>)> = HashMap::new();
        for (number, at, address) in &all {
            if let Some(first) = addresses.insert(address.address().into(), at.clone()) {
                let line = self.line(&first);
                self.tell(
                    at.clone(),
                    format!("this router has the address in line {line} already: take one of the two out"),
                );
                continue;
            }
            match networks.get(&network(address)) {
                Some((other, first)) if other != number => {
                    let why = format!(
                        "{} is the network of interface {} too, by line {}, and nothing says which of the two leads there: give one of \
                         them another",
                        network(address),
                        port(*other),
                        self.line(first)
                    );
                    self.tell(at.clone(), why);
                }
                Some(_) => {}
                None => {
                    networks.insert(network(address), (*number, at.clone()));
                }
            }
        }
        for (number, at, address) in &all {
            let shorter =
                (1..address.prefix_len()).rev().map(|len| network(&IpCidr::new(address.address(), len)));
            let around = shorter.filter_map(|around| Some((around, networks.get(&around)?)));
            if let Some((around, (other, _))) = around.into_iter().find(|(_, (other, _))| other != number) {
                let why = format!(
                    "{} lies in {around} of interface {}: the longer prefix decides, so what is in both leaves by {}",
                    network(address),
                    port(*other),
                    port(*number)
                );
                self.warn(at.clone(), why);
            }
        }
    }
}

/// A router's address and the length of its network's prefix.
///
/// # Errors
/// If it can be no router's there; the message says what to write.
pub(super) fn own_address(text: &str) -> Result<IpCidr, String> {
    let cidr = parse_address(text)?;
    check_forwarded(cidr.address().into())?;
    Ok(cidr)
}

/// Refuses a station's address that a router does not forward to.
pub(super) fn check_forwarded(address: IpAddr) -> Result<(), String> {
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return Err(format!("{address} is link-local: a router's are made from its MACs, so leave it out"));
    }
    match is_never_forwarded(&IpCidr::new(address.into(), if address.is_ipv4() { 32 } else { 128 })) {
        true => Err(format!(
            "{address} is in a network that is never forwarded to, and no station's: write another"
        )),
        false => Ok(()),
    }
}

/// The interface of a router that is at a port.
pub(super) fn at_port(table: &RouterTable, port: &Spanned<String>) -> Option<u16> {
    let place = table.interface.iter().position(|interface| interface.port.as_ref() == port.as_ref());
    place.filter(|place| *place < TABLES_MAX).map(|place| place as u16)
}
