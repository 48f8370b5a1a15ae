//! The protocols of a host that receives, and the verdict of each on a frame: ether looks at its type, the others at its header.
//!
//! ```text
//! ether --0x0806--> arp     delivered            whatever VLAN tags are before the type, two at most
//!       --0x0800--> ip      delivered
//!       --0x86dd--> ip6     delivered
//!       --other---> dropped, no-handler          a frame without a type, or a header not to be believed: malformed, bad-checksum
//! ```
//!
//! Steering is a matter of settings: ether's policy is `flow` and its mode `hybrid`, so a packet is handled at once if its flow is
//! the worker's that received it, and handed to that of its flow otherwise. netisr has ether `direct` and leaves steering to the
//! device. Under policy `cpu` a packet is the worker's that has its receive queue's number, over the workers in turn.
//!
//! Owner: values without state, shared by all workers. Source: FreeBSD `sys/net/if_ethersubr.c` (`ether_demux`), `sys/netinet/ip_input.c`,
//! `sys/netinet6/ip6_input.c`, for the checks that come before a header is believed.

use super::protocol::{Mode, Policy, ProtoId, Protocol, Registry, WhenFull};
use crate::classify::headers::{IPV4, IPV6, network_offset};
use crate::drops::DropReason;
use crate::net::input;

const ARP: u16 = 0x0806;

/// The verdict of a handler on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerVerdict {
    /// The packet goes on to another protocol.
    Dispatch(ProtoId),
    /// The packet is delivered to the host.
    Deliver,
    /// The packet is dropped.
    Drop(DropReason),
}

/// The handlers of ether, arp, ip and ip6.
#[derive(Clone, Copy, Debug)]
pub struct Handlers {
    ether: ProtoId,
    arp: ProtoId,
    ip: ProtoId,
    ip6: ProtoId,
}

/// The protocols to register, with netisr's numbers.
pub fn protocols() -> Vec<Protocol> {
    let rows = [
        ("ip", 1, Policy::Flow, None),
        ("arp", 4, Policy::Source, None),
        ("ether", 5, Policy::Flow, Some(Mode::Hybrid)),
        ("ip6", 6, Policy::Flow, None),
    ];
    let protocol = |(name, number, policy, mode)| Protocol {
        name,
        number,
        policy,
        mode,
        qlimit: None,
        when_full: WhenFull::Block,
    };
    rows.map(protocol).into()
}

impl Handlers {
    /// The handlers of a registry of [`protocols`].
    ///
    /// # Panics
    /// If the registry has other protocols.
    pub fn new(registry: &Registry) -> Handlers {
        let id = |name| registry.id(name).expect("a protocol of a host that receives");
        Handlers { ether: id("ether"), arp: id("arp"), ip: id("ip"), ip6: id("ip6") }
    }

    /// The protocol at which frames enter.
    pub fn ether(&self) -> ProtoId {
        self.ether
    }

    /// The verdict of `proto` on a frame.
    #[inline]
    pub fn handle(&self, proto: ProtoId, frame: &[u8]) -> HandlerVerdict {
        let Some((ethertype, offset)) = network_offset(frame) else {
            return HandlerVerdict::Drop(DropReason::Malformed);
        };
        if proto == self.ether {
            let next = self.of_type(ethertype).map(HandlerVerdict::Dispatch);
            return next.unwrap_or(HandlerVerdict::Drop(DropReason::NoHandler));
        }
        let packet = &frame[offset..];
        let looked_at = match proto {
            proto if proto == self.ip => input::ipv4(packet),
            proto if proto == self.ip6 => input::ipv6(packet),
            _ => input::arp(packet),
        };
        looked_at.map_or_else(HandlerVerdict::Drop, |()| HandlerVerdict::Deliver)
    }

    /// The protocol that a frame goes on to from `proto`, if it goes on.
    #[inline]
    pub fn next(&self, proto: ProtoId, frame: &[u8]) -> Option<ProtoId> {
        if proto != self.ether {
            return None;
        }
        network_offset(frame).and_then(|(ethertype, _)| self.of_type(ethertype))
    }

    fn of_type(&self, ethertype: u16) -> Option<ProtoId> {
        match ethertype {
            IPV4 => Some(self.ip),
            IPV6 => Some(self.ip6),
            ARP => Some(self.arp),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "handlers_tests.rs"]
mod tests;
