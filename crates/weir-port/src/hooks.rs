//! Hooks of others at an interface that a wire bypasses: they see neither packets that AF_XDP takes in nor packets that it sends.
//!
//! ```text
//! packet --> XDP --(to AF_XDP)            AF_XDP --> device
//!             +--> tcx, tc, netfilter's netdev --> stack --> netdev, tc, tcx --> qdisc --> device
//! ```
//!
//! Rule: a hook is only looked for, never touched. On a kernel that has no such hooks the list is empty.
//!
//! Source: `BPF_PROG_QUERY` of bpf(2); `tc-bpf(8)` for the parents of `clsact`; nft(8) on the `netdev` family. Limits: a tc filter is only
//! reported to be there, a tcx program by its number.

use std::collections::BTreeSet;
use std::io;

use netlink_bindings::nftables::{self, Nfgenmsg};
use netlink_bindings::tc::{self, Tcmsg};
use netlink_socket2::NetlinkSocket;

use crate::error::{PortError, Result};
use crate::link::Link;
use crate::sys;

/// The hooks at an interface of this thread's namespace, each by its name for people.
pub fn at(link: &Link) -> Vec<String> {
    let mut found = Vec::new();
    for (way, attach_type, parent) in
        [("ingress", BPF_TCX_INGRESS, TC_INGRESS), ("egress", BPF_TCX_EGRESS, TC_EGRESS)]
    {
        // A kernel that cannot list them has none, or no such hooks.
        let programs = tcx_programs(link.ifindex, attach_type).unwrap_or_default();
        found.extend(programs.into_iter().map(|id| format!("tcx program {id} on {way}")));
        if has_filter(link.ifindex, parent) {
            found.push(format!("a tc filter on {way} (`tc filter show dev {} {way}`)", link.name));
        }
    }
    found.extend(netdev_chains(&link.name));
    found
}

const BPF_PROG_QUERY: u32 = 16;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const TC_INGRESS: u32 = 0xffff_fff2;
const TC_EGRESS: u32 = 0xffff_fff3;
const NFPROTO_NETDEV: u8 = 5;

/// The numbers of the tcx programs that an interface of this thread's namespace runs on packets it sends, in the order in which they run:
/// the first `PROGRAMS_MAX`.
pub fn on_egress(ifindex: u32) -> io::Result<Vec<u32>> {
    tcx_programs(ifindex, BPF_TCX_EGRESS)
}

/// Fails on a kernel without tcx, before anything is attached there.
pub fn check_tcx(ifindex: u32) -> Result<()> {
    match tcx_programs(ifindex, BPF_TCX_EGRESS) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(PortError::Unsupported {
            what: "tcx, programs that see what a device is about to send (Linux 6.6, CONFIG_NET_XGRESS)"
                .into(),
            fix: "a wire needs Linux 6.16 or newer, `weir limit` does without".into(),
        }),
        // Other errors show when a program is attached.
        _ => Ok(()),
    }
}

/// The most programs at a hook that are looked at; the kernel allows as many (`BPF_MPROG_MAX`).
const PROGRAMS_MAX: usize = 64;

fn tcx_programs(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    /// The member of `union bpf_attr` for this command.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        ifindex: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        padding: u32,
        id_flags: u64,
        link_ids: u64,
        link_flags: u64,
        revision: u64,
    }
    let mut ids = [0u32; PROGRAMS_MAX];
    let mut query = Query {
        ifindex,
        attach_type,
        ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: the one address is of a live array of as many numbers as `count` says.
    match unsafe { sys::bpf(BPF_PROG_QUERY, &mut query) } {
        Ok(_) => Ok(ids.into_iter().take(query.count as usize).filter(|id| *id != 0).collect()),
        // No program was ever attached there.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn has_filter(ifindex: u32, parent: u32) -> bool {
    let header = Tcmsg { ifindex: ifindex as i32, parent, ..Default::default() };
    let request = tc::Request::new().op_gettfilter_dump(&header);
    let mut socket = NetlinkSocket::new();
    let Ok(mut reply) = socket.request(&request) else { return false };
    let mut found = false;
    while let Some(Ok((header, _))) = reply.recv() {
        found |= header.ifindex == ifindex as i32;
    }
    found
}

/// The chains of the family `netdev` that hook into the interface.
fn netdev_chains(name: &str) -> BTreeSet<String> {
    let mut header = Nfgenmsg::new();
    header.nfgen_family = NFPROTO_NETDEV;
    let request = nftables::Request::new().op_getchain_dump(&header);
    let mut socket = NetlinkSocket::new();
    let mut found = BTreeSet::new();
    let Ok(mut reply) = socket.request(&request) else { return found };
    while let Some(Ok((header, chain))) = reply.recv() {
        if header.nfgen_family != NFPROTO_NETDEV {
            continue;
        }
        let Ok(hook) = chain.get_hook() else { continue };
        let is_there = hook.get_dev().is_ok_and(|device| device.to_bytes() == name.as_bytes())
            || hook
                .get_devs()
                .is_ok_and(|devices| devices.get_name().any(|device| device.to_bytes() == name.as_bytes()));
        if let (true, Ok(table), Ok(chain)) = (is_there, chain.get_table(), chain.get_name()) {
            found.insert(format!(
                "the nftables chain netdev {} {}",
                table.to_string_lossy(),
                chain.to_string_lossy()
            ));
        }
    }
    found
}
