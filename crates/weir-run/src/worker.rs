//! A worker: a thread on one core that owns a datapath, or one end of a wire, and does nothing but move its packets, look after its
//! mailbox, and sleep.
//!
//! One pass: requests, then one pass of its part (bounded, invariant 6); if nothing moved, spin or park ([`crate::idle`]).
//! Parking (invariant 3): say PARKED, look at every announcement and the mailbox once more, then block until a kick, a
//! request or the next deadline.
//!
//! It stays on its core because packets of a flow that are handed to a veth on two cores may overtake each other in the
//! kernel's per-core backlogs.
//!
//! A worker goes before other programs, and before other workers of its core for half a millisecond at a time: one that has packets without
//! end would keep them out for good.
//!
//! Owner: the thread that runs it owns its part and all of that state (invariant 7); others send it [`Request`]s.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_path::esp::plan::EspChange;
use weir_path::shape::PortShape;
use weir_port::bpf::doorbell::Bell;
use weir_port::cores::WorkerCore;
use weir_port::port::Port;
use weir_port::prepared::PreparedPort;
use weir_port::view::Pair;
use weir_port::{Doing, sys};

use crate::clock::now_ns;
use crate::idle::{Idle, Rest};
use crate::part::Part;
use crate::report::PartReport;
use crate::standstill::{Missed, Standstill};
use crate::stats::WorkerStats;
use crate::stats::association::AgedAssociation;

/// The longest time that a stopping worker goes on delivering packets that it holds, in nanoseconds.
const DRAIN_NS_MAX: u64 = 1_000_000_000;
/// That time if an end is gone: packets bound for it cannot leave, and the rest have been under way for no longer than this.
const DRAIN_NS_CUT: u64 = 50_000_000;
/// The time for which a worker that always has packets to move has its core, in nanoseconds: others of its priority have their turn then.
const TURN_NS: u64 = 500_000;
/// The longest time before that in which packets are still taken in that stand in the senders' pairs, in nanoseconds.
const TAIL_NS_MAX: u64 = 500_000_000;
/// The packets of a queue that are counted when that time is over: the 256 in the ring of its pair, and those behind it in a qdisc, of which
/// the sockets of 64 programs that have ended leave 6,000. They are taken off within some ten milliseconds.
const LEFT_BEHIND_MAX: usize = 16_384;

/// A request to a worker.
pub enum Request {
    /// Copies of the counters, while all workers of the datapath stand still.
    Stat(Sender<Result<Result<PartReport, String>, Missed>>, Arc<Standstill>),
    /// The limits and classes of each port whose egress queue is with this worker.
    Shapes(Sender<Vec<PortShape>>),
    /// Give ports other limits and classes, all workers together.
    Reshape(Arc<Reshape>, Sender<Result<(), Missed>>),
    /// Change an ESP stage, by its place with this worker.
    ChangeEsp(usize, Box<EspChange>, Sender<()>),
    /// The associations of its ESP stages that are not alive: a limit is reached, or the numbers are used up.
    Aged(Sender<Vec<AgedAssociation>>),
    /// The interface of this port went down.
    NoteDown(usize),
    /// The interface of this port has come up again: own it anew. Where a port can fail alone, the result is told; elsewhere a failure ends
    /// the worker.
    Retake(usize, Option<Sender<Retaken>>),
    /// Follow this port, of whatever worker, whose interface or other end has another name, MTU or namespace.
    Follow(usize, Box<Pair>),
    /// The credit of other workers has changed.
    Tune,
    /// The interface of this port is gone: hand the port out, to be closed.
    TakePort(usize, Sender<Option<Box<Port>>>),
    /// The port that borrowed frames as this is closed.
    PortClosed(u16),
    /// The interface of this port is there, or there again.
    GivePort(usize, Box<PreparedPort>, Sender<Result<(), String>>),
    /// Take in what senders have sent already, for a bounded time, and drop this end then; go on until told to stop.
    Finish(Sender<()>),
    /// Deliver packets that are inside, then end.
    Stop,
}

/// A port that was to be owned anew, and why it could not be, if so.
pub type Retaken = (usize, Result<(), String>);

/// A change of the limits and classes of ports. All workers get the same, each changes its own, and all or none do.
pub struct Reshape {
    shapes: Vec<PortShape>,
    /// True if it is only checked.
    is_trial: bool,
    together: Standstill,
    refused: Mutex<Option<(usize, String)>>,
}

impl Reshape {
    /// A change for so many workers.
    pub fn new(shapes: Vec<PortShape>, is_trial: bool, workers: usize) -> Reshape {
        Reshape { shapes, is_trial, together: Standstill::new(workers), refused: Mutex::default() }
    }

    /// Makes this worker's part of the change, between two passes.
    fn carry_out(&self, part: &mut Part, now_ns: u64) -> Result<(), Missed> {
        self.together.copy(|| {
            if let Err(why) = part.path.check_shapes(&self.shapes) {
                self.lock().get_or_insert(why);
            }
        })?;
        // All have checked, and all know of a refusal.
        let is_refused = self.lock().is_some();
        if !self.is_trial && !is_refused {
            part.path.reshape(&self.shapes, now_ns).expect("it was checked, and nothing has changed since");
        }
        self.together.leave_together();
        Ok(())
    }

    /// The first port that cannot be so, and why; known when all workers have answered.
    pub fn refused(&self) -> Option<(usize, String)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<(usize, String)>> {
        self.refused.lock().expect("nobody panics while refusing")
    }
}

/// The way to a worker: put a request in its mailbox and wake it.
#[derive(Clone)]
pub struct Mailbox {
    requests: Sender<Request>,
    event: Arc<OwnedFd>,
}

impl Mailbox {
    /// A mailbox and the worker's end of it.
    pub fn new() -> io::Result<(Mailbox, Requests)> {
        let (requests, inbox) = channel();
        let event = Arc::new(sys::eventfd()?);
        Ok((Mailbox { requests, event: Arc::clone(&event) }, Requests { requests: inbox, event }))
    }

    /// Sends a request; false if the worker has ended.
    pub fn send(&self, request: Request) -> bool {
        let sent = self.requests.send(request).is_ok();
        sys::signal_eventfd(&self.event);
        sent
    }
}

/// The worker's end of its mailbox.
pub struct Requests {
    requests: Receiver<Request>,
    event: Arc<OwnedFd>,
}

#[cfg(test)]
impl Requests {
    /// Waits for the next request.
    pub fn next(&self) -> Option<Request> {
        self.requests.recv().ok()
    }
}

/// A worker that has ended.
pub struct Ended {
    /// The part that it owned.
    pub part: Part,
    /// Its counters.
    pub stats: WorkerStats,
    /// The fault that ended it, if one did.
    pub fault: Option<String>,
}

/// Runs a part of a datapath on this thread until it is told to stop or the kernel fails it. However it ends, the part is there until all
/// workers have ended: others may have packets for it. `wake_cost_ns` is what waking a thread costs here ([`crate::idle::wake_cost_ns`]).
pub fn run(mut part: Part, bell: &Bell, inbox: &Requests, core: WorkerCore, wake_cost_ns: u64) -> Ended {
    let mut stats =
        WorkerStats { cpu: core.number(), is_bound: true, wake_cost_ns, ..WorkerStats::default() };
    let served = serve(&mut part, bell, inbox, core, &mut stats);
    match served {
        Ok(()) => drain(&mut part),
        Err(_) => part.path.abandon(),
    }
    Ended { part, stats, fault: served.err() }
}

/// Serves a part until the worker is told to stop; the error is the fault that ends it.
fn serve(
    part: &mut Part,
    bell: &Bell,
    inbox: &Requests,
    core: WorkerCore,
    stats: &mut WorkerStats,
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    precise_sleep();
    prefer();
    pin(core).map_err(text)?;
    let mut idle = Idle::new(stats.wake_cost_ns, now_ns());
    let mut tail: Option<Tail> = None;
    let mut turn_ends_ns = 0;
    loop {
        let now = now_ns();
        match answer(part, inbox, *stats, now) {
            Order::Continue => {}
            Order::Finish(finished) => {
                tail = Some(Tail { end_ns: now + TAIL_NS_MAX, _finished: finished });
            }
            Order::Stop => return Ok(()),
            Order::Fail(reason) => return Err(reason),
        }
        let pass = part.path.pass(now).map_err(|error| error.to_string())?;
        let is_over = |tail: &mut Tail| now >= tail.end_ns || pass.moved == 0 && !part.path.has_waiting();
        tail.take_if(is_over);
        if pass.moved > 0 {
            stats.busy_passes += 1;
            idle.worked(now);
            if now >= turn_ends_ns {
                std::thread::yield_now();
                turn_ends_ns = now_ns() + TURN_NS;
            }
            continue;
        }
        let wake_ns = pass.wake_ns.into_iter().chain(tail.as_ref().map(|tail| tail.end_ns)).min();
        match idle.rest(now_ns(), wake_ns, pass.expecting) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Park(until_ns) => {
                bell.park();
                let slept = part.path.park(|kicked| sleep(bell, inbox, kicked, until_ns)).map_err(text)?;
                stats.parks += u64::from(slept);
                stats.kicks += u64::from(bell.unpark());
            }
        }
    }
}

/// The time that a worker has left for what senders have sent already.
struct Tail {
    end_ns: u64,
    /// Tells by its end that nothing waits, or that the time is over.
    _finished: Sender<()>,
}

enum Order {
    Continue,
    Finish(Sender<()>),
    Stop,
    Fail(String),
}

fn answer(part: &mut Part, inbox: &Requests, stats: WorkerStats, now: u64) -> Order {
    while let Ok(request) = inbox.requests.try_recv() {
        // The asker may have gone; then nobody misses the answer.
        match request {
            Request::Stat(reply, together) => {
                // Beforehand, because it changes the number of frames that others count as free.
                part.path.complete();
                let copy = || PartReport::new(part, stats, now).map_err(|error| error.to_string());
                let _ = reply.send(together.copy(copy));
            }
            Request::Shapes(reply) => {
                let _ = reply.send(part.path.shapes());
            }
            Request::Reshape(reshape, reply) => {
                let _ = reply.send(reshape.carry_out(part, now));
            }
            Request::ChangeEsp(stage, change, reply) => {
                // Beforehand, because a sleep before its begin is nothing to a new association.
                part.note_asleep();
                part.path.change_esp(stage, *change, now);
                let _ = reply.send(());
            }
            Request::Aged(reply) => {
                part.note_asleep();
                let _ = reply.send(part.aged_associations(now));
            }
            Request::NoteDown(port) => part.note_down(port),
            Request::Retake(port, told) => {
                match (part.retake(port, now).map_err(|error| error.to_string()), told) {
                    (Err(fault), None) => return Order::Fail(fault),
                    (Ok(()), None) => {}
                    // The asker may have gone.
                    (result, Some(told)) => drop(told.send((port, result))),
                }
            }
            Request::Follow(port, pair) => part.follow(port, *pair, now),
            Request::Tune => part.path.tune(),
            Request::TakePort(port, reply) => {
                let _ = reply.send(part.take_port(port, now).map(Box::new));
            }
            Request::PortClosed(borrower) => part.note_closed(borrower),
            Request::GivePort(port, prepared, reply) => {
                let _ = reply.send(part.give_port(port, *prepared, now));
            }
            Request::Finish(finished) if part.has_lost_an_end() => drop(finished),
            Request::Finish(finished) => return Order::Finish(finished),
            Request::Stop => return Order::Stop,
        }
    }
    Order::Continue
}

fn sleep(
    bell: &Bell,
    inbox: &Requests,
    kicked: Option<BorrowedFd<'_>>,
    until_ns: Option<u64>,
) -> io::Result<()> {
    // poll(2) passes over a descriptor below 0.
    let kicked = kicked.map_or(-1, |kicked| kicked.as_raw_fd());
    let mut fds = [bell.fd(), inbox.event.as_raw_fd(), kicked].map(sys::poll_in);
    let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
    sys::poll(&mut fds, timeout_ns)?;
    if fds[1].revents != 0 {
        sys::clear_eventfd(&inbox.event);
    }
    Ok(())
}

/// Delivers packets that are inside, taking nothing more in, for a bounded time. What senders' pairs still have then is counted.
fn drain(part: &mut Part) {
    let end_ns = now_ns() + if part.has_lost_an_end() { DRAIN_NS_CUT } else { DRAIN_NS_MAX };
    while !part.path.is_drained() && now_ns() < end_ns {
        let Ok(pass) = part.path.drain(now_ns()) else { return part.path.abandon() };
        if pass.moved == 0 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
    part.path.leave_behind(LEFT_BEHIND_MAX);
}

fn pin(core: WorkerCore) -> io::Result<()> {
    let number = core.number();
    core.pin().doing(|| format!("pinning the worker to core {number}")).map_err(io::Error::other)
}

/// Makes sleeps end when asked and not up to 50 microseconds later, the default timer slack.
fn precise_sleep() {
    sys::set_timer_slack_ns(1);
}

/// Lets the worker go before programs that compute: a departure that is late by more than the burst is a loss of rate. It sleeps whenever
/// it waits, and its packets come from programs that must run for it to have work.
fn prefer() {
    sys::set_realtime();
}
