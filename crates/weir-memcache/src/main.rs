//! `weir-memcache`: a key-value server that speaks memcached's text protocol over TCP and UDP, on a stack of its own, beside the kernel's.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use weir_memcache::server::{Memcache, MemcacheSettings, SPARE_CONNECTIONS};
use weir_memcache::store::{ITEM_BYTES, KEY_BYTES_MAX};
use weir_run::own_address::parse_address;
use weir_socket::Stack;

/// A key-value server that speaks memcached's text protocol over TCP and UDP, on a Weir stack.
///
/// The server has its port of an address, which may be one that the kernel has on that interface; all else that comes, ssh for instance, goes
/// on to the kernel. A worker answers each bucket of flows; a key has one
/// home worker, whichever is asked, so nothing is locked. A full buffer holds back whoever fills it, so no reply is lost to one.
#[derive(Parser)]
#[command(name = "weir-memcache", version, after_help = EXAMPLES)]
struct Arguments {
    /// The end of a veth pair that its clients are behind
    interface: String,
    /// Its address there, with the network's prefix: the kernel's or one of its own
    #[arg(value_name = "ADDRESS/PREFIX")]
    address: String,
    /// The port; 0 for one that is free, which is printed
    #[arg(short = 'p', long, default_value_t = 11211)]
    port: u16,
    /// The memory that all items together may take, in MiB; the least recently used are evicted. Long replies on their way take up to 256 MiB beside them
    /// (four times --value-bytes-max if that is more); a get that finds no room there is answered by an error. Values of more than 64 KiB that have come
    /// in part take up to as much again; one that finds no room is answered by an error, and not stored
    #[arg(short = 'm', long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    memory_mib: u32,
    /// The longest value, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=128 << 20))]
    value_bytes_max: u32,
    /// Worker threads, each with a bucket of flows and a share of -m: 1, 2, 4, 8 or 16; the processors, rounded down, if not given. Each has
    /// receive queues of its own, if the interface has as many; otherwise as many threads as it has serve the others
    #[arg(short = 't', long, value_name = "N", value_parser = power_of_two)]
    threads: Option<u32>,
    /// The most TCP connections at once. Whoever comes then is told so and closed, and counted: `rejected_connections` of `stats`. Those who come
    /// faster than they are told are refused by TCP, and counted by `weir stat`. A client that says nothing for 30 s is asked by TCP whether it is
    /// still there, and so on; one that has not answered for 120 s is gone, and its place is free
    #[arg(short = 'c', long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=CONNECTIONS_MAX))]
    connections: u16,
    /// The program weir, whose guardian puts the interface back if this process is killed; the one in PATH if not given
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// The next hop for what is not in its network
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<String>,
}

/// The time without a word from a client after which TCP asks it for a sign of life, in seconds; it is given up after four such times. memcached leaves
/// both to the kernel (`SO_KEEPALIVE`), whose two hours are too long where all places may be those of clients that have vanished.
const KEEPALIVE_S: u16 = 30;
/// The most connections of clients: the stack has the spare ones beside them.
const CONNECTIONS_MAX: i64 = (u16::MAX - SPARE_CONNECTIONS) as i64;
/// The most threads: between each two of them there are rings.
const THREADS_MAX: u32 = 16;

const EXAMPLES: &str = "Example, as root:
  ip netns add client
  ip link add veth-a type veth peer name eth0 netns client
  ip link set veth-a up
  ip -n client link set eth0 up
  ip -n client address add 192.0.2.1/24 dev eth0
  weir-memcache veth-a 192.0.2.2/24 -m 64

Ctrl-C ends it, and its guardian puts the interface back. What is stored is gone then.

Who can send to it over UDP can make it answer to a forged address: give it
an interface that only its clients reach.";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-memcache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    let host = parse_address(&arguments.address).map_err(invalid)?.address().into();
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX as usize);
    let bucket_bits = arguments.threads.unwrap_or(processors as u32).ilog2();
    let builder = Stack::builder().address(&arguments.address).bucket_bits(bucket_bits);
    let queues_bits = Stack::workers_max(&arguments.interface)?.ilog2().min(bucket_bits);
    let builder = builder.workers(1 << queues_bits);
    let mut builder = builder
        .connections(arguments.connections + SPARE_CONNECTIONS)
        .tcp_keepalive_s(KEEPALIVE_S)
        .sockets(1 << bucket_bits);
    if let Some(weir) = &arguments.weir {
        builder = builder.guardian(weir);
    }
    if let Some(gateway) = &arguments.gateway {
        builder = builder.gateway(gateway);
    }
    let limit_bytes = usize::try_from(arguments.memory_mib).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    let value_bytes_max = arguments.value_bytes_max as usize;
    let share_bytes = limit_bytes >> bucket_bits;
    if value_bytes_max + KEY_BYTES_MAX + ITEM_BYTES > share_bytes {
        return Err(invalid(format!(
            "values of {value_bytes_max} bytes do not fit in the {share_bytes} of each of {} workers: give -m more, or less to \
             --value-bytes-max or -t",
            1 << bucket_bits
        )));
    }
    let stack = builder.open(&arguments.interface)?;
    let address = SocketAddr::new(host, arguments.port);
    let connections = arguments.connections;
    let settings = MemcacheSettings { address, limit_bytes, value_bytes_max, connections };
    let server = Memcache::bind(&stack, settings)?;
    println!(
        "{} on {}: {} workers, {} with receive queues, {} MiB",
        server.address(),
        arguments.interface,
        stack.buckets(),
        stack.workers(),
        arguments.memory_mib
    );
    server.serve()
}

fn power_of_two(text: &str) -> Result<u32, String> {
    let threads =
        text.parse().ok().filter(|threads: &u32| threads.is_power_of_two() && *threads <= THREADS_MAX);
    threads.ok_or_else(|| "give 1, 2, 4, 8 or 16".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn there_are_spare_connections_beside_any_number_of_clients() {
        let parse = |connections: &str| {
            Arguments::try_parse_from(["weir-memcache", "veth-a", "192.0.2.2/24", "-c", connections])
        };
        let most = parse("65519").unwrap_or_else(|error| panic!("{error}")).connections;
        assert_eq!(most + SPARE_CONNECTIONS, u16::MAX);
        let told = parse("65520").err().expect("too many").to_string();
        assert!(told.contains("65520 is not in 1..=65519"), "{told}");
    }

    #[test]
    fn the_help_says_when_a_client_that_has_vanished_is_given_up() {
        let help = Arguments::command().render_long_help().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("says nothing for {KEEPALIVE_S} s")), "{words}");
        assert!(words.contains(&format!("not answered for {} s", 4 * KEEPALIVE_S)), "{words}");
    }
}
