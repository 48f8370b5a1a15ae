//! A wire: two ports, joined, each direction behind a limit of its own.
//!
//! Opened here; what moves packets are its parts ([`crate::part`]), one for each worker, over one packet memory.
//!
//! The bound on frames. A direction holds, in its classes and on the way out, at most its half of the frames that are left when every
//! queue has its offer; with two workers less what one poll may bring beyond that, and what may lie free with the other worker
//! ([`weir_ring::pool`]). So a frame is there for each packet that a poll may bring.

use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;
use weir_path::crossing::Crossing;
use weir_path::end::End;
use weir_path::frames::Frames;
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::worker::Worker;
use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::port::{Port, TRANSMIT_PACKETS_MAX};
use weir_port::probe;
use weir_port::undo::Keeper;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, PortError};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::{CACHE_FRAMES, Pool};

use crate::classes::Classes;
use crate::look_over;
use crate::part::{Part, note_mtu};
use crate::report::Constants;
use crate::watcher::Eye;

const FRAME_BYTES: u32 = 4096;
/// Frames that a second worker costs a direction: one poll and its next offer, and what lies free with the other worker.
const FRAMES_SPARE: u64 = 2 * POLL_PACKETS_MAX as u64 + CACHE_FRAMES as u64;

/// What a wire is to be.
#[derive(Clone, Debug)]
pub struct WireConfig {
    /// What `weir stat` and `weir set` call it.
    pub name: String,
    /// The interfaces it joins.
    pub ports: [String; 2],
    /// The limits from the first to the second, and back.
    pub limits: [Option<TbfConfig>; 2],
    /// The classes that share each direction, if there are any.
    pub classes: Option<Arc<Classes>>,
    /// Packet memory, in bytes.
    pub memory_bytes: u64,
    /// Workers: 1, or 2, one for each end.
    pub workers: usize,
}

/// A wire that is up and not yet moving.
pub struct Wire {
    /// A part for each worker.
    pub parts: Vec<Part>,
    /// What does not change.
    pub constants: Constants,
    /// Its interfaces with their other ends, to be watched.
    pub pairs: [Pair; 2],
    /// What its user may not expect, a sentence each.
    pub warnings: Vec<String>,
}

impl Wire {
    /// Takes both interfaces over, which `eye` will watch, on a kernel that holds senders, as is tried first. The end at each is rung for by
    /// the bell of its worker; there is a bell for each worker.
    pub fn open(
        config: &WireConfig,
        bells: &[Arc<Bell>],
        keeper: &mut dyn Keeper,
        eye: Eye,
        now_ns: u64,
    ) -> weir_port::Result<Wire> {
        // What else goes wrong on the trial's pair goes wrong below too, and is told of the interface that matters.
        if let Err(error @ PortError::Unsupported { .. }) = probe::holds_senders() {
            return Err(error);
        }
        let count = config.memory_bytes / u64::from(FRAME_BYTES);
        let memory = FrameMemory::new(u32::try_from(count).unwrap_or(u32::MAX), FRAME_BYTES)
            .map_err(std::io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let frames_total = u64::from(memory.frames());
        let mut frames: Vec<Frames> =
            Pool::for_workers(memory, config.workers).into_iter().map(Frames::new).collect();
        let mut warnings = look_over::interfaces(&config.ports, config.classes.is_some())?;
        let mut umem = Umem::new(Arc::clone(frames[0].pool.memory()));
        let queues = Link::by_name(&config.ports[0])?.rx_queues + Link::by_name(&config.ports[1])?.rx_queues;
        let poll_budget_max = poll_budget_max(frames_total, queues, config)?;
        let mut ports = Vec::new();
        for (name, worker) in config.ports.iter().zip(owners(config.workers)) {
            ports.push(Port::open(
                name,
                poll_budget_max,
                &mut umem,
                std::slice::from_mut(&mut frames[worker]),
                &[&bells[worker]],
                keeper,
            )?);
        }
        let [first, second] = [0, 1].map(|end| (ports[end].link(), ports[end].sender()));
        warnings.extend(look_over::mtus([first, second]));
        let pairs = [0, 1].map(|end| ports[end].pair().clone());
        let spare = if config.workers > 1 { FRAMES_SPARE } else { 0 };
        let census = frames[0].pool.census();
        let held_packets_max = ((census.shared + census.cached) / 2).saturating_sub(spare);
        if held_packets_max < u64::from(POLL_PACKETS_MAX) {
            return Err(too_little_memory(queues, config));
        }
        warnings.extend(look_over::limits(&config.limits, config.classes.as_deref(), held_packets_max));
        let mut ends = Vec::new();
        for (index, port) in ports.into_iter().enumerate() {
            let limits = config.limits[index];
            let mut end = End::new(index, port, held_packets_max, poll_budget_max, limits, now_ns)
                .map_err(std::io::Error::other)
                .doing(|| "setting the limit".into())?;
            note_mtu(&mut end, now_ns);
            ends.push(end);
        }
        let umem = Arc::new(umem);
        let mut parts = Vec::new();
        if config.workers == 1 {
            parts.extend(frames.pop().map(|frames| Part::new(Worker::new(ends, frames, None), umem)));
        } else {
            let crossings = Crossing::new(TRANSMIT_PACKETS_MAX)
                .map_err(std::io::Error::other)
                .doing(|| "joining two workers".into())?;
            for ((end, frames), crossing) in ends.into_iter().zip(frames).zip(crossings) {
                let worker = Worker::new(vec![end], frames, Some(crossing));
                parts.push(Part::new(worker, Arc::clone(&umem)));
            }
        }
        if let Some(classes) = &config.classes {
            parts.iter_mut().for_each(|part| part.path.set_classes(classes, now_ns));
        }
        let constants = Constants {
            name: config.name.clone(),
            ports: config.ports.clone(),
            frames_total,
            since_ns: now_ns,
            eye,
        };
        Ok(Wire { parts, constants, pairs, warnings })
    }
}

/// The worker that owns each end.
pub fn owners(workers: usize) -> [usize; 2] {
    [0, workers - 1]
}

/// As many packets as a poll may bring, so that half of the frames can be on offer on all queues.
fn poll_budget_max(frames: u64, queues: u32, config: &WireConfig) -> weir_port::Result<u32> {
    let budget = u32::try_from(frames / 2 / u64::from(queues)).unwrap_or(u32::MAX);
    if budget < 4 {
        return Err(too_little_memory(queues, config));
    }
    Ok((budget & !1).min(POLL_PACKETS_MAX))
}

fn too_little_memory(queues: u32, config: &WireConfig) -> PortError {
    PortError::Unsuitable {
        name: config.ports[1].clone(),
        why: format!(
            "and {} have {queues} queues, too many for {} bytes of packet memory: give weir more with --memory",
            config.ports[0], config.memory_bytes
        ),
    }
}
