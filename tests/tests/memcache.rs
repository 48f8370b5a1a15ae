//! The key-value server on a veth, asked by sockets of the kernel at the other end: libmemcached's own test of servers passes over TCP;
//! with two workers nothing is lost or comes out of order, over UDP and TCP, and their books are exact; over UDP a key set by one flow is
//! read by flows of every bucket, and no reply of a flood of multi-gets behind a limit is lost.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket as KernelSocket};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_core::rate::Rate;
use weir_lab::bed::{End, Namespace, veth};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal, run};
use weir_memcache::server::{Memcache, MemcacheSettings};
use weir_socket::{Stack, StackBuilder};
use weir_tests::pair::{Pair, json_of};
use weir_tests::{harness, privileged, weir_binary};

const SERVER: &str = "10.99.0.2:11211";
const PATIENCE: Duration = Duration::from_secs(20);
const BUCKETS: usize = 4;
/// Replies of a client on their way: as many as its socket has room for.
const WINDOW: u16 = 2;
const REQUESTS: u16 = 60;
const VALUE_BYTES: usize = 1000;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(libmemcached_finds_it_capable).together(),
        privileged!(a_key_set_by_one_flow_is_read_by_flows_of_every_bucket).together(),
        privileged!(multi_gets_behind_a_limit_lose_no_reply).flooding(),
        privileged!(two_workers_lose_nothing_and_keep_order).flooding(),
        privileged!(long_replies_go_by_a_narrower_way).together(),
        privileged!(the_program_says_what_is_wrong_and_which_port_it_has).together(),
    ])
}

/// The kernel's host at the left end of a pair, the server at the right one, until `ask` returns.
fn with_server(rate: Option<Rate>, ask: impl FnOnce(&Pair, &Stack) -> Result<()>) -> Result<()> {
    let shape = |builder: StackBuilder| rate.into_iter().fold(builder, StackBuilder::rate);
    with_workers(1, |builder| shape(builder.bucket_bits(BUCKETS.ilog2())), ask)
}

/// The hosts of [`with_server`], with a stack of so many workers and as many receive queues.
fn with_workers(
    workers: usize,
    shape: impl FnOnce(StackBuilder) -> StackBuilder,
    ask: impl FnOnce(&Pair, &Stack) -> Result<()>,
) -> Result<()> {
    let pair = Pair::new(workers as u32)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    let builder = shape(Stack::builder().address("10.99.0.2/24").workers(workers)).guardian(weir_binary()?);
    let stack = pair.right.enter(|| builder.open("veth1"))??;
    // Packets that wait for an address are the kernel's to drop.
    run(pair.left.command("ping").args(["-n", "-c", "1", "-W", "5", "10.99.0.2"]), PATIENCE)?.success()?;
    let settings = MemcacheSettings {
        address: SERVER.parse()?,
        limit_bytes: 64 << 20,
        value_bytes_max: 1 << 20,
        connections: 32,
    };
    let server = Memcache::bind(&stack, settings)?;
    thread::scope(|scope| {
        let server = scope.spawn(|| server.serve());
        let asked = ask(&pair, &stack);
        stack.stop()?;
        server.join().expect("no panic")?;
        asked
    })
}

fn client(pair: &Pair, port: u16) -> Result<KernelSocket> {
    let socket = pair.left.enter(|| KernelSocket::bind(("10.99.0.1", port)))??;
    socket.connect(SERVER)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn send(socket: &KernelSocket, id: u16, text: &str) -> Result<()> {
    let datagram = [&id.to_be_bytes(), [0, 0, 0, 1, 0, 0].as_slice(), text.as_bytes()].concat();
    socket.send(&datagram)?;
    Ok(())
}

/// The next datagram's request id, whether it is the last of its reply, and its text.
fn receive(socket: &KernelSocket) -> Result<(u16, bool, Vec<u8>)> {
    let mut buffer = [0; 1500];
    let len = socket.recv(&mut buffer).context("a reply")?;
    let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
    Ok((word(0), word(2) + 1 == word(4), buffer[8..len].to_vec()))
}

fn ask(socket: &KernelSocket, text: &str) -> Result<String> {
    send(socket, 1, text)?;
    let mut reply = Vec::new();
    loop {
        let (_, is_last, part) = receive(socket)?;
        reply.extend(part);
        if is_last {
            return Ok(String::from_utf8(reply)?);
        }
    }
}

/// Every test of the text protocol that `memccapable` has.
fn libmemcached_finds_it_capable() -> Result<()> {
    with_server(None, |pair, _| {
        let mut capable = pair.left.command("memccapable");
        let done =
            run(capable.args(["-h", "10.99.0.2", "-p", "11211", "-a", "-t", "20"]), PATIENCE)?.success()?;
        let passed = done.stdout.matches("[pass]").count();
        ensure!(passed == 27 && !done.stdout.contains("[FAIL]"), "{passed} passed: {}", done.stdout);
        Ok(())
    })
}

fn a_key_set_by_one_flow_is_read_by_flows_of_every_bucket() -> Result<()> {
    with_server(None, |pair, stack| {
        let first = client(pair, 4000)?;
        for key in 0..32 {
            let stored = ask(&first, &format!("set key{key} 5 0 2\r\n{key:02}\r\n"))?;
            ensure!(stored == "STORED\r\n", "{stored}");
        }
        let keys: Vec<String> = (0..32).map(|key| format!("key{key}")).collect();
        let wanted: String = (0..32).map(|key| format!("VALUE key{key} 5 2\r\n{key:02}\r\n")).collect();
        let mut buckets = HashSet::new();
        for port in 4001..4200 {
            let other = client(pair, port)?;
            buckets.insert(stack.bucket_of(other.local_addr()?, SERVER.parse()?));
            let found = ask(&other, &format!("get {}\r\n", keys.join(" ")))?;
            ensure!(found == format!("{wanted}END\r\n"), "from port {port}: {found}");
            if buckets.len() == BUCKETS {
                return Ok(());
            }
        }
        anyhow::bail!("200 flows fell into the buckets {buckets:?} alone")
    })
}

/// Each client asks for 10 kB at a time, more than the limit lets pass, and never for more than its own socket has room for.
fn multi_gets_behind_a_limit_lose_no_reply() -> Result<()> {
    let rate = Rate::from_bits_per_s(50_000_000).context("not 0")?;
    with_server(Some(rate), |pair, stack| {
        let clients = (0..8).map(|number| client(pair, 4000 + number)).collect::<Result<Vec<_>>>()?;
        let value = "v".repeat(VALUE_BYTES);
        for key in 0..10 {
            let stored = ask(&clients[0], &format!("set key{key} 0 0 {VALUE_BYTES}\r\n{value}\r\n"))?;
            ensure!(stored == "STORED\r\n", "{stored}");
        }
        let keys: Vec<String> = (0..10).map(|key| format!("key{key}")).collect();
        let get = format!("get {}\r\n", keys.join(" "));
        let reply_bytes = 10 * ("VALUE key0 0 1000\r\n\r\n".len() + VALUE_BYTES) + "END\r\n".len();
        let flood = |socket: &KernelSocket| -> Result<()> {
            (0..WINDOW).try_for_each(|id| send(socket, id, &get))?;
            let (mut sent, mut done, mut bytes) = (WINDOW, 0, vec![0; usize::from(REQUESTS)]);
            while done < REQUESTS {
                let (id, _, part) = receive(socket)?;
                bytes[usize::from(id)] += part.len();
                if bytes[usize::from(id)] == reply_bytes {
                    done += 1;
                    if sent < REQUESTS {
                        send(socket, sent, &get)?;
                        sent += 1;
                    }
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = clients.iter().map(|socket| scope.spawn(|| flood(socket))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let books = stack.books()?;
        let lost: Vec<_> =
            books.dropped.occurred().filter(|(reason, _)| reason.name() != "no-handler").collect();
        ensure!(books.balances && lost.is_empty(), "{books:?}");
        Ok(())
    })
}

/// Eight clients over UDP and eight over TCP, each of which counts a key of its own up and has to find each count, in order.
fn two_workers_lose_nothing_and_keep_order() -> Result<()> {
    const CLIENTS: u16 = 8;
    const COUNTS: u32 = 400;
    let shape = |builder: StackBuilder| builder.bucket_bits(1).connections(32);
    with_workers(2, shape, |pair, stack| {
        let counted = |reply: &str, count: u32| -> Result<()> {
            ensure!(reply == format!("{count}\r\n"), "{reply:?}, not {count}");
            Ok(())
        };
        let by_datagrams = |port: u16| -> Result<()> {
            let socket = client(pair, port)?;
            let stored = ask(&socket, &format!("set udp{port} 0 0 1\r\n0\r\n"))?;
            ensure!(stored == "STORED\r\n", "{stored}");
            let mut next = 1;
            // Two under way: their replies come in their order.
            send(&socket, 1, &format!("incr udp{port} 1\r\n"))?;
            while next <= COUNTS {
                if next < COUNTS {
                    send(&socket, next as u16 + 1, &format!("incr udp{port} 1\r\n"))?;
                }
                let (id, is_last, text) = receive(&socket)?;
                ensure!(u32::from(id) == next && is_last, "reply {id}, not {next}");
                counted(&String::from_utf8(text)?, next)?;
                next += 1;
            }
            Ok(())
        };
        let by_stream = |port: u16| -> Result<()> {
            let mut stream = pair.left.enter(|| TcpStream::connect(SERVER))??;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut line = |text: String, wanted: &str| -> Result<()> {
                stream.write_all(text.as_bytes())?;
                let mut reply = vec![0; wanted.len()];
                stream.read_exact(&mut reply)?;
                ensure!(reply == wanted.as_bytes(), "{:?}, not {wanted:?}", String::from_utf8_lossy(&reply));
                Ok(())
            };
            line(format!("set tcp{port} 0 0 1\r\n0\r\n"), "STORED\r\n")?;
            (1..=COUNTS).try_for_each(|count| line(format!("incr tcp{port} 1\r\n"), &format!("{count}\r\n")))
        };
        let stat =
            |arguments: &[&str]| run(Command::new(weir_binary()?).arg("stat").args(arguments), PATIENCE);
        let stack_of = || -> Result<serde_json::Value> {
            let all = json_of(&stat(&["--json"])?.success()?.stdout)?;
            let own = |stack: &&serde_json::Value| stack["process"]["pid"] == std::process::id();
            let stacks = all["topologies"].as_array().into_iter().flatten();
            stacks.into_iter().find(own).cloned().context("it is told")
        };
        let name = stack_of()?["name"].as_str().context("a name")?.to_string();
        thread::scope(|scope| {
            let udp = (0..CLIENTS).map(|number| scope.spawn(move || by_datagrams(4000 + number)));
            let tcp = (0..CLIENTS).map(|number| scope.spawn(move || by_stream(number)));
            let threads: Vec<_> = udp.chain(tcp).collect();
            // Exact while packets move, too.
            let checked = stat(&[&name, "--check"])?.success()?;
            ensure!(checked.stdout.contains("conservation holds"), "{}", checked.stdout);
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let mut told = serde_json::Value::Null;
        wait_until("all is told as delivered", PATIENCE, || {
            told = stack_of()?;
            Ok(told["sockets"].as_array().is_some_and(|all| all.iter().all(|one| one["held"] == 0)))
        })?;
        let (out, sockets) = (told["classes"].as_array(), told["sockets"].as_array());
        let of_worker = |worker: usize| {
            let name = format!("->veth1/{worker}");
            out?.iter().find(|class| class["name"] == *name)?["delivered"].as_u64()
        };
        for worker in 0..2 {
            // Both workers have clients with fixed ports.
            ensure!(of_worker(worker) > Some(1000), "worker {worker} sent {:?}: {told}", of_worker(worker));
        }
        let sum = |field: &str| -> Result<u64> {
            let of = sockets.context("sockets")?.iter().map(|socket| socket[field].as_u64());
            of.sum::<Option<u64>>().with_context(|| format!("{field} of {told}"))
        };
        let datagrams = u64::from(CLIENTS) * (u64::from(COUNTS) + 1);
        ensure!((sum("delivered")?, sum("sent")?) == (datagrams, datagrams), "{told}");
        let checked = stat(&[&name, "--check"])?.success()?;
        ensure!(checked.stdout.contains("conservation holds"), "{}", checked.stdout);
        ensure!(!checked.stdout.contains("is not up"), "both workers have the interface: {}", checked.stdout);
        let books = stack.books()?;
        let lost: Vec<_> =
            books.dropped.occurred().filter(|(reason, _)| reason.name() != "no-handler").collect();
        ensure!(books.balances && lost.is_empty(), "{books:?}");
        Ok(())
    })
}

/// The link of a client behind a router takes less than the server's: a reply that is too long for it is lost once, and not when it is asked for
/// again. So it is with one socket, and with one for each bucket of flows.
fn long_replies_go_by_a_narrower_way() -> Result<()> {
    (0..2).try_for_each(long_replies_to_buckets)
}

fn long_replies_to_buckets(bits: u32) -> Result<()> {
    let shape = |builder: StackBuilder| builder.bucket_bits(bits).gateway("10.99.0.1");
    with_workers(1 << bits, shape, |pair, _| {
        let far = Namespace::new("far")?;
        let ends = [(&pair.left, "narrow0", 1), (&far, "narrow1", 2)];
        let [near_end, far_end] = ends.map(|(namespace, name, _)| End { namespace, name });
        veth(1, near_end, far_end, 1)?;
        for (namespace, name, side) in ends {
            namespace.ip(&format!("link set {name} mtu 1300"))?;
            namespace.ip(&format!("address add 10.99.1.{side}/24 dev {name}"))?;
        }
        far.ip("route add default via 10.99.1.1")?;
        pair.left.sh("sysctl -q -w net.ipv4.ip_forward=1")?;
        let socket = far.enter(|| KernelSocket::bind("10.99.1.2:4000"))??;
        socket.connect(SERVER)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let value = "v".repeat(1200);
        for command in ["set", "append", "append"] {
            let stored = ask(&socket, &format!("{command} key 0 0 1200\r\n{value}\r\n"))?;
            ensure!(stored == "STORED\r\n", "{stored}");
        }
        let reply_bytes = "VALUE key 0 3600\r\n\r\nEND\r\n".len() + 3600;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut next = 1;
        wait_until("a long reply comes", PATIENCE, || {
            let (mut bytes, id) = (0, next);
            next += 1;
            send(&socket, id, "get key\r\n")?;
            // The parts of a reply that are short enough come, though others are lost.
            while let Ok((of, _, part)) = receive(&socket) {
                bytes += if of == id { part.len() } else { 0 };
                if bytes == reply_bytes {
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        ensure!(next < 10, "it came after {next} questions");
        Ok(())
    })
}

/// Each wrong argument gets one sentence, of the fault and the remedy; a port that the program chooses is printed, and one client too many is told
/// so.
fn the_program_says_what_is_wrong_and_which_port_it_has() -> Result<()> {
    let pair = Pair::new(1)?;
    pair.left.ip("address add 10.99.0.1/24 dev veth0")?;
    let weir = weir_binary()?;
    let program = weir.with_file_name("weir-memcache");
    ensure!(program.is_file(), "there is no {}: run `make build`", program.display());
    let start = |arguments: &str| -> Command {
        let mut command = pair.right.command("env");
        command.arg("--default-signal").arg(&program).arg("veth1").args(arguments.split(' '));
        command.arg("--weir").arg(&weir);
        command
    };
    for (arguments, told) in [
        ("10.99.0.0/24", "10.99.0.0 is the network 10.99.0.0/24 itself: write an address in it"),
        ("10.99.0.255/24", "10.99.0.255 is the broadcast address of 10.99.0.0/24: write another"),
        ("10.99.0.2", "10.99.0.2 is without the length of its network's prefix"),
        (
            "10.99.0.2/24 --gateway 10.98.0.1",
            "the gateway 10.98.0.1 is in no network of the stack, which has 10.99.0.0/24",
        ),
        ("10.99.0.2/24 --gateway 10.99.0.2", "10.99.0.2 is the stack's own address"),
    ] {
        let done = run(&mut start(arguments), PATIENCE)?;
        let is_one = done.stderr.lines().count() == 1 && done.stderr.contains(told);
        ensure!(done.status.code() == Some(1) && is_one, "{arguments}: {}", done.stderr);
    }
    let mut server = Process::spawn(&mut start("10.99.0.2/24 -p 0 -t 1 -c 1"))?;
    server.wait_for_output("with receive queues", PATIENCE)?;
    let text = server.stdout();
    let address = text.split(' ').next().context("an address")?.to_string();
    ensure!(address.starts_with("10.99.0.2:") && !address.ends_with(":0"), "{text}");
    let connect = || -> Result<TcpStream> {
        let stream = pair.left.enter(|| TcpStream::connect(&address))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    let mut first = connect()?;
    let mut reply = [0; 5];
    first.write_all(b"get key\r\n")?;
    first.read_exact(&mut reply)?;
    ensure!(&reply == b"END\r\n", "{reply:?}");
    let mut told = String::new();
    connect()?.read_to_string(&mut told)?;
    ensure!(told == "ERROR Too many open connections\r\n", "{told:?}");
    server.signal(Signal::INT)?;
    server.wait(PATIENCE).map(drop)
}
