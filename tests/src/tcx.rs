//! A tcx program of somebody else's on an interface.
//!
//! Source: bpf(2), `BPF_PROG_LOAD` and `BPF_LINK_CREATE`; `bpf_skb_vlan_push` of bpf-helpers(7). It is there for as long as its value.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use weir_lab::bed::End;

const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
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
}

impl Tcx {
    /// Attaches one where packets come in.
    pub fn on_ingress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_INGRESS, &NEXT)
    }

    /// Attaches one where packets go out that passes them without asking those behind it.
    pub fn verdict_on_egress(end: End) -> Result<Tcx> {
        Tcx::new(end, BPF_TCX_EGRESS, &PASS)
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
        Tcx::new(end, BPF_TCX_EGRESS, &code)
    }

    fn new(end: End, attach_type: u32, code: &[u64]) -> Result<Tcx> {
        let link = end.namespace.enter(|| attach(end.name, attach_type, code))?;
        Ok(Tcx { _link: link.with_context(|| format!("a tcx program on {}", end.name))? })
    }
}

fn attach(name: &str, attach_type: u32, code: &[u64]) -> io::Result<OwnedFd> {
    /// The head of `union bpf_attr` for this command.
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        code: u64,
        license: u64,
    }
    /// The head of `union bpf_attr` for this command.
    #[repr(C)]
    struct Create {
        program: u32,
        ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let license = c"GPL";
    let load = Load {
        kind: BPF_PROG_TYPE_SCHED_CLS,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
    };
    let program = bpf(BPF_PROG_LOAD, &load)?;
    let name = std::ffi::CString::new(name)?;
    // SAFETY: a terminated string that outlives the call.
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let program = program.as_raw_fd() as u32;
    bpf(BPF_LINK_CREATE, &Create { program, ifindex, attach_type, flags: 0 })
}

fn bpf<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the pointer and the length are those of a live, fully initialised struct laid out as the kernel's, and what it points to
    // outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
