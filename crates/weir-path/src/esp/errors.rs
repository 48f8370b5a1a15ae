//! The errors of an ESP stage: the senders inside are told that a packet of theirs would be too long when it is sealed.
//!
//! Rule: each port of the path that packets came in by has a limit of its own, so nobody there keeps the MTU from the senders behind
//! another. Only an error that can be told takes from it.
//!
//! Owner: the stage. Source: RFC 4301 section 8.2, RFC 1812 section 4.3.2.8 (limit). Limits: stations behind one port share its errors.

use weir_core::net::icmp::{self, Fault};
use weir_core::net::limit::Limiter;
use weir_ipsec::ip::{IpFamily, address, destination_of};

use super::Esp;
use super::frame::LINK_LEN;

const ERRORS_PER_SECOND: u32 = 1000;
const ERRORS_BURST: u32 = 50;

impl Esp {
    /// Writes the ICMP message to the sender of a packet that is too long, which came in by the port `origin` of the path, into the front of
    /// `room`; returns its length, or none if the sender is not told. It comes from the packet's destination: a router inside may have the
    /// gateway's address, and drop what another sends from it.
    pub(crate) fn tell_too_long(
        &mut self,
        origin: u16,
        frame: &[u8],
        mtu_bytes: u16,
        room: &mut [u8],
        now_ns: u64,
    ) -> Option<u16> {
        let (link, ip) = frame.split_at_checked(LINK_LEN)?;
        let family = IpFamily::of(ip).ok()?;
        let destination = address(destination_of(ip, family))?;
        let limit =
            self.errors.entry(origin).or_insert_with(|| Limiter::new(ERRORS_PER_SECOND, ERRORS_BURST));
        let mut after = *limit;
        if !after.admit(now_ns) {
            return None;
        }
        let (own_link, error) = room.split_at_mut_checked(LINK_LEN)?;
        let len = icmp::tell_sender(error, Fault::TooLong(mtu_bytes), destination, ip)?;
        *limit = after;
        own_link[..6].copy_from_slice(&link[6..12]);
        own_link[6..12].copy_from_slice(&link[..6]);
        own_link[12..].copy_from_slice(&link[12..]);
        Some((LINK_LEN + len) as u16)
    }
}
