//! Packets from and to the gateway of an ESP stage itself.
//!
//! Rule: a message of IKE passes as it is, whatever the policies say, because it negotiates what they need.
//!
//! Source: RFC 4301 section 5, RFC 3948 section 2.

use std::net::IpAddr;

use weir_ipsec::esp::{IKE_PORT, UDP_LEN, UDP_PORT};
use weir_ipsec::ip::{IpHeaders, destination_of, number, source_of};

use super::Esp;

impl Esp {
    /// Returns whether a packet is a message of IKE from or to this gateway, or a keepalive of IKE's. A fragment does not tell, and counts as
    /// none.
    #[inline]
    pub(super) fn is_own_ike(&self, ip: &[u8], headers: &IpHeaders, is_outbound: bool) -> bool {
        let own = if is_outbound { source_of } else { destination_of };
        if headers.next() != number::UDP || headers.is_fragment() || !self.is_own(own(ip, headers.family())) {
            return false;
        }
        let udp = ip.get(headers.end()..headers.packet_len()).and_then(<[u8]>::split_first_chunk::<UDP_LEN>);
        udp.is_some_and(|(ports, data)| {
            let at = if is_outbound { 0 } else { 2 };
            match u16::from_be_bytes([ports[at], ports[at + 1]]) {
                IKE_PORT => true,
                UDP_PORT => matches!(data, [0, 0, 0, 0, ..] | [0xff]),
                _ => false,
            }
        })
    }

    /// Returns whether an address, as it stands in a packet, is one of this gateway's.
    #[inline]
    pub(super) fn is_own(&self, address: &[u8]) -> bool {
        self.addresses.iter().any(|own| match own {
            IpAddr::V4(own) => own.octets() == address,
            IpAddr::V6(own) => own.octets() == address,
        })
    }
}
