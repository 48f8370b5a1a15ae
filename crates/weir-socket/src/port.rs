//! A socket as a port of the path: its send buffer is a receive queue of the port, its receive buffer the port's transmit ring.
//!
//! ```text
//! application                 rings                          the path's worker
//! an empty frame         <--- empty ----  a frame of the pool, for each packet that is polled
//! written, sent          ---- sent ---->  poll, if what it is bound for has room
//! datagrams              <--- received -  put, if there is room
//! read                   ---- returned >  complete: delivered, frame back
//! ```
//!
//! Rule: the buffers are credit in frames. The socket has every frame of its send buffer from the start: empty, in hand, or sent and not polled. A
//! sender that has no frame left waits, and is woken when the path has taken a packet and given another frame for it, so a woken sender can send. At
//! most `receive_packets` packets of the receive buffer are with the socket. Packets beyond that wait in the egress queue before the port, whose room
//! holds the receive queues that they came by, or are dropped as `socket-full` if that is the socket's rule ([`FullRule`]).
//!
//! Ordering: rings order packets (`weir_ring::spsc`). `R0` (`is_announced` set, after publishing) `<-> A0` (taken back by a read-modify-write before
//! the poll): the worker that polls sees what was published, or the announcement stays. The order of wakes: `weir_ring::doorbell`.
//!
//! Conservation: accepted = delivered + dropped + in flight, where delivered counts the packets that the application has given back. Owner: the
//! path's worker; the application has the other half ([`crate::half`]).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use weir_core::drops::{Count, DropReason};
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};
use weir_ring::memory::Frame;
use weir_ring::spsc::{Consumer, Producer};
use weir_run::clock::now_ns;

use crate::datagram::{self, Arrived};
use crate::options::SocketCounts;
use crate::ringers::Ringers;
use crate::tcp::state::StreamState;
use crate::throttle::ThrottleClock;
use crate::ways::Ways;

/// The rule for a datagram that finds no room in the receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullRule {
    /// The datagram waits, and so do the receive queues by which the socket's datagrams come: their senders are held. Packets in the same queues for
    /// other sockets, and for the kernel, wait too.
    #[default]
    Hold,
    /// The datagram is dropped and counted as `socket-full`.
    Drop,
}

/// A frame on its way back from the application.
#[derive(Debug)]
pub(crate) enum Returned {
    /// The frame of a datagram of so many bytes that was read, or another frame for it.
    Read(Frame, u16),
    /// A frame of the send buffer that was not used.
    Unused(Frame),
    /// The frame of a packet that was not read, from a socket that is being closed.
    Unread(Frame),
}

/// The flags between the application and one worker. Nobody else touches their cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    /// True if something was sent since the worker last said that it expects packets.
    pub(crate) is_announced: AtomicBool,
    /// True if the worker waits for room in the receive buffer.
    pub(crate) wants_room: AtomicBool,
}

/// The state that both halves read, for all workers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shared {
    /// True if there is an error that the application has not been told.
    pub(crate) has_error: AtomicBool,
    /// The destination of the packet that an ICMP error is about, and the error's number. Off the packets' way: ICMP errors alone come here.
    pub(crate) error: Mutex<Option<(SocketAddr, i32)>>,
    /// The MTUs of the ways to the peers of a UDP socket.
    pub(crate) ways: Ways,
    /// The frames that had been given to the sender in all, wrapping, when a sender that waits, or is about to, last found none left. Never ahead of
    /// what a sender has used: a worker that finds its own number here has nobody to wake for these frames, however late it looks.
    pub(crate) used_frames: AtomicUsize,
    /// The state of the stream of bytes, for a TCP socket.
    pub(crate) stream: StreamState,
    /// The address that a UDP socket is connected to. In memory of its own: the application reads it for each datagram, and the worker when it
    /// reports.
    pub(crate) peer: Arc<Mutex<Option<SocketAddr>>>,
    /// The counters of the socket ([`crate::SocketCounts`]).
    pub(crate) throttled: AtomicU64,
    pub(crate) throttle: ThrottleClock,
    pub(crate) wakes: AtomicU64,
    pub(crate) empty_wakes: AtomicU64,
    pub(crate) from_others: AtomicU64,
}

impl Shared {
    /// Notes that somebody wants to send and there was no frame. `is_writable` is asked again: the worker, which ends the throttling, may have come
    /// in between.
    pub(crate) fn note_throttled(&self, is_writable: impl FnOnce() -> bool) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        if self.throttle.is_on() {
            return;
        }
        self.throttle.begin(now_ns());
        // F4, with the fence of the doorbell after a frame was published: one of both sees the other.
        fence(Ordering::SeqCst);
        if is_writable() {
            self.end_throttled();
        }
    }

    /// Ends the throttling: there are frames to send in.
    fn end_throttled(&self) {
        if self.throttle.is_on() {
            self.throttle.end(now_ns());
        }
    }

    /// Notes how often a sender was woken, and how often in vain.
    pub(crate) fn note_wakes(&self, wakes: u64, empty_wakes: u64) {
        self.wakes.fetch_add(wakes, Ordering::Relaxed);
        // R4.
        self.empty_wakes.fetch_add(empty_wakes, Ordering::Release);
    }

    /// The address that a UDP socket is connected to.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> SocketCounts {
        let Shared { throttled, throttle, wakes, empty_wakes, from_others, .. } = self;
        let (is_throttled, throttled_ns) = throttle.told(now_ns);
        // A part is read before the whole, which is counted first: A4, from R4.
        let empty_wakes = empty_wakes.load(Ordering::Acquire);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SocketCounts {
            is_throttled,
            throttled: of(throttled),
            throttled_ns,
            wakes: of(wakes),
            empty_wakes,
            from_others: of(from_others),
        }
    }
}

/// The worker's half of the rings.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) sent: Consumer<PathPacket>,
    pub(crate) empty: Producer<Frame>,
    pub(crate) received: Producer<PathPacket>,
    pub(crate) returned: Consumer<Returned>,
    pub(crate) ringers: Ringers,
    pub(crate) lane: Arc<Lane>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) receive_packets: u32,
    pub(crate) full: FullRule,
    /// False if another worker of the socket hears of each error as well, and tells it.
    pub(crate) tells_errors: bool,
    /// Frames of the send buffer; 0 if the socket sends by another worker.
    pub(crate) send_frames: u32,
    /// Frames that the send buffer lacks.
    pub(crate) owed: u32,
}

impl Open {
    /// Frames of packet memory that are in the send buffer.
    pub(crate) fn frames_to_send(&self) -> u64 {
        u64::from(self.send_frames.saturating_sub(self.owed))
    }

    /// Gives the frames that the send buffer lacks, as far as there are any.
    pub(crate) fn pay(&mut self, frames: &mut Frames) {
        let mut paid = 0;
        while paid < self.owed {
            let run = frames.pool.take_run((self.owed - paid) as usize);
            if run.len() == 0 {
                break;
            }
            for frame in run {
                paid += 1;
                self.empty.stage(frame).expect("a ring has a slot for each frame of the send buffer");
            }
        }
        self.owed -= paid;
        if self.empty.publish() > 0 {
            self.wake_sender();
            // After the fence in there (F4).
            self.shared.end_throttled();
        }
    }

    /// Wakes the sender that waits for a frame, after frames were published, unless it has used all of them already.
    fn wake_sender(&self) {
        let given_frames = self.empty.published();
        let is_used = || self.shared.used_frames.load(Ordering::Relaxed) == given_frames;
        self.ringers.sender.published_unless(is_used);
    }

    /// Takes the frames that the application has given back, telling `read` the length of each packet that it has read.
    pub(crate) fn take_returned(&mut self, frames: &mut Frames, mut read: impl FnMut(u16)) {
        let owed = &mut self.owed;
        self.returned.pop_each(usize::MAX, |returned| match returned {
            Returned::Read(frame, len_bytes) => {
                read(len_bytes);
                frames.pool.give(frame);
            }
            Returned::Unused(frame) => {
                *owed += 1;
                frames.pool.give(frame);
            }
            Returned::Unread(frame) => frames.pool.give(frame),
        });
    }

    /// Takes back every frame of a socket that the application has let go of, telling `read` and `unread` the lengths of packets that it had read and
    /// had not read.
    pub(crate) fn reclaim(mut self, frames: &mut Frames, read: impl FnMut(u16), mut unread: impl FnMut(u16)) {
        self.take_returned(frames, read);
        while let Some(packet) = self.received.take_back() {
            unread(packet.len_bytes);
            frames.pool.give(packet.frame);
        }
        while let Some(packet) = self.sent.pop() {
            frames.pool.give(packet.frame);
        }
        while let Some(frame) = self.empty.take_back() {
            frames.pool.give(frame);
        }
    }

    /// Tells the application of an error, unless another worker does.
    fn tell_error(&self, error: (SocketAddr, i32)) {
        if !self.tells_errors {
            return;
        }
        *self.shared.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.shared.has_error.store(true, Ordering::Release);
        self.ringers.receiver.published();
    }
}

/// Packets that have ended, by their fate.
#[derive(Debug, Default)]
struct Ended {
    delivered: Count,
    full: Count,
    closed: Count,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct SocketPort {
    open: Option<Open>,
    /// True if the application has closed the socket; its sent packets are still to be polled.
    is_closing: bool,
    poll_budget: u32,
    /// Datagrams that were polled since the socket was opened.
    sent: u64,
    /// Packets that were put and are not reported as ended.
    in_flight: Count,
    /// True if packets were put and not published.
    staged: bool,
    /// Packets that have ended and are not reported yet.
    ended: Ended,
}

impl Default for SocketPort {
    fn default() -> SocketPort {
        SocketPort {
            open: None,
            is_closing: false,
            poll_budget: POLL_PACKETS_MAX,
            sent: 0,
            in_flight: Count::default(),
            staged: false,
            ended: Ended::default(),
        }
    }
}

impl SocketPort {
    /// Makes this the port of a socket. The send buffer is filled from the pool, as far as that has frames.
    pub(crate) fn open(&mut self, open: Open, frames: &mut Frames) {
        self.is_closing = false;
        self.sent = 0;
        self.open.insert(open).pay(frames);
    }

    /// Notes that the application has closed the socket.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Gives back the frames of a closed socket once everything that it sent has been polled; returns whether the port has no socket any more.
    pub(crate) fn finish(&mut self, frames: &mut Frames) -> bool {
        let Some(open) = &mut self.open else { return true };
        if !self.is_closing || !open.sent.is_empty() {
            return false;
        }
        let Ended { delivered, closed, .. } = &mut self.ended;
        if let Some(open) = self.open.take() {
            let add = |count: &mut Count, len_bytes: u16| count.add(len_bytes.into());
            open.reclaim(frames, |len| add(delivered, len), |len| add(closed, len));
        }
        true
    }

    /// Returns whether the application has sent something that was not polled.
    pub(crate) fn has_sent(&mut self) -> bool {
        self.open.as_mut().is_some_and(|open| !open.sent.is_empty())
    }

    /// Frames of packet memory in the buffers of its socket; exact after a `complete`.
    pub(crate) fn frames(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.frames_to_send() + self.in_flight.packets)
    }

    /// Returns whether the socket sends by this worker.
    pub(crate) fn is_home(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.send_frames > 0)
    }

    /// Datagrams that were polled since the socket was opened.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The state that the worker and the application share, if there is a socket.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.open.as_ref().map(|open| &*open.shared)
    }

    fn pay(&mut self, frames: &mut Frames) {
        if let Some(open) = self.open.as_mut().filter(|_| !self.is_closing) {
            open.pay(frames);
        }
    }
}

impl ReceiveQueues for SocketPort {
    fn queues(&self) -> usize {
        1
    }

    fn is_announced(&self, _: usize) -> bool {
        self.open.as_ref().is_some_and(|open| open.lane.is_announced.load(Ordering::Relaxed))
    }

    fn expect(&mut self, _: usize) {
        if let Some(open) = &self.open {
            // A0, from R0.
            open.lane.is_announced.swap(false, Ordering::AcqRel);
        }
    }

    fn set_announced(&mut self, _: usize) {
        if let Some(open) = &self.open {
            open.lane.is_announced.store(true, Ordering::Relaxed);
        }
    }

    // A socket has one queue: nobody could go elsewhere.
    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, _: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let Some(open) = &mut self.open else { return 0 };
        let count = open.sent.pop_each(self.poll_budget as usize, |packet| received.push(packet));
        open.owed += count as u32;
        self.sent += count as u64;
        self.pay(frames);
        count
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = packets;
        packets
    }
}

impl TransmitRing for SocketPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        match &self.open {
            Some(open) if open.full == FullRule::Hold && !self.is_closing => {
                open.receive_packets.saturating_sub(self.in_flight.packets as u32)
            }
            // Packets without room are dropped.
            _ => POLL_PACKETS_MAX,
        }
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        for packet in packets.drain(..) {
            let len_bytes = u32::from(packet.len_bytes);
            let held_packets = self.in_flight.packets;
            self.in_flight.add(len_bytes);
            let ended = match self.open.as_mut().filter(|_| !self.is_closing) {
                None => &mut self.ended.closed,
                Some(open) => match datagram::arrived(packet.bytes(frames.memory())) {
                    Arrived::Error(about, error) => {
                        open.tell_error((about, error));
                        &mut self.ended.delivered
                    }
                    Arrived::TooLong(about, mtu_bytes) => {
                        open.shared.ways.note(about.ip(), mtu_bytes, now_ns());
                        open.tell_error((about, libc::EMSGSIZE));
                        &mut self.ended.delivered
                    }
                    Arrived::SoftError => &mut self.ended.delivered,
                    Arrived::Datagram if held_packets >= u64::from(open.receive_packets) => {
                        &mut self.ended.full
                    }
                    Arrived::Datagram => {
                        open.received.stage(packet).expect("a ring has a slot for all that may be in flight");
                        self.staged = true;
                        continue;
                    }
                },
            };
            ended.add(len_bytes);
            frames.pool.give(packet.frame);
        }
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        let is_full = self.room() == 0;
        let Some(open) = &mut self.open else { return Ok(Transmit::Progress) };
        if std::mem::take(&mut self.staged) {
            open.received.publish();
            open.ringers.receiver.published();
        }
        if is_full {
            open.lane.wants_room.store(true, Ordering::SeqCst);
        }
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, frames: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        if let Some(open) = &mut self.open {
            let mut delivered = Count::default();
            open.take_returned(frames, |len_bytes| delivered.add(len_bytes.into()));
            self.ended.delivered.merge(delivered);
        }
        self.pay(frames);
        let Ended { delivered, full, closed } = std::mem::take(&mut self.ended);
        let fates = [
            (delivered, Completion::Delivered),
            (full, Completion::Dropped(DropReason::SocketFull)),
            (closed, Completion::Dropped(DropReason::SocketClosed)),
        ];
        for (count, fate) in fates.into_iter().filter(|(count, _)| count.packets > 0) {
            self.in_flight.sub_all(count);
            each(count, fate);
        }
    }

    fn in_flight(&self) -> Count {
        self.in_flight
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
