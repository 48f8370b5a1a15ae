//! Protocols: the stages a packet can be dispatched to, and the worker of each.
//!
//! The rule for the worker:
//!
//! | policy | worker |
//! |---|---|
//! | `source` | the port's index, over the workers in turn: packets of one port keep their order among themselves |
//! | `flow` | the indirection table's, by flow hash; without a hash as `source` |
//! | `cpu` | the one that has its receive queue's number, over the workers in turn |
//!
//! Ownership: a [`Registry`] is immutable once made; all workers share one.
//!
//! Source: FreeBSD `sys/net/netisr.h` (policies), `netisr.c` (`netisr_select_cpuid`).

use std::fmt;

use crate::packet::Meta;
use crate::steer::rss::Rss;

/// The rule that chooses the worker of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The worker of its port.
    Source,
    /// The worker of its flow.
    Flow,
    /// The worker of its receive queue.
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
}

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
}

/// All protocols, and the table that turns flows into workers.
pub struct Registry {
    protocols: Vec<Registered>,
    rss: Rss,
}

impl Registry {
    /// Registers `protocols`; `mode` and `qlimit` are for those that name none.
    pub fn new(protocols: Vec<Protocol>, mode: Mode, qlimit: usize, rss: Rss) -> Registry {
        let registered = protocols.into_iter().map(|protocol| Registered {
            mode: protocol.mode.unwrap_or(mode),
            qlimit: protocol.qlimit.unwrap_or(qlimit),
            protocol,
        });
        Registry { protocols: registered.collect(), rss }
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
        match self.get(id).protocol.policy {
            Policy::Source => by_source(),
            Policy::Flow if meta.flow_hash == 0 => by_source(),
            Policy::Flow => self.rss.worker(meta.flow_hash),
            Policy::Cpu => usize::from(meta.queue) % workers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handlers::protocols;
    use super::*;
    use crate::steer::key::Key;
    use crate::steer::parse::HashKind;

    #[test]
    fn each_policy_chooses_its_worker() {
        let mut protocols = protocols();
        protocols[1].policy = Policy::Cpu;
        protocols[2].policy = Policy::Source;
        let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 3, 4).unwrap();
        let registry = Registry::new(protocols, Mode::Hybrid, 256, rss);
        let id = |name| registry.id(name).unwrap();
        let meta = Meta { port: 6, queue: 11, flow_hash: 0x0000_0005, ..Meta::default() };
        assert_eq!(registry.worker(id("ether"), &meta), 2, "port 6 of 4 workers");
        assert_eq!(registry.worker(id("ip"), &meta), 1, "bucket 5 of 8, dealt to 4 workers");
        assert_eq!(registry.worker(id("arp"), &meta), 3, "queue 11 of 4 workers");
        let unhashed = Meta { flow_hash: 0, ..meta };
        assert_eq!(registry.worker(id("ip"), &unhashed), 2, "without a hash as source");
    }

    #[test]
    fn names_and_values_are_inverse() {
        assert!(Policy::ALL.iter().all(|one| Policy::from_name(one.name()) == Some(*one)));
        assert!(Mode::ALL.iter().all(|one| Mode::from_name(one.name()) == Some(*one)));
        assert!(WhenFull::ALL.iter().all(|one| WhenFull::from_name(one.name()) == Some(*one)));
        assert_eq!(Mode::from_name("flow"), None, "a policy is no mode");
    }
}
