//! TCP on a stack: `smoltcp`'s state machine, one connection at a time, between a port of the path and the rings of an application.
//!
//! ```text
//! TcpStream --chunks in frames--> [connection: smoltcp socket] --segments, when the path polls--> host --> egress queue --> interface
//!           <--chunks in frames--              |              <--segments, put-- egress queue of the port <-- host <--
//! ```
//!
//! [`port`] is the port that all segments of a host come to and leave from, [`life`] the life of its connections, [`connection`] a single connection,
//! [`numbers`] its sequence numbers, [`shown`] what smoltcp is shown for its segments, [`challenge`] what is done with those that may be guessed,
//! [`patience`] how long its peer is waited for, [`half_open`] the connections that nobody has accepted yet, [`path_mtu`] the packet sizes that routers
//! tell, [`device`] the device that smoltcp sees, [`segment`] the header of a segment, [`state`] the flags between application and worker, [`settings`]
//! what a builder says. The application's side is [`stream`] and [`listener`], and [`control`] has their requests to the worker.

mod challenge;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod device;
pub(crate) mod half_open;
mod life;
pub(crate) mod listener;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub(crate) mod numbers;
pub(crate) mod path_mtu;
pub(crate) mod patience;
pub(crate) mod port;
pub(crate) mod report;
pub(crate) mod segment;
pub(crate) mod settings;
mod shown;
pub(crate) mod state;
pub(crate) mod stream;
