//! Making veth pairs, one end here and the other in another namespace.
//!
//! Both ends have all their queues in use at once, because the numbers are given explicitly (kernel `drivers/net/veth.c:veth_init_queues`),
//! and the addresses that are asked for, which udev then leaves alone.
//!
//! Source: rtnetlink(7); `include/uapi/linux/veth.h`, `VETH_INFO_PEER`.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_bindings::rt_link::{self, Ifinfomsg, PushLinkAttrs};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::{finalize_nested_header, push_header, push_nested_header};
use netlink_socket2::NetlinkSocket;

use crate::error::Result;
use crate::link::Link;
use crate::netlink::acknowledged;
use crate::netns::NetNs;

const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_NET_NS_FD: u16 = 28;

/// An end to make.
pub struct VethEnd<'a> {
    /// Its name; `%d` in it becomes the first number that is free.
    pub name: &'a CStr,
    /// Its Ethernet address; any will do if none is given.
    pub address: Option<[u8; 6]>,
}

/// Makes a pair with `queues` queues each way at both ends, `near` in this thread's namespace and `far` in `far_netns`. Both are down.
/// Returns the links of both.
pub fn create(near: &VethEnd<'_>, far: &VethEnd<'_>, far_netns: &NetNs, queues: u32) -> Result<(Link, Link)> {
    let mut request = rt_link::Request::new().set_create().set_excl().op_newlink_do(&Ifinfomsg::default());
    let mut info = describe(request.encode(), near, queues).nested_linkinfo().push_kind(c"veth");
    let message = info.as_vec_mut();
    let data = push_nested_header(message, IFLA_INFO_DATA);
    let peer = push_nested_header(message, VETH_INFO_PEER);
    message.extend(Ifinfomsg::default().as_slice());
    describe(PushLinkAttrs::new(&mut *message), far, queues);
    push_header(message, IFLA_NET_NS_FD, 4);
    message.extend(far_netns.as_fd().as_raw_fd().to_ne_bytes());
    finalize_nested_header(message, peer);
    finalize_nested_header(message, data);
    drop(info);
    let name = near.name.to_string_lossy();
    acknowledged(&mut NetlinkSocket::new(), &request, || format!("making the veth pair of {name}"))?;
    let link = Link::by_name(&name)?;
    let peer = link.peer_in(far_netns)?;
    Ok((link, peer))
}

fn describe<P: Pusher>(attributes: PushLinkAttrs<P>, end: &VethEnd<'_>, queues: u32) -> PushLinkAttrs<P> {
    let attributes = attributes.push_ifname(end.name).push_num_tx_queues(queues).push_num_rx_queues(queues);
    match end.address {
        Some(address) => attributes.push_address(&address),
        None => attributes,
    }
}
