#![forbid(unsafe_code)]
//! A key-value server that speaks memcached's text protocol over TCP and UDP: a worker for each bucket of flows, a home worker for each
//! key, and no lock.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the requests of a client, read from its bytes |
//! | [`store`] | the items of one worker, bounded in bytes |
//! | [`execute`] | the work of a worker on a request for its own keys |
//! | [`exchange`] | its messages to the others, and when a request is answered |
//! | [`stats`] | the reply to `stats` |
//! | [`frame`], [`pipeline`] | datagrams, and the order of their replies |
//! | [`connection`] | a client's TCP connection |
//! | [`seats`] | how many clients there may be over TCP, and what becomes of further ones |
//! | [`server`] | all of it on the sockets of a stack |
//!
//! The author of the published echo server named this as the next step. Source: seed `rss-udp-scaling`; memcached `doc/protocol.txt`.

pub mod command;
pub mod connection;
pub mod exchange;
pub mod execute;
pub mod frame;
pub mod pipeline;
pub mod seats;
pub mod server;
pub mod stats;
pub mod store;
