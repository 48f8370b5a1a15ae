//! A packet cut into fragments that fit a link.
//!
//! ```text
//! data of a fragment = min(left, 8 floor((MTU - header) / 8))        the last one: all that is left, if header + left <= MTU
//! offset = offset of the packet + data cut before / 8                more-fragments = not the last, or set in the packet
//! ```
//!
//! The first fragment has all options of the packet, the others those whose copied flag is set, filled up with zeros to a whole
//! word. So there are as few fragments as can be, and they come in order (RFC 1812 section 4.2.2.7). A fragment is cut as any
//! other packet: it keeps its offset and its more-fragments flag.
//!
//! Of IPv6 a packet is cut by its source alone, which puts a fragment header of 8 bytes behind those that every fragment has: the fixed one,
//! and all up to a routing header, or else hop-by-hop options (RFC 8200 section 4.5): [`Fragments::of_own_v6`].
//!
//! Ownership: borrows the packet; each fragment is written into memory of the caller's. Source: RFC 791 section 3.2, RFC 8200 section 4.5.
//!
//! Limits: only a header that has been checked ([`super::input`]) is to be passed in. Packets with options that contradict their own
//! lengths, or with data that reaches past 65,535 bytes, are not cut. Nor are packets of IPv6
//! with a fragment header, or with more than 80 bytes of extension headers for every fragment.

use smoltcp::wire::Ipv4Packet;

use super::checksum::IPV4_LEN;
use crate::drops::DropReason;

/// The least MTU of a link of IPv4: the longest header and 8 bytes (RFC 791 section 3.2).
pub const MTU_BYTES_MIN: u16 = 68;

const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;
const V6_FRAGMENT_LEN: usize = 8;
/// The offset of the word with the offset and the more-fragments flag, from the end of a fragment header.
const V6_POSITION_BACK: usize = 6;
/// The numbers of extension headers as next headers.
const V6_HOP_BY_HOP: u8 = 0;
const V6_ROUTING: u8 = 43;
const V6_FRAGMENT: u8 = 44;
const V6_DESTINATION: u8 = 60;
/// The longest header of a fragment; the longest of IPv4 has 60 bytes.
const HEADER_LEN_MAX: usize = 128;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The unit of offsets: fragments begin at multiples of it.
const UNIT: usize = 8;

/// The part of a packet that is still to be cut.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    ethernet: &'a [u8],
    is_v6: bool,
    /// The header of the next fragment.
    header: [u8; HEADER_LEN_MAX],
    header_len: usize,
    /// The header of all fragments but the first.
    later: [u8; HEADER_LEN_MAX],
    later_len: usize,
    left: &'a [u8],
    mtu: usize,
}

impl<'a> Fragments<'a> {
    /// The fragments of the packet in `frame` for a link that takes `mtu_bytes`. [`fit`] says whether it may be cut.
    pub fn new(frame: &'a [u8], mtu_bytes: u16) -> Result<Fragments<'a>, DropReason> {
        let (ethernet, ip) = frame.split_at_checked(ETHERNET_LEN).ok_or(DropReason::Malformed)?;
        let fixed = ip.first_chunk::<IPV4_LEN>().ok_or(DropReason::Malformed)?;
        let header_len = 4 * usize::from(fixed[0] & 0x0f);
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        let (Some(whole), Some(left)) = (ip.get(..header_len), ip.get(header_len..total_len)) else {
            return Err(DropReason::Malformed);
        };
        let offset = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]) & OFFSET);
        if header_len < IPV4_LEN || UNIT * offset + left.len() > usize::from(u16::MAX) {
            return Err(DropReason::Malformed);
        }
        let mtu = usize::from(mtu_bytes);
        if mtu < header_len + UNIT {
            return Err(DropReason::TooLong);
        }
        let mut header = [0; HEADER_LEN_MAX];
        header[..header_len].copy_from_slice(whole);
        let (later, later_len) = later_header(whole)?;
        Ok(Fragments { ethernet, is_v6: false, header, header_len, later, later_len, left, mtu })
    }

    /// The fragments of an IPv6 packet of our own, for a link that takes `mtu_bytes`. The identification is to be another for each packet.
    ///
    /// # Errors
    /// If the packet is none of IPv6, has a fragment header or long ones before it, or the link is none of IPv6.
    pub fn of_own_v6(
        frame: &'a [u8],
        mtu_bytes: u16,
        identification: u32,
    ) -> Result<Fragments<'a>, DropReason> {
        let (ethernet, ip) = frame.split_at_checked(ETHERNET_LEN).ok_or(DropReason::Malformed)?;
        let (fixed, data) = ip.split_first_chunk::<IPV6_LEN>().ok_or(DropReason::Malformed)?;
        let left = data.get(..usize::from(u16::from_be_bytes([fixed[4], fixed[5]])));
        let left = left.ok_or(DropReason::Malformed)?;
        if fixed[0] >> 4 != 6 {
            return Err(DropReason::Malformed);
        }
        let (end, next_at) = headers_of_all(&ip[..IPV6_LEN + left.len()])?;
        let (mtu, header_len) = (usize::from(mtu_bytes), end + V6_FRAGMENT_LEN);
        if mtu < header_len + UNIT || header_len > HEADER_LEN_MAX {
            return Err(DropReason::TooLong);
        }
        let mut header = [0; HEADER_LEN_MAX];
        header[..end].copy_from_slice(&ip[..end]);
        header[next_at] = V6_FRAGMENT;
        header[end] = ip[next_at];
        header[end + 4..header_len].copy_from_slice(&identification.to_be_bytes());
        let (left, later, later_len) = (&left[end - IPV6_LEN..], header, header_len);
        Ok(Fragments { ethernet, is_v6: true, header, header_len, later, later_len, left, mtu })
    }

    /// The number of fragments left.
    pub fn count(&self) -> usize {
        let (first_max, later_max) = (self.mtu - self.header_len, self.mtu - self.later_len);
        if self.left.len() <= first_max {
            return usize::from(!self.left.is_empty());
        }
        let left = self.left.len() - units(first_max);
        2 + left.saturating_sub(later_max).div_ceil(units(later_max))
    }

    /// Writes the next fragment, with the packet's Ethernet header, to the front of `frame`; returns its length, or `None` after the last.
    ///
    /// # Panics
    /// If `frame` is shorter than the fragment, which is no longer than the packet, and than 8 bytes more of IPv6.
    pub fn write_next(&mut self, frame: &mut [u8]) -> Option<u16> {
        if self.left.is_empty() {
            return None;
        }
        let data_max = self.mtu - self.header_len;
        let is_last = self.left.len() <= data_max;
        let (data, left) = self.left.split_at(if is_last { self.left.len() } else { units(data_max) });
        let (link, ip) = frame.split_at_mut(ETHERNET_LEN);
        link.copy_from_slice(self.ethernet);
        let (header, room) = ip.split_at_mut(self.header_len);
        header.copy_from_slice(&self.header[..self.header_len]);
        room[..data.len()].copy_from_slice(data);

        let len = (self.header_len + data.len()) as u16;
        let units = (data.len() / UNIT) as u16;
        let (at, next) = match self.is_v6 {
            false => (6, finish_v4(header, len, is_last, units)),
            true => (self.header_len - V6_POSITION_BACK, finish_v6(header, len, is_last, units)),
        };
        (self.header, self.header_len, self.left) = (self.later, self.later_len, left);
        self.header[at..at + 2].copy_from_slice(&next.to_be_bytes());
        self.later[at..at + 2].copy_from_slice(&next.to_be_bytes());
        Some(ETHERNET_LEN as u16 + len)
    }
}

/// Finishes the header of a fragment of so many units; returns the word with flags and offset of the next.
fn finish_v4(header: &mut [u8], len: u16, is_last: bool, units: u16) -> u16 {
    let position = u16::from_be_bytes([header[6], header[7]]);
    let more = if is_last { 0 } else { MORE_FRAGMENTS };
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[6..8].copy_from_slice(&(position | more).to_be_bytes());
    Ipv4Packet::new_unchecked(header).fill_checksum();
    position & !OFFSET | ((position & OFFSET) + units)
}

/// Finishes the header of a fragment as [`finish_v4`] does.
fn finish_v6(header: &mut [u8], len: u16, is_last: bool, units: u16) -> u16 {
    let at = header.len() - V6_POSITION_BACK;
    let position = u16::from_be_bytes([header[at], header[at + 1]]);
    header[4..6].copy_from_slice(&(len - IPV6_LEN as u16).to_be_bytes());
    header[at..at + 2].copy_from_slice(&(position | u16::from(!is_last)).to_be_bytes());
    // The offset stands in the upper 13 bits.
    position + (units << 3)
}

/// The offset at which the headers of an IPv6 packet end that every fragment has, and that of the number of what follows them.
fn headers_of_all(ip: &[u8]) -> Result<(usize, usize), DropReason> {
    let (mut at, mut next_at) = (IPV6_LEN, 6);
    let mut found = (at, next_at);
    loop {
        let next = ip[next_at];
        match next {
            V6_HOP_BY_HOP if at == IPV6_LEN => {}
            V6_ROUTING | V6_DESTINATION => {}
            V6_FRAGMENT => return Err(DropReason::Malformed),
            _ => return Ok(found),
        }
        let words = *ip.get(at + 1).ok_or(DropReason::Malformed)?;
        (at, next_at) = (at + UNIT * (usize::from(words) + 1), at);
        if at > ip.len() {
            return Err(DropReason::Malformed);
        }
        // Destination options that no routing header follows are for the destination alone.
        if next != V6_DESTINATION {
            found = (at, next_at);
        }
    }
}

/// Returns whether the packet in `frame` goes by a link that takes `mtu_bytes`: whole (false), or cut (true), or the reason why not. No
/// router cuts IPv6.
pub fn fit(frame: &[u8], mtu_bytes: u16) -> Result<bool, DropReason> {
    let ip = frame.get(ETHERNET_LEN..).and_then(|ip| ip.first_chunk::<IPV4_LEN>());
    let ip = ip.ok_or(DropReason::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let is_v6 = ip[0] >> 4 == 6;
    let len_bytes = if is_v6 { IPV6_LEN as u32 + u32::from(word(4)) } else { word(2).into() };
    if len_bytes <= mtu_bytes.into() {
        return Ok(false);
    }
    if is_v6 || word(6) & DONT_FRAGMENT != 0 {
        return Err(DropReason::TooLong);
    }
    Fragments::new(frame, mtu_bytes).map(|_| true)
}

/// The most bytes of `len` that a fragment before others may have.
fn units(len: usize) -> usize {
    len / UNIT * UNIT
}

/// The header of all fragments but the first, with the options that are copied.
fn later_header(whole: &[u8]) -> Result<([u8; HEADER_LEN_MAX], usize), DropReason> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    let (fixed, mut options) = whole.split_at(IPV4_LEN);
    let mut header = [0; HEADER_LEN_MAX];
    header[..IPV4_LEN].copy_from_slice(fixed);
    let mut len = IPV4_LEN;
    while let [kind, rest @ ..] = options {
        match *kind {
            END => break,
            NO_OPERATION => options = rest,
            kind => {
                let option_len = usize::from(*rest.first().ok_or(DropReason::Malformed)?);
                let option = options.get(..option_len).filter(|option| option.len() >= 2);
                let option = option.ok_or(DropReason::Malformed)?;
                if kind & COPIED != 0 {
                    header[len..len + option_len].copy_from_slice(option);
                    len += option_len;
                }
                options = &options[option_len..];
            }
        }
    }
    let len = len.next_multiple_of(4);
    header[0] = 0x40 | (len / 4) as u8;
    Ok((header, len))
}

#[cfg(test)]
#[path = "fragment_tests.rs"]
mod tests;
