//! The features of this kernel, found out by trying them.
//!
//! A version says little: fixes are carried to older kernels and features are configured away. So each [`Feature`] is tried in a namespace
//! of its own (`scratch`), which the kernel removes however this process ends. Only [`primes_here`] puts an interface into the caller's
//! namespace for a moment, because it asks about that namespace's firewall; its other end is in a namespace of ours, and takes it along.
//!
//! [`holds_senders`] alone answers the question a wire depends on.

mod holding;
pub mod limiting;
pub(crate) mod scratch;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use weir_ring::memory::FrameMemory;

use crate::bpf::doorbell::{Announcements, Bell, DoorbellProgram};
use crate::bpf::map::Map;
use crate::bpf::redirect;
use crate::error::{Doing, PortError, Result};
use crate::first_frames::Companions;
use crate::napi::{self, Priming};
use crate::netns::NetNs;
use crate::way_out::{NftTable, nftables};
use crate::xsk::socket::{RingSizes, XskSocket};
use crate::xsk::umem::Umem;
use crate::{ethtool, features, hooks, link};

use holding::Trial;
pub use holding::{HOLDING_FIX, Held, REFILLING_FIX};
use scratch::ScratchPair;

/// A feature that a wire needs, or is better off with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Namespaces and veth pairs.
    Veth,
    /// Maps, ring buffers and programs by `bpf(2)`.
    Bpf,
    /// A program at a sending end, attached by a link.
    Tcx,
    /// A program in a veth's driver, attached by a link, which gives each queue a NAPI instance.
    Xdp,
    /// AF_XDP sockets.
    AfXdp,
    /// The `napi-set` of the netdev family.
    NapiSet,
    /// Switching checksum offload.
    Checksum,
    /// A veth that stops its sender when it is not polled.
    Holding,
    /// A stopped veth that starts its sender again after each poll.
    Refilling,
    /// Polling by io_uring.
    IoUring,
    /// Masquerading, which `weir run` needs.
    Nftables,
}

/// The outcome of trying a feature.
pub struct Finding {
    /// The feature.
    pub feature: Feature,
    /// The observation; or the fault.
    pub result: Result<String>,
}

/// The rounds in which [`features`] fills and drains a ring, and the longest time for them.
const REFILLS: u32 = 400;
const REFILLS_NS_MAX: u64 = 300_000_000;
/// The name of the end that is in a namespace of ours.
const NAME: &std::ffi::CStr = c"probe";

/// Returns whether this kernel holds senders back without losing their packets: the one feature that a wire cannot do without and that the
/// kernel does not state.
///
/// Takes 50 to 90 ms on two busy cores, nearly all of it spent waiting for the kernel's grace periods: one each for the
/// namespace, the XDP program and the tcx program.
pub fn holds_senders() -> Result<Held> {
    scratch::run(|answer| {
        let pair = ScratchPair::new(NAME, &NetNs::current()?)?;
        let mut trial = Trial::new(&pair)?;
        answer(trial.hold()?);
        Ok(())
    })
}

/// Tries every feature, each as far as those before it let it; the time is read from `clock_ns`.
pub fn features(clock_ns: fn() -> u64) -> Vec<Finding> {
    let tried = scratch::run(move |answer| {
        let pair = ScratchPair::new(NAME, &NetNs::current()?)?;
        answer(try_all(&pair, clock_ns));
        Ok(())
    });
    tried.unwrap_or_else(|error| vec![Finding { feature: Feature::Veth, result: Err(error) }])
}

fn try_all(pair: &ScratchPair, clock_ns: fn() -> u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note = |feature, result: Result<String>| {
        let worked = result.is_ok();
        findings.push(Finding { feature, result });
        worked
    };
    note(Feature::Veth, Ok("a namespace with a veth pair".into()));
    note(Feature::Nftables, nftables().map(|()| "masquerades IPv4 and IPv6".into()));
    note(Feature::Checksum, checksum(pair).map(|()| "can be switched at a sending end".into()));
    let mut ready = note(Feature::Bpf, bpf().map(|()| "maps shared with programs, ring buffer".into()));
    ready = ready && note(Feature::Tcx, tcx(pair).map(|()| "a program at a sending end, by a link".into()));
    ready = ready && note(Feature::Xdp, xdp(pair).map(|()| "a program in a veth's driver, by a link".into()));
    ready &= note(
        Feature::AfXdp,
        af_xdp(pair).map(|()| "a socket on a veth's queue; no huge pages needed".into()),
    );
    ready = ready
        && note(Feature::NapiSet, napi_set(pair).map(|()| "a queue can be left to busy polling".into()));
    if !ready {
        return findings;
    }
    match Trial::new(pair) {
        Ok(mut trial) => try_trial(&mut trial, &mut note, clock_ns),
        Err(error) => drop(note(Feature::Holding, Err(error))),
    }
    findings
}

fn try_trial(
    trial: &mut Trial,
    note: &mut dyn FnMut(Feature, Result<String>) -> bool,
    clock_ns: fn() -> u64,
) {
    let held = |held: Held| {
        format!("{} of {} packets waited in the qdisc, 0 lost", held.held_packets, held.sent_packets)
    };
    let by = trial.poller_name();
    if note(Feature::Holding, trial.hold().map(|packets| format!("{}, polled by {by}", held(packets)))) {
        let end_ns = clock_ns() + REFILLS_NS_MAX;
        let refilled = trial.refill(REFILLS, &|| clock_ns() < end_ns);
        note(
            Feature::Refilling,
            refilled.map(|rounds| format!("filled and drained {rounds} times, never stuck")),
        );
        let by_ring = trial.poll_by_ring().and_then(|()| trial.hold());
        note(Feature::IoUring, by_ring.map(|packets| format!("polls a queue: {}", held(packets))));
    }
}

fn bpf() -> Result<()> {
    let make = || -> io::Result<()> {
        Bell::new()?;
        Announcements::new(1)?;
        Map::lru_hash(64)?;
        Map::xskmap(1).map(drop)
    };
    make().doing(|| "making BPF maps (Linux 5.8 or newer, CONFIG_BPF_SYSCALL, CONFIG_XDP_SOCKETS)".into())
}

fn tcx(pair: &ScratchPair) -> Result<()> {
    hooks::check_tcx(pair.sender.ifindex)?;
    let attach = || -> io::Result<()> {
        // A program for two queues is the longer one.
        DoorbellProgram::load(&[&Bell::new()?], &Announcements::new(2)?, None)?.put_first(pair.sender.ifindex)
    };
    attach().doing(|| "attaching a tcx program (Linux 6.6 or newer, CONFIG_NET_XGRESS)".into())
}

fn xdp(pair: &ScratchPair) -> Result<()> {
    let doing = || "attaching an XDP program to a veth in its driver (Linux 5.9 or newer)".to_string();
    let program = redirect::load(&Map::xskmap(1).doing(doing)?).doing(doing)?;
    let _link = program.attach(pair.receiver.ifindex).doing(doing)?;
    napi::check_instances(&pair.receiver, &napi::instances(pair.receiver.ifindex)?)
}

fn af_xdp(pair: &ScratchPair) -> Result<()> {
    const SIZES: RingSizes = RingSizes { receive: 64, transmit: 64 };
    let bind = || -> io::Result<()> {
        let memory = FrameMemory::new(64, 4096).map_err(io::Error::other)?;
        // The socket is not at the receiver, whose queue is needed again before the kernel has quite freed it.
        XskSocket::bind(&Umem::new(Arc::new(memory)), pair.sender.ifindex, 0, SIZES).map(drop)
    };
    bind().doing(|| "binding an AF_XDP socket to a veth (CONFIG_XDP_SOCKETS)".into())
}

fn napi_set(pair: &ScratchPair) -> Result<()> {
    let doing = || "attaching an XDP program to a veth".to_string();
    let program = redirect::load(&Map::xskmap(1).doing(doing)?).doing(doing)?;
    let _link = program.attach(pair.receiver.ifindex).doing(doing)?;
    napi::instances(pair.receiver.ifindex)?.into_iter().try_for_each(napi::defer)
}

fn checksum(pair: &ScratchPair) -> Result<()> {
    let sender = &pair.sender;
    ethtool::set_tx_checksum(sender, false)?;
    if !features::offloads(sender)?.checksums.is_empty() {
        return Err(PortError::Unsuitable {
            name: sender.name.clone(),
            why: "keeps its checksum offload on whatever is asked".into(),
        });
    }
    ethtool::set_tx_checksum(sender, true)
}

/// Returns whether a packet for the kernel's own stack gets through to a socket in this thread's namespace, as priming needs; where a
/// firewall drops it, wires poll by io_uring.
pub fn primes_here() -> Result<bool> {
    let netns = NetNs::new()?;
    let pair = ScratchPair::new(c"weirprobe%d", &netns)?;
    let prime = || -> Result<bool> {
        let doing = || "attaching an XDP program to a veth".to_string();
        let program = redirect::load(&Map::xskmap(1).doing(doing)?).doing(doing)?;
        let _link = program.attach(pair.receiver.ifindex).doing(doing)?;
        let mut companions = Companions::new(&pair.receiver);
        let primings = [Priming::new(&pair.receiver)?];
        let came_by = napi::came_by(&primings, &mut companions, &netns, &pair.sender)?;
        Ok(came_by.first().copied().flatten().is_some_and(|id| id != 0))
    };
    let primed = prime();
    link::delete(pair.receiver.ifindex)?;
    primed
}

/// Masquerades for addresses that no host has (RFC 5737, RFC 3849), in this thread's namespace, with which the table goes.
fn nftables() -> Result<()> {
    let sources = [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    nftables::install(&NftTable {
        name: "weir-probe".into(),
        ifindex: 1,
        sources: sources.into(),
        opened: Vec::new(),
    })
}
