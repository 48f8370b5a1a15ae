//! The contestants: every queue moves batches of descriptors, of four bytes or eight, from one vector to another.
//! Each is driven by the fastest interface it documents for that.
//!
//! Limits: a queue without batches moves its batch one element at a time. DPDK's ring is a program of its own
//! ([`crate::dpdk`]), with the same loops.

use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};

/// A descriptor: a number.
pub trait Element: Copy + Send + 'static {
    fn of(number: u32) -> Self;
    /// 0 only if it is this number.
    fn differs(self, number: u32) -> u64;
}

impl Element for u32 {
    #[inline]
    fn of(number: u32) -> u32 {
        number
    }
    #[inline]
    fn differs(self, number: u32) -> u64 {
        (self ^ number).into()
    }
}

impl Element for u64 {
    #[inline]
    fn of(number: u32) -> u64 {
        number.into()
    }
    #[inline]
    fn differs(self, number: u32) -> u64 {
        self ^ u64::from(number)
    }
}

/// The filling half.
pub trait Tx<T>: Send {
    /// Moves as many elements of `batch` as fit; leaves the rest.
    fn send(&mut self, batch: &mut Vec<T>);
}

/// The emptying half.
pub trait Rx<T>: Send {
    /// Appends at most `max` elements to `out`.
    fn receive(&mut self, out: &mut Vec<T>, max: usize);
}

/// `weir-ring`, the batch interface, and that for single elements where a batch has one.
pub fn weir<T: Element>(capacity: usize) -> (impl Tx<T>, impl Rx<T>) {
    weir_ring::spsc::ring::<T>(capacity).expect("a power of two")
}

impl<T: Element> Tx<T> for weir_ring::spsc::Producer<T> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<T>) {
        match batch.as_slice() {
            // A batch of one has an interface of its own.
            [one] if self.push(*one).is_ok() => batch.clear(),
            _ => drop(self.push_all(batch)),
        }
    }
}

impl<T: Element> Rx<T> for weir_ring::spsc::Consumer<T> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<T>, max: usize) {
        match max {
            1 => out.extend(self.pop()),
            _ => drop(self.pop_into(out, max)),
        }
    }
}

/// `weir-ring`, the whole hand-off: staged batch, pending bit, fence, look at the worker's state.
pub fn weir_inbox<T: Element>(capacity: usize) -> (impl Tx<T>, impl Rx<T>) {
    let size = InboxSize { sources: 1, ring_elements: capacity };
    let (inbox, mut outlets) = inbox::<T>(size).expect("a doorbell");
    (outlets.remove(0), WeirInbox(inbox, Vec::new(), 0))
}

impl<T: Element> Tx<T> for Outlet<T> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<T>) {
        let staged = batch.iter().take_while(|&&item| self.stage(item).is_ok()).count();
        batch.drain(..staged);
        self.flush().expect("the worker is there");
    }
}

/// An inbox. A drain takes all that is there, so elements over `max` wait here.
struct WeirInbox<T: Send>(Inbox<T>, Vec<T>, usize);

impl<T: Element> Rx<T> for WeirInbox<T> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<T>, max: usize) {
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
pub fn rtrb_chunks<T: Element + Default>(capacity: usize) -> (impl Tx<T>, impl Rx<T>) {
    let (tx, rx) = rtrb::RingBuffer::<T>::new(capacity);
    (RtrbChunks(tx), RtrbChunks(rx))
}

struct RtrbChunks<H>(H);

impl<T: Element + Default> Tx<T> for RtrbChunks<rtrb::Producer<T>> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<T>) {
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

impl<T: Element + Default> Rx<T> for RtrbChunks<rtrb::Consumer<T>> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<T>, max: usize) {
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
pub fn rtrb_single(capacity: usize) -> (impl Tx<u32>, impl Rx<u32>) {
    let (tx, rx) = rtrb::RingBuffer::<u32>::new(capacity);
    (RtrbSingle(tx), RtrbSingle(rx))
}

struct RtrbSingle<H>(H);

impl Tx<u32> for RtrbSingle<rtrb::Producer<u32>> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.0.push(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx<u32> for RtrbSingle<rtrb::Consumer<u32>> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.0.pop().ok()));
    }
}

/// `crossbeam_queue::ArrayQueue`.
pub fn array_queue(capacity: usize) -> (impl Tx<u32>, impl Rx<u32>) {
    let queue = std::sync::Arc::new(crossbeam_queue::ArrayQueue::<u32>::new(capacity));
    (ArrayQueue(queue.clone()), ArrayQueue(queue))
}

struct ArrayQueue(std::sync::Arc<crossbeam_queue::ArrayQueue<u32>>);

impl Tx<u32> for ArrayQueue {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.0.push(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx<u32> for ArrayQueue {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.0.pop()));
    }
}

/// `crossbeam_channel::bounded`.
pub fn channel(capacity: usize) -> (impl Tx<u32>, impl Rx<u32>) {
    crossbeam_channel::bounded::<u32>(capacity)
}

impl Tx<u32> for crossbeam_channel::Sender<u32> {
    #[inline]
    fn send(&mut self, batch: &mut Vec<u32>) {
        let sent = batch.iter().take_while(|&&item| self.try_send(item).is_ok()).count();
        batch.drain(..sent);
    }
}

impl Rx<u32> for crossbeam_channel::Receiver<u32> {
    #[inline]
    fn receive(&mut self, out: &mut Vec<u32>, max: usize) {
        out.extend((0..max).map_while(|_| self.try_recv().ok()));
    }
}
