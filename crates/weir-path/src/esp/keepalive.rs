//! Keepalives of the associations of an ESP stage that are in UDP.
//!
//! Rule: a keepalive is sent by an association that seals, lives, and has sent no packet for as long as its plan says. The keepalive goes
//! where the last packet went, whose link-layer next hop is remembered; so none goes before the first packet.
//!
//! Owner: the stage. Limits: each association keeps the way alive by itself, so of two to one peer, as while keys change, both send; the
//! next hop is that of the last packet, also if the router inside has another since.

use weir_core::drops::Count;
use weir_core::due::sooner;
use weir_ipsec::esp::UdpEncapsulation;
use weir_ipsec::keepalive::{KeepaliveTimer, write};
use weir_ipsec::lifetime::Age;

use super::Esp;
use super::frame::LINK_LEN;
use super::plan::AssociationPlan;

/// The keepalives of one association.
#[derive(Debug)]
pub(super) struct Keepalive {
    timer: KeepaliveTimer,
    link: [u8; LINK_LEN],
    sent: Count,
}

impl Keepalive {
    /// The keepalives of an association; none if it sends none.
    pub(super) fn new(plan: &AssociationPlan) -> Option<Keepalive> {
        let every_ns = plan.keepalive_ns.filter(|_| !plan.is_inbound && plan.udp_ports.is_some())?;
        Some(Keepalive { timer: KeepaliveTimer::new(every_ns), link: [0; LINK_LEN], sent: Count::default() })
    }

    /// Keepalives that were sent.
    pub(super) fn sent(&self) -> Count {
        self.sent
    }
}

impl Esp {
    /// Notes that an association has sealed a packet, which leaves in this frame.
    pub(super) fn note_sent(&mut self, association: usize, frame: &[u8], now_ns: u64) {
        let Some(keepalive) = &mut self.associations[association].keepalive else { return };
        let is_first = keepalive.timer.due_ns().is_none();
        keepalive.timer.sent(now_ns);
        keepalive.link.copy_from_slice(&frame[..LINK_LEN]);
        // A later packet only puts a keepalive off, so the time of the next look stays.
        if is_first {
            self.keepalive_ns = sooner(self.keepalive_ns, keepalive.timer.due_ns());
        }
    }

    /// The time at which to look whether a keepalive is due.
    pub(crate) fn next_keepalive_ns(&self) -> Option<u64> {
        self.keepalive_ns
    }

    /// Writes a keepalive that is due into the front of `room`; returns its length. If none is due, sets the time of the next look.
    pub(crate) fn write_keepalive(&mut self, room: &mut [u8], now_ns: u64) -> Option<u16> {
        for running in &mut self.associations {
            let lives = running.age(now_ns) != Age::Expired;
            let ([own, peer], udp_ports) = (running.ends(), running.udp_ports());
            let (Some(keepalive), Some([source, destination])) = (&mut running.keepalive, udp_ports) else {
                continue;
            };
            if !lives || keepalive.timer.due_ns().is_none_or(|due_ns| due_ns > now_ns) {
                continue;
            }
            let ports = UdpEncapsulation { source, destination };
            let (link, ip) = room.split_at_mut_checked(LINK_LEN)?;
            let Some(len) = write(ip, own, peer, ports) else {
                // Ends of two families, between which nothing passes.
                keepalive.timer.sent(now_ns);
                continue;
            };
            link.copy_from_slice(&keepalive.link);
            keepalive.timer.sent(now_ns);
            keepalive.sent.add((LINK_LEN + len) as u32);
            return Some((LINK_LEN + len) as u16);
        }
        let living = self.associations.iter().filter(|running| running.age(now_ns) != Age::Expired);
        let due = living.filter_map(|running| running.keepalive.as_ref()?.timer.due_ns());
        self.keepalive_ns = due.min();
        None
    }
}
