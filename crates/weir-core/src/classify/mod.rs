//! Classification: finds the class of a packet. The first rule that matches decides; every condition a rule states must hold, and one it
//! does not state always does.
//!
//! "The cluster is free, the internet is limited" is two rules and a default:
//!
//! ```text
//! to 10.0.0.0/8      free
//! to fd00::/8        free
//! (otherwise)        class 0
//! ```
//!
//! Rules are looked at in order, so work grows with their number, which is bounded by [`RULES_MAX`]. Written
//! once, read by any number of workers; a change is a new classifier.
//!
//! Limits: a port condition matches only packets that show their ports ([`headers`]); a subnet condition only
//! IP. Later fragments show none, and go where the first of their datagram went ([`fragments`]).

use std::{fmt, net::IpAddr, ops::RangeInclusive};

use headers::{Headers, has_ports};

pub mod fragments;
pub mod headers;

/// The most rules a classifier takes.
pub const RULES_MAX: usize = 4096;

/// The target of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The class of this index.
    Class(u16),
    /// No class: the packet passes by the shaper.
    Free,
}

/// Conditions, and the target of packets that meet all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The conditions that must hold.
    pub conditions: Conditions,
    /// The target.
    pub target: Target,
}

/// The conditions of a rule on a packet; a field that is `None` is not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The index of the port by which the packet entered.
    pub interface: Option<u16>,
    /// Source address.
    pub from: Option<Subnet>,
    /// Destination address.
    pub to: Option<Subnet>,
    /// Transport protocol number.
    pub protocol: Option<u8>,
    /// Source port.
    pub from_ports: Option<RangeInclusive<u16>>,
    /// Destination port.
    pub to_ports: Option<RangeInclusive<u16>>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
    /// A share of all flows.
    pub flows: Option<FlowShare>,
}

/// The flows whose hash leaves remainder `index` when divided by `of`: one of `of` even shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShare {
    /// The number of shares.
    pub of: u32,
    /// The share, from 0.
    pub index: u32,
}

/// An address and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    address: IpAddr,
    prefix_len: u8,
}

impl Subnet {
    /// The subnet of an address; `None` if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Subnet> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (prefix_len <= bits).then_some(Subnet { address, prefix_len })
    }

    /// An address in the subnet.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits of the address that count.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Returns whether an address is in the subnet. IPv4 and IPv6 addresses are never in each other's subnets.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differing = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differing >= u32::from(self.prefix_len)
    }

    fn covers(&self, other: &Subnet) -> bool {
        self.prefix_len <= other.prefix_len && self.contains(other.address)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// The reason why a set of rules is refused or does not do what it says. `rule` is the index of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFault {
    /// There are more than [`RULES_MAX`] rules.
    TooMany {
        /// The number of rules.
        rules: usize,
    },
    /// No packet can meet all conditions of a rule.
    Impossible {
        /// The rule.
        rule: usize,
        /// The contradiction.
        why: &'static str,
    },
    /// An earlier rule takes every packet that this one could.
    Shadowed {
        /// The rule.
        rule: usize,
        /// The earlier rule.
        by: usize,
    },
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleFault::TooMany { rules } => {
                write!(f, "{rules} rules are more than {RULES_MAX}; join subnets or port ranges")
            }
            RuleFault::Impossible { rule, why } => {
                write!(f, "rule {} can never match: {why}; take one of the two out", rule + 1)
            }
            RuleFault::Shadowed { rule, by } => {
                write!(
                    f,
                    "rule {} can never match: rule {} takes all its packets; put it first",
                    rule + 1,
                    by + 1
                )
            }
        }
    }
}

impl std::error::Error for RuleFault {}

/// Rules in order, and the target of packets that none matches.
#[derive(Clone, Debug)]
pub struct Classifier {
    rules: Vec<Rule>,
    otherwise: Target,
}

impl Classifier {
    /// A classifier that can be used; see [`Self::faults`] for rules that do nothing.
    pub fn new(rules: Vec<Rule>, otherwise: Target) -> Result<Classifier, RuleFault> {
        if rules.len() > RULES_MAX {
            return Err(RuleFault::TooMany { rules: rules.len() });
        }
        Ok(Classifier { rules, otherwise })
    }

    /// The rules, in the order in which they are asked.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The target of packets that no rule matches.
    pub fn otherwise(&self) -> Target {
        self.otherwise
    }

    /// The target of a packet that entered by `interface` and whose flow hashes to `flow_hash`.
    pub fn classify(&self, interface: u16, flow_hash: u32, headers: &Headers) -> Target {
        self.rules
            .iter()
            .find(|rule| rule.conditions.hold(interface, flow_hash, headers))
            .map_or(self.otherwise, |rule| rule.target)
    }

    /// Rules that can never match, each once: worth a warning, not a refusal.
    ///
    /// A rule hidden only by several earlier ones together is not found.
    pub fn faults(&self) -> Vec<RuleFault> {
        let fault = |(rule, Rule { conditions, .. }): (usize, &Rule)| {
            if let Some(why) = conditions.contradiction() {
                return Some(RuleFault::Impossible { rule, why });
            }
            let by = self.rules[..rule].iter().position(|earlier| earlier.conditions.cover(conditions))?;
            Some(RuleFault::Shadowed { rule, by })
        };
        self.rules.iter().enumerate().filter_map(fault).collect()
    }
}

impl Conditions {
    fn hold(&self, interface: u16, flow_hash: u32, headers: &Headers) -> bool {
        let ip = headers.ip.as_ref();
        self.interface.is_none_or(|wanted| wanted == interface)
            && self.from.is_none_or(|subnet| ip.is_some_and(|ip| subnet.contains(ip.source)))
            && self.to.is_none_or(|subnet| ip.is_some_and(|ip| subnet.contains(ip.destination)))
            && self.protocol.is_none_or(|wanted| ip.is_some_and(|ip| ip.protocol == wanted))
            && self.dscp.is_none_or(|wanted| ip.is_some_and(|ip| ip.dscp == wanted))
            && range_holds(&self.from_ports, headers.ports.map(|ports| ports.0))
            && range_holds(&self.to_ports, headers.ports.map(|ports| ports.1))
            && self.flows.is_none_or(|share| flow_hash.checked_rem(share.of) == Some(share.index))
    }

    /// Returns whether every packet that meets `other` meets these too.
    fn cover(&self, other: &Conditions) -> bool {
        let subnet_covers = |mine: Option<Subnet>, theirs: Option<Subnet>| {
            mine.is_none_or(|mine| theirs.is_some_and(|theirs| mine.covers(&theirs)))
        };
        let range_covers = |mine: &Option<RangeInclusive<u16>>, theirs: &Option<RangeInclusive<u16>>| {
            mine.as_ref().is_none_or(|mine| {
                theirs
                    .as_ref()
                    .is_some_and(|theirs| mine.contains(theirs.start()) && mine.contains(theirs.end()))
            })
        };
        (self.interface.is_none() || self.interface == other.interface)
            && subnet_covers(self.from, other.from)
            && subnet_covers(self.to, other.to)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && range_covers(&self.from_ports, &other.from_ports)
            && range_covers(&self.to_ports, &other.to_ports)
            && (self.dscp.is_none() || self.dscp == other.dscp)
            && (self.flows.is_none() || self.flows == other.flows)
    }

    /// The reason why no packet can meet these conditions; `None` if one can.
    pub fn contradiction(&self) -> Option<&'static str> {
        let empty =
            |range: &Option<RangeInclusive<u16>>| range.as_ref().is_some_and(RangeInclusive::is_empty);
        if empty(&self.from_ports) || empty(&self.to_ports) {
            return Some("the port range ends before it begins");
        }
        if (self.from_ports.is_some() || self.to_ports.is_some())
            && self.protocol.is_some_and(|p| !has_ports(p))
        {
            return Some("the protocol has no ports");
        }
        if self.from.zip(self.to).is_some_and(|(from, to)| from.address.is_ipv4() != to.address.is_ipv4()) {
            return Some("one subnet is IPv4 and the other IPv6");
        }
        if self.dscp.is_some_and(|dscp| dscp > 63) {
            return Some("a DSCP is at most 63");
        }
        if self.flows.is_some_and(|share| share.index >= share.of) {
            return Some("there is no such share of the flows");
        }
        None
    }
}

fn range_holds(range: &Option<RangeInclusive<u16>>, port: Option<u16>) -> bool {
    range.as_ref().is_none_or(|range| port.is_some_and(|port| range.contains(&port)))
}

#[cfg(test)]
mod tests;
