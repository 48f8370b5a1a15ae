//! The hand-off of FreeBSD's epair between its rework and D38843, as the model checker sees it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ring --release --test loom_epair`
//!
//! Rule: the checker must find the lost wake-up that users of FreeBSD 13.1 saw as packets stuck for hundreds of
//! milliseconds, and must find none in the state machine that replaced the scheme. If it no longer finds the first, its
//! word on our hand-off counts for nothing.
//! The scheme: transmitters add to ring `ridx` of two while the task empties the other. A transmitter announces itself in
//! `MBUF_QUEUED`, loads `ridx`, adds, and schedules the task unless `QUEUE_TASK` says that it is scheduled. The task
//! swaps `ridx`, empties the ring that was current, clears `QUEUE_TASK`, and schedules itself again if `MBUF_QUEUED` was
//! set meanwhile.
//! The mistake: between a transmitter's load of `ridx` and its adding, the task may run twice. The first run takes the announcement, the
//! second has swapped the rings back and empties the other one; the transmitter sees `QUEUE_TASK` set and goes, and its packet lies in a
//! ring at which the task does not look until another transmitter comes.
//! Source: review D38843, its description; FreeBSD commits 3dd5760aa5f8 and 66acf7685bcd.
//! Time: a few seconds.
//! A sleep is a loop that panics when both transmitters have gone and none scheduled the task.
//! Limits: every read here sees the latest value (a read-modify-write), so the fault found is that of the scheme and not of weak memory,
//! which the review doubts as well; rings are counts; the task queue is a flag.
#![cfg(loom)]

use loom::sync::atomic::Ordering::{AcqRel, Acquire};
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::sync::{Arc, Mutex};

/// A task queue's thread: a task is scheduled or it is not, and runs once for each time it was found scheduled.
#[derive(Default)]
struct TaskQueue {
    scheduled: AtomicBool,
    transmitters_done: AtomicUsize,
}

impl TaskQueue {
    fn enqueue(&self) {
        self.scheduled.swap(true, AcqRel);
    }

    /// Sleeps until the task is scheduled.
    fn next(&self) {
        loop {
            let nobody_left = self.transmitters_done.load(Acquire) == 2;
            if self.scheduled.swap(false, AcqRel) {
                return;
            }
            assert!(!nobody_left, "lost wake-up");
            loom::thread::yield_now();
        }
    }
}

const QUEUE_TASK: usize = 1;
const MBUF_QUEUED: usize = 2;

struct TwoRing {
    rings: [AtomicUsize; 2],
    ridx: AtomicUsize,
    state: AtomicUsize,
    tasks: TaskQueue,
}

impl TwoRing {
    fn transmit(&self) {
        self.state.fetch_or(MBUF_QUEUED, AcqRel);
        let ridx = self.ridx.fetch_add(0, AcqRel);
        self.rings[ridx].fetch_add(1, AcqRel);
        if self.state.fetch_or(QUEUE_TASK, AcqRel) & QUEUE_TASK == 0 {
            self.tasks.enqueue();
        }
    }

    /// Runs the task once; returns how many packets it took.
    fn task(&self) -> usize {
        let ridx = self.ridx.fetch_xor(1, AcqRel);
        let taken = self.rings[ridx].swap(0, AcqRel);
        self.state.fetch_and(!QUEUE_TASK, AcqRel);
        if self.state.fetch_and(!MBUF_QUEUED, AcqRel) & MBUF_QUEUED != 0 {
            self.tasks.enqueue();
        }
        taken
    }
}

#[derive(PartialEq)]
enum Task {
    Idle,
    Waking,
    Running,
}

/// The scheme of D38843 in its place: one queue under a mutex, emptied whole, and a state under the same mutex.
struct MutexQueue {
    queue: Mutex<(usize, Task)>,
    tasks: TaskQueue,
}

impl MutexQueue {
    fn transmit(&self) {
        let mut queue = self.queue.lock().unwrap();
        queue.0 += 1;
        if queue.1 == Task::Idle {
            queue.1 = Task::Waking;
            self.tasks.enqueue();
        }
    }

    fn task(&self) -> usize {
        let mut queue = self.queue.lock().unwrap();
        let taken = std::mem::take(&mut queue.0);
        queue.1 = Task::Running;
        drop(queue);
        // Here the packets go up the stack, unlocked, while others come.
        let mut queue = self.queue.lock().unwrap();
        if queue.0 > 0 {
            queue.1 = Task::Waking;
            self.tasks.enqueue();
        } else {
            queue.1 = Task::Idle;
        }
        taken
    }
}

trait Epair: Send + Sync + 'static {
    fn transmit(&self);
    fn task(&self) -> usize;
    fn tasks(&self) -> &TaskQueue;
}

impl Epair for TwoRing {
    fn transmit(&self) {
        TwoRing::transmit(self);
    }
    fn task(&self) -> usize {
        TwoRing::task(self)
    }
    fn tasks(&self) -> &TaskQueue {
        &self.tasks
    }
}

impl Epair for MutexQueue {
    fn transmit(&self) {
        MutexQueue::transmit(self);
    }
    fn task(&self) -> usize {
        MutexQueue::task(self)
    }
    fn tasks(&self) -> &TaskQueue {
        &self.tasks
    }
}

/// Runs two transmitters with a packet each; the task's thread ends when it has both.
fn run<E: Epair>(make: fn() -> E) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(move || {
        let epair = Arc::new(make());
        let transmitters: Vec<_> = (0..2)
            .map(|_| {
                let epair = Arc::clone(&epair);
                loom::thread::spawn(move || {
                    epair.transmit();
                    epair.tasks().transmitters_done.fetch_add(1, AcqRel);
                })
            })
            .collect();
        let mut taken = 0;
        while taken < 2 {
            epair.tasks().next();
            taken += epair.task();
        }
        transmitters.into_iter().for_each(|transmitter| transmitter.join().unwrap());
    });
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_the_lost_wake_up_of_the_two_ring_scheme() {
    run(|| TwoRing {
        rings: [AtomicUsize::new(0), AtomicUsize::new(0)],
        ridx: AtomicUsize::new(0),
        state: AtomicUsize::new(0),
        tasks: TaskQueue::default(),
    });
}

#[test]
fn loom_finds_none_in_the_state_machine_that_replaced_it() {
    run(|| MutexQueue { queue: Mutex::new((0, Task::Idle)), tasks: TaskQueue::default() });
}
