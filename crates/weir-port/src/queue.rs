//! One receive queue of a port: its AF_XDP socket, its poller, and the frames it has on offer.
//!
//! Rule (that of the intake, `crate::napi`): a queue is polled only while it has as many frames on offer as one poll may bring, so that the
//! kernel can place them; [`Queue::collect`] offers new ones at once.
//!
//! Packets that the program at the receiving end passes on to the kernel's own stack ([`BoundPorts`]) are taken from the ring by a poll
//! too, and counted as brought: a poll that brings nothing else has not found the ring empty.
//!
//! Owner: one worker, whose [`Frames`] the frames on offer are from, always the same.

use std::sync::Arc;

use weir_path::frames::Frames;
use weir_path::packet::PathPacket;

use crate::bpf::bound::BoundPorts;
use crate::bpf::doorbell::Announcements;
use crate::napi::{self, Poller};
use crate::waiting::Waiting;
use crate::xsk::socket::XskSocket;

/// The shortest Ethernet frame that a device hands up: its header.
const FRAME_BYTES_MIN: u16 = 14;

/// A receive queue.
pub struct Queue {
    number: usize,
    socket: XskSocket,
    poller: Poller,
    on_offer: u32,
    /// The most packets that one poll brings, and the least frames on offer with which it may be polled.
    poll_budget: u32,
    /// The value that the poller's budget was set to.
    poll_budget_set: u32,
    /// The highest value that the budget may be set to.
    poll_budget_max: u32,
    /// The number under which its socket borrows frames.
    borrower: u16,
    announcements: Arc<Announcements>,
    waiting: Waiting,
    /// The bound ports of a shared interface, and the packets and bytes passed on at the last look.
    shared: Option<(Arc<BoundPorts>, [u32; 2])>,
}

impl Queue {
    pub(crate) fn new(
        number: usize,
        socket: XskSocket,
        poller: Poller,
        poll_budget: u32,
        borrower: u16,
        announcements: Arc<Announcements>,
    ) -> Queue {
        let poll_budget_max = poll_budget.min(napi::BUDGET);
        let poll_budget = poller.set_budget(poll_budget_max);
        let waiting = Waiting::new(announcements.let_in(number));
        Queue {
            number,
            socket,
            poller,
            on_offer: 0,
            poll_budget,
            poll_budget_set: poll_budget_max,
            poll_budget_max,
            borrower,
            announcements,
            waiting,
            shared: None,
        }
    }

    /// Counts packets that these ports do not take as passed on.
    pub(crate) fn share(&mut self, ports: &Arc<BoundPorts>) {
        self.shared = Some((Arc::clone(ports), ports.passed(self.number)));
    }

    /// Its number at the port.
    pub fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn socket_mut(&mut self) -> &mut XskSocket {
        &mut self.socket
    }

    pub(crate) fn poll_budget_max(&self) -> u32 {
        self.poll_budget_max
    }

    /// Returns whether a poll brings more packets than the memory was shared out for, as one by io_uring may.
    pub(crate) fn exceeds_its_share(&self) -> bool {
        self.poll_budget > self.poll_budget_max
    }

    pub(crate) fn set_poll_budget(&mut self, packets: u32) -> u32 {
        // To set it is a system call.
        if packets != self.poll_budget_set {
            self.set_pollers_budget(packets);
        }
        self.poll_budget
    }

    fn set_pollers_budget(&mut self, packets: u32) {
        self.poll_budget = self.poller.set_budget(packets);
        self.poll_budget_set = packets;
    }

    /// Polls by another poller from now on, as many packets a call as before or as many as that one can.
    pub fn set_poller(&mut self, poller: Poller) {
        self.poller = poller;
        self.set_pollers_budget(self.poll_budget);
    }

    pub(crate) fn poller_name(&self) -> &'static str {
        self.poller.name()
    }

    /// Fills the offer up; true if the queue may be polled.
    pub fn offer(&mut self, frames: &mut Frames) -> bool {
        self.offer_up_to(self.poll_budget, frames)
    }

    /// Fills the offer up for any poll, also one by the kernel, which keeps to its own budget: such a poll may have begun before the queue
    /// is directed to its socket and end after. True if there were frames.
    pub(crate) fn offer_for_any_poll(&mut self, frames: &mut Frames) -> bool {
        self.offer_up_to(self.poll_budget_max, frames)
    }

    fn offer_up_to(&mut self, count: u32, frames: &mut Frames) -> bool {
        let frame_bytes = u64::from(frames.pool.memory().frame_size_bytes());
        while self.on_offer < count {
            let Some(frame) = frames.pool.take() else { break };
            self.socket.fill.push(u64::from(frames.loans.lend(frame, self.borrower)) * frame_bytes);
            self.on_offer += 1;
        }
        self.socket.fill.publish();
        self.on_offer >= count
    }

    /// Polls once and collects what came; returns the number of packets, with those that were passed on.
    pub fn poll(&mut self, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let mut count = 0;
        // The kernel has polled uninvited, and the packets that it brought used up part of the offer.
        if self.socket.fill.unconsumed() < self.poll_budget {
            count += self.collect(frames, received);
        }
        self.poller.poll();
        count += self.collect(frames, received) + self.note_passed();
        if count == 0 {
            // The device's ring is empty; `collect` says so only of the receive ring.
            self.note_taken(0, 0);
        }
        count
    }

    /// Notes the packets that were passed on to the kernel's own stack since the last poll; returns their number.
    fn note_passed(&mut self) -> usize {
        let Some((ports, before)) = &mut self.shared else { return 0 };
        let now = ports.passed(self.number);
        let [packets, bytes] = [0, 1].map(|word| now[word].wrapping_sub(before[word]));
        *before = now;
        if packets > 0 {
            self.note_taken(packets, bytes);
        }
        packets as usize
    }

    fn note_taken(&mut self, packets: u32, bytes: u32) {
        let gone = self.waiting.took(packets, bytes, self.announcements.let_in(self.number));
        self.announcements.set_gone(self.number, gone);
    }

    /// Collects the packets that have come without polling, and fills the offer up; returns their number.
    pub fn collect(&mut self, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let before = received.len();
        let mut bytes = 0;
        let frame_bytes = u64::from(frames.pool.memory().frame_size_bytes());
        let mut returned = 0;
        while let Some(descriptor) = self.socket.rx.pop() {
            returned += 1;
            let offset_bytes = descriptor.address % frame_bytes;
            // A descriptor is the kernel's word and checked in release builds too: one that names no frame of this offer, or
            // reaches past its end, is not followed.
            let index = u32::try_from(descriptor.address / frame_bytes).unwrap_or(u32::MAX);
            // SAFETY: the index is from a descriptor on this socket's receive ring.
            let Ok(frame) = (unsafe { frames.loans.reclaim(index) }) else { continue };
            bytes += descriptor.length;
            let end = offset_bytes + u64::from(descriptor.length);
            let place = (u16::try_from(offset_bytes), u16::try_from(descriptor.length));
            let (Ok(offset_bytes), Ok(len_bytes @ FRAME_BYTES_MIN..), true) =
                (place.0, place.1, end <= frame_bytes)
            else {
                frames.pool.give(frame);
                continue;
            };
            received.push(PathPacket::new(frame, offset_bytes, len_bytes));
        }
        self.socket.rx.release();
        self.on_offer -= returned;
        if returned > 0 {
            self.note_taken(returned, bytes);
            self.offer(frames);
        }
        received.len() - before
    }
}
