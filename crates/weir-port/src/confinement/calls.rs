//! The system calls that a sealed process may make.
//!
//! Three filters are asked at each call, and the kernel takes the strictest answer:
//!
//! ```text
//! DEADLY    another program, process, module, mount, other memory: the process is killed
//! allowed   the calls of Weir, its libraries and the C library, some with certain arguments only; anything else: EPERM
//! clone3    as if the kernel had none, because its arguments lie in memory where no filter sees them: the C library then takes clone
//! ```
//!
//! Calls that are allowed whatever their arguments cost next to nothing: the kernel keeps a bitmap of them. So the calls on a packet's way
//! are allowed as a whole.
//!
//! Source: `seccomp(2)`; kernel `kernel/seccomp.c:seccomp_run_filters` for which answer counts, `seccomp_cache_prepare` for the
//! bitmap.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// A call that is allowed if the argument of this number, under a mask, has this value.
struct With {
    call: c_long,
    argument: u8,
    mask: u64,
    value: u64,
}

const EXEC: u64 = libc::PROT_EXEC as u64;

const ALLOWED_WITH: [With; 11] = [
    // Clone makes a thread, not a process.
    With {
        call: libc::SYS_clone,
        argument: 0,
        mask: libc::CLONE_THREAD as u64,
        value: libc::CLONE_THREAD as u64,
    },
    // Mapped memory holds no instructions.
    With { call: libc::SYS_mmap, argument: 2, mask: EXEC, value: 0 },
    With { call: libc::SYS_mprotect, argument: 2, mask: EXEC, value: 0 },
    // Setns enters network namespaces alone.
    With { call: libc::SYS_setns, argument: 1, mask: u32::MAX as u64, value: libc::CLONE_NEWNET as u64 },
    // Unshare makes a new network namespace, where a probe needs one.
    With { call: libc::SYS_unshare, argument: 0, mask: u32::MAX as u64, value: libc::CLONE_NEWNET as u64 },
    // Ioctls: offloads and queues of an interface, its name and index, whether there is a terminal, a socket that does not block, and the
    // group in the foreground of a terminal, which is that of a program of `weir run` again.
    ioctl(libc::SIOCETHTOOL),
    ioctl(libc::SIOCGIFNAME),
    ioctl(libc::SIOCGIFINDEX),
    ioctl(libc::TCGETS),
    ioctl(libc::FIONBIO),
    ioctl(libc::TIOCSPGRP),
];

const fn ioctl(request: u64) -> With {
    With { call: libc::SYS_ioctl, argument: 1, mask: u32::MAX as u64, value: request }
}

/// The calls that are allowed whatever the arguments.
const ALLOWED: &[c_long] = &[
    // Packets, and all else that goes through sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_bpf,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_waitid,
    libc::SYS_wait4,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Files.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    // The socket and the locks in /run/weir.
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    // Threads and signals.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_getcpu,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_setsid,
    libc::SYS_capget,
    libc::SYS_capset,
    // Identity of the process and the machine.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Answered by a filter of its own, below.
    libc::SYS_clone3,
];

/// The older forms of these calls, where the architecture has them.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_readlink,
    libc::SYS_access,
    libc::SYS_mkdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_getpgrp,
    libc::SYS_arch_prctl,
];
/// The call by which the C library renames files here, where there is no `rename`.
#[cfg(target_arch = "aarch64")]
const ALLOWED_OLD: &[c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ALLOWED_OLD: &[c_long] = &[];

/// The calls that no Weir ever makes and an intruder would make first.
const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mknodat,
    libc::SYS_swapon,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_setuid,
    libc::SYS_setresuid,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
];

#[cfg(target_arch = "x86_64")]
const DEADLY_OLD: &[c_long] = &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const DEADLY_OLD: &[c_long] = &[];

/// The filters, in the order in which they must be set: after each one `seccomp(2)` is called once more.
pub fn filters() -> [BpfProgram; 3] {
    const ENOSYS: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);
    const EPERM: SeccompAction = SeccompAction::Errno(libc::EPERM as u32);
    let whatever = |calls: &[c_long]| -> Rules { calls.iter().map(|&call| (call, Vec::new())).collect() };
    let mut allowed = whatever(ALLOWED);
    allowed.extend(whatever(ALLOWED_OLD));
    for with in &ALLOWED_WITH {
        allowed.entry(with.call).or_default().push(with.rule());
    }
    let mut deadly = whatever(DEADLY);
    deadly.extend(whatever(DEADLY_OLD));
    [
        filter(allowed, SeccompAction::Allow, EPERM),
        filter(whatever(&[libc::SYS_clone3]), ENOSYS, SeccompAction::Allow),
        filter(deadly, SeccompAction::KillProcess, SeccompAction::Allow),
    ]
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl With {
    fn rule(&self) -> SeccompRule {
        // Pointers and flags of clone and mmap are whole words, the others ints, of which the upper half may be anything.
        let length = if self.mask > u64::from(u32::MAX) { Qword } else { Dword };
        let condition =
            SeccompCondition::new(self.argument, length, SeccompCmpOp::MaskedEq(self.mask), self.value);
        SeccompRule::new(vec![condition.expect("a call has six arguments")]).expect("there is a condition")
    }
}

fn filter(rules: Rules, listed: SeccompAction, others: SeccompAction) -> BpfProgram {
    let arch: TargetArch = std::env::consts::ARCH.try_into().expect("an architecture that weir is built for");
    let filter = SeccompFilter::new(rules, others, listed, arch).expect("two different answers");
    filter.try_into().expect("the lists are shorter than a filter may be")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use seccompiler::apply_filter;

    use super::*;

    fn error() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn what_weir_needs_goes_on_and_what_is_not_known_is_refused() {
        // The filters hold for this thread alone, and for the threads it starts.
        let sealed = std::thread::spawn(|| {
            filters().iter().for_each(|filter| apply_filter(filter).unwrap());
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7, "threads are needed");
            assert!(std::fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs"));
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().set_nonblocking(true).is_ok());
            // SAFETY: takes no pointers.
            let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            assert_eq!((unshared, error()), (-1, Some(libc::EPERM)), "a namespace of mounts");
            // SAFETY: takes no pointers; without CLONE_THREAD it is refused before anything is made.
            let forked = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            assert_eq!((forked, error()), (-1, Some(libc::EPERM)), "a process");
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the kernel's choice, if there were one.
            let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            assert_eq!((mapped, error()), (libc::MAP_FAILED, Some(libc::EPERM)), "memory to execute");
            // SAFETY: takes no pointers but that of one byte, which is alive.
            let typed = unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) };
            assert_eq!((typed, error()), (-1, Some(libc::EPERM)), "what a user did not type");
            // SAFETY: takes no pointers.
            let clone3 = unsafe { libc::syscall(libc::SYS_clone3, 0, 0) };
            assert_eq!((clone3, error()), (-1, Some(libc::ENOSYS)));
        });
        sealed.join().unwrap();
    }

    #[test]
    fn another_program_is_the_end() {
        let mut command = Command::new("true");
        let filters = filters();
        // SAFETY: between fork and exec only system calls are made, on filters that were made before.
        unsafe {
            command.pre_exec(move || {
                filters
                    .iter()
                    .try_for_each(|filter| apply_filter(filter))
                    .map_err(|_| std::io::ErrorKind::Other.into())
            })
        };
        let status = command.spawn().unwrap().wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    }

    #[test]
    fn nothing_is_both_allowed_and_deadly() {
        let allowed = || ALLOWED.iter().chain(ALLOWED_OLD).chain(ALLOWED_WITH.iter().map(|with| &with.call));
        for call in DEADLY.iter().chain(DEADLY_OLD) {
            assert!(!allowed().any(|other| other == call), "{call}");
        }
    }
}
