//! The drops of the devices and queues of a wire, and whether an event that was said explains them.
//!
//! ```text
//! dropped since the wire came up = during events + unexplained
//! ```
//!
//! Rule: the growth of a counter from one look to the next is an event's if one was noted at the later of the two, or had not been over at
//! the earlier; otherwise it is unexplained. An event is over when all has been well for [`SETTLE_NS`], because the kernel lets a device
//! send again only some time after its carrier is back. While the two ends of a pair have different MTUs, what the devices drop there is
//! longer than the other end takes, and an event's too.
//!
//! Owner: the watcher. It is told the time. Limits: packets dropped in the second before an event is noted count as the event's. The kernel
//! frees the packets of a queue that is replaced uncounted: `waiting` is how many waited there when it was last looked at.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// For how long all must be well before an event is over, in nanoseconds.
pub const SETTLE_NS: u64 = 500_000_000;

/// An event of an interface while a wire is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterfaceEvent {
    /// The interface was down, or its other end.
    Down,
    /// The queue was replaced or removed.
    QueueReplaced,
    /// Checksums were left to the device.
    ChecksumOffload,
    /// VLAN tags were left to the device.
    TagInsertion,
    /// A program of somebody else's came before weir's.
    ProgramBefore,
    /// The interface got another MTU.
    Mtu,
    /// The interface got another name.
    Renamed,
    /// The interface moved to another namespace.
    Moved,
    /// The interface vanished.
    Gone,
}

impl InterfaceEvent {
    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            InterfaceEvent::Down => "down",
            InterfaceEvent::QueueReplaced => "queue-replaced",
            InterfaceEvent::ChecksumOffload => "checksum-offload",
            InterfaceEvent::TagInsertion => "tag-insertion",
            InterfaceEvent::ProgramBefore => "program-before",
            InterfaceEvent::Mtu => "mtu",
            InterfaceEvent::Renamed => "renamed",
            InterfaceEvent::Moved => "moved",
            InterfaceEvent::Gone => "gone",
        }
    }
}

/// The counts of the events of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventStats {
    /// The number of the events.
    pub times: u64,
    /// Packets that devices and queues dropped meanwhile.
    pub dropped: u64,
    /// Packets that waited in senders' queues that the kernel emptied, when they were last looked at: lost at most, and nowhere counted.
    pub waiting: u64,
}

/// Counters of drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drops {
    /// Packets that came in, dropped by the device.
    pub rx: u64,
    /// Packets that were to go out, dropped by the device.
    pub tx: u64,
    /// Packets dropped by its queue.
    pub queue: u64,
}

impl Drops {
    fn each(&self, other: &Drops, with: impl Fn(u64, u64) -> u64) -> Drops {
        Drops {
            rx: with(self.rx, other.rx),
            tx: with(self.tx, other.tx),
            queue: with(self.queue, other.queue),
        }
    }

    fn sum(&self) -> u64 {
        self.rx + self.tx + self.queue
    }
}

/// One device's counts since the wire came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All drops.
    pub dropped: Drops,
    /// The drops that no event explains.
    pub unexplained: Drops,
    last: Option<Drops>,
    /// True if the pair's ends have different MTUs.
    has_narrow_end: bool,
}

impl Counts {
    /// The counts of a device that nobody watches: nothing is known of its events.
    pub fn unwatched(dropped: Drops) -> Counts {
        Counts { dropped, ..Counts::default() }
    }
}

/// The ledger of drops and events. Devices are known by their place.
#[derive(Clone, Debug)]
pub struct Ledger {
    counts: Vec<Counts>,
    events: BTreeMap<InterfaceEvent, EventStats>,
    /// The event that is not over, and when it will be.
    open: Option<(InterfaceEvent, u64)>,
}

impl Ledger {
    /// A ledger of so many devices.
    pub fn new(devices: usize) -> Ledger {
        Ledger { counts: vec![Counts::default(); devices], events: BTreeMap::new(), open: None }
    }

    /// Notes that something happened; `waiting` packets were lost with a queue at most. To be told before the look that saw it.
    pub fn note(&mut self, event: InterfaceEvent, waiting: u64, now_ns: u64) {
        let stats = self.events.entry(event).or_default();
        stats.times += 1;
        stats.waiting += waiting;
        self.go_on(event, now_ns);
    }

    /// An event goes on, or is only just over: what is dropped now is its, and it is not counted once more.
    pub fn go_on(&mut self, event: InterfaceEvent, now_ns: u64) {
        self.open = Some((event, now_ns + SETTLE_NS));
    }

    /// Says whether the two ends of a device's pair have different MTUs.
    pub fn set_narrow(&mut self, device: usize, has_narrow_end: bool) {
        self.counts[device].has_narrow_end = has_narrow_end;
    }

    /// A device is another one from now on, whose counters begin with those that are seen next.
    pub fn begin_anew(&mut self, device: usize) {
        self.counts[device].last = None;
    }

    /// Takes the present counters of each device; of one that could not be looked at, none. `is_well` says whether all are up.
    pub fn look(&mut self, seen: &[Option<Drops>], is_well: bool, now_ns: u64) {
        if !is_well {
            let event = self.open.map_or(InterfaceEvent::Down, |(event, _)| event);
            self.events.entry(event).or_default();
            self.go_on(event, now_ns);
        }
        for (counts, seen) in self.counts.iter_mut().zip(seen) {
            let &Some(seen) = seen else { continue };
            // The counters of a new queue began anew.
            let since = |now: u64, last: u64| if now < last { now } else { now - last };
            let new = counts.last.map_or(Drops::default(), |last| seen.each(&last, since));
            counts.last = Some(seen);
            counts.dropped = counts.dropped.each(&new, |a, b| a + b);
            match self.open {
                // An event that was not noted, such as the first coming of a port, has no row for nothing.
                Some(_) if new.sum() == 0 => {}
                Some((event, _)) => self.events.entry(event).or_default().dropped += new.sum(),
                None => {
                    let mut unexplained = new;
                    if counts.has_narrow_end && new.rx + new.tx > 0 {
                        self.events.entry(InterfaceEvent::Mtu).or_default().dropped += new.rx + new.tx;
                        (unexplained.rx, unexplained.tx) = (0, 0);
                    }
                    counts.unexplained = counts.unexplained.each(&unexplained, |a, b| a + b);
                }
            }
        }
        self.open = self.open.filter(|(_, over_ns)| now_ns < *over_ns);
    }

    /// Returns whether an event is not over.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A device's counts.
    pub fn counts(&self, device: usize) -> Counts {
        self.counts[device]
    }

    /// The events so far.
    pub fn events(&self) -> &BTreeMap<InterfaceEvent, EventStats> {
        &self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn tx(tx: u64) -> [Option<Drops>; 1] {
        [Some(Drops { tx, ..Drops::default() })]
    }

    #[test]
    fn what_was_there_before_the_wire_does_not_count() {
        let mut ledger = Ledger::new(1);
        ledger.look(&tx(1000), true, 0);
        ledger.look(&tx(1003), true, S);
        assert_eq!(ledger.counts(0).dropped.tx, 3);
        assert_eq!(ledger.counts(0).unexplained.tx, 3);
    }

    #[test]
    fn an_event_explains_what_was_dropped_up_to_its_end() {
        let mut ledger = Ledger::new(1);
        ledger.look(&tx(0), true, 0);
        ledger.note(InterfaceEvent::Down, 0, S);
        ledger.look(&tx(5), false, S);
        ledger.look(&tx(25), false, 2 * S);
        // Up again, but only just.
        ledger.look(&tx(27), true, 2 * S + SETTLE_NS - 1);
        ledger.look(&tx(28), true, 2 * S + SETTLE_NS);
        assert!(!ledger.is_open());
        ledger.look(&tx(29), true, 3 * S);
        assert_eq!(ledger.events()[&InterfaceEvent::Down], EventStats { times: 1, dropped: 28, waiting: 0 });
        assert_eq!(ledger.counts(0).unexplained.tx, 1, "the last one alone");
        assert_eq!(ledger.counts(0).dropped.tx, 29);
    }

    #[test]
    fn an_end_with_a_shorter_mtu_explains_what_the_devices_drop() {
        let seen = |tx, queue| [Some(Drops { tx, queue, rx: 0 })];
        let mut ledger = Ledger::new(1);
        ledger.look(&seen(0, 0), true, 0);
        ledger.set_narrow(0, true);
        ledger.look(&seen(5, 1), true, S);
        assert_eq!(ledger.events()[&InterfaceEvent::Mtu], EventStats { times: 0, dropped: 5, waiting: 0 });
        assert_eq!(ledger.counts(0).unexplained, Drops { queue: 1, ..Drops::default() });
        ledger.set_narrow(0, false);
        ledger.look(&seen(7, 1), true, 2 * S);
        assert_eq!(ledger.counts(0).unexplained.tx, 2);
    }

    #[test]
    fn an_event_that_goes_on_explains_drops_and_is_counted_once() {
        let mut ledger = Ledger::new(1);
        ledger.look(&tx(0), true, 0);
        ledger.note(InterfaceEvent::Gone, 3, S);
        ledger.look(&tx(0), true, 2 * S);
        ledger.go_on(InterfaceEvent::Gone, 3 * S);
        ledger.look(&tx(2), true, 3 * S);
        assert_eq!(ledger.events()[&InterfaceEvent::Gone], EventStats { times: 1, dropped: 2, waiting: 3 });
        assert_eq!(ledger.counts(0).unexplained, Drops::default());
    }

    #[test]
    fn a_queue_that_was_replaced_counts_anew() {
        let queue = |queue| [Some(Drops { queue, ..Drops::default() })];
        let mut ledger = Ledger::new(1);
        ledger.look(&queue(10), true, 0);
        ledger.note(InterfaceEvent::QueueReplaced, 64, S);
        ledger.look(&queue(4), true, S);
        assert_eq!(
            ledger.events()[&InterfaceEvent::QueueReplaced],
            EventStats { times: 1, dropped: 4, waiting: 64 }
        );
        assert_eq!(ledger.counts(0).unexplained, Drops::default());
    }

    #[test]
    fn a_device_that_cannot_be_looked_at_keeps_its_counts() {
        let mut ledger = Ledger::new(1);
        ledger.look(&tx(0), true, 0);
        ledger.look(&[None], false, S);
        ledger.look(&tx(7), true, S + 1);
        assert_eq!(ledger.events()[&InterfaceEvent::Down].dropped, 7);
    }

    #[test]
    fn an_event_of_one_device_is_over_when_all_are_well() {
        let mut ledger = Ledger::new(6);
        let seen = |tx| vec![Some(Drops { tx, ..Drops::default() }); 6];
        ledger.look(&seen(0), true, 0);
        ledger.note(InterfaceEvent::Down, 0, S);
        ledger.look(&seen(1), false, S);
        let mut last = seen(1);
        last[5] = Some(Drops { tx: 4, ..Drops::default() });
        ledger.look(&last, true, 2 * S);
        assert_eq!(ledger.events()[&InterfaceEvent::Down].dropped, 6 + 3);
        last[2] = Some(Drops { tx: 3, ..Drops::default() });
        ledger.look(&last, true, 3 * S);
        let unexplained = (0..6).map(|device| ledger.counts(device).unexplained.tx).collect::<Vec<_>>();
        assert_eq!(unexplained, [0, 0, 2, 0, 0, 0]);
        assert_eq!(ledger.counts(5).dropped.tx, 4);
    }
}
