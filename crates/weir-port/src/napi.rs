//! Ownership of a receive queue: the worker alone drains its ring, so the ring fills while the worker holds back, the device stops the
//! sender's queue, and the sender blocks.
//!
//! A NAPI instance is owned in three steps. With `defer-hard-irqs` and `gro-flush-timeout` set, the kernel's softirq leaves the
//! instance alone once it has been busy-polled with `SO_PREFER_BUSY_POLL`; a [`Poller`] busy-polls it once a call; and the
//! timer of a day is never reached, because the worker looks at every queue far more often than that.
//!
//! The poller is a UDP socket that has received one packet through the instance and so carries its id (`SO_INCOMING_NAPI_ID`); [`came_by`]
//! sends that packet. Where it does not arrive, as behind a firewall, [`Poller`] falls back on io_uring, which takes the id as a number but
//! polls fewer packets a call. A filtered packet is not waited for: [`crate::first_frames`] tells it from one that is late.
//!
//! Once the socket is primed no packet is delivered to it any more: reading it polls only while it has nothing to read, so a process that
//! may send to it could keep it from polling.
//!
//! Rule: the instance is polled only while the queue's fill ring holds as many frames as one call may bring ([`BUDGET`], or the lower value
//! set by [`Poller::set_budget`]) and its receive ring has as much room; otherwise the kernel drops packets that it cannot place.
//!
//! Limits. The id dies with the instance: attaching XDP, switching GRO, changing the number of queues and taking the interface down each
//! make a new one.
//!
//! Source: `Documentation/networking/napi.rst`; kernel `net/core/dev.c:napi_busy_loop`, `busy_poll_stop`;
//! `Documentation/netlink/specs/netdev.yaml`.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use io_uring::types::{Napi, NapiTracking};
use netlink_bindings::traits::Pusher;
use netlink_bindings::{netdev, utils};
use netlink_socket2::NetlinkSocket;
use serde::{Deserialize, Serialize};
use weir_path::port::POLL_PACKETS_MAX;

use crate::error::{Doing, PortError, Result};
use crate::first_frames::{self, Companions};
use crate::link::Link;
use crate::netlink::{acknowledged, explained};
use crate::netns::NetNs;
use crate::sys;

/// The most packets one call of [`Poller::poll`] brings in: the kernel polls the instance twice, once busily and once more to
/// hand it back (`busy_poll_stop`), each time with half of this as its budget.
pub const BUDGET: u32 = POLL_PACKETS_MAX;
/// The longest time for which the kernel leaves an owned instance alone, in nanoseconds: a day. After this its softirq polls once,
/// uninvited, and may find too few frames on offer.
const HELD_NS_MAX: u64 = 86_400_000_000_000;
/// The mark of a priming packet, whose lower half is the queue it is for: "we" in ASCII.
pub const PRIMING_MARK: u32 = 0x7765_0000;
/// The tries to send the first packet through a queue, because an interface that has just come up loses some, and the longest wait for the
/// first try, in nanoseconds; each further try may take twice as long as the one before, 0.3 s in all. A packet that is known to be filtered
/// ends them.
const PRIMING_TRIES: u32 = 6;
const PRIMING_NS_MIN: u64 = 5_000_000;
/// The uninvited polls in a row for which the instance stays deferred.
const DEFER_HARD_IRQS: u32 = 1_000_000;

/// The settings by which an instance is left to busy polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferral {
    /// The polls in a row without a packet for which it stays deferred.
    pub hard_irqs: u32,
    /// The longest time for which the softirq leaves it alone, in nanoseconds.
    pub gro_flush_timeout_ns: u64,
}

/// The settings of an owned instance.
const OWNED: Deferral = Deferral { hard_irqs: DEFER_HARD_IRQS, gro_flush_timeout_ns: HELD_NS_MAX };

/// The instances of an interface of this thread's namespace, by queue: the lowest id is queue 0.
pub fn instances(ifindex: u32) -> Result<Vec<u32>> {
    Ok(deferrals(ifindex)?.into_iter().map(|(id, _)| id).collect())
}

/// The instances of an interface of this thread's namespace with their deferrals, by queue.
pub fn deferrals(ifindex: u32) -> Result<Vec<(u32, Deferral)>> {
    let doing = || format!("listing the NAPI instances of interface number {ifindex}");
    let mut request = netdev::Request::new().op_napi_get_dump();
    request.encode().push_ifindex(ifindex);
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(&request).doing(doing)?;
    let mut found = Vec::new();
    while let Some(item) = reply.recv() {
        let attributes = item.map_err(|error| explained(error, doing()))?;
        let id = attributes.get_id().map_err(|error| explained(error.into(), doing()))?;
        let deferral = Deferral {
            hard_irqs: attributes.get_defer_hard_irqs().unwrap_or(0),
            // A timeout beyond 32 bits is longer than anybody but us waits.
            gro_flush_timeout_ns: attributes.get_gro_flush_timeout().map_or(0, u64::from),
        };
        found.push((id, deferral));
    }
    found.sort_unstable_by_key(|(id, _)| *id);
    Ok(found)
}

/// `NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT` of `include/uapi/linux/netdev.h`.
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;

/// Makes the kernel's softirq leave an instance of this thread's namespace to busy polling.
pub fn defer(id: u32) -> Result<()> {
    let doing =
        || format!("taking NAPI instance {id} over (napi-set of the netdev family, Linux 6.13 or newer)");
    set_deferral(id, OWNED, doing).map_err(|error| match error {
        // Instances are those of an interface that is up, each time others.
        PortError::Kernel { source, .. } if source.kind() == io::ErrorKind::NotFound => PortError::Kernel {
            doing: format!("taking NAPI instance {id} over"),
            source: io::Error::other("its interface went down meanwhile: try again when it is up"),
        },
        error => error,
    })
}

/// Leaves an instance of this thread's namespace to the kernel's softirq again, with the settings `before`.
pub fn let_go(id: u32, before: Deferral) -> Result<()> {
    set_deferral(id, before, || format!("giving NAPI instance {id} back"))
}

fn set_deferral(id: u32, deferral: Deferral, doing: impl Fn() -> String) -> Result<()> {
    let mut request = netdev::Request::new().op_napi_set_do();
    let mut attributes = request.encode().push_id(id).push_defer_hard_irqs(deferral.hard_irqs);
    // The attribute may have 4 or 8 bytes; the encoder knows only the short form.
    utils::push_header(attributes.as_vec_mut(), NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, 8);
    attributes.as_vec_mut().extend(deferral.gro_flush_timeout_ns.to_ne_bytes());
    drop(attributes);
    acknowledged(&mut NetlinkSocket::new(), &request, doing)
}

/// Polls any instances now and then, by one io_uring.
pub struct Once {
    ring: io_uring::IoUring,
}

impl Once {
    /// A poller that no instance is given to yet.
    pub fn new() -> Result<Once> {
        let ring = ring(&[])
            .doing(|| "making an io_uring that polls NAPI instances (Linux 6.13 or newer)".into())?;
        Ok(Once { ring })
    }

    /// Polls each of these instances once.
    pub fn poll(&self, ids: &[u32]) -> Result<()> {
        let submitter = self.ring.submitter();
        let known = ids.iter().try_for_each(|&id| submitter.register_napi_add_id(id));
        if known.is_ok() && !ids.is_empty() {
            poll_by(&self.ring);
        }
        for &id in ids {
            // This fails for an id that was not added.
            let _ = submitter.register_napi_del_id(id);
        }
        known.doing(|| "polling NAPI instances by io_uring (Linux 6.13 or newer)".into())
    }
}

/// An io_uring that polls these instances.
fn ring(ids: &[u32]) -> io::Result<io_uring::IoUring> {
    let ring = io_uring::IoUring::new(2)?;
    let mut napi =
        Napi::new().set_busy_poll_timeout(1).set_prefer_busy_poll(true).set_tracking(NapiTracking::Static);
    ring.submitter().register_napi(&mut napi)?;
    ids.iter().try_for_each(|&id| ring.submitter().register_napi_add_id(id))?;
    Ok(ring)
}

fn poll_by(ring: &io_uring::IoUring) {
    let timeout = io_uring::types::Timespec::new().nsec(1);
    let arguments = io_uring::types::SubmitArgs::new().timespec(&timeout);
    // Nothing completes; the wait polls. It ends by its timeout, which is no error here.
    let _ = ring.submitter().submit_with_args(1, &arguments);
}

/// Polls one NAPI instance, once a call.
pub enum Poller {
    /// Polls by a socket that carries the instance's id.
    Primed(UdpSocket),
    /// Polls by an io_uring that was given the id.
    Ring(Box<io_uring::IoUring>),
}

impl Poller {
    /// A poller by io_uring.
    pub fn ring(id: u32) -> Result<Poller> {
        match ring(&[id]) {
            Ok(ring) => Ok(Poller::Ring(Box::new(ring))),
            // The error code is that of a right that root lacks, but sudo would not help.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(PortError::Unsupported {
                what: "a way to poll a queue: first packets do not arrive, and io_uring is not allowed".into(),
                fix: "accept UDP from 0.0.0.0 in the firewall of this interface's namespace, or allow io_uring \
                      (`sysctl -w kernel.io_uring_disabled=0`)"
                    .into(),
            }),
            Err(error) => Err(error).doing(|| format!("polling NAPI instance {id} by io_uring (Linux 6.13 or newer)")),
        }
    }

    /// Brings in the packets that wait in the ring, [`BUDGET`] at the most.
    pub fn poll(&self) {
        match self {
            Poller::Primed(socket) => {
                // No packet is expected.
                let _ = receive(socket);
            }
            Poller::Ring(ring) => poll_by(ring),
        }
    }

    /// Keeps all packets from the socket from now on, by a filter that accepts nothing and cannot be taken off.
    pub fn refuse_packets(&self) -> Result<()> {
        let Poller::Primed(socket) = self else { return Ok(()) };
        let refuse = || -> io::Result<()> {
            sys::refuse_packets(socket.as_fd())?;
            // Packets that came before are taken; they are few, as the queue of a socket is bounded.
            while receive(socket).is_some() {}
            Ok(())
        };
        refuse().doing(|| "closing a poller's socket to packets".into())
    }

    /// The frame by which it is told who brings in what comes by this queue, with its number.
    fn first_frame(&self, sender: &Link, queue: u32, nth: u32) -> Vec<u8> {
        match self {
            Poller::Primed(socket) => {
                let port = socket.local_addr().map_or(0, |address| address.port());
                first_frames::packet(sender.address, port, nth)
            }
            Poller::Ring(_) => first_frames::companion(sender.address, queue, nth, 0),
        }
    }

    /// Returns whether this poller, and not the kernel's softirq, brings in the first frame sent last by its queue, the `nth`: that frame is
    /// not here before the poll, and is here after. If the softirq has the instance, it is waited for, up to `waits` times. io_uring cannot
    /// tell where no companions come.
    fn brings(&self, queue: u32, nth: u32, companions: &mut Companions, waits: &mut u32) -> Result<bool> {
        match self {
            Poller::Primed(socket) => socket_brings(socket, nth, waits),
            Poller::Ring(ring) if companions.come_by(queue) => {
                ring_brings(ring, companions, (queue, nth), waits)
            }
            Poller::Ring(ring) => {
                poll_by(ring);
                Ok(false)
            }
        }
    }

    /// Makes one call bring at most this many packets, [`BUDGET`] or fewer, rounded down to an even number; returns how many it then
    /// brings. The budget of io_uring is fixed.
    pub fn set_budget(&self, packets: u32) -> u32 {
        /// Twice `BUSY_POLL_BUDGET` of the kernel's `include/net/busy_poll.h`.
        const RING_BUDGET: u32 = 16;
        match self {
            Poller::Primed(socket) => {
                let each = packets / 2;
                // The kernel refuses only values above NAPI's own weight, which is `BUDGET`.
                let _ = sys::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &each);
                each * 2
            }
            Poller::Ring(_) => RING_BUDGET,
        }
    }

    /// The name of the way it polls, for `weir stat`.
    pub fn name(&self) -> &'static str {
        match self {
            Poller::Primed(_) => "socket",
            Poller::Ring(_) => "io_uring",
        }
    }
}

/// [`Poller::brings`] of a socket.
fn socket_brings(socket: &UdpSocket, nth: u32, waits: &mut u32) -> Result<bool> {
    let is_here = |wait_ns: u64| -> Result<bool> {
        let mut fds = [sys::poll_in(socket.as_raw_fd())];
        let waiting = sys::poll(&mut fds, Some(wait_ns));
        Ok(waiting.doing(|| "waiting for a first packet".into())? > 0)
    };
    // Earlier packets may have come late. Reading one that is here polls nothing.
    while is_here(0)? {
        if receive(socket) == Some(nth) {
            return Ok(false);
        }
    }
    let mut by_first_poll = true;
    loop {
        while let Some(number) = receive(socket) {
            if number == nth {
                return Ok(by_first_poll);
            }
        }
        by_first_poll = false;
        let Some(fewer) = waits.checked_sub(1) else { return Ok(false) };
        *waits = fewer;
        is_here(PRIMING_NS_MIN)?;
    }
}

/// [`Poller::brings`] of io_uring, of the `nth` companion by a queue.
fn ring_brings(
    ring: &io_uring::IoUring,
    companions: &mut Companions,
    (queue, nth): (u32, u32),
    waits: &mut u32,
) -> Result<bool> {
    companions.look();
    if companions.has_come(queue, nth) {
        return Ok(false);
    }
    let mut by_first_poll = true;
    loop {
        poll_by(ring);
        companions.look();
        if companions.has_come(queue, nth) {
            return Ok(by_first_poll);
        }
        by_first_poll = false;
        let Some(fewer) = waits.checked_sub(1) else { return Ok(false) };
        *waits = fewer;
        companions.wait(PRIMING_NS_MIN)?;
    }
}

/// A socket waiting for the packet that gives it the id of a queue's instance.
pub struct Priming {
    socket: UdpSocket,
    port: u16,
}

impl Priming {
    /// Binds a socket to the receiving interface, in this thread's namespace.
    pub fn new(receiver: &Link) -> Result<Priming> {
        let make = || -> io::Result<Priming> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let name = receiver.name.as_bytes();
            // SAFETY: the name and its length are passed; the kernel copies it.
            sys::check(unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_BINDTODEVICE,
                    name.as_ptr().cast(),
                    name.len() as libc::socklen_t,
                )
            })?;
            let port = socket.local_addr()?.port();
            Ok(Priming { socket, port })
        };
        make().doing(|| format!("binding a socket to {}", receiver.name))
    }

    /// Waits up to `wait_ns` for the packet; returns the id of its instance, if it came.
    pub fn id(&self, wait_ns: u64) -> Result<Option<u32>> {
        let doing = || "reading the NAPI id of a socket".to_string();
        let mut fds = [sys::poll_in(self.socket.as_raw_fd())];
        if sys::poll(&mut fds, Some(wait_ns)).doing(doing)? == 0 {
            return Ok(None);
        }
        let mut buffer = [0u8; 8];
        self.socket.recv(&mut buffer).doing(doing)?;
        let (id, _) =
            sys::getsockopt::<u32>(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID)
                .doing(doing)?;
        Ok(Some(id))
    }

    /// The poller that the socket has become.
    pub fn into_poller(self) -> Result<Poller> {
        let set = |name, value: u32| sys::setsockopt(self.socket.as_fd(), libc::SOL_SOCKET, name, &value);
        let make = || -> io::Result<()> {
            set(libc::SO_PREFER_BUSY_POLL, 1)?;
            set(libc::SO_BUSY_POLL, 1)?;
            set(libc::SO_BUSY_POLL_BUDGET, BUDGET / 2)
        };
        make().doing(|| "making a socket poll its NAPI instance".into())?;
        Ok(Poller::Primed(self.socket))
    }
}

/// The number of a priming packet that a socket has received, 0 if it is another packet; polls if it has received none.
fn receive(socket: &UdpSocket) -> Option<u32> {
    let mut number = [0u8; 4];
    // SAFETY: the room is passed with its length.
    let received = unsafe {
        libc::recv(socket.as_raw_fd(), number.as_mut_ptr().cast(), number.len(), libc::MSG_DONTWAIT)
    };
    (received >= 0).then(|| u32::from_be_bytes(number))
}

/// Sends each of `primings` a packet from `sender` in `sender_netns`, by the queue of the same number; returns the instance by which each
/// came, if it came.
///
/// # Errors
/// If the kernel does not send: with `ENETDOWN` while `sender` is down.
pub fn came_by(
    primings: &[Priming],
    companions: &mut Companions,
    sender_netns: &NetNs,
    sender: &Link,
) -> Result<Vec<Option<u32>>> {
    let mut came_by = vec![None; primings.len()];
    for nth in 0..PRIMING_TRIES {
        let numbered = (0u32..).zip(primings);
        let missing: Vec<_> = numbered.filter(|(queue, _)| came_by[*queue as usize].is_none()).collect();
        let is_filtered = |queue| nth > 0 && companions.have_enclosed(queue, nth - 1);
        if missing.iter().all(|(queue, _)| is_filtered(*queue)) {
            break;
        }
        let frames = missing.iter().flat_map(|&(queue, priming)| {
            let packet = first_frames::packet(sender.address, priming.port, 0);
            let around = [0, 1].map(|place| first_frames::companion(sender.address, queue, nth, place));
            let [before, behind] = around;
            [before, packet, behind].map(|frame| (queue, frame))
        });
        sender_netns.run(|| first_frames::send(sender, frames))?;
        // A packet that does not arrive is filtered, and so are the others: they are not each waited for. After a companion that was sent
        // behind it, it is not waited for at all.
        for longest_ns in [PRIMING_NS_MIN << nth, 0] {
            let mut wait_ns = longest_ns;
            for &(queue, priming) in &missing {
                let came_by = &mut came_by[queue as usize];
                if came_by.is_none() {
                    *came_by = priming.id(wait_ns)?;
                }
                if came_by.is_none() {
                    wait_ns = 0;
                }
            }
            if longest_ns > 0 {
                companions.look();
            }
        }
    }
    Ok(came_by)
}

/// Sends a packet by each queue, whose instances are deferred and have no other senders, until the pollers of the same numbers alone
/// bring it in. Why it is then theirs, and why one packet is not enough, is in `crate::ownership`.
pub fn oust_softirq(
    pollers: &[Poller],
    companions: &mut Companions,
    sender_netns: &NetNs,
    sender: &Link,
) -> Result<()> {
    /// The tries. The first packet is mostly the softirq's, the second not.
    const TRIES: u32 = 8;
    // The waits of all queues together, 0.3 s: an interface that is down again brings nothing, and its queues are many.
    let mut waits = 60;
    let mut left: Vec<_> = (0u32..).zip(pollers).collect();
    for nth in PRIMING_TRIES..PRIMING_TRIES + TRIES {
        let frames = left.iter().map(|(queue, poller)| (*queue, poller.first_frame(sender, *queue, nth)));
        sender_netns.run(|| first_frames::send(sender, frames))?;
        let mut others = Vec::new();
        for (queue, poller) in left {
            if !poller.brings(queue, nth, companions, &mut waits)? {
                others.push((queue, poller));
            }
        }
        left = others;
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Fails with a sentence if the instances of an interface are not one for each queue.
pub fn check_instances(link: &Link, ids: &[u32]) -> Result<()> {
    if ids.len() == link.rx_queues as usize {
        return Ok(());
    }
    Err(PortError::Unsuitable {
        name: link.name.clone(),
        why: format!(
            "has {} receive queues but {} NAPI instances: bring it up (`ip link set {} up`) and try again",
            link.rx_queues,
            ids.len(),
            link.name
        ),
    })
}
