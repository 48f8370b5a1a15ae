//! A stack of `weir-socket` on an interface that is the kernel's too, at the same addresses: each has its own ports, also under a load of
//! echoes; a packet to a port that neither has is refused as ever; the stack connects out to addresses that it does not know; and when it
//! has gone, killed or not, the interface is as it was.

use std::io::{ErrorKind, Read, Write};
use std::net::{
    IpAddr, Shutdown, SocketAddr, SocketAddrV6, TcpListener as KernelListener, TcpStream as KernelStream,
    UdpSocket as KernelSocket,
};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::{self, wait_until};
use weir_lab::process::{Process, Signal, run};
use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};
use weir_tests::exchange::{PATIENCE, ask, echo, exchange};
use weir_tests::kernel::{require_same, traces};
use weir_tests::pair::Pair;
use weir_tests::{harness, privileged, weir_binary};

/// The addresses of both the kernel and the stack at the right end, and of the kernel at the left.
const SHARED: [&str; 2] = ["10.99.0.2", "fd99::2"];
const OTHERS: [&str; 2] = ["10.99.0.1", "fd99::1"];
/// The port where the stack echoes, and that of a server of the kernel's.
const ECHO: u16 = 7;
const SERVER: u16 = 2222;
const NOBODY: u16 = 9;
const DATAGRAMS: u32 = 2000;
const STREAM_BYTES: usize = 4 << 20;
/// The argument of this program when it is to be the one that is killed.
const CHILD: &str = "--open-and-wait";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(CHILD) {
        return open_and_wait();
    }
    harness::main(&[
        privileged!(each_answers_at_its_ports_under_load).flooding(),
        privileged!(a_port_is_the_ones_or_the_others).together(),
        privileged!(a_stack_connects_out_from_the_kernels_address).together(),
        privileged!(an_address_of_its_own_is_the_stacks_alone).together(),
        privileged!(who_comes_from_a_link_local_address_is_answered).together(),
        privileged!(both_go_on_after_the_interface_was_down).together(),
        privileged!(a_killed_stack_leaves_the_interface_as_it_was).together(),
    ])
}

/// Two hosts, with addresses of both families at both ends.
fn pair(queues: u32) -> Result<Pair> {
    let pair = Pair::new(queues)?;
    for (namespace, name, [v4, v6]) in [(&pair.left, "veth0", OTHERS), (&pair.right, "veth1", SHARED)] {
        namespace.ip(&format!("address add {v4}/24 dev {name}"))?;
        namespace.ip(&format!("address add {v6}/64 dev {name}"))?;
    }
    Ok(pair)
}

fn open(pair: &Pair, addresses: [&str; 2]) -> Result<Stack> {
    let [v4, v6] = addresses;
    pair.right.enter(|| -> Result<Stack> {
        let stack = Stack::builder().address(format!("{v4}/24")).address(format!("{v6}/64"));
        Ok(stack.guardian(weir_binary()?).open("veth1")?)
    })?
}

fn at(address: &str, port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

fn ping(pair: &Pair, address: &str, count: u32) -> Result<()> {
    // One at a time: ping waits for the last of several no longer than twice as long as the others took.
    for _ in 0..count {
        let mut ping = pair.left.command("ping");
        ping.args(["-n", "-q", "-W", "5", "-c", "1", address]);
        run(&mut ping, PATIENCE)?.success().context(address.to_string())?;
    }
    Ok(())
}

/// Requires that a datagram and a connection from the left are refused at a port where nobody is.
fn require_refused(pair: &Pair, to: SocketAddr) -> Result<()> {
    let socket = pair.left.enter(|| KernelSocket::bind(any(to)))??;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"anybody?")?;
    let refused = socket.recv(&mut [0; 8]).err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "UDP to {to}: {refused:?}");
    let refused = pair.left.enter(|| KernelStream::connect(to))?.err().map(|error| error.kind());
    ensure!(refused == Some(ErrorKind::ConnectionRefused), "TCP to {to}: {refused:?}");
    Ok(())
}

/// Any port of any address of a family.
fn any(of: SocketAddr) -> SocketAddr {
    let address: IpAddr = if of.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    SocketAddr::new(address, 0)
}

/// A stream both ways between two sockets of the kernel's.
fn kernels_talk(one: &KernelStream, other: &KernelStream) -> Result<()> {
    for stream in [one, other] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    let end = |stream: &KernelStream| stream.shutdown(Shutdown::Write);
    exchange((one, || end(one)), (other, || end(other)), STREAM_BYTES)
}

/// A stream both ways between a socket of the stack's and one of the kernel's.
fn stack_talks(ours: &TcpStream, kernels: &KernelStream, len: usize) -> Result<()> {
    ours.set_read_timeout(Some(PATIENCE))?;
    ours.set_write_timeout(Some(PATIENCE))?;
    kernels.set_read_timeout(Some(PATIENCE))?;
    kernels.set_write_timeout(Some(PATIENCE))?;
    exchange((ours, || ours.shutdown(Shutdown::Write)), (kernels, || kernels.shutdown(Shutdown::Write)), len)
}

fn each_answers_at_its_ports_under_load() -> Result<()> {
    let pair = pair(2)?;
    let before = traces(&pair.right)?;
    let stack = open(&pair, SHARED)?;
    // Packets that wait for an address are the kernel's to drop.
    SHARED.into_iter().try_for_each(|address| ping(&pair, address, 1))?;
    let to = SHARED.map(|address| at(address, ECHO).expect("an address"));
    let servers = to.map(|to| UdpSocket::bind(&stack, to).expect("a free port"));
    let listeners = to.map(|to| TcpListener::bind(&stack, to).expect("a free port"));
    let [is_checked, is_over] = [AtomicBool::new(false), AtomicBool::new(false)];
    let [echoed, rounds] = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| -> Result<()> {
        let mut clients = Vec::new();
        for (server, to) in servers.iter().zip(to) {
            scope.spawn(|| echo(server, &echoed, &is_over));
            let client = pair.left.enter(|| KernelSocket::bind(any(to)))??;
            let (rounds, is_checked) = (&rounds, &is_checked);
            clients.push(scope.spawn(move || -> Result<()> {
                while !is_checked.load(Ordering::Relaxed) {
                    ask(&client, to, DATAGRAMS)?;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }));
        }
        let checked = SHARED.iter().zip(OTHERS).try_for_each(|(address, other)| -> Result<()> {
            let start = clock::now();
            each_answers(&pair, &listeners, address, other).with_context(|| address.to_string())?;
            println!("    {address}: all of the kernel's and the stack's in {:?}", start.elapsed());
            Ok(())
        });
        is_checked.store(true, Ordering::Relaxed);
        let asked: Vec<_> = clients.into_iter().map(|client| client.join().expect("no panic")).collect();
        is_over.store(true, Ordering::Relaxed);
        checked?;
        asked.into_iter().collect()
    })?;
    let (echoed, rounds) = (echoed.into_inner(), rounds.into_inner());
    println!("    {echoed} echoes meanwhile");
    ensure!(rounds > 0 && echoed == rounds * u64::from(DATAGRAMS), "{echoed} echoes in {rounds} rounds");
    let books = stack.books()?;
    let lost: Vec<_> = books.dropped.occurred().filter(|(reason, _)| reason.name() != "no-handler").collect();
    ensure!(books.balances && lost.is_empty(), "{lost:?} {books:?}");
    stack.stop()?;
    drop((servers, listeners));
    require_same(&before, &traces(&pair.right)?)?;
    ping(&pair, SHARED[0], 1)
}

/// Requires answers of the kernel's sockets at an address, both ways, and of a stream of the stack's.
fn each_answers(pair: &Pair, listeners: &[TcpListener; 2], address: &str, other: &str) -> Result<()> {
    ping(pair, address, 50)?;
    // A server of the kernel's at the shared address, and a client of it there.
    let server = at(address, SERVER)?;
    let listener = pair.right.enter(|| KernelListener::bind(server))??;
    let client = pair.left.enter(|| KernelStream::connect(server))??;
    kernels_talk(&client, &listener.accept()?.0)?;
    let beyond = at(other, SERVER)?;
    let listener = pair.left.enter(|| KernelListener::bind(beyond))??;
    let client = pair.right.enter(|| KernelStream::connect(beyond))??;
    kernels_talk(&client, &listener.accept()?.0)?;
    let socket = pair.right.enter(|| KernelSocket::bind(server))??;
    let client = pair.left.enter(|| KernelSocket::bind(any(server)))??;
    thread::scope(|scope| -> Result<()> {
        let echoing = scope.spawn(|| -> Result<()> {
            socket.set_read_timeout(Some(PATIENCE))?;
            let mut payload = [0; 2048];
            for _ in 0..DATAGRAMS {
                let (len, from) = socket.recv_from(&mut payload)?;
                socket.send_to(&payload[..len], from)?;
            }
            Ok(())
        });
        ask(&client, server, DATAGRAMS)?;
        echoing.join().expect("no panic")
    })?;
    require_refused(pair, at(address, NOBODY)?)?;
    let to = at(address, ECHO)?;
    let client = pair.left.enter(|| KernelStream::connect(to))??;
    let listener = &listeners[usize::from(to.is_ipv6())];
    stack_talks(&listener.accept()?.0, &client, STREAM_BYTES)
}

fn a_port_is_the_ones_or_the_others() -> Result<()> {
    let pair = pair(1)?;
    let stack = open(&pair, SHARED)?;
    let in_use = |what: &str, error: Option<ErrorKind>| -> Result<()> {
        ensure!(error == Some(ErrorKind::AddrInUse), "{what}: {error:?}");
        Ok(())
    };
    for address in SHARED {
        let to = at(address, ECHO)?;
        // The kernel's port is in use for the stack.
        let kernels = pair.right.enter(|| (KernelSocket::bind(to), KernelListener::bind(to)))?;
        let (udp, tcp) = (kernels.0?, kernels.1?);
        in_use("UDP of the kernel's", UdpSocket::bind(&stack, to).err().map(|error| error.kind()))?;
        in_use("TCP of the kernel's", TcpListener::bind(&stack, to).err().map(|error| error.kind()))?;
        drop((udp, tcp));
        // The stack's port is in use for the kernel, for each of the sockets at one port until the last has gone.
        let buckets = [0, 1].map(|bucket| UdpSocket::bind_bucket(&stack, to, bucket).expect("a free port"));
        let listener = TcpListener::bind(&stack, to)?;
        let binds = || pair.right.enter(|| (KernelSocket::bind(to).err(), KernelListener::bind(to).err()));
        let [first, second] = buckets;
        drop(first);
        let (udp, tcp) = binds()?;
        in_use("UDP of the stack's", udp.map(|error| error.kind()))?;
        in_use("TCP of the stack's", tcp.map(|error| error.kind()))?;
        // A connection outlives its listener, and keeps the port.
        let mut client = pair.left.enter(|| KernelStream::connect(to))??;
        let mut accepted = listener.accept()?.0;
        accepted.set_read_timeout(Some(PATIENCE))?;
        drop((second, listener));
        ensure!(binds()?.0.is_none(), "a closed UDP port is free");
        in_use("TCP of a connection", binds()?.1.map(|error| error.kind()))?;
        client.write_all(b"still here")?;
        drop(client);
        let mut came = Vec::new();
        accepted.read_to_end(&mut came)?;
        ensure!(came == b"still here", "{came:?}");
        drop(accepted);
        wait_until("the port is the kernel's again", PATIENCE, || Ok(binds()?.1.is_none()))?;
        require_refused(&pair, to)?;
        // Any port is one that the kernel has not given away.
        let any_port = UdpSocket::bind(&stack, at(address, 0)?)?.local_addr().port();
        let kernels = pair.right.enter(|| KernelSocket::bind((address, any_port + 1)))??;
        let next = UdpSocket::bind(&stack, at(address, 0)?)?.local_addr().port();
        ensure!(next > any_port && Some(next) != kernels.local_addr().ok().map(|own| own.port()), "{next}");
    }
    Ok(stack.stop()?)
}

fn a_stack_connects_out_from_the_kernels_address() -> Result<()> {
    let pair = pair(1)?;
    let stack = open(&pair, SHARED)?;
    for (address, other) in SHARED.into_iter().zip(OTHERS) {
        // Nobody at this end knows the MAC of that address.
        let known = pair.right.ip(&format!("neigh show {other} dev veth1"))?;
        ensure!(!known.contains("lladdr"), "{known}");
        let beyond = at(other, SERVER)?;
        let listener = pair.left.enter(|| KernelListener::bind(beyond))??;
        let ours = TcpStream::connect(&stack, beyond)?;
        let (theirs, from) = listener.accept()?;
        ensure!(from.ip() == address.parse::<IpAddr>()?, "{from}");
        stack_talks(&ours, &theirs, STREAM_BYTES)?;
        let refused = TcpStream::connect(&stack, at(other, NOBODY)?).err().map(|error| error.kind());
        ensure!(refused == Some(ErrorKind::ConnectionRefused), "TCP: {refused:?}");
        let socket = UdpSocket::bind(&stack, at(address, 0)?)?;
        socket.connect(at(other, NOBODY)?)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(b"anybody?")?;
        let refused = socket.recv(&mut [0; 8]).err().map(|error| error.kind());
        ensure!(refused == Some(ErrorKind::ConnectionRefused), "UDP: {refused:?}");
        ping(&pair, address, 1)?;
    }
    Ok(stack.stop()?)
}

fn an_address_of_its_own_is_the_stacks_alone() -> Result<()> {
    const OWN: [&str; 2] = ["10.99.0.3", "fd99::3"];
    let pair = pair(1)?;
    let stack = open(&pair, OWN)?;
    for (own, kernels) in OWN.into_iter().zip(SHARED) {
        let server = UdpSocket::bind(&stack, at(own, ECHO)?)?;
        // The kernel has the same port of its own address.
        let sockets = pair.right.enter(|| KernelSocket::bind((kernels, ECHO)))??;
        sockets.set_read_timeout(Some(PATIENCE))?;
        server.set_read_timeout(Some(PATIENCE))?;
        let client = pair.left.enter(|| KernelSocket::bind(any(at(own, 0)?)).context("a socket"))??;
        for (to, word) in [(own, b"stack!"), (kernels, b"kernel")] {
            client.send_to(word, at(to, ECHO)?)?;
        }
        let mut came = [0; 6];
        server.recv(&mut came)?;
        ensure!(came == *b"stack!", "{came:?}");
        sockets.recv(&mut came)?;
        ensure!(came == *b"kernel", "{came:?}");
        for address in [own, kernels] {
            ping(&pair, address, 3)?;
            require_refused(&pair, at(address, NOBODY)?)?;
        }
    }
    Ok(stack.stop()?)
}

/// Both ends have their link-local addresses of themselves; that of the right end is the kernel's and the stack's.
fn who_comes_from_a_link_local_address_is_answered() -> Result<()> {
    let pair = pair(1)?;
    let stack = open(&pair, SHARED)?;
    let shown = pair.right.ip("-6 -o address show dev veth1 scope link")?;
    let own = shown.split_whitespace().nth(3).and_then(|own| own.split('/').next()).context(shown.clone())?;
    let links = pair.left.ip("-o link show dev veth0")?;
    let ifindex = links.split(':').next().context("a number")?.parse()?;
    let to = SocketAddrV6::new(own.parse()?, ECHO, 0, ifindex);
    let (server, listener) = (UdpSocket::bind(&stack, "[::]:7")?, TcpListener::bind(&stack, "[::]:7")?);
    server.set_read_timeout(Some(PATIENCE))?;
    let client = pair.left.enter(|| KernelSocket::bind("[::]:0"))??;
    client.set_read_timeout(Some(PATIENCE))?;
    client.connect(to)?;
    client.send(b"word")?;
    let mut came = [0; 4];
    let (_, from) = server.recv_from(&mut came)?;
    server.send_to(&came, from)?;
    client.recv(&mut came)?;
    ensure!(came == *b"word", "{came:?}");
    let theirs = pair.left.enter(|| KernelStream::connect_timeout(&to.into(), PATIENCE))??;
    stack_talks(&listener.accept()?.0, &theirs, STREAM_BYTES)?;
    Ok(stack.stop()?)
}

fn both_go_on_after_the_interface_was_down() -> Result<()> {
    let pair = pair(1)?;
    let stack = open(&pair, SHARED)?;
    let [to, server] = [at(SHARED[0], ECHO)?, at(SHARED[0], SERVER)?];
    let listener = TcpListener::bind(&stack, to)?;
    let ours = (pair.left.enter(|| KernelStream::connect(to))??, listener.accept()?.0);
    let listener = pair.right.enter(|| KernelListener::bind(server))??;
    let kernels = (pair.left.enter(|| KernelStream::connect(server))??, listener.accept()?.0);
    for _ in 0..3 {
        pair.right.ip("link set veth1 down")?;
        // A segment that is sent while it is down is sent again.
        (&ours.0).write_all(b"word")?;
        (&kernels.0).write_all(b"word")?;
        pair.right.ip("link set veth1 up")?;
        let mut came = [0; 4];
        ours.1.set_read_timeout(Some(PATIENCE))?;
        (&ours.1).read_exact(&mut came).context("the stack's connection")?;
        kernels.1.set_read_timeout(Some(PATIENCE))?;
        (&kernels.1).read_exact(&mut came).context("the kernel's connection")?;
    }
    stack_talks(&ours.1, &ours.0, STREAM_BYTES)?;
    kernels_talk(&kernels.1, &kernels.0)?;
    ping(&pair, SHARED[0], 1)?;
    Ok(stack.stop()?)
}

/// The process that [`a_killed_stack_leaves_the_interface_as_it_was`] starts and kills.
fn open_and_wait() -> ExitCode {
    let serve = || -> Result<()> {
        let stack = Stack::builder().address("10.99.0.2/24").guardian(weir_binary()?).open("veth1")?;
        let listener = TcpListener::bind(&stack, "10.99.0.2:7")?;
        let socket = UdpSocket::bind(&stack, "10.99.0.2:7")?;
        println!("ready");
        let mut stream = listener.accept()?.0;
        stream.write_all(b"x")?;
        loop {
            socket.recv(&mut [0; 8])?;
        }
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn a_killed_stack_leaves_the_interface_as_it_was() -> Result<()> {
    let pair = pair(2)?;
    let before = [traces(&pair.left)?, traces(&pair.right)?];
    // A connection of the kernel's goes on without the stack.
    let server = at(SHARED[0], SERVER)?;
    let listener = pair.right.enter(|| KernelListener::bind(server))??;
    let mut client = pair.left.enter(|| KernelStream::connect(server))??;
    let mut ssh = listener.accept()?.0;
    for stream in [&client, &ssh] {
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    let mut goes_on = |what: &str| -> Result<()> {
        let mut came = [0; 4];
        client.write_all(b"ping")?;
        ssh.read_exact(&mut came).with_context(|| what.to_string())?;
        ssh.write_all(&came)?;
        client.read_exact(&mut came).with_context(|| what.to_string())
    };
    goes_on("before")?;
    let mut command = pair.right.command(std::env::current_exe()?);
    let mut process = Process::spawn(command.arg(CHILD))?;
    process.wait_for_output("ready", PATIENCE)?;
    goes_on("beside the stack")?;
    let to = at(SHARED[0], ECHO)?;
    let mut served = pair.left.enter(|| KernelStream::connect(to))??;
    served.set_read_timeout(Some(PATIENCE))?;
    served.read_exact(&mut [0; 1])?;
    process.signal(Signal::KILL)?;
    process.wait(PATIENCE)?;
    wait_until("the interface is as it was", PATIENCE, || {
        let after = [traces(&pair.left)?, traces(&pair.right)?];
        Ok(before == after)
    })
    .or_else(|late| {
        require_same(&before[0], &traces(&pair.left)?)?;
        require_same(&before[1], &traces(&pair.right)?)?;
        Err(late)
    })?;
    goes_on("after it was killed")?;
    require_refused(&pair, to)?;
    ping(&pair, SHARED[0], 1)
}
