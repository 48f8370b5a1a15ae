//! A peer behind a translator of addresses (NAT), which may give it another address and port at any time.
//!
//! Rule: an inbound association that follows its peer takes the source of a packet for the peer's address and port, if the packet is proven
//! and its number is higher than all before: neither a copy nor a late packet leads back. The associations in UDP that go to the peer send there
//! from then on, and so do those that succeed them. Every inbound association of the peer knows where the peer is, so that a peer that moves
//! and comes back is followed by whichever of them its packets come. In transport mode the address is the packet's own, and only the port
//! follows. A peer is an address and a port of the plan: peers behind one address have different ports there, whatever their packets come from.
//!
//! Owner: the stage. Source: RFC 7296 section 2.23. Limits: who is on the way can send a peer's packet on from elsewhere, and has what is sent to
//! the peer until the next one comes as it was; it is sealed. A gateway that is behind a translator itself is not to follow.
//! A late packet of one association leads back until the next packet of another comes.

use std::net::IpAddr;

use weir_ipsec::esp::{Located, UDP_LEN};
use weir_ipsec::ip::{IpHeaders, address, source_of};

use super::Esp;
use super::state::RunningAssociation;

/// The address and port that a peer's packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub address: IpAddr,
    pub port: u16,
}

impl Peer {
    /// The source of a packet with ESP in UDP, which has these headers; none of other ESP.
    pub(super) fn of(ip: &[u8], headers: &IpHeaders, located: &Located) -> Option<Peer> {
        if !located.is_in_udp() {
            return None;
        }
        let udp = ip.get(located.esp_at().checked_sub(UDP_LEN)?..)?;
        let port = u16::from_be_bytes(*udp.first_chunk()?);
        Some(Peer { address: address(source_of(ip, headers.family()))?, port })
    }
}

impl RunningAssociation {
    /// The source of a packet that is about to be opened, and the highest number before it; none if the association does not follow its
    /// peer.
    #[inline]
    pub(super) fn came_from<'a>(
        &self,
        ip: impl FnOnce() -> &'a [u8],
        headers: &IpHeaders,
        located: &Located,
    ) -> Option<(Peer, u64)> {
        let follows = self.plan.follows_peer;
        follows.then(|| Peer::of(ip(), headers, located)).flatten().map(|peer| (peer, self.highest()))
    }
}

impl Esp {
    /// Follows the peer of an inbound association to where a packet came from that was opened, if its number is the highest.
    pub(super) fn follow(&mut self, place: usize, (peer, highest): (Peer, u64)) {
        let inbound = &mut self.associations[place];
        if inbound.highest() <= highest || inbound.peer == Some(peer) {
            return;
        }
        let planned = inbound.plan.peer_in_udp();
        for running in self.associations.iter_mut().filter(|running| running.plan.peer_in_udp() == planned) {
            if running.plan.follows_peer {
                running.peer = Some(peer);
            }
            running.send_to(peer);
        }
    }
}
