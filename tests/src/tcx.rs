//! A tcx program of somebody else's on an interface.
//!
//! Source: `bpf_skb_vlan_push` of bpf-helpers(7); `struct __sk_buff`. It is there for as long as its value.

use std::io;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use weir_lab::bed::End;

use crate::bpf::{Counter, attach};

/// Attach before all programs that are there.
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

/// `r0 = -1 (TCX_NEXT); exit`: lets every packet go on.
const NEXT: [u64; 2] = [0xffff_ffff_0000_00b7, 0x95];
/// `r0 = 0 (TCX_PASS); exit`: a verdict, so that no program behind it runs.
const PASS: [u64; 2] = [0xb7, 0x95];

/// A program that is attached.
#[derive(Debug)]
pub struct Tcx {
    _link: OwnedFd,
    counter: Option<Counter>,
}

impl Tcx {
    /// Attaches one where packets come in.
    pub fn on_ingress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_INGRESS, 0, &NEXT)
    }

    /// Attaches one where packets go out.
    pub fn on_egress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_EGRESS, 0, &NEXT)
    }

    /// Attaches one where packets go out that passes them without asking those behind it.
    pub fn verdict_on_egress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_EGRESS, 0, &PASS)
    }

    /// Attaches such a program before all that are there.
    pub fn verdict_before_others_on_egress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_EGRESS, BPF_F_BEFORE, &PASS)
    }

    /// Attaches one where packets go out that puts a VLAN tag beside each, as a VLAN interface does.
    pub fn tag_on_egress(end: End, tag: u16) -> Result<Tcx> {
        // r2 = 802.1Q in network order; r3 = tag; call bpf_skb_vlan_push.
        let code = [
            u64::from(0x8100u16.to_be()) << 32 | 0x2b7,
            u64::from(tag) << 32 | 0x3b7,
            18 << 32 | 0x85,
            NEXT[0],
            NEXT[1],
        ];
        Tcx::new(end, BPF_TCX_EGRESS, 0, &code)
    }

    /// Attaches one that counts frames of `length_bytes`, where they come in or where they go out.
    pub fn counting(end: End, is_ingress: bool, length_bytes: u16) -> Result<Tcx> {
        let counter = Counter::new()?;
        // r2 = the length; unless it is the one, skip four.
        let mut code = vec![0x1261, u64::from(length_bytes) << 32 | 4 << 16 | 0x255];
        code.extend(counter.add_one());
        code.extend(NEXT);
        let attach_type = if is_ingress { BPF_TCX_INGRESS } else { BPF_TCX_EGRESS };
        Ok(Tcx { counter: Some(counter), ..Tcx::new(end, attach_type, 0, &code)? })
    }

    /// Attaches such a program; `None` on a kernel that has no tcx (before 6.6), where the rest of a test is worth running.
    pub fn counting_if_known(end: End, is_ingress: bool, length_bytes: u16) -> Result<Option<Tcx>> {
        match Tcx::counting(end, is_ingress, length_bytes) {
            Err(error) if is_old_kernel(&error) => Ok(None),
            made => made.map(Some),
        }
    }

    /// The number that it counted.
    pub fn count(&self) -> Result<u64> {
        Ok(self.counter.as_ref().context("a program that counts")?.count()?)
    }

    fn new(end: End, attach_type: u32, flags: u32, code: &[u64]) -> Result<Tcx> {
        let link =
            end.namespace.enter(|| attach(end.name, BPF_PROG_TYPE_SCHED_CLS, attach_type, flags, code))?;
        let link = link.with_context(|| format!("a tcx program on {}", end.name))?;
        Ok(Tcx { _link: link, counter: None })
    }
}

/// Returns whether the kernel does not know `BPF_LINK_CREATE` of this sort.
fn is_old_kernel(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(libc::EINVAL) && !has_tcx()
}

/// Returns whether the kernel has tcx, by the name of a function of it.
fn has_tcx() -> bool {
    std::fs::read_to_string("/proc/kallsyms").is_ok_and(|symbols| symbols.contains(" tcx_prog_attach"))
}
