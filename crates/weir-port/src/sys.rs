//! The system calls that have no safe wrapper elsewhere, one thin function each.
//!
//! Every function here checks the return value and hands errors back as [`io::Error`]; none keeps state. Layouts
//! come from `libc` where it has them and otherwise from the kernel's uapi headers, named beside the structure.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Turns the -1 of a system call into the error it stands for.
pub fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Like [`check`], for calls that return a descriptor this process now owns.
pub fn check_fd(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the kernel has just returned `fd` to us as a new descriptor; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `socket(2)`, close-on-exec.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    check_fd(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })
}

/// `setsockopt(2)` with a plain value.
///
/// `T` must be a type the kernel reads as plain bytes: an integer or a `repr(C)` structure without padding that
/// matters.
pub fn setsockopt<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let (pointer, length) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `pointer` and `length` describe `value`, which outlives the call; the kernel only reads it.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) }).map(drop)
}

/// `getsockopt(2)` into a plain value that starts as `T::default()`; also says how many bytes the kernel wrote.
pub fn getsockopt<T: Copy + Default>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<(T, usize)> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`; any bytes are a valid `T`, because
    // callers use it for integers and structures of integers only.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, std::ptr::from_mut(&mut value).cast(), &mut length)
    })?;
    Ok((value, length as usize))
}

/// `bind(2)` to an address structure of the socket's family.
pub fn bind<T>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    let (pointer, length) = (std::ptr::from_ref(address).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `pointer` and `length` describe `address`, which outlives the call; the kernel only reads it.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) }).map(drop)
}

/// `bpf(2)`; `attributes` is the union's member for `command`, zero-filled past its own fields.
pub fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<c_int> {
    let pointer = std::ptr::from_mut(attributes).cast::<c_void>();
    // SAFETY: `pointer` and the size describe `attributes`, alive for the call. Pointers inside it are the
    // caller's to keep alive, which every caller in `crate::bpf` does by building it from live borrows.
    let result = unsafe { libc::syscall(libc::SYS_bpf, c_long::from(command), pointer, size_of::<T>()) };
    check(result as c_int)
}

/// Waits until `wait` is readable or `timeout_ns` have passed; `None` waits for ever. Says which were readable.
pub fn poll_readable(fds: &mut [libc::pollfd], timeout_ns: Option<u64>) -> io::Result<usize> {
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as c_long,
    });
    let timeout_pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a live array of its own length, and `timeout_pointer` is null or points at `timeout`, which
    // lives to the end of the call.
    let ready = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_pointer, std::ptr::null())
    };
    match check(ready) {
        Ok(ready) => Ok(ready as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// The index of an interface of this thread's namespace.
pub fn if_nametoindex(name: &CStr) -> io::Result<u32> {
    // SAFETY: `name` is a terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// An event counter that can be polled: `eventfd(2)`, non-blocking.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    check_fd(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// A `pollfd` that waits for input.
pub fn poll_in(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
