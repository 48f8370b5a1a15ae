//! A station: its address on the link of an interface, in the form that tables are keyed by.
//!
//! An IPv4 address is mapped into IPv6, as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2), which is never seen on a wire.

use std::net::{IpAddr, Ipv6Addr};

use super::table::{self, mix};

/// A station: its address on the link of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Station {
    /// IPv6, or IPv4 mapped into it: the half that mostly differs comes first.
    low: u64,
    /// The interface.
    pub interface: u16,
    high: u64,
}

impl Station {
    /// The station of an address on an interface.
    pub fn new(interface: u16, address: IpAddr) -> Station {
        match address {
            IpAddr::V4(address) => Station::v4(interface, address.octets()),
            IpAddr::V6(address) => {
                let address = u128::from(address);
                Station { low: address as u64, interface, high: (address >> 64) as u64 }
            }
        }
    }

    /// The station of an IPv4 address on an interface.
    #[inline]
    pub fn v4(interface: u16, address: [u8; 4]) -> Station {
        Station { low: 0xffff_0000_0000 | u64::from(u32::from_be_bytes(address)), interface, high: 0 }
    }

    /// Its address.
    pub fn ip(self) -> IpAddr {
        let address = u128::from(self.high) << 64 | u128::from(self.low);
        IpAddr::V6(Ipv6Addr::from(address)).to_canonical()
    }
}

impl table::TableKey for Station {
    #[inline]
    fn hash(self, seed: u64) -> u64 {
        let port = u64::from(self.interface) << 48;
        if self.high == 0 {
            mix(self.low ^ port ^ seed)
        } else {
            mix(self.low ^ mix(self.high ^ port ^ seed))
        }
    }
}
