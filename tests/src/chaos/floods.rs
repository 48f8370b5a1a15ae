//! Floods both ways that know the fate of each datagram.
//!
//! Each flow is a socket of its own with a thread in `send(2)`. While it is held it sleeps there; a datagram that `send` refuses is offered
//! again under the same number, so a number that does not arrive is a datagram that was taken and lost. A flow offers more than its share
//! of the wire, but no more than [`OFFERED_PER_S`] when nothing holds it, so that the most that a hole of so many seconds can lose is
//! known.
//!
//! Owner: [`Floods`], from the conductor's thread. A host's receiver owns the ledgers of its flows and shares them under a lock, a
//! datagram at a time.
//!
//! Limits: a datagram fits an Ethernet frame of 1280 bytes, so that no MTU of the plan is too small for it.

use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::bed::Namespace;
use weir_lab::clock;

use crate::chaos::ledger::Ledger;
use crate::chaos::plan::At;
use crate::chaos::site::Site;

/// Flows each way.
pub const FLOWS: usize = 3;
/// The most datagrams a second that one flow offers.
pub const OFFERED_PER_S: u64 = 3_000;
/// The frame of one datagram, as the wire counts it.
pub const FRAME_BYTES: u64 = 1200 + 8 + 20 + 14;

const PAYLOAD_BYTES: usize = 1200;
const PORT: u16 = 7001;
/// The time for which a held flow, or a receiver that gets nothing, stays deaf to being stopped.
const PATIENCE: Duration = Duration::from_millis(100);
/// Room for a second of everything that may come.
const RECEIVE_BYTES: i32 = 64 << 20;
const AT_ONCE: u64 = 3;

/// One flow.
#[derive(Debug)]
struct Flow {
    sent: AtomicU64,
    ledger: Mutex<Ledger>,
}

impl Flow {
    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no receiver panics")
    }
}

/// A number for each flow, those from left to right first.
pub type Marks = Vec<u64>;

/// The fate of the datagrams between two marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The number of datagrams.
    pub count: u64,
    /// The number of datagrams that did not arrive.
    pub missing: u64,
    /// The number of datagrams that came after a later one of their flow.
    pub late: u64,
}

/// Floods both ways. Dropping them ends them.
#[derive(Debug)]
pub struct Floods {
    is_over: Arc<AtomicBool>,
    flows: Vec<Arc<Flow>>,
    threads: Vec<JoinHandle<()>>,
}

impl Floods {
    /// Starts the floods, which need not arrive yet.
    pub fn start(site: &Site) -> Result<Floods> {
        let new_flow = |_| Arc::new(Flow { sent: AtomicU64::new(0), ledger: Mutex::default() });
        let mut floods = Floods {
            is_over: Arc::new(AtomicBool::new(false)),
            flows: (0..2 * FLOWS).map(new_flow).collect(),
            threads: Vec::new(),
        };
        for (way, (from, to)) in [(At::Left, At::Right), (At::Right, At::Left)].into_iter().enumerate() {
            let flows = floods.flows[way * FLOWS..][..FLOWS].to_vec();
            let address = site.address(to);
            let receiver = receiver(site.end(to).namespace)?;
            let senders = senders(site.end(from).namespace, &address)?;
            let (is_over, ledgers) = (Arc::clone(&floods.is_over), flows.clone());
            floods.threads.push(thread::spawn(move || receive(&receiver, &ledgers, &is_over)));
            for (number, (socket, flow)) in senders.into_iter().zip(flows).enumerate() {
                let is_over = Arc::clone(&floods.is_over);
                floods.threads.push(thread::spawn(move || send(&socket, number, &flow, &is_over)));
            }
        }
        Ok(floods)
    }

    /// The number of datagrams of each flow that have been sent.
    pub fn sent(&self) -> Marks {
        self.flows.iter().map(|flow| flow.sent.load(Ordering::Acquire)).collect()
    }

    /// The number up to which datagrams of each flow have arrived.
    pub fn arrived(&self) -> Marks {
        self.flows.iter().map(|flow| flow.ledger().next()).collect()
    }

    /// Returns whether a datagram of every flow has arrived that was sent after these marks.
    pub fn have_passed(&self, marks: &[u64]) -> bool {
        self.arrived().iter().zip(marks).all(|(arrived, mark)| arrived > mark)
    }

    /// The fate of the datagrams that were sent between these marks, all flows together.
    pub fn fate(&self, from: &[u64], to: &[u64]) -> Fate {
        let mut fate = Fate::default();
        for ((flow, &from), &to) in self.flows.iter().zip(from).zip(to) {
            let (ledger, range) = (flow.ledger(), Range { start: from, end: to });
            fate.count += to.saturating_sub(from);
            fate.missing += ledger.missing(&range);
            fate.late += ledger.late(&range);
        }
        fate
    }

    /// Forgets the datagrams that were judged.
    pub fn forget_below(&self, marks: &[u64]) {
        self.flows.iter().zip(marks).for_each(|(flow, &mark)| flow.ledger().forget_below(mark));
    }

    /// The number of datagrams that came twice.
    pub fn twice(&self) -> u64 {
        self.flows.iter().map(|flow| flow.ledger().twice()).sum()
    }
}

impl Drop for Floods {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A thread that panicked has ended too.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn receiver(namespace: &Namespace) -> Result<UdpSocket> {
    let socket = namespace.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    socket.set_read_timeout(Some(PATIENCE))?;
    let bytes = RECEIVE_BYTES;
    // SAFETY: the pointer and the size are those of a live i32, which the kernel only reads.
    let done = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const bytes).cast(), size_of::<i32>() as u32)
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error()).context("a large receive buffer");
    }
    Ok(socket)
}

fn senders(namespace: &Namespace, address: &str) -> Result<Vec<UdpSocket>> {
    let open = |_| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect((address, PORT))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    Ok(namespace.enter(|| (0..FLOWS).map(open).collect::<std::io::Result<Vec<_>>>())??)
}

fn send(socket: &UdpSocket, number: usize, flow: &Flow, is_over: &AtomicBool) {
    let mut datagram = [0; PAYLOAD_BYTES];
    datagram[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let period = Duration::from_nanos(1_000_000_000 * AT_ONCE / OFFERED_PER_S);
    let (mut count, mut due) = (0u64, clock::now());
    while !is_over.load(Ordering::Relaxed) {
        // Datagrams that it could not offer in time it does not offer later.
        due = (due + period).max(clock::now());
        for _ in 0..AT_ONCE {
            datagram[8..16].copy_from_slice(&count.to_le_bytes());
            // Being held for long is an error, and so is having no way there: the datagram was not taken.
            if socket.send(&datagram).is_ok() {
                count += 1;
                flow.sent.store(count, Ordering::Release);
            }
        }
        thread::sleep(due.saturating_duration_since(clock::now()));
    }
}

fn receive(socket: &UdpSocket, flows: &[Arc<Flow>], is_over: &AtomicBool) {
    let mut datagram = [0; PAYLOAD_BYTES + 1];
    while !is_over.load(Ordering::Relaxed) {
        // Nothing for a while is an error, and not the end.
        let Ok(PAYLOAD_BYTES) = socket.recv(&mut datagram) else { continue };
        let word = |at: usize| u64::from_le_bytes(datagram[at..at + 8].try_into().expect("eight bytes"));
        if let Some(flow) = flows.get(word(0) as usize) {
            flow.ledger().arrive(word(8));
        }
    }
}
