//! The packet that an ICMP error quotes, which is cut short.
//!
//! ```text
//! ICMP   3, 4, 5, 11, 12 | 7 bytes more | IP | what follows it ...
//! ICMPv6 1 to 127        | 7 bytes more | IP | what follows it ...
//! ```
//!
//! Rule: a field that is read lies within what is quoted.
//!
//! Pure. Source: RFC 792, RFC 4443 section 2.1. Limits: a quoted IPv6 packet with extension headers has the first of these as its protocol.

use crate::ip::{IPV4_LEN, IPV6_LEN, IpFamily, IpHeaders, number};

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
    /// What is quoted of it.
    pub packet: &'a [u8],
    /// Its family.
    pub family: IpFamily,
    /// Its protocol.
    pub protocol: u8,
    /// What is quoted behind its header; none of a fragment that is not the first.
    pub behind: Option<&'a [u8]>,
}

impl<'a> Quoted<'a> {
    /// The packet that the ICMP error `packet` quotes, which has these headers, all of them; none if it is no such error, or a fragment.
    #[inline]
    pub(crate) fn of(packet: &'a [u8], headers: &IpHeaders) -> Option<Quoted<'a>> {
        if !matches!(headers.next(), number::ICMP | number::ICMPV6) || headers.is_fragment() {
            return None;
        }
        let message = packet.get(headers.end()..headers.packet_len())?;
        let is_error = match (headers.family(), headers.next(), *message.first()?) {
            (IpFamily::V4, number::ICMP, kind) => V4_ERRORS.contains(&kind),
            (IpFamily::V6, number::ICMPV6, kind) => kind < V6_NO_ERROR,
            _ => false,
        };
        let quoted = message.get(ICMP_LEN..).filter(|_| is_error)?;
        (IpFamily::of(quoted) == Ok(headers.family())).then(|| Quoted::read(quoted, headers.family()))?
    }

    fn read(packet: &'a [u8], family: IpFamily) -> Option<Quoted<'a>> {
        let (protocol, header_len, is_later) = match family {
            IpFamily::V4 => {
                let fragment = u16::from_be_bytes([packet[6], packet[7]]);
                (packet[9], 4 * usize::from(packet[0] & 0xf), fragment & FRAGMENT_OFFSET != 0)
            }
            IpFamily::V6 => (packet[6], IPV6_LEN, false),
        };
        let behind = packet.get(header_len..).filter(|_| header_len >= IPV4_LEN)?;
        Some(Quoted { packet, family, protocol, behind: (!is_later).then_some(behind) })
    }
}
