//! The bytes that closed TCP sockets of a namespace have still to send.
//!
//! Rule: a socket that its program has closed goes on in the kernel until its end of stream is acknowledged. Until then it is in
//! one of three states: FIN_WAIT1, CLOSING, LAST_ACK. In any other it is open still, or has nothing left to send.
//!
//! Owner: the kernel; a look is a copy. Limits: a socket whose sending half alone was shut down looks the same. Bytes that are not
//! acknowledged count, also those that are on their way or have arrived.
//!
//! Source: proc_pid_net(5), `tcp`; kernel `include/net/tcp_states.h`, `net/ipv4/tcp_ipv4.c:get_tcp4_sock`.

use crate::error::Result;
use crate::netns::NetNs;
use crate::socket_table::{self, SocketProtocol, SocketRow};

/// The states FIN_WAIT1, LAST_ACK and CLOSING, by the kernel's numbers.
const CLOSED_AND_SENDING: [u8; 3] = [4, 9, 11];

/// The sockets and bytes that are not acknowledged yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Closed sockets that have something to send.
    pub sockets: u64,
    /// Their bytes; an end of stream counts as one.
    pub bytes: u64,
}

/// The bytes that the closed TCP sockets of `netns` have still to send.
pub fn by_closed_sockets(netns: &NetNs) -> Result<Unsent> {
    let mut unsent = Unsent::default();
    socket_table::read(netns, &[SocketProtocol::Tcp], |_, table| add(&mut unsent, table))?;
    Ok(unsent)
}

/// Adds the sockets of one table.
pub fn add(unsent: &mut Unsent, table: &str) {
    let sending = |row: &SocketRow| row.to_send_bytes > 0 && CLOSED_AND_SENDING.contains(&row.state);
    for row in socket_table::rows(table).filter(sending) {
        unsent.sockets += 1;
        unsent.bytes = unsent.bytes.saturating_add(row.to_send_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_closed_sockets_with_something_to_send_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
                     0: 0202570A:A5B2 0102570A:15E1 04 00000100:00000000 01:00000014 00000000\n\
                     1: 0202570A:A5B4 0102570A:15E1 01 00000200:00000000 01:00000014 00000000\n\
                     2: 0202570A:A5B6 0102570A:15E1 09 00000001:00000000 01:00000014 00000000\n\
                     3: 0202570A:A5B8 0102570A:15E1 05 00000000:00000000 00:00000000 00000000\n\
                     4: 0202570A:A5BA 0102570A:15E1 0B 00000002:00000000 01:00000014 00000000\n\
                     5: broken\n";
        let mut unsent = Unsent::default();
        add(&mut unsent, table);
        assert_eq!(unsent, Unsent { sockets: 3, bytes: 0x100 + 1 + 2 });
    }
}
