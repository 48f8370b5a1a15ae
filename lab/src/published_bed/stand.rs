//! The published bed, standing between two hosts: the kernel's, or Weir's.
//!
//! ```text
//!  client      middle                     jail                      middle       server
//!  veth0 ---- p0 [left] e0a --------- e0b [router] e1b --------- e1a [right] p1 ---- veth0
//! ```
//! `left` and `right` are bridges. Of the kernel's bed each line is a veth pair, four in all. Of Weir's the outer two are: bridges,
//! epairs and router are one process in `middle`, and there is no jail. Pairs are made as container runtimes make them. Addresses are
//! asked for by ARP, and no packet is limited.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use anyhow::Result;

use crate::bed::{End, Namespace, plain_veth};
use crate::up::Up;
use crate::web::Server;

/// The address of the web server.
pub const WEB: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 2, 2), 80);

const FILE: &str = r#"
[[port]]
interface = "p0"
[[port]]
interface = "p1"
[[epair]]
name = "e0"
[[epair]]
name = "e1"
[[bridge]]
name = "left"
ports = ["p0", "e0a"]
[[bridge]]
name = "right"
ports = ["p1", "e1a"]
[[router]]
name = "jail"
[[router.interface]]
port = "e0b"
address = ["10.99.1.1/24"]
[[router.interface]]
port = "e1b"
address = ["10.99.2.1/24"]
"#;

/// The systems that make the bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// `weir up`.
    Weir,
    /// Linux's bridges, routing and veth pairs.
    Kernel,
    /// Linux's with the hosts' offloads off: its packets are frames with checksums, as on a wire, and as on Weir's ports.
    KernelFrames,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 3] = [System::Weir, System::Kernel, System::KernelFrames];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::Weir => "weir",
            System::Kernel => "kernel",
            System::KernelFrames => "kernel-frames",
        }
    }
}

/// A bed with a web server behind it. Programs in its namespaces end before they do.
#[derive(Debug)]
pub struct Stand {
    /// The web server of the server's host.
    pub web: Server,
    up: Option<Up>,
    /// The client's host.
    pub client: Namespace,
    /// The server's host.
    pub server: Namespace,
    _between: Vec<Namespace>,
}

impl Stand {
    /// Builds it, and waits until a page came through it.
    pub fn new(system: System, weir_binary: &Path) -> Result<Stand> {
        let (client, server, middle) =
            (Namespace::new("client")?, Namespace::new("server")?, Namespace::new("middle")?);
        for (net, host) in [(1, &client), (2, &server)] {
            let port = format!("p{}", net - 1);
            plain_veth(net, End { namespace: host, name: "veth0" }, End { namespace: &middle, name: &port })?;
            host.ip(&format!("addr add 10.99.{net}.2/24 dev veth0"))?;
            host.ip(&format!("route add default via 10.99.{net}.1"))?;
            if system == System::KernelFrames {
                host.sh("ethtool -K veth0 tx off tso off gso off")?;
            }
        }
        let (up, between) = if system == System::Weir {
            (Some(Up::start(weir_binary, &middle, FILE)?), vec![middle])
        } else {
            let jail = kernel(&middle)?;
            (None, vec![jail, middle])
        };
        let web = Server::start(&server, &client, WEB)?;
        Ok(Stand { web, up, client, server, _between: between })
    }

    /// Fails unless every packet is accounted for, where somebody keeps accounts.
    pub fn check(&self) -> Result<()> {
        self.up.as_ref().map_or(Ok(()), Up::check)
    }
}

/// The kernel's bed in `middle` and a jail.
fn kernel(middle: &Namespace) -> Result<Namespace> {
    let jail = Namespace::new("jail")?;
    for (index, bridge) in ["left", "right"].into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|side| format!("e{index}{side}"));
        let inner = End { namespace: &jail, name: &b };
        plain_veth(index as u8 + 3, End { namespace: middle, name: &a }, inner)?;
        jail.ip(&format!("addr add 10.99.{}.1/24 dev {b}", index + 1))?;
        middle.ip(&format!("link add name {bridge} type bridge"))?;
        for port in [format!("p{index}"), a] {
            middle.ip(&format!("link set {port} master {bridge}"))?;
        }
        middle.ip(&format!("link set {bridge} up"))?;
    }
    jail.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    Ok(jail)
}
