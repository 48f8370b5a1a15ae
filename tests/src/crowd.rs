//! Programs that go on sending whatever the state of their interface, and one that looks at the order of arrivals.
//!
//! Each sender is a thread in `send(2)` with a socket of its own; its datagrams bear its number and theirs. While it is held it sleeps
//! there. The kernel drops datagrams to an interface without a carrier at once, so then it runs as fast as it can, and its queue is full
//! the moment the carrier is back.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use weir_lab::bed::Namespace;
use weir_lab::clock::wait_until;

use crate::mixed::widen;

const PORT: u16 = 7001;
/// Two words: the sender's number, and how many it sent before.
pub const HEAD_BYTES: usize = 16;
/// The time for which a held sender stays deaf to being stopped, and the silence after which nothing more comes.
const PATIENCE: Duration = Duration::from_millis(300);

/// The time in which all datagrams arrive that are on their way.
const ALL_ARRIVE: Duration = Duration::from_secs(10);

/// The datagrams that arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrived {
    /// Datagrams.
    pub count: u64,
    /// The number of datagrams that came after a later one of their sender.
    pub reordered: u64,
}

/// Senders and their receiver. Dropping it ends them.
#[derive(Debug)]
pub struct Crowd {
    is_over: Arc<AtomicBool>,
    /// True once a silence says that nothing more comes.
    is_last: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    senders: Vec<JoinHandle<()>>,
    receiver: Option<JoinHandle<Arrived>>,
}

impl Crowd {
    /// Lets `senders` programs send datagrams of `size_bytes`, [`HEAD_BYTES`] or more.
    pub fn start(
        from: &Namespace,
        to: &Namespace,
        address: &str,
        senders: usize,
        size_bytes: usize,
    ) -> Result<Crowd> {
        Crowd::start_mixed(from, to, address, senders, vec![size_bytes])
    }

    /// Lets them send datagrams of several sizes in turn.
    pub fn start_mixed(
        from: &Namespace,
        to: &Namespace,
        address: &str,
        senders: usize,
        sizes_bytes: Vec<usize>,
    ) -> Result<Crowd> {
        let receiver = to.enter(|| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        })??;
        widen(&receiver)?;
        Crowd::start_towards(from, address, senders, sizes_bytes, move |head| receiver.recv(head))
    }

    /// Lets them send towards anything that receives: `receive` brings the head of the next datagram, or `WouldBlock` after a silence.
    pub fn start_towards(
        from: &Namespace,
        address: &str,
        senders: usize,
        sizes_bytes: Vec<usize>,
        receive_one: impl FnMut(&mut [u8]) -> std::io::Result<usize> + Send + 'static,
    ) -> Result<Crowd> {
        let sockets = from.enter(|| -> std::io::Result<Vec<UdpSocket>> {
            let open = |_| {
                let socket = UdpSocket::bind(("0.0.0.0", 0))?;
                socket.connect((address, PORT))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(socket)
            };
            (0..senders).map(open).collect()
        })??;
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_last, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, counted) = (Arc::clone(&is_last), Arc::clone(&received));
        let mut crowd = Crowd {
            is_over,
            is_last,
            sent: Arc::clone(&sent),
            received,
            senders: Vec::new(),
            receiver: Some(thread::spawn(move || receive(receive_one, senders, &until, &counted))),
        };
        for (number, socket) in sockets.into_iter().enumerate() {
            let (is_over, sent) = (Arc::clone(&crowd.is_over), Arc::clone(&sent));
            let sizes_bytes = sizes_bytes.clone();
            let sender =
                thread::Builder::new().spawn(move || send(&socket, number, &sizes_bytes, &is_over, &sent));
            crowd.senders.push(sender.context("a thread for each sender")?);
        }
        Ok(crowd)
    }

    /// Datagrams that they have sent, wherever those went.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Datagrams that have arrived.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Ends the senders and waits for the datagrams that are still on their way.
    pub fn finish(mut self) -> Result<Arrived> {
        self.end_senders();
        self.is_last.store(true, Ordering::Relaxed);
        let receiver = self.receiver.take().context("a receiver")?;
        receiver.join().map_err(|_| anyhow!("the receiver panicked"))
    }

    /// Ends the senders and waits, for those that none is to be lost of: a silence is no end while some have not arrived. Returns also how
    /// many datagrams were sent in all.
    pub fn finish_counted(mut self) -> Result<(u64, Arrived)> {
        self.end_senders();
        let sent = self.sent();
        // Those that are missing are the caller's to judge.
        let _ = wait_until("all have arrived", ALL_ARRIVE, || Ok(self.received() >= sent));
        Ok((sent, self.finish()?))
    }

    /// Ends the senders. The receiver goes on until this value has ended and nothing more comes.
    pub fn end_senders(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A sender that panicked has ended too.
        self.senders.drain(..).for_each(|sender| drop(sender.join()));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.end_senders();
        self.is_last.store(true, Ordering::Relaxed);
        self.receiver.take().map(JoinHandle::join);
    }
}

fn send(socket: &UdpSocket, number: usize, sizes_bytes: &[usize], is_over: &AtomicBool, sent: &AtomicU64) {
    let longest = sizes_bytes.iter().copied().max().unwrap_or(0);
    let mut datagram = vec![0; longest.max(HEAD_BYTES)];
    let mut sizes = sizes_bytes.iter().map(|size| (*size).max(HEAD_BYTES)).cycle();
    datagram[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let mut count = 0u64;
    while !is_over.load(Ordering::Relaxed) {
        datagram[8..16].copy_from_slice(&count.to_le_bytes());
        // Being held for long is an error, and so is an interface that is down: neither is the end.
        let size = sizes.next().unwrap_or(HEAD_BYTES);
        if socket.send(&datagram[..size]).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
        count += 1;
    }
}

fn receive(
    mut receive_one: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
    senders: usize,
    is_last: &AtomicBool,
    received: &AtomicU64,
) -> Arrived {
    let (mut arrived, mut next) = (Arrived::default(), vec![0u64; senders]);
    let mut datagram = [0; HEAD_BYTES];
    loop {
        match receive_one(&mut datagram) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && is_last.load(Ordering::Relaxed) => {
                return arrived;
            }
            Ok(length) if length == datagram.len() => {}
            _ => continue,
        }
        let word = |at: usize| u64::from_le_bytes(datagram[at..at + 8].try_into().expect("eight bytes"));
        let (number, count) = (word(0), word(8));
        let Some(next) = next.get_mut(number as usize) else { continue };
        arrived.count += 1;
        received.fetch_add(1, Ordering::Relaxed);
        arrived.reordered += u64::from(count < *next);
        *next = (*next).max(count + 1);
    }
}
