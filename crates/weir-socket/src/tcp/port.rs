//! The port of the path that all TCP segments of a host come to and leave from, and the connections behind it.
//!
//! ```text
//! put: segment --flow--> its connection, or a new one if somebody listens, or a reset
//!      which is shown to smoltcp (shown.rs) unless it may be somebody's guess (challenge.rs)
//!      ICMP error --flow that it quotes--> its connection (path_mtu.rs)
//! poll: answers, and of the connections that have something to send a segment each in turn, as many as the path asks for
//! look: news of applications; timers
//! ```
//!
//! Rule: smoltcp is asked for a segment only when the path takes one, so an exit that is held holds connections, whose send buffers then fill, and
//! loses nothing. A connection is asked after a segment, after news of its application, and when its timer is due. So a call costs the same with one
//! connection or thousands; smoltcp's own look-up, which is linear, has a set of one socket each to look at.
//!
//! Conservation: accepted = delivered + dropped + in flight. A segment has ended when it was looked at: delivered to its connection, or
//! dropped as `no-handler` (nobody listens, and a reset goes back; an ICMP error that is not believed) or `socket-full` (the listener's queue is
//! full).
//!
//! Memory: at most `connections` and `HALF_OPEN_MAX` (`half_open.rs`) more connections, of two buffers each; made when they are needed, and kept. No
//! byte of a stream is in the buffers of a half-open connection, but the allocator writes to the pages at their ends. So it costs 18 kB with buffers of
//! 64 KiB, and 9 kB with the smallest, or with those of 128 KiB and more, which are mappings of their own (glibc); 1 kB of that is smoltcp's and ours.
//! After a flood 74 MB are kept for all of them, at each worker.
//!
//! Owner: the path's worker, whose clock this is. Source: RFC 9293; RFC 1122 section 4.2. Limits: those of smoltcp: no selective
//! acknowledgements sent back, no timestamps, no SYN cookies, initial sequence numbers from a seeded generator (RFC 6528 asks for a keyed
//! hash).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;
use smoltcp::wire::HardwareAddress;
use weir_core::drops::{Count, DropReason};
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};
use weir_ring::memory::FrameMemory;

use crate::datagram::{ETHERNET_LEN, ends};
use crate::shared::{PortHold, SharedPorts};
use crate::tcp::connection::{Connection, Flow};
use crate::tcp::device::Segments;
use crate::tcp::half_open::Listeners;
use crate::tcp::path_mtu::TCP;
use crate::tcp::segment::Head;
use crate::tcp::settings::TcpSettings;
use crate::tcp::state::News;

/// Answers to segments that wait to leave; further ones are not made.
pub(crate) const ANSWERS_MAX: usize = 2 * POLL_PACKETS_MAX as usize;

/// The reason why there is no connection to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoConnection {
    /// There is a connection with this flow already.
    InUse,
    /// There are as many connections as there may be.
    Full,
}

/// Segments that have ended, by their fate.
#[derive(Debug, Default)]
struct Ended {
    delivered: Count,
    nobody: Count,
    full: Count,
}

/// See the head of the file.
pub(crate) struct TcpPort {
    pub(super) interface: Interface,
    pub(super) settings: TcpSettings,
    pub(super) news: Arc<News>,
    pub(super) connections: Vec<Connection>,
    pub(super) free: Vec<u32>,
    pub(super) flows: HashMap<Flow, u32>,
    /// The ports that are shared with the kernel, and for each local address the number of its connections with their hold of the port.
    pub(crate) ports: Option<Arc<SharedPorts>>,
    pub(super) locals: HashMap<SocketAddr, (u32, Option<PortHold>)>,
    pub(super) listeners: Listeners,
    /// The number of connections that applications have, that wait for one, or that were left by one.
    pub(super) live: usize,
    /// Connections whose applications have gone, oldest first.
    pub(super) orphans: VecDeque<u32>,
    /// Connections that have something to send, in turn.
    pub(super) ready: VecDeque<u32>,
    pub(super) timers: BTreeSet<(Instant, u32)>,
    /// Answers to segments, which go first.
    pub(super) answers: Vec<PathPacket>,
    /// Connections with segments in the burst that is being put.
    pub(super) burst: Vec<u32>,
    /// The empty set of sockets for segments that are for nobody.
    pub(super) nobody: SocketSet<'static>,
    pub(super) now: Instant,
    pub(super) poll_budget: u32,
    pub(super) in_flight: Count,
    ended: Ended,
}

impl TcpPort {
    pub(crate) fn new(
        settings: TcpSettings,
        news: Arc<News>,
        frames: &mut Frames,
        seed: u64,
        now_ns: u64,
    ) -> TcpPort {
        let now = instant(now_ns);
        TcpPort {
            interface: interface(settings.mtu_bytes, seed, frames, now),
            settings,
            news,
            connections: Vec::new(),
            free: Vec::new(),
            flows: HashMap::new(),
            ports: None,
            locals: HashMap::new(),
            listeners: Listeners::default(),
            live: 0,
            orphans: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            answers: Vec::new(),
            burst: Vec::new(),
            nobody: SocketSet::new(Vec::new()),
            now,
            poll_budget: POLL_PACKETS_MAX,
            in_flight: Count::default(),
            ended: Ended::default(),
        }
    }

    /// Returns whether applications have news that was not looked at: the last look before parking.
    pub(crate) fn has_news(&self) -> bool {
        self.news.is_there()
    }

    /// Settles the connections with news.
    pub(crate) fn take_news(&mut self, frames: &mut Frames, now_ns: u64) {
        self.now = instant(now_ns);
        let news = Arc::clone(&self.news);
        news.take(|connection| {
            if (connection as usize) < self.connections.len() {
                self.settle(connection, frames);
            }
        });
    }

    /// Settles the connections with news or a timer that is due; returns the time of the next look.
    pub(crate) fn look(&mut self, frames: &mut Frames, now_ns: u64) -> Option<u64> {
        self.take_news(frames, now_ns);
        while let Some(&(due, connection)) = self.timers.first().filter(|&&(due, _)| due <= self.now) {
            self.timers.remove(&(due, connection));
            self.connections[connection as usize].due = None;
            self.settle(connection, frames);
        }
        self.timers.first().map(|&(due, _)| due.total_micros() as u64 * 1000)
    }

    /// Gives a segment to its connection; returns the reason if it is dropped.
    fn take(&mut self, frame: &[u8], frames: &mut Frames) -> Option<DropReason> {
        if !is_segment(frame) {
            return self.hear(frame, frames);
        }
        let ip = &frame[ETHERNET_LEN..];
        let Some(head) = Head::read(ip) else { return Some(DropReason::NoHandler) };
        let (peer, local) = ends(frame);
        let flow = Flow { local, peer };
        let found = match self.flows.get(&flow) {
            Some(&connection) => Ok(connection),
            None if head.asks() => self.open(flow),
            None => Err(DropReason::NoHandler),
        };
        let TcpPort { interface, settings, connections, nobody, answers, now, .. } = self;
        let mtu_bytes = settings.mtu_bytes;
        let mut show = |interface: &mut Interface, shown: &[u8], sockets: &mut SocketSet<'static>| {
            let mut device =
                Segments { came: Some(shown), go: answers, go_max: ANSWERS_MAX, frames, mtu_bytes };
            interface.poll_ingress_single(*now, &mut device, sockets);
        };
        match found {
            // A segment that smoltcp is not shown was delivered as well: its connection has judged it.
            Ok(number) => {
                let connection = &mut connections[number as usize];
                let before = connection.state();
                connection.admit(flow, &head, ip, *now, |Connection { way, sockets, .. }, shown| {
                    show(way.interface(interface), shown, sockets);
                });
                let is_asking = before == State::SynSent;
                connection.note(before, if is_asking { libc::ECONNREFUSED } else { libc::ECONNRESET });
                self.note_in_burst(number);
                None
            }
            Err(DropReason::NoHandler) => {
                show(interface, ip, nobody);
                Some(DropReason::NoHandler)
            }
            Err(reason) => Some(reason),
        }
    }

    /// Notes that a connection is to be settled at the end of the burst.
    pub(super) fn note_in_burst(&mut self, number: u32) {
        if !std::mem::replace(&mut self.connections[number as usize].is_in_burst, true) {
            self.burst.push(number);
        }
    }
}

/// An interface for smoltcp with this MTU.
pub(super) fn interface(mtu_bytes: u16, seed: u64, frames: &mut Frames, now: Instant) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut none = Vec::new();
    let mut device = Segments { came: None, go: &mut none, go_max: 0, frames, mtu_bytes };
    let mut interface = Interface::new(config, &mut device, now);
    // The host has checked that segments are for one of its addresses.
    interface.set_any_ip(true);
    interface
}

/// Returns whether a packet is a segment; otherwise it is an ICMP error about one.
fn is_segment(frame: &[u8]) -> bool {
    let ip = &frame[ETHERNET_LEN..];
    TCP == if ip[0] >> 4 == 4 { ip[9] } else { ip[6] }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

impl std::fmt::Debug for TcpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpPort of {} connections", self.connections.len() - self.free.len())
    }
}

impl ReceiveQueues for TcpPort {
    fn queues(&self) -> usize {
        1
    }

    fn is_announced(&self, _: usize) -> bool {
        !self.ready.is_empty() || !self.answers.is_empty()
    }

    // The port itself knows its segments: nobody else announces them.
    fn expect(&mut self, _: usize) {}

    fn set_announced(&mut self, _: usize) {}

    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, _: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let before = received.len();
        let most = before + self.poll_budget as usize;
        let answers = self.answers.len().min(self.poll_budget as usize);
        received.extend(self.answers.drain(..answers));
        while received.len() < most
            && let Some(number) = self.ready.pop_front()
        {
            self.connections[number as usize].is_ready = false;
            self.send_one(number, received, most, frames);
        }
        received.len() - before
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.poll_budget = packets;
        packets
    }
}

impl TransmitRing for TcpPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        // Segments are always taken, so acknowledgements are while nothing can leave.
        POLL_PACKETS_MAX
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        let memory: Arc<FrameMemory> = Arc::clone(frames.memory());
        for packet in packets.drain(..) {
            let len_bytes = u32::from(packet.len_bytes);
            self.in_flight.add(len_bytes);
            let fate = self.take(packet.bytes(&memory), frames);
            let ended = match fate {
                None => &mut self.ended.delivered,
                Some(DropReason::SocketFull) => &mut self.ended.full,
                Some(_) => &mut self.ended.nobody,
            };
            ended.add(len_bytes);
            frames.pool.give(packet.frame);
        }
        let mut burst = std::mem::take(&mut self.burst);
        for number in burst.drain(..) {
            self.connections[number as usize].is_in_burst = false;
            self.settle(number, frames);
        }
        // The memory of the list is used again.
        self.burst = burst;
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let Ended { delivered, nobody, full } = std::mem::take(&mut self.ended);
        let fates = [
            (delivered, Completion::Delivered),
            (nobody, Completion::Dropped(DropReason::NoHandler)),
            (full, Completion::Dropped(DropReason::SocketFull)),
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
