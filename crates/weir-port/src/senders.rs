//! The processes that have something to send that has not left, by the sockets of a namespace.
//!
//! Rule: a look at one moment. A socket that several processes have open counts for each; a socket that no process has open any more, such
//! as a closed TCP connection, is listed without a process. Source: [`crate::socket_table`]; proc_pid_fd(5). Limits: processes that this
//! one cannot see.

use std::collections::HashMap;
use std::fs;

use crate::error::Result;
use crate::netns::NetNs;
use crate::socket_table::{self, SocketProtocol};
use crate::sys;

/// A process that has something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its number; `None` for sockets that no process has open.
    pub pid: Option<u32>,
    /// Its name.
    pub command: String,
    /// Its sockets that have something to send.
    pub sockets: u64,
    /// The bytes that they have to send: memory of UDP and raw sockets, unacknowledged bytes of TCP.
    pub bytes: u64,
}

/// The senders of a namespace, the one with most bytes first.
pub fn of(netns: &NetNs) -> Result<Vec<Sender>> {
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    let mut unowned = Sender { pid: None, command: String::new(), sockets: 0, bytes: 0 };
    socket_table::read(
        netns,
        &[SocketProtocol::Tcp, SocketProtocol::Udp, SocketProtocol::Raw],
        |_, table| {
            for row in socket_table::rows(table).filter(|row| row.to_send_bytes > 0) {
                match row.inode {
                    0 => {
                        unowned.sockets += 1;
                        unowned.bytes += row.to_send_bytes;
                    }
                    inode => *waiting.entry(inode).or_default() += row.to_send_bytes,
                }
            }
        },
    )?;
    let mut senders = if waiting.is_empty() { Vec::new() } else { processes(&waiting) };
    senders.sort_by_key(|sender| std::cmp::Reverse(sender.bytes));
    senders.extend((unowned.sockets > 0).then_some(unowned));
    Ok(senders)
}

fn processes(waiting: &HashMap<u64, u64>) -> Vec<Sender> {
    let mut senders = Vec::new();
    for pid in sys::processes() {
        let bytes: Vec<u64> = sockets(pid).filter_map(|inode| waiting.get(&inode).copied()).collect();
        if !bytes.is_empty() {
            let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            senders.push(Sender {
                pid: Some(pid),
                command: name_of(&command),
                sockets: bytes.len() as u64,
                bytes: bytes.iter().sum(),
            });
        }
    }
    senders
}

/// The name of a process by its `/proc/PID/comm`: any 15 bytes, also such as are no text.
fn name_of(comm: &[u8]) -> String {
    String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(comm)).into_owned()
}

/// The numbers of the sockets that a process has open, each once.
fn sockets(pid: u32) -> impl Iterator<Item = u64> + use<> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut inodes: Vec<u64> = files
        .filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes.into_iter()
}
