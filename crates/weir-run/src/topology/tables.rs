//! The tables of a topology file as they are written: every key with its type, every value with its place.
//!
//! Rule: a key that is not known is refused, so that a slip of the pen is never something left out. The same types write a file.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::classes::file::{ClassTable, Filter, Word};

/// A list of texts, each with its place.
pub type Texts = Spanned<Vec<Spanned<String>>>;

/// The file.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(title = "weir.toml", deny_unknown_fields)]
pub struct TopologyFile {
    /// Its name.
    #[schemars(with = "Option<String>")]
    pub name: Option<Spanned<String>>,
    /// `[[limit]]`, in order; and so for the others.
    #[serde(default, rename = "limit", skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitTable>,
    /// `[[port]]`.
    #[serde(default, rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortTable>,
    /// `[[wire]]`.
    #[serde(default, rename = "wire", skip_serializing_if = "Vec::is_empty")]
    pub wires: Vec<WireTable>,
    /// `[[epair]]`.
    #[serde(default, rename = "epair", skip_serializing_if = "Vec::is_empty")]
    pub epairs: Vec<EpairTable>,
    /// `[[bridge]]`.
    #[serde(default, rename = "bridge", skip_serializing_if = "Vec::is_empty")]
    pub bridges: Vec<BridgeTable>,
    /// `[[router]]`.
    #[serde(default, rename = "router", skip_serializing_if = "Vec::is_empty")]
    pub routers: Vec<RouterTable>,
    /// `[[esp]]`.
    #[serde(default, rename = "esp", skip_serializing_if = "Vec::is_empty")]
    pub esps: Vec<EspTable>,
    /// `[[sa]]`.
    #[serde(default, rename = "sa", skip_serializing_if = "Vec::is_empty")]
    pub associations: Vec<AssociationTable>,
    /// `[[policy]]`, in order.
    #[serde(default, rename = "policy", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyTable>,
    /// Whether tables are missing here that could not be read, so that names may be missing that the file has.
    #[serde(skip)]
    pub is_partial: bool,
    /// True if the file says `limit = []`: that there is none.
    #[serde(skip)]
    pub has_no_limit: bool,
}

/// `[[limit]]`.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    /// The span of the table.
    #[serde(skip)]
    pub at: Range<usize>,
    /// The interface.
    #[schemars(with = "Option<String>")]
    pub device: Option<Spanned<String>>,
    /// The process whose namespace it is in.
    #[schemars(with = "Option<i64>")]
    pub pid: Option<Spanned<i64>>,
    /// Its name.
    #[schemars(with = "Option<String>")]
    pub name: Option<Spanned<String>>,
    /// The rate of what programs behind it may send.
    #[schemars(with = "Option<String>", extend("examples" = ["200mbit"]))]
    pub rate: Option<Spanned<String>>,
    /// The rate of what may be sent to them.
    #[schemars(with = "Option<String>", extend("examples" = ["50mbit"]))]
    pub rate_back: Option<Spanned<String>>,
    /// How much may pass at once.
    #[schemars(with = "Option<String>", extend("examples" = ["50kb"]))]
    pub burst: Option<Spanned<String>>,
    /// Whether it may be missing.
    pub optional: Option<bool>,
    /// Where its classes are.
    #[schemars(with = "Option<String>")]
    pub classes_file: Option<Spanned<String>>,
    /// The class of what no filter matches.
    #[schemars(with = "Option<String>")]
    pub default: Option<Spanned<String>>,
    /// `[[limit.class]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<ClassTable>,
    /// `[[limit.filter]]`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Filter>,
}

/// `[[port]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortTable {
    /// The span of the table.
    #[serde(skip)]
    pub at: Range<usize>,
    /// The interface.
    #[schemars(with = "String")]
    pub interface: Spanned<String>,
    /// The name by which other tables call it.
    #[schemars(with = "Option<String>")]
    pub name: Option<Spanned<String>>,
    /// The limit of what leaves by it.
    #[schemars(with = "Option<String>", extend("examples" = ["200mbit"]))]
    pub rate: Option<Spanned<String>>,
    /// How much may pass at once.
    #[schemars(with = "Option<String>", extend("examples" = ["50kb"]))]
    pub burst: Option<Spanned<String>>,
    /// How much may stand, as a time at the rate.
    #[schemars(with = "Option<String>", extend("examples" = ["5ms"]))]
    pub queue: Option<Spanned<String>>,
    /// Whether it may be missing at first.
    #[schemars(with = "Option<bool>")]
    pub optional: Option<Spanned<bool>>,
    /// Where its classes are.
    #[schemars(with = "Option<String>")]
    pub classes_file: Option<Spanned<String>>,
    /// The kind of tree of the classes that are here.
    #[schemars(with = "Option<String>")]
    pub shaper: Option<Spanned<String>>,
    /// The class of what no filter matches.
    #[schemars(with = "Option<String>")]
    pub default: Option<Spanned<String>>,
    /// `[[port.class]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<ClassTable>,
    /// `[[port.filter]]`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Filter>,
}

/// `[[wire]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WireTable {
    /// The two that it joins.
    #[schemars(with = "Vec<String>")]
    pub ports: Texts,
    /// How its packets are dispatched to the workers, if they are.
    #[schemars(with = "Option<String>", extend("examples" = ["hybrid"]))]
    pub dispatch: Option<Spanned<String>>,
    /// Settings of that, each a `KEY=VALUE`.
    #[schemars(with = "Option<Vec<String>>", extend("examples" = [["proto.ip.qlimit=512"]]))]
    pub set: Option<Texts>,
}

/// `[[epair]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpairTable {
    /// Its name; its ends have an `a` and a `b` behind that.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
}

/// `[[bridge]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BridgeTable {
    /// The span of the table.
    #[serde(skip)]
    pub at: Range<usize>,
    /// Its name.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The ports that it joins.
    #[schemars(with = "Vec<String>")]
    pub ports: Texts,
    /// How many stations it remembers.
    #[schemars(with = "Option<i64>")]
    pub stations_max: Option<Spanned<i64>>,
    /// For how long, as a text with its unit.
    #[schemars(with = "Option<String>", extend("examples" = ["300s"]))]
    pub ageing: Option<Spanned<String>>,
}

/// `[[router]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterTable {
    /// The span of the table.
    #[serde(skip)]
    pub at: Range<usize>,
    /// Its name.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// `[[router.interface]]`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interface: Vec<InterfaceTable>,
    /// `[[router.route]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<StaticRouteTable>,
    /// `[[router.neighbour]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbour: Vec<NeighbourTable>,
}

/// `[[router.interface]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceTable {
    /// The port or epair end.
    #[schemars(with = "String")]
    pub port: Spanned<String>,
    /// Its addresses, each with the length of its network's prefix.
    #[schemars(with = "Vec<String>")]
    pub address: Texts,
    /// Its link-layer address.
    #[schemars(with = "Option<String>", extend("examples" = ["02:00:00:00:00:01"]))]
    pub mac: Option<Spanned<String>>,
    /// The longest IP packet that its link takes, in bytes; 1500 by default, and never more than the ports take that it leads to.
    #[schemars(with = "Option<i64>")]
    pub mtu: Option<Spanned<i64>>,
}

/// `[[router.route]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticRouteTable {
    /// Where it leads: a network, or `default`.
    #[schemars(with = "String")]
    pub to: Spanned<String>,
    /// The router that packets are handed to.
    #[schemars(with = "Option<String>")]
    pub via: Option<Spanned<String>>,
    /// The interface that they leave by, where `via` does not say it.
    #[schemars(with = "Option<String>")]
    pub port: Option<Spanned<String>>,
}

/// `[[router.neighbour]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeighbourTable {
    /// Its address.
    #[schemars(with = "String")]
    pub address: Spanned<String>,
    /// Its link-layer address.
    #[schemars(with = "String", extend("examples" = ["02:00:00:00:00:01"]))]
    pub mac: Spanned<String>,
    /// The interface whose link it is on, where the address does not say it.
    #[schemars(with = "Option<String>")]
    pub port: Option<Spanned<String>>,
}

/// `[[esp]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EspTable {
    /// The span of the table.
    #[serde(skip)]
    pub at: Range<usize>,
    /// Its name.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The port or epair end where packets are in the clear.
    #[schemars(with = "String")]
    pub inside: Spanned<String>,
    /// The port or epair end where they are protected.
    #[schemars(with = "String")]
    pub outside: Spanned<String>,
    /// The addresses of the gateway outside.
    #[schemars(with = "Vec<String>")]
    pub address: Texts,
    /// The longest IP packet that leaves outside, in bytes.
    #[schemars(with = "Option<i64>")]
    pub mtu: Option<Spanned<i64>>,
    /// When its packets are sealed and opened: `direct`, `hybrid` or `deferred`.
    #[schemars(with = "Option<String>", extend("examples" = ["deferred"]))]
    pub dispatch: Option<Spanned<String>>,
    /// How many packets wait for that on each side before who feeds them is held.
    #[schemars(with = "Option<i64>")]
    pub queue_packets: Option<Spanned<i64>>,
    /// How many sealers share what one worker would seal and open alone, in the same order: always with `deferred`, when it is faster with `hybrid`.
    #[schemars(with = "Option<i64>")]
    pub sealers: Option<Spanned<i64>>,
}

/// `[[sa]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssociationTable {
    /// Its name.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The `[[esp]]` that it is of, where there are several.
    #[schemars(with = "Option<String>")]
    pub esp: Option<Spanned<String>>,
    /// `in` or `out`.
    #[schemars(with = "String")]
    pub direction: Spanned<String>,
    /// The security parameter index.
    #[schemars(with = "i64")]
    pub spi: Spanned<i64>,
    /// Where its packets come from.
    #[schemars(with = "String")]
    pub source: Spanned<String>,
    /// Where they go to.
    #[schemars(with = "String")]
    pub destination: Spanned<String>,
    /// `tunnel` or `transport`.
    #[schemars(with = "Option<String>")]
    pub mode: Option<Spanned<String>>,
    /// The algorithm.
    #[schemars(with = "String", extend("examples" = ["aes128-gcm"]))]
    pub algorithm: Spanned<String>,
    /// The file that its key is in, which nobody else may read.
    #[schemars(with = "Option<String>")]
    pub key_file: Option<Spanned<String>>,
    /// Whether sequence numbers have 64 bits.
    pub extended: Option<bool>,
    /// The replay window, in packets.
    #[schemars(with = "Option<i64>")]
    pub window: Option<Spanned<i64>>,
    /// The ports of its UDP, from and to.
    #[schemars(with = "Option<[u16; 2]>")]
    pub udp_ports: Option<Spanned<[u16; 2]>>,
    /// After how long without a packet a keepalive is sent, if it is out and in UDP; `off` is never.
    #[schemars(with = "Option<String>", extend("examples" = ["20s"]))]
    pub keepalive: Option<Spanned<String>>,
    /// Whether the peer's address and port are those of its last packet, as where a NAT gives it others; of what comes in by UDP. Not on a
    /// gateway that is behind a NAT itself.
    #[schemars(with = "Option<bool>")]
    pub follow_peer: Option<Spanned<bool>>,
    /// DF of the outer header: `set`, `copy` or `clear`. Where it is set, routers tell of a way that takes less.
    #[schemars(with = "Option<String>")]
    pub dont_fragment: Option<Spanned<String>>,
    /// From when a successor is due.
    #[serde(default, skip_serializing_if = "LifetimeTable::is_empty")]
    pub soft: LifetimeTable,
    /// From when no packet passes.
    #[serde(default, skip_serializing_if = "LifetimeTable::is_empty")]
    pub hard: LifetimeTable,
}

/// `soft` and `hard` of a `[[sa]]`.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table, such as { bytes = \"100gb\" }")]
pub struct LifetimeTable {
    /// Since it began, as a text with its unit.
    #[schemars(with = "Option<String>", extend("examples" = ["3600s"]))]
    pub time: Option<Spanned<String>>,
    /// Bytes that passed, as a number or as a text with its unit.
    #[schemars(with = "Option<Word>", extend("examples" = ["100gb"]))]
    pub bytes: Option<Spanned<Word>>,
    /// Packets that passed.
    pub packets: Option<u64>,
}

/// `[[policy]]`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTable {
    /// The `[[esp]]` that it is of, where there are several.
    #[schemars(with = "Option<String>")]
    pub esp: Option<Spanned<String>>,
    /// `in` or `out`.
    #[schemars(with = "String")]
    pub direction: Spanned<String>,
    /// Where packets come from.
    #[schemars(with = "Option<String>", extend("examples" = ["10.1.0.0/16"]))]
    pub from: Option<Spanned<String>>,
    /// Where they go to.
    #[schemars(with = "Option<String>", extend("examples" = ["10.2.0.0/16"]))]
    pub to: Option<Spanned<String>>,
    /// Their protocol, by name or number.
    #[schemars(with = "Option<Word>")]
    pub protocol: Option<Spanned<Word>>,
    /// The port they are sent from, or a range of ports.
    #[schemars(with = "Option<Word>")]
    pub from_ports: Option<Spanned<Word>>,
    /// The port they are sent to, or a range of ports.
    #[schemars(with = "Option<Word>")]
    pub to_ports: Option<Spanned<Word>>,
    /// `protect`, `bypass` or `discard`.
    #[schemars(with = "String")]
    pub action: Spanned<String>,
    /// The associations that protect, the first that lives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub sa: Vec<Spanned<String>>,
}

impl LifetimeTable {
    /// Whether it has no limit.
    pub fn is_empty(&self) -> bool {
        self.time.is_none() && self.bytes.is_none() && self.packets.is_none()
    }
}

impl TopologyFile {
    /// Whether there is anything that `weir up` carries.
    pub fn has_path(&self) -> bool {
        self.first_of_path().is_some()
    }

    /// The first place of anything that `weir up` carries.
    pub fn first_of_path(&self) -> Option<Range<usize>> {
        let ports = self.ports.iter().map(|port| port.interface.span());
        let wires = self.wires.iter().map(|wire| wire.ports.span());
        let epairs = self.epairs.iter().map(|epair| epair.name.span());
        let bridges = self.bridges.iter().map(|bridge| bridge.name.span());
        let routers = self.routers.iter().map(|router| router.name.span());
        let esps = self.esps.iter().map(|esp| esp.name.span());
        let associations = self.associations.iter().map(|table| table.name.span());
        let policies = self.policies.iter().map(|table| table.action.span());
        let all = ports.chain(wires).chain(epairs).chain(bridges).chain(routers);
        let all = all.chain(esps).chain(associations).chain(policies);
        all.min_by_key(|at| at.start)
    }
}

impl PortTable {
    /// The port's name in other tables.
    pub fn called(&self) -> &Spanned<String> {
        self.name.as_ref().unwrap_or(&self.interface)
    }
}
