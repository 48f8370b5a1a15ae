//! The books of a stack: what was dropped, what waits, and whether all places balance.
//!
//! Rule: a packet is with one place; between two workers it is with the one that it comes to.
//!
//! Owner: each worker tells its own, and the stack adds them. Limits: workers tell theirs one after the other, so the sum is exact where nothing moves.

use weir_core::drops::{Count, DropCounts};
use weir_path::either_port::EitherPort;
use weir_path::port::TransmitRing;
use weir_path::traffic::port::MemoryPort;

use crate::worker::StackWorker;

/// The books of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackBooks {
    /// Packets that were dropped, anywhere in the stack.
    pub dropped: DropCounts,
    /// Packets that wait or are on their way out, anywhere in the stack.
    pub held: Count,
    /// True if accepted = delivered + dropped + held at every place.
    pub balances: bool,
    /// The packets that were made and came back, if the interface is one in memory.
    pub traffic: Option<TrafficBooks>,
}

/// The counts of a generator in memory, and of its sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficBooks {
    /// Packets made.
    pub made: u64,
    /// Packets that came back.
    pub numbered: u64,
    /// Packets that came after a later one of their flow.
    pub reordered: u64,
    /// Packets that are missing so far.
    pub missing: u64,
}

impl TrafficBooks {
    /// Adds the books of another worker.
    pub fn merge(&mut self, other: &TrafficBooks) {
        self.made += other.made;
        self.numbered += other.numbered;
        self.reordered += other.reordered;
        self.missing += other.missing;
    }
}

impl StackWorker {
    /// The books of this worker, after completed packets were noted.
    pub(crate) fn books(&mut self) -> StackBooks {
        self.path.complete();
        let mut books = StackBooks { balances: true, ..StackBooks::default() };
        let between = self.path.between();
        let queues = between.egress.queues().iter();
        let queues = queues.map(|queue| (queue.shaping.account(), queue.shaping.held()));
        let stages = between.stages().map(|stage| (stage.account().clone(), stage.held()));
        let exits = self.path.ends().iter().map(|end| (end.exit.account().clone(), end.port.in_flight()));
        for (account, held) in queues.chain(stages).chain(exits) {
            books.balances &= account.balances(held);
            books.dropped.merge(&account.dropped);
            books.held.merge(held);
        }
        // Packets between workers are with the one that they come to.
        books.held.merge(self.path.waiting_to_land());
        books.traffic = self.memory_port().map(|port| {
            let counts = port.sequences().map(|sequences| *sequences.counts()).unwrap_or_default();
            TrafficBooks {
                made: port.made().packets,
                numbered: counts.numbered,
                reordered: counts.reordered,
                missing: counts.missing,
            }
        });
        books
    }

    /// The interface, if it is one in memory.
    pub(crate) fn memory_port(&mut self) -> Option<&mut MemoryPort> {
        match &mut self.path.end_mut(self.first_port).0.port {
            EitherPort::Kernel(port) => match &mut **port {
                EitherPort::Memory(port) => port.kernel_mut(),
                EitherPort::Kernel(_) => None,
            },
            EitherPort::Memory(_) => None,
        }
    }
}
