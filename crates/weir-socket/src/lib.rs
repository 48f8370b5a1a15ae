#![forbid(unsafe_code)]
//! UDP and TCP sockets on a Weir path: as those of `std`, but a full buffer holds whoever fills it, and nothing is lost in between.
//!
//! A [`Stack`] is a host in this process, on an interface or on a link in memory; a [`UdpSocket`] is bound on it. A socket's send buffer is an
//! intake of the path and its receive buffer an exit, so what a shaper or a slow reader does not take is felt by who sends, one call before
//! the loss. [`Datagrams`] are many at a time, in place. Flows fall into buckets by the hash that devices use, and a socket may be bound to a
//! bucket: a thread for each shares nothing with the others.
//!
//! TCP is `smoltcp`'s, between a [`TcpStream`] or [`TcpListener`] and the path: its segments go as datagrams do, so a stream through a shaped
//! exit is slowed by its full send buffer and never by a loss inside.
//!
//! With the feature `tokio` a stream is `AsyncRead` and `AsyncWrite`, and what waits has an asynchronous form: `accept_async`,
//! `connect_async`, `send_to_async`, `recv_from_async`, `poll_send_ready`. A task is woken as a thread is: when it can go on.
//!
//! With the feature `quinn` a [`UdpSocket`] is a socket of QUIC endpoints, `QuicSocket`: what finds its send buffer full waits with its connection,
//! and QUIC sees no loss. The example `quic` is a server and a client.
//!
//! A worker of the stack's own makes its passes; an application that wants one wake-up for each request makes them itself by a [`Driver`].
//!
//! The example `echo` of this crate is an echo server of UDP with a thread for each bucket, and of TCP.

#[cfg(feature = "tokio")]
mod asynchronous;
mod batch;
mod blocking;
mod builder;
mod control;
mod datagram;
mod driver;
mod ending;
mod half;
mod layout;
mod link;
mod options;
mod port;
#[cfg(feature = "quinn")]
mod quic;
mod socket;
mod stack;
mod task;
mod tcp;
mod worker;

pub use batch::Datagrams;
pub use builder::{HELD_MAX, StackBuilder};
pub use datagram::{Datagram, DatagramMut};
pub use driver::Driver;
pub use options::{SocketCounts, SocketOptions};
pub use port::FullRule;
#[cfg(feature = "quinn")]
pub use quic::QuicSocket;
pub use socket::UdpSocket;
pub use stack::Stack;
pub use tcp::listener::{Incoming, TcpListener};
pub use tcp::stream::TcpStream;
pub use worker::{StackBooks, TrafficBooks};
