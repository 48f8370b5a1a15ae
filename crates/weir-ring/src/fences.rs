//! Two fences that together order a store before a load on both sides of a question, one of them nearly free.
//! A publisher stores and then looks whether a worker sleeps; a sleeper stores that it sleeps and then looks whether anything was
//! published. One of the two must see the other (Dekker), so each needs a full fence between its store and its load. Publishers pass
//! millions of times a second and sleepers seldom, so the sleeper pays for both.
//!
//! Rule: `light` only keeps the compiler from moving the load before the store. `heavy` asks the kernel to make every running thread of
//! this process pass a full fence before the call returns (a thread that is not running passed one when it was switched out). So a `heavy`
//! cuts the program of every publisher somewhere by a full fence:
//! - if the cut comes after the publisher's store, the store is visible to all that the sleeper loads next;
//! - if it comes before, so does it before the load that follows the store, and that load happens after the sleeper's store
//!   became visible.
//!
//! A full fence on each side gives the same, so the model checker runs this crate with full fences in both places; where the kernel refuses
//! (before 4.14, or a filter of system calls), so do we.
//!
//! Ordering and ownership: these fences; [`crate::doorbell`] and [`crate::pending`] name their pairs.
//! Source: membarrier(2), `MEMBARRIER_CMD_PRIVATE_EXPEDITED`; Linux `Documentation/scheduler/membarrier.rst`; the
//! asymmetric fences of C++ P1202.
//! Limits: threads of one process. A `heavy` interrupts every core that runs one of them: microseconds, on a virtual machine, of a worker
//! that is busy. A worker that sleeps often beside such workers takes full fences for both ([`Fences::full`]).

#[cfg(not(any(loom, miri)))]
pub(crate) use kernel::Fences;

#[cfg(any(loom, miri))]
pub(crate) use full::Fences;

#[cfg(not(any(loom, miri)))]
mod kernel {
    use crate::sync::atomic::{Ordering, compiler_fence, fence};

    /// The kind of fences of this process; the same for all its threads.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fences {
        /// The sleeper's `heavy` fence serves both sides.
        Asymmetric,
        /// Both sides pass full fences.
        Full,
    }

    impl Fences {
        /// Asks the kernel for the asymmetric pair.
        pub(crate) fn new() -> Fences {
            match membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
                0 => Fences::Asymmetric,
                _ => Fences::Full,
            }
        }

        /// Full fences for both sides, and no calls of the kernel.
        pub(crate) fn full() -> Fences {
            Fences::Full
        }

        /// The publisher's fence.
        #[inline]
        pub(crate) fn light(self) {
            match self {
                Fences::Asymmetric => compiler_fence(Ordering::SeqCst),
                Fences::Full => fence(Ordering::SeqCst),
            }
        }

        /// The sleeper's fence.
        pub(crate) fn heavy(self) {
            fence(Ordering::SeqCst);
            if self == Fences::Asymmetric {
                let answer = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
                assert_eq!(answer, 0, "membarrier: {}", std::io::Error::last_os_error());
            }
        }
    }

    fn membarrier(command: libc::c_int) -> libc::c_long {
        // SAFETY: takes numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::Barrier;
        use std::sync::atomic::AtomicU32;

        /// Dekker's question, asked many times: it never happens that both see nothing.
        #[test]
        fn one_of_two_sees_the_other() {
            const ROUNDS: usize = 20_000;
            for fences in [Fences::new(), Fences::Full] {
                let flags: Vec<[AtomicU32; 2]> = (0..ROUNDS).map(|_| Default::default()).collect();
                let start = Barrier::new(2);
                let ask = |mine: usize, fence: fn(Fences)| -> Vec<u32> {
                    start.wait();
                    let answers = flags.iter().map(|flags| {
                        flags[mine].store(1, Ordering::Relaxed);
                        fence(fences);
                        flags[1 - mine].load(Ordering::Relaxed)
                    });
                    answers.collect()
                };
                let (publisher, sleeper) = std::thread::scope(|scope| {
                    let publisher = scope.spawn(|| ask(0, Fences::light));
                    (ask(1, Fences::heavy), publisher.join().expect("it does not panic"))
                });
                let blind = publisher.iter().zip(&sleeper).filter(|seen| *seen == (&0, &0)).count();
                assert_eq!(blind, 0, "{fences:?}");
            }
        }
    }
}

#[cfg(any(loom, miri))]
mod full {
    use crate::sync::atomic::{Ordering, fence};

    /// Full fences for both: the effect of the asymmetric pair.
    #[derive(Clone, Copy)]
    pub(crate) struct Fences;

    impl Fences {
        pub(crate) fn new() -> Fences {
            Fences
        }

        pub(crate) fn full() -> Fences {
            Fences
        }

        pub(crate) fn light(self) {
            fence(Ordering::SeqCst);
        }

        pub(crate) fn heavy(self) {
            fence(Ordering::SeqCst);
        }
    }
}
