//! A sending process: floods as iperf 2 does, or sends one datagram now and then, blocking or polling.
//!
//! ```text
//! flood:  the k-th datagram is due at start + k x payload / rate; a late sender sends at once, until it has caught up,
//!         but never makes up for more than DEBT_NS_MAX
//! quiet:  one datagram every `interval_ns`, spread by 10 %, whether the last was accepted or not
//! ```
//!
//! `Wait::Block` sleeps in `send`, which lets it in below a full buffer. `Wait::Poll` asks `select` or `epoll_wait` before each send, as
//! iperf 3 and event loops do, and these answer below half a buffer. Both are woken below half. A wake is *empty* if the first send after
//! it brings nothing into the path: refused by the qdisc, or put to sleep again.
//!
//! Owner: the sending machine.
//! Source: iperf 2 `Client::RunUDP` (delay target, accumulated debt), `sock_wait_for_wmem`, `datagram_poll`.
//! Limits: iperf's reporter thread and its start-up handshake are not modelled.

use crate::{packet::SimPacket, prng::Prng, socket::Socket};

/// The longest time behind its rate that iperf makes up for.
const DEBT_NS_MAX: u64 = 1_000_000_000;

/// The program of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `iperf -u -b`: one payload after the other, at `interval_ns` if it can.
    Flood {
        /// The payload of a datagram.
        payload_bytes: u32,
        /// The time of a datagram at the wished rate.
        interval_ns: u64,
    },
    /// A datagram is sent now and then.
    Quiet {
        /// The payload of a datagram.
        payload_bytes: u32,
        /// The mean time between two.
        interval_ns: u64,
    },
    /// A TCP connection with endless data; see [`crate::tcp`].
    Tcp {
        /// The time from a segment's arrival to that of its acknowledgement.
        rtt_ns: u64,
    },
}

/// The way in which a process waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A blocking socket.
    Block,
    /// A socket on which only datagrams are sent for which poll says there is room.
    Poll,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process runs, or waits for its CPU.
    Runnable,
    /// The process sleeps until its socket has room.
    AwaitsRoom,
    /// The process sleeps until its next datagram is due.
    AwaitsTime,
}

/// A sending process.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Its program.
    pub program: Program,
    /// The way in which it waits for room.
    pub wait: Wait,
    /// Its present state.
    pub state: State,
    /// True if it was woken for room and has not sent since.
    pub woken: bool,
    /// The packets handed to the network; also the next one's sequence number.
    pub sent: u64,
    due_ns: u64,
}

impl Sender {
    /// A process whose first datagram is due at `start_ns`.
    pub fn new(program: Program, wait: Wait, start_ns: u64) -> Sender {
        Sender { program, wait, state: State::Runnable, woken: false, sent: 0, due_ns: start_ns }
    }

    /// The datagram it sends now, or its segment number `segment`.
    pub fn packet(&self, index: usize, segment: u64, now_ns: u64) -> SimPacket {
        match self.program {
            Program::Flood { payload_bytes, .. } | Program::Quiet { payload_bytes, .. } => {
                SimPacket::datagram(index as u32, self.sent, payload_bytes, now_ns)
            }
            Program::Tcp { .. } => SimPacket::segment(index as u32, self.sent, segment, now_ns),
        }
    }

    /// Returns whether it can send on `socket` now.
    pub fn may_send(&self, socket: &Socket) -> bool {
        match self.wait {
            Wait::Block => socket.may_send(),
            Wait::Poll => socket.is_writeable(),
        }
    }

    /// The time at which its next datagram is due.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Notes that `send` took a datagram, and sets the next one's time.
    pub fn advance(&mut self, now_ns: u64, prng: &mut Prng) {
        self.sent += 1;
        self.due_ns = match self.program {
            Program::Flood { interval_ns, .. } => {
                (self.due_ns + interval_ns).max(now_ns.saturating_sub(DEBT_NS_MAX))
            }
            Program::Quiet { interval_ns, .. } => now_ns + prng.spread(interval_ns, 10),
            Program::Tcp { .. } => now_ns,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_up_for_lost_time_but_not_for_ever() {
        let mut prng = Prng::new(1);
        let program = Program::Flood { payload_bytes: 1470, interval_ns: 11_760 };
        let mut sender = Sender::new(program, Wait::Block, 1_000);
        sender.advance(500_000, &mut prng);
        assert_eq!(sender.due_ns(), 12_760, "late, so due at once");
        sender.advance(10_000_000_000, &mut prng);
        assert_eq!(sender.due_ns(), 9_000_000_000);
        let mut quiet =
            Sender::new(Program::Quiet { payload_bytes: 56, interval_ns: 1_000_000 }, Wait::Block, 0);
        quiet.advance(50_000_000, &mut prng);
        assert!((50_900_000..=51_100_000).contains(&quiet.due_ns()), "no debt");
    }
}
