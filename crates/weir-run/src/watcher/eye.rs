//! The eye of everyone else on a watcher: it asks for a look now, and has the last look.
//!
//! Rule: an answer is as new as the question, unless the watcher is held up or has ended; then it is the last look.
//!
//! Owner: the watcher writes the look, others copy it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_port::monitor::State;
use weir_port::sys;

use super::ledger::{Counts, EventStats, InterfaceEvent};

/// The longest time that an asker waits for a look before it is told of the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// The reason why a port of a topology is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It is optional, and has not been a port yet.
    Absent,
    /// Its interface vanished, or was unfit and is down.
    Gone,
    /// Its interface is there and up, and cannot be a port as it is, for this reason.
    Unfit(String),
}

impl Absence {
    /// The word for it in place of a device's state.
    pub fn word(&self) -> &'static str {
        match self {
            Absence::Absent => "absent",
            Absence::Gone => "gone",
            Absence::Unfit(_) => "unfit",
        }
    }
}

/// One device as it was last seen.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The state of the device; `None` if it was not there.
    pub state: Option<State>,
    /// The reason why its port is closed, if it is one.
    pub absence: Option<Absence>,
    /// True if its port is optional.
    pub is_optional: bool,
    /// The counts of its drops.
    pub counts: Counts,
    /// Packets that wait in its queue.
    pub backlog: u64,
}

impl Device {
    /// The device without its counts.
    pub(crate) fn uncounted(self) -> Device {
        Device { name: self.name, state: self.state, ..Device::default() }
    }
}

/// The devices of a datapath as they were last seen.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// The devices by port: the interface itself, and its other end; none before the first look.
    pub pairs: Vec<[Device; 2]>,
    /// The events that happened to them.
    pub events: BTreeMap<InterfaceEvent, EventStats>,
}

/// A request to a watcher.
pub(super) enum Request {
    /// Look, and say when that is done.
    Look(Sender<()>),
    /// Give up the ports whose other ends are in the namespace of this number, which is kept by weir alone, and say whether there are any.
    Desert(u64, Sender<bool>),
    /// End.
    Stop,
}

/// The way for everyone else to ask a watcher.
#[derive(Clone, Debug)]
pub struct Eye {
    requests: Sender<Request>,
    event: Arc<OwnedFd>,
    last: Arc<Mutex<Devices>>,
}

/// The watcher's end of an [`Eye`].
pub struct Lens {
    requests: Receiver<Request>,
    event: Arc<OwnedFd>,
    last: Arc<Mutex<Devices>>,
}

impl Eye {
    /// An eye, and the end of it that a watcher needs.
    pub fn new() -> io::Result<(Eye, Lens)> {
        let (sender, requests) = channel();
        let (event, last) = (Arc::new(sys::eventfd()?), Arc::default());
        let eye = Eye { requests: sender, event: Arc::clone(&event), last: Arc::clone(&last) };
        Ok((eye, Lens { requests, event, last }))
    }

    /// The devices as they are now; if the watcher has ended or is held up, as it saw them last.
    pub fn look(&self) -> Devices {
        let (reply, answer) = channel();
        if self.send(Request::Look(reply)) {
            // Either way the last look is what there is.
            let _ = answer.recv_timeout(PATIENCE);
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has it give up the ports whose other ends are in the namespace of this number; whether there are any, and the rest can go on.
    pub fn desert(&self, namespace: u64) -> bool {
        let (reply, answer) = channel();
        self.send(Request::Desert(namespace, reply)) && answer.recv().unwrap_or(false)
    }

    /// Ends the watcher.
    pub fn stop(&self) {
        self.send(Request::Stop);
    }

    fn send(&self, request: Request) -> bool {
        let sent = self.requests.send(request).is_ok();
        sys::signal_eventfd(&self.event);
        sent
    }
}

impl Lens {
    /// The next request, if there is one.
    pub(super) fn request(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Readable when there may be a request, until [`Lens::clear`].
    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub(super) fn clear(&self) {
        sys::clear_eventfd(&self.event);
    }

    /// Lays out the devices as they were seen.
    pub(super) fn show(&self, devices: Devices) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = devices;
    }
}
