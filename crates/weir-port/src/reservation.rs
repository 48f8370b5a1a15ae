//! A port that the kernel gives to no program, because a stack beside the kernel has it on the same address.
//!
//! Rule: the reservation is a socket of the kernel's that is bound and takes nothing. So a program that asks the kernel for the port is
//! told that it is in use, and the kernel takes it for no connection of its own. A port that a program has already is not to be had here:
//! `EADDRINUSE`, as for two programs of the kernel's. A TCP port where connections of the kernel's still end (TIME_WAIT) is in use too.
//!
//! Owner: the holder of this value; the kernel has the port back when it is dropped, and when the process dies. Limits: a datagram to it by
//! way of another interface, the loopback interface too, finds this socket and is lost, while a connection is refused.
//!
//! Source: ip(7) `IP_FREEBIND`, kernel `net/ipv4/inet_connection_sock.c:inet_csk_get_port`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use crate::bpf::bound::Transport;
use crate::netns::NetNs;
use crate::sys;

/// A port reserved until this is dropped; see the head of the file.
#[derive(Debug)]
pub struct PortReservation {
    _socket: OwnedFd,
}

impl PortReservation {
    /// Reserves the port of an address in a namespace, whether the kernel has that address or not. A link-local address is that of the
    /// interface that its scope names.
    ///
    /// # Errors
    /// `AddrInUse`; or another error of the kernel.
    pub fn new(netns: &NetNs, transport: Transport, address: SocketAddr) -> io::Result<PortReservation> {
        let open = || open(transport, address);
        let socket = match NetNs::current().map_err(io::Error::other)?.is(netns) {
            true => open(),
            false => netns.run(|| Ok(open())).map_err(io::Error::other)?,
        };
        let _socket = socket?;
        Ok(PortReservation { _socket })
    }
}

fn open(transport: Transport, address: SocketAddr) -> io::Result<OwnedFd> {
    let kind = match transport {
        Transport::Udp => libc::SOCK_DGRAM,
        Transport::Tcp => libc::SOCK_STREAM,
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::socket(family, kind, 0)?;
    let fd = socket.as_fd();
    sys::refuse_packets(fd)?;
    // The address may be the stack's alone, or not be the kernel's just now.
    sys::setsockopt(fd, libc::SOL_IP, libc::IP_FREEBIND, &1i32)?;
    match address {
        SocketAddr::V4(address) => {
            let mut name = <libc::sockaddr_in as sys::Plain>::zeroed();
            name.sin_family = libc::AF_INET as u16;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            sys::bind(fd, &name)?;
        }
        SocketAddr::V6(address) => {
            let mut name = <libc::sockaddr_in6 as sys::Plain>::zeroed();
            name.sin6_family = libc::AF_INET6 as u16;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            sys::bind(fd, &name)?;
        }
    }
    Ok(socket)
}
