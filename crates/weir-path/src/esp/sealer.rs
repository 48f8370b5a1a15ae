//! A sealer: a stage that seals and opens what the home of an association gives it, so that one association is several workers' work.
//!
//! ```text
//! home: policy, number, wrapping --run, packets--> sealer: seal      --packets--> home: in turn, on
//! home: association, window      --run, packets--> sealer: verify    --packets--> home: in turn, window, unwrapping, policy
//! ```
//!
//! Rule: what is to be done with packets comes before them, by a ring of its own ([`SealerRun`], of packets in a row), and they leave in the
//! order in which they came. A packet that is not proven is marked and goes back too: its home waits for it and counts it.
//!
//! Owner: one worker. Source: DPDK `lib/ring` (SORING: objects keep their places while stages work on runs of them). Limits: it knows no window
//! and no policy, and a run is of one association.

use std::sync::Arc;

use weir_ipsec::algorithm::{Associated, Transform};
use weir_ipsec::esp::{Wrapped, open_at};
use weir_ring::memory::FrameMemory;
use weir_ring::spsc::Consumer;

use super::frame::LINK_LEN;
use crate::packet::PathPacket;

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealerWork {
    /// It is wrapped, and to be encrypted and proven.
    Seal(Wrapped),
    /// It is to be verified and decrypted: ESP begins so many bytes into the IP packet, and so many are behind it.
    Open {
        /// Where it begins.
        esp_at: u16,
        /// What is not the packet's.
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

/// Packets in a row with which the same is to be done.
#[derive(Debug)]
pub(crate) struct SealerRun {
    /// With which key.
    pub transform: Arc<Transform>,
    /// Of one of them; the lower halves of their numbers are in them, and the upper half is that of all.
    pub associated: Associated,
    /// What.
    pub work: SealerWork,
    /// How many they are.
    pub packets: u16,
}

impl SealerRun {
    /// Does it with the next packet; whether it is proven now.
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

/// What a sealer does next.
#[derive(Debug, Default)]
pub struct Sealer {
    /// From the home; none before the workers are joined.
    runs: Option<Consumer<SealerRun>>,
    run: Option<SealerRun>,
    /// How many of the run were worked on.
    done: u16,
}

impl Sealer {
    /// Learns where its home tells what is to be done.
    pub(crate) fn join(&mut self, runs: Consumer<SealerRun>) {
        self.runs = Some(runs);
    }

    /// Works on packets of its home.
    ///
    /// # Panics
    /// If it was not told what is to be done with them, which the home does before.
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
        // A key that is not used any more goes.
        if self.run.as_ref().is_some_and(|run| run.packets == self.done) {
            (self.run, self.done) = (None, 0);
        }
    }
}
