//! The feature that a wire depends on, tried out: does a veth that nobody polls hold the packets sent into it, and do all of them come once
//! it is polled?
//!
//! ```text
//! send n frames, n > ring; poll nothing      a kernel with dc82a33297fc    qdisc backlog > 0, dropped = 0
//!                                            without                       backlog = 0: the device dropped the rest
//! poll until n have arrived                  with 5442a9da6978             they do
//!                                            without                       the queue may stay stopped: backlog > 0 for good
//! ```
//!
//! The port is a real one ([`Port`]), so the trial does as a wire does. A stall is a race, so [`Trial::refill`] fills and drains many times
//! with the sender on a thread of its own; it can show that a kernel stalls, not that it never will.
//!
//! Source: kernel `drivers/net/veth.c:veth_xmit`, `veth_poll`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use weir_path::frames::Frames;
use weir_path::port::ReceiveQueues;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::scratch::{FRAME_BYTES, Forget, ScratchPair, ScratchSender};
use crate::bpf::doorbell::Bell;
use crate::error::{Doing, PortError, Result};
use crate::hooks;
use crate::napi;
use crate::port::Port;
use crate::sys;
use crate::xsk::umem::Umem;

/// The packets of a burst, well above the 256 slots of a veth's ring.
const BURST: u32 = 600;
/// The packets of a round of filling and draining: enough to stop the queue.
const ROUND: u32 = 400;
/// The looks, a millisecond apart, that find nothing before a queue counts as stuck.
const LOOKS: u32 = 60;
const LOOK_NS: u64 = 1_000_000;
/// The looks without a pause: packets that are on their way come within them.
const LOOKS_AT_ONCE: u32 = 50;
/// The frames. A port of one queue needs its offer twice over.
const FRAMES: u32 = 512;
const MEMORY_FRAME_BYTES: u32 = 4096;

/// The advice where a full veth drops.
pub const HOLDING_FIX: &str =
    "use Linux 6.18 or newer (dc82a33297fc \"veth: apply qdisc backpressure on full ptr_ring\")";
/// The advice where a veth that was full stays stopped.
pub const REFILLING_FIX: &str =
    "use Linux 6.18 or newer (5442a9da6978 \"veth: more robust handing of race to avoid txq getting stuck\")";

/// The packets that a kernel held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Packets sent while nothing was polled.
    pub sent_packets: u64,
    /// The packets of these that waited in the sender's qdisc.
    pub held_packets: u64,
}

/// A port on a pair, and a sender at its other end.
pub struct Trial {
    // The sockets go before their memory.
    port: Port,
    frames: Frames,
    sender: ScratchSender,
    arrived: u64,
    _umem: Umem,
    _bell: Bell,
}

impl Trial {
    /// A port and a sender on `pair`, both ends of which must be in this thread's namespace.
    pub fn new(pair: &ScratchPair) -> Result<Trial> {
        hooks::check_tcx(pair.sender.ifindex)?;
        let memory = FrameMemory::new(FRAMES, MEMORY_FRAME_BYTES)
            .map_err(std::io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let pool = Pool::new(memory);
        let umem = Umem::new(Arc::clone(pool.memory()));
        let mut frames = Frames::new(pool);
        let bell = Bell::new().doing(|| "making a doorbell".into())?;
        let sender = ScratchSender::new(&pair.sender)?;
        let port = Port::open(
            &pair.receiver.name,
            napi::BUDGET,
            &umem,
            std::slice::from_mut(&mut frames),
            &[&bell],
            &mut Forget,
        )?;
        Ok(Trial { port, frames, sender, arrived: 0, _umem: umem, _bell: bell })
    }

    /// The name of the way the port polls.
    pub fn poller_name(&self) -> &'static str {
        self.port.poller_name()
    }

    /// Polls by io_uring from now on.
    pub fn poll_by_ring(&mut self) -> Result<()> {
        self.port.poll_by_ring()
    }

    /// Sends more than the ring takes, sees where the packets are, then polls until all have come.
    pub fn hold(&mut self) -> Result<Held> {
        let before = self.port.sender_queue().counters()?;
        for _ in 0..BURST {
            match self.sender.send() {
                // The device or the qdisc dropped the packet, so it is missing below.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                sent => sent.doing(|| "sending into a veth that is not polled".into())?,
            }
        }
        let after = self.port.sender_queue().counters()?;
        let due = self.arrived + u64::from(BURST);
        self.drain(due, || true);
        let missing = due - self.arrived;
        self.arrived = due;
        let held = Held { sent_packets: u64::from(BURST), held_packets: after.backlog };
        match (after.dropped - before.dropped, after.backlog, missing) {
            (0, 1.., 0) => Ok(held),
            (0, 1.., _) => Err(self.stalled(missing)?),
            (dropped, _, _) => Err(PortError::Unsupported {
                what: format!(
                    "a veth that holds its sender when it is full: of {BURST} packets the device lost {missing} and the qdisc {dropped}"
                ),
                fix: HOLDING_FIX.into(),
            }),
        }
    }

    /// Fills and drains the ring `rounds` times, or until `keep_going` says no; returns the number of rounds done.
    pub fn refill(&mut self, rounds: u32, keep_going: &dyn Fn() -> bool) -> Result<u32> {
        let (go, told) = channel::<()>();
        let sent_rounds = AtomicU32::new(0);
        let sender = &self.sender;
        let mut done = 0;
        // The scope borrows what the threads share; the port stays with this one.
        let (port, frames, arrived) = (&mut self.port, &mut self.frames, &mut self.arrived);
        let stalled = std::thread::scope(|scope| {
            // Dropped at the end of this block, which ends the sender.
            let go = go;
            let sent = &sent_rounds;
            scope.spawn(move || {
                while told.recv().is_ok() {
                    // A packet whose sending is refused is missed by the drain.
                    (0..ROUND).for_each(|_| drop(sender.send()));
                    sent.fetch_add(1, Ordering::Release);
                }
            });
            while done < rounds && keep_going() && go.send(()).is_ok() {
                done += 1;
                let due = *arrived + u64::from(ROUND);
                drain(port, frames, arrived, due, || sent_rounds.load(Ordering::Acquire) == done);
                if *arrived < due {
                    let missing = due - *arrived;
                    *arrived = due;
                    return Some(missing);
                }
            }
            None
        });
        match stalled {
            Some(missing) => Err(self.stalled(missing)?),
            None => Ok(done),
        }
    }

    fn drain(&mut self, due: u64, complete: impl Fn() -> bool) {
        drain(&mut self.port, &mut self.frames, &mut self.arrived, due, complete);
    }

    fn stalled(&self, missing: u64) -> Result<PortError> {
        let backlog = self.port.sender_queue().counters()?.backlog;
        Ok(PortError::Unsupported {
            what: format!(
                "a veth whose queue goes on after it was full: {missing} packets did not come, {backlog} of them stuck in the qdisc"
            ),
            fix: REFILLING_FIX.into(),
        })
    }
}

/// Polls until `due` frames have arrived, or until none has for long although everything was sent, as `complete` tells.
fn drain(port: &mut Port, frames: &mut Frames, arrived: &mut u64, due: u64, complete: impl Fn() -> bool) {
    let mut received = Vec::new();
    let mut looks = 0;
    while *arrived < due && looks < LOOKS_AT_ONCE + LOOKS {
        let complete = complete();
        let count = port.poll(0, frames, &mut received);
        for packet in received.drain(..) {
            *arrived += u64::from(u32::from(packet.len_bytes) == FRAME_BYTES);
            frames.pool.give(packet.frame);
        }
        looks = if count > 0 || !complete { 0 } else { looks + 1 };
        if looks > LOOKS_AT_ONCE {
            // Fails only if interrupted, which makes the pause shorter.
            let _ = sys::poll(&mut [], Some(LOOK_NS));
        }
    }
}
