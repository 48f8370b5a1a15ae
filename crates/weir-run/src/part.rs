//! A worker's part of a datapath on the kernel's interfaces: what happens to these while its packets move.
//!
//! What moves them is [`weir_path::worker::Worker`]. Here is what that must not know: that an interface goes down, comes up with other
//! NAPI instances, gets another name or MTU, is gone; and what the kernel lost.
//!
//! Owner: the thread that runs it ([`crate::worker`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_path::end::End;
use weir_path::worker::Worker;
use weir_port::link::Link;
use weir_port::port::Port;
use weir_port::prepared::PreparedPort;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;

use crate::report::port_stats;
use crate::stats::PortStats;

/// Ethernet header, which comes on top of an MTU.
const ETHERNET_HEADER_BYTES: u64 = 14;

/// What one worker owns of a datapath.
pub struct Part {
    /// What moves its packets.
    pub path: Worker<Port>,
    /// What the stages are called.
    pub stage_names: Vec<String>,
    /// Of ports that are gone, or were, what was told of them last: their counters go on from there.
    pub left: BTreeMap<usize, PortStats>,
    // The sockets go first.
    _umem: Arc<Umem>,
}

impl Part {
    /// Of a worker whose ports' sockets use this memory.
    pub fn new(path: Worker<Port>, stage_names: Vec<String>, umem: Arc<Umem>) -> Part {
        Part { path, stage_names, left: BTreeMap::new(), _umem: umem }
    }

    /// Takes a port out whose interface is gone. Whoever closes it says so by [`Part::note_closed`].
    pub fn take_port(&mut self, index: usize, now_ns: u64) -> Option<Port> {
        let mut port = self.path.take_port(index, now_ns)?;
        // What the kernel lost at its end is no fault.
        port.note_down();
        let before = self.left.remove(&index).unwrap_or_default();
        // One that cannot be asked any more has told its counters before.
        let last = port_stats(&mut port).unwrap_or_default().after(&before);
        self.left.insert(index, last);
        Some(port)
    }

    /// Has the frames back that were with a port, which is closed.
    pub fn note_closed(&mut self, borrower: u16) {
        let frames = self.path.frames_mut();
        // SAFETY: its sockets are closed, of which the kernel waits for whoever writes (kernel `net/xdp/xsk.c:xsk_unbind_dev`); what it
        // transmits it has copied (`xsk_build_skb`, for a device that is not `IFF_TX_SKB_NO_LINEAR`, as a veth is not).
        let back = unsafe { frames.loans.recall(borrower) };
        frames.pool.give_all(back);
    }

    /// Takes a port in whose interface is there, or there again.
    ///
    /// # Errors
    /// If there are too few frames, or the port is not missing.
    pub fn give_port(&mut self, index: usize, prepared: PreparedPort, now_ns: u64) -> Result<(), String> {
        let frames = std::slice::from_mut(self.path.frames_mut());
        let port = prepared.finish(frames).map_err(|error| error.to_string())?;
        let (borrower, bytes) = (port.borrower(), packet_bytes_max(port.sender()));
        if let Err(port) = self.path.give_port(index, port, now_ns) {
            drop(port);
            self.note_closed(borrower);
            return Err("there is no room for its queues".into());
        }
        self.path.set_packet_bytes_max(index, bytes, now_ns);
        self.path.tune();
        Ok(())
    }

    /// Whether a port is here, and not gone.
    fn has(&self, index: usize) -> bool {
        self.path.ends().iter().any(|end| end.index == index)
    }

    /// Whether an interface of it is gone, or in another namespace.
    pub fn has_lost_an_end(&self) -> bool {
        let is_gone = |end: &End<Port>| {
            Link::by_index(end.port.link().ifindex).is_err_and(|error| error.is_no_interface())
        };
        self.path.ends().iter().any(is_gone)
    }

    /// Notes that an interface went down.
    pub fn note_down(&mut self, index: usize) {
        if !self.has(index) {
            return;
        }
        self.path.end_mut(index).0.port.note_down();
    }

    /// Notes that an interface, of this worker or another, or its other end has another name or MTU now, or that the other end is elsewhere.
    pub fn follow(&mut self, index: usize, pair: Pair, now_ns: u64) {
        let bytes = packet_bytes_max(&pair.sender);
        if self.has(index) {
            self.path.end_mut(index).0.port.follow(pair);
        }
        self.path.set_packet_bytes_max(index, bytes, now_ns);
    }

    /// Owns the queues of an interface again that came up again, with other NAPI instances than before. What was received before it
    /// went down is taken in, since its rings are not the new instances'. One that went down and up twice is told of twice, and may be
    /// owned again by the first time.
    pub fn retake(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        if !self.has(index) {
            return Ok(());
        }
        let result = self.own_again(index, now_ns);
        self.path.tune();
        let port = &mut self.path.end_mut(index).0.port;
        match result {
            // Down again already: it will come up again, or vanish.
            Err(_) if Link::by_index(port.link().ifindex).is_ok_and(|link| !link.up) => Ok(()),
            // Vanished already, of which the worker will hear.
            Err(_) if Link::by_index(port.link().ifindex).is_err_and(|error| error.is_no_interface()) => {
                Ok(())
            }
            // And up again already, of which the worker will hear.
            Err(_) if port.is_disowned().is_ok_and(|is_disowned| is_disowned) => Ok(()),
            result => result,
        }
    }

    fn own_again(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        let (End { port, .. }, _) = self.path.end_mut(index);
        if !port.is_disowned()? {
            return port.note_up();
        }
        port.let_go()?;
        self.path.collect(index, now_ns);
        let (End { port, .. }, frames) = self.path.end_mut(index);
        port.retake(frames)
    }
}

/// How long packets are that come in at a port from this other end.
pub fn packet_bytes_max(sender: &Link) -> u64 {
    u64::from(sender.mtu_bytes) + ETHERNET_HEADER_BYTES
}
