//! Messages between two processes, with descriptors beside them: a Unix socket pair of kind `SOCK_SEQPACKET`.
//!
//! Rule: a message arrives whole or not at all, with all its descriptors, of which there are at most [`DESCRIPTORS_MAX`]. When the other
//! process ends, its messages end.
//!
//! Source: unix(7), `SCM_RIGHTS`; cmsg(3).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::sys;

/// The most descriptors that a message carries.
pub const DESCRIPTORS_MAX: usize = 2;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The `CMSG_SPACE` of as many descriptors, in words, for its alignment.
const CONTROL_WORDS: usize = 4;

/// One side of the socket pair.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// The two sides of a new socket pair.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let mut fds: [RawFd; 2] = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the kernel writes two descriptors into an array of two.
        sys::check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // SAFETY: the kernel has just made both for us; no other code knows their numbers.
        let [one, other] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok((Channel { socket: one }, Channel { socket: other }))
    }

    /// The side that this process was started with.
    pub fn from_fd(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// The descriptor of this side, to start another process with.
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message with [`DESCRIPTORS_MAX`] descriptors at most. A closed other side raises no signal.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX || bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut control = [0u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message = header(&mut part);
        if !descriptors.is_empty() {
            let length = size_of_val(descriptors) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: both only compute lengths.
            let (space, whole) = unsafe { (libc::CMSG_SPACE(length), libc::CMSG_LEN(length)) };
            message.msg_controllen = space as _;
            // SAFETY: `control` is aligned, zeroed, and long enough for one header and the descriptors, whose number was checked; so the
            // first header lies inside it, and the data behind that too.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&message);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = whole as _;
                let data = libc::CMSG_DATA(first).cast::<RawFd>();
                for (place, fd) in descriptors.iter().enumerate() {
                    data.add(place).write_unaligned(fd.as_raw_fd());
                }
            }
        }
        loop {
            // SAFETY: everything that `message` points at is alive, and only read.
            let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
            match sys::check(sent as i32) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Waits for a message; `None` if there will be no more.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
        let mut control = [0u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message = header(&mut part);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let length = loop {
            // SAFETY: `message` points at live memory of the lengths it says.
            let received =
                unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
            match sys::check(received as i32) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                result => break result? as usize,
            }
        };
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled in the control part and its length, by which these macros stay inside it; each descriptor in it
        // is new and ours.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(&message);
            while !next.is_null() {
                if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(next).cast::<RawFd>();
                    for place in 0..bytes / size_of::<RawFd>() {
                        descriptors.push(OwnedFd::from_raw_fd(data.add(place).read_unaligned()));
                    }
                }
                next = libc::CMSG_NXTHDR(&message, next);
            }
        }
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was too long"));
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            // There is room for as many descriptors as a message of ours has: this process may open no more.
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if length == 0 {
            return Ok(None);
        }
        bytes.truncate(length);
        Ok(Some((bytes, descriptors)))
    }

    /// Waits up to `wait_ns` for a message or the end of messages; returns whether one of them came.
    pub fn is_readable(&self, wait_ns: u64) -> io::Result<bool> {
        Ok(sys::poll(&mut [sys::poll_in(self.socket.as_raw_fd())], Some(wait_ns))? > 0)
    }

    /// Ends the messages of this side, which the other side sees; messages still come from it.
    pub fn end(&self) {
        // SAFETY: takes no pointers. It fails only if the other side is gone.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn header(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all-zero is a valid `msghdr` that points at nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptors_and_the_end_is_seen() {
        let (one, other) = Channel::pair().unwrap();
        let (mut reading, mut writing) = io::pipe().unwrap();
        one.send(b"take these", &[writing.as_fd(), reading.as_fd()]).unwrap();
        one.send(b"and nothing", &[]).unwrap();
        let (bytes, descriptors) = other.receive().unwrap().unwrap();
        assert_eq!((&bytes[..], descriptors.len()), (&b"take these"[..], 2));
        let mut passed: File = descriptors.into_iter().next().unwrap().into();
        passed.write_all(b"x").unwrap();
        let mut byte = [0];
        reading.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert!(writing.write_all(b"y").is_ok());
        assert_eq!(other.receive().unwrap().unwrap().0, b"and nothing");
        assert!(!other.is_readable(0).unwrap());
        one.end();
        assert!(other.is_readable(0).unwrap() && other.receive().unwrap().is_none());
        other.send(b"still", &[]).unwrap();
        assert_eq!(one.receive().unwrap().unwrap().0, b"still");
        drop(one);
        // A child that another test forks has `one` as well until it executes; so some sends may succeed, and the last waits for that.
        while other.send(b"nobody", &[]).is_ok() {}
    }
}
