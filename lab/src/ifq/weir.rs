//! `weir`: a lane for each worker, one owner for the device, kicks staged over a batch.
//!
//! The other worker puts packets on its lane, a ring of weir-ring; the owner its own straight into the queue. The owner alone
//! enters the device, in passes of [`TransmitQueue`]. At the end of a batch the other worker publishes its lane at once and
//! kicks the owner if that is parked ([`Kicks`]). A lane that is full holds its input.
//!
//! `enter`, `try`, `tryfail`, `sleep`, `kicks_*`: as in [`weir_core::dispatch::transmit`].
//!
//! The other worker has input 0, the owner input 1.
//!
//! Ownership: lane, queue and device as there; credit as in [`super::credit`].
//! Source: `weir_core::dispatch::transmit`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_core::dispatch::transmit::{Kicks, TransmitQueue};
use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};

use super::credit::{Credit, Sent};
use super::design::{Costs, Counts, IfqPacket, MemoryDevice, QUEUE_PACKETS, Side};

/// The owner's number.
const OWNER: usize = 1;

/// The worker that does not own the device.
pub struct Other {
    outlet: Outlet<IfqPacket>,
    kicks: Kicks,
    credit: Credit,
    sent: Arc<Sent>,
}

/// The worker that does.
pub struct Owner {
    inbox: Inbox<IfqPacket>,
    queue: TransmitQueue<IfqPacket>,
    device: MemoryDevice,
    sent: Arc<Sent>,
}

/// Both sides.
///
/// # Errors
/// If the kernel has no eventfd to give.
pub fn sides(costs: Costs) -> Result<(Other, Owner)> {
    let ring_elements = QUEUE_PACKETS;
    let (inbox, mut outlets) = inbox(InboxSize { sources: 1, ring_elements, inject_elements: 1 })?;
    let sent = Arc::new(Sent::default());
    let other = Other {
        outlet: outlets.remove(0),
        kicks: Kicks::default(),
        credit: Credit::new(QUEUE_PACKETS),
        sent: Arc::clone(&sent),
    };
    let queue = TransmitQueue::new(2, QUEUE_PACKETS, 2 * QUEUE_PACKETS);
    Ok((other, Owner { inbox, queue, device: MemoryDevice::new(costs), sent }))
}

impl Side for Other {
    fn transmit(&mut self, packet: IfqPacket, _: u64) -> Result<(), IfqPacket> {
        if self.credit.is_full(&self.sent) {
            return Err(packet);
        }
        self.credit.hand();
        self.kicks.owe(OWNER);
        self.outlet.stage(packet)
    }

    fn end_batch(&mut self) {
        let outlet = &mut self.outlet;
        self.kicks.flush(|_| {
            let before = outlet.counts().kicks;
            // The owner outlives its lanes.
            outlet.flush().expect("the owner is there");
            outlet.counts().kicks > before
        });
    }

    fn finish(self) -> (Counts, Option<MemoryDevice>) {
        let kicks = self.kicks.counts();
        (Counts { kicks_sent: kicks.sent, kicks_saved: kicks.saved, ..Counts::default() }, None)
    }
}

impl Side for Owner {
    fn transmit(&mut self, packet: IfqPacket, _: u64) -> Result<(), IfqPacket> {
        if self.queue.is_full() {
            return Err(packet);
        }
        self.queue.enqueue(OWNER, packet);
        Ok(())
    }

    fn serve(&mut self) -> usize {
        let Owner { inbox, queue, device, .. } = self;
        device.reclaim();
        let came = inbox.drain(|_, packet| queue.enqueue(0, packet));
        let sent = queue.pass(device);
        if came + sent > 0 {
            inbox.running();
        }
        if sent > 0 {
            self.sent.say(self.device.sent(0));
        }
        came + sent
    }

    fn sleep(&mut self, limit: Duration) {
        self.queue.parks();
        if let Some(parked) = self.inbox.park(|| false) {
            let limit = Timespec::try_from(limit).expect("a fraction of a second");
            // A wait that a signal ends is a look too many, no more.
            let _ = poll(&mut [PollFd::new(&parked, PollFlags::IN)], Some(&limit));
        }
    }

    fn finish(self) -> (Counts, Option<MemoryDevice>) {
        let contention = self.queue.contention();
        let counts = Counts {
            enter: contention.enter,
            tried: contention.tried,
            tryfail: contention.tryfail,
            sleep: contention.sleep,
            ..Counts::default()
        };
        (counts, Some(self.device))
    }
}
