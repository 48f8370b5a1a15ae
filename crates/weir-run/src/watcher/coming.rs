//! Ports of a topology that go and come: each is closed when its interface is gone or not fit any more, and taken over when one of its name
//! is there and fit. An optional one may be missing from the start, and any one that went while it began.
//!
//! ```text
//! gone, or not fit any more:
//!         worker hands the port out -> closed -> frames go back -> changes are put back and forgotten
//! there:  up, with a carrier -> prepared (slow, on this thread) -> worker takes it in
//! ```
//!
//! Rule: the worker, which all other ports wait for, does nothing that takes long. A port that is prepared and not taken leaves nothing
//! behind. One that is refused before has changed nothing, and its other end may be a port. An interface that somebody is letting go of is not
//! waited for, because other ports wait for this thread: it is tried again.
//!
//! An interface whose other end is in a namespace that nobody but weir keeps is given up, so that the kernel removes both: a container
//! that has ended. It is not taken again under the same number.
//!
//! Owner: the watcher's thread. Limits: an interface that is there and not fit is said once and tried each second.

use std::collections::BTreeMap;

use weir_port::fit;
use weir_port::link::Link;
use weir_port::monitor::{Fares, LinkEvent};
use weir_port::napi::Deferral;
use weir_port::netns::NetNs;
use weir_port::undo::Undo;
use weir_port::view::Pair;

use super::eye::Absence;
use super::ledger::InterfaceEvent;
use super::{Records, SENDER, Watcher, locked};
use crate::clock::now_ns;
use crate::look_over;

/// The pause after an attempt that failed, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// A port that is not there.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// True if it was a port before.
    was_there: bool,
    /// True if its interface is there, and cannot be a port as it is.
    is_unfit: bool,
    /// The interface that was given up, and is about to go.
    given_up: Option<u32>,
    /// The last reason that was said why an interface is not fit.
    told: String,
    /// The time before which it is not to be tried.
    not_before_ns: u64,
}

impl Missing {
    /// One that was a port, and is looked for from now on.
    fn anew() -> Missing {
        Missing { was_there: true, ..Missing::default() }
    }

    /// The reason why it is not there.
    pub(super) fn absence(&self) -> Absence {
        match (self.is_unfit, self.was_there) {
            (true, _) => Absence::Unfit(self.told.clone()),
            (false, true) => Absence::Gone,
            (false, false) => Absence::Absent,
        }
    }
}

/// The ports that are missing from the start.
pub(super) fn missing(pairs: &[Option<Pair>]) -> BTreeMap<usize, Missing> {
    let missing = pairs.iter().enumerate().filter(|(_, pair)| pair.is_none());
    missing.map(|(port, _)| (port, Missing::default())).collect()
}

impl Watcher {
    /// Says which ports are missing from the start.
    pub(super) fn tell_missing(&self) {
        for &port in self.missing.keys() {
            let optional = if self.opener.is_optional(port) { "optional, and " } else { "" };
            self.say(format!(
                "interface {} is {optional}not there, down or unfit: what is bound for it is dropped, and it is a port when it is fit",
                self.opener.interface(port)
            ));
        }
    }

    /// Closes a port whose interface is gone, and looks for one of its name from now on.
    pub(super) fn lose(&mut self, port: usize, records: &Records) {
        let Some(pair) = self.pairs[port].as_ref() else { return };
        let name = pair.port.name.clone();
        let elsewhere = let_go_elsewhere(pair, records);
        let moved = if elsewhere.is_some() { ", in another network namespace" } else { "" };
        self.close(port, elsewhere, records);
        self.missing.insert(port, Missing::anew());
        self.say(format!(
            "interface {name} is gone{moved}: what is bound for it is dropped, and {} is a port again when it is there",
            self.awaited(port, &name)
        ));
    }

    /// Closes a port whose interface is not fit any more, whoever made it so, and tries it from now on. The other ports go on.
    pub(super) fn refuse(&mut self, port: usize, why: &str, records: &Records) {
        let Some(name) = self.pairs[port].as_ref().map(|pair| pair.port.name.clone()) else { return };
        self.close(port, None, records);
        let not_before_ns = now_ns() + RETRY_NS;
        let missing = Missing { is_unfit: true, told: why.into(), not_before_ns, ..Missing::anew() };
        self.missing.insert(port, missing);
        self.say(format!(
            "{why}; what is bound for {name} is dropped, and {} is a port again when it is fit",
            self.awaited(port, &name)
        ));
    }

    /// The interface that is waited for since a port's is gone: one of its first name, which its file has, whatever it was called last.
    fn awaited(&self, port: usize, last: &str) -> String {
        let first = self.opener.interface(port);
        if first == last { "it".into() } else { format!("an interface called {first}, as it was at first,") }
    }

    /// Gives up the ports whose other ends are in a namespace; whether there are any.
    pub(super) fn desert(&mut self, namespace: u64, records: &Records) -> bool {
        let is_home = NetNs::current().is_ok_and(|home| home.inode() == namespace);
        if is_home || self.crew.kind() == crate::datapath::Kind::Wire {
            return false;
        }
        let mut any = false;
        for port in 0..self.pairs.len() {
            let Some(pair) = self.pairs[port].as_ref() else { continue };
            if pair.sender_netns.inode() != namespace {
                continue;
            }
            any = true;
            let (name, ifindex) = (pair.port.name.clone(), pair.port.ifindex);
            self.close(port, None, records);
            self.missing.insert(port, Missing { given_up: Some(ifindex), ..Missing::anew() });
            self.say(format!(
                "the network namespace behind {name} was deleted: what is bound for it is dropped, and {} is a port again when it is there",
                self.awaited(port, &name)
            ));
        }
        any
    }

    /// Has the worker of a port let it go, and puts back the changes made for it, also where the interface is now.
    fn close(&mut self, port: usize, elsewhere: Option<(u64, u32)>, records: &Records) {
        let waiting = self.waiting(2 * port + SENDER);
        self.ledger.note(InterfaceEvent::Gone, waiting, now_ns());
        self.crew.close_port(port);
        self.owning.forget(port);
        let Some(Pair { port: link, sender_netns, sender, .. }) = self.pairs[port].take() else { return };
        for device in [2 * port, 2 * port + SENDER] {
            self.views[device] = None;
            self.ledger.begin_anew(device);
        }
        let mut interfaces = vec![(sender_netns.inode(), sender.ifindex)];
        interfaces.extend(NetNs::current().map(|home| (home.inode(), link.ifindex)));
        interfaces.extend(elsewhere);
        self.put_back(&interfaces, records);
    }

    /// Puts back the changes of interfaces, and says what could not be.
    pub(super) fn put_back(&self, interfaces: &[(u64, u32)], records: &Records) {
        if let Err(error) = locked(records).put_back(interfaces) {
            self.say(error.to_string());
        }
    }

    /// Takes over the missing ports whose interfaces are there.
    pub(super) fn seek(&mut self, records: &Records) {
        let now = now_ns();
        let due = self.missing.iter().filter(|(_, missing)| now >= missing.not_before_ns);
        let due: Vec<_> = due.map(|(&port, missing)| (port, missing.given_up)).collect();
        for (port, given_up) in due {
            if self.is_over {
                return;
            }
            // One end is made before the other, and both before they are up.
            let link = Link::by_name(self.opener.interface(port)).ok();
            // An interface that is a port of this datapath may have got the name of another that is missing.
            let is_port =
                |link: &Link| self.pairs.iter().flatten().any(|pair| pair.port.ifindex == link.ifindex);
            let link = link.filter(|link| !is_port(link));
            let Some(link) = link.filter(|link| link.up && link.has_carrier) else {
                self.missing.entry(port).and_modify(|missing| missing.is_unfit = false);
                continue;
            };
            if given_up != Some(link.ifindex) {
                self.take(port, &link, records);
            }
        }
    }

    fn take(&mut self, port: usize, link: &Link, records: &Records) {
        // The interface may vanish meanwhile, and nobody could say then where its other end was.
        let taken = match (self.joins_its_own(link), link.peer()) {
            (Some(other), _) => {
                Err(format!("{} is the other end of {other}, which is a port too", link.name))
            }
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok((netns, sender))) => {
                let free = fit::check_now(link).map_err(|error| error.to_string());
                free.and_then(|()| {
                    self.prepare(port, records).inspect_err(|_| {
                        let mut interfaces = vec![(netns.inode(), sender.ifindex)];
                        interfaces.extend(NetNs::current().map(|home| (home.inode(), link.ifindex)));
                        self.put_back(&interfaces, records);
                    })
                })
            }
        };
        match taken {
            Ok(pair) => {
                let name = pair.port.name.clone();
                // All workers reckon with the length of its packets: it may have another MTU than the one before.
                self.crew.follow(port, pair.clone());
                self.fares[port] = Fares::new(pair.port.ifindex);
                let is_now = LinkEvent::now(pair.port.ifindex);
                self.pairs[port] = Some(pair);
                self.missing.remove(&port);
                self.ledger.go_on(InterfaceEvent::Gone, now_ns());
                self.say(format!("interface {name} is there, and a port"));
                // An interface that cannot be looked at has changed again, and is not warned of.
                let warnings = look_over::interfaces(&[link], self.crew.kind(), false).unwrap_or_default();
                warnings.into_iter().for_each(|warning| self.say(format!("warning: {warning}")));
                // The interface may have gone down meanwhile, or away.
                self.hear(Some(is_now.into_iter().collect()), records);
            }
            Err(why) => {
                let Some(missing) = self.missing.get_mut(&port) else { return };
                missing.not_before_ns = now_ns() + RETRY_NS;
                // An interface that vanished meanwhile is looked for, and not spoken of.
                let is_there = Link::by_index(link.ifindex).is_ok();
                missing.is_unfit |= is_there;
                if is_there && std::mem::replace(&mut missing.told, why.clone()) != why {
                    self.say(format!("{} is not a port yet: {why}", link.name));
                }
            }
        }
    }

    /// Prepares a port and gives it to its worker.
    fn prepare(&self, port: usize, records: &Records) -> Result<Pair, String> {
        let prepared = self.opener.prepare(port, &mut *locked(records)).map_err(|error| error.to_string())?;
        let pair = prepared.pair().clone();
        self.crew.give_port(port, prepared)?;
        Ok(pair)
    }

    /// The port whose other end an interface is.
    fn joins_its_own(&self, link: &Link) -> Option<String> {
        let other = link.peer_ifindex.filter(|_| link.peer_netns_id.is_none())?;
        let pair = self.pairs.iter().flatten().find(|pair| pair.port.ifindex == other)?;
        Some(pair.port.name.clone())
    }
}

/// The namespace and number of an interface that is gone from here and is elsewhere, if it is. Senders into it are let go there when the
/// changes are put back.
pub(super) fn let_go_elsewhere(pair: &Pair, records: &Records) -> Option<(u64, u32)> {
    let (netns, link) = pair.sender_netns.run(|| Link::by_index(pair.sender.ifindex)?.peer()).ok()?;
    // A record that the keeper does not take is no worse than an interface that is gone.
    let undo = Undo::Queues { ifindex: link.ifindex, before: Deferral::default() };
    let _ = locked(records).record(&netns, undo, None);
    Some((netns.inode(), link.ifindex))
}
