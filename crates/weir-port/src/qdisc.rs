//! The queue at a sending end: it must hold every packet that the device's ring does not take, and drop none.
//!
//! A veth whose ring is full stops its queue only if a qdisc is there to keep the packets (kernel `dc82a33297fc`); without
//! one they are dropped. The qdisc is `pfifo`, below `mq` where the device has several queues: it drops only past its limit,
//! unlike those with CoDel. What it holds stays charged to the senders' sockets, so their buffers bound it; the limit
//! bounds what is forwarded into the device, which has no socket here.
//!
//! Source: `tc-pfifo(8)`; kernel `net/sched/sch_mq.c`, `drivers/net/veth.c:veth_xmit`.

use netlink_bindings::tc::{self, TcFifoQopt, Tcmsg};
use netlink_socket2::NetlinkSocket;

use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::netlink::{acknowledged, explained, is_code};

const ROOT: u32 = 0xffff_ffff;
/// The handle by which Weir knows its own qdiscs again, also after a crash: `7765:`, "we" in ASCII.
const HANDLE: u32 = 0x7765_0000;
/// The limit of a device with one queue, in packets: above what the socket buffers of hundreds of senders hold, and a bound for
/// what is forwarded.
pub const LIMIT_SINGLE: u32 = 65_536;
/// The limit of each queue of a device with several.
const LIMIT_EACH: u32 = 16_384;

/// What a qdisc lost and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets it dropped.
    pub dropped: u64,
    /// Packets it holds.
    pub backlog: u64,
}

/// Puts the queue on an interface of this thread's namespace.
///
/// # Errors
/// If another qdisc is there: its rules are its owner's, and it may drop.
pub fn install(link: &Link) -> Result<()> {
    let mut socket = NetlinkSocket::new();
    if let Some((kind, handle)) = root(&mut socket, link)? {
        if handle != HANDLE {
            return Err(PortError::Unsuitable {
                name: link.name.clone(),
                why: format!(
                    "has a {kind} qdisc of its own, which could drop what weir must hold: remove it with \
                     `tc qdisc del dev {} root` in its namespace",
                    link.name
                ),
            });
        }
        remove(link.ifindex)?;
    }
    let add = |socket: &mut NetlinkSocket, handle: u32, parent: u32, limit: Option<u32>| {
        let header = Tcmsg { ifindex: link.ifindex as i32, handle, parent, ..Default::default() };
        let mut request = tc::Request::new().set_create().set_excl().op_newqdisc_do(&header);
        match limit {
            Some(limit) => drop(request.encode().nested_options_pfifo(&TcFifoQopt { limit })),
            None => drop(request.encode().push_kind(c"mq")),
        }
        acknowledged(socket, &request, || format!("giving {} a queue that holds its packets", link.name))
    };
    if link.tx_queues == 1 {
        return add(&mut socket, HANDLE, ROOT, Some(LIMIT_SINGLE));
    }
    add(&mut socket, HANDLE, ROOT, None)?;
    for queue in 1..=link.tx_queues {
        // `mq` has just filled its classes with default qdiscs, which have no handle and are replaced.
        add(&mut socket, 0, HANDLE | queue, Some(LIMIT_EACH))?;
    }
    Ok(())
}

/// Whether an interface of this thread's namespace has no qdisc that somebody chose, or only Weir's own.
pub fn is_absent(link: &Link) -> Result<bool> {
    Ok(root(&mut NetlinkSocket::new(), link)?.is_none_or(|(_, handle)| handle == HANDLE))
}

/// Takes the queue off an interface of this thread's namespace again; content with it being gone.
pub fn remove(ifindex: u32) -> Result<()> {
    let header = Tcmsg { ifindex: ifindex as i32, handle: HANDLE, parent: ROOT, ..Default::default() };
    let request = tc::Request::new().op_delqdisc_do(&header);
    let doing = || format!("removing the queue of interface number {ifindex}");
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::ENOENT) || is_code(&error, libc::ENODEV) => Ok(()),
        result => result,
    }
}

/// What the queue of an interface of this thread's namespace dropped and holds, over all its parts.
pub fn counters(ifindex: u32) -> Result<Counters> {
    let mut sum = Counters::default();
    each(&mut NetlinkSocket::new(), ifindex, |header, attributes| {
        // `mq` adds its children up; counting those too would count twice.
        if header.parent == ROOT
            && let Ok(queue) = attributes.get_stats2().and_then(|stats| stats.get_queue())
        {
            sum.dropped += u64::from(queue.drops);
            sum.backlog += u64::from(queue.qlen);
        }
    })?;
    Ok(sum)
}

fn root(socket: &mut NetlinkSocket, link: &Link) -> Result<Option<(String, u32)>> {
    let mut found = None;
    each(socket, link.ifindex, |header, attributes| {
        if header.parent == ROOT {
            let kind =
                attributes.get_kind().map(|kind| kind.to_string_lossy().into_owned()).unwrap_or_default();
            // What an interface is born with: nothing at all, or defaults without a handle.
            if kind != "noqueue" && header.handle != 0 {
                found = Some((kind, header.handle));
            }
        }
    })?;
    Ok(found)
}

fn each(
    socket: &mut NetlinkSocket,
    ifindex: u32,
    mut with: impl FnMut(&Tcmsg, &tc::IterableAttrs<'_>),
) -> Result<()> {
    let doing = || format!("reading the qdiscs of interface number {ifindex}");
    let request =
        tc::Request::new().op_getqdisc_dump(&Tcmsg { ifindex: ifindex as i32, ..Default::default() });
    let mut reply = socket.request(&request).doing(doing)?;
    while let Some(item) = reply.recv() {
        let (header, attributes) = item.map_err(|error| explained(error, doing()))?;
        if header.ifindex == ifindex as i32 {
            with(&header, &attributes);
        }
    }
    Ok(())
}
