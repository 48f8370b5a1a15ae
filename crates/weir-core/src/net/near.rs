//! The neighbours in an interface's IPv4 network by their number in it, so that finding one takes no hash and a word of memory.
//!
//! ```text
//! place of address a in network n / len  =  places[a - n]        0 <= a - n < 2^(32 - len)
//! ```
//!
//! It has the same places as the table of all neighbours, for the addresses it covers: a change of one goes with a change of the other.
//!
//! Owner: the neighbours. Limits: one network for each interface, the first that is no larger than [`HOSTS_MAX`]; stations
//! elsewhere are found by hash.

use smoltcp::wire::{IpCidr, Ipv4Cidr};

/// The addresses of the largest network that is kept so: a /20, 16 KiB.
pub const HOSTS_MAX: usize = 4096;

/// The value of no place: no neighbour has this address.
pub const NOBODY: u32 = u32::MAX;

/// The places of the neighbours of one network; see the head of the file.
#[derive(Debug)]
pub struct Near {
    first: u32,
    places: Box<[u32]>,
}

impl Near {
    /// The network of an interface with these addresses; no neighbour is known.
    pub fn new(addresses: &[IpCidr]) -> Near {
        let hosts =
            |cidr: Ipv4Cidr| 1usize.checked_shl(32 - u32::from(cidr.prefix_len())).unwrap_or(usize::MAX);
        let network = addresses.iter().find_map(|address| match *address {
            IpCidr::Ipv4(cidr) if hosts(cidr) <= HOSTS_MAX => Some(cidr.network()),
            _ => None,
        });
        match network {
            Some(network) => {
                let first = u32::from_be_bytes(network.address().octets());
                Near { first, places: vec![NOBODY; hosts(network)].into() }
            }
            None => Near { first: 0, places: Box::default() },
        }
    }

    /// The place of an address, [`NOBODY`] if there is none; `None` if it is not in the network.
    #[inline]
    pub fn get(&self, address: [u8; 4]) -> Option<u32> {
        self.places.get(self.number(address)).copied()
    }

    /// Notes the place of an address, if it is in the network.
    pub fn set(&mut self, address: [u8; 4], place: u32) {
        if let Some(known) = self.places.get_mut(self.number(address)) {
            *known = place;
        }
    }

    #[inline]
    fn number(&self, address: [u8; 4]) -> usize {
        u32::from_be_bytes(address).wrapping_sub(self.first) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(addresses: &[&str]) -> Near {
        let addresses: Vec<IpCidr> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Near::new(&addresses)
    }

    #[test]
    fn an_address_has_a_place_only_in_the_network() {
        let mut near = near(&["2001:db8::1/64", "10.0.0.1/8", "192.168.1.1/24", "192.168.2.1/24"]);
        let outside = [[192, 168, 0, 255], [192, 168, 2, 0], [0, 0, 0, 0], [255; 4], [10, 0, 0, 2]];
        for address in outside {
            near.set(address, 1);
            assert_eq!(near.get(address), None, "{address:?}");
        }
        for last in [0, 7, 255] {
            assert_eq!(near.get([192, 168, 1, last]), Some(NOBODY));
            near.set([192, 168, 1, last], last.into());
        }
        for last in [0, 7, 255] {
            assert_eq!(near.get([192, 168, 1, last]), Some(last.into()));
        }
    }

    #[test]
    fn networks_of_any_size() {
        assert_eq!(near(&["10.1.2.3/20"]).places.len(), HOSTS_MAX);
        assert_eq!(near(&["10.1.2.3/32"]).get([10, 1, 2, 3]), Some(NOBODY));
        for none in [&["10.1.2.3/19"][..], &["10.1.2.3/0"], &["2001:db8::1/64"], &[]] {
            assert!(near(none).places.is_empty(), "{none:?}");
        }
        let near = near(&["255.255.255.254/31"]);
        assert_eq!((near.get([255; 4]), near.get([0; 4])), (Some(NOBODY), None), "numbers do not go round");
    }
}
