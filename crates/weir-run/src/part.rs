//! A worker's part of a wire: the ends it owns, both of them or one.
//!
//! A worker owns a port, what comes in by it and waits for the limit, and what goes out by it. With one worker, what is released at one
//! end departs at the other in the same step; with two, it crosses over (`crossing.rs`), and each port is touched by
//! its owner alone.
//!
//! Conservation (invariant 1), for each direction: accepted = delivered + dropped + held, and held is counted where packets are:
//! in the classes, crossing, with the device.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;
use weir_port::frames::Frames;
use weir_port::link::Link;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;

use crate::backoff::Backoff;
use crate::classes::Classes;
use crate::crossing::Crossing;
use crate::departure::Departure;
use crate::end::End;
use crate::report::{EndReport, PartReport};
use crate::stats::WorkerStats;

/// What a step came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Packets that moved.
    pub moved: usize,
    /// When to step again if nothing happens before.
    pub wake_ns: Option<u64>,
    /// Whether a packet that came now would be taken.
    pub expecting: bool,
}

impl Step {
    fn wake(&mut self, wake_ns: Option<u64>) {
        self.wake_ns = [self.wake_ns, wake_ns].into_iter().flatten().min();
    }

    /// Releases at one end what departs at the other.
    fn release(&mut self, from: &mut End, to: &mut End, frames: &mut Frames, now_ns: u64) {
        let End { port, departure, .. } = to;
        let room = port.transmit_room();
        let out = |packet, frames: &mut Frames| departure.put(packet, port, frames);
        let (moved, release_ns) = from.direction.release(room, frames, now_ns, out);
        self.moved += moved;
        self.wake(release_ns);
    }
}

/// What one worker owns.
pub struct Part {
    ends: Vec<End>,
    frames: Frames,
    crossing: Option<Crossing>,
    /// What this worker waits for that the other has.
    backoff: Backoff,
    // The sockets go first.
    _umem: Arc<Umem>,
}

impl Part {
    /// Both ends, or one end and the crossing to the worker of the other.
    pub fn new(ends: Vec<End>, frames: Frames, crossing: Option<Crossing>, umem: Arc<Umem>) -> Part {
        assert_eq!(ends.len() == 1, crossing.is_some(), "an end alone has a crossing");
        Part { ends, frames, crossing, backoff: Backoff::default(), _umem: umem }
    }

    /// Moves what can be moved now.
    pub fn step(&mut self, now_ns: u64) -> weir_port::Result<Step> {
        let mut step = Step::default();
        let mut is_starved = false;
        for at in 0..self.ends.len() {
            let departing = self.departing(at);
            let End { port, direction, .. } = &mut self.ends[at];
            step.moved += direction.take_in(port, &mut self.frames, departing, now_ns);
            step.expecting |= direction.has_room(&self.frames, departing);
            is_starved |= direction.is_starved(&self.frames, departing);
        }
        let delivered = self.deliver(now_ns)?;
        step.moved += delivered.moved;
        step.wake(delivered.wake_ns);
        self.ends.iter().for_each(|end| step.wake(Some(end.direction.wake_ns())));
        if is_starved {
            // Neither the device nor the other worker says when it has given frames back.
            let finished = self.finished();
            step.wake(Some(self.backoff.look_ns(finished, now_ns)));
        }
        Ok(step)
    }

    /// Moves what is inside on, and takes nothing in.
    pub fn deliver(&mut self, now_ns: u64) -> weir_port::Result<Step> {
        let mut step = Step::default();
        self.settle();
        if let (Some(crossing), [end]) = (&mut self.crossing, &mut self.ends[..]) {
            let End { port, direction, departure, .. } = end;
            step.moved += crossing.take(|packet| departure.put(packet, port, &mut self.frames));
            let room = crossing.room();
            let (moved, release_ns) =
                direction.release(room, &mut self.frames, now_ns, |packet, _| crossing.hand(packet));
            crossing.flush().map_err(|gone| weir_port::PortError::Kernel {
                doing: format!("handing packets of {} over", port.link().name),
                source: io::Error::other(gone),
            })?;
            step.moved += moved;
            step.wake(release_ns);
            if crossing.room() == 0 {
                let finished = self.finished();
                step.wake(Some(self.backoff.look_ns(finished, now_ns)));
            }
        }
        if let [first, second] = &mut self.ends[..] {
            step.release(first, second, &mut self.frames, now_ns);
            step.release(second, first, &mut self.frames, now_ns);
        }
        for End { port, departure, .. } in &mut self.ends {
            step.wake(departure.flush(port, now_ns)?);
        }
        Ok(step)
    }

    /// Looks at what has become of transmissions, so that the books are up to date.
    fn settle(&mut self) {
        for End { port, departure, .. } in &mut self.ends {
            departure.settle(port, &mut self.frames);
        }
        if let (Some(crossing), [end]) = (&self.crossing, &self.ends[..]) {
            crossing.tell_finished(end.departure.finished(&end.port));
        }
    }

    /// Packets that are gone, there or here, as far as is known: a count that changes when there is credit again.
    fn finished(&self) -> u64 {
        let there =
            self.crossing.as_ref().map_or(0, |crossing| crossing.counts().0.packets - crossing.departing());
        self.ends.iter().map(|end| end.departure.finished(&end.port)).sum::<u64>() + there
    }

    /// What the direction of an end has released that is not gone yet.
    fn departing(&self, at: usize) -> u64 {
        match &self.crossing {
            Some(crossing) => crossing.departing(),
            None => Departure::held(&self.ends[1 - at].port).packets,
        }
    }

    /// Sleeps by `wait`, to which a descriptor is passed that is readable when the other worker has kicked, if there is one; not if
    /// something has come that the worker does not know of. Whether it slept.
    pub fn park(&mut self, wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>) -> io::Result<bool> {
        let ends = &self.ends;
        let is_announced = || ends.iter().any(|end| end.direction.is_announced(&end.port));
        match &mut self.crossing {
            Some(crossing) => crossing.park(is_announced, |kicked| wait(Some(kicked))),
            None if is_announced() => Ok(false),
            None => wait(None).map(|()| true),
        }
    }

    /// Whether everything that came in has left; to be asked when nothing more is taken in. The other worker is told when this
    /// one has handed everything over.
    pub fn is_drained(&self) -> bool {
        let is_dry = self.ends.iter().all(|end| end.direction.shaping().held().packets == 0);
        if let Some(crossing) = self.crossing.as_ref().filter(|_| is_dry) {
            crossing.tell_dry();
        }
        is_dry
            && self.crossing.as_ref().is_none_or(Crossing::is_done)
            && self.ends.iter().all(|end| Departure::held(&end.port).packets == 0)
    }

    /// Whether an interface of it is gone, or in another namespace.
    pub fn has_lost_an_end(&self) -> bool {
        let is_gone =
            |end: &End| Link::by_index(end.port.link().ifindex).is_err_and(|error| error.is_no_interface());
        self.ends.iter().any(is_gone)
    }

    /// Tells the other worker, if there is one, not to wait for this one, which ends.
    pub fn abandon(&self) {
        self.crossing.iter().for_each(Crossing::tell_dry);
    }

    fn end(&mut self, index: usize) -> (&mut End, &mut Frames) {
        let end = self.ends.iter_mut().find(|end| end.index == index).expect("an end that this worker owns");
        (end, &mut self.frames)
    }

    /// Notes that an interface went down.
    pub fn note_down(&mut self, index: usize) {
        self.end(index).0.port.note_down();
    }

    /// Notes that an interface or its other end has another name or MTU now, or that the other end is elsewhere.
    pub fn follow(&mut self, index: usize, pair: Pair, now_ns: u64) {
        let (End { port, direction, .. }, _) = self.end(index);
        port.follow(pair);
        direction.note_mtu(port, now_ns);
    }

    /// Owns the queues of an interface again that came up again, with other NAPI instances than before. What was received before it
    /// went down is taken in, since its rings are not the new instances'. One that went down and up twice is told of twice, and may be
    /// owned again by the first time.
    pub fn retake(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        let (End { port, direction, .. }, frames) = self.end(index);
        let mut retake = || {
            if !port.is_disowned()? {
                return port.note_up();
            }
            port.let_go()?;
            direction.collect(port, frames, now_ns);
            port.retake(frames)
        };
        let result = retake();
        direction.tune(port);
        match result {
            // Down again already: it will come up again, or vanish.
            Err(_) if Link::by_index(port.link().ifindex).is_ok_and(|link| !link.up) => Ok(()),
            // And up again already, of which the worker will hear.
            Err(_) if port.is_disowned().is_ok_and(|is_disowned| is_disowned) => Ok(()),
            result => result,
        }
    }

    /// Changes the limits of the direction that starts at `index`; nothing that waits is touched.
    pub fn set_limits(&mut self, index: usize, limits: Option<TbfConfig>, now_ns: u64) -> Result<(), String> {
        let (End { port, direction, .. }, _) = self.end(index);
        direction.set_limits(limits, port, now_ns).map_err(|error| error.to_string())
    }

    /// Shapes by these classes from now on; nothing that waits is lost.
    pub fn set_classes(&mut self, classes: &Arc<Classes>, now_ns: u64) {
        for End { port, direction, .. } in &mut self.ends {
            direction.set_classes(Arc::clone(classes), port, &mut self.frames, now_ns);
        }
    }

    /// The limits of the direction that starts at `index`.
    pub fn limits(&mut self, index: usize) -> Option<TbfConfig> {
        self.end(index).0.direction.shaping().limits().copied()
    }

    /// Copies of all counters.
    pub fn report(&mut self, worker: WorkerStats, now_ns: u64) -> weir_port::Result<PartReport> {
        self.settle();
        let ends = self.ends.iter_mut().map(|end| EndReport::new(end, now_ns)).collect::<Result<_, _>>()?;
        let (handed, taken) = self.crossing.as_ref().map(Crossing::counts).unwrap_or_default();
        let census = self.frames.pool.census();
        Ok(PartReport {
            ends,
            handed,
            taken,
            frames_free: census.shared + census.cached,
            frames_lent: u64::from(self.frames.loans.count()),
            worker: WorkerStats { now_ns, ..worker },
        })
    }
}
