//! The queue at a sending end: it must hold every packet that the device's ring does not take, and drop none.
//!
//! A veth whose ring is full stops its queue only if a qdisc is there to keep the packets (kernel `dc82a33297fc`); without one they are
//! dropped. The qdisc is `pfifo`, below `mq` where the device can have several queues: it drops only past its limit, unlike those with
//! CoDel. Packets in it stay charged to the senders' sockets, whose buffers bound them; packets forwarded into the device have no socket
//! here, and are bounded in bytes before they get to the queue ([`crate::bpf::doorbell`]).
//!
//! Order. It depends on how many queues the device *can* have, not on how many it uses. Only a qdisc that has one of them for itself
//! (`TCQ_F_ONETXQUEUE`) asks whether the queue is stopped before it hands a packet over. Any other takes several out at once, and of those
//! that the device refuses, one that is refused again goes behind the rest: a `pfifo` at the root of a veth made without naming queues
//! reordered every tenth datagram. `mq` gives each queue one of its own, also those that only `ethtool -L` will bring into use.
//!
//! Source: `tc-pfifo(8)`; kernel `net/sched/sch_mq.c`, `net/sched/sch_generic.c:dequeue_skb`, `dev_requeue_skb`,
//! `drivers/net/veth.c:veth_xmit`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netlink_bindings::tc::{self, TcFifoQopt, Tcmsg};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils;
use netlink_socket2::NetlinkSocket;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::limit::htb;
use crate::link::Link;
use crate::netlink::{acknowledged, dump, dump_whole, is_code};
use crate::netns::NetNs;
use crate::waiting;

const ROOT: u32 = 0xffff_ffff;
/// The handle by which Weir recognises its own qdiscs, also after a crash: `7765:`, "we" in ASCII.
const HANDLE: u32 = 0x7765_0000;
/// The packets with a socket for which the one queue of a device has room: as many as the socket buffers of hundreds of senders hold.
pub const HELD_SINGLE: u32 = 65_536;
/// The packets with a socket for which each of several queues has room.
const HELD_EACH: u32 = 16_384;

/// The limit of each queue of a device, in packets: those with a socket, and above them those that may wait without one.
pub fn limit_packets(queues: u32) -> u32 {
    let held = if queues == 1 { HELD_SINGLE } else { HELD_EACH };
    held + waiting::packets_max(queues as usize)
}

/// `TCA_OPTIONS` of `include/uapi/linux/rtnetlink.h`.
const TCA_OPTIONS: u16 = 2;
/// The length of `struct tc_netem_qopt` of `include/uapi/linux/pkt_sched.h`, and the offset of the variation of the delay in it.
const NETEM_BYTES: usize = 24;
const NETEM_JITTER: usize = 20;
const TCA_NETEM_SLOT: u16 = 12;
/// The parent of `ingress` and `clsact`, which look at packets beside the queues and stay where they are.
const BESIDE: u32 = 0xffff_fff1;
/// Qdiscs of which the kernel tells all that it takes to make them again, as long as nothing was put below them. Of others it keeps part to
/// itself, such as tables (`red`, `choke`), or they mean nothing without their classes.
const WHOLE: [&str; 12] = [
    "pfifo",
    "bfifo",
    "pfifo_fast",
    "prio",
    "tbf",
    "sfq",
    "fq",
    "codel",
    "fq_codel",
    "fq_pie",
    "pie",
    "cake",
];

/// The most dumps for an interface that they do not show.
const DUMPS: usize = 3;

/// The losses and the backlog of a qdisc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets it dropped.
    pub dropped: u64,
    /// Packets it holds.
    pub backlog: u64,
    /// Packets it has handed on, modulo 2^32 as the kernel counts them.
    pub sent: u32,
}

/// The qdisc at the root of an interface, Weir's or another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Its kind; empty where there is none, as on an interface that has never been up.
    pub kind: String,
    /// True if it is Weir's, whole.
    pub is_ours: bool,
    /// Its losses and backlog.
    pub counters: Counters,
}

/// The root qdisc of an interface, to be read from any thread.
#[derive(Clone, Debug)]
pub struct RootQdisc {
    netns: Arc<NetNs>,
    ifindex: u32,
}

impl RootQdisc {
    /// The root qdisc of interface `ifindex` of `netns`.
    pub fn new(netns: Arc<NetNs>, ifindex: u32) -> RootQdisc {
        RootQdisc { netns, ifindex }
    }

    /// Its losses and backlog.
    pub fn counters(&self) -> Result<Counters> {
        self.netns.run(|| counters(self.ifindex))
    }
}

/// A qdisc that somebody else put on an interface, as netlink describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    kind: String,
    handle: u32,
    options: Vec<u8>,
}

/// The root qdisc that somebody chose for an interface of this thread's namespace, to be put back later; `None` if it is the default of a
/// new interface, or Weir's own.
///
/// # Errors
/// If it could not be put back as it was: it has classes, filters, or settings that the kernel does not tell.
pub fn save(link: &Link) -> Result<Option<Saved>> {
    let mut found = None;
    let mut children = None;
    each_of(link.ifindex, |header, attributes| {
        let kind = kind_of(attributes);
        if header.parent == BESIDE {
            return;
        }
        if header.parent != ROOT {
            if header.handle != 0 && header.parent >> 16 != HANDLE >> 16 {
                children = Some(kind);
            }
        } else if kind != "noqueue" && header.handle != 0 && header.handle != HANDLE {
            found = Some(Saved { kind, handle: header.handle, options: raw_options(attributes.get_buf()) });
        }
    })?;
    let refuse = |what: String| {
        Err(PortError::Unsuitable {
            name: link.name.clone(),
            why: format!(
                "has {what}, which could not be put back as it was: remove it with `tc qdisc del dev {} root` in its namespace",
                link.name
            ),
        })
    };
    match (&found, children) {
        (Some(Saved { handle: htb::HANDLE, .. }), _) => Err(PortError::Unsuitable {
            name: link.name.clone(),
            why: "is limited in place: `weir limit DEV --off` removes that, with DEV as it was given then (`weir stat` shows it)".into(),
        }),
        (Some(Saved { kind, .. }), Some(child)) => refuse(format!("a {kind} qdisc with {child} below it")),
        (None, Some(child)) => refuse(format!("a {child} qdisc for one of its queues")),
        (Some(saved), None) if !saved.is_whole() => refuse(format!("a {} qdisc", saved.kind)),
        (Some(saved), None) if has_filters(link.ifindex, saved.handle)? => {
            refuse(format!("filters at its {} qdisc", saved.kind))
        }
        _ => Ok(found),
    }
}

/// Returns whether the root qdisc of an interface of this thread's namespace is Weir's.
pub fn is_installed(ifindex: u32) -> Result<bool> {
    let mut is_there = false;
    each_of(ifindex, |header, _| {
        is_there |= header.parent == ROOT && header.handle == HANDLE;
    })?;
    Ok(is_there)
}

/// Returns whether nobody chose a root qdisc for an interface of this thread's namespace.
pub fn is_default(ifindex: u32) -> Result<bool> {
    let mut is_chosen = false;
    each_of(ifindex, |header, attributes| {
        is_chosen |= header.parent == ROOT && header.handle != 0 && kind_of(attributes) != "noqueue";
    })?;
    Ok(!is_chosen)
}

impl Saved {
    /// Returns whether the kernel has told all that it takes to make the qdisc again.
    fn is_whole(&self) -> bool {
        // A delay that varies, or slots, may follow a table that the kernel does not tell.
        let is_steady = || {
            self.options.split_at_checked(NETEM_BYTES).is_some_and(|(fixed, attributes)| {
                fixed[NETEM_JITTER..].iter().all(|&byte| byte == 0)
                    && attributes_of(attributes).all(|(kind, _)| kind != TCA_NETEM_SLOT)
            })
        };
        WHOLE.contains(&self.kind.as_str()) || (self.kind == "netem" && is_steady())
    }
}

/// Returns whether filters choose among the classes of the qdisc with this handle.
fn has_filters(ifindex: u32, handle: u32) -> Result<bool> {
    let doing = || format!("reading the filters of interface number {ifindex}");
    let header = Tcmsg { ifindex: ifindex as i32, parent: handle, ..Default::default() };
    let request = tc::Request::new().op_gettfilter_dump(&header);
    let mut found = false;
    dump(&request, doing, |_| found = true)?;
    Ok(found)
}

/// Puts the queue on an interface of this thread's namespace in place of the one that is there.
pub fn install(link: &Link) -> Result<()> {
    let mut socket = NetlinkSocket::new();
    let add = |socket: &mut NetlinkSocket, handle: u32, parent: u32, limit: Option<u32>| {
        let header = Tcmsg { ifindex: link.ifindex as i32, handle, parent, ..Default::default() };
        let mut request = tc::Request::new().set_create().set_replace().op_newqdisc_do(&header);
        match limit {
            Some(limit) => drop(request.encode().nested_options_pfifo(&TcFifoQopt { limit })),
            None => drop(request.encode().push_kind(c"mq")),
        }
        acknowledged(socket, &request, || format!("giving {} a queue that holds its packets", link.name))
    };
    // Whatever is there may have the handle, also below a root of another: no queue of another kind can be put under it then.
    delete_root(link.ifindex, 0)?;
    let limit = limit_packets(link.tx_queues.max(1));
    if link.tx_queues_max == 1 {
        return add(&mut socket, HANDLE, ROOT, Some(limit));
    }
    add(&mut socket, HANDLE, ROOT, None)?;
    for queue in 1..=link.tx_queues_max {
        // `mq` has just filled its classes with default qdiscs, which have no handle and are replaced.
        add(&mut socket, 0, HANDLE | queue, Some(limit))?;
    }
    Ok(())
}

/// Takes the queue off an interface of this thread's namespace again; an absent one is no error.
fn remove(ifindex: u32) -> Result<()> {
    delete_root(ifindex, HANDLE)
}

/// Deletes the root qdisc of an interface of this thread's namespace if it has this handle, or whichever there is if that is 0; an absent
/// one is no error.
fn delete_root(ifindex: u32, handle: u32) -> Result<()> {
    let header = Tcmsg { ifindex: ifindex as i32, handle, parent: ROOT, ..Default::default() };
    let request = tc::Request::new().op_delqdisc_do(&header);
    let doing = || format!("removing the queue of interface number {ifindex}");
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        // No qdisc there (ENOENT), no interface (ENODEV), or another's qdisc with another handle (EINVAL).
        Err(error)
            if [libc::ENOENT, libc::ENODEV, libc::EINVAL].iter().any(|&code| is_code(&error, code)) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Takes the queue off an interface of this thread's namespace and puts back what [`save`] found, unless somebody has chosen another since.
/// Returns whether it put one back.
pub fn put_back(ifindex: u32, saved: Option<&Saved>) -> Result<bool> {
    remove(ifindex)?;
    match saved {
        Some(saved) if is_default(ifindex)? => restore(ifindex, saved).map(|()| true),
        _ => Ok(false),
    }
}

/// Puts back what [`save`] found; content with the interface being gone.
fn restore(ifindex: u32, saved: &Saved) -> Result<()> {
    let header = Tcmsg { ifindex: ifindex as i32, handle: saved.handle, parent: ROOT, ..Default::default() };
    let mut request = tc::Request::new().set_create().set_replace().op_newqdisc_do(&header);
    let mut attributes = request.encode().push_kind_bytes(saved.kind.as_bytes());
    if !saved.options.is_empty() {
        utils::push_header(attributes.as_vec_mut(), TCA_OPTIONS, saved.options.len() as u16);
        attributes.as_vec_mut().extend(&saved.options);
    }
    drop(attributes);
    let doing = || format!("putting the {} qdisc of interface number {ifindex} back", saved.kind);
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::ENODEV) => Ok(()),
        result => result,
    }
}

/// The losses and the backlog of the queue of an interface of this thread's namespace, over all its parts.
fn counters(ifindex: u32) -> Result<Counters> {
    root(ifindex).map(|root| root.counters)
}

/// The qdisc at the root of an interface of this thread's namespace.
pub fn root(ifindex: u32) -> Result<Root> {
    let mut root = None;
    until_shown(|| {
        root = Roots::read()?.of(ifindex).cloned();
        Ok(root.is_some())
    })?;
    Ok(root.unwrap_or_default())
}

/// The qdiscs at the roots of all interfaces of a namespace, at one time. The kernel tells of all at once, so whoever looks at many
/// interfaces asks once. An interface that was passed over may be asked for by [`root`].
#[derive(Clone, Debug, Default)]
pub struct Roots(HashMap<u32, Root>);

impl Roots {
    /// Those of this thread's namespace.
    pub fn read() -> Result<Roots> {
        let (mut roots, mut not_whole) = (HashMap::<u32, Root>::new(), HashSet::new());
        each(&mut |header, attributes| {
            // `mq` adds its children up; adding those too would count twice.
            let (ifindex, kind) = (header.ifindex as u32, kind_of(attributes));
            if header.parent != ROOT {
                if header.parent >> 16 == HANDLE >> 16 && kind != "pfifo" {
                    not_whole.insert(ifindex);
                }
                return;
            }
            let queue = attributes.get_stats2().and_then(|stats| Ok((stats.get_queue()?, stats)));
            let counters = queue.map_or_else(
                |_| Counters::default(),
                |(queue, stats)| Counters {
                    dropped: queue.drops.into(),
                    backlog: queue.qlen.into(),
                    sent: stats.get_basic().map_or(0, |basic| basic.packets),
                },
            );
            roots.insert(ifindex, Root { kind, is_ours: header.handle == HANDLE, counters });
        })?;
        for ifindex in not_whole {
            if let Some(root) = roots.get_mut(&ifindex) {
                root.is_ours = false;
            }
        }
        Ok(Roots(roots))
    }

    /// That of an interface; none if it had none, or was not there.
    pub fn of(&self, ifindex: u32) -> Option<&Root> {
        self.0.get(&ifindex)
    }
}

/// The value of the attribute TCA_OPTIONS among the attributes of a qdisc, as the kernel wrote it.
pub fn raw_options(attributes: &[u8]) -> Vec<u8> {
    let options = attributes_of(attributes).find(|(kind, _)| *kind == TCA_OPTIONS);
    options.map(|(_, value)| value.to_vec()).unwrap_or_default()
}

/// Kinds and values of attributes, up to the first that is cut short.
fn attributes_of(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = bytes.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        // The two high bits say how the value is encoded.
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The kind of a qdisc, such as `mq`.
fn kind_of(attributes: &tc::IterableAttrs<'_>) -> String {
    attributes.get_kind().map(|kind| kind.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Every qdisc of an interface of this thread's namespace, some more than once.
fn each_of(ifindex: u32, mut with: impl FnMut(&Tcmsg, &tc::IterableAttrs<'_>)) -> Result<()> {
    until_shown(|| {
        let mut is_shown = false;
        each(&mut |header, attributes| {
            if header.ifindex == ifindex as i32 {
                is_shown |= header.parent == ROOT;
                with(header, attributes);
            }
        })?;
        Ok(is_shown)
    })
}

/// Looks until an interface's root is shown, or it counts as having none: a list in parts may pass it over ([`dump_whole`]). To ask for one
/// alone (`RTM_GETQDISC` with a parent) would tell everybody who listens for changes of qdiscs, each time
/// (`net/sched/sch_api.c:tc_get_qdisc`).
pub(crate) fn until_shown(mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..DUMPS {
        if look()? {
            break;
        }
    }
    Ok(())
}

/// Hands each qdisc of this thread's namespace to a function.
pub(crate) type Lister = fn(&mut dyn FnMut(&Tcmsg, &tc::IterableAttrs<'_>)) -> Result<()>;

/// Every qdisc of this thread's namespace, once: some may be passed over while others go.
pub(crate) fn each(with: &mut dyn FnMut(&Tcmsg, &tc::IterableAttrs<'_>)) -> Result<()> {
    dump(&qdiscs(), reading_qdiscs, |(header, attributes)| with(&header, &attributes))
}

/// Every qdisc of this thread's namespace, none passed over.
pub(crate) fn each_of_all(with: &mut dyn FnMut(&Tcmsg, &tc::IterableAttrs<'_>)) -> Result<()> {
    dump_whole(&qdiscs(), reading_qdiscs, |(header, attributes)| with(&header, &attributes))
}

fn qdiscs() -> tc::OpGetqdiscDump<'static> {
    tc::Request::new().op_getqdisc_dump(&Tcmsg::default())
}

fn reading_qdiscs() -> String {
    "reading the qdiscs of a network namespace".into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::thread;

    use super::*;
    use crate::probe::scratch::{self, ScratchPair};
    use crate::sys;

    fn netem(jitter: u32, attributes: &[(u16, &[u8])]) -> Saved {
        let mut options = vec![0; NETEM_JITTER];
        options.extend(jitter.to_ne_bytes());
        for (kind, value) in attributes {
            options.extend((4 + value.len() as u16).to_ne_bytes());
            options.extend(kind.to_ne_bytes());
            options.extend(*value);
        }
        Saved { kind: "netem".into(), handle: 0x1_0000, options }
    }

    #[test]
    fn a_delay_that_may_follow_a_table_is_not_whole() {
        const TCA_NETEM_CORR: u16 = 1;
        assert!(netem(0, &[(TCA_NETEM_CORR, &[0; 12])]).is_whole());
        assert!(!netem(7, &[]).is_whole());
        assert!(!netem(0, &[(TCA_NETEM_CORR, &[0; 12]), (TCA_NETEM_SLOT, &[0; 40])]).is_whole());
        assert!(!Saved { options: vec![0; 8], ..netem(0, &[]) }.is_whole(), "cut short");
    }

    #[test]
    fn a_qdisc_that_somebody_chose_since_stays() {
        if !sys::is_root() {
            return;
        }
        let kinds = scratch::run(|answer| {
            let link = ScratchPair::new(c"near", &NetNs::current()?)?.receiver;
            let saved = |kind: &str, handle| Saved { kind: kind.into(), handle, options: Vec::new() };
            let kind = || root(link.ifindex).map(|root| root.kind);
            restore(link.ifindex, &saved("bfifo", 0x1_0000))?;
            let before = save(&link)?;
            install(&link)?;
            let mut kinds = vec![(put_back(link.ifindex, before.as_ref())?, kind()?)];
            install(&link)?;
            restore(link.ifindex, &saved("pfifo", 0x2_0000))?;
            kinds.push((put_back(link.ifindex, before.as_ref())?, kind()?));
            answer(kinds);
            Ok(())
        });
        assert_eq!(kinds.unwrap(), [(true, "bfifo".to_string()), (false, "pfifo".to_string())]);
    }

    #[test]
    fn what_goes_while_the_kernel_lists_hides_nothing_that_stays() {
        if !sys::is_root() {
            return;
        }
        const PAIRS: usize = 60;
        let missed = scratch::run(|answer| {
            let ip = |commands: String| {
                let mut ip = Command::new("ip");
                let mut ip = ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
                ip.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
                assert!(ip.wait().unwrap().success());
            };
            // The kernel lists them in the order in which they were made.
            for name in ["goes", "stays"] {
                let add = |pair| format!("link add {name}{pair}a up type veth peer name {name}{pair}b\n");
                ip((0..PAIRS).map(add).collect());
            }
            let stay: Vec<_> =
                (0..PAIRS).map(|pair| Link::by_name(&format!("stays{pair}a")).unwrap().ifindex).collect();
            let (looks, mut missed) = (AtomicUsize::new(0), 0);
            thread::scope(|scope| {
                let going = scope.spawn(|| {
                    for pair in 0..PAIRS {
                        let seen = looks.load(Relaxed);
                        ip(format!("link del goes{pair}a\n"));
                        // No look comes upon more than two that go.
                        while looks.load(Relaxed) < seen + 2 {
                            thread::yield_now();
                        }
                    }
                });
                while !going.is_finished() {
                    let mut seen = HashSet::new();
                    each_of_all(&mut |header, _| {
                        seen.insert(header.ifindex as u32);
                    })
                    .unwrap();
                    missed += stay.iter().filter(|ifindex| !seen.contains(ifindex)).count();
                    looks.fetch_add(1, Relaxed);
                }
            });
            answer(missed);
            Ok(())
        });
        assert_eq!(missed.unwrap(), 0);
    }

    #[test]
    fn only_what_the_kernel_tells_wholly_is_put_back() {
        let of = |kind: &str| Saved { kind: kind.into(), handle: 0x1_0000, options: Vec::new() };
        assert!(of("fq").is_whole());
        assert!(!of("red").is_whole());
        assert!(!of("htb").is_whole());
    }
}
