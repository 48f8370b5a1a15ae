//! A tcx program of somebody else's on an interface: one that lets every packet go on.
//!
//! Source: bpf(2), `BPF_PROG_LOAD` and `BPF_LINK_CREATE`. It is there for as long as its value.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use weir_lab::bed::End;

const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;

/// A program that is attached.
#[derive(Debug)]
pub struct Tcx {
    _link: OwnedFd,
}

impl Tcx {
    /// Attaches one where packets come in.
    pub fn on_ingress(end: End) -> Result<Tcx> {
        let link = end.namespace.enter(|| attach(end.name))?;
        Ok(Tcx { _link: link.with_context(|| format!("a tcx program on {}", end.name))? })
    }
}

fn attach(name: &str) -> io::Result<OwnedFd> {
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
    // r0 = -1, which is TCX_NEXT; exit.
    let code: [u64; 2] = [0xffff_ffff_0000_00b7, 0x95];
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
    bpf(BPF_LINK_CREATE, &Create { program, ifindex, attach_type: BPF_TCX_INGRESS, flags: 0 })
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
