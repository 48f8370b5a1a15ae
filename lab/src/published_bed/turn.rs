//! One system's turn in one case: the load of its bed, and the figures.
//!
//! Lost datagrams are those that were sent and never came to the server's host: those that found a socket full there are counted apart. Of
//! the kernel's bed that is where its bound lies too: sent packets stand in a list of a processor, and those that do not fit are gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::stand::{Stand, WEB};
use crate::blast::{self, Counter};
use crate::clock::wait_until;
use crate::iperf::{overflowed_datagrams, received_datagrams, received_segments};
use crate::iperf3::Stream;
use crate::machine::busy_seconds;
use crate::stolen::Processors;
use crate::web::{Connections, connect_for};

/// A thousand connections a second at most: a client has addresses for so many.
const INTERVAL: Duration = Duration::from_millis(1);
/// The load beside connections, in iperf3's words.
const TCP_LOAD: [&str; 2] = ["-b", "200M"];
const UDP_LOAD: [&str; 5] = ["-u", "-b", "100M", "-l", "1400"];
const TCP_PORT: u16 = 5201;
const UDP_PORT: u16 = 5202;
/// A frame of 64 bytes with its check sequence.
const SMALL_PAYLOAD_BYTES: usize = 18;
const SMALL_FRAME_BYTES: usize = 60;
/// The load has begun when so many segments have come.
const SEGMENTS_FIRST: u64 = 100;
const BEGIN_LIMIT: Duration = Duration::from_secs(10);
/// The longest time that packets under way may take to come after the sender has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// The load of the bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Short connections alone.
    Quiet,
    /// Short connections beside 200 Mbit/s of TCP and 100 Mbit/s of UDP.
    Load,
    /// Short connections beside a TCP stream at full speed.
    Flood,
    /// A TCP stream at full speed.
    Tcp,
    /// As many small datagrams as one thread can send.
    Packets,
}

impl Case {
    /// All of them, in the order they run.
    pub const ALL: [Case; 5] = [Case::Quiet, Case::Load, Case::Flood, Case::Tcp, Case::Packets];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Case::Quiet => "quiet",
            Case::Load => "load",
            Case::Flood => "flood",
            Case::Tcp => "tcp",
            Case::Packets => "packets",
        }
    }
}

/// The figures of a turn; nothing where the case has none.
#[derive(Debug, Default)]
pub struct Turn {
    /// The short connections.
    pub connections: Option<Connections>,
    /// Payload bits per second of the TCP stream.
    pub bits_per_s: Option<f64>,
    /// Small datagrams that arrived, per second.
    pub packets_per_s: Option<f64>,
    /// Processor seconds of the whole machine for each gigabit that arrived.
    pub cpu_s_per_gbit: Option<f64>,
    /// Segments that TCP sent again.
    pub retransmits: Option<u64>,
    /// Datagrams that did not come to the server's host.
    pub lost: Option<u64>,
    /// Datagrams that found a socket full there.
    pub overflowed: Option<u64>,
    /// Datagrams that came after a later one.
    pub reordered: Option<u64>,
    /// The part of the busy time that the host took.
    pub stolen: f64,
}

/// Runs a turn of about so many seconds.
pub fn run(stand: &Stand, case: Case, seconds: f64) -> Result<Turn> {
    let before = Processors::now()?;
    let time = Duration::from_secs_f64(seconds);
    let mut turn = match case {
        Case::Quiet => Turn { connections: Some(connections(stand, time)?), ..Turn::default() },
        Case::Load => load(stand, time)?,
        Case::Flood => flood(stand, time)?,
        Case::Tcp => tcp(stand, seconds)?,
        Case::Packets => packets(stand, time)?,
    };
    turn.stolen = Processors::now()?.stolen_since(&before);
    stand.check()?;
    Ok(turn)
}

fn connections(stand: &Stand, time: Duration) -> Result<Connections> {
    connect_for(&stand.client, WEB, time, INTERVAL)
}

fn stream(stand: &Stand, port: u16, seconds: f64, options: &[&str]) -> Result<Stream> {
    Stream::start(&stand.client, &stand.server, &WEB.ip().to_string(), port, seconds.ceil() as u64, options)
}

fn load(stand: &Stand, time: Duration) -> Result<Turn> {
    let (overflowed, datagrams) =
        (overflowed_datagrams(&stand.server)?, received_datagrams(&stand.server, false)?);
    let segments = received_segments(&stand.server)?;
    // The load goes on for as long as the connections, and while they begin.
    let seconds = time.as_secs_f64() + 1.0;
    let tcp = stream(stand, TCP_PORT, seconds, &TCP_LOAD)?;
    let udp = stream(stand, UDP_PORT, seconds, &UDP_LOAD)?;
    wait_until("the load arrives", BEGIN_LIMIT, || {
        Ok(received_segments(&stand.server)? > segments + SEGMENTS_FIRST
            && received_datagrams(&stand.server, false)? > datagrams)
    })?;
    let connections = connections(stand, time)?;
    let (tcp, udp) = (tcp.finish()?, udp.finish()?);
    let overflowed = overflowed_datagrams(&stand.server)? - overflowed;
    Ok(Turn {
        connections: Some(connections),
        bits_per_s: Some(tcp.bits_per_s),
        retransmits: Some(tcp.retransmits),
        lost: Some(udp.lost.saturating_sub(overflowed)),
        overflowed: Some(overflowed),
        ..Turn::default()
    })
}

fn flood(stand: &Stand, time: Duration) -> Result<Turn> {
    let segments = received_segments(&stand.server)?;
    let tcp = stream(stand, TCP_PORT, time.as_secs_f64() + 1.0, &[])?;
    wait_until("the flood arrives", BEGIN_LIMIT, || {
        Ok(received_segments(&stand.server)? > segments + SEGMENTS_FIRST)
    })?;
    let connections = connections(stand, time)?;
    let tcp = tcp.finish()?;
    Ok(Turn {
        connections: Some(connections),
        bits_per_s: Some(tcp.bits_per_s),
        retransmits: Some(tcp.retransmits),
        ..Turn::default()
    })
}

fn tcp(stand: &Stand, seconds: f64) -> Result<Turn> {
    let busy_s = busy_seconds()?;
    let received = stream(stand, TCP_PORT, seconds, &[])?.finish()?;
    ensure!(received.bits > 0.0, "nothing arrived");
    Ok(Turn {
        bits_per_s: Some(received.bits_per_s),
        cpu_s_per_gbit: Some((busy_seconds()? - busy_s) / (received.bits / 1e9)),
        retransmits: Some(received.retransmits),
        ..Turn::default()
    })
}

fn packets(stand: &Stand, time: Duration) -> Result<Turn> {
    let overflowed = overflowed_datagrams(&stand.server)?;
    let counter = stand.server.enter(|| Counter::bind(UDP_PORT))??;
    let busy_s = busy_seconds()?;
    let is_over = AtomicBool::new(false);
    let (sent, arrived) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| counter.count(time + PATIENCE, &is_over));
        let sent = stand.client.enter(|| blast::send(*WEB.ip(), UDP_PORT, SMALL_PAYLOAD_BYTES, time));
        is_over.store(true, Ordering::Relaxed);
        let arrived = counting.join().expect("the counter does not panic");
        sent.and_then(|sent| Ok((sent?, arrived)))
    })?;
    ensure!(arrived.datagrams > 0, "nothing arrived");
    let overflowed = overflowed_datagrams(&stand.server)? - overflowed;
    let gigabits = (arrived.datagrams as usize * SMALL_FRAME_BYTES * 8) as f64 / 1e9;
    Ok(Turn {
        packets_per_s: Some(arrived.per_s),
        cpu_s_per_gbit: Some((busy_seconds()? - busy_s) / gigabits),
        lost: Some((sent - arrived.datagrams).saturating_sub(overflowed)),
        overflowed: Some(overflowed),
        reordered: Some(arrived.reordered),
        ..Turn::default()
    })
}
