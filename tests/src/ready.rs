//! Senders that never block: each sends until `send` says EAGAIN, and goes on when epoll says EPOLLOUT.
//!
//! One thread serves them all, as an event loop does. A wake is *in vain* if the send right after EPOLLOUT says EAGAIN again. A datagram
//! bears its sender's number and how many that one sent before; the sockets are the senders' own, with buffers of the system's size.
//!
//! Source: epoll(7), udp(7): EPOLLOUT comes when less than half of the socket's send buffer is taken.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_lab::clock::now;

/// The time that a loop waits before it looks whether its time is over.
const LOOK: Duration = Duration::from_millis(100);

/// The counts of the senders.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Datagrams of each sender.
    pub counts: Vec<u64>,
    /// The number of sends that did not follow a wake and returned EAGAIN.
    pub refused: u64,
    /// The number of EPOLLOUT events.
    pub wakes: u64,
    /// The number of sends right after such an event that returned EAGAIN.
    pub in_vain: u64,
}

impl Sent {
    /// Datagrams of all senders.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Lets all of them send datagrams of `size_bytes`, 16 or more, until `end`.
pub fn send_until(sockets: &[UdpSocket], size_bytes: usize, end: Instant) -> Result<Sent> {
    let poll = Epoll::new().context("epoll_create1")?;
    let mut sent = Sent { counts: vec![0; sockets.len()], ..Sent::default() };
    for (number, socket) in sockets.iter().enumerate() {
        socket.set_nonblocking(true)?;
        send_all(socket, number, size_bytes, end, &mut sent)?;
        poll.arm(libc::EPOLL_CTL_ADD, socket, number).context("epoll_ctl")?;
    }
    while now() < end {
        for number in poll.wait().context("epoll_wait")? {
            sent.wakes += 1;
            let some = send_all(&sockets[number], number, size_bytes, end, &mut sent)?;
            if some == 0 && now() < end {
                sent.in_vain += 1;
            }
            poll.arm(libc::EPOLL_CTL_MOD, &sockets[number], number).context("epoll_ctl")?;
        }
    }
    Ok(sent)
}

/// Sends until the kernel takes no more. Returns how many it took.
fn send_all(
    socket: &UdpSocket,
    number: usize,
    size_bytes: usize,
    end: Instant,
    sent: &mut Sent,
) -> Result<u64> {
    let mut datagram = vec![0; size_bytes];
    datagram[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let before = sent.counts[number];
    while now() < end {
        datagram[8..16].copy_from_slice(&sent.counts[number].to_le_bytes());
        match socket.send(&datagram) {
            Ok(_) => sent.counts[number] += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                sent.refused += 1;
                break;
            }
            Err(error) => return Err(error).with_context(|| format!("sender {number}")),
        }
    }
    Ok(sent.counts[number] - before)
}

/// Stands for the number of datagrams while their senders go on.
pub const NOT_OVER: u64 = u64::MAX;

/// The datagrams that arrived of each sender, and how many of those after a later one; until the senders have ended, as `sent` says, and
/// either all have come or nothing has for `silence`.
pub fn receive(
    socket: &UdpSocket,
    senders: usize,
    silence: Duration,
    sent: &AtomicU64,
) -> Result<(Vec<u64>, u64)> {
    socket.set_read_timeout(Some(LOOK))?;
    let (mut counts, mut next, mut reordered) = (vec![0; senders], vec![0; senders], 0);
    let (mut datagram, mut total, mut last) = ([0; 2048], 0, now());
    loop {
        match socket.recv(&mut datagram) {
            Ok(16..) => {}
            Ok(length) => anyhow::bail!("a datagram of {length} bytes"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => match sent.load(Ordering::Relaxed) {
                NOT_OVER => continue,
                sent if total >= sent || last.elapsed() >= silence => return Ok((counts, reordered)),
                _ => continue,
            },
            Err(error) => return Err(error).context("recv"),
        }
        (total, last) = (total + 1, now());
        let word = |at: usize| u64::from_le_bytes(datagram[at..at + 8].try_into().expect("eight bytes"));
        let (number, count) = (word(0) as usize, word(8));
        *counts.get_mut(number).context("a datagram of nobody's")? += 1;
        reordered += u64::from(count < next[number]);
        next[number] = next[number].max(count + 1);
    }
}

/// An epoll instance that reports EPOLLOUT once each time it is armed.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Epoll> {
        // SAFETY: a plain system call; the descriptor it returns is new and ours alone.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Epoll(OwnedFd::from_raw_fd(fd))) }
        }
    }

    fn arm(&self, operation: i32, socket: &UdpSocket, number: usize) -> io::Result<()> {
        let events = (libc::EPOLLOUT | libc::EPOLLONESHOT) as u32;
        let mut event = libc::epoll_event { events, u64: number as u64 };
        // SAFETY: the event is alive for the call, and both descriptors are open.
        let done =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, socket.as_raw_fd(), &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The numbers of those that are ready.
    fn wait(&self) -> io::Result<Vec<usize>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the pointer and the length are those of a live array.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                LOOK.as_millis() as i32,
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(events[..count as usize].iter().map(|event| event.u64 as usize).collect())
    }
}
