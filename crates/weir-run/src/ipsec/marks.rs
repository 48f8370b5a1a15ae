//! The writer of marks of sequence numbers (`ipsec/mark_file.rs`): one thread, so that no worker waits for a disk.
//!
//! | | written | at a clean end | after a kill |
//! |---|---|---|---|
//! | sent | before its numbers are used | gives back those that were not used | leaves them out |
//! | received | each second, if it has changed | says all that was received | what came in the last second may be taken once more |
//!
//! Rule: a mark that cannot be written is tried again. Numbers to be sent end meanwhile, and packets wait; what was received waits for no
//! mark.
//!
//! Owner: the writer's thread; the numbers that it shares with workers are atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use weir_path::esp::marks::{ReceivedMark, SequenceMark};

use super::mark_file::MarkFile;
use crate::clock::now_ns;

/// The number of numbers that are reserved at once: at a million a second two seconds before the disk is waited for.
pub const AHEAD: u64 = weir_ipsec::sequence::AHEAD_DEFAULT;
/// The number for an association whose numbers have 32 bits: a process that is killed leaves them out, and 8,192 kills use a key up.
pub const AHEAD_SHORT: u64 = AHEAD / 8;

/// The time after which a mark that could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// The time between two looks at what was received, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The longest time that the end of a process waits for its last marks; a disk that takes longer leaves numbers out.
const END: Duration = Duration::from_secs(1);

/// The thread that writes marks, started with the first.
#[derive(Debug, Default)]
pub struct MarkWriter {
    thread: Option<WriterThread>,
}

#[derive(Debug)]
struct WriterThread {
    orders: Sender<Order>,
    /// Nothing ever comes here; it is cut off when the thread has ended.
    ended: Receiver<()>,
}

/// A mark, and the number that it shares with the worker of its association: the one that is safe, or the highest received.
#[derive(Debug)]
struct SharedMark {
    file: MarkFile,
    number: AtomicU64,
}

#[derive(Debug)]
enum Order {
    /// Writes this mark of what is sent, and tells that it is safe.
    Write(Arc<SharedMark>, u64),
    /// Writes the mark of what was received from now on; this number is in its file.
    Keep(Arc<SharedMark>, u64),
    /// Writes the last.
    End(Arc<SharedMark>),
}

impl MarkWriter {
    /// The mark of what an association sends, from its first number that nobody can have used.
    pub fn sent(&mut self, file: MarkFile, safe: u64) -> SentMarkWriter {
        SentMarkWriter(Writing::new(file, safe, self.orders()))
    }

    /// The mark of what an association receives, which has received `highest`.
    pub fn received(&mut self, file: MarkFile, highest: u64) -> ReceivedMarkWriter {
        let writing = Writing::new(file, highest, self.orders());
        // The thread ends after all that ask.
        let _ = writing.orders.send(Order::Keep(Arc::clone(&writing.mark), highest));
        ReceivedMarkWriter(writing)
    }

    fn orders(&mut self) -> Sender<Order> {
        let thread = self.thread.get_or_insert_with(|| {
            let (orders, inbox) = channel();
            let (ends, ended) = channel();
            std::thread::spawn(move || {
                write_all(&inbox);
                drop::<Sender<()>>(ends);
            });
            WriterThread { orders, ended }
        });
        thread.orders.clone()
    }
}

impl Drop for MarkWriter {
    /// Waits for the last marks, which associations asked for when they ended.
    fn drop(&mut self) {
        if let Some(WriterThread { orders, ended }) = self.thread.take() {
            drop(orders);
            // The channel is cut off, or the time is over.
            let _ = ended.recv_timeout(END);
        }
    }
}

/// The mark of one association, at its worker.
#[derive(Debug)]
struct Writing {
    mark: Arc<SharedMark>,
    orders: Sender<Order>,
}

impl Writing {
    fn new(file: MarkFile, number: u64, orders: Sender<Order>) -> Writing {
        Writing { mark: Arc::new(SharedMark { file, number: number.into() }), orders }
    }
}

/// The mark of an outbound association, as its worker asks for it.
#[derive(Debug)]
pub struct SentMarkWriter(Writing);

impl SequenceMark for SentMarkWriter {
    fn want(&mut self, mark: u64) {
        // The thread ends after all that ask.
        let _ = self.0.orders.send(Order::Write(Arc::clone(&self.0.mark), mark));
    }

    fn safe(&self) -> u64 {
        self.0.mark.number.load(Ordering::Acquire)
    }

    fn end(&mut self, next: u64) {
        // The last mark is behind all that were asked for before.
        self.want(next);
    }
}

/// The mark of an inbound association, as its worker tells it.
#[derive(Debug)]
pub struct ReceivedMarkWriter(Writing);

impl ReceivedMark for ReceivedMarkWriter {
    #[inline]
    fn received(&mut self, highest: u64) {
        // A number alone: nothing else is read by it.
        self.0.mark.number.store(highest, Ordering::Relaxed);
    }
}

impl Drop for ReceivedMarkWriter {
    fn drop(&mut self) {
        // The channel brings the last number with it.
        let _ = self.0.orders.send(Order::End(Arc::clone(&self.0.mark)));
    }
}

/// A mark of what was received, and the number that is in its file.
struct Kept {
    mark: Arc<SharedMark>,
    written: u64,
}

impl Kept {
    fn write(&mut self) {
        let highest = self.mark.number.load(Ordering::Relaxed);
        if highest != self.written && self.mark.file.write(highest.saturating_add(1)).is_ok() {
            self.written = highest;
        }
    }
}

/// Writes marks until nobody can ask any more.
fn write_all(inbox: &Receiver<Order>) {
    let mut failed: Vec<(Arc<SharedMark>, u64)> = Vec::new();
    let mut kept: Vec<Kept> = Vec::new();
    let mut next_look_ns = now_ns() + LOOK_NS;
    loop {
        let next = match (failed.is_empty(), kept.is_empty()) {
            (true, true) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => inbox.recv_timeout(Duration::from_nanos(next_look_ns.saturating_sub(now_ns()))),
            (false, _) => inbox.recv_timeout(AGAIN),
        };
        match next {
            Ok(Order::Write(mark, number)) => failed.push((mark, number)),
            Ok(Order::Keep(mark, written)) => kept.push(Kept { mark, written }),
            Ok(Order::End(mark)) => {
                let place = kept.iter().position(|kept| Arc::ptr_eq(&kept.mark, &mark));
                if let Some(place) = place {
                    kept.swap_remove(place).write();
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        failed.retain(|(mark, number)| match mark.file.write(*number) {
            Ok(()) => {
                mark.number.store(*number, Ordering::Release);
                false
            }
            Err(_) => true,
        });
        if now_ns() >= next_look_ns {
            kept.iter_mut().for_each(Kept::write);
            next_look_ns = now_ns() + LOOK_NS;
        }
    }
}
