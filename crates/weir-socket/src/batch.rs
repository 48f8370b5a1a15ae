//! Datagrams in their frames, received or to be sent: many at a time, and no copy of any.
//!
//! Owner: the thread that has the batch. Its datagrams are in the buffers of its socket: a received datagram takes room in the receive buffer until
//! it is removed or sent back, and a datagram that was written takes a frame of the send buffer.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_path::packet::PathPacket;

use crate::blocking::Deadline;
use crate::datagram::{Datagram, DatagramMut, Held, ends, headers_len, turn_round, write_headers};
use crate::socket::{UdpSocket, os};

/// Some datagrams of a socket ([`UdpSocket::datagrams`]).
///
/// A received datagram goes back to its sender when it is sent, in the frame in which it came: an echo server is [`UdpSocket::recv_batch`] and
/// [`UdpSocket::send_batch`].
///
/// ```
/// use weir_socket::{Stack, UdpSocket};
///
/// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let (client, server) = (UdpSocket::bind(&left, "192.0.2.1:0")?, UdpSocket::bind(&right, "192.0.2.2:7")?);
/// client.connect("192.0.2.2:7")?;
/// for number in 0..3 {
///     client.send(&[number; 8])?;
/// }
///
/// let mut batch = server.datagrams(64);
/// let mut echoed = 0;
/// while echoed < 3 {
///     server.recv_batch(&mut batch)?;
///     for mut datagram in batch.iter_mut() {
///         datagram.payload_mut()[0] += 1;
///     }
///     echoed += server.send_batch(&mut batch)?;
/// }
/// let mut buffer = [0; 16];
/// assert_eq!(client.recv(&mut buffer)?, 8);
/// assert_eq!(buffer[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Datagrams<'s> {
    pub(crate) socket: &'s UdpSocket,
    packets: Vec<PathPacket>,
    /// The state of each packet.
    held: Vec<Held>,
    most: usize,
}

impl<'s> Datagrams<'s> {
    pub(crate) fn new(socket: &'s UdpSocket, most: usize) -> Datagrams<'s> {
        let most = most.max(1);
        Datagrams { socket, packets: Vec::with_capacity(most), held: Vec::with_capacity(most), most }
    }

    /// The number of datagrams.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The largest number of datagrams that the batch may have.
    pub fn capacity(&self) -> usize {
        self.most
    }

    /// The datagrams, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let (memory, rss) = (self.socket.memory(), self.socket.rss());
        let all = self.packets.iter().zip(&self.held);
        all.map(move |(packet, held)| Datagram { packet, held, memory, rss })
    }

    /// The datagrams, in order, to be written.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = DatagramMut<'_>> {
        let memory = self.socket.memory();
        let all = self.packets.iter_mut().zip(&mut self.held);
        all.map(move |(packet, held)| DatagramMut { packet, held, memory })
    }

    /// Writes one more datagram, to this address, with a payload of so many bytes, zeros at first, which may be written in place.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `WouldBlock` also if the batch is full or the send buffer is, whatever the mode of the socket.
    pub fn push(&mut self, to: SocketAddr, payload_bytes: usize) -> io::Result<DatagramMut<'_>> {
        self.push_routed(to, payload_bytes, None)
    }

    /// Writes one more datagram as [`Datagrams::push`] does, from this address: one of the stack's, if the socket is bound to all of them.
    ///
    /// # Errors
    /// As [`Datagrams::push`]; `AddrNotAvailable` of an address that is not the socket's.
    pub fn push_from(
        &mut self,
        source: IpAddr,
        to: SocketAddr,
        payload_bytes: usize,
    ) -> io::Result<DatagramMut<'_>> {
        self.push_routed(to, payload_bytes, Some(source))
    }

    fn push_routed(
        &mut self,
        to: SocketAddr,
        payload_bytes: usize,
        source: Option<IpAddr>,
    ) -> io::Result<DatagramMut<'_>> {
        if self.held.len() >= self.most {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (source, len) = self.socket.route_by_way(source, to, payload_bytes)?;
        let frame = self.socket.take_frame()?;
        let memory = self.socket.memory();
        let mut packet = PathPacket::new(frame, 0, len);
        let bytes = packet.bytes_mut(memory);
        bytes[headers_len(to.ip())..].fill(0);
        write_headers(bytes, source, to, 0);
        self.packets.push(packet);
        self.held.push(Held { lane: 0, is_received: false, is_changed: false, ecn: 0 });
        let (packet, held) =
            (self.packets.last_mut().expect("it was pushed"), self.held.last_mut().expect("it was pushed"));
        Ok(DatagramMut { packet, held, memory })
    }

    /// Keeps the datagrams for which `keep` is true, in their order.
    pub fn retain(&mut self, keep: impl FnMut(Datagram<'_>) -> bool) {
        let gone = self.remove_from(0, keep);
        self.socket.give_back(gone);
    }

    /// Takes out the datagrams for which `keep` is false, from this place on.
    fn remove_from(
        &mut self,
        first: usize,
        keep: impl FnMut(Datagram<'_>) -> bool,
    ) -> Vec<(PathPacket, Held)> {
        // `keep` is asked about all datagrams before any is moved: a `keep` that panics loses none.
        let keeps: Vec<bool> = self.iter().skip(first).map(keep).collect();
        if keeps.iter().all(|keeps| *keeps) {
            return Vec::new();
        }
        let all: Vec<_> = self.packets.drain(first..).zip(self.held.drain(first..)).collect();
        let mut gone = Vec::new();
        for ((packet, held), keeps) in all.into_iter().zip(keeps) {
            if keeps {
                self.packets.push(packet);
                self.held.push(held);
            } else {
                gone.push((packet, held));
            }
        }
        gone
    }

    /// Removes all datagrams.
    pub fn clear(&mut self) {
        self.socket.give_back(self.packets.drain(..).zip(self.held.drain(..)));
    }
}

impl UdpSocket {
    /// An empty batch with room for so many datagrams of this socket.
    pub fn datagrams(&self, most: usize) -> Datagrams<'_> {
        Datagrams::new(self, most)
    }

    /// Receives as many datagrams as have come and the batch has room for, behind those that are in it. Returns their number. Waits while nothing has
    /// come.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]; `InvalidInput` if the batch is full, or another socket's.
    pub fn recv_batch(&self, batch: &mut Datagrams<'_>) -> io::Result<usize> {
        self.check_own(batch)?;
        let room = batch.most - batch.held.len().min(batch.most);
        if room == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the batch is full"));
        }
        let (mut receive, mut end) = (self.lock_receive(), Deadline::default());
        loop {
            self.wait_for_datagram(&mut receive, &mut end)?;
            let before = batch.held.len();
            let Datagrams { packets, held, .. } = &mut *batch;
            receive.take_into(room, packets, |lane, count| {
                let one = Held { lane, is_received: true, is_changed: false, ecn: 0 };
                held.extend(std::iter::repeat_n(one, count));
            });
            if self.lock_peer().is_some() {
                let others = batch.remove_from(before, |datagram| self.is_from_peer(datagram.peer()));
                self.note_from_others(others.len() as u64);
                self.give_back(others);
            }
            if batch.held.len() > before {
                return Ok(batch.held.len() - before);
            }
        }
    }

    /// Sends the datagrams of a batch in their order, received ones to their senders. Returns the number sent, which leave the batch. Waits until one
    /// can be sent; datagrams that the send buffer then has no room for stay in the batch.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `InvalidInput` if the batch is another socket's.
    pub fn send_batch(&self, batch: &mut Datagrams<'_>) -> io::Result<usize> {
        self.check_own(batch)?;
        self.take_error()?;
        if batch.held.is_empty() {
            return Ok(0);
        }
        let memory = self.memory();
        let mut send = self.lock_send();
        if send.is_abandoned() {
            return Err(os(libc::EPIPE));
        }
        if batch.held[0].is_received {
            // A frame to give in exchange for the first datagram's.
            let frame = self.wait_for_frame(&mut send)?;
            send.put_back(frame);
        }
        let mut returns = self.lock_returns();
        let mut count = 0;
        let Datagrams { packets, held, .. } = &mut *batch;
        for (packet, held) in packets.iter_mut().zip(&*held) {
            if held.is_received {
                let Some(frame) = send.take_frame() else { break };
                // The datagram goes in the frame in which it came.
                returns.read(held.lane, frame, packet.len_bytes);
                turn_round(packet, memory, held.is_changed, held.ecn);
            } else if held.is_changed || held.ecn != 0 {
                let bytes = packet.bytes_mut(memory);
                let (from, to) = ends(bytes);
                write_headers(bytes, from, to, held.ecn);
            }
            count += 1;
        }
        held.drain(..count);
        let mut left = packets.split_off(count);
        send.send_all(packets);
        packets.append(&mut left);
        returns.publish();
        Ok(count)
    }

    /// Gives back the frames of datagrams that are not sent.
    fn give_back(&self, gone: impl IntoIterator<Item = (PathPacket, Held)>) {
        let mut returns = self.lock_returns();
        for (packet, Held { lane, is_received, .. }) in gone {
            match is_received {
                true => returns.read(lane, packet.frame, packet.len_bytes),
                false => returns.unused(packet.frame),
            }
        }
        returns.publish();
    }

    fn check_own(&self, batch: &Datagrams<'_>) -> io::Result<()> {
        match std::ptr::eq(self, batch.socket) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the batch is of another socket")),
        }
    }
}

impl Drop for Datagrams<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
