//! The machine's TCP side: connections act when acknowledgements, room or their timer come, in no process's time.
//!
//! Room that comes back makes a connection try again, once for each step however many buffers it frees. Its timer is one event that looks
//! at the deadline when it fires and is scheduled again for the later one.

use crate::{
    scenario::Scenario,
    sender::{Program, Sender},
    tcp::Tcp,
};

use super::{Event, Machine};

/// A TCP sender with its bookkeeping of events.
pub(super) struct Connection {
    tcp: Tcp,
    push_scheduled: bool,
}

impl Connection {
    /// The connection of `sender`, if it has one.
    pub(super) fn of(sender: &Sender, scenario: &Scenario) -> Option<Connection> {
        match sender.program {
            Program::Tcp { rtt_ns } => {
                Some(Connection { tcp: Tcp::new(rtt_ns + scenario.link_delay_ns), push_scheduled: false })
            }
            Program::Flood { .. } | Program::Quiet { .. } => None,
        }
    }
}

impl Machine<'_> {
    /// Notes that room came back for a connection.
    pub(super) fn schedule_push(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index]
            && !std::mem::replace(&mut connection.push_scheduled, true)
        {
            self.events.after(0, Event::Push(index));
        }
    }

    /// Notes that transmission `sequence` of a connection was acknowledged.
    pub(super) fn acknowledge(&mut self, index: usize, sequence: u64) {
        if let Some(connection) = &mut self.connections[index] {
            connection.tcp.acked(sequence, self.events.now_ns());
            self.push(index);
        }
    }

    /// Notes that transmission `sequence` was refused by the qdisc, if it was a connection's.
    pub(super) fn refuse(&mut self, index: usize, sequence: u64) {
        if let Some(connection) = &mut self.connections[index] {
            connection.tcp.refused(sequence, self.events.now_ns());
        }
    }

    /// Has a connection send the segments it may.
    pub(super) fn push(&mut self, index: usize) {
        let now_ns = self.events.now_ns();
        if let Some(connection) = &mut self.connections[index] {
            connection.push_scheduled = false;
        }
        while now_ns < self.scenario.time_ns
            && let Some(connection) = &mut self.connections[index]
            && let Some(segment) = connection.tcp.next(self.sockets[index].wmem_alloc_bytes())
            && self.sockets[index].has_room()
        {
            let sender = &mut self.senders[index];
            let packet = sender.packet(index, segment, now_ns);
            let timer_runs = connection.tcp.deadline_ns() != u64::MAX;
            connection.tcp.sent(packet.sequence, now_ns);
            if !timer_runs {
                self.events.at(connection.tcp.deadline_ns(), Event::Timeout(index));
            }
            sender.advance(now_ns, &mut self.prng);
            self.hand_over(index, packet);
            self.carry_out();
        }
    }

    /// Handles the retransmission timer, which runs while the connection lives and is moved on by acknowledgements.
    pub(super) fn timeout(&mut self, index: usize) {
        let now_ns = self.events.now_ns();
        let Some(connection) = &mut self.connections[index] else { return };
        if now_ns >= self.scenario.time_ns {
            return;
        }
        if connection.tcp.deadline_ns() <= now_ns {
            connection.tcp.timed_out(now_ns);
        }
        self.events.at(connection.tcp.deadline_ns(), Event::Timeout(index));
        self.push(index);
    }
}
