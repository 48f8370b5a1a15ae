//! Both ends of a pair as they are when somebody asks, where nobody watches them: those of a stack in the process of an application.
//!
//! Rule: nothing is kept but the drops counted at first, and nothing is put right. So no drop is told apart from those of an event, and
//! none is called unexplained. An end that cannot be looked at, as by a process that has given up its rights, is not known.
//!
//! Owner: the thread that asks, in the network namespace of the pair's first end. Source: rtnetlink(7).

use std::sync::Arc;

use weir_port::link::Link;
use weir_port::monitor::State;
use weir_port::netns::NetNs;
use weir_port::qdisc;
use weir_port::view::{Pair, is_gone};

use super::ledger::{Counts, Drops};
use super::{Device, Devices, state_of};

/// A pair, and the drops of its ends at first.
#[derive(Debug)]
pub struct Glance {
    ends: [Link; 2],
    sender_netns: Arc<NetNs>,
    before: [Drops; 2],
}

impl Glance {
    /// A glance at this pair; drops count from now on.
    pub fn new(pair: &Pair) -> Glance {
        let ends = [pair.port.clone(), pair.sender.clone()];
        let mut glance =
            Glance { ends, sender_netns: Arc::clone(&pair.sender_netns), before: Default::default() };
        glance.before = [0, 1].map(|end| glance.look(end).counts.dropped);
        glance
    }

    /// The devices as they are now.
    pub fn devices(&self) -> Devices {
        Devices { pairs: vec![[0, 1].map(|end| self.look(end))], ..Devices::default() }
    }

    fn look(&self, end: usize) -> Device {
        let known = &self.ends[end];
        let look = || Ok((Link::by_index(known.ifindex)?, qdisc::root(known.ifindex)?.counters));
        let seen = if end == 0 { look() } else { self.sender_netns.run(look) };
        let (link, queue) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                let state = is_gone(&error).then_some(State::Gone);
                return Device { name: known.name.clone(), state, ..Device::default() };
            }
        };
        // The counters of a new queue began anew.
        let since = |now: u64, before: u64| if now < before { now } else { now - before };
        let before = self.before[end];
        let dropped = Drops {
            rx: since(link.rx_dropped, before.rx),
            tx: since(link.tx_dropped, before.tx),
            queue: since(queue.dropped, before.queue),
        };
        Device {
            state: Some(state_of(&link)),
            name: link.name,
            counts: Counts::unwatched(dropped),
            backlog: queue.backlog,
            ..Device::default()
        }
    }
}
