//! The object that a parked worker blocks on: an eventfd, so that it can sit in a poll set beside sockets and timers. Under the model
//! checker and the interpreter, which have no poll, a mutex and a condition variable.
//!
//! Rule: a ring before the wait makes the wait return; rings add up and one look takes all of them. A ring happens
//! before the end of the wait it ends.
//! Ordering and ownership: anyone may ring; one worker waits.
//! Source: eventfd(2), ppoll(2).
//! Limits: says that someone rang, not why: [`crate::doorbell`] knows.

#[cfg(not(any(loom, miri)))]
pub(crate) use kernel::Bell;

#[cfg(any(loom, miri))]
pub(crate) use modelled::Bell;

#[cfg(not(any(loom, miri)))]
mod kernel {
    use std::io::{Error, ErrorKind, Result};
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

    /// An eventfd to block on; see the head of the file.
    #[derive(Debug)]
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> Result<Bell> {
            // SAFETY: makes a new descriptor and touches no memory.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 {
                return Err(Error::last_os_error());
            }
            // SAFETY: a new descriptor that no other code closes.
            Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) }))
        }

        pub(crate) fn ring(&self) {
            let one = 1u64;
            // SAFETY: reads the eight bytes of `one`.
            let written = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
            // The write cannot fail: the count would have to reach 2^64 - 1 for EAGAIN.
            debug_assert_eq!(written, 8);
        }

        /// Takes the rings since the last take; 0 if there are none.
        pub(crate) fn take(&self) -> u64 {
            let mut rings = 0u64;
            // SAFETY: writes at most the eight bytes of `rings`.
            let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut rings).cast(), 8) };
            if read == 8 { rings } else { 0 }
        }

        /// Blocks until there are rings, and takes them.
        pub(crate) fn wait(&self) -> u64 {
            loop {
                let rings = self.take();
                if rings > 0 {
                    return rings;
                }
                let mut entry = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, which outlives the call.
                if unsafe { libc::poll(&mut entry, 1, -1) } < 0 {
                    let error = Error::last_os_error();
                    assert_eq!(error.kind(), ErrorKind::Interrupted, "poll of an eventfd: {error}");
                }
            }
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(any(loom, miri))]
mod modelled {
    use crate::sync::{Condvar, Mutex};
    use std::io::Result;

    /// A count of rings to block on; see the head of the file.
    pub(crate) struct Bell {
        rings: Mutex<u64>,
        rang: Condvar,
    }

    impl Bell {
        pub(crate) fn new() -> Result<Bell> {
            Ok(Bell { rings: Mutex::new(0), rang: Condvar::new() })
        }

        pub(crate) fn ring(&self) {
            *self.rings.lock().unwrap() += 1;
            self.rang.notify_one();
        }

        pub(crate) fn take(&self) -> u64 {
            std::mem::take(&mut *self.rings.lock().unwrap())
        }

        pub(crate) fn wait(&self) -> u64 {
            let mut rings = self.rings.lock().unwrap();
            while *rings == 0 {
                rings = self.rang.wait(rings).unwrap();
            }
            std::mem::take(&mut *rings)
        }
    }
}
