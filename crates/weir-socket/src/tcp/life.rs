//! The life of the connections behind a port: their beginning, service and end.
//!
//! ```text
//!                 SYN --> half-open --ACK--> waiting --accept--+
//! connect -----------------------------------------------------+--> open --closed--> orphan --both sides have ended--> free
//! ```
//!
//! Rule: `connections` connections at most are waiting, open or orphans. A new one takes the place of the oldest orphan whose peer has all that was
//! sent. A connection is settled after each event, and asked for segments only if smoltcp then has one, at once or when a timer is due.
//!
//! Owner: the port ([`super::port`]). Source: RFC 9293 section 3.10.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smoltcp::socket::tcp::State;
use smoltcp::time::Duration;
use weir_core::drops::DropReason;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::ReceiveQueues;
use weir_port::bpf::bound::Transport;

use crate::datagram::ETHERNET_LEN;
use crate::port::Open;
use crate::tcp::connection::{Connection, Flow, OPENING, Role};
use crate::tcp::device::Segments;
use crate::tcp::half_open::Listening;
use crate::tcp::patience::GIVE_UP;
use crate::tcp::port::{NoConnection, TcpPort};
use crate::tcp::segment::Head;

/// The time after which a connection is given up whose application has gone, while the peer takes none of the bytes that are left, and does not end
/// it either.
const ORPHAN: Duration = Duration::from_secs(60);
/// The pause before a connection is asked again that said that it has something to send and had not.
const AGAIN: Duration = Duration::from_millis(1);

impl TcpPort {
    /// Adds a listener.
    pub(crate) fn listen(&mut self, listening: Listening) {
        self.listeners.add(listening);
    }

    /// Removes a listener, and resets its connections that were not accepted.
    pub(crate) fn stop_listening(&mut self, number: u32, frames: &mut Frames) {
        self.listeners.remove(number);
        for connection in 0..self.connections.len() as u32 {
            match self.connections[connection as usize].role {
                Role::HalfOpen(of) if of == number => {
                    self.listeners.end(connection);
                    self.live += 1;
                    self.leave(connection, frames);
                }
                Role::Waiting(of) if of == number => self.leave(connection, frames),
                _ => {}
            }
        }
    }

    /// Asks for a connection; returns its number.
    ///
    /// # Errors
    /// If there is a connection with this flow already, or no place for one.
    pub(crate) fn connect(&mut self, flow: Flow) -> Result<u32, NoConnection> {
        if self.flows.contains_key(&flow) {
            return Err(NoConnection::InUse);
        }
        if !self.has_place() {
            return Err(NoConnection::Full);
        }
        let number = self.take_place(flow, Role::Open, GIVE_UP);
        self.live += 1;
        let connection = &mut self.connections[number as usize];
        let context = self.interface.context();
        let local = (flow.local.ip(), flow.local.port());
        // Both addresses are named, of one family, and ports are not 0. Otherwise the connection stays closed, and the application finds that.
        if connection.socket().connect(context, (flow.peer.ip(), flow.peer.port()), local).is_err() {
            connection.fail(libc::EINVAL);
        }
        Ok(number)
    }

    /// Gives a connection to an application.
    pub(crate) fn attach(&mut self, connection: u32, open: Box<Open>, frames: &mut Frames) {
        let it = &mut self.connections[connection as usize];
        it.role = Role::Open;
        it.attach(open);
        self.settle(connection, frames);
    }

    /// Ends a connection that an application wanted and could not have.
    pub(crate) fn leave(&mut self, connection: u32, frames: &mut Frames) {
        self.connections[connection as usize].socket().abort();
        self.orphan(connection);
        self.settle(connection, frames);
    }

    /// Returns whether something is under way that an application has sent, or segments are to be polled: they may be the end of a connection.
    pub(crate) fn has_sent(&mut self) -> bool {
        self.is_announced(0)
            || self
                .connections
                .iter_mut()
                .any(|connection| connection.role != Role::Free && connection.has_sent())
    }

    /// Returns whether there is room for one more connection. An orphan makes room if its peer has all that was sent, the end included.
    fn has_place(&mut self) -> bool {
        while self.live >= usize::from(self.settings.connections) {
            let has_all = |&&orphan: &&u32| {
                matches!(self.connections[orphan as usize].state(), State::FinWait2 | State::TimeWait)
            };
            let Some(&oldest) = self.orphans.iter().find(has_all) else { return false };
            self.forget(oldest);
        }
        true
    }

    /// Takes a place for a connection; returns its number.
    fn take_place(&mut self, flow: Flow, role: Role, timeout: Duration) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::new(&self.settings));
            self.connections.len() as u32 - 1
        });
        let connection = &mut self.connections[number as usize];
        connection.begin(role, timeout);
        connection.flow = Some(flow);
        self.begin_flow(flow, number);
        self.schedule_soon(number);
        number
    }

    /// Notes that a connection has this flow from now on.
    fn begin_flow(&mut self, flow: Flow, number: u32) {
        self.flows.insert(flow, number);
        if let Some(ports) = &self.ports {
            let hold = || (0, ports.hold_on(Transport::Tcp, flow.local));
            self.locals.entry(flow.local).or_insert_with(hold).0 += 1;
        }
    }

    /// Notes that no connection has this flow any more.
    fn end_flow(&mut self, flow: Flow) {
        self.flows.remove(&flow);
        if let Entry::Occupied(mut local) = self.locals.entry(flow.local) {
            local.get_mut().0 -= 1;
            if local.get().0 == 0 {
                local.remove();
            }
        }
    }

    fn orphan(&mut self, connection: u32) {
        self.connections[connection as usize].role = Role::Orphan;
        self.orphans.push_back(connection);
    }

    /// Frees the place of a connection.
    fn forget(&mut self, number: u32) {
        let connection = &mut self.connections[number as usize];
        match std::mem::replace(&mut connection.role, Role::Free) {
            Role::Free => return,
            Role::HalfOpen(_) => self.listeners.end(number),
            Role::Waiting(_) | Role::Open => self.live -= 1,
            Role::Orphan => {
                self.live -= 1;
                self.orphans.retain(|&other| other != number);
            }
        }
        let (flow, due) = (connection.flow.take(), connection.due.take());
        if let Some(flow) = flow {
            self.end_flow(flow);
        }
        if let Some(due) = due {
            self.timers.remove(&(due, number));
        }
        self.free.push(number);
    }

    /// Opens a connection for a SYN; returns the fate of the SYN if there can be none.
    pub(super) fn open(&mut self, flow: Flow) -> Result<u32, DropReason> {
        let Some(listening) = self.listeners.find(flow.local) else { return Err(DropReason::NoHandler) };
        let (number, is_full, waiting) =
            (listening.number, listening.is_full(), Arc::clone(&listening.waiting));
        if is_full || !self.has_place() {
            waiting.refused.fetch_add(1, Ordering::Relaxed);
            return Err(DropReason::SocketFull);
        }
        if let Some(oldest) = self.listeners.oldest() {
            if let Role::HalfOpen(of) = self.connections[oldest as usize].role
                && let Some(listening) = self.listeners.get(of)
            {
                listening.waiting.replaced.fetch_add(1, Ordering::Relaxed);
            }
            self.forget(oldest);
        }
        let connection = self.take_place(flow, Role::HalfOpen(number), OPENING);
        self.listeners.begin(connection);
        let endpoint = (flow.local.ip(), flow.local.port());
        // A closed socket at a port that is not 0 may listen.
        let _ = self.connections[connection as usize].socket().listen(endpoint);
        Ok(connection)
    }

    /// Does the work that an event of a connection calls for.
    pub(super) fn settle(&mut self, number: u32, frames: &mut Frames) {
        let connection = &mut self.connections[number as usize];
        connection.give_up(self.now);
        match connection.role {
            Role::Free => return,
            Role::HalfOpen(listener) => match connection.state() {
                State::SynReceived => {}
                State::Listen => return self.forget(number),
                State::Closed if connection.is_over() => return self.forget(number),
                // The reset of the connection is still to be sent.
                State::Closed => {}
                _ => self.establish(number, listener),
            },
            Role::Waiting(_) => {}
            Role::Open => {
                if connection.serve(frames) {
                    connection.detach(frames);
                    self.orphan(number);
                }
            }
            Role::Orphan => {}
        }
        let now = self.now;
        let connection = &mut self.connections[number as usize];
        let is_orphan = connection.role == Role::Orphan;
        if is_orphan || connection.is_closed() {
            if connection.has_moved() || connection.until.is_none() {
                connection.until = Some(now + ORPHAN);
            }
            if is_orphan && connection.socket().can_recv()
                || connection.until.is_some_and(|until| until <= now)
            {
                // Nobody reads the received bytes (RFC 9293 section 3.10.4), or the peer does not end the connection.
                connection.socket().abort();
                if !is_orphan {
                    // The ring goes with the connection: it was shut, and its chunks can go nowhere.
                    connection.detach(frames);
                    self.orphan(number);
                }
            }
        }
        let connection = &mut self.connections[number as usize];
        if connection.is_over() {
            let (flow, is_orphan) = (connection.flow.take(), connection.role == Role::Orphan);
            if let Some(flow) = flow {
                self.end_flow(flow);
            }
            if is_orphan {
                return self.forget(number);
            }
        }
        self.schedule(number);
    }

    /// Makes a connection wait for acceptance, after both sides have agreed on it.
    fn establish(&mut self, number: u32, listener: u32) {
        self.listeners.end(number);
        self.connections[number as usize].role = Role::Waiting(listener);
        self.live += 1;
        // Several connections may have been half open when there was room for one.
        let is_too_many = self.live > usize::from(self.settings.connections);
        let flow = self.connections[number as usize].flow;
        let listening = self.listeners.get(listener);
        let is_offered = listening.zip(flow).is_some_and(|(listening, flow)| {
            let is_offered = !is_too_many && listening.offer(number, flow);
            listening.waiting.refused.fetch_add((!is_offered).into(), Ordering::Relaxed);
            is_offered
        });
        if !is_offered {
            self.connections[number as usize].socket().abort();
            self.orphan(number);
        }
    }

    /// Schedules the next look at a connection, now or when it is due.
    fn schedule(&mut self, number: u32) {
        let TcpPort { interface, connections, timers, now, .. } = self;
        let connection = &mut connections[number as usize];
        connection.set_patience();
        let own_due = connection.own_due();
        let due = connection.way.interface(interface).poll_at(*now, &connection.sockets);
        if due.is_some_and(|due| due <= *now) {
            return self.schedule_soon(number);
        }
        // A timer that is early does no harm, and is corrected then: acknowledgements put most timers off.
        let Some(due) = [due, own_due].into_iter().flatten().min() else { return };
        if connection.due.is_none_or(|old| due < old) {
            if let Some(old) = connection.due.replace(due) {
                timers.remove(&(old, number));
            }
            timers.insert((due, number));
        }
    }

    fn schedule_soon(&mut self, number: u32) {
        if !std::mem::replace(&mut self.connections[number as usize].is_ready, true) {
            self.ready.push_back(number);
        }
    }

    /// Lets a connection send one segment, if it has one.
    pub(super) fn send_one(
        &mut self,
        number: u32,
        go: &mut Vec<PathPacket>,
        go_max: usize,
        frames: &mut Frames,
    ) {
        let TcpPort { interface, settings, connections, timers, now, .. } = self;
        let connection = &mut connections[number as usize];
        if connection.role == Role::Free {
            return;
        }
        let (before, count) = (connection.state(), go.len());
        let mut device = Segments { came: None, go, go_max, frames, mtu_bytes: settings.mtu_bytes };
        connection.way.interface(interface).poll_egress(*now, &mut device, &mut connection.sockets);
        let is_idle = go.len() == count;
        let memory = frames.memory();
        let heads = go[count..].iter().filter_map(|packet| Head::read(&packet.bytes(memory)[ETHERNET_LEN..]));
        heads.for_each(|head| connection.note_sent(&head, *now));
        connection.note(before, libc::ETIMEDOUT);
        let state = connection.state();
        if is_idle
            && state == before
            && connection
                .way
                .interface(interface)
                .poll_at(*now, &connection.sockets)
                .is_some_and(|due| due <= *now)
        {
            let due = *now + AGAIN;
            if let Some(old) = connection.due.replace(due) {
                timers.remove(&(old, number));
            }
            timers.insert((due, number));
        } else if state == before && state != State::Closed {
            self.schedule(number);
        } else {
            self.settle(number, frames);
        }
    }
}
