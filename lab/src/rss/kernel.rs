//! The kernel's sockets: a server for each core, and clients on the same cores.
//!
//! The servers share a port (`SO_REUSEPORT`); a classic BPF program takes, for each datagram, the server of the core on which it is
//! received, which is that of its client. The kernel itself takes the program's answer as the server's place among them, and ignores one that
//! is none.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, Result};

use super::clients::{Asked, BATCH, Messages, Pace, ask};
use super::{CLIENTS, Outcome, RssPlan};
use crate::bed::{End, Namespace, address, veth};
use crate::machine::{pin, process_seconds};

/// The pause between two looks of a server whether it is over.
const LOOK: Duration = Duration::from_millis(10);

/// Server and clients of this host, over loopback.
pub(super) fn over_loopback(plan: &RssPlan, pace: Pace) -> Result<Outcome> {
    let servers = servers("127.0.0.1:0".parse()?, &plan.cores)?;
    let server = servers[0].local_addr()?;
    measure(|| run(plan, servers, clients("127.0.0.1", plan)?, server, pace))
}

/// Server and clients at the ends of a pair.
pub(super) fn over_veth(plan: &RssPlan) -> Result<Outcome> {
    let ends = Ends::new(plan.cores.len())?;
    let servers = ends.right.enter(|| servers("10.99.0.2:7".parse()?, &plan.cores))??;
    let clients = ends.left.enter(|| clients("10.99.0.1", plan))??;
    measure(|| ends.right.enter(|| run(plan, servers, clients, "10.99.0.2:7".parse()?, Pace::Windowed))?)
}

/// Two hosts and the pair between them.
pub(super) struct Ends {
    pub(super) left: Namespace,
    pub(super) right: Namespace,
}

impl Ends {
    pub(super) fn new(queues: usize) -> Result<Ends> {
        let ends = Ends { left: Namespace::new("clients")?, right: Namespace::new("server")? };
        let [left, right] = [&ends.left, &ends.right].map(|namespace| End { namespace, name: "veth0" });
        veth(0, left, right, queues.max(2) as u32)?;
        address(0, left, right)?;
        Ok(ends)
    }
}

/// The outcome of a run, with the processor time of this process.
pub(super) fn measure(run: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
    let before = process_seconds(std::process::id())?;
    let outcome = run()?;
    Ok(Outcome { cpu_seconds: process_seconds(std::process::id())? - before, ..outcome })
}

/// The clients of each core.
pub(super) fn clients(from: &str, plan: &RssPlan) -> Result<Vec<Vec<UdpSocket>>> {
    let mut dealt: Vec<Vec<UdpSocket>> = plan.cores.iter().map(|_| Vec::new()).collect();
    for client in 0..usize::from(CLIENTS) {
        let core = client % dealt.len();
        dealt[core].push(UdpSocket::bind((from, 0))?);
    }
    Ok(dealt)
}

/// Runs clients on these cores, a thread each; all together.
pub(super) fn ask_all(
    plan: &RssPlan,
    clients: Vec<Vec<UdpSocket>>,
    server: SocketAddr,
    pace: Pace,
) -> Result<Asked> {
    thread::scope(|scope| {
        let threads = clients.into_iter().zip(&plan.cores).map(|(sockets, &core)| {
            scope.spawn(move || {
                pin(core)?;
                ask(sockets, server, pace, plan.duration)
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut asked = threads.into_iter().map(|thread| thread.join().expect("a client does not panic"));
        asked.try_fold(Asked::default(), |all, one| Ok(all.add(one?)))
    })
}

fn run(
    plan: &RssPlan,
    servers: Vec<UdpSocket>,
    clients: Vec<Vec<UdpSocket>>,
    server: SocketAddr,
    pace: Pace,
) -> Result<Outcome> {
    let is_over = AtomicBool::new(false);
    let asked = thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .zip(&plan.cores)
            .map(|(socket, &core)| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<()> {
                    pin(core)?;
                    echo(socket, is_over)
                })
            })
            .collect();
        let asked = ask_all(plan, clients, server, pace);
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a server does not panic")?;
        }
        asked
    })?;
    Ok(asked.outcome(dropped(server)?))
}

fn echo(socket: &UdpSocket, is_over: &AtomicBool) -> Result<()> {
    socket.set_read_timeout(Some(LOOK))?;
    let mut messages = Messages::new(true);
    while !is_over.load(Ordering::Relaxed) {
        let count = messages.receive(socket, libc::MSG_WAITFORONE)?;
        if count > 0 {
            messages.send(socket, count.min(BATCH), None, 0)?;
        }
    }
    Ok(())
}

/// A socket for each core, all on one port.
fn servers(at: SocketAddr, cores: &[usize]) -> Result<Vec<UdpSocket>> {
    let mut servers: Vec<UdpSocket> = Vec::new();
    for _ in cores {
        let at = match servers.first() {
            Some(first) => first.local_addr()?,
            None => at,
        };
        servers.push(shared_socket(at).context("binding a server")?);
    }
    steer_by_core(&servers[0], cores)?;
    Ok(servers)
}

fn shared_socket(at: SocketAddr) -> io::Result<UdpSocket> {
    let SocketAddr::V4(at) = at else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: makes a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else closes.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    set_option(&socket, libc::SO_REUSEPORT, &1i32)?;
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: at.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*at.ip()).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: the name is live and as long as is said.
    let bound = unsafe { libc::bind(fd, (&raw const name).cast(), size_of_val(&name) as u32) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Has each datagram go to the server of the core that it is received on; of another core the kernel chooses one, by a hash.
fn steer_by_core(first: &UdpSocket, cores: &[usize]) -> io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let answer = |server| step(libc::BPF_RET | libc::BPF_K, 0, server);
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let mut program = vec![step(load, 0, (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32)];
    for (server, &core) in (0..).zip(cores) {
        // Where it is not this core, past the answer.
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, core as u32));
        program.push(answer(server));
    }
    program.push(answer(u32::MAX));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(first, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

fn set_option<T>(socket: &UdpSocket, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is live and as long as is said; data that it points at, if any, lives to the end of the caller's call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Datagrams that the sockets of a port had no room for, in this thread's namespace.
fn dropped(server: SocketAddr) -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/udp")?;
    let port = format!(":{:04X}", server.port());
    let of_port = |line: &&str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&port));
    let counts = text.lines().skip(1).filter(of_port).map(|line| {
        line.split_whitespace().last().and_then(|count| count.parse::<u64>().ok()).context("a count of drops")
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cores;

    #[test]
    fn a_datagram_comes_to_the_server_of_its_core_whatever_the_number_of_that() {
        let cores = cores().unwrap();
        let [first, second, ..] = cores[..] else { return };
        let servers = servers("127.0.0.1:0".parse().unwrap(), &[second, first]).unwrap();
        let to = servers[0].local_addr().unwrap();
        // So many by chance would be one in 65,536.
        for _ in 0..16 {
            // Another thread has a flow of its own, and leaves the processors of this one alone.
            thread::spawn(move || {
                pin(second).unwrap();
                UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"one", to).unwrap();
            })
            .join()
            .unwrap();
            servers[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let received = servers[0].recv(&mut [0; 8]);
            assert!(received.is_ok(), "it went to the server of another core");
        }
    }
}
