//! The hand-off between workers: every worker has one inbox, and every other worker an outlet into it.
//! An inbox is one ring for each source, a word of pending bits and one doorbell.
//!
//! Rule:
//! - an outlet stages elements in the slots of its ring, where they stay, and publishes a batch at once: one store, one fence, at
//!   most one kick for each batch and destination (the coalesced interrupt of DragonFly's transmit path);
//! - a drain takes from each source at most the elements that were there when its turn began, so a busy source cannot hold up the others or
//!   the worker's other duties (invariant 6: FreeBSD's epair starved its neighbour without this);
//! - elements of one source come out in the order they were staged;
//! - a worker that goes away is seen: its inbox by the outlets' next flush; its outlets wake the others, which do not park before a
//!   drain has seen their rings empty.
//!
//! Ordering and ownership: an inbox belongs to its worker, an outlet to the worker it leads from. Rings order elements ([`crate::spsc`]);
//! bits and state order only the looks of workers ([`crate::doorbell`]).
//! Source: VPP's frame-queue hand-off for the shape; FreeBSD D38843 for both mistakes it must not repeat.
//! Limits: 63 sources. No order between sources. An outlet to oneself is not needed: a worker that hands
//! to itself puts the element into its own list, and needs no kick.

use crate::doorbell::{Doorbell, DoorbellCounts, Parked};
use crate::pending::{Notice, Pending};
use crate::spsc::{self, CapacityError, Consumer, Producer};

/// The most sources an inbox can have.
pub const SOURCES_MAX: usize = 63;

/// The most elements handled together: a drain's burst, and the elements that an outlet stages before it publishes by itself.
pub const BURST: usize = 64;

/// The size of an inbox.
#[derive(Debug, Clone, Copy)]
pub struct InboxSize {
    /// The number of workers that hand to this one.
    pub sources: usize,
    /// The elements for which each source's ring always has room.
    pub ring_elements: usize,
}

/// The reason why an inbox could not be made.
#[derive(Debug)]
pub enum InboxError {
    /// There are more sources than [`SOURCES_MAX`].
    Sources(usize),
    /// A ring cannot be that large.
    Capacity(CapacityError),
    /// The kernel has no eventfd to give.
    Doorbell(std::io::Error),
}

impl std::fmt::Display for InboxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InboxError::Sources(sources) => {
                write!(f, "an inbox for {sources} other workers: give at most {SOURCES_MAX}")
            }
            InboxError::Capacity(error) => error.fmt(f),
            InboxError::Doorbell(error) => {
                write!(f, "cannot make a doorbell: {error}; raise the limit of open files")
            }
        }
    }
}

impl std::error::Error for InboxError {}

/// The worker at the other end has gone, and will take no element any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned;

impl std::fmt::Display for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the worker at the other end of the hand-off has gone")
    }
}

impl std::error::Error for Abandoned {}

/// A worker's end, for all elements that others hand to it.
pub struct Inbox<T: Send> {
    rings: Box<[Consumer<T>]>,
    pending: Pending,
    doorbell: Doorbell,
}

/// One worker's way into another's inbox.
pub struct Outlet<T: Send> {
    ring: Producer<T>,
    notice: Notice,
    /// Batches that took a kick.
    kicks: u64,
}

/// Makes an inbox and the outlets that lead into it.
///
/// # Errors
/// If the size is out of range or the kernel has no eventfd to give.
pub fn inbox<T: Send>(size: InboxSize) -> Result<(Inbox<T>, Vec<Outlet<T>>), InboxError> {
    inbox_under(Doorbell::new, size)
}

fn inbox_under<T: Send>(
    doorbell: fn() -> std::io::Result<Doorbell>,
    size: InboxSize,
) -> Result<(Inbox<T>, Vec<Outlet<T>>), InboxError> {
    if size.sources > SOURCES_MAX {
        return Err(InboxError::Sources(size.sources));
    }
    let doorbell = doorbell().map_err(InboxError::Doorbell)?;
    let pending = Pending::new();
    let mut rings = Vec::with_capacity(size.sources);
    let mut outlets = Vec::with_capacity(size.sources);
    for source in 0..size.sources {
        let capacity = spsc::capacity_for(size.ring_elements);
        let (producer, consumer) = spsc::ring(capacity).map_err(InboxError::Capacity)?;
        rings.push(consumer);
        outlets.push(Outlet {
            ring: producer,
            notice: pending.notice(1 << source, doorbell.ringer()),
            kicks: 0,
        });
    }
    Ok((Inbox { rings: rings.into(), pending, doorbell }, outlets))
}

/// Makes an inbox for each of `workers` workers. The outlets of worker `w` are at `[w].1`, by destination; the one to
/// itself is `None`.
///
/// Doorbells have full fences ([`Doorbell::with_full_fences`]): when one worker of several parks the others are mostly busy, and in batches
/// a fence costs each element little.
///
/// # Errors
/// Those of [`inbox`].
#[expect(clippy::type_complexity, reason = "a list of what each worker gets")]
pub fn mesh<T: Send>(
    workers: usize,
    ring_elements: usize,
) -> Result<Vec<(Inbox<T>, Vec<Option<Outlet<T>>>)>, InboxError> {
    let size = InboxSize { sources: workers.saturating_sub(1), ring_elements };
    let mut inboxes = Vec::with_capacity(workers);
    let mut outlets: Vec<Vec<Option<Outlet<T>>>> =
        (0..workers).map(|_| Vec::with_capacity(workers)).collect();
    for destination in 0..workers {
        let (inbox, leading_here) = inbox_under(Doorbell::with_full_fences, size)?;
        inboxes.push(inbox);
        let mut leading_here = leading_here.into_iter();
        for (worker, outlets) in outlets.iter_mut().enumerate() {
            outlets.push(if worker == destination { None } else { leading_here.next() });
        }
    }
    Ok(inboxes.into_iter().zip(outlets).collect())
}

impl<T: Send> Outlet<T> {
    /// Puts `item` with the batch. When [`BURST`] are staged they are flushed first, and when the ring is full, so that the worker
    /// makes room.
    ///
    /// # Errors
    /// The item, if the ring has no room, or [`BURST`] are staged and no worker is at its end.
    #[inline]
    pub fn stage(&mut self, item: T) -> Result<(), T> {
        if self.ring.staged() == BURST && self.flush().is_err() {
            return Err(item);
        }
        let answer = self.ring.stage(item);
        if answer.is_err() {
            // With the worker gone no room will come.
            let _ = self.flush();
        }
        answer
    }

    /// Publishes the staged elements, at once, and wakes the worker if it is parked. Returns how many went.
    ///
    /// # Errors
    /// If the worker has gone: [`Outlet::take_back`] returns the elements it has not taken.
    #[inline]
    pub fn flush(&mut self) -> Result<usize, Abandoned> {
        let count = self.publish()?;
        if count > 0 {
            self.wake();
        }
        Ok(count)
    }

    /// Publishes the staged elements, and lets the worker sleep on if it is parked: to be followed by [`Outlet::wake`] before this one
    /// parks. Returns how many went.
    ///
    /// # Errors
    /// Those of [`Outlet::flush`].
    #[inline]
    pub fn flush_quietly(&mut self) -> Result<usize, Abandoned> {
        let count = self.publish()?;
        if count > 0 {
            self.notice.mark();
        }
        Ok(count)
    }

    /// Wakes the worker, if it is parked, for elements that were published quietly.
    #[inline]
    pub fn wake(&mut self) {
        self.kicks += u64::from(self.notice.raise());
    }

    #[inline]
    fn publish(&mut self) -> Result<usize, Abandoned> {
        if self.ring.is_abandoned() {
            return Err(Abandoned);
        }
        Ok(self.ring.publish())
    }

    /// Makes the worker look, and wakes it if it is parked, for a reason other than elements.
    pub fn nudge(&self) {
        self.notice.raise();
    }

    /// The number of staged elements.
    #[inline]
    pub fn staged(&self) -> usize {
        self.ring.staged()
    }

    /// Takes back the oldest element that a worker left behind when it went, and then the elements that were staged for it. `None` while
    /// the worker is there.
    pub fn take_back(&mut self) -> Option<T> {
        self.ring.take_back()
    }

    /// The number of batches that took a kick.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }
}

impl<T: Send> Drop for Outlet<T> {
    /// Publishes the staged elements, and lets the worker know that no more will come.
    fn drop(&mut self) {
        // With the worker gone none needs to be told.
        let _ = self.flush();
        self.ring.leave();
        self.notice.raise();
    }
}

impl<T: Send> Inbox<T> {
    /// Hands every element that was there to `handle`, with its source's number, source by source: of each source those that were there
    /// when its turn began. Returns how many. If `handle` panics, later elements wait for the next drain.
    pub fn drain(&mut self, handle: impl FnMut(usize, T)) -> usize {
        self.drain_some(usize::MAX, handle)
    }

    /// Drains as [`Inbox::drain`] does, but at most `most` from each other worker: elements behind them wait in its ring, where a long
    /// queue costs no cache, and come with the next drain.
    pub fn drain_some(&mut self, most: usize, mut handle: impl FnMut(usize, T)) -> usize {
        let mut total = 0;
        for source in each_bit(self.pending.bits()) {
            total += self.drain_ring(source, most, &mut handle);
        }
        total
    }

    /// Says that the worker will block, unless a drain or `other_work` (ports, timers) may find something, or a source has gone that no
    /// drain has seen gone. `None` if so. See [`Doorbell::park`].
    pub fn park(&mut self, other_work: impl FnOnce() -> bool) -> Option<Parked<'_>> {
        let Inbox { rings, pending, doorbell } = self;
        let bits = pending.clear();
        doorbell.park(|| {
            // A source that has gone is news until a drain clears its bit.
            let found = each_bit(bits).filter(|&source| waiting_in(&mut rings[source]) != Some(0));
            let found = found.fold(0, |found, source| found | 1 << source);
            if found != 0 {
                pending.set(found);
            }
            pending.bits() != 0 || other_work()
        })
    }

    /// Returns whether any thread has called this worker since it last said that it will block.
    pub fn is_called(&self) -> bool {
        self.pending.bits() != 0
    }

    /// The least number of elements that the last drain left with the other workers: it has seen them, and more may have come.
    pub fn left(&self) -> usize {
        self.rings.iter().map(Consumer::left).sum()
    }

    /// Shows `look` the elements that wait in the rings of other workers now, ring by ring in order; they stay there.
    pub fn look_at_waiting(&mut self, mut look: impl FnMut(&T)) {
        self.rings.iter_mut().for_each(|ring| ring.look_at(&mut look));
    }

    /// The doorbell's counters so far.
    pub fn counts(&self) -> DoorbellCounts {
        self.doorbell.counts()
    }

    fn drain_ring(&mut self, source: usize, most: usize, handle: &mut impl FnMut(usize, T)) -> usize {
        let ring = &mut self.rings[source];
        let Some(total) = waiting_in(ring) else {
            self.pending.clear_bit(1 << source);
            return 0;
        };
        let total = total.min(most);
        let mut left = total;
        while left > 0 {
            // Elements are popped a burst at a time, so that its slots go back before all have been handled.
            left -= ring.pop_each(left.min(BURST), |item| handle(source, item));
        }
        total
    }
}

/// The number of elements that a source has for us now; `None` if it has gone and left none.
#[inline]
fn waiting_in<T: Send>(ring: &mut Consumer<T>) -> Option<usize> {
    let waiting = ring.len();
    if waiting > 0 || !ring.is_abandoned() {
        return Some(waiting);
    }
    // The last elements of a source that went are visible only once its going is: hence the second look.
    Some(ring.len()).filter(|&waiting| waiting > 0)
}

/// The places of the set bits of a word, from the lowest.
fn each_bit(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            place
        })
    })
}

impl<T: Send> std::fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("sources", &self.rings.len()).field("counts", &self.counts()).finish()
    }
}

impl<T: Send> std::fmt::Debug for Outlet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").field("staged", &self.staged()).field("kicks", &self.kicks).finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "handoff_tests.rs"]
mod tests;
