//! The times at which the classes of a link-sharing tree are looked at again.
//!
//! A class that cannot send has exactly one event, no later than its mode can improve; a charge usually puts
//! that off, and then the event is left where it is: it comes too early, does no harm, and sets the next one.
//! Only an event that would come too late is moved, so a packet rarely touches the queue. A class that can
//! send may have one left over.
//!
//! An event is in a bucket's list, linked both ways through the classes.

use super::{ClassMode, Meter, Tree};
use crate::{packet::Packet, shaper::buckets::NONE};

/// The time at which a class is looked at again, and its place in the queue of times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    at_ns: u64,
    place: u32,
    next: u32,
    previous: u32,
}

impl<P: Packet, M: Meter> Tree<P, M> {
    /// Looks again at every class whose time has come.
    #[inline]
    pub(super) fn look_at_due(&mut self, now_ns: u64) {
        while let Some(first) = self.events.take_due(now_ns) {
            let mut class = first;
            while class != NONE {
                // The items behind it are off the queue too; only their own turn here touches their events.
                let next = self.node_mut(class).event.take().map_or(NONE, |event| event.next);
                self.update_mode(class, now_ns);
                class = next;
            }
        }
    }

    /// Brings a class's mode, its place in the rings and its event in line with its meter.
    #[inline]
    pub(super) fn update_mode(&mut self, class: u32, now_ns: u64) {
        let node = self.node_mut(class);
        let (mode, until_ns) = node.meter.mode(now_ns);
        if mode != node.mode {
            self.set_mode(class, mode);
        }
        if mode != ClassMode::CanSend {
            self.set_event(class, until_ns);
        }
    }

    /// Makes sure that a class is looked at by `at_ns`. An event that is too early does no harm: it sets the
    /// next one.
    #[inline]
    fn set_event(&mut self, class: u32, at_ns: u64) {
        if self.node(class).event.is_some_and(|event| event.at_ns <= at_ns) {
            return;
        }
        self.cancel_event(class);
        let (place, next) = self.events.push_placed(at_ns, class);
        if next != NONE
            && let Some(event) = &mut self.node_mut(next).event
        {
            event.previous = class;
        }
        self.node_mut(class).event = Some(Event { at_ns, place, next, previous: NONE });
    }

    pub(super) fn cancel_event(&mut self, class: u32) {
        let Some(Event { place, next, previous, .. }) = self.node_mut(class).event.take() else {
            return;
        };
        if next != NONE
            && let Some(event) = &mut self.node_mut(next).event
        {
            event.previous = previous;
        }
        if previous == NONE {
            self.events.set_head(place, next);
        } else if let Some(event) = &mut self.node_mut(previous).event {
            event.next = next;
        }
    }
}
