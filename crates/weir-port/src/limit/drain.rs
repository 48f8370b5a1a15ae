//! The drain of classes of a limit in place: flows that the filters now send elsewhere leave, while those that stay go on.
//!
//! ```text
//! begin      the count of packets that stayed in the class by filters before; then each leaf's word, bytes sent and bytes waiting
//! look       leaves whose packets from then have gone are told to the program: their flows go to other classes
//! left       the packets of all leaves have gone, and none stayed meanwhile; if some did, begin again
//! ```
//!
//! A command that is asked to move flows at once tells the program that all has gone before it looks: each flow then changes class with its
//! next packet, which may overtake those that wait, once.
//!
//! Rule: no packet waits in a class that was left but those that the filters now send there, so the filters before need not be asked for it
//! and no flow is reordered. Leaves are asked for one by one, each between two looks at its word: some 10 us, as a flow that sends without a
//! pause leaves no longer ones. To ask for all at once takes less time for each, but milliseconds in all.
//!
//! Owner: the command, under the lock of both ends. Limits: a flow stays of which a packet waits at each of [`LOOKS`] looks, or which shares
//! its socket or its slot of memory with one that belongs there. A look takes 10 us for each leaf in use. Who listens for changes of queues
//! hears each question.
//!
//! Source: [`weir_core::limit::drain`]; kernel `net/sched/sch_api.c` (`tc_ctl_tclass`).

use std::collections::HashSet;
use std::thread::sleep;

use netlink_socket2::NetlinkSocket;
use weir_core::limit::drain::{LeafDrain, LeafTraffic};
use weir_core::limit::shared::{LEAVES_EACH, leaf_number};

use super::htb::{self, LOOK_EVERY, LOOKS, QueueTraffic};
use super::memory::Memory;
use crate::error::Result;
use crate::sys::Realtime;

/// Looks until flows have left the classes with these `memories`, whose leaves have quanta of so many bytes at most; if it `moves_at_once`,
/// they need not wait for packets of theirs. Returns the bases of those that some did not leave. The caller's thread is in the namespace of
/// the interface.
pub fn wait_until_left<'a>(
    ifindex: u32,
    quantum_bytes_max: u32,
    moves_at_once: bool,
    memories: impl Iterator<Item = &'a Memory>,
) -> Result<HashSet<u16>> {
    let mut socket = NetlinkSocket::new();
    let mut ask = |number| {
        // A question that other threads interrupt takes milliseconds.
        let _question = Realtime::begin();
        let traffic = htb::class_traffic(&mut socket, ifindex, number)?;
        let QueueTraffic { bytes, waiting, waiting_bytes, .. } = traffic;
        Ok(LeafTraffic::new(bytes, waiting, waiting_bytes, quantum_bytes_max))
    };
    let mut classes: Vec<_> = memories.map(ClassDrain::new).collect();
    if moves_at_once {
        classes.iter().for_each(ClassDrain::tell_all_gone);
    }
    classes.iter_mut().try_for_each(|class| class.begin(&mut ask))?;
    let mut busy = HashSet::new();
    for _ in 0..LOOKS {
        busy.clear();
        // Classes that were left are looked at until the end: a packet may stay once more.
        for class in &mut classes {
            if !class.look(&mut ask)? {
                busy.insert(class.memory.base());
            }
        }
        if busy.is_empty() {
            break;
        }
        sleep(LOOK_EVERY);
    }
    Ok(busy)
}

/// A class whose leaves drain.
struct ClassDrain<'a> {
    memory: &'a Memory,
    /// The packets that had stayed when it began.
    stayed: u64,
    /// Its leaves by their places in the memory.
    leaves: Vec<LeafDrain>,
}

impl<'a> ClassDrain<'a> {
    fn new(memory: &'a Memory) -> ClassDrain<'a> {
        let leaves = vec![LeafDrain::unused(); LEAVES_EACH.into()];
        ClassDrain { memory, stayed: 0, leaves }
    }

    /// Tells the program that nothing waits in any leaf. A packet that comes between the look at its leaf and this stays, and its flow with
    /// it, so all are told again.
    fn tell_all_gone(&self) {
        const ROUNDS: usize = 3;
        for place in (0..ROUNDS).flat_map(|_| 0..LEAVES_EACH) {
            self.memory.tell_gone(place, self.memory.leaf(place));
        }
    }

    /// Begins with the packets that are there now; `ask` asks the kernel for a leaf by the number of its class.
    fn begin(&mut self, ask: impl FnMut(u16) -> Result<LeafTraffic>) -> Result<()> {
        // Packets that stay between this count and the leaves' counters make it begin once more.
        self.stayed = self.memory.stayed();
        self.each_in_use(ask, |leaf, word, traffic| *leaf = LeafDrain::new(word, traffic))
    }

    /// Looks at the leaves that are in use. Returns whether the class is left.
    fn look(&mut self, mut ask: impl FnMut(u16) -> Result<LeafTraffic>) -> Result<bool> {
        self.each_in_use(&mut ask, |_, _, _| {})?;
        if !self.leaves.iter().all(LeafDrain::has_gone) {
            return Ok(false);
        }
        let is_left = self.memory.stayed() == self.stayed;
        if !is_left {
            self.begin(ask)?;
        }
        Ok(is_left)
    }

    /// Asks for each leaf in which packets may wait, has it `prepared` with its word and its counters, and tells the program what has gone.
    fn each_in_use(
        &mut self,
        mut ask: impl FnMut(u16) -> Result<LeafTraffic>,
        prepared: impl Fn(&mut LeafDrain, u64, LeafTraffic),
    ) -> Result<()> {
        for (place, leaf) in (0..).zip(&mut self.leaves) {
            let word = self.memory.leaf(place);
            if leaf.is_settled(word) {
                continue;
            }
            let traffic = ask(self.memory.base() + leaf_number(place))?;
            prepared(leaf, word, traffic);
            if let Some(gone) = leaf.look(word, traffic, self.memory.leaf(place)) {
                self.memory.tell_gone(place, gone);
            }
        }
        Ok(())
    }
}
