//! The end of this lab's packets: it works on each, and notes how long it took to get there, and the counts of all.
//!
//! The work reads the packet and computes for a given time ([`Cost`]); it stands in for IPsec's. Without a cost there is none, and sealed
//! packets are looked at: an association's numbers (RFC 4303) must come in their order, each once.
//!
//! Owner: the worker that has the port; its tally is added to the total when that has gone.

use std::sync::{Arc, Mutex, PoisonError};

use weir_core::packet::Meta;
use weir_path::traffic::port::Recipient;
use weir_run::clock::now_ns;

use crate::cost::Cost;
use crate::epair::histogram::Histogram;

/// The offset of the low half of a sequence number in ESP, in an IPv4 packet without options.
const NUMBER_AT: usize = 14 + 20 + 4;

/// The work on a packet.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// The work costs so much.
    Costs(Cost),
    /// The packet's number is looked at.
    Numbers,
}

/// The tally of the packets.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// The time from the poll that brought a packet to the end of the work on it.
    pub latency: Histogram,
    /// The number that is due among sealed packets; 0 before the first.
    next: u32,
    /// Sealed packets with a number that is not due, lower or higher.
    pub misnumbered: u64,
}

impl Tally {
    fn number(&mut self, bytes: &[u8]) {
        let number = bytes.get(NUMBER_AT..).and_then(<[u8]>::first_chunk);
        let number = number.map_or(0, |bytes| u32::from_be_bytes(*bytes));
        self.misnumbered += u64::from(number != self.next && self.next != 0);
        self.next = number.wrapping_add(1);
    }

    fn merge(&mut self, other: &Tally) {
        self.latency.merge(&other.latency);
        self.misnumbered += other.misnumbered;
    }
}

/// The work at a port, with its tally.
#[derive(Debug)]
pub struct Worked {
    work: Work,
    tally: Tally,
    total: Arc<Mutex<Tally>>,
}

impl Worked {
    /// The work with an empty tally.
    pub fn new(work: Work, total: &Arc<Mutex<Tally>>) -> Box<Worked> {
        Box::new(Worked { work, tally: Tally::default(), total: Arc::clone(total) })
    }
}

impl Recipient for Worked {
    #[inline]
    fn receive(&mut self, meta: &Meta, bytes: &[u8]) {
        match self.work {
            Work::Costs(cost) => cost.spend_on(bytes),
            Work::Numbers => self.tally.number(bytes),
        }
        self.tally.latency.add(now_ns().saturating_sub(meta.arrival_ns));
    }
}

impl Drop for Worked {
    fn drop(&mut self) {
        self.total.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.tally);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_due_is_seen() {
        let total = Arc::default();
        let mut worked = Worked::new(Work::Numbers, &total);
        for number in [1u32, 2, 3, 5, 4, 5, 6] {
            let mut bytes = [0; 64];
            bytes[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_be_bytes());
            worked.receive(&Meta::default(), &bytes);
        }
        drop(worked);
        let total = total.lock().unwrap();
        assert_eq!(total.misnumbered, 2, "5 for 4, and 4 for 6");
        assert!(total.latency.quantile_ns(1.0).is_some());
    }
}
