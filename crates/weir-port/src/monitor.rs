//! Watches interfaces of this namespace: which have gone, gone down or come up.
//!
//! [`Monitor`] waits for events of all of them, [`Fares`] picks those that change the state of one, and [`Watch`] gives these to a caller
//! that asks now and then. [`Stir`] hears that something happens to an interface or its qdiscs, here or where a veth's other end is.
//!
//! Source: rtnetlink(7), the multicast groups RTNLGRP_LINK and RTNLGRP_TC; netlink(7), `NETLINK_LISTEN_ALL_NSID`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::error::{Doing, Result};
use crate::link::Link;
use crate::netlink_bytes::{Fields, message, messages};
use crate::sys;

/// An event of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface is gone, or has moved to another namespace.
    Gone {
        /// Its number.
        ifindex: u32,
    },
    /// The interface changed; `up` and `has_carrier` are as after the change.
    Changed {
        /// Its number.
        ifindex: u32,
        /// True if it is administratively up.
        up: bool,
        /// True if it has a carrier: of a veth, whether its other end is up too.
        has_carrier: bool,
    },
}

impl LinkEvent {
    /// The event that the present state of an interface of this thread's namespace would make.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn now(ifindex: u32) -> Result<LinkEvent> {
        match Link::by_index(ifindex) {
            Ok(link) => Ok(LinkEvent::Changed { ifindex, up: link.up, has_carrier: link.has_carrier }),
            Err(error) if error.is_no_interface() => Ok(LinkEvent::Gone { ifindex }),
            Err(error) => Err(error),
        }
    }

    /// The number of the interface that the event is about.
    pub fn ifindex(self) -> u32 {
        match self {
            LinkEvent::Gone { ifindex } | LinkEvent::Changed { ifindex, .. } => ifindex,
        }
    }

    /// The state of the interface after the event.
    pub fn state(self) -> State {
        match self {
            LinkEvent::Gone { .. } => State::Gone,
            LinkEvent::Changed { up: false, .. } => State::Down,
            LinkEvent::Changed { has_carrier: false, .. } => State::NoCarrier,
            LinkEvent::Changed { .. } => State::Up,
        }
    }
}

/// A stream of events of this thread's namespace.
pub struct Monitor {
    socket: OwnedFd,
}

const RTNLGRP_LINK_MASK: u32 = 1;
const RTNLGRP_TC_MASK: u32 = 1 << 3;
const IFINFO_BYTES: usize = 16;

impl Monitor {
    /// Starts to listen.
    pub fn new() -> Result<Monitor> {
        Ok(Monitor { socket: listen(libc::NETLINK_ROUTE, RTNLGRP_LINK_MASK)? })
    }

    /// Waits for the next message; returns its events, or `None` if messages were lost, so that anything may have happened.
    pub fn wait(&self) -> io::Result<Option<Vec<LinkEvent>>> {
        let mut buffer = vec![0u8; MESSAGES_BYTES];
        match receive(&self.socket, &mut buffer, 0) {
            Ok(length) => Ok(Some(parse(&buffer[..length]))),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The descriptor, readable while [`Monitor::wait`] would not wait.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// A listener for events of interfaces or their qdiscs, in this thread's namespace and every other for which it has a number, as it has for
/// those where other ends of its veths are. It keeps none of them alive.
pub struct Stir {
    socket: OwnedFd,
}

impl Stir {
    /// Starts to listen. Without the capability to hear of other namespaces (CAP_NET_BROADCAST) it hears of this one alone.
    pub fn new() -> Result<Stir> {
        const NETLINK_LISTEN_ALL_NSID: i32 = 8;
        let socket = listen(libc::NETLINK_ROUTE, RTNLGRP_LINK_MASK | RTNLGRP_TC_MASK)?;
        let _ = sys::setsockopt(socket.as_fd(), libc::SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, &1i32);
        Ok(Stir { socket })
    }

    /// The descriptor, readable while there are messages.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns whether anything has happened to an interface of one of these numbers, in any namespace, since the last call.
    ///
    /// # Errors
    /// If the socket will give no more messages.
    pub fn has_heard_of(&self, ifindexes: &[u32]) -> io::Result<bool> {
        let mut heard = false;
        let mut buffer = vec![0u8; MESSAGES_BYTES];
        loop {
            match receive(&self.socket, &mut buffer, libc::MSG_DONTWAIT) {
                Ok(length) => {
                    let mut of = messages(&buffer[..length]).filter_map(|(_, _, body)| ifindex_of(body));
                    heard |= of.any(|ifindex| ifindexes.contains(&ifindex));
                }
                // Messages were lost, on whatever interface.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => heard = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The room for messages of one call, in bytes.
const MESSAGES_BYTES: usize = 64 * 1024;

/// A socket that hears the messages to these groups of a netlink protocol.
pub(crate) fn listen(protocol: i32, groups: u32) -> Result<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
        // SAFETY: an all-zero `sockaddr_nl` is valid; the fields that matter are set below.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        sys::bind(socket.as_fd(), &address)?;
        Ok(socket)
    };
    open().doing(|| "listening for what the kernel changes".into())
}

/// Takes all messages there are, unread.
pub(crate) fn drain(socket: &OwnedFd) {
    let mut buffer = vec![0u8; MESSAGES_BYTES];
    loop {
        match receive(socket, &mut buffer, libc::MSG_DONTWAIT) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Lost messages would not have been read anyway.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(_) => return,
        }
    }
}

/// Sends a request to the kernel.
pub(crate) fn send(socket: &OwnedFd, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
    let bytes = message(kind, (libc::NLM_F_REQUEST | flags) as u16, 0, body);
    // SAFETY: the bytes are alive for the call, and as many as said.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    sys::check(sent as i32).map(drop)
}

pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: the kernel writes at most the length of `buffer`.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    sys::check(length as i32).map(|length| length as usize)
}

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The interface is up and has a carrier.
    Up,
    /// The interface is up, and its other end is down.
    NoCarrier,
    /// The interface is down.
    Down,
    /// The interface is gone, or in another namespace.
    Gone,
}

/// The state of one interface, as far as a [`Monitor`] told.
pub struct Fares {
    ifindex: u32,
    state: State,
    /// True if messages were lost and the state could not be read since.
    is_unsure: bool,
}

impl Fares {
    /// Begins as if the interface were up: that it is not will be its first change.
    pub fn new(ifindex: u32) -> Fares {
        Fares { ifindex, state: State::Up, is_unsure: false }
    }

    /// Returns whether the present state could not be read when messages were lost: [`Fares::changes`] is to be asked again soon.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// The changes of the interface by the events that [`Monitor::wait`] heard, each as the state before and after.
    ///
    /// # Errors
    /// If messages were lost and the kernel does not tell the present state. The next call asks for it again, whatever was heard.
    pub fn changes(&mut self, heard: Option<&[LinkEvent]>) -> Result<Vec<(State, State)>> {
        let ifindex = self.ifindex;
        self.changes_by(heard, || LinkEvent::now(ifindex))
    }

    fn changes_by(
        &mut self,
        heard: Option<&[LinkEvent]>,
        now: impl FnOnce() -> Result<LinkEvent>,
    ) -> Result<Vec<(State, State)>> {
        let came_to: Vec<State> = match heard.filter(|_| !self.is_unsure) {
            Some(events) => {
                let of_it = events.iter().filter(|event| event.ifindex() == self.ifindex);
                of_it.map(|event| event.state()).collect()
            }
            // Messages were lost: the interface may have gone down and up.
            None => {
                self.is_unsure = true;
                let now = now()?.state();
                self.is_unsure = false;
                vec![State::Down, now]
            }
        };
        let steps = came_to.into_iter().map(|state| (std::mem::replace(&mut self.state, state), state));
        Ok(steps.filter(|(before, state)| before != state).collect())
    }
}

/// Watches one interface of the namespace of the thread that made it.
pub struct Watch {
    monitor: Monitor,
    fares: Fares,
    /// The changes that were not given to the caller yet.
    changes: VecDeque<State>,
}

impl Watch {
    /// Watches the interface with number `ifindex` from the time when the monitor began to listen. A monitor that is older than the
    /// caller's own business with the interface misses nothing that undoes it.
    pub fn new(monitor: Monitor, ifindex: u32) -> Result<Watch> {
        let mut watch = Watch { monitor, fares: Fares::new(ifindex), changes: VecDeque::new() };
        watch.hear(Some(&[LinkEvent::now(ifindex)?]))?;
        Ok(watch)
    }

    /// The descriptor, readable when something may have happened.
    pub fn fd(&self) -> RawFd {
        self.monitor.fd()
    }

    /// The next state that the interface has come to since the last call; `None` once there are no more changes.
    pub fn next_change(&mut self) -> Result<Option<State>> {
        let doing = || "listening for changes of interfaces".to_string();
        while sys::poll(&mut [sys::poll_in(self.monitor.socket.as_raw_fd())], Some(0)).doing(doing)? > 0 {
            let heard = self.monitor.wait().doing(doing)?;
            self.hear(heard.as_deref())?;
        }
        Ok(self.changes.pop_front())
    }

    fn hear(&mut self, heard: Option<&[LinkEvent]>) -> Result<()> {
        self.changes.extend(self.fares.changes(heard)?.into_iter().map(|(_, state)| state));
        Ok(())
    }
}

/// The events of the messages of one reading; parsing stops at bytes that are no message.
pub fn parse(bytes: &[u8]) -> Vec<LinkEvent> {
    let event_of = |(kind, _, body): (u16, u16, &[u8])| {
        let body = body.first_chunk::<IFINFO_BYTES>()?.as_slice();
        let (family, ifindex, flags) = (body.u8(0)?, ifindex_of(body)?, body.u32(8)?);
        match kind {
            // A bridge announces its ports leaving as AF_BRIDGE messages; the interface itself stays.
            libc::RTM_DELLINK if family == libc::AF_UNSPEC as u8 => Some(LinkEvent::Gone { ifindex }),
            libc::RTM_NEWLINK => Some(LinkEvent::Changed {
                ifindex,
                up: flags & libc::IFF_UP as u32 != 0,
                has_carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
            }),
            _ => None,
        }
    };
    messages(bytes).filter_map(event_of).collect()
}

/// The interface's number, at the place where `struct ifinfomsg` and `struct tcmsg` have it.
fn ifindex_of(body: &[u8]) -> Option<u32> {
    body.u32(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::netns::NetNs;
    use crate::probe::scratch::{self, ScratchPair};

    fn message(kind: u16, ifindex: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[0..4].copy_from_slice(&32u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[20..24].copy_from_slice(&ifindex.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    #[test]
    fn changes_alone_are_told_and_of_one_interface() {
        let event = |ifindex, up| LinkEvent::Changed { ifindex, up, has_carrier: true };
        let mut fares = Fares::new(7);
        assert_eq!(fares.changes(Some(&[event(7, true), event(8, false)])).unwrap(), []);
        let heard = [event(7, false), event(7, false), event(7, true), LinkEvent::Gone { ifindex: 7 }];
        let expected = [(State::Up, State::Down), (State::Down, State::Up), (State::Up, State::Gone)];
        assert_eq!(fares.changes(Some(&heard)).unwrap(), expected);
    }

    #[test]
    fn a_state_that_could_not_be_read_is_asked_for_again() {
        let mut fares = Fares::new(7);
        let short =
            || Err(io::Error::from_raw_os_error(libc::ENOBUFS)).doing(|| "reading interface 7".into());
        assert!(fares.changes_by(None, short).is_err() && fares.is_unsure());
        assert!(fares.changes_by(Some(&[]), short).is_err() && fares.is_unsure());
        let up = || Ok(LinkEvent::Changed { ifindex: 7, up: true, has_carrier: true });
        let expected = [(State::Up, State::Down), (State::Down, State::Up)];
        assert_eq!(fares.changes_by(Some(&[]), up).unwrap(), expected, "it may have been down");
        assert!(!fares.is_unsure());
        assert_eq!(fares.changes_by(Some(&[]), up).unwrap(), []);
    }

    #[test]
    fn a_watch_tells_what_happened_since_its_monitor_began() {
        if !sys::is_root() {
            return;
        }
        let changes = scratch::run(|answer| {
            let pair = ScratchPair::new(c"near", &NetNs::current()?)?;
            let monitor = Monitor::new()?;
            link::set_up(pair.receiver.ifindex, false)?;
            link::set_up(pair.receiver.ifindex, true)?;
            let mut watch = Watch::new(monitor, pair.receiver.ifindex)?;
            let mut changes = Vec::new();
            while let Some(state) = watch.next_change()? {
                changes.push(state);
            }
            answer(changes);
            Ok(())
        });
        let changes = changes.unwrap();
        assert!(changes.contains(&State::Down) && changes.last() == Some(&State::Up), "{changes:?}");
    }

    #[test]
    fn reads_several_messages_and_stops_at_nonsense() {
        let mut bytes = message(libc::RTM_NEWLINK, 7, libc::IFF_UP as u32);
        bytes.extend(message(libc::RTM_DELLINK, 8, 0));
        bytes.extend([255; 40]);
        assert_eq!(
            parse(&bytes),
            [LinkEvent::Changed { ifindex: 7, up: true, has_carrier: false }, LinkEvent::Gone { ifindex: 8 }]
        );
        for cut in 0..bytes.len() {
            parse(&bytes[..cut]);
        }
    }

    #[test]
    fn a_qdisc_is_heard_of_under_its_interface() {
        let bytes = message(libc::RTM_NEWQDISC, 7, 0);
        assert_eq!(parse(&bytes), []);
        assert_eq!(messages(&bytes).map(|(_, _, body)| ifindex_of(body)).collect::<Vec<_>>(), [Some(7)]);
    }
}
