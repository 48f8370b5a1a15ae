//! Addresses that a user writes down for a host: its own, and those of stations in its networks.
//!
//! Rule: an address that can be no station's is refused in a sentence that says what it is and what to write: a group's, the loopback
//! address, a reserved or a broadcast address, or the network itself. In a /31, /32, /127 or /128 every address is a station's
//! (RFC 3021, RFC 6164).
//!
//! Owner: nobody; functions of text alone.

use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::IpCidr;
use weir_core::net::route::network;

/// A host's address and the length of its network's prefix.
///
/// # Errors
/// If it can be no host's there; the message says what to write.
pub fn parse_address(text: &str) -> Result<IpCidr, String> {
    const EXAMPLE: &str = "write for example 10.0.0.1/24 or fd00::1/64";
    let Some((address, len)) = text.split_once('/') else {
        return Err(match text.parse::<IpAddr>() {
            Ok(address) => {
                let len = if address.is_ipv4() { 24 } else { 64 };
                format!(
                    "{address} is without the length of its network's prefix: write for example {address}/{len}"
                )
            }
            Err(_) => format!("\"{text}\" is no address with the length of its network's prefix; {EXAMPLE}"),
        });
    };
    let address: IpAddr = address.parse().map_err(|_| format!("\"{address}\" is no address; {EXAMPLE}"))?;
    let len = parse_prefix_len(address, len, 1)?;
    check_station(address)?;
    let cidr = IpCidr::new(address.into(), len);
    check_host_in(&cidr, address)?;
    Ok(cidr)
}

/// The length of an address's prefix, `least` or more.
///
/// # Errors
/// If it is none; the message says which lengths its family has.
pub fn parse_prefix_len(address: IpAddr, text: &str, least: u8) -> Result<u8, String> {
    let (family, most) = if address.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    let len = text.parse::<u8>().ok().filter(|len| (least..=most).contains(len));
    len.ok_or_else(|| {
        format!("\"/{text}\" is no length of a prefix: those of {family} are /{least} to /{most}")
    })
}

/// Refuses an address that is no station's anywhere.
///
/// # Errors
/// If it is none; the message says what it is.
pub fn check_station(address: IpAddr) -> Result<(), String> {
    let is = match address {
        _ if address.is_multicast() => "the address of a group",
        _ if address.is_loopback() => "the loopback address",
        _ if address.is_unspecified() => "no address",
        IpAddr::V4(Ipv4Addr::BROADCAST) => "the broadcast address",
        IpAddr::V4(v4) if matches!(v4.octets()[0], 0 | 240..) => "reserved",
        _ => return Ok(()),
    };
    Err(format!("{address} is {is}, and no station's: write another"))
}

/// Refuses an address that is no station's in a network.
///
/// # Errors
/// If it is none; the message says what it is.
pub fn check_host_in(own: &IpCidr, address: IpAddr) -> Result<(), String> {
    let around = network(own);
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if own.prefix_len() + 1 >= bits {
        return Ok(());
    }
    match around {
        _ if IpAddr::from(around.address()) == address => {
            Err(format!("{address} is the network {around} itself: write an address in it"))
        }
        IpCidr::Ipv4(v4) if v4.broadcast().map(IpAddr::V4) == Some(address) => {
            Err(format!("{address} is the broadcast address of {around}: write another"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_stations_address_is_refused_with_what_to_write() {
        for (text, told) in [
            ("192.0.2.2", "write for example 192.0.2.2/24"),
            ("2001:db8::2", "write for example 2001:db8::2/64"),
            ("somewhere/24", "\"somewhere\" is no address; write for example"),
            ("192.0.2.2/33", "those of IPv4 are /1 to /32"),
            ("224.0.0.1/24", "the address of a group"),
            ("127.0.0.1/8", "the loopback address"),
            ("255.255.255.255/24", "the broadcast address, and no station's"),
            ("240.0.0.1/8", "240.0.0.1 is reserved, and no station's: write another"),
            ("0.1.2.3/8", "reserved, and no station's"),
            ("192.0.2.0/24", "192.0.2.0 is the network 192.0.2.0/24 itself: write"),
            ("192.0.2.255/24", "192.0.2.255 is the broadcast address of 192.0.2.0/24: write"),
            ("2001:db8::/64", "2001:db8:: is the network"),
        ] {
            let refused = parse_address(text).expect_err(text);
            assert!(refused.contains(told), "{refused}");
        }
        for text in ["192.0.2.0/31", "192.0.2.255/32", "2001:db8::/127", "192.0.2.2/24", "169.254.0.1/16"] {
            assert_eq!(parse_address(text).expect(text).to_string(), text);
        }
    }
}
