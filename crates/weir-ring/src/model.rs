//! The rings and the hand-off against queues of the standard library, operation by operation: one model, which property
//! tests and the fuzz target `handoff` feed with bytes.
//!
//! Rule: the first byte says what is modelled, every other byte is one operation: its low three bits are the kind, the others its argument.
//! After every operation the real ring and the model agree: the same elements in the same order, "full" only within the slots a ring may
//! keep back, and a worker may block exactly when all published elements are drained and all departures seen.
//! Ordering and ownership: one thread, so the effects of the operations are checked; `sync` switches to the model checker for the effects
//! of threads on each other.
//! Limits: three sources, rings of up to 64 slots. Built for tests and fuzzing only.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::handoff::{BURST, Inbox, InboxSize, Outlet, inbox};
use crate::spsc::{Consumer, Producer, kept_back_max, ring};

/// Runs the operations of `bytes`.
///
/// # Panics
/// If a ring and its model differ.
pub fn run(bytes: &[u8]) {
    let Some((&first, operations)) = bytes.split_first() else { return };
    if first & 1 == 0 {
        RingModel::new(1 << ((first >> 1) % 7)).run(operations, first & 0x80 != 0);
    } else {
        // In the longer rings a batch is published by itself, in the shorter ones they are full before.
        let ring_elements = if first & 2 == 0 { RING_ELEMENTS } else { 2 * BURST };
        InboxModel::new(ring_elements).run(operations);
    }
}

/// An element with a number that is counted while it lives.
#[derive(Debug)]
struct Item(u64, #[expect(dead_code, reason = "held to be counted")] Arc<()>);

struct RingModel {
    capacity: usize,
    producer: Producer<Item>,
    consumer: Consumer<Item>,
    queue: VecDeque<u64>,
    staged: VecDeque<u64>,
    alive: Arc<()>,
    next: u64,
}

impl RingModel {
    fn new(capacity: usize) -> RingModel {
        let (producer, consumer) = ring(capacity).expect("a power of two");
        let (queue, staged) = (VecDeque::new(), VecDeque::new());
        RingModel { capacity, producer, consumer, queue, staged, alive: Arc::new(()), next: 0 }
    }

    fn run(mut self, operations: &[u8], consumer_stays: bool) {
        for byte in operations {
            let argument = usize::from(byte >> 3);
            match byte & 7 {
                0 => self.push(),
                1 => self.push_all(argument),
                2 if argument < 8 => self.publish(),
                2 => self.stage(),
                3 => assert_eq!(self.consumer.pop().map(|item| item.0), self.queue.pop_front()),
                4 | 5 => self.pop_into(argument),
                _ => {
                    assert_eq!(self.consumer.len(), self.queue.len());
                    assert_eq!(self.consumer.is_empty(), self.queue.is_empty());
                }
            }
            let inside = self.queue.len() + self.staged.len();
            assert!(inside <= self.capacity);
            assert_eq!(self.producer.staged(), self.staged.len());
            assert_eq!(Arc::strong_count(&self.alive), 1 + inside);
        }
        self.end(consumer_stays);
    }

    fn item(&mut self) -> Item {
        self.next += 1;
        Item(self.next, Arc::clone(&self.alive))
    }

    fn assert_may_be_full(&self) {
        let inside = self.queue.len() + self.staged.len();
        assert!(inside + kept_back_max(self.capacity) >= self.capacity, "refused with room left");
    }

    fn stage(&mut self) {
        let item = self.item();
        match self.producer.stage(item) {
            Ok(()) => self.staged.push_back(self.next),
            Err(item) => {
                assert_eq!(item.0, self.next);
                self.assert_may_be_full();
            }
        }
    }

    fn publish(&mut self) {
        assert_eq!(self.producer.publish(), self.staged.len());
        self.queue.append(&mut self.staged);
    }

    fn push(&mut self) {
        let item = self.item();
        match self.producer.push(item) {
            Ok(()) => {
                self.queue.append(&mut self.staged);
                self.queue.push_back(self.next);
            }
            Err(item) => {
                assert_eq!(item.0, self.next);
                self.assert_may_be_full();
            }
        }
    }

    fn push_all(&mut self, count: usize) {
        let mut items: Vec<Item> = (0..count).map(|_| self.item()).collect();
        let numbers: Vec<u64> = items.iter().map(|item| item.0).collect();
        let pushed = self.producer.push_all(&mut items);
        if pushed > 0 {
            self.queue.append(&mut self.staged);
        }
        self.queue.extend(&numbers[..pushed]);
        assert!(items.iter().map(|item| item.0).eq(numbers[pushed..].iter().copied()));
        if !items.is_empty() {
            self.assert_may_be_full();
        }
    }

    fn pop_into(&mut self, max: usize) {
        let mut out = Vec::with_capacity(max);
        let popped = self.consumer.pop_into(&mut out, max);
        assert_eq!(popped, out.len());
        assert!(popped > 0 || self.queue.is_empty() || max == 0);
        for item in out {
            assert_eq!(Some(item.0), self.queue.pop_front());
        }
    }

    /// Drops one half: in either order the other gets the rest, and nothing leaks.
    fn end(self, consumer_stays: bool) {
        let RingModel { mut producer, mut consumer, mut queue, mut staged, alive, .. } = self;
        // A producer that goes publishes.
        queue.append(&mut staged);
        if consumer_stays {
            drop(producer);
            assert!(consumer.is_abandoned());
            assert!(std::iter::from_fn(|| consumer.pop()).map(|item| item.0).eq(queue));
            drop(consumer);
        } else {
            assert!(producer.take_back().is_none());
            drop(consumer);
            assert!(producer.is_abandoned());
            for _ in 0..queue.len() / 2 {
                assert_eq!(producer.take_back().map(|item| item.0), queue.pop_front());
            }
            drop(producer);
        }
        assert_eq!(Arc::strong_count(&alive), 1, "an element outlived the ring");
    }
}

const SOURCES: usize = 3;
const RING_ELEMENTS: usize = 16;

struct InboxModel {
    inbox: Inbox<u64>,
    /// The outlet of each source, until it goes, and the elements it has staged.
    sources: Vec<(Option<Outlet<u64>>, VecDeque<u64>)>,
    /// The elements that were published and not drained.
    published: HashMap<usize, VecDeque<u64>>,
    /// The sources that have gone and that no drain has seen gone.
    news: Vec<usize>,
    ring_elements: usize,
    next: u64,
}

impl InboxModel {
    fn new(ring_elements: usize) -> InboxModel {
        let size = InboxSize { sources: SOURCES, ring_elements };
        let (inbox, outlets) = inbox(size).expect("a doorbell");
        let sources = outlets.into_iter().map(|outlet| (Some(outlet), VecDeque::new())).collect();
        InboxModel { inbox, sources, ring_elements, published: HashMap::new(), news: Vec::new(), next: 0 }
    }

    fn run(mut self, operations: &[u8]) {
        for byte in operations {
            let argument = usize::from(byte >> 3);
            let source = argument % SOURCES;
            match byte & 7 {
                0 | 1 => self.stage(source),
                2 => (0..argument).for_each(|_| self.stage(source)),
                3 | 4 => self.flush(source),
                5 => self.drain(),
                6 => self.park(),
                _ if argument < 4 => self.end(source),
                _ => self.flush(source),
            }
        }
        // After two looks at most, the inbox knows that there is nothing left to wake for.
        self.drain();
        self.inbox.drain(|_, _| panic!("nothing is left"));
        assert!(self.inbox.park(|| false).is_some());
    }

    fn stage(&mut self, source: usize) {
        let (Some(outlet), staged) = &mut self.sources[source] else { return };
        self.next += 1;
        let answer = outlet.stage(self.next);
        // A whole batch is published by itself, and so are staged elements when the ring is full.
        let went = staged.len() + usize::from(answer.is_ok()) - outlet.staged();
        assert!(went == 0 || went == staged.len() && (went == BURST || answer.is_err()));
        let queue = self.published.entry(source).or_default();
        queue.extend(staged.drain(..went));
        match answer {
            Ok(()) => staged.push_back(self.next),
            Err(item) => {
                assert_eq!(item, self.next);
                assert!(queue.len() >= self.ring_elements, "refused with room left");
            }
        }
    }

    fn flush(&mut self, source: usize) {
        let (Some(outlet), staged) = &mut self.sources[source] else { return };
        let queue = self.published.entry(source).or_default();
        let before = staged.len();
        let went = outlet.flush().expect("the worker is there");
        queue.extend(staged.drain(..));
        assert_eq!((went, outlet.staged()), (before, 0));
    }

    fn drain(&mut self) {
        let mut seen: HashMap<usize, VecDeque<u64>> = HashMap::new();
        let count = self.inbox.drain(|source, item| seen.entry(source).or_default().push_back(item));
        assert_eq!(count, seen.values().map(VecDeque::len).sum::<usize>());
        self.published.retain(|_, queue| !queue.is_empty());
        assert_eq!(seen, self.published);
        self.news.retain(|source| seen.contains_key(source));
        self.published.clear();
    }

    fn park(&mut self) {
        let waiting = self.published.values().any(|queue| !queue.is_empty());
        let blocks = self.inbox.park(|| false).is_some();
        assert_eq!(blocks, !waiting && self.news.is_empty(), "{:?} {:?}", self.published, self.news);
    }

    /// Ends a source: dropping it publishes its staged elements.
    fn end(&mut self, source: usize) {
        let (outlet, staged) = std::mem::take(&mut self.sources[source]);
        self.news.extend(outlet.map(|_| source));
        self.published.entry(source).or_default().extend(staged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 1024 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn everything_is_as_modelled(bytes in prop::collection::vec(any::<u8>(), 1..if cfg!(miri) { 40 } else { 200 })) {
            run(&bytes);
        }
    }
}
