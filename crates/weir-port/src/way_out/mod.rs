//! A run's way out of the host: the contents of its nftables table.
//!
//! ```text
//! table inet weir0 {
//!     comment "weir NUMBER"               the number of its interface
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat
//!         ip saddr PROGRAM masquerade
//!         ip6 saddr PROGRAM masquerade
//!     }
//!     chain forward {                         only where weirs had to switch forwarding on
//!         type filter hook forward priority filter
//!         oif weir0 ct state established,related accept
//!         oifname "weir*" ct state established,related accept
//!         meta nfproto ipv4 oif weir0 counter drop
//!         meta nfproto ipv4 iif UPLINK counter drop
//!     }
//! }
//! ```
//!
//! Rule of the gate: traffic that was not forwarded before any weir is not forwarded now. A packet that comes in by an interface whose
//! forwarding was off is dropped and counted, unless it answers a run's program; and nothing else gets to the program either. Traffic that
//! was forwarded before is not dropped, and where nothing had to be switched on there is no gate.
//!
//! Several runs. Each has a table of its own with a gate of its own, and a packet must pass all of them. So a gate lets the answers of all
//! runs pass, which it knows by the name of the interface that they go to, and its own also by the number; it guards its own program alone.
//! The table goes with its run; the last run puts the forwarding settings back ([`crate::forwarding`]).
//!
//! Bridges. `br_netfilter` shows bridged packets to the gate as if they were forwarded from the bridge to itself. A packet for the host to
//! forward has the host's own Ethernet address, and a bridged packet never has: of packets that stay in one bridge the gate drops the
//! former alone.
//!
//! Limits. The gate goes by the settings before the first run: a user who makes the host a router while one runs finds it shut until the
//! last has ended. A run whose interface somebody renames gets no answers while another run's gate is there. The addresses of a bridge are
//! those at the start: one that it gets later is not guarded from the bridge to itself. An
//! interface in a VRF is not guarded. Where one setting switches IPv6 on for all interfaces, before Linux 6.17, from one bridge to any is
//! not guarded for IPv6.
//!
//! Source: `nft(8)`; kernel `net/bridge/br_netfilter_hooks.c:br_nf_forward`, `net/ipv4/ip_forward.c`.

pub mod nftables;
mod watch;

use std::net::IpAddr;

use crate::error::Result;
use crate::forwarding::{Setting, SettingChange};
use crate::link::{self, Link};

pub use watch::{Stopper, TableEvent, TableWatch};

/// The prefix of the names of all runs' interfaces.
pub const NAME_PREFIX: &str = "weir";
/// The kind of a bridge, as the kernel calls it.
const BRIDGE: &str = "bridge";

/// A version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A condition of a rule on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// `meta nfproto`
    Family(Family),
    /// `ip saddr` or `ip6 saddr`
    Source(IpAddr),
    /// `ether daddr`
    EtherTo([u8; 6]),
    /// `iif`, by the interface's number
    In(u32),
    /// `oif`
    Out(u32),
    /// `oif !=`
    NotOut(u32),
    /// `iifname "PREFIX*"`
    InNamed(&'static str),
    /// `oifname "PREFIX*"`
    OutNamed(&'static str),
    /// `iifkind`
    InKind(&'static str),
    /// `oifkind`
    OutKind(&'static str),
    /// `ct state established,related`
    Answer,
}

/// The verdict of a rule on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftVerdict {
    /// The packet is accepted by this chain.
    Accept,
    /// The packet is counted and dropped.
    Drop,
    /// The packet gets the address of the interface that it leaves by as its source.
    Masquerade,
}

/// A rule: the verdict holds for a packet that meets all conditions.
pub type NftRule = (Vec<Match>, NftVerdict);

/// An interface whose forwarding was off before any weir switched it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedInterface {
    family: Family,
    /// The interface's number; `None` means all interfaces.
    ifindex: Option<u32>,
    /// The Ethernet addresses that are the host's, if the interface is a bridge.
    bridge: Option<Vec<[u8; 6]>>,
}

impl OpenedInterface {
    /// The interface that a change opens, in this thread's namespace; `None` if the change opens nothing.
    pub fn by(change: &SettingChange) -> Result<Option<OpenedInterface>> {
        let (family, ifindex) = match change.setting {
            Setting::ForwardIpv4(ifindex) => (Family::V4, Some(ifindex)),
            Setting::ForwardIpv6(ifindex) => (Family::V6, Some(ifindex)),
            Setting::ForwardAllIpv6 => (Family::V6, None),
            Setting::AcceptRouters(_)
            | Setting::HostOrRouterIpv6(_)
            | Setting::DefaultIpv6
            | Setting::LargeReceive(_) => return Ok(None),
        };
        let bridge = match ifindex.map(Link::by_index).transpose()? {
            Some(link) if link.kind == BRIDGE => {
                let mut addresses = link::addresses_of_ports(link.ifindex)?;
                addresses.push(link.address);
                addresses.sort_unstable();
                addresses.dedup();
                Some(addresses)
            }
            _ => None,
        };
        Ok(Some(OpenedInterface { family, ifindex, bridge }))
    }

    /// The rules that shut the interface again for all but runs, one of which has the interface of number `own`.
    fn gate(&self, own: u32) -> Vec<NftRule> {
        let family = Match::Family(self.family);
        let Some(ifindex) = self.ifindex else {
            let bridged = vec![family.clone(), Match::InKind(BRIDGE), Match::OutKind(BRIDGE)];
            return vec![
                (vec![Match::In(own)], NftVerdict::Accept),
                (vec![Match::InNamed(NAME_PREFIX)], NftVerdict::Accept),
                (bridged, NftVerdict::Accept),
                (vec![family], NftVerdict::Drop),
            ];
        };
        let Some(addresses) = &self.bridge else {
            return vec![(vec![family, Match::In(ifindex)], NftVerdict::Drop)];
        };
        let within = |own: &[u8; 6]| {
            vec![family.clone(), Match::In(ifindex), Match::Out(ifindex), Match::EtherTo(*own)]
        };
        let mut rules =
            vec![(vec![family.clone(), Match::In(ifindex), Match::NotOut(ifindex)], NftVerdict::Drop)];
        rules.extend(addresses.iter().map(|own| (within(own), NftVerdict::Drop)));
        rules
    }
}

/// The contents of a run's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTable {
    /// The name of the table, which is that of the run's interface at the host.
    pub name: String,
    /// The number of that interface.
    pub ifindex: u32,
    /// The program's addresses, of those families in which there is a way out.
    pub sources: Vec<IpAddr>,
    /// The interfaces that weirs opened for the ways out of this run.
    pub opened: Vec<OpenedInterface>,
}

impl NftTable {
    /// The rules of the chain at postrouting.
    fn masquerading(&self) -> Vec<NftRule> {
        self.sources.iter().map(|source| (vec![Match::Source(*source)], NftVerdict::Masquerade)).collect()
    }

    /// The rules of the chain at forward; none where there is no such chain.
    fn gate(&self) -> Vec<NftRule> {
        let mut rules = Vec::new();
        if !self.opened.is_empty() {
            // Its own interface may have got another name.
            for to_run in [Match::Out(self.ifindex), Match::OutNamed(NAME_PREFIX)] {
                rules.push((vec![to_run, Match::Answer], NftVerdict::Accept));
            }
        }
        for family in [Family::V4, Family::V6] {
            if self.opened.iter().any(|opened| opened.family == family) {
                rules.push((vec![Match::Family(family), Match::Out(self.ifindex)], NftVerdict::Drop));
            }
        }
        rules.extend(self.opened.iter().flat_map(|opened| opened.gate(self.ifindex)));
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPLINK: u32 = 7;
    const OWN: u32 = 9;

    fn table(opened: Vec<OpenedInterface>) -> NftTable {
        let sources = vec!["10.87.0.2".parse().unwrap()];
        NftTable { name: "weir0".into(), ifindex: OWN, sources, opened }
    }

    fn opened(family: Family, ifindex: Option<u32>, bridge: Option<Vec<[u8; 6]>>) -> OpenedInterface {
        OpenedInterface { family, ifindex, bridge }
    }

    /// A packet at the forward hook.
    #[derive(Clone, Copy)]
    struct Packet {
        family: Family,
        from: (u32, &'static str, &'static str),
        to: (u32, &'static str, &'static str),
        ether_to: [u8; 6],
        is_answer: bool,
    }

    fn passes(table: &NftTable, packet: Packet) -> bool {
        let holds = |asked: &Match| match asked {
            Match::Family(family) => *family == packet.family,
            Match::In(ifindex) => *ifindex == packet.from.0,
            Match::Out(ifindex) => *ifindex == packet.to.0,
            Match::NotOut(ifindex) => *ifindex != packet.to.0,
            Match::InNamed(prefix) => packet.from.1.starts_with(prefix),
            Match::OutNamed(prefix) => packet.to.1.starts_with(prefix),
            Match::InKind(kind) => packet.from.2 == *kind,
            Match::OutKind(kind) => packet.to.2 == *kind,
            Match::EtherTo(address) => *address == packet.ether_to,
            Match::Answer => packet.is_answer,
            Match::Source(_) => panic!("the gate asks for no address"),
        };
        let gate = table.gate();
        let decides = gate.iter().find(|(matches, _)| matches.iter().all(holds));
        decides.is_none_or(|(_, verdict)| *verdict == NftVerdict::Accept)
    }

    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const UP: (u32, &str, &str) = (UPLINK, "eth0", "");
    const BR: (u32, &str, &str) = (UPLINK, "br0", "bridge");
    const LAN: (u32, &str, &str) = (8, "eth1", "");
    const RUN: (u32, &str, &str) = (OWN, "weir0", "veth");
    const OTHER_RUN: (u32, &str, &str) = (11, "weir1", "veth");

    fn packet(from: (u32, &'static str, &'static str), to: (u32, &'static str, &'static str)) -> Packet {
        Packet { family: Family::V4, from, to, ether_to: HOST, is_answer: false }
    }

    fn answer(from: (u32, &'static str, &'static str), to: (u32, &'static str, &'static str)) -> Packet {
        Packet { is_answer: true, ..packet(from, to) }
    }

    #[test]
    fn only_a_program_gets_out_and_only_answers_get_in() {
        let table = table(vec![opened(Family::V4, Some(UPLINK), None)]);
        for (packet, may_pass) in [
            (packet(RUN, UP), true),
            (packet(RUN, LAN), true),
            (answer(UP, RUN), true),
            (packet(UP, RUN), false),
            (packet(UP, LAN), false),
            (packet(UP, UP), false),
            // An answer to a host that is no program of a run.
            (answer(UP, LAN), false),
            // Packets of interfaces that forwarded before.
            (packet(LAN, UP), true),
            (Packet { family: Family::V6, ..packet(UP, LAN) }, true),
        ] {
            assert_eq!(passes(&table, packet), may_pass, "{:?} -> {:?}", packet.from, packet.to);
        }
    }

    #[test]
    fn runs_do_not_cut_each_other_off_and_do_not_reach_each_other() {
        let table = table(vec![opened(Family::V4, Some(UPLINK), None)]);
        assert!(passes(&table, packet(OTHER_RUN, UP)));
        assert!(passes(&table, answer(UP, OTHER_RUN)));
        assert!(!passes(&table, packet(UP, OTHER_RUN)), "also where the other has no gate");
        assert!(!passes(&table, packet(OTHER_RUN, RUN)));
    }

    #[test]
    fn a_run_whose_interface_is_renamed_keeps_its_way_out() {
        const RENAMED: (u32, &str, &str) = (OWN, "foo", "veth");
        for (family, uplink) in [(Family::V4, Some(UPLINK)), (Family::V6, None)] {
            let table = table(vec![opened(family, uplink, None)]);
            let of = |packet: Packet| Packet { family, ..packet };
            assert!(passes(&table, of(packet(RENAMED, UP))) && passes(&table, of(answer(UP, RENAMED))));
            assert!(!passes(&table, of(packet(UP, RENAMED))));
        }
    }

    #[test]
    fn a_host_that_was_a_router_has_no_gate() {
        assert_eq!(table(Vec::new()).gate(), []);
    }

    #[test]
    fn what_a_bridge_carries_is_not_cut_off() {
        let table = table(vec![opened(Family::V4, Some(UPLINK), Some(vec![HOST]))]);
        assert!(passes(&table, Packet { ether_to: [2, 0, 0, 0, 0, 9], ..packet(BR, BR) }), "bridged");
        assert!(!passes(&table, packet(BR, BR)), "to the host, and so forwarded");
        assert!(!passes(&table, packet(BR, LAN)));
        assert!(passes(&table, answer(BR, RUN)));
    }

    #[test]
    fn ipv6_of_all_interfaces_is_shut_for_all() {
        let table = table(vec![opened(Family::V6, None, None)]);
        let v6 = |packet: Packet| Packet { family: Family::V6, ..packet };
        assert!(!passes(&table, v6(packet(LAN, UP))) && !passes(&table, v6(packet(UP, LAN))));
        assert!(passes(&table, v6(packet(RUN, UP))) && passes(&table, v6(packet(OTHER_RUN, UP))));
        assert!(passes(&table, v6(answer(UP, RUN))) && !passes(&table, v6(packet(UP, RUN))));
        assert!(passes(&table, v6(packet(BR, BR))), "bridged");
        assert!(passes(&table, packet(LAN, UP)), "IPv4 is another matter");
    }
}
