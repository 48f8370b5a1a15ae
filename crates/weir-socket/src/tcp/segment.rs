//! The header of a segment, as far as smoltcp does not tell of it.
//!
//! ```text
//! ports | sequence number | acknowledgement number | data offset, flags | window | ...
//! ```
//!
//! Owner: a value. Source: RFC 9293 section 3.1.

use std::ops::Range;

use crate::datagram::IPV6_LEN;

/// The flags of a segment.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// The header fields of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) sequence: u32,
    /// Meant only with the flag ACK.
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    /// The window as it is written, in units that depend on the connection; 0 is a closed one.
    pub(crate) window: u16,
    /// The length of the data, in bytes.
    pub(crate) data_bytes: u32,
}

/// The place of the flags in a segment.
const FLAGS_AT: usize = 13;

/// The place of the segment in a packet, by the packet's own lengths.
fn bounds(ip: &[u8]) -> Option<Range<usize>> {
    let length = |at: usize| Some(usize::from(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?])));
    Some(match ip.first()? >> 4 {
        4 => usize::from(ip[0] & 0x0f) * 4..length(2)?,
        _ => IPV6_LEN..IPV6_LEN + length(4)?,
    })
}

/// The same packet without the flag FIN. Its checksum is not that of its bytes any more.
pub(crate) fn without_fin(ip: &[u8]) -> Vec<u8> {
    let mut bytes = ip.to_vec();
    if let Some(flags) = bounds(ip).and_then(|bounds| bytes.get_mut(bounds)?.get_mut(FLAGS_AT)) {
        *flags &= !FIN;
    }
    bytes
}

impl Head {
    /// Reads a packet with a segment, from its IP header on; none if it is too short.
    pub(crate) fn read(ip: &[u8]) -> Option<Head> {
        let tcp = ip.get(bounds(ip)?)?;
        let &[_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, offset, flags, w0, w1] = tcp.first_chunk()?;
        let data = tcp.len().checked_sub(usize::from(offset >> 4) * 4)?;
        Some(Head {
            sequence: u32::from_be_bytes([s0, s1, s2, s3]),
            acknowledgement: u32::from_be_bytes([a0, a1, a2, a3]),
            flags,
            window: u16::from_be_bytes([w0, w1]),
            data_bytes: data as u32,
        })
    }

    /// Returns whether one of these flags is set.
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Returns whether a segment asks for a connection: SYN, and neither ACK, RST nor FIN.
    pub(crate) fn asks(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }
}
