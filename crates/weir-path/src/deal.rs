//! The workers of a plan: its ports and frames are dealt out to them, and each is joined to the others where a link leads from one to
//! another.
//!
//! Owner: the caller, until each worker has a thread.

use std::fmt;

use weir_ring::handoff::InboxError;
use weir_ring::spsc;

use crate::assembly::{PlanError, Shares};
use crate::esp::deferral;
use crate::frames::Frames;
use crate::landings;
use crate::owners::{Owners, Portion};
use crate::plan::{Attachment, Plan, StageKind};
use crate::port::{ReceiveQueues, TransmitRing};
use crate::worker::Worker;

/// The reason why a plan cannot have its workers.
#[derive(Debug)]
pub enum DealError {
    /// The plan is impossible.
    Plan(PlanError),
    /// The kernel does not give the descriptors that wake the workers.
    Inbox(InboxError),
}

impl fmt::Display for DealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DealError::Plan(error) => error.fmt(f),
            DealError::Inbox(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DealError {}

/// The workers of a plan: each has its entry of `frames`, and the ports that it owns and that are there.
///
/// # Errors
/// If the plan is impossible, or the kernel does not give the descriptors that wake the workers.
pub fn workers<P: ReceiveQueues + TransmitRing>(
    (plan, owners): (&Plan, &Owners),
    ports: Vec<Option<P>>,
    frames: Vec<Frames>,
    shares: Shares,
    now_ns: u64,
) -> Result<Vec<Worker<P>>, DealError> {
    let is_apart = plan.links.iter().any(|&[one, other]| owners.of(one) != owners.of(other));
    let others: Vec<Option<_>> = if is_apart {
        let queues = ports.iter().map(|port| port.as_ref().map_or(shares.queues_gone, P::queues));
        let frames_total = frames[0].memory().frames() as usize;
        let joints = landings::join(frames.len(), &queues.collect::<Vec<_>>(), frames_total);
        joints.map_err(DealError::Inbox)?.into_iter().map(Some).collect()
    } else {
        frames.iter().map(|_| None).collect()
    };
    let mut owned: Vec<Vec<(usize, P)>> = frames.iter().map(|_| Vec::new()).collect();
    for (index, port) in ports.into_iter().enumerate() {
        owned[owners.ports[index]].extend(port.map(|port| (index, port)));
    }
    let mut workers = Vec::new();
    for (worker, ((ports, frames), others)) in owned.into_iter().zip(frames).zip(others).enumerate() {
        let portion = Portion { plan, owners, worker };
        workers.push(Worker::new(portion, ports, frames, others, shares, now_ns).map_err(DealError::Plan)?);
    }
    join_sealers((plan, owners), &mut workers);
    // Each worker knows the others' credit only now.
    workers.iter_mut().for_each(Worker::tune);
    Ok(workers)
}

/// Gives each ESP stage and its sealers the rings by which it tells them their runs.
fn join_sealers<P: ReceiveQueues + TransmitRing>(
    (plan, owners): (&Plan, &Owners),
    workers: &mut [Worker<P>],
) {
    for (number, stage) in plan.stages.iter().enumerate() {
        let StageKind::Esp(esp) = &stage.kind else { continue };
        for sealer in 0..esp.dispatch.sealers() {
            let at = Attachment::Stage(number, deferral::SEALERS + sealer);
            let Some(Attachment::Stage(other, _)) = plan.far_end(at) else { continue };
            let frames = workers[0].frames().memory().frames() as usize;
            let (told, heard) =
                spsc::ring(spsc::capacity_for(frames)).expect("there are fewer than 2^24 frames");
            workers[owners.stages[number]].join_sealer(owners.place_of_stage(number), sealer.into(), told);
            workers[owners.stages[other]].join_home(owners.place_of_stage(other), heard);
        }
    }
}
