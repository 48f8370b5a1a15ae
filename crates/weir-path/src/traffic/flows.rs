//! The flows of a generator: UDP over IPv4 between ranges of addresses and ports, as netmap's `pkt-gen` takes them.
//!
//! ```text
//! flow f of n:  destination address  first + f mod addresses          then, as f grows, in the order
//!               destination port, source address, source port         of the digits of a number
//! packet:       Ethernet 14 | IPv4 20 | UDP 8 | mark "weir" 4 | flow 4 | sequence 8 | zeros up to size_bytes
//! ```
//!
//! Packets take the flows in turn. By flow and sequence number a sink knows loss, duplicates and reordering ([`super::sequence`]).
//!
//! Owner: the generator. Source: netmap `apps/pkt-gen/pkt-gen.c` (`-s`, `-d`, `-S`, `-D`, `-l`); RFC 791, RFC 768.
//! Limits: IPv4 alone. The UDP checksum is left out (0, as RFC 768 allows over IPv4).

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use smoltcp::wire::{EthernetAddress, Ipv4Packet};
use weir_core::steer::key::Key;
use weir_core::steer::parse::HashKind;
use weir_core::steer::rss::Rss;

/// The least length of a packet, in bytes: that of a shortest Ethernet frame without its check sequence, which has room for the sequence
/// number.
pub const SIZE_BYTES_MIN: u16 = 60;

/// The most flows, so that a typing error does not ask for all memory.
pub const FLOWS_MAX: u32 = 1 << 20;

/// The port where none is given, as in `pkt-gen`.
const PORT_DEFAULT: u16 = 1234;

/// The place of the mark in a packet, in bytes.
pub(super) const MARK_AT: usize = 14 + 20 + 8;
/// The mark.
pub(super) const MARK: [u8; 4] = *b"weir";
/// The place where the sequence number ends, in bytes.
pub(super) const SEQUENCE_END: usize = MARK_AT + 16;

/// A range of addresses and one of ports, both with their ends: `198.18.0.1:2000-198.18.0.9:2999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// First and last address.
    pub addresses: (Ipv4Addr, Ipv4Addr),
    /// First and last port.
    pub ports: (u16, u16),
}

/// The packets that a generator makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Length of a packet, without Ethernet's check sequence.
    pub size_bytes: u16,
    /// The ranges that packets come from.
    pub src: Endpoints,
    /// The ranges that packets go to.
    pub dst: Endpoints,
    /// Ethernet source.
    pub src_mac: EthernetAddress,
    /// Ethernet destination.
    pub dst_mac: EthernetAddress,
    /// The number of flows between the ranges that are used.
    pub flows: u32,
    /// The first of them, so that several generators can share the ranges.
    pub first_flow: u32,
}

/// The reason why there can be no such traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficError {
    /// Packets cannot have this length, in bytes.
    Size(u16),
    /// The flows, with those before the first, are not from 1 to [`FLOWS_MAX`].
    Flows(u32),
    /// The flows are more than the ranges have.
    TooFew {
        /// The flows that were asked for.
        flows: u32,
        /// The flows that there are.
        there_are: u64,
    },
}

impl fmt::Display for TrafficError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrafficError::Size(bytes) => {
                write!(f, "packets of {bytes} bytes: give {SIZE_BYTES_MIN} to {SIZE_BYTES_MAX}")
            }
            TrafficError::Flows(flows) => write!(f, "{flows} flows: give 1 to {FLOWS_MAX}"),
            TrafficError::TooFew { flows, there_are } => write!(
                f,
                "{flows} flows, but these addresses and ports make {there_are}: widen a range, or ask for fewer"
            ),
        }
    }
}

impl std::error::Error for TrafficError {}

/// The most bytes of a packet: an Ethernet MTU of 1500.
pub const SIZE_BYTES_MAX: u16 = 1514;

impl Traffic {
    /// The number of flows that the ranges make, at most `u64::MAX`.
    pub fn combinations(&self) -> u64 {
        self.src.len().saturating_mul(self.dst.len())
    }

    /// Checks the traffic.
    ///
    /// # Errors
    /// If there can be no such traffic.
    pub fn check(&self) -> Result<(), TrafficError> {
        if !(SIZE_BYTES_MIN..=SIZE_BYTES_MAX).contains(&self.size_bytes) {
            return Err(TrafficError::Size(self.size_bytes));
        }
        if self.flows == 0 || self.first_flow.checked_add(self.flows).is_none_or(|end| end > FLOWS_MAX) {
            return Err(TrafficError::Flows(self.flows));
        }
        let flows = self.first_flow + self.flows;
        if u64::from(flows) > self.combinations() {
            return Err(TrafficError::TooFew { flows, there_are: self.combinations() });
        }
        Ok(())
    }
}

impl Endpoints {
    /// The number of pairs of address and port.
    fn len(&self) -> u64 {
        self.addresses_len() * (u64::from(self.ports.1 - self.ports.0) + 1)
    }

    fn addresses_len(&self) -> u64 {
        u64::from(u32::from(self.addresses.1) - u32::from(self.addresses.0)) + 1
    }

    /// The pair with this number, the addresses running fastest.
    fn nth(&self, n: u64) -> (Ipv4Addr, u16) {
        let (address, port) = (n % self.addresses_len(), n / self.addresses_len());
        ((u32::from(self.addresses.0) + address as u32).into(), self.ports.0 + port as u16)
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoints, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let [first, last] = [first, last].map(|end| -> Result<(Ipv4Addr, Option<u16>), String> {
            let (address, port) = match end.split_once(':') {
                Some((address, port)) => (address, Some(port)),
                None => (end, None),
            };
            let address = address.parse().map_err(|_| {
                format!("`{address}` is no IPv4 address such as 198.18.0.1 (IPv6 is not generated)")
            })?;
            let port =
                port.map(|port| port.parse().map_err(|_| format!("`{port}` is no port from 0 to 65535")));
            Ok((address, port.transpose()?))
        });
        let (first, last) = (first?, last?);
        let first_port = first.1.unwrap_or(PORT_DEFAULT);
        let ports = (first_port, last.1.unwrap_or(first_port));
        if last.0 < first.0 || ports.1 < ports.0 {
            return Err(format!("`{text}` runs backwards: give ADDRESS:PORT-ADDRESS:PORT from low to high"));
        }
        Ok(Endpoints { addresses: (first.0, last.0), ports })
    }
}

const LINE_BYTES: usize = 64;

/// The first line of a packet, without its sequence number: all behind it is zero.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Head([u8; LINE_BYTES]);

const _: () = assert!(SEQUENCE_END <= SIZE_BYTES_MIN as usize && SIZE_BYTES_MIN as usize <= LINE_BYTES);

/// The state of a flow that is not in its packets' head.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The sequence number of its next packet. The number is apart from the head, which is copied by loads that would wait for the number's
    /// store.
    next: u64,
    hash: u32,
}

/// The flows of a generator, ready to be written.
#[derive(Debug)]
pub struct Flows {
    heads: Box<[Head]>,
    flows: Box<[Flow]>,
    turn: usize,
    size_bytes: u16,
}

impl Flows {
    /// Prepares `traffic`.
    ///
    /// # Errors
    /// If there can be no such traffic.
    pub fn new(traffic: &Traffic) -> Result<Flows, TrafficError> {
        Flows::hashed(traffic, &Key::MICROSOFT)
    }

    /// Prepares `traffic`, with hashes under this key.
    ///
    /// # Errors
    /// If there can be no such traffic.
    pub fn hashed(traffic: &Traffic, key: &Key) -> Result<Flows, TrafficError> {
        traffic.check()?;
        let Traffic { size_bytes, first_flow, .. } = *traffic;
        let mut frame = vec![0; usize::from(size_bytes).max(LINE_BYTES)];
        frame[..6].copy_from_slice(&traffic.dst_mac.0);
        frame[6..12].copy_from_slice(&traffic.src_mac.0);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let total = (size_bytes - 14).to_be_bytes();
        frame[14..26].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0]);
        frame[38..40].copy_from_slice(&(size_bytes - 34).to_be_bytes());
        frame[MARK_AT..MARK_AT + 4].copy_from_slice(&MARK);
        let rss = Rss::new(key, HashKind::FourTuple, 0, 1).expect("one bucket for one worker");
        let flow = |number: u32| {
            let (dst, dst_port) = traffic.dst.nth(u64::from(number) % traffic.dst.len());
            let (src, src_port) = traffic.src.nth(u64::from(number) / traffic.dst.len());
            frame[26..34].copy_from_slice(&[src.octets(), dst.octets()].concat());
            frame[34..38].copy_from_slice(&[src_port.to_be_bytes(), dst_port.to_be_bytes()].concat());
            frame[MARK_AT + 4..MARK_AT + 8].copy_from_slice(&number.to_be_bytes());
            Ipv4Packet::new_unchecked(&mut frame[14..34]).fill_checksum();
            let head = Head(*frame.first_chunk().expect("a line at least"));
            (head, Flow { next: 0, hash: rss.hash(&frame[..usize::from(size_bytes)]) })
        };
        let (heads, flows): (Vec<_>, Vec<_>) = (first_flow..first_flow + traffic.flows).map(flow).unzip();
        Ok(Flows { heads: heads.into(), flows: flows.into(), turn: 0, size_bytes })
    }

    /// The flows dealt to so many queues by their hash, as a device deals the packets that it receives. A queue may have none.
    pub fn deal(self, queues: usize) -> Vec<Flows> {
        let of_queue = |queue: usize| {
            let here = self.heads.iter().zip(&self.flows);
            let here = here.filter(|(_, flow)| flow.hash as usize % queues == queue);
            let (heads, flows): (Vec<_>, Vec<_>) = here.map(|(head, flow)| (*head, *flow)).unzip();
            Flows { heads: heads.into(), flows: flows.into(), turn: 0, size_bytes: self.size_bytes }
        };
        (0..queues).map(of_queue).collect()
    }

    /// The number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Length of every packet.
    pub fn size_bytes(&self) -> u16 {
        self.size_bytes
    }

    /// The packets that come next. Flows whose packets are taken have had their turn once this is dropped.
    #[inline]
    pub fn turns(&mut self) -> Turns<'_> {
        let Flows { heads, flows, turn, size_bytes } = self;
        let rest_bytes = usize::from(*size_bytes).next_multiple_of(LINE_BYTES) - LINE_BYTES;
        Turns { heads, flows, next: *turn, turn, rest_bytes }
    }

    /// Writes the next packet as [`Turns::write_next`] does.
    pub fn write_next(&mut self, frame: &mut [u8]) -> u32 {
        self.turns().write_next(frame)
    }
}

/// Flows that take turns. What each packet asks for is kept here, so that it is not read again for each.
#[derive(Debug)]
pub struct Turns<'a> {
    heads: &'a [Head],
    flows: &'a mut [Flow],
    next: usize,
    turn: &'a mut usize,
    /// The bytes of a packet behind its first line, rounded up to whole lines.
    rest_bytes: usize,
}

impl Turns<'_> {
    /// Writes the next packet at the front of `frame`, and zeros to the end of its last cache line; returns its flow's hash.
    ///
    /// # Panics
    /// If the frame is shorter than a packet rounded up to whole cache lines.
    #[inline]
    pub fn write_next(&mut self, frame: &mut [u8]) -> u32 {
        let (head, rest) = frame.split_first_chunk_mut::<LINE_BYTES>().expect("a line");
        let flow = &mut self.flows[self.next];
        *head = self.heads[self.next].0;
        head[MARK_AT + 8..SEQUENCE_END].copy_from_slice(&flow.next.to_be_bytes());
        flow.next += 1;
        // One line is no reason for a call, which the two would share if they excluded each other.
        if self.rest_bytes > 0 {
            let (line, rest) = rest.split_first_chunk_mut::<LINE_BYTES>().expect("a line more");
            *line = [0; LINE_BYTES];
            if self.rest_bytes > LINE_BYTES {
                rest[..self.rest_bytes - LINE_BYTES].fill(0);
            }
        }
        self.next += 1;
        if self.next == self.heads.len() {
            self.next = 0;
        }
        flow.hash
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        *self.turn = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{EthernetFrame, IpAddress, UdpPacket};

    fn traffic(src: &str, dst: &str, flows: u32) -> Traffic {
        Traffic {
            size_bytes: 100,
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            dst_mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
            flows,
            first_flow: 0,
        }
    }

    #[test]
    fn packets_are_right_by_another_parser_and_flows_take_turns() {
        let traffic = Traffic { first_flow: 3, ..traffic("198.18.0.1", "198.19.0.0:49-198.19.0.2:51", 5) };
        let mut flows = Flows::new(&traffic).unwrap();
        let mut seen = Vec::new();
        for turn in 0..10u64 {
            let mut bytes = [0xee; 128];
            flows.write_next(&mut bytes);
            let frame = EthernetFrame::new_checked(&bytes[..100]).unwrap();
            assert_eq!((frame.src_addr(), frame.dst_addr()), (traffic.src_mac, traffic.dst_mac));
            let ip = Ipv4Packet::new_checked(frame.payload()).unwrap();
            assert!(ip.verify_checksum());
            assert_eq!(ip.total_len(), 86);
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            assert!(udp.verify_checksum(&IpAddress::Ipv4(ip.src_addr()), &IpAddress::Ipv4(ip.dst_addr())));
            assert_eq!(udp.len(), 66);
            assert_eq!(udp.payload()[..4], MARK);
            assert_eq!(udp.payload()[4..8], (3 + turn as u32 % 5).to_be_bytes());
            assert_eq!(udp.payload()[8..16], (turn / 5).to_be_bytes());
            assert!(udp.payload()[16..].iter().all(|&byte| byte == 0));
            seen.push((ip.dst_addr().octets()[3], udp.dst_port()));
        }
        assert_eq!(seen[..5], [(0, 50), (1, 50), (2, 50), (0, 51), (1, 51)]);
        assert_eq!(seen[..5], seen[5..]);
    }

    #[test]
    fn ranges_as_pkt_gen_takes_them() {
        let ends: Endpoints = "192.168.1.2:50000-192.168.1.250:60000".parse().unwrap();
        assert_eq!(ends.len(), 249 * 10_001);
        assert_eq!("10.0.0.1".parse::<Endpoints>().unwrap().ports, (1234, 1234));
        assert_eq!("10.0.0.1:5-10.0.0.9".parse::<Endpoints>().unwrap().ports, (5, 5));
        for (text, said) in [
            ("10.0.0", "no IPv4 address"),
            ("10.0.0.1:70000", "no port"),
            ("10.0.0.2-10.0.0.1", "backwards"),
            ("10.0.0.1:9-10.0.0.1:8", "backwards"),
            ("", "no IPv4 address"),
        ] {
            let error = text.parse::<Endpoints>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let error = |traffic: Traffic| Flows::new(&traffic).unwrap_err().to_string();
        let plain = || traffic("10.0.0.1", "10.0.0.2", 1);
        assert!(error(Traffic { size_bytes: 59, ..plain() }).contains("give 60 to 1514"));
        assert!(error(Traffic { size_bytes: 1515, ..plain() }).contains("1515"));
        assert!(error(Traffic { flows: 0, ..plain() }).contains("0 flows"));
        assert!(error(Traffic { flows: 2, ..plain() }).contains("make 1"));
        assert!(error(Traffic { first_flow: u32::MAX, ..plain() }).contains("flows"));
        let all: Endpoints = "0.0.0.0:0-255.255.255.255:65535".parse().unwrap();
        let everything = Traffic { src: all, dst: all, ..plain() };
        assert_eq!((everything.combinations(), everything.check()), (u64::MAX, Ok(())));
    }
}
