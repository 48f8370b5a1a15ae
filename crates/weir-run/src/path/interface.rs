//! A generator on a real interface, by way of an AF_XDP port, on the thread that calls. Its other half is [`crate::sink`].
//!
//! ```text
//! frames to spare, room on the transmit ring -> packet -> device -> completion -> frame back
//! ```
//!
//! Flows are spread over the queues of the interface by their hash, as a device does that receives them.
//!
//! A generator is held like any sender: a device that takes no more is asked again later, and nothing is dropped for that. Books
//! (invariant 1): accepted = delivered + dropped(reason) + in flight.
//!
//! Owner: the calling thread. Limits: interfaces are veths ([`weir_port::port`]). What arrives at a generator is thrown away.

use std::sync::Arc;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_port::bpf::doorbell::Bell;
use weir_port::frames::{Frames, Received};
use weir_port::napi;
use weir_port::port::Port;
use weir_port::transmission::Completion;
use weir_port::undo::Keeper;
use weir_port::xsk::socket::Transmit;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, sys};
use weir_ring::loans::Loans;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::r#gen::Gen;
use super::links::BURST;
use crate::clock::now_ns;

/// Frames: for the offer of 64 queues, and a full transmit ring.
const FRAMES: u32 = 8192;
const FRAME_BYTES: u32 = 4096;
const REST_NS_MIN: u64 = 20_000;
const REST_NS_MAX: u64 = 1_000_000;
/// How long a generator goes on waiting for what is in flight when it is done.
const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// An interface taken over.
pub struct Interface {
    port: Port,
    frames: Frames,
    received: Vec<Received>,
    bell: Bell,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

/// How it goes: the time since the start, and what was sent; false stops it.
pub type Observe<'a> = &'a mut dyn FnMut(u64, Count) -> bool;

impl Interface {
    /// Takes an interface over; `keeper` puts it back.
    ///
    /// # Errors
    /// If it is none that can be taken over, or the kernel refuses.
    pub fn open(name: &str, keeper: &mut dyn Keeper) -> weir_port::Result<Interface> {
        let memory = FrameMemory::new(FRAMES, FRAME_BYTES)
            .map_err(std::io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let pool = Pool::new(memory);
        let mut umem = Umem::new(Arc::clone(pool.memory()));
        let loans = Loans::new(Arc::clone(pool.memory()));
        let mut frames = Frames { pool, loans };
        let bell =
            Bell::new().doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let port =
            Port::open(name, napi::BUDGET, &mut umem, std::slice::from_mut(&mut frames), &[&bell], keeper)?;
        Ok(Interface { port, frames, received: Vec::with_capacity(2 * BURST), bell, _umem: umem })
    }

    /// Sends what a generator makes until it is done; `observe` stops it by saying false. Returns the books and what is still in
    /// flight.
    ///
    /// # Errors
    /// If the interface fails.
    pub fn generate(&mut self, generator: &mut Gen, observe: Observe) -> weir_port::Result<(Account, Count)> {
        let mut account = Account::default();
        let queues = self.port.spread_transmission(&self.frames);
        let start_ns = now_ns();
        let mut done_since = None;
        loop {
            let now = now_ns();
            if !observe(now - start_ns, account.delivered) {
                generator.stop();
            }
            let completed = self.port.complete(&mut self.frames, |len_bytes, fate| match fate {
                Completion::Delivered => account.deliver(len_bytes),
                Completion::Refused => account.drop(DropReason::DeviceRefused, len_bytes),
            });
            self.collect_all();
            self.received.drain(..).for_each(|received| self.frames.pool.give(received.frame));
            let room =
                (self.port.transmit_room() as usize).min(BURST).min(self.frames.pool.available() as usize);
            let due = generator.due(now, room);
            for _ in 0..due {
                let Some(mut frame) = self.frames.pool.take() else { break };
                let len_bytes = u32::from(generator.flows.size_bytes());
                let hash = generator.flows.write_next(self.frames.pool.memory().bytes_mut(&mut frame));
                generator.note_sent(1);
                account.accept(len_bytes);
                let packet = Received { frame, offset_bytes: 0, len_bytes };
                self.port.transmit_by(hash as usize % queues, packet, &mut self.frames);
            }
            let outcome = self.port.flush()?;
            let (packets, bytes) = self.port.in_flight();
            let waited_ns = now - *done_since.get_or_insert(now);
            if !generator.is_done() {
                done_since = None;
            } else if packets == 0 || waited_ns > DRAIN_NS_MAX {
                return Ok((account, Count { packets: packets.into(), bytes }));
            }
            if (due == 0 && completed == 0) || outcome != Transmit::Progress {
                // A device that is busy is asked again soon; a generator with a rate sleeps until its next packet.
                let until_next_ns =
                    generator.next_ns().map_or(REST_NS_MIN, |next_ns| next_ns.saturating_sub(now));
                self.rest(if packets > 0 {
                    REST_NS_MIN.min(until_next_ns)
                } else {
                    until_next_ns.min(REST_NS_MAX)
                })?;
            }
        }
    }

    fn collect_all(&mut self) {
        for queue in 0..self.port.queues() {
            if self.port.announcements().is_pending(queue) {
                self.port.announcements().expect_none(queue);
                self.port.poll(queue, &mut self.frames, &mut self.received);
            }
        }
    }

    /// Sleeps, unless a packet is announced.
    fn rest(&mut self, rest_ns: u64) -> weir_port::Result<()> {
        self.bell.park();
        let announced = (0..self.port.queues()).any(|queue| self.port.announcements().is_pending(queue));
        let slept = if announced {
            Ok(0)
        } else {
            sys::poll_readable(&mut [sys::poll_in(self.bell.fd())], Some(rest_ns))
        };
        self.bell.unpark();
        slept.map(drop).doing(|| "waiting for packets".into())
    }
}
