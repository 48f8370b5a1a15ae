//! Protocols: the stages a packet can be dispatched to, the worker of each, and the protocols it feeds.
//!
//! The rule for the worker:
//!
//! | policy | worker |
//! |---|---|
//! | `source` | the port's index, over the workers in turn: packets of one port keep their order among themselves |
//! | `flow` | the indirection table's, by flow hash; without a hash as `source` |
//! | `cpu` | the one the protocol's own function names, over the workers in turn |
//!
//! A protocol names the protocols that it feeds (`feeds`), so that a plan knows where its packets may come to, and who waits for whom.
//!
//! Ownership: a [`Registry`] is immutable once made; all workers share one.
//!
//! Source: FreeBSD `sys/net/netisr.h` (policies), `netisr.c` (`netisr_select_cpuid`). `feeds` is ours: netisr
//! has no credit to give.

use std::fmt;

use crate::packet::Meta;
use crate::steer::rss::Rss;

/// The most protocols: the bits of a set.
pub const PROTOCOLS_MAX: usize = 64;

/// The rule that chooses the worker of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The worker of its port.
    Source,
    /// The worker of its flow.
    Flow,
    /// The worker that the protocol's own function names.
    Cpu,
}

/// The time when a packet is handled: now or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Packets are handled now, on the worker that has them, whatever the policy says.
    Direct,
    /// Packets are handled now if the policy chooses the worker that has them; otherwise later, on the chosen one.
    Hybrid,
    /// Packets are handled later, on the worker the policy chooses.
    Deferred,
}

/// The treatment of a packet when its queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The packet's feeder is held: no packet enters that could come here.
    #[default]
    Block,
    /// As `Block`; besides, packets are marked (Congestion Experienced) from half the limit on. No packet is dropped, in classes of a
    /// shaper neither.
    Ecn,
    /// The packet is dropped and counted, as in netisr.
    Drop,
}

macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal),+) => {
        impl $type {
            /// All variants, in the order they are documented.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// Its name in settings and tables.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }

            /// The variant of that name.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

names!(Policy: Source = "source", Flow = "flow", Cpu = "cpu");
names!(Mode: Direct = "direct", Hybrid = "hybrid", Deferred = "deferred");
names!(WhenFull: Block = "block", Ecn = "ecn", Drop = "drop");

/// A protocol's place in its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtoId(usize);

impl ProtoId {
    /// The place as an index.
    pub const fn index(self) -> usize {
        self.0
    }

    const fn bit(self) -> ProtoSet {
        1 << self.0
    }
}

/// A set of protocols, one bit for each place.
pub type ProtoSet = u64;

/// Names the worker of a packet for [`Policy::Cpu`]; any number, taken over the workers in turn.
pub type ToWorker = fn(&Meta) -> usize;

/// A protocol as it is registered.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Its name in settings and tables.
    pub name: &'static str,
    /// Its number in tables (netisr's `NETISR_*`).
    pub number: u16,
    /// The policy that chooses the worker.
    pub policy: Policy,
    /// The mode, now or later; `None` means the mode of `dispatch` for all.
    pub mode: Option<Mode>,
    /// The packets its queue holds before it is full; `None` means `defaultqlimit`.
    pub qlimit: Option<usize>,
    /// The rule when it is full.
    pub when_full: WhenFull,
    /// The function that names the worker, for [`Policy::Cpu`].
    pub to_worker: Option<ToWorker>,
    /// The protocols its handler may dispatch to, by name.
    pub feeds: &'static [&'static str],
}

impl Protocol {
    /// The protocols of the path, with netisr's numbers and policies.
    pub fn of_the_path() -> Vec<Protocol> {
        let protocol = |name, number, policy, feeds| Protocol {
            name,
            number,
            policy,
            mode: None,
            qlimit: None,
            when_full: WhenFull::Block,
            to_worker: None,
            feeds,
        };
        let mut ether = protocol("ether", 5, Policy::Source, &["arp", "ip", "ip6"]);
        ether.mode = Some(Mode::Direct);
        vec![
            protocol("ip", 1, Policy::Flow, &["esp"]),
            protocol("arp", 4, Policy::Source, &[]),
            ether,
            protocol("ip6", 6, Policy::Flow, &["esp"]),
            protocol("esp", 11, Policy::Flow, &["ip", "ip6"]),
        ]
    }
}

/// A registered protocol with every default filled in.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The protocol as it was registered.
    pub protocol: Protocol,
    /// The mode, now or later.
    pub mode: Mode,
    /// Packets its queue holds before it is full.
    pub qlimit: usize,
    feeds: ProtoSet,
}

/// All protocols, and the table that turns flows into workers.
pub struct Registry {
    protocols: Vec<Registered>,
    rss: Rss,
}

impl Registry {
    /// Registers `protocols`; `mode` and `qlimit` are for those that name none.
    pub fn new(
        protocols: Vec<Protocol>,
        mode: Mode,
        qlimit: usize,
        rss: Rss,
    ) -> Result<Registry, RegistryError> {
        if protocols.len() > PROTOCOLS_MAX {
            return Err(RegistryError::TooMany(protocols.len()));
        }
        let place_of = |name: &str| protocols.iter().position(|protocol| protocol.name == name);
        let mut feeds = Vec::with_capacity(protocols.len());
        for (place, protocol) in protocols.iter().enumerate() {
            if place_of(protocol.name) != Some(place) {
                return Err(RegistryError::Twice(protocol.name));
            }
            if protocol.policy == Policy::Cpu && protocol.to_worker.is_none() {
                return Err(RegistryError::NoWorkerFunction(protocol.name));
            }
            if protocol.qlimit.unwrap_or(qlimit) == 0 {
                return Err(RegistryError::ZeroLimit(protocol.name));
            }
            let mut set: ProtoSet = 0;
            for &name in protocol.feeds {
                let unknown = RegistryError::FeedsUnknown { name: protocol.name, feeds: name };
                set |= 1 << place_of(name).ok_or(unknown)?;
            }
            feeds.push(set);
        }
        let protocols = protocols
            .into_iter()
            .zip(feeds)
            .map(|(protocol, feeds)| Registered {
                mode: protocol.mode.unwrap_or(mode),
                qlimit: protocol.qlimit.unwrap_or(qlimit),
                feeds,
                protocol,
            })
            .collect();
        Ok(Registry { protocols, rss })
    }

    /// The protocol of that name.
    pub fn id(&self, name: &str) -> Option<ProtoId> {
        let place = self.protocols.iter().position(|registered| registered.protocol.name == name)?;
        Some(ProtoId(place))
    }

    /// Every protocol's place.
    pub fn ids(&self) -> impl Iterator<Item = ProtoId> + use<> {
        (0..self.protocols.len()).map(ProtoId)
    }

    /// A protocol.
    pub fn get(&self, id: ProtoId) -> &Registered {
        &self.protocols[id.index()]
    }

    /// The table from flows to workers.
    pub fn rss(&self) -> &Rss {
        &self.rss
    }

    /// The worker that the policy of `id` chooses for a packet.
    #[inline]
    pub fn worker(&self, id: ProtoId, meta: &Meta) -> usize {
        let workers = self.rss.workers();
        let by_source = || usize::from(meta.port) % workers;
        let protocol = &self.get(id).protocol;
        match (protocol.policy, protocol.to_worker) {
            (Policy::Source, _) => by_source(),
            (Policy::Flow, _) if meta.flow_hash == 0 => by_source(),
            (Policy::Flow, _) => self.rss.worker(meta.flow_hash),
            (Policy::Cpu, to_worker) => {
                to_worker.map_or_else(by_source, |to_worker| to_worker(meta) % workers)
            }
        }
    }

    /// Returns whether the handler of `from` said that it dispatches to `to`.
    #[inline]
    pub fn feeds(&self, from: ProtoId, to: ProtoId) -> bool {
        self.get(from).feeds & to.bit() != 0
    }
}

/// The reason why protocols could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryError {
    /// There are more protocols than a set has bits.
    TooMany(usize),
    /// Two protocols have one name.
    Twice(&'static str),
    /// A protocol has the policy `cpu` and no function that names the worker.
    NoWorkerFunction(&'static str),
    /// A protocol has a limit of 0, so its queue is always full.
    ZeroLimit(&'static str),
    /// A protocol feeds one that is not registered.
    FeedsUnknown {
        /// The protocol.
        name: &'static str,
        /// The name of the protocol it feeds.
        feeds: &'static str,
    },
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryError::TooMany(count) => write!(f, "{count} protocols; at most {PROTOCOLS_MAX}"),
            RegistryError::Twice(name) => write!(f, "protocol `{name}` is registered twice"),
            RegistryError::NoWorkerFunction(name) => {
                write!(
                    f,
                    "protocol `{name}` has no function of its own that names a worker; use `source` or `flow`"
                )
            }
            RegistryError::ZeroLimit(name) => {
                write!(f, "protocol `{name}` has a queue limit of 0; a queue holds at least one packet")
            }
            RegistryError::FeedsUnknown { name, feeds } => {
                write!(f, "protocol `{name}` feeds `{feeds}`, which is not registered")
            }
        }
    }
}

impl std::error::Error for RegistryError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steer::key::Key;
    use crate::steer::parse::HashKind;

    fn registry(protocols: Vec<Protocol>) -> Result<Registry, RegistryError> {
        let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 3, 4).unwrap();
        Registry::new(protocols, Mode::Hybrid, 256, rss)
    }

    #[test]
    fn each_policy_chooses_its_worker() {
        let mut protocols = Protocol::of_the_path();
        protocols[1].policy = Policy::Cpu;
        protocols[1].to_worker = Some(|meta| usize::from(meta.queue));
        let registry = registry(protocols).unwrap();
        let id = |name| registry.id(name).unwrap();
        let meta = Meta { port: 6, queue: 11, flow_hash: 0x0000_0005, ..Meta::default() };
        assert_eq!(registry.worker(id("ether"), &meta), 2, "port 6 of 4 workers");
        assert_eq!(registry.worker(id("ip"), &meta), 1, "bucket 5 of 8, dealt to 4 workers");
        assert_eq!(registry.worker(id("arp"), &meta), 3, "queue 11 of 4 workers");
        let unhashed = Meta { flow_hash: 0, ..meta };
        assert_eq!(registry.worker(id("ip"), &unhashed), 2, "without a hash as source");
    }

    #[test]
    fn what_cannot_be_registered_is_named() {
        let with = |change: fn(&mut Vec<Protocol>)| {
            let mut protocols = Protocol::of_the_path();
            change(&mut protocols);
            registry(protocols).err()
        };
        assert_eq!(with(|all| all[1].name = "ip"), Some(RegistryError::Twice("ip")));
        assert_eq!(with(|all| all[0].policy = Policy::Cpu), Some(RegistryError::NoWorkerFunction("ip")));
        assert_eq!(with(|all| all[0].qlimit = Some(0)), Some(RegistryError::ZeroLimit("ip")));
        let feeds_unknown = RegistryError::FeedsUnknown { name: "ip", feeds: "gre" };
        assert_eq!(with(|all| all[0].feeds = &["gre"]), Some(feeds_unknown));
        assert_eq!(with(|_| ()), None);
    }

    #[test]
    fn names_and_values_are_inverse() {
        assert!(Policy::ALL.iter().all(|one| Policy::from_name(one.name()) == Some(*one)));
        assert!(Mode::ALL.iter().all(|one| Mode::from_name(one.name()) == Some(*one)));
        assert!(WhenFull::ALL.iter().all(|one| WhenFull::from_name(one.name()) == Some(*one)));
        assert_eq!(Mode::from_name("flow"), None, "a policy is no mode");
    }
}
