//! The MTUs of the ways from a UDP socket to its peers, as routers on them tell.
//!
//! Rule: a datagram that is longer than its way takes is refused with `EMSGSIZE`, as the kernel's sockets do, until the message is ten minutes old
//! (RFC 1191 section 6.3). A message counts if it quotes a datagram from the address and the port of the socket that was longer than the MTU told
//! ([`crate::too_long`]); the host has looked for the socket.
//!
//! Owner: the socket's workers write and its application reads, under a lock that is not touched while nothing is known. Limits: [`WAYS_MAX`] peers;
//! the message that is oldest makes room. Nothing tells whether a datagram was sent, so who knows the port of a socket can forge a message and
//! keep packets from a peer that are longer than the shortest MTU ([`crate::too_long`]). A socket of QUIC searches for itself and asks nobody
//! here. A way that tells nothing is not probed (RFC 4821).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use weir_run::clock::now_ns;

use crate::datagram::payload_max;
use crate::socket::{UdpSocket, os};

/// The most peers whose ways are known.
const WAYS_MAX: usize = 16;
/// The time for which a message is believed.
const KNOWN_NS: u64 = 600_000_000_000;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// True if a message has ever come. Nobody relies on seeing it at once: a datagram that was just on its way is as late.
    is_any: AtomicBool,
    known: Mutex<Vec<Way>>,
}

#[derive(Clone, Copy, Debug)]
struct Way {
    to: IpAddr,
    mtu_bytes: u16,
    until_ns: u64,
}

impl Ways {
    /// Notes that the way to an address takes packets of so many bytes at the most.
    pub(crate) fn note(&self, to: IpAddr, mtu_bytes: u16, now_ns: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.iter().position(|way| way.to == to).map(|at| known.remove(at));
        let before = before.filter(|way| way.until_ns > now_ns).map_or(u16::MAX, |way| way.mtu_bytes);
        if known.len() == WAYS_MAX {
            known.remove(0);
        }
        known.push(Way { to, mtu_bytes: mtu_bytes.min(before), until_ns: now_ns + KNOWN_NS });
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// The most bytes of a packet that the way to an address takes, if a router has told.
    pub(crate) fn mtu_bytes(&self, to: IpAddr, now_ns: impl Fn() -> u64) -> Option<u16> {
        if !self.is_any.load(Ordering::Relaxed) {
            return None;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let way = known.iter().find(|way| way.to == to)?;
        (way.until_ns > now_ns()).then_some(way.mtu_bytes)
    }
}

impl UdpSocket {
    /// The longest payload of a datagram to this address, in bytes: that of [`crate::Stack::datagram_bytes_max`], or less if a router has told that
    /// the way there takes less. A longer one is refused (`EMSGSIZE`).
    pub fn datagram_bytes_max(&self, to: IpAddr) -> usize {
        let way_bytes = self.shared.ways.mtu_bytes(to, now_ns).map(|mtu_bytes| payload_max(to, mtu_bytes));
        self.bound.stack.datagram_bytes_max(to).min(way_bytes.unwrap_or(usize::MAX))
    }

    /// The source address and the length of a packet, as [`UdpSocket::route`], from this source if one is given, which must be an address of the socket.
    pub(crate) fn route_from(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
        payload_bytes: usize,
    ) -> io::Result<(SocketAddr, u16)> {
        let (mut from, len) = self.route(to, payload_bytes)?;
        if let Some(ip) = source {
            if !self.local.ip().is_unspecified() && ip != self.local.ip() || ip.is_unspecified() {
                return Err(os(libc::EADDRNOTAVAIL));
            }
            self.bound.stack.check_own_address(ip)?;
            from.set_ip(ip);
        }
        Ok((from, len))
    }

    /// The source address and the length of a packet, as [`UdpSocket::route_from`], that its way takes.
    ///
    /// # Errors
    /// As [`UdpSocket::route_from`]; `EMSGSIZE` if a router has told that the way takes no such packet.
    pub(crate) fn route_by_way(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
        payload_bytes: usize,
    ) -> io::Result<(SocketAddr, u16)> {
        let routed = self.route_from(source, to, payload_bytes)?;
        match self.shared.ways.mtu_bytes(to.ip(), now_ns) {
            Some(mtu_bytes) if payload_bytes > payload_max(to.ip(), mtu_bytes) => Err(os(libc::EMSGSIZE)),
            _ => Ok(routed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Stack;

    #[test]
    fn a_way_is_known_for_ten_minutes_and_only_becomes_narrower_meanwhile() {
        let (ways, to) = (Ways::default(), IpAddr::from([192, 0, 2, 9]));
        let mtu_bytes = |now_ns| ways.mtu_bytes(to, || now_ns);
        assert_eq!(mtu_bytes(0), None);
        ways.note(to, 1400, 0);
        ways.note(to, 1300, 1);
        ways.note(to, 1350, 2);
        assert_eq!((mtu_bytes(3), mtu_bytes(KNOWN_NS + 1)), (Some(1300), Some(1300)));
        assert_eq!((mtu_bytes(KNOWN_NS + 2), ways.mtu_bytes([192, 0, 2, 8].into(), || 3)), (None, None));
        ways.note(to, 1400, KNOWN_NS + 2);
        assert_eq!(mtu_bytes(KNOWN_NS + 3), Some(1400));
    }

    #[test]
    fn the_oldest_message_makes_room() {
        let ways = Ways::default();
        let to = |host: usize| IpAddr::from([192, 0, 2, host as u8]);
        (0..WAYS_MAX).for_each(|host| ways.note(to(host), 1400, 0));
        ways.note(to(0), 1400, 1);
        ways.note(to(WAYS_MAX), 1400, 1);
        let known = |host| ways.mtu_bytes(to(host), || 2).is_some();
        assert_eq!([0, 1, 2, WAYS_MAX].map(known), [true, false, true, true]);
    }

    #[test]
    fn a_datagram_that_is_longer_than_its_way_takes_is_refused() {
        let (stack, _) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("stacks");
        let socket = UdpSocket::bind(&stack, "192.0.2.1:0").expect("a socket");
        socket.shared.ways.note([192, 0, 2, 2].into(), 600, now_ns());
        let most = |host| socket.datagram_bytes_max([192, 0, 2, host].into());
        assert_eq!([most(2), most(3)], [572, 1472]);
        let mut batch = socket.datagrams(2);
        for (to, len, is_taken) in
            [("192.0.2.2:7", 572, true), ("192.0.2.2:7", 573, false), ("192.0.2.3:7", 573, true)]
        {
            let expected = if is_taken { None } else { Some(libc::EMSGSIZE) };
            let error = |error: io::Error| error.raw_os_error();
            assert_eq!(socket.send_to(&vec![0; len], to).err().and_then(error), expected, "{to} {len}");
            let to = to.parse().expect("an address");
            assert_eq!(batch.push(to, len).err().and_then(error), expected, "{to} {len}");
        }
    }
}
