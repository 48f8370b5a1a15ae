//! Fragments that come to an ESP stage and are put together, and of what leaves it.
//!
//! | comes in fragments | |
//! |---|---|
//! | outside, ESP for this gateway | is put together and opened as any other |
//! | inside, for an association in transport mode | is put together and sealed whole (RFC 4303 section 3.3.4) |
//! | inside, and the ports would decide, which the first fragment alone has | is put together, and decided on |
//! | IKE of this gateway, either way | goes on in fragments, in the clear, which the first one tells |
//! | anything else | goes on in fragments |
//!
//! A packet that is too long is cut before it is sealed, or its sender is told ([`super::frame::too_long`]). It is cut after it is sealed where
//! neither helps: its fragments would not pass the policies, or in transport mode, and its sender allows cutting; or it is of IPv6, whose
//! senders make no packet shorter than 1,280 bytes. A sender that has cut a packet itself allows that it is cut again. What is opened and longer
//! than the ports inside take is cut too: for its receiver the gateway is the end of the way, where a host would take it whole.
//!
//! Rule: a fragment of a packet to put together, or of UDP that may be ESP or IKE, waits for the others in its frame ([`weir_ipsec::reassembly`]). The
//! whole packet takes the first fragment's frame, and the others end here. Other fragments go on as they are.
//!
//! Owner: the stage. Source: RFC 4301 section 7, RFC 4303 section 3.3.4, RFC 6980. Limits: a packet that is longer than a frame is dropped as
//! `too-long`. A packet of IPv6 that was put together leaves as one if the port takes that, and is lost where a later link does not. Of a packet
//! behind a bridge inside nobody knows the port: it is cut to what each of them takes. Identifications count on from 1, whoever's
//! packets are cut; a sealed packet of IPv4 that a router cuts has the low half of its association's number.

use weir_core::drops::DropReason;
use weir_ipsec::ip::{IpHeaders, number, source_of};
use weir_ipsec::policy::PolicyAction;
use weir_ipsec::reassembly::{Fragment, Gathered, Reassembly, join};
use weir_ring::memory::FrameMemory;

use super::frame::{Bare, LINK_LEN};
use super::{Esp, EspVerdict, INSIDE};
use crate::packet::PathPacket;

impl Esp {
    /// Returns whether a fragment that came in inside waits for the others of its packet, or for the first. All fragments of a packet have the
    /// same answer.
    #[cold]
    pub(super) fn waits_for_others(&self, ip: &[u8], headers: &IpHeaders) -> bool {
        self.needs_whole(ip, headers) || self.may_be_own_ike(ip, headers)
    }

    /// Returns whether a fragment that came in inside has to be put together with the others: only the whole packet can be decided on, or
    /// sealed.
    fn needs_whole(&self, ip: &[u8], headers: &IpHeaders) -> bool {
        match self.outbound.of_fragments(ip, headers) {
            Ok(PolicyAction::Protect(bundle)) => {
                let mut places = self.bundles[bundle.0 as usize].iter();
                places.any(|&place| !self.associations[place].plan.is_tunnel)
            }
            Ok(_) => false,
            Err(reason) => reason == DropReason::EspFragment,
        }
    }

    /// Returns whether a fragment that came in inside may be IKE of this gateway, which would not pass in the clear by its policy. The first
    /// fragment tells, so that IKE may be longer than a frame.
    fn may_be_own_ike(&self, ip: &[u8], headers: &IpHeaders) -> bool {
        headers.next() == number::UDP
            && self.is_own(source_of(ip, headers.family()))
            && self.outbound.of_fragments(ip, headers) != Ok(PolicyAction::Bypass)
    }

    /// Takes a fragment that came in on a side; `out` has what became whole, or goes on in fragments. An error is about the fragment, which is
    /// put behind `out`.
    pub(crate) fn gather(
        &mut self,
        side: u16,
        packet: PathPacket,
        memory: &FrameMemory,
        now_ns: u64,
        out: &mut Vec<PathPacket>,
    ) -> Result<Gathered, DropReason> {
        let ip = &packet.bytes(memory)[LINK_LEN..];
        let fragment = IpHeaders::read_all(ip).and_then(|headers| match side {
            INSIDE if self.may_be_own_ike(ip, &headers) => {
                Fragment::of_own_udp(ip, &headers, self.needs_whole(ip, &headers))
            }
            INSIDE => Fragment::of_any(ip, &headers),
            _ => Fragment::of_esp(ip, &headers, &self.udp_ports),
        });
        match fragment {
            Ok(fragment) => Ok(self.reassembly[usize::from(side)].take(fragment, packet, now_ns, out)),
            Err(reason) => {
                out.push(packet);
                Err(reason)
            }
        }
    }

    /// Puts fragments together, in the first of them; the others are as before.
    pub(crate) fn join_fragments(
        first: &mut PathPacket,
        others: &[PathPacket],
        memory: &FrameMemory,
    ) -> Result<(), DropReason> {
        let mut bare = Bare::of(first, memory);
        join(&mut bare.room, others.iter().map(|other| &other.bytes(memory)[LINK_LEN..]))?;
        bare.link();
        Ok(())
    }

    /// Lets a packet that leaves be cut. Takes DF off a header of IPv4, whose checksum is computed anew for each fragment, and gives one that was
    /// sealed an identification of its own, because packets of several associations have the same ends; returns the identification of its
    /// fragments for one of IPv6.
    pub(crate) fn allow_fragments(&mut self, frame: &mut [u8], is_sealed: bool) -> Option<u32> {
        self.identification = self.identification.wrapping_add(1);
        let ip = &mut frame[LINK_LEN..];
        if ip[0] >> 4 == 6 {
            return Some(self.identification);
        }
        ip[6] &= !0x40;
        if is_sealed {
            ip[4..6].copy_from_slice(&(self.identification as u16).to_be_bytes());
        }
        None
    }

    /// The verdict on a fragment of what is not ESP.
    pub(crate) fn pass_fragment(&self, packet: &PathPacket, memory: &FrameMemory) -> EspVerdict {
        let ip = &packet.bytes(memory)[LINK_LEN..];
        let passed = IpHeaders::read_all(ip).and_then(|headers| self.inbound.inbound(ip, &headers, None));
        passed.map_or_else(EspVerdict::Drop, |()| EspVerdict::Pass(INSIDE))
    }

    /// Gives up the fragments that have waited too long; returns the time of the next.
    pub(crate) fn expire_fragments(&mut self, now_ns: u64) -> Option<u64> {
        self.reassembly.iter_mut().for_each(|fragments| fragments.expire(now_ns));
        self.reassembly.iter().filter_map(Reassembly::due_ns).min()
    }

    /// Takes out a fragment that is refused, and why.
    pub(crate) fn take_refused(&mut self) -> Option<(PathPacket, DropReason)> {
        self.reassembly.iter_mut().find_map(Reassembly::take_refused)
    }
}
