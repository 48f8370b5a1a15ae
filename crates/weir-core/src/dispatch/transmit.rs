//! Transmit dispatch: any worker queues packets for a port, its owner alone touches the device.
//!
//! The rule, after DragonFly's "altq spinlock and if_start dispatch":
//!
//! 1. A transmit queue is apart from its device. A worker puts a packet on its own *lane* of the queue (one
//!    lane for each worker, so no lock and one writer each) and never enters the device.
//! 2. The port's owner transmits ([`TransmitQueue::pass`]). A pass takes at most what each lane held when it
//!    began, the lanes in turn, [`BURST_MAX`] packets at a time, so that no lane and no port starves another.
//! 3. A worker kicks owners at the end of its batch, not at each packet ([`Kicks`]), and only an owner that
//!    is parked: a batch for one owner costs one kick, and none while the owner runs.
//!
//! Order: a lane is first in, first out, and what the device does not take stays at its lane's front. A flow
//! is sent by one worker, so through one lane.
//!
//! Credit: the queue is full at `limit` packets ([`TransmitQueue::is_full`]); who feeds the port asks before
//! it takes a packet in. A packet inside is always taken: no more exist than `frames`, and each lane has room
//! for all.
//!
//! Counters, named as the seed's `hw.em1.serializer_*` and comparable with them: `enter`, the device was
//! entered by the one who may; `try`, packets were offered without waiting; `tryfail`, the device took fewer
//! than were offered; `sleep`, someone went to sleep with packets still to send.
//!
//! Ownership: here one value, for virtual time. Between threads the lanes are rings of weir-ring and each
//! half has its one owner: the workers' put, the port's owner takes.
//!
//! Source: S. Ziehau, DragonFly kernel list, 13 April 2008; DragonFly `sys/net/if.c` (`ifq_dispatch`).

use std::collections::VecDeque;
use std::fmt;

use crate::account::Account;
use crate::drops::Count;
use crate::packet::Packet;
use crate::steer::rss::{BURST_MAX, Bits};

/// What sends packets: the half of a port that only its owner may touch.
pub trait TransmitDevice<P> {
    /// Takes a packet, or gives it back if it has no room.
    fn put(&mut self, packet: P) -> Result<(), P>;

    /// Sends what it took; once a pass.
    fn flush(&mut self);
}

/// How often the device was contended for; see the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// The device was entered by the one who may.
    pub enter: u64,
    /// Packets were offered without waiting.
    pub tried: u64,
    /// The device took fewer than were offered.
    pub tryfail: u64,
    /// Someone went to sleep with packets still to send.
    pub sleep: u64,
}

/// Kicks of owners by other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KickCounts {
    /// Sent: the owner was parked.
    pub sent: u64,
    /// Not sent: one for the same owner stood already, or the owner was running.
    pub saved: u64,
}

/// Counters of one port as the seed prints them, `NAME.transmit_enter: N` a line.
pub struct Lines<'a>(pub &'a str, pub Contention, pub KickCounts);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lines(port, contention, kicks) = self;
        let counters = [
            ("sleep", contention.sleep),
            ("tryfail", contention.tryfail),
            ("enter", contention.enter),
            ("try", contention.tried),
            ("kicks_sent", kicks.sent),
            ("kicks_saved", kicks.saved),
        ];
        counters.iter().try_for_each(|(name, count)| writeln!(f, "{port}.transmit_{name}: {count}"))
    }
}

/// The kicks a worker owes, gathered over a batch.
#[derive(Clone, Debug, Default)]
pub struct Kicks {
    owed: u64,
    counts: KickCounts,
}

impl Kicks {
    /// Notes that packets were queued for a port of worker `owner`.
    ///
    /// # Panics
    /// If `owner` is 64 or more.
    pub fn owe(&mut self, owner: usize) {
        assert!(owner < 64, "owners are workers, 64 at most");
        self.counts.saved += self.owed >> owner & 1;
        self.owed |= 1 << owner;
    }

    /// Ends the batch: `kick` is called once for each owner owed, *after* all its packets were published, and
    /// says whether the owner was parked and so had to be kicked.
    pub fn flush(&mut self, mut kick: impl FnMut(usize) -> bool) {
        for owner in Bits(std::mem::take(&mut self.owed)) {
            match kick(owner) {
                true => self.counts.sent += 1,
                false => self.counts.saved += 1,
            }
        }
    }

    /// Whether a batch is open.
    pub fn are_owed(&self) -> bool {
        self.owed != 0
    }

    /// What was sent and what was saved.
    pub fn counts(&self) -> KickCounts {
        self.counts
    }
}

/// A port's transmit queue.
pub struct TransmitQueue<P> {
    lanes: Vec<VecDeque<P>>,
    /// The lane whose turn it is.
    turn: usize,
    limit: usize,
    contention: Contention,
    account: Account,
}

impl<P: Packet> TransmitQueue<P> {
    /// An empty queue with a lane for each of `workers`, full at `limit` packets, in a path of `frames` frames.
    pub fn new(workers: usize, limit: usize, frames: usize) -> TransmitQueue<P> {
        TransmitQueue {
            lanes: (0..workers).map(|_| VecDeque::with_capacity(frames)).collect(),
            turn: 0,
            limit,
            contention: Contention::default(),
            account: Account::default(),
        }
    }

    /// Puts a packet on `worker`'s lane. The device is not touched.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn enqueue(&mut self, worker: usize, packet: P) {
        self.account.accept(packet.len_bytes());
        self.lanes[worker].push_back(packet);
    }

    /// Whether the port's feeders are held.
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Packets queued.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(VecDeque::is_empty)
    }

    /// The owner's pass; how many packets the device took. Ends early when the device has no more room.
    pub fn pass<D: TransmitDevice<P>>(&mut self, device: &mut D) -> usize {
        let mut left = self.len();
        if left == 0 {
            return 0;
        }
        self.contention.enter += 1;
        let mut took = 0;
        let mut has_room = true;
        while has_room && left > 0 {
            let lane = self.turn;
            // The turn goes on even if the device fills up halfway: a device that never has room for a whole
            // burst would else be the first lane's alone.
            self.turn = (lane + 1) % self.lanes.len();
            let offered = self.lanes[lane].len().min(BURST_MAX);
            if offered > 0 {
                let sent = self.send_from(lane, offered, device);
                has_room = sent == offered;
                took += sent;
                left -= sent;
            }
        }
        device.flush();
        took
    }

    /// The owner is about to sleep.
    pub fn parks(&mut self) {
        self.contention.sleep += u64::from(!self.is_empty());
    }

    /// How the device was contended for.
    pub fn contention(&self) -> Contention {
        self.contention
    }

    /// The books; they balance with [`TransmitQueue::held`].
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// What is inside, counted in the lanes themselves.
    pub fn held(&self) -> Count {
        self.lanes.iter().flatten().fold(Count::default(), |mut held, packet| {
            held.add(packet.len_bytes());
            held
        })
    }

    fn send_from<D: TransmitDevice<P>>(&mut self, lane: usize, offered: usize, device: &mut D) -> usize {
        self.contention.tried += 1;
        for sent in 0..offered {
            let Some(packet) = self.lanes[lane].pop_front() else { return sent };
            let len_bytes = packet.len_bytes();
            if let Err(packet) = device.put(packet) {
                self.lanes[lane].push_front(packet);
                self.contention.tryfail += 1;
                return sent;
            }
            self.account.deliver(len_bytes);
        }
        offered
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
