//! A tree of 1,001 classes in 3 levels: packets a second for each core, of the kernel's HTB on a veth and of Weir's.
//!
//! ```text
//! kernel:  990 sockets, each of one class (SO_PRIORITY, which HTB takes without a filter) -> [htb] veth -> dropped at its end
//! Weir:    990 leaves that always hold packets -> tree
//! ```
//! The kernel's figure counts the processor time of the sending thread, which enqueues, dequeues and delivers. So that HTB is not
//! charged for the rest, the same is sent through a `bfifo`: the difference is HTB alone. It has room for less than the longest packet of
//! its interface. Past any other FIFO that is empty packets go unqueued (`TCQ_F_CAN_BYPASS`), and past HTB never. Weir's figure is its
//! tree alone, to be compared with that; on a wire the rest of its way comes on top, as `forward` measures. No rate of the tree is reached
//! by the kernel, which is therefore never slowed; Weir's tree is at its limit all the time, which costs it more than being idle.
//!
//! Systems take turns, ABCCBA; medians and quartiles. Needs root for the kernel's part.

#[path = "../../benches/floors.rs"]
mod floors;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floors::Floors;
use weir_core::packet::{Meta, Packet};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::{Dequeue, QueueRule};
use weir_core::shaper::htb::{Htb, HtbConfig, HtbMeter};
use weir_core::shaper::tree::{LeafConfig, TreeSize};
use weir_lab::bed::{self, End, Namespace};
use weir_lab::machine::Machine;
use weir_lab::process::run;

const INNER: usize = 10;
const LEAVES: usize = 990;
/// The length of an Ethernet frame.
const LEN_BYTES: usize = 1000;
const HEADERS_BYTES: usize = 42;
const ROUNDS: usize = 4;
/// Datagrams that one system call sends.
const BATCH: usize = 16;
/// The number of packets that each turn sends.
const PACKETS: usize = 300_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Htb,
    Bfifo,
    Weir,
}

fn main() -> Result<ExitCode> {
    println!("{}", Machine::measure()?.to_line());
    let mut systems = vec![System::Weir];
    if bed::is_privileged() {
        bed::begin()?;
        systems = vec![System::Htb, System::Bfifo, System::Weir];
    } else {
        println!("htb: the kernel's part needs root to make network namespaces; left out");
    }
    let mut nanoseconds = vec![Vec::new(); systems.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..systems.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let ns = match systems[index] {
                System::Weir => weir()?,
                kernel => self::kernel(kernel).with_context(|| format!("{kernel:?}"))?,
            };
            nanoseconds[index].push(ns);
        }
    }
    let of = |system| systems.iter().position(|&one| one == system).map(|index| nanoseconds[index].clone());
    println!("{:34}  {:>9}  {:>17}", "1001 classes in 3 levels", "ns/packet", "M packets/s, core");
    let mut floors = Floors::default();
    let weir = show("Weir's tree", of(System::Weir).unwrap_or_default());
    if let (Some(htb), Some(bfifo)) = (of(System::Htb), of(System::Bfifo)) {
        let alone: Vec<f64> = htb.iter().zip(&bfifo).map(|(htb, bfifo)| htb - bfifo).collect();
        let htb = show("kernel: socket to veth through htb", htb);
        show("kernel: the same through bfifo", bfifo);
        let alone = show("kernel: htb alone, the difference", alone);
        println!("kernel through htb / Weir {:.1}, htb alone / Weir {:.1}", htb / weir, alone / weir);
        // On a quiet machine 3.1 to 3.3 times.
        floors.at_least("htb alone / Weir's tree", alone / weir, 2.5);
    }
    Ok(floors.finish())
}

fn show(name: &str, mut ns: Vec<f64>) -> f64 {
    ns.sort_by(f64::total_cmp);
    let at = |quarter: usize| ns[quarter * (ns.len() - 1) / 4];
    println!("{name:34}  {:9.0}  {:17.2}  [{:.0} {:.0}] ns", at(2), 1e3 / at(2), at(1), at(3));
    at(2)
}

/// Processor time of this thread, in nanoseconds.
fn thread_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value of the type that is written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of the sender's processor for each packet that came out of the queueing discipline.
fn kernel(system: System) -> Result<f64> {
    let from = Namespace::new("sender")?;
    let to = Namespace::new("nobody")?;
    bed::veth(0, End { namespace: &from, name: "veth0" }, End { namespace: &to, name: "veth1" }, 1)?;
    // Longer than all that the `bfifo` below has room for; so much never waits.
    from.ip("link set veth0 mtu 65535")?;
    from.ip("addr add 10.99.0.1/24 dev veth0")?;
    // The neighbour is nobody: the far end drops each packet as soon as it sees it.
    from.ip("neigh replace 10.99.0.2 lladdr 02:57:ff:ff:ff:ff dev veth0 nud permanent")?;
    match system {
        System::Htb => tc_batch(&from, &tree())?,
        _ => drop(from.tc("qdisc replace dev veth0 root handle 1: bfifo limit 64000")?),
    }
    let ns = from.enter(|| -> Result<f64> {
        let sockets = (0..LEAVES).map(socket).collect::<Result<Vec<_>>>()?;
        flood(&sockets, PACKETS / 10)?;
        let before = passed_packets(&from)?;
        let start = thread_ns();
        let sent = flood(&sockets, PACKETS)?;
        let ns = thread_ns() - start;
        let passed = passed_packets(&from)? - before;
        ensure!(passed >= sent as u64, "{passed} of {sent} packets passed the queueing discipline");
        Ok(ns / sent as f64)
    })??;
    if system == System::Htb {
        let classes = from.tc("-s class show dev veth0 classid 1:3e7")?;
        ensure!(!classes.contains("Sent 0 bytes"), "packets are not in their classes: {classes}");
    }
    Ok(ns)
}

fn leaf_id(leaf: usize) -> usize {
    1 + INNER + 1 + leaf
}

/// The tree that Weir has, with rates that no packet reaches here: the shares are the same.
fn tree() -> String {
    let mut text = String::from("qdisc replace dev veth0 root handle 1: htb default 2\n");
    let mut class = |parent: usize, id: usize, mbit: usize| {
        let _ = writeln!(
            text,
            "class add dev veth0 parent 1:{parent:x} classid 1:{id:x} htb rate {mbit}mbit ceil 100gbit burst 1mb cburst 1mb \
             quantum 1514"
        );
    };
    class(0, 1, 100_000);
    (0..INNER).for_each(|inner| class(1, 2 + inner, 10_000));
    (0..LEAVES).for_each(|leaf| class(2 + leaf % INNER, leaf_id(leaf), 100));
    text
}

fn tc_batch(namespace: &Namespace, text: &str) -> Result<()> {
    let path = std::env::temp_dir().join(format!("{}.tc", namespace.name()));
    std::fs::write(&path, text)?;
    let mut command = std::process::Command::new("tc");
    command.args(["-n", namespace.name(), "-batch"]).arg(&path);
    let done = run(&mut command, Duration::from_secs(60));
    std::fs::remove_file(&path)?;
    done?.success()?;
    Ok(())
}

/// Packets that left through the root.
fn passed_packets(namespace: &Namespace) -> Result<u64> {
    let text = namespace.tc("-s -j qdisc show dev veth0")?;
    let qdiscs: serde_json::Value = serde_json::from_str(&text)?;
    let root = qdiscs.as_array().into_iter().flatten().find(|qdisc| qdisc["root"] == true);
    root.and_then(|root| root["packets"].as_u64()).context("tc shows no packets of the root")
}

/// A socket whose datagrams are of one leaf.
fn socket(leaf: usize) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 2), 9))?;
    let priority = 1 << 16 | leaf_id(leaf) as u32;
    // SAFETY: four bytes of a live value are passed.
    let done = unsafe {
        let pointer = std::ptr::from_ref(&priority).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, pointer, 4)
    };
    ensure!(done == 0, "SO_PRIORITY: {}", std::io::Error::last_os_error());
    Ok(socket)
}

/// Sends so many packets or some more, some by each socket in turn. Returns how many.
fn flood(sockets: &[UdpSocket], packets: usize) -> Result<usize> {
    let mut payload = vec![0u8; LEN_BYTES - HEADERS_BYTES];
    let mut part = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: an all-zero `mmsghdr` is a message without address, control data or flags.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
    }
    let mut sent = 0;
    for socket in sockets.iter().cycle() {
        // SAFETY: `messages` are `BATCH` headers, all of one part, which lives as long as they and is only read.
        let count = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) };
        ensure!(count > 0, "sendmmsg: {}", std::io::Error::last_os_error());
        sent += count as usize;
        if sent >= packets {
            break;
        }
    }
    Ok(sent)
}

/// As large as a packet.
#[derive(Clone, Copy, Debug)]
struct Handle {
    meta: Meta,
    class: usize,
}

impl Packet for Handle {
    fn len_bytes(&self) -> u32 {
        LEN_BYTES as u32
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// Nanoseconds of the processor for each packet that leaves the tree and is replaced by another: leaves have guarantees for a
/// fifth of the link and borrow the rest.
fn weir() -> Result<f64> {
    let mbit = |mbit: u64| Rate::from_bits_per_s(mbit * 1_000_000).context("a rate of 0");
    let config = |rate_mbit, ceil_mbit| -> Result<HtbConfig> {
        let (rate, ceil) = (mbit(rate_mbit)?, mbit(ceil_mbit)?);
        Ok(HtbConfig { rate, ceil, burst_bytes: 20_000, cburst_bytes: 20_000, mtu_bytes: LEN_BYTES as u64 })
    };
    let size = TreeSize { classes_max: 1 + INNER + LEAVES, packets_max: 10_000, poll_budget_bytes: 0 };
    let mut htb = Htb::new(size, 0);
    let leaf = LeafConfig {
        priority: 0,
        flows: 1,
        flow_quantum_bytes: 1514,
        limit_bytes: 100_000,
        rule: QueueRule::default(),
    };
    let mut add = |parent, config: HtbConfig, leaf| -> Result<usize> {
        Ok(htb.add(parent, HtbMeter::new(config, 0)?, 1514, leaf, 0)?)
    };
    let root = add(None, config(10_000, 10_000)?, None)?;
    let inner =
        (0..INNER).map(|_| add(Some(root), config(1_000, 10_000)?, None)).collect::<Result<Vec<_>>>()?;
    let leaves = (0..LEAVES)
        .map(|leaf_index| add(Some(inner[leaf_index % INNER]), config(2, 10_000)?, Some(leaf)))
        .collect::<Result<Vec<_>>>()?;
    for class in leaves {
        for _ in 0..4 {
            htb.enqueue(class, 0, Handle { meta: Meta::default(), class }).ok().context("a leaf is full")?;
        }
    }
    let (mut now_ns, mut sent, mut start) = (0, 0, 0.0);
    // The first of them spend the bursts.
    while sent < 2 * PACKETS {
        match htb.dequeue(now_ns) {
            Dequeue::Packet(_, packet) => {
                sent += 1;
                if sent == PACKETS {
                    start = thread_ns();
                }
                htb.enqueue(packet.class, 0, packet).ok().context("a leaf is full")?;
            }
            Dequeue::NotBefore(ready_ns) => now_ns = ready_ns,
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok((thread_ns() - start) / PACKETS as f64)
}
