//! A worker's part of a datapath on the kernel's interfaces: what happens to these while its packets move.
//!
//! What moves them is [`weir_path::worker::Worker`]. Here is what that must not know: that an interface goes down, comes up with other
//! NAPI instances, gets another name or MTU, is gone; and what the kernel lost.
//!
//! Owner: the thread that runs it ([`crate::worker`]).

use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;
use weir_path::classes::Classes;
use weir_path::end::End;
use weir_path::worker::Worker;
use weir_port::link::Link;
use weir_port::port::Port;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;

/// Ethernet header, which comes on top of an MTU.
const ETHERNET_HEADER_BYTES: u64 = 14;

/// What one worker owns of a datapath.
pub struct Part {
    /// What moves its packets.
    pub path: Worker<Port>,
    /// What the stages are called.
    pub stage_names: Vec<String>,
    // The sockets go first.
    _umem: Arc<Umem>,
}

impl Part {
    /// Of a worker whose ports' sockets use this memory.
    pub fn new(path: Worker<Port>, stage_names: Vec<String>, umem: Arc<Umem>) -> Part {
        Part { path, stage_names, _umem: umem }
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
        self.path.end_mut(index).0.port.note_down();
    }

    /// Notes that an interface, of this worker or another, or its other end has another name or MTU now, or that the other end is elsewhere.
    pub fn follow(&mut self, index: usize, pair: Pair, now_ns: u64) {
        let bytes = packet_bytes_max(&pair.sender);
        if self.path.ends().iter().any(|end| end.index == index) {
            self.path.end_mut(index).0.port.follow(pair);
        }
        self.path.set_packet_bytes_max(index, bytes, now_ns);
    }

    /// Owns the queues of an interface again that came up again, with other NAPI instances than before. What was received before it
    /// went down is taken in, since its rings are not the new instances'. One that went down and up twice is told of twice, and may be
    /// owned again by the first time.
    pub fn retake(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        let result = self.own_again(index, now_ns);
        self.path.tune();
        let port = &mut self.path.end_mut(index).0.port;
        match result {
            // Down again already: it will come up again, or vanish.
            Err(_) if Link::by_index(port.link().ifindex).is_ok_and(|link| !link.up) => Ok(()),
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

    /// Changes the limits of what leaves by a port, computed from the present ones; nothing that waits is touched.
    pub fn set_limits(
        &mut self,
        port: usize,
        change: impl FnOnce(Option<TbfConfig>) -> Result<Option<TbfConfig>, String>,
        now_ns: u64,
    ) -> Result<(), String> {
        let before = self.path.egress(port).and_then(|queue| queue.shaping.limits().copied());
        self.path.set_limits(port, change(before)?, now_ns).map_err(|error| error.to_string())
    }

    /// Shapes all that leaves from here by these classes from now on; nothing that waits is lost.
    pub fn set_classes(&mut self, classes: &Arc<Classes>, now_ns: u64) {
        let ports: Vec<_> = self.path.between().egress.queues().iter().map(|queue| queue.port).collect();
        ports.into_iter().for_each(|port| self.path.set_classes(port, classes, now_ns));
    }
}

/// How long packets are that come in at a port from this other end.
pub fn packet_bytes_max(sender: &Link) -> u64 {
    u64::from(sender.mtu_bytes) + ETHERNET_HEADER_BYTES
}
