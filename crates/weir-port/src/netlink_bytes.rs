//! Netlink's framing, written and read by hand where no message type of a library is at hand: messages, the attributes behind their headers,
//! and fields at a place.
//!
//! ```text
//! message    length (4)  type (2)  flags (2)  sequence (4)  port (4)  body, padded to 4
//! attribute  length (2)  type (2)  value, padded to 4
//! ```
//!
//! Rule: nothing is read beyond the bytes; a message or attribute that is cut off ends the list.
//!
//! Pure. Source: netlink(7), linux/netlink.h.

use std::net::IpAddr;

const MESSAGE_HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Flags of the kernel's in an attribute's type (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const ATTRIBUTE_FLAGS: u16 = 0xc000;

/// The bytes of a message of this kind, with its flags, before any other is written behind it.
pub fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let len = MESSAGE_HEADER_BYTES + body.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(body);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

/// The messages of the bytes received in one call: type, flags and body of each.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = bytes.u32(0)? as usize;
        let message = bytes.get(..len)?;
        let body = message.get(MESSAGE_HEADER_BYTES..)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((message.u16(4)?, message.u16(6)?, body))
    })
}

/// Attributes: type and value of each.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(bytes.u16(0)?);
        let attribute = bytes.get(..len)?;
        let value = attribute.get(ATTRIBUTE_HEADER_BYTES..)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((attribute.u16(2)? & !ATTRIBUTE_FLAGS, value))
    })
}

/// Fields at a place, if they are there.
pub trait Fields {
    /// The bytes there.
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    /// A byte.
    fn u8(&self, at: usize) -> Option<u8> {
        self.array(at).map(|[byte]| byte)
    }

    /// Two bytes, in the order of this machine.
    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    /// Two bytes, the most significant first.
    fn u16_be(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// Four bytes, in the order of this machine.
    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    /// Four bytes with a sign, in the order of this machine.
    fn i32(&self, at: usize) -> Option<i32> {
        self.array(at).map(i32::from_ne_bytes)
    }

    /// Four bytes, the most significant first.
    fn u32_be(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// Eight bytes, in the order of this machine.
    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// `xfrm_address_t`, 16 bytes, of which IPv4 has the first four.
    fn address(&self, at: usize, family: u16) -> Option<IpAddr> {
        const INET: u16 = 2;
        const INET6: u16 = 10;
        match family {
            INET => self.array::<4>(at).map(IpAddr::from),
            INET6 => self.array::<16>(at).map(IpAddr::from),
            _ => None,
        }
    }
}

impl Fields for [u8] {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }
}
