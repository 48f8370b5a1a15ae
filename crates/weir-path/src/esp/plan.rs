//! What an ESP stage is to be: its addresses, its associations without their keys, its policies; and a change of these.
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

use super::marks::SequenceMark;

/// An ESP stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspPlan {
    /// What the gateway is called outside: ESP to these is opened.
    pub addresses: Vec<IpAddr>,
    /// The longest IP packet that leaves outside.
    pub mtu_bytes: u16,
    /// Its associations.
    pub associations: Vec<AssociationPlan>,
    /// Its policies, the first that matches first.
    pub policies: Vec<PolicyPlan>,
    /// When its packets are sealed and opened.
    pub dispatch: EspDispatch,
}

/// When packets are sealed and opened: at once, or from a queue, by the worker that has the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspDispatch {
    /// As of netisr's protocols.
    pub mode: Mode,
    /// The most packets that wait inside, and the most that wait outside, before who feeds them is held.
    pub queue_packets: u32,
    /// Whether what comes to a full queue is dropped, as netisr does it, and nobody is held: what the lab compares with.
    pub drops_when_full: bool,
    /// How many sealers share the work of its associations, if packets wait in a queue; without any the worker of the stage does it alone.
    pub sealers: u16,
}

impl EspDispatch {
    /// The queue where none is said: netisr's.
    pub const QUEUE_PACKETS_DEFAULT: u32 = 256;
    /// The most sealers.
    pub const SEALERS_MAX: u16 = 16;

    /// How many sealers there are: without queues nobody could be held for them.
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

/// An association, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationPlan {
    /// Its name.
    pub name: String,
    /// Whether packets are opened by it, and not sealed.
    pub is_inbound: bool,
    /// The security parameter index.
    pub spi: u32,
    /// Where its packets come from.
    pub source: IpAddr,
    /// Where they go to.
    pub destination: IpAddr,
    /// Tunnel mode, or transport mode.
    pub is_tunnel: bool,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The file that its key is in; none without a key.
    pub key_file: Option<String>,
    /// Whether sequence numbers have 64 bits.
    pub is_extended: bool,
    /// The replay window, if it is inbound.
    pub window: u32,
    /// The ports of its UDP, from and to, if it is in UDP.
    pub udp_ports: Option<[u16; 2]>,
    /// After how long without a packet an outbound one in UDP sends a keepalive; none where it sends none.
    pub keepalive_ns: Option<u64>,
    /// DF of the outer header.
    pub dont_fragment: OuterDontFragment,
    /// Its limits.
    pub lifetime: Lifetime,
}

/// What a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerb {
    /// An association protects it.
    Protect,
    /// It passes in the clear.
    Bypass,
    /// It does not pass.
    Discard,
}

impl PolicyVerb {
    /// All of them, with their words.
    pub const ALL: [(&str, PolicyVerb); 3] =
        [("protect", PolicyVerb::Protect), ("bypass", PolicyVerb::Bypass), ("discard", PolicyVerb::Discard)];
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPlan {
    /// Of what comes in, or of what goes out.
    pub is_inbound: bool,
    /// Which packets.
    pub selector: Selector,
    /// What becomes of them.
    pub verb: PolicyVerb,
    /// The associations that protect, by name: going out the first that lives, coming in any.
    pub associations: Vec<String>,
}

/// What an ESP stage is to become.
#[derive(Debug)]
pub struct EspChange {
    /// The plan.
    pub plan: EspPlan,
    /// For each association of the plan its key; none where the one that runs under this name goes on.
    pub keys: Vec<Option<AssociationKey>>,
}

/// A key ready to be used, and where to begin.
#[derive(Debug)]
pub struct AssociationKey {
    /// The algorithm with its key.
    pub transform: Transform,
    /// Of an outbound one its numbers, and who writes their mark.
    pub numbers: Option<(SequenceNumbers, Box<dyn SequenceMark>)>,
}

impl AssociationPlan {
    /// What the association is made of.
    ///
    /// # Panics
    /// If the ends of a tunnel are of two families, which whoever makes a plan sees to.
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

    /// How its packets are wrapped.
    ///
    /// # Panics
    /// As of [`AssociationPlan::settings`].
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
