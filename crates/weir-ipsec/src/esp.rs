//! ESP: a packet sealed and opened in its own memory.
//!
//! ```text
//! tunnel:     outer IP | [UDP] | SPI | sequence | IV | whole packet            | padding, its length, next header | ICV
//! transport:  IP       | [UDP] | SPI | sequence | IV | payload of IP            | padding, its length, next header | ICV
//!                                proven from here ... encrypted from here ............................ to here
//! padding = 1, 2, 3, ... so that the encrypted bytes end at a multiple of 4
//! ```
//!
//! Rule: none of the encrypted bytes, padding and next header included, is read before the ICV is verified.
//!
//! Opening is two steps with the association's between them: [`locate`] reads the fields in the clear, the association is found and its
//! window asked, and `open` verifies. Packets are IP packets, without a link's header.
//!
//! Source: RFC 4303 sections 2 and 3, RFC 3948 section 2 (UDP; over IPv6 with a checksum, RFC 8200 section 8.1).
//!
//! Limits: ESP in fragments is refused, unless it was put together ([`crate::reassembly`]), and so are fragments in transport mode. After a change of addresses in transport mode (NAT) the
//! checksum inside is not corrected (RFC 3948 section 3.1.2); the receiver has to ignore it. No traffic-flow padding is made.

use smoltcp::wire::{IpAddress, Ipv6Packet, UdpPacket};
use weir_core::drops::DropReason;

use crate::algorithm::{Algorithm, Associated, ICV_LEN_MAX, IV_LEN_MAX, Transform, Unproven};
use crate::ip::{self, IPV6_LEN, IpFamily, IpHeaders, number};
use crate::room::Room;
use crate::trailer;
use crate::tunnel::{self, Tunnel};

/// The length of SPI and sequence number.
pub const HEADER_LEN: usize = 8;
/// The length of a UDP header.
pub const UDP_LEN: usize = 8;
/// The most bytes by which a packet grows when it is sealed: an outer header of IPv6, UDP, ESP with its IV, the trailer and the ICV.
pub const ADDED_LEN_MAX: usize =
    IPV6_LEN + UDP_LEN + HEADER_LEN + IV_LEN_MAX + trailer::LEN_MAX + ICV_LEN_MAX;
/// The port of ESP in UDP.
pub const UDP_PORT: u16 = 4500;
/// The port of IKE.
pub const IKE_PORT: u16 = 500;

/// The protected part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspMode {
    /// The payload of its IP header.
    Transport,
    /// The whole packet, inside another.
    Tunnel(Tunnel),
}

/// Ports of ESP in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEncapsulation {
    /// The port it is sent from.
    pub source: u16,
    /// The port it is sent to.
    pub destination: u16,
}

/// The wrapping of an association's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Transport or tunnel.
    pub mode: EspMode,
    /// The ports, if it is in UDP.
    pub udp: Option<UdpEncapsulation>,
}

/// The parts that sealing puts around what it protects: those of an association are always the same. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EspLayout {
    /// The length of a new IP header; 0 in transport mode.
    outer_len: usize,
    /// The length of a UDP header; 0 without UDP.
    udp_len: usize,
    /// The length of the header of ESP, with the IV.
    esp_len: usize,
    /// The length of all of these.
    front_len: usize,
    icv_len: usize,
    /// The protocol that the header of IP names.
    protocol: u8,
}

impl Encapsulation {
    /// The parts around its packets.
    pub(crate) fn layout(&self, algorithm: Algorithm) -> EspLayout {
        let outer_len = match &self.mode {
            EspMode::Tunnel(tunnel) => tunnel.header_len(),
            EspMode::Transport => 0,
        };
        let (udp_len, esp_len) = (self.udp.map_or(0, |_| UDP_LEN), HEADER_LEN + algorithm.iv_len());
        EspLayout {
            outer_len,
            udp_len,
            esp_len,
            front_len: outer_len + udp_len + esp_len,
            icv_len: algorithm.icv_len(),
            protocol: if udp_len == 0 { number::ESP } else { number::UDP },
        }
    }

    /// The longest packet that is at most `mtu` bytes long when it is sealed: its whole length in tunnel mode, and in transport mode too,
    /// whose IP header is `header_len` bytes.
    #[inline]
    pub fn packet_len_max(&self, algorithm: Algorithm, mtu: usize, header_len: usize) -> usize {
        let inside = match self.mode {
            EspMode::Tunnel(_) => 0,
            EspMode::Transport => header_len,
        };
        let EspLayout { front_len, icv_len, .. } = self.layout(algorithm);
        let added = inside + front_len + icv_len;
        let encrypted = mtu.saturating_sub(added) / trailer::ALIGNMENT * trailer::ALIGNMENT;
        match encrypted.checked_sub(trailer::LEN_MIN) {
            Some(payload) => payload + inside,
            None => 0,
        }
    }
}

/// Seals a packet with these headers, all of them, in place with this number. If it fails the packet's bytes are meaningless, and the
/// number is used.
#[inline]
pub fn seal(
    room: &mut Room,
    headers: &IpHeaders,
    transform: &Transform,
    encapsulation: &Encapsulation,
    associated: Associated,
) -> Result<(), DropReason> {
    let layout = encapsulation.layout(transform.algorithm());
    let wrapped = wrap(room, headers, encapsulation, &layout, associated)?;
    wrapped.seal(room.packet_mut(), transform, associated)
}

/// A packet that is wrapped but neither encrypted nor proven yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is still in the clear"]
pub struct Wrapped {
    /// The offset of its SPI.
    esp_at: u16,
    /// True if its UDP wants a checksum, which covers the encrypted bytes.
    sums_udp: bool,
}

/// Puts the headers and the trailer of ESP around a packet, with room for the ICV. If it fails the packet's bytes are meaningless.
#[inline(always)]
pub(crate) fn wrap(
    room: &mut Room,
    headers: &IpHeaders,
    encapsulation: &Encapsulation,
    layout: &EspLayout,
    associated: Associated,
) -> Result<Wrapped, DropReason> {
    // Bytes with which a link filled the packet up may stand behind it.
    room.truncate(headers.packet_len());
    let (before, family) = match &encapsulation.mode {
        EspMode::Tunnel(tunnel) => {
            let inside = tunnel.inside(room.packet(), headers.family());
            put_around(room, layout, 0, headers.family().number(), associated)?;
            tunnel.write(room.packet_mut(), inside, layout.protocol, associated.sequence)?;
            (layout.outer_len, tunnel.family())
        }
        EspMode::Transport => {
            let headers = headers.staying(room.packet())?;
            if headers.is_fragment() {
                return Err(DropReason::EspFragment);
            }
            put_around(room, layout, headers.end(), headers.next(), associated)?;
            let packet = room.packet_mut();
            packet[headers.next_at()] = layout.protocol;
            ip::set_len(packet, headers.family())?;
            (headers.end(), headers.family())
        }
    };
    if let Some(udp) = encapsulation.udp {
        write_udp(&mut room.packet_mut()[before..], udp);
    }
    // The length of a packet fits 16 bits.
    let esp_at = (before + layout.udp_len) as u16;
    Ok(Wrapped { esp_at, sums_udp: layout.udp_len > 0 && family == IpFamily::V6 })
}

/// Grows a packet by all that is added, and writes ESP around what is behind its first `clear` bytes, which stay in the clear.
#[inline(always)]
fn put_around(
    room: &mut Room,
    layout: &EspLayout,
    clear: usize,
    next: u8,
    associated: Associated,
) -> Result<(), DropReason> {
    let payload_len = room.len() - clear;
    let trailer_len = trailer::len(payload_len);
    let EspLayout { outer_len, udp_len, esp_len, front_len: front, icv_len, .. } = *layout;
    let back = trailer_len + icv_len;
    if front + room.len() + back > usize::from(u16::MAX) {
        return Err(DropReason::TooLong);
    }
    room.grow(front, back)?;
    let packet = room.packet_mut();
    if clear > 0 {
        packet.copy_within(front..front + clear, 0);
    }
    let sealed_len = esp_len + payload_len + trailer_len;
    let sealed = &mut packet[outer_len + clear + udp_len..][..sealed_len];
    let (header, payload) = sealed.split_first_chunk_mut::<HEADER_LEN>().ok_or(DropReason::TooLong)?;
    let number = u64::from(associated.spi) << 32 | associated.sequence & u64::from(u32::MAX);
    *header = number.to_be_bytes();
    if esp_len > HEADER_LEN
        && let Some(iv) = payload.first_chunk_mut()
    {
        *iv = associated.sequence.to_be_bytes();
    }
    trailer::write(&mut sealed[esp_len + payload_len..], next);
    Ok(())
}

impl Wrapped {
    /// The offset of its SPI.
    pub fn esp_at(self) -> usize {
        self.esp_at.into()
    }

    /// Encrypts the packet, unchanged since it was wrapped, and proves it.
    #[inline(always)]
    pub fn seal(
        self,
        packet: &mut [u8],
        transform: &Transform,
        associated: Associated,
    ) -> Result<(), DropReason> {
        let (esp_at, esp_len) = (usize::from(self.esp_at), HEADER_LEN + transform.iv_len());
        let esp = packet.get_mut(esp_at..).ok_or(DropReason::EspTruncated)?;
        let sealed_len = esp.len().checked_sub(transform.icv_len()).ok_or(DropReason::EspTruncated)?;
        let (sealed, icv) = esp.split_at_mut(sealed_len);
        transform.seal(associated, sealed, esp_len, icv).map_err(|Unproven| DropReason::EspBadIcv)?;
        if self.sums_udp {
            fill_udp_checksum(packet, esp_at - UDP_LEN);
        }
        Ok(())
    }
}

/// Writes a UDP header whose length is that of the slice; over IPv4 its checksum stays zero.
pub(crate) fn write_udp(udp: &mut [u8], ports: UdpEncapsulation) {
    let len = udp.len() as u16;
    udp[..2].copy_from_slice(&ports.source.to_be_bytes());
    udp[2..4].copy_from_slice(&ports.destination.to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
    udp[6..8].fill(0);
}

pub(crate) fn fill_udp_checksum(packet: &mut [u8], udp_at: usize) {
    let (header, udp) = packet.split_at_mut(udp_at);
    let header = Ipv6Packet::new_unchecked(&header[..IPV6_LEN]);
    let [source, destination] = [header.src_addr(), header.dst_addr()].map(IpAddress::Ipv6);
    UdpPacket::new_unchecked(udp).fill_checksum(&source, &destination);
}

/// The kind of an arriving packet, for an opener of ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The packet is ESP, alone or in UDP.
    Esp(Located),
    /// The packet is one byte in UDP that keeps a translation of addresses alive (RFC 3948 section 2.3).
    Keepalive,
    /// The packet is IKE, with four zeros where an SPI would be.
    Ike,
    /// The packet is anything else.
    Other,
}

/// The place of ESP in a packet, and its fields in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The security parameter index.
    pub spi: u32,
    /// The lower half of the sequence number.
    pub sequence_low: u32,
    headers: IpHeaders,
    esp_at: u32,
    /// The end of ESP; bytes with which a link filled the packet up may stand behind it.
    end: u32,
}

/// Finds ESP in an IP packet with these headers, all of them. Datagrams to `udp_ports` may carry it.
pub fn locate(packet: &[u8], headers: &IpHeaders, udp_ports: &[u16]) -> Result<Arrival, DropReason> {
    match headers.next() {
        number::ESP => Located::behind(packet, headers).map(Arrival::Esp),
        number::UDP => locate_in_udp(packet, *headers, udp_ports),
        _ => Ok(Arrival::Other),
    }
}

fn locate_in_udp(packet: &[u8], headers: IpHeaders, ports: &[u16]) -> Result<Arrival, DropReason> {
    let Some(udp) = packet.get(headers.end()..headers.packet_len()) else {
        return Err(DropReason::Malformed);
    };
    let Some(header) = udp.first_chunk::<UDP_LEN>() else { return Ok(Arrival::Other) };
    if headers.is_fragment() || !ports.contains(&u16::from_be_bytes([header[2], header[3]])) {
        // A fragment does not show which port it is for; the host puts it together.
        return Ok(Arrival::Other);
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let Some(data) = udp.get(UDP_LEN..len) else { return Err(DropReason::Malformed) };
    match data {
        [0xff] => Ok(Arrival::Keepalive),
        [0, 0, 0, 0, ..] => Ok(Arrival::Ike),
        _ => {
            let at = headers.end() + UDP_LEN;
            Located::at(packet, headers, at, at + data.len()).map(Arrival::Esp)
        }
    }
}

/// A packet that is verified and decrypted, but still in its wrapping.
#[derive(Debug)]
#[must_use = "its padding has not been looked at yet"]
pub struct Verified {
    headers: IpHeaders,
    payload_at: u32,
    payload_end: u32,
}

impl Located {
    /// The ESP behind the headers of a packet, all of them, which say that it is there.
    #[inline(always)]
    pub fn behind(packet: &[u8], headers: &IpHeaders) -> Result<Located, DropReason> {
        if headers.is_fragment() {
            return Err(DropReason::EspFragment);
        }
        Located::at(packet, *headers, headers.end(), headers.packet_len())
    }

    #[inline(always)]
    fn at(packet: &[u8], headers: IpHeaders, esp_at: usize, end: usize) -> Result<Located, DropReason> {
        let esp = packet.get(esp_at..end).and_then(<[u8]>::first_chunk::<HEADER_LEN>);
        let &[s0, s1, s2, s3, n0, n1, n2, n3] = esp.ok_or(DropReason::EspTruncated)?;
        Ok(Located {
            spi: u32::from_be_bytes([s0, s1, s2, s3]),
            sequence_low: u32::from_be_bytes([n0, n1, n2, n3]),
            headers,
            // Offsets are no larger than 16 bits and a header say.
            esp_at: esp_at as u32,
            end: end as u32,
        })
    }

    /// Returns whether it is in UDP.
    #[inline]
    pub fn is_in_udp(&self) -> bool {
        self.esp_at() != self.headers.end()
    }

    /// The offset at which ESP begins.
    #[inline]
    pub fn esp_at(&self) -> usize {
        self.esp_at as usize
    }

    /// The offset at which ESP ends; bytes behind it are not the packet's.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The packet after another worker has verified and decrypted it, as [`open_at`] does.
    #[inline(always)]
    pub fn verified(&self, transform: &Transform) -> Result<Verified, DropReason> {
        let payload_at = self.esp_at + (HEADER_LEN + transform.iv_len()) as u32;
        let payload_end = self.end.checked_sub(transform.icv_len() as u32).filter(|&end| end >= payload_at);
        let payload_end = payload_end.ok_or(DropReason::EspTruncated)?;
        Ok(Verified { headers: self.headers, payload_at, payload_end })
    }
}

/// Verifies and decrypts in place the ESP that begins at `esp_at` and ends with the packet. Bytes that are not proven are meaningless.
#[inline(always)]
pub fn open_at(
    packet: &mut [u8],
    esp_at: usize,
    transform: &Transform,
    associated: Associated,
) -> Result<(), DropReason> {
    let payload_at = HEADER_LEN + transform.iv_len();
    let sealed = packet.get_mut(esp_at..).ok_or(DropReason::EspTruncated)?;
    let encrypted = sealed.len().checked_sub(payload_at + transform.icv_len());
    encrypted.filter(|&len| len >= trailer::LEN_MIN).ok_or(DropReason::EspTruncated)?;
    transform.open(associated, sealed, payload_at).map_err(|Unproven| DropReason::EspBadIcv)
}

/// Verifies and decrypts in place. Bytes that are not proven are meaningless.
#[inline(always)]
pub fn verify(
    room: &mut Room,
    located: &Located,
    transform: &Transform,
    associated: Associated,
) -> Result<Verified, DropReason> {
    let verified = located.verified(transform)?;
    let packet = room.packet_mut().get_mut(..located.end()).ok_or(DropReason::EspTruncated)?;
    open_at(packet, located.esp_at(), transform, associated).map(|()| verified)
}

impl Verified {
    /// Takes the wrapping off: leaves the packet before it was sealed, and returns all its headers.
    #[inline(always)]
    pub fn unwrap_packet(self, room: &mut Room, tunnel: bool) -> Result<IpHeaders, DropReason> {
        let Verified { headers, payload_at, payload_end } = self;
        let (payload_at, payload_end) = (payload_at as usize, payload_end as usize);
        let outer_class = ip::traffic_class(room.packet(), headers.family());
        let encrypted = room.packet().get(payload_at..payload_end).ok_or(DropReason::EspTruncated)?;
        let found = trailer::read(encrypted)?;
        if found.next == number::NONE {
            return Err(DropReason::EspDummy);
        }
        room.truncate(payload_at + found.payload_len);
        if tunnel {
            room.cut_front(payload_at);
            let inner = IpHeaders::read_all(room.packet()).map_err(|_| DropReason::EspBadPayload)?;
            if found.next != inner.family().number() {
                return Err(DropReason::EspBadPayload);
            }
            // Bytes behind it hide the packet's length (RFC 4303 section 2.7).
            room.truncate(inner.packet_len());
            tunnel::combine_ecn(room.packet_mut(), inner.family(), outer_class)?;
            Ok(inner)
        } else {
            let moved = payload_at - headers.end();
            room.packet_mut().copy_within(..headers.end(), moved);
            room.cut_front(moved);
            room.packet_mut()[headers.next_at()] = found.next;
            ip::set_len(room.packet_mut(), headers.family())?;
            IpHeaders::read_all(room.packet())
        }
    }
}

#[cfg(test)]
#[path = "esp_tests.rs"]
mod tests;
