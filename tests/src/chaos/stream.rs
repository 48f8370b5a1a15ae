//! A TCP stream that is begun anew when it stands still, as a program with a retry does, and whose every byte is looked at.
//!
//! The bytes are those of a fixed sequence from the start of each connection, so one that is wrong, missing or doubled is seen.
//!
//! Owner: a thread at each side; the counts are shared.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::chaos::plan::At;
use crate::chaos::site::Site;

const PORT: u16 = 7002;
/// The longest time that a connection may stand still.
const PATIENCE: Duration = Duration::from_millis(250);
/// The longest time that a connection may take to be made, a round trip: short, so that it is tried often.
const CONNECT_PATIENCE: Duration = Duration::from_millis(120);
/// The bytes that are answered as a whole.
pub const CHUNK_BYTES: usize = 4096;
/// The time between two chunks: some 3 Mbit/s.
const PAUSE: Duration = Duration::from_millis(12);

#[derive(Debug, Default)]
struct Counts {
    /// Connections begun, by which the bytes of a new one are told from those before.
    connections: AtomicU64,
    arrived_bytes: AtomicU64,
    wrong: AtomicU64,
    is_over: AtomicBool,
}

/// A TCP stream. Dropping it ends it.
#[derive(Debug)]
pub struct Stream {
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// Starts a stream from one host to the other.
    pub fn start(site: &Site, from: At, to: At) -> Result<Stream> {
        let address: SocketAddr = format!("{}:{PORT}", site.address(to)).parse().context("an address")?;
        let listener = site.end(to).namespace.enter(|| TcpListener::bind(("0.0.0.0", PORT)))??;
        listener.set_nonblocking(true)?;
        let counts = Arc::new(Counts::default());
        let namespace = File::open(Path::new("/run/netns").join(site.end(from).namespace.name()))?;
        let (there, back) = (Arc::clone(&counts), Arc::clone(&counts));
        let threads = vec![
            thread::spawn(move || take(&listener, &back)),
            thread::spawn(move || {
                // Nothing is sent then, which is seen.
                let is_inside = enter_for_good(&namespace);
                while is_inside && !there.is_over.load(Ordering::Relaxed) {
                    offer(&address, &there);
                }
            }),
        ];
        Ok(Stream { counts, threads })
    }

    /// Bytes that have arrived, over all connections.
    pub fn arrived_bytes(&self) -> u64 {
        self.counts.arrived_bytes.load(Ordering::Relaxed)
    }

    /// Connections that were begun.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Connections in which a byte was wrong.
    pub fn wrong(&self) -> u64 {
        self.counts.wrong.load(Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.counts.is_over.store(true, Ordering::Relaxed);
        // A thread that panicked has ended too.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Takes the calling thread into a namespace; whether it is there.
fn enter_for_good(namespace: &File) -> bool {
    // SAFETY: takes a descriptor, which is open, and a plain number.
    unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) == 0 }
}

fn byte_at(position: u64) -> u8 {
    (position % 251) as u8
}

/// One connection, until it stands still.
fn offer(address: &SocketAddr, counts: &Counts) {
    let Ok(mut stream) = TcpStream::connect_timeout(address, CONNECT_PATIENCE) else {
        // Refused at once, where there is no way at all.
        return thread::sleep(PAUSE);
    };
    counts.connections.fetch_add(1, Ordering::Relaxed);
    if stream.set_write_timeout(Some(PATIENCE)).is_err() || stream.set_read_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    let (mut position, mut acknowledged) = (0u64, [0; 8]);
    while !counts.is_over.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (position..position + CHUNK_BYTES as u64).map(byte_at).collect();
        // The other side answers each chunk, so a connection that stands still is seen however much the kernel would take.
        if stream.write_all(&chunk).is_err() || stream.read_exact(&mut acknowledged).is_err() {
            return;
        }
        position += CHUNK_BYTES as u64;
        thread::sleep(PAUSE);
    }
}

fn take(listener: &TcpListener, counts: &Arc<Counts>) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    while !counts.is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                let counts = Arc::clone(counts);
                connections.push(thread::spawn(move || take_one(stream, &counts)));
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
    connections.into_iter().for_each(|connection| drop(connection.join()));
}

fn take_one(mut stream: TcpStream, counts: &Counts) {
    let is_set = stream.set_nonblocking(false).is_ok() && stream.set_read_timeout(Some(PATIENCE)).is_ok();
    let (mut position, mut answered, mut silent, mut chunk) = (0u64, 0, 0, [0; CHUNK_BYTES]);
    // The other side has given up long before the fourth silence.
    while is_set && silent < 4 && !counts.is_over.load(Ordering::Relaxed) {
        let length = match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                silent += 1;
                continue;
            }
            Err(_) => return,
        };
        silent = 0;
        if (position..).zip(&chunk[..length]).any(|(at, &byte)| byte != byte_at(at)) {
            counts.wrong.fetch_add(1, Ordering::Relaxed);
            return;
        }
        position += length as u64;
        counts.arrived_bytes.fetch_add(length as u64, Ordering::Relaxed);
        while answered + CHUNK_BYTES as u64 <= position {
            answered += CHUNK_BYTES as u64;
            if stream.write_all(&answered.to_le_bytes()).is_err() {
                return;
            }
        }
    }
}
