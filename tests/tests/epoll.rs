//! Programs that never block behind a limit: EAGAIN holds them, EPOLLOUT lets them go on, and nothing is lost.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use weir_lab::clock::now;
use weir_lab::iperf::overflowed_datagrams;
use weir_tests::ready::{NOT_OVER, Sent, receive, send_until};
use weir_tests::rig::Rig;
use weir_tests::{harness, privileged};

const SENDERS: usize = 64;
const PAYLOAD_BYTES: usize = 1470;
const PORT: u16 = 7002;
const TIME: Duration = Duration::from_secs(3);
/// The silence after which nothing more comes: 64 send buffers take 1.5 s at the rate, and are never empty for long until then.
const SILENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    harness::main(&[privileged!(sixty_four_senders_that_never_block)])
}

fn sixty_four_senders_that_never_block() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "50mbit"])?;
    let address = rig.right_address().v4;
    let receiver = rig.right.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    let sockets = rig.left.enter(|| -> Result<Vec<UdpSocket>> {
        let open = |_| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.connect((address.as_str(), PORT))?;
            Ok(socket)
        };
        (0..SENDERS).map(open).collect()
    })??;
    let total = AtomicU64::new(NOT_OVER);
    let (sent, received) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, SENDERS, SILENCE, &total));
        let sent = send_until(&sockets, PAYLOAD_BYTES, now() + TIME);
        total.store(sent.as_ref().map_or(0, Sent::total), Ordering::Relaxed);
        let received = receiving.join().map_err(|_| anyhow!("the receiver panicked"));
        (sent, received)
    });
    let (sent, (arrived, reordered)) = (sent?, received??);
    println!(
        "    {} datagrams, {} refusals, {} wakes, {} of them in vain",
        sent.total(),
        sent.refused,
        sent.wakes,
        sent.in_vain
    );
    let overflowed = overflowed_datagrams(&rig.right)?;
    let lost = sent.total() - arrived.iter().sum::<u64>();
    ensure!(
        lost == 0,
        "{lost} of {} datagrams lost; {overflowed} overflowed the receiver's socket",
        sent.total()
    );
    ensure!(arrived == sent.counts && reordered == 0, "{reordered} of {} out of order", sent.total());
    ensure!(sent.wakes > SENDERS as u64, "{} wakes: the senders were not held", sent.wakes);
    ensure!(sent.in_vain == 0, "{} of {} wakes in vain", sent.in_vain, sent.wakes);
    // The packets that passed in the time are the rate's, and no more: senders were held by EAGAIN, not by chance.
    ensure!(sent.refused >= sent.wakes, "{} refusals, {} wakes", sent.refused, sent.wakes);
    wire.check().context("at the end")?;
    wire.stop()?;
    Ok(())
}
