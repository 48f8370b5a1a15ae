//! Connections that peers ask for: the listeners of a host, and the connections that nobody has accepted yet.
//!
//! ```text
//! SYN --room in the listener's queue?--> half-open --ACK--> waiting --accept--> open
//! ```
//!
//! Rule: there are [`HALF_OPEN_MAX`] half-open connections at most, and a further one takes the place of the oldest. So a peer that answers within
//! the time that as many SYNs take to come gets its connection in any flood, and the flood costs a bounded memory. A listener whose queue is full
//! takes no SYN, which its sender then sends again.
//!
//! Owner: the path's worker; `waiting` is shared with the application, which counts down. Source: RFC 4987 sections 3.2 (a backlog that is
//! bounded) and 3.4 (the oldest is recycled).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weir_ring::spsc::Producer;

use crate::ringers::OnDrop;
use crate::tcp::connection::Flow;

/// The most half-open connections of a host, at one worker: several times the packets that the queues on the way hold, since an acknowledgement waits
/// there behind the SYNs of a flood.
pub(crate) const HALF_OPEN_MAX: usize = 4096;

/// A connection that waits to be accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) connection: u32,
    pub(crate) flow: Flow,
}

/// The counters that a listener and its application share.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Connections that wait to be accepted, at all workers.
    pub(crate) connections: AtomicU32,
    /// SYNs that found no room, and connections that found no room when they were confirmed.
    pub(crate) refused: AtomicU64,
    /// Half-open connections that had to make room.
    pub(crate) replaced: AtomicU64,
}

/// A listener, at one worker.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) number: u32,
    pub(crate) address: SocketAddr,
    pub(crate) backlog: u32,
    pub(crate) accepted: Producer<Accepted>,
    pub(crate) ringer: OnDrop,
    pub(crate) waiting: Arc<Waiting>,
}

/// The listeners of a host, and the half-open connections, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listening>,
    half_open: VecDeque<u32>,
}

impl Listening {
    /// Returns whether as many connections wait to be accepted as may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.connections.load(Ordering::Relaxed) >= self.backlog
    }

    /// Makes a connection wait for the application; returns whether there was room.
    pub(crate) fn offer(&mut self, connection: u32, flow: Flow) -> bool {
        self.waiting.connections.fetch_add(1, Ordering::Relaxed);
        if self.accepted.push(Accepted { connection, flow }).is_err() {
            self.waiting.connections.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.ringer.published();
        true
    }
}

impl Listeners {
    pub(crate) fn add(&mut self, listening: Listening) {
        self.listeners.push(listening);
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.listeners.retain(|listening| listening.number != number);
    }

    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Listening> {
        self.listeners.iter_mut().find(|listening| listening.number == number)
    }

    /// The listeners.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Listening> {
        self.listeners.iter()
    }

    /// The listener at an address: a listener at that very address beats one at any address.
    pub(crate) fn find(&mut self, local: SocketAddr) -> Option<&mut Listening> {
        let fits = |listening: &Listening| {
            let own = listening.address.ip();
            let is_any = own.is_unspecified() && own.is_ipv4() == local.is_ipv4();
            listening.address.port() == local.port() && (own == local.ip() || is_any)
        };
        let is_named = |listening: &Listening| !listening.address.ip().is_unspecified();
        let at = self.listeners.iter().position(|listening| fits(listening) && is_named(listening));
        let at = at.or_else(|| self.listeners.iter().position(fits))?;
        self.listeners.get_mut(at)
    }

    /// The oldest half-open connection, if it has to make room for another.
    pub(crate) fn oldest(&mut self) -> Option<u32> {
        if self.half_open.len() < HALF_OPEN_MAX { None } else { self.half_open.pop_front() }
    }

    /// Notes that a connection is half open.
    pub(crate) fn begin(&mut self, connection: u32) {
        self.half_open.push_back(connection);
    }

    /// Notes that a connection is half open no more.
    pub(crate) fn end(&mut self, connection: u32) {
        if let Some(at) = self.half_open.iter().position(|&other| other == connection) {
            self.half_open.remove(at);
        }
    }
}
