//! The contestants: every queue moves batches of `u32` descriptors from one vector to another.
//! Each is driven by the fastest interface it documents for that.
//!
//! Limits: a queue without batches moves its batch one element at a time.

use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};

/// The filling half.
pub trait Tx: Send {
    /// Moves what fits of `batch`; leaves the rest.
    fn send(&mut self, batch: &mut Vec<u32>);
}

/// The emptying half.
pub trait Rx: Send {
    /// Appends at most `max` elements to `out`.
    fn receive(&mut self, out: &mut Vec<u32>, max: usize);
}

/// `weir-ring`, batch interface.
pub fn weir(capacity: usize) -> (impl Tx, impl Rx) {
    weir_ring::spsc::ring::<u32>(capacity).expect("a power of two")
}

impl Tx for weir_ring::spsc::Producer<u32> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        self.push_all(batch);
    }
}

impl Rx for weir_ring::spsc::Consumer<u32> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        self.pop_into(out, max);
    }
}

/// `weir-ring`, the whole hand-off: staged batch, pending bit, fence, look at the worker's state.
pub fn weir_inbox(capacity: usize) -> (impl Tx, impl Rx) {
    let size = InboxSize { sources: 1, ring_elements: capacity, inject_elements: 1 };
    let (inbox, mut outlets) = inbox::<u32>(size).expect("a doorbell");
    (outlets.remove(0), WeirInbox(inbox, Vec::new(), 0))
}

impl Tx for Outlet<u32> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let staged = batch.iter().take_while(|&&item| self.stage(item).is_ok()).count();
        batch.drain(..staged);
        self.flush().expect("the worker is there");
    }
}

/// A drain has no limit but what is there, so what is over `max` waits here.
struct WeirInbox(Inbox<u32>, Vec<u32>, usize);

impl Rx for WeirInbox {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        if self.2 == self.1.len() {
            self.1.clear();
            self.2 = 0;
            self.0.drain(|_, item| self.1.push(item));
        }
        let end = self.1.len().min(self.2 + max);
        out.extend_from_slice(&self.1[self.2..end]);
        self.2 = end;
    }
}

/// `rtrb`, chunk interface.
pub fn rtrb_chunks(capacity: usize) -> (impl Tx, impl Rx) {
    let (tx, rx) = rtrb::RingBuffer::<u32>::new(capacity);
    (RtrbChunks(tx), RtrbChunks(rx))
}

struct RtrbChunks<H>(H);

impl Tx for RtrbChunks<rtrb::Producer<u32>> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        // Asking for more slots than its view shows makes the queue look at the other side's index.
        let count = match self.0.write_chunk(batch.len()) {
            Ok(_) => batch.len(),
            Err(rtrb::chunks::ChunkError::TooFewSlots(slots)) => slots,
        };
        let mut chunk = self.0.write_chunk(count).expect("these are free");
        let (first, second) = chunk.as_mut_slices();
        let split = first.len();
        first.copy_from_slice(&batch[..split]);
        second.copy_from_slice(&batch[split..count]);
        chunk.commit_all();
        batch.drain(..count);
    }
}

impl Rx for RtrbChunks<rtrb::Consumer<u32>> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        let count = match self.0.read_chunk(max) {
            Ok(_) => max,
            Err(rtrb::chunks::ChunkError::TooFewSlots(slots)) => slots,
        };
        let chunk = self.0.read_chunk(count).expect("these are there");
        let (first, second) = chunk.as_slices();
        out.extend_from_slice(first);
        out.extend_from_slice(second);
        chunk.commit_all();
    }
}

/// `rtrb`, one element at a time.
pub fn rtrb_single(capacity: usize) -> (impl Tx, impl Rx) {
    let (tx, rx) = rtrb::RingBuffer::<u32>::new(capacity);
    (RtrbSingle(tx), RtrbSingle(rx))
}

struct RtrbSingle<H>(H);

impl Tx for RtrbSingle<rtrb::Producer<u32>> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.0.push(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx for RtrbSingle<rtrb::Consumer<u32>> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.0.pop().ok()));
    }
}

/// `crossbeam_queue::ArrayQueue`.
pub fn array_queue(capacity: usize) -> (impl Tx, impl Rx) {
    let queue = std::sync::Arc::new(crossbeam_queue::ArrayQueue::<u32>::new(capacity));
    (ArrayQueue(queue.clone()), ArrayQueue(queue))
}

struct ArrayQueue(std::sync::Arc<crossbeam_queue::ArrayQueue<u32>>);

impl Tx for ArrayQueue {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.0.push(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx for ArrayQueue {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.0.pop()));
    }
}

/// `crossbeam_channel::bounded`.
pub fn channel(capacity: usize) -> (impl Tx, impl Rx) {
    crossbeam_channel::bounded::<u32>(capacity)
}

impl Tx for crossbeam_channel::Sender<u32> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.try_send(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx for crossbeam_channel::Receiver<u32> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.try_recv().ok()));
    }
}
