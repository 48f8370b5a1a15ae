//! Chaos: events at a wire under floods both ways, in an order that a seed repeats, and the promise that it must keep.
//!
//! ```text
//! seed --> plan --> conductor --> events --> site (interfaces), subject (daemon, guardian)
//!                       |
//!                       +--> floods, streams, ping: does traffic flow again?  --> accounts: is what is missing accounted for?
//! ```
//!
//! The promise is judged in two kinds of time. In *calm*, between events, every datagram arrives, in order. In an *event*, from its start
//! until traffic flows again, missing datagrams are shown by a counter or are within the event's bound, and the time is within its limit.

pub mod accounts;
pub mod conductor;
pub mod events;
pub mod floods;
pub mod ledger;
pub mod patience;
pub mod plan;
pub mod site;
pub mod stream;
pub mod subject;
