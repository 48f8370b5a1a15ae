//! The workers of the server, each with a socket for a bucket of flows, on the stack's interface.
//!
//! ```text
//! datagrams --> requests --> exchange --> replies --> datagrams
//!                               ^ |
//!                 other workers | v rings, one from each to each
//! ```
//!
//! Rule: a worker reads its socket only while it has tickets for whatever a batch of datagrams may ask; what it does not read waits in the
//! socket's receive buffer, and so with who sent it. A reply waits for the send buffer: a reply is never lost to a full one.
//!
//! Owner: each worker has its socket, its items and one end of each ring. Source: seed `rss-udp-scaling`. Limits: UDP; a reply is at most
//! 65,535 datagrams; a worker whose replies wait for the interface answers nobody meanwhile, and the others' requests wait with it.

use std::io;
use std::net::SocketAddr;
use std::thread;

use hashbrown::DefaultHashBuilder;
use weir_ring::doorbell::Ringer;
use weir_ring::spsc::{Consumer, Producer, capacity_for, ring};
use weir_run::clock::unix_seconds;
use weir_socket::{Datagrams, Stack, UdpSocket};

use crate::command::{Front, read};
use crate::exchange::{Exchange, Message};
use crate::frame::{HEADER_BYTES, SEVERAL, cut, read as read_frame};
use crate::pipeline::{Pipelines, ReplyPlace};
use crate::stats::Server;
use crate::store::{ITEM_BYTES, KEY_BYTES_MAX, Store};

/// Datagrams that are received at once.
const BATCH: usize = 16;
/// The shortest request is `get a\r\n`, so a datagram of 1,472 bytes has no more.
const REQUESTS_MAX: usize = 210;
/// Requests under way with other workers.
const TICKETS: usize = 2 * BATCH * REQUESTS_MAX;
/// Replies that are made before they are sent.
const SEND_BATCH: usize = 64;

/// What the server is to be.
#[derive(Debug, Clone, Copy)]
pub struct MemcacheSettings {
    /// Where it listens.
    pub address: SocketAddr,
    /// What all items together may take.
    pub limit_bytes: usize,
    /// The longest value.
    pub value_bytes_max: usize,
}

/// A server whose sockets are bound.
pub struct Memcache {
    sockets: Vec<UdpSocket>,
    settings: MemcacheSettings,
}

impl Memcache {
    /// Binds a socket for each bucket of the stack.
    ///
    /// # Errors
    /// As [`UdpSocket::bind_bucket`].
    pub fn bind(stack: &Stack, settings: MemcacheSettings) -> io::Result<Memcache> {
        let bind = |bucket| UdpSocket::bind_bucket(stack, settings.address, bucket);
        let sockets = (0..stack.buckets()).map(bind).collect::<io::Result<Vec<_>>>()?;
        sockets.iter().for_each(|socket| socket.set_nonblocking(true));
        Ok(Memcache { sockets, settings })
    }

    /// Answers what comes, with a worker for each socket, until the stack ends.
    ///
    /// # Errors
    /// Those of waiting on a socket.
    pub fn serve(self) -> io::Result<()> {
        let Memcache { sockets, settings } = self;
        let MemcacheSettings { limit_bytes, value_bytes_max, .. } = settings;
        let workers = sockets.len();
        let server = Server {
            now_s: unix_seconds(),
            started_s: unix_seconds(),
            pid: std::process::id(),
            version: concat!("1.6-weir-", env!("CARGO_PKG_VERSION")),
            limit_bytes,
            workers,
        };
        let hasher = DefaultHashBuilder::default();
        let make = |(me, (inward, outward))| {
            let store = Store::new(limit_bytes / workers, value_bytes_max + ITEM_BYTES + KEY_BYTES_MAX);
            let exchange = Exchange::new(me, workers, TICKETS, hasher.clone(), store, value_bytes_max);
            let lines = Pipelines::default();
            Worker { socket: &sockets[me], exchange, lines, inward, outward, server, value_bytes_max }
        };
        let all: Vec<Worker<'_>> = ways(&sockets)?.into_iter().enumerate().map(make).collect();
        thread::scope(|scope| {
            // The list first: all run at once.
            let threads: Vec<_> = all.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
            })
        })
    }
}

/// A way from one worker to another, and who is to be woken at its end.
struct Outward {
    ring: Producer<(usize, Message)>,
    ringer: Ringer,
}

/// Of each worker what comes to it, and by worker what goes from it; to itself there is no way.
type Ways = Vec<(Vec<Consumer<(usize, Message)>>, Vec<Option<Outward>>)>;

fn ways(sockets: &[UdpSocket]) -> io::Result<Ways> {
    let mut ways: Ways = sockets.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for from in 0..sockets.len() {
        for (to, socket) in sockets.iter().enumerate() {
            if from == to {
                ways[from].1.push(None);
                continue;
            }
            // One ask and one answer for each ticket at either end.
            let (producer, consumer) =
                ring(capacity_for(2 * TICKETS)).map_err(|error| io::Error::other(error.to_string()))?;
            ways[from].1.push(Some(Outward { ring: producer, ringer: socket.ringer() }));
            ways[to].0.push(consumer);
        }
    }
    Ok(ways)
}

/// To whom a datagram's replies go.
struct Client {
    address: SocketAddr,
    id: u16,
}

struct Worker<'s> {
    socket: &'s UdpSocket,
    exchange: Exchange<ReplyPlace>,
    lines: Pipelines<Client>,
    inward: Vec<Consumer<(usize, Message)>>,
    outward: Vec<Option<Outward>>,
    server: Server,
    value_bytes_max: usize,
}

impl Worker<'_> {
    fn run(mut self) -> io::Result<()> {
        let mut received = self.socket.datagrams(BATCH);
        let mut sent = self.socket.datagrams(SEND_BATCH);
        loop {
            self.server.now_s = unix_seconds();
            let mut moved = self.hear();
            if self.may_receive() {
                match self.socket.recv_batch(&mut received) {
                    Ok(count) => moved += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                    // Somebody's port was closed: whoever asked from it has gone.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error),
                }
                for datagram in received.iter() {
                    if let Some((client, reply)) = self.take(datagram.peer(), datagram.payload()) {
                        self.send(&client, &reply, &mut sent)?;
                    }
                }
                received.clear();
            }
            self.ask();
            while let Some((place, reply)) = self.exchange.replies.pop_front() {
                if let Some((client, reply)) = self.lines.answer(place, reply) {
                    self.send(&client, &reply, &mut sent)?;
                }
            }
            self.send_all(&mut sent)?;
            if moved == 0 {
                let may_receive = self.may_receive();
                let Worker { socket, inward, .. } = &mut self;
                let mut has_heard = || inward.iter_mut().any(|ring| !ring.is_empty());
                socket.wait_until(None, |is_readable| is_readable && may_receive || has_heard())?;
            }
        }
    }

    /// Whether there are tickets for whatever a batch may ask.
    fn may_receive(&self) -> bool {
        self.exchange.free() >= BATCH * REQUESTS_MAX
    }

    /// Takes what other workers ask and answer; how many messages.
    fn hear(&mut self) -> usize {
        let Worker { inward, exchange, server, .. } = self;
        let mut take = |(from, message)| exchange.receive(from, message, server);
        inward.iter_mut().map(|ring| ring.pop_each(usize::MAX, &mut take)).sum()
    }

    /// Sends what others are asked and answered.
    fn ask(&mut self) {
        let Worker { outward, exchange, .. } = self;
        let me = exchange.number();
        while let Some((to, message)) = exchange.asks.pop_front() {
            let way = outward[to].as_mut().expect("nobody asks himself");
            way.ring.stage((me, message)).expect("a ring has a place for each ticket's ask and answer");
        }
        for way in outward.iter_mut().flatten() {
            if way.ring.publish() > 0 {
                way.ringer.published();
            }
        }
    }

    /// Takes the requests of a datagram; its reply, if it is known at once.
    fn take(&mut self, address: SocketAddr, datagram: &[u8]) -> Option<(Client, Vec<u8>)> {
        let (id, text) = read_frame(datagram)?;
        let client = Client { address, id };
        let Some(mut text) = text else { return Some((client, SEVERAL.to_vec())) };
        let line = self.lines.begin(client);
        for _ in 0..REQUESTS_MAX {
            match read(text, self.value_bytes_max) {
                Front::Whole(request, taken) => {
                    let place = self.lines.ask(line);
                    self.exchange.take(place, &request, &text[..taken], &self.server);
                    text = &text[taken..];
                }
                Front::Nonsense(answer, taken) => {
                    let place = self.lines.ask(line);
                    let answer = if answer.is_empty() { Vec::new() } else { format!("{answer}\r\n").into() };
                    // There are more to come, so the line is not done by this.
                    let none = self.lines.answer(place, answer);
                    debug_assert!(none.is_none());
                    text = text.get(taken..).unwrap_or_default();
                }
                // A datagram has no further part.
                Front::Part | Front::Endless(_) => break,
            }
        }
        self.lines.end(line)
    }

    /// Makes the datagrams of a reply, and sends them when there are many.
    fn send(&self, client: &Client, reply: &[u8], sent: &mut Datagrams<'_>) -> io::Result<()> {
        for (header, text) in cut(client.id, reply) {
            let bytes = HEADER_BYTES + text.len();
            loop {
                match sent.push(client.address, bytes) {
                    Ok(mut datagram) => {
                        let payload = datagram.payload_mut();
                        payload[..HEADER_BYTES].copy_from_slice(&header);
                        payload[HEADER_BYTES..].copy_from_slice(text);
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.send_all(sent)?;
                        self.socket.wait_writable(None)?;
                    }
                    // An address that nothing goes to: nobody waits there.
                    Err(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    fn send_all(&self, sent: &mut Datagrams<'_>) -> io::Result<()> {
        while !sent.is_empty() {
            match self.socket.send_batch(sent) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_writable(None)?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
