//! A TCP sender with endless data: NewReno's window, loss found by later acknowledgements, and TCP small queues.
//!
//! ```text
//! may send      in_flight < cwnd, in_flight < RECEIVE_WINDOW, and charged to the socket <= tsq_bytes
//! tsq_bytes   = 1 ms of the pacing rate (2 x or 1.2 x cwnd / srtt), at least 2 segments, at most 1 MiB
//! ack           slow start: cwnd + 1; congestion avoidance: cwnd + 1 for each cwnd acknowledged
//! loss          a packet with 3 later-sent ones acknowledged: sent again; ssthresh = cwnd = cwnd / 2, once a window
//! local drop    the qdisc refused it: as a loss, and no packet is sent until the next acknowledgement or timeout
//! timeout       everything in flight is lost, cwnd = 1
//! ```
//!
//! Losses are found in the order of sending, as RACK does: `sequence` numbers transmissions, `segment` the data.
//!
//! Owner: the sending machine, which calls from its softirq; CPU time is not charged.
//! Source: RFC 5681, RFC 6582 (NewReno), RFC 8985 (order of sending); `tcp_small_queue_check`,
//! `tcp_update_pacing_rate`, and `tcp_transmit_skb`'s `tcp_enter_cwr` on a refused enqueue.
//! Limits: no delayed or lost acknowledgements, no segmentation offload, no CUBIC, no tail loss probe; every round
//! trip is the link's plus the queue's. The application always has data, so the RFC's sleep in `sk_stream_wait_memory`
//! never matters.

use std::collections::VecDeque;

/// The segments the receiver is ready for: 6 MB, `tcp_rmem`'s largest.
const RECEIVE_WINDOW: u64 = 6_291_456 / 1448;
const CWND_INITIAL: u64 = 10;
const RTO_NS_MIN: u64 = 200_000_000;
const SEGMENT_BYTES: u64 = 1448;
const TRUESIZE_BYTES: u64 = 2304;
const TSQ_BYTES_MAX: u64 = 1 << 20;
/// The later acknowledgements that prove a loss.
const REORDERING: u64 = 3;

/// A connection's sending half.
#[derive(Clone, Debug)]
pub struct Tcp {
    cwnd: u64,
    ssthresh: u64,
    /// Acknowledgements towards the next increment in congestion avoidance.
    acked_in_window: u64,
    /// The transmissions in flight, in the order of sending.
    in_flight: VecDeque<InFlight>,
    /// Segments to be sent again, in the order they were lost.
    lost: VecDeque<u64>,
    next_segment: u64,
    /// Losses of transmissions before this one belong to a window that was already halved.
    recovery_sequence: u64,
    held_back: bool,
    srtt_ns: u64,
    deadline_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    sequence: u64,
    segment: u64,
    sent_ns: u64,
}

impl Tcp {
    /// A new connection whose first estimate of the round trip is `rtt_ns`.
    pub fn new(rtt_ns: u64) -> Tcp {
        Tcp {
            cwnd: CWND_INITIAL,
            ssthresh: u64::MAX,
            acked_in_window: 0,
            in_flight: VecDeque::new(),
            lost: VecDeque::new(),
            next_segment: 0,
            recovery_sequence: 0,
            held_back: false,
            srtt_ns: rtt_ns.max(1),
            deadline_ns: u64::MAX,
        }
    }

    /// The segment to send now, if the windows and small queues allow one.
    pub fn next(&self, wmem_alloc_bytes: u32) -> Option<u64> {
        let in_flight = self.in_flight.len() as u64;
        if self.held_back
            || in_flight >= self.cwnd.min(RECEIVE_WINDOW)
            || u64::from(wmem_alloc_bytes) > self.tsq_bytes()
        {
            return None;
        }
        Some(self.lost.front().copied().unwrap_or(self.next_segment))
    }

    /// Notes that [`Self::next`]'s segment went out as transmission `sequence`.
    pub fn sent(&mut self, sequence: u64, now_ns: u64) {
        let segment = self.lost.pop_front().unwrap_or_else(|| {
            self.next_segment += 1;
            self.next_segment - 1
        });
        self.in_flight.push_back(InFlight { sequence, segment, sent_ns: now_ns });
        if self.in_flight.len() == 1 {
            self.deadline_ns = now_ns + self.rto_ns();
        }
    }

    /// Notes that the qdisc refused transmission `sequence`.
    pub fn refused(&mut self, sequence: u64, now_ns: u64) {
        let position = self.in_flight.iter().rposition(|packet| packet.sequence == sequence);
        if let Some(packet) = position.and_then(|position| self.in_flight.remove(position)) {
            self.lost.push_front(packet.segment);
        }
        self.halve(sequence);
        self.held_back = true;
        self.deadline_ns = now_ns + self.rto_ns();
    }

    /// Notes that transmission `sequence` was acknowledged.
    pub fn acked(&mut self, sequence: u64, now_ns: u64) {
        let Ok(position) = self.in_flight.binary_search_by_key(&sequence, |packet| packet.sequence) else {
            return; // Given up at a timeout, and on its way again.
        };
        let Some(packet) = self.in_flight.remove(position) else { return };
        self.srtt_ns = (7 * self.srtt_ns + (now_ns - packet.sent_ns)) / 8;
        self.held_back = false;
        while self.in_flight.front().is_some_and(|first| first.sequence + REORDERING <= sequence) {
            let Some(first) = self.in_flight.pop_front() else { break };
            self.lost.push_back(first.segment);
            self.halve(first.sequence);
        }
        if self.cwnd < self.ssthresh {
            self.cwnd += 1;
        } else {
            self.acked_in_window += 1;
            if self.acked_in_window >= self.cwnd {
                (self.cwnd, self.acked_in_window) = (self.cwnd + 1, 0);
            }
        }
        self.cwnd = self.cwnd.min(RECEIVE_WINDOW);
        self.deadline_ns = now_ns + self.rto_ns();
    }

    /// The time at which the retransmission timer expires.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Notes that the retransmission timer expired.
    pub fn timed_out(&mut self, now_ns: u64) {
        self.ssthresh = (self.cwnd / 2).max(2);
        self.cwnd = 1;
        self.lost.extend(self.in_flight.drain(..).map(|packet| packet.segment));
        self.held_back = false;
        self.deadline_ns = now_ns + self.rto_ns();
    }

    /// Segments of its stream that were acknowledged.
    pub fn segments_acked(&self) -> u64 {
        self.next_segment - (self.in_flight.len() + self.lost.len()) as u64
    }

    fn halve(&mut self, sequence: u64) {
        if sequence < self.recovery_sequence {
            return;
        }
        self.ssthresh = (self.cwnd / 2).max(2);
        self.cwnd = self.ssthresh;
        self.acked_in_window = 0;
        self.recovery_sequence = self.in_flight.back().map_or(sequence, |last| last.sequence) + 1;
    }

    fn rto_ns(&self) -> u64 {
        (2 * self.srtt_ns).max(RTO_NS_MIN)
    }

    fn tsq_bytes(&self) -> u64 {
        let percent = if self.cwnd < self.ssthresh / 2 { 200 } else { 120 };
        let pacing_bytes_per_s = self.cwnd * SEGMENT_BYTES * 1_000_000_000 / self.srtt_ns * percent / 100;
        (pacing_bytes_per_s / 1000).clamp(2 * TRUESIZE_BYTES, TSQ_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends all segments it may, numbering transmissions from `sequence` on; returns how many went out.
    fn send_all(tcp: &mut Tcp, sequence: &mut u64, now_ns: u64) -> u64 {
        let first = *sequence;
        while tcp.next(0).is_some() {
            tcp.sent(*sequence, now_ns);
            *sequence += 1;
        }
        *sequence - first
    }

    #[test]
    fn slow_start_doubles_and_one_loss_halves_once() {
        let mut tcp = Tcp::new(1_000_000);
        let mut sequence = 0;
        assert_eq!(send_all(&mut tcp, &mut sequence, 0), 10);
        (0..10).for_each(|acked| tcp.acked(acked, 1_000_000));
        assert_eq!(send_all(&mut tcp, &mut sequence, 1_000_000), 20);
        // Transmission 10 is lost, 11 to 29 arrive: found after the third, cwnd 20 + 2 halved, then grows slowly.
        (11..30).for_each(|acked| tcp.acked(acked, 2_000_000));
        assert_eq!(tcp.cwnd, 12);
        assert_eq!(tcp.next(0), Some(10), "the lost segment goes first");
        tcp.sent(sequence, 2_000_000);
        assert_eq!(tcp.segments_acked(), 29);
        tcp.acked(sequence, 3_000_000);
        assert_eq!((tcp.segments_acked(), tcp.in_flight.len()), (30, 0));
    }

    #[test]
    fn a_refused_segment_is_held_back_until_something_is_heard() {
        let mut tcp = Tcp::new(1_000_000);
        tcp.sent(0, 0);
        tcp.sent(1, 0);
        tcp.refused(1, 0);
        assert_eq!((tcp.next(0), tcp.cwnd), (None, 5));
        tcp.acked(0, 1_000_000);
        assert_eq!(tcp.next(0), Some(1));
        tcp.sent(2, 1_000_000);
        tcp.refused(2, 1_000_000);
        assert_eq!(tcp.next(0), None);
        assert_eq!(tcp.deadline_ns(), 201_000_000);
        tcp.timed_out(201_000_000);
        assert_eq!((tcp.next(0), tcp.cwnd), (Some(1), 1));
    }

    #[test]
    fn small_queues_stop_it_before_the_window_does() {
        let mut tcp = Tcp::new(100_000_000);
        assert_eq!(tcp.next(2 * 2304), Some(0));
        assert_eq!(tcp.next(2 * 2304 + 1), None);
        tcp.srtt_ns = 100_000;
        assert_eq!(tcp.next(2 * 2304 + 1), Some(0), "10 segments each 0.1 ms are 100 a millisecond");
    }
}
