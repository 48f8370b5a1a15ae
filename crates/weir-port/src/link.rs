//! Interfaces: the kernel's record of one, and the conditions for it to be a port.
//!
//! Source: rtnetlink(7); `drivers/net/veth.c` for the peer.

use std::ffi::CString;

use netlink_bindings::rt_link::{self, Ifinfomsg};
use netlink_socket2::NetlinkSocket;

use crate::error::{Doing, PortError, Result};
use crate::ethtool;
use crate::netlink::{acknowledged, dump, explained, is_code};
use crate::netns::NetNs;

/// The kernel's record of an interface of this thread's namespace.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Its number in its namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its kind, such as `veth`; empty for hardware.
    pub kind: String,
    /// The longest payload it carries, in bytes, without the Ethernet header.
    pub mtu_bytes: u32,
    /// True if it is the loopback of its namespace.
    pub is_loopback: bool,
    /// True if it is administratively up.
    pub up: bool,
    /// True if it has a carrier.
    pub has_carrier: bool,
    /// The number of times that it lost or got its carrier, since it was made.
    pub carrier_changes: u32,
    /// The bridge or bond it belongs to.
    pub master: Option<u32>,
    /// Its Ethernet address.
    pub address: [u8; 6],
    /// The number of its receive queues.
    pub rx_queues: u32,
    /// The number of its transmit queues.
    pub tx_queues: u32,
    /// Packets that the device dropped where they came in, since it was made.
    pub rx_dropped: u64,
    /// Packets that the device dropped where they were to go out, since it was made.
    pub tx_dropped: u64,
    /// The most transmit queues that `ethtool -L` could set: as many as the kernel made room for with the interface.
    pub tx_queues_max: u32,
    /// The longest packet it is given to cut into segments, in bytes.
    pub gso_bytes_max: u32,
    /// The bytes before the network's header in packets it is given to send; of Ethernet, tags not counted.
    pub link_header_bytes: u32,
    /// The number of the XDP program that is attached.
    pub xdp_program: Option<u32>,
    /// For a veth, the number of its other end in the other end's namespace.
    pub peer_ifindex: Option<u32>,
    /// The namespace of that end, as this one numbers it; `None` where both ends share one.
    pub peer_netns_id: Option<i32>,
}

impl Link {
    /// The interface called `name` in this thread's namespace.
    pub fn by_name(name: &str) -> Result<Link> {
        let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::new());
        let Some(c_name) = kernel_name(name) else {
            return Err(PortError::NoInterface { name: name.into() });
        };
        request.encode().push_ifname(&c_name);
        Link::get(&request, name)
    }

    /// The interface with number `ifindex` in this thread's namespace.
    pub fn by_index(ifindex: u32) -> Result<Link> {
        let header = Ifinfomsg { ifi_index: ifindex as i32, ..Default::default() };
        Link::get(&rt_link::Request::new().op_getlink_do(&header), &format!("number {ifindex}"))
    }

    fn get(request: &rt_link::OpGetlinkDo<'_>, name: &str) -> Result<Link> {
        let doing = || format!("reading interface {name}");
        let mut socket = NetlinkSocket::new();
        let mut reply = socket.request(request).doing(doing)?;
        let (header, attributes) = match reply.recv_one() {
            Ok(link) => link,
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::ENODEV) => {
                return Err(PortError::NoInterface { name: name.into() });
            }
            Err(error) => return Err(explained(error, doing())),
        };
        let info = attributes.get_linkinfo().ok();
        let kind = info.and_then(|info| info.get_kind().ok().map(|kind| kind.to_string_lossy().into_owned()));
        let name = attributes.get_ifname().map_or(name.into(), |name| name.to_string_lossy().into_owned());
        let channels = ethtool::channels(header.ifi_index as u32, &name)?;
        let kind = kind.unwrap_or_default();
        let is_veth = kind == "veth";
        let stats = attributes.get_stats64().unwrap_or_default();
        Ok(Link {
            ifindex: header.ifi_index as u32,
            name,
            mtu_bytes: attributes.get_mtu().unwrap_or(0),
            is_loopback: header.ifi_flags & libc::IFF_LOOPBACK as u32 != 0,
            up: header.ifi_flags & libc::IFF_UP as u32 != 0,
            has_carrier: header.ifi_flags & libc::IFF_LOWER_UP as u32 != 0,
            carrier_changes: attributes.get_carrier_changes().unwrap_or(0),
            master: attributes.get_master().ok(),
            address: attributes
                .get_address()
                .ok()
                .and_then(|bytes| bytes.try_into().ok())
                .unwrap_or_default(),
            rx_queues: channels.rx,
            tx_queues: channels.tx,
            rx_dropped: stats.rx_dropped,
            tx_dropped: stats.tx_dropped,
            tx_queues_max: attributes.get_num_tx_queues().unwrap_or(0).max(channels.tx),
            link_header_bytes: match header.ifi_type {
                libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => 14,
                _ => 0,
            },
            gso_bytes_max: attributes.get_gso_max_size().unwrap_or(65_536),
            xdp_program: attributes
                .get_xdp()
                .ok()
                .filter(|xdp| xdp.get_attached().is_ok_and(|mode| mode != 0))
                .map(|xdp| xdp.get_prog_id().unwrap_or(0)),
            peer_ifindex: attributes.get_link().ok().filter(|_| is_veth),
            peer_netns_id: attributes.get_link_netnsid().ok().filter(|_| is_veth),
            kind,
        })
    }

    /// The other end of a veth and the namespace it lives in.
    pub fn peer(&self) -> Result<(NetNs, Link)> {
        let ifindex = self.peer_index()?;
        let netns = match self.peer_netns_id {
            Some(id) => NetNs::by_id_here(id)?,
            None => NetNs::current()?,
        };
        let link = netns.run(|| Link::by_index(ifindex))?;
        Ok((netns, link))
    }

    /// The name of the other end of a veth of this thread's namespace, also where nothing leads to the namespace that it is in; `None` if the
    /// kernel does not tell it.
    pub fn peer_name(&self) -> Option<String> {
        let header = Ifinfomsg { ifi_index: self.peer_ifindex? as i32, ..Default::default() };
        let mut request = rt_link::Request::new().op_getlink_do(&header);
        if let Some(id) = self.peer_netns_id {
            request.encode().push_target_netnsid(id);
        }
        let mut socket = NetlinkSocket::new();
        let mut reply = socket.request(&request).ok()?;
        let (_, attributes) = reply.recv_one().ok()?;
        Some(attributes.get_ifname().ok()?.to_string_lossy().into_owned())
    }

    /// The other end of a veth, which lives in `netns`.
    pub fn peer_in(&self, netns: &NetNs) -> Result<Link> {
        let ifindex = self.peer_index()?;
        netns.run(|| Link::by_index(ifindex))
    }

    fn peer_index(&self) -> Result<u32> {
        self.peer_ifindex.ok_or_else(|| {
            let kind = if self.kind.is_empty() { "not a veth" } else { &self.kind };
            PortError::Unsuitable {
                name: self.name.clone(),
                why: format!(
                    "is {kind}: weir takes over veth interfaces alone, such as `ip link add NAME type veth peer name OTHER` makes"
                ),
            }
        })
    }
}

/// A name as the kernel takes it; `None` if no interface can have that name.
///
/// Source: kernel `net/core/dev.c:dev_valid_name`, whose spaces (`lib/ctype.c`) are those of Latin-1.
pub fn kernel_name(name: &str) -> Option<CString> {
    let is_refused = |byte| matches!(byte, b'/' | b':' | b' ' | b'\t'..=b'\r' | 0xa0);
    let fits = (1..libc::IFNAMSIZ).contains(&name.len()) && !matches!(name, "." | "..");
    CString::new(name).ok().filter(|_| fits && !name.bytes().any(is_refused))
}

/// Sets an interface of this thread's namespace up or down.
pub fn set_up(ifindex: u32, up: bool) -> Result<()> {
    let flag = libc::IFF_UP as u32;
    let header = Ifinfomsg {
        ifi_index: ifindex as i32,
        ifi_flags: if up { flag } else { 0 },
        ifi_change: flag,
        ..Default::default()
    };
    let request = rt_link::Request::new().op_newlink_do(&header);
    acknowledged(&mut NetlinkSocket::new(), &request, || {
        format!("setting interface number {ifindex} up or down")
    })
}

/// The record of how an interface is joined to others of its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joint {
    /// Its number.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// True if it is an end of a pair.
    pub is_veth: bool,
    /// The bridge or bond it belongs to.
    pub master: Option<u32>,
    /// The device below it, as a VLAN and a macvlan have one; `None` where that is in another namespace.
    pub below: Option<u32>,
}

/// Every interface of this thread's namespace.
pub fn joints() -> Result<Vec<Joint>> {
    let doing = || "listing the interfaces of a network namespace".to_string();
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
    let mut joints = Vec::new();
    dump(&request, doing, |(header, attributes)| {
        let info = attributes.get_linkinfo().ok();
        let is_veth = info.is_some_and(|info| info.get_kind().is_ok_and(|kind| kind == c"veth"));
        let is_here = attributes.get_link_netnsid().is_err();
        joints.push(Joint {
            ifindex: header.ifi_index as u32,
            name: attributes.get_ifname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            is_veth,
            master: attributes.get_master().ok(),
            below: attributes.get_link().ok().filter(|_| is_here && !is_veth),
        });
    })?;
    Ok(joints)
}

/// The Ethernet addresses of the ports of a bridge of this thread's namespace.
pub fn addresses_of_ports(bridge: u32) -> Result<Vec<[u8; 6]>> {
    let doing = || format!("listing the ports of bridge number {bridge}");
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
    let mut addresses = Vec::new();
    dump(&request, doing, |(_, attributes)| {
        if attributes.get_master().is_ok_and(|master| master == bridge) {
            let address = attributes.get_address().ok();
            addresses.extend(address.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()));
        }
    })?;
    Ok(addresses)
}

/// Deletes an interface of this thread's namespace (a veth takes its other end along); an absent one is no error.
pub fn delete(ifindex: u32) -> Result<()> {
    let header = Ifinfomsg { ifi_index: ifindex as i32, ..Default::default() };
    let request = rt_link::Request::new().op_dellink_do(&header);
    let doing = || format!("deleting interface number {ifindex}");
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::ENODEV) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_takes_is_a_name() {
        for name in ["eth0", "eth0.7@x", "abcdefghijklmno", "w\u{e9}", "..."] {
            assert_eq!(kernel_name(name).unwrap().to_bytes(), name.as_bytes());
        }
        for name in ["", "abcdefghijklmnop", ".", "..", "a b", "a\tb", "a/b", "a:b", "a\0b", "w\u{e0}"] {
            assert_eq!(kernel_name(name), None, "{name:?}");
        }
    }
}
