//! A stack of `weir-socket` on a veth, with the kernel's own programs and sockets at the other end: it is found and answers, a datagram to
//! nobody is refused, echoes lose nothing, and a server that does not read holds the kernel's `send`.

#[path = "../../crates/weir-socket/examples/quic/echo.rs"]
mod quic;

use std::io::{ErrorKind, Read, Write};
use std::net::{
    Shutdown, TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelSocket,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::{self, wait_until};
use weir_lab::iperf::overflowed_datagrams;
use weir_lab::process::run;
use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};
use weir_tests::exchange::{PATIENCE, PAYLOAD_BYTES, ask, byte_at, echo, exchange, send_all};
use weir_tests::pair::Pair;
use weir_tests::raw::{Random, RawSocket};
use weir_tests::{harness, privileged, require_timing, weir_binary};

const CLIENTS: u16 = 8;
const DATAGRAMS: u32 = 3000;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_stack_is_found_and_answers).together(),
        privileged!(soft_errors_reach_no_reader).together(),
        privileged!(echoes_lose_nothing).flooding(),
        privileged!(a_server_that_does_not_read_holds_who_sends).together(),
        privileged!(streams_go_both_ways_with_the_kernel).together(),
        privileged!(a_kernel_that_does_not_read_holds_the_writer_and_may_reset).together(),
        privileged!(an_honest_client_opens_in_a_flood_of_syns),
        privileged!(quic_goes_to_the_kernel_and_back).together(),
        privileged!(a_stream_through_a_limit_has_its_rate_and_loses_nothing),
        privileged!(two_workers_have_their_flows_also_after_the_interface_was_down).flooding(),
    ])
}

/// Two hosts: the kernel's with an address at the left end, and at the right end a stack.
fn hosts(queues: u32) -> Result<(Pair, Stack)> {
    hosts_of(queues, 1)
}

/// The hosts of [`hosts`], with a stack of so many workers.
fn hosts_of(queues: u32, workers: usize) -> Result<(Pair, Stack)> {
    let pair = Pair::new(queues)?;
    for address in ["10.99.0.1/24", "fd99::1/64"] {
        pair.left.ip(&format!("address add {address} dev veth0"))?;
    }
    let stack = pair.right.enter(|| -> Result<Stack> {
        let stack = Stack::builder().address("10.99.0.2/24").address("fd99::2/64").workers(workers);
        Ok(stack.guardian(weir_binary()?).open("veth1")?)
    })??;
    Ok((pair, stack))
}

/// Ends a stack, after a check that nothing was lost in it.
fn require_clean(stack: &Stack) -> Result<()> {
    let start = clock::now();
    loop {
        let books = stack.books()?;
        ensure!(books.balances, "{books:?}");
        let dropped: Vec<_> = books.dropped.occurred().collect();
        if books.held.packets == 0 {
            // Packets of the kernel to groups are for nobody here.
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
    // And the other way round: the kernel refuses the stack's datagrams.
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

/// A router's news that a destination is not reached now, perhaps, is no datagram, and ends nobody who reads.
fn soft_errors_reach_no_reader() -> Result<()> {
    let (pair, stack) = hosts(1)?;
    pair.left.sh("nft add table inet soft")?;
    pair.left.sh("nft add chain inet soft in { type filter hook input priority 0 ; }")?;
    pair.left.sh("nft add rule inet soft in udp dport 10 counter reject with icmpx type host-unreachable")?;
    for [left, right] in [["10.99.0.1", "10.99.0.2"], ["[fd99::1]", "[fd99::2]"]] {
        let socket = UdpSocket::bind(&stack, &*format!("{right}:7000"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let peer = pair.left.enter(|| KernelSocket::bind(format!("{left}:7001")))??;
        for _ in 0..3 {
            socket.send_to(b"anybody?", &*format!("{left}:10"))?;
        }
        wait_until("all are rejected", PATIENCE, || {
            let rejected = pair.left.sh("nft list table inet soft")?;
            Ok(rejected.contains("packets 3 ") || rejected.contains("packets 6 "))
        })?;
        peer.send_to(b"hello", format!("{right}:7000"))?;
        let mut buffer = [0; 8];
        let (len, from) = socket.recv_from(&mut buffer)?;
        ensure!((&buffer[..len], from) == (b"hello", peer.local_addr()?), "{:?} from {from}", &buffer[..len]);
    }
    require_clean(&stack)
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
    // Packets that wait for an address are the kernel's to drop.
    run(pair.left.command("ping").args(["-n", "-c", "1", "-W", "5", "10.99.0.2"]), PATIENCE)?.success()?;
    let to = "10.99.0.2:7".parse()?;
    let is_over = AtomicBool::new(false);
    let echoed: Vec<AtomicU64> = servers.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| -> Result<()> {
        for (server, echoed) in servers.iter().zip(&echoed) {
            let is_over = &is_over;
            scope.spawn(move || echo(server, echoed, is_over));
        }
        let threads: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || ask(client, to, DATAGRAMS))).collect();
        let asked =
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>();
        is_over.store(true, Ordering::Relaxed);
        asked.map(drop)
    })?;
    let echoed: Vec<u64> = echoed.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    ensure!(echoed.iter().sum::<u64>() == u64::from(CLIENTS) * u64::from(DATAGRAMS), "{echoed:?}");
    for client in &clients {
        let bucket = stack.bucket_of(client.local_addr()?, to);
        ensure!(echoed[bucket] >= u64::from(DATAGRAMS), "bucket {bucket} has a flow: {echoed:?}");
    }
    require_clean(&stack)
}

fn a_server_that_does_not_read_holds_who_sends() -> Result<()> {
    let (pair, stack) = hosts(8)?;
    let server = UdpSocket::bind(&stack, "10.99.0.2:7")?;
    let client = pair.left.enter(|| KernelSocket::bind("10.99.0.1:4000"))??;
    client.connect("10.99.0.2:7")?;
    // Once the address is known: packets that wait for that are the kernel's to drop.
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

fn patient(stream: TcpStream) -> Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn patient_kernel(stream: KernelStream) -> Result<KernelStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Both ways at once over one connection.
fn both_ways(ours: &TcpStream, kernels: &KernelStream, len: usize) -> Result<()> {
    let (end_ours, end_kernels) = (|| ours.shutdown(Shutdown::Write), || kernels.shutdown(Shutdown::Write));
    exchange((ours, end_ours), (kernels, end_kernels), len)
}

fn streams_go_both_ways_with_the_kernel() -> Result<()> {
    const LEN: usize = 20 << 20;
    let (pair, stack) = hosts(2)?;
    for (address, kernels) in [("10.99.0.2:7", "10.99.0.1:8"), ("[fd99::2]:7", "[fd99::1]:8")] {
        let listener = TcpListener::bind(&stack, address)?;
        let client = patient_kernel(pair.left.enter(|| KernelStream::connect(address))??)?;
        both_ways(&patient(listener.accept()?.0)?, &client, LEN)?;
        let listener = pair.left.enter(|| KernelListener::bind(kernels))??;
        let client = patient(TcpStream::connect(&stack, kernels)?)?;
        both_ways(&client, &patient_kernel(listener.accept()?.0)?, LEN)?;
    }
    // Nobody listens: a connection is refused by a reset either way.
    let refused = pair.left.enter(|| KernelStream::connect("10.99.0.2:9"))?.err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "{refused:?}");
    let refused = TcpStream::connect(&stack, "10.99.0.1:9").err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "{refused:?}");
    require_clean(&stack)
}

fn a_kernel_that_does_not_read_holds_the_writer_and_may_reset() -> Result<()> {
    let (pair, stack) = hosts(1)?;
    let listener = TcpListener::bind(&stack, "10.99.0.2:7")?;
    let client = pair.left.enter(|| KernelStream::connect("10.99.0.2:7"))??;
    let mut server = listener.accept()?.0;
    server.set_write_timeout(Some(Duration::from_millis(400)))?;
    let (chunk, mut sent) = ([7; 4096], 0);
    let held = loop {
        match server.write(&chunk) {
            Ok(len) => sent += len,
            Err(error) => break error.kind(),
        }
        ensure!(sent < 1 << 28, "nobody held it");
    };
    ensure!(held == ErrorKind::TimedOut, "{held:?}");
    // The window opens again when the kernel's side reads.
    let mut client = patient_kernel(client)?;
    client.read_exact(&mut vec![0; sent])?;
    server.set_write_timeout(Some(PATIENCE))?;
    server.write_all(&chunk)?;
    // With unread bytes the kernel resets when it closes.
    client.read_exact(&mut [0; 1])?;
    drop(client);
    server.set_read_timeout(Some(PATIENCE))?;
    let reset = server.read(&mut [0; 1]).err().map(|error| error.kind());
    ensure!(reset == Some(ErrorKind::ConnectionReset), "{reset:?}");
    drop((server, listener));
    require_clean(&stack)
}

/// The example's server on a stack, and its client on a socket of the kernel's.
fn quic_goes_to_the_kernel_and_back() -> Result<()> {
    const LEN: usize = 4 << 20;
    let (pair, stack) = hosts(1)?;
    // Packets that wait for an address are the kernel's to drop.
    run(pair.left.command("ping").args(["-n", "-c", "1", "-W", "5", "10.99.0.2"]), PATIENCE)?.success()?;
    let socket = UdpSocket::bind(&stack, "10.99.0.2:4433")?;
    let kernels = pair.left.enter(|| KernelSocket::bind("10.99.0.1:0"))??;
    let told = |error: Box<dyn std::error::Error + Send + Sync>| anyhow::anyhow!(error);
    let (config, certificate) = quic::server().map_err(told)?;
    let trusting = quic::client(certificate).map_err(told)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let exchange = async {
        let (server, _) = quic::endpoint(socket, Some(config))?;
        let by_kernel = Arc::new(quinn::TokioRuntime);
        let client = quinn::Endpoint::new(quinn::EndpointConfig::default(), None, kernels, by_kernel)?;
        let serving = tokio::spawn(async move {
            let connection = server.accept().await.expect("a connection").await.expect("open");
            quic::echo(&connection).await;
            connection.stats()
        });
        let connection = quic::connect(&client, "10.99.0.2:4433".parse()?, trusting).await?;
        quic::ask(&connection, LEN).await?;
        connection.close(0_u32.into(), b"");
        quic::Outcome::Ok(serving.await?)
    };
    let stats = runtime.block_on(async { tokio::time::timeout(PATIENCE, exchange).await })?.map_err(told)?;
    drop(runtime);
    let (lost, sent) = (stats.path.lost_packets, stats.path.sent_packets);
    println!("    {sent} packets sent by the server, {lost} lost");
    // A packet of 1,452 bytes at the most is a datagram of its own, but for the first ones, which are few.
    ensure!(sent >= LEN as u64 / 1500, "{sent} packets for {LEN} bytes");
    let overflowed = overflowed_datagrams(&pair.left)?;
    ensure!(lost <= overflowed, "{lost} packets lost, but the client's socket had no room for {overflowed}");
    require_clean(&stack)
}

/// A SYN from an address of the network that nobody has.
fn syn(random: &mut Random, destination: [u8; 6]) -> Vec<u8> {
    let mut frame = [&destination[..], &[2, 0, 0, 0, 0, 9, 8, 0]].concat();
    let mut ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 99, 0, 0, 10, 99, 0, 2];
    ip[15] = random.between(3, 254) as u8;
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&(random.between(1024, 65535) as u16).to_be_bytes());
    tcp[3] = 7;
    tcp[4..8].copy_from_slice(&(random.next() as u32).to_be_bytes());
    tcp[12..16].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let pseudo = [&ip[12..], &[0, 6, 0, 20], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    let header = checksum(&ip);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

/// The checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The flood comes from more addresses that nobody has than a stack asks for at once: neighbours of the program's own are asked for all the same.
fn an_honest_client_opens_in_a_flood_of_syns() -> Result<()> {
    const OPENED: u64 = 20;
    /// SYNs between two honest connections.
    const BETWEEN: u64 = 2000;
    let (pair, stack) = hosts(1)?;
    let listener = TcpListener::bind(&stack, "10.99.0.2:7")?;
    let shown = pair.right.ip("-j link show veth1")?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let text = shown[0]["address"].as_str().context("an address of veth1")?;
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(text, 16)?;
    }
    // The client's address is known before the flood: the kernel asks for the stack's here.
    drop((pair.left.enter(|| KernelStream::connect("10.99.0.2:7"))??, listener.accept()?));
    listener.set_nonblocking(true);
    let peer = pair.left.enter(|| KernelSocket::bind("[::]:9"))??;
    peer.set_read_timeout(Some(PATIENCE))?;
    let ours = UdpSocket::bind(&stack, "[fd99::2]:0")?;
    let raw = RawSocket::onlooker(pair.left_end())?;
    let is_over = AtomicBool::new(false);
    let flooded = AtomicU64::new(0);
    let worst = thread::scope(|scope| -> Result<Duration> {
        scope.spawn(|| {
            let mut random = Random(7);
            while !is_over.load(Ordering::Relaxed) {
                // A SYN that the kernel drops was none.
                let is_sent = raw.send(&syn(&mut random, mac)).is_ok();
                flooded.fetch_add(is_sent.into(), Ordering::Relaxed);
            }
        });
        let opened = || -> Result<Duration> {
            let mut worst = Duration::ZERO;
            for number in 1..=OPENED {
                let since = clock::now();
                while flooded.load(Ordering::Relaxed) < number * BETWEEN {
                    ensure!(since.elapsed() < PATIENCE, "the flood is held");
                    thread::yield_now();
                }
                let start = clock::now();
                let mut client = patient_kernel(pair.left.enter(|| KernelStream::connect("10.99.0.2:7"))??)?;
                client.write_all(b"honest")?;
                let server = loop {
                    match listener.accept() {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        accepted => break accepted?.0,
                    }
                    ensure!(start.elapsed() < PATIENCE, "it was not accepted: {:?}", client.take_error());
                    thread::yield_now();
                };
                patient(server)?.read_exact(&mut [0; 6])?;
                worst = worst.max(start.elapsed());
                if number % 5 == 0 {
                    let fresh = format!("fd99::1:{number}");
                    pair.left.ip(&format!("address add {fresh}/64 dev veth0 nodad"))?;
                    ours.send_to(b"fresh", format!("[{fresh}]:9"))?;
                    peer.recv(&mut [0; 5]).with_context(|| format!("nothing came to {fresh}"))?;
                }
            }
            Ok(worst)
        };
        let worst = opened();
        is_over.store(true, Ordering::Relaxed);
        worst
    })?;
    println!("    {} SYNs, the slowest of {OPENED} opened in {worst:?}", flooded.load(Ordering::Relaxed));
    require_timing!(worst < Duration::from_secs(1), "{worst:?} to open in a flood");
    ensure!(listener.replaced() > 0, "the flood was none");
    let books = stack.books()?;
    ensure!(books.balances, "{books:?}");
    Ok(stack.stop()?)
}

fn a_stream_through_a_limit_has_its_rate_and_loses_nothing() -> Result<()> {
    const LEN: usize = 5 << 19;
    const WARM: usize = 1 << 18;
    let pair = Pair::new(1)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    let stack = pair.right.enter(|| -> Result<Stack> {
        let stack = Stack::builder().address("10.99.0.2/24").rate("20mbit".parse()?);
        Ok(stack.guardian(weir_binary()?).open("veth1")?)
    })??;
    let listener = pair.left.enter(|| KernelListener::bind("10.99.0.1:7"))??;
    let ours = patient(TcpStream::connect(&stack, "10.99.0.1:7")?)?;
    let mut kernels = patient_kernel(listener.accept()?.0)?;
    let took = thread::scope(|scope| -> Result<Duration> {
        let sending = scope.spawn(|| send_all(&ours, WARM + LEN, || ours.shutdown(Shutdown::Write)));
        let mut buffer = vec![0; WARM];
        kernels.read_exact(&mut buffer)?;
        let start = clock::now();
        let (mut at, mut chunk) = (WARM, vec![0; 64 << 10]);
        loop {
            match kernels.read(&mut chunk)? {
                0 => break,
                len => at += chunk[..len].iter().zip(at..).filter(|&(&byte, at)| byte == byte_at(at)).count(),
            }
        }
        let took = start.elapsed();
        ensure!(at == WARM + LEN, "{at} bytes as they were sent");
        sending.join().expect("no panic")?;
        Ok(took)
    })?;
    // Full segments: of 1514 bytes of a frame 1460 are the stream's.
    let expected = LEN as f64 * 8.0 * 1514.0 / 1460.0 / 20e6;
    let ratio = took.as_secs_f64() / expected;
    println!("    {:.4} of the rate; throttled {} times", 1.0 / ratio, ours.counts().throttled);
    require_timing!((0.97..1.03).contains(&ratio), "{ratio:.4} of the time that the rate takes");
    ensure!(ours.counts().throttled > 0 && ours.counts().empty_wakes == 0, "{:?}", ours.counts());
    require_clean(&stack)
}

/// Two workers with two receive queues each: connections that either asks for have their answers, which come by its own queues; a socket
/// without a bucket hears all clients; and so again when the queues were taken a second time.
fn two_workers_have_their_flows_also_after_the_interface_was_down() -> Result<()> {
    const CONNECTIONS: usize = 12;
    let (pair, stack) = hosts_of(4, 2)?;
    ensure!(stack.workers() == 2, "{} workers", stack.workers());
    let refused = Stack::builder().address("10.99.0.3/24").workers(2).guardian(weir_binary()?);
    let refused = pair.right.enter(|| refused.open("lo"))?;
    let told = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(told.contains("receive queues"), "{told}");
    let listeners = ["10.99.0.1:8", "[fd99::1]:8"]
        .map(|address| -> Result<_> { Ok((address, pair.left.enter(|| KernelListener::bind(address))??)) });
    let listeners = listeners.into_iter().collect::<Result<Vec<_>>>()?;
    let server = UdpSocket::bind(&stack, "10.99.0.2:7")?;
    let to = "10.99.0.2:7".parse()?;
    let (echoed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let flows = |datagrams: u32| -> Result<()> {
        for (address, listener) in &listeners {
            for _ in 0..CONNECTIONS {
                let ours = patient(TcpStream::connect(&stack, address)?)?;
                both_ways(&ours, &patient_kernel(listener.accept()?.0)?, 1000)?;
            }
        }
        let clients = pair.left.enter(|| {
            (0..CLIENTS).map(|_| KernelSocket::bind("10.99.0.1:0")).collect::<Result<Vec<_>, _>>()
        })??;
        thread::scope(|scope| {
            let asking = clients.iter().map(|client| scope.spawn(move || ask(client, to, datagrams)));
            let threads: Vec<_> = asking.collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    };
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| echo(&server, &echoed, &is_over));
        let done = flows(500).and_then(|()| {
            pair.right.ip("link set veth1 down")?;
            pair.right.ip("link set veth1 up")?;
            wait_until("it is found again", PATIENCE, || {
                let mut ping = pair.left.command("ping");
                let pinged = run(ping.args(["-n", "-c", "1", "-W", "1", "10.99.0.2"]), PATIENCE)?;
                Ok(pinged.status.success())
            })?;
            flows(500)
        });
        is_over.store(true, Ordering::Relaxed);
        done
    })?;
    ensure!(echoed.load(Ordering::Relaxed) == 2 * 500 * u64::from(CLIENTS), "{echoed:?}");
    drop(server);
    stack.stop().map_err(Into::into)
}
