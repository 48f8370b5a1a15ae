#![forbid(unsafe_code)]
//! Every decision Weir makes about a packet, as pure state machines: time is an argument, memory is taken at start, and nothing here knows
//! ports, threads or the kernel.
//!
//! In the order a packet meets them: [`packet`] is the packet itself, [`account`] and [`drops`] count its entry and its exit,
//! [`poll_order`] decides which queue is polled next, [`classify`] finds its class, [`steer`] the worker of its flow, [`dispatch`] has the
//! work done there, now or later, [`net`] bridges and routes it, and [`shaper`] decides when it leaves. [`limit`] plans the kernel's own
//! queue where that limits instead, and [`asm`] writes the programs that run there. [`rate`] is the number of a limit, [`units`] its text
//! form.

pub mod account;
pub mod asm;
pub mod classify;
pub mod dispatch;
pub mod drops;
pub mod due;

pub mod limit;
pub mod net;
pub mod packet;
pub mod poll_order;
pub mod rate;
pub mod shaper;
pub mod steer;
pub mod units;
