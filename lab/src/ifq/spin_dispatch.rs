//! `spin-dispatch`: the published patch. The queue has a spin lock of its own, and the device is started on its own core.
//!
//! A core that has a packet queues it under the spin lock. If no start is scheduled it schedules one and interrupts the device's core,
//! otherwise the interrupt is saved. The device's core takes the packets out one by one, each time under the spin lock, and is the only one
//! to enter the device.
//!
//! `enter`: starts; `try`: the spin lock was tried; `tryfail`: it was held, and spun for. Nobody sleeps for the device.
//! `kicks_sent`: interrupts of the device's core by the other one; `kicks_saved`: a start stood already. A packet that finds the
//! queue full is dropped.
//!
//! Ordering: `R0` (`start` set) `<-> A0` (`start` cleared): the packet queued before it.
//! Source: the thread "altq spinlock and if_start dispatch", points 1 to 4; DragonFly `ifq_dispatch`, `if_start_schedule`.
//! Limits: an interrupt of a core that is awake is a flag here, which costs less than one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_ring::doorbell::{Doorbell, Ringer};

use super::design::{Costs, Counts, IfqPacket, MemoryDevice, QUEUE_PACKETS, Side};

/// One core's side.
pub struct SpinDispatch {
    shared: Arc<Shared>,
    counts: Counts,
    place: Place,
}

enum Place {
    /// Elsewhere: it interrupts the device's core.
    Remote(Ringer),
    /// The device's core.
    Device(Box<MemoryDevice>, Doorbell),
}

struct Shared {
    queue: Mutex<VecDeque<IfqPacket>>,
    /// A start is scheduled.
    start: AtomicBool,
}

/// Both sides.
///
/// # Errors
/// If the kernel has no eventfd to give.
pub fn sides(costs: Costs) -> Result<(SpinDispatch, SpinDispatch)> {
    let queue = Mutex::new(VecDeque::with_capacity(QUEUE_PACKETS));
    let shared = Arc::new(Shared { queue, start: AtomicBool::new(false) });
    let doorbell = Doorbell::new()?;
    let ringer = doorbell.ringer();
    let side = |place| SpinDispatch { shared: Arc::clone(&shared), counts: Counts::default(), place };
    let device = Box::new(MemoryDevice::new(costs));
    Ok((side(Place::Remote(ringer)), side(Place::Device(device, doorbell))))
}

/// Locks the queue, spinning while another core has it.
fn spin<'a>(shared: &'a Shared, counts: &mut Counts) -> MutexGuard<'a, VecDeque<IfqPacket>> {
    counts.tried += 1;
    let mut has_failed = false;
    loop {
        match shared.queue.try_lock() {
            Ok(queue) => return queue,
            Err(TryLockError::WouldBlock) => {
                counts.tryfail += u64::from(!std::mem::replace(&mut has_failed, true));
                std::hint::spin_loop();
            }
            Err(TryLockError::Poisoned(_)) => panic!("nobody panics with the lock"),
        }
    }
}

impl Side for SpinDispatch {
    fn transmit(&mut self, packet: IfqPacket, _: u64) -> Result<(), IfqPacket> {
        {
            let mut queue = spin(&self.shared, &mut self.counts);
            if queue.len() == QUEUE_PACKETS {
                self.counts.dropped += 1;
                return Ok(());
            }
            queue.push_back(packet);
        }
        // R0, to A0.
        let stood = self.shared.start.swap(true, Ordering::AcqRel);
        if let Place::Remote(ringer) = &self.place {
            match stood {
                true => self.counts.kicks_saved += 1,
                false => {
                    self.counts.kicks_sent += 1;
                    ringer.published();
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self) -> usize {
        let Place::Device(device, _) = &mut self.place else { return 0 };
        device.reclaim();
        // A0, from R0. Looked at first: a swap would take the line from the other core each time.
        if !self.shared.start.load(Ordering::Relaxed) || !self.shared.start.swap(false, Ordering::AcqRel) {
            return 0;
        }
        self.counts.enter += 1;
        let mut moved = 0;
        while device.has_room() {
            let Some(packet) = spin(&self.shared, &mut self.counts).pop_front() else { break };
            device.put(packet).expect("there is room");
            moved += 1;
        }
        device.flush();
        if !device.has_room() {
            self.shared.start.store(true, Ordering::Release);
        }
        moved
    }

    fn sleep(&mut self, limit: Duration) {
        let Place::Device(_, doorbell) = &mut self.place else { return std::thread::sleep(limit) };
        if let Some(parked) = doorbell.park(|| self.shared.start.load(Ordering::Relaxed)) {
            let limit = Timespec::try_from(limit).expect("a fraction of a second");
            // A wait that a signal ends is a look too many, no more.
            let _ = poll(&mut [PollFd::new(&parked, PollFlags::IN)], Some(&limit));
        }
    }

    fn finish(self) -> (Counts, Option<MemoryDevice>) {
        match self.place {
            Place::Remote(_) => (self.counts, None),
            Place::Device(device, _) => (self.counts, Some(*device)),
        }
    }
}
