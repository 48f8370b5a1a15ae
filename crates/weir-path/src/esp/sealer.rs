//! A sealer: a stage that seals and opens packets that the home of an association gives it, so that one association is several workers'
//! work.
//!
//! ```text
//! home: policy, number, wrapping --run, packets--> sealer: seal      --packets--> home: in turn, on
//! home: association, window      --run, packets--> sealer: verify    --packets--> home: in turn, window, unwrapping, policy
//! ```
//!
//! Rule: the work on packets is told before they come, by a ring of its own ([`SealerRun`], of packets in a row), and they leave in the
//! order in which they came. A packet that is not proven is marked and goes back too: its home waits for it and counts it.
//!
//! Owner: one worker. Source: DPDK `lib/ring` (SORING: objects keep their places while stages work on runs of them). Limits: a sealer has
//! no window and no policy, and a run is of one association.

use std::sync::Arc;

use weir_ipsec::algorithm::{Associated, Transform};
use weir_ipsec::esp::{Wrapped, open_at};
use weir_ring::memory::FrameMemory;
use weir_ring::spsc::Consumer;

use super::frame::LINK_LEN;
use crate::packet::PathPacket;

/// The work on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealerWork {
    /// The packet is wrapped, and to be encrypted and given its proof.
    Seal(Wrapped),
    /// The packet is to be verified and decrypted.
    Open {
        /// The place of the ESP header in the IP packet, in bytes.
        esp_at: u16,
        /// The bytes behind the packet, which are not its own.
        behind: u16,
    },
}

impl SealerWork {
    fn esp_at(self) -> usize {
        match self {
            SealerWork::Seal(wrapped) => wrapped.esp_at(),
            SealerWork::Open { esp_at, .. } => esp_at.into(),
        }
    }
}

/// A run: packets in a row with the same work.
#[derive(Debug)]
pub(crate) struct SealerRun {
    /// The algorithm with its key.
    pub transform: Arc<Transform>,
    /// The associated data of one packet; the lower half of each packet's number is in the packet, and the upper half here is that of all.
    pub associated: Associated,
    /// The work.
    pub work: SealerWork,
    /// The number of packets.
    pub packets: u16,
}

impl SealerRun {
    /// Does the work on the next packet; returns whether the packet is proven now.
    fn work_on(&self, packet: &mut [u8]) -> bool {
        let Some(ip) = packet.get_mut(LINK_LEN..) else { return false };
        let low = ip.get(self.work.esp_at() + 4..).and_then(<[u8]>::first_chunk);
        let Some(low) = low.map(|low| u32::from_be_bytes(*low)) else { return false };
        let sequence = self.associated.sequence & !u64::from(u32::MAX) | u64::from(low);
        let associated = Associated { sequence, ..self.associated };
        let done = match self.work {
            SealerWork::Seal(wrapped) => wrapped.seal(ip, &self.transform, associated),
            SealerWork::Open { esp_at, behind } => {
                let end = ip.len().saturating_sub(behind.into());
                open_at(&mut ip[..end], esp_at.into(), &self.transform, associated)
            }
        };
        done.is_ok()
    }
}

/// A sealer, with the run that it works on.
#[derive(Debug, Default)]
pub struct Sealer {
    /// The ring of runs from the home; none before the workers are joined.
    runs: Option<Consumer<SealerRun>>,
    run: Option<SealerRun>,
    /// The number of packets of the run that were worked on.
    done: u16,
}

impl Sealer {
    /// Takes the ring by which its home tells the runs.
    pub(crate) fn join(&mut self, runs: Consumer<SealerRun>) {
        self.runs = Some(runs);
    }

    /// Works on packets of its home.
    ///
    /// # Panics
    /// If a packet comes before its run was told.
    pub(crate) fn process(&mut self, packets: &mut [PathPacket], memory: &FrameMemory) {
        for packet in packets {
            if self.run.as_ref().is_none_or(|run| run.packets == self.done) {
                self.run = self.runs.as_mut().and_then(Consumer::pop);
                self.done = 0;
            }
            let run = self.run.as_ref().expect("a run is told before its packets are handed over");
            self.done += 1;
            packet.is_unproven = !run.work_on(packet.bytes_mut(memory));
        }
        // A run that is done goes, so that its key is kept no longer than it is used.
        if self.run.as_ref().is_some_and(|run| run.packets == self.done) {
            (self.run, self.done) = (None, 0);
        }
    }
}
