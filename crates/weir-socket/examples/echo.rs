//! An echo server of UDP, with a thread for each bucket of flows, and of TCP, with one for each connection: `echo INTERFACE ADDRESS/PREFIX [PORT]`,
//! as root.
//!
//! ```text
//! ip netns add client
//! ip link add veth-a type veth peer name eth0 netns client
//! ip link set veth-a up
//! ip -n client link set eth0 up
//! ip -n client address add 192.0.2.1/24 dev eth0
//! ip address add 192.0.2.2/24 dev veth-a          # if the kernel is to have the address as well
//! cargo run --release -p weir-socket --example echo -- veth-a 192.0.2.2/24 7
//! ip netns exec client socat - UDP:192.0.2.2:7
//! ip netns exec client socat - TCP:192.0.2.2:7
//! ```
//!
//! Each thread has a socket of its own, and shares nothing with the others. A datagram goes back in the frame in which it came. Packets for other
//! ports go on to the kernel. Ctrl-C ends the server, and its guardian puts the interface back.

use std::io;
use std::process::ExitCode;
use std::thread;

use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};

/// Datagrams in one go.
const BATCH: usize = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (interface, address, port) = match &arguments[..] {
        [interface, address] => (interface, address, "7"),
        [interface, address, port] => (interface, address, port.as_str()),
        _ => {
            eprintln!("echo: give an interface, an address such as 192.0.2.2/24, and a port if it is not 7");
            return ExitCode::from(2);
        }
    };
    match serve(interface, address, port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(interface: &str, address: &str, port: &str) -> io::Result<()> {
    let stack = Stack::builder().address(address).open(interface)?;
    let host = address.split('/').next().unwrap_or_default();
    let sockets = (0..stack.buckets())
        .map(|bucket| UdpSocket::bind_bucket(&stack, format!("{host}:{port}"), bucket))
        .collect::<io::Result<Vec<_>>>()?;
    let listener = TcpListener::bind(&stack, format!("{host}:{port}"))?;
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                match stream {
                    // A connection that fails is its client's matter.
                    Ok(stream) => drop(scope.spawn(move || echo_stream(&stream))),
                    Err(error) => return eprintln!("echo: TCP: {error}"),
                }
            }
        });
        let threads: Vec<_> = sockets.iter().map(|socket| scope.spawn(move || echo(socket))).collect();
        // All threads end for the same reason.
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })
}

/// Sends back the bytes of a stream, to its end.
fn echo_stream(stream: &TcpStream) -> io::Result<u64> {
    io::copy(&mut &*stream, &mut &*stream)
}

/// Sends back all datagrams, for ever.
fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut batch = socket.datagrams(BATCH);
    loop {
        socket.recv_batch(&mut batch)?;
        while !batch.is_empty() {
            socket.send_batch(&mut batch)?;
        }
    }
}
