//! Loading a program and attaching it by a link, which detaches by itself when its descriptor is closed.
//!
//! Source: `include/uapi/linux/bpf.h`, `union bpf_attr`; links to XDP since Linux 5.9, to tcx since 6.6.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::asm::Slot;
use super::object;
use crate::sys;

const BPF_PROG_LOAD: u32 = 5;
const BPF_PROG_TEST_RUN: u32 = 10;
const BPF_LINK_CREATE: u32 = 28;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// Places a program before all others where no other is named.
const BPF_F_BEFORE: u32 = 1 << 3;
/// The tries to load a program. The verifier gives up with `EAGAIN` while a signal waits for this thread, as one does for a moment where
/// another thread takes it (kernel `kernel/bpf/verifier.c`, `do_check`); libbpf tries as often.
const LOAD_TRIES: u32 = 5;
/// The licence of the programs; none of the helpers they call asks for the GPL.
const LICENSE: &[u8] = b"Apache-2.0\0";

/// The place where a program runs.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    /// On every packet a device receives, in its driver (`BPF_XDP`).
    Xdp,
    /// On every packet a device is about to send, before its qdisc (`BPF_TCX_EGRESS`).
    TcxEgress,
    /// On every packet a qdisc asks its filters about; attached by netlink, not by a link (`BPF_PROG_TYPE_SCHED_CLS`).
    Filter,
}

impl Hook {
    fn program_type(self) -> u32 {
        match self {
            Hook::Xdp => 6,
            Hook::TcxEgress | Hook::Filter => 3,
        }
    }

    fn attach_type(self) -> u32 {
        match self {
            Hook::Xdp => 37,
            Hook::TcxEgress => 47,
            // Kernels before 6.6 have no other attach type for it.
            Hook::Filter => 0,
        }
    }
}

#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkAttributes {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 2],
}

/// The member of the union for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct RunAttributes {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    hook: Hook,
}

/// A program attached to an interface for as long as this lives.
#[derive(Debug)]
pub struct BpfLink {
    _fd: OwnedFd,
}

impl Program {
    /// Loads `slots` for `hook`; on refusal the error ends with the verifier's own last words.
    pub fn load(hook: Hook, slots: &[Slot]) -> io::Result<Program> {
        let mut attributes = LoadAttributes {
            prog_type: hook.program_type(),
            insn_cnt: slots.len() as u32,
            insns: slots.as_ptr().addr() as u64,
            license: LICENSE.as_ptr().addr() as u64,
            expected_attach_type: hook.attach_type(),
            ..Default::default()
        };
        attributes.prog_name[..4].copy_from_slice(b"weir");
        let mut more_tries = 1..LOAD_TRIES;
        let result = loop {
            let loaded = sys::with_memory_to_lock(|| {
                // SAFETY: the addresses are of `slots`, with their number, and of a terminated constant; no log is asked for.
                unsafe { sys::bpf(BPF_PROG_LOAD, &mut attributes) }.and_then(sys::check_fd)
            });
            match loaded {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && more_tries.next().is_some() => {}
                result => break result,
            }
        };
        match result {
            Ok(fd) => Ok(Program { fd, hook }),
            // The verifier's log has nothing on `EPERM`; on `E2BIG` it ends with the last of a million steps.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::E2BIG)) => Err(error),
            Err(error) => {
                // SAFETY: the addresses are those of the load that failed, whose slots are alive.
                let said = unsafe { verdict(&mut attributes) };
                Err(io::Error::new(error.kind(), format!("{error}; the verifier said: {said}")))
            }
        }
    }

    /// The kernel's number of the program, as `bpftool` shows it.
    pub fn id(&self) -> io::Result<u32> {
        object::id_of_program(&self.fd)
    }

    /// The descriptor by which netlink names the program.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Attaches the program to an interface of this thread's namespace; at a hook for several programs, before the others, whose verdict
    /// might end the row.
    pub fn attach(&self, ifindex: u32) -> io::Result<BpfLink> {
        let mut attributes = LinkAttributes {
            prog_fd: self.fd.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: self.hook.attach_type(),
            flags: match self.hook {
                Hook::Xdp => XDP_FLAGS_DRV_MODE,
                Hook::TcxEgress => BPF_F_BEFORE,
                Hook::Filter => 0,
            },
            ..Default::default()
        };
        // SAFETY: `attributes` holds no address.
        let fd = unsafe { sys::bpf(BPF_LINK_CREATE, &mut attributes) }.and_then(sys::check_fd)?;
        Ok(BpfLink { _fd: fd })
    }
}

impl Program {
    /// Runs an XDP program on a frame as if it had come in by this thread's loopback interface, and carries out its verdict (Linux 5.18).
    pub fn run_live(&self, frame: &[u8]) -> io::Result<()> {
        self.run_with(frame, BPF_F_TEST_XDP_LIVE_FRAMES, 1).map(drop)
    }

    /// Runs the program on a frame without carrying out its verdict, which is returned.
    pub fn run(&self, frame: &[u8]) -> io::Result<u32> {
        self.run_with(frame, 0, 0)
    }

    fn run_with(&self, frame: &[u8], flags: u32, batch_size: u32) -> io::Result<u32> {
        let mut attributes = RunAttributes {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr().addr() as u64,
            repeat: 1,
            flags,
            batch_size,
            ..Default::default()
        };
        // SAFETY: the one address is of `frame`, with its length, and alive.
        unsafe { sys::bpf(BPF_PROG_TEST_RUN, &mut attributes)? };
        Ok(attributes.retval)
    }
}

/// Loads again with the verifier's log on, for its last lines.
///
/// # Safety
/// The instructions and the licence that `attributes` point at are alive.
unsafe fn verdict(attributes: &mut LoadAttributes) -> String {
    let mut log = vec![0u8; 64 * 1024];
    attributes.log_level = 1;
    attributes.log_size = log.len() as u32;
    attributes.log_buf = log.as_mut_ptr().addr() as u64;
    // The load fails as before; only the log matters.
    // SAFETY: the log is a live buffer of the length given, and the caller answers for the rest.
    let _ = unsafe { sys::bpf(BPF_PROG_LOAD, attributes) };
    let text = String::from_utf8_lossy(&log);
    let text = text.trim_end_matches('\0').trim_end();
    let lines: Vec<_> = text.lines().rev().take(4).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
