//! D38843 as it landed: one queue under a mutex, whose task takes the packets that are there once and schedules itself for the rest.
//!
//! ```text
//! IDLE --transmit: schedules--> WAKING --task takes all--> RUNNING --queue empty--> IDLE
//!                                  ^---queue not empty: schedules---/
//! ```
//! Ownership: queue and state are under one mutex; packets that were taken out are the task's.
//! Source: review D38843, "only flush the epair queue once per task"; FreeBSD df7bbd8c354a.

use std::sync::{Arc, Mutex, MutexGuard};

use super::design::{LINK_PACKETS, Packet};
use super::task_queue::{Link, TaskQueue};

/// One direction of an epair after D38843.
pub struct MutexFlush {
    queue: Mutex<Queue>,
    task: usize,
    tasks: Arc<TaskQueue>,
}

struct Queue {
    packets: Vec<Packet>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Idle,
    Waking,
    Running,
}

impl Link for MutexFlush {
    fn new(task: usize, tasks: Arc<TaskQueue>) -> MutexFlush {
        MutexFlush { queue: Mutex::new(Queue { packets: Vec::new(), state: State::Idle }), task, tasks }
    }

    fn transmit(&self, packet: Packet) -> Result<(), Packet> {
        let mut queue = self.lock();
        if queue.packets.len() == LINK_PACKETS {
            return Err(packet);
        }
        queue.packets.push(packet);
        if queue.state == State::Idle {
            queue.state = State::Waking;
            self.tasks.enqueue(self.task);
        }
        Ok(())
    }

    fn run(&self, batch: &mut Vec<Packet>, deliver: &mut impl FnMut(Packet)) {
        let mut queue = self.lock();
        std::mem::swap(&mut queue.packets, batch);
        queue.state = State::Running;
        drop(queue);
        batch.drain(..).for_each(deliver);
        let mut queue = self.lock();
        if queue.packets.is_empty() {
            queue.state = State::Idle;
        } else {
            queue.state = State::Waking;
            self.tasks.enqueue(self.task);
        }
    }
}

impl MutexFlush {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics with the queue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_what_was_there_and_leaves_the_rest_to_the_next() {
        let link = MutexFlush::new(0, Arc::new(TaskQueue::default()));
        let packet = |number| Packet { number, last: false, sent_ns: 0 };
        link.transmit(packet(0)).unwrap();
        link.transmit(packet(1)).unwrap();
        for run in 0..3 {
            let mut seen = Vec::new();
            link.run(&mut Vec::new(), &mut |taken| {
                seen.push(taken.number);
                link.transmit(packet(taken.number + 2)).unwrap();
            });
            assert_eq!(seen, [run * 2, run * 2 + 1]);
            assert!(link.lock().state == State::Waking);
        }
    }
}
