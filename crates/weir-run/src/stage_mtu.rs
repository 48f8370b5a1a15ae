//! The MTU of a router's interface, and of the two sides of an ESP: no longer than the interfaces of the host take that it leads to, also when these
//! get another.
//!
//! ```text
//! router --interface--> [bridges] --> ports          MTU = min(mtu of the file, MTU of each port and of its other end)
//! ESP    --side-------> [bridges] --> ports
//! ```
//!
//! Rule: a packet that leaves so and is longer than a port takes would be dropped and nobody told; a router or an ESP that knows cuts it,
//! or tells its sender. The MTU is never below what a router's interface needs by its family, and an ESP by its file, whatever the ports take.
//!
//! Owner: each worker's part, for the stages that it has. Source: RFC 1812 section 5.3.7, RFC 4301 section 8, RFC 8201. Limits: a port that is
//! gone counts as it was; behind an ESP the ESP tells (`weir_path::esp`).

use weir_path::esp::plan::MTU_BYTES_MIN;
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::plan::{Attachment, Plan, StageKind, StagePlan};
use weir_port::link::Link;

use crate::look_over::networks;

/// An interface of a router, or a side of an ESP, and the ports that its packets leave by unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageInterface {
    /// The stage.
    pub stage: usize,
    /// The number of the interface, or of the side.
    pub interface: u16,
    /// The longest IP packet by the file, in bytes; of an ESP, which has its own by a file that may be changed, any.
    pub mtu_bytes: u16,
    /// The least MTU that it may have, in bytes.
    least_bytes: u16,
    /// The ports, by their places in the plan.
    ports: Vec<usize>,
}

/// The longest IP packet that an interface of the host and its other end take, in bytes.
pub fn taken_bytes(link: &Link, other_end: &Link) -> u32 {
    link.mtu_bytes.min(other_end.mtu_bytes)
}

impl StageInterface {
    /// All interfaces of the routers of a plan that lead to ports, and the sides of its ESPs that do.
    pub fn all(plan: &Plan) -> Vec<StageInterface> {
        let networks = networks(plan);
        let of = |(stage, StagePlan { kind, .. }): (usize, &StagePlan)| {
            let one = |interface, mtu_bytes, least_bytes| StageInterface {
                stage,
                interface,
                mtu_bytes,
                least_bytes,
                ports: Vec::new(),
            };
            match kind {
                StageKind::Router(settings) => (0..)
                    .zip(&settings.interfaces)
                    .map(|(number, own)| one(number, own.mtu_bytes, settings.least_mtu_bytes(number)))
                    .collect(),
                StageKind::Esp(_) => [INSIDE, OUTSIDE].map(|side| one(side, u16::MAX, MTU_BYTES_MIN)).into(),
                _ => Vec::new(),
            }
        };
        let all = plan.stages.iter().enumerate().flat_map(of);
        let with_ports = all.map(|mut one| {
            let network = networks.get(&Attachment::Stage(one.stage, one.interface));
            let is_there =
                |port: &usize| network.is_some() && networks.get(&Attachment::Port(*port)) == network;
            one.ports = (0..plan.ports.len()).filter(is_there).collect();
            one
        });
        with_ports.filter(|one| !one.ports.is_empty()).collect()
    }

    /// The same interface of a stage that has this place elsewhere.
    pub fn at(&self, stage: usize) -> StageInterface {
        StageInterface { stage, ..self.clone() }
    }

    /// The MTU that it has with ports that take so many bytes, and the port that takes fewest if that is fewer than the file says.
    pub fn fit(&self, taken_bytes: &[Option<u32>]) -> (u16, Option<usize>) {
        let known =
            self.ports.iter().filter_map(|&port| Some((taken_bytes.get(port).copied().flatten()?, port)));
        match known.min() {
            Some((bytes, port)) if bytes < self.mtu_bytes.into() => {
                ((bytes as u16).max(self.least_bytes), Some(port))
            }
            _ => (self.mtu_bytes, None),
        }
    }
}

/// The interfaces of the routers and ESPs of one worker, and the packets that all ports take.
#[derive(Debug, Default)]
pub struct StageMtus {
    /// The interfaces, with the places of their stages at the worker.
    pub interfaces: Vec<StageInterface>,
    /// The longest IP packet that each port takes, in bytes, as far as it is known.
    pub taken_bytes: Vec<Option<u32>>,
}

impl StageMtus {
    /// Notes that a port takes packets of so many bytes; returns the interfaces that lead to it, with their MTUs.
    pub fn follow(&mut self, port: usize, taken_bytes: u32) -> Vec<(usize, u16, u16)> {
        if let Some(taken) = self.taken_bytes.get_mut(port) {
            *taken = Some(taken_bytes);
        }
        let to_port = self.interfaces.iter().filter(|one| one.ports.contains(&port));
        to_port.map(|one| (one.stage, one.interface, one.fit(&self.taken_bytes).0)).collect()
    }

    /// All interfaces, with their MTUs.
    pub fn all(&self) -> impl Iterator<Item = (usize, u16, u16)> + '_ {
        self.interfaces.iter().map(|one| (one.stage, one.interface, one.fit(&self.taken_bytes).0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::read;

    const FILE: &str = r#"
[[port]]
name = "a"
interface = "a"
[[port]]
name = "b"
interface = "b"
[[port]]
name = "c"
interface = "c"
[[bridge]]
name = "sw"
ports = ["a", "b", "ea"]
[[epair]]
name = "e"
[[router]]
name = "gw"
[[router.interface]]
port = "eb"
address = ["10.0.0.1/24"]
[[router.interface]]
port = "c"
address = ["10.0.1.1/24", "fd00::1/64"]
"#;

    fn plan_of(text: &str) -> Plan {
        read("gw.toml", text, "4711", |_| Err("there is no such file".into())).unwrap().plan.unwrap()
    }

    #[test]
    fn the_shortest_port_behind_it_decides() {
        let all = StageInterface::all(&plan_of(FILE));
        let mut mtus = StageMtus { interfaces: all, taken_bytes: vec![None; 3] };
        let now =
            |mtus: &StageMtus| mtus.all().map(|(_, interface, mtu)| (interface, mtu)).collect::<Vec<_>>();
        assert_eq!(now(&mtus), [(0, 1500), (1, 1500)], "nothing is known");
        assert_eq!(mtus.follow(1, 1400).iter().map(|one| one.2).collect::<Vec<_>>(), [1400]);
        assert_eq!(mtus.follow(0, 9000).len(), 1);
        assert_eq!(now(&mtus), [(0, 1400), (1, 1500)]);
        mtus.follow(1, 1500);
        assert_eq!(now(&mtus), [(0, 1500), (1, 1500)], "it is as long as before");
        mtus.follow(2, 700);
        assert_eq!(now(&mtus), [(0, 1500), (1, 1280)], "IPv6 needs so many");
        assert_eq!(mtus.interfaces[1].fit(&mtus.taken_bytes), (1280, Some(2)));
    }
}
