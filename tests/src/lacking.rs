//! A kernel that lacks a feature, for one program: its system calls for it fail as they would there.
//!
//! A seccomp filter, put on between `fork` and `exec`, answers the calls with an error before the kernel sees them. Limits: a filter sees
//! numbers and plain arguments only, so a feature that is asked for by a message (netlink) cannot be taken away.
//!
//! Source: seccomp(2), `Documentation/userspace-api/seccomp_filter.rst`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The system call that the kernel lacks.
#[derive(Clone, Copy, Debug)]
pub struct Lacking {
    /// The number of the system call.
    pub call: libc::c_long,
    /// Only with this first argument.
    pub first: Option<u32>,
    /// The error of the call.
    pub error: i32,
}

/// A kernel with `kernel.io_uring_disabled=2`, for one program and those that it starts.
pub const NO_IO_URING: Lacking = Lacking { call: libc::SYS_io_uring_setup, first: None, error: libc::EPERM };

impl Lacking {
    /// Makes a command run on such a kernel.
    pub fn apply(self, command: &mut Command) -> &mut Command {
        let filter = self.filter();
        let put_on = move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            // SAFETY: prctl(2) reads its plain arguments, and the filter, which this closure owns, only during the call.
            let done = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
            };
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: between fork and exec it makes two system calls and takes no memory and no lock.
        unsafe { command.pre_exec(put_on) }
    }

    /// `if call == nr && (any first argument or args[0] == first) return error; return allow`, as classic BPF over
    /// `struct seccomp_data { int nr; u32 arch; u64 instruction_pointer; u64 args[6]; }`.
    fn filter(self) -> Vec<libc::sock_filter> {
        const NR: u32 = 0;
        const FIRST_ARGUMENT: u32 = 16;
        let plain = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let load = |offset| plain(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let unless_equal_skip = |k: u32, skip: u8| libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: skip,
            k,
        };
        let answer = |k| plain(libc::BPF_RET | libc::BPF_K, k);
        let mut filter = vec![load(NR)];
        match self.first {
            None => filter.push(unless_equal_skip(self.call as u32, 1)),
            Some(first) => filter.extend([
                unless_equal_skip(self.call as u32, 3),
                load(FIRST_ARGUMENT),
                unless_equal_skip(first, 1),
            ]),
        }
        filter.push(answer(libc::SECCOMP_RET_ERRNO | self.error as u32));
        filter.push(answer(libc::SECCOMP_RET_ALLOW));
        filter
    }
}
