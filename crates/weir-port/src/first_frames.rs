//! The first frames through a queue, and their companions, which show that a frame was filtered and who brings frames in.
//!
//! A first packet is UDP, because a socket takes the id of an instance from what it receives. A filter at either end may drop it, and then
//! nothing tells who polls. So there are frames of another type, which filters of IP do not know, and which a packet socket sees come:
//!
//! ```text
//! companion, packet, companion   both companions have come, and the packet has not: it is filtered
//! companion                      it is here after our poll, and was not before: nobody else polls
//! ```
//!
//! Rule: the frames of a queue come in the order in which they were sent. Owner: the thread that owns queues. Source: packet(7); IEEE 802 for
//! the type, local experiments. Limits: a filter that drops companions too leaves it at waiting, as without them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Doing, Result};
use crate::link::Link;
use crate::napi::PRIMING_MARK;
use crate::sys;

/// The type of a companion.
const COMPANION: u16 = 0x88b5;
/// The first bytes of a companion: addresses, type, mark with queue, number, place.
const COMPANION_BYTES: usize = 26;
/// The shortest Ethernet frame.
const FRAME_BYTES_MIN: usize = 60;

/// The companions that have come to an interface.
pub struct Companions {
    /// `None` where there can be no packet socket.
    socket: Option<OwnedFd>,
    /// The number of the last that came, by queue, and by its place before the packet or behind.
    last: Vec<[Option<u32>; 2]>,
}

impl Companions {
    /// Those that come from now on, to an interface of this thread's namespace.
    pub fn new(receiver: &Link) -> Companions {
        let last = vec![[None; 2]; receiver.rx_queues as usize];
        Companions { socket: listen(receiver.ifindex).ok(), last }
    }

    /// Takes in those that have come.
    pub fn look(&mut self) {
        let mut frame = [0u8; COMPANION_BYTES];
        while let Some((queue, nth, place)) = self.receive(&mut frame) {
            if let Some(last) = self.last.get_mut(queue) {
                last[place] = Some(nth);
            }
        }
    }

    /// The queue, number and place of the next; `None` if there is none.
    fn receive(&self, frame: &mut [u8; COMPANION_BYTES]) -> Option<(usize, u32, usize)> {
        let socket = self.socket.as_ref()?.as_raw_fd();
        loop {
            // SAFETY: the room is passed with its length.
            let received =
                unsafe { libc::recv(socket, frame.as_mut_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
            if received < 0 {
                return None;
            }
            let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| frame[at + byte]));
            let (mark, nth, place) = (word(14), word(18), word(22));
            if received as usize == COMPANION_BYTES && mark & !0xffff == PRIMING_MARK {
                return Some(((mark & 0xffff) as usize, nth, (place & 1) as usize));
            }
        }
    }

    /// Waits up to `wait_ns` for one to come.
    pub fn wait(&self, wait_ns: u64) -> Result<()> {
        let socket = self.socket.as_ref().map_or(-1, |socket| socket.as_raw_fd());
        let waited = sys::poll(&mut [sys::poll_in(socket)], Some(wait_ns));
        waited.map(drop).doing(|| "waiting for a first frame".into())
    }

    /// Returns whether any has come by this queue, as of the last look.
    pub fn come_by(&self, queue: u32) -> bool {
        self.last[queue as usize] != [None; 2]
    }

    /// Returns whether the first of this number has come by this queue, as of the last look.
    pub fn has_come(&self, queue: u32, nth: u32) -> bool {
        self.last[queue as usize][0] == Some(nth)
    }

    /// Returns whether those before and behind the packet of this number have come by this queue, as of the last look.
    pub fn have_enclosed(&self, queue: u32, nth: u32) -> bool {
        self.last[queue as usize] == [Some(nth); 2]
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        self.socket.take().into_iter().for_each(close);
    }
}

/// Closes a packet socket on another thread: closing one waits for every core, which takes 10 ms. Without a thread it is closed here.
fn close(socket: OwnedFd) {
    drop(std::thread::Builder::new().spawn(move || drop(socket)));
}

fn listen(ifindex: u32) -> io::Result<OwnedFd> {
    // A socket of no protocol hears nothing until it is bound.
    let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let mut address = <libc::sockaddr_ll as sys::Plain>::zeroed();
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = COMPANION.to_be();
    address.sll_ifindex = ifindex as i32;
    sys::bind(socket.as_fd(), &address)?;
    Ok(socket)
}

/// Sends frames, from a sending end in this thread's namespace, each by way of the transmit queue whose number stands before it.
pub fn send(sender: &Link, frames: impl Iterator<Item = (u32, Vec<u8>)>) -> Result<()> {
    let send = || -> io::Result<()> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        for (queue, frame) in frames {
            sys::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &(PRIMING_MARK | queue))?;
            send_frame(socket.as_fd(), sender.ifindex, &frame)?;
        }
        close(socket);
        Ok(())
    };
    send().doing(|| format!("sending first frames on {}", sender.name))
}

/// Sends a whole Ethernet frame by an AF_PACKET socket. A frame that a filter at the sending end drops counts as sent: it does not arrive.
fn send_frame(socket: BorrowedFd<'_>, ifindex: u32, frame: &[u8]) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: u16::from_be_bytes([frame[12], frame[13]]).to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0xff; 8],
    };
    // SAFETY: both pointers are passed with the sizes of the live values they point at.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    match sys::check(sent as i32) {
        // What the kernel makes of a packet that tc or nftables drops on its way out.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        sent => sent.map(drop),
    }
}

/// A first packet to this UDP port, with its number: Ethernet broadcast, IPv4 0.0.0.0 to 255.255.255.255. Neither end needs an address.
pub fn packet(source: [u8; 6], port: u16, nth: u32) -> Vec<u8> {
    let mut frame = header(source, 0x0800);
    let header_start = frame.len();
    // IPv4 header: version and length, no service, 32 bytes in all, no fragment, one hop, UDP.
    frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 1, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
    let sum: u32 =
        frame[header_start..].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[header_start + 10..header_start + 12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(port.to_be_bytes());
    // UDP length of twelve bytes, and no checksum, which IPv4 allows.
    frame.extend([0, 12, 0, 0]);
    frame.extend(nth.to_be_bytes());
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

/// A companion by this queue: the one `place` 0 before the packet of this number, or 1 behind it.
pub fn companion(source: [u8; 6], queue: u32, nth: u32, place: u32) -> Vec<u8> {
    let mut frame = header(source, COMPANION);
    [PRIMING_MARK | queue, nth, place].iter().for_each(|word| frame.extend(word.to_be_bytes()));
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

fn header(source: [u8; 6], kind: u16) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(source);
    frame.extend(kind.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packet_has_a_right_header_checksum() {
        let frame = packet([2, 0, 0, 0, 0, 1], 4242, 1);
        assert_eq!(frame.len(), 60);
        let sum: u32 = frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
