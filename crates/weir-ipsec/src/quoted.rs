//! The packet that an ICMP error quotes, which is cut short.
//!
//! ```text
//! ICMP   3, 4, 5, 11, 12 | 7 bytes more | IP | what follows it ...
//! ICMPv6 1 to 127        | 7 bytes more | IP | what follows it ...
//! ```
//!
//! Rule: a field that is read lies within what is quoted.
//!
//! Pure. Source: RFC 792, RFC 4443 section 2.1, RFC 8200 section 4. Limits: a packet of which the headers are not quoted whole counts as
//! none.

use weir_core::drops::DropReason;

use crate::ip::{FRAGMENT_HEADER_LEN, IPV4_LEN, IPV6_LEN, IpFamily, IpHeaders, number};

/// The length of the header of an ICMP error.
pub(crate) const ICMP_LEN: usize = 8;
/// The error messages of ICMP: unreachable, source quench, redirect, time exceeded, parameter problem.
const V4_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// The first message of ICMPv6 that is none.
const V6_NO_ERROR: u8 = 128;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A quoted packet: its first bytes, a whole header among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a> {
    /// The bytes that are quoted of it.
    pub packet: &'a [u8],
    /// Its family.
    pub family: IpFamily,
    /// Its protocol, behind all headers of IP.
    pub protocol: u8,
    /// The bytes that are quoted behind its headers; none of a fragment that is not the first.
    pub behind: Option<&'a [u8]>,
}

impl<'a> Quoted<'a> {
    /// The packet that the ICMP error `packet` quotes, which has these headers, all of them; none if it is no such error, or does not quote
    /// enough. Of an error in fragments the first is asked.
    ///
    /// # Errors
    /// If the rest of the quoted headers is in another fragment.
    #[inline]
    pub(crate) fn of(packet: &'a [u8], headers: &IpHeaders) -> Result<Option<Quoted<'a>>, DropReason> {
        match headers.next() {
            number::ICMP | number::ICMPV6 => Quoted::of_icmp(packet, headers),
            _ => Ok(None),
        }
    }

    #[cold]
    fn of_icmp(packet: &'a [u8], headers: &IpHeaders) -> Result<Option<Quoted<'a>>, DropReason> {
        if headers.fragment_offset(packet) != 0 {
            return Ok(None);
        }
        let message = packet.get(headers.end()..headers.packet_len()).ok_or(DropReason::Malformed)?;
        let is_error = match (headers.family(), headers.next(), message.first()) {
            (IpFamily::V4, number::ICMP, Some(kind)) => V4_ERRORS.contains(kind),
            (IpFamily::V6, number::ICMPV6, Some(&kind)) => kind < V6_NO_ERROR,
            _ => false,
        };
        if !is_error {
            return Ok(None);
        }
        let quoted = message.get(ICMP_LEN..).unwrap_or_default();
        let is_whole = IpFamily::of(quoted) == Ok(headers.family());
        match is_whole.then(|| Quoted::read(quoted, headers.family())).flatten() {
            None if headers.is_fragment() => Err(DropReason::EspFragment),
            quoted => Ok(quoted),
        }
    }

    fn read(packet: &'a [u8], family: IpFamily) -> Option<Quoted<'a>> {
        let (protocol, end, is_later) = match family {
            IpFamily::V4 => {
                let end = 4 * usize::from(packet[0] & 0xf);
                let fragment = u16::from_be_bytes([packet[6], packet[7]]);
                (end >= IPV4_LEN).then_some((packet[9], end, fragment & FRAGMENT_OFFSET != 0))?
            }
            IpFamily::V6 => v6_headers(packet)?,
        };
        let behind = packet.get(end..)?;
        Some(Quoted { packet, family, protocol, behind: (!is_later).then_some(behind) })
    }
}

/// The protocol behind all headers of an IPv6 packet, the offset at which they end, and whether it is a fragment that is not the first.
fn v6_headers(packet: &[u8]) -> Option<(u8, usize, bool)> {
    let (mut next, mut end) = (packet[6], IPV6_LEN);
    loop {
        let is_fragment = match next {
            number::HOP_BY_HOP | number::ROUTING | number::DESTINATION => false,
            number::FRAGMENT => true,
            _ => return Some((next, end, false)),
        };
        let &[after, words, high, low] = packet.get(end..)?.first_chunk::<4>()?;
        if is_fragment && u16::from_be_bytes([high, low]) >> 3 != 0 {
            return Some((after, end + FRAGMENT_HEADER_LEN, true));
        }
        (next, end) =
            (after, end + if is_fragment { FRAGMENT_HEADER_LEN } else { 8 * (usize::from(words) + 1) });
    }
}
