//! One connection: smoltcp's socket, and the rings of the application that has it.
//!
//! ```text
//! sent ring --while the send buffer has room--> smoltcp --segments
//! received ring <--while the application holds less than its chunks-- smoltcp <--segments
//! ```
//!
//! Rule: a chunk is taken when smoltcp has room for some of it, and its frame is replaced when all of it is in; so a sender that is woken has a frame
//! to send in. Bytes that the application does not read stay in smoltcp's buffer, whose window then closes. A stream ends for the application after
//! its last byte is in the ring. A peer that owes an answer is given up in the end (`patience.rs`).
//!
//! Owner: the path's worker. Source: RFC 9293; duties that smoltcp leaves to its user are named where they are done.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;

use crate::options::SocketCounts;
use crate::port::Open;
use crate::tcp::numbers::{Received, Sent};
use crate::tcp::path_mtu::Way;
use crate::tcp::patience::Patience;
use crate::tcp::segment::{ACK, Head, SYN};
use crate::tcp::settings::TcpSettings;
use crate::tcp::state::StreamState;

/// The time after which a half-open connection whose peer does not go on is forgotten.
pub(crate) const OPENING: Duration = Duration::from_secs(20);

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// The longest time that an acknowledgement waits for another segment, or for data to go with (RFC 9293 section 3.8.6.3: below half a second).
const ACK_DELAY: Duration = Duration::from_millis(10);

/// The role of a connection at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The place has no connection.
    Free,
    /// A peer asks for the connection at this listener, by number.
    HalfOpen(u32),
    /// The connection waits to be accepted from this listener, by number.
    Waiting(u32),
    /// An application has the connection, or is about to.
    Open,
    /// The application has gone.
    Orphan,
}

/// See the head of the file.
pub(crate) struct Connection {
    pub(crate) role: Role,
    /// The ends of the connection, while its place has one.
    pub(crate) flow: Option<Flow>,
    pub(crate) sockets: SocketSet<'static>,
    /// The way to the peer, as far as routers have told of it.
    pub(crate) way: Way,
    pub(super) sent: Sent,
    received: Received,
    handle: SocketHandle,
    patience: Patience,
    app: Option<App>,
    /// Bytes that had come when smoltcp was about to forget the connection, and the number of them that were given on.
    rest: (Vec<u8>, usize),
    /// True if both sides have agreed on the connection.
    was_established: bool,
    /// The error by which the connection failed, if it did.
    failure: Option<i32>,
    /// True if the connection is in the list of those that have something to send.
    pub(crate) is_ready: bool,
    /// True if a segment for the connection is in the burst that is being put.
    pub(crate) is_in_burst: bool,
    /// The time of the next look at the connection.
    pub(crate) due: Option<Instant>,
    /// The chunks and the bytes that were to be sent, when [`Connection::has_moved`] was last called.
    left: (usize, usize),
    /// The time when bytes that an application left behind are given up, unless more of them are sent.
    pub(crate) until: Option<Instant>,
}

/// The application's side.
struct App {
    open: Box<Open>,
    /// The chunk that smoltcp has a part of, and the bytes in that part.
    chunk: Option<(PathPacket, usize)>,
    /// Chunks that the application holds.
    unread: u32,
    /// True at the places of the ends that the application was woken for: the end of sending, and the end of receiving.
    told: [bool; 2],
}

impl Connection {
    pub(crate) fn new(settings: &TcpSettings) -> Connection {
        let buffer = || SocketBuffer::new(vec![0; settings.buffer_bytes as usize]);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(Socket::new(buffer(), buffer()));
        Connection {
            role: Role::Free,
            flow: None,
            sockets,
            way: Way::default(),
            sent: Sent::default(),
            received: Received::default(),
            handle,
            patience: Patience::new(settings.keepalive),
            app: None,
            rest: (Vec::new(), 0),
            was_established: false,
            failure: None,
            is_ready: false,
            is_in_burst: false,
            due: None,
            left: (0, 0),
            until: None,
        }
    }

    pub(crate) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(crate) fn state(&self) -> State {
        self.sockets.get::<Socket>(self.handle).state()
    }

    /// Begins a new connection in this place.
    ///
    /// smoltcp's socket forgets the last connection when it listens or connects, but keeps its settings and its congestion control, which are set anew
    /// here. It also keeps its counter of duplicate acknowledgements and a wish for a fast retransmission; the first acknowledgement and the first
    /// segment of the new connection end those. Its hop limit and its timestamps are never set.
    pub(crate) fn begin(&mut self, role: Role, timeout: Duration) {
        self.role = role;
        self.rest = (Vec::new(), 0);
        self.was_established = false;
        self.failure = None;
        self.until = None;
        self.way = Way::default();
        self.sent = Sent::default();
        self.received = Received::default();
        self.patience.begin();
        let Connection { sockets, handle, patience, .. } = self;
        let socket = sockets.get_mut::<Socket>(*handle);
        socket.abort();
        socket.set_timeout(Some(timeout));
        // Before the socket listens or connects, which sets its timer back: an open one would ask at once.
        socket.set_keep_alive(patience.keepalive(socket));
        socket.set_nagle_enabled(true);
        socket.set_congestion_control(CongestionControl::Cubic);
        // A half-open connection acknowledges at once: the side that accepts it waits for the first acknowledgement.
        socket.set_ack_delay(None);
    }

    /// Gives the connection to an application.
    pub(crate) fn attach(&mut self, open: Box<Open>) {
        self.app = Some(App { open, chunk: None, unread: 0, told: [false; 2] });
    }

    /// Notes the effect of a segment, or of time. `before` is the state before it; `cause` is the error if the connection was closed by it.
    pub(crate) fn note(&mut self, before: State, cause: i32) {
        let state = self.state();
        if !self.was_established
            && !matches!(state, State::SynSent | State::SynReceived | State::Listen | State::Closed)
        {
            self.was_established = true;
            self.socket().set_ack_delay(Some(ACK_DELAY));
        }
        let is_end = matches!(before, State::LastAck | State::TimeWait | State::Closing);
        if state == State::Closed && before != State::Closed && !is_end {
            self.failure = Some(cause);
        }
        if state == State::TimeWait {
            self.keep_rest();
        }
    }

    /// Notes a segment of the peer's, before smoltcp sees it.
    pub(crate) fn note_heard(&mut self, head: &Head, now: Instant) {
        let socket = self.sockets.get::<Socket>(self.handle);
        if head.has(SYN) && matches!(socket.state(), State::Listen | State::SynSent) {
            self.received = Received::after(head);
        }
        if head.has(ACK) && self.sent.is_current(head.acknowledgement, socket.send_queue() as u32) {
            self.patience.note_heard(head, now);
        }
    }

    /// The next sequence number that is expected of the peer (RCV.NXT).
    pub(super) fn next_number(&self) -> u32 {
        let socket = self.sockets.get::<Socket>(self.handle);
        self.received.next(socket.recv_queue() as u32, self.has_peer_ended())
    }

    /// Returns whether the peer's FIN has come, with all bytes before it.
    pub(super) fn has_peer_ended(&self) -> bool {
        matches!(self.state(), State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
    }

    /// The bytes that smoltcp has room to receive.
    pub(super) fn free_bytes(&self) -> u32 {
        let socket = self.sockets.get::<Socket>(self.handle);
        (socket.recv_capacity() - socket.recv_queue()) as u32
    }

    /// Notes a segment of ours that leaves.
    pub(crate) fn note_sent(&mut self, head: &Head, now: Instant) {
        self.sent.note(head);
        self.patience.note_sent(self.sockets.get(self.handle), now);
    }

    /// Has smoltcp give the peer up when it owes an answer for too long.
    pub(crate) fn set_patience(&mut self) {
        if self.was_established {
            let Connection { sockets, handle, patience, .. } = self;
            let socket = sockets.get_mut::<Socket>(*handle);
            socket.set_timeout(patience.timeout(socket));
            socket.set_keep_alive(patience.keepalive(socket));
        }
    }

    /// Gives the peer up if it has not acknowledged our FIN for too long.
    pub(crate) fn give_up(&mut self, now: Instant) {
        if self.end_due().is_some_and(|due| due <= now) {
            let before = self.state();
            self.socket().abort();
            self.note(before, libc::ETIMEDOUT);
        }
    }

    /// The time when the connection is to be looked at though smoltcp has nothing to do for it.
    pub(crate) fn own_due(&self) -> Option<Instant> {
        [self.until, self.end_due()].into_iter().flatten().min()
    }

    fn end_due(&self) -> Option<Instant> {
        self.patience.end(self.sockets.get(self.handle))
    }

    /// Returns whether the peer has taken some of the bytes that are to be sent since the last call, or more are to be sent.
    pub(crate) fn has_moved(&mut self) -> bool {
        let in_ring = self.app.as_mut().map_or(0, |app| app.open.sent.len());
        let left = (in_ring, self.socket().send_queue());
        std::mem::replace(&mut self.left, left) != left
    }

    /// Returns whether the application has let go of the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.app.as_ref().is_some_and(|app| app.open.shared.stream.has(StreamState::CLOSED))
    }

    /// Fails the connection.
    pub(crate) fn fail(&mut self, error: i32) {
        self.failure = Some(error);
        self.socket().abort();
    }

    /// Keeps the received bytes here: smoltcp drops them with the connection at the end of TIME-WAIT, though nobody may have read them.
    fn keep_rest(&mut self) {
        let Connection { sockets, received, handle, rest, .. } = self;
        let socket = sockets.get_mut::<Socket>(*handle);
        let queued = socket.recv_queue();
        // At most the bytes of smoltcp's buffer.
        while let Ok(1..) = socket.recv(|bytes| {
            rest.0.extend_from_slice(bytes);
            (bytes.len(), bytes.len())
        }) {}
        received.note_taken(queued, socket.recv_queue());
    }

    /// Returns whether this sequence number was sent and is not acknowledged.
    pub(crate) fn is_under_way(&self, sequence: u32) -> bool {
        let socket = self.sockets.get::<Socket>(self.handle);
        self.sent.is_under_way(sequence, socket.send_queue() as u32)
    }

    /// Returns whether the connection is over for smoltcp.
    pub(crate) fn is_over(&self) -> bool {
        let socket = self.sockets.get::<Socket>(self.handle);
        socket.state() == State::Closed && socket.remote_endpoint().is_none()
    }

    /// Moves bytes both ways as far as there is room, and tells the application of the stream's ends. Returns whether the application has let go of
    /// the connection, and all that it sent is on its way.
    pub(crate) fn serve(&mut self, frames: &mut Frames) -> bool {
        let Connection { sockets, sent, received, handle, app, rest, was_established, failure, .. } = self;
        let Some(app) = app else { return false };
        let socket = sockets.get_mut::<Socket>(*handle);
        let shared = Arc::clone(&app.open.shared);
        let state = &shared.stream;
        // The flag is read before the ring: everything that was sent before it is in the ring.
        let is_closed = state.has(StreamState::CLOSED);
        let is_shut = is_closed || state.has(StreamState::SHUT_SEND);
        socket.set_nagle_enabled(!state.has(StreamState::NO_DELAY));
        if *was_established {
            app.send(socket, sent, frames);
            let queued = socket.recv_queue();
            app.receive(socket, rest, frames);
            received.note_taken(queued, socket.recv_queue());
        }
        if is_shut {
            state.set(StreamState::SEND_ENDED);
        }
        if state.has(StreamState::SHUT_RECEIVE) {
            state.set(StreamState::RECEIVE_ENDED);
        }
        if is_shut && app.has_sent_all() {
            // A connection that the peer has not answered yet is closed at once (RFC 9293 section 3.10.4).
            socket.close();
        }
        let is_over = socket.state() == State::Closed;
        let has_read_all = rest.1 == rest.0.len() && !socket.can_recv();
        let has_finished = *was_established && socket.recv_slice(&mut []) == Err(RecvError::Finished);
        match failure.take_if(|_| is_over && has_read_all) {
            Some(error) => state.fail(error),
            None if is_over && has_read_all => {
                state.set(StreamState::SEND_ENDED | StreamState::RECEIVE_ENDED);
            }
            None if has_finished && has_read_all => {
                state.set(StreamState::RECEIVE_ENDED);
            }
            None => {}
        }
        if is_over {
            // The error is told after the bytes, but nothing more is taken.
            state.set(StreamState::SEND_ENDED);
        }
        app.tell();
        if !is_closed {
            return false;
        }
        if !has_read_all || app.unread > 0 {
            // The application's unread bytes are lost, and the peer is told so (RFC 2525 section 2.17).
            socket.abort();
            return true;
        }
        app.has_sent_all()
    }

    /// Takes the frames back from an application that has let go of the connection.
    pub(crate) fn detach(&mut self, frames: &mut Frames) {
        if let Some(App { open, chunk, .. }) = self.app.take() {
            if let Some((packet, _)) = chunk {
                frames.pool.give(packet.frame);
            }
            open.reclaim(frames, |_| {}, |_| {});
        }
    }

    /// Frames of packet memory that the application has, and the rings between it and the worker.
    pub(crate) fn frames(&self) -> u64 {
        self.app.as_ref().map_or(0, |app| app.open.frames_to_send() + u64::from(app.unread))
    }

    /// The bytes that have come and were not given to the application, and the bytes that were sent and are not acknowledged.
    pub(crate) fn queued_bytes(&self) -> [u64; 2] {
        let socket = self.sockets.get::<Socket>(self.handle);
        [socket.recv_queue() + self.rest.0.len() - self.rest.1, socket.send_queue()].map(|bytes| bytes as u64)
    }

    /// The counters of its application.
    pub(crate) fn counts(&self) -> SocketCounts {
        self.app.as_ref().map(|app| app.open.shared.counts()).unwrap_or_default()
    }

    /// Returns whether the application has sent something that the peer has not acknowledged.
    pub(crate) fn has_sent(&mut self) -> bool {
        let is_under_way = self.socket().send_queue() > 0;
        is_under_way || self.app.as_mut().is_some_and(|app| !app.has_sent_all())
    }
}

impl App {
    /// Moves the application's sent chunks to smoltcp.
    fn send(&mut self, socket: &mut Socket<'_>, sent: &mut Sent, frames: &mut Frames) {
        let App { open, chunk, .. } = self;
        let can_send =
            |socket: &Socket<'_>| socket.may_send() && socket.send_queue() < socket.send_capacity();
        // Chunks that can go nowhere any more are taken too: their sender is told.
        while can_send(socket) || !socket.may_send() {
            let Some((packet, done)) = chunk.take().or_else(|| open.sent.pop().map(|packet| (packet, 0)))
            else {
                break;
            };
            let bytes = &packet.bytes(frames.memory())[done..];
            let taken = socket.send_slice(bytes);
            sent.given_bytes = sent.given_bytes.wrapping_add(taken.map_or(0, |taken| taken as u32));
            let done = done + taken.unwrap_or(bytes.len());
            if done < usize::from(packet.len_bytes) {
                *chunk = Some((packet, done));
            } else {
                frames.pool.give(packet.frame);
                open.owed += 1;
            }
        }
        open.pay(frames);
    }

    fn has_sent_all(&mut self) -> bool {
        self.chunk.is_none() && self.open.sent.is_empty()
    }

    /// Wakes the application if the stream has ended since it was last told.
    fn tell(&mut self) {
        let is = |flag| self.open.shared.stream.has(flag);
        let ended = [StreamState::SEND_ENDED, StreamState::RECEIVE_ENDED].map(is);
        let ringers = &self.open.ringers;
        for (ringer, (ended, told)) in
            [&ringers.sender, &ringers.receiver].into_iter().zip(ended.into_iter().zip(&mut self.told))
        {
            if ended && !std::mem::replace(told, true) {
                ringer.published();
            }
        }
    }

    /// Gives received bytes to the application, the kept ones first.
    fn receive(&mut self, socket: &mut Socket<'_>, rest: &mut (Vec<u8>, usize), frames: &mut Frames) {
        let App { open, unread, .. } = self;
        let is_shut = open.shared.stream.has(StreamState::SHUT_RECEIVE);
        loop {
            open.take_returned(frames, |_| *unread -= 1);
            // Bytes that nobody wants to read are thrown away, whatever else is unread.
            while (is_shut || *unread < open.receive_packets) && (rest.1 < rest.0.len() || socket.can_recv())
            {
                let Some(mut frame) = frames.pool.take() else { break };
                let buffer = frames.memory().bytes_mut(&mut frame);
                let kept = &rest.0[rest.1..];
                let len = match kept.len().min(buffer.len()) {
                    0 => socket.recv_slice(buffer).unwrap_or(0),
                    len => {
                        buffer[..len].copy_from_slice(&kept[..len]);
                        rest.1 += len;
                        len
                    }
                };
                if len == 0 || is_shut {
                    frames.pool.give(frame);
                    continue;
                }
                let packet = PathPacket::new(frame, 0, len as u16);
                open.received
                    .stage(packet)
                    .expect("a ring has a slot for each chunk that may be with the application");
                *unread += 1;
            }
            if open.received.publish() > 0 {
                open.ringers.receiver.published();
            }
            if *unread < open.receive_packets || rest.1 == rest.0.len() && !socket.can_recv() {
                return;
            }
            open.lane.wants_room.store(true, Ordering::SeqCst);
            // Frames that were given back before the application could see the flag are looked for once more.
            fence(Ordering::SeqCst);
            let mut is_more = false;
            open.returned.look_at(|_| is_more = true);
            if !is_more {
                return;
            }
        }
    }
}
