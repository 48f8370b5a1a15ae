//! QUIC by quinn on a path of Weir's: a server that sends back the bytes of its streams, and its client, on Weir's sockets or the kernel's.
//!
//! ```text
//! ip netns add client
//! ip link add veth-a type veth peer name eth0 netns client
//! ip link set veth-a up
//! ip -n client link set eth0 up
//! ip -n client address add 192.0.2.1/24 dev eth0
//! cargo run --release -p weir-socket --features quinn --example quic -- serve veth-a 192.0.2.2/24 4433 echo.der
//! ip netns exec client target/release/examples/quic ask --kernel 192.0.2.2:4433 echo.der 100000000
//! ```
//!
//! The server writes its certificate into a file, which the client trusts. Without `--kernel` the client has a stack of its own on an interface:
//! `quic ask eth0 192.0.2.3/24 192.0.2.2:4433 echo.der 100000000`. A stack needs root; Ctrl-C ends it, and its guardian puts the interface
//! back.

mod echo;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use echo::Outcome;
use quinn::Endpoint;
use weir_socket::{Stack, UdpSocket};

const BYTES: usize = 10_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["serve", interface, address, port, certificate] => serve([interface, address, port], certificate),
        ["ask", "--kernel", server, certificate, ref rest @ ..] => ask(None, server, certificate, rest),
        ["ask", interface, address, server, certificate, ref rest @ ..] => {
            ask(Some([interface, address]), server, certificate, rest)
        }
        _ => {
            eprintln!(
                "usage: quic serve INTERFACE ADDRESS/PREFIX PORT CERTIFICATE\n       \
                 quic ask --kernel SERVER:PORT CERTIFICATE [BYTES]\n       \
                 quic ask INTERFACE ADDRESS/PREFIX SERVER:PORT CERTIFICATE [BYTES]"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quic: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a task on a thread for each core.
fn run<T>(task: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(task)
}

/// A socket at this port of a stack of its own.
fn socket([interface, address, port]: [&str; 3]) -> io::Result<UdpSocket> {
    let stack = Stack::builder().address(address).open(interface)?;
    let host = address.split('/').next().unwrap_or_default();
    let port = port.parse().map_err(|_| io::Error::other(format!("`{port}` is no port")))?;
    UdpSocket::bind(&stack, (host, port))
}

fn serve(place: [&str; 3], certificate: &str) -> Outcome<()> {
    let (config, own) = echo::server()?;
    let socket = socket(place)?;
    std::fs::write(certificate, &own)?;
    run(async {
        let (endpoint, _) = echo::endpoint(socket, Some(config))?;
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                // A connection that fails is its client's matter.
                let Ok(connection) = incoming.await else { return };
                echo::echo(&connection).await;
                println!("{}", told(&connection));
            });
        }
        Ok(())
    })
}

fn ask(stack: Option<[&str; 2]>, server: &str, certificate: &str, rest: &[&str]) -> Outcome<()> {
    let server: SocketAddr = server.parse().map_err(|_| format!("`{server}` is no address and port"))?;
    let bytes = match rest {
        [] => BYTES,
        [bytes] => bytes.parse().map_err(|_| format!("`{bytes}` is no number of bytes"))?,
        _ => return Err("there is something behind the number of bytes".into()),
    };
    let config = echo::client(std::fs::read(certificate)?.into())?;
    run(async {
        let endpoint = match stack {
            Some([interface, address]) => echo::endpoint(socket([interface, address, "0"])?, None)?.0,
            None if server.is_ipv4() => Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?,
            None => Endpoint::client((Ipv6Addr::UNSPECIFIED, 0).into())?,
        };
        let connection = echo::connect(&endpoint, server, config).await?;
        echo::ask(&connection, bytes).await?;
        println!("{bytes} bytes came back; {}", told(&connection));
        connection.close(0_u32.into(), b"");
        endpoint.wait_idle().await;
        Ok(())
    })
}

/// The outcome of a connection, in words.
fn told(connection: &quinn::Connection) -> String {
    let path = connection.stats().path;
    format!(
        "{}: {} packets sent, {} lost, {} congestion events, {} bytes each",
        connection.remote_address(),
        path.sent_packets,
        path.lost_packets,
        path.congestion_events,
        path.current_mtu
    )
}
