//! The threads of the historical designs: each has a list of tasks, as the kernel's taskqueue(9), one task a link.
//!
//! A task that is on the list is not put there again; the thread takes tasks in the order they were scheduled and sleeps when there are
//! none. A transmitter that schedules a task while it sleeps wakes it.
//!
//! Ownership: the list is under one mutex, so a kick is never redundant.
//! Source: FreeBSD `subr_taskqueue.c`.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;

use super::design::{Counts, Design, Packet, Transmit, Work};

/// The list of tasks.
#[derive(Default)]
pub struct TaskQueue {
    list: Mutex<List>,
    woken: Condvar,
}

#[derive(Default)]
struct List {
    scheduled: VecDeque<usize>,
    asleep: bool,
    kicks: u64,
}

impl TaskQueue {
    /// Schedules a task, unless it already is.
    pub fn enqueue(&self, task: usize) {
        let mut list = self.lock();
        if list.scheduled.contains(&task) {
            return;
        }
        list.scheduled.push_back(task);
        if std::mem::take(&mut list.asleep) {
            list.kicks += 1;
            self.woken.notify_one();
        }
    }

    fn take(&self) -> Option<usize> {
        self.lock().scheduled.pop_front()
    }

    fn sleep(&self, limit: Duration) {
        let mut list = self.lock();
        list.asleep = list.scheduled.is_empty();
        let waited = self.woken.wait_timeout_while(list, limit, |list| list.asleep);
        waited.expect("nobody panics with the list").0.asleep = false;
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("nobody panics with the list")
    }
}

/// One direction of an epair: a queue, and the task that empties it.
pub trait Link: Send + Sync + 'static {
    /// A link whose task has this number.
    fn new(task: usize, tasks: Arc<TaskQueue>) -> Self;

    /// Queues a packet and schedules the task if the design says so.
    ///
    /// # Errors
    /// The packet, if the queue is full.
    fn transmit(&self, packet: Packet) -> Result<(), Packet>;

    /// One run of the task. `batch` is room for the packets that it takes out, and empty before and after.
    fn run(&self, batch: &mut Vec<Packet>, deliver: &mut impl FnMut(Packet));
}

/// The design whose links are `L`.
pub struct Tasks<L>(PhantomData<L>);

/// A thread outside the queue, which transmits packet by packet.
pub struct Transmitter<L>(Arc<L>);

/// The queue's thread.
pub struct TaskThread<L> {
    tasks: Arc<TaskQueue>,
    links: Vec<Arc<L>>,
    batch: Vec<Packet>,
    dropped: u64,
}

impl<L: Link> Design for Tasks<L> {
    type Transmit = Transmitter<L>;
    type Work = TaskThread<L>;

    fn chain(links: usize, _wake_cost_ns: u64) -> Result<(Transmitter<L>, TaskThread<L>)> {
        let tasks = Arc::new(TaskQueue::default());
        let links: Vec<_> = (0..links).map(|task| Arc::new(L::new(task, Arc::clone(&tasks)))).collect();
        let transmitter = Transmitter(Arc::clone(&links[0]));
        Ok((transmitter, TaskThread { tasks, links, batch: Vec::new(), dropped: 0 }))
    }
}

impl<L: Link> Transmit for Transmitter<L> {
    fn transmit(&mut self, burst: &mut Vec<Packet>) -> bool {
        let sent = burst.iter().take_while(|packet| self.0.transmit(**packet).is_ok()).count();
        burst.drain(..sent);
        burst.is_empty()
    }
}

impl<L: Link> Work for TaskThread<L> {
    fn pass(&mut self, left: &mut impl FnMut(usize, Packet)) -> usize {
        let Some(task) = self.tasks.take() else { return 0 };
        let next = self.links.get(task + 1);
        let mut moved = 0;
        self.links[task].run(&mut self.batch, &mut |packet| {
            moved += 1;
            left(task, packet);
            // As published: the thread cannot wait for itself, so packets that do not fit are dropped.
            self.dropped += u64::from(next.is_some_and(|next| next.transmit(packet).is_err()));
        });
        // A run for nothing is work too: the next task may be scheduled.
        moved.max(1)
    }

    fn rest(&mut self, limit: Duration) {
        self.tasks.sleep(limit);
    }

    fn counts(&self) -> Counts {
        Counts { dropped: self.dropped, kicks: Some(self.tasks.lock().kicks), kicks_redundant: Some(0) }
    }
}
