//! One worker: its datagrams, its connections, the messages of others, and one place where it sleeps until any of them has something. If it
//! is the first of a worker of the stack it drives that too, so that a command wakes one thread.
//!
//! Rule: it reads datagrams only while it has tickets for all commands that a batch of them may have, and of a connection only commands
//! that it may answer; bytes that it does not read wait in the receive buffer, and so with their sender. A reply waits for room: none is
//! lost to a full buffer.
//!
//! Limits: a reply over UDP is at most 65,535 datagrams; in the place of a longer one is an error. One to an address without a route is counted
//! and not sent. A worker whose datagrams wait for the
//! interface answers nobody meanwhile, and the others' commands wait with it. Connections are looked at one by one, so many that are idle
//! cost a little each time.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use hashbrown::HashMap;
use weir_ring::spsc::Consumer;
use weir_run::clock::unix_seconds;
use weir_socket::{Datagrams, Driver, Stack, TcpStream, UdpSocket};

use super::{Client, Outward, WaysOfWorker};
use crate::budget::ByteBudget;
use crate::command::{Front, MemcacheCommand, answer_line, quiet_delete, read};
use crate::connection::Connection;
use crate::exchange::{Exchange, Message};
use crate::frame::{HEADER_BYTES, SEVERAL, cut, read as read_frame};
use crate::pipeline::{Pipelines, ReplyPlace};
use crate::reply::Reply;
use crate::seats::{Seat, Seats, TOO_MANY as TOO_MANY_CLIENTS};
use crate::stats::Server;

/// Datagrams that are received at once.
const BATCH: usize = 4;
/// Commands of one datagram: the shortest, `get a\n`, as often as it goes into 1,472 bytes, and some.
const COMMANDS_MAX: usize = 256;
/// The answer behind so many.
const TOO_MANY: &str = "SERVER_ERROR too many commands in a datagram";
/// Tickets that connections leave: for all commands that a batch of datagrams may have.
const RESERVE: usize = BATCH * COMMANDS_MAX;
/// Commands of one connection before it is another's turn.
const TURN: usize = 64;
/// Commands under way with other workers.
pub(super) const TICKETS: usize = 2 * RESERVE;
/// Datagrams that are made before they are sent.
const SEND_BATCH: usize = 64;

/// The client of a reply.
pub(super) enum Asker {
    Datagram(ReplyPlace),
    /// A connection, and the number of the command there.
    Connection(u64, u64),
}

/// The client of a datagram's replies.
struct Peer {
    address: SocketAddr,
    id: u16,
}

/// A connection and its seat. A connection without a seat is told so and closed.
struct Seated {
    connection: Connection<TcpStream>,
    _seat: Option<Seat>,
}

/// The parts of the server that all workers have.
#[derive(Clone, Copy)]
pub(super) struct Common<'s> {
    pub(super) stack: &'s Stack,
    pub(super) seats: &'s Seats,
    /// The bytes that long values may have while they come.
    pub(super) values: &'s Arc<ByteBudget>,
    /// The replies that could not be sent.
    pub(super) unsent: &'s AtomicU64,
}

pub(super) struct Worker<'s> {
    common: Common<'s>,
    socket: &'s UdpSocket,
    exchange: Exchange<Asker>,
    lines: Pipelines<Peer>,
    accepted: Receiver<Client>,
    connections: HashMap<u64, Seated>,
    /// The number of the next connection.
    next: u64,
    inward: Vec<Consumer<(usize, Message)>>,
    outward: Vec<Option<Outward>>,
    server: Server,
    value_bytes_max: usize,
}

impl<'s> Worker<'s> {
    pub(super) fn new(
        common: Common<'s>,
        socket: &'s UdpSocket,
        exchange: Exchange<Asker>,
        (inward, outward): WaysOfWorker,
        accepted: Receiver<Client>,
        server: Server,
        value_bytes_max: usize,
    ) -> Worker<'s> {
        let lines = Pipelines::new(Arc::clone(exchange.budget()));
        Worker {
            common,
            socket,
            exchange,
            lines,
            accepted,
            connections: HashMap::new(),
            next: 0,
            inward,
            outward,
            server,
            value_bytes_max,
        }
    }

    /// Answers until the stack ends.
    pub(super) fn run(self) -> io::Result<()> {
        match self.answer_all() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn answer_all(mut self) -> io::Result<()> {
        let driven = self.common.stack.driven_for(self.exchange.number());
        let mut driver = driven.map(|worker| self.common.stack.drive(worker)).transpose()?;
        let mut received = self.socket.datagrams(BATCH);
        let mut sent = self.socket.datagrams(SEND_BATCH);
        loop {
            (self.server.now_s, self.server.connections) = (unix_seconds(), self.common.seats.counts());
            self.server.unsent_replies = self.common.unsent.load(Ordering::Relaxed);
            let has_turned = driver.as_mut().map_or(Ok(false), Driver::turn)?;
            let mut moved = usize::from(has_turned) + self.hear();
            self.reply(&mut sent, &mut driver)?;
            moved += self.read_connections();
            if self.may_receive() {
                match self.socket.recv_batch(&mut received) {
                    Ok(count) => moved += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                for datagram in received.iter() {
                    if let Some((client, reply)) = self.take(datagram.peer(), datagram.payload()) {
                        self.send(&client, &reply, &mut sent, &mut driver)?;
                    }
                }
                received.clear();
            }
            self.ask();
            self.reply(&mut sent, &mut driver)?;
            self.send_all(&mut sent, &mut driver)?;
            moved += self.write_connections();
            if moved == 0 {
                if self.socket.has_ended() {
                    return Ok(());
                }
                self.sleep(driver.as_mut())?;
            }
        }
    }

    /// Gives each reply that there is to its client.
    fn reply(&mut self, sent: &mut Datagrams<'_>, driver: &mut Option<Driver>) -> io::Result<()> {
        while let Some((asker, reply)) = self.exchange.replies.pop_front() {
            match asker {
                Asker::Datagram(place) => {
                    if let Some((client, reply)) = self.lines.answer(place, reply) {
                        self.send(&client, &reply, sent, driver)?;
                    }
                }
                Asker::Connection(number, command) => {
                    // The client may have gone meanwhile.
                    if let Some(Seated { connection, .. }) = self.connections.get_mut(&number) {
                        connection.answer(command, reply);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until there is something to do.
    fn sleep(&mut self, driver: Option<&mut Driver>) -> io::Result<()> {
        let may_receive = self.may_receive();
        let Worker { common, socket, inward, connections, accepted, next, .. } = self;
        let mut has_work = |is_readable| {
            let is_accepted = accept_all(accepted, connections, next, common.values) > 0;
            let mut has_heard = || inward.iter_mut().any(|ring| !ring.is_empty());
            let has_moved = |Seated { connection: it, .. }: &Seated| {
                it.wants_input() && it.stream().is_readable() || it.has_output() && it.stream().is_writable()
            };
            is_readable && may_receive || is_accepted || has_heard() || connections.values().any(has_moved)
        };
        match driver {
            Some(driver) => driver.rest(|| has_work(socket.is_readable())),
            None => socket.wait_until(None, has_work).map(drop),
        }
    }

    /// Returns whether there are tickets for all commands that a batch may have.
    fn may_receive(&self) -> bool {
        self.exchange.free() >= RESERVE
    }

    /// Takes the messages of other workers. Returns how many.
    fn hear(&mut self) -> usize {
        let Worker { inward, exchange, server, .. } = self;
        let mut take = |(from, message)| exchange.receive(from, message, server);
        inward.iter_mut().map(|ring| ring.pop_each(usize::MAX, &mut take)).sum()
    }

    /// Sends the messages to other workers.
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

    /// Takes connections, and commands of those there are. Returns how many.
    fn read_connections(&mut self) -> usize {
        let Worker { common, connections, accepted, next, exchange, server, value_bytes_max, .. } = self;
        let mut moved = accept_all(accepted, connections, next, common.values);
        connections.retain(|&number, Seated { connection, .. }| {
            if connection.wants_input() && connection.stream().is_readable() {
                match connection.fill() {
                    Ok(has_come) => moved += usize::from(has_come),
                    // The client has gone, and its requests with it.
                    Err(_) => return false,
                }
            }
            // One by one: a request to this worker is answered at once, and counts before more is taken.
            for _ in 0..TURN.min(exchange.free().saturating_sub(RESERVE)) {
                let taken = connection.take(1, *value_bytes_max, |place, command, text| {
                    exchange.take(Asker::Connection(number, place), command, text, server);
                });
                if taken == 0 {
                    break;
                }
                moved += 1;
                if let Some((Asker::Connection(_, place), reply)) = exchange.replies.pop_front() {
                    connection.answer(place, reply);
                }
            }
            true
        });
        moved
    }

    /// Writes to connections, and closes those that are done; returns the number that moved.
    fn write_connections(&mut self) -> usize {
        let mut moved = 0;
        let now_s = self.server.now_s;
        self.connections.retain(|_, Seated { connection, .. }| {
            let is_there = match connection.flush() {
                Ok(has_gone) => {
                    moved += usize::from(has_gone);
                    true
                }
                Err(_) => false,
            };
            if connection.hear_out(now_s) {
                // One that has ended meanwhile needs no end.
                let _ = connection.stream().shutdown(Shutdown::Write);
            }
            is_there && !connection.is_done()
        });
        moved
    }

    /// Takes the commands of a datagram. Returns its reply, if it is known at once.
    fn take(&mut self, address: SocketAddr, datagram: &[u8]) -> Option<(Peer, Reply)> {
        let (id, text) = read_frame(datagram)?;
        let client = Peer { address, id };
        let Some(mut text) = text else { return Some((client, SEVERAL.to_vec().into())) };
        let line = self.lines.begin(client);
        for count in 0.. {
            if count == COMMANDS_MAX && !text.is_empty() {
                self.say(line, TOO_MANY);
                break;
            }
            match read(text, self.value_bytes_max) {
                Front::Whole(command, taken) => {
                    self.take_command(line, &command, &text[..taken]);
                    text = &text[taken..];
                }
                Front::Nonsense(answer, taken) => {
                    self.say(line, answer);
                    text = text.get(taken..).unwrap_or_default();
                }
                Front::TooLarge(key, answer, taken) => {
                    if let Some((delete, text)) = key.map(quiet_delete) {
                        self.take_command(line, &delete, &text);
                    }
                    self.say(line, answer);
                    text = text.get(taken..).unwrap_or_default();
                }
                // A datagram has no further part.
                Front::Part | Front::PartOfValue(..) | Front::Endless(_) => break,
            }
        }
        self.lines.end(line)
    }

    /// Takes a command of a line. A reply that is known at once counts in its line before more is taken.
    fn take_command(&mut self, line: u32, command: &MemcacheCommand<'_>, text: &[u8]) {
        let place = Asker::Datagram(self.lines.ask(line));
        self.exchange.take(place, command, text, &self.server);
        if let Some((Asker::Datagram(place), reply)) = self.exchange.replies.pop_front() {
            let done = self.lines.answer(place, reply);
            debug_assert!(done.is_none(), "there may be more to come");
        }
    }

    /// Answers to nonsense, if it is to be answered. There may be more to come, so the line is not done by this.
    fn say(&mut self, line: u32, answer: &str) {
        let place = self.lines.ask(line);
        let done = self.lines.answer(place, answer_line(answer).into());
        debug_assert!(done.is_none());
    }

    /// Makes the datagrams of a reply, and sends them when there are many.
    fn send(
        &self,
        client: &Peer,
        reply: &[u8],
        sent: &mut Datagrams<'_>,
        driver: &mut Option<Driver>,
    ) -> io::Result<()> {
        let way_bytes = self.socket.datagram_bytes_max(client.address.ip());
        for (header, text) in cut(client.id, reply, way_bytes) {
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
                        self.send_all(sent, driver)?;
                        self.wait_writable(driver)?;
                    }
                    // An address that nothing goes to: nobody waits there.
                    Err(_) => {
                        self.common.unsent.fetch_add(1, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn send_all(&self, sent: &mut Datagrams<'_>, driver: &mut Option<Driver>) -> io::Result<()> {
        while !sent.is_empty() {
            match self.socket.send_batch(sent) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_writable(driver)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a datagram would go.
    fn wait_writable(&self, driver: &mut Option<Driver>) -> io::Result<()> {
        match driver {
            Some(driver) => driver.turn_until(|| self.socket.is_writable()),
            None => self.socket.wait_writable(None).map(drop),
        }
    }
}

/// Takes the connections that have been accepted; returns their number.
fn accept_all(
    accepted: &Receiver<Client>,
    connections: &mut HashMap<u64, Seated>,
    next: &mut u64,
    values: &Arc<ByteBudget>,
) -> usize {
    let before = *next;
    for (stream, seat) in accepted.try_iter() {
        let connection = match &seat {
            Some(_) => Connection::new(stream, Arc::clone(values)),
            None => Connection::told(stream, TOO_MANY_CLIENTS, Arc::clone(values)),
        };
        connections.insert(*next, Seated { connection, _seat: seat });
        *next += 1;
    }
    (*next - before) as usize
}
