//! `weir`: a plan of the path, as `weir up` runs it: the inputs and the device on a bridge.
//!
//! ```text
//! worker 0: input 0 --ring--+
//!                           v
//! worker 1: input 1 --> bridge --> egress queue --> exit --> device
//! ```
//!
//! The device's owner alone enters it. The other worker's packets are published once a pass, and wakes the owner if that sleeps. When
//! [`QUEUE_PACKETS`] wait the inputs whose packets wait are not polled, so their senders are held.
//!
//! `enter`, `try`, `tryfail`, `sleep`, `kicks_*`: the counts of the exit of the device's port ([`weir_path::exit::TransmitCounts`]).
//!
//! Ownership: each worker is its thread's. Ordering: the count of `ended` orders nothing; packets are ordered by their ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use weir_core::net::bridge::{AGEING_NS, Bridge};
use weir_path::assembly::Shares;
use weir_path::deal;
use weir_path::exit::TransmitCounts;
use weir_path::frames::Frames;
use weir_path::owners::Owners;
use weir_path::plan::{self, Attachment, StageKind, StagePlan};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::stage::Stage;
use weir_path::worker::{Pass, Worker};
use weir_port::sys;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_run::clock::now_ns;
use weir_run::drive::{Driven, Look, drive};
use weir_run::testbed::port;

use super::design::{Costs, Counts, QUEUE_PACKETS};
use super::drive::{LOOK_NS, Outcome, Plan};
use super::port::{DEVICE, IfqPort};
use super::sender::Sender;
use crate::machine::pin;

/// Frames of packet memory, and the length of each in bytes.
const FRAMES: u32 = 4096;
const FRAME_BYTES: u32 = 2112;
/// Inputs, each with a worker; and with the device as many ports.
const INPUTS: usize = 2;
const PORTS: usize = INPUTS + 1;

/// Runs the plan once.
pub fn run(plan: &Plan, costs: Costs) -> Result<Outcome> {
    let mut workers = workers(costs)?;
    // Every station is heard, so that nothing is flooded after that.
    for _ in 0..4 {
        workers.iter_mut().try_for_each(|worker| worker.pass(now_ns()).map(drop))?;
    }
    let stations = workers[1].between().stages().next().and_then(Stage::bridge).map(Bridge::stations);
    ensure!(stations == Some(PORTS), "the bridge knows {stations:?} of {PORTS} stations");
    let (start_line, ended) = (Barrier::new(INPUTS), AtomicUsize::new(0));
    let ran = thread::scope(|scope| {
        let (start_line, ended) = (&start_line, &ended);
        let threads = workers.into_iter().enumerate().map(|(input, path)| {
            let core = Core { path, input, ended, has_ended: false, is_draining: false };
            scope.spawn(move || core.run(plan, start_line))
        });
        let threads: Vec<_> = threads.collect();
        let ran = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        ran.collect::<Result<Vec<_>>>()
    })?;
    let (_, owner, seconds) = &ran[1];
    let end = owner.ends().iter().find(|end| end.index == DEVICE).expect("it owns the device");
    let device = end.port.sent();
    let TransmitCounts { enter, tried, tryfail, sleep, kicks_sent, kicks_saved } = end.exit.counts();
    Ok(Outcome {
        offered: ran.iter().map(|(offered, ..)| offered).sum(),
        sent_by: [0, 1].map(|input| device.sent(input)),
        reordered: device.reordered,
        seconds: *seconds,
        counts: Counts { enter, tried, tryfail, sleep, kicks_sent, kicks_saved, dropped: 0 },
    })
}

/// Both workers; the second owns the device.
fn workers(costs: Costs) -> Result<Vec<Worker<IfqPort>>> {
    let join = |port: usize| [Attachment::Port(port), Attachment::Stage(0, port as u16)];
    let kind = StageKind::Bridge { ports: PORTS as u16, stations_max: PORTS, ageing_ns: AGEING_NS };
    let plan = plan::Plan {
        ports: ["in-0", "in-1", "device"].map(port).into(),
        stages: vec![StagePlan { name: "bridge".into(), kind }],
        links: (0..PORTS).map(join).collect(),
        dispatched: Vec::new(),
    };
    let owners = Owners { ports: vec![0, 1, 1], stages: vec![1] };
    let pools = Pool::for_workers(FrameMemory::new(FRAMES, FRAME_BYTES)?, INPUTS);
    let shares = Shares {
        held_packets_max: QUEUE_PACKETS as u64,
        poll_budget_max: POLL_PACKETS_MAX,
        queues_gone: 0,
        seed: 0,
    };
    let ports = (0..PORTS).map(|index| Some(IfqPort::new(index, costs))).collect();
    let frames = pools.into_iter().map(Frames::new).collect();
    Ok(deal::workers((&plan, &owners), ports, frames, shares, now_ns())?)
}

/// A worker with its thread.
struct Core<'a> {
    path: Worker<IfqPort>,
    input: usize,
    /// The number of inputs that have ended.
    ended: &'a AtomicUsize,
    has_ended: bool,
    is_draining: bool,
}

impl Core<'_> {
    /// Drives the worker on this thread. Returns the packets sent, the worker, and how long it took.
    fn run(mut self, plan: &Plan, start_line: &Barrier) -> Result<(u64, Worker<IfqPort>, f64)> {
        // As the path's workers: before all others.
        sys::set_realtime();
        let pinned = pin(plan.cores[self.input]);
        start_line.wait();
        let start_ns = now_ns();
        let senders = Sender::new(plan.packets_per_s, start_ns, start_ns + plan.duration_ns);
        self.port().begin(senders, plan.forward);
        let driven = drive(&mut self, plan.wake_cost_ns);
        let seconds = (now_ns() - start_ns) as f64 / 1e9;
        if driven.is_err() {
            // The other one is not to wait for this.
            self.path.abandon();
            self.ended.store(INPUTS, Ordering::Relaxed);
        }
        pinned?;
        driven?;
        Ok((self.port().senders_mut().offered(), self.path, seconds))
    }

    fn port(&mut self) -> &mut IfqPort {
        &mut self.path.end_mut(self.input).0.port
    }
}

impl Driven for Core<'_> {
    fn look(&mut self, now_ns: u64) -> io::Result<Look> {
        let senders = self.port().senders_mut();
        senders.advance(now_ns);
        let (due_ns, has_ended) = (senders.due_ns(), senders.has_ended());
        if has_ended && !std::mem::replace(&mut self.has_ended, true) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        if self.ended.load(Ordering::Relaxed) < INPUTS {
            return Ok(Look::On(Some(due_ns.unwrap_or(now_ns + LOOK_NS))));
        }
        if std::mem::replace(&mut self.is_draining, true) && self.path.is_drained() {
            return Ok(Look::Over);
        }
        Ok(Look::On(Some(now_ns + LOOK_NS)))
    }

    fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        if self.is_draining { self.path.drain(now_ns) } else { self.path.pass(now_ns) }
    }

    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
        let wait = |kicked: Option<BorrowedFd<'_>>| {
            let kicked = kicked.expect("a worker that links lead to");
            sys::poll(&mut [sys::poll_in(kicked.as_raw_fd())], timeout_ns).map(drop)
        };
        self.path.park(wait).map(drop)
    }
}
