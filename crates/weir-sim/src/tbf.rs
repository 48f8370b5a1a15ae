//! The kernel's token bucket filter, with the byte FIFO inside that drops packets which do not fit.
//!
//! Time is the unit of its tokens, as in the kernel: a packet of `len` bytes costs `len x 8 / rate` seconds.
//!
//! ```text
//! at dequeue:  toks = min(now - t_c, buffer) + tokens, at most buffer;  toks -= time(len)
//!              toks >= 0: the packet leaves, tokens = toks, t_c = now
//!              else: the watchdog is set to now - toks, and tokens and t_c stay
//! at enqueue:  refused if backlog + len > limit
//! ```
//!
//! So over any window bytes out x time per byte <= buffer + window.
//!
//! Owner: the qdisc's root lock; here, the caller that sends or runs the timer.
//! Source: `tbf_enqueue`, `tbf_dequeue` in net/sched/sch_tbf.c, `bfifo_enqueue` in sch_fifo.c, Linux 5.18.
//! Limits: no peak rate, no segmentation of super-packets; the kernel's tick of 64 ns in `buffer` is not modelled.

use std::collections::VecDeque;

use weir_core::{
    drops::Count,
    packet::Packet,
    rate::{NS_PER_S, Rate},
};

use crate::packet::SimPacket;

/// The parameters of a TBF.
#[derive(Clone, Copy, Debug)]
pub struct TbfParameters {
    /// `rate`.
    pub rate: Rate,
    /// `burst`.
    pub burst_bytes: u64,
    /// `limit`.
    pub limit_bytes: u64,
}

/// A TBF and its queue.
#[derive(Debug)]
pub struct Tbf {
    parameters: TbfParameters,
    buffer_ns: i64,
    tokens_ns: i64,
    checkpoint_ns: u64,
    queue: VecDeque<SimPacket>,
    backlog_bytes: u64,
}

/// The result of a dequeue.
#[derive(Debug)]
pub enum Dequeue {
    /// A packet that may leave.
    Packet(SimPacket),
    /// There are no tokens until then.
    OutOfTokens {
        /// The time at which the watchdog shall fire.
        until_ns: u64,
    },
    /// No packet is queued.
    Empty,
}

impl Tbf {
    /// An idle TBF with a full bucket.
    pub fn new(parameters: TbfParameters) -> Tbf {
        // The buffer is rounded down, so that the burst is never exceeded.
        let burst_units = u128::from(parameters.burst_bytes) * 8 * u128::from(NS_PER_S);
        let buffer_ns = (burst_units / u128::from(parameters.rate.bits_per_s())) as i64;
        Tbf {
            parameters,
            buffer_ns,
            tokens_ns: buffer_ns,
            checkpoint_ns: 0,
            queue: VecDeque::new(),
            backlog_bytes: 0,
        }
    }

    /// Queues a packet, or gives it back to be dropped.
    pub fn enqueue(&mut self, packet: SimPacket) -> Result<(), SimPacket> {
        let len_bytes = u64::from(packet.len_bytes());
        if self.backlog_bytes + len_bytes > self.parameters.limit_bytes {
            return Err(packet);
        }
        self.backlog_bytes += len_bytes;
        self.queue.push_back(packet);
        Ok(())
    }

    /// Takes the head if the tokens admit it.
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue {
        let Some(head) = self.queue.front() else { return Dequeue::Empty };
        let len_bytes = u64::from(head.len_bytes());
        let earned_ns = ((now_ns - self.checkpoint_ns) as i64).min(self.buffer_ns);
        let left_ns =
            (earned_ns + self.tokens_ns).min(self.buffer_ns) - self.parameters.rate.ns_for(len_bytes) as i64;
        if left_ns < 0 {
            return Dequeue::OutOfTokens { until_ns: now_ns + left_ns.unsigned_abs() };
        }
        self.tokens_ns = left_ns;
        self.checkpoint_ns = now_ns;
        self.backlog_bytes -= len_bytes;
        self.queue.pop_front().map_or(Dequeue::Empty, Dequeue::Packet)
    }

    /// The packets inside, by its counters.
    pub fn held(&self) -> Count {
        Count { packets: self.queue.len() as u64, bytes: self.backlog_bytes }
    }

    /// The packets inside, oldest first.
    pub fn queued(&self) -> impl Iterator<Item = &SimPacket> {
        self.queue.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed_tbf(limit_bytes: u64) -> Tbf {
        Tbf::new(TbfParameters {
            rate: Rate::from_bits_per_s(200_000_000).unwrap(),
            burst_bytes: 20_480,
            limit_bytes,
        })
    }

    fn datagram(sequence: u64) -> SimPacket {
        SimPacket::datagram(0, sequence, 1470, 0)
    }

    #[test]
    fn the_limit_counts_packet_lengths_and_refuses_what_does_not_fit() {
        let mut tbf = seed_tbf(204_800);
        let taken = (0..200).take_while(|&sequence| tbf.enqueue(datagram(sequence)).is_ok()).count();
        assert_eq!(taken, 135, "204,800 / 1,512");
    }

    #[test]
    fn the_bucket_leaves_at_once_and_then_one_packet_each_60480_ns() {
        let mut tbf = seed_tbf(204_800);
        for sequence in 0..20 {
            tbf.enqueue(datagram(sequence)).unwrap();
        }
        let mut now_ns = 1_000_000;
        let mut left_at_ns = Vec::new();
        loop {
            match tbf.dequeue(now_ns) {
                Dequeue::Packet(_) => left_at_ns.push(now_ns),
                Dequeue::OutOfTokens { until_ns } => {
                    assert!(until_ns > now_ns);
                    now_ns = until_ns;
                }
                Dequeue::Empty => break,
            }
        }
        assert!(left_at_ns[..13].iter().all(|&at_ns| at_ns == 1_000_000), "20,480 / 1,512 = 13.5");
        // 13 packets cost 786,240 of 819,200 ns; the 14th waits for the rest of its 60,480.
        assert_eq!(left_at_ns[13], 1_000_000 + 14 * 60_480 - 819_200);
        assert!(left_at_ns[13..].windows(2).all(|pair| pair[1] - pair[0] == 60_480));
        assert_eq!(left_at_ns.len(), 20);
    }
}
