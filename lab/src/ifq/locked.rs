//! `locked`: one lock around the device and its queue, DragonFly's serializer before the patch.
//!
//! A core that has a packet enters, queues it, and starts the device: each packet is a start of its own. The device's core enters once a
//! pass to take back slots and to start the packets that are left, without waiting: it has other work.
//!
//! `enter`: the lock was taken or waited for by the transmitter; `sleep`: it was held then, and had to be waited for. `try`: the device's
//! core tried it; `tryfail`: it was held. No kicks: a start is a call. A packet that finds the queue full is dropped.
//!
//! Ownership: queue and device are under the lock.
//! Source: DragonFly `lwkt_serialize_enter`, `lwkt_serialize_try`; the thread "altq spinlock and if_start dispatch", "contention
//! (if_output[CPU0] <--> txeof[CPU1])".

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::design::{Costs, Counts, IfqPacket, MemoryDevice, QUEUE_PACKETS, Side};

/// One core's side; both are alike but for the device's interrupts.
pub struct Locked {
    interface: Arc<Mutex<Interface>>,
    counts: Counts,
    has_interrupts: bool,
}

struct Interface {
    queue: VecDeque<IfqPacket>,
    device: MemoryDevice,
}

/// Both sides.
pub fn sides(costs: Costs) -> (Locked, Locked) {
    let queue = VecDeque::with_capacity(QUEUE_PACKETS);
    let interface = Arc::new(Mutex::new(Interface { queue, device: MemoryDevice::new(costs) }));
    let side = |has_interrupts| Locked {
        interface: Arc::clone(&interface),
        counts: Counts::default(),
        has_interrupts,
    };
    (side(false), side(true))
}

impl Interface {
    fn start(&mut self) -> usize {
        let before = self.queue.len();
        while self.device.has_room() {
            let Some(packet) = self.queue.pop_front() else { break };
            self.device.put(packet).expect("there is room");
        }
        let moved = before - self.queue.len();
        if moved > 0 {
            self.device.flush();
        }
        moved
    }
}

fn tried(lock: &Mutex<Interface>) -> Option<MutexGuard<'_, Interface>> {
    match lock.try_lock() {
        Ok(interface) => Some(interface),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("nobody panics with the lock"),
    }
}

impl Side for Locked {
    fn transmit(&mut self, packet: IfqPacket, _: u64) -> Result<(), IfqPacket> {
        self.counts.enter += 1;
        let mut interface = tried(&self.interface).unwrap_or_else(|| {
            self.counts.sleep += 1;
            self.interface.lock().expect("nobody panics with the lock")
        });
        if interface.queue.len() == QUEUE_PACKETS {
            self.counts.dropped += 1;
        } else {
            interface.queue.push_back(packet);
        }
        interface.start();
        Ok(())
    }

    fn serve(&mut self) -> usize {
        if !self.has_interrupts {
            return 0;
        }
        self.counts.tried += 1;
        let Some(mut interface) = tried(&self.interface) else {
            self.counts.tryfail += 1;
            return 0;
        };
        interface.device.reclaim();
        interface.start()
    }

    fn finish(self) -> (Counts, Option<MemoryDevice>) {
        let interface = Arc::into_inner(self.interface).map(|lock| lock.into_inner().expect("no panic"));
        (self.counts, interface.map(|interface| interface.device))
    }
}
