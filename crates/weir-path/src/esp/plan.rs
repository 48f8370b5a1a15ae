//! The plan of an ESP stage: its addresses, its associations without their keys, its policies; and a change of these.
//!
//! Rule: nothing here is secret. A plan is copied, compared, written into files and shown; keys come by an [`EspChange`] alone, once, to
//! the worker that has the stage.

use std::net::IpAddr;

use weir_core::dispatch::protocol::Mode;
use weir_ipsec::algorithm::{Algorithm, Transform};
use weir_ipsec::association::AssociationSettings;
use weir_ipsec::esp::{Encapsulation, EspMode, UdpEncapsulation};
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::policy::Selector;
use weir_ipsec::sequence::SequenceNumbers;
use weir_ipsec::tunnel::{OuterDontFragment, Tunnel};

use super::marks::{ReceivedMark, SequenceMark, Unmarked};

/// The least MTU outside, in bytes: the datagram that every IPv4 host accepts (RFC 791 section 3.1).
pub const MTU_BYTES_MIN: u16 = 576;

/// The plan of an ESP stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspPlan {
    /// The addresses of the gateway outside: ESP to these is opened.
    pub addresses: Vec<IpAddr>,
    /// The longest IP packet that leaves outside, in bytes.
    pub mtu_bytes: u16,
    /// Its associations.
    pub associations: Vec<AssociationPlan>,
    /// Its policies, the first that matches first.
    pub policies: Vec<PolicyPlan>,
    /// The dispatch of its packets: at once, or from a queue.
    pub dispatch: EspDispatch,
}

/// The dispatch of an ESP stage's packets: sealed and opened at once, or from a queue, by the worker that has the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspDispatch {
    /// The mode, as that of netisr's protocols.
    pub mode: Mode,
    /// The most packets that wait inside, and the most that wait outside, before their feeders are held.
    pub queue_packets: u32,
    /// True if packets that come to a full queue are dropped, as in netisr, and no feeder is held: the lab compares with that.
    pub drops_when_full: bool,
    /// The number of sealers that share the work of its associations, if packets wait in a queue; without any the worker of the stage does
    /// it alone.
    pub sealers: u16,
}

impl EspDispatch {
    /// The default of `queue_packets`: netisr's.
    pub const QUEUE_PACKETS_DEFAULT: u32 = 256;
    /// The most sealers.
    pub const SEALERS_MAX: u16 = 16;

    /// The number of sealers that there are: without queues no feeder could be held for them.
    pub fn sealers(&self) -> u16 {
        if self.mode == Mode::Direct { 0 } else { self.sealers }
    }
}

impl Default for EspDispatch {
    fn default() -> EspDispatch {
        EspDispatch {
            mode: Mode::Direct,
            queue_packets: EspDispatch::QUEUE_PACKETS_DEFAULT,
            drops_when_full: false,
            sealers: 0,
        }
    }
}

/// The plan of an association, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationPlan {
    /// Its name.
    pub name: String,
    /// True if packets are opened by the association, and not sealed.
    pub is_inbound: bool,
    /// The security parameter index.
    pub spi: u32,
    /// The address that its packets come from.
    pub source: IpAddr,
    /// The address that its packets go to.
    pub destination: IpAddr,
    /// Tunnel mode, or transport mode.
    pub is_tunnel: bool,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The file that its key is in; none without a key.
    pub key_file: Option<String>,
    /// True if sequence numbers have 64 bits.
    pub is_extended: bool,
    /// The replay window, if the association is inbound.
    pub window: u32,
    /// The ports of its UDP, from and to, if the association is in UDP.
    pub udp_ports: Option<[u16; 2]>,
    /// The time without a packet after which an outbound association in UDP sends a keepalive, in nanoseconds; none where it sends none.
    pub keepalive_ns: Option<u64>,
    /// True if the association is inbound, and its peer's address and port are those of the last packet.
    pub follows_peer: bool,
    /// DF of the outer header.
    pub dont_fragment: OuterDontFragment,
    /// Its limits.
    pub lifetime: Lifetime,
}

/// The verb of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerb {
    /// An association protects the packet.
    Protect,
    /// The packet passes in the clear.
    Bypass,
    /// The packet does not pass.
    Discard,
}

impl PolicyVerb {
    /// All verbs, with their words.
    pub const ALL: [(&str, PolicyVerb); 3] =
        [("protect", PolicyVerb::Protect), ("bypass", PolicyVerb::Bypass), ("discard", PolicyVerb::Discard)];
}

/// The plan of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPlan {
    /// True if the policy is for packets that come in, and not for those that go out.
    pub is_inbound: bool,
    /// The packets that the policy names.
    pub selector: Selector,
    /// The treatment of these packets.
    pub verb: PolicyVerb,
    /// The associations that protect, by name: going out the first that lives, coming in any.
    pub associations: Vec<String>,
}

/// A change of an ESP stage.
#[derive(Debug)]
pub struct EspChange {
    /// The plan.
    pub plan: EspPlan,
    /// For each association of the plan its key; none where one that runs goes on ([`AssociationPlan::goes_on_as`]).
    pub keys: Vec<Option<AssociationKey>>,
}

/// A key ready to be used, and the numbers to begin with.
#[derive(Debug)]
pub struct AssociationKey {
    /// The algorithm with its key.
    pub transform: Transform,
    /// The numbers to begin with.
    pub numbers: AssociationNumbers,
}

/// The numbers that an association begins with, and the writer of their mark.
#[derive(Debug)]
pub enum AssociationNumbers {
    /// Those that an outbound association may send.
    Sent(SequenceNumbers, Box<dyn SequenceMark>),
    /// The highest that an inbound association received at an earlier start, or 0.
    Received(u64, Box<dyn ReceivedMark>),
}

impl AssociationNumbers {
    /// The numbers of an inbound association that nobody keeps a mark of.
    pub fn unmarked() -> AssociationNumbers {
        AssociationNumbers::Received(0, Box::new(Unmarked::default()))
    }
}

impl AssociationPlan {
    /// Returns whether an association of this plan can go on by the other, with its key and its numbers: at most the limits and the window
    /// differ.
    pub fn goes_on_as(&self, other: &AssociationPlan) -> bool {
        let AssociationPlan { window, lifetime, .. } = *other;
        // Most that are asked about are other ones: of these nothing is copied.
        self.name == other.name && AssociationPlan { window, lifetime, ..self.clone() } == *other
    }

    /// Returns whether the security parameter index, which is to lead to one association, leads to another too.
    pub fn shares_spi_with(&self, other: &AssociationPlan) -> bool {
        self.spi == other.spi
            && self.is_inbound == other.is_inbound
            && (self.is_inbound || self.destination == other.destination)
    }

    /// The addresses that its packets come from and go to.
    pub fn ends(&self) -> [IpAddr; 2] {
        [self.source, self.destination]
    }

    /// The gateway's own address, and the peer's address and port, by which peers are told apart; none if the association is not in UDP.
    pub fn peer_in_udp(&self) -> Option<(IpAddr, IpAddr, u16)> {
        let [source, destination] = self.udp_ports?;
        Some(match self.is_inbound {
            true => (self.destination, self.source, source),
            false => (self.source, self.destination, destination),
        })
    }

    /// The settings of the association.
    ///
    /// # Panics
    /// If the ends of a tunnel are of two families; the maker of a plan sees to that.
    pub fn settings(&self, transform: Transform) -> AssociationSettings {
        let AssociationPlan { spi, is_extended, lifetime, .. } = *self;
        AssociationSettings {
            spi,
            transform,
            encapsulation: self.encapsulation(),
            extended: is_extended,
            lifetime,
        }
    }

    /// The wrapping of its packets.
    ///
    /// # Panics
    /// Those of [`AssociationPlan::settings`].
    pub fn encapsulation(&self) -> Encapsulation {
        let mode = match self.is_tunnel {
            false => EspMode::Transport,
            true => {
                let mut tunnel = Tunnel::new(self.source, self.destination).expect("ends of one family");
                tunnel.dont_fragment = self.dont_fragment;
                EspMode::Tunnel(tunnel)
            }
        };
        let udp = self.udp_ports.map(|[source, destination]| UdpEncapsulation { source, destination });
        Encapsulation { mode, udp }
    }
}
