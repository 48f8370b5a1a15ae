//! A listening port of TCP by itself, with applications that accept, read, write and close, in virtual time, for its tests and the fuzz target.
//!
//! Rule: [`TcpModel::check`] checks after each step that the connections, answers and frames of the port are within their bounds.
//!
//! Owner: a test, on one thread. Limits: segments are those that a host would let through ([`weir_core::net::sockets`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_core::drops::Count;
use weir_core::packet::count_of;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{ReceiveQueues, TransmitRing};
use weir_ring::doorbell::Doorbell;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_ring::spsc::{Consumer, ring};

use crate::datagram::ETHERNET_LEN;
use crate::half::{BufferSizes, Caller, Halves, halves};
use crate::port::FullRule;
use crate::ringers::OnDrop;
use crate::tcp::control::CHUNKS;
use crate::tcp::half_open::{Accepted, HALF_OPEN_MAX, Listening, Waiting};
use crate::tcp::port::{ANSWERS_MAX, TcpPort};
use crate::tcp::settings::TcpSettings;
use crate::tcp::state::{News, StreamState};

const FRAMES: u32 = 512;
const FRAME_BYTES: u32 = 2112;
const SECOND_NS: u64 = 1_000_000_000;
/// The time after which no connection is left whose peer does not answer: the peer is given up after two minutes, and the connection then closed.
const END_NS: u64 = 400 * SECOND_NS;

/// See the head of the file.
pub struct TcpModel {
    pub(crate) port: TcpPort,
    pub(crate) frames: Frames,
    pub(crate) accepted: Consumer<Accepted>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) now_ns: u64,
    streams: Vec<Stream>,
    news: Arc<News>,
    doorbell: Doorbell,
}

/// A connection that an application has.
struct Stream {
    halves: Halves,
    caller: Caller,
}

impl TcpModel {
    /// A port for so many connections, with buffers of so many bytes, and a listener at an address.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(address: SocketAddr, connections: u16, buffer_bytes: u32, backlog: u32) -> TcpModel {
        let settings = TcpSettings { connections, buffer_bytes, mtu_bytes: 1500, keepalive: None };
        TcpModel::with(address, settings, backlog)
    }

    /// As [`TcpModel::new`], with these settings.
    pub(crate) fn with(address: SocketAddr, settings: TcpSettings, backlog: u32) -> TcpModel {
        let memory = FrameMemory::new(FRAMES, FRAME_BYTES).expect("memory");
        let mut frames = Frames::new(Pool::new(memory));
        let news = Arc::new(News::new(settings.places()));
        let mut port = TcpPort::new(settings, Arc::clone(&news), &mut frames, 7, 0);
        let doorbell = Doorbell::with_full_fences().expect("a doorbell");
        let (to_listener, accepted) = ring(512).expect("a ring");
        let waiting = Arc::new(Waiting::default());
        port.listen(Listening {
            number: 1,
            address,
            backlog,
            accepted: to_listener,
            ringer: OnDrop { ringer: doorbell.ringer(), task: Arc::default() },
            waiting: Arc::clone(&waiting),
        });
        TcpModel { port, frames, accepted, waiting, now_ns: 0, streams: Vec::new(), news, doorbell }
    }

    /// Puts an IP packet to the port.
    ///
    /// # Panics
    /// If no frame is left for the packet, or the port does not keep its bounds.
    pub fn put(&mut self, ip: &[u8]) {
        let frame = self.frames.pool.take().expect("a frame");
        let mut packet = PathPacket::new(frame, 0, (ETHERNET_LEN + ip.len()) as u16);
        packet.bytes_mut(self.frames.memory())[ETHERNET_LEN..].copy_from_slice(ip);
        let count = count_of(std::slice::from_ref(&packet));
        self.port.put(&mut vec![packet], count, &mut self.frames);
        self.check();
    }

    /// All packets that the port sends, from their IP headers on.
    pub fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut went = Vec::new();
        while self.port.is_announced(0) {
            let mut packets = Vec::new();
            self.port.poll(0, &mut self.frames, &mut packets);
            for packet in packets {
                went.push(packet.bytes(self.frames.memory())[ETHERNET_LEN..].to_vec());
                self.frames.pool.give(packet.frame);
            }
        }
        went
    }

    /// Lets time pass until then, timer by timer; returns the packets that were sent meanwhile.
    pub fn pass_until(&mut self, end_ns: u64) -> Vec<Vec<u8>> {
        let mut went = Vec::new();
        loop {
            self.port.look(&mut self.frames, self.now_ns);
            went.extend(self.poll());
            let next_ns = self.port.look(&mut self.frames, self.now_ns);
            match next_ns.filter(|&next_ns| next_ns <= end_ns) {
                Some(next_ns) => self.now_ns = next_ns.max(self.now_ns + 1000),
                None => break self.now_ns = end_ns,
            }
        }
        // The port knows the time when the next segment comes.
        self.port.look(&mut self.frames, self.now_ns);
        went.extend(self.poll());
        self.check();
        went
    }

    /// Lets so much time pass as [`TcpModel::pass_until`] does.
    pub fn pass(&mut self, more_ns: u64) -> Vec<Vec<u8>> {
        self.pass_until(self.now_ns + more_ns)
    }

    /// Lets an application take a connection that waits; returns whether one did.
    ///
    /// # Panics
    /// As [`TcpModel::put`].
    pub fn accept(&mut self) -> bool {
        let Some(Accepted { connection, .. }) = self.accepted.pop() else { return false };
        self.waiting.connections.fetch_sub(1, Ordering::Relaxed);
        let news = Some((Arc::clone(&self.news), connection));
        let caller = Caller { worker: self.doorbell.ringer(), news };
        let sizes = BufferSizes { send_frames: CHUNKS, receive_packets: CHUNKS, full: FullRule::Hold };
        let ringer = self.doorbell.ringer();
        let (halves, opens) = halves(sizes, std::slice::from_ref(&caller), 0, Some(&ringer)).expect("rings");
        for open in opens {
            self.port.attach(connection, Box::new(open), &mut self.frames);
        }
        self.streams.push(Stream { halves, caller });
        self.check();
        true
    }

    /// The number of connections that applications have.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Lets an application read all received bytes; returns their number.
    pub fn read(&mut self, stream: usize) -> usize {
        let Halves { receive, returns, .. } = &mut self.streams[stream].halves;
        let mut bytes = 0;
        receive.take(usize::MAX, |lane, packet| {
            bytes += usize::from(packet.len_bytes);
            returns.read(lane, packet.frame, packet.len_bytes);
        });
        returns.publish();
        self.hear();
        bytes
    }

    /// Lets an application write so many bytes in each frame that it has.
    pub fn write(&mut self, stream: usize, len: u16) {
        let Halves { send, shared, .. } = &mut self.streams[stream].halves;
        while len > 0
            && !shared.stream.has(StreamState::SEND_ENDED)
            && let Some(frame) = send.take_frame()
        {
            send.stage(PathPacket::new(frame, 0, len.min(FRAME_BYTES as u16)));
        }
        send.publish();
        self.hear();
    }

    /// The error of a connection that an application has, if it failed; it is told once.
    pub fn error(&self, stream: usize) -> Option<i32> {
        self.streams[stream].halves.shared.stream.take_error()
    }

    /// Lets an application say that it sends nothing more; it goes on reading.
    pub fn shut(&mut self, stream: usize) {
        let Stream { halves, caller } = &self.streams[stream];
        halves.shared.stream.set(StreamState::SHUT_SEND);
        caller.call();
        self.hear();
    }

    /// Lets an application let go of a connection.
    pub fn close(&mut self, stream: usize) {
        let Stream { halves, caller } = self.streams.swap_remove(stream);
        let shared = Arc::clone(&halves.shared);
        drop(halves);
        shared.stream.set(StreamState::CLOSED);
        caller.call();
        self.hear();
    }

    fn hear(&mut self) {
        self.port.take_news(&mut self.frames, self.now_ns);
        self.check();
    }

    /// Checks that the port keeps its bounds.
    ///
    /// # Panics
    /// If it does not.
    pub fn check(&self) {
        let TcpPort { connections, free, live, ready, timers, answers, settings, .. } = &self.port;
        let most = usize::from(settings.connections);
        assert!(connections.len() <= settings.places(), "{} connections", connections.len());
        assert!(*live <= most + HALF_OPEN_MAX && live + free.len() <= connections.len());
        assert!(self.streams.len() <= most, "{} of {most} connections are open", self.streams.len());
        assert!(ready.len() <= connections.len() && timers.len() <= connections.len());
        assert!(answers.len() <= ANSWERS_MAX, "{} answers wait", answers.len());
        let of_streams = most * 2 * CHUNKS as usize;
        let away = (FRAMES - self.frames.pool.available()) as usize;
        assert!(away <= of_streams + answers.len(), "{away} frames are away");
    }

    /// Ends the listener and all connections of applications, lets time pass, and checks that nothing is left.
    ///
    /// # Panics
    /// If a connection or a frame is left.
    pub fn end(&mut self) {
        self.port.stop_listening(1, &mut self.frames);
        while self.accepted.pop().is_some() {}
        while !self.streams.is_empty() {
            self.close(0);
        }
        self.pass(END_NS);
        assert_eq!(self.places_in_use(), 0, "connections are left");
        self.require_clean();
    }

    pub(crate) fn places_in_use(&self) -> usize {
        self.port.connections.len() - self.port.free.len()
    }

    /// Checks the books and the frames: all are back.
    pub(crate) fn require_clean(&mut self) {
        let mut ended = Count::default();
        self.port.complete(&mut self.frames, |count, _| ended.merge(count));
        assert_eq!(self.port.in_flight(), Count::default());
        assert_eq!(self.frames.pool.available(), FRAMES, "a frame is lost");
    }
}

impl std::fmt::Debug for TcpModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpModel of {:?}", self.port)
    }
}
