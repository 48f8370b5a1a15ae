//! What one worker owns of the path, and the one pass that moves packets along it.
//!
//! ```text
//! one worker:   port A --intake--> classes A->B --release--> exit B        and the same back
//! two workers:  port A --intake--> classes A->B --release--> crossing ~~> the other worker: exit B
//! ```
//!
//! A worker owns both ends of a wire, or one end and its side of the crossing to the worker of the other. Each port is touched by its
//! owner alone.
//!
//! Rule (invariant 6): the work of a pass is bounded. Conservation (invariant 1), for each direction: accepted = delivered + dropped +
//! held, and held is counted where packets are: in the classes, crossing, with the device.
//!
//! Pure: time is an argument, and nothing here calls the kernel but a port. The thread that drives it is `weir_run::worker`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::backoff::Backoff;
use crate::classes::Classes;
use crate::crossing::Crossing;
use crate::end::End;
use crate::frames::Frames;
use crate::port::{ReceiveQueues, TransmitRing};
use crate::shaping::Release;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Packets that moved.
    pub moved: usize,
    /// When the next pass is due if nothing happens before.
    pub wake_ns: Option<u64>,
    /// Whether a packet that came now would be taken.
    pub expecting: bool,
}

impl Pass {
    fn wake(&mut self, wake_ns: Option<u64>) {
        self.wake_ns = [self.wake_ns, wake_ns].into_iter().flatten().min();
    }

    fn add(&mut self, released: Release) {
        self.moved += released.packets;
        self.wake(released.wake_ns);
    }
}

/// What one worker owns.
pub struct Worker<P> {
    ends: Vec<End<P>>,
    frames: Frames,
    crossing: Option<Crossing>,
    /// What this worker waits for that the other has.
    backoff: Backoff,
}

impl<P: ReceiveQueues + TransmitRing> Worker<P> {
    /// Both ends, or one end and the crossing to the worker of the other.
    pub fn new(ends: Vec<End<P>>, frames: Frames, crossing: Option<Crossing>) -> Worker<P> {
        assert_eq!(ends.len() == 1, crossing.is_some(), "an end alone has a crossing");
        Worker { ends, frames, crossing, backoff: Backoff::default() }
    }

    /// Moves what can be moved now.
    ///
    /// # Errors
    /// If a device fails for good, or the other worker has gone.
    pub fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        let mut pass = Pass::default();
        let is_starved = self.take_in(&mut pass, now_ns);
        self.deliver(&mut pass, now_ns)?;
        if is_starved {
            // Neither the device nor the other worker says when it has given frames back.
            pass.wake(Some(self.look_again_ns(now_ns)));
        }
        Ok(pass)
    }

    /// Moves what is inside on, and takes nothing in.
    ///
    /// # Errors
    /// As of [`Worker::pass`].
    pub fn drain(&mut self, now_ns: u64) -> io::Result<Pass> {
        let mut pass = Pass::default();
        self.deliver(&mut pass, now_ns)?;
        Ok(pass)
    }

    fn deliver(&mut self, pass: &mut Pass, now_ns: u64) -> io::Result<()> {
        self.complete();
        self.arrive(pass);
        self.release(pass, now_ns)?;
        self.flush(pass, now_ns)
    }

    /// Polls the queues for which there is room; whether some are left out because frames or credit are missing.
    fn take_in(&mut self, pass: &mut Pass, now_ns: u64) -> bool {
        let mut is_starved = false;
        for at in 0..self.ends.len() {
            let departing = self.departing(at);
            let End { port, intake, shaping, .. } = &mut self.ends[at];
            pass.moved += intake.take_in(port, shaping, &mut self.frames, departing, now_ns);
            pass.expecting |= intake.has_room(shaping, &self.frames, departing);
            is_starved |= intake.is_starved(shaping, &self.frames, departing);
            pass.wake(Some(intake.wake_ns()));
        }
        is_starved
    }

    /// Looks at what has become of transmissions, so that the books are up to date.
    pub fn complete(&mut self) {
        for End { port, exit, .. } in &mut self.ends {
            exit.complete(port, &mut self.frames);
        }
        if let (Some(crossing), [end]) = (&self.crossing, &self.ends[..]) {
            crossing.tell_finished(end.exit.finished(&end.port));
        }
    }

    /// Takes what the other worker has handed over.
    fn arrive(&mut self, pass: &mut Pass) {
        if let (Some(crossing), [End { port, exit, .. }]) = (&mut self.crossing, &mut self.ends[..]) {
            pass.moved += crossing.take(|packet| exit.put(packet, port, &mut self.frames));
        }
    }

    /// Lets out what the classes admit: to the exit at the other end, or to the worker that has it.
    fn release(&mut self, pass: &mut Pass, now_ns: u64) -> io::Result<()> {
        let frames = &mut self.frames;
        match (&mut self.ends[..], &mut self.crossing) {
            ([first, second], _) => {
                pass.add(release_between(first, second, frames, now_ns));
                pass.add(release_between(second, first, frames, now_ns));
            }
            ([end], Some(crossing)) => {
                let room = crossing.room();
                let hand = |packet, _: &mut Frames| crossing.hand(packet);
                pass.add(end.shaping.release(room, frames, now_ns, hand));
                crossing.flush().map_err(|gone| {
                    io::Error::other(format!("handing packets over to the other worker: {gone}"))
                })?;
                if crossing.room() == 0 {
                    pass.wake(Some(self.look_again_ns(now_ns)));
                }
            }
            _ => unreachable!("both ends, or one and a crossing"),
        }
        Ok(())
    }

    /// Makes the devices transmit.
    fn flush(&mut self, pass: &mut Pass, now_ns: u64) -> io::Result<()> {
        for End { port, exit, .. } in &mut self.ends {
            pass.wake(exit.flush(port, now_ns)?);
        }
        Ok(())
    }

    /// When to look again for what comes back without a word.
    fn look_again_ns(&mut self, now_ns: u64) -> u64 {
        let finished = self.finished();
        self.backoff.look_ns(finished, now_ns)
    }

    /// Packets that are gone, there or here, as far as is known: a count that changes when there is credit again.
    fn finished(&self) -> u64 {
        let there =
            self.crossing.as_ref().map_or(0, |crossing| crossing.counts().0.packets - crossing.departing());
        self.ends.iter().map(|end| end.exit.finished(&end.port)).sum::<u64>() + there
    }

    /// Packets that came in at an end and were released, and are not gone yet.
    fn departing(&self, at: usize) -> u64 {
        match &self.crossing {
            Some(crossing) => crossing.departing(),
            None => self.ends[1 - at].port.in_flight().packets,
        }
    }

    /// Whether something has come that the worker does not know of: the last look before it sleeps.
    pub fn is_announced(&self) -> bool {
        self.ends.iter().any(|end| end.intake.is_announced(&end.port))
    }

    /// Sleeps by `wait`, to which a descriptor is passed that is readable when the other worker has kicked, if there is one; not if
    /// something has come that the worker does not know of. Whether it slept.
    ///
    /// # Errors
    /// Those of `wait`.
    pub fn park(&mut self, wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>) -> io::Result<bool> {
        let ends = &self.ends;
        let is_announced = || ends.iter().any(|end| end.intake.is_announced(&end.port));
        match &mut self.crossing {
            Some(crossing) => crossing.park(is_announced, |kicked| wait(Some(kicked))),
            None if is_announced() => Ok(false),
            None => wait(None).map(|()| true),
        }
    }

    /// Whether everything that came in has left; to be asked when nothing more is taken in. The other worker is told when this
    /// one has handed everything over.
    pub fn is_drained(&self) -> bool {
        let is_dry = self.ends.iter().all(|end| end.shaping.held().packets == 0);
        if let Some(crossing) = self.crossing.as_ref().filter(|_| is_dry) {
            crossing.tell_dry();
        }
        is_dry
            && self.crossing.as_ref().is_none_or(Crossing::is_done)
            && self.ends.iter().all(|end| end.port.in_flight().packets == 0)
    }

    /// Tells the other worker, if there is one, not to wait for this one, which ends.
    pub fn abandon(&self) {
        self.crossing.iter().for_each(Crossing::tell_dry);
    }

    /// Shapes by these classes from now on; nothing that waits is lost.
    pub fn set_classes(&mut self, classes: &Arc<Classes>, now_ns: u64) {
        for end in &mut self.ends {
            end.set_classes(Arc::clone(classes), &mut self.frames, now_ns);
        }
    }

    /// The ends that it owns.
    pub fn ends(&self) -> &[End<P>] {
        &self.ends
    }

    /// An end that it owns, and the frames.
    ///
    /// # Panics
    /// If it does not own that end.
    pub fn end_mut(&mut self, index: usize) -> (&mut End<P>, &mut Frames) {
        let end = self.ends.iter_mut().find(|end| end.index == index).expect("an end that this worker owns");
        (end, &mut self.frames)
    }

    /// Its frames.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Its side of the crossing.
    pub fn crossing(&self) -> Option<&Crossing> {
        self.crossing.as_ref()
    }
}

/// Lets out what the classes at one end admit, to the exit at the other.
fn release_between<P: TransmitRing>(
    from: &mut End<P>,
    to: &mut End<P>,
    frames: &mut Frames,
    now_ns: u64,
) -> Release {
    let End { port, exit, .. } = to;
    let room = port.room();
    from.shaping.release(room, frames, now_ns, |packet, frames| exit.put(packet, port, frames))
}
