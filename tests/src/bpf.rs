//! Small BPF programs of somebody else's: the loader, which attaches them for as long as a value lives, and a counter for them.
//!
//! Source: bpf(2), `BPF_PROG_LOAD`, `BPF_LINK_CREATE`, `BPF_MAP_CREATE`, `BPF_MAP_LOOKUP_ELEM`; kernel `Documentation/bpf/standardization`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;

/// Loads a program of type `kind` and attaches it to an interface of this thread's namespace, where `flags` say.
pub fn attach(name: &str, kind: u32, attach_type: u32, flags: u32, code: &[u64]) -> io::Result<OwnedFd> {
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
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
    };
    let program = made(BPF_PROG_LOAD, &load)?;
    let name = std::ffi::CString::new(name)?;
    // SAFETY: a terminated string that outlives the call.
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let program = program.as_raw_fd() as u32;
    made(BPF_LINK_CREATE, &Create { program, ifindex, attach_type, flags })
}

/// A number that a program adds to.
#[derive(Debug)]
pub struct Counter {
    map: OwnedFd,
}

impl Counter {
    /// A counter that is 0.
    pub fn new() -> io::Result<Counter> {
        /// The head of `union bpf_attr` for this command.
        #[repr(C)]
        struct Create {
            kind: u32,
            key_bytes: u32,
            value_bytes: u32,
            entries: u32,
        }
        let map = made(
            BPF_MAP_CREATE,
            &Create { kind: BPF_MAP_TYPE_ARRAY, key_bytes: 4, value_bytes: 8, entries: 1 },
        )?;
        Ok(Counter { map })
    }

    /// Instructions that add one and leave in `r3` the value before; they spoil `r1`.
    pub fn add_one(&self) -> [u64; 4] {
        let fd = self.map.as_raw_fd() as u64;
        [
            // r1 = the address of the value, in two parts.
            fd << 32 | 0x2118,
            0,
            // r3 = 1; r3 = fetch and add.
            1 << 32 | 0x3b7,
            1 << 32 | 0x31db,
        ]
    }

    /// The number.
    pub fn count(&self) -> io::Result<u64> {
        /// The head of `union bpf_attr` for this command.
        #[repr(C)]
        struct Lookup {
            map: u32,
            _unused: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let (key, mut value) = (0u32, 0u64);
        let lookup = Lookup {
            map: self.map.as_raw_fd() as u32,
            _unused: 0,
            key: &raw const key as u64,
            value: &raw mut value as u64,
            flags: 0,
        };
        call(BPF_MAP_LOOKUP_ELEM, &lookup)?;
        Ok(value)
    }
}

fn made<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: i32, attributes: &T) -> io::Result<i32> {
    // SAFETY: the pointer and the length are those of a live, fully initialised struct laid out as the kernel's, and the memory that it
    // points to outlives the call.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}
