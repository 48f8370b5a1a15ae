//! The kernel's tables of sockets: the bytes each has to send, and the number by which a process has it open.
//!
//! ```text
//! sl local remote st tx_queue:rx_queue tr:when retrnsmt uid timeout inode ...          numbers but the last in hexadecimal
//! ```
//!
//! Rule: a line that is not of this form is left out. Owner: the kernel; a look is a copy. Limits: of UDP and raw sockets `tx_queue` is the
//! memory of packets that have not left, of TCP the bytes that are not acknowledged. Packet sockets are not listed.
//!
//! Source: proc_pid_net(5); kernel `net/ipv4/udp.c:udp4_format_sock`, `net/ipv4/tcp_ipv4.c:get_tcp4_sock`.

use crate::error::{Doing, Result};
use crate::netns::NetNs;

/// A kind of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Raw.
    Raw,
}

impl SocketProtocol {
    fn tables(self) -> [&'static str; 2] {
        match self {
            SocketProtocol::Tcp => ["tcp", "tcp6"],
            SocketProtocol::Udp => ["udp", "udp6"],
            SocketProtocol::Raw => ["raw", "raw6"],
        }
    }
}

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRow {
    /// The state, by the kernel's numbers for TCP.
    pub state: u8,
    /// The bytes it has to send.
    pub to_send_bytes: u64,
    /// The number of its file; 0 where no process has it open any more.
    pub inode: u64,
}

/// Reads the tables of a namespace.
pub fn read(
    netns: &NetNs,
    protocols: &[SocketProtocol],
    mut each: impl FnMut(SocketProtocol, &str),
) -> Result<()> {
    netns.run(|| {
        for &protocol in protocols {
            for table in protocol.tables() {
                // /proc/net is that of the process, whose other threads are in other namespaces.
                let path = format!("/proc/thread-self/net/{table}");
                match std::fs::read_to_string(&path) {
                    Ok(text) => each(protocol, &text),
                    // A kernel without IPv6.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).doing(|| format!("reading {path}")),
                }
            }
        }
        Ok(())
    })
}

/// The sockets of one table.
pub fn rows(table: &str) -> impl Iterator<Item = SocketRow> + '_ {
    table.lines().skip(1).filter_map(row)
}

fn row(line: &str) -> Option<SocketRow> {
    let mut words = line.split_whitespace().skip(3);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let queue = words.next()?.split(':').next()?;
    let to_send_bytes = u64::from_str_radix(queue, 16).ok()?;
    // A test or an older kernel leaves fields out at the end; the inode is then 0.
    let inode = words.nth(4).and_then(|word| word.parse().ok()).unwrap_or(0);
    Some(SocketRow { state, to_send_bytes, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_what_is_to_be_sent_and_whose_it_is() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     78: 00000000:1389 0202570A:1389 01 00034A00:00000000 00:00000000 00000000  1000        0 48213 2 0 0\n\
                     79: 00000000:138A 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 0 0\n\
                     broken\n";
        let rows: Vec<_> = rows(table).collect();
        assert_eq!(
            rows,
            [
                SocketRow { state: 1, to_send_bytes: 0x34a00, inode: 48213 },
                SocketRow { state: 7, to_send_bytes: 0, inode: 7 },
            ]
        );
    }
}
