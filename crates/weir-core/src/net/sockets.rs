//! The sockets that make a router a host: datagrams to its addresses are for them, and its own come from them.
//!
//! ```text
//! datagram to an own address --port--> bound to this address? to any of its family? --> socket, or that of the flow's bucket
//! TCP segment to an own address --> the port of all of them, after those of the sockets
//! ICMP error that quotes a datagram of ours --port it came from--> the socket that an answer to the datagram would have gone to
//! ICMP error that a TCP segment of ours was too long --> the port of all of them
//! ```
//!
//! Rule: a named address beats any address. A port of an address is one socket's, or that of one socket for each bucket of its flows
//! (`bucket = hash & (buckets - 1)`, [`crate::steer::rss`]); a bucket without a socket is a port where nobody listens. A host forwards
//! nothing (RFC 1122 section 3.2.1.3).
//!
//! Owner: the host's worker; bindings change between bursts. Source: RFC 768; RFC 1122 sections 4.1.3.1 (port unreachable), 4.1.3.3 (ICMP
//! errors passed up), 4.1.3.4 and 4.2.2.7 (checksums verified). The owner of the TCP port finds the connection of a segment,
//! and of an error about one (RFC 1191, RFC 8201).
//!
//! Limits: no datagrams to groups or to all stations. Fragments are not put together. Any other ICMP error about a TCP segment is dropped as
//! `no-handler`. A socket of a bucket that sends to a peer whose answers fall into another hears of no error about that.

use std::fmt;
use std::net::IpAddr;

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet, TcpPacket,
};
use weir_simd::toeplitz::Flow;

use super::checksum::ones_sum;
use crate::drops::DropReason;
use crate::steer::key::{BUCKET_BITS_MAX, Key};
use crate::steer::parse::{HashKind, Tuple};
use crate::steer::rss::Rss;

/// The settings that make a router a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// The number of sockets, each behind a port of its own that comes after those of the interfaces.
    pub sockets: u16,
    /// True if there is one more port after these, which all TCP segments go to.
    pub has_tcp: bool,
    /// The most packets that may wait for a socket, its receive buffer included, before their senders are held.
    pub held_packets_max: u64,
    /// The key of the hash by which flows fall into buckets.
    pub key: Key,
    /// The bits of a bucket's number: there are `2^bits` buckets.
    pub bucket_bits: u32,
}

impl HostSettings {
    /// The table by which flows fall into buckets, dealt to `workers` workers.
    ///
    /// # Panics
    /// If there are more bits or workers than there may be.
    pub fn rss(&self, workers: usize) -> Rss {
        Rss::new(&self.key, HashKind::FourTuple, self.bucket_bits, workers).expect("few bits and workers")
    }

    /// The number of ports beside those of its interfaces.
    pub fn ports(&self) -> u16 {
        self.sockets + u16::from(self.has_tcp)
    }

    /// Returns whether there may be so many buckets.
    pub fn is_possible(&self) -> bool {
        self.bucket_bits <= BUCKET_BITS_MAX
    }
}

/// The address and the port of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The address; an unspecified one stands for all of its family.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The one bucket whose flows the socket is for; `None` for all flows.
    pub bucket: Option<usize>,
}

/// The reason why a socket cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindError {
    /// Another socket has the binding.
    InUse(Binding),
    /// There is no such bucket.
    NoBucket {
        /// The bucket asked for.
        bucket: usize,
        /// The number of buckets.
        buckets: usize,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse(binding) => {
                let Binding { address, port, bucket } = binding;
                write!(f, "port {port} of {address} is in use")?;
                bucket.map_or(Ok(()), |bucket| write!(f, " for bucket {bucket}"))
            }
            BindError::NoBucket { bucket, buckets } => {
                write!(f, "there is no bucket {bucket}: there are {buckets}, numbered from 0")
            }
        }
    }
}

impl std::error::Error for BindError {}

/// The sockets that are bound to each port.
#[derive(Clone, Debug)]
pub struct Bindings {
    /// For each port, of each family, the place of the first entry plus one; 0 for none. Two megabits, of which few lines are touched.
    first: [Box<[u16]>; 2],
    entries: Vec<Entry>,
    buckets: usize,
}

/// The sockets of one address, or of any address, at one port.
#[derive(Clone, Debug)]
struct Entry {
    address: IpAddr,
    port: u16,
    /// One socket for all flows, or one for each bucket.
    sockets: Box<[Option<u16>]>,
    /// The next entry of the port and the family, as `first`.
    next: u16,
}

/// The socket that a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'b> {
    /// This socket.
    Socket(u16),
    /// One of these sockets, by the flow's bucket.
    Bucket(&'b [Option<u16>]),
}

const PORTS: usize = 1 << 16;

impl Bindings {
    /// The bindings of a host with `buckets` buckets; no socket is bound.
    pub fn new(buckets: usize) -> Bindings {
        let none = || vec![0; PORTS].into_boxed_slice();
        Bindings { first: [none(), none()], entries: Vec::new(), buckets }
    }

    /// Checks that a socket can be bound so.
    ///
    /// # Errors
    /// If another socket is, or there is no such bucket.
    pub fn check(&self, binding: Binding) -> Result<(), BindError> {
        if let Some(bucket) = binding.bucket.filter(|&bucket| bucket >= self.buckets) {
            return Err(BindError::NoBucket { bucket, buckets: self.buckets });
        }
        // As in a kernel, a socket bound to any address has each of them.
        let is_any = |address: IpAddr| address.is_unspecified();
        let mut others = self.of_port(binding.address, binding.port);
        let is_taken = others.any(|entry| {
            let meets = entry.address == binding.address || is_any(entry.address) || is_any(binding.address);
            let is_bound = |bucket: usize| entry.sockets[bucket].is_some();
            meets
                && match (binding.bucket, entry.sockets.len() == self.buckets && self.buckets > 1) {
                    (Some(bucket), true) => is_bound(bucket),
                    _ => entry.sockets.iter().any(Option::is_some),
                }
        });
        if is_taken { Err(BindError::InUse(binding)) } else { Ok(()) }
    }

    /// Binds a socket.
    ///
    /// # Errors
    /// Those of [`Bindings::check`]; nothing has changed then.
    pub fn bind(&mut self, binding: Binding, socket: u16) -> Result<(), BindError> {
        self.check(binding)?;
        let width = if binding.bucket.is_some() { self.buckets } else { 1 };
        let fits = |entry: &Entry| entry.address == binding.address && entry.sockets.len() == width;
        let at = self.entries.iter().position(|entry| entry.port == binding.port && fits(entry));
        let at = at.unwrap_or_else(|| {
            let (address, port) = (binding.address, binding.port);
            self.entries.push(Entry { address, port, sockets: vec![None; width].into(), next: 0 });
            self.entries.len() - 1
        });
        self.entries[at].sockets[binding.bucket.unwrap_or(0)] = Some(socket);
        self.link();
        Ok(())
    }

    /// Returns whether a socket is bound.
    pub fn is_bound(&self, socket: u16) -> bool {
        self.entries.iter().any(|entry| entry.sockets.contains(&Some(socket)))
    }

    /// Unbinds a socket.
    pub fn unbind(&mut self, socket: u16) {
        for entry in &mut self.entries {
            entry.sockets.iter_mut().filter(|bound| **bound == Some(socket)).for_each(|bound| *bound = None);
        }
        self.entries.retain(|entry| entry.sockets.iter().any(Option::is_some));
        self.link();
    }

    /// Links the entries anew: named addresses come before any address.
    fn link(&mut self) {
        self.first.iter_mut().for_each(|first| first.fill(0));
        self.entries.sort_by_key(|entry| !entry.address.is_unspecified());
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let first = &mut self.first[usize::from(entry.address.is_ipv6())][usize::from(entry.port)];
            entry.next = std::mem::replace(first, at as u16 + 1);
        }
    }

    /// The entries of a port in the family of an address.
    #[inline(always)]
    fn of_port(&self, address: IpAddr, port: u16) -> impl Iterator<Item = &Entry> {
        let mut next = self.first[usize::from(address.is_ipv6())][usize::from(port)];
        std::iter::from_fn(move || {
            let entry = self.entries.get(usize::from(next).checked_sub(1)?)?;
            next = entry.next;
            Some(entry)
        })
    }

    /// The socket for a datagram to this address and port.
    #[inline(always)]
    pub(super) fn find(&self, address: IpAddr, port: u16) -> Option<Found<'_>> {
        // A loop is inlined where `find` is not.
        for entry in self.of_port(address, port) {
            let is_meant = match (entry.address, address) {
                (IpAddr::V4(own), IpAddr::V4(asked)) => own == asked || own.is_unspecified(),
                (IpAddr::V6(own), IpAddr::V6(asked)) => own == asked || own.is_unspecified(),
                _ => false,
            };
            if is_meant {
                return Some(match &entry.sockets[..] {
                    [Some(socket)] => Found::Socket(*socket),
                    sockets => Found::Bucket(sockets),
                });
            }
        }
        None
    }
}

/// The sockets of a host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) bindings: Bindings,
    /// The port of all TCP segments, numbered as sockets are.
    tcp: Option<u16>,
    pub(super) rss: RssOfHost,
}

/// The table by which flows fall into buckets, in a type that can be printed.
pub(super) struct RssOfHost(Rss);

impl fmt::Debug for RssOfHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buckets", self.0.buckets())
    }
}

/// The destination of a packet to an own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToHost {
    /// A socket, with the hash of the packet's flow, 0 if it was not asked for.
    Socket(u16, u32),
    /// A port where no socket listens.
    NoPort,
    /// No socket: the packet is neither a datagram, nor a segment for the TCP port, nor an error about one.
    Other,
    /// None: the packet is dropped.
    Drop(DropReason),
}

impl Host {
    pub(super) fn new(settings: &HostSettings) -> Host {
        let rss = settings.rss(1);
        let tcp = settings.has_tcp.then_some(settings.sockets);
        Host { bindings: Bindings::new(rss.buckets()), tcp, rss: RssOfHost(rss) }
    }

    /// Returns whether a port, numbered as sockets are, is that of all TCP segments.
    pub(super) fn is_tcp(&self, number: usize) -> bool {
        self.tcp.is_some_and(|tcp| usize::from(tcp) == number)
    }

    /// The destination of a packet that came to an own address of this host. Its IP header has been checked.
    #[inline]
    pub(super) fn receive(&self, frame: &[u8]) -> ToHost {
        let Some(ip) = frame.get(ETHERNET_LEN..) else { return ToHost::Other };
        match ip.first().map(|first| first >> 4) {
            Some(4) => self.receive_v4(frame, ip),
            Some(6) => self.receive_v6(frame, ip),
            _ => ToHost::Other,
        }
    }

    #[inline]
    fn receive_v4(&self, frame: &[u8], ip: &[u8]) -> ToHost {
        let packet = Ipv4Packet::new_unchecked(ip);
        if packet.more_frags() || packet.frag_offset() != 0 {
            return ToHost::Other;
        }
        match packet.next_header() {
            IpProtocol::Udp => {
                let addresses = &ip[12..20];
                self.datagram(frame, packet.payload(), packet.dst_addr().into(), addresses)
            }
            IpProtocol::Tcp => self.segment(packet.payload(), &ip[12..20]),
            IpProtocol::Icmp => match Icmpv4Packet::new_checked(packet.payload()) {
                Ok(icmp) if icmp.msg_type() == Icmpv4Message::DstUnreachable => {
                    if !icmp.verify_checksum() {
                        return ToHost::Drop(DropReason::BadChecksum);
                    }
                    let code = Icmpv4DstUnreachable::from(icmp.msg_code());
                    self.error(quoted_v4(icmp.data()), code == Icmpv4DstUnreachable::FragRequired)
                }
                _ => ToHost::Other,
            },
            _ => ToHost::Other,
        }
    }

    fn receive_v6(&self, frame: &[u8], ip: &[u8]) -> ToHost {
        let packet = Ipv6Packet::new_unchecked(ip);
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        match packet.next_header() {
            IpProtocol::Udp if !destination.is_multicast() => {
                self.datagram(frame, packet.payload(), destination.into(), &ip[8..40])
            }
            IpProtocol::Tcp if !destination.is_multicast() => self.segment(packet.payload(), &ip[8..40]),
            IpProtocol::Icmpv6 => match Icmpv6Packet::new_checked(packet.payload()) {
                Ok(icmp)
                    if matches!(
                        icmp.msg_type(),
                        Icmpv6Message::DstUnreachable | Icmpv6Message::PktTooBig
                    ) =>
                {
                    if !icmp.verify_checksum(&source, &destination) {
                        return ToHost::Drop(DropReason::BadChecksum);
                    }
                    self.error(quoted_v6(icmp.payload()), icmp.msg_type() == Icmpv6Message::PktTooBig)
                }
                _ => ToHost::Other,
            },
            _ => ToHost::Other,
        }
    }

    /// The destination of a datagram between these addresses, as they stand in its IP header. Over IPv4 it may have no checksum.
    // Inlined, so that an IPv4 address is compared as one word: as part of an enum it would be read back from memory wider than it was
    // written.
    #[inline(always)]
    fn datagram(&self, frame: &[u8], datagram: &[u8], destination: IpAddr, addresses: &[u8]) -> ToHost {
        let Some(&[_, _, p0, p1, l0, l1, c0, c1]) = datagram.first_chunk() else {
            return ToHost::Drop(DropReason::Malformed);
        };
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let Some(datagram) = datagram.get(..len).filter(|datagram| datagram.len() >= UDP_LEN) else {
            return ToHost::Drop(DropReason::Malformed);
        };
        let is_right = match [c0, c1] {
            [0, 0] => destination.is_ipv4(),
            _ => transport_sum(UDP, datagram, addresses) == 0xffff,
        };
        if !is_right {
            return ToHost::Drop(DropReason::BadChecksum);
        }
        match self.bindings.find(destination, u16::from_be_bytes([p0, p1])) {
            Some(Found::Socket(socket)) => ToHost::Socket(socket, 0),
            Some(Found::Bucket(sockets)) => {
                let hash = self.rss.0.hash(frame);
                self.of_bucket(sockets, hash).map_or(ToHost::NoPort, |socket| ToHost::Socket(socket, hash))
            }
            None => ToHost::NoPort,
        }
    }

    /// The socket of the bucket that a flow falls into.
    fn of_bucket(&self, sockets: &[Option<u16>], hash: u32) -> Option<u16> {
        *sockets.get(self.rss.0.bucket(hash))?
    }

    /// The destination of a segment between these addresses, as they stand in its IP header.
    fn segment(&self, segment: &[u8], addresses: &[u8]) -> ToHost {
        let Some(tcp) = self.tcp else { return ToHost::Other };
        match TcpPacket::new_checked(segment) {
            Err(_) => ToHost::Drop(DropReason::Malformed),
            Ok(_) if transport_sum(TCP, segment, addresses) != 0xffff => {
                ToHost::Drop(DropReason::BadChecksum)
            }
            Ok(_) => ToHost::Socket(tcp, 0),
        }
    }

    /// The destination of an error about a packet that left from here; `is_too_long` if it says that the packet was.
    fn error(&self, quoted: Option<Quoted>, is_too_long: bool) -> ToHost {
        match quoted {
            Some(Quoted::Datagram { source, port, answer }) => {
                let socket = match self.bindings.find(source, port) {
                    Some(Found::Socket(socket)) => Some(socket),
                    Some(Found::Bucket(sockets)) => self.of_bucket(sockets, self.rss.0.hash_of(&answer)),
                    None => None,
                };
                socket.map_or(ToHost::Other, |socket| ToHost::Socket(socket, 0))
            }
            // The other errors about a segment change nothing (RFC 1122 section 4.2.3.9: soft).
            Some(Quoted::Segment) if is_too_long => {
                self.tcp.map_or(ToHost::Other, |tcp| ToHost::Socket(tcp, 0))
            }
            _ => ToHost::Other,
        }
    }
}

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;

const UDP: u8 = 17;
const TCP: u8 = 6;

/// The one's complement sum of a datagram or a segment and its pseudo header, in the byte order of this machine. It is all ones if the
/// checksum is right.
#[inline]
fn transport_sum(protocol: u8, payload: &[u8], addresses: &[u8]) -> u16 {
    let pseudo = u64::from((payload.len() as u16).to_be()) + u64::from(u16::from(protocol).to_be());
    ones_sum(payload, u64::from(ones_sum(addresses, pseudo)))
}

/// The packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoted {
    /// A datagram, by its source, and the flow of an answer to it.
    Datagram { source: IpAddr, port: u16, answer: Tuple },
    /// A TCP segment.
    Segment,
}

/// The packet that an ICMP error quotes, if it is of a protocol of sockets.
fn quoted_v4(quoted: &[u8]) -> Option<Quoted> {
    let head = quoted.first_chunk::<20>().filter(|head| head[0] >> 4 == 4)?;
    let header_len = usize::from(head[0] & 0x0f) * 4;
    let ports = quoted.get(header_len.max(20)..)?.first_chunk()?;
    let &[.., s0, s1, s2, s3, d0, d1, d2, d3] = head;
    let answer = Flow { addresses: [[d0, d1, d2, d3, s0, s1, s2, s3]], ports: turned(ports) };
    of_protocol(head[9], [s0, s1, s2, s3].into(), ports, Tuple::V4(answer))
}

/// The quoted packet over IPv6, without extension headers.
fn quoted_v6(quoted: &[u8]) -> Option<Quoted> {
    let head = quoted.first_chunk::<40>().filter(|head| head[0] >> 4 == 6)?;
    let ports = quoted[40..].first_chunk()?;
    let source: [u8; 16] = head[8..24].try_into().ok()?;
    let half = |at: usize| std::array::from_fn(|byte| head[at + byte]);
    let answer = Flow { addresses: [24, 32, 8, 16].map(half), ports: turned(ports) };
    of_protocol(head[6], source.into(), ports, Tuple::V6(answer))
}

fn of_protocol(protocol: u8, source: IpAddr, &[p0, p1, ..]: &[u8; 4], answer: Tuple) -> Option<Quoted> {
    match protocol {
        UDP => Some(Quoted::Datagram { source, port: u16::from_be_bytes([p0, p1]), answer }),
        TCP => Some(Quoted::Segment),
        _ => None,
    }
}

/// The ports of an answer.
fn turned(&[s0, s1, d0, d1]: &[u8; 4]) -> [u8; 4] {
    [d0, d1, s0, s1]
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
