//! The MTU of the way to the peer of a connection, as routers on it tell.
//!
//! Rule: whoever can send a packet can send such a message. So it counts only if it quotes a segment of a connection that there is, with a sequence
//! number that was sent and is not acknowledged, and the segment was longer than the MTU told ([`crate::too_long`]); otherwise it is dropped as
//! `no-handler`. It never makes packets longer. What was too long is sent again when the retransmission timer ends, as what is lost otherwise (RFC
//! 1191 section 6.5 allows it).
//!
//! smoltcp cuts a stream by the MTU of the interface that it is shown. So a connection with a narrow way is shown an interface of its own from then on,
//! which differs from the port's in its MTU alone.
//!
//! Owner: the path's worker. Source: RFC 1191; RFC 8201 section 4; RFC 5927 section 7. Limits: each connection learns for itself, by one timer of 1 s
//! or more for each narrower link, and keeps what it learned until it ends, though its way may have become wider. A way that tells nothing is not probed (RFC 4821).

use smoltcp::iface::Interface;
use weir_core::drops::DropReason;
use weir_path::frames::Frames;

use crate::tcp::connection::Flow;
use crate::tcp::port::{TcpPort, interface};
use crate::too_long::TooLong;

/// The protocol number of TCP.
pub(crate) const TCP: u8 = 6;

/// The interface that smoltcp is shown for a connection: the port's, or the connection's own if its way is narrow.
#[derive(Default)]
pub(crate) struct Way(Option<(u16, Box<Interface>)>);

impl Way {
    /// The MTU of the way, if it is less than the port's.
    pub(crate) fn mtu_bytes(&self) -> Option<u16> {
        self.0.as_ref().map(|&(mtu_bytes, _)| mtu_bytes)
    }

    pub(crate) fn interface<'i>(&'i mut self, of_port: &'i mut Interface) -> &'i mut Interface {
        self.0.as_mut().map_or(of_port, |(_, own)| own)
    }
}

impl TcpPort {
    /// Hears an ICMP error; returns the reason if it is dropped.
    #[cold]
    pub(super) fn hear(&mut self, frame: &[u8], frames: &mut Frames) -> Option<DropReason> {
        let learned = TooLong::read(frame).and_then(|told| self.learn(&told, frames));
        if learned.is_none() { Some(DropReason::NoHandler) } else { None }
    }

    /// Learns the MTU of the way of a connection, if the message is to be believed.
    fn learn(&mut self, told: &TooLong<'_>, frames: &mut Frames) -> Option<()> {
        let sequence = u32::from_be_bytes(*told.behind_ports.first_chunk().filter(|_| told.protocol == TCP)?);
        let number = *self.flows.get(&Flow { local: told.from, peer: told.to })?;
        let connection = &mut self.connections[number as usize];
        if !connection.is_under_way(sequence) {
            return None;
        }
        let known_bytes = connection.way.mtu_bytes().unwrap_or(self.settings.mtu_bytes);
        if told.mtu_bytes < known_bytes {
            // Its seed is for first sequence numbers, of which this connection needs no more.
            let own = interface(told.mtu_bytes, 0, frames, self.now);
            connection.way = Way(Some((told.mtu_bytes, Box::new(own))));
        }
        // A short segment that waited to be a full one may be one now.
        self.note_in_burst(number);
        Some(())
    }
}
