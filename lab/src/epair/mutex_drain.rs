//! The first revision of D38843: one queue under a mutex, whose task runs until it sees the queue empty.
//!
//! It loses no wake-up, as the state is changed under the mutex of the queue. But while transmitters are busy the task does not
//! end, and every other link of its thread starves: 889 Kpps became 42.
//!
//! Ownership: queue and state are under one mutex; packets that were taken out are the task's.
//! Source: review D38843, the comment on the first revision.

use std::sync::{Arc, Mutex, MutexGuard};

use super::design::{LINK_PACKETS, Packet};
use super::task_queue::{Link, TaskQueue};

/// One direction of an epair in the first revision of D38843.
pub struct MutexDrain {
    queue: Mutex<Queue>,
    task: usize,
    tasks: Arc<TaskQueue>,
}

struct Queue {
    packets: Vec<Packet>,
    idle: bool,
}

impl Link for MutexDrain {
    fn new(task: usize, tasks: Arc<TaskQueue>) -> MutexDrain {
        MutexDrain { queue: Mutex::new(Queue { packets: Vec::new(), idle: true }), task, tasks }
    }

    fn transmit(&self, packet: Packet) -> Result<(), Packet> {
        let mut queue = self.lock();
        if queue.packets.len() == LINK_PACKETS {
            return Err(packet);
        }
        queue.packets.push(packet);
        if std::mem::take(&mut queue.idle) {
            self.tasks.enqueue(self.task);
        }
        Ok(())
    }

    fn run(&self, batch: &mut Vec<Packet>, deliver: &mut impl FnMut(Packet)) {
        loop {
            let mut queue = self.lock();
            if queue.packets.is_empty() {
                queue.idle = true;
                return;
            }
            std::mem::swap(&mut queue.packets, batch);
            drop(queue);
            batch.drain(..).for_each(&mut *deliver);
        }
    }
}

impl MutexDrain {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics with the queue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_only_when_the_queue_is_empty() {
        let link = MutexDrain::new(0, Arc::new(TaskQueue::default()));
        let packet = |number| Packet { number, last: false, sent_ns: 0 };
        link.transmit(packet(0)).unwrap();
        let mut seen = 0;
        link.run(&mut Vec::new(), &mut |taken| {
            seen += 1;
            if taken.number < 5000 {
                link.transmit(packet(taken.number + 1)).unwrap();
            }
        });
        assert_eq!(seen, 5001);
    }
}
