//! The system calls that have no safe wrapper elsewhere, one thin function each.
//!
//! Every function here checks the return value and returns errors as [`io::Error`]; none keeps state. Layouts come from `libc` where it has
//! them and otherwise from the kernel's uapi headers, named beside the structure.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::confinement;

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

/// The processes that this one sees, by their numbers.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns whether an error says that the kernel has no descriptor or no memory for what was asked.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// A value that the kernel may read and write as plain bytes.
///
/// # Safety
/// Any bytes of that size are a valid value, there is no padding, and no field is an address that the kernel would follow.
pub unsafe trait Plain: Copy {
    /// All bytes 0.
    fn zeroed() -> Self {
        // SAFETY: any bytes are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: an integer.
unsafe impl Plain for i32 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers of 16, 16, 32, 32 and 32 bits, without padding; a descriptor's number is no address.
unsafe impl Plain for libc::sockaddr_xdp {}
// SAFETY: integers of 16, 16, 32 and 32 bits, without padding.
unsafe impl Plain for libc::sockaddr_nl {}
// SAFETY: integers of 16, 16, 32, 16, 8 and 8 bits, and 8 bytes, without padding.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: integers of 16, 16 and 32 bits, and 8 bytes, without padding.
unsafe impl Plain for libc::sockaddr_in {}
// SAFETY: integers of 16, 16 and 32 bits, 16 bytes, and one of 32 bits, without padding.
unsafe impl Plain for libc::sockaddr_in6 {}

/// `setsockopt(2)` with a plain value.
pub fn setsockopt<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: a plain value has no address that the kernel could follow.
    unsafe { setsockopt_with(fd, level, name, value) }
}

/// `setsockopt(2)` with a value that holds addresses.
///
/// # Safety
/// `value` is what the kernel reads for this option, and the memory that its addresses point at is alive for as long as the kernel uses it.
pub unsafe fn setsockopt_with<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let (pointer, length) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `pointer` and `length` describe `value`, which outlives the call; the kernel only reads it, and the caller
    // answers for what it points at.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, length) }).map(drop)
}

/// `getsockopt(2)` into a plain value that starts with all bytes 0; also returns how many bytes the kernel wrote.
pub fn getsockopt<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<(T, usize)> {
    let mut value = T::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`, and any bytes are a valid `T`.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, std::ptr::from_mut(&mut value).cast(), &mut length)
    })?;
    Ok((value, length as usize))
}

/// `bind(2)` to an address structure of the socket's family.
pub fn bind<T: Plain>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    let (pointer, length) = (std::ptr::from_ref(address).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `pointer` and `length` describe `address`, which outlives the call; the kernel only reads it.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) }).map(drop)
}

/// Keeps all packets from a socket from now on, by a filter that accepts nothing and cannot be taken off.
pub fn refuse_packets(fd: BorrowedFd<'_>) -> io::Result<()> {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut accept_nothing = libc::sock_filter { code, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut accept_nothing };
    // SAFETY: the kernel copies the one instruction that the program points at, which is alive.
    unsafe { setsockopt_with(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)? };
    setsockopt(fd, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
}

/// `bpf(2)`; `attributes` is the union's member for `command`, zero-filled past its own fields.
///
/// # Safety
/// Every address in `attributes` is of live memory as long as the command reads or writes there.
pub unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<c_int> {
    let pointer = std::ptr::from_mut(attributes).cast::<c_void>();
    // SAFETY: `pointer` and the size describe `attributes`, alive for the call; the caller answers for addresses inside.
    let result = unsafe { libc::syscall(libc::SYS_bpf, c_long::from(command), pointer, size_of::<T>()) };
    check(result as c_int)
}

/// Makes a map or a program of BPF, and where the kernel refuses it once more with no bound of locked memory: before Linux 5.11 maps and
/// programs are charged to `RLIMIT_MEMLOCK`, of which root too has 64 KiB, and too little of it is `EPERM`. The bound is then set back.
pub fn with_memory_to_lock<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let refused = match make() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => error,
        made => return made,
    };
    // Without the right to raise the bound the first answer stands.
    let Ok(before) =
        set_memory_to_lock(libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY })
    else {
        return Err(refused);
    };
    let made = make();
    set_memory_to_lock(before)?;
    made
}

/// Sets how much memory this process may lock; returns the bound before.
fn set_memory_to_lock(limit: libc::rlimit) -> io::Result<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both point at live values; 0 names this process.
    check(unsafe { libc::prlimit(0, libc::RLIMIT_MEMLOCK, &raw const limit, &raw mut before) })?;
    Ok(before)
}

/// Lets this process, and those that it starts, have as many descriptors as it may: a port takes some for each of its queues, and the
/// usual bound of 1,024 is for programs that call `select`.
pub fn raise_descriptors() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is of a live value.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(drop)
}

/// Waits until one of `fds` has an event that it waits for, or hung up, or `timeout_ns` have passed; `None` waits for ever. Returns how many
/// have one.
pub fn poll(fds: &mut [libc::pollfd], timeout_ns: Option<u64>) -> io::Result<usize> {
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

/// The length of a page of memory on this machine, in bytes.
pub fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every machine has pages")
}

/// The index of an interface of this thread's namespace.
pub fn if_nametoindex(name: &CStr) -> io::Result<u32> {
    // SAFETY: `name` is a terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// `connect(2)` to a Unix stream socket. Where connections wait until they are accepted and there is no room for one more, it is tried for
/// `wait_ns`, and then is `WouldBlock`: `unix(7)`, `SO_SNDTIMEO`.
pub fn connect_unix(path: &Path, wait_ns: u64) -> io::Result<UnixStream> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // A byte is left for the 0 at the end.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    let stream = UnixStream::from(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?);
    // A time of 0 would mean for ever.
    stream.set_write_timeout(Some(Duration::from_nanos(wait_ns.max(1))))?;
    let (pointer, length) = (std::ptr::from_ref(&address).cast(), size_of::<libc::sockaddr_un>());
    // SAFETY: `pointer` and `length` describe `address`, which outlives the call; the kernel only reads it.
    check(unsafe { libc::connect(stream.as_raw_fd(), pointer, length as libc::socklen_t) })?;
    stream.set_write_timeout(None)?;
    Ok(stream)
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

/// A `pollfd` that waits for room to write.
pub fn poll_out(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }
}

/// Makes an [`eventfd`] readable. A failure does not matter: a full counter is readable already.
pub fn signal_eventfd(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a live value are passed.
    unsafe { libc::write(fd.as_raw_fd(), std::ptr::from_ref(&one).cast(), 8) };
}

/// Makes an [`eventfd`] unreadable until the next signal.
pub fn clear_eventfd(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: eight bytes of room are passed; the descriptor does not block.
    unsafe { libc::read(fd.as_raw_fd(), std::ptr::from_mut(&mut count).cast(), 8) };
}

/// Keeps this thread on one core.
pub fn pin_thread(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `core` was checked to lie inside the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set and its size are passed; 0 names this thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

/// The core that this thread is on just now.
pub fn current_core() -> usize {
    // SAFETY: takes no pointers.
    let core = unsafe { libc::sched_getcpu() };
    // The call fails only on kernels that lack it.
    usize::try_from(core).unwrap_or(0)
}

/// Calls `work` on each core that this thread may run on, one after the other; the thread is free to run on all of them again afterwards.
pub fn on_each_core(mut work: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size passed, which is that of `before`; 0 names this thread.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before) })?;
    let done = allowed_cores().into_iter().try_for_each(|core| pin_thread(core).and_then(|()| work()));
    // SAFETY: the set and its size are passed; 0 names this thread.
    let back = check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &before) });
    done.and(back.map(drop))
}

/// A descriptor of a process, which names that process even when its number is another's: `pidfd_open(2)`.
pub fn pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    check_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as c_int)
}

/// Sends a signal to a process by its descriptor.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    let none = std::ptr::null::<c_void>();
    // SAFETY: a null `siginfo_t` is allowed, and means that of kill(2).
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) };
    check(sent as c_int).map(drop)
}

/// Sets the name of this thread, as `ps` shows it, 15 bytes at most.
pub fn set_name(name: &CStr) {
    // SAFETY: the kernel reads a terminated string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Sets how late the kernel may let this thread's sleeps end, in nanoseconds.
pub fn set_timer_slack_ns(slack_ns: u64) {
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns, 0, 0, 0) };
}

/// The user whose rights this process has.
pub fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    user() == 0
}

/// Returns whether this process may look at the limits of the machine: enter namespaces, and look at their programs. Root of a service with
/// few capabilities, or of a container, may not.
pub fn sees_limits() -> bool {
    is_root() && confinement::is_admin()
}

/// The user who connected to this end of a Unix socket, as the kernel noted it then (`SO_PEERCRED`).
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: all-zero is a valid `ucred`, three integers.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (pointer, length) = (std::ptr::from_mut(&mut peer).cast(), &mut length);
    // SAFETY: the kernel writes at most `length` bytes, the size of `peer`; both are alive for the call.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, pointer, length)
    })?;
    Ok(peer.uid)
}

/// Makes this process ignore the terminal it was started from and signals that ask it to end.
pub fn leave_terminal() {
    // SAFETY: takes no pointers; if it fails, this process leads its session already.
    unsafe { libc::setsid() };
    let signals = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGPIPE,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    for signal in signals {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Puts `null`, which is open already, in the place of this process's standard error: whoever reads that need not wait for this process.
pub fn leave_standard_error(null: BorrowedFd<'_>) {
    // SAFETY: takes no pointers. A call that fails leaves everything as it is.
    unsafe { libc::dup3(null.as_raw_fd(), libc::STDERR_FILENO, 0) };
}

/// The cores this thread may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size passed, which is that of `set`; 0 names this thread.
    let read = check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) });
    // SAFETY: each core is below the size of the set, which is whole.
    let allowed = |&core: &usize| unsafe { libc::CPU_ISSET(core, &set) };
    if read.is_ok() { (0..libc::CPU_SETSIZE as usize).filter(allowed).collect() } else { vec![0] }
}

/// Makes this thread run before all that are not real-time (`SCHED_FIFO`, lowest priority); without the right to, it stays as it is. The
/// kernel keeps a share of each core for the others (`sched_rt_runtime_us`).
pub fn set_realtime() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are passed by a pointer to a live value; 0 names this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
}

/// Real time for this thread ([`set_realtime`]) until this is dropped: for the kernel's swap of a queue, in which it drops packets that are
/// sent. Another program that had the core meanwhile would make that milliseconds.
#[derive(Debug)]
pub struct Realtime {
    /// The policy and the priority before; none if they cannot be told, and nothing has changed then.
    before: Option<(i32, libc::sched_param)>,
}

impl Realtime {
    /// Makes this thread run before all others.
    pub fn begin() -> Realtime {
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: takes no pointers; 0 names this thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        // SAFETY: the kernel writes one live value; 0 names this thread.
        let is_told = policy >= 0 && unsafe { libc::sched_getparam(0, &raw mut parameters) } == 0;
        let is_other = policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_OTHER;
        let before = (is_told && is_other).then_some((policy, parameters));
        if before.is_some() {
            set_realtime();
        }
        Realtime { before }
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        if let Some((policy, parameters)) = self.before {
            // SAFETY: the parameters are passed by a pointer to a live value; 0 names this thread.
            unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_ends_with_its_value() {
        // SAFETY: takes no pointers; 0 names this thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let urgent = Realtime::begin();
        let nested = Realtime::begin();
        drop(nested);
        assert!([before, libc::SCHED_FIFO].contains(&policy()), "without the right to it stays as it is");
        drop(urgent);
        assert_eq!(policy(), before);
    }

    fn memory_to_lock() -> libc::rlim_t {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is of a live value.
        check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) }).expect("it is told");
        limit.rlim_cur
    }

    #[test]
    fn what_is_refused_for_locked_memory_is_made_without_a_bound() {
        let before = memory_to_lock();
        let mut bounds = Vec::new();
        let made = with_memory_to_lock(|| {
            bounds.push(memory_to_lock());
            if bounds.len() == 1 { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
        });
        match made {
            Ok(()) => assert_eq!(bounds, [before, libc::RLIM_INFINITY]),
            // The test runs without the right to raise the bound.
            Err(error) => assert_eq!((error.raw_os_error(), bounds), (Some(libc::EPERM), vec![before])),
        }
        assert_eq!(memory_to_lock(), before);
    }

    #[test]
    fn what_else_is_refused_is_refused() {
        let mut tries = 0;
        let made: io::Result<()> = with_memory_to_lock(|| {
            tries += 1;
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        });
        assert!(made.is_err() && tries == 1);
    }
}
