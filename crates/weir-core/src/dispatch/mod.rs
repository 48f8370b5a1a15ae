//! Dispatch: decides which worker does a packet's work, and whether now or later. FreeBSD's netisr in this path's words.
//!
//! A packet passes through *protocols* (ether, arp, ip, ip6), each a handler with a queue. Two questions are asked at each, and never
//! mixed: the protocol's [`protocol::Policy`] says *which worker*, its [`protocol::Mode`] says *now or later*. `weir_path::dispatch`
//! carries these decisions out; packets that wait there wait in an egress queue.
//!
//! netisr has no way back: a full queue drops there, and its feeder never learns of it (`netstat -Q` in the IPsec report: 616,976,559
//! drops). Here a full queue holds its feeder, unless a rule says otherwise.
//!
//! [`handlers`] are those of a host that receives. [`settings`] reads the configuration under netisr's names, [`netstat`] prints the
//! counters as `netstat -Q` does.
//!
//! Source: FreeBSD `sys/net/netisr.c`, `netisr.h`, `usr.bin/netstat/netisr.c`.

pub mod handlers;
pub mod netstat;
pub mod protocol;
pub mod settings;
