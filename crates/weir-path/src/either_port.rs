//! A port of the kernel or one in memory, for a path that joins both.
//!
//! Owner: one worker.

use std::io;

use weir_core::drops::Count;

use crate::carrier::Carrier;
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::{Completion, ReceiveQueues, Transmit, TransmitRing};

/// A port of the kernel, or one in memory.
pub enum EitherPort<K, M> {
    /// A port of the kernel, or a model of one.
    Kernel(Box<K>),
    /// A port in memory.
    Memory(Box<M>),
}

impl<K, M> EitherPort<K, M> {
    /// The port of the kernel, if it is one.
    pub fn kernel(&self) -> Option<&K> {
        match self {
            EitherPort::Kernel(port) => Some(port),
            EitherPort::Memory(_) => None,
        }
    }

    /// The port of the kernel, to be changed.
    pub fn kernel_mut(&mut self) -> Option<&mut K> {
        match self {
            EitherPort::Kernel(port) => Some(port),
            EitherPort::Memory(_) => None,
        }
    }
}

/// Does the same with either port.
macro_rules! either {
    ($port:expr, $inner:ident => $what:expr) => {
        match $port {
            EitherPort::Kernel($inner) => $what,
            EitherPort::Memory($inner) => $what,
        }
    };
}

impl<K: ReceiveQueues, M: ReceiveQueues> ReceiveQueues for EitherPort<K, M> {
    fn is_inner(&self) -> bool {
        either!(self, port => port.is_inner())
    }

    fn queues(&self) -> usize {
        either!(self, port => port.queues())
    }

    fn is_announced(&self, queue: usize) -> bool {
        either!(self, port => port.is_announced(queue))
    }

    fn expect(&mut self, queue: usize) {
        either!(self, port => port.expect(queue));
    }

    fn set_announced(&mut self, queue: usize) {
        either!(self, port => port.set_announced(queue));
    }

    fn set_backlog(&mut self, queue: usize, has_backlog: bool) {
        either!(self, port => port.set_backlog(queue, has_backlog));
    }

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        either!(self, port => port.poll(queue, frames, received))
    }

    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        either!(self, port => port.collect(queue, frames, received))
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        either!(self, port => port.set_poll_budget(packets))
    }
}

impl<K: TransmitRing, M: TransmitRing> TransmitRing for EitherPort<K, M> {
    fn packet_bytes_max(&self) -> u32 {
        either!(self, port => port.packet_bytes_max())
    }

    fn room(&self) -> u32 {
        either!(self, port => port.room())
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, count: Count, frames: &mut Frames) {
        either!(self, port => port.put(packets, count, frames));
    }

    fn flush(&mut self, carrier: &mut Carrier, now_ns: u64) -> io::Result<Transmit> {
        either!(self, port => port.flush(carrier, now_ns))
    }

    fn has_carrier(&self) -> bool {
        either!(self, port => port.has_carrier())
    }

    fn complete(&mut self, frames: &mut Frames, each: impl FnMut(Count, Completion)) {
        either!(self, port => port.complete(frames, each));
    }

    fn in_flight(&self) -> Count {
        either!(self, port => port.in_flight())
    }
}
