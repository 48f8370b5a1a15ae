//! The associations of an ESP stage as they run, and their counters.
//!
//! Owner: the stage.

use std::net::IpAddr;
use std::sync::Arc;

use weir_core::drops::{Count, DropCounts, DropReason};
use weir_ipsec::algorithm::{Associated, Transform};
use weir_ipsec::association::{Inbound, Outbound, Unsealed};
use weir_ipsec::esp::{Located, Wrapped};
use weir_ipsec::ip::IpHeaders;
use weir_ipsec::lifetime::{Age, Usage};
use weir_ipsec::path_mtu::PathMtu;
use weir_ipsec::policy::BundleId;
use weir_ipsec::replay::ReplayWindow;
use weir_ipsec::room::Room;
use weir_ring::memory::FrameMemory;

use super::frame::Bare;
use super::keepalive::Keepalive;
use super::marks::{ReceivedMark, SequenceMark};
use super::peer::Peer;
use super::plan::{AssociationKey, AssociationNumbers, AssociationPlan};
use crate::packet::PathPacket;

/// An association as it runs.
#[derive(Debug)]
pub struct RunningAssociation {
    pub(super) plan: AssociationPlan,
    /// The number by which the association is known, also when others end and begin.
    pub(super) serial: u64,
    state: State,
    pub(super) dropped: DropCounts,
    /// The policies' lists that an inbound association is in.
    pub(super) bundles: Vec<BundleId>,
    /// The keepalives of an outbound association in UDP.
    pub(super) keepalive: Option<Keepalive>,
    /// The MTU of the way that its packets go.
    pub(super) path_mtu: PathMtu,
    /// The address and port of the peer, if they are not those of the plan: of the last packet, or to which packets are sent.
    pub(super) peer: Option<Peer>,
}

#[derive(Debug)]
enum State {
    In(Box<Inbound>, Box<dyn ReceivedMark>),
    Out(Box<Outbound>, Marking),
}

/// The mark of the numbers, and the one that was asked for last.
#[derive(Debug)]
struct Marking {
    mark: Box<dyn SequenceMark>,
    wanted: u64,
}

impl RunningAssociation {
    /// An association that begins.
    ///
    /// # Panics
    /// If the numbers are those of the other direction.
    pub(super) fn new(
        plan: AssociationPlan,
        key: AssociationKey,
        serial: u64,
        now_ns: u64,
    ) -> RunningAssociation {
        let settings = plan.settings(key.transform);
        let state = match key.numbers {
            AssociationNumbers::Received(highest, mark) if plan.is_inbound => {
                let window = ReplayWindow::after(plan.window, highest);
                State::In(Box::new(Inbound::new(settings, window, now_ns)), mark)
            }
            AssociationNumbers::Sent(numbers, mut mark) if !plan.is_inbound => {
                mark.begin();
                let outbound = Outbound::new(settings, numbers, now_ns);
                State::Out(Box::new(outbound), Marking { mark, wanted: 0 })
            }
            _ => panic!("the numbers of {} are those of the other direction", plan.name),
        };
        let keepalive = Keepalive::new(&plan);
        RunningAssociation {
            plan,
            serial,
            state,
            dropped: DropCounts::default(),
            bundles: Vec::new(),
            keepalive,
            path_mtu: PathMtu::default(),
            peer: None,
        }
    }

    /// Goes on by a plan with other limits or another window.
    pub(super) fn go_on_as(&mut self, plan: AssociationPlan) {
        match &mut self.state {
            State::In(inbound, _) => {
                inbound.set_lifetime(plan.lifetime);
                inbound.set_window(plan.window);
            }
            State::Out(outbound, _) => outbound.set_lifetime(plan.lifetime),
        }
        self.plan = plan;
    }

    /// The plan of the association.
    pub fn plan(&self) -> &AssociationPlan {
        &self.plan
    }

    /// The addresses that its packets come from and go to.
    pub fn ends(&self) -> [IpAddr; 2] {
        let [source, destination] = self.plan.ends();
        match self.peer.filter(|_| self.plan.is_tunnel) {
            Some(peer) if self.plan.is_inbound => [peer.address, destination],
            Some(peer) => [source, peer.address],
            None => [source, destination],
        }
    }

    /// The ports of its UDP, from and to.
    pub fn udp_ports(&self) -> Option<[u16; 2]> {
        self.plan.udp_ports.map(|[source, destination]| match self.peer {
            Some(peer) if self.plan.is_inbound => [peer.port, destination],
            Some(peer) => [source, peer.port],
            None => [source, destination],
        })
    }

    /// Sends to a peer that has moved, if the association is outbound and in UDP.
    pub(super) fn send_to(&mut self, peer: Peer) {
        if let State::Out(outbound, _) = &mut self.state
            && self.plan.udp_ports.is_some()
            && self.peer != Some(peer)
            && peer.address.is_ipv4() == self.plan.destination.is_ipv4()
        {
            outbound.set_peer(peer.address, peer.port);
            self.peer = Some(peer);
            // The way there is another.
            self.path_mtu = PathMtu::default();
        }
    }

    /// Packets that the association dropped.
    pub fn dropped(&self) -> &DropCounts {
        &self.dropped
    }

    /// The keepalives that the association sent, which are in no other count of it.
    pub fn keepalives(&self) -> Count {
        self.keepalive.as_ref().map_or_else(Count::default, Keepalive::sent)
    }

    /// The MTU of its way that routers told, in bytes; none where none did in the last ten minutes.
    pub fn path_mtu_bytes(&self, now_ns: u64) -> Option<u16> {
        self.path_mtu.learned_bytes(now_ns)
    }

    /// The packets and bytes that passed.
    pub fn usage(&self) -> Usage {
        match &self.state {
            State::In(inbound, _) => inbound.usage(),
            State::Out(outbound, _) => outbound.usage(),
        }
    }

    /// Notes that the machine slept for so long while the clock stood still.
    pub(super) fn note_asleep(&mut self, slept_ns: u64) {
        match &mut self.state {
            State::In(inbound, _) => inbound.note_asleep(slept_ns),
            State::Out(outbound, _) => outbound.note_asleep(slept_ns),
        }
    }

    /// The age of the association, by its limits.
    pub fn age(&self, now_ns: u64) -> Age {
        match &self.state {
            State::In(inbound, _) => inbound.age(now_ns),
            State::Out(outbound, _) => outbound.age(now_ns),
        }
    }

    /// Returns whether the association may be used no more.
    #[inline]
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        match &self.state {
            State::In(inbound, _) => inbound.is_over(now_ns),
            State::Out(outbound, _) => outbound.is_over(now_ns),
        }
    }

    /// The longest packet with such headers, all of them, that is no longer than `mtu_bytes` when it is sealed.
    #[inline]
    pub(super) fn packet_len_max(
        &self,
        mtu_bytes: u16,
        packet: &[u8],
        headers: &IpHeaders,
    ) -> Result<usize, DropReason> {
        let encapsulation = match &self.state {
            State::In(inbound, _) => inbound.encapsulation(),
            State::Out(outbound, _) => outbound.encapsulation(),
        };
        let header_len = if self.plan.is_tunnel { 0 } else { headers.staying(packet)?.end() };
        Ok(encapsulation.packet_len_max(self.plan.algorithm, mtu_bytes.into(), header_len))
    }

    /// Returns whether all numbers of its key are used, so that no more packets can be sealed by it.
    pub fn is_exhausted(&self) -> bool {
        match &self.state {
            State::In(..) => false,
            State::Out(outbound, _) => outbound.numbers().left() == 0,
        }
    }

    /// The highest number that was sent, or proven.
    pub fn highest(&self) -> u64 {
        match &self.state {
            State::In(inbound, _) => inbound.highest(),
            State::Out(outbound, _) => outbound.numbers().next() - 1,
        }
    }

    #[inline(always)]
    pub(super) fn seal(&mut self, room: &mut Room, headers: &IpHeaders, now_ns: u64) -> Result<(), Unsealed> {
        self.outbound()?.seal(room, headers, now_ns)
    }

    /// Gives the packet in a frame a number and wraps it, so that only sealing is left.
    pub(super) fn wrap_in(
        &mut self,
        packet: &mut PathPacket,
        memory: &FrameMemory,
        headers: &IpHeaders,
        now_ns: u64,
    ) -> Result<(Wrapped, Associated), Unsealed> {
        let mut bare = Bare::of(packet, memory);
        let wrapped = self.outbound()?.wrap(&mut bare.room, headers, now_ns)?;
        bare.link();
        Ok(wrapped)
    }

    /// The outbound association with as many numbers as are safe, if it is one.
    #[inline(always)]
    fn outbound(&mut self) -> Result<&mut Outbound, Unsealed> {
        let State::Out(outbound, marking) = &mut self.state else {
            return Err(Unsealed::Drop(DropReason::EspNoAssociation));
        };
        if let Some(wanted) = outbound.numbers().wanted_mark() {
            if wanted > marking.wanted && marking.safe_or_unasked() {
                marking.wanted = wanted;
                marking.mark.want(wanted);
            }
            outbound.reserve(marking.mark.safe());
        }
        Ok(outbound)
    }

    #[inline(always)]
    pub(super) fn open(
        &mut self,
        room: &mut Room,
        located: &Located,
        now_ns: u64,
    ) -> Result<IpHeaders, DropReason> {
        match &mut self.state {
            State::In(inbound, mark) => {
                let opened = inbound.open(room, located, now_ns);
                mark.received(inbound.highest());
                opened
            }
            State::Out(..) => Err(DropReason::EspNoAssociation),
        }
    }

    /// The associated data that a packet is to prove, if its number may be received now.
    pub(super) fn admit(&self, located: &Located, now_ns: u64) -> Result<Associated, DropReason> {
        match &self.state {
            State::In(inbound, _) => inbound.admit(located, now_ns),
            State::Out(..) => Err(DropReason::EspNoAssociation),
        }
    }

    /// Takes in a packet that has proven this number; returns the headers of the packet inside.
    pub(super) fn accept(
        &mut self,
        room: &mut Room,
        located: &Located,
        sequence: u64,
        now_ns: u64,
    ) -> Result<IpHeaders, DropReason> {
        match &mut self.state {
            // The association may have expired since the packet was given, by time or by the packets that passed.
            State::In(inbound, _) if inbound.is_over(now_ns) => Err(DropReason::EspExpired),
            State::In(inbound, mark) => {
                let verified = located.verified(inbound.transform())?;
                let accepted = inbound.accept(room, verified, sequence);
                mark.received(inbound.highest());
                accepted
            }
            State::Out(..) => Err(DropReason::EspNoAssociation),
        }
    }

    /// The algorithm with its key, for sealers that seal or open elsewhere.
    pub(super) fn transform(&self) -> &Arc<Transform> {
        match &self.state {
            State::In(inbound, _) => inbound.transform(),
            State::Out(outbound, _) => outbound.transform(),
        }
    }
}

impl Drop for RunningAssociation {
    /// Gives back the numbers that were reserved and not used.
    fn drop(&mut self) {
        if let State::Out(outbound, marking) = &mut self.state {
            marking.mark.end(outbound.numbers().next());
        }
    }
}

impl Marking {
    /// Returns whether no mark is under way: one at a time is.
    fn safe_or_unasked(&self) -> bool {
        self.mark.safe() >= self.wanted
    }
}
