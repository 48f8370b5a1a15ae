//! The topology file, `weir.toml`: it says a machine's limits in place, and the ports that Weir carries. It is read, checked and compared
//! with the machine.
//!
//! ```toml
//! name = "office"             # the name of the topology in `weir stat` [the file's name without .toml]
//!
//! [[limit]]
//! device = "veth-a"           # as `weir limit DEV`; or pid = 4711, and device is the interface there ["eth0"]
//! rate = "200mbit"            # the limit of what the programs behind it send
//! rate_back = "500mbit"       # the limit of what is sent to them; one of the two must be there
//! # burst = "100kb"           # [2 ms at the rate, 20kb at least]
//! # name = "office"           # [as it is called, or the device]
//! # optional = true           # where there is no such interface, it is skipped [false]
//! # classes_file = "o.toml"   # classes that share it, each way; relative to this file. Or here:
//! default = "bulk"            # as in a classes file, with [[limit.class]] and [[limit.filter]]
//!
//! [[limit.class]]
//! name = "bulk"
//! rate = "50mbit"
//! ceil = "200mbit"
//!
//! [[port]]                    # an interface whose packets are carried: a veth whose other end is where programs are
//! interface = "veth-b"
//! name = "b"                  # its name in other tables [the interface]
//! rate = "200mbit"            # the limit of packets that leave by it [none]
//! burst = "50kb"              # [2 ms at the rate, 20kb at least]
//! queue = "5ms"               # how much may stand, as a time at the rate; with classes each has its own [5ms]
//! # optional = true           # it may be missing at first, and is a port when it comes [false]
//! # classes_file, default, shaper, [[port.class]], [[port.filter]]: as below [[limit]], but all that a wire can
//!
//! [[wire]]                    # joins two
//! ports = ["b", "c"]          # ports, and ends of epairs
//! # dispatch = "hybrid"       # flows are dealt to the workers as netisr does it: direct, hybrid or deferred [they are not]
//! # set = ["proto.ip.full=ecn"]   # netisr's other settings: KEY=VALUE as of `weir sink --set`
//!
//! [[epair]]                   # a link with two ends, called e0a and e0b, as epair(4) of FreeBSD has them
//! name = "e0"
//!
//! [[bridge]]
//! name = "lan"
//! ports = ["d", "e", "e0a"]
//! stations_max = 4096         # [4096]
//! ageing = "300s"             # [300s]
//!
//! [[router]]
//! name = "gw"
//! [[router.interface]]
//! port = "e0b"
//! address = ["10.0.0.1/24", "fd00::1/64"]
//! mac = "02:00:00:00:00:01"   # [derived from the machine, the topology, the router and the port]
//! mtu = 1500                  # [1500]
//! [[router.route]]
//! to = "default"              # or a network
//! via = "10.0.0.254"          # or port = "e0b", where stations are on the link; both for a link-local one
//! [[router.neighbour]]        # one that is not asked for its MAC
//! address = "10.0.0.9"
//! mac = "02:00:00:00:00:09"
//!
//! [[esp]]                     # IPsec between two ports: seals packets that policies name, opens ESP to its addresses
//! name = "tunnel"
//! inside = "e1b"              # where packets are in the clear
//! outside = "wan"
//! address = ["192.0.2.1"]     # the gateway's addresses outside
//! mtu = 1500                  # [1500] the longest IP packet that leaves outside; the port there, and routers on the way, may take less
//!
//! [[sa]]                      # a security association; of the only [[esp]], or esp = "tunnel"
//! name = "there"
//! direction = "out"           # or "in"
//! spi = 0x1001
//! source = "192.0.2.1"
//! destination = "192.0.2.2"
//! mode = "tunnel"             # [tunnel], or "transport"
//! algorithm = "aes128-gcm"    # or aes256-gcm, chacha20-poly1305, null-hmac-sha256, null
//! key_file = "there.key"      # in hexadecimal digits, salt last; nobody else may read it; relative to this file
//! extended = true             # [false] sequence numbers of 64 bits
//! window = 1024               # [64] replay window of an inbound one, up to 1024
//! udp_ports = [4500, 4500]    # [none] in UDP
//! follow_peer = true          # [false] of an inbound one in UDP: send to where its packets come from, as where a NAT moves the peer
//! dont_fragment = "set"       # [set], "copy" or "clear" of the outer header; set, routers tell of a way that takes less
//! soft = { time = "3000s" }   # limits, each in time, bytes and packets: a successor is due,
//! hard = { time = "3600s" }   # and none passes any more
//!
//! [[policy]]                  # the first that matches decides; a packet that none names is dropped
//! direction = "out"
//! from = "10.1.0.0/16"        # [any]
//! to = "10.2.0.0/16"          # [any]
//! protocol = "udp"            # [any] and from_ports, to_ports = "1024-2047"
//! action = "protect"          # or "bypass", "discard"
//! sa = ["there"]              # going out the first that lives, coming in any
//! ```
//!
//! [`read`] takes a file apart and finds all faults that can be found without looking at the machine, with their places. [`diff`] finds the
//! changes, [`mod@write`] makes a file of the limits that there are, or of a plan.
//!
//! Rule: a file says all of a limit: a key that a table leaves out has its default, and classes that it does not have go. The one exception
//! is a name. A limit that no table names is not mentioned and not changed. Ports, and the tables that join them, become one [`Plan`], in
//! which each port and each end of an epair is joined once.
//!
//! Pure: no clock, no sockets; a classes file that it asks for is handed in. Limits: a key that may be built one day is refused with the
//! command that does it.

pub(crate) mod associations;
pub mod check;
mod class_tables;
pub mod diff;
mod dispatched;
mod esp_mtu;
pub mod file;
mod joined;
#[cfg(test)]
mod key_tests;
mod limits;
mod loops;
mod mac;
mod names;
#[cfg(test)]
mod path_tests;
mod policies;
mod ports;
pub mod routers;
mod routes;
mod schema;
mod segments;
pub mod stages;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod write;

use weir_core::rate::Rate;
use weir_path::classes::Classes;
use weir_path::plan::{Plan, StageKind};

use crate::ipsec::sentence_begin;

pub use check::read;
pub use file::name_of;
pub use schema::schema;

/// The device inside a process's namespace, unless the file names one.
pub const DEVICE_DEFAULT: &str = "eth0";
/// The rule for names of interfaces, in words.
const INTERFACE_NAME_IS: &str = "1 to 15 bytes without spaces, slashes and colons";

/// The content of a file, checked.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The name of its path.
    pub name: String,
    /// The limits, in the order of the file.
    pub limits: Vec<LimitWanted>,
    /// The plan of its ports and of the tables that join them; `None` without any. Seeds are 0: the caller who makes the path draws them.
    pub plan: Option<Plan>,
    /// The name of each port of the plan, and its place in the file.
    pub ports: Vec<TablePlace>,
    /// Each association, at the place of its key, or of its name if it has none.
    pub associations: Vec<TablePlace>,
    /// A sentence on each thing that is kept, but perhaps not as meant.
    pub warnings: Vec<String>,
}

impl Topology {
    /// These sentences, a line each, those on associations behind their places; `None` if none of them is on an association.
    pub fn placed(&self, sentences: &str) -> Option<Vec<String>> {
        let places: Vec<_> = sentences.lines().map(|line| (self.place_of_association(line), line)).collect();
        let placed = |(at, line): &(Option<&str>, &str)| match at {
            Some(at) => format!("{at}: {line}"),
            None => line.to_string(),
        };
        places.iter().any(|(at, _)| at.is_some()).then(|| places.iter().map(placed).collect())
    }

    /// The place of the association that a sentence of whoever runs the file is about; `None` of any other sentence.
    fn place_of_association(&self, sentence: &str) -> Option<&str> {
        let is_of = |place: &&TablePlace| sentence.starts_with(&sentence_begin(&place.name));
        self.associations.iter().find(is_of).map(|place| place.at.as_str())
    }

    /// The number of things of each kind.
    pub fn counts(&self) -> [(usize, &'static str); 6] {
        let stages = self.plan.as_ref().map_or(&[][..], |plan| &plan.stages);
        let bridges = stages.iter().filter(|stage| matches!(stage.kind, StageKind::Bridge { .. })).count();
        let esps = stages.iter().filter_map(|stage| match &stage.kind {
            StageKind::Esp(plan) => Some(plan),
            _ => None,
        });
        let associations = esps.clone().map(|plan| plan.associations.len()).sum();
        [
            (self.ports.len(), "port"),
            (bridges, "bridge"),
            (stages.len() - bridges - esps.clone().count(), "router"),
            (esps.count(), "esp"),
            (associations, "association"),
            (self.limits.len(), "limit"),
        ]
    }
}

/// A named table as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// Its name in other tables.
    pub name: String,
    /// The place in the file, `FILE:LINE:COLUMN`: of a port that of its interface.
    pub at: String,
}

/// One limit of a file.
#[derive(Clone, Debug)]
pub struct LimitWanted {
    /// The place of the limit in the file: `FILE:LINE:COLUMN`.
    pub at: String,
    /// The interface.
    pub device: String,
    /// The process in whose namespace the interface is, if not in this one's.
    pub pid: Option<u32>,
    /// The name of the limit, if the file gives one.
    pub name: Option<String>,
    /// The rate of the packets that programs behind the interface send.
    pub rate: Option<Rate>,
    /// The rate of the packets that are sent to them.
    pub rate_back: Option<Rate>,
    /// The number of bytes that may pass at once, if the file says so.
    pub burst_bytes: Option<u64>,
    /// The classes that share it; without any, none.
    pub classes: Classes,
    /// True if it may be missing.
    pub is_optional: bool,
}
