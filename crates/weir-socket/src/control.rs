//! The part of a stack that changes while it runs: the ports that are given out.
//!
//! Rule: a port of UDP and a port of TCP with the same number are two ports. A socket that asks for no particular port gets one that nobody has (RFC
//! 6335 section 6). The bindings here are those of all workers; each worker has its own bindings besides.
//!
//! Owner: one thread at a time, by the stack's lock.

use std::io;
use std::net::IpAddr;

use weir_core::net::sockets::{BindError, Binding, Bindings};
use weir_port::bpf::bound::Transport;
use weir_run::seed::random_seed;

use crate::builder::invalid;
use crate::in_use::{none_free, refused};
use crate::socket::os;

/// Ports that are given to sockets that ask for none (RFC 6335 section 6).
pub(crate) const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;
/// The bindings and counters that one thread at a time may change.
pub(crate) struct Control {
    /// The bindings of each host's UDP sockets, over all workers. Sockets are numbered from here.
    pub(crate) bindings: Vec<Bindings>,
    /// The bindings of each host's TCP listeners, which are numbered as they come.
    listeners: Vec<Bindings>,
    next_listener: u16,
    next_ephemeral: u16,
}

impl Control {
    /// The control of so many hosts with so many buckets each, with nothing bound.
    pub(crate) fn new(hosts: usize, buckets: usize) -> Control {
        let bindings = |buckets| (0..hosts).map(|_| Bindings::new(buckets)).collect();
        Control {
            bindings: bindings(buckets),
            listeners: bindings(1),
            next_listener: 0,
            next_ephemeral: *EPHEMERAL.start() + (random_seed() % 1024) as u16,
        }
    }

    /// A port that no socket has.
    pub(crate) fn free_port(
        &mut self,
        host: usize,
        address: IpAddr,
        bucket: Option<usize>,
    ) -> io::Result<u16> {
        let Control { bindings, next_ephemeral, .. } = self;
        ephemeral(next_ephemeral, &bindings[host], address, bucket)
    }

    /// A port where nobody listens.
    pub(crate) fn free_tcp_port(&mut self, host: usize, address: IpAddr) -> io::Result<u16> {
        let Control { listeners, next_ephemeral, .. } = self;
        ephemeral(next_ephemeral, &listeners[host], address, None)
    }

    /// Binds a listener; returns its number.
    pub(crate) fn listen(&mut self, host: usize, binding: Binding) -> io::Result<u16> {
        // Numbers come round again after 65,536 listeners, some of which may still be there.
        let numbers = (0..=u16::MAX).map(|more| self.next_listener.wrapping_add(more));
        let is_free = |number: &u16| self.listeners.iter().all(|bindings| !bindings.is_bound(*number));
        let number = numbers.into_iter().find(is_free).ok_or_else(|| os(libc::EADDRINUSE))?;
        self.listeners[host].bind(binding, number).map_err(|error| refused(Transport::Tcp, error))?;
        self.next_listener = number.wrapping_add(1);
        Ok(number)
    }

    /// Unbinds a listener.
    pub(crate) fn stop_listening(&mut self, host: usize, number: u16) {
        self.listeners[host].unbind(number);
    }
}

/// The next port that can be bound.
fn ephemeral(next: &mut u16, bindings: &Bindings, address: IpAddr, bucket: Option<usize>) -> io::Result<u16> {
    for _ in EPHEMERAL {
        let port = *next;
        *next = if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
        match bindings.check(Binding { address, port, bucket }) {
            Ok(()) => return Ok(port),
            Err(BindError::InUse(_)) => {}
            Err(error @ BindError::NoBucket { .. }) => return Err(invalid(error)),
        }
    }
    Err(none_free(address))
}
