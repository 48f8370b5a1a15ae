//! Queues that are owned again: those that could not be when their interface came up are tried in each round.
//!
//! Rule: a try holds up the worker of the port and all ports that it has, so there is none while another is under way. The fault of the
//! last one is kept until one succeeds; [`super::act`] gives a port up that has one for too long.
//!
//! Owner: the watcher's thread. Limits: a wire tells no fault, and ends by the first.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Watcher;
use crate::worker::Retaken;

/// The tries to own queues again.
pub(super) struct Owning {
    teller: Sender<Retaken>,
    told: Receiver<Retaken>,
    /// The tries that are under way, by port.
    under_way: BTreeMap<usize, u32>,
    /// Why the last try failed, by port.
    faults: BTreeMap<usize, String>,
}

impl Owning {
    pub(super) fn new() -> Owning {
        let (teller, told) = channel();
        Owning { teller, told, under_way: BTreeMap::new(), faults: BTreeMap::new() }
    }

    /// Takes in the results of tries.
    pub(super) fn hear(&mut self) {
        while let Ok((port, result)) = self.told.try_recv() {
            self.under_way.entry(port).and_modify(|tries| *tries -= 1);
            match result {
                Ok(()) => self.faults.remove(&port),
                Err(fault) => self.faults.insert(port, fault),
            };
        }
    }

    /// Why the queues of a port could not be owned again.
    pub(super) fn fault(&self, port: usize) -> Option<&String> {
        self.faults.get(&port)
    }

    /// Forgets the fault of a port that is closed.
    pub(super) fn forget(&mut self, port: usize) {
        self.hear();
        self.faults.remove(&port);
    }

    /// Returns whether all queues are owned, as far as is known: no try is under way, and none has failed last.
    pub(super) fn is_settled(&self) -> bool {
        self.faults.is_empty() && self.under_way.values().all(|&tries| tries == 0)
    }

    fn is_under_way(&self, port: usize) -> bool {
        self.under_way.get(&port).is_some_and(|&tries| tries > 0)
    }
}

impl Watcher {
    /// Has the queues of a port owned again.
    pub(super) fn retake(&mut self, port: usize) {
        if self.crew.retake(port, &self.owning.teller) {
            *self.owning.under_way.entry(port).or_default() += 1;
        }
    }

    /// Has queues owned again that could not be when their interface came up.
    pub(super) fn own_again(&mut self) {
        for port in 0..self.pairs.len() {
            let (Some(known), Some(view)) = (&self.pairs[port], &self.views[2 * port]) else { continue };
            let is_due = known.can_be_owned(&view.link) || self.owning.fault(port).is_some();
            if is_due && !self.owning.is_under_way(port) {
                self.retake(port);
            }
        }
    }
}
