//! How long a peer that owes an answer is waited for.
//!
//! | the peer owes | counted from | given up after |
//! |---|---|---|
//! | an acknowledgement of data | its last segment, or our first since it had all | [`GIVE_UP`]; [`GIVE_UP_CLOSED`] while its window is closed |
//! | an acknowledgement of our FIN alone | its last segment, or our FIN if that is later | the same |
//! | a sign of life, where there is a keepalive | its last segment | [`QUIET_TIMES`] times the keepalive |
//!
//! Rule: a peer that owes nothing is waited for as long as it likes. With a keepalive a quiet peer owes a sign of life: it is asked after each such
//! time. A closed window is asked too, by probes that smoltcp sends more and more slowly, up to one a minute. Either way the peer is asked three times
//! at least, so that no single lost question or answer ends a connection.
//!
//! smoltcp probes no window that closes over bytes which are under way, so such a peer is asked as if it were quiet ([`ASK_CLOSED`]).
//!
//! smoltcp's timeout counts from the peer's last segment, asked for or not. It starts anew with the first byte that is sent, but not with a FIN, whose
//! time is therefore kept here.
//!
//! Owner: the connection. Source: RFC 9293 sections 3.8.3 (R2, which is for a FIN as for data), 3.8.4 (keepalive) and 3.8.6.1 (a window may stay
//! closed for as long as probes are answered). Limits: the keepalive is the host's, where the RFC asks for a choice for each connection.

use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::{Duration, Instant};

use crate::tcp::segment::Head;

/// The time after which a peer that does not answer is given up (RFC 9293 section 3.8.3, R2: at least 100 seconds).
pub(crate) const GIVE_UP: Duration = Duration::from_secs(120);
/// The longest time between two probes of a closed window: smoltcp's longest retransmission timeout (RFC 6298 section 2.5).
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The time after which a closed window is asked that smoltcp does not probe.
const ASK_CLOSED: Duration = Duration::from_secs(10);
/// The times between questions after which a peer is given up that says nothing: it was asked three times then, and had as long for its last answer.
const QUIET_TIMES: u32 = 4;
/// The time after which a peer is given up that does not answer the probes of its closed window: four minutes.
const GIVE_UP_CLOSED: Duration = Duration::from_secs(QUIET_TIMES as u64 * PROBE_INTERVAL_MAX.secs());

/// See the head of the file.
pub(crate) struct Patience {
    /// The time after which a quiet peer is asked for a sign of life.
    keepalive: Option<Duration>,
    /// The time when our FIN left while nothing else was to be acknowledged, or when the peer was last heard since then.
    ending_since: Option<Instant>,
    /// True if the peer's last segment said that it takes no bytes.
    is_window_closed: bool,
}

impl Patience {
    pub(crate) fn new(keepalive: Option<Duration>) -> Patience {
        Patience { keepalive, ending_since: None, is_window_closed: false }
    }

    /// Forgets the connection that was.
    pub(crate) fn begin(&mut self) {
        *self = Patience::new(self.keepalive);
    }

    /// Notes that a segment of ours has left.
    pub(crate) fn note_sent(&mut self, socket: &Socket<'_>, now: Instant) {
        if is_ending(socket) {
            self.ending_since.get_or_insert(now);
        }
    }

    /// Notes a segment of the peer's that has come.
    pub(crate) fn note_heard(&mut self, head: &Head, now: Instant) {
        self.is_window_closed = head.window == 0;
        self.ending_since = self.ending_since.map(|_| now);
    }

    /// The time for smoltcp after which a peer is asked that says nothing. With the answer of a peer whose window is closed smoltcp begins to probe it.
    pub(crate) fn keepalive(&self, socket: &Socket<'_>) -> Option<Duration> {
        let is_to_be_asked = self.is_window_closed && socket.send_queue() > 0;
        if is_to_be_asked { Some(ASK_CLOSED) } else { self.keepalive }
    }

    /// The timeout for smoltcp. Nobody is asked in TIME-WAIT, which ends by itself.
    pub(crate) fn timeout(&self, socket: &Socket<'_>) -> Option<Duration> {
        if socket.send_queue() > 0 {
            return Some(self.give_up());
        }
        let is_asked = socket.state() != State::TimeWait && !is_ending(socket);
        self.keepalive.filter(|_| is_asked).map(|keepalive| keepalive * QUIET_TIMES)
    }

    /// The time when the peer is given up that does not acknowledge our FIN.
    pub(crate) fn end(&self, socket: &Socket<'_>) -> Option<Instant> {
        self.ending_since.filter(|_| is_ending(socket)).map(|since| since + self.give_up())
    }

    fn give_up(&self) -> Duration {
        if self.is_window_closed { GIVE_UP_CLOSED } else { GIVE_UP }
    }
}

/// Returns whether the peer owes an acknowledgement of our FIN, and of nothing else. What is sent first in such a state is the FIN.
fn is_ending(socket: &Socket<'_>) -> bool {
    socket.send_queue() == 0 && matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck)
}
