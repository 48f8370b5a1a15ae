//! Clients with sockets of the kernel's: some on each core, each connected to the server, sending numbered datagrams in batches.
//!
//! Owner: one thread for each core. Limits: a datagram that is lost is missed at the end, and until then takes room in the window.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use weir_run::clock::thread_cpu_ns;

use super::{Outcome, PAYLOAD_BYTES};
use crate::clock;

/// Datagrams in one system call.
pub(super) const BATCH: usize = 64;
/// Datagrams of a client on their way: eight times as many fit the receive buffer of one server.
const WINDOW: u64 = 16;
/// The longest time that datagrams on their way may take to come at the end.
const REST: Duration = Duration::from_millis(200);

/// The pace of clients: whether they wait for their echoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// [`WINDOW`] on their way.
    Windowed,
    /// As fast as they can.
    Flood,
}

/// The counts of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Asked {
    pub(super) sent: u64,
    /// Echoes that came back in all, and those of them that came in the measured time.
    pub(super) echoed: u64,
    pub(super) echoed_in_time: u64,
    pub(super) seconds: f64,
    /// Processor time of the clients' threads.
    pub(super) cpu_seconds: f64,
    pub(super) reordered: u64,
}

impl Asked {
    /// The outcome of a run in which sockets of servers had no room for so many.
    pub(super) fn outcome(self, dropped_full_socket: u64) -> Outcome {
        let Asked { sent, echoed, echoed_in_time: in_time, seconds, cpu_seconds, reordered } = self;
        let client_cpu_seconds = Some(cpu_seconds);
        Outcome {
            sent,
            echoed,
            in_time,
            seconds,
            cpu_seconds: 0.0,
            client_cpu_seconds,
            dropped_full_socket,
            reordered,
        }
    }

    pub(super) fn add(self, other: Asked) -> Asked {
        Asked {
            sent: self.sent + other.sent,
            echoed: self.echoed + other.echoed,
            echoed_in_time: self.echoed_in_time + other.echoed_in_time,
            seconds: self.seconds.max(other.seconds),
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            reordered: self.reordered + other.reordered,
        }
    }
}

struct Client {
    socket: UdpSocket,
    sent: u64,
    echoed: u64,
    next: u64,
    reordered: u64,
}

/// Messages of one system call, and their memory.
pub(super) struct Messages {
    bytes: Box<[[u8; 2048]; BATCH]>,
    names: Box<[libc::sockaddr_in; BATCH]>,
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
}

impl Messages {
    /// Messages with room for the addresses that they come from, or without.
    pub(super) fn new(with_names: bool) -> Messages {
        let name = libc::sockaddr_in {
            sin_family: 0,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        let mut messages = Messages {
            bytes: Box::new([[0; 2048]; BATCH]),
            names: Box::new([name; BATCH]),
            vectors: Box::new([libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH]),
            // SAFETY: a message header of zeros is an empty one.
            headers: Box::new([unsafe { std::mem::zeroed() }; BATCH]),
        };
        for at in 0..BATCH {
            messages.vectors[at].iov_base = messages.bytes[at].as_mut_ptr().cast();
            let header = &mut messages.headers[at].msg_hdr;
            header.msg_iov = &raw mut messages.vectors[at];
            header.msg_iovlen = 1;
            if with_names {
                header.msg_name = (&raw mut messages.names[at]).cast();
            }
        }
        messages
    }

    /// Receives the messages that are there, or waits for one if `flags` say so. Returns how many.
    pub(super) fn receive(&mut self, socket: &UdpSocket, flags: libc::c_int) -> io::Result<usize> {
        for at in 0..BATCH {
            self.vectors[at].iov_len = self.bytes[at].len();
            self.headers[at].msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        }
        // SAFETY: the headers point at vectors and names, and these at bytes, all of this value and as long as they say.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH as u32,
                flags,
                std::ptr::null_mut(),
            )
        };
        some_of(count)
    }

    /// Sends the first `count`, of so many bytes each or, if none are said, of those that were received. Returns how many went.
    pub(super) fn send(
        &mut self,
        socket: &UdpSocket,
        count: usize,
        len: Option<usize>,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        for at in 0..count {
            self.vectors[at].iov_len = len.unwrap_or(self.headers[at].msg_len as usize);
            if len.is_some() {
                self.headers[at].msg_hdr.msg_namelen = 0;
            }
        }
        // SAFETY: as above; `count` is at most as many as there are.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count.min(BATCH) as u32, flags)
        };
        some_of(sent)
    }

    /// The number that stands in front of a message.
    fn number(&mut self, at: usize) -> &mut [u8; 8] {
        self.bytes[at].first_chunk_mut().expect("2048 bytes")
    }
}

/// The count, or none if the call would have to wait.
fn some_of(count: libc::c_int) -> io::Result<usize> {
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            error => Err(error),
        },
    }
}

/// Sends to the server from these sockets for so long, and takes the echoes in.
pub(super) fn ask(
    sockets: Vec<UdpSocket>,
    server: SocketAddr,
    pace: Pace,
    duration: Duration,
) -> Result<Asked> {
    let mut clients = Vec::new();
    for socket in sockets {
        socket.connect(server)?;
        clients.push(Client { socket, sent: 0, echoed: 0, next: 0, reordered: 0 });
    }
    let mut messages = Messages::new(false);
    let (start, start_cpu_ns) = (clock::now(), thread_cpu_ns());
    let mut elapsed = Duration::ZERO;
    while elapsed < duration {
        let mut moved = 0;
        for client in &mut clients {
            moved += client.take(&mut messages)?;
            moved += client.send(&mut messages, pace)?;
        }
        if moved == 0 {
            wait(&clients, duration - elapsed)?;
        }
        elapsed = start.elapsed();
    }
    let seconds = elapsed.as_secs_f64();
    let echoed_in_time = clients.iter().map(|client| client.echoed).sum();
    let end: Instant = clock::now() + REST;
    while clients.iter().any(|client| client.echoed < client.sent) && clock::now() < end {
        let taken = clients.iter_mut().map(|client| client.take(&mut messages)).sum::<io::Result<usize>>()?;
        if taken == 0 {
            wait(&clients, Duration::from_millis(5))?;
        }
    }
    let cpu_seconds = (thread_cpu_ns() - start_cpu_ns) as f64 / 1e9;
    let asked = Asked { echoed_in_time, seconds, cpu_seconds, ..Asked::default() };
    Ok(clients.iter().fold(asked, |asked, client| {
        let Client { sent, echoed, reordered, .. } = *client;
        asked.add(Asked { sent, echoed, reordered, ..Asked::default() })
    }))
}

impl Client {
    fn take(&mut self, messages: &mut Messages) -> io::Result<usize> {
        let count = messages.receive(&self.socket, libc::MSG_DONTWAIT)?;
        for at in 0..count {
            let number = u64::from_be_bytes(*messages.number(at));
            self.reordered += u64::from(number < self.next);
            self.next = self.next.max(number + 1);
        }
        self.echoed += count as u64;
        Ok(count)
    }

    fn send(&mut self, messages: &mut Messages, pace: Pace) -> io::Result<usize> {
        let room = match pace {
            Pace::Windowed => WINDOW.saturating_sub(self.sent - self.echoed) as usize,
            Pace::Flood => BATCH,
        };
        let count = room.min(BATCH);
        if count == 0 {
            return Ok(0);
        }
        for at in 0..count {
            *messages.number(at) = (self.sent + at as u64).to_be_bytes();
        }
        let flags = libc::MSG_DONTWAIT;
        let sent = messages.send(&self.socket, count, Some(PAYLOAD_BYTES), flags)?;
        self.sent += sent as u64;
        Ok(sent)
    }
}

/// Waits until something has come for one of them.
fn wait(clients: &[Client], most: Duration) -> io::Result<()> {
    let entry =
        |client: &Client| libc::pollfd { fd: client.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<_> = clients.iter().map(entry).collect();
    // SAFETY: the array is live and as long as is said.
    let ready = unsafe {
        libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, most.as_millis().max(1) as i32)
    };
    some_of(ready).map(drop)
}
