//! A limit in place: the tree of HTB classes that holds an interface to a rate, and how it changes.
//!
//! ```text
//! root class     rate R  burst B
//!   held leaf    x 256   rate R/2/272  ceil R   first in, first out, 16 MB      packets that have a local socket
//!   passing leaf x 16    rate R/2/272  ceil R   first in, first out, 25 ms of R packets that have none
//! ```
//!
//! Rule: the rates of all leaves together are half of the limit, so what is promised to leaves is always there; a leaf that
//! keeps below its own goes before all that borrow, which is why a quiet flow does not wait for the others.
//! A leaf's own burst is one packet, so that one which becomes busy costs the limit no more than that.
//! The quantum is above the longest packet there is: HTB adds one to a leaf once a turn, however far below zero the leaf is.
//!
//! Source: tc-htb(8); kernel `net/sched/sch_htb.c` (`htb_dequeue_tree`, `htb_charge_class`).

pub mod filter;

use crate::rate::{NS_PER_S, Rate};

/// The least rate that can be limited in place: below it the leaves' own rates, a byte a second at least, would pass it.
pub const BITS_PER_S_MIN: u64 = 8_000;
/// The number of the class that all others are below.
pub const ROOT_CLASS: u16 = 1;
/// Leaves of packets that a local socket sent, and the number of the first.
pub const HELD: Leaves = Leaves { first_class: 0x100, count: 256 };
/// Leaves of packets without a socket, such as forwarded ones, and the number of the first.
pub const PASSING: Leaves = Leaves { first_class: 0x200, count: 16 };
/// What a held leaf has room for: the default send buffers of more than a hundred flooding sockets.
pub const HELD_BYTES_EACH: u32 = 16 << 20;
/// How much may wait in a passing leaf, as a time at the rate.
pub const PASSING_NS: u64 = 25_000_000;
/// How late the kernel's timer is now and then where others have the processors too: a virtual machine's are taken away for that long.
pub const TIMER_LATE_NS: u64 = 1_000_000;

/// Whether a timer that is late makes a limit lose rate: what was not sent meanwhile is made up for by the burst alone.
///
/// A queue that drops hardly shows it, as its senders never sleep, and run it whenever they send.
pub fn is_short_burst(rate: Rate, burst_bytes: u64) -> bool {
    rate.ns_for(burst_bytes) < TIMER_LATE_NS
}

/// Leaves of one kind: consecutive numbers of classes. Their count is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The number of the first one's class.
    pub first_class: u16,
    /// How many there are.
    pub count: u16,
}

/// What is asked of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The limit.
    pub rate: Rate,
    /// How much may pass at once after a pause.
    pub burst_bytes: u64,
    /// The longest packet that the queue is given, segmentation offloads included.
    pub packet_bytes_max: u32,
}

/// One class, as HTB takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its number below the queue's handle.
    pub number: u16,
    /// The number of the class it is below; 0 for the queue itself.
    pub parent: u16,
    /// What it is promised, in bytes a second.
    pub rate_bytes_per_s: u64,
    /// What it may have at most.
    pub ceil_bytes_per_s: u64,
    /// How much it may send at once within its own rate, as a time at that rate.
    pub burst_ns: u64,
    /// The same within its ceiling.
    pub ceil_burst_ns: u64,
    /// How many bytes it sends in its turn.
    pub quantum_bytes: u32,
    /// How much may wait in it; `None` where it is no leaf.
    pub queue_bytes: Option<u32>,
}

/// The whole tree of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    wanted: Wanted,
}

impl Plan {
    /// The tree for what is wanted.
    ///
    /// # Errors
    /// One sentence, if no such tree keeps the limit.
    pub fn new(wanted: Wanted) -> Result<Plan, String> {
        if wanted.rate.bits_per_s() < BITS_PER_S_MIN {
            return Err(format!(
                "a limit in place of {} is below {}, what the kernel's queue can keep: give a higher rate, or join the interfaces \
                 with `weir wire`",
                wanted.rate,
                Rate::from_bits_per_s(BITS_PER_S_MIN).expect("more than 0")
            ));
        }
        Ok(Plan { wanted })
    }

    /// What a leaf is promised, in bytes a second.
    pub fn leaf_bytes_per_s(&self) -> u64 {
        (self.bytes_per_s() / 2 / u64::from(HELD.count + PASSING.count)).max(1)
    }

    /// The classes, each after the one it is below.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        let leaves = |leaves: Leaves| leaves.first_class..leaves.first_class + leaves.count;
        let held = leaves(HELD).map(|number| self.leaf(number, HELD_BYTES_EACH));
        let passing = leaves(PASSING).map(|number| self.leaf(number, self.passing_bytes_each()));
        std::iter::once(self.root()).chain(held).chain(passing)
    }

    /// What a passing leaf has room for: [`PASSING_NS`] of the rate, and two of the longest packets at least, because one that
    /// never fits would never arrive.
    pub fn passing_bytes_each(&self) -> u32 {
        let bytes = self.wanted.rate.bytes_in(PASSING_NS).max(2 * u64::from(self.quantum_bytes()));
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// What is wanted.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    fn root(&self) -> Class {
        let burst_ns = self.wanted.rate.ns_for(self.wanted.burst_bytes);
        Class {
            number: ROOT_CLASS,
            parent: 0,
            rate_bytes_per_s: self.bytes_per_s(),
            ceil_bytes_per_s: self.bytes_per_s(),
            burst_ns,
            ceil_burst_ns: burst_ns,
            quantum_bytes: self.quantum_bytes(),
            queue_bytes: None,
        }
    }

    fn leaf(&self, number: u16, queue_bytes: u32) -> Class {
        Class {
            number,
            parent: ROOT_CLASS,
            rate_bytes_per_s: self.leaf_bytes_per_s(),
            burst_ns: 1,
            queue_bytes: Some(queue_bytes),
            ..self.root()
        }
    }

    fn bytes_per_s(&self) -> u64 {
        self.wanted.rate.bits_per_s() / 8
    }

    /// An eighth more than the longest packet: the headers of its segments count as well.
    fn quantum_bytes(&self) -> u32 {
        self.wanted.packet_bytes_max + self.wanted.packet_bytes_max / 8
    }
}

/// The rate at which the program that gives flows their leaves takes a leaf to be emptied at least, in bytes for each 2^30 ns.
///
/// Half of what the leaf is promised: HTB may serve it a timer's lateness after its time, each time.
pub fn leaf_clock(plan: &Plan) -> u64 {
    const BYTES_MAX: u64 = 1 << 28;
    let bytes = u128::from(plan.leaf_bytes_per_s()) * (1 << 30) / u128::from(NS_PER_S) / 2;
    (bytes as u64).clamp(1, BYTES_MAX)
}

/// The rates by which a limit is opened before its queue is removed: each twice the one before, until nothing can wait any more.
pub fn opening(rate: Rate) -> impl Iterator<Item = Rate> {
    /// Above what any interface passes.
    const OPEN_BITS_PER_S: u64 = 1_000_000_000_000;
    let double = |rate: &Rate| {
        let next = rate.bits_per_s().saturating_mul(2).min(OPEN_BITS_PER_S);
        Rate::from_bits_per_s(next).filter(|next| *next > *rate)
    };
    std::iter::successors(double(&rate), double)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(bits_per_s: u64) -> Plan {
        let rate = Rate::from_bits_per_s(bits_per_s).unwrap();
        Plan::new(Wanted { rate, burst_bytes: 50_000, packet_bytes_max: 65_536 }).unwrap()
    }

    #[test]
    fn leaves_are_promised_less_than_the_limit() {
        for bits_per_s in [BITS_PER_S_MIN, 100_000, 1_000_000, 200_000_000, 100_000_000_000] {
            let plan = plan(bits_per_s);
            let root = plan.classes().next().unwrap();
            let leaves: Vec<_> = plan.classes().skip(1).collect();
            assert_eq!(leaves.len(), 272);
            let promised: u64 = leaves.iter().map(|leaf| leaf.rate_bytes_per_s).sum();
            assert!(promised <= root.rate_bytes_per_s, "{bits_per_s}: {promised}");
            assert!(leaves.iter().all(|leaf| leaf.rate_bytes_per_s > 0 && leaf.parent == root.number));
        }
    }

    #[test]
    fn classes_have_numbers_of_their_own_and_a_turn_is_longer_than_any_packet() {
        let plan = plan(200_000_000);
        let mut numbers: Vec<_> = plan.classes().map(|class| class.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 273);
        assert!(plan.classes().all(|class| class.quantum_bytes > 68_000));
    }

    #[test]
    fn what_passes_waits_a_time_of_the_rate_and_fits() {
        assert_eq!(plan(800_000_000).passing_bytes_each(), 2_500_000);
        assert_eq!(plan(1_000_000).passing_bytes_each(), 2 * 73_728);
    }

    #[test]
    fn a_rate_that_the_queue_cannot_keep_is_refused() {
        let rate = Rate::from_bits_per_s(BITS_PER_S_MIN - 1).unwrap();
        let wanted = Wanted { rate, burst_bytes: 20_480, packet_bytes_max: 65_536 };
        assert!(Plan::new(wanted).unwrap_err().contains("8kbit"));
    }

    #[test]
    fn a_burst_is_short_below_a_millisecond_of_the_rate() {
        let is_short = |bits_per_s, bytes| is_short_burst(Rate::from_bits_per_s(bits_per_s).unwrap(), bytes);
        assert!(is_short(200_000_000, 20_480) && is_short(1_000_000_000, 124_999));
        assert!(!is_short(100_000_000, 20_480) && !is_short(1_000_000_000, 125_000));
    }

    #[test]
    fn opening_doubles_up_to_an_end() {
        let steps: Vec<_> = opening(Rate::from_bits_per_s(200_000_000).unwrap()).collect();
        assert_eq!(steps[0].bits_per_s(), 400_000_000);
        assert_eq!(steps.last().unwrap().bits_per_s(), 1_000_000_000_000);
        assert!(steps.len() < 20);
        assert_eq!(opening(Rate::from_bits_per_s(2_000_000_000_000).unwrap()).count(), 0);
    }

    #[test]
    fn the_leaf_clock_is_half_of_what_a_leaf_is_promised() {
        // 200 Mbit/s: 45,955 bytes a second for each leaf.
        assert_eq!(leaf_clock(&plan(200_000_000)), 24_671);
        assert_eq!(leaf_clock(&plan(BITS_PER_S_MIN)), 1);
    }
}
