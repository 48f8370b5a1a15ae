//! The kernel's objects of a limit in place: the HTB qdisc under a handle of ours, its classes with a queue each, and the filter.
//!
//! Rule: every request can be repeated with the same result, so repeating them finishes a limit that was left half made. The qdisc and the
//! class of packets for which no leaf is found go to the kernel in one call: in between packets have nowhere to wait, because none may pass
//! past the classes (`direct_qlen` 0: a priority of `7769:0`, which a container may set, would otherwise be the way round the limit). That
//! class takes packets before there is a root class, and `tree.rs` puts it below the root.
//!
//! Source: `include/uapi/linux/pkt_sched.h`, `pkt_cls.h`; kernel `net/sched/sch_htb.c`, `sch_api.c:tc_modify_qdisc`.

use std::collections::HashMap;
use std::time::Duration;

use netlink_bindings::tc::{self, TcHtbGlob, TcHtbOpt, TcRatespec, TcTbfQopt, Tcmsg};
use netlink_bindings::traits::NetlinkRequest;
use netlink_bindings::utils::chop_header;
use netlink_socket2::NetlinkSocket;
use weir_core::limit::gate::Tokens;
use weir_core::limit::{FALLBACK, HtbClass, LeafQueue, ROOT_CLASS};

use super::filter::{Spot, content_if_gone};
use crate::error::{Doing, PortError, Result};
use crate::netlink::{RequestBatch, dump, explained, is_code};
use crate::qdisc::{self, Lister, until_shown};
use crate::sys::Realtime;

/// The handle by which a limit is recognised: `7769:`, "wi" in ASCII.
pub const HANDLE: u32 = 0x7769_0000;
const ROOT: u32 = 0xffff_ffff;
/// `NLM_F_DUMP` with `NLM_F_REQUEST`.
const DUMP: u16 = (libc::NLM_F_DUMP | libc::NLM_F_REQUEST) as u16;
/// `NLM_F_ECHO`: who asks for one class is told as well; all who listen for changes are, in any case.
const ECHO: u16 = libc::NLM_F_ECHO as u16;
/// `TC_LINKLAYER_ETHERNET`: the kernel then asks for no table of times.
const LINK_LAYER_ETHERNET: u8 = 1;
const HTB_VERSION: u32 = 3;
/// The unit of times in the kernel's records, 2^6 ns (`PSCHED_SHIFT`).
const TICK_BITS: u32 = 6;
/// The rate of the token bucket of a leaf: the longest packet takes it less than a nanosecond, so it has always room for one. `tc` shows no
/// higher one in bits.
const UNHELD_BYTES_PER_S: u64 = 1 << 60;
/// The requests sent at once, whose acknowledgements must fit the socket's buffer.
const REQUESTS_AT_ONCE: usize = 48;

/// The root queue of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// The queue that a new interface has, or a `noqueue` that somebody chose; its handle, 0 if nobody chose one.
    Default(u32),
    /// The queue of a limit.
    Limit,
    /// Another queue: its kind and handle.
    Other(String, u32),
}

/// The root queue of an interface, with its counters.
#[derive(Clone, Debug)]
pub struct RootQueue {
    /// The number of the interface.
    pub ifindex: u32,
    /// The queue.
    pub kind: RootKind,
    /// Its counters and backlog.
    pub traffic: QueueTraffic,
    /// The packets that the queues of its leaves dropped, by the number of the leaf's class; none for the others. The root counts a
    /// packet that is cut as dropped only if all of its segments are.
    pub dropped_by_leaf: HashMap<u16, u64>,
}

/// The counters and the backlog of a queue, as the kernel keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTraffic {
    /// Packets sent.
    pub packets: u64,
    /// Their bytes, headers of segments included.
    pub bytes: u64,
    /// Packets dropped, which the kernel counts in 32 bits.
    pub dropped: u64,
    /// Packets waiting.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
}

impl QueueTraffic {
    /// The packets dropped beyond those that are `known` of, whose count may be of 64 bits; 0 if it was read later and is ahead.
    pub fn dropped_beyond(&self, known: u64) -> u64 {
        // More are not dropped between two reads of one look.
        const AHEAD_MAX: u32 = 1 << 24;
        match (self.dropped as u32).wrapping_sub(known as u32) {
            beyond if beyond > u32::MAX - AHEAD_MAX => 0,
            beyond => beyond.into(),
        }
    }
}

/// The interval between looks at leaves that are to be empty.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The number of looks before a command gives up.
pub const LOOKS: usize = 100;

/// The rates and bursts of a class, as the kernel keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRates {
    rate_bytes_per_s: u64,
    ceil_bytes_per_s: u64,
    burst_ticks: u32,
    ceil_burst_ticks: u32,
}

impl ClassRates {
    fn of(class: &HtbClass) -> ClassRates {
        let ticks = |ns: u64| u32::try_from(ns.div_ceil(1 << TICK_BITS)).unwrap_or(u32::MAX);
        ClassRates {
            rate_bytes_per_s: class.rate_bytes_per_s,
            ceil_bytes_per_s: class.ceil_bytes_per_s,
            burst_ticks: ticks(class.burst_ns),
            ceil_burst_ticks: ticks(class.ceil_burst_ns),
        }
    }

    fn read(attributes: &tc::IterableAttrs<'_>) -> ClassRates {
        let Ok(tc::OptionsMsg::Htb(options)) = attributes.get_options() else { return ClassRates::default() };
        let parameters = options.get_parms().unwrap_or_default();
        ClassRates {
            rate_bytes_per_s: options.get_rate64().unwrap_or(u64::from(parameters.rate.rate)),
            ceil_bytes_per_s: options.get_ceil64().unwrap_or(u64::from(parameters.ceil.rate)),
            burst_ticks: parameters.buffer,
            ceil_burst_ticks: parameters.cbuffer,
        }
    }
}

/// One class of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTraffic {
    /// Its number.
    pub number: u16,
    /// The number of the class that it is below, 0 if it is below none.
    pub parent: u16,
    /// Its rates and bursts.
    pub rates: ClassRates,
    /// Its counters and backlog.
    pub traffic: QueueTraffic,
    /// The bytes it may still send, as of its last packet.
    pub tokens: Tokens,
}

impl ClassTraffic {
    /// Returns whether the class is as a plan has it.
    pub fn is_as(&self, class: &HtbClass) -> bool {
        (self.number, self.parent, self.rates) == (class.number, class.parent, ClassRates::of(class))
    }
}

/// The root of an interface of this thread's namespace.
pub fn root(ifindex: u32) -> Result<RootKind> {
    Ok(root_queue(ifindex)?.map_or(RootKind::Default(0), |root| root.kind))
}

/// The queue at the root of an interface of this thread's namespace; `None` if the kernel shows none.
pub fn root_queue(ifindex: u32) -> Result<Option<RootQueue>> {
    let mut root = None;
    until_shown(|| {
        root = listed(qdisc::each)?.into_iter().find(|root| root.ifindex == ifindex);
        Ok(root.is_some())
    })?;
    Ok(root)
}

/// The root of every interface of this thread's namespace.
pub fn roots() -> Result<Vec<RootQueue>> {
    listed(qdisc::each_of_all)
}

fn listed(list: Lister) -> Result<Vec<RootQueue>> {
    let mut roots = Vec::new();
    let mut dropped: HashMap<u32, HashMap<u16, u64>> = HashMap::new();
    list(&mut |header, attributes| {
        let ifindex = header.ifindex as u32;
        if header.parent & 0xffff_0000 == HANDLE {
            let of_leaf = traffic(attributes).dropped;
            if of_leaf > 0 {
                dropped.entry(ifindex).or_default().insert(header.parent as u16, of_leaf);
            }
        }
        if header.parent != ROOT {
            return;
        }
        let name = attributes.get_kind().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let kind = match header.handle {
            HANDLE if name == "htb" && is_as_created(attributes) => RootKind::Limit,
            handle if handle == 0 || name == "noqueue" => RootKind::Default(handle),
            handle => RootKind::Other(name, handle),
        };
        let (traffic, dropped_by_leaf) = (traffic(attributes), HashMap::new());
        roots.push(RootQueue { ifindex, kind, traffic, dropped_by_leaf });
    })?;
    for root in &mut roots {
        root.dropped_by_leaf = dropped.remove(&root.ifindex).unwrap_or_default();
    }
    Ok(roots)
}

/// Returns whether a queue is made as [`create`] makes it. Another tool may use the handle, but does not make such a queue by chance.
fn is_as_created(attributes: &tc::IterableAttrs<'_>) -> bool {
    let Ok(tc::OptionsMsg::Htb(options)) = attributes.get_options() else { return false };
    options.get_init().is_ok_and(|glob| glob.defcls == u32::from(FALLBACK))
        && options.get_direct_qlen().is_ok_and(|packets| packets == 0)
}

/// The handle of the `noqueue` that somebody chose for an interface of this thread's namespace; 0 if there is none.
pub fn chosen_noqueue(ifindex: u32) -> Result<u32> {
    Ok(if let RootKind::Default(handle) = root(ifindex)? { handle } else { 0 })
}

/// Puts the qdisc on an interface that has [`RootKind::Default`], with its first class, which takes all packets until there are leaves. A
/// queue that somebody has put there meanwhile stays, and is an error. A `noqueue` that somebody chose, of the handle `chosen`, is there to
/// the kernel, which replaces whatever is there or nothing: so it goes first, by its handle.
pub fn create(ifindex: u32, chosen: u32, first: &HtbClass) -> Result<()> {
    let doing = || format!("giving interface number {ifindex} a queue that limits");
    let mut batch = RequestBatch::new();
    if chosen != 0 {
        batch.push(&tc::Request::new().op_delqdisc_do(&message(ifindex, chosen, ROOT)));
    }
    let mut request =
        tc::Request::new().set_create().set_excl().op_newqdisc_do(&message(ifindex, HANDLE, ROOT));
    let glob = TcHtbGlob {
        version: HTB_VERSION,
        rate2quantum: 10,
        defcls: u32::from(FALLBACK),
        ..Default::default()
    };
    drop(request.encode().nested_options_htb().push_init(glob).push_direct_qlen(0));
    batch.push(&request);
    batch.push(&class_request(ifindex, first));
    let created = {
        let _swap = Realtime::begin();
        batch.send(doing)
    };
    created.map_err(|error| match root(ifindex) {
        Ok(RootKind::Other(kind, _)) => PortError::Unsuitable {
            name: format!("number {ifindex}"),
            why: format!(
                "got a {kind} qdisc from somebody meanwhile, which stays: the same command again says how to remove it"
            ),
        },
        _ => lacking(error),
    })
}

/// Makes or changes classes, and the queues of those that name one.
pub fn set(ifindex: u32, classes: impl Iterator<Item = HtbClass>) -> Result<()> {
    let doing = || format!("setting the classes of interface number {ifindex}");
    let push = |batch: &mut RequestBatch, class: HtbClass| {
        batch.push(&class_request(ifindex, &class));
        if let Some(queue) = class.queue {
            batch.push(&queue_request(ifindex, class.number, queue));
        }
    };
    send_each(classes, push, doing).map_err(lacking)
}

/// Sends the requests that `push` makes of each of these, [`REQUESTS_AT_ONCE`].
fn send_each<T>(
    all: impl Iterator<Item = T>,
    push: impl Fn(&mut RequestBatch, T),
    doing: impl Fn() -> String,
) -> Result<()> {
    let mut batch = RequestBatch::new();
    for one in all {
        push(&mut batch, one);
        if batch.len() >= REQUESTS_AT_ONCE {
            std::mem::replace(&mut batch, RequestBatch::new()).send(&doing)?;
        }
    }
    batch.send(doing)
}

/// The error in words that name the kernel's part, if the kernel knows no such queue.
fn lacking(error: PortError) -> PortError {
    // Linux before 5.17 says that it is not found, later ones that its kind is unknown.
    let is_unknown = is_code(&error, libc::ENOENT) && error.to_string().contains("Specified qdisc");
    if is_unknown { without_queues() } else { error }
}

/// The error of a kernel that does not keep limits.
pub fn without_queues() -> PortError {
    PortError::Unsupported {
        what: "a queue that keeps its limit (sch_htb, sch_tbf, cls_bpf)".into(),
        fix: "use a kernel with CONFIG_NET_SCH_HTB, CONFIG_NET_SCH_TBF and CONFIG_NET_CLS_BPF, `modprobe -a sch_htb sch_tbf cls_bpf`"
            .into(),
    }
}

/// Sets the queues of those classes where a change `is_due` from the queue that is there to that of the class.
pub fn set_queues(
    ifindex: u32,
    classes: impl Iterator<Item = HtbClass>,
    is_due: impl Fn(&LeafQueue, &LeafQueue) -> bool,
) -> Result<()> {
    let there: HashMap<_, _> = leaf_queues(ifindex)?.into_iter().collect();
    let due = classes.filter_map(|class| {
        let queue = class.queue?;
        let is_as_wanted = there.get(&class.number).is_some_and(|there| !is_due(there, &queue));
        (!is_as_wanted).then(|| queue_request(ifindex, class.number, queue))
    });
    let doing = || format!("setting the queues of interface number {ifindex}");
    send_each(due, |batch, request| batch.push(&request), doing).map_err(lacking)
}

/// The place of the program that chooses the leaf of each packet. The program sets the class's number, and the filter the qdisc's.
pub const CHOICE: Spot = Spot {
    parent: HANDLE,
    priority: 1,
    name: c"weir-limit",
    chain: 0,
    class: Some(HANDLE | ROOT_CLASS as u32),
};

/// Removes classes, which must be empty, each before the one it is below.
pub fn remove_classes(ifindex: u32, numbers: impl Iterator<Item = u16>) -> Result<()> {
    let doing = || format!("removing classes of interface number {ifindex}");
    let push = |batch: &mut RequestBatch, number: u16| {
        batch.push(&tc::Request::new().op_deltclass_do(&message(ifindex, HANDLE | u32::from(number), 0)));
    };
    send_each(numbers, push, doing)
}

/// The queue of each leaf, by the number of its class.
pub fn leaf_queues(ifindex: u32) -> Result<Vec<(u16, LeafQueue)>> {
    let mut queues = Vec::new();
    qdisc::each(&mut |header, attributes| {
        if header.ifindex == ifindex as i32
            && header.parent & 0xffff_0000 == HANDLE
            && let Ok(tc::OptionsMsg::Tbf(options)) = attributes.get_options()
            && let Ok(parameters) = options.get_parms()
        {
            let queue = LeafQueue { bytes: parameters.limit, packet_bytes_max: parameters.mtu };
            queues.push((header.parent as u16, queue));
        }
    })?;
    Ok(queues)
}

/// The counters and the backlog of each class.
pub fn classes(ifindex: u32) -> Result<Vec<ClassTraffic>> {
    let doing = || format!("reading the classes of interface number {ifindex}");
    // Those of the root alone: the queue of each leaf has a class of its own.
    let request = tc::Request::new().set_flags(DUMP).op_gettclass_do(&message(ifindex, 0, HANDLE));
    let mut classes = Vec::new();
    dump(&request, doing, |(header, attributes)| {
        if header.handle & 0xffff_0000 == HANDLE {
            let statistics = attributes.get_stats2();
            let tokens =
                statistics.ok().and_then(|statistics| tokens(statistics.get_buf())).unwrap_or_default();
            let traffic = traffic(&attributes);
            let parent = if header.parent == ROOT { 0 } else { header.parent as u16 };
            let (number, rates) = (header.handle as u16, ClassRates::read(&attributes));
            classes.push(ClassTraffic { number, parent, rates, traffic, tokens });
        }
    })?;
    Ok(classes)
}

/// The counters and the backlog of one class, which takes some 10 us; all of them take milliseconds. One that somebody has removed has
/// none. `socket` is for one namespace.
pub fn class_traffic(socket: &mut NetlinkSocket, ifindex: u32, number: u16) -> Result<QueueTraffic> {
    let doing = || format!("reading class {number:x} of interface number {ifindex}");
    let header = message(ifindex, HANDLE | u32::from(number), 0);
    let request = tc::Request::new().set_flags(ECHO).op_gettclass_do(&header);
    let mut reply = socket.request(&request).doing(doing)?;
    match reply.recv_one() {
        Ok((_, attributes)) => Ok(traffic(&attributes)),
        Err(error) if error.as_io_error().raw_os_error() == Some(libc::ENOENT) => Ok(QueueTraffic::default()),
        Err(error) => Err(explained(error, doing())),
    }
}

/// Takes the queue off, with all packets that wait in it; an absent one is no error. The kernel puts back the default queue; the `noqueue`
/// that somebody chose before, of the handle `chosen`, comes in the same call, unless somebody has put another queue there.
pub fn remove(ifindex: u32, chosen: u32) -> Result<()> {
    let mut batch = RequestBatch::new();
    batch.push(&tc::Request::new().op_delqdisc_do(&message(ifindex, HANDLE, ROOT)));
    if chosen != 0 {
        let mut request =
            tc::Request::new().set_create().set_excl().op_newqdisc_do(&message(ifindex, chosen, ROOT));
        drop(request.encode().push_kind(c"noqueue"));
        batch.push(&request);
    }
    let doing = || format!("removing the queue of interface number {ifindex}");
    let _swap = Realtime::begin();
    content_if_gone(batch.send(doing))
}

fn message(ifindex: u32, handle: u32, parent: u32) -> Tcmsg {
    Tcmsg { ifindex: ifindex as i32, handle, parent, ..Default::default() }
}

fn class_request(ifindex: u32, class: &HtbClass) -> impl NetlinkRequest + use<> {
    let header = message(ifindex, HANDLE | u32::from(class.number), HANDLE | u32::from(class.parent));
    let mut request = tc::Request::new().set_create().set_replace().op_newtclass_do(&header);
    let speed = |bytes_per_s: u64| TcRatespec {
        linklayer: LINK_LAYER_ETHERNET,
        rate: u32::try_from(bytes_per_s).unwrap_or(u32::MAX),
        ..Default::default()
    };
    let rates = ClassRates::of(class);
    let parameters = TcHtbOpt {
        rate: speed(class.rate_bytes_per_s),
        ceil: speed(class.ceil_bytes_per_s),
        buffer: rates.burst_ticks,
        cbuffer: rates.ceil_burst_ticks,
        quantum: class.quantum_bytes,
        prio: class.priority.into(),
        ..Default::default()
    };
    let mut options = request.encode().nested_options_htb().push_parms(parameters);
    // The fields for rates of 64 bits, which the parameters have no room for.
    if class.rate_bytes_per_s > u64::from(u32::MAX) {
        options = options.push_rate64(class.rate_bytes_per_s);
    }
    if class.ceil_bytes_per_s > u64::from(u32::MAX) {
        options = options.push_ceil64(class.ceil_bytes_per_s);
    }
    drop(options);
    request
}

/// The queue of a leaf: a token bucket at a rate that never holds a packet, the one of the queues of most kernels that cuts long ones.
fn queue_request(ifindex: u32, class: u16, queue: LeafQueue) -> impl NetlinkRequest + use<> {
    let header = message(ifindex, 0, HANDLE | u32::from(class));
    let mut request = tc::Request::new().set_create().set_replace().op_newqdisc_do(&header);
    let parameters = TcTbfQopt {
        rate: TcRatespec { linklayer: LINK_LAYER_ETHERNET, rate: u32::MAX, ..Default::default() },
        limit: queue.bytes,
        // The kernel does not tell the longest packet again, but keeps this field, which means nothing without a peak rate.
        mtu: queue.packet_bytes_max,
        ..Default::default()
    };
    let options = request.encode().nested_options_tbf().push_parms(parameters);
    drop(options.push_rate64(UNHELD_BYTES_PER_S).push_burst(queue.packet_bytes_max));
    request
}

/// The tokens among the statistics of a class (`TCA_STATS_APP`: `struct tc_htb_xstats`), which the bindings do not know.
fn tokens(statistics: &[u8]) -> Option<Tokens> {
    const STATS_APP: u16 = 4;
    let mut at = 0;
    while at < statistics.len() {
        let (header, value) = chop_header(statistics, &mut at)?;
        if header.r#type != STATS_APP {
            continue;
        }
        // The two counts of tokens stand behind lends, borrows and giants.
        let ticks = |place: usize| -> Option<i64> {
            let bytes = value.get(place..place + 4)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?).into())
        };
        return Some(Tokens { own_ns: ticks(12)? << TICK_BITS, ceil_ns: ticks(16)? << TICK_BITS });
    }
    None
}

fn traffic(attributes: &tc::IterableAttrs<'_>) -> QueueTraffic {
    let Ok(stats) = attributes.get_stats2() else { return QueueTraffic::default() };
    let basic = stats.get_basic().unwrap_or_default();
    let queue = stats.get_queue().unwrap_or_default();
    QueueTraffic {
        packets: stats.get_pkt64().unwrap_or(u64::from(basic.packets)),
        bytes: basic.bytes,
        dropped: u64::from(queue.drops),
        waiting: u64::from(queue.qlen),
        // Where the kernel cuts packets, its count of bytes may be wrong ([`weir_core::limit::drain`]), that of packets is right.
        waiting_bytes: if queue.qlen == 0 { 0 } else { u64::from(queue.backlog) },
    }
}

#[cfg(test)]
mod tests;
