//! The link-layer address of a router's interface: as it is written, or derived from the identity of the interface.
//!
//! ```text
//! derived = 46 bits of SipHash-2-4 of (topology, router, port), each behind its length, with the machine id as the key;
//!           locally administered, of one station
//! ```
//!
//! Rule: an address is the same at each start, so that neighbours keep what they know; it is another on other machines, and has nothing of
//! the machine id in the clear, which is not for the network. Two interfaces of one LAN have the same by chance once in 10^13. Source: RFC
//! 9542 (locally administered addresses); machine-id(5); Aumasson and Bernstein, "SipHash".

use std::hash::Hasher;

use smoltcp::wire::EthernetAddress;

/// The identity of a topology among others.
pub(super) struct Identity<'a> {
    /// The machine: a number in hexadecimal digits; anything else is none.
    pub machine_id: &'a str,
    /// The name of the topology.
    pub topology: &'a str,
}

const GROUP: u8 = 1;
const LOCALLY_ADMINISTERED: u8 = 2;

/// The address of an interface of a router where none is given.
#[expect(
    deprecated,
    reason = "it is SipHash-2-4 for good, which is said of no other hasher of the standard library"
)]
pub(super) fn derived(identity: &Identity, router: &str, port: &str) -> EthernetAddress {
    let key = u128::from_str_radix(identity.machine_id, 16).unwrap_or(0);
    let mut hasher = std::hash::SipHasher::new_with_keys((key >> 64) as u64, key as u64);
    for part in [identity.topology, router, port] {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    let [_, _, first, rest @ ..] = hasher.finish().to_be_bytes();
    let mut mac = [first & !GROUP | LOCALLY_ADMINISTERED, 0, 0, 0, 0, 0];
    mac[1..].copy_from_slice(&rest);
    EthernetAddress(mac)
}

/// Reads one station's address.
///
/// # Errors
/// If it is none; the message says what one is.
pub(super) fn read(text: &str) -> Result<EthernetAddress, String> {
    let mac: EthernetAddress = text
        .parse()
        .map_err(|()| format!("\"{text}\" is no MAC: write six bytes, such as 02:00:00:00:00:01"))?;
    if mac.0[0] & GROUP != 0 {
        return Err(format!("{text} is the address of a group: a station's has an even first byte"));
    }
    if mac.0 == [0; 6] {
        return Err(format!("{text} is no station's address: write another, such as 02:00:00:00:00:01"));
    }
    Ok(mac)
}

/// An address as people write it.
pub(super) fn text(mac: EthernetAddress) -> String {
    mac.0.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_address_is_of_one_station_and_follows_all_that_identifies_it() {
        let of =
            |machine_id, topology, router, port| derived(&Identity { machine_id, topology }, router, port);
        let mac = of("4711", "office", "gw", "e0b");
        assert_eq!(text(mac), "36:90:60:bc:54:61");
        assert_eq!(mac.0[0] & (GROUP | LOCALLY_ADMINISTERED), LOCALLY_ADMINISTERED);
        let others = [
            of("4712", "office", "gw", "e0b"),
            of("4711", "home", "gw", "e0b"),
            of("4711", "office", "gw2", "e0b"),
            of("4711", "office", "gw", "e0a"),
            of("4711", "officeg", "w", "e0b"),
            of("", "office", "gw", "e0b"),
        ];
        assert!(others.iter().all(|other| *other != mac && other.0[0] & 3 == 2), "{others:?}");
    }

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for written in ["02:00:00:00:00:01", "0a:ff:10:00:9c:fe"] {
            assert_eq!(text(read(written).unwrap()), written);
        }
        assert_eq!(read("02-00-00-00-00-01"), read("02:00:00:00:00:01"));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2000.0000.0001",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
