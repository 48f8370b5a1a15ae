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
use std::ops::RangeInclusive;

use weir_core::classify::headers::has_ports;
use weir_core::drops::DropReason;

use crate::ip::{IpFamily, IpHeaders, ends};
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

    #[inline]
    fn contains(&self, family: IpFamily, bits: u128) -> bool {
        self.family == family && bits & self.mask == self.bits
    }

    /// Returns whether all addresses of `other` are among these.
    fn covers(&self, other: &AddressPrefix) -> bool {
        self.len <= other.len && self.contains(other.family, other.bits)
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

/// The policies of one direction, the first that matches first.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    list: Vec<SecurityPolicy>,
}

impl Policies {
    /// The policies of `list`, in its order.
    pub fn new(list: Vec<SecurityPolicy>) -> Policies {
        Policies { list }
    }

    /// The action on a packet with these headers, all of them, on its way out.
    #[inline]
    pub fn outbound(&self, packet: &[u8], headers: &IpHeaders) -> Result<PolicyAction, DropReason> {
        if let Some(quoted) = Quoted::of(packet, headers)?
            && let action @ PolicyAction::Protect(_) = self.answering(&quoted)?
        {
            return Ok(action);
        }
        match self.action(&Selected::of(packet, headers)?)? {
            // It may be an error about a packet that is protected.
            PolicyAction::Bypass if headers.hides_protocol() => Err(DropReason::EspFragment),
            action => Ok(action),
        }
    }

    /// Returns whether fragments of a packet would pass as it does: no port decides on it, and no packet that it quotes, which the first
    /// fragment alone would tell.
    pub fn passes_cut(&self, packet: &[u8], headers: &IpHeaders) -> bool {
        if !matches!(Quoted::of(packet, headers), Ok(None)) {
            return false;
        }
        let selected = Selected::of(packet, headers);
        selected.and_then(|selected| self.action(&Selected { ports: None, ..selected })).is_ok()
    }

    /// The action on the packets that answer a quoted one.
    #[cold]
    fn answering(&self, quoted: &Quoted) -> Result<PolicyAction, DropReason> {
        self.action(&Selected::answering(quoted))
    }

    // The fields of a packet stay in registers: written out in halves, they would be waited for.
    #[inline(always)]
    fn action(&self, selected: &Selected) -> Result<PolicyAction, DropReason> {
        for policy in &self.list {
            match policy.selector.matches(selected) {
                Match::Yes => return Ok(policy.action),
                Match::No => {}
                Match::Unknown => return Err(DropReason::EspFragment),
            }
        }
        Ok(PolicyAction::Discard)
    }

    /// Checks that a packet may have come in by an association of these bundles, or by none.
    #[inline]
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

/// The fields that selectors look at.
struct Selected {
    family: IpFamily,
    source: u128,
    destination: u128,
    /// The protocol; `None` for a fragment that hides it.
    protocol: Option<u8>,
    /// The ports; `None` for a fragment, or if the packet ends before them.
    ports: Option<[u16; 2]>,
}

enum Match {
    Yes,
    No,
    /// The field that would decide is in another fragment.
    Unknown,
}

impl Selected {
    /// Reads the fields; options that ESP would protect hide none from a selector.
    #[inline(always)]
    fn of(packet: &[u8], headers: &IpHeaders) -> Result<Selected, DropReason> {
        let packet = packet.get(..headers.packet_len()).ok_or(DropReason::Malformed)?;
        let data = packet.get(headers.end()..).ok_or(DropReason::Malformed)?;
        let ports = match data.first_chunk() {
            Some(&[s0, s1, d0, d1]) if !headers.is_fragment() => {
                Some([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
            }
            _ => None,
        };
        let [source, destination] = ends(packet, headers.family());
        let protocol = (!headers.hides_protocol()).then(|| headers.next());
        Ok(Selected { family: headers.family(), source, destination, protocol, ports })
    }

    /// The fields of a packet that answers a quoted one.
    fn answering(quoted: &Quoted) -> Selected {
        let [destination, source] = ends(quoted.packet, quoted.family);
        let ports = quoted
            .behind
            .and_then(<[u8]>::first_chunk)
            .map(|&[s0, s1, d0, d1]| [u16::from_be_bytes([d0, d1]), u16::from_be_bytes([s0, s1])]);
        Selected { family: quoted.family, source, destination, protocol: Some(quoted.protocol), ports }
    }
}

impl Selector {
    #[inline(always)]
    fn matches(&self, selected: &Selected) -> Match {
        let addresses = self.source.contains(selected.family, selected.source)
            && self.destination.contains(selected.family, selected.destination);
        if !addresses {
            return Match::No;
        }
        let names_ports = self.source_ports.is_some() || self.destination_ports.is_some();
        match (selected.protocol, self.protocol) {
            (None, None) if !names_ports => return Match::Yes,
            (None, _) => return Match::Unknown,
            (Some(one), Some(other)) if one != other => return Match::No,
            _ if !names_ports => return Match::Yes,
            (Some(one), _) if !has_ports(one) => return Match::No,
            (Some(_), _) => {}
        }
        let Some([source, destination]) = selected.ports else { return Match::Unknown };
        let within = |ports: &Option<RangeInclusive<u16>>, port: u16| {
            ports.as_ref().is_none_or(|ports| ports.contains(&port))
        };
        match within(&self.source_ports, source) && within(&self.destination_ports, destination) {
            true => Match::Yes,
            false => Match::No,
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
