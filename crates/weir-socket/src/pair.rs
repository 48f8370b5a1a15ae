//! Two stacks joined by a link in memory: for tests and benchmarks, without root.
//!
//! ```text
//! no limit    each worker joins its two hosts, and shares nothing                       a limit    an interface for each host (`link.rs`)
//! ```
//!
//! Owner: the caller, until the workers have both.

use std::io;
use std::net::IpAddr;

use weir_core::net::router::{RouterSettings, StaticNeighbour};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_ring::doorbell::{Doorbell, Ringer};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::builder::{MEMORY_FRAME_BYTES, MEMORY_MTU_BYTES, StackBuilder, WorkerParts, mac_of};
use crate::link::LinkPort;
use crate::stack::Stack;

impl Stack {
    /// Two stacks joined by a link in memory, each with this address: for tests and benchmarks, without root.
    ///
    /// ```
    /// use weir_socket::Stack;
    ///
    /// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
    /// assert!(left.books()?.balances && right.books()?.balances);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for an address without its prefix, or no address.
    pub fn pair(left: &str, right: &str) -> io::Result<(Stack, Stack)> {
        let builder = Stack::builder().sockets(8);
        Stack::pair_of(builder.clone().address(left), builder.address(right))
    }

    /// Two stacks joined as by [`Stack::pair`], with settings. The sockets, buffers, buckets and workers of the first are those of both; each has its
    /// own limit of the packets that it sends ([`StackBuilder::rate`]). With a limit the link has a ring, as a veth has: a socket that nobody reads
    /// may then hold all who send by it.
    ///
    /// # Errors
    /// As [`Stack::pair`].
    pub fn pair_of(left: StackBuilder, right: StackBuilder) -> io::Result<(Stack, Stack)> {
        let right = right.like(&left);
        let workers = left.check_workers()?.max(right.check_workers()?);
        let hosts = [&left, &right].into_iter().zip(0..);
        let hosts = hosts.map(|(builder, number)| builder.host(mac_of(number), MEMORY_MTU_BYTES, workers));
        let mut hosts = hosts.collect::<io::Result<Vec<_>>>()?;
        let memory = FrameMemory::new(left.frames(workers, 2, 0)?, MEMORY_FRAME_BYTES);
        let memory = memory.map_err(io::Error::other)?;
        let limits = [("left", left.limits()), ("right", right.limits())];
        let is_limited = limits.iter().any(|(_, limits)| limits.is_some());
        if is_limited && workers > 1 {
            know_each_other(&mut hosts);
        }
        let end = |port| {
            EitherPort::Kernel(Box::new(EitherPort::Memory(Box::new(EitherPort::Memory(Box::new(port))))))
        };
        let doorbells = (0..workers).map(|_| Doorbell::with_full_fences());
        let doorbells = doorbells.collect::<io::Result<Vec<_>>>()?;
        let ringers: Vec<Ringer> = doorbells.iter().map(Doorbell::ringer).collect();
        let rss = hosts[0].host.expect("a host has sockets").rss(workers);
        let pools = Pool::for_workers(memory, workers).into_iter();
        let parts = pools.zip(doorbells).zip(LinkPort::pairs(&rss, &ringers));
        let parts = parts.map(|((pool, doorbell), ends)| {
            let interfaces = ends.into_iter().filter(|_| is_limited).map(end).collect();
            WorkerParts { interfaces, frames: Frames::new(pool), doorbell, kernel: None }
        });
        let interfaces = if is_limited { &limits[..] } else { &[] };
        let stack = Stack::start(&left, interfaces, hosts, parts.collect())?;
        let other = stack.other();
        Ok((stack, other))
    }
}

/// Tells each of two hosts the other's link-layer address: an answer to a question for it would come to one worker alone.
fn know_each_other(hosts: &mut [RouterSettings]) {
    let stations = hosts.iter().map(|host| {
        let (mac, addresses) = (host.interfaces[0].mac, host.all_addresses(0).into_iter());
        let addresses = addresses.map(|address| IpAddr::from(address.address()));
        addresses.map(|address| StaticNeighbour { interface: 0, address, mac }).collect::<Vec<_>>()
    });
    let stations: Vec<_> = stations.collect();
    for (host, of_other) in hosts.iter_mut().zip(stations.into_iter().rev()) {
        let given =
            |station: &StaticNeighbour| host.neighbours.iter().any(|own| own.address == station.address);
        let missing: Vec<_> = of_other.into_iter().filter(|station| !given(station)).collect();
        host.neighbours.extend(missing);
    }
}
