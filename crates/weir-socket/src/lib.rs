#![forbid(unsafe_code)]
//! UDP and TCP sockets on a Weir path: as those of `std`, but a full buffer holds its sender, and nothing is lost in between.
//!
//! A caller begins with [`Stack::builder`] and [`StackBuilder::open`] on an interface, or with [`Stack::pair`] in memory. It then binds a
//! [`UdpSocket`], a [`TcpListener`] or a [`TcpStream`] on the stack. The example `echo` of this crate is an echo server of UDP with a thread
//! for each bucket, and of TCP.
//!
//! - A [`Stack`] is a host in this process, on an interface or on a link in memory.
//! - A socket's send buffer is an intake of the path, its receive buffer an exit. The sender therefore feels a shaper or a slow reader that takes no
//!   more, one call before the loss.
//! - [`Datagrams`] are many datagrams at a time, in place.
//! - Flows fall into buckets by the hash that devices use. A socket may be bound to a bucket: a thread for each bucket shares nothing with the
//!   others.
//! - TCP is `smoltcp`'s, between a [`TcpStream`] or [`TcpListener`] and the path. Its segments go as datagrams do, so a shaped exit slows a stream
//!   by its full send buffer, and never by a loss inside.
//! - A worker of the stack's own makes its passes. An application that wants one wake-up for each request makes them itself, by a [`Driver`].
//!
//! # Features
//!
//! - With `tokio` a stream is `AsyncRead` and `AsyncWrite`, and calls that wait have an asynchronous form: `accept_async`, `connect_async`,
//!   `send_to_async`, `recv_from_async`, `poll_send_ready`. A task is woken as a thread is: when it can go on.
//! - With `quinn` a [`UdpSocket`] is a socket of QUIC endpoints, `QuicSocket`. A packet that finds the send buffer full waits with its connection,
//!   and QUIC sees no loss. The example `quic` is a server and a client.
//!
//! # Several workers
//!
//! A stack has one worker unless it is built for more ([`StackBuilder::workers`]): at most as many as its interface has receive queues and the
//! machine has cores. Each worker has queues of its own and shares nothing with the others. The bucket of a flow decides at the other end of the
//! veth which worker it comes to, as a NIC does it by the same hash. The stack arranges that when it is opened.
//!
//! - A UDP socket of a bucket ([`UdpSocket::bind_bucket`]) sends by the worker of that bucket. A thread that has such a socket and drives that
//!   worker ([`Stack::drive`], [`Stack::driven_for`]) has its flows to itself, from the device to the answer. That is what `SO_REUSEPORT` is for,
//!   except that flows do not move when sockets come and go.
//! - A UDP socket without a bucket receives from all workers, as a kernel socket does from all queues, and sends by one of them. Datagrams of
//!   a flow stay in order.
//! - A [`TcpListener`] accepts from all workers. A connection belongs to the worker by whose queue its segments come, whichever thread asked for
//!   it.
//! - Each worker asks for neighbours itself, so ARP and neighbour discovery happen once for each.
//! - A sender that bypasses the hooks at the other end (AF_XDP, XDP redirect, `PACKET_QDISC_BYPASS`) chooses the queue. Its datagrams are heard
//!   all the same. So are connections that it asks for, if it keeps to a queue. A connection that the stack asks for with such a host may find
//!   no answer.
//!
//! # Beside the kernel
//!
//! The interface of a stack stays the kernel's as well, and `ssh` by it goes on. A stack has one of two kinds of address:
//!
//! - An address that the kernel has too. Packets for a port that is bound on the stack are the stack's. All else is the kernel's, which answers ARP,
//!   neighbour discovery, pings, and requests for a port that nobody has.
//! - An address of its own, which the stack alone answers for.
//!
//! A port that a program has of the kernel is in use here (`AddrInUse`), and the other way round, as long as a socket, a listener or a connection
//! has it. Differences from two programs on the kernel's sockets:
//!
//! - A socket that does not read holds the receive queue that its datagrams come by, and with it the kernel's packets in that queue, until it reads.
//!   With [`FullRule::Drop`] it holds nothing.
//! - Programs of the same namespace do not reach a socket on a shared address: their packets to that address do not leave by the interface. A
//!   connection is refused and a datagram is lost.
//! - Fragments to a shared address are the kernel's, which has no socket for them.
//! - The stack looks once which addresses the kernel has, and which MTU the interface and its other end have, when it is opened. A change is not
//!   followed: open the stack anew.
//! - Packets that arrive while the stack is being opened, or takes its queues again after the interface was down, may be dropped: some milliseconds.
//! - The stack asks for its neighbours itself. It has routes of its own ([`StackBuilder::gateway`]), not the kernel's.
//! - Received packets are not joined into larger ones for the kernel (GRO), unless somebody has switched that on; then a segment may wait for a next
//!   one for some milliseconds.
//!
//! # In `weir stat`
//!
//! A stack on an interface answers as wires do. `weir stat` shows it under the name of its interface ([`StackBuilder::name`]), with the process
//! that has it, each socket's datagrams, drops and time spent throttled ([`SocketCounts`]), its listeners and connections.
//!
//! - It costs a thread that sleeps until a client asks.
//! - Everybody on the machine may ask, as `ss` lets everybody see the kernel's sockets. Only its application changes a stack.
//! - Each of several workers has its rows, with its number behind the name (`->veth-a/1`); a socket has one row.
//! - A stack in memory is not shown.

#[cfg(feature = "tokio")]
mod asynchronous;
mod batch;
mod blocking;
mod books;
mod builder;
mod control;
mod datagram;
mod driver;
mod ending;
mod half;
mod host;
mod in_use;
mod interface;
mod layout;
mod link;
mod memory;
mod options;
mod pair;
mod port;
#[cfg(feature = "quinn")]
mod quic;
mod report;
mod responder;
mod ringers;
mod shared;
mod socket;
mod stack;
mod task;
mod tcp;
mod throttle;
mod too_long;
mod ways;
mod worker;

pub use batch::Datagrams;
pub use books::{StackBooks, TrafficBooks};
pub use builder::StackBuilder;
pub use datagram::{Datagram, DatagramMut};
pub use driver::Driver;
pub use options::{SocketCounts, SocketOptions};
pub use port::FullRule;
#[cfg(feature = "quinn")]
pub use quic::QuicSocket;
pub use socket::UdpSocket;
pub use stack::Stack;
pub use tcp::listener::{Incoming, TcpListener};
#[cfg(any(test, feature = "model"))]
pub use tcp::model::TcpModel;
pub use tcp::stream::TcpStream;
