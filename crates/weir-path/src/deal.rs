//! All workers of a plan: its ports and frames dealt out, and each joined to the others where a link leads from one to another.
//!
//! Owner: the caller, until each worker has a thread.

use std::fmt;

use weir_ring::handoff::InboxError;

use crate::assembly::{Others, PlanError, Shares};
use crate::frames::Frames;
use crate::landings;
use crate::owners::{Owners, Portion};
use crate::plan::Plan;
use crate::port::{ReceiveQueues, TransmitRing};
use crate::worker::Worker;

/// Why a plan cannot have its workers.
#[derive(Debug)]
pub enum DealError {
    /// There can be no such path.
    Plan(PlanError),
    /// The kernel does not give what wakes the workers.
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

/// The workers of a plan: each has some of these frames, and of the ports those that it owns.
///
/// # Errors
/// If there can be no such path, or the kernel does not give what wakes them.
pub fn workers<P: ReceiveQueues + TransmitRing>(
    (plan, owners): (&Plan, &Owners),
    ports: Vec<P>,
    frames: Vec<Frames>,
    shares: Shares,
    now_ns: u64,
) -> Result<Vec<Worker<P>>, DealError> {
    let is_apart = plan.links.iter().any(|&[one, other]| owners.of(one) != owners.of(other));
    let others: Vec<Others> = if is_apart {
        let queues: Vec<usize> = ports.iter().map(ReceiveQueues::queues).collect();
        let frames_total = frames[0].memory().frames() as usize;
        let joints = landings::join(frames.len(), &queues, frames_total).map_err(DealError::Inbox)?;
        joints.into_iter().map(|joint| Others::Topology(Box::new(joint))).collect()
    } else {
        frames.iter().map(|_| Others::Nobody).collect()
    };
    let mut owned: Vec<Vec<(usize, P)>> = frames.iter().map(|_| Vec::new()).collect();
    ports.into_iter().enumerate().for_each(|(index, port)| owned[owners.ports[index]].push((index, port)));
    let mut workers = Vec::new();
    for (worker, ((ports, frames), others)) in owned.into_iter().zip(frames).zip(others).enumerate() {
        let portion = Portion { plan, owners, worker };
        workers.push(Worker::new(portion, ports, frames, others, shares, now_ns).map_err(DealError::Plan)?);
    }
    // Each knows the others' credit only now.
    workers.iter_mut().for_each(Worker::tune);
    Ok(workers)
}
