//! Keepalives of ESP in UDP: one byte, so that a translator of addresses between the gateways keeps the way back.
//!
//! ```text
//! IP | UDP, the ports of ESP | 0xff
//! ```
//!
//! Rule: one is due when no packet went to the peer for a while, 20 s unless configured otherwise, and a receiver throws it away.
//!
//! Pure; time is an argument. Source: RFC 3948 sections 2.3 and 4.

use std::net::IpAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, IpRepr};

use crate::esp::{UDP_LEN, UdpEncapsulation, fill_udp_checksum, write_udp};

/// The default time without a packet before a keepalive is due, in nanoseconds.
pub const EVERY_NS_DEFAULT: u64 = 20_000_000_000;

const BYTE: u8 = 0xff;
/// The hop limit, as hosts set it for their own packets.
const HOP_LIMIT: u8 = 64;

/// The due times of an association's keepalives.
#[derive(Clone, Copy, Debug)]
pub struct KeepaliveTimer {
    every_ns: u64,
    /// The time of the last packet; none before the first, whose way to the peer is unknown.
    last_ns: Option<u64>,
}

impl KeepaliveTimer {
    /// A timer that is due `every_ns` after the last packet.
    pub fn new(every_ns: u64) -> KeepaliveTimer {
        KeepaliveTimer { every_ns, last_ns: None }
    }

    /// Notes that a packet was sent.
    pub fn sent(&mut self, now_ns: u64) {
        self.last_ns = Some(now_ns);
    }

    /// The time at which the next keepalive is due, if no packet is sent before.
    pub fn due_ns(&self) -> Option<u64> {
        self.last_ns.map(|last_ns| last_ns.saturating_add(self.every_ns))
    }
}

/// Writes a keepalive into the front of `room`; returns its length, or `None` if there is no room or the ends are of two families.
pub fn write(room: &mut [u8], source: IpAddr, destination: IpAddr, udp: UdpEncapsulation) -> Option<usize> {
    if source.is_ipv4() != destination.is_ipv4() {
        return None;
    }
    let [source, destination] = [source, destination].map(IpAddress::from);
    let ip = IpRepr::new(source, destination, IpProtocol::Udp, UDP_LEN + 1, HOP_LIMIT);
    let (header_len, len) = (ip.header_len(), ip.buffer_len());
    let packet = room.get_mut(..len)?;
    ip.emit(&mut *packet, &ChecksumCapabilities::default());
    packet[header_len + UDP_LEN] = BYTE;
    write_udp(&mut packet[header_len..], udp);
    // Over IPv4 the checksum stays zero, as that of ESP.
    if matches!(ip, IpRepr::Ipv6(_)) {
        fill_udp_checksum(packet, header_len);
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::esp::{Arrival, UDP_PORT, locate};
    use crate::ip::IpHeaders;

    const UDP: UdpEncapsulation = UdpEncapsulation { source: UDP_PORT, destination: 4501 };

    #[test]
    fn the_other_end_knows_it_for_one() {
        for (source, destination, expected) in
            [("192.0.2.1", "192.0.2.2", 29), ("2001:db8::1", "2001:db8::2", 49)]
        {
            let [source, destination] = [source, destination].map(|end| end.parse::<IpAddr>().unwrap());
            let mut room = [0xaa; 60];
            assert_eq!(write(&mut room, source, destination, UDP), Some(expected));
            let headers = IpHeaders::read_all(&room[..expected]).unwrap();
            assert_eq!(locate(&room[..expected], &headers, &[4501]), Ok(Arrival::Keepalive));
            assert_eq!(write(&mut room[..expected - 1], source, destination, UDP), None);
            // The packet is read by another implementation: `etherparse`, which the tests of this crate have.
            let read = etherparse::SlicedPacket::from_ip(&room[..expected]).unwrap();
            let Some(etherparse::TransportSlice::Udp(udp)) = read.transport else { panic!("no UDP") };
            assert_eq!((udp.source_port(), udp.destination_port(), udp.payload()), (4500, 4501, &[0xff][..]));
            let sum = match read.net.unwrap() {
                etherparse::NetSlice::Ipv6(ip) => {
                    udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), &[0xff]).unwrap()
                }
                _ => 0,
            };
            assert_eq!(udp.checksum(), sum);
        }
        assert_eq!(write(&mut [0; 60], [192, 0, 2, 1].into(), [0; 16].into(), UDP), None);
    }

    #[test]
    fn one_is_due_after_a_while_of_nothing() {
        let mut timer = KeepaliveTimer::new(20);
        assert_eq!(timer.due_ns(), None, "the way to the peer is not known yet");
        timer.sent(100);
        timer.sent(110);
        assert_eq!(timer.due_ns(), Some(130));
    }
}
