#![forbid(unsafe_code)]
//! A key-value server that speaks memcached's text protocol over TCP and UDP, on a stack of `weir-socket`.
//!
//! A caller begins with [`server::Memcache::bind`] on a stack, and then calls [`server::Memcache::serve`].
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the requests of a client, read from its bytes |
//! | [`store`] | the items of one worker, bounded in bytes |
//! | [`execute`] | the work of a worker on a request for its own keys |
//! | [`exchange`] | its messages to the others, and when a request is answered |
//! | [`reply`] | a reply |
//! | [`budget`] | the bytes that all clients' replies, and their values that come, may have together |
//! | [`stats`] | the reply to `stats` |
//! | [`frame`], [`pipeline`] | datagrams, and the order of their replies |
//! | [`connection`], [`output`] | a client's TCP connection, and what is to be written to it |
//! | [`seats`] | how many clients there may be over TCP, and what becomes of further ones |
//! | [`server`] | all of it on the sockets of a stack |
//!
//! Rule: there is a worker for each bucket of flows and a home worker for each key. The home alone touches an item, so there is no lock.
//!
//! Source: A. Chadd's thread on receive-side scaling of UDP, which named this as the next step after the published echo server; memcached
//! `doc/protocol.txt`.
//!
//! Limits: 255 workers.

pub mod budget;
pub mod command;
pub mod connection;
pub mod exchange;
pub mod execute;
pub mod frame;
pub mod output;
pub mod pipeline;
pub mod reply;
pub mod seats;
pub mod server;
pub mod stats;
pub mod store;
