//! The namespace of a program, and its way to the host: a pair, limited in place, or two pairs with a wire between them.
//!
//! ```text
//!  program's namespace                                                host
//!  lo, eth0 [limit] ============================ pair ========= [limit] weirN   -- routing, netfilter --> uplinks
//!  10.87.0.2/30                                                 10.87.0.1/30
//!                             the wire's namespace
//!  lo, eth0 ========== pair == program [wire] host == pair ========= weirN
//! ```
//!
//! With a wire the second pair gives the packets back to the host: there its routing and its firewall see them as from any interface.
//! Neither namespace of ours has a name, so neither can be left behind: they go with the processes and descriptors that hold them, and the
//! pairs with them.
//!
//! Each end knows the other's Ethernet address for good, because a neighbour that is still being asked for costs packets. Where
//! the host has a way out, it masquerades the program ([`crate::way_out`]), for each of IPv4 and IPv6 by itself; otherwise the
//! program reaches the host alone. Without IPv6 on the host the program has none.
//!
//! Limits. `/sys` and abstract Unix sockets: the first still shows the host's interfaces, the second are the namespace's own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::{self, KernelRoute, Prefix};
use crate::error::{PortError, Result};
use crate::forwarding::{self, Setting, SettingBefore, SettingChange};
use crate::hold::{Hold, Thing};
use crate::limit::NetnsInterface;
use crate::link::{self, Link};
use crate::lock::Lock;
use crate::netns::NetNs;
use crate::subnet::{PairSubnet, Side, is_way_out};
use crate::sysctl;
use crate::undo::{Keeper, Undo};
use crate::veth::{self, VethEnd};
use crate::way_out::{NftTable, OpenedInterface, nftables};

/// The wire's interfaces: first the one where the program's packets come in.
pub const PORTS: [&str; 2] = ["program", "host"];
/// The queues of the program's pair: as many flows do not wait for each other.
const QUEUES_PROGRAM: u32 = 64;
/// The queues of the host's pair, for the way back. They are fewer, because each takes frames, and time when it is closed.
const QUEUES_HOST: u32 = 16;

/// The namespace and the way out made for a program.
pub struct Enclosure {
    /// The program's namespace.
    pub program: NetNs,
    /// The table of its way out, in the host's namespace, where there is one.
    pub way_out: Option<NftTable>,
}

/// The routes and the network for a program, found before anything is made.
struct Site {
    lock: Lock,
    routes: Vec<KernelRoute>,
    subnet: PairSubnet,
}

impl Site {
    /// Chooses a network for the program; no other process chooses one until this is dropped.
    fn choose(host: &NetNs) -> Result<Site> {
        let lock = Lock::take()?;
        let (routes, used) = host.run(|| Ok((address::routes()?, address::addresses()?)))?;
        let used: Vec<Prefix> = routes.iter().map(|route| route.to).chain(used).collect();
        let subnet = PairSubnet::choose(&used).ok_or_else(no_subnet)?;
        Ok(Site { lock, routes, subnet })
    }

    /// Sets addresses, routes and the way out, for a program behind `eth0` and a host behind `outer`.
    fn connect(
        &self,
        host: &NetNs,
        outer: &Link,
        program: &NetNs,
        eth0: &Link,
        keeper: &mut dyn Keeper,
    ) -> Result<Option<NftTable>> {
        let subnet = &self.subnet;
        let ipv6 = host.run(|| Ok(has_ipv6(outer)))? && program.run(|| Ok(has_ipv6(eth0)))?;
        host.run(|| settle(outer, subnet, Side::Host, ipv6))?;
        program.run(|| {
            link::set_up(Link::by_name("lo")?.ifindex, true)?;
            settle(eth0, subnet, Side::Program, ipv6)?;
            let mut gateways = addresses(subnet, Side::Host, ipv6);
            gateways.try_for_each(|gateway| address::add_default_route(eth0.ifindex, gateway.address))
        })?;
        let sources = addresses(subnet, Side::Program, ipv6).map(|prefix| prefix.address);
        open_way_out(&self.lock, host, outer, &self.routes, sources, keeper)
    }
}

/// Makes the program's namespace, for a wire. This thread must be in the wire's namespace, made for this and empty, where [`PORTS`] will be.
/// Changes to the host are recorded with `keeper` first.
pub fn make(host: &NetNs, keeper: &mut dyn Keeper) -> Result<Enclosure> {
    // The wire's own ends are for the wire alone: they speak no IPv6 of their own accord.
    sysctl::write_if_there("ipv6/conf/default/disable_ipv6", "1")?;
    let program = NetNs::new()?;
    let site = Site::choose(host)?;
    let pair = |name, far_name, side, netns, queues| {
        let near = VethEnd { name, address: None };
        veth::create(&near, &VethEnd { name: far_name, address: Some(ethernet(side)) }, netns, queues)
    };
    let (near_program, eth0) = pair(c"program", c"eth0", Side::Program, &program, QUEUES_PROGRAM)?;
    let (near_host, outer) = pair(c"host", c"weir%d", Side::Host, host, QUEUES_HOST)?;
    let here = NetNs::current()?;
    for near in [&near_program, &near_host] {
        // The pair would go with the namespace too, but a moment later.
        keeper.record(&here, Undo::of_link(near), None)?;
        link::set_up(near.ifindex, true)?;
    }
    let way_out = site.connect(host, &outer, &program, &eth0, keeper)?;
    Ok(Enclosure { program, way_out })
}

/// A program's namespace, and the ends of its pair, both limited.
pub struct Limited {
    /// The program's `eth0`, in its namespace.
    pub program: NetnsInterface,
    /// The host's end.
    pub host: NetnsInterface,
    /// The table of the way out, in the host's namespace, where there is one.
    pub way_out: Option<NftTable>,
}

/// The reason why a program has no namespace.
#[derive(Debug)]
pub enum EnclosureError {
    /// The network could not be made.
    Network(PortError),
    /// The ends of the network could not be limited; the network is removed.
    Limit(PortError),
}

impl From<PortError> for EnclosureError {
    fn from(error: PortError) -> EnclosureError {
        EnclosureError::Network(error)
    }
}

/// Makes the program's namespace and its pair, which `limit` limits before anything can be sent. This thread must be in the host's namespace.
pub fn make_limited(
    keeper: &mut dyn Keeper,
    limit: impl FnOnce(&Limited) -> Result<()>,
) -> std::result::Result<Limited, EnclosureError> {
    let host = NetNs::current()?;
    let program = NetNs::new()?;
    let end = |name, side| VethEnd { name, address: Some(ethernet(side)) };
    // The far end is the one that may have a number in its name, and one queue keeps the order of packets of several processors.
    let make = || veth::create(&end(c"eth0", Side::Program), &end(c"weir%d", Side::Host), &host, 1);
    let (eth0, outer) = program.run(make)?;
    let made = hold_made(&Lock::take()?, keeper, &Thing::made(&host, &outer));
    keeper.record(&host, Undo::of_link(&outer), made)?;
    let (program, host) =
        (NetnsInterface { netns: program, link: eth0 }, NetnsInterface { netns: host, link: outer });
    let mut limited = Limited { program, host, way_out: None };
    if let Err(error) = limit(&limited) {
        limited.host.netns.run(|| link::delete(limited.host.link.ifindex))?;
        return Err(EnclosureError::Limit(error));
    }
    // The lock of a site is for moments, and many classes take long.
    let site = Site::choose(&limited.host.netns)?;
    let (program, host) = (&limited.program, &limited.host);
    limited.way_out = site.connect(&host.netns, &host.link, &program.netns, &program.link, keeper)?;
    Ok(limited)
}

/// The addresses of one side: IPv4, and IPv6 if `ipv6`.
fn addresses(subnet: &PairSubnet, side: Side, ipv6: bool) -> impl Iterator<Item = Prefix> {
    [Some(subnet.v4(side)), ipv6.then(|| subnet.v6(side))].into_iter().flatten()
}

fn has_ipv6(link: &Link) -> bool {
    sysctl::read(&format!("ipv6/conf/{}/disable_ipv6", link.name)).as_deref() == Some("0")
}

/// Brings one side up with its own addresses and the other's as neighbours.
fn settle(link: &Link, subnet: &PairSubnet, side: Side, ipv6: bool) -> Result<()> {
    // There is no router to ask for and no host whose address could be the same.
    for setting in ["accept_dad", "accept_ra", "router_solicitations"] {
        sysctl::write_if_there(&format!("ipv6/conf/{}/{setting}", link.name), "0")?;
    }
    link::set_up(link.ifindex, true)?;
    let other = match side {
        Side::Host => Side::Program,
        Side::Program => Side::Host,
    };
    addresses(subnet, side, ipv6).try_for_each(|own| address::add_address(link.ifindex, own))?;
    addresses(subnet, other, ipv6)
        .try_for_each(|far| address::add_neighbour(link.ifindex, far.address, ethernet(other)))
}

/// The Ethernet address of one side: locally administered, with the number of this process, which makes one network. It is given when the
/// end is made, because udev changes one that is given later.
fn ethernet(side: Side) -> [u8; 6] {
    let [a, b, c, d] = std::process::id().to_be_bytes();
    [0x02, 0x50 | side as u8, a, b, c, d]
}

/// Lets the program out by `outer`, where the host has a way out; other traffic gets no way that it did not have before.
fn open_way_out(
    lock: &Lock,
    host: &NetNs,
    outer: &Link,
    routes: &[KernelRoute],
    sources: impl Iterator<Item = IpAddr>,
    keeper: &mut dyn Keeper,
) -> Result<Option<NftTable>> {
    let interfaces = |ipv6: bool| -> Vec<u32> {
        let ways = routes.iter().filter(|route| is_way_out(&route.to) && route.to.address.is_ipv6() == ipv6);
        let numbers: BTreeSet<u32> = ways.flat_map(|route| route.interfaces.iter().copied()).collect();
        numbers.into_iter().collect()
    };
    let mut sources: Vec<IpAddr> = sources.collect();
    let mut out = [interfaces(false), interfaces(true)];
    sources.retain(|source| !out[usize::from(source.is_ipv6())].is_empty());
    if !sources.iter().any(IpAddr::is_ipv6) {
        out[1].clear();
    }
    if sources.is_empty() {
        return Ok(None);
    }
    let name = host.run(|| nftables::name_for(outer))?;
    let made = hold_made(lock, keeper, &Thing::table(host, &name));
    keeper.record(host, Undo::NftTable { name: name.clone() }, made)?;
    host.run(|| {
        let before = |setting: Setting| {
            let noted = |setting: Setting| {
                Hold::noted_before::<SettingBefore>(&Thing::setting(host, &setting.name()))
            };
            forwarding::before_runs(setting, |setting| noted(setting).map(|noted| noted.was))
        };
        let changes = forwarding::plan(&out[0], &out[1], &link::joints()?, before);
        let opened =
            changes.iter().map(OpenedInterface::by).filter_map(Result::transpose).collect::<Result<_>>()?;
        let table = NftTable { name, ifindex: outer.ifindex, sources, opened };
        nftables::remove_left_behind()?;
        // The gate is shut before anything is opened.
        nftables::install(&table)?;
        for change in changes {
            let SettingChange { setting, .. } = change;
            let undo = |before| Undo::Setting { setting, before };
            let look = || SettingBefore::look(setting);
            match keeper.owner() {
                Some(owner) => {
                    let thing = Thing::setting(host, &setting.name());
                    let say = &mut |text: &str| keeper.say(text);
                    let (hold, before, _) = Hold::shared(lock, &thing, &owner, say, || Ok(look()))?;
                    keeper.record(host, undo(before), Some(hold))?;
                }
                None => keeper.record(host, undo(look()), None)?,
            }
            change.make()?;
        }
        // The settings of our own interface go with it.
        for setting in ["ipv4/conf/IFACE/forwarding", "ipv6/conf/IFACE/force_forwarding"] {
            sysctl::write_if_there(&setting.replace("IFACE", &outer.name), "1")?;
        }
        Ok(Some(table))
    })
}

fn hold_made(lock: &Lock, keeper: &dyn Keeper, thing: &Thing) -> Option<Hold> {
    Hold::made(lock, thing, &keeper.owner()?)
}

fn no_subnet() -> PortError {
    PortError::Unsuitable {
        name: "eth0".into(),
        why: "of the program's namespace needs a private network of its own, and the host has addresses or routes for all \
              of 10.87.0.0/16, 172.27.0.0/16, 100.87.0.0/16 and 198.18.0.0/16: free a /30 in one of them"
            .into(),
    }
}
