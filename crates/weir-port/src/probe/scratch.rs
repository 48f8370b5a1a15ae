//! A namespace without a name to try things out, and a veth pair in it that nobody else sees.
//!
//! The namespace belongs to one thread. When that ends, and also when the process is killed, the kernel takes the namespace
//! and what is in it away; a veth whose other end is elsewhere takes that end along.
//!
//! Source: namespaces(7), `unshare(2)`; veth(4).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::channel;

use crate::error::{Doing, Result};
use crate::hold::{Hold, Owner};
use crate::link::{self, Link};
use crate::netns::NetNs;
use crate::sys;
use crate::undo::{Keeper, Undo};
use crate::veth::{self, VethEnd};

/// The length of a frame that only [`ScratchSender`] sends: interfaces that come up send frames of their own.
pub const FRAME_BYTES: u32 = 61;
/// The type for local experiments (IEEE 802): no protocol of the kernel answers to it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const SEND_BUFFER_BYTES: i32 = 8 << 20;

/// Runs `work` on a thread in a new namespace and returns its answer. The namespace is taken apart after this has returned.
pub fn run<T: Send + 'static>(work: impl FnOnce(&dyn Fn(T)) -> Result<()> + Send + 'static) -> Result<T> {
    let (answer, answered) = channel();
    let spawned = std::thread::Builder::new().name("weir-probe".into()).spawn(move || {
        let result = NetNs::unshare().and_then(|_| {
            work(&|value| {
                // The caller waits until there is an answer or this thread has ended.
                let _ = answer.send(Ok(value));
            })
        });
        if let Err(error) = result {
            let _ = answer.send(Err(error));
        }
    });
    spawned.doing(|| "starting a thread".into())?;
    answered.recv().map_err(io::Error::other).doing(|| "waiting for a probe".into())?
}

/// A veth pair, both ends up.
pub struct ScratchPair {
    /// The end where packets arrive, in this thread's namespace.
    pub receiver: Link,
    /// The end where packets are sent.
    pub sender: Link,
}

impl ScratchPair {
    /// A pair of which one end is in this thread's namespace and named `receiver`, `%d` becoming a free number, and the other in
    /// `sender_netns`.
    pub fn new(receiver: &CStr, sender_netns: &NetNs) -> Result<ScratchPair> {
        let receiver_netns = NetNs::current()?;
        // The pair is made from the sender's side, whose name is known, so that the other end is found by way of it.
        let (sender, receiver) = sender_netns.run(|| {
            let near = VethEnd { name: c"sender", address: None };
            let far = VethEnd { name: receiver, address: None };
            let (sender, receiver) = veth::create(&near, &far, &receiver_netns, 1)?;
            link::set_up(sender.ifindex, true)?;
            Ok((Link::by_index(sender.ifindex)?, receiver.ifindex))
        })?;
        link::set_up(receiver, true)?;
        Ok(ScratchPair { receiver: Link::by_index(receiver)?, sender })
    }
}

/// Sends frames of [`FRAME_BYTES`] without ever waiting.
pub struct ScratchSender {
    socket: OwnedFd,
    frame: Vec<u8>,
    address: libc::sockaddr_ll,
}

impl ScratchSender {
    /// A sender by an interface of this thread's namespace.
    pub fn new(link: &Link) -> Result<ScratchSender> {
        let open = || -> io::Result<OwnedFd> {
            let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
            // The buffer is larger than the charge of all frames of a burst, so that only the device refuses one.
            sys::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES)?;
            Ok(socket)
        };
        let socket = open().doing(|| format!("opening a packet socket for {}", link.name))?;
        let mut frame = [&[0xff; 6], &link.address, &ETHERTYPE[..]].concat();
        frame.resize(FRAME_BYTES as usize, 0);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: u16::from_ne_bytes(ETHERTYPE),
            sll_ifindex: link.ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0xff; 8],
        };
        Ok(ScratchSender { socket, frame, address })
    }

    /// Sends one frame; an error if it was not accepted.
    pub fn send(&self) -> io::Result<()> {
        // SAFETY: both pointers are passed with the sizes of the live values they point at.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                self.frame.as_ptr().cast(),
                self.frame.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(&self.address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        sys::check(sent as i32).map(drop)
    }
}

/// A keeper that remembers nothing, because all changes here go with the namespace.
pub struct Forget;

impl Keeper for Forget {
    fn record(&mut self, _netns: &NetNs, _undo: Undo, _hold: Option<Hold>) -> Result<()> {
        Ok(())
    }

    fn put_back(&mut self, _interfaces: &[(u64, u32)]) -> Result<()> {
        Ok(())
    }

    fn forget(&mut self, _interfaces: &[(u64, u32)]) -> Result<()> {
        Ok(())
    }

    fn owner(&self) -> Option<Owner> {
        None
    }

    fn deletes(&self, _netns: &NetNs, _ifindex: u32) -> bool {
        true
    }

    fn say(&mut self, _text: &str) {}
}
