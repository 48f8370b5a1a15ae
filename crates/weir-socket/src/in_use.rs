//! The errors that a port is in use: which it is, who has it, and what to do.
//!
//! Rule: the kind of each is `AddrInUse`, as of `std`'s sockets, and callers go by that. The text is for whoever has to free the port.
//!
//! Pure.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_core::net::sockets::BindError;
use weir_port::bpf::bound::Transport;

use crate::builder::invalid;

/// The refusal of a binding by the other sockets of the stack.
pub(crate) fn refused(transport: Transport, error: BindError) -> io::Error {
    match error {
        BindError::InUse(_) => in_use(format!(
            "{} {error}, by a socket of this stack: close that one, or take another port, or 0 for a free one",
            name(transport)
        )),
        BindError::NoBucket { .. } => invalid(error),
    }
}

/// The refusal of a port by the kernel, which has given it to a program, or to another stack, or has a connection there that still ends.
pub(crate) fn refused_by_kernel(transport: Transport, address: SocketAddr) -> io::Error {
    let (name, ip, port) = (name(transport), address.ip(), address.port());
    let show = match transport {
        Transport::Udp => "ss -uanp",
        Transport::Tcp => "ss -tanp",
    };
    in_use(format!(
        "{name} port {port} of {ip} is in use outside this stack: `{show}` shows by what, or `weir stat` if it is another stack; end that, or take \
         another port, or 0 for a free one"
    ))
}

/// The error that no port is left to choose.
pub(crate) fn none_free(address: IpAddr) -> io::Error {
    in_use(format!(
        "all ports of {address} that may be chosen are in use: close sockets, or name a port below them"
    ))
}

fn in_use(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, text)
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_refusal_says_which_port_and_what_to_do() {
        let address = SocketAddr::new([192, 0, 2, 2].into(), 11211);
        for (transport, begins, shows) in [
            (Transport::Tcp, "TCP port 11211 of 192.0.2.2 is in use", "`ss -tanp`"),
            (Transport::Udp, "UDP port 11211 of 192.0.2.2 is in use", "`ss -uanp`"),
        ] {
            let error = refused_by_kernel(transport, address);
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            let text = error.to_string();
            assert!(
                text.starts_with(begins) && text.contains(shows) && text.contains("another port"),
                "{text}"
            );
        }
    }
}
