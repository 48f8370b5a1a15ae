//! The report of the listeners and connections behind a port.
//!
//! Rule: a report has numbers alone, so that the worker is held up only for as long as it takes to copy them; the thread that asked writes them out
//! (`crate::responder`). Half-open connections are counted by listener and not listed: a flood of SYNs is no list.
//!
//! Owner: the path's worker; reports are copies. Limits: smoltcp counts no segments or bytes of a connection, so no report has them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use smoltcp::socket::tcp::State;
use weir_run::stats::socket::ListenerStats;

use crate::options::SocketCounts;
use crate::tcp::connection::{Flow, Role};
use crate::tcp::port::TcpPort;

/// The report of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionReport {
    pub(crate) flow: Flow,
    /// The address of the listener at which the connection came.
    pub(crate) listener: Option<SocketAddr>,
    pub(crate) state: State,
    pub(crate) receive_queue_bytes: u64,
    pub(crate) send_queue_bytes: u64,
    /// The counters of the application; all 0 while no application has the connection.
    pub(crate) counts: SocketCounts,
}

impl TcpPort {
    /// The reports of listeners and connections, and the frames of packet memory that connections have.
    pub(crate) fn report(&mut self) -> (Vec<ListenerStats>, Vec<ConnectionReport>, u64) {
        let mut frames = self.answers.len() as u64;
        let mut half_open = HashMap::<u32, u64>::new();
        let mut connections = Vec::new();
        for connection in &self.connections {
            frames += connection.frames();
            match (connection.role, connection.flow) {
                (Role::HalfOpen(listener), _) => *half_open.entry(listener).or_default() += 1,
                (Role::Free, _) | (_, None) => {}
                (_, Some(flow)) => {
                    let [receive_queue_bytes, send_queue_bytes] = connection.queued_bytes();
                    connections.push(ConnectionReport {
                        flow,
                        listener: self.listeners.find(flow.local).map(|listening| listening.address),
                        state: connection.state(),
                        receive_queue_bytes,
                        send_queue_bytes,
                        counts: connection.counts(),
                    });
                }
            }
        }
        let listeners = self.listeners.each().map(|listening| {
            let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
            ListenerStats {
                protocol: "tcp".into(),
                local: listening.address.to_string(),
                waiting: listening.waiting.connections.load(Ordering::Relaxed).into(),
                backlog: listening.backlog.into(),
                half_open: half_open.get(&listening.number).copied().unwrap_or_default(),
                refused: of(&listening.waiting.refused),
                replaced: of(&listening.waiting.replaced),
            }
        });
        (listeners.collect(), connections, frames)
    }
}

/// The name of a state as `ss` writes it, spelt as in RFC 9293.
pub(crate) fn name(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::Listen => "listen",
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
    }
}
