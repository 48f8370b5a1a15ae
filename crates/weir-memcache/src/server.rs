//! The server on the sockets of a stack: a worker for each bucket of flows, and one thread that accepts connections for them.
//!
//! ```text
//!                      listener --connections--> the worker of their bucket
//! datagrams, connections --> commands --> exchange --> replies --> where they were asked      server/worker.rs
//!                                            ^ |
//!                              other workers | v rings, one from each to each
//! ```
//!
//! Where the stack has as many workers as buckets, each of these drives the one by whose receive queues its flows come; where it has fewer,
//! the first bucket of each drives it, and the others are woken.
//!
//! Owner: each worker has its sockets, its items and one end of each ring; the room for long replies is all workers' together
//! ([`crate::reply`]). Source: A. Chadd's thread on receive-side scaling of UDP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use hashbrown::DefaultHashBuilder;
use weir_ring::doorbell::Ringer;
use weir_ring::spsc::{Consumer, Producer, capacity_for, ring};
use weir_run::clock::unix_seconds;
use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};

use crate::budget::ByteBudget;
use crate::exchange::{Exchange, Message};
use crate::reply::REPLIES_BYTES_MAX;
use crate::seats::{Seat, Seats};
use crate::stats::Server;
use crate::store::{ITEM_BYTES, KEY_BYTES_MAX, Store};
use worker::{Common, TICKETS, Worker};

mod worker;

/// The settings of the server.
#[derive(Debug, Clone, Copy)]
pub struct MemcacheSettings {
    /// The address that it listens on, over UDP and TCP.
    pub address: SocketAddr,
    /// The most bytes that all items together take.
    pub limit_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes_max: usize,
    /// The most clients at once over TCP. The stack is built for [`SPARE_CONNECTIONS`] more, in which others are told that they are too
    /// many.
    pub connections: u16,
}

/// Connections of the stack beside those of its clients.
pub const SPARE_CONNECTIONS: u16 = 16;
/// The number of ports that are tried to find one that is free for UDP as well as for TCP.
const PORTS_TRIED: usize = 1000;

/// A server whose sockets are bound.
pub struct Memcache {
    stack: Stack,
    sockets: Vec<UdpSocket>,
    listener: TcpListener,
    settings: MemcacheSettings,
}

impl Memcache {
    /// Binds a socket for each bucket of the stack, and one that listens. Port 0 is one that nobody has of either.
    ///
    /// # Errors
    /// As [`UdpSocket::bind_bucket`] and [`TcpListener::bind`].
    pub fn bind(stack: &Stack, settings: MemcacheSettings) -> io::Result<Memcache> {
        let mut tried = 1;
        loop {
            match Memcache::bind_once(stack, settings) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && settings.address.port() == 0
                        && tried < PORTS_TRIED =>
                {
                    tried += 1;
                }
                bound => return bound,
            }
        }
    }

    /// Binds as [`Memcache::bind`] does, once; a port that is chosen for TCP may be in use for UDP.
    fn bind_once(stack: &Stack, mut settings: MemcacheSettings) -> io::Result<Memcache> {
        let listener = TcpListener::bind(stack, settings.address)?;
        settings.address.set_port(listener.local_addr().port());
        // A thread that drives a worker sleeps with that one: also a datagram that comes by another's queue must wake it there.
        let bind = |bucket| match stack.driven_for(bucket) {
            Some(driven) => {
                UdpSocket::bind_bucket_for(stack, settings.address, bucket, &stack.ringer(driven))
            }
            None => UdpSocket::bind_bucket(stack, settings.address, bucket),
        };
        let sockets = (0..stack.buckets()).map(bind).collect::<io::Result<Vec<_>>>()?;
        sockets.iter().for_each(|socket| socket.set_nonblocking(true));
        Ok(Memcache { stack: stack.clone(), sockets, listener, settings })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.settings.address
    }

    /// Answers requests, with a worker for each socket, until the stack ends.
    ///
    /// # Errors
    /// Those of waiting on a socket.
    pub fn serve(self) -> io::Result<()> {
        let Memcache { stack, sockets, listener, settings } = self;
        let MemcacheSettings { limit_bytes, value_bytes_max, connections, .. } = settings;
        let (workers, seats) = (sockets.len(), Seats::new(connections));
        let unsent = AtomicU64::new(0);
        let server = Server {
            now_s: unix_seconds(),
            started_s: unix_seconds(),
            pid: std::process::id(),
            version: concat!("1.6-weir-", env!("CARGO_PKG_VERSION")),
            limit_bytes,
            workers,
            connections: seats.counts(),
            unsent_replies: 0,
        };
        let hasher = DefaultHashBuilder::default();
        // The longest value fits in, also beside another: one budget is for replies, and one for values that come.
        let [budget, values] = [(); 2].map(|()| ByteBudget::new(REPLIES_BYTES_MAX.max(4 * value_bytes_max)));
        let common = Common { stack: &stack, seats: &seats, values: &values, unsent: &unsent };
        let ringers: Vec<Ringer> = sockets.iter().map(UdpSocket::ringer).collect();
        let (to_workers, accepted): (Vec<_>, Vec<_>) = ringers
            .iter()
            .map(|ringer| {
                let (to_worker, accepted) = channel();
                ((to_worker, ringer.clone()), accepted)
            })
            .unzip();
        let make = |((me, (inward, outward)), accepted): (_, Receiver<Client>)| {
            let store = Store::new(limit_bytes / workers, value_bytes_max + ITEM_BYTES + KEY_BYTES_MAX);
            let (hasher, budget) = (hasher.clone(), Arc::clone(&budget));
            let exchange = Exchange::new(me, workers, TICKETS, hasher, store, value_bytes_max, budget);
            Worker::new(common, &sockets[me], exchange, (inward, outward), accepted, server, value_bytes_max)
        };
        let all: Vec<Worker<'_>> = ways(&ringers)?.into_iter().enumerate().zip(accepted).map(make).collect();
        thread::scope(|scope| {
            let run = |worker: Worker<'_>| {
                // The others would wait for its answers for ever, also if it ends by an error.
                let _all = EndsWithAPanic(&stack);
                worker.run().inspect_err(|_| end(&stack))
            };
            // The list first: all run at once.
            let threads: Vec<_> = all.into_iter().map(|worker| scope.spawn(move || run(worker))).collect();
            let accepts = scope.spawn(|| accept(&stack, &listener, &seats, &to_workers));
            let threads = threads.into_iter().chain([accepts]);
            threads
                .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked"))))
                .fold(Ok(()), Result::and)
        })
    }
}

/// Ends the stack if its thread panics.
struct EndsWithAPanic<'s>(&'s Stack);

impl Drop for EndsWithAPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            end(self.0);
        }
    }
}

/// Ends the stack for a thread that ends before it.
fn end(stack: &Stack) {
    // The result is of less interest than the reason why that thread ends.
    let _ = stack.stop();
}

/// A connection, and its seat if there was one.
type Client = (TcpStream, Option<Seat>);

/// Gives each connection to the worker of its bucket, whose socket's bell it rings, until the stack ends.
fn accept(
    stack: &Stack,
    listener: &TcpListener,
    seats: &Arc<Seats>,
    to_workers: &[(Sender<Client>, Ringer)],
) -> io::Result<()> {
    loop {
        let mut bucket = 0;
        let accepted = listener.accept_for(|peer| {
            bucket = stack.bucket_of(peer, listener.local_addr());
            to_workers[bucket].1.clone()
        });
        match accepted {
            Ok((stream, _)) => {
                // A worker that has ended tells why when all have.
                let (to_worker, ringer) = &to_workers[bucket];
                let _ = to_worker.send((stream, seats.take()));
                ringer.published();
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            // That connection is not to be had; it was told so, and the next may be.
            Err(_) => seats.reject(),
        }
    }
}

/// A way from one worker to another, and the ringer that wakes its end.
struct Outward {
    ring: Producer<(usize, Message)>,
    ringer: Ringer,
}

/// The rings to a worker from others, and by worker those to the others; to itself there is none.
type WaysOfWorker = (Vec<Consumer<(usize, Message)>>, Vec<Option<Outward>>);

/// The ways between workers, which these ringers wake.
fn ways(ringers: &[Ringer]) -> io::Result<Vec<WaysOfWorker>> {
    let mut ways: Vec<WaysOfWorker> = ringers.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for from in 0..ringers.len() {
        for (to, ringer) in ringers.iter().enumerate() {
            if from == to {
                ways[from].1.push(None);
                continue;
            }
            // One ask and one answer for each ticket at either end.
            let (producer, consumer) =
                ring(capacity_for(2 * TICKETS)).map_err(|error| io::Error::other(error.to_string()))?;
            ways[from].1.push(Some(Outward { ring: producer, ringer: ringer.clone() }));
            ways[to].0.push(consumer);
        }
    }
    Ok(ways)
}
