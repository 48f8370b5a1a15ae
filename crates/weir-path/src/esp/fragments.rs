//! Fragments of the ESP that comes to a stage, put together and then opened as any other, and of what leaves it.
//!
//! A packet that is too long is cut before it is sealed, or its sender is told ([`super::frame::too_long`]). It is cut after it is sealed where
//! neither helps: its fragments would not pass the policies, or in transport mode, and its sender allows cutting; or it is of IPv6, whose
//! senders make no packet shorter than 1,280 bytes.
//!
//! Rule: a fragment of ESP for this gateway, or of UDP that may be ESP, waits for the others in its frame ([`weir_ipsec::reassembly`]). The
//! whole packet takes the first fragment's frame, and the others end here. Fragments of what is not ESP go on as they are.
//!
//! Owner: the stage. Limits: a packet that is longer than a frame is dropped as `too-long`.

use weir_core::drops::DropReason;
use weir_ipsec::ip::IpHeaders;
use weir_ipsec::reassembly::{Fragment, Gathered, join};
use weir_ring::memory::FrameMemory;

use super::frame::{LINK_LEN, in_place};
use super::{Esp, EspVerdict, INSIDE};
use crate::packet::PathPacket;

impl Esp {
    /// Takes a fragment; `out` has what became whole, or goes on in fragments. An error is about the fragment, which is put behind `out`.
    pub(crate) fn gather(
        &mut self,
        packet: PathPacket,
        memory: &FrameMemory,
        now_ns: u64,
        out: &mut Vec<PathPacket>,
    ) -> Result<Gathered, DropReason> {
        let ip = &packet.bytes(memory)[LINK_LEN..];
        let fragment =
            IpHeaders::read_all(ip).and_then(|headers| Fragment::read(ip, &headers, &self.udp_ports));
        match fragment {
            Ok(fragment) => Ok(self.reassembly.take(fragment, packet, now_ns, out)),
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
        in_place(first, memory, |room| {
            join(room, others.iter().map(|other| &other.bytes(memory)[LINK_LEN..]))
        })
    }

    /// Lets a packet that is sealed be cut. Takes DF off an outer header of IPv4, whose checksum is computed anew for each fragment; returns the
    /// identification of its fragments for one of IPv6.
    pub(crate) fn allow_fragments(&mut self, frame: &mut [u8]) -> Option<u32> {
        let ip = &mut frame[LINK_LEN..];
        if ip[0] >> 4 == 4 {
            ip[6] &= !0x40;
            return None;
        }
        self.cut = self.cut.wrapping_add(1);
        Some(self.cut)
    }

    /// The verdict on a fragment of what is not ESP.
    pub(crate) fn pass_fragment(&self, packet: &PathPacket, memory: &FrameMemory) -> EspVerdict {
        let ip = &packet.bytes(memory)[LINK_LEN..];
        let passed = IpHeaders::read_all(ip).and_then(|headers| self.inbound.inbound(ip, &headers, None));
        passed.map_or_else(EspVerdict::Drop, |()| EspVerdict::Pass(INSIDE))
    }

    /// Gives up the fragments that have waited too long; returns the time of the next.
    pub(crate) fn expire_fragments(&mut self, now_ns: u64) -> Option<u64> {
        self.reassembly.expire(now_ns);
        self.reassembly.due_ns()
    }

    /// Takes out a fragment that is refused, and why.
    pub(crate) fn take_refused(&mut self) -> Option<(PathPacket, DropReason)> {
        self.reassembly.take_refused()
    }
}
