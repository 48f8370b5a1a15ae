//! A stack of `weir-socket`, with a socket and a thread for each bucket.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use smoltcp::wire::EthernetAddress;
use weir_core::drops::DropReason;
use weir_core::steer::key::Key;
use weir_path::traffic::flows::{Endpoints, Flows, Traffic};
use weir_path::traffic::generator::{GenSpec, Until};
use weir_path::traffic::port::MemoryPort;
use weir_socket::{Driver, Stack, StackBooks, StackBuilder, TrafficBooks, UdpSocket};

use super::clients::Pace;
use super::kernel::{Ends, ask_all, clients, measure};
use super::{CLIENTS, FRAME_BYTES, Outcome, RssPlan};
use crate::clock;
use crate::machine::pin;

/// The pause between two looks of a server whether it is over.
const LOOK: Duration = Duration::from_millis(10);
/// Datagrams in one go.
const BATCH: usize = 256;
/// The longest time that datagrams on their way may take to come at the end.
const REST: Duration = Duration::from_secs(5);
/// The published server, and the hosts beside it.
const SERVER: &str = "10.11.2.1";
const PORT: u16 = 7;
const FIRST_CLIENT: [u8; 4] = [10, 11, 2, 2];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A server: its stack, its socket there, and the worker that it drives.
struct Server<'s> {
    stack: &'s Stack,
    socket: UdpSocket,
    driven: Option<usize>,
}

impl<'s> Server<'s> {
    /// The server of a bucket.
    fn bind(stack: &'s Stack, address: &str, bucket: usize, driven: Option<usize>) -> Result<Server<'s>> {
        let socket = UdpSocket::bind_bucket(stack, format!("{address}:{PORT}"), bucket)?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(Server { stack, socket, driven })
    }
}

/// Everything in memory: a worker with its part of the flows, and a server, on each core.
pub(super) fn in_memory(plan: &RssPlan) -> Result<Outcome> {
    let generators = generators(plan)?;
    measure(|| {
        let builder = builder(plan.cores.len())?.cores(plan.cores.iter().copied());
        let stack = builder.open_in_memory(generators)?;
        echo_in_memory(plan, &[&stack], &servers(&stack, SERVER)?)
    })
}

/// The flows and generators of [`in_memory`], each to a stack of its own on its core, which hashes as the stack of several workers does.
pub(super) fn copies(plan: &RssPlan) -> Result<Outcome> {
    let generators = generators(plan)?;
    measure(|| {
        let stacks = generators.into_iter().zip(&plan.cores).map(|(generator, &core)| {
            let builder = builder(plan.cores.len())?.cores([core]);
            Ok(builder.open_in_memory(vec![generator])?)
        });
        let stacks = stacks.collect::<Result<Vec<_>>>()?;
        let servers = stacks.iter().enumerate();
        let servers = servers.map(|(bucket, stack)| Server::bind(stack, SERVER, bucket, Some(0)));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        echo_in_memory(plan, &stacks.iter().collect::<Vec<_>>(), &servers)
    })
}

/// The clients of each core.
fn generators(plan: &RssPlan) -> Result<Vec<MemoryPort>> {
    let buckets = plan.cores.len();
    let spec = GenSpec {
        traffic: even_traffic(buckets)?,
        packets_per_s: None,
        until: Until::Elapsed(plan.duration.as_nanos() as u64),
    };
    Ok(MemoryPort::dealt(&spec, &Key::SYMMETRIC, buckets)?)
}

/// A stack in memory of so many buckets, and as many sockets.
fn builder(buckets: usize) -> Result<StackBuilder> {
    let mut builder = Stack::builder()
        .address(format!("{SERVER}/24"))
        .sockets(u16::try_from(buckets)?)
        .bucket_bits(buckets.ilog2());
    for client in 0..CLIENTS {
        let [a, b, c, d] = FIRST_CLIENT;
        builder = builder.neighbour(format!("{a}.{b}.{c}.{}", u16::from(d) + client), CLIENT_MAC);
    }
    Ok(builder)
}

/// Lets the generators of stacks be answered by their servers.
fn echo_in_memory(plan: &RssPlan, stacks: &[&Stack], servers: &[Server<'_>]) -> Result<Outcome> {
    let all = || -> Result<Vec<StackBooks>> {
        stacks.iter().map(|stack| stack.books().map_err(anyhow::Error::from)).collect()
    };
    serve(plan, servers, || {
        let start = clock::now();
        thread::sleep(plan.duration);
        let (in_time, seconds) = (traffic(&all()?)?.numbered, start.elapsed().as_secs_f64());
        let end = clock::now() + REST;
        let books = loop {
            let books = all()?;
            let traffic = traffic(&books)?;
            if traffic.made == traffic.numbered || clock::now() > end {
                break books;
            }
        };
        ensure!(books.iter().all(|books| books.balances), "the books do not balance: {books:?}");
        let TrafficBooks { made, numbered, reordered, .. } = traffic(&books)?;
        let dropped = books.iter().map(|books| books.dropped.get(DropReason::SocketFull).packets);
        Ok(Outcome {
            sent: made,
            echoed: numbered,
            in_time,
            seconds,
            cpu_seconds: 0.0,
            client_cpu_seconds: None,
            dropped_full_socket: dropped.sum(),
            reordered,
        })
    })
}

/// The stack on a veth, with the kernel's clients at its other end: a worker, a receive queue and a server on each core.
pub(super) fn over_veth(plan: &RssPlan) -> Result<Outcome> {
    let buckets = plan.cores.len();
    let ends = Ends::new(buckets)?;
    let stack = ends.right.enter(|| {
        let builder = Stack::builder().address("10.99.0.2/24").sockets(buckets as u16).workers(buckets);
        let builder = builder.bucket_bits(buckets.ilog2()).cores(plan.cores.iter().copied());
        builder.guardian(&plan.weir).open("veth0")
    })??;
    let servers = servers(&stack, "10.99.0.2")?;
    let clients = ends.left.enter(|| clients("10.99.0.1", plan))??;
    let outcome = measure(|| {
        serve(plan, &servers, || {
            let asked = ask_all(plan, clients, "10.99.0.2:7".parse()?, Pace::Windowed)?;
            let books = stack.books()?;
            ensure!(books.balances, "the books do not balance: {books:?}");
            Ok(asked.outcome(books.dropped.get(DropReason::SocketFull).packets))
        })
    });
    drop(servers);
    stack.stop()?;
    outcome
}

/// A server for each bucket.
fn servers<'s>(stack: &'s Stack, address: &str) -> Result<Vec<Server<'s>>> {
    let buckets = 0..stack.buckets();
    buckets.map(|bucket| Server::bind(stack, address, bucket, stack.driven_for(bucket))).collect()
}

/// Runs the servers, a thread for each on its core, while something else is done.
fn serve<T>(plan: &RssPlan, servers: &[Server<'_>], meanwhile: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .zip(&plan.cores)
            .map(|(Server { stack, socket, driven }, &core)| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<()> {
                    pin(core)?;
                    match *driven {
                        Some(worker) => drive_and_echo(stack.drive(worker)?, socket, is_over),
                        None => echo(socket, is_over),
                    }
                })
            })
            .collect();
        let done = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        for Server { stack, .. } in servers {
            (0..stack.workers()).for_each(|worker| {
                stack.ringer(worker).published();
            });
        }
        for thread in threads {
            thread.join().expect("a server does not panic")?;
        }
        done
    })
}

/// The server of a bucket that drives the worker of its flows.
fn drive_and_echo(mut driver: Driver, socket: &UdpSocket, is_over: &AtomicBool) -> Result<()> {
    let mut batch = socket.datagrams(BATCH);
    let has_ended = || is_over.load(Ordering::Relaxed);
    socket.set_nonblocking(true);
    while !has_ended() {
        let mut has_moved = driver.turn()?;
        match socket.recv_batch(&mut batch) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => has_moved |= received? > 0,
        }
        driver.send_all(socket, &mut batch)?;
        if !has_moved {
            driver.rest(|| socket.is_readable() || has_ended())?;
        }
    }
    Ok(())
}

/// The server of a bucket whose flows another's thread brings.
fn echo(socket: &UdpSocket, is_over: &AtomicBool) -> Result<()> {
    let mut batch = socket.datagrams(BATCH);
    while !is_over.load(Ordering::Relaxed) {
        match socket.recv_batch(&mut batch) {
            Err(error) if error.kind() == ErrorKind::TimedOut => continue,
            received => received?,
        };
        while !batch.is_empty() {
            socket.send_batch(&mut batch)?;
        }
    }
    Ok(())
}

/// The sums of the packets that the generators of all stacks made and saw.
fn traffic(books: &[StackBooks]) -> Result<TrafficBooks> {
    books.iter().try_fold(TrafficBooks::default(), |mut all, books| {
        all.merge(&books.traffic.context("the interface is in memory")?);
        Ok(all)
    })
}

/// A flow of each client, such that each bucket has as many: after some trial and error, as published.
fn even_traffic(buckets: usize) -> Result<Traffic> {
    let [a, b, c, d] = FIRST_CLIENT;
    let server = (SERVER.parse()?, SERVER.parse()?);
    for port in 1024..u16::MAX {
        let traffic = Traffic {
            size_bytes: FRAME_BYTES,
            src: Endpoints {
                addresses: (FIRST_CLIENT.into(), [a, b, c, d + CLIENTS as u8 - 1].into()),
                ports: (port, port),
            },
            dst: Endpoints { addresses: server, ports: (PORT, PORT) },
            src_mac: EthernetAddress(CLIENT_MAC),
            // The address of a stack in memory.
            dst_mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            flows: CLIENTS.into(),
            first_flow: 0,
        };
        let dealt = Flows::hashed(&traffic, &Key::SYMMETRIC)?.deal(buckets);
        if dealt.iter().all(|flows| flows.len() * buckets == usize::from(CLIENTS)) {
            return Ok(traffic);
        }
    }
    bail!("no port of the clients deals {CLIENTS} flows evenly to {buckets} buckets")
}
