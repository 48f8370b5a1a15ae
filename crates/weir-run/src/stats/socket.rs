//! The counters of the sockets of a stack in the process of an application, as `weir stat` shows them: of a UDP socket the place that its
//! receive buffer is, and how often and how long it was throttled; of TCP its listeners and connections.
//!
//! ```text
//! socket:     accepted = delivered (read) + dropped (socket-full, ...) + held;     sent beside it
//! throttled:  somebody wants to send and the send buffer is full
//! ```
//!
//! Rule: as in [`crate::stats`], a field that is missing is 0 or nothing. Owner: none, these are copies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::PlaceStats;

/// The process of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStats {
    /// Its number.
    pub pid: u32,
    /// Its program.
    pub program: String,
}

/// The throttling of the senders of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThrottleStats {
    /// True if the send buffer is full, and somebody wants to send.
    pub is_throttled: bool,
    /// Times that somebody wanted to send and the send buffer was full.
    pub throttled: u64,
    /// The time that the send buffer was full when somebody wanted to send, in nanoseconds.
    pub throttled_ns: u64,
    /// Times that a waiting sender was woken.
    pub wakes: u64,
    /// The wakes of those that found nothing to send in.
    pub empty_wakes: u64,
}

impl ThrottleStats {
    /// Adds the counters of another; it is throttled if any of them is.
    pub fn merge(&mut self, other: &ThrottleStats) {
        self.is_throttled |= other.is_throttled;
        self.throttled += other.throttled;
        self.throttled_ns += other.throttled_ns;
        self.wakes += other.wakes;
        self.empty_wakes += other.empty_wakes;
    }
}

/// A UDP socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketStats {
    /// The datagrams that came for it since it was bound: accepted, delivered when they were read. While it is throttled it waits for the
    /// interface that it is to leave by.
    #[serde(flatten)]
    pub place: PlaceStats,
    /// `udp`.
    pub protocol: String,
    /// Its address and port.
    pub local: String,
    /// The address that it is connected to.
    pub peer: Option<String>,
    /// The RSS bucket whose flows alone it receives.
    pub bucket: Option<usize>,
    /// Datagrams that have left the send buffer.
    pub sent: u64,
    /// Datagrams that came from another address than it is connected to, and were thrown away.
    pub from_others: u64,
    /// The throttling of its senders.
    #[serde(flatten)]
    pub throttle: ThrottleStats,
}

/// A TCP listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStats {
    /// `tcp`.
    pub protocol: String,
    /// Its address and port.
    pub local: String,
    /// Connections that wait to be accepted.
    pub waiting: u64,
    /// The number of connections that may wait.
    pub backlog: u64,
    /// Connections that somebody has asked for and not confirmed.
    pub half_open: u64,
    /// SYNs that found as many connections as there may be, and connections that did when they were confirmed.
    pub refused: u64,
    /// Half-open connections that made room for others.
    pub replaced: u64,
}

/// A TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStats {
    /// `tcp`.
    pub protocol: String,
    /// Its address and port here.
    pub local: String,
    /// The address and port of the other side.
    pub peer: String,
    /// The address of the listener by which it came; none if it was made from here, or nobody listens there any more.
    pub listener: Option<String>,
    /// The state of RFC 9293, in the letters of `ss`: `established`, `syn-sent`.
    pub state: String,
    /// The RSS bucket of its flow.
    pub bucket: usize,
    /// Bytes that were received and not taken by the application (`Recv-Q` of `ss`).
    pub receive_queue_bytes: u64,
    /// Bytes that were sent and not acknowledged (`Send-Q`).
    pub send_queue_bytes: u64,
    /// The throttling of its writers.
    #[serde(flatten)]
    pub throttle: ThrottleStats,
}

/// The sum of several connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionSum {
    /// The number of connections.
    pub connections: u64,
    /// The number of connections that are throttled now.
    pub throttled_now: u64,
    /// Their throttling, added up.
    pub throttle: ThrottleStats,
}

impl ConnectionSum {
    /// The sums of connections, by the listener they came by.
    pub fn by_listener(connections: &[ConnectionStats]) -> BTreeMap<Option<&str>, ConnectionSum> {
        let mut sums = BTreeMap::<_, ConnectionSum>::new();
        for connection in connections {
            let sum = sums.entry(connection.listener.as_deref()).or_default();
            sum.connections += 1;
            sum.throttled_now += u64::from(connection.throttle.is_throttled);
            sum.throttle.merge(&connection.throttle);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_of_a_socket_is_nothing_and_more_is_passed_over() {
        let told = json!({"name": "udp 192.0.2.2:7", "accepted": 3, "delivered": 2, "held": 1, "is_throttled": true, "throttled_ns": 5,
            "local": "192.0.2.2:7", "colour": "blue"});
        let socket: SocketStats = serde_json::from_value(told).unwrap();
        assert_eq!((socket.place.books.held.packets, socket.throttle.throttled_ns), (1, 5));
        assert!(socket.throttle.is_throttled && socket.peer.is_none());
        let json = serde_json::to_value(&socket).unwrap();
        assert_eq!(
            (&json["is_throttled"], &json["bucket"], &json["held"]),
            (&json!(true), &json!(null), &json!(1))
        );
        assert_eq!(serde_json::from_value::<SocketStats>(json).unwrap(), socket);
    }

    #[test]
    fn connections_are_summed_by_listener() {
        let connection = |listener: Option<&str>, throttled_ns| ConnectionStats {
            listener: listener.map(String::from),
            throttle: ThrottleStats {
                is_throttled: throttled_ns > 1,
                throttled_ns,
                ..ThrottleStats::default()
            },
            ..ConnectionStats::default()
        };
        let all = [connection(Some("a"), 1), connection(None, 7), connection(Some("a"), 2)];
        let sums = ConnectionSum::by_listener(&all);
        let told = |of: Option<&str>| {
            let sum = &sums[&of];
            (sum.connections, sum.throttled_now, sum.throttle.throttled_ns)
        };
        assert_eq!((told(Some("a")), told(None)), ((2, 1, 3), (1, 1, 7)));
    }
}
