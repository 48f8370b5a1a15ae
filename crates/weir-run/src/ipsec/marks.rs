//! The writer of marks of sequence numbers (`ipsec/mark_file.rs`): one thread, so that no worker waits for a disk.
//!
//! | | written | at a clean end | after a kill |
//! |---|---|---|---|
//! | sent | before its numbers are used | gives back those that were not used | leaves them out |
//! | received | each second, if it has changed | says all that was received | what came in the last second may be taken once more |
//!
//! Rule: an association that never began has used no number, and gives back those that were reserved for it. A mark that cannot be written is
//! tried again; that is said once, and once more when it is written. Numbers to be sent end meanwhile, and packets wait; what was received
//! waits for no mark. A mark that somebody removed, replaced or overwrote is put back within a second, and that is said.
//!
//! Owner: the writer's thread; the numbers that it shares with workers are atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
/// The time between two looks at marks, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The longest time that the end of a process waits for its last marks; a disk that takes longer leaves numbers out.
const END: Duration = Duration::from_secs(1);

/// The thread that writes marks, started with the first.
#[derive(Debug, Default)]
pub struct MarkWriter {
    thread: Option<WriterThread>,
    tell: Option<fn(String)>,
}

#[derive(Debug)]
struct WriterThread {
    orders: Sender<Order>,
    /// Nothing ever comes here; it is cut off when the thread has ended.
    ended: Receiver<()>,
}

/// A mark, and the number that the worker of its association shares with the writer: the one that is safe, or the first above all that were
/// received.
#[derive(Debug)]
struct SharedMark {
    file: MarkFile,
    number: AtomicU64,
    /// True from the first try to write that failed until one does not; the writer's alone.
    is_failing: AtomicBool,
}

#[derive(Debug)]
enum Order {
    /// Looks after this mark from now on.
    Keep(Arc<SharedMark>),
    /// Writes this mark of what is sent, and tells that it is safe.
    Write(Arc<SharedMark>, u64),
    /// Writes the last number, or the one that is shared, and looks after the mark no more; without effect where that was ordered before.
    End(Arc<SharedMark>, Option<u64>),
    /// Answers, when all that was ordered before is done.
    Answer(Sender<()>),
}

impl MarkWriter {
    /// A writer that tells by `tell` what happens to marks.
    pub fn telling(tell: fn(String)) -> MarkWriter {
        MarkWriter { thread: None, tell: Some(tell) }
    }

    /// The mark of what an association sends, of which `safe` is written. If the association never begins, no number from `first` on is used,
    /// and the mark says so again.
    pub fn sent(&mut self, file: MarkFile, safe: u64, first: u64) -> SentMarkWriter {
        SentMarkWriter { writing: self.writing(file, safe), unused_from: Some(first) }
    }

    /// The mark of what an association receives, of which `next` is written: the first above all that were received.
    pub fn received(&mut self, file: MarkFile, next: u64) -> ReceivedMarkWriter {
        ReceivedMarkWriter(self.writing(file, next))
    }

    /// Waits until the files of associations that have ended are let go, so that their keys can be used again.
    pub fn settle(&self) {
        let Some(thread) = &self.thread else { return };
        let (answer, answered) = channel();
        // The thread ends after all that ask.
        let _ = thread.orders.send(Order::Answer(answer));
        // A disk that takes longer keeps its file.
        let _ = answered.recv_timeout(END);
    }

    fn writing(&mut self, file: MarkFile, number: u64) -> Writing {
        let tell = self.tell;
        let thread = self.thread.get_or_insert_with(|| {
            let (orders, inbox) = channel();
            let (ends, ended) = channel();
            std::thread::spawn(move || {
                write_all(&inbox, tell.unwrap_or(drop));
                drop::<Sender<()>>(ends);
            });
            WriterThread { orders, ended }
        });
        let writing = Writing {
            mark: Arc::new(SharedMark { file, number: number.into(), is_failing: false.into() }),
            orders: thread.orders.clone(),
        };
        writing.order(Order::Keep);
        writing
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
    fn order(&self, order: impl FnOnce(Arc<SharedMark>) -> Order) {
        // The thread ends after all that ask.
        let _ = self.orders.send(order(Arc::clone(&self.mark)));
    }
}

impl Drop for Writing {
    /// The association has ended.
    fn drop(&mut self) {
        self.order(|shared| Order::End(shared, None));
    }
}

/// The mark of an outbound association, as its worker asks for it.
#[derive(Debug)]
pub struct SentMarkWriter {
    writing: Writing,
    /// The first number of an association that has not begun.
    unused_from: Option<u64>,
}

impl SequenceMark for SentMarkWriter {
    fn begin(&mut self) {
        self.unused_from = None;
    }

    fn want(&mut self, mark: u64) {
        self.writing.order(|shared| Order::Write(shared, mark));
    }

    fn safe(&self) -> u64 {
        self.writing.mark.number.load(Ordering::Acquire)
    }

    fn end(&mut self, next: u64) {
        // The last mark is behind all that were asked for before.
        self.writing.order(|shared| Order::End(shared, Some(next)));
    }
}

impl Drop for SentMarkWriter {
    /// A change that failed gives back the numbers that it had reserved: it may be tried again and again.
    fn drop(&mut self) {
        if let Some(first) = self.unused_from {
            self.end(first);
        }
    }
}

/// The mark of an inbound association, as its worker tells it.
#[derive(Debug)]
pub struct ReceivedMarkWriter(Writing);

impl ReceivedMark for ReceivedMarkWriter {
    #[inline]
    fn received(&mut self, highest: u64) {
        // A number alone: nothing else is read by it.
        self.0.mark.number.store(highest.saturating_add(1), Ordering::Relaxed);
    }
}

/// Writes marks until nobody can ask any more.
fn write_all(inbox: &Receiver<Order>, tell: fn(String)) {
    let mut unwritten: Vec<(Arc<SharedMark>, u64)> = Vec::new();
    let mut kept: Vec<Arc<SharedMark>> = Vec::new();
    let mut next_look_ns = now_ns() + LOOK_NS;
    loop {
        let until_look = Duration::from_nanos(next_look_ns.saturating_sub(now_ns()));
        let next = match (unwritten.is_empty(), kept.is_empty()) {
            (true, true) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => inbox.recv_timeout(until_look),
            (false, _) => inbox.recv_timeout(AGAIN),
        };
        match next {
            Ok(Order::Keep(mark)) => kept.push(mark),
            Ok(Order::Write(mark, number)) => unwritten.push((mark, number)),
            Ok(Order::End(mark, last)) => {
                if let Some(place) = kept.iter().position(|kept| Arc::ptr_eq(kept, &mark)) {
                    kept.swap_remove(place);
                    let last = last.unwrap_or_else(|| mark.number.load(Ordering::Relaxed));
                    unwritten.push((mark, last));
                }
            }
            // Nobody may wait any more.
            Ok(Order::Answer(answer)) => drop(answer.send(())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        unwritten.retain(|(mark, number)| {
            let is_written = mark.write(*number, tell);
            if is_written {
                // What was received is written so only when its worker has ended.
                mark.number.store(*number, Ordering::Release);
            }
            !is_written
        });
        if now_ns() >= next_look_ns {
            for mark in &kept {
                // What cannot be written now is written by a later look.
                mark.write(mark.number.load(Ordering::Relaxed), tell);
            }
            next_look_ns = now_ns() + LOOK_NS;
        }
    }
}

impl SharedMark {
    /// Writes a number, and tells what is news; returns whether it is written.
    fn write(&self, number: u64, tell: fn(String)) -> bool {
        let written = self.file.write(number);
        let path = self.file.path().display();
        let was_failing = self.is_failing.swap(written.is_err(), Ordering::Relaxed);
        match &written {
            Err(error) if !was_failing => {
                tell(format!(
                    "{path}: {error}: this mark cannot be written, which is tried again{}",
                    self.file.price()
                ));
            }
            Ok(_) if was_failing => tell(format!("{path}: this mark is written again")),
            _ => {}
        }
        if let Ok(true) = written {
            tell(format!(
                "{path}: this mark was removed, replaced or overwritten while its key is used; it is there again"
            ));
        }
        written.is_ok()
    }
}
