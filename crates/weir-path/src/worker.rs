//! One worker's part of the path, and the one pass that moves packets along it.
//!
//! ```text
//! port A --intake--> [stages] --> egress queue of B --release--> exit B                        and so for every port
//! with several workers:
//! port A --intake--> [stages] ~~ring~~> the other worker: [stages] --> egress queue of B --release--> exit B
//! ```
//!
//! A worker owns ports and stages of a plan (`owners.rs`), and the egress queues of these ports. Each port, stage and egress queue is
//! touched by its owner alone.
//!
//! Rule (invariant 6): the work of a pass is bounded. Conservation (invariant 1), for each egress queue: accepted = delivered + dropped +
//! held, and held is counted where packets are: in the classes, with the device.
//!
//! Pure: time is an argument, and nothing here calls the kernel but a port. The thread that drives a worker is `weir_run::worker`; its
//! parts are described in [`crate::plan`] and put together in [`crate::assembly`].

mod changes;

use std::io;
use std::os::fd::BorrowedFd;

use weir_core::drops::Count;
use weir_core::due::sooner;
use weir_ring::handoff::BURST;

use crate::backoff::Backoff;
use crate::between::Between;
use crate::departures::Departures;
use crate::egress::EgressQueue;
use crate::end::{End, Gone};
use crate::frames::Frames;
use crate::landings::{Landings, TurnedBack};
use crate::packet::PathPacket;
use crate::place::Place;
use crate::port::{ReceiveQueues, TransmitRing};
use crate::shaping::Release;
use crate::stage::Stage;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Packets that moved.
    pub moved: usize,
    /// The time at which the next pass is due if nothing happens before.
    pub wake_ns: Option<u64>,
    /// True if the worker would take in a packet that came now.
    pub expecting: bool,
}

impl Pass {
    fn wake(&mut self, wake_ns: Option<u64>) {
        self.wake_ns = sooner(self.wake_ns, wake_ns);
    }

    fn add(&mut self, released: Release) {
        self.moved += released.left.packets as usize;
        self.wake(released.wake_ns);
    }
}

/// A worker: its ports, and the stages and egress queues between them.
pub struct Worker<P> {
    pub(crate) ends: Vec<End<P>>,
    /// The ports that are gone, or not there yet (`gone.rs`), in the order of the plan as `ends` are.
    pub(crate) gone: Vec<Gone>,
    pub(crate) between: Between,
    feeding: Feeding,
    landings: Option<Landings>,
    /// The pauses between looks for frames and room, which come back without a word.
    backoff: Backoff,
    /// The places that receive queues wait for, collected in a pass.
    waited_for: Vec<Place>,
    /// Packets that leave an egress queue in a pass; empty between passes.
    released: Vec<PathPacket>,
    /// For each egress queue the packets that had entered it before others' packets were taken.
    entered: Vec<u64>,
    /// The packets that were taken off receive queues at the end, for which there was no time.
    left_behind: Count,
}

/// The ports that feed the egress queues of a worker.
pub(crate) struct Feeding {
    /// The ports that feed each egress queue.
    pub feeders: Vec<Vec<usize>>,
    /// The longest packet that comes in at each port of the plan, in bytes.
    pub packet_bytes_max: Vec<u64>,
}

impl<P: ReceiveQueues + TransmitRing> Worker<P> {
    /// A worker of the ports that are there and those that are gone, the stages and egress queues between them, the ports that feed these,
    /// and the landings of other workers' packets.
    pub(crate) fn of(
        (ends, gone): (Vec<End<P>>, Vec<Gone>),
        between: Between,
        feeding: Feeding,
        landings: Option<Landings>,
    ) -> Worker<P> {
        let mut worker = Worker {
            ends,
            gone,
            between,
            feeding,
            landings,
            backoff: Backoff::default(),
            waited_for: Vec::new(),
            released: Vec::new(),
            entered: Vec::new(),
            left_behind: Count::default(),
        };
        worker.follow(None, &[]);
        worker.tune();
        let gone: Vec<_> = worker.gone.iter().map(|gone| gone.index).collect();
        gone.into_iter().for_each(|index| worker.close(index, 0));
        worker
    }

    /// Moves the packets that can be moved now.
    ///
    /// # Errors
    /// If a device fails for good, or the other worker has gone.
    pub fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        let mut pass = Pass::default();
        self.complete_of(false);
        let is_starved = self.take_in(&mut pass, now_ns);
        self.hand_over(pass.moved, now_ns)?;
        self.deliver(&mut pass, now_ns)?;
        if is_starved {
            // Neither the device nor another worker says when it has given frames back.
            let finished = self.ends.iter().map(|end| end.exit.finished(&end.port)).sum();
            pass.wake(Some(self.backoff.look_ns(finished, now_ns)));
        }
        Ok(pass)
    }

    /// Moves the packets that are inside on, and takes no others in.
    ///
    /// # Errors
    /// Those of [`Worker::pass`].
    pub fn drain(&mut self, now_ns: u64) -> io::Result<Pass> {
        let mut pass = Pass::default();
        if let (Some(over), Some(landings)) = (&self.between.over, &self.landings) {
            landings.tell_turned_back(turned_back(&self.between, &self.ends));
            over.stop();
        }
        self.complete_of(false);
        self.take_inner(&mut pass, now_ns);
        self.hand_over(0, now_ns)?;
        self.deliver(&mut pass, now_ns)?;
        Ok(pass)
    }

    fn deliver(&mut self, pass: &mut Pass, now_ns: u64) -> io::Result<()> {
        self.complete_of(true);
        self.arrive(pass, now_ns);
        pass.wake(self.between.poll(now_ns));
        self.hand_over(pass.moved, now_ns)?;
        self.release(pass, now_ns);
        self.flush(pass, now_ns)
    }

    /// Polls the queues for which there is room; returns whether some are left out because frames or credit are missing.
    fn take_in(&mut self, pass: &mut Pass, now_ns: u64) -> bool {
        self.note_departing();
        let mut is_starved = false;
        self.waited_for.clear();
        if let (Some(landings), Some(over)) = (&mut self.landings, &self.between.over) {
            let has_opened = landings.open(&self.between.egress);
            over.tell([has_opened, false]);
            self.waited_for.extend(landings.blocked(&self.between.egress));
            // Also for queues in which no packet is known to wait: one may come before the next pass.
            is_starved |=
                landings.full(&self.between.egress).any(|place| self.between.egress.is_at_bound(place));
        }
        self.take_inner(pass, now_ns);
        for End { port, intake, .. } in self.ends.iter_mut().filter(|end| !end.port.is_inner()) {
            pass.moved += intake.take_in(port, &mut self.between, now_ns);
            is_starved |= intake.is_starved(&self.between);
            self.waited_for.extend_from_slice(intake.blocked());
            pass.wake(Some(intake.wake_ns()));
        }
        pass.expecting = self.ends.iter().any(|end| end.intake.has_room(&self.between));
        self.between.egress.note_blocked(&self.waited_for, now_ns);
        is_starved
    }

    /// Takes in the packets of ports that lead back, and holds the receive queues whose packets so come to full places.
    fn take_inner(&mut self, pass: &mut Pass, now_ns: u64) {
        for number in 0..self.ends.len() {
            let End { port, intake, .. } = &mut self.ends[number];
            if !port.is_inner() {
                continue;
            }
            pass.moved += intake.take_in(port, &mut self.between, now_ns);
            let mut filled = std::mem::take(intake.filled_mut());
            filled.retain(|landed| {
                let Some(receive_queue) = landed.receive_queue else { return false };
                let origin = self.between.egress.origin_of(receive_queue);
                let own = origin.and_then(|(port, queue)| Some((end_of(&mut self.ends, port)?, queue)));
                let is_over = own.is_none();
                if let Some((end, queue)) = own {
                    end.intake.note_filled(queue, landed.place, &self.between.egress);
                }
                is_over
            });
            if let Some(landings) = self.landings.as_mut().filter(|_| !filled.is_empty()) {
                landings.note_filled(&mut filled, &self.between.egress);
            }
            filled.clear();
            // The memory of the list is used again.
            *self.ends[number].intake.filled_mut() = filled;
        }
    }

    /// Notes how many packets of each egress queue are on their way out.
    fn note_departing(&mut self) {
        for queue in 0..self.between.egress.queues().len() {
            let port = self.between.egress.queues()[queue].port;
            let departing = end_of(&mut self.ends, port).map_or(0, |end| end.port.in_flight().packets);
            self.between.egress.set_departing(queue, departing);
        }
    }

    /// Books the outcomes of transmissions, so that the books are up to date.
    pub fn complete(&mut self) {
        self.complete_of(true);
        self.complete_of(false);
    }

    /// Books the outcomes of transmissions by the ports that lead back, or by the others. The others' are booked before packets are taken in, so
    /// that these come into the frames that were used last, which a processor has in its cache.
    fn complete_of(&mut self, inner: bool) {
        for End { port, exit, .. } in self.ends.iter_mut().filter(|end| end.port.is_inner() == inner) {
            exit.complete(port, &mut self.between.frames);
        }
    }

    /// Takes the packets that other workers have handed over.
    fn arrive(&mut self, pass: &mut Pass, now_ns: u64) {
        let Some(landings) = self.landings.as_mut().filter(|landings| landings.is_called()) else { return };
        self.entered.clear();
        self.entered.extend(self.between.egress.queues().iter().map(|queue| queue.counts().entered));
        let landed = landings.land(&mut self.between, now_ns);
        // The question is asked without a batch too: a wake-up for another reason is then counted for no batch.
        let is_woken = landings.is_woken();
        if landed > 0 {
            pass.moved += landed;
            for (queue, before) in self.between.egress.queues().iter().zip(&self.entered) {
                if queue.counts().entered != *before
                    && let Some(end) = end_of(&mut self.ends, queue.port)
                {
                    end.exit.note_batch(is_woken);
                }
            }
        }
    }

    /// Publishes the packets for other workers, and then how many of theirs were worked on.
    fn hand_over(&mut self, moved: usize, now_ns: u64) -> io::Result<()> {
        if let Some(over) = &mut self.between.over {
            over.flush(moved >= BURST, now_ns).map_err(|gone| {
                io::Error::other(format!("handing packets over to another worker: {gone}"))
            })?;
        }
        if let (Some(over), Some(landings)) = (&self.between.over, &mut self.landings) {
            if over.has_stopped() {
                landings.tell_turned_back(turned_back(&self.between, &self.ends));
            }
            let has_landed = landings.tell_landed(&self.between.egress);
            over.tell([false, has_landed]);
        }
        Ok(())
    }

    /// Lets out the packets that the classes admit, as far as the ports have room.
    fn release(&mut self, pass: &mut Pass, now_ns: u64) {
        let Between { egress, frames, .. } = &mut self.between;
        for queue in 0..egress.queues().len() {
            let EgressQueue { port: number, shaping, .. } = egress.queue_mut(queue);
            // A queue whose port is gone is empty.
            if let Some(End { port, exit, .. }) = end_of(&mut self.ends, *number) {
                let room = port.room();
                let released = shaping.release(room, frames, now_ns, &mut self.released);
                pass.add(released);
                exit.put(&mut self.released, &released, port, frames);
            }
        }
    }

    /// Makes the devices transmit.
    fn flush(&mut self, pass: &mut Pass, now_ns: u64) -> io::Result<()> {
        for End { port, exit, .. } in &mut self.ends {
            pass.wake(exit.flush(port, now_ns)?);
        }
        Ok(())
    }

    /// Sleeps by `wait`, unless something has come that the worker does not know of; returns whether it slept. If there are other workers,
    /// `wait` gets a descriptor that is readable when one of them has kicked.
    ///
    /// # Errors
    /// Those of `wait`.
    pub fn park(&mut self, wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>) -> io::Result<bool> {
        let ends = &self.ends;
        let is_announced = || ends.iter().any(|end| end.intake.is_announced(&end.port));
        let slept = match (&mut self.landings, &self.between.over) {
            (Some(landings), Some(over)) => {
                let wanted = || {
                    let wanted = ends.iter().map(|end| end.intake.waits_over(over));
                    wanted.fold([false; 2], |all, one| [all[0] | one[0], all[1] | one[1]])
                };
                over.wait_for(wanted());
                let is_let_in = || ends.iter().any(|end| end.intake.is_let_in(over));
                let may_go_on = || is_announced() || is_let_in() || !over.is_told_of(wanted());
                landings.park(may_go_on, |kicked| wait(Some(kicked)))?
            }
            _ if is_announced() => false,
            _ => wait(None).map(|()| true)?,
        };
        if slept {
            for queue in self.between.egress.queues() {
                if let Some(end) = end_of(&mut self.ends, queue.port) {
                    end.exit.note_sleep(queue.shaping.held().packets > 0);
                }
            }
        }
        Ok(slept)
    }

    /// Returns whether packets wait in receive queues, as far as is known.
    pub fn has_waiting(&self) -> bool {
        let mut from_outside = self.ends.iter().filter(|end| !end.port.is_inner());
        from_outside.any(|End { port, intake, .. }| intake.has_waiting(port))
    }

    /// Returns whether all packets that came in have left; to be asked when none is taken in any more. The packets that a router keeps for
    /// a neighbour that does not answer are not waited for; those that wait in an ESP for a number are.
    pub fn is_drained(&self) -> bool {
        self.between.egress.held().packets == 0
            && self.between.stages().all(|stage| stage.esp().is_none_or(|esp| !esp.is_waiting()))
            && !self.may_come()
            && self.ends.iter().all(|end| end.port.in_flight().packets == 0)
    }

    /// Tells the other workers, if there are any, that this one has nothing left that they could wait for. Packets that it hands over after that
    /// may come too late.
    pub fn stop(&self) {
        self.between.over.iter().for_each(Departures::stop);
    }

    /// Returns whether packets may still come from other workers.
    pub fn may_come(&self) -> bool {
        self.between.over.as_ref().is_some_and(Departures::may_come)
    }

    /// Returns whether another worker has gone before it had stopped.
    pub fn has_lost_one(&self) -> bool {
        self.between.over.as_ref().is_some_and(Departures::has_lost_one)
    }

    /// Tells the other workers, if there are any, not to wait for this one, which ends.
    pub fn abandon(&self) {
        self.between.over.iter().for_each(Departures::leave);
    }

    /// The landings of a worker that has ended, to be kept until the others have ended too: they may still hand packets over.
    pub fn take_landings(&mut self) -> Option<Landings> {
        self.landings.take()
    }

    /// Takes in the packets that have arrived at a port without a poll, room or not.
    pub fn collect(&mut self, port: usize, now_ns: u64) {
        if let Some(End { port, intake, .. }) = end_of(&mut self.ends, port) {
            intake.collect(port, &mut self.between, now_ns);
        }
    }

    /// Takes the packets off the receive queues that stand there when the time to deliver them is over, room or not, and ends them. Of a queue
    /// it takes `packets_max`, and those of one poll more, so that whoever goes on sending keeps nobody here.
    pub fn leave_behind(&mut self, packets_max: usize) {
        for End { port, intake, .. } in self.ends.iter_mut().filter(|end| !end.port.is_inner()) {
            self.left_behind.merge(intake.leave_behind(port, packets_max, &mut self.between.frames));
        }
    }

    /// The packets that it has left behind, which no other books have.
    pub fn left_behind(&self) -> Count {
        self.left_behind
    }

    /// The ports that the worker owns.
    pub fn ends(&self) -> &[End<P>] {
        &self.ends
    }

    /// A port that the worker owns, and the frames.
    ///
    /// # Panics
    /// If the worker does not own that port.
    pub fn end_mut(&mut self, index: usize) -> (&mut End<P>, &mut Frames) {
        let end = end_of(&mut self.ends, index).expect("a port that this worker owns");
        (end, &mut self.between.frames)
    }

    /// The stages and egress queues between the worker's ports.
    pub fn between(&self) -> &Between {
        &self.between
    }

    /// The egress queue of a port, if this worker has it.
    pub fn egress(&self, port: usize) -> Option<&EgressQueue> {
        self.between.egress.queues().iter().find(|queue| queue.port == port)
    }

    /// The worker's frames.
    pub fn frames(&self) -> &Frames {
        &self.between.frames
    }

    /// The landings of other workers' packets, if links lead to other workers.
    pub fn landings(&self) -> Option<&Landings> {
        self.landings.as_ref()
    }

    /// The packets that were handed to each other worker; none without other workers.
    pub fn handed(&self) -> &[Count] {
        self.between.over.as_ref().map_or(&[], Departures::handed)
    }

    /// The packets that other workers handed over and that were taken.
    pub fn landed(&self) -> Count {
        self.landings.as_ref().map(Landings::taken).unwrap_or_default()
    }

    /// The packets that other workers handed over and that are not taken yet, counted now.
    pub fn waiting_to_land(&mut self) -> Count {
        self.landings.as_mut().map(Landings::waiting).unwrap_or_default()
    }

    /// The worker's frames, to be given to a port that it is about to own.
    pub fn frames_mut(&mut self) -> &mut Frames {
        &mut self.between.frames
    }
}

/// The counts of the packets of all queues that lead back, and of those that wait for numbers behind these.
fn turned_back<P: ReceiveQueues + TransmitRing>(between: &Between, ends: &[End<P>]) -> TurnedBack {
    let mut turned_back = TurnedBack::default();
    for End { index, port, .. } in ends.iter().filter(|end| end.port.is_inner()) {
        for queue in between.egress.queues().iter().filter(|queue| queue.port == *index) {
            let entered = queue.counts().entered;
            turned_back.entered += entered;
            turned_back.left += entered - queue.shaping.held().packets - port.in_flight().packets;
        }
    }
    for [waited, gone_on] in between.stages().map(Stage::waited_behind_queues) {
        turned_back.entered += waited;
        turned_back.left += gone_on;
    }
    turned_back
}

/// The end of a port; ends are in the order of the plan.
fn end_of<P>(ends: &mut [End<P>], port: usize) -> Option<&mut End<P>> {
    let at = ends.binary_search_by_key(&port, |end| end.index).ok()?;
    Some(&mut ends[at])
}
