//! Security policies: decide which packets an association protects, which pass in the clear, and which do not pass.
//!
//! ```text
//! outbound: the first policy whose selector matches; none: discard
//! inbound:  the same, and the packet must have come as the policy says: by its association, or in the clear
//! ```
//!
//! Rule (RFC 4301 sections 4.4.1, 5.2 and 7): a packet that no policy selects is discarded; a fragment, whose ports are not seen, is
//! discarded where its ports would decide, so that none passes in the clear by a later policy. So is a fragment of IPv6 whose protocol
//! stands behind more headers, where the protocol would decide or the fragment would pass in the clear.
//!
//! An ICMP error tells of what it quotes (RFC 4301 section 6): if the packets that answer the quoted one are protected, so is the error,
//! whoever sends it. A router at the far end of a tunnel would otherwise send in the clear what came sealed. An error about a fragment, or
//! about a packet cut short, whose ports would decide is discarded as that is.
//!
//! Owner: one worker. Limits: policies are asked one after another, so a list is to be short; ports are those of TCP, UDP and other
//! protocols that begin with two of 16 bits (SCTP, DCCP, UDP-Lite); types and codes of ICMP are no ports. Of an error that its sender has
//! sent in fragments, those behind the first quote nothing, and pass by their own addresses, also in the clear.

use std::net::IpAddr;
use std::ops::{BitAnd, RangeInclusive};

use weir_core::classify::headers::has_ports;
use weir_core::drops::DropReason;

use crate::ip::{AddressPair, IpFamily, IpHeaders};
use crate::quoted::Quoted;

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    family: IpFamily,
    bits: u128,
    mask: u128,
    len: u32,
}

impl AddressPrefix {
    /// The addresses whose first `len` bits are those of `address`; `None` if it has not so many.
    pub fn new(address: IpAddr, len: u8) -> Option<AddressPrefix> {
        let (family, width, bits) = match address {
            IpAddr::V4(address) => (IpFamily::V4, 32, u128::from(u32::from(address)) << 96),
            IpAddr::V6(address) => (IpFamily::V6, 128, u128::from(address)),
        };
        let len = u32::from(len);
        let mask = mask(len);
        (len <= width).then_some(AddressPrefix { family, bits: bits & mask, mask, len })
    }

    /// The first of the addresses, and the number of bits they have in common.
    pub fn parts(&self) -> (IpAddr, u32) {
        let address = match self.family {
            IpFamily::V4 => IpAddr::V4(((self.bits >> 96) as u32).into()),
            IpFamily::V6 => IpAddr::V6(self.bits.into()),
        };
        (address, self.len)
    }

    /// Returns whether all addresses of `other` are among these.
    fn covers(&self, other: &AddressPrefix) -> bool {
        self.len <= other.len && self.family == other.family && other.bits & self.mask == self.bits
    }

    /// The prefix of an IPv4 address, as its packets have it.
    fn masked_v4(&self) -> Masked<u32> {
        Masked { bits: (self.bits >> 96) as u32, mask: (self.mask >> 96) as u32 }
    }

    fn masked_v6(&self) -> Masked<u128> {
        Masked { bits: self.bits, mask: self.mask }
    }
}

fn mask(len: u32) -> u128 {
    u128::MAX.checked_shl(128u32.saturating_sub(len)).unwrap_or(0)
}

/// A selector of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The source addresses.
    pub source: AddressPrefix,
    /// The destination addresses.
    pub destination: AddressPrefix,
    /// The protocol, or any.
    pub protocol: Option<u8>,
    /// The source ports, or any.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The destination ports, or any.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Selector {
    /// Returns whether it selects each packet of its family.
    pub fn takes_all(&self) -> bool {
        let Selector { source, destination, protocol, source_ports, destination_ports } = self;
        source.len == 0
            && destination.len == 0
            && protocol.is_none()
            && source_ports.is_none()
            && destination_ports.is_none()
    }

    /// Returns whether it selects each packet that `other` selects.
    pub fn covers(&self, other: &Selector) -> bool {
        type Ports = Option<RangeInclusive<u16>>;
        let ports_cover = |own: &Ports, ports: &Ports| match (own, ports) {
            (None, _) => true,
            (Some(own), Some(ports)) => own.contains(ports.start()) && own.contains(ports.end()),
            (Some(_), None) => false,
        };
        self.source.covers(&other.source)
            && self.destination.covers(&other.destination)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && ports_cover(&self.source_ports, &other.source_ports)
            && ports_cover(&self.destination_ports, &other.destination_ports)
    }
}

/// Associations that succeed each other, by the place of their list with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BundleId(pub u32);

/// The action of a policy on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// The packet goes, or has come, by one of these associations.
    Protect(BundleId),
    /// The packet passes in the clear.
    Bypass,
    /// The packet does not pass.
    Discard,
}

/// A selector and the action on packets it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityPolicy {
    /// The selector.
    pub selector: Selector,
    /// The action.
    pub action: PolicyAction,
}

/// The policies of one direction, the first that matches first: those of each family apart, so that a packet is asked nothing about the
/// other.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    v4: Vec<Asked<u32>>,
    v6: Vec<Asked<u128>>,
}

/// A policy, as packets with such addresses are asked.
#[derive(Clone, Debug)]
struct Asked<A> {
    source: Masked<A>,
    destination: Masked<A>,
    protocol: Option<u8>,
    /// The source and destination ports; none if it asks for neither.
    ports: Option<[RangeInclusive<u16>; 2]>,
    action: PolicyAction,
}

/// The bits of an address that are asked for, and where they are.
#[derive(Clone, Copy, Debug)]
struct Masked<A> {
    bits: A,
    mask: A,
}

impl Policies {
    /// The policies of `list`, in its order.
    pub fn new(list: Vec<SecurityPolicy>) -> Policies {
        let mut policies = Policies::default();
        for policy in &list {
            let Selector { source, destination, .. } = policy.selector;
            match (source.family, destination.family) {
                (IpFamily::V4, IpFamily::V4) => {
                    policies.v4.push(Asked::new(policy, AddressPrefix::masked_v4))
                }
                (IpFamily::V6, IpFamily::V6) => {
                    policies.v6.push(Asked::new(policy, AddressPrefix::masked_v6))
                }
                // No packet has addresses of two families.
                _ => {}
            }
        }
        policies
    }

    /// The action on a packet with these headers, all of them, on its way out.
    #[inline(always)]
    pub fn outbound(&self, packet: &[u8], headers: &IpHeaders) -> Result<PolicyAction, DropReason> {
        match headers.is_ordinary() {
            true => self.action(packet, headers, || ports_of(packet, headers)),
            false => self.outbound_extraordinary(packet, headers),
        }
    }

    /// As [`Policies::outbound`], for fragments and messages of ICMP.
    #[inline(never)]
    fn outbound_extraordinary(&self, packet: &[u8], headers: &IpHeaders) -> Result<PolicyAction, DropReason> {
        if let Some(quoted) = Quoted::of(packet, headers)?
            && let action @ PolicyAction::Protect(_) = self.answering(&quoted)?
        {
            return Ok(action);
        }
        match self.action(packet, headers, || ports_of(packet, headers))? {
            // It may be an error about a packet that is protected.
            PolicyAction::Bypass if headers.hides_protocol() => Err(DropReason::EspFragment),
            action => Ok(action),
        }
    }

    /// Returns whether fragments of a packet would pass as it does: no port decides on it, and no packet that it quotes, which the first
    /// fragment alone would tell.
    pub fn passes_cut(&self, packet: &[u8], headers: &IpHeaders) -> bool {
        matches!(Quoted::of(packet, headers), Ok(None)) && self.action(packet, headers, || None).is_ok()
    }

    /// The action on each fragment of a packet, as far as all of them tell it: no port decides, and no packet that the first one quotes.
    ///
    /// # Errors
    /// If only the whole packet tells it.
    #[cold]
    pub fn of_fragments(&self, packet: &[u8], headers: &IpHeaders) -> Result<PolicyAction, DropReason> {
        match self.action(packet, headers, || None)? {
            PolicyAction::Bypass if headers.hides_protocol() => Err(DropReason::EspFragment),
            action => Ok(action),
        }
    }

    /// The action on the packets that answer a quoted one.
    #[cold]
    fn answering(&self, quoted: &Quoted) -> Result<PolicyAction, DropReason> {
        let pair = AddressPair::of(quoted.packet, quoted.family).turned();
        self.first(pair, Some(quoted.protocol), || {
            let [source, destination] = quoted.behind.and_then(ports)?;
            Some([destination, source])
        })
    }

    /// The action on a packet with these headers, all of them, whose ports are read where one decides.
    #[inline(always)]
    fn action(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        ports: impl Fn() -> Option<[u16; 2]>,
    ) -> Result<PolicyAction, DropReason> {
        let protocol = (!headers.hides_protocol()).then(|| headers.next());
        self.first(AddressPair::of(packet, headers.family()), protocol, ports)
    }

    /// The action of the first policy that matches. The protocol is none if a fragment hides it, as are the ports, or if the packet ends
    /// before them.
    #[inline(always)]
    fn first(
        &self,
        pair: AddressPair,
        protocol: Option<u8>,
        ports: impl Fn() -> Option<[u16; 2]>,
    ) -> Result<PolicyAction, DropReason> {
        match pair {
            AddressPair::V4(pair) => first_of(&self.v4, pair, protocol, ports),
            AddressPair::V6(pair) => first_of(&self.v6, pair, protocol, ports),
        }
    }

    /// Checks that a packet may have come in by an association of these bundles, or by none.
    #[inline(always)]
    pub fn inbound(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        by: Option<&[BundleId]>,
    ) -> Result<(), DropReason> {
        match (self.outbound(packet, headers)?, by) {
            (PolicyAction::Discard, _) => Err(DropReason::PolicyDiscard),
            (PolicyAction::Bypass, None) => Ok(()),
            (PolicyAction::Protect(wanted), Some(by)) if by.contains(&wanted) => Ok(()),
            (PolicyAction::Bypass | PolicyAction::Protect(_), _) => Err(DropReason::PolicyMismatch),
        }
    }
}

/// The action of the first policy of a family that matches.
#[inline(always)]
fn first_of<A: Copy + Eq + BitAnd<Output = A>>(
    list: &[Asked<A>],
    pair: [A; 2],
    protocol: Option<u8>,
    ports: impl Fn() -> Option<[u16; 2]>,
) -> Result<PolicyAction, DropReason> {
    for policy in list {
        match policy.matches(pair, protocol, &ports) {
            Match::Yes => return Ok(policy.action),
            Match::No => {}
            Match::Unknown => return Err(DropReason::EspFragment),
        }
    }
    Ok(PolicyAction::Discard)
}

enum Match {
    Yes,
    No,
    /// The field that would decide is in another fragment.
    Unknown,
}

impl<A: Copy + Eq + BitAnd<Output = A>> Masked<A> {
    #[inline(always)]
    fn holds(&self, address: A) -> bool {
        address & self.mask == self.bits
    }
}

impl<A: Copy + Eq + BitAnd<Output = A>> Asked<A> {
    /// A policy whose addresses are of one family; `masked` makes them those of its packets.
    fn new(policy: &SecurityPolicy, masked: fn(&AddressPrefix) -> Masked<A>) -> Asked<A> {
        let Selector { source, destination, protocol, source_ports, destination_ports } = &policy.selector;
        let ports = [source_ports, destination_ports];
        let asks = ports.iter().any(|ports| ports.is_some());
        Asked {
            source: masked(source),
            destination: masked(destination),
            protocol: *protocol,
            ports: asks.then(|| ports.map(|ports| ports.clone().unwrap_or(0..=u16::MAX))),
            action: policy.action,
        }
    }

    #[inline(always)]
    fn matches(
        &self,
        [source, destination]: [A; 2],
        protocol: Option<u8>,
        ports: impl Fn() -> Option<[u16; 2]>,
    ) -> Match {
        if !self.source.holds(source) || !self.destination.holds(destination) {
            return Match::No;
        }
        match (protocol, self.protocol, &self.ports) {
            (None, None, None) => Match::Yes,
            (None, ..) => Match::Unknown,
            (Some(one), Some(other), _) if one != other => Match::No,
            (_, _, None) => Match::Yes,
            (Some(one), _, Some(wanted)) => match_ports(wanted, one, ports),
        }
    }
}

// Were it part of the loop, it would be made ready for policies that do not ask for ports too.
#[inline(never)]
fn match_ports(
    wanted: &[RangeInclusive<u16>; 2],
    protocol: u8,
    ports: impl Fn() -> Option<[u16; 2]>,
) -> Match {
    if !has_ports(protocol) {
        return Match::No;
    }
    match ports() {
        None => Match::Unknown,
        Some(ports) if wanted.iter().zip(ports).all(|(wanted, port)| wanted.contains(&port)) => Match::Yes,
        Some(_) => Match::No,
    }
}

/// The ports of a packet with these headers, all of them; none if they are in another fragment, or the packet ends before them.
fn ports_of(packet: &[u8], headers: &IpHeaders) -> Option<[u16; 2]> {
    packet.get(headers.end()..headers.packet_len()).filter(|_| !headers.is_fragment()).and_then(ports)
}

/// The source and destination ports with which a protocol's bytes begin.
fn ports(bytes: &[u8]) -> Option<[u16; 2]> {
    let &[s0, s1, d0, d1] = bytes.first_chunk()?;
    Some([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
