//! Shapers: when may which packet leave, and how much more may come in.
//!
//! A shaper does not drop to keep its rate. It says how much room it has ([`class::Class::room_bytes`]); an intake that
//! finds none leaves the packets where they are, and so the sender is held (design.md section 2).
//!
//! In reading order: [`token_bucket`] is the limit itself, [`tbf`] one or two of them with a queue limit; [`slab`] is
//! where packets wait, [`drr`] shares a limit fairly between flows, [`delay`] measures how long packets stood,
//! [`codel`] says when that was too long and [`ecn`] tells the sender; [`backlog`] is all of that for one class,
//! and [`class`] puts it behind a limit. [`buckets`] is a queue of times, by which [`fq`] gives every flow its own pace,
//! and [`tree`] shares a link between classes, metered by [`htb`] or [`cbq`].

pub mod backlog;
pub mod buckets;
pub mod cbq;
pub mod class;
pub mod codel;
pub mod delay;
pub mod drr;
pub mod ecn;
pub mod fq;
pub mod htb;
pub mod slab;
pub mod tbf;
pub mod token_bucket;
pub mod tree;

#[cfg(test)]
mod test_packet;
