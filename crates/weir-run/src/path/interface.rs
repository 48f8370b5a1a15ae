//! A generator on a real interface, by way of an AF_XDP port, on the thread that calls. Its other half is [`crate::sink`].
//!
//! ```text
//! frames to spare, room on the transmit ring -> packet -> device -> completion -> frame back
//! ```
//!
//! Flows are spread over the queues of the interface by their hash, as a device does that receives them.
//!
//! A generator is held like any sender: a device that takes no more, or is down, is asked again later, and nothing is dropped for
//! that. What is in flight when the interface vanishes is dropped with it. Books (invariant 1): accepted = delivered +
//! dropped(reason) + in flight.
//!
//! A device may take no more because whoever received at the other end was killed while it held its senders
//! ([`weir_port::release`]). A generator that is held for long looks whether that is so, and goes on.
//!
//! Owner: the calling thread. Limits: interfaces are veths ([`weir_port::port`]). What arrives at a generator is thrown away.

use std::sync::Arc;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};
use weir_port::bpf::doorbell::Bell;
use weir_port::monitor::{State, Watch};
use weir_port::napi;
use weir_port::port::Port;
use weir_port::undo::Keeper;
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
/// How often it looks how its interface fares.
const LOOK_NS: u64 = 1_000_000;
/// How long it is held before it looks who holds it, and how long it waits until it looks again.
const HELD_NS: u64 = 100_000_000;
const HELD_AGAIN_NS: u64 = 1_000_000_000;

/// An interface taken over.
pub struct Interface {
    port: Port,
    frames: Frames,
    received: Vec<PathPacket>,
    bell: Bell,
    watch: Watch,
    carrier: Carrier,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

/// How it goes: the time since the start, and what was sent; false stops it.
pub type Observe<'a> = &'a mut dyn FnMut(u64, Count) -> bool;

/// What happens on the way that concerns its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// How the interface fares now.
    Interface(State),
    /// The queues that send to the other end, so called, were stopped and nobody was there to start them; they go on.
    Released(String),
}

/// What a generator came to.
pub struct Sent {
    /// Its books.
    pub account: Account,
    /// What is still in flight.
    pub in_flight: Count,
    /// Whether the interface vanished.
    pub is_gone: bool,
}

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
        let umem = Umem::new(Arc::clone(pool.memory()));
        let loans = Loans::new(Arc::clone(pool.memory()));
        let mut frames = Frames { pool, loans };
        let bell =
            Bell::new().doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let port =
            Port::open(name, napi::BUDGET, &umem, std::slice::from_mut(&mut frames), &[&bell], keeper)?;
        let watch = Watch::new(port.link().ifindex)?;
        Ok(Interface {
            port,
            frames,
            received: Vec::with_capacity(2 * BURST),
            bell,
            watch,
            carrier: Carrier::default(),
            _umem: umem,
        })
    }

    /// Sends what a generator makes until it is done or the interface vanishes; `observe` stops it by saying false.
    ///
    /// # Errors
    /// If the interface fails.
    pub fn generate(
        &mut self,
        generator: &mut Gen,
        observe: Observe,
        tell: &mut dyn FnMut(Event),
    ) -> weir_port::Result<Sent> {
        let mut account = Account::default();
        let queues = self.port.spread_transmission(&self.frames);
        let start_ns = now_ns();
        let mut state = State::Up;
        let mut done_since = None;
        let mut look_ns = start_ns;
        let mut held_look_ns = start_ns + HELD_NS;
        loop {
            let now = now_ns();
            if !observe(now - start_ns, account.delivered) {
                generator.stop();
            }
            let mut completed = 0;
            self.port.complete(&mut self.frames, |len_bytes, fate| {
                completed += 1;
                match fate {
                    Completion::Delivered => account.deliver(len_bytes),
                    Completion::Refused => account.drop(DropReason::DeviceRefused, len_bytes),
                }
            });
            let is_look = now >= look_ns;
            if is_look {
                look_ns = now + LOOK_NS;
                while let Some(change) = self.watch.next_change()? {
                    state = change;
                    tell(Event::Interface(state));
                }
            }
            let in_flight = self.port.in_flight();
            let packets = in_flight.packets;
            if state == State::Gone {
                let len_bytes = u32::from(generator.flows.size_bytes());
                (0..packets).for_each(|_| account.drop(DropReason::PortGone, len_bytes));
                return Ok(Sent { account, in_flight: Count::default(), is_gone: true });
            }
            if completed > 0 || packets == 0 || state != State::Up {
                held_look_ns = now + HELD_NS;
            } else if now >= held_look_ns {
                held_look_ns = now + HELD_AGAIN_NS;
                if self.port.release_far_end()? {
                    tell(Event::Released(self.port.sender().name.clone()));
                }
            }
            self.collect_all(is_look);
            self.received.drain(..).for_each(|packet| self.frames.pool.give(packet.frame));
            let (due, outcome) = if state == State::Up {
                self.send(generator, queues, now, &mut account)?
            } else {
                // It is done when its time is over, also now.
                (generator.due(now, 0), Transmit::Down)
            };
            let waited_ns = now - *done_since.get_or_insert(now);
            if !generator.is_done() {
                done_since = None;
            } else if packets == 0 || waited_ns > DRAIN_NS_MAX {
                return Ok(Sent { account, in_flight, is_gone: false });
            }
            if (due == 0 && completed == 0) || outcome != Transmit::Progress {
                // A device that is busy is asked again soon; a generator with a rate sleeps until its next packet.
                let until_next_ns =
                    generator.next_ns().map_or(REST_NS_MIN, |next_ns| next_ns.saturating_sub(now));
                self.rest(match state {
                    State::Up if packets > 0 => REST_NS_MIN.min(until_next_ns),
                    State::Up => until_next_ns.min(REST_NS_MAX),
                    _ => REST_NS_MAX,
                })?;
            }
        }
    }

    /// Sends what is due and there is room for; how many packets that were, and what became of asking the device to take them.
    fn send(
        &mut self,
        generator: &mut Gen,
        queues: usize,
        now_ns: u64,
        account: &mut Account,
    ) -> weir_port::Result<(usize, Transmit)> {
        if self.carrier.stays_missing(now_ns, || self.port.has_carrier()) {
            return Ok((generator.due(now_ns, 0), Transmit::Down));
        }
        let room = (self.port.room() as usize).min(BURST).min(self.frames.pool.available() as usize);
        let due = generator.due(now_ns, room);
        for _ in 0..due {
            let Some(mut frame) = self.frames.pool.take() else { break };
            let len_bytes = generator.flows.size_bytes();
            let hash = generator.flows.write_next(self.frames.pool.memory().bytes_mut(&mut frame));
            generator.note_sent(1);
            account.accept(len_bytes.into());
            let packet = PathPacket::new(frame, 0, len_bytes);
            self.port.transmit_by(hash as usize % queues, packet, &mut self.frames);
        }
        let flushed = self.port.flush(&mut self.carrier, now_ns).doing(|| "transmitting".into())?;
        Ok((due, flushed))
    }

    /// Collects what was announced, and with `all` what was not: what another AF_XDP socket sends passes the doorbell by.
    fn collect_all(&mut self, all: bool) {
        for queue in 0..self.port.queues() {
            if all || self.port.announcements().is_pending(queue) {
                self.port.announcements().expect_none(queue);
                let polled = self.port.poll(queue, &mut self.frames, &mut self.received);
                if polled >= napi::BUDGET as usize {
                    // There may be more, of which nobody will tell again.
                    self.port.announcements().set_pending(queue);
                }
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
