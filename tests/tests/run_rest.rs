//! `weir run` when its program has ended: what that sent last arrives, and nobody waits for it for ever. On a host of our own.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::{self, wait_until};
use weir_lab::process::{Process, Signal, run};
use weir_port::lock::Lock;
use weir_tests::host::{Host, INTERNET_V4, summary_number};
use weir_tests::{harness, privileged};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(what_was_sent_last_arrives).together(),
        privileged!(what_a_closed_connection_has_to_send_arrives).together(),
        privileged!(what_a_slow_connection_has_to_send_arrives).together(),
        privileged!(what_a_reader_takes_late_arrives).together(),
        privileged!(a_child_that_goes_on_sending_keeps_nobody).together(),
        privileged!(ctrl_c_drops_what_is_waited_for).together(),
        privileged!(what_leaves_at_the_end_is_not_told_as_dropped).together(),
        privileged!(what_is_dropped_beyond_the_run_is_told_as_that).together(),
    ])
}

/// A port on the host for a run's program.
const PORT: u16 = 5600;
const DATAGRAMS: u64 = 100;
/// As many as a socket holds, about, so that most wait for seconds at a low rate when their program has ended.
const HELD: u64 = 60;

/// Counts the datagrams that arrive at the host's [`PORT`].
struct Counter {
    reading: std::thread::JoinHandle<std::io::Result<u64>>,
}

impl Counter {
    fn start(host: &Host) -> Result<Counter> {
        let socket = host.namespace.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
        socket.set_read_timeout(Some(LIMIT))?;
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let mut datagrams = 0;
            while socket.recv(&mut buffer)? > END.len() {
                datagrams += 1;
            }
            Ok(datagrams)
        });
        Ok(Counter { reading })
    }

    /// The number of datagrams that have arrived, once all programs that send to the receiver have ended.
    fn finish(self, host: &Host) -> Result<u64> {
        host.namespace.sh("ip link set lo up")?;
        host.namespace.enter(|| -> Result<()> {
            UdpSocket::bind(("127.0.0.1", 0))?.send_to(END, ("127.0.0.1", PORT))?;
            Ok(())
        })??;
        let counted = self.reading.join().map_err(|_| anyhow::anyhow!("the counter panicked"))?;
        counted.context("reading datagrams")
    }
}

/// A datagram after the last one.
const END: &[u8] = b"end";

/// `weir run` of a bash script that knows the host as `$host`, and a word to send as `$word`, of 1000 bytes.
fn run_bash(host: &Host, rate: &str, script: &str) -> std::process::Command {
    let mut command = host.weir(&["run", "--rate", rate, "--", "bash", "-c"]);
    let knows = "host=$(ip route show default | cut -d ' ' -f 3); printf -v word %01000d 1";
    command.arg(format!("{knows}; {script}"));
    command
}

/// A bash script that sends datagrams, each by one write that blocks, and ends.
fn burst(datagrams: u64) -> String {
    format!("exec 3>/dev/udp/$host/{PORT}; for ((i = 0; i < {datagrams}; i++)); do printf %s $word >&3; done")
}

/// The last datagrams stand in front of Weir when the program ends.
fn what_was_sent_last_arrives() -> Result<()> {
    let host = Host::alone()?;
    let counter = Counter::start(&host)?;
    let done = run(&mut run_bash(&host, "1mbit", &format!("{}; exit 3", burst(DATAGRAMS))), LIMIT)?;
    ensure!(done.status.code() == Some(3), "it ended with {}: {}", done.status, done.stderr);
    let arrived = counter.finish(&host)?;
    ensure!(arrived == DATAGRAMS, "{arrived} of {DATAGRAMS} arrived: {}", done.stderr);
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    Ok(())
}

/// The data arrive with the end of the stream.
fn what_a_closed_connection_has_to_send_arrives() -> Result<()> {
    stream_arrives("2mbit", 400_000)
}

/// One packet of segments takes longer than the 2 s after which packets of a frame would be given up.
fn what_a_slow_connection_has_to_send_arrives() -> Result<()> {
    stream_arrives("50kbit", 100_000)
}

fn stream_arrives(rate: &str, bytes: usize) -> Result<()> {
    let host = Host::alone()?;
    let listener = host.namespace.enter(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let reading = std::thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_to_end(&mut Vec::new())
    });
    let script = format!("head -c {bytes} /dev/zero >/dev/tcp/$host/{PORT}");
    let done = run(&mut run_bash(&host, rate, &script), LIMIT)?.success()?;
    let read = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
    let read = read.with_context(|| format!("no end of stream: {}", done.stderr))?;
    ensure!(read == bytes, "{read} of {bytes} bytes arrived: {}", done.stderr);
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    Ok(())
}

/// The window of a receiver that reads nothing is closed, and no packet passes the limit for longer than it may stall otherwise.
fn what_a_reader_takes_late_arrives() -> Result<()> {
    const BYTES: usize = 30_000;
    const PAUSE: Duration = Duration::from_secs(4);
    let host = Host::alone()?;
    let listener = host.namespace.enter(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    // Its connections have as much room.
    weir_port::sys::setsockopt(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &2048)?;
    let script = format!("head -c {BYTES} /dev/zero >/dev/tcp/$host/{PORT}");
    let mut process = Process::spawn(&mut run_bash(&host, "2mbit", &script))?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    wait_until("it says that it waits", LIMIT, || {
        Ok(process.stderr().contains("CMD has ended; waiting for "))
    })?;
    clock::let_pass(PAUSE, |_| ())?;
    ensure!(process.is_running()?, "it waits for no reader: {}", process.stderr());
    let read = stream.read_to_end(&mut Vec::new()).context("no end of stream")?;
    let done = process.wait(LIMIT)?.success()?;
    ensure!(read == BYTES, "{read} of {BYTES} bytes arrived: {}", done.stderr);
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    Ok(())
}

/// The child loses its network, as the help says, and the summary tells the loss.
fn a_child_that_goes_on_sending_keeps_nobody() -> Result<()> {
    let host = Host::alone()?;
    let counter = Counter::start(&host)?;
    let script = format!("{}; while printf %s $word >&3; do :; done >/dev/null 2>&1 &", burst(DATAGRAMS));
    let done = run(&mut run_bash(&host, "2mbit", &script), LIMIT)?.success()?;
    ensure!(counter.finish(&host)? >= DATAGRAMS, "not even what the program itself sent arrived");
    ensure!(
        summary_number(&done.stderr.replace(':', " "), "dropped ")? > 0,
        "nothing was lost: {}",
        done.stderr
    );
    ensure!(done.stderr.contains(" unsent"), "it is not said what was lost: {}", done.stderr);
    Ok(())
}

fn ctrl_c_drops_what_is_waited_for() -> Result<()> {
    ctrl_c_drops(|_| Ok(()))
}

/// Who puts things back waits for a lock that somebody else has, and packets would go on to leave.
fn what_leaves_at_the_end_is_not_told_as_dropped() -> Result<()> {
    ctrl_c_drops(|host| {
        let _lock = Lock::take()?;
        wait_until("the network has ended", LIMIT, || Ok(!host.namespace.ip("-br link")?.contains("weir0")))
    })
}

/// Requires that what Ctrl-C drops is told, whatever is done `meanwhile`.
fn ctrl_c_drops(meanwhile: impl FnOnce(&Host) -> Result<()>) -> Result<()> {
    let host = Host::alone()?;
    let counter = Counter::start(&host)?;
    let mut process = Process::spawn(&mut run_bash(&host, "64kbit", &burst(HELD)))?;
    wait_until("it says that it waits", LIMIT, || {
        Ok(process.stderr().contains("CMD has ended; waiting for "))
    })?;
    process.signal(Signal::INT)?;
    meanwhile(&host)?;
    let done = process.wait(LIMIT)?.success()?;
    let arrived = counter.finish(&host)?;
    ensure!(arrived < HELD, "everything arrived, so it waited: {}", done.stderr);
    let lost = summary_number(&done.stderr.replace(':', " "), "dropped ")?;
    // The kernel sends a few of its own.
    let all = arrived + lost;
    ensure!((HELD..HELD + 4).contains(&all), "{arrived} arrived: {}", done.stderr);
    ensure!(done.stderr.contains(" unsent"), "it is not said what was lost: {}", done.stderr);
    Ok(())
}

/// The host is a container, say, whose way out is limited from outside, and drops what is beyond.
fn what_is_dropped_beyond_the_run_is_told_as_that() -> Result<()> {
    let host = Host::with_internet()?;
    // A port that nobody reads is told to the program, which goes on.
    let script = format!(
        "exec bash -c 'exec 3>/dev/udp/{INTERNET_V4}/5600; printf -v word %01000d 1; \
         for i in $(seq 200); do printf %s $word >&3; done 2>/dev/null; true'"
    );
    let quiet = host.finished(&script)?.success()?;
    ensure!(quiet.stderr.trim_end().ends_with("dropped none before this host's veth0"), "{}", quiet.stderr);
    host.namespace.tc("qdisc add dev veth0 root tbf rate 100kbit burst 5kb limit 20kb")?;
    let lossy = host.finished(&script)?.success()?;
    let says = "dropped none before this host's veth0; meanwhile veth0 dropped ";
    ensure!(lossy.stderr.contains(says), "{}", lossy.stderr);
    let dropped = summary_number(&lossy.stderr, "veth0 dropped ")?;
    ensure!((100..=200).contains(&dropped), "{}", lossy.stderr);
    Ok(())
}
