//! How long a peer that owes an answer is waited for.
//!
//! | the peer owes | counted from | given up after |
//! |---|---|---|
//! | an acknowledgement of data | its last segment, or our first since it had all | [`GIVE_UP`] |
//! | an acknowledgement of our FIN alone | its last segment, or our FIN if that is later | [`GIVE_UP`] |
//! | a sign of life, where there is a keepalive | its last segment | [`QUIET_TIMES`] keepalive times |
//!
//! Rule: a peer that owes nothing is waited for as long as it likes. With a keepalive a quiet peer owes a sign of life: it is asked after each such
//! time, so that no single lost question or answer ends a connection.
//!
//! smoltcp's timeout counts from the peer's last segment, asked for or not. It starts anew with the first byte that is sent, but not with a FIN, whose
//! time is therefore kept here.
//!
//! Owner: the connection. Source: RFC 9293 sections 3.8.3 (R2, which is for a FIN as for data) and 3.8.4 (keepalive). Limits: the keepalive is the
//! host's, where the RFC asks for a choice for each connection.

use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::{Duration, Instant};

/// The time after which a peer that does not answer is given up (RFC 9293 section 3.8.3, R2: at least 100 seconds).
pub(crate) const GIVE_UP: Duration = Duration::from_secs(120);
/// The keepalive times after which a peer is given up that says nothing: it was asked three times then, and had as long for its last answer.
const QUIET_TIMES: u32 = 4;

/// See the head of the file.
pub(crate) struct Patience {
    /// The time after which a quiet peer is asked for a sign of life.
    pub(crate) keepalive: Option<Duration>,
    /// The time when our FIN left while nothing else was to be acknowledged, or when the peer was last heard since then.
    ending_since: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(keepalive: Option<Duration>) -> Patience {
        Patience { keepalive, ending_since: None }
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

    /// Notes that a segment of the peer's has come.
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.ending_since = self.ending_since.map(|_| now);
    }

    /// The timeout for smoltcp. Nobody is asked in TIME-WAIT, which ends by itself.
    pub(crate) fn timeout(&self, socket: &Socket<'_>) -> Option<Duration> {
        if socket.send_queue() > 0 {
            return Some(GIVE_UP);
        }
        let is_asked = socket.state() != State::TimeWait && !is_ending(socket);
        self.keepalive.filter(|_| is_asked).map(|keepalive| keepalive * QUIET_TIMES)
    }

    /// The time when the peer is given up that does not acknowledge our FIN.
    pub(crate) fn end(&self, socket: &Socket<'_>) -> Option<Instant> {
        self.ending_since.filter(|_| is_ending(socket)).map(|since| since + GIVE_UP)
    }
}

/// Returns whether the peer owes an acknowledgement of our FIN, and of nothing else. What is sent first in such a state is the FIN.
fn is_ending(socket: &Socket<'_>) -> bool {
    socket.send_queue() == 0 && matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck)
}
