//! The link-layer address of a router's interface: as it is written, or derived from what identifies the interface.
//!
//! ```text
//! derived = 46 bits of FNV-1a over (machine id, topology, router, port), each behind its length; locally administered, one station's
//! ```
//!
//! Rule: the same at each start, so that neighbours keep what they know; other on other machines. Two interfaces of one LAN have the same
//! by chance once in 10^13. Source: RFC 9542 (locally administered addresses); Fowler, Noll and Vo.

use smoltcp::wire::EthernetAddress;
use weir_core::net::table::mix;

/// What a topology is told from others by.
pub(super) struct Identity<'a> {
    /// The machine.
    pub machine_id: &'a str,
    /// Its name.
    pub topology: &'a str,
}

const GROUP: u8 = 1;
const LOCALLY_ADMINISTERED: u8 = 2;

/// The address of an interface of a router where none is given.
pub(super) fn derived(identity: &Identity, router: &str, port: &str) -> EthernetAddress {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let mut hash = OFFSET;
    for part in [identity.machine_id, identity.topology, router, port] {
        let len = (part.len() as u64).to_be_bytes();
        hash = len.into_iter().chain(part.bytes()).fold(hash, step);
    }
    let [_, _, first, rest @ ..] = mix(hash).to_be_bytes();
    let mut mac = [first & !GROUP | LOCALLY_ADMINISTERED, 0, 0, 0, 0, 0];
    mac[1..].copy_from_slice(&rest);
    EthernetAddress(mac)
}

/// Reads one station's address.
///
/// # Errors
/// It is none, and what one is.
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
        assert_eq!(text(mac), "06:08:51:29:46:47");
        assert_eq!(mac.0[0] & (GROUP | LOCALLY_ADMINISTERED), LOCALLY_ADMINISTERED);
        let others = [
            of("4712", "office", "gw", "e0b"),
            of("4711", "home", "gw", "e0b"),
            of("4711", "office", "gw2", "e0b"),
            of("4711", "office", "gw", "e0a"),
            of("4711o", "ffice", "gw", "e0b"),
            of("", "", "", ""),
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
