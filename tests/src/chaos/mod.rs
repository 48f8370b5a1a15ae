//! Chaos: what may happen to a wire under floods both ways, in an order that a seed repeats, and what it must come to.
//!
//! ```text
//! seed --> plan --> conductor --> events --> site (interfaces), subject (daemon, guardian)
//!                       |
//!                       +--> floods, streams, ping: does traffic flow again?  --> accounts: is what is missing accounted for?
//! ```
//!
//! The promise is judged in two kinds of time. In *calm*, between events, every datagram arrives, in order. In an *event*, from its
//! start until traffic flows again, what is missing is shown by a counter or is within the event's bound, and the time is.

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
