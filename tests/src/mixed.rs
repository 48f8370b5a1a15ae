//! Senders of different kinds beside each other, each to a receiver of its own, and the arrivals of each.
//!
//! A sender is a thread that sends as fast as it is let, a receiver one that counts bytes of payload. Datagrams of UDP bear numbers, so
//! their order is seen; TCP and datagrams that the device cuts up (`UDP_SEGMENT`) are only counted.
//!
//! Source: udp(7), `UDP_SEGMENT`; Jain's index is [`weir_lab::iperf::jain`].

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::bed::Namespace;

const FIRST_PORT: u16 = 7100;
const RECEIVE_BUFFER_BYTES: libc::c_int = 4 << 20;
/// The time for which a thread that is held, or gets nothing, stays deaf to being stopped.
const PATIENCE: Duration = Duration::from_millis(200);
/// The payload of each datagram of a call of [`Kind::Segmented`].
pub const SEGMENT_BYTES: usize = 1400;
/// The datagrams of such a call.
pub const SEGMENTS: usize = 40;
const ETHERNET_IP_UDP_BYTES: f64 = 42.0;

/// The kind of packets that a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Datagrams with so many bytes of payload.
    Udp(usize),
    /// 40 datagrams in a call, cut up by the kernel behind the queue.
    Segmented,
    /// A stream.
    Tcp,
}

impl Kind {
    /// Bytes of frames for each byte of payload, on an MTU of 1500 where the kind does not say.
    fn frame_share(self) -> f64 {
        match self {
            Kind::Udp(bytes) => (bytes as f64 + ETHERNET_IP_UDP_BYTES) / bytes as f64,
            Kind::Segmented => (SEGMENT_BYTES as f64 + ETHERNET_IP_UDP_BYTES) / SEGMENT_BYTES as f64,
            Kind::Tcp => 1514.0 / 1448.0,
        }
    }
}

/// Has the kernel cut what the socket sends into datagrams of [`SEGMENT_BYTES`].
pub fn segment(socket: &UdpSocket) -> Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT_BYTES as libc::c_int)
}

/// Senders and receivers under way. Dropping it ends them.
#[derive(Debug)]
pub struct Mixed {
    is_over: Arc<AtomicBool>,
    flows: Vec<(Kind, Arc<Flow>)>,
    threads: Vec<JoinHandle<()>>,
}

/// The arrivals of one sender.
#[derive(Debug, Default)]
struct Flow {
    bytes: AtomicU64,
    reordered: AtomicU64,
}

impl Mixed {
    /// Starts one sender for each kind.
    pub fn start(from: &Namespace, to: &Namespace, address: &str, kinds: &[Kind]) -> Result<Mixed> {
        let mut mixed = Mixed { is_over: Arc::default(), flows: Vec::new(), threads: Vec::new() };
        for (port, kind) in (FIRST_PORT..).zip(kinds) {
            let flow = Arc::new(Flow::default());
            mixed.flows.push((*kind, Arc::clone(&flow)));
            match kind {
                Kind::Tcp => {
                    let listener = to.enter(|| TcpListener::bind(("0.0.0.0", port)))??;
                    let stream = from.enter(|| TcpStream::connect((address, port)))??;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    let (accepted, _) = listener.accept()?;
                    accepted.set_read_timeout(Some(PATIENCE))?;
                    mixed.spawn(move |is_over| count_stream(accepted, &flow, is_over))?;
                    mixed.spawn(move |is_over| write_stream(stream, is_over))?;
                }
                Kind::Udp(bytes) => {
                    let [sender, receiver] = datagrams(from, to, address, port)?;
                    let bytes = *bytes;
                    mixed.spawn(move |is_over| count_datagrams(&receiver, &flow, true, is_over))?;
                    mixed.spawn(move |is_over| send_datagrams(&sender, bytes, is_over))?;
                }
                Kind::Segmented => {
                    let [sender, receiver] = datagrams(from, to, address, port)?;
                    segment(&sender)?;
                    mixed.spawn(move |is_over| count_datagrams(&receiver, &flow, false, is_over))?;
                    mixed.spawn(move |is_over| send_datagrams(&sender, SEGMENTS * SEGMENT_BYTES, is_over))?;
                }
            }
        }
        Ok(mixed)
    }

    /// Bytes of frames that arrived of each so far.
    pub fn frame_bytes(&self) -> Vec<f64> {
        let of =
            |(kind, flow): &(Kind, Arc<Flow>)| flow.bytes.load(Ordering::Relaxed) as f64 * kind.frame_share();
        self.flows.iter().map(of).collect()
    }

    /// Datagrams that came after a later one of theirs.
    pub fn reordered(&self) -> u64 {
        self.flows.iter().map(|(_, flow)| flow.reordered.load(Ordering::Relaxed)).sum()
    }

    fn spawn(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Result<()> {
        let is_over = Arc::clone(&self.is_over);
        let thread = thread::Builder::new().spawn(move || work(&is_over));
        self.threads.push(thread.context("a thread for each sender and receiver")?);
        Ok(())
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A thread that panicked has ended too.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn datagrams(from: &Namespace, to: &Namespace, address: &str, port: u16) -> Result<[UdpSocket; 2]> {
    let receiver = to.enter(|| UdpSocket::bind(("0.0.0.0", port)))??;
    widen(&receiver)?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let sender = from.enter(|| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect((address, port))?;
        Ok(socket)
    })??;
    sender.set_write_timeout(Some(PATIENCE))?;
    Ok([sender, receiver])
}

/// Gives a receiver the buffer with which limits are judged, 4 MB: a datagram that overflows it is the receiver's loss.
pub fn widen(receiver: &UdpSocket) -> Result<()> {
    set(receiver, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
}

/// Has the kernel give a socket's packets this priority.
pub fn set_priority(socket: &UdpSocket, priority: libc::c_int) -> Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority)
}

fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: the pointer and the size are those of a live integer, which the kernel only reads; the socket is open.
    let done = unsafe {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("a socket's option") }
}

fn send_datagrams(socket: &UdpSocket, bytes: usize, is_over: &AtomicBool) {
    let mut payload = vec![0; bytes];
    let mut number = 0u64;
    while !is_over.load(Ordering::Relaxed) {
        payload[..8].copy_from_slice(&number.to_le_bytes());
        // Being held for long is no end.
        number += u64::from(socket.send(&payload).is_ok());
    }
}

fn count_datagrams(socket: &UdpSocket, flow: &Flow, is_numbered: bool, is_over: &AtomicBool) {
    let (mut payload, mut next) = (vec![0; 65_536], 0u64);
    while !is_over.load(Ordering::Relaxed) {
        let Ok(length @ 8..) = socket.recv(&mut payload) else { continue };
        flow.bytes.fetch_add(length as u64, Ordering::Relaxed);
        if is_numbered {
            let number = u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"));
            flow.reordered.fetch_add(u64::from(number < next), Ordering::Relaxed);
            next = next.max(number + 1);
        }
    }
}

fn write_stream(mut stream: TcpStream, is_over: &AtomicBool) {
    let data = [0; 65_536];
    while !is_over.load(Ordering::Relaxed) {
        match stream.write(&data) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

fn count_stream(mut stream: TcpStream, flow: &Flow, is_over: &AtomicBool) {
    let mut data = vec![0; 262_144];
    while !is_over.load(Ordering::Relaxed) {
        match stream.read(&mut data) {
            Ok(length @ 1..) => drop(flow.bytes.fetch_add(length as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
