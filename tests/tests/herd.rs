//! A thousand senders blocked at once: each is woken only for as much as it can send then.
//!
//! A sender is a thread in `send(2)`. While it sleeps there it gives its processor up once; were it woken in vain it would
//! sleep again in the same call, so the voluntary context switches of a call beyond the first bound its empty wakes from above;
//! one in some hundred calls sleeps twice for reasons of the kernel's own, where a herd would make that every call but some.
//! The other side of it: Weir looks at a queue of held senders only when it can take packets, and finds some each time, but for a queue
//! that ran dry at a full poll while its senders, let go on, waited for a processor. The kernel wakes a sender when half of its buffer is
//! free, so there are far fewer kicks than packets.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::clock::{let_pass, wait_until};
use weir_tests::ready::{NOT_OVER, receive};
use weir_tests::rig::{MANY_QUEUES, Rig, stat_of};
use weir_tests::{harness, privileged};

const SENDERS: usize = 1000;
const PAYLOAD_BYTES: usize = 1470;
const PORT: u16 = 5001;
/// The bytes that each socket holds, as the kernel counts: 14 datagrams.
const SEND_BUFFER_BYTES: i32 = 16 << 10;
const RECEIVE_BUFFER_BYTES: i32 = 64 << 20;
const TIME: Duration = Duration::from_secs(3);
/// The silence after which nothing more comes.
const SILENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    harness::main(&[privileged!(a_thousand_blocked_senders_are_woken_for_what_they_can_send)])
}

/// The counts of a sender.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    sent: u64,
    wakes: u64,
    empty_wakes: u64,
}

fn a_thousand_blocked_senders_are_woken_for_what_they_can_send() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let receiver = rig.right.enter(|| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
        set_buffer(&socket, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)?;
        Ok(socket)
    })??;
    let sockets = rig.left.enter(|| -> Result<Vec<UdpSocket>> {
        let open = |_| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            set_buffer(&socket, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
            socket.connect((address.as_str(), PORT))?;
            Ok(socket)
        };
        (0..SENDERS).map(open).collect()
    })??;
    let (stop, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    let total = AtomicU64::new(NOT_OVER);
    let (tallies, received, counters) = thread::scope(|scope| -> Result<_> {
        let (stop, started) = (&stop, &started);
        let receiving = scope.spawn(|| receive(&receiver, SENDERS, SILENCE, &total));
        let senders = sockets.iter().enumerate().map(|(number, socket)| {
            let sender = thread::Builder::new().stack_size(64 << 10);
            sender.spawn_scoped(scope, move || send(number as u64, socket, started, stop))
        });
        let senders = senders.collect::<Result<Vec<_>, _>>().context("a thread for each sender");
        // The senders end in any case.
        let watched = senders.as_ref().map_err(|error| anyhow!("{error}")).and_then(|_| {
            let all = || Ok(started.load(Ordering::Relaxed) == SENDERS);
            wait_until("every sender has sent something", Duration::from_secs(20), all)?;
            let_pass(TIME, |_| ())?;
            wire.check().context("while a thousand are blocked")?;
            // When the senders stop, a last poll may be as full as if there were more.
            stat_of(&wire)
        });
        stop.store(true, Ordering::Relaxed);
        let join = |sender: thread::ScopedJoinHandle<Result<Tally>>| {
            sender.join().map_err(|_| anyhow!("a sender panicked"))?
        };
        let tallies = senders.and_then(|senders| senders.into_iter().map(join).collect::<Result<Vec<_>>>());
        let sent = tallies.iter().flatten().map(|tally| tally.sent).sum();
        total.store(sent, Ordering::Relaxed);
        let received = receiving.join().map_err(|_| anyhow!("the receiver panicked"))?;
        Ok((tallies?, received?, watched?))
    })?;
    let (arrived, reordered) = received;
    let lost: u64 = tallies.iter().zip(&arrived).map(|(tally, arrived)| tally.sent - arrived).sum();
    let sum = |part: fn(&Tally) -> u64| tallies.iter().map(part).sum::<u64>();
    let (sent, wakes, empty) =
        (sum(|tally| tally.sent), sum(|tally| tally.wakes), sum(|tally| tally.empty_wakes));
    let class = &counters["wires"][0]["classes"][0];
    println!(
        "    {sent} datagrams, {wakes} wakes, {empty} of them empty; weir counts {} empty wakes",
        class["empty_wakes"]
    );
    ensure!(lost == 0 && reordered == 0, "{lost} of {sent} datagrams lost, {reordered} out of order");
    ensure!(wakes > SENDERS as u64, "{wakes} wakes: the senders were not blocked");
    // Where others are busy too, a queue may run dry before any of its senders, who were let go on, has a processor; one time in ten or so
    // the poll that took its last packet was full, as if there were more.
    let in_vain = class["empty_wakes"].as_u64().context("no count of empty wakes")?;
    ensure!(1000 * in_vain <= wakes, "weir looked for packets of held senders in vain: {class}");
    ensure!(100 * empty <= wakes, "{empty} of {wakes} wakes sent nothing");
    // Half a buffer is seven datagrams; a sender may be scheduled, and so look, before the poll has freed them all.
    ensure!(2 * wakes <= sent, "{wakes} wakes for {sent} datagrams");
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Sends as fast as it may until it is told to stop.
fn send(number: u64, socket: &UdpSocket, started: &AtomicUsize, stop: &AtomicBool) -> Result<Tally> {
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        payload[8..16].copy_from_slice(&tally.sent.to_le_bytes());
        let before = voluntary_switches();
        socket.send(&payload).context("send")?;
        let switches = voluntary_switches() - before;
        tally.wakes += switches.min(1);
        tally.empty_wakes += switches.saturating_sub(1);
        if tally.sent == 0 {
            started.fetch_add(1, Ordering::Relaxed);
        }
        tally.sent += 1;
    }
    Ok(tally)
}

fn set_buffer(socket: &UdpSocket, option: i32, bytes: i32) -> Result<()> {
    // SAFETY: four bytes of a live value are passed.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4)
    };
    ensure!(done == 0, "socket option {option}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The number of times that this thread has given its processor up by itself: has slept.
fn voluntary_switches() -> u64 {
    // SAFETY: an all-zero `rusage` is a valid value, and the pointer is to it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw as u64
    }
}
