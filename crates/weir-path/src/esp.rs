//! ESP as a stage: packets that come in inside are sealed as policies say and leave outside; those that come in outside are opened and
//! leave inside.
//!
//! ```text
//! inside  --> own IKE, neighbours? --> policy --protect--> association: number, seal --> outside
//!                                           --bypass-->                                  outside
//!         --> fragments of which only the whole packet can be decided on, or sealed: put together first
//! outside --> fragments of ESP to an address of this gateway: put together first
//!         --> ESP to an address of this gateway --> association: window, proof, open --> policy --> inside
//!         --> own IKE, keepalive, neighbours?                                                   --> inside
//!         --> ICMP, a packet of ours was too long --> a shorter path MTU of the associations that go that way
//!         --> anything else                     --> policy: in the clear?                       --> inside
//!             a report of who listens out there that no policy lets in ends here; it is for its link
//! ```
//!
//! | passes as it is, both ways | |
//! |---|---|
//! | ARP | no other frame without IP passes, VLANs included, because no policy can look into it |
//! | neighbour discovery | ICMPv6 133 to 137 with hop limit 255, which never leaves a link (RFC 4861) |
//! | reports of who listens, outward alone | ICMPv6 131, 132, 143 with hop limit 1 to a group of the link, whose bridges read them (RFC 3810) |
//! | IKE | UDP of an own address from or to port 500, or 4500 with four zeros for an SPI, or a keepalive (RFC 3948), also in fragments |
//! | packets from and to the gateway itself, unless a policy says otherwise | the host's |
//!
//! Rule: a packet that no policy names is dropped, and no packet is sealed with a number that is not reserved. A packet without a reserved
//! number waits here in the order in which it came, and no more are polled that could come here ([`Esp::is_waiting`]), or taken from the
//! queue inside if there is one (`esp/deferral.rs`); no packet is lost by a slow disk.
//!
//! Sealed packets are of one flow from here on (`set_sealed` in `egress.rs`), because a replay window is short: whatever packets share the
//! way out, numbers leave in their order. Within an association with packets of several classes they do not.
//!
//! The next hop's link-layer address is that of the packet inside: the router or host inside sends packets for a tunnel by the gateway that
//! leads to its other end.
//!
//! Owner: one worker. Source: RFC 4301 section 5, RFC 4303. Limits: the ports and stages that links join to an ESP without queues are one
//! worker's; after a start the window is full up to the highest number that its mark says, so a packet that was received before is
//! dropped, and one that was late too.

mod change;
pub(crate) mod deferral;
mod errors;
mod fragments;
mod frame;
mod hybrid;
mod keepalive;
pub mod marks;
mod own;
mod path_mtu;
mod peer;
pub mod plan;
pub(crate) mod sealer;
mod sealing;
mod state;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use weir_core::drops::{Count, DropReason};
use weir_core::net::limit::Limiter;
use weir_ipsec::association::Unsealed;
use weir_ipsec::esp::{ADDED_LEN_MAX, Arrival, Located, UDP_PORT, locate};
use weir_ipsec::ip::{IpHeaders, destination_of, number};
use weir_ipsec::policy::{Policies, PolicyAction};
use weir_ipsec::reassembly::Reassembly;
use weir_ring::memory::FrameMemory;

pub use self::deferral::QUEUES;
use self::deferral::{Deferral, side_of};
use self::frame::{Bare, LINK_LEN, Link, comes_in, ip_of, is_neighbourly, is_report, leaves, too_long};
use self::plan::{EspDispatch, EspPlan};
use self::sealer::SealerWork;
use self::sealing::Sealing;
pub use self::sealing::SealingShares;
pub use self::state::RunningAssociation;
pub(crate) use self::verdict::{Decided, EspVerdict};
use crate::dispatch::DispatchCounts;
use crate::egress::set_sealed;
use crate::packet::PathPacket;

/// The port where packets are in the clear.
pub const INSIDE: u16 = 0;
/// The port where they are protected.
pub const OUTSIDE: u16 = 1;

/// The ESP of a stage.
pub struct Esp {
    addresses: Vec<IpAddr>,
    /// The longest IP packet that leaves outside: by the plan, and as the ports there take it.
    mtu_bytes: u16,
    /// The longest IP packet by the plan.
    plan_bytes: u16,
    /// The longest IP packet that the ports inside and outside take, as far as is known.
    way_bytes: [u16; 2],
    associations: Vec<RunningAssociation>,
    /// The inbound associations: the security parameter index of each, and its place in `associations`; sorted.
    by_spi: Vec<(u32, usize)>,
    /// The ports that ESP in UDP comes to.
    udp_ports: Vec<u16>,
    outbound: Policies,
    /// The associations of each policy that protects, by place, in order.
    bundles: Vec<Vec<usize>>,
    inbound: Policies,
    deferral: Deferral,
    sealing: Sealing,
    /// The number of associations that began here, which is the serial number of the last.
    begun: u64,
    /// The time before which no keepalive is due.
    keepalive_ns: Option<u64>,
    waiting: VecDeque<PathPacket>,
    /// The packets that have come to `waiting`.
    kept: u64,
    held: Count,
    /// The fragments that came in inside, and outside.
    reassembly: [Reassembly<PathPacket>; 2],
    /// The identification of the last packet that was cut as it left.
    identification: u32,
    /// The limits on errors, by the port of the path that a packet came in by.
    errors: BTreeMap<u16, Limiter>,
}

impl Esp {
    /// An ESP without associations and policies, which lets only the packets through that pass as they are.
    pub(crate) fn new(plan: &EspPlan) -> Esp {
        Esp {
            addresses: plan.addresses.clone(),
            mtu_bytes: plan.mtu_bytes,
            plan_bytes: plan.mtu_bytes,
            way_bytes: [u16::MAX; 2],
            associations: Vec::new(),
            by_spi: Vec::new(),
            udp_ports: vec![UDP_PORT],
            outbound: Policies::default(),
            bundles: Vec::new(),
            inbound: Policies::default(),
            deferral: Deferral::new(plan.dispatch),
            sealing: Sealing::new(&plan.dispatch),
            begun: 0,
            keepalive_ns: None,
            waiting: VecDeque::new(),
            kept: 0,
            held: Count::default(),
            reassembly: Default::default(),
            identification: 0,
            errors: BTreeMap::new(),
        }
    }

    /// The associations.
    pub fn associations(&self) -> &[RunningAssociation] {
        &self.associations
    }

    /// The dispatch of its packets: at once, or from a queue.
    pub fn dispatch(&self) -> &EspDispatch {
        self.deferral.dispatch()
    }

    /// The counts of the packets that came in inside, or outside.
    pub fn counts(&self, side: u16) -> &DispatchCounts {
        self.deferral.counts(side)
    }

    /// Notes that the egress queue behind a port has refused so many packets.
    pub(crate) fn note_refused(&mut self, port: u16, packets: u64) {
        self.deferral.note_refused(port, packets);
    }

    /// Says for each side whether the stage or port that is joined there is with the same worker.
    pub(crate) fn set_beside(&mut self, is_beside: [bool; 2]) {
        self.deferral.set_beside(is_beside);
    }

    /// Sets the longest IP packet that the way on a side takes.
    pub(crate) fn set_way_bytes(&mut self, side: u16, way_bytes: u16) {
        self.way_bytes[usize::from(side)] = way_bytes;
        self.mtu_bytes = self.plan_bytes.min(self.way_bytes[usize::from(OUTSIDE)]);
    }

    /// Notes that so many packets come by a port; returns the queue that they go to, if they wait first, and how many it takes.
    pub(crate) fn defer(&mut self, port: u16, packets: usize) -> Option<(u16, usize)> {
        let is_stuck = self.is_waiting() || self.sealing.is_full();
        self.deferral.arrive(port, packets, is_stuck)
    }

    /// Returns whether packets wait for a number, so that no more may come.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The number of packets that have waited for a number here, and of those that wait no more.
    pub(crate) fn waited_packets(&self) -> [u64; 2] {
        [self.kept, self.kept - self.waiting.len() as u64]
    }

    /// Returns whether no packets may be taken from the queue that leads back to a port.
    pub(crate) fn holds(&self, port: u16) -> bool {
        port == QUEUES[usize::from(INSIDE)] && self.is_waiting() || self.sealing.is_full()
    }

    /// Packets that wait, packets that are back from a sealer before their turn, and fragments.
    pub fn held(&self) -> Count {
        let mut held = self.held;
        held.merge(self.sealing.held());
        self.reassembly.iter().for_each(|fragments| held.merge(fragments.held()));
        held
    }

    /// Keeps a packet that waits.
    pub(crate) fn keep(&mut self, packet: PathPacket) {
        self.kept += 1;
        self.held.add(packet.len_bytes.into());
        self.waiting.push_back(packet);
    }

    /// Takes out the packet that has waited longest; a caller that cannot send it gives it back by [`Esp::put_back`].
    pub(crate) fn take_waiting(&mut self) -> Option<PathPacket> {
        let packet = self.waiting.pop_front()?;
        self.held.sub(packet.len_bytes.into());
        Some(packet)
    }

    /// Keeps a packet before all others.
    pub(crate) fn put_back(&mut self, packet: PathPacket) {
        self.held.add(packet.len_bytes.into());
        self.waiting.push_front(packet);
    }

    /// Keeps packets before all others that were made of one which was taken out.
    pub(crate) fn put_before(&mut self, made: Vec<PathPacket>) {
        self.kept += (made.len() as u64).saturating_sub(1);
        made.into_iter().rev().for_each(|packet| self.put_back(packet));
    }

    /// Decides on packets that came in by a port, and writes the verdicts. The first packets are decided on, up to one that is cut, whose
    /// fragments get earlier numbers than later packets, or one that is a fragment. A packet is changed only if it passes.
    pub(crate) fn process(
        &mut self,
        port: u16,
        packets: &mut [PathPacket],
        memory: &FrameMemory,
        now_ns: u64,
        verdicts: &mut [EspVerdict],
    ) -> Decided {
        self.sealing.choose();
        let (side, other) = if side_of(port) == INSIDE { (INSIDE, OUTSIDE) } else { (OUTSIDE, INSIDE) };
        let mut decided = Decided::to(other);
        let mut is_waiting = side == INSIDE && self.is_waiting();
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            let before = packet.len_bytes;
            let passed = match side {
                INSIDE => self.protect(packet, memory, now_ns, is_waiting),
                _ => self.receive(packet, memory, now_ns),
            };
            *verdict = passed.unwrap_or_else(EspVerdict::Drop);
            decided.note(before, packet.len_bytes, *verdict);
            match verdict {
                EspVerdict::Wait => is_waiting = true,
                EspVerdict::Cut(_) | EspVerdict::Gather(_) => break,
                _ => {}
            }
        }
        self.sealing.close();
        decided
    }

    /// Decides on a packet that has waited, as [`Esp::process`] does.
    pub(crate) fn process_again(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        now_ns: u64,
    ) -> (EspVerdict, Decided) {
        let before = packet.len_bytes;
        self.sealing.choose();
        let verdict = self.protect(packet, memory, now_ns, false).unwrap_or_else(EspVerdict::Drop);
        self.sealing.close();
        (verdict, Decided::of(before, packet.len_bytes))
    }

    #[inline(never)]
    fn protect(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        now_ns: u64,
        is_behind_waiting: bool,
    ) -> Result<EspVerdict, DropReason> {
        let ip = match ip_of(packet.bytes(memory)) {
            Link::Ip(_) if is_behind_waiting => return Ok(EspVerdict::Wait),
            Link::Ip(ip) => ip,
            Link::Arp => return Ok(EspVerdict::Pass(OUTSIDE)),
            Link::Hidden => return Err(DropReason::PolicyDiscard),
        };
        let headers = IpHeaders::read_all(ip)?;
        if headers.is_fragment() && !packet.is_gathered && self.waits_for_others(ip, &headers) {
            return Ok(EspVerdict::Gather(INSIDE));
        }
        // No neighbour heeds what came in fragments (RFC 6980).
        let is_of_link = is_neighbourly(ip, &headers) || is_report(ip, &headers);
        if is_of_link && !packet.is_gathered || self.is_own_ike(ip, &headers, true) {
            return Ok(self.leaves_clear(packet));
        }
        let bundle = match self.outbound.outbound(ip, &headers)? {
            PolicyAction::Discard => return Err(DropReason::PolicyDiscard),
            PolicyAction::Bypass => return Ok(self.leaves_clear(packet)),
            PolicyAction::Protect(bundle) => bundle,
        };
        let lives = |&&place: &&usize| {
            let association = &self.associations[place];
            !association.is_over(now_ns) && !association.is_exhausted()
        };
        let place = match self.bundles[bundle.0 as usize][..] {
            // Nothing else can be chosen: a number says whether it lives.
            [place] => place,
            ref places => *places.iter().find(lives).or(places.last()).ok_or(DropReason::EspNoAssociation)?,
        };
        let association = &mut self.associations[place];
        let mtu_bytes = association.path_mtu.limit(self.mtu_bytes, now_ns);
        if headers.packet_len() + ADDED_LEN_MAX > mtu_bytes.into() {
            let longest = association.packet_len_max(mtu_bytes, ip, &headers)?;
            if headers.packet_len() > longest {
                let passes_cut = association.plan.is_tunnel && self.outbound.passes_cut(ip, &headers);
                let is_whole_again = packet.is_gathered && !headers.is_fragment();
                if let Some(verdict) = too_long(ip, &headers, longest as u16, passes_cut, is_whole_again) {
                    return Ok(verdict);
                }
            }
        }
        let out = if self.sealing.gives() {
            association.wrap_in(packet, memory, &headers, now_ns).map(|(wrapped, associated)| {
                let (serial, transform) = (association.serial, association.transform());
                self.sealing.give(serial, transform, associated, SealerWork::Seal(wrapped))
            })
        } else {
            let mut bare = Bare::of(packet, memory);
            let sealed = association.seal(&mut bare.room, &headers, now_ns);
            sealed.map(|()| {
                bare.link();
                self.sealing.note_at_home();
                OUTSIDE
            })
        };
        match out {
            Ok(out) => {
                if association.keepalive.is_some() {
                    self.note_sent(place, packet.bytes(memory), now_ns);
                }
                set_sealed(&mut packet.meta, true);
                packet.is_gathered = false;
                Ok(if out == OUTSIDE { leaves(packet, mtu_bytes) } else { EspVerdict::Pass(out) })
            }
            Err(Unsealed::Wait) => Ok(EspVerdict::Wait),
            Err(Unsealed::Drop(reason)) => {
                association.dropped.add(reason, packet.len_bytes.into());
                Err(reason)
            }
        }
    }

    /// The verdict on a packet that leaves outside in the clear; one that its sender had cut may be cut again.
    #[inline]
    fn leaves_clear(&self, packet: &mut PathPacket) -> EspVerdict {
        match std::mem::take(&mut packet.is_gathered) {
            true => leaves(packet, self.mtu_bytes),
            false => EspVerdict::Pass(OUTSIDE),
        }
    }

    #[inline(never)]
    fn receive(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        now_ns: u64,
    ) -> Result<EspVerdict, DropReason> {
        let ip = match ip_of(packet.bytes(memory)) {
            Link::Ip(ip) => ip,
            Link::Arp => return Ok(EspVerdict::Pass(INSIDE)),
            Link::Hidden => return Err(DropReason::PolicyDiscard),
        };
        let headers = IpHeaders::read_all(ip)?;
        if matches!(headers.next(), number::ESP | number::UDP)
            && self.is_own(destination_of(ip, headers.family()))
        {
            if headers.is_fragment() {
                return Ok(EspVerdict::Gather(OUTSIDE));
            }
            // ESP without UDP, the usual case, is not found as one kind of `Arrival`, which would be written to memory and read back.
            if headers.next() == number::ESP {
                let located = Located::behind(ip, &headers)?;
                return self.open(packet, memory, (&headers, &located), now_ns);
            }
            match locate(ip, &headers, &self.udp_ports)? {
                Arrival::Esp(located) => {
                    return self.open_in_udp(packet, memory, (&headers, &located), now_ns);
                }
                Arrival::Keepalive => return Ok(EspVerdict::Consume),
                Arrival::Ike => return Ok(EspVerdict::Pass(INSIDE)),
                Arrival::Other => {}
            }
        }
        if is_neighbourly(ip, &headers) || self.is_own_ike(ip, &headers, false) {
            return Ok(EspVerdict::Pass(INSIDE));
        }
        if self.learn_path_mtu(ip, &headers, now_ns) {
            return Ok(EspVerdict::Consume);
        }
        match self.inbound.inbound(ip, &headers, None) {
            Err(_) if is_report(ip, &headers) => Ok(EspVerdict::Consume),
            decided => decided.map(|()| EspVerdict::Pass(INSIDE)),
        }
    }

    /// Opens a packet in UDP. ESP without UDP, the usual case, is opened where it is found.
    #[inline(never)]
    fn open_in_udp(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        found: (&IpHeaders, &Located),
        now_ns: u64,
    ) -> Result<EspVerdict, DropReason> {
        self.open(packet, memory, found, now_ns)
    }

    #[inline(always)]
    fn open(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        (headers, located): (&IpHeaders, &Located),
        now_ns: u64,
    ) -> Result<EspVerdict, DropReason> {
        let place = self.by_spi.binary_search_by_key(&located.spi, |(spi, _)| *spi);
        let (_, place) = self.by_spi[place.map_err(|_| DropReason::EspNoAssociation)?];
        let association = &mut self.associations[place];
        let len_bytes = packet.len_bytes;
        if self.sealing.gives() {
            let ip_len = usize::from(len_bytes) - LINK_LEN;
            // The length of a frame fits into 16 bits.
            let work = SealerWork::Open {
                esp_at: located.esp_at() as u16,
                behind: ip_len.saturating_sub(located.end()) as u16,
            };
            let given = association.admit(located, now_ns).map(|associated| {
                self.sealing.give(association.serial, association.transform(), associated, work)
            });
            if let Err(reason) = given {
                association.dropped.add(reason, len_bytes.into());
            }
            return given.map(EspVerdict::Pass);
        }
        self.sealing.note_at_home();
        let came = association.came_from(|| &packet.bytes(memory)[LINK_LEN..], headers, located);
        let policies = &self.inbound;
        let mut bare = Bare::of(packet, memory);
        let opened = match association.open(&mut bare.room, located, now_ns) {
            Ok(inside) => policies.inbound(bare.room.packet(), &inside, Some(&association.bundles)),
            Err(reason) => Err(reason),
        };
        if opened.is_ok() {
            bare.link();
        }
        match opened {
            Ok(()) => set_sealed(&mut packet.meta, false),
            Err(reason) => association.dropped.add(reason, len_bytes.into()),
        }
        if let Some(came) = came.filter(|_| opened.is_ok()) {
            self.follow(place, came);
        }
        opened.map(|()| comes_in(packet, memory, self.way_bytes[usize::from(INSIDE)]))
    }
}
