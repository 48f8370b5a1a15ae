//! The choice of a private network of two addresses for a program, one that the host has no use for.
//!
//! Candidates are taken in order, so the choice depends only on the host's addresses and routes: IPv4 networks of four addresses (`/30`)
//! from a few little-used private ranges, and for each the IPv6 network (`/126`) that ends in the same bits. A candidate is free if no
//! address and no route of the host overlaps it. Routes that cover nearly everything say only which way out is, and do not count.
//!
//! Source: RFC 1918, RFC 6598, RFC 2544 (private IPv4), RFC 4193 (IPv6 `fd00::/8`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::Prefix;

/// The first two bytes of the IPv4 candidates, in order of preference. The last range is for benchmarks, and
/// so hardly ever used.
const RANGES: [[u8; 2]; 4] = [[10, 87], [172, 27], [100, 87], [198, 18]];
const V4_LENGTH: u8 = 30;
/// The IPv6 candidates: `fd57:4549:5200::/48` ("WEIR" in ASCII) and the IPv4 network in the last bits.
const V6_HEAD: [u16; 3] = [0xfd57, 0x4549, 0x5200];
const V6_LENGTH: u8 = 126;
/// Routes shorter than this, in bits, are ways out: the default route and the halves of it that VPNs use.
const WAY_OUT_LENGTH: u8 = 8;
/// The length of a whole IPv6 site. A route to more than that (such as one for all of `fd00::/8`) says nothing of these few addresses.
const V6_SITE_LENGTH: u8 = 48;

/// A network of two addresses: the host's and the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairSubnet {
    v4: u32,
}

/// The side of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host's end.
    Host = 1,
    /// The program's end.
    Program = 2,
}

impl PairSubnet {
    /// The first candidate that none of `used` overlaps.
    pub fn choose(used: &[Prefix]) -> Option<PairSubnet> {
        let candidates = RANGES.iter().flat_map(|range| {
            let base = u32::from_be_bytes([range[0], range[1], 0, 0]);
            (0..1u32 << 14).map(move |index| PairSubnet { v4: base + (index << 2) })
        });
        let used: Vec<&Prefix> = used.iter().filter(|prefix| counts(prefix)).collect();
        candidates.into_iter().find(|candidate| {
            let own = [candidate.v4(Side::Host), candidate.v6(Side::Host)];
            !used.iter().any(|prefix| own.iter().any(|own| overlap(prefix, own)))
        })
    }

    /// The IPv4 address of one side.
    pub fn v4(&self, side: Side) -> Prefix {
        Prefix { address: Ipv4Addr::from(self.v4 + side as u32).into(), length: V4_LENGTH }
    }

    /// The IPv6 address of one side.
    pub fn v6(&self, side: Side) -> Prefix {
        let low = self.v4 + side as u32;
        let [a, b, c] = V6_HEAD;
        let address = Ipv6Addr::new(a, b, c, 0, 0, 0, (low >> 16) as u16, low as u16);
        Prefix { address: address.into(), length: V6_LENGTH }
    }
}

/// Returns whether a route to `prefix` is one to nearly everywhere.
pub fn is_way_out(prefix: &Prefix) -> bool {
    prefix.length < WAY_OUT_LENGTH
}

fn counts(prefix: &Prefix) -> bool {
    !is_way_out(prefix) && (prefix.address.is_ipv4() || prefix.length >= V6_SITE_LENGTH)
}

fn overlap(one: &Prefix, other: &Prefix) -> bool {
    let length = u32::from(one.length.min(other.length));
    let same_head =
        |one: u128, other: u128, bits: u32| (one ^ other).checked_shr(bits - length).unwrap_or(0) == 0;
    match (one.address, other.address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            same_head(one.to_bits().into(), other.to_bits().into(), Ipv4Addr::BITS)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => same_head(one.to_bits(), other.to_bits(), Ipv6Addr::BITS),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix { address: address.parse().unwrap(), length: length.parse().unwrap() }
    }

    fn chosen(used: &[&str]) -> Option<String> {
        let used: Vec<_> = used.iter().map(|text| prefix(text)).collect();
        PairSubnet::choose(&used).map(|subnet| subnet.v4(Side::Program).address.to_string())
    }

    #[test]
    fn the_first_that_is_free_is_taken() {
        for (used, address) in [
            (&[][..], "10.87.0.2"),
            (&["0.0.0.0/0", "::/0", "192.168.1.0/24"][..], "10.87.0.2"),
            // Runs beside each other.
            (&["10.87.0.0/30", "10.87.0.4/30"][..], "10.87.0.10"),
            (&["10.87.0.1/30"][..], "10.87.0.6"),
            (&["10.87.0.2/32"][..], "10.87.0.6"),
            (&["10.87.0.0/24"][..], "10.87.1.2"),
            // A VPN for all of 10.0.0.0/8, and one that takes everything.
            (&["10.0.0.0/8"][..], "172.27.0.2"),
            (&["0.0.0.0/1", "128.0.0.0/1"][..], "10.87.0.2"),
            (&["10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10"][..], "198.18.0.2"),
            // The IPv6 half alone is taken.
            (&["fd57:4549:5200::a57:0/126"][..], "10.87.0.6"),
            (&["fd00::/8"][..], "10.87.0.2"),
        ] {
            assert_eq!(chosen(used).as_deref(), Some(address), "{used:?}");
        }
        assert_eq!(chosen(&["10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10", "198.0.0.0/8"]), None);
    }

    #[test]
    fn both_sides_are_in_one_network_and_differ() {
        let subnet = PairSubnet::choose(&[]).unwrap();
        assert_eq!(subnet.v6(Side::Host), prefix("fd57:4549:5200::a57:1/126"));
        assert_eq!(subnet.v6(Side::Program), prefix("fd57:4549:5200::a57:2/126"));
        assert!(overlap(&subnet.v4(Side::Host), &subnet.v4(Side::Program)));
    }
}
