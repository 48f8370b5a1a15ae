//! The loop of a worker's thread: a pass, and another as long as something moves; otherwise spin or park ([`crate::idle`]).
//!
//! Rule: nothing is looked for but in a pass. The object that is driven parks by itself, since it knows what wakes it (invariant 3).
//!
//! Owner: the thread that calls owns what it drives.

use std::io;

use weir_core::due::sooner;
use weir_path::worker::Pass;

use crate::clock::now_ns;
use crate::idle::{Idle, Rest};

/// An object that a worker's thread drives.
pub trait Driven {
    /// Looks at everything but packets. Returns whether it goes on, and until when it may rest at the most.
    ///
    /// # Errors
    /// If it cannot go on.
    fn look(&mut self, now_ns: u64) -> io::Result<Look>;

    /// Moves packets that can be moved now.
    ///
    /// # Errors
    /// If it cannot go on.
    fn pass(&mut self, now_ns: u64) -> io::Result<Pass>;

    /// Sleeps until this time or until woken, unless there is something to do.
    ///
    /// # Errors
    /// If it cannot sleep.
    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()>;
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The worker goes on, and the next look is by this time at the latest.
    On(Option<u64>),
    /// The worker's run is over.
    Over,
}

/// Drives it until it is over.
///
/// # Errors
/// If it cannot go on.
pub fn drive(driven: &mut impl Driven, wake_cost_ns: u64) -> io::Result<()> {
    let mut idle = Idle::new(wake_cost_ns, now_ns());
    loop {
        let now = now_ns();
        let Look::On(look_ns) = driven.look(now)? else { return Ok(()) };
        let pass = driven.pass(now)?;
        if pass.moved > 0 {
            idle.worked(now);
            continue;
        }
        let until_ns = sooner(look_ns, pass.wake_ns);
        match idle.rest(now_ns(), until_ns, pass.expecting) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Park(until_ns) => driven.park(until_ns)?,
        }
    }
}
