//! A router instance ("jail"): its own interfaces, routes and neighbours, shared with nobody.
//!
//! A burst passes three stages: every frame is inspected, all IPv4 destinations are looked up, then each packet is decided. IPv4 packets
//! that are simply forwarded, nearly all, are recognised in the first and the last stage by one condition, all others by the rules one
//! after the other. The rules, in order:
//!
//! | packet | becomes |
//! |---|---|
//! | for another link-layer address | drop `not-for-us` |
//! | ARP, neighbour discovery | taken in; answers and questions go to the outbox |
//! | header cut short or contradictory; wrong IPv4 checksum | drop `malformed`, `bad-checksum` |
//! | source or destination that must not be on a wire or not leave its link; sent to a link-layer group | drop `martian` |
//! | echo request to an own address | its reply, sent as a packet of ours |
//! | anything else to an own address or a group | drop `no-handler`, and an error |
//! | TTL or hop limit at most 1; no route | drop `ttl-expired`, `no-route`, and an error |
//! | longer than the way out: IPv4 without DF | fragments ([`super::fragment`]); drop `no-frame` without frames for all of them |
//! | longer than the way out: any other | drop `too-long`, and an error with the way out's MTU |
//! | next hop's link-layer address unknown | held, at most `waiting_max` for each; later drop `no-neighbour`, and an error |
//! | the same, and too many are being asked for | drop `neighbour-full` |
//! | the rest | TTL one less, checksum followed (RFC 1624), link-layer addresses replaced, out |
//!
//! The caller moves packets as the verdicts say. For each [`Verdict::Hold`] it calls [`Router::hold`], then takes out
//! everything [`Router::release`] has, before it shows the next burst. So packets of one flow leave in the order they
//! came (ARCHITECTURE.md, invariant 2). [`Router::poll`] is called at the time the last one named.
//!
//! With sockets ([`super::sockets`]) it is a host: a packet for one of them leaves by the port of that socket, which comes after the
//! interfaces; a packet that comes in by such a port is one of ours, whose IP header is ready; and nothing is forwarded (drop
//! `not-for-us`).
//!
//! Owner: one worker. Source: RFC 1812 section 5.2 (forwarding), 5.3.4 (link-layer groups), 5.3.7 (martians); RFC 1191 and 8201
//! (the MTU of a path); RFC 8200; RFC 4291 section 2.5 (scopes); RFC 1624.
//!
//! Redirects are off: none is sent, and none is believed, which no router may (RFC 4861 section 8). A packet that leaves by the interface
//! it came in by is forwarded as any other. RFC 1812 section 5.2.7.2 and RFC 4861 section 8.2 say that a router should send them; but a
//! redirect takes a station's packets away from the router, and with that from every limit and rule here, and gives them to anybody who
//! forges one.
//!
//! Limits: IP options and extension headers travel untouched. VLAN tags are not understood (`no-handler`): give each VLAN a
//! bridge. No multicast routing, no router advertisements, no reverse path check. An answer of the router's own that is longer
//! than its way back is cut if it may be, as its request said, and otherwise dropped.

mod control;
mod error_limits;
mod host;
mod inspect;
mod reports;
mod settings;
mod waiting;

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::IpCidr;

use super::BURST_MAX;
use super::checksum::updated;
use super::fragment::fit;
use super::icmp::Fault;
use super::limit::Limiter;
use super::near::Near;
use super::neighbour::{Bounds, NeighbourId, NeighbourState, Neighbours, Resolved};
use super::outbox::Outbox;
use super::route::{NextHop, RouteTable};
use super::sockets::Host;
use super::station::Station;
use crate::drops::DropReason;
use crate::due::sooner;
use crate::packet::{Bytes, Packet};
use error_limits::ErrorLimits;
use inspect::{ETHERNET_LEN, Kind, Sources, V4_HEAD, V6_HEAD, inspect};
use reports::Rounds;
pub use settings::{RouterError, RouterSettings, StaticNeighbour};
pub use waiting::WAITING_SHARE;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet leaves by this interface; its frame is ready.
    Forward(u16),
    /// The packet leaves by this interface in fragments, which the caller makes ([`super::fragment`], [`Router::mtu_bytes`]) and reports
    /// ([`Router::note_fragments`]).
    Fragment(u16),
    /// The packet waits: give it to [`Router::hold`].
    Hold(NeighbourId),
    /// The packet was for the router itself, which has read it.
    Local,
    /// The packet is dropped.
    Drop(DropReason),
}

/// The counters of a router besides forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounts {
    /// ICMP errors made.
    pub errors: u64,
    /// ICMP errors not made because of a limit.
    pub errors_limited: u64,
    /// ICMP errors not made because the way back is not known, or the outbox full.
    pub errors_untold: u64,
    /// Answers and announcements of ARP and neighbour discovery not made because the outbox was full.
    pub answers_untold: u64,
    /// Packets for whose next hop no question was sent, because too many were being asked for, or had been lately.
    pub solicits_limited: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// Packets cut into fragments (`ipFragOKs`).
    pub frag_oks: u64,
    /// Packets longer than the way out that were not cut: they must not be, or there were no frames (`ipFragFails`).
    pub frag_fails: u64,
    /// Fragments made (`ipFragCreates`).
    pub frag_creates: u64,
}

/// A router instance.
#[derive(Debug)]
pub struct Router<P> {
    ports: Box<[Port]>,
    sources: Sources,
    table: RouteTable,
    neighbours: Neighbours<P>,
    outbox: Outbox,
    error_limits: ErrorLimits,
    counts: RouterCounts,
    rounds: Rounds,
    /// The sockets, if it is a host.
    host: Option<Box<Host>>,
    /// For each port of the path the packets from it that wait for neighbours, if this is a host.
    waiting: Vec<u32>,
}

#[derive(Debug)]
struct Port {
    mac: [u8; 6],
    mtu_bytes: u16,
    /// Its addresses, with the link-local one if IPv6 goes by it.
    addresses: Vec<IpCidr>,
    /// The groups in which stations ask for it.
    groups: Box<[Ipv6Addr]>,
}

/// The frames of the outbox: enough for a question or an answer for each packet of a burst.
const OUTBOX_FRAMES: usize = 2 * BURST_MAX;

impl<P: Packet> Router<P> {
    /// Makes a router, in memory taken now.
    pub fn new(settings: RouterSettings, now_ns: u64) -> Result<Router<P>, RouterError> {
        settings.check_mtus()?;
        if let Some(host) = settings.host.filter(|host| !host.is_possible()) {
            return Err(RouterError::Buckets(host.bucket_bits));
        }
        let host = settings.host.as_ref().map(|host| Box::new(Host::new(host)));
        let bounds = Bounds {
            entries_max: settings.neighbours_max,
            incomplete_max: settings.incomplete_max,
            held_max: settings.held_max,
            waiting_max: settings.waiting_max,
            solicits: Limiter::new(settings.solicits_per_second, settings.solicits_burst),
        };
        let errors = Limiter::new(settings.errors_per_second, settings.errors_burst);
        let ports = (0..settings.interfaces.len() as u16).map(|number| Port::new(&settings, number));
        let ports: Box<[Port]> = ports.collect();
        let RouterSettings { interfaces, routes, neighbours, .. } = settings;
        let table = RouteTable::compile(&interfaces, &routes).map_err(RouterError::Route)?;
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        let own_v4 = addresses.filter_map(|cidr| match cidr {
            IpCidr::Ipv4(cidr) => Some(cidr.address().octets()),
            IpCidr::Ipv6(_) => None,
        });
        let near = interfaces.iter().map(|interface| Near::new(&interface.addresses));
        let mut router = Router {
            rounds: Rounds::new(settings.announces, &ports, now_ns),
            ports,
            sources: Sources::new(own_v4.collect(), host.is_some()),
            table,
            neighbours: Neighbours::new(near.collect(), bounds, settings.seed),
            outbox: Outbox::new(OUTBOX_FRAMES),
            error_limits: ErrorLimits::new(interfaces.len(), errors),
            counts: RouterCounts::default(),
            host,
            waiting: Vec::new(),
        };
        for neighbour in neighbours {
            let port = router.ports.get(usize::from(neighbour.interface));
            let own = port.ok_or(RouterError::NoInterface(neighbour))?.mac;
            let station = Station::new(neighbour.interface, neighbour.address);
            if !router.neighbours.add_permanent(station, neighbour.mac.0, own, now_ns) {
                return Err(RouterError::TooManyNeighbours(neighbour));
            }
        }
        Ok(router)
    }

    /// Decides a burst that came in by the interface `ingress`, into the first places of `verdicts`. A packet's `bytes` are
    /// its frame and nothing behind it. If all packets go on by one interface it is returned, so that nobody need compare the verdicts.
    ///
    /// # Panics
    /// If there are more than [`BURST_MAX`] packets, fewer verdicts, or no such interface.
    pub fn process(
        &mut self,
        ingress: u16,
        packets: &mut [P],
        bytes: &impl Bytes<P>,
        now_ns: u64,
        verdicts: &mut [Verdict],
    ) -> Option<u16> {
        assert!(packets.len() <= BURST_MAX, "a burst has at most {BURST_MAX} packets");
        if self.host.is_some() {
            return self.process_host(ingress, packets, bytes, now_ns, verdicts);
        }
        let (mac, verdicts) = (self.ports[usize::from(ingress)].mac, &mut verdicts[..packets.len()]);
        let mut frames: [&mut [u8]; BURST_MAX] = std::array::from_fn(|_| Default::default());
        let mut kinds = [Kind::Arp; BURST_MAX];
        let mut destinations = [[0; 4]; BURST_MAX];
        let looked_at = frames.iter_mut().zip(&mut kinds).zip(&mut destinations);
        for (packet, ((frame, kind), destination)) in packets.iter_mut().zip(looked_at) {
            *frame = bytes.of_mut(packet);
            *kind = inspect(frame, mac, &self.sources, destination);
        }
        let mut values = [0; BURST_MAX];
        self.table.lookup_burst_v4(&destinations[..verdicts.len()], &mut values);
        let (mut only, mut is_only) = (None, true);
        let looked_up = frames.iter_mut().zip(&kinds).zip(destinations.iter().zip(&values));
        for (verdict, ((frame, &kind), (&destination, &value))) in verdicts.iter_mut().zip(looked_up) {
            if kind == Kind::V4
                && let Some(interface) = self.forward_v4(frame, destination, value, now_ns)
            {
                *verdict = Verdict::Forward(interface);
                is_only &= *only.get_or_insert(interface) == interface;
                continue;
            }
            (*verdict, is_only) = (self.decide(ingress, frame, kind, destination, value, now_ns), false);
        }
        if self.neighbours.next_due_ns().is_some() {
            self.poll(now_ns);
        }
        only.filter(|_| is_only)
    }

    /// Puts the announcements and questions that are due into the outbox, and gives up neighbours that do not answer; packets that waited for
    /// them are then released. Returns the time of the next call.
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        self.tell_unasked(now_ns);
        while let Some(request) = self.neighbours.next_request(now_ns) {
            match self.outbox.is_full() {
                true => self.neighbours.note_unasked(request),
                false => self.ask(request),
            }
        }
        sooner(self.neighbours.next_due_ns(), self.rounds.due_ns(now_ns))
    }

    /// The next frame the router made itself, and the interface it leaves by.
    pub fn made(&mut self) -> Option<(u16, &[u8])> {
        self.outbox.pop()
    }

    /// The longest IP packet that goes by an interface.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn mtu_bytes(&self, interface: u16) -> u16 {
        self.ports[usize::from(interface)].mtu_bytes
    }

    /// Sets the longest IP packet that goes by an interface, which is at least the minimum of the families that go by it.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn set_mtu_bytes(&mut self, interface: u16, mtu_bytes: u16) {
        self.ports[usize::from(interface)].mtu_bytes = mtu_bytes;
    }

    /// Notes the fragments made of a packet that was to leave in fragments: none if it was dropped.
    pub fn note_fragments(&mut self, made: usize) {
        self.counts.frag_creates += made as u64;
        *(if made > 0 { &mut self.counts.frag_oks } else { &mut self.counts.frag_fails }) += 1;
    }

    /// Forgets the neighbours that were heard on an interface, where others may be when it is joined again. Neighbours that are just being
    /// asked are not forgotten, and given up soon.
    pub fn forget(&mut self, interface: u16) {
        self.neighbours.forget(interface);
    }

    /// The state of a neighbour, if it has an entry.
    pub fn neighbour(&self, interface: u16, address: IpAddr) -> Option<NeighbourState> {
        self.neighbours.state(Station::new(interface, address))
    }

    /// Known neighbours, and addresses that are being asked for.
    pub fn neighbours_taken(&self) -> [usize; 2] {
        self.neighbours.taken()
    }

    /// The counters of the router besides forwarding.
    pub fn counts(&self) -> RouterCounts {
        let (solicits_limited, answers_untold) = (self.neighbours.solicits_limited(), self.outbox.refused());
        RouterCounts { solicits_limited, answers_untold, ..self.counts }
    }

    /// Forwards an IPv4 packet to which no special rule applies, which is nearly every one; `None` for any other.
    #[inline(always)]
    fn forward_v4(&self, frame: &mut [u8], destination: [u8; 4], value: u32, now_ns: u64) -> Option<u16> {
        let head = frame.first_chunk_mut::<V4_HEAD>().filter(|head| head[22] > 1)?;
        let (interface, front) = self.way_v4(head, destination, value, now_ns)?;
        count_hop_v4(head);
        head[..12].copy_from_slice(front);
        Some(interface)
    }

    /// The interface that an IPv4 packet leaves by, and the link-layer addresses at its front, if it fits there and nothing is to be asked for.
    #[inline(always)]
    fn way_v4(
        &self,
        head: &[u8; V4_HEAD],
        destination: [u8; 4],
        value: u32,
        now_ns: u64,
    ) -> Option<(u16, &[u8; 12])> {
        let (interface, address) = match self.table.hop(value) {
            NextHop::OnLink(interface) => (interface, destination),
            NextHop::Gateway(interface, IpAddr::V4(gateway)) => (interface, gateway.octets()),
            _ => return None,
        };
        let fits = u16::from_be_bytes([head[16], head[17]]) <= self.ports[usize::from(interface)].mtu_bytes;
        let front = self.neighbours.ready_v4(interface, address, now_ns).filter(|_| fits)?;
        Some((interface, front))
    }

    #[inline(never)]
    fn decide(
        &mut self,
        ingress: u16,
        frame: &mut [u8],
        kind: Kind,
        destination: [u8; 4],
        value: u32,
        now_ns: u64,
    ) -> Verdict {
        match kind {
            Kind::V4 | Kind::V4Group => {
                let hop = self.table.hop(value);
                self.decide_v4(ingress, frame, destination, hop, kind == Kind::V4, now_ns)
            }
            Kind::V6 { to_us } => self.decide_v6(ingress, frame, to_us, now_ns),
            Kind::Arp => self.arp(ingress, frame, now_ns),
            Kind::Drop(reason) => Verdict::Drop(reason),
        }
    }

    fn decide_v4(
        &mut self,
        ingress: u16,
        frame: &mut [u8],
        destination: [u8; 4],
        hop: NextHop,
        to_us: bool,
        now_ns: u64,
    ) -> Verdict {
        let (interface, station) = match hop {
            NextHop::OnLink(interface) => (interface, Station::v4(interface, destination)),
            NextHop::Gateway(interface, gateway) => (interface, Station::new(interface, gateway)),
            NextHop::Local if to_us => return self.local_v4(ingress, frame, now_ns),
            NextHop::None if to_us => {
                return self.refuse(frame, Fault::NoRoute, DropReason::NoRoute, ingress, now_ns);
            }
            NextHop::Broadcast | NextHop::Multicast => return Verdict::Drop(DropReason::NoHandler),
            NextHop::Local | NextHop::None | NextHop::Martian => return Verdict::Drop(DropReason::Martian),
        };
        if !to_us {
            return Verdict::Drop(DropReason::Martian);
        }
        let port = &self.ports[usize::from(interface)];
        let (mtu_bytes, own) = (port.mtu_bytes, port.mac);
        let Some(head) = frame.first_chunk::<V4_HEAD>() else {
            return Verdict::Drop(DropReason::Malformed);
        };
        if head[22] <= 1 {
            return self.refuse(frame, Fault::TimeExceeded, DropReason::TtlExpired, ingress, now_ns);
        }
        let cut = match fit(frame, mtu_bytes) {
            Ok(cut) => cut,
            Err(reason) => return self.unfit(frame, reason, mtu_bytes, ingress, now_ns),
        };
        let resolved = self.neighbours.resolve(station, own, now_ns);
        if let Resolved::Drop(reason) = resolved {
            return self.unresolved(frame, reason, ingress, now_ns);
        }
        if let Some(head) = frame.first_chunk_mut() {
            count_hop_v4(head);
        }
        send(frame, interface, resolved, cut)
    }

    fn decide_v6(&mut self, ingress: u16, frame: &mut [u8], to_us: bool, now_ns: u64) -> Verdict {
        let Some(head) = frame.first_chunk::<V6_HEAD>() else {
            return Verdict::Drop(DropReason::Malformed);
        };
        let (source, destination) = inspect::addresses_v6(head);
        let hop_limit = head[21];
        let (interface, station) = match self.table.lookup_v6(destination) {
            // What is for a group on the link and for one station on it is for nobody (RFC 4443 section 2.4 e).
            _ if self.is_ours_v6(ingress, destination) && (to_us || destination.is_multicast()) => {
                return self.local_v6(ingress, frame, now_ns);
            }
            NextHop::OnLink(interface) => (interface, Station::new(interface, destination.into())),
            NextHop::Gateway(interface, gateway) => (interface, Station::new(interface, gateway)),
            NextHop::Local if to_us => return self.local_v6(ingress, frame, now_ns),
            NextHop::None if to_us && !source.is_unicast_link_local() => {
                return self.refuse(frame, Fault::NoRoute, DropReason::NoRoute, ingress, now_ns);
            }
            NextHop::Broadcast | NextHop::Multicast => return Verdict::Drop(DropReason::NoHandler),
            NextHop::Local | NextHop::None | NextHop::Martian => return Verdict::Drop(DropReason::Martian),
        };
        if !to_us || source.is_unspecified() || source.is_unicast_link_local() {
            return Verdict::Drop(DropReason::Martian);
        }
        let port = &self.ports[usize::from(interface)];
        let (mtu_bytes, own) = (port.mtu_bytes, port.mac);
        if hop_limit <= 1 {
            return self.refuse(frame, Fault::TimeExceeded, DropReason::TtlExpired, ingress, now_ns);
        }
        if let Err(reason) = fit(frame, mtu_bytes) {
            return self.unfit(frame, reason, mtu_bytes, ingress, now_ns);
        }
        let resolved = self.neighbours.resolve(station, own, now_ns);
        if let Resolved::Drop(reason) = resolved {
            return self.unresolved(frame, reason, ingress, now_ns);
        }
        frame[ETHERNET_LEN + 7] = hop_limit - 1;
        send(frame, interface, resolved, false)
    }

    #[cold]
    fn unfit(&mut self, frame: &[u8], reason: DropReason, mtu: u16, ingress: u16, now_ns: u64) -> Verdict {
        self.counts.frag_fails += 1;
        match reason {
            DropReason::TooLong => self.refuse(frame, Fault::TooLong(mtu), reason, ingress, now_ns),
            _ => Verdict::Drop(reason),
        }
    }

    #[cold]
    fn unresolved(&mut self, frame: &[u8], reason: DropReason, ingress: u16, now_ns: u64) -> Verdict {
        match reason {
            DropReason::NoNeighbour => self.refuse(frame, Fault::NoNeighbour, reason, ingress, now_ns),
            _ => Verdict::Drop(reason),
        }
    }

    #[cold]
    fn refuse(
        &mut self,
        frame: &[u8],
        fault: Fault,
        reason: DropReason,
        ingress: u16,
        now_ns: u64,
    ) -> Verdict {
        self.complain(frame, fault, Some((ingress, source_mac(frame))), now_ns);
        Verdict::Drop(reason)
    }
}

/// Takes one from the TTL, and updates the checksum. In the word of TTL and protocol only the difference counts.
#[inline]
fn count_hop_v4(head: &mut [u8; V4_HEAD]) {
    let checksum = u16::from_be_bytes([head[24], head[25]]);
    head[22] -= 1;
    [head[24], head[25]] = updated(checksum, 0x0100, 0).to_be_bytes();
}

/// The verdict for a packet whose headers are ready but for the link layer's. A packet that waits is measured again when it goes.
#[inline]
fn send(frame: &mut [u8], interface: u16, resolved: Resolved, cut: bool) -> Verdict {
    match resolved {
        Resolved::Send(front) => {
            if let Some(head) = frame.first_chunk_mut() {
                *head = front;
            }
            leave(interface, cut)
        }
        Resolved::Wait(neighbour) => Verdict::Hold(neighbour),
        Resolved::Drop(reason) => Verdict::Drop(reason),
    }
}

/// The verdict for a packet whose frame is ready.
fn leave(interface: u16, cut: bool) -> Verdict {
    if cut { Verdict::Fragment(interface) } else { Verdict::Forward(interface) }
}

fn source_mac(frame: &[u8]) -> [u8; 6] {
    frame.get(6..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
