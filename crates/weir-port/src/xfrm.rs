//! The kernel's IPsec over netlink: its events, and dumps of its associations and policies.
//!
//! Rule: a caller that is to miss nothing listens first and asks for a dump then. Messages have keys in them, so they lie in memory that is
//! wiped. They are read elsewhere (`weir-run/ipsec/follow/message.rs`); here only a dump's end is looked for.
//!
//! Limits: the network namespace of the thread that asks. Source: netlink(7), linux/xfrm.h (`xfrm_nlgroups`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use zeroize::Zeroizing;

use crate::error::{Doing, Result};
use crate::netlink_bytes::messages;
use crate::{monitor, sys};

/// `XFRMNLGRP_EXPIRE`, `SA`, `POLICY`, `AEVENTS`, `MIGRATE` and `MAPPING`, as bits.
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7;
const XFRM_MSG_GETSA: u16 = 0x12;
const XFRM_MSG_GETPOLICY: u16 = 0x15;
/// The bytes that the kernel fills at most in one answer of a dump, and more than any event has.
const MESSAGES_BYTES: usize = 64 * 1024;
/// The bytes of messages that may wait for us; asked for, and granted to root.
const RECEIVE_BUFFER_BYTES: i32 = 4 << 20;

/// A listener for events of the associations and policies of this thread's namespace.
pub struct XfrmEvents {
    socket: OwnedFd,
    buffer: Zeroizing<Vec<u8>>,
}

/// The result of one call to receive.
#[derive(Debug)]
pub enum XfrmReceived<'a> {
    /// One or more messages.
    Messages(&'a [u8]),
    /// Some messages were lost, of any kind.
    Overrun,
    /// There are no more messages for now.
    Nothing,
}

impl XfrmEvents {
    /// Starts to listen.
    ///
    /// # Errors
    /// If this kernel has no IPsec, or it is not for this user.
    pub fn listen() -> Result<XfrmEvents> {
        let socket = monitor::listen(libc::NETLINK_XFRM, GROUPS)?;
        // With a smaller buffer more messages may be lost, which is noticed.
        let _ =
            sys::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER_BYTES);
        Ok(XfrmEvents { socket, buffer: Zeroizing::new(vec![0; MESSAGES_BYTES]) })
    }

    /// The descriptor, readable while there are messages.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The messages there are, without waiting.
    ///
    /// # Errors
    /// If the socket will give no more messages.
    pub fn receive(&mut self) -> io::Result<XfrmReceived<'_>> {
        loop {
            match monitor::receive(&self.socket, &mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(length) => return Ok(XfrmReceived::Messages(&self.buffer[..length])),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(XfrmReceived::Overrun);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(XfrmReceived::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// All associations, then all policies, as messages. Their flags say whether they are of one moment.
///
/// # Errors
/// If the kernel does not answer.
pub fn dump() -> Result<Zeroizing<Vec<u8>>> {
    let dump = || -> io::Result<_> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM)?;
        let mut messages = Zeroizing::new(Vec::new());
        // The bodies `xfrm_usersa_id` and `xfrm_userpolicy_id`, which a dump does not look at.
        for (kind, body) in [(XFRM_MSG_GETSA, [0; 24].as_slice()), (XFRM_MSG_GETPOLICY, &[0; 64])] {
            monitor::send(&socket, kind, libc::NLM_F_DUMP, body)?;
            let mut buffer = Zeroizing::new(vec![0; MESSAGES_BYTES]);
            loop {
                let length = monitor::receive(&socket, &mut buffer, 0)?;
                // A buffer that grows would leave copies of its content behind.
                let mut longer = Zeroizing::new(Vec::with_capacity(messages.len() + length));
                longer.extend_from_slice(&messages);
                longer.extend_from_slice(&buffer[..length]);
                messages = longer;
                if is_end(&buffer[..length]) {
                    break;
                }
            }
        }
        Ok(messages)
    };
    dump().doing(|| "reading the associations and policies of the kernel's IPsec".into())
}

/// Returns whether the last of these messages ends a dump, or none can be read, as behind it nothing would come.
fn is_end(bytes: &[u8]) -> bool {
    let last = messages(bytes).last();
    last.is_none_or(|(kind, ..)| [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16].contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink_bytes::message;

    #[test]
    fn a_dump_ends_with_its_last_message() {
        let message = |kind, body: &[u8]| message(kind, 0, 0, body);
        let [more, done, refused] = [message(0x10, &[7; 13]), message(3, &[0; 4]), message(2, &[1; 4])];
        assert!(!is_end(&more) && !is_end(&[more.clone(), more.clone()].concat()));
        assert!(is_end(&[more.clone(), done].concat()) && is_end(&refused));
        // A message that says it is shorter than its header would never be passed.
        assert!(is_end(&[3, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) && is_end(&[]));
    }
}
