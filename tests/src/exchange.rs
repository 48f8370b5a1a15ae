//! The traffic between two ends, and the check that each got all of it: datagrams that are numbered and come back in order, and streams
//! whose byte at a place is known.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_socket::UdpSocket;

/// The longest time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The published payload: frames of 510 bytes.
pub const PAYLOAD_BYTES: usize = 510 - 42;
/// Datagrams of a client on their way: as many as its own socket has room for when they come back.
const WINDOW: u32 = 32;

/// Sends datagrams back until it is over.
pub fn echo(server: &UdpSocket, echoed: &AtomicU64, is_over: &AtomicBool) -> std::io::Result<()> {
    server.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut batch = server.datagrams(64);
    while !is_over.load(Ordering::Relaxed) {
        match server.recv_batch(&mut batch) {
            Err(error) if error.kind() == ErrorKind::TimedOut => continue,
            received => received?,
        };
        while !batch.is_empty() {
            echoed.fetch_add(server.send_batch(&mut batch)? as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Sends so many numbered datagrams and fails unless each comes back, in order.
pub fn ask(client: &KernelSocket, to: SocketAddr, datagrams: u32) -> Result<()> {
    client.connect(to)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let (mut sent, mut payload) = (0, [0; PAYLOAD_BYTES]);
    for next in 0..datagrams {
        while sent < datagrams && sent < next + WINDOW {
            payload[..4].copy_from_slice(&u32::to_be_bytes(sent));
            client.send(&payload)?;
            sent += 1;
        }
        let len = client.recv(&mut payload).with_context(|| format!("datagram {next} from {to}"))?;
        let came = payload.first_chunk().map(|number| u32::from_be_bytes(*number));
        ensure!((len, came) == (PAYLOAD_BYTES, Some(next)), "{came:?} of {len} bytes instead of {next}");
    }
    Ok(())
}

/// The byte at a place of a stream.
pub fn byte_at(at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]
}

/// Sends so many bytes and ends the stream.
pub fn send_all(mut stream: impl Write, len: usize, end: impl FnOnce() -> std::io::Result<()>) -> Result<()> {
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    stream.write_all(&bytes)?;
    Ok(end()?)
}

/// Reads to the end, and requires the bytes that were sent.
pub fn receive_all(mut stream: impl Read, len: usize) -> Result<()> {
    let mut came = Vec::with_capacity(len);
    stream.read_to_end(&mut came).with_context(|| format!("{} of {len} bytes came", came.len()))?;
    ensure!(came.len() == len, "{} bytes came of {len}", came.len());
    let wrong = came.iter().enumerate().find(|&(at, &byte)| byte != byte_at(at));
    ensure!(wrong.is_none(), "a byte that was not sent: {wrong:?}");
    Ok(())
}

/// Both ways at once over one connection: so many bytes each way, then the end.
pub fn exchange<A: Sync, B: Sync>(
    (one, end_one): (&A, impl FnOnce() -> std::io::Result<()> + Send),
    (other, end_other): (&B, impl FnOnce() -> std::io::Result<()> + Send),
    len: usize,
) -> Result<()>
where
    for<'a> &'a A: Read + Write,
    for<'a> &'a B: Read + Write,
{
    thread::scope(|scope| {
        let threads = [
            scope.spawn(|| send_all(one, len, end_one)),
            scope.spawn(|| send_all(other, len, end_other)),
            scope.spawn(|| receive_all(one, len)),
            scope.spawn(|| receive_all(other, len)),
        ];
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
