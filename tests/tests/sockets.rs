//! A stack of `weir-socket` on a veth, with the kernel's own programs and sockets at the other end: it is found and answers, a datagram to
//! nobody is refused, echoes lose nothing, and a server that does not read holds the kernel's `send`.

use std::io::ErrorKind;
use std::net::UdpSocket as KernelSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock;
use weir_lab::process::run;
use weir_socket::{Stack, UdpSocket};
use weir_tests::pair::Pair;
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(20);
const CLIENTS: u16 = 8;
const DATAGRAMS: u32 = 3000;
/// As published: frames of 510 bytes.
const PAYLOAD_BYTES: usize = 510 - 42;
/// Datagrams of a client on their way: what its own socket has room for when they come back.
const WINDOW: u32 = 32;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_stack_is_found_and_answers),
        privileged!(echoes_lose_nothing),
        privileged!(a_server_that_does_not_read_holds_who_sends),
    ])
}

/// Two hosts: the kernel's with an address at the left end, and at the right end a stack.
fn hosts(queues: u32) -> Result<(Pair, Stack)> {
    let pair = Pair::new(queues)?;
    for address in ["10.99.0.1/24", "fd99::1/64"] {
        pair.left.ip(&format!("address add {address} dev veth0"))?;
    }
    let stack = pair.right.enter(|| -> Result<Stack> {
        let stack = Stack::builder().address("10.99.0.2/24").address("fd99::2/64");
        Ok(stack.guardian(weir_binary()?).open("veth1")?)
    })??;
    Ok((pair, stack))
}

/// Ends a stack after nothing was lost in it.
fn require_clean(stack: &Stack) -> Result<()> {
    let start = clock::now();
    loop {
        let books = stack.books()?;
        ensure!(books.balances, "{books:?}");
        let dropped: Vec<_> = books.dropped.occurred().collect();
        if books.held.packets == 0 {
            // What the kernel says to groups is for nobody here.
            let is_lost = |(reason, _): &&(weir_core::drops::DropReason, _)| reason.name() != "no-handler";
            ensure!(dropped.iter().filter(is_lost).count() == 0, "{dropped:?}");
            return Ok(stack.stop()?);
        }
        ensure!(start.elapsed() < PATIENCE, "{books:?}");
        thread::yield_now();
    }
}

fn a_stack_is_found_and_answers() -> Result<()> {
    let (pair, stack) = hosts(1)?;
    for address in ["10.99.0.2", "fd99::2"] {
        let mut ping = pair.left.command("ping");
        ping.args(["-n", "-c", "3", "-i", "0.1", "-W", "5", address]);
        run(&mut ping, PATIENCE)?.success().context(address)?;
    }
    for (own, to) in [("10.99.0.1:0", "10.99.0.2:9"), ("[fd99::1]:0", "[fd99::2]:9")] {
        let socket = pair.left.enter(|| KernelSocket::bind(own))??;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(b"anybody?")?;
        let refused = socket.recv(&mut [0; 8]).err().map(|error| error.kind());
        ensure!(refused == Some(ErrorKind::ConnectionRefused), "{to}: {refused:?}");
    }
    // And the other way round: the kernel refuses what the stack sends.
    let socket = UdpSocket::bind(&stack, "10.99.0.2:0")?;
    socket.connect("10.99.0.1:9")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"anybody?")?;
    let refused = socket.recv(&mut [0; 8]).err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "{refused:?}");
    drop(socket);
    stack.stop()?;
    // The interface is the kernel's again.
    pair.right.ip("address add 10.99.0.3/24 dev veth1")?;
    let mut ping = pair.left.command("ping");
    run(ping.args(["-n", "-c", "1", "-W", "5", "10.99.0.3"]), PATIENCE)?.success().map(drop)
}

fn echoes_lose_nothing() -> Result<()> {
    let (pair, stack) = hosts(8)?;
    let servers = (0..stack.buckets())
        .map(|bucket| UdpSocket::bind_bucket(&stack, "10.99.0.2:7", bucket))
        .collect::<std::io::Result<Vec<_>>>()?;
    let clients = pair.left.enter(|| {
        (0..CLIENTS)
            .map(|number| KernelSocket::bind(("10.99.0.1", 4000 + number)))
            .collect::<Result<Vec<_>, _>>()
    })??;
    // What waits for an address is the kernel's to drop.
    run(pair.left.command("ping").args(["-n", "-c", "1", "-W", "5", "10.99.0.2"]), PATIENCE)?.success()?;
    let is_over = AtomicBool::new(false);
    let echoed: Vec<AtomicU64> = servers.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| -> Result<()> {
        for (server, echoed) in servers.iter().zip(&echoed) {
            let is_over = &is_over;
            scope.spawn(move || echo(server, echoed, is_over));
        }
        let threads: Vec<_> = clients.iter().map(|client| scope.spawn(move || ask(client))).collect();
        let asked =
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>();
        is_over.store(true, Ordering::Relaxed);
        asked.map(drop)
    })?;
    let echoed: Vec<u64> = echoed.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    ensure!(echoed.iter().sum::<u64>() == u64::from(CLIENTS) * u64::from(DATAGRAMS), "{echoed:?}");
    for client in &clients {
        let bucket = stack.bucket_of(client.local_addr()?, "10.99.0.2:7".parse()?);
        ensure!(echoed[bucket] >= u64::from(DATAGRAMS), "bucket {bucket} has a flow: {echoed:?}");
    }
    require_clean(&stack)
}

/// Sends back what comes until it is over.
fn echo(server: &UdpSocket, echoed: &AtomicU64, is_over: &AtomicBool) -> std::io::Result<()> {
    server.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut batch = server.datagrams(64);
    while !is_over.load(Ordering::Relaxed) {
        match server.recv_batch(&mut batch) {
            Err(error) if error.kind() == ErrorKind::TimedOut => continue,
            received => received?,
        };
        while !batch.is_empty() {
            echoed.fetch_add(server.send_batch(&mut batch)? as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Sends numbered datagrams and fails unless each comes back, in order.
fn ask(client: &KernelSocket) -> Result<()> {
    client.connect("10.99.0.2:7")?;
    client.set_read_timeout(Some(PATIENCE))?;
    let (mut sent, mut payload) = (0, [0; PAYLOAD_BYTES]);
    for next in 0..DATAGRAMS {
        while sent < DATAGRAMS && sent < next + WINDOW {
            payload[..4].copy_from_slice(&u32::to_be_bytes(sent));
            client.send(&payload)?;
            sent += 1;
        }
        let len = client.recv(&mut payload).with_context(|| format!("datagram {next}"))?;
        let came = payload.first_chunk().map(|number| u32::from_be_bytes(*number));
        ensure!((len, came) == (PAYLOAD_BYTES, Some(next)), "{came:?} of {len} bytes instead of {next}");
    }
    Ok(())
}

fn a_server_that_does_not_read_holds_who_sends() -> Result<()> {
    let (pair, stack) = hosts(8)?;
    let server = UdpSocket::bind(&stack, "10.99.0.2:7")?;
    let client = pair.left.enter(|| KernelSocket::bind("10.99.0.1:4000"))??;
    client.connect("10.99.0.2:7")?;
    // Once the address is known: what waits for that is the kernel's to drop.
    client.send(&[0; PAYLOAD_BYTES])?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.recv(&mut [0; 8])?;
    client.set_write_timeout(Some(Duration::from_millis(300)))?;
    let mut sent = 0u64;
    while client.send(&[0; PAYLOAD_BYTES]).is_ok() {
        sent += 1;
        ensure!(sent < 100_000, "nobody held it");
    }
    let (mut came, mut batch) = (0, server.datagrams(64));
    while came < sent {
        came += server.recv_batch(&mut batch).with_context(|| format!("{came} of {sent} came"))? as u64;
        batch.clear();
    }
    ensure!(came == sent, "{came} came of {sent}");
    client.send(&[0; PAYLOAD_BYTES]).context("who was held goes on")?;
    server.recv(&mut [0; 8])?;
    drop(batch);
    require_clean(&stack)
}
